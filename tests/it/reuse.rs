//! Cache reuse: a generation does not run tokens that an earlier one left in the cache.

use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch::engine::WallClock;
use hunch::event::{GenerationEvent, StopReason};
use hunch::generate::{GenerationContext, GenerationPlan, LoadPlan, Models, generate};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::Needs;
use hunch_core::propose::retrieval::TextIndex;
use hunch_core::sample::SamplingParams;
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenId;
use hunch_error::ErrorCode;

use crate::support::cpu;
use hunch_testing::tiny::{CONVOLUTIONS, DELTA_NETS, Tiny, further};

/// Returns the answer and the number of prompt tokens that prefill ran.
fn answer(models: &mut Models, prompt: &[TokenId], method: Method) -> (Vec<TokenId>, u32) {
    let (ids, prefilled, _) = answer_with_stats(models, prompt, method);
    (ids, prefilled)
}

/// As [`answer`], with the figures.
fn answer_with_stats(
    models: &mut Models,
    prompt: &[TokenId],
    method: Method,
) -> (Vec<TokenId>, u32, GenerationStats) {
    let plan = GenerationPlan {
        method,
        max_draft: MaxDraft::Fixed(5),
        max_tokens: 24,
        sampling: SamplingParams::greedy(),
        ..GenerationPlan::default()
    };
    let (mut ids, mut prefilled) = (Vec::new(), 0);
    let mut sink = |event: GenerationEvent| match event {
        GenerationEvent::Prefill { total, .. } => prefilled = total,
        GenerationEvent::Round(round) => ids.extend(round.tokens.iter().map(|token| token.id)),
        _ => {}
    };
    let clock = WallClock::start();
    let context = GenerationContext { strict_drafts: false, ..GenerationContext::measured(&clock) };
    let finished = generate(models, prompt, &plan, &context, &mut sink).unwrap();
    ids.extend(finished.held.iter().map(|token| token.id));
    (ids, prefilled, finished.stats)
}

#[test]
fn second_turn_prefills_new_tokens_only() {
    second_turn_of(Tiny::default(), Tiny { layers: 1, ..Tiny::default() }, 70);
}

/// The state of the first edited token is not held, so the models run some of the tokens before it again.
#[test]
fn second_turn_of_layers_with_a_state_prefills_new_tokens_only() {
    for of in [CONVOLUTIONS, DELTA_NETS] {
        let target = Tiny { dtype: GgmlDType::Q8_0, ..further(of) };
        second_turn_of(target, Tiny { layers: 1, ..target }, 140);
    }
}

fn second_turn_of(target: Tiny, draft: Tiny, prompt: TokenId) {
    let folder = tempfile::tempdir().unwrap();
    let (target, draft) = (target.write(folder.path(), "target"), draft.write(folder.path(), "draft"));
    let compute = cpu();
    let mut models = Models::load(&target, Some(&draft), &compute).unwrap();
    let first: Vec<TokenId> = (0..prompt).map(|i| 40 + i * i % 60).collect();
    for method in Method::usable(&[Needs::DraftModel]) {
        models.forget().unwrap();
        let (reply, read) = answer(&mut models, &first, method);
        assert_eq!(read as usize, first.len() - 1, "{method}: the first turn prefills all but the root");
        assert!(!reply.is_empty());
        let question: Vec<TokenId> = (0..9).map(|i| 100 + i).collect();
        let second = [&first[..], &reply, &question].concat();
        let (again, read) = answer(&mut models, &second, method);
        // The last token of the answer has no cache row yet, and the last of the prompt is the root.
        assert_eq!(read as usize, question.len(), "{method}: the second turn");
        // After an edit, everything behind the common prefix is new.
        let mut edited = second.clone();
        edited[30] += 1;
        let (_, read) = answer(&mut models, &edited, method);
        assert_eq!(read as usize, edited.len() - 1 - 30, "{method}: after an edit");
        // The reused cache must give the same answer as an empty one.
        models.forget().unwrap();
        assert_eq!(answer(&mut models, &second, method).0, again, "{method}");
    }
}

#[test]
fn texts_draft_the_same_answer_in_every_fork_until_they_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let target = Tiny::default().write(folder.path(), "target");
    let mut models = Models::load(&target, None, &cpu()).unwrap();
    let prompt: Vec<TokenId> = (40..60).collect();
    let (plain, _) = answer(&mut models, &prompt, Method::Plain);
    assert!(!models.usable_methods().contains(&Method::Retrieval));
    models.set_texts(Some(Arc::new(TextIndex::new([[&prompt[..], &plain].concat()]))));
    assert!(models.usable_methods().contains(&Method::Retrieval));
    let mut fork = models.fork().unwrap();
    for models in [&mut models, &mut fork] {
        let (ids, _, stats) = answer_with_stats(models, &prompt, Method::Retrieval);
        assert_eq!(ids, plain);
        assert!(stats.accepted > plain.len() as u32 / 2, "{} of {} tokens", stats.accepted, plain.len());
    }
    models.set_texts(None);
    assert!(!models.usable_methods().contains(&Method::Retrieval));
}

#[test]
fn predicted_cache_counts_the_draft_and_the_low_bit_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (target, draft) = (Tiny::default(), Tiny { layers: 1, ..Tiny::default() });
    let (target, draft) = (target.write(folder.path(), "target"), draft.write(folder.path(), "draft"));
    let compute = cpu();
    let alone = Models::load(&target, None, &compute).unwrap().predicted_cache(1000);
    let mut models = Models::load(&target, Some(&draft), &compute).unwrap();
    let with_draft = models.predicted_cache(1000);
    assert!(alone < with_draft && with_draft < 2 * alone, "{alone} {with_draft}");
    models.load_low_bit(&target, &compute).unwrap();
    assert_eq!(models.predicted_cache(1000), with_draft + alone);
    assert_eq!(models.predicted_cache(500), models.predicted_cache(1000) / 2);
    // Caches are allocated in steps, so they have at least the predicted bytes.
    let prompt: Vec<TokenId> = (40..100).collect();
    let mut models = Models::load(&target, None, &compute).unwrap();
    answer(&mut models, &prompt, Method::Plain);
    assert!(models.caches().bytes >= models.predicted_cache(prompt.len()));
}

/// A failing draft loses no token held back for a stop string, and the answer continues without it.
#[test]
fn completes_answer_when_draft_fails() {
    let folder = tempfile::tempdir().unwrap();
    let target = Tiny::default().write(folder.path(), "target");
    let compute = cpu();
    let mut models = Models::load(&target, None, &compute).unwrap();
    let prompt: Vec<TokenId> = (40..60).collect();
    let letter = TokenId::from(b'a');
    // The target's vocabulary does not have this token.
    let script = [&[letter; 6][..], &[TokenId::MAX]].concat();
    models.set_synthetic_script(script, 1.0).unwrap();
    let plan = GenerationPlan {
        method: Method::Synthetic,
        max_draft: MaxDraft::Fixed(3),
        max_tokens: 30,
        sampling: SamplingParams { logit_bias: [(letter, 100.0)].into(), ..SamplingParams::greedy() },
        stop: vec!["a".repeat(20)],
        ..GenerationPlan::default()
    };
    let clock = WallClock::start();
    let context = GenerationContext { strict_drafts: false, ..GenerationContext::measured(&clock) };
    let (mut emitted, mut dropped) = (Vec::new(), Vec::new());
    let mut sink = |event: GenerationEvent| match event {
        GenerationEvent::DraftDropped { method, error } => dropped.push((method, error.code)),
        event => emitted.extend(event.tokens().iter().map(|token| token.id)),
    };
    let finished = generate(&mut models, &prompt, &plan, &context, &mut sink).unwrap();
    assert_eq!((finished.stop, finished.stats.generated_tokens), (StopReason::StopString, 20));
    assert_eq!(dropped, [(Method::Synthetic, ErrorCode::Internal)]);
    // With strict drafts the failure is an error.
    models.set_synthetic_script(vec![TokenId::MAX], 1.0).unwrap();
    let strict = GenerationContext { strict_drafts: true, ..context };
    assert!(generate(&mut models, &prompt, &plan, &strict, &mut |_| {}).is_err());
}

/// Tokens held back for a stop string are emitted before the error, and their rows are reused.
#[test]
fn failed_answer_emits_held_back_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let target = Tiny::default().write(folder.path(), "target");
    let compute = cpu();
    let mut models = Models::load(&target, None, &compute).unwrap();
    let prompt: Vec<TokenId> = (40..60).collect();
    let letter = TokenId::from(b'a');
    models.set_synthetic_script([&[letter; 6][..], &[TokenId::MAX]].concat(), 1.0).unwrap();
    let plan = GenerationPlan {
        method: Method::Synthetic,
        max_draft: MaxDraft::Fixed(3),
        sampling: SamplingParams { logit_bias: [(letter, 100.0)].into(), ..SamplingParams::greedy() },
        stop: vec!["a".repeat(20)],
        ..GenerationPlan::default()
    };
    let mut emitted = Vec::new();
    let mut sink = |event: GenerationEvent| emitted.extend(event.tokens().iter().map(|token| token.id));
    let clock = WallClock::start();
    let context = GenerationContext::measured(&clock);
    generate(&mut models, &prompt, &plan, &context, &mut sink).unwrap_err();
    assert!(!emitted.is_empty() && emitted.iter().all(|&token| token == letter));
    let second = [&prompt[..], &emitted, &[70]].concat();
    assert!(answer(&mut models, &second, Method::Plain).1 <= 1);
}

/// Loads a target with a draft model of the same architecture.
fn pair(folder: &std::path::Path, draft: Tiny) -> Models {
    let target = Tiny::default().write(folder, "target");
    let draft = draft.write(folder, "draft");
    Models::load(&target, Some(&draft), &cpu()).unwrap()
}

#[test]
fn acceptance_of_a_copy_is_one_and_of_other_weights_low() {
    let folder = tempfile::tempdir().unwrap();
    let copy = pair(folder.path(), Tiny::default()).measured_acceptance().unwrap();
    assert!((copy.acceptance - 1.0).abs() < 1e-3, "{copy:?}");
    let other = pair(folder.path(), Tiny { seed: 9, ..Tiny::default() }).measured_acceptance().unwrap();
    assert!(other.acceptance < 0.8, "{other:?}");
    // The certainty is the target's alone, and more than that of a uniform distribution.
    assert!(copy.certainty == other.certainty && copy.certainty > 1.0 / 128.0, "{copy:?} {other:?}");
}

#[test]
fn loads_without_measurable_acceptance() {
    let folder = tempfile::tempdir().unwrap();
    // The text does not fit the context of the draft model.
    let mut models = pair(folder.path(), Tiny { context: 24, ..Tiny::default() });
    assert_eq!(models.measured_acceptance(), None);
    assert_eq!(answer(&mut models, &[50, 60, 70], Method::DraftModel).0.len(), 24);
}

#[test]
fn another_draft_leaves_the_cache_and_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let target = Tiny::default().write(folder.path(), "target");
    let draft = Tiny { layers: 1, ..Tiny::default() }.write(folder.path(), "draft");
    let compute = cpu();
    let mut models = Models::load(&target, None, &compute).unwrap();
    assert_eq!(models.measured_acceptance(), None);
    let first: Vec<TokenId> = (0..70).map(|i| 40 + i * i % 60).collect();
    let (reply, _) = answer(&mut models, &first, Method::Plain);
    let plan = LoadPlan { draft: Some(draft), ..models.plan() };
    models.change_draft(&plan, &compute).unwrap();
    assert!(models.measured_acceptance().is_some());
    let second = [&first[..], &reply, &[100, 101, 102]].concat();
    let (drafted, read) = answer(&mut models, &second, Method::DraftModel);
    assert!(read as usize <= 4, "prefilled {read} tokens");
    models.forget().unwrap();
    assert_eq!(answer(&mut models, &second, Method::Plain).0, drafted);
}

#[test]
fn stop_string_that_begins_before_a_continuation_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let target = Tiny::default().write(folder.path(), "target");
    let mut models = Models::load(&target, None, &cpu()).unwrap();
    let prompt: Vec<TokenId> = (40..60).collect();
    let plan = |stop: &[&str]| GenerationPlan {
        method: Method::Plain,
        max_tokens: 4,
        sampling: SamplingParams {
            logit_bias: [(TokenId::from(b'a'), 100.0)].into(),
            ..SamplingParams::greedy()
        },
        stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
        ..GenerationPlan::default()
    };
    let clock = WallClock::start();
    let mut run = |begun: usize, stop: &[&str]| {
        let ids = [&prompt[..], &[TokenId::from(b'b'); 2]].concat();
        let context = GenerationContext { begun, ..GenerationContext::measured(&clock) };
        let mut text = String::new();
        let mut sink = |event: GenerationEvent| {
            text.extend(event.tokens().iter().map(|token| token.text.as_str()));
        };
        let finished = generate(&mut models, &ids, &plan(stop), &context, &mut sink).unwrap();
        text.extend(finished.held.iter().map(|token| token.text.as_str()));
        (finished.stop, text)
    };
    assert_eq!(run(2, &["bbaa"]), (StopReason::StopString, String::new()));
    assert_eq!(run(2, &["ba"]), (StopReason::StopString, String::new()));
    // A stop string within the first part does not count, and neither does the prompt.
    assert_eq!(run(2, &["bb"]), (StopReason::MaxTokens, "aaaa".into()));
    assert_eq!(run(0, &["ba"]), (StopReason::MaxTokens, "aaaa".into()));
}
