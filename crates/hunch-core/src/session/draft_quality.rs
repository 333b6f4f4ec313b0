//! What drafts are worth along a given text: each is verified without the luck of its verification, and the text
//! goes on as it was given. So methods are compared at the same places of the same text.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::model::{LogitRows, Step};
use crate::propose::RoundOutcome;
use crate::sample::argmax;
use crate::stats::millis;
use crate::theory;
use crate::token::TokenId;
use crate::verify::{SampledRows, TargetRows, expected_accepted};

use super::Session;

/// A draft behind a place of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftQuality {
    /// Its tokens.
    pub nodes: usize,
    /// Its longest path.
    pub depth: usize,
    /// The tokens that a round with it gives on average: those that rejection sampling accepts, and one more.
    pub tokens: f64,
    /// How alike draft and target are here, where the draft's first token was drawn from a distribution.
    pub overlap: Option<Overlap>,
    /// The draft's confidence in each token of a chain, in order. Empty for a tree.
    pub confidence: Vec<Option<f32>>,
    /// Tokens accepted when it was verified once, with the random numbers of this place.
    pub accepted: usize,
    /// Milliseconds that drafting took.
    pub propose_ms: f64,
    /// Milliseconds of the target pass, which has one row more than `nodes`.
    pub target_ms: f64,
}

/// A draft's distribution q of the next token beside the target's p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// The sum of min(p, q).
    pub acceptance: f64,
    /// p of the token that q holds likeliest.
    pub likeliest: f64,
    /// The sum of p q.
    pub matching: f64,
}

impl Overlap {
    fn of(p: &[f32], q: &[f32]) -> Self {
        let likeliest = f64::from(p[argmax(q) as usize]);
        Self { acceptance: theory::acceptance(p, q), likeliest, matching: theory::matching(p, q) }
    }
}

impl Session<'_> {
    /// Weighs what would be drafted here; the text stays as it is. Proposers hear what became of the draft when it was
    /// verified once. The random numbers belong to the place: methods that draw alike draft alike.
    ///
    /// # Errors
    /// As [`round`](Self::round).
    pub fn evaluate_draft(&mut self) -> Result<DraftQuality> {
        let base = self.check_ready()?;
        self.rng = ChaCha8Rng::seed_from_u64(self.config.seed.wrapping_add(base as u64));
        let start = self.clock.elapsed();
        let proposal = self.propose(base)?;
        let proposed = self.clock.elapsed();
        if let Some(dropped) = self.take_dropped().pop() {
            // A measurement of a method that does not draft would mislead.
            return Err(dropped.error);
        }
        let output = self.forward(&proposal)?;
        let passed = self.clock.elapsed();
        let tree = &proposal.tree;
        let mut target = SampledRows::new(&output.logits, &self.sampler, &self.committed);
        let tokens = 1.0 + expected_accepted(tree, &mut target)?;
        let overlap = overlap(tree, &mut target)?;
        let verdict = self.verifier.verify(tree, &mut target, self.committed.len(), &mut self.rng)?;
        let quality = DraftQuality {
            nodes: tree.len(),
            depth: tree.height(),
            tokens,
            overlap,
            confidence: if tree.is_chain() { tree.confidence().to_vec() } else { Vec::new() },
            accepted: verdict.accepted.len(),
            propose_ms: millis(proposed.saturating_sub(start)),
            target_ms: millis(passed.saturating_sub(proposed)),
        };
        self.target.truncate(base)?;
        let outcome = RoundOutcome {
            accepted: &verdict.accepted_nodes(),
            // None of it becomes part of the text.
            kept: &[],
            committed: &self.committed,
            target: &output,
            aux_start: tree.len() + 1,
        };
        self.stages.accept(&proposal, &outcome);
        Ok(quality)
    }

    /// Goes on with these tokens, whatever the target would have said.
    ///
    /// # Errors
    /// As [`round`](Self::round), and [`Error::ContextOverflow`] where they do not fit the context.
    pub fn teacher_force(&mut self, tokens: &[TokenId]) -> Result<()> {
        let base = self.check_ready()?;
        let context = self.target.info().context_length;
        if self.committed.len() + tokens.len() > context {
            return Err(Error::ContextOverflow { prompt: self.committed.len() + tokens.len(), context });
        }
        self.committed.extend(tokens);
        let read = &self.committed[base..self.committed.len() - 1];
        if !read.is_empty() {
            self.target.forward(Step::chain(read, LogitRows::None))?;
        }
        Ok(())
    }
}

fn overlap(tree: &DraftTree, target: &mut dyn TargetRows) -> Result<Option<Overlap>> {
    let eldest = tree.children(None).next().map(|child| tree.prob(child));
    let Some(DraftProb::Sampled(q)) = eldest else { return Ok(None) };
    Ok(Some(Overlap::of(&target.distribution(0, &[])?, q)))
}
