//! Figures over many answers: means with errors, speedups of pairs, pooled work.
//!
//! Pure arithmetic over the figures of [`hunch_core::stats`].

use std::collections::BTreeMap;

use serde::Serialize;

use hunch_core::stats::{GenerationStats, PooledCounts};

/// The quantiles that bound a spread: the 10th and the 90th percentile.
pub const SPREAD: (f64, f64) = (0.1, 0.9);

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Standard error. `None` when there is only one text.
    pub error: Option<f64>,
}

/// Mean over all values of some texts, with a standard error clustered by text.
///
/// Values of one text are correlated, so the n texts are the samples. The error is the square root of n / (n - 1)
/// times S, divided by the number of values. S sums the squared sum of deviations of each text. `None` without values.
pub fn mean_of_texts(texts: &[Vec<f64>]) -> Option<Estimate> {
    let texts: Vec<&[f64]> = texts.iter().map(Vec::as_slice).filter(|text| !text.is_empty()).collect();
    let count = texts.iter().map(|text| text.len()).sum::<usize>() as f64;
    let mean = texts.iter().copied().flatten().sum::<f64>() / count;
    let off = |text: &&[f64]| text.iter().map(|value| value - mean).sum::<f64>().powi(2);
    let between = texts.iter().map(off).sum::<f64>();
    let of_texts = texts.len() as f64 / (texts.len() as f64 - 1.0);
    let error = (texts.len() > 1).then(|| (of_texts * between).sqrt() / count);
    (!texts.is_empty()).then_some(Estimate { mean, error })
}

/// Speedup of one answer over plain decoding's answer to the same prompt: the ratio of wall times.
///
/// Above temperature 0 answers can differ in length. Then plain's time after prefill is scaled to the number of
/// tokens of the other answer. `None` when a time is missing.
pub fn speedup(plain: &GenerationStats, other: &GenerationStats) -> Option<f64> {
    let wall = if plain.generated_tokens == other.generated_tokens {
        plain.wall_ms
    } else if plain.generated_tokens == 0 || other.generated_tokens == 0 {
        return None;
    } else {
        let decode = decode_ms(plain);
        let scale = f64::from(other.generated_tokens) / f64::from(plain.generated_tokens);
        plain.wall_ms - decode + decode * scale
    };
    ratio(wall, other.wall_ms)
}

/// Speedup of decoding without prefill: the ratio of decode tokens per second.
///
/// Predictions are compared with this figure. `None` when either answer is empty.
pub fn decode_speedup(plain: &GenerationStats, other: &GenerationStats) -> Option<f64> {
    ratio(other.decode_tok_s, plain.decode_tok_s)
}

/// Time after prefill in milliseconds: the four parts of a generation's rounds.
pub(super) fn decode_ms(stats: &GenerationStats) -> f64 {
    stats.propose_ms + stats.target_ms + stats.verify_ms + stats.other_ms
}

/// `over / under`. `None` unless it is a positive number.
pub(super) fn ratio(over: f64, under: f64) -> Option<f64> {
    let ratio = over / under;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// Pooled counts, passes and times of many answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PooledWork {
    /// Token and round counts.
    pub counts: PooledCounts,
    /// Target passes after prefill, by rows.
    pub target_passes: BTreeMap<usize, u64>,
    /// Draft passes, by rows.
    pub draft_passes: BTreeMap<usize, u64>,
    /// Time after prefill outside drafting and target passes, in milliseconds.
    pub loop_ms: f64,
    /// Wall time, in milliseconds.
    pub wall_ms: f64,
}

impl PooledWork {
    /// Work of one answer.
    pub fn of(stats: &GenerationStats) -> Self {
        let mut work = Self::default();
        work.add(stats);
        work
    }

    /// Adds one answer.
    pub fn add(&mut self, stats: &GenerationStats) {
        self.counts.add(stats);
        self.loop_ms += stats.verify_ms + stats.other_ms;
        self.wall_ms += stats.wall_ms;
        for (passes, more) in
            [(&mut self.target_passes, &stats.target_passes), (&mut self.draft_passes, &stats.draft_passes)]
        {
            for &(rows, count) in more {
                *passes.entry(rows as usize).or_default() += u64::from(count);
            }
        }
    }

    /// Share of wall time spent in the loop itself. `None` without answers.
    pub fn loop_share(&self) -> Option<f64> {
        (self.wall_ms > 0.0).then(|| self.loop_ms / self.wall_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 1e-12)
    }

    fn answer(tokens: u32, prefill_ms: f64, decode_ms: f64) -> GenerationStats {
        GenerationStats {
            generated_tokens: tokens,
            wall_ms: prefill_ms + decode_ms,
            propose_ms: decode_ms * 0.25,
            target_ms: decode_ms * 0.5,
            verify_ms: decode_ms * 0.125,
            other_ms: decode_ms * 0.125,
            decode_tok_s: f64::from(tokens) / decode_ms * 1e3,
            ..GenerationStats::default()
        }
    }

    #[test]
    fn errors_are_clustered_by_text() {
        let alike = mean_of_texts(&[vec![1.0; 4], vec![3.0; 4]]).unwrap();
        // Two texts with deviations of 1 from a mean of 2. Their lengths do not matter.
        assert_eq!(alike.mean, 2.0);
        assert!(close(alike.error, 1.0));
        let single = mean_of_texts(&[vec![1.0, 2.0], Vec::new()]).unwrap();
        assert_eq!((single.mean, single.error), (1.5, None));
        assert_eq!(mean_of_texts(&[Vec::new()]), None);
        // With one value per text it is the usual standard error.
        let values = [vec![1.0], vec![2.0], vec![6.0]];
        assert!(close(mean_of_texts(&values).unwrap().error, (7.0f64 / 3.0).sqrt()));
    }

    #[test]
    fn speedup_is_the_ratio_of_wall_times() {
        let plain = answer(10, 100.0, 400.0);
        assert!(close(speedup(&plain, &answer(10, 100.0, 150.0)), 2.0));
        assert!(close(decode_speedup(&plain, &answer(10, 100.0, 200.0)), 2.0));
        // Twice the tokens: plain would have needed 100 + 800 ms.
        assert!(close(speedup(&plain, &answer(20, 100.0, 400.0)), 1.8));
        assert_eq!(speedup(&plain, &answer(0, 100.0, 0.0)), None);
        assert_eq!(speedup(&plain, &answer(10, 0.0, 0.0)), None);
    }

    #[test]
    fn pools_passes_by_rows() {
        let mut pooled = PooledWork::default();
        for passes in [vec![(1, 2), (3, 4)], vec![(3, 1)]] {
            pooled.add(&GenerationStats {
                rounds: 5,
                target_passes: passes.clone(),
                draft_passes: passes,
                verify_ms: 2.0,
                other_ms: 1.0,
                wall_ms: 50.0,
                ..GenerationStats::default()
            });
        }
        assert!(close(pooled.loop_share(), 0.06));
        assert_eq!(pooled.target_passes, BTreeMap::from([(1, 2), (3, 5)]));
        assert_eq!((pooled.counts.rounds, pooled.draft_passes), (10, BTreeMap::from([(1, 2), (3, 5)])));
    }
}
