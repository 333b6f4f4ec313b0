//! The one decoder: every architecture Hunch runs is this code with another [`ModelSpec`].

use std::path::Path;

use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::{rope, rope_i};

use crate::error::{Error, Result};
use crate::model::attention::{attention, mask_bias};
use crate::model::cache::KvCache;
use crate::model::device::Compute;
use crate::model::kernels::activation::gated_silu;
use crate::model::linear::{Linear, with_host_slice};
use crate::model::mask::RowMask;
use crate::model::spec::{ModelSpec, RopeKind};
use crate::model::weights::{Embedding, WeightFile};
use crate::model::{LanguageModel, LayerPlan, LogitRows, Rows, Step, StepOutput};
use crate::token::TokenId;

/// A decoder-only transformer on a device, with its cache.
pub struct Decoder {
    spec: ModelSpec,
    compute: Compute,
    embedding: Embedding,
    layers: Vec<Layer>,
    output_norm: Tensor,
    head: Linear,
    rope: RopeTable,
    cache: KvCache,
}

struct Layer {
    attention_norm: Tensor,
    q: Linear,
    k: Linear,
    v: Linear,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    output: Linear,
    feed_forward_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Decoder {
    /// Loads a model file.
    ///
    /// # Errors
    /// When the file is unsound, unsupported, or does not fit the device.
    pub fn open(path: &Path, compute: &Compute) -> Result<Self> {
        Self::load(&WeightFile::open(path)?, compute)
    }

    /// Loads an opened model file.
    ///
    /// # Errors
    /// As [`Decoder::open`].
    pub fn load(file: &WeightFile, compute: &Compute) -> Result<Self> {
        let spec = ModelSpec::from_gguf(file.gguf())?;
        let device = compute.device();
        let embedding_name = "token_embd.weight";
        let embedding = file.embedding(embedding_name, spec.n_vocab, spec.n_embd, device)?;
        let head = if file.has("output.weight") { "output" } else { "token_embd" };
        let layers =
            (0..spec.n_layer).map(|i| Layer::load(file, &spec, i, device)).collect::<Result<Vec<_>>>()?;
        Ok(Self {
            embedding,
            layers,
            output_norm: file.vector("output_norm.weight", spec.n_embd, device)?,
            head: file.linear(head, spec.n_vocab, spec.n_embd, device)?,
            rope: RopeTable::new(file, &spec)?,
            cache: KvCache::new(&spec, spec.context_length, device),
            compute: compute.clone(),
            spec,
        })
    }

    fn check_step(&self, step: &Step<'_>) -> Result<()> {
        if step.tokens.is_empty() {
            return Err(Error::Internal("a pass needs at least one token".into()));
        }
        if let Some(id) = step.tokens.iter().find(|&&id| id as usize >= self.spec.n_vocab) {
            return Err(Error::invalid(format!(
                "Token {id} is outside this model's vocabulary of {} tokens.",
                self.spec.n_vocab
            )));
        }
        if let Some(tap) = step.taps.iter().find(|&&tap| tap >= self.spec.n_layer) {
            return Err(Error::Internal(format!("there is no layer {tap} to tap")));
        }
        Ok(())
    }

    fn pass(&mut self, step: Step<'_>) -> Result<StepOutput> {
        self.check_step(&step)?;
        let rows = step.tokens.len();
        let device = self.compute.device().clone();
        let mask = RowMask::new(self.cache.len(), rows, step.layout)?;
        self.cache.reserve(rows)?;
        let rotation = self.rope.rows(mask.positions(), &device)?;
        let bias = mask_bias(&mask, &device)?;
        let mut taps = vec![Rows::default(); step.taps.len()];

        let mut x = self.embedding.rows(step.tokens, &device)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let runs = match step.layers {
                LayerPlan::All => true,
                LayerPlan::Exit(n) => i < n,
                LayerPlan::Skip(skipped) => skipped.binary_search(&i).is_err(),
            };
            if runs {
                let pass = LayerPass {
                    spec: &self.spec,
                    index: i,
                    rotation: &rotation,
                    mask: &mask,
                    bias: bias.as_ref(),
                };
                x = layer.forward(&x, &pass, &mut self.cache)?;
            }
            for (rows, _) in taps.iter_mut().zip(step.taps).filter(|(_, tap)| **tap == i) {
                *rows = to_rows(&x)?;
            }
        }
        let logits = match step.logits {
            LogitRows::None => Rows::default(),
            LogitRows::All => self.logits(&x)?,
            LogitRows::Last => self.logits(&x.narrow(0, rows - 1, 1)?.force_contiguous()?)?,
        };
        self.cache.advance(rows);
        Ok(StepOutput { logits, taps })
    }

    fn logits(&self, x: &Tensor) -> Result<Rows> {
        let normed = rms_norm(x, &self.output_norm, self.spec.rms_eps as f32)?;
        to_rows(&self.head.forward(&normed)?)
    }
}

impl LanguageModel for Decoder {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn cache_len(&self) -> usize {
        self.cache.len()
    }

    fn prefill_rows(&self) -> usize {
        // candle's Metal product works in tiles of 32 rows and reads all weights for each pass; the
        // CPU's is as fast at 32 rows as at more.
        if self.compute.device().is_metal() { 256 } else { 32 }
    }

    fn forward(&mut self, step: Step<'_>) -> Result<StepOutput> {
        let compute = self.compute.clone();
        compute.install(|| self.pass(step))
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.cache.truncate(len);
        Ok(())
    }

    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        self.cache.keep_rows(base, rows)
    }
}

/// What a layer needs to know of the pass it is part of.
struct LayerPass<'a> {
    spec: &'a ModelSpec,
    index: usize,
    rotation: &'a (Tensor, Tensor),
    mask: &'a RowMask,
    bias: Option<&'a Tensor>,
}

impl Layer {
    fn load(file: &WeightFile, spec: &ModelSpec, index: usize, device: &Device) -> Result<Self> {
        let name = |part: &str| format!("blk.{index}.{part}");
        let linear = |part: &str, n, k| file.linear(&name(part), n, k, device);
        let norm = |part: &str, n| file.vector(&name(part), n, device);
        let head_norm = |part: &str| {
            let weight = name(part);
            file.has(&weight).then(|| file.vector(&weight, spec.head_dim, device)).transpose()
        };
        let (q_width, kv_width) = (spec.n_head * spec.head_dim, spec.n_kv_head * spec.head_dim);
        Ok(Self {
            attention_norm: norm("attn_norm.weight", spec.n_embd)?,
            q: linear("attn_q", q_width, spec.n_embd)?,
            k: linear("attn_k", kv_width, spec.n_embd)?,
            v: linear("attn_v", kv_width, spec.n_embd)?,
            q_norm: head_norm("attn_q_norm.weight")?,
            k_norm: head_norm("attn_k_norm.weight")?,
            output: linear("attn_output", spec.n_embd, q_width)?,
            feed_forward_norm: norm("ffn_norm.weight", spec.n_embd)?,
            gate: linear("ffn_gate", spec.n_ff, spec.n_embd)?,
            up: linear("ffn_up", spec.n_ff, spec.n_embd)?,
            down: linear("ffn_down", spec.n_embd, spec.n_ff)?,
        })
    }

    fn forward(&self, x: &Tensor, pass: &LayerPass<'_>, cache: &mut KvCache) -> Result<Tensor> {
        let eps = pass.spec.rms_eps as f32;
        let h = rms_norm(x, &self.attention_norm, eps)?;
        let q = heads(&self.q.forward(&h)?, self.q_norm.as_ref(), pass.spec.n_head, pass)?;
        let k = heads(&self.k.forward(&h)?, self.k_norm.as_ref(), pass.spec.n_kv_head, pass)?;
        let v = self.v.forward(&h)?;
        cache.write(pass.index, &k, &v)?;
        let attended = attention(&q, cache, pass.index, pass.mask, pass.bias)?;
        let x = (x + self.output.forward(&attended)?)?;
        let h = rms_norm(&x, &self.feed_forward_norm, eps)?;
        let gated = gated(&self.gate.forward(&h)?, &self.up.forward(&h)?)?;
        Ok((x + self.down.forward(&gated)?)?)
    }
}

/// silu(gate) * up. candle's own operations on the CPU wake a second pool of threads that spins
/// against ours.
fn gated(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !gate.device().is_cpu() {
        return Ok((silu(gate)? * up)?);
    }
    let out = with_host_slice(gate, |g| with_host_slice(up, |u| gated_silu(g, u)))??;
    Ok(Tensor::from_vec(out, gate.shape(), gate.device())?)
}

/// `[rows, n * head_dim]` -> `[1, n, rows, head_dim]`, contiguous, normed and rotated as the
/// architecture has it.
fn heads(x: &Tensor, norm: Option<&Tensor>, n: usize, pass: &LayerPass<'_>) -> Result<Tensor> {
    let rows = x.dim(0)?;
    let x = x.reshape((1, rows, n, pass.spec.head_dim))?;
    let x = match norm {
        Some(weight) => rms_norm(&x, weight, pass.spec.rms_eps as f32)?,
        None => x,
    };
    let x = x.transpose(1, 2)?.contiguous()?;
    if !pass.spec.has_rope(pass.index) {
        return Ok(x);
    }
    let (cos, sin) = pass.rotation;
    Ok(match pass.spec.rope_kind {
        RopeKind::Interleaved => rope_i(&x, cos, sin)?,
        RopeKind::Halves => rope(&x, cos, sin)?,
    })
}

fn to_rows(x: &Tensor) -> Result<Rows> {
    let width = x.dim(D::Minus1)?;
    Ok(Rows::new(width, x.flatten_all()?.to_vec1::<f32>()?))
}

/// The angles of the rotary embedding (Su et al., arXiv 2104.09864): frequency i is
/// base^(-2i / dim), divided by Llama 3's per-frequency factors (`rope_freqs.weight`) where the
/// model has them.
struct RopeTable {
    frequencies: Vec<f64>,
}

impl RopeTable {
    fn new(file: &WeightFile, spec: &ModelSpec) -> Result<Self> {
        let half = spec.rope_dim / 2;
        let factors = if file.has("rope_freqs.weight") {
            file.vector("rope_freqs.weight", half, &Device::Cpu)?.to_vec1::<f32>()?
        } else {
            vec![1.0; half]
        };
        let frequencies = factors
            .iter()
            .enumerate()
            .map(|(i, &factor)| {
                let exponent = -2.0 * i as f64 / spec.rope_dim as f64;
                f64::from(spec.rope_base).powf(exponent) / f64::from(factor) / f64::from(spec.rope_scale)
            })
            .collect();
        Ok(Self { frequencies })
    }

    /// Cosines and sines `[rows, dim / 2]` of the positions.
    fn rows(&self, positions: impl Iterator<Item = usize>, device: &Device) -> Result<(Tensor, Tensor)> {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for frequency in &self.frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        let half = self.frequencies.len();
        let rows = cos.len() / half;
        Ok((Tensor::from_vec(cos, (rows, half), device)?, Tensor::from_vec(sin, (rows, half), device)?))
    }
}

/// The arg max of one row of logits, the lowest token on ties.
pub fn argmax(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (i, &value) in logits.iter().enumerate() {
        if value > logits[best] {
            best = i;
        }
    }
    best as TokenId
}
