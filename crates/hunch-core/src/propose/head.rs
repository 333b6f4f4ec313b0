//! Drafting with a trained head: a small network that predicts the next tokens from the hidden states of the target.
//!
//! Sources: Medusa (Cai et al., arXiv 2401.10774), EAGLE (Li et al., arXiv 2401.15077), EAGLE-3 (arXiv 2503.01840).
//!
//! The proposer pairs hidden states with tokens and sets the q of its drafts. Weights and arithmetic of a head live
//! behind [`DraftHead`], outside of this crate.
//!
//! Row i of a head pairs the target's states at token i with token i + 1, and predicts the token after that.
//! The last token of a round has no states yet, so the last row of a head belongs to the token before it.
//! A head with a cache reads all rows of the text. For drafted tokens, the head's own output replaces the target's
//! states. Their rows are dropped after the draft, and accepted tokens are read again with the target's states.
//!
//! A head drafts chains or trees. Trees grow by the same rules as a draft model's ([`draft_tree`]). A row of a tree
//! follows the row of its parent.

use super::chain::ChainDraft;
use super::draft_tree::{self, Calibration, PendingTree, TreeDraft, TreeShape};
use super::{Method, ProposeContext, Proposer, RoundOutcome};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;
use crate::model::{PassInput, RowLayout, Rows};
use crate::token::{TokenId, shared_len};

/// Rows that a head with a cache reads at once while nothing is drafted.
const READ_ROWS: usize = 32;

/// The trained part of a head.
pub trait DraftHead: Send {
    /// Returns the target's layers whose residual streams the head reads, ascending.
    fn taps(&self) -> &[usize];
    /// Returns the most tokens of a draft.
    fn max_depth(&self) -> usize {
        1
    }
    /// Returns whether the head has a KV cache, which holds every row of the text. Without one it reads the last row.
    fn has_cache(&self) -> bool {
        false
    }
    /// Returns whether the head norms the target's states first, so that their length does not matter.
    fn norms_states(&self) -> bool {
        true
    }
    /// Reads rows and returns the logits `[n_vocab]` of the token after the last of `tokens`.
    ///
    /// `features` has the residual streams `[rows, n_embd]` of each layer of [`taps`](Self::taps). Row i holds the
    /// states of the token before `tokens[i]`. A head without a cache gets one row. Tokens outside the head's vocabulary
    /// get minus infinity.
    ///
    /// # Errors
    /// If the device fails.
    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>>;
    /// Reads a drafted token after the last row and returns the logits of the next token.
    ///
    /// # Errors
    /// If the device fails, or the head drafts one token only.
    fn next_logits(&mut self, token: TokenId) -> Result<Vec<f32>> {
        Err(Error::Internal(format!("the head drafts one token, not token {token} after it")))
    }
    /// Returns whether logits depend on the drafted tokens before them. Otherwise they depend on the depth alone, and
    /// [`next_logits`](Self::next_logits) is called once for each depth.
    fn reads_drafts(&self) -> bool {
        true
    }
    /// Returns whether one pass drafts all tokens. Logits may depend on drafted tokens by something much smaller than a
    /// pass.
    fn drafts_in_one_pass(&self) -> bool {
        false
    }
    /// Reads rows of a draft tree, after [`logits`](Self::logits), and returns their logits `[rows, n_vocab]`. Earlier
    /// rows of the tree stay until [`truncate`](Self::truncate) or the next `logits`.
    ///
    /// # Errors
    /// If the device fails, or the head drafts one token only or does not read drafted tokens.
    fn tree_logits(&mut self, rows: TreeRows<'_>) -> Result<Rows> {
        Err(Error::Internal(format!("the head drafts no tree of {} rows", rows.tokens.len())))
    }
    /// Reads rows into the cache, as [`logits`](Self::logits) does.
    ///
    /// # Errors
    /// If the device fails, or it has no cache.
    fn read(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<()> {
        self.logits(features, tokens).map(drop)
    }
    /// Drops all rows of the cache from `len` on.
    fn truncate(&mut self, len: usize) {
        let _ = len;
    }
    /// Returns a head on the same weights, with an empty cache.
    fn fork(&self) -> Box<dyn DraftHead>;
    /// Returns the bytes of weights that one drafted token reads.
    fn read_by_a_pass(&self) -> usize;
    /// Returns the allocated bytes of the cache.
    fn cache_bytes(&self) -> usize {
        0
    }
    /// Returns the bytes that the cache takes for a token.
    fn cache_per_token(&self) -> usize {
        0
    }
}

/// Rows of a draft tree that a head reads, a drafted token each.
#[derive(Clone, Copy, Debug)]
pub struct TreeRows<'a> {
    /// Drafted tokens.
    pub tokens: &'a [TokenId],
    /// Depth of each token in the tree, 0 after the text.
    pub depths: &'a [usize],
    /// Rows of the tree that each row sees: bit i stands for row i, in the order of reading. The highest bit is the
    /// row itself, and the next highest its parent.
    pub visible: &'a [u64],
}

impl TreeRows<'_> {
    /// Returns the row of the tree that a row follows. `None` is the last row of the text.
    pub fn parent(&self, row: usize) -> Option<usize> {
        let visible = self.visible[row];
        let before = visible ^ visible.checked_ilog2().map_or(0, |own| 1 << own);
        before.checked_ilog2().map(|parent| parent as usize)
    }
}

/// Proposer that drafts with a trained head.
pub struct Head {
    head: Box<dyn DraftHead>,
    /// Committed tokens, as far as they are known here.
    text: Vec<TokenId>,
    /// Rows in the head's cache. Without a cache, the index of the row in `features`.
    cached: usize,
    /// Hidden states of the next rows by tap, `[rows, n_embd]` each: the target's rows from `cached` on.
    features: Vec<Vec<f32>>,
    /// Number of rows in `features`.
    waiting: usize,
    /// Shape of the trees; `None` drafts chains.
    tree: Option<TreeShape>,
    pending: Option<PendingTree>,
    calibration: Calibration,
    /// Rows of each pass since the last `take_pass_log`. A pass that drafts all tokens has a row for each of them.
    pass_rows: Vec<usize>,
    failure: Option<Error>,
}

impl Head {
    /// Creates a proposer from trained weights.
    pub fn new(head: Box<dyn DraftHead>) -> Self {
        let features = vec![Vec::new(); head.taps().len()];
        Self {
            head,
            text: Vec::new(),
            cached: 0,
            features,
            waiting: 0,
            tree: None,
            pending: None,
            calibration: Calibration::default(),
            pass_rows: Vec::new(),
            failure: None,
        }
    }

    /// Switches to trees of this shape, or to chains.
    pub fn set_tree(&mut self, tree: Option<TreeShape>) {
        self.tree = tree;
    }

    /// Creates a proposer on the same weights, without hidden states.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.head.fork())
    }

    /// Returns the bytes of weights that one drafted token reads.
    pub fn read_by_a_pass(&self) -> usize {
        self.head.read_by_a_pass()
    }

    /// Returns the bytes of the head's cache, and of the hidden states that wait for it.
    pub fn cache_bytes(&self) -> usize {
        let waiting: usize = self.features.iter().map(|tap| tap.capacity() * size_of::<f32>()).sum();
        self.head.cache_bytes() + waiting
    }

    /// Returns the bytes that the head's cache takes for a token.
    pub fn cache_per_token(&self) -> usize {
        self.head.cache_per_token()
    }

    /// Returns whether the head has a cache of the text. See [`DraftHead::has_cache`].
    pub fn has_cache(&self) -> bool {
        self.head.has_cache()
    }

    /// Returns whether the head norms the target's states first. See [`DraftHead::norms_states`].
    pub fn norms_states(&self) -> bool {
        self.head.norms_states()
    }

    /// Returns whether a level of a tree costs more the more rows it has: the head reads drafted tokens, one level a pass.
    pub fn reads_levels(&self) -> bool {
        self.head.reads_drafts() && !self.head.drafts_in_one_pass() && self.head.max_depth() > 1
    }

    /// Returns the most tokens that one pass drafts.
    pub fn tokens_of_a_pass(&self) -> usize {
        if self.head.drafts_in_one_pass() { self.head.max_depth() } else { 1 }
    }

    /// Runs the head on an empty cache for direct use, for example to measure it. See [`DraftHead::logits`].
    ///
    /// The next draft reads the text again.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>> {
        self.logits_after(0, features, tokens)
    }

    /// Runs the head after the first `len` rows that [`logits`](Self::logits) or this function have read. A head without
    /// a cache ignores them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits_after(
        &mut self,
        len: usize,
        features: &[Vec<f32>],
        tokens: &[TokenId],
    ) -> Result<Vec<f32>> {
        self.clear_text();
        self.head.truncate(len);
        self.head.logits(features, tokens)
    }

    /// Runs the head on a drafted token after [`logits`](Self::logits). See [`DraftHead::next_logits`].
    ///
    /// # Errors
    /// If the device fails, or its drafts have one token.
    pub fn next_logits(&mut self, token: TokenId) -> Result<Vec<f32>> {
        self.head.next_logits(token)
    }

    /// Runs the head on rows of a tree after [`logits`](Self::logits). See [`DraftHead::tree_logits`].
    ///
    /// # Errors
    /// If the device fails, or it does not read drafted tokens.
    pub fn tree_logits(&mut self, rows: TreeRows<'_>) -> Result<Rows> {
        self.head.tree_logits(rows)
    }

    /// Forgets the text.
    fn clear(&mut self) {
        self.clear_text();
        self.head.truncate(0);
    }

    /// Forgets the text, and leaves the rows in the head's cache.
    fn clear_text(&mut self) {
        self.text.clear();
        self.cached = 0;
        self.drop_waiting();
    }

    fn drop_waiting(&mut self) {
        self.features.iter_mut().for_each(Vec::clear);
        self.waiting = 0;
    }

    /// Returns the number of cached rows that a new prompt can reuse, and the end of the rows with known states.
    ///
    /// A row depends on its token and the next one. The last row of the prompt is never reused, because the draft
    /// needs its logits.
    fn known_rows(&self, prompt: &[TokenId]) -> (usize, usize) {
        let shared = shared_len(&self.text, prompt);
        let cached = self.cached.min(shared.saturating_sub(1)).min(prompt.len().saturating_sub(2));
        // The states of a row do not depend on the next token.
        let end = if cached < self.cached { cached } else { (self.cached + self.waiting).min(shared) };
        (cached, end)
    }

    /// Moves all waiting rows but the last `keep` into the head's cache.
    fn flush(&mut self, keep: usize) -> Result<()> {
        let rows = self.waiting.saturating_sub(keep);
        if rows == 0 {
            return Ok(());
        }
        let read = |all: &Vec<f32>| all[..all.len() / self.waiting * rows].to_vec();
        let features: Vec<Vec<f32>> = self.features.iter().map(read).collect();
        self.pass_rows.push(rows);
        self.head.read(&features, &self.text[self.cached + 1..=self.cached + rows])?;
        for (all, read) in self.features.iter_mut().zip(&features) {
            all.drain(..read.len());
        }
        self.cached += rows;
        self.waiting -= rows;
        Ok(())
    }

    /// Grows a tree from the logits after the last committed token.
    fn grow_tree(&mut self, cx: ProposeContext<'_>, logits: &[f32], shape: &TreeShape) -> Result<DraftTree> {
        let Self { head, pass_rows, calibration, cached, .. } = self;
        // Logits of each depth, if drafted tokens are not read.
        let mut levels: Vec<Vec<f32>> = Vec::new();
        let reads_drafts = head.reads_drafts();
        let mut forward = |step: PassInput<'_>| -> Result<Rows> {
            let RowLayout::Custom { depths, visible, .. } = step.layout else {
                return Err(Error::Internal("rows of a tree without their depths".into()));
            };
            if reads_drafts {
                match head.drafts_in_one_pass() {
                    true => log_next(pass_rows, true),
                    false => pass_rows.push(step.tokens.len()),
                }
                return head.tree_logits(TreeRows { tokens: step.tokens, depths, visible });
            }
            for (&depth, &token) in depths.iter().zip(step.tokens) {
                while levels.len() <= depth {
                    log_next(pass_rows, head.drafts_in_one_pass());
                    levels.push(head.next_logits(token)?);
                }
            }
            let values = depths.iter().flat_map(|&depth| levels[depth].iter().copied()).collect();
            Ok(Rows::new(logits.len(), values))
        };
        let draft = TreeDraft {
            cached: *cached,
            context_length: cx.target.info().context_length,
            calibration,
            by_depth: !reads_drafts,
            chain: None,
            forward: &mut forward,
        };
        let grown = draft_tree::grow(draft, cx, logits, shape);
        self.head.truncate(self.cached);
        let (tree, pending, failure) = grown?;
        (self.pending, self.failure) = (Some(pending), failure);
        Ok(tree)
    }

    /// Appends the states of the target's row `row` to the waiting rows.
    fn add_row(&mut self, outcome: &RoundOutcome<'_>, at: usize, row: usize) {
        if !self.head.has_cache() {
            self.drop_waiting();
            self.cached = row;
        }
        for (features, layer) in self.features.iter_mut().zip(self.head.taps()) {
            let Some(states) = outcome.tap(*layer, at) else { return self.drop_waiting() };
            features.extend_from_slice(states);
        }
        self.waiting += 1;
    }
}

/// Logs the pass of one more token. In a head that drafts all tokens in one pass, it is a row of that pass.
fn log_next(pass_rows: &mut Vec<usize>, in_one_pass: bool) {
    match pass_rows.last_mut() {
        Some(rows) if in_one_pass => *rows += 1,
        _ => pass_rows.push(1),
    }
}

impl Proposer for Head {
    fn method(&self) -> Method {
        if self.tree.is_some() { Method::HeadTree } else { Method::Head }
    }

    fn drafts_in_one_pass(&self) -> bool {
        self.head.drafts_in_one_pass()
    }

    fn limits_nodes(&self) -> bool {
        self.tree.is_some()
    }

    fn reset_stats(&mut self) {
        self.calibration = Calibration::default();
    }

    fn taps(&self) -> &[usize] {
        self.head.taps()
    }

    fn reads_prompt(&self) -> bool {
        self.head.has_cache()
    }

    fn reusable_rows(&self, prompt: &[TokenId], rows: usize) -> usize {
        if self.head.has_cache() { rows.min(self.known_rows(prompt).1) } else { rows }
    }

    fn max_depth(&self) -> usize {
        // The nodes of a tree are limited, not its depth.
        if self.limits_nodes() { MAX_DRAFT } else { self.head.max_depth() }
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.pass_rows.clear();
        (self.pending, self.failure) = (None, None);
        if !self.head.has_cache() {
            return self.clear();
        }
        let (cached, end) = self.known_rows(prompt);
        let waiting = end - cached;
        for features in &mut self.features {
            features.truncate(features.len() / self.waiting.max(1) * waiting);
        }
        (self.cached, self.waiting) = (cached, waiting);
        self.text.truncate(shared_len(&self.text, prompt));
        self.head.truncate(cached);
    }

    fn reset(&mut self) {
        self.reset_stats();
        self.pending = None;
        self.clear();
    }

    fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    fn take_pass_log(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.pass_rows)
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let rows = self.cached + self.waiting;
        let depth = cx.plan.max_draft.min(cx.plan.max_depth).min(self.head.max_depth());
        self.pending = None;
        // The last row belongs to the token before the root. Before the first round it may be unknown.
        if self.waiting == 0 || rows + 1 != cx.committed.len() || depth == 0 {
            return Ok(DraftTree::new());
        }
        self.pass_rows.clear();
        self.text.extend_from_slice(&cx.committed[self.text.len()..]);
        let in_one_pass = self.head.drafts_in_one_pass();
        self.pass_rows.push(if in_one_pass { 1 } else { self.waiting });
        let logits = self.head.logits(&self.features, &cx.committed[self.cached + 1..])?;
        if self.head.has_cache() {
            self.cached = rows;
            self.drop_waiting();
        }
        if let Some(shape) = self.tree.clone() {
            let plan = cx.plan.clone().with_max_depth(depth);
            return self.grow_tree(ProposeContext { plan, ..cx }, &logits, &shape);
        }
        let (tree, failure) = ChainDraft::new(cx, Vec::new()).grow(depth, logits, |token| {
            log_next(&mut self.pass_rows, in_one_pass);
            self.head.next_logits(token).map(Some)
        });
        self.failure = failure;
        // Rows of drafted tokens were computed without the target's states.
        self.head.truncate(self.cached);
        Ok(tree)
    }

    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        if let Some(tree) = self.pending.take() {
            // Rows of the tree are dropped. Accepted tokens are read again with the target's states.
            tree.settle(outcome, &mut self.calibration);
        }
        let committed = outcome.committed;
        let Some(base) = committed.len().checked_sub(1 + outcome.path.len()) else { return Ok(()) };
        if !self.head.has_cache() {
            if let Some(&last) = outcome.path.last() {
                self.add_row(outcome, last, committed.len() - 2);
            }
            return Ok(());
        }
        for (row, &at) in (base..).zip(outcome.path) {
            let end = self.cached + self.waiting;
            if row == end {
                self.add_row(outcome, at, row);
            } else if row > end {
                // Rows are missing. Nothing is drafted until the prompt is read again.
                self.drop_waiting();
                return Ok(());
            }
        }
        self.text.extend_from_slice(&committed[self.text.len().min(committed.len())..]);
        if self.waiting > READ_ROWS { self.flush(1) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::depth::DraftPlan;
    use crate::model::{LanguageModel, LogitRows, PassInput};
    use crate::sample::{Sampler, SamplingParams};
    use crate::table::{TableConfig, TableModel};

    /// Returns the tapped states of the row as logits, shifted by the row's token.
    struct Shifted;

    impl DraftHead for Shifted {
        fn taps(&self) -> &[usize] {
            &[1]
        }

        fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>> {
            let mut logits = features[0].clone();
            logits.rotate_right(tokens[0] as usize % 16);
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
        let step = PassInput { taps: head.taps(), ..PassInput::chain(&[3, 4], LogitRows::All) };
        let output = target.forward(step).unwrap();
        let committed = [3, 4, 5];
        head.observe(&RoundOutcome {
            accepted: &[],
            kept: &[],
            committed: &committed,
            target: &output,
            tap_layers: &[1],
            path: &[1],
            aux_start: 1,
        })
        .unwrap();
        let tree = propose(&mut head, &committed, &mut target);
        assert_eq!((tree.len(), head.take_pass_log()), (1, vec![1]));
        let expected = Shifted.logits(&[output.taps[0].row(1).to_vec()], &[5]).unwrap();
        let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
        let crate::draft::DraftProb::Sampled(q) = tree.prob(0) else { panic!("sampled") };
        assert_eq!(q[..], sampler.distribution(&expected, &committed).unwrap()[..]);
        assert!(propose(&mut head, &[3, 4, 5, 6], &mut target).is_empty(), "the states are of another row");
        head.reset();
        assert!(propose(&mut head, &committed, &mut target).is_empty());
    }
}
