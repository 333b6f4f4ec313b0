//! Shared by several tests: a writer of GGUF files with small samples, damage to do to them, tiny random models,
//! and the default model.

pub(crate) mod gguf_writer;
pub(crate) mod mutate;
pub(crate) mod samples;
pub(crate) mod snapshot;
pub(crate) mod tiny;

use std::path::PathBuf;

/// The default model's file; `make setup` puts it there.
pub(crate) fn default_model() -> PathBuf {
    let path = hunch_library::default_model_path().unwrap();
    assert!(path.exists(), "{} is missing: run `make setup`", path.display());
    path
}
