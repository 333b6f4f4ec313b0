//! Drafting with a trained head: a small network that predicts the next token from the hidden states of the target's
//! last pass.
//!
//! Sources: Medusa (Cai et al., arXiv 2401.10774) and EAGLE (Li et al., arXiv 2401.15077).
//!
//! The proposer keeps the hidden states of one row and sets the q of its drafts. Weights and arithmetic of a head live
//! behind [`DraftHead`], outside of this crate.

use std::collections::VecDeque;

use super::chain::ChainDraft;
use super::{Method, ProposeContext, Proposer, RoundOutcome};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::token::TokenId;

/// The trained part of a head.
pub trait DraftHead: Send {
    /// Returns the layers of the target whose residual stream it reads, ascending.
    fn taps(&self) -> &[usize];
    /// Returns the logits `[n_vocab]` of the token after `token`.
    ///
    /// `features` has the residual stream `[n_embd]` after each layer of [`taps`](Self::taps), at the row before
    /// `token`. Tokens that the head does not know get minus infinity.
    ///
    /// # Errors
    /// If the device fails.
    fn logits(&mut self, features: &[Vec<f32>], token: TokenId) -> Result<Vec<f32>>;
    /// Returns a head on the same weights.
    fn fork(&self) -> Box<dyn DraftHead>;
    /// Returns the bytes of weights that one draft reads.
    fn read_by_a_pass(&self) -> usize;
}

/// Proposer that drafts one token with a trained head.
pub struct Head {
    head: Box<dyn DraftHead>,
    /// Hidden states of a row, and the number of committed tokens up to and including it.
    features: Option<(usize, Vec<Vec<f32>>)>,
    /// Rows of each pass since the last `take_pass_log`.
    pass_rows: Vec<usize>,
    failure: Option<Error>,
}

impl Head {
    /// Creates a proposer from trained weights.
    pub fn new(head: Box<dyn DraftHead>) -> Self {
        Self { head, features: None, pass_rows: Vec::new(), failure: None }
    }

    /// Creates a proposer on the same weights, without hidden states.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.head.fork())
    }

    /// Returns the bytes of weights that one draft reads.
    pub fn read_by_a_pass(&self) -> usize {
        self.head.read_by_a_pass()
    }

    /// Runs the head for direct use, for example to measure it. See [`DraftHead::logits`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&mut self, features: &[Vec<f32>], token: TokenId) -> Result<Vec<f32>> {
        self.head.logits(features, token)
    }
}

impl Proposer for Head {
    fn method(&self) -> Method {
        Method::Head
    }

    fn taps(&self) -> &[usize] {
        self.head.taps()
    }

    fn max_depth(&self) -> usize {
        1
    }

    fn begin(&mut self, _: &[TokenId]) {
        self.features = None;
        self.pass_rows.clear();
        self.failure = None;
    }

    fn reset(&mut self) {
        self.features = None;
    }

    fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    fn take_pass_log(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.pass_rows)
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let (Some(&root), Some((read, features))) = (cx.committed.last(), &self.features) else {
            return Ok(DraftTree::new());
        };
        // The states belong to the row before the root. Before the first round there are none.
        if *read + 1 != cx.committed.len() || cx.plan.max_draft == 0 {
            return Ok(DraftTree::new());
        }
        self.pass_rows.push(1);
        let logits = self.head.logits(features, root)?;
        let ProposeContext { committed, plan, end_tokens, sampler, noise, rng, target } = cx;
        let n_vocab = target.info().n_vocab;
        let chain =
            ChainDraft { committed, plan, end_tokens, sampler, noise, rng, units: VecDeque::new(), n_vocab };
        let (tree, failure) = chain.grow(1, logits, |_| unreachable!("one token is drafted"));
        self.failure = failure;
        Ok(tree)
    }

    fn accept(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        let features = self.head.taps().iter().map(|layer| outcome.tap(*layer).map(<[f32]>::to_vec));
        let features: Option<Vec<Vec<f32>>> = features.collect();
        self.features = features.map(|features| (outcome.committed.len() - 1, features));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::depth::DraftPlan;
    use crate::model::{LanguageModel, LogitRows, Step};
    use crate::sample::{Sampler, SamplingParams};
    use crate::table::{TableConfig, TableModel};

    /// Predicts the token after the one that was fed, from the tapped states of the row before it.
    struct Shifted;

    impl DraftHead for Shifted {
        fn taps(&self) -> &[usize] {
            &[1]
        }

        fn logits(&mut self, features: &[Vec<f32>], token: TokenId) -> Result<Vec<f32>> {
            let mut logits = features[0].clone();
            logits.rotate_right(token as usize % 16);
            Ok(logits)
        }

        fn fork(&self) -> Box<dyn DraftHead> {
            Box::new(Self)
        }

        fn read_by_a_pass(&self) -> usize {
            64
        }
    }

    fn propose(head: &mut Head, committed: &[TokenId], target: &mut TableModel) -> DraftTree {
        let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
        head.propose(ProposeContext {
            committed,
            plan: DraftPlan::fixed(4),
            end_tokens: &[],
            sampler: &sampler,
            noise: None,
            rng: &mut ChaCha8Rng::seed_from_u64(1),
            target,
        })
        .unwrap()
    }

    #[test]
    fn drafts_from_the_row_before_the_root_and_from_no_other() {
        let mut target = TableModel::new(TableConfig { n_vocab: 16, ..TableConfig::default() });
        let mut head = Head::new(Box::new(Shifted));
        head.begin(&[3, 4]);
        assert!(propose(&mut head, &[3, 4], &mut target).is_empty(), "no states before a round");
        let step = Step { taps: head.taps(), ..Step::chain(&[3, 4], LogitRows::All) };
        let output = target.forward(step).unwrap();
        let committed = [3, 4, 5];
        head.accept(&RoundOutcome {
            accepted: &[],
            kept: &[],
            committed: &committed,
            target: &output,
            tap_layers: &[1],
            last_row: 1,
            aux_start: 1,
        })
        .unwrap();
        let tree = propose(&mut head, &committed, &mut target);
        assert_eq!((tree.len(), head.take_pass_log()), (1, vec![1]));
        let expected = Shifted.logits(&[output.taps[0].row(1).to_vec()], 5).unwrap();
        let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
        let crate::draft::DraftProb::Sampled(q) = tree.prob(0) else { panic!("sampled") };
        assert_eq!(q[..], sampler.distribution(&expected, &committed).unwrap()[..]);
        assert!(propose(&mut head, &[3, 4, 5, 6], &mut target).is_empty(), "the states are of another row");
        head.reset();
        assert!(propose(&mut head, &committed, &mut target).is_empty());
    }
}
