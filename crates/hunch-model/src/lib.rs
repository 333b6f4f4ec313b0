//! Models of Hunch: GGUF files, architectures, tokenisers, chat templates and the decoder.
//!
//! [`Decoder`](decoder::Decoder) implements [`LanguageModel`](hunch_core::model::LanguageModel) on the
//! CPU and on Metal. Drafting, acceptance, conversations and the model library do not belong here.

pub mod atomic_file;
mod attention;
mod cache;
mod candle_executor;
pub mod candle_type;
mod cpu_executor;
pub mod decoder;
mod dequantise;
pub mod device;
pub mod display_name;
pub mod execution;
mod executor;
mod file;
pub mod file_lock;
pub mod float_weights;
pub mod gguf;
pub mod heads;
mod hex;
pub mod input_file;
mod linear;
pub mod low_bit;
pub mod metal;
mod metal_executor;
pub mod model_folder;
pub mod pass_timer;
pub mod recommended;
mod rope;
mod safetensors;
pub mod sequences;
pub mod spec;
pub mod split;
mod stored_tensors;
mod tensor_files;
mod tensor_names;
pub mod text;
pub mod translated;
pub mod weights;

pub use hex::hex;
pub use spec::ModelSpec;
