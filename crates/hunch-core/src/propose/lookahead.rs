//! Lookahead decoding (Fu et al., arXiv 2402.02057): the target drafts for itself.
//!
//! A window of guesses for the next positions occupies auxiliary rows of every target pass, and Jacobi
//! iteration refines it. N-grams from successive iterations go into a pool. Pool entries that start
//! with the last token become the draft. There is no second model; the cost is the extra rows.
//!
//! The window has N - 1 levels (one per iteration, oldest first) of W guesses. The guess at level l and
//! column j is for position j + l after the last token. It sees the first level up to its own column,
//! then the levels of its column. Once the target has predicted all levels of a column, that column is
//! an n-gram the target would generate.

use std::collections::{HashMap, VecDeque};

use super::{AuxRows, Method, ProposeContext, Proposer, RoundOutcome};
use crate::draft::{DraftProb, DraftTree};
use crate::error::Result;
use crate::limits::MAX_DRAFT;
use crate::sample::argmax;
use crate::token::{TokenId, shared_len};

/// W: columns of the window.
const WINDOW: usize = 3;
/// N: tokens per n-gram.
const NGRAM: usize = 4;
/// G: maximum n-grams verified per pass.
const MAX_NGRAMS: usize = 2;
/// N-grams kept per first token, newest first.
const NGRAMS_PER_TOKEN: usize = 8;
/// Auxiliary rows of a full window.
const WINDOW_ROWS: usize = WINDOW * (NGRAM - 1);

/// Proposer that drafts from n-grams the target generated in its own passes.
#[derive(Clone, Debug, Default)]
pub struct Lookahead {
    /// Window levels, oldest first; fewer than N - 1 at the start.
    levels: Vec<[TokenId; WINDOW]>,
    /// Per column, the number of newest levels that the target predicted from one another.
    valid_levels: [usize; WINDOW],
    /// Text position of the first level's first column.
    origin: usize,
    /// Known continuations by first token.
    pool: HashMap<TokenId, VecDeque<[TokenId; NGRAM - 1]>>,
    /// Conversation the pool was built from, and the length of its last prompt.
    text: Vec<TokenId>,
    prompt_len: usize,
    /// Set if the window is part of the current pass.
    window_in_pass: bool,
}

impl Lookahead {
    fn add_ngram(&mut self, ngram: [TokenId; NGRAM]) {
        let rest = std::array::from_fn(|i| ngram[i + 1]);
        let known = self.pool.entry(ngram[0]).or_default();
        known.retain(|other| *other != rest);
        known.push_front(rest);
        known.truncate(NGRAMS_PER_TOKEN);
    }

    fn add_ngrams(&mut self, tokens: &[TokenId]) {
        for ngram in tokens.windows(NGRAM) {
            self.add_ngram(std::array::from_fn(|i| ngram[i]));
        }
    }

    /// Shifts the window to the end of the text.
    ///
    /// New columns on the right start with arbitrary tokens of the text, which the iteration then
    /// refines.
    fn shift_window(&mut self, committed: &[TokenId]) {
        let moved = committed.len().saturating_sub(self.origin);
        let filler = |i: usize| committed[(i + 1) * 7919 % committed.len()];
        if self.levels.is_empty() {
            self.levels.push(std::array::from_fn(filler));
            self.valid_levels = [1; WINDOW];
        } else {
            // A filled-in token restarts its column; older levels of that column no longer belong to
            // it.
            self.valid_levels =
                std::array::from_fn(|j| self.valid_levels.get(j + moved).copied().unwrap_or(1));
            for (i, level) in self.levels.iter_mut().enumerate() {
                *level = std::array::from_fn(|j| {
                    level.get(j + moved).copied().unwrap_or_else(|| filler(i * WINDOW + j))
                });
            }
        }
        self.origin = committed.len();
    }

    /// Returns the pool's n-grams after `last` as a tree of at most `depth` levels and `max_nodes`
    /// nodes.
    fn draft_from_pool(&self, last: TokenId, depth: usize, max_nodes: usize) -> DraftTree {
        let mut tree = DraftTree::new();
        for ngram in self.pool.get(&last).into_iter().flatten().take(MAX_NGRAMS) {
            let mut parent = None;
            for &token in ngram.iter().take(depth) {
                let known = tree.children(parent).find(|&node| tree.tokens()[node] == token);
                if known.is_none() && tree.len() == max_nodes {
                    break;
                }
                parent = Some(known.unwrap_or_else(|| tree.push(parent, token, DraftProb::Certain)));
            }
        }
        tree
    }
}

impl Proposer for Lookahead {
    fn method(&self) -> Method {
        Method::Lookahead
    }

    fn aux_rows(&self) -> AuxRows {
        let mut aux = AuxRows::default();
        if self.window_in_pass {
            for (l, level) in self.levels.iter().enumerate() {
                for (j, &token) in level.iter().enumerate() {
                    aux.tokens.push(token);
                    aux.parents.push(if l == 0 { j.checked_sub(1) } else { Some((l - 1) * WINDOW + j) });
                }
            }
        }
        aux
    }

    fn extra_rows(&self) -> usize {
        WINDOW_ROWS
    }

    fn max_depth(&self) -> usize {
        NGRAM - 1
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        // Keep the pool if the prompt continues the same conversation. The end of the last answer may
        // be missing (stop string), or the same prompt is run again. Anything else is a new
        // conversation.
        let mut shared = shared_len(&self.text, prompt);
        if shared < self.prompt_len.min(prompt.len()) {
            *self = Self::default();
            shared = 0;
        }
        self.add_ngrams(&prompt[shared.saturating_sub(NGRAM - 1)..]);
        self.text = prompt.to_vec();
        self.prompt_len = prompt.len();
        self.levels.clear();
        self.window_in_pass = false;
    }

    fn reset_stats(&mut self) {
        *self = Self::default();
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let Some(&last) = cx.committed.last() else {
            return Ok(DraftTree::new());
        };
        self.shift_window(cx.committed);
        let rows_left = cx.target.info().context_length.saturating_sub(cx.target.cache_len() + 1);
        let max_rows = rows_left.min(MAX_DRAFT);
        let most = cx.plan.max_draft;
        let tree = self.draft_from_pool(last, most, most.min(max_rows).min(MAX_DRAFT - WINDOW_ROWS));
        self.window_in_pass = tree.len() + self.levels.len() * WINDOW <= max_rows;
        Ok(tree)
    }

    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        if std::mem::take(&mut self.window_in_pass) {
            // The target's next token after each column of the newest level.
            let newest = outcome.aux_start + (self.levels.len() - 1) * WINDOW;
            let next = std::array::from_fn(|j| argmax(outcome.target.logits.row(newest + j)));
            if self.levels.len() == NGRAM - 1 {
                let valid_levels = self.valid_levels;
                for (j, &next) in next.iter().enumerate().filter(|&(j, _)| valid_levels[j] >= NGRAM - 1) {
                    let before = |l: usize| self.levels.get(l).map_or(next, |level| level[j]);
                    self.add_ngram(std::array::from_fn(before));
                }
                self.levels.remove(0);
                self.origin += 1;
            }
            self.levels.push(next);
            self.valid_levels.iter_mut().for_each(|valid_levels| *valid_levels += 1);
        }
        let known = self.text.len().saturating_sub(NGRAM - 1);
        self.add_ngrams(&outcome.committed[known.min(outcome.committed.len())..]);
        self.text.extend_from_slice(&outcome.committed[self.text.len().min(outcome.committed.len())..]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::depth::DraftPlan;
    use crate::model::{LanguageModel, LogitRows, PassInput, RowLayout};
    use crate::sample::{Sampler, SamplingParams};
    use crate::table::{TableConfig, TableModel};

    fn propose(lookahead: &mut Lookahead, committed: &[TokenId], target: &mut TableModel) -> DraftTree {
        propose_by(DraftPlan::fixed(8), lookahead, committed, target)
    }

    fn propose_by(
        plan: DraftPlan,
        lookahead: &mut Lookahead,
        committed: &[TokenId],
        target: &mut TableModel,
    ) -> DraftTree {
        let cx = ProposeContext {
            committed,
            plan,
            end_tokens: &[],
            sampler: &Sampler::new(SamplingParams::greedy()).unwrap(),
            noise: None,
            rng: &mut ChaCha8Rng::seed_from_u64(1),
            target,
        };
        lookahead.propose(cx).unwrap()
    }

    /// Runs 12 rounds that emit `emitted` tokens each.
    fn rounds(emitted: usize) -> (TableModel, Lookahead) {
        let mut target = TableModel::new(TableConfig { order: 1, sharpness: 3.0, ..TableConfig::default() });
        let mut lookahead = Lookahead::default();
        let mut committed = vec![3, 1];
        lookahead.begin(&committed);
        target.forward(PassInput::chain(&committed[..1], LogitRows::None)).unwrap();
        for _ in 0..12 {
            let base = target.cache_len();
            propose(&mut lookahead, &committed, &mut target);
            let aux = lookahead.aux_rows();
            let tokens = [&[*committed.last().unwrap()], &aux.tokens[..]].concat();
            let parents: Vec<Option<usize>> = std::iter::once(None)
                .chain(aux.parents.iter().map(|parent| Some(parent.map_or(0, |p| p + 1))))
                .collect();
            let layout = RowLayout::Tree { parents: &parents };
            let output =
                target.forward(PassInput { layout, ..PassInput::chain(&tokens, LogitRows::All) }).unwrap();
            target.truncate(base + 1).unwrap();
            committed.push(argmax(output.logits.row(0)));
            for _ in 1..emitted {
                let last = [*committed.last().unwrap()];
                let next = target.forward(PassInput::chain(&last, LogitRows::Last)).unwrap();
                committed.push(argmax(next.logits.row(0)));
            }
            let outcome = RoundOutcome {
                accepted: &[],
                kept: &[],
                committed: &committed,
                target: &output,
                tap_layers: &[],
                path: &[],
                aux_start: 1,
            };
            lookahead.observe(&outcome).unwrap();
        }
        (target, lookahead)
    }

    /// N-grams with filled-in tokens must not enter the pool.
    #[test]
    fn pool_contains_only_target_continuations() {
        for emitted in [1, 2, 3] {
            let (target, lookahead) = rounds(emitted);
            for (&first, ngrams) in lookahead.pool.iter().filter(|(first, _)| **first != 3) {
                let mut text = vec![first];
                for _ in 1..NGRAM {
                    text.push(argmax(&target.logits_after(&text[text.len() - 1..])));
                }
                assert!(ngrams.iter().all(|ngram| ngram[..] == text[1..]), "{ngrams:?} after {first}");
            }
            assert_eq!(lookahead.levels.len(), NGRAM - 1);
        }
        // Columns that complete contribute n-grams the text alone does not have.
        let new_firsts = |emitted| {
            let (_, lookahead) = rounds(emitted);
            let firsts: BTreeSet<_> = lookahead.text.iter().copied().collect();
            lookahead.pool.keys().filter(|first| !firsts.contains(first)).count()
        };
        assert!(new_firsts(1) > 0);
    }

    #[test]
    fn pool_survives_begin_but_not_reset_stats() {
        let committed = [1, 2, 3, 4];
        for (resets, found) in [(true, 0), (false, 1)] {
            let mut lookahead = Lookahead::default();
            lookahead.begin(&committed);
            lookahead.add_ngram([9, 9, 9, 9]);
            if resets {
                lookahead.reset_stats();
            }
            lookahead.begin(&committed);
            assert_eq!(lookahead.pool.len(), 1 + found);
        }
    }

    #[test]
    fn drafts_at_most_as_many_tokens_as_planned() {
        let mut target = TableModel::new(TableConfig::default());
        let mut lookahead = Lookahead::default();
        lookahead.begin(&[3, 1]);
        lookahead.add_ngram([1, 2, 3, 4]);
        lookahead.add_ngram([1, 5, 6, 7]);
        target.forward(PassInput::chain(&[3], LogitRows::None)).unwrap();
        for most in 1..=6 {
            let plan = DraftPlan::fixed(most);
            assert_eq!(propose_by(plan, &mut lookahead, &[3, 1], &mut target).len(), most);
        }
    }

    #[test]
    fn ngrams_share_common_prefix_in_tree() {
        let mut lookahead = Lookahead::default();
        lookahead.add_ngram([1, 2, 3, 4]);
        lookahead.add_ngram([1, 2, 5, 6]);
        let tree = lookahead.draft_from_pool(1, 9, 9);
        assert_eq!(tree.tokens(), [2, 5, 6, 3, 4]);
        assert_eq!(tree.parents(), [None, Some(0), Some(1), Some(0), Some(3)]);
        assert_eq!(
            (lookahead.draft_from_pool(1, 1, 9).len(), lookahead.draft_from_pool(1, 9, 2).len()),
            (1, 2)
        );
        assert!(lookahead.draft_from_pool(7, 9, 9).is_empty());
    }

    #[test]
    fn pool_is_kept_within_conversation_only() {
        let mut lookahead = Lookahead::default();
        lookahead.begin(&[1, 2, 3, 4]);
        lookahead.begin(&[1, 2, 3, 4, 5]);
        assert_eq!((lookahead.pool.len(), lookahead.pool[&2][0]), (2, [3, 4, 5]));
        lookahead.begin(&[1, 2, 3]);
        assert_eq!(lookahead.pool.len(), 2, "same prompt again");
        lookahead.text.extend([4, 5, 6]);
        lookahead.begin(&[1, 2, 3, 4, 5, 7]);
        assert_eq!((lookahead.pool.len(), lookahead.pool[&3][0]), (3, [4, 5, 7]), "answer was truncated");
        lookahead.begin(&[9, 1, 2, 3, 4]);
        assert!(!lookahead.pool.contains_key(&2));
    }
}
