//! Presents the tensors of safetensors files under their names in GGUF. Reading happens when they are loaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use hunch_error::Result;

use super::affine::{Mode, QuantisedMatrix, ScaleType, Stored};
use super::config::{ModelConfig, NormNames};
use crate::dequantise::dequantise;
use crate::file::{DerivedBytes, ModelFile};
use crate::gguf::{TensorInfo, WeightType};
use crate::stored_tensors::{StoredTensor, float_type};

/// Files of the tensors, and their headers, whose parts count from 1.
pub(super) type Opened = (Vec<Arc<ModelFile>>, BTreeMap<String, TensorInfo>);

/// Tensors of a model.
struct Tensors<'a> {
    config: &'a ModelConfig,
    files: &'a [Arc<ModelFile>],
    stored: BTreeMap<String, StoredTensor>,
    parts: Vec<Arc<ModelFile>>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// Translates names and types of all tensors.
///
/// # Errors
/// [`Error::UnsupportedModel`](hunch_error::Error::UnsupportedModel) for tensors with an unknown name or type,
/// [`Error::InvalidModelFile`](hunch_error::Error::InvalidModelFile) for shapes that contradict each other.
pub(super) fn open(
    config: &ModelConfig,
    files: &[Arc<ModelFile>],
    stored: BTreeMap<String, StoredTensor>,
) -> Result<Opened> {
    let mut all = Tensors { config, files, stored, parts: Vec::new(), tensors: BTreeMap::new() };
    let names: Vec<String> = all.stored.keys().cloned().collect();
    for full in names {
        all.add(&full)?;
    }
    for (name, values) in config.rope_tensors()? {
        let len = values.len();
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let file = ModelFile::in_memory(&config.path, bytes);
        all.put(name.to_owned(), vec![len], WeightType::F32, file);
    }
    if config.is_tied() == Some(false) && !all.tensors.contains_key("output.weight") {
        return Err(config.invalid("the tensor lm_head.weight is missing".into()));
    }
    Ok((all.parts, all.tensors))
}

impl Tensors<'_> {
    fn add(&mut self, full: &str) -> Result<()> {
        if is_ignored(full) || is_of_quantised(full, &self.stored) {
            return Ok(());
        }
        let Some(name) = gguf_name(full, self.config.family.norms) else {
            let short: String = full.chars().take(80).collect();
            return Err(self.config.unsupported(format!("it has the unknown tensor {short}")));
        };
        if name == "output.weight" && self.config.is_tied() == Some(true) {
            return Ok(());
        }
        let base = full.strip_suffix(".weight");
        match base.filter(|base| self.stored.contains_key(&format!("{base}.scales"))) {
            Some(base) => self.add_quantised(base, name),
            None => self.add_float(full, name),
        }
    }

    fn add_float(&mut self, full: &str, name: String) -> Result<()> {
        let stored = &self.stored[full];
        let Some(dtype) = float_type(&stored.dtype) else {
            return Err(self.config.unsupported(format!("its tensor {full} is stored as {}", stored.dtype)));
        };
        let own = Stored { file: self.files[stored.file].clone(), range: stored.range.clone() };
        let (shape, len) = (stored.shape.clone(), stored.range.len());
        let is_norm = name.contains("_norm.");
        if is_norm && self.config.family.norms_add_one {
            let bytes = len / dtype.type_size() * size_of::<f32>();
            let file = ModelFile::derived(&self.config.path, bytes, Box::new(PlusOne { own, dtype }));
            self.put(name, shape, WeightType::F32, file);
            return Ok(());
        }
        // The tensor is a range of its file.
        let part = self.parts.len() + 1;
        self.parts.push(own.file);
        self.tensors.insert(name, TensorInfo { shape, dtype, part, range: own.range });
        Ok(())
    }

    fn add_quantised(&mut self, base: &str, name: String) -> Result<()> {
        let config = self.config;
        let mode = config.mode(base)?;
        let part = |suffix: &str| self.stored.get(&format!("{base}.{suffix}"));
        let wrong =
            |what: &str| config.invalid(format!("the tensor {base}.{what} is missing or has another shape"));
        let (weight, scales) = (part("weight").ok_or_else(|| wrong("weight"))?, part("scales"));
        let ([rows, words], "U32") = (&weight.shape[..], weight.dtype.as_str()) else {
            return Err(wrong("weight"));
        };
        let bits =
            words.checked_mul(32).filter(|bits| bits % mode.bits() == 0).ok_or_else(|| wrong("weight"))?;
        let (rows, width) = (*rows, bits / mode.bits());
        if !width.is_multiple_of(mode.group()) {
            let reason =
                format!("the rows of {base} have {width} weights, no whole groups of {}", mode.group());
            return Err(config.invalid(reason));
        }
        let of_groups = [rows, width / mode.group()];
        let scales = scales.filter(|scales| scales.shape == of_groups).ok_or_else(|| wrong("scales"))?;
        let (biases, scale_type) = match mode {
            Mode::Mxfp4 if scales.dtype == "U8" => (None, ScaleType::F16),
            Mode::Mxfp4 => return Err(wrong("scales")),
            Mode::Affine { .. } => {
                let biases = part("biases").filter(|b| b.shape == of_groups && b.dtype == scales.dtype);
                let dtype = ScaleType::named(&scales.dtype).ok_or_else(|| wrong("scales"))?;
                (Some(biases.ok_or_else(|| wrong("biases"))?), dtype)
            }
        };
        let stored = |tensor: &StoredTensor| Stored {
            file: self.files[tensor.file].clone(),
            range: tensor.range.clone(),
        };
        let dtype = mode.dtype().ok_or_else(|| wrong("weight"))?;
        let matrix = QuantisedMatrix {
            name: base.to_owned(),
            path: config.path.clone(),
            rows,
            width,
            mode,
            dtype,
            codes: stored(weight),
            scales: stored(scales),
            biases: biases.map(stored),
            scale_type,
        };
        let file = ModelFile::derived(&config.path, matrix.len(), Box::new(matrix));
        self.put(name, vec![rows, width], dtype, file);
        Ok(())
    }

    /// Adds a tensor that is a whole file.
    fn put(&mut self, name: String, shape: Vec<usize>, dtype: WeightType, file: ModelFile) {
        let (part, range) = (self.parts.len() + 1, 0..file.len());
        self.parts.push(Arc::new(file));
        self.tensors.insert(name, TensorInfo { shape, dtype, part, range });
    }
}

/// A vector plus 1, as f32.
struct PlusOne {
    own: Stored,
    dtype: WeightType,
}

impl DerivedBytes for PlusOne {
    fn read_into(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let values = dequantise(self.dtype, self.own.file.read(self.own.range.clone())?)?;
        let bytes: Vec<u8> = values.into_iter().flat_map(|value| (value + 1.0).to_le_bytes()).collect();
        out.copy_from_slice(&bytes[at..at + out.len()]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.own.file.check_unchanged()
    }
}

/// Returns `true` for tensors that the text model does not need: frequencies, and parts for images and sound.
fn is_ignored(name: &str) -> bool {
    let other_parts = ["vision_tower.", "vision_model.", "multi_modal_projector.", "audio_tower.", "visual."];
    name.ends_with("rotary_emb.inv_freq")
        || other_parts.iter().any(|part| name.starts_with(part) || name.starts_with(&format!("model.{part}")))
}

/// Returns `true` for scales and biases of a quantised matrix.
fn is_of_quantised(name: &str, stored: &BTreeMap<String, StoredTensor>) -> bool {
    let base = [".scales", ".biases"].iter().find_map(|suffix| name.strip_suffix(suffix));
    base.is_some_and(|base| stored.contains_key(&format!("{base}.weight")))
}

/// Returns the name in GGUF, or `None` for an unknown tensor.
fn gguf_name(full: &str, norms: NormNames) -> Option<String> {
    let name = full.strip_prefix("language_model.").unwrap_or(full);
    let name = name.strip_prefix("model.").unwrap_or(name);
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let (base, suffix) = name.rsplit_once('.')?;
    if !matches!(suffix, "weight" | "bias") {
        return None;
    }
    let own = match base {
        "embed_tokens" => "token_embd".to_owned(),
        "norm" => "output_norm".to_owned(),
        "lm_head" => "output".to_owned(),
        _ => {
            let (index, part) = base.strip_prefix("layers.")?.split_once('.')?;
            let index: u16 = index.parse().ok()?;
            format!("blk.{index}.{}", layer_part(part, norms)?)
        }
    };
    Some(format!("{own}.{suffix}"))
}

fn layer_part(part: &str, norms: NormNames) -> Option<&'static str> {
    Some(match (part, norms) {
        ("self_attn.q_proj", _) => "attn_q",
        ("self_attn.k_proj", _) => "attn_k",
        ("self_attn.v_proj", _) => "attn_v",
        ("self_attn.o_proj", _) => "attn_output",
        ("self_attn.qkv_proj", _) => "attn_qkv",
        ("self_attn.q_norm", _) => "attn_q_norm",
        ("self_attn.k_norm", _) => "attn_k_norm",
        ("mlp.gate_proj", _) => "ffn_gate",
        ("mlp.up_proj" | "mlp.gate_up_proj", _) => "ffn_up",
        ("mlp.down_proj", _) => "ffn_down",
        ("input_layernorm", _) => "attn_norm",
        ("post_attention_layernorm", NormNames::Llama | NormNames::Glm4) => "ffn_norm",
        ("post_attention_layernorm", _) | ("post_self_attn_layernorm", NormNames::Glm4) => {
            "post_attention_norm"
        }
        ("pre_feedforward_layernorm", NormNames::Gemma) => "ffn_norm",
        ("post_feedforward_layernorm", NormNames::Gemma | NormNames::After)
        | ("post_mlp_layernorm", NormNames::Glm4) => "post_ffw_norm",
        _ => return None,
    })
}
