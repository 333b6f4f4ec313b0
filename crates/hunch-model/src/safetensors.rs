//! Safetensors files: header and shapes of every tensor, checked against the size of the file. Floating-point tensors
//! are presented as weights of a GGUF file, so that they load like those.
//!
//! A file begins with the length of its header, 8 bytes in little endian. The header is JSON: type, shape and byte
//! range of each tensor, counted from the end of the header. A model may be split into several files.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hunch_error::{Error, Result};
use serde::Deserialize;

use crate::file::ModelFile;
use crate::gguf::{TensorInfo, WeightType};
use crate::tensor_files::{NumberType, Numbers, TensorFiles};

/// Largest header in bytes. Headers of heads have some kilobytes.
const MAX_HEADER: usize = 16 << 20;
/// Most files of a folder.
const MAX_FILES: usize = 64;

/// Entry of a tensor in the header.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Returns the safetensors files at a path: the file itself, or all of a folder in the order of their names.
pub(crate) fn files_at(path: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"));
    if !path.is_dir() {
        return Some(path.to_path_buf()).filter(is_own).into_iter().collect();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_own).collect();
    files.sort();
    files
}

/// Opens all safetensors files at a path and checks their headers.
///
/// # Errors
/// [`Error::InvalidModelFile`] if there is none, or one is damaged, truncated or repeats a tensor of another.
pub(crate) fn open(path: &Path) -> Result<TensorFiles> {
    let paths = files_at(path);
    if paths.is_empty() || paths.len() > MAX_FILES {
        let reason = format!("it contains {} safetensors files", paths.len());
        return Err(Error::InvalidModelFile { path: path.to_path_buf(), reason });
    }
    let mut tensors = BTreeMap::new();
    let (mut files, mut numbers) = (Vec::new(), BTreeMap::new());
    for (part, path) in paths.iter().enumerate() {
        let file = ModelFile::open(path)?;
        for (name, Entry { dtype, shape, .. }, range) in header(&file)? {
            let repeated = tensors.contains_key(&name) || numbers.contains_key(&name);
            if repeated {
                let reason = format!("the tensor {name} is in an earlier file as well");
                return Err(Error::InvalidModelFile { path: path.clone(), reason });
            }
            match float_type(&dtype) {
                Some(dtype) => {
                    tensors.insert(name, TensorInfo { shape, dtype, part, range });
                }
                None => {
                    numbers.insert(name, Numbers { dtype: number_type(&dtype), file: part, range });
                }
            }
        }
        files.push(Arc::new(file));
    }
    Ok(TensorFiles::new(path, files, tensors, numbers))
}

fn float_type(dtype: &str) -> Option<WeightType> {
    match dtype {
        "F32" => Some(WeightType::F32),
        "F16" => Some(WeightType::F16),
        "BF16" => Some(WeightType::BF16),
        _ => None,
    }
}

fn number_type(dtype: &str) -> NumberType {
    match dtype {
        "I64" => NumberType::I64,
        "I32" => NumberType::I32,
        "BOOL" => NumberType::Bool,
        _ => NumberType::Other,
    }
}

/// Returns the size of an element in bytes. `None` for types that no head has.
fn element_size(dtype: &str) -> Option<usize> {
    match dtype {
        "BOOL" | "U8" | "I8" => Some(1),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "F32" | "I32" | "U32" => Some(4),
        "F64" | "I64" | "U64" => Some(8),
        _ => None,
    }
}

/// Reads and checks the header of a file: each tensor with its byte range in the file.
fn header(file: &ModelFile) -> Result<Vec<(String, Entry, Range<usize>)>> {
    let invalid = |reason: String| Error::InvalidModelFile { path: file.path().to_path_buf(), reason };
    let length = file.read(0..8.min(file.len()))?;
    let Ok(length) = <[u8; 8]>::try_from(length) else { return Err(invalid("it is truncated".into())) };
    let length = u64::from_le_bytes(length);
    let start = usize::try_from(length).ok().filter(|&length| length <= MAX_HEADER).map(|length| 8 + length);
    let Some(start) = start.filter(|&start| start <= file.len()) else {
        return Err(invalid(format!(
            "its header claims {length} bytes. It is truncated, or no safetensors file"
        )));
    };
    let mut entries: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&file.read(8..start)?)
        .map_err(|error| invalid(format!("its header cannot be read ({error})")))?;
    entries.remove("__metadata__");
    let tensor = |(name, entry): (String, serde_json::Value)| {
        let entry: Entry = serde_json::from_value(entry)
            .map_err(|error| invalid(format!("the entry of {name} cannot be read ({error})")))?;
        let Some(element) = element_size(&entry.dtype) else {
            return Err(invalid(format!("the tensor {name} has the unknown type {}", entry.dtype)));
        };
        let count = entry.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        let bytes = count.filter(|&count| count > 0).and_then(|count| count.checked_mul(element));
        let [from, to] = entry.data_offsets;
        if to.checked_sub(from).is_none_or(|length| Some(length) != bytes) {
            return Err(invalid(format!("the tensor {name} has not as many bytes as its shape")));
        }
        // `from` is at most `to`, and `start` is within the file.
        if to > file.len() - start {
            return Err(invalid(format!("it is truncated: the tensor {name} ends behind the file")));
        }
        Ok((name, entry, start + from..start + to))
    };
    entries.into_iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
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
