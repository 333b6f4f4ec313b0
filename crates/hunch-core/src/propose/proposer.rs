//! The [`Proposer`] trait, its inputs and its feedback.

use std::ops::ControlFlow;

use rand::RngCore;
use serde::{Deserialize, Serialize};

use super::draft_tree::TreeShape;
use super::{Method, OptionName};
use crate::depth::DraftPlan;
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::model::{DraftWindow, LanguageModel, PassOutput};
use crate::rule::PositionNoise;
use crate::sample::Sampler;
use crate::token::TokenId;

/// Method-specific options. Methods ignore the options of others. Fields that are left out have their default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct MethodOptions {
    /// Tree shape of `draft-tree` and `head-tree`.
    #[serde(skip_serializing_if = "TreeShape::is_dynamic")]
    #[cfg_attr(feature = "ts", ts(as = "Option<TreeShape>", optional))]
    pub tree: TreeShape,
    /// Number of layers that `early-exit` runs; `None` is the default share.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "ts", ts(optional))]
    pub exit_layer: Option<usize>,
    /// Layers that `layer-skip` skips; `None` is the default set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "ts", ts(optional))]
    pub skipped_layers: Option<Vec<usize>>,
    /// Part of the cache that draft models and the target's own layers read when they draft; `None` is all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "ts", ts(optional))]
    pub draft_window: Option<DraftWindow>,
    /// Fraction of correct tokens of `synthetic`, from 0 to 1.
    #[serde(skip)]
    pub synthetic_acceptance: f64,
}

impl MethodOptions {
    /// Returns whether all options have their default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the options that change the drafts of a method, and the default of the others.
    pub fn read_by(&self, method: Method) -> Self {
        let mut read = Self { synthetic_acceptance: self.synthetic_acceptance, ..Self::default() };
        for name in method.options() {
            match name {
                OptionName::Tree => read.tree = self.tree.clone(),
                OptionName::ExitLayer => read.exit_layer = self.exit_layer,
                OptionName::SkippedLayers => read.skipped_layers = self.skipped_layers.clone(),
                OptionName::DraftWindow => read.draft_window = self.draft_window,
            }
        }
        read
    }
}

/// Auxiliary rows of a target pass: a tree below the root that is not verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxRows {
    /// Tokens, one per row.
    pub tokens: Vec<TokenId>,
    /// Parent of each row within these rows; `None` is the root.
    pub parents: Vec<Option<usize>>,
}

impl AuxRows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Inputs of a proposal.
pub struct ProposeContext<'a> {
    /// All committed tokens, prompt and answer. The last one has no row in the target's cache yet.
    pub committed: &'a [TokenId],
    /// Limits of the draft. [`DraftPlan::max_draft`] is at least 1.
    pub plan: DraftPlan,
    /// Tokens that end the answer. Drafting past one is useless.
    pub end_tokens: &'a [TokenId],
    /// Sampler of this generation. Target and draft use the same one.
    pub sampler: &'a Sampler,
    /// Noise to sample with instead of `rng`, under the coupled rule.
    pub noise: Option<PositionNoise>,
    /// Random numbers of this generation.
    pub rng: &'a mut dyn RngCore,
    /// The target, for methods that draft with parts of it. Restore its cache length before returning.
    pub target: &'a mut dyn LanguageModel,
}

/// Outcome of a round, as reported to a proposer.
#[derive(Clone, Copy)]
pub struct RoundOutcome<'a> {
    /// Nodes of the draft tree on the accepted path, from the root on.
    pub accepted: &'a [usize],
    /// Prefix of `accepted` that was committed. An end token and what follows it is not.
    pub kept: &'a [usize],
    /// All committed tokens after this round.
    pub committed: &'a [TokenId],
    /// Output of the target pass. Row 0 is the root and row `i + 1` is node i of the tree.
    pub target: &'a PassOutput,
    /// Layers of the taps in `target`: all that any proposer of the session reads.
    pub tap_layers: &'a [usize],
    /// Rows of `target` that produced the new committed tokens, in the order of the text, whichever proposer
    /// drafted. The target's cache keeps these rows. Empty if nothing was committed.
    pub path: &'a [usize],
    /// Index of the first auxiliary row in `target`.
    pub aux_start: usize,
}

impl RoundOutcome<'_> {
    /// Returns the residual stream `[n_embd]` after a layer at a row of `target`; `None` if it was not tapped.
    pub fn tap(&self, layer: usize, row: usize) -> Option<&[f32]> {
        let at = self.tap_layers.iter().position(|&tapped| tapped == layer)?;
        self.target.taps.get(at).map(|rows| rows.row(row))
    }
}

/// A drafting method.
///
/// Only [`method`](Self::method) and [`propose`](Self::propose) are required. The defaults suit a
/// proposer without a model of its own.
pub trait Proposer: Send {
    /// Returns its variant in the registry.
    fn method(&self) -> Method;
    /// Returns the auxiliary rows of the pass that verifies the last proposal.
    fn aux_rows(&self) -> AuxRows {
        AuxRows::default()
    }
    /// Returns its taps: layers of the target whose residual stream (hidden states) it reads in
    /// [`observe`](Self::observe), after every pass.
    fn taps(&self) -> &[usize] {
        &[]
    }
    /// Returns whether [`observe`](Self::observe) also needs the rows of the prompt. Then the prompt is run with taps.
    fn reads_prompt(&self) -> bool {
        false
    }
    /// Returns how many of the first `rows` rows of the target's cache need not be run again for this prompt. The
    /// others are run with taps. Called before [`begin`](Self::begin).
    fn reusable_rows(&self, prompt: &[TokenId], rows: usize) -> usize {
        let _ = prompt;
        rows
    }
    /// Returns the usual number of auxiliary rows, for cost estimates.
    fn extra_rows(&self) -> usize {
        0
    }
    /// Returns the maximum depth of its drafts, to bound the depth controller's predictions.
    fn max_depth(&self) -> usize {
        MAX_DRAFT
    }
    /// Returns whether it drafts with passes of a model, not with lookups.
    fn drafts_with_model(&self) -> bool {
        self.method().drafter().is_some()
    }
    /// Returns whether one pass of its model drafts all tokens. Then a longer draft takes no more passes.
    fn drafts_in_one_pass(&self) -> bool {
        false
    }
    /// Returns whether [`DraftPlan::max_draft`] limits the nodes of its drafts, not their depth.
    fn limits_nodes(&self) -> bool {
        false
    }
    /// Starts a generation with this prompt and discards state of the previous one.
    ///
    /// Must be fast. Work on the prompt belongs in [`prefill`](Self::prefill).
    fn begin(&mut self, prompt: &[TokenId]) {
        let _ = prompt;
    }
    /// Resets statistics learned from earlier generations.
    ///
    /// Called before [`begin`](Self::begin) if the text depends on the drafts, so that a seed repeats
    /// it.
    fn reset_stats(&mut self) {}
    /// Resets to the state before any token was read. Called after a failure, before the next
    /// generation.
    fn reset(&mut self) {
        self.reset_stats();
    }
    /// Takes the error that ended the last draft early.
    ///
    /// Tokens drafted before the error stay in the draft: discarding sampled tokens would bias the
    /// output.
    fn take_failure(&mut self) -> Option<Error> {
        None
    }
    /// Returns how many committed tokens its own model has yet to read, not counting the last.
    fn unread_len(&self, committed: &[TokenId]) -> usize {
        let _ = committed;
        0
    }
    /// Returns how many tokens its own model can draft after these. It is 0 once its context is full, or if it lacks
    /// one of them.
    fn room(&self, committed: &[TokenId]) -> usize {
        let _ = committed;
        usize::MAX
    }
    /// Returns the rows of a prefill pass of its own model; 0 without one. A text of fewer rows is read by
    /// [`propose`](Self::propose).
    fn prefill_rows(&self) -> usize {
        0
    }
    /// Runs its own model over all committed tokens but the last.
    ///
    /// Calls `should_continue` after each pass and returns `Break` if that does. Rows already read are
    /// kept.
    ///
    /// # Errors
    /// If its model fails.
    fn prefill(
        &mut self,
        committed: &[TokenId],
        should_continue: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let _ = (committed, should_continue);
        Ok(ControlFlow::Continue(()))
    }
    /// Takes the row count of every pass run for it since the last call: the cost of its drafts. Empty
    /// if drafts are looked up. A pass that drafts all tokens has a row for each of them.
    fn take_pass_log(&mut self) -> Vec<usize> {
        Vec::new()
    }
    /// Drafts a continuation of the committed tokens. An empty tree makes the round a plain step.
    ///
    /// A proposer with its own cache first catches up with `committed`, unless
    /// [`prefill`](Self::prefill) did.
    ///
    /// # Errors
    /// If its model fails before the first drafted token. For later failures see
    /// [`take_failure`](Self::take_failure).
    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree>;
    /// Learns from the outcome of a round, or from a pass without a draft.
    ///
    /// # Errors
    /// If its model fails.
    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        let _ = outcome;
        Ok(())
    }
}

/// Returns the layers that any of some proposers reads, ascending.
pub(crate) fn taps_of<'p>(proposers: impl Iterator<Item = &'p (dyn Proposer + 'p)>) -> Vec<usize> {
    let mut taps: Vec<usize> = proposers.flat_map(Proposer::taps).copied().collect();
    taps.sort_unstable();
    taps.dedup();
    taps
}
