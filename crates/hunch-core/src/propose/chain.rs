//! Chain drafting with a model: from the logits after each token to the next token. The q of every
//! drafted token is set here, for all models that draft chains.

use std::collections::VecDeque;

use rand::RngCore;

use crate::depth::DraftPlan;
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::rule::PositionNoise;
use crate::sample::{Sampler, draw, top_tokens, unit};
use crate::token::TokenId;

/// Number of most likely draft tokens recorded per position.
pub(super) const GUESSES: usize = 3;

/// Returns what a sampler computed, or `None` if the format of the answer allows no token that the drafter knows. The
/// draft ends there.
pub(super) fn possible<T>(computed: Result<T>) -> Result<Option<T>> {
    match computed {
        Err(Error::NothingAllowed) => Ok(None),
        computed => computed.map(Some),
    }
}

/// Inputs of chain drafting.
pub(super) struct ChainDraft<'a> {
    pub(super) committed: &'a [TokenId],
    pub(super) plan: DraftPlan,
    /// Tokens that end the answer, and with it the draft.
    pub(super) end_tokens: &'a [TokenId],
    pub(super) sampler: &'a Sampler,
    pub(super) noise: Option<PositionNoise>,
    pub(super) rng: &'a mut dyn RngCore,
    /// Random numbers that were drawn beforehand. They are used before those of `rng`.
    pub(super) units: VecDeque<f64>,
    /// Size of the target's vocabulary.
    pub(super) n_vocab: usize,
}

impl ChainDraft<'_> {
    /// Drafts at most `depth` tokens (at least 1).
    ///
    /// `logits` follow the committed tokens. `read` returns the logits after each drafted token but the
    /// last. On an error the tokens drafted so far are returned with it: discarding sampled tokens
    /// would bias the output.
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
            // q is defined on the target's vocabulary. Tokens that only one model has are impossible.
            logits.resize(self.n_vocab, f32::NEG_INFINITY);
            let (node, guesses) = if sampler.is_greedy() {
                let Some(ranking) = possible(sampler.ranking(&logits, &recent, GUESSES))? else {
                    return Ok(());
                };
                let (token, confidence) = ranking[0];
                (tree.push_certain(parent, token, confidence), ranking)
            } else {
                let Some(q) = possible(sampler.distribution(&logits, &recent))? else { return Ok(()) };
                let guesses = top_tokens(&q, GUESSES);
                let node = if let Some(noise) = self.noise {
                    // The position's noise determines the token, so the draft is certain.
                    let token = noise.choose(&q, committed.len() + tree.len()).unwrap_or_default();
                    tree.push_certain(parent, token, q[token as usize])
                } else {
                    let u = self.units.pop_front().unwrap_or_else(|| unit(self.rng));
                    let token = draw(&q, u);
                    tree.push(parent, token, DraftProb::Sampled(q.into()))
                };
                (node, guesses)
            };
            tree.set_guesses(node, guesses.into());
            let token = tree.tokens()[node];
            let complete = tree.len() == depth || self.end_tokens.contains(&token);
            if complete || !self.plan.should_continue(tree.confidence()[node].unwrap_or(1.0)) {
                return Ok(());
            }
            parent = Some(node);
            recent.push(token);
            logits = read(token)?;
        }
    }
}
