//! Models: GGUF files, architectures, weights, and the executors that run them. Nothing in this folder knows of
//! drafts, acceptance or text.

pub mod attention;
pub mod cache;
pub mod decoder;
pub mod device;
pub mod file;
pub mod gguf;
pub mod host;
pub mod layout;
pub mod linear;
pub mod low_bit;
pub mod pass;
pub mod rope;
pub mod spec;
pub mod split;
pub mod tensors;
pub mod weights;

pub use spec::ModelSpec;
