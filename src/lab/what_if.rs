//! What an answer would have been with another depth or temperature: predicted from what was stored of it,
//! without running a model. Counts and times are the answer's own; the formulas are those of
//! [`hunch_core::theory`].
//!
//! What is assumed:
//! - The text stays as it was, and every round drafts as many tokens as it may. Only where guesses are looked
//!   up the share of the rounds that found nothing to guess stays. The K of a tree is taken for its depth.
//! - A position of the draft is accepted as often as the stored tests of that position say, a position that was
//!   never tested as often as the mean. Under rejection sampling a test counts with its probability, which says
//!   more than its outcome; the other rules decide without one, so there the outcome counts.
//! - Another temperature moves all positions alike: by how much the overlap of the stored alternatives moves
//!   when both sides' are tempered anew. The lists are short (`covered` says how much of the target they hold)
//!   and filters are not applied again. Answers without the draft's guesses keep their alpha.
//! - A drafted token takes the answer's median time for one, a target pass the time on the straight line through
//!   the answer's own passes by rows (the same for all where it ran one number of rows only), and all else in
//!   a round its median time.

use std::collections::BTreeMap;

use crate::bench::figures::median;
use crate::event::{Alternative, GenerationEvent, RoundEvent, TokenEvent};
use crate::lab::history::{Generation, Spot, TestedDraft, generations};
use crate::lab::report::{WhatIf, WhatIfFigures, WhatIfRequest};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::rule::AcceptanceRule;
use hunch_core::theory;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Highest temperature, as [`SamplingParams::ranges`](hunch_core::sample::SamplingParams::ranges) has it.
const HOTTEST: f32 = 5.0;

/// What the answer with these events, which was drawn at `temperature`, would have been. An answer that went on
/// from another one is judged by its own generation.
///
/// # Errors
/// [`Error::InvalidRequest`] when a number is out of its range, or the answer tested no draft.
pub fn what_if(events: &[GenerationEvent], temperature: f32, request: &WhatIfRequest) -> Result<WhatIf> {
    check(request)?;
    let nothing = || Error::invalid("This answer tested no draft. Choose one of a method that drafts.");
    let own = generations(events).last().ok_or_else(nothing)?;
    let tested = own.tested();
    let odds = Odds::new(&tested, own.rule).ok_or_else(nothing)?;
    let was = was(&own, &tested).ok_or_else(nothing)?;
    let places = places(&tested);
    let other = request.temperature.filter(|asked| *asked != temperature);
    let shift = other.and_then(|asked| {
        Some(overlap(&places, temperature, asked)? - overlap(&places, temperature, temperature)?)
    });
    let depth = request.max_draft as usize;
    let alphas: Vec<f64> =
        (0..depth).map(|position| (odds.at(position) + shift.unwrap_or(0.0)).clamp(0.0, 1.0)).collect();
    let drafting = drafting_share(&own);
    let of_draft = theory::expected_tokens_by_position(&alphas);
    // Each position is tested whose elders were accepted.
    let tests = theory::expected_tokens_by_position(&alphas[..depth - 1]);
    let length = drafting * of_draft + (1.0 - drafting);
    let would = WhatIfFigures {
        alpha: (of_draft - 1.0) / tests,
        mean_acceptance_length: length,
        rounds: was.tokens / length,
        tok_s: Times::new(&own).and_then(|times| times.tok_s(length, depth, drafting)),
    };
    let covered =
        places.iter().map(|place| place.top.iter().map(|likely| f64::from(likely.2)).sum::<f64>().min(1.0));
    Ok(WhatIf { was: was.figures, would, known: tested.len() as u32, covered: mean(covered).unwrap_or(0.0) })
}

fn check(request: &WhatIfRequest) -> Result<()> {
    if !(1..=MAX_DRAFT as u32).contains(&request.max_draft) {
        return Err(Error::invalid(format!(
            "max_draft is {}; choose a number from 1 to {MAX_DRAFT}.",
            request.max_draft
        )));
    }
    match request.temperature {
        // Not `t < 0.0 || t > HOTTEST`: a NaN must fail.
        Some(t) if !(0.0..=HOTTEST).contains(&t) => {
            Err(Error::invalid(format!("temperature is {t}; choose a number from 0 to {HOTTEST}.")))
        }
        _ => Ok(()),
    }
}

/// The measured figures.
struct Was {
    figures: WhatIfFigures,
    tokens: f64,
}

/// The figures of a generation; as of its last round where it was cut off.
fn was(own: &Generation<'_>, tested: &[TestedDraft<'_>]) -> Option<Was> {
    let (tokens, rounds, mean_acceptance_length, tok_s) = match own.stats() {
        Some(stats) => {
            (stats.generated_tokens, stats.rounds, stats.mean_acceptance_length, stats.decode_tok_s)
        }
        None => {
            let last = own.rounds().last()?.figures;
            (last.generated_tokens, last.rounds, last.mean_acceptance_length, last.decode_tok_s)
        }
    };
    let accepted = tested.iter().filter(|draft| draft.accepted).count();
    let figures = WhatIfFigures {
        alpha: theory::alpha(accepted as u64, (tested.len() - accepted) as u64)?,
        mean_acceptance_length,
        rounds: f64::from(rounds),
        tok_s: Some(tok_s).filter(|rate| *rate > 0.0 && rate.is_finite()),
    };
    Some(Was { figures, tokens: f64::from(tokens) })
}

/// How often the positions of a draft are accepted once they are tested.
struct Odds {
    by_position: BTreeMap<u32, f64>,
    mean: f64,
}

impl Odds {
    fn new(tested: &[TestedDraft<'_>], rule: AcceptanceRule) -> Option<Self> {
        // Siblings stand in one spot: it is accepted unless each of them is rejected.
        let mut rejected: BTreeMap<Spot, f64> = BTreeMap::new();
        for draft in tested {
            *rejected.entry(draft.spot).or_insert(1.0) *= 1.0 - chance(draft, rule);
        }
        let mut spots: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for ((_, position), rejected) in &rejected {
            spots.entry(*position).or_default().push(1.0 - rejected);
        }
        let mean_of_all = mean(rejected.values().map(|rejected| 1.0 - rejected))?;
        let by_position = spots
            .into_iter()
            .filter_map(|(position, odds)| Some((position, mean(odds.into_iter())?)))
            .collect();
        Some(Self { by_position, mean: mean_of_all })
    }

    fn at(&self, position: usize) -> f64 {
        self.by_position.get(&(position as u32)).copied().unwrap_or(self.mean)
    }
}

/// What a test counts with.
fn chance(draft: &TestedDraft<'_>, rule: AcceptanceRule) -> f64 {
    match rule {
        AcceptanceRule::Lossless => draft.chance,
        AcceptanceRule::LossyLenience { lenience } => (draft.ratio / f64::from(lenience)).clamp(0.0, 1.0),
        _ => f64::from(u8::from(draft.accepted)),
    }
}

/// The share of the rounds that would draft.
fn drafting_share(own: &Generation<'_>) -> f64 {
    if own.method.drafter().is_some() {
        return 1.0;
    }
    mean(own.rounds().map(|round| f64::from(u8::from(round.drafted > 0)))).unwrap_or(1.0)
}

/// The tokens that stand where drafts were tested, once each.
fn places<'a>(tested: &[TestedDraft<'a>]) -> Vec<&'a TokenEvent> {
    let mut places: BTreeMap<Spot, &TokenEvent> = BTreeMap::new();
    for draft in tested {
        if let Some(place) = draft.place.filter(|place| !place.top.is_empty()) {
            places.insert(draft.spot, place);
        }
    }
    places.into_values().collect()
}

/// The mean overlap of target and draft over what was stored of both, at a temperature; `was` is that of the
/// answer. `None` where no guesses were stored.
fn overlap(places: &[&TokenEvent], was: f32, temperature: f32) -> Option<f64> {
    let temperature = f64::from(temperature);
    // The guesses are as drafted: without chance that is the distribution at temperature 1.
    let drafted_at = if was > 0.0 { f64::from(was) } else { 1.0 };
    let both = places.iter().filter(|place| !place.guesses.is_empty()).map(|place| {
        let p = tempered(&place.top, temperature);
        let q = tempered(&place.guesses, temperature / drafted_at);
        let shared = |&(token, p): &(TokenId, f64)| {
            q.iter().find(|(drafted, _)| *drafted == token).map_or(0.0, |(_, q)| p.min(*q))
        };
        p.iter().map(shared).sum::<f64>()
    });
    mean(both)
}

/// p^(1/T) over the listed tokens, adding up to 1; at temperature 0 the likeliest alone, the first of equals.
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
    // Relative to the largest: however cold, it does not vanish.
    let weights: Vec<(TokenId, f64)> =
        possible.into_iter().map(|(id, p)| (id, (p / largest).powf(1.0 / temperature))).collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.into_iter().map(|(id, weight)| (id, weight / total)).collect()
}

/// Where the time of the answer's rounds went, in milliseconds.
struct Times {
    /// A drafted token.
    propose: f64,
    /// A target pass by rows: at no row, and for each row more.
    target: (f64, f64),
    /// All else in a round.
    rest: f64,
}

impl Times {
    /// `None` where nothing was timed.
    fn new(own: &Generation<'_>) -> Option<Self> {
        let timed: Vec<&RoundEvent> = own.rounds().filter(|round| round.timing.target_ms > 0.0).collect();
        let drafting = timed.iter().filter(|round| round.drafted > 0);
        let propose: Vec<f64> =
            drafting.map(|round| round.timing.propose_ms / f64::from(round.drafted)).collect();
        let rest: Vec<f64> =
            timed.iter().map(|round| round.timing.verify_ms + round.timing.other_ms).collect();
        let mut passes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for round in &timed {
            // A file that was imported may say any number.
            passes.entry(round.drafted.saturating_add(1)).or_default().push(round.timing.target_ms);
        }
        let points: Vec<(f64, f64, f64)> = passes
            .iter()
            .filter_map(|(rows, times)| Some((f64::from(*rows), median(times)?, times.len() as f64)))
            .collect();
        Some(Self { propose: median(&propose)?, target: line(&points)?, rest: median(&rest)? })
    }

    /// Tokens a second of rounds that give `length` tokens, of which a share `drafting` drafts `depth`.
    fn tok_s(&self, length: f64, depth: usize, drafting: f64) -> Option<f64> {
        let target = |rows: usize| self.target.0 + self.target.1 * rows as f64;
        let drafts = self.propose * depth as f64 + target(depth + 1);
        let (with, without) = (drafting * drafts, (1.0 - drafting) * target(1));
        let rate = 1e3 * length / (with + without + self.rest);
        (drafts > 0.0 && without >= 0.0 && rate.is_finite() && rate > 0.0).then_some(rate)
    }
}

/// The straight line of least squares through points (x, y, weight), as its value at 0 and its slope. Level
/// through the mean where there is one x only, or where more rows took less time, which is noise. `None` of
/// nothing.
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

/// `None` of nothing.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests;
