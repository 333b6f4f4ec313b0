//! Grouped-query attention on the CPU over the cache, for any number of query rows.
//!
//! Every (row, head) is computed alone and in the order of the *visible* keys, wherever they lie in
//! the cache: so a row gets the same bits alone, in a batch, as a chain or as a branch of a tree.

use rayon::prelude::*;

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
    /// Queries `[n_head, rows, head_dim]`.
    pub q: &'a [f32],
    /// Keys `[n_kv_head, capacity, head_dim]`.
    pub k: &'a [f32],
    /// Values, as the keys.
    pub v: &'a [f32],
}

const LANES: usize = 16;
/// Multiplications below which waking other threads costs more than it saves.
const SERIAL_WORK: usize = 1 << 16;

/// Softmax(q k^T * scale) v for every row and head, as `[rows, n_head * head_dim]`.
pub fn attend(shape: AttentionShape, input: AttentionInput<'_>, mask: &RowMask) -> Vec<f32> {
    let (rows, d) = (mask.rows(), shape.head_dim);
    let mut out = vec![0f32; rows * shape.n_head * d];
    let work = rows * shape.n_head * (mask.base() + rows) * d;
    let one = |(index, out): (usize, &mut [f32])| {
        head(shape, input, mask, index / shape.n_head, index % shape.n_head, out);
    };
    if work < SERIAL_WORK {
        out.chunks_exact_mut(d).enumerate().for_each(one);
    } else {
        out.par_chunks_exact_mut(d).enumerate().for_each(one);
    }
    out
}

fn head(
    shape: AttentionShape,
    input: AttentionInput<'_>,
    mask: &RowMask,
    row: usize,
    head: usize,
    out: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")]
        fn avx512(
            s: AttentionShape,
            i: AttentionInput<'_>,
            m: &RowMask,
            row: usize,
            head: usize,
            out: &mut [f32],
        ) {
            head_generic(s, i, m, row, head, out);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(
            s: AttentionShape,
            i: AttentionInput<'_>,
            m: &RowMask,
            row: usize,
            head: usize,
            out: &mut [f32],
        ) {
            head_generic(s, i, m, row, head, out);
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the extensions were detected just above (they imply AVX2 and FMA).
            return unsafe { avx512(shape, input, mask, row, head, out) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the extensions were detected just above.
            return unsafe { avx2(shape, input, mask, row, head, out) };
        }
    }
    head_generic(shape, input, mask, row, head, out);
}

#[inline(always)]
fn head_generic(
    shape: AttentionShape,
    input: AttentionInput<'_>,
    mask: &RowMask,
    row: usize,
    head: usize,
    out: &mut [f32],
) {
    let d = shape.head_dim;
    let q = &input.q[(head * mask.rows() + row) * d..][..d];
    let kv_head = head / (shape.n_head / shape.n_kv_head);
    let first = kv_head * shape.capacity * d;
    let keys = &input.k[first..first + shape.capacity * d];
    let values = &input.v[first..first + shape.capacity * d];

    let mut scores = Vec::with_capacity(mask.base() + mask.rows());
    for slot in mask.visible(row) {
        scores.push(dot(q, &keys[slot * d..(slot + 1) * d]) * shape.scale);
    }
    let sum = softmax_numerators(&mut scores);
    out.fill(0.0);
    for (slot, &weight) in mask.visible(row).zip(&scores) {
        for (o, v) in out.iter_mut().zip(&values[slot * d..(slot + 1) * d]) {
            *o += weight * v;
        }
    }
    let inverse = 1.0 / sum;
    out.iter_mut().for_each(|o| *o *= inverse);
}

/// The dot product of two vectors of one length, element i in lane i % 16.
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

/// Replaces scores by `exp(score - max)` and returns their sum.
#[inline(always)]
fn softmax_numerators(scores: &mut [f32]) -> f32 {
    let max = scores.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
    let mut sums = [0f32; LANES];
    for chunk in scores.chunks_mut(LANES) {
        for (lane, score) in sums.iter_mut().zip(chunk) {
            *score = exp(*score - max);
            *lane += *score;
        }
    }
    sums.iter().sum()
}

/// e^x for x <= 0, within 2 units in the last place; branch-free so that it vectorises. Cody-Waite
/// reduction and a degree 6 polynomial (coefficients of the Taylor series, adjusted end term).
#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = x.max(-87.0);
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    let magic = 12_582_912.0_f32;
    let n = (x * std::f32::consts::LOG2_E + magic) - magic;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    p * f32::from_bits((((n as i32) + 127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_a_few_units_in_the_last_place() {
        let mut worst = 0f64;
        for i in 0..87_000 {
            let x = -(i as f32) / 1000.0;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            worst = worst.max(((ours - exact) / exact).abs());
        }
        assert!(worst < 4e-7, "worst relative error {worst}");
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn one_key_gives_back_its_value() {
        let shape = AttentionShape { n_head: 2, n_kv_head: 1, head_dim: 4, capacity: 3, scale: 0.5 };
        let (k, v) = (vec![0.3; 12], (0..12).map(|i| i as f32).collect::<Vec<_>>());
        let input = AttentionInput { q: &[1.0; 8], k: &k, v: &v };
        let out = attend(shape, input, &RowMask::causal(0, 1));
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
    }
}
