//! Preparations for loading models: files, the plan, the memory check, and saved skip sets. Reading the weights belongs
//! to [`crate::generate`].

use std::path::{Path, PathBuf};

use hunch_error::{EnglishOnly, Refusal, Result};
use hunch_library::Places;
use hunch_library::fit::too_large_message;
use hunch_library::types::{Fit, FitVerdict};

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

/// Returns the layers that `hunch skip-search` found for a target, if it was run.
pub fn skipped_layers(target: SearchedModel<'_>) -> Option<Vec<usize>> {
    skip_sets::remembered(&hunch_library::skip_sets_folder().ok()?, target)
}
