//! Acceptance probabilities of the rules on the same logits, by temperature.
//!
//! Computed with the formulas of [`hunch_core::theory`]. Nothing is sampled.

use crate::lab::position::Distributions;
use crate::lab::report::LabRuleRow;
use hunch_core::sample;
use hunch_core::theory;
use hunch_error::{Error, Result};

/// Epsilon and delta of Medusa, the defaults of [`AcceptanceRule`](hunch_core::rule::AcceptanceRule).
const TYPICAL: (f32, f32) = (0.09, 0.3);
/// Default lenience of the lossy rule.
const LENIENCE: f32 = 0.5;

/// Most temperatures of one request.
pub const MAX_TEMPERATURES: usize = 200;

/// Computes a row per temperature, with the other sampling parameters of `distributions`. At temperature 0 both
/// distributions are point masses, and lenience compares the target's probabilities at temperature 1.
///
/// # Errors
/// [`Error::InvalidRequest`] for more than [`MAX_TEMPERATURES`] temperatures, or one out of range.
pub fn rows(distributions: &Distributions, temperatures: &[f64]) -> Result<Vec<LabRuleRow>> {
    if temperatures.len() > MAX_TEMPERATURES {
        return Err(Error::invalid(format!(
            "{} temperatures are too many; the limit is {MAX_TEMPERATURES}.",
            temperatures.len()
        )));
    }
    temperatures.iter().map(|&temperature| row(distributions, temperature)).collect()
}

fn row(distributions: &Distributions, temperature: f64) -> Result<LabRuleRow> {
    let distributions = distributions.at_temperature(temperature as f32)?;
    let (p, q) = (distributions.p(), distributions.q());
    Ok(LabRuleRow {
        temperature,
        lossless: theory::acceptance(p, q),
        argmax: p[sample::argmax(q) as usize].into(),
        matching: theory::matching(p, q),
        typical: theory::typical_acceptance(p, q, TYPICAL.0.into(), TYPICAL.1.into()),
        lenience: match distributions.greedy_ratio(sample::argmax(q))? {
            // The draft is certain, and so is the test.
            Some(ratio) => f64::from(u8::from(ratio >= LENIENCE.into())),
            None => theory::lenient_acceptance(p, q, LENIENCE.into()),
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lab::position::tests::{any_sampling, any_scores};
    use crate::lab::position::{LogitPair, toy};
    use hunch_core::rule::AcceptanceRule;
    use hunch_core::sample::SamplingParams;

    #[test]
    fn parameters_are_the_defaults_of_the_rules() {
        let (epsilon, delta) = TYPICAL;
        assert_eq!("lossy-typical".parse(), Ok(AcceptanceRule::LossyTypical { epsilon, delta }));
        assert_eq!("lossy-lenience".parse(), Ok(AcceptanceRule::LossyLenience { lenience: LENIENCE }));
    }

    #[test]
    fn rows_match_a_hand_computed_example() {
        let distributions = Distributions::new(toy(), SamplingParams::unfiltered()).unwrap();
        let rows = rows(&distributions, &[0.0, 1.0]).unwrap();
        // Both choose the same word.
        let certain = LabRuleRow {
            temperature: 0.0,
            lossless: 1.0,
            argmax: 1.0,
            matching: 1.0,
            typical: 1.0,
            lenience: 1.0,
        };
        assert_eq!(rows[0], certain);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(rows[1].lossless, 0.30 + 0.18 + 0.05 + 0.03 + 0.04 + 0.06 + 0.02 + 0.03 + 0.02 + 0.01);
        near(rows[1].argmax, 0.30);
        near(rows[1].lenience, 0.40 + 0.28 + 0.05 + 0.03 + 0.04 + 0.08 + 0.02 + 0.06 + 0.02 + 0.01);
        // e^-H is 0.137 here: tokens above 0.041 pass.
        near(rows[1].typical, 0.40 + 0.28 + 0.05 + 0.03 + 0.04 + 0.08 + 0.02);
    }

    #[test]
    fn greedy_lenience_compares_likelihoods() {
        for (likelihood, accepted) in [(0.51f32, 1.0), (0.49, 0.0)] {
            let scores =
                LogitPair { target: vec![0.0, likelihood.ln()], draft: vec![0.0, 1.0], context: Vec::new() };
            let distributions = Distributions::new(scores, SamplingParams::greedy()).unwrap();
            let row = rows(&distributions, &[0.0]).unwrap()[0];
            assert_eq!((row.lenience, row.lossless), (accepted, 0.0));
        }
    }

    #[test]
    fn rejects_temperatures_out_of_range() {
        let distributions = Distributions::new(toy(), SamplingParams::default()).unwrap();
        for wrong in [-0.1, 5.1, f64::NAN] {
            let error = rows(&distributions, &[1.0, wrong]).unwrap_err().to_string();
            assert!(error.contains("temperature"), "{error}");
        }
        assert!(rows(&distributions, &vec![1.0; MAX_TEMPERATURES + 1]).is_err());
        assert_eq!(rows(&distributions, &[]).unwrap(), []);
    }

    proptest! {
        // No lossless rule accepts more than rejection sampling, and lenience accepts no less.
        #[test]
        fn rejection_sampling_accepts_most_of_the_lossless_rules(scores in any_scores(), sampling in any_sampling()) {
            let distributions = Distributions::new(scores, sampling).unwrap();
            for row in rows(&distributions, &[0.0, 0.3, 1.0, 2.0]).unwrap() {
                prop_assert!(row.matching <= row.lossless + 1e-6);
                prop_assert!(row.lenience >= row.lossless - 1e-6);
                for share in [row.lossless, row.argmax, row.matching, row.typical, row.lenience] {
                    prop_assert!((-1e-6..=1.0 + 1e-5).contains(&share), "{row:?}");
                }
            }
        }
    }
}
