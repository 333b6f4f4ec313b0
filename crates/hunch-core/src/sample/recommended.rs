//! Sampling that a model's publisher recommends.

use serde::{Deserialize, Serialize};

use super::SamplingParams;

/// Recommended sampling settings of a model. Absent ones are not part of the recommendation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(default)]
pub struct RecommendedSampling {
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<u32>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repeat_penalty`].
    pub repeat_penalty: Option<f32>,
}

impl RecommendedSampling {
    /// Returns `true` if nothing is recommended.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets a field of [`SamplingParams`] by name.
    ///
    /// # Errors
    /// The reason, as a phrase, if there is no such field, or the number is out of its range.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), String> {
        let range = SamplingParams::ranges().iter().find(|range| range.name == name);
        let range = range.ok_or_else(|| "Hunch has no such setting".to_owned())?;
        // `contains` is false for NaN.
        if !(range.min..=range.max).contains(&value) {
            return Err(format!("it is not in the range {} to {}", range.min, range.max));
        }
        match name {
            "temperature" => self.temperature = Some(value as f32),
            "top_p" => self.top_p = Some(value as f32),
            "min_p" => self.min_p = Some(value as f32),
            "repeat_penalty" => self.repeat_penalty = Some(value as f32),
            "top_k" if value.fract() == 0.0 => self.top_k = Some(value as u32),
            "top_k" => return Err("it is not a whole number".into()),
            _ => return Err("Hunch has no such setting".into()),
        }
        Ok(())
    }

    /// Returns `params` with the recommended settings in place of its own. The others stay.
    #[must_use]
    pub fn over(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(params.temperature),
            top_k: self.top_k.unwrap_or(params.top_k),
            top_p: self.top_p.unwrap_or(params.top_p),
            min_p: self.min_p.unwrap_or(params.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(params.repeat_penalty),
            ..params
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommended_settings_replace_their_own_only() {
        let mut recommended = RecommendedSampling::default();
        assert!(recommended.is_empty());
        recommended.set("temperature", 0.6).unwrap();
        recommended.set("top_k", 20.0).unwrap();
        let default = SamplingParams::default();
        let expected = SamplingParams { temperature: 0.6, top_k: 20, ..default.clone() };
        assert_eq!(recommended.over(default), expected);
        expected.validate().unwrap();
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let mut recommended = RecommendedSampling::default();
        for (name, value) in [
            ("temperature", f64::NAN),
            ("temperature", -1.0),
            ("temperature", f64::INFINITY),
            ("top_p", 1.5),
            ("top_k", -1.0),
            ("top_k", 2.5),
            ("seed", 1.0),
            ("mirostat", 1.0),
        ] {
            assert!(recommended.set(name, value).is_err(), "{name} {value}");
        }
        assert!(recommended.is_empty());
    }
}
