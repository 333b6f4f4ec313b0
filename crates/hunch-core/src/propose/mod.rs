//! Proposers: every way to guess what comes next. One trait; a file per method. A proposer never
//! decides acceptance, never commits a token and leaves the target's cache as it found it.

mod chain;
pub mod draft_model;
pub mod draft_tree;
pub mod layer_skip;
pub mod lookahead;
pub mod ngram;
mod shortlist;
pub mod suffix;
pub mod synthetic;

use std::ops::ControlFlow;

use rand::RngCore;

use crate::depth::DraftPlan;
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::method::Method;
use crate::model::{LanguageModel, StepOutput};
use crate::rule::PositionNoise;
use crate::sample::Sampler;
use crate::token::TokenId;
use draft_tree::TreeShape;

/// What some methods can be told besides how deep to draft; the others ignore it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MethodOptions {
    /// How the trees of `draft-tree` branch.
    pub tree: TreeShape,
    /// After how many layers `early-exit` leaves; `None` = after the usual share.
    pub exit_layer: Option<usize>,
    /// The layers that `layer-skip` leaves out; `None` = the usual ones.
    pub skipped_layers: Option<Vec<usize>>,
    /// The share of its tokens that `synthetic` gets right, from 0 to 1.
    pub synthetic_acceptance: f64,
}

/// What a proposer wants from a target pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetDemand {
    /// Layers of the target whose residual stream it reads.
    pub taps: Vec<usize>,
    /// Rows of its own, which are not part of the draft.
    pub aux: AuxRows,
}

/// Rows that ride along in a target pass: a tree behind the root that nobody verifies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxRows {
    /// Their tokens.
    pub tokens: Vec<TokenId>,
    /// Their parents among themselves; `None` is the root.
    pub parents: Vec<Option<usize>>,
}

impl AuxRows {
    /// How many.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// What a proposer may look at when it proposes.
pub struct ProposeContext<'a> {
    /// Every committed token: prompt and answer. The last one has no row in the target's cache yet.
    pub committed: &'a [TokenId],
    /// How far to draft; at least one token.
    pub plan: DraftPlan,
    /// Tokens that end the answer: nothing behind one is worth guessing.
    pub end_tokens: &'a [TokenId],
    /// The sampling rules of this generation: p and q come from the same function.
    pub sampler: &'a Sampler,
    /// The noise to draft by, in place of random numbers, where a rule couples draft and target.
    pub noise: Option<PositionNoise>,
    /// The generation's own random numbers.
    pub rng: &'a mut dyn RngCore,
    /// The target, for methods that draft with parts of it. Its cache length must be restored.
    pub target: &'a mut dyn LanguageModel,
}

/// What became of a proposal.
#[derive(Clone, Copy)]
pub struct RoundOutcome<'a> {
    /// The nodes of the proposed tree on the accepted path, from the root on.
    pub accepted: &'a [usize],
    /// Those of them, from the first on, that are part of the text: an end token is not.
    pub kept: &'a [usize],
    /// Every committed token after this round.
    pub committed: &'a [TokenId],
    /// What the target pass gave back: row 0 is the last token committed before the round, row
    /// `i + 1` is node i of the tree.
    pub target: &'a StepOutput,
    /// The first of the rows that rode along.
    pub aux_start: usize,
}

/// A way to guess.
pub trait Proposer: Send {
    /// Which method this is.
    fn method(&self) -> Method;
    /// What it wants from the pass that verifies its last proposal.
    fn demand(&self) -> TargetDemand {
        TargetDemand::default()
    }
    /// How many rows of its own it usually wants.
    fn extra_rows(&self) -> usize {
        0
    }
    /// How deep its drafts can be at all: what is expected of deeper ones is not to be believed.
    fn max_depth(&self) -> usize {
        MAX_DRAFT
    }
    /// Whether its drafts are trees: then [`DraftPlan::max_draft`] bounds their nodes, and their depth apart.
    fn is_tree(&self) -> bool {
        false
    }
    /// Starts a generation: forget what belonged to the last one, if anything did. `prompt` is the whole
    /// prompt. Quick: what takes time is left to [`read`](Self::read).
    fn begin(&mut self, prompt: &[TokenId]) {
        let _ = prompt;
    }
    /// Forgets what earlier answers have taught it: asked before [`begin`](Self::begin) where the text depends on the
    /// drafts and a seed is to repeat it.
    fn reset_stats(&mut self) {}
    /// Returns to the state of a proposer that has read nothing: called when it failed, before it is asked again
    /// in a later answer.
    fn reset(&mut self) {
        self.reset_stats();
    }
    /// Takes the error that cut the last draft short. The tokens drafted before it are part of the draft, because
    /// dropping tokens that were drawn by chance would bias the answer.
    fn take_failure(&mut self) -> Option<Error> {
        None
    }
    /// How many committed tokens a model of its own has not read yet, the last one not counted.
    fn pending_len(&self, committed: &[TokenId]) -> usize {
        let _ = committed;
        0
    }
    /// Lets a model of its own read all committed tokens but the last. Asks `go_on` after each of its
    /// passes, and gives `Break` when that says so; what was read stays read.
    ///
    /// # Errors
    /// When a model of its own fails.
    fn prefill(
        &mut self,
        committed: &[TokenId],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let _ = (committed, go_on);
        Ok(ControlFlow::Continue(()))
    }
    /// The rows of every pass that a model ran for it since this was asked last: what its drafts cost.
    /// Nothing where drafts are looked up.
    fn take_pass_log(&mut self) -> Vec<usize> {
        Vec::new()
    }
    /// Proposes a continuation of the committed tokens. An empty tree = nothing now: a plain step.
    /// A proposer with a cache of its own catches it up from `committed` here, if it was not asked to
    /// [`read`](Self::read) before.
    ///
    /// # Errors
    /// When a model of its own fails before a token was drafted; later see [`take_failure`](Self::take_failure).
    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree>;
    /// Learns what became of its proposal, if it wants to.
    ///
    /// # Errors
    /// When a model of its own fails.
    fn accept(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        let _ = outcome;
        Ok(())
    }
}
