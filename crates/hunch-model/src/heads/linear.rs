//! Matrices of heads on the CPU. Floating-point weights of published files are stored in 8 bits (Q8_0) at load, which
//! halves what a draft reads. Acceptance does not suffer measurably.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::matmul::{Product, ProductInput, multiply};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{MatrixSource, Threads, WeightMatrix, WeightType};

use crate::decoder::Decoder;
use crate::dequantise::dequantise;
use crate::gguf::TensorInfo;
use crate::spec::ModelSpec;
use crate::weights::{MatrixRows, WeightFile};

/// Weights that are converted at once.
const CHUNK: usize = 8 << 20;

/// A linear layer.
pub(super) struct Linear {
    /// Weights, `[n, k]`.
    pub(super) matrix: WeightMatrix,
    /// Bias, `[n]`.
    pub(super) bias: Option<Vec<f32>>,
}

impl Linear {
    /// Loads a layer of `n` outputs and `k` inputs, in 8 bits if its rows can be.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if the weight is missing, has another shape or is not finite, and the errors of
    /// reading.
    pub(super) fn load(
        file: &WeightFile,
        name: &str,
        (n, k): (usize, usize),
        threads: &Threads,
    ) -> Result<Self> {
        let whole = MatrixRows::whole(name, n, k);
        let path = || file.gguf().path.clone();
        let weight = whole.weight();
        let Some(dtype) = file.dtype(&weight) else {
            return Err(Error::InvalidModelFile {
                path: path(),
                reason: format!("the tensor {weight} is missing"),
            });
        };
        let stored = type_of_rows(k);
        let mut bytes = Vec::new();
        let rows = (CHUNK / k).max(1);
        for first in (0..n).step_by(rows) {
            let part = whole.slice(first, rows.min(n - first));
            let values = dequantise(dtype, file.matrix_bytes(&part)?)?;
            file.check_values(&weight, &values)?;
            if stored == WeightType::F32 {
                bytes.extend(values.into_iter().flat_map(f32::to_le_bytes));
            } else {
                let values = Tensor::from_vec(values, (part.n, k), &Device::Cpu)?;
                bytes.extend_from_slice(&QTensor::quantize(&values, GgmlDType::Q8_0)?.data()?);
            }
        }
        let matrix = matrix_of(stored, &bytes, (n, k), threads)?;
        let bias = file.bias(&whole)?;
        let no_kernel = || Error::Internal(format!("{stored} has no kernel"));
        Ok(Self { matrix: matrix.ok_or_else(no_kernel)?, bias })
    }

    /// Applies the layer to all rows of `x`. `add` adds to `out` instead of overwriting it.
    pub(super) fn apply(
        &self,
        threads: &Threads,
        x: &[f32],
        quantised: &mut QuantisedRows,
        out: &mut [f32],
        add: bool,
    ) {
        product(threads, x, quantised, &self.matrix, self.bias.as_deref(), out, add);
    }

    /// Returns the weights of a row.
    ///
    /// # Errors
    /// If candle cannot dequantise them.
    pub(super) fn row(&self, row: usize) -> Result<Vec<f32>> {
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        if self.matrix.dequantise_row(row, &mut values) {
            return Ok(values);
        }
        self.matrix.copy_row(row, &mut bytes);
        dequantise(self.stored(), bytes)
    }

    /// Returns the type of the weights in memory.
    fn stored(&self) -> WeightType {
        if self.matrix.wants_quantised() { WeightType::Q8_0 } else { WeightType::F32 }
    }

    /// Returns the bytes that a product reads, about.
    pub(super) fn bytes(&self, k: usize) -> usize {
        let stored = self.stored();
        self.matrix.rows() * k / stored.block_size() * stored.type_size()
    }
}

/// Returns the type in memory of a published tensor.
pub(super) fn stored_type(info: &TensorInfo) -> WeightType {
    if let [_, k] = info.shape[..] { type_of_rows(k) } else { WeightType::F32 }
}

/// Returns the type in memory of a matrix with rows of `k` weights.
fn type_of_rows(k: usize) -> WeightType {
    if k.is_multiple_of(GgmlDType::Q8_0.block_size()) { WeightType::Q8_0 } else { WeightType::F32 }
}

/// Loads a vector.
///
/// # Errors
/// [`Error::InvalidModelFile`] if it is missing, has another length or is not finite.
pub(super) fn vector(file: &WeightFile, name: &str, len: usize) -> Result<Vec<f32>> {
    Ok(file.vector(name, len, &Device::Cpu)?.to_vec1::<f32>()?)
}

/// Loads a matrix of `n` rows of `k` weights in the type of the file, or in 32 bits if that type has no kernel.
///
/// # Errors
/// [`Error::InvalidModelFile`] if it is missing or has another shape, and the errors of reading.
pub(super) fn stored_matrix(
    file: &WeightFile,
    name: &str,
    (n, k): (usize, usize),
    threads: &Threads,
) -> Result<WeightMatrix> {
    let rows = MatrixRows::whole(name, n, k);
    if let Some(matrix) = file.matrix(&rows, threads)? {
        return Ok(matrix);
    }
    let bytes = file.matrix_bytes(&rows)?;
    in_32_bits(file.dtype(&rows.weight()).unwrap_or(WeightType::F32), bytes, (n, k), threads)
}

/// Returns the target's whole output head, shared with the decoder where both run on the CPU.
///
/// # Errors
/// If the target's file cannot be read, or memory is short.
pub(super) fn target_head(
    target: &WeightFile,
    decoder: &Decoder,
    spec: &ModelSpec,
    threads: &Threads,
) -> Result<WeightMatrix> {
    match decoder.host_head() {
        Some(shared) => Ok(shared),
        None => head_rows(target, spec, &(0..spec.n_vocab as TokenId).collect::<Vec<_>>(), threads),
    }
}

/// Computes the products of all rows of `x` with a matrix: `out = x W^T + bias`, or `out += x W^T + bias`.
pub(super) fn product(
    threads: &Threads,
    x: &[f32],
    quantised: &mut QuantisedRows,
    matrix: &WeightMatrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
    add: bool,
) {
    if matrix.wants_quantised() {
        quantised.fill(threads, x);
    }
    multiply(threads, ProductInput { x, quantised }, &mut [Product { matrix, bias, out, add }]);
}

/// Copies rows of the target's output head into a matrix of their own.
///
/// # Errors
/// If the target's file cannot be read, or memory is short.
pub(super) fn head_rows(
    target: &WeightFile,
    spec: &ModelSpec,
    tokens: &[TokenId],
    threads: &Threads,
) -> Result<WeightMatrix> {
    let (dtype, rows) = target.head_rows((spec.n_vocab, spec.n_embd), tokens)?;
    if let Some(matrix) = matrix_of(dtype, &rows, (tokens.len(), spec.n_embd), threads)? {
        return Ok(matrix);
    }
    in_32_bits(dtype, rows, (tokens.len(), spec.n_embd), threads)
}

/// Builds a matrix of 32-bit weights from bytes in file layout, whose type has no kernel.
fn in_32_bits(
    dtype: WeightType,
    bytes: Vec<u8>,
    size: (usize, usize),
    threads: &Threads,
) -> Result<WeightMatrix> {
    let bytes: Vec<u8> = dequantise(dtype, bytes)?.iter().flat_map(|value| value.to_le_bytes()).collect();
    matrix_of(WeightType::F32, &bytes, size, threads)?
        .ok_or_else(|| Error::Internal("f32 has no kernel".into()))
}

/// Builds a matrix from bytes in file layout. `None` if its type has no kernel.
fn matrix_of(
    dtype: WeightType,
    bytes: &[u8],
    (n, k): (usize, usize),
    threads: &Threads,
) -> Result<Option<WeightMatrix>> {
    let read = |at: usize, out: &mut [u8]| {
        out.copy_from_slice(&bytes[at..at + out.len()]);
        Ok(())
    };
    let source = MatrixSource { read: &read, len: bytes.len(), dtype, n, k };
    Ok(WeightMatrix::new(source, threads)?)
}
