//! Weights as MLX quantises them, read as blocks of GGUF.
//!
//! MLX stores `weight = scale * code + bias`, with one scale and bias for each group of 32, 64 or 128 weights of a
//! row. Codes of 2, 3, 4, 5, 6 or 8 bits follow each other from the lowest bit on. Blocks of 32 weights with a scale
//! and a minimum hold the same numbers. Q4_1 has up to 4 bits, Q5_1 has 5, AFFINE8 has 6 and 8. The blocks of a group
//! share its scale and bias.
//!
//! Codes do not change. Scales and biases become half precision. Numbers of 16 bits, of either kind, stay exact down
//! to 2^-17. Smaller ones are rounded by at most 2^-25. Numbers of 32 bits are rounded to 11 significant bits.
//!
//! MXFP4 has a power of two for each 32 weights and no bias, and only changes the order of its codes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use half::{bf16, f16};
use hunch_error::{Error, Result};

use crate::file::{DerivedBytes, ModelFile};
use crate::gguf::WeightType;

/// Weights of a block.
const BLOCK: usize = 32;
/// Bytes of packed codes that are converted at once.
const CHUNK: usize = 1 << 20;

/// Arrangement of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Scale and bias for each group.
    Affine {
        /// Bits of a code.
        bits: usize,
        /// Weights of a group.
        group: usize,
    },
    /// 4-bit floats with a power of two for 32 weights.
    Mxfp4,
}

impl Mode {
    /// Returns the bits of a code.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::Affine { bits, .. } => bits,
            Self::Mxfp4 => 4,
        }
    }

    /// Returns the weights of a group.
    pub(super) fn group(self) -> usize {
        match self {
            Self::Affine { group, .. } => group,
            Self::Mxfp4 => BLOCK,
        }
    }

    /// Returns the type that holds the weights. `None` for numbers of bits that MLX does not write.
    pub(super) fn dtype(self) -> Option<WeightType> {
        match self {
            Self::Affine { bits: 2..=4, .. } => Some(WeightType::Q4_1),
            Self::Affine { bits: 5, .. } => Some(WeightType::Q5_1),
            Self::Affine { bits: 6 | 8, .. } => Some(WeightType::Affine8),
            Self::Affine { .. } => None,
            Self::Mxfp4 => Some(WeightType::Mxfp4),
        }
    }
}

/// Bytes of a tensor in an open file.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) file: Arc<ModelFile>,
    pub(super) range: Range<usize>,
}

impl Stored {
    fn read(&self, part: Range<usize>) -> Result<Vec<u8>> {
        self.file.read(self.range.start + part.start..self.range.start + part.end)
    }
}

/// Number type of scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleType {
    F16,
    BF16,
    F32,
}

impl ScaleType {
    /// Returns the type with a name of safetensors.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "F16" => Some(Self::F16),
            "BF16" => Some(Self::BF16),
            "F32" => Some(Self::F32),
            _ => None,
        }
    }

    /// Returns the size in bytes.
    pub(super) fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    fn half(self, bytes: &[u8]) -> f16 {
        match self {
            Self::F16 => f16::from_le_bytes([bytes[0], bytes[1]]),
            Self::BF16 => f16::from_f32(bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
            Self::F32 => f16::from_f32(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        }
    }
}

/// Quantised matrix `[rows, width]` of a safetensors file. Its bytes are those of blocks.
pub(super) struct QuantisedMatrix {
    /// Tensor name and file, for errors.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) mode: Mode,
    /// Type of the blocks.
    pub(super) dtype: WeightType,
    pub(super) codes: Stored,
    pub(super) scales: Stored,
    /// Biases, as many as scales. `None` for MXFP4.
    pub(super) biases: Option<Stored>,
    pub(super) scale_type: ScaleType,
}

impl QuantisedMatrix {
    fn row_bytes(&self) -> usize {
        self.width / BLOCK * self.dtype.type_size()
    }

    /// Returns the size of all blocks in bytes.
    pub(super) fn len(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Appends the blocks of some rows.
    fn convert(&self, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let (code_bytes, groups) = (self.width * self.mode.bits() / 8, self.width / self.mode.group());
        let part = |bytes: usize| rows.start * bytes..rows.end * bytes;
        let codes = self.codes.read(part(code_bytes))?;
        let Some(biases) = &self.biases else {
            let scales = self.scales.read(part(groups))?;
            for (scale, codes) in scales.iter().zip(codes.chunks_exact(BLOCK / 2)) {
                out.push(*scale);
                out.extend(nibbles(&unpacked(codes, 4)));
            }
            return Ok(());
        };
        let size = self.scale_type.size();
        let (scales, biases) = (self.scales.read(part(groups * size))?, biases.read(part(groups * size))?);
        let block_bytes = BLOCK * self.mode.bits() / 8;
        let of_group = scales.chunks_exact(size).zip(biases.chunks_exact(size));
        for ((scale, bias), codes) in
            of_group.zip(codes.chunks_exact(block_bytes * self.mode.group() / BLOCK))
        {
            let [scale, bias] = [scale, bias].map(|number| self.scale_type.half(number));
            if !scale.is_finite() || !bias.is_finite() {
                let reason = format!(
                    "the tensor {} has a scale that is not a number below 65504. Download it again",
                    self.name
                );
                return Err(Error::InvalidModelFile { path: self.path.clone(), reason });
            }
            for codes in codes.chunks_exact(block_bytes) {
                out.extend(scale.to_le_bytes());
                out.extend(bias.to_le_bytes());
                self.put_codes(&unpacked(codes, self.mode.bits()), out);
            }
        }
        Ok(())
    }

    fn put_codes(&self, codes: &[u8; BLOCK], out: &mut Vec<u8>) {
        match self.dtype {
            WeightType::Affine8 => out.extend(codes.map(|code| code ^ 0x80)),
            WeightType::Q5_1 => {
                let fifth = (0..BLOCK).fold(0u32, |bits, i| bits | u32::from(codes[i] >> 4) << i);
                out.extend(fifth.to_le_bytes());
                out.extend(nibbles(codes));
            }
            _ => out.extend(nibbles(codes)),
        }
    }
}

impl DerivedBytes for QuantisedMatrix {
    fn read_into(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.row_bytes();
        let at_once = (CHUNK / row_bytes.max(1)).max(1);
        let (mut row, mut done, mut blocks) = (at / row_bytes, 0, Vec::new());
        while done < out.len() {
            let end = (row + at_once).min((at + out.len()).div_ceil(row_bytes));
            blocks.clear();
            self.convert(row..end, &mut blocks)?;
            let skipped = (at + done) - row * row_bytes;
            let length = (blocks.len() - skipped).min(out.len() - done);
            out[done..done + length].copy_from_slice(&blocks[skipped..skipped + length]);
            (row, done) = (end, done + length);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        let all = [Some(&self.codes), Some(&self.scales), self.biases.as_ref()];
        all.into_iter().flatten().try_for_each(|stored| stored.file.check_unchanged())
    }
}

/// Unpacks the codes of a block from its bits.
fn unpacked(bytes: &[u8], bits: usize) -> [u8; BLOCK] {
    let mask = ((1u16 << bits) - 1) as u8;
    std::array::from_fn(|i| {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let next = bytes.get(byte + 1).copied().unwrap_or(0);
        (u16::from_le_bytes([bytes[byte], next]) >> shift) as u8 & mask
    })
}

/// Packs codes below 16, or their lower 4 bits: weight i and weight i + 16 share a byte.
fn nibbles(codes: &[u8; BLOCK]) -> [u8; BLOCK / 2] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + BLOCK / 2] << 4)
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::dequantise::dequantise;

    fn unhex(json: &Json) -> Vec<u8> {
        let text = json.as_str().unwrap();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn stored(bytes: Vec<u8>) -> Stored {
        let range = 0..bytes.len();
        Stored { file: Arc::new(ModelFile::in_memory("weights".as_ref(), bytes)), range }
    }

    fn recorded() -> Json {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mlx-folders.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn matrix(entry: &Json) -> QuantisedMatrix {
        let size = |key: &str| entry[key].as_u64().unwrap() as usize;
        let affine = Mode::Affine { bits: size("bits"), group: size("group") };
        let mode = if entry["dtype"] == "U8" { Mode::Mxfp4 } else { affine };
        QuantisedMatrix {
            name: "w".into(),
            path: "weights".into(),
            rows: 2,
            width: 128,
            mode,
            dtype: mode.dtype().unwrap(),
            codes: stored(unhex(&entry["codes"])),
            scales: stored(unhex(&entry["scales"])),
            biases: entry.get("biases").map(|biases| stored(unhex(biases))),
            scale_type: ScaleType::named(entry["dtype"].as_str().unwrap()).unwrap_or(ScaleType::F16),
        }
    }

    fn all(matrix: &QuantisedMatrix) -> Vec<u8> {
        let mut bytes = vec![0; matrix.len()];
        matrix.read_into(0, &mut bytes).unwrap();
        bytes
    }

    /// MLX computed the values in single precision, with the multiplication and the addition rounded as one or two.
    #[test]
    fn blocks_have_the_values_of_mlx() {
        let recorded = recorded();
        let entries = recorded["values"].as_array().unwrap();
        assert_eq!(entries.len(), 37);
        for entry in entries {
            let matrix = matrix(entry);
            let ours = dequantise(matrix.dtype, all(&matrix)).unwrap();
            let bytes = unhex(&entry["values"]);
            let values: Vec<f32> =
                bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            assert_eq!(ours.len(), values.len());
            for (ours, value) in ours.iter().zip(values) {
                assert!((ours - value).abs() < 1e-8, "{:?}: {ours}, not {value}", matrix.mode);
            }
        }
    }

    #[test]
    fn any_range_of_bytes_can_be_read() {
        let recorded = recorded();
        let matrix = matrix(&recorded["values"][6]);
        let bytes = all(&matrix);
        for (at, len) in [(0, 1), (7, 60), (79, 2), (80, 80), (159, 1), (3, 157), (160, 0)] {
            let mut part = vec![0; len];
            matrix.read_into(at, &mut part).unwrap();
            assert_eq!(part, bytes[at..at + len], "{len} bytes at {at}");
        }
    }

    #[test]
    fn scales_stay_exact_or_within_the_stated_bound() {
        for bits in (0..=u16::MAX).map(bf16::from_bits).filter(|scale| scale.is_finite()) {
            let (exact, ours) = (bits.to_f32(), ScaleType::BF16.half(&bits.to_le_bytes()).to_f32());
            let size = exact.abs();
            match size {
                _ if size > 65504.0 => assert!(ours.is_infinite() || ours == exact),
                _ if size >= 2f32.powi(-17) => assert_eq!(ours, exact),
                _ => assert!((ours - exact).abs() <= 2f32.powi(-25), "{exact} became {ours}"),
            }
        }
    }

    #[test]
    fn rejects_scales_that_are_no_numbers() {
        let recorded = recorded();
        for bytes in [bf16::NAN, bf16::INFINITY, bf16::MAX] {
            let mut matrix = matrix(&recorded["values"][1]);
            let mut scales = unhex(&recorded["values"][1]["scales"]);
            scales[6..8].copy_from_slice(&bytes.to_le_bytes());
            matrix.scales = stored(scales);
            let error = matrix.read_into(0, &mut vec![0; matrix.len()]).unwrap_err().to_string();
            assert!(error.contains("the tensor w has a scale"), "{error}");
        }
    }
}
