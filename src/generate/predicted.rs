//! Costs of passes from which depth controllers start: predicted for GPUs and mixtures of experts, and timed after the
//! warm-up. Nothing here is measured or decided.

use hunch_core::limits::MAX_ROWS;
use hunch_core::propose::{Needs, Stage};
use hunch_model::decoder::{Decoder, WarmTimes};
use hunch_model::device::Compute;

/// Predicted times of passes of the loaded models.
#[derive(Clone, Debug, Default)]
pub(super) struct PredictedCosts {
    /// Milliseconds of a target pass by rows. Empty if unknown, as on the CPU.
    pub(super) target_ms: Vec<(usize, f64)>,
    /// Times of target passes, measured after the warm-up. `None` if it failed.
    pub(super) warm: Option<WarmTimes>,
    /// Milliseconds of a pass of the draft model over one row.
    pub(super) draft_ms: Option<f64>,
    /// Cost of a target pass by rows, in passes of one row. Empty if unknown, as for dense models.
    growth: Vec<(usize, f64)>,
}

/// Arithmetic of each row after the first, in plain passes. Assumed, as for dense models.
const ROW: f64 = 1.0 / 16.0;

impl PredictedCosts {
    /// Predicts the passes of a target with these times after the warm-up.
    pub(super) fn of_target(target: &Decoder, warm: Option<WarmTimes>, compute: &Compute) -> Self {
        let growth = target.predicted_growth(MAX_ROWS).unwrap_or_default();
        Self {
            target_ms: target.predicted_ms(compute, MAX_ROWS).unwrap_or_default(),
            warm,
            draft_ms: None,
            growth: growth.into_iter().map(|(rows, read)| (rows, read + ROW * (rows - 1) as f64)).collect(),
        }
    }

    /// Returns the predicted costs of target passes by rows, in any unit. Empty if unknown.
    pub(super) fn passes(&self) -> &[(usize, f64)] {
        if self.target_ms.is_empty() { &self.growth } else { &self.target_ms }
    }

    /// Returns the predicted cost of a drafted token in plain passes. Only for drafts of the draft model.
    pub(super) fn draft_cost(&self, stage: &Stage) -> Option<f64> {
        let (_, plain) = self.target_ms.first()?;
        self.draft_ms.filter(|_| stage.needs() == Needs::DraftModel).map(|ms| ms / plain)
    }
}

#[cfg(test)]
#[path = "../../tests/it/support/gguf_writer.rs"]
#[allow(dead_code, reason = "the program's tests use more of it")]
mod gguf_writer;
#[cfg(test)]
#[path = "../../tests/it/support/tiny.rs"]
#[allow(dead_code, reason = "the program's tests use more of it")]
mod tiny;

#[cfg(test)]
mod tests {
    use super::super::{GenerationPlan, Models};
    use super::tiny::{self, Tiny};
    use crate::idle_gpu::IdleGpu;
    use candle_core::quantized::GgmlDType;
    use hunch_core::method::Method;
    use hunch_model::device::{Compute, DeviceChoice};
    use hunch_model::metal::selftest::GpuTimes;

    /// Predicted speedups of depths 1 to 8, before any pass.
    fn gains(compute: &Compute, method: Method) -> Vec<f32> {
        let folder = tempfile::tempdir().unwrap();
        let tiny = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() };
        let target = Tiny { layers: 3, ..tiny }.write(folder.path(), "target");
        let draft = Tiny { layers: 1, ..tiny }.write(folder.path(), "draft");
        let mut models = Models::load(&target, Some(&draft), compute).unwrap();
        let plan = GenerationPlan { method, ..GenerationPlan::default() };
        let resources = models.prepare(&plan).unwrap();
        resources.depth.state(0).gains
    }

    #[test]
    fn depth_starts_from_the_experts_that_passes_read() {
        let cpu = Compute::open(DeviceChoice::Cpu, Some(1)).unwrap();
        let gains = |tiny: Tiny| {
            let folder = tempfile::tempdir().unwrap();
            let mut models = Models::load(&tiny.write(folder.path(), "target"), None, &cpu).unwrap();
            let plan = GenerationPlan { method: Method::Ngram, ..GenerationPlan::default() };
            models.prepare(&plan).unwrap().depth.state(0).gains
        };
        let (dense, mixture) = (gains(Tiny::default()), gains(tiny::further(tiny::MIXTURE)));
        assert!(mixture.iter().zip(&dense).all(|(mixture, dense)| mixture < dense), "{mixture:?} {dense:?}");
    }

    #[test]
    fn depth_starts_from_the_predicted_costs_of_a_gpu() {
        let speed = |product_ms: Vec<f64>| GpuTimes { product_ms, product_bytes: 100, memory_gb_s: 1.0 };
        let on_gpu = |product_ms| IdleGpu::tested("idle GPU", Some(speed(product_ms)));
        // Rows are free, or cost as much as a pass each.
        let flat = on_gpu(vec![1e3; 16]);
        let steep = on_gpu((1..=16).map(|rows| 1e3 * f64::from(rows)).collect());
        let cpu = Compute::open(DeviceChoice::Cpu, Some(1)).unwrap();
        let all = [&flat, &cpu, &steep].map(|compute| gains(compute, Method::Ngram));
        for depth in 0..8 {
            assert!(all[0][depth] > all[1][depth] && all[1][depth] > all[2][depth], "{all:?}");
        }
        assert!(all[2].iter().all(|gain| *gain < 1.0), "{all:?}");
        // The draft reads less than half of the bytes, but its dispatches take as much time for each layer.
        let slow = on_gpu(vec![1e-9; 16]);
        let [by_products, by_dispatches] =
            [&flat, &slow].map(|compute| gains(compute, Method::DraftModel)[7]);
        assert!(by_dispatches < by_products, "{by_dispatches} {by_products}");
    }
}
