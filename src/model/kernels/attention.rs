//! Grouped-query attention on the CPU over the cache, for any number of query rows: flash decoding
//! (Dao et al., arXiv 2205.14135; pytorch.org/blog/flash-decoding) with the keys split by position.
//!
//! A task takes one key-value head and one span of positions for all rows and all query heads of the
//! group, so keys and values are read once. A row's keys are taken in the order of their *positions*,
//! wherever they lie in the cache, in tiles and spans that begin at fixed positions: so a row gets the
//! same bits alone, in a batch, as a chain or as a branch of a tree.

use super::activation::exp;
use super::threads::{SharedSlice, Threads};
use crate::model::mask::RowMask;

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
    /// Slots of the positions from `base` on, `[rows, rows]`.
    tail: Vec<usize>,
}

impl VisibleSlots {
    /// As the mask says.
    pub fn new(mask: &RowMask) -> Self {
        let (base, rows) = (mask.base(), mask.rows());
        let mut tail = vec![0; rows * rows];
        let mut lens = Vec::with_capacity(rows);
        for row in 0..rows {
            let mut len = base;
            for (to, slot) in tail[row * rows..(row + 1) * rows].iter_mut().zip(mask.visible_tail(row)) {
                *to = slot;
                len += 1;
            }
            lens.push(len);
        }
        Self { base, lens, tail }
    }

    fn rows(&self) -> usize {
        self.lens.len()
    }

    #[inline(always)]
    fn slot(&self, row: usize, position: usize) -> usize {
        if position < self.base { position } else { self.tail[row * self.rows() + position - self.base] }
    }
}

/// Positions a task takes.
const SPAN: usize = 128;
/// Positions whose scores are computed before the next maximum is taken.
const TILE: usize = 64;
/// Partial sums of a dot product: element i in lane i % 16.
const LANES: usize = 16;

/// Memory of the partial results, kept between calls.
#[derive(Default)]
pub struct AttentionScratch {
    /// For each span, row and head: the maximum, the sum of weights, the weighted values.
    partial: Vec<f32>,
}

/// softmax(q k^T * scale) v for every row and head, as `[rows, n_head * head_dim]`.
///
/// # Panics
/// If a size does not fit.
pub fn attend(
    threads: &Threads,
    shape: AttentionShape,
    input: AttentionInput<'_>,
    visible: &VisibleSlots,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) {
    let (rows, d) = (visible.rows(), shape.head_dim);
    assert_eq!(input.q.len(), rows * shape.n_head * d, "queries fit the shape");
    assert_eq!(out.len(), input.q.len(), "there is an output for each query");
    assert_eq!(input.k.len(), shape.n_kv_head * shape.capacity * d, "keys fit the shape");
    assert_eq!(input.v.len(), input.k.len(), "values fit the shape");
    let longest = visible.lens.iter().copied().max().unwrap_or(0);
    let spans = longest.div_ceil(SPAN);
    let stride = d + 2;
    scratch.partial.resize(spans * rows * shape.n_head * stride, 0.0);
    let partial = SharedSlice::new(&mut scratch.partial);
    let group = shape.n_head / shape.n_kv_head;
    threads.run(spans * shape.n_kv_head, &|task| {
        let (span, kv_head) = (task / shape.n_kv_head, task % shape.n_kv_head);
        let partial_of = |row: usize| {
            let from = ((span * rows + row) * shape.n_head + kv_head * group) * stride;
            // SAFETY: the scratch is borrowed until all tasks are done, only this task has the heads of
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
                attend_tile(Tile { q, k, v, slots: &slots[..len], d, scale: shape.scale }, partial_of(row));
            }
        }
    });
    for (index, out) in out.chunks_exact_mut(d).enumerate() {
        let (row, head) = (index / shape.n_head, index % shape.n_head);
        let spans = visible.lens[row].div_ceil(SPAN);
        combine(
            &scratch.partial,
            spans,
            rows * shape.n_head * stride,
            (row * shape.n_head + head) * stride,
            out,
        );
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
fn attend_tile(tile: Tile<'_>, partial: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")]
        fn avx512(tile: Tile<'_>, partial: &mut [f32]) {
            attend_tile_generic(tile, partial);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(tile: Tile<'_>, partial: &mut [f32]) {
            attend_tile_generic(tile, partial);
        }
        match super::isa::Level::best() {
            super::isa::Level::Scalar => {}
            // SAFETY: the level says that the CPU has the extensions.
            super::isa::Level::Avx512 => return unsafe { avx512(tile, partial) },
            // SAFETY: every level but the first comes with AVX2 and FMA.
            _ => return unsafe { avx2(tile, partial) },
        }
    }
    attend_tile_generic(tile, partial);
}

#[inline(always)]
fn attend_tile_generic(tile: Tile<'_>, partial: &mut [f32]) {
    let d = tile.d;
    for (q, partial) in tile.q.chunks_exact(d).zip(partial.chunks_exact_mut(d + 2)) {
        let mut scores = [f32::NEG_INFINITY; TILE];
        let mut max = f32::NEG_INFINITY;
        for (score, &slot) in scores.iter_mut().zip(tile.slots) {
            *score = dot(q, &tile.k[slot..slot + d]) * tile.scale;
            max = max.max(*score);
        }
        let (state, sums) = partial.split_at_mut(2);
        let new_max = max.max(state[0]);
        let mut weight = 0.0;
        if new_max > f32::NEG_INFINITY {
            let keep = if state[0] > f32::NEG_INFINITY { exp(state[0] - new_max) } else { 0.0 };
            let mut lanes = [0f32; LANES];
            for chunk in scores.chunks_exact_mut(LANES) {
                for (lane, score) in lanes.iter_mut().zip(chunk) {
                    // What is not there has the score minus infinity, and no weight.
                    let seen = *score > f32::NEG_INFINITY;
                    *score = if seen { exp(*score - new_max) } else { 0.0 };
                    *lane += *score;
                }
            }
            weight += lanes.iter().sum::<f32>();
            weight += state[1] * keep;
            sums.iter_mut().for_each(|sum| *sum *= keep);
        }
        (state[0], state[1]) = (new_max, weight);
        // As many sums at a time as fit the registers.
        let (wide, narrow) = sums.as_chunks_mut::<64>();
        for (i, sums) in wide.iter_mut().enumerate() {
            add_weighted(sums, &scores, &tile, 64 * i);
        }
        let from = 64 * wide.len();
        let (narrow, rest) = narrow.as_chunks_mut::<16>();
        for (i, sums) in narrow.iter_mut().enumerate() {
            add_weighted(sums, &scores, &tile, from + 16 * i);
        }
        let from = from + 16 * narrow.len();
        for (i, sum) in rest.iter_mut().enumerate() {
            let mut one = [*sum];
            add_weighted(&mut one, &scores, &tile, from + i);
            *sum = one[0];
        }
    }
}

/// Adds the weighted values of a tile to `N` sums, elements `from ..` of each value.
#[inline(always)]
fn add_weighted<const N: usize>(sums: &mut [f32; N], weights: &[f32; TILE], tile: &Tile<'_>, from: usize) {
    let mut acc = *sums;
    for (&weight, &slot) in weights.iter().zip(tile.slots) {
        let values: &[f32; N] =
            tile.v[slot + from..slot + from + N].try_into().expect("the slice has N values");
        for (acc, value) in acc.iter_mut().zip(values) {
            *acc += weight * value;
        }
    }
    *sums = acc;
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

/// The dot product of two vectors of one length.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    let (a_parts, b_parts) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_parts.remainder(), b_parts.remainder());
    for (a, b) in a_parts.zip(b_parts) {
        for (lane, (a, b)) in acc.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    for (lane, (a, b)) in acc.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += a * b;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            acc[i] += acc[i + width];
        }
        width /= 2;
    }
    acc[0]
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
        threads: usize,
    ) -> Vec<f32> {
        let mut out = vec![0.0; q.len()];
        let input = AttentionInput { q, k, v };
        let threads = Threads::new(threads).unwrap();
        let visible = VisibleSlots::new(mask);
        attend(&threads, shape, input, &visible, &mut AttentionScratch::default(), &mut out);
        out
    }

    #[test]
    fn one_key_gives_back_its_value() {
        let shape = AttentionShape { n_head: 2, n_kv_head: 1, head_dim: 4, capacity: 3, scale: 0.5 };
        let (k, v) = (vec![0.3; 12], (0..12).map(|i| i as f32).collect::<Vec<_>>());
        let out = run(shape, &[1.0; 8], &k, &v, &RowMask::causal(0, 1), 1);
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
    }

    /// Against softmax in f64, over contexts shorter and longer than tiles and spans, with scores far
    /// apart; and each row alone has the same bits.
    #[test]
    fn it_is_softmax_whatever_the_length_and_rows_do_not_depend_on_each_other() {
        let (n_head, n_kv_head, d, rows) = (4, 2, 24, 3);
        for base in [0, 1, 62, 63, 64, 127, 128, 300] {
            let capacity = base + rows + 2;
            let shape = AttentionShape { n_head, n_kv_head, head_dim: d, capacity, scale: 0.7 };
            let noise = |count: usize, seed: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
            };
            let q = noise(rows * n_head * d, 1);
            let (k, v) = (noise(n_kv_head * capacity * d, 2), noise(n_kv_head * capacity * d, 3));
            let out = run(shape, &q, &k, &v, &RowMask::causal(base, rows), 2);
            for row in 0..rows {
                let alone = &q[row * n_head * d..(row + 1) * n_head * d];
                let alone = run(shape, alone, &k, &v, &RowMask::causal(base + row, 1), 1);
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
                        assert!(error < 2e-4, "base {base}: off by {error}");
                    }
                }
            }
        }
    }
}
