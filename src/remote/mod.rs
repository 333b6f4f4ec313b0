//! Answers of other servers: a client of OpenAI's chat protocol, as vLLM, SGLang, llama.cpp, LM Studio, Ollama and
//! `hunch serve` speak it.
//!
//! `address` holds addresses and keys, `client` sends requests, and `chunk` holds the wire types of a streamed answer.
//! `sampling` names sampling parameters. `speculation` reads the figures that a server reports of its own speculation.
//! Nothing here loads a model, and no figure of a server is presented as one of ours.

mod address;
mod chunk;
mod client;
mod sampling;
mod speculation;

pub use address::{ServerAddress, ServerKey};
pub use client::{
    RemoteAnswer, RemoteModel, RemoteRequest, RemoteServer, ServerKind, TextPiece, Usage, exact, runtime,
    unless_cancelled,
};
pub use sampling::sampling_fields;
pub use speculation::{Speculation, SpeculationSource};
