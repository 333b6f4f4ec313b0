//! A chain while a model drafts it: from the logits after its last token to the next one. What q a token
//! carries is decided here, for every model that drafts chains.

use rand::RngCore;

use crate::depth::DraftPlan;
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::rule::PositionNoise;
use crate::sample::{Sampler, draw, likeliest_of, unit};
use crate::token::TokenId;

/// Likeliest tokens of a draft that are remembered for each position.
pub(super) const GUESSES: usize = 3;

/// What a chain is drawn by.
pub(super) struct ChainDraft<'a> {
    pub(super) committed: &'a [TokenId],
    pub(super) plan: DraftPlan,
    /// Tokens that end the answer.
    pub(super) end_tokens: &'a [TokenId],
    pub(super) sampler: &'a Sampler,
    pub(super) noise: Option<PositionNoise>,
    pub(super) rng: &'a mut dyn RngCore,
    /// The target's vocabulary.
    pub(super) n_vocab: usize,
}

impl ChainDraft<'_> {
    /// Drafts at most `depth` tokens, 1 or more. `logits` are those after the committed tokens; `read` gives
    /// the logits after each token that is drafted but the last. Tokens that were drafted before an error
    /// are returned with it: dropping tokens that were drawn would bias the answer.
    pub(super) fn grow(
        mut self,
        depth: usize,
        logits: Vec<f32>,
        read: impl FnMut(TokenId) -> Result<Vec<f32>>,
    ) -> (DraftTree, Option<Error>) {
        let mut tree = DraftTree::new();
        let failure = self.extend(&mut tree, depth, logits, read).err();
        (tree, failure)
    }

    fn extend(
        &mut self,
        tree: &mut DraftTree,
        depth: usize,
        mut logits: Vec<f32>,
        mut read: impl FnMut(TokenId) -> Result<Vec<f32>>,
    ) -> Result<()> {
        let (committed, sampler) = (self.committed, self.sampler);
        let mut recent = committed[committed.len().saturating_sub(sampler.window())..].to_vec();
        let mut parent = None;
        loop {
            // q lives on the target's vocabulary: what only one of the two has is impossible.
            logits.resize(self.n_vocab, f32::NEG_INFINITY);
            let (node, guesses) = if sampler.is_greedy() {
                let ranking = sampler.ranking(&logits, &recent, GUESSES)?;
                let (token, confidence) = ranking[0];
                (tree.push_certain(parent, token, confidence), ranking)
            } else {
                let q = sampler.distribution(&logits, &recent)?;
                let guesses = likeliest_of(&q, GUESSES);
                let node = if let Some(noise) = self.noise {
                    // By the target's own noise the draft has no choice left.
                    let token = noise.choose(&q, committed.len() + tree.len()).unwrap_or_default();
                    tree.push_certain(parent, token, q[token as usize])
                } else {
                    let token = draw(&q, unit(self.rng));
                    tree.push(parent, token, DraftProb::Sampled(q.into()))
                };
                (node, guesses)
            };
            tree.set_guesses(node, guesses.into());
            let token = tree.tokens()[node];
            let over = tree.len() == depth || self.end_tokens.contains(&token);
            if over || !self.plan.should_continue(tree.confidence()[node].unwrap_or(1.0)) {
                return Ok(());
            }
            parent = Some(node);
            recent.push(token);
            logits = read(token)?;
        }
    }
}
