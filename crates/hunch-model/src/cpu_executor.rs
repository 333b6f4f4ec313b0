//! Executor for the CPU on the kernels of `hunch-kernels`.
//!
//! Working memory is reused between passes. All steps are row-invariant, so prefill and verification
//! run the same code. Kernels do not belong here.

pub(crate) mod convolution;
pub(crate) mod delta_net;
mod experts;
#[cfg(test)]
mod rollback_tests;
mod sequences;

use std::sync::Arc;

use candle_core::quantized::QMatMul;
use candle_core::{Device, Module, Tensor};

use crate::cache::KvCache;
use crate::cache::checkpoints::DeltaPlan;
use crate::cache::states::StatePlan;
use crate::device::Compute;
use crate::executor::{Executor, LayerStep, SequenceExecutor, Wanted};
use crate::rope::{PassAngles, Rope};
use crate::spec::{Mixer, ModelSpec, RopeKind};
use crate::tensor_names::{Dense, FeedForward, ModelWeights};
use crate::weights::{Embedding, ExpertMatrices, MatrixRows, WeightFile};
use convolution::{ConvolutionInput, convolve};
use delta_net::{DeltaProjections, DeltaSpace, DeltaWeights};
use experts::ExpertSpace;
use hunch_core::model::{LogitRows, Rows, StepOutput, VocabSubset};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::RowMask;
use hunch_kernels::activation::{
    Activation, add_scaled, gate_by_sigmoid, rms_norm, rms_norm_in_place, rotate_halves, rotate_neighbours,
    scale, soft_cap,
};
use hunch_kernels::attention::{Attention, AttentionInput, AttentionShape, VisibleSlots};
use hunch_kernels::experts::ExpertStack;
use hunch_kernels::matmul::{BLOCK_ROWS, Input, Product, multiply, multiply_blocks, multiply_gated};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{Threads, WeightMatrix};
use sequences::CpuSequences;

/// Model on the CPU.
pub(crate) struct CpuExecutor {
    spec: ModelSpec,
    compute: Compute,
    embedding: Arc<Embedding>,
    weights: Arc<ModelWeights<Linear, Vec<f32>, ExpertStack>>,
    rope: Arc<Rope>,
    cache: KvCache,
    pass: Pass,
    taps: Vec<Rows>,
    workspace: Workspace,
}

struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
    n: usize,
}

enum Weight {
    /// Matrix for the CPU kernels.
    Kernel(WeightMatrix),
    /// Matrix for candle. Used for types without a CPU kernel (Q3_K).
    Candle(QMatMul),
}

/// State of the current pass.
struct Pass {
    rows: usize,
    angles: PassAngles,
    visible: VisibleSlots,
    /// Rows of state that short convolutions read and write.
    plan: Option<StatePlan>,
    /// States that gated delta nets read and keep.
    delta_plan: Option<DeltaPlan>,
}

/// Buffers that are reused between passes, `[rows, width]` each.
#[derive(Default)]
struct Workspace {
    /// The residual stream.
    x: Vec<f32>,
    /// Input of the next product.
    h: Vec<f32>,
    quantised: QuantisedRows,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Gates of the output of attention.
    gates: Vec<f32>,
    /// Decays of a gated delta net.
    decays: Vec<f32>,
    delta_net: DeltaSpace,
    gated: Vec<f32>,
    /// Output of a layer's part that is normed or scaled before it joins the residual stream.
    update: Vec<f32>,
    experts: ExpertSpace,
    attention: Attention,
}

impl CpuExecutor {
    /// Loads a model file into memory.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape, or there is not enough memory.
    pub(crate) fn load(file: &WeightFile, spec: &ModelSpec, compute: &Compute) -> Result<Self> {
        let linear = |rows: &MatrixRows| Linear::load(file, rows, compute.threads());
        let experts = |of: &ExpertMatrices| file.expert_stack(of, compute.threads());
        let weights =
            ModelWeights::load(file, spec, linear, |name, shape| values(file, name, shape), experts)?;
        let (table, head) = ((spec.n_vocab, spec.n_embd), weights.head.matrix());
        Ok(Self {
            embedding: Arc::new(file.host_embedding(table, head, compute.threads())?),
            weights: Arc::new(weights),
            rope: Arc::new(Rope::new(file, spec)?),
            cache: KvCache::on_host(spec, spec.context_length, compute.kv()),
            pass: Pass::empty(),
            taps: Vec::new(),
            workspace: Workspace::default(),
            compute: compute.clone(),
            spec: spec.clone(),
        })
    }

    /// Returns the residual stream.
    fn residual(&self) -> Rows {
        Rows::new(self.spec.n_embd, self.workspace.x.clone())
    }

    /// Computes logits of the selected rows, only for the tokens of `vocab_subset` if there is one.
    fn logits(&mut self, rows: LogitRows, vocab_subset: Option<&VocabSubset>) -> Result<Rows> {
        let Workspace { x, h, quantised, .. } = &mut self.workspace;
        let from = match rows {
            LogitRows::None => return Ok(Rows::default()),
            LogitRows::All => 0,
            LogitRows::Last => x.len() - self.spec.n_embd,
        };
        let h = normed(&x[from..], Some(&self.weights.output_norm), self.spec.rms_eps as f32, h);
        let (threads, head) = (self.compute.threads(), &self.weights.head);
        let rest = if vocab_subset.is_some() { f32::NEG_INFINITY } else { 0.0 };
        let mut logits = vec![rest; h.len() / self.spec.n_embd * self.spec.n_vocab];
        if let (Some(matrix), Some(vocab_subset)) = (head.matrix_without_bias(), vocab_subset) {
            quantise_for(threads, &[head], h, quantised);
            multiply_blocks(threads, Input { x: h, quantised }, matrix, vocab_subset.blocks(), &mut logits);
        } else {
            products(threads, h, quantised, [(head, &mut logits)], false)?;
        }
        if self.spec.logit_scale != 1.0 {
            scale(&mut logits, self.spec.logit_scale);
        }
        if let Some(cap) = self.spec.logit_softcap {
            soft_cap(&mut logits, cap);
        }
        Ok(Rows::new(self.spec.n_vocab, logits))
    }

    fn query_key_value(&mut self, index: usize) -> Result<()> {
        self.project(index)?;
        if self.spec.layers[index].mixer != Mixer::Attention {
            return Ok(());
        }
        let Workspace { k, v, .. } = &self.workspace;
        self.cache.write_rows(index, k, v)
    }

    /// Computes queries, keys and values of the pass, or the projections of the mixer in place of attention.
    fn project(&mut self, index: usize) -> Result<()> {
        let (layer, spec, threads) = (&self.weights.layers[index], &self.spec, self.compute.threads());
        let Workspace { x, h, quantised, q, k, v, gates, decays, .. } = &mut self.workspace;
        let eps = spec.rms_eps as f32;
        let h = normed(x, layer.attention_norm.as_deref(), eps, h);
        for (out, linear) in [(&mut *q, &layer.q), (&mut *k, &layer.k), (&mut *v, &layer.v)] {
            out.resize(self.pass.rows * linear.n, 0.0);
        }
        let linears = [(&layer.q, &mut **q), (&layer.k, &mut **k), (&layer.v, &mut **v)];
        products(threads, h, quantised, linears, false)?;
        if let Some(net) = &layer.delta_net {
            if let Some(linear) = &net.decays {
                decays.resize(self.pass.rows * linear.n, 0.0);
                products(threads, h, quantised, [(linear, &mut **decays)], false)?;
            }
            return Ok(());
        }
        if spec.gated_attention {
            split_gates(q, gates, spec.head_dim);
        }
        for (heads, norm) in [(&mut *q, &layer.q_norm), (&mut *k, &layer.k_norm)] {
            if let Some(norm) = norm {
                heads.chunks_exact_mut(norm.len()).for_each(|head| rms_norm_in_place(head, norm, eps));
            }
            self.pass.rotate(heads, spec, index, self.rope.half());
        }
        if layer.convolution.is_some() {
            return Ok(());
        }
        let width = q.len() / self.pass.rows;
        for (q, &factor) in q.chunks_exact_mut(width).zip(&self.pass.angles.query_factors) {
            scale(q, factor);
        }
        Ok(())
    }

    fn attention_shape(&self, layer: usize, capacity: usize) -> AttentionShape {
        AttentionShape {
            n_head: self.spec.n_head,
            n_kv_head: self.spec.n_kv_head,
            head_dim: self.spec.head_dim,
            capacity,
            scale: self.spec.attention_scale,
            softcap: self.spec.attention_softcap,
            window: self.spec.layers[layer].window,
        }
    }

    /// Returns an executor that shares the weights and has its own empty cache.
    fn fork_cpu(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            compute: self.compute.clone(),
            embedding: self.embedding.clone(),
            weights: self.weights.clone(),
            rope: self.rope.clone(),
            cache: KvCache::on_host(&self.spec, self.cache.max_len(), self.cache.kv_type()),
            pass: Pass::empty(),
            taps: Vec::new(),
            workspace: Workspace::default(),
        }
    }

    /// Computes attention, or the mixer in its place.
    fn mix(&mut self, index: usize) -> Result<()> {
        let layer = &self.weights.layers[index];
        if layer.delta_net.is_some() {
            return self.delta_net(index);
        }
        let Some(weights) = &layer.convolution else { return self.attention(index) };
        let no_plan = || Error::Internal("the pass has no plan of states".into());
        let plan = self.pass.plan.as_ref().ok_or_else(no_plan)?;
        let Workspace { h, q, k, v, .. } = &mut self.workspace;
        let input = ConvolutionInput { b: q, c: k, weights };
        convolve(&input, v, plan, self.cache.host_state(index)?, h);
        Ok(())
    }

    fn delta_net(&mut self, index: usize) -> Result<()> {
        let no_plan = || Error::Internal("the pass has no plan of delta nets".into());
        let of_layer = self.weights.layers[index].delta_net.as_ref();
        let (weights, net) = of_layer.zip(self.spec.delta_net).ok_or_else(no_plan)?;
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

    fn attention(&mut self, index: usize) -> Result<()> {
        let (keys, values, capacity) = self.cache.host_layer(index)?;
        let shape = self.attention_shape(index, capacity);
        let Workspace { h, q, gates, attention, .. } = &mut self.workspace;
        h.resize(q.len(), 0.0);
        let sinks = self.weights.layers[index].sinks.as_deref();
        let input = AttentionInput { q, k: keys, v: values, sinks };
        attention.attend(self.compute.threads(), shape, input, &self.pass.visible, h);
        if self.spec.gated_attention {
            gate_by_sigmoid(h, gates);
        }
        Ok(())
    }

    fn attention_output(&mut self, index: usize) -> Result<()> {
        let layer = &self.weights.layers[index];
        let Workspace { x, h, quantised, update, .. } = &mut self.workspace;
        let output = Update { linear: &layer.output, norm: layer.attention_post_norm.as_deref() };
        output.add(&self.compute, &self.spec, h, quantised, update, x)
    }

    fn gate_up(&mut self, index: usize) -> Result<()> {
        let (layer, threads) = (&self.weights.layers[index], self.compute.threads());
        let activation = if self.spec.gelu { Activation::Gelu } else { Activation::Silu };
        let Workspace { x, h, quantised, gated, experts, .. } = &mut self.workspace;
        let h = normed(x, layer.feed_forward_norm.as_deref(), self.spec.rms_eps as f32, h);
        let Dense { gate, up, .. } = match &layer.feed_forward {
            FeedForward::Dense(dense) => dense,
            FeedForward::Mixture(layer) => {
                return experts.gate_up(threads, (layer, self.spec.experts.as_ref()), h, quantised);
            }
        };
        gated.resize(self.pass.rows * gate.n, 0.0);
        if let (Some(gate_matrix), Some(up_matrix)) = (gate.matrix_without_bias(), up.matrix_without_bias()) {
            quantise_for(threads, &[gate, up], h, quantised);
            multiply_gated(threads, Input { x: h, quantised }, gate_matrix, up_matrix, activation, gated);
            return Ok(());
        }
        let mut up_values = vec![0.0; gated.len()];
        products(threads, h, quantised, [(gate, &mut **gated), (up, &mut up_values)], false)?;
        activation.gate(gated, &up_values);
        Ok(())
    }

    fn down(&mut self, index: usize) -> Result<()> {
        let layer = &self.weights.layers[index];
        let Workspace { x, gated, quantised, update, experts, .. } = &mut self.workspace;
        let norm = layer.feed_forward_post_norm.as_deref();
        match &layer.feed_forward {
            FeedForward::Dense(Dense { down, .. }) => {
                let down = Update { linear: down, norm };
                down.add(&self.compute, &self.spec, gated, quantised, update, x)
            }
            FeedForward::Mixture(layer) => {
                update.resize(x.len(), 0.0);
                experts.down(self.compute.threads(), (layer, self.spec.experts.as_ref()), update)?;
                join(&self.spec, norm, update, x);
                Ok(())
            }
        }
    }

    /// Sets the residual stream to the embeddings of `tokens`.
    fn embed(&mut self, tokens: &[TokenId]) -> Result<()> {
        self.workspace.x = self.embedding.host_rows(tokens)?;
        if self.spec.embedding_scale != 1.0 {
            scale(&mut self.workspace.x, self.spec.embedding_scale);
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

// The blocks of a vocabulary subset must match the blocks of the kernel.
const _: () = assert!(VocabSubset::WIDTH == BLOCK_ROWS);

impl Executor for CpuExecutor {
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()> {
        self.cache.reserve(tokens.len())?;
        self.embed(tokens)?;
        self.workspace.experts.begin();
        self.pass = Pass {
            rows: tokens.len(),
            angles: self.rope.angles(mask.positions()),
            visible: VisibleSlots::new(mask),
            plan: self.cache.plan(mask)?,
            delta_plan: self.cache.delta_plan(mask)?,
        };
        Ok(())
    }

    fn step(&mut self, layer: usize, step: LayerStep) -> Result<()> {
        match step {
            LayerStep::QueryKeyValue => self.query_key_value(layer),
            LayerStep::Attention => self.mix(layer),
            LayerStep::AttentionOutput => self.attention_output(layer),
            LayerStep::GateUp => self.gate_up(layer),
            LayerStep::Down => self.down(layer),
        }
    }

    fn tap(&mut self, at: usize, _wanted: Wanted) -> Result<()> {
        self.taps.truncate(at);
        self.taps.push(self.residual());
        Ok(())
    }

    fn results(&mut self, wanted: Wanted, vocab_subset: Option<&VocabSubset>) -> Result<StepOutput> {
        let mut taps = std::mem::take(&mut self.taps);
        taps.truncate(wanted.taps);
        Ok(StepOutput { logits: self.logits(wanted.logits, vocab_subset)?, taps })
    }

    fn fork(&self) -> Box<dyn Executor> {
        Box::new(self.fork_cpu())
    }

    fn sequences(&self, count: usize) -> Option<Box<dyn SequenceExecutor>> {
        // The rows of a pass would need a plan for each sequence. Their decoders take turns.
        let shares = self.spec.attention_layers() == self.spec.n_layer;
        shares.then(|| Box::new(CpuSequences::new(self, count)) as Box<dyn SequenceExecutor>)
    }

    fn host_embedding(&self) -> Option<Arc<Embedding>> {
        Some(self.embedding.clone())
    }

    fn distinct_experts(&self) -> Option<f64> {
        self.workspace.experts.distinct()
    }

    fn host_head(&self) -> Option<WeightMatrix> {
        self.weights.head.matrix_without_bias().cloned()
    }

    fn cache(&self) -> &KvCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }
}

impl Pass {
    fn empty() -> Self {
        let visible = VisibleSlots::new(&RowMask::causal(0, 0));
        Self { rows: 0, angles: PassAngles::default(), visible, plan: None, delta_plan: None }
    }

    /// Applies the rotary embedding of a layer to `x`, `[rows, heads * head_dim]`.
    fn rotate(&self, x: &mut [f32], spec: &ModelSpec, layer: usize, half: usize) {
        let Some(rotation) = self.angles.of(spec.layers[layer].rope) else { return };
        let rotate = match spec.rope_kind {
            RopeKind::Halves => rotate_halves,
            RopeKind::Interleaved => rotate_neighbours,
        };
        for (row, x) in x.chunks_exact_mut(x.len() / self.rows).enumerate() {
            let angles = row * half..(row + 1) * half;
            for head in x.chunks_exact_mut(spec.head_dim) {
                rotate(head, &rotation.cos[angles.clone()], &rotation.sin[angles.clone()]);
            }
        }
    }
}

impl Linear {
    fn load(file: &WeightFile, rows: &MatrixRows, threads: &Threads) -> Result<Self> {
        let weight = match file.matrix(rows, threads)? {
            Some(matrix) => Weight::Kernel(matrix),
            None => Weight::Candle(file.quantised(rows, &Device::Cpu)?),
        };
        Ok(Self { weight, bias: file.bias(rows)?, n: rows.n })
    }

    fn matrix(&self) -> Option<&WeightMatrix> {
        match &self.weight {
            Weight::Kernel(matrix) => Some(matrix),
            Weight::Candle(_) => None,
        }
    }

    /// Returns the matrix if the layer has a kernel and no bias.
    fn matrix_without_bias(&self) -> Option<&WeightMatrix> {
        self.matrix().filter(|_| self.bias.is_none())
    }
}

fn values(file: &WeightFile, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    Ok(file.values(name, shape, &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?)
}

/// Returns the RMS norm of every row of `x`, computed in `h`, or `x` itself without a norm.
fn normed<'a>(x: &'a [f32], weight: Option<&[f32]>, eps: f32, h: &'a mut Vec<f32>) -> &'a [f32] {
    let Some(weight) = weight else { return x };
    h.resize(x.len(), 0.0);
    let width = weight.len();
    for (x, h) in x.chunks_exact(width).zip(h.chunks_exact_mut(width)) {
        rms_norm(x, weight, eps, h);
    }
    h
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

/// Quantises `x` if one of the layers needs it.
fn quantise_for(threads: &Threads, linears: &[&Linear], x: &[f32], quantised: &mut QuantisedRows) {
    if linears.iter().any(|l| l.matrix().is_some_and(WeightMatrix::wants_quantised)) {
        quantised.fill(threads, x);
    }
}

/// Applies linear layers with one input, each to its own output. `add` adds instead of overwriting.
fn products<const N: usize>(
    threads: &Threads,
    x: &[f32],
    quantised: &mut QuantisedRows,
    linears: [(&Linear, &mut [f32]); N],
    add: bool,
) -> Result<()> {
    quantise_for(threads, &linears.each_ref().map(|(linear, _)| *linear), x, quantised);
    let mut kernel_products = Vec::with_capacity(N);
    for (linear, out) in linears {
        match &linear.weight {
            Weight::Kernel(matrix) => {
                kernel_products.push(Product { matrix, bias: linear.bias.as_deref(), out, add });
            }
            Weight::Candle(weight) => candle_product(weight, linear, x, out, add)?,
        }
    }
    multiply(threads, Input { x, quantised }, &mut kernel_products);
    Ok(())
}

fn candle_product(weight: &QMatMul, linear: &Linear, x: &[f32], out: &mut [f32], add: bool) -> Result<()> {
    let rows = out.len() / linear.n;
    let x = Tensor::from_slice(x, (rows, x.len() / rows), &Device::Cpu)?;
    let y = weight.forward(&x)?.flatten_all()?.to_vec1::<f32>()?;
    for (index, (out, value)) in out.iter_mut().zip(y).enumerate() {
        let value = linear.bias.as_ref().map_or(value, |bias| value + bias[index % linear.n]);
        *out = if add { *out + value } else { value };
    }
    Ok(())
}
