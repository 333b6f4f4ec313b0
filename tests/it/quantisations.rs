//! Tiny models with weights of the types that only our own reader knows: i-quants, ternary types, MXFP4, NVFP4,
//! Q1_0 and Q2_0.
//!
//! The weights of single blocks are compared with llama.cpp in `crates/hunch-kernels/tests/block_values.rs`.

use std::path::{Path, PathBuf};

use hunch_core::model::{LanguageModel, LogitRows, PassInput, Rows};
use hunch_error::{Error, ErrorCode};
use hunch_library::fit::Footprint;
use hunch_library::inspect;
use hunch_model::candle_type::CandleType;
use hunch_model::decoder::Decoder;
use hunch_model::gguf::{Gguf, WeightType};
use hunch_model::low_bit;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;

use crate::support::cpu;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::tiny::{Noise, Tiny, tokens};

/// Returns the types that candle cannot read.
fn types() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.iter().copied().filter(|dtype| dtype.candle().is_none())
}

/// Returns a block of random codes with a scale of about `scale`.
fn block(dtype: WeightType, scale: f32, noise: &mut Noise) -> Vec<u8> {
    let mut block: Vec<u8> = (0..dtype.type_size()).map(|_| (noise.value() * 128.0) as i8 as u8).collect();
    let half = half::f16::from_f32(scale).to_le_bytes();
    let size = block.len();
    match dtype {
        // Powers of two: 2^(e - 128), and 2^(e - 8) with e in bits 3 to 6.
        WeightType::Mxfp4 => block[0] = (scale.log2().round() as i32 + 128) as u8,
        WeightType::Nvfp4 => block[..4].fill(((scale.log2().round() as i32 + 8).max(0) as u8) << 3),
        WeightType::Iq1M => {
            let nibbles = [half[0] & 15, half[0] >> 4, half[1] & 15, half[1] >> 4];
            for (i, nibble) in nibbles.into_iter().enumerate() {
                block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
            }
        }
        WeightType::Tq1_0 | WeightType::Tq2_0 => block[size - 2..].copy_from_slice(&half),
        WeightType::Affine8 => {
            block[..2].copy_from_slice(&half);
            block[2..4].copy_from_slice(&half::f16::from_f32(-128.0 * scale).to_le_bytes());
        }
        _ => block[..2].copy_from_slice(&half),
    }
    block
}

/// Returns random weights with a root mean square of about `level`.
fn weights(dtype: WeightType, count: usize, level: f32, noise: &mut Noise) -> Vec<u8> {
    let mut values = Vec::new();
    (0..4).for_each(|_| assert!(hunch_kernels::dequantise(dtype, &block(dtype, 1.0, noise), &mut values)));
    let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
    let scale = level / square.sqrt();
    (0..count / dtype.block_size()).flat_map(|_| block(dtype, scale, noise)).collect()
}

/// Returns a tiny model whose matrices are replaced by random ones of a type.
fn writer(dtype: WeightType, tied: bool) -> GgufWriter {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Tiny { tied, ..Tiny::default() };
    let floats = Gguf::read(&tiny.write(folder.path(), "floats")).unwrap();
    let mut noise = Noise::new(u64::from(dtype.number()));
    let matrices = floats.tensors.iter().filter(|(_, info)| info.shape.len() == 2);
    matrices.fold(tiny.writer(), |writer, (name, info)| {
        let level = if name == "token_embd.weight" { 0.5 } else { 0.08 };
        let data = weights(dtype, info.shape.iter().product(), level, &mut noise);
        let dims = [info.shape[1] as u64, info.shape[0] as u64];
        writer.without(name).raw_tensor(name, &dims, dtype.number(), None, data)
    })
}

fn write(dtype: WeightType, tied: bool, folder: &Path) -> PathBuf {
    let path = folder.join(format!("{dtype}.gguf"));
    std::fs::write(&path, writer(dtype, tied).bytes()).unwrap();
    path
}

fn chain(model: &mut Decoder, tokens: &[u32]) -> Rows {
    model.forward(PassInput::chain(tokens, LogitRows::All)).unwrap().logits
}

fn bits(rows: &Rows, i: usize) -> Vec<u32> {
    rows.row(i).iter().map(|v| v.to_bits()).collect()
}

#[test]
fn models_of_every_type_run_with_row_invariance_and_match_dequantised_weights() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in types() {
        for tied in [true, false] {
            let path = write(dtype, tied, folder.path());
            let ids = tokens(12, 4);
            let mut model = Decoder::open(&path, &cpu()).unwrap();
            let together = chain(&mut model, &ids);
            model.truncate(0).unwrap();
            for (i, id) in ids.iter().enumerate() {
                let alone = chain(&mut model, std::slice::from_ref(id));
                assert_eq!(bits(&alone, 0), bits(&together, i), "{dtype}: row {i}");
            }
            // Only the activations are rounded to 8 bits.
            let file = WeightFile::open(&path).unwrap();
            let floats = chain(&mut Decoder::load_candle(&file, &cpu()).unwrap(), &ids);
            let (mut off, mut size) = (0.0, 0.0);
            for i in 0..ids.len() {
                for (a, b) in together.row(i).iter().zip(floats.row(i)) {
                    off += f64::from(a - b).powi(2);
                    size += f64::from(*b).powi(2);
                }
            }
            let error = (off / size).sqrt();
            assert!(error < 0.03, "{dtype}, tied {tied}: {error}");
        }
    }
}

#[test]
fn memory_counts_kept_and_read_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in types() {
        let path = write(dtype, true, folder.path());
        let file = WeightFile::open(&path).unwrap();
        let of =
            |bytes: &dyn Fn(&str) -> usize| file.gguf().tensors.keys().map(|name| bytes(name)).sum::<usize>();
        let kept_bits = match dtype {
            WeightType::Iq4Nl | WeightType::Mxfp4 | WeightType::Q1_0 | WeightType::Q2_0 => 4.5,
            WeightType::Nvfp4 => 5.0,
            WeightType::Affine8 => 9.0,
            WeightType::Iq2Xs | WeightType::Iq2S | WeightType::Iq1M => 4.5625,
            WeightType::Tq1_0 | WeightType::Tq2_0 => 2.625,
            _ => 4.3125,
        };
        let read = of(&|name| {
            let info = &file.gguf().tensors[name];
            match info.shape[..] {
                [n, k] => ((n * k) as f64 * kept_bits / 8.0) as usize,
                _ => info.range.len(),
            }
        });
        assert_eq!(file.bytes_per_pass(&ModelSpec::from_gguf(file.gguf()).unwrap()), read, "{dtype}");
        let shapes = file.gguf().tensors.values().map(|info| info.shape.iter().product::<usize>());
        let spec = ModelSpec::from_gguf(file.gguf()).unwrap();
        assert_eq!(
            file.weights_per_pass(&spec),
            shapes.sum::<usize>(),
            "{dtype}: as many weights in any type"
        );
        let footprint = Footprint::on_device(file.gguf(), &cpu()).unwrap();
        assert_eq!(footprint.read_by_a_pass, read as u64, "{dtype}");
        // The vocabulary of 258 rows is padded to whole groups of at most 16 rows.
        let weights = footprint.predicted(0).weights as usize;
        assert!((read..read + 16 * 256).contains(&weights), "{dtype}: {weights}, not {read}");
        assert_eq!(footprint.weight_bytes, file.weight_bytes() as u64);
        assert_eq!(inspect(&path).unwrap().quantisations[dtype.name()], 15);
    }
}

#[test]
fn low_bit_copy_of_a_4_bit_type_has_2_bits() {
    let folder = tempfile::tempdir().unwrap();
    for (dtype, expected) in [
        (WeightType::Iq4Xs, WeightType::Q2K),
        (WeightType::Mxfp4, WeightType::Q2K),
        (WeightType::Iq2Xxs, WeightType::Iq2Xxs),
    ] {
        let path = write(dtype, true, folder.path());
        let copy = folder.path().join(format!("{dtype}.copy"));
        low_bit::write_copy(&WeightFile::open(&path).unwrap(), &copy, 2, &mut low_bit::unwatched).unwrap();
        let file = WeightFile::open(&copy).unwrap();
        assert_eq!(file.gguf().tensors["blk.0.attn_q.weight"].dtype, expected);
        let ids = tokens(20, 4);
        let rows = chain(&mut Decoder::open(&path, &cpu()).unwrap(), &ids);
        let low = chain(&mut Decoder::load(&file, &cpu()).unwrap(), &ids);
        let dot = |a: &Rows, b: &Rows| -> f64 {
            let values = |rows: &Rows| -> Vec<f32> { (0..20).flat_map(|i| rows.row(i).to_vec()).collect() };
            values(a).iter().zip(values(b)).map(|(a, b)| f64::from(a * b)).sum()
        };
        let alike = dot(&rows, &low) / (dot(&rows, &rows) * dot(&low, &low)).sqrt();
        assert!(alike > 0.5, "{dtype}: {alike}");
    }
}

#[test]
fn rejects_incomplete_blocks_unknown_types_and_separate_scales() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let open = |bytes: Vec<u8>| -> Error {
        std::fs::write(&path, bytes).unwrap();
        Decoder::open(&path, &cpu()).err().unwrap()
    };
    let name = "blk.0.attn_q.weight";
    for dtype in types() {
        let whole = writer(dtype, true).bytes();
        let error = open(whole[..whole.len() - 2 * dtype.type_size()].to_vec());
        assert_eq!(error.code(), ErrorCode::InvalidModelFile, "{dtype}: {error}");
        assert!(error.to_string().contains("incomplete"), "{dtype}: {error}");
        let columns = dtype.block_size() as u64 / 2;
        let half = writer(dtype, true).without(name);
        let error = open(half.raw_tensor(name, &[columns, 2], dtype.number(), None, vec![0; 1000]).bytes());
        assert_eq!(error.code(), ErrorCode::InvalidModelFile, "{dtype}: {error}");
        assert!(error.to_string().contains(&format!("in a block of {dtype}")), "{dtype}: {error}");
    }
    for (number, what) in [(99, "the unknown type 99"), (15, "Q8_K"), (31, "Q4_0_4_4"), (26, "I32")] {
        let unknown = Tiny::default().writer().without(name);
        let bytes = vec![0; 4 * 256 * 256];
        let error = open(unknown.raw_tensor(name, &[256, 256], number, None, bytes).bytes());
        assert_eq!(error.code(), ErrorCode::UnsupportedModel, "{error}");
        assert!(error.to_string().contains(&format!("stored as {what}, which is not supported")), "{error}");
    }
    let scale = writer(WeightType::Nvfp4, true).raw_tensor("blk.0.attn_q.scale", &[1], 0, None, vec![0; 4]);
    let error = open(scale.bytes());
    assert_eq!(error.code(), ErrorCode::UnsupportedModel, "{error}");
    assert!(error.to_string().contains("separate scales"), "{error}");
}
