//! Conversations are kept: through the application, over restarts, and when the program is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hunch::api::{
    AnswerRequest, AnswerSettings, Asking, Conversation, ExportFormat, LoadRequest, MessageState, Role,
    StoredMessage, StreamMessage,
};
use hunch::app::{App, AppConfig};
use hunch::depth::MaxDraft;
use hunch::error::Error;
use hunch::event::{Alternative, GenerationEvent, RoundEvent, TokenEvent};
use hunch::model::device::DeviceChoice;
use hunch::propose::Method;
use hunch::sample::SamplingParams;
use hunch::store::Store;
use hunch::token::TokenOrigin;

use crate::support::tiny::Tiny;

const PATIENCE: Duration = Duration::from_secs(60);

fn start(folder: &Path) -> App {
    let config = AppConfig {
        models_folder: Some(folder.into()),
        store: Some(folder.join("conversations.db")),
        threads: Some(2),
        device: DeviceChoice::Cpu,
        ..AppConfig::default()
    };
    let app = App::start(config).unwrap();
    assert_eq!(app.info().store_problem, None);
    app.load_models(LoadRequest { target: "target".into(), draft: None, context: None }).unwrap();
    app
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Tiny::default().write(folder.path(), "target");
    folder
}

fn settings(max_tokens: u32) -> AnswerSettings {
    AnswerSettings {
        method: Method::Ngram,
        max_draft: MaxDraft::Fixed(4),
        max_tokens,
        sampling: SamplingParams::greedy(),
        rule: Default::default(),
        stop: Vec::new(),
        target: String::new(),
        draft: None,
    }
}

fn question(parent: Option<i64>, text: &str) -> Asking {
    Asking::Question { parent, text: text.into() }
}

/// Asks, waits for the end, and gives the conversation and the answer's message.
fn ask(app: &App, conversation: Option<i64>, asking: Asking, max_tokens: u32) -> (i64, i64) {
    let (sender, receiver) = mpsc::channel::<StreamMessage>();
    let request = AnswerRequest { conversation, asking, settings: settings(max_tokens) };
    let sink = Box::new(move |message| drop(sender.send(message)));
    let begun = app.answer(request, sink).unwrap();
    for message in receiver.iter() {
        assert_eq!(message.generation_id, begun.generation_id);
    }
    // The last event is out before the last write.
    let begun_at = Instant::now();
    while answer(app, begun.conversation, begun.answer).state == MessageState::Streaming {
        assert!(begun_at.elapsed() < PATIENCE, "the answer is never finished");
        std::thread::sleep(Duration::from_millis(2));
    }
    (begun.conversation, begun.answer)
}

fn answer(app: &App, conversation: i64, id: i64) -> StoredMessage {
    let Conversation { messages, .. } = app.open_conversation(conversation).unwrap();
    messages.into_iter().find(|message| message.id == id).unwrap()
}

fn tokens(events: &[GenerationEvent]) -> Vec<TokenEvent> {
    events.iter().flat_map(|event| event.tokens().to_vec()).collect()
}

#[test]
fn an_answer_is_there_after_a_restart_with_its_tokens_figures_and_settings() {
    let folder = folder();
    let app = start(folder.path());
    let (chat, first) = ask(&app, None, question(None, "abc abc abc abc"), 24);
    let events = app.answer_events(first).unwrap();
    let (_, second) = ask(&app, Some(chat), question(Some(first), "and then?"), 8);
    app.shutdown();
    drop(app);

    let app = start(folder.path());
    let listed = app.list_conversations().unwrap();
    assert_eq!((listed.len(), listed[0].id, listed[0].title.as_str()), (1, chat, "abc abc abc abc"));
    let conversation = app.open_conversation(chat).unwrap();
    assert_eq!((conversation.messages.len(), conversation.leaf), (4, Some(second)));
    let stored = answer(&app, chat, first);
    assert_eq!((stored.role, stored.state), (Role::Assistant, MessageState::Complete));
    assert_eq!(stored.settings.unwrap().target, "target");
    assert_eq!(app.answer_events(first).unwrap(), events);
    let Some(GenerationEvent::Finished { stats, .. }) = events.last() else { panic!("it finished") };
    let kept = tokens(&events);
    let of = |origin| kept.iter().filter(|token| token.origin == origin).count() as u32;
    assert_eq!(
        [stats.accepted, stats.resampled, stats.bonus, stats.plain],
        [TokenOrigin::Accepted, TokenOrigin::Resampled, TokenOrigin::Bonus, TokenOrigin::Plain].map(of)
    );
    assert_eq!(stored.content, kept.iter().map(|token| token.text.as_str()).collect::<String>());
    assert!(matches!(events[0], GenerationEvent::Started { .. }));
}

#[test]
fn questions_are_answered_again_and_answers_go_on() {
    let folder = folder();
    let app = start(folder.path());
    let (chat, first) = ask(&app, None, question(None, "one two one two"), 12);
    let asked = answer(&app, chat, first).parent.unwrap();
    let (_, again) = ask(&app, Some(chat), Asking::Again { question: asked }, 24);
    assert_eq!(answer(&app, chat, again).parent, Some(asked));
    // An answer that goes on is what one longer answer would have been.
    let (_, longer) = ask(&app, Some(chat), Asking::Continue { answer: first, tokens: None, then: None }, 12);
    let ids = |message| tokens(&app.answer_events(message).unwrap()).iter().map(|t| t.id).collect::<Vec<_>>();
    assert_eq!((ids(first).len(), ids(longer)), (12, ids(again)));
    assert_eq!(answer(&app, chat, longer).content, answer(&app, chat, again).content);
    let (_, cut) = ask(&app, Some(chat), Asking::Continue { answer: first, tokens: Some(5), then: None }, 19);
    assert_eq!(ids(cut), ids(again));
    Tiny { seed: 9, ..Tiny::default() }.write(folder.path(), "other");
    app.load_models(LoadRequest { target: "other".into(), draft: None, context: None }).unwrap();
    let asking = Asking::Continue { answer: first, tokens: None, then: None };
    let request = AnswerRequest { conversation: Some(chat), asking, settings: settings(4) };
    let refused = app.answer(request, Box::new(|_| {})).unwrap_err().to_string();
    assert!(refused.contains("by target, and other is loaded"), "{refused}");
    app.load_models(LoadRequest { target: "target".into(), draft: None, context: None }).unwrap();
    app.choose_branch(first).unwrap();
    assert_eq!(app.open_conversation(chat).unwrap().branch().last().unwrap().id, first);
    // An edited question is a branch beside the old one.
    let (_, other) = ask(&app, Some(chat), question(None, "three"), 4);
    let conversation = app.open_conversation(chat).unwrap();
    assert_eq!(conversation.branch().iter().map(|m| m.content.as_str()).next(), Some("three"));
    assert_eq!((conversation.branch().len(), conversation.leaf), (2, Some(other)));
}

#[test]
fn an_answer_branches_from_an_alternative() {
    let folder = folder();
    let app = start(folder.path());
    let (chat, first) = ask(&app, None, question(None, "one two one two"), 12);
    let whole = app.answer_events(first).unwrap();
    let place = tokens(&whole)[5].clone();
    // One whose text on its own is its text in any place.
    let whole_character = |alternative: &&Alternative| alternative.0 != place.id && alternative.1.is_ascii();
    let other = place.top.iter().find(whole_character).expect("a byte that is a character").clone();
    let asking = |tokens, then| Asking::Continue { answer: first, tokens: Some(tokens), then: Some(then) };
    let (_, branch) = ask(&app, Some(chat), asking(5, other.0), 10);
    let kept = app.answer_events(branch).unwrap();
    let said = tokens(&kept);
    assert_eq!(said[..5], tokens(&whole)[..5], "what is before stays as it was, origins and all");
    assert_eq!((said[5].id, &said[5].text, said[5].origin), (other.0, &other.1, TokenOrigin::Chosen));
    assert_eq!((said[5].confidence, said.len()), (other.2, 16));
    let content: String = said.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(answer(&app, chat, branch).content, content);
    assert_eq!(answer(&app, chat, branch).parent, answer(&app, chat, first).parent, "a branch beside it");
    // The tokens after it are what the model says after exactly these tokens.
    let (_, same) = ask(&app, Some(chat), asking(5, other.0), 10);
    let ids = |events: &[GenerationEvent]| tokens(events).iter().map(|t| t.id).collect::<Vec<_>>();
    assert_eq!(ids(&app.answer_events(same).unwrap()), ids(&kept));
    // A token drawn there in the first place gives the answer that was given.
    let (_, again) = ask(&app, Some(chat), asking(5, place.id), 6);
    assert_eq!(ids(&app.answer_events(again).unwrap()), ids(&whole));
    let refused = |asking| {
        let request = AnswerRequest { conversation: Some(chat), asking, settings: settings(4) };
        app.answer(request, Box::new(|_| {})).unwrap_err().to_string()
    };
    let never = (0..).find(|id| place.top.iter().all(|a| a.0 != *id)).unwrap();
    assert!(refused(asking(5, never)).contains("not among the alternatives"));
    assert!(refused(asking(900, other.0)).contains("has no token 900"));
}

/// The tiny model's context has 512 tokens, and its tokens are bytes.
#[test]
fn a_conversation_that_no_longer_fits_loses_its_oldest_messages_and_says_so() {
    let folder = folder();
    let app = start(folder.path());
    app.set_system_prompt(None, "Be brief.").unwrap();
    let chat = app.list_conversations().unwrap()[0].id;
    let dropped = |message| match &app.answer_events(message).unwrap()[0] {
        GenerationEvent::Started { dropped_messages, context_length, prompt_tokens, .. } => {
            assert!(*context_length == 512 && *prompt_tokens + 12 <= 512);
            *dropped_messages
        }
        _ => panic!("a generation begins with its beginning"),
    };
    let long = |word: &str| word.repeat(160 / word.len());
    let (_, first) = ask(&app, Some(chat), question(None, &long("one ")), 12);
    let (_, second) = ask(&app, Some(chat), question(Some(first), &long("two ")), 12);
    let (_, third) = ask(&app, Some(chat), question(Some(second), &long("three ")), 12);
    assert_eq!([dropped(first), dropped(second), dropped(third)], [0, 0, 2]);
    let (_, fourth) = ask(&app, Some(chat), question(Some(third), &"x".repeat(600)), 12);
    let Some(GenerationEvent::Failed { error }) = app.answer_events(fourth).unwrap().pop() else {
        panic!("a question that is longer than the context cannot be answered")
    };
    assert!(error.message.contains("512"), "{}", error.message);
}

#[test]
fn what_cannot_be_answered_leaves_no_trace() {
    let folder = folder();
    let app = start(folder.path());
    let request = |conversation, asking, max_tokens| AnswerRequest {
        conversation,
        asking,
        settings: settings(max_tokens),
    };
    let refused = |request| app.answer(request, Box::new(|_| {})).unwrap_err();
    assert!(matches!(refused(request(None, question(None, "  "), 4)), Error::InvalidRequest(_)));
    assert!(matches!(refused(request(None, question(None, "hi"), 0)), Error::InvalidRequest(_)));
    assert!(matches!(refused(request(Some(99), question(None, "hi"), 4)), Error::InvalidRequest(_)));
    assert!(matches!(refused(request(None, Asking::Again { question: 99 }, 4)), Error::InvalidRequest(_)));
    assert!(app.list_conversations().unwrap().is_empty());
    // A prompt that does not fit is an answer that failed: it says why, and can be asked again.
    let (chat, failed) = ask(&app, None, question(None, &"long ".repeat(600)), 4);
    assert_eq!(answer(&app, chat, failed).state, MessageState::Failed);
    let events = app.answer_events(failed).unwrap();
    assert!(matches!(events.last(), Some(GenerationEvent::Failed { .. })));
}

#[test]
fn a_conversation_is_saved_and_brought_back_as_a_file() {
    let folder = folder();
    let app = start(folder.path());
    let (chat, _) = ask(&app, None, question(None, "abc abc"), 8);
    let path = folder.path().join("out.json");
    app.export_conversation(chat, ExportFormat::Json, &path).unwrap();
    let copy = app.import_conversation(&path).unwrap();
    assert_eq!(app.open_conversation(copy).unwrap().messages.len(), 2);
    app.delete_conversation(chat).unwrap();
    assert_eq!(app.list_conversations().unwrap().len(), 1);
    app.restore_conversation(chat).unwrap();
    assert_eq!(app.list_conversations().unwrap().len(), 2);
    let missing = app.import_conversation(&folder.path().join("nowhere.json"));
    assert!(matches!(missing, Err(Error::Io { .. })));
    std::fs::write(&path, "not json").unwrap();
    assert!(matches!(app.import_conversation(&path), Err(Error::InvalidRequest(_))));
}

#[test]
fn a_store_that_cannot_be_used_says_so_and_nothing_else_stops() {
    let folder = folder();
    std::fs::write(folder.path().join("conversations.db"), "this is no database, and long enough to be seen")
        .unwrap();
    let config = AppConfig {
        models_folder: Some(folder.path().into()),
        store: Some(folder.path().join("conversations.db")),
        threads: Some(2),
        device: DeviceChoice::Cpu,
        ..AppConfig::default()
    };
    let app = App::start(config).unwrap();
    assert!(app.info().store_problem.unwrap().contains("Nothing that was there has been changed"));
    app.load_models(LoadRequest { target: "target".into(), draft: None, context: None }).unwrap();
    let (chat, _) = ask(&app, None, question(None, "abc"), 4);
    assert_eq!(app.open_conversation(chat).unwrap().messages.len(), 2);
}

const CHILD: &str = "HUNCH_TEST_WRITES_TO";

fn round(text: &str) -> GenerationEvent {
    let token = TokenEvent {
        id: 1,
        text: text.into(),
        origin: TokenOrigin::Plain,
        p: 1.0,
        q: None,
        u: None,
        threshold: None,
        confidence: 1.0,
        entropy: Some(0.25),
        top: vec![Alternative(7, "a".into(), 0.5)],
        guesses: Vec::new(),
        round: 0,
        position: 0,
    };
    GenerationEvent::Round(RoundEvent::of_tokens(0, vec![token]))
}

/// Writes answers until it is killed, and says on standard output what has been finished.
fn write_until_killed(path: &Path) {
    let store = Store::open(path).unwrap();
    let chat = store.create_conversation(0).unwrap();
    for number in 0.. {
        let question = store.add_question(chat, None, &format!("question {number}"), 0).unwrap();
        let answer = store.begin_answer(chat, question, &settings(1), 0).unwrap();
        for part in 0..4 {
            store.append_events(answer, &[round(&format!("{number}.{part} "))]).unwrap();
        }
        store.finish_answer(answer, MessageState::Complete, 0).unwrap();
        println!("finished {answer} {number}");
    }
}

/// A hundred times: nothing that was finished is lost, and what was being written is there in part.
#[test]
fn killed_at_any_moment_nothing_finished_is_lost() {
    if let Some(path) = std::env::var_os(CHILD) {
        return write_until_killed(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("conversations.db");
    let mut finished: Vec<(i64, u64)> = Vec::new();
    for round in 0..100u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kept::killed_at_any_moment_nothing_finished_is_lost", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed after so many answers, and somewhere in the next one.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.by_ref().map_while(Result::ok).filter_map(|line| {
            let (_, rest) = line.split_once("finished ")?;
            let (answer, number) = rest.split_once(' ')?;
            Some((answer.parse().ok()?, number.parse().ok()?))
        });
        finished.extend(said.take(1 + (round % 3) as usize));
        std::thread::sleep(Duration::from_micros(137 * (round % 29)));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = Store::open(&path).unwrap();
        let newest = finished.last().unwrap().0;
        for &(answer, number) in finished.iter().rev().take(4) {
            let (_, message) = store.message(answer).unwrap();
            assert_eq!(message.state, MessageState::Complete);
            let said: Vec<String> = (0..4).map(|part| format!("{number}.{part} ")).collect();
            assert_eq!(message.content, said.concat());
            assert_eq!(store.events(answer).unwrap().len(), 4);
        }
        let chat = store.message(newest).unwrap().0;
        let conversation = store.conversation(chat).unwrap();
        let interrupted: Vec<_> =
            conversation.messages.iter().filter(|m| m.state == MessageState::Interrupted).collect();
        assert!(
            interrupted.len() <= 1
                && conversation.messages.iter().all(|m| m.state != MessageState::Streaming)
        );
        for message in interrupted {
            let events = store.events(message.id).unwrap();
            assert!(events.len() <= 4);
            assert_eq!(message.content, tokens(&events).iter().map(|t| t.text.as_str()).collect::<String>());
        }
    }
    assert!(finished.len() >= 100);
}
