//! The cost curve: what a pass costs by its rows, for target and draft, beside the floor that the memory sets.

use std::collections::BTreeMap;
use std::time::Instant;

use candle_core::{DType, Tensor};

use crate::bench::figures::median;
use crate::bench::model::{TimedPass, timed_pass};
use crate::bench::passes::MemoryReader;
use crate::generate::Models;
use hunch_core::limits::MAX_ROWS;
use hunch_core::method::Method;
use hunch_core::model::VocabSubset;
use hunch_core::pass_cost::{CostCurve, CostPoint, ModelCosts};
use hunch_core::propose::MethodOptions;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;

/// Rounds, after one that warms up.
const ROUNDS: usize = 5;

/// Measures passes of 1 to 16 rows of target and draft; in each round every pass once, starting one further
/// than in the round before. The models stay as they are. `None` when it was stopped, which is asked before
/// every pass; `progress` hears rounds done and rounds in all. The time is for the caller to fill in.
///
/// # Errors
/// When a pass fails.
pub fn measure(
    models: &Models,
    compute: &Compute,
    stopped: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<CostCurve>> {
    let mut models = models.fork()?;
    let mut memory = Memory::new(compute)?;
    let mut rates = Vec::new();
    let (mut target, mut draft) = (Times::default(), Times::default());
    let mut head_share = 1.0;
    for round in 0..=ROUNDS {
        progress(round, ROUNDS + 1);
        if round > 0 {
            rates.push(memory.gb_s()?);
        }
        for turn in 0..MAX_ROWS {
            if stopped() {
                return Ok(None);
            }
            let rows = 1 + (round + turn) % MAX_ROWS;
            let seconds = timed_pass(models.target(), &TimedPass::of(rows))?;
            let by_draft = models.with_drafter(
                Method::DraftModel,
                &MethodOptions::default(),
                &[],
                |model, _, vocab_subset| {
                    Ok((
                        timed_pass(model, &TimedPass { vocab_subset, ..TimedPass::of(rows) })?,
                        scored(vocab_subset, model.info().n_vocab),
                    ))
                },
            )?;
            if round > 0 {
                target.0.entry(rows).or_default().push(seconds);
                if let Some((seconds, share)) = by_draft {
                    head_share = share;
                    draft.0.entry(rows).or_default().push(seconds);
                }
            }
        }
    }
    // The best: a floor that passes fall below is none.
    let memory_gb_s = rates.iter().copied().reduce(f64::max).ok_or_else(nothing)?;
    let read = models.memory();
    let name = models.draft_name();
    let of_draft = name.zip(read.1).map(|(name, memory)| {
        let unread = memory.head as f64 * (1.0 - head_share);
        draft.costs(name, memory.read_by_a_pass.saturating_sub(unread as usize), memory_gb_s)
    });
    Ok(Some(CostCurve {
        measured_ms: 0,
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        memory_gb_s,
        target: target.costs(models.target_name(), read.0.read_by_a_pass, memory_gb_s)?,
        draft: of_draft.transpose()?,
    }))
}

/// The share of a vocabulary that is scored.
fn scored(vocab_subset: Option<&VocabSubset>, n_vocab: usize) -> f64 {
    vocab_subset.map_or(1.0, |vocab_subset| vocab_subset.share_of(n_vocab))
}

fn nothing() -> Error {
    Error::Internal("no pass was measured".into())
}

/// Seconds of passes by rows, round by round.
#[derive(Default)]
struct Times(BTreeMap<usize, Vec<f64>>);

impl Times {
    fn costs(&self, name: String, weight_bytes: usize, memory_gb_s: f64) -> Result<ModelCosts> {
        let ones = self.0.get(&1).ok_or_else(nothing)?;
        let point = |(&rows, times): (&usize, &Vec<f64>)| {
            let ratios: Vec<f64> = times.iter().zip(ones).map(|(time, one)| time / one).collect();
            let relative = median(&ratios).ok_or_else(nothing)?;
            Ok(CostPoint { rows: rows as u32, ms: median(times).ok_or_else(nothing)? * 1e3, relative })
        };
        Ok(ModelCosts {
            name,
            points: self.0.iter().map(point).collect::<Result<_>>()?,
            weight_bytes: weight_bytes as u64,
            floor_ms: weight_bytes as f64 / memory_gb_s / 1e6,
        })
    }
}

/// What the memory gives in a second: read by the CPU's threads, or read and written by the GPU.
enum Memory<'a> {
    Host(MemoryReader<'a>),
    Device(&'a Compute, Tensor),
}

impl<'a> Memory<'a> {
    fn new(compute: &'a Compute) -> Result<Self> {
        if compute.device().is_cpu() {
            return Ok(Self::Host(MemoryReader::new(compute.threads())));
        }
        // 256 MiB: more than any cache holds.
        Ok(Self::Device(compute, Tensor::zeros(1 << 26, DType::F32, compute.device())?))
    }

    /// 10^9 bytes a second.
    fn gb_s(&mut self) -> Result<f64> {
        let (compute, tensor) = match self {
            Self::Host(reader) => return Ok(reader.gb_s()),
            Self::Device(compute, tensor) => (compute, tensor),
        };
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            compute.synchronise()?;
            let begun = Instant::now();
            let copy = tensor.affine(1.0, 1.0)?;
            compute.synchronise()?;
            best = best.min(begun.elapsed().as_secs_f64());
            drop(copy);
        }
        Ok(2.0 * (tensor.elem_count() * size_of::<f32>()) as f64 / best / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_medians_and_ratios_within_a_round() {
        let times = Times(BTreeMap::from([(1, vec![0.01, 0.02, 0.01]), (2, vec![0.015, 0.024, 0.014])]));
        let costs = times.costs("big".into(), 500_000_000, 50.0).unwrap();
        assert_eq!(costs.points.len(), 2);
        assert!((costs.points[1].relative - 1.4).abs() < 1e-12 && (costs.points[1].ms - 15.0).abs() < 1e-9);
        assert!((costs.points[0].relative - 1.0).abs() < 1e-12);
        assert!((costs.floor_ms - 10.0).abs() < 1e-9);
        assert!(Times::default().costs("none".into(), 1, 1.0).is_err());
    }
}
