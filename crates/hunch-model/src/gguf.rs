//! The GGUF header: metadata and the place of every tensor. No tensor data is read here, and
//! nothing is allocated for a length that the file could not hold.
//!
//! Hunch has its own reader because candle's (`gguf_file::Content::read`) trusts the counts and
//! lengths in the file: a damaged count makes it reserve memory that the machine does not have. Here
//! every length is compared with the bytes that are left before anything is reserved, so memory
//! stays within a small factor of the file's size, and time is linear in it.
//!
//! GGUF versions 2 and 3, little endian, as the specification in ggml's `docs/gguf.md` has them.

mod read;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;

use crate::file::ModelFile;
use hunch_error::{Error, Result};

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text; always valid UTF-8.
    String(String),
    /// A list of values of one type.
    Array(Array),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// Double precision.
    F64(f64),
}

/// A metadata array: compact, one variant per element type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned, 8 bits.
    U8(Vec<u8>),
    /// Signed, 8 bits.
    I8(Vec<i8>),
    /// Unsigned, 16 bits.
    U16(Vec<u16>),
    /// Signed, 16 bits.
    I16(Vec<i16>),
    /// Unsigned, 32 bits.
    U32(Vec<u32>),
    /// Signed, 32 bits.
    I32(Vec<i32>),
    /// Single precision.
    F32(Vec<f32>),
    /// True or false.
    Bool(Vec<bool>),
    /// Texts; always valid UTF-8.
    String(Vec<String>),
    /// Arrays, nested at most [`Gguf::MAX_DEPTH`] deep.
    Array(Vec<Array>),
    /// Unsigned, 64 bits.
    U64(Vec<u64>),
    /// Signed, 64 bits.
    I64(Vec<i64>),
    /// Double precision.
    F64(Vec<f64>),
}

/// Where a tensor lies and how it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Outermost dimension first (the file's order reversed, as candle has it): a matrix is
    /// `[rows, columns]`. One to four dimensions, none of them 0.
    pub shape: Vec<usize>,
    /// How the elements are stored.
    pub dtype: GgmlDType,
    /// Which file of a split model it lies in, from 0; 0 in a whole one.
    pub part: usize,
    /// Absolute byte range in that file; inside it, and its start a multiple of 8.
    pub range: Range<usize>,
}

/// A checked GGUF header.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The file, as named in errors.
    pub path: PathBuf,
    /// 2 or 3.
    pub version: u32,
    /// Everything the file says about the model.
    pub metadata: BTreeMap<String, Value>,
    /// Where all of that lies in the file.
    pub metadata_range: Range<usize>,
    /// Where in it those entries lie that only the parts of a split model have.
    pub split_ranges: Vec<Range<usize>>,
    /// Every tensor by name.
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Byte where tensor data starts.
    pub data_offset: usize,
    /// Size of the file in bytes; of all files of a split model.
    pub file_len: usize,
}

/// Bytes of a file that are read first in the hope that its header is in them: those of most models are.
const FIRST: usize = 8 << 20;
/// The longest header that is read. The largest vocabularies take half of it.
const LONGEST: usize = 64 << 20;

fn too_long(path: &Path) -> Error {
    let reason = format!("its header is longer than {} MiB", LONGEST >> 20);
    Error::InvalidModelFile { path: path.to_path_buf(), reason }
}

impl Gguf {
    /// Arrays in arrays are read to this depth; no known model nests them at all.
    pub const MAX_DEPTH: usize = 4;

    /// Reads and checks the header of a whole file's bytes. `path` is only used in errors. No more than the
    /// first 64 MiB are looked at: a sparse file of any size asks for no more memory than a header of that
    /// length.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] when it is not a GGUF, is truncated, contradicts itself or has a header of
    /// more than 64 MiB; [`Error::UnsupportedModel`] for a version, byte order or tensor type Hunch does not
    /// read.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let read = read::header(path, &bytes[..bytes.len().min(LONGEST)], bytes.len())?;
        read.ok_or_else(|| too_long(path))
    }

    /// Reads and checks the header of the file at `path`.
    ///
    /// # Errors
    /// As [`ModelFile::open`] and [`Gguf::of`].
    pub fn read(path: &Path) -> Result<Self> {
        Self::of(&ModelFile::open(path)?)
    }

    /// Reads and checks the header of a file. Memory is bounded by a constant, whatever the file's size.
    ///
    /// # Errors
    /// As [`Gguf::parse`]; [`Error::Io`] when the file cannot be read.
    pub fn of(file: &ModelFile) -> Result<Self> {
        let (path, file_len) = (file.path(), file.len());
        let mut bytes = Vec::new();
        for most in [FIRST, LONGEST] {
            let (have, wanted) = (bytes.len(), most.min(file_len));
            bytes.resize(wanted.max(have), 0);
            file.read_into(have, &mut bytes[have..])?;
            if let Some(read) = read::header(path, &bytes, file_len)? {
                return Ok(read);
            }
        }
        Err(too_long(path))
    }

    /// Takes the metadata out that only the parts of a split model have.
    pub(super) fn forget_split(&mut self) {
        self.metadata.retain(|key, _| !key.starts_with(read::SPLIT_KEYS));
    }

    /// The number that a file has for a type of tensor.
    pub fn type_number(dtype: GgmlDType) -> u32 {
        read::TYPES.iter().find(|(_, known)| *known == dtype).map_or(0, |(number, _)| *number)
    }

    /// The value as a `u32`: any integer type that holds a number of that range.
    pub fn u32(&self, key: &str) -> Option<u32> {
        match *self.metadata.get(key)? {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v),
            Value::U64(v) => v.try_into().ok(),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as an `f32`, from single or double precision.
    pub fn f32(&self, key: &str) -> Option<f32> {
        match *self.metadata.get(key)? {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// The value, if it is true or false.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match *self.metadata.get(key)? {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value, if it is text.
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

    /// The value, if it is an array of texts.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.array(key)? {
            Array::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value, if it is an array of `f32`.
    pub fn f32s(&self, key: &str) -> Option<&[f32]> {
        match self.array(key)? {
            Array::F32(v) => Some(v),
            _ => None,
        }
    }

    /// The value, if it is an array of `i32`.
    pub fn i32s(&self, key: &str) -> Option<&[i32]> {
        match self.array(key)? {
            Array::I32(v) => Some(v),
            _ => None,
        }
    }

    /// As [`Gguf::u32`].
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] naming the key when it is missing or of another type; so for
    /// each `require_` below.
    pub fn require_u32(&self, key: &str) -> Result<u32> {
        self.required(key, "a whole number of 32 bits", self.u32(key))
    }

    /// As [`Gguf::f32`].
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        self.required(key, "a number", self.f32(key))
    }

    /// As [`Gguf::bool`].
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub fn require_bool(&self, key: &str) -> Result<bool> {
        self.required(key, "true or false", self.bool(key))
    }

    /// As [`Gguf::str`].
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.required(key, "text", self.str(key))
    }

    /// As [`Gguf::strings`].
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub fn require_strings(&self, key: &str) -> Result<&[String]> {
        self.required(key, "a list of texts", self.strings(key))
    }

    /// As [`Gguf::f32s`].
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub fn require_f32s(&self, key: &str) -> Result<&[f32]> {
        self.required(key, "a list of numbers", self.f32s(key))
    }

    /// As [`Gguf::i32s`].
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub fn require_i32s(&self, key: &str) -> Result<&[i32]> {
        self.required(key, "a list of whole numbers", self.i32s(key))
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
