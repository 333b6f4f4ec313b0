//! Growth of trees on the toy model, and what is learned from their outcomes.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::calibration::ChildKind;
use super::*;
use crate::model::PassOutput;
use crate::propose::draft_model::DraftModel;
use crate::propose::{Proposer, RoundOutcome};
use crate::sample::SamplingParams;
use crate::table::{TableConfig, TableModel};

fn table(context_length: usize) -> TableModel {
    TableModel::new(TableConfig { context_length, ..TableConfig::default() })
}

fn draft(shape: TreeShape) -> DraftModel {
    let mut draft = DraftModel::new(Box::new(table(64))).unwrap();
    draft.set_tree(Some(shape));
    draft
}

fn propose(
    draft: &mut DraftModel,
    committed: &[TokenId],
    params: SamplingParams,
    budget: usize,
) -> DraftTree {
    let sampler = Sampler::new(params).unwrap();
    let cx = ProposeContext {
        committed,
        plan: DraftPlan::fixed(budget),
        end_tokens: &[],
        noise: None,
        sampler: &sampler,
        rng: &mut ChaCha8Rng::seed_from_u64(3),
        target: &mut table(64),
    };
    draft.propose(cx).unwrap()
}

fn path(tree: &DraftTree, node: usize) -> Vec<TokenId> {
    let up = std::iter::successors(Some(node), |&node| tree.parents()[node]);
    let mut path: Vec<_> = up.map(|node| tree.tokens()[node]).collect();
    path.reverse();
    path
}

#[test]
fn nodes_carry_exact_q_of_their_path() {
    for shape in [TreeShape::Dynamic, TreeShape::by_level([3, 2, 1])] {
        let mut draft = draft(shape);
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 12);
        assert_eq!(tree.len(), 12);
        assert!(!tree.is_chain() && draft.take_pass_log().len() < tree.len());
        for node in 0..tree.len() {
            let DraftProb::Sampled(q) = tree.prob(node) else { panic!("sampled") };
            let before = [&[1, 2, 3], &path(&tree, node)[..tree.depth(node)]].concat();
            let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
            let exact = sampler.distribution(&table(64).logits_after(&before), &before).unwrap();
            assert_eq!(q[..], exact[..], "node {node}");
            let siblings = tree.children(tree.parents()[node]).map(|node| tree.tokens()[node]);
            let all: Vec<_> = siblings.collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "siblings differ");
        }
    }
}

#[test]
fn greedy_children_are_most_likely_tokens_in_order() {
    let mut draft = draft(TreeShape::by_level([3, 2]));
    let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::greedy(), 9);
    assert!(tree.is_certain());
    // One pass for the committed tokens, then one for the first level.
    assert_eq!((tree.children(None).count(), tree.len(), draft.take_pass_log()), (3, 9, vec![3, 3]));
    let mut order: Vec<TokenId> = (0..16).collect();
    let logits = table(64).logits_after(&[1, 2, 3]);
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    assert_eq!(tree.children(None).map(|node| tree.tokens()[node]).collect::<Vec<_>>(), order[..3]);
}

#[test]
fn keeps_cache_rows_of_accepted_path() {
    let mut draft = draft(TreeShape::by_level([2, 2, 1]));
    let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 10);
    // Accept the second child of the root and its second child.
    let first = tree.children(None).nth(1).unwrap();
    let second = tree.children(Some(first)).nth(1).unwrap();
    let committed = [&[1, 2, 3][..], &path(&tree, second), &[9]].concat();
    let target = PassOutput::default();
    draft
        .observe(&RoundOutcome {
            accepted: &[first, second],
            kept: &[first, second],
            committed: &committed,
            target: &target,
            tap_layers: &[],
            path: &[],
            aux_start: 0,
        })
        .unwrap();
    assert_eq!((draft.model().cache_len(), draft.unread_len(&committed)), (5, 0));
    let next = propose(&mut draft, &committed, SamplingParams::unfiltered(), 10);
    let DraftProb::Sampled(q) = next.prob(0) else { panic!("sampled") };
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    assert_eq!(q[..], sampler.distribution(&table(64).logits_after(&committed), &[]).unwrap()[..]);
}

/// A tree without an outcome leaves only committed tokens in the cache.
#[test]
fn discards_rows_of_tree_without_outcome() {
    let mut draft = draft(TreeShape::Dynamic);
    propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 8);
    let tree = propose(&mut draft, &[1, 2, 3, 4], SamplingParams::greedy(), 1);
    assert_eq!(tree.tokens(), [crate::sample::argmax(&table(64).logits_after(&[1, 2, 3, 4]))]);
}

#[test]
fn stays_within_draft_context() {
    for length in 3..12 {
        let mut draft = DraftModel::new(Box::new(table(length))).unwrap();
        for shape in [TreeShape::Dynamic, TreeShape::by_level([2, 2, 2])] {
            draft.set_tree(Some(shape));
            let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::unfiltered(), 14);
            assert!(!tree.is_empty());
        }
    }
}

#[test]
fn calibration_learns_acceptance_by_kind() {
    let mut calibration = Calibration::default();
    let unlikely = |kind| calibration.acceptance(kind, 0.05);
    assert!(
        unlikely(ChildKind::Sampled) > 0.5
            && unlikely(ChildKind::Top) < 0.1
            && unlikely(ChildKind::NextSampled) < 0.2
    );
    let nodes = [(ChildKind::Top, 0.95), (ChildKind::NextSampled, 0.35)].map(|(kind, share)| PendingNode {
        parent: None,
        token: 1,
        kind,
        share,
        row: None,
    });
    let tree = PendingTree { base: 0, nodes: nodes.to_vec() };
    // The path is tested but not committed, so no row is kept.
    let outcome = RoundOutcome {
        accepted: &[1],
        kept: &[],
        committed: &[],
        target: &PassOutput::default(),
        tap_layers: &[],
        path: &[],
        aux_start: 0,
    };
    for _ in 0..60 {
        assert!(tree.settle(&outcome, &mut calibration).rows.is_empty());
    }
    let acceptance = |kind, share| calibration.acceptance(kind, share);
    assert!(acceptance(ChildKind::Top, 0.95) < 0.15 && acceptance(ChildKind::NextSampled, 0.35) > 0.85);
    assert!(acceptance(ChildKind::Sampled, 0.95) > 0.9, "other kinds are unaffected");
    assert!(calibration.first_child_acceptance() < 0.1);
}

/// A seed must repeat an answer.
#[test]
fn trees_repeat_after_reset_stats() {
    let mut draft = draft(TreeShape::Dynamic);
    let (committed, target) = (&[1, 2, 3], &PassOutput::default());
    let answer = |draft: &mut DraftModel| {
        draft.reset_stats();
        draft.begin(committed);
        std::iter::repeat_with(|| {
            let tree = propose(draft, committed, SamplingParams::unfiltered(), 12);
            draft
                .observe(&RoundOutcome {
                    accepted: &[],
                    kept: &[],
                    committed,
                    target,
                    tap_layers: &[],
                    path: &[],
                    aux_start: 0,
                })
                .unwrap();
            (tree.tokens().to_vec(), tree.parents().to_vec())
        })
        .take(6)
        .collect::<Vec<_>>()
    };
    let first = answer(&mut draft);
    assert!(draft.calibration().first_child_acceptance() < 0.5, "nothing was accepted");
    assert_eq!(answer(&mut draft), first);
}
