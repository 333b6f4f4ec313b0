//! The output distribution on real weights, with a draft that differs from the target.
//!
//! The target is the default model. Its low-bit copy drafts, with a shortlist of two thirds of the vocabulary, or the
//! head that Hunch ships for it.
//!
//! The logits of both models are computed once for each text, so that thousands of generations run in seconds. The
//! joint distribution of the first two tokens is compared with the exact one. Each test runs as many generations as a
//! bias of [`BIAS`] needs to be seen.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use hunch_core::depth::DepthController;
use hunch_core::draft::{DraftProb, DraftTree};
use hunch_core::error::Result;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, ModelInfo};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::head::Head;
use hunch_core::propose::suffix::Suffix;
use hunch_core::propose::{ProposeContext, Proposer, RoundOutcome};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::{Session, SessionConfig};
use hunch_core::theory::{ChiSquare, TestPower, goodness_of_fit};
use hunch_core::token::{TokenId, TokenOrigin};

use hunch_model::decoder::Decoder;
use hunch_model::heads;
use hunch_model::low_bit;
use hunch_model::text::{EncodeOptions, Tokenizer};
use hunch_model::weights::WeightFile;

use crate::support::memo::{Memo, PassClock};
use crate::support::{cpu, default_model};

/// Total variation of the output from the target's distribution that a test sees with 99%.
const BIAS: f64 = 0.08;
/// p-value below which the output counts as biased. Seeds are fixed, so a test passes always or never.
const SIGNIFICANCE: f64 = 1e-3;
/// Most first tokens, and second tokens after each of them, that are counted one by one.
const COUNTED: (usize, usize) = (10, 5);
/// Prompts. The first is used with filters. Without them, the one whose next token is most often outside of the
/// shortlist is used.
const PROMPTS: [&str; 4] = [
    "One day the king said: I want a",
    "In the museum of natural history there was a skeleton of a",
    "The three most important enzymes of the cell are",
    "My favourite Italian dishes are",
];

/// A text that ends as it did before, so that the text drafts.
const REPEATED: &str = "One day the king said: I want a garden. The queen said: I want a";

/// Time of a pass of target and draft, in microseconds.
const PASSES: (u64, u64) = (10_000, 500);

/// A change of a draft before it is verified.
type Spoil = fn(DraftTree) -> DraftTree;

/// A draft model or a head, with drafts that a control spoils.
struct Drafter {
    inner: Inner,
    spoil: Option<Spoil>,
}

enum Inner {
    Model(DraftModel),
    Head(Head),
}

impl Drafter {
    fn new(inner: Inner) -> Self {
        Self { inner, spoil: None }
    }

    fn proposer(&self) -> &dyn Proposer {
        match &self.inner {
            Inner::Model(model) => model,
            Inner::Head(head) => head,
        }
    }

    fn proposer_mut(&mut self) -> &mut dyn Proposer {
        match &mut self.inner {
            Inner::Model(model) => model,
            Inner::Head(head) => head,
        }
    }

    /// Returns for each token whether it can be drafted after a prompt.
    fn can_draft(&self, prompt: &[TokenId], target: &ModelInfo) -> Vec<bool> {
        match &self.inner {
            Inner::Model(model) => {
                let list =
                    model.tokens_after(prompt).expect("the vocabulary is large enough for a shortlist");
                (0..target.n_vocab as TokenId).map(|token| list.contains(token)).collect()
            }
            Inner::Head(head) => {
                let states = vec![vec![1.0; target.n_embd]; head.taps().len()];
                let scores = head.fork().logits(&states, &[0]).unwrap();
                scores.iter().map(|score| score.is_finite()).collect()
            }
        }
    }
}

impl Proposer for Drafter {
    fn method(&self) -> Method {
        self.proposer().method()
    }
    fn taps(&self) -> &[usize] {
        self.proposer().taps()
    }
    fn max_depth(&self) -> usize {
        self.proposer().max_depth()
    }
    fn begin(&mut self, prompt: &[TokenId]) {
        self.proposer_mut().begin(prompt);
    }
    fn unread_len(&self, committed: &[TokenId]) -> usize {
        self.proposer().unread_len(committed)
    }
    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let tree = self.proposer_mut().propose(cx)?;
        Ok(match self.spoil {
            Some(spoil) => spoil(tree),
            None => tree,
        })
    }
    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        self.proposer_mut().observe(outcome)
    }
}

/// The pair of models.
struct Pair {
    clock: PassClock,
    target: Memo,
    drafter: Drafter,
    tokenizer: Tokenizer,
}

impl Pair {
    fn load() -> Self {
        let clock = PassClock::default();
        let compute = cpu();
        let file = WeightFile::open(&default_model()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy.gguf");
        low_bit::write_copy(&file, &copy, compute.threads().count(), &mut low_bit::unwatched).unwrap();
        let draft = Decoder::load(&WeightFile::open(&copy).unwrap(), &compute).unwrap();
        let inner = DraftModel::new(Box::new(Memo::new(draft, clock.clone(), PASSES.1))).unwrap();
        Self {
            target: Memo::new(Decoder::load(&file, &compute).unwrap(), clock.clone(), PASSES.0),
            clock,
            drafter: Drafter::new(Inner::Model(inner)),
            tokenizer: Tokenizer::from_gguf(file.gguf()).unwrap(),
        }
    }

    /// Loads the default model with the head that is shipped for it.
    fn load_with_head() -> Self {
        let (clock, compute) = (PassClock::default(), cpu());
        let file = WeightFile::open(&default_model()).unwrap();
        let target = Decoder::load(&file, &compute).unwrap();
        let head = heads::usual(None, &file, &target, &compute).unwrap().head.unwrap();
        Self {
            target: Memo::new(target, clock.clone(), PASSES.0).with_taps(head.taps()),
            clock,
            drafter: Drafter::new(Inner::Head(head)),
            tokenizer: Tokenizer::from_gguf(file.gguf()).unwrap(),
        }
    }

    fn prompt(&self, text: &str) -> Vec<TokenId> {
        self.tokenizer.encode(text, EncodeOptions::default()).unwrap()
    }

    fn distribution(&mut self, sampler: &Sampler, text: &[TokenId]) -> Vec<f32> {
        sampler.distribution(self.target.logits_after(text).unwrap(), text).unwrap()
    }

    /// Returns for each token whether it is on the shortlist after a prompt.
    fn shortlist(&self, prompt: &[TokenId]) -> Vec<bool> {
        self.drafter.can_draft(prompt, self.target.info())
    }

    /// Returns the probability that the next token is outside of the shortlist.
    fn unlisted(&mut self, sampler: &Sampler, prompt: &[TokenId]) -> f64 {
        let list = self.shortlist(prompt);
        let p = self.distribution(sampler, prompt);
        list.into_iter().zip(p).filter(|(listed, _)| !listed).map(|(_, p)| f64::from(p)).sum()
    }
}

/// Exact probabilities of the counted outcomes of two tokens.
struct Outcomes {
    distribution: Vec<f64>,
    places: HashMap<(TokenId, TokenId), usize>,
    /// Tokens that are drafted never have a place of their own.
    list: Vec<bool>,
}

impl Outcomes {
    fn new(pair: &mut Pair, sampler: &Sampler, prompt: &[TokenId]) -> Self {
        let list = pair.shortlist(prompt);
        let first = pair.distribution(sampler, prompt);
        let (mut distribution, mut places) = (vec![0.0, 0.0], HashMap::new());
        let mut left = [0.0, 0.0];
        for (listed, &p) in list.iter().zip(&first) {
            left[usize::from(!listed)] += f64::from(p);
        }
        for x in most_likely(&first, COUNTED.0) {
            let second = pair.distribution(sampler, &[prompt, &[x]].concat());
            for y in most_likely(&second, COUNTED.1) {
                let p = f64::from(first[x as usize]) * f64::from(second[y as usize]);
                places.insert((x, y), distribution.len());
                distribution.push(p);
                left[usize::from(!list[x as usize])] -= p;
            }
        }
        distribution[..2].copy_from_slice(&left.map(|p: f64| p.max(0.0)));
        Self { distribution, places, list }
    }

    /// Returns the place of an outcome. Others are counted by whether the draft can propose their first token.
    fn place(&self, first: TokenId, second: TokenId) -> usize {
        let other = usize::from(!self.list[first as usize]);
        self.places.get(&(first, second)).copied().unwrap_or(other)
    }
}

fn most_likely(p: &[f32], count: usize) -> Vec<TokenId> {
    let mut tokens: Vec<TokenId> = (0..).zip(p).filter(|(_, p)| **p > 0.0).map(|(token, _)| token).collect();
    tokens.sort_by(|&a, &b| p[b as usize].total_cmp(&p[a as usize]));
    tokens.truncate(count);
    tokens
}

/// One test: sampling, draft length and length of the answers. Without a draft length the controller chooses it.
struct Case {
    sampling: SamplingParams,
    depth: Option<usize>,
    tokens: usize,
    /// Set if the text drafts too, before the draft model, as in the method `auto`.
    text_drafts: bool,
}

impl Case {
    fn new(temperature: f32, depth: Option<usize>, tokens: usize) -> Self {
        let sampling = SamplingParams { temperature, ..SamplingParams::unfiltered() };
        Self { sampling, depth, tokens, text_drafts: false }
    }
}

/// Result of a test: the fit, the samples, the accepted share of the drafts, and how many tokens each method drafted.
#[derive(Debug)]
struct Tested {
    fit: ChiSquare,
    samples: u64,
    accepted: u32,
    drafted: BTreeMap<Method, u32>,
}

impl Tested {
    fn assert_unbiased(&self, name: &str) {
        let test = TestPower { degrees: self.fit.degrees, significance: SIGNIFICANCE, power: 0.99 };
        let seen = test.variation_seen(self.samples);
        println!("{name}: {self:?}, sees a bias of {seen:.3}");
        assert!(seen <= BIAS, "{name}: a bias of {seen:.3} is seen only");
        assert!(
            self.fit.degrees >= 8 && self.accepted > 0 && self.accepted < self.drafted.values().sum(),
            "{name}: {self:?}"
        );
        assert!(self.fit.p_value > SIGNIFICANCE, "{name}: {self:?}");
    }
}

fn run(pair: &mut Pair, case: &Case, prompt: &[TokenId]) -> Tested {
    let sampler = Sampler::new(case.sampling.clone()).unwrap();
    let outcomes = Outcomes::new(pair, &sampler, prompt);
    // As many as a test of all counted outcomes needs. Rare ones are pooled, so its degrees are fewer.
    let most = TestPower { degrees: outcomes.distribution.len(), significance: SIGNIFICANCE, power: 0.99 };
    let samples = most.samples_for_any(BIAS) as u64;
    let mut counts = vec![0; outcomes.distribution.len()];
    let (mut drafted, mut accepted) = (BTreeMap::new(), 0);
    let mut suffix = Suffix::default();
    let mut controller = case.depth.is_none().then(DepthController::default);
    for seed in 0..samples {
        pair.target.forget();
        let config = SessionConfig {
            max_draft: case.depth.unwrap_or(MAX_DRAFT),
            max_tokens: case.tokens,
            end_tokens: Vec::new(),
            seed,
            rule: AcceptanceRule::Lossless,
        };
        let mut session = Session::new(&mut pair.target, &sampler, &pair.clock, config).unwrap();
        if case.text_drafts {
            session.add_proposer(&mut suffix);
        }
        session.add_proposer(&mut pair.drafter);
        if let Some(controller) = &mut controller {
            session.set_depth(controller);
        }
        assert!(session.prefill(prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
        let mut ids = Vec::new();
        for round in session.by_ref() {
            let round = round.unwrap();
            if let Some(method) = round.drafted_by {
                *drafted.entry(method).or_default() += round.drafted.len() as u32;
            }
            accepted +=
                round.emitted.iter().filter(|token| token.origin == TokenOrigin::Accepted).count() as u32;
            ids.extend(round.emitted.iter().map(|token| token.id));
        }
        counts[outcomes.place(ids[0], ids[1])] += 1;
    }
    let fit = goodness_of_fit(&counts, &outcomes.distribution);
    Tested { fit, samples, accepted, drafted }
}

#[test]
fn drafts_of_another_model_keep_distribution() {
    let mut pair = Pair::load();
    let prompt = pair.prompt(PROMPTS[0]);
    let top_k = SamplingParams { top_k: 8, ..SamplingParams::unfiltered() };
    let cases = [
        (
            "temperature 0.7, top-k 8",
            Case {
                sampling: SamplingParams { temperature: 0.7, ..top_k.clone() },
                ..Case::new(0.7, Some(2), 3)
            },
        ),
        (
            "temperature 1, top-p 0.6",
            Case {
                sampling: SamplingParams { top_p: 0.6, ..SamplingParams::unfiltered() },
                ..Case::new(1.0, Some(2), 3)
            },
        ),
        (
            "temperature 1.5, top-k 8",
            Case {
                sampling: SamplingParams { temperature: 1.5, ..top_k.clone() },
                ..Case::new(1.5, Some(2), 3)
            },
        ),
        (
            "temperature 1, min-p 0.05, auto",
            Case {
                sampling: SamplingParams { min_p: 0.05, ..SamplingParams::unfiltered() },
                ..Case::new(1.0, None, 3)
            },
        ),
    ];
    for (name, case) in cases {
        run(&mut pair, &case, &prompt).assert_unbiased(name);
    }
}

/// The head drafts from the second token on: before, it has seen no state of the target.
#[test]
fn drafts_of_the_shipped_head_keep_distribution() {
    let mut pair = Pair::load_with_head();
    let prompt = pair.prompt(PROMPTS[0]);
    let sampling = SamplingParams { temperature: 0.7, top_k: 8, ..SamplingParams::unfiltered() };
    let tested = run(&mut pair, &Case { sampling, ..Case::new(0.7, Some(2), 4) }, &prompt);
    tested.assert_unbiased("head");
    assert!(tested.drafted[&Method::Head] > 1000, "{tested:?}");
}

/// Halves the temperature of a head's distribution after it was drawn from.
#[test]
fn other_distribution_of_a_head_is_seen() {
    let mut pair = Pair::load_with_head();
    let prompt = pair.prompt(PROMPTS[0]);
    pair.drafter.spoil = Some(colder);
    let sampling = SamplingParams { top_k: 8, ..SamplingParams::unfiltered() };
    let tested = run(&mut pair, &Case { sampling, ..Case::new(1.0, Some(2), 4) }, &prompt);
    assert!(tested.fit.p_value < SIGNIFICANCE, "{tested:?}");
}

/// As in the method `auto`: the text and the draft model draft, and the controller chooses the proposer and the depth.
#[test]
fn several_proposers_keep_distribution() {
    let mut pair = Pair::load();
    let prompt = pair.prompt(REPEATED);
    let sampling = SamplingParams { temperature: 0.7, top_k: 8, ..SamplingParams::unfiltered() };
    let tested = run(&mut pair, &Case { sampling, text_drafts: true, ..Case::new(0.7, None, 4) }, &prompt);
    tested.assert_unbiased("auto");
    let drafted = |method| tested.drafted.get(&method).copied().unwrap_or(0);
    assert!(drafted(Method::Suffix) > 100 && drafted(Method::DraftModel) > 100, "{tested:?}");
}

#[test]
fn tokens_outside_of_the_shortlist_keep_distribution() {
    let mut pair = Pair::load();
    let case = Case {
        sampling: SamplingParams { top_k: 300, ..SamplingParams::unfiltered() },
        ..Case::new(1.0, Some(1), 2)
    };
    let sampler = Sampler::new(case.sampling.clone()).unwrap();
    let prompts = PROMPTS.map(|text| pair.prompt(text));
    let unlisted = prompts.each_ref().map(|prompt| pair.unlisted(&sampler, prompt));
    let at = (0..PROMPTS.len()).max_by(|&a, &b| unlisted[a].total_cmp(&unlisted[b])).unwrap();
    println!("outside of the shortlist: {unlisted:?}");
    assert!(unlisted[at] > 0.01, "{unlisted:?}: the shortlist leaves nothing out");
    run(&mut pair, &case, &prompts[at]).assert_unbiased("shortlist");
}

/// Reports q as if a draft had been drawn at half the temperature.
fn colder(tree: DraftTree) -> DraftTree {
    let mut changed = DraftTree::new();
    for node in 0..tree.len() {
        let DraftProb::Sampled(q) = tree.prob(node) else { panic!("a sampled draft") };
        let total: f32 = q.iter().map(|q| q * q).sum();
        let colder: Arc<[f32]> = q.iter().map(|q| q * q / total).collect();
        changed.push(tree.parents()[node], tree.tokens()[node], DraftProb::Sampled(colder));
    }
    changed
}

/// Without `is_certain`, the stage would cut sampled chains by confidence as it cuts certain ones.
#[test]
fn cutting_sampled_tail_by_its_value_is_seen() {
    let mut pair = Pair::load();
    let prompt = pair.prompt(PROMPTS[0]);
    pair.drafter.spoil = Some(|mut tree| {
        let kept = tree.confidence().iter().take_while(|c| c.is_none_or(|c| c > 0.15)).count();
        tree.truncate(kept);
        tree
    });
    let sampling = SamplingParams { top_k: 8, ..SamplingParams::unfiltered() };
    let tested = run(&mut pair, &Case { sampling, ..Case::new(1.0, Some(2), 3) }, &prompt);
    assert!(tested.fit.p_value < SIGNIFICANCE, "{tested:?}");
}

/// The verifier must get the distribution on the shortlist and after the filters.
#[test]
fn reporting_another_distribution_than_was_drawn_from_is_seen() {
    let mut pair = Pair::load();
    let prompt = pair.prompt(PROMPTS[0]);
    pair.drafter.spoil = Some(colder);
    let sampling = SamplingParams { top_k: 8, ..SamplingParams::unfiltered() };
    let tested = run(&mut pair, &Case { sampling, ..Case::new(1.0, Some(2), 3) }, &prompt);
    assert!(tested.fit.p_value < SIGNIFICANCE, "{tested:?}");
}
