//! Tensors of a head by name, whatever the format of their files: weights, whole numbers and truth values.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hunch_error::{Error, Result};

use crate::file::ModelFile;
use crate::gguf::{Gguf, TensorInfo};
use crate::weights::WeightFile;

/// Open files of a head.
pub(crate) struct TensorFiles {
    /// The floating-point and quantised tensors.
    pub(crate) weights: WeightFile,
    files: Vec<Arc<ModelFile>>,
    /// Tensors of whole numbers and truth values.
    numbers: BTreeMap<String, Numbers>,
}

/// Position of a tensor that is not of weights.
pub(crate) struct Numbers {
    /// Type of the elements.
    pub(crate) dtype: NumberType,
    /// Index of the file.
    pub(crate) file: usize,
    /// Byte range in the file.
    pub(crate) range: Range<usize>,
}

/// Type of elements that are not weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberType {
    I64,
    I32,
    Bool,
    /// A type that no head is read in.
    Other,
}

impl TensorFiles {
    /// Joins the tensors of open files. `path` is named in errors. The part of a weight is the index of its file.
    pub(crate) fn new(
        path: &Path,
        files: Vec<Arc<ModelFile>>,
        tensors: BTreeMap<String, TensorInfo>,
        numbers: BTreeMap<String, Numbers>,
    ) -> Self {
        let file_len = files.iter().map(|file| file.len()).sum();
        let gguf = Gguf::of_tensors(path, tensors, file_len);
        Self { weights: WeightFile::of_parts(files.clone(), gguf), files, numbers }
    }

    /// Returns the shape of a tensor of weights.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.weights.gguf().tensors.get(name).map(|info| &info.shape[..])
    }

    /// Returns the names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.weights.gguf().tensors.keys().chain(self.numbers.keys())
    }

    /// Reads a tensor of whole numbers. `None` if there is none of this name.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if it has another type, and the errors of reading.
    pub(crate) fn integers(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(numbers) = self.numbers.get(name) else { return Ok(None) };
        let bytes = self.files[numbers.file].read(numbers.range.clone())?;
        Ok(Some(match numbers.dtype {
            NumberType::I64 => bytes.as_chunks().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect(),
            NumberType::I32 => {
                bytes.as_chunks().0.iter().map(|chunk| i32::from_le_bytes(*chunk).into()).collect()
            }
            NumberType::Bool | NumberType::Other => {
                return Err(
                    self.invalid(format!("the tensor {name} does not have integers of 32 or 64 bits"))
                );
            }
        }))
    }

    /// Reads a tensor of truth values. `None` if there is none of this name.
    ///
    /// # Errors
    /// See [`integers`](Self::integers).
    pub(crate) fn flags(&self, name: &str) -> Result<Option<Vec<bool>>> {
        let Some(numbers) = self.numbers.get(name) else { return Ok(None) };
        if numbers.dtype != NumberType::Bool {
            return Err(self.invalid(format!("the tensor {name} has no truth values")));
        }
        let bytes = self.files[numbers.file].read(numbers.range.clone())?;
        Ok(Some(bytes.into_iter().map(|byte| byte != 0).collect()))
    }

    fn invalid(&self, reason: String) -> Error {
        Error::InvalidModelFile { path: self.weights.gguf().path.clone(), reason }
    }
}
