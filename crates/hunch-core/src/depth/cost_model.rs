//! Times of passes on this machine, estimated from the rounds as they run. No decisions here.
//!
//! Other programs, heat and power modes change the speed of a whole machine. So an estimate has two factors. One is a
//! time for each kind of pass, which changes slowly. The other is a slowdown shared by all kinds, which follows the
//! last few passes. Without the shared factor, a stretch of plain decoding on a busy machine would make drafts that
//! were timed on an idle one look cheap.
//!
//! A few measurements on a busy machine may be several times too slow, and a controller that does not draft takes no
//! further ones. So what was expected before the first measurement stays in the estimate as one measurement.

use crate::limits::MAX_ROWS;

/// A time counts as at most this many times the estimate, and as at least its inverse.
const OUTLIER: f64 = 2.0;

/// The time of one kind of pass.
#[derive(Clone, Copy, Debug, Default)]
struct TimeEstimate {
    /// Milliseconds at slowdown 1; `None` before the first measurement.
    ms: Option<f64>,
    measurements: f64,
}

impl TimeEstimate {
    /// Returns the milliseconds at slowdown 1, with a guess that counts as one measurement. 0 is no guess.
    fn with_guess(self, guess: f64) -> Option<f64> {
        let measured = self.ms?;
        let total = measured * self.measurements + guess;
        Some(if guess > 0.0 { total / (self.measurements + 1.0) } else { measured })
    }
}

/// Returns the milliseconds of a target pass by its rows, of a drafted token, and of a token that a draft model reads.
#[derive(Clone, Debug)]
pub(super) struct CostModel {
    passes: [TimeEstimate; MAX_ROWS + 1],
    draft: TimeEstimate,
    read: TimeEstimate,
    /// Slowness of the machine now, relative to its first passes.
    slowdown: f64,
    /// Cost of a drafted token before it is measured, in plain passes.
    expected_draft: f64,
    /// Milliseconds of a row in the last prefill of the target, at slowdown 1.
    prefill_row: Option<f64>,
    /// Predicted times of passes by their rows, in plain passes, for rows that were not measured.
    expected_passes: Option<[f64; MAX_ROWS + 1]>,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            passes: Default::default(),
            draft: TimeEstimate::default(),
            read: TimeEstimate::default(),
            slowdown: 1.0,
            expected_draft: 0.0,
            prefill_row: None,
            expected_passes: None,
        }
    }
}

impl CostModel {
    /// Sets the cost of a drafted token, in plain passes, that is assumed until one is measured. Predicted from the
    /// bytes of weights that the passes read.
    pub(super) fn expect_draft(&mut self, passes: f64) {
        self.expected_draft = passes;
    }

    /// Sets the times of target passes, by rows from 1, that are assumed until they are measured. Only their ratios
    /// count. A curve that does not begin with one row, has gaps or is not positive is ignored.
    pub(super) fn expect_passes(&mut self, curve: &[(usize, f64)]) {
        let Some(&(1, one)) = curve.first() else { return };
        let is_complete =
            curve.iter().zip(1..).all(|(&(rows, ms), at)| rows == at && ms > 0.0 && ms.is_finite());
        if curve.len() >= MAX_ROWS && is_complete {
            self.expected_passes = Some(std::array::from_fn(|rows| curve[rows.max(1) - 1].1 / one));
        }
    }

    /// Sets the time of a row in a long pass of the target. Rows of long passes are bound by arithmetic, as the rows
    /// that verification adds are.
    pub(super) fn set_prefill_row(&mut self, ms: f64) {
        if ms > 0.0 && ms.is_finite() {
            self.prefill_row = Some(ms / self.slowdown);
        }
    }

    /// Adds the time of a target pass over `rows` rows.
    pub(super) fn add_pass(&mut self, rows: usize, ms: f64, memory: (f64, f64)) {
        let expected = self.pass(rows);
        let known = self.knows_plain();
        if let Some(timed) = self.passes.get_mut(rows) {
            learn(timed, &mut self.slowdown, ms, known.then_some(expected), memory);
        }
    }

    /// Adds the time of a drafted token.
    pub(super) fn add_draft(&mut self, ms: f64, memory: (f64, f64)) {
        let expected = self.draft();
        learn(&mut self.draft, &mut self.slowdown, ms, Some(expected), memory);
    }

    /// Adds the time in which a draft model read one token.
    pub(super) fn add_read(&mut self, ms: f64, memory: (f64, f64)) {
        let expected = self.read();
        learn(&mut self.read, &mut self.slowdown, ms, Some(expected), memory);
    }

    /// Returns true once a plain pass was measured.
    pub(super) fn knows_plain(&self) -> bool {
        self.passes[1].ms.is_some()
    }

    /// Returns the milliseconds of a target pass of `rows` rows: measured, or on the line through measured neighbours.
    /// Beyond them, a prediction gives the shape, if there is one, and the nearest measured time gives the height.
    /// While only plain passes are measured, a row is taken to cost what a row of prefill did. Without prefill it is
    /// 1/16 of a plain pass. In plain passes while nothing is measured.
    pub(super) fn pass(&self, rows: usize) -> f64 {
        let known = |rows: usize| {
            let ms = match (rows, self.plain()) {
                (1, plain) => plain?,
                (_, Some(plain)) => {
                    let shape = match &self.expected_passes {
                        Some(shape) => shape[rows.min(MAX_ROWS)] / shape[1],
                        None => 1.0 + self.row() * (rows as f64 - 1.0),
                    };
                    self.passes.get(rows)?.with_guess(plain * shape)?
                }
                (_, None) => self.passes.get(rows)?.ms?,
            };
            Some((rows as f64, ms * self.slowdown))
        };
        if let Some((_, ms)) = known(rows) {
            return ms;
        }
        let at = rows as f64;
        let below = (1..rows.min(MAX_ROWS + 1)).rev().find_map(known);
        let above = (rows + 1..=MAX_ROWS).find_map(known);
        if let (Some(shape), true) = (&self.expected_passes, below.is_none() || above.is_none()) {
            let (from, ms) = below.or(above).unwrap_or((1.0, 1.0));
            return ms * shape[rows.min(MAX_ROWS)] / shape[from as usize];
        }
        let plain = known(1).map_or(1.0, |(_, ms)| ms);
        match (below, above) {
            (Some((m0, t0)), Some((m1, t1))) => t0 + (t1 - t0) * (at - m0) / (m1 - m0),
            (Some((m0, t0)), None) if m0 > 1.0 => t0 + (t0 - plain).max(0.0) * (at - m0) / (m0 - 1.0),
            (Some((m0, t0)), None) => t0 + plain * self.row() * (at - m0),
            (None, Some((m1, t1))) => t1 * (1.0 + (at - 1.0) * self.row()) / (1.0 + (m1 - 1.0) * self.row()),
            (None, None) => 1.0 + (at - 1.0) / MAX_ROWS as f64,
        }
    }

    /// Returns the milliseconds of a drafted token.
    pub(super) fn draft(&self) -> f64 {
        let guess = self.expected_draft * self.pass(1);
        self.draft.with_guess(guess / self.slowdown).map_or(guess, |ms| ms * self.slowdown)
    }

    /// Returns the milliseconds in which a draft model reads a token of the conversation. Before it is measured, the
    /// ratio of a row to a pass is taken from the target.
    pub(super) fn read(&self) -> f64 {
        self.read.ms.map_or_else(|| self.row() * self.draft(), |ms| ms * self.slowdown)
    }

    /// Milliseconds that a round took, of passes that were measured: the estimates without their guesses. A round has
    /// `rows` in its target pass and `drafts` passes of a draft model.
    pub(super) fn round(&self, rows: usize, drafts: f64) -> f64 {
        let pass = self.passes.get(rows).filter(|_| rows > 1).and_then(|timed| timed.ms);
        let pass = pass.map_or_else(|| self.pass(rows), |ms| ms * self.slowdown);
        let draft = self.draft.ms.map_or_else(|| self.draft(), |ms| ms * self.slowdown);
        pass + drafts * draft
    }

    /// Returns the milliseconds of a plain pass at slowdown 1; `None` before it is measured. More rows never take less
    /// time, so a larger pass that was faster corrects it.
    fn plain(&self) -> Option<f64> {
        let larger = self.passes.iter().skip(2).filter_map(|timed| timed.ms);
        self.passes[1].ms.map(|plain| larger.fold(plain, f64::min))
    }

    /// Returns the cost of a row that was not measured, in plain passes.
    fn row(&self) -> f64 {
        let least = 1.0 / MAX_ROWS as f64;
        match (self.prefill_row, self.passes[1].ms) {
            (Some(row), Some(plain)) => (row / plain).clamp(least, 1.0),
            _ => least,
        }
    }
}

/// Updates a time and the shared slowdown. `memory` counts the measurements that each of them remembers. The part of a
/// deviation that does not change the kind's own time changes the slowdown. `libm` gives the same bits on every system,
/// so a replay of recorded rounds does too.
fn learn(timed: &mut TimeEstimate, slowdown: &mut f64, ms: f64, expected: Option<f64>, memory: (f64, f64)) {
    if !(ms > 0.0 && ms.is_finite()) {
        return;
    }
    let Some(known) = timed.ms else {
        let likely = expected.filter(|&expected| expected > 0.0);
        let first = likely.map_or(ms, |expected| ms.min(OUTLIER * expected));
        *timed = TimeEstimate { ms: Some(first / *slowdown), measurements: 1.0 };
        return;
    };
    timed.measurements = (timed.measurements + 1.0).min(memory.0);
    let deviation = (ms / (known * *slowdown)).clamp(1.0 / OUTLIER, OUTLIER);
    let own = 1.0 / timed.measurements;
    timed.ms = Some(known * libm::pow(deviation, own));
    *slowdown *= libm::pow(deviation, (1.0 - own) / memory.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: (f64, f64) = (32.0, 5.0);

    /// Plain passes of 10 ms and passes of three rows of 12 ms, in turn, with drafted tokens of 3 ms.
    fn learned() -> CostModel {
        let mut costs = CostModel::default();
        for _ in 0..20 {
            costs.add_pass(1, 10.0, MEMORY);
            costs.add_pass(3, 12.0, MEMORY);
            costs.add_draft(3.0, MEMORY);
        }
        costs
    }

    fn near(value: f64, wanted: f64) -> bool {
        (value / wanted - 1.0).abs() < 0.04
    }

    #[test]
    fn constant_times_are_learned_and_interpolated() {
        let costs = learned();
        assert!(near(costs.pass(1), 10.0) && near(costs.pass(3), 12.0) && near(costs.draft(), 3.0));
        assert!(near(costs.pass(2), 11.0), "between measured rows");
        assert!(costs.pass(5) > 12.0, "beyond measured rows");
    }

    #[test]
    fn predicted_passes_hold_until_they_are_measured() {
        // Tiles of 8 rows: 8 cost no more than 2.
        let ms = |rows| match rows {
            1 => 4.0,
            2..=8 => 5.0,
            _ => 8.0,
        };
        let curve: Vec<(usize, f64)> = (1..=MAX_ROWS).map(|rows| (rows, ms(rows))).collect();
        let mut costs = CostModel::default();
        costs.expect_passes(&curve[1..]);
        costs.expect_passes(&[(1, 1.0), (2, f64::NAN)]);
        assert!(costs.pass(8) > 1.3, "incomplete curves are ignored");
        costs.expect_passes(&curve);
        assert_eq!([1, 2, 8, 9].map(|rows| costs.pass(rows)), [1.0, 1.25, 1.25, 2.0]);
        costs.add_pass(1, 10.0, MEMORY);
        costs.set_prefill_row(9.0);
        assert_eq!([1, 2, 8, 9].map(|rows| costs.pass(rows)), [10.0, 12.5, 12.5, 20.0]);
        (0..20).for_each(|_| costs.add_pass(4, 30.0, MEMORY));
        assert!(near(costs.pass(4), 30.0), "measured");
        assert!(near(costs.pass(9), 30.0 * 8.0 / 5.0), "its height was measured");
        assert!(costs.pass(3) > 20.0, "between measured rows");
    }

    #[test]
    fn a_slower_machine_slows_every_estimate() {
        let mut costs = learned();
        (0..40).for_each(|_| costs.add_pass(1, 17.0, MEMORY));
        assert!(near(costs.pass(1), 17.0));
        let relative = (costs.pass(3) / costs.pass(1), costs.draft() / costs.pass(1));
        assert!((relative.0 / 1.2 - 1.0).abs() < 0.3 && (relative.1 / 0.3 - 1.0).abs() < 0.3, "{relative:?}");
    }

    #[test]
    fn slowdown_of_one_pass_size_leaves_others_unchanged() {
        let mut costs = learned();
        for _ in 0..60 {
            costs.add_pass(1, 10.0, MEMORY);
            costs.add_pass(3, 20.0, MEMORY);
        }
        let times = (costs.pass(1), costs.pass(3));
        assert!((times.0 / 10.0 - 1.0).abs() < 0.1 && (times.1 / 20.0 - 1.0).abs() < 0.1, "{times:?}");
    }

    #[test]
    fn a_slow_first_draft_counts_half() {
        let mut costs = CostModel::default();
        costs.expect_draft(0.3);
        costs.add_pass(1, 10.0, MEMORY);
        costs.add_draft(6.0, MEMORY);
        assert!(near(costs.draft(), 4.5));
        (0..12).for_each(|_| costs.add_draft(3.0, MEMORY));
        assert!((costs.draft() - 3.0).abs() < 0.4, "{}", costs.draft());
    }

    #[test]
    fn a_faster_larger_pass_corrects_a_slow_plain_pass() {
        let mut costs = CostModel::default();
        costs.add_pass(1, 70.0, MEMORY);
        costs.add_pass(2, 11.0, MEMORY);
        assert!(near(costs.pass(1), 11.0), "{}", costs.pass(1));
        assert!(costs.pass(2) >= costs.pass(1));
    }

    #[test]
    fn one_slow_pass_counts_as_much_as_the_guess() {
        let mut costs = CostModel::default();
        costs.add_pass(1, 10.0, MEMORY);
        costs.set_prefill_row(2.0);
        costs.add_pass(2, 24.0, MEMORY);
        assert!(near(costs.pass(2), 18.0), "{}", costs.pass(2));
        assert!(near(costs.round(2, 0.0), 24.0), "a round took what was measured");
    }

    #[test]
    fn unmeasured_costs_are_in_plain_passes_and_nonsense_is_ignored() {
        let mut costs = CostModel::default();
        assert!(!costs.knows_plain());
        assert!(costs.pass(1) == 1.0 && costs.pass(2) > 1.0 && costs.draft() == 0.0);
        costs.expect_draft(0.5);
        costs.add_pass(1, 10.0, MEMORY);
        assert_eq!((costs.pass(1), costs.draft()), (10.0, 5.0));
        for nonsense in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            costs.add_pass(1, nonsense, MEMORY);
            assert_eq!(costs.pass(1), 10.0);
        }
        costs.add_pass(1, 1e6, MEMORY);
        assert!(costs.pass(1) < 20.0, "an outlier counts as twice the estimate");
        costs.add_pass(99, 1.0, MEMORY);
    }
}
