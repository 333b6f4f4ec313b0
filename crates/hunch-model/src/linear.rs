//! Linear layer y = x W^T + b with candle operations, used by the candle executor.
//!
//! The CPU executor has its own layer on our kernels.

use candle_core::quantized::QMatMul;
use candle_core::{Module, Tensor};

use hunch_error::Result;

/// Linear layer with an optional bias.
pub(crate) struct Linear {
    weight: QMatMul,
    bias: Option<Tensor>,
}

impl Linear {
    /// Creates a layer from its weight `[n, k]` and bias `[n]`.
    pub(crate) fn new(weight: QMatMul, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// Applies the layer to contiguous f32 rows `[rows, k]` and returns `[rows, n]`.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // The Metal product of candle 0.11.1 ignores the start offset of a narrowed view, so it must
        // be copied (quantized/metal.rs, `Layout::contiguous`).
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
