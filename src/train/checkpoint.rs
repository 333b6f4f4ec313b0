//! Checkpoints of a fit: weights, moments of AdamW, the best weights so far, and the state of the run. One safetensors
//! file has all of them and is replaced as a whole.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor, Var};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::atomic_file;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    /// Writes the checkpoint next to its place and renames it.
    ///
    /// # Errors
    /// If it cannot be written. The one before is intact.
    pub fn write(&self, path: &Path, names: &[String]) -> Result<()> {
        let internal = |error: &dyn std::fmt::Display| Error::Internal(error.to_string());
        let state = serde_json::to_string(&self.state).map_err(|error| internal(&error))?;
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (at, name) in names.iter().enumerate() {
            let (first, second) = &self.moments[at];
            let kinds = [
                ("weights", &self.weights[at]),
                ("first", first),
                ("second", second),
                ("best", &self.best[at]),
            ];
            for (kind, tensor) in kinds {
                let values = tensor.flatten_all()?.to_vec1::<f32>()?;
                tensors.push((format!("{kind}.{name}"), Dtype::F32, tensor.dims().to_vec(), floats(&values)));
            }
        }
        for (name, values) in VECTORS.iter().zip(&self.vectors) {
            tensors.push(((*name).into(), Dtype::F32, vec![values.len()], floats(values)));
        }
        let tokens = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        tensors.push((TOKENS.into(), Dtype::U32, vec![self.tokens.len()], tokens));
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            let view = TensorView::new(*dtype, shape.clone(), data).map_err(|error| internal(&error))?;
            Ok((name.as_str(), view))
        });
        let metadata = HashMap::from([(STATE.to_owned(), state)]);
        let bytes = safetensors::serialize(views.collect::<Result<Vec<_>>>()?, Some(metadata))
            .map_err(|e| internal(&e))?;
        atomic_file::write(path, &bytes)
    }
}

/// Copies the values of trained tensors.
///
/// # Errors
/// If the device fails.
pub fn copies(vars: &[Var]) -> Result<Vec<Tensor>> {
    vars.iter().map(|var| Ok(var.as_tensor().copy()?.detach())).collect()
}
