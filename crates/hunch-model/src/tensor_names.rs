//! Names and shapes of the tensors of a model, generic over how an executor represents them.
//!
//! `L` is the linear layer of the executor, `V` its vector, `E` its matrices of experts. Reading files belongs to
//! `weights`.
//!
//! Some files join matrices with one input: `attn_qkv` has the rows of queries, keys and values, and
//! `ffn_up` those of gate and up. Executors load the parts as if they were separate.

mod layer_loader;

use crate::spec::{LayerEmbeddingShape, ModelSpec};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_error::{Error, Result};
use layer_loader::{LayerLoader, Loaders};

/// All weights except the embedding table.
pub(crate) struct ModelWeights<L, V, E> {
    /// The layers.
    pub(crate) layers: Vec<LayerWeights<L, V, E>>,
    /// Norm before the output head.
    pub(crate) output_norm: V,
    /// Output head: its own matrix, or the embedding table if tied.
    pub(crate) head: L,
    /// Input of the layers' own embeddings, without its table.
    pub(crate) layer_embedding: Option<LayerEmbeddingInput<L, V>>,
}

/// Projection of the tokens' embeddings to the input of all layers' own embeddings.
pub(crate) struct LayerEmbeddingInput<L, V> {
    /// Projection, `[n_layer * width, n_embd]`.
    pub(crate) projection: L,
    /// Norm of the projected values of each layer.
    pub(crate) norm: V,
}

/// Weights of one layer.
pub(crate) struct LayerWeights<L, V, E> {
    /// Norm before the mixer.
    pub(crate) mixer_norm: Option<V>,
    /// Attention, or the mixer in its place.
    pub(crate) mixer: MixerWeights<L, V>,
    /// Output projection of the mixer.
    pub(crate) output: L,
    /// Norm of the mixer's output.
    pub(crate) mixer_post_norm: Option<V>,
    /// Norm before the feed-forward network.
    pub(crate) feed_forward_norm: Option<V>,
    /// Feed-forward network.
    pub(crate) feed_forward: FeedForward<L, V, E>,
    /// Norm of the feed-forward network's output.
    pub(crate) feed_forward_post_norm: Option<V>,
    /// Embedding of the layer's own.
    pub(crate) layer_embedding: Option<LayerEmbedding<L, V>>,
    /// Factor of the residual stream after the layer, `[1]`.
    pub(crate) output_scale: Option<V>,
}

/// Gate and projection of an embedding that a layer adds to the residual stream.
pub(crate) struct LayerEmbedding<L, V> {
    /// Gate of the residual stream, `[width, n_embd]`.
    pub(crate) gate: L,
    /// Projection of the gated embedding, `[n_embd, width]`.
    pub(crate) projection: L,
    /// Norm of the projected embedding.
    pub(crate) post_norm: V,
}

/// Weights of the part of a layer in which a row reads earlier ones, without the output projection.
pub(crate) enum MixerWeights<L, V> {
    /// Attention.
    Attention(AttentionWeights<L, V>),
    /// Short convolution.
    ShortConvolution(ConvolutionWeights<L, V>),
    /// Gated delta net.
    DeltaNet(DeltaNetWeights<L, V>),
}

impl<L, V> MixerWeights<L, V> {
    /// Returns the weights of attention.
    ///
    /// # Errors
    /// [`Error::Internal`] if the mixer is another one.
    pub(crate) fn attention(&self) -> Result<&AttentionWeights<L, V>> {
        match self {
            Self::Attention(weights) => Ok(weights),
            Self::ShortConvolution(_) | Self::DeltaNet(_) => {
                Err(Error::Internal("the layer has no attention".into()))
            }
        }
    }
}

/// Weights of attention.
pub(crate) struct AttentionWeights<L, V> {
    /// Query projection, with the gates of the output if there are any.
    pub(crate) queries: L,
    /// Key projection. `None` for a layer that attends to the keys of another.
    pub(crate) keys: Option<L>,
    /// Value projection. `None` if the projected keys are the values too, and for a layer without keys.
    pub(crate) values: Option<L>,
    /// Norm of queries, as wide as a head, or as all heads of a row.
    pub(crate) query_norm: Option<V>,
    /// Norm of keys, as wide as a head, or as all heads of a row.
    pub(crate) key_norm: Option<V>,
    /// Sink of each query head.
    pub(crate) sinks: Option<V>,
}

/// Weights of a short convolution, with its parts as LFM2 names them: C * conv(B * x).
pub(crate) struct ConvolutionWeights<L, V> {
    /// Projection to the gate of the input.
    pub(crate) b: L,
    /// Projection to the gate of the output.
    pub(crate) c: L,
    /// Projection to the input.
    pub(crate) x: L,
    /// Weights, `[n_embd, positions]`, the earliest position first.
    pub(crate) kernel: V,
}

/// Weights of a [gated delta net](hunch_kernels::delta_net).
pub(crate) struct DeltaNetWeights<L, V> {
    /// Projection to the channels of the convolution.
    pub(crate) channels: L,
    /// Projection to the gates of the output.
    pub(crate) gates: L,
    /// Projection to the strengths. Qwen3-Next has its decays there too.
    pub(crate) strengths: L,
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
            layer_embedding: spec
                .layer_embedding
                .map(|LayerEmbeddingShape { width }| -> Result<_> {
                    let rows = MatrixRows::whole("per_layer_model_proj", spec.n_layer * width, spec.n_embd);
                    Ok(LayerEmbeddingInput {
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
        let loaders = Loaders { linear, vector, ones, experts };
        LayerLoader { file, spec, place, index, loaders }.load()
    }
}

/// Returns the name of the norm before the output head. LFM2 calls it a norm of the embeddings.
pub(crate) fn output_norm(file: &WeightFile) -> &'static str {
    let [usual, of_embeddings] = ["output_norm.weight", "token_embd_norm.weight"];
    if !file.has(usual) && file.has(of_embeddings) { of_embeddings } else { usual }
}
