//! Draws of tokens on the simulated GPU against those of the host's sampler, and drafts that are drawn there.

use std::sync::Arc;

use hunch_core::sample::{DrawSettings, Sampler, SamplingParams, draw};
use hunch_core::token::TokenId;
use hunch_model::metal::choice::DrawInput;
use hunch_model::metal::choice::MAX_TOP_K;
use hunch_model::metal::gpu::{Buffer, Gpu};
use hunch_model::metal::kernels::Kernels;

use crate::machine::Machine;
use crate::reference::noise;
use hunch_testing::simulator::Schedule;

/// Error of a cumulative probability on the GPU.
const BOUND: f64 = 2e-6;

fn params(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> SamplingParams {
    SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::unfiltered() }
}

fn settings(params: &SamplingParams) -> DrawSettings {
    Sampler::new(params.clone()).unwrap().draw_settings().unwrap()
}

struct Gpus {
    machine: Machine,
    gpu: Arc<dyn Gpu>,
    kernels: Kernels,
}

impl Gpus {
    fn start() -> Self {
        let machine = Machine::start();
        let gpu = machine.gpu.clone();
        Self { machine, kernels: Kernels::new(gpu.clone()), gpu }
    }

    fn draw(&self, logits: &Buffer, count: usize, settings: DrawSettings, unit: f64) -> TokenId {
        let out = Buffer::new(&self.gpu, 32).unwrap();
        let input = DrawInput { logits: logits.at_value(0), count, settings, unit };
        self.kernels.draw(input, out.at_byte(4)).unwrap();
        u32::from_le_bytes(out.read(4, 4).unwrap().try_into().unwrap())
    }
}

/// Checks that a drawn token is the host's, or next to it and close to the boundary between them.
fn assert_drawn(distribution: &[f32], unit: f64, token: TokenId, what: &str) {
    if draw(distribution, unit) == token {
        return;
    }
    let all: f64 = distribution.iter().map(|p| f64::from(*p)).sum();
    let before: f64 = distribution[..token as usize].iter().map(|p| f64::from(*p)).sum::<f64>() / all;
    let after = before + f64::from(distribution[token as usize]) / all;
    let off = (before - unit).max(unit - after);
    assert!(off < BOUND && distribution[token as usize] > 0.0, "{what}: {token} is {off} off at {unit}");
}

#[test]
fn draws_match_the_sampler_for_all_filters() {
    let gpus = Gpus::start();
    let all = [
        params(0.7, 40, 0.95, 0.05),
        params(1.0, 0, 1.0, 0.0),
        params(1.7, 0, 1.0, 0.0),
        params(1.0, 1, 1.0, 0.0),
        params(0.3, MAX_TOP_K as u32, 1.0, 0.0),
        params(1.0, 5, 0.5, 0.0),
        params(0.8, 0, 1.0, 0.02),
        params(0.8, 0, 0.9, 0.02),
        params(1e-30, 40, 0.95, 0.05),
    ];
    let mut different = 0;
    for (case, (count, spread)) in [(300, 16.0), (2000, 30.0), (5000, 60.0)].into_iter().enumerate() {
        let mut logits: Vec<f32> = noise(count, 20 + case as u64).iter().map(|v| v * spread).collect();
        // Ties, NaN and impossible tokens.
        logits[3] = logits[7];
        (logits[11], logits[12]) = (f32::NAN, f32::NEG_INFINITY);
        let buffer = Buffer::with_floats(&gpus.gpu, &logits).unwrap();
        for params in &all {
            assert!(gpus.kernels.can_draw(&settings(params)), "{params:?}");
            // The draft may know more tokens than the target.
            let n_vocab = if case == 0 { count } else { count - 100 };
            let sampler = Sampler::new(params.clone()).unwrap();
            let distribution = sampler.distribution(&logits[..n_vocab], &[]).unwrap();
            for (i, unit) in noise(40, 30).iter().map(|v| f64::from(*v + 1.0) / 2.0).enumerate() {
                gpus.machine.set_schedule(Schedule::ALL[i % 3]);
                let token = gpus.draw(&buffer, n_vocab, settings(params), unit);
                assert_drawn(&distribution, unit, token, &format!("{params:?} of {count}"));
                different += usize::from(token != draw(&distribution, unit));
            }
            for unit in [0.0, 1.0 - 1e-12] {
                let token = gpus.draw(&buffer, n_vocab, settings(params), unit);
                assert!(distribution[token as usize] > 0.0, "{params:?}: {token} at {unit}");
            }
        }
    }
    // A wrong guess costs a pass, so few may be.
    assert!(different <= 2, "{different} draws differ from the host's");
}

/// Top-p or min-p may leave more tokens than fit in threadgroup memory.
#[test]
fn draw_from_too_many_tokens_returns_the_most_likely_token() {
    let gpus = Gpus::start();
    let mut logits = vec![0.0f32; 4000];
    logits[1234] = 0.5;
    let buffer = Buffer::with_floats(&gpus.gpu, &logits).unwrap();
    for params in [params(1.0, 0, 1.0, 0.1), params(1.0, 0, 0.9, 0.1)] {
        assert_eq!(gpus.draw(&buffer, 4000, settings(&params), 0.999), 1234);
    }
}

#[test]
fn only_draws_that_are_bounded_are_possible() {
    let kernels = Gpus::start().kernels;
    let too_many = params(1.0, MAX_TOP_K as u32 + 1, 1.0, 0.0);
    assert!(!kernels.can_draw(&settings(&too_many)));
    assert!(!kernels.can_draw(&settings(&params(1.0, 0, 0.9, 0.0))), "top-p alone");
    assert_eq!(Sampler::new(SamplingParams::greedy()).unwrap().draw_settings(), None);
}
