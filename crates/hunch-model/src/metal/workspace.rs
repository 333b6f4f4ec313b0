//! Buffers that are kept from pass to pass. They grow with the rows of a pass and the length of the context.

use std::sync::Arc;

use super::activations::{Activations, ROW_STEP};
use super::gpu::{Buffer, Gpu};
use hunch_error::Result;
use hunch_kernels::{RowMask, Window};

/// Keys of a span of attention.
pub const SPAN: usize = 128;
/// Bytes in which the results of spans are kept, if those of [`ATTENTION_ROWS`] rows fit.
const ATTENTION_SPACE: usize = 256 << 20;
/// Slots in the list of a row of attention.
const TAIL: usize = 64;
/// Most rows that read the cache together. Passes that verify a draft have no more.
pub const ATTENTION_ROWS: usize = 16;

/// Keys that the rows of a pass see, and space for partial results of attention.
#[derive(Debug)]
pub struct AttentionSpace {
    /// Keys of each row.
    pub lengths: Buffer,
    /// Slots of the keys of each row after the first `base`, `[rows, TAIL]`.
    pub tails: Buffer,
    /// Keys that are in the slots of their positions.
    pub base: usize,
    /// Spans of the longest row.
    pub spans: usize,
    /// Keys of the shortest row.
    pub shortest: usize,
    /// Positions that the rows see. `None` for all.
    pub window: Option<Window>,
    /// Largest score and sum of weights of each head and span.
    pub stats: Buffer,
    /// Weighted values of each head and span.
    pub partial: Buffer,
    /// Rows whose results of spans fit at once.
    pub rows_at_once: usize,
}

impl AttentionSpace {
    /// Prepares the space of a pass for `queries` heads of a width, and writes what its rows see. `old` is the space of an
    /// earlier pass.
    ///
    /// # Errors
    /// If the GPU has not enough memory or fails.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        mask: &RowMask,
        queries: usize,
        width: usize,
        old: Option<Self>,
    ) -> Result<Self> {
        let rows = mask.rows();
        // A causal row sees every slot up to its own.
        let causal = mask.is_causal();
        let mut lengths = Vec::with_capacity(rows);
        let mut tails = vec![0u32; if causal { 1 } else { rows * TAIL }];
        for row in 0..rows {
            if causal {
                lengths.push((mask.base() + row + 1) as u32);
                continue;
            }
            let mut count = 0;
            for slot in mask.visible_tail(row) {
                tails[row * TAIL + count] = slot as u32;
                count += 1;
            }
            lengths.push((mask.base() + count) as u32);
        }
        let spans = lengths.iter().map(|n| (*n as usize).div_ceil(SPAN)).max().unwrap_or(0);
        let shortest = lengths.iter().copied().min().unwrap_or(0) as usize;
        let rows_at_once = attention_rows_at_once(rows, queries * spans * attention_result_bytes(width));
        let results = rows_at_once * queries * spans;
        let (stats, partial) = old.map_or((None, None), |old| (Some(old.stats), Some(old.partial)));
        Ok(Self {
            // New buffers, which no queued work can be reading.
            lengths: Buffer::with_words(gpu, &lengths)?,
            tails: Buffer::with_words(gpu, &tails)?,
            base: if causal { u32::MAX as usize } else { mask.base() },
            spans,
            shortest,
            window: mask.window(),
            stats: at_least(gpu, stats, results * 8)?,
            partial: at_least(gpu, partial, results * width * 4)?,
            rows_at_once,
        })
    }
}

/// Returns the bytes that attention keeps for a head and a span: weighted values of a width, the largest score and the sum
/// of weights.
pub fn attention_result_bytes(width: usize) -> usize {
    4 * width + 8
}

/// Returns the number of `rows` rows that attention takes at once, if a row needs some bytes. All that fit into
/// [`ATTENTION_SPACE`] are taken, and at least as many as verify a draft.
pub fn attention_rows_at_once(rows: usize, bytes_of_row: usize) -> usize {
    let fitting = ATTENTION_SPACE / bytes_of_row.max(1) / ATTENTION_ROWS * ATTENTION_ROWS;
    fitting.max(ATTENTION_ROWS).min(rows.max(1))
}

/// Buffers of the steps of a pass.
#[derive(Debug)]
pub(crate) struct Workspace {
    rows: usize,
    /// Residual stream.
    pub(crate) x: Buffer,
    /// Queries, keys and values.
    pub(crate) qkv: Buffer,
    /// Queries, if their norm spans all heads. Rows are as wide as those of `qkv`.
    pub(crate) queries: Option<Buffer>,
    /// Gates and ups.
    pub(crate) gates: Buffer,
    /// Output of a layer's part that is normed before it joins the residual stream.
    pub(crate) update: Option<Buffer>,
    /// Input of the next product.
    pub(crate) activations: Activations,
    /// Residual streams that were kept, then logits. Read at once.
    pub(crate) results: Option<Buffer>,
    /// Chosen tokens, then the logits that they were chosen from, once tokens were chosen.
    pub(crate) choices: Option<Buffer>,
}

/// Values of a row in each buffer of a [`Workspace`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widths {
    pub(crate) x: usize,
    pub(crate) qkv: usize,
    pub(crate) gates: usize,
    /// Most values of an input of a product.
    pub(crate) input: usize,
    /// Queries get a buffer of their own.
    pub(crate) has_queries: bool,
    /// Updates get a buffer of their own.
    pub(crate) has_updates: bool,
}

impl Workspace {
    /// Returns a workspace for `rows` rows: `old`, if it has as many.
    ///
    /// # Errors
    /// If the GPU has not enough memory.
    pub(crate) fn for_rows(
        gpu: &Arc<dyn Gpu>,
        old: Option<Self>,
        rows: usize,
        widths: Widths,
    ) -> Result<Self> {
        let choices = match old {
            Some(old) if old.rows >= rows => return Ok(old),
            old => old.and_then(|old| old.choices),
        };
        let rows = rows.next_multiple_of(ROW_STEP);
        let floats = |width: usize| Buffer::new(gpu, 4 * rows * width);
        Ok(Self {
            rows,
            x: floats(widths.x)?,
            qkv: floats(widths.qkv)?,
            queries: widths.has_queries.then(|| floats(widths.qkv)).transpose()?,
            gates: floats(widths.gates)?,
            update: widths.has_updates.then(|| floats(widths.x)).transpose()?,
            activations: Activations::new(gpu, rows, widths.input)?,
            results: None,
            choices,
        })
    }
}

/// Returns `old` if it has `bytes` bytes, else a new buffer.
pub(crate) fn at_least(gpu: &Arc<dyn Gpu>, old: Option<Buffer>, bytes: usize) -> Result<Buffer> {
    match old.filter(|old| old.bytes() >= bytes) {
        Some(old) => Ok(old),
        None => Buffer::new(gpu, bytes),
    }
}
