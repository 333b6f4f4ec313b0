//! Predicted speedup over alpha and K, the best K, and the alpha from which drafting pays.
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

/// Costs of drafting and verifying on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineCosts {
    measured: bool,
    draft_cost: f64,
    target: PassCost,
}

impl MachineCosts {
    /// Creates measured costs: c, the cost of a drafted token in target passes of one row (0 for lookup), and the cost
    /// of target passes.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when c is not a number of at least 0.
    pub fn measured(draft_cost: f64, target: PassCost) -> Result<Self> {
        if !(draft_cost >= 0.0 && draft_cost.is_finite()) {
            return Err(Error::invalid(format!(
                "The cost of a drafted token was measured as {draft_cost}; measure the costs again."
            )));
        }
        Ok(Self { measured: true, draft_cost, target })
    }

    /// Creates costs from a cost curve. Without a draft model drafts are looked up, which costs nothing.
    ///
    /// # Errors
    /// As [`measured`](Self::measured) and [`PassCost::new`].
    pub fn of(curve: &CostCurve) -> Result<Self> {
        Self::measured(curve.draft_cost().unwrap_or(0.0), curve.target_cost()?)
    }

    /// Creates assumed costs: c, and the cost each further row adds to a target pass, both in target passes of one
    /// row.
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
        let target = PassCost::new([(1, 1.0), (2, 1.0 + row_cost)])?;
        Ok(Self { measured: false, draft_cost, target })
    }

    /// Returns the predicted speedup over plain decoding.
    fn speedup(&self, alpha: f64, depth: usize) -> f64 {
        theory::speedup(alpha, depth, self.draft_cost, &self.target)
    }

    /// Returns the alpha from which drafting `depth` tokens pays. Speedup increases with alpha.
    fn break_even(&self, depth: usize) -> Option<f64> {
        if self.speedup(1.0, depth) <= 1.0 {
            return None;
        }
        let (mut low, mut high) = (0.0, 1.0);
        if self.speedup(low, depth) >= 1.0 {
            return Some(low);
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if self.speedup(middle, depth) > 1.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high)
    }
}

/// Computes the landscape over alpha = 0, 0.02, ... 1 and K = 1, 2, ... [`MAX_DRAFT`].
pub fn landscape(costs: &MachineCosts) -> Landscape {
    let alphas: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let row = |alpha: &f64| (1..=MAX_DRAFT).map(|depth| costs.speedup(*alpha, depth)).collect();
    let best = |alpha: &f64| theory::best_depth(*alpha, costs.draft_cost, &costs.target, MAX_DRAFT).0 as u32;
    Landscape {
        measured: costs.measured,
        draft_cost: costs.draft_cost,
        target_cost: (1..=MAX_DRAFT + 1).map(|rows| costs.target.at(rows)).collect(),
        speedup: alphas.iter().map(row).collect(),
        best: alphas.iter().map(best).collect(),
        depths: (1..=MAX_DRAFT as u32).collect(),
        break_even: (1..=MAX_DRAFT).map(|depth| costs.break_even(depth)).collect(),
        alphas,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reproduces_the_setting_of_the_paper() {
        let shown = landscape(&MachineCosts::assumed(0.1, 0.0).unwrap());
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
        let expensive = landscape(&MachineCosts::assumed(1.0, 0.5).unwrap());
        assert!(expensive.break_even.iter().all(Option::is_none) && expensive.best.iter().all(|k| *k == 0));
        let free = landscape(&MachineCosts::assumed(0.0, 0.0).unwrap());
        assert!(free.break_even.iter().all(|alpha| *alpha == Some(0.0)));
        assert_eq!(free.best[50], 15);
    }

    #[test]
    fn measured_costs_are_interpolated() {
        let costs =
            MachineCosts::measured(0.25, PassCost::new([(1, 20.0), (2, 24.0), (4, 40.0)]).unwrap()).unwrap();
        let shown = landscape(&costs);
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
        assert!(MachineCosts::measured(f64::NAN, PassCost::flat()).is_err());
    }

    proptest! {
        #[test]
        fn speedup_is_one_at_the_break_even(draft in 0.0f64..=2.0, row in 0.0f64..=2.0) {
            let costs = MachineCosts::assumed(draft, row).unwrap();
            let shown = landscape(&costs);
            for (depth, alpha) in (1..).zip(&shown.break_even) {
                match alpha {
                    Some(alpha) if *alpha > 0.0 => {
                        prop_assert!((costs.speedup(*alpha, depth) - 1.0).abs() < 1e-9);
                    }
                    Some(_) => prop_assert!(costs.speedup(0.0, depth) >= 1.0),
                    None => prop_assert!(costs.speedup(1.0, depth) <= 1.0),
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
