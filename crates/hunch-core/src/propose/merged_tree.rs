//! Several drafts of one round, merged into one tree: the merge-based trees of SpecInfer (Miao et al., arXiv 2305.09781).
//! The target verifies it in one pass.
//!
//! Each proposer drafts a chain, without seeing the chains of the others. Tokens that are certain in two chains, after the
//! same tokens, share a row. Sampled tokens never do: leaving one out because another chain has drawn it too would bias the
//! output. Chains branch where they differ, and the verifier tests the branches in the order of the proposers.
//!
//! The length of a chain is set before any of its tokens is drawn. At a fixed depth the tokens are shared equally, as far as
//! each proposer can draft as many. Else each token has to be worth its row and its pass. Its acceptance is measured after
//! the rejection of tokens of other proposers.

use std::ops::ControlFlow;

use super::{Method, ProposeContext, Proposer, RoundOutcome, taps_of};
use crate::depth::{DepthConfig, DraftPlan, SuccessRate, UNKNOWN};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::token::TokenId;

/// A proposer whose drafts are merged with those of others.
struct Member<'a> {
    proposer: &'a mut dyn Proposer,
    /// Acceptance of its tokens by their place in its chain.
    rates: [SuccessRate; MAX_DRAFT],
    /// Nodes of the merged tree that hold the tokens of its last chain.
    chain: Vec<usize>,
}

impl Member<'_> {
    fn acceptance(&self, place: usize) -> f64 {
        self.rates[place].mean(UNKNOWN, 1.0)
    }

    /// Returns the tokens worth drafting next to the `len` tokens of the others, which all are rejected with probability
    /// `open`.
    fn worthwhile(&self, plan: &DraftPlan, len: usize, open: f64) -> usize {
        let mut reach = open;
        let pays = |&place: &usize| {
            reach *= self.acceptance(place);
            let rows = len + place;
            if self.proposer.drafts_with_model() {
                plan.pass_pays(reach, rows, 1)
            } else {
                plan.row_pays(reach, rows)
            }
        };
        (0..plan.max_draft - len).take_while(pays).count()
    }

    /// Learns from the accepted nodes of the merged tree. Remembers as long as the depth controller does.
    fn learn(&mut self, accepted: &[usize]) {
        let DepthConfig { memory, horizon, .. } = DepthConfig::default();
        let mut tested = 0;
        for (place, &node) in self.chain.iter().enumerate() {
            let winner = accepted.get(place).copied();
            // A sibling before it was accepted, so this one was not tested.
            if winner.is_some_and(|winner| winner < node) {
                break;
            }
            self.rates[place].add(winner == Some(node), memory);
            tested = place + 1;
            if winner != Some(node) {
                break;
            }
        }
        self.rates[tested..].iter_mut().for_each(|rate| rate.decay(1.0 - 1.0 / horizon));
    }

    /// Returns the places in its chain of the nodes that start `path`.
    fn own_nodes(&self, path: &[usize]) -> Vec<usize> {
        let shared = self.chain.iter().zip(path).take_while(|(own, node)| own == node).count();
        (0..shared).collect()
    }
}

/// Shares tokens equally, as far as each of some chains can be that long. Returns the tokens of the first chain.
fn first_share(tokens: usize, longest: &[usize]) -> usize {
    let (mut left, mut shorter) = (tokens, longest.to_vec());
    let own = longest[0];
    shorter.sort_unstable();
    for (i, &length) in shorter.iter().enumerate() {
        let share = left.div_ceil(shorter.len() - i);
        if length >= own {
            return own.min(share);
        }
        left -= length.min(share);
    }
    0
}

/// Proposer that merges the chains of others into a tree.
pub(crate) struct MergedTree<'a> {
    members: Vec<Member<'a>>,
    /// Layers that any of them reads, ascending.
    taps: Vec<usize>,
    failure: Option<Error>,
}

impl<'a> MergedTree<'a> {
    /// Merges the drafts of these proposers, which draft chains. The tokens of the first are tested first.
    pub(crate) fn new(proposers: impl IntoIterator<Item = &'a mut dyn Proposer>) -> Self {
        let member = |proposer| Member { proposer, rates: Default::default(), chain: Vec::new() };
        let members: Vec<_> = proposers.into_iter().map(member).collect();
        let taps = taps_of(members.iter().map(|member| &*member.proposer));
        Self { members, taps, failure: None }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut (dyn Proposer + 'a)> {
        self.members.iter_mut().map(|member| &mut *member.proposer)
    }

    fn most(&self, of: impl Fn(&dyn Proposer) -> usize) -> usize {
        self.members.iter().map(|member| of(&*member.proposer)).max().unwrap_or(0)
    }
}

impl Proposer for MergedTree<'_> {
    fn method(&self) -> Method {
        Method::MergedTree
    }

    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn reads_prompt(&self) -> bool {
        self.members.iter().any(|member| member.proposer.reads_prompt())
    }

    fn reusable_rows(&self, prompt: &[TokenId], rows: usize) -> usize {
        let least = |rows, member: &Member<'_>| member.proposer.reusable_rows(prompt, rows).min(rows);
        self.members.iter().fold(rows, least)
    }

    fn max_depth(&self) -> usize {
        self.most(|proposer| proposer.max_depth())
    }

    fn limits_nodes(&self) -> bool {
        true
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.each().for_each(|proposer| proposer.begin(prompt));
    }

    fn reset_stats(&mut self) {
        self.members.iter_mut().for_each(|member| member.rates = Default::default());
        self.each().for_each(|proposer| proposer.reset_stats());
    }

    fn reset(&mut self) {
        self.each().for_each(|proposer| proposer.reset());
    }

    fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    fn unread_len(&self, committed: &[TokenId]) -> usize {
        self.members.iter().map(|member| member.proposer.unread_len(committed)).sum()
    }

    fn room(&self, committed: &[TokenId]) -> usize {
        self.most(|proposer| proposer.room(committed))
    }

    fn prefill_rows(&self) -> usize {
        self.most(|proposer| proposer.prefill_rows())
    }

    fn prefill(
        &mut self,
        committed: &[TokenId],
        should_continue: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for proposer in self.each() {
            if proposer.prefill(committed, should_continue)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn take_pass_log(&mut self) -> Vec<usize> {
        self.each().flat_map(|proposer| proposer.take_pass_log()).collect()
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let ProposeContext { committed, plan, end_tokens, sampler, noise, rng, target } = cx;
        let mut tree = DraftTree::new();
        let mut open = 1.0;
        let longest = |member: &Member<'_>| {
            member.proposer.room(committed).min(member.proposer.max_depth()).min(plan.max_depth)
        };
        let longest: Vec<usize> = self.members.iter().map(longest).collect();
        self.members.iter_mut().for_each(|member| member.chain.clear());
        for (i, member) in self.members.iter_mut().enumerate() {
            let tokens = match plan.is_fixed() {
                true => first_share(plan.max_draft - tree.len(), &longest[i..]),
                false => member.worthwhile(&plan, tree.len(), open).min(longest[i]),
            };
            if tokens == 0 {
                continue;
            }
            let own_plan = DraftPlan::fixed(tokens).with_max_depth(plan.max_depth);
            let drafted = member.proposer.propose(ProposeContext {
                committed,
                plan: own_plan,
                end_tokens,
                sampler,
                noise,
                rng: &mut *rng,
                target: &mut *target,
            });
            let (chain, failure) = match drafted {
                Ok(chain) => (chain, member.proposer.take_failure()),
                Err(error) => (DraftTree::new(), Some(error)),
            };
            let mut parent = None;
            for node in 0..chain.len() {
                let merged = tree.graft(parent, &chain, node);
                member.chain.push(merged);
                parent = Some(merged);
            }
            if !chain.is_empty() {
                open *= 1.0 - member.acceptance(0);
            }
            if failure.is_some() {
                // Tokens that were drawn stay in the draft, or the output would be biased.
                self.failure = failure;
                break;
            }
        }
        Ok(tree)
    }

    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        for member in &mut self.members {
            let (accepted, kept) = (member.own_nodes(outcome.accepted), member.own_nodes(outcome.kept));
            member.learn(outcome.accepted);
            member.chain.clear();
            member.proposer.observe(&RoundOutcome { accepted: &accepted, kept: &kept, ..*outcome })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::draft::DraftProb;
    use crate::model::PassOutput;
    use crate::sample::{Sampler, SamplingParams};
    use crate::table::{TableConfig, TableModel};

    /// Drafts known chains, and records which of its tokens are accepted.
    struct Known {
        chain: DraftTree,
        asked: usize,
        accepted: Vec<usize>,
        kept: Vec<usize>,
    }

    impl Known {
        fn new(chain: DraftTree) -> Self {
            Self { chain, asked: 0, accepted: Vec::new(), kept: Vec::new() }
        }

        fn certain(tokens: &[TokenId]) -> Self {
            Self::new(DraftTree::certain_chain(tokens.iter().copied()))
        }
    }

    impl Proposer for Known {
        fn method(&self) -> Method {
            Method::Suffix
        }

        fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
            self.asked = cx.plan.max_draft;
            let mut chain = self.chain.clone();
            chain.truncate(cx.plan.max_draft);
            Ok(chain)
        }

        fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
            (self.accepted, self.kept) = (outcome.accepted.to_vec(), outcome.kept.to_vec());
            Ok(())
        }
    }

    fn propose(merged: &mut MergedTree<'_>, nodes: usize) -> DraftTree {
        let sampler = Sampler::new(SamplingParams::greedy()).unwrap();
        let mut target = TableModel::new(TableConfig::default());
        merged
            .propose(ProposeContext {
                committed: &[1, 2],
                plan: DraftPlan::fixed(nodes),
                end_tokens: &[],
                sampler: &sampler,
                noise: None,
                rng: &mut ChaCha8Rng::seed_from_u64(1),
                target: &mut target,
            })
            .unwrap()
    }

    fn accept(merged: &mut MergedTree<'_>, accepted: &[usize], kept: &[usize]) {
        let outcome = RoundOutcome {
            accepted,
            kept,
            committed: &[1, 2, 3],
            target: &PassOutput::default(),
            tap_layers: &[],
            path: &[],
            aux_start: 0,
        };
        merged.observe(&outcome).unwrap();
    }

    #[test]
    fn chains_share_the_tokens_that_they_begin_with() {
        let (mut a, mut b) = (Known::certain(&[7, 8, 9]), Known::certain(&[7, 8, 5, 6]));
        let mut merged = MergedTree::new([&mut a as &mut dyn Proposer, &mut b]);
        let tree = propose(&mut merged, 6);
        assert_eq!(tree.tokens(), [7, 8, 9, 5]);
        assert_eq!(tree.parents(), [None, Some(0), Some(1), Some(1)]);
        accept(&mut merged, &[0, 1, 3], &[0, 1]);
        assert_eq!((a.accepted, a.kept), (vec![0, 1], vec![0, 1]));
        assert_eq!((b.accepted, b.kept), (vec![0, 1, 2], vec![0, 1]));
        assert_eq!((a.asked, b.asked), (3, 3), "the tokens are shared equally");
    }

    #[test]
    fn tokens_that_one_proposer_leaves_go_to_the_next() {
        let (mut a, mut b) = (Known::certain(&[7]), Known::certain(&[1, 2, 3, 4]));
        let mut merged = MergedTree::new([&mut a as &mut dyn Proposer, &mut b]);
        assert_eq!(propose(&mut merged, 5).tokens(), [7, 1, 2, 3, 4]);
        accept(&mut merged, &[], &[]);
        assert_eq!((a.accepted.len(), b.accepted.len(), b.asked), (0, 0, 4));
    }

    #[test]
    fn short_chains_leave_tokens_to_long_ones() {
        assert_eq!(first_share(8, &[15, 3]), 5);
        assert_eq!(first_share(8, &[3, 15]), 3);
        assert_eq!(first_share(8, &[15, 1, 15]), 4);
        assert_eq!(first_share(7, &[15, 15]), 4);
        assert_eq!(
            (first_share(1, &[15, 15]), first_share(0, &[15, 15]), first_share(4, &[0, 9])),
            (1, 0, 0)
        );
    }

    #[test]
    fn sampled_tokens_are_never_shared() {
        let q: std::sync::Arc<[f32]> = vec![0.5, 0.5].into();
        let mut chain = DraftTree::new();
        chain.push(None, 1, DraftProb::Sampled(q));
        let (mut a, mut b) = (Known::new(chain.clone()), Known::new(chain));
        let mut c = Known::certain(&[1]);
        let mut merged = MergedTree::new([&mut a as &mut dyn Proposer, &mut b, &mut c]);
        assert_eq!(propose(&mut merged, 3).tokens(), [1, 1, 1]);
        accept(&mut merged, &[1], &[1]);
        assert_eq!((a.accepted, b.accepted, c.accepted), (vec![], vec![0], vec![]));
    }

    #[test]
    fn rates_count_only_tokens_that_were_tested() {
        let (mut a, mut b) = (Known::certain(&[7, 8]), Known::certain(&[5, 6]));
        let mut merged = MergedTree::new([&mut a as &mut dyn Proposer, &mut b]);
        for _ in 0..40 {
            propose(&mut merged, 4);
            accept(&mut merged, &[0], &[0]);
        }
        let rates: Vec<_> = merged.members.iter().map(|m| [m.acceptance(0), m.acceptance(1)]).collect();
        assert!(rates[0][0] > 0.95 && rates[0][1] < 0.05, "{rates:?}");
        assert_eq!(rates[1], [UNKNOWN, UNKNOWN], "its siblings were accepted before it");
    }
}
