//! The executor on candle's tensors: Metal's, and on the CPU the readable reference that the fused
//! kernels are tested against.

use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::{rope, rope_i};

use crate::error::{Error, Result};
use crate::model::attention::{attention, mask_bias};
use crate::model::cache::KvCache;
use crate::model::linear::Linear;
use crate::model::mask::RowMask;
use crate::model::pass::{Executor, LayerStep};
use crate::model::rope::RopeTable;
use crate::model::spec::{ModelSpec, RopeKind};
use crate::model::weights::{Embedding, WeightFile};
use crate::model::{LogitRows, Rows};
use crate::token::TokenId;

/// A model on a candle device.
pub struct TensorExecutor {
    spec: ModelSpec,
    device: Device,
    embedding: Embedding,
    layers: Vec<Layer>,
    output_norm: Tensor,
    head: Linear,
    rope: RopeTable,
    cache: KvCache,
    pass: Option<Pass>,
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

/// What belongs to the pass that runs.
struct Pass {
    mask: RowMask,
    bias: Option<Tensor>,
    /// Cosines and sines, `[rows, dim / 2]`.
    rotation: (Tensor, Tensor),
    /// The residual stream.
    x: Tensor,
    /// What the last step made for the next.
    h: Tensor,
}

impl TensorExecutor {
    /// Brings a model file to `device`.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape than the architecture asks for, and when the
    /// device has no room for it.
    pub fn load(file: &WeightFile, spec: &ModelSpec, device: &Device) -> Result<Self> {
        let head = if file.has("output.weight") { "output" } else { "token_embd" };
        Ok(Self {
            embedding: file.embedding("token_embd.weight", spec.n_vocab, spec.n_embd, device)?,
            layers: (0..spec.n_layer).map(|i| Layer::load(file, spec, i, device)).collect::<Result<_>>()?,
            output_norm: file.vector("output_norm.weight", spec.n_embd, device)?,
            head: file.linear(head, spec.n_vocab, spec.n_embd, device)?,
            rope: RopeTable::new(file, spec)?,
            cache: KvCache::on_device(spec, spec.context_length, device),
            pass: None,
            device: device.clone(),
            spec: spec.clone(),
        })
    }
}

impl Executor for TensorExecutor {
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()> {
        self.cache.reserve(tokens.len())?;
        let x = self.embedding.rows(tokens, &self.device)?;
        let angles = self.rope.angles(mask.positions());
        let shape = (tokens.len(), self.rope.half());
        let rotation = (
            Tensor::from_vec(angles.cos, shape, &self.device)?,
            Tensor::from_vec(angles.sin, shape, &self.device)?,
        );
        let bias = mask_bias(mask, &self.device)?;
        self.pass = Some(Pass { mask: mask.clone(), bias, rotation, h: x.clone(), x });
        Ok(())
    }

    fn step(&mut self, index: usize, step: LayerStep) -> Result<()> {
        let Self { spec, layers, cache, pass, .. } = self;
        let (layer, pass) = (&layers[index], running(pass.as_mut())?);
        let eps = spec.rms_eps as f32;
        match step {
            LayerStep::QueryKeyValue => {
                let h = rms_norm(&pass.x, &layer.attention_norm, eps)?;
                let rotation = spec.has_rope(index).then_some(&pass.rotation);
                let k = heads(&layer.k.forward(&h)?, layer.k_norm.as_ref(), spec, rotation)?;
                cache.write_tensors(index, &k, &layer.v.forward(&h)?)?;
                pass.h = heads(&layer.q.forward(&h)?, layer.q_norm.as_ref(), spec, rotation)?;
            }
            LayerStep::Attention => {
                pass.h = attention(&pass.h, cache, index, &pass.mask, pass.bias.as_ref())?;
            }
            LayerStep::AttentionOutput => pass.x = (&pass.x + layer.output.forward(&pass.h)?)?,
            LayerStep::GateUp => {
                let h = rms_norm(&pass.x, &layer.feed_forward_norm, eps)?;
                pass.h = (silu(&layer.gate.forward(&h)?)? * layer.up.forward(&h)?)?;
            }
            LayerStep::Down => pass.x = (&pass.x + layer.down.forward(&pass.h)?)?,
        }
        Ok(())
    }

    fn residual(&self) -> Result<Rows> {
        to_rows(&running(self.pass.as_ref())?.x)
    }

    fn logits(&mut self, rows: LogitRows) -> Result<Rows> {
        let x = &running(self.pass.as_ref())?.x;
        let x = match rows {
            LogitRows::None => return Ok(Rows::default()),
            LogitRows::All => x.clone(),
            LogitRows::Last => x.narrow(0, x.dim(0)? - 1, 1)?.force_contiguous()?,
        };
        let normed = rms_norm(&x, &self.output_norm, self.spec.rms_eps as f32)?;
        to_rows(&self.head.forward(&normed)?)
    }

    fn cache(&self) -> &KvCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }
}

fn running<P>(pass: Option<P>) -> Result<P> {
    pass.ok_or_else(|| Error::Internal("a step of a pass was asked for before it began".into()))
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
}

/// `[rows, n * head_dim]` -> `[1, n, rows, head_dim]`, contiguous, normed and rotated as the
/// architecture has it.
fn heads(
    x: &Tensor,
    norm: Option<&Tensor>,
    spec: &ModelSpec,
    rotation: Option<&(Tensor, Tensor)>,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let x = x.reshape((1, rows, width / spec.head_dim, spec.head_dim))?;
    let x = match norm {
        Some(weight) => rms_norm(&x, weight, spec.rms_eps as f32)?,
        None => x,
    };
    let x = x.transpose(1, 2)?.contiguous()?;
    let Some((cos, sin)) = rotation else {
        return Ok(x);
    };
    Ok(match spec.rope_kind {
        RopeKind::Interleaved => rope_i(&x, cos, sin)?,
        RopeKind::Halves => rope(&x, cos, sin)?,
    })
}

fn to_rows(x: &Tensor) -> Result<Rows> {
    let width = x.dim(D::Minus1)?;
    Ok(Rows::new(width, x.flatten_all()?.to_vec1::<f32>()?))
}
