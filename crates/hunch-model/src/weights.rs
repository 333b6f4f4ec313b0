//! From a GGUF file to weights on a device. The dtype policy lives here: the bytes of a matrix are
//! copied once, packed for the CPU's kernels or into a GPU buffer, and stay in the file's type. A model that is
//! loaded needs its file no more.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Tensor};

use crate::file::ModelFile;
use crate::gguf::{Gguf, TensorInfo};
use crate::linear::Linear;
use crate::split;
use hunch_error::{Error, Result};
use hunch_kernels::{CopiedBytes, MatrixSource, Threads, WeightMatrix};

/// The name of the embedding table.
const EMBEDDING: &str = "token_embd.weight";

/// Hears, before each tensor is read, how many bytes it has; an error ends the loading.
pub type ReadWatch = Arc<dyn Fn(usize) -> Result<()> + Send + Sync>;

/// An opened model: its header and its bytes, in one file or in the several of a split model.
#[derive(Clone)]
pub struct WeightFile {
    parts: Vec<Arc<ModelFile>>,
    gguf: Arc<Gguf>,
    watch: Option<ReadWatch>,
}

impl WeightFile {
    /// Opens the file and checks its header; given any part of a split model, all of its parts.
    ///
    /// # Errors
    /// When a file cannot be read or is not a sound GGUF, and when a part is missing or of another model.
    pub fn open(path: &Path) -> Result<Self> {
        let (parts, gguf) = split::open(path, |path| {
            let file = ModelFile::open(path)?;
            let gguf = Gguf::of(&file)?;
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

    /// Checks that nobody has written to the model's files since they were opened.
    ///
    /// # Errors
    /// [`Error::Io`] when somebody has.
    pub fn check_unchanged(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.check_unchanged())
    }

    /// Bytes of a tensor, as the file has them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn tensor_bytes(&self, info: &TensorInfo, range: Range<usize>) -> Result<Vec<u8>> {
        let start = info.range.start;
        self.parts[info.part].read(start + range.start..start + range.end)
    }

    /// The metadata as the file has them, without those that only the parts of a split model have.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn metadata_bytes(&self) -> Result<Vec<u8>> {
        let whole = self.gguf.metadata_range.clone();
        let file = self.parts[0].read(whole.clone())?;
        let (mut kept, mut at) = (Vec::new(), 0);
        for split in &self.gguf.split_ranges {
            kept.extend_from_slice(&file[at..split.start - whole.start]);
            at = split.end - whole.start;
        }
        kept.extend_from_slice(&file[at..]);
        Ok(kept)
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
        let name = if self.is_tied() { EMBEDDING } else { "output.weight" };
        self.gguf.tensors.get(name).map_or(0, |tensor| tensor.range.len())
    }

    /// Bytes of weights that a pass of one row reads: all but the embedding table, of which it takes a
    /// row, unless that is the head as well.
    pub fn bytes_per_pass(&self) -> usize {
        let tied = self.is_tied();
        let read = self.gguf.tensors.iter().filter(|(name, _)| tied || *name != EMBEDDING);
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
        let bytes = self.tensor_bytes(info, 0..info.range.len())?;
        Ok(QStorage::from_data(Cow::Owned(bytes), device, info.dtype)?)
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
        Ok(QMatMul::from_qtensor(tensor)?)
    }

    /// A weight matrix for the CPU kernels; `None` when they have no path for its type.
    ///
    /// # Errors
    /// When it is missing or has another shape, when there is no room, and when the file cannot be read.
    pub fn matrix(&self, name: &str, n: usize, k: usize, threads: &Threads) -> Result<Option<WeightMatrix>> {
        let info = self.info(name, &[n, k])?;
        let (file, start) = (&self.parts[info.part], info.range.start);
        let read = |at: usize, out: &mut [u8]| Ok(file.read_into(start + at, out)?);
        let source = MatrixSource { read: &read, len: info.range.len(), dtype: info.dtype, n, k };
        Ok(WeightMatrix::new(source, threads)?)
    }

    /// The embedding table on the CPU, still quantised: the head's rows where that is the table as well, else a copy
    /// of the table.
    ///
    /// # Errors
    /// When it is missing or has another shape, when there is no room, and when the file cannot be read.
    pub fn host_embedding(
        &self,
        (rows, width): (usize, usize),
        head: Option<&WeightMatrix>,
        threads: &Threads,
    ) -> Result<Embedding> {
        let table = if let (true, Some(head)) = (self.is_tied(), head) {
            Table::Head(head.clone())
        } else {
            let info = self.info(EMBEDDING, &[rows, width])?;
            let (file, start) = (&self.parts[info.part], info.range.start);
            let read = |at: usize, out: &mut [u8]| Ok(file.read_into(start + at, out)?);
            let bytes = CopiedBytes::new(info.range.len(), &read, threads)?;
            Table::Copy { row_bytes: info.range.len() / rows, bytes }
        };
        let dtype = self.gguf.tensors.get(EMBEDDING).map_or(GgmlDType::F32, |info| info.dtype);
        Ok(Embedding::Host { table, dtype, width })
    }

    /// The embedding table on a device, still quantised.
    ///
    /// # Errors
    /// When it is missing or has another shape, when there is no room, and when the file cannot be read.
    pub fn embedding(&self, rows: usize, width: usize, device: &Device) -> Result<Embedding> {
        if device.is_cpu() {
            let io = |source| Error::Io { action: "read", path: self.gguf.path.clone(), source };
            return self.host_embedding((rows, width), None, &Threads::new(1).map_err(io)?);
        }
        let info = self.info(EMBEDDING, &[rows, width])?;
        Ok(Embedding::Device(QTensor::new(self.storage(info, device)?, (rows, width))?))
    }
}

/// A token embedding table that stays quantised: rows are looked up.
pub enum Embedding {
    /// The table is in memory.
    Host {
        /// The rows.
        table: Table,
        /// Their type.
        dtype: GgmlDType,
        /// Values in a row.
        width: usize,
    },
    /// The table is on the GPU.
    Device(QTensor),
}

/// Where the rows of an embedding table lie in memory.
pub enum Table {
    /// In the head's matrix, which the table is as well.
    Head(WeightMatrix),
    /// By themselves.
    Copy {
        /// All rows.
        bytes: CopiedBytes,
        /// Bytes of a row.
        row_bytes: usize,
    },
}

impl Embedding {
    /// The rows of `ids` (inside the vocabulary) as f32 `[ids, width]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn rows(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        match self {
            Self::Host { table, dtype, width } => {
                let mut rows = Vec::new();
                for &id in ids {
                    match table {
                        Table::Head(matrix) => matrix.copy_row(id as usize, &mut rows),
                        Table::Copy { bytes, row_bytes } => {
                            rows.extend_from_slice(&bytes.bytes()[id as usize * row_bytes..][..*row_bytes]);
                        }
                    }
                }
                let storage = QStorage::from_data(Cow::Owned(rows), device, *dtype)?;
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
