//! Schedule of a fit: order of the answers, measurements of acceptance, learning rate, and the loss that is shown. Heads
//! and draft models share it.

use rand::seq::SliceRandom;

use super::start::generator;

/// Learning rate at the end, as a share of the highest.
const LAST_RATE: f64 = 0.05;
/// Share of the latest step in the mean loss.
const LATEST_LOSS: f64 = 0.1;

/// Returns the order of the answers in an epoch.
pub fn order(answers: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..answers).collect();
    order.shuffle(&mut generator(seed, 1, epoch));
    order
}

/// Returns whether acceptance is measured after `taken` steps of `total`: about `evaluations` times, and at the end.
pub fn is_measured_after(taken: usize, total: usize, evaluations: usize) -> bool {
    let every = (total / evaluations.max(1)).max(1);
    taken == total || taken.is_multiple_of(every)
}

/// Returns the mean loss after a step from 0, from the mean before it and its own loss.
pub fn mean_loss(before: f64, step: usize, loss: f64) -> f64 {
    if step == 0 { loss } else { (1.0 - LATEST_LOSS) * before + LATEST_LOSS * loss }
}

/// Returns the learning rate of a step from 0: a linear warm-up times a cosine from `highest` to 5% of it.
pub fn learning_rate(highest: f64, step: usize, total: usize, warm_up: usize) -> f64 {
    let rise = ((step + 1) as f64 / warm_up as f64).min(1.0);
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * step as f64 / total as f64).cos());
    highest * rise * (LAST_RATE + (1.0 - LAST_RATE) * cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rate_rises_to_the_highest_and_falls_to_a_twentieth() {
        let rates: Vec<f64> = (0..1_000).map(|step| learning_rate(2.0, step, 1_000, 10)).collect();
        assert!(rates[..10].is_sorted() && rates[9..].is_sorted_by(|a, b| a >= b));
        assert!((rates[0] - 0.2).abs() < 1e-3 && (rates[9] - 2.0).abs() < 1e-2, "{:?}", &rates[..10]);
        assert!((rates[999] - 0.1).abs() < 1e-3, "{}", rates[999]);
    }
}
