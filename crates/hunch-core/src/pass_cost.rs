//! The cost of a pass by its number of rows: one type with one interpolation, and the measured curves of a machine. The
//! estimates of a running conversation are in `depth`.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::quantile::median;

/// Cost of a pass by its number of rows, in units of a reference pass.
///
/// Between measured points the cost is interpolated linearly. Beyond the last point it grows by the median slope between
/// any two points of the upper half (Theil-Sen). One noisy point then does not decide the cost of many rows.
#[derive(Clone, Debug, PartialEq)]
pub struct PassCost {
    /// `(rows, cost)`, ascending by rows; the first has one row. Never empty.
    points: Vec<(usize, f64)>,
    /// Cost of each row beyond the last point. Never negative: a pass of more rows does not cost less.
    slope: f64,
}

/// Returns the median slope between any two points of the upper half, at least the last two.
fn slope_of_upper_half(points: &[(usize, f64)]) -> f64 {
    let upper = &points[(points.len() / 2).min(points.len().saturating_sub(2))..];
    let slopes = upper
        .iter()
        .enumerate()
        .flat_map(|(i, &(m0, t0))| upper[i + 1..].iter().map(move |&(m1, t1)| (t1 - t0) / (m1 - m0) as f64));
    median(&slopes.collect::<Vec<f64>>()).unwrap_or(0.0).max(0.0)
}

impl PassCost {
    /// Builds t(M) / t(1) from measured times `(rows, time)`, in any unit and order.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is no time for one row, or a time is not a positive number.
    pub fn new(times: impl IntoIterator<Item = (usize, f64)>) -> Result<Self> {
        let mut cost = Self::in_units_of(1.0, times)?;
        let one = cost.points[0].1;
        cost.points.iter_mut().for_each(|(_, t)| *t /= one);
        cost.slope /= one;
        Ok(cost)
    }

    /// Builds costs from measured times `(rows, time)` and the time of the reference pass, in the same unit.
    ///
    /// The reference of a draft's passes is the target's pass of one row.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is no time for one row, or a time is not a positive number.
    pub fn in_units_of(reference: f64, times: impl IntoIterator<Item = (usize, f64)>) -> Result<Self> {
        let mut points: Vec<(usize, f64)> = times.into_iter().collect();
        points.sort_by_key(|&(rows, _)| rows);
        points.dedup_by_key(|&mut (rows, _)| rows);
        for (rows, time) in &mut points {
            let cost = *time / reference;
            if !(*time > 0.0 && cost > 0.0 && cost.is_finite()) {
                return Err(Error::invalid(format!(
                    "A pass of {rows} rows took {time} where the reference pass took {reference}; both must be \
                     positive. Measure again."
                )));
            }
            *time = cost;
        }
        match points.first() {
            Some((1, _)) => Ok(Self { slope: slope_of_upper_half(&points), points }),
            _ => Err(Error::invalid("The cost of a pass of one row is missing. Measure it first.")),
        }
    }

    /// The papers' assumption: a pass costs the same for every number of rows.
    pub fn flat() -> Self {
        Self { points: vec![(1, 1.0)], slope: 0.0 }
    }

    /// Cost of a pass of `rows` rows.
    pub fn at(&self, rows: usize) -> f64 {
        let (last_rows, last_cost) = self.points[self.points.len() - 1];
        if rows >= last_rows || self.points.len() == 1 {
            return last_cost + self.slope * rows.saturating_sub(last_rows) as f64;
        }
        // For zero rows, the first segment is extended.
        let right = self.points.partition_point(|&(m, _)| m < rows).max(1);
        let ((m0, t0), (m1, t1)) = (self.points[right - 1], self.points[right]);
        t0 + (t1 - t0) * (rows as f64 - m0 as f64) / (m1 - m0) as f64
    }

    /// Summed cost of passes given as `(rows, count)`.
    pub fn total(&self, passes: impl IntoIterator<Item = (usize, u64)>) -> f64 {
        passes.into_iter().map(|(rows, count)| count as f64 * self.at(rows)).sum()
    }

    /// The measured points `(rows, cost)`, ascending by rows.
    pub fn points(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.points.iter().copied()
    }
}

/// Measured cost of a pass of some number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct CostPoint {
    /// Rows M of the pass.
    pub rows: u32,
    /// t(M) in milliseconds: the median over the rounds.
    pub ms: f64,
    /// t(M) / t(1), the median of the ratios within each round.
    pub relative: f64,
}

/// Experts of a mixture that passes read, measured with the passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ExpertCounts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts of a row.
    pub used: u32,
    /// Different experts of a pass, by its rows from 1 on: the mean over layers and rounds.
    pub distinct: Vec<f64>,
}

/// Measured costs of one model's passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ModelCosts {
    /// Name of the model.
    pub name: String,
    /// Costs, ascending by rows.
    pub points: Vec<CostPoint>,
    /// Weights that a pass of one row reads, in bytes.
    #[cfg_attr(feature = "ts", ts(type = "number"))]
    pub weight_bytes: u64,
    /// Number of these weights, whatever their quantisation. `None` in measurements of older versions.
    #[cfg_attr(feature = "ts", ts(type = "number | null"))]
    #[serde(default)]
    pub weights: Option<u64>,
    /// Time to read these bytes at memory speed, in milliseconds: a lower bound for every pass.
    pub floor_ms: f64,
    /// Experts that the passes read. `None` for dense models.
    #[serde(default)]
    pub experts: Option<ExpertCounts>,
}

/// Measured costs of a drafter other than a draft model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct DrafterCosts {
    /// Name of the method that drafts so, such as "head".
    pub drafter: String,
    /// Path of the head that drafts. `None` for the target's usual head, and for a copy of the target.
    pub head: Option<String>,
    /// Costs, ascending by rows. Rows of a head are drafted tokens: all of a draft that is one pass, else one token,
    /// the mean over a draft.
    pub points: Vec<CostPoint>,
    /// Tokens that a pass drafts.
    pub tokens_of_a_pass: u32,
    /// Most tokens of a draft. `None` without a limit.
    pub max_depth: Option<u32>,
    /// Costs of a level of a head's tree by its rows, ascending. Empty if a level costs as much as a token of a chain,
    /// whatever its rows. `None` if trees were not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "ts", ts(optional))]
    pub tree: Option<Vec<CostPoint>>,
}

/// Cost curve of a machine: the passes of a target and, if loaded, of a draft model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct CostCurve {
    /// Time of the measurement, in milliseconds since 1970.
    #[cfg_attr(feature = "ts", ts(type = "number"))]
    pub measured_ms: i64,
    /// Device: "cpu" or "metal".
    pub device: String,
    /// Number of CPU threads.
    pub threads: u32,
    /// Highest memory bandwidth measured, in 10^9 bytes per second.
    pub memory_gb_s: f64,
    /// Costs of the target.
    pub target: ModelCosts,
    /// Costs of the draft model, if one was loaded.
    pub draft: Option<ModelCosts>,
    /// Costs of the other drafters that were loaded. Empty in measurements of older versions.
    #[serde(default)]
    pub drafters: Vec<DrafterCosts>,
}

impl CostCurve {
    /// Cost of a target pass by its rows, in target passes of one row.
    ///
    /// # Errors
    /// As [`PassCost::new`].
    pub fn target_cost(&self) -> Result<PassCost> {
        PassCost::new(self.target.points.iter().map(|point| (point.rows as usize, point.relative)))
    }

    /// Cost of a draft pass by its rows, in target passes of one row. That of one row is c. `None` without a draft model.
    ///
    /// # Errors
    /// As [`PassCost::in_units_of`].
    pub fn draft_cost(&self) -> Result<Option<PassCost>> {
        self.draft.as_ref().map(|draft| self.in_target_passes(&draft.points)).transpose()
    }

    /// Converts costs to target passes of one row.
    ///
    /// # Errors
    /// As [`PassCost::in_units_of`].
    pub fn in_target_passes(&self, points: &[CostPoint]) -> Result<PassCost> {
        let plain = self.target.points.first().map_or(f64::NAN, |point| point.ms);
        PassCost::in_units_of(plain, points.iter().map(|point| (point.rows as usize, point.ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn times_are_normalised_interpolated_and_extrapolated() {
        let cost = PassCost::new([(4, 20.0), (1, 10.0), (2, 12.0)]).unwrap();
        for (rows, expected) in [(1, 1.0), (2, 1.2), (3, 1.6), (4, 2.0), (6, 2.8)] {
            assert!(close(cost.at(rows), expected), "{rows}");
        }
        assert!(close(cost.total([(1, 10), (3, 2)]), 13.2));
        assert_eq!(cost.points().map(|(rows, _)| rows).collect::<Vec<_>>(), [1, 2, 4]);
    }

    /// 16 rows of a curve with 0.1 a row, but for the noise of its last points.
    #[test]
    fn one_noisy_point_does_not_decide_the_cost_of_many_rows() {
        for (noisy, time) in [(16, 2.3), (16, 2.9), (15, 2.0), (15, 2.6), (12, 1.0)] {
            let times = (1..=16).map(|m| (m, if m == noisy { time } else { 0.9 + 0.1 * m as f64 }));
            let cost = PassCost::new(times).unwrap();
            let expected = 0.9 + 0.1 * 128.0;
            assert!((cost.at(128) / expected - 1.0).abs() < 0.05, "{noisy} {time}: {}", cost.at(128));
            assert!(cost.at(17) >= cost.at(16));
        }
        let falling = PassCost::new([(1, 1.0), (2, 2.0), (3, 1.9), (4, 1.8)]).unwrap();
        assert!(close(falling.at(100), 1.8));
    }

    #[test]
    fn draft_costs_are_in_target_passes() {
        let cost = PassCost::in_units_of(4.0, [(1, 1.0), (2, 2.0)]).unwrap();
        assert!(close(cost.at(1), 0.25) && close(cost.at(2), 0.5) && close(cost.at(3), 0.75));
    }

    #[test]
    fn rejects_missing_single_row_and_nonpositive_times() {
        assert!(PassCost::new([(2, 1.0)]).is_err());
        assert!(PassCost::new([]).is_err());
        assert!(PassCost::new([(1, 0.0)]).is_err());
        assert!(PassCost::new([(1, 1.0), (2, f64::NAN)]).is_err());
        assert!(PassCost::in_units_of(0.0, [(1, 1.0)]).is_err());
        assert!(PassCost::in_units_of(f64::NAN, [(1, 1.0)]).is_err());
    }

    #[test]
    fn curve_gives_target_and_draft_cost() {
        let points = |times: &[f64]| {
            let point = |(rows, &ms): (u32, &f64)| CostPoint { rows, ms, relative: ms / times[0] };
            (1..).zip(times).map(point).collect()
        };
        let model = |times: &[f64]| ModelCosts {
            name: "m".into(),
            points: points(times),
            weight_bytes: 1,
            weights: Some(2),
            floor_ms: 1.0,
            experts: None,
        };
        let mut curve = CostCurve {
            measured_ms: 0,
            device: "cpu".into(),
            threads: 2,
            memory_gb_s: 20.0,
            target: model(&[10.0, 12.0]),
            draft: Some(model(&[2.5])),
            drafters: Vec::new(),
        };
        assert!(close(curve.target_cost().unwrap().at(2), 1.2));
        assert!(close(curve.draft_cost().unwrap().unwrap().at(1), 0.25));
        curve.draft = None;
        assert_eq!(curve.draft_cost().unwrap(), None);
    }
}
