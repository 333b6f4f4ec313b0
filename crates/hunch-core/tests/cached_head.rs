//! Heads with a cache. Rows of drafted tokens are rolled back, and accepted ones are read again with the target's
//! states. Rows of an earlier prompt are used again. Logits have to equal those of a head that reads the whole text.

use std::ops::ControlFlow;

use hunch_core::depth::DepthController;
use hunch_core::method::Method;
use hunch_core::model::LanguageModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::head::Head;
use hunch_core::propose::ngram::Ngram;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::Session;
use hunch_core::table::TableModel;
use hunch_core::token::{TokenId, shared_len};

use crate::toy::{
    LogitLog, Stages, Ticks, ToyBlock, ToyLayer, config, generate, greedy_continuation, only, table,
};

const VOCAB: usize = 16;

fn greedy() -> Sampler {
    Sampler::new(SamplingParams::greedy()).unwrap()
}

/// Kind and drafts of a head.
#[derive(Clone, Debug)]
struct Of {
    /// It drafts blocks instead of reading its drafts.
    block: bool,
    /// Shape of its trees. `None` for chains.
    tree: Option<TreeShape>,
}

impl Of {
    /// Heads whose drafts do not depend on earlier ones.
    fn all() -> impl Iterator<Item = Self> {
        let shapes = [None, Some(TreeShape::by_level([2, 1]))];
        [false, true].into_iter().flat_map(move |block| shapes.clone().map(|tree| Self { block, tree }))
    }

    /// Creates a head, with the logits that it will have returned.
    fn head(&self) -> (Head, LogitLog) {
        let (mut head, log) = if self.block {
            let block = ToyBlock::new(VOCAB, true);
            let log = block.log();
            (Head::new(Box::new(block)), log)
        } else {
            let layer = ToyLayer::new(VOCAB);
            let log = layer.log.clone();
            (Head::new(Box::new(layer)), log)
        };
        head.set_tree(self.tree.clone());
        (head, log)
    }
}

/// Returns the logits of the first draft of a head that reads all of `committed`.
fn from_scratch(committed: &[TokenId], tokens_left: usize, of: &Of) -> Vec<Vec<f32>> {
    let (head, log) = of.head();
    let mut target = table(VOCAB, 0.0);
    let (clock, sampler, mut stages) = (Ticks::default(), greedy(), only(head));
    let mut session = Session::new(&mut target, &sampler, &clock, config(4, tokens_left, 0)).unwrap();
    session.add_proposer(stages.proposers[0].as_mut());
    let _ = session.prefill(committed, 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    session.round().unwrap();
    log.lock().unwrap().clone()
}

/// Runs a session whose cache holds `reuse` tokens. Checks every draft of the head, which is the last stage. Returns
/// the text and the rows that were prefilled.
fn check_drafts(
    target: &mut TableModel,
    stages: &mut Stages,
    (log, of): (&LogitLog, &Of),
    prompt: &[TokenId],
    reuse: usize,
    max_tokens: usize,
) -> (Vec<TokenId>, usize) {
    target.truncate(reuse).unwrap();
    let (clock, sampler) = (Ticks::default(), greedy());
    let mut session = Session::new(target, &sampler, &clock, config(4, max_tokens, 0)).unwrap();
    stages.add_to(&mut session);
    let mut prefilled = 0;
    let mut progress = |_, total| {
        prefilled = total;
        ControlFlow::Continue(())
    };
    let _ = session.prefill(prompt, reuse, &mut progress).unwrap();
    let mut drafts = 0;
    loop {
        let before = session.committed().to_vec();
        log.lock().unwrap().clear();
        let Some(round) = session.next() else { break };
        round.unwrap();
        let logits = log.lock().unwrap().clone();
        if !logits.is_empty() {
            drafts += 1;
            let expected = from_scratch(&before, max_tokens + prompt.len() - before.len(), of);
            assert_eq!(logits, expected, "{of:?}, after {before:?}");
        }
    }
    assert!(drafts > 2, "the head drafted {drafts} times");
    (session.committed().to_vec(), prefilled)
}

#[test]
fn accepted_rows_are_read_again_and_rejected_ones_dropped() {
    let prompt = [5, 6, 7, 5, 6, 7, 5, 6];
    for of in Of::all() {
        let (alone, log) = of.head();
        let mut target = table(VOCAB, 0.0);
        let (text, _) = check_drafts(&mut target, &mut only(alone), (&log, &of), &prompt, 0, 60);
        assert_eq!(text[prompt.len()..], greedy_continuation(&target, &prompt, 60));
        // Another proposer drafts in between, and the head reads what was accepted.
        let (second, log) = of.head();
        let mut stages = Stages::new(vec![Box::new(Ngram::default()), Box::new(second)]);
        check_drafts(&mut target, &mut stages, (&log, &of), &prompt, 0, 60);
    }
}

#[test]
fn rows_of_the_last_prompt_are_used_again() {
    for of in [Of { block: false, tree: None }, Of { block: true, tree: None }] {
        let prompt: Vec<TokenId> = (0..70).map(|i| i * 7 % 16).collect();
        let (own, log) = of.head();
        let (mut target, mut stages, log) = (table(VOCAB, 0.0), only(own), (&log, &of));
        let (first, prefilled) = check_drafts(&mut target, &mut stages, log, &prompt, 0, 20);
        assert_eq!(prefilled, 69);
        // The conversation continues: only new rows run.
        let longer = [&first[..], &[1, 2, 3]].concat();
        let (second, prefilled) = check_drafts(&mut target, &mut stages, log, &longer, first.len() - 1, 20);
        assert_eq!(prefilled, longer.len() - first.len());
        // An edited, a repeated and a shorter prompt: one more row of the target runs, for its states.
        let mut edited = second.clone();
        edited[50] = (edited[50] + 1) % 16;
        let mut last = second;
        for prompt in [edited, prompt.clone(), prompt[..40].to_vec()] {
            let reuse = shared_len(&last, &prompt).min(prompt.len() - 1);
            let (text, prefilled) = check_drafts(&mut target, &mut stages, log, &prompt, reuse, 20);
            assert_eq!(prefilled, prompt.len() - reuse, "{} tokens", prompt.len());
            last = text;
        }
    }
}

/// The target may know more of the prompt than the head, for example after an answer without it.
#[test]
fn head_without_rows_makes_the_target_read_the_prompt_again() {
    let prompt: Vec<TokenId> = (0..50).map(|i| i * 5 % 16).collect();
    let mut target = table(VOCAB, 0.0);
    let plain = generate(&mut target, &mut Stages::default(), &greedy(), &prompt, config(0, 10, 0)).ids();
    let longer = [&prompt[..], &plain].concat();
    let of = Of { block: false, tree: None };
    let (own, log) = of.head();
    let (_, prefilled) =
        check_drafts(&mut target, &mut only(own), (&log, &of), &longer, longer.len() - 1, 20);
    assert_eq!(prefilled, longer.len() - 1);
}

/// A parked head reads its rows in batches, and drafts from all of them later.
#[test]
fn rounds_without_a_draft_are_read_later() {
    let mut target = table(VOCAB, 0.0);
    let (clock, sampler) = (Ticks::default(), greedy());
    let of = Of { block: false, tree: None };
    let (mut own, log) = of.head();
    let mut session = Session::new(&mut target, &sampler, &clock, config(4, 200, 0)).unwrap();
    session.add_proposer(&mut own);
    let _ = session.prefill(&[1, 2, 3], 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let text = greedy_continuation(&table(VOCAB, 0.0), &[1, 2, 3], 100);
    for token in &text {
        session.teacher_force(&[*token]).unwrap();
    }
    let committed = session.committed().to_vec();
    log.lock().unwrap().clear();
    session.round().unwrap();
    let drafted = log.lock().unwrap().clone();
    assert_eq!(drafted, from_scratch(&committed, 100, &of));
}

#[test]
fn failing_head_is_dropped_and_the_answer_stays() {
    let prompt = [1, 2, 3, 4, 5];
    let mut target = table(VOCAB, 0.0);
    let plain = greedy_continuation(&target, &prompt, 60);
    for calls in 0..14 {
        let layer = ToyLayer::failing_after(VOCAB, calls);
        let mut stages = only(Head::new(Box::new(layer)));
        let run = generate(&mut target, &mut stages, &greedy(), &prompt, config(4, 60, 0));
        assert_eq!(run.ids(), plain, "{calls} calls");
        assert_eq!(run.dropped.iter().map(|one| one.method).collect::<Vec<_>>(), [Method::Head], "{calls}");
        let mut depth = DepthController::default();
        let mut stages = only(Head::new(Box::new(ToyLayer::failing_after(VOCAB, calls))));
        let run = crate::toy::generate_at(
            Some(&mut depth),
            &mut target,
            &mut stages,
            &greedy(),
            &prompt,
            config(4, 60, 0),
        );
        assert_eq!(run.ids(), plain, "{calls} calls, auto");
    }
}
