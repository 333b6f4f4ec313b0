//! Failing drafts: a proposer that fails is dropped and reported once, and the text remains the
//! target's.

use std::ops::ControlFlow;

use hunch_core::depth::DepthController;
use hunch_core::draft::{DraftProb, DraftTree};
use hunch_core::error::{Error, Result};
use hunch_core::method::Method;
use hunch_core::model::{
    LanguageModel, LayerPlan, LogitRows, ModelInfo, ModelMemory, PassInput, PassOutput, Rows,
};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::head::Head;
use hunch_core::propose::layer_skip::{DraftLayers, LayerSkip};
use hunch_core::propose::suffix::Suffix;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::propose::{ProposeContext, Proposer, RoundOutcome, Stage};
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::table::TableModel;
use hunch_core::theory::goodness_of_fit;
use hunch_core::token::{TokenId, TokenOrigin};

use crate::lossless::{index, joint_distribution};
use crate::toy::{
    Generated, Stages, ToyHead, config, generate, generate_at, greedy_continuation, merged, only, table,
};

const VOCAB: usize = 16;
const TOKENS: usize = 40;
const PROMPT: [TokenId; 8] = [5, 6, 7, 5, 6, 7, 5, 6];

/// Effect of a failing pass.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// An error; the cache is unchanged.
    Error,
    /// An error, and the rows of the pass remain in the cache.
    LeavesRows,
    /// NaN logits.
    NotANumber,
}

/// Trigger of a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    /// After this many passes.
    Pass(usize),
    /// When this is the last token of the pass.
    Reads(TokenId),
}

/// Model with failing passes.
#[derive(Clone)]
struct Faulty {
    inner: TableModel,
    fault: Fault,
    when: When,
    /// Set if only passes over a subset of layers count.
    drafting_only: bool,
    passes: usize,
}

impl Faulty {
    fn new(inner: TableModel, fault: Fault, when: When) -> Self {
        Self { inner, fault, when, drafting_only: false, passes: 0 }
    }

    fn fails(&mut self, step: &PassInput<'_>) -> bool {
        if self.drafting_only && matches!(step.layers, LayerPlan::All) {
            return false;
        }
        self.passes += 1;
        match self.when {
            When::Pass(good) => self.passes > good,
            When::Reads(token) => step.tokens.last() == Some(&token),
        }
    }
}

impl LanguageModel for Faulty {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn cache_len(&self) -> usize {
        self.inner.cache_len()
    }
    fn fork(&self) -> Box<dyn LanguageModel> {
        Box::new(self.clone())
    }
    fn memory(&self) -> ModelMemory {
        self.inner.memory()
    }
    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        if !self.fails(&step) {
            return self.inner.forward(step);
        }
        if self.fault == Fault::Error {
            return Err(Error::model("the draft's cache needs 7 MiB"));
        }
        let output = self.inner.forward(step)?;
        if self.fault == Fault::LeavesRows {
            return Err(Error::Internal("the pass failed at its end".into()));
        }
        let nothing = vec![f32::NAN; output.logits.into_values().len()];
        Ok(PassOutput { logits: Rows::new(self.inner.info().n_vocab, nothing), ..output })
    }
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.inner.truncate(len)
    }
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        self.inner.keep_rows(base, rows)
    }
}

fn greedy() -> Sampler {
    Sampler::new(SamplingParams::greedy()).unwrap()
}

fn draft_model(model: Faulty, tree: Option<TreeShape>) -> DraftModel {
    let mut draft = DraftModel::new(Box::new(model)).unwrap();
    draft.set_tree(tree);
    draft
}

/// Methods that draft with a model of their own.
fn methods(model: &Faulty) -> Vec<(&'static str, Stages)> {
    let proposer = |stage: &Stage| -> Box<dyn Proposer> {
        match stage {
            Stage::BuiltIn(new) => new.create(),
            Stage::DraftTree => Box::new(draft_model(model.clone(), Some(TreeShape::Dynamic))),
            Stage::Head | Stage::HeadTree => Box::new(Head::new(Box::new(ToyHead::new(VOCAB)))),
            _ => Box::new(draft_model(model.clone(), None)),
        }
    };
    let own_model = Method::REGISTERED.into_iter().filter(|method| method.needs_draft());
    let stages = |method: Method| Stages::new(method.entry().stages.iter().map(proposer).collect());
    let registered = own_model.map(|method| (method.name(), stages(method)));
    let fixed = draft_model(model.clone(), Some(TreeShape::by_level([3, 2, 1])));
    let with_text = || -> Vec<Box<dyn Proposer>> {
        vec![Box::new(Suffix::default()), Box::new(draft_model(model.clone(), None))]
    };
    registered.chain([("tree 3x2x1", only(fixed)), ("merged with a text", merged(with_text()))]).collect()
}

/// Checks that the answer equals plain decoding and exactly one proposer was dropped.
fn check(run: &Generated, plain: &[TokenId], case: &str) {
    assert_eq!(run.ids(), plain, "{case}");
    let dropped: Vec<Method> = run.dropped.iter().map(|dropped| dropped.method).collect();
    assert_eq!(dropped.len(), 1, "{case}: dropped {dropped:?}");
}

#[test]
fn matches_plain_when_draft_model_fails_at_any_pass() {
    let mut target = table(VOCAB, 0.0);
    let plain = greedy_continuation(&target, &PROMPT, TOKENS);
    for fault in [Fault::Error, Fault::LeavesRows, Fault::NotANumber] {
        for passes in 0..12 {
            let model = Faulty::new(table(VOCAB, 0.4), fault, When::Pass(passes));
            for (name, mut stages) in methods(&model) {
                let alone = stages.proposers.len() == 1;
                let case = format!("{name}, {fault:?} after {passes} passes");
                let run = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(5, TOKENS, 2));
                check(&run, &plain, &case);
                let drafted_last = run.rounds.iter().rposition(|round| !round.drafted.is_empty());
                let after = &run.rounds[drafted_last.map_or(0, |round| round + 1)..];
                if alone {
                    assert!(after.len() > 1, "{case}: still drafts after the failure");
                    let origins = after.iter().flat_map(|round| &round.emitted).map(|token| token.origin);
                    assert!(origins.into_iter().all(|origin| origin == TokenOrigin::Plain), "{case}");
                }
                let mut depth = DepthController::default();
                let depth = Some(&mut depth);
                let (_, mut stages) = methods(&model).into_iter().find(|other| other.0 == name).unwrap();
                let run =
                    generate_at(depth, &mut target, &mut stages, &greedy(), &PROMPT, config(5, TOKENS, 2));
                assert_eq!(run.ids(), plain, "{case}, auto");
                assert!(run.dropped.len() <= 1, "{case}, auto: dropped {} proposers", run.dropped.len());
            }
        }
    }
}

/// A cascade keeps its lookup when its draft model fails.
#[test]
fn cascade_keeps_lookup_when_draft_model_fails() {
    let mut target = table(VOCAB, 0.0);
    let model = Faulty::new(table(VOCAB, 0.4), Fault::Error, When::Pass(0));
    let mut stages = Stages::new(vec![Box::new(Suffix::default()), Box::new(draft_model(model, None))]);
    let run = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(5, TOKENS, 2));
    assert_eq!(run.dropped[0].method, Method::DraftModel);
    assert!(run.stats.accepted > 0, "no lookup was accepted");
}

#[test]
fn matches_plain_when_self_speculation_fails() {
    let plain = greedy_continuation(&table(VOCAB, 0.0), &PROMPT, TOKENS);
    for fault in [Fault::Error, Fault::LeavesRows, Fault::NotANumber] {
        for passes in 0..12 {
            let mut target = Faulty::new(table(VOCAB, 0.0), fault, When::Pass(passes));
            target.drafting_only = true;
            for layers in [DraftLayers::Exit(2), DraftLayers::Skip(vec![1])] {
                target.passes = 0;
                let case = format!("{layers:?}, {fault:?} after {passes} passes");
                let mut stages = only(LayerSkip::new(layers, VOCAB));
                let run = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(5, TOKENS, 2));
                check(&run, &plain, &case);
            }
        }
    }
}

/// Contract violation by a proposer, in its third draft.
#[derive(Clone, Copy, Debug)]
enum Violation {
    LeavesARow,
    TakesRows,
    TooDeep,
    TooMany,
    UnknownToken,
    ImpossibleToken,
    ShortDistribution,
    SameSiblings,
    FailsInAccept,
}

struct Misbehaving(Violation, usize);

impl Proposer for Misbehaving {
    fn method(&self) -> Method {
        Method::Synthetic
    }
    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        self.1 += 1;
        if self.1 != 3 {
            return Ok(DraftTree::certain_chain(vec![1; cx.plan.max_draft]));
        }
        let drawn = |q: Vec<f32>, times: usize| {
            let (mut tree, q) = (DraftTree::new(), std::sync::Arc::<[f32]>::from(q));
            for _ in 0..times {
                tree.push(None, 1, DraftProb::Sampled(q.clone()));
            }
            tree
        };
        let mut certain = vec![0.0; VOCAB];
        certain[1] = 1.0;
        Ok(match self.0 {
            Violation::LeavesARow => {
                cx.target.forward(PassInput::chain(&[1], LogitRows::None))?;
                DraftTree::new()
            }
            Violation::TakesRows => {
                cx.target.truncate(3)?;
                DraftTree::new()
            }
            Violation::TooDeep => DraftTree::certain_chain(vec![1; cx.plan.max_draft + 1]),
            Violation::TooMany => {
                let mut tree = DraftTree::new();
                for token in 0..16 {
                    tree.push(None, token, DraftProb::Certain);
                }
                tree
            }
            Violation::UnknownToken => DraftTree::certain_chain([VOCAB as TokenId]),
            Violation::ImpossibleToken => drawn(vec![0.0; VOCAB], 1),
            Violation::ShortDistribution => drawn(vec![0.5; 2], 1),
            // Only the verifier detects this.
            Violation::SameSiblings => drawn(certain, 2),
            Violation::FailsInAccept => DraftTree::certain_chain([1]),
        })
    }
    fn observe(&mut self, _: &RoundOutcome<'_>) -> Result<()> {
        match self.0 {
            Violation::FailsInAccept if self.1 == 3 => Err(Error::Internal("accept failed".into())),
            _ => Ok(()),
        }
    }
}

#[test]
fn matches_plain_when_proposer_violates_contract() {
    let mut target = table(VOCAB, 0.0);
    let plain = greedy_continuation(&target, &PROMPT, TOKENS);
    for violation in [
        Violation::LeavesARow,
        Violation::TakesRows,
        Violation::TooDeep,
        Violation::TooMany,
        Violation::UnknownToken,
        Violation::ImpossibleToken,
        Violation::ShortDistribution,
        Violation::SameSiblings,
        Violation::FailsInAccept,
    ] {
        let mut stages = only(Misbehaving(violation, 0));
        let run = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(3, TOKENS, 0));
        check(&run, &plain, &format!("{violation:?}"));
    }
}

#[test]
fn matches_plain_when_script_has_unknown_token() {
    let mut target = table(VOCAB, 0.0);
    let plain = greedy_continuation(&target, &PROMPT, TOKENS);
    let script = [&plain[..6], &[TokenId::MAX]].concat();
    let mut stages = only(Synthetic::new(script, 1.0).unwrap());
    let run = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(3, TOKENS, 0));
    check(&run, &plain, "synthetic");
}

/// A failing target ends the answer, with or without a draft.
#[test]
fn target_failure_ends_answer() {
    let mut target = Faulty::new(table(VOCAB, 0.0), Fault::Error, When::Pass(5));
    let clock = crate::toy::Ticks::default();
    let sampler = greedy();
    let mut proposer = DraftModel::new(Box::new(table(VOCAB, 0.4))).unwrap();
    let mut session =
        hunch_core::session::Session::new(&mut target, &sampler, &clock, config(3, TOKENS, 0)).unwrap();
    session.add_proposer(&mut proposer);
    let _ = session.prefill(&PROMPT, 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let rounds: Vec<_> = session.by_ref().collect();
    assert!(matches!(rounds.last(), Some(Err(Error::Model(_)))));
    assert!(session.take_dropped().is_empty(), "the draft is not at fault");
    assert_eq!(session.cached().len(), session.committed().len() - 1);
}

/// The next answer drafts again, from an empty cache.
#[test]
fn drafts_again_in_next_answer() {
    let mut target = table(VOCAB, 0.0);
    let plain = greedy_continuation(&target, &PROMPT, TOKENS);
    // Its fourth pass fails and leaves rows that must not be mistaken for the prompt's.
    struct Once(Faulty);
    impl LanguageModel for Once {
        fn info(&self) -> &ModelInfo {
            self.0.info()
        }
        fn cache_len(&self) -> usize {
            self.0.cache_len()
        }
        fn fork(&self) -> Box<dyn LanguageModel> {
            self.0.fork()
        }
        fn memory(&self) -> ModelMemory {
            self.0.memory()
        }
        fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
            let done = self.0.forward(step);
            if self.0.passes > 3 {
                self.0.when = When::Pass(usize::MAX);
            }
            done
        }
        fn truncate(&mut self, len: usize) -> Result<()> {
            self.0.truncate(len)
        }
        fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
            self.0.keep_rows(base, rows)
        }
    }
    for tree in [None, Some(TreeShape::Dynamic)] {
        let once = Once(Faulty::new(table(VOCAB, 0.0), Fault::LeavesRows, When::Pass(3)));
        let mut draft = DraftModel::new(Box::new(once)).unwrap();
        draft.set_tree(tree);
        let mut stages = only(draft);
        let first = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(5, TOKENS, 2));
        check(&first, &plain, "the first answer");
        let second = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(5, TOKENS, 2));
        assert_eq!((second.ids(), second.dropped.len()), (plain.clone(), 0));
        assert!(second.stats.accepted > 20, "an identical model is always accepted");
    }
}

/// If a failure depends on the sampled tokens, the tokens sampled before it must stay in the draft.
/// Discarding them would resample unfavourable ones and bias the output.
#[test]
fn keeps_distribution_when_failure_depends_on_sampled_tokens() {
    const SMALL: usize = 5;
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let prompt = [0, 3, 1, 2, 0, 3, 1];
    let exact = joint_distribution(&sampler, SMALL, &prompt, 3);
    let mut target = table(SMALL, 0.0);
    for fault in [Fault::Error, Fault::NotANumber] {
        let draft = Faulty::new(table(SMALL, 0.4), fault, When::Reads(2));
        for (name, stages) in methods(&draft) {
            let mut counts = vec![0; exact.len()];
            let (mut failed, mut cut) = (0, 0);
            for seed in 0..6000 {
                let (_, mut stages) = methods(&draft).into_iter().find(|other| other.0 == name).unwrap();
                let run = generate(&mut target, &mut stages, &sampler, &prompt, config(4, 6, seed));
                counts[index(&run.ids()[..3], SMALL)] += 1;
                failed += run.dropped.len();
                cut += usize::from(run.rounds[0].drafted.len() < 4 && !run.dropped.is_empty());
            }
            let tried = failed > 300 && (cut > 100 || stages.proposers.len() > 1);
            assert!(tried, "{name}: {failed} failed, {cut} of them early");
            let fit = goodness_of_fit(&counts, &exact);
            assert!(fit.p_value > 1e-3, "{name}, {fault:?}: {fit:?}");
        }
    }
}
