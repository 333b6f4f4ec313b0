//! Acceptance on held-out answers. It is computed from the distributions, not sampled.

use std::ops::Range;

use hunch_core::propose::Proposer;
use hunch_core::propose::head::Head;
use hunch_core::sample::{Sampler, SamplingParams, argmax};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::features::Frozen;
use super::network::{DepthLogits, HeadInTraining};
use super::prompt_rows::PromptRows;
use super::shards::{CollectedAnswer, LIKELY, ShardStore};
use super::{Recipe, TrainingTarget, check_paused};

/// Acceptance of one drafted token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct Acceptance {
    /// Share of greedy tokens that the drafter gets right.
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

/// Acceptance of the tokens of a draft.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftAcceptance {
    /// The first token.
    #[serde(flatten)]
    pub first: Acceptance,
    /// Each further token, given that the tokens before it were accepted.
    #[serde(default)]
    pub later: Vec<Acceptance>,
}

impl DraftAcceptance {
    /// Returns the tokens of a pass with whole drafts: the mean of greedy and sampled answers, by which heads are
    /// compared.
    pub fn tokens_a_pass(&self) -> f64 {
        let chain = |share: fn(&Acceptance) -> f64| {
            let mut all = 1.0;
            let accepted = std::iter::once(&self.first).chain(&self.later).map(|depth| {
                all *= share(depth);
                all
            });
            accepted.sum::<f64>()
        };
        let (greedy, sampled) = (chain(|depth| depth.greedy), chain(|depth| depth.sampled));
        let of = Acceptance { greedy, sampled, ..self.first };
        1.0 + of.mean()
    }
}

/// Measures a network while it is trained. With `prompts`, it reads the rows of a prompt before those of its answer.
///
/// # Errors
/// If a shard cannot be read or the device fails. [`Error::Stopped`] if `paused` returns true between two answers.
pub fn network(
    store: &ShardStore,
    recipe: &Recipe,
    (network, frozen): (&dyn HeadInTraining, &Frozen<'_>),
    mut prompts: Option<&mut PromptRows>,
    paused: &dyn Fn() -> bool,
) -> Result<DraftAcceptance> {
    measure(store, recipe, &frozen.vocabulary, paused, &mut |answer| {
        let Some(prompts) = &mut prompts else { return network.logits(frozen, answer) };
        let (whole, before) = prompts.before(answer)?;
        let mut logits = network.logits(frozen, &whole)?;
        logits.iter_mut().for_each(|rows| drop(rows.drain(..before)));
        Ok(logits)
    })
}

/// Measures a loaded head, in the arithmetic that decoding uses. Drafts have [`Recipe::depth`] tokens at most.
///
/// A head with a cache reads the prompt first, as when it drafts.
///
/// # Errors
/// As [`network`]; [`Error::InvalidRequest`] if the head reads what was not collected.
pub fn head(
    target: &TrainingTarget,
    store: &ShardStore,
    head: &mut Head,
    recipe: &Recipe,
    paused: &dyn Fn() -> bool,
) -> Result<DraftAcceptance> {
    let taps = check_layers(target, head)?;
    let (n, all) = (target.rows.n_embd, target.taps.len());
    let depth = head.max_depth().min(recipe.depth);
    let mut prompts = (head.cache_per_token() > 0).then(|| PromptRows::of(target));
    let vocabulary: Vec<TokenId> = (0..target.rows.n_vocab as TokenId).collect();
    measure(store, recipe, &vocabulary, paused, &mut |answer| {
        let read = match &mut prompts {
            Some(prompts) => Some(prompts.before(answer)?),
            None => None,
        };
        let (text, before) = read.as_ref().map_or((answer, 0), |(whole, before)| (whole, *before));
        let states = |rows: Range<usize>| -> Vec<Vec<f32>> {
            let of = |tap: &usize| {
                let row = |row: usize| &text.states[(row * all + tap) * n..][..n];
                rows.clone().flat_map(row).map(|x| x.to_f32()).collect()
            };
            taps.iter().map(of).collect()
        };
        if before > 0 {
            head.logits(&states(0..before), &text.next[..before])?;
        }
        let mut logits = vec![Vec::new(); depth];
        for row in before..text.positions() {
            logits[0].push(head.logits_after(row, &states(row..row + 1), &[text.next[row]])?);
            for (at, logits) in logits.iter_mut().enumerate().skip(1) {
                if row + 1 + at < text.next.len() {
                    logits.push(head.next_logits(text.next[row + at])?);
                }
            }
        }
        Ok(logits)
    })
}

/// Measures a draft model. `logits` returns the logits `[tokens][n_vocab]` that predict each token of an answer.
///
/// # Errors
/// As [`network`].
pub fn draft(
    store: &ShardStore,
    recipe: &Recipe,
    n_vocab: usize,
    paused: &dyn Fn() -> bool,
    logits: &mut dyn FnMut(&CollectedAnswer) -> Result<Vec<Vec<f32>>>,
) -> Result<Acceptance> {
    let vocabulary: Vec<TokenId> = (0..n_vocab as TokenId).collect();
    let measured = measure(store, recipe, &vocabulary, paused, &mut |answer| {
        let mut logits = logits(answer)?;
        // As for heads, the first token of an answer is not counted.
        logits.drain(..logits.len().min(1));
        Ok(vec![logits])
    })?;
    Ok(measured.first)
}

/// Returns where the layers of a head stand among the collected ones.
///
/// # Errors
/// [`Error::InvalidRequest`] if one was not collected, or the head reads more of the states than their direction.
pub fn check_layers(target: &TrainingTarget, head: &Head) -> Result<Vec<usize>> {
    if !head.norms_states() {
        return Err(Error::invalid(
            "This head depends on the norm of the hidden states, which the collected data do not keep, so it cannot be \
             measured on them.",
        ));
    }
    let place = |layer: &usize| target.taps.iter().position(|tap| tap == layer);
    head.taps().iter().map(place).collect::<Option<_>>().ok_or_else(|| {
        Error::invalid(format!(
            "This head reads the layers {:?}, and data are collected from {:?}, so it cannot be measured on them.",
            head.taps(),
            target.taps
        ))
    })
}

/// Measures the acceptance of logits `[depth][position][vocabulary]` over every held-out answer.
///
/// The tokens of an answer are the target's own. A draft of the head would begin with them as often as it is accepted:
/// by the chance min(1, q / p) of each.
fn measure(
    store: &ShardStore,
    recipe: &Recipe,
    vocabulary: &[TokenId],
    paused: &dyn Fn() -> bool,
    logits: &mut dyn FnMut(&CollectedAnswer) -> Result<DepthLogits>,
) -> Result<DraftAcceptance> {
    let chat = Sampler::new(SamplingParams::default())?;
    let mut depths: Vec<DepthSum> = Vec::new();
    for entry in store.held_out(recipe.held_out) {
        check_paused(paused)?;
        let answer = store.read(&entry)?;
        let by_depth = logits(&answer)?;
        depths.resize_with(depths.len().max(by_depth.len()), DepthSum::default);
        // Chance that a draft from each position is accepted so far.
        let mut reached = vec![1.0; answer.positions()];
        for (depth, (sum, rows)) in depths.iter_mut().zip(&by_depth).enumerate() {
            for (row, logits) in rows.iter().enumerate().take(answer.rows_with(depth + 1)) {
                let (token, weight) = (answer.next[row + 1 + depth], reached[row]);
                if answer.greedy {
                    let right = f64::from(u8::from(vocabulary[argmax(logits) as usize] == token));
                    sum.greedy.add(right, weight);
                    reached[row] *= right;
                    continue;
                }
                let likely = &answer.likely[(row + 1 + depth) * LIKELY..][..LIKELY];
                let q = chat.distribution(logits, &[])?;
                let q_of =
                    |token: TokenId| vocabulary.binary_search(&token).map_or(0.0, |at| f64::from(q[at]));
                let overlap = likely.iter().map(|&(token, p)| q_of(token).min(f64::from(p))).sum();
                sum.sampled.add(overlap, weight);
                let p = likely.iter().find(|(of, _)| *of == token).map_or(0.0, |(_, p)| f64::from(*p));
                reached[row] *= if p > 0.0 { (q_of(token) / p).min(1.0) } else { 0.0 };
            }
        }
    }
    let mut depths = depths.iter().map(|DepthSum { greedy, sampled }| Acceptance {
        greedy: greedy.mean(),
        greedy_positions: greedy.count,
        sampled: sampled.mean(),
        sampled_positions: sampled.count,
    });
    Ok(DraftAcceptance { first: depths.next().unwrap_or_default(), later: depths.collect() })
}

/// Sums over the positions of a depth.
#[derive(Default)]
struct DepthSum {
    greedy: WeightedSum,
    sampled: WeightedSum,
}

#[derive(Default)]
struct WeightedSum {
    sum: f64,
    weight: f64,
    /// Positions with a weight.
    count: usize,
}

impl WeightedSum {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += weight * value;
        self.weight += weight;
        self.count += usize::from(weight > 0.0);
    }

    fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}
