//! Vectorised passes over a vocabulary: exponentials, sums and maxima.

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// Logits per block of the block-maximum search.
pub(super) const BLOCK: usize = 64;

/// Returns the largest logit of each block.
pub(super) fn maxima_of(logits: &[f32]) -> Vec<f32> {
    let mut maxima = vec![f32::NEG_INFINITY; logits.len().div_ceil(BLOCK)];
    block_maxima(logits, &mut maxima);
    maxima
}

/// Returns the sum of e^(l - max).
pub(super) fn total_weight(logits: &[f32], max: f32) -> f64 {
    let mut weights = [0.0; CACHED];
    let chunks = logits.chunks(weights.len());
    chunks.map(|chunk| weights_of(chunk, max, 1.0, &mut weights[..chunk.len()])).sum()
}

/// Returns e^((l - max) * sharpness) of every logit, and their sum.
pub(super) fn weights(logits: &[f32], max: f32, sharpness: f32) -> (Vec<f32>, f64) {
    let mut chunk_weights = [0.0; CACHED];
    let mut weights = Vec::with_capacity(logits.len());
    let mut total = 0.0;
    for chunk in logits.chunks(CACHED) {
        let out = &mut chunk_weights[..chunk.len()];
        total += weights_of(chunk, max, sharpness, out);
        weights.extend_from_slice(out);
    }
    (weights, total)
}

/// Chunk size at which weights are computed and summed while in the L1 cache.
pub(super) const CACHED: usize = 1024;

/// Computes `out[i] = e^((logits[i] - max) * sharpness)` and returns their sum.
#[multiversion(targets = "simd")]
fn weights_of(logits: &[f32], max: f32, sharpness: f32, out: &mut [f32]) -> f64 {
    let fused = target_cfg_f!(any(target_feature = "fma", target_arch = "aarch64"));
    for (w, &l) in out.iter_mut().zip(logits) {
        *w = if fused {
            exp_by::<true>((l - max) * sharpness)
        } else {
            exp_nonpositive((l - max) * sharpness)
        };
    }
    sum(out)
}

/// [`weights_of`] at sharpness 1, plus `weighted[i] = weight * (logit - max)`. Returns both sums.
#[multiversion(targets = "simd")]
pub(super) fn weights_and_moments(
    logits: &[f32],
    max: f32,
    weights: &mut [f32],
    weighted: &mut [f32],
) -> (f64, f64) {
    let fused = target_cfg_f!(any(target_feature = "fma", target_arch = "aarch64"));
    for ((w, m), &l) in weights.iter_mut().zip(&mut *weighted).zip(logits) {
        let x = l - max;
        *w = if fused { exp_by::<true>(x) } else { exp_nonpositive(x) };
        // 0 times minus infinity is NaN, so weightless tokens are skipped.
        *m = if *w > 0.0 { *w * x } else { 0.0 };
    }
    (sum(weights), sum(weighted))
}

/// Computes the maximum of each [`BLOCK`] of values.
#[multiversion(targets = "simd")]
fn block_maxima(values: &[f32], maxima: &mut [f32]) {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let blocks = values.chunks_exact(BLOCK);
    if let Some(last) = maxima.last_mut() {
        *last = blocks.remainder().iter().copied().fold(f32::NEG_INFINITY, larger);
    }
    for (max, block) in maxima.iter_mut().zip(blocks) {
        let mut lanes = [f32::NEG_INFINITY; 16];
        for part in block.as_chunks::<16>().0 {
            for (lane, &v) in lanes.iter_mut().zip(part) {
                *lane = larger(*lane, v);
            }
        }
        *max = lanes.iter().copied().fold(f32::NEG_INFINITY, larger);
    }
}

/// Returns the index of the first value equal to `max`; 0 if there is none.
pub(super) fn first_at(values: &[f32], max: f32) -> usize {
    values.iter().position(|&v| v == max).unwrap_or(0)
}

/// Returns the largest number, ignoring NaN; minus infinity if there is none. Works in lanes so that it
/// vectorises.
#[multiversion(targets = "simd")]
pub(super) fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, v);
        }
    }
    rest.iter().chain(&lanes).copied().fold(f32::NEG_INFINITY, larger)
}

/// Returns the sum in f64, added in lanes in a fixed order.
#[multiversion(targets = "simd")]
pub(crate) fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; 8];
    let chunks = values.chunks_exact(lanes.len());
    let rest: f64 = chunks.remainder().iter().copied().map(f64::from).sum();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(v);
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// Returns e^x for x <= 0, within 2 units in the last place. Branch-free, so that it vectorises.
///
/// Results below the smallest normal f32 are 0. Positive x counts as 0, NaN gives 0.
#[inline(always)]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    exp_by::<false>(x)
}

/// [`exp_nonpositive`], optionally with fused multiply-add.
#[inline(always)]
pub(super) fn exp_by<const FUSED: bool>(x: f32) -> f32 {
    let multiply_add = |a: f32, b: f32, c: f32| if FUSED { a.mul_add(b, c) } else { a * b + c };
    const LOWEST: f32 = -87.336_54;
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts (Cody and Waite). The first has few bits, so n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    let bounded = if x > LOWEST { x } else { LOWEST };
    let bounded = if bounded < 0.0 { bounded } else { 0.0 };
    let rounded = multiply_add(bounded, LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = multiply_add(-n, LN2_LOW, multiply_add(-n, LN2_HIGH, bounded));
    // Taylor series to r^7 on |r| <= ln 2 / 2: the truncation error is below 6e-9.
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        series = multiply_add(series, r, coefficient);
    }
    let series = multiply_add(multiply_add(series, r, 1.0), r, 1.0);
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x >= LOWEST { series * power } else { 0.0 }
}
