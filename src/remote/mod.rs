//! Answers of other servers: a client of OpenAI's chat protocol, as vLLM, SGLang, llama.cpp, LM Studio, Ollama and
//! `hunch serve` speak it.
//!
//! `address` holds addresses and keys, and `client` sends requests. Their contents are in [`crate::server_answers`].
//! Nothing here loads a model.

mod address;
mod client;

pub use address::{ServerAddress, ServerKey};
pub use client::{RemoteServer, runtime, unless_cancelled};
