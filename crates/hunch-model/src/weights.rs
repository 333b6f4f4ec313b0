//! Loading weights from GGUF files onto a device, and the embedding table.
//!
//! The bytes of a matrix are copied once, packed for the CPU kernels or into a GPU buffer, and keep the
//! type of the file. A loaded model does not need its file. Parsing headers belongs to `gguf`.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{Device, Tensor};

use crate::candle_type::CandleType;
use crate::dequantise::dequantise;
use crate::file::ModelFile;
use crate::gguf::{Gguf, TensorInfo};
use crate::linear::Linear;
use crate::metal::convert::{Conversion, convert};
use crate::model_folder;
use crate::spec::{LAYER_EMBEDDING_TABLE, ModelSpec};
use crate::split;
use hunch_error::{Error, Result};
use hunch_kernels::experts::ExpertStack;
use hunch_kernels::{CopiedBytes, MatrixSource, Threads, WeightMatrix, WeightType};

/// Tensor name of the embedding table.
const EMBEDDING: &str = "token_embd.weight";

/// Consecutive rows of a matrix in a file: all of them, or a part of a matrix that joins several.
#[derive(Clone, Debug)]
pub(crate) struct MatrixRows {
    /// Tensor name without `.weight`.
    pub(crate) name: String,
    /// Name of the part if it were a matrix of its own. Biases may have this name.
    part: String,
    /// First row.
    pub(crate) first: usize,
    /// Number of rows.
    pub(crate) n: usize,
    /// Number of rows of the tensor.
    pub(crate) total: usize,
    /// Width of a row.
    pub(crate) k: usize,
}

impl MatrixRows {
    /// Returns all `n` rows of width `k` of a matrix.
    pub(crate) fn whole(name: &str, n: usize, k: usize) -> Self {
        Self { name: name.to_owned(), part: name.to_owned(), first: 0, n, total: n, k }
    }

    /// Returns several matrices of width `k`, given by name and number of rows.
    ///
    /// They are parts of the matrix `joined` if it is given, in this order.
    pub(crate) fn parts<const N: usize>(
        joined: Option<&str>,
        parts: [(String, usize); N],
        k: usize,
    ) -> [Self; N] {
        let total = parts.iter().map(|(_, n)| n).sum();
        let mut first = 0;
        parts.map(|(part, n)| {
            let rows = match joined {
                Some(name) => Self { name: name.to_owned(), part, first, n, total, k },
                None => Self::whole(&part, n, k),
            };
            first += n;
            rows
        })
    }

    /// Returns `n` rows from `first` on of a whole matrix.
    pub(crate) fn slice(&self, first: usize, n: usize) -> Self {
        Self { first, n, ..self.clone() }
    }

    /// Returns the tensor name of the weight.
    pub(crate) fn weight(&self) -> String {
        format!("{}.weight", self.name)
    }
}

/// Matrices `[n, k]` of all experts of a layer, in one tensor `[experts, total, k]`.
#[derive(Clone, Debug)]
pub(crate) struct ExpertMatrices {
    /// Tensor name without `.weight`.
    pub(crate) name: String,
    /// Number of experts.
    pub(crate) experts: usize,
    /// First row of each expert.
    first: usize,
    /// Number of rows of an expert.
    pub(crate) n: usize,
    /// Number of rows of an expert in the tensor.
    total: usize,
    /// Width of a row.
    pub(crate) k: usize,
}

impl ExpertMatrices {
    /// Returns whole matrices `[n, k]`.
    pub(crate) fn whole(name: String, experts: usize, (n, k): (usize, usize)) -> Self {
        Self { name, experts, first: 0, n, total: n, k }
    }

    /// Returns `n` rows from `first` on of each whole matrix.
    pub(crate) fn rows(self, first: usize, n: usize) -> Self {
        Self { first, n, ..self }
    }

    /// Returns the ranges of a tensor of `len` bytes that hold the bytes `at..at + count` of these rows.
    fn ranges(&self, len: usize, at: usize, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let row = len / (self.experts * self.total);
        let (own, all, first) = (self.n * row, self.total * row, self.first * row);
        let end = at + count;
        (at / own..end.div_ceil(own)).map(move |expert| {
            let part = at.max(expert * own)..end.min((expert + 1) * own);
            let moved = |at: usize| expert * all + first + at - expert * own;
            moved(part.start)..moved(part.end)
        })
    }
}

/// Error for a model on a GPU whose weights neither our kernels nor candle can read there.
pub(crate) fn cpu_only(path: &Path, dtype: WeightType) -> Error {
    let reason = format!("its {dtype} weights run on the CPU only. Load it with --device cpu");
    Error::UnsupportedModel { path: path.to_path_buf(), reason }
}

/// Callback invoked before each tensor is read, with its size in bytes. An error cancels loading.
pub type ReadCallback = Arc<dyn Fn(usize) -> Result<()> + Send + Sync>;

/// Open model with its header, in a single file or in the parts of a split model.
#[derive(Clone)]
pub struct WeightFile {
    parts: Vec<Arc<ModelFile>>,
    gguf: Arc<Gguf>,
    on_read: Option<ReadCallback>,
    /// Types that matrices are converted to as they are read for the Metal kernels.
    conversions: Arc<[Conversion]>,
}

impl WeightFile {
    /// Opens a model file and checks its header. For any part of a split model, opens all parts. Folders of
    /// safetensors files are described in [`model_folder`].
    ///
    /// # Errors
    /// If a file cannot be read or is not a valid GGUF, or a part is missing or belongs to another
    /// model.
    pub fn open(path: &Path) -> Result<Self> {
        if model_folder::is_part(path) {
            let (parts, gguf) = model_folder::open(path)?;
            return Ok(Self::of_parts(parts, gguf));
        }
        let (parts, gguf) = split::open(path, |path| {
            let file = ModelFile::open(path)?;
            let gguf = Gguf::from_file(&file)?;
            Ok((Arc::new(file), gguf))
        })?;
        Ok(Self { parts, gguf: Arc::new(gguf), on_read: None, conversions: Arc::default() })
    }

    /// Opens a model that is part of the program. `name` is used in errors.
    ///
    /// # Errors
    /// See [`WeightFile::open`].
    pub(crate) fn embedded(name: &str, bytes: &'static [u8]) -> Result<Self> {
        let file = ModelFile::embedded(name, bytes);
        let gguf = Gguf::from_file(&file)?;
        Ok(Self {
            parts: vec![Arc::new(file)],
            gguf: Arc::new(gguf),
            on_read: None,
            conversions: Arc::default(),
        })
    }

    /// Presents tensors of other files. `gguf` has their shapes and positions.
    pub(crate) fn of_parts(parts: Vec<Arc<ModelFile>>, gguf: Gguf) -> Self {
        Self { parts, gguf: Arc::new(gguf), on_read: None, conversions: Arc::default() }
    }

    /// Sets the callback for reading tensors.
    pub fn with_read_callback(self, on_read: ReadCallback) -> Self {
        Self { on_read: Some(on_read), ..self }
    }

    /// Returns the same file, with matrices of some types converted for the Metal kernels.
    #[must_use]
    pub(crate) fn converted(&self, conversions: &[Conversion]) -> Self {
        Self { conversions: conversions.into(), ..self.clone() }
    }

    fn conversion(&self, info: &TensorInfo) -> Option<&Conversion> {
        let is_own = |one: &&Conversion| info.dtype == one.from && info.shape.len() == 2;
        self.conversions.iter().find(is_own)
    }

    /// Returns the type of a tensor once loaded.
    fn loaded_type(&self, info: &TensorInfo) -> WeightType {
        self.conversion(info).map_or(info.dtype, |one| one.to)
    }

    /// Returns the size of a tensor in its type once loaded, in bytes.
    fn loaded_bytes(&self, info: &TensorInfo) -> usize {
        self.conversion(info).map_or(info.range.len(), |one| {
            info.range.len() / one.from.type_size() * one.from.block_size() / one.to.block_size()
                * one.to.type_size()
        })
    }

    /// Returns the bytes that a product reads of a tensor once loaded.
    fn bytes_read(&self, info: &TensorInfo) -> usize {
        if self.conversion(info).is_some() { self.loaded_bytes(info) } else { info.bytes_read() }
    }

    /// Returns the header.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Checks that the model files have not been modified since they were opened.
    ///
    /// # Errors
    /// [`Error::Io`] if a file was modified.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.check_unchanged())
    }

    /// Checks that candle can read all weights on a GPU.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for weights that run on the CPU only.
    pub(crate) fn check_candle(&self) -> Result<()> {
        let unknown = self.gguf.model_tensors().find(|(_, tensor)| tensor.dtype.candle().is_none());
        unknown.map_or(Ok(()), |(_, tensor)| Err(cpu_only(&self.gguf.path, tensor.dtype)))
    }

    /// Reads bytes of a tensor in file layout.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn tensor_bytes(&self, info: &TensorInfo, range: Range<usize>) -> Result<Vec<u8>> {
        let start = info.range.start;
        self.parts[info.part].read(start + range.start..start + range.end)
    }

    /// Reads the encoded metadata entries, without those specific to split models.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn metadata_bytes(&self) -> Result<Vec<u8>> {
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

    /// Returns `true` if the model has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensors.contains_key(name)
    }

    /// Returns `true` if the embedding table is also the output head.
    pub(crate) fn is_tied(&self) -> bool {
        !self.has("output.weight")
    }

    /// Returns the size in bytes of all weights, without those of layers that only draft.
    pub fn weight_bytes(&self) -> usize {
        self.gguf.model_tensors().map(|(_, tensor)| self.loaded_bytes(tensor)).sum()
    }

    /// Returns the size in bytes of the output head, which may be the embedding table, as a pass reads it.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head().map_or(0, |tensor| self.bytes_read(tensor))
    }

    /// Returns the number of weights of the output head.
    pub(crate) fn head_weights(&self) -> usize {
        self.head().map_or(0, count)
    }

    fn head(&self) -> Option<&TensorInfo> {
        self.gguf.tensors.get(if self.is_tied() { EMBEDDING } else { "output.weight" })
    }

    /// Returns the bytes of weights that a pass of one row reads, which may be more than the file has.
    ///
    /// The embedding table counts only if it is also the output head. Otherwise a pass reads a single
    /// row of it, as of the table of the layers' own embeddings. The experts of one row are included.
    pub fn bytes_per_pass(&self, spec: &ModelSpec) -> usize {
        self.sum_per_pass(spec, |tensor| self.bytes_read(tensor))
    }

    /// Returns the number of weights that a pass of one row reads, counted as in
    /// [`bytes_per_pass`](Self::bytes_per_pass).
    pub fn weights_per_pass(&self, spec: &ModelSpec) -> usize {
        self.sum_per_pass(spec, count)
    }

    fn sum_per_pass(&self, spec: &ModelSpec, of: impl Fn(&TensorInfo) -> usize) -> usize {
        let tied = self.is_tied();
        let is_read = |name: &str| (tied || name != EMBEDDING) && name != LAYER_EMBEDDING_TABLE;
        let read = self.gguf.model_tensors().filter(|(name, _)| is_read(name));
        read.map(|(name, tensor)| (of(tensor) as f64 * spec.share_read(name)) as usize).sum()
    }

    /// Returns the bytes of the weights of all experts, as passes read them. 0 for dense models.
    pub(crate) fn expert_bytes(&self, spec: &ModelSpec) -> usize {
        let experts = self.gguf.model_tensors().filter(|(name, _)| spec.share_read(name) < 1.0);
        experts.map(|(_, tensor)| self.bytes_read(tensor)).sum()
    }

    /// Returns a tensor of this shape, which is about to be read in full.
    fn info(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo> {
        let info = self.shaped(name, shape)?;
        self.announce(info.range.len())?;
        Ok(info)
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo> {
        let invalid = |reason| Error::InvalidModelFile { path: self.gguf.path.clone(), reason };
        let Some(info) = self.gguf.tensors.get(name) else {
            let Some(integers) = self.gguf.integers.get(name) else {
                return Err(invalid(format!("the tensor {name} is missing")));
            };
            let reason =
                format!("its tensor {name} is stored as I{}, which is not supported", 8 * integers.width);
            return Err(Error::UnsupportedModel { path: self.gguf.path.clone(), reason });
        };
        if info.shape == shape {
            return Ok(info);
        }
        Err(invalid(format!("the tensor {name} has the shape {:?}, expected {shape:?}", info.shape)))
    }

    /// Reports to the callback that `bytes` are about to be read.
    fn announce(&self, bytes: usize) -> Result<()> {
        self.on_read.as_ref().map_or(Ok(()), |on_read| on_read(bytes))
    }

    /// Creates a matrix for candle from rows in file layout.
    ///
    /// Types that candle cannot read become F32, which is for reference only, and so on the CPU only.
    fn candle_matrix(
        &self,
        dtype: WeightType,
        bytes: Vec<u8>,
        shape: (usize, usize),
        device: &Device,
    ) -> Result<QTensor> {
        let (bytes, candle) = match dtype.candle() {
            Some(candle) => (bytes, candle),
            None if device.is_cpu() => {
                let values = dequantise(dtype, bytes)?;
                (values.iter().flat_map(|value| value.to_le_bytes()).collect(), GgmlDType::F32)
            }
            None => return Err(cpu_only(&self.gguf.path, dtype)),
        };
        Ok(QTensor::new(QStorage::from_data(Cow::Owned(bytes), device, candle)?, shape)?)
    }

    /// Loads a vector (norm weight or bias) as f32 onto a device.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong length.
    pub(crate) fn vector(&self, name: &str, len: usize, device: &Device) -> Result<Tensor> {
        self.values(name, &[len], device)
    }

    /// Loads a tensor as f32 onto a device.
    ///
    /// # Errors
    /// If the tensor is missing, has another shape or contains a value that is not finite.
    pub(crate) fn values(&self, name: &str, shape: &[usize], device: &Device) -> Result<Tensor> {
        let info = self.info(name, shape)?;
        let values = dequantise(info.dtype, self.tensor_bytes(info, 0..info.range.len())?)?;
        self.check_values(name, &values)?;
        Ok(Tensor::from_vec(values, shape, device)?)
    }

    /// Reads all tensors, and checks that their values are finite. For small files.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a value is not finite, and the errors of reading.
    pub(crate) fn check_finite(&self) -> Result<()> {
        const BLOCKS: usize = 1 << 15;
        for (name, info) in &self.gguf().tensors {
            for from in (0..info.range.len()).step_by(BLOCKS * info.dtype.type_size()) {
                let to = info.range.len().min(from + BLOCKS * info.dtype.type_size());
                self.check_values(name, &dequantise(info.dtype, self.tensor_bytes(info, from..to)?)?)?;
            }
        }
        Ok(())
    }

    /// Checks that values of the tensor `name` are finite.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] with the name and the value.
    pub(crate) fn check_values(&self, name: &str, values: &[f32]) -> Result<()> {
        let Some(value) = values.iter().find(|value| !value.is_finite()) else { return Ok(()) };
        let reason = format!("{name} contains {value}");
        Err(Error::InvalidModelFile { path: self.gguf().path.clone(), reason })
    }

    /// Loads a linear layer onto a device, with its bias if the model has one.
    ///
    /// # Errors
    /// If the weight is missing or has the wrong shape, or the device is out of memory.
    pub(crate) fn linear(&self, rows: &MatrixRows, device: &Device) -> Result<Linear> {
        let bias = self.bias(rows)?.map(|bias| Tensor::new(bias, device)).transpose()?;
        Ok(Linear::new(self.quantised(rows, device)?, bias))
    }

    /// Reads the bias of a linear layer, or returns `None` if it has none.
    ///
    /// # Errors
    /// If the bias has the wrong length or the file cannot be read.
    pub(crate) fn bias(&self, rows: &MatrixRows) -> Result<Option<Vec<f32>>> {
        let (joined, own) = (format!("{}.bias", rows.name), format!("{}.bias", rows.part));
        if self.has(&joined) {
            let all = self.vector(&joined, rows.total, &Device::Cpu)?.to_vec1::<f32>()?;
            return Ok(Some(all[rows.first..rows.first + rows.n].to_vec()));
        }
        if self.has(&own) {
            return Ok(Some(self.vector(&own, rows.n, &Device::Cpu)?.to_vec1::<f32>()?));
        }
        Ok(None)
    }

    /// Loads rows of a weight matrix for candle, in the type of the file.
    ///
    /// # Errors
    /// See [`WeightFile::linear`].
    pub(crate) fn quantised(&self, rows: &MatrixRows, device: &Device) -> Result<QMatMul> {
        let (info, range) = self.rows(rows)?;
        let bytes = self.tensor_bytes(info, range)?;
        Ok(QMatMul::from_qtensor(self.candle_matrix(info.dtype, bytes, (rows.n, rows.k), device)?)?)
    }

    /// Returns the tensor of a matrix and the range of its rows in the tensor's bytes.
    fn rows(&self, rows: &MatrixRows) -> Result<(&TensorInfo, Range<usize>)> {
        let info = self.shaped(&rows.weight(), &[rows.total, rows.k])?;
        let row_bytes = info.range.len() / rows.total;
        self.announce(rows.n * row_bytes)?;
        Ok((info, rows.first * row_bytes..(rows.first + rows.n) * row_bytes))
    }

    /// Returns the type of a tensor once loaded, or `None` if there is none of this name.
    pub(crate) fn dtype(&self, name: &str) -> Option<WeightType> {
        self.gguf.tensors.get(name).map(|info| self.loaded_type(info))
    }

    /// Reads rows of a matrix in the layout of files, in the type that [`WeightFile::dtype`] returns.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape, or the file cannot be read.
    pub(crate) fn matrix_bytes(&self, rows: &MatrixRows) -> Result<Vec<u8>> {
        let (info, range) = self.rows(rows)?;
        let bytes = self.tensor_bytes(info, range)?;
        match self.conversion(info) {
            None => Ok(bytes),
            Some(one) => convert(one.from, one.to, &bytes),
        }
    }

    /// Loads rows of a weight matrix for the CPU kernels. Returns `None` if there is no kernel for its type.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape, memory is short, or the file cannot be read.
    pub(crate) fn matrix(&self, rows: &MatrixRows, threads: &Threads) -> Result<Option<WeightMatrix>> {
        let (info, range) = self.rows(rows)?;
        let (file, start) = (&self.parts[info.part], info.range.start + range.start);
        let read = |at: usize, out: &mut [u8]| Ok(file.read_into(start + at, out)?);
        let source = MatrixSource { read: &read, len: range.len(), dtype: info.dtype, n: rows.n, k: rows.k };
        Ok(WeightMatrix::new(source, threads)?)
    }

    /// Loads the matrices of experts for the CPU kernels, with their biases.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape or an unsupported one, memory is short, or the file cannot be read.
    pub(crate) fn expert_stack(&self, of: &ExpertMatrices, threads: &Threads) -> Result<ExpertStack> {
        let info = self.expert_info(of)?;
        let (file, start) = (&self.parts[info.part], info.range.start);
        let whole = info.range.len();
        let read = |at: usize, mut out: &mut [u8]| {
            for range in of.ranges(whole, at, out.len()) {
                let (part, rest) = out.split_at_mut(range.len());
                file.read_into(start + range.start, part)?;
                out = rest;
            }
            Ok(())
        };
        let (n, len) = (of.experts * of.n, whole / of.total * of.n);
        let source = MatrixSource { read: &read, len, dtype: info.dtype, n, k: of.k };
        let bias = self.expert_bias(of)?;
        let stack = ExpertStack::new(source, of.experts, bias, threads)?;
        stack.ok_or_else(|| Error::UnsupportedModel {
            path: self.gguf.path.clone(),
            reason: format!("there is no kernel for experts of {} x {} {} weights", of.n, of.k, info.dtype),
        })
    }

    /// Reads the matrices of experts: their type, their bytes in file layout, and their biases.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape, memory is short, or the file cannot be read.
    pub(crate) fn expert_bytes_of(
        &self,
        of: &ExpertMatrices,
    ) -> Result<(WeightType, Vec<u8>, Option<Vec<f32>>)> {
        let info = self.expert_info(of)?;
        let whole = info.range.len();
        let mut bytes = Vec::with_capacity(whole / of.total * of.n);
        for range in of.ranges(whole, 0, whole / of.total * of.n) {
            bytes.extend(self.tensor_bytes(info, range)?);
        }
        Ok((info.dtype, bytes, self.expert_bias(of)?))
    }

    /// Loads the matrices of experts for candle, one after the other, with their biases.
    ///
    /// # Errors
    /// As for [`WeightFile::linear`].
    pub(crate) fn expert_linears(&self, of: &ExpertMatrices, device: &Device) -> Result<Vec<Linear>> {
        let info = self.expert_info(of)?;
        let bias = self.expert_bias(of)?;
        let each = info.range.len() / of.experts / of.total * of.n;
        let expert = |index: usize| {
            let mut bytes = Vec::with_capacity(each);
            for range in of.ranges(info.range.len(), index * each, each) {
                bytes.extend(self.tensor_bytes(info, range)?);
            }
            let weight =
                QMatMul::from_qtensor(self.candle_matrix(info.dtype, bytes, (of.n, of.k), device)?)?;
            let bias = bias.as_ref().map(|bias| Tensor::new(&bias[index * of.n..][..of.n], device));
            Ok(Linear::new(weight, bias.transpose()?))
        };
        (0..of.experts).map(expert).collect()
    }

    fn expert_info(&self, of: &ExpertMatrices) -> Result<&TensorInfo> {
        let info = self.shaped(&format!("{}.weight", of.name), &[of.experts, of.total, of.k])?;
        self.announce(info.range.len() / of.total * of.n)?;
        Ok(info)
    }

    /// Reads the biases of all experts, `[experts * n]`, or returns `None` if there are none.
    fn expert_bias(&self, of: &ExpertMatrices) -> Result<Option<Vec<f32>>> {
        let name = format!("{}.bias", of.name);
        if !self.has(&name) {
            return Ok(None);
        }
        let info = self.info(&name, &[of.experts, of.total])?;
        let all = dequantise(info.dtype, self.tensor_bytes(info, 0..info.range.len())?)?;
        let own = all.chunks_exact(of.total).flat_map(|of_expert| &of_expert[of.first..of.first + of.n]);
        Ok(Some(own.copied().collect()))
    }

    /// Loads the embedding table into host memory, in the type of the file.
    ///
    /// Shares the matrix of the output head if both are tied and `head` is given.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape, memory is short, or the file cannot be read.
    pub(crate) fn host_embedding(
        &self,
        (rows, width): (usize, usize),
        head: Option<&WeightMatrix>,
        threads: &Threads,
    ) -> Result<Embedding> {
        let table = if let (true, Some(head)) = (self.is_tied(), head) {
            EmbeddingStorage::Head(head.clone())
        } else {
            return self.host_table(EMBEDDING, (rows, width), threads);
        };
        let dtype = self.gguf.tensors.get(EMBEDDING).map_or(WeightType::F32, |info| info.dtype);
        Ok(Embedding::Host { table, dtype, width })
    }

    /// Loads an embedding table of this name into host memory, in the type of the file.
    ///
    /// # Errors
    /// As [`host_embedding`](Self::host_embedding).
    pub(crate) fn host_table(
        &self,
        name: &str,
        (rows, width): (usize, usize),
        threads: &Threads,
    ) -> Result<Embedding> {
        let info = self.info(name, &[rows, width])?;
        let (file, start) = (&self.parts[info.part], info.range.start);
        let read = |at: usize, out: &mut [u8]| Ok(file.read_into(start + at, out)?);
        let bytes = CopiedBytes::new(info.range.len(), &read, threads)?;
        let table = EmbeddingStorage::Copy { row_bytes: info.range.len() / rows, bytes };
        Ok(Embedding::Host { table, dtype: info.dtype, width })
    }

    /// Reads rows of the output head, in the type of the file.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape, or the file cannot be read.
    pub(crate) fn head_rows(
        &self,
        (rows, width): (usize, usize),
        tokens: &[u32],
    ) -> Result<(WeightType, Vec<u8>)> {
        let name = if self.is_tied() { EMBEDDING } else { "output.weight" };
        let info = self.info(name, &[rows, width])?;
        let row_bytes = info.range.len() / rows;
        let mut bytes = Vec::with_capacity(tokens.len() * row_bytes);
        for &token in tokens {
            let start = token as usize * row_bytes;
            bytes.extend(self.tensor_bytes(info, start..start + row_bytes)?);
        }
        Ok((info.dtype, bytes))
    }

    /// Loads the embedding table onto a device, in the type of the file.
    ///
    /// # Errors
    /// If the tensor is missing or has the wrong shape, memory is short, or the file cannot be read.
    pub(crate) fn embedding(&self, rows: usize, width: usize, device: &Device) -> Result<Embedding> {
        if device.is_cpu() {
            let io = |source| Error::Io { action: "read", path: self.gguf.path.clone(), source };
            return self.host_embedding((rows, width), None, &Threads::new(1).map_err(io)?);
        }
        let info = self.info(EMBEDDING, &[rows, width])?;
        let bytes = self.tensor_bytes(info, 0..info.range.len())?;
        Ok(Embedding::Device(self.candle_matrix(info.dtype, bytes, (rows, width), device)?))
    }
}

/// Token embedding table in the type of the file. Rows are dequantised on lookup.
pub(crate) enum Embedding {
    /// Table in host memory.
    Host {
        /// Rows of the table.
        table: EmbeddingStorage,
        /// Type of the rows.
        dtype: WeightType,
        /// Values per row.
        width: usize,
    },
    /// Table on the GPU.
    Device(QTensor),
}

/// Storage of an embedding table in host memory.
pub(crate) enum EmbeddingStorage {
    /// Matrix of the output head, for a tied table.
    Head(WeightMatrix),
    /// Separate copy.
    Copy {
        /// Bytes of all rows.
        bytes: CopiedBytes,
        /// Size of a row in bytes.
        row_bytes: usize,
    },
}

impl Embedding {
    /// Returns the rows of `ids` as f32 `[ids, width]`. All ids must be inside the vocabulary.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn rows(&self, ids: &[u32], device: &Device) -> Result<Tensor> {
        match self {
            Self::Host { table, dtype, width } => {
                let (mut rows, mut values) = (Vec::new(), Vec::new());
                for &id in ids {
                    match table {
                        EmbeddingStorage::Head(matrix) => {
                            if !matrix.dequantise_row(id as usize, &mut values) {
                                matrix.copy_row(id as usize, &mut rows);
                            }
                        }
                        EmbeddingStorage::Copy { bytes, row_bytes } => {
                            rows.extend_from_slice(&bytes.bytes()[id as usize * row_bytes..][..*row_bytes]);
                        }
                    }
                }
                if values.is_empty() {
                    values = dequantise(*dtype, rows)?;
                }
                Ok(Tensor::from_vec(values, (ids.len(), *width), device)?)
            }
            Self::Device(table) => Ok(table.embedding(&Tensor::new(ids, device)?)?),
        }
    }

    /// Returns the rows of `ids` in host memory, `[ids, width]`.
    ///
    /// # Errors
    /// If candle cannot dequantise the type of the table.
    pub(crate) fn host_rows(&self, ids: &[u32]) -> Result<Vec<f32>> {
        Ok(self.rows(ids, &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?)
    }
}

/// Returns the number of weights of a tensor.
fn count(tensor: &TensorInfo) -> usize {
    tensor.shape.iter().product()
}
