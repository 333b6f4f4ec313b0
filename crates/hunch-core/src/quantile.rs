//! Quantiles of measured values. Other figures of generations are in [`stats`](crate::stats).

/// Returns the quantile `at` (0..=1) of `values`, interpolated linearly, or `None` for an empty slice.
pub fn quantile(values: &[f64], at: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = at.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// Returns the median of `values`, or `None` for an empty slice.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Returns the mean of `values` with each clamped to twice their median, or `None` for an empty slice. Stalls caused by
/// other programs then do not dominate.
pub fn typical_mean(values: &[f64]) -> Option<f64> {
    let most = 2.0 * median(values)?;
    Some(values.iter().map(|value| value.min(most)).sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_neighbours() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(median(&values), Some(2.5));
        assert!((quantile(&values, 0.1).unwrap() - 1.3).abs() < 1e-12);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_stall_counts_as_twice_the_median() {
        assert_eq!(typical_mean(&[1.0, 1.0, 100.0]), Some(4.0 / 3.0));
        assert_eq!(typical_mean(&[]), None);
    }
}
