//! Output heads of published heads: a matrix of their own or the target's, over the whole vocabulary or a part of it.

use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{Threads, WeightMatrix};

use super::linear::{Linear, product, target_head};
use super::target_parts::TargetParts;
use super::vocabulary::draft_vocabulary;
use crate::spec::LogitScaling;
use crate::tensor_files::TensorFiles;

/// Tensors of an output head.
pub(super) const TENSORS: [&str; 3] = ["lm_head.weight", "lm_head.bias", "d2t"];

/// Matrix that scores tokens.
pub(super) struct OutputHead {
    matrix: WeightMatrix,
    bias: Option<Vec<f32>>,
    /// Scaling of the target's logits, if the matrix is the target's.
    scaling: LogitScaling,
    /// Token of each row of the matrix. `None` if it scores the whole vocabulary.
    vocabulary: Option<Vec<TokenId>>,
    n_vocab: usize,
    /// Values of a state.
    n: usize,
    bytes: usize,
}

impl OutputHead {
    /// Loads the head for states of `n` values. `stated` is the number of tokens that the configuration says it scores.
    ///
    /// # Errors
    /// If a tensor has the wrong shape or is not finite, or the vocabulary does not fit the target's.
    pub(super) fn load(
        file: &TensorFiles,
        n: usize,
        stated: Option<usize>,
        target: &TargetParts<'_>,
    ) -> Result<Self> {
        let (n_vocab, threads) = (target.spec.n_vocab, target.compute.threads());
        let weights = &file.weights;
        let invalid = |reason: String| Error::InvalidModelFile { path: weights.gguf().path.clone(), reason };
        let scored =
            file.shape("lm_head.weight").map_or(n_vocab, |shape| shape.first().copied().unwrap_or(0));
        if let Some(stated) = stated.filter(|stated| *stated != scored) {
            return Err(invalid(format!("its head scores {scored} tokens, but config.json says {stated}")));
        }
        let vocabulary = match file.integers("d2t")? {
            Some(d2t) if d2t.len() == scored => {
                draft_vocabulary(&d2t, file.flags("t2d")?.as_deref(), n_vocab).map(Some).map_err(invalid)?
            }
            Some(d2t) => return Err(invalid(format!("d2t has {} entries for {scored} tokens", d2t.len()))),
            None if scored == n_vocab => None,
            None => {
                return Err(invalid(format!("it scores {scored} of {n_vocab} tokens, and d2t is missing")));
            }
        };
        let (matrix, bias, scaling, bytes) = if file.shape("lm_head.weight").is_some() {
            let own = Linear::load(weights, "lm_head", (scored, n), threads)?;
            let bytes = own.bytes(n);
            (own.matrix, own.bias, LogitScaling::NONE, bytes)
        } else {
            let shared = target_head(target.file, target.decoder, &target.spec, threads)?;
            (shared, None, target.spec.logit_scaling(), target.file.head_bytes())
        };
        Ok(Self { matrix, bias, scaling, vocabulary, n_vocab, n, bytes })
    }

    /// Computes the logits `[rows, n_vocab]` of normed states. Tokens that are not scored get minus infinity.
    pub(super) fn logits(
        &self,
        threads: &Threads,
        normed: &[f32],
        quantised: &mut QuantisedRows,
    ) -> Vec<f32> {
        let (scored, rows) = (self.matrix.rows(), normed.len() / self.n);
        let mut scores = vec![0.0; rows * scored];
        product(threads, normed, quantised, &self.matrix, self.bias.as_deref(), &mut scores, false);
        self.scaling.apply(&mut scores);
        let Some(vocabulary) = &self.vocabulary else { return scores };
        let mut logits = vec![f32::NEG_INFINITY; rows * self.n_vocab];
        for (logits, scores) in logits.chunks_exact_mut(self.n_vocab).zip(scores.chunks_exact(scored)) {
            for (&token, &score) in vocabulary.iter().zip(scores) {
                logits[token as usize] = score;
            }
        }
        logits
    }

    /// Returns the number of tokens that are scored.
    pub(super) fn scored(&self) -> usize {
        self.matrix.rows()
    }

    /// Adds values to the logits `[n_vocab]` of the scored tokens.
    pub(super) fn add(&self, logits: &mut [f32], values: &[f32]) {
        let Some(vocabulary) = &self.vocabulary else {
            return logits.iter_mut().zip(values).for_each(|(logit, value)| *logit += value);
        };
        for (&token, value) in vocabulary.iter().zip(values) {
            logits[token as usize] += value;
        }
    }

    /// Returns the bytes of weights that a row reads.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
