//! Support for the tests of several crates: GGUF files, tiny random models and heads, and GPUs without hardware.
//!
//! Nothing that ships depends on this crate. Support for one test binary stays next to it.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test fails where it cannot be set up")]

pub mod gguf_writer;
pub mod idle_gpu;
pub mod samples;
pub mod simulator;
pub mod tiny;
pub mod tiny_heads;
pub mod translate;
