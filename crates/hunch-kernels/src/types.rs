//! The table of weight types: numbers, names and block sizes as ggml defines them, and one type of our own.
//!
//! Types only. Layouts of blocks belong to `blocks`, `tables` and `repack`.

use std::fmt;

/// Defines [`WeightType`] and its table.
///
/// A row has the name of the variant, and number and name in ggml (`enum ggml_type`). Weights and bytes per
/// block follow.
macro_rules! weight_types {
    ($($variant:ident = $number:literal, $name:literal, $weights:literal, $bytes:literal;)*) => {
        /// Type of the weights of a tensor in a GGUF file.
        ///
        /// [`WeightType::Affine8`] is our own: 8-bit codes from 0 on, with a half-precision scale and minimum for 32
        /// weights. A block has scale, minimum, and the codes minus 128 as signed bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WeightType {
            $(#[doc = $name] $variant,)*
        }

        impl WeightType {
            /// All types, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the number, name, weights per block and bytes per block.
            const fn row(self) -> (u32, &'static str, usize, usize) {
                match self {
                    $(Self::$variant => ($number, $name, $weights, $bytes),)*
                }
            }
        }
    };
}

weight_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    Iq1S = 19, "IQ1_S", 256, 50;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq3S = 21, "IQ3_S", 256, 110;
    Iq2S = 22, "IQ2_S", 256, 82;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    Iq1M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 54;
    Tq2_0 = 35, "TQ2_0", 256, 66;
    Mxfp4 = 39, "MXFP4", 32, 17;
    Nvfp4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
    Affine8 = 1008, "AFFINE8", 32, 36;
}

impl WeightType {
    /// Returns the type with a number of ggml, or `None` for other numbers.
    pub fn numbered(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.number() == number)
    }

    /// Returns ggml's number.
    pub fn number(self) -> u32 {
        self.row().0
    }

    /// Returns ggml's name, such as "Q4_K".
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the number of weights in a block.
    pub fn block_size(self) -> usize {
        self.row().2
    }

    /// Returns the size of a block in the file, in bytes.
    pub fn type_size(self) -> usize {
        self.row().3
    }

    /// Returns the bits per weight in the file.
    pub fn bits(self) -> f64 {
        8.0 * self.type_size() as f64 / self.block_size() as f64
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_number() {
        for dtype in WeightType::ALL {
            assert_eq!(WeightType::numbered(dtype.number()), Some(*dtype));
        }
        assert!(WeightType::ALL.is_sorted_by_key(|dtype| dtype.number()));
        assert_eq!(WeightType::numbered(4), None);
    }
}
