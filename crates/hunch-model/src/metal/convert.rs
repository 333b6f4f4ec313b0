//! Weight types whose kernel fails the self-test: which other kernel multiplies their weights, and the conversion
//! of the weights as they are read. Reading files does not belong here.
//!
//! A kernel cannot be replaced by candle's operation alone. candle's products take unquantised rows, and their
//! results depend on the number of rows. A model with one such product would lose its invariant rows. Instead
//! the weights of the type are converted at load to a type whose kernel passed, with the same values. Another
//! packed type is preferred. It takes at most 1 more bit a weight in most cases, and at most 4.
//!
//! F32 takes 4 to 12 times the bytes. So it is used only while a pass reads at most [`MAX_GROWTH`] times the bytes
//! of the file. Beyond that candle's operations, which keep the type, are faster for most models.

use std::collections::BTreeMap;

use super::packed::{PackedFormat, UNIT};
use super::selftest::{KernelPart, SelfTest};
use crate::dequantise::dequantise;
use crate::gguf::Gguf;
use hunch_error::Result;
use hunch_kernels::WeightType;

/// Largest growth of the bytes that a pass reads. candle's products of 2 to 16 rows take 4.7 to 6.2 times a product of
/// one row. So our kernels still win a round of drafting, and memory stays bounded.
const MAX_GROWTH: f64 = 2.0;

/// Conversion of all weights of one type, because the product kernel of that type failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Type in the file.
    pub from: WeightType,
    /// Type on the GPU.
    pub to: WeightType,
    /// Problem of the kernel, from the self-test.
    pub problem: String,
}

/// Returns the next packed type that holds all values of a type exactly.
fn wider(dtype: WeightType) -> Option<WeightType> {
    match dtype {
        WeightType::Q4_0 => Some(WeightType::Q5_0),
        WeightType::Q5_0 => Some(WeightType::Q8_0),
        WeightType::Q4_1 => Some(WeightType::Q5_1),
        WeightType::Q3K => Some(WeightType::Q6K),
        WeightType::Q4K => Some(WeightType::Q5K),
        WeightType::Iq4Nl => Some(WeightType::Q8_0),
        WeightType::Iq3S => Some(WeightType::Q6K),
        _ => None,
    }
}

/// Returns the conversions that a model needs on a GPU with these results, none if all its kernels passed.
///
/// # Errors
/// The problem of a kernel that cannot be replaced.
pub fn conversions(gguf: &Gguf, test: &SelfTest) -> std::result::Result<Vec<Conversion>, String> {
    let problem = |dtype| test.problem_of([KernelPart::Product(dtype)]);
    let tied = !gguf.tensors.contains_key("output.weight");
    // Bytes that a pass reads, by type.
    let mut read: BTreeMap<WeightType, usize> = BTreeMap::new();
    for (name, tensor) in gguf.model_tensors().filter(|(_, tensor)| tensor.shape.len() == 2) {
        *read.entry(tensor.dtype).or_insert(0) +=
            if tied || name != "token_embd.weight" { tensor.range.len() } else { 0 };
    }
    let (mut found, mut grown) = (Vec::new(), 0.0);
    let mut largest: Option<(f64, String)> = None;
    for (from, bytes) in read.iter().map(|(from, bytes)| (*from, *bytes)) {
        let Some(problem_of_type) = problem(from) else {
            grown += bytes as f64;
            continue;
        };
        let packed = std::iter::successors(wider(from), |dtype| wider(*dtype));
        let passed =
            packed.chain([WeightType::F32]).find(|dtype| *dtype != from && problem(*dtype).is_none());
        let Some(to) = passed else { return Err(problem_of_type) };
        let new = bytes as f64 * to.bits() / from.bits();
        grown += new;
        if largest.as_ref().is_none_or(|(most, _)| new > *most) {
            largest = Some((new, problem_of_type.clone()));
        }
        found.push(Conversion { from, to, problem: problem_of_type });
    }
    let all: usize = read.values().sum();
    match largest {
        Some((_, problem)) if grown > MAX_GROWTH * all as f64 => Err(problem),
        _ => Ok(found),
    }
}

/// Converts weights in file layout to another type, as chosen by [`conversions`].
///
/// # Errors
/// If the bytes are not whole blocks.
pub fn convert(from: WeightType, to: WeightType, bytes: &[u8]) -> Result<Vec<u8>> {
    if from == to {
        return Ok(bytes.to_vec());
    }
    let Some(next) = wider(from).filter(|_| to != WeightType::F32) else {
        let values = dequantise(from, bytes.to_vec())?;
        return Ok(values.into_iter().flat_map(f32::to_le_bytes).collect());
    };
    let mut out = Vec::with_capacity(bytes.len() / from.type_size() * next.type_size());
    for block in bytes.chunks_exact(from.type_size()) {
        widen(from, block, &mut out);
    }
    convert(next, to, &out)
}

/// Appends a block in the next wider type.
fn widen(from: WeightType, block: &[u8], out: &mut Vec<u8>) {
    match from {
        WeightType::Q4_0 => {
            // Codes have an offset of 8 in Q4_0, and of 16 in Q5_0.
            let nibbles = &block[2..];
            let high = |i: usize, nibble: u8| u32::from(nibble >> 3) << i;
            let fifth: u32 =
                nibbles.iter().enumerate().map(|(i, b)| high(i, b & 15) | high(i + 16, b >> 4)).sum();
            out.extend_from_slice(&block[..2]);
            out.extend(fifth.to_le_bytes());
            out.extend(nibbles.iter().map(|both| both ^ 0x88));
        }
        WeightType::Q5_0 => {
            out.extend_from_slice(&block[..2]);
            out.extend(
                PackedFormat::Q5_0.units(block)[0]
                    .codes
                    .map(|code| (code - PackedFormat::Q5_0.offset()) as u8),
            );
        }
        // A fifth bit that is 0 everywhere.
        WeightType::Q4_1 => insert(block, 4, 4, out),
        WeightType::Q4K => insert(block, 16, 32, out),
        WeightType::Iq4Nl => {
            out.extend_from_slice(&block[..2]);
            out.extend(
                PackedFormat::Iq4Nl.units(block)[0].codes.map(|code| PackedFormat::Iq4Nl.value(code) as u8),
            );
        }
        WeightType::Q3K | WeightType::Iq3S => {
            let format = if from == WeightType::Q3K { PackedFormat::Q3K } else { PackedFormat::Iq3S };
            let units = format.units(block);
            let (mut low, mut high, mut scales) = ([0; 128], [0; 64], [0; 16]);
            for (u, unit) in units.iter().enumerate() {
                let (side, j) = (u / 4, u % 4);
                for (i, code) in unit.codes.iter().enumerate() {
                    let code = (format.value(*code) + i32::from(PackedFormat::Q6K.offset())) as u8;
                    low[64 * side + UNIT * (j % 2) + i] |= (code & 15) << (4 * (j / 2));
                    high[32 * side + i] |= (code >> 4) << (2 * j);
                }
                scales[2 * u..2 * u + 2].copy_from_slice(&unit.scale.map(|scale| scale as u8));
            }
            out.extend(low.into_iter().chain(high).chain(scales).chain(units[0].d.to_le_bytes()));
        }
        _ => unreachable!("{from:?} has no wider type"),
    }
}

/// Appends a block with `zeros` zero bytes at a position.
fn insert(block: &[u8], at: usize, zeros: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&block[..at]);
    out.resize(out.len() + zeros, 0);
    out.extend_from_slice(&block[at..]);
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::QTensor;
    use candle_core::{Device, Tensor};
    use hunch_kernels::random_blocks;

    use super::super::selftest::{Finding, noise};
    use super::*;
    use crate::candle_type::CandleType;

    fn values(dtype: WeightType, bytes: &[u8]) -> Vec<f32> {
        dequantise(dtype, bytes.to_vec()).unwrap()
    }

    #[test]
    fn converted_weights_have_the_same_values() {
        use WeightType::{BF16, F16, F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        let weights = Tensor::from_vec(noise(4096, 3), 4096, &Device::Cpu).unwrap();
        let packed = [(Q4_0, Q5_0), (Q4_0, Q8_0), (Q5_0, Q8_0), (Q4_1, Q5_1), (Q3K, Q6K), (Q4K, Q5K)];
        let to_f32 =
            [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, F16, BF16].map(|dtype| (dtype, F32));
        let own = [(WeightType::Iq4Nl, Q8_0), (WeightType::Iq3S, Q6K), (WeightType::Mxfp4, F32)];
        for (from, to) in packed.into_iter().chain(to_f32).chain(own) {
            let bytes = match from.candle() {
                Some(candle) => QTensor::quantize(&weights, candle).unwrap().data().unwrap().into_owned(),
                None => random_blocks(from, 4096 / from.block_size(), 0.01, 7),
            };
            let converted = convert(from, to, &bytes).unwrap();
            assert_eq!(
                converted.len() as f64,
                bytes.len() as f64 * to.bits() / from.bits(),
                "{from:?} to {to:?}"
            );
            assert_eq!(values(to, &converted), values(from, &bytes), "{from:?} to {to:?}");
        }
    }

    /// A header with a matrix of each type and number of weights.
    fn header(matrices: &[(WeightType, usize)]) -> Gguf {
        let tensor = |(i, &(dtype, weights)): (usize, &(WeightType, usize))| {
            let bytes = weights / dtype.block_size() * dtype.type_size();
            let tensor = crate::gguf::TensorInfo { shape: vec![1, weights], dtype, part: 0, range: 0..bytes };
            (format!("blk.{i}.ffn_up.weight"), tensor)
        };
        Gguf::of_tensors("model.gguf".as_ref(), matrices.iter().enumerate().map(tensor).collect(), 0)
    }

    fn results(failing: &[WeightType]) -> SelfTest {
        let finding = |dtype: &WeightType| {
            let part = KernelPart::Product(*dtype);
            let problem = failing.contains(dtype).then(|| format!("{part} differs from the CPU"));
            Finding::new(part, problem)
        };
        SelfTest { findings: WeightType::ALL.iter().map(finding).collect(), speed: None }
    }

    #[test]
    fn failing_type_is_converted_to_the_narrowest_that_passed() {
        use WeightType::{F32, Q4_0, Q4K, Q5_0, Q5K, Q6K, Q8_0};
        let chosen = |model: &[(WeightType, usize)], failing: &[WeightType]| {
            let found = conversions(&header(model), &results(failing));
            found.map(|all| all.into_iter().map(|one| (one.from, one.to)).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[(Q4K, 1024)], &[]), Ok(Vec::new()));
        assert_eq!(chosen(&[(Q4K, 1024)], &[Q6K]), Ok(Vec::new()), "the model has no such weights");
        assert_eq!(chosen(&[(Q4K, 1024), (Q6K, 256)], &[Q4K]), Ok(vec![(Q4K, Q5K)]));
        assert_eq!(chosen(&[(Q4_0, 1024)], &[Q4_0]), Ok(vec![(Q4_0, Q5_0)]));
        assert_eq!(chosen(&[(Q4_0, 1024)], &[Q4_0, Q5_0]), Ok(vec![(Q4_0, Q8_0)]));
        // A twelfth of the weights may be floats, all of them may not.
        assert_eq!(chosen(&[(Q4K, 2816), (Q6K, 256)], &[Q6K]), Ok(vec![(Q6K, F32)]));
        let problem = Err("product Q6_K differs from the CPU".to_owned());
        assert_eq!(chosen(&[(Q4K, 256), (Q6K, 256)], &[Q6K]), problem);
        assert_eq!(chosen(&[(Q4K, 2816), (Q6K, 256)], &[Q6K, F32]), problem);
    }
}
