//! A turn of a comparison: all lanes answer one prompt, a slice at a time.

use std::sync::Arc;

use super::Listener;
use super::report::{CompareEvent, ComparedPrompt, TimedEvent};
use crate::bench::lanes::{self, Lane, LaneRun};
use crate::bench::suite::SuitePrompt;
use crate::bench::turns::MeasuredAnswer;
use crate::engine::PausableStopwatch;
use crate::event::{EventSink, GenerationEvent, StopReason};
use crate::generate::{GenerationPlan, Models, Prompt, PromptEncoder};
use hunch_core::chat::Thinking;
use hunch_core::stats::{GenerationStats, Stopwatch, millis};
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};
use parking_lot::Mutex;

/// A lane's answer with its text and events.
pub(super) struct LaneAnswer {
    pub(super) answer: MeasuredAnswer,
    pub(super) stop: StopReason,
    pub(super) text: String,
    /// Milliseconds on the lane's clock and tokens so far, round by round.
    pub(super) timeline: Vec<(f64, u32)>,
    /// All events, on the lane's clock.
    pub(super) events: Vec<TimedEvent>,
}

impl AsRef<MeasuredAnswer> for LaneAnswer {
    fn as_ref(&self) -> &MeasuredAnswer {
        &self.answer
    }
}

impl LaneAnswer {
    pub(super) fn new(stats: GenerationStats, stop: StopReason, events: Vec<TimedEvent>) -> Self {
        let tokens = || events.iter().flat_map(|timed| timed.event.tokens());
        let rounds = events.iter().filter_map(|timed| match &timed.event {
            GenerationEvent::Round(round) => Some((timed.at_ms, round.figures.generated_tokens)),
            _ => None,
        });
        Self {
            answer: MeasuredAnswer { stats, ids: tokens().map(|token| token.id).collect() },
            stop,
            text: tokens().map(|token| token.text.as_str()).collect(),
            timeline: rounds.collect(),
            events,
        }
    }

    /// Drops the events to free their memory.
    pub(super) fn forget_events(&mut self) {
        self.events = Vec::new();
    }
}

/// Rounds that a rate is averaged over. A single round yields anything from one token to many.
const RATE_ROUNDS: usize = 6;

/// Returns tokens per second along a timeline, averaged over the last rounds.
pub(super) fn rates(timeline: &[(f64, u32)]) -> Vec<(f64, f64)> {
    let at = |index: usize| {
        let ((from, before), (now, tokens)) = (timeline[index.saturating_sub(RATE_ROUNDS)], timeline[index]);
        (now > from).then(|| (now, f64::from(tokens - before) / (now - from) * 1e3))
    };
    (2..timeline.len()).filter_map(at).collect()
}

/// Answers a prompt in lanes with these numbers. The first lane changes with `turn`. `None` when it was stopped.
///
/// `prompts` has the prompt in tokens of each lane.
pub(super) fn run(
    lanes: &mut [Models],
    numbers: &[usize],
    prompts: &[Arc<[TokenId]>],
    plans: &[GenerationPlan],
    turn: usize,
    listener: &mut Listener<'_>,
) -> Result<Option<Vec<LaneAnswer>>> {
    let clocks: Vec<PausableStopwatch> = lanes.iter().map(|_| PausableStopwatch::default()).collect();
    let lane_run = LaneRun { number: turn, stopped: listener.stopped, keep_caches: false };
    let shared: SharedListener<'_> = Mutex::new(&mut *listener.on_event);
    let inputs = numbers.iter().zip(lanes.iter_mut()).zip(prompts).zip(plans).zip(&clocks);
    let lanes = inputs.map(|((((&number, models), prompt), plan), clock)| {
        let sink = LaneSink { lane: number as u32, clock, listener: &shared, events: Vec::new() };
        Lane { models, prompt, plan, clock, sink }
    });
    let mut on_slice = |lane: usize| forward(&shared, CompareEvent::Slice { lane: numbers[lane] as u32 });
    let answered = lanes::answer(lanes.collect(), &lane_run, &mut on_slice, &mut |_| Ok(()))?;
    Ok(answered.map(|answered| {
        answered.into_iter().map(|lane| LaneAnswer::new(lane.stats, lane.stop, lane.sink.events)).collect()
    }))
}

/// Tokenises a prompt for each lane, once for each target.
///
/// # Errors
/// If it does not fit the context of a target, or a chat template fails.
pub(super) fn tokens_by_lane(
    lanes: &[Models],
    compared: &ComparedPrompt,
    thinking: Option<Thinking>,
) -> Result<Vec<Arc<[TokenId]>>> {
    let prompt = Prompt::Chat(suite_prompt(compared).messages());
    let too_long = |models: &Models, error| match error {
        Error::ContextOverflow { prompt: tokens, context } if !compared.id.is_empty() => {
            let (id, target) = (compared.id.clone(), models.target_name());
            Refusal::SuitePromptTooLong { id, tokens, target, context }.into()
        }
        other => other,
    };
    let mut known: Vec<(&Arc<PromptEncoder>, Arc<[TokenId]>)> = Vec::new();
    for models in lanes {
        if !known.iter().any(|(encoder, _)| Arc::ptr_eq(encoder, models.encoder())) {
            let ids = models.encoder().ids_and_note(&prompt, thinking, &|| false);
            let (ids, _) = ids.map_err(|error| too_long(models, error))?;
            known.push((models.encoder(), ids.into()));
        }
    }
    let of = |models: &Models| {
        let found = known.iter().find(|(encoder, _)| Arc::ptr_eq(encoder, models.encoder()));
        found.expect("every encoder is known").1.clone()
    };
    Ok(lanes.iter().map(of).collect())
}

/// Converts a prompt to a suite's form.
pub(super) fn suite_prompt(prompt: &ComparedPrompt) -> SuitePrompt {
    let system = Some(prompt.system.clone()).filter(|system| !system.trim().is_empty());
    SuitePrompt { id: prompt.id.clone(), system, prompt: prompt.text.clone() }
}

type SharedListener<'t> = Mutex<&'t mut (dyn FnMut(CompareEvent) + Send + 't)>;

/// Records a lane's events with the lane's time, and forwards them while its clock is paused.
struct LaneSink<'a, 't> {
    lane: u32,
    clock: &'a PausableStopwatch,
    listener: &'a SharedListener<'t>,
    events: Vec<TimedEvent>,
}

fn forward(listener: &SharedListener<'_>, event: CompareEvent) {
    // The listener shares no state with the lock, so a panic in it leaves nothing inconsistent.
    let mut on_event = listener.lock();
    (*on_event)(event);
}

impl EventSink for LaneSink<'_, '_> {
    fn send(&mut self, event: GenerationEvent) {
        self.clock.pause();
        let timed = TimedEvent { at_ms: millis(self.clock.elapsed()), event };
        self.events.push(timed.clone());
        forward(self.listener, CompareEvent::Lane { lane: self.lane, event: timed });
        self.clock.resume();
    }
}
