//! Rows of prompts. Only those of answers are collected. Heads with a cache read the prompt before they draft, so the
//! target computes its rows again when such a head is measured.

use half::f16;
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_error::Result;

use super::TrainingTarget;
use super::collect::unit_rms;
use super::shards::CollectedAnswer;

/// Rows of a pass.
const ROWS: usize = 64;

/// The target, to compute rows of prompts.
pub struct PromptRows {
    model: Box<dyn LanguageModel>,
    taps: Vec<usize>,
}

impl PromptRows {
    /// Starts a sequence of the target.
    pub fn of(target: &TrainingTarget) -> Self {
        Self { model: target.decoder.fork(), taps: target.taps.clone() }
    }

    /// Returns a held-out answer with the rows of its prompt before its own, and their number.
    ///
    /// # Errors
    /// If the device fails.
    pub fn before(&mut self, answer: &CollectedAnswer) -> Result<(CollectedAnswer, usize)> {
        // The answer's first row was computed from the last token of the prompt.
        let Some((_, tokens)) = answer.prompt_ids.split_last() else { return Ok((answer.clone(), 0)) };
        let mut whole = CollectedAnswer {
            next: [&answer.prompt_ids[1..], &answer.next].concat(),
            states: Vec::new(),
            ..answer.clone()
        };
        self.model.truncate(0)?;
        for chunk in tokens.chunks(ROWS) {
            let step = Step { taps: &self.taps, ..Step::chain(chunk, LogitRows::None) };
            let taps = self.model.forward(step)?.taps;
            for row in 0..chunk.len() {
                for tap in &taps {
                    whole.states.extend(unit_rms(tap.row(row)).map(f16::from_f32));
                }
            }
        }
        whole.states.extend_from_slice(&answer.states);
        Ok((whole, tokens.len()))
    }
}
