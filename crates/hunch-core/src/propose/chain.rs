//! Chain drafting with a model: from the logits after each token to the next token. The q of every
//! drafted token is set here, for all models that draft chains.
//!
//! A device that chooses tokens itself runs a whole chain at once ([`LanguageModel::device_chain`]). Its tokens are
//! guesses. The draft follows them as long as the tokens drawn here are the same, and ends with the first other one.
//! That ending depends on drawn tokens and on random numbers of earlier draws only, so nothing is biased.

use std::collections::VecDeque;

use rand::RngCore;

use super::ProposeContext;
use crate::depth::DraftPlan;
use crate::draft::{DraftProb, DraftTree};
use crate::error::{Error, Result};
use crate::model::{ChainDraws, ChainInput, DeviceChain, LanguageModel};
use crate::rule::PositionNoise;
use crate::sample::{DrawSettings, Sampler, draw, top_tokens, unit};
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

/// Choice of the tokens of a chain by a device.
pub(super) struct DeviceDraws {
    /// Settings of draws; `None` takes the most likely tokens.
    settings: Option<DrawSettings>,
    /// A random number for each draw.
    pub(super) units: Vec<f64>,
    /// Number of tokens drawn from.
    n_vocab: usize,
}

impl DeviceDraws {
    /// Chooses how the device of `model` guesses the next `count` tokens of a draft, and draws their random numbers.
    ///
    /// `n_vocab` is the number of tokens that target and drafter share. Under the coupled rule the noise of a position
    /// decides, which only the host computes, so the guess is the most likely token. Penalties, biases and constraints
    /// are left out of the guess.
    pub(super) fn new(
        model: &dyn LanguageModel,
        sampler: &Sampler,
        noise: Option<PositionNoise>,
        count: usize,
        n_vocab: usize,
        rng: &mut dyn RngCore,
    ) -> Self {
        let settings = sampler.draw_settings().filter(|_| noise.is_none());
        let settings = settings.and_then(|settings| model.device_draw(&settings));
        // The device needs its random numbers before the host has seen a distribution. If the draft ends early, some
        // are not used. They are independent of everything else, so nothing is biased.
        let units = settings.iter().flat_map(|_| 0..count).map(|_| unit(rng)).collect();
        Self { settings, units, n_vocab }
    }

    /// Runs a chain with these draws. `None` if the device cannot choose.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn run(
        &self,
        model: &mut dyn LanguageModel,
        chain: ChainInput<'_>,
    ) -> Result<Option<DeviceChain>> {
        let draw = |settings| ChainDraws { settings, n_vocab: self.n_vocab, units: &self.units };
        model.device_chain(ChainInput { draws: self.settings.map(draw), ..chain })
    }
}

/// Returns the logits after token number `at` of a device's chain. `None` if the drafted token is another one.
pub(super) fn after_guess(chain: &DeviceChain, at: usize, token: TokenId) -> Option<Vec<f32>> {
    let has_row = at + 1 < chain.logits.len() && chain.tokens.get(at) == Some(&token);
    has_row.then(|| chain.logits.row(at + 1).to_vec())
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

impl<'a> ChainDraft<'a> {
    /// Creates the inputs from those of a proposal, with random numbers that were drawn beforehand.
    pub(super) fn new(cx: ProposeContext<'a>, units: Vec<f64>) -> Self {
        let ProposeContext { committed, plan, end_tokens, sampler, noise, rng, target } = cx;
        let n_vocab = target.info().n_vocab;
        Self { committed, plan, end_tokens, sampler, noise, rng, units: units.into(), n_vocab }
    }

    /// Drafts at most `depth` tokens (at least 1).
    ///
    /// `logits` follow the committed tokens. `read` returns the logits after each drafted token but the last, or `None`
    /// to end the draft. On an error the tokens drafted so far are returned with it: discarding sampled tokens would
    /// bias the output.
    pub(super) fn grow(
        mut self,
        depth: usize,
        logits: Vec<f32>,
        read: impl FnMut(TokenId) -> Result<Option<Vec<f32>>>,
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
        mut read: impl FnMut(TokenId) -> Result<Option<Vec<f32>>>,
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
            let Some(next) = read(token)? else { return Ok(()) };
            logits = next;
        }
    }
}
