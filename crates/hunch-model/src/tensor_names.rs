//! Which tensors a model has, by name and shape, whatever an executor makes of them: `L` is its linear
//! layer, `V` its vector.

use crate::spec::ModelSpec;
use crate::weights::WeightFile;
use hunch_error::Result;

/// All weights but the embedding table.
pub struct ModelWeights<L, V> {
    /// The layers.
    pub layers: Vec<LayerWeights<L, V>>,
    /// The norm before the head.
    pub output_norm: V,
    /// Residual stream to logits: a matrix of its own, or the embedding table again.
    pub head: L,
}

/// The weights of one layer.
pub struct LayerWeights<L, V> {
    /// The norm before attention.
    pub attention_norm: V,
    /// Queries.
    pub q: L,
    /// Keys.
    pub k: L,
    /// Values.
    pub v: L,
    /// The norm of each query head.
    pub q_norm: Option<V>,
    /// The norm of each key head.
    pub k_norm: Option<V>,
    /// Attention back to the residual stream.
    pub output: L,
    /// The norm before the feed-forward part.
    pub feed_forward_norm: V,
    /// The gate.
    pub gate: L,
    /// What is gated.
    pub up: L,
    /// Back to the residual stream.
    pub down: L,
}

impl<L, V> ModelWeights<L, V> {
    /// Loads every tensor: `linear(name, n, k)` takes the name without `.weight`, `vector(name, len)`
    /// the whole name.
    ///
    /// # Errors
    /// As the two.
    pub fn load(
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
