//! Limits of the HTTP server: malformed requests, keys, the queue and its order, clients that leave or stall.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hunch::serve::{ConnectionLimits, ServerConfig, listen};
use hunch_core::method::Method;
use hunch_error::Error;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::serve::{
    CANCELLED, CHAT, CONVERSATIONS, FINISHED, JSON, LONG, Program, RUNNING, chat, config, metric, models,
    runtime, schema, serve, tiny, wait_for,
};
use crate::support::http::{self, get, post, read_response, send};

const FAILED: &str = "hunch_requests_total{outcome=\"failed\"}";
const WAITING: &str = "hunch_num_requests_waiting";

/// Returns a request whose answer takes longer than any test.
fn endless() -> Value {
    chat("abc", 60_000, &json!({ "stream": true }))
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
        ("temperature", json!(9)),
        ("seed", json!(0.5)),
        ("max_tokens", json!(0)),
        ("max_completion_tokens", json!(0)),
        ("logit_bias", json!({ "99999999": 1 })),
        ("stop", json!([""])),
        ("response_format", json!({ "type": "yaml" })),
        ("response_format", json!({ "type": "json_schema" })),
        ("response_format", json!({ "type": "json_object", "other": 1 })),
        ("response_format", json!(["json_object"])),
        ("response_format", schema(&json!({ "$ref": "#" }))),
        ("stream_options", json!([true])),
        ("messages", json!([["user", "hi", null, null]])),
        ("verbosity", json!("low")),
        ("messages", json!([])),
        ("messages", json!("abc")),
        ("top_logprobs", json!(2)),
        ("max_token", json!(4)),
        ("reasoning_effort", json!("high")),
    ] {
        // A stream has not begun before its request is known to be right.
        let mut streamed = changed(name, value.clone());
        streamed["stream"] = json!(true);
        assert_eq!(post(server.address, CHAT, &streamed).status, 400, "{name} {value}");
        let response = post(server.address, CHAT, &changed(name, value));
        assert_eq!(response.status, 400, "{name}");
        let error = &response.json()["error"];
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!(name)));
        let message = error["message"].as_str().unwrap();
        let names_it =
            message.contains(name) || message.contains("JSON schema") || message.contains("stop string");
        assert!(names_it && message.ends_with('.'), "{message}");
        for rust in ["usize", "u64", "i64", "f32", "struct", "enum", "tuple", "null)"] {
            assert!(!message.contains(rust), "{message}");
        }
    }
    for (name, value) in [
        ("stop", json!(vec!["x"; 17])),
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
        ("POST", CHAT, "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "{}", 415),
        ("GET", "/v1/models/%ff", "", "", 404),
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
            json!({ "max_tokens": 1, "messages": [{ "role": "tool", "content": "x" }] }),
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
    let missing =
        send(server.address, "GET", "/v1/models/other", "anthropic-version: 2023-06-01\r\n", "").json();
    assert_eq!(missing["error"]["type"], "not_found_error");
    // A prompt that is too long for an answer can still be counted.
    let counted = json!({ "messages": [{ "role": "user", "content": "abc ".repeat(400) }] });
    let counted = post(server.address, "/v1/messages/count_tokens", &counted);
    assert_eq!(counted.status, 200);
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 512);
    // A client that reads nothing before it has sent all of it gets the reason too.
    let large = format!("{{\"prompt\": \"{}\"}}", "a".repeat(24 << 20));
    let response = send(server.address, "POST", "/v1/completions", JSON, &large);
    assert_eq!(
        (response.status, response.json()["error"]["type"].clone()),
        (413, json!("invalid_request_error"))
    );
    let models: Value = serde_json::from_str(&get(server.address, "/v1/models")).unwrap();
    assert!(models["data"][0]["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(metric(server.address, FINISHED), 1);
    assert_eq!(metric(server.address, FAILED), 0);
}

/// OpenAI's seeds may be negative.
#[test]
fn every_whole_number_is_a_seed() {
    let mut config = config();
    config.plan.method = Method::Plain;
    let server = serve(512, config);
    for (seed, used) in [(0, 0), (-1, (1_u64 << 53) - 1), (i64::MIN, 0), (i64::MAX, (1 << 53) - 1), (7, 7)] {
        let asked = json!({ "seed": seed, "hunch": true });
        let answer = post(server.address, CHAT, &chat("abc abc", 2, &asked)).json();
        assert_eq!(answer["hunch"]["seed"], used, "{seed}");
    }
}

#[test]
fn requires_a_key_off_this_machine_and_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let (tiny_models, compute) = models(folder.path(), &tiny(512));
    let open = ServerConfig { address: ([0, 0, 0, 0], 0).into(), ..config() };
    let refused = runtime().block_on(listen(tiny_models, compute, open)).err();
    assert!(matches!(refused, Some(Error::InvalidRequest(why)) if why.contains("--api-key")));
    for key in ["", " \n", "two words", "sécret"] {
        let (tiny_models, compute) = models(folder.path(), &tiny(512));
        let keyed = ServerConfig { api_key: Some(key.into()), ..config() };
        let refused = runtime().block_on(listen(tiny_models, compute, keyed)).err();
        assert!(matches!(refused, Some(Error::InvalidRequest(why)) if why.contains("API key")), "{key:?}");
    }

    // A key that was read from a file may end with a line break.
    let server = serve(512, ServerConfig { api_key: Some("secret\n".into()), ..config() });
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
    for (host, status) in [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("127.0.0.2:80", 200),
        ("[::1]:80", 200),
        ("evil.example:80", 403),
        ("192.168.1.1", 403),
        ("127.0.0.1.evil.example", 403),
        // Names of this machine for containers on it.
        ("host.docker.internal:8033", 200),
        ("hunch.localhost", 200),
        ("docker.internal.evil.example", 403),
        // Such a name is what the resolver of the network says.
        ("evil.internal", 403),
        ("evil.host.docker.internal", 403),
    ] {
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

/// Clients and proxies give up on a response without a header, however long the queue is.
#[test]
fn a_stream_begins_while_its_answer_waits() {
    let limits = ConnectionLimits { stream_begins: Duration::from_millis(50), ..ConnectionLimits::default() };
    let server = serve(LONG, ServerConfig { limits, ..config() });
    let open = |body: &Value| {
        let mut connection = http::connect(server.address);
        http::write_request(&mut connection, "POST", CHAT, JSON, &body.to_string());
        connection
    };
    let running = open(&endless());
    wait_for(server.address, RUNNING, 1);
    // A mistake in the request has a status of its own.
    let mut wrong = endless();
    wrong["temperature"] = json!(9);
    assert_eq!(read_response(open(&wrong)).status, 400);
    let waiting = read_response(open(&chat("abc", 4, &json!({ "stream": true }))));
    assert_eq!(waiting.status, 200);
    assert_eq!(metric(server.address, RUNNING), 1, "the first answer still runs");
    drop(running);
    let events = waiting.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
    assert!(events.len() > 2, "{events:?}");
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

/// Bytes that memory may grow by in 1,008 requests: what allocators keep of connections and answers.
const GROWTH: u64 = 32 << 20;

/// Returns the open files and resident bytes of a process. `None` where the system has no /proc.
fn used(pid: u32) -> Option<(usize, u64)> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
    Some((files, kib << 10))
}

/// Sends this many requests over each of 16 connections at a time. Some clients read the whole answer, which must be
/// the expected one, others leave at a random moment. Returns the number of answers that were left for certain.
fn ask_and_leave(address: SocketAddr, requests: u32, seed: u64, expected: &Value) -> u64 {
    let threads = (0..16).map(|thread| {
        let expected = expected.clone();
        thread::spawn(move || {
            let mut random = ChaCha8Rng::seed_from_u64(seed + thread);
            let mut left = 0;
            for _ in 0..requests {
                let mut connection = http::connect(address);
                match random.random_range(0..4) {
                    0 => {
                        http::write_request(&mut connection, "POST", CHAT, JSON, &endless().to_string());
                        let mut response = read_response(connection);
                        assert_eq!(response.status, 200);
                        for _ in 0..random.random_range(1..4) {
                            assert!(response.chunk().is_some());
                        }
                        left += 1;
                    }
                    1 => {
                        let body = chat("abc abc", 12, &json!({ "stream": true })).to_string();
                        http::write_request(&mut connection, "POST", CHAT, JSON, &body);
                        // Goes away while it waits, or at any moment of the answer.
                        thread::sleep(Duration::from_millis(random.random_range(0..40)));
                    }
                    _ => {
                        let body = chat("abc abc", 12, &json!({})).to_string();
                        http::write_request(&mut connection, "POST", CHAT, JSON, &body);
                        let response = read_response(connection).json();
                        assert_eq!(response["choices"][0]["message"]["content"], expected);
                    }
                }
            }
            left
        })
    });
    let threads: Vec<_> = threads.collect();
    let left = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    wait_for(address, WAITING, 0);
    wait_for(address, RUNNING, 0);
    left
}

#[test]
fn many_connections_with_random_cancels_leave_nothing_behind() {
    let data = tempfile::tempdir().unwrap();
    let options = ["--method", "ngram", "--max-draft", "3", "--temperature", "0", "--queue", "64"];
    let server = Program::start(data.path(), &tiny(LONG), &options);
    let (address, pid) = (server.address, server.child.id());
    let seed = rand::random::<u32>().into();
    println!("seed {seed}");
    let answer = || {
        let answer = post(address, CHAT, &chat("abc abc", 12, &json!({}))).json();
        answer["choices"][0]["message"]["content"].clone()
    };
    let expected = answer();
    // With as many connections at once, so that what they need is there before it is compared.
    let left = ask_and_leave(address, 8, seed, &expected);
    let before = used(pid);
    assert_eq!(before.is_some(), cfg!(target_os = "linux"));
    let left = left + ask_and_leave(address, 63, seed + 16, &expected);
    assert!(metric(address, CANCELLED) >= left);
    assert_eq!(metric(address, FAILED), 0);
    assert!(metric(address, CONVERSATIONS) <= 4);
    assert_eq!(answer(), expected);
    if let Some((files, bytes)) = before {
        // A connection whose client has just left may be open for a moment.
        let settled = (0..500).find_map(|_| {
            let now = used(pid).filter(|now| now.0 <= files);
            thread::sleep(Duration::from_millis(20));
            now
        });
        println!("files and bytes: {before:?}, then {settled:?}");
        let (_, after) = settled.expect("files stay open");
        assert!(after <= bytes + GROWTH, "{bytes} bytes, then {after}");
    }
    server.end(rustix::process::Signal::TERM);
}

#[test]
fn drops_clients_that_stall() {
    let limits = ConnectionLimits {
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
