//! One linear layer by candle's operations: y = x W^T + b. Metal's, and the reference of the kernels.

use candle_core::quantized::QMatMul;
use candle_core::{Module, Tensor};

use hunch_error::Result;

/// A linear layer.
pub struct Linear {
    weight: QMatMul,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer from its weight `[n, k]` and bias `[n]`.
    pub fn new(weight: QMatMul, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// x `[rows, k]` f32, contiguous -> `[rows, n]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // candle's Metal product of several rows reads a narrowed view from its start; a copy is not
        // optional there (candle 0.11.1 quantized/metal.rs, `Layout::contiguous`).
        let y = if x.layout().start_offset() != 0 {
            self.weight.forward(&x.force_contiguous()?)?
        } else {
            self.weight.forward(x)?
        };
        match &self.bias {
            Some(bias) => Ok(y.broadcast_add(bias)?),
            None => Ok(y),
        }
    }
}
