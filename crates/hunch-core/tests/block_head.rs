//! Heads that draft a block in one pass: the number of their passes, their trees by depth, and the depth controller's
//! view of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hunch_core::depth::DepthController;
use hunch_core::error::Result;
use hunch_core::model::{LanguageModel, ModelInfo, ModelMemory, PassInput, PassOutput};
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::head::{DraftHead, Head};
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::{Round, Session};
use hunch_core::stats::Stopwatch;
use hunch_core::table::TableModel;
use hunch_core::token::TokenId;

use crate::toy::{Stages, ToyBlock, config, generate, greedy_continuation, head_tree, only, table};

const VOCAB: usize = 16;
const PROMPT: [TokenId; 3] = [1, 2, 3];

fn greedy() -> Sampler {
    Sampler::new(SamplingParams::greedy()).unwrap()
}

#[test]
fn a_block_counts_as_one_pass_with_a_row_for_each_token() {
    let chain = |in_one_pass| only(Head::new(Box::new(ToyBlock::new(VOCAB, in_one_pass))));
    let tree = |in_one_pass| -> Stages {
        only(head_tree(ToyBlock::new(VOCAB, in_one_pass), TreeShape::by_level([2, 2])))
    };
    let passes = |mut stages: Stages, max_draft| {
        let mut target = table(VOCAB, 0.0);
        let run = generate(&mut target, &mut stages, &greedy(), &PROMPT, config(max_draft, 30, 0));
        let drafting = run.rounds.iter().filter(|round| !round.drafted.is_empty()).count() as u32;
        (run.stats.draft_passes, drafting, run.rounds)
    };
    // A draft ends with the answer, so the last ones may be shorter.
    let (own, rounds, _) = passes(chain(true), 3);
    assert_eq!(own.iter().map(|(_, count)| count).sum::<u32>(), rounds, "{own:?}");
    assert!(own.iter().all(|(rows, _)| *rows <= 3) && own.last().unwrap().1 > rounds / 2, "{own:?}");
    let (own, rounds, _) = passes(tree(true), 6);
    assert_eq!(own.iter().map(|(_, count)| count).sum::<u32>(), rounds, "{own:?}");
    assert!(own.iter().all(|(rows, _)| *rows <= 2) && own.last().unwrap().1 > rounds / 2, "{own:?}");
    // Trees whose branches follow their own tokens.
    let read = only(head_tree(ToyBlock::reading(VOCAB), TreeShape::by_level([2, 2])));
    let (own, rounds, _) = passes(read, 6);
    assert_eq!(own.iter().map(|(_, count)| count).sum::<u32>(), rounds, "{own:?}");
    assert!(own.iter().all(|(rows, _)| *rows <= 2) && own.last().unwrap().1 > rounds / 2, "{own:?}");
    // The same block in a pass for each token.
    let (own, rounds, of_chain) = passes(chain(false), 3);
    let drafted = of_chain.iter().map(|round| round.drafted.len()).sum::<usize>();
    assert_eq!(own.iter().map(|(_, count)| count).sum::<u32>() as usize, drafted);
    assert!(drafted > 2 * rounds as usize);
}

/// A tree is a product of the places: nodes of one depth have the same children, and each place is scored once.
#[test]
fn trees_of_a_block_have_the_same_children_at_each_depth() {
    let block = ToyBlock::new(VOCAB, true);
    let places = block.places.clone();
    let mut stages = only(head_tree(block, TreeShape::by_level([2, 2, 2])));
    let mut target = table(VOCAB, 0.0);
    let (clock, sampler) = (PassClock::default(), greedy());
    let mut session = Session::new(&mut target, &sampler, &clock, config(14, 40, 0)).unwrap();
    session.add_proposer(stages.proposers[0].as_mut());
    let _ = session.prefill(&PROMPT, 0, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let mut whole = 0;
    for round in session {
        let Round { drafted, .. } = round.unwrap();
        let scored = std::mem::take(&mut *places.lock().unwrap());
        assert_eq!(scored, (0..scored.len()).collect::<Vec<_>>(), "each place once, in order");
        let children = |parent: Option<usize>| -> Vec<TokenId> {
            drafted.iter().filter(|node| node.parent == parent).map(|node| node.id).collect()
        };
        let mut level = vec![None];
        while let Some(first) = level.first().map(|parent| children(*parent)) {
            assert!(level.iter().all(|parent| children(*parent) == first), "{drafted:?}");
            let of = |parent: &Option<usize>| {
                (0..drafted.len()).filter(|&node| drafted[node].parent == *parent).collect::<Vec<_>>()
            };
            level = level.iter().flat_map(of).map(Some).collect();
        }
        whole += usize::from(drafted.len() == 14 && scored.len() == 3);
    }
    assert!(whole > 2, "{whole} trees of 14 nodes");
}

/// Clock that the passes of models advance.
#[derive(Default)]
struct PassClock(AtomicU64);

impl Stopwatch for PassClock {
    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// Target whose passes take 10 ms, and 1 ms more for each further row.
struct TimedTarget {
    inner: TableModel,
    clock: Arc<PassClock>,
}

impl LanguageModel for TimedTarget {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
    fn cache_len(&self) -> usize {
        self.inner.cache_len()
    }
    fn fork(&self) -> Box<dyn LanguageModel> {
        Box::new(Self { inner: self.inner.clone(), clock: self.clock.clone() })
    }
    fn memory(&self) -> ModelMemory {
        self.inner.memory()
    }
    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        self.clock.0.fetch_add(9_000 + 1_000 * step.tokens.len() as u64, Ordering::Relaxed);
        self.inner.forward(step)
    }
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.inner.truncate(len)
    }
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        self.inner.keep_rows(base, rows)
    }
}

/// Head that knows the text and is wrong in three of ten tokens. A pass takes 5 ms.
struct Knowing {
    text: Arc<Vec<TokenId>>,
    clock: Arc<PassClock>,
    in_one_pass: bool,
    rows: usize,
    place: usize,
}

impl Knowing {
    fn score(&mut self) -> Vec<f32> {
        if self.place == 0 || !self.in_one_pass {
            self.clock.0.fetch_add(5_000, Ordering::Relaxed);
        }
        // Row i belongs to token i and predicts the one after the next.
        let at = self.rows + 1 + self.place;
        let wrong = TokenId::from((at * 7919) % 10 < 3);
        let token = (self.text.get(at).copied().unwrap_or_default() + wrong) % VOCAB as TokenId;
        let mut logits = vec![0.0; VOCAB];
        logits[token as usize] = 3.5;
        logits
    }
}

impl DraftHead for Knowing {
    fn taps(&self) -> &[usize] {
        &[0]
    }
    fn max_depth(&self) -> usize {
        8
    }
    fn has_cache(&self) -> bool {
        true
    }
    fn reads_drafts(&self) -> bool {
        false
    }
    fn drafts_in_one_pass(&self) -> bool {
        self.in_one_pass
    }
    fn logits(&mut self, _: &[Vec<f32>], tokens: &[TokenId]) -> Result<Vec<f32>> {
        self.rows += tokens.len();
        self.place = 0;
        Ok(self.score())
    }
    fn next_logits(&mut self, _: TokenId) -> Result<Vec<f32>> {
        self.place += 1;
        Ok(self.score())
    }
    fn read(&mut self, _: &[Vec<f32>], tokens: &[TokenId]) -> Result<()> {
        self.rows += tokens.len();
        Ok(())
    }
    fn truncate(&mut self, len: usize) {
        self.rows = self.rows.min(len);
    }
    fn fork(&self) -> Box<dyn DraftHead> {
        let Self { text, clock, in_one_pass, .. } = self;
        Box::new(Self {
            text: text.clone(),
            clock: clock.clone(),
            in_one_pass: *in_one_pass,
            rows: 0,
            place: 0,
        })
    }
    fn read_by_a_pass(&self) -> usize {
        64
    }
}

/// A pass of the head takes half a plain pass. A controller gives it long drafts if one pass drafts all tokens, and short
/// ones if each token takes a pass.
#[test]
fn auto_counts_a_block_once() {
    let text = [&PROMPT[..], &greedy_continuation(&table(VOCAB, 0.0), &PROMPT, 400)].concat();
    let text = Arc::new(text);
    let drafted = |in_one_pass, tree: bool| {
        let clock = Arc::new(PassClock::default());
        let mut target = TimedTarget { inner: table(VOCAB, 0.0), clock: clock.clone() };
        let head = Knowing { text: text.clone(), clock: clock.clone(), in_one_pass, rows: 0, place: 0 };
        let mut head = Head::new(Box::new(head));
        head.set_tree(tree.then_some(TreeShape::Dynamic));
        let (sampler, mut depth) = (greedy(), DepthController::default());
        depth.expect_cost(0, 0.5);
        let mut session = Session::new(&mut target, &sampler, clock.as_ref(), config(8, 380, 0)).unwrap();
        session.add_proposer(&mut head);
        session.set_depth(&mut depth);
        let _ = session.prefill(&PROMPT, 0, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        let (mut deepest, mut rounds) = (0, 0);
        for round in session.by_ref() {
            let Round { drafted, .. } = round.unwrap();
            rounds += 1;
            let depth = |mut node: usize| {
                1 + std::iter::from_fn(|| drafted[node].parent.inspect(|&parent| node = parent)).count()
            };
            if rounds > 40 {
                deepest = deepest.max((0..drafted.len()).map(depth).max().unwrap_or(0));
            }
        }
        assert_eq!(session.committed(), &text[..session.committed().len()]);
        deepest
    };
    for tree in [false, true] {
        let (once, each) = (drafted(true, tree), drafted(false, tree));
        assert!(once >= 5 && each <= 2, "tree: {tree}, {once} tokens in one pass, {each} in one each");
    }
}
