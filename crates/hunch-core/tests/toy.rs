//! Shared fixtures of the round loop's tests: a clock, toy models and a list of all proposers.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hunch_core::depth::DepthController;
use hunch_core::draft::{DraftProb, DraftTree};
use hunch_core::error::{Error, Result};
use hunch_core::method::Method;
use hunch_core::model::{
    DraftWindow, LanguageModel, LogitRows, ModelInfo, ModelMemory, PassInput, PassOutput, Rows,
};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::head::{DraftHead, Head, TreeRows};
use hunch_core::propose::layer_skip::{DraftLayers, LayerSkip};
use hunch_core::propose::retrieval::{Retrieval, TextIndex};
use hunch_core::propose::suffix::Suffix;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::propose::{MethodOptions, ProposeContext, Proposer, Stage};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Sampler, SamplingParams, argmax, draw, unit};
use hunch_core::session::{DroppedDraft, Round, Session, SessionConfig};
use hunch_core::stats::Stopwatch;
use hunch_core::table::{TableConfig, TableModel};
use hunch_core::token::{EmittedToken, TokenId};

/// Clock that advances by 1 ms per reading.
#[derive(Default)]
pub(crate) struct Ticks(AtomicU64);

impl Stopwatch for Ticks {
    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Creates a toy model; `noise` makes a worse draft of the same distribution.
pub(crate) fn table(n_vocab: usize, noise: f32) -> TableModel {
    TableModel::new(TableConfig { seed: 11, n_vocab, noise, ..TableConfig::default() })
}

/// Returns the plain greedy continuation from exact logits, without session or cache.
pub(crate) fn greedy_continuation(model: &TableModel, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(argmax(&model.logits_after(&tokens)));
    }
    tokens.split_off(prompt.len())
}

/// Tree proposer with `width` children per node, sampled from q without replacement.
///
/// Tests the loop's tree path with sampled nodes. Under greedy sampling the children are the most
/// likely tokens, and certain.
pub(crate) struct Branching {
    /// Model to draft with.
    pub(crate) model: TableModel,
    /// Children per node.
    pub(crate) width: usize,
}

impl Proposer for Branching {
    fn method(&self) -> Method {
        Method::Synthetic
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let mut tree = DraftTree::new();
        let mut level: Vec<(Option<usize>, Vec<TokenId>)> = vec![(None, cx.committed.to_vec())];
        let room = cx.target.info().context_length - cx.target.cache_len() - 1;
        for _ in 0..cx.plan.max_draft {
            let mut next = Vec::new();
            for (parent, path) in level {
                if tree.len() + self.width > room.min(15) {
                    return Ok(tree);
                }
                let logits = self.model.logits_after(&path);
                let distribution = if cx.sampler.is_greedy() {
                    Sampler::new(SamplingParams::unfiltered())?.distribution(&logits, &path)?
                } else {
                    cx.sampler.distribution(&logits, &path)?
                };
                let q: Arc<[f32]> = distribution.clone().into();
                let mut rest = distribution;
                for _ in 0..self.width {
                    if rest.iter().all(|&w| w == 0.0) {
                        break;
                    }
                    let (token, prob) = if cx.sampler.is_greedy() {
                        (argmax(&rest), DraftProb::Certain)
                    } else {
                        (draw(&rest, unit(cx.rng)), DraftProb::Sampled(q.clone()))
                    };
                    rest[token as usize] = 0.0;
                    let node = tree.push(parent, token, prob);
                    next.push((Some(node), path.iter().copied().chain([token]).collect()));
                }
            }
            level = next;
        }
        Ok(tree)
    }
}

/// Head that knows the last token, and from the hidden states a little of what came before it.
pub(crate) struct ToyHead {
    model: TableModel,
}

impl ToyHead {
    /// Creates a head for a target of this vocabulary.
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self { model: table(n_vocab, 0.2) }
    }
}

impl DraftHead for ToyHead {
    fn taps(&self) -> &[usize] {
        &[0, 2]
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>> {
        let own = self.model.logits_after(tokens);
        Ok(own
            .iter()
            .zip(features[0].iter().zip(&features[1]))
            .map(|(own, (a, b))| own + 0.1 * (a - b))
            .collect())
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        Box::new(Self::new(self.model.info().n_vocab))
    }

    fn read_by_a_pass(&self) -> usize {
        64
    }
}

/// Logits that toy heads returned, in order.
pub(crate) type LogitLog = Arc<Mutex<Vec<Vec<f32>>>>;

type ToyRow = (TokenId, Vec<f32>);

/// Head with a cache: the logits depend on the states and tokens of all its rows.
pub(crate) struct ToyLayer {
    model: TableModel,
    /// Token and states of each row. A drafted token has the logits before it for states.
    rows: Vec<ToyRow>,
    last: Vec<f32>,
    /// Rows of the tree after `rows`, with the logits after each.
    tree: Vec<(ToyRow, Vec<f32>)>,
    /// All logits.
    pub(crate) log: LogitLog,
    /// Calls left before it fails.
    calls: usize,
}

impl ToyLayer {
    /// Creates a head for a target of this vocabulary.
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self::failing_after(n_vocab, usize::MAX)
    }

    /// Creates a head that fails after some calls.
    pub(crate) fn failing_after(n_vocab: usize, calls: usize) -> Self {
        let log = LogitLog::default();
        let (rows, last, tree) = (Vec::new(), Vec::new(), Vec::new());
        Self { model: table(n_vocab, 0.2), rows, last, tree, log, calls }
    }

    /// Returns the logits after all rows and `more` after them.
    fn logits_after(&self, more: &[&ToyRow]) -> Vec<f32> {
        let rows: Vec<&ToyRow> = self.rows.iter().chain(more.iter().copied()).collect();
        let recent: Vec<TokenId> = rows.iter().map(|row| row.0).collect();
        let mut logits = self.model.logits_after(&recent[recent.len().saturating_sub(2)..]);
        for (i, (token, states)) in rows.into_iter().enumerate() {
            let weight = 0.05 * (i as f32 + *token as f32).cos();
            logits.iter_mut().zip(states).for_each(|(logit, state)| *logit += weight * state);
        }
        self.log.lock().unwrap().push(logits.clone());
        logits
    }

    fn score(&mut self) -> Result<Vec<f32>> {
        self.count_call()?;
        self.last = self.logits_after(&[]);
        Ok(self.last.clone())
    }

    fn count_call(&mut self) -> Result<()> {
        self.calls = self.calls.checked_sub(1).ok_or_else(|| Error::Internal("a toy head failed".into()))?;
        Ok(())
    }

    fn push(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) {
        let width = self.model.info().n_vocab;
        let rows = features[0].chunks_exact(width).zip(features[1].chunks_exact(width));
        let states = rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect());
        assert_eq!(features[0].len(), tokens.len() * width);
        self.rows.extend(tokens.iter().copied().zip(states));
    }
}

impl DraftHead for ToyLayer {
    fn taps(&self) -> &[usize] {
        &[0, 2]
    }

    fn max_depth(&self) -> usize {
        4
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>> {
        self.push(features, tokens);
        self.tree.clear();
        self.score()
    }

    fn tree_logits(&mut self, rows: TreeRows<'_>) -> Result<Rows> {
        self.count_call()?;
        let earlier = self.tree.len();
        for (i, (&token, &visible)) in rows.tokens.iter().zip(rows.visible).enumerate() {
            let states = rows.parent(i).map_or(&self.last, |parent| &self.tree[parent].1).clone();
            let ancestors = (0..earlier).filter(|bit| visible >> bit & 1 == 1);
            let mut path: Vec<&ToyRow> = ancestors.map(|row| &self.tree[row].0).collect();
            assert_eq!(path.len(), rows.depths[i]);
            let own = (token, states);
            path.push(&own);
            let logits = self.logits_after(&path);
            self.tree.push((own, logits));
        }
        let values = self.tree[earlier..].iter().flat_map(|(_, logits)| logits.iter().copied()).collect();
        Ok(Rows::new(self.model.info().n_vocab, values))
    }

    fn next_logits(&mut self, token: TokenId) -> Result<Vec<f32>> {
        self.rows.push((token, self.last.clone()));
        self.score()
    }

    fn read(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<()> {
        self.count_call()?;
        self.push(features, tokens);
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.rows.truncate(len);
        self.tree.clear();
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        Box::new(Self::new(self.model.info().n_vocab))
    }

    fn read_by_a_pass(&self) -> usize {
        64
    }
}

/// Head without a cache, whose logits of a depth are the same on all branches (as Medusa's).
#[derive(Default)]
pub(crate) struct ToyPositions {
    logits: Vec<f32>,
}

impl DraftHead for ToyPositions {
    fn taps(&self) -> &[usize] {
        &[2]
    }

    fn max_depth(&self) -> usize {
        3
    }

    fn reads_drafts(&self) -> bool {
        false
    }

    fn logits(&mut self, features: &[Vec<f32>], _: &[TokenId]) -> Result<Vec<f32>> {
        self.logits.clone_from(&features[0]);
        Ok(self.logits.clone())
    }

    fn next_logits(&mut self, _: TokenId) -> Result<Vec<f32>> {
        self.logits.rotate_right(3);
        Ok(self.logits.clone())
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        Box::new(Self::default())
    }

    fn read_by_a_pass(&self) -> usize {
        64
    }
}

/// Head with a cache that drafts a block in one pass, as DFlash. The logits of a place depend on all rows and the place.
pub(crate) struct ToyBlock {
    layer: ToyLayer,
    /// Place of the block that was scored last.
    place: usize,
    /// Places that were scored, in order.
    pub(crate) places: Arc<Mutex<Vec<usize>>>,
    /// It says that one pass drafts all tokens.
    in_one_pass: bool,
    /// The token before a place changes its logits (as DSpark).
    reads_drafts: bool,
}

impl ToyBlock {
    /// Creates a head for a target of this vocabulary. A block takes one pass, or one for each token.
    pub(crate) fn new(n_vocab: usize, in_one_pass: bool) -> Self {
        let (layer, places) = (ToyLayer::new(n_vocab), Arc::default());
        Self { layer, place: 0, places, in_one_pass, reads_drafts: false }
    }

    /// Creates a head whose logits also depend on the token before a place.
    pub(crate) fn reading(n_vocab: usize) -> Self {
        Self { reads_drafts: true, ..Self::new(n_vocab, true) }
    }

    /// Returns the logits that it will return, in order.
    pub(crate) fn log(&self) -> LogitLog {
        self.layer.log.clone()
    }

    fn score(&mut self, place: usize, before: TokenId) -> Result<Vec<f32>> {
        self.places.lock().unwrap().push(place);
        let mut logits = self.layer.score()?;
        let turn = 3 * place % logits.len();
        logits.rotate_right(turn);
        if self.reads_drafts {
            let bias = (0..).map(|token: TokenId| 0.5 * ((7 * before + token) as f32).cos());
            logits.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
        }
        Ok(logits)
    }
}

impl DraftHead for ToyBlock {
    fn taps(&self) -> &[usize] {
        self.layer.taps()
    }

    fn max_depth(&self) -> usize {
        4
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn reads_drafts(&self) -> bool {
        self.reads_drafts
    }

    fn drafts_in_one_pass(&self) -> bool {
        self.in_one_pass
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>> {
        self.layer.push(features, tokens);
        self.place = 0;
        self.score(0, tokens[tokens.len() - 1])
    }

    fn next_logits(&mut self, token: TokenId) -> Result<Vec<f32>> {
        self.place += 1;
        self.score(self.place, token)
    }

    fn tree_logits(&mut self, rows: TreeRows<'_>) -> Result<Rows> {
        let mut values = Vec::new();
        for (&token, depth) in rows.tokens.iter().zip(rows.depths) {
            values.extend(self.score(depth + 1, token)?);
        }
        Ok(Rows::new(self.layer.model.info().n_vocab, values))
    }

    fn read(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> Result<()> {
        self.layer.read(features, tokens)
    }

    fn truncate(&mut self, len: usize) {
        self.layer.truncate(len);
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        let fork = Self::new(self.layer.model.info().n_vocab, self.in_one_pass);
        Box::new(Self { reads_drafts: self.reads_drafts, ..fork })
    }

    fn read_by_a_pass(&self) -> usize {
        64
    }
}

/// Creates a proposer that drafts trees with a head.
pub(crate) fn head_tree(head: impl DraftHead + 'static, shape: TreeShape) -> Head {
    let mut head = Head::new(Box::new(head));
    head.set_tree(Some(shape));
    head
}

/// Texts that continue every pair of tokens in one of two ways.
pub(crate) fn texts(n_vocab: usize) -> TextIndex {
    let n = n_vocab as TokenId;
    let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b)));
    TextIndex::new(pairs.flat_map(|(a, b)| [[a, b, (a + b) % n, a], [a, b, (a * b + 1) % n, b]]))
}

/// Proposers in the order they are tried.
#[derive(Default)]
pub(crate) struct Stages {
    pub(crate) proposers: Vec<Box<dyn Proposer>>,
    /// Their drafts are merged into one tree.
    pub(crate) merged: bool,
}

impl Stages {
    /// Stages of which one drafts in a round.
    pub(crate) fn new(proposers: Vec<Box<dyn Proposer>>) -> Self {
        Self { proposers, merged: false }
    }

    /// Adds the proposers to a session.
    pub(crate) fn add_to<'a>(&'a mut self, session: &mut Session<'a>) {
        let proposers = self.proposers.iter_mut().map(|proposer| &mut **proposer as &mut dyn Proposer);
        if self.merged {
            session.add_merged(proposers.collect());
        } else {
            proposers.for_each(|proposer| session.add_proposer(proposer));
        }
    }
}

/// Creates the stages of a single proposer.
pub(crate) fn only(proposer: impl Proposer + 'static) -> Stages {
    Stages::new(vec![Box::new(proposer)])
}

/// Creates stages whose drafts are merged into one tree.
pub(crate) fn merged(proposers: Vec<Box<dyn Proposer>>) -> Stages {
    Stages { proposers, merged: true }
}

/// Returns stages for every method of the registry and for variants of some, by name. `script` is the
/// synthetic proposer's known continuation.
pub(crate) fn methods(n_vocab: usize, script: &[TokenId]) -> Vec<(&'static str, Stages)> {
    let draft = |noise| DraftModel::new(Box::new(table(n_vocab, noise))).unwrap();
    let tree = |noise, shape| {
        let mut draft = draft(noise);
        draft.set_tree(Some(shape));
        draft
    };
    let options = MethodOptions {
        exit_layer: Some(2),
        skipped_layers: Some(vec![1]),
        tree: TreeShape::Dynamic,
        ..MethodOptions::default()
    };
    let target = table(n_vocab, 0.0);
    let proposer = |stage: &Stage| -> Box<dyn Proposer> {
        match stage {
            Stage::BuiltIn(new) => new.create(),
            Stage::Texts => Box::new(Retrieval::new(Arc::new(texts(n_vocab)))),
            Stage::DraftModel | Stage::LowBitCopy => Box::new(draft(0.4)),
            Stage::DraftTree => Box::new(tree(0.4, options.tree.clone())),
            Stage::TargetLayers { layers, .. } => {
                Box::new(LayerSkip::of(layers(&options, target.info().n_layer), target.info()).unwrap())
            }
            Stage::Head => Box::new(Head::new(Box::new(ToyHead::new(n_vocab)))),
            Stage::HeadTree => Box::new(head_tree(ToyLayer::new(n_vocab), options.tree.clone())),
            Stage::Script => Box::new(Synthetic::new(script.to_vec(), 0.8).unwrap()),
        }
    };
    // Drafts of a model that sees less than it needs, in prompts of more than 4 tokens.
    let narrow = |shape: Option<TreeShape>| {
        let mut draft = draft(0.0);
        draft.set_tree(shape);
        draft.set_window(Some(DraftWindow::new(1).unwrap()));
        draft
    };
    let mut narrow_layers = LayerSkip::new(DraftLayers::Skip(Vec::new()), n_vocab);
    narrow_layers.set_window(Some(DraftWindow::new(1).unwrap()));
    let registered = Method::REGISTERED.map(|method| {
        let entry = method.entry();
        let proposers = entry.stages.iter().map(proposer).collect();
        (method.name(), Stages { proposers, merged: entry.merges_stages })
    });
    let stranger = TableModel::new(TableConfig { seed: 12, n_vocab, ..TableConfig::default() });
    let variants = [
        ("draft model, the same", only(draft(0.0))),
        ("draft model, a stranger", only(DraftModel::new(Box::new(stranger)).unwrap())),
        ("draft tree, a worse one", only(tree(0.8, TreeShape::Dynamic))),
        ("draft tree, 3x2x1", only(tree(0.4, TreeShape::by_level([3, 2, 1])))),
        ("draft model, a window of one token", only(narrow(None))),
        ("draft tree, a window of one token", only(narrow(Some(TreeShape::Dynamic)))),
        ("own layers, a window of one token", only(narrow_layers)),
        ("head with a cache", only(Head::new(Box::new(ToyLayer::new(n_vocab))))),
        ("suffix, then a head with a cache", after_suffix(n_vocab)),
        ("tree of a head, 3x2x1", only(head_tree(ToyLayer::new(n_vocab), TreeShape::by_level([3, 2, 1])))),
        ("tree of positions", only(head_tree(ToyPositions::default(), TreeShape::Dynamic))),
        ("tree of positions, 2x2x2", only(head_tree(ToyPositions::default(), TreeShape::by_level([2; 3])))),
        ("block of a head", only(Head::new(Box::new(ToyBlock::new(n_vocab, true))))),
        ("tree of a block", only(head_tree(ToyBlock::new(n_vocab, true), TreeShape::Dynamic))),
        (
            "tree of a block, 2x2x2",
            only(head_tree(ToyBlock::new(n_vocab, true), TreeShape::by_level([2; 3]))),
        ),
        ("block with the tokens before", only(Head::new(Box::new(ToyBlock::reading(n_vocab))))),
        (
            "tree of a block with the tokens before",
            only(head_tree(ToyBlock::reading(n_vocab), TreeShape::Dynamic)),
        ),
        ("siblings of one position", only(head_tree(ToyHead::new(n_vocab), TreeShape::Dynamic))),
        ("two draft models, merged", merged(vec![Box::new(draft(0.4)), Box::new(draft(0.8))])),
        ("the same draft model twice, merged", merged(vec![Box::new(draft(0.4)), Box::new(draft(0.4))])),
        (
            "two draft models and a text, merged",
            merged(vec![Box::new(draft(0.8)), Box::new(Suffix::default()), Box::new(draft(0.0))]),
        ),
        ("tree of width 2", only(Branching { model: table(n_vocab, 0.4), width: 2 })),
        ("tree of width 3", only(Branching { model: table(n_vocab, 0.8), width: 3 })),
    ];
    registered.into_iter().chain(variants).collect()
}

/// Creates the stages of a lookup and a head with a cache.
fn after_suffix(n_vocab: usize) -> Stages {
    Stages::new(vec![Box::new(Suffix::default()), Box::new(Head::new(Box::new(ToyLayer::new(n_vocab))))])
}

/// Result of a generation.
pub(crate) struct Generated {
    /// All emitted tokens.
    pub(crate) tokens: Vec<EmittedToken>,
    /// The rounds.
    pub(crate) rounds: Vec<Round>,
    /// Final figures.
    pub(crate) stats: hunch_core::stats::GenerationStats,
    /// Dropped proposers.
    pub(crate) dropped: Vec<DroppedDraft>,
}

impl Generated {
    /// Returns the token IDs.
    pub(crate) fn ids(&self) -> Vec<TokenId> {
        self.tokens.iter().map(|t| t.id).collect()
    }
}

/// Runs a generation from an empty cache and checks the loop's invariants after every round.
pub(crate) fn generate(
    target: &mut dyn LanguageModel,
    stages: &mut Stages,
    sampler: &Sampler,
    prompt: &[TokenId],
    config: SessionConfig,
) -> Generated {
    generate_at(None, target, stages, sampler, prompt, config)
}

/// [`generate`] with a depth controller, up to the configured depth.
pub(crate) fn generate_at(
    depth: Option<&mut DepthController>,
    target: &mut dyn LanguageModel,
    stages: &mut Stages,
    sampler: &Sampler,
    prompt: &[TokenId],
    config: SessionConfig,
) -> Generated {
    target.truncate(0).unwrap();
    let clock = Ticks::default();
    let mut session = Session::new(target, sampler, &clock, config).unwrap();
    stages.add_to(&mut session);
    if let Some(depth) = depth {
        session.set_depth(depth);
    }
    let flow = session.prefill(prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert!(flow.is_continue());
    let mut rounds = Vec::new();
    while let Some(round) = session.next() {
        rounds.push(round.unwrap());
        assert_eq!(session.cached().len(), session.committed().len() - 1);
    }
    let tokens: Vec<EmittedToken> = rounds.iter().flat_map(|r| r.emitted.clone()).collect();
    let ids: Vec<TokenId> = tokens.iter().map(|t| t.id).collect();
    assert_eq!(session.committed(), [prompt, &ids[..]].concat());
    let (stats, dropped) = (session.stats("cpu", 0), session.take_dropped());
    let by_origin = stats.accepted + stats.resampled + stats.bonus + stats.plain;
    assert_eq!(by_origin, stats.generated_tokens);
    assert_eq!(stats.generated_tokens as usize, tokens.len());
    assert_eq!(stats.drafted as usize, rounds.iter().map(|r| r.drafted.len()).sum::<usize>());
    assert_eq!(stats.rounds as usize, rounds.len());
    Generated { tokens, rounds, stats, dropped }
}

/// Creates a configuration without end tokens.
pub(crate) fn config(max_draft: usize, max_tokens: usize, seed: u64) -> SessionConfig {
    SessionConfig { max_draft, max_tokens, end_tokens: Vec::new(), seed, rule: AcceptanceRule::Lossless }
}

/// Model that fails at its n-th pass.
pub(crate) struct Failing {
    /// Underlying model.
    pub(crate) inner: TableModel,
    /// Passes left before the failure.
    pub(crate) passes: usize,
}

impl LanguageModel for Failing {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn cache_len(&self) -> usize {
        self.inner.cache_len()
    }
    fn fork(&self) -> Box<dyn LanguageModel> {
        Box::new(Self { inner: self.inner.clone(), passes: self.passes })
    }
    fn memory(&self) -> ModelMemory {
        self.inner.memory()
    }
    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        if self.passes == 0 {
            // An out-of-vocabulary token triggers the inner model's own error.
            return self.inner.forward(PassInput::chain(&[TokenId::MAX], LogitRows::None));
        }
        self.passes -= 1;
        self.inner.forward(step)
    }
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.inner.truncate(len)
    }
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        self.inner.keep_rows(base, rows)
    }
}
