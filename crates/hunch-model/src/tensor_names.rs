//! Names and shapes of the tensors of a model, generic over how an executor represents them.
//!
//! `L` is the linear layer of the executor, `V` its vector. Reading files belongs to `weights`.
//!
//! Some files join matrices with one input: `attn_qkv` has the rows of queries, keys and values, and
//! `ffn_up` those of gate and up. Executors load the parts as if they were separate.

use crate::spec::{HeadNorms, ModelSpec, Norms};
use crate::weights::{MatrixRows, WeightFile};
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
    pub(crate) attention_norm: Option<V>,
    /// Query projection.
    pub(crate) q: L,
    /// Key projection.
    pub(crate) k: L,
    /// Value projection.
    pub(crate) v: L,
    /// Norm of queries, as wide as a head, or as all heads of a row.
    pub(crate) q_norm: Option<V>,
    /// Norm of keys, as wide as a head, or as all heads of a row.
    pub(crate) k_norm: Option<V>,
    /// Output projection of attention.
    pub(crate) output: L,
    /// Norm of attention's output.
    pub(crate) attention_post_norm: Option<V>,
    /// Norm before the feed-forward network.
    pub(crate) feed_forward_norm: Option<V>,
    /// Gate projection.
    pub(crate) gate: L,
    /// Up projection.
    pub(crate) up: L,
    /// Down projection.
    pub(crate) down: L,
    /// Norm of the feed-forward network's output.
    pub(crate) feed_forward_post_norm: Option<V>,
}

impl<L, V> ModelWeights<L, V> {
    /// Loads all tensors.
    ///
    /// `linear` receives the rows of a matrix, `vector(name, len)` the full name of a tensor.
    ///
    /// # Errors
    /// Any error of the two callbacks.
    pub(crate) fn load(
        file: &WeightFile,
        spec: &ModelSpec,
        linear: impl Fn(&MatrixRows) -> Result<L>,
        vector: impl Fn(&str, usize) -> Result<V>,
    ) -> Result<Self> {
        let (before, after) = match spec.norms {
            Norms::Before => (Some(["attn_norm", "ffn_norm"]), None),
            Norms::BeforeAsPost => (Some(["attn_norm", "post_attention_norm"]), None),
            Norms::After => (None, Some(["post_attention_norm", "post_ffw_norm"])),
            Norms::Both => (Some(["attn_norm", "ffn_norm"]), Some(["post_attention_norm", "post_ffw_norm"])),
        };
        let layer = |index: usize| {
            let name = |part: &str| format!("blk.{index}.{part}");
            let whole = |part: &str, n, k| linear(&MatrixRows::whole(&name(part), n, k));
            let norm = |names: Option<[&str; 2]>, which: usize| {
                let load =
                    |names: [&str; 2]| vector(&format!("blk.{index}.{}.weight", names[which]), spec.n_embd);
                names.map(load).transpose()
            };
            let (q_width, kv_width) = (spec.n_head * spec.head_dim, spec.n_kv_head * spec.head_dim);
            let head_norm = |part: &str, joint: usize| {
                let weight = name(part);
                match spec.head_norms {
                    HeadNorms::IfPresent if !file.has(&weight) => Ok(None),
                    HeadNorms::IfPresent | HeadNorms::PerHead => vector(&weight, spec.head_dim).map(Some),
                    HeadNorms::Joint => vector(&weight, joint).map(Some),
                }
            };
            // The names of the parts are in the order of their rows in the joined matrix.
            let query_key_value = [("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width)];
            let query_key_value = query_key_value.map(|(part, n)| (name(part), n));
            let joined = file.has(&format!("{}.weight", name("attn_qkv"))).then(|| name("attn_qkv"));
            let [q, k, v] = MatrixRows::parts(joined.as_deref(), query_key_value, spec.n_embd);
            let gate_up = [("ffn_gate", spec.n_ff), ("ffn_up", spec.n_ff)].map(|(part, n)| (name(part), n));
            let separate = file.has(&format!("{}.weight", name("ffn_gate")));
            let joined = (spec.joined_gate && !separate).then(|| name("ffn_up"));
            let [gate, up] = MatrixRows::parts(joined.as_deref(), gate_up, spec.n_embd);
            Ok(LayerWeights {
                attention_norm: norm(before, 0)?,
                q: linear(&q)?,
                k: linear(&k)?,
                v: linear(&v)?,
                q_norm: head_norm("attn_q_norm.weight", q_width)?,
                k_norm: head_norm("attn_k_norm.weight", kv_width)?,
                output: whole("attn_output", spec.n_embd, q_width)?,
                attention_post_norm: norm(after, 0)?,
                feed_forward_norm: norm(before, 1)?,
                gate: linear(&gate)?,
                up: linear(&up)?,
                down: whole("ffn_down", spec.n_embd, spec.n_ff)?,
                feed_forward_post_norm: norm(after, 1)?,
            })
        };
        let head = if file.is_tied() { "token_embd" } else { "output" };
        Ok(Self {
            layers: (0..spec.n_layer).map(layer).collect::<Result<_>>()?,
            output_norm: vector("output_norm.weight", spec.n_embd)?,
            head: linear(&MatrixRows::whole(head, spec.n_vocab, spec.n_embd))?,
        })
    }
}
