//! The HTTP server: real connections to a tiny model.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hunch::generate::{GenerationPlan, Models};
use hunch::serve::{ConnectionLimits, ServerConfig, listen};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_model::device::Compute;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::cli::{command, hunch, last_json};
use crate::support::cpu;
use crate::support::http::{get, post};
use hunch_testing::tiny::{END_OF_TURN, Tiny};

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const JSON: &str = "Content-Type: application/json\r\n";

/// A server on a thread of its own. Ends when dropped.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) stop: Option<oneshot::Sender<()>>,
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
    let limits = ConnectionLimits { grace: Duration::from_millis(200), ..ConnectionLimits::default() };
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

pub(super) fn models(folder: &Path, tiny: &Tiny) -> (Models, Compute) {
    let target = tiny.write(folder, "tiny");
    let compute = cpu();
    (Models::load(&target, None, &compute).unwrap(), compute)
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(super) fn tiny(context: u32) -> Tiny {
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
    let loaded = models(folder.path(), tiny);
    serve_loaded(folder, loaded, config)
}

/// Serves models that are loaded from a folder.
pub(super) fn serve_loaded(
    folder: tempfile::TempDir,
    (models, compute): (Models, Compute),
    config: ServerConfig,
) -> Running {
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
pub(super) fn chat(text: &str, max_tokens: u32, fields: &Value) -> Value {
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
pub(super) const CANCELLED: &str = "hunch_requests_total{outcome=\"cancelled\"}";
pub(super) const CONVERSATIONS: &str = "hunch_cached_conversations";
pub(super) const FINISHED: &str = "hunch_requests_total{outcome=\"finished\"}";

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

/// A started `hunch serve` that ends with the test, even if that fails.
pub(super) struct Program {
    pub(super) child: Child,
    /// The line that it prints once it listens.
    pub(super) started: Value,
    pub(super) address: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the program has ended.
        let _ = self.child.kill();
    }
}

impl Program {
    /// Starts the program with a tiny model in a data folder.
    pub(super) fn start(data: &Path, tiny: &Tiny, options: &[&str]) -> Self {
        let models = data.join("models");
        std::fs::create_dir(&models).unwrap();
        tiny.write(&models, "tiny");
        let served = [&["serve", "--port", "0", "--json", "--target", "tiny"], options].concat();
        let mut child = command(data, &served).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        let address = started["url"].as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
        Self { child, started, address }
    }

    /// Ends the program with a signal and waits for it.
    pub(super) fn end(mut self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn stream_whole_and_command_line_give_the_same_text() {
    let data = tempfile::tempdir().unwrap();
    let options = ["--method", "ngram", "--max-draft", "3"];
    let server = Program::start(data.path(), &Tiny::default(), &options);
    let address = server.address;
    assert_eq!((&server.started["model"], &server.started["method"]), (&json!("tiny"), &json!("ngram")));

    for (temperature, raw) in [("0", false), ("0", true), ("0.8", false), ("0.8", true)] {
        let sampling = ["--temperature", temperature, "--seed", "5", "--max-tokens", "40", "--json"];
        let raw_option: &[&str] = if raw { &["--raw"] } else { &[] };
        let run = [&["run", "abc abc abc", "--target", "tiny"], &options[..], &sampling, raw_option].concat();
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
    server.end(rustix::process::Signal::INT);
}

#[test]
fn completions_have_log_probabilities_and_offsets_of_the_text() {
    let server = serve(512, config());
    let body = |fields: Value| {
        let mut body = json!({ "prompt": "abc abc", "max_tokens": 12, "temperature": 0 });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let whole = post(server.address, "/v1/completions", &body(json!({ "logprobs": 2 }))).json();
    let choice = &whole["choices"][0];
    let (text, logprobs) = (choice["text"].as_str().unwrap(), &choice["logprobs"]);
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    let tokens = list("tokens");
    assert_eq!(tokens.len(), 12);
    for (i, token) in tokens.iter().enumerate() {
        let (token, own) = (token.as_str().unwrap(), &list("token_logprobs")[i]);
        assert!((-6.0..=0.0).contains(&own.as_f64().unwrap()), "{own}");
        // Greedy: the token is among the most likely ones.
        let top = list("top_logprobs")[i].as_object().unwrap().clone();
        assert_eq!(top[token], *own);
        assert!((1..=2).contains(&top.len()), "{top:?}");
        let offset = list("text_offset")[i].as_u64().unwrap() as usize;
        let rest: String = text.chars().skip(offset).collect();
        assert!(token.starts_with("bytes:") || rest.starts_with(token), "{token:?} at {offset} of {text:?}");
    }
    let streamed = body(json!({ "logprobs": 2, "stream": true }));
    let chunks = parsed(post(server.address, "/v1/completions", &streamed).events());
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
        assert_eq!(parts.flatten().cloned().collect::<Vec<_>>(), list(name), "{name}");
    }
    for refused in [json!(true), json!(6), json!("2"), json!(-1)] {
        let response = post(server.address, "/v1/completions", &body(json!({ "logprobs": refused })));
        assert_eq!((response.status, response.json()["error"]["param"].clone()), (400, json!("logprobs")));
    }
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
    let at = |position: u32| {
        let name = "hunch_spec_decode_num_accepted_tokens_per_pos_total";
        metric(server.address, &format!("{name}{{position=\"{position}\"}}"))
    };
    assert_eq!((0..3).map(at).sum::<u64>(), 2 * accepted as u64);
    assert!(at(0) >= at(1) && at(1) >= at(2) && at(2) > 0 && at(3) == 0);
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

pub(super) fn schema(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "place", "schema": schema } })
}

/// llguidance reads options of its own from a schema, which could switch off parts of it.
/// LM Studio and llama.cpp write "no limit" as -1.
#[test]
fn negative_limits_are_none() {
    let server = serve(64, config());
    for path in [CHAT, "/v1/completions"] {
        let mut body = chat("abc", 4, &json!({ "max_tokens": -1, "prompt": "abc" }));
        let unused = if path == CHAT { "prompt" } else { "messages" };
        body.as_object_mut().unwrap().remove(unused);
        let answer = post(server.address, path, &body).json();
        // The noise of a tiny model never ends, so the context is full.
        let tokens = answer["usage"]["total_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((tokens, &answer["choices"][0]["finish_reason"]), (64, &json!("length")), "{path}");
    }
}

#[test]
fn schemas_cannot_loosen_themselves() {
    let server = serve(2048, config());
    let asked = |own: Value| {
        post(server.address, CHAT, &chat("abc", 200, &json!({ "response_format": schema(&own) })))
    };
    let spaced = json!({
        "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false,
        "x-guidance": { "whitespace_pattern": "x+" },
    });
    let text = asked(spaced).json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(value == json!({ "a": 1 }) || value == json!({ "a": 2 }), "{text}");
    let lenient = json!({ "type": "array", "uniqueItems": true, "x-guidance": { "lenient": true } });
    let refused = asked(lenient);
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("uniqueItems"));
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
