//! Shared by the fuzz targets: the inputs they begin with, and a mutator for JSON.

pub mod json;
pub mod seeds;
pub mod template;

// The tests' own writer and samples; not everything in them is needed here.
#[allow(dead_code)]
#[path = "../../it/support/gguf_writer.rs"]
mod gguf_writer;
#[path = "../../it/support/samples.rs"]
mod samples;
