//! The device of a draft model next to a target on a GPU. On a GPU, a small model takes as long for its dispatches as
//! for its weights, so the CPU may be faster.

use hunch_core::model::{ChainInput, LanguageModel, LogitRows, PassInput};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, DraftDevice};
use hunch_model::execution::Backend;
use hunch_model::pass_timer::{PassTimer, TimingObserver, seconds_of};

/// Most bytes of weights of a draft model that is timed on both devices.
const SMALL: usize = 1 << 30;
/// Tokens that are drafted at a time.
const TOKENS: usize = 4;
/// Measurements of each device, after one that warms up.
const ROUNDS: usize = 3;
/// Tokens before the timed ones.
const CONTEXT: [TokenId; 8] = [0; 8];

/// A draft model on the device that was chosen.
pub(super) struct Placed {
    pub(super) model: Decoder,
    /// Time of a drafted token in milliseconds, if it was measured.
    pub(super) token_ms: Option<f64>,
    /// A sentence on the choice, if there was one.
    pub(super) note: Option<String>,
}

/// Returns how often [`place`] reads a model of `bytes` bytes of weights.
pub(super) fn reads(device: DraftDevice, bytes: usize, compute: &Compute) -> usize {
    if compute.is_gpu() && device == DraftDevice::Auto && bytes <= SMALL { 2 } else { 1 }
}

/// Reads a draft model of `bytes` bytes of weights, and chooses its device. Only with `chains` may a device choose the
/// tokens of a draft by itself.
///
/// # Errors
/// The errors of `read` for the chosen device.
pub(super) fn place(
    device: DraftDevice,
    (bytes, chains): (usize, bool),
    compute: &Compute,
    read: &dyn Fn(&Compute) -> Result<Decoder>,
) -> Result<Placed> {
    let alone = |model: Decoder| Placed { model, token_ms: None, note: None };
    if compute.is_gpu() && device == DraftDevice::Cpu {
        let note = Some("The draft model runs on the CPU, as chosen.".to_owned());
        return Ok(Placed { note, ..alone(read(&compute.cpu())?) });
    }
    let on_gpu = read(compute)?;
    if reads(device, bytes, compute) == 1 || on_gpu.backend() == &Backend::Cpu {
        return Ok(alone(on_gpu));
    }
    let timed = read(&compute.cpu()).and_then(|on_cpu| Ok((token_ms([&on_gpu, &on_cpu], chains)?, on_cpu)));
    let ([gpu_ms, cpu_ms], on_cpu) = match timed {
        Ok(timed) => timed,
        Err(Error::Stopped) => return Err(Error::Stopped),
        Err(error) => {
            tracing::warn!("The draft model could not be timed, so it stays on the GPU. {error}");
            return Ok(alone(on_gpu));
        }
    };
    let on = |name: &str, model, ms: f64, (other, other_ms): (&str, f64)| {
        let note =
            format!("The draft model runs on the {name}: {ms:.2} ms a token, {other_ms:.2} on the {other}.");
        Placed { model, token_ms: Some(ms), note: Some(note) }
    };
    Ok(if cpu_ms < gpu_ms {
        on("CPU", on_cpu, cpu_ms, ("GPU", gpu_ms))
    } else {
        on("GPU", on_gpu, gpu_ms, ("CPU", cpu_ms))
    })
}

/// Measures the time of a drafted token of two models in milliseconds, in turn.
///
/// # Errors
/// If a device fails.
fn token_ms(models: [&Decoder; 2], chains: bool) -> Result<[f64; 2]> {
    let mut models = models.map(LanguageModel::fork);
    for model in &mut models {
        model.forward(PassInput::chain(&CONTEXT, LogitRows::None))?;
    }
    let mut timer = PassTimer::new(vec![0, 1]);
    let mut time = |_, &at: &usize| seconds_of(|| draft(models[at].as_mut(), chains)).map(Some);
    TimingObserver::none(|watch| timer.run(ROUNDS, &mut time, watch))?;
    Ok([0, 1].map(|at| timer.since(0).median(&at).unwrap_or_default() * 1e3 / TOKENS as f64))
}

/// Drafts [`TOKENS`] tokens. With `chains`, a device that chooses tokens waits once for all of them.
fn draft(model: &mut dyn LanguageModel, chains: bool) -> Result<()> {
    model.truncate(CONTEXT.len())?;
    if !chains || model.device_chain(ChainInput::new(&[0], TOKENS))?.is_none() {
        for _ in 0..TOKENS {
            model.forward(PassInput::chain(&[0], LogitRows::Last))?;
        }
    }
    Ok(())
}
