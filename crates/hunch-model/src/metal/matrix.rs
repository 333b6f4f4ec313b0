//! Weight matrices on the GPU, packed or as floats. Their kernels are in `kernels`.

use std::sync::Arc;

use hunch_kernels::WeightType;

use super::gpu::{Argument, Buffer, Gpu};
use super::packed::{Packed, PackedFormat, TILE_ROWS, stream_bytes};
use hunch_error::{Error, Result};

/// Float type with a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatFormat {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// The upper 16 bits of a float.
    BF16,
}

impl FloatFormat {
    fn of(dtype: WeightType) -> Option<Self> {
        match dtype {
            WeightType::F32 => Some(Self::F32),
            WeightType::F16 => Some(Self::F16),
            WeightType::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Returns the number of the type in `floats.metal`.
    pub(super) fn setting(self) -> i64 {
        match self {
            Self::F32 => 32,
            Self::F16 => 16,
            Self::BF16 => 17,
        }
    }
}

/// Weight matrix `[n, k]` on a GPU.
#[derive(Debug)]
pub enum Matrix {
    /// Quantised weights, packed.
    Packed {
        /// Type.
        format: PackedFormat,
        /// The four streams.
        buffer: Buffer,
        /// Offsets of the streams.
        offsets: [usize; 4],
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
    },
    /// Floats in file layout.
    Float {
        /// Type.
        format: FloatFormat,
        /// Rows of the file.
        buffer: Buffer,
        /// Rows.
        n: usize,
        /// Columns.
        k: usize,
    },
}

impl Matrix {
    /// Packs a matrix in file layout and copies it to a GPU.
    ///
    /// # Errors
    /// [`Error::Internal`] if there is no kernel for the type or the width, [`Error::OutOfMemory`] if the
    /// GPU has not enough memory.
    pub fn new(gpu: &Arc<dyn Gpu>, dtype: WeightType, (n, k): (usize, usize), file: &[u8]) -> Result<Self> {
        if !k.is_multiple_of(32) {
            return Err(no_kernel(dtype, k));
        }
        if let Some(format) = PackedFormat::of(dtype) {
            let packed = Packed::new(format, n, k, file);
            let buffer = Buffer::with_bytes(gpu, &packed.bytes)?;
            return Ok(Self::Packed { format, buffer, offsets: packed.offsets, n, k });
        }
        let format = FloatFormat::of(dtype).ok_or_else(|| no_kernel(dtype, k))?;
        Ok(Self::Float { format, buffer: Buffer::with_bytes(gpu, file)?, n, k })
    }

    /// Returns `true` if there is a kernel for the type.
    pub fn has_kernel(dtype: WeightType) -> bool {
        PackedFormat::of(dtype).is_some() || FloatFormat::of(dtype).is_some()
    }

    /// Returns the size in bytes of a matrix on a GPU, or `None` if there is no kernel for the type.
    pub fn bytes_in_memory(dtype: WeightType, n: usize, k: usize) -> Option<usize> {
        let floats = || FloatFormat::of(dtype).map(|_| n * k * dtype.type_size());
        PackedFormat::of(dtype).map(|format| Packed::size(format, n, k)).or_else(floats)
    }

    /// Returns `true` if matrices with these rows and this type may be packed as one.
    pub fn can_join(dtype: WeightType, rows: &[usize]) -> bool {
        FloatFormat::of(dtype).is_some()
            || PackedFormat::of(dtype).is_some() && rows.iter().all(|n| n.is_multiple_of(TILE_ROWS))
    }

    /// Returns the number of rows.
    pub fn n(&self) -> usize {
        match self {
            Self::Packed { n, .. } | Self::Float { n, .. } => *n,
        }
    }

    /// Returns the number of columns.
    pub fn k(&self) -> usize {
        match self {
            Self::Packed { k, .. } | Self::Float { k, .. } => *k,
        }
    }

    /// Returns `true` if the product needs quantised activations.
    pub fn wants_quantised(&self) -> bool {
        matches!(self, Self::Packed { .. })
    }

    /// Returns the bytes of `rows` rows in each stream. Packed rows are together in tiles, whose rows `rows` is a
    /// multiple of.
    pub(super) fn stream_bytes(&self, rows: usize) -> [usize; 4] {
        match self {
            Self::Packed { format, k, .. } => stream_bytes(*format, rows, *k),
            Self::Float { buffer, n, .. } => [buffer.bytes() / n * rows, 0, 0, 0],
        }
    }

    /// Returns the streams of packed weights as arguments.
    pub(super) fn streams(&self) -> [Argument<'static>; 4] {
        match self {
            Self::Packed { buffer, offsets, .. } => {
                // A stream without bytes may begin at the end of the buffer, where nothing can be bound.
                offsets.map(|offset| {
                    Argument::Input(buffer.id(), if offset < buffer.bytes() { offset } else { 0 })
                })
            }
            Self::Float { buffer, .. } => [buffer.input(); 4],
        }
    }
}

fn no_kernel(dtype: WeightType, k: usize) -> Error {
    Error::Internal(format!("there is no Metal kernel for {dtype} with {k} columns"))
}
