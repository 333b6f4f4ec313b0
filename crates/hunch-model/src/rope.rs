//! Angles of the rotary embedding (Su et al., arXiv 2104.09864). The rotation itself is not here.
//!
//! Frequency i is base^(-2i / dim), divided by the per-frequency factor of Llama 3
//! (`rope_freqs.weight`) if the model has them.

use candle_core::Device;

use crate::spec::ModelSpec;
use crate::weights::WeightFile;
use hunch_error::Result;

/// Rotary frequencies of a model.
pub(crate) struct RopeTable {
    frequencies: Vec<f64>,
}

/// Cosines and sines for the rows of a pass, `[rows, dim / 2]` each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles {
    /// Cosines.
    pub(crate) cos: Vec<f32>,
    /// Sines.
    pub(crate) sin: Vec<f32>,
}

impl RopeTable {
    /// Computes the frequencies from a model file.
    ///
    /// # Errors
    /// If the frequency factors have the wrong length.
    pub(crate) fn new(file: &WeightFile, spec: &ModelSpec) -> Result<Self> {
        let half = spec.rope_dim / 2;
        let factors = if file.has("rope_freqs.weight") {
            file.vector("rope_freqs.weight", half, &Device::Cpu)?.to_vec1::<f32>()?
        } else {
            vec![1.0; half]
        };
        let frequencies = factors
            .iter()
            .enumerate()
            .map(|(i, &factor)| {
                let exponent = -2.0 * i as f64 / spec.rope_dim as f64;
                f64::from(spec.rope_base).powf(exponent) / f64::from(factor) / f64::from(spec.rope_scale)
            })
            .collect();
        Ok(Self { frequencies })
    }

    /// Returns half the rotated width of a head.
    pub(crate) fn half(&self) -> usize {
        self.frequencies.len()
    }

    /// Computes the angles for the given positions, one row per position.
    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize>) -> Angles {
        let mut angles = Angles::default();
        for position in positions {
            for frequency in &self.frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                angles.cos.push(c as f32);
                angles.sin.push(s as f32);
            }
        }
        angles
    }
}
