//! 8-bit quantisation of activations for the matrix product. Weights are never quantised here.

use super::isa::Level;
use super::threads::{SharedSlice, Threads};

/// Number of values that share a scale.
pub(super) const BLOCK: usize = 32;

/// Minimum number of blocks to quantise on all threads.
const PARALLEL_BLOCKS: usize = 2048;

/// 1.5 * 2^23. Floats of this magnitude have no fractional bits, so adding it rounds to an integer.
const ROUNDING: f32 = 12_582_912.0;

/// Returns the larger value in one instruction. Unlike `f32::max`, ignores the rules for NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// 32 quantised activations of one row. Activation i is `scale * codes[i]`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub(super) struct ActivationBlock {
    pub(super) codes: [i8; BLOCK],
    pub(super) scale: f32,
    /// `scale * sum(codes)`, the factor for the minimum of the weights.
    pub(super) scaled_sum: f32,
    /// `-sum(codes)`, the factor for the offset of the weight codes.
    pub(super) negative_sum: i32,
    /// `-sum` of each half of the codes.
    pub(super) negative_halves: [i32; 2],
}

impl ActivationBlock {
    const ZERO: ActivationBlock = ActivationBlock {
        codes: [0; BLOCK],
        scale: 0.0,
        scaled_sum: 0.0,
        negative_sum: 0,
        negative_halves: [0; 2],
    };

    /// Quantises 32 values, scaled by their largest magnitude.
    #[inline(always)]
    fn quantise(&mut self, values: &[f32; BLOCK]) {
        let mut top = [0f32; 8];
        for part in values.chunks_exact(8) {
            for (t, v) in top.iter_mut().zip(part) {
                *t = larger(*t, v.abs());
            }
        }
        let top = top.iter().fold(0f32, |a, &b| larger(a, b));
        let scale = top / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for (code, value) in self.codes.iter_mut().zip(values) {
            // The lowest bits of the sum are the nearest integer (ties to even) in two's complement.
            *code = (value * inverse + ROUNDING).to_bits() as i8;
        }
        let sum = |codes: &[i8]| codes.iter().map(|&c| i32::from(c)).sum::<i32>();
        let halves = [sum(&self.codes[..16]), sum(&self.codes[16..])];
        self.scale = scale;
        self.scaled_sum = scale * (halves[0] + halves[1]) as f32;
        self.negative_sum = -halves[0] - halves[1];
        self.negative_halves = [-halves[0], -halves[1]];
    }
}

/// 8-bit activation rows with one scale per 32 values. Rows are quantised independently.
#[derive(Clone, Debug, Default)]
pub struct QuantisedRows {
    blocks: Vec<ActivationBlock>,
}

impl QuantisedRows {
    /// Replaces the contents with the quantised rows of `x`.
    ///
    /// The row length must be a multiple of 32, so that no block spans two rows.
    pub fn fill(&mut self, threads: &Threads, x: &[f32]) {
        let count = x.len() / BLOCK;
        self.blocks.resize(count, ActivationBlock::ZERO);
        // For few rows, waking the other threads takes longer than the work.
        let tasks = if count < PARALLEL_BLOCKS { 1 } else { threads.count() };
        let blocks = SharedSlice::new(&mut self.blocks);
        threads.run(tasks, &|task| {
            let (from, to) = (task * count / tasks, (task + 1) * count / tasks);
            // SAFETY: the blocks stay borrowed until all tasks are done, and each task has its own range.
            let blocks = unsafe { blocks.part(from, to - from) };
            quantise(Level::current(), &x[from * BLOCK..to * BLOCK], blocks);
        });
    }

    /// Replaces the contents with rows of `from`, in the order of `rows`. A row has `k` values, a multiple of 32.
    pub(super) fn gather(&mut self, from: &Self, k: usize, rows: impl Iterator<Item = usize>) {
        let per_row = k / BLOCK;
        self.blocks.clear();
        rows.for_each(|row| self.blocks.extend_from_slice(&from.blocks[row * per_row..][..per_row]));
    }

    pub(super) fn blocks(&self) -> &[ActivationBlock] {
        &self.blocks
    }
}

#[inline(always)]
fn quantise_all(x: &[f32], blocks: &mut [ActivationBlock]) {
    for (values, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        block.quantise(values);
    }
}

fn quantise(level: Level, x: &[f32], blocks: &mut [ActivationBlock]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2(x: &[f32], blocks: &mut [ActivationBlock]) {
            quantise_all(x, blocks);
        }
        if level != Level::Scalar {
            // SAFETY: every level except `Scalar` requires AVX2, FMA and F16C.
            return unsafe { avx2(x, blocks) };
        }
    }
    let _ = level;
    quantise_all(x, blocks);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_keeps_largest_value_and_sums() {
        let x: Vec<f32> = (0..64).map(|i| (i as f32 - 20.0) * if i < 32 { 0.5 } else { 0.0 }).collect();
        for level in Level::ALL.iter().filter(|level| level.available()) {
            let mut blocks = [ActivationBlock::ZERO; 2];
            quantise(*level, &x, &mut blocks);
            assert_eq!(blocks[0].codes[0], -127);
            assert_eq!(blocks[0].scale, 10.0 / 127.0);
            let sum: i32 = blocks[0].codes.iter().map(|&c| i32::from(c)).sum();
            assert_eq!(blocks[0].negative_sum, -sum);
            assert_eq!(blocks[0].negative_halves.iter().sum::<i32>(), -sum);
            assert_eq!(blocks[0].scaled_sum, blocks[0].scale * sum as f32);
            for (code, value) in blocks[0].codes.iter().zip(&x) {
                assert!((f32::from(*code) * blocks[0].scale - value).abs() <= blocks[0].scale * 0.5001);
            }
            assert_eq!((blocks[1].scale, blocks[1].negative_sum), (0.0, 0));
        }
    }
}
