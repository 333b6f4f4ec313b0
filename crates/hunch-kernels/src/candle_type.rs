//! The types that candle reads too: the tests compare their kernels with candle.

use candle_core::quantized::GgmlDType::{self, *};

use crate::WeightType;

/// Returns candle's type of the same name, or `None` if candle cannot read it.
pub(crate) fn candle_type(dtype: WeightType) -> Option<GgmlDType> {
    [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K]
        .into_iter()
        .find(|candle| format!("{candle:?}") == format!("{dtype:?}"))
}
