//! Drafting with a smaller model: a chain (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318)
//! or a tree (see [`draft_tree`]).
//!
//! The proposer owns the model and its KV cache. Each proposal first brings the cache up to date with
//! the committed tokens, so no other code tracks what the draft model has seen.

use std::ops::ControlFlow;

use super::chain::{ChainDraft, DeviceDraws, after_guess};
use super::draft_tree::{self, Calibration, KeptRows, PendingTree, TreeDraft, TreeShape};
use super::shortlist::Shortlist;
use super::{Method, ProposeContext, Proposer, RoundOutcome};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::model::{
    ChainInput, DeviceChain, DraftWindow, LanguageModel, LogitRows, PassInput, Rows, VocabSubset,
};
use crate::token::{TokenId, shared_len};

/// Proposer that drafts with a model of its own.
pub struct DraftModel {
    model: Box<dyn LanguageModel>,
    /// Method of its chains.
    method: Method,
    /// Tokens of the cache's first rows. Provisional rows of a tree may follow them.
    seen: Vec<TokenId>,
    shortlist: Shortlist,
    /// Shape of the trees; `None` drafts chains.
    tree: Option<TreeShape>,
    /// Part of its cache that the model reads; `None` is all of it. Rows in the cache were computed with it.
    window: Option<DraftWindow>,
    pending: Option<PendingTree>,
    calibration: Calibration,
    /// Rows of each pass since the last `take_pass_log`.
    pass_rows: Vec<usize>,
    /// Error that ended the last draft early.
    failure: Option<Error>,
}

impl DraftModel {
    /// Creates a proposer from `model` and empties its cache.
    ///
    /// Its ids must be those of the target. The caller checks that, or translates them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(mut model: Box<dyn LanguageModel>) -> Result<Self> {
        model.truncate(0)?;
        Ok(Self {
            shortlist: Shortlist::new(model.info().n_vocab),
            model,
            method: Method::DraftModel,
            seen: Vec::new(),
            tree: None,
            window: None,
            pending: None,
            calibration: Calibration::default(),
            pass_rows: Vec::new(),
            failure: None,
        })
    }

    /// Creates a proposer on the same weights, with an empty cache and no statistics.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fork(&self) -> Result<Self> {
        Ok(Self { method: self.method, ..Self::new(self.model.fork())? })
    }

    /// Sets the method that its chains are reported as.
    pub(super) fn set_method(&mut self, method: Method) {
        self.method = method;
    }

    /// Switches to trees of this shape, or to chains.
    pub fn set_tree(&mut self, tree: Option<TreeShape>) {
        self.tree = tree;
    }

    /// Sets the part of its cache that the model reads; `None` is all of it.
    ///
    /// All passes read as much, prompts included. So the cache is a function of the text, whatever was read in which
    /// pass. Rows that were computed with another window are not reused.
    pub fn set_window(&mut self, window: Option<DraftWindow>) {
        if window != self.window {
            self.reset();
            self.window = window;
        }
    }

    #[cfg(test)]
    pub(super) fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Returns the model.
    pub fn model(&self) -> &dyn LanguageModel {
        &*self.model
    }

    /// Returns the model for direct use, for example to measure it.
    ///
    /// Its cache keeps its rows. The next proposal starts from an empty cache, whatever the caller
    /// does.
    pub fn model_mut(&mut self) -> &mut dyn LanguageModel {
        self.seen.clear();
        self.pending = None;
        &mut *self.model
    }

    /// Empties the model's cache and returns the model for direct use.
    ///
    /// # Errors
    /// If the device fails.
    pub fn model_with_empty_cache(&mut self) -> Result<&mut dyn LanguageModel> {
        let model = self.model_mut();
        model.truncate(0)?;
        Ok(model)
    }

    /// Returns the tokens the model scores after `text`; `None` is all.
    pub fn tokens_after(&self, text: &[TokenId]) -> Option<VocabSubset> {
        Shortlist::after(text, self.model.info().n_vocab)
    }

    /// Truncates the cache to the first `len` tokens.
    fn truncate_cache(&mut self, len: usize) -> Result<()> {
        self.seen.truncate(len);
        self.model.truncate(len)
    }

    /// Runs tokens through the model and returns the requested logits.
    fn feed(&mut self, tokens: &[TokenId], logits: LogitRows) -> Result<Vec<f32>> {
        let (window, vocab_subset) = (self.window, self.shortlist.tokens());
        let step = PassInput { window, vocab_subset, ..PassInput::chain(tokens, logits) };
        self.pass_rows.push(tokens.len());
        let output = self.model.forward(step)?;
        self.seen.extend_from_slice(tokens);
        Ok(output.logits.into_values())
    }

    /// Runs tokens and a chain of `count` tokens that the device chooses. `None` if the device cannot choose.
    fn feed_chain(
        &mut self,
        tokens: &[TokenId],
        count: usize,
        choice: &DeviceDraws,
    ) -> Result<Option<DeviceChain>> {
        let chain = ChainInput { window: self.window, ..ChainInput::new(tokens, count) };
        let Some(chain) = choice.run(&mut *self.model, chain)? else {
            return Ok(None);
        };
        self.pass_rows.push(tokens.len());
        self.pass_rows.extend(std::iter::repeat_n(1, count - 1));
        self.seen.extend_from_slice(tokens);
        self.seen.extend_from_slice(&chain.tokens[..count - 1]);
        Ok(Some(chain))
    }

    /// Returns whether all tokens are in the model's vocabulary. A target may have a few more (padding,
    /// special).
    fn can_read(&self, tokens: &[TokenId]) -> bool {
        tokens.iter().all(|&token| (token as usize) < self.model.info().n_vocab)
    }

    /// Truncates the cache to the longest prefix it shares with `tokens` and returns its length.
    fn rewind(&mut self, tokens: &[TokenId]) -> Result<usize> {
        // A shorter cache means another user changed it, so its content is unknown.
        if self.model.cache_len() < self.seen.len() {
            self.truncate_cache(0)?;
        }
        self.pending = None;
        let shared = shared_len(&self.seen, tokens);
        self.truncate_cache(shared)?;
        Ok(shared)
    }

    /// Prefills all of `tokens` but the last, unless `should_continue` breaks earlier.
    fn catch_up(
        &mut self,
        tokens: &[TokenId],
        should_continue: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let Some(last) = tokens.len().checked_sub(1) else {
            return Ok(ControlFlow::Continue(()));
        };
        let shared = self.rewind(&tokens[..last])?;
        let rows = self.model.prefill_rows().max(1);
        for chunk in tokens[shared..last].chunks(rows) {
            self.feed(chunk, LogitRows::None)?;
            if should_continue().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns how many tokens can be drafted after `committed` within the model's context.
    fn draft_room(&self, committed: &[TokenId]) -> usize {
        (self.model.info().context_length + 1).saturating_sub(self.model.rows_of(committed))
    }
}

impl Proposer for DraftModel {
    fn method(&self) -> Method {
        if self.tree.is_some() { Method::DraftTree } else { self.method }
    }

    fn limits_nodes(&self) -> bool {
        self.tree.is_some()
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.shortlist.clear();
        self.shortlist.observe(prompt);
        // Discard the state of a round that failed.
        self.pass_rows.clear();
        self.pending = None;
        self.failure = None;
    }

    fn reset_stats(&mut self) {
        self.calibration = Calibration::default();
    }

    fn reset(&mut self) {
        // A failed pass may have corrupted cache rows. Do not reuse any.
        self.seen.clear();
        self.pending = None;
    }

    fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    fn unread_len(&self, committed: &[TokenId]) -> usize {
        // Rows shared with the last generation are reused.
        committed.len().saturating_sub(1 + shared_len(&self.seen, committed))
    }

    fn room(&self, committed: &[TokenId]) -> usize {
        let unread = &committed[shared_len(&self.seen, committed)..];
        if self.can_read(unread) { self.draft_room(committed) } else { 0 }
    }

    fn prefill_rows(&self) -> usize {
        self.model.prefill_rows()
    }

    fn prefill(
        &mut self,
        committed: &[TokenId],
        should_continue: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if self.draft_room(committed) > 0 && self.can_read(committed) {
            return self.catch_up(committed, should_continue);
        }
        Ok(ControlFlow::Continue(()))
    }

    fn take_pass_log(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.pass_rows)
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let committed = cx.committed;
        let depth = cx.plan.max_draft.min(self.draft_room(committed));
        self.shortlist.observe(&committed[self.shortlist.observed().min(committed.len())..]);
        let shared = self.rewind(&committed[..committed.len().saturating_sub(1)])?;
        let unread = &committed[shared..];
        if depth == 0 || !self.can_read(unread) {
            return Ok(DraftTree::new());
        }
        // Usually two tokens are pending after a fully accepted draft and one otherwise, more after
        // rounds without a draft. Only the last chunk needs logits.
        let mut chunks = unread.chunks(self.model.prefill_rows().max(1)).peekable();
        let mut logits = Vec::new();
        let mut chain = None;
        let n_vocab = cx.target.info().n_vocab.min(self.model.info().n_vocab);
        let count = match &self.tree {
            None => depth,
            Some(shape) => draft_tree::chain_depth(shape, &cx.plan, &self.calibration).min(depth),
        };
        let choice = DeviceDraws::new(&*self.model, cx.sampler, cx.noise, count, n_vocab, cx.rng);
        while let Some(chunk) = chunks.next() {
            if chunks.peek().is_some() {
                self.feed(chunk, LogitRows::None)?;
                continue;
            }
            if count > 0 {
                chain = self.feed_chain(chunk, count, &choice)?;
            }
            logits = match &chain {
                Some(chain) => chain.logits.row(0).to_vec(),
                None => self.feed(chunk, LogitRows::Last)?,
            };
        }
        if let Some(shape) = self.tree.clone() {
            // The rows of a chain are provisional too.
            self.seen.truncate(committed.len());
            let Self { model, seen, pass_rows, shortlist, calibration, window, .. } = self;
            let cached = seen.len();
            let context_length = model.info().context_length.saturating_sub(model.rows_of(seen) - cached);
            let mut forward = |step: PassInput<'_>| -> Result<Rows> {
                pass_rows.push(step.tokens.len());
                let (window, vocab_subset) = (*window, shortlist.tokens());
                Ok(model.forward(PassInput { window, vocab_subset, ..step })?.logits)
            };
            let chain = chain.map(|chain| (chain, choice.units));
            let draft = TreeDraft {
                cached,
                context_length,
                calibration,
                by_depth: false,
                chain,
                forward: &mut forward,
            };
            let (tree, pending, failure) = draft_tree::grow(draft, cx, &logits, &shape)?;
            (self.pending, self.failure) = (Some(pending), failure);
            return Ok(tree);
        }
        let mut at = 0..;
        let (tree, failure) = ChainDraft::new(cx, choice.units).grow(depth, logits, |token| match &chain {
            Some(chain) => Ok(at.next().and_then(|at| after_guess(chain, at, token))),
            None => self.feed(&[token], LogitRows::Last).map(Some),
        });
        self.failure = failure;
        Ok(tree)
    }

    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        let Some(tree) = self.pending.take() else {
            return Ok(());
        };
        let KeptRows { base, rows, tokens } = tree.settle(outcome, &mut self.calibration);
        // Keep the rows of the accepted path instead of running it again.
        self.model.keep_rows(base, &rows)?;
        self.seen.extend(tokens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::depth::DraftPlan;
    use crate::draft::DraftProb;
    use crate::model::{ModelInfo, ModelMemory, PassOutput};
    use crate::sample::{DrawSettings, Sampler, SamplingParams, argmax, draw};
    use crate::table::{TableConfig, TableModel};

    fn table(context_length: usize, n_vocab: usize) -> TableModel {
        TableModel::new(TableConfig { context_length, n_vocab, ..TableConfig::default() })
    }

    fn begin(draft: &mut DraftModel, prompt: &[TokenId]) {
        draft.begin(prompt);
        let flow = draft.prefill(prompt, &mut || ControlFlow::Continue(())).unwrap();
        assert!(flow.is_continue());
    }

    fn propose(draft: &mut DraftModel, committed: &[TokenId], params: SamplingParams) -> DraftTree {
        let sampler = Sampler::new(params).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut target = table(64, 16);
        let cx = ProposeContext {
            committed,
            plan: DraftPlan::fixed(4),
            end_tokens: &[],
            noise: None,
            sampler: &sampler,
            rng: &mut rng,
            target: &mut target,
        };
        draft.propose(cx).unwrap()
    }

    fn greedy_continuation(committed: &[TokenId], n: usize) -> Vec<TokenId> {
        let mut tokens = committed.to_vec();
        for _ in 0..n {
            tokens.push(argmax(&table(64, 16).logits_after(&tokens)));
        }
        tokens.split_off(committed.len())
    }

    /// Model whose device chooses tokens.
    struct Choosing {
        model: TableModel,
        /// Every n-th token of a chain is a wrong one; 0 for none.
        wrong: usize,
    }

    impl LanguageModel for Choosing {
        fn info(&self) -> &ModelInfo {
            self.model.info()
        }
        fn cache_len(&self) -> usize {
            self.model.cache_len()
        }
        fn fork(&self) -> Box<dyn LanguageModel> {
            Box::new(Self { model: self.model.clone(), wrong: self.wrong })
        }
        fn memory(&self) -> ModelMemory {
            self.model.memory()
        }
        fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
            assert_eq!(step.logits, LogitRows::None, "the device runs chains");
            self.model.forward(step)
        }
        fn device_draw(&self, settings: &DrawSettings) -> Option<DrawSettings> {
            Some(DrawSettings { top_k: 0, ..*settings })
        }
        fn device_chain(&mut self, chain: ChainInput<'_>) -> Result<Option<DeviceChain>> {
            let ChainInput { tokens, count, draws, .. } = chain;
            let (mut chain, mut values) = (DeviceChain::default(), Vec::new());
            let mut input = tokens.to_vec();
            for at in 0..count {
                values.extend(
                    self.model.forward(PassInput::chain(&input, LogitRows::Last))?.logits.into_values(),
                );
                let logits = &values[values.len() - self.info().n_vocab..];
                let token = match draws {
                    None => argmax(logits),
                    Some(draws) => {
                        let sampler = Sampler::new(SamplingParams::unfiltered())?;
                        draw(&sampler.distribution(&logits[..draws.n_vocab], &[])?, draws.units[at])
                    }
                };
                let wrong = self.wrong > 0 && at % self.wrong == self.wrong - 1;
                input = vec![if wrong { (token + 1) % 12 } else { token }];
                chain.tokens.extend(&input);
            }
            chain.logits = Rows::new(self.info().n_vocab, values);
            Ok(Some(chain))
        }
        fn truncate(&mut self, len: usize) -> Result<()> {
            self.model.truncate(len)
        }
        fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
            self.model.keep_rows(base, rows)
        }
    }

    /// The target has 16 tokens. A larger draft may choose one that the target does not have. The draft ends where the
    /// device is wrong.
    #[test]
    fn device_chain_matches_drafts_of_single_passes() {
        for (n_vocab, wrong) in [(12, 0), (16, 0), (40, 0), (12, 1), (16, 2), (40, 3)] {
            for params in [SamplingParams::greedy(), SamplingParams::unfiltered()] {
                let model = table(64, n_vocab);
                let mut single = DraftModel::new(Box::new(model.clone())).unwrap();
                let mut chained = DraftModel::new(Box::new(Choosing { model, wrong })).unwrap();
                for committed in [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 9, 9], &[1, 2, 8], &[5], &[5, 6, 7]] {
                    let expected = propose(&mut single, committed, params.clone());
                    let tree = propose(&mut chained, committed, params.clone());
                    let len = if wrong > 0 { wrong.min(4) } else { 4 };
                    assert!(tree.len() == len || (n_vocab > 16 && tree.len() <= len), "{n_vocab} {wrong}");
                    assert_eq!(tree.tokens(), &expected.tokens()[..tree.len()], "{n_vocab}");
                    assert_eq!(tree.confidence(), &expected.confidence()[..tree.len()], "{n_vocab}");
                    for node in 0..tree.len() {
                        match (tree.prob(node), expected.prob(node)) {
                            (DraftProb::Sampled(q), DraftProb::Sampled(expected)) => assert_eq!(q, expected),
                            (q, expected) => {
                                assert!(matches!((q, expected), (DraftProb::Certain, DraftProb::Certain)))
                            }
                        }
                    }
                    assert_eq!(chained.seen.len(), chained.model().cache_len());
                }
                assert!(!chained.take_pass_log().is_empty());
            }
        }
    }

    /// The device can neither apply this top-k nor know the recent tokens. Its tokens are guesses.
    #[test]
    fn draft_follows_the_device_until_the_host_draws_another_token() {
        let penalty = SamplingParams { presence_penalty: 1.0, ..SamplingParams::unfiltered() };
        let top_k = SamplingParams { top_k: 3, ..SamplingParams::unfiltered() };
        let penalised = SamplingParams { repeat_penalty: 1.3, ..SamplingParams::greedy() };
        for params in [penalty, top_k, penalised] {
            let (mut drafted, model) = (0, table(64, 16));
            for last in 0..16 {
                let mut single = DraftModel::new(Box::new(model.clone())).unwrap();
                let mut chained =
                    DraftModel::new(Box::new(Choosing { model: model.clone(), wrong: 0 })).unwrap();
                let expected = propose(&mut single, &[1, 2, last], params.clone());
                let tree = propose(&mut chained, &[1, 2, last], params.clone());
                assert!(!tree.is_empty() && tree.len() <= expected.len());
                assert_eq!(tree.tokens(), &expected.tokens()[..tree.len()]);
                assert_eq!(chained.take_pass_log(), [3, 1, 1, 1], "one chain");
                drafted += tree.len();
            }
            assert!(drafted > 24, "{drafted} of 64 tokens were drafted: {params:?}");
        }
    }

    #[test]
    fn tree_over_a_chain_of_the_device_has_the_exact_q_of_its_paths() {
        for (wrong, params) in [
            (0, SamplingParams::greedy()),
            (0, SamplingParams::unfiltered()),
            (2, SamplingParams::unfiltered()),
        ] {
            let sampler = Sampler::new(params.clone()).unwrap();
            let mut draft = DraftModel::new(Box::new(Choosing { model: table(64, 16), wrong })).unwrap();
            draft.set_tree(Some(TreeShape::Dynamic));
            let (mut siblings, mut deepest) = (0, 0);
            for last in 0..16 {
                let committed = [1, 2, last];
                let tree = propose(&mut draft, &committed, params.clone());
                assert_eq!(tree.len(), 4);
                siblings += usize::from(!tree.is_chain());
                for node in 0..tree.len() {
                    let mut path = committed.to_vec();
                    path.extend(tree.path(Some(node)));
                    path.pop();
                    let logits = table(64, 16).logits_after(&path);
                    match tree.prob(node) {
                        DraftProb::Sampled(q) => {
                            assert_eq!(q[..], sampler.distribution(&logits, &path).unwrap()[..]);
                        }
                        DraftProb::Certain => {
                            let ranking = sampler.ranking(&logits, &path, 8).unwrap();
                            assert!(ranking.iter().any(|(token, _)| *token == tree.tokens()[node]));
                        }
                    }
                    deepest = deepest.max(tree.depth(node) + 1);
                }
                // The rows of a path that is accepted stay, without another pass.
                let path: Vec<usize> =
                    (0..tree.len()).filter(|node| tree.depth(*node) == 0).take(1).collect();
                let mut committed = committed.to_vec();
                committed.push(tree.tokens()[path[0]]);
                let output = PassOutput::default();
                let outcome = RoundOutcome {
                    accepted: &path,
                    kept: &path,
                    committed: &committed,
                    target: &output,
                    tap_layers: &[],
                    path: &[],
                    aux_start: 0,
                };
                draft.observe(&outcome).unwrap();
                assert_eq!(draft.seen.len(), draft.model().cache_len());
                assert_eq!(draft.seen[..], committed[..draft.seen.len()]);
                assert!(draft.take_pass_log().iter().skip(1).all(|rows| *rows == 1));
            }
            assert!(siblings > 0 && deepest > 1, "{siblings} {deepest}");
        }
    }

    #[test]
    fn drafts_own_continuation_from_any_cache_state() {
        let mut draft = DraftModel::new(Box::new(table(64, 16))).unwrap();
        assert_eq!(draft.unread_len(&[1, 2, 3, 4]), 3);
        begin(&mut draft, &[1, 2, 3, 4]);
        assert_eq!((draft.model().cache_len(), draft.unread_len(&[1, 2, 3, 4])), (3, 0));
        assert_eq!((draft.unread_len(&[1, 2, 8, 9, 10]), draft.unread_len(&[])), (2, 0));
        for committed in [&[1, 2, 3, 4][..], &[1, 2, 3, 4, 9, 9], &[1, 2, 8], &[5], &[5, 6, 7]] {
            let tree = propose(&mut draft, committed, SamplingParams::greedy());
            assert_eq!(tree.tokens(), greedy_continuation(committed, 4));
            assert!(matches!(tree.prob(0), DraftProb::Certain));
            assert_eq!(draft.seen.len(), draft.model().cache_len());
        }
    }

    #[test]
    fn room_ends_with_the_context_and_with_an_unknown_token() {
        let draft = DraftModel::new(Box::new(table(8, 16))).unwrap();
        // A token more than fits is the last one drafted: no pass reads it.
        assert_eq!([1, 7, 8, 9, 20].map(|len| draft.room(&vec![1; len])), [8, 2, 1, 0, 0]);
        assert_eq!(draft.room(&[1, 16, 1]), 0);
    }

    #[test]
    fn cancelled_prefill_stops_after_current_pass() {
        let mut draft = DraftModel::new(Box::new(table(200, 16))).unwrap();
        let prompt: Vec<TokenId> = (0..150).map(|i| i % 16).collect();
        let mut calls = 0;
        let flow = draft.prefill(&prompt, &mut || {
            calls += 1;
            ControlFlow::Break(())
        });
        assert!(flow.unwrap().is_break());
        assert_eq!((calls, draft.seen.len()), (1, draft.model().cache_len()));
        assert!(draft.seen.len() < prompt.len() - 1, "{} prompt tokens were read", draft.seen.len());
        // The rows that ran are kept, and the next generation continues from them.
        begin(&mut draft, &prompt);
        assert_eq!(draft.seen, prompt[..149]);
    }

    #[test]
    fn sampled_drafts_carry_exact_q() {
        let mut draft = DraftModel::new(Box::new(table(64, 16))).unwrap();
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::unfiltered() };
        let tree = propose(&mut draft, &[1, 2], params.clone());
        let sampler = Sampler::new(params).unwrap();
        let mut path = vec![1, 2];
        for (node, &token) in tree.tokens().iter().enumerate() {
            let DraftProb::Sampled(q) = tree.prob(node) else { panic!("sampled") };
            let exact = sampler.distribution(&table(64, 16).logits_after(&path), &path).unwrap();
            assert_eq!(q[..], exact[..]);
            path.push(token);
        }
    }

    #[test]
    fn stops_at_end_of_draft_context() {
        let mut draft = DraftModel::new(Box::new(table(5, 16))).unwrap();
        for (len, drafted) in [(3, 3), (4, 2), (5, 1), (6, 0), (9, 0)] {
            let committed: Vec<TokenId> = (0..len).collect();
            begin(&mut draft, &committed);
            let tree = propose(&mut draft, &committed, SamplingParams::greedy());
            assert_eq!(tree.len(), drafted, "{len}");
        }
    }

    #[test]
    fn accepts_vocabularies_of_different_length() {
        for n_vocab in [12, 20] {
            let mut draft = DraftModel::new(Box::new(table(64, n_vocab))).unwrap();
            let tree = propose(&mut draft, &[1, 2], SamplingParams::unfiltered());
            let DraftProb::Sampled(q) = tree.prob(0) else { panic!("sampled") };
            assert_eq!(q.len(), 16);
            assert!(q.iter().skip(12).all(|&q| n_vocab == 20 || q == 0.0));
        }
        let mut small = DraftModel::new(Box::new(table(64, 12))).unwrap();
        begin(&mut small, &[1, 14, 2]);
        assert!(propose(&mut small, &[1, 14, 2], SamplingParams::greedy()).is_empty());
    }

    #[test]
    fn drafts_correctly_after_direct_model_use() {
        let mut draft = DraftModel::new(Box::new(table(64, 16))).unwrap();
        propose(&mut draft, &[1, 2, 3], SamplingParams::greedy());
        let model = draft.model_with_empty_cache().unwrap();
        assert_eq!(model.cache_len(), 0);
        model.forward(PassInput::chain(&[9, 9, 9], LogitRows::None)).unwrap();
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::greedy());
        assert_eq!(tree.tokens(), greedy_continuation(&[1, 2, 3], 4));
        let model = draft.model_mut();
        let cached = model.cache_len();
        assert!(cached > 0, "the cache is kept");
        model.truncate(cached - 1).unwrap();
        model.forward(PassInput::chain(&[9], LogitRows::None)).unwrap();
        let tree = propose(&mut draft, &[1, 2, 3], SamplingParams::greedy());
        assert_eq!(tree.tokens(), greedy_continuation(&[1, 2, 3], 4));
    }
}
