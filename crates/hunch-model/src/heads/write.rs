//! Writes trained heads as GGUF files. The file appears complete or not at all.

use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

use super::{ACCEPTANCE, KIND, MEDUSA, MLP, TARGET};
use crate::atomic_file;

/// Facts that the file of every kind of head states.
#[derive(Clone, Debug)]
pub struct HeadFacts {
    /// Tokens that it scores, ascending.
    pub vocabulary: Vec<TokenId>,
    /// Tokens that it was trained on.
    pub training_tokens: usize,
    /// Acceptance of the first token on held-out answers in chat sampling, from 0 to 1.
    pub acceptance: f64,
    /// Display name of the target.
    pub target_name: String,
    /// [`fingerprint`](super::fingerprint) of the target.
    pub target: String,
}

/// Weights of a head without attention. Matrices are `[out, in]`, n is the width of the target.
#[derive(Clone, Debug)]
pub struct MlpWeights {
    /// Layers after which it reads the residual stream, ascending, without the last layer.
    pub layers: Vec<usize>,
    /// Width of its feed-forward block.
    pub feed_forward: usize,
    /// `[n, (layers + 2) n]`.
    pub fc: Vec<f32>,
    /// `[n]`.
    pub fc_bias: Vec<f32>,
    /// `[n]`.
    pub norm: Vec<f32>,
    /// `[feed_forward, n]`.
    pub gate: Vec<f32>,
    /// `[feed_forward, n]`.
    pub up: Vec<f32>,
    /// `[n, feed_forward]`.
    pub down: Vec<f32>,
    /// `[n]`.
    pub out_scale: Vec<f32>,
    /// `[n]`.
    pub out_shift: Vec<f32>,
}

/// Weights of a Medusa head that scores a part of the vocabulary. Matrices are `[out, in]`, n is the width of the target.
#[derive(Clone, Debug)]
pub struct MedusaWeights {
    /// Factor of the target's final state, `[n]`.
    pub in_scale: Vec<f32>,
    /// Constant that is added after the factor, `[n]`.
    pub in_shift: Vec<f32>,
    /// Networks of the drafted tokens.
    pub positions: Vec<MedusaPosition>,
}

/// Network of one drafted token.
#[derive(Clone, Debug)]
pub struct MedusaPosition {
    /// `[n, n]`.
    pub block: Vec<f32>,
    /// `[n]`.
    pub block_bias: Vec<f32>,
    /// `[vocabulary, n]`.
    pub output: Vec<f32>,
    /// `[vocabulary]`.
    pub output_bias: Vec<f32>,
}

/// Writes a head: matrices as Q8_0, vectors as f32. Replaces a file at `path` in one step.
///
/// # Errors
/// [`Error::InvalidRequest`] if the width of a matrix is not a multiple of 32, [`Error::Io`] if the file cannot be
/// written. A file at `path` is then unchanged.
pub fn write_mlp(path: &Path, head: &MlpWeights, facts: &HeadFacts) -> Result<()> {
    let (n, ff) = (head.fc_bias.len(), head.feed_forward);
    let tensors = vec![
        ("fc.weight".into(), matrix(&head.fc, [n, (head.layers.len() + 2) * n])?),
        ("ffn_gate.weight".into(), matrix(&head.gate, [ff, n])?),
        ("ffn_up.weight".into(), matrix(&head.up, [ff, n])?),
        ("ffn_down.weight".into(), matrix(&head.down, [n, ff])?),
        ("fc.bias".into(), vector(&head.fc_bias)?),
        ("ffn_norm.weight".into(), vector(&head.norm)?),
        ("out_scale".into(), vector(&head.out_scale)?),
        ("out_shift".into(), vector(&head.out_shift)?),
    ];
    let metadata = [
        (KIND, text(MLP)),
        ("hunch-head.layers", list(head.layers.iter().map(|&layer| layer as i32))),
        ("hunch-head.embedding_length", size(n)),
        ("hunch-head.feed_forward_length", size(ff)),
    ];
    write(path, &metadata, facts, &tensors)
}

/// Writes a Medusa head, as [`write_mlp`].
///
/// # Errors
/// As [`write_mlp`].
pub fn write_medusa(path: &Path, head: &MedusaWeights, facts: &HeadFacts) -> Result<()> {
    let (n, scored) = (head.in_scale.len(), facts.vocabulary.len());
    let mut tensors =
        vec![("in_scale".into(), vector(&head.in_scale)?), ("in_shift".into(), vector(&head.in_shift)?)];
    for (k, position) in head.positions.iter().enumerate() {
        tensors.extend([
            (format!("{k}.0.linear.weight"), matrix(&position.block, [n, n])?),
            (format!("{k}.0.linear.bias"), vector(&position.block_bias)?),
            (format!("{k}.1.weight"), matrix(&position.output, [scored, n])?),
            (format!("{k}.1.bias"), vector(&position.output_bias)?),
        ]);
    }
    let metadata = [
        (KIND, text(MEDUSA)),
        ("hunch-head.depth", size(head.positions.len())),
        ("hunch-head.embedding_length", size(n)),
    ];
    write(path, &metadata, facts, &tensors)
}

fn write(
    path: &Path,
    of_kind: &[(&str, Value)],
    facts: &HeadFacts,
    tensors: &[(String, QTensor)],
) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let common = [
        ("general.architecture", text("hunch-head")),
        ("general.name", text(&format!("Head for {}", facts.target_name))),
        ("hunch-head.vocabulary", list(facts.vocabulary.iter().map(|&token| token as i32))),
        ("hunch-head.training_tokens", size(facts.training_tokens)),
        (ACCEPTANCE, Value::F32(facts.acceptance as f32)),
        ("hunch-head.target.name", text(&facts.target_name)),
        (TARGET, text(&facts.target)),
    ];
    atomic_file::replace(path, |file| {
        let mut out = BufWriter::new(file);
        let metadata: Vec<(&str, &Value)> =
            common.iter().chain(of_kind).map(|(key, value)| (*key, value)).collect();
        let tensors: Vec<(&str, &QTensor)> =
            tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
        gguf_file::write(&mut out, &metadata, &tensors).map_err(|e| io(std::io::Error::other(e)))?;
        out.flush().map_err(io)
    })
}

fn matrix(values: &[f32], shape: [usize; 2]) -> Result<QTensor> {
    let block = GgmlDType::Q8_0.block_size();
    if !shape[1].is_multiple_of(block) {
        return Err(Error::invalid(format!(
            "A head for this model cannot be stored: its width of {} is not a multiple of {block}.",
            shape[1]
        )));
    }
    Ok(QTensor::quantize(&Tensor::from_slice(values, &shape[..], &Device::Cpu)?, GgmlDType::Q8_0)?)
}

fn vector(values: &[f32]) -> Result<QTensor> {
    Ok(QTensor::quantize(&Tensor::from_slice(values, values.len(), &Device::Cpu)?, GgmlDType::F32)?)
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

fn size(size: usize) -> Value {
    Value::U32(size as u32)
}

fn list(numbers: impl Iterator<Item = i32>) -> Value {
    Value::Array(numbers.map(Value::I32).collect())
}
