//! Names and shapes of the tensors of a model, generic over how an executor represents them.
//!
//! `L` is the linear layer of the executor, `V` its vector, `E` its matrices of experts. Reading files belongs to
//! `weights`.
//!
//! Some files join matrices with one input: `attn_qkv` has the rows of queries, keys and values, and
//! `ffn_up` those of gate and up. Executors load the parts as if they were separate.
//!
//! Layers with a [short convolution](Mixer::ShortConvolution) or a [gated delta net](Mixer::DeltaNet) have projections
//! and an output as well, and so the same fields as attention.

use crate::spec::{
    DeltaNet, Experts, HeadNorms, HeadOrder, LayerRope, Mixer, ModelSpec, Norms, PerLayerEmbedding,
};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_error::Result;

/// All weights except the embedding table.
pub(crate) struct ModelWeights<L, V, E> {
    /// The layers.
    pub(crate) layers: Vec<LayerWeights<L, V, E>>,
    /// Norm before the output head.
    pub(crate) output_norm: V,
    /// Output head: its own matrix, or the embedding table if tied.
    pub(crate) head: L,
    /// Input of the layers' own embeddings, without its table.
    pub(crate) per_layer: Option<PerLayerInput<L, V>>,
}

/// Projection of the tokens' embeddings to the input of all layers' own embeddings.
pub(crate) struct PerLayerInput<L, V> {
    /// Projection, `[n_layer * width, n_embd]`.
    pub(crate) projection: L,
    /// Norm of the projected values of each layer.
    pub(crate) norm: V,
}

/// Weights of one layer.
pub(crate) struct LayerWeights<L, V, E> {
    /// Norm before attention.
    pub(crate) attention_norm: Option<V>,
    /// Query projection, with the gates of the output if attention has them. The gate B of a short convolution's input,
    /// or the channels of a gated delta net.
    pub(crate) q: L,
    /// Key projection, the gate C of a short convolution's output, or the gate of a gated delta net's output. `None` for
    /// a layer that attends to the keys of another.
    pub(crate) k: Option<L>,
    /// Value projection, the input x of a short convolution, or the strengths of a gated delta net. Qwen3-Next has its
    /// decays there too. `None` if the projected keys are the values too, and for a layer without keys.
    pub(crate) v: Option<L>,
    /// Weights of a short convolution, `[n_embd, positions]`, the earliest position first. `None` for attention.
    pub(crate) convolution: Option<V>,
    /// Further weights of a gated delta net. `None` for other mixers.
    pub(crate) delta_net: Option<DeltaNetWeights<L, V>>,
    /// Norm of queries, as wide as a head, or as all heads of a row.
    pub(crate) q_norm: Option<V>,
    /// Norm of keys, as wide as a head, or as all heads of a row.
    pub(crate) k_norm: Option<V>,
    /// Sink of each query head.
    pub(crate) sinks: Option<V>,
    /// Output projection of attention, or of the mixer in its place.
    pub(crate) output: L,
    /// Norm of attention's output.
    pub(crate) attention_post_norm: Option<V>,
    /// Norm before the feed-forward network.
    pub(crate) feed_forward_norm: Option<V>,
    /// Feed-forward network.
    pub(crate) feed_forward: FeedForward<L, V, E>,
    /// Norm of the feed-forward network's output.
    pub(crate) feed_forward_post_norm: Option<V>,
    /// Embedding of the layer's own.
    pub(crate) per_layer: Option<PerLayer<L, V>>,
    /// Factor of the residual stream after the layer, `[1]`.
    pub(crate) output_scale: Option<V>,
}

/// Gate and projection of an embedding that a layer adds to the residual stream.
pub(crate) struct PerLayer<L, V> {
    /// Gate of the residual stream, `[width, n_embd]`.
    pub(crate) gate: L,
    /// Projection of the gated embedding, `[n_embd, width]`.
    pub(crate) projection: L,
    /// Norm of the projected embedding.
    pub(crate) post_norm: V,
}

/// Weights of a [gated delta net](hunch_kernels::delta_net) that other mixers do not have.
pub(crate) struct DeltaNetWeights<L, V> {
    /// Projection to decays, unless another matrix has it too.
    pub(crate) decays: Option<L>,
    /// Weights of the convolution, `[channels, positions]`, the earliest position first.
    pub(crate) convolution: V,
    /// Rate of the decays, `[value heads]`.
    pub(crate) rates: V,
    /// Bias of the decays, `[value heads]`.
    pub(crate) bias: V,
    /// Norm of the output of a head.
    pub(crate) norm: V,
}

/// Weights of the feed-forward network of a layer.
pub(crate) enum FeedForward<L, V, E> {
    /// One network for all rows.
    Dense(Dense<L>),
    /// Several networks, of which each row uses some.
    Mixture(Mixture<L, V, E>),
}

/// Gated feed-forward network.
pub(crate) struct Dense<L> {
    /// Gate projection.
    pub(crate) gate: L,
    /// Up projection.
    pub(crate) up: L,
    /// Down projection.
    pub(crate) down: L,
}

/// Experts of a layer.
pub(crate) struct Mixture<L, V, E> {
    /// Scores the experts.
    pub(crate) router: L,
    /// Bias of the choice, `[experts]`.
    pub(crate) bias: Option<V>,
    /// Gate projections.
    pub(crate) gate: E,
    /// Up projections.
    pub(crate) up: E,
    /// Down projections.
    pub(crate) down: E,
    /// Expert that all rows use.
    pub(crate) shared: Option<Dense<L>>,
    /// Projection of a row to the weight of the shared expert before the sigmoid, `[n_embd]`.
    pub(crate) shared_weight: Option<V>,
    /// Factors of the experts' weights, `[experts]`.
    pub(crate) factors: Option<V>,
    /// Dense network next to the experts.
    pub(crate) parallel: Option<Parallel<L, V>>,
}

/// Dense network next to the experts of a layer. The norm before the feed-forward network is that of its input.
pub(crate) struct Parallel<L, V> {
    /// The network.
    pub(crate) dense: Dense<L>,
    /// Norm of its output.
    pub(crate) post_norm: V,
    /// Norm before the experts.
    pub(crate) experts_norm: V,
    /// Norm of the experts' output.
    pub(crate) experts_post_norm: V,
    /// Norm before the router, whose weights have to be divided by the square root of the width of a row.
    pub(crate) router_norm: V,
}

impl<L, V, E> ModelWeights<L, V, E> {
    /// Loads all tensors.
    ///
    /// `linear` receives the rows of a matrix, `vector` the full name and the shape of a tensor. `ones` receives the
    /// length of a vector of ones, and `experts` the matrices of the experts of a layer.
    ///
    /// # Errors
    /// Any error of the callbacks.
    pub(crate) fn load(
        file: &WeightFile,
        spec: &ModelSpec,
        linear: impl Fn(&MatrixRows) -> Result<L>,
        vector: impl Fn(&str, &[usize]) -> Result<V>,
        ones: impl Fn(usize) -> Result<V>,
        experts: impl Fn(&ExpertMatrices) -> Result<E>,
    ) -> Result<Self> {
        let layer = |index| LayerWeights::load(file, (spec, index), index, &linear, &vector, &ones, &experts);
        let head = if file.is_tied() { "token_embd" } else { "output" };
        Ok(Self {
            layers: (0..spec.n_layer).map(layer).collect::<Result<_>>()?,
            output_norm: vector(output_norm(file), &[spec.n_embd])?,
            head: linear(&MatrixRows::whole(head, spec.n_vocab, spec.n_embd))?,
            per_layer: spec
                .per_layer
                .map(|PerLayerEmbedding { width }| -> Result<_> {
                    let rows = MatrixRows::whole("per_layer_model_proj", spec.n_layer * width, spec.n_embd);
                    Ok(PerLayerInput {
                        projection: linear(&rows)?,
                        norm: vector("per_layer_proj_norm.weight", &[width])?,
                    })
                })
                .transpose()?,
        })
    }
}

impl<L, V, E> LayerWeights<L, V, E> {
    /// Loads the layer `index` of a file, which is layer `place` of the spec. The callbacks are those of
    /// [`ModelWeights::load`].
    ///
    /// # Errors
    /// Any error of the callbacks.
    pub(crate) fn load(
        file: &WeightFile,
        (spec, place): (&ModelSpec, usize),
        index: usize,
        linear: &impl Fn(&MatrixRows) -> Result<L>,
        vector: &impl Fn(&str, &[usize]) -> Result<V>,
        ones: &impl Fn(usize) -> Result<V>,
        experts: &impl Fn(&ExpertMatrices) -> Result<E>,
    ) -> Result<Self> {
        let (before, after) = match spec.norms {
            Norms::Before => (Some(["attn_norm", "ffn_norm"]), None),
            Norms::BeforeAsPost => (Some(["attn_norm", "post_attention_norm"]), None),
            Norms::After => (None, Some(["post_attention_norm", "post_ffw_norm"])),
            Norms::Both => (Some(["attn_norm", "ffn_norm"]), Some(["post_attention_norm", "post_ffw_norm"])),
        };
        let name = |part: &str| format!("blk.{index}.{part}");
        let whole = |part: &str, n, k| linear(&MatrixRows::whole(&name(part), n, k));
        let norm = |names: Option<[&str; 2]>, which: usize| {
            let load =
                |names: [&str; 2]| vector(&format!("blk.{index}.{}.weight", names[which]), &[spec.n_embd]);
            names.map(load).transpose()
        };
        let mixer = spec.layers[place].mixer;
        let convolution = spec.convolution.filter(|_| mixer == Mixer::ShortConvolution);
        let delta_net = spec.delta_net.filter(|_| mixer == Mixer::DeltaNet);
        let heads = spec.heads(place);
        let (q_width, kv_width) = match convolution {
            Some(_) => (spec.n_embd, spec.n_embd),
            None => (spec.n_head * heads.width, heads.values()),
        };
        let head_norm = |part: &str, joint: usize| {
            let weight = name(part);
            match spec.head_norms {
                _ if mixer != Mixer::Attention => Ok(None),
                HeadNorms::IfPresent if !file.has(&weight) => Ok(None),
                HeadNorms::IfPresent | HeadNorms::PerHead | HeadNorms::WithValues => {
                    vector(&weight, &[heads.width]).map(Some)
                }
                HeadNorms::Joint => vector(&weight, &[joint]).map(Some),
                HeadNorms::Unit if spec.layers[place].rope == LayerRope::None => Ok(None),
                HeadNorms::Unit => ones(spec.head_dim).map(Some),
            }
        };
        // The names of the parts are in the order of their rows in the joined matrix.
        let queries = if spec.gated_attention { 2 * q_width } else { q_width };
        let query_key_value = match delta_net.map(|net| (net, net.shape())) {
            None => [("attn_q", queries), ("attn_k", kv_width), ("attn_v", kv_width)],
            Some((net, shape)) => {
                let (part, factor) = strengths_of(net.order);
                [
                    ("attn_qkv", shape.channels()),
                    ("attn_gate", shape.width()),
                    (part, factor * net.value_heads),
                ]
            }
        };
        let query_key_value = query_key_value.map(|(part, n)| (name(part), n));
        let joined = match mixer {
            Mixer::ShortConvolution => Some(name("shortconv.in_proj")),
            Mixer::DeltaNet => None,
            Mixer::Attention => file.has(&format!("{}.weight", name("attn_qkv"))).then(|| name("attn_qkv")),
        };
        let (output, output_width) = match (mixer, delta_net) {
            (Mixer::ShortConvolution, _) => ("shortconv.out_proj", q_width),
            (_, Some(net)) => ("ssm_out", net.shape().width()),
            _ => ("attn_output", q_width),
        };
        let of_delta_net = |net: DeltaNet| -> Result<DeltaNetWeights<L, V>> {
            let shape = net.shape();
            let kernel = [shape.channels(), shape.positions];
            let decays = (net.order == HeadOrder::Tiled)
                .then(|| whole("ssm_alpha", net.value_heads, spec.n_embd))
                .transpose()?;
            Ok(DeltaNetWeights {
                decays,
                convolution: vector(&name("ssm_conv1d.weight"), &kernel)?,
                rates: vector(&name("ssm_a"), &[net.value_heads])?,
                bias: vector(&name("ssm_dt.bias"), &[net.value_heads])?,
                norm: vector(&name("ssm_norm.weight"), &[net.head_dim])?,
            })
        };
        let kernel = |positions: usize| vector(&name("shortconv.conv.weight"), &[spec.n_embd, positions]);
        let [q, k, v] = MatrixRows::parts(joined.as_deref(), query_key_value, spec.n_embd);
        let has_keys = spec.layers[place].shares_keys_of.is_none();
        // Layers whose keys are their values have no matrix of values.
        let has_values = has_keys
            && (spec.head_norms != HeadNorms::WithValues || joined.is_some() || file.has(&v.weight()));
        let dense = |n_ff: usize, suffix: &str| -> Result<Dense<L>> {
            let part = |part: &str| name(&format!("{part}{suffix}"));
            let separate = file.has(&format!("{}.weight", part("ffn_gate")));
            let joined = (spec.joined_gate && !separate).then(|| part("ffn_up"));
            let gate_up = [(part("ffn_gate"), n_ff), (part("ffn_up"), n_ff)];
            let [gate, up] = MatrixRows::parts(joined.as_deref(), gate_up, spec.n_embd);
            let down = MatrixRows::whole(&part("ffn_down"), spec.n_embd, n_ff);
            Ok(Dense { gate: linear(&gate)?, up: linear(&up)?, down: linear(&down)? })
        };
        let mixture = |of: Experts| -> Result<Mixture<L, V, E>> {
            let stack = |part: &str, n, k| experts(&ExpertMatrices::whole(name(part), of.count, (n, k)));
            // Gates and ups of an expert may be one matrix.
            let joined = file.has(&name("ffn_gate_up_exps.weight"));
            let gate_up = |part: &str, first: usize| {
                if !joined {
                    return stack(part, of.n_ff, spec.n_embd);
                }
                let both =
                    ExpertMatrices::whole(name("ffn_gate_up_exps"), of.count, (2 * of.n_ff, spec.n_embd));
                experts(&both.rows(first, of.n_ff))
            };
            let parallel = |n_ff: usize| -> Result<Parallel<L, V>> {
                let norm = |part: &str| vector(&name(part), &[spec.n_embd]);
                Ok(Parallel {
                    dense: dense(n_ff, "")?,
                    post_norm: norm("post_ffw_norm_1.weight")?,
                    experts_norm: norm("pre_ffw_norm_2.weight")?,
                    experts_post_norm: norm("post_ffw_norm_2.weight")?,
                    router_norm: norm("ffn_gate_inp.scale")?,
                })
            };
            let optional = |part: &str, len| {
                let name = name(part);
                file.has(&name).then(|| vector(&name, &[len])).transpose()
            };
            Ok(Mixture {
                router: whole("ffn_gate_inp", of.count, spec.n_embd)?,
                bias: optional("exp_probs_b.bias", of.count)?,
                gate: gate_up("ffn_gate_exps", 0)?,
                up: gate_up("ffn_up_exps", of.n_ff)?,
                down: stack("ffn_down_exps", spec.n_embd, of.n_ff)?,
                shared: of.shared.map(|n_ff| dense(n_ff, "_shexp")).transpose()?,
                shared_weight: optional("ffn_gate_inp_shexp.weight", spec.n_embd)?,
                factors: optional("ffn_down_exps.scale", of.count)?,
                parallel: of.parallel.map(parallel).transpose()?,
            })
        };
        let has_scale = file.has(&name("layer_output_scale.weight"));
        let per_layer = |PerLayerEmbedding { width }| -> Result<PerLayer<L, V>> {
            Ok(PerLayer {
                gate: whole("inp_gate", width, spec.n_embd)?,
                projection: whole("proj", spec.n_embd, width)?,
                post_norm: vector(&name("post_norm.weight"), &[spec.n_embd])?,
            })
        };
        let feed_forward = match spec.experts {
            None => FeedForward::Dense(dense(spec.dense_width(place), "")?),
            Some(of) if !of.are_in(place) => FeedForward::Dense(dense(of.dense_ff, "")?),
            Some(of) => FeedForward::Mixture(mixture(of)?),
        };
        Ok(LayerWeights {
            attention_norm: norm(before, 0)?,
            q: linear(&q)?,
            k: has_keys.then(|| linear(&k)).transpose()?,
            v: has_values.then(|| linear(&v)).transpose()?,
            q_norm: head_norm("attn_q_norm.weight", q_width)?,
            k_norm: if has_keys { head_norm("attn_k_norm.weight", kv_width)? } else { None },
            convolution: convolution.map(kernel).transpose()?,
            delta_net: delta_net.map(of_delta_net).transpose()?,
            sinks: spec.sinks.then(|| vector(&name("attn_sinks.weight"), &[spec.n_head])).transpose()?,
            output: whole(output, spec.n_embd, output_width)?,
            attention_post_norm: norm(after, 0)?,
            feed_forward_norm: norm(before, 1)?,
            feed_forward,
            feed_forward_post_norm: norm(after, 1)?,
            per_layer: spec.per_layer.map(per_layer).transpose()?,
            output_scale: has_scale.then(|| vector(&name("layer_output_scale.weight"), &[1])).transpose()?,
        })
    }
}

/// Returns the name of the matrix with the strengths of a gated delta net, and its rows for each value head.
fn strengths_of(order: HeadOrder) -> (&'static str, usize) {
    match order {
        HeadOrder::Grouped => ("ssm_ba", 2),
        HeadOrder::Tiled => ("ssm_beta", 1),
    }
}

/// Returns the name of the norm before the output head. LFM2 calls it a norm of the embeddings.
pub(crate) fn output_norm(file: &WeightFile) -> &'static str {
    let [usual, of_embeddings] = ["output_norm.weight", "token_embd_norm.weight"];
    if !file.has(usual) && file.has(of_embeddings) { of_embeddings } else { usual }
}
