//! Executor on candle tensors: runs models on Metal that our kernels cannot run.
//!
//! On the CPU it is the readable reference for testing the fused kernels. No kernels of our own here.

use std::sync::Arc;

use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::{rope, rope_i};

use crate::attention::{attention, mask_bias};
use crate::cache::KvCache;
use crate::executor::{Executor, LayerStep};
use crate::linear::Linear;
use crate::rope::RopeTable;
use crate::spec::{ModelSpec, RopeKind};
use crate::tensor_names::ModelWeights;
use crate::weights::{Embedding, WeightFile};
use hunch_core::model::{LogitRows, Rows, VocabSubset};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::RowMask;

/// Model on a candle device.
pub(crate) struct CandleExecutor {
    spec: ModelSpec,
    device: Device,
    embedding: Arc<Embedding>,
    weights: Arc<ModelWeights<Linear, Tensor>>,
    rope: Arc<RopeTable>,
    cache: KvCache,
    pass: Option<Pass>,
}

/// State of the current pass.
struct Pass {
    mask: RowMask,
    bias: Option<Tensor>,
    /// Cosines and sines, `[rows, dim / 2]`.
    rotation: (Tensor, Tensor),
    /// The residual stream.
    x: Tensor,
    /// Output of the last step, input of the next.
    h: Tensor,
}

impl CandleExecutor {
    /// Loads a model file onto `device`.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape, or the device is out of memory.
    pub(crate) fn load(file: &WeightFile, spec: &ModelSpec, device: &Device) -> Result<Self> {
        let linear = |name: &str, n, k| file.linear(name, n, k, device);
        Ok(Self {
            weights: Arc::new(ModelWeights::load(file, spec, linear, |name, len| {
                file.vector(name, len, device)
            })?),
            embedding: Arc::new(file.embedding(spec.n_vocab, spec.n_embd, device)?),
            rope: Arc::new(RopeTable::new(file, spec)?),
            cache: KvCache::on_device(spec, spec.context_length, device),
            pass: None,
            device: device.clone(),
            spec: spec.clone(),
        })
    }
}

impl Executor for CandleExecutor {
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
        let Self { spec, weights, cache, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
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
        to_rows(&active(self.pass.as_ref())?.x)
    }

    fn logits(&mut self, rows: LogitRows, _vocab_subset: Option<&VocabSubset>) -> Result<Rows> {
        let x = &active(self.pass.as_ref())?.x;
        let x = match rows {
            LogitRows::None => return Ok(Rows::default()),
            LogitRows::All => x.clone(),
            LogitRows::Last => x.narrow(0, x.dim(0)? - 1, 1)?.force_contiguous()?,
        };
        let normed = rms_norm(&x, &self.weights.output_norm, self.spec.rms_eps as f32)?;
        to_rows(&self.weights.head.forward(&normed)?)
    }

    fn finish(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }

    fn fork(&self) -> Box<dyn Executor> {
        Box::new(Self {
            spec: self.spec.clone(),
            device: self.device.clone(),
            embedding: self.embedding.clone(),
            weights: self.weights.clone(),
            rope: self.rope.clone(),
            cache: KvCache::on_device(&self.spec, self.cache.max_len(), &self.device),
            pass: None,
        })
    }

    fn cache(&self) -> &KvCache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }
}

fn active<P>(pass: Option<P>) -> Result<P> {
    pass.ok_or_else(|| Error::Internal("no forward pass is active".into()))
}

/// Splits `[rows, n * head_dim]` into heads `[1, n, rows, head_dim]`, contiguous.
///
/// Applies the head norm and the rotary embedding if given.
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
