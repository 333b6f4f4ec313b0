//! Conversations are kept: through the application, over restarts, and when the program is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hunch::api::{
    AnswerRequest, AnswerSettings, AnsweredBy, Asking, Conversation, ExportFormat, ExportWords, MessageState,
    StoreRemedy, StoredMessage, StreamMessage,
};
use hunch::app::{App, AppConfig};
use hunch::event::{Alternative, GenerationEvent, TokenEvent};
use hunch::store::Store;
use hunch_core::chat::Role;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenOrigin;
use hunch_error::{Error, ErrorCode, Refusal};

use crate::alloc_count::peak_during;
use crate::support::app::{config, load_request};
use crate::support::requests::endless_request;
use hunch_testing::tiny::Tiny;

const PATIENCE: Duration = Duration::from_secs(60);

fn start(folder: &Path) -> App {
    start_on(folder, 2)
}

fn start_on(folder: &Path, threads: usize) -> App {
    let app = start_with_any_store(folder, threads);
    assert_eq!(app.info().store_problem, None);
    app
}

/// Starts although the store may have a problem.
fn start_with_any_store(folder: &Path, threads: usize) -> App {
    let app = App::start(AppConfig { threads: Some(threads), ..config(folder) }).unwrap();
    app.load_models(load_request("target", None)).unwrap();
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
        ..AnswerSettings::default()
    }
}

fn question(parent: Option<i64>, text: &str) -> Asking {
    Asking::Question { parent, text: text.into(), attachments: Vec::new() }
}

/// Asks, waits for the end, and gives the conversation and the answer's message.
fn ask(app: &App, conversation: Option<i64>, asking: Asking, max_tokens: u32) -> (i64, i64) {
    let (sender, receiver) = mpsc::channel::<StreamMessage>();
    let request =
        AnswerRequest { conversation, asking, settings: settings(max_tokens), by: AnsweredBy::Loaded };
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
fn answer_survives_restart_with_tokens_figures_and_settings() {
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
fn regenerates_and_continues_answers() {
    let folder = folder();
    let app = start(folder.path());
    let (chat, first) = ask(&app, None, question(None, "one two one two"), 12);
    let asked = answer(&app, chat, first).parent.unwrap();
    let (_, again) = ask(&app, Some(chat), Asking::Again { question: asked }, 24);
    assert_eq!(answer(&app, chat, again).parent, Some(asked));
    // A continued answer equals one longer answer.
    let (_, longer) = ask(&app, Some(chat), Asking::Continue { answer: first, tokens: None, then: None }, 12);
    let ids = |message| tokens(&app.answer_events(message).unwrap()).iter().map(|t| t.id).collect::<Vec<_>>();
    assert_eq!((ids(first).len(), ids(longer)), (12, ids(again)));
    assert_eq!(answer(&app, chat, longer).content, answer(&app, chat, again).content);
    let (_, cut) = ask(&app, Some(chat), Asking::Continue { answer: first, tokens: Some(5), then: None }, 19);
    assert_eq!(ids(cut), ids(again));
    Tiny { seed: 9, ..Tiny::default() }.write(folder.path(), "other");
    app.load_models(load_request("other", None)).unwrap();
    let asking = Asking::Continue { answer: first, tokens: None, then: None };
    let request =
        AnswerRequest { conversation: Some(chat), asking, settings: settings(4), by: AnsweredBy::Loaded };
    let refused = app.answer(request, Box::new(|_| {})).unwrap_err().to_string();
    assert!(refused.contains("by target, and other is loaded"), "{refused}");
    app.load_models(load_request("target", None)).unwrap();
    app.choose_branch(first).unwrap();
    assert_eq!(app.open_conversation(chat).unwrap().branch().last().unwrap().id, first);
    // An edited question is a new branch next to the old one.
    let (_, other) = ask(&app, Some(chat), question(None, "three"), 4);
    let conversation = app.open_conversation(chat).unwrap();
    assert_eq!(conversation.branch().iter().map(|m| m.content.as_str()).next(), Some("three"));
    assert_eq!((conversation.branch().len(), conversation.leaf), (2, Some(other)));
}

#[test]
fn answer_branches_from_alternative_token() {
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
    assert_eq!(answer(&app, chat, branch).parent, answer(&app, chat, first).parent, "a branch next to it");
    // The tokens after it are what the model says after exactly these tokens.
    let (_, same) = ask(&app, Some(chat), asking(5, other.0), 10);
    let ids = |events: &[GenerationEvent]| tokens(events).iter().map(|t| t.id).collect::<Vec<_>>();
    assert_eq!(ids(&app.answer_events(same).unwrap()), ids(&kept));
    // A token drawn there in the first place gives the answer that was given.
    let (_, again) = ask(&app, Some(chat), asking(5, place.id), 6);
    assert_eq!(ids(&app.answer_events(again).unwrap()), ids(&whole));
    let refused = |asking| {
        let request =
            AnswerRequest { conversation: Some(chat), asking, settings: settings(4), by: AnsweredBy::Loaded };
        app.answer(request, Box::new(|_| {})).unwrap_err().to_string()
    };
    let never = (0..).find(|id| place.top.iter().all(|a| a.0 != *id)).unwrap();
    assert!(refused(asking(5, never)).contains("not among the alternatives"));
    assert!(refused(asking(900, other.0)).contains("has no token 900"));
}

/// The tiny model's context has 512 tokens, and its tokens are bytes.
#[test]
fn drops_oldest_messages_beyond_the_context_and_reports_it() {
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
fn refused_question_is_removed_from_the_store() {
    let folder = folder();
    let app = start(folder.path());
    let request = |conversation, asking, max_tokens| AnswerRequest {
        conversation,
        asking,
        settings: settings(max_tokens),
        by: AnsweredBy::Loaded,
    };
    let refused = |request| app.answer(request, Box::new(|_| {})).unwrap_err();
    assert!(matches!(refused(request(None, question(None, "  "), 4)), Error::Refused(Refusal::EmptyPrompt)));
    assert!(matches!(refused(request(None, question(None, "hi"), 0)), Error::InvalidRequest(_)));
    assert!(matches!(
        refused(request(Some(99), question(None, "hi"), 4)),
        Error::Refused(Refusal::NoSuchConversation { id: 99 })
    ));
    assert!(matches!(
        refused(request(None, Asking::Again { question: 99 }, 4)),
        Error::Refused(Refusal::NoSuchMessage { id: 99 })
    ));
    // No conversation is begun for a question that follows a message of another one.
    assert!(matches!(
        refused(request(None, question(Some(99), "hi"), 4)),
        Error::Refused(Refusal::NoSuchMessage { id: 99 })
    ));
    assert!(app.list_conversations().unwrap().is_empty());
    // A prompt that does not fit is an answer that failed: it says why, and can be asked again.
    let (chat, failed) = ask(&app, None, question(None, &"long ".repeat(600)), 4);
    assert_eq!(answer(&app, chat, failed).state, MessageState::Failed);
    let events = app.answer_events(failed).unwrap();
    assert!(matches!(events.last(), Some(GenerationEvent::Failed { .. })));
    // An engine that has ended refuses after the question was written down. The question is removed, and the reader
    // is at the branch where they were.
    let (_, first) = ask(&app, None, question(None, "one two one two"), 4);
    let chat = app.list_conversations().unwrap()[0].id;
    let asked = answer(&app, chat, first).parent.unwrap();
    ask(&app, Some(chat), Asking::Again { question: asked }, 4);
    app.choose_branch(first).unwrap();
    let before = (app.list_conversations().unwrap(), app.open_conversation(chat).unwrap());
    app.shutdown();
    for (conversation, asking) in [
        (None, question(None, "new")),
        (Some(chat), question(Some(first), "more")),
        (Some(chat), question(None, "said differently")),
        (Some(chat), Asking::Again { question: asked }),
        (Some(chat), Asking::Continue { answer: first, tokens: None, then: None }),
    ] {
        assert!(matches!(refused(request(conversation, asking, 4)), Error::Internal(_)));
    }
    assert_eq!((app.list_conversations().unwrap(), app.open_conversation(chat).unwrap()), before);
}

#[test]
fn exported_conversation_can_be_imported() {
    let folder = folder();
    let app = start(folder.path());
    let (chat, _) = ask(&app, None, question(None, "abc abc"), 8);
    let path = folder.path().join("out.json");
    let words = ExportWords { untitled: "-".into(), question: "Q".into(), answer: "A".into() };
    app.export_conversation(chat, ExportFormat::Json, &words, &path).unwrap();
    let copy = app.import_conversation(&path).unwrap();
    assert_eq!(app.open_conversation(copy).unwrap().messages.len(), 2);
    app.delete_conversation(chat).unwrap();
    assert_eq!(app.list_conversations().unwrap().len(), 1);
    app.restore_conversation(chat).unwrap();
    assert_eq!(app.list_conversations().unwrap().len(), 2);
    let missing = app.import_conversation(&folder.path().join("nowhere.json"));
    assert!(matches!(missing, Err(Error::Io { .. })));
    std::fs::write(&path, "not json").unwrap();
    assert!(matches!(
        app.import_conversation(&path),
        Err(Error::Refused(Refusal::NotAConversation { detail })) if detail.contains("line 1")
    ));
}

#[cfg(unix)]
#[test]
fn import_refuses_special_and_huge_files() {
    let folder = folder();
    let app = start(folder.path());
    let path = folder.path().join("chat.json");
    let refused = |why: &str| {
        let error = app.import_conversation(&path).unwrap_err();
        assert!(error.code() == ErrorCode::InvalidRequest && error.to_string().contains(why), "{error}");
        std::fs::remove_file(&path).unwrap();
    };
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    refused("regular file");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    refused("regular file");
    std::fs::File::create(&path).unwrap().set_len(3 << 30).unwrap();
    refused("larger than 2 GiB");
    assert!(app.list_conversations().unwrap().is_empty());
}

#[test]
fn import_needs_memory_for_packed_events_only() {
    const EVENTS: usize = 300_000;
    let event = r#"{"type":"prefill","done":1,"total":2}"#;
    let begin = r#"{"format":"hunch-conversation","version":1,"title":"","created_ms":1,"updated_ms":1,"messages":[
        {"id":1,"role":"user","content":"Hi","created_ms":1},
        {"id":2,"parent":1,"role":"assistant","content":"Hey","created_ms":1,"events":["#;
    let list = std::iter::repeat_n(event, EVENTS).flat_map(|event| [event, ","]).take(2 * EVENTS - 1);
    let text: String = std::iter::once(begin).chain(list).chain(["]}]}"]).collect();
    let store = Store::in_memory().unwrap();
    let (chat, peak) = peak_during(|| store.import_json(text.as_bytes()).unwrap());
    let answer = store.conversation(chat).unwrap().messages[1].id;
    assert_eq!(store.events(answer).unwrap().len(), EVENTS);
    assert!(peak < 8 << 20, "{peak} bytes for {} bytes of JSON", text.len());
}

const NO_DATABASE: &str = "this is no database, and long enough to be seen";

#[test]
fn refuses_questions_while_the_store_is_only_in_memory() {
    let folder = folder();
    let file = folder.path().join("conversations.db");
    std::fs::write(&file, NO_DATABASE).unwrap();
    let app = start_with_any_store(folder.path(), 2);
    let problem = app.info().store_problem.unwrap();
    assert_eq!(problem.error.code, ErrorCode::Store);
    assert!(problem.error.message.contains("Nothing was changed"));
    assert!(problem.in_memory && !problem.accepted && problem.replaceable, "{problem:?}");
    let request = AnswerRequest {
        conversation: None,
        asking: question(None, "abc"),
        settings: settings(4),
        by: AnsweredBy::Loaded,
    };
    let refused = app.answer(request, Box::new(|_| {})).unwrap_err();
    assert!(refused.to_string().contains("would be lost"), "{refused}");
    assert!(app.list_conversations().unwrap().is_empty());
    assert!(app.repair_store(&StoreRemedy::Retry).is_err(), "it is no database still");
    let info = app.repair_store(&StoreRemedy::StayInMemory).unwrap();
    assert!(info.store_problem.unwrap().accepted);
    let (chat, _) = ask(&app, None, question(None, "abc"), 4);
    assert_eq!(app.open_conversation(chat).unwrap().messages.len(), 2);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), NO_DATABASE);

    let info = app.repair_store(&StoreRemedy::StartEmpty).unwrap();
    assert_eq!(info.store_problem, None);
    let kept = app.list_conversations().unwrap();
    assert_eq!(kept.len(), 1, "what was said meanwhile is kept");
    assert_eq!(app.open_conversation(kept[0].id).unwrap().messages.len(), 2);
    let aside: Vec<_> = std::fs::read_dir(folder.path().join("set-aside")).unwrap().flatten().collect();
    assert_eq!(std::fs::read_to_string(aside[0].path()).unwrap(), NO_DATABASE);
    drop(app);
    assert_eq!(start_with_any_store(folder.path(), 2).list_conversations().unwrap().len(), 1);
}

#[test]
fn restores_a_copy_in_place_of_a_damaged_file() {
    let folder = folder();
    let file = folder.path().join("conversations.db");
    let app = start_with_any_store(folder.path(), 2);
    ask(&app, None, question(None, "abc"), 4);
    app.shutdown();
    drop(app);
    Store::copy(&file).unwrap();
    std::fs::write(&file, NO_DATABASE).unwrap();
    for log in ["conversations.db-wal", "conversations.db-shm"] {
        drop(std::fs::remove_file(folder.path().join(log)));
    }
    let app = start_with_any_store(folder.path(), 2);
    let copies = app.info().store_problem.unwrap().copies;
    let newest = copies[0].name.clone();
    let restored = app.repair_store(&StoreRemedy::Restore { copy: newest }).unwrap();
    assert_eq!(restored.store_problem, None);
    assert!(restored.store_bytes.unwrap() > 4096);
    assert_eq!(app.list_conversations().unwrap().len(), 1);
    let (chat, _) = ask(&app, None, question(None, "abd"), 4);
    assert_eq!(app.open_conversation(chat).unwrap().messages.len(), 2);
}

#[test]
fn copies_the_file_when_the_newest_copy_is_a_week_old() {
    let folder = folder();
    let file = folder.path().join("conversations.db");
    let store = Store::open(&file).unwrap();
    store.create_conversation(1).unwrap();
    Store::copy(&file).unwrap();
    drop(store);
    let copies = || -> Vec<_> {
        let entries = std::fs::read_dir(folder.path().join("backups")).unwrap().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "db")).collect()
    };
    let first = copies().remove(0);
    drop(start(folder.path()));
    assert_eq!(copies().len(), 1, "the copy is of today");
    let week = Duration::from_secs(7 * 24 * 60 * 60);
    let opened = std::fs::File::options().write(true).open(&first).unwrap();
    opened.set_modified(std::time::SystemTime::now() - week).unwrap();
    let app = start(folder.path());
    let begun = Instant::now();
    while copies().len() < 2 {
        assert!(begun.elapsed() < PATIENCE, "no copy is made");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(app);
}

#[test]
fn reopens_the_file_once_another_program_closes_it() {
    let folder = folder();
    let file = folder.path().join("conversations.db");
    let other = Store::open(&file).unwrap();
    other.create_conversation(1).unwrap();
    let app = start_with_any_store(folder.path(), 2);
    let problem = app.info().store_problem.unwrap();
    assert!(problem.in_memory && !problem.replaceable, "{problem:?}");
    drop(other);
    assert_eq!(app.repair_store(&StoreRemedy::Retry).unwrap().store_problem, None);
    assert_eq!(app.list_conversations().unwrap().len(), 1);
}

#[test]
fn opens_the_file_when_deleted_conversations_cannot_be_purged() {
    let folder = folder();
    let file = folder.path().join("conversations.db");
    let store = Store::open(&file).unwrap();
    let (deleted, kept) = (store.create_conversation(1).unwrap(), store.create_conversation(2).unwrap());
    store.delete_conversation(deleted, 3).unwrap();
    drop(store);
    let no_deletion =
        "CREATE TRIGGER refuse BEFORE DELETE ON conversations BEGIN SELECT RAISE(ABORT, 'no'); END";
    rusqlite::Connection::open(&file).unwrap().execute_batch(no_deletion).unwrap();
    let app = start_with_any_store(folder.path(), 2);
    assert_eq!(app.info().store_problem, None);
    assert_eq!(app.list_conversations().unwrap()[0].id, kept);
}

#[cfg(unix)]
const QUOTA_CHILD: &str = "HUNCH_TEST_ANSWERS_ON_QUOTA_IN";

/// The system refuses that files grow, as on a full disk, while an answer is written. Afterwards there is room again.
#[cfg(unix)]
#[test]
fn answer_survives_files_that_cannot_grow() {
    const NAME: &str = "persistence::answer_survives_files_that_cannot_grow";
    if let Some(folder) = std::env::var_os(QUOTA_CHILD) {
        return answer_on_quota(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    // Slow enough that the limit is set before the end.
    Tiny { layers: 12, context: 4096, ..Tiny::default() }.write(folder.path(), "target");
    // The signal of the limit would end the process; ignored, writes fail instead.
    let output = Command::new("sh")
        .args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(QUOTA_CHILD, folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let store = Store::open(&folder.path().join("conversations.db")).unwrap();
    let messages = store.conversation(store.conversations().unwrap()[0].id).unwrap().messages;
    let answer = messages.last().unwrap();
    assert_eq!((messages.len(), answer.state), (2, MessageState::Complete));
    let events = store.events(answer.id).unwrap();
    assert!(matches!(events.last(), Some(GenerationEvent::Finished { .. })));
    assert_eq!((tokens(&events).len(), &answer.content), (200, &text_of(&events)));
}

/// Answers while no file may grow, and gives room again after the end.
#[cfg(unix)]
fn answer_on_quota(folder: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let app = start_on(folder, 1);
    let (sender, receiver) = mpsc::channel::<StreamMessage>();
    let request = endless_request(Method::Ngram, 200);
    let begun = app.answer(request, Box::new(move |message| drop(sender.send(message)))).unwrap();
    let before = getrlimit(Resource::Fsize);
    // Nothing is left of the room in the log that SQLite appends to.
    let bytes = std::fs::metadata(folder.join("conversations.db-wal")).unwrap().len();
    setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..before }).unwrap();
    let mut events = Vec::new();
    // The stream ends when the answer is written or given up.
    for event in receiver.iter().flat_map(|message| message.events) {
        if matches!(event, GenerationEvent::Finished { .. }) {
            setrlimit(Resource::Fsize, before).unwrap();
        }
        events.push(event);
    }
    let place = |wanted: fn(&GenerationEvent) -> bool| events.iter().position(wanted);
    let refused =
        place(|event| matches!(event, GenerationEvent::NotKept { .. })).expect("the refusal is reported");
    let end = place(|event| matches!(event, GenerationEvent::Finished { .. })).expect("the answer continues");
    assert!(refused < end);
    assert_eq!(events.last(), Some(&GenerationEvent::Kept));
    assert_eq!(answer(&app, begun.conversation, begun.answer).state, MessageState::Complete);
    app.shutdown();
}

const CHILD: &str = "HUNCH_TEST_ANSWERS_IN";
const KILLED: &str = "persistence::finished_answers_survive_a_kill_at_any_moment";
/// Times that an answer is cut short, by a few at once.
const KILLS: u32 = 100;
const AT_ONCE: u32 = 4;
/// Prints a line that differs from lines of the test harness.
fn say(what: impl serde::Serialize) {
    println!("said {}", serde_json::to_string(&what).unwrap());
}

/// Messages of the process that will be killed.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
enum ChildEvent {
    /// An answer is finished and kept.
    Finished { answer: i64, text: String },
    /// A long answer has begun.
    Began { conversation: i64, answer: i64 },
    /// A round of it: milliseconds since its first, and its text.
    Round { ms: f64, text: String },
}

/// Answers shortly, then at length, until it is killed.
fn answer_until_killed(folder: &Path) {
    let app = start_on(folder, 1);
    loop {
        let (conversation, short) = ask(&app, None, question(None, "in short"), 8);
        say(ChildEvent::Finished { answer: short, text: answer(&app, conversation, short).content });
        let request = AnswerRequest {
            conversation: Some(conversation),
            asking: question(Some(short), "at length"),
            ..endless_request(Method::Ngram, 2000)
        };
        let (sender, receiver) = mpsc::channel::<StreamMessage>();
        let begun = app.answer(request, Box::new(move |message| drop(sender.send(message)))).unwrap();
        say(ChildEvent::Began { conversation, answer: begun.answer });
        for event in receiver.iter().flat_map(|message| message.events) {
            let GenerationEvent::Round(round) = event else { continue };
            let figures = round.figures;
            let ms = f64::from(figures.generated_tokens) / figures.decode_tok_s * 1e3;
            say(ChildEvent::Round {
                ms,
                text: round.tokens.iter().map(|token| token.text.as_str()).collect(),
            });
        }
    }
}

/// Messages of a killed process, and what its store held of the last long answer just before the kill.
struct Killed {
    said: Vec<ChildEvent>,
    held: String,
}

/// Starts a process that answers, and kills it `ms` into a long answer. With `wait`, kills it only once the store holds
/// what was said by then.
fn killed_after(folder: &Path, ms: f64, wait: bool) -> Killed {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", KILLED, "--nocapture"])
        .env(CHILD, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The harness may print before the line.
    let mut events = lines.map_while(Result::ok).filter_map(|line| {
        let (_, json) = line.split_once("said ")?;
        serde_json::from_str::<ChildEvent>(json).ok()
    });
    let mut said = Vec::new();
    for event in events.by_ref() {
        let over = matches!(event, ChildEvent::Round { ms: now, .. } if now >= ms);
        said.push(event);
        if over {
            break;
        }
    }
    let ((_, long), rounds) = long_answer(&said);
    let streamed: usize = rounds.iter().map(|(_, text)| text.len()).sum();
    let store = Store::open_read_only(&folder.join("conversations.db")).unwrap();
    let begun = Instant::now();
    let held = loop {
        let held = text_of(&store.events(long).unwrap());
        if !wait || held.len() >= streamed {
            break held;
        }
        let state = store.message(long).unwrap().1.state;
        assert_eq!(state, MessageState::Streaming, "it was not written before its end");
        assert!(begun.elapsed() < PATIENCE, "{} of {streamed} bytes are written", held.len());
        std::thread::sleep(Duration::from_millis(2));
    };
    drop(store);
    child.kill().unwrap();
    child.wait().unwrap();
    // A busy machine lets the child say more before the kill.
    said.extend(events);
    Killed { said, held }
}

/// Returns conversation and id of the last long answer, and its rounds as times and texts.
fn long_answer(said: &[ChildEvent]) -> ((i64, i64), Vec<(f64, &str)>) {
    let last = said.iter().rposition(|said| matches!(said, ChildEvent::Began { .. }));
    let last = last.expect("it was killed in a long answer");
    let ChildEvent::Began { conversation, answer } = said[last] else { unreachable!() };
    let rounds = said[last..].iter().filter_map(|said| match said {
        ChildEvent::Round { ms, text } => Some((*ms, text.as_str())),
        _ => None,
    });
    ((conversation, answer), rounds.collect())
}

fn text_of(events: &[GenerationEvent]) -> String {
    tokens(events).iter().map(|token| token.text.as_str()).collect()
}

/// Counts of many kills.
#[derive(Default)]
struct Kills {
    /// Short answers that were finished.
    finished: usize,
    /// Long answers that were cut.
    cut: usize,
    /// Bytes of long answers that the store held before a kill.
    held: usize,
    /// The longest end of an answer that a kill has cost, in ms.
    longest_loss: f64,
}

/// Kills so often in one folder, and looks each time at what is kept.
fn killed_again_and_again(kills: std::ops::Range<u32>) -> Kills {
    let folder = tempfile::tempdir().unwrap();
    // Slow enough to be met in the middle of an answer.
    Tiny { layers: 12, context: 4096, ..Tiny::default() }.write(folder.path(), "target");
    let (mut finished, mut counts) = (Vec::new(), Kills::default());
    for kill in kills {
        let Killed { said, held } = killed_after(folder.path(), f64::from(kill * 5), kill % 2 == 1);
        finished.extend(said.iter().filter_map(|said| match said {
            ChildEvent::Finished { answer, text } => Some((*answer, text.clone())),
            _ => None,
        }));
        let store = Store::open(&folder.path().join("conversations.db")).unwrap();
        for (answer, text) in &finished {
            let (_, message) = store.message(*answer).unwrap();
            assert_eq!((message.state, &message.content), (MessageState::Complete, text));
        }
        let ((conversation, long), rounds) = long_answer(&said);
        let messages = store.conversation(conversation).unwrap().messages;
        assert!(messages.iter().all(|message| message.state != MessageState::Streaming));
        let kept = store.message(long).unwrap().1;
        assert_eq!(kept.content, text_of(&store.events(long).unwrap()), "the text is that of the tokens");
        assert!(kept.content.starts_with(&held), "what was written is lost");
        let streamed: String = rounds.iter().map(|(_, text)| *text).collect();
        assert!(
            kept.content.starts_with(&streamed) || streamed.starts_with(&kept.content),
            "another text is kept"
        );
        // The kill may have come after the end.
        if kept.state != MessageState::Complete {
            assert_eq!(kept.state, MessageState::Interrupted);
            counts.cut += 1;
        }
        let mut bytes = 0;
        let lost = rounds.iter().find(|(_, text)| {
            bytes += text.len();
            bytes > kept.content.len()
        });
        if let (Some((from, _)), Some((until, _))) = (lost, rounds.last()) {
            counts.longest_loss = counts.longest_loss.max(until - from);
        }
        counts.held += held.len();
    }
    counts.finished = finished.len();
    counts
}

/// A hundred times: nothing that was finished or written is lost, and an answer is written while it streams.
#[test]
fn finished_answers_survive_a_kill_at_any_moment() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return answer_until_killed(Path::new(&folder));
    }
    let share = KILLS / AT_ONCE;
    let counts: Vec<Kills> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|worker| scope.spawn(move || killed_again_and_again(worker * share..(worker + 1) * share)))
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let sum = |of: fn(&Kills) -> usize| counts.iter().map(of).sum::<usize>();
    let (finished, cut) = (sum(|counts| counts.finished), sum(|counts| counts.cut));
    let loss = counts.iter().fold(0.0, |longest: f64, counts| longest.max(counts.longest_loss));
    println!("{KILLED}: {KILLS} kills, {cut} inside of an answer, {finished} finished answers, none lost;");
    println!("at most the last {loss:.0} ms of an answer");
    assert!(finished >= KILLS as usize && cut > 0 && sum(|counts| counts.held) > 0);
}
