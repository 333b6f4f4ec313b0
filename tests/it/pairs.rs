//! Memory fit and draft pairs. Compares predictions with real memory use, and checks verdicts, pair
//! measurement and the command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch::app::App;
use hunch::bench::MethodConfig;
use hunch::bench::compare::report::{CompareEvent, CompareRequest, ComparedPrompts, LaneConfig};
use hunch::event::GenerationEvent;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::ErrorCode;
use hunch_library::catalogue;
use hunch_library::pairs::Pairs;
use hunch_library::speed_log::{ModelId, SpeedLog};
use hunch_library::types::{
    CostSource, DraftOffer, FitVerdict, MachineMemory, MeasuredSpeedup, PairVerdict, SmallerChoice, SpeedRole,
};
use hunch_library::types::{LoadRequest, ModelEntry};
use hunch_library::vocabularies::Vocabularies;
use hunch_model::gguf::{Array, Value};
use serde_json::{Value as Json, json};

use crate::support::app::{app, load_request};
use crate::support::requests::endless_request;
use crate::support::{cpu, default_model};
use hunch_testing::gguf_writer::type_number;
use hunch_testing::tiny::{END_OF_TURN, Tiny};

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

/// Writes six models: target, draft, one other token, all other tokens, larger, and broken.
fn models(folder: &Path) {
    let tiny = Tiny { context: 4096, ..Tiny::default() };
    tiny.write(folder, "target");
    Tiny { layers: 1, ..Tiny { context: 4096, ..Tiny::default() } }.write(folder, "draft");
    Tiny { layers: 4, ..Tiny { context: 4096, ..Tiny::default() } }.write(folder, "larger");
    let other = Tiny { layers: 1, ..Tiny::default() }.writer();
    let Some(Value::Array(Array::String(mut texts))) = other.metadata("tokenizer.ggml.tokens") else {
        panic!("a model has a vocabulary");
    };
    let write = |name: &str, texts: &[String]| {
        let model = Tiny { layers: 1, ..Tiny::default() }.writer().without_key("tokenizer.ggml.tokens");
        let model = model.strings("tokenizer.ggml.tokens", texts.iter().cloned());
        std::fs::write(folder.join(format!("{name}.gguf")), model.bytes()).unwrap();
    };
    texts[97] = "something else".into();
    write("other", &texts);
    texts[..256].iter_mut().for_each(|text| *text = format!("not {text}"));
    write("stranger", &texts);
    std::fs::write(folder.join("broken.gguf"), b"GGUF").unwrap();
}

fn of<'a>(offers: &'a [DraftOffer], name: &str) -> &'a DraftOffer {
    offers.iter().find(|offer| offer.name == name).unwrap()
}

/// Measured in a separate process that does nothing else.
#[test]
fn predicted_memory_is_within_10_percent_of_measured() {
    let data = tempfile::tempdir().unwrap();
    let model = default_model();
    let model = model.to_str().unwrap();
    let alone = ["models", "fit", model, "--measure", "--json", "--device", "cpu"];
    for rest in [&["--context", "1024"][..], &["--context", "300", "--draft", model]] {
        let found = hunch(data.path(), &[&alone[..], rest].concat());
        let (predicted, measured) = (&found["fit"]["total"], &found["measured_peak_bytes"]);
        let ratio = predicted.as_f64().unwrap() / measured.as_f64().unwrap();
        assert!(
            (ratio - 1.0).abs() <= 0.1,
            "{rest:?}: predicted {predicted}, measured {measured}: {ratio:.3}"
        );
    }
}

#[test]
fn fit_parts_add_up_and_grow_with_context() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let fit = |draft: Option<&str>, context| {
        app.fit(&LoadRequest { target: "target".into(), draft: draft.map(Into::into), head: None, context })
    };
    let both = fit(Some("draft"), Some(1000)).unwrap();
    let draft = both.draft.unwrap();
    // Layers, heads of width 64, keys and values, two bytes each.
    assert_eq!(both.target.cache, 2 * 2 * 64 * 2 * 2 * 1000);
    assert_eq!(draft.cache * 2, both.target.cache);
    let parts = both.target.weights + both.target.cache + draft.weights + draft.cache + both.other;
    assert_eq!((parts, both.verdict, both.smaller.len()), (both.total, FitVerdict::Fits, 0));
    let usual = fit(None, None).unwrap();
    assert_eq!((usual.context, usual.draft), (4096, None));
    assert!(fit(None, Some(100)).unwrap().total < usual.total);
    for context in [0, 4097] {
        assert_eq!(fit(None, Some(context)).unwrap_err().code(), ErrorCode::InvalidRequest);
    }
    let verdicts = app.fit_verdicts(&["target", "gone", "broken", "larger"].map(String::from));
    assert_eq!(verdicts, [Some(FitVerdict::Fits), None, None, Some(FitVerdict::Fits)]);
    let gone = LoadRequest { target: "gone".into(), draft: None, head: None, context: None };
    assert_eq!(app.fit(&gone).unwrap_err().code(), ErrorCode::ModelNotFound);
}

#[test]
fn every_model_is_offered_with_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let offers = app.draft_offers("target", None).unwrap();
    assert_eq!((offers.target.name.as_str(), offers.context), ("target", 4096));
    // The catalogue's models are larger than these, and rejected for that.
    let (here, elsewhere): (Vec<_>, Vec<_>) = offers.offers.iter().partition(|offer| offer.path.is_some());
    assert_eq!((here.len(), elsewhere.len()), (5, app.catalogue().models.len()));
    assert!(elsewhere.iter().all(|offer| offer.verdict == PairVerdict::NotSmaller && !offer.recommended));
    let draft = &offers.offers[0];
    assert_eq!((draft.name.as_str(), &draft.verdict), ("draft", &PairVerdict::Suits { padding: 0 }));
    assert!(draft.size_ratio > 0.0 && draft.size_ratio < 1.0 && draft.fit == FitVerdict::Fits);
    let predicted = draft.predicted.unwrap();
    assert!(predicted.speedup >= 1.0 && predicted.costs == CostSource::Sizes && draft.measured.is_none());
    // A draft with another tokeniser is possible, without a prediction and after those with the same vocabulary.
    let other = &offers.offers[1];
    assert_eq!((other.name.as_str(), other.predicted, other.recommended), ("other", None, false));
    assert_eq!(other.verdict, PairVerdict::Translated { shared: 255, of: 256 });
    let stranger = of(&offers.offers, "stranger");
    let PairVerdict::OtherVocabulary { first: 0, of_target, of_draft } = &stranger.verdict else {
        panic!("{:?}", stranger.verdict)
    };
    assert_eq!(of_draft, &format!("not {of_target}"));
    assert_eq!(of(&offers.offers, "larger").verdict, PairVerdict::NotSmaller);
    assert!(matches!(of(&offers.offers, "broken").verdict, PairVerdict::Unusable { .. }));
    let methods = &offers.without_draft;
    assert!(methods.contains(&Method::Suffix) && !methods.contains(&Method::DraftModel));
    // The same result from the cache.
    assert_eq!(app.draft_offers("target", None).unwrap(), offers);
    assert!(folder.path().join("vocabularies.json").exists());
    // Without a suitable draft, methods without one remain, and every model has a reason.
    let lonely = app.draft_offers("other", None).unwrap();
    assert!(lonely.offers.iter().all(|offer| offer.predicted.is_none()) && !lonely.without_draft.is_empty());
}

/// Writes a sparse file of at least half a billion weights with Qwen2.5's vocabulary. `changed` replaces
/// one token.
fn qwen(folder: &Path, name: &str, changed: Option<(usize, &str)>) -> PathBuf {
    const ENTRIES: usize = 151_936;
    const ROW: usize = 4096;
    let special = [
        (0, "!"),
        (279, "Ġthe"),
        (151_643, "<|endoftext|>"),
        (151_644, "<|im_start|>"),
        (151_645, "<|im_end|>"),
        (151_657, "<tool_call>"),
        (151_664, "<|file_sep|>"),
    ];
    let mut texts: Vec<String> = (0..ENTRIES).map(|id| format!("token {id}")).collect();
    (151_665..ENTRIES).for_each(|id| texts[id] = format!("[PAD{id}]"));
    special.into_iter().chain(changed).for_each(|(id, text)| texts[id] = text.into());
    let header = Tiny { architecture: "qwen2", layers: 1, ..Tiny::default() }.writer();
    let header = header.without_key("tokenizer.ggml.tokens").strings("tokenizer.ggml.tokens", texts);
    let header = header.without_key("tokenizer.ggml.token_type").without("token_embd.weight");
    let q8_0 = type_number(GgmlDType::Q8_0);
    let header =
        header.raw_tensor("token_embd.weight", &[ROW as u64, ENTRIES as u64], q8_0, None, Vec::new());
    let path = folder.join(format!("{name}.gguf"));
    std::fs::write(&path, header.bytes()).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() + (ENTRIES * ROW / 32 * 34) as u64).unwrap();
    path
}

#[test]
fn single_model_is_offered_catalogue_drafts_of_its_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    let offers = |name: &str, changed| {
        let path = qwen(folder.path(), name, changed);
        let pairs = Pairs {
            models: &[],
            compute: &cpu(),
            machine: MachineMemory { total: 64 << 30, usable: 48 << 30 },
            heads: None,
            copies: None,
            vocabularies: &Vocabularies::open(None),
            measured: None,
            costs: &|_| None,
        };
        pairs.offers(&path, &[], None).unwrap().offers
    };
    let of_catalogue = |offers: &[DraftOffer], id: &str| {
        offers.iter().find(|offer| offer.catalogue.as_deref() == Some(id)).unwrap().clone()
    };
    let renamed = offers("mine", None);
    assert_eq!(renamed.len(), catalogue::models().len(), "each is reported");
    for id in ["qwen2.5-0.5b-instruct-q4_k_m", "qwen2.5-coder-0.5b-instruct-q4_k_m", "qwen3-0.6b-q8_0"] {
        let offer = of_catalogue(&renamed, id);
        assert_eq!(
            (offer.verdict, offer.recommended),
            (PairVerdict::Expected { compared: false }, false),
            "{id}"
        );
        assert!(offer.predicted.is_some() && offer.path.is_none(), "{id}");
    }
    let other = of_catalogue(&renamed, "smollm2-135m-instruct-q8_0");
    let PairVerdict::OtherVocabulary { first: 0, of_target, of_draft } = &other.verdict else {
        panic!("{:?}", other.verdict)
    };
    assert_eq!((of_target.as_str(), of_draft.as_str(), other.predicted), ("!", "<|endoftext|>", None));
    assert_eq!(of_catalogue(&renamed, "qwen3-32b-q4_k_m").verdict, PairVerdict::NotSmaller);
    // The name determines the recommended draft, in any quantisation.
    let named = offers("Qwen2.5-7B-Instruct-Q5_K_M", None);
    let recommended: Vec<_> =
        named.iter().filter(|offer| offer.recommended).map(|o| o.name.as_str()).collect();
    assert_eq!((recommended, named[0].recommended), (vec!["Qwen2.5 0.5B Instruct"], true));
    // A differing token overrules the name.
    let changed = offers("Qwen2.5-7B-Instruct-distilled", Some((151_645, "<end>")));
    let differs = of_catalogue(&changed, "qwen2.5-0.5b-instruct-q4_k_m");
    let expected = ("<end>".to_owned(), "<|im_end|>".to_owned());
    let PairVerdict::OtherVocabulary { first: 151_645, of_target, of_draft } = differs.verdict else {
        panic!("{:?}", differs.verdict)
    };
    assert_eq!((of_target, of_draft), expected);
    assert!(changed.iter().all(|offer| !offer.recommended && offer.predicted.is_none()));
}

/// Generates an answer of `tokens` tokens and waits until its speed is stored.
fn answer(app: &App, method: Method, tokens: u32) {
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| drop(sender.send(message)));
    app.answer(endless_request(method, tokens), sink).unwrap();
    let mut last = None;
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        last = message.events.into_iter().next_back().or(last);
    }
    let Some(GenerationEvent::Finished { stats, .. }) = last else { panic!("{last:?}") };
    assert_eq!(stats.generated_tokens, tokens);
}

#[test]
fn listed_speed_includes_role_and_method() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let ran_as = |name: &str| {
        let models = app.library().models;
        let model = models.into_iter().find(|model| model.name == name).unwrap();
        assert_eq!(model.tokens_per_second.is_some(), model.ran_as.is_some());
        assert!(model.tokens_per_second.is_none_or(|rate| rate > 0.0));
        model.ran_as
    };
    let load = load_request("target", Some("draft"));
    app.load_models(load).unwrap();
    answer(&app, Method::DraftModel, 20);
    assert_eq!((ran_as("target"), ran_as("draft")), (None, None), "too short to record");
    answer(&app, Method::DraftModel, 64);
    assert_eq!(ran_as("target"), Some(SpeedRole::Target { method: Method::DraftModel }));
    assert_eq!((ran_as("draft"), ran_as("larger")), (Some(SpeedRole::Draft), None));
    answer(&app, Method::Plain, 40);
    assert_eq!(ran_as("target"), Some(SpeedRole::Target { method: Method::Plain }));
    // The plain rate is shown until it is measured again.
    answer(&app, Method::Suffix, 40);
    assert_eq!(ran_as("target"), Some(SpeedRole::Target { method: Method::Plain }));
}

#[test]
fn speeds_measured_by_the_command_line_are_listed() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("models");
    std::fs::create_dir(&folder).unwrap();
    models(&folder);
    let run = |arguments: &[&str]| {
        let output = crate::cli::hunch(data.path(), arguments);
        assert!(output.status.success(), "{}", crate::cli::text(&output.stderr));
        crate::cli::text(&output.stdout)
    };
    let ran_as = |name: &str| {
        let listed: Json = serde_json::from_str(&run(&["models", "list", "--json"])).unwrap();
        listed.as_array().unwrap().iter().find(|model| model["name"] == name).unwrap()["ran_as"].clone()
    };
    let of_pair = ["--target", "target", "--draft", "draft", "--device", "cpu", "--max-tokens", "48"];
    let bias = format!("{END_OF_TURN}=-100");
    let long = [&of_pair[..], &["--logit-bias", &bias]].concat();
    assert_eq!(ran_as("target"), Json::Null);
    run(&[&["run", "abc abc", "--method", "draft-model", "--max-draft", "3"][..], &long].concat());
    assert_eq!(ran_as("target"), json!({ "kind": "target", "method": "draft-model" }));
    assert_eq!(ran_as("draft"), json!({ "kind": "draft" }));
    let words = run(&["models", "list", "--long"]);
    assert!(words.contains("with draft-model") && words.contains("drafting"), "{words}");
    assert!(words.contains("tokeniser") && words.contains("gpt2 (gpt-2)"), "{words}");
    run(&[&["compare", "abc abc", "--methods", "suffix", "--runs", "1"][..], &long].concat());
    assert_eq!(ran_as("target"), json!({ "kind": "target", "method": "plain" }));
    run(&[
        &["bench", "--methods", "plain", "--prompts", "1", "--runs", "1", "--target", "larger"][..],
        &long[4..],
    ]
    .concat());
    assert_eq!(ran_as("larger"), json!({ "kind": "target", "method": "plain" }));
    let inspected: Json = serde_json::from_str(&run(&["models", "inspect", "target", "--json"])).unwrap();
    assert_eq!(inspected["model"]["ran_as"]["method"], "plain");
}

/// Writes a model whose header asks for more memory than any machine has. `sizes` decides whether a smaller
/// context helps.
fn greedy(folder: &Path, name: &str, sizes: &[(&str, u32)]) {
    let mut header = Tiny::default().writer();
    for (key, value) in sizes {
        let key = format!("llama.{key}");
        header = header.without_key(&key).u32(&key, *value);
    }
    std::fs::write(folder.join(format!("{name}.gguf")), header.bytes()).unwrap();
}

#[test]
fn oversized_model_is_refused_with_alternatives_and_the_old_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    greedy(folder.path(), "greedy", &[("block_count", 1000), ("context_length", 1 << 24)]);
    let app = app(folder.path());
    let load =
        |target: &str, context| LoadRequest { target: target.into(), draft: None, head: None, context };
    let before = app.load_models(load("target", None)).unwrap();
    let refused = app.load_models(load("greedy", Some(1 << 24))).unwrap_err();
    let words = refused.to_string();
    assert_eq!(refused.code(), ErrorCode::OutOfMemory, "{words}");
    assert!(words.contains("A context of ") && words.contains(" tokens would fit"), "{words}");
    assert!(words.contains("(predicted)") && words.contains("still there"), "{words}");
    assert_eq!(app.info().loaded, Some(before));
    answer(&app, Method::Plain, 8);
}

#[test]
fn command_line_refuses_oversized_model_unless_forced() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("models");
    std::fs::create_dir(&folder).unwrap();
    Tiny { layers: 1, ..Tiny::default() }.write(&folder, "small");
    let wide =
        ["attention.head_count", "attention.head_count_kv", "attention.key_length"].map(|key| (key, 4096));
    let rest = [("attention.value_length", 4096), ("rope.dimension_count", 4096), ("block_count", 1000)];
    greedy(&folder, "greedy", &[&wide[..], &rest[..]].concat());
    let run = |rest: &[&str]| {
        let output =
            crate::cli::hunch(data.path(), &[&["run", "hi", "--target", "greedy"][..], rest].concat());
        (output.status.code().unwrap(), crate::cli::text(&output.stderr))
    };
    let (code, words) = run(&[]);
    assert_eq!(code, 5, "{words}");
    assert!(words.contains("small would fit") && words.contains("Nothing was loaded"), "{words}");
    assert!(words.contains("--ignore-memory-check"), "{words}");
    // Loading then fails, because the file contradicts its header.
    let (code, words) = run(&["--ignore-memory-check"]);
    assert_eq!(code, 3, "{words}");
}

#[test]
fn measured_pair_is_stored_and_offered() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    let app = app(folder.path());
    let pair = load_request("target", Some("draft"));
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
        let lane = report.lanes.iter().find(|lane| lane.config.method == measured.method).unwrap();
        assert_eq!(lane.speedup, measured.speedup);
        let mut target = [offers.target.clone()];
        SpeedLog::in_folder(folder.path(), "cpu").fill(&mut target);
        let ran = (target[0].tokens_per_second, target[0].ran_as);
        assert_eq!(ran, (Some(report.lanes[0].tok_s), Some(SpeedRole::Target { method: Method::Plain })));
    }
    assert_eq!(app.list_comparisons().unwrap().len(), 2);
    // Lossy and stopped runs are in the history but do not count for the pair.
    let before = of(&app.draft_offers("target", None).unwrap().offers, "draft").measured.clone();
    let lane = |method| LaneConfig::of(MethodConfig { method, max_draft: MaxDraft::Auto });
    for (rule, stop) in
        [(AcceptanceRule::LossyLenience { lenience: 0.5 }, false), (AcceptanceRule::Lossless, true)]
    {
        let request = CompareRequest {
            server: None,
            prompts: ComparedPrompts::Suite { name: "code".into(), prompts: Some(1) },
            lanes: vec![lane(Method::DraftModel)],
            sampling: SamplingParams::default(),
            rule,
            max_tokens: 32,
            runs: if stop { 20 } else { 1 },
            stop: Vec::new(),
            options: MethodOptions::default(),
            thinking: None,
        };
        let (sender, receiver) = channel();
        let id = app.compare(request, Box::new(move |message| drop(sender.send(message)))).unwrap();
        let mut last = None;
        while let Ok(message) = receiver.recv_timeout(PATIENCE) {
            for event in message.events {
                if stop && matches!(event, CompareEvent::Turn { done: 2, .. }) {
                    app.stop_measurement(id);
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

/// Ollama names files by digest, Jan names all of them `model`.
#[test]
fn speeds_and_offers_use_the_listed_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = |layers, file: &str, name: &str| {
        let written = Tiny { layers, ..Tiny::default() }.write(folder.path(), file);
        let path = folder.path().join(format!("sha256-{file}"));
        std::fs::rename(written, &path).unwrap();
        let entry = ModelEntry { name: name.into(), ..hunch_library::inspect(&path).unwrap().entry };
        (path, entry)
    };
    let (target, listed_target) = model(2, "1234", "big:8b");
    let (draft, listed_draft) = model(1, "5678", "small:1b");
    let measured = SpeedLog::in_folder(folder.path(), "cpu");
    let speedup = MeasuredSpeedup { speedup: 1.5, method: Method::Cascade, ended_ms: 1, comparison: 2 };
    measured
        .remember_pair(&ModelId::of(&listed_target), &ModelId::of(&listed_draft), speedup.clone())
        .unwrap();
    let models = [listed_target, listed_draft];
    let judged = |target: &Path, usable| {
        let pairs = Pairs {
            models: &models,
            compute: &cpu(),
            machine: MachineMemory { total: usable, usable },
            heads: None,
            copies: None,
            vocabularies: &Vocabularies::open(None),
            measured: Some(&measured),
            costs: &|_| None,
        };
        (pairs.fit(target, None, None, None).unwrap(), pairs.offers(target, &[], None).unwrap())
    };
    // Another path to the same file.
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
fn catalogue_includes_the_machine_class() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = app(folder.path()).catalogue();
    assert!(catalogue.version >= 1 && catalogue.models.len() > 20);
    let shown = hunch(folder.path(), &["models", "catalogue", "--json"]);
    assert_eq!(shown, serde_json::to_value(&catalogue).unwrap());
}

/// Opening the database would block a window that is starting.
#[test]
fn fit_and_inspect_do_not_open_the_database() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("models");
    std::fs::create_dir(&folder).unwrap();
    models(&folder);
    // Opening an empty file as a database creates its tables.
    let conversations = data.path().join("conversations.db");
    std::fs::write(&conversations, "").unwrap();
    let size = || std::fs::metadata(&conversations).unwrap().len();
    hunch(data.path(), &["models", "fit", "target", "--draft", "draft", "--json", "--device", "cpu"]);
    hunch(data.path(), &["models", "inspect", "target", "--json"]);
    assert_eq!((size(), data.path().join("conversations.lock").exists()), (0, false));
    hunch(data.path(), &["models", "pairs", "target", "--json", "--device", "cpu"]);
    assert_eq!(
        (size(), data.path().join("conversations.lock").exists()),
        (0, false),
        "it is opened read-only"
    );
}

#[test]
fn command_line_and_application_agree_on_pairs_and_fit() {
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
