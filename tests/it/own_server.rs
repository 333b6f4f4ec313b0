//! The server of the window: it answers other programs with the models that the window has loaded, on one engine.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use hunch::app::App;
use serde_json::{Value, json};

use crate::serve::{CONVERSATIONS, RUNNING, metric, wait_for};
use crate::support::app::{app, load_request, write_pair};
use crate::support::http::{get, post};
use hunch_testing::tiny::END_OF_TURN;

const CHAT: &str = "/v1/chat/completions";

/// Switches the server on and returns its address.
fn switched_on(app: &App) -> SocketAddr {
    let url = app.set_own_server(true).unwrap().url.unwrap();
    url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/v1")).unwrap().parse().unwrap()
}

fn question() -> Value {
    json!({
        "messages": [{ "role": "user", "content": "abc abc" }], "max_tokens": 8, "temperature": 0,
        "logit_bias": { END_OF_TURN.to_string(): -100 },
    })
}

fn names(address: SocketAddr) -> Vec<String> {
    let list: Value = serde_json::from_str(&get(address, "/v1/models")).unwrap();
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn answers_with_the_loaded_models_until_it_is_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    assert_eq!(app.own_server().url, None);
    let address = switched_on(&app);
    assert_eq!(switched_on(&app), address, "it runs already");
    assert!(names(address).is_empty());
    let refused = post(address, CHAT, &question());
    assert_eq!(refused.status, 503);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("No model is loaded"));

    app.load_models(load_request("target", None)).unwrap();
    assert_eq!(names(address), ["target"]);
    let answer = post(address, CHAT, &question()).json();
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    assert_eq!(metric(address, CONVERSATIONS), 1);
    // Another model of the window answers from now on. The caches of the first one are gone.
    app.load_models(load_request("draft", None)).unwrap();
    assert_eq!(metric(address, CONVERSATIONS), 0);
    assert_eq!(post(address, CHAT, &question()).json()["model"], "draft");
    let mut other = question();
    other["model"] = json!("target");
    assert_eq!(post(address, CHAT, &other).status, 404);

    // The caches of its conversations go with the server.
    let conversation = |text: &str| {
        let mut body = question();
        body["messages"][0]["content"] = json!(text.repeat(8));
        assert_eq!(post(address, CHAT, &body).status, 200);
    };
    conversation("How is the sky today? ");
    conversation("Where does the river meet the sea? ");
    assert!(app.caches().conversations > 1, "{:?}", app.caches());
    assert_eq!(app.set_own_server(false).unwrap().url, None);
    for _ in 0..600 {
        if app.caches().conversations == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(app.caches().conversations, 1);
    for _ in 0..600 {
        if TcpStream::connect(address).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{address} still accepts connections");
}

#[test]
fn waits_while_the_window_uses_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let app = app(folder.path());
    app.load_models(load_request("target", Some("draft"))).unwrap();
    let address = switched_on(&app);
    let hold = app.hold_for_update().unwrap();
    let asked = thread::spawn(move || post(address, CHAT, &question()).json());
    wait_for(address, RUNNING, 1);
    assert!(!asked.is_finished());
    drop(hold);
    let answer = asked.join().unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    // The engine is free again for the window.
    drop(app.hold_for_update().unwrap());
}
