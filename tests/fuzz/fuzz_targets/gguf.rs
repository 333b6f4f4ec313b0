//! Fuzz target: parses arbitrary bytes as a GGUF header.

#![no_main]

use std::path::Path;

use hunch_error::ErrorCode;
use hunch_fuzz::seeds;
use hunch_model::gguf::Gguf;
use hunch_model::spec::ModelSpec;
use libfuzzer_sys::fuzz_target;

#[path = "../../it/alloc_count.rs"]
mod alloc_count;

/// Maximum memory as a multiple of the file size.
const FACTOR: usize = 8;
/// Additional memory in bytes for any file size.
const FLOOR: usize = 8 << 10;

fuzz_target!(init: seeds::write(seeds::headers), |bytes: &[u8]| read(bytes));

fn parse(bytes: &[u8]) -> hunch_error::Result<Gguf> {
    Gguf::parse(Path::new("model.gguf"), bytes)
}

fn read(bytes: &[u8]) {
    let (result, peak) = alloc_count::peak_during(|| parse(bytes));
    assert!(peak <= FACTOR * bytes.len() + FLOOR, "{peak} bytes of memory for a file of {}", bytes.len());
    let gguf = match result {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(
                matches!(error.code(), ErrorCode::InvalidModelFile | ErrorCode::UnsupportedModel),
                "{error:?}"
            );
            return;
        }
    };
    for (name, tensor) in &gguf.tensors {
        let elements: usize = tensor.shape.iter().product();
        assert!(bytes.get(tensor.range.clone()).is_some(), "{name} lies outside the file");
        assert_eq!(tensor.range.len(), elements / tensor.dtype.block_size() * tensor.dtype.type_size());
        assert!(tensor.range.start >= gguf.data_offset && tensor.range.start % 8 == 0);
    }
    // By their texts: a number that is none does not equal itself.
    let again = parse(bytes).expect("it was read a moment ago");
    assert_eq!(format!("{gguf:?}"), format!("{again:?}"));
    if let Err(error) = ModelSpec::from_gguf(&gguf) {
        assert!(!error.to_string().is_empty());
    }
}
