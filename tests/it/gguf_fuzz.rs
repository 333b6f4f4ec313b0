//! Fuzz tests of the GGUF reader: no panics, bounded memory, consistent headers and useful errors.

use std::cell::Cell;
use std::path::Path;

use hunch_error::{Error, ErrorCode};
use hunch_model::gguf::{Array, Gguf, Value, WeightType};
use hunch_model::spec::ModelSpec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::alloc_count::peak_during;
use crate::support::mutate::{BOMBS, apply, mutations, runner, set};
use hunch_testing::gguf_writer::{Field, GgufWriter};
use hunch_testing::samples::rich;

/// Maximum ratio of memory to file size. Most expensive is an entry of 14 bytes, which becomes a tree
/// node.
const FACTOR: usize = 8;
/// Memory in bytes for paths, error messages and first blocks of collections, for any file size.
const FLOOR: usize = 8 << 10;

fn parse(bytes: &[u8]) -> Result<Gguf, Error> {
    Gguf::parse(Path::new("model.gguf"), bytes)
}

fn bases() -> Vec<(Vec<u8>, Vec<Field>)> {
    let vocabulary_only = GgufWriter::new().strings("tokenizer.ggml.tokens", ["a"; 40]);
    [rich(GgufWriter::new()), rich(GgufWriter::new().version(2).alignment(8)), vocabulary_only]
        .iter()
        .map(GgufWriter::bytes_and_fields)
        .collect()
}

fn header_len((bytes, fields): &(Vec<u8>, Vec<Field>)) -> usize {
    fields.iter().map(|field| field.at + field.width).max().unwrap_or(bytes.len())
}

/// Checks bounded memory and either a valid header or a proper error. Returns `true` if accepted.
fn check(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let (result, peak) = peak_during(|| parse(bytes));
    prop_assert!(peak <= FACTOR * bytes.len() + FLOOR, "{peak} bytes for a file of {}", bytes.len());
    let gguf = match result {
        Ok(gguf) => gguf,
        Err(error) => {
            let code = error.code();
            prop_assert!(
                matches!(code, ErrorCode::InvalidModelFile | ErrorCode::UnsupportedModel),
                "{error:?}"
            );
            return Ok(false);
        }
    };
    prop_assert!(gguf.tensors.is_empty() || gguf.data_offset <= bytes.len());
    for (name, tensor) in &gguf.tensors {
        let elements: usize = tensor.shape.iter().product();
        let len = elements / tensor.dtype.block_size() * tensor.dtype.type_size();
        prop_assert!(bytes.get(tensor.range.clone()).is_some(), "{name} lies outside the file");
        prop_assert_eq!(tensor.range.len(), len);
        prop_assert_eq!(tensor.range.start % 8, 0);
        prop_assert!(tensor.range.start >= gguf.data_offset);
    }
    // Interpreting the metadata must not panic either.
    let spec = ModelSpec::from_gguf(&gguf);
    prop_assert!(spec.is_ok() || !spec.unwrap_err().to_string().is_empty());
    Ok(true)
}

#[test]
fn mutated_headers_are_handled_safely() {
    let bases = bases();
    let (accepted, rejected) = (Cell::new(0), Cell::new(0));
    let strategy = (0..bases.len(), mutations());
    let result = runner(12_000).run(&strategy, |(base, mutations)| {
        let header = header_len(&bases[base]);
        let (mut bytes, fields) = bases[base].clone();
        for mutation in &mutations {
            apply(&mut bytes, &fields, header, mutation);
        }
        let counter = if check(&bytes)? { &accepted } else { &rejected };
        counter.set(counter.get() + 1);
        Ok(())
    });
    result.unwrap();
    // Mutations must exercise both outcomes.
    assert!(accepted.get() > 500, "{} accepted", accepted.get());
    assert!(rejected.get() > 5_000, "{} rejected", rejected.get());
}

#[test]
fn no_header_number_causes_large_allocation() {
    for (bytes, fields) in bases() {
        for &field in &fields {
            for bomb in BOMBS {
                let mut bytes = bytes.clone();
                set(&mut bytes, field, bomb);
                check(&bytes).unwrap_or_else(|e| panic!("{bomb} at {}: {e}", field.at));
            }
        }
    }
}

/// The files with the highest memory per byte: only minimal entries, strings, lists or tensors.
#[test]
fn files_of_minimal_parts_stay_within_memory_bound() {
    let many = 20_000;
    let entries = (0..many).fold(GgufWriter::new(), |w, i| w.value(&format!("{i:x}"), Value::U8(0)));
    let texts = GgufWriter::new().strings("k", vec![""; many]);
    let short_texts = GgufWriter::new().strings("k", vec!["a"; many]);
    let lists = Array::Array(vec![Array::U8(Vec::new()); many]);
    let lists = GgufWriter::new().value("k", Value::Array(lists));
    let tensors = (0..many).fold(GgufWriter::new().alignment(8), |w, i| {
        w.raw_tensor(&format!("{i:x}"), &[1], 0, None, vec![0; 4])
    });
    for writer in [entries, texts, short_texts, lists, tensors] {
        assert!(check(&writer.bytes()).unwrap(), "a valid file");
    }
}

#[test]
fn rejects_every_truncation_with_reason() {
    let (bytes, _) = rich(GgufWriter::new()).bytes_and_fields();
    for len in 0..bytes.len() {
        let message = parse(&bytes[..len]).unwrap_err().to_string();
        let expected = match len {
            0 => "the file is empty",
            1..4 => "it starts with",
            _ => "the download is incomplete",
        };
        assert!(message.contains(expected), "{len}: {message}");
    }
    let message = parse(&bytes[..bytes.len() - 1]).unwrap_err().to_string();
    let sizes = format!("the file ends at {} of {} bytes", bytes.len() - 1, bytes.len());
    assert!(message.contains(&sizes), "{message}");
}

#[test]
fn reads_valid_file_as_written() {
    for (version, alignment) in [(2, 8), (3, 32), (3, 4096)] {
        let writer = rich(GgufWriter::new().version(version).alignment(alignment));
        let bytes = writer.bytes();
        let gguf = parse(&bytes).unwrap();
        assert_eq!((gguf.version, gguf.file_len), (version, bytes.len()));
        assert_eq!(gguf.data_offset % alignment as usize, 0);
        assert_eq!(gguf.u32("llama.block_count"), Some(2));
        assert_eq!((gguf.u32("x.u64"), gguf.u32("x.i64"), gguf.u32("x.f64")), (Some(1), None, None));
        assert_eq!((gguf.f32("x.f64"), gguf.f32("x.u64")), (Some(0.5), None));
        assert_eq!(gguf.require_strings("tokenizer.ggml.tokens").unwrap()[3], "日本");
        assert_eq!(gguf.require_i32s("tokenizer.ggml.token_type").unwrap(), [3, 1, 1]);
        assert_eq!(gguf.metadata["x.flags"], Value::Array(Array::Bool(vec![true, false])));
        let cube = &gguf.tensors["blk.0.cube"];
        assert_eq!((cube.shape.as_slice(), cube.dtype), ([2, 3, 32].as_slice(), WeightType::F16));
        let norm = &bytes[gguf.tensors["blk.0.attn_norm.weight"].range.clone()];
        assert_eq!(norm[..4], (-0.5f32).to_le_bytes());
    }
}

#[test]
fn getters_name_missing_or_mistyped_key() {
    let gguf = parse(&rich(GgufWriter::new()).bytes()).unwrap();
    let missing = gguf.require_str("llama.nothing").unwrap_err().to_string();
    assert!(missing.contains("llama.nothing is missing"), "{missing}");
    let wrong = gguf.require_str("llama.block_count").unwrap_err().to_string();
    assert!(wrong.contains("llama.block_count is not a string"), "{wrong}");
}

#[test]
fn errors_name_the_problem() {
    let new = GgufWriter::new;
    let deep = (0..5).fold(Array::U8(vec![1]), |inner, _| Array::Array(vec![inner]));
    let block = || vec![0u8; 34];
    let patched = |mut bytes: Vec<u8>, at: usize, with: &[u8]| {
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let text = new().str("k", "text").bytes();
    let flag = new().bool("k", true).bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"PK\x03\x04....".to_vec(), "starts with \"PK\\x03\\x04\""),
        (new().version(1).bytes(), "version 1"),
        (new().version(4).bytes(), "versions 2 and 3"),
        (new().version(3u32.swap_bytes()).bytes(), "big-endian"),
        (new().u32("k", 1).u32("k", 1).bytes(), "k is duplicated"),
        (new().u32("", 1).bytes(), "has 0 bytes"),
        (new().value("k", Value::Array(deep)).bytes(), "more than 4 deep"),
        (patched(text.clone(), text.len().min(45), &[0xff]), "not UTF-8"),
        (patched(flag.clone(), 37, &[2]), "k is 2, not true (1) or false (0)"),
        (patched(flag, 33, &[13]), "k has the unknown type 13"),
        (new().u32("general.alignment", 12).bytes(), "alignment is 12"),
        (new().u32("general.alignment", 4).bytes(), "alignment is 4"),
        (new().str("general.alignment", "x").bytes(), "alignment is not an integer"),
        (new().raw_tensor("t", &[], 8, None, block()).bytes(), "t has 0 dimensions"),
        (new().raw_tensor("t", &[32, 1, 1, 1, 1], 8, None, block()).bytes(), "t has 5 dimensions"),
        (new().raw_tensor("t", &[32, 0], 8, None, block()).bytes(), "dimension of 0"),
        (new().raw_tensor("t", &[33], 8, None, block()).bytes(), "not a multiple of the 32"),
        (new().raw_tensor("t", &[32, 1 << 62], 8, None, block()).bytes(), "larger than any file"),
        (new().raw_tensor("t", &[32], 8, Some(u64::MAX - 31), block()).bytes(), "larger than any"),
        (new().raw_tensor("t", &[32], 8, Some(8), block()).bytes(), "not a multiple of 32"),
        (new().raw_tensor("t", &[32], 9, None, block()).bytes(), "t is stored as Q8_1"),
        (new().raw_tensor("t", &[32], 15, None, block()).bytes(), "t is stored as Q8_K"),
        (new().raw_tensor("t", &[32], 99, None, block()).bytes(), "the unknown type 99"),
        (new().raw_tensor("t", &[320], 8, None, block()).bytes(), "the download is incomplete"),
        (
            new()
                .raw_tensor("a", &[64], 8, None, vec![0; 68])
                .raw_tensor("b", &[32], 8, Some(32), block())
                .bytes(),
            "a and b overlap",
        ),
        (
            new().raw_tensor("t", &[32], 8, None, block()).raw_tensor("t", &[32], 8, None, block()).bytes(),
            "t is duplicated",
        ),
    ];
    for (bytes, expected) in cases {
        let message = parse(&bytes).unwrap_err().to_string();
        assert!(message.contains(expected), "expected {expected:?} in: {message}");
    }
}
