//! The values of weights in file layout: candle's for its types, the kernels' for the others. Nothing is read here.

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{QStorage, QTensor};
use hunch_error::Result;
use hunch_kernels::WeightType;

use crate::candle_type::CandleType;

/// Computes the weights of whole blocks in file layout.
///
/// # Errors
/// If the bytes are not whole blocks of a type that candle reads.
pub(crate) fn dequantise(dtype: WeightType, bytes: Vec<u8>) -> Result<Vec<f32>> {
    let Some(candle) = dtype.candle() else {
        let mut values = Vec::with_capacity(bytes.len() / dtype.type_size() * dtype.block_size());
        hunch_kernels::dequantise(dtype, &bytes, &mut values);
        return Ok(values);
    };
    let count = bytes.len() / dtype.type_size() * dtype.block_size();
    let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, candle)?;
    Ok(QTensor::new(storage, count)?.dequantize(&Device::Cpu)?.to_vec1::<f32>()?)
}
