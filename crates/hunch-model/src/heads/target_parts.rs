//! Parts of a target that a published head borrows: its file, decoder and sizes, and the streams that the head reads.

use std::sync::Arc;

use hunch_error::Result;

use crate::decoder::Decoder;
use crate::device::Compute;
use crate::spec::ModelSpec;
use crate::weights::{Embedding, WeightFile};

/// The target that a head is loaded for.
pub(super) struct TargetParts<'a> {
    pub(super) file: &'a WeightFile,
    pub(super) decoder: &'a Decoder,
    /// Its sizes, with the context that it was loaded for.
    pub(super) spec: ModelSpec,
    pub(super) compute: &'a Compute,
}

/// Returns the target's embedding, shared with the decoder where both run on the CPU.
///
/// # Errors
/// If the target's file cannot be read, or memory is short.
pub(super) fn embedding(target: &TargetParts<'_>) -> Result<Arc<Embedding>> {
    if let Some(shared) = target.decoder.host_embedding() {
        return Ok(shared);
    }
    let table = (target.spec.n_vocab, target.spec.n_embd);
    Ok(Arc::new(target.file.host_embedding(table, None, target.compute.threads())?))
}

/// Returns `count` taps of a target with n = `layers` layers: those that the head states, or the usual ones. They are
/// after the layers 1, n/2 - 1 and n - 4.
///
/// # Errors
/// If the target has not as many layers.
pub(super) fn taps(
    layers: usize,
    stated: Option<&[usize]>,
    count: usize,
) -> std::result::Result<Vec<usize>, String> {
    let usual = || vec![1, (layers / 2).saturating_sub(1), layers.saturating_sub(4)];
    let taps = stated.map_or_else(usual, <[usize]>::to_vec);
    if taps.len() == count && taps.is_sorted_by(|a, b| a < b) && taps.iter().all(|&tap| tap < layers) {
        return Ok(taps);
    }
    Err(format!("it reads a target of other depth, after layers {taps:?}, and this one has {layers} layers"))
}
