//! Lanes that answer one prompt side by side and take turns, a few tokens each, so that heat, clocks and other
//! programs hit all of them alike. What is answered and who listens is the caller's.

use std::ops::ControlFlow;

use crate::engine::PausableStopwatch;
use crate::event::{EventSink, StopReason};
use crate::generate::{Generation, GenerationContext, GenerationPlan, Models};
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Tokens of a slice: few, for what a shared machine does changes within a second.
pub(super) const SLICE: usize = 4;

/// A lane before it answers.
pub(super) struct Lane<'a, S> {
    /// Twins of the others: the same weights, caches of their own.
    pub(super) models: &'a mut Models,
    pub(super) plan: &'a GenerationPlan,
    /// Stands while others run.
    pub(super) clock: &'a PausableStopwatch,
    /// Hears everything that the lane tells.
    pub(super) sink: S,
}

/// A lane that has answered.
pub(super) struct Answered<S> {
    pub(super) stats: GenerationStats,
    pub(super) stop: StopReason,
    pub(super) sink: S,
}

/// What lanes have in common.
pub(super) struct LaneRun<'a> {
    pub(super) prompt: &'a [TokenId],
    /// Who is first moves on from slice to slice, beginning with this one.
    pub(super) number: usize,
    /// Asked at every round.
    pub(super) stopped: &'a dyn Fn() -> bool,
}

/// Has every lane answer from empty caches, in slices; `begins` hears of each which lane it belongs to, and `between`
/// hears the longest text each time that all have gone on by one, while their clocks stand. `None` when it was stopped.
///
/// # Errors
/// When a plan cannot be run or a model fails, and those of `between`.
pub(super) fn answer<S: EventSink>(
    lanes: Vec<Lane<'_, S>>,
    course: &LaneRun<'_>,
    begins: &mut dyn FnMut(usize),
    between: &mut dyn FnMut(&[TokenId]) -> Result<()>,
) -> Result<Option<Vec<Answered<S>>>> {
    let &LaneRun { prompt, number, stopped } = course;
    let count = lanes.len();
    let mut running = Vec::with_capacity(count);
    for Lane { models, plan, clock, mut sink } in lanes {
        models.forget()?;
        let context = GenerationContext {
            id: 0,
            clock,
            begun: 0,
            dropped: 0,
            cancelled: stopped,
            strict_drafts: true,
            template_note: None,
        };
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
        // Lanes go on to the same token, so that each is spread over the time of the slowest.
        let goal = SLICE * (slice + 1);
        for at in 0..count {
            let lane = (number + slice + at) % count;
            let behind = running[lane].take_if(|(generation, ..)| generation.generated() < goal);
            let Some((mut generation, clock, mut sink)) = behind else { continue };
            begins(lane);
            clock.resume();
            match go_on(&mut generation, goal, &mut sink)? {
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

/// Goes on until so many tokens are generated; gives why the answer ended, if it did.
fn go_on(
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
