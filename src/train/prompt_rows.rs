//! Rows of prompts. Only those of answers are collected. Heads with a cache read the prompt before they draft, so the
//! target computes its rows when such a head is measured. They are kept for the next measurement.

use std::collections::HashMap;

use half::f16;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::token::TokenId;
use hunch_error::Result;

use super::TrainingTarget;
use super::collect::unit_rms;
use super::shards::CollectedAnswer;

/// Rows of a pass.
const ROWS: usize = 64;
/// Most numbers of the states that are kept: 256 MB.
const KEPT: usize = 128_000_000;

/// The target, to compute rows of prompts, and those it computed.
pub struct PromptRows {
    model: Box<dyn LanguageModel>,
    taps: Vec<usize>,
    /// States of prompts, by the job of their answer.
    states: HashMap<u32, Vec<f16>>,
}

impl PromptRows {
    /// Starts a sequence of the target.
    pub fn of(target: &TrainingTarget) -> Self {
        Self { model: target.decoder.fork(), taps: target.taps.clone(), states: HashMap::new() }
    }

    /// Returns a held-out answer with the rows of its prompt before its own, and their number.
    ///
    /// # Errors
    /// If the device fails.
    pub fn before(&mut self, answer: &CollectedAnswer) -> Result<(CollectedAnswer, usize)> {
        // The answer's first row was computed from the last token of the prompt.
        let Some((_, tokens)) = answer.prompt_ids.split_last() else { return Ok((answer.clone(), 0)) };
        let before = match self.states.remove(&answer.job) {
            Some(states) => states,
            None => self.compute(tokens)?,
        };
        let whole = CollectedAnswer {
            next: [&answer.prompt_ids[1..], &answer.next].concat(),
            states: [&before[..], &answer.states].concat(),
            ..answer.clone()
        };
        self.keep(answer.job, before);
        Ok((whole, tokens.len()))
    }

    /// Keeps the states of a prompt, if there is room.
    fn keep(&mut self, job: u32, states: Vec<f16>) {
        if self.states.values().map(Vec::len).sum::<usize>() + states.len() <= KEPT {
            self.states.insert(job, states);
        }
    }

    /// Computes the states of tokens, as they are collected of answers.
    fn compute(&mut self, tokens: &[TokenId]) -> Result<Vec<f16>> {
        let mut states = Vec::new();
        self.model.truncate(0)?;
        for chunk in tokens.chunks(ROWS) {
            let step = PassInput { taps: &self.taps, ..PassInput::chain(chunk, LogitRows::None) };
            let taps = self.model.forward(step)?.taps;
            for row in 0..chunk.len() {
                for tap in &taps {
                    states.extend(unit_rms(tap.row(row)).map(f16::from_f32));
                }
            }
        }
        Ok(states)
    }
}
