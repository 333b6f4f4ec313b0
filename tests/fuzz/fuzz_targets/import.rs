//! Imports any text as a conversation. A conversation that is taken can be read, exported, and imported again to the same.

#![no_main]

use std::collections::HashMap;
use std::sync::OnceLock;

use hunch::api::ExportWords;
use hunch::lab::acceptance::AcceptanceTally;
use hunch::lab::report::WhatIfRequest;
use hunch::lab::sessions::session_of;
use hunch::lab::what_if::what_if;
use hunch::store::Store;
use hunch_core::chat::Role;
use hunch_error::ErrorCode;
use hunch_fuzz::{json, seeds};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fuzz_target!(init: seeds::write(seeds::conversations), |bytes: &[u8]| import(bytes));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed, fuzzer_mutate)
});

fn store() -> &'static Store {
    static STORE: OnceLock<Store> = OnceLock::new();
    STORE.get_or_init(|| Store::in_memory().expect("memory can be had"))
}

fn import(bytes: &[u8]) {
    let store = store();
    let conversation = match store.import_json(bytes) {
        Ok(conversation) => conversation,
        Err(error) => {
            assert_eq!(error.0.code(), ErrorCode::InvalidRequest, "{error}");
            assert!(store.conversations().expect("a list").is_empty(), "nothing was added");
            return;
        }
    };
    let exported = store.export_json(conversation).expect("what was imported can be exported");
    look(store, conversation);
    store.remove_conversation(conversation).expect("it is there");
    let copy = store.import_json(exported.as_bytes()).expect("what was exported can be imported");
    let again = store.export_json(copy).expect("what was imported can be exported");
    store.remove_conversation(copy).expect("it is there");
    assert_eq!(renumbered(&exported), renumbered(&again));
}

/// Reads the conversation as the window and the lab do.
fn look(store: &Store, id: i64) {
    let conversation = store.conversation(id).expect("it is there");
    assert!(conversation.branch().len() <= conversation.messages.len());
    let words = ExportWords { untitled: "Untitled".into(), question: "You".into(), answer: "Answer".into() };
    store.export_markdown(id, &words).expect("it is there");
    let mut tally = AcceptanceTally::default();
    for message in &conversation.messages {
        let events = store.events(message.id).expect("its events can be read");
        if message.role == Role::Assistant {
            tally.add(&events);
            let _ = session_of(&events);
            for (max_draft, temperature) in [(1, None), (15, Some(0.5))] {
                let request = WhatIfRequest { message: message.id, max_draft, temperature };
                if let Ok(answer) = what_if(&events, 0.7, &request) {
                    has_numbers(&answer);
                }
            }
        }
        let words: String = message.content.chars().take(12).collect();
        store.search(&words).expect("any words can be searched for");
    }
    has_numbers(&tally.map());
}

/// Checks that figures survive the way to the window: infinity and what is no number would be null in JSON.
fn has_numbers<T: Serialize + DeserializeOwned>(figures: &T) {
    let text = serde_json::to_string(figures).expect("it goes to the window as JSON");
    assert!(serde_json::from_str::<T>(&text).is_ok(), "a figure is no number: {text}");
}

/// The exported file with its messages numbered from 0, in order.
fn renumbered(exported: &str) -> Value {
    let mut file: Value = serde_json::from_str(exported).expect("an export is JSON");
    let messages = file["messages"].as_array_mut().expect("an export has messages");
    let numbers: HashMap<i64, usize> =
        messages.iter().enumerate().filter_map(|(i, message)| Some((message["id"].as_i64()?, i))).collect();
    let number = |id: &Value| id.as_i64().map_or(Value::Null, |id| numbers[&id].into());
    for message in messages {
        message["id"] = number(&message["id"]);
        message["parent"] = number(&message["parent"]);
    }
    file["leaf"] = number(&file["leaf"]);
    file
}
