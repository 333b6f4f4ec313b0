//! Parameters of rotary embeddings, read from GGUF metadata.

use super::architectures::Architecture;
use super::reader::SpecReader;
use super::{LayerRope, LayerSpec, LocalRope, QueryTemperature, RopeKind, Yarn};
use crate::gguf::ROPE_HALVES;
use hunch_error::Result;

impl SpecReader<'_> {
    pub(super) fn local_rope(
        &self,
        architecture: &Architecture,
        layers: &[LayerSpec],
        (base, dim): (f32, usize),
    ) -> Result<Option<LocalRope>> {
        let Some(default) = architecture.local_rope else {
            // llama.cpp rotates the chunks of Llama 4 by it.
            let of_chunks = self.gguf.f32(&self.key("rope.freq_base_swa"));
            let differs =
                layers.iter().any(|layer| layer.chunked) && of_chunks.is_some_and(|own| own != base);
            return match differs {
                true => Err(self.unsupported("its chunks have another rotary embedding".into())),
                false => Ok(None),
            };
        };
        if !layers.iter().any(|layer| layer.rope == LayerRope::Local) {
            return Ok(None);
        }
        let default = if default > 0.0 { default } else { base };
        let base = self.positive("rope.freq_base_swa", default)?;
        let own = if architecture.varied_layers {
            self.optional_size("rope.dimension_count_swa", 1 << 12)?
        } else {
            None
        };
        Ok(Some(LocalRope { base, dim: own.unwrap_or(dim) }))
    }

    /// Returns the pairing of the architecture, or of the file where its rows are in another order.
    pub(super) fn rope_kind(&self, architecture: &Architecture) -> RopeKind {
        let halves = self.gguf.bool(ROPE_HALVES) == Some(true);
        if halves { RopeKind::Halves } else { architecture.rope_kind }
    }

    fn scaling_type(&self) -> Option<&str> {
        self.gguf.str(&self.key("rope.scaling.type"))
    }

    pub(super) fn rope_scale(&self) -> Result<f32> {
        match self.scaling_type() {
            Some("none") => Ok(1.0),
            // Without a type, a factor means linear scaling.
            None | Some("linear" | "yarn" | "longrope") => {
                let key = self.key("rope.scaling.factor");
                let factor = self.gguf.f32(&key).filter(|&factor| factor != 0.0);
                factor.map_or(Ok(1.0), |_| self.positive("rope.scaling.factor", 1.0))
            }
            Some(other) => Err(self.unsupported(format!("its RoPE scaling is \"{other}\""))),
        }
    }

    pub(super) fn yarn(&self) -> Result<Option<Yarn>> {
        if self.scaling_type() != Some("yarn") {
            return Ok(None);
        }
        Ok(Some(Yarn {
            beta_fast: self.positive("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: self.positive("rope.scaling.yarn_beta_slow", 1.0)?,
        }))
    }

    /// Returns the factor of rotated queries and keys.
    ///
    /// YaRN's is 1 + 0.1 ln(factor), divided by 1 + 0.1 m ln(factor) for `yarn_log_multiplier` m.
    pub(super) fn rope_magnitude(&self, yarn: Option<Yarn>, factor: f32) -> Result<f32> {
        let given = self.positive("rope.scaling.attn_factor", 1.0)?;
        if yarn.is_none() || factor <= 1.0 {
            return Ok(given);
        }
        let growth = |multiplier: f32| 1.0 + 0.1 * multiplier * factor.ln();
        let multiplier = self.gguf.f32(&self.key("rope.scaling.yarn_log_multiplier")).unwrap_or(0.0);
        let magnitude = given * growth(1.0) / growth(multiplier);
        if magnitude.is_finite() && magnitude > 0.0 {
            return Ok(magnitude);
        }
        Err(self.invalid(format!("rope.scaling.yarn_log_multiplier is {multiplier}")))
    }

    pub(super) fn query_temperature(&self, period: usize) -> Result<Option<QueryTemperature>> {
        let key = self.key("attention.temperature_scale");
        let Some(scale) = self.gguf.f32(&key).filter(|&scale| scale != 0.0) else { return Ok(None) };
        if !scale.is_finite() || scale < 0.0 {
            return Err(self.invalid(format!("{key} is {scale}, but it must be positive")));
        }
        Ok(Some(QueryTemperature { scale, period, offset: 0, unrotated_only: false }))
    }

    /// Rejects rotary embeddings of which some elements rotate by the place in an image.
    ///
    /// Qwen3.5, which `is_for_text`, gives its pairs of elements to time, height and width in turn. For text the three
    /// are the same position. A pair beyond the sections would not rotate.
    pub(super) fn reject_sections(&self, is_for_text: bool) -> Result<()> {
        let sections = self.gguf.i32s(&self.key("rope.dimension_sections")).unwrap_or_default();
        let pairs = self.optional_size("rope.dimension_count", 1 << 12)?.unwrap_or(0) as i64 / 2;
        let covers =
            |pair: i64| sections.get(pair as usize % 3).is_some_and(|&own| pair < 3 * i64::from(own));
        let is_text = is_for_text && pairs > 0 && (0..pairs).all(covers);
        if sections.iter().any(|&pairs| pairs > 0) && !is_text {
            return Err(self.unsupported("it has a rotary embedding for images".into()));
        }
        Ok(())
    }
}
