//! Angles of the rotary embedding (Su et al., arXiv 2104.09864). The rotation itself is not here.
//!
//! Frequency i is base^(-2i / dim), divided by a factor of the file if it has any. Factors are `rope_freqs`
//! of Llama 3, or `rope_factors_long` and `rope_factors_short` of longrope (Ding et al., arXiv 2402.13753).
//! Linear scaling divides all frequencies. YaRN (Peng et al., arXiv 2309.00071) divides only those that
//! turn too seldom within the original context.

use candle_core::Device;

use crate::spec::{LayerRope, ModelSpec, QueryTemperature, Yarn};
use crate::weights::WeightFile;
use hunch_error::Result;

/// Rotary frequencies of a model, or of its layers with a sliding window.
pub(crate) struct RopeTable {
    frequencies: Vec<f64>,
    /// Factor of cosines and sines.
    magnitude: f64,
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
        // Longrope has one set of factors for the original context and one for longer contexts.
        let longrope = if spec.context_length > spec.original_context {
            "rope_factors_long.weight"
        } else {
            "rope_factors_short.weight"
        };
        let factors = match ["rope_freqs.weight", longrope].into_iter().find(|name| file.has(name)) {
            Some(name) => file.vector(name, half, &Device::Cpu)?.to_vec1::<f32>()?,
            None => vec![1.0; half],
        };
        Ok(Self::with_factors(spec, factors))
    }

    /// Computes the frequencies of a model. Each is divided by its factor, `[rope_dim / 2]`.
    pub(crate) fn with_factors(spec: &ModelSpec, factors: Vec<f32>) -> Self {
        let unscaled = frequencies(f64::from(spec.rope_base), spec.rope_dim);
        let ramp = spec.yarn.map(|yarn| Ramp::new(yarn, spec));
        let scaled = |(i, (frequency, factor)): (usize, (f64, f32))| {
            let frequency = frequency / f64::from(factor);
            let kept = ramp.as_ref().map_or(0.0, |ramp| ramp.unscaled_share(i));
            frequency / f64::from(spec.rope_scale) * (1.0 - kept) + frequency * kept
        };
        let frequencies = unscaled.zip(factors).enumerate().map(scaled).collect();
        Self { frequencies, magnitude: f64::from(spec.rope_magnitude) }
    }

    /// Computes the frequencies of the layers with a sliding window. `None` if they do not differ.
    pub(crate) fn local(spec: &ModelSpec) -> Option<Self> {
        let local = spec.local_rope?;
        let frequencies = frequencies(f64::from(local.base), local.dim).collect();
        Some(Self { frequencies, magnitude: 1.0 })
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
                angles.cos.push((c * self.magnitude) as f32);
                angles.sin.push((s * self.magnitude) as f32);
            }
        }
        angles
    }
}

fn frequencies(base: f64, dim: usize) -> impl Iterator<Item = f64> {
    (0..dim / 2).map(move |i| base.powf(-2.0 * i as f64 / dim as f64))
}

/// Ramp of YaRN over the indices of frequencies.
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    fn new(yarn: Yarn, spec: &ModelSpec) -> Self {
        let (dim, context) = (spec.rope_dim as f64, spec.original_context as f64);
        // Index of the frequency that turns `rotations` times within the original context.
        let index = |rotations: f32| {
            let wavelength = context / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
            dim * wavelength.ln() / (2.0 * f64::from(spec.rope_base).ln())
        };
        Self {
            low: index(yarn.beta_fast).floor().max(0.0),
            high: index(yarn.beta_slow).ceil().min(dim - 1.0),
        }
    }

    /// Returns the share of the unscaled frequency at index `i`, from 0 to 1.
    fn unscaled_share(&self, i: usize) -> f64 {
        1.0 - ((i as f64 - self.low) / (self.high - self.low).max(0.001)).clamp(0.0, 1.0)
    }
}

/// Rotary frequencies of all layers.
pub(crate) struct Rope {
    global: RopeTable,
    local: Option<RopeTable>,
    temperature: Option<QueryTemperature>,
}

/// Angles of a pass for all layers, and the factors of its queries.
#[derive(Default)]
pub(crate) struct PassAngles<A = Angles> {
    global: A,
    local: Option<A>,
    /// Factor of the queries of each row. Empty for none.
    pub(crate) query_factors: Vec<f32>,
}

impl Rope {
    /// Computes the frequencies from a model file.
    ///
    /// # Errors
    /// See [`RopeTable::new`].
    pub(crate) fn new(file: &WeightFile, spec: &ModelSpec) -> Result<Self> {
        Ok(Self {
            global: RopeTable::new(file, spec)?,
            local: RopeTable::local(spec),
            temperature: spec.query_temperature,
        })
    }

    /// Computes the angles for the given positions.
    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize> + Clone) -> PassAngles {
        let factors = |temperature: &QueryTemperature| {
            positions.clone().map(|position| temperature.factor(position)).collect()
        };
        PassAngles {
            query_factors: self.temperature.as_ref().map(factors).unwrap_or_default(),
            local: self.local.as_ref().map(|table| table.angles(positions.clone())),
            global: self.global.angles(positions),
        }
    }
}

impl<A> PassAngles<A> {
    /// Returns the angles of a layer. `None` if it has no rotary embedding.
    pub(crate) fn of(&self, layer: LayerRope) -> Option<&A> {
        match layer {
            LayerRope::None => None,
            LayerRope::Global => Some(&self.global),
            LayerRope::Local => Some(self.local.as_ref().unwrap_or(&self.global)),
        }
    }

    /// Converts the angles, for example to tensors.
    ///
    /// # Errors
    /// Any error of `convert`.
    pub(crate) fn try_map<B>(self, convert: impl Fn(A) -> Result<B>) -> Result<PassAngles<B>> {
        Ok(PassAngles {
            global: convert(self.global)?,
            local: self.local.map(convert).transpose()?,
            query_factors: self.query_factors,
        })
    }
}
