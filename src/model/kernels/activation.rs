//! The gate of the feed-forward layer on the CPU. Element by element, so row-invariant by nature.

/// `silu(gate) * up`, where silu(x) = x / (1 + e^-x); both of one length.
pub fn gated_silu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(&g, &u)| g / (1.0 + (-g).exp()) * u).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_silu_times_up_and_survives_extremes() {
        let out = gated_silu(&[0.0, 1.0, -1.0, 200.0, -200.0], &[3.0, 2.0, 2.0, 1.0, 1.0]);
        assert_eq!(out[0], 0.0);
        assert!((out[1] - 2.0 * 0.731_058_6).abs() < 1e-6);
        assert!((out[2] + 2.0 * 0.268_941_4).abs() < 1e-6);
        assert_eq!(out[3], 200.0);
        assert!(out[4].abs() < 1e-30);
    }
}
