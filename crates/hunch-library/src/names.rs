//! Names of models: of the default one, and of a file.

use std::path::Path;

use hunch_model::split;

/// Short name of the default model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct-q4_1";

/// Returns whether a file of this short name is the default model: as `make setup` or as the Hub names it.
pub(crate) fn is_default_name(name: &str) -> bool {
    name.to_ascii_lowercase().replace('.', "-") == DEFAULT_MODEL
}

/// Returns a file's name without its extension and part suffix.
pub fn short_name(path: &Path) -> String {
    split::stem(path)
}
