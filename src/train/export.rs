//! Export: from trained tensors to the file that decoding loads, with the scale of the states folded in.

use std::path::Path;

use candle_core::Tensor;
use hunch_error::Result;
use hunch_model::heads::{self, MlpWeights};

use super::TrainingTarget;
use super::fit::FitRun;

/// Writes the best weights of a fit. A file at `path` is replaced in one step.
///
/// # Errors
/// As [`heads::write_mlp`].
pub fn write(target: &TrainingTarget, fit: &FitRun<'_>, path: &Path) -> Result<()> {
    let values = |tensor: &Tensor| -> Result<Vec<f32>> { Ok(tensor.flatten_all()?.to_vec1::<f32>()?) };
    let mut weights = fit.best().iter().map(values).collect::<Result<Vec<_>>>()?.into_iter();
    let mut next = || weights.next().unwrap_or_default();
    let (mut fc, mut fc_bias, norm, gate, up, down) = (next(), next(), next(), next(), next(), next());
    let standard = fit.standard();
    let (n, inputs) = (target.rows.n_embd, target.inputs() * target.rows.n_embd);
    // The network reads (f - mean) / deviation, the file f itself.
    for (row, bias) in fc.chunks_exact_mut(inputs).zip(&mut fc_bias) {
        let scales = standard.mean.iter().zip(&standard.deviation);
        for (weight, (mean, deviation)) in row[..n].iter_mut().zip(scales) {
            *weight /= deviation;
            *bias -= *weight * mean;
        }
    }
    let layers = target.taps.split_last().map_or(Vec::new(), |(_, layers)| layers.to_vec());
    heads::write_mlp(
        path,
        &MlpWeights {
            layers,
            vocabulary: fit.vocabulary().to_vec(),
            feed_forward: gate.len() / n,
            fc,
            fc_bias,
            norm,
            gate,
            up,
            down,
            out_scale: standard.deviation.clone(),
            out_shift: standard.mean.clone(),
            training_tokens: fit.training_tokens(),
            acceptance: fit.best_acceptance().sampled,
            target_name: target.rows.name.clone(),
            target: target.fingerprint()?,
        },
    )
}
