//! Controls of the tests of losslessness: drafts that break one of the rules which carry the proof. The test that
//! passes for the real proposers must reject each of them.
//!
//! - No drawn token is removed because of its value.
//! - Siblings are tested in the order they were drawn.
//! - The verifier gets the distribution that a token was drawn from.
//! - Merged drafts keep a token that another one has drawn too.

use hunch_core::draft::{DraftProb, DraftTree};
use hunch_core::error::Result;
use hunch_core::method::Method;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::{ProposeContext, Proposer, RoundOutcome};
use hunch_core::sample::{Sampler, SamplingParams, draw, unit};
use hunch_core::table::TableModel;
use hunch_core::theory::{ChiSquare, TestPower, goodness_of_fit};
use hunch_core::token::TokenId;

use crate::lossless::{index, joint_distribution};
use crate::toy::{Branching, Stages, config, generate, only, table};

const VOCAB: usize = 5;
const PROMPT: [TokenId; 7] = [0, 3, 1, 2, 0, 3, 1];
const RUNS: u64 = 6000;
/// p-value below which the output counts as biased.
const SIGNIFICANCE: f64 = 1e-3;

/// Proposer whose drafts are spoiled before they are verified.
struct Spoiled<P> {
    inner: P,
    spoil: fn(DraftTree) -> DraftTree,
}

impl<P: Proposer> Proposer for Spoiled<P> {
    fn method(&self) -> Method {
        Method::Synthetic
    }
    fn limits_nodes(&self) -> bool {
        self.inner.limits_nodes()
    }
    fn begin(&mut self, prompt: &[TokenId]) {
        self.inner.begin(prompt);
    }
    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        self.inner.propose(cx).map(self.spoil)
    }
    fn observe(&mut self, outcome: &RoundOutcome<'_>) -> Result<()> {
        // Nodes are not those that the inner proposer drafted.
        self.inner.observe(&RoundOutcome { accepted: &[], kept: &[], ..*outcome })
    }
}

/// Tests the joint distribution of the first three tokens.
fn fit(stages: &mut Stages) -> ChiSquare {
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let exact = joint_distribution(&sampler, VOCAB, &PROMPT, 3);
    let mut target = table(VOCAB, 0.0);
    let mut counts = vec![0; exact.len()];
    for seed in 0..RUNS {
        let run = generate(&mut target, stages, &sampler, &PROMPT, config(8, 6, seed));
        counts[index(&run.ids()[..3], VOCAB)] += 1;
    }
    goodness_of_fit(&counts, &exact)
}

/// Checks that the test passes for the proposer and rejects its spoiled version.
fn assert_caught<P: Proposer + 'static>(new: fn() -> P, spoil: fn(DraftTree) -> DraftTree) {
    let honest = fit(&mut only(Spoiled { inner: new(), spoil: |tree| tree }));
    assert!(honest.p_value > SIGNIFICANCE, "{honest:?}");
    let spoiled = fit(&mut only(Spoiled { inner: new(), spoil }));
    assert!(spoiled.p_value < SIGNIFICANCE, "{spoiled:?}");
}

fn draft_model() -> DraftModel {
    DraftModel::new(Box::new(table(VOCAB, 0.8))).unwrap()
}

fn branching() -> Branching {
    Branching { model: table(VOCAB, 0.8), width: 2 }
}

/// Without `is_certain`, the stage would cut sampled chains by confidence as it cuts certain ones.
#[test]
fn cutting_sampled_tail_by_its_value_is_caught() {
    assert_caught(draft_model, |mut tree| {
        let kept = tree.confidence().iter().take_while(|c| c.is_none_or(|c| c > 0.3)).count();
        tree.truncate(kept);
        tree
    });
}

#[test]
fn testing_siblings_by_value_is_caught() {
    assert_caught(branching, |tree| {
        let mut order: Vec<usize> = (0..tree.len()).collect();
        // The less likely sibling comes first. Parents stay before their children.
        order.sort_by(|&a, &b| {
            let q = |node: usize| tree.confidence()[node].unwrap_or(0.0);
            tree.depth(a).cmp(&tree.depth(b)).then(q(a).total_cmp(&q(b)))
        });
        let mut sorted = DraftTree::new();
        let mut place = vec![0; tree.len()];
        for node in order {
            let parent = tree.parents()[node].map(|parent| place[parent]);
            place[node] = sorted.push(parent, tree.tokens()[node], tree.prob(node).clone());
        }
        sorted
    });
}

#[test]
fn reporting_another_distribution_than_was_drawn_from_is_caught() {
    assert_caught(draft_model, |tree| {
        let mut changed = DraftTree::new();
        for node in 0..tree.len() {
            let prob = match tree.prob(node) {
                DraftProb::Sampled(q) => {
                    let flat: Vec<f32> = q.iter().map(|q| 0.7 * q + 0.3 / VOCAB as f32).collect();
                    DraftProb::Sampled(flat.into())
                }
                other => other.clone(),
            };
            changed.push(tree.parents()[node], tree.tokens()[node], prob);
        }
        changed
    });
}

/// Proposer that draws a token after the text from each of two models.
struct TwoDraws([TableModel; 2]);

impl Proposer for TwoDraws {
    fn method(&self) -> Method {
        Method::Synthetic
    }
    fn limits_nodes(&self) -> bool {
        true
    }
    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let mut tree = DraftTree::new();
        for model in &self.0[..cx.plan.max_draft.min(2)] {
            let q = cx.sampler.distribution(&model.logits_after(cx.committed), cx.committed)?;
            let token = draw(&q, unit(cx.rng));
            tree.push(None, token, DraftProb::Sampled(q.into()));
        }
        Ok(tree)
    }
}

#[test]
fn leaving_out_a_token_that_was_drawn_twice_is_caught() {
    let draws = || TwoDraws([table(VOCAB, 1.0), table(VOCAB, 1.0)]);
    assert_caught(draws, |mut tree| {
        if let [first, second] = *tree.tokens()
            && first == second
        {
            tree.truncate(1);
        }
        tree
    });
}

/// The sample size of these tests, and of those of every proposer, is enough for a bias of 7%.
#[test]
fn a_bias_of_seven_percent_is_seen() {
    let degrees = VOCAB.pow(3) - 1;
    let test = TestPower { degrees, significance: SIGNIFICANCE, power: 0.99 };
    let seen = test.variation_seen(RUNS);
    assert!(seen < 0.07, "{seen}");
}
