//! Decoder layers on the CPU with their KV cache: all layers of a model, or a single one that drafts.
//!
//! Embedding and output head belong to the callers.

use std::sync::Arc;

use super::convolution::{ConvolutionInput, convolve};
use super::delta_net::{DeltaProjections, DeltaSpace, DeltaWeights};
use super::experts::ExpertSpace;
use super::{Linear, normed, ones, products, quantise_for, values};
use crate::cache::KvCache;
use crate::cache::checkpoints::DeltaPlan;
use crate::cache::convolution_states::ConvolutionPlan;
use crate::device::Compute;
use crate::executor::{LAYER, LayerStep};
use crate::rope::{PassAngles, Rope};
use crate::spec::{HeadNorms, LAYER_EMBEDDING_SCALE, ModelSpec, RopeKind};
use crate::tensor_names::{
    AttentionWeights, ConvolutionWeights, DeltaNetWeights, Dense, FeedForward, LayerEmbedding,
    LayerEmbeddingInput, LayerWeights, MixerWeights, Parallel,
};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_core::model::Rows;
use hunch_error::{Error, Result};
use hunch_kernels::activation::{
    add_scaled, gate_by_sigmoid, rms_norm_in_place, rotate_halves, rotate_neighbours, scale,
};
use hunch_kernels::attention::{Attention, AttentionInput, AttentionShape, VisibleSlots};
use hunch_kernels::experts::ExpertStack;
use hunch_kernels::matmul::{ProductInput, multiply_gated};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{RowMask, Threads};

/// Weights of a layer.
type CpuLayerWeights = LayerWeights<Linear, Vec<f32>, ExpertStack>;

/// Decoder layers with a cache and working memory. Forks share the weights.
pub(crate) struct CpuLayers {
    pub(super) spec: ModelSpec,
    pub(super) compute: Compute,
    pub(super) weights: Arc<Vec<CpuLayerWeights>>,
    pub(super) rope: Arc<Rope>,
    pub(super) cache: KvCache,
    pub(super) pass: CpuPass,
    pub(super) workspace: Workspace,
}

/// State of the current pass.
pub(super) struct CpuPass {
    pub(super) rows: usize,
    pub(super) angles: PassAngles,
    pub(super) visible: VisibleSlots,
    /// Rows of state that short convolutions read and write.
    pub(super) convolution_plan: Option<ConvolutionPlan>,
    /// States that gated delta nets read and keep.
    pub(super) delta_plan: Option<DeltaPlan>,
}

/// Buffers that are reused between passes, `[rows, width]` each.
#[derive(Default)]
pub(super) struct Workspace {
    /// The residual stream.
    pub(super) x: Vec<f32>,
    /// Input of the next product.
    pub(super) h: Vec<f32>,
    pub(super) quantised: QuantisedRows,
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// Gates of the output of attention.
    pub(super) gates: Vec<f32>,
    /// Decays of a gated delta net.
    pub(super) decays: Vec<f32>,
    pub(super) delta_net: DeltaSpace,
    pub(super) gated: Vec<f32>,
    /// Output of a layer's part that is normed or scaled before it joins the residual stream.
    pub(super) update: Vec<f32>,
    pub(super) experts: ExpertSpace,
    /// Input of the router, if it is not that of the experts.
    router: Vec<f32>,
    /// Output of the experts next to a dense network.
    of_experts: Vec<f32>,
    /// Inputs of the layers' own embeddings, `[n_layer, rows, width]`.
    layer_embedding: Vec<f32>,
    /// Gated embedding of a layer, `[rows, width]`.
    gated_embedding: Vec<f32>,
    /// Weights of norms that have none.
    ones: Vec<f32>,
    pub(super) attention: Attention,
}

impl CpuLayers {
    /// Joins layers with an empty cache.
    pub(super) fn new(spec: ModelSpec, weights: Vec<CpuLayerWeights>, rope: Rope, compute: &Compute) -> Self {
        Self {
            cache: KvCache::on_host(&spec, spec.context_length, compute.kv()),
            weights: Arc::new(weights),
            rope: Arc::new(rope),
            pass: CpuPass::empty(),
            workspace: Workspace::default(),
            compute: compute.clone(),
            spec,
        }
    }

    /// Loads layer `index` of a file by itself. `spec` has the parameters of this layer alone.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape, or there is not enough memory.
    pub(crate) fn load_one(
        file: &WeightFile,
        spec: ModelSpec,
        index: usize,
        compute: &Compute,
    ) -> Result<Self> {
        let linear = |rows: &MatrixRows| Linear::load(file, rows, compute.threads());
        let experts = |of: &ExpertMatrices| file.expert_stack(of, compute.threads());
        let vector = |name: &str, shape: &[usize]| values(file, name, shape);
        let weights = LayerWeights::load(file, (&spec, 0), index, &linear, &vector, &ones, &experts)?;
        let rope = Rope::new(file, &spec)?;
        Ok(Self::new(spec, vec![weights], rope, compute))
    }

    /// Returns layers on the same weights with an empty cache.
    pub(crate) fn fork(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            compute: self.compute.clone(),
            weights: self.weights.clone(),
            rope: self.rope.clone(),
            cache: KvCache::on_host(&self.spec, self.cache.max_len(), self.cache.kv_type()),
            pass: CpuPass::empty(),
            workspace: Workspace::default(),
        }
    }

    /// Returns the KV cache.
    pub(crate) fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Returns the KV cache for changes.
    pub(crate) fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }

    /// Starts a pass whose residual stream is `x`, `[rows, n_embd]`.
    ///
    /// # Errors
    /// If the cache is full.
    pub(super) fn begin(&mut self, x: Vec<f32>, mask: &RowMask) -> Result<()> {
        let rows = x.len() / self.spec.n_embd;
        self.cache.reserve(rows)?;
        self.workspace.x = x;
        self.workspace.experts.begin();
        self.pass = CpuPass {
            rows,
            angles: self.rope.angles(mask.positions()),
            visible: VisibleSlots::new(mask),
            convolution_plan: self.cache.convolution_plan(mask)?,
            delta_plan: self.cache.delta_plan(mask)?,
        };
        Ok(())
    }

    /// Runs one step of layer `index`.
    ///
    /// # Errors
    /// If candle fails.
    pub(super) fn step(&mut self, index: usize, step: LayerStep) -> Result<()> {
        match step {
            LayerStep::Project => self.query_key_value(index),
            LayerStep::Mix => self.mix(index),
            LayerStep::MixerOutput => self.attention_output(index),
            LayerStep::GateUp => self.gate_up(index),
            LayerStep::Down => self.down(index),
            LayerStep::LayerEmbedding => self.layer_embedding(index),
        }
    }

    /// Runs rows through all layers and appends them to the cache. Replaces the residual stream `x`, `[rows, n_embd]`.
    ///
    /// # Errors
    /// If the cache is full. It is then unchanged.
    pub(crate) fn run(&mut self, x: &mut Vec<f32>, mask: &RowMask) -> Result<()> {
        self.begin(std::mem::take(x), mask)?;
        for index in 0..self.spec.n_layer {
            LAYER.iter().try_for_each(|&part| self.step(index, part))?;
        }
        self.cache.advance(self.pass.rows);
        *x = std::mem::take(&mut self.workspace.x);
        Ok(())
    }

    /// Returns the residual stream.
    pub(super) fn residual(&self) -> Rows {
        Rows::new(self.spec.n_embd, self.workspace.x.clone())
    }

    fn query_key_value(&mut self, index: usize) -> Result<()> {
        self.project(index)?;
        if !self.spec.has_keys(index) {
            return Ok(());
        }
        let Workspace { k, v, .. } = &self.workspace;
        self.cache.write_rows(index, k, v)
    }

    /// Computes queries, keys and values of the pass, or the projections of the mixer in place of attention.
    pub(super) fn project(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, compute, pass, workspace, .. } = self;
        let (layer, threads, rows) = (&weights[index], compute.threads(), pass.rows);
        let Workspace { x, h, quantised, q, k, v, decays, .. } = workspace;
        let h = normed(x, layer.mixer_norm.as_deref(), spec.rms_eps as f32, h);
        match &layer.mixer {
            MixerWeights::Attention(attention) => {
                let AttentionWeights { queries, keys, values, .. } = attention;
                match (keys, values) {
                    (Some(keys), Some(values)) => {
                        project(threads, h, quantised, rows, [(queries, q), (keys, k), (values, v)])?;
                    }
                    (Some(keys), None) => {
                        project(threads, h, quantised, rows, [(queries, q), (keys, k)])?;
                        v.clone_from(k);
                    }
                    (None, _) => {
                        project(threads, h, quantised, rows, [(queries, q)])?;
                        k.clear();
                        v.clear();
                    }
                }
                pass.norm_and_rotate(spec, index, attention, workspace);
            }
            MixerWeights::ShortConvolution(ConvolutionWeights { b, c, x, .. }) => {
                project(threads, h, quantised, rows, [(b, q), (c, k), (x, v)])?;
            }
            MixerWeights::DeltaNet(net) => {
                let DeltaNetWeights { channels, gates, strengths, .. } = net;
                project(threads, h, quantised, rows, [(channels, q), (gates, k), (strengths, v)])?;
                if let Some(linear) = &net.decays {
                    project(threads, h, quantised, rows, [(linear, decays)])?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn attention_shape(&self, layer: usize, capacity: usize) -> AttentionShape {
        AttentionShape {
            n_head: self.spec.n_head,
            n_kv_head: self.spec.heads(layer).count,
            head_dim: self.spec.heads(layer).width,
            capacity,
            scale: self.spec.attention_scale,
            softcap: self.spec.attention_softcap,
            window: self.spec.layers[layer].visible(),
        }
    }

    /// Computes attention, or the mixer in its place.
    fn mix(&mut self, index: usize) -> Result<()> {
        let weights = self.weights.clone();
        match &weights[index].mixer {
            MixerWeights::Attention(attention) => self.attention(index, attention.sinks.as_deref()),
            MixerWeights::ShortConvolution(convolution) => self.convolution(index, &convolution.kernel),
            MixerWeights::DeltaNet(net) => self.delta_net(index, net),
        }
    }

    fn convolution(&mut self, index: usize, weights: &[f32]) -> Result<()> {
        let no_plan = || Error::Internal("the pass has no plan of convolutions".into());
        let plan = self.pass.convolution_plan.as_ref().ok_or_else(no_plan)?;
        let Workspace { h, q, k, v, .. } = &mut self.workspace;
        let input = ConvolutionInput { b: q, c: k, weights };
        convolve(&input, v, plan, self.cache.host_convolution_state(index)?, h);
        Ok(())
    }

    fn delta_net(&mut self, index: usize, weights: &DeltaNetWeights<Linear, Vec<f32>>) -> Result<()> {
        let no_plan = || Error::Internal("the pass has no plan of delta nets".into());
        let net = self.spec.delta_net.ok_or_else(no_plan)?;
        let plan = self.pass.delta_plan.as_ref().ok_or_else(no_plan)?;
        let Workspace { h, q, k, v, decays, delta_net, .. } = &mut self.workspace;
        let projections = DeltaProjections {
            channels: q,
            strengths: v,
            decays: weights.decays.as_ref().map(|_| &decays[..]),
        };
        let weights = DeltaWeights {
            net,
            convolution: &weights.convolution,
            rates: &weights.rates,
            bias: &weights.bias,
            norm: &weights.norm,
            eps: self.spec.rms_eps as f32,
        };
        let memory = self.cache.delta_memory(index)?;
        delta_net.run(self.compute.threads(), (&weights, &projections), plan, memory, k);
        std::mem::swap(h, k);
        Ok(())
    }

    fn attention(&mut self, index: usize, sinks: Option<&[f32]>) -> Result<()> {
        let (keys, values, capacity) = self.cache.host_layer(self.spec.key_layer(index))?;
        let shape = self.attention_shape(index, capacity);
        let Workspace { h, q, gates, attention, .. } = &mut self.workspace;
        h.resize(q.len(), 0.0);
        let input = AttentionInput { q, k: keys, v: values, sinks };
        attention.attend(self.compute.threads(), shape, input, &self.pass.visible, h);
        if self.spec.gated_attention {
            gate_by_sigmoid(h, gates);
        }
        Ok(())
    }

    fn attention_output(&mut self, index: usize) -> Result<()> {
        let layer = &self.weights[index];
        let Workspace { x, h, quantised, update, .. } = &mut self.workspace;
        let output = Update { linear: &layer.output, norm: layer.mixer_post_norm.as_deref() };
        output.add(&self.compute, &self.spec, h, quantised, update, x)
    }

    fn gate_up(&mut self, index: usize) -> Result<()> {
        let (layer, threads) = (&self.weights[index], self.compute.threads());
        let activation = self.spec.activation();
        let Workspace { x, h, quantised, gated, experts, router, .. } = &mut self.workspace;
        let eps = self.spec.rms_eps as f32;
        let Dense { gate, up, .. } = match &layer.feed_forward {
            FeedForward::Dense(dense) => dense,
            FeedForward::Mixture(mixture) => {
                let of_layer = (mixture, self.spec.experts.as_ref());
                let Some(parallel) = &mixture.parallel else {
                    let h = normed(x, layer.feed_forward_norm.as_deref(), eps, h);
                    return experts.gate_up(threads, of_layer, (h, h), quantised);
                };
                let of_router = normed(x, Some(&parallel.router_norm), eps, router);
                let h = normed(x, Some(&parallel.experts_norm), eps, h);
                experts.gate_up(threads, of_layer, (h, of_router), quantised)?;
                &parallel.dense
            }
        };
        let h = normed(x, layer.feed_forward_norm.as_deref(), eps, h);
        gated.resize(self.pass.rows * gate.n, 0.0);
        if let (Some(gate_matrix), Some(up_matrix)) = (gate.matrix_without_bias(), up.matrix_without_bias()) {
            quantise_for(threads, &[gate, up], h, quantised);
            multiply_gated(
                threads,
                ProductInput { x: h, quantised },
                gate_matrix,
                up_matrix,
                activation,
                gated,
            );
            return Ok(());
        }
        let mut up_values = vec![0.0; gated.len()];
        products(threads, h, quantised, [(gate, &mut **gated), (up, &mut up_values)], false)?;
        activation.gate(gated, &up_values);
        Ok(())
    }

    fn down(&mut self, index: usize) -> Result<()> {
        let layer = &self.weights[index];
        let Workspace { x, gated, quantised, update, experts, of_experts, .. } = &mut self.workspace;
        let norm = layer.feed_forward_post_norm.as_deref();
        let threads = self.compute.threads();
        match &layer.feed_forward {
            FeedForward::Dense(Dense { down, .. }) => {
                let down = Update { linear: down, norm };
                down.add(&self.compute, &self.spec, gated, quantised, update, x)
            }
            FeedForward::Mixture(layer) => {
                update.resize(x.len(), 0.0);
                experts.down(threads, (layer, self.spec.experts.as_ref()), update)?;
                if let Some(Parallel { dense, post_norm, experts_post_norm, .. }) = &layer.parallel {
                    of_experts.clone_from(update);
                    products(threads, gated, quantised, [(&dense.down, &mut **update)], false)?;
                    let eps = self.spec.rms_eps as f32;
                    for (rows, norm) in [(&mut *update, post_norm), (&mut *of_experts, experts_post_norm)] {
                        rows.chunks_exact_mut(norm.len()).for_each(|row| rms_norm_in_place(row, norm, eps));
                    }
                    add_scaled(update, of_experts, 1.0);
                }
                join(&self.spec, norm, update, x);
                Ok(())
            }
        }
    }

    /// Computes the inputs of the layers' own embeddings from the scaled embeddings of the rows, `[rows, n_embd]`, and
    /// the rows of the table, `[rows, n_layer * width]`.
    pub(super) fn layer_embedding_inputs(
        &mut self,
        input: &LayerEmbeddingInput<Linear, Vec<f32>>,
        x: &[f32],
        of_tokens: &[f32],
    ) -> Result<()> {
        let (width, rows) = (input.norm.len(), x.len() / self.spec.n_embd);
        let Workspace { quantised, layer_embedding, gated_embedding: projected, .. } = &mut self.workspace;
        projected.resize(of_tokens.len(), 0.0);
        products(self.compute.threads(), x, quantised, [(&input.projection, &mut **projected)], false)?;
        scale(projected, 1.0 / (self.spec.n_embd as f32).sqrt());
        layer_embedding.resize(of_tokens.len(), 0.0);
        let of_table = (width as f32).sqrt();
        for (at, values) in projected.chunks_exact_mut(width).enumerate() {
            let (row, layer) = (at / self.spec.n_layer, at % self.spec.n_layer);
            rms_norm_in_place(values, &input.norm, self.spec.rms_eps as f32);
            add_scaled(values, &of_tokens[at * width..][..width], of_table);
            scale(values, LAYER_EMBEDDING_SCALE);
            layer_embedding[(layer * rows + row) * width..][..width].copy_from_slice(values);
        }
        Ok(())
    }

    /// Adds the layer's own embedding to the residual stream, and scales it.
    fn layer_embedding(&mut self, index: usize) -> Result<()> {
        let layer = &self.weights[index];
        let Workspace { x, quantised, update, layer_embedding, gated_embedding: gated, .. } =
            &mut self.workspace;
        if let Some(LayerEmbedding { gate, projection, post_norm }) = &layer.layer_embedding {
            let threads = self.compute.threads();
            gated.resize(self.pass.rows * gate.n, 0.0);
            products(threads, x, quantised, [(gate, &mut **gated)], false)?;
            let inputs = layer_embedding[index * gated.len()..].chunks_exact(gate.n);
            for (gated, input) in gated.chunks_exact_mut(gate.n).zip(inputs) {
                self.spec.activation().gate(gated, input);
            }
            let own = Update { linear: projection, norm: Some(post_norm) };
            own.add(&self.compute, &self.spec, gated, quantised, update, x)?;
        }
        if let Some(factor) = layer.output_scale.as_deref() {
            scale(x, factor[0]);
        }
        Ok(())
    }
}

/// Last product of attention or of the feed-forward network, which is added to the residual stream.
struct Update<'a> {
    linear: &'a Linear,
    norm: Option<&'a [f32]>,
}

impl Update<'_> {
    fn add(
        &self,
        compute: &Compute,
        spec: &ModelSpec,
        input: &[f32],
        quantised: &mut QuantisedRows,
        update: &mut Vec<f32>,
        x: &mut [f32],
    ) -> Result<()> {
        let threads = compute.threads();
        if self.norm.is_none() && spec.residual_scale == 1.0 {
            return products(threads, input, quantised, [(self.linear, x)], true);
        }
        update.resize(x.len(), 0.0);
        products(threads, input, quantised, [(self.linear, &mut **update)], false)?;
        join(spec, self.norm, update, x);
        Ok(())
    }
}

/// Adds the output of a layer's part to the residual stream, normed and scaled.
fn join(spec: &ModelSpec, norm: Option<&[f32]>, update: &mut [f32], x: &mut [f32]) {
    if let Some(norm) = norm {
        let rows = update.chunks_exact_mut(norm.len());
        rows.for_each(|row| rms_norm_in_place(row, norm, spec.rms_eps as f32));
    }
    add_scaled(x, update, spec.residual_scale);
}

impl CpuPass {
    pub(super) fn empty() -> Self {
        let visible = VisibleSlots::new(&RowMask::causal(0, 0));
        Self { rows: 0, angles: PassAngles::default(), visible, convolution_plan: None, delta_plan: None }
    }

    /// Separates the gates from the queries, and applies head norms, rotation and factors to queries, keys and values.
    fn norm_and_rotate(
        &self,
        spec: &ModelSpec,
        layer: usize,
        weights: &AttentionWeights<Linear, Vec<f32>>,
        workspace: &mut Workspace,
    ) {
        let Workspace { q, k, v, gates, ones, .. } = workspace;
        let eps = spec.rms_eps as f32;
        if spec.gated_attention {
            split_gates(q, gates, spec.head_dim);
        }
        for (heads, norm) in [(&mut *q, &weights.query_norm), (&mut *k, &weights.key_norm)] {
            if let Some(norm) = norm {
                heads.chunks_exact_mut(norm.len()).for_each(|head| rms_norm_in_place(head, norm, eps));
            }
            self.rotate(heads, spec, layer);
        }
        if spec.head_norms == HeadNorms::WithValues {
            let width = spec.heads(layer).width;
            ones.resize(width, 1.0);
            v.chunks_exact_mut(width).for_each(|head| rms_norm_in_place(head, ones, eps));
        }
        if spec.scales_queries(layer) {
            let width = q.len() / self.rows;
            for (q, &factor) in q.chunks_exact_mut(width).zip(&self.angles.query_factors) {
                scale(q, factor);
            }
        }
    }

    /// Applies the rotary embedding of a layer to `x`, `[rows, heads * head_dim]`.
    fn rotate(&self, x: &mut [f32], spec: &ModelSpec, layer: usize) {
        let Some(rotation) = self.angles.of(spec.layers[layer].rope).filter(|_| !x.is_empty()) else {
            return;
        };
        let half = rotation.cos.len() / self.rows;
        let rotate = match spec.rope_kind {
            RopeKind::Halves => rotate_halves,
            RopeKind::Interleaved => rotate_neighbours,
        };
        for (row, x) in x.chunks_exact_mut(x.len() / self.rows).enumerate() {
            let angles = row * half..(row + 1) * half;
            for head in x.chunks_exact_mut(spec.heads(layer).width) {
                rotate(head, &rotation.cos[angles.clone()], &rotation.sin[angles.clone()]);
            }
        }
    }
}

/// Applies linear layers with one input of some rows, each to an output of its own.
fn project<const N: usize>(
    threads: &Threads,
    x: &[f32],
    quantised: &mut QuantisedRows,
    rows: usize,
    linears: [(&Linear, &mut Vec<f32>); N],
) -> Result<()> {
    let linears = linears.map(|(linear, out)| {
        out.resize(rows * linear.n, 0.0);
        (linear, &mut out[..])
    });
    products(threads, x, quantised, linears, false)
}

/// Moves the gates out of `q`, `[rows, heads, query and gate]`, which keeps the queries.
fn split_gates(q: &mut Vec<f32>, gates: &mut Vec<f32>, head_dim: usize) {
    gates.clear();
    let heads = q.len() / (2 * head_dim);
    for head in 0..heads {
        let from = 2 * head * head_dim;
        gates.extend_from_slice(&q[from + head_dim..from + 2 * head_dim]);
        q.copy_within(from..from + head_dim, head * head_dim);
    }
    q.truncate(heads * head_dim);
}
