//! Architecture parameters of a model, read from GGUF metadata.
//!
//! Unsupported architectures and features are rejected by name, never approximated. No tensors here.

mod architectures;
mod delta_net;
mod experts;
mod layers;
mod mtp;
mod reader;
mod rope;
pub(crate) mod state;
mod varied_layers;

use hunch_core::model::ModelInfo;
use serde::{Deserialize, Serialize};

use crate::display_name;
use crate::gguf::Gguf;
pub use architectures::runs_architecture;
use architectures::{ARCHITECTURES, Architecture, EXPERTS_WITHOUT_HEAD_NORMS};
pub use delta_net::{DeltaNet, HeadOrder};
pub use experts::{ExpertGroups, Experts, Weighting};
use hunch_error::Result;
use hunch_kernels::activation::{Activation, scale, soft_cap};
pub use layers::{KeyHeads, LayerRope, LayerSpec, Mixer};
pub use mtp::MtpLayers;
pub(crate) use mtp::runs_mtp;
use reader::SpecReader;
pub use state::RESTORE_STEP;
pub(crate) use varied_layers::LAYER_EMBEDDING_SCALE;
pub use varied_layers::{LAYER_EMBEDDING_TABLE, LayerEmbeddingShape};

/// Factor and bound of logits: a product z of the output head becomes `cap * tanh(factor * z / cap)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitScaling {
    /// Factor of the product.
    pub factor: f32,
    /// Bound, or `None` for none.
    pub cap: Option<f32>,
}

impl LogitScaling {
    /// Leaves products as they are, such as those of a head with a matrix of its own.
    pub const NONE: Self = Self { factor: 1.0, cap: None };

    /// Turns products into logits, in place.
    pub fn apply(self, products: &mut [f32]) {
        if self.factor != 1.0 {
            scale(products, self.factor);
        }
        if let Some(cap) = self.cap {
            soft_cap(products, cap);
        }
    }
}

/// Pairing of head elements by the rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopeKind {
    /// Neighbours: (0, 1), (2, 3), ... NORM in llama.cpp.
    Interleaved,
    /// Halves: (0, d/2), (1, d/2 + 1), ... NEOX in llama.cpp.
    Halves,
}

/// Placement of the norms around attention and the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Norms {
    /// Before each.
    Before,
    /// Before each. The file calls the second one `post_attention_norm` (Seed-OSS).
    BeforeAsPost,
    /// After each, before its output joins the residual stream (OLMo 2, EXAONE 4).
    After,
    /// Before and after each (Gemma 2 and 3, GLM-4).
    Both,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadNorms {
    /// A norm for each head if the file has the weights.
    IfPresent,
    /// A norm for each head.
    PerHead,
    /// One norm over all heads of a row (OLMo 2).
    Joint,
    /// A norm without weights for each head, in layers with a rotary embedding (Llama 4). The file places it after the
    /// rotation, which does not change it.
    Unit,
    /// A norm for each head, and a norm without weights for each head of the values (Gemma 4).
    WithValues,
}

/// Ramp of YaRN between scaled and unscaled frequencies (Peng et al., arXiv 2309.00071).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yarn {
    /// Rotations within the original context above which a frequency is not scaled.
    pub beta_fast: f32,
    /// Rotations within the original context below which a frequency is scaled in full.
    pub beta_slow: f32,
}

/// Rotary embedding of layers with a sliding window, where it differs from the other layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalRope {
    /// Base frequency. Positions are not scaled.
    pub base: f32,
    /// Number of rotated elements per head, from the first on.
    pub dim: usize,
}

/// Factor of queries that grows with the position: 1 + scale * ln(1 + floor((position + offset) / period)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryTemperature {
    /// Growth for each e-fold of the number of periods.
    pub scale: f32,
    /// Positions of a period.
    pub period: usize,
    /// Number that is added to positions.
    pub offset: usize,
    /// `true` if only layers without rotary embedding have the factor (Llama 4).
    pub unrotated_only: bool,
}

impl QueryTemperature {
    /// Returns the factor of a query.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.scale * (((position + self.offset) / self.period) as f32 + 1.0).ln()
    }
}

/// Architecture parameters of a decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: String,
    /// Display name ([`display_name`]).
    pub name: String,
    /// Number of layers, without those that only draft.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the feed-forward layer. With experts, the width of all experts of a row. The widest, if layers differ.
    pub n_ff: usize,
    /// Experts of the feed-forward layers. `None` for dense layers.
    pub experts: Option<Experts>,
    /// `true` if attention has sinks. See [`hunch_kernels::attention::AttentionInput::sinks`].
    pub sinks: bool,
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key and value heads. See [`heads`](Self::heads) for those of a layer.
    pub n_kv_head: usize,
    /// Width of a head. See [`heads`](Self::heads) for that of a layer.
    pub head_dim: usize,
    /// Number of rows of the output head.
    pub n_vocab: usize,
    /// Maximum sequence length in tokens.
    pub context_length: usize,
    /// Epsilon of the RMS norms.
    pub rms_eps: f64,
    /// Placement of the norms.
    pub norms: Norms,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms,
    /// `true` if the gate's activation is GELU, otherwise SiLU.
    pub gelu: bool,
    /// `true` if files may join the matrices of gate and up in `ffn_up`.
    pub joined_gate: bool,
    /// Rotary embedding: pairing of elements.
    pub rope_kind: RopeKind,
    /// Rotary embedding: number of rotated elements per head, from the first on.
    pub rope_dim: usize,
    /// Rotary embedding: base frequency.
    pub rope_base: f32,
    /// Rotary embedding: divisor of positions (linear scaling and YaRN), 1 for none.
    pub rope_scale: f32,
    /// Rotary embedding: factor of rotated queries and keys (YaRN and longrope), 1 for none.
    pub rope_magnitude: f32,
    /// Rotary embedding: ramp of YaRN.
    pub yarn: Option<Yarn>,
    /// Context length before it was extended by scaling the rotary embedding.
    pub original_context: usize,
    /// Rotary embedding of the layers with [`LayerRope::Local`].
    pub local_rope: Option<LocalRope>,
    /// Factor of the token embeddings.
    pub embedding_scale: f32,
    /// Factor of what a layer adds to the residual stream.
    pub residual_scale: f32,
    /// Factor of the attention scores.
    pub attention_scale: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Bound of the attention scores. See [`hunch_kernels::attention::AttentionShape::softcap`].
    pub attention_softcap: Option<f32>,
    /// Bound of the logits.
    pub logit_softcap: Option<f32>,
    /// Factor of queries by position.
    pub query_temperature: Option<QueryTemperature>,
    /// Positions that a short convolution sees, its own included. `None` if no layer has one.
    pub convolution: Option<usize>,
    /// Sizes of gated delta nets. `None` if no layer has one.
    pub delta_net: Option<DeltaNet>,
    /// `true` if the output of attention is multiplied by the sigmoid of a gate. The rows of `attn_q` are then the
    /// query and the gate of each head in turn (Qwen3-Next).
    pub gated_attention: bool,
    /// Embeddings that each layer has of its own. `None` for most models.
    pub layer_embedding: Option<LayerEmbeddingShape>,
    /// Layers after these that only draft. `None` if the file has none.
    pub mtp: Option<MtpLayers>,
    /// Parameters of the single layers.
    pub layers: Vec<LayerSpec>,
}

impl ModelSpec {
    /// Reads the parameters from the metadata of a model file.
    ///
    /// # Errors
    /// [`hunch_error::Error::UnsupportedModel`] for an unsupported architecture or feature,
    /// [`hunch_error::Error::InvalidModelFile`] for missing or invalid values.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let reader = SpecReader { gguf, prefix: gguf.require_str("general.architecture")? };
        let Some(architecture) = ARCHITECTURES.iter().find(|row| row.name == reader.prefix) else {
            return Err(reader.unsupported(format!("its architecture is \"{}\"", reader.prefix)));
        };
        reader.reject_unsupported_features(architecture)?;

        let n_embd = reader.size("embedding_length", 1 << 17)?;
        let n_head = reader.size("attention.head_count", 1 << 12)?;
        let head_dim = match reader.optional_size("attention.key_length", 1 << 12)? {
            Some(length) => length,
            None => n_embd / n_head,
        };
        let (n_layer, mtp) = reader.layers(architecture)?;
        let (n_kv_head, mixers) = reader.mixers(architecture, n_head, n_layer)?;
        let feed_forward = reader.feed_forward_widths(architecture, n_layer)?;
        let context_length = reader.size("context_length", 1 << 24)?;
        let original_context =
            reader.optional_size("rope.scaling.original_context_length", 1 << 24)?.unwrap_or(context_length);
        let mut layers = reader.layer_specs(architecture, &mixers, context_length)?;
        if architecture.varied_layers {
            reader.vary_layers(&mut layers, (n_kv_head, head_dim), &feed_forward)?;
        }
        let rope_base = reader.positive("rope.freq_base", 10_000.0)?;
        let rope_dim = reader.optional_size("rope.dimension_count", 1 << 12)?.unwrap_or(head_dim);
        let rope_scale = reader.rope_scale()?;
        let yarn = reader.yarn()?;
        let experts = reader
            .experts(architecture.experts)?
            .map(|experts| Experts { gelu: architecture.gelu, ..experts });
        let head_norms = match (architecture.head_norms, experts) {
            (HeadNorms::Unit, Some(of)) if of.count == EXPERTS_WITHOUT_HEAD_NORMS => HeadNorms::IfPresent,
            (norms, _) => norms,
        };
        let by_width = architecture.scaled_by_width == Some(n_layer);
        let query_width = if by_width { n_embd / n_head } else { head_dim }.max(1);
        let spec = Self {
            architecture: reader.prefix.to_owned(),
            name: display_name::of(gguf),
            n_layer,
            n_embd,
            n_ff: match &experts {
                Some(experts) => experts.widest(),
                None => match feed_forward.iter().copied().max() {
                    Some(width) if width > 0 => width,
                    _ => reader.size("feed_forward_length", 1 << 20)?,
                },
            },
            experts,
            sinks: architecture.sinks,
            n_head,
            n_kv_head,
            head_dim,
            n_vocab: reader.vocabulary()?,
            context_length,
            rms_eps: reader.epsilon()?,
            norms: architecture.norms,
            head_norms,
            gelu: architecture.gelu,
            joined_gate: architecture.joined_gate,
            rope_kind: reader.rope_kind(architecture),
            rope_dim,
            rope_base,
            rope_scale,
            rope_magnitude: reader.rope_magnitude(yarn, rope_scale)?,
            yarn,
            original_context,
            local_rope: reader.local_rope(architecture, &layers, (rope_base, rope_dim))?,
            embedding_scale: reader.positive(
                "embedding_scale",
                if architecture.scaled_embedding { (n_embd as f32).sqrt() } else { 1.0 },
            )?,
            residual_scale: reader.positive("residual_scale", 1.0)?,
            attention_scale: match architecture.attention_scale {
                Some(scale) => scale,
                None => reader.positive("attention.scale", 1.0 / (query_width as f32).sqrt())?,
            },
            logit_scale: if architecture.divides_logits {
                1.0 / reader.positive("logit_scale", 1.0)?
            } else {
                1.0
            },
            attention_softcap: reader.softcap("attn_logit_softcapping", architecture.softcaps.attention)?,
            logit_softcap: reader.softcap("final_logit_softcapping", architecture.softcaps.logits)?,
            query_temperature: match architecture.query_temperature {
                None => reader.query_temperature(original_context)?,
                of_architecture => of_architecture,
            },
            convolution: reader.convolution(&mixers)?,
            delta_net: reader.delta_net(architecture, &mixers)?,
            gated_attention: architecture.delta_nets.is_some(),
            layer_embedding: reader.layer_embedding(architecture)?,
            mtp,
            layers,
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

    fn check(&self, reader: &SpecReader<'_>) -> Result<()> {
        if !self.n_head.is_multiple_of(self.n_kv_head) {
            return Err(reader.invalid(format!(
                "{} query heads cannot share {} key and value heads",
                self.n_head, self.n_kv_head
            )));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(reader.invalid(format!("the head width is {}, but it must be even", self.head_dim)));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let (head_dim, rope_dim) = (self.heads(index).width, self.rope_dim_of(layer.rope));
            if rope_dim > head_dim || !rope_dim.is_multiple_of(2) {
                let reason = format!("it rotates {rope_dim} of the {head_dim} elements of a head");
                return Err(reader.unsupported(reason));
            }
        }
        if let Some(length) = reader.optional_size("attention.value_length", 1 << 12)?
            && length != self.head_dim
        {
            return Err(
                reader.unsupported(format!("its values are {length} wide and its keys {}", self.head_dim))
            );
        }
        // Such a norm undoes the factor of a rotation before it.
        if self.head_norms == HeadNorms::Unit && self.rope_magnitude != 1.0 {
            return Err(reader.unsupported(format!("its rotation has the factor {}", self.rope_magnitude)));
        }
        Ok(())
    }

    /// Returns `true` if the queries of a layer have a factor by position.
    pub(crate) fn scales_queries(&self, layer: usize) -> bool {
        let rotated = self.layers[layer].rope != LayerRope::None;
        self.query_temperature.is_some_and(|temperature| !(temperature.unrotated_only && rotated))
    }

    /// Returns what turns products of the output head into logits.
    pub fn logit_scaling(&self) -> LogitScaling {
        LogitScaling { factor: self.logit_scale, cap: self.logit_softcap }
    }

    /// Returns the activation of gates, of dense networks and embeddings of layers.
    pub(crate) fn activation(&self) -> Activation {
        if self.gelu { Activation::Gelu } else { Activation::Silu }
    }

    /// Returns the key heads of a layer.
    pub fn heads(&self, layer: usize) -> KeyHeads {
        let of_model = KeyHeads { count: self.n_kv_head, width: self.head_dim };
        self.layers[layer].heads.unwrap_or(of_model)
    }

    /// Returns the width of the dense feed-forward network of a layer.
    pub fn dense_width(&self, layer: usize) -> usize {
        self.layers[layer].n_ff.unwrap_or(self.n_ff)
    }

    /// Returns the largest width of the queries of a layer.
    pub fn widest_queries(&self) -> usize {
        (0..self.n_layer).map(|layer| self.n_head * self.heads(layer).width).max().unwrap_or_default()
    }

    /// Returns the largest width of the keys of a layer.
    pub fn widest_keys(&self) -> usize {
        (0..self.n_layer).map(|layer| self.heads(layer).values()).max().unwrap_or_default()
    }

    /// Returns the layer whose keys and values a layer attends to: itself, or an earlier one.
    pub fn key_layer(&self, layer: usize) -> usize {
        self.layers[layer].shares_keys_of.unwrap_or(layer)
    }

    /// Returns `true` if a layer has keys and values of its own.
    pub fn has_keys(&self, layer: usize) -> bool {
        self.layers[layer].mixer == Mixer::Attention && self.layers[layer].shares_keys_of.is_none()
    }

    /// Returns `true` if another layer attends to the keys of this one.
    pub fn lends_keys(&self, layer: usize) -> bool {
        self.layers.iter().any(|other| other.shares_keys_of == Some(layer))
    }

    /// Returns the number of elements that a rotary embedding rotates.
    pub(crate) fn rope_dim_of(&self, rope: LayerRope) -> usize {
        match (rope, self.local_rope) {
            (LayerRope::Local, Some(local)) => local.dim,
            _ => self.rope_dim,
        }
    }

    /// Returns the number of values of a row that each layer with keys of its own caches, keys and values together.
    pub fn cached_values(&self) -> impl Iterator<Item = usize> {
        (0..self.n_layer).filter(|&layer| self.has_keys(layer)).map(|layer| 2 * self.heads(layer).values())
    }

    /// Returns the number of layers with attention.
    pub fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.mixer == Mixer::Attention).count()
    }

    /// Returns the size in bytes of the f32 KV cache for one token, without the [state](Self::state_bytes) of other
    /// layers.
    pub fn cache_bytes_per_token(&self) -> usize {
        self.cached_values().sum::<usize>() * size_of::<f32>()
    }

    /// Returns the bytes of state that layers without attention have for `capacity` tokens, whatever the type of the
    /// KV cache.
    pub fn state_bytes(&self, capacity: usize) -> usize {
        let row = self.n_embd * size_of::<f32>();
        let of_convolution = self.convolution.map_or(0, |n| row * state::places(n - 1, capacity));
        let of_delta_net = self.delta_net.map_or(0, |net| net.state_bytes());
        (self.n_layer - self.attention_layers()) * (of_convolution + of_delta_net)
    }

    /// Returns the bytes of one state of each layer with a gated delta net.
    pub(crate) fn delta_state_bytes(&self) -> u64 {
        let of_layer = self.delta_net.map_or(0, |net| size_of::<f32>() * net.shape().state());
        let layers = self.layers.iter().filter(|layer| layer.mixer == Mixer::DeltaNet).count();
        (layers * of_layer) as u64
    }

    /// Returns the share of a tensor's bytes that a pass of one row reads: less than all for experts.
    pub fn share_read(&self, tensor: &str) -> f64 {
        self.experts.filter(|_| tensor.contains("_exps.")).map_or(1.0, |experts| experts.share())
    }
}

impl SpecReader<'_> {
    /// Refuses features of a model that no architecture here has.
    fn reject_unsupported_features(&self, architecture: &Architecture) -> Result<()> {
        self.reject_sections(architecture.delta_nets.is_some())?;
        if self.gguf.mtp_layer_alone().is_some() {
            return Err(
                self.unsupported("it is a layer that drafts for a model, to be given with --head".into())
            );
        }
        let own = |name: &str| {
            architecture.varied_layers && experts::SCALES.iter().any(|part| name.ends_with(part))
        };
        if self.gguf.tensors.keys().any(|name| name.ends_with(".scale") && !own(name)) {
            return Err(
                self.unsupported("its matrices have separate scales, as some of type NVFP4 do".into())
            );
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the parameters of a small model of attention layers.
    pub(crate) fn tiny(n_layer: usize) -> ModelSpec {
        ModelSpec {
            architecture: "llama".into(),
            name: "tiny".into(),
            n_layer,
            n_embd: 16,
            n_ff: 16,
            experts: None,
            sinks: false,
            n_head: 4,
            n_kv_head: 2,
            head_dim: 4,
            n_vocab: 8,
            context_length: 4096,
            rms_eps: 1e-5,
            norms: Norms::Before,
            head_norms: HeadNorms::IfPresent,
            gelu: false,
            joined_gate: false,
            rope_kind: RopeKind::Halves,
            rope_dim: 4,
            rope_base: 1e4,
            rope_scale: 1.0,
            rope_magnitude: 1.0,
            yarn: None,
            original_context: 4096,
            local_rope: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            attention_scale: 0.5,
            logit_scale: 1.0,
            attention_softcap: None,
            logit_softcap: None,
            query_temperature: None,
            convolution: None,
            delta_net: None,
            gated_attention: false,
            layer_embedding: None,
            mtp: None,
            layers: vec![LayerSpec::PLAIN; n_layer],
        }
    }
}
