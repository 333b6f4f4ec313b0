//! Markov head of DSpark (arXiv 2607.05147): the token before a place of a block changes its logits.
//!
//! ```text
//! logits = base + W2 W1[token before]
//! ```
//!
//! W1 has a row for each token of the target, W2 one for each token that the head scores. The block itself does not know
//! its drafted tokens, so it still takes one pass.

use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_kernels::quantise::QuantisedRows;

use super::linear::Linear;
use crate::tensor_files::TensorFiles;

/// Weights by the token before.
pub(super) const BEFORE: &str = "markov_head.markov_w1";
/// Weights by the token that is scored.
const SCORED: &str = "markov_head.markov_w2";

/// Returns whether a tensor belongs to a Markov head.
pub(super) fn has(name: &str) -> bool {
    name.strip_suffix(".weight").is_some_and(|name| [BEFORE, SCORED].contains(&name))
}

/// A Markov head.
pub(super) struct Markov {
    before: Linear,
    scored: Linear,
    rank: usize,
}

impl Markov {
    /// Loads the head of a file, if it has one. The target has `n_vocab` tokens, of which `scored` are scored.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(
        file: &TensorFiles,
        (n_vocab, scored): (usize, usize),
        threads: &Threads,
    ) -> Result<Option<Self>> {
        let name = format!("{BEFORE}.weight");
        let rank = match file.shape(&name) {
            None => return Ok(None),
            Some(&[_, rank]) if rank > 0 => rank,
            Some(shape) => {
                let reason = format!("{name} has the shape {shape:?}");
                return Err(Error::InvalidModelFile { path: file.weights.gguf().path.clone(), reason });
            }
        };
        Ok(Some(Self {
            before: Linear::load(&file.weights, BEFORE, (n_vocab, rank), threads)?,
            scored: Linear::load(&file.weights, SCORED, (scored, rank), threads)?,
            rank,
        }))
    }

    /// Returns what is added to the logits of each scored token after `token`.
    ///
    /// # Errors
    /// If the row of the token cannot be read.
    pub(super) fn bias(
        &self,
        threads: &Threads,
        token: TokenId,
        quantised: &mut QuantisedRows,
    ) -> Result<Vec<f32>> {
        let mut bias = vec![0.0; self.scored.matrix.rows()];
        self.scored.apply(threads, &self.before.row(token as usize)?, quantised, &mut bias, false);
        Ok(bias)
    }

    /// Returns the bytes of weights that a token reads, without its row.
    pub(super) fn bytes(&self) -> usize {
        self.scored.bytes(self.rank)
    }
}
