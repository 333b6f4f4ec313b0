//! Reference arithmetic on the CPU: one scalar loop for each kernel, in the order that the kernels promise.

use half::f16;
use hunch_model::metal::packed::{PackedFormat, ScaleKind, UNIT, Unit};
pub(crate) use hunch_model::metal::selftest::noise;

/// 32 quantised activations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) codes: [i8; UNIT],
    pub(crate) scale: f32,
    pub(crate) sums: [i16; 2],
}

/// Quantises activations: the scale is the largest magnitude divided by 127.
pub(crate) fn quantise(x: &[f32]) -> Vec<Block> {
    x.as_chunks::<UNIT>()
        .0
        .iter()
        .map(|values| {
            let top = values.iter().fold(0f32, |top, v| top.max(v.abs()));
            let scale = top / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let codes = values.map(|v| (v * inverse).round_ties_even() as i8);
            let sum = |codes: &[i8]| codes.iter().map(|c| i16::from(*c)).sum();
            Block { codes, scale, sums: [sum(&codes[..16]), sum(&codes[16..])] }
        })
        .collect()
}

/// Adds eight partial sums as a tree.
fn tree(p: [f32; 8]) -> f32 {
    ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
}

/// Product of one weight row with one activation row: integers in a unit, units in eight partitions.
pub(crate) fn dot(format: PackedFormat, units: &[Unit], x: &[Block]) -> f32 {
    let mut parts = [0f32; 8];
    for (u, (w, x)) in units.iter().zip(x).enumerate() {
        let half = |h: usize| -> i32 {
            (16 * h..16 * h + 16).map(|i| format.value(w.codes[i]) * i32::from(x.codes[i])).sum()
        };
        let dots = w.scale[0] * half(0) + w.scale[1] * half(1);
        assert!(dots.abs() < 1 << 24, "{format:?}: {dots} is not exact in a float");
        let (part, factors) = (&mut parts[u % 8], format.factors(w));
        if format.scales() == ScaleKind::Halves {
            for (h, factor) in factors.into_iter().enumerate() {
                *part = (factor * x.scale).mul_add(half(h) as f32, *part);
            }
            continue;
        }
        *part = (factors[0] * x.scale).mul_add(dots as f32, *part);
        if format.has_minima() {
            let low = w.min[0] * i32::from(x.sums[0]) + w.min[1] * i32::from(x.sums[1]);
            *part = (w.m.to_f32() * x.scale).mul_add(low as f32, *part);
        }
    }
    tree(parts)
}

/// Product of one row of floats: 32 lanes, each with one sum over groups of 4 values, then a tree over the lanes.
pub(crate) fn dot_floats(w: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0f32; 32];
    for (i, (w, x)) in w.as_chunks::<4>().0.iter().zip(x.as_chunks::<4>().0).enumerate() {
        for (w, x) in w.iter().zip(x) {
            sums[i % 32] = w.mul_add(*x, sums[i % 32]);
        }
    }
    for step in [1, 2, 4, 8, 16] {
        sums = std::array::from_fn(|i| sums[i] + sums[i ^ step]);
    }
    sums[0]
}

/// Returns the bytes of halves.
pub(crate) fn half_bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect()
}
