//! Models that requests name: a server with two tiny models in its folder.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use hunch::generate::{GenerationPlan, Models};
use hunch::serve::{DraftChoice, InstalledModels, ServerConfig};
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_library::Places;
use serde_json::{Value, json};

use crate::cli::command;
use crate::serve::{CONVERSATIONS, LONG, RUNNING, Running, config, metric, serve_in, serve_loaded, wait_for};
use crate::support::cpu;
use crate::support::http::{get, post};
use hunch_testing::tiny::{END_OF_TURN, Tiny};

const CHAT: &str = "/v1/chat/completions";
const LOADS: &str = "hunch_model_loads_total";

/// Serves `tiny`, with a model called `other` in its folder.
fn with_two(change: impl FnOnce(ServerConfig) -> ServerConfig) -> Running {
    let tiny = Tiny { context: LONG, ..Tiny::default() };
    serve_in(&tiny, |folder: &Path| {
        Tiny { seed: 2, ..tiny }.write(folder, "other");
        let places = Places { models: folder.to_owned(), ..Places::default() };
        let installed = InstalledModels {
            places,
            only: None,
            method: Method::Auto,
            sampling: SamplingParams::default(),
            drafts: DraftChoice::default(),
            context: None,
            ignore_memory_check: false,
        };
        change(ServerConfig { installed: Some(installed), ..config() })
    })
}

fn chat(model: &str, max_tokens: u32) -> Value {
    json!({
        "model": model,
        "messages": [{ "role": "user", "content": "abc abc" }],
        "max_tokens": max_tokens,
        "logit_bias": { END_OF_TURN.to_string(): -100 },
        "hunch": true,
    })
}

fn text(address: SocketAddr, model: &str) -> String {
    let answer = post(address, CHAT, &chat(model, 20)).json();
    assert_eq!(answer["model"], model, "{answer}");
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn names(address: SocketAddr) -> Vec<String> {
    let list: Value = serde_json::from_str(&get(address, "/v1/models")).unwrap();
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn loads_the_model_that_a_request_names() {
    let server = with_two(|config| config);
    assert_eq!(names(server.address), ["tiny", "other"]);
    let first = text(server.address, "tiny");
    assert_eq!(metric(server.address, LOADS), 0);
    let other = text(server.address, "other");
    assert_eq!(metric(server.address, LOADS), 1);
    assert_eq!(text(server.address, "other"), other);
    assert_eq!(metric(server.address, LOADS), 1);
    assert_ne!(first, other);
    assert_eq!(text(server.address, "tiny"), first);
    assert_eq!(metric(server.address, LOADS), 2);
    let message = json!({
        "model": "other", "max_tokens": 4, "messages": [{ "role": "user", "content": "abc" }],
    });
    assert_eq!(post(server.address, "/v1/messages", &message).json()["model"], "other");
    let object: Value = serde_json::from_str(&get(server.address, "/v1/models/other")).unwrap();
    assert_eq!((&object["id"], &object["context_length"]), (&json!("other"), &json!(LONG)));
    // Counting tokens reads only the header.
    let question = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "abc" }] });
    assert_eq!(post(server.address, "/v1/messages/count_tokens", &question).status, 200);
    assert_eq!(metric(server.address, LOADS), 3);
}

/// The only smaller model with the same vocabulary, unless the settings say otherwise.
#[test]
fn a_model_loaded_by_name_has_the_best_draft_there_is() {
    let speaker = |drafts: DraftChoice| {
        let tiny = Tiny { context: LONG, ..Tiny::default() };
        serve_in(&tiny, |folder: &Path| {
            Tiny { seed: 2, layers: 12, ..tiny }.write(folder, "large");
            let installed = InstalledModels {
                places: Places { models: folder.to_owned(), ..Places::default() },
                only: None,
                method: Method::DraftModel,
                sampling: SamplingParams::default(),
                drafts,
                context: None,
                ignore_memory_check: false,
            };
            ServerConfig { installed: Some(installed), ..config() }
        })
    };
    let method = |server: &Running| {
        let answer = post(server.address, CHAT, &chat("large", 20)).json();
        answer["hunch"]["method"].clone()
    };
    assert_eq!(method(&speaker(DraftChoice::default())), "draft-model");
    let none = DraftChoice { no_others: true, ..DraftChoice::default() };
    assert_eq!(method(&speaker(none)), "auto");
    let named = DraftChoice { named: [("large".to_owned(), None)].into(), ..DraftChoice::default() };
    assert_eq!(method(&speaker(named)), "auto");
}

#[test]
fn a_target_whose_draft_was_deleted_answers_alone() {
    for named in [false, true] {
        let mut deleted = PathBuf::new();
        let tiny = Tiny { context: LONG, ..Tiny::default() };
        let server = serve_in(&tiny, |folder: &Path| {
            Tiny { seed: 2, layers: 12, ..tiny }.write(folder, "large");
            deleted = Tiny { seed: 3, layers: 1, ..tiny }.write(folder, "draft");
            let named = named.then(|| ("large".to_owned(), Some(deleted.clone())));
            let installed = InstalledModels {
                places: Places { models: folder.to_owned(), ..Places::default() },
                only: None,
                method: Method::DraftModel,
                sampling: SamplingParams::default(),
                drafts: DraftChoice { no_others: named.is_some(), named: named.into_iter().collect() },
                context: None,
                ignore_memory_check: false,
            };
            ServerConfig { installed: Some(installed), ..config() }
        });
        let method = |model: &str| {
            let answer = post(server.address, CHAT, &chat(model, 20)).json();
            answer["hunch"]["method"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
        };
        assert_eq!(method("large"), "draft-model");
        method("tiny");
        std::fs::remove_file(&deleted).unwrap();
        // The other small model drafts, unless the settings name the one that is gone.
        assert_eq!(method("large"), if named { "auto" } else { "draft-model" });
    }
}

#[test]
fn the_started_model_answers_without_a_draft_that_was_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Tiny { context: LONG, ..Tiny::default() };
    let target = tiny.write(folder.path(), "tiny");
    let draft = Tiny { layers: 1, ..tiny }.write(folder.path(), "draft");
    let compute = cpu();
    let models = Models::load(&target, Some(&draft), &compute).unwrap();
    let config = config();
    let plan = GenerationPlan { method: Method::DraftModel, ..config.plan };
    let idle = Some(Duration::from_millis(300));
    let server = serve_loaded(folder, (models, compute), ServerConfig { plan, idle, ..config });
    let method = || {
        let answer = post(server.address, CHAT, &chat("tiny", 20)).json();
        answer["hunch"]["method"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    std::fs::remove_file(&draft).unwrap();
    assert_eq!(method(), "draft-model", "it is in memory");
    wait_for(server.address, CONVERSATIONS, 0);
    assert_eq!(method(), "auto");
    let loads = metric(server.address, LOADS);
    assert_eq!((method(), metric(server.address, LOADS)), ("auto".into(), loads), "nothing is loaded again");
}

#[test]
fn caches_of_unloaded_models_are_not_counted() {
    let server = with_two(|config| ServerConfig { idle: Some(Duration::from_millis(200)), ..config });
    text(server.address, "tiny");
    wait_for(server.address, CONVERSATIONS, 0);
    assert_eq!(metric(server.address, "hunch_cache_bytes"), 0);
}

#[test]
fn an_unknown_model_is_refused_with_the_names_there_are() {
    let server = with_two(|config| config);
    for (path, kind) in [(CHAT, "invalid_request_error"), ("/v1/messages", "not_found_error")] {
        let mut body = chat("missing", 4);
        body.as_object_mut().unwrap().remove("logit_bias");
        let response = post(server.address, path, &body);
        assert_eq!(response.status, 404);
        let error = response.json()["error"].clone();
        assert_eq!(error["type"], kind, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("missing") && message.ends_with("these: tiny, other."), "{message}");
    }
    // Paths of files are not accepted in place of names.
    assert_eq!(post(server.address, CHAT, &chat("/etc/passwd", 4)).status, 404);
    let only = with_two(|mut config| {
        config.installed.as_mut().unwrap().only = Some(Vec::new());
        config
    });
    assert_eq!(names(only.address), ["tiny"]);
    assert_eq!(post(only.address, CHAT, &chat("other", 4)).status, 404);
}

#[test]
fn the_started_model_has_the_name_of_its_file_too_in_any_case() {
    let server = with_two(|config| ServerConfig { model: "Started".into(), ..config });
    assert_eq!(names(server.address), ["Started", "other"]);
    for name in ["Started", "sTARTED", "tiny", "TINY"] {
        let answer = post(server.address, CHAT, &chat(name, 4)).json();
        assert_eq!(answer["model"], "Started", "{answer}");
    }
    assert_eq!(metric(server.address, LOADS), 0);
}

#[test]
fn only_allowed_files_are_found() {
    let server = with_two(|mut config| {
        let installed = config.installed.as_mut().unwrap();
        installed.only = Some(vec![installed.places.models.join("other.gguf")]);
        config
    });
    assert_eq!(names(server.address), ["tiny", "other"]);
    assert_eq!(post(server.address, CHAT, &chat("OTHER", 4)).json()["model"], "other");
}

#[test]
fn requests_for_different_models_are_answered_in_order() {
    let server = with_two(|config| config);
    let expected = ["tiny", "other"].map(|model| text(server.address, model));
    let mut endless = chat("tiny", 60_000);
    endless["stream"] = json!(true);
    let running = post(server.address, CHAT, &endless);
    let (done, order) = channel();
    let mut threads = Vec::new();
    for number in 0..6 {
        let (done, address) = (done.clone(), server.address);
        let model = ["tiny", "other"][number % 2];
        threads.push(thread::spawn(move || {
            let answer = post(address, CHAT, &chat(model, 20)).json();
            let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
            done.send((answer["hunch"]["number"].as_u64().unwrap(), number, text)).unwrap();
        }));
        wait_for(server.address, "hunch_num_requests_waiting", number as u64 + 1);
    }
    drop(running);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(done);
    let mut order: Vec<_> = order.iter().collect();
    order.sort_unstable();
    for (i, (_, number, text)) in order.into_iter().enumerate() {
        assert_eq!((number, &text), (i, &expected[i % 2]));
    }
}

#[test]
fn idle_models_are_unloaded_and_loaded_again() {
    let server = with_two(|config| ServerConfig { idle: Some(Duration::from_millis(50)), ..config });
    let first = text(server.address, "tiny");
    wait_for(server.address, RUNNING, 0);
    // A slow machine unloads before the first request too.
    let before = metric(server.address, LOADS);
    for loads in 1..4 {
        thread::sleep(Duration::from_millis(400));
        assert_eq!(text(server.address, "tiny"), first);
        assert_eq!(metric(server.address, LOADS), before + loads);
    }
}

#[test]
fn drafts_of_unknown_models_are_refused_at_the_start() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    for name in ["tiny", "other", "draft"] {
        Tiny::default().write(&models, name);
    }
    for (drafts, word) in [
        ("othr=draft", "no installed model has that name"),
        ("other=drat", "drat"),
        ("TINY=draft", "--draft"),
        ("other", "TARGET=DRAFT"),
    ] {
        let arguments = ["serve", "--target", "tiny", "--port", "0", "--json", "--drafts", drafts];
        let output = command(data.path(), &arguments).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(word), "{drafts}: {message}");
    }
}
