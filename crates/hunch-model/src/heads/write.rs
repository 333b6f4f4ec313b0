//! Writes trained heads as GGUF files. The file appears complete or not at all.

use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

use super::{ACCEPTANCE, TARGET};
use crate::atomic_file;

/// Weights of a head without attention. Matrices are `[out, in]`, n is the width of the target.
#[derive(Clone, Debug)]
pub struct MlpWeights {
    /// Layers after which it reads the residual stream, ascending, without the last layer.
    pub layers: Vec<usize>,
    /// Tokens that it scores, ascending.
    pub vocabulary: Vec<TokenId>,
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
    /// Tokens that it was trained on.
    pub training_tokens: usize,
    /// Acceptance on held-out answers in chat sampling, from 0 to 1.
    pub acceptance: f64,
    /// Display name of the target.
    pub target_name: String,
    /// [`fingerprint`](super::fingerprint) of the target.
    pub target: String,
}

/// Writes a head: matrices as Q8_0, vectors as f32. Replaces a file at `path` in one step.
///
/// # Errors
/// [`Error::InvalidRequest`] if the width of a matrix is not a multiple of 32, [`Error::Io`] if the file cannot be
/// written. A file at `path` is then unchanged.
pub fn write_mlp(path: &Path, head: &MlpWeights) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let (n, ff) = (head.fc_bias.len(), head.feed_forward);
    let block = GgmlDType::Q8_0.block_size();
    if n % block != 0 || ff % block != 0 {
        return Err(Error::invalid(format!(
            "A head for this model cannot be stored: its width of {n} is not a multiple of {block}."
        )));
    }
    let tensor = |values: &[f32], shape: &[usize], dtype| -> Result<QTensor> {
        Ok(QTensor::quantize(&Tensor::from_slice(values, shape, &Device::Cpu)?, dtype)?)
    };
    let matrix = |values: &[f32], shape: [usize; 2]| tensor(values, &shape, GgmlDType::Q8_0);
    let vector = |values: &[f32]| tensor(values, &[n], GgmlDType::F32);
    let tensors = [
        ("fc.weight", matrix(&head.fc, [n, (head.layers.len() + 2) * n])?),
        ("ffn_gate.weight", matrix(&head.gate, [ff, n])?),
        ("ffn_up.weight", matrix(&head.up, [ff, n])?),
        ("ffn_down.weight", matrix(&head.down, [n, ff])?),
        ("fc.bias", vector(&head.fc_bias)?),
        ("ffn_norm.weight", vector(&head.norm)?),
        ("out_scale", vector(&head.out_scale)?),
        ("out_shift", vector(&head.out_shift)?),
    ];
    let text = |text: &str| Value::String(text.into());
    let size = |size: usize| Value::U32(size as u32);
    let list = |numbers: &mut dyn Iterator<Item = i32>| Value::Array(numbers.map(Value::I32).collect());
    let metadata = [
        ("general.architecture", text("hunch-head")),
        ("general.name", text(&format!("Head for {}", head.target_name))),
        ("hunch-head.kind", text("mlp")),
        ("hunch-head.layers", list(&mut head.layers.iter().map(|&layer| layer as i32))),
        ("hunch-head.vocabulary", list(&mut head.vocabulary.iter().map(|&token| token as i32))),
        ("hunch-head.embedding_length", size(n)),
        ("hunch-head.feed_forward_length", size(ff)),
        ("hunch-head.training_tokens", size(head.training_tokens)),
        (ACCEPTANCE, Value::F32(head.acceptance as f32)),
        ("hunch-head.target.name", text(&head.target_name)),
        (TARGET, text(&head.target)),
    ];
    atomic_file::replace(path, |file| {
        let mut out = BufWriter::new(file);
        let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        gguf_file::write(&mut out, &metadata, &tensors).map_err(|e| io(std::io::Error::other(e)))?;
        out.flush().map_err(io)
    })
}
