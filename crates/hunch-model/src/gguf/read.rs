//! Parser of GGUF headers: a bounds-checked cursor, and the validation of the layout.
//!
//! The meaning of metadata does not belong here, except `general.alignment`, which the layout needs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::{Array, Gguf, IntegerInfo, TensorInfo, Value};
use hunch_error::{Error, Result};
use hunch_kernels::WeightType;

/// Minimum size of a metadata entry in bytes: a key of one byte, a type and a value of one byte.
const MIN_ENTRY: usize = 8 + 1 + 4 + 1;
/// Minimum size of a tensor entry in bytes: a name of one byte, one dimension, its count, type and offset.
const MIN_TENSOR: usize = 8 + 1 + 4 + 8 + 4 + 8;
/// Maximum number of dimensions (`GGML_MAX_DIMS` in ggml).
const MAX_DIMS: u32 = 4;
/// Maximum length of a name in bytes. ggml allows 64 for tensors, but keys may be longer.
const MAX_NAME: usize = 1 << 12;

/// Prefix of the metadata keys specific to split models.
pub(super) const SPLIT_KEYS: &str = "split.";

/// Parses the header from the first bytes of a file of `file_len` bytes.
///
/// Returns `None` if the header continues beyond `bytes`.
pub(super) fn header(path: &Path, bytes: &[u8], file_len: usize) -> Result<Option<Gguf>> {
    let mut cursor =
        Cursor { path, bytes, file_len, at: 0, needs_more_bytes: false, split_ranges: Vec::new() };
    match parse(&mut cursor) {
        Err(_) if cursor.needs_more_bytes => Ok(None),
        parsed => parsed.map(Some),
    }
}

fn parse(cursor: &mut Cursor<'_>) -> Result<Gguf> {
    let path = cursor.path;
    let version = cursor.preamble()?;
    let tensor_count = cursor.count("tensors", MIN_TENSOR)?;
    let entry_count = cursor.count("metadata entries", MIN_ENTRY)?;
    let metadata_start = cursor.at;
    let metadata = cursor.metadata(entry_count)?;
    let metadata_range = metadata_start..cursor.at;
    let alignment = alignment(path, &metadata)?;
    let entries = (0..tensor_count).map(|_| cursor.tensor(alignment)).collect::<Result<Vec<_>>>()?;
    let data_offset = cursor.at.next_multiple_of(alignment);
    let mut gguf = Gguf {
        path: path.to_owned(),
        version,
        metadata,
        metadata_range,
        split_ranges: std::mem::take(&mut cursor.split_ranges),
        tensors: BTreeMap::new(),
        integers: BTreeMap::new(),
        data_offset,
        file_len: cursor.file_len,
    };
    add_tensors(&mut gguf, entries)?;
    Ok(gguf)
}

/// Elements of a tensor.
#[derive(Clone, Copy)]
enum Elements {
    Weights(WeightType),
    /// Whole numbers of 4 or 8 bytes.
    Integers(usize),
}

impl Elements {
    /// Returns the type with a number of ggml.
    fn numbered(kind: u32) -> Option<Self> {
        match kind {
            26 => Some(Self::Integers(4)),
            27 => Some(Self::Integers(8)),
            _ => WeightType::numbered(kind).map(Self::Weights),
        }
    }

    /// Returns the name of the type.
    fn name(self) -> String {
        match self {
            Self::Weights(dtype) => dtype.to_string(),
            Self::Integers(width) => format!("I{}", 8 * width),
        }
    }

    /// Returns the elements and the bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            Self::Weights(dtype) => (dtype.block_size(), dtype.type_size()),
            Self::Integers(width) => (1, width),
        }
    }
}

/// Tensor entry of a header. Its offset is relative to the start of the tensor data.
struct TensorEntry {
    name: String,
    shape: Vec<usize>,
    dtype: Elements,
    offset: usize,
    len: usize,
}

/// Converts offsets to ranges of the file. Checks bounds, overlaps and duplicate names.
fn add_tensors(gguf: &mut Gguf, mut entries: Vec<TensorEntry>) -> Result<()> {
    let invalid = |reason| Err(Error::InvalidModelFile { path: gguf.path.clone(), reason });
    entries.sort_by_key(|tensor| tensor.offset);
    for pair in entries.windows(2) {
        // Cannot overflow, because `Cursor::tensor` checked offset + len.
        if pair[0].offset + pair[0].len > pair[1].offset {
            return invalid(format!("the tensors {} and {} overlap", pair[0].name, pair[1].name));
        }
    }
    let data_len = entries.last().map_or(0, |tensor| tensor.offset + tensor.len);
    let expected = gguf.data_offset.saturating_add(data_len);
    if !entries.is_empty() && expected > gguf.file_len {
        return invalid(format!(
            "the file ends at {} of {expected} bytes, so the download is incomplete",
            gguf.file_len
        ));
    }
    for TensorEntry { name, shape, dtype, offset, len } in entries {
        let start = gguf.data_offset + offset;
        let range = start..start + len;
        if gguf.tensors.contains_key(&name) || gguf.integers.contains_key(&name) {
            return invalid(format!("the tensor {name} is duplicated"));
        }
        match dtype {
            Elements::Integers(width) => drop(gguf.integers.insert(name, IntegerInfo { width, range })),
            Elements::Weights(dtype) => {
                gguf.tensors.insert(name, TensorInfo { shape, dtype, part: 0, range });
            }
        }
    }
    Ok(())
}

/// Returns `general.alignment`, 32 by default. Must be a power of two and at least 8.
fn alignment(path: &Path, metadata: &BTreeMap<String, Value>) -> Result<usize> {
    let reason = match metadata.get("general.alignment") {
        None => return Ok(32),
        Some(&Value::U32(v)) if v.is_power_of_two() && (8..=1 << 20).contains(&v) => {
            return Ok(v as usize);
        }
        Some(Value::U32(v)) => format!("its data alignment is {v}, but it must be a power of two from 8 up"),
        Some(_) => "its data alignment is not an integer".into(),
    };
    Err(Error::InvalidModelFile { path: path.to_owned(), reason })
}

struct Cursor<'a> {
    path: &'a Path,
    /// Content of the file, or the beginning of it.
    bytes: &'a [u8],
    /// Size of the whole file in bytes, the limit for lengths.
    file_len: usize,
    at: usize,
    /// `true` if parsing failed only because `bytes` is not the whole file.
    needs_more_bytes: bool,
    /// Byte ranges of the metadata entries specific to split models.
    split_ranges: Vec<Range<usize>>,
}

impl<'a> Cursor<'a> {
    fn invalid<T>(&self, reason: String) -> Result<T> {
        Err(Error::InvalidModelFile { path: self.path.to_owned(), reason })
    }

    fn unsupported<T>(&self, reason: String) -> Result<T> {
        Err(Error::UnsupportedModel { path: self.path.to_owned(), reason })
    }

    /// Returns the number of remaining bytes in the file.
    fn remaining(&self) -> usize {
        self.file_len - self.at
    }

    /// Checks that the next `len` bytes of the file are in `bytes`.
    fn require_bytes(&mut self, len: usize) -> Result<()> {
        if len <= self.bytes.len() - self.at {
            return Ok(());
        }
        self.needs_more_bytes = true;
        self.invalid("its header continues beyond the bytes read".into())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        if len > self.remaining() {
            return self.invalid(format!(
                "the file ends at {} of at least {} bytes, inside its header, so the download is \
                 incomplete or the file is damaged",
                self.file_len,
                self.at.saturating_add(len)
            ));
        }
        self.require_bytes(len)?;
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take returns exactly N bytes"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.fixed()?))
    }

    /// Reads a count of items of at least `min_size` bytes each.
    ///
    /// The items must fit in the remaining file and be in `bytes`. An allocation for them is therefore
    /// at most a small factor of the bytes in memory.
    fn count(&mut self, what: &str, min_size: usize) -> Result<usize> {
        let count = self.u64()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.remaining() / min_size => {
                self.require_bytes(count * min_size)?;
                Ok(count)
            }
            _ => self.invalid(format!(
                "it claims {count} {what} at byte {}, which do not fit in its {} bytes, so the \
                 download is incomplete or the file is damaged",
                self.at - 8,
                self.file_len
            )),
        }
    }

    fn preamble(&mut self) -> Result<u32> {
        if self.bytes.is_empty() {
            return self.invalid("the file is empty".into());
        }
        if !self.bytes.starts_with(b"GGUF") {
            let start = &self.bytes[..self.bytes.len().min(4)];
            return self.invalid(format!("it starts with \"{}\" instead of \"GGUF\"", start.escape_ascii()));
        }
        self.at = 4;
        match self.u32()? {
            version @ (2 | 3) => Ok(version),
            1 => self.unsupported("it is a GGUF file of version 1, from before August 2023".into()),
            version if matches!(version.swap_bytes(), 1..=3) => {
                self.unsupported("it is a big-endian GGUF file".into())
            }
            version => self.unsupported(format!(
                "it is a GGUF file of version {version}, and only versions 2 and 3 are supported"
            )),
        }
    }

    fn text(&mut self) -> Result<&'a str> {
        let start = self.at;
        let len = self.count("bytes of text", 1)?;
        match std::str::from_utf8(self.take(len)?) {
            Ok(text) => Ok(text),
            Err(_) => self.invalid(format!("the text at byte {start} is not UTF-8")),
        }
    }

    fn name(&mut self, what: &str) -> Result<&'a str> {
        let start = self.at;
        let name = self.text()?;
        if name.is_empty() || name.len() > MAX_NAME {
            return self.invalid(format!(
                "the name of a {what} at byte {start} has {} bytes, but it must have 1 to {MAX_NAME}",
                name.len()
            ));
        }
        Ok(name)
    }

    fn metadata(&mut self, count: usize) -> Result<BTreeMap<String, Value>> {
        let mut metadata = BTreeMap::new();
        for _ in 0..count {
            let start = self.at;
            let key = self.name("metadata entry")?;
            let kind = self.u32()?;
            let value = self.value(key, kind)?;
            if metadata.insert(key.to_owned(), value).is_some() {
                return self.invalid(format!("the metadata entry {key} is duplicated"));
            }
            if key.starts_with(SPLIT_KEYS) {
                self.split_ranges.push(start..self.at);
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.fixed()?)),
            1 => Value::I8(i8::from_le_bytes(self.fixed()?)),
            2 => Value::U16(u16::from_le_bytes(self.fixed()?)),
            3 => Value::I16(i16::from_le_bytes(self.fixed()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.fixed()?)),
            6 => Value::F32(f32::from_le_bytes(self.fixed()?)),
            7 => Value::Bool(self.boolean(key)?),
            8 => Value::String(self.text()?.to_owned()),
            9 => Value::Array(self.array(key, 1)?),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.fixed()?)),
            12 => Value::F64(f64::from_le_bytes(self.fixed()?)),
            _ => return self.invalid(format!("the metadata entry {key} has the unknown type {kind}")),
        })
    }

    fn boolean(&mut self, key: &str) -> Result<bool> {
        match self.fixed()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => self.invalid(format!("{key} is {other}, not true (1) or false (0)")),
        }
    }

    /// Reads an array of elements of a fixed size.
    fn numbers<const N: usize, T>(&mut self, read: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let count = self.count("numbers", N)?;
        let (chunks, _) = self.take(count * N)?.as_chunks::<N>();
        Ok(chunks.iter().map(|chunk| read(*chunk)).collect())
    }

    fn array(&mut self, key: &str, depth: usize) -> Result<Array> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => Array::U8(self.numbers(u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(f32::from_le_bytes)?),
            7 => {
                let count = self.count("values", 1)?;
                Array::Bool(self.items(count, |cursor| cursor.boolean(key))?)
            }
            8 => {
                let count = self.count("texts", 8)?;
                Array::String(self.items(count, |cursor| Ok(cursor.text()?.to_owned()))?)
            }
            9 if depth < Gguf::MAX_DEPTH => {
                let count = self.count("lists", 4 + 8)?;
                Array::Array(self.items(count, |cursor| cursor.array(key, depth + 1))?)
            }
            9 => {
                return self.invalid(format!(
                    "the metadata entry {key} nests lists more than {} deep",
                    Gguf::MAX_DEPTH
                ));
            }
            10 => Array::U64(self.numbers(u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(f64::from_le_bytes)?),
            _ => return self.invalid(format!("a list in {key} has the unknown type {kind}")),
        })
    }

    /// Reads `count` values. `count` must come from [`Cursor::count`].
    fn items<T>(&mut self, count: usize, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    fn tensor(&mut self, alignment: usize) -> Result<TensorEntry> {
        let name = self.name("tensor")?;
        let shape = self.shape(name)?;
        let kind = self.u32()?;
        let Some(dtype) = Elements::numbered(kind) else {
            return self.unsupported(format!(
                "its tensor {name} is stored as {}, which is not supported. Choose a file quantised as \
                 Q4_K_M, Q5_K_M, Q6_K or Q8_0",
                type_name(kind)
            ));
        };
        let columns = shape.last().copied().expect("a shape has at least one dimension");
        let (block, bytes) = dtype.block();
        if columns % block != 0 {
            return self.invalid(format!(
                "the rows of the tensor {name} have {columns} elements, which is not a multiple \
                 of the {block} in a block of {}",
                dtype.name()
            ));
        }
        let offset = self.u64()?;
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let len = elements.and_then(|n| (n / block).checked_mul(bytes));
        // Half the address space leaves room to add the offset of the data without overflow.
        let position = usize::try_from(offset)
            .ok()
            .zip(len)
            .filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= usize::MAX / 2));
        let Some((offset, len)) = position else {
            return self.invalid(format!(
                "the tensor {name} of shape {shape:?} at {offset} is larger than any file"
            ));
        };
        if offset % alignment != 0 {
            return self.invalid(format!(
                "the tensor {name} starts at {offset}, which is not a multiple of {alignment}"
            ));
        }
        Ok(TensorEntry { name: name.to_owned(), shape, dtype, offset, len })
    }

    fn shape(&mut self, name: &str) -> Result<Vec<usize>> {
        let dims = self.u32()?;
        if !(1..=MAX_DIMS).contains(&dims) {
            return self.invalid(format!(
                "the tensor {name} has {dims} dimensions, but it must have 1 to {MAX_DIMS}"
            ));
        }
        let mut shape = vec![0; dims as usize];
        for size in shape.iter_mut().rev() {
            let read = self.u64()?;
            match usize::try_from(read) {
                Ok(read) if read > 0 => *size = read,
                _ => return self.invalid(format!("the tensor {name} has a dimension of {read}")),
            }
        }
        Ok(shape)
    }
}

/// Returns ggml's name of a type that no file should have as weights.
fn type_name(kind: u32) -> String {
    let name = match kind {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        28 => "F64",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return format!("the unknown type {kind}"),
    };
    name.into()
}
