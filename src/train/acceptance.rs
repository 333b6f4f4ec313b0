//! Acceptance on held-out answers. It is computed from the distributions, not sampled.

use hunch_core::propose::head::Head;
use hunch_core::sample::{Sampler, SamplingParams, argmax};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::features::{self, Standard};
use super::network::Network;
use super::shards::{CollectedAnswer, LIKELY, ShardStore};
use super::{Recipe, TrainingTarget, check_paused};

/// Acceptance of one drafted token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct Acceptance {
    /// Share of greedy tokens that the head gets right.
    pub greedy: f64,
    /// Positions of greedy answers.
    pub greedy_positions: usize,
    /// Mean of the sum of min(p, q), with the sampling settings of a new conversation.
    pub sampled: f64,
    /// Positions of sampled answers.
    pub sampled_positions: usize,
}

impl Acceptance {
    /// Returns the mean of both figures, by which heads are compared.
    pub fn mean(&self) -> f64 {
        let weight = |positions: usize| if positions > 0 { 1.0 } else { 0.0 };
        let (greedy, sampled) = (weight(self.greedy_positions), weight(self.sampled_positions));
        (greedy * self.greedy + sampled * self.sampled) / (greedy + sampled).max(1.0)
    }
}

/// Measures a network while it is trained.
///
/// # Errors
/// If a shard cannot be read or the device fails. [`Error::Stopped`] if `paused` returns true between two answers.
pub fn network(
    target: &TrainingTarget,
    store: &ShardStore,
    recipe: &Recipe,
    (network, standard): (&Network, &Standard),
    vocabulary: &[TokenId],
    paused: &dyn Fn() -> bool,
) -> Result<Acceptance> {
    measure(store, recipe, vocabulary, paused, &mut |answer| {
        let positions: Vec<_> = (0..answer.next.len() - 1).map(|row| (answer, row)).collect();
        let (inputs, _) = features::batch(target, standard, &positions)?;
        Ok(network.logits(&network.predict(&inputs)?)?.to_vec2::<f32>()?)
    })
}

/// Measures a loaded head, in the arithmetic that decoding uses.
///
/// # Errors
/// As [`network`]; [`Error::InvalidRequest`] if the head reads layers that were not collected.
pub fn head(
    target: &TrainingTarget,
    store: &ShardStore,
    head: &mut Head,
    recipe: &Recipe,
    paused: &dyn Fn() -> bool,
) -> Result<Acceptance> {
    let taps = check_layers(target, head)?;
    let (n, all) = (target.rows.n_embd, target.taps.len());
    let vocabulary: Vec<TokenId> = (0..target.rows.n_vocab as TokenId).collect();
    measure(store, recipe, &vocabulary, paused, &mut |answer| {
        let state = |row: usize, tap: &usize| -> Vec<f32> {
            answer.states[(row * all + tap) * n..][..n].iter().map(|x| x.to_f32()).collect()
        };
        let logits = |row| {
            let states: Vec<Vec<f32>> = taps.iter().map(|tap| state(row, tap)).collect();
            Ok(head.logits(&states, &[answer.next[row]])?)
        };
        (0..answer.next.len() - 1).map(logits).collect()
    })
}

/// Returns where the layers of a head stand among the collected ones.
///
/// # Errors
/// [`Error::InvalidRequest`] if one was not collected.
pub fn check_layers(target: &TrainingTarget, head: &Head) -> Result<Vec<usize>> {
    use hunch_core::propose::Proposer;
    let place = |layer: &usize| target.taps.iter().position(|tap| tap == layer);
    head.taps().iter().map(place).collect::<Option<_>>().ok_or_else(|| {
        Error::invalid(format!(
            "This head reads the layers {:?}, and data are collected from {:?}, so it cannot be measured on them.",
            head.taps(),
            target.taps
        ))
    })
}

/// Measures the acceptance of logits `[positions, vocabulary]` over every held-out answer.
fn measure(
    store: &ShardStore,
    recipe: &Recipe,
    vocabulary: &[TokenId],
    paused: &dyn Fn() -> bool,
    logits: &mut dyn FnMut(&CollectedAnswer) -> Result<Vec<Vec<f32>>>,
) -> Result<Acceptance> {
    let chat = Sampler::new(SamplingParams::default())?;
    let mut sum = Acceptance::default();
    for entry in store.held_out(recipe.held_out) {
        check_paused(paused)?;
        let answer = store.read(&entry)?;
        for (row, logits) in logits(&answer)?.iter().enumerate() {
            if answer.greedy {
                let guess = vocabulary[argmax(logits) as usize];
                sum.greedy += f64::from(u8::from(guess == answer.next[row + 1]));
                sum.greedy_positions += 1;
                continue;
            }
            let q = chat.distribution(logits, &[])?;
            let overlap = |&(token, p): &(TokenId, f32)| {
                vocabulary.binary_search(&token).map_or(0.0, |at| f64::from(q[at].min(p)))
            };
            sum.sampled += answer.likely[(row + 1) * LIKELY..][..LIKELY].iter().map(overlap).sum::<f64>();
            sum.sampled_positions += 1;
        }
    }
    sum.greedy /= sum.greedy_positions.max(1) as f64;
    sum.sampled /= sum.sampled_positions.max(1) as f64;
    Ok(sum)
}
