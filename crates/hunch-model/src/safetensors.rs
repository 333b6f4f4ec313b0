//! Safetensors files as tensors of a head. Floating-point tensors are presented as weights of a GGUF file, so that they
//! load like those. Headers are read in `stored_tensors`.

use std::collections::BTreeMap;
use std::path::Path;

use hunch_error::Result;

use crate::gguf::TensorInfo;
pub(crate) use crate::stored_tensors::files_at;
use crate::stored_tensors::{StoredTensor, float_type, open_files};
use crate::tensor_files::{NumberType, Numbers, TensorFiles};

/// Opens all safetensors files at a path and checks their headers.
///
/// # Errors
/// [`Error::InvalidModelFile`] if there is none, or one is damaged, truncated or repeats a tensor of another.
pub(crate) fn open(path: &Path) -> Result<TensorFiles> {
    let (files, stored) = open_files(path, &files_at(path))?;
    let (mut tensors, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    for (name, StoredTensor { dtype, shape, file, range }) in stored {
        match float_type(&dtype) {
            Some(dtype) => {
                tensors.insert(name, TensorInfo { shape, dtype, part: file, range });
            }
            None => {
                numbers.insert(name, Numbers { dtype: number_type(&dtype), file, range });
            }
        }
    }
    Ok(TensorFiles::new(path, files, tensors, numbers))
}

fn number_type(dtype: &str) -> NumberType {
    match dtype {
        "I64" => NumberType::I64,
        "I32" => NumberType::I32,
        "BOOL" => NumberType::Bool,
        _ => NumberType::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn write(folder: &Path, name: &str, header: &str, data: &[u8]) -> PathBuf {
        let path = folder.join(name);
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    const HEADER: &str = r#"{"__metadata__":{"format":"pt"},
        "w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
        "ids":{"dtype":"I64","shape":[2],"data_offsets":[8,24]},
        "on":{"dtype":"BOOL","shape":[2],"data_offsets":[24,26]}}"#;

    fn data() -> Vec<u8> {
        let floats = [1.5f32, -2.0].map(f32::to_le_bytes).concat();
        let ids = [3i64, -7].map(i64::to_le_bytes).concat();
        [floats, ids, vec![0, 1]].concat()
    }

    #[test]
    fn reads_tensors_of_all_files_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a.safetensors", HEADER, &data());
        let second = r#"{"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}"#;
        write(folder.path(), "b.safetensors", second, &[0x80, 0x3f, 0, 0x40]);
        let open = super::open(folder.path()).unwrap();
        let vector = |name: &str| {
            let loaded = open.weights.vector(name, 2, &candle_core::Device::Cpu).unwrap();
            loaded.to_vec1::<f32>().unwrap()
        };
        assert_eq!(vector("b"), [1.0, 2.0]);
        assert_eq!(open.shape("w"), Some(&[1, 2][..]));
        assert_eq!(open.integers("ids").unwrap(), Some(vec![3, -7]));
        assert_eq!(open.flags("on").unwrap(), Some(vec![false, true]));
        assert_eq!(open.integers("none").unwrap(), None);
        assert!(open.integers("on").is_err() && open.flags("ids").is_err());
        assert_eq!(open.names().count(), 4);
    }

    #[test]
    fn damaged_headers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |header: &str, data: &[u8], why: &str| {
            let path = write(folder.path(), "bad.safetensors", header, data);
            let error = open(&path).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(HEADER, &data()[..25], "truncated");
        refused("{", &[], "cannot be read");
        refused(r#"{"w":{"dtype":"F32"}}"#, &[], "cannot be read");
        refused(r#"{"w":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}"#, &[0], "unknown type");
        for entry in [
            r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
            r#"{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#,
            r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
            r#"{"w":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,8]}}"#,
        ] {
            refused(entry, &data(), "has not as many bytes");
        }
        let path = folder.path().join("bad.safetensors");
        for bytes in [&b"1234567"[..], &u64::MAX.to_le_bytes(), &100u64.to_le_bytes()] {
            std::fs::write(&path, bytes).unwrap();
            assert!(open(&path).is_err());
        }
        std::fs::remove_file(path).unwrap();
        assert!(open(folder.path()).is_err(), "no file");
        for name in ["a.safetensors", "b.safetensors"] {
            write(folder.path(), name, HEADER, &data());
        }
        let error = open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("earlier file"), "{error}");
    }
}
