//! Models of Hunch: GGUF files, architectures, tokenisers, chat templates and the decoder.
//!
//! [`Decoder`](decoder::Decoder) implements [`LanguageModel`](hunch_core::model::LanguageModel) on the
//! CPU and on Metal. Drafting, acceptance, conversations and the model library do not belong here.

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
