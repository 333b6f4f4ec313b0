//! Draft quality along a given text.
//!
//! Each draft is scored by its expected accepted length, without sampling noise. Then the given text
//! continues by teacher forcing. This compares methods at the same positions of the same text.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::model::{LogitRows, PassInput};
use crate::propose::RoundOutcome;
use crate::sample::argmax;
use crate::stats::millis;
use crate::theory;
use crate::token::TokenId;
use crate::verify::{NodeOdds, SampledRows, TargetRows, node_odds};

use super::Session;

/// Quality of one draft.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftQuality {
    /// Drafted tokens.
    pub nodes: usize,
    /// Length of the longest path.
    pub depth: usize,
    /// Expected tokens of a round with this draft: 1 plus the tokens that rejection sampling accepts.
    pub tokens: f64,
    /// Test of every drafted token.
    pub tests: Vec<NodeTest>,
    /// Overlap of draft and target; `None` unless the first drafted token was sampled from a
    /// distribution.
    pub overlap: Option<Overlap>,
    /// The draft's confidence in each token of a chain, in order; empty for a tree.
    pub confidence: Vec<Option<f32>>,
    /// Tokens accepted in one sampled verification.
    pub accepted: usize,
    /// Probability of the target's most likely next token at temperature 1.
    pub certainty: f32,
    /// Drafting time, in milliseconds.
    pub propose_ms: f64,
    /// Time of the target pass of `nodes + 1` rows, in milliseconds.
    pub target_ms: f64,
}

/// Test of a drafted token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeTest {
    /// Tokens between the text and it.
    pub depth: usize,
    /// Number of siblings that are tested before it.
    pub rank: usize,
    /// Probabilities of the test.
    pub odds: NodeOdds,
}

/// Overlap of the draft's distribution q with the target's p at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Sum of min(p, q): the acceptance under rejection sampling.
    pub acceptance: f64,
    /// p of the most likely token of q: the acceptance of a greedy draft.
    pub likeliest: f64,
    /// Sum of p q: the acceptance under the match rule.
    pub matching: f64,
}

impl Overlap {
    fn of(p: &[f32], q: &[f32]) -> Self {
        let likeliest = f64::from(p[argmax(q) as usize]);
        Self { acceptance: theory::acceptance(p, q), likeliest, matching: theory::matching(p, q) }
    }
}

impl Session<'_> {
    /// Drafts and verifies at the current position without extending the text.
    ///
    /// Proposers learn the outcome of one sampled verification. The random numbers depend on the
    /// position only, so methods that sample alike draft alike.
    ///
    /// # Errors
    /// The errors of [`round`](Self::round), and the error of a proposer that fails.
    pub fn evaluate_draft(&mut self) -> Result<DraftQuality> {
        let base = self.check_ready()?;
        self.rng = ChaCha8Rng::seed_from_u64(self.config.seed.wrapping_add(base as u64));
        let start = self.clock.elapsed();
        let proposal = self.propose(base)?;
        let proposed = self.clock.elapsed();
        if let Some(dropped) = self.take_dropped().pop() {
            // Measuring a method that no longer drafts would mislead.
            return Err(dropped.error);
        }
        let output = self.forward(&proposal, &[])?;
        let passed = self.clock.elapsed();
        let tree = &proposal.tree;
        let mut target = SampledRows::new(&output.logits, &self.sampler, &self.committed);
        let odds = node_odds(tree, &mut target)?;
        let tests = (0..tree.len()).zip(&odds);
        let tests =
            tests.map(|(node, &odds)| NodeTest { depth: tree.depth(node), rank: tree.rank(node), odds });
        let overlap = overlap(tree, &mut target)?;
        let verdict = self.verifier.verify(tree, &mut target, self.committed.len(), &mut self.rng)?;
        let quality = DraftQuality {
            nodes: tree.len(),
            depth: tree.height(),
            tokens: 1.0 + odds.iter().map(|odds| odds.accepted).sum::<f64>(),
            tests: tests.collect(),
            overlap,
            confidence: if tree.is_chain() { tree.confidence().to_vec() } else { Vec::new() },
            accepted: verdict.accepted.len(),
            certainty: target.row(0).logprobs(verdict.last, 1).top.first().map_or(0.0, |&(_, p)| p),
            propose_ms: millis(proposed.saturating_sub(start)),
            target_ms: millis(passed.saturating_sub(proposed)),
        };
        self.target.truncate(base)?;
        let outcome = RoundOutcome {
            accepted: &verdict.accepted_nodes(),
            // Nothing is committed.
            kept: &[],
            committed: &self.committed,
            target: &output,
            tap_layers: &[],
            path: &[],
            aux_start: tree.len() + 1,
        };
        self.stages.report(&proposal, &outcome);
        Ok(quality)
    }

    /// Extends the text by `tokens` regardless of the target's distribution (teacher forcing).
    ///
    /// # Errors
    /// The errors of [`round`](Self::round), and [`Error::ContextOverflow`] if the tokens do not fit
    /// the context.
    pub fn teacher_force(&mut self, tokens: &[TokenId]) -> Result<()> {
        let base = self.check_ready()?;
        let context = self.target.info().context_length;
        if self.committed.len() + tokens.len() > context {
            return Err(Error::ContextOverflow { prompt: self.committed.len() + tokens.len(), context });
        }
        self.committed.extend(tokens);
        let read = &self.committed[base..self.committed.len() - 1];
        if !read.is_empty() {
            let taps = self.stages.taps();
            let output =
                self.target.forward(PassInput { taps: &taps, ..PassInput::chain(read, LogitRows::None) })?;
            self.stages.report_pass(&self.committed, &output, &taps);
        }
        Ok(())
    }
}

fn overlap(tree: &DraftTree, target: &mut dyn TargetRows) -> Result<Option<Overlap>> {
    let first = tree.children(None).next().map(|child| tree.prob(child));
    let Some(DraftProb::Sampled(q)) = first else { return Ok(None) };
    Ok(Some(Overlap::of(&target.distribution(0, &[])?, q)))
}
