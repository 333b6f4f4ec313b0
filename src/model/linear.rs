//! One linear layer over whatever its weights are: y = x W^T + b. Row-invariant on the CPU.

use candle_core::quantized::QMatMul;
use candle_core::{Module, Storage, Tensor};

use crate::error::{Error, Result};
use crate::model::kernels::WeightMatrix;

/// How the product is computed.
pub enum Product {
    /// Our CPU kernels over the mapped file.
    Host(WeightMatrix),
    /// candle: Metal, and on the CPU the types our kernels have no path for (Q2_K, Q3_K).
    Candle(QMatMul),
}

/// A linear layer.
pub struct Linear {
    product: Product,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer from its product and bias `[n]`.
    pub fn new(product: Product, bias: Option<Tensor>) -> Self {
        Self { product, bias }
    }

    /// x `[rows, k]` f32, contiguous -> `[rows, n]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.product {
            Product::Host(matrix) => {
                let rows = x.dim(0)?;
                let y = with_host_slice(x, |x| matrix.forward(x))?;
                Tensor::from_vec(y, (rows, matrix.n()), x.device())?
            }
            // candle's Metal product of several rows reads a narrowed view from its start; a copy
            // is not optional there (candle 0.11.1 quantized/metal.rs, `Layout::contiguous`).
            Product::Candle(weights) if x.layout().start_offset() != 0 => {
                weights.forward(&x.force_contiguous()?)?
            }
            Product::Candle(weights) => weights.forward(x)?,
        };
        match &self.bias {
            Some(bias) => Ok(y.broadcast_add(bias)?),
            None => Ok(y),
        }
    }
}

/// Runs `work` on the values of a contiguous f32 tensor that lives on the CPU.
///
/// # Errors
/// When the tensor is none of that.
pub(crate) fn with_host_slice<R>(x: &Tensor, work: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let (storage, layout) = x.storage_and_layout();
    let Some((from, to)) = layout.contiguous_offsets() else {
        return Err(Error::Internal("a kernel was given a tensor that is not contiguous".into()));
    };
    match &*storage {
        Storage::Cpu(values) => Ok(work(&values.as_slice::<f32>()?[from..to])),
        _ => Err(Error::Internal("a CPU kernel was given a tensor of another device".into())),
    }
}
