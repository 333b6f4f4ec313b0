//! Writer of valid and, with the raw calls, invalid GGUF files for tests.
//!
//! It follows the specification and shares no code with the reader.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use hunch_model::gguf::{Array, Value};

/// Length, count, type or offset in the written header.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Position of the first byte.
    pub at: usize,
    /// Size in bytes: 4 or 8.
    pub width: usize,
}

struct Source {
    name: String,
    /// Dimensions in file order, innermost first.
    dims: Vec<u64>,
    kind: u32,
    /// Offset in the header, if different from the actual one.
    offset: Option<u64>,
    bytes: Vec<u8>,
}

/// Builder of a GGUF file.
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    entries: Vec<(String, Value)>,
    tensors: Vec<Source>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// Creates an empty file of version 3 with data aligned to 32 bytes.
    pub fn new() -> Self {
        Self { version: 3, alignment: 32, entries: Vec::new(), tensors: Vec::new() }
    }

    /// Sets the version number.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the alignment of the data in bytes, also in the metadata.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.value("general.alignment", Value::U32(alignment))
    }

    /// Adds a metadata entry of any type. Keys may repeat.
    pub fn value(mut self, key: &str, value: Value) -> Self {
        self.entries.push((key.to_owned(), value));
        self
    }

    /// Adds an integer.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.value(key, Value::U32(value))
    }

    /// Adds a float.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.value(key, Value::F32(value))
    }

    /// Adds a boolean.
    pub fn bool(self, key: &str, value: bool) -> Self {
        self.value(key, Value::Bool(value))
    }

    /// Adds a string.
    pub fn str(self, key: &str, value: &str) -> Self {
        self.value(key, Value::String(value.to_owned()))
    }

    /// Adds an array of strings.
    pub fn strings<S: Into<String>>(self, key: &str, values: impl IntoIterator<Item = S>) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.value(key, Value::Array(Array::String(values)))
    }

    /// Adds an array of floats.
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        self.value(key, Value::Array(Array::F32(values.to_vec())))
    }

    /// Adds an array of integers.
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        self.value(key, Value::Array(Array::I32(values.to_vec())))
    }

    /// Adds a tensor quantised from f32 values. The outermost dimension is first in `shape`.
    pub fn tensor(self, name: &str, shape: &[usize], dtype: GgmlDType, data: &[f32]) -> Self {
        let tensor = Tensor::from_slice(data, shape, &Device::Cpu).expect("shape fits the data");
        let quantised = QTensor::quantize(&tensor, dtype).expect("rows are whole blocks");
        let bytes = quantised.data().expect("a tensor on the CPU has bytes").into_owned();
        let dims: Vec<u64> = shape.iter().rev().map(|&d| d as u64).collect();
        self.raw_tensor(name, &dims, type_number(dtype), None, bytes)
    }

    /// Adds a tensor with an arbitrary header entry.
    pub fn raw_tensor(
        mut self,
        name: &str,
        dims: &[u64],
        kind: u32,
        offset: Option<u64>,
        bytes: Vec<u8>,
    ) -> Self {
        self.tensors.push(Source { name: name.into(), dims: dims.to_vec(), kind, offset, bytes });
        self
    }

    /// Removes a metadata entry.
    pub fn without_key(mut self, key: &str) -> Self {
        self.entries.retain(|(name, _)| name != key);
        self
    }

    /// Returns a metadata entry.
    pub fn metadata(&self, key: &str) -> Option<Value> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    /// Removes a tensor.
    pub fn without(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// Splits the model into `count` files like llama.cpp: metadata in the first, tensors in all.
    pub fn split(self, count: u16) -> Vec<Self> {
        let (total, each) = (self.tensors.len(), self.tensors.len().div_ceil(count as usize));
        let mut tensors = self.tensors.into_iter();
        let mut entries = self.entries;
        let part = |number| {
            let part = Self {
                version: self.version,
                alignment: self.alignment,
                entries: std::mem::take(&mut entries),
                tensors: tensors.by_ref().take(each).collect(),
            };
            part.value("split.no", Value::U16(number))
                .value("split.count", Value::U16(count))
                .value("split.tensors.count", Value::I32(total as i32))
        };
        (0..count).map(part).collect()
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_and_fields().0
    }

    /// Returns the bytes of the file, and the positions of its lengths, counts, types and offsets.
    pub fn bytes_and_fields(&self) -> (Vec<u8>, Vec<Field>) {
        let mut out = Out { bytes: b"GGUF".to_vec(), fields: Vec::new() };
        out.u32(self.version);
        out.u64(self.tensors.len() as u64);
        out.u64(self.entries.len() as u64);
        for (key, value) in &self.entries {
            out.text(key);
            out.value(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            out.text(&tensor.name);
            out.u32(tensor.dims.len() as u32);
            tensor.dims.iter().for_each(|&dim| out.u64(dim));
            out.u32(tensor.kind);
            out.u64(tensor.offset.unwrap_or(data.len() as u64));
            data.extend_from_slice(&tensor.bytes);
        }
        out.bytes.resize(out.bytes.len().next_multiple_of(self.alignment), 0);
        out.bytes.extend_from_slice(&data);
        (out.bytes, out.fields)
    }
}

struct Out {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

impl Out {
    fn u32(&mut self, value: u32) {
        self.fields.push(Field { at: self.bytes.len(), width: 4 });
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.fields.push(Field { at: self.bytes.len(), width: 8 });
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn value(&mut self, value: &Value) {
        let (kind, bytes) = match value {
            Value::U8(v) => (0, v.to_le_bytes().to_vec()),
            Value::I8(v) => (1, v.to_le_bytes().to_vec()),
            Value::U16(v) => (2, v.to_le_bytes().to_vec()),
            Value::I16(v) => (3, v.to_le_bytes().to_vec()),
            Value::U32(v) => (4, v.to_le_bytes().to_vec()),
            Value::I32(v) => (5, v.to_le_bytes().to_vec()),
            Value::F32(v) => (6, v.to_le_bytes().to_vec()),
            Value::Bool(v) => (7, vec![u8::from(*v)]),
            Value::U64(v) => (10, v.to_le_bytes().to_vec()),
            Value::I64(v) => (11, v.to_le_bytes().to_vec()),
            Value::F64(v) => (12, v.to_le_bytes().to_vec()),
            Value::String(text) => {
                self.u32(8);
                return self.text(text);
            }
            Value::Array(array) => {
                self.u32(9);
                return self.array(array);
            }
        };
        self.u32(kind);
        self.bytes.extend(bytes);
    }

    fn numbers<const N: usize>(&mut self, kind: u32, values: impl ExactSizeIterator<Item = [u8; N]>) {
        self.u32(kind);
        self.u64(values.len() as u64);
        values.for_each(|bytes| self.bytes.extend(bytes));
    }

    fn array(&mut self, array: &Array) {
        match array {
            Array::U8(v) => self.numbers(0, v.iter().map(|v| v.to_le_bytes())),
            Array::I8(v) => self.numbers(1, v.iter().map(|v| v.to_le_bytes())),
            Array::U16(v) => self.numbers(2, v.iter().map(|v| v.to_le_bytes())),
            Array::I16(v) => self.numbers(3, v.iter().map(|v| v.to_le_bytes())),
            Array::U32(v) => self.numbers(4, v.iter().map(|v| v.to_le_bytes())),
            Array::I32(v) => self.numbers(5, v.iter().map(|v| v.to_le_bytes())),
            Array::F32(v) => self.numbers(6, v.iter().map(|v| v.to_le_bytes())),
            Array::Bool(v) => self.numbers(7, v.iter().map(|&v| [u8::from(v)])),
            Array::U64(v) => self.numbers(10, v.iter().map(|v| v.to_le_bytes())),
            Array::I64(v) => self.numbers(11, v.iter().map(|v| v.to_le_bytes())),
            Array::F64(v) => self.numbers(12, v.iter().map(|v| v.to_le_bytes())),
            Array::String(texts) => {
                self.u32(8);
                self.u64(texts.len() as u64);
                texts.iter().for_each(|text| self.text(text));
            }
            Array::Array(arrays) => {
                self.u32(9);
                self.u64(arrays.len() as u64);
                arrays.iter().for_each(|array| self.array(array));
            }
        }
    }
}

/// Returns ggml's number of a tensor type (`enum ggml_type`).
pub fn type_number(dtype: GgmlDType) -> u32 {
    match dtype {
        GgmlDType::F32 => 0,
        GgmlDType::F16 => 1,
        GgmlDType::Q4_0 => 2,
        GgmlDType::Q4_1 => 3,
        GgmlDType::Q5_0 => 6,
        GgmlDType::Q5_1 => 7,
        GgmlDType::Q8_0 => 8,
        GgmlDType::Q8_1 => 9,
        GgmlDType::Q2K => 10,
        GgmlDType::Q3K => 11,
        GgmlDType::Q4K => 12,
        GgmlDType::Q5K => 13,
        GgmlDType::Q6K => 14,
        GgmlDType::Q8K => 15,
        GgmlDType::BF16 => 30,
    }
}
