//! From a GGUF file to weights on a device. The dtype policy lives here: the bytes of a matrix are
//! copied once, packed for the CPU's kernels or into a GPU buffer, and stay in the file's type.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::model::gguf::{Gguf, TensorInfo};
use crate::model::kernels::{MappedFile, MatrixSource, Threads, WeightMatrix};
use crate::model::linear::Linear;
use crate::model::split;

/// Hears, before each tensor is read, how many bytes it has; an error ends the loading.
pub type ReadWatch = Arc<dyn Fn(usize) -> Result<()> + Send + Sync>;

/// An opened model: its header and its bytes, in one file or in the several of a split model.
#[derive(Clone)]
pub struct WeightFile {
    parts: Vec<Arc<MappedFile>>,
    gguf: Arc<Gguf>,
    watch: Option<ReadWatch>,
}

impl WeightFile {
    /// Maps the file and checks its header; given any part of a split model, all of its parts.
    ///
    /// # Errors
    /// When a file cannot be read or is not a sound GGUF, and when a part is missing or of another model.
    pub fn open(path: &Path) -> Result<Self> {
        let (parts, gguf) = split::open(path, |path| {
            let file = MappedFile::open(path)?;
            let gguf = Gguf::parse(path, file.bytes())?;
            Ok((Arc::new(file), gguf))
        })?;
        Ok(Self { parts, gguf: Arc::new(gguf), watch: None })
    }

    /// The same file, whose tensors are read under a watch.
    pub fn watched(self, watch: ReadWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// The header.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The bytes of a tensor.
    pub(super) fn tensor_bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.parts[info.part].bytes()[info.range.clone()]
    }

    /// The metadata as the file has them, without those that only the parts of a split model have.
    pub(super) fn metadata_bytes(&self) -> Vec<u8> {
        let file = self.parts[0].bytes();
        let (mut kept, mut at) = (Vec::new(), self.gguf.metadata_range.start);
        for split in &self.gguf.split_ranges {
            kept.extend_from_slice(&file[at..split.start]);
            at = split.end;
        }
        kept.extend_from_slice(&file[at..self.gguf.metadata_range.end]);
        kept
    }

    /// Whether the tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensors.contains_key(name)
    }

    /// Whether the embedding table is the head as well.
    pub fn is_tied(&self) -> bool {
        !self.has("output.weight")
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        self.gguf.tensors.values().map(|tensor| tensor.range.len()).sum()
    }

    /// Bytes of the head, which may be the embedding table.
    pub fn head_bytes(&self) -> usize {
        let name = if self.is_tied() { "token_embd.weight" } else { "output.weight" };
        self.gguf.tensors.get(name).map_or(0, |tensor| tensor.range.len())
    }

    /// Bytes of weights that a pass of one row reads: all but the embedding table, of which it takes a
    /// row, unless that is the head as well.
    pub fn bytes_per_pass(&self) -> usize {
        let tied = self.is_tied();
        let read = self.gguf.tensors.iter().filter(|(name, _)| tied || *name != "token_embd.weight");
        read.map(|(_, tensor)| tensor.range.len()).sum()
    }

    fn info(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo> {
        let invalid = |reason| Error::InvalidModelFile { path: self.gguf.path.clone(), reason };
        let info =
            self.gguf.tensors.get(name).ok_or_else(|| invalid(format!("the tensor {name} is missing")))?;
        if info.shape == shape {
            self.watch.as_ref().map_or(Ok(()), |watch| watch(info.range.len()))?;
            return Ok(info);
        }
        Err(invalid(format!("the tensor {name} has the shape {:?}, expected {shape:?}", info.shape)))
    }

    fn storage(&self, info: &TensorInfo, device: &Device) -> Result<QStorage> {
        Ok(QStorage::from_data(Cow::Borrowed(self.tensor_bytes(info)), device, info.dtype)?)
    }

    /// A vector (norm weight, bias) as f32 on the device.
    ///
    /// # Errors
    /// When it is missing or has another length.
    pub fn vector(&self, name: &str, len: usize, device: &Device) -> Result<Tensor> {
        let info = self.info(name, &[len])?;
        let storage = self.storage(info, &Device::Cpu)?;
        let tensor = QTensor::new(storage, len)?.dequantize(&Device::Cpu)?;
        Ok(tensor.to_device(device)?)
    }

    /// A linear layer of `n` outputs and `k` inputs on a device: `{name}.weight`, and `{name}.bias` if
    /// there.
    ///
    /// # Errors
    /// When the weight is missing or has another shape, and when the device has no room.
    pub fn linear(&self, name: &str, n: usize, k: usize, device: &Device) -> Result<Linear> {
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, n, device)?) } else { None };
        Ok(Linear::new(self.quantised(&format!("{name}.weight"), n, k, device)?, bias))
    }

    /// A weight matrix as candle takes it.
    ///
    /// # Errors
    /// As [`WeightFile::linear`].
    pub fn quantised(&self, name: &str, n: usize, k: usize, device: &Device) -> Result<QMatMul> {
        let info = self.info(name, &[n, k])?;
        let tensor = QTensor::new(self.storage(info, device)?, (n, k))?;
        // A copy of them is on the device now.
        self.parts[info.part].release(info.range.clone());
        Ok(QMatMul::from_qtensor(tensor)?)
    }

    /// A weight matrix for the CPU kernels; `None` when they have no path for its type.
    ///
    /// # Errors
    /// When it is missing or has another shape, and when there is no room.
    pub fn matrix(&self, name: &str, n: usize, k: usize, threads: &Threads) -> Result<Option<WeightMatrix>> {
        let info = self.info(name, &[n, k])?;
        let (file, range, dtype) = (self.parts[info.part].clone(), info.range.clone(), info.dtype);
        WeightMatrix::new(MatrixSource { file, range, dtype, n, k }, threads)
    }

    /// The embedding table, still quantised.
    ///
    /// # Errors
    /// When it is missing or has another shape.
    pub fn embedding(&self, name: &str, rows: usize, width: usize, device: &Device) -> Result<Embedding> {
        let info = self.info(name, &[rows, width])?;
        if device.is_cpu() {
            let row_bytes = info.range.len() / rows;
            let (file, start, dtype) = (self.parts[info.part].clone(), info.range.start, info.dtype);
            return Ok(Embedding::Host { file, start, row_bytes, dtype, width });
        }
        let tensor = QTensor::new(self.storage(info, device)?, (rows, width))?;
        Ok(Embedding::Device(tensor))
    }
}

/// A token embedding table that stays quantised: rows are looked up.
pub enum Embedding {
    /// Rows lie in the mapped file.
    Host {
        /// The file.
        file: Arc<MappedFile>,
        /// First byte of the table.
        start: usize,
        /// Bytes of a row.
        row_bytes: usize,
        /// Type of the table.
        dtype: GgmlDType,
        /// Values in a row.
        width: usize,
    },
    /// The table is on the GPU.
    Device(QTensor),
}

impl Embedding {
    /// The rows of `ids` (inside the vocabulary) as f32 `[ids, width]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rows(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        match self {
            Self::Host { file, start, row_bytes, dtype, width } => {
                let mut bytes = Vec::with_capacity(ids.len() * row_bytes);
                for &id in ids {
                    let from = start + id as usize * row_bytes;
                    bytes.extend_from_slice(&file.bytes()[from..from + row_bytes]);
                }
                let storage = QStorage::from_data(Cow::Owned(bytes), device, *dtype)?;
                Ok(QTensor::new(storage, (ids.len(), *width))?.dequantize(device)?)
            }
            Self::Device(table) => Ok(table.embedding(&Tensor::new(ids, device)?)?),
        }
    }

    /// The rows of `ids` in host memory, `[ids, width]`.
    ///
    /// # Errors
    /// When candle cannot read the table's type.
    pub fn host_rows(&self, ids: &[u32]) -> Result<Vec<f32>> {
        Ok(self.rows(ids, &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?)
    }
}
