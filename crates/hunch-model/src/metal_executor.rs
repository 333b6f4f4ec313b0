//! Executor for a GPU on our own kernels. Text of kernels and their arguments do not belong here.
//!
//! All steps are row-invariant. A pass queues its dispatches, and waits once, when its results are read.

mod convolution;
mod delta_net;
mod experts;
mod joined;

use std::sync::Arc;

use candle_core::Device;

use crate::cache::KvCache;
use crate::executor::{Draw, Executor, LayerStep, WantedResults};
use crate::gguf::Gguf;
use crate::metal::activations::Forms;
use crate::metal::attention::{GpuAttention, Scoring};
use crate::metal::choice::{DrawInput, MAX_TOP_K};
use crate::metal::delta_net::DELTA_WIDTHS;
use crate::metal::experts::{ExpertMatrix, MAX_EXPERTS, MAX_GROUPS, MAX_USED};
use crate::metal::gpu::{Buffer, BufferAt, Gpu};
use crate::metal::heads::{HeadsInput, SpecialHeads};
use crate::metal::kernels::Kernels;
use crate::metal::matrix::Matrix;
use crate::metal::multiply::{GpuProduct, ResultScaling, ResultUse};
use crate::metal::rows::{GateInput, NormInput, NormedUpdate};
use crate::metal::selftest::{HEAD_WIDTHS, KernelPart};
use crate::metal::workspace::{AttentionSpace, Widths, Workspace, at_least};
use crate::rope::{PassAngles, Rope};
use crate::spec::{
    HeadNorms, KeyHeads, LAYER_EMBEDDING_SCALE, LAYER_EMBEDDING_TABLE, LayerEmbeddingShape, ModelSpec, Norms,
    RopeKind,
};
use crate::tensor_names::{
    AttentionWeights, ConvolutionWeights, DeltaNetWeights, Dense, FeedForward, LayerEmbedding,
    LayerEmbeddingInput, LayerWeights, MixerWeights, ModelWeights,
};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use convolution::{GpuConvolutionPlan, LayerConvolution};
use delta_net::DeltaPassPlan;
use experts::{GpuMixture, MixturePass, MixtureSpace};
use hunch_core::model::{LogitRows, PassOutput, Rows, VocabSubset};
use hunch_core::sample::DrawSettings;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::activation::Activation;
use hunch_kernels::{RowMask, WeightType};
use joined::{Joined, bias, matrix};

/// Most query heads that share a key head: simdgroups of a threadgroup.
const MAX_GROUP: usize = 32;

/// Rows of a pass times keys of the cache above which each layer is waited for. 16 rows stay below it up to 128k keys.
const MAX_QUEUED_SCORES: usize = 16 << 17;

/// Model on a GPU.
pub(crate) struct MetalExecutor {
    spec: ModelSpec,
    kernels: Arc<Kernels>,
    weights: Arc<LoadedWeights>,
    rope: Arc<Rope>,
    cache: KvCache,
    workspace: Option<Workspace>,
    experts: Option<MixtureSpace>,
    /// Inputs of the layers' own embeddings, `[rows, n_layer, width]`, and their projected part.
    layer_embedding: Option<(Buffer, Buffer)>,
    pass: Option<GpuPass>,
}

struct LoadedWeights {
    embedding: Arc<Matrix>,
    layers: Vec<LoadedLayer>,
    output_norm: Buffer,
    head: Arc<Matrix>,
    head_bias: Option<Buffer>,
    layer_embedding: Option<LayerEmbeddingTable>,
}

/// Weights of the input of the layers' own embeddings.
struct LayerEmbeddingTable {
    /// Embeddings of all layers for a token.
    table: Matrix,
    projection: Joined,
    norm: Buffer,
}

/// Weights of a layer's own embedding.
struct GpuLayerEmbedding {
    gate: Joined,
    projection: Joined,
    post_norm: Buffer,
}

struct LoadedLayer {
    mixer_norm: Option<Buffer>,
    /// Projections of the mixer, whose outputs are next to each other.
    projections: Joined,
    mixer: GpuMixer,
    output: Joined,
    mixer_post_norm: Option<Buffer>,
    feed_forward_norm: Option<Buffer>,
    feed_forward: GpuFeedForward,
    feed_forward_post_norm: Option<Buffer>,
    layer_embedding: Option<GpuLayerEmbedding>,
    /// Factor of the residual stream after the layer.
    output_scale: f32,
}

/// Attention of a layer, or the mixer in its place, without its projections.
enum GpuMixer {
    Attention(GpuAttentionWeights),
    /// Weights of a short convolution.
    ShortConvolution(Buffer),
    DeltaNet(Box<DeltaNetWeights<MatrixRows, Buffer>>),
}

struct GpuAttentionWeights {
    /// Values of the queries, keys and values of a row. Gates follow.
    heads_width: usize,
    /// The keys before their norm and rotation are the values too.
    values_are_keys: bool,
    query_norm: Option<Buffer>,
    key_norm: Option<Buffer>,
    sinks: Option<Buffer>,
}

/// Feed-forward network of a layer.
enum GpuFeedForward {
    Dense { gate_up: Joined, down: Joined },
    Mixture(Box<GpuMixture>),
}

/// State of the current pass.
struct GpuPass {
    rows: usize,
    angles: PassAngles<(Buffer, Buffer)>,
    /// Factor of the queries of each row.
    query_factors: Option<Buffer>,
    space: AttentionSpace,
    /// Rows of state that short convolutions read and write.
    convolution: Option<GpuConvolutionPlan>,
    /// States that gated delta nets read and keep.
    delta_net: Option<DeltaPassPlan>,
    /// Layer and part whose output has not joined the residual stream yet.
    pending: Option<(usize, UpdatePart)>,
}

/// Part of a layer whose output is normed before it joins the residual stream.
#[derive(Clone, Copy, Debug)]
enum UpdatePart {
    Mixer,
    FeedForward,
    LayerEmbedding,
}

impl MetalExecutor {
    /// Returns why no kernel can run a model, or `None` if the kernels can. Reads no weights.
    pub(crate) fn obstacle(gguf: &Gguf, spec: &ModelSpec) -> Option<String> {
        if let Some(width) =
            spec.delta_net.map(|net| net.head_dim).filter(|width| !DELTA_WIDTHS.contains(width))
        {
            return Some(format!("there is no kernel for gated delta nets with heads of width {width}"));
        }
        let without_kernel =
            |heads: &KeyHeads| !HEAD_WIDTHS.contains(&heads.width) || spec.n_head / heads.count > MAX_GROUP;
        if let Some(heads) = (0..spec.n_layer).map(|layer| spec.heads(layer)).find(without_kernel) {
            return Some(format!(
                "there is no kernel for {} heads of width {} over {} key heads",
                spec.n_head, heads.width, heads.count
            ));
        }
        let of_layers = spec.layer_embedding.map_or(0, |of| of.width);
        let widths = [spec.n_embd, spec.n_ff, of_layers].into_iter();
        let widths = widths.chain((0..spec.n_layer).map(|layer| spec.dense_width(layer)));
        if let Some(width) = widths.into_iter().find(|width| !width.is_multiple_of(32)) {
            return Some(format!("there is no kernel for rows of {width} values"));
        }
        if let Some(experts) = spec.experts {
            if experts.count > MAX_EXPERTS || experts.used > MAX_USED {
                let (used, count) = (experts.used, experts.count);
                return Some(format!("there is no kernel for {used} of {count} experts"));
            }
            if let Some(groups) = experts.groups.filter(|groups| groups.count > MAX_GROUPS) {
                return Some(format!("there is no kernel for {} groups of experts", groups.count));
            }
            let widths = [Some(experts.n_ff), experts.shared, experts.dense_width(), experts.parallel];
            if let Some(width) = widths.into_iter().flatten().find(|width| !width.is_multiple_of(32)) {
                return Some(format!("there is no kernel for experts of width {width}"));
            }
        }
        let matrices = gguf.model_tensors().filter(|(_, tensor)| tensor.shape.len() > 1);
        let without = matrices.map(|(_, tensor)| tensor.dtype).find(|dtype| !Matrix::has_kernel(*dtype))?;
        Some(format!("there is no kernel for {without} weights"))
    }

    /// Returns the types of the matrices of experts, each once.
    pub(crate) fn expert_types(gguf: &Gguf) -> Vec<WeightType> {
        let mut types = Vec::new();
        for dtype in
            gguf.model_tensors().filter(|(_, tensor)| tensor.shape.len() == 3).map(|(_, tensor)| tensor.dtype)
        {
            if !types.contains(&dtype) {
                types.push(dtype);
            }
        }
        types
    }

    /// Returns the parts of the self-test that a model depends on, without products and the choice of tokens, which
    /// have replacements.
    pub(crate) fn parts(spec: &ModelSpec) -> Vec<KernelPart> {
        let activation = spec.activation();
        let clamped = spec.experts.is_some_and(|experts| experts.clamped);
        let width = spec.head_dim;
        let of_layer = |layer: usize| {
            let width = spec.heads(layer).width;
            let has_window = spec.layers[layer].window.is_some();
            [KernelPart::Attention(width), KernelPart::WindowAttention(width)]
                .into_iter()
                .take(1 + usize::from(has_window))
        };
        let mut attention: Vec<KernelPart> = Vec::new();
        for part in (0..spec.n_layer).flat_map(of_layer) {
            if !attention.contains(&part) {
                attention.push(part);
            }
        }
        let needs = [
            (KernelPart::Norm, true),
            (KernelPart::Output, true),
            (KernelPart::Gate(activation), true),
            (KernelPart::Heads, true),
            (KernelPart::Cache, true),
            (KernelPart::UpdateNorm, has_updates(spec)),
            (KernelPart::JointHeads, spec.head_norms == HeadNorms::Joint),
            (KernelPart::Cap, spec.logit_softcap.is_some()),
            (KernelPart::CappedAttention(width), spec.attention_softcap.is_some()),
            (KernelPart::Sinks, spec.sinks),
            (KernelPart::Experts, spec.experts.is_some()),
            (KernelPart::Convolution, spec.convolution.is_some()),
            (KernelPart::GatedAttention, spec.gated_attention),
            (KernelPart::DeltaNet(spec.delta_net.map_or(0, |net| net.head_dim)), spec.delta_net.is_some()),
            (KernelPart::Gate(Activation::Clamped), clamped),
        ];
        needs.into_iter().filter_map(|(part, needed)| needed.then_some(part)).chain(attention).collect()
    }

    /// Loads a model file onto a GPU.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] if there is an [`obstacle`](Self::obstacle). Errors of the file and of the
    /// device.
    pub(crate) fn load(file: &WeightFile, spec: &ModelSpec, kernels: &Arc<Kernels>) -> Result<Self> {
        if let Some(obstacle) = Self::obstacle(file.gguf(), spec) {
            return Err(Error::UnsupportedModel {
                path: file.gguf().path.clone(),
                reason: format!("on this GPU {obstacle}"),
            });
        }
        Ok(Self {
            weights: Arc::new(LoadedWeights::load(file, spec, kernels.gpu())?),
            rope: Arc::new(Rope::new(file, spec)?),
            cache: KvCache::on_gpu(spec, spec.context_length, kernels),
            workspace: None,
            experts: None,
            layer_embedding: None,
            pass: None,
            kernels: kernels.clone(),
            spec: spec.clone(),
        })
    }

    /// Starts a pass over the tokens in a buffer of the GPU.
    fn start(&mut self, tokens: BufferAt<'_>, mask: &RowMask) -> Result<()> {
        let rows = mask.rows();
        self.cache.reserve(rows)?;
        let gpu = self.kernels.gpu().clone();
        let widths = self.widths();
        let (old, old_net) = self.pass.take().map(|pass| (pass.space, pass.delta_net)).unzip();
        let width = self.spec.widest_queries() / self.spec.n_head;
        let space = AttentionSpace::new(&gpu, mask, self.spec.n_head, width, old)?;
        let angles = self.rope.angles(mask.positions()).try_map(|angles| {
            Ok((Buffer::with_floats(&gpu, &angles.cos)?, Buffer::with_floats(&gpu, &angles.sin)?))
        })?;
        let factors = &angles.query_factors;
        let query_factors = (!factors.is_empty()).then(|| Buffer::with_floats(&gpu, factors)).transpose()?;
        let convolution = self.cache.convolution_plan(mask)?;
        let convolution =
            convolution.map(|plan| GpuConvolutionPlan::new(&self.kernels, &plan)).transpose()?;
        let delta_plan = self.cache.delta_plan(mask)?;
        let delta_net = DeltaPassPlan::new(&gpu, &self.spec, delta_plan.as_ref(), old_net.flatten())?;
        let workspace = Workspace::for_rows(&gpu, self.workspace.take(), rows, widths)?;
        self.experts = MixtureSpace::for_rows(&gpu, self.experts.take(), rows, &self.spec)?;
        let (table, scale) = (&self.weights.embedding, self.spec.embedding_scale);
        self.kernels.take_rows(table, tokens, rows, scale, &workspace.x)?;
        self.workspace = Some(workspace);
        self.pass =
            Some(GpuPass { rows, angles, query_factors, space, convolution, delta_net, pending: None });
        self.layer_embedding_inputs(tokens)
    }

    /// Computes the inputs of the layers' own embeddings from the embeddings of the tokens.
    fn layer_embedding_inputs(&mut self, tokens: BufferAt<'_>) -> Result<()> {
        let (Some(own), Some(pass)) = (&self.weights.layer_embedding, &self.pass) else { return Ok(()) };
        let (rows, gpu) = (pass.rows, self.kernels.gpu());
        let values = own.table.k();
        let (inputs, projected) = self.layer_embedding.take().unzip();
        let inputs = at_least(gpu, inputs, 4 * rows * values)?;
        let projected = at_least(gpu, projected, 4 * rows * values)?;
        let width = values / self.spec.n_layer;
        let of_table = (width as f32).sqrt() * LAYER_EMBEDDING_SCALE;
        self.kernels.take_rows(&own.table, tokens, rows, of_table, &inputs)?;
        let space = self.workspace.as_ref().ok_or_else(no_pass)?;
        let activations = &space.activations;
        let forms = own.projection.forms(rows);
        self.kernels.norm(self.norm_input(None)?, activations.written_as(forms))?;
        let scaled = ResultUse::ReplaceScaled(1.0 / (self.spec.n_embd as f32).sqrt());
        own.projection.multiply(&self.kernels, activations, rows, &projected, scaled)?;
        // Each layer's part of a row has a norm of its own.
        let update = NormedUpdate {
            rows: &projected,
            weight: &own.norm,
            scale: LAYER_EMBEDDING_SCALE,
            factor: 1.0,
            store: true,
        };
        let (rows, eps) = (rows * self.spec.n_layer, self.spec.rms_eps as f32);
        let parts = NormInput { x: &inputs, weight: None, update: Some(update), first: 0, rows, width, eps };
        self.kernels.norm(parts, activations.written_as(Forms::NONE))?;
        self.layer_embedding = Some((inputs, projected));
        Ok(())
    }

    /// Computes the gated embedding of a layer's own, as the activations of its projection.
    fn layer_embedding_gate(&self, index: usize) -> Result<()> {
        let Self { spec, kernels, weights, .. } = self;
        let (pass, space) = self.running()?;
        let own = weights.layers[index].layer_embedding.as_ref().ok_or_else(|| missing("embedding"))?;
        let (inputs, _) = self.layer_embedding.as_ref().ok_or_else(no_pass)?;
        own.gate.multiply(kernels, &space.activations, pass.rows, &space.gates, ResultUse::Replace)?;
        let width = own.gate.width;
        let input = GateInput {
            gates: space.gates.at_value(0),
            gate_stride: width,
            ups: inputs.at_value(index * width),
            up_stride: spec.n_layer * width,
            rows: pass.rows,
            width,
            activation: spec.activation(),
            factors: None,
        };
        kernels.gate(input, space.activations.written_as(own.projection.forms(pass.rows)))
    }

    /// Computes logits of rows of the pass.
    fn head(&self, rows: LogitRows, out: BufferAt<'_>) -> Result<()> {
        let Self { spec, kernels, weights, .. } = self;
        let (pass, space) = self.running()?;
        let (first, rows) = match rows {
            LogitRows::None => return Ok(()),
            LogitRows::All => (0, pass.rows),
            LogitRows::Last => (pass.rows - 1, 1),
        };
        let head = &*weights.head;
        let forms = Forms::read_by(head.wants_quantised(), !head.wants_quantised(), rows);
        // The residual stream stays as it is, so the head may run again.
        let input = NormInput {
            first,
            rows,
            update: self.pending_update(false),
            ..self.norm_input(Some(&weights.output_norm))?
        };
        kernels.norm(input, space.activations.written_as(forms))?;
        let product = GpuProduct {
            matrix: head,
            bias: weights.head_bias.as_ref(),
            out,
            stride: spec.n_vocab,
            add: false,
            scaling: ResultScaling { scale: spec.logit_scale, cap: spec.logit_softcap },
        };
        kernels.multiply(product, &space.activations, rows)
    }

    /// Returns the active pass and the memory that it works in.
    ///
    /// # Errors
    /// [`Error::Internal`] if no pass is active.
    fn running(&self) -> Result<(&GpuPass, &Workspace)> {
        self.pass.as_ref().zip(self.workspace.as_ref()).ok_or_else(no_pass)
    }

    /// Returns the input of a norm over all rows of the pass, without an update.
    fn norm_input<'a>(&'a self, weight: Option<&'a Buffer>) -> Result<NormInput<'a>> {
        let (pass, space) = self.running()?;
        let (width, eps) = (self.spec.n_embd, self.spec.rms_eps as f32);
        Ok(NormInput { x: &space.x, weight, update: None, first: 0, rows: pass.rows, width, eps })
    }

    /// Returns what has not joined the residual stream yet.
    fn pending_update(&self, store: bool) -> Option<NormedUpdate<'_>> {
        let (layer, part) = self.pass.as_ref()?.pending?;
        let weights = &self.weights.layers[layer];
        let weight = weights.post_norm(part)?;
        let rows = self.workspace.as_ref()?.update.as_ref()?;
        let factor = weights.factor_after(part);
        Some(NormedUpdate { rows, weight, scale: self.spec.residual_scale, factor, store })
    }

    /// Completes the residual stream, and writes its norm as the activations of a product.
    fn norm_stream(&mut self, weight: Option<&Buffer>, forms: Forms) -> Result<()> {
        let space = self.workspace.as_ref().ok_or_else(no_pass)?;
        let input = NormInput { update: self.pending_update(true), ..self.norm_input(weight)? };
        self.kernels.norm(input, space.activations.written_as(forms))?;
        self.pass.as_mut().ok_or_else(no_pass)?.pending = None;
        Ok(())
    }

    /// Computes the output of a part of a layer. It joins the residual stream now, or in the next norm.
    fn join_stream(&mut self, index: usize, part: UpdatePart) -> Result<()> {
        let Self { spec, kernels, weights, workspace, experts, pass, .. } = self;
        let (Some(pass), Some(space)) = (pass, workspace) else { return Err(no_pass()) };
        let layer = &weights.layers[index];
        let (x, rows) = (&space.activations, pass.rows);
        let (out, store) = match (layer.post_norm(part), &space.update) {
            (Some(_), Some(update)) => {
                pass.pending = Some((index, part));
                (update, ResultUse::Replace)
            }
            _ => (&space.x, ResultUse::Add(spec.residual_scale)),
        };
        match (part, &layer.feed_forward) {
            (UpdatePart::Mixer, _) => layer.output.multiply(kernels, x, rows, out, store),
            (UpdatePart::LayerEmbedding, _) => {
                let own = layer.layer_embedding.as_ref().ok_or_else(|| missing("embedding"))?;
                own.projection.multiply(kernels, x, rows, out, store)
            }
            (UpdatePart::FeedForward, GpuFeedForward::Dense { down, .. }) => {
                down.multiply(kernels, x, rows, out, store)
            }
            (UpdatePart::FeedForward, GpuFeedForward::Mixture(mixture)) => {
                let pass = mixture_pass(kernels, spec, experts.as_ref(), (index, rows))?;
                let (Some(parallel), Some(other)) = (&mixture.parallel, &pass.space.parallel) else {
                    return mixture.down(pass, x, spec.n_embd, out, store);
                };
                // The norm of the experts' sum goes to `out`, and that of the dense network is added.
                mixture.down(pass, x, spec.n_embd, other, ResultUse::Replace)?;
                let (width, eps) = (spec.n_embd, spec.rms_eps as f32);
                let weight = Some(&parallel.experts_post_norm);
                let sum = NormInput { x: other, weight, update: None, first: 0, rows, width, eps };
                kernels.norm(sum, x.written_as(Forms::FLOATS))?;
                kernels.copy(x.floats.at_byte(0), out.at_byte(0), 4 * rows * width)?;
                let of_dense = parallel.gate_up.width / 2;
                let gate = GateInput::joined(&space.gates, rows, of_dense, spec.activation());
                kernels.gate(gate, x.written_as(parallel.down.forms(rows)))?;
                parallel.down.multiply(kernels, x, rows, other, ResultUse::Replace)?;
                let weight = &parallel.post_norm;
                let update = NormedUpdate { rows: other, weight, scale: 1.0, factor: 1.0, store: true };
                let sum =
                    NormInput { x: out, weight: None, update: Some(update), first: 0, rows, width, eps };
                kernels.norm(sum, x.written_as(Forms::NONE))
            }
        }
    }

    /// Computes queries, keys and values, and appends keys and values to the cache. Or computes the projections of the
    /// mixer in place of attention.
    fn project(&self, index: usize) -> Result<()> {
        let Self { spec, kernels, weights, cache, .. } = self;
        let (pass, space) = self.running()?;
        let layer = &weights.layers[index];
        layer.projections.multiply(kernels, &space.activations, pass.rows, &space.qkv, ResultUse::Replace)?;
        let GpuMixer::Attention(attention) = &layer.mixer else { return Ok(()) };
        // A layer that attends to the keys of another has queries only.
        let (memory, capacity) = cache.gpu_layer(spec.key_layer(index))?;
        let heads = spec.heads(index);
        let keys = if spec.has_keys(index) { heads.count } else { 0 };
        let angles = pass.angles.of(spec.layers[index].rope);
        kernels.heads(HeadsInput {
            x: &space.qkv,
            rows: pass.rows,
            queries: spec.n_head,
            keys,
            width: heads.width,
            query_norm: attention.query_norm.as_ref(),
            key_norm: attention.key_norm.as_ref(),
            angles: angles.map(|(cosines, sines)| (cosines, sines)),
            neighbours: spec.rope_kind == RopeKind::Interleaved,
            cache: memory,
            capacity,
            slot: cache.len(),
            eps: spec.rms_eps as f32,
            special: SpecialHeads {
                rotated: Some(spec.rope_dim_of(spec.layers[index].rope)),
                joint: space.queries.as_ref(),
                factors: pass.query_factors.as_ref().filter(|_| spec.scales_queries(index)),
                rest: layer.projections.width - attention.heads_width,
                norms_values: spec.head_norms == HeadNorms::WithValues,
                values_are_keys: attention.values_are_keys,
            },
        })
    }

    /// Computes attention or the mixer in its place, as the activations of the output product.
    fn mix(&mut self, index: usize, layer: &LoadedLayer) -> Result<()> {
        match &layer.mixer {
            GpuMixer::Attention(attention) => self.attention(index, layer, attention),
            GpuMixer::ShortConvolution(kernel) => self.convolution(index, layer, kernel),
            GpuMixer::DeltaNet(net) => self.delta_net(index, layer, net),
        }
    }

    fn convolution(&self, index: usize, layer: &LoadedLayer, kernel: &Buffer) -> Result<()> {
        let (pass, space) = self.running()?;
        let plan = pass.convolution.as_ref().ok_or_else(no_pass)?;
        let out = space.activations.written_as(layer.output.forms(pass.rows));
        let (x, width) = (&space.qkv, self.spec.n_embd);
        let state = self.cache.gpu_convolution_state(index)?;
        plan.convolve(&self.kernels, LayerConvolution { x, kernel, state, width }, out)
    }

    fn delta_net(
        &mut self,
        index: usize,
        layer: &LoadedLayer,
        weights: &DeltaNetWeights<MatrixRows, Buffer>,
    ) -> Result<()> {
        let Self { kernels, cache, pass, workspace, .. } = self;
        let (Some(pass), Some(space)) = (&*pass, &*workspace) else { return Err(no_pass()) };
        let net = pass.delta_net.as_ref().ok_or_else(no_pass)?;
        let out = space.activations.written_as(layer.output.forms(pass.rows));
        net.run(kernels, &space.qkv, weights, cache.gpu_delta_memory(index)?, out)
    }

    /// Computes attention, as the activations of the output product.
    fn attention(&self, index: usize, layer: &LoadedLayer, weights: &GpuAttentionWeights) -> Result<()> {
        let Self { spec, kernels, cache, .. } = self;
        let (pass, space) = self.running()?;
        let (memory, capacity) = cache.gpu_layer(spec.key_layer(index))?;
        let heads = spec.heads(index);
        let input = GpuAttention {
            q: space.queries.as_ref().unwrap_or(&space.qkv),
            stride: layer.projections.width,
            cache: memory,
            capacity,
            rows: pass.rows,
            queries: spec.n_head,
            keys: heads.count,
            width: heads.width,
            scoring: Scoring {
                scale: spec.attention_scale,
                cap: spec.attention_softcap,
                window: spec.layers[index].visible(),
            },
            sinks: weights.sinks.as_ref(),
            gates: spec.gated_attention.then(|| space.qkv.at_value(weights.heads_width)),
        };
        let out = space.activations.written_as(layer.output.forms(pass.rows));
        kernels.attention(input, &pass.space, out)?;
        // The system ends a command buffer that takes too long. These are many, so one wait more costs little.
        if pass.rows * cache.len() > MAX_QUEUED_SCORES {
            kernels.gpu().wait()?;
        }
        Ok(())
    }

    /// Computes activation(gate) * up, as the activations of the down product.
    fn gate_up(&self, index: usize) -> Result<()> {
        let Self { spec, kernels, weights, .. } = self;
        let (pass, space) = self.running()?;
        let rows = pass.rows;
        let (gate_up, down) = match &weights.layers[index].feed_forward {
            GpuFeedForward::Dense { gate_up, down } => (gate_up, down),
            GpuFeedForward::Mixture(mixture) => {
                let pass = mixture_pass(kernels, spec, self.experts.as_ref(), (index, rows))?;
                let stream = self.norm_input(None)?;
                return mixture.gate_up_of_all(pass, &space.activations, stream, &space.gates);
            }
        };
        gate_up.multiply(kernels, &space.activations, rows, &space.gates, ResultUse::Replace)?;
        let gate = GateInput::joined(&space.gates, rows, gate_up.width / 2, spec.activation());
        kernels.gate(gate, space.activations.written_as(down.forms(rows)))
    }

    /// Returns the number of values of the residual stream in this pass.
    fn tap_values(&self) -> Result<usize> {
        Ok(self.pass.as_ref().ok_or_else(no_pass)?.rows * self.spec.n_embd)
    }

    /// Returns the number of values of selected rows of logits in this pass.
    fn logit_values(&self, rows: LogitRows) -> Result<usize> {
        let rows = match rows {
            LogitRows::None => 0,
            LogitRows::All => self.pass.as_ref().ok_or_else(no_pass)?.rows,
            LogitRows::Last => 1,
        };
        Ok(rows * self.spec.n_vocab)
    }

    fn widths(&self) -> Widths {
        let (spec, attention) = (&self.spec, self.spec.widest_queries());
        let of_layers = spec.layer_embedding.map_or(0, |of| of.width);
        let of_net = spec.delta_net.map_or(0, |net| net.output_width());
        Widths {
            x: spec.n_embd,
            qkv: (attention + 2 * spec.widest_keys() + if spec.gated_attention { attention } else { 0 })
                .max(spec.convolution.map_or(0, |_| 3 * spec.n_embd))
                .max(spec.delta_net.map_or(0, |net| net.input_width() + net.output_width())),
            gates: (2 * spec.n_ff).max(of_layers),
            input: spec.n_embd.max(spec.n_ff).max(attention).max(of_net).max(of_layers),
            has_queries: spec.head_norms == HeadNorms::Joint,
            has_updates: has_updates(spec),
        }
    }
}

impl LoadedWeights {
    fn load(file: &WeightFile, spec: &ModelSpec, gpu: &Arc<dyn Gpu>) -> Result<Self> {
        let linear = |rows: &MatrixRows| Ok(rows.clone());
        let vector = |name: &str, shape: &[usize]| {
            let values = file.values(name, shape, &Device::Cpu)?.flatten_all()?;
            Buffer::with_floats(gpu, &values.to_vec1::<f32>()?)
        };
        // Matrices are read one after the other, so host memory holds one at a time.
        let experts = |of: &ExpertMatrices| GpuMixture::matrices(file, gpu, of);
        let ones = |len: usize| Buffer::with_floats(gpu, &vec![1.0; len]);
        let weights = ModelWeights::load(file, spec, linear, vector, ones, experts)?;
        let layer = |layer: LayerWeights<MatrixRows, Buffer, ExpertMatrix>| {
            let (projections, mixer) = mixer(spec, layer.mixer);
            let layer_embedding = |own: LayerEmbedding<MatrixRows, Buffer>| -> Result<GpuLayerEmbedding> {
                Ok(GpuLayerEmbedding {
                    gate: Joined::load(file, gpu, &[own.gate])?,
                    projection: Joined::load(file, gpu, &[own.projection])?,
                    post_norm: own.post_norm,
                })
            };
            let factor = layer.output_scale.map(|scale| scale.read_floats(0, 1)).transpose()?;
            let feed_forward = match layer.feed_forward {
                FeedForward::Dense(Dense { gate, up, down }) => GpuFeedForward::Dense {
                    gate_up: Joined::load(file, gpu, &[gate, up])?,
                    down: Joined::load(file, gpu, &[down])?,
                },
                FeedForward::Mixture(mixture) => {
                    let mixture = GpuMixture::load(file, gpu, spec.n_embd, mixture)?;
                    GpuFeedForward::Mixture(Box::new(mixture))
                }
            };
            Ok(LoadedLayer {
                layer_embedding: layer.layer_embedding.map(layer_embedding).transpose()?,
                output_scale: factor.map_or(1.0, |factor| factor[0]),
                mixer_norm: layer.mixer_norm,
                projections: Joined::load(file, gpu, &projections)?,
                mixer,
                output: Joined::load(file, gpu, &[layer.output])?,
                mixer_post_norm: layer.mixer_post_norm,
                feed_forward_norm: layer.feed_forward_norm,
                feed_forward,
                feed_forward_post_norm: layer.feed_forward_post_norm,
            })
        };
        let layers = weights.layers.into_iter().map(layer).collect::<Result<_>>()?;
        let table = |name: &str| matrix(file, gpu, &[MatrixRows::whole(name, spec.n_vocab, spec.n_embd)]);
        let embedding = Arc::new(table("token_embd")?);
        let head = if file.is_tied() { embedding.clone() } else { Arc::new(table(&weights.head.name)?) };
        let head_bias = bias(file, gpu, &[weights.head])?;
        let layer_embedding =
            |(input, of): (LayerEmbeddingInput<MatrixRows, Buffer>, LayerEmbeddingShape)| -> Result<_> {
                let name = LAYER_EMBEDDING_TABLE.trim_end_matches(".weight");
                let rows = MatrixRows::whole(name, spec.n_vocab, spec.n_layer * of.width);
                let table = matrix(file, gpu, &[rows])?;
                let projection = Joined::load(file, gpu, &[input.projection])?;
                Ok(LayerEmbeddingTable { table, projection, norm: input.norm })
            };
        let layer_embedding =
            weights.layer_embedding.zip(spec.layer_embedding).map(layer_embedding).transpose()?;
        Ok(Self { embedding, layers, output_norm: weights.output_norm, head, head_bias, layer_embedding })
    }
}

impl LoadedLayer {
    /// Returns the norm of the output of a part, if it has one.
    fn post_norm(&self, part: UpdatePart) -> Option<&Buffer> {
        match part {
            UpdatePart::Mixer => self.mixer_post_norm.as_ref(),
            UpdatePart::FeedForward => self.feed_forward_post_norm.as_ref(),
            UpdatePart::LayerEmbedding => self.layer_embedding.as_ref().map(|own| &own.post_norm),
        }
    }

    /// Returns the factor of the residual stream after a part has joined it.
    fn factor_after(&self, part: UpdatePart) -> f32 {
        let is_last = match part {
            UpdatePart::Mixer => false,
            UpdatePart::FeedForward => self.layer_embedding.is_none(),
            UpdatePart::LayerEmbedding => true,
        };
        if is_last { self.output_scale } else { 1.0 }
    }
}

impl GpuFeedForward {
    /// Returns which forms of activations the first products of `rows` rows read.
    fn forms(&self, rows: usize) -> Forms {
        match self {
            Self::Dense { gate_up, .. } => gate_up.forms(rows),
            Self::Mixture(mixture) => mixture.forms(rows),
        }
    }
}

/// Returns the projections of a mixer in the order of a row of their outputs, and its other weights. Gates of attention,
/// which the file has after the query of each head, come last. So do the decays of a gated delta net.
fn mixer(spec: &ModelSpec, weights: MixerWeights<MatrixRows, Buffer>) -> (Vec<MatrixRows>, GpuMixer) {
    match weights {
        MixerWeights::Attention(AttentionWeights { queries, keys, values, query_norm, key_norm, sinks }) => {
            let values_are_keys = keys.is_some() && values.is_none();
            let width = spec.head_dim;
            let of_heads = |part: usize| {
                let queries = &queries;
                (0..spec.n_head).map(move |head| queries.slice((2 * head + part) * width, width))
            };
            let (queries, gates) = if spec.gated_attention {
                (of_heads(0).collect(), of_heads(1).collect())
            } else {
                (vec![queries.clone()], Vec::new())
            };
            let heads: Vec<_> = queries.into_iter().chain(keys).chain(values).collect();
            let heads_width = heads.iter().map(|rows| rows.n).sum();
            let attention = GpuAttentionWeights { heads_width, values_are_keys, query_norm, key_norm, sinks };
            (heads.into_iter().chain(gates).collect(), GpuMixer::Attention(attention))
        }
        MixerWeights::ShortConvolution(ConvolutionWeights { b, c, x, kernel }) => {
            (vec![b, c, x], GpuMixer::ShortConvolution(kernel))
        }
        MixerWeights::DeltaNet(net) => {
            let DeltaNetWeights { channels, gates, strengths, decays, .. } = &net;
            let projections = [channels, gates, strengths].into_iter().chain(decays).cloned().collect();
            (projections, GpuMixer::DeltaNet(Box::new(net)))
        }
    }
}

/// Returns `true` if the output of a part is normed before it joins the residual stream.
fn has_updates(spec: &ModelSpec) -> bool {
    matches!(spec.norms, Norms::After | Norms::Both) || spec.layer_embedding.is_some()
}

/// Returns the state of the pass for the experts of a layer.
fn mixture_pass<'a>(
    kernels: &'a Kernels,
    spec: &'a ModelSpec,
    space: Option<&'a MixtureSpace>,
    (layer, rows): (usize, usize),
) -> Result<MixturePass<'a>> {
    let (Some(experts), Some(space)) = (&spec.experts, space) else { return Err(missing("mixture")) };
    Ok(MixturePass { kernels, space, experts, layer, rows })
}

impl Executor for MetalExecutor {
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()> {
        let ids = Buffer::with_words(self.kernels.gpu(), tokens)?;
        self.start(ids.at_byte(0), mask)
    }

    fn can_choose(&self) -> bool {
        true
    }

    fn device_draw(&self, settings: &DrawSettings) -> Option<DrawSettings> {
        // More tokens than the kernel can sort are unlikely to matter.
        let sorted = DrawSettings { top_k: MAX_TOP_K, ..*settings };
        [*settings, sorted].into_iter().find(|settings| self.kernels.can_draw(settings))
    }

    fn choose(&mut self, at: usize, count: usize, draw: Option<Draw>) -> Result<()> {
        let n_vocab = self.spec.n_vocab;
        let space = self.workspace.as_mut().ok_or_else(no_pass)?;
        let out = at_least(self.kernels.gpu(), space.choices.take(), choice_bytes(count, n_vocab))?;
        let logits = out.at_byte(tokens_bytes(count) + 4 * at * n_vocab);
        let token = out.at_value(at);
        self.head(LogitRows::Last, logits)?;
        match draw {
            None => self.kernels.choose(logits, n_vocab, token)?,
            Some(Draw { settings, n_vocab: count, unit }) => {
                self.kernels.draw(DrawInput { logits, count, settings, unit }, token)?;
            }
        }
        self.workspace.as_mut().ok_or_else(no_pass)?.choices = Some(out);
        Ok(())
    }

    fn begin_chosen(&mut self, at: usize, mask: &RowMask) -> Result<()> {
        let space = self.workspace.as_mut().ok_or_else(no_pass)?;
        let choices = space.choices.take().ok_or_else(no_pass)?;
        let started = self.start(choices.at_value(at), mask);
        if let Some(space) = &mut self.workspace {
            space.choices = Some(choices);
        }
        started
    }

    fn chosen(&mut self, count: usize) -> Result<(Vec<TokenId>, Rows)> {
        let n_vocab = self.spec.n_vocab;
        let choices = self.workspace.as_ref().and_then(|space| space.choices.as_ref()).ok_or_else(no_pass)?;
        // One read, and so one wait.
        let bytes = choices.read(0, choice_bytes(count, n_vocab))?;
        let words = bytes.as_chunks::<4>().0;
        let tokens = words[..count].iter().map(|word| u32::from_le_bytes(*word)).collect();
        let logits = words[tokens_bytes(count) / 4..].iter().map(|word| f32::from_le_bytes(*word)).collect();
        Ok((tokens, Rows::new(n_vocab, logits)))
    }

    fn step(&mut self, index: usize, step: LayerStep) -> Result<()> {
        let rows = self.pass.as_ref().ok_or_else(no_pass)?.rows;
        let weights = self.weights.clone();
        let layer = &weights.layers[index];
        match step {
            LayerStep::Project => {
                self.norm_stream(layer.mixer_norm.as_ref(), layer.projections.forms(rows))?;
                self.project(index)
            }
            LayerStep::Mix => self.mix(index, layer),
            LayerStep::MixerOutput => self.join_stream(index, UpdatePart::Mixer),
            LayerStep::GateUp => {
                self.norm_stream(layer.feed_forward_norm.as_ref(), layer.feed_forward.forms(rows))?;
                self.gate_up(index)
            }
            LayerStep::Down => self.join_stream(index, UpdatePart::FeedForward),
            LayerStep::LayerEmbedding => {
                let Some(own) = &layer.layer_embedding else { return Ok(()) };
                self.norm_stream(None, own.gate.forms(rows))?;
                self.layer_embedding_gate(index)?;
                self.join_stream(index, UpdatePart::LayerEmbedding)
            }
        }
    }

    fn tap(&mut self, at: usize, wanted: WantedResults) -> Result<()> {
        if self.pending_update(true).is_some() {
            self.norm_stream(None, Forms::NONE)?;
        }
        let bytes = 4 * self.tap_values()?;
        // Logits follow the taps, and the buffer must not change in between.
        let all = 4 * (wanted.taps * self.tap_values()? + self.logit_values(wanted.logits)?);
        let space = self.workspace.as_mut().ok_or_else(no_pass)?;
        let out = at_least(self.kernels.gpu(), space.results.take(), all)?;
        let copied = self.kernels.copy(space.x.at_byte(0), out.at_byte(at * bytes), bytes);
        space.results = Some(out);
        copied
    }

    fn results(&mut self, wanted: WantedResults, _vocab_subset: Option<&VocabSubset>) -> Result<PassOutput> {
        let (tap, rows) = (self.tap_values()?, wanted.logits);
        let tapped = wanted.taps * tap;
        let all = tapped + self.logit_values(rows)?;
        if all == 0 {
            return Ok(PassOutput::default());
        }
        let space = self.workspace.as_mut().ok_or_else(no_pass)?;
        let out = at_least(self.kernels.gpu(), space.results.take(), 4 * all)?;
        self.head(rows, out.at_value(tapped))?;
        // One read, and so one wait.
        let mut values = out.read_floats(0, all)?;
        self.workspace.as_mut().ok_or_else(no_pass)?.results = Some(out);
        let logits = values.split_off(tapped);
        let taps = values.chunks(tap).map(|values| Rows::new(self.spec.n_embd, values.to_vec())).collect();
        Ok(PassOutput { logits: Rows::new(self.spec.n_vocab, logits), taps })
    }

    fn finish(&self) -> Result<()> {
        self.kernels.gpu().wait()
    }

    fn fork(&self) -> Box<dyn Executor> {
        Box::new(Self {
            spec: self.spec.clone(),
            kernels: self.kernels.clone(),
            weights: self.weights.clone(),
            rope: self.rope.clone(),
            cache: KvCache::on_gpu(&self.spec, self.cache.max_len(), &self.kernels),
            workspace: None,
            experts: None,
            layer_embedding: None,
            pass: None,
        })
    }

    fn distinct_experts(&self) -> Option<f64> {
        self.experts.as_ref()?.distinct(self.spec.experts.as_ref()?)
    }

    fn cache(&self) -> &KvCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }
}

/// Bytes of chosen tokens, before their logits.
fn tokens_bytes(count: usize) -> usize {
    (4 * count).next_multiple_of(16)
}

/// Bytes of chosen tokens and their logits.
fn choice_bytes(count: usize, n_vocab: usize) -> usize {
    tokens_bytes(count) + 4 * count * n_vocab
}

fn no_pass() -> Error {
    Error::Internal("no forward pass is active".into())
}

fn missing(part: &str) -> Error {
    Error::Internal(format!("the layer has no {part} of its own"))
}
