//! Divergences between the distributions of target and draft (DistillSpec, Zhou et al., arXiv 2310.08461), with their
//! gradients for the draft's logits.

use std::fmt;
use std::str::FromStr;

use candle_core::{D, Result, Tensor};

use crate::train::ops::log_softmax;

/// Distance of the draft's distribution q from the target's p.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Divergence {
    /// KL(p, q). Weighs tokens that the target may say and the draft does not.
    #[default]
    Forward,
    /// KL(q, p). Weighs tokens that the draft says and the target does not.
    Reverse,
    /// Jensen-Shannon divergence: the mean of KL(p, m) and KL(q, m), where m is the mean of p and q.
    JensenShannon,
    /// Total variation distance: the share of drafted tokens that are rejected at temperature 1.
    TotalVariation,
}

impl Divergence {
    /// All divergences.
    pub const ALL: [Self; 4] = [Self::Forward, Self::Reverse, Self::JensenShannon, Self::TotalVariation];

    /// Returns the name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "fkl",
            Self::Reverse => "rkl",
            Self::JensenShannon => "jsd",
            Self::TotalVariation => "tvd",
        }
    }

    /// Returns the mean divergence over rows, and its gradient for the draft's logits. Both logits are `[rows, n_vocab]`.
    ///
    /// With d the derivative of the divergence for q, the gradient is q (d - sum q d).
    ///
    /// # Errors
    /// If the device fails.
    pub fn of(self, target: &Tensor, draft: &Tensor) -> Result<(f64, Tensor)> {
        let (log_p, log_q) = (log_softmax(target)?, log_softmax(&draft.detach())?);
        let (p, q) = (log_p.exp()?, log_q.exp()?);
        let rows = p.dim(0)? as f64;
        let (loss, derivative) = match self {
            Self::Forward => {
                let loss = (&p * (&log_p - &log_q)?)?.sum_all()?;
                return Ok((mean(&loss, rows)?, ((q - p)? / rows)?));
            }
            Self::Reverse => {
                let ratio = (&log_q - &log_p)?;
                ((&q * &ratio)?.sum_all()?, ratio)
            }
            Self::JensenShannon => {
                let log_m = (((&p + &q)? * 0.5)? + 1e-30)?.log()?;
                let ratio = ((&log_q - &log_m)? * 0.5)?;
                let of_target = ((&p * (&log_p - &log_m)?)? * 0.5)?;
                ((of_target + (&q * &ratio)?)?.sum_all()?, ratio)
            }
            Self::TotalVariation => {
                let difference = (&q - &p)?;
                ((difference.abs()?.sum_all()? * 0.5)?, (difference.sign()? * 0.5)?)
            }
        };
        let middle = (&q * &derivative)?.sum_keepdim(D::Minus1)?;
        let gradient = (&q * derivative.broadcast_sub(&middle)?)?;
        Ok((mean(&loss, rows)?, (gradient / rows)?))
    }
}

fn mean(sum: &Tensor, rows: f64) -> Result<f64> {
    Ok(f64::from(sum.to_scalar::<f32>()?) / rows)
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Divergence {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or(format!("The divergences are {names}."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::ops::check;

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = check::random(3);
        let (target, draft) = (random(&[3, 12], 4.0), random(&[3, 12], 4.0));
        for divergence in Divergence::ALL {
            let (_, gradient) = divergence.of(&target, &draft).unwrap();
            let gradient = gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let values = draft.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for (at, own) in gradient.iter().enumerate() {
                let loss = |offset: f32| {
                    let mut moved = values.clone();
                    moved[at] += offset;
                    let moved = Tensor::from_vec(moved, (3, 12), draft.device()).unwrap();
                    divergence.of(&target, &moved).unwrap().0
                };
                let expected = (loss(1e-2) - loss(-1e-2)) / 2e-2;
                assert!((f64::from(*own) - expected).abs() < 3e-4, "{divergence}[{at}]: {own} {expected}");
            }
        }
    }

    /// Each divergence of q from p, computed from its definition.
    #[test]
    fn values_follow_from_the_definitions() {
        let (p, q) = ([0.5, 0.3, 0.2], [0.1, 0.2, 0.7f64]);
        let logits = |of: [f64; 3]| {
            // A constant does not change the distribution.
            let values = of.map(|x| (x.ln() + 2.0) as f32);
            Tensor::from_vec([values, values].concat(), (2, 3), &candle_core::Device::Cpu).unwrap()
        };
        let kl = |a: [f64; 3], b: [f64; 3]| a.iter().zip(b).map(|(a, b)| a * (a / b).ln()).sum::<f64>();
        let middle = [0.3, 0.25, 0.45];
        for (divergence, expected) in [
            (Divergence::Forward, kl(p, q)),
            (Divergence::Reverse, kl(q, p)),
            (Divergence::JensenShannon, 0.5 * kl(p, middle) + 0.5 * kl(q, middle)),
            // 1 - sum of min(p, q)
            (Divergence::TotalVariation, 1.0 - (0.1 + 0.2 + 0.2)),
        ] {
            let (value, _) = divergence.of(&logits(p), &logits(q)).unwrap();
            assert!((value - expected).abs() < 1e-6, "{divergence}: {value} {expected}");
        }
    }

    #[test]
    fn divergence_is_zero_at_the_target_and_positive_elsewhere() {
        let mut random = check::random(4);
        let (target, draft) = (random(&[4, 9], 3.0), random(&[4, 9], 3.0));
        for divergence in Divergence::ALL {
            let (none, gradient) = divergence.of(&target, &target).unwrap();
            let most = gradient.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(none.abs() < 1e-6 && most < 1e-6, "{divergence}: {none} {most}");
            assert!(divergence.of(&target, &draft).unwrap().0 > 1e-3, "{divergence}");
        }
    }
}
