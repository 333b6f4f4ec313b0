//! GGUF headers: metadata, and the type, shape and position of every tensor. No tensor data is read.
//!
//! Supports GGUF versions 2 and 3, little endian, as specified in ggml's `docs/gguf.md`.
//!
//! candle's reader (`gguf_file::Content::read`) trusts the counts and lengths in the file, so a damaged
//! count makes it allocate more memory than the machine has. This reader compares every length with
//! the remaining bytes before it allocates. Memory stays within a small factor of the file size, and
//! time is linear in it.

mod read;
pub(crate) mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::file::ModelFile;
use hunch_error::{Error, Result};
pub use hunch_kernels::WeightType;
use hunch_kernels::experts::ExpertStack;

/// Metadata entry of our own: rows of queries and keys are in the order of Hugging Face, whose rotation pairs halves.
/// GGUF files of some architectures have another order.
pub(crate) const ROPE_HALVES: &str = "hunch.rope.halves";

/// Metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned 8-bit integer.
    U8(u8),
    /// Signed 8-bit integer.
    I8(i8),
    /// Unsigned 16-bit integer.
    U16(u16),
    /// Signed 16-bit integer.
    I16(i16),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// Single-precision float.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// UTF-8 string.
    String(String),
    /// Array of values of one type.
    Array(Array),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 64-bit integer.
    I64(i64),
    /// Double-precision float.
    F64(f64),
}

/// Metadata array, with one compact variant per element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned 8-bit integer.
    U8(Vec<u8>),
    /// Signed 8-bit integer.
    I8(Vec<i8>),
    /// Unsigned 16-bit integer.
    U16(Vec<u16>),
    /// Signed 16-bit integer.
    I16(Vec<i16>),
    /// Unsigned 32-bit integer.
    U32(Vec<u32>),
    /// Signed 32-bit integer.
    I32(Vec<i32>),
    /// Single-precision float.
    F32(Vec<f32>),
    /// Boolean.
    Bool(Vec<bool>),
    /// UTF-8 strings.
    String(Vec<String>),
    /// Arrays, nested to a depth of at most [`Gguf::MAX_DEPTH`].
    Array(Vec<Array>),
    /// Unsigned 64-bit integer.
    U64(Vec<u64>),
    /// Signed 64-bit integer.
    I64(Vec<i64>),
    /// Double-precision float.
    F64(Vec<f64>),
}

/// Shape, type and position of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Dimensions, outermost first, so that a matrix is `[rows, columns]`. One to four dimensions, all above 0.
    ///
    /// This is the order of candle. The file stores them in reverse.
    pub shape: Vec<usize>,
    /// Type of the elements.
    pub dtype: WeightType,
    /// Index of the file of a split model, from 0. 0 for a model in one file.
    pub part: usize,
    /// Byte range in that file. In bounds, and starts at a multiple of 8.
    pub range: Range<usize>,
}

/// Type and position of a tensor of whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct IntegerInfo {
    /// Bytes of an element: 4 or 8.
    pub width: usize,
    /// Byte range in the file, in bounds.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Returns the bytes that a product reads on the CPU. More than in the file if kernels need another layout.
    pub fn bytes_read(&self) -> usize {
        match self.shape[..] {
            [n, k] => hunch_kernels::bytes_read(self.dtype, n * k),
            [experts, n, k] => ExpertStack::bytes_in_memory(self.dtype, experts * n * k),
            _ => self.range.len(),
        }
    }
}

/// Validated GGUF header.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// Path of the file, for errors.
    pub path: PathBuf,
    /// GGUF version: 2 or 3.
    pub version: u32,
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Byte range of the encoded metadata in the file.
    pub metadata_range: Range<usize>,
    /// Byte ranges of the metadata entries specific to split models.
    pub split_ranges: Vec<Range<usize>>,
    /// Tensors of weights by name.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Tensors of whole numbers by name. Heads have some.
    pub integers: BTreeMap<String, IntegerInfo>,
    /// Offset of the tensor data in bytes.
    pub data_offset: usize,
    /// Size of the file in bytes. For a split model, of all files.
    pub file_len: usize,
}

/// Bytes of a file that are read first. Enough for the header of most models.
const FIRST_READ: usize = 8 << 20;
/// Maximum size of a header in bytes. The largest vocabularies need half of it.
const MAX_HEADER: usize = 64 << 20;

fn too_long(path: &Path) -> Error {
    let reason = format!("its header exceeds {} MiB", MAX_HEADER >> 20);
    Error::InvalidModelFile { path: path.to_path_buf(), reason }
}

impl Gguf {
    /// Creates the header of weights from other files than GGUF, without metadata. `file_len` counts the bytes of all
    /// files.
    pub(crate) fn of_tensors(path: &Path, tensors: BTreeMap<String, TensorInfo>, file_len: usize) -> Self {
        Self {
            path: path.to_path_buf(),
            version: 3,
            metadata: BTreeMap::new(),
            metadata_range: 0..0,
            split_ranges: Vec::new(),
            tensors,
            integers: BTreeMap::new(),
            data_offset: 0,
            file_len,
        }
    }

    /// Maximum nesting depth of arrays. No known model nests them at all.
    pub const MAX_DEPTH: usize = 4;

    /// Parses and validates the header in the bytes of a whole file. `path` is only used in errors.
    ///
    /// At most the first 64 MiB are read, so a sparse file of any size needs no more memory than a
    /// header of that size.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if the file is not a GGUF, is truncated or inconsistent, or has a
    /// header of more than 64 MiB. [`Error::UnsupportedModel`] for an unsupported version, byte order or
    /// tensor type.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let read = read::header(path, &bytes[..bytes.len().min(MAX_HEADER)], bytes.len())?;
        read.ok_or_else(|| too_long(path))
    }

    /// Reads and validates the header of the file at `path`.
    ///
    /// # Errors
    /// See [`Gguf::parse`]. [`Error::Io`] if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_file(&ModelFile::open(path)?)
    }

    /// Reads and validates the header of an open file. Memory use is bounded for any file size.
    ///
    /// # Errors
    /// See [`Gguf::parse`]. [`Error::Io`] if the file cannot be read.
    pub(crate) fn from_file(file: &ModelFile) -> Result<Self> {
        let (path, file_len) = (file.path(), file.len());
        let mut bytes = Vec::new();
        for limit in [FIRST_READ, MAX_HEADER] {
            let (have, wanted) = (bytes.len(), limit.min(file_len));
            bytes.resize(wanted.max(have), 0);
            file.read_into(have, &mut bytes[have..])?;
            if let Some(read) = read::header(path, &bytes, file_len)? {
                return Ok(read);
            }
        }
        Err(too_long(path))
    }

    /// Removes the metadata entries specific to split models.
    pub(crate) fn remove_split_metadata(&mut self) {
        self.metadata.retain(|key, _| !key.starts_with(read::SPLIT_KEYS));
    }

    /// Returns the value from any integer type, if it is in range.
    pub fn whole(&self, key: &str) -> Option<i64> {
        match *self.metadata.get(key)? {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => v.try_into().ok(),
            Value::I8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value as `u32`, from any integer type, if it is in range.
    pub fn u32(&self, key: &str) -> Option<u32> {
        self.whole(key)?.try_into().ok()
    }

    /// Returns the value as `f32`, from single or double precision.
    pub fn f32(&self, key: &str) -> Option<f32> {
        match *self.metadata.get(key)? {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// Returns the value if it is a boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match *self.metadata.get(key)? {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value if it is a string.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    fn array(&self, key: &str) -> Option<&Array> {
        match self.metadata.get(key)? {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value if it is an array of strings.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.array(key)? {
            Array::String(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value if it is an array of `f32`.
    pub fn f32s(&self, key: &str) -> Option<&[f32]> {
        match self.array(key)? {
            Array::F32(v) => Some(v),
            _ => None,
        }
    }

    /// Returns an array of booleans, or of whole numbers that are zero or not.
    pub fn flags(&self, key: &str) -> Option<Vec<bool>> {
        match self.array(key)? {
            Array::Bool(v) => Some(v.clone()),
            Array::I32(v) => Some(v.iter().map(|&v| v != 0).collect()),
            Array::U32(v) => Some(v.iter().map(|&v| v != 0).collect()),
            _ => None,
        }
    }

    /// Returns the value if it is an array of 32-bit integers, none of which is negative.
    pub fn sizes(&self, key: &str) -> Option<Vec<usize>> {
        match self.array(key)? {
            Array::I32(v) => v.iter().map(|&v| usize::try_from(v).ok()).collect(),
            Array::U32(v) => Some(v.iter().map(|&v| v as usize).collect()),
            _ => None,
        }
    }

    /// Returns the value if it is an array of `i32`.
    pub fn i32s(&self, key: &str) -> Option<&[i32]> {
        match self.array(key)? {
            Array::I32(v) => Some(v),
            _ => None,
        }
    }

    /// Returns a required string.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] with the key if it is missing or has another type.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.required(key, "a string", self.str(key))
    }

    /// Returns a required array of strings.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] with the key if it is missing or has another type.
    pub fn require_strings(&self, key: &str) -> Result<&[String]> {
        self.required(key, "a list of strings", self.strings(key))
    }

    /// Returns a required array of `f32`.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] with the key if it is missing or has another type.
    pub fn require_f32s(&self, key: &str) -> Result<&[f32]> {
        self.required(key, "a list of numbers", self.f32s(key))
    }

    /// Returns a required array of `i32`.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] with the key if it is missing or has another type.
    pub fn require_i32s(&self, key: &str) -> Result<&[i32]> {
        self.required(key, "a list of integers", self.i32s(key))
    }

    fn required<T>(&self, key: &str, expected: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| {
            let reason = if self.metadata.contains_key(key) {
                format!("the metadata entry {key} is not {expected}")
            } else {
                format!("the metadata entry {key} is missing")
            };
            Error::InvalidModelFile { path: self.path.clone(), reason }
        })
    }
}
