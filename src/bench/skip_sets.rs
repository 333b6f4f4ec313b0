//! What a skip search found, kept for each model: a small JSON file.

use std::path::{Path, PathBuf};

use super::skip_search::SkipSearch;
use crate::error::{Error, Result};
use crate::model::ModelSpec;
use crate::propose::layer_skip::{DraftLayers, fits};

/// Where the set of a model is kept. A model is known by its name and shape, wherever its file lies.
fn path(folder: &Path, spec: &ModelSpec) -> PathBuf {
    let name: String = spec.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.join(format!("{name}-{}-{}x{}.json", spec.architecture, spec.n_layer, spec.n_embd))
}

/// Keeps what was found for a model, in place of what was known before. Gives the file.
///
/// # Errors
/// When the folder cannot be written.
pub fn remember(folder: &Path, spec: &ModelSpec, found: &SkipSearch) -> Result<PathBuf> {
    let path = path(folder, spec);
    let io = |source| Error::Io { action: "write", path: path.clone(), source };
    std::fs::create_dir_all(folder).map_err(io)?;
    let text = serde_json::to_string_pretty(found).map_err(|e| Error::Internal(e.to_string()))?;
    // Another process never reads half of it.
    let unfinished = path.with_extension("json.part");
    std::fs::write(&unfinished, text).map_err(io)?;
    std::fs::rename(&unfinished, &path).map_err(io)?;
    Ok(path)
}

/// The layers that were found for a model; `None` when nobody has searched, or what is kept does not fit.
pub fn remembered(folder: &Path, spec: &ModelSpec) -> Option<Vec<usize>> {
    let text = std::fs::read_to_string(path(folder, spec)).ok()?;
    let found: SkipSearch = serde_json::from_str(&text).ok()?;
    let layers = DraftLayers::Skip(found.best.skipped.clone());
    (found.layers == spec.n_layer && fits(&layers, spec.n_layer)).then_some(found.best.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::skip_search::SkipSet;
    use crate::model::LanguageModel;
    use crate::model::table::{TableConfig, TableModel};

    #[test]
    fn what_was_found_is_found_again_by_the_same_model_only() {
        let folder = tempfile::tempdir().unwrap();
        let model = |n_layer| TableModel::new(TableConfig { n_layer, ..TableConfig::default() });
        let (four, six) = (model(4), model(6));
        let set = |skipped| SkipSet { skipped, acceptance: 0.5, cost: 0.5, depth: 1, predicted_speedup: 1.0 };
        let mut found = SkipSearch { model: "t".into(), layers: 4, best: set(vec![1, 2]), path: vec![] };
        assert_eq!(remembered(folder.path(), four.spec()), None);
        let path = remember(&folder.path().join("new"), four.spec(), &found).unwrap();
        let folder = path.parent().unwrap();
        assert_eq!(remembered(folder, four.spec()), Some(vec![1, 2]));
        assert_eq!(remembered(folder, six.spec()), None);
        for wrong in [vec![4], vec![2, 1], vec![0, 1, 2, 3]] {
            found.best = set(wrong);
            remember(folder, four.spec(), &found).unwrap();
            assert_eq!(remembered(folder, four.spec()), None);
        }
        std::fs::write(&path, "{").unwrap();
        assert_eq!(remembered(folder, four.spec()), None);
    }
}
