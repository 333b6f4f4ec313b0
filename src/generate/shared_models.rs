//! The immutable part of loaded models, which all their conversations share. Another draft model makes a new value.
//! The weights themselves are behind the decoders that conversations fork.

use std::sync::Arc;

use super::PromptEncoder;
use super::cost_priors::CostPriors;
use super::load::{DraftInMemory, Origin};
use hunch_core::depth::MeasuredAcceptance;
use hunch_model::decoder::Decoder;
use parking_lot::Mutex;

/// Facts of loaded models, none of which changes with an answer.
#[derive(Clone)]
pub(super) struct SharedModels {
    /// Identity of the loaded files.
    pub(super) origin: Origin,
    /// The target, with an empty cache. Heads borrow its weights.
    pub(super) decoder: Arc<Mutex<Decoder>>,
    /// Tokeniser and chat template of the target.
    pub(super) encoder: Arc<PromptEncoder>,
    /// Name of the device.
    pub(super) device: &'static str,
    /// Predicted times of passes.
    pub(super) cost_priors: CostPriors,
    /// Acceptance of the draft model, if it was measured.
    pub(super) acceptance: Option<MeasuredAcceptance>,
    /// Sentence on replacements of kernels for the target.
    pub(super) target_note: Option<String>,
    /// The same for the draft model.
    pub(super) draft_note: Option<String>,
    /// Why the target's own MTP layer does not draft.
    pub(super) head_note: Option<String>,
    /// Sentence on the device of the draft model, if the target is on a GPU.
    pub(super) draft_placement: Option<String>,
}

impl SharedModels {
    /// Records what is known of a draft model from its load, or that there is none.
    pub(super) fn set_draft(
        &mut self,
        draft: Option<&DraftInMemory>,
        acceptance: Option<MeasuredAcceptance>,
    ) {
        self.cost_priors.draft_ms = draft.and_then(|draft| draft.expected_ms);
        self.draft_placement = draft.and_then(|draft| draft.placement.clone());
        if let Some(placement) = &self.draft_placement {
            tracing::info!("{placement}");
        }
        self.draft_note = draft.and_then(|draft| draft.device_note.clone());
        self.acceptance = acceptance;
    }

    /// Returns replacements of kernels that failed or are missing, for target and draft, a sentence on each line.
    pub(super) fn device_note(&self) -> Option<String> {
        let notes: Vec<&str> =
            [&self.target_note, &self.draft_note].into_iter().flatten().map(String::as_str).collect();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }
}
