//! The acceptance rules by name, and the position noise of the coupled rule.
//!
//! Names, parameters, guarantees and the text form live here. Applying a rule to a draft is the job
//! of [`verify`](crate::verify).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::token::TokenId;

/// Rule by which drafted tokens are accepted. Rules that can change the output distribution are named
/// `lossy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum AcceptanceRule {
    /// Rejection sampling: accept x with probability min(1, p(x) / q(x)). No lossless rule accepts more
    /// of a draft sampled from q (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).
    #[default]
    Lossless,
    /// Draw the target's own token and accept the draft if it is equal.
    ///
    /// Lossless. Accepts a certain draft x with probability p(x) and a sampled one with the sum of
    /// p q, which is never more than rejection sampling.
    Match,
    /// Draw draft and target with the same Gumbel noise, a function of seed and position alone.
    ///
    /// Lossless. For a fixed seed the text is the same with and without speculation, for every method
    /// and depth (Daliri et al., arXiv 2408.07978).
    Coupled,
    /// Typical acceptance: accept x if p(x) > min(epsilon, delta e^-H(p)) (Medusa, Cai et al., arXiv
    /// 2401.10774).
    LossyTypical {
        /// Tokens above this probability are always accepted. Above 0, at most 1.
        epsilon: f32,
        /// Factor of e^-H(p), where H is the entropy of p. Above 0, at most 1.
        delta: f32,
    },
    /// Rejection sampling with q scaled by a lenience l: accept with probability min(1, p(x) / (l q(x)))
    /// (Leviathan et al., appendix A.5). Greedy sampling accepts x if p(x) >= l max p at temperature 1.
    LossyLenience {
        /// Above 0, at most 1. At 1 the rule is lossless, except between equally likely tokens at temperature 0.
        lenience: f32,
    },
}

/// Epsilon and delta of the Medusa paper.
const DEFAULT_TYPICAL: (f32, f32) = (0.09, 0.3);
const DEFAULT_LENIENCE: f32 = 0.5;

impl AcceptanceRule {
    /// Returns whether the output is distributed exactly as the target.
    pub fn is_lossless(self) -> bool {
        matches!(self, Self::Lossless | Self::Match | Self::Coupled)
    }

    /// Returns whether the text at a temperature must be the target's own greedy text. At 0 it must: all rules but
    /// lenience accept the likeliest token alone.
    pub fn keeps_greedy_text(self, temperature: f32) -> bool {
        temperature == 0.0 && !matches!(self, Self::LossyLenience { .. })
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the parameter and its range.
    pub fn validate(self) -> Result<()> {
        let inside = |name: &str, value: f32, max: f32| {
            if value > 0.0 && value <= max {
                return Ok(());
            }
            Err(Error::invalid(format!("{name} is {value}; choose a number above 0, up to {max}.")))
        };
        match self {
            Self::LossyTypical { epsilon, delta } => {
                inside("epsilon", epsilon, 1.0)?;
                inside("delta", delta, 1.0)
            }
            Self::LossyLenience { lenience } => inside("lenience", lenience, 1.0),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for AcceptanceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lossless => f.write_str("lossless"),
            Self::Match => f.write_str("match"),
            Self::Coupled => f.write_str("coupled"),
            Self::LossyTypical { epsilon, delta } => write!(f, "lossy-typical:{epsilon}:{delta}"),
            Self::LossyLenience { lenience } => write!(f, "lossy-lenience:{lenience}"),
        }
    }
}

impl FromStr for AcceptanceRule {
    type Err = String;

    /// Parses `name`, or `name:number[:number]` for the lossy rules.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers: Vec<f32> = parts
            .map(|part| part.parse().map_err(|_| format!("\"{part}\" is not a number")))
            .collect::<std::result::Result<_, _>>()?;
        let rule = match (name, numbers[..].as_ref()) {
            ("lossless", []) => Self::Lossless,
            ("match", []) => Self::Match,
            ("coupled", []) => Self::Coupled,
            ("lossy-typical", []) => {
                Self::LossyTypical { epsilon: DEFAULT_TYPICAL.0, delta: DEFAULT_TYPICAL.1 }
            }
            ("lossy-typical", [epsilon, delta]) => Self::LossyTypical { epsilon: *epsilon, delta: *delta },
            ("lossy-lenience", []) => Self::LossyLenience { lenience: DEFAULT_LENIENCE },
            ("lossy-lenience", [lenience]) => Self::LossyLenience { lenience: *lenience },
            _ => {
                return Err("choose lossless, match, coupled, lossy-typical[:epsilon:delta] or \
                            lossy-lenience[:l]"
                    .into());
            }
        };
        rule.validate().map_err(|error| error.to_string())?;
        Ok(rule)
    }
}

/// Per-position sampling noise, independent of what was drafted.
///
/// The Gumbel-max trick as a race of exponential clocks: each token has one clock, a function of
/// seed, position and token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionNoise {
    seed: u64,
}

impl PositionNoise {
    /// Creates the noise of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Samples a token from non-negative weights w: the one with the smallest E / w.
    ///
    /// E is the token's exponential variable of rate 1 at this position. Returns `None` if no weight
    /// is positive.
    pub fn choose(self, weights: &[f32], position: usize) -> Option<TokenId> {
        self.ranking(weights, position, 1).first().copied()
    }

    /// Returns the first `count` tokens of the race in order, fewer if fewer weights are positive.
    ///
    /// Entry i is the token that would be sampled if the entries before it were impossible.
    pub fn ranking(self, weights: &[f32], position: usize, count: usize) -> Vec<TokenId> {
        let of_position = mix(self.seed ^ mix(position as u64 ^ 0x9e37_79b9_7f4a_7c15));
        let mut first: Vec<(f64, TokenId)> = Vec::with_capacity(count + 1);
        let mut bound = f64::INFINITY;
        for (token, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            let bits = mix(of_position.wrapping_add(mix(token as u64)));
            // In (0, 1], so that its logarithm is finite.
            let u = ((bits >> 11) + 1) as f64 * (1.0 / 9_007_199_254_740_992.0);
            let weight = f64::from(weight);
            // -ln u >= 1 - u excludes most tokens without computing a logarithm.
            if (1.0 - u) >= bound * weight {
                continue;
            }
            let time = -u.ln() / weight;
            if time < bound {
                let place = first.partition_point(|(earlier, _)| *earlier <= time);
                first.insert(place, (time, token as TokenId));
                first.truncate(count);
                if first.len() == count {
                    bound = first.last().map_or(bound, |(time, _)| *time);
                }
            }
        }
        first.into_iter().map(|(_, token)| token).collect()
    }
}

/// The SplitMix64 finaliser, a bijection of 64 bits with full avalanche (Steele et al., OOPSLA 2014).
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::goodness_of_fit;

    #[test]
    fn noise_samples_distribution_across_positions_and_seeds() {
        let distribution = [0.5f32, 0.25, 0.0, 0.125, 0.125];
        let exact = distribution.map(f64::from);
        let mut by_position = [0u64; 5];
        let mut by_seed = [0u64; 5];
        let mut pairs = [0u64; 25];
        for i in 0..40_000usize {
            let noise = PositionNoise::new(7);
            let first = noise.choose(&distribution, i).unwrap() as usize;
            by_position[first] += 1;
            by_seed[PositionNoise::new(i as u64).choose(&distribution, 3).unwrap() as usize] += 1;
            // Neighbouring positions are independent.
            pairs[5 * first + noise.choose(&distribution, i + 1).unwrap() as usize] += 1;
        }
        assert!(goodness_of_fit(&by_position, &exact).p_value > 1e-3, "{by_position:?}");
        assert!(goodness_of_fit(&by_seed, &exact).p_value > 1e-3, "{by_seed:?}");
        let joint: Vec<f64> = exact.iter().flat_map(|a| exact.iter().map(move |b| a * b)).collect();
        assert!(goodness_of_fit(&pairs, &joint).p_value > 1e-3, "{pairs:?}");
        assert_eq!(PositionNoise::new(1).choose(&[0.0; 3], 0), None);
    }

    #[test]
    fn ranking_matches_choices_with_earlier_tokens_removed() {
        for position in 0..200 {
            let (noise, mut distribution) = (PositionNoise::new(3), vec![0.3f32, 0.2, 0.0, 0.4, 0.1]);
            let ranking = noise.ranking(&distribution, position, 9);
            assert_eq!(ranking.len(), 4);
            for token in ranking {
                assert_eq!(noise.choose(&distribution, position), Some(token));
                distribution[token as usize] = 0.0;
            }
        }
    }

    /// The coupling bound: agreement of at least (1 - TV) / (1 + TV) (Daliri et al., theorem 1).
    #[test]
    fn drafts_with_shared_noise_agree_at_least_at_coupling_bound() {
        let (p, q) = ([0.5f32, 0.3, 0.2], [0.3f32, 0.5, 0.2]);
        let noise = PositionNoise::new(11);
        let agreed = (0..20_000).filter(|&i| noise.choose(&p, i) == noise.choose(&q, i)).count();
        let distance = crate::theory::total_variation(&p, &q);
        assert!(agreed as f64 / 20_000.0 > (1.0 - distance) / (1.0 + distance) - 0.01, "{agreed}");
    }

    #[test]
    fn rules_parse_and_print() {
        for rule in ["lossless", "match", "coupled", "lossy-typical:0.09:0.3", "lossy-lenience:0.5"] {
            let read: AcceptanceRule = rule.parse().unwrap();
            assert_eq!(read.to_string(), rule);
            let wire = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<AcceptanceRule>(&wire).unwrap(), read);
            assert_eq!(read.is_lossless(), !rule.contains("lossy"));
        }
        assert_eq!("lossy-typical".parse(), Ok(AcceptanceRule::LossyTypical { epsilon: 0.09, delta: 0.3 }));
        for wrong in ["naive", "lossy-lenience:0", "lossy-lenience:2", "lossy-typical:0.1", "match:1", ""] {
            assert!(wrong.parse::<AcceptanceRule>().is_err(), "{wrong}");
        }
    }
}
