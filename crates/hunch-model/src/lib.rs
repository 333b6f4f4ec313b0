//! Models: GGUF files, architectures, tokenisers, chat templates, and the executors that run a decoder on the CPU
//! and on Metal. Implements [`LanguageModel`](hunch_core::model::LanguageModel). Nothing here knows of drafts,
//! acceptance, conversations or where models are kept.

pub mod attention;
pub mod cache;
pub mod candle_executor;
pub mod cpu_executor;
pub mod decoder;
pub mod device;
pub mod executor;
pub mod file;
pub mod gguf;
pub mod linear;
pub mod low_bit;
pub mod rope;
pub mod spec;
pub mod split;
pub mod tensor_names;
pub mod text;
pub mod weights;

pub use spec::ModelSpec;
