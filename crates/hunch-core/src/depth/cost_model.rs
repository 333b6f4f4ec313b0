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
use crate::pass_cost::PassCost;

/// Largest factor between a time and its estimate that counts, and its inverse. Not tuned: it bounds the effect of one
/// interrupted pass. A pass that shares its cores with one other program takes twice as long.
pub(super) const OUTLIER: f64 = 2.0;

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

/// Number of measurements that estimates of time remember.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostMemory {
    /// Measurements of one kind of pass, for its own time.
    pub(super) own: f64,
    /// Measurements of all kinds, for the slowdown that they share.
    pub(super) shared: f64,
}

/// Times of one proposer: of a drafted token, and of a token that its model reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DraftTimes {
    draft: TimeEstimate,
    read: TimeEstimate,
    /// Cost of a drafted token before it is measured, in plain passes. Predicted from the bytes of weights that the passes
    /// read.
    pub(super) expected: f64,
}

/// Milliseconds of a target pass by its rows, and of the passes of proposers ([`DraftTimes`]).
#[derive(Clone, Debug)]
pub(super) struct CostModel {
    memory: CostMemory,
    passes: [TimeEstimate; MAX_ROWS + 1],
    /// Slowness of the machine now, relative to its first passes.
    slowdown: f64,
    /// Milliseconds of a plain pass before it is measured.
    expected_plain: Option<f64>,
    /// Cost of a row in plain passes, measured before.
    expected_row: Option<f64>,
    /// Milliseconds of a row in the last prefill of the target, at slowdown 1.
    prefill_row: Option<f64>,
    /// Predicted costs of target passes, in plain passes.
    predicted: Option<PassCost>,
    /// Expected costs of target passes, in plain passes: predicted, or a line.
    shape: PassCost,
    /// Milliseconds of measured passes at slowdown 1, relative to the shape. Passes that were not measured lie on the
    /// line between their neighbours. Beyond these, the nearest measured pass gives the height.
    height: PassCost,
}

impl CostModel {
    /// A model without measurements.
    pub(super) fn new(memory: CostMemory) -> Self {
        let mut costs = Self {
            memory,
            passes: Default::default(),
            slowdown: 1.0,
            expected_plain: None,
            expected_row: None,
            prefill_row: None,
            predicted: None,
            shape: PassCost::flat(),
            height: PassCost::flat(),
        };
        costs.update_curve();
        costs
    }

    /// Sets the milliseconds of a plain pass that are expected until one is measured, such as those of a warm-up. The
    /// first measurement counts as much as they do. Other numbers than positive ones are ignored.
    pub(super) fn expect_plain(&mut self, ms: f64) {
        if ms > 0.0 && ms.is_finite() {
            self.expected_plain = Some(ms);
            self.update_curve();
        }
    }

    /// Sets the times of target passes, by rows from 1, that are assumed until they are measured. Only their ratios
    /// count. A curve that does not begin with one row, has gaps or is not positive is ignored.
    pub(super) fn expect_passes(&mut self, curve: &[(usize, f64)]) {
        let is_complete = curve.len() >= MAX_ROWS && curve.iter().zip(1..).all(|(&(rows, _), at)| rows == at);
        if let (true, Ok(predicted)) = (is_complete, PassCost::new(curve.iter().copied())) {
            self.predicted = Some(predicted);
            self.update_curve();
        }
    }

    /// Sets the cost of a further row of a target pass, in plain passes, that was measured before. It is used until passes
    /// are measured. Numbers that are not finite are ignored.
    pub(super) fn expect_row(&mut self, passes: f64) {
        if passes.is_finite() {
            self.expected_row = Some(passes);
            self.update_curve();
        }
    }

    /// Sets the time of a row in a long pass of the target. Rows of long passes are bound by arithmetic, as the rows
    /// that verification adds are.
    pub(super) fn set_prefill_row(&mut self, ms: f64) {
        if ms > 0.0 && ms.is_finite() {
            self.prefill_row = Some(ms / self.slowdown);
            self.update_curve();
        }
    }

    /// Adds the time of a target pass over `rows` rows.
    pub(super) fn add_pass(&mut self, rows: usize, ms: f64) {
        let expected = if self.knows_plain() {
            Some(self.pass(rows))
        } else {
            self.expected_plain.filter(|_| rows == 1)
        };
        // Nothing bounds a first plain pass without an expectation. Passes are disturbed, never hurried, so a faster
        // second one replaces it.
        let plain = &mut self.passes[1];
        if rows == 1 && self.expected_plain.is_none() && plain.measurements == 1.0 && ms > 0.0 {
            plain.ms = plain.ms.map(|first| first.min(ms / self.slowdown));
        }
        if let Some(timed) = self.passes.get_mut(rows) {
            learn(timed, &mut self.slowdown, ms, expected, self.memory);
            self.update_curve();
        }
    }

    /// Adds the time of a drafted token.
    pub(super) fn add_draft(&mut self, times: &mut DraftTimes, ms: f64) {
        let expected = self.draft(times);
        learn(&mut times.draft, &mut self.slowdown, ms, Some(expected), self.memory);
    }

    /// Adds the time in which a draft model read one token.
    pub(super) fn add_read(&mut self, times: &mut DraftTimes, ms: f64) {
        let expected = self.read(times);
        learn(&mut times.read, &mut self.slowdown, ms, Some(expected), self.memory);
    }

    /// Returns true once a plain pass was measured.
    pub(super) fn knows_plain(&self) -> bool {
        self.passes[1].ms.is_some()
    }

    /// Returns the number of plain passes that were measured, at most the memory.
    pub(super) fn plain_measurements(&self) -> f64 {
        self.passes[1].measurements
    }

    /// Returns the milliseconds of a target pass of `rows` rows; in plain passes while nothing is measured.
    pub(super) fn pass(&self, rows: usize) -> f64 {
        self.shape.at(rows) * self.height.at(rows) * self.slowdown
    }

    /// Returns the milliseconds of a drafted token.
    pub(super) fn draft(&self, times: &DraftTimes) -> f64 {
        let guess = times.expected * self.pass(1);
        times.draft.with_guess(guess / self.slowdown).map_or(guess, |ms| ms * self.slowdown)
    }

    /// Returns the milliseconds in which a draft model reads a token of the conversation. Before it is measured, the
    /// ratio of a row to a pass is taken from the target.
    pub(super) fn read(&self, times: &DraftTimes) -> f64 {
        times.read.ms.map_or_else(|| self.row() * self.draft(times), |ms| ms * self.slowdown)
    }

    /// Returns [`pass`](Self::pass) for a pass that was measured: the estimate without its guess.
    pub(super) fn measured_pass(&self, rows: usize) -> f64 {
        let pass = self.passes.get(rows).filter(|_| rows > 1).and_then(|timed| timed.ms);
        pass.map_or_else(|| self.pass(rows), |ms| ms * self.slowdown)
    }

    /// Returns [`draft`](Self::draft) for tokens that were measured: the estimate without its guess.
    pub(super) fn measured_draft(&self, times: &DraftTimes) -> f64 {
        times.draft.ms.map_or_else(|| self.draft(times), |ms| ms * self.slowdown)
    }

    /// Recomputes the costs of target passes from the measurements.
    fn update_curve(&mut self) {
        // Two points define the line.
        let line = || PassCost::new([(1, 1.0), (2, 1.0 + self.row())]).unwrap_or_else(|_| PassCost::flat());
        let shape = self.predicted.clone().unwrap_or_else(line);
        let plain = self.plain();
        let mut heights: Vec<(usize, f64)> = (1..=MAX_ROWS)
            .filter_map(|rows| {
                let guess = plain.map_or(0.0, |plain| plain * shape.at(rows));
                let ms = if rows == 1 { plain } else { self.passes[rows].with_guess(guess) };
                Some((rows, ms? / shape.at(rows)))
            })
            .collect();
        let (first, last) =
            (heights.first().map_or(1.0, |one| one.1), heights.last().map_or(1.0, |one| one.1));
        heights.insert(0, (1, first));
        heights.push((MAX_ROWS, last));
        if let Ok(height) = PassCost::in_units_of(1.0, heights) {
            (self.shape, self.height) = (shape, height);
        }
    }

    /// Returns the milliseconds of a plain pass at slowdown 1; `None` before it is measured. More rows never take less
    /// time, so a larger pass that was faster corrects it.
    fn plain(&self) -> Option<f64> {
        let larger = self.passes.iter().skip(2).filter_map(|timed| timed.ms);
        let plain = self.passes[1].with_guess(self.expected_plain.unwrap_or(0.0));
        plain.map(|plain| larger.fold(plain, f64::min))
    }

    /// Returns the cost of a row of passes that were not measured, in plain passes: as measured before, else that of a row
    /// of prefill. The least is a share of the largest pass that doubles its time.
    fn row(&self) -> f64 {
        let least = 1.0 / MAX_ROWS as f64;
        let of_prefill = || Some(self.prefill_row? / self.passes[1].ms?);
        self.expected_row.or_else(of_prefill).unwrap_or(least).clamp(least, 1.0)
    }
}

/// Updates a time and the shared slowdown. The part of a deviation that does not change the kind's own time changes the
/// slowdown. `libm` gives the same bits on every system, so a replay of recorded rounds does too.
fn learn(timed: &mut TimeEstimate, slowdown: &mut f64, ms: f64, expected: Option<f64>, memory: CostMemory) {
    if !(ms > 0.0 && ms.is_finite()) {
        return;
    }
    let Some(known) = timed.ms else {
        let likely = expected.filter(|&expected| expected > 0.0);
        let first = likely.map_or(ms, |expected| ms.min(OUTLIER * expected));
        *timed = TimeEstimate { ms: Some(first / *slowdown), measurements: 1.0 };
        return;
    };
    timed.measurements = (timed.measurements + 1.0).min(memory.own);
    let deviation = (ms / (known * *slowdown)).clamp(1.0 / OUTLIER, OUTLIER);
    let own = 1.0 / timed.measurements;
    timed.ms = Some(known * libm::pow(deviation, own));
    *slowdown *= libm::pow(deviation, (1.0 - own) / memory.shared);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: CostMemory = CostMemory { own: 32.0, shared: 5.0 };

    /// Plain passes of 10 ms and passes of three rows of 12 ms, in turn, with drafted tokens of 3 ms.
    fn learned() -> (CostModel, DraftTimes) {
        let (mut costs, mut draft) = (CostModel::new(MEMORY), DraftTimes::default());
        for _ in 0..20 {
            costs.add_pass(1, 10.0);
            costs.add_pass(3, 12.0);
            costs.add_draft(&mut draft, 3.0);
        }
        (costs, draft)
    }

    fn near(value: f64, wanted: f64) -> bool {
        (value / wanted - 1.0).abs() < 0.04
    }

    #[test]
    fn constant_times_are_learned_and_interpolated() {
        let (costs, draft) = learned();
        assert!(near(costs.pass(1), 10.0) && near(costs.pass(3), 12.0) && near(costs.draft(&draft), 3.0));
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
        let mut costs = CostModel::new(MEMORY);
        costs.expect_passes(&curve[1..]);
        costs.expect_passes(&[(1, 1.0), (2, f64::NAN)]);
        assert!(costs.pass(8) > 1.3, "incomplete curves are ignored");
        costs.expect_passes(&curve);
        assert_eq!([1, 2, 8, 9].map(|rows| costs.pass(rows)), [1.0, 1.25, 1.25, 2.0]);
        costs.add_pass(1, 10.0);
        costs.set_prefill_row(9.0);
        assert_eq!([1, 2, 8, 9].map(|rows| costs.pass(rows)), [10.0, 12.5, 12.5, 20.0]);
        (0..20).for_each(|_| costs.add_pass(4, 30.0));
        assert!(near(costs.pass(4), 30.0), "measured");
        assert!(near(costs.pass(9), 30.0 * 8.0 / 5.0), "its height was measured");
        assert!(costs.pass(3) > 20.0, "between measured rows");
    }

    #[test]
    fn a_slower_machine_slows_every_estimate() {
        let (mut costs, draft) = learned();
        (0..40).for_each(|_| costs.add_pass(1, 17.0));
        assert!(near(costs.pass(1), 17.0));
        let relative = (costs.pass(3) / costs.pass(1), costs.draft(&draft) / costs.pass(1));
        assert!((relative.0 / 1.2 - 1.0).abs() < 0.3 && (relative.1 / 0.3 - 1.0).abs() < 0.3, "{relative:?}");
    }

    #[test]
    fn slowdown_of_one_pass_size_leaves_others_unchanged() {
        let (mut costs, _) = learned();
        for _ in 0..60 {
            costs.add_pass(1, 10.0);
            costs.add_pass(3, 20.0);
        }
        let times = (costs.pass(1), costs.pass(3));
        assert!((times.0 / 10.0 - 1.0).abs() < 0.1 && (times.1 / 20.0 - 1.0).abs() < 0.1, "{times:?}");
    }

    #[test]
    fn a_slow_first_draft_counts_half() {
        let mut costs = CostModel::new(MEMORY);
        let mut draft = DraftTimes { expected: 0.3, ..DraftTimes::default() };
        costs.add_pass(1, 10.0);
        costs.add_draft(&mut draft, 6.0);
        assert!(near(costs.draft(&draft), 4.5));
        (0..12).for_each(|_| costs.add_draft(&mut draft, 3.0));
        assert!((costs.draft(&draft) - 3.0).abs() < 0.4, "{}", costs.draft(&draft));
    }

    #[test]
    fn a_faster_larger_pass_corrects_a_slow_plain_pass() {
        let mut costs = CostModel::new(MEMORY);
        costs.add_pass(1, 70.0);
        costs.add_pass(2, 11.0);
        assert!(near(costs.pass(1), 11.0), "{}", costs.pass(1));
        assert!(costs.pass(2) >= costs.pass(1));
    }

    #[test]
    fn a_slow_first_plain_pass_counts_as_much_as_the_expected_one() {
        let mut costs = CostModel::new(MEMORY);
        for nonsense in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            costs.expect_plain(nonsense);
        }
        costs.expect_plain(10.0);
        assert!(!costs.knows_plain() && costs.pass(1) == 1.0, "not measured");
        costs.add_pass(1, 16.0);
        assert!(near(costs.pass(1), 13.0), "{}", costs.pass(1));
        let mut interrupted = CostModel::new(MEMORY);
        interrupted.expect_plain(10.0);
        interrupted.add_pass(1, 500.0);
        assert!(near(interrupted.pass(1), 15.0), "an outlier counts as twice the expected time");
        // The expected time does not outlast the measurements.
        (0..40).for_each(|_| costs.add_pass(1, 20.0));
        assert!(near(costs.pass(1), 20.0), "{}", costs.pass(1));
    }

    #[test]
    fn a_faster_second_plain_pass_replaces_an_unexpected_first_one() {
        let mut costs = CostModel::new(MEMORY);
        costs.add_pass(1, 70.0);
        costs.add_pass(1, f64::NAN);
        assert!(near(costs.pass(1), 70.0));
        costs.add_pass(1, 10.0);
        assert!(near(costs.pass(1), 10.0), "{}", costs.pass(1));
        costs.add_pass(1, 12.0);
        assert!(costs.pass(1) > 10.0, "later passes are averaged");
    }

    #[test]
    fn one_slow_pass_counts_as_much_as_the_guess() {
        let mut costs = CostModel::new(MEMORY);
        costs.add_pass(1, 10.0);
        costs.set_prefill_row(2.0);
        costs.add_pass(2, 24.0);
        assert!(near(costs.pass(2), 18.0), "{}", costs.pass(2));
        assert!(near(costs.measured_pass(2), 24.0), "a round took what was measured");
    }

    #[test]
    fn unmeasured_costs_are_in_plain_passes_and_nonsense_is_ignored() {
        let (mut costs, mut draft) = (CostModel::new(MEMORY), DraftTimes::default());
        assert!(!costs.knows_plain());
        assert!(costs.pass(1) == 1.0 && costs.pass(2) > 1.0 && costs.draft(&draft) == 0.0);
        draft.expected = 0.5;
        costs.add_pass(1, 10.0);
        assert_eq!((costs.pass(1), costs.draft(&draft)), (10.0, 5.0));
        for nonsense in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            costs.add_pass(1, nonsense);
            assert_eq!(costs.pass(1), 10.0);
        }
        costs.add_pass(1, 1e6);
        assert!(costs.pass(1) < 20.0, "an outlier counts as twice the estimate");
        costs.add_pass(99, 1.0);
    }
}
