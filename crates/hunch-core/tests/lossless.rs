//! Losslessness: the output distribution is the target's, whatever was drafted. Checked by exact
//! enumeration of the acceptance rule, and by chi-square tests of whole sessions against exact
//! distributions.

use std::collections::BTreeSet;
use std::sync::Arc;

use hunch_core::depth::DepthController;
use hunch_core::draft::{DraftProb, DraftTree};
use hunch_core::error::Result;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Constraint, Sampler, SamplingParams, draw, unit};
use hunch_core::session::{Round, SessionConfig};
use hunch_core::theory::{
    acceptance, goodness_of_fit, lenient_acceptance, total_variation, typical_acceptance,
};
use hunch_core::token::{TokenId, TokenOrigin};
use hunch_core::verify::{GivenDistributions, Verdict, Verifier};
use proptest::prelude::*;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::toy::{
    Generated, Stages, config, generate, generate_at, greedy_continuation, methods, only, table,
};

/// p-value below which a test fails. Seeds are fixed, so a test passes always or never.
const SIGNIFICANCE: f64 = 1e-3;

/// Generator that yields the given uniform numbers.
struct Scripted<'a>(std::slice::Iter<'a, f64>);

impl RngCore for Scripted<'_> {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
    fn next_u64(&mut self) -> u64 {
        let u = self.0.next().expect("the enumeration scripts every number");
        ((u * 9_007_199_254_740_992.0) as u64) << 11
    }
    fn fill_bytes(&mut self, _: &mut [u8]) {
        unreachable!("the verifier calls next_u64 only")
    }
}

/// Returns the distribution of the first token out of the verifier for a fixed tree.
///
/// Exact up to the last draw, which is scanned in steps. With uniform numbers next to 1, every test
/// that can fail does. The verdict then lists p and q of each test, which give its acceptance
/// probability.
fn first_token_distribution(siblings: &[(TokenId, DraftProb)], p: &[f32]) -> Vec<f64> {
    const STEPS: usize = 1 << 14;
    let mut tree = DraftTree::new();
    for (token, prob) in siblings {
        tree.push(None, *token, prob.clone());
    }
    let mut numbers = vec![1.0 - f64::EPSILON / 2.0; siblings.len() + 1];
    let verdict = verify(&tree, p, &numbers);
    let mut distribution = vec![0.0; p.len()];
    let mut weight = 1.0;
    for rejected in &verdict.rejected {
        let ratio = (f64::from(rejected.p) / rejected.q.map_or(1.0, f64::from)).min(1.0);
        distribution[rejected.id as usize] += weight * ratio;
        weight *= 1.0 - ratio;
    }
    if let Some(certain) = verdict.accepted.first() {
        distribution[certain.token as usize] += weight;
        return distribution;
    }
    for step in 0..STEPS {
        numbers[siblings.len()] = (step as f64 + 0.5) / STEPS as f64;
        distribution[verify(&tree, p, &numbers).last as usize] += weight / STEPS as f64;
    }
    distribution
}

fn verify(tree: &DraftTree, p: &[f32], numbers: &[f64]) -> Verdict {
    let mut target = GivenDistributions(vec![p.to_vec(); tree.len() + 1]);
    Verifier::default().verify(tree, &mut target, 0, &mut Scripted(numbers.iter())).unwrap()
}

/// Returns all ways to draw `left` more siblings without replacement from q, with probabilities.
fn draws(q: &[f32], left: usize, drawn: &[TokenId]) -> Vec<(Vec<TokenId>, f64)> {
    let rest: f64 = (0..q.len()).filter(|&x| !drawn.contains(&(x as u32))).map(|x| f64::from(q[x])).sum();
    if left == 0 || rest <= 0.0 {
        return vec![(drawn.to_vec(), 1.0)];
    }
    let mut ways = Vec::new();
    for x in (0..q.len() as TokenId).filter(|x| !drawn.contains(x) && q[*x as usize] > 0.0) {
        let more = [drawn, &[x]].concat();
        let first = f64::from(q[x as usize]) / rest;
        ways.extend(draws(q, left - 1, &more).into_iter().map(|(way, w)| (way, w * first)));
    }
    ways
}

fn distribution_strategy(n: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(0u32..10, n).prop_map(|mut counts| {
        if counts.iter().all(|&c| c == 0) {
            counts[0] = 1;
        }
        let total: u32 = counts.iter().sum();
        counts.iter().map(|&c| c as f32 / total as f32).collect()
    })
}

fn distributions() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    (2usize..5).prop_flat_map(|n| (distribution_strategy(n), distribution_strategy(n)))
}

fn assert_close(distribution: &[f64], p: &[f32]) {
    for (a, &b) in distribution.iter().zip(p) {
        // The final draw is scanned in steps of 2^-14.
        assert!((a - f64::from(b)).abs() < 4e-4, "{distribution:?} is not {p:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn certain_siblings_keep_distribution((p, _) in distributions(), order in prop::collection::vec(0u32..5, 1..5)) {
        let children: Vec<_> = order.iter().filter(|&&x| (x as usize) < p.len()).collect();
        let children: Vec<_> = children.into_iter().map(|&x| (x, DraftProb::Certain)).collect();
        assert_close(&first_token_distribution(&children, &p), &p);
    }

    #[test]
    fn sampled_siblings_keep_distribution((p, q) in distributions(), k in 1usize..4) {
        let shared: Arc<[f32]> = q.clone().into();
        let mut distribution = vec![0.0; p.len()];
        for (way, weight) in draws(&q, k, &[]) {
            let children: Vec<_> =
                way.iter().map(|&x| (x, DraftProb::Sampled(shared.clone()))).collect();
            for (total, part) in distribution.iter_mut().zip(first_token_distribution(&children, &p)) {
                *total += weight * part;
            }
        }
        assert_close(&distribution, &p);
    }

    #[test]
    fn mixed_siblings_keep_distribution(
        (p, q) in distributions(),
        certain in 0u32..4,
        certain_at in 0usize..3,
        k in 1usize..3,
    ) {
        let shared: Arc<[f32]> = q.clone().into();
        let certain = certain % p.len() as u32;
        let mut distribution = vec![0.0; p.len()];
        for (way, weight) in draws(&q, k, &[]) {
            let mut children: Vec<_> =
                way.iter().map(|&x| (x, DraftProb::Sampled(shared.clone()))).collect();
            children.insert(certain_at.min(children.len()), (certain, DraftProb::Certain));
            for (total, part) in distribution.iter_mut().zip(first_token_distribution(&children, &p)) {
                *total += weight * part;
            }
        }
        assert_close(&distribution, &p);
    }
}

/// Returns the exact joint distribution of the next `n` tokens, by the chain rule.
///
/// The index reads the tokens as digits in base `n_vocab`, most significant first.
pub(crate) fn joint_distribution(
    sampler: &Sampler,
    n_vocab: usize,
    context: &[TokenId],
    n: usize,
) -> Vec<f64> {
    if n == 0 {
        return vec![1.0];
    }
    let distribution = sampler.distribution(&table(n_vocab, 0.0).logits_after(context), context).unwrap();
    let mut joint = Vec::new();
    for (token, &p) in distribution.iter().enumerate() {
        let longer = [context, &[token as TokenId]].concat();
        if p == 0.0 {
            joint.extend(vec![0.0; n_vocab.pow(n as u32 - 1)]);
        } else {
            joint.extend(
                joint_distribution(sampler, n_vocab, &longer, n - 1).iter().map(|q| q * f64::from(p)),
            );
        }
    }
    joint
}

pub(crate) fn index(tokens: &[TokenId], n_vocab: usize) -> usize {
    tokens.iter().fold(0, |i, &t| i * n_vocab + t as usize)
}

const PROMPT: [TokenId; 7] = [0, 3, 1, 2, 0, 3, 1];
/// Draft depth and answer length. The first three tokens are tested, deep enough for trees with
/// siblings at several levels.
const DEPTH_AND_LENGTH: (usize, usize) = (8, 6);

/// A format: no token twice in a row, and no 2 after an odd token.
#[derive(Debug)]
struct Alternating;

impl Constraint for Alternating {
    fn restrict(&self, context: &[TokenId], logits: &mut [f32]) -> Result<()> {
        let Some(&last) = context.last() else { return Ok(()) };
        for (token, logit) in (0..).zip(logits) {
            if token == last || (last % 2 == 1 && token == 2) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}

/// Checks that a method drafted at all, so that its distribution was really tested.
#[derive(Default)]
struct Coverage {
    drafted: u32,
    /// Set if a tree of at least four nodes had siblings and a second level.
    branched: bool,
}

impl Coverage {
    fn add(&mut self, run: &Generated) {
        self.drafted += run.stats.drafted;
        self.branched |= run.rounds.iter().any(|Round { drafted, .. }| {
            let mut parents: Vec<_> = drafted.iter().map(|node| node.parent).collect();
            parents.sort_unstable();
            let siblings = parents.windows(2).any(|pair| pair[0] == pair[1]);
            drafted.len() >= 4 && siblings && parents.iter().any(Option::is_some)
        });
    }

    fn check(&self, name: &str) {
        assert!(name == "plain" || self.drafted > 0, "{name} drafted nothing");
        assert!(!name.contains("tree") || self.branched, "{name} never drafted a branching tree");
    }
}

#[test]
fn joint_distribution_of_three_tokens_is_exact_for_every_proposer() {
    const VOCAB: usize = 5;
    const RUNS: u64 = 6000;
    let penalised = SamplingParams {
        repeat_penalty: 1.5,
        frequency_penalty: 0.4,
        penalty_last_n: 4,
        ..SamplingParams::unfiltered()
    };
    let filtered = SamplingParams {
        temperature: 1.4,
        top_k: 4,
        top_p: 0.97,
        min_p: 0.02,
        ..SamplingParams::unfiltered()
    };
    let samplers = [SamplingParams::unfiltered(), filtered, penalised].map(|p| Sampler::new(p).unwrap());
    let [plain, penalised] = [&samplers[0], &samplers[2]].map(Clone::clone);
    let constrained = [plain, penalised].map(|sampler| sampler.with_constraint(Arc::new(Alternating)));
    for sampler in samplers.into_iter().chain(constrained) {
        let exact = joint_distribution(&sampler, VOCAB, &PROMPT, 3);
        let mut target = table(VOCAB, 0.0);
        let script = greedy_continuation(&target, &PROMPT, DEPTH_AND_LENGTH.1);
        for (name, mut stages) in methods(VOCAB, &script) {
            let mut counts = vec![0; exact.len()];
            let mut coverage = Coverage::default();
            for seed in 0..RUNS {
                let config = config(DEPTH_AND_LENGTH.0, DEPTH_AND_LENGTH.1, seed);
                let run = generate(&mut target, &mut stages, &sampler, &PROMPT, config);
                counts[index(&run.ids()[..3], VOCAB)] += 1;
                coverage.add(&run);
            }
            coverage.check(name);
            let fit = goodness_of_fit(&counts, &exact);
            assert!(fit.degrees > 20, "{name}: {} pools are too few", fit.degrees);
            assert!(fit.p_value > SIGNIFICANCE, "{name}: {fit:?}");
        }
    }
}

/// An adaptive depth ends drafts at low confidence, which must not bias the output.
#[test]
fn adaptive_depth_keeps_distribution() {
    const VOCAB: usize = 5;
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let exact = joint_distribution(&sampler, VOCAB, &PROMPT, 3);
    let mut target = table(VOCAB, 0.0);
    let script = greedy_continuation(&target, &PROMPT, 8);
    for (name, mut stages) in methods(VOCAB, &script) {
        let mut depth = DepthController::default();
        let mut counts = vec![0; exact.len()];
        let mut seen = BTreeSet::new();
        for seed in 0..6000 {
            // The first token is never drafted, so the distribution of the tokens after it matters.
            let config = config(DEPTH_AND_LENGTH.0, DEPTH_AND_LENGTH.1, seed);
            let run = generate_at(Some(&mut depth), &mut target, &mut stages, &sampler, &PROMPT, config);
            counts[index(&run.ids()[..3], VOCAB)] += 1;
            seen.extend(run.rounds.iter().map(|round| round.drafted.len()));
        }
        assert!(name == "plain" || seen.len() > 1, "{name} drafted {seen:?}");
        let fit = goodness_of_fit(&counts, &exact);
        assert!(fit.p_value > SIGNIFICANCE, "{name}: {fit:?}");
    }
}

/// The other lossless rules, with every proposer.
#[test]
fn match_and_coupled_rules_keep_distribution() {
    const VOCAB: usize = 5;
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let exact = joint_distribution(&sampler, VOCAB, &PROMPT, 3);
    let mut target = table(VOCAB, 0.0);
    let script = greedy_continuation(&target, &PROMPT, DEPTH_AND_LENGTH.1);
    for rule in [AcceptanceRule::Match, AcceptanceRule::Coupled] {
        for (name, mut stages) in methods(VOCAB, &script) {
            let mut counts = vec![0; exact.len()];
            let mut coverage = Coverage::default();
            for seed in 0..6000 {
                let config = SessionConfig { rule, ..config(DEPTH_AND_LENGTH.0, DEPTH_AND_LENGTH.1, seed) };
                let run = generate(&mut target, &mut stages, &sampler, &PROMPT, config);
                counts[index(&run.ids()[..3], VOCAB)] += 1;
                coverage.add(&run);
            }
            coverage.check(name);
            let fit = goodness_of_fit(&counts, &exact);
            assert!(fit.p_value > SIGNIFICANCE, "{rule}, {name}: {fit:?}");
        }
    }
}

/// For one seed the text is the same for every method, depth and temperature.
#[test]
fn coupled_text_is_independent_of_draft() {
    for temperature in [0.0, 0.7, 1.5] {
        let sampler = Sampler::new(SamplingParams { temperature, ..SamplingParams::default() }).unwrap();
        let mut target = table(16, 0.0);
        let script = greedy_continuation(&target, &PROMPT, 60);
        for seed in [1, 2] {
            let coupled = |depth| SessionConfig { rule: AcceptanceRule::Coupled, ..config(depth, 60, seed) };
            let plain = generate(&mut target, &mut Stages::default(), &sampler, &PROMPT, coupled(0)).ids();
            for depth in [1, 2, 5, 8] {
                for (name, mut stages) in methods(16, &script) {
                    let run = generate(&mut target, &mut stages, &sampler, &PROMPT, coupled(depth));
                    assert_eq!(run.ids(), plain, "{name}, depth {depth}, temperature {temperature}");
                }
            }
        }
    }
}

/// Acceptance of a draft from q by rule: sum of min(p, q) for rejection sampling, and sum of p q for
/// matching. No lossless rule exceeds the former.
#[test]
fn acceptance_of_rules_matches_theory() {
    const VOCAB: usize = 5;
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let (mut target, draft) = (table(VOCAB, 0.0), table(VOCAB, 0.8));
    let p = sampler.distribution(&target.logits_after(&PROMPT), &[]).unwrap();
    let q = sampler.distribution(&draft.logits_after(&PROMPT), &[]).unwrap();
    let mut proposer = only(DraftModel::new(Box::new(draft)).unwrap());
    let mut accepted = |rule| {
        let first = |seed| {
            let config = SessionConfig { rule, ..config(1, 2, seed) };
            let run = generate(&mut target, &mut proposer, &sampler, &PROMPT, config);
            u32::from(run.tokens[0].origin == TokenOrigin::Accepted)
        };
        f64::from((0..6000).map(first).sum::<u32>()) / 6000.0
    };
    let product: f64 = p.iter().zip(&q).map(|(&p, &q)| f64::from(p) * f64::from(q)).sum();
    let (most, distance) = (acceptance(&p, &q), total_variation(&p, &q));
    assert!((accepted(AcceptanceRule::Lossless) - most).abs() < 0.02);
    assert!((accepted(AcceptanceRule::Match) - product).abs() < 0.02);
    let coupled = accepted(AcceptanceRule::Coupled);
    assert!(coupled > (1.0 - distance) / (1.0 + distance) - 0.02 && coupled < most + 0.02, "{coupled}");
    let lenient = accepted(AcceptanceRule::LossyLenience { lenience: 0.3 });
    assert!(lenient > most + 0.02 && (lenient - lenient_acceptance(&p, &q, 0.3)).abs() < 0.02, "{lenient}");
    let (epsilon, delta) = (0.15, 0.9);
    let expected = typical_acceptance(&p, &q, epsilon, delta);
    assert!(expected > 0.1 && expected < 0.9, "{expected} does not discriminate");
    let (epsilon, delta) = (epsilon as f32, delta as f32);
    let typical = accepted(AcceptanceRule::LossyTypical { epsilon, delta });
    assert!((typical - expected).abs() < 0.02, "{typical}, not {expected}");
}

/// Sanity check: the tests above would reject a loop that accepts every draft.
#[test]
fn chi_square_rejects_draft_distribution() {
    const VOCAB: usize = 5;
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let exact = joint_distribution(&sampler, VOCAB, &PROMPT, 1);
    let q = sampler.distribution(&table(VOCAB, 0.4).logits_after(&PROMPT), &[]).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut counts = vec![0; VOCAB];
    for _ in 0..6000 {
        counts[draw(&q, unit(&mut rng)) as usize] += 1;
    }
    assert!(goodness_of_fit(&counts, &exact).p_value < SIGNIFICANCE);
}

/// Sanity check: whole sessions under lossy rules are rejected too.
#[test]
fn chi_square_rejects_lossy_rules() {
    const VOCAB: usize = 5;
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let exact = joint_distribution(&sampler, VOCAB, &PROMPT, 3);
    let mut target = table(VOCAB, 0.0);
    let mut proposer = only(DraftModel::new(Box::new(table(VOCAB, 0.8))).unwrap());
    let typical = AcceptanceRule::LossyTypical { epsilon: 0.09, delta: 0.3 };
    for rule in [typical, AcceptanceRule::LossyLenience { lenience: 0.3 }] {
        let mut counts = vec![0; exact.len()];
        for seed in 0..6000 {
            let config = SessionConfig { rule, ..config(DEPTH_AND_LENGTH.0, DEPTH_AND_LENGTH.1, seed) };
            let run = generate(&mut target, &mut proposer, &sampler, &PROMPT, config);
            counts[index(&run.ids()[..3], VOCAB)] += 1;
        }
        assert!(goodness_of_fit(&counts, &exact).p_value < SIGNIFICANCE, "{rule}");
    }
}

/// Checks that the probabilities a token carries are those of its position.
#[test]
fn emitted_token_carries_probabilities_of_its_position() {
    const VOCAB: usize = 8;
    let sampler = Sampler::new(SamplingParams { temperature: 0.8, ..SamplingParams::unfiltered() }).unwrap();
    let plain = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let mut target = table(VOCAB, 0.0);
    let script = greedy_continuation(&target, &PROMPT, 40);
    for (name, mut stages) in methods(VOCAB, &script) {
        let run = generate(&mut target, &mut stages, &sampler, &PROMPT, config(4, 40, 9));
        let mut context = PROMPT.to_vec();
        for (i, token) in run.tokens.iter().enumerate() {
            let logits = target.logits_after(&context);
            let p = sampler.distribution(&logits, &context).unwrap()[token.id as usize];
            let confidence = plain.distribution(&logits, &context).unwrap()[token.id as usize];
            assert_eq!(token.p, p, "{name}: token {i}");
            assert!((token.confidence - confidence).abs() < 1e-6, "{name}: token {i}");
            assert!(token.q.is_none() || token.origin == TokenOrigin::Accepted, "{name}");
            context.push(token.id);
        }
        for round in &run.rounds {
            for rejected in &round.rejected {
                let ratio = f64::from(rejected.p) / rejected.q.map_or(1.0, f64::from);
                assert!(f64::from(rejected.u.unwrap()) >= ratio - 1e-6, "{name}: {rejected:?}");
            }
        }
    }
}

#[test]
fn same_seed_repeats_answer() {
    let sampler = Sampler::new(SamplingParams::default()).unwrap();
    let mut target = table(16, 0.0);
    let script = greedy_continuation(&target, &PROMPT, 60);
    let mut once = || -> Vec<Vec<TokenId>> {
        methods(16, &script)
            .into_iter()
            .map(|(_, mut stages)| {
                generate(&mut target, &mut stages, &sampler, &PROMPT, config(5, 60, 4)).ids()
            })
            .collect()
    };
    assert_eq!(once(), once());
}
