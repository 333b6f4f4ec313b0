//! Which drafted tokens stand, by one rule for every method. A pure function of a draft tree, the
//! target's distributions and random numbers: no model, no cache, no text, no IO, no candle. Only this module
//! decides acceptance.
//!
//! The default rule is rejection sampling. At a node with target distribution p each child x is tested in order. A certain child is accepted with
//! probability p(x), else p becomes norm(p without x). A child sampled from q is accepted with
//! probability min(1, p(x) / q(x)), else p becomes norm(max(p - q, 0)) and q norm(q without x)
//! (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318; for siblings SpecInfer, 2305.09781).
//! When all children are rejected, or there is none, the token is drawn from what p has become. The
//! distribution of the output is exactly the target's, whatever was drafted. The other rules are those of
//! [`AcceptanceRule`].

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

/// The target's distributions over a draft tree, made when they are asked for: most rows of a rejected
/// draft are never looked at.
pub trait TargetRows {
    /// The distribution of the token after row `row` (row 0 is the root, row `i + 1` is node i), where
    /// `path` holds the drafted tokens from the root to that row. Adds up to 1.
    ///
    /// # Errors
    /// When the row does not exist or holds no usable numbers.
    fn distribution(&mut self, row: usize, path: &[TokenId]) -> Result<Vec<f32>>;
}

/// Distributions of a target pass: its logits through the sampler of the generation.
pub struct SampledRows<'a> {
    logits: &'a Rows,
    rows: Vec<OnceCell<LogitRow<'a>>>,
    sampler: &'a Sampler,
    recent: Vec<TokenId>,
    committed: usize,
}

impl<'a> SampledRows<'a> {
    /// Distributions over `logits` of one pass, row 0 being the last of `committed`.
    pub fn new(logits: &'a Rows, sampler: &'a Sampler, committed: &[TokenId]) -> Self {
        // The penalties look back a window, not the whole conversation.
        let recent = committed[committed.len().saturating_sub(sampler.window())..].to_vec();
        let rows = (0..logits.len()).map(|_| OnceCell::new()).collect();
        Self { logits, rows, sampler, committed: recent.len(), recent }
    }

    /// Row `row` of the pass, which exists.
    pub fn row(&self, row: usize) -> &LogitRow<'a> {
        self.rows[row].get_or_init(|| LogitRow::new(self.logits.row(row)))
    }
}

impl TargetRows for SampledRows<'_> {
    fn distribution(&mut self, row: usize, path: &[TokenId]) -> Result<Vec<f32>> {
        if row >= self.logits.len() {
            return Err(missing_row(row, self.logits.len()));
        }
        self.recent.truncate(self.committed);
        self.recent.extend_from_slice(path);
        self.sampler.distribution_of(self.row(row), &self.recent)
    }
}

/// Distributions given outright, one a row: tests and the lab.
#[derive(Clone, Debug)]
pub struct GivenDistributions(pub Vec<Vec<f32>>);

impl TargetRows for GivenDistributions {
    fn distribution(&mut self, row: usize, _path: &[TokenId]) -> Result<Vec<f32>> {
        self.0.get(row).cloned().ok_or_else(|| missing_row(row, self.0.len()))
    }
}

fn missing_row(row: usize, rows: usize) -> Error {
    Error::Internal(format!("the target pass gave {rows} rows, row {row} was asked for"))
}

/// An accepted node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AcceptedNode {
    /// The node of the tree.
    pub node: usize,
    /// Its token.
    pub token: TokenId,
    /// p(token) under the target's distribution at its position.
    pub p: f32,
    /// q(token) when it was tested; `None` for a certain proposal.
    pub q: Option<f32>,
    /// The uniform number drawn in its test; `None` under rules that draw none.
    pub u: Option<f32>,
    /// What that number had to be below: min(1, p / q) as both stood after its elder siblings were rejected,
    /// or what the rule makes of it.
    pub threshold: Option<f32>,
}

/// How many tokens of `tree` rejection sampling accepts on average over the numbers it may draw: what
/// [`Verifier::verify`] gives by its default rule, without the luck.
///
/// # Errors
/// As [`Verifier::verify`].
pub fn expected_accepted(tree: &DraftTree, target: &mut dyn TargetRows) -> Result<f64> {
    // How likely each node is to be accepted.
    let mut reach = vec![0.0; tree.len()];
    for node in std::iter::once(None).chain((0..tree.len()).map(Some)) {
        // The probability that the walk is here and has rejected all children so far.
        let mut open = node.map_or(1.0, |node| reach[node]);
        if open == 0.0 || tree.children(node).next().is_none() {
            continue;
        }
        let mut position = Position::new(target.distribution(node.map_or(0, |n| n + 1), &tree.path(node))?);
        let mut children = tree.children(node).peekable();
        while let Some(child) = children.next() {
            let prob = tree.prob(child);
            let (p, q) = position.probabilities(tree.tokens()[child], prob)?;
            reach[child] = open * theory::token_acceptance(p, q.unwrap_or(1.0), 1.0);
            open -= reach[child];
            // Only a younger sibling is tested against what is left.
            if children.peek().is_some() {
                position.reject(tree.tokens()[child], prob, 1.0);
            }
        }
    }
    Ok(reach.iter().sum())
}

/// What became of a draft tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The accepted path, from the root on.
    pub accepted: Vec<AcceptedNode>,
    /// Drafted tokens that were tested and rejected, in order.
    pub rejected: Vec<RejectedToken>,
    /// The token after the accepted path, drawn by the target.
    pub last: TokenId,
    /// How it was drawn: after a rejection, after a whole path, or without a draft.
    pub last_origin: TokenOrigin,
    /// p(last) under the target's distribution at its position.
    pub last_p: f32,
}

impl Verdict {
    /// The nodes on the accepted path, from the root on.
    pub fn kept(&self) -> Vec<usize> {
        self.accepted.iter().map(|a| a.node).collect()
    }

    /// Every node of the tree it is about, with what became of it.
    pub fn fates(&self, tree: &DraftTree) -> Vec<DraftedToken> {
        let nodes = tree.tokens().iter().zip(tree.parents());
        let mut drafted: Vec<_> =
            nodes.map(|(&id, &parent)| DraftedToken { id, parent, fate: DraftFate::Untested }).collect();
        self.accepted.iter().for_each(|a| drafted[a.node].fate = DraftFate::Accepted);
        self.rejected.iter().for_each(|r| drafted[r.node].fate = DraftFate::Rejected);
        drafted
    }
}

/// Applies an acceptance rule.
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
    /// A verifier by `rule`; `seed` is for the coupled rule, whose numbers belong to positions.
    pub fn new(rule: AcceptanceRule, seed: u64) -> Self {
        Self { rule, noise: PositionNoise::new(seed) }
    }

    /// The noise with which a draft is made, under the coupled rule.
    pub fn noise(&self) -> Option<PositionNoise> {
        (self.rule == AcceptanceRule::Coupled).then_some(self.noise)
    }

    /// Walks `tree` from the root, testing children in order, and draws the token after the path.
    /// `at` is the position of the first drafted token in the whole text.
    ///
    /// # Errors
    /// When a distribution cannot be made, or the tree contradicts itself: a token outside the vocabulary,
    /// or one its own q could not have produced.
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
            let distribution = target.distribution(node.map_or(0, |n| n + 1), &path)?;
            let mut position = Position::new(distribution);
            // Where the target draws first, a draft stands if it is equal.
            let (drawn, number) = self.drawn_first(&position.distribution, at + path.len(), rng);
            let mut winner = None;
            for child in tree.children(node) {
                let token = tree.tokens()[child];
                let prob = tree.prob(child);
                let test = match (self.rule, drawn) {
                    (_, Some(drawn)) => position.compare(token, prob, drawn, number)?,
                    (AcceptanceRule::LossyTypical { epsilon, delta }, _) => {
                        position.against_entropy(token, prob, epsilon, delta)?
                    }
                    (AcceptanceRule::LossyLenience { lenience }, _) => {
                        position.test(token, prob, lenience.into(), rng)?
                    }
                    _ => position.test(token, prob, 1.0, rng)?,
                };
                if test.passed {
                    winner = Some(AcceptedNode {
                        node: child,
                        token,
                        p: position.distribution[token as usize],
                        q: test.q,
                        u: test.threshold.and(Some(test.u)),
                        threshold: test.threshold,
                    });
                    break;
                }
                rejected.push(RejectedToken {
                    id: token,
                    node: child,
                    p: test.p,
                    q: test.q,
                    u: test.u,
                    position: path.len() as u32,
                });
            }
            if let Some(winner) = winner {
                node = Some(winner.node);
                path.push(winner.token);
                accepted.push(winner);
                continue;
            }
            let last_origin = match (tree.is_empty(), position.tested) {
                (true, _) => TokenOrigin::Plain,
                (false, true) => TokenOrigin::Resampled,
                (false, false) => TokenOrigin::Bonus,
            };
            let last = drawn.unwrap_or_else(|| sample::draw(position.current(), sample::unit(rng)));
            let last_p = position.distribution[last as usize];
            return Ok(Verdict { accepted, rejected, last, last_origin, last_p });
        }
    }

    /// The token that the target draws before it looks at the draft, under the rules by which it does,
    /// and the uniform number it was drawn with, 0 where there is none.
    fn drawn_first(
        &self,
        distribution: &[f32],
        position: usize,
        rng: &mut dyn RngCore,
    ) -> (Option<TokenId>, f32) {
        match self.rule {
            AcceptanceRule::Match => {
                let u = sample::unit(rng);
                (Some(sample::draw(distribution, u)), u as f32)
            }
            AcceptanceRule::Coupled => (self.noise.choose(distribution, position), 0.0),
            _ => (None, 0.0),
        }
    }
}

/// The outcome of testing one child, with p and q as they stood.
struct Test {
    passed: bool,
    p: f32,
    q: Option<f32>,
    u: f32,
    /// What `u` had to be below, where that decided.
    threshold: Option<f32>,
}

/// One position of the walk: the target's distribution and what rejections have made of it.
struct Position {
    distribution: Vec<f32>,
    /// Weights of the residual distribution and their sum, once something was rejected.
    residual: Option<(Vec<f32>, f64)>,
    /// Sampled children tested so far: their q no longer holds their token.
    drawn: Vec<(Arc<[f32]>, TokenId)>,
    tested: bool,
}

impl Position {
    fn new(distribution: Vec<f32>) -> Self {
        Self { distribution, residual: None, drawn: Vec::new(), tested: false }
    }

    /// Weights the next token is drawn from.
    fn current(&self) -> &[f32] {
        self.residual.as_ref().map_or(&self.distribution, |(weights, _)| weights)
    }

    /// The sum of [`current`](Self::current). A distribution adds up to 1 by contract.
    fn mass(&self) -> f64 {
        self.residual.as_ref().map_or(1.0, |(_, mass)| *mass)
    }

    /// p and q of a drafted token as they stand.
    fn probabilities(&mut self, token: TokenId, prob: &DraftProb) -> Result<(f64, Option<f64>)> {
        let x = token as usize;
        if x >= self.distribution.len() {
            return Err(Error::Internal(format!(
                "token {token} was drafted, the target has {} tokens",
                self.distribution.len()
            )));
        }
        self.tested = true;
        let p = f64::from(self.current()[x]) / self.mass();
        let DraftProb::Sampled(distribution) = prob else {
            return Ok((p, None));
        };
        let q = f64::from(distribution[..].get(x).copied().unwrap_or(0.0)) / self.draft_mass(distribution);
        let drawn_before = self.drawn.iter().any(|(l, t)| Arc::ptr_eq(l, distribution) && *t == token);
        if distribution.len() != self.distribution.len() || drawn_before || !(q > 0.0 && q.is_finite()) {
            return Err(Error::Internal(format!(
                "token {token} was drafted with a distribution that cannot produce it"
            )));
        }
        Ok((p, Some(q)))
    }

    /// Rejection sampling, with q made smaller by `lenience`; 1 is lossless.
    fn test(
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
        let threshold = Some(threshold.min(1.0) as f32);
        Ok(Test { passed, p: p as f32, q: q.map(|q| q as f32), u: u as f32, threshold })
    }

    /// Leaves p without what the draft could have given.
    fn reject(&mut self, token: TokenId, prob: &DraftProb, lenience: f64) {
        match prob {
            DraftProb::Certain => self.rule_out(token as usize),
            DraftProb::Sampled(distribution) => {
                self.subtract(distribution, lenience);
                self.drawn.push((distribution.clone(), token));
            }
        }
    }

    /// Whether the drafted token is the one that the target drew.
    fn compare(&mut self, token: TokenId, prob: &DraftProb, drawn: TokenId, u: f32) -> Result<Test> {
        let (p, q) = self.probabilities(token, prob)?;
        Ok(Test { passed: token == drawn, p: p as f32, q: q.map(|q| q as f32), u, threshold: None })
    }

    /// Whether the drafted token is likely enough for how open the position is.
    fn against_entropy(
        &mut self,
        token: TokenId,
        prob: &DraftProb,
        epsilon: f32,
        delta: f32,
    ) -> Result<Test> {
        let (p, q) = self.probabilities(token, prob)?;
        let entropy: f64 =
            self.distribution.iter().filter(|p| **p > 0.0).map(|&p| -f64::from(p) * f64::from(p).ln()).sum();
        let enough = f64::from(epsilon).min(f64::from(delta) * (-entropy).exp());
        Ok(Test { passed: p > enough, p: p as f32, q: q.map(|q| q as f32), u: 0.0, threshold: None })
    }

    /// Tokens already drawn from this very distribution, by number.
    fn drawn_from<'a>(&'a self, distribution: &'a Arc<[f32]>) -> impl Iterator<Item = usize> + 'a {
        self.drawn.iter().filter(|(l, _)| Arc::ptr_eq(l, distribution)).map(|(_, t)| *t as usize)
    }

    /// What is left of q after the tokens already drawn from it.
    fn draft_mass(&self, distribution: &Arc<[f32]>) -> f64 {
        if self.drawn_from(distribution).next().is_none() {
            return 1.0;
        }
        // Summed anew: 1 - drawn would cancel where the draft was nearly sure.
        let mut rest = distribution.to_vec();
        self.drawn_from(distribution).for_each(|x| rest[x] = 0.0);
        sample::sum(&rest)
    }

    /// p <- norm(p without x).
    fn rule_out(&mut self, x: usize) {
        let mut weights = self.current().to_vec();
        weights[x] = 0.0;
        self.replace(weights);
    }

    /// p <- norm(max(p - q, 0)). What was drawn from q before needs no removing here: its own
    /// rejection left p(x) at 0.
    fn subtract(&mut self, distribution: &Arc<[f32]>, lenience: f64) {
        let (p_scale, q_scale) = (1.0 / self.mass(), lenience / self.draft_mass(distribution));
        let difference =
            |(&p, &q): (&f32, &f32)| (f64::from(p) * p_scale - f64::from(q) * q_scale).max(0.0) as f32;
        let weights = self.current().iter().zip(distribution.iter()).map(difference).collect();
        self.replace(weights);
    }

    /// Takes the residual weights, unless nothing is left of them: then p equalled q to rounding
    /// (the rejection itself was rounding) and stays as it is.
    fn replace(&mut self, weights: Vec<f32>) {
        let mass = sample::sum(&weights);
        if mass > 0.0 {
            self.residual = Some((weights, mass));
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Numbers that make `unit` give the listed values, one after the other.
    struct Script(Vec<f64>);

    impl RngCore for Script {
        fn next_u32(&mut self) -> u32 {
            (self.next_u64() >> 32) as u32
        }
        fn next_u64(&mut self) -> u64 {
            ((self.0.remove(0) * 9_007_199_254_740_992.0) as u64) << 11
        }
        fn fill_bytes(&mut self, _: &mut [u8]) {
            unreachable!("the verifier draws numbers only")
        }
    }

    fn run(tree: &DraftTree, distributions: &[&[f32]], numbers: &[f64]) -> Verdict {
        run_by(AcceptanceRule::Lossless, tree, distributions, numbers)
    }

    fn run_by(rule: AcceptanceRule, tree: &DraftTree, distributions: &[&[f32]], numbers: &[f64]) -> Verdict {
        let mut target = GivenDistributions(distributions.iter().map(|l| l.to_vec()).collect());
        Verifier::new(rule, 5).verify(tree, &mut target, 0, &mut Script(numbers.to_vec())).unwrap()
    }

    #[test]
    fn nothing_drafted_is_a_plain_draw() {
        let verdict = run(&DraftTree::new(), &[&[0.25, 0.75]], &[0.5]);
        assert_eq!((verdict.last, verdict.last_origin), (1, TokenOrigin::Plain));
        assert_eq!(verdict.last_p, 0.75);
        assert!(verdict.accepted.is_empty() && verdict.rejected.is_empty());
    }

    #[test]
    fn a_whole_path_earns_a_bonus() {
        let tree = DraftTree::certain_chain([1, 0]);
        let distributions: [&[f32]; 3] = [&[0.5, 0.5], &[0.75, 0.25], &[0.0, 1.0]];
        let verdict = run(&tree, &distributions, &[0.49, 0.74, 0.3]);
        assert_eq!(verdict.kept(), [0, 1]);
        assert_eq!((verdict.last, verdict.last_origin), (1, TokenOrigin::Bonus));
        assert_eq!(verdict.accepted[1].p, 0.75);
        assert_eq!(verdict.accepted[1].q, None);
    }

    /// Widely copied code adds a bonus token here: the resampled one is all there is.
    #[test]
    fn a_rejected_last_token_earns_no_bonus() {
        let tree = DraftTree::certain_chain([1, 0]);
        let distributions: [&[f32]; 3] = [&[0.5, 0.5], &[0.75, 0.25], &[0.0, 1.0]];
        let verdict = run(&tree, &distributions, &[0.49, 0.76, 0.3]);
        assert_eq!((verdict.kept(), verdict.last, verdict.last_origin), (vec![0], 1, TokenOrigin::Resampled));
        assert_eq!(verdict.rejected.len(), 1);
    }

    #[test]
    fn every_drafted_token_has_a_fate() {
        use DraftFate::{Accepted, Rejected, Untested};
        // Two siblings, a child of each, and a third sibling.
        let mut tree = DraftTree::new();
        let first = tree.push(None, 0, DraftProb::Certain);
        let second = tree.push(None, 1, DraftProb::Certain);
        tree.push(Some(first), 2, DraftProb::Certain);
        tree.push(Some(second), 2, DraftProb::Certain);
        tree.push(None, 2, DraftProb::Certain);
        let distributions: [&[f32]; 6] = [&[0.25, 0.5, 0.25]; 6];
        let verdict = run(&tree, &distributions, &[0.5, 0.1, 0.3, 0.1]);
        let fates: Vec<_> = verdict.fates(&tree).iter().map(|d| (d.id, d.parent, d.fate)).collect();
        let expected = [
            (0, None, Rejected),
            (1, None, Accepted),
            (2, Some(first), Untested),
            (2, Some(second), Rejected),
            (2, None, Untested),
        ];
        assert_eq!(fates, expected);
        assert!(run(&DraftTree::new(), &[&[1.0]], &[0.5]).fates(&DraftTree::new()).is_empty());
    }

    #[test]
    fn a_rejected_certain_token_cannot_come_back() {
        let tree = DraftTree::certain_chain([1, 0]);
        let distributions: [&[f32]; 3] = [&[0.25, 0.5, 0.25], &[1.0, 0.0, 0.0], &[1.0, 0.0, 0.0]];
        let verdict = run(&tree, &distributions, &[0.5, 0.6]);
        assert_eq!((verdict.last, verdict.last_origin), (2, TokenOrigin::Resampled));
        assert_eq!(verdict.last_p, 0.25);
        let rejected = &verdict.rejected[0];
        assert_eq!((rejected.id, rejected.p, rejected.u, rejected.position), (1, 0.5, 0.5, 0));
    }

    #[test]
    fn a_sampled_token_is_tested_against_the_ratio_and_replaced_from_the_residual() {
        let q: Arc<[f32]> = vec![0.75, 0.25, 0.0].into();
        let mut tree = DraftTree::new();
        tree.push(None, 0, DraftProb::Sampled(q));
        let distributions: [&[f32]; 2] = [&[0.25, 0.5, 0.25], &[1.0, 0.0, 0.0]];
        let kept = run(&tree, &distributions, &[0.33, 0.0]);
        assert_eq!((kept.accepted[0].p, kept.accepted[0].q), (0.25, Some(0.75)));
        // Residual (0, 0.25, 0.25): the border is at one half.
        assert_eq!(run(&tree, &distributions, &[0.34, 0.49]).last, 1);
        assert_eq!(run(&tree, &distributions, &[0.34, 0.5]).last, 2);
    }

    /// Three siblings of one distribution, children of two of them: against many walks.
    #[test]
    fn what_is_expected_is_what_is_accepted_on_average() {
        let q: Arc<[f32]> = vec![0.5, 0.25, 0.125, 0.125].into();
        let other: Arc<[f32]> = vec![0.1, 0.2, 0.3, 0.4].into();
        let mut tree = DraftTree::new();
        let first = tree.push(None, 0, DraftProb::Sampled(q.clone()));
        let second = tree.push(None, 2, DraftProb::Sampled(q.clone()));
        tree.push(Some(first), 3, DraftProb::Sampled(other.clone()));
        tree.push(Some(second), 1, DraftProb::Certain);
        tree.push(None, 1, DraftProb::Sampled(q));
        tree.push(Some(second), 0, DraftProb::Sampled(other));
        let mut distributions =
            GivenDistributions(vec![vec![0.2, 0.3, 0.4, 0.1], vec![0.25; 4], vec![0.0, 0.1, 0.2, 0.7]]);
        distributions.0.resize(tree.len() + 1, vec![0.3, 0.3, 0.3, 0.1]);
        let (verifier, mut rng) = (Verifier::default(), ChaCha8Rng::seed_from_u64(3));
        let walks = 40_000;
        let accepted: usize = (0..walks)
            .map(|_| verifier.verify(&tree, &mut distributions, 0, &mut rng).unwrap().accepted.len())
            .sum();
        let expected = expected_accepted(&tree, &mut distributions).unwrap();
        assert!((accepted as f64 / f64::from(walks) - expected).abs() < 0.02, "{accepted} {expected}");
        assert_eq!(expected_accepted(&DraftTree::new(), &mut distributions).unwrap(), 0.0);
        // By hand: 0.2, and 0.2 x 0.3 behind it.
        let chain = DraftTree::certain_chain([0, 1]);
        let mut distributions = GivenDistributions(vec![vec![0.2, 0.8], vec![0.7, 0.3], vec![1.0, 0.0]]);
        assert!((expected_accepted(&chain, &mut distributions).unwrap() - 0.26).abs() < 1e-6);
    }

    #[test]
    fn siblings_of_one_distribution_are_renormalised() {
        let q: Arc<[f32]> = vec![0.5, 0.25, 0.25].into();
        let mut tree = DraftTree::new();
        tree.push(None, 0, DraftProb::Sampled(q.clone()));
        tree.push(None, 1, DraftProb::Sampled(q));
        let distributions: [&[f32]; 3] = [&[0.0, 0.375, 0.625], &[1.0, 0.0, 0.0], &[1.0, 0.0, 0.0]];
        // After the first: p = norm(0, 0.125, 0.375) = (0, 1/4, 3/4), q = (0, 1/2, 1/2).
        let verdict = run(&tree, &distributions, &[0.0, 0.49, 0.0]);
        let second = verdict.accepted[0];
        assert_eq!((second.node, second.p, second.q), (1, 0.375, Some(0.5)));
        assert_eq!((second.u, second.threshold), (Some(0.49), Some(0.5)), "as it was tested");
        let verdict = run(&tree, &distributions, &[0.0, 0.5, 0.0]);
        assert_eq!(verdict.rejected.len(), 2);
        assert_eq!((verdict.rejected[1].p, verdict.rejected[1].q), (0.25, Some(0.5)));
        assert_eq!(verdict.last, 2);
    }

    #[test]
    fn without_a_residual_the_distribution_stays() {
        // p(0) < q(0) by rounding only, and nothing else has mass.
        let q: Arc<[f32]> = vec![1.0, 0.0].into();
        let mut tree = DraftTree::new();
        tree.push(None, 0, DraftProb::Sampled(q));
        let distributions: [&[f32]; 2] = [&[1.0 - f32::EPSILON, 0.0], &[1.0, 0.0]];
        let verdict = run(&tree, &distributions, &[1.0 - 1e-9, 0.9]);
        assert_eq!((verdict.last, verdict.last_origin), (0, TokenOrigin::Resampled));
    }

    #[test]
    fn contradictions_are_errors() {
        let q: Arc<[f32]> = vec![0.0, 1.0].into();
        let short: Arc<[f32]> = vec![1.0].into();
        let cases = [(0, DraftProb::Sampled(q)), (0, DraftProb::Sampled(short)), (2, DraftProb::Certain)];
        for (token, prob) in cases {
            let mut tree = DraftTree::new();
            tree.push(None, token, prob);
            let mut target = GivenDistributions(vec![vec![0.5, 0.5]]);
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            assert!(Verifier::default().verify(&tree, &mut target, 0, &mut rng).is_err());
        }
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let tree = DraftTree::certain_chain([0]);
        assert!(
            Verifier::default().verify(&tree, &mut GivenDistributions(vec![vec![1.0]]), 0, &mut rng).is_err()
        );
    }

    #[test]
    fn by_match_a_draft_stands_where_it_is_what_the_target_drew() {
        let tree = DraftTree::certain_chain([1, 0]);
        let distributions: [&[f32]; 3] = [&[0.5, 0.5], &[0.75, 0.25], &[0.0, 1.0]];
        let both = run_by(AcceptanceRule::Match, &tree, &distributions, &[0.6, 0.7, 0.3]);
        assert_eq!((both.kept(), both.last, both.last_origin), (vec![0, 1], 1, TokenOrigin::Bonus));
        let one = run_by(AcceptanceRule::Match, &tree, &distributions, &[0.6, 0.8]);
        assert_eq!((one.kept(), one.last, one.last_origin), (vec![0], 1, TokenOrigin::Resampled));
        assert_eq!((one.rejected[0].id, one.rejected[0].p), (0, 0.75));
    }

    #[test]
    fn by_coupling_the_token_of_a_position_does_not_depend_on_the_draft() {
        let distribution: &[f32] = &[0.25, 0.25, 0.25, 0.25];
        let plain = run_by(AcceptanceRule::Coupled, &DraftTree::new(), &[distribution], &[]).last;
        for drafted in 0..4 {
            let tree = DraftTree::certain_chain([drafted]);
            let verdict = run_by(AcceptanceRule::Coupled, &tree, &[distribution, distribution], &[]);
            let first = verdict.accepted.first().map_or(verdict.last, |a| a.token);
            assert_eq!((first, verdict.accepted.len()), (plain, usize::from(drafted == plain)));
        }
    }

    #[test]
    fn lossy_rules_accept_more() {
        let tree = DraftTree::certain_chain([1]);
        // Entropy 0.69: the threshold of delta 0.3 is 0.15.
        let open: [&[f32]; 2] = [&[0.5, 0.5], &[1.0, 0.0]];
        let typical = AcceptanceRule::LossyTypical { epsilon: 0.2, delta: 0.3 };
        assert_eq!(run_by(typical, &tree, &open, &[0.0]).kept(), [0]);
        let closed: [&[f32]; 2] = [&[0.9, 0.1], &[1.0, 0.0]];
        assert_eq!(run_by(typical, &tree, &closed, &[0.95]).last, 1, "p is as it was after a rejection");
        let lenient = AcceptanceRule::LossyLenience { lenience: 0.5 };
        assert_eq!(run_by(lenient, &tree, &open, &[0.99, 0.0]).kept(), [0]);
        assert!(run_by(AcceptanceRule::Lossless, &tree, &open, &[0.99, 0.0]).kept().is_empty());
    }

    #[test]
    fn sampled_rows_see_the_path() {
        let params = crate::sample::SamplingParams {
            presence_penalty: 2.0,
            penalty_last_n: 2,
            ..crate::sample::SamplingParams::greedy()
        };
        let sampler = Sampler::new(params).unwrap();
        let logits = Rows::new(3, vec![1.0, 0.5, 0.0, 1.0, 0.5, 0.0]);
        let mut rows = SampledRows::new(&logits, &sampler, &[0, 2, 2]);
        assert_eq!(rows.distribution(0, &[]).unwrap(), [1.0, 0.0, 0.0]);
        assert_eq!(rows.distribution(1, &[0]).unwrap(), [0.0, 1.0, 0.0]);
        assert_eq!(rows.distribution(1, &[1, 0]).unwrap(), [0.0, 0.0, 1.0]);
        assert!(rows.distribution(2, &[]).is_err());
    }
}
