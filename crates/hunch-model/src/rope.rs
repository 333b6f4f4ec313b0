//! The angles of the rotary embedding (Su et al., arXiv 2104.09864): frequency i is
//! base^(-2i / dim), divided by Llama 3's per-frequency factors (`rope_freqs.weight`) where the model
//! has them.

use candle_core::Device;

use crate::spec::ModelSpec;
use crate::weights::WeightFile;
use hunch_error::Result;

/// The frequencies of a model.
pub struct RopeTable {
    frequencies: Vec<f64>,
}

/// Cosines and sines `[rows, dim / 2]` of the rows of a pass.
#[derive(Clone, Debug, Default)]
pub struct Angles {
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
}

impl RopeTable {
    /// The frequencies of a model file.
    ///
    /// # Errors
    /// When its factors have another length than it says.
    pub fn new(file: &WeightFile, spec: &ModelSpec) -> Result<Self> {
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

    /// Half the rotated width of a head.
    pub fn half(&self) -> usize {
        self.frequencies.len()
    }

    /// The angles of the positions, a row each.
    pub fn angles(&self, positions: impl Iterator<Item = usize>) -> Angles {
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
