//! Loading and unloading of models: progress, cancelling, changing the draft of a loaded target, unloading by
//! hand and by time, and the requested context.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hunch::app::App;
use hunch::engine::Engine;
use hunch::event::GenerationEvent;
use hunch::generate::{LoadPlan, LoadWatch};
use hunch_core::method::Method;
use hunch_error::{Error, ErrorCode, RunningWork};
use hunch_library::types::LoadRequest;
use hunch_library::types::{LibraryEvent, LoadProgress};
use hunch_model::weights::WeightFile;

use crate::support::app::{app, load_request, write_pair};
use crate::support::cpu;
use crate::support::requests::endless_request as request;
use hunch_testing::tiny::Tiny;

/// Long enough for a loaded machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

fn app_with_files(folder: &Path) -> App {
    write_pair(folder);
    Tiny { seed: 9, ..Tiny::default() }.write(folder, "other");
    app(folder)
}

fn library_events(app: &App) -> Receiver<LibraryEvent> {
    let (sender, receiver) = channel();
    app.set_library_listener(Box::new(move |event| {
        let _ = sender.send(event);
    }));
    receiver
}

fn bytes(folder: &Path, name: &str) -> u64 {
    WeightFile::open(&folder.join(format!("{name}.gguf"))).unwrap().weight_bytes() as u64
}

/// The tokens of an answer; `None` when it failed.
fn answer(app: &App, method: Method) -> Option<Vec<u32>> {
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    app.answer(request(method, 12), sink).unwrap();
    let mut tokens = Vec::new();
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        for event in &message.events {
            tokens.extend(event.tokens().iter().map(|token| token.id));
            if matches!(event, GenerationEvent::Failed { .. }) {
                return None;
            }
        }
    }
    Some(tokens)
}

#[test]
fn load_reports_progress_and_new_draft_keeps_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_files(folder.path());
    let events = library_events(&app);
    let total = |events: &Receiver<LibraryEvent>| -> Vec<u64> {
        let steps = events.try_iter().map(|event| match event {
            LibraryEvent::Loading { progress: LoadProgress { done_bytes, total_bytes, name, .. } } => {
                assert!(done_bytes <= total_bytes && ["target", "draft"].contains(&name.as_str()));
                total_bytes
            }
            other => panic!("{other:?}"),
        });
        steps.collect()
    };
    app.load_models(load_request("target", Some("draft"))).unwrap();
    let (target, draft) = (bytes(folder.path(), "target"), bytes(folder.path(), "draft"));
    let totals = total(&events);
    assert!(!totals.is_empty() && totals.iter().all(|&bytes| bytes == target + draft), "{totals:?}");
    // Without the draft nothing is read; with it only the draft is.
    assert_eq!(app.load_models(load_request("target", None)).unwrap().draft, None);
    assert!(total(&events).is_empty());
    app.load_models(load_request("target", Some("draft"))).unwrap();
    let totals = total(&events);
    assert!(!totals.is_empty() && totals.iter().all(|&bytes| bytes == draft), "{totals:?}");
    assert_eq!(answer(&app, Method::DraftModel).unwrap().len(), 12);
    // A file that has changed is another one.
    Tiny { seed: 5, ..Tiny::default() }.write(folder.path(), "target");
    app.load_models(load_request("target", None)).unwrap();
    assert!(total(&events).iter().all(|&bytes| bytes == target));
}

#[test]
fn stopped_load_keeps_previous_models() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_files(folder.path());
    let before = app.load_models(load_request("target", Some("draft"))).unwrap();
    let tokens = answer(&app, Method::Plain).unwrap();
    let stopper = app.clone();
    app.set_library_listener(Box::new(move |_| stopper.cancel_loading()));
    let stopped = app.load_models(load_request("other", None)).unwrap_err();
    assert_eq!(stopped.code(), ErrorCode::Stopped);
    assert_eq!(app.info().loaded, Some(before));
    assert_eq!(answer(&app, Method::Plain).unwrap(), tokens);
    // The next one is not stopped by what was said to the last.
    let _ = library_events(&app);
    app.load_models(load_request("other", None)).unwrap();
}

#[test]
fn previous_models_are_reloaded_when_a_load_fails() {
    let folder = tempfile::tempdir().unwrap();
    drop(app_with_files(folder.path()));
    let file = |name: &str| folder.path().join(format!("{name}.gguf"));
    let engine = Engine::start(cpu()).unwrap();
    let context = Some(64);
    engine.load(LoadPlan { context, ..LoadPlan::of(&file("target")) }, false).unwrap();
    let stop: LoadWatch = Arc::new(|_| ControlFlow::Break(()));
    let stopped = LoadPlan { progress: Some(stop), ..LoadPlan::of(&file("other")) };
    let failure = engine.load(stopped, true).err().unwrap();
    assert_eq!((failure.error.code(), failure.empty), (ErrorCode::Stopped, false));
    // A broken file unloads nothing.
    std::fs::write(file("broken"), b"GGUF").unwrap();
    let failure = engine.load(LoadPlan::of(&file("broken")), true).err().unwrap();
    assert_eq!((failure.error.code(), failure.empty), (ErrorCode::InvalidModelFile, false));
    // The first ones are there: only the draft is read.
    let read = Arc::new(AtomicU64::new(0));
    let counter = read.clone();
    let count: LoadWatch = Arc::new(move |step| {
        counter.store(step.total, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    let draft = Some(file("draft"));
    let loaded = engine
        .load(LoadPlan { draft, context, progress: Some(count), ..LoadPlan::of(&file("target")) }, true);
    assert_eq!(loaded.unwrap().context, 64);
    assert_eq!(read.load(Ordering::Relaxed), bytes(folder.path(), "draft"));
}

#[test]
fn unload_is_refused_during_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    Tiny { context: 100_000, ..Tiny::default() }.write(folder.path(), "long");
    let app = app_with_files(folder.path());
    let events = library_events(&app);
    app.load_models(load_request("long", None)).unwrap();
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    let id = app.answer(request(Method::Plain, 90_000), sink).unwrap().generation_id;
    assert_eq!(app.unload_models().unwrap_err().code(), ErrorCode::Busy);
    app.stop_generation(id);
    while receiver.recv_timeout(PATIENCE).is_ok() {}
    app.unload_models().unwrap();
    assert_eq!(events.try_iter().last(), Some(LibraryEvent::Unloaded));
    assert_eq!(app.info().loaded, None);
    app.load_models(load_request("target", None)).unwrap();
    assert!(answer(&app, Method::Plain).is_some());
}

#[test]
fn held_engine_refuses_work_until_it_is_released() {
    let folder = tempfile::tempdir().unwrap();
    Tiny { context: 100_000, ..Tiny::default() }.write(folder.path(), "long");
    let app = app_with_files(folder.path());
    app.load_models(load_request("long", None)).unwrap();
    let hold = app.hold_for_update().unwrap();
    assert!(app.check_idle().is_err());
    let refused = [
        app.answer(request(Method::Plain, 12), Box::new(|_| ())).err(),
        app.measure_costs(Box::new(|_| ())).err(),
        app.load_models(load_request("other", None)).err(),
        app.unload_models().err(),
        app.hold_for_update().err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(Error::Busy(RunningWork::Update))), "{error:?}");
    }
    drop(hold);
    assert!(app.check_idle().is_ok() && answer(&app, Method::Plain).is_some(), "the models are still loaded");
    // An answer in turn refuses the hold.
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    let id = app.answer(request(Method::Plain, 90_000), sink).unwrap().generation_id;
    assert!(matches!(app.hold_for_update(), Err(Error::Busy(RunningWork::Answer))));
    app.stop_generation(id);
    while receiver.recv_timeout(PATIENCE).is_ok() {}
}

#[test]
fn idle_models_are_unloaded_after_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_files(folder.path());
    let events = library_events(&app);
    app.load_models(load_request("target", None)).unwrap();
    // A few milliseconds.
    app.set_preference("keep_warm_minutes", &serde_json::json!(0.0001)).unwrap();
    let gone = std::iter::from_fn(|| events.recv_timeout(PATIENCE).ok());
    assert!(gone.into_iter().any(|event| event == LibraryEvent::Unloaded));
    assert_eq!(app.info().loaded, None);
    // They stay once it is set to nothing, however long: 0 is no time, not none at all.
    app.set_preference("keep_warm_minutes", &serde_json::json!(0)).unwrap();
    app.load_models(load_request("target", None)).unwrap();
    assert!(answer(&app, Method::Plain).is_some());
}

#[test]
fn requested_context_limits_the_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_files(folder.path());
    let small = LoadRequest { context: Some(16), ..load_request("target", Some("draft")) };
    assert_eq!(app.load_models(small).unwrap().context, 16);
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    app.answer(request(Method::DraftModel, 500), sink).unwrap();
    let mut received = Vec::new();
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        received.extend(message.events);
    }
    let full = |event: &GenerationEvent| match event {
        GenerationEvent::Finished { stop, stats, .. } => {
            *stop == hunch::event::StopReason::ContextFull
                && stats.prompt_tokens + stats.generated_tokens <= 17
        }
        GenerationEvent::Failed { error } => error.code == ErrorCode::ContextOverflow,
        _ => false,
    };
    assert!(received.last().is_some_and(full), "{:?}", received.last());
    // Another draft leaves it as it is, and so does asking for none.
    assert_eq!(app.load_models(load_request("target", None)).unwrap().context, 16);
    // More than the model was made for is what it was made for.
    let large = LoadRequest { context: Some(1 << 30), ..load_request("target", None) };
    assert_eq!(app.load_models(large).unwrap().context, Tiny::default().context);
}

const ABORTS: &str = "HUNCH_TEST_ABORTS_LOADING_IN";

#[test]
fn crashed_load_is_reported_until_the_next_load() {
    if let Some(folder) = std::env::var_os(ABORTS) {
        let app = app_with_files(Path::new(&folder));
        app.load_models(load_request("other", None)).unwrap();
        assert_eq!(app.info().unfinished_load, None);
        app.set_library_listener(Box::new(|_| std::process::abort()));
        app.load_models(load_request("target", Some("draft"))).unwrap();
        unreachable!("progress was reported");
    }
    let folder = tempfile::tempdir().unwrap();
    let this = "loading::crashed_load_is_reported_until_the_next_load";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(ABORTS, folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), None, "it was aborted: {}", String::from_utf8_lossy(&output.stderr));
    let path = |name: &str| folder.path().join(format!("{name}.gguf")).display().to_string();
    let unfinished =
        LoadRequest { target: path("target"), draft: Some(path("draft")), head: None, context: None };
    for _ in 0..2 {
        let app = app_with_files(folder.path());
        assert_eq!(app.info().unfinished_load, Some(unfinished.clone()), "until something is loaded");
        app.shutdown();
    }
    let app = app_with_files(folder.path());
    assert_eq!(app.load_models(load_request("nothing", None)).unwrap_err().code(), ErrorCode::ModelNotFound);
    assert_eq!(app.info().unfinished_load, None, "what fails has not ended the program");
    app.load_models(load_request("target", Some("draft"))).unwrap();
    drop(app);
    assert_eq!(app_with_files(folder.path()).info().unfinished_load, None);
}
