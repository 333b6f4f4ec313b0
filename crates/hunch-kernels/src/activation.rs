//! Row-wise operations of a layer: RMS norm, rotary embedding, gated activations and soft caps.
//!
//! Each row is computed independently, so these are row-invariant. No matrix products here.

#[cfg(target_arch = "x86_64")]
use super::isa::Level;

/// Lanes of partial sums. Element i of a row is added to lane i % 16.
const LANES: usize = 16;

/// Activation of the gate in a gated feed-forward network (Shazeer, arXiv 2002.05202).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// silu(x) = x / (1 + e^-x).
    #[default]
    Silu,
    /// GELU by its tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415).
    Gelu,
    /// SiLU with bounds, as in [`clamped_silu`].
    Clamped,
}

impl Activation {
    /// Computes `gate = activation(gate) * up`. Both have the same length.
    pub fn gate(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Self::Silu => gated_silu(gate, up),
            Self::Gelu => gated_gelu(gate, up),
            Self::Clamped => clamped_silu(gate, up),
        }
    }
}

/// Compiles a function a second time with AVX2 enabled and dispatches at run time. The body is plain
/// Rust, which the compiler vectorises.
macro_rules! widened {
    ($(#[$doc:meta])* $visible:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        $visible fn $name($($arg: $ty),*) {
            #[inline(always)]
            fn plain($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) {
                    plain($($arg),*);
                }
                if Level::current() != Level::Scalar {
                    // SAFETY: every level except `Scalar` requires AVX2, FMA and F16C.
                    return unsafe { avx2($($arg),*) };
                }
            }
            plain($($arg),*);
        }
    };
}
pub(super) use widened;

widened! {
    /// Computes `gate = silu(gate) * up`, where silu(x) = x / (1 + e^-x). Both have the same length.
    pub fn gated_silu(gate: &mut [f32], up: &[f32]) {
        for (g, u) in gate.iter_mut().zip(up) {
            *g = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

/// Twice the square root of 2 / pi, the slope of GELU's tanh approximation.
const GELU_SLOPE: f32 = 1.595_769;
/// Weight of the cubic term in GELU's tanh approximation.
const GELU_CUBIC: f32 = 0.044_715;

widened! {
    /// Computes `gate = gelu(gate) * up`, with gelu(x) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    ///
    /// That equals x (1 + tanh u) / 2. Both have the same length.
    pub fn gated_gelu(gate: &mut [f32], up: &[f32]) {
        for (g, u) in gate.iter_mut().zip(up) {
            let x = *g;
            let slope = GELU_SLOPE * (x + GELU_CUBIC * x * x * x);
            *g = x / (1.0 + exp(-slope)) * u;
        }
    }
}

/// Slope of the sigmoid in [`clamped_silu`].
pub const CLAMPED_SLOPE: f32 = 1.702;
/// Bound of gates and ups in [`clamped_silu`].
pub const CLAMPED_BOUND: f32 = 7.0;

widened! {
    /// Computes `gate = g / (1 + e^-1.702g) * (u + 1)`, where g is the gate, at most 7, and u is from -7 to 7.
    ///
    /// The gate of gpt-oss (openai/gpt-oss, `swiglu`). Both have the same length.
    pub fn clamped_silu(gate: &mut [f32], up: &[f32]) {
        for (g, u) in gate.iter_mut().zip(up) {
            let x = g.min(CLAMPED_BOUND);
            let up = u.clamp(-CLAMPED_BOUND, CLAMPED_BOUND) + 1.0;
            *g = x / (1.0 + exp(-CLAMPED_SLOPE * x)) * up;
        }
    }
}

widened! {
    /// Computes `x = cap * tanh(x / cap)` in place. Negative infinity stays as it is.
    pub fn soft_cap(x: &mut [f32], cap: f32) {
        for x in x.iter_mut() {
            let capped = cap * tanh(*x / cap);
            *x = if *x == f32::NEG_INFINITY { *x } else { capped };
        }
    }
}

widened! {
    /// Computes sigmoids in place.
    pub fn sigmoids(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = 1.0 / (1.0 + exp(-*x)));
    }
}

widened! {
    /// Computes `x *= sigmoid(gate)`. Both have the same length.
    pub fn gate_by_sigmoid(x: &mut [f32], gate: &[f32]) {
        for (x, gate) in x.iter_mut().zip(gate) {
            *x /= 1.0 + exp(-*gate);
        }
    }
}

widened! {
    /// Multiplies every element by `factor`, in place.
    pub fn scale(x: &mut [f32], factor: f32) {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

widened! {
    /// Computes `out += factor * x`. Both have the same length.
    pub fn add_scaled(out: &mut [f32], x: &[f32], factor: f32) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += factor * x;
        }
    }
}

widened! {
    /// Computes the RMS norm of one row: `out = x / sqrt(mean(x^2) + eps) * weight`.
    ///
    /// All slices have the same length. Zhang and Sennrich, arXiv 1910.07467.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = inverse_rms(x, eps);
        for (out, (x, w)) in out.iter_mut().zip(x.iter().zip(weight)) {
            *out = x * scale * w;
        }
    }
}

widened! {
    /// Computes [`rms_norm`] in place.
    pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
        let scale = inverse_rms(x, eps);
        for (x, w) in x.iter_mut().zip(weight) {
            *x = *x * scale * w;
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mut sums = [0f32; LANES];
    for part in x.chunks(LANES) {
        for (sum, x) in sums.iter_mut().zip(part) {
            *sum += x * x;
        }
    }
    let mean = sums.iter().sum::<f32>() / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

widened! {
    /// Applies the rotary embedding to one head in place, pairing element i with element i + half.
    ///
    /// `cos` and `sin` have one value for each pair. Su et al., arXiv 2104.09864.
    pub fn rotate_halves(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        let (low, high) = x.split_at_mut(cos.len());
        for ((a, b), (c, s)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    }
}

widened! {
    /// Applies the rotary embedding like [`rotate_halves`], but pairs element 2i with element 2i + 1.
    pub fn rotate_neighbours(x: &mut [f32], cos: &[f32], sin: &[f32]) {
        for (pair, (c, s)) in x.chunks_exact_mut(2).zip(cos.iter().zip(sin)) {
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
    }
}

/// Computes tanh(x) with an absolute error below 3e-7.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (1.0 + exp(2.0 * x))
}

/// Computes e^x within 2 units in the last place, with x clamped to -87..=88.
///
/// Cody-Waite reduction and a polynomial of degree 6 with Taylor coefficients. Branch-free, so that it
/// vectorises.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    let magic = 12_582_912.0_f32;
    let shifted = x * std::f32::consts::LOG2_E + magic;
    let n = shifted - magic;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // The lowest bits of `shifted` hold n. The shift discards the others.
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_f64_within_rounding() {
        let mut worst = 0f64;
        for i in -88_000..87_000 {
            let x = -(i as f32) / 1000.0;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            worst = worst.max(((ours - exact) / exact).abs());
        }
        assert!(worst < 4e-7, "worst relative error {worst}");
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn gated_silu_handles_extreme_values() {
        let mut out = [0.0, 1.0, -1.0, 200.0, -200.0];
        gated_silu(&mut out, &[3.0, 2.0, 2.0, 1.0, 1.0]);
        assert_eq!(out[0], 0.0);
        assert!((out[1] - 2.0 * 0.731_058_6).abs() < 1e-6);
        assert!((out[2] + 2.0 * 0.268_941_4).abs() < 1e-6);
        assert_eq!(out[3], 200.0);
        assert!(out[4].abs() < 1e-30);
    }

    #[test]
    fn clamped_silu_bounds_gate_and_up() {
        let mut gate = [2.0, 2.0, 100.0, -100.0, 0.0];
        clamped_silu(&mut gate, &[0.5, 50.0, -50.0, 1.0, 3.0]);
        let silu = |x: f32| x / (1.0 + (-1.702 * x).exp());
        for (ours, expected) in
            gate.iter().zip([silu(2.0) * 1.5, silu(2.0) * 8.0, silu(7.0) * -6.0, 0.0, 0.0])
        {
            assert!((ours - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{ours}, not {expected}");
        }
    }

    #[test]
    fn gated_gelu_and_soft_cap_match_f64() {
        for i in -4000..4000 {
            let x = i as f32 / 250.0;
            let wide = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            let mut gelu = [x];
            gated_gelu(&mut gelu, &[2.0]);
            let expected = wide * (1.0 + inner.tanh());
            assert!(
                (f64::from(gelu[0]) - expected).abs() <= 2e-6 * (1.0 + wide.abs()),
                "gelu({x}): {}",
                gelu[0]
            );
            let mut capped = [x];
            soft_cap(&mut capped, 3.0);
            assert!((f64::from(capped[0]) - 3.0 * (wide / 3.0).tanh()).abs() < 2e-6, "{x}: {}", capped[0]);
        }
        let mut far = [f32::NEG_INFINITY, 1e9, -1e9];
        soft_cap(&mut far, 30.0);
        assert_eq!(far, [f32::NEG_INFINITY, 30.0, -30.0]);
    }

    #[test]
    fn rms_norm_of_constant_magnitude_equals_weight() {
        let x: Vec<f32> = (0..40).map(|i| if i % 2 == 0 { 3.0 } else { -3.0 }).collect();
        let weight: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let mut out = vec![0.0; 40];
        rms_norm(&x, &weight, 0.0, &mut out);
        for (i, value) in out.iter().enumerate() {
            assert!((value.abs() - i as f32).abs() < 1e-4);
        }
        let mut in_place = x.clone();
        rms_norm_in_place(&mut in_place, &weight, 0.0);
        assert_eq!(in_place, out);
        rms_norm(&[0.0; 4], &[1.0; 4], 1e-6, &mut out[..4]);
        assert_eq!(out[..4], [0.0; 4]);
    }

    #[test]
    fn quarter_turn_swaps_pair() {
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rotate_halves(&mut x, &[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!(x, [-3.0, 2.0, 1.0, 4.0]);
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rotate_neighbours(&mut x, &[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0]);
    }
}
