//! Linear layers with one input, loaded as few matrices and multiplied in one dispatch.

use std::sync::Arc;

use crate::metal::activations::{Activations, Forms};
use crate::metal::gpu::{Buffer, Gpu};
use crate::metal::kernels::Kernels;
use crate::metal::matrix::Matrix;
use crate::metal::multiply::{GpuProduct, ResultScaling, ResultUse};
use crate::metal::products::MAX_PARTS;
use crate::weights::{MatrixRows, WeightFile};
use hunch_error::{Error, Result};

/// Linear layers with one input, whose outputs are next to each other. Layers of one type are one matrix.
pub(super) struct Joined {
    parts: Vec<JoinedPart>,
    /// Values of a row of the output.
    pub(super) width: usize,
}

struct JoinedPart {
    matrix: Matrix,
    bias: Option<Buffer>,
    /// Values of a row of the output before those of the part.
    offset: usize,
}

impl Joined {
    pub(super) fn load(file: &WeightFile, gpu: &Arc<dyn Gpu>, linears: &[MatrixRows]) -> Result<Self> {
        let same = |a: &MatrixRows, b: &MatrixRows| {
            let dtype = file.dtype(&a.weight());
            dtype == file.dtype(&b.weight())
                && dtype.is_some_and(|dtype| Matrix::can_join(dtype, &[a.n, b.n]))
        };
        let (mut parts, mut width) = (Vec::new(), 0);
        for run in linears.chunk_by(same) {
            parts.push(JoinedPart {
                matrix: matrix(file, gpu, run)?,
                bias: bias(file, gpu, run)?,
                offset: width,
            });
            width += run.iter().map(|linear| linear.n).sum::<usize>();
        }
        Ok(Self { parts, width })
    }

    /// Returns which forms of activations the products of `rows` rows read.
    pub(super) fn forms(&self, rows: usize) -> Forms {
        let quantised = |part: &&JoinedPart| part.matrix.wants_quantised();
        let count = self.parts.iter().filter(quantised).count();
        Forms::read_by(count > 0, count < self.parts.len(), rows)
    }

    /// Multiplies, in one dispatch for every three matrices.
    pub(super) fn multiply(
        &self,
        kernels: &Kernels,
        x: &Activations,
        rows: usize,
        out: &Buffer,
        store: ResultUse,
    ) -> Result<()> {
        let scaling = ResultScaling { scale: store.factor(), cap: None };
        let products = self.parts.iter().map(|JoinedPart { matrix, bias, offset }| GpuProduct {
            matrix,
            bias: bias.as_ref(),
            out: out.at_value(*offset),
            stride: self.width,
            add: store.adds(),
            scaling,
        });
        let products: Vec<_> = products.collect();
        products.chunks(MAX_PARTS).try_for_each(|products| kernels.multiply_all(products, x, rows))
    }
}

/// Loads linear layers of one type as one matrix.
pub(super) fn matrix(file: &WeightFile, gpu: &Arc<dyn Gpu>, linears: &[MatrixRows]) -> Result<Matrix> {
    let (mut bytes, mut n) = (Vec::new(), 0);
    for linear in linears {
        bytes.extend(file.matrix_bytes(linear)?);
        n += linear.n;
    }
    let first = &linears[0];
    let missing = || Error::Internal(format!("the tensor {} is missing", first.weight()));
    let dtype = file.dtype(&first.weight()).ok_or_else(missing)?;
    Matrix::new(gpu, dtype, (n, first.k), &bytes)
}

/// Loads the biases of linear layers, or returns `None` if none has one.
pub(super) fn bias(file: &WeightFile, gpu: &Arc<dyn Gpu>, linears: &[MatrixRows]) -> Result<Option<Buffer>> {
    let mut values = Vec::new();
    let mut any = false;
    for linear in linears {
        match file.bias(linear)? {
            Some(bias) => {
                values.extend(bias);
                any = true;
            }
            None => values.resize(values.len() + linear.n, 0.0),
        }
    }
    any.then(|| Buffer::with_floats(gpu, &values)).transpose()
}
