//! Headers of safetensors files: type, shape and position of every tensor, checked against the size of the file.
//!
//! A file begins with the length of its header, 8 bytes in little endian. The header is JSON: type, shape and byte
//! range of each tensor, counted from the end of the header. A model may be split into several files. Values do not
//! belong here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hunch_error::{Error, Result};
use serde::Deserialize;

use crate::file::ModelFile;
use crate::gguf::WeightType;
use crate::input_file::is_hidden;

/// Most dimensions of a tensor, as in GGUF files.
const MAX_DIMENSIONS: usize = 4;
/// Largest header in bytes. Headers of heads have some kilobytes.
const MAX_HEADER: usize = 16 << 20;
/// Most files of a folder.
const MAX_FILES: usize = 256;

/// Entry of a tensor in the header.
#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Tensor in one of several open files, of any type.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    /// Type of the elements, as the file names it.
    pub(crate) dtype: String,
    /// Dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Index of its file.
    pub(crate) file: usize,
    /// Byte range in the file, in bounds.
    pub(crate) range: Range<usize>,
}

/// Returns `true` for the name of a safetensors file.
pub fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
}

/// Returns the safetensors files at a path: the file itself, or all of a folder in the order of their names.
pub(crate) fn files_at(path: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| is_safetensors(path) && !is_hidden(path);
    if !path.is_dir() {
        return Some(path.to_path_buf()).filter(is_own).into_iter().collect();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_own).collect();
    files.sort();
    files
}

/// Open files, and all their tensors by name.
pub(crate) type OpenFiles = (Vec<Arc<ModelFile>>, BTreeMap<String, StoredTensor>);

/// Opens files and checks their headers. Returns all tensors by name. `path` is used in errors.
///
/// # Errors
/// [`Error::InvalidModelFile`] if there is none, or one is damaged, truncated or repeats a tensor of another.
pub(crate) fn open_files(path: &Path, paths: &[PathBuf]) -> Result<OpenFiles> {
    if paths.is_empty() || paths.len() > MAX_FILES {
        let reason = format!("it contains {} safetensors files", paths.len());
        return Err(Error::InvalidModelFile { path: path.to_path_buf(), reason });
    }
    let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
    for (index, path) in paths.iter().enumerate() {
        let file = ModelFile::open(path)?;
        for (name, TensorHeader { dtype, shape, .. }, range) in header(&file)? {
            if tensors.contains_key(&name) {
                let reason = format!("the tensor {name} is in an earlier file as well");
                return Err(Error::InvalidModelFile { path: path.clone(), reason });
            }
            tensors.insert(name, StoredTensor { dtype, shape, file: index, range });
        }
        files.push(Arc::new(file));
    }
    Ok((files, tensors))
}

/// Returns the type of floating-point weights of a safetensors type.
pub(crate) fn float_type(dtype: &str) -> Option<WeightType> {
    match dtype {
        "F32" => Some(WeightType::F32),
        "F16" => Some(WeightType::F16),
        "BF16" => Some(WeightType::BF16),
        _ => None,
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
fn header(file: &ModelFile) -> Result<Vec<(String, TensorHeader, Range<usize>)>> {
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
        let entry: TensorHeader = serde_json::from_value(entry)
            .map_err(|error| invalid(format!("the entry of {name} cannot be read ({error})")))?;
        let Some(element) = element_size(&entry.dtype) else {
            return Err(invalid(format!("the tensor {name} has the unknown type {}", entry.dtype)));
        };
        if !(1..=MAX_DIMENSIONS).contains(&entry.shape.len()) {
            return Err(invalid(format!("the tensor {name} has {} dimensions", entry.shape.len())));
        }
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

    #[test]
    fn hidden_files_are_no_weights() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.safetensors", "._b.safetensors", "a.SAFETENSORS", "config.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = files_at(folder.path());
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.SAFETENSORS", "b.safetensors"]);
        assert_eq!(files_at(&folder.path().join("._b.safetensors")), Vec::<PathBuf>::new());
    }
}
