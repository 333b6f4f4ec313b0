//! The MLP speculator (Wertheimer et al., arXiv 2404.19124): a state that takes in the embedding of each token, from
//! the target's final state on.
//!
//! ```text
//! state = gelu(ln_i (proj_i state + c emb_i token))
//! logits = head_i state
//! ```
//!
//! The first state is the target's, normed without weights and divided by the root of 2 with `scale_input`. ln is an
//! RMS norm with scale and shift. With n positions of width w, c = sqrt((1 - a^2) w / 2) / a, and a = 0.5^(1 / 2n).
//! GELU is its usual approximation by tanh. Tied weights are those of an earlier position.

use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_kernels::activation::{Activation, add_scaled, rms_norm_in_place};
use serde_json::Value;

use super::last_state::{LastStateNetwork, ProductSpace};
use super::linear::{Linear, vector};
use crate::tensor_files::TensorFiles;

/// Most positions.
const MOST: usize = 16;
/// Epsilon of the norms.
const EPS: f32 = 1e-6;

/// Sizes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpeculatorShape {
    prefix: &'static str,
    /// Tokens that are drafted.
    pub(super) positions: usize,
    inner: usize,
    scale_input: bool,
    /// Width of the target.
    pub(super) width: usize,
    /// Tokens of the vocabulary.
    pub(super) n_vocab: usize,
}

impl SpeculatorShape {
    /// Recognises the tensors of an MLP speculator. `config` has the number of positions.
    pub(super) fn of(file: &TensorFiles, config: &Value) -> Option<Self> {
        let has = |prefix: &&str| file.shape(&format!("{prefix}emb.0.weight")).is_some();
        let prefix = ["speculator.", ""].into_iter().find(has)?;
        let [n_vocab, inner] = *file.shape(&format!("{prefix}emb.0.weight"))? else { return None };
        let [_, width] = *file.shape(&format!("{prefix}proj.0.weight"))? else { return None };
        let heads =
            (0..MOST).take_while(|i| file.shape(&format!("{prefix}head.{i}.weight")).is_some()).count();
        let stated = config.get("n_predict").and_then(Value::as_u64).map(|count| count as usize);
        let positions = stated.unwrap_or(heads).clamp(1, MOST);
        let scale_input = config.get("scale_input").and_then(Value::as_bool).unwrap_or(false);
        Some(Self { prefix, positions, inner, scale_input, width, n_vocab })
    }

    /// Returns whether a tensor belongs to it.
    pub(super) fn has(self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(self.prefix) else { return false };
        let parts: Vec<&str> = name.split('.').collect();
        let [part, i, kind] = parts[..] else { return false };
        let inside = i.parse().is_ok_and(|i: usize| i < self.positions);
        inside && matches!((part, kind), ("emb" | "proj" | "head" | "ln", "weight") | ("ln", "bias"))
    }
}

/// The networks of all positions.
pub(super) struct Speculator {
    positions: Vec<SpeculatorPosition>,
    scale_input: bool,
    /// Factor of embeddings.
    factor: f32,
    bytes: usize,
}

struct SpeculatorPosition {
    embedding: Linear,
    projection: Linear,
    scale: Vec<f32>,
    shift: Vec<f32>,
    head: Linear,
}

impl Speculator {
    /// Loads the networks.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(file: &TensorFiles, shape: SpeculatorShape, threads: &Threads) -> Result<Self> {
        let SpeculatorShape { prefix, positions, inner, scale_input, width, n_vocab } = shape;
        // Tied weights are stored once, at the first position of their shape.
        let name = |part: &str, i: usize, first: usize| {
            let own = (first..=i).rev().map(|i| format!("{prefix}{part}.{i}"));
            let stored = |name: &String| file.shape(&format!("{name}.weight")).is_some();
            own.into_iter().find(stored).unwrap_or_else(|| format!("{prefix}{part}.{i}"))
        };
        let matrix = |name: &str, n, k| Linear::load(&file.weights, name, (n, k), threads);
        let position = |i: usize| {
            let (from, first) = if i == 0 { (width, 0) } else { (inner, 1) };
            let norm = name("ln", i, 0);
            Ok(SpeculatorPosition {
                embedding: matrix(&name("emb", i, 0), n_vocab, inner)?,
                projection: matrix(&name("proj", i, first), inner, from)?,
                scale: vector(&file.weights, &format!("{norm}.weight"), inner)?,
                shift: vector(&file.weights, &format!("{norm}.bias"), inner)?,
                head: matrix(&name("head", i, 0), n_vocab, inner)?,
            })
        };
        let positions: Vec<SpeculatorPosition> = (0..positions).map(position).collect::<Result<_>>()?;
        let share = 0.5f64.powf(0.5 / positions.len() as f64);
        let factor = ((1.0 - share * share) * inner as f64 / 2.0).sqrt() / share;
        let bytes = positions.last().map_or(0, |last| last.projection.bytes(inner) + last.head.bytes(inner));
        Ok(Self { positions, scale_input, factor: factor as f32, bytes })
    }
}

impl LastStateNetwork for Speculator {
    fn reads_drafts(&self) -> bool {
        true
    }

    fn depth(&self) -> usize {
        self.positions.len()
    }

    fn step(
        &self,
        space: &mut ProductSpace<'_>,
        at: usize,
        state: &mut Vec<f32>,
        token: TokenId,
    ) -> Result<Vec<f32>> {
        let SpeculatorPosition { embedding, projection, scale, shift, head } = &self.positions[at];
        if at == 0 && self.scale_input {
            let ones = vec![1.0; state.len()];
            rms_norm_in_place(state, &ones, EPS);
            state.iter_mut().for_each(|value| *value *= std::f32::consts::FRAC_1_SQRT_2);
        }
        if token as usize >= embedding.matrix.rows() {
            return Err(Error::Internal(format!("the head does not know token {token}")));
        }
        let mut next = vec![0.0; projection.matrix.rows()];
        projection.apply(space.threads, state, space.quantised, &mut next, false);
        add_scaled(&mut next, &embedding.row(token as usize)?, self.factor);
        rms_norm_in_place(&mut next, scale, EPS);
        next.iter_mut().zip(shift).for_each(|(value, shift)| *value += shift);
        let ones = vec![1.0; next.len()];
        Activation::Gelu.gate(&mut next, &ones);
        let mut logits = vec![0.0; head.matrix.rows()];
        head.apply(space.threads, &next, space.quantised, &mut logits, false);
        *state = next;
        Ok(logits)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
