//! Limits of the HTTP server: malformed requests, keys, the queue and its order, clients that leave or stall.

use std::io::{Read, Write};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hunch::serve::{Limits, ServerConfig, listen};
use hunch_error::Error;
use serde_json::{Value, json};

use crate::serve::{
    CANCELLED, CHAT, CONVERSATIONS, FINISHED, JSON, LONG, RUNNING, chat, config, metric, models, runtime,
    schema, serve, tiny, wait_for,
};
use crate::support::http::{self, get, post, read_response, send};

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
