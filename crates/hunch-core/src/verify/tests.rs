//! Each acceptance rule on small trees, with chosen random numbers.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;

/// Generator whose `unit` yields the listed values in order.
struct Script(Vec<f64>);

impl RngCore for Script {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
    fn next_u64(&mut self) -> u64 {
        ((self.0.remove(0) * 9_007_199_254_740_992.0) as u64) << 11
    }
    fn fill_bytes(&mut self, _: &mut [u8]) {
        unreachable!("the verifier calls next_u64 only")
    }
}

fn run(tree: &DraftTree, distributions: &[&[f32]], numbers: &[f64]) -> Verdict {
    run_by(AcceptanceRule::Lossless, tree, distributions, numbers)
}

fn run_by(rule: AcceptanceRule, tree: &DraftTree, distributions: &[&[f32]], numbers: &[f64]) -> Verdict {
    let mut target = GivenDistributions(distributions.iter().map(|l| l.to_vec()).collect());
    Verifier::new(rule, 5).verify(tree, &mut target, 0, &mut Script(numbers.to_vec())).unwrap()
}

#[test]
fn draws_from_target_without_draft() {
    let verdict = run(&DraftTree::new(), &[&[0.25, 0.75]], &[0.5]);
    assert_eq!((verdict.last, verdict.last_origin), (1, TokenOrigin::Plain));
    assert_eq!(verdict.last_p, 0.75);
    assert!(verdict.accepted.is_empty() && verdict.rejected.is_empty());
}

#[test]
fn fully_accepted_path_adds_bonus_token() {
    let tree = DraftTree::certain_chain([1, 0]);
    let distributions: [&[f32]; 3] = [&[0.5, 0.5], &[0.75, 0.25], &[0.0, 1.0]];
    let verdict = run(&tree, &distributions, &[0.49, 0.74, 0.3]);
    assert_eq!(verdict.accepted_nodes(), [0, 1]);
    assert_eq!((verdict.last, verdict.last_origin), (1, TokenOrigin::Bonus));
    assert_eq!(verdict.accepted[1].p, 0.75);
    assert_eq!(verdict.accepted[1].q, None);
}

/// Some implementations wrongly add a bonus token here. Only the resampled token is emitted.
#[test]
fn rejected_last_token_adds_no_bonus() {
    let tree = DraftTree::certain_chain([1, 0]);
    let distributions: [&[f32]; 3] = [&[0.5, 0.5], &[0.75, 0.25], &[0.0, 1.0]];
    let verdict = run(&tree, &distributions, &[0.49, 0.76, 0.3]);
    assert_eq!(
        (verdict.accepted_nodes(), verdict.last, verdict.last_origin),
        (vec![0], 1, TokenOrigin::Resampled)
    );
    assert_eq!(verdict.rejected.len(), 1);
}

#[test]
fn reports_fate_of_every_drafted_token() {
    use DraftFate::{Accepted, Rejected, Untested};
    // Two siblings, a child of each, and a third sibling.
    let mut tree = DraftTree::new();
    let first = tree.push(None, 0, DraftProb::Certain);
    let second = tree.push(None, 1, DraftProb::Certain);
    tree.push(Some(first), 2, DraftProb::Certain);
    tree.push(Some(second), 2, DraftProb::Certain);
    tree.push(None, 2, DraftProb::Certain);
    let distributions: [&[f32]; 6] = [&[0.25, 0.5, 0.25]; 6];
    let verdict = run(&tree, &distributions, &[0.5, 0.1, 0.3, 0.1]);
    let fates: Vec<_> = verdict.fates(&tree).iter().map(|d| (d.id, d.parent, d.fate)).collect();
    let expected = [
        (0, None, Rejected),
        (1, None, Accepted),
        (2, Some(first), Untested),
        (2, Some(second), Rejected),
        (2, None, Untested),
    ];
    assert_eq!(fates, expected);
    assert!(run(&DraftTree::new(), &[&[1.0]], &[0.5]).fates(&DraftTree::new()).is_empty());
}

#[test]
fn rejected_certain_token_is_not_resampled() {
    let tree = DraftTree::certain_chain([1, 0]);
    let distributions: [&[f32]; 3] = [&[0.25, 0.5, 0.25], &[1.0, 0.0, 0.0], &[1.0, 0.0, 0.0]];
    let verdict = run(&tree, &distributions, &[0.5, 0.6]);
    assert_eq!((verdict.last, verdict.last_origin), (2, TokenOrigin::Resampled));
    assert_eq!(verdict.last_p, 0.25);
    let rejected = &verdict.rejected[0];
    assert_eq!((rejected.id, rejected.p, rejected.u, rejected.position), (1, 0.5, Some(0.5), 0));
}

#[test]
fn tests_sampled_token_by_ratio_and_resamples_from_residual() {
    let q: Arc<[f32]> = vec![0.75, 0.25, 0.0].into();
    let mut tree = DraftTree::new();
    tree.push(None, 0, DraftProb::Sampled(q));
    let distributions: [&[f32]; 2] = [&[0.25, 0.5, 0.25], &[1.0, 0.0, 0.0]];
    let kept = run(&tree, &distributions, &[0.33, 0.0]);
    assert_eq!((kept.accepted[0].p, kept.accepted[0].q), (0.25, Some(0.75)));
    // Residual (0, 0.25, 0.25): tokens 1 and 2 are equally likely.
    assert_eq!(run(&tree, &distributions, &[0.34, 0.49]).last, 1);
    assert_eq!(run(&tree, &distributions, &[0.34, 0.5]).last, 2);
}

/// Tree of three siblings from one q, two of them with children.
#[test]
fn odds_match_the_mean_of_many_verifications() {
    let q: Arc<[f32]> = vec![0.5, 0.25, 0.125, 0.125].into();
    let other: Arc<[f32]> = vec![0.1, 0.2, 0.3, 0.4].into();
    let mut tree = DraftTree::new();
    let first = tree.push(None, 0, DraftProb::Sampled(q.clone()));
    let second = tree.push(None, 2, DraftProb::Sampled(q.clone()));
    tree.push(Some(first), 3, DraftProb::Sampled(other.clone()));
    tree.push(Some(second), 1, DraftProb::Certain);
    tree.push(None, 1, DraftProb::Sampled(q));
    tree.push(Some(second), 0, DraftProb::Sampled(other));
    let mut distributions =
        GivenDistributions(vec![vec![0.2, 0.3, 0.4, 0.1], vec![0.25; 4], vec![0.0, 0.1, 0.2, 0.7]]);
    distributions.0.resize(tree.len() + 1, vec![0.3, 0.3, 0.3, 0.1]);
    let (verifier, mut rng) = (Verifier::default(), ChaCha8Rng::seed_from_u64(3));
    let walks = 40_000;
    let mut counts = vec![(0.0, 0.0); tree.len()];
    for _ in 0..walks {
        let verdict = verifier.verify(&tree, &mut distributions, 0, &mut rng).unwrap();
        for (node, count) in counts.iter_mut().enumerate() {
            let accepted = verdict.accepted.iter().any(|a| a.node == node);
            let tested = accepted || verdict.rejected.iter().any(|r| r.node == node);
            (count.0, count.1) =
                (count.0 + f64::from(u8::from(tested)), count.1 + f64::from(u8::from(accepted)));
        }
    }
    for (node, odds) in node_odds(&tree, &mut distributions).unwrap().iter().enumerate() {
        let (tested, accepted) = (counts[node].0 / f64::from(walks), counts[node].1 / f64::from(walks));
        assert!((tested - odds.tested).abs() < 0.015, "node {node}: {tested} {odds:?}");
        assert!((accepted - odds.accepted).abs() < 0.015, "node {node}: {accepted} {odds:?}");
    }
    assert!(node_odds(&DraftTree::new(), &mut distributions).unwrap().is_empty());
    // By hand: 0.2 for the first token, 0.2 x 0.3 for the second.
    let chain = DraftTree::certain_chain([0, 1]);
    let mut distributions = GivenDistributions(vec![vec![0.2, 0.8], vec![0.7, 0.3], vec![1.0, 0.0]]);
    let odds = node_odds(&chain, &mut distributions).unwrap();
    assert!((odds[0].accepted + odds[1].accepted - 0.26).abs() < 1e-6);
    assert_eq!(odds[1].tested, odds[0].accepted);
}

#[test]
fn renormalises_p_and_q_between_siblings() {
    let q: Arc<[f32]> = vec![0.5, 0.25, 0.25].into();
    let mut tree = DraftTree::new();
    tree.push(None, 0, DraftProb::Sampled(q.clone()));
    tree.push(None, 1, DraftProb::Sampled(q));
    let distributions: [&[f32]; 3] = [&[0.0, 0.375, 0.625], &[1.0, 0.0, 0.0], &[1.0, 0.0, 0.0]];
    // After the first: p = norm(0, 0.125, 0.375) = (0, 1/4, 3/4), q = (0, 1/2, 1/2).
    let verdict = run(&tree, &distributions, &[0.0, 0.49, 0.0]);
    let second = verdict.accepted[0];
    assert_eq!((second.node, second.p, second.q), (1, 0.375, Some(0.5)));
    assert_eq!((second.u, second.threshold), (Some(0.49), Some(0.5)), "values of the second test");
    let verdict = run(&tree, &distributions, &[0.0, 0.5, 0.0]);
    assert_eq!(verdict.rejected.len(), 2);
    assert_eq!((verdict.rejected[1].p, verdict.rejected[1].q), (0.25, Some(0.5)));
    assert_eq!(verdict.last, 2);
}

#[test]
fn keeps_distribution_when_residual_is_empty() {
    // p(0) < q(0) by rounding only, and nothing else has mass.
    let q: Arc<[f32]> = vec![1.0, 0.0].into();
    let mut tree = DraftTree::new();
    tree.push(None, 0, DraftProb::Sampled(q));
    let distributions: [&[f32]; 2] = [&[1.0 - f32::EPSILON, 0.0], &[1.0, 0.0]];
    let verdict = run(&tree, &distributions, &[1.0 - 1e-9, 0.9]);
    assert_eq!((verdict.last, verdict.last_origin), (0, TokenOrigin::Resampled));
}

#[test]
fn rejects_inconsistent_drafts_with_error() {
    let q: Arc<[f32]> = vec![0.0, 1.0].into();
    let short: Arc<[f32]> = vec![1.0].into();
    let cases = [(0, DraftProb::Sampled(q)), (0, DraftProb::Sampled(short)), (2, DraftProb::Certain)];
    for (token, prob) in cases {
        let mut tree = DraftTree::new();
        tree.push(None, token, prob);
        let mut target = GivenDistributions(vec![vec![0.5, 0.5]]);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert!(Verifier::default().verify(&tree, &mut target, 0, &mut rng).is_err());
    }
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let tree = DraftTree::certain_chain([0]);
    assert!(
        Verifier::default().verify(&tree, &mut GivenDistributions(vec![vec![1.0]]), 0, &mut rng).is_err()
    );
}

#[test]
fn match_rule_accepts_tokens_equal_to_target_draw() {
    let tree = DraftTree::certain_chain([1, 0]);
    let distributions: [&[f32]; 3] = [&[0.5, 0.5], &[0.75, 0.25], &[0.0, 1.0]];
    let both = run_by(AcceptanceRule::Match, &tree, &distributions, &[0.6, 0.7, 0.3]);
    assert_eq!((both.accepted_nodes(), both.last, both.last_origin), (vec![0, 1], 1, TokenOrigin::Bonus));
    let one = run_by(AcceptanceRule::Match, &tree, &distributions, &[0.6, 0.8]);
    assert_eq!((one.accepted_nodes(), one.last, one.last_origin), (vec![0], 1, TokenOrigin::Resampled));
    assert_eq!((one.rejected[0].id, one.rejected[0].p), (0, 0.75));
}

#[test]
fn coupled_rule_emits_same_token_for_any_draft() {
    let distribution: &[f32] = &[0.25, 0.25, 0.25, 0.25];
    let plain = run_by(AcceptanceRule::Coupled, &DraftTree::new(), &[distribution], &[]).last;
    for drafted in 0..4 {
        let tree = DraftTree::certain_chain([drafted]);
        let verdict = run_by(AcceptanceRule::Coupled, &tree, &[distribution, distribution], &[]);
        let first = verdict.accepted.first().map_or(verdict.last, |a| a.token);
        assert_eq!((first, verdict.accepted.len()), (plain, usize::from(drafted == plain)));
    }
}

#[test]
fn lossy_rules_accept_more_than_lossless() {
    let tree = DraftTree::certain_chain([1]);
    // Entropy 0.69: the threshold of delta 0.3 is 0.15.
    let open: [&[f32]; 2] = [&[0.5, 0.5], &[1.0, 0.0]];
    let typical = AcceptanceRule::LossyTypical { epsilon: 0.2, delta: 0.3 };
    assert_eq!(run_by(typical, &tree, &open, &[0.0]).accepted_nodes(), [0]);
    let closed: [&[f32]; 2] = [&[0.9, 0.1], &[1.0, 0.0]];
    assert_eq!(run_by(typical, &tree, &closed, &[0.95]).last, 1, "the rejection leaves p unchanged");
    let lenient = AcceptanceRule::LossyLenience { lenience: 0.5 };
    assert_eq!(run_by(lenient, &tree, &open, &[0.99, 0.0]).accepted_nodes(), [0]);
    assert!(run_by(AcceptanceRule::Lossless, &tree, &open, &[0.99, 0.0]).accepted_nodes().is_empty());
}

/// At temperature 0 a draft passes if it is nearly as likely as the token that the target would write.
#[test]
fn greedy_lenience_compares_with_likeliest_token() {
    let sampler = Sampler::new(crate::sample::SamplingParams::greedy()).unwrap();
    // Likelihoods 1, 0.6 and 0.3 relative to token 0, twice.
    let row = [1.0f32, 0.6, 0.3].map(f32::ln);
    let logits = Rows::new(3, [row, row].concat());
    let first_of = |rule, drafted, lenience| {
        let mut rows = SampledRows::new(&logits, &sampler, &[0]);
        let (tree, verifier) = (DraftTree::certain_chain([drafted]), Verifier::new(rule, 0));
        let verdict = verifier.verify(&tree, &mut rows, 0, &mut Script(vec![0.5; 3])).unwrap();
        assert_eq!(
            verdict.last, 0,
            "what the target writes itself is its likeliest token, lenience {lenience}"
        );
        verdict.accepted.first().map(|node| (node.token, node.u, node.threshold))
    };
    for (drafted, lenience, passes) in [
        (0, 1.0, true),
        (1, 1.0, false),
        (1, 0.59, true),
        (1, 0.61, false),
        (2, 0.59, false),
        (2, 0.29, true),
    ] {
        let first = first_of(AcceptanceRule::LossyLenience { lenience }, drafted, lenience);
        assert_eq!(first, passes.then_some((drafted, None, None)), "token {drafted}, lenience {lenience}");
    }
    assert_eq!(first_of(AcceptanceRule::Lossless, 1, 1.0), None);
}

/// The comparison is of what penalties left.
#[test]
fn greedy_lenience_applies_penalties() {
    let params =
        crate::sample::SamplingParams { presence_penalty: 2.0, ..crate::sample::SamplingParams::greedy() };
    let sampler = Sampler::new(params).unwrap();
    let logits = Rows::new(2, vec![1.0, 0.0]);
    let mut rows = SampledRows::new(&logits, &sampler, &[0]);
    let ratio = rows.greedy_ratio(0, &[], 0).unwrap().unwrap();
    assert!((ratio - f64::exp(-1.0)).abs() < 1e-6, "{ratio}");
    assert_eq!(rows.greedy_ratio(0, &[], 1).unwrap(), Some(1.0));
    assert!(rows.greedy_ratio(0, &[], 2).is_err() && rows.greedy_ratio(1, &[], 0).is_err());
}

#[test]
fn sampled_rows_apply_penalties_to_drafted_path() {
    let params = crate::sample::SamplingParams {
        presence_penalty: 2.0,
        penalty_last_n: 2,
        ..crate::sample::SamplingParams::greedy()
    };
    let sampler = Sampler::new(params).unwrap();
    let logits = Rows::new(3, vec![1.0, 0.5, 0.0, 1.0, 0.5, 0.0]);
    let mut rows = SampledRows::new(&logits, &sampler, &[0, 2, 2]);
    assert_eq!(rows.distribution(0, &[]).unwrap(), [1.0, 0.0, 0.0]);
    assert_eq!(rows.distribution(1, &[0]).unwrap(), [0.0, 1.0, 0.0]);
    assert_eq!(rows.distribution(1, &[1, 0]).unwrap(), [0.0, 0.0, 1.0]);
    assert!(rows.distribution(2, &[]).is_err());
}
