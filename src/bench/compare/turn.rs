//! One turn: all lanes answer one prompt, a slice at a time.

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use super::report::{CompareEvent, ComparedPrompt, TimedEvent};
use super::{Listener, SLICE};
use crate::bench::figures::CostTable;
use crate::bench::suite::SuitePrompt;
use crate::engine::TurnClock;
use crate::error::Result;
use crate::event::{EventSink, GenerationEvent, StopReason};
use crate::generate::{Generation, GenerationContext, GenerationPlan, Models, Prompt};
use crate::stats::{GenerationStats, Stopwatch, millis};
use crate::token::TokenId;

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

/// Has every lane answer from empty caches, in slices. Who is first moves on from slice to slice and, by
/// `number`, from turn to turn. `None` when it was stopped.
pub(super) fn run(
    lanes: &mut [Models],
    prompt: &ComparedPrompt,
    plans: &[GenerationPlan],
    number: usize,
    listener: &mut Listener<'_>,
) -> Result<Option<Vec<LaneAnswer>>> {
    let system = Some(prompt.system.clone()).filter(|system| !system.trim().is_empty());
    let asked = SuitePrompt { id: prompt.id.clone(), system, prompt: prompt.text.clone() };
    let ids = lanes[0].prompt_ids(&Prompt::Chat(asked.messages()))?;
    let count = lanes.len();
    let clocks: Vec<TurnClock> = lanes.iter().map(|_| TurnClock::default()).collect();
    let stopped = listener.stopped;
    let tell: Tell<'_> = Mutex::new(&mut *listener.tell);
    let mut sinks: Vec<LaneSink<'_, '_>> = (0..)
        .zip(&clocks)
        .map(|(lane, clock)| LaneSink { lane, clock, tell: &tell, told: Vec::new() })
        .collect();
    let mut running = Vec::with_capacity(count);
    for ((models, plan), sink) in lanes.iter_mut().zip(plans).zip(&mut sinks) {
        models.forget()?;
        let context =
            GenerationContext { id: 0, clock: sink.clock, begun: 0, dropped: 0, cancelled: stopped };
        sink.clock.go();
        running.push(Some(Generation::begin(models, &ids, plan, &context, sink)?));
        sink.clock.stand();
    }
    let mut answers: Vec<Option<LaneAnswer>> = (0..count).map(|_| None).collect();
    let mut slice = number;
    while running.iter().any(Option::is_some) {
        for at in 0..count {
            let lane = (slice + at) % count;
            let Some(mut generation) = running[lane].take() else { continue };
            let sink = &mut sinks[lane];
            sink.say(CompareEvent::Slice { lane: sink.lane });
            sink.clock.go();
            match go_on(&mut generation, sink)? {
                None => running[lane] = Some(generation),
                Some(StopReason::Cancelled) => return Ok(None),
                Some(stop) => {
                    let finished = generation.finish(stop.clone());
                    let stats = finished.stats.clone();
                    sink.send(finished.into_event());
                    answers[lane] = Some(LaneAnswer::new(stats, stop, std::mem::take(&mut sink.told)));
                }
            }
            sinks[lane].clock.stand();
        }
        slice += 1;
    }
    Ok(Some(answers.into_iter().flatten().collect()))
}

/// Goes on for a slice; gives why the answer ended, if it did.
fn go_on(generation: &mut Generation<'_>, sink: &mut LaneSink<'_, '_>) -> Result<Option<StopReason>> {
    let goal = generation.generated() + SLICE;
    while generation.generated() < goal {
        if let ControlFlow::Break(stop) = generation.step(sink)? {
            return Ok(Some(stop));
        }
    }
    Ok(None)
}

type Tell<'t> = Mutex<&'t mut (dyn FnMut(CompareEvent) + Send + 't)>;

/// Keeps what a lane tells, with its own time, and tells it on while the lane's clock stands.
struct LaneSink<'a, 't> {
    lane: u32,
    clock: &'a TurnClock,
    tell: &'a Tell<'t>,
    told: Vec<TimedEvent>,
}

impl LaneSink<'_, '_> {
    fn say(&self, event: CompareEvent) {
        // Who listens has no part in this state, so a panic of theirs leaves it sound.
        let mut tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner);
        (*tell)(event);
    }
}

impl EventSink for LaneSink<'_, '_> {
    fn send(&mut self, event: GenerationEvent) {
        self.clock.stand();
        let told = TimedEvent { at_ms: millis(self.clock.elapsed()), event };
        self.told.push(told.clone());
        self.say(CompareEvent::Lane { lane: self.lane, told });
        self.clock.go();
    }
}
