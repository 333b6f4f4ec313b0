//! Lanes: several generations on one prompt that take turns of a few tokens.
//!
//! Turns are short so that heat, clocks and other programs affect all lanes alike.

use std::ops::ControlFlow;

use crate::engine::PausableStopwatch;
use crate::event::{EventSink, StopReason};
use crate::generate::{Generation, GenerationContext, GenerationPlan, Models};
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Tokens of a slice. The load of a shared machine changes within a second, so slices are short.
pub(super) const SLICE: usize = 4;

/// A lane before its answer.
pub(super) struct Lane<'a, S> {
    /// Fork of the models: shared weights, its own caches.
    pub(super) models: &'a mut Models,
    /// The prompt in tokens of the lane's target.
    pub(super) prompt: &'a [TokenId],
    pub(super) plan: &'a GenerationPlan,
    /// Clock of the lane, paused while others run.
    pub(super) clock: &'a PausableStopwatch,
    /// Receiver of the lane's events.
    pub(super) sink: S,
}

/// A lane after its answer.
pub(super) struct Answered<S> {
    pub(super) stats: GenerationStats,
    pub(super) stop: StopReason,
    pub(super) sink: S,
}

/// Input shared by all lanes.
pub(super) struct LaneRun<'a> {
    /// Lane that is first in the first slice. The first lane moves on by one in every slice.
    pub(super) number: usize,
    /// Returns whether to stop. Asked in every round.
    pub(super) stopped: &'a dyn Fn() -> bool,
    /// True if lanes use what their caches hold of the prompt.
    pub(super) keep_caches: bool,
}

/// Answers a prompt in every lane, slice by slice. `None` when it was stopped.
///
/// `on_slice` is called with the lane at the beginning of each slice. `between` is called with the longest text after
/// each slice of all lanes, while their clocks are paused.
///
/// # Errors
/// When a plan cannot be run, a model fails, or `between` fails.
pub(super) fn answer<S: EventSink>(
    lanes: Vec<Lane<'_, S>>,
    run: &LaneRun<'_>,
    on_slice: &mut dyn FnMut(usize),
    between: &mut dyn FnMut(&[TokenId]) -> Result<()>,
) -> Result<Option<Vec<Answered<S>>>> {
    let &LaneRun { number, stopped, keep_caches } = run;
    let count = lanes.len();
    let mut running = Vec::with_capacity(count);
    for Lane { models, prompt, plan, clock, mut sink } in lanes {
        if !keep_caches {
            models.forget()?;
        }
        let context = GenerationContext { cancelled: stopped, ..GenerationContext::measured(clock) };
        clock.resume();
        let generation = Generation::begin(models, prompt, plan, &context, &mut sink)?;
        clock.pause();
        running.push(Some((generation, clock, sink)));
    }
    let mut answered: Vec<Option<Answered<S>>> = (0..count).map(|_| None).collect();
    for slice in 0.. {
        if running.iter().all(Option::is_none) {
            break;
        }
        // All lanes run to the same token, so that each is spread over the time of the slowest.
        let goal = SLICE * (slice + 1);
        for at in 0..count {
            let lane = (number + slice + at) % count;
            let trailing = running[lane].take_if(|(generation, ..)| generation.generated() < goal);
            let Some((mut generation, clock, mut sink)) = trailing else { continue };
            on_slice(lane);
            clock.resume();
            match run_to(&mut generation, goal, &mut sink)? {
                None => running[lane] = Some((generation, clock, sink)),
                Some(StopReason::Cancelled) => return Ok(None),
                Some(stop) => {
                    let finished = generation.finish(stop.clone());
                    let stats = finished.stats.clone();
                    sink.send(finished.into_event());
                    answered[lane] = Some(Answered { stats, stop, sink });
                }
            }
            clock.pause();
        }
        let texts = running.iter().flatten().map(|(generation, ..)| generation.text());
        if let Some(longest) = texts.max_by_key(|text| text.len()) {
            between(longest)?;
        }
    }
    Ok(Some(answered.into_iter().flatten().collect()))
}

/// Runs a generation until it has `goal` tokens. Returns the reason if the answer ended.
fn run_to(
    generation: &mut Generation<'_>,
    goal: usize,
    sink: &mut dyn EventSink,
) -> Result<Option<StopReason>> {
    while generation.generated() < goal {
        if let ControlFlow::Break(stop) = generation.step(sink)? {
            return Ok(Some(stop));
        }
    }
    Ok(None)
}
