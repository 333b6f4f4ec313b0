//! What fits and what goes together: the prediction of memory against what loading really takes, drafts with
//! their verdicts, a pair measured with one call, and the command line of all that.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use hunch::api::library::{
    DraftOffer, FitRequest, FitVerdict, MachineMemory, MeasuredSpeedup, PairVerdict, SmallerChoice,
};
use hunch::api::{LoadRequest, ModelEntry};
use hunch::app::{App, AppConfig};
use hunch::bench::Contender;
use hunch::bench::compare::report::{CompareEvent, CompareRequest, ComparedPrompts};
use hunch::depth::MaxDraft;
use hunch::error::ErrorCode;
use hunch::library::measured::{Measured, Ran};
use hunch::library::pairs::Pairs;
use hunch::library::vocabularies::Vocabularies;
use hunch::model::device::{Compute, DeviceChoice};
use hunch::model::gguf::{Array, Value};
use hunch::propose::Method;
use hunch::rule::AcceptanceRule;
use hunch::sample::SamplingParams;
use serde_json::Value as Json;

use crate::support::default_model;
use crate::support::tiny::Tiny;

const PATIENCE: Duration = Duration::from_secs(120);

fn hunch(data: &Path, arguments: &[&str]) -> Json {
    let output = Command::new(env!("CARGO_BIN_EXE_hunch"))
        .args(arguments)
        .env("HUNCH_DATA_DIR", data)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"))
}

/// A target, a draft of it, one of another vocabulary, one that is larger, one that is broken.
fn models(folder: &Path) {
    let tiny = Tiny { context: 4096, ..Tiny::default() };
    tiny.write(folder, "target");
    Tiny { layers: 1, ..Tiny { context: 4096, ..Tiny::default() } }.write(folder, "draft");
    Tiny { layers: 4, ..Tiny { context: 4096, ..Tiny::default() } }.write(folder, "larger");
    let other = Tiny { layers: 1, ..Tiny::default() }.writer();
    let Some(Value::Array(Array::String(mut texts))) = other.metadata("tokenizer.ggml.tokens") else {
        panic!("a model has a vocabulary");
    };
    texts[97] = "something else".into();
    let other = other.without_key("tokenizer.ggml.tokens").strings("tokenizer.ggml.tokens", texts);
    std::fs::write(folder.join("other.gguf"), other.bytes()).unwrap();
    std::fs::write(folder.join("broken.gguf"), b"GGUF").unwrap();
}

fn app(folder: &Path) -> App {
    let config = AppConfig {
        models_folder: Some(folder.into()),
        places: None,
        store: Some(folder.join("conversations.db")),
        threads: Some(2),
        device: DeviceChoice::Cpu,
    };
    App::start(config).unwrap()
}

fn of<'a>(offers: &'a [DraftOffer], name: &str) -> &'a DraftOffer {
    offers.iter().find(|offer| offer.name == name).unwrap()
}

/// The peak of a process of its own, which does nothing else.
#[test]
fn the_prediction_is_within_a_tenth_of_what_loading_takes() {
    let data = tempfile::tempdir().unwrap();
    let model = default_model();
    let found = hunch(
        data.path(),
        &[
            "models",
            "fit",
            model.to_str().unwrap(),
            "--context",
            "1024",
            "--measure",
            "--json",
            "--device",
            "cpu",
        ],
    );
    let (predicted, measured) = (&found["fit"]["total"], &found["measured_peak_bytes"]);
    let ratio = predicted.as_f64().unwrap() / measured.as_f64().unwrap();
    assert!((ratio - 1.0).abs() <= 0.1, "predicted {predicted}, measured {measured}: {ratio:.3}");
}

#[test]
fn the_parts_of_a_fit_add_up_and_the_context_counts() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let fit = |draft: Option<&str>, context| {
        app.fit(&FitRequest { target: "target".into(), draft: draft.map(Into::into), context })
    };
    let both = fit(Some("draft"), Some(1000)).unwrap();
    let draft = both.draft.unwrap();
    // Layers, heads of 64, keys and values, four bytes each.
    assert_eq!(both.target.cache, 2 * 2 * 64 * 2 * 4 * 1000);
    assert_eq!(draft.cache * 2, both.target.cache);
    let parts = both.target.weights + both.target.cache + draft.weights + draft.cache + both.other;
    assert_eq!((parts, both.verdict, both.smaller.len()), (both.total, FitVerdict::Fits, 0));
    let usual = fit(None, None).unwrap();
    assert_eq!((usual.context, usual.draft), (4096, None));
    assert!(fit(None, Some(100)).unwrap().total < usual.total);
    for context in [0, 4097] {
        assert_eq!(fit(None, Some(context)).unwrap_err().code(), ErrorCode::InvalidRequest);
    }
    let gone = FitRequest { target: "gone".into(), draft: None, context: None };
    assert_eq!(app.fit(&gone).unwrap_err().code(), ErrorCode::ModelNotFound);
}

#[test]
fn every_model_is_an_offer_with_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let offers = app.draft_offers("target", None).unwrap();
    assert_eq!((offers.target.name.as_str(), offers.context), ("target", 4096));
    assert_eq!(offers.offers.len(), 4);
    let draft = &offers.offers[0];
    assert_eq!((draft.name.as_str(), &draft.verdict), ("draft", &PairVerdict::Suits { padding: 0 }));
    assert!(draft.size_ratio > 0.0 && draft.size_ratio < 1.0 && draft.fit == FitVerdict::Fits);
    let predicted = draft.predicted.unwrap();
    assert!(predicted.speedup >= 1.0 && !predicted.costs_measured && draft.measured.is_none());
    let other = of(&offers.offers, "other");
    let PairVerdict::OtherVocabulary { first: 97, of_target, of_draft } = &other.verdict else {
        panic!("{:?}", other.verdict)
    };
    assert_eq!((of_draft.as_str(), other.predicted), ("something else", None));
    assert_ne!(of_target, of_draft);
    assert_eq!(of(&offers.offers, "larger").verdict, PairVerdict::NotSmaller);
    assert!(matches!(of(&offers.offers, "broken").verdict, PairVerdict::Unusable { .. }));
    let methods = &offers.without_draft;
    assert!(methods.contains(&Method::Suffix) && !methods.contains(&Method::DraftModel));
    // The same again, from what is remembered.
    assert_eq!(app.draft_offers("target", None).unwrap(), offers);
    assert!(folder.path().join("vocabularies.json").exists());
    // For a model that nothing goes with the methods are left, and every model says why not.
    let lonely = app.draft_offers("other", None).unwrap();
    assert!(lonely.offers.iter().all(|offer| offer.predicted.is_none()) && !lonely.without_draft.is_empty());
}

#[test]
fn a_pair_is_measured_with_one_call_and_remembered() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let pair = LoadRequest { target: "target".into(), draft: Some("draft".into()), context: None };
    for turn in 0..2 {
        let (sender, receiver) = channel();
        let sink = Box::new(move |message| drop(sender.send(message)));
        app.measure_pair(pair.clone(), sink).unwrap();
        let mut last = None;
        while let Ok(message) = receiver.recv_timeout(PATIENCE) {
            last = message.events.into_iter().next_back().or(last);
        }
        let Some(CompareEvent::Finished { report: Some(report), kept: Some(kept), .. }) = last else {
            panic!("it did not finish: {last:?}");
        };
        assert_eq!((report.lanes.len(), report.setting.prompts.len(), report.setting.runs), (3, 2, 2));
        let offers = app.draft_offers("target", None).unwrap();
        let measured = of(&offers.offers, "draft").measured.clone().unwrap();
        assert_eq!((measured.comparison, measured.ended_ms), (kept, report.ended_ms), "turn {turn}");
        let lane = report.lanes.iter().find(|lane| lane.contender.method == measured.method).unwrap();
        assert_eq!(lane.speedup, measured.speedup);
        let ran = Measured::at(folder.path(), "cpu");
        let plain = ran.tokens_per_second(&Ran::of(&offers.target)).unwrap();
        assert_eq!(plain, report.lanes[0].tok_s);
    }
    assert_eq!(app.list_comparisons().unwrap().len(), 2);
    // What changes the output, and what was stopped, says nothing of the pair; but it is in the history.
    let before = of(&app.draft_offers("target", None).unwrap().offers, "draft").measured.clone();
    let lane = |method| Contender { method, max_draft: MaxDraft::Auto };
    for (rule, stop) in
        [(AcceptanceRule::LossyLenience { lenience: 0.5 }, false), (AcceptanceRule::Lossless, true)]
    {
        let request = CompareRequest {
            prompts: ComparedPrompts::Suite { name: "code".into(), prompts: Some(1) },
            lanes: vec![lane(Method::DraftModel)],
            sampling: SamplingParams::default(),
            rule,
            max_tokens: 32,
            runs: if stop { 20 } else { 1 },
        };
        let (sender, receiver) = channel();
        let id = app.compare(request, Box::new(move |message| drop(sender.send(message)))).unwrap();
        let mut last = None;
        while let Ok(message) = receiver.recv_timeout(PATIENCE) {
            for event in message.events {
                if stop && matches!(event, CompareEvent::Turn { done: 2, .. }) {
                    app.stop_measurement(id).unwrap();
                }
                last = Some(event);
            }
        }
        let Some(CompareEvent::Finished { kept: Some(_), stopped, .. }) = last else {
            panic!("it did not finish: {last:?}");
        };
        assert_eq!(stopped, stop);
        assert_eq!(of(&app.draft_offers("target", None).unwrap().offers, "draft").measured, before);
    }
    assert_eq!(app.list_comparisons().unwrap().len(), 4);
}

/// Ollama's files are called by their digests, Jan's all `model`.
#[test]
fn a_model_is_known_by_the_name_it_is_listed_under() {
    let folder = tempfile::tempdir().unwrap();
    let model = |layers, file: &str, name: &str| {
        let written = Tiny { layers, ..Tiny::default() }.write(folder.path(), file);
        let path = folder.path().join(format!("sha256-{file}"));
        std::fs::rename(written, &path).unwrap();
        let entry = ModelEntry { name: name.into(), ..hunch::library::inspect(&path).unwrap().entry };
        (path, entry)
    };
    let (target, listed_target) = model(2, "1234", "big:8b");
    let (draft, listed_draft) = model(1, "5678", "small:1b");
    let measured = Measured::at(folder.path(), "cpu");
    let speedup = MeasuredSpeedup { speedup: 1.5, method: Method::Cascade, ended_ms: 1, comparison: 2 };
    measured.remember_pair(&Ran::of(&listed_target), &Ran::of(&listed_draft), speedup.clone()).unwrap();
    let models = [listed_target, listed_draft];
    let judged = |target: &Path, usable| {
        let pairs = Pairs {
            models: &models,
            compute: &Compute::open(DeviceChoice::Cpu, Some(1)).unwrap(),
            machine: MachineMemory { total: usable, usable },
            vocabularies: &Vocabularies::beside(None),
            measured: Some(&measured),
            costs: &|_| None,
        };
        (pairs.fit(target, None, None).unwrap(), pairs.offers(target, None).unwrap())
    };
    // By another way to the same file.
    let around = folder.path().join("..").join(folder.path().file_name().unwrap()).join("sha256-1234");
    let (fit, offers) = judged(&around, u64::MAX / 2);
    assert_eq!(offers.target.name, "big:8b");
    assert_eq!(of(&offers.offers, "small:1b").measured, Some(speedup));
    let (too_large, _) = judged(&target, fit.total - 1);
    let here = |choice: &SmallerChoice| match choice {
        SmallerChoice::Model { name, path } => Some((name.clone(), path.clone())),
        _ => None,
    };
    let here: Vec<_> = too_large.smaller.iter().filter_map(here).collect();
    assert_eq!(here, [("small:1b".into(), draft.display().to_string())]);
}

#[test]
fn the_catalogue_knows_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = app(folder.path()).catalogue();
    assert!(catalogue.version >= 1 && catalogue.models.len() > 20);
    let shown = hunch(folder.path(), &["models", "catalogue", "--json"]);
    assert_eq!(shown, serde_json::to_value(&catalogue).unwrap());
}

#[test]
fn the_command_line_judges_as_the_application_does() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("models");
    std::fs::create_dir(&folder).unwrap();
    models(&folder);
    let pairs = hunch(data.path(), &["models", "pairs", "target", "--json", "--device", "cpu"]);
    assert_eq!(pairs["offers"][0]["name"], "draft");
    assert_eq!(pairs["offers"][0]["verdict"]["kind"], "suits");
    let fit =
        ["models", "fit", "target", "--draft", "draft", "--context", "256", "--json", "--device", "cpu"];
    let fit = hunch(data.path(), &fit);
    assert_eq!((&fit["fit"]["context"], &fit["measured_peak_bytes"]), (&Json::from(256), &Json::Null));
    assert!(data.path().join("vocabularies.json").exists());
}
