//! Grouped-query attention on the CPU over the cache, for any number of query rows: flash decoding
//! (Dao et al., arXiv 2205.14135; pytorch.org/blog/flash-decoding) with the keys split by position.
//!
//! A task takes one key-value head and one span of positions for all rows and all query heads of the
//! group, so keys and values are read once. A row's keys are taken in the order of their *positions*,
//! wherever they lie in the cache, in tiles and spans that begin at fixed positions: so a row gets the
//! same bits alone, in a batch, as a chain or as a branch of a tree.

use super::activation::exp;
use super::isa::{Isa, Level, Scalar};
use super::threads::{SharedSlice, Threads};
use crate::mask::RowMask;

/// The sizes of one attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows each head of the cache has room for.
    pub capacity: usize,
    /// What scores are multiplied with, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
}

/// Rotated queries and the cache of one layer.
#[derive(Clone, Copy)]
pub struct AttentionInput<'a> {
    /// Queries `[rows, n_head * head_dim]`.
    pub q: &'a [f32],
    /// Keys `[n_kv_head, capacity, head_dim]`.
    pub k: &'a [f32],
    /// Values, as the keys.
    pub v: &'a [f32],
}

/// Which slot of the cache holds each position a row sees. Made once a pass.
pub struct VisibleSlots {
    base: usize,
    /// Positions each row sees.
    lens: Vec<usize>,
    /// One more than the last slot seen.
    end: usize,
    /// Slots of the positions from `base` on, `[rows, width]`.
    tail: Vec<usize>,
    width: usize,
}

impl VisibleSlots {
    /// As the mask says.
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
        Self { base, lens, end, tail, width }
    }

    fn rows(&self) -> usize {
        self.lens.len()
    }

    #[inline(always)]
    fn slot(&self, row: usize, position: usize) -> usize {
        if position < self.base { position } else { self.tail[row * self.width + position - self.base] }
    }
}

/// Positions a task takes.
const SPAN: usize = 128;
/// Positions whose scores are computed before the next maximum is taken. Their keys and values stay in
/// the first cache while all rows and heads use them.
const TILE: usize = 32;
/// Partial sums of the weights: that of position i in lane i % 16.
const LANES: usize = 16;

/// Attention on this CPU, with the memory of its partial results, which is kept between calls.
pub struct Attention {
    level: Level,
    /// For each span, row and head: the maximum, the sum of weights, the weighted values.
    partial: Vec<f32>,
}

impl Default for Attention {
    fn default() -> Self {
        Self::at_level(Level::best())
    }
}

impl Attention {
    fn at_level(level: Level) -> Self {
        assert!(level.available(), "a level is used where it is available");
        Self { level, partial: Vec::new() }
    }

    /// softmax(q k^T * scale) v for every row and head, as `[rows, n_head * head_dim]`.
    ///
    /// # Panics
    /// If a size does not fit.
    pub fn attend(
        &mut self,
        threads: &Threads,
        shape: AttentionShape,
        input: AttentionInput<'_>,
        visible: &VisibleSlots,
        out: &mut [f32],
    ) {
        let (rows, d) = (visible.rows(), shape.head_dim);
        assert_eq!(input.q.len(), rows * shape.n_head * d, "queries fit the shape");
        assert_eq!(out.len(), input.q.len(), "there is an output for each query");
        assert_eq!(input.k.len(), shape.n_kv_head * shape.capacity * d, "keys fit the shape");
        assert_eq!(input.v.len(), input.k.len(), "values fit the shape");
        assert!(visible.end <= shape.capacity, "what is seen is in the cache");
        let kernel = kernel(self.level);
        let longest = visible.lens.iter().copied().max().unwrap_or(0);
        let spans = longest.div_ceil(SPAN);
        let stride = d + 2;
        self.partial.resize(spans * rows * shape.n_head * stride, 0.0);
        let partial = SharedSlice::new(&mut self.partial);
        let group = shape.n_head / shape.n_kv_head;
        threads.run(spans * shape.n_kv_head, &|task| {
            let (span, kv_head) = (task / shape.n_kv_head, task % shape.n_kv_head);
            let partial_of = |row: usize| {
                let from = ((span * rows + row) * shape.n_head + kv_head * group) * stride;
                // SAFETY: the memory is borrowed until all tasks are done, only this task has the heads of
                // this key-value head in this span, and it takes one row at a time.
                unsafe { partial.part(from, group * stride) }
            };
            for row in 0..rows {
                let partial = partial_of(row);
                partial.fill(0.0);
                partial.chunks_exact_mut(stride).for_each(|partial| partial[0] = f32::NEG_INFINITY);
            }
            let first = kv_head * shape.capacity * d;
            let (k, v) = (&input.k[first..][..shape.capacity * d], &input.v[first..][..shape.capacity * d]);
            for tile in (span * SPAN..((span + 1) * SPAN).min(longest)).step_by(TILE) {
                for row in 0..rows {
                    let len = visible.lens[row].saturating_sub(tile).min(TILE);
                    if len == 0 {
                        continue;
                    }
                    let mut slots = [0; TILE];
                    for (i, slot) in slots[..len].iter_mut().enumerate() {
                        *slot = visible.slot(row, tile + i) * d;
                    }
                    let q = &input.q[(row * shape.n_head + kv_head * group) * d..][..group * d];
                    let tile = Tile { q, k, v, slots: &slots[..len], d, scale: shape.scale };
                    // SAFETY: the CPU has the level's instructions. A visible slot is a row of the cache,
                    // which `k` and `v` have room for, as checked above.
                    unsafe { kernel(&tile, partial_of(row)) };
                }
            }
        });
        for (index, out) in out.chunks_exact_mut(d).enumerate() {
            let (row, head) = (index / shape.n_head, index % shape.n_head);
            let spans = visible.lens[row].div_ceil(SPAN);
            combine(
                &self.partial,
                spans,
                rows * shape.n_head * stride,
                (row * shape.n_head + head) * stride,
                out,
            );
        }
    }
}

/// One tile of positions for one row.
struct Tile<'a> {
    /// Queries of the group, `[group, d]`.
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// First element of each position's key and value.
    slots: &'a [usize],
    d: usize,
    scale: f32,
}

/// Takes a tile into the partial results of the row's heads, `[group, 2 + d]`.
///
/// # Safety
/// The CPU has the instructions the kernel was made for; every slot has `d` keys and values after it.
type TileKernel = unsafe fn(&Tile<'_>, &mut [f32]);

fn kernel(level: Level) -> TileKernel {
    match level {
        Level::Scalar => attend_tile::<Scalar>,
        // Floats are multiplied with the same instructions in both.
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonI8mm => attend_tile::<super::isa::neon::Neon>,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => x86::avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The generic kernel compiled once per x86 extension.

    use super::super::isa::x86::{Avx2, Avx512};
    use super::{Tile, attend_tile};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn avx2(tile: &Tile<'_>, partial: &mut [f32]) {
        // SAFETY: the caller's contract.
        unsafe { attend_tile::<Avx2>(tile, partial) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn avx512(tile: &Tile<'_>, partial: &mut [f32]) {
        // SAFETY: the caller's contract.
        unsafe { attend_tile::<Avx512>(tile, partial) }
    }
}

/// # Safety
/// As [`TileKernel`].
#[inline(always)]
unsafe fn attend_tile<I: Isa>(tile: &Tile<'_>, partial: &mut [f32]) {
    let (q, partial) = (tile.q.chunks(2 * tile.d), partial.chunks_mut(2 * (tile.d + 2)));
    for (q, partial) in q.zip(partial) {
        // Two heads at a time: they share what is loaded of keys and values.
        // SAFETY: the caller's contract.
        unsafe {
            if q.len() == tile.d {
                attend_heads::<I, 1>(tile, q, partial);
            } else {
                attend_heads::<I, 2>(tile, q, partial);
            }
        }
    }
}

/// Takes a tile into the partial results of `H` heads, whose queries `q` are. Each head is computed
/// in the same order whatever `H` is.
///
/// # Safety
/// As [`TileKernel`]; queries and partial results are those of `H` heads.
#[inline(always)]
unsafe fn attend_heads<I: Isa, const H: usize>(tile: &Tile<'_>, q: &[f32], partial: &mut [f32]) {
    let d = tile.d;
    let mut scores = [[f32::NEG_INFINITY; TILE]; H];
    for (i, slots) in tile.slots.chunks(4).enumerate() {
        // The last slot stands in for what is missing of four.
        let last = slots.len() - 1;
        let slots = [slots[0], slots[last.min(1)], slots[last.min(2)], slots[last]];
        // SAFETY: the caller's contract.
        let dots = unsafe { dots::<I, H>(q, d, tile.k, slots) };
        for (scores, dots) in scores.iter_mut().zip(dots) {
            for (score, dot) in scores[4 * i..][..=last].iter_mut().zip(dots) {
                *score = dot * tile.scale;
            }
        }
    }
    for (scores, partial) in scores.iter_mut().zip(partial.chunks_exact_mut(d + 2)) {
        let (state, sums) = partial.split_at_mut(2);
        weigh(scores, state, sums);
    }
    // As many sums at a time as fit the registers.
    let mut from = 0;
    // SAFETY: the caller's contract; `from` and the vectors after it stay inside `d`.
    unsafe {
        while from + 8 * I::ROWS <= d && I::ROWS >= 16 {
            add_weighted::<I, H, 8>(partial, &scores, tile, from);
            from += 8 * I::ROWS;
        }
        while from + 4 * I::ROWS <= d {
            add_weighted::<I, H, 4>(partial, &scores, tile, from);
            from += 4 * I::ROWS;
        }
        while from + I::ROWS <= d {
            add_weighted::<I, H, 1>(partial, &scores, tile, from);
            from += I::ROWS;
        }
    }
    for (scores, partial) in scores.iter().zip(partial.chunks_exact_mut(d + 2)) {
        for (i, sum) in partial[2..].iter_mut().enumerate().skip(from) {
            for (&weight, &slot) in scores.iter().zip(tile.slots) {
                *sum += weight * tile.v[slot + i];
            }
        }
    }
}

/// Turns the scores of a tile into weights relative to the largest score so far, and brings the
/// partial results of the head, maximum and sum of weights in `state`, to the same measure.
#[inline(always)]
fn weigh(scores: &mut [f32; TILE], state: &mut [f32], sums: &mut [f32]) {
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
                // What is not there has the score minus infinity, and no weight.
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

/// The dot products of `H` queries with the keys that begin at four slots; each is computed in the
/// same order wherever it stands among the four.
///
/// # Safety
/// As [`TileKernel`]; `q` has `H` queries of `d`.
#[inline(always)]
unsafe fn dots<I: Isa, const H: usize>(q: &[f32], d: usize, k: &[f32], slots: [usize; 4]) -> [[f32; 4]; H] {
    let whole = d / I::ROWS * I::ROWS;
    let mut dots = [[0.0; 4]; H];
    // SAFETY: the caller's contract: queries and keys are there, and `i` ends with the last whole
    // vector.
    unsafe {
        let key = k.as_ptr();
        let mut sums = [[I::splat(0.0); 4]; H];
        let mut i = 0;
        while i < whole {
            let keys = [
                I::load(key.wrapping_add(slots[0] + i)),
                I::load(key.wrapping_add(slots[1] + i)),
                I::load(key.wrapping_add(slots[2] + i)),
                I::load(key.wrapping_add(slots[3] + i)),
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
                *dot += q[h * d + i] * k[slot + i];
            }
        }
    }
    dots
}

/// Adds the weighted values of a tile to `N` vectors of sums of each of `H` heads, elements `from ..`
/// of each value.
///
/// # Safety
/// As [`TileKernel`]; `partial` has `H` heads, and there are `N` vectors from `from` on.
#[inline(always)]
unsafe fn add_weighted<I: Isa, const H: usize, const N: usize>(
    partial: &mut [f32],
    weights: &[[f32; TILE]; H],
    tile: &Tile<'_>,
    from: usize,
) {
    let stride = tile.d + 2;
    // SAFETY: the caller's contract.
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
                let value = I::load(values.wrapping_add(i * I::ROWS));
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

/// Brings the partial results of the spans together, in their order.
fn combine(partial: &[f32], spans: usize, span_stride: usize, from: usize, out: &mut [f32]) {
    let d = out.len();
    let of = |span: usize| &partial[from + span * span_stride..][..d + 2];
    let max = (0..spans).fold(f32::NEG_INFINITY, |max, span| max.max(of(span)[0]));
    out.fill(0.0);
    let mut total = 0.0;
    for span in 0..spans {
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
mod tests {
    use super::*;

    fn run(
        shape: AttentionShape,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        mask: &RowMask,
        (level, threads): (Level, usize),
    ) -> Vec<f32> {
        let mut out = vec![0.0; q.len()];
        let input = AttentionInput { q, k, v };
        let threads = Threads::new(threads).unwrap();
        let visible = VisibleSlots::new(mask);
        Attention::at_level(level).attend(&threads, shape, input, &visible, &mut out);
        out
    }

    #[test]
    fn one_key_gives_back_its_value() {
        let shape = AttentionShape { n_head: 2, n_kv_head: 1, head_dim: 4, capacity: 3, scale: 0.5 };
        let (k, v) = (vec![0.3; 12], (0..12).map(|i| i as f32).collect::<Vec<_>>());
        let out = run(shape, &[1.0; 8], &k, &v, &RowMask::causal(0, 1), (Level::best(), 1));
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
    }

    /// Against softmax in f64, over contexts shorter and longer than tiles and spans, with scores far
    /// apart; and each row alone has the same bits.
    #[test]
    fn it_is_softmax_whatever_the_length_and_rows_do_not_depend_on_each_other() {
        let (n_head, n_kv_head, d, rows) = (4, 2, 216 + 3, 3);
        let levels = Level::ALL.iter().copied().filter(|level| level.available());
        let bases = [0, 1, 62, 63, 64, 127, 128, 300];
        for (level, base) in levels.flat_map(|level| bases.map(|base| (level, base))) {
            let capacity = base + rows + 2;
            let shape = AttentionShape { n_head, n_kv_head, head_dim: d, capacity, scale: 0.7 };
            let noise = |count: usize, seed: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
            };
            let q = noise(rows * n_head * d, 1);
            let (k, v) = (noise(n_kv_head * capacity * d, 2), noise(n_kv_head * capacity * d, 3));
            let out = run(shape, &q, &k, &v, &RowMask::causal(base, rows), (level, 2));
            for row in 0..rows {
                let alone = &q[row * n_head * d..(row + 1) * n_head * d];
                let alone = run(shape, alone, &k, &v, &RowMask::causal(base + row, 1), (level, 1));
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&alone), bits(&out[row * n_head * d..(row + 1) * n_head * d]));
                for head in 0..n_head {
                    let at = (row * n_head + head) * d;
                    let first = head / 2 * capacity * d;
                    let key = |slot: usize| &k[first + slot * d..][..d];
                    let score = |slot: usize| {
                        let dot: f64 = q[at..at + d]
                            .iter()
                            .zip(key(slot))
                            .map(|(a, b)| f64::from(*a) * f64::from(*b))
                            .sum();
                        dot * 0.7
                    };
                    let scores: Vec<f64> = (0..base + row + 1).map(score).collect();
                    let max = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                    let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                    for i in 0..d {
                        let exact: f64 = scores
                            .iter()
                            .enumerate()
                            .map(|(slot, s)| (s - max).exp() * f64::from(v[first + slot * d + i]) / total)
                            .sum();
                        let error = (f64::from(out[at + i]) - exact).abs();
                        assert!(error < 2e-4, "{level:?}, base {base}: off by {error}");
                    }
                }
            }
        }
    }
}
