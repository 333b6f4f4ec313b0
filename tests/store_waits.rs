//! Measures the longest time without a token while the store works. An answer streams alone, then during an import of
//! 200 MB, then during searches over 10,000 messages. Run with `cargo run --example store-waits`.
//!
//! One thread decodes, so that the store's work has a core of its own. Tokens arrive once a frame (16 ms).

use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hunch::api::{AnswerRequest, AnswerSettings, AnsweredBy, Asking, StreamMessage};
use hunch::app::{App, AppConfig};
use hunch::event::GenerationEvent;
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_library::types::LoadRequest;
use hunch_model::device::DeviceChoice;

/// Tokens of each answer.
const TOKENS: u32 = 400;
const IMPORTED_BYTES: u64 = 200_000_000;
const SEARCHED_MESSAGES: u32 = 10_000;
/// Rounds of the three measurements, in turn.
const ROUNDS: usize = 3;

fn main() {
    let folder = tempfile::tempdir().expect("there is room for temporary files");
    let config = AppConfig {
        models_folder: Some(hunch_library::models_folder().expect("this user has a data folder")),
        store: Some(folder.path().join("conversations.db")),
        threads: Some(1),
        device: DeviceChoice::Cpu,
        ..AppConfig::default()
    };
    let app = App::start(config).expect("the engine starts");
    let default = LoadRequest {
        target: hunch_library::DEFAULT_MODEL.into(),
        draft: None,
        head: None,
        context: Some(2048),
    };
    app.load_models(default).expect("the default model is here; run make setup");

    let (events, _) = answer(&app, 64);
    let searched = folder.path().join("searched.json");
    write_conversation(&searched, SEARCHED_MESSAGES, "[]");
    app.import_conversation(&searched).expect("it is a conversation");
    let imported = folder.path().join("imported.json");
    let events = serde_json::to_string(&events).expect("events have a text form");
    let messages = IMPORTED_BYTES / (events.len() as u64 / 2);
    write_conversation(&imported, messages as u32, &events);
    let bytes = std::fs::metadata(&imported).map_or(0, |file| file.len());
    println!(
        "{SEARCHED_MESSAGES} messages to search, {:.0} MB to import, {TOKENS} tokens an answer",
        bytes as f64 / 1e6
    );

    let alone = |app: &App| Waits { token: answer(app, TOKENS).1, call: Duration::ZERO };
    let beside_import = |app: &App| {
        beside(app, &|app| {
            let copy = app.import_conversation(&imported).expect("it is a conversation");
            app.delete_conversation(copy).expect("it was imported");
        })
    };
    let beside_search = |app: &App| {
        let words = ["voyage", "海上的风", "the"];
        let next = AtomicU32::new(0);
        beside(app, &|app| {
            let word = words[next.fetch_add(1, Ordering::Relaxed) as usize % words.len()];
            app.search_conversations(word).expect("the file can be read");
        })
    };
    type Measurement<'a> = (&'a str, Box<dyn Fn(&App) -> Waits + 'a>);
    let measurements: [Measurement; 3] = [
        ("alone", Box::new(alone)),
        ("during an import", Box::new(beside_import)),
        ("during searches", Box::new(beside_search)),
    ];
    println!("longest time without a token, and longest call of the store meanwhile, ms, {ROUNDS} rounds:");
    let mut waits = measurements.iter().map(|_| Vec::new()).collect::<Vec<_>>();
    for _ in 0..ROUNDS {
        for ((_, measure), waits) in measurements.iter().zip(&mut waits) {
            waits.push(measure(&app));
        }
    }
    for ((name, _), waits) in measurements.iter().zip(&waits) {
        let row = |of: fn(&Waits) -> Duration| -> String {
            waits.iter().map(|waits| format!("{:7.0}", of(waits).as_secs_f64() * 1e3)).collect()
        };
        println!("{name:>18} {}  |{}", row(|waits| waits.token), row(|waits| waits.call));
    }
    app.shutdown();
}

/// The longest time without a token, and the longest call of the store during the answer.
///
/// An engine that shared one lock with these calls, as it once did, would wait as long as they take.
struct Waits {
    token: Duration,
    call: Duration,
}

/// Answers once. Returns the events and the longest time between two messages with tokens.
fn answer(app: &App, max_tokens: u32) -> (Vec<GenerationEvent>, Duration) {
    let settings = AnswerSettings {
        method: Method::Plain,
        max_tokens,
        sampling: SamplingParams { seed: Some(7), ..SamplingParams::default() },
        ..AnswerSettings::default()
    };
    let asking = Asking::Question {
        parent: None,
        text: "Write a long story about a voyage.".into(),
        attachments: Vec::new(),
    };
    let (sender, messages) = mpsc::channel::<(Instant, StreamMessage)>();
    let sink = move |message| drop(sender.send((Instant::now(), message)));
    app.answer(
        AnswerRequest { conversation: None, asking, settings, by: AnsweredBy::Loaded },
        Box::new(sink),
    )
    .expect("it can be asked");
    let (mut events, mut last, mut longest) = (Vec::new(), None::<Instant>, Duration::ZERO);
    for (at, message) in messages {
        if message.events.iter().any(|event| matches!(event, GenerationEvent::Round(_))) {
            longest = longest.max(last.map_or(Duration::ZERO, |last| at - last));
            last = Some(at);
        }
        events.extend(message.events);
    }
    assert!(matches!(events.last(), Some(GenerationEvent::Finished { .. })), "{:?}", events.last());
    (events, longest)
}

/// Answers while `work` runs again and again.
fn beside(app: &App, work: &(dyn Fn(&App) + Sync)) -> Waits {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                work(app);
                longest = longest.max(begun.elapsed());
            }
            longest
        });
        let (_, token) = answer(app, TOKENS);
        over.store(true, Ordering::Relaxed);
        Waits { token, call: calls.join().expect("the calls succeed") }
    })
}

/// Writes a conversation of questions and answers, each answer with these events.
fn write_conversation(path: &Path, messages: u32, events: &str) {
    let file = std::fs::File::create(path).expect("there is room for temporary files");
    let mut out = BufWriter::new(file);
    let mut write = |text: String| out.write_all(text.as_bytes()).expect("there is room for temporary files");
    write(
        r#"{"format":"hunch-conversation","version":1,"title":"Long","created_ms":1,"updated_ms":1,"messages":["#.into(),
    );
    for id in 1..=messages {
        let (comma, parent) = if id == 1 { ("", "null".into()) } else { (",", (id - 1).to_string()) };
        let (role, events) = if id % 2 == 1 { ("user", "[]") } else { ("assistant", events) };
        let text =
            format!("{id}: the wind over the sea, 海上的风, and what the captain said of the voyage. ")
                .repeat(4);
        write(format!(
            r#"{comma}{{"id":{id},"parent":{parent},"role":"{role}","content":"{text}","created_ms":1,"events":{events}}}"#
        ));
    }
    write("]}".into());
}
