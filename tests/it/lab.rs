//! The lab on tiny models through the application: positions, rounds, rules, landscape, statistics of answers.

use std::sync::mpsc::channel;
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch::api::{AnswerRequest, AnswerSettings, AnsweredBy, Asking};
use hunch::app::App;
use hunch::event::GenerationEvent;
use hunch::lab::report::{
    LabDraft, LabMachine, LabPosition, LabRequest, LabRoundsRequest, LabServingRequest, LabSource,
    WhatIfRequest,
};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::theory;
use hunch_error::ErrorCode;
use hunch_library::types::LoadRequest;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;

use crate::support::app::{app, app_with_models, load_request};
use hunch_testing::tiny::Tiny;
use hunch_testing::tiny_heads::{self, HeadFormat};

/// Timeout for a loaded machine. Tests that pass do not wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Generates an answer. Returns the conversation, the message and its events.
fn answered(app: &App, method: Method) -> (i64, i64, Vec<GenerationEvent>) {
    answered_with(app, method, 7)
}

/// As [`answered`], with this seed.
fn answered_with(app: &App, method: Method, seed: u64) -> (i64, i64, Vec<GenerationEvent>) {
    let settings = AnswerSettings {
        method,
        max_draft: MaxDraft::Fixed(3),
        max_tokens: 60,
        sampling: SamplingParams { seed: Some(seed), ..SamplingParams::unfiltered() },
        ..AnswerSettings::default()
    };
    let asking = Asking::Question { parent: None, text: "abc abc abc".into(), attachments: Vec::new() };
    let (sender, receiver) = channel();
    let request = AnswerRequest { conversation: None, asking, settings, by: AnsweredBy::Loaded };
    let sink = Box::new(move |message| {
        let _ = sender.send(message);
    });
    let answering = app.answer(request, sink).unwrap();
    while receiver.recv_timeout(PATIENCE).is_ok() {}
    (answering.conversation, answering.answer, app.answer_events(answering.answer).unwrap())
}

fn at(source: LabSource) -> LabRequest {
    LabRequest { source, sampling: SamplingParams::unfiltered() }
}

fn sound(position: &LabPosition) {
    let listed =
        |figure: fn(&hunch::lab::report::LabToken) -> f64| position.tokens.iter().map(figure).sum::<f64>();
    assert!((listed(|t| t.p) + position.rest.p - 1.0).abs() < 1e-5);
    assert!((listed(|t| t.q) + position.rest.q - 1.0).abs() < 1e-5);
    assert!((listed(|t| t.overlap) + position.rest.overlap - position.acceptance).abs() < 1e-5);
    assert!((position.acceptance + position.rejection - 1.0).abs() < 1e-5);
    for token in &position.tokens {
        assert!((token.overlap + position.rejection * token.residual - token.p).abs() < 1e-5, "{token:?}");
    }
}

#[test]
fn position_has_the_distributions_of_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let (_, message, events) = answered(&app, Method::DraftModel);
    let tokens: Vec<_> = events.iter().flat_map(GenerationEvent::tokens).cloned().collect();
    let mut tested = 0;
    for (index, token) in tokens.iter().enumerate().take(30) {
        let position = app.lab_position(at(LabSource::Answer { message, token: index as u32 })).unwrap();
        sound(&position);
        assert_eq!(position.drawn, Some(token.id));
        if let Some(listed) = position.tokens.iter().find(|listed| listed.id == token.id) {
            // Passes are row-invariant, so the probabilities are equal.
            assert!((listed.p - f64::from(token.p)).abs() < 1e-6, "token {index}: {listed:?} {token:?}");
            if let Some(q) = token.q {
                tested += 1;
                assert!((listed.q - f64::from(q)).abs() < 1e-5, "token {index}: {listed:?} {token:?}");
            }
        }
    }
    assert!(tested > 3);
    let past = at(LabSource::Answer { message, token: 1000 });
    assert_eq!(app.lab_position(past).unwrap_err().code(), ErrorCode::InvalidRequest);
    let text = app.lab_position(at(LabSource::Text { text: "abc".into() })).unwrap();
    sound(&text);
    // The tokens belong to another vocabulary.
    app.load_models(load_request("draft", Some("draft"))).unwrap();
    let other = app.lab_position(at(LabSource::Answer { message, token: 0 })).unwrap_err();
    assert!(other.to_string().contains("This answer is by target"), "{other}");
    assert_eq!((text.before.as_str(), text.drawn), ("abc", None));
}

#[test]
fn head_has_positions_and_costs_without_a_draft_model() {
    for format in [HeadFormat::Eagle3, HeadFormat::Medusa] {
        let folder = tempfile::tempdir().unwrap();
        Tiny { dtype: GgmlDType::Q8_0, ..tiny_heads::target() }.write(folder.path(), "target");
        let head = format.write(folder.path());
        let app = app(folder.path());
        let request =
            LoadRequest { head: Some(head.to_str().unwrap().into()), ..load_request("target", None) };
        app.load_models(request).unwrap();
        // Most of the answers are short.
        let tested: usize = (0..12).map(|seed| q_of_first_drafts(&app, seed)).sum();
        assert!(tested > 3, "{tested}");
        let (sender, receiver) = channel();
        app.measure_costs(Box::new(move |message| {
            let _ = sender.send(message);
        }))
        .unwrap();
        while receiver.recv_timeout(PATIENCE).is_ok() {}
        let measured = LabMachine::Measured { drafter: None };
        let land = app.landscape(measured, 1, LabDraft::Chain).unwrap();
        assert_eq!((land.drafter, land.measured_rows), (Some(Method::Head), Some(16)));
        assert!(land.draft_cost > 0.0 && land.depths.len() <= 15);
        let other = LabMachine::Measured { drafter: Some(Method::DraftModel) };
        assert!(app.landscape(other, 1, LabDraft::Chain).is_err(), "no draft model was timed");
        let sessions = app.lab_sessions().unwrap();
        assert!(!sessions.is_empty());
        assert!(sessions.iter().all(|session| session.figures.drafter == Some(Method::Head)), "{sessions:?}");
    }
}

/// Compares q at the positions of first drafts with that of the answer, and returns the number of them.
fn q_of_first_drafts(app: &App, seed: u64) -> usize {
    let (_, message, events) = answered_with(app, Method::Head, seed);
    let tokens: Vec<_> = events.iter().flat_map(GenerationEvent::tokens).cloned().collect();
    let mut tested = 0;
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.position == 0) {
        let rejected = events.iter().filter_map(|event| match event {
            GenerationEvent::Round(round) if round.round == token.round => Some(&round.rejected),
            _ => None,
        });
        let first = rejected.flatten().find(|rejected| rejected.position == 0);
        let accepted = token.q.map(|q| (token.id, q));
        let Some((id, q)) = accepted.or(first.and_then(|first| Some((first.id, first.q?)))) else {
            continue;
        };
        let position = app.lab_position(at(LabSource::Answer { message, token: index as u32 })).unwrap();
        sound(&position);
        assert_eq!((position.drafter, &position.draft), (Some(Method::Head), &None));
        if let Some(listed) = position.tokens.iter().find(|listed| listed.id == id) {
            tested += 1;
            assert!((listed.q - f64::from(q)).abs() < 1e-4, "token {index}: {} {q}", listed.q);
        }
    }
    tested
}

#[test]
fn rounds_accumulate_until_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), false);
    let toy = app.lab_position(at(LabSource::Toy)).unwrap();
    sound(&toy);
    assert_eq!((toy.target.as_ref(), toy.draft.as_ref()), (None, None));
    let more = |rule, rounds, restart| {
        app.lab_rounds(LabRoundsRequest { position: toy.id, rule, rounds, restart }).unwrap()
    };
    let one = more(AcceptanceRule::Lossless, 1, false);
    assert!(one.rounds == 1 && one.last.is_some());
    let many = more(AcceptanceRule::Lossless, 5000, false);
    assert_eq!((many.rounds, many.counts.iter().sum::<u32>() + many.rest), (5001, 5001));
    assert!(many.last.is_none() && many.p_value > 1e-6);
    let share = f64::from(many.accepted) / f64::from(many.rounds);
    let error = (toy.acceptance * toy.rejection / 5001.0).sqrt();
    assert!((share - toy.acceptance).abs() < 5.0 * error, "{share} {}", toy.acceptance);
    let lossy = more(AcceptanceRule::LossyTypical { epsilon: 0.09, delta: 0.3 }, 5000, false);
    assert!(lossy.p_value < 1e-6 && lossy.total_variation > 3.0 * lossy.expected_variation);
    assert_eq!(more(AcceptanceRule::Lossless, 1, false).rounds, 5002, "each rule has its own");
    assert_eq!(more(AcceptanceRule::Lossless, 10, true).rounds, 10);
    let rows = app.lab_rules(toy.id, &[0.0, 0.5, 1.0]).unwrap();
    assert!((rows[2].lossless - toy.acceptance).abs() < 1e-5);
    assert!(rows.iter().all(|row| row.matching <= row.lossless + 1e-6));
    // Only the last few positions are kept.
    for _ in 0..4 {
        app.lab_position(at(LabSource::Toy)).unwrap();
    }
    assert_eq!(app.lab_rules(toy.id, &[1.0]).unwrap_err().code(), ErrorCode::InvalidRequest);
    let refused = app.lab_position(at(LabSource::Text { text: "abc".into() })).unwrap_err();
    assert!(refused.to_string().contains("Nothing drafts at this position"), "{refused}");
}

#[test]
fn landscape_uses_measured_costs() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    let unmeasured = app.landscape(LabMachine::Measured { drafter: None }, 1, LabDraft::Chain).unwrap_err();
    assert!(unmeasured.to_string().contains("not measured yet"), "{unmeasured}");
    let (sender, receiver) = channel();
    app.measure_costs(Box::new(move |message| {
        let _ = sender.send(message);
    }))
    .unwrap();
    while receiver.recv_timeout(PATIENCE).is_ok() {}
    let curve = app.cost_curve().unwrap().unwrap();
    let land = app.landscape(LabMachine::Measured { drafter: None }, 1, LabDraft::Chain).unwrap();
    assert_eq!((land.measured_rows, land.target_cost[0]), (Some(16), 1.0));
    assert!((land.target_cost[4] - curve.target.points[4].relative).abs() < 1e-9);
    let cost = curve.target_cost().unwrap();
    let (alpha, depth) = (25, 3);
    let expected = theory::speedup(land.alphas[alpha], land.depths[depth] as usize, land.draft_cost, &cost);
    assert!((land.speedup[alpha][depth] - expected).abs() < 1e-9);
    let assumed =
        app.landscape(LabMachine::MadeUp { draft_cost: 0.1, row_cost: 0.05 }, 1, LabDraft::Chain).unwrap();
    assert_eq!(assumed.measured_rows, None);
    assert!(
        app.landscape(LabMachine::MadeUp { draft_cost: f64::NAN, row_cost: 0.05 }, 1, LabDraft::Chain)
            .is_err()
    );
    assert!(app.landscape(LabMachine::Measured { drafter: None }, 0, LabDraft::Chain).is_err());
    let tree =
        app.landscape(LabMachine::Measured { drafter: None }, 1, LabDraft::Tree { siblings: 0.5 }).unwrap();
    assert!(tree.speedup[alpha][depth] >= land.speedup[alpha][depth] && tree.draft_cost == land.draft_cost);
    let weights = |name: &str| {
        let file = WeightFile::open(&folder.path().join(format!("{name}.gguf"))).unwrap();
        file.weights_per_pass(&ModelSpec::from_gguf(file.gguf()).unwrap()) as f64
    };
    assert_eq!(land.operations_ratio, Some(weights("draft") / weights("target")));
    let request = LabServingRequest {
        machine: LabMachine::Measured { drafter: None },
        draft: LabDraft::Chain,
        alpha: 0.7,
        max_batch: 8,
    };
    let served = app.lab_serving(request).unwrap();
    assert_eq!((served.measured_rows, served.loads.len()), (Some(16), 5));
    assert!(served.loads.iter().all(|load| load.served[0].speedup == 1.0));
    assert!(app.lab_serving(LabServingRequest { max_batch: 0, ..request }).is_err());
}

#[test]
fn statistics_cover_stored_answers() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_models(folder.path(), true);
    assert_eq!(app.acceptance_map(None).unwrap().tested, 0);
    assert!(app.lab_sessions().unwrap().is_empty());
    let (conversation, message, events) = answered(&app, Method::DraftModel);
    let (other, _, _) = answered(&app, Method::Plain);
    let Some(GenerationEvent::Finished { stats, .. }) = events.last() else { panic!("it finished") };
    let [session] = &app.lab_sessions().unwrap()[..] else { panic!("plain drafts nothing") };
    assert_eq!(
        (session.message, session.conversation, session.figures.tokens),
        (message, conversation, stats.generated_tokens)
    );
    assert_eq!(session.figures.mean_acceptance_length, stats.mean_acceptance_length);
    let map = app.acceptance_map(Some(conversation)).unwrap();
    assert_eq!(map, app.acceptance_map(None).unwrap());
    assert_eq!(app.acceptance_map(Some(other)).unwrap().tested, 0);
    let accepted: u32 = map.by_position.iter().map(|bin| bin.accepted).sum();
    assert_eq!(accepted, stats.accepted);
    let request = WhatIfRequest { message, max_draft: 3, temperature: None };
    let what = app.what_if(request).unwrap();
    assert_eq!(what.was.mean_acceptance_length, stats.mean_acceptance_length);
    assert!(what.would.mean_acceptance_length >= 1.0 && what.would.mean_acceptance_length <= 4.0);
    let deeper = app.what_if(WhatIfRequest { max_draft: 9, ..request }).unwrap();
    assert!(deeper.would.mean_acceptance_length >= what.would.mean_acceptance_length);
    app.delete_conversation(conversation).unwrap();
    assert!(app.lab_sessions().unwrap().is_empty());
}
