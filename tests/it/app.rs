//! The application on tiny models: loading, answering, stopping, snapshots, errors that keep it
//! usable. Records the streams the browser tests replay (`HUNCH_RECORD=1`).

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hunch::api::{AnswerRequest, AnswerSettings, AnsweredBy, Asking, StreamMessage};
use hunch::app::App;
use hunch::event::{GenerationEvent, RoundEvent, StopReason};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::DraftWindow;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::{MethodOptions, Needs};
use hunch_core::sample::SamplingParams;
use hunch_core::token::{DraftFate, TokenOrigin};
use hunch_error::ErrorCode;

use crate::support::app::{app, load_request, write_pair};
use hunch_testing::tiny::{END_OF_TURN, Tiny};

/// Long enough for a loaded machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first question of a conversation.
fn request(method: Method, max_tokens: u32) -> AnswerRequest {
    let settings = AnswerSettings {
        method,
        max_draft: MaxDraft::Fixed(4),
        max_tokens,
        sampling: SamplingParams { seed: Some(7), ..SamplingParams::unfiltered() },
        ..AnswerSettings::default()
    };
    AnswerRequest {
        conversation: None,
        asking: question("abc abc abc abc"),
        settings,
        by: AnsweredBy::Loaded,
    }
}

fn question(text: &str) -> Asking {
    Asking::Question { parent: None, text: text.into(), attachments: Vec::new() }
}

fn load(app: &App, target: &str, draft: Option<&str>) {
    app.load_models(load_request(target, draft)).unwrap();
}

fn start(app: &App, request: AnswerRequest) -> (u32, Receiver<StreamMessage>) {
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    (app.answer(request, sink).unwrap().generation_id, receiver)
}

fn events(receiver: &Receiver<StreamMessage>) -> Vec<GenerationEvent> {
    let mut events = Vec::new();
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        assert_eq!(message.seq as usize, events.len(), "a message is missing or came twice");
        events.extend(message.events);
    }
    events
}

#[test]
fn answer_figures_add_up_for_every_method() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", Some("draft"));
    for method in [Method::Plain, Method::DraftModel, Method::DraftTree, Method::Ngram] {
        let (id, receiver) = start(&app, request(method, 40));
        let events = events(&receiver);
        let GenerationEvent::Started { generation_id, method: started, .. } = &events[0] else {
            panic!("the first event is {:?}", events[0]);
        };
        assert_eq!((*generation_id, *started), (id, method));
        let Some(GenerationEvent::Finished { tokens: held, stats, .. }) = events.last() else {
            panic!("the last event is {:?}", events.last());
        };
        let rounds: Vec<_> = events
            .iter()
            .filter_map(|e| if let GenerationEvent::Round(r) = e { Some(r) } else { None })
            .collect();
        let tokens: Vec<_> = rounds.iter().flat_map(|r| &r.tokens).chain(held).collect();
        let count = |origin| tokens.iter().filter(|t| t.origin == origin).count() as u32;
        assert_eq!(tokens.len() as u32, stats.generated_tokens);
        assert_eq!(count(TokenOrigin::Accepted), stats.accepted);
        assert_eq!(count(TokenOrigin::Resampled), stats.resampled);
        assert_eq!(count(TokenOrigin::Bonus), stats.bonus);
        assert_eq!(count(TokenOrigin::Plain), stats.plain);
        assert_eq!(stats.accepted + stats.resampled + stats.bonus + stats.plain, stats.generated_tokens);
        assert_eq!(rounds.len() as u32, stats.rounds);
        rounds.iter().for_each(|round| tree_adds_up(round));
        assert!(tokens.iter().all(|t| (0.0..=1.0).contains(&t.p) && t.p > 0.0 && t.confidence > 0.0));
        assert_eq!(app.generation_snapshot(id, 0).unwrap().events, events);
        let newest = app.generation_snapshot(id, 3).unwrap();
        assert_eq!((newest.generation_id, newest.seq, &newest.events[..]), (id, 3, &events[3..]));
        if method == Method::Plain {
            assert_eq!(stats.drafted, 0);
            assert_eq!(stats.plain, stats.generated_tokens);
        } else {
            assert!(stats.drafted > 0);
        }
    }
}

#[test]
fn snapshot_of_ended_answer_equals_sent_events() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", None);
    let (first, receiver) = start(&app, request(Method::Plain, 6));
    let received = events(&receiver);
    let conversation = app.list_conversations().unwrap()[0].id;
    let answer = app.open_conversation(conversation).unwrap().leaf.unwrap();
    let (second, receiver) = start(
        &app,
        AnswerRequest {
            conversation: Some(conversation),
            asking: Asking::Continue { answer, tokens: Some(4), then: None },
            ..request(Method::Plain, 6)
        },
    );
    let told_on = events(&receiver);
    assert_eq!(app.generation_snapshot(second, 0).unwrap().events, told_on);
    assert_eq!(app.generation_snapshot(second, 2).unwrap().events, told_on[2..]);
    assert_eq!(app.generation_snapshot(first, 0).unwrap().events, received);
    // The last four can be asked for.
    let later: Vec<_> = (0..3)
        .map(|_| {
            let (id, receiver) = start(&app, request(Method::Plain, 2));
            events(&receiver);
            id
        })
        .collect();
    assert!(app.generation_snapshot(first, 0).is_err());
    assert!([&[second], &later[..]].concat().iter().all(|id| app.generation_snapshot(*id, 0).is_ok()));
}

/// Asserts that the reported draft is complete. Every node has a parent before it. The rejected nodes are those of
/// `rejected`, in order. The accepted nodes form a path with the accepted tokens of the answer.
fn tree_adds_up(round: &RoundEvent) {
    assert_eq!(round.draft.len() as u32, round.drafted);
    let of = |fate| round.draft.iter().enumerate().filter(move |(_, node)| node.fate == fate);
    assert!(round.draft.iter().enumerate().all(|(i, node)| node.parent.is_none_or(|p| (p as usize) < i)));
    let rejected: Vec<_> = round.rejected.iter().map(|r| (r.id, &r.text)).collect();
    assert_eq!(of(DraftFate::Rejected).map(|(_, n)| (n.id, &n.text)).collect::<Vec<_>>(), rejected);
    let mut parent = None;
    for (i, node) in of(DraftFate::Accepted) {
        assert_eq!(node.parent, parent);
        parent = Some(i as u32);
    }
    let accepted = round.tokens.iter().filter(|t| t.origin == TokenOrigin::Accepted).map(|t| t.id);
    let path: Vec<_> = of(DraftFate::Accepted).map(|(_, n)| n.id).collect();
    // The answer may end before the path does.
    assert!(path.starts_with(&accepted.collect::<Vec<_>>()));
}

#[test]
fn same_seed_gives_same_answer_from_warm_cache() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", Some("draft"));
    let text = |events: Vec<GenerationEvent>| -> Vec<u32> {
        events
            .into_iter()
            .filter_map(|e| if let GenerationEvent::Round(r) = e { Some(r.tokens) } else { None })
            .flatten()
            .map(|t| t.id)
            .collect()
    };
    for method in Method::usable(&[Needs::DraftModel]) {
        let first = text(events(&start(&app, request(method, 30)).1));
        let second = text(events(&start(&app, request(method, 30)).1));
        assert_eq!(first, second, "{method}");
        assert!(!first.is_empty());
    }
}

#[test]
fn stopping_ends_the_answer_and_the_next_one_runs() {
    let folder = tempfile::tempdir().unwrap();
    Tiny { context: 100_000, ..Tiny::default() }.write(folder.path(), "target");
    let app = app(folder.path());
    load(&app, "target", None);
    let mut endless = request(Method::Plain, 90_000);
    // The end of turn can never come.
    endless.settings.sampling.logit_bias.insert(hunch_testing::tiny::END_OF_TURN, -100.0);
    let (id, receiver) = start(&app, endless.clone());
    let first = receiver.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.seq, 0);
    let busy = app.answer(endless, Box::new(|_| ())).unwrap_err();
    assert_eq!(busy.code(), ErrorCode::Busy);
    let loading = app.load_models(load_request("target", None)).unwrap_err();
    assert_eq!(loading.code(), ErrorCode::Busy);
    app.stop_generation(id + 1);
    app.stop_generation(id);
    let last = receiver.iter().flat_map(|m| m.events).last();
    let Some(GenerationEvent::Finished { stop, stats, .. }) = last else { panic!("{last:?}") };
    assert_eq!(stop, StopReason::Cancelled);
    assert!(stats.generated_tokens < 90_000);
    let next = events(&start(&app, request(Method::Ngram, 5)).1);
    assert!(matches!(next.last(), Some(GenerationEvent::Finished { .. })));
}

#[test]
fn stop_string_ends_the_text_and_only_shown_tokens_count() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", Some("draft"));
    let shown = |request| {
        let events = events(&start(&app, request).1);
        let mut text = String::new();
        let mut count = 0;
        for event in &events {
            let tokens = match event {
                GenerationEvent::Round(round) => &round.tokens,
                GenerationEvent::Finished { tokens, .. } => tokens,
                _ => continue,
            };
            count += tokens.len() as u32;
            text.extend(tokens.iter().map(|t| t.text.as_str()));
        }
        (text, count, events.last().cloned().unwrap())
    };
    let mut greedy = request(Method::DraftModel, 60);
    greedy.settings.sampling = SamplingParams::greedy();
    let (whole, ..) = shown(greedy.clone());
    let stop: String = whole.chars().skip(8).take(3).collect();
    let before = whole.split(&stop).next().unwrap().to_owned();
    greedy.settings.stop = vec![stop.clone()];
    let (cut, count, last) = shown(greedy);
    assert_eq!(cut, before, "{whole:?} was to stop at {stop:?}");
    let GenerationEvent::Finished { stop, stats, .. } = last else { panic!("{last:?}") };
    assert_eq!(stop, StopReason::StopString);
    assert_eq!(stats.generated_tokens, count);
}

#[test]
fn tokenises_text_with_loaded_target() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    assert_eq!(app.text_tokens("a").unwrap_err().code(), ErrorCode::NoModel);
    load(&app, "target", None);
    let tokens = |text| -> Vec<_> {
        app.text_tokens(text).unwrap().into_iter().map(|token| (token.id, token.text)).collect()
    };
    assert_eq!(tokens(" a"), [(32, " ".into()), (97, "a".into())]);
    assert_eq!(tokens("<|im_end|>"), [(END_OF_TURN, "<|im_end|>".into())]);
    assert_eq!(tokens(""), []);
    // Part of a character has no text of its own.
    assert_eq!(tokens("\u{e9}"), [(0xc3, "\u{fffd}".into()), (0xa9, "\u{fffd}".into())]);
}

#[test]
fn biased_tokens_are_banned_or_forced() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", Some("draft"));
    let ids = |method, bias: &[(u32, f32)]| {
        let mut biased = request(method, 12);
        biased.settings.sampling = SamplingParams::greedy();
        biased.settings.sampling.logit_bias = bias.iter().copied().collect();
        let events = events(&start(&app, biased).1);
        events.iter().flat_map(GenerationEvent::tokens).map(|token| token.id).collect::<Vec<_>>()
    };
    for method in [Method::Plain, Method::DraftModel] {
        let usual = ids(method, &[])[0];
        assert!(!ids(method, &[(usual, -100.0)]).contains(&usual), "{method}");
        assert!(ids(method, &[(97, 100.0)]).iter().all(|&id| id == 97), "{method}");
    }
}

#[test]
fn options_of_methods_are_applied_and_kept_with_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", Some("draft"));
    let asked = |method, options| {
        let mut request = request(method, 24);
        request.settings.options = options;
        request
    };
    let tree = MethodOptions { tree: TreeShape::by_level([2]), ..MethodOptions::default() };
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    let answering = app.answer(asked(Method::DraftTree, tree.clone()), sink).unwrap();
    let drafts: Vec<_> = events(&receiver)
        .into_iter()
        .filter_map(|event| if let GenerationEvent::Round(round) = event { Some(round.draft) } else { None })
        .collect();
    assert!(drafts.iter().flatten().all(|node| node.parent.is_none()), "{drafts:?}");
    assert!(drafts.iter().any(|draft| draft.len() == 2), "{drafts:?}");
    let stored = app.open_conversation(answering.conversation).unwrap();
    let answer = stored.messages.iter().find(|message| message.id == answering.answer).unwrap();
    assert_eq!(answer.settings.as_ref().unwrap().options, tree);

    let failed = |method, options| match &events(&start(&app, asked(method, options)).1)[..] {
        [.., GenerationEvent::Failed { error }] => error.message.clone(),
        other => panic!("{other:?}"),
    };
    let none = MethodOptions::default();
    let window = Some(DraftWindow::new(1_000_000).unwrap());
    let error = failed(Method::DraftModel, MethodOptions { draft_window: window, ..none.clone() });
    assert!(error.contains("larger than the context"), "{error}");
    let error = failed(Method::EarlyExit, MethodOptions { exit_layer: Some(99), ..none.clone() });
    assert!(error.contains("The first 1 to 2 can draft"), "{error}");
    let error = failed(Method::LayerSkip, MethodOptions { skipped_layers: Some(vec![99]), ..none });
    assert!(error.contains("has layers 0 to"), "{error}");
}

#[test]
fn application_is_usable_after_errors() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    std::fs::write(folder.path().join("broken.gguf"), b"GGUF\x03\0\0\0 cut short").unwrap();
    let big = Tiny { layers: 4, ..Tiny::default() };
    big.write(folder.path(), "big");
    let app = app(folder.path());

    let refused = |request| app.answer(request, Box::new(|_| ())).unwrap_err();
    assert_eq!(refused(request(Method::Plain, 5)).code(), ErrorCode::NoModel);

    load(&app, "target", None);
    let code = |target: &str, draft: Option<&str>| {
        let request = load_request(target, draft);
        app.load_models(request).unwrap_err().code()
    };
    assert_eq!(code("nothing", None), ErrorCode::ModelNotFound);
    assert_eq!(code("broken", None), ErrorCode::InvalidModelFile);
    assert_eq!(code("target", Some("big")), ErrorCode::InvalidRequest);

    let mut hot = request(Method::Plain, 5);
    hot.settings.sampling.temperature = 9.0;
    assert!(refused(hot).to_string().contains('5'), "the range is named");
    assert_eq!(refused(request(Method::Plain, 0)).code(), ErrorCode::InvalidRequest);
    let mut stops = request(Method::Plain, 5);
    stops.settings.stop = (0..17).map(|i| format!("stop {i}")).collect();
    assert!(refused(stops).to_string().contains("at most 16"));
    let mut deep = request(Method::Ngram, 5);
    deep.settings.max_draft = MaxDraft::Fixed(16);
    assert_eq!(refused(deep).code(), ErrorCode::InvalidRequest);

    let failed = |request| match &events(&start(&app, request).1)[..] {
        [.., GenerationEvent::Failed { error }] => error.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(request(Method::DraftModel, 5)), ErrorCode::InvalidRequest);
    let mut empty = request(Method::Plain, 5);
    empty.asking = question(" \n");
    assert_eq!(refused(empty).code(), ErrorCode::InvalidRequest);
    let mut long = request(Method::Plain, 5);
    long.asking = question(&"too long ".repeat(200));
    assert_eq!(failed(long), ErrorCode::ContextOverflow);

    // After all that the model that was loaded still answers.
    let answer = events(&start(&app, request(Method::Ngram, 5)).1);
    assert!(matches!(answer.last(), Some(GenerationEvent::Finished { .. })));
    assert!(app.generation_snapshot(9999, 0).is_err());
}

#[test]
fn rejects_draft_with_different_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let tiny = Tiny { layers: 1, ..Tiny::default() };
    let mut tokens: Vec<String> = match tiny.writer().metadata("tokenizer.ggml.tokens") {
        Some(hunch_model::gguf::Value::Array(hunch_model::gguf::Array::String(tokens))) => tokens,
        other => panic!("{other:?}"),
    };
    tokens[..256].iter_mut().for_each(|token| *token = format!("another {token}"));
    let path = folder.path().join("stranger.gguf");
    let stranger =
        tiny.writer().without_key("tokenizer.ggml.tokens").strings("tokenizer.ggml.tokens", tokens);
    std::fs::write(path, stranger.bytes()).unwrap();
    let app = app(folder.path());
    let request = load_request("target", Some("stranger"));
    let error = app.load_models(request).unwrap_err();
    assert_eq!(error.code(), ErrorCode::VocabularyMismatch);
    let text = error.to_string();
    assert!(text.contains("has only 0 of its 258 tokens"), "{text}");
}

/// The streams under `tests/streams` are what this engine says: recorded here, replayed by the
/// browser tests. Times differ from run to run, so they are compared without them.
#[test]
fn recorded_streams_match_this_engine() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    load(&app, "target", Some("draft"));
    let streams = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams");
    for (name, method) in [
        ("draft-model", Method::DraftModel),
        ("draft-tree", Method::DraftTree),
        ("ngram", Method::Ngram),
        ("plain", Method::Plain),
    ] {
        let mut asked = request(method, 32);
        if method == Method::DraftTree {
            // Hot, so that the draft is unsure enough to branch.
            asked.settings.sampling.temperature = 3.0;
        }
        let (_, receiver) = start(&app, asked);
        let recorded: Vec<GenerationEvent> = events(&receiver);
        let path = streams.join(format!("tiny-{name}.jsonl"));
        if std::env::var_os("HUNCH_RECORD").is_some() {
            std::fs::create_dir_all(&streams).unwrap();
            let lines: Vec<String> = recorded
                .iter()
                .enumerate()
                .map(|(seq, event)| StreamMessage {
                    generation_id: 1,
                    seq: seq as u32,
                    events: vec![event.clone()],
                })
                .map(|message| serde_json::to_string(&message).unwrap())
                .collect();
            std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let kept: Vec<GenerationEvent> = text
            .lines()
            .flat_map(|line| serde_json::from_str::<StreamMessage>(line).unwrap().events)
            .collect();
        let shape = |events: &[GenerationEvent]| -> Vec<String> { events.iter().map(outline).collect() };
        assert_eq!(
            shape(&recorded),
            shape(&kept),
            "{name}: run with HUNCH_RECORD=1 if this was meant to change"
        );
    }
}

/// An event without times and rounding.
fn outline(event: &GenerationEvent) -> String {
    match event {
        GenerationEvent::ServerStarted { model, .. } => format!("started {model}"),
        GenerationEvent::ServerFinished { stop, .. } => format!("finished {stop:?}"),
        GenerationEvent::Started { method, prompt_tokens, .. } => format!("started {method} {prompt_tokens}"),
        GenerationEvent::Prefill { done, total } => format!("prefill {done}/{total}"),
        GenerationEvent::NotKept { error } => format!("not kept: {}", error.message),
        GenerationEvent::Kept => "kept".into(),
        GenerationEvent::GivenUp { error } => format!("given up: {}", error.message),
        GenerationEvent::Round(round) => {
            let tokens: Vec<_> = round.tokens.iter().map(|t| (t.id, t.origin, t.position)).collect();
            let draft: Vec<_> = round.draft.iter().map(|node| (node.id, node.parent, node.fate)).collect();
            format!("round {} {tokens:?} of {draft:?}", round.round)
        }
        GenerationEvent::Finished { stop, stats, .. } => {
            format!("finished {stop:?} {}", stats.generated_tokens)
        }
        GenerationEvent::DraftDropped { method, error } => format!("dropped {method} {:?}", error.code),
        GenerationEvent::Failed { error } => format!("failed {:?}", error.code),
    }
}
