//! Comparisons on tiny models through the application: texts, figures, lanes, stopping, history, export, cost curve.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hunch::api::MeasurementMessage;
use hunch::app::App;
use hunch::bench::MethodConfig;
use hunch::bench::compare::report::{
    CompareEvent, CompareRequest, ComparedPrompts, ComparisonFormat, ComparisonReport,
};
use hunch::event::GenerationEvent;
use hunch::lab::report::CostEvent;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::ErrorCode;

use crate::support::app::{app_with_models, load_request};

/// Timeout for a loaded machine. Tests that pass do not wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn lane(method: Method) -> MethodConfig {
    MethodConfig { method, max_draft: MaxDraft::Fixed(4) }
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
    let wrong = [
        (request(&[], 8), "Choose 1 to 6 methods"),
        (request(&[Method::Ngram, Method::Ngram], 8), "there already"),
        (CompareRequest { runs: 0, ..good() }, "1 to 20"),
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
