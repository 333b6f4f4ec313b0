//! The model as the round loop sees it: one trait, and the types that a forward pass takes and gives.
//! No weights, no device and no file here; [`table`](crate::table) is the model that tests use.

use crate::error::Result;
use crate::token::TokenId;
pub use crate::vocab_subset::VocabSubset;

/// Name and shape of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its own name, as a person would say it.
    pub name: String,
    /// Family of its architecture, as "qwen2".
    pub architecture: String,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Tokens in the vocabulary: the width of a row of logits.
    pub n_vocab: usize,
    /// Longest sequence, in tokens.
    pub context_length: usize,
}

/// Visibility among the rows of one pass. Unless it says otherwise every row sees the whole cache before the pass.
#[derive(Clone, Copy, Debug)]
pub enum RowLayout<'a> {
    /// Row i sees rows 0..=i; its position is `cache_len + i`.
    Chain,
    /// Row i sees its ancestors and itself. `parents[i] < i`, or `None` for a row that follows the
    /// cache directly; its position is `cache_len + depth`.
    Tree {
        /// The parent row of each row.
        parents: &'a [Option<usize>],
    },
    /// Row i sees the cache slots before `since`. Of the slots from there on, which are those that earlier
    /// passes left unsettled and then one for each row, it sees slot `since + j` where bit j of `visible[i]`
    /// is set: at most 64 slots, its own bit set, none after. Its position is `since + depths[i]`.
    Custom {
        /// Slots that every row sees; at most `cache_len`.
        since: usize,
        /// Distance of each row's position from `since`.
        depths: &'a [usize],
        /// One bit set per row.
        visible: &'a [u64],
    },
}

/// Which layers a pass runs.
#[derive(Clone, Copy, Debug, Default)]
pub enum LayerPlan<'a> {
    /// All of them.
    #[default]
    All,
    /// The first n, then the output norm and head (early exit).
    Exit(usize),
    /// All but these (sorted layer numbers).
    Skip(&'a [usize]),
}

/// For which rows a pass computes logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// Every row.
    All,
    /// The last row only.
    Last,
    /// No row (prefill).
    None,
}

/// One forward pass. Its rows are appended to the cache provisionally: truncate or keep rows after.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The input tokens, one a row; not empty.
    pub tokens: &'a [TokenId],
    /// How the rows see each other.
    pub layout: RowLayout<'a>,
    /// Which layers run.
    pub layers: LayerPlan<'a>,
    /// For which rows logits are wanted.
    pub logits: LogitRows,
    /// The tokens whose logits are wanted, `None` = all. What the others get is minus infinity, or
    /// their logit where a device has it anyway.
    pub among: Option<&'a VocabSubset>,
    /// Layers after which the residual stream is wanted, for every row.
    pub taps: &'a [usize],
}

impl<'a> Step<'a> {
    /// A causal chain through all layers, without taps.
    pub fn chain(tokens: &'a [TokenId], logits: LogitRows) -> Self {
        Self { tokens, layout: RowLayout::Chain, layers: LayerPlan::All, logits, among: None, taps: &[] }
    }
}

/// Rows of f32 of one width, row-major: logits `[rows, vocab]`, hidden states `[rows, n_embd]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    width: usize,
    data: Vec<f32>,
}

impl Rows {
    /// Rows of `width` over `data`.
    ///
    /// # Panics
    /// If `data` does not divide into rows of `width`.
    pub fn new(width: usize, data: Vec<f32>) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "data divides into rows");
        Self { width, data }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.data.len().checked_div(self.width).unwrap_or(0)
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The values of all rows.
    pub fn into_values(self) -> Vec<f32> {
        self.data
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..(i + 1) * self.width]
    }
}

/// What a forward pass gives back.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// `[rows, vocab]`: all rows, the last, or none, as [`Step::logits`] asked.
    pub logits: Rows,
    /// One `[rows, n_embd]` for each of [`Step::taps`], in that order.
    pub taps: Vec<Rows>,
}

/// What a model takes of the memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// Its weights, which its twins share.
    pub weights: usize,
    /// Of these, what a pass of one row reads.
    pub read_by_a_pass: usize,
    /// Of these, the head: a pass that scores some tokens reads as much less of it.
    pub head: usize,
    /// Its own cache.
    pub cache: usize,
}

/// A language model with a cache: the only thing the round loop and the proposers know of a model.
pub trait LanguageModel: Send {
    /// Name and shape of the model.
    fn info(&self) -> &ModelInfo;
    /// Rows in the cache.
    fn cache_len(&self) -> usize;
    /// The same model with an empty cache of its own: another sequence over the same weights.
    fn fork(&self) -> Box<dyn LanguageModel>;
    /// What it takes of the memory.
    fn memory(&self) -> ModelMemory;
    /// Rows of one pass over a prompt: how often prefill tells its progress and a cancel is seen.
    /// Small enough to answer within 100 ms, large enough for the device to be efficient.
    fn prefill_rows(&self) -> usize {
        32
    }
    /// Runs one pass. The rows are in the cache afterwards, `cache_len` grows by their number.
    ///
    /// # Errors
    /// When a token is outside the vocabulary, the step does not fit the context, or the device
    /// fails; the cache is then as it was.
    fn forward(&mut self, step: Step<'_>) -> Result<StepOutput>;
    /// Forgets every cache row from `len` on, in O(1). A `len` past the end changes nothing.
    ///
    /// # Errors
    /// When the device fails.
    fn truncate(&mut self, len: usize) -> Result<()>;
    /// Keeps the cache rows `base + rows[i]` (ascending) as the new tail after `base` and forgets
    /// the other rows from `base` on: a tree path becomes contiguous.
    ///
    /// # Errors
    /// When a row does not exist or the device fails.
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()>;
}
