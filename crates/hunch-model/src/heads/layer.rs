//! A decoder layer of a head with its KV cache, on the CPU kernels. Norms before attention belong to the
//! architectures, which differ in them.
//!
//! ```text
//! x = x + output attention(q y, k y, v y)
//! x = x + down (silu(gate z) * up z),   z = RMS norm of x
//! ```
//!
//! y is the input of attention and x the residual stream. If the file has norms of the heads of queries and keys, they
//! are applied before the rotation (Qwen3). The kernels are row-invariant, so rows that are read one by
//! one have the same values as rows that are read together.

use std::sync::Arc;

use hunch_core::model::RowLayout;
use hunch_error::Result;
use hunch_kernels::activation::{Activation, rms_norm, rms_norm_in_place, rotate_halves, rotate_neighbours};
use hunch_kernels::attention::{Attention, AttentionInput, AttentionShape, VisibleSlots};
use hunch_kernels::matmul::{ProductInput, multiply_gated};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{LayerWindow, RowMask};

use super::config::LayerConfig;
use super::linear::{Linear, vector};
use crate::cache::KvCache;
use crate::decoder::row_mask;
use crate::device::Compute;
use crate::rope::{Angles, RopeTable};
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
/// Norms of the heads of queries and keys, which not all layers have.
pub(super) const HEAD_NORMS: [&str; 2] = ["self_attn.q_norm", "self_attn.k_norm"];

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

/// Positions that the rows of a block see in a layer. They follow the rows of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockAttention {
    /// Number of positions to either side of a row that it sees, its own included. `None` for all.
    pub(super) window: Option<usize>,
    /// Rows do not see later ones.
    pub(super) causal: bool,
}

impl BlockAttention {
    /// Returns the mask of a block after `cached` rows, without the limit before each row.
    fn mask(self, cached: usize, rows: usize) -> Result<RowMask> {
        let ahead =
            if self.causal { 0 } else { self.window.map_or(usize::MAX, |window| window.saturating_sub(1)) };
        Ok(RowMask::block(cached, rows, ahead)?)
    }
}

/// Decoder layer with a cache of its own. Forks share the weights.
pub(super) trait CachedLayer: Send + 'static {
    /// Returns the width of the residual stream.
    fn width(&self) -> usize;
    /// Returns a layer on the same weights, with an empty cache.
    fn fork(&self) -> Self;
    /// Runs rows and appends them to the cache. `y` has the inputs of attention, `x` the residual stream `[rows, n]`,
    /// which is replaced by that after the layer.
    ///
    /// # Errors
    /// If the cache is full, memory is short or the layout does not fit. The cache is then unchanged.
    fn run(&mut self, y: &[f32], x: &mut Vec<f32>, layout: RowLayout<'_>) -> Result<()>;
    /// Returns the rows in the cache.
    fn len(&self) -> usize;
    /// Drops the rows of the cache from `len` on.
    fn truncate(&mut self, len: usize);
    /// Returns the bytes of weights that a row reads.
    fn bytes(&self) -> usize;
    /// Returns the allocated bytes of the cache.
    fn cache_bytes(&self) -> usize;
    /// Returns the bytes of the cache for a token.
    fn cache_per_token(&self) -> usize;
}

/// A decoder layer of a published head.
pub(super) struct DecoderLayer {
    weights: Arc<DecoderLayerWeights>,
    compute: Compute,
    cache: KvCache,
    attention: Attention,
    work: Workspace,
}

struct DecoderLayerWeights {
    spec: ModelSpec,
    rope: RopeTable,
    q: Linear,
    k: Linear,
    v: Linear,
    /// Norms of the heads of queries and keys, `[head_dim]` each.
    head_norms: [Option<Vec<f32>>; 2],
    output: Linear,
    norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
    /// Values of an input of attention.
    inputs: usize,
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

impl DecoderLayer {
    /// Loads the layer whose tensors begin with `prefix`. Attention has inputs of `width` values. `target` bounds the
    /// context.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(
        file: &WeightFile,
        prefix: &str,
        (config, width): (&LayerConfig, usize),
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
        let head_norm = |part: &str| -> Result<Option<Vec<f32>>> {
            let name = format!("{prefix}.{part}.weight");
            if file.has(&name) { vector(file, &name, config.head_dim).map(Some) } else { Ok(None) }
        };
        let [q_norm, k_norm] = HEAD_NORMS;
        let mut weights = DecoderLayerWeights {
            rope: RopeTable::with_factors(&spec, factors),
            q: load("self_attn.q_proj", queries, width)?,
            k: load("self_attn.k_proj", keys, width)?,
            v: load("self_attn.v_proj", keys, width)?,
            head_norms: [head_norm(q_norm)?, head_norm(k_norm)?],
            output: load("self_attn.o_proj", n, queries)?,
            norm: vector(file, &format!("{prefix}.{NORM}.weight"), n)?,
            gate: load("mlp.gate_proj", ff, n)?,
            up: load("mlp.up_proj", ff, n)?,
            down: load("mlp.down_proj", n, ff)?,
            inputs: width,
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

    fn new(weights: Arc<DecoderLayerWeights>, compute: &Compute) -> Self {
        let cache = KvCache::on_host(&weights.spec, weights.spec.context_length, compute.kv());
        let compute = compute.clone();
        Self { weights, compute, cache, attention: Attention::default(), work: Workspace::default() }
    }

    /// As [`run`](Block::run), with rows that see the positions of `attention`.
    ///
    /// # Errors
    /// As [`run`](Block::run).
    pub(super) fn run_block(&mut self, y: &[f32], x: &mut [f32], attention: BlockAttention) -> Result<()> {
        let mask = attention.mask(self.cache.len(), x.len() / self.width())?;
        self.run_masked(y, x, &mask, attention.window)
    }

    /// Appends the keys and values of rows to the cache. `y` has the inputs of attention.
    ///
    /// # Errors
    /// If the cache is full or memory is short. The cache is then unchanged.
    pub(super) fn append(&mut self, y: &[f32]) -> Result<()> {
        let (len, rows) = (self.cache.len(), y.len() / self.weights.inputs);
        self.write(y, rows, &self.weights.rope.angles(len..len + rows))?;
        self.cache.advance(rows);
        Ok(())
    }

    /// Writes the keys and values of rows behind the cache, which does not grow.
    fn write(&mut self, y: &[f32], rows: usize, angles: &Angles) -> Result<()> {
        self.cache.reserve(rows)?;
        let w = &self.weights;
        let Workspace { k, v, quantised, .. } = &mut self.work;
        for (linear, out) in [(&w.k, &mut *k), (&w.v, &mut *v)] {
            out.resize(rows * linear.matrix.rows(), 0.0);
            linear.apply(self.compute.threads(), y, quantised, out, false);
        }
        w.place(k, w.head_norms[1].as_deref(), angles);
        self.cache.write_rows(0, k, v)
    }

    fn run_masked(&mut self, y: &[f32], x: &mut [f32], mask: &RowMask, window: Option<usize>) -> Result<()> {
        let w = self.weights.clone();
        let angles = w.rope.angles(mask.positions());
        self.write(y, mask.rows(), &angles)?;
        let (threads, spec) = (self.compute.threads(), &w.spec);
        let (n, rows) = (spec.n_embd, mask.rows());
        let Workspace { q, h, gated, quantised, .. } = &mut self.work;
        q.resize(rows * w.q.matrix.rows(), 0.0);
        w.q.apply(threads, y, quantised, q, false);
        w.place(q, w.head_norms[0].as_deref(), &angles);
        let (keys, values, capacity) = self.cache.host_layer(0)?;
        let shape = AttentionShape {
            n_head: spec.n_head,
            n_kv_head: spec.n_kv_head,
            head_dim: spec.head_dim,
            capacity,
            scale: spec.attention_scale,
            softcap: None,
            window: window.map(LayerWindow::Last),
        };
        h.resize(q.len(), 0.0);
        let input = AttentionInput { q, k: keys, v: values, sinks: None };
        self.attention.attend(threads, shape, input, &VisibleSlots::new(mask), h);
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

impl CachedLayer for DecoderLayer {
    fn fork(&self) -> Self {
        Self::new(self.weights.clone(), &self.compute)
    }

    fn width(&self) -> usize {
        self.weights.spec.n_embd
    }

    fn bytes(&self) -> usize {
        self.weights.bytes
    }

    fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn cache_per_token(&self) -> usize {
        let spec = &self.weights.spec;
        2 * spec.n_kv_head * spec.head_dim * self.cache.kv_type().bytes()
    }

    fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn run(&mut self, y: &[f32], x: &mut Vec<f32>, layout: RowLayout<'_>) -> Result<()> {
        let rows = x.len() / self.width();
        let mask = row_mask(self.cache.len(), rows, layout)?;
        self.run_masked(y, x, &mask, None)
    }
}

impl DecoderLayerWeights {
    /// Norms the heads of queries or keys, and rotates them by the angles of their rows.
    fn place(&self, heads: &mut [f32], norm: Option<&[f32]>, angles: &Angles) {
        let half = self.rope.half();
        let width = heads.len() / (angles.cos.len() / half).max(1);
        let rows = heads.chunks_exact_mut(width.max(1));
        for (heads, (cos, sin)) in rows.zip(angles.cos.chunks_exact(half).zip(angles.sin.chunks_exact(half)))
        {
            for head in heads.chunks_exact_mut(self.spec.head_dim) {
                if let Some(norm) = norm {
                    rms_norm_in_place(head, norm, self.spec.rms_eps as f32);
                }
                match self.spec.rope_kind {
                    RopeKind::Halves => rotate_halves(head, cos, sin),
                    RopeKind::Interleaved => rotate_neighbours(head, cos, sin),
                }
            }
        }
    }
}

/// Computes silu(gate h) * up h.
fn feed_forward(
    threads: &hunch_kernels::Threads,
    w: &DecoderLayerWeights,
    h: &[f32],
    quantised: &mut QuantisedRows,
    gated: &mut [f32],
) {
    if w.gate.bias.is_none() && w.up.bias.is_none() {
        if w.gate.matrix.wants_quantised() {
            quantised.fill(threads, h);
        }
        let input = ProductInput { x: h, quantised };
        return multiply_gated(threads, input, &w.gate.matrix, &w.up.matrix, Activation::Silu, gated);
    }
    let mut up = vec![0.0; gated.len()];
    w.gate.apply(threads, h, quantised, gated, false);
    w.up.apply(threads, h, quantised, &mut up, false);
    Activation::Silu.gate(gated, &up);
}

/// Returns the parameters of a layer, for its cache and its rotary embedding.
fn spec(config: &LayerConfig, target: &ModelSpec) -> ModelSpec {
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
        delta_net: None,
        gated_attention: false,
        mtp: None,
        layers: vec![LayerSpec::PLAIN],
        ..target.clone()
    }
}
