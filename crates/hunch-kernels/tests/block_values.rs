//! Compares the weights of blocks with the Python package `gguf` of llama.cpp, as recorded by
//! `scripts/block-values.py`. That script has the reference for Q1_0 and Q2_0.

#![allow(clippy::unwrap_used, missing_docs)]

use hunch_kernels::{WeightType, dequantise};
use serde_json::Value;

/// Generator of `scripts/block-values.py`.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 56) as u8
    }

    fn half(&mut self) -> [u8; 2] {
        let low = self.next();
        [low, (self.next() & 0x83) | ((self.next() % 7) << 2)]
    }

    fn block(&mut self, dtype: WeightType) -> Vec<u8> {
        let size = dtype.type_size();
        let mut block: Vec<u8> = (0..size).map(|_| self.next()).collect();
        match dtype {
            WeightType::Nvfp4 => block[..4].iter_mut().for_each(|scale| *scale &= 0x7f),
            WeightType::Mxfp4 => {}
            WeightType::Iq1M => {
                let [low, high] = self.half();
                for (i, nibble) in [low & 15, low >> 4, high & 15, high >> 4].into_iter().enumerate() {
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                }
            }
            WeightType::Tq1_0 | WeightType::Tq2_0 => {
                let half = self.half();
                block[size - 2..].copy_from_slice(&half);
            }
            _ => {
                let half = self.half();
                block[..2].copy_from_slice(&half);
            }
        }
        block
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// FNV-1a over the bits of floats. Minus zero counts as zero.
fn fold(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |state, value| {
        (state ^ u64::from((value + 0.0).to_bits())).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn blocks_have_the_values_of_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/block-values.json");
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut tested = Vec::new();
    for entry in recorded["types"].as_array().unwrap() {
        let dtype = WeightType::numbered(entry["number"].as_u64().unwrap() as u32).unwrap();
        assert_eq!(dtype.name(), entry["type"]);
        let block = unhex(entry["block"].as_str().unwrap());
        let expected = unhex(entry["values"].as_str().unwrap());
        let expected: Vec<f32> =
            expected.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut values = Vec::new();
        assert!(dequantise(dtype, &block, &mut values));
        let worst = values.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{dtype}: worst error {worst} of {}", expected.iter().fold(0f32, |a, b| a.max(b.abs())));
        assert_eq!(values, expected, "{dtype}");

        let mut noise = Noise(u64::from(dtype.number()));
        let blocks: Vec<u8> =
            (0..entry["many"]["blocks"].as_u64().unwrap()).flat_map(|_| noise.block(dtype)).collect();
        assert!(blocks.starts_with(&block), "{dtype}: the generators differ");
        values.clear();
        assert!(dequantise(dtype, &blocks, &mut values));
        assert_eq!(format!("{:016x}", fold(&values)), entry["many"]["hash"], "{dtype}: some block differs");
        tested.push(dtype);
    }
    tested.sort_unstable();
    let ours: Vec<_> = WeightType::ALL
        .iter()
        .copied()
        // Types before the i-quants, and BF16, are compared with candle. Our own type is compared with MLX.
        .filter(|dtype| dtype.number() >= WeightType::Iq2Xxs.number())
        .filter(|dtype| !matches!(dtype, WeightType::BF16 | WeightType::Affine8))
        .collect();
    assert_eq!(tested, ours);
}
