//! A report for tests of the library and of the command line.

use super::*;

/// Returns a report of plain decoding, and of a draft model at another temperature.
pub(crate) fn report() -> BenchReport {
    let plain = MethodReport {
        method: Method::Plain,
        suite: "code".into(),
        temperature: 0.0,
        max_draft: MaxDraft::Fixed(0),
        tok_s: 81.5,
        speedup: 1.0,
        speedup_low: 1.0,
        speedup_high: 1.0,
        decode_speedup: 1.0,
        predicted_speedup: Some(1.0),
        measured_over_predicted: Some(1.0),
        loop_share: 0.004,
        acceptance_rate: 0.0,
        mean_acceptance_length: 1.0,
    };
    let draft = MethodReport {
        method: Method::DraftModel,
        temperature: 0.7,
        max_draft: MaxDraft::Fixed(4),
        tok_s: 120.25,
        speedup: 1.4321,
        speedup_low: 0.98,
        speedup_high: 1.75,
        decode_speedup: 1.5,
        predicted_speedup: None,
        measured_over_predicted: None,
        acceptance_rate: 0.625,
        mean_acceptance_length: 3.5,
        ..plain.clone()
    };
    BenchReport {
        target_cost: (1..=16).map(|m| (m, 1.0 + (m - 1) as f64 / 8.0)).collect(),
        draft_cost: Some(0.34),
        methods: vec![plain, draft],
        device: "cpu".into(),
        threads: 2,
        rule: AcceptanceRule::Lossless,
        target: "big".into(),
        draft: Some("small".into()),
        runs: 3,
        max_tokens: 128,
        identity: Some(IdentityReport { compared: 36, differences: Vec::new() }),
    }
}
