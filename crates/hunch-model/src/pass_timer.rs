//! Timer of passes: runs a list of passes round by round and keeps the time of each. Benchmarks use it, the self-test of
//! a GPU, and the choice of a draft model's device.

use std::collections::BTreeMap;
use std::time::Instant;

use hunch_core::quantile::{median, typical_mean};
use hunch_error::Result;

/// Observer of timed passes.
pub struct TimingObserver<'a> {
    /// Called before each round with the rounds done and the rounds of this run.
    pub on_round: &'a mut dyn FnMut(usize, usize),
    /// Returns true if timing should stop. Asked before each pass.
    pub stopped: &'a dyn Fn() -> bool,
}

impl TimingObserver<'_> {
    /// Runs `timed` with an observer that never stops.
    pub fn none<T>(timed: impl FnOnce(TimingObserver<'_>) -> T) -> T {
        timed(TimingObserver { on_round: &mut |_, _| (), stopped: &|| false })
    }
}

/// Times a fixed list of passes, identified by keys of type `P`, in rounds.
///
/// Each round runs every pass once, rotated by one against the round before, so that heat and other programs
/// affect all passes alike. Round 0 warms up and is not kept, unless the passes are warm.
pub struct PassTimer<P> {
    passes: Vec<P>,
    /// True if round 0 has run.
    warm: bool,
    rounds: Vec<BTreeMap<P, f64>>,
}

impl<P: Ord + Clone> PassTimer<P> {
    /// Creates a timer of these passes. A pass listed several times counts with the mean of its times in a round.
    pub fn new(passes: Vec<P>) -> Self {
        Self { passes, warm: false, rounds: Vec::new() }
    }

    /// Creates a timer of passes that have run before, so that every round is kept.
    pub fn of_warm(passes: Vec<P>) -> Self {
        Self { warm: true, ..Self::new(passes) }
    }

    /// Runs `rounds` more rounds, after the warm-up if it has not run yet. Returns false if it was stopped. Finished
    /// rounds are kept.
    ///
    /// `time` gets the number of the round and a pass, and returns its time, or `None` to leave it out.
    ///
    /// # Errors
    /// As `time`.
    pub fn run(
        &mut self,
        rounds: usize,
        time: &mut dyn FnMut(usize, &P) -> Result<Option<f64>>,
        watch: TimingObserver<'_>,
    ) -> Result<bool> {
        let total = rounds + usize::from(!self.warm);
        for done in 0..total {
            let number = if self.warm { 1 + self.rounds.len() } else { 0 };
            (watch.on_round)(done, total);
            let mut times: BTreeMap<P, Vec<f64>> = BTreeMap::new();
            for at in 0..self.passes.len() {
                if (watch.stopped)() {
                    return Ok(false);
                }
                let pass = &self.passes[(number + at) % self.passes.len()];
                if let Some(time) = time(number, pass)? {
                    times.entry(pass.clone()).or_default().push(time);
                }
            }
            if self.warm {
                let means = times.into_iter().filter_map(|(pass, times)| Some((pass, typical_mean(&times)?)));
                self.rounds.push(means.collect());
            }
            self.warm = true;
        }
        Ok(true)
    }

    /// Number of rounds kept.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Times of the rounds after the first `from`.
    pub fn since(&self, from: usize) -> PassTimes<'_, P> {
        PassTimes(&self.rounds[from..])
    }
}

/// Times of passes, round by round.
pub struct PassTimes<'a, P>(&'a [BTreeMap<P, f64>]);

impl<P: Ord> PassTimes<'_, P> {
    /// All times of a pass.
    fn of(&self, pass: &P) -> Vec<f64> {
        self.0.iter().filter_map(|round| round.get(pass).copied()).collect()
    }

    /// Median time of a pass. `None` if it was never timed.
    pub fn median(&self, pass: &P) -> Option<f64> {
        median(&self.of(pass))
    }

    /// Shortest time of a pass. `None` if it was never timed.
    pub fn least(&self, pass: &P) -> Option<f64> {
        self.of(pass).into_iter().reduce(f64::min)
    }

    /// Mean time of a pass with outliers clamped, see [`typical_mean`]. `None` if it was never timed.
    pub fn typical_mean(&self, pass: &P) -> Option<f64> {
        typical_mean(&self.of(pass))
    }

    /// Median over the rounds of the ratio `pass` / `reference`. `None` if no round has both.
    pub fn ratio(&self, pass: &P, reference: &P) -> Option<f64> {
        let ratio = |round: &BTreeMap<P, f64>| Some(round.get(pass)? / round.get(reference)?);
        median(&self.0.iter().filter_map(ratio).collect::<Vec<_>>())
    }
}

/// Runs `work` and returns the seconds it took.
///
/// # Errors
/// As `work`.
pub fn seconds_of(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<P: Ord + Clone>(
        timer: &mut PassTimer<P>,
        rounds: usize,
        time: &mut dyn FnMut(usize, &P) -> Result<Option<f64>>,
    ) {
        assert!(TimingObserver::none(|watch| timer.run(rounds, time, watch)).unwrap());
    }

    #[test]
    fn rounds_rotate_and_the_warm_up_is_not_kept() {
        let mut timer = PassTimer::new(vec!['a', 'b', 'c']);
        let mut order = Vec::new();
        let mut time = |number: usize, pass: &char| {
            order.push((number, *pass));
            Ok((*pass != 'c').then_some(number as f64))
        };
        run(&mut timer, 1, &mut time);
        run(&mut timer, 1, &mut time);
        let passes: Vec<char> = order.iter().map(|(_, pass)| *pass).collect();
        assert_eq!(passes.iter().collect::<String>(), "abcbcacab");
        assert_eq!(order.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(timer.rounds(), 2);
        assert_eq!(timer.since(0).median(&'a'), Some(1.5));
        assert_eq!((timer.since(1).median(&'b'), timer.since(0).least(&'b')), (Some(2.0), Some(1.0)));
        assert_eq!((timer.since(0).median(&'c'), timer.since(0).ratio(&'a', &'c')), (None, None));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut timer = PassTimer::new(vec![1, 2]);
        let times = [[1.0, 1.0], [1.0, 2.0], [10.0, 30.0], [100.0, 400.0]];
        let mut time = |number: usize, pass: &usize| Ok(Some(times[number][pass - 1]));
        run(&mut timer, 3, &mut time);
        assert_eq!(timer.since(0).ratio(&2, &1), Some(3.0));
    }

    #[test]
    fn repeated_passes_count_with_their_mean() {
        let mut timer = PassTimer::new(vec![1, 1]);
        let mut calls = 0.0;
        let mut time = |_: usize, _: &i32| {
            calls += 1.0;
            Ok(Some(calls))
        };
        run(&mut timer, 1, &mut time);
        assert_eq!(timer.since(0).typical_mean(&1), Some(3.5));
    }

    #[test]
    fn stopping_keeps_finished_rounds() {
        let mut timer = PassTimer::new(vec!['a', 'b']);
        let passes = std::cell::Cell::new(0);
        let mut time = |_: usize, _: &char| {
            passes.set(passes.get() + 1);
            Ok(Some(1.0))
        };
        let mut rounds = Vec::new();
        let mut on_round = |done: usize, total: usize| rounds.push((done, total));
        let watch = TimingObserver { on_round: &mut on_round, stopped: &|| passes.get() == 5 };
        assert!(!timer.run(4, &mut time, watch).unwrap());
        assert_eq!((timer.rounds(), rounds), (1, vec![(0, 5), (1, 5), (2, 5)]));
    }
}
