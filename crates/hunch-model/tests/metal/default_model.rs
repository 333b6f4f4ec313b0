//! The default model, with real weights, on the simulated GPU against the CPU executor and recordings of llama.cpp.

use std::path::PathBuf;

use hunch_core::model::{LanguageModel, LogitRows, PassInput, Rows};
use hunch_core::sample::argmax;
use hunch_core::token::TokenId;
use serde::Deserialize;

use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::weights::WeightFile;

use crate::machine::Machine;

/// Tokens after the prompt that are compared with llama.cpp. A row of the simulated GPU takes half a second.
const CONTINUED: usize = 7;
/// Bounds of the mean difference of log probabilities and of the KL divergence of a step: twice those of `hunch verify`,
/// because the steps are few.
const ORACLE_LIMITS: (f64, f64) = (0.28, 0.0092);

/// A recording of llama.cpp.
#[derive(Deserialize)]
struct Recorded {
    prompt_ids: Vec<TokenId>,
    greedy_ids: Vec<TokenId>,
    /// Eight tokens with their natural log probabilities, for each step.
    top8_logprobs: Vec<Vec<(TokenId, f64)>>,
}

impl Recorded {
    /// Returns the shortest prompt: a pass of the simulated GPU takes seconds.
    fn shortest() -> Self {
        let golden = include_str!("../../../../tests/golden/smollm2-135m-instruct-q4_1.json");
        let mut golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let cases: Vec<Self> = serde_json::from_value(golden["cases"].take()).unwrap();
        cases.into_iter().min_by_key(|case| case.prompt_ids.len()).unwrap()
    }

    /// Returns the mean difference of log probabilities, the partial KL divergence of a step, and the steps whose most
    /// likely token differs. `rows` are the logits of the first steps.
    fn distance(&self, rows: &[Vec<f32>]) -> (f64, f64, usize) {
        let (mut difference, mut listed, mut kl, mut other) = (0.0, 0, 0.0, 0);
        for (row, listing) in rows.iter().zip(&self.top8_logprobs) {
            let ours = log_probs(row);
            for (id, theirs) in listing {
                difference += (ours[*id as usize] - theirs).abs();
                kl += theirs.exp() * (theirs - ours[*id as usize]);
            }
            listed += listing.len();
            other += usize::from(argmax(row) != listing[0].0);
        }
        (difference / listed as f64, kl / rows.len() as f64, other)
    }
}

/// Returns the path of the default model, which `scripts/metal-test` names.
pub(crate) fn default_model() -> PathBuf {
    let path = std::env::var_os("HUNCH_DEFAULT_MODEL")
        .expect("HUNCH_DEFAULT_MODEL names no model. Run these tests with: make metal-test");
    path.into()
}

/// Returns log-probabilities.
fn log_probs(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |top, v| top.max(f64::from(*v)));
    let total: f64 = logits.iter().map(|v| (f64::from(*v) - top).exp()).sum();
    logits.iter().map(|v| f64::from(*v) - top - total.ln()).collect()
}

/// Returns how far a row is from the expected distribution, in nats.
fn divergence(expected: &Rows, logits: &Rows, row: usize) -> f64 {
    let (p, q) = (log_probs(expected.row(row)), log_probs(logits.row(row)));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

#[test]
fn distributions_of_the_default_model_match_the_cpu_executor() {
    let recorded = Recorded::shortest();
    let prompt = &recorded.prompt_ids;
    let file = WeightFile::open(&default_model()).unwrap();
    let machine = Machine::start();
    let mut gpu = Decoder::load_on_gpu(&file, &machine.gpu, 512).unwrap();
    let compute = Compute::open(DeviceChoice::Cpu, None).unwrap();
    let mut cpu = Decoder::load(&file, &compute).unwrap();
    let mut candle = Decoder::load_candle(&file, &compute).unwrap();
    let step = || PassInput::chain(prompt, LogitRows::All);
    let ours = gpu.forward(step()).unwrap().logits;
    let expected = cpu.forward(step()).unwrap().logits;
    let other = candle.forward(step()).unwrap().logits;
    let (mut of_gpu, mut of_candle) = (0.0, 0.0);
    for row in 0..prompt.len() {
        let (gpu, candle) = (divergence(&expected, &ours, row), divergence(&expected, &other, row));
        println!("row {row}: {gpu:.6} nats, candle {candle:.6}");
        of_gpu += gpu;
        of_candle += candle;
        let p = log_probs(expected.row(row));
        let best = argmax(expected.row(row)) as usize;
        let second =
            p.iter().enumerate().filter(|(i, _)| *i != best).fold(f64::MIN, |top, (_, p)| top.max(*p));
        if p[best] - second > 0.5 {
            assert_eq!(argmax(ours.row(row)) as usize, best, "row {row}");
        }
    }
    // The cache has halves on the GPU, which changes some 8-bit codes of activations. candle on the CPU quantises
    // activations in another way. Both are that far from our CPU kernels.
    assert!(of_gpu < 2.0 * of_candle, "{of_gpu} nats, candle {of_candle}");
    let last = prompt.len() - 1;
    // One pass over the recorded continuation, as a verified draft. Its first step is the last row of the prompt.
    for (name, model, first) in [("GPU", &mut gpu, &ours), ("CPU", &mut cpu, &expected)] {
        let step = PassInput::chain(&recorded.greedy_ids[..CONTINUED], LogitRows::All);
        let after = model.forward(step).unwrap().logits;
        let rows = (0..CONTINUED).map(|row| after.row(row).to_vec());
        let rows: Vec<Vec<f32>> = std::iter::once(first.row(last).to_vec()).chain(rows).collect();
        let (difference, kl, other) = recorded.distance(&rows);
        println!(
            "{name} from llama.cpp over {} steps: {difference:.4} mean difference, {kl:.5} nats, {other} other tokens",
            rows.len()
        );
        assert!(difference <= ORACLE_LIMITS.0 && kl.abs() <= ORACLE_LIMITS.1, "{name}: {difference}, {kl}");
        assert!(other <= 1, "{name}: {other}");
    }
    gpu.truncate(last).unwrap();
    let alone = gpu.forward(PassInput::chain(&prompt[last..], LogitRows::Last)).unwrap().logits;
    assert!(alone.row(0).iter().zip(ours.row(last)).all(|(a, b)| a.to_bits() == b.to_bits()));
}
