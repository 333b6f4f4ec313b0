//! Grouped-query attention on the CPU, for any number of query rows over a KV cache.
//!
//! The method is flash decoding with keys split by position (Dao et al., arXiv 2205.14135;
//! pytorch.org/blog/flash-decoding). One task handles one key-value head and one span of positions. It serves
//! all rows and all query heads of the group, so keys and values are read once.
//!
//! Keys of a row are processed in order of *position*, independent of their slot in the cache. Tiles
//! and spans begin at fixed positions. A row therefore gets identical bits alone, in a batch, in a
//! chain or in a branch of a tree. The cache itself belongs to the model.

use std::ops::Range;

use half::f16;

use super::activation::{exp, tanh};
use super::isa::{Isa, Level, Scalar};
use super::threads::{SharedSlice, Threads};
use crate::mask::{LayerWindow, RowMask, Window};

/// Sizes of one attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key and value heads. Divides `n_head`.
    pub n_kv_head: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Capacity of the cache in rows per head.
    pub capacity: usize,
    /// Factor applied to the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Bound of the scores: s becomes `cap * tanh(s / cap)`. `None` for no bound.
    pub softcap: Option<f32>,
    /// Positions that a row of the layer sees. `None` for all. The mask of a pass may hide more of them.
    pub window: Option<LayerWindow>,
}

/// Keys or values of one layer in the KV cache, `[n_kv_head, capacity, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheValues<'a> {
    /// 32 bits each.
    F32(&'a [f32]),
    /// 16 bits each. Half the memory, and half of what attention reads.
    F16(&'a [f16]),
}

/// Rotated queries, and the KV cache of one layer.
#[derive(Clone, Copy)]
pub struct AttentionInput<'a> {
    /// Queries, `[rows, n_head * head_dim]`.
    pub q: &'a [f32],
    /// Keys.
    pub k: CacheValues<'a>,
    /// Values, of the same type as the keys.
    pub v: CacheValues<'a>,
    /// Score of each query head that takes part in the softmax and has no value, `[n_head]` (Xiao et al.,
    /// arXiv 2309.17453, as in gpt-oss). `None` for none.
    pub sinks: Option<&'a [f32]>,
}

/// Number type of a KV cache. Arithmetic is in f32 for all of them.
trait CacheValue: Copy + Sync {
    /// Loads [`Isa::ROWS`] values as floats.
    ///
    /// # Safety
    /// As for [`Isa::load`].
    unsafe fn load<I: Isa>(from: *const Self) -> I::Floats;
    fn to_f32(self) -> f32;
}

impl CacheValue for f32 {
    #[inline(always)]
    unsafe fn load<I: Isa>(from: *const Self) -> I::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { I::load(from) }
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl CacheValue for f16 {
    #[inline(always)]
    unsafe fn load<I: Isa>(from: *const Self) -> I::Floats {
        // SAFETY: guaranteed by the caller.
        unsafe { I::halves(from.cast()) }
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
}

/// Map from position to cache slot for each row of a pass. Built once per pass.
pub struct VisibleSlots {
    base: usize,
    /// Number of positions visible to each row.
    lens: Vec<usize>,
    /// Number of positions up to each row's own, where its window ends. Rows of a block see later ones too.
    path_lens: Vec<usize>,
    /// One past the last visible slot.
    end: usize,
    /// Slots of the positions from `base` on, `[rows, width]`.
    tail: Vec<usize>,
    width: usize,
    /// Window of the pass.
    window: Option<Window>,
}

impl VisibleSlots {
    /// Builds the map from a row mask.
    pub fn new(mask: &RowMask) -> Self {
        let (base, rows, width) = (mask.base(), mask.rows(), mask.slots() - mask.base());
        let mut tail = vec![0; rows * width];
        let mut lens = Vec::with_capacity(rows);
        for row in 0..rows {
            let mut len = base;
            for (to, slot) in tail[row * width..(row + 1) * width].iter_mut().zip(mask.visible_tail(row)) {
                *to = slot;
                len += 1;
            }
            lens.push(len);
        }
        let end = tail.iter().copied().max().map_or(base, |last| base.max(last + 1));
        let path_lens = (0..rows).map(|row| mask.path_len(row)).collect();
        Self { base, lens, path_lens, end, tail, width, window: mask.window() }
    }

    fn rows(&self) -> usize {
        self.lens.len()
    }

    /// Returns the positions that a layer with a window hides from `row`.
    fn hidden(&self, row: usize, window: Option<LayerWindow>) -> Range<usize> {
        let len = self.path_lens[row];
        Window::hidden(Window::of_layer(self.window, window, len), len)
    }

    #[inline(always)]
    fn slot(&self, row: usize, position: usize) -> usize {
        if position < self.base { position } else { self.tail[row * self.width + position - self.base] }
    }
}

/// Number of positions per task. Each has partial results of its own.
pub const SPAN: usize = 128;
/// Number of positions scored between two updates of the running maximum.
///
/// Small enough that keys and values stay in the L1 cache while all rows and heads use them.
const TILE: usize = 32;
/// Lanes of partial sums of the weights. Position i is added to lane i % 16.
const LANES: usize = 16;

/// CPU attention with a buffer for partial results, which is reused between calls.
pub struct Attention {
    level: Level,
    /// Maximum score, sum of weights and weighted values, `[span, row, head, 2 + head_dim]`.
    partial: Vec<f32>,
}

impl Default for Attention {
    fn default() -> Self {
        Self::at_level(Level::current())
    }
}

impl Attention {
    fn at_level(level: Level) -> Self {
        assert!(level.available(), "the instruction set must be available");
        Self { level, partial: Vec::new() }
    }

    /// Computes softmax(q k^T * scale) v for every row and head into `out`, `[rows, n_head * head_dim]`.
    ///
    /// Scores are capped, and positions before a row's window left out, if the shape says so.
    ///
    /// # Panics
    /// If the sizes do not match.
    pub fn attend(
        &mut self,
        threads: &Threads,
        shape: AttentionShape,
        input: AttentionInput<'_>,
        visible: &VisibleSlots,
        out: &mut [f32],
    ) {
        let AttentionInput { q, k, v, sinks } = input;
        assert!(sinks.is_none_or(|sinks| sinks.len() == shape.n_head), "there must be a sink for each head");
        match (k, v) {
            (CacheValues::F32(k), CacheValues::F32(v)) => {
                self.attend_as(threads, shape, (q, k, v), (visible, sinks), out)
            }
            (CacheValues::F16(k), CacheValues::F16(v)) => {
                self.attend_as(threads, shape, (q, k, v), (visible, sinks), out)
            }
            _ => panic!("keys and values must have one type"),
        }
    }

    fn attend_as<T: CacheValue>(
        &mut self,
        threads: &Threads,
        shape: AttentionShape,
        (q, k, v): (&[f32], &[T], &[T]),
        (visible, sinks): (&VisibleSlots, Option<&[f32]>),
        out: &mut [f32],
    ) {
        let (rows, d) = (visible.rows(), shape.head_dim);
        assert_eq!(q.len(), rows * shape.n_head * d, "queries must match the shape");
        assert_eq!(out.len(), q.len(), "the output must match the queries");
        assert_eq!(k.len(), shape.n_kv_head * shape.capacity * d, "keys must match the shape");
        assert_eq!(v.len(), k.len(), "values must match the keys");
        assert!(visible.end <= shape.capacity, "visible slots must be inside the cache");
        let kernel = kernel::<T>(self.level);
        let longest = visible.lens.iter().copied().max().unwrap_or(0);
        let hidden: Vec<Range<usize>> = (0..rows).map(|row| visible.hidden(row, shape.window)).collect();
        let spans = Spans::new(&hidden, longest);
        let stride = d + 2;
        self.partial.resize(spans.len() * rows * shape.n_head * stride, 0.0);
        let partial = SharedSlice::new(&mut self.partial);
        let group = shape.n_head / shape.n_kv_head;
        threads.run(spans.len() * shape.n_kv_head, &|task| {
            let (span, kv_head) = (task / shape.n_kv_head, task % shape.n_kv_head);
            let partial_of = |row: usize| {
                let from = ((span * rows + row) * shape.n_head + kv_head * group) * stride;
                // SAFETY: the buffer stays borrowed until all tasks are done. No other task uses the
                // heads of this key-value head in this span, and this task uses one row at a time.
                unsafe { partial.part(from, group * stride) }
            };
            for row in 0..rows {
                let partial = partial_of(row);
                partial.fill(0.0);
                partial.chunks_exact_mut(stride).for_each(|partial| partial[0] = f32::NEG_INFINITY);
            }
            let first = kv_head * shape.capacity * d;
            let (k, v) = (&k[first..][..shape.capacity * d], &v[first..][..shape.capacity * d]);
            let span = spans.number(span);
            for tile in (span * SPAN..((span + 1) * SPAN).min(longest)).step_by(TILE) {
                for (row, hidden) in hidden.iter().enumerate() {
                    let end = visible.lens[row].min(tile + TILE);
                    let seen = (tile..hidden.start.min(end)).chain(tile.max(hidden.end)..end);
                    let (mut slots, mut len) = ([0; TILE], 0);
                    for (slot, position) in slots.iter_mut().zip(seen) {
                        *slot = visible.slot(row, position) * d;
                        len += 1;
                    }
                    if len == 0 {
                        continue;
                    }
                    let q = &q[(row * shape.n_head + kv_head * group) * d..][..group * d];
                    let AttentionShape { scale, softcap, .. } = shape;
                    let tile = Tile { q, k, v, slots: &slots[..len], d, scale, softcap };
                    // SAFETY: the CPU supports the level. Visible slots are inside the cache, and `k`
                    // and `v` have its size, as checked above.
                    unsafe { kernel(&tile, partial_of(row)) };
                }
            }
        });
        for (index, out) in out.chunks_exact_mut(d).enumerate() {
            let (row, head) = (index / shape.n_head, index % shape.n_head);
            merge_spans(
                &self.partial,
                spans.of_row(&hidden[row], visible.lens[row]),
                rows * shape.n_head * stride,
                (row * shape.n_head + head) * stride,
                sinks.map(|sinks| sinks[head]),
                out,
            );
        }
    }
}

/// Spans of which any row sees a position. They are all but some in the middle.
struct Spans {
    /// Numbers of the spans that no row sees.
    left_out: Range<usize>,
    count: usize,
}

impl Spans {
    /// Finds the spans of rows of which the longest has `longest` positions, without those hidden from all rows.
    fn new(hidden: &[Range<usize>], longest: usize) -> Self {
        let from = hidden.iter().map(|hidden| hidden.start.div_ceil(SPAN)).max().unwrap_or(0);
        let to = hidden.iter().map(|hidden| hidden.end / SPAN).min().unwrap_or(0);
        let left_out = from..to.max(from);
        Self { count: longest.div_ceil(SPAN) - left_out.len(), left_out }
    }

    fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of the span at an index.
    fn number(&self, index: usize) -> usize {
        if index < self.left_out.start { index } else { index + self.left_out.len() }
    }

    /// Returns the indices of the spans of which a row of `len` positions sees one, in order.
    fn of_row(&self, hidden: &Range<usize>, len: usize) -> impl Iterator<Item = usize> + Clone {
        let first = hidden.start.div_ceil(SPAN);
        let numbers = (0..first).chain(first.max(hidden.end / SPAN)..len.div_ceil(SPAN));
        let (start, skipped) = (self.left_out.start, self.left_out.len());
        numbers.map(move |number| if number < start { number } else { number - skipped })
    }
}

/// Input of a kernel: one tile of positions for one row.
struct Tile<'a, T> {
    /// Queries of the group, `[group, d]`.
    q: &'a [f32],
    k: &'a [T],
    v: &'a [T],
    /// Index of the first element of the key and value of each position.
    slots: &'a [usize],
    d: usize,
    scale: f32,
    softcap: Option<f32>,
}

/// Kernel that adds a tile to the partial results of the row's heads, `[group, 2 + d]`.
///
/// # Safety
/// The CPU must support the instruction set the kernel was compiled for. From each slot on, `k` and
/// `v` must have at least `d` elements.
type TileKernel<T> = unsafe fn(&Tile<'_, T>, &mut [f32]);

fn kernel<T: CacheValue>(level: Level) -> TileKernel<T> {
    match level {
        Level::Scalar => attend_tile::<Scalar, T>,
        // Both levels multiply floats with the same instructions.
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonI8mm => attend_tile::<super::isa::neon::Neon, T>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => x86::avx2::<T>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512::<T>,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The generic kernel, compiled once per x86 extension.

    use super::super::isa::x86::{Avx2, Avx512};
    use super::{CacheValue, Tile, attend_tile};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2<T: CacheValue>(tile: &Tile<'_, T>, partial: &mut [f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe { attend_tile::<Avx2, T>(tile, partial) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn avx512<T: CacheValue>(tile: &Tile<'_, T>, partial: &mut [f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe { attend_tile::<Avx512, T>(tile, partial) }
    }
}

/// Adds a tile to the partial results of all heads of the group.
///
/// # Safety
/// See [`TileKernel`].
#[inline(always)]
unsafe fn attend_tile<I: Isa, T: CacheValue>(tile: &Tile<'_, T>, partial: &mut [f32]) {
    let (q, partial) = (tile.q.chunks(2 * tile.d), partial.chunks_mut(2 * (tile.d + 2)));
    for (q, partial) in q.zip(partial) {
        // Two heads at a time share each load of keys and values.
        // SAFETY: guaranteed by the caller.
        unsafe {
            if q.len() == tile.d {
                attend_heads::<I, T, 1>(tile, q, partial);
            } else {
                attend_heads::<I, T, 2>(tile, q, partial);
            }
        }
    }
}

/// Adds a tile to the partial results of `H` heads with queries `q`.
///
/// The order of operations for a head does not depend on `H`.
///
/// # Safety
/// See [`TileKernel`]. `q` and `partial` must have `H` heads.
#[inline(always)]
unsafe fn attend_heads<I: Isa, T: CacheValue, const H: usize>(
    tile: &Tile<'_, T>,
    q: &[f32],
    partial: &mut [f32],
) {
    let d = tile.d;
    let mut scores = [[f32::NEG_INFINITY; TILE]; H];
    for (i, slots) in tile.slots.chunks(4).enumerate() {
        // The last slot fills up an incomplete group of four.
        let last = slots.len() - 1;
        let slots = [slots[0], slots[last.min(1)], slots[last.min(2)], slots[last]];
        // SAFETY: guaranteed by the caller.
        let dots = unsafe { dots::<I, T, H>(q, d, tile.k, slots) };
        for (scores, dots) in scores.iter_mut().zip(dots) {
            for (score, dot) in scores[4 * i..][..=last].iter_mut().zip(dots) {
                *score = dot * tile.scale;
            }
        }
    }
    for (scores, partial) in scores.iter_mut().zip(partial.chunks_exact_mut(d + 2)) {
        if let Some(cap) = tile.softcap {
            // Positions after the tile's last keep their negative infinity.
            scores[..tile.slots.len()].iter_mut().for_each(|score| *score = cap * tanh(*score / cap));
        }
        let (state, sums) = partial.split_at_mut(2);
        update_softmax(scores, state, sums);
    }
    // Process as many sums at a time as fit in the registers.
    let mut from = 0;
    // SAFETY: guaranteed by the caller. `from` and the vectors after it stay inside `d`.
    unsafe {
        while from + 8 * I::ROWS <= d && I::ROWS >= 16 {
            add_weighted::<I, T, H, 8>(partial, &scores, tile, from);
            from += 8 * I::ROWS;
        }
        while from + 4 * I::ROWS <= d {
            add_weighted::<I, T, H, 4>(partial, &scores, tile, from);
            from += 4 * I::ROWS;
        }
        while from + I::ROWS <= d {
            add_weighted::<I, T, H, 1>(partial, &scores, tile, from);
            from += I::ROWS;
        }
    }
    for (scores, partial) in scores.iter().zip(partial.chunks_exact_mut(d + 2)) {
        for (i, sum) in partial[2..].iter_mut().enumerate().skip(from) {
            for (&weight, &slot) in scores.iter().zip(tile.slots) {
                *sum += weight * tile.v[slot + i].to_f32();
            }
        }
    }
}

/// Converts the scores of a tile to weights and rescales the partial results of the head to match.
///
/// Weights are relative to the largest score so far. `state` holds that maximum and the sum of weights.
#[inline(always)]
fn update_softmax(scores: &mut [f32; TILE], state: &mut [f32], sums: &mut [f32]) {
    let mut max = state[0];
    for &score in scores.iter() {
        max = if score > max { score } else { max };
    }
    let mut weight = 0.0;
    if max > f32::NEG_INFINITY {
        let keep = if state[0] > f32::NEG_INFINITY { exp(state[0] - max) } else { 0.0 };
        let mut lanes = [0f32; LANES];
        for chunk in scores.chunks_exact_mut(LANES) {
            for (lane, score) in lanes.iter_mut().zip(chunk) {
                // Missing positions have a score of negative infinity and get no weight.
                let seen = *score > f32::NEG_INFINITY;
                *score = if seen { exp(*score - max) } else { 0.0 };
                *lane += *score;
            }
        }
        weight = lanes.iter().sum::<f32>() + state[1] * keep;
        if keep != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= keep);
        }
    }
    (state[0], state[1]) = (max, weight);
}

/// Computes the dot products of `H` queries with the keys at four slots.
///
/// The order of operations does not depend on the index of a key among the four.
///
/// # Safety
/// See [`TileKernel`]. `q` must have `H` queries of length `d`.
#[inline(always)]
unsafe fn dots<I: Isa, T: CacheValue, const H: usize>(
    q: &[f32],
    d: usize,
    k: &[T],
    slots: [usize; 4],
) -> [[f32; 4]; H] {
    let whole = d / I::ROWS * I::ROWS;
    let mut dots = [[0.0; 4]; H];
    // SAFETY: the caller guarantees that queries and keys are in bounds. `i` stops at the last whole
    // vector.
    unsafe {
        let key = k.as_ptr();
        let mut sums = [[I::splat(0.0); 4]; H];
        let mut i = 0;
        while i < whole {
            let keys = [
                T::load::<I>(key.wrapping_add(slots[0] + i)),
                T::load::<I>(key.wrapping_add(slots[1] + i)),
                T::load::<I>(key.wrapping_add(slots[2] + i)),
                T::load::<I>(key.wrapping_add(slots[3] + i)),
            ];
            for (h, sums) in sums.iter_mut().enumerate() {
                let q = I::load(q.as_ptr().wrapping_add(h * d + i));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = I::mul_add(q, key, *sum);
                }
            }
            i += I::ROWS;
        }
        for (dots, sums) in dots.iter_mut().zip(sums) {
            *dots = I::sums(sums);
        }
    }
    for (h, dots) in dots.iter_mut().enumerate() {
        for (dot, slot) in dots.iter_mut().zip(slots) {
            for i in whole..d {
                *dot += q[h * d + i] * k[slot + i].to_f32();
            }
        }
    }
    dots
}

/// Adds the weighted values of a tile to `N` vectors of sums for each of `H` heads.
///
/// Uses the elements of each value from index `from` on.
///
/// # Safety
/// See [`TileKernel`]. `partial` must have `H` heads, and `N` vectors from `from` on must be inside `d`.
#[inline(always)]
unsafe fn add_weighted<I: Isa, T: CacheValue, const H: usize, const N: usize>(
    partial: &mut [f32],
    weights: &[[f32; TILE]; H],
    tile: &Tile<'_, T>,
    from: usize,
) {
    let stride = tile.d + 2;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let sums = partial.as_mut_ptr().wrapping_add(2 + from);
        let mut acc = [[I::splat(0.0); N]; H];
        for (h, acc) in acc.iter_mut().enumerate() {
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = I::load(sums.wrapping_add(h * stride + i * I::ROWS));
            }
        }
        for (position, &slot) in tile.slots.iter().enumerate() {
            let values = tile.v.as_ptr().wrapping_add(slot + from);
            let mut weight = [I::splat(0.0); H];
            for (weight, weights) in weight.iter_mut().zip(weights) {
                *weight = I::splat(weights[position]);
            }
            for i in 0..N {
                let value = T::load::<I>(values.wrapping_add(i * I::ROWS));
                for (acc, weight) in acc.iter_mut().zip(weight) {
                    acc[i] = I::mul_add(weight, value, acc[i]);
                }
            }
        }
        for (h, acc) in acc.iter().enumerate() {
            for (i, acc) in acc.iter().enumerate() {
                I::store_at(*acc, sums.wrapping_add(h * stride + i * I::ROWS));
            }
        }
    }
}

/// Merges the partial results of all spans, in order, after the sink of the head.
fn merge_spans(
    partial: &[f32],
    spans: impl Iterator<Item = usize> + Clone,
    span_stride: usize,
    from: usize,
    sink: Option<f32>,
    out: &mut [f32],
) {
    let d = out.len();
    let of = |span: usize| &partial[from + span * span_stride..][..d + 2];
    let max = spans.clone().fold(sink.unwrap_or(f32::NEG_INFINITY), |max, span| max.max(of(span)[0]));
    out.fill(0.0);
    let mut total = sink.map_or(0.0, |sink| exp(sink - max));
    for span in spans {
        let (state, values) = of(span).split_at(2);
        let factor = if state[0] == max { 1.0 } else { exp(state[0] - max) };
        total += state[1] * factor;
        for (out, value) in out.iter_mut().zip(values) {
            *out += value * factor;
        }
    }
    let inverse = 1.0 / total;
    out.iter_mut().for_each(|out| *out *= inverse);
}

#[cfg(test)]
mod tests;
