//! Weights as the Metal kernels read them: units of 32 weights in tiles of 8 rows, in four streams.
//!
//! The block formats of GGUF are defined by ggml (ggml-common.h and ggml-quants.c of ggml-org/llama.cpp).
//! Here they are taken apart into codes and scales, and put together in the order of `blocks.metal`.
//! Matrices of one type that share an input may be packed as one. No kernels here.

use half::f16;
use hunch_kernels::{CodeTable, WeightType, kept_blocks};

/// Weights of a unit, which share a scale of activations.
pub const UNIT: usize = 32;
/// Rows of a tile.
pub const TILE_ROWS: usize = 8;
/// Units of a superblock, which share `d` and `m`.
const SUPER: usize = 8;
/// Alignment of a stream in bytes.
const ALIGNMENT: usize = 256;

/// Quantised type with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackedFormat {
    /// 4 bits, one scale.
    Q4_0,
    /// 4 bits, scale and minimum.
    Q4_1,
    /// 5 bits, one scale.
    Q5_0,
    /// 5 bits, scale and minimum.
    Q5_1,
    /// 8 bits, one scale.
    Q8_0,
    /// 8 bits, scale and minimum.
    Affine8,
    /// 2 bits, scales and minima of 16 weights.
    Q2K,
    /// 3 bits, scales of 16 weights.
    Q3K,
    /// 4 bits, scales and minima of 32 weights.
    Q4K,
    /// 5 bits, scales and minima of 32 weights.
    Q5K,
    /// 6 bits, scales of 16 weights.
    Q6K,
    /// 2 bits, kept as Q2_K.
    Tq1_0,
    /// 2 bits, kept as Q2_K.
    Tq2_0,
    /// 1 bit, kept as Q4_0.
    Q1_0,
    /// 2 bits, kept as Q4_0.
    Q2_0,
    /// Codes of 16 values, one scale.
    Iq4Nl,
    /// Codes of 16 values, scales of 32 weights.
    Iq4Xs,
    /// Codes of 16 values, one power of two.
    Mxfp4,
    /// Codes of 16 values, a factor for each 16 weights.
    Nvfp4,
    /// Codes of 16 values, scales of 32 weights.
    Iq3S,
    /// Codes of 16 values, scales of 32 weights.
    Iq3Xxs,
    /// Codes of 16 values, scales of 32 weights.
    Iq2Xxs,
    /// Codes of 16 values, scales of 16 weights.
    Iq2Xs,
    /// Codes of 16 values, scales of 16 weights.
    Iq2S,
    /// Codes of 16 values, scales of 32 weights.
    Iq1S,
    /// Codes of 16 values, scales of 16 weights.
    Iq1M,
}

/// Kind of scales, numbered as in `blocks.metal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKind {
    /// `d` for each unit.
    Half = 0,
    /// `d` and `m` for each unit.
    Pair = 1,
    /// Scale and minimum for each unit, `d` and `m` for a superblock.
    K4 = 2,
    /// Two signed scales for each unit, `d` for a superblock.
    K6 = 3,
    /// Two scales and two minima for each unit, `d` and `m` for a superblock.
    K2 = 4,
    /// `d` for each unit, as the upper half of a float.
    Upper = 5,
    /// `d` for each half of a unit.
    Halves = 6,
}

/// 32 weights of one row: `d * scale[h] * value(codes[i]) + m * min[h]`, with `h = i / 16`.
///
/// Types of [`ScaleKind::Upper`] keep their `d` as bits, and those of [`ScaleKind::Halves`] have the `d` of the second
/// half as `m`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unit {
    /// Codes as stored. Signed bytes for types of 8 bits.
    pub codes: [i16; UNIT],
    /// Factor of the scales.
    pub d: f16,
    /// Factor of the minima. 0 if the type has none.
    pub m: f16,
    /// Integer scale of each half.
    pub scale: [i32; 2],
    /// Integer minimum of each half.
    pub min: [i32; 2],
}

impl PackedFormat {
    /// All formats.
    pub const ALL: [Self; 26] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Affine8,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Q1_0,
        Self::Q2_0,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Iq3S,
        Self::Iq3Xxs,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq1S,
        Self::Iq1M,
    ];

    /// Returns the format of a type of GGUF, or `None` if there is no kernel for it.
    pub fn of(dtype: WeightType) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.dtype() == dtype)
    }

    /// Returns the type of GGUF.
    pub fn dtype(self) -> WeightType {
        match self {
            Self::Q4_0 => WeightType::Q4_0,
            Self::Q4_1 => WeightType::Q4_1,
            Self::Q5_0 => WeightType::Q5_0,
            Self::Q5_1 => WeightType::Q5_1,
            Self::Q8_0 => WeightType::Q8_0,
            Self::Affine8 => WeightType::Affine8,
            Self::Q2K => WeightType::Q2K,
            Self::Q3K => WeightType::Q3K,
            Self::Q4K => WeightType::Q4K,
            Self::Q5K => WeightType::Q5K,
            Self::Q6K => WeightType::Q6K,
            Self::Tq1_0 => WeightType::Tq1_0,
            Self::Tq2_0 => WeightType::Tq2_0,
            Self::Q1_0 => WeightType::Q1_0,
            Self::Q2_0 => WeightType::Q2_0,
            Self::Iq4Nl => WeightType::Iq4Nl,
            Self::Iq4Xs => WeightType::Iq4Xs,
            Self::Mxfp4 => WeightType::Mxfp4,
            Self::Nvfp4 => WeightType::Nvfp4,
            Self::Iq3S => WeightType::Iq3S,
            Self::Iq3Xxs => WeightType::Iq3Xxs,
            Self::Iq2Xxs => WeightType::Iq2Xxs,
            Self::Iq2Xs => WeightType::Iq2Xs,
            Self::Iq2S => WeightType::Iq2S,
            Self::Iq1S => WeightType::Iq1S,
            Self::Iq1M => WeightType::Iq1M,
        }
    }

    /// Returns the format whose kernels read this one: types with the same codes and kind of scales share them.
    #[must_use]
    pub fn kernel(self) -> Self {
        match self {
            Self::Tq1_0 | Self::Tq2_0 => Self::Q2K,
            Self::Q1_0 | Self::Q2_0 => Self::Q4_0,
            Self::Iq2Xs | Self::Iq2S => Self::Iq2Xxs,
            Self::Iq1M => Self::Iq1S,
            other => other,
        }
    }

    /// Returns the values of the codes, if they are not numbers with an offset.
    pub fn table(self) -> Option<CodeTable> {
        CodeTable::of(self.dtype())
    }

    /// Returns the bits of a code.
    pub fn bits(self) -> u32 {
        match self {
            Self::Q2K | Self::Tq1_0 | Self::Tq2_0 => 2,
            Self::Q3K => 3,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q6K => 6,
            Self::Q8_0 | Self::Affine8 => 8,
            // Types with a table among them.
            _ => 4,
        }
    }

    /// Returns the number subtracted from every code.
    pub fn offset(self) -> i16 {
        match self {
            Self::Q4_0 | Self::Q1_0 | Self::Q2_0 => 8,
            Self::Q5_0 => 16,
            Self::Q3K => 4,
            Self::Q6K => 32,
            Self::Affine8 => -128,
            _ => 0,
        }
    }

    /// Returns the integer that a code stands for.
    pub fn value(self, code: i16) -> i32 {
        match self.table() {
            Some(table) => table.values[code as usize & 15].into(),
            None => i32::from(code - self.offset()),
        }
    }

    /// Returns the kind of scales.
    pub fn scales(self) -> ScaleKind {
        match self {
            Self::Q4_0 | Self::Q1_0 | Self::Q2_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl => ScaleKind::Half,
            Self::Q4_1 | Self::Q5_1 | Self::Affine8 => ScaleKind::Pair,
            Self::Q4K | Self::Q5K => ScaleKind::K4,
            Self::Q2K | Self::Tq1_0 | Self::Tq2_0 => ScaleKind::K2,
            Self::Mxfp4 => ScaleKind::Upper,
            Self::Nvfp4 => ScaleKind::Halves,
            Self::Q3K
            | Self::Q6K
            | Self::Iq4Xs
            | Self::Iq3S
            | Self::Iq3Xxs
            | Self::Iq2Xxs
            | Self::Iq2Xs
            | Self::Iq2S
            | Self::Iq1S
            | Self::Iq1M => ScaleKind::K6,
        }
    }

    /// Returns the factor of each half of a unit, without its integer scale.
    pub fn factors(self, unit: &Unit) -> [f32; 2] {
        let factor = self.table().map_or(1.0, |table| table.factor);
        match self.scales() {
            ScaleKind::Upper => [f32::from_bits(u32::from(unit.d.to_bits()) << 16); 2],
            ScaleKind::Halves => [unit.d.to_f32(), unit.m.to_f32()],
            _ => [unit.d.to_f32() * factor; 2],
        }
    }

    /// Returns `true` if weights have a minimum.
    pub fn has_minima(self) -> bool {
        matches!(self.scales(), ScaleKind::Pair | ScaleKind::K4 | ScaleKind::K2)
    }

    fn low_bytes(self) -> usize {
        match self.bits() {
            8 => 32,
            2 | 3 => 8,
            _ => 16,
        }
    }

    fn high_bytes(self) -> usize {
        match self.bits() {
            6 => 8,
            3 | 5 => 4,
            _ => 0,
        }
    }

    fn scale_bytes(self) -> usize {
        if matches!(self.scales(), ScaleKind::Pair | ScaleKind::Halves) { 4 } else { 2 }
    }

    fn super_bytes(self) -> usize {
        if matches!(self.scales(), ScaleKind::K2 | ScaleKind::K4 | ScaleKind::K6) { 4 } else { 0 }
    }

    /// Takes one block of the file apart, and returns its units in order.
    ///
    /// # Panics
    /// If `block` is not one block of this type.
    pub fn units(self, block: &[u8]) -> Vec<Unit> {
        assert_eq!(block.len(), self.dtype().type_size(), "a block has the size of its type");
        match self {
            Self::Q4_0 => vec![simple(half_at(block, 0), f16::ZERO, &block[2..], None)],
            Self::Q4_1 => vec![simple(half_at(block, 0), half_at(block, 2), &block[4..], None)],
            Self::Q5_0 => vec![simple(half_at(block, 0), f16::ZERO, &block[6..], Some(&block[2..6]))],
            Self::Q5_1 => vec![simple(half_at(block, 0), half_at(block, 2), &block[8..], Some(&block[4..8]))],
            Self::Q8_0 => vec![Unit {
                codes: std::array::from_fn(|i| i16::from(block[2 + i] as i8)),
                d: half_at(block, 0),
                scale: [1, 1],
                ..Unit::default()
            }],
            Self::Affine8 => vec![Unit {
                codes: std::array::from_fn(|i| i16::from(block[4 + i] as i8)),
                d: half_at(block, 0),
                m: half_at(block, 2),
                scale: [1, 1],
                min: [1, 1],
            }],
            Self::Q2K => (0..SUPER).map(|u| q2k(block, u)).collect(),
            Self::Q3K => (0..SUPER).map(|u| q3k(block, u)).collect(),
            Self::Q4K => (0..SUPER).map(|u| q4k(block, u, None, &block[16..])).collect(),
            Self::Q5K => (0..SUPER).map(|u| q4k(block, u, Some(&block[16..48]), &block[48..])).collect(),
            Self::Q6K => (0..SUPER).map(|u| q6k(block, u)).collect(),
            _ => self.kept_units(&kept_blocks(self.dtype(), block).unwrap_or_default()),
        }
    }

    /// Takes a block apart that was converted for the CPU kernels.
    fn kept_units(self, kept: &[u8]) -> Vec<Unit> {
        match self {
            Self::Tq1_0 | Self::Tq2_0 => (0..SUPER).map(|u| q2k(kept, u)).collect(),
            Self::Q1_0 | Self::Q2_0 | Self::Iq4Nl | Self::Mxfp4 => {
                let unit = |block: &[u8]| simple(half_at(block, 0), f16::ZERO, &block[2..], None);
                kept.chunks_exact(18).map(unit).collect()
            }
            Self::Nvfp4 => {
                let unit = |block: &[u8]| simple(half_at(block, 0), half_at(block, 2), &block[4..], None);
                kept.chunks_exact(20).map(unit).collect()
            }
            _ => {
                // 128 bytes of codes, 8 or 16 scales, and the factor.
                let (d, scales) = (half_at(kept, kept.len() - 2), &kept[128..kept.len() - 2]);
                let scale = |half: usize| i32::from(scales[half * scales.len() / 16] as i8);
                let unit = |u: usize| Unit {
                    scale: [scale(2 * u), scale(2 * u + 1)],
                    min: [0, 0],
                    ..simple(d, f16::ZERO, &kept[16 * u..16 * u + 16], None)
                };
                (0..SUPER).map(unit).collect()
            }
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Unit of a type with blocks of 32: nibbles, and a fifth bit if `high` is given.
fn simple(d: f16, m: f16, nibbles: &[u8], high: Option<&[u8]>) -> Unit {
    let codes = std::array::from_fn(|i| {
        let nibble = if i < 16 { nibbles[i] & 15 } else { nibbles[i - 16] >> 4 };
        i16::from(nibble | high.map_or(0, |high| (high[i / 8] >> (i % 8) & 1) << 4))
    });
    Unit { codes, d, m, scale: [1, 1], min: [1, 1] }
}

fn q2k(block: &[u8], u: usize) -> Unit {
    let quants = &block[16 + 32 * (u / 4)..];
    let scales = [block[2 * u], block[2 * u + 1]];
    Unit {
        codes: std::array::from_fn(|i| i16::from(quants[i] >> (2 * (u % 4)) & 3)),
        d: half_at(block, 80),
        m: -half_at(block, 82),
        scale: scales.map(|s| i32::from(s & 15)),
        min: scales.map(|s| i32::from(s >> 4)),
    }
}

fn q3k(block: &[u8], u: usize) -> Unit {
    let (mask, quants, scales) = (&block[..32], &block[32 + 32 * (u / 4)..], &block[96..108]);
    let scale = |i: usize| {
        let low = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
        i32::from(low | (scales[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32
    };
    Unit {
        codes: std::array::from_fn(|i| {
            i16::from(quants[i] >> (2 * (u % 4)) & 3) | i16::from(mask[i] >> u & 1) << 2
        }),
        d: half_at(block, 108),
        scale: [scale(2 * u), scale(2 * u + 1)],
        ..Unit::default()
    }
}

/// Unit of Q4_K, or of Q5_K if `fifth` is given.
fn q4k(block: &[u8], u: usize, fifth: Option<&[u8]>, quants: &[u8]) -> Unit {
    let packed = &block[4..16];
    let (scale, min) = if u < 4 {
        (packed[u] & 63, packed[u + 4] & 63)
    } else {
        (packed[u + 4] & 15 | packed[u - 4] >> 6 << 4, packed[u + 4] >> 4 | packed[u] >> 6 << 4)
    };
    Unit {
        codes: std::array::from_fn(|i| {
            let nibble = quants[32 * (u / 2) + i] >> (4 * (u % 2)) & 15;
            i16::from(nibble | fifth.map_or(0, |fifth| (fifth[i] >> u & 1) << 4))
        }),
        d: half_at(block, 0),
        m: -half_at(block, 2),
        scale: [i32::from(scale); 2],
        min: [i32::from(min); 2],
    }
}

fn q6k(block: &[u8], u: usize) -> Unit {
    let (side, j) = (u / 4, u % 4);
    let low = &block[64 * side + 32 * (j % 2)..];
    let high = &block[128 + 32 * side..];
    let scale = |i: usize| i32::from(block[192 + i] as i8);
    Unit {
        codes: std::array::from_fn(|i| {
            i16::from(low[i] >> (4 * (j / 2)) & 15 | (high[i] >> (2 * j) & 3) << 4)
        }),
        d: half_at(block, 208),
        scale: [scale(2 * u), scale(2 * u + 1)],
        ..Unit::default()
    }
}

/// Packed matrix in host memory.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Type of the weights.
    pub format: PackedFormat,
    /// Rows.
    pub n: usize,
    /// Columns.
    pub k: usize,
    /// The four streams.
    pub bytes: Vec<u8>,
    /// Offsets in bytes of low bits, high bits, scales and superblocks.
    pub offsets: [usize; 4],
}

/// Returns the size of each stream of a packed matrix.
pub(super) fn stream_bytes(format: PackedFormat, n: usize, k: usize) -> [usize; 4] {
    let units = n.next_multiple_of(TILE_ROWS) * (k / UNIT);
    [
        units * format.low_bytes(),
        units * format.high_bytes(),
        units * format.scale_bytes(),
        units / SUPER * format.super_bytes(),
    ]
}

impl Packed {
    /// Packs rows in file layout, each a multiple of blocks of `k` weights.
    ///
    /// The last tile is filled up with zeros.
    ///
    /// # Panics
    /// If `file` does not hold `n` rows of `k` weights.
    pub fn new(format: PackedFormat, n: usize, k: usize, file: &[u8]) -> Self {
        let dtype = format.dtype();
        let row_bytes = k / dtype.block_size() * dtype.type_size();
        assert!(k.is_multiple_of(dtype.block_size()) && file.len() == n * row_bytes, "rows must be complete");
        let sizes = stream_bytes(format, n, k);
        let mut offsets = [0; 4];
        for stream in 1..4 {
            offsets[stream] = (offsets[stream - 1] + sizes[stream - 1]).next_multiple_of(ALIGNMENT);
        }
        let mut packed = Self { format, n, k, bytes: vec![0; offsets[3] + sizes[3]], offsets };
        for (row, bytes) in file.chunks_exact(row_bytes).enumerate() {
            let units = bytes.chunks_exact(dtype.type_size()).flat_map(|block| format.units(block));
            for (u, unit) in units.enumerate() {
                packed.put(row, u, &unit);
            }
        }
        packed
    }

    /// Returns the size in bytes of a packed matrix.
    pub fn size(format: PackedFormat, n: usize, k: usize) -> usize {
        stream_bytes(format, n, k).iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum()
    }

    fn put(&mut self, row: usize, u: usize, unit: &Unit) {
        let format = self.format;
        let (tile, r, units) = (row / TILE_ROWS, row % TILE_ROWS, self.k / UNIT);
        let at = (tile * units + u) * TILE_ROWS + r;
        let [low, high, scales, supers] = self.offsets;
        let bits = format.bits();
        for (i, &code) in unit.codes.iter().enumerate() {
            // Codes 4v .. 4v + 3 are in one word, a byte each.
            let (v, byte, code) = (i / 4, i % 4, code as u8);
            let (word, shift) = match bits {
                8 => (v, 0),
                2 | 3 => (v & 1, 2 * (v >> 1)),
                _ => (v & 3, 4 * (v >> 2)),
            };
            let low_part = match bits {
                8 => code,
                2 | 3 => code & 3,
                _ => code & 15,
            };
            self.bytes[low + at * format.low_bytes() + 4 * word + byte] |= low_part << shift;
            let (word, shift, high_part) = match bits {
                6 => (v >> 2, 2 * (v & 3), code >> 4),
                5 => (0, v, code >> 4),
                3 => (0, v, code >> 2),
                _ => continue,
            };
            self.bytes[high + at * format.high_bytes() + 4 * word + byte] |= high_part << shift;
        }
        let [d, m] = [unit.d, unit.m].map(f16::to_le_bytes);
        let scale = scales + at * format.scale_bytes();
        match format.scales() {
            ScaleKind::Half | ScaleKind::Upper => self.bytes[scale..scale + 2].copy_from_slice(&d),
            ScaleKind::Pair | ScaleKind::Halves => {
                self.bytes[scale..scale + 2].copy_from_slice(&d);
                self.bytes[scale + 2..scale + 4].copy_from_slice(&m);
            }
            ScaleKind::K4 => {
                self.bytes[scale..scale + 2].copy_from_slice(&[unit.scale[0] as u8, unit.min[0] as u8]);
            }
            ScaleKind::K6 => self.bytes[scale..scale + 2].copy_from_slice(&unit.scale.map(|s| s as u8)),
            ScaleKind::K2 => {
                let both = [0, 1].map(|h| (unit.scale[h] | unit.min[h] << 4) as u8);
                self.bytes[scale..scale + 2].copy_from_slice(&both);
            }
        }
        if format.super_bytes() > 0 && u.is_multiple_of(SUPER) {
            let at = supers + ((tile * (units / SUPER) + u / SUPER) * TILE_ROWS + r) * format.super_bytes();
            self.bytes[at..at + 2].copy_from_slice(&d);
            self.bytes[at + 2..at + 4].copy_from_slice(&m);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candle_type::CandleType;
    use candle_core::quantized::QTensor;
    use candle_core::{Device, Tensor};
    use hunch_kernels::{dequantise, random_blocks};

    /// Random weights of a type in the layout of the file, and their values.
    fn weights(dtype: WeightType) -> (Vec<u8>, Vec<f32>) {
        let Some(candle) = dtype.candle() else {
            let bytes = random_blocks(dtype, 1024 / dtype.block_size(), 0.01, 7);
            let mut values = Vec::new();
            assert!(dequantise(dtype, &bytes, &mut values));
            return (bytes, values);
        };
        let weights: Vec<f32> = (0..1024).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let weights = Tensor::from_vec(weights, (4, 256), &Device::Cpu).unwrap();
        let weights = QTensor::quantize(&weights, candle).unwrap();
        let values = weights.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
        (weights.data().unwrap().into_owned(), values.to_vec1().unwrap())
    }

    #[test]
    fn units_match_dequantised_weights_of_every_format() {
        for format in PackedFormat::ALL {
            let (bytes, values) = weights(format.dtype());
            let blocks = bytes.chunks_exact(format.dtype().type_size());
            let units: Vec<Unit> = blocks.flat_map(|block| format.units(block)).collect();
            assert_eq!(units.len() * UNIT, values.len(), "{format:?}");
            for (unit, values) in units.iter().zip(values.chunks_exact(UNIT)) {
                for (i, value) in values.iter().enumerate() {
                    let factor = format.factors(unit)[i / 16] * unit.scale[i / 16] as f32;
                    let low =
                        if format.has_minima() { unit.m.to_f32() * unit.min[i / 16] as f32 } else { 0.0 };
                    let ours = factor * format.value(unit.codes[i]) as f32 + low;
                    assert!(
                        (ours - value).abs() <= 1e-6 * value.abs().max(0.1),
                        "{format:?}: {ours} {value}"
                    );
                }
            }
        }
    }

    #[test]
    fn formats_that_share_kernels_have_the_same_codes_and_scales() {
        for format in PackedFormat::ALL {
            let kernel = format.kernel();
            let of = |format: PackedFormat| (format.bits(), format.offset(), format.scales(), format.table());
            assert_eq!(of(kernel), of(format), "{format:?}");
            assert_eq!(kernel.kernel(), kernel);
            assert_eq!(PackedFormat::of(format.dtype()), Some(format));
        }
    }
}
