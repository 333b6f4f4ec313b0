//! Architecture parameters of a model, read from GGUF metadata.
//!
//! Unsupported architectures and features are rejected by name, never approximated. No tensors here.

use hunch_core::model::ModelInfo;
use serde::{Deserialize, Serialize};

use crate::gguf::Gguf;
use crate::split;
use hunch_error::{Error, Result};

/// Pairing of head elements by the rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopeKind {
    /// Neighbours: (0, 1), (2, 3), ... NORM in llama.cpp.
    Interleaved,
    /// Halves: (0, d/2), (1, d/2 + 1), ... NEOX in llama.cpp.
    Halves,
}

/// Architecture parameters of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, or the file name.
    pub name: String,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the feed-forward layer.
    pub n_ff: usize,
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key and value heads.
    pub n_kv_head: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of rows of the output head.
    pub n_vocab: usize,
    /// Maximum sequence length in tokens.
    pub context_length: usize,
    /// Epsilon of the RMS norms.
    pub rms_eps: f64,
    /// Rotary embedding: pairing of elements.
    pub rope_kind: RopeKind,
    /// Rotary embedding: number of rotated elements per head.
    pub rope_dim: usize,
    /// Rotary embedding: base frequency.
    pub rope_base: f32,
    /// Rotary embedding: divisor of positions (linear scaling), 1 for none.
    pub rope_scale: f32,
    /// Every n-th layer has no rotary embedding (SmolLM3). 0 if all layers have it.
    pub no_rope_step: usize,
}

/// Supported architectures: name, RoPE pairing, and [`ModelSpec::no_rope_step`].
///
/// The pairing follows `llama_model_rope_type` in llama.cpp.
const ARCHITECTURES: [(&str, RopeKind, usize); 4] = [
    ("llama", RopeKind::Interleaved, 0),
    ("qwen2", RopeKind::Halves, 0),
    ("qwen3", RopeKind::Halves, 0),
    ("smollm3", RopeKind::Interleaved, 4),
];

impl ModelSpec {
    /// Reads the parameters from the metadata of a model file.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for an unsupported architecture or feature,
    /// [`Error::InvalidModelFile`] for missing or invalid values.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let reader = Reader { gguf, prefix: gguf.require_str("general.architecture")? };
        let Some(&(_, rope_kind, no_rope_step)) =
            ARCHITECTURES.iter().find(|(name, ..)| *name == reader.prefix)
        else {
            return Err(reader.unsupported(format!("its architecture is \"{}\"", reader.prefix)));
        };
        reader.reject_unsupported_features()?;

        let n_embd = reader.size("embedding_length", 1 << 17)?;
        let n_head = reader.size("attention.head_count", 1 << 12)?;
        let n_kv_head = reader.optional_size("attention.head_count_kv", 1 << 12)?.unwrap_or(n_head);
        let head_dim = match reader.optional_size("attention.key_length", 1 << 12)? {
            Some(length) => length,
            None => n_embd / n_head,
        };
        let spec = Self {
            architecture: reader.prefix.to_owned(),
            name: gguf.str("general.name").map_or_else(|| split::stem(&gguf.path), str::to_owned),
            n_layer: reader.size("block_count", 1 << 10)?,
            n_embd,
            n_ff: reader.size("feed_forward_length", 1 << 20)?,
            n_head,
            n_kv_head,
            head_dim,
            n_vocab: reader.vocabulary()?,
            context_length: reader.size("context_length", 1 << 24)?,
            rms_eps: reader.epsilon()?,
            rope_kind,
            rope_dim: reader.optional_size("rope.dimension_count", 1 << 12)?.unwrap_or(head_dim),
            rope_base: reader.positive("rope.freq_base", 10_000.0)?,
            rope_scale: reader.rope_scale()?,
            no_rope_step,
        };
        spec.check(&reader)?;
        Ok(spec)
    }

    /// Returns the model information for the round loop.
    pub fn info(&self) -> ModelInfo {
        ModelInfo {
            name: self.name.clone(),
            architecture: self.architecture.clone(),
            n_layer: self.n_layer,
            n_embd: self.n_embd,
            n_vocab: self.n_vocab,
            context_length: self.context_length,
        }
    }

    /// Limits the context to `context` tokens, at least 1.
    pub fn with_context(self, context: usize) -> Self {
        Self { context_length: self.context_length.min(context.max(1)), ..self }
    }

    fn check(&self, reader: &Reader<'_>) -> Result<()> {
        if !self.n_head.is_multiple_of(self.n_kv_head) {
            return Err(reader.invalid(format!(
                "{} query heads cannot share {} key and value heads",
                self.n_head, self.n_kv_head
            )));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(reader.invalid(format!("the head width is {}, but it must be even", self.head_dim)));
        }
        if self.rope_dim != self.head_dim {
            return Err(reader.unsupported(format!(
                "it rotates {} of the {} elements of a head",
                self.rope_dim, self.head_dim
            )));
        }
        if let Some(length) = reader.optional_size("attention.value_length", 1 << 12)?
            && length != self.head_dim
        {
            return Err(
                reader.unsupported(format!("its values are {length} wide and its keys {}", self.head_dim))
            );
        }
        Ok(())
    }

    /// Returns the size in bytes of the f32 KV cache for one token.
    pub fn cache_bytes_per_token(&self) -> usize {
        2 * self.n_layer * self.n_kv_head * self.head_dim * size_of::<f32>()
    }

    /// Returns `true` if layer `layer` has a rotary embedding.
    pub fn has_rope(&self, layer: usize) -> bool {
        self.no_rope_step == 0 || !(layer + 1).is_multiple_of(self.no_rope_step)
    }
}

struct Reader<'a> {
    gguf: &'a Gguf,
    prefix: &'a str,
}

impl Reader<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn invalid(&self, reason: String) -> Error {
        Error::InvalidModelFile { path: self.gguf.path.clone(), reason }
    }

    fn unsupported(&self, reason: String) -> Error {
        Error::UnsupportedModel { path: self.gguf.path.clone(), reason }
    }

    fn optional_size(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let key = self.key(name);
        match self.gguf.u32(&key) {
            None if self.gguf.metadata.contains_key(&key) => {
                Err(self.invalid(format!("{key} is not a whole number")))
            }
            None => Ok(None),
            Some(value) if value >= 1 && value as usize <= max => Ok(Some(value as usize)),
            Some(value) => Err(self.invalid(format!("{key} is {value}, but it must be 1 to {max}"))),
        }
    }

    fn size(&self, name: &str, max: usize) -> Result<usize> {
        self.optional_size(name, max)?.ok_or_else(|| self.invalid(format!("{} is missing", self.key(name))))
    }

    fn positive(&self, name: &str, default: f32) -> Result<f32> {
        let value = self.gguf.f32(&self.key(name)).unwrap_or(default);
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.invalid(format!("{} is {value}, but it must be positive", self.key(name))))
    }

    fn epsilon(&self) -> Result<f64> {
        let eps = self.positive("attention.layer_norm_rms_epsilon", 1e-5)?;
        if eps < 0.1 {
            return Ok(f64::from(eps));
        }
        Err(self.invalid(format!("the epsilon of the norms is {eps}, but it must be below 0.1")))
    }

    fn vocabulary(&self) -> Result<usize> {
        let embedding = self
            .gguf
            .tensors
            .get("token_embd.weight")
            .ok_or_else(|| self.invalid("the tensor token_embd.weight is missing".into()))?;
        match embedding.shape[..] {
            [n_vocab, _] if n_vocab >= 1 => Ok(n_vocab),
            _ => Err(self.invalid(format!("token_embd.weight has the shape {:?}", embedding.shape))),
        }
    }

    fn rope_scale(&self) -> Result<f32> {
        match self.gguf.str(&self.key("rope.scaling.type")) {
            None | Some("none") => Ok(1.0),
            Some("linear") => self.positive("rope.scaling.factor", 1.0),
            Some(other) => Err(self.unsupported(format!("its RoPE scaling is \"{other}\""))),
        }
    }

    fn reject_unsupported_features(&self) -> Result<()> {
        let context = self.gguf.u32(&self.key("context_length")).unwrap_or(0);
        if let Some(window) = self.gguf.u32(&self.key("attention.sliding_window"))
            && window > 0
            && window < context
        {
            return Err(self.unsupported(format!(
                "it uses a sliding attention window of {window} tokens, which is not supported yet"
            )));
        }
        if let Some(experts) = self.gguf.u32(&self.key("expert_count"))
            && experts > 0
        {
            return Err(self.unsupported(format!("it is a mixture of {experts} experts")));
        }
        Ok(())
    }
}
