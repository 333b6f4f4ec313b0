//! Repeated rounds at one position, counted and compared with p.
//!
//! A token is drafted from q and tested by the verifier that generations use.

use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::lab::position::Distributions;
use crate::lab::report::{LabRound, LabRounds, LabRoundsRequest};
use hunch_core::draft::{DraftProb, DraftTree};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample;
use hunch_core::theory;
use hunch_core::token::TokenId;
use hunch_core::verify::{TargetRows, Verdict, Verifier};
use hunch_error::{Error, Result};

/// Most rounds of one request. A request cannot be cancelled, so it must be short.
pub const MAX_ROUNDS: u32 = 10_000;
/// p-value below which a rule is refuted. One in a million lossless tests fails by chance.
const REFUTED: f64 = 1e-6;

/// Checks a request.
///
/// # Errors
/// [`Error::InvalidRequest`] when the number of rounds or a parameter of the rule is out of range.
pub fn check(request: &LabRoundsRequest) -> Result<()> {
    if !(1..=MAX_ROUNDS).contains(&request.rounds) {
        return Err(Error::invalid(format!(
            "rounds is {}; choose a number from 1 to {MAX_ROUNDS}.",
            request.rounds
        )));
    }
    Ok(request.rule.validate()?)
}

/// The rounds of one rule at one position.
#[derive(Clone, Debug)]
pub struct Rounds {
    position: u32,
    rule: AcceptanceRule,
    verifier: Verifier,
    rng: ChaCha8Rng,
    distributions: Compact,
    accepted: u32,
    rounds: u32,
    /// Emissions by listed token, and of all others at the end.
    counts: Vec<u32>,
}

/// Both distributions without tokens of zero mass.
///
/// Exact: such tokens are neither drafted nor drawn, and the others keep their order.
#[derive(Clone, Debug)]
struct Compact {
    p: Vec<f32>,
    q: Arc<[f32]>,
    /// Token at each index.
    tokens: Vec<TokenId>,
    /// Bin of each index: the index of the listed token, or the number of listed tokens for all others.
    bins: Vec<usize>,
    /// p of each bin, adding up to 1.
    distribution: Vec<f64>,
    /// Each index's p relative to the likeliest token's at temperature 1; `None` unless sampling is greedy.
    greedy_ratios: Option<Vec<f64>>,
}

impl Compact {
    fn new(distributions: &Distributions) -> Result<Self> {
        let tokens: Vec<TokenId> = (0..distributions.p().len())
            .filter(|&x| distributions.p()[x] > 0.0 || distributions.q()[x] > 0.0)
            .map(|x| x as TokenId)
            .collect();
        let of = |distribution: &[f32]| -> Vec<f32> {
            tokens.iter().map(|&token| distribution[token as usize]).collect()
        };
        let listed = distributions.listed();
        let bin = |token: &TokenId| listed.iter().position(|known| known == token).unwrap_or(listed.len());
        let bins: Vec<usize> = tokens.iter().map(bin).collect();
        let p = of(distributions.p());
        let mass: f64 = p.iter().copied().map(f64::from).sum();
        let mut distribution = vec![0.0; listed.len() + 1];
        bins.iter().zip(&p).for_each(|(&bin, &p)| distribution[bin] += f64::from(p) / mass);
        let ratios = tokens.iter().map(|&token| distributions.greedy_ratio(token));
        let greedy_ratios = ratios.collect::<Result<_>>()?;
        Ok(Self { q: of(distributions.q()).into(), p, tokens, bins, distribution, greedy_ratios })
    }
}

/// A pass over a draft of one token. The row after the draft does not matter.
impl TargetRows for &Compact {
    fn distribution(&mut self, row: usize, _path: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        Ok(if row == 0 { self.p.clone() } else { vec![1.0] })
    }

    fn greedy_ratio(
        &mut self,
        _row: usize,
        _path: &[TokenId],
        token: TokenId,
    ) -> hunch_core::error::Result<Option<f64>> {
        Ok(self.greedy_ratios.as_ref().map(|ratios| ratios[token as usize]))
    }
}

impl Rounds {
    /// Creates a test without rounds at the position with this id. Equal seeds give equal rounds.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when a parameter of the rule is out of range. [`Error::Internal`] when the logits are
    /// unusable.
    pub fn new(
        position: u32,
        distributions: &Distributions,
        rule: AcceptanceRule,
        seed: u64,
    ) -> Result<Self> {
        rule.validate()?;
        let distributions = Compact::new(distributions)?;
        Ok(Self {
            position,
            rule,
            verifier: Verifier::new(rule, seed),
            rng: ChaCha8Rng::seed_from_u64(seed),
            counts: vec![0; distributions.distribution.len()],
            distributions,
            accepted: 0,
            rounds: 0,
        })
    }

    /// Returns the acceptance rule.
    pub fn rule(&self) -> AcceptanceRule {
        self.rule
    }

    /// Runs more rounds and returns the results of all. A single round is included in full.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there are too many rounds to count. [`Error::Internal`] when the distributions are
    /// inconsistent.
    pub fn run(&mut self, rounds: u32) -> Result<LabRounds> {
        if self.rounds.checked_add(rounds).is_none() {
            return Err(Error::invalid(format!(
                "There are {} rounds already, and {rounds} more are too many to count. Start again.",
                self.rounds
            )));
        }
        let mut tree = DraftTree::new();
        let mut last = None;
        for _ in 0..rounds {
            let round = self.round(&mut tree)?;
            last = Some(round);
        }
        Ok(self.report(last.filter(|_| rounds == 1)))
    }

    fn round(&mut self, tree: &mut DraftTree) -> Result<LabRound> {
        // Every round has its own position, or the coupled rule would always give the same token.
        let at = self.rounds as usize;
        tree.truncate(0);
        let q = &self.distributions.q;
        if let Some(noise) = self.verifier.noise() {
            let drafted = noise.choose(q, at).unwrap_or_default();
            tree.push_certain(None, drafted, q[drafted as usize]);
        } else {
            let drafted = sample::draw(q, sample::unit(&mut self.rng));
            tree.push(None, drafted, DraftProb::Sampled(q.clone()));
        }
        let verdict = self.verifier.verify(tree, &mut &self.distributions, at, &mut self.rng)?;
        let drafted = tree.tokens()[0] as usize;
        let emitted = verdict.accepted.first().map_or(verdict.last, |node| node.token) as usize;
        self.rounds += 1;
        self.accepted += u32::from(!verdict.accepted.is_empty());
        self.counts[self.distributions.bins[emitted]] += 1;
        Ok(self.describe(drafted, emitted, &verdict))
    }

    /// Describes a round with tokens of the full vocabulary.
    fn describe(&self, drafted: usize, emitted: usize, verdict: &Verdict) -> LabRound {
        let (p, q) = (f64::from(self.distributions.p[drafted]), f64::from(self.distributions.q[drafted]));
        let lenience = match self.rule {
            AcceptanceRule::LossyLenience { lenience } => f64::from(lenience),
            _ => 1.0,
        };
        let accepted = verdict.accepted.first();
        let u = accepted.map_or_else(|| verdict.rejected.first().and_then(|token| token.u), |node| node.u);
        LabRound {
            drafted: self.distributions.tokens[drafted],
            p,
            q,
            u: u.map(f64::from),
            threshold: u.map(|_| theory::token_acceptance(p, q, lenience)),
            accepted: accepted.is_some(),
            emitted: self.distributions.tokens[emitted],
        }
    }

    /// Returns the results of all rounds.
    fn report(&self, last: Option<LabRound>) -> LabRounds {
        let distribution = &self.distributions.distribution;
        let observed: Vec<u64> = self.counts.iter().copied().map(u64::from).collect();
        let fit = theory::goodness_of_fit(&observed, distribution);
        let total = f64::from(self.rounds.max(1));
        let off =
            self.counts.iter().zip(distribution).map(|(&count, p)| (f64::from(count) / total - p).abs());
        let (rest, counts) = self.counts.split_last().expect("the last count is of all other tokens");
        LabRounds {
            position: self.position,
            rule: self.rule,
            rounds: self.rounds,
            accepted: self.accepted,
            counts: counts.to_vec(),
            rest: *rest,
            // A token with p = 0 makes it infinite, which JSON cannot represent.
            chi_square: fit.statistic.min(f64::MAX),
            degrees: fit.degrees as u32,
            p_value: fit.p_value,
            refuted: fit.p_value < REFUTED,
            total_variation: if self.rounds == 0 { 0.0 } else { 0.5 * off.sum::<f64>() },
            expected_variation: theory::expected_variation(distribution, self.rounds.into()),
            last,
        }
    }
}

#[cfg(test)]
mod tests;
