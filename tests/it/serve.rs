//! The HTTP server: real connections to a tiny model.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hunch::generate::{GenerationPlan, Models};
use hunch::serve::{Limits, ServerConfig, listen};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::Error;
use hunch_model::device::{Compute, DeviceChoice};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::cli::{command, hunch, last_json};
use crate::support::http::{self, get, post, read_response, send};
use crate::support::tiny::{END_OF_TURN, Tiny};

const CHAT: &str = "/v1/chat/completions";
const JSON: &str = "Content-Type: application/json\r\n";

/// A server on a thread of its own. Ends when dropped.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

pub(super) fn config() -> ServerConfig {
    let plan = GenerationPlan {
        method: Method::Ngram,
        max_draft: MaxDraft::Fixed(3),
        sampling: SamplingParams::greedy(),
        ..GenerationPlan::default()
    };
    let limits = Limits { grace: Duration::from_millis(200), ..Limits::default() };
    ServerConfig {
        address: ([127, 0, 0, 1], 0).into(),
        model: "tiny".into(),
        installed: None,
        idle: None,
        plan,
        api_key: None,
        queue: 64,
        conversations: 4,
        limits,
    }
}

fn models(folder: &Path, tiny: &Tiny) -> (Models, Compute) {
    let target = tiny.write(folder, "tiny");
    let compute = Compute::open(DeviceChoice::Cpu, Some(1)).unwrap();
    (Models::load(&target, None, &compute).unwrap(), compute)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn tiny(context: u32) -> Tiny {
    Tiny { context, ..Tiny::default() }
}

pub(super) fn serve(context: u32, config: ServerConfig) -> Running {
    serve_model(&tiny(context), config)
}

/// Serves a model on a thread of its own.
pub(super) fn serve_model(tiny: &Tiny, config: ServerConfig) -> Running {
    serve_in(tiny, |_| config)
}

/// Serves a model, with settings that may depend on its folder.
pub(super) fn serve_in(tiny: &Tiny, config: impl FnOnce(&Path) -> ServerConfig) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let (models, compute) = models(folder.path(), tiny);
    let (address_sender, address) = channel();
    let (stop, stopped) = oneshot::channel();
    let thread = thread::spawn(move || {
        runtime().block_on(async move {
            let listening = listen(models, compute, config).await.unwrap();
            address_sender.send(listening.address()).unwrap();
            listening.run(async { drop(stopped.await) }).await;
        });
    });
    Running { address: address.recv().unwrap(), stop: Some(stop), thread: Some(thread), _folder: folder }
}

/// Returns a chat request with further fields.
fn chat(text: &str, max_tokens: u32, fields: &Value) -> Value {
    let mut body = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": text }],
        "max_tokens": max_tokens,
        "logit_bias": { END_OF_TURN.to_string(): -100 },
    });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Returns a request whose answer takes longer than any test.
fn endless() -> Value {
    chat("abc", 60_000, &json!({ "stream": true }))
}

pub(super) const LONG: u32 = 1 << 16;

pub(super) fn metric(address: SocketAddr, name: &str) -> u64 {
    let text = get(address, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Waits until a metric has a value.
pub(super) fn wait_for(address: SocketAddr, name: &str, value: u64) {
    for _ in 0..6000 {
        if metric(address, name) == value {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} is {}, not {value}", metric(address, name));
}

pub(super) const RUNNING: &str = "hunch_num_requests_running";
const WAITING: &str = "hunch_num_requests_waiting";
pub(super) const CANCELLED: &str = "hunch_requests_total{outcome=\"cancelled\"}";
const CONVERSATIONS: &str = "hunch_cached_conversations";
const FINISHED: &str = "hunch_requests_total{outcome=\"finished\"}";

fn parsed(events: Vec<String>) -> Vec<Value> {
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// Joins the texts of chunks.
fn joined(chunks: &[Value]) -> String {
    let text = |chunk: &Value| {
        let choice = &chunk["choices"][0];
        choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or("").to_owned()
    };
    chunks.iter().map(text).collect()
}

/// A started program that ends with the test, even if that fails.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the program has ended.
        let _ = self.0.kill();
    }
}

#[test]
fn stream_whole_and_command_line_give_the_same_text() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    Tiny::default().write(&models, "tiny");
    let options = ["--target", "tiny", "--method", "ngram", "--max-draft", "3"];
    let served = [&["serve", "--port", "0", "--json"], &options[..]].concat();
    let mut server = Program(command(data.path(), &served).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let started: Value = serde_json::from_str(&line).unwrap();
    let address: SocketAddr =
        started["url"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
    assert_eq!((&started["model"], &started["method"]), (&json!("tiny"), &json!("ngram")));

    for (temperature, raw) in [("0", false), ("0", true), ("0.8", false), ("0.8", true)] {
        let sampling = ["--temperature", temperature, "--seed", "5", "--max-tokens", "40", "--json"];
        let raw_option: &[&str] = if raw { &["--raw"] } else { &[] };
        let run = [&["run", "abc abc abc"], &options[..], &sampling, raw_option].concat();
        let ran = last_json(&hunch(data.path(), &run));
        let (path, asked) = if raw {
            ("/v1/completions", json!({ "prompt": "abc abc abc" }))
        } else {
            (CHAT, json!({ "messages": [{ "role": "user", "content": "abc abc abc" }] }))
        };
        let mut body = asked;
        body["model"] = json!("tiny");
        body["temperature"] = temperature.parse::<f64>().unwrap().into();
        body["seed"] = json!(5);
        body["max_tokens"] = json!(40);
        let whole = post(address, path, &body).json();
        let choice = &whole["choices"][0];
        let text = if raw { &choice["text"] } else { &choice["message"]["content"] };
        assert_eq!(text, &ran["text"], "{temperature} {raw}");
        assert_eq!(whole["usage"]["completion_tokens"], ran["stats"]["generated_tokens"]);
        assert!(!text.as_str().unwrap().is_empty());
        body["stream"] = json!(true);
        let chunks = parsed(post(address, path, &body).events());
        assert_eq!(joined(&chunks), ran["text"].as_str().unwrap(), "{temperature} {raw}");
        assert!(chunks.len() > 3, "one chunk for each round");
    }
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn reports_usage_probabilities_and_origins_on_request() {
    let server = serve(512, config());
    let plain = post(server.address, CHAT, &chat("abc abc", 20, &json!({}))).json();
    assert_eq!(plain["object"], "chat.completion");
    assert_eq!(plain["choices"][0]["finish_reason"], "length");
    assert!(plain.get("hunch").is_none());
    assert_eq!(plain["usage"]["completion_tokens"], 20);
    assert_eq!(plain["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let asked = json!({
        "hunch": true, "logprobs": true, "top_logprobs": 3, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let chunks = parsed(post(server.address, CHAT, &chat("abc abc", 20, &asked)).events());
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 20);
    // The second request has the prompt of the first, whose last token is run again.
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    let list = |chunk: &Value, name: &str| chunk["hunch"][name].as_array().cloned().unwrap_or_default();
    let texts: Vec<Value> = chunks.iter().flat_map(|chunk| list(chunk, "texts")).collect();
    let origins: Vec<Value> = chunks.iter().flat_map(|chunk| list(chunk, "origins")).collect();
    assert_eq!((texts.len(), origins.len()), (20, 20));
    let text: String = texts.iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(plain["choices"][0]["message"]["content"], text);
    let entries = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    let entries: Vec<Value> = entries.collect();
    assert_eq!(entries.len(), 20);
    for entry in &entries {
        // Greedy: the token is the most likely one.
        // Alternatives whose probability rounds to 0 are left out.
        assert!((1..=3).contains(&entry["top_logprobs"].as_array().unwrap().len()), "{entry}");
        assert_eq!(entry["top_logprobs"][0]["bytes"], entry["bytes"]);
        assert!((-6.0..=0.0).contains(&entry["logprob"].as_f64().unwrap()), "{entry}");
    }
    let end = &chunks[chunks.len() - 2]["hunch"];
    let stats = &end["stats"];
    let accepted = origins.iter().filter(|origin| *origin == "accepted").count();
    assert_eq!(stats["accepted"], accepted);
    assert_eq!(
        (&end["rounds"], &end["method"], &end["stop"]),
        (&stats["rounds"], &json!("ngram"), &json!("max_tokens"))
    );
    assert_eq!(metric(server.address, "hunch_generation_tokens_total"), 40);
    assert_eq!(metric(server.address, "hunch_prompt_tokens_total"), 2 * prompt);
    assert_eq!(metric(server.address, "hunch_prefilled_tokens_total"), prompt - 1);
    assert_eq!(metric(server.address, "hunch_spec_decode_num_accepted_tokens_total"), 2 * accepted as u64);
}

#[test]
fn speedup_is_predicted_from_rounds_without_a_draft() {
    let mut config = config();
    config.plan.method = Method::Plain;
    let server = serve(512, config);
    let asked = json!({ "hunch": true, "stream": true });
    let chunks = parsed(post(server.address, CHAT, &chat("abc abc", 20, &asked)).events());
    let told: Vec<f64> =
        chunks.iter().filter_map(|chunk| chunk["hunch"]["predicted_speedup"].as_f64()).collect();
    // Every round drafted nothing, so only the time between rounds makes a difference to 1.
    assert!(told.len() > 10 && told.iter().all(|speedup| (0.0..2.0).contains(speedup)), "{told:?}");
}

#[test]
fn conversations_that_take_turns_keep_their_caches() {
    let cached = |server: &Running, text: &str| {
        let usage = post(server.address, CHAT, &chat(text, 8, &json!({}))).json()["usage"].clone();
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        prompt - 1 - usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let (sky, sea) = ("How is the sky today? ".repeat(6), "Where does the river meet the sea? ".repeat(6));
    for (conversations, kept) in [(2, true), (1, false)] {
        let server = serve(2048, ServerConfig { conversations, ..config() });
        for text in [&sky, &sea] {
            assert!(cached(&server, text) > 100, "{text} is new");
        }
        for text in [&sky, &sea, &sky] {
            assert_eq!(cached(&server, text) == 0, kept, "{conversations} {text}");
        }
        // A third conversation takes the place of the one that was used least recently.
        let third = "What is a whale? ".repeat(8);
        assert!(cached(&server, &third) > 100);
        if kept {
            assert_eq!((cached(&server, &sky), cached(&server, &third)), (0, 0));
            assert!(cached(&server, &sea) > 100);
        }
        assert_eq!(metric(server.address, CONVERSATIONS), conversations as u64);
        assert!(metric(server.address, "hunch_cache_bytes") > 0);
    }
}

#[test]
fn stop_strings_end_both_protocols_before_the_string() {
    let server = serve(512, config());
    let whole = post(server.address, CHAT, &chat("abc abc", 30, &json!({}))).json();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let letters: Vec<char> = text.chars().collect();
    let stop: String = letters[8..10].iter().collect();
    let before = &text[..text.find(&stop).unwrap()];
    let stopped =
        post(server.address, CHAT, &chat("abc abc", 30, &json!({ "stop": ["never", stop] }))).json();
    assert_eq!(stopped["choices"][0]["message"]["content"], before);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let body = json!({
        "model": "tiny", "max_tokens": 30, "stop_sequences": ["never", stop],
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "abc abc" }] }],
    });
    let message = post(server.address, "/v1/messages", &body).json();
    assert_eq!(message["content"][0]["text"], before);
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn messages_stream_counts_and_continue_a_begun_answer() {
    let server = serve(512, config());
    let mut body = json!({
        "model": "tiny", "max_tokens": 24, "system": "Be brief.",
        "messages": [{ "role": "user", "content": "abc abc" }],
        "logit_bias": { END_OF_TURN.to_string(): -100 },
    });
    let whole = post(server.address, "/v1/messages", &body).json();
    let text = whole["content"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    assert_eq!(whole["usage"]["output_tokens"], 24);
    let openai = chat(
        "abc abc",
        24,
        &json!({ "messages": [
        { "role": "developer", "content": "Be brief." }, { "role": "user", "content": "abc abc" },
    ] }),
    );
    assert_eq!(post(server.address, CHAT, &openai).json()["choices"][0]["message"]["content"], text);

    body["stream"] = json!(true);
    body["hunch"] = json!(true);
    let events = post(server.address, "/v1/messages", &body).events();
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(deltas, text);
    let origins = |event: &Value| event["hunch"]["origins"].as_array().map_or(0, Vec::len);
    assert_eq!(events.iter().map(origins).sum::<usize>(), 24);

    let mut question = body.clone();
    for name in ["max_tokens", "stream", "hunch", "logit_bias"] {
        question.as_object_mut().unwrap().remove(name);
    }
    let counted = post(server.address, "/v1/messages/count_tokens", &question).json();
    assert_eq!(counted["input_tokens"], whole["usage"]["input_tokens"]);

    // ASCII only, so that the tokens of the text are its bytes.
    let begun: String = "The sky ".into();
    body["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": begun }));
    body["stream"] = json!(false);
    let continued = post(server.address, "/v1/messages", &body).json();
    let expected = whole["usage"]["input_tokens"].as_u64().unwrap() + begun.len() as u64;
    assert_eq!(continued["usage"]["input_tokens"], expected);
    assert!(!continued["content"][0]["text"].as_str().unwrap().starts_with(&begun));
}

fn schema(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "place", "schema": schema } })
}

/// A tiny random model writes noise, so the form of its answer comes from the schema alone.
#[test]
fn answers_follow_a_schema_whatever_drafts() {
    let place = json!({
        "type": "object",
        "properties": {
            "city": { "enum": ["Paris", "Rome", "Roma"] },
            "size": { "type": "integer", "minimum": 1, "maximum": 99 },
            "tags": { "type": "array", "items": { "enum": ["old", "big"] }, "maxItems": 2 },
        },
        "required": ["city", "size", "tags"],
        "additionalProperties": false,
    });
    let by = |method| {
        let mut config = config();
        (config.plan.method, config.plan.rule) = (method, AcceptanceRule::Coupled);
        serve(512, config)
    };
    let (server, plain) = (by(Method::Ngram), by(Method::Plain));
    let mut cities = BTreeSet::new();
    for seed in 0..12 {
        let request = chat(
            "abc abc",
            200,
            &json!({
                "response_format": schema(&place), "seed": seed, "temperature": if seed == 0 { 0.0 } else { 1.5 },
                "logit_bias": {},
            }),
        );
        let answer = post(server.address, CHAT, &request).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let text = choice["message"]["content"].as_str().unwrap();
        assert_eq!(post(plain.address, CHAT, &request).json()["choices"][0]["message"]["content"], text);
        let written: Value = serde_json::from_str(text).unwrap();
        assert!((1..=99).contains(&written["size"].as_u64().unwrap()), "{text}");
        assert!(written["tags"].as_array().unwrap().len() <= 2, "{text}");
        assert_eq!(written.as_object().unwrap().len(), 3, "{text}");
        cities.insert(written["city"].as_str().unwrap().to_owned());
    }
    assert!(cities.len() > 1, "{cities:?}");

    let object = chat("abc", 40, &json!({ "response_format": { "type": "json_object" } }));
    let text = post(server.address, CHAT, &object).json()["choices"][0]["message"]["content"].to_string();
    assert!(text.starts_with("\"{"), "{text}");
    let message = json!({
        "model": "tiny", "max_tokens": 200, "messages": [{ "role": "user", "content": "abc" }],
        "output_config": { "format": { "type": "json_schema", "schema": place } },
    });
    let answer = post(server.address, "/v1/messages", &message).json();
    let written: Value = serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!((&answer["stop_reason"], written.as_object().unwrap().len()), (&json!("end_turn"), 3));
}

#[test]
fn refuses_malformed_requests_with_the_error_of_the_protocol() {
    let server = serve(512, config());
    let changed = |name: &str, value: Value| chat("abc", 4, &json!({ name: value }));
    let tool = json!([{ "type": "function", "function": { "name": "x" } }]);
    for (name, value) in [
        ("tools", tool.clone()),
        ("n", json!(2)),
        ("temperature", json!("hot")),
        ("messages", json!([])),
        ("messages", json!("abc")),
        ("top_logprobs", json!(2)),
        ("max_token", json!(4)),
        ("reasoning_effort", json!("high")),
    ] {
        let response = post(server.address, CHAT, &changed(name, value));
        assert_eq!(response.status, 400, "{name}");
        let error = &response.json()["error"];
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(name)));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(name) && message.ends_with('.'), "{message}");
    }
    for (name, value) in [
        ("temperature", json!(9)),
        ("seed", json!(-1)),
        ("max_tokens", json!(0)),
        ("stop", json!([""])),
        ("stop", json!(vec!["x"; 17])),
        ("response_format", json!({ "type": "yaml" })),
        ("response_format", json!({ "type": "json_schema" })),
        ("response_format", schema(&json!({ "type": "colour" }))),
        ("response_format", schema(&json!({ "type": "string", "pattern": "(" }))),
        ("logit_bias", json!({ "x": 1 })),
        ("logit_bias", json!({ "7": 101 })),
        ("messages", json!([{ "role": "tool", "content": "x" }])),
        ("messages", json!([{ "role": "user" }])),
        ("messages", json!([{ "role": "user", "content": [{ "type": "image_url" }] }])),
        ("messages", json!([{ "role": "assistant", "content": "x", "tool_calls": tool }])),
        ("messages", json!([{ "role": "user", "content": " " }])),
    ] {
        let response = post(server.address, CHAT, &changed(name, value.clone()));
        assert_eq!(response.status, 400, "{name} {value}");
        assert_eq!(response.json()["error"]["type"], "invalid_request_error", "{name} {value}");
    }
    // Values that ask for nothing are those of many clients.
    let harmless = json!({ "n": 1, "tools": [], "tool_choice": "none", "user": "me", "stop": null,
        "response_format": { "type": "text" }, "store": false, "metadata": {} });
    assert_eq!(post(server.address, CHAT, &chat("abc", 4, &harmless)).status, 200);

    let too_long = "abc ".repeat(200);
    let response = post(server.address, CHAT, &chat(&too_long, 4, &json!({ "stream": true })));
    assert_eq!(
        (response.status, response.json()["error"]["code"].clone()),
        (400, json!("context_length_exceeded"))
    );
    let response = post(server.address, CHAT, &changed("model", json!("other")));
    assert_eq!((response.status, response.json()["error"]["code"].clone()), (404, json!("model_not_found")));

    for (method, path, header, body, status) in [
        ("POST", CHAT, JSON, "{\"model\": ", 400),
        ("POST", CHAT, JSON, "[]", 400),
        ("POST", CHAT, JSON, "", 400),
        ("POST", CHAT, "", "{}", 415),
        ("GET", CHAT, "", "", 405),
        ("GET", "/v2", "", "", 404),
        ("GET", "/v1/models/other", "", "", 404),
        ("POST", "/v1/completions", JSON, "{\"prompt\": [\"a\", \"b\"]}", 400),
        ("POST", "/v1/completions", JSON, "{\"prompt\": \"a\", \"echo\": true}", 400),
    ] {
        let response = send(server.address, method, path, header, body);
        assert_eq!(response.status, status, "{method} {path} {body}");
        assert!(response.json()["error"]["message"].is_string());
    }
    for (body, status, kind) in [
        (json!({ "messages": [] }), 400, "invalid_request_error"),
        (json!({ "messages": [{ "role": "user", "content": "x" }] }), 400, "invalid_request_error"),
        (
            json!({ "max_tokens": 1, "messages": [{ "role": "system", "content": "x" }] }),
            400,
            "invalid_request_error",
        ),
        (
            json!({ "max_tokens": 1, "thinking": { "type": "enabled" }, "messages": [{ "role": "user", "content": "x" }] }),
            400,
            "invalid_request_error",
        ),
        (
            json!({ "model": "other", "max_tokens": 1, "messages": [{ "role": "user", "content": "x" }] }),
            404,
            "not_found_error",
        ),
    ] {
        let response = post(server.address, "/v1/messages", &body);
        assert_eq!(response.status, status, "{body}");
        let error = response.json();
        assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    }
    let models: Value = serde_json::from_str(&get(server.address, "/v1/models")).unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(metric(server.address, FINISHED), 1);
}

#[test]
fn requires_a_key_off_this_machine_and_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let (models, compute) = models(folder.path(), &tiny(512));
    let open = ServerConfig { address: ([0, 0, 0, 0], 0).into(), ..config() };
    let refused = runtime().block_on(listen(models, compute, open)).err();
    assert!(matches!(refused, Some(Error::InvalidRequest(why)) if why.contains("--api-key")));

    let server = serve(512, ServerConfig { api_key: Some("secret".into()), ..config() });
    let status = |header: &str| send(server.address, "GET", "/v1/models", header, "").status;
    assert_eq!(status(""), 401);
    assert_eq!(status("Authorization: Bearer wrong\r\n"), 401);
    assert_eq!(status("Authorization: Bearer secre\r\n"), 401);
    assert_eq!(status("Authorization: Bearer secret\r\n"), 200);
    assert_eq!(status("x-api-key: secret\r\n"), 200);
    assert_eq!(send(server.address, "GET", "/metrics", "", "").status, 401);
    assert_eq!(get(server.address, "/health"), "{\"status\":\"ok\"}");
    let error = send(server.address, "POST", "/v1/messages", JSON, "{}").json();
    assert_eq!(error["error"]["type"], "authentication_error");
}

#[test]
fn refuses_requests_for_foreign_host_names() {
    let server = serve(512, config());
    for (host, status) in
        [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example:80", 403)]
    {
        let mut stream = http::connect(server.address);
        write!(stream, "GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(read_response(stream).status, status, "{host}");
    }
}

#[test]
fn closed_connection_frees_the_engine() {
    let server = serve(LONG, config());
    for (cancelled, stream) in [(1, true), (2, false)] {
        let mut body = endless();
        body["stream"] = json!(stream);
        let mut connection = http::connect(server.address);
        http::write_request(&mut connection, "POST", CHAT, JSON, &body.to_string());
        if stream {
            let mut response = read_response(connection);
            assert_eq!(response.status, 200);
            assert!(response.chunk().is_some());
        } else {
            wait_for(server.address, RUNNING, 1);
            drop(connection);
        }
        wait_for(server.address, CANCELLED, cancelled);
        wait_for(server.address, RUNNING, 0);
    }
    assert_eq!(post(server.address, CHAT, &chat("abc", 4, &json!({}))).status, 200);
}

#[test]
fn refuses_with_a_pause_when_the_queue_is_full() {
    let server = serve(LONG, ServerConfig { queue: 1, ..config() });
    let running = post(server.address, CHAT, &endless());
    let waiting = http::connect(server.address);
    http::write_request(&mut waiting.try_clone().unwrap(), "POST", CHAT, JSON, &endless().to_string());
    wait_for(server.address, WAITING, 1);
    let refused = post(server.address, CHAT, &endless());
    assert_eq!(refused.status, 429);
    assert!((1..=60).contains(&refused.field("retry-after").unwrap().parse::<u64>().unwrap()));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let body = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": "x" }] });
    let refused = post(server.address, "/v1/messages", &body);
    assert_eq!((refused.status, refused.json()["error"]["type"].clone()), (429, json!("rate_limit_error")));
    drop(running);
    // The waiting request has its turn now.
    assert_eq!(read_response(waiting).status, 200);
}

#[test]
fn answers_in_the_order_of_arrival() {
    let server = serve(LONG, config());
    let first = post(server.address, CHAT, &endless());
    let (done, order) = channel();
    let mut threads = Vec::new();
    for number in 0..8 {
        let (done, address) = (done.clone(), server.address);
        threads.push(thread::spawn(move || {
            let body = chat(&format!("abc {number}"), 3, &json!({ "hunch": true }));
            let response = post(address, CHAT, &body).json();
            assert_eq!(response["hunch"]["stats"]["generated_tokens"], 3);
            done.send((response["hunch"]["number"].as_u64().unwrap(), number)).unwrap();
        }));
        wait_for(server.address, WAITING, number + 1);
    }
    drop(first);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(done);
    let mut order: Vec<(u64, u64)> = order.iter().collect();
    order.sort_unstable();
    assert_eq!(order.iter().map(|(_, number)| *number).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
}

/// 1,008 requests over 16 connections at a time.
#[test]
fn many_connections_with_cancels_leave_nothing_behind() {
    let server = serve(LONG, config());
    let expected = post(server.address, CHAT, &chat("abc abc", 12, &json!({}))).json();
    let expected = expected["choices"][0]["message"]["content"].clone();
    let threads = (0..16_u64).map(|seed| {
        let (address, expected) = (server.address, expected.clone());
        thread::spawn(move || {
            let mut cancelled = 0;
            for turn in 0..63 {
                let mut connection = http::connect(address);
                // A fixed sequence that differs between the threads.
                match (seed * 31 + turn * 17) % 4 {
                    0 => {
                        http::write_request(&mut connection, "POST", CHAT, JSON, &endless().to_string());
                        let mut response = read_response(connection);
                        assert_eq!(response.status, 200);
                        for _ in 0..=turn % 3 {
                            assert!(response.chunk().is_some());
                        }
                        cancelled += 1;
                    }
                    1 => {
                        let body = chat("abc abc", 12, &json!({ "stream": true })).to_string();
                        http::write_request(&mut connection, "POST", CHAT, JSON, &body);
                        // Goes away while it waits, or at any moment of the answer.
                        thread::sleep(Duration::from_millis(turn % 13 * 3));
                    }
                    _ => {
                        let body = chat("abc abc", 12, &json!({})).to_string();
                        http::write_request(&mut connection, "POST", CHAT, JSON, &body);
                        let response = read_response(connection).json();
                        assert_eq!(response["choices"][0]["message"]["content"], expected);
                    }
                }
            }
            cancelled
        })
    });
    let threads: Vec<_> = threads.collect();
    let cancelled: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    wait_for(server.address, WAITING, 0);
    wait_for(server.address, RUNNING, 0);
    assert!(metric(server.address, CANCELLED) >= cancelled);
    assert_eq!(metric(server.address, "hunch_requests_total{outcome=\"failed\"}"), 0);
    assert!(metric(server.address, CONVERSATIONS) <= 4);
    let last = post(server.address, CHAT, &chat("abc abc", 12, &json!({}))).json();
    assert_eq!(last["choices"][0]["message"]["content"], expected);
}

#[test]
fn drops_clients_that_stall() {
    let limits = Limits {
        body_bytes: 1 << 20,
        body_time: Duration::from_millis(200),
        header_time: Duration::from_millis(200),
        write_time: Duration::from_millis(200),
        ..config().limits
    };
    let server = serve(LONG, ServerConfig { limits, ..config() });
    let mut connection = http::connect(server.address);
    write!(connection, "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 9\r\n\r\n{{")
        .unwrap();
    let response = read_response(connection);
    assert_eq!(response.status, 408);

    let mut connection = http::connect(server.address);
    write!(connection, "POST {CHAT} HTTP/1.1\r\nHost: local").unwrap();
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));

    let large = format!("{{\"prompt\": \"{}\"}}", "x".repeat(2 << 20));
    let mut connection = http::connect(server.address);
    let header =
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {}\r\n\r\n", large.len());
    connection.write_all(header.as_bytes()).unwrap();
    // One byte more than the limit. The rest would be lost when the server closes the connection.
    connection.write_all(&large.as_bytes()[..=1 << 20]).unwrap();
    assert_eq!(read_response(connection).status, 413);

    // A client that reads nothing: the buffers of the connection fill up.
    let mut body = endless();
    body["hunch"] = json!(true);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(5);
    let mut connection = http::connect(server.address);
    http::write_request(&mut connection, "POST", CHAT, JSON, &body.to_string());
    wait_for(server.address, CANCELLED, 1);
    wait_for(server.address, RUNNING, 0);
}

#[test]
fn ending_the_server_ends_running_and_waiting_requests() {
    let mut server = serve(LONG, config());
    let running = post(server.address, CHAT, &endless());
    let mut waiting = http::connect(server.address);
    http::write_request(&mut waiting, "POST", CHAT, JSON, &endless().to_string());
    wait_for(server.address, WAITING, 1);
    drop(server.stop.take());
    assert_eq!(read_response(waiting).status, 503);
    // The connection is cut after the grace.
    let rest = running.text();
    assert!(rest.contains("data: ") && !rest.contains("[DONE]"));
}
