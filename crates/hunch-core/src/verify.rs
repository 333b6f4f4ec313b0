//! The verifier: decides which drafted tokens are accepted and draws the token after them.
//!
//! A pure function of a draft tree, the target's distributions and random numbers. No model, cache,
//! text or IO lives here, and no other module decides acceptance. The rules are listed in
//! [`AcceptanceRule`]. The default is rejection sampling.
//!
//! # Rejection sampling
//!
//! Let p be the target's distribution at a node. The node's children are tested in order.
//!
//! - **Certain child x** (greedy draft, n-gram): accept with probability p(x). On rejection,
//!   p becomes norm(p without x).
//! - **Child x sampled from q**: accept with probability min(1, p(x) / q(x)). On rejection,
//!   p becomes norm(max(p - q, 0)) and q becomes norm(q without x) for the next sibling.
//!
//! After an acceptance the walk continues at that child. When no child is accepted, the next token is
//! drawn from the current p. The output is distributed exactly as the target's p, whatever was drafted.
//!
//! Sources: Leviathan et al., arXiv 2211.17192, and Chen et al., 2302.01318, for chains; SpecInfer,
//! Miao et al., 2305.09781, for siblings.

use std::cell::OnceCell;
use std::sync::Arc;

use rand::RngCore;

use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::model::Rows;
use crate::rule::{AcceptanceRule, PositionNoise};
use crate::sample::{self, LogitRow, Sampler};
use crate::theory;
use crate::token::{DraftFate, DraftedToken, RejectedToken, TokenId, TokenOrigin};

/// The target's distributions over a draft tree, computed on demand.
///
/// Most rows of a rejected draft are never read.
pub trait TargetRows {
    /// Returns the distribution of the token after a row, `[n_vocab]`, summing to 1.
    ///
    /// Row 0 is the root and row `i + 1` is node i. `path` holds the drafted tokens from the root to
    /// that row.
    ///
    /// # Errors
    /// [`Error::Internal`] if the row does not exist or has no usable logit.
    fn distribution(&mut self, row: usize, path: &[TokenId]) -> Result<Vec<f32>>;

    /// Returns p(token) / max p after a row, at temperature 1 and without filters. `None` unless sampling is
    /// greedy.
    ///
    /// A greedy distribution is a point mass, so it has no measure of how near a token came.
    ///
    /// # Errors
    /// As [`distribution`](Self::distribution).
    fn greedy_ratio(&mut self, row: usize, path: &[TokenId], token: TokenId) -> Result<Option<f64>>;
}

/// Distributions of a target pass: its logits, transformed by the generation's sampler.
pub struct SampledRows<'a> {
    logits: &'a Rows,
    rows: Vec<OnceCell<LogitRow<'a>>>,
    sampler: &'a Sampler,
    recent: Vec<TokenId>,
    committed: usize,
}

impl<'a> SampledRows<'a> {
    /// Wraps the logits of one pass. Row 0 belongs to the last token of `committed`.
    pub fn new(logits: &'a Rows, sampler: &'a Sampler, committed: &[TokenId]) -> Self {
        // Penalties look at a window of recent tokens only, so the rest need not be copied.
        let recent = committed[committed.len().saturating_sub(sampler.window())..].to_vec();
        let rows = (0..logits.len()).map(|_| OnceCell::new()).collect();
        Self { logits, rows, sampler, committed: recent.len(), recent }
    }

    /// Returns row `row` of the pass. Panics if it does not exist.
    pub fn row(&self, row: usize) -> &LogitRow<'a> {
        self.rows[row].get_or_init(|| LogitRow::new(self.logits.row(row)))
    }

    /// Checks that row `row` exists, and sets `recent` to the tokens before the token after it.
    fn go_to(&mut self, row: usize, path: &[TokenId]) -> Result<()> {
        if row >= self.logits.len() {
            return Err(missing_row(row, self.logits.len()));
        }
        self.recent.truncate(self.committed);
        self.recent.extend_from_slice(path);
        Ok(())
    }
}

impl TargetRows for SampledRows<'_> {
    fn distribution(&mut self, row: usize, path: &[TokenId]) -> Result<Vec<f32>> {
        self.go_to(row, path)?;
        self.sampler.distribution_of(self.row(row), &self.recent)
    }

    fn greedy_ratio(&mut self, row: usize, path: &[TokenId], token: TokenId) -> Result<Option<f64>> {
        if !self.sampler.is_greedy() {
            return Ok(None);
        }
        self.go_to(row, path)?;
        self.sampler.relative_likelihood(self.row(row), &self.recent, token).map(Some)
    }
}

/// Precomputed distributions of sampled rows, one per row. For tests and the lab.
#[derive(Clone, Debug)]
pub struct GivenDistributions(pub Vec<Vec<f32>>);

impl TargetRows for GivenDistributions {
    fn distribution(&mut self, row: usize, _path: &[TokenId]) -> Result<Vec<f32>> {
        self.0.get(row).cloned().ok_or_else(|| missing_row(row, self.0.len()))
    }

    fn greedy_ratio(&mut self, _row: usize, _path: &[TokenId], _token: TokenId) -> Result<Option<f64>> {
        Ok(None)
    }
}

fn missing_row(row: usize, rows: usize) -> Error {
    Error::Internal(format!("row {row} of a target pass with {rows} rows was requested"))
}

/// An accepted node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AcceptedNode {
    /// Index of the node in the tree.
    pub node: usize,
    /// Its token.
    pub token: TokenId,
    /// p(token) under the target's distribution at its position.
    pub p: f32,
    /// q(token) at the time of the test; `None` for a certain proposal.
    pub q: Option<f32>,
    /// Uniform number compared with `threshold`; `None` under rules without such a test.
    pub u: Option<f32>,
    /// Acceptance threshold: the test passed because `u < threshold`.
    ///
    /// min(1, p / q) after the rejection of earlier siblings, or p / (l q) with lenience l.
    pub threshold: Option<f32>,
}

/// Probabilities of a drafted token under rejection sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeOdds {
    /// Probability that it is tested: the node before it is accepted, and its earlier siblings are rejected.
    pub tested: f64,
    /// Probability that it is accepted.
    pub accepted: f64,
}

/// Returns the probabilities of every node of `tree` under rejection sampling.
///
/// Their accepted ones sum up to the mean of [`Verifier::verify`]'s accepted length under the default rule. They are
/// computed exactly instead of sampled.
///
/// # Errors
/// The errors of [`Verifier::verify`].
pub fn node_odds(tree: &DraftTree, target: &mut dyn TargetRows) -> Result<Vec<NodeOdds>> {
    let mut odds = vec![NodeOdds::default(); tree.len()];
    for node in std::iter::once(None).chain((0..tree.len()).map(Some)) {
        // Probability that the walk reaches this node and has rejected all its children so far.
        let mut open = node.map_or(1.0, |node| odds[node].accepted);
        if open == 0.0 || tree.children(node).next().is_none() {
            continue;
        }
        let mut position =
            WalkPosition::new(target.distribution(node.map_or(0, |n| n + 1), &tree.path(node))?);
        let mut children = tree.children(node).peekable();
        while let Some(child) = children.next() {
            let prob = tree.prob(child);
            let (p, q) = position.probabilities(tree.tokens()[child], prob)?;
            let accepted = open * theory::token_acceptance(p, q.unwrap_or(1.0), 1.0);
            odds[child] = NodeOdds { tested: open, accepted };
            open -= accepted;
            // The residual matters only to a later sibling.
            if children.peek().is_some() {
                position.reject(tree.tokens()[child], prob, 1.0);
            }
        }
    }
    Ok(odds)
}

/// Outcome of verifying a draft tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The accepted path, from the root on.
    pub accepted: Vec<AcceptedNode>,
    /// Drafted tokens that were tested and rejected, in order.
    pub rejected: Vec<RejectedToken>,
    /// The token after the accepted path, drawn from the target.
    pub last: TokenId,
    /// Resampled after a rejection, bonus after a fully accepted path, plain without a draft.
    pub last_origin: TokenOrigin,
    /// p(last) under the target's unmodified distribution at its position.
    pub last_p: f32,
}

impl Verdict {
    /// Returns the node indices on the accepted path, from the root on.
    pub fn accepted_nodes(&self) -> Vec<usize> {
        self.accepted.iter().map(|a| a.node).collect()
    }

    /// Returns all nodes of the verified tree, each with its fate.
    pub fn fates(&self, tree: &DraftTree) -> Vec<DraftedToken> {
        let nodes = tree.tokens().iter().zip(tree.parents());
        let mut drafted: Vec<_> =
            nodes.map(|(&id, &parent)| DraftedToken { id, parent, fate: DraftFate::Untested }).collect();
        self.accepted.iter().for_each(|a| drafted[a.node].fate = DraftFate::Accepted);
        self.rejected.iter().for_each(|r| drafted[r.node].fate = DraftFate::Rejected);
        drafted
    }
}

/// Applies one acceptance rule to draft trees.
#[derive(Clone, Copy, Debug)]
pub struct Verifier {
    rule: AcceptanceRule,
    noise: PositionNoise,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new(AcceptanceRule::Lossless, 0)
    }
}

impl Verifier {
    /// Creates a verifier. `seed` feeds the per-position noise of the coupled rule only.
    pub fn new(rule: AcceptanceRule, seed: u64) -> Self {
        Self { rule, noise: PositionNoise::new(seed) }
    }

    /// Returns the noise that drafts must be sampled with; `None` unless the rule is coupled.
    pub fn noise(&self) -> Option<PositionNoise> {
        (self.rule == AcceptanceRule::Coupled).then_some(self.noise)
    }

    /// Walks `tree` from the root, tests children in order and draws the token after the path.
    ///
    /// `at` is the absolute position of the first drafted token in the text.
    ///
    /// # Errors
    /// [`Error::Internal`] if a distribution is unavailable or the draft is inconsistent: a token
    /// outside the vocabulary, or one that its own q cannot produce.
    pub fn verify(
        &self,
        tree: &DraftTree,
        target: &mut dyn TargetRows,
        at: usize,
        rng: &mut dyn RngCore,
    ) -> Result<Verdict> {
        let mut accepted = Vec::<AcceptedNode>::new();
        let mut rejected = Vec::new();
        let mut path = Vec::new();
        let mut node = None;
        loop {
            let row = node.map_or(0, |n| n + 1);
            let mut position = WalkPosition::new(target.distribution(row, &path)?);
            let target_draw = self.target_draw(&position.distribution, at + path.len(), rng);
            let mut winner = None;
            for child in tree.children(node) {
                let token = tree.tokens()[child];
                let prob = tree.prob(child);
                let test = match (self.rule, target_draw) {
                    (_, Some(draw)) => position.test_match(token, prob, draw)?,
                    (AcceptanceRule::LossyTypical { epsilon, delta }, _) => {
                        position.test_typical(token, prob, epsilon, delta)?
                    }
                    (AcceptanceRule::LossyLenience { lenience }, _) => {
                        match target.greedy_ratio(row, &path, token)? {
                            Some(ratio) => position.test_greedy_ratio(token, prob, ratio, lenience.into())?,
                            None => position.test_ratio(token, prob, lenience.into(), rng)?,
                        }
                    }
                    _ => position.test_ratio(token, prob, 1.0, rng)?,
                };
                if test.passed {
                    winner = Some(AcceptedNode {
                        node: child,
                        token,
                        p: position.distribution[token as usize],
                        q: test.q,
                        u: test.compared.map(|(u, _)| u),
                        threshold: test.compared.map(|(_, threshold)| threshold),
                    });
                    break;
                }
                rejected.push(RejectedToken {
                    id: token,
                    node: child,
                    p: test.p,
                    q: test.q,
                    u: test.compared.map(|(u, _)| u),
                    position: path.len() as u32,
                });
            }
            if let Some(winner) = winner {
                node = Some(winner.node);
                path.push(winner.token);
                accepted.push(winner);
                continue;
            }
            // The walk ends here: with a resampled token if a child was tested and rejected, with a bonus
            // token if there was none.
            let last_origin = match (tree.is_empty(), position.tested) {
                (true, _) => TokenOrigin::Plain,
                (false, true) => TokenOrigin::Resampled,
                (false, false) => TokenOrigin::Bonus,
            };
            let last = match target_draw {
                Some(draw) => draw,
                None => sample::draw(position.current(), sample::unit(rng)),
            };
            let last_p = position.distribution[last as usize];
            return Ok(Verdict { accepted, rejected, last, last_origin, last_p });
        }
    }

    /// Draws the target's own token, for the rules that compare the draft with it.
    fn target_draw(&self, distribution: &[f32], at: usize, rng: &mut dyn RngCore) -> Option<TokenId> {
        match self.rule {
            AcceptanceRule::Match => Some(sample::draw(distribution, sample::unit(rng))),
            AcceptanceRule::Coupled => self.noise.choose(distribution, at),
            _ => None,
        }
    }
}

/// Outcome of testing one child, with p and q at the time of the test.
struct Test {
    passed: bool,
    p: f32,
    q: Option<f32>,
    /// A uniform number and the threshold that it had to be below; `None` under rules that draw none.
    compared: Option<(f32, f32)>,
}

/// State of one position of the walk: the target's distribution and the residual after rejections.
struct WalkPosition {
    distribution: Vec<f32>,
    /// Unnormalised residual weights and their sum; `None` before the first rejection.
    residual: Option<(Vec<f32>, f64)>,
    /// Rejected children and the q each was sampled from. Later siblings of the same q were sampled
    /// without these tokens.
    rejected: Vec<(Arc<[f32]>, TokenId)>,
    tested: bool,
}

impl WalkPosition {
    fn new(distribution: Vec<f32>) -> Self {
        Self { distribution, residual: None, rejected: Vec::new(), tested: false }
    }

    /// Unnormalised weights of the current p.
    fn current(&self) -> &[f32] {
        self.residual.as_ref().map_or(&self.distribution, |(weights, _)| weights)
    }

    /// The sum of [`current`](Self::current); 1 for the unmodified distribution.
    fn mass(&self) -> f64 {
        self.residual.as_ref().map_or(1.0, |(_, mass)| *mass)
    }

    /// Returns the current p and q of a drafted token.
    fn probabilities(&mut self, token: TokenId, prob: &DraftProb) -> Result<(f64, Option<f64>)> {
        let x = token as usize;
        if x >= self.distribution.len() {
            return Err(Error::Internal(format!(
                "token {token} was drafted, but the target's vocabulary has {} tokens",
                self.distribution.len()
            )));
        }
        self.tested = true;
        let p = f64::from(self.current()[x]) / self.mass();
        let DraftProb::Sampled(distribution) = prob else {
            return Ok((p, None));
        };
        let q = f64::from(distribution[..].get(x).copied().unwrap_or(0.0)) / self.draft_mass(distribution);
        let repeated = self.rejected.iter().any(|(l, t)| Arc::ptr_eq(l, distribution) && *t == token);
        if distribution.len() != self.distribution.len() || repeated || !(q > 0.0 && q.is_finite()) {
            return Err(Error::Internal(format!(
                "token {token} was drafted with a distribution that cannot produce it"
            )));
        }
        Ok((p, Some(q)))
    }

    /// Rejection sampling: passes if u < p / (l q). Lenience l = 1 is lossless.
    fn test_ratio(
        &mut self,
        token: TokenId,
        prob: &DraftProb,
        lenience: f64,
        rng: &mut dyn RngCore,
    ) -> Result<Test> {
        let (p, q) = self.probabilities(token, prob)?;
        let u = sample::unit(rng);
        let threshold = p / (q.unwrap_or(1.0) * lenience);
        let passed = u < threshold;
        if !passed {
            self.reject(token, prob, lenience);
        }
        let compared = Some((u as f32, threshold.min(1.0) as f32));
        Ok(Test { passed, p: p as f32, q: q.map(|q| q as f32), compared })
    }

    /// Lenience l under greedy sampling: passes if p(x) >= l max p at temperature 1. The likeliest token always
    /// passes (Leviathan et al., appendix A.5).
    fn test_greedy_ratio(
        &mut self,
        token: TokenId,
        prob: &DraftProb,
        ratio: f64,
        lenience: f64,
    ) -> Result<Test> {
        let (p, q) = self.probabilities(token, prob)?;
        let passed = ratio >= lenience;
        Ok(Test { passed, p: p as f32, q: q.map(|q| q as f32), compared: None })
    }

    /// Updates p after the rejection of a child.
    fn reject(&mut self, token: TokenId, prob: &DraftProb, lenience: f64) {
        match prob {
            DraftProb::Certain => self.remove(token as usize),
            DraftProb::Sampled(distribution) => {
                self.subtract_draft(distribution, lenience);
                self.rejected.push((distribution.clone(), token));
            }
        }
    }

    /// Passes if the drafted token equals the target's own draw.
    fn test_match(&mut self, token: TokenId, prob: &DraftProb, draw: TokenId) -> Result<Test> {
        let (p, q) = self.probabilities(token, prob)?;
        let passed = token == draw;
        Ok(Test { passed, p: p as f32, q: q.map(|q| q as f32), compared: None })
    }

    /// Typical acceptance: passes if p(x) > min(epsilon, delta e^-H(p)) (Medusa, arXiv 2401.10774).
    fn test_typical(&mut self, token: TokenId, prob: &DraftProb, epsilon: f32, delta: f32) -> Result<Test> {
        let (p, q) = self.probabilities(token, prob)?;
        let entropy = theory::entropy(&self.distribution);
        let threshold = f64::from(epsilon).min(f64::from(delta) * (-entropy).exp());
        Ok(Test { passed: p > threshold, p: p as f32, q: q.map(|q| q as f32), compared: None })
    }

    /// Rejected tokens that were sampled from this same q.
    fn rejected_from<'a>(&'a self, q: &'a Arc<[f32]>) -> impl Iterator<Item = usize> + 'a {
        self.rejected.iter().filter(|(other, _)| Arc::ptr_eq(other, q)).map(|(_, t)| *t as usize)
    }

    /// The mass of q without the rejected tokens sampled from it.
    fn draft_mass(&self, q: &Arc<[f32]>) -> f64 {
        if self.rejected_from(q).next().is_none() {
            return 1.0;
        }
        // 1 - sum(rejected) would lose precision where q is concentrated on them, so sum the rest.
        let mut rest = q.to_vec();
        self.rejected_from(q).for_each(|x| rest[x] = 0.0);
        sample::sum(&rest)
    }

    /// p <- norm(p without x).
    fn remove(&mut self, x: usize) {
        let mut weights = self.current().to_vec();
        weights[x] = 0.0;
        self.set_residual(weights);
    }

    /// p <- norm(max(p - l q, 0)).
    ///
    /// Tokens rejected from q earlier need not be removed: their rejection already left p(x) = 0.
    fn subtract_draft(&mut self, q: &Arc<[f32]>, lenience: f64) {
        let (p_scale, q_scale) = (1.0 / self.mass(), lenience / self.draft_mass(q));
        let difference =
            |(&p, &q): (&f32, &f32)| (f64::from(p) * p_scale - f64::from(q) * q_scale).max(0.0) as f32;
        let weights = self.current().iter().zip(q.iter()).map(difference).collect();
        self.set_residual(weights);
    }

    /// Stores the residual weights unless their sum is 0.
    ///
    /// A sum of 0 means p equals q up to rounding and the rejection itself was a rounding error.
    /// Then p stays as it is.
    fn set_residual(&mut self, weights: Vec<f32>) {
        let mass = sample::sum(&weights);
        if mass > 0.0 {
            self.residual = Some((weights, mass));
        }
    }
}

#[cfg(test)]
mod tests;
