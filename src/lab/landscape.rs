//! Predicted speedup over alpha and K, the best K, and the alpha from which drafting pays, for one conversation or a
//! batch of them.
//!
//! Costs are passed in, measured or assumed. Formulas come from [`hunch_core::theory`].

use crate::lab::report::Landscape;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::pass_cost::{CostCurve, PassCost};
use hunch_core::theory;
use hunch_error::{Error, Result};

/// Steps from alpha 0 to alpha 1.
const STEPS: u32 = 50;
/// Bisection steps of the break-even search: the precision of an f64 near 1.
const HALVINGS: u32 = 52;
/// Largest assumed cost, in target passes of one row.
const MAX_COST: f64 = 2.0;
/// Most conversations that share a pass.
pub const MAX_BATCH: u32 = 64;

/// Costs of drafting and verifying on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineCosts {
    measured: bool,
    /// Passes of the draft, in target passes of one row. `None` if drafts are looked up, which costs nothing.
    draft: Option<PassCost>,
    target: PassCost,
}

impl MachineCosts {
    /// Creates costs from a cost curve. Without a draft model drafts are looked up.
    ///
    /// # Errors
    /// As [`PassCost::new`].
    pub fn of(curve: &CostCurve) -> Result<Self> {
        Ok(Self { measured: true, draft: curve.draft_cost()?, target: curve.target_cost()? })
    }

    /// Creates assumed costs: c, and the cost each further row adds to a target pass, both in target passes of one
    /// row. Rows add the same share to a draft pass.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when one of them is not from 0 to 2.
    pub fn assumed(draft_cost: f64, row_cost: f64) -> Result<Self> {
        for (name, value) in [("draft_cost", draft_cost), ("row_cost", row_cost)] {
            // Not `value < 0.0 || value > MAX_COST`: a NaN must fail.
            if !(0.0..=MAX_COST).contains(&value) {
                return Err(Error::invalid(format!(
                    "{name} is {value}; choose a number from 0 to {MAX_COST}, in target passes of one row."
                )));
            }
        }
        // Two points define the line.
        let line = |one: f64| PassCost::in_units_of(1.0, [(1, one), (2, one * (1.0 + row_cost))]);
        let draft = (draft_cost > 0.0).then(|| line(draft_cost)).transpose()?;
        Ok(Self { measured: false, draft, target: line(1.0)? })
    }

    /// Returns the cost of draft passes by their rows; `None` if drafts are looked up.
    pub(super) fn draft(&self) -> Option<&PassCost> {
        self.draft.as_ref()
    }

    /// Returns the cost of target passes by their rows.
    pub(super) fn target(&self) -> &PassCost {
        &self.target
    }

    /// Returns c, the cost of a drafted token in target passes of one row.
    fn draft_cost(&self) -> f64 {
        self.draft.as_ref().map_or(0.0, |draft| draft.at(1))
    }

    /// Returns the predicted speedup of `batch` conversations over plain decoding of them.
    fn speedup(&self, alpha: f64, depth: usize, batch: usize) -> f64 {
        theory::batch_speedup(alpha, depth, batch, self.draft.as_ref(), &self.target)
    }

    /// Returns the alpha from which drafting `depth` tokens pays. Speedup increases with alpha.
    fn break_even(&self, depth: usize, batch: usize) -> Option<f64> {
        if self.speedup(1.0, depth, batch) <= 1.0 {
            return None;
        }
        let (mut low, mut high) = (0.0, 1.0);
        if self.speedup(low, depth, batch) >= 1.0 {
            return Some(low);
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if self.speedup(middle, depth, batch) > 1.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high)
    }
}

/// Checks a number of conversations that share a pass.
///
/// # Errors
/// [`Error::InvalidRequest`] when it is not from 1 to [`MAX_BATCH`].
pub fn check_batch(batch: u32) -> Result<()> {
    if (1..=MAX_BATCH).contains(&batch) {
        return Ok(());
    }
    Err(Error::invalid(format!("batch is {batch}; choose a number from 1 to {MAX_BATCH}.")))
}

/// Computes the landscape over alpha = 0, 0.02, ... 1 and K = 1, 2, ... [`MAX_DRAFT`], for `batch` conversations that
/// share every pass. Costs of more rows than were measured continue the last slope.
///
/// # Errors
/// As [`check_batch`].
pub fn landscape(costs: &MachineCosts, batch: u32) -> Result<Landscape> {
    check_batch(batch)?;
    let conversations = batch as usize;
    let alphas: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let row =
        |alpha: &f64| (1..=MAX_DRAFT).map(|depth| costs.speedup(*alpha, depth, conversations)).collect();
    let draft = costs.draft.as_ref();
    let best = |alpha: &f64| {
        theory::best_batch_depth(*alpha, conversations, draft, &costs.target, MAX_DRAFT).0 as u32
    };
    Ok(Landscape {
        measured: costs.measured,
        batch,
        draft_cost: costs.draft_cost(),
        target_cost: (1..=MAX_DRAFT + 1).map(|rows| costs.target.at(rows)).collect(),
        speedup: alphas.iter().map(row).collect(),
        best: alphas.iter().map(best).collect(),
        depths: (1..=MAX_DRAFT as u32).collect(),
        break_even: (1..=MAX_DRAFT).map(|depth| costs.break_even(depth, conversations)).collect(),
        alphas,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reproduces_the_setting_of_the_paper() {
        let shown = landscape(&MachineCosts::assumed(0.1, 0.0).unwrap(), 1).unwrap();
        assert_eq!((shown.alphas.len(), shown.depths.len(), shown.speedup.len()), (51, 15, 51));
        assert_eq!((shown.alphas[40], shown.target_cost.len()), (0.8, 16));
        assert!(!shown.measured && shown.target_cost.iter().all(|t| *t == 1.0));
        // As in the test of theory: at alpha 0.8 and c = 0.1 six tokens are best.
        assert_eq!(shown.best[40], 6);
        assert!((shown.speedup[40][5] - 2.470).abs() < 0.001);
        // One drafted token gains (1 + alpha) / (1 + c): it pays above alpha = c.
        assert!((shown.break_even[0].unwrap() - 0.1).abs() < 1e-12);
        assert_eq!((shown.best[0], shown.speedup[0][0]), (0, 1.0 / 1.1));
    }

    #[test]
    fn expensive_drafting_never_breaks_even() {
        let expensive = landscape(&MachineCosts::assumed(1.0, 0.5).unwrap(), 1).unwrap();
        assert!(expensive.break_even.iter().all(Option::is_none) && expensive.best.iter().all(|k| *k == 0));
        let free = landscape(&MachineCosts::assumed(0.0, 0.0).unwrap(), 1).unwrap();
        assert!(free.break_even.iter().all(|alpha| *alpha == Some(0.0)));
        assert_eq!(free.best[50], 15);
    }

    #[test]
    fn measured_costs_are_interpolated() {
        let costs = MachineCosts {
            measured: true,
            draft: Some(PassCost::in_units_of(20.0, [(1, 5.0)]).unwrap()),
            target: PassCost::new([(1, 20.0), (2, 24.0), (4, 40.0)]).unwrap(),
        };
        let shown = landscape(&costs, 1).unwrap();
        assert!(shown.measured);
        for (rows, cost) in [(1, 1.0), (2, 1.2), (3, 1.6), (4, 2.0), (5, 2.4)] {
            assert!((shown.target_cost[rows - 1] - cost).abs() < 1e-12);
        }
        assert!((shown.speedup[50][0] - 2.0 / 1.45).abs() < 1e-12);
    }

    #[test]
    fn rejects_costs_out_of_range() {
        for (draft, row) in [(-0.1, 0.0), (2.1, 0.0), (f64::NAN, 0.0), (0.0, f64::INFINITY)] {
            let error = MachineCosts::assumed(draft, row).unwrap_err().to_string();
            assert!(error.contains("from 0 to 2"), "{error}");
        }
        let costs = MachineCosts::assumed(0.1, 0.1).unwrap();
        for batch in [0, MAX_BATCH + 1] {
            assert!(landscape(&costs, batch).unwrap_err().to_string().contains("from 1 to 64"));
        }
    }

    #[test]
    fn best_draft_is_shorter_in_larger_batches() {
        let costs = MachineCosts::assumed(0.1, 0.1).unwrap();
        let best = |batch| landscape(&costs, batch).unwrap().best[40];
        let depths = [1, 2, 4, 8, 16, 32].map(best);
        assert!(depths.is_sorted_by(|a, b| a >= b) && depths[0] > 2 && depths[5] == 0, "{depths:?}");
        let from = |batch| landscape(&costs, batch).unwrap().break_even[0].unwrap();
        assert!(from(1) < from(4) && from(4) < from(16));
    }

    proptest! {
        #[test]
        fn speedup_is_one_at_the_break_even(draft in 0.0f64..=2.0, row in 0.0f64..=2.0, batch in 1u32..=64) {
            let costs = MachineCosts::assumed(draft, row).unwrap();
            let shown = landscape(&costs, batch).unwrap();
            let batch = batch as usize;
            for (depth, alpha) in (1..).zip(&shown.break_even) {
                match alpha {
                    Some(alpha) if *alpha > 0.0 => {
                        prop_assert!((costs.speedup(*alpha, depth, batch) - 1.0).abs() < 1e-9);
                    }
                    Some(_) => prop_assert!(costs.speedup(0.0, depth, batch) >= 1.0),
                    None => prop_assert!(costs.speedup(1.0, depth, batch) <= 1.0),
                }
            }
            for (at, row) in shown.speedup.iter().enumerate() {
                prop_assert!(row.iter().all(|s| s.is_finite() && *s > 0.0));
                let best = row.iter().copied().fold(1.0, f64::max);
                let chosen = shown.best[at].checked_sub(1).map_or(1.0, |k| row[k as usize]);
                prop_assert_eq!(best, chosen);
            }
        }
    }
}
