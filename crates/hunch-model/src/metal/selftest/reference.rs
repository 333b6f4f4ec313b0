//! Random inputs of the self-test, and what the kernels should compute from them.

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use half::f16;
use hunch_core::sample::DrawSettings;
use hunch_error::Result;
use hunch_kernels::activation::{Activation, CLAMPED_BOUND, CLAMPED_SLOPE};
use hunch_kernels::{RowMask, WeightType, Window, dequantise, random_blocks};

use crate::candle_type::CandleType;

use super::super::activations::Activations;
use super::super::attention::Scoring;
use super::super::gpu::Buffer;
use super::super::packed::UNIT;

/// Bound of the error of a product or of attention, relative to the magnitudes summed.
pub(super) const SUM_BOUND: f64 = 1e-5;
/// Bound of the error of other kernels, relative to the largest value.
pub(super) const VALUE_BOUND: f64 = 1e-5;
/// Bound of the error of a value in the cache, which is a half of 11 bits.
pub(super) const HALF_BOUND: f64 = 1.0 / 2048.0;

/// Activations that are codes times powers of two, so that the values have no rounding error.
pub(super) struct Codes {
    codes: Vec<i8>,
    scale: f32,
}

impl Codes {
    pub(super) fn random(count: usize) -> Self {
        Self { codes: noise(count, 99).iter().map(|v| (v * 127.0) as i8).collect(), scale: 1.0 / 64.0 }
    }

    pub(super) fn rows(&self, rows: std::ops::Range<usize>, k: usize) -> Self {
        Self { codes: self.codes[rows.start * k..rows.end * k].to_vec(), scale: self.scale }
    }

    /// Returns `count` values, which repeat these.
    pub(super) fn cycled(&self, count: usize) -> Self {
        Self { codes: self.codes.iter().copied().cycle().take(count).collect(), scale: self.scale }
    }

    pub(super) fn values(&self) -> Vec<f32> {
        self.codes.iter().map(|code| f32::from(*code) * self.scale).collect()
    }

    pub(super) fn write(&self, to: &Activations) -> Result<()> {
        let codes = &self.codes;
        to.codes.write(0, &codes.iter().map(|code| *code as u8).collect::<Vec<u8>>())?;
        to.halves.write(0, &half_bytes(&codes.iter().map(|code| f32::from(*code)).collect::<Vec<_>>()))?;
        to.scales.write_floats(0, &vec![self.scale; codes.len() / UNIT])?;
        to.sums.write(0, &sums(codes).flat_map(i16::to_le_bytes).collect::<Vec<u8>>())?;
        to.floats.write_floats(0, &self.values())
    }
}

/// Sums of the codes of each half of a unit.
pub(super) fn sums(codes: &[i8]) -> impl Iterator<Item = i16> + '_ {
    codes.chunks_exact(UNIT / 2).map(|half| half.iter().map(|code| i16::from(*code)).sum())
}

/// Returns a random matrix in file layout, and its values.
pub(super) fn random_matrix(dtype: WeightType, n: usize, k: usize) -> Result<(Vec<u8>, Vec<f32>)> {
    let Some(candle) = dtype.candle() else {
        let file = random_blocks(dtype, n * k / dtype.block_size(), 0.01, 7);
        let mut values = Vec::with_capacity(n * k);
        dequantise(dtype, &file, &mut values);
        return Ok((file, values));
    };
    let weights = Tensor::from_vec(noise(n * k, 7), (n, k), &Device::Cpu)?;
    let weights = QTensor::quantize(&weights, candle)?;
    let values = weights.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    Ok((weights.data()?.into_owned(), values))
}

/// Returns pseudo-random numbers between -1 and 1 (xorshift).
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Rounds values to halves.
pub(super) fn halves(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|v| f16::from_f32(v).to_f32()).collect()
}

pub(super) fn half_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
}

pub(super) fn read_halves(buffer: &Buffer, count: usize) -> Result<Vec<f32>> {
    let bytes = buffer.read(0, 2 * count)?;
    Ok(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect())
}

pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Returns `true` if values are within `bound` of `expected`, relative to the largest magnitude.
pub(super) fn near(values: &[f32], expected: impl IntoIterator<Item = f64>, bound: f64) -> bool {
    let expected: Vec<f64> = expected.into_iter().collect();
    let top = expected.iter().fold(0f64, |top, v| top.max(v.abs()));
    values.len() == expected.len()
        && values.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() <= bound * top)
}

/// Returns the unquantised values of activations if they are near `expected` and the other forms belong to them.
pub(super) fn checked(
    out: &Activations,
    count: usize,
    expected: impl IntoIterator<Item = f64>,
) -> Result<Option<Vec<f32>>> {
    let floats = out.floats.read_floats(0, count)?;
    let codes: Vec<i8> = out.codes.read(0, count)?.into_iter().map(|code| code as i8).collect();
    let scales = out.scales.read_floats(0, count / UNIT)?;
    let units = floats.chunks_exact(UNIT).zip(codes.chunks_exact(UNIT)).zip(&scales);
    // A code is the nearest one. The bound leaves room for the rounding of the division.
    let quantised = units.clone().all(|((values, codes), scale)| {
        let near = |(v, code): (&f32, &i8)| (v - f32::from(*code) * scale).abs() <= 0.501 * scale;
        values.iter().zip(codes).all(near) && codes.iter().any(|code| code.unsigned_abs() == 127)
    });
    let as_halves: Vec<f32> = codes.iter().map(|code| f32::from(*code)).collect();
    let same = out.halves.read(0, 2 * count)? == half_bytes(&as_halves)
        && out.sums.read(0, count / 8)? == sums(&codes).flat_map(i16::to_le_bytes).collect::<Vec<u8>>();
    Ok((near(&floats, expected, VALUE_BOUND) && quantised && same).then_some(floats))
}

pub(super) fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

pub(super) fn rotate(x: &mut [f64], angles: &[f64], neighbours: bool) {
    for (i, angle) in angles.iter().enumerate() {
        let (a, b) = if neighbours { (2 * i, 2 * i + 1) } else { (i, i + angles.len()) };
        let (sin, cos) = angle.sin_cos();
        (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
    }
}

/// SiLU, or GELU by its tanh approximation.
pub(super) fn activated(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Clamped => {
            let x = x.min(f64::from(CLAMPED_BOUND));
            x / (1.0 + (-f64::from(CLAMPED_SLOPE) * x).exp())
        }
        Activation::Gelu => {
            0.5 * x * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
    }
}

/// Returns the factor of an activation, from the up projection.
pub(super) fn upped(x: f64, activation: Activation) -> f64 {
    let bound = f64::from(CLAMPED_BOUND);
    if activation == Activation::Clamped { x.clamp(-bound, bound) + 1.0 } else { x }
}

/// Cumulative probabilities of tokens after the filters.
pub(super) fn cumulative(logits: &[f32], settings: DrawSettings) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |token: usize, sharpness: f32| (f64::from(logits[token] - top) * f64::from(sharpness)).exp();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    if settings.top_k > 0 {
        order.truncate(settings.top_k);
    }
    let total: f64 = order.iter().map(|token| weight(*token, 1.0)).sum();
    order.retain(|token| weight(*token, 1.0) >= f64::from(settings.min_p));
    let mut mass = 0.0;
    order.retain(|token| {
        let keep = mass < total * f64::from(settings.top_p);
        mass += weight(*token, 1.0);
        keep
    });
    let mut probabilities = vec![0.0; logits.len()];
    for token in &order {
        probabilities[*token] = weight(*token, settings.sharpness);
    }
    let total: f64 = probabilities.iter().sum();
    let mut sum = 0.0;
    let add = |p: f64| {
        sum += p / total;
        sum
    };
    probabilities.into_iter().map(add).collect()
}

/// Shape of attention in a test.
#[derive(Clone, Copy)]
pub(super) struct AttentionCase<'a> {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) width: usize,
    /// Rows of the cache.
    pub(super) capacity: usize,
    pub(super) scoring: Scoring,
    /// Sinks of the heads. Empty for none.
    pub(super) sinks: &'a [f32],
}

/// Attention of a row over a cache of keys, then values, `[capacity, keys * width]` each.
pub(super) fn attention_in_f64(
    q: &[f32],
    cache: &[f32],
    mask: &RowMask,
    row: usize,
    shape: AttentionCase<'_>,
) -> Vec<f64> {
    let AttentionCase { queries, keys, width, capacity, scoring, sinks } = shape;
    let mut slots: Vec<usize> = mask.visible(row).collect();
    let len = slots.len();
    slots.drain(Window::hidden(Window::of_layer(mask.window(), scoring.window, len), len));
    let mut out = Vec::new();
    for (head, q) in q[row * queries * width..][..queries * width].chunks_exact(width).enumerate() {
        let at = |slot: usize| slot * keys * width + head / (queries / keys) * width;
        let score = |slot: &usize| {
            let products = q.iter().zip(&cache[at(*slot)..][..width]);
            let score = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
            let score = score * f64::from(scoring.scale);
            scoring.cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let scores: Vec<f64> = slots.iter().map(score).collect();
        let sink = sinks.get(head).map_or(f64::NEG_INFINITY, |sink| f64::from(*sink));
        let top = scores.iter().fold(sink, |a, b| a.max(*b));
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total = weights.iter().sum::<f64>() + (sink - top).exp();
        let mut sums = vec![0.0; width];
        for (slot, weight) in slots.iter().zip(&weights) {
            let values = &cache[capacity * keys * width + at(*slot)..][..width];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * f64::from(*value));
        }
        out.extend(sums.into_iter().map(|sum| sum / total));
    }
    out
}
