//! The decoder layer of a head with its KV cache, on the CPU kernels. Norms before attention belong to the
//! architectures, which differ in them.
//!
//! ```text
//! x = x + output attention(q y, k y, v y)
//! x = x + down (silu(gate z) * up z),   z = RMS norm of x
//! ```
//!
//! y is the input of attention and x the residual stream. The kernels are row-invariant, so rows that are read one by
//! one have the same values as rows that are read together.

use std::sync::Arc;

use hunch_core::model::RowLayout;
use hunch_error::Result;
use hunch_kernels::activation::{Activation, rms_norm, rotate_halves, rotate_neighbours};
use hunch_kernels::attention::{Attention, AttentionInput, AttentionShape, VisibleSlots};
use hunch_kernels::matmul::{Input, multiply_gated};
use hunch_kernels::quantise::QuantisedRows;

use super::config::Config;
use super::linear::{Linear, vector};
use crate::cache::KvCache;
use crate::decoder::row_mask;
use crate::device::Compute;
use crate::rope::RopeTable;
use crate::spec::{LayerSpec, ModelSpec, RopeKind};
use crate::weights::WeightFile;

/// Matrices of the layer, which may have biases.
const MATRICES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
/// Divisors of the rotary frequencies.
pub(super) const FREQUENCIES: &str = "rope_freqs.weight";
/// Norm before the feed-forward network.
const NORM: &str = "post_attention_layernorm";

/// Returns whether a tensor belongs to the layer `prefix`, which has these further norms.
pub(super) fn is_of_layer(name: &str, prefix: &str, norms: &[&str]) -> bool {
    let Some(part) = name.strip_prefix(prefix).and_then(|name| name.strip_prefix('.')) else { return false };
    let matrix = part.strip_suffix(".weight").or_else(|| part.strip_suffix(".bias"));
    let norm = part.strip_suffix(".weight");
    matrix.is_some_and(|part| MATRICES.contains(&part))
        || norm.is_some_and(|part| part == NORM || norms.contains(&part))
        // A copy of the frequencies that follow from the configuration.
        || part == "self_attn.rotary_emb.inv_freq"
}

/// A decoder layer with a cache of its own. Forks share the weights.
pub(super) struct Layer {
    weights: Arc<Weights>,
    compute: Compute,
    cache: KvCache,
    attention: Attention,
    work: Workspace,
}

struct Weights {
    spec: ModelSpec,
    rope: RopeTable,
    q: Linear,
    k: Linear,
    v: Linear,
    output: Linear,
    norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
    bytes: usize,
}

/// Buffers that are reused between passes.
#[derive(Default)]
struct Workspace {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    h: Vec<f32>,
    gated: Vec<f32>,
    quantised: QuantisedRows,
}

impl Layer {
    /// Loads the layer whose tensors begin with `prefix`. Attention has inputs of `width` values. `target` bounds the
    /// context.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(
        file: &WeightFile,
        prefix: &str,
        (config, width): (&Config, usize),
        target: &ModelSpec,
        compute: &Compute,
    ) -> Result<Self> {
        let spec = spec(config, target);
        let scaling = config.rope.scaling;
        let half = config.head_dim / 2;
        let frequency = |i: usize| f64::from(spec.rope_base).powf(-(i as f64) / half as f64);
        // Files of llama.cpp have the divisors themselves.
        let factors = match file.has(FREQUENCIES) {
            true => vector(file, FREQUENCIES, half)?,
            false => (0..half).map(|i| scaling.divisor(frequency(i)) as f32).collect(),
        };
        let (n, ff) = (config.n_embd, config.n_ff);
        let (queries, keys) = (config.n_head * config.head_dim, config.n_kv_head * config.head_dim);
        let load =
            |part: &str, n, k| Linear::load(file, &format!("{prefix}.{part}"), (n, k), compute.threads());
        let mut weights = Weights {
            rope: RopeTable::with_factors(&spec, factors),
            q: load("self_attn.q_proj", queries, width)?,
            k: load("self_attn.k_proj", keys, width)?,
            v: load("self_attn.v_proj", keys, width)?,
            output: load("self_attn.o_proj", n, queries)?,
            norm: vector(file, &format!("{prefix}.{NORM}.weight"), n)?,
            gate: load("mlp.gate_proj", ff, n)?,
            up: load("mlp.up_proj", ff, n)?,
            down: load("mlp.down_proj", n, ff)?,
            bytes: 0,
            spec,
        };
        let w = &weights;
        weights.bytes = [&w.q, &w.k, &w.v].map(|linear| linear.bytes(width)).iter().sum::<usize>()
            + w.output.bytes(queries)
            + w.gate.bytes(n)
            + w.up.bytes(n)
            + w.down.bytes(ff);
        Ok(Self::new(Arc::new(weights), compute))
    }

    fn new(weights: Arc<Weights>, compute: &Compute) -> Self {
        let cache = KvCache::on_host(&weights.spec, weights.spec.context_length, compute.kv());
        let compute = compute.clone();
        Self { weights, compute, cache, attention: Attention::default(), work: Workspace::default() }
    }

    /// Returns a layer on the same weights, with an empty cache.
    pub(super) fn fork(&self) -> Self {
        Self::new(self.weights.clone(), &self.compute)
    }

    /// Returns the width of the residual stream.
    pub(super) fn width(&self) -> usize {
        self.weights.spec.n_embd
    }

    /// Returns the bytes of weights that a row reads.
    pub(super) fn bytes(&self) -> usize {
        self.weights.bytes
    }

    /// Returns the allocated bytes of the cache.
    pub(super) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Drops the rows of the cache from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
    }

    /// Returns the rows in the cache.
    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    /// Runs rows and appends them to the cache. `y` has the inputs of attention, `x` the residual stream `[rows, n]`,
    /// which is replaced by that after the layer.
    ///
    /// # Errors
    /// If the cache is full, memory is short or the layout does not fit. The cache is then unchanged.
    pub(super) fn run(&mut self, y: &[f32], x: &mut [f32], layout: RowLayout<'_>) -> Result<()> {
        let w = self.weights.clone();
        let (threads, spec) = (self.compute.threads(), &w.spec);
        let (n, rows) = (spec.n_embd, x.len() / spec.n_embd);
        let mask = row_mask(self.cache.len(), rows, layout)?;
        self.cache.reserve(rows)?;
        let angles = w.rope.angles(mask.positions());
        let Workspace { q, k, v, h, gated, quantised } = &mut self.work;
        for (linear, out) in [(&w.q, &mut *q), (&w.k, &mut *k), (&w.v, &mut *v)] {
            out.resize(rows * linear.matrix.rows(), 0.0);
            linear.apply(threads, y, quantised, out, false);
        }
        let half = w.rope.half();
        for heads in [&mut *q, &mut *k] {
            let width = heads.len() / rows;
            for (row, heads) in heads.chunks_exact_mut(width).enumerate() {
                let angle = row * half..(row + 1) * half;
                let (cos, sin) = (&angles.cos[angle.clone()], &angles.sin[angle]);
                for head in heads.chunks_exact_mut(spec.head_dim) {
                    match spec.rope_kind {
                        RopeKind::Halves => rotate_halves(head, cos, sin),
                        RopeKind::Interleaved => rotate_neighbours(head, cos, sin),
                    }
                }
            }
        }
        self.cache.write_rows(0, k, v)?;
        let (keys, values, capacity) = self.cache.host_layer(0)?;
        let shape = AttentionShape {
            n_head: spec.n_head,
            n_kv_head: spec.n_kv_head,
            head_dim: spec.head_dim,
            capacity,
            scale: spec.attention_scale,
            softcap: None,
            window: None,
        };
        h.resize(q.len(), 0.0);
        let input = AttentionInput { q, k: keys, v: values, sinks: None };
        self.attention.attend(threads, shape, input, &VisibleSlots::new(&mask), h);
        w.output.apply(threads, h, quantised, x, true);

        h.resize(x.len(), 0.0);
        for (x, h) in x.chunks_exact(n).zip(h.chunks_exact_mut(n)) {
            rms_norm(x, &w.norm, spec.rms_eps as f32, h);
        }
        gated.resize(rows * spec.n_ff, 0.0);
        feed_forward(threads, &w, h, quantised, gated);
        w.down.apply(threads, gated, quantised, x, true);
        self.cache.advance(rows);
        Ok(())
    }
}

/// Computes silu(gate h) * up h.
fn feed_forward(
    threads: &hunch_kernels::Threads,
    w: &Weights,
    h: &[f32],
    quantised: &mut QuantisedRows,
    gated: &mut [f32],
) {
    if w.gate.bias.is_none() && w.up.bias.is_none() {
        if w.gate.matrix.wants_quantised() {
            quantised.fill(threads, h);
        }
        let input = Input { x: h, quantised };
        return multiply_gated(threads, input, &w.gate.matrix, &w.up.matrix, Activation::Silu, gated);
    }
    let mut up = vec![0.0; gated.len()];
    w.gate.apply(threads, h, quantised, gated, false);
    w.up.apply(threads, h, quantised, &mut up, false);
    Activation::Silu.gate(gated, &up);
}

/// Returns the parameters of a layer, for its cache and its rotary embedding.
fn spec(config: &Config, target: &ModelSpec) -> ModelSpec {
    ModelSpec {
        n_layer: 1,
        n_embd: config.n_embd,
        n_ff: config.n_ff,
        experts: None,
        sinks: false,
        n_head: config.n_head,
        n_kv_head: config.n_kv_head,
        head_dim: config.head_dim,
        rms_eps: config.eps,
        rope_kind: config.rope_kind,
        rope_dim: config.head_dim,
        rope_base: config.rope.base,
        rope_scale: 1.0,
        rope_magnitude: 1.0,
        yarn: None,
        attention_scale: 1.0 / (config.head_dim as f32).sqrt(),
        convolution: None,
        layers: vec![LayerSpec::PLAIN],
        ..target.clone()
    }
}
