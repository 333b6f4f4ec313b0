//! Preparations for loading models: files, the plan, the memory check, and saved skip sets. Reading the weights belongs
//! to [`crate::generate`].

use std::io::ErrorKind::{QuotaExceeded, StorageFull};
use std::path::{Path, PathBuf};

use hunch_error::{EnglishOnly, Error, Refusal, Result};
use hunch_library::Places;
use hunch_library::fit::too_large_message;
use hunch_library::types::{Fit, FitVerdict};
use hunch_model::low_bit;
use hunch_model::weights::WeightFile;

use crate::bench::skip_sets::{self, SearchedModel};
use crate::generate::LoadPlan;

/// Models that are loaded together, by name or path.
#[derive(Clone, Copy, Debug)]
pub struct ModelNames<'a> {
    /// The target.
    pub target: &'a str,
    /// The draft model.
    pub draft: Option<&'a str>,
    /// The head that drafts. `None` takes the usual one of the target.
    pub head: Option<&'a Path>,
}

impl<'a> ModelNames<'a> {
    /// Names a target alone.
    pub fn target(target: &'a str) -> Self {
        Self { target, draft: None, head: None }
    }
}

/// Finds the files of models, and plans to load them.
///
/// # Errors
/// If a model or a head is not found, or several have its name.
pub fn find(places: &Places, names: ModelNames<'_>) -> Result<LoadPlan> {
    let target = hunch_library::resolve(names.target, places)?;
    let draft = names.draft.map(|name| hunch_library::resolve(name, places)).transpose()?;
    let head = names.head.map(|head| hunch_library::resolve_head(head, places)).transpose()?;
    Ok(LoadPlan { head, ..plan(places, target, draft) })
}

/// Refuses models that are not expected to fit into memory. `consequence` ends the message.
///
/// # Errors
/// [`Refusal::ModelTooLarge`] with the prediction and a smaller choice.
pub fn check_memory(fit: &Fit, consequence: &str) -> Result<()> {
    match fit.verdict {
        FitVerdict::TooLarge => Err(Refusal::ModelTooLarge {
            context: fit.context,
            needed: fit.total,
            usable: fit.machine.usable,
            text: EnglishOnly(format!("{}{consequence}", too_large_message(fit))),
        }
        .into()),
        FitVerdict::Fits | FitVerdict::Tight => Ok(()),
    }
}

/// Returns whether loaded models, which hold `held` bytes, must be unloaded before others are loaded.
pub fn has_to_make_room(fit: &Fit, held: u64) -> bool {
    // The usable memory includes that of the loaded models.
    fit.total + held > fit.machine.usable
}

/// Plans to load a target and a draft with the newest trained head for the target.
pub fn plan(places: &Places, target: PathBuf, draft: Option<PathBuf>) -> LoadPlan {
    let heads = places.data.as_deref().map(|data| data.join(hunch_library::HEADS_FOLDER));
    LoadPlan { target, draft, heads, ..LoadPlan::default() }
}

/// Writes the low-bit copy of a target to `copy`, unless it exists. A damaged one is replaced.
///
/// # Errors
/// [`Error::DiskFull`] if the disk has too little space, and the errors of [`low_bit::write_copy`].
pub fn ensure_low_bit_copy(
    target: &Path,
    copy: &Path,
    threads: usize,
    progress: low_bit::CopyProgress<'_>,
) -> Result<()> {
    if low_bit::is_written(copy) {
        return Ok(());
    }
    let model = WeightFile::open(target)?;
    let folder = copy.parent().unwrap_or(copy);
    let missing = || {
        let free = hunch_library::download::free_space(folder)?;
        Some((low_bit::planned(model.gguf(), copy).file_len as u64).saturating_sub(free))
    };
    let disk_full = |missing| Error::DiskFull { folder: folder.into(), missing, reserved: 0 };
    if let Some(missing) = missing().filter(|missing| *missing > 0) {
        return Err(disk_full(missing));
    }
    // Something else may fill the disk meanwhile.
    low_bit::write_copy(&model, copy, threads, progress).map_err(|error| match error {
        Error::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded) => {
            disk_full(missing().unwrap_or(1).max(1))
        }
        error => error,
    })
}

/// Returns the layers to skip that a search found for a target, if one was run. `data` is Hunch's data folder.
pub fn skipped_layers(data: &Path, target: SearchedModel<'_>) -> Option<Vec<usize>> {
    skip_sets::remembered(&hunch_library::skip_sets_folder_in(data), target)
}
