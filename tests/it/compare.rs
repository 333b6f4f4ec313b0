//! Comparisons on tiny models through the application: texts, figures, lanes, stopping, history, export, cost curve.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hunch::api::MeasurementMessage;
use hunch::app::App;
use hunch::bench::MethodConfig;
use hunch::bench::compare::report::{
    CompareEvent, CompareRequest, ComparedPrompts, ComparisonFormat, ComparisonMemory, ComparisonReport,
    LaneConfig, LaneModels,
};
use hunch::bench::compare::{self, CompareOn, ComparisonResult, LaneSet, Listener, TargetPlace};
use hunch::event::{GenerationEvent, StopReason};
use hunch::generate::{LoadPlan, LoadWatch, Models};
use hunch::lab::report::CostEvent;
use hunch_core::chat::Thinking;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::{ErrorCode, Result};
use hunch_model::device::Compute;

use crate::support::app::{app, app_with_models, load_request, write_pair};
use crate::support::cpu;
use hunch_testing::tiny::Tiny;

/// Timeout for a loaded machine. Tests that pass do not wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn lane(method: Method) -> LaneConfig {
    LaneConfig::of(MethodConfig { method, max_draft: MaxDraft::Fixed(4) })
}

pub(super) fn request(lanes: &[Method], max_tokens: u32) -> CompareRequest {
    CompareRequest {
        server: None,
        prompts: ComparedPrompts::Text { system: String::new(), text: "abc abc abc abc".into() },
        lanes: lanes.iter().copied().map(lane).collect(),
        sampling: SamplingParams { seed: Some(7), ..SamplingParams::greedy() },
        rule: AcceptanceRule::Lossless,
        max_tokens,
        runs: 2,
        stop: Vec::new(),
        options: MethodOptions::default(),
        thinking: None,
    }
}

fn collect<E>(receiver: &Receiver<MeasurementMessage<E>>) -> Vec<E> {
    let mut events = Vec::new();
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        assert_eq!(message.seq as usize, events.len(), "a message is missing or repeated");
        events.extend(message.events);
    }
    events
}

fn start(app: &App, request: CompareRequest) -> (u32, Receiver<MeasurementMessage<CompareEvent>>) {
    let (sender, receiver) = channel();
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    (app.compare(request, sink).unwrap(), receiver)
}

fn finished(events: &[CompareEvent]) -> (&ComparisonReport, i64) {
    match events.last() {
        Some(CompareEvent::Finished {
            report: Some(report),
            kept: Some(kept),
            stopped: false,
            trouble: None,
        }) => (report, *kept),
        other => panic!("the comparison did not finish: {other:?}"),
    }
}

#[test]
fn greedy_lanes_agree_and_figures_match_their_answers() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let (id, receiver) = start(&app, request(&[Method::DraftModel, Method::Ngram], 40));
    let events = collect(&receiver);
    let (report, kept) = finished(&events);
    assert_eq!(app.compare_snapshot(id, 0).unwrap().events, events);
    let newest = app.compare_snapshot(id, 2).unwrap();
    assert_eq!((newest.seq, &newest.events[..]), (2, &events[2..]));
    assert_eq!(app.compare_snapshot(id + 1, 0).unwrap_err().code(), ErrorCode::InvalidRequest);
    let identity = report.identity.as_ref().unwrap();
    assert_eq!((identity.compared, identity.differences.len()), (4, 0));
    assert_eq!((report.lanes.len(), report.answers.len()), (3, 6));
    let text = &report.answers[0].text;
    assert!(report.answers.iter().all(|answer| answer.text == *text && !text.is_empty()));
    for (index, lane) in report.lanes.iter().enumerate() {
        let answers: Vec<_> = report.answers.iter().filter(|a| a.lane as usize == index).collect();
        assert_eq!((answers.len(), lane.samples), (2, 2));
        for answer in answers {
            let stats = &answer.stats;
            assert_eq!(answer.timeline.last().unwrap().1, stats.generated_tokens);
            assert_eq!(answer.timeline.len(), stats.rounds as usize);
            assert!(answer.timeline.windows(2).all(|two| two[0].0 <= two[1].0));
            assert!(stats.ttft_ms > 0.0 && stats.ttft_ms <= answer.timeline[0].0 + 1.0);
            let parts = stats.propose_ms + stats.target_ms + stats.verify_ms + stats.other_ms;
            assert!(parts <= stats.wall_ms * 1.001, "{parts} of {}", stats.wall_ms);
        }
        assert!(lane.speedup_low <= lane.speedup && lane.speedup <= lane.speedup_high);
    }
    let [plain, draft, _] = &report.lanes[..] else { panic!("three lanes") };
    assert_eq!((plain.speedup, plain.mean_acceptance_length, plain.verdict), (1.0, 1.0, None));
    assert!(draft.mean_acceptance_length > 1.0 && draft.verdict.unwrap().tokens_per_pass > 1.0);
    assert!(draft.predicted_speedup.is_some() && !draft.positions.is_empty());
    assert!(report.memory.target_cache > 0 && report.memory.draft_cache.unwrap() > 0);
    assert!(report.memory.target_weights > report.memory.draft_weights.unwrap());
    assert_eq!(report.target_cost[&1], 1.0);
    assert_eq!(app.list_comparisons().unwrap()[0].id, kept);
}

#[test]
fn lanes_take_turns_and_events_have_the_lanes_time() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let events = collect(&start(&app, request(&[Method::DraftModel], 64)).1);
    let (report, _) = finished(&events);
    assert!(matches!(&events[0], CompareEvent::Started { setting } if *setting == report.setting));
    assert_eq!(report.setting.lanes[0].method, Method::Plain);
    let turns = events.iter().filter(|event| matches!(event, CompareEvent::Turn { .. })).count();
    assert_eq!(turns, 2);
    let after = events.iter().rposition(|event| matches!(event, CompareEvent::Turn { .. })).unwrap();
    let mut recorded = [Vec::new(), Vec::new()];
    let mut switches = 0;
    let mut turn = None;
    for event in &events[after..] {
        match event {
            CompareEvent::Slice { lane } => switches += usize::from(turn.replace(*lane) != Some(*lane)),
            CompareEvent::Lane { lane, event } => {
                let begins = matches!(event.event, GenerationEvent::Started { .. });
                assert!(begins || turn == Some(*lane), "only the lane whose turn it is has events");
                recorded[*lane as usize].push(event.clone());
            }
            _ => {}
        }
    }
    assert!(switches >= 5, "64 tokens take several slices: {switches}");
    for (lane, events) in recorded.iter().enumerate() {
        assert!(events.windows(2).all(|two| two[0].at_ms <= two[1].at_ms));
        assert!(matches!(events[0].event, GenerationEvent::Started { .. }));
        assert!(matches!(events.last().unwrap().event, GenerationEvent::Finished { .. }));
        assert_eq!(report.recordings[lane], *events);
    }
}

#[test]
fn coupled_rule_gives_equal_texts_above_temperature_0() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let sampling = SamplingParams { seed: Some(3), ..SamplingParams::unfiltered() };
    let lanes = [Method::DraftModel, Method::DraftTree, Method::Suffix];
    let coupled =
        CompareRequest { sampling: sampling.clone(), rule: AcceptanceRule::Coupled, ..request(&lanes, 32) };
    let events = collect(&start(&app, coupled).1);
    let identity = finished(&events).0.identity.clone().unwrap();
    assert_eq!((identity.compared, identity.differences.len()), (6, 0));
    let sampled = CompareRequest { sampling, ..request(&[Method::DraftModel], 32) };
    assert_eq!(finished(&collect(&start(&app, sampled).1)).0.identity, None);
}

#[test]
fn reasoning_is_chosen_for_all_lanes() {
    const SWITCH: &str = "{% for message in messages %}{{ message.content }}{% endfor %}\
        {% if enable_thinking is defined and not enable_thinking %}no{% else %}<think>{% endif %}";
    let folder = tempfile::tempdir().unwrap();
    Tiny { template: Some(SWITCH), ..Tiny::default() }.write(folder.path(), "target");
    let app = app(folder.path());
    app.load_models(load_request("target", None)).unwrap();
    let prompt_tokens = |thinking| {
        let asked = CompareRequest { thinking, ..request(&[Method::Ngram], 4) };
        let events = collect(&start(&app, asked).1);
        let report = finished(&events).0;
        assert_eq!(report.setting.thinking, thinking);
        report.answers.iter().map(|answer| answer.stats.prompt_tokens).collect::<Vec<_>>()
    };
    // A byte is a token.
    let (usual, without) = (prompt_tokens(None), prompt_tokens(Some(Thinking::Off)));
    assert!(usual.iter().zip(&without).all(|(usual, without)| usual - without == 5), "{usual:?} {without:?}");
}

#[test]
fn suite_comparison_is_saved_exported_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let prompts = ComparedPrompts::Suite { name: "code".into(), prompts: Some(2) };
    let batch = CompareRequest { prompts, runs: 1, ..request(&[Method::Ngram], 12) };
    let events = collect(&start(&app, batch).1);
    let (report, kept) = finished(&events);
    assert_eq!((report.setting.prompts.len(), report.answers.len(), report.lanes[1].samples), (2, 4, 2));
    assert!(
        events.iter().any(|e| matches!(e, CompareEvent::Turn { done: 1, total: 2, left_ms: Some(_), .. }))
    );
    let entry = &app.list_comparisons().unwrap()[0];
    assert_eq!(
        (entry.title.as_str(), entry.best.method, entry.speedup),
        ("code, 2", Method::Ngram, report.lanes[1].speedup)
    );
    assert_eq!(app.open_comparison(kept).unwrap(), *report);
    let file = folder.path().join("file");
    let written = |format| {
        app.export_comparison(kept, format, &file).unwrap();
        std::fs::read_to_string(&file).unwrap()
    };
    assert_eq!(serde_json::from_str::<ComparisonReport>(&written(ComparisonFormat::Json)).unwrap(), *report);
    let csv = written(ComparisonFormat::Csv);
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!((columns.len(), columns.iter().all(|&count| count == columns[0])), (5, true), "{csv}");
    let picture = written(ComparisonFormat::Picture);
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert!(picture.contains(&format!("{:.2}x", report.lanes[1].speedup)) && picture.contains("2 prompts"));
    app.delete_comparison(kept).unwrap();
    assert!(app.list_comparisons().unwrap().is_empty());
    assert_eq!(app.open_comparison(kept).unwrap_err().code(), ErrorCode::InvalidRequest);
}

/// Gives a lane its own models.
fn with_models(lane: LaneConfig, target: &str, draft: Option<&str>) -> LaneConfig {
    let models = LaneModels { target: target.into(), draft: draft.map(Into::into), head: None };
    LaneConfig { models: Some(models), ..lane }
}

#[test]
fn lanes_have_their_own_draft_rule_and_temperature() {
    let folder = tempfile::tempdir().unwrap();
    Tiny { layers: 1, seed: 77, ..Tiny::default() }.write(folder.path(), "other-draft");
    let app = app_with_models(folder.path(), true);
    let own_draft = with_models(lane(Method::DraftModel), "target", Some("other-draft"));
    let sampled = LaneConfig {
        temperature: Some(0.8),
        rule: Some(AcceptanceRule::Coupled),
        ..lane(Method::DraftModel)
    };
    let asked = CompareRequest {
        lanes: vec![lane(Method::DraftModel), own_draft, sampled.clone()],
        ..request(&[], 24)
    };
    let events = collect(&start(&app, asked).1);
    let (report, kept) = finished(&events);
    let [plain, usual, own, warm, warm_plain] = &report.lanes[..] else { panic!("five lanes") };
    assert!([usual, own, warm].iter().all(|lane| lane.verdict.is_some()));
    // Plain decoding was measured at both temperatures.
    assert_eq!([usual, own, warm].map(|lane| lane.baseline), [0, 0, 4]);
    assert_eq!((plain.verdict, warm_plain.verdict), (None, None));
    assert_eq!(warm_plain.config, LaneConfig { temperature: Some(0.8), ..LaneConfig::PLAIN });
    let stats = |lane: u32| &report.answers.iter().find(|answer| answer.lane == lane).unwrap().stats;
    let first = report.answers.iter().find(|answer| answer.lane == 3).unwrap();
    assert_eq!(first.speedup, Some(stats(4).wall_ms / stats(3).wall_ms));
    // Both drafts write the target's text.
    assert_eq!(
        (usual.text_compared, own.text_compared, warm.text_compared),
        (Some(true), Some(true), Some(false))
    );
    let identity = report.identity.as_ref().unwrap();
    assert_eq!((identity.compared, identity.differences.len()), (4, 0));
    // Weights of both drafts are in memory, and count once each: the lanes at both temperatures share the usual one.
    let one = collect_memory(&app);
    let draft_weights = |memory: &ComparisonMemory| memory.draft_weights.unwrap();
    assert!(draft_weights(&report.memory) > draft_weights(&one));
    assert!(draft_weights(&report.memory) < 3 * draft_weights(&one));
    assert_eq!(report.memory.target_weights, one.target_weights);
    let models = own.config.models.as_ref().unwrap();
    assert_eq!(models.target, report.setting.target);
    assert!(models.draft.is_some() && !report.setting.separate);
    assert_eq!(warm.config, sampled);
    // The history keeps the settings.
    assert_eq!(app.open_comparison(kept).unwrap(), *report);
    let GenerationEvent::Started { rule, .. } = report.recordings[3][0].event.clone() else {
        panic!("an answer begins with its settings")
    };
    assert_eq!(rule, AcceptanceRule::Coupled);
    // A setting that is the comparison's is no setting of the lane.
    let same =
        LaneConfig { temperature: Some(0.0), rule: Some(AcceptanceRule::Lossless), ..lane(Method::Ngram) };
    let asked = CompareRequest { lanes: vec![same], ..request(&[], 8) };
    let events = collect(&start(&app, asked).1);
    assert_eq!(finished(&events).0.setting.lanes, [LaneConfig::PLAIN, lane(Method::Ngram)]);
}

#[test]
fn lane_with_own_target_is_measured_over_its_own_plain_decoding() {
    let folder = tempfile::tempdir().unwrap();
    Tiny { layers: 3, seed: 5, ..Tiny::default() }.write(folder.path(), "larger");
    let app = app_with_models(folder.path(), true);
    let lanes =
        vec![lane(Method::DraftModel), with_models(lane(Method::DraftModel), "larger", Some("draft"))];
    let events = collect(&start(&app, CompareRequest { lanes, ..request(&[], 24) }).1);
    let (report, _) = finished(&events);
    let methods: Vec<Method> = report.lanes.iter().map(|lane| lane.config.method).collect();
    assert_eq!(methods, [Method::Plain, Method::DraftModel, Method::DraftModel, Method::Plain]);
    assert_eq!(report.lanes.iter().map(|lane| lane.baseline).collect::<Vec<_>>(), [0, 0, 3, 3]);
    let text = |lane: u32| &report.answers.iter().find(|answer| answer.lane == lane).unwrap().text;
    assert_eq!((text(0), text(3)), (text(1), text(2)));
    assert_ne!(text(0), text(3), "another target writes another text");
    assert_eq!(report.identity.as_ref().unwrap().differences, []);
    let weights = report.memory.target_weights;
    assert!(weights > collect_memory(&app).target_weights, "both targets are counted");
    // The loaded models are still there.
    assert!(app.info().loaded.is_some());
    finished(&collect(&start(&app, request(&[Method::DraftModel], 8)).1));
}

/// A loaded pair, and a larger target that has to run in its place.
struct Separate {
    folder: tempfile::TempDir,
    compute: Compute,
    models: Option<Models>,
    events: Vec<CompareEvent>,
    /// Steps of loading the pair again.
    restored: Arc<AtomicUsize>,
}

impl Separate {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_pair(folder.path());
        Tiny { layers: 3, seed: 5, ..Tiny::default() }.write(folder.path(), "larger");
        let compute = cpu();
        let mut separate =
            Self { folder, compute, models: None, events: Vec::new(), restored: Arc::default() };
        let [target, draft] = ["target", "draft"].map(|name| separate.path(name));
        separate.models = Some(Models::load(&target, Some(&draft), &separate.compute).unwrap());
        separate
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.gguf"))
    }

    /// Compares two lanes of two runs. `on_event` gets every event, and a flag that stops the comparison.
    fn run(&mut self, on_event: impl Fn(&CompareEvent, &AtomicBool) + Sync) -> Result<ComparisonResult> {
        let asked = LaneModels { target: "larger".into(), draft: Some("draft".into()), head: None };
        let set = LaneSet {
            requested: asked,
            titles: LaneModels { target: "Larger".into(), draft: Some("Draft".into()), head: None },
            plan: LoadPlan { draft: Some(self.path("draft")), ..LoadPlan::of(&self.path("larger")) },
            place: TargetPlace::Separate,
            options: MethodOptions::default(),
        };
        let lanes = vec![lane(Method::Ngram), with_models(lane(Method::DraftModel), "larger", Some("draft"))];
        let asked = CompareRequest { lanes, ..request(&[], 16) };
        let stop = AtomicBool::new(false);
        let restored = self.restored.clone();
        let watch: LoadWatch = Arc::new(move |_| {
            restored.fetch_add(1, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        let mut events = Vec::new();
        let mut on_event = |event| {
            on_event(&event, &stop);
            events.push(event);
        };
        let stopped = || stop.load(Ordering::Relaxed);
        let mut listener = Listener { on_event: &mut on_event, stopped: &stopped };
        let on = CompareOn {
            models: &mut self.models,
            sets: &[set],
            options: &MethodOptions::default(),
            compute: &self.compute,
            restoring: Some(watch),
        };
        let outcome = compare::run(on, &asked, &mut listener);
        self.events = events;
        outcome
    }
}

/// The loaded models have done their last turn.
fn is_last_turn_of_first_batch(event: &CompareEvent) -> bool {
    matches!(event, CompareEvent::Turn { done: 1, .. })
}

#[test]
fn targets_that_do_not_fit_together_run_one_after_the_other() {
    let mut separate = Separate::new();
    let report = separate.run(|_, _| ()).unwrap().report.unwrap();
    let events = &separate.events;
    assert!(report.setting.separate && report.left_out.is_none());
    // Loading the pair again has progress, and it is there at the end.
    assert!(separate.restored.load(Ordering::Relaxed) > 0);
    assert_eq!(separate.models.as_ref().map(Models::target_name), Some(report.setting.target.clone()));
    assert_eq!(report.lanes.iter().map(|lane| lane.baseline).collect::<Vec<_>>(), [0, 0, 3, 3]);
    let turns: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            CompareEvent::Turn { done, total, lanes, .. } => Some((*done, *total, lanes.clone())),
            _ => None,
        })
        .collect();
    let own = || vec![2, 3];
    assert_eq!(turns, [(0, 4, vec![0, 1]), (1, 4, vec![0, 1]), (2, 4, own()), (3, 4, own())]);
    assert_eq!((report.answers.len(), report.recordings.len()), (8, 4));
    // A damaged file is found before anything is unloaded.
    let steps = separate.restored.load(Ordering::Relaxed);
    std::fs::write(separate.path("larger"), b"GGUF").unwrap();
    assert!(separate.run(|_, _| ()).is_err());
    assert!(separate.models.is_some() && separate.restored.load(Ordering::Relaxed) == steps);
}

#[test]
fn results_outlast_a_target_that_cannot_be_loaded_after_them() {
    let mut separate = Separate::new();
    let larger = separate.path("larger");
    let damage = |event: &CompareEvent, _: &AtomicBool| {
        if is_last_turn_of_first_batch(event) {
            std::fs::write(&larger, b"GGUF").unwrap();
        }
    };
    let outcome = separate.run(damage).unwrap();
    let report = outcome.report.unwrap();
    assert!(!outcome.stopped && outcome.trouble.is_some());
    let methods: Vec<Method> = report.lanes.iter().map(|lane| lane.config.method).collect();
    assert_eq!((methods, report.answers.len()), (vec![Method::Plain, Method::Ngram], 4));
    let left_out = report.left_out.unwrap();
    assert_eq!(left_out.error.unwrap().message, outcome.trouble.unwrap().to_string());
    let names: Vec<_> = left_out.lanes.iter().map(|lane| (lane.method, lane.models.is_some())).collect();
    assert_eq!(names, [(Method::DraftModel, true), (Method::Plain, true)]);
    assert!(separate.models.is_some(), "the pair is loaded again");
}

#[test]
fn results_outlast_a_stop_in_a_later_batch() {
    let mut separate = Separate::new();
    let outcome = separate
        .run(|event, stop| {
            if matches!(event, CompareEvent::Turn { done: 2, .. }) {
                stop.store(true, Ordering::Relaxed);
            }
        })
        .unwrap();
    let report = outcome.report.unwrap();
    assert!(outcome.stopped && outcome.trouble.is_none());
    assert_eq!((report.lanes.len(), report.answers.len()), (2, 4));
    assert!(report.recordings.iter().all(|events| !events.is_empty()));
    let left_out = report.left_out.unwrap();
    assert_eq!((left_out.lanes.len(), left_out.error), (2, None));
    assert!(separate.models.is_some(), "a stop does not keep the pair from being loaded again");
}

#[test]
fn models_that_cannot_be_loaded_again_are_reported_next_to_the_result() {
    let mut separate = Separate::new();
    let target = separate.path("target");
    let outcome = separate
        .run(|event, _| {
            if is_last_turn_of_first_batch(event) {
                std::fs::remove_file(&target).unwrap();
            }
        })
        .unwrap();
    assert!(outcome.trouble.is_none() && !outcome.stopped, "the comparison itself is complete");
    assert_eq!(outcome.report.unwrap().lanes.len(), 4);
    let Some(CompareEvent::NotRestored { error }) = separate.events.last() else {
        panic!("{:?}", separate.events.last())
    };
    assert!(error.message.contains("target.gguf"), "{}", error.message);
    assert!(separate.models.is_none());
}

fn collect_memory(app: &App) -> ComparisonMemory {
    let events = collect(&start(app, request(&[Method::DraftModel], 8)).1);
    finished(&events).0.memory
}

#[test]
fn models_of_lanes_that_are_missing_or_unsuitable_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let gone =
        CompareRequest { lanes: vec![with_models(lane(Method::Ngram), "gone", None)], ..request(&[], 8) };
    assert_eq!(app.compare(gone, Box::new(|_| {})).unwrap_err().code(), ErrorCode::ModelNotFound);
    // The target as the draft of the smaller model.
    let swapped = with_models(lane(Method::DraftModel), "draft", Some("target"));
    let events = collect(&start(&app, CompareRequest { lanes: vec![swapped], ..request(&[], 8) }).1);
    let Some(CompareEvent::Failed { error }) = events.last() else { panic!("{:?}", events.last()) };
    assert!(error.message.contains("larger than the target"), "{}", error.message);
    let without = with_models(lane(Method::DraftModel), "draft", None);
    let events = collect(&start(&app, CompareRequest { lanes: vec![without], ..request(&[], 8) }).1);
    let Some(CompareEvent::Failed { error }) = events.last() else { panic!("{:?}", events.last()) };
    assert!(error.message.contains("needs a draft model"), "{}", error.message);
    assert!(app.info().loaded.is_some());
}

#[test]
fn stop_strings_hold_in_every_lane_and_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let whole = collect(&start(&app, request(&[Method::DraftModel], 40)).1);
    let text: Vec<char> = finished(&whole).0.answers[0].text.chars().collect();
    let stop: String = text[text.len() / 2..text.len() / 2 + 2].iter().collect();
    let options = MethodOptions {
        draft_window: Some("256".parse().unwrap()),
        exit_layer: Some(1),
        ..Default::default()
    };
    let asked = CompareRequest {
        stop: vec![stop.clone()],
        options: options.clone(),
        ..request(&[Method::DraftModel, Method::EarlyExit], 40)
    };
    let events = collect(&start(&app, asked).1);
    let (report, kept) = finished(&events);
    assert!(report.answers.iter().all(|answer| answer.stop == StopReason::StopString), "{stop:?}");
    assert!(report.answers.iter().all(|answer| !answer.text.contains(&stop)));
    assert_eq!((&report.setting.stop, &report.setting.options), (&vec![stop], &options));
    assert_eq!(app.open_comparison(kept).unwrap().setting, report.setting);
}

#[test]
fn biases_of_tokens_are_refused_next_to_another_target() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let biased = SamplingParams { logit_bias: [(3, 1.0)].into(), ..request(&[], 8).sampling };
    let lanes = vec![with_models(lane(Method::Ngram), "draft", None)];
    let asked = CompareRequest { lanes, sampling: biased.clone(), ..request(&[], 8) };
    let events = collect(&start(&app, asked).1);
    let Some(CompareEvent::Failed { error }) = events.last() else { panic!("{:?}", events.last()) };
    assert!(error.message.contains("logit_bias"), "{}", error.message);
    let asked = CompareRequest { sampling: biased, ..request(&[Method::Ngram], 8) };
    finished(&collect(&start(&app, asked).1));
}

#[test]
fn file_of_prompts_is_a_suite() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let path = folder.path().join("Mine.txt");
    std::fs::write(&path, "abc abc\n\nbcd bcd\ncde\n").unwrap();
    let read = app.read_suite(&path).unwrap();
    assert_eq!((read.name.as_str(), read.prompts), ("Mine", 3));
    let prompts = ComparedPrompts::File { path: path.clone(), prompts: Some(2) };
    let asked = CompareRequest { prompts, runs: 1, ..request(&[Method::Ngram], 8) };
    let events = collect(&start(&app, asked).1);
    let (report, _) = finished(&events);
    let ids: Vec<&str> = report.setting.prompts.iter().map(|prompt| prompt.id.as_str()).collect();
    assert_eq!(ids, ["line 1", "line 3"]);
    assert_eq!(app.list_comparisons().unwrap()[0].title, "Mine, 2");
    // A prompt beyond the context is reported before the first turn, whichever it is.
    std::fs::write(&path, format!("abc abc\n{}\n", "abc ".repeat(2000))).unwrap();
    let prompts = ComparedPrompts::File { path: path.clone(), prompts: None };
    let events = collect(&start(&app, CompareRequest { prompts, ..request(&[Method::Ngram], 8) }).1);
    let Some(CompareEvent::Failed { error }) = events.last() else { panic!("{:?}", events.last()) };
    assert!(error.message.starts_with("Prompt line 2 of the suite has "), "{}", error.message);
    assert!(!events.iter().any(|event| matches!(event, CompareEvent::Turn { .. })));
    std::fs::write(&path, "\n").unwrap();
    assert!(app.read_suite(&path).unwrap_err().to_string().contains("no prompts"));
    assert!(app.read_suite(folder.path()).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn stopping_keeps_whole_turns_and_frees_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let (id, receiver) = start(&app, CompareRequest { runs: 20, ..request(&[Method::DraftModel], 200) });
    // The engine is busy for models and other measurements.
    let refused = app.compare(request(&[Method::Ngram], 8), Box::new(|_| {}));
    assert_eq!(refused.unwrap_err().code(), ErrorCode::Busy);
    assert!(app.hold_for_update().is_err(), "no update is installed during a comparison");
    let load = load_request("target", None);
    assert_eq!(app.load_models(load.clone()).unwrap_err().code(), ErrorCode::Busy);
    let mut events = Vec::new();
    loop {
        let message = receiver.recv_timeout(PATIENCE).unwrap();
        events.extend(message.events);
        if events.iter().any(|event| matches!(event, CompareEvent::Turn { done: 1, .. })) {
            break;
        }
    }
    app.stop_measurement(id);
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        events.extend(message.events);
    }
    let Some(CompareEvent::Finished { report: Some(report), stopped: true, .. }) = events.last() else {
        panic!("it was not stopped: {:?}", events.last());
    };
    assert!(!report.answers.is_empty() && report.answers.len() < 40);
    assert_eq!(report.answers.len() % 2, 0, "whole turns only");
    app.load_models(load).unwrap();
}

#[test]
fn rejects_invalid_requests_without_saving_anything() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let good = || request(&[Method::Ngram], 8);
    let empty = ComparedPrompts::Text { system: String::new(), text: " \n".into() };
    let unknown = ComparedPrompts::Suite { name: "../secrets".into(), prompts: None };
    let none = ComparedPrompts::Suite { name: "code".into(), prompts: Some(0) };
    let file = folder.path().join("many.txt");
    std::fs::write(&file, "A prompt.\n".repeat(101)).unwrap();
    let many = ComparedPrompts::File { path: file, prompts: None };
    let wrong = [
        (CompareRequest { runs: 20, prompts: many, ..good() }, "4040 answers"),
        (request(&[], 8), "Choose 1 to 7 methods"),
        (request(&[Method::Ngram, Method::Ngram], 8), "there already"),
        (CompareRequest { runs: 0, ..good() }, "1 to 20"),
        (CompareRequest { prompts: none, ..good() }, "prompts is 0"),
        (CompareRequest { max_tokens: 0, ..good() }, "max_tokens"),
        (CompareRequest { prompts: empty, ..good() }, "prompt is empty"),
        (CompareRequest { prompts: unknown, ..good() }, "no suite"),
        (request(&[Method::Synthetic], 8), "for benchmarks"),
    ];
    for (request, words) in wrong {
        let events = collect(&start(&app, request).1);
        let Some(CompareEvent::Failed { error }) = events.last() else {
            panic!("{words}: {:?}", events.last())
        };
        assert!(error.message.contains(words), "{}", error.message);
    }
    assert!(app.list_comparisons().unwrap().is_empty());
    finished(&collect(&start(&app, good()).1));
}

#[test]
fn cost_curve_is_saved_for_its_models() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    assert_eq!(app.cost_curve().unwrap(), None);
    let (sender, receiver) = channel();
    let id = app
        .measure_costs(Box::new(move |message| {
            let _ = sender.send(message);
        }))
        .unwrap();
    let events = collect(&receiver);
    assert_eq!(app.costs_snapshot(id, 0).unwrap().events, events);
    let Some(CostEvent::Finished { curve: Some(curve) }) = events.last() else {
        panic!("{:?}", events.last())
    };
    let rows: Vec<u32> = curve.target.points.iter().map(|point| point.rows).collect();
    assert_eq!(rows, (1..=16).collect::<Vec<_>>());
    assert_eq!(curve.draft.as_ref().unwrap().points.len(), 16);
    assert_eq!(curve.target.points[0].relative, 1.0);
    assert!(curve.memory_gb_s > 0.0 && curve.target.floor_ms > 0.0);
    assert_eq!(app.cost_curve().unwrap().as_ref(), Some(&**curve));
    app.load_models(load_request("target", None)).unwrap();
    assert_eq!(app.cost_curve().unwrap(), None, "other models have another curve");
}
