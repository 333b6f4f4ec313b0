//! Judges the low-bit copy of a target as its draft, from the target's header while the copy is not written yet.

use std::path::Path;

use super::{ModelHeader, OpenTarget, Pairs};
use crate::data_folders::{is_low_bit_copy, low_bit_path_in};
use crate::fit;
use crate::inspect::inspection;
use crate::speed_log::{ModelId, SpeedLog};
use crate::types::LowBitOffer;
use hunch_error::Result;
use hunch_model::low_bit;
use hunch_model::weights::WeightFile;

/// Assumed acceptance of a low-bit copy: the median of three models at temperatures 0 and 0.7. SmolLM2 135M had 0.69 and
/// 0.75, Qwen2.5-Coder 0.5B 0.81 and 0.86, Qwen2.5-Coder 1.5B 0.80 and 0.73. They follow from the shares that were accepted
/// of drafts of 3 tokens, over 4 prompts of at most 96 tokens.
const ACCEPTANCE: f64 = 0.77;

impl Pairs<'_> {
    /// Judges the low-bit copy of a target. `None` without a data folder, or if the copy would not be smaller.
    pub(super) fn low_bit_offer(
        &self,
        OpenTarget { header: target, file }: OpenTarget<'_>,
        context: u32,
    ) -> Result<Option<LowBitOffer>> {
        let Some(data) = self.copies else { return Ok(None) };
        let path = low_bit_path_in(data, &file.gguf().path)?;
        let (copy, written) = self.read_copy(file, &path)?;
        if copy.footprint.weight_bytes >= target.footprint.weight_bytes {
            return Ok(None);
        }
        let both = fit::fit(&target.footprint, Some(&copy.footprint), context, self.machine);
        let ratio = copy.footprint.read_by_a_pass as f64 / target.footprint.read_by_a_pass.max(1) as f64;
        let measured = |all: &SpeedLog| all.speedup(&ModelId::of(&target.entry), &ModelId::of(&copy.entry));
        Ok(Some(LowBitOffer {
            written,
            path: path.display().to_string(),
            size_bytes: copy.entry.size_bytes,
            memory: both.total,
            fit: both.verdict,
            predicted: self.predicted(target, Some(&copy), ratio, ACCEPTANCE),
            measured: self.measured.and_then(measured),
        }))
    }

    /// Reads the header of a draft, which may be the target's low-bit copy.
    pub(super) fn read_draft(&self, target: &WeightFile, draft: &Path) -> Result<ModelHeader> {
        // The folder is compared first: the name of the copy takes a fingerprint of the target.
        let is_copy = |data| {
            is_low_bit_copy(data, draft)
                && low_bit_path_in(data, &target.gguf().path).is_ok_and(|copy| copy == draft)
        };
        if self.copies.is_some_and(is_copy) { Ok(self.read_copy(target, draft)?.0) } else { self.read(draft) }
    }

    /// Reads the header of the target's low-bit copy, and returns whether the copy is written. Until then, and if it was
    /// damaged since, the header is that of the copy to come.
    fn read_copy(&self, target: &WeightFile, copy: &Path) -> Result<(ModelHeader, bool)> {
        if let Ok(written) = self.read(copy) {
            return Ok((written, true));
        }
        let planned = low_bit::planned(target.gguf(), copy);
        Ok((self.header(inspection(copy, &planned)?, &planned)?, false))
    }
}
