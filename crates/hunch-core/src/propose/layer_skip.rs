//! Self-speculation without training: the target drafts with some of its own layers.
//!
//! Either it exits early (its first layers and the head) or it skips layers (Draft & Verify, Zhang et
//! al., arXiv 2309.08168). There is no second model and no second cache. Draft passes append to the
//! target's cache, and their rows are dropped before verification.

use std::fmt;
use std::str::FromStr;

use super::chain::{ChainDraft, DeviceDraws, after_guess};
use super::shortlist::Shortlist;
use super::{Method, MethodOptions, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::model::{ChainInput, DraftWindow, LayerPlan, LogitRows, ModelInfo, PassInput, VocabSubset};
use crate::token::TokenId;

/// Layers that draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftLayers {
    /// The first n layers.
    Exit(usize),
    /// All but the listed layers, ascending.
    Skip(Vec<usize>),
}

impl DraftLayers {
    /// The default early exit: after two thirds of the layers.
    pub fn default_exit(n_layer: usize) -> Self {
        Self::Exit((n_layer * 2 / 3).max(1))
    }

    /// The default skipped layers: every second one of the middle half.
    pub fn default_skip(n_layer: usize) -> Self {
        // At least one layer must remain.
        let end = (n_layer - n_layer / 4).min(n_layer.saturating_sub(1));
        Self::Skip((n_layer / 4..end).step_by(2).collect())
    }

    /// Returns the layers of `early-exit` in a target with `n_layer` layers.
    pub fn early_exit(options: &MethodOptions, n_layer: usize) -> Self {
        options.exit_layer.map_or_else(|| Self::default_exit(n_layer), Self::Exit)
    }

    /// Returns the layers of `layer-skip` in a target with `n_layer` layers.
    pub fn skip(options: &MethodOptions, n_layer: usize) -> Self {
        options.skipped_layers.clone().map_or_else(|| Self::default_skip(n_layer), Self::Skip)
    }

    fn plan(&self) -> LayerPlan<'_> {
        match self {
            Self::Exit(first) => LayerPlan::Exit(*first),
            Self::Skip(skipped) => LayerPlan::Skip(skipped),
        }
    }
}

/// Layer indices in text form: `3,5,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerList(pub Vec<usize>);

impl fmt::Display for LayerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&layers.join(","))
    }
}

impl FromStr for LayerList {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let layer = |part: &str| part.trim().parse().map_err(|_| format!("\"{part}\" is not a layer number"));
        let mut layers: Vec<usize> = text.split(',').map(layer).collect::<std::result::Result<_, _>>()?;
        layers.sort_unstable();
        layers.dedup();
        Ok(Self(layers))
    }
}

/// Proposer that drafts with some of the target's layers.
#[derive(Debug)]
pub struct LayerSkip {
    layers: DraftLayers,
    /// Part of the target's cache that drafts read; `None` is all of it.
    window: Option<DraftWindow>,
    shortlist: Shortlist,
    /// Rows of each pass since the last `take_pass_log`.
    pass_rows: Vec<usize>,
    /// Error that ended the last draft early.
    failure: Option<Error>,
}

impl LayerSkip {
    /// Creates the proposer for a target with `n_vocab` tokens.
    pub fn new(layers: DraftLayers, n_vocab: usize) -> Self {
        let shortlist = Shortlist::new(n_vocab);
        Self { layers, window: None, shortlist, pass_rows: Vec::new(), failure: None }
    }

    /// Creates the proposer for a target.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the target lacks a layer, or none is left to draft with.
    pub fn of(layers: DraftLayers, target: &ModelInfo) -> Result<Self> {
        if !fits(&layers, target.n_layer) {
            let (name, n_layer) = (&target.name, target.n_layer);
            return Err(Error::invalid(match layers {
                DraftLayers::Exit(_) => {
                    format!("{name} has {n_layer} layers. The first 1 to {n_layer} can draft.")
                }
                DraftLayers::Skip(_) => format!(
                    "{name} has layers 0 to {}. Leave at least one of them to draft with.",
                    n_layer - 1
                ),
            }));
        }
        Ok(Self::new(layers, target.n_vocab))
    }

    /// Returns the layers that draft.
    pub fn layers(&self) -> LayerPlan<'_> {
        self.layers.plan()
    }

    /// Sets the part of the target's cache that drafts read; `None` is all of it.
    pub fn set_window(&mut self, window: Option<DraftWindow>) {
        self.window = window;
    }

    /// Returns the tokens scored after `text`, out of `n_vocab`; `None` is all.
    pub fn tokens_after(text: &[TokenId], n_vocab: usize) -> Option<VocabSubset> {
        Shortlist::after(text, n_vocab)
    }
}

impl Proposer for LayerSkip {
    fn method(&self) -> Method {
        match self.layers {
            DraftLayers::Exit(_) => Method::EarlyExit,
            DraftLayers::Skip(_) => Method::LayerSkip,
        }
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.shortlist.clear();
        self.shortlist.observe(prompt);
        self.pass_rows.clear();
        self.failure = None;
    }

    fn take_pass_log(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.pass_rows)
    }

    fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let ProposeContext { committed, plan, end_tokens, sampler, noise, rng, target } = cx;
        self.shortlist.observe(&committed[self.shortlist.observed().min(committed.len())..]);
        let (Some(&last), depth) = (committed.last(), plan.max_draft) else {
            return Ok(DraftTree::new());
        };
        if depth == 0 {
            return Ok(DraftTree::new());
        }
        let (base, n_vocab) = (target.cache_len(), target.info().n_vocab);
        let Self { window, ref mut pass_rows, .. } = *self;
        let (layers, vocab_subset) = (self.layers.plan(), self.shortlist.tokens());
        let choice = DeviceDraws::new(target, sampler, noise, depth, n_vocab, rng);
        let guessed = choice.run(target, ChainInput { layers, window, ..ChainInput::new(&[last], depth) })?;
        let units = choice.units.into();
        let chain = ChainDraft { committed, plan, end_tokens, sampler, noise, rng, units, n_vocab };
        let (tree, failure) = if let Some(guessed) = guessed {
            pass_rows.extend(std::iter::repeat_n(1, depth));
            let mut at = 0..;
            let read = |token| Ok(at.next().and_then(|at| after_guess(&guessed, at, token)));
            chain.grow(depth, guessed.logits.row(0).to_vec(), read)
        } else {
            let mut read = |token: TokenId| -> Result<Option<Vec<f32>>> {
                let token = [token];
                pass_rows.push(token.len());
                let step =
                    PassInput { layers, window, vocab_subset, ..PassInput::chain(&token, LogitRows::Last) };
                Ok(Some(target.forward(step)?.logits.into_values()))
            };
            let logits = read(last)?.unwrap_or_default();
            chain.grow(depth, logits, read)
        };
        self.failure = failure;
        target.truncate(base)?;
        Ok(tree)
    }
}

/// Returns whether the layers exist, are ascending, and leave at least one to draft with.
pub fn fits(layers: &DraftLayers, n_layer: usize) -> bool {
    match layers {
        DraftLayers::Exit(first) => (1..=n_layer).contains(first),
        DraftLayers::Skip(skipped) => {
            let exist = skipped.iter().all(|&layer| layer < n_layer);
            exist && skipped.len() < n_layer && skipped.windows(2).all(|pair| pair[0] < pair[1])
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::depth::DraftPlan;
    use crate::model::LanguageModel;
    use crate::sample::{Sampler, SamplingParams, argmax};
    use crate::table::{TableConfig, TableModel};

    #[test]
    fn drafts_argmax_of_its_layers_and_restores_cache() {
        let mut target = TableModel::new(TableConfig::default());
        target.forward(PassInput::chain(&[1, 2], LogitRows::None)).unwrap();
        for layers in [DraftLayers::Exit(2), DraftLayers::Skip(vec![1, 3]), DraftLayers::Skip(vec![])] {
            let mut proposer = LayerSkip::new(layers.clone(), 16);
            let cx = ProposeContext {
                committed: &[1, 2, 3],
                plan: DraftPlan::fixed(4),
                end_tokens: &[],
                sampler: &Sampler::new(SamplingParams::greedy()).unwrap(),
                noise: None,
                rng: &mut ChaCha8Rng::seed_from_u64(1),
                target: &mut target,
            };
            let tree = proposer.propose(cx).unwrap();
            assert_eq!((tree.len(), target.cache_len()), (4, 2));
            let mut tokens = vec![1, 2, 3];
            for &drafted in tree.tokens() {
                let mut model = TableModel::new(TableConfig::default());
                let step = PassInput { layers: layers.plan(), ..PassInput::chain(&tokens, LogitRows::Last) };
                assert_eq!(argmax(model.forward(step).unwrap().logits.row(0)), drafted, "{layers:?}");
                tokens.push(drafted);
            }
        }
    }

    /// Passes before and after a draft see the whole cache.
    #[test]
    fn only_drafts_see_the_window() {
        let config = TableConfig { order: 6, ..TableConfig::default() };
        let text: Vec<TokenId> = (0..12).collect();
        let mut target = TableModel::new(config.clone());
        target.forward(PassInput::chain(&text[..11], LogitRows::None)).unwrap();
        let window = Some(DraftWindow::new(2).unwrap());
        let mut proposer = LayerSkip::new(DraftLayers::Skip(Vec::new()), 16);
        proposer.set_window(window);
        let cx = ProposeContext {
            committed: &text,
            plan: DraftPlan::fixed(3),
            end_tokens: &[],
            sampler: &Sampler::new(SamplingParams::greedy()).unwrap(),
            noise: None,
            rng: &mut ChaCha8Rng::seed_from_u64(1),
            target: &mut target,
        };
        let tree = proposer.propose(cx).unwrap();
        let mut tokens = text.clone();
        for &drafted in tree.tokens() {
            let step = PassInput { window, ..PassInput::chain(&tokens, LogitRows::Last) };
            let logits = TableModel::new(config.clone()).forward(step).unwrap().logits;
            assert_eq!(argmax(logits.row(0)), drafted);
            tokens.push(drafted);
        }
        let next = target.forward(PassInput::chain(&[11], LogitRows::Last)).unwrap();
        assert_eq!(next.logits.row(0), target.logits_after(&text));
    }

    #[test]
    fn layer_lists_parse_and_validate() {
        assert_eq!("8, 3,5,3".parse(), Ok(LayerList(vec![3, 5, 8])));
        assert_eq!(LayerList(vec![3, 5]).to_string(), "3,5");
        assert!("3;5".parse::<LayerList>().is_err() && "".parse::<LayerList>().is_err());
        assert!(fits(&DraftLayers::default_exit(1), 1) && fits(&DraftLayers::default_skip(1), 1));
        for wrong in [DraftLayers::Exit(0), DraftLayers::Exit(5), DraftLayers::Skip(vec![4])] {
            assert!(!fits(&wrong, 4));
        }
        assert!(!fits(&DraftLayers::Skip(vec![0, 1]), 2));
    }
}
