//! Weights of a model as f32, for training, and copies of a model file with other weights. Decoding has packed weights:
//! [`weights`](crate::weights).

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use hunch_error::{Error, Result};

use crate::atomic_file;
use crate::candle_type::CandleType;
use crate::dequantise::dequantise;
use crate::model_folder;
use crate::rope::RopeTable;
use crate::spec::{HeadNorms, LayerSpec, ModelSpec, Norms};
use crate::weights::WeightFile;

/// An open model with layers as in Llama: dense, with norms before attention and feed-forward network.
pub struct FloatWeights {
    file: WeightFile,
    spec: ModelSpec,
    rope: RopeTable,
}

impl FloatWeights {
    /// Opens a model in one GGUF file.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] if it is not a single GGUF file, or its layers are computed in another way or have
    /// types that cannot be written. The errors of reading.
    pub fn open(path: &Path) -> Result<Self> {
        let unsupported =
            |reason: &str| Error::UnsupportedModel { path: path.to_path_buf(), reason: reason.into() };
        if model_folder::is_part(path) {
            return Err(unsupported("its weights can be trained in a GGUF file only"));
        }
        let file = WeightFile::open(path)?;
        let spec = ModelSpec::from_gguf(file.gguf())?;
        let tensors = &file.gguf().tensors;
        let is_plain = spec.norms == Norms::Before
            && spec.head_norms != HeadNorms::Joint
            && !spec.gelu
            && !spec.sinks
            && spec.experts.is_none()
            && spec.convolution.is_none()
            && spec.query_temperature.is_none()
            && spec.attention_softcap.is_none()
            && spec.logit_softcap.is_none()
            && [spec.embedding_scale, spec.residual_scale, spec.logit_scale]
                .iter()
                .all(|scale| *scale == 1.0)
            && spec.rope_dim == spec.head_dim
            && spec.layers.iter().all(|layer| *layer == LayerSpec::PLAIN)
            && tensors.contains_key("blk.0.attn_q.weight")
            && tensors.contains_key("blk.0.ffn_gate.weight");
        if !is_plain {
            let reason = format!("layers of the architecture {} cannot be trained", spec.architecture);
            return Err(unsupported(&reason));
        }
        if tensors.values().any(|info| info.part > 0) {
            return Err(unsupported("it is split. Join its parts with llama-gguf-split --merge first"));
        }
        let mut of_layers = tensors.iter().filter(|(name, _)| name.starts_with("blk."));
        if let Some((_, info)) = of_layers.find(|(_, info)| info.dtype.candle().is_none()) {
            return Err(unsupported(&format!("weights of the type {} cannot be written", info.dtype)));
        }
        let rope = RopeTable::new(&file, &spec)?;
        Ok(Self { file, spec, rope })
    }

    /// Returns the parameters of the architecture.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the open file.
    pub fn file(&self) -> &WeightFile {
        &self.file
    }

    /// Returns a tensor as f32 on a device. `None` if the model has none of this name.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a value is not finite. If the file cannot be read, or memory is short.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Option<Tensor>> {
        let Some(info) = self.file.gguf().tensors.get(name) else { return Ok(None) };
        let bytes = self.file.tensor_bytes(info, 0..info.range.len())?;
        let values = dequantise(info.dtype, bytes)?;
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            let (path, reason) = (self.file.gguf().path.clone(), format!("{name} contains {value}"));
            return Err(Error::InvalidModelFile { path, reason });
        }
        Ok(Some(Tensor::from_vec(values, &info.shape[..], device)?))
    }

    /// Returns cosines and sines of positions, `[positions, head_dim / 2]` each.
    pub fn angles(&self, positions: impl Iterator<Item = usize>) -> (Vec<f32>, Vec<f32>) {
        let angles = self.rope.angles(positions);
        (angles.cos, angles.sin)
    }

    /// Writes a copy of the file with other values of some tensors, in the types of the file. Replaces a file at `path` in
    /// one step.
    ///
    /// # Errors
    /// [`Error::Io`] if the copy cannot be written, and an error if the model changed on disk. A file at `path` is then
    /// unchanged.
    pub fn write(
        &self,
        path: &Path,
        changed: impl IntoIterator<Item = Result<(String, Tensor)>>,
    ) -> Result<()> {
        let original = &self.file.gguf().path;
        self.file.check_unchanged()?;
        let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        let mut source = std::fs::File::open(original).map_err(|source| Error::Io {
            action: "read",
            path: original.clone(),
            source,
        })?;
        atomic_file::replace(path, |out| {
            std::io::copy(&mut source, out).map_err(io)?;
            for tensor in changed {
                let (name, values) = tensor?;
                let unknown = || Error::Internal(format!("the model has no tensor {name} of this size"));
                let info = self.file.gguf().tensors.get(&name).ok_or_else(unknown)?;
                let dtype = info.dtype.candle().ok_or_else(unknown)?;
                let values = values.to_device(&Device::Cpu)?;
                let bytes = QTensor::quantize(&values, dtype)?.data()?.to_vec();
                if bytes.len() != info.range.len() {
                    return Err(unknown());
                }
                out.seek(SeekFrom::Start(info.range.start as u64)).map_err(io)?;
                out.write_all(&bytes).map_err(io)?;
            }
            Ok(())
        })
    }
}
