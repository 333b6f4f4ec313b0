//! Measured costs for tests of the lab.

use hunch_core::pass_cost::{CostCurve, CostPoint, DrafterCosts, ModelCosts};

/// Milliseconds of a target pass of one row.
pub(super) const PLAIN_MS: f64 = 20.0;

/// Creates the time of a pass.
pub(super) fn point(rows: u32, ms: f64) -> CostPoint {
    CostPoint { rows, ms, relative: ms / PLAIN_MS }
}

/// Creates a curve of a target with these times, and of drafters.
pub(super) fn curve(points: Vec<CostPoint>, drafters: Vec<DrafterCosts>) -> CostCurve {
    let target = ModelCosts {
        name: "target".into(),
        points,
        weight_bytes: 1,
        weights: Some(1),
        floor_ms: 1.0,
        experts: None,
    };
    CostCurve {
        measured_ms: 0,
        device: "cpu".into(),
        threads: 2,
        memory_gb_s: 10.0,
        target,
        draft: None,
        drafters,
    }
}
