//! Texts that the user chose in the window: drafts are copied from them, with every model and after a restart.

use std::path::Path;
use std::sync::mpsc;

use hunch::api::{AnswerRequest, LoadedModels, StreamMessage};
use hunch::app::App;
use hunch::event::GenerationEvent;
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, ErrorCode};
use serde_json::json;

use crate::support::app::{app, load_request, write_pair};
use crate::support::requests::endless_request;

/// Answers greedily. Returns the text and the number of accepted tokens.
fn answer(app: &App, method: Method) -> (String, u32) {
    let mut request: AnswerRequest = endless_request(method, 24);
    request.settings.sampling =
        SamplingParams { logit_bias: request.settings.sampling.logit_bias, ..SamplingParams::greedy() };
    let (sender, receiver) = mpsc::channel::<StreamMessage>();
    let begun = app.answer(request, Box::new(move |message| drop(sender.send(message)))).unwrap();
    let events: Vec<GenerationEvent> = receiver.iter().flat_map(|message| message.events).collect();
    let accepted = events.iter().find_map(|event| match event {
        GenerationEvent::Finished { stats, .. } => Some(stats.accepted),
        _ => None,
    });
    let messages = app.open_conversation(begun.conversation).unwrap().messages;
    (messages.last().unwrap().content.clone(), accepted.expect("the answer is finished"))
}

fn load(app: &App, draft: Option<&str>) -> LoadedModels {
    app.load_models(load_request("target", draft)).unwrap()
}

fn copies(loaded: &LoadedModels) -> bool {
    assert_eq!(loaded.texts.is_some(), loaded.methods.contains(&Method::Retrieval));
    loaded.texts.is_some()
}

fn source(path: &Path) -> Vec<String> {
    vec![path.to_str().unwrap().to_owned()]
}

#[test]
fn drafts_are_copied_from_chosen_texts_until_they_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let file = folder.path().join("notes.txt");
    {
        let app = app(folder.path());
        assert!(!copies(&load(&app, None)));
        let (plain, _) = answer(&app, Method::Plain);
        std::fs::write(&file, &plain).unwrap();
        let loaded = app.choose_texts(&source(&file)).unwrap().unwrap();
        assert!(copies(&loaded));
        let texts = loaded.texts.unwrap();
        assert!(texts.texts == 1 && texts.tokens > 10 && !texts.cut, "{texts:?}");
        let (copied, accepted) = answer(&app, Method::Retrieval);
        assert_eq!(copied, plain);
        assert!(accepted > 5, "{accepted}");
        assert_eq!(answer(&app, Method::Auto).0, plain);
        assert!(copies(&load(&app, Some("draft"))), "another draft model");

        // A source that cannot be read changes nothing.
        let missing = app.choose_texts(&source(&folder.path().join("missing")));
        assert!(matches!(missing, Err(Error::Io { .. })));
        assert_eq!(app.chosen_texts().unwrap(), source(&file));
        assert!(app.set_preference("texts", &json!(["/"])).is_err());
    }
    let app = app(folder.path());
    assert_eq!(app.chosen_texts().unwrap(), source(&file));
    assert!(copies(&load(&app, None)), "after a restart");
    app.unload_models().unwrap();
    std::fs::remove_file(&file).unwrap();
    let loaded = load(&app, None);
    assert!(!copies(&loaded));
    assert!(loaded.texts_problem.unwrap().message.contains("notes.txt"));
    answer(&app, Method::Auto);

    // One of two sources that cannot be read can be removed, and another cannot be added.
    let other = folder.path().join("other.txt");
    std::fs::write(&other, "other text").unwrap();
    assert!(app.choose_texts(&[source(&file), source(&other)].concat()).is_err());
    std::fs::write(&file, "text").unwrap();
    app.choose_texts(&[source(&file), source(&other)].concat()).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(&other).unwrap();
    let loaded = app.choose_texts(&source(&other)).unwrap().unwrap();
    assert!(!copies(&loaded) && loaded.texts_problem.is_some());
    assert_eq!(app.chosen_texts().unwrap(), source(&other));
    // The index of before does not outlive its texts.
    std::fs::write(&other, "other text").unwrap();
    assert!(copies(&app.choose_texts(&source(&other)).unwrap().unwrap()));
    std::fs::remove_file(&other).unwrap();
    assert!(!copies(&load(&app, Some("draft"))));

    let removed = app.choose_texts(&[]).unwrap().unwrap();
    assert!(!copies(&removed) && removed.texts_problem.is_none() && app.chosen_texts().unwrap().is_empty());
}

#[test]
fn conversations_are_chosen_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    write_pair(folder.path());
    let conversations = ["my-conversations".to_owned()];
    let app = app(folder.path());
    let none = app.choose_texts(&conversations).unwrap_err();
    assert_eq!(hunch_error::ErrorInfo::from(&none).code, ErrorCode::InvalidRequest);
    load(&app, None);
    answer(&app, Method::Plain);
    app.unload_models().unwrap();
    assert_eq!(app.choose_texts(&conversations).unwrap(), None);
    let loaded = load(&app, None);
    assert_eq!(loaded.texts.map(|texts| texts.texts), Some(2), "the question and its answer");
}
