//! Helpers shared by several tests here: mutations, models that learn, requests and the default model.

pub(crate) mod app;
pub(crate) mod head_scores;
pub(crate) mod http;
pub(crate) mod learnable;
pub(crate) mod memo;
pub(crate) mod mutate;
pub(crate) mod pickle_writer;
pub(crate) mod requests;
pub(crate) mod safetensors_folder;
pub(crate) mod snapshot;

use std::path::PathBuf;

use hunch_model::device::{Compute, DeviceChoice, KvType};
use hunch_testing::gguf_writer::GgufWriter;

/// Returns the path of the default model, which `make setup` downloads.
pub(crate) fn default_model() -> PathBuf {
    let path = hunch_library::default_model_path().unwrap();
    assert!(path.exists(), "{} is missing: run `make setup`", path.display());
    path
}

/// Opens the CPU with one thread. Tests run next to each other, one on each core.
pub(crate) fn cpu() -> Compute {
    Compute::open(DeviceChoice::Cpu, Some(1)).unwrap()
}

/// As [`cpu`], with caches of 32 bits, as the reference implementations have.
pub(crate) fn cpu_with_f32_cache() -> Compute {
    cpu().with_kv(KvType::F32)
}

/// A byte-level vocabulary without merges, of these texts and token types.
pub(crate) fn vocabulary(entries: &[(&str, i32)]) -> GgufWriter {
    GgufWriter::new()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", entries.iter().map(|entry| entry.0))
        .strings("tokenizer.ggml.merges", [""; 0])
        .i32s("tokenizer.ggml.token_type", &entries.iter().map(|entry| entry.1).collect::<Vec<_>>())
}
