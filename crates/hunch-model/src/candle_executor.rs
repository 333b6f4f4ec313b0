//! Executor on candle tensors: runs models on Metal that our kernels cannot run.
//!
//! On the CPU it is the readable reference for testing the fused kernels. No kernels of our own here.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};
use candle_nn::ops::{rms_norm, silu};
use candle_nn::rotary_emb::{rope, rope_i};

use crate::attention::{ScoreScaling, attention, mask_bias};
use crate::cache::KvCache;
use crate::cache::checkpoints::{DeltaMemory, DeltaPlan};
use crate::cache::convolution_states::ConvolutionPlan;
use crate::cpu_executor::convolution::{ConvolutionInput, convolve};
use crate::cpu_executor::delta_net::{DeltaProjections, DeltaSpace, DeltaWeights};
use crate::device::Compute;
use crate::executor::{Executor, LayerStep, WantedResults};
use crate::linear::Linear;
use crate::rope::{PassAngles, Rope};
use crate::spec::{
    DeltaNet, HeadNorms, LAYER_EMBEDDING_SCALE, LAYER_EMBEDDING_TABLE, Mixer, ModelSpec, RopeKind,
};
use crate::tensor_names::{
    ConvolutionWeights, DeltaNetWeights, Dense, FeedForward, MixerWeights, Mixture, ModelWeights, Parallel,
};
use crate::weights::{Embedding, MatrixRows, WeightFile};
use hunch_core::model::{LogitRows, PassOutput, Rows, VocabSubset};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::activation::{CLAMPED_BOUND, CLAMPED_SLOPE};
use hunch_kernels::{LayerWindow, RowMask};

/// Model on a candle device.
pub(crate) struct CandleExecutor {
    spec: ModelSpec,
    device: Device,
    /// Threads for what the host computes.
    compute: Compute,
    embedding: Arc<Embedding>,
    weights: Arc<ModelWeights<Linear, Tensor, Vec<Linear>>>,
    /// Table of the layers' own embeddings, in host memory.
    layer_embedding: Option<Arc<Embedding>>,
    rope: Arc<Rope>,
    cache: KvCache,
    pass: Option<CandlePass>,
}

/// State of the current pass.
struct CandlePass {
    mask: RowMask,
    /// Masks of the layers with a window, and of the others.
    biases: HashMap<Option<LayerWindow>, Option<Tensor>>,
    /// Cosines and sines, `[rows, dim / 2]`.
    rotation: PassAngles<(Tensor, Tensor)>,
    /// Factors of the queries, `[1, 1, rows, 1]`.
    query_factors: Option<Tensor>,
    /// Rows of state that short convolutions read and write.
    convolution_plan: Option<ConvolutionPlan>,
    /// States that gated delta nets read and keep.
    delta_plan: Option<DeltaPlan>,
    /// Gates of the output of attention, `[rows, n_head * head_dim]`.
    gate: Option<Tensor>,
    /// Inputs of the layers' own embeddings, `[n_layer, rows, width]`.
    layer_embedding: Option<Tensor>,
    /// The residual stream.
    x: Tensor,
    /// Output of the last step, input of the next.
    h: Tensor,
    /// Residual streams that were kept.
    taps: Vec<Tensor>,
}

impl CandleExecutor {
    /// Loads a model file onto the device of `compute`.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape, or the device is out of memory.
    pub(crate) fn load(file: &WeightFile, spec: &ModelSpec, compute: &Compute) -> Result<Self> {
        let device = compute.device();
        let table = spec.layer_embedding.map(|of| {
            let size = (spec.n_vocab, spec.n_layer * of.width);
            file.host_table(LAYER_EMBEDDING_TABLE, size, compute.threads()).map(Arc::new)
        });
        let linear = |rows: &MatrixRows| file.linear(rows, device);
        Ok(Self {
            weights: Arc::new(ModelWeights::load(
                file,
                spec,
                linear,
                |name, shape| file.values(name, shape, device),
                |len| Ok(Tensor::ones(len, DType::F32, device)?),
                |of| file.expert_linears(of, device),
            )?),
            layer_embedding: table.transpose()?,
            embedding: Arc::new(file.embedding(spec.n_vocab, spec.n_embd, device)?),
            rope: Arc::new(Rope::new(file, spec)?),
            cache: KvCache::on_device(spec, spec.context_length, device),
            pass: None,
            device: device.clone(),
            compute: compute.clone(),
            spec: spec.clone(),
        })
    }

    /// Computes the inputs of the layers' own embeddings from the scaled embeddings of the tokens. `None` for models
    /// without.
    fn layer_embedding_inputs(&self, tokens: &[TokenId], x: &Tensor) -> Result<Option<Tensor>> {
        let Some((table, input)) = self.layer_embedding.as_ref().zip(self.weights.layer_embedding.as_ref())
        else {
            return Ok(None);
        };
        let (layers, width) = (self.spec.n_layer, input.norm.dim(0)?);
        let of_tokens = (table.rows(tokens, &self.device)? * (width as f64).sqrt())?;
        let projected = (input.projection.forward(x)? / (self.spec.n_embd as f64).sqrt())?;
        let projected = projected.reshape((tokens.len() * layers, width))?;
        let projected = rms_norm(&projected, &input.norm, self.spec.rms_eps as f32)?;
        let sum = (projected + of_tokens.reshape((tokens.len() * layers, width))?)?;
        let inputs = scaled(sum, LAYER_EMBEDDING_SCALE)?.reshape((tokens.len(), layers, width))?;
        Ok(Some(inputs.transpose(0, 1)?.contiguous()?))
    }

    /// Computes logits of the selected rows.
    fn logits(&self, rows: LogitRows) -> Result<Rows> {
        let x = &active(self.pass.as_ref())?.x;
        let x = match rows {
            LogitRows::None => return Ok(Rows::default()),
            LogitRows::All => x.clone(),
            LogitRows::Last => x.narrow(0, x.dim(0)? - 1, 1)?.force_contiguous()?,
        };
        let normed = rms_norm(&x, &self.weights.output_norm, self.spec.rms_eps as f32)?;
        let logits = self.weights.head.forward(&normed)?;
        let logits = scaled(logits, self.spec.logit_scale)?;
        to_rows(&match self.spec.logit_softcap.map(f64::from) {
            Some(cap) => ((logits / cap)?.tanh()? * cap)?,
            None => logits,
        })
    }

    /// Projects the residual stream to queries, keys and values, rotates them, and writes keys and values to the cache.
    fn project(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, cache, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        let h = normed(&pass.x, layer.mixer_norm.as_ref(), spec)?;
        let rotation = pass.rotation.of(spec.layers[index].rope);
        let width = spec.heads(index).width;
        let attention = layer.mixer.attention()?;
        if let Some(linear) = &attention.keys {
            let projected = linear.forward(&h)?;
            let v = match &attention.values {
                Some(linear) => linear.forward(&h)?,
                None => projected.clone(),
            };
            let v = if spec.head_norms == HeadNorms::WithValues { unit_normed(&v, width, spec)? } else { v };
            let k = heads(&projected, attention.key_norm.as_ref(), (spec, width), rotation)?;
            cache.write_tensors(index, &k, &v)?;
        }
        let mut q = attention.queries.forward(&h)?;
        if spec.gated_attention {
            let rows = q.dim(0)?;
            let both = q.reshape((rows, spec.n_head, 2, width))?;
            let part = |at: usize| both.narrow(2, at, 1)?.contiguous()?.reshape((rows, spec.n_head * width));
            (q, pass.gate) = (part(0)?, Some(candle_nn::ops::sigmoid(&part(1)?)?));
        }
        let q = heads(&q, attention.query_norm.as_ref(), (spec, width), rotation)?;
        pass.h = match &pass.query_factors {
            Some(factors) if spec.scales_queries(index) => q.broadcast_mul(factors)?,
            _ => q,
        };
        Ok(())
    }

    /// Runs the short convolution of a layer.
    fn convolve(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, cache, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        let h = normed(&pass.x, layer.mixer_norm.as_ref(), spec)?;
        let MixerWeights::ShortConvolution(weights) = &layer.mixer else { return Err(other_mixer()) };
        let ConvolutionWeights { b, c, x, kernel } = weights;
        let inputs = [b, c, x].map(|linear| linear.forward(&h));
        let state = cache.host_convolution_state(index)?;
        pass.h = convolved(inputs, kernel, active(pass.convolution_plan.as_ref())?, state)?;
        Ok(())
    }

    /// Runs the gated delta net of a layer.
    fn run_delta_net(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, cache, pass, compute, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        let h = normed(&pass.x, layer.mixer_norm.as_ref(), spec)?;
        let MixerWeights::DeltaNet(net) = &layer.mixer else { return Err(other_mixer()) };
        let sizes = active(spec.delta_net)?;
        let inputs = [&net.channels, &net.gates, &net.strengths].map(|linear| linear.forward(&h));
        let decays = net.decays.as_ref().map(|linear| linear.forward(&h)).transpose()?;
        let place = (&*compute, active(pass.delta_plan.as_ref())?, cache.delta_memory(index)?);
        pass.h = delta_net((net, sizes, spec.rms_eps as f32), inputs, decays, place)?;
        Ok(())
    }

    /// Attends to the keys in the cache.
    fn attend(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, cache, pass, .. } = self;
        let pass = active(pass.as_mut())?;
        let bias = pass.biases.get(&spec.layers[index].visible()).and_then(Option::as_ref);
        let scores = ScoreScaling {
            scale: spec.attention_scale,
            softcap: spec.attention_softcap,
            sinks: weights.layers[index].mixer.attention()?.sinks.as_ref(),
        };
        pass.h = attention(&pass.h, cache, spec.key_layer(index), &pass.mask, bias, scores)?;
        if let Some(gate) = pass.gate.take() {
            pass.h = (&pass.h * gate)?;
        }
        Ok(())
    }

    /// Adds the output of attention, or of the mixer in its place, to the residual stream.
    fn add_attention(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        let update = layer.output.forward(&pass.h)?;
        pass.x = added(&pass.x, &update, layer.mixer_post_norm.as_ref(), spec)?;
        Ok(())
    }

    /// Norms the residual stream, and computes the gated values of a dense network.
    fn start_feed_forward(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        let h = normed(&pass.x, layer.feed_forward_norm.as_ref(), spec)?;
        pass.h = match &layer.feed_forward {
            FeedForward::Dense(Dense { gate, up, .. })
            | FeedForward::Mixture(Mixture {
                parallel: Some(Parallel { dense: Dense { gate, up, .. }, .. }),
                ..
            }) => gated(&h, gate, up, spec)?,
            FeedForward::Mixture(_) => h,
        };
        Ok(())
    }

    /// Adds the output of the feed-forward network to the residual stream.
    fn add_feed_forward(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        let update = match &layer.feed_forward {
            FeedForward::Dense(Dense { down, .. }) => down.forward(&pass.h)?,
            FeedForward::Mixture(mixture) => match &mixture.parallel {
                None => of_experts(&pass.h, &pass.h, mixture, spec)?,
                Some(Parallel { dense, post_norm, experts_norm, experts_post_norm, router_norm }) => {
                    let of_dense = normed(&dense.down.forward(&pass.h)?, Some(post_norm), spec)?;
                    let input = normed(&pass.x, Some(experts_norm), spec)?;
                    let of_router = normed(&pass.x, Some(router_norm), spec)?;
                    let of_experts = of_experts(&input, &of_router, mixture, spec)?;
                    (of_dense + normed(&of_experts, Some(experts_post_norm), spec)?)?
                }
            },
        };
        pass.x = added(&pass.x, &update, layer.feed_forward_post_norm.as_ref(), spec)?;
        Ok(())
    }

    /// Adds the gated embedding of the layer's own to the residual stream, and scales the stream.
    fn add_layer_embedding(&mut self, index: usize) -> Result<()> {
        let Self { spec, weights, pass, .. } = self;
        let (layer, pass) = (&weights.layers[index], active(pass.as_mut())?);
        if let Some((own, inputs)) = layer.layer_embedding.as_ref().zip(pass.layer_embedding.as_ref()) {
            let gate = own.gate.forward(&pass.x)?;
            let gate = if spec.gelu { gate.gelu()? } else { silu(&gate)? };
            let gated = (gate * inputs.get(index)?)?;
            let update = own.projection.forward(&gated)?;
            pass.x = added(&pass.x, &update, Some(&own.post_norm), spec)?;
        }
        if let Some(factor) = &layer.output_scale {
            pass.x = pass.x.broadcast_mul(factor)?;
        }
        Ok(())
    }
}

impl Executor for CandleExecutor {
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()> {
        self.cache.reserve(tokens.len())?;
        let x = scaled(self.embedding.rows(tokens, &self.device)?, self.spec.embedding_scale)?;
        let rows = tokens.len();
        let tensor = |values: Vec<f32>| {
            let half = values.len() / rows;
            Tensor::from_vec(values, (rows, half), &self.device)
        };
        let rotation = self
            .rope
            .angles(mask.positions())
            .try_map(|angles| Ok((tensor(angles.cos)?, tensor(angles.sin)?)))?;
        let factors = &rotation.query_factors;
        let query_factors = (!factors.is_empty())
            .then(|| Tensor::from_slice(factors, (1, 1, factors.len(), 1), &self.device))
            .transpose()?;
        let mut biases = HashMap::new();
        for layer in &self.spec.layers {
            if let Entry::Vacant(entry) = biases.entry(layer.visible()) {
                entry.insert(mask_bias(mask, layer.visible(), &self.device)?);
            }
        }
        self.pass = Some(CandlePass {
            mask: mask.clone(),
            biases,
            rotation,
            query_factors,
            convolution_plan: self.cache.convolution_plan(mask)?,
            delta_plan: self.cache.delta_plan(mask)?,
            gate: None,
            layer_embedding: self.layer_embedding_inputs(tokens, &x)?,
            h: x.clone(),
            x,
            taps: Vec::new(),
        });
        Ok(())
    }

    fn step(&mut self, index: usize, step: LayerStep) -> Result<()> {
        match step {
            LayerStep::Project => match self.spec.layers[index].mixer {
                Mixer::Attention => self.project(index),
                Mixer::ShortConvolution => self.convolve(index),
                Mixer::DeltaNet => self.run_delta_net(index),
            },
            // The mixer in place of attention is done.
            LayerStep::Mix if self.spec.layers[index].mixer != Mixer::Attention => Ok(()),
            LayerStep::Mix => self.attend(index),
            LayerStep::MixerOutput => self.add_attention(index),
            LayerStep::GateUp => self.start_feed_forward(index),
            LayerStep::Down => self.add_feed_forward(index),
            LayerStep::LayerEmbedding => self.add_layer_embedding(index),
        }
    }

    fn tap(&mut self, at: usize, _wanted: WantedResults) -> Result<()> {
        let pass = active(self.pass.as_mut())?;
        pass.taps.truncate(at);
        pass.taps.push(pass.x.clone());
        Ok(())
    }

    fn results(&mut self, wanted: WantedResults, _vocab_subset: Option<&VocabSubset>) -> Result<PassOutput> {
        let logits = self.logits(wanted.logits)?;
        let taps = std::mem::take(&mut active(self.pass.as_mut())?.taps);
        Ok(PassOutput { logits, taps: taps.iter().map(to_rows).collect::<Result<_>>()? })
    }

    fn finish(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }

    fn fork(&self) -> Box<dyn Executor> {
        Box::new(Self {
            spec: self.spec.clone(),
            device: self.device.clone(),
            compute: self.compute.clone(),
            embedding: self.embedding.clone(),
            weights: self.weights.clone(),
            layer_embedding: self.layer_embedding.clone(),
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

fn other_mixer() -> Error {
    Error::Internal("the layer has another mixer".into())
}

/// Returns the RMS norm of each head of values, without weights.
fn unit_normed(values: &Tensor, width: usize, spec: &ModelSpec) -> Result<Tensor> {
    let ones = Tensor::ones(width, DType::F32, values.device())?;
    let parts = values.reshape((values.elem_count() / width, width))?;
    Ok(rms_norm(&parts, &ones, spec.rms_eps as f32)?.reshape(values.shape())?)
}

/// Splits `[rows, n * head_dim]` into heads `[1, n, rows, head_dim]`, contiguous, where `head_dim` comes with the spec.
///
/// Applies the head norm and the rotary embedding if given.
fn heads(
    x: &Tensor,
    norm: Option<&Tensor>,
    (spec, head_dim): (&ModelSpec, usize),
    rotation: Option<&(Tensor, Tensor)>,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    // A norm is as wide as a head or as all heads.
    let x = match norm {
        Some(weight) => {
            let norm_width = weight.dim(0)?;
            let parts = x.reshape((rows * width / norm_width, norm_width))?;
            rms_norm(&parts, weight, spec.rms_eps as f32)?
        }
        None => x.clone(),
    };
    let x = x.reshape((1, rows, width / head_dim, head_dim))?;
    let x = x.transpose(1, 2)?.contiguous()?;
    let Some((cos, sin)) = rotation else {
        return Ok(x);
    };
    let rotate = |x: &Tensor| match spec.rope_kind {
        RopeKind::Interleaved => rope_i(x, cos, sin),
        RopeKind::Halves => rope(x, cos, sin),
    };
    let rope_dim = 2 * cos.dim(D::Minus1)?;
    if rope_dim == head_dim {
        return Ok(rotate(&x)?);
    }
    let turned = rotate(&x.narrow(D::Minus1, 0, rope_dim)?.contiguous()?)?;
    let rest = x.narrow(D::Minus1, rope_dim, head_dim - rope_dim)?;
    Ok(Tensor::cat(&[&turned, &rest.contiguous()?], D::Minus1)?)
}

/// Returns the RMS norm of every row of `x`, or `x` itself without a norm.
fn normed(x: &Tensor, norm: Option<&Tensor>, spec: &ModelSpec) -> Result<Tensor> {
    Ok(match norm {
        Some(weight) => rms_norm(x, weight, spec.rms_eps as f32)?,
        None => x.clone(),
    })
}

/// Computes activation(gate) * up.
fn gated(h: &Tensor, gate: &Linear, up: &Linear, spec: &ModelSpec) -> Result<Tensor> {
    let gate = gate.forward(h)?;
    if spec.experts.is_some_and(|experts| experts.clamped) {
        let gate = gate.minimum(CLAMPED_BOUND)?;
        let sigmoid = candle_nn::ops::sigmoid(&(&gate * f64::from(CLAMPED_SLOPE))?)?;
        let up = (up.forward(h)?.clamp(-CLAMPED_BOUND, CLAMPED_BOUND)? + 1.0)?;
        return Ok(((gate * sigmoid)? * up)?);
    }
    let gate = if spec.gelu { gate.gelu()? } else { silu(&gate)? };
    Ok((gate * up.forward(h)?)?)
}

/// Computes the weighted outputs of the experts of each row of `h`. The host chooses the experts by the rows of
/// `of_router`.
fn of_experts(
    h: &Tensor,
    of_router: &Tensor,
    layer: &Mixture<Linear, Tensor, Vec<Linear>>,
    spec: &ModelSpec,
) -> Result<Tensor> {
    let Mixture { router, gate, up, down, .. } = layer;
    let no_experts = || Error::Internal("this model has no experts".into());
    let experts = spec.experts.as_ref().ok_or_else(no_experts)?;
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    let [bias, factors] =
        [&layer.bias, &layer.factors].map(|of| of.as_ref().map(Tensor::to_vec1::<f32>).transpose());
    let (bias, factors) = (bias?, factors?);
    for scores in scaled(router.forward(of_router)?, experts.router_scale)?.to_vec2::<f32>()? {
        let of_choice = (bias.as_deref(), factors.as_deref());
        experts.choose(&scores, of_choice, &mut chosen, &mut weights);
    }
    let mut out = h.zeros_like()?;
    for expert in chosen.iter().copied().collect::<BTreeSet<_>>() {
        let choices: Vec<usize> = (0..chosen.len()).filter(|&choice| chosen[choice] == expert).collect();
        let rows: Vec<u32> = choices.iter().map(|choice| (choice / experts.used) as u32).collect();
        let weights: Vec<f32> = choices.iter().map(|&choice| weights[choice]).collect();
        let rows = Tensor::new(rows, h.device())?;
        let weights = Tensor::from_vec(weights, (choices.len(), 1), h.device())?;
        let h = h.index_select(&rows, 0)?;
        let update = if experts.scales_input {
            down[expert].forward(&gated(&h.broadcast_mul(&weights)?, &gate[expert], &up[expert], spec)?)?
        } else {
            let gated = gated(&h, &gate[expert], &up[expert], spec)?;
            down[expert].forward(&gated)?.broadcast_mul(&weights)?
        };
        out = out.index_add(&rows, &update, 0)?;
    }
    let Some(Dense { gate, up, down }) = &layer.shared else { return Ok(out) };
    let shared = down.forward(&gated(h, gate, up, spec)?)?;
    Ok(match &layer.shared_weight {
        None => (out + shared)?,
        Some(weight) => {
            let scores = h.matmul(&weight.reshape((weight.dim(0)?, 1))?)?;
            (out + shared.broadcast_mul(&candle_nn::ops::sigmoid(&scores)?)?)?
        }
    })
}

/// Computes a short convolution of its projections B, C and x. The host does it, and holds its state.
fn convolved(
    projections: [Result<Tensor>; 3],
    weights: &Tensor,
    plan: &ConvolutionPlan,
    state: &mut [f32],
) -> Result<Tensor> {
    let [b, c, x] = projections;
    let (x, flat) = (x?, |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>());
    let (b, c, mut inputs, weights) = (flat(&b?)?, flat(&c?)?, flat(&x)?, flat(weights)?);
    let mut out = Vec::new();
    let input = ConvolutionInput { b: &b, c: &c, weights: &weights };
    convolve(&input, &mut inputs, plan, state, &mut out);
    Ok(Tensor::from_vec(out, x.shape(), x.device())?)
}

/// Computes a gated delta net of its projections. The host does it, and holds its states.
fn delta_net(
    (weights, net, eps): (&DeltaNetWeights<Linear, Tensor>, DeltaNet, f32),
    projections: [Result<Tensor>; 3],
    decays: Option<Tensor>,
    (compute, plan, memory): (&Compute, &DeltaPlan, &mut DeltaMemory),
) -> Result<Tensor> {
    let [channels, gate, strengths] = projections;
    let (gate, flat) = (gate?, |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>());
    let (channels, strengths, mut out) = (flat(&channels?)?, flat(&strengths?)?, flat(&gate)?);
    let decays = decays.as_ref().map(flat).transpose()?;
    let vectors = [&weights.convolution, &weights.rates, &weights.bias, &weights.norm].map(flat);
    let [convolution, rates, bias, norm] = vectors;
    let (convolution, rates, bias, norm) = (convolution?, rates?, bias?, norm?);
    let weights =
        DeltaWeights { net, convolution: &convolution, rates: &rates, bias: &bias, norm: &norm, eps };
    let projections =
        DeltaProjections { channels: &channels, strengths: &strengths, decays: decays.as_deref() };
    DeltaSpace::default().run(compute.threads(), (&weights, &projections), plan, memory, &mut out);
    Ok(Tensor::from_vec(out, gate.shape(), gate.device())?)
}

/// Adds the output of a layer's part to the residual stream, normed and scaled.
fn added(x: &Tensor, update: &Tensor, norm: Option<&Tensor>, spec: &ModelSpec) -> Result<Tensor> {
    Ok((x + scaled(normed(update, norm, spec)?, spec.residual_scale)?)?)
}

fn scaled(x: Tensor, factor: f32) -> Result<Tensor> {
    Ok(if factor == 1.0 { x } else { (x * f64::from(factor))? })
}

fn to_rows(x: &Tensor) -> Result<Rows> {
    let width = x.dim(D::Minus1)?;
    Ok(Rows::new(width, x.flatten_all()?.to_vec1::<f32>()?))
}
