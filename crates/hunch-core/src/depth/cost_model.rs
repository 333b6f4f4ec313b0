//! Times of passes on this machine, estimated from the rounds as they run. No decisions here.
//!
//! Other programs, heat, power modes and cold caches change the speed of a whole machine, by a factor of two within a few
//! passes. Decisions need ratios only: the cost of rows and of drafted tokens in plain passes. So a time has two factors.
//! The time of a plain pass at the moment is measured by every pass. The ratio of each kind of pass to it changes slowly.
//! A deviation corrects most what is known least. On logarithms this is a Kalman filter (Kalman, A New
//! Approach to Linear Filtering and Prediction Problems, 1960).
//!
//! A few measurements on a busy machine may be several times too slow, and a controller that does not draft takes no
//! further ones. So every expectation counts as one measurement, whose variance is the unit of all variances.

use crate::limits::MAX_ROWS;
use crate::pass_cost::PassCost;

/// Largest factor between a time and its estimate that counts, and its inverse. Not tuned: it bounds the effect of one
/// interrupted pass. A pass that shares its cores with one other program takes twice as long.
pub(super) const OUTLIER: f64 = 2.0;
/// Variance of one measurement, the unit.
const ONE: f64 = 1.0;
/// Least cost of a row before it is measured, in plain passes: a share of the largest pass that doubles its time.
const LEAST_ROW: f64 = 1.0 / MAX_ROWS as f64;

/// Number of measurements that estimates of time remember.
#[derive(Clone, Copy, Debug)]
pub(super) struct CostMemory {
    /// Measurements of one kind of pass, for its ratio to a plain pass.
    pub(super) own: f64,
    /// Passes, for the speed of the machine.
    pub(super) shared: f64,
}

/// Returns the variance that an estimate gains between two measurements, so that in the long run a measurement has a weight
/// of 1 in `memory`.
fn drift(memory: f64) -> f64 {
    ONE / (memory * (memory - ONE).max(f64::EPSILON))
}

/// Returns a deviation of logarithms within the bounds of an outlier.
fn bounded(deviation: f64) -> f64 {
    deviation.clamp(-std::f64::consts::LN_2, std::f64::consts::LN_2)
}

/// Returns whether a measured time can be used.
fn is_time(ms: f64) -> bool {
    ms > 0.0 && ms.is_finite()
}

/// A time in plain passes.
#[derive(Clone, Copy, Debug)]
struct RelativeTime {
    /// Logarithm of the time.
    log: f64,
    variance: f64,
}

/// Times of one proposer: of a drafted token, and of a token that its model reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DraftTimes {
    draft: Option<RelativeTime>,
    read: Option<RelativeTime>,
    /// Cost of a drafted token before it is measured, in plain passes. Predicted from the bytes of weights that the passes
    /// read.
    pub(super) expected: f64,
}

/// Milliseconds of a target pass by its rows, and of the passes of proposers ([`DraftTimes`]).
#[derive(Clone, Debug)]
pub(super) struct CostModel {
    memory: CostMemory,
    /// The estimates, as logarithms. Element 0 is the milliseconds of a plain pass now. Element i is the cost of a pass of
    /// i + 1 rows in plain passes, relative to the shape.
    logs: [f64; MAX_ROWS],
    /// Covariance of the estimates.
    covariance: [[f64; MAX_ROWS]; MAX_ROWS],
    /// Measured plain passes, at most the memory.
    plain_measurements: f64,
    /// Cost of a row in plain passes, measured before.
    expected_row: f64,
    /// Predicted costs of target passes, in plain passes.
    predicted: Option<PassCost>,
    /// Expected costs of target passes, in plain passes: predicted, or a line. Fixed once several rows are measured.
    shape: PassCost,
    knows_rows: bool,
    /// Milliseconds of target passes by their rows; in plain passes while nothing is measured.
    pass_ms: [f64; MAX_ROWS + 1],
}

impl CostModel {
    /// A model without measurements.
    pub(super) fn new(memory: CostMemory) -> Self {
        // Relative to the shape, each further row is an independent step. So passes between measured ones lie on the line
        // through them, and those beyond deviate as the nearest one does.
        let covariance = std::array::from_fn(|i| std::array::from_fn(|j| i.min(j) as f64 * ONE));
        let mut costs = Self {
            memory,
            logs: [0.0; MAX_ROWS],
            covariance,
            plain_measurements: 0.0,
            expected_row: LEAST_ROW,
            predicted: None,
            shape: PassCost::flat(),
            knows_rows: false,
            pass_ms: [1.0; MAX_ROWS + 1],
        };
        costs.update_passes();
        costs
    }

    /// Sets the milliseconds of a plain pass that are expected until one is measured, such as those of a warm-up. Other
    /// numbers than positive ones are ignored.
    pub(super) fn expect_plain(&mut self, ms: f64) {
        if is_time(ms) && !self.knows_plain() {
            (self.logs[0], self.covariance[0][0]) = (libm::log(ms), ONE);
        }
    }

    /// Sets the times of target passes, by rows from 1, that are assumed until they are measured. Only their ratios
    /// count. A curve that does not begin with one row, has gaps or is not positive is ignored.
    pub(super) fn expect_passes(&mut self, curve: &[(usize, f64)]) {
        let is_complete = curve.len() >= MAX_ROWS && curve.iter().zip(1..).all(|(&(rows, _), at)| rows == at);
        if let (true, Ok(predicted)) = (is_complete, PassCost::new(curve.iter().copied())) {
            self.predicted = Some(predicted);
            self.update_passes();
        }
    }

    /// Sets the cost of a further row of a target pass, in plain passes, that was measured before. It is used until passes
    /// are measured. Numbers that are not finite are ignored.
    pub(super) fn expect_row(&mut self, cost: f64) {
        if cost.is_finite() {
            self.expected_row = cost.clamp(LEAST_ROW, 1.0);
            self.update_passes();
        }
    }

    /// Reports a pause, in which the speed of the machine may have changed: the next pass decides more.
    pub(super) fn pause(&mut self) {
        if self.knows_plain() {
            self.covariance[0][0] += ONE;
        }
    }

    /// Adds the time of a target pass over `rows` rows. Passes of several rows count once a plain one was measured.
    pub(super) fn add_pass(&mut self, rows: usize, ms: f64) {
        let can_count = rows == 1 || (self.knows_plain() && (2..=MAX_ROWS).contains(&rows));
        if !is_time(ms) || !can_count {
            return;
        }
        let is_first = rows == 1 && self.covariance[0][0] == 0.0;
        if is_first {
            (self.logs[0], self.covariance[0][0]) = (libm::log(ms), ONE);
        } else {
            self.correct(rows - 1, libm::log(ms) - self.log_of_pass(rows));
        }
        if rows == 1 {
            self.plain_measurements = (self.plain_measurements + 1.0).min(self.memory.own);
        }
        self.knows_rows |= rows > 1;
        self.update_passes();
    }

    /// Corrects all estimates by a measured pass. `kind` is the element of its rows. The measured logarithm is that of a
    /// plain pass, plus the element for passes of several rows. `deviation` is how much it exceeds the estimate.
    fn correct(&mut self, kind: usize, deviation: f64) {
        self.covariance[0][0] += drift(self.memory.shared);
        if kind > 0 {
            self.covariance[kind][kind] += drift(self.memory.own);
        }
        let summed = |of: &[f64; MAX_ROWS]| if kind == 0 { of[0] } else { of[0] + of[kind] };
        let with_pass = self.covariance.each_ref().map(summed);
        let variance = summed(&with_pass) + ONE;
        for (i, with_pass_i) in with_pass.iter().enumerate() {
            let share = with_pass_i / variance;
            self.logs[i] += share * bounded(deviation);
            for (entry, with_pass_j) in self.covariance[i].iter_mut().zip(with_pass) {
                *entry -= share * with_pass_j;
            }
        }
    }

    /// Adds the time of a drafted token.
    pub(super) fn add_draft(&self, times: &mut DraftTimes, ms: f64) {
        times.draft = self.with_time(times.draft, self.draft(times), ms);
    }

    /// Adds the time in which a draft model read one token.
    pub(super) fn add_read(&self, times: &mut DraftTimes, ms: f64) {
        times.read = self.with_time(times.read, self.read(times), ms);
    }

    /// Returns an estimate with another measurement. The milliseconds that are expected before the first one count as one;
    /// 0 is no expectation.
    fn with_time(&self, known: Option<RelativeTime>, expected: f64, ms: f64) -> Option<RelativeTime> {
        if !is_time(ms) {
            return known;
        }
        let plain = libm::log(self.pass(1));
        let measured = libm::log(ms) - plain;
        let guess = || Some(RelativeTime { log: libm::log(expected) - plain, variance: ONE });
        let known = known
            .map(|known| RelativeTime { variance: known.variance + drift(self.memory.own), ..known })
            .or_else(|| guess().filter(|_| expected > 0.0));
        let Some(RelativeTime { log, variance }) = known else {
            return Some(RelativeTime { log: measured, variance: ONE });
        };
        let share = variance / (variance + ONE);
        let log = log + share * bounded(measured - log);
        Some(RelativeTime { log, variance: variance * (1.0 - share) })
    }

    /// Returns true once a plain pass was measured.
    pub(super) fn knows_plain(&self) -> bool {
        self.plain_measurements > 0.0
    }

    /// Returns the number of plain passes that were measured, at most the memory.
    pub(super) fn plain_measurements(&self) -> f64 {
        self.plain_measurements
    }

    /// Returns the milliseconds of a target pass of `rows` rows; in plain passes while nothing is measured.
    pub(super) fn pass(&self, rows: usize) -> f64 {
        self.pass_ms[rows.min(MAX_ROWS)]
    }

    /// Returns the milliseconds of a drafted token.
    pub(super) fn draft(&self, times: &DraftTimes) -> f64 {
        times.draft.map_or(times.expected, |time| libm::exp(time.log)) * self.pass(1)
    }

    /// Returns the milliseconds in which a draft model reads a token of the conversation. Before it is measured, the
    /// ratio of a row to a pass is taken from the target.
    pub(super) fn read(&self, times: &DraftTimes) -> f64 {
        let expected = || self.expected_row * self.draft(times);
        times.read.map_or_else(expected, |time| libm::exp(time.log) * self.pass(1))
    }

    /// Returns the logarithm of the estimated milliseconds of a pass.
    fn log_of_pass(&self, rows: usize) -> f64 {
        if rows == 1 {
            self.logs[0]
        } else {
            self.logs[0] + self.logs[rows - 1] + libm::log(self.shape.at(rows))
        }
    }

    /// Recomputes the times of target passes. More rows never take less time.
    fn update_passes(&mut self) {
        if !self.knows_rows {
            // Two points define the line.
            let line = || {
                PassCost::new([(1, 1.0), (2, 1.0 + self.expected_row)]).unwrap_or_else(|_| PassCost::flat())
            };
            self.shape = self.predicted.clone().unwrap_or_else(line);
        }
        let mut least: f64 = 0.0;
        for rows in 1..=MAX_ROWS {
            let ms = if self.knows_plain() { libm::exp(self.log_of_pass(rows)) } else { self.shape.at(rows) };
            least = least.max(ms);
            self.pass_ms[rows] = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: CostMemory = CostMemory { own: 32.0, shared: 2.0 };

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
        costs.expect_row(0.9);
        let after_plain = [(1, 10.0), (2, 12.5), (8, 12.5), (9, 20.0)];
        assert!(after_plain.iter().all(|&(rows, ms)| near(costs.pass(rows), ms)));
        for _ in 0..60 {
            costs.add_pass(1, 10.0);
            costs.add_pass(4, 30.0);
        }
        assert!(near(costs.pass(4), 30.0), "measured: {}", costs.pass(4));
        assert!(near(costs.pass(9), 30.0 * 8.0 / 5.0), "as far from the prediction: {}", costs.pass(9));
        assert!(costs.pass(3) > 20.0, "between measured rows");
    }

    #[test]
    fn rows_that_were_measured_before_are_expected() {
        let mut costs = CostModel::new(MEMORY);
        costs.expect_row(0.3);
        costs.expect_row(f64::NAN);
        costs.add_pass(1, 10.0);
        assert!(near(costs.pass(2), 13.0) && near(costs.pass(5), 22.0));
    }

    #[test]
    fn a_slower_machine_slows_every_estimate() {
        let (mut costs, draft) = learned();
        (0..10).for_each(|_| costs.add_pass(1, 17.0));
        assert!(near(costs.pass(1), 17.0) && near(costs.pass(3), 1.2 * 17.0));
        assert!(near(costs.draft(&draft), 0.3 * 17.0));
    }

    /// A machine that gets twice as fast within some passes, of which few are plain.
    #[test]
    fn warming_caches_do_not_change_ratios() {
        let mut costs = CostModel::new(MEMORY);
        costs.expect_row(0.2);
        for pass in 0..30 {
            let plain = 4.5 * (1.0 + (-f64::from(pass) / 6.0).exp());
            match pass {
                0 | 3 | 8 | 17 => costs.add_pass(1, plain),
                _ => costs.add_pass(2, 1.2 * plain),
            }
            let ratio = costs.pass(2) / costs.pass(1);
            assert!(ratio > 1.1, "{ratio} after pass {pass}");
        }
        assert!(near(costs.pass(2) / costs.pass(1), 1.2));
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
    fn a_slow_first_draft_counts_as_much_as_the_expected_one() {
        let mut costs = CostModel::new(MEMORY);
        let mut draft = DraftTimes { expected: 0.3, ..DraftTimes::default() };
        costs.add_pass(1, 10.0);
        costs.add_draft(&mut draft, 6.0);
        assert!(near(costs.draft(&draft), f64::sqrt(3.0 * 6.0)), "{}", costs.draft(&draft));
        (0..12).for_each(|_| costs.add_draft(&mut draft, 3.0));
        assert!((costs.draft(&draft) - 3.0).abs() < 0.4, "{}", costs.draft(&draft));
    }

    #[test]
    fn more_rows_never_take_less_time() {
        let mut costs = CostModel::new(MEMORY);
        costs.add_pass(1, 70.0);
        for _ in 0..8 {
            costs.add_pass(4, 11.0);
            assert!((1..MAX_ROWS).all(|rows| costs.pass(rows) <= costs.pass(rows + 1)));
        }
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
        let between = 10.5..15.5;
        assert!(between.contains(&costs.pass(1)), "{}", costs.pass(1));
        let mut interrupted = CostModel::new(MEMORY);
        interrupted.expect_plain(10.0);
        interrupted.add_pass(1, 500.0);
        assert!(between.contains(&interrupted.pass(1)), "an outlier counts as twice the expected time");
        // The expected time does not outlast the measurements.
        (0..20).for_each(|_| costs.add_pass(1, 20.0));
        assert!(near(costs.pass(1), 20.0), "{}", costs.pass(1));
    }

    #[test]
    fn the_pass_after_a_pause_decides_more() {
        let after = |pauses: bool| {
            let (mut costs, _) = learned();
            if pauses {
                costs.pause();
            }
            costs.add_pass(1, 15.0);
            costs.pass(1)
        };
        assert!(after(true) > after(false) + 0.5);
    }

    #[test]
    fn unmeasured_costs_are_in_plain_passes_and_nonsense_is_ignored() {
        let (mut costs, mut draft) = (CostModel::new(MEMORY), DraftTimes::default());
        assert!(!costs.knows_plain());
        assert!(costs.pass(1) == 1.0 && costs.pass(2) > 1.0 && costs.draft(&draft) == 0.0);
        draft.expected = 0.5;
        costs.add_pass(2, 10.0);
        assert!(!costs.knows_plain() && costs.pass(2) < 2.0, "no plain pass was measured");
        costs.add_pass(1, 10.0);
        assert!(near(costs.pass(1), 10.0) && near(costs.draft(&draft), 5.0));
        for nonsense in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let before = costs.pass(1);
            costs.add_pass(1, nonsense);
            costs.add_draft(&mut draft, nonsense);
            assert_eq!((costs.pass(1), costs.draft(&draft)), (before, before * 0.5));
        }
        costs.add_pass(1, 1e6);
        assert!(costs.pass(1) < 20.0, "an outlier counts as twice the estimate");
        costs.add_pass(99, 1.0);
        costs.add_pass(0, 1.0);
        assert!(costs.pass(1) > 10.0);
    }

    #[test]
    fn estimates_stay_finite_over_a_long_conversation() {
        let (mut costs, mut draft) = learned();
        for pass in 0..200_000_usize {
            costs.add_pass(1 + pass * 7 % MAX_ROWS, 10.0 + (pass % 13) as f64);
            costs.add_draft(&mut draft, 3.0);
            if pass % 500 == 0 {
                costs.pause();
            }
        }
        let all = (1..=MAX_ROWS).map(|rows| costs.pass(rows));
        assert!(all.chain([costs.draft(&draft)]).all(|ms| ms.is_finite() && ms > 1.0 && ms < 50.0));
        assert!((0..MAX_ROWS).all(|i| costs.covariance[i][i] > 0.0));
    }
}
