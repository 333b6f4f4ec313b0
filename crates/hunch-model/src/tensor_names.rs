//! Names and shapes of the tensors of a model, generic over how an executor represents them.
//!
//! `L` is the linear layer of the executor, `V` its vector. Reading files belongs to `weights`.

use crate::spec::ModelSpec;
use crate::weights::WeightFile;
use hunch_error::Result;

/// All weights except the embedding table.
pub(crate) struct ModelWeights<L, V> {
    /// The layers.
    pub(crate) layers: Vec<LayerWeights<L, V>>,
    /// Norm before the output head.
    pub(crate) output_norm: V,
    /// Output head: its own matrix, or the embedding table if tied.
    pub(crate) head: L,
}

/// Weights of one layer.
pub(crate) struct LayerWeights<L, V> {
    /// Norm before attention.
    pub(crate) attention_norm: V,
    /// Query projection.
    pub(crate) q: L,
    /// Key projection.
    pub(crate) k: L,
    /// Value projection.
    pub(crate) v: L,
    /// Norm of each query head.
    pub(crate) q_norm: Option<V>,
    /// Norm of each key head.
    pub(crate) k_norm: Option<V>,
    /// Output projection of attention.
    pub(crate) output: L,
    /// Norm before the feed-forward network.
    pub(crate) feed_forward_norm: V,
    /// Gate projection.
    pub(crate) gate: L,
    /// Up projection.
    pub(crate) up: L,
    /// Down projection.
    pub(crate) down: L,
}

impl<L, V> ModelWeights<L, V> {
    /// Loads all tensors.
    ///
    /// `linear(name, n, k)` receives the name without `.weight`, `vector(name, len)` the full name.
    ///
    /// # Errors
    /// Any error of the two callbacks.
    pub(crate) fn load(
        file: &WeightFile,
        spec: &ModelSpec,
        linear: impl Fn(&str, usize, usize) -> Result<L>,
        vector: impl Fn(&str, usize) -> Result<V>,
    ) -> Result<Self> {
        let layer = |index: usize| {
            let name = |part: &str| format!("blk.{index}.{part}");
            let linear = |part: &str, n, k| linear(&name(part), n, k);
            let norm = |part: &str| vector(&name(part), spec.n_embd);
            let head_norm = |part: &str| {
                let weight = name(part);
                file.has(&weight).then(|| vector(&weight, spec.head_dim)).transpose()
            };
            let (q_width, kv_width) = (spec.n_head * spec.head_dim, spec.n_kv_head * spec.head_dim);
            Ok(LayerWeights {
                attention_norm: norm("attn_norm.weight")?,
                q: linear("attn_q", q_width, spec.n_embd)?,
                k: linear("attn_k", kv_width, spec.n_embd)?,
                v: linear("attn_v", kv_width, spec.n_embd)?,
                q_norm: head_norm("attn_q_norm.weight")?,
                k_norm: head_norm("attn_k_norm.weight")?,
                output: linear("attn_output", spec.n_embd, q_width)?,
                feed_forward_norm: norm("ffn_norm.weight")?,
                gate: linear("ffn_gate", spec.n_ff, spec.n_embd)?,
                up: linear("ffn_up", spec.n_ff, spec.n_embd)?,
                down: linear("ffn_down", spec.n_embd, spec.n_ff)?,
            })
        };
        let head = if file.is_tied() { "token_embd" } else { "output" };
        Ok(Self {
            layers: (0..spec.n_layer).map(layer).collect::<Result<_>>()?,
            output_norm: vector("output_norm.weight", spec.n_embd)?,
            head: linear(head, spec.n_vocab, spec.n_embd)?,
        })
    }
}
