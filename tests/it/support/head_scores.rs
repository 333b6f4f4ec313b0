//! Recorded logits of heads, comparison with them, and answers that heads draft for.

use hunch::engine::WallClock;
use hunch::event::GenerationEvent;
use hunch::generate::{GenerationContext, GenerationPlan, Models, generate};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::propose::Proposer;
use hunch_core::propose::head::{Head, TreeRows};
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_model::decoder::Decoder;
use serde::Deserialize;

use hunch_testing::tiny::{VOCABULARY, WIDTH};

/// Logits of a head that a script computed with numpy in double precision.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) head: String,
    pub(crate) text: Vec<TokenId>,
    /// One for each token of a greedy chain.
    pub(crate) steps: Vec<ExpectedLogits>,
    /// Nodes by depth, if drafted tokens are read.
    pub(crate) tree: Vec<Node>,
    /// Blocks after several lengths of the text, of heads that draft blocks.
    #[serde(default)]
    pub(crate) rounds: Vec<Block>,
}

/// A whole block.
#[derive(Deserialize)]
pub(crate) struct Block {
    /// Tokens of the text before it.
    pub(crate) read: usize,
    /// Logits of each place.
    pub(crate) places: Vec<ExpectedLogits>,
}

/// Node of a tree.
#[derive(Deserialize)]
pub(crate) struct Node {
    pub(crate) parent: Option<usize>,
    pub(crate) token: TokenId,
    /// After the node.
    pub(crate) scores: ExpectedLogits,
}

/// Logits after a token.
#[derive(Deserialize)]
pub(crate) struct ExpectedLogits {
    /// Standard deviation of all logits.
    pub(crate) deviation: f64,
    /// The likeliest tokens with their logits.
    pub(crate) top: Vec<(TokenId, f64)>,
}

/// Compares logits with recorded ones. The tolerance is in standard deviations.
pub(crate) fn assert_scores(
    logits: &[f32],
    expected: &ExpectedLogits,
    scored: usize,
    case: &str,
    tolerance: f64,
) {
    assert_eq!(logits.len(), VOCABULARY);
    assert_eq!(logits.iter().filter(|logit| logit.is_finite()).count(), scored, "{case}");
    for (token, logit) in &expected.top {
        let off = (f64::from(logits[*token as usize]) - logit).abs() / expected.deviation;
        assert!(off < tolerance, "{case}, token {token}: {} instead of {logit}", logits[*token as usize]);
    }
}

/// Returns the states of all tokens but the last.
pub(crate) fn features(head: &Head, decoder: &mut Decoder, text: &[TokenId]) -> Vec<Vec<f32>> {
    let step = PassInput { taps: head.taps(), ..PassInput::chain(text, LogitRows::None) };
    let taps = decoder.forward(step).unwrap().taps;
    taps.into_iter().map(|tap| tap.into_values()[..(text.len() - 1) * WIDTH].to_vec()).collect()
}

/// Reads a tree level by level. `tolerance` is that of the logits after a number of drafted tokens, in standard
/// deviations.
pub(crate) fn assert_tree(
    head: &mut Head,
    tree: &[Node],
    scored: usize,
    case: &str,
    tolerance: impl Fn(usize) -> f64,
) {
    let (mut depths, mut visible): (Vec<usize>, Vec<u64>) = (Vec::new(), Vec::new());
    for (row, node) in tree.iter().enumerate() {
        depths.push(node.parent.map_or(0, |parent| depths[parent] + 1));
        visible.push(node.parent.map_or(0, |parent| visible[parent]) | 1 << row);
    }
    let tokens: Vec<TokenId> = tree.iter().map(|node| node.token).collect();
    let mut start = 0;
    for level in depths.chunk_by(|a, b| a == b) {
        let rows = start..start + level.len();
        start = rows.end;
        let part = TreeRows {
            tokens: &tokens[rows.clone()],
            depths: &depths[rows.clone()],
            visible: &visible[rows.clone()],
        };
        let logits = head.tree_logits(part).unwrap();
        assert_eq!(logits.len(), rows.len());
        for (i, node) in rows.enumerate() {
            let expected = &tree[node].scores;
            let tolerance = tolerance(depths[node] + 1);
            assert_scores(logits.row(i), expected, scored, &format!("{case}, node {node}"), tolerance);
        }
    }
}

/// Runs an answer of 40 tokens. Returns its tokens, the drafts of its rounds, and the accepted tokens.
pub(crate) fn answer(
    models: &mut Models,
    prompt: &[TokenId],
    method: Method,
    sampling: &SamplingParams,
    max_draft: MaxDraft,
) -> (Vec<TokenId>, Vec<Vec<TokenId>>, u32) {
    let plan = GenerationPlan {
        method,
        max_draft,
        max_tokens: 40,
        sampling: sampling.clone(),
        ..GenerationPlan::default()
    };
    let (mut ids, mut drafts) = (Vec::new(), Vec::new());
    let mut sink = |event: GenerationEvent| {
        ids.extend(event.tokens().iter().map(|token| token.id));
        if let GenerationEvent::Round(round) = event {
            drafts.push(round.draft.iter().map(|token| token.id).collect());
        }
    };
    let clock = WallClock::start();
    let finished = generate(models, prompt, &plan, &GenerationContext::measured(&clock), &mut sink).unwrap();
    ids.extend(finished.held.iter().map(|token| token.id));
    (ids, drafts, finished.stats.accepted)
}

/// Nearly uniform, so that drafts of a random head are accepted.
pub(crate) fn hot(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 5.0, seed: Some(seed), ..SamplingParams::unfiltered() }
}

/// Asserts that answers on caches of earlier answers have the drafts of answers on empty caches, after any change of the
/// prompt.
pub(crate) fn assert_reused_cache_drafts_as_a_fresh_one(models: &mut Models, of: &str) {
    let first: Vec<TokenId> = (0..70).map(|i| 40 + i * i % 60).collect();
    let (reply, ..) = answer(models, &first, Method::Head, &hot(1), MaxDraft::Fixed(4));
    let second = [&first[..], &reply, &[100, 101, 102]].concat();
    let mut edited = second.clone();
    edited[30] += 1;
    let shorter = first[..50].to_vec();
    for (seed, prompt) in (2..).zip([second, edited, shorter, first]) {
        let method = if seed % 2 == 0 { Method::Head } else { Method::HeadTree };
        // Another method in between leaves the head behind.
        answer(models, &prompt[..20], Method::Ngram, &hot(seed), MaxDraft::Fixed(4));
        let reused = answer(models, &prompt, method, &hot(seed), MaxDraft::Fixed(6));
        let mut fork = models.fork().unwrap();
        let fresh = answer(&mut fork, &prompt, method, &hot(seed), MaxDraft::Fixed(6));
        assert_eq!(reused, fresh, "{of}, {method}, {} tokens", prompt.len());
    }
}
