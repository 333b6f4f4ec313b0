//! Drafts of the target itself in the window: its low-bit copy as the draft model, and the search for layers to skip.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch::app::{App, AppConfig};
use hunch::bench::skip_search::SkipSearchEvent;
use hunch_core::method::Method;
use hunch_error::{Error, ErrorCode, Refusal, RunningWork};
use hunch_library::Places;
use hunch_library::types::{FitVerdict, LibraryEvent, LowBitOffer};
use hunch_model::gguf::WeightType;
use hunch_model::low_bit;
use hunch_model::weights::WeightFile;

use crate::support::app::{config, load_request};
use crate::support::requests::endless_request;
use hunch_testing::tiny::Tiny;

/// Long enough for a loaded machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// An application with a target of many bits, and its own data folder.
fn app_at(folder: &Path, layers: usize) -> App {
    let places = Places { data: Some(folder.into()), ..Places::only(folder.join("models")) };
    std::fs::create_dir(&places.models).unwrap();
    Tiny { dtype: GgmlDType::F16, layers, ..Tiny::default() }.write(&places.models, "target");
    let store = Some(folder.join("conversations.db"));
    App::start(AppConfig { places: Some(places), store, ..config(Path::new("")) }).unwrap()
}

fn offer(app: &App) -> LowBitOffer {
    app.draft_offers("target", None).unwrap().low_bit.unwrap()
}

/// The tokens of an answer at temperature 0.
fn greedy_answer(app: &App, method: Method) -> Vec<u32> {
    let (sender, receiver) = channel();
    let mut request = endless_request(method, 12);
    request.settings.sampling.temperature = 0.0;
    app.answer(request, Box::new(move |message| sender.send(message).unwrap_or_default())).unwrap();
    let messages = std::iter::from_fn(|| receiver.recv_timeout(PATIENCE).ok());
    let tokens: Vec<u32> = messages
        .flat_map(|message| message.events)
        .flat_map(|event| event.tokens().iter().map(|token| token.id).collect::<Vec<_>>())
        .collect();
    assert_eq!(tokens.len(), 12, "{method}");
    tokens
}

fn progress_of_writing(app: &App) -> Receiver<(u64, u64)> {
    let (sender, receiver) = channel();
    app.set_library_listener(Box::new(move |event| {
        if let LibraryEvent::Loading { progress } = event
            && progress.writes_copy
        {
            let _ = sender.send((progress.done_bytes, progress.total_bytes));
        }
    }));
    receiver
}

#[test]
fn low_bit_copy_is_offered_written_once_and_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(folder.path(), 2);
    let planned = offer(&app);
    assert!(!planned.written && planned.fit == FitVerdict::Fits && !Path::new(&planned.path).exists());
    assert!((0.0..1.0).contains(&planned.predicted.acceptance));
    // Everything is known of the copy before it is written.
    let pair = load_request("target", Some(&planned.path));
    let fit = app.fit(&pair).unwrap();
    assert_eq!((fit.total, fit.verdict), (planned.memory, planned.fit));
    assert!(fit.total > app.fit(&load_request("target", None)).unwrap().total);
    let writing = progress_of_writing(&app);
    let loaded = app.load_models(pair.clone()).unwrap();
    let draft = loaded.draft.clone().unwrap();
    assert_eq!(
        (draft.path.clone(), draft.title.clone()),
        (planned.path.clone(), format!("{} low-bit", loaded.target.title))
    );
    assert_ne!(draft.quantisation, loaded.target.quantisation);
    assert!(loaded.methods.contains(&Method::DraftModel));
    let steps: Vec<_> = writing.try_iter().collect();
    assert!(!steps.is_empty() && steps.iter().all(|(done, total)| done <= total && *total > 0), "{steps:?}");
    let file = WeightFile::open(Path::new(&planned.path)).unwrap();
    assert!(
        low_bit::is_copy(file.gguf())
            && file.gguf().tensors.values().any(|info| info.dtype == WeightType::Q2K)
    );
    let written = offer(&app);
    assert_eq!(
        LowBitOffer { written: true, size_bytes: planned.size_bytes, ..written.clone() },
        LowBitOffer { written: true, ..planned.clone() }
    );
    // The size in the file adds the header and padding to the weights.
    let error = written.size_bytes.abs_diff(planned.size_bytes) as f64 / written.size_bytes as f64;
    assert!(error < 0.1, "{written:?} {planned:?}");
    // The page may name it, and no other file next to it.
    assert_eq!(app.unknown_model([&*planned.path]), None);
    let around = format!("{}/../conversations.db", Path::new(&planned.path).parent().unwrap().display());
    assert_eq!(app.unknown_model([&*around]), Some(&*around));
    let plain = greedy_answer(&app, Method::Plain);
    assert_eq!(greedy_answer(&app, Method::DraftModel), plain);
    // It is used as it is the next time.
    let before = std::fs::metadata(&planned.path).unwrap().modified().unwrap();
    app.load_models(load_request("target", None)).unwrap();
    app.load_models(pair).unwrap();
    assert_eq!(std::fs::metadata(&planned.path).unwrap().modified().unwrap(), before);
}

#[test]
fn low_bit_copy_is_removed_by_hand_and_with_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(folder.path(), 2);
    let copy = offer(&app).path;
    app.remove_low_bit_copy("target").unwrap();
    app.load_models(load_request("target", Some(&copy))).unwrap();
    let refused = app.remove_low_bit_copy("target").unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::ModelInMemory { .. })), "{refused}");
    app.unload_models().unwrap();
    app.remove_low_bit_copy("target").unwrap();
    assert!(!Path::new(&copy).exists() && !offer(&app).written);
    app.load_models(load_request("target", Some(&copy))).unwrap();
    app.unload_models().unwrap();
    app.remove_model(&app.list_models()[0].path.clone()).unwrap();
    assert!(!Path::new(&copy).exists() && app.list_models().is_empty());
}

#[test]
fn stopped_copy_leaves_no_file_and_the_models_before() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(folder.path(), 2);
    let before = app.load_models(load_request("target", None)).unwrap();
    let copy = offer(&app).path;
    let stopper = app.clone();
    app.set_library_listener(Box::new(move |_| stopper.cancel_loading()));
    let stopped = app.load_models(load_request("target", Some(&copy))).unwrap_err();
    assert_eq!((stopped.code(), app.info().loaded), (ErrorCode::Stopped, Some(before)));
    let left: Vec<_> = std::fs::read_dir(Path::new(&copy).parent().unwrap()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn no_copy_of_another_model_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(folder.path(), 2);
    let copy = offer(&app).path;
    let other = copy.replace("target-", "other-");
    assert_eq!(
        app.load_models(load_request("target", Some(&other))).unwrap_err().code(),
        ErrorCode::ModelNotFound
    );
    // A model of as few bits as its copy has none.
    let few = Tiny { dtype: GgmlDType::Q2K, ..Tiny::default() };
    few.write(&folder.path().join("models"), "few");
    assert_eq!(app.draft_offers("few", None).unwrap().low_bit, None);
}

#[test]
fn search_for_skipped_layers_is_saved_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(folder.path(), 4);
    let search = |app: &App| {
        let (sender, receiver) = channel();
        let id = app
            .search_skipped_layers(Box::new(move |message| {
                message.events.into_iter().for_each(|event| sender.send(event).unwrap());
            }))
            .unwrap();
        (id, receiver)
    };
    assert!(matches!(app.search_skipped_layers(Box::new(|_| ())), Err(Error::NoModel)));
    assert_eq!(app.load_models(load_request("target", None)).unwrap().skipped_layers, None);
    let (id, receiver) = search(&app);
    let mut events = Vec::new();
    while !matches!(events.last(), Some(SkipSearchEvent::Finished { .. } | SkipSearchEvent::Failed { .. })) {
        events.push(receiver.recv_timeout(PATIENCE).unwrap());
    }
    assert_eq!(app.skip_search_snapshot(id, 0).unwrap().events, events);
    assert!(matches!(events[0], SkipSearchEvent::Answering { done: 0, of: 4 }), "{events:?}");
    assert!(
        events.iter().any(|event| matches!(event, SkipSearchEvent::Trying { skipped: 1, done: 3, of: 4 }))
    );
    let Some(SkipSearchEvent::Finished { found: Some(found) }) = events.last() else { panic!("{events:?}") };
    assert!(found.layers == 4 && (1..4).contains(&found.best.skipped.len()));
    let layers = Some(found.best.skipped.clone());
    assert_eq!(app.info().loaded.unwrap().skipped_layers, layers);
    let plain = greedy_answer(&app, Method::Plain);
    assert_eq!(greedy_answer(&app, Method::LayerSkip), plain);
    // The next start knows it.
    app.unload_models().unwrap();
    assert_eq!(app.load_models(load_request("target", None)).unwrap().skipped_layers, layers);
}

#[test]
fn search_for_skipped_layers_is_stopped_and_excludes_answers() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(folder.path(), 4);
    app.load_models(load_request("target", None)).unwrap();
    let (sender, receiver) = channel();
    let (go, begun) = channel::<()>();
    let id = app
        .search_skipped_layers(Box::new(move |message| {
            // The search waits for nobody, so its first event may come with others.
            let _ = go.send(());
            message.events.into_iter().for_each(|event| sender.send(event).unwrap());
        }))
        .unwrap();
    let busy = app.answer(endless_request(Method::Plain, 4), Box::new(|_| ()));
    app.stop_measurement(id);
    begun.recv_timeout(PATIENCE).unwrap();
    let mut events = Vec::new();
    while !matches!(events.last(), Some(SkipSearchEvent::Finished { .. } | SkipSearchEvent::Failed { .. })) {
        events.push(receiver.recv_timeout(PATIENCE).unwrap());
    }
    assert!(matches!(events.last(), Some(SkipSearchEvent::Finished { found: None })), "{events:?}");
    assert!(matches!(busy, Err(Error::Busy(RunningWork::Measurement))));
    assert_eq!(app.info().loaded.unwrap().skipped_layers, None);
    assert!(!folder.path().join("skip-sets").exists());
}
