//! Costs of passes from which depth controllers start: predicted for GPUs and mixtures of experts, or timed after the
//! warm-up. The controllers decide, and replace these costs by those that they see.

use hunch_core::limits::MAX_ROWS;
use hunch_core::propose::{Needs, Stage};
use hunch_model::decoder::{Decoder, WarmTimes};
use hunch_model::device::Compute;

/// Costs of passes of the loaded models that are assumed until some are seen.
#[derive(Clone, Debug, Default)]
pub(super) struct CostPriors {
    /// Milliseconds of a target pass by rows. Empty if unknown, as on the CPU.
    pub(super) target_ms: Vec<(usize, f64)>,
    /// Times of target passes, measured after the warm-up. `None` if it failed.
    pub(super) warm: Option<WarmTimes>,
    /// Milliseconds of a pass of the draft model over one row.
    pub(super) draft_ms: Option<f64>,
    /// Cost of a target pass by rows, in passes of one row. Empty if unknown, as for dense models.
    growth: Vec<(usize, f64)>,
}

/// Arithmetic of each row after the first, in plain passes, if no passes were timed. It is the least that a depth
/// controller's cost model assumes.
const ROW: f64 = 1.0 / MAX_ROWS as f64;

impl CostPriors {
    /// Predicts the passes of a target with these times after the warm-up.
    pub(super) fn of_target(target: &Decoder, warm: Option<WarmTimes>, compute: &Compute) -> Self {
        let growth = target.predicted_growth(MAX_ROWS).unwrap_or_default();
        // The timed cost of a row, without the experts that it reads.
        let experts = growth.last().map_or(0.0, |(rows, read)| (read - 1.0) / (rows - 1) as f64);
        let row = warm.and_then(|warm| warm.row).map_or(ROW, |row| (row - experts).max(0.0));
        Self {
            target_ms: target.predicted_ms(compute, MAX_ROWS).unwrap_or_default(),
            warm,
            draft_ms: None,
            growth: growth.into_iter().map(|(rows, read)| (rows, read + row * (rows - 1) as f64)).collect(),
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
mod tests {
    use super::super::{GenerationPlan, Models};
    use super::CostPriors;
    use candle_core::quantized::GgmlDType;
    use hunch_core::method::Method;
    use hunch_model::decoder::{Decoder, WarmTimes};
    use hunch_model::device::{Compute, DeviceChoice};
    use hunch_model::metal::selftest::GpuTimes;
    use hunch_testing::idle_gpu::IdleGpu;
    use hunch_testing::tiny::{self, Tiny};

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

    /// More rows share experts, so the first further rows cost more than later ones.
    #[test]
    fn mixtures_are_predicted_from_the_experts_that_passes_read() {
        let cpu = Compute::open(DeviceChoice::Cpu, Some(1)).unwrap();
        let passes = |tiny: Tiny, row| {
            let folder = tempfile::tempdir().unwrap();
            let target = Decoder::open(&tiny.write(folder.path(), "target"), &cpu).unwrap();
            let warm = Some(WarmTimes { plain_ms: 1.0, row: Some(row) });
            CostPriors::of_target(&target, warm, &cpu).passes().to_vec()
        };
        assert!(passes(Tiny::default(), 0.5).is_empty(), "dense");
        let mixture = passes(tiny::further(tiny::MIXTURE), 0.5);
        let cost_of_row = |rows: usize| mixture[rows - 1].1 - mixture[rows - 2].1;
        assert!(cost_of_row(2) > cost_of_row(16), "{mixture:?}");
        assert!((mixture[15].1 - (1.0 + 15.0 * 0.5)).abs() < 1e-9, "as timed: {mixture:?}");
        let free = passes(tiny::further(tiny::MIXTURE), 0.0);
        assert!(free[1].1 > 1.0, "experts are read, whatever was timed: {free:?}");
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
