//! Prediction of a stored answer with another draft length or temperature, without running a model.
//!
//! Counts and times come from the answer, formulas from [`hunch_core::theory`]. Assumptions:
//!
//! - The text stays the same, and every round drafts as many tokens as allowed. With lookup methods the share of
//!   rounds without a draft stays the same. If the answer's drafts were trees, K tokens form the tree with the most
//!   expected tokens, [`ExpectedTree::best`].
//! - A draft is accepted as often as the stored tests of its position and its rank among siblings. An untested place
//!   counts as the mean of its rank. Chains have one rank.
//! - A later sibling is accepted at most as often as those before it, which have more tests. A rank without a test is
//!   never accepted.
//! - Under rejection sampling a test counts with its probability, which has less noise than its outcome. Other rules
//!   have no such probability, so the outcome counts. The same holds for lenience at temperature 0.
//! - Another temperature shifts all positions alike, by the change in overlap of the stored alternatives. The lists
//!   are short (`covered` is their share of the target's distribution), and filters are not applied again. Answers
//!   without the draft's alternatives keep their alpha.
//! - A level of a draft takes the answer's mean drafting time per level. A chain has a level for each token. Methods
//!   that change the drafter from round to round keep their mixture.
//! - A target pass takes the time on a straight line through the answer's passes by rows. The rest of a round takes
//!   its median time.

use std::collections::BTreeMap;

use crate::event::{Alternative, GenerationEvent, RoundEvent, TokenEvent};
use crate::lab::history::{StoredGeneration, TestedDraft, TokenSlot, generations};
use crate::lab::report::{WhatIf, WhatIfFigures, WhatIfRequest};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::propose::Stage;
use hunch_core::quantile::median;
use hunch_core::rule::AcceptanceRule;
use hunch_core::theory::{self, ExpectedTree};
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};

/// Highest temperature, see [`SamplingParams::ranges`](hunch_core::sample::SamplingParams::ranges).
const MAX_TEMPERATURE: f32 = 5.0;

/// Predicts the answer with these events, sampled at `temperature`, with other settings.
///
/// Only the last generation of a continued answer counts.
///
/// # Errors
/// [`Error::InvalidRequest`] when a parameter is out of range, [`Refusal::NothingDrafted`] when the answer tested no
/// draft.
pub fn what_if(events: &[GenerationEvent], temperature: f32, request: &WhatIfRequest) -> Result<WhatIf> {
    check(request)?;
    let own = generations(events).last().ok_or(Refusal::NothingDrafted)?;
    let tested = own.tested();
    let odds = Odds::new(&tested, own.rule, temperature).ok_or(Refusal::NothingDrafted)?;
    let was = measured(&own, &tested).ok_or(Refusal::NothingDrafted)?;
    let tokens = tokens(&tested);
    let other = request.temperature.filter(|requested| *requested != temperature);
    let shift = other.and_then(|requested| {
        Some(overlap(&tokens, temperature, requested)? - overlap(&tokens, temperature, temperature)?)
    });
    let depth = request.max_draft as usize;
    let tree = own.branches(&tested);
    let acceptance = |position: usize, rank: usize| match (tree, rank) {
        (false, 1..) => 0.0,
        _ => odds.at(position, rank, shift.unwrap_or(0.0)),
    };
    let draft = ExpectedTree::best(depth, acceptance);
    let drafting = drafting_share(&own);
    let length = drafting * draft.tokens() + (1.0 - drafting);
    let would = WhatIfFigures {
        alpha: (draft.tokens() - 1.0) / draft.tests(),
        mean_acceptance_length: length,
        rounds: was.tokens / length,
        tok_s: Times::new(&own).and_then(|times| times.tok_s(length, &draft, drafting)),
    };
    let covered =
        tokens.iter().map(|token| token.top.iter().map(|likely| f64::from(likely.2)).sum::<f64>().min(1.0));
    let (known, covered) = (tested.len() as u32, mean(covered).unwrap_or(0.0));
    Ok(WhatIf { was: was.figures, would, known, tree, covered })
}

fn check(request: &WhatIfRequest) -> Result<()> {
    if !(1..=MAX_DRAFT as u32).contains(&request.max_draft) {
        return Err(Error::invalid(format!(
            "max_draft is {}; choose a number from 1 to {MAX_DRAFT}.",
            request.max_draft
        )));
    }
    match request.temperature {
        // Not `t < 0.0 || t > MAX_TEMPERATURE`: a NaN must fail.
        Some(t) if !(0.0..=MAX_TEMPERATURE).contains(&t) => {
            Err(Error::invalid(format!("temperature is {t}; choose a number from 0 to {MAX_TEMPERATURE}.")))
        }
        _ => Ok(()),
    }
}

/// Measured figures with the number of tokens.
struct Measured {
    figures: WhatIfFigures,
    tokens: f64,
}

/// Returns the measured figures of a generation, as of its last round if it was cut off.
fn measured(own: &StoredGeneration<'_>, tested: &[TestedDraft<'_>]) -> Option<Measured> {
    let (tokens, rounds, mean_acceptance_length, tok_s) = match own.stats() {
        Some(stats) => {
            (stats.generated_tokens, stats.rounds, stats.mean_acceptance_length, stats.decode_tok_s)
        }
        None => {
            let last = own.rounds().last()?.figures;
            (last.generated_tokens, last.rounds, last.mean_acceptance_length, last.decode_tok_s)
        }
    };
    let accepted = tested.iter().filter(|draft| draft.accepted).count() as u64;
    // Siblings share a position.
    let positions = tested.iter().filter(|draft| draft.rank == 0).count() as u64;
    let figures = WhatIfFigures {
        alpha: theory::alpha(accepted, positions - accepted)?,
        mean_acceptance_length,
        rounds: f64::from(rounds),
        tok_s: Some(tok_s).filter(|rate| *rate > 0.0 && rate.is_finite()),
    };
    Some(Measured { figures, tokens: f64::from(tokens) })
}

/// Acceptance probabilities of tested drafts by position and by rank among siblings.
struct Odds {
    by_place: BTreeMap<(u32, u32), f64>,
    by_rank: Vec<f64>,
}

impl Odds {
    fn new(tested: &[TestedDraft<'_>], rule: AcceptanceRule, temperature: f32) -> Option<Self> {
        let mut places: BTreeMap<(u32, u32), Vec<f64>> = BTreeMap::new();
        for draft in tested {
            places.entry((draft.slot.1, draft.rank)).or_default().push(chance(draft, rule, temperature));
        }
        let ranks = tested.iter().map(|draft| draft.rank).max()?;
        let of_rank = |rank: u32| {
            let odds = places.iter().filter(|((_, other), _)| *other == rank);
            mean(odds.flat_map(|(_, odds)| odds.iter().copied()))
        };
        let by_rank = (0..=ranks).map(of_rank).collect::<Option<_>>()?;
        let by_place =
            places.into_iter().filter_map(|(place, odds)| Some((place, mean(odds.into_iter())?))).collect();
        Some(Self { by_place, by_rank })
    }

    /// Returns the acceptance of a draft, with tested ranks shifted by `shift`. It does not increase with the rank.
    fn at(&self, position: usize, rank: usize, shift: f64) -> f64 {
        let known = |rank: usize| {
            let known = self.by_place.get(&(position as u32, rank as u32)).or_else(|| self.by_rank.get(rank));
            known.map_or(0.0, |odds| (odds + shift).clamp(0.0, 1.0))
        };
        (0..=rank).map(known).fold(1.0, f64::min)
    }
}

/// Returns the weight of a test: its acceptance probability, or its outcome.
fn chance(draft: &TestedDraft<'_>, rule: AcceptanceRule, temperature: f32) -> f64 {
    match rule {
        AcceptanceRule::Lossless => draft.chance,
        AcceptanceRule::LossyLenience { lenience } if temperature > 0.0 => {
            (draft.ratio / f64::from(lenience)).clamp(0.0, 1.0)
        }
        _ => f64::from(u8::from(draft.accepted)),
    }
}

/// Returns the share of rounds that draft. A method with a model and nothing else drafts in all of them.
fn drafting_share(own: &StoredGeneration<'_>) -> f64 {
    if own.method.drafter().is_some() && own.method.entry().stages.iter().all(Stage::has_model) {
        return 1.0;
    }
    mean(own.rounds().map(|round| f64::from(u8::from(round.drafted > 0)))).unwrap_or(1.0)
}

/// Returns the tokens emitted where drafts were tested, once each.
fn tokens<'a>(tested: &[TestedDraft<'a>]) -> Vec<&'a TokenEvent> {
    let mut tokens: BTreeMap<TokenSlot, &TokenEvent> = BTreeMap::new();
    for draft in tested {
        if let Some(token) = draft.token.filter(|token| !token.top.is_empty()) {
            tokens.insert(draft.slot, token);
        }
    }
    tokens.into_values().collect()
}

/// Returns the mean overlap of the stored alternatives of target and draft at a temperature; `was` is the answer's
/// own. `None` if there are no alternatives of the draft.
fn overlap(tokens: &[&TokenEvent], was: f32, temperature: f32) -> Option<f64> {
    let temperature = f64::from(temperature);
    // Alternatives of the draft are stored as drafted. A greedy draft is stored at temperature 1.
    let drafted_at = if was > 0.0 { f64::from(was) } else { 1.0 };
    let both = tokens.iter().filter(|token| !token.guesses.is_empty()).map(|token| {
        let p = tempered(&token.top, temperature);
        let q = tempered(&token.guesses, temperature / drafted_at);
        let shared = |&(token, p): &(TokenId, f64)| {
            q.iter().find(|(drafted, _)| *drafted == token).map_or(0.0, |(_, q)| p.min(*q))
        };
        p.iter().map(shared).sum::<f64>()
    });
    mean(both)
}

/// Returns p^(1/T) over the listed tokens, normalised to 1. At temperature 0 only the most likely token remains.
fn tempered(likely: &[Alternative], temperature: f64) -> Vec<(TokenId, f64)> {
    let possible: Vec<(TokenId, f64)> = likely
        .iter()
        .map(|&Alternative(id, _, p)| (id, f64::from(p)))
        .filter(|(_, p)| *p > 0.0 && p.is_finite())
        .collect();
    let largest = possible.iter().fold(0.0f64, |largest, (_, p)| largest.max(*p));
    if temperature <= 0.0 {
        return possible
            .into_iter()
            .find(|(_, p)| *p == largest)
            .map(|(id, _)| (id, 1.0))
            .into_iter()
            .collect();
    }
    // Relative to the largest, so that it does not underflow at low temperatures.
    let weights: Vec<(TokenId, f64)> =
        possible.into_iter().map(|(id, p)| (id, (p / largest).powf(1.0 / temperature))).collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.into_iter().map(|(id, weight)| (id, weight / total)).collect()
}

/// Times of the parts of a round, in milliseconds.
struct Times {
    /// Time per level of a draft.
    propose: f64,
    /// Time of a target pass as a line over rows: intercept and slope.
    target: (f64, f64),
    /// Time of the rest of a round.
    rest: f64,
}

impl Times {
    /// Computes the times of a generation. `None` if it has none.
    fn new(own: &StoredGeneration<'_>) -> Option<Self> {
        let timed: Vec<&RoundEvent> = own.rounds().filter(|round| round.timing.target_ms > 0.0).collect();
        // The mean, not the median: most rounds may have looked up their draft, which takes no time.
        let (proposing, all_levels) = timed
            .iter()
            .filter(|round| round.drafted > 0)
            .fold((0.0, 0.0), |(ms, sum), round| (ms + round.timing.propose_ms, sum + levels(round)));
        let rest: Vec<f64> =
            timed.iter().map(|round| round.timing.verify_ms + round.timing.other_ms).collect();
        let mut passes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for round in &timed {
            // An imported file may contain any number.
            passes.entry(round.drafted.saturating_add(1)).or_default().push(round.timing.target_ms);
        }
        let points: Vec<(f64, f64, f64)> = passes
            .iter()
            .filter_map(|(rows, times)| Some((f64::from(*rows), median(times)?, times.len() as f64)))
            .collect();
        let propose = (all_levels > 0.0).then(|| proposing / all_levels)?;
        Some(Self { propose, target: line(&points)?, rest: median(&rest)? })
    }

    /// Returns tokens per second of rounds of `length` tokens, of which a share `drafting` drafts this tree.
    fn tok_s(&self, length: f64, draft: &ExpectedTree, drafting: f64) -> Option<f64> {
        let target = |rows: usize| self.target.0 + self.target.1 * rows as f64;
        let drafts = self.propose * draft.height() as f64 + target(draft.len() + 1);
        let (with, without) = (drafting * drafts, (1.0 - drafting) * target(1));
        let rate = 1e3 * length / (with + without + self.rest);
        (drafts > 0.0 && without >= 0.0 && rate.is_finite() && rate > 0.0).then_some(rate)
    }
}

/// Returns the levels of a round's draft. A draft that was not recorded counts as a chain.
fn levels(round: &RoundEvent) -> f64 {
    let mut depths: Vec<u32> = Vec::with_capacity(round.draft.len());
    for drafted in &round.draft {
        // An imported file may name any parent.
        let parent = drafted.parent.and_then(|parent| depths.get(parent as usize));
        depths.push(parent.map_or(1, |depth| depth + 1));
    }
    f64::from(depths.into_iter().max().unwrap_or(round.drafted))
}

/// Fits a line through points (x, y, weight) by least squares. Returns intercept and slope.
///
/// The slope is 0 if there is a single x, or if it would be negative, which is noise. `None` without weight.
fn line(points: &[(f64, f64, f64)]) -> Option<(f64, f64)> {
    let weight: f64 = points.iter().map(|(_, _, w)| w).sum();
    if weight <= 0.0 {
        return None;
    }
    let x_mean = points.iter().map(|(x, _, w)| w * x).sum::<f64>() / weight;
    let y_mean = points.iter().map(|(_, y, w)| w * y).sum::<f64>() / weight;
    let spread: f64 = points.iter().map(|(x, _, w)| w * (x - x_mean).powi(2)).sum();
    let rise: f64 = points.iter().map(|(x, y, w)| w * (x - x_mean) * (y - y_mean)).sum();
    let slope = if spread > 0.0 { (rise / spread).max(0.0) } else { 0.0 };
    Some((y_mean - slope * x_mean, slope))
}

/// Returns the mean, `None` without values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests;
