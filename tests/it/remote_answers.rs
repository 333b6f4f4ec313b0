//! Answers of servers in conversations: `App` against `hunch serve` and against scripted servers, without any model
//! of its own.

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use hunch::api::{
    AnswerRequest, AnsweredBy, Asking, ExportFormat, ExportWords, KeyPlace, MessageState, StoredMessage,
};
use hunch::app::{App, AppConfig};
use hunch::bench::compare::report::{CompareEvent, CompareRequest, ComparedServer, ComparisonReport};
use hunch::event::{GenerationEvent, ServerFigures, StopReason};
use hunch::server_answers::{ServerKind, SpeculationSource};
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenOrigin;
use hunch_error::{Error, ErrorCode, ErrorInfo, Refusal};
use hunch_library::http::BearerSecret;
use hunch_library::keychain::Keychain;
use serde_json::{Value, json};

use crate::compare::request as compare_request;
use crate::remote::{Script, Scripted, delta, events};
use crate::serve::{CANCELLED, LONG, RUNNING, config, serve, wait_for};
use crate::support::app::{app, app_with_models, config as app_config};
use crate::support::requests::endless_request;

const PATIENCE: Duration = Duration::from_secs(60);

/// A port of the system that no test can be given.
const CLOSED: &str = "127.0.0.1:9";

/// Adds the server and returns its address in the list.
fn add(app: &App, address: &str, key: Option<&str>) -> String {
    app.add_server(address, key).unwrap().address
}

fn request(address: &str, model: &str, asking: Asking) -> AnswerRequest {
    let by = AnsweredBy::Server { address: address.into(), model: model.into() };
    let mut request = AnswerRequest { asking, by, ..endless_request(Method::Plain, 40) };
    request.settings.sampling = SamplingParams::greedy();
    request
}

fn question(parent: Option<i64>) -> Asking {
    Asking::Question { parent, text: "abc abc".into(), attachments: Vec::new() }
}

/// Asks, waits for the end and returns the number of the conversation and of the answer, and its events.
fn ask(app: &App, request: AnswerRequest) -> (i64, i64, Vec<GenerationEvent>) {
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| drop(sender.send(message)));
    let begun = app.answer(request, sink).unwrap();
    let mut events = Vec::new();
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        events.extend(message.events);
    }
    (begun.conversation, begun.answer, events)
}

fn text(events: &[GenerationEvent]) -> String {
    events.iter().flat_map(GenerationEvent::tokens).map(|token| token.text.as_str()).collect()
}

fn finished(events: &[GenerationEvent]) -> (&StopReason, &ServerFigures) {
    match events.last() {
        Some(GenerationEvent::ServerFinished { stop, figures }) => (stop, figures),
        other => panic!("the last event is {other:?}"),
    }
}

fn failed(events: &[GenerationEvent]) -> &ErrorInfo {
    match events.last() {
        Some(GenerationEvent::Failed { error }) => error,
        other => panic!("the last event is {other:?}"),
    }
}

fn stored(app: &App, conversation: i64, message: i64) -> StoredMessage {
    let whole = app.open_conversation(conversation).unwrap();
    whole.messages.into_iter().find(|other| other.id == message).unwrap()
}

fn scripted(app: &App, script: Script) -> (Scripted, String) {
    let server = Scripted::start(script);
    let address = add(app, &server.address.to_string(), None);
    (server, address)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn hunch_server_answers_without_loaded_models_and_keeps_origins() {
    let (folder, server) = (folder(), serve(LONG, config()));
    let app = app(folder.path());
    let address = add(&app, &server.address.to_string(), None);
    let check = app.check_server(&address).unwrap();
    let model = &check.models[0];
    assert_eq!((model.id.as_str(), model.kind), ("tiny", ServerKind::Hunch));

    let (chat, answer, told) = ask(&app, request(&address, "tiny", question(None)));
    let GenerationEvent::ServerStarted { address: asked, kind, model, .. } = &told[0] else {
        panic!("{:?}", told[0])
    };
    assert_eq!((asked, *kind, model.as_str()), (&address, ServerKind::Hunch, "tiny"));
    let (stop, figures) = finished(&told);
    assert_eq!(*stop, StopReason::MaxTokens);
    let tokens: Vec<_> = told.iter().flat_map(GenerationEvent::tokens).collect();
    let accepted = tokens.iter().filter(|token| token.origin == TokenOrigin::Accepted).count() as u64;
    let speculation = figures.speculation.unwrap();
    assert_eq!((speculation.accepted, speculation.source), (accepted, SpeculationSource::Hunch));
    assert!(accepted > 0 && figures.measured_tok_s.unwrap() > 0.0 && figures.tokens_per_pass.unwrap() > 1.0);
    assert_eq!(figures.usage.unwrap().generated, tokens.len() as u64);

    // Stored with the names of server and model, and found again.
    let message = stored(&app, chat, answer);
    let settings = message.settings.unwrap();
    assert_eq!((settings.target.as_str(), settings.server.as_deref()), ("tiny", Some(address.as_str())));
    assert_eq!((message.content, message.state), (text(&told), MessageState::Complete));
    assert_eq!(app.answer_events(answer).unwrap(), told);
    // Figures of a server are none of this machine's.
    assert_eq!(app.acceptance_map(None).unwrap().answers, 0);
    assert!(app.lab_sessions().unwrap().is_empty());
    let words =
        ExportWords { untitled: "Untitled".into(), question: "Question".into(), answer: "Answer".into() };
    let file = folder.path().join("chat.md");
    app.export_conversation(chat, ExportFormat::Markdown, &words, &file).unwrap();
    assert!(std::fs::read_to_string(file).unwrap().contains(&format!("## tiny ({address})")));
}

#[test]
fn answers_branch_with_their_history() {
    let folder = folder();
    let app = app(folder.path());
    let chunks = [
        delta(json!({ "reasoning": "Hm" }), Value::Null),
        delta(json!({ "content": "Hello" }), json!("stop")),
    ];
    let (server, address) = scripted(&app, Script::of_chunks("someone", &chunks));
    let (chat, first, told) = ask(&app, request(&address, "second", question(None)));
    assert_eq!(text(&told), "<think>Hm</think>\n\nHello");
    let asked = stored(&app, chat, first).parent.unwrap();
    let again = AnswerRequest {
        conversation: Some(chat),
        ..request(&address, "first", Asking::Again { question: asked })
    };
    let (_, other, _) = ask(&app, again);
    assert_eq!(stored(&app, chat, other).parent, Some(asked));
    assert_eq!(stored(&app, chat, other).settings.unwrap().target, "first");
    let next =
        AnswerRequest { conversation: Some(chat), ..request(&address, "second", question(Some(first))) };
    ask(&app, next);
    let bodies = server.bodies();
    assert_eq!((&bodies[1]["model"], bodies[1]["messages"].as_array().unwrap().len()), (&json!("first"), 1));
    let roles: Vec<_> = bodies[2]["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    // The reasoning of an earlier answer is left out, as chat templates do.
    assert_eq!(bodies[2]["messages"][1]["content"], "Hello");
    for absent in ["top_k", "min_p", "repeat_penalty", "logit_bias", "hunch"] {
        assert!(bodies[0].get(absent).is_none(), "{absent} was sent to a server of unknown kind");
    }
    let continued = AnswerRequest {
        conversation: Some(chat),
        ..request(&address, "first", Asking::Continue { answer: first, tokens: None, then: None })
    };
    let refused = app.answer(continued, Box::new(|_| {})).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::ServerCannotContinue)), "{refused}");
}

#[test]
fn stopping_cancels_the_answer_on_the_server() {
    let (folder, server) = (folder(), serve(LONG, config()));
    let app = app(folder.path());
    let address = add(&app, &server.address.to_string(), None);
    let mut endless = request(&address, "tiny", question(None));
    endless.settings.max_tokens = 60_000;
    let (sender, receiver) = channel();
    let begun = app.answer(endless, Box::new(move |message| drop(sender.send(message)))).unwrap();
    wait_for(server.address, RUNNING, 1);
    let busy = app.answer(request(&address, "tiny", question(None)), Box::new(|_| {})).unwrap_err();
    assert!(matches!(busy, Error::Busy(_)), "{busy}");
    app.stop_generation(begun.generation_id);
    let told: Vec<_> = receiver.iter().flat_map(|message| message.events).collect();
    let (stop, figures) = finished(&told);
    assert_eq!((stop, figures.speculation), (&StopReason::Cancelled, None));
    wait_for(server.address, CANCELLED, 1);
    assert_eq!(stored(&app, begun.conversation, begun.answer).state, MessageState::Complete);
    // The next question can be asked at once.
    ask(&app, request(&address, "tiny", question(None)));
}

#[test]
fn figures_of_other_servers_are_named_as_theirs() {
    let folder = folder();
    let app = app(folder.path());
    let mut last = delta(json!({ "content": "Hello" }), json!("stop"));
    last["timings"] = json!({ "predicted_per_second": 40.0, "draft_n": 12, "draft_n_accepted": 9 });
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 16 } });
    let (_server, address) = scripted(&app, Script::of_chunks("llamacpp", &[last, usage]));
    let (.., told) = ask(&app, request(&address, "first", question(None)));
    let (_, figures) = finished(&told);
    let speculation = figures.speculation.unwrap();
    assert_eq!((speculation.drafted, speculation.accepted), (12, 9));
    assert_eq!(speculation.source, SpeculationSource::LlamaCppTimings);
    assert_eq!((figures.reported_tok_s, figures.tokens_per_pass), (Some(40.0), Some(16.0 / 7.0)));
    assert!(told.iter().flat_map(GenerationEvent::tokens).all(|token| token.origin == TokenOrigin::Plain));
}

#[test]
fn cut_stream_keeps_the_text_and_says_what_to_do() {
    let folder = folder();
    let app = app(folder.path());
    let script = Script::new("vllm", events(&[delta(json!({ "content": "Half an" }), Value::Null)]));
    let (_server, address) = scripted(&app, script);
    let (chat, answer, told) = ask(&app, request(&address, "first", question(None)));
    let error = failed(&told);
    assert_eq!(error.code, ErrorCode::Server);
    assert!(error.message.contains("ended before its answer did. Try again."), "{error:?}");
    let message = stored(&app, chat, answer);
    assert_eq!((message.content.as_str(), message.state), ("Half an", MessageState::Failed));
}

#[test]
fn failures_name_their_cause() {
    let folder = folder();
    let app = app(folder.path());
    let cause = |status, body: &str, model: &str| {
        let mut script = Script::new("someone", body.to_owned());
        script.status = status;
        let (_server, address) = scripted(&app, script);
        let (.., told) = ask(&app, request(&address, model, question(None)));
        failed(&told).clone()
    };
    let wrong_key = cause(StatusCode::UNAUTHORIZED, "{}", "first");
    assert!(wrong_key.message.contains("status 401") && wrong_key.message.contains("key"), "{wrong_key:?}");
    let mut page = Script::new("someone", "<html>a start page</html>".into());
    page.content_type = "text/html";
    let (_server, address) = scripted(&app, page);
    let (.., told) = ask(&app, request(&address, "first", question(None)));
    let error = failed(&told);
    assert!(
        error.message.contains("it sent a web page") && error.message.contains("Check the address"),
        "{error:?}"
    );
    let gone = cause(StatusCode::OK, "", "gone");
    assert_eq!(gone.code, ErrorCode::ModelNotFound);
    assert!(
        gone.message.contains("It offers: first, second.") && gone.params["address"].contains("127.0.0.1"),
        "{gone:?}"
    );

    let address = add(&app, CLOSED, None);
    let unreachable = app.check_server(&address).unwrap_err().to_string();
    assert!(
        unreachable.contains("no connection") && unreachable.contains("Check that it runs"),
        "{unreachable}"
    );
    let (.., told) = ask(&app, request(&address, "first", question(None)));
    assert_eq!(failed(&told).code, ErrorCode::Server);

    let unknown = request("http://127.0.0.1:1/v1", "first", question(None));
    let refused = app.answer(unknown, Box::new(|_| {})).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::NoSuchServer { .. })), "{refused}");
}

#[test]
fn servers_are_listed_until_removed_and_their_keys_are_stored_nowhere() {
    let folder = folder();
    let address = {
        let app = app(folder.path());
        let address = add(&app, "127.0.0.1:8080", Some(" sk-secret "));
        assert_eq!(app.servers().unwrap().servers[0].key, KeyPlace::Memory);
        // Without a key, the one it has stays.
        add(&app, "http://127.0.0.1:8080/v1/", None);
        let list = app.servers().unwrap();
        assert_eq!((list.servers.len(), list.servers[0].key), (1, KeyPlace::Memory));
        app.shutdown();
        address
    };
    assert!(!contains(folder.path(), b"sk-secret"), "the key is in a file");
    let app = app(folder.path());
    let list = app.servers().unwrap();
    assert_eq!((list.servers[0].address.as_str(), list.servers[0].key), (address.as_str(), KeyPlace::Absent));
    app.remove_server(&address).unwrap();
    assert!(app.servers().unwrap().servers.is_empty());
}

/// A keychain in memory, which can be locked.
#[derive(Debug, Default)]
struct MemoryKeychain {
    secrets: Mutex<HashMap<String, BearerSecret>>,
    locked: AtomicBool,
}

impl Keychain for MemoryKeychain {
    fn is_available(&self) -> bool {
        true
    }

    fn read(&self, account: &str) -> Result<Option<BearerSecret>, String> {
        match self.locked.load(Ordering::Relaxed) {
            true => Err("it is locked".into()),
            false => Ok(self.secrets.lock().unwrap().get(account).cloned()),
        }
    }

    fn write(&self, account: &str, secret: Option<&BearerSecret>) -> Result<(), String> {
        let mut secrets = self.secrets.lock().unwrap();
        match secret {
            Some(secret) => drop(secrets.insert(account.into(), secret.clone())),
            None => drop(secrets.remove(account)),
        }
        Ok(())
    }
}

#[test]
fn keychain_keeps_a_key_over_runs_until_its_server_is_removed() {
    let (folder, keychain) = (folder(), Arc::<MemoryKeychain>::default());
    let start =
        || App::start(AppConfig { keychain: Some(keychain.clone()), ..app_config(folder.path()) }).unwrap();
    let chunks = [delta(json!({ "content": "Hello" }), json!("stop"))];
    let server = Scripted::start(Script::of_chunks("someone", &chunks));
    let address = add(&start(), &server.address.to_string(), Some("sk-secret"));
    assert!(!contains(folder.path(), b"sk-secret"), "the key is in a file");
    let app = start();
    let list = app.servers().unwrap();
    assert_eq!((list.keychain, list.servers[0].key), (true, KeyPlace::Keychain));
    keychain.locked.store(true, Ordering::Relaxed);
    let refused = app.answer(request(&address, "first", question(None)), Box::new(|_| {})).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::ServerKeychainFailed { .. })), "{refused}");
    keychain.locked.store(false, Ordering::Relaxed);
    ask(&app, request(&address, "first", question(None)));
    assert_eq!(server.script.received.lock().unwrap()[0].1.as_deref(), Some("Bearer sk-secret"));
    app.remove_server(&address).unwrap();
    assert!(keychain.secrets.lock().unwrap().is_empty());
}

#[test]
fn keys_are_refused_for_addresses_that_others_can_read() {
    let folder = folder();
    let app = app(folder.path());
    let refused = app.add_server("http://host:8000", Some("sk-secret")).unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::UnencryptedKey { .. })), "{refused}");
    assert!(!refused.to_string().contains("secret") && app.servers().unwrap().servers.is_empty());
    assert!(!app.add_server("http://host:8000", None).unwrap().takes_key);
    assert!(app.add_server("https://host", Some("sk-secret")).unwrap().takes_key);
    let malformed = app.add_server("https://host", Some("two words")).unwrap_err();
    assert!(matches!(malformed, Error::Refused(Refusal::NotAServerKey)), "{malformed}");
}

#[test]
fn redirect_is_not_followed_and_gets_no_key() {
    let folder = folder();
    let app = app(folder.path());
    let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    other.set_nonblocking(true).unwrap();
    let mut script = Script::of_chunks("someone", &[delta(json!({ "content": "Hello" }), json!("stop"))]);
    script.status = StatusCode::TEMPORARY_REDIRECT;
    script.location = Some(format!("http://{}/v1/chat/completions", other.local_addr().unwrap()));
    let server = Scripted::start(script);
    let address = add(&app, &server.address.to_string(), Some("sk-secret"));
    let (.., told) = ask(&app, request(&address, "first", question(None)));
    let error = failed(&told);
    assert!(error.message.contains("It redirects to another address."), "{error:?}");
    assert_eq!(server.script.received.lock().unwrap()[0].1.as_deref(), Some("Bearer sk-secret"));
    assert!(other.accept().is_err(), "the other host was asked");
    assert!(!format!("{told:?}").contains("secret"));
}

/// Returns whether a file in the folder contains the text. A running app replaces files while this reads: one that is
/// gone contains nothing.
fn contains(folder: &Path, text: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => contains(&path, text),
            false => match std::fs::read(path) {
                Ok(bytes) => bytes.windows(text.len()).any(|window| window == text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
                Err(error) => panic!("{error}"),
            },
        }
    })
}

#[test]
fn stop_while_the_server_of_a_comparison_answers_keeps_the_lanes() {
    let folder = folder();
    let app = app_with_models(folder.path(), false);
    let chunks = [delta(json!({ "content": "Merge" }), Value::Null), delta(json!({}), json!("stop"))];
    let mut script = Script::of_chunks("llamacpp", &chunks);
    script.whole_answers = 2;
    let (server, address) = scripted(&app, script);
    let server_of_lane = Some(ComparedServer { address, model: "first".into() });
    let asked = CompareRequest { server: server_of_lane, runs: 3, ..compare_request(&[Method::Ngram], 12) };
    let (sender, receiver) = channel();
    let id = app.compare(asked, Box::new(move |message| drop(sender.send(message)))).unwrap();
    while server.bodies().len() < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    app.stop_measurement(id);
    let told: Vec<_> = receiver.iter().flat_map(|message| message.events).collect();
    assert!(matches!(told.last(), Some(CompareEvent::Finished { stopped: true, .. })), "{:?}", told.last());
    let (report, _) = compared(&told);
    let theirs = report.server.as_ref().unwrap();
    assert!(theirs.answers.len() == 2 && theirs.error.is_none(), "{theirs:?}");
    assert_eq!(report.lanes.len(), 2);
}

#[test]
fn stopped_comparison_leaves_no_start_of_an_answer() {
    let folder = folder();
    let app = app_with_models(folder.path(), false);
    let half = events(&[delta(json!({ "content": "Merge" }), Value::Null)]);
    let mut script = Script::new("llamacpp", half);
    script.whole_answers = 0;
    let (server, address) = scripted(&app, script);
    let server_of_lane = Some(ComparedServer { address, model: "first".into() });
    let asked = CompareRequest { server: server_of_lane, ..compare_request(&[Method::Ngram], 12) };
    let (sender, receiver) = channel();
    let id = app.compare(asked, Box::new(move |message| drop(sender.send(message)))).unwrap();
    while server.bodies().is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // The start of the answer has arrived by then.
    std::thread::sleep(Duration::from_millis(300));
    app.stop_measurement(id);
    let told: Vec<_> = receiver.iter().flat_map(|message| message.events).collect();
    let (report, _) = compared(&told);
    let theirs = report.server.as_ref().unwrap();
    assert!(theirs.error.is_none() && theirs.answers.is_empty());
    assert_eq!(theirs.cut_off, None);
}

/// Compares with a server next to the lanes and returns the events.
fn compare(app: &App, address: &str) -> Vec<CompareEvent> {
    compare_with(app, address, "tiny")
}

fn compare_with(app: &App, address: &str, model: &str) -> Vec<CompareEvent> {
    let server = Some(ComparedServer { address: address.into(), model: model.into() });
    let asked = CompareRequest { server, ..compare_request(&[Method::Ngram], 12) };
    let (sender, receiver) = channel();
    app.compare(asked, Box::new(move |message| drop(sender.send(message)))).unwrap();
    receiver.iter().flat_map(|message| message.events).collect()
}

fn compared(events: &[CompareEvent]) -> (&ComparisonReport, i64) {
    match events.last() {
        Some(CompareEvent::Finished { report: Some(report), kept: Some(kept), .. }) => (report, *kept),
        other => panic!("the last event is {other:?}"),
    }
}

#[test]
fn server_answers_the_prompts_of_a_comparison_after_the_lanes() {
    let (folder, server) = (folder(), serve(LONG, config()));
    let app = app_with_models(folder.path(), false);
    let address = add(&app, &server.address.to_string(), None);
    let told = compare(&app, &address);
    let (report, kept) = compared(&told);
    let theirs = report.server.as_ref().unwrap();
    assert_eq!((theirs.answers.len(), theirs.kind), (report.setting.turns(), Some(ServerKind::Hunch)));
    assert!(theirs.error.is_none() && theirs.tok_s.unwrap() > 0.0 && theirs.first_ms.unwrap() > 0.0);
    let accepted =
        theirs.answers.iter().map(|answer| answer.figures.speculation.unwrap().accepted).sum::<u64>();
    assert_eq!(theirs.speculation.unwrap().accepted, accepted);
    let lane = told.iter().rposition(|event| matches!(event, CompareEvent::Lane { .. })).unwrap();
    let first = told.iter().position(|event| matches!(event, CompareEvent::Server { done: 0, .. })).unwrap();
    assert!(lane < first, "the server is asked while lanes run");
    assert_eq!(app.open_comparison(kept).unwrap().server.as_ref(), Some(theirs));
}

#[test]
fn failing_server_leaves_the_result_of_the_lanes() {
    let folder = folder();
    let app = app_with_models(folder.path(), false);
    let address = add(&app, CLOSED, None);
    let told = compare(&app, &address);
    let (report, _) = compared(&told);
    let theirs = report.server.as_ref().unwrap();
    assert_eq!((report.lanes.len(), theirs.answers.len()), (2, 0));
    assert_eq!(theirs.error.as_ref().unwrap().code, ErrorCode::Server);
    assert_eq!(theirs.cut_off, None, "it said nothing");
}

#[test]
fn text_before_the_failure_of_a_server_stays_in_the_comparison() {
    let folder = folder();
    let app = app_with_models(folder.path(), false);
    // The stream ends without an end of the answer.
    let half = events(&[delta(json!({ "content": "Merge" }), Value::Null)]);
    let (_server, address) = scripted(&app, Script::new("llamacpp", half));
    let told = compare_with(&app, &address, "first");
    let (report, kept) = compared(&told);
    let theirs = report.server.as_ref().unwrap();
    assert_eq!(theirs.error.as_ref().unwrap().code, ErrorCode::Server);
    let begun = theirs.cut_off.as_ref().unwrap();
    assert_eq!((begun.prompt, begun.run, begun.text.as_str()), (0, 0, "Merge"));
    assert_eq!(app.open_comparison(kept).unwrap().server.as_ref(), Some(theirs));
}
