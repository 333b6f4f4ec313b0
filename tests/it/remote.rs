//! Answers of other servers: `hunch run --server` against `hunch serve`, and against scripted servers with the figures
//! of llama.cpp, vLLM and SGLang. Whole streams are in `remote_streams`, and recorded ones in `recorded_servers`.

use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::cli::{command, last_json, text};
use crate::serve::{CANCELLED, LONG, RUNNING, config, serve, wait_for};

/// Responses of a server, and the requests that it received.
pub(super) struct Script {
    /// `owned_by` of its model.
    owner: &'static str,
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    /// Address that it redirects to.
    pub(super) location: Option<String>,
    /// Body of the answer.
    body: String,
    /// Number of answers that come whole. Later ones send their first chunk, and the connection stays open.
    pub(super) whole_answers: usize,
    /// Pages of `/metrics`, one for each request.
    metrics: Mutex<Vec<String>>,
    pub(super) received: Mutex<Vec<(Value, Option<String>)>>,
}

impl Script {
    pub(super) fn new(owner: &'static str, body: String) -> Self {
        let metrics = Mutex::default();
        Self {
            owner,
            status: StatusCode::OK,
            content_type: "text/event-stream",
            location: None,
            body,
            metrics,
            whole_answers: usize::MAX,
            received: Mutex::default(),
        }
    }

    /// Returns a script whose answer has these chunks, and ends as it should.
    pub(super) fn of_chunks(owner: &'static str, chunks: &[Value]) -> Self {
        Self::new(owner, events(chunks) + "data: [DONE]\n\n")
    }
}

/// Formats chunks as server-sent events, with the comments that keep a connection alive.
pub(super) fn events(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| format!(": ping\n\ndata: {chunk}\n\n")).collect()
}

pub(super) fn delta(delta: Value, finish: Value) -> Value {
    json!({ "object": "chat.completion.chunk", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

/// A server with a script. Ends when dropped.
pub(super) struct Scripted {
    pub(super) address: SocketAddr,
    pub(super) script: Arc<Script>,
    _runtime: Runtime,
}

impl Scripted {
    pub(super) fn start(script: Script) -> Self {
        let script = Arc::new(script);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (of_list, of_answer, of_metrics) = (script.clone(), script.clone(), script.clone());
        let list = move || async move {
            json!({ "data": [{ "id": "first", "owned_by": of_list.owner }, { "id": "second" }] }).to_string()
        };
        let answer =
            move |headers: HeaderMap, body: Bytes| async move { answer(&of_answer, &headers, &body) };
        let metrics = move || async move {
            let mut pages = of_metrics.metrics.lock().unwrap();
            if pages.is_empty() { String::new() } else { pages.remove(0) }
        };
        let router = Router::new()
            .route("/v1/models", get(list))
            .route("/v1/chat/completions", post(answer.clone()))
            .route("/v1/completions", post(answer))
            .route("/metrics", get(metrics));
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, script, _runtime: runtime }
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Output {
        run(&format!("http://{}", self.address), arguments)
    }

    /// Returns the bodies of the requests for an answer.
    pub(super) fn bodies(&self) -> Vec<Value> {
        self.script.received.lock().unwrap().iter().map(|(body, _)| body.clone()).collect()
    }
}

fn answer(script: &Script, headers: &HeaderMap, body: &[u8]) -> Response {
    let key = headers.get(header::AUTHORIZATION).map(|key| key.to_str().unwrap().to_owned());
    let answers = {
        let mut received = script.received.lock().unwrap();
        received.push((serde_json::from_slice(body).unwrap(), key));
        received.len()
    };
    let kind = [(header::CONTENT_TYPE, script.content_type)];
    let body = match answers > script.whole_answers {
        true => {
            // A comment, and a chunk.
            let first: String = script.body.split_inclusive("\n\n").take(2).collect();
            let begun = stream::once(async { Ok::<_, std::convert::Infallible>(first) });
            Body::from_stream(begun.chain(stream::pending()))
        }
        false => Body::from(script.body.clone()),
    };
    let mut response = (script.status, kind, body).into_response();
    if let Some(address) = &script.location {
        response.headers_mut().insert(header::LOCATION, address.parse().unwrap());
    }
    response
}

/// Runs the program against a server, with an empty data folder: no model is needed.
fn run(server: &str, arguments: &[&str]) -> Output {
    let data = tempfile::tempdir().unwrap();
    let mut given = vec!["run", "a question", "--server", server];
    given.extend(arguments);
    command(data.path(), &given).env("HUNCH_SERVER_KEY", "sk-secret").output().unwrap()
}

pub(super) fn failure(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), text(&output.stderr))
}

#[test]
fn tokens_of_a_hunch_server_keep_their_origins() {
    let server = serve(LONG, config());
    let url = format!("http://{}/v1", server.address);
    let json = last_json(&run(&url, &["--json", "--max-tokens", "40", "--temperature", "0"]));
    let pieces = json["pieces"].as_array().unwrap();
    let origins = |name: &str| pieces.iter().filter(|piece| piece["origin"] == name).count() as u64;
    let answer = &json["answer"];
    assert_eq!(pieces.len() as u64, answer["usage"]["generated"].as_u64().unwrap());
    assert_eq!(answer["speculation"]["source"], "hunch");
    assert_eq!(origins("accepted"), answer["speculation"]["accepted"].as_u64().unwrap());
    assert!(origins("accepted") > 0 && origins("accepted") < pieces.len() as u64);
    let joined: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert_eq!(json["text"], joined);
    assert_eq!(json["model"]["kind"], "hunch");
    let card = text(&run(&url, &["--max-tokens", "40", "--temperature", "0"]).stdout);
    assert!(card.contains("Hunch reports: ") && card.contains("measured here: "), "{card}");
}

#[test]
fn raw_prompts_and_schemas_reach_a_hunch_server() {
    let server = serve(LONG, config());
    let url = format!("http://{}", server.address);
    let json = last_json(&run(&url, &["--raw", "--json", "--max-tokens", "7"]));
    assert_eq!(json["answer"]["usage"]["generated"], 7);
    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("schema.json");
    std::fs::write(&schema, r#"{"enum":["ab"]}"#).unwrap();
    let json = last_json(&run(&url, &["--json", "--schema", schema.to_str().unwrap()]));
    assert_eq!(json["text"], "\"ab\"");
}

#[test]
fn a_killed_client_cancels_the_answer() {
    let server = serve(LONG, config());
    let url = format!("http://{}", server.address);
    let data = tempfile::tempdir().unwrap();
    let arguments = ["run", "abc", "--server", &url, "--max-tokens", "60000"];
    let mut client = command(data.path(), &arguments).stdout(Stdio::piped()).spawn().unwrap();
    wait_for(server.address, RUNNING, 1);
    client.kill().unwrap();
    client.wait().unwrap();
    wait_for(server.address, CANCELLED, 1);
}

#[test]
fn figures_of_llama_cpp_are_shown_as_its_own() {
    let timings =
        json!({ "predicted_n": 16, "predicted_per_second": 40.0, "draft_n": 12, "draft_n_accepted": 9 });
    let mut last = delta(json!({}), json!("length"));
    last["timings"] = timings;
    let server = Scripted::start(Script::of_chunks(
        "llamacpp",
        &[
            delta(json!({ "role": "assistant", "content": null }), Value::Null),
            delta(json!({ "reasoning_content": "Well" }), Value::Null),
            delta(json!({ "content": "He\u{1b}[31mllo" }), Value::Null),
            last,
            json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 16 } }),
        ],
    ));
    let out = text(&server.run(&["--temperature", "0.7", "--top-k", "7", "--repeat-penalty", "1.1"]).stdout);
    assert!(out.starts_with("Well\n\nHe[31mllo\n\n"), "{out:?}");
    let expected =
        "llama.cpp reports: 40.0 tok/s decode   9 of 12 drafted accepted (75%)   2.29 tokens per pass";
    assert!(out.contains(expected), "{out}");
    assert!(out.contains("5 prompt + 16 generated tokens") && out.contains("ended by \"length\""), "{out}");
    let body = &server.bodies()[0];
    assert_eq!(body["model"], "first");
    assert_eq!(body["messages"], json!([{ "role": "user", "content": "a question" }]));
    assert_eq!((&body["temperature"], &body["top_k"]), (&json!(0.7), &json!(7)));
    assert_eq!(body["repeat_penalty"], json!(1.1));
    for absent in ["hunch", "min_p", "seed", "return_spec_tokens_details"] {
        assert!(body.get(absent).is_none(), "{absent}");
    }
    assert_eq!(server.script.received.lock().unwrap()[0].1.as_deref(), Some("Bearer sk-secret"));
}

#[test]
fn figures_of_vllm_come_from_its_response_or_its_counters() {
    let answer = [delta(json!({ "content": "Hello" }), json!("stop"))];
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 20 } });
    let mut with_metrics = usage.clone();
    with_metrics["metrics"] = json!({ "speculative_decoding": {
        "num_draft_tokens": 30, "num_accepted_draft_tokens": 10, "num_spec_steps": 10 } });
    let server = Scripted::start(Script::of_chunks("vllm", &[answer[0].clone(), with_metrics]));
    let out = text(&server.run(&["--repeat-penalty", "1.1"]).stdout);
    assert!(out.contains("vLLM reports: 10 of 30 drafted accepted (33%)   2.00 tokens per pass"), "{out}");
    assert_eq!(server.bodies()[0]["repetition_penalty"], json!(1.1));

    let page = |count: u32| {
        ["drafts", "draft_tokens", "accepted_tokens"]
            .map(|name| format!("vllm:spec_decode_num_{name}_total{{engine=\"0\"}} {count}.0\n"))
            .concat()
    };
    let script = Script::of_chunks("vllm", &[answer[0].clone(), usage]);
    *script.metrics.lock().unwrap() = vec![page(100), page(110)];
    let server = Scripted::start(script);
    let out = text(&server.run(&[]).stdout);
    let expected = "vLLM (all requests in that period) reports: 10 of 10 drafted accepted (100%)";
    assert!(out.contains(expected), "{out}");
}

#[test]
fn figures_of_sglang_are_asked_for() {
    let details =
        json!({ "spec_num_proposed_drafts": 215, "spec_num_correct_drafts": 63, "spec_verify_ct": 43 });
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 106 },
        "sglext": { "spec_tokens_details": details } });
    let chunks = [delta(json!({ "content": "Hello" }), json!("stop")), usage];
    let server = Scripted::start(Script::of_chunks("sglang", &chunks));
    let json = last_json(&server.run(&["--json"]));
    assert_eq!(
        json["answer"]["speculation"],
        json!({
        "drafted": 215, "accepted": 63, "passes": 43, "source": "sglang_response" })
    );
    assert_eq!(server.bodies()[0]["return_spec_tokens_details"], true);
    assert_eq!(json["pieces"][0]["origin"], Value::Null);
}

#[test]
fn a_server_without_figures_says_nothing_of_speculation() {
    let chunks = [delta(json!({ "content": "Hello" }), json!("stop"))];
    let server = Scripted::start(Script::of_chunks("someone", &chunks));
    let out = text(&server.run(&["--model", "second"]).stdout);
    assert!(out.contains("server reports no figures of its own") && !out.contains("accepted"), "{out}");
    assert_eq!(server.bodies()[0]["model"], "second");
    let (code, message) = failure(&server.run(&["--model", "third"]));
    assert_eq!(code, Some(3));
    assert!(message.contains("It offers: first, second."), "{message}");
}

#[test]
fn failures_say_what_to_do_and_hide_the_key() {
    let refused = |status: StatusCode, body: &str| {
        let mut script = Script::new("llamacpp", body.to_owned());
        script.status = status;
        failure(&Scripted::start(script).run(&[]))
    };
    let (code, message) = refused(StatusCode::UNAUTHORIZED, r#"{"error":{"message":"sk-secret is wrong"}}"#);
    assert_eq!(code, Some(5));
    assert!(
        message.contains("status 401 (\"(key) is wrong\")") && message.contains("Check the key."),
        "{message}"
    );
    assert!(!message.contains("sk-secret"), "{message}");
    let (_, message) = refused(StatusCode::SERVICE_UNAVAILABLE, "loading");
    assert!(message.contains("status 503. ") && message.contains("Wait a little"), "{message}");
    let (_, message) = refused(StatusCode::OK, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n");
    assert!(message.contains("\"out of memory\""), "{message}");
    let (_, message) = refused(StatusCode::OK, "data: <html>\n\n");
    assert!(message.contains("it sent no JSON (\"<html>\")"), "{message}");
    let (_, message) = refused(StatusCode::OK, "<html>not a stream</html>");
    assert!(message.contains("it ended before its answer did"), "{message}");
}

#[test]
fn text_before_a_broken_end_is_shown() {
    let script = Script::new("llamacpp", events(&[delta(json!({ "content": "Half an" }), Value::Null)]));
    let output = Scripted::start(script).run(&[]);
    assert!(text(&output.stdout).starts_with("Half an"));
    assert!(failure(&output).1.contains("it ended before its answer did. Try again."));
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let (code, message) = failure(&run(&closed.to_string(), &[]));
    assert_eq!(code, Some(5));
    assert!(message.contains("no connection") && message.contains("Check that it runs"), "{message}");
    let (code, _) = failure(&run("ftp://host", &[]));
    assert_eq!(code, Some(4));
    let (code, message) = failure(&run(&closed.to_string(), &["--method", "ngram"]));
    assert_eq!(code, Some(2));
    assert!(message.contains("cannot be used with"), "{message}");
}
