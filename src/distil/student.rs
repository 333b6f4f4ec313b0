//! A draft model with candle operations that have gradients: layers of Llama, Qwen2 and Qwen3. The decoder of
//! `hunch_model` has no gradients.

use candle_core::{Device, Result as CandleResult, Tensor, Var};
use hunch_core::sample::unit;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::float_weights::FloatWeights;
use hunch_model::spec::RopeKind;

use crate::train::ops::{causal_mask, frozen_linear, linear, log_softmax, rms_norm, rotate_halves, tensor};
use crate::train::start::generator;

/// Matrices of a layer.
pub const MATRICES: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
/// Scale of the product of low rank.
const LORA_SCALE: f64 = 2.0;

/// A draft model in training.
pub struct Student {
    file: FloatWeights,
    device: Device,
    /// Rows of the embedding, `[n_vocab, n]`.
    embedding: Tensor,
    /// Output head, `[n_vocab, n]`.
    head: Tensor,
    output_norm: Tensor,
    layers: Vec<StudentLayer>,
    names: Vec<String>,
    vars: Vec<Var>,
}

struct StudentLayer {
    attention_norm: Tensor,
    feed_forward_norm: Tensor,
    q_norm: Option<Tensor>,
    k_norm: Option<Tensor>,
    /// In the order of [`MATRICES`].
    matrices: Vec<StudentMatrix>,
}

/// A matrix with its bias and trained parts.
struct StudentMatrix {
    weight: Tensor,
    bias: Option<Tensor>,
    /// a `[rank, in]` and b `[out, rank]`. The trained matrix is weight + [`LORA_SCALE`] b a.
    lora: Option<(Tensor, Tensor)>,
}

impl StudentMatrix {
    fn apply(&self, x: &Tensor) -> CandleResult<Tensor> {
        let Some((a, b)) = &self.lora else { return linear(x, &self.weight, self.bias.as_ref()) };
        let y = frozen_linear(x, &self.weight, self.bias.as_ref())?;
        y + (linear(&linear(x, a, None)?, b, None)? * LORA_SCALE)?
    }
}

/// Keys and values of the tokens so far, by layer.
#[derive(Default)]
pub struct StudentCache {
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
}

impl StudentCache {
    /// Drops the graph of keys and values, which only gradients need.
    pub fn detach(&mut self) {
        for (k, v) in &mut self.layers {
            (*k, *v) = (k.detach(), v.detach());
        }
    }
}

impl Student {
    /// Loads a draft. `rank` is the rank of the trained matrices (LoRA, Hu et al., arXiv 2106.09685); `None` trains the
    /// layers' matrices themselves. Embedding, norms, biases and output head stay as they are.
    ///
    /// # Errors
    /// As [`FloatWeights::open`], or if memory is short.
    pub fn load(file: FloatWeights, rank: Option<usize>, seed: u64, device: &Device) -> Result<Self> {
        let missing = |name: &str| Error::InvalidModelFile {
            path: file.file().gguf().path.clone(),
            reason: format!("the tensor {name} is missing"),
        };
        let required = |name: &str| file.tensor(name, device)?.ok_or_else(|| missing(name));
        let embedding = required("token_embd.weight")?;
        let head = file.tensor("output.weight", device)?.unwrap_or_else(|| embedding.clone());
        let (mut names, mut vars, mut layers) = (Vec::new(), Vec::new(), Vec::new());
        let mut rng = generator(seed, 5, 0);
        for index in 0..file.spec().n_layer {
            let name = |part: &str| format!("blk.{index}.{part}");
            let mut matrices = Vec::new();
            for part in MATRICES {
                let weight = required(&name(&format!("{part}.weight")))?;
                let bias = file.tensor(&name(&format!("{part}.bias")), device)?;
                let mut train = |suffix: &str, values: Tensor| -> Result<Tensor> {
                    let var = Var::from_tensor(&values)?;
                    names.push(name(&format!("{part}.{suffix}")));
                    vars.push(var.clone());
                    Ok(var.as_tensor().clone())
                };
                let (out, width) = weight.dims2()?;
                matrices.push(match rank {
                    None => StudentMatrix { weight: train("weight", weight)?, bias, lora: None },
                    Some(rank) => {
                        let spread = (3.0 / width as f64).sqrt();
                        let values =
                            (0..rank * width).map(|_| ((2.0 * unit(&mut rng) - 1.0) * spread) as f32);
                        let a = train("lora_a", tensor(values.collect(), &[rank, width], device)?)?;
                        let b = train("lora_b", tensor(vec![0.0; out * rank], &[out, rank], device)?)?;
                        StudentMatrix { weight, bias, lora: Some((a, b)) }
                    }
                });
            }
            layers.push(StudentLayer {
                attention_norm: required(&name("attn_norm.weight"))?,
                feed_forward_norm: required(&name("ffn_norm.weight"))?,
                q_norm: file.tensor(&name("attn_q_norm.weight"), device)?,
                k_norm: file.tensor(&name("attn_k_norm.weight"), device)?,
                matrices,
            });
        }
        let output_norm = required("output_norm.weight")?;
        let device = device.clone();
        Ok(Self { file, device, embedding, head, output_norm, layers, names, vars })
    }

    /// Returns the names of the trained tensors.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the trained tensors.
    pub fn vars(&self) -> &[Var] {
        &self.vars
    }

    /// Returns the matrices of the file with these values of the trained tensors, each when it is asked for.
    ///
    /// # Errors
    /// An item is an error if the device fails.
    pub fn merged(&self, values: &[Tensor]) -> impl Iterator<Item = Result<(String, Tensor)>> {
        let matrices = self.layers.iter().enumerate().flat_map(|(index, layer)| {
            MATRICES.iter().zip(&layer.matrices).map(move |(part, matrix)| (index, part, matrix))
        });
        let mut values = values.iter();
        matrices.map(move |(index, part, matrix)| {
            let mut next =
                || values.next().ok_or_else(|| Error::Internal("a trained tensor is missing".into()));
            let weight = match &matrix.lora {
                None => next()?.clone(),
                Some(_) => {
                    let (a, b) = (next()?, next()?);
                    (&matrix.weight + (b.matmul(a)? * LORA_SCALE)?)?
                }
            };
            Ok((format!("blk.{index}.{part}.weight"), weight))
        })
    }

    /// Returns the file that the draft was loaded from.
    pub fn file(&self) -> &FloatWeights {
        &self.file
    }

    /// Runs tokens after those of the cache and returns the states after the output norm, `[tokens, n]`.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, or the device fails.
    pub fn forward(&self, tokens: &[TokenId], cache: &mut StudentCache) -> Result<Tensor> {
        let spec = self.file.spec();
        let (rows, past) = (tokens.len(), cache.len);
        let (cos, sin) = self.file.angles(past..past + rows);
        let half = spec.head_dim / 2;
        let angles = |values| tensor(values, &[rows, 1, half], &self.device);
        let rotation = (angles(cos)?, angles(sin)?);
        let mask = causal_mask(rows, past, &self.device)?;
        let mut x = self.embedding.index_select(&Tensor::new(tokens, &self.device)?, 0)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.layer(layer, &x, (index, cache), (&rotation, &mask))?;
        }
        cache.len += rows;
        Ok(rms_norm(&x, &self.output_norm, spec.rms_eps)?)
    }

    fn layer(
        &self,
        layer: &StudentLayer,
        x: &Tensor,
        (index, cache): (usize, &mut StudentCache),
        (rotation, mask): (&(Tensor, Tensor), &Tensor),
    ) -> Result<Tensor> {
        let spec = self.file.spec();
        let [q, k, v, output, gate, up, down] = &layer.matrices[..] else {
            return Err(Error::Internal("a layer has 7 matrices".into()));
        };
        let h = rms_norm(x, &layer.attention_norm, spec.rms_eps)?;
        let rows = h.dim(0)?;
        // [rows, heads, head_dim]
        let heads = |x: Tensor, norm: Option<&Tensor>| -> CandleResult<Tensor> {
            let x = x.reshape((rows, x.dim(1)? / spec.head_dim, spec.head_dim))?;
            norm.map_or(Ok(x.clone()), |norm| rms_norm(&x, norm, spec.rms_eps))
        };
        let q = rotate(&heads(q.apply(&h)?, layer.q_norm.as_ref())?, rotation, spec.rope_kind)?;
        let k = rotate(&heads(k.apply(&h)?, layer.k_norm.as_ref())?, rotation, spec.rope_kind)?;
        let v = heads(v.apply(&h)?, None)?;
        let (k, v) = match cache.layers.get(index) {
            None => (k, v),
            Some((before_k, before_v)) => {
                (Tensor::cat(&[before_k, &k], 0)?, Tensor::cat(&[before_v, &v], 0)?)
            }
        };
        match cache.layers.get_mut(index) {
            Some(place) => *place = (k.clone(), v.clone()),
            None => cache.layers.push((k.clone(), v.clone())),
        }
        let attended = attention(&q, &k, &v, mask, f64::from(spec.attention_scale))?;
        let x = (x + output.apply(&attended)?)?;
        let h = rms_norm(&x, &layer.feed_forward_norm, spec.rms_eps)?;
        let gated = (gate.apply(&h)?.silu()? * up.apply(&h)?)?;
        Ok((x + down.apply(&gated)?)?)
    }

    /// Returns the logits of the first `n_vocab` tokens after states, `[rows, n_vocab]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&self, states: &Tensor, n_vocab: usize) -> Result<Tensor> {
        Ok(linear(states, &self.head_rows(n_vocab)?, None)?)
    }

    /// Returns the rows of the output head of the first `n_vocab` tokens.
    ///
    /// # Errors
    /// If the device fails.
    pub fn head_rows(&self, n_vocab: usize) -> Result<Tensor> {
        Ok(self.head.narrow(0, 0, n_vocab)?)
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Computes attention of rows `[rows, heads, head_dim]` over keys and values `[keys, kv heads, head_dim]`.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor, scale: f64) -> CandleResult<Tensor> {
    let ((rows, heads, width), (keys, kv_heads, _)) = (q.dims3()?, k.dims3()?);
    let group = heads / kv_heads;
    let q = q.transpose(0, 1)?.contiguous()?.reshape((kv_heads, group * rows, width))?;
    let (k, v) = (k.transpose(0, 1)?.contiguous()?, v.transpose(0, 1)?.contiguous()?);
    let scores = (q.matmul(&k.t()?)? * scale)?.reshape((kv_heads, group, rows, keys))?;
    let p = log_softmax(&scores.broadcast_add(mask)?)?.exp()?.reshape((kv_heads, group * rows, keys))?;
    let out = p.matmul(&v)?.reshape((heads, rows, width))?;
    out.transpose(0, 1)?.contiguous()?.reshape((rows, heads * width))
}

/// Rotates heads `[rows, heads, head_dim]` by angles `[rows, 1, head_dim / 2]`.
///
/// Interleaved pairs are sorted into halves and stay so. Scores do not change, because queries and keys are sorted alike.
fn rotate(x: &Tensor, (cos, sin): &(Tensor, Tensor), kind: RopeKind) -> CandleResult<Tensor> {
    let (rows, heads, width) = x.dims3()?;
    match kind {
        RopeKind::Halves => rotate_halves(x, cos, sin),
        RopeKind::Interleaved => {
            let halves = x.reshape((rows, heads, width / 2, 2))?.transpose(2, 3)?.contiguous()?;
            rotate_halves(&halves.reshape((rows, heads, width))?, cos, sin)
        }
    }
}
