//! Checkpoints of a fit: weights, moments of AdamW, the best weights so far, and the state of the run. One safetensors
//! file has all of them and is replaced as a whole.

use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::atomic_file;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::ops;

/// Metadata key of the state.
const STATE: &str = "state";
/// Names of [`Checkpoint::vectors`].
const VECTORS: [&str; 2] = ["mean", "deviation"];
/// Name of [`Checkpoint::tokens`].
const TOKENS: &str = "vocabulary";

/// Contents of a checkpoint.
pub struct Checkpoint<S> {
    /// State of the run.
    pub state: S,
    /// Mean and deviation of the inputs.
    pub vectors: [Vec<f32>; 2],
    /// Tokens that are scored.
    pub tokens: Vec<TokenId>,
    /// Trained tensors.
    pub weights: Vec<Tensor>,
    /// First and second moment of each tensor.
    pub moments: Vec<(Tensor, Tensor)>,
    /// Weights with the highest held-out acceptance.
    pub best: Vec<Tensor>,
}

impl<S: DeserializeOwned> Checkpoint<S> {
    /// Reads a checkpoint onto a device. `None` if there is none, it is damaged, or `own` returns false for its state.
    pub fn read(path: &Path, names: &[String], device: &Device, own: impl Fn(&S) -> bool) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (_, header) = SafeTensors::read_metadata(&bytes).ok()?;
        let state: S = serde_json::from_str(header.metadata().as_ref()?.get(STATE)?).ok()?;
        if !own(&state) {
            return None;
        }
        let file = SafeTensors::deserialize(&bytes).ok()?;
        let values = |name: &str| -> Option<(Vec<f32>, Vec<usize>)> {
            let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
            let values = view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            Some((values.collect(), view.shape().to_vec()))
        };
        let all = |kind: &str| -> Option<Vec<Tensor>> {
            let tensor = |name: &String| {
                let (values, shape) = values(&format!("{kind}.{name}"))?;
                ops::tensor(values, &shape, device).ok()
            };
            names.iter().map(tensor).collect()
        };
        let tokens = file.tensor(TOKENS).ok()?;
        let [mean, deviation] = VECTORS;
        Some(Self {
            tokens: tokens.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
            vectors: [values(mean)?.0, values(deviation)?.0],
            weights: all("weights")?,
            moments: all("first")?.into_iter().zip(all("second")?).collect(),
            best: all("best")?,
            state,
        })
    }
}

impl<S: Serialize> Checkpoint<S> {
    /// Writes the checkpoint next to its place and renames it. The bytes of one tensor are in memory at a time.
    ///
    /// # Errors
    /// If it cannot be written. The one before is intact.
    pub fn write(&self, path: &Path, names: &[String]) -> Result<()> {
        let internal = |error: &dyn std::fmt::Display| Error::Internal(error.to_string());
        let state = serde_json::to_string(&self.state).map_err(|error| internal(&error))?;
        let mut tensors: Vec<(String, Tensor)> = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let (first, second) = &self.moments[at];
            let kinds = [
                ("weights", &self.weights[at]),
                ("first", first),
                ("second", second),
                ("best", &self.best[at]),
            ];
            tensors.extend(kinds.map(|(kind, tensor)| (format!("{kind}.{name}"), tensor.clone())));
        }
        for (name, values) in VECTORS.iter().zip(&self.vectors) {
            tensors.push(((*name).into(), Tensor::new(&values[..], &Device::Cpu)?));
        }
        tensors.push((TOKENS.into(), Tensor::new(&self.tokens[..], &Device::Cpu)?));

        let mut header = serde_json::Map::from_iter([("__metadata__".into(), json!({ STATE: state }))]);
        let mut end = 0;
        for (name, tensor) in &tensors {
            let (start, dtype) = (end, if tensor.dtype() == DType::U32 { "U32" } else { "F32" });
            end += tensor.elem_count() * size_of::<f32>();
            let info = json!({ "dtype": dtype, "shape": tensor.dims(), "data_offsets": [start, end] });
            header.insert(name.clone(), info);
        }
        let mut header = serde_json::to_vec(&header).map_err(|error| internal(&error))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        atomic_file::replace(path, |file| {
            let mut out = BufWriter::new(file);
            out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
            out.write_all(&header).map_err(io)?;
            for (_, tensor) in &tensors {
                out.write_all(&bytes(tensor)?).map_err(io)?;
            }
            out.flush().map_err(io)
        })
    }
}

/// Returns the bytes of a tensor of f32 or u32.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let tensor = tensor.flatten_all()?;
    Ok(match tensor.dtype() {
        DType::U32 => tensor.to_vec1::<u32>()?.into_iter().flat_map(u32::to_le_bytes).collect(),
        _ => tensor.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect(),
    })
}

/// Copies the values of trained tensors.
///
/// # Errors
/// If the device fails.
pub fn copies(vars: &[Var]) -> Result<Vec<Tensor>> {
    vars.iter().map(|var| Ok(var.as_tensor().copy()?.detach())).collect()
}
