//! Types of weights that candle reads too. The kernels do not know candle.

use candle_core::quantized::GgmlDType;
use hunch_kernels::WeightType;

/// A weight type's counterpart in candle.
pub trait CandleType {
    /// Returns candle's type, or `None` if candle cannot read this type.
    fn candle(self) -> Option<GgmlDType>;
}

impl CandleType for WeightType {
    fn candle(self) -> Option<GgmlDType> {
        Some(match self {
            Self::F32 => GgmlDType::F32,
            Self::F16 => GgmlDType::F16,
            Self::BF16 => GgmlDType::BF16,
            Self::Q4_0 => GgmlDType::Q4_0,
            Self::Q4_1 => GgmlDType::Q4_1,
            Self::Q5_0 => GgmlDType::Q5_0,
            Self::Q5_1 => GgmlDType::Q5_1,
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q2K => GgmlDType::Q2K,
            Self::Q3K => GgmlDType::Q3K,
            Self::Q4K => GgmlDType::Q4K,
            Self::Q5K => GgmlDType::Q5K,
            Self::Q6K => GgmlDType::Q6K,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_candle_where_it_has_the_type() {
        let shared = WeightType::ALL.iter().filter_map(|dtype| Some((dtype, dtype.candle()?)));
        for (dtype, candle) in shared.clone() {
            assert_eq!(
                (candle.block_size(), candle.type_size()),
                (dtype.block_size(), dtype.type_size()),
                "{dtype}"
            );
        }
        assert_eq!((shared.count(), WeightType::ALL.len()), (13, 29));
    }
}
