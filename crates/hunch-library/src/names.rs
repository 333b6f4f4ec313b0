//! Names of models: of the default one, and of a file.

use std::path::Path;

use hunch_model::split;

/// Short name of the default model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct-q4_1";

/// Returns a file's name without its extension and part suffix.
pub fn short_name(path: &Path) -> String {
    split::stem(path)
}
