//! Results of skip searches, saved as one JSON file per model.

use std::path::{Path, PathBuf};

use super::skip_search::SkipSearch;
use hunch_core::model::{LanguageModel, ModelInfo};
use hunch_core::propose::layer_skip::{DraftLayers, fits};
use hunch_error::{Error, Result};
use hunch_model::atomic_file;

/// Identity of a model, independent of its path: name, shape, and bytes read per pass.
///
/// The bytes distinguish quantisations of one model, which may have different best sets.
#[derive(Clone, Copy, Debug)]
pub struct SearchedModel<'a> {
    /// Name and shape of the model.
    pub info: &'a ModelInfo,
    /// Bytes of weights read by a pass of one row.
    pub read_by_a_pass: u64,
}

impl<'a> SearchedModel<'a> {
    /// Identity of a loaded model.
    pub fn of(model: &'a dyn LanguageModel) -> Self {
        Self { info: model.info(), read_by_a_pass: model.memory().read_by_a_pass as u64 }
    }

    /// Path of the model's file in `folder`.
    fn path(self, folder: &Path) -> PathBuf {
        let ModelInfo { name, architecture, n_layer, n_embd, .. } = self.info;
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        folder.join(format!("{name}-{architecture}-{n_layer}x{n_embd}-{}.json", self.read_by_a_pass))
    }
}

/// Saves the result of a search, replacing an earlier one. Returns the path of the file.
///
/// # Errors
/// When the file cannot be written.
pub fn remember(folder: &Path, model: SearchedModel<'_>, found: &SkipSearch) -> Result<PathBuf> {
    let path = model.path(folder);
    let text = serde_json::to_string_pretty(found).map_err(|e| Error::Internal(e.to_string()))?;
    atomic_file::write(&path, &text)?;
    Ok(path)
}

/// Loads the best set of a model. `None` if there is none, or it does not fit the model.
pub fn remembered(folder: &Path, model: SearchedModel<'_>) -> Option<Vec<usize>> {
    let n_layer = model.info.n_layer;
    let text = std::fs::read_to_string(model.path(folder)).ok()?;
    let found: SkipSearch = serde_json::from_str(&text).ok()?;
    let layers = DraftLayers::Skip(found.best.skipped.clone());
    (found.layers == n_layer && fits(&layers, n_layer)).then_some(found.best.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::skip_search::SkipSet;
    use hunch_core::table::{TableConfig, TableModel};

    #[test]
    fn finds_the_set_of_the_same_model_only() {
        let folder = tempfile::tempdir().unwrap();
        let model = |n_layer| TableModel::new(TableConfig { n_layer, ..TableConfig::default() });
        let (four, six) = (model(4), model(6));
        let (four, six) = (SearchedModel::of(&four), SearchedModel::of(&six));
        let requantised = SearchedModel { read_by_a_pass: four.read_by_a_pass + 1, ..four };
        let set = |skipped| SkipSet { skipped, acceptance: 0.5, cost: 0.5, depth: 1, predicted_speedup: 1.0 };
        let mut found = SkipSearch { model: "t".into(), layers: 4, best: set(vec![1, 2]), path: vec![] };
        assert_eq!(remembered(folder.path(), four), None);
        let path = remember(&folder.path().join("new"), four, &found).unwrap();
        let folder = path.parent().unwrap();
        assert_eq!(remembered(folder, four), Some(vec![1, 2]));
        assert_eq!((remembered(folder, six), remembered(folder, requantised)), (None, None));
        for wrong in [vec![4], vec![2, 1], vec![0, 1, 2, 3]] {
            found.best = set(wrong);
            remember(folder, four, &found).unwrap();
            assert_eq!(remembered(folder, four), None);
        }
        std::fs::write(&path, "{").unwrap();
        assert_eq!(remembered(folder, four), None);
    }
}
