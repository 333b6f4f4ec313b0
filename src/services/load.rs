//! Preparations for loading models: the memory check, the plan, and saved skip sets. Reading the weights belongs to
//! [`crate::generate`].

use std::path::PathBuf;

use hunch_error::{EnglishOnly, Refusal, Result};
use hunch_library::Places;
use hunch_library::fit::too_large_message;
use hunch_library::types::{Fit, FitVerdict};

use crate::bench::skip_sets::{self, SearchedModel};
use crate::generate::LoadPlan;

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
