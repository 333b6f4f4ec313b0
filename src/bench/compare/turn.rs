//! One turn: all lanes answer one prompt, a slice at a time.

use std::sync::{Mutex, PoisonError};

use super::Listener;
use super::report::{CompareEvent, ComparedPrompt, TimedEvent};
use crate::bench::figures::CostTable;
use crate::bench::lanes::{self, Lane, LaneRun};
use crate::bench::suite::SuitePrompt;
use crate::engine::PausableStopwatch;
use crate::event::{EventSink, GenerationEvent, StopReason};
use crate::generate::{GenerationPlan, Models, Prompt};
use hunch_core::stats::{GenerationStats, Stopwatch, millis};
use hunch_core::token::TokenId;
use hunch_error::Result;

/// What all lanes answered to one prompt in one run.
pub(super) struct Turn {
    pub(super) prompt: u32,
    pub(super) run: u32,
    /// What passes cost just before and just after.
    pub(super) costs: CostTable,
    /// By lane.
    pub(super) answers: Vec<LaneAnswer>,
}

/// A lane's answer.
pub(super) struct LaneAnswer {
    pub(super) stats: GenerationStats,
    pub(super) stop: StopReason,
    /// Its tokens.
    pub(super) ids: Vec<TokenId>,
    /// Its text.
    pub(super) text: String,
    /// Milliseconds of its own time and the tokens there were by then, round by round.
    pub(super) timeline: Vec<(f64, u32)>,
    /// Everything it told, on its own time.
    pub(super) told: Vec<TimedEvent>,
}

impl LaneAnswer {
    pub(super) fn new(stats: GenerationStats, stop: StopReason, told: Vec<TimedEvent>) -> Self {
        let tokens = || told.iter().flat_map(|told| told.event.tokens());
        let rounds = told.iter().filter_map(|told| match &told.event {
            GenerationEvent::Round(round) => Some((told.at_ms, round.figures.generated_tokens)),
            _ => None,
        });
        Self {
            stats,
            stop,
            ids: tokens().map(|token| token.id).collect(),
            text: tokens().map(|token| token.text.as_str()).collect(),
            timeline: rounds.collect(),
            told,
        }
    }

    /// Gives the memory of its events free.
    pub(super) fn forget_events(&mut self) {
        self.told = Vec::new();
    }
}

/// Rounds that a rate is taken over: one alone gives one token or five.
const RATE_ROUNDS: usize = 6;

/// Tokens a second along a timeline, each over the rounds just before.
pub(super) fn rates(timeline: &[(f64, u32)]) -> Vec<(f64, f64)> {
    let at = |index: usize| {
        let ((from, before), (now, tokens)) = (timeline[index.saturating_sub(RATE_ROUNDS)], timeline[index]);
        (now > from).then(|| (now, f64::from(tokens - before) / (now - from) * 1e3))
    };
    (2..timeline.len()).filter_map(at).collect()
}

/// Has every lane answer. Who is first moves on, by `number`, from turn to turn. `None` when it was stopped.
pub(super) fn run(
    lanes: &mut [Models],
    prompt: &ComparedPrompt,
    plans: &[GenerationPlan],
    number: usize,
    listener: &mut Listener<'_>,
) -> Result<Option<Vec<LaneAnswer>>> {
    let ids = lanes[0].prompt_ids(&Prompt::Chat(asked(prompt).messages()))?;
    let clocks: Vec<PausableStopwatch> = lanes.iter().map(|_| PausableStopwatch::default()).collect();
    let course = LaneRun { prompt: &ids, number, stopped: listener.stopped };
    let tell: Tell<'_> = Mutex::new(&mut *listener.tell);
    let taking_part = (0..).zip(lanes.iter_mut()).zip(plans).zip(&clocks);
    let lanes = taking_part.map(|(((lane, models), plan), clock)| {
        let sink = LaneSink { lane, clock, tell: &tell, told: Vec::new() };
        Lane { models, plan, clock, sink }
    });
    let mut begins = |lane| say(&tell, CompareEvent::Slice { lane: lane as u32 });
    let answered = lanes::answer(lanes.collect(), &course, &mut begins, &mut |_| Ok(()))?;
    Ok(answered.map(|answered| {
        answered.into_iter().map(|lane| LaneAnswer::new(lane.stats, lane.stop, lane.sink.told)).collect()
    }))
}

/// A prompt as a suite has it.
pub(super) fn asked(prompt: &ComparedPrompt) -> SuitePrompt {
    let system = Some(prompt.system.clone()).filter(|system| !system.trim().is_empty());
    SuitePrompt { id: prompt.id.clone(), system, prompt: prompt.text.clone() }
}

type Tell<'t> = Mutex<&'t mut (dyn FnMut(CompareEvent) + Send + 't)>;

/// Keeps what a lane tells, with its own time, and tells it on while the lane's clock stands.
struct LaneSink<'a, 't> {
    lane: u32,
    clock: &'a PausableStopwatch,
    tell: &'a Tell<'t>,
    told: Vec<TimedEvent>,
}

fn say(tell: &Tell<'_>, event: CompareEvent) {
    // Who listens has no part in this state, so a panic of theirs leaves it sound.
    let mut tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
    (*tell)(event);
}

impl EventSink for LaneSink<'_, '_> {
    fn send(&mut self, event: GenerationEvent) {
        self.clock.pause();
        let told = TimedEvent { at_ms: millis(self.clock.elapsed()), event };
        self.told.push(told.clone());
        say(self.tell, CompareEvent::Lane { lane: self.lane, told });
        self.clock.resume();
    }
}
