//! The rules at one position: a million rounds each, and the details of a single round.

use proptest::prelude::*;

use super::*;
use crate::lab::position::tests::{any_sampling, any_scores};
use crate::lab::position::{LogitPair, toy};
use hunch_core::sample::SamplingParams;
use hunch_core::verify::GivenDistributions;

/// Rounds of a statistical test.
const MANY: u32 = 1_000_000;

const TYPICAL: AcceptanceRule = AcceptanceRule::LossyTypical { epsilon: 0.09, delta: 0.3 };
const LENIENT: AcceptanceRule = AcceptanceRule::LossyLenience { lenience: 0.5 };

fn distributions() -> Distributions {
    Distributions::new(toy(), SamplingParams::unfiltered()).unwrap()
}

fn rounds(distributions: &Distributions, rule: AcceptanceRule, rounds: u32, seed: u64) -> LabRounds {
    Rounds::new(7, distributions, rule, seed).unwrap().run(rounds).unwrap()
}

/// Checks that the accepted share is within four standard errors of theory.
fn accepts(outcome: &LabRounds, expected: f64) {
    let n = f64::from(outcome.rounds);
    let share = f64::from(outcome.accepted) / n;
    let error = (expected * (1.0 - expected) / n).sqrt();
    assert!((share - expected).abs() < 4.0 * error, "{}: {share} {expected}", outcome.rule);
}

fn follows_p(outcome: &LabRounds) {
    assert!(outcome.p_value > 1e-4, "{outcome:?}");
    assert!(outcome.total_variation < 2.0 * outcome.expected_variation, "{outcome:?}");
    assert_eq!(outcome.counts.iter().sum::<u32>() + outcome.rest, outcome.rounds);
}

fn is_refuted(outcome: &LabRounds) {
    assert!(outcome.p_value < 1e-9, "{outcome:?}");
    assert!(outcome.total_variation > 10.0 * outcome.expected_variation, "{outcome:?}");
}

#[test]
fn a_million_rounds_of_rejection_sampling_follow_p() {
    let (distributions, outcome) =
        (distributions(), rounds(&distributions(), AcceptanceRule::Lossless, MANY, 1));
    follows_p(&outcome);
    accepts(&outcome, theory::acceptance(distributions.p(), distributions.q()));
}

#[test]
fn a_million_rounds_of_matching_follow_p() {
    let (distributions, outcome) =
        (distributions(), rounds(&distributions(), AcceptanceRule::Match, MANY, 2));
    follows_p(&outcome);
    accepts(&outcome, theory::matching(distributions.p(), distributions.q()));
}

// Its acceptance is only bounded: by (1 - TV) / (1 + TV) (Daliri et al., theorem 1) and by rejection sampling.
#[test]
fn a_million_rounds_of_coupling_follow_p() {
    let (distributions, outcome) =
        (distributions(), rounds(&distributions(), AcceptanceRule::Coupled, MANY, 3));
    follows_p(&outcome);
    let share = f64::from(outcome.accepted) / f64::from(MANY);
    let distance = theory::total_variation(distributions.p(), distributions.q());
    assert!(share > (1.0 - distance) / (1.0 + distance) - 0.005 && share < 1.0 - distance, "{share}");
}

#[test]
fn a_million_rounds_refute_the_lossy_rules() {
    let distributions = distributions();
    let typical = rounds(&distributions, TYPICAL, MANY, 4);
    is_refuted(&typical);
    accepts(
        &typical,
        theory::typical_acceptance(distributions.p(), distributions.q(), 0.09f32.into(), 0.3f32.into()),
    );
    let lenient = rounds(&distributions, LENIENT, MANY, 5);
    is_refuted(&lenient);
    accepts(&lenient, theory::lenient_acceptance(distributions.p(), distributions.q(), 0.5));
}

// A filtered distribution in a large vocabulary against the same one alone.
#[test]
fn tokens_of_zero_mass_change_nothing() {
    let far = |logits: Vec<f32>| -> Vec<f32> {
        let mut spread = vec![f32::NEG_INFINITY; 500];
        logits.into_iter().enumerate().for_each(|(i, logit)| spread[i * 37 + 3] = logit);
        spread
    };
    let spread = LogitPair { target: far(toy().target), draft: far(toy().draft), context: Vec::new() };
    let spread = Distributions::new(spread, SamplingParams::unfiltered()).unwrap();
    let compact = Compact::new(&spread).unwrap();
    assert_eq!((compact.p.len(), &compact.p[..]), (10, distributions().p()));
    // The verifier on the whole vocabulary, without this module.
    for (rule, seed) in [(AcceptanceRule::Lossless, 8), (TYPICAL, 9), (LENIENT, 10)] {
        let verifier = Verifier::new(rule, seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let q: Arc<[f32]> = spread.q().into();
        let mut target = GivenDistributions(vec![spread.p().to_vec(); 2]);
        let mut whole = vec![0u64; spread.listed().len()];
        for at in 0..20_000 {
            let mut tree = DraftTree::new();
            tree.push(None, sample::draw(&q, sample::unit(&mut rng)), DraftProb::Sampled(q.clone()));
            let verdict = verifier.verify(&tree, &mut target, at, &mut rng).unwrap();
            let first = verdict.accepted.first().map_or(verdict.last, |node| node.token);
            whole[spread.listed().iter().position(|&token| token == first).unwrap()] += 1;
        }
        let ours: Vec<u64> =
            rounds(&spread, rule, 20_000, seed + 50).counts.into_iter().map(u64::from).collect();
        assert!(theory::same_distribution(&whole, &ours).p_value > 1e-3, "{rule}: {whole:?} {ours:?}");
    }
}

#[test]
fn single_round_is_reported_in_full() {
    let distributions = distributions();
    for rule in [AcceptanceRule::Lossless, LENIENT] {
        let mut lab = Rounds::new(7, &distributions, rule, 11).unwrap();
        let (mut kept, mut replaced) = (0, 0);
        for n in 1..=200 {
            let outcome = lab.run(1).unwrap();
            assert_eq!((outcome.position, outcome.rounds), (7, n));
            let round = outcome.last.unwrap();
            assert_eq!(round.accepted, round.u.unwrap() < round.threshold.unwrap(), "{round:?}");
            assert_eq!(round.p, f64::from(distributions.p()[round.drafted as usize]));
            if round.accepted {
                assert_eq!(round.emitted, round.drafted);
                kept += 1;
            } else {
                // The rejected token has no residual mass.
                assert_ne!(round.emitted, round.drafted);
                replaced += 1;
            }
        }
        assert!(kept > 100 && replaced > 0, "{kept} {replaced}");
        let all = lab.run(10).unwrap();
        assert_eq!((all.rounds, all.last), (210, None));
    }
    for rule in [AcceptanceRule::Match, AcceptanceRule::Coupled, TYPICAL] {
        let round = rounds(&distributions, rule, 1, 12).last.unwrap();
        assert_eq!((round.u, round.threshold), (None, None), "{rule} compares");
        assert!(round.q > 0.0);
    }
}

/// At temperature 0 lenience keeps a draft that is nearly as likely as the target's own token, without chance.
#[test]
fn greedy_lenience_accepts_always_or_never() {
    // The draft prefers token 1, which is 0.6 times as likely as token 0.
    let scores =
        LogitPair { target: vec![1f32.ln(), 0.6f32.ln()], draft: vec![0.0, 1.0], context: Vec::new() };
    let distributions = Distributions::new(scores, SamplingParams::greedy()).unwrap();
    for (lenience, accepted) in [(0.5, 20), (0.7, 0)] {
        let rule = AcceptanceRule::LossyLenience { lenience };
        let all = rounds(&distributions, rule, 20, 3);
        // Token 0 is drawn where token 1 is not accepted.
        let of = |token| distributions.listed().iter().position(|&listed| listed == token).unwrap();
        assert_eq!((all.accepted, all.counts[of(1)], all.counts[of(0)]), (accepted, accepted, 20 - accepted));
        let one = rounds(&distributions, rule, 1, 3).last.unwrap();
        assert_eq!((one.u, one.threshold, one.accepted), (None, None, accepted > 0));
    }
}

#[test]
fn unlisted_tokens_are_counted_together() {
    let target: Vec<f32> = (0..200).map(|i| -0.01 * i as f32).collect();
    let draft = target.iter().rev().copied().collect();
    let distributions =
        Distributions::new(LogitPair { target, draft, context: Vec::new() }, SamplingParams::unfiltered())
            .unwrap();
    let outcome = rounds(&distributions, AcceptanceRule::Lossless, 20_000, 13);
    follows_p(&outcome);
    assert!(outcome.rest > 10_000 && outcome.counts.len() == crate::lab::position::LISTED);
}

#[test]
fn certain_and_impossible_tokens_give_finite_numbers() {
    let distributions = Distributions::new(toy(), SamplingParams::greedy()).unwrap();
    let outcome = rounds(&distributions, AcceptanceRule::Lossless, 50, 1);
    assert_eq!((outcome.accepted, outcome.total_variation, outcome.expected_variation), (50, 0.0, 0.0));
    assert_eq!((outcome.p_value, outcome.degrees), (1.0, 0));
    let none = rounds(&distributions, AcceptanceRule::Lossless, 0, 1);
    assert_eq!((none.rounds, none.total_variation, none.p_value), (0, 0.0, 1.0));
}

#[test]
fn rejects_invalid_requests() {
    let request = |rounds, rule| LabRoundsRequest { position: 1, rule, rounds, restart: false };
    assert!(check(&request(MAX_ROUNDS, TYPICAL)).is_ok());
    for rounds in [0, MAX_ROUNDS + 1] {
        assert!(check(&request(rounds, AcceptanceRule::Match)).unwrap_err().to_string().contains("10000"));
    }
    let wrong = AcceptanceRule::LossyLenience { lenience: 0.0 };
    assert!(check(&request(1, wrong)).is_err() && Rounds::new(1, &distributions(), wrong, 1).is_err());
    let mut lab = Rounds::new(1, &distributions(), AcceptanceRule::Match, 1).unwrap();
    lab.run(1).unwrap();
    assert!(lab.run(u32::MAX).unwrap_err().to_string().contains("Start again"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn emissions_follow_p_for_any_distribution(scores in any_scores(), sampling in any_sampling(), seed in any::<u64>()) {
        let distributions = Distributions::new(scores, sampling).unwrap();
        for rule in [AcceptanceRule::Lossless, AcceptanceRule::Match, AcceptanceRule::Coupled] {
            let outcome = rounds(&distributions, rule, 2_000, seed);
            // Many distributions are tested: one in a thousand would fail by chance too often.
            prop_assert!(outcome.p_value > 1e-7, "{rule}: {outcome:?}");
            prop_assert!(outcome.total_variation.is_finite() && outcome.expected_variation.is_finite());
        }
    }
}
