//! The model interface of the round loop: one trait, and the input and output of a forward pass.
//!
//! No weights, device or file access lives here. [`table`](crate::table) is the implementation for
//! tests.

pub use crate::draft_window::DraftWindow;
use crate::error::Result;
use crate::sample::DrawSettings;
use crate::token::TokenId;
pub use crate::vocab_subset::VocabSubset;

/// Name and dimensions of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelInfo {
    /// Display name.
    pub name: String,
    /// Architecture family, such as "qwen2".
    pub architecture: String,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Tokens in the vocabulary: the width of a row of logits.
    pub n_vocab: usize,
    /// Maximum sequence length, in tokens.
    pub context_length: usize,
}

/// Attention mask and positions of the rows of one pass.
#[derive(Clone, Copy, Debug)]
pub enum RowLayout<'a> {
    /// Row i sees the whole cache and rows 0..=i. Its position is `cache_len + i`.
    Chain,
    /// Row i sees the whole cache, its ancestors and itself. Its position is `cache_len + depth`.
    /// `parents[i] < i`, or `None` for a row that follows the cache directly.
    Tree {
        /// The parent row of each row.
        parents: &'a [Option<usize>],
    },
    /// An explicit mask over the newest cache slots.
    ///
    /// Row i sees all cache slots before `since`. The slots from `since` on are the provisional rows
    /// of earlier passes, then one slot per row of this pass; at most 64 in total. Row i sees slot
    /// `since + j` if bit j of `visible[i]` is set. Its own bit is set and no later one. Its position
    /// is `since + depths[i]`.
    Custom {
        /// Number of slots that every row sees; at most `cache_len`.
        since: usize,
        /// Distance of each row's position from `since`.
        depths: &'a [usize],
        /// One bit set per row; bit j stands for slot `since + j`.
        visible: &'a [u64],
    },
}

/// Layers that a pass runs.
#[derive(Clone, Copy, Debug, Default)]
pub enum LayerPlan<'a> {
    /// All layers.
    #[default]
    All,
    /// The first n, then the output norm and head (early exit).
    Exit(usize),
    /// All layers but the listed ones (sorted indices).
    Skip(&'a [usize]),
}

/// Rows whose logits a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// Every row.
    All,
    /// The last row only.
    Last,
    /// No row (prefill).
    None,
}

/// Input of one forward pass. Its rows join the cache provisionally: truncate or keep rows afterwards.
#[derive(Clone, Copy, Debug)]
pub struct PassInput<'a> {
    /// Input tokens, one per row; not empty.
    pub tokens: &'a [TokenId],
    /// Attention mask and positions of the rows.
    pub layout: RowLayout<'a>,
    /// Layers to run.
    pub layers: LayerPlan<'a>,
    /// Part of the cache that the rows see, of what `layout` shows them. `None` is all.
    pub window: Option<DraftWindow>,
    /// Rows to compute logits for.
    pub logits: LogitRows,
    /// Tokens to compute logits for; `None` is the whole vocabulary. Other tokens get minus infinity,
    /// or their logit if the device computes it anyway.
    pub vocab_subset: Option<&'a VocabSubset>,
    /// Layers after which to return the residual stream of every row.
    pub taps: &'a [usize],
}

impl<'a> PassInput<'a> {
    /// A causal chain through all layers, over the whole vocabulary and without taps.
    pub fn chain(tokens: &'a [TokenId], logits: LogitRows) -> Self {
        Self {
            tokens,
            layout: RowLayout::Chain,
            layers: LayerPlan::All,
            window: None,
            logits,
            vocab_subset: None,
            taps: &[],
        }
    }
}

/// Row-major matrix of f32: logits `[rows, n_vocab]` or hidden states `[rows, n_embd]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    width: usize,
    data: Vec<f32>,
}

impl Rows {
    /// Splits `data` into rows of `width`.
    ///
    /// # Panics
    /// If the length of `data` is not a multiple of `width`, or `width` is 0.
    pub fn new(width: usize, data: Vec<f32>) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "the data must divide into rows");
        Self { width, data }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.data.len().checked_div(self.width).unwrap_or(0)
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the values of all rows, row by row.
    pub fn into_values(self) -> Vec<f32> {
        self.data
    }

    /// Returns row `i`. Panics if it does not exist.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..(i + 1) * self.width]
    }
}

/// Output of a forward pass.
#[derive(Clone, Debug, Default)]
pub struct PassOutput {
    /// `[rows, n_vocab]` for the rows that [`PassInput::logits`] selects.
    pub logits: Rows,
    /// One `[rows, n_embd]` per entry of [`PassInput::taps`], in that order.
    pub taps: Vec<Rows>,
}

/// Tokens that a device chose one after the other.
#[derive(Clone, Debug, Default)]
pub struct DeviceChain {
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// `[tokens, n_vocab]`: the logits that each token was chosen from.
    pub logits: Rows,
}

/// Input of a [`DeviceChain`].
#[derive(Clone, Copy, Debug)]
pub struct ChainInput<'a> {
    /// Tokens to run first, at least one.
    pub tokens: &'a [TokenId],
    /// Number of tokens to choose.
    pub count: usize,
    /// Layers of every row.
    pub layers: LayerPlan<'a>,
    /// Part of the cache that every row sees; `None` for all of it.
    pub window: Option<DraftWindow>,
    /// Draws of the tokens; `None` takes the most likely ones.
    pub draws: Option<ChainDraws<'a>>,
}

impl<'a> ChainInput<'a> {
    /// Creates the input of the most likely tokens, through all layers and the whole cache.
    pub fn new(tokens: &'a [TokenId], count: usize) -> Self {
        Self { tokens, count, layers: LayerPlan::All, window: None, draws: None }
    }
}

/// Random draws of the tokens of a [`DeviceChain`].
#[derive(Clone, Copy, Debug)]
pub struct ChainDraws<'a> {
    /// Settings of the draws.
    pub settings: DrawSettings,
    /// Number of tokens drawn from, from the first on. At most the model's vocabulary.
    pub n_vocab: usize,
    /// A random number in `[0, 1)` for each token of the chain.
    pub units: &'a [f64],
}

/// Memory use of a model in bytes, and the number of its weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// Weights. Forks share them.
    pub weights: usize,
    /// Weights read by a pass of one row. More rows may read more experts of a mixture.
    pub read_by_a_pass: usize,
    /// Output head, part of `read_by_a_pass`. A pass over a vocabulary subset reads that share of it.
    pub head: usize,
    /// Number of weights read by a pass of one row, whatever their quantisation. 0 if unknown.
    pub row_weights: usize,
    /// Number of weights of the output head, part of `row_weights`.
    pub head_weights: usize,
    /// KV cache of this instance.
    pub cache: usize,
    /// KV cache of a token, in a long context. 0 if unknown.
    pub cache_per_token: usize,
}

/// Experts of a pass of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertUse {
    /// Experts of a layer.
    pub count: usize,
    /// Experts of a row.
    pub used: usize,
    /// Different experts that the rows of the pass used, as a mean over layers.
    pub distinct: f64,
}

/// A language model with a KV cache, as seen by the round loop and the proposers.
pub trait LanguageModel: Send {
    /// Returns the name and dimensions of the model.
    fn info(&self) -> &ModelInfo;
    /// Returns the number of rows in the cache.
    fn cache_len(&self) -> usize;
    /// Returns an instance with the same weights and an empty cache of its own.
    fn fork(&self) -> Box<dyn LanguageModel>;
    /// Returns the memory use.
    fn memory(&self) -> ModelMemory;
    /// Returns the experts of the last pass. `None` if the model has none, or the device does not count them.
    fn expert_use(&self) -> Option<ExpertUse> {
        None
    }
    /// Returns the number of cache rows that a text takes, from its first token on.
    fn rows_of(&self, text: &[TokenId]) -> usize {
        text.len()
    }
    /// Returns the rows per prefill pass, which is the interval of progress and cancel checks.
    ///
    /// Small enough for a pass of 100 ms or less, large enough for the device to be efficient.
    fn prefill_rows(&self) -> usize {
        32
    }
    /// Runs one pass and appends its rows to the cache.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, the step does not fit the context, or the device fails.
    /// The cache is then unchanged.
    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput>;
    /// Returns the settings closest to these with which [`device_chain`](Self::device_chain) can draw tokens. `None` if
    /// it draws none.
    fn device_draw(&self, _settings: &DrawSettings) -> Option<DrawSettings> {
        None
    }
    /// Runs tokens, and then one row for each token but the last that it chooses.
    ///
    /// The device chooses the most likely token, and of equal ones the lowest. With `draws`, it inverts the cumulative
    /// sum of probabilities at the random number of each token, in its own arithmetic. That is a guess of
    /// [`draw`](crate::sample::draw): the caller draws from the logits, and ends its draft at the first other token.
    ///
    /// Returns `None`, with the cache unchanged, if the device cannot choose. A device that can waits once for the
    /// whole chain.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn device_chain(&mut self, _chain: ChainInput<'_>) -> Result<Option<DeviceChain>> {
        Ok(None)
    }
    /// Drops all cache rows from `len` on. A `len` past the end changes nothing.
    ///
    /// The next pass continues as if the dropped rows had never run. This takes no time for attention. A model with
    /// layers that have a state holds it for the last rows, so that rejected drafts take none either. For an earlier
    /// `len` it may run some of the tokens before it again.
    ///
    /// # Errors
    /// If the device fails.
    fn truncate(&mut self, len: usize) -> Result<()>;
    /// Keeps the cache rows `base + rows[i]` (ascending) as the tail after `base` and drops all other
    /// rows from `base` on. This makes a path of a tree contiguous.
    ///
    /// # Errors
    /// If a row does not exist or the device fails.
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()>;
}
