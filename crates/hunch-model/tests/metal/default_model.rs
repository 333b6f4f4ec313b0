//! The default model, with real weights, on the simulated GPU against the CPU executor.

use std::path::PathBuf;

use hunch_core::model::{LanguageModel, LogitRows, Rows, Step};
use hunch_core::sample::argmax;
use hunch_core::token::TokenId;
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::weights::WeightFile;

use crate::machine::Machine;

/// Returns the path of the default model, which `scripts/metal-test` names.
fn default_model() -> PathBuf {
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
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../../../tests/golden/smollm2-135m-instruct-q4_1.json"))
            .unwrap();
    // The shortest prompt: a pass of the simulated GPU takes seconds.
    let prompts = golden["cases"].as_array().unwrap().iter().map(|case| &case["prompt_ids"]);
    let prompt = prompts.min_by_key(|ids| ids.as_array().unwrap().len()).unwrap();
    let prompt: Vec<TokenId> = serde_json::from_value(prompt.clone()).unwrap();

    let file = WeightFile::open(&default_model()).unwrap();
    let machine = Machine::start();
    let mut gpu = Decoder::load_on_gpu(&file, &machine.gpu, 512).unwrap();
    let compute = Compute::open(DeviceChoice::Cpu, None).unwrap();
    let mut cpu = Decoder::load(&file, &compute).unwrap();
    let mut candle = Decoder::load_candle(&file, &compute).unwrap();
    let step = || Step::chain(&prompt, LogitRows::All);
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
    gpu.truncate(last).unwrap();
    let alone = gpu.forward(Step::chain(&prompt[last..], LogitRows::Last)).unwrap().logits;
    assert!(alone.row(0).iter().zip(ours.row(last)).all(|(a, b)| a.to_bits() == b.to_bits()));
}
