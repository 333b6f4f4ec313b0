//! One turn: all lanes answer one prompt, a slice at a time.

use std::ops::ControlFlow;

use super::report::{CompareEvent, ComparedPrompt, TimedEvent};
use super::{Listener, SLICE};
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
    /// By lane.
    pub(super) answers: Vec<LaneAnswer>,
}

/// A lane's answer.
pub(super) struct LaneAnswer {
    pub(super) stats: GenerationStats,
    pub(super) stop: StopReason,
    /// Everything it told, on its own time.
    pub(super) told: Vec<TimedEvent>,
}

impl LaneAnswer {
    /// Its tokens.
    pub(super) fn ids(&self) -> Vec<TokenId> {
        self.told.iter().flat_map(|told| told.event.tokens()).map(|token| token.id).collect()
    }

    /// Its text.
    pub(super) fn text(&self) -> String {
        self.told.iter().flat_map(|told| told.event.tokens()).map(|token| token.text.as_str()).collect()
    }

    /// Milliseconds of its own time and the tokens there were by then, round by round.
    pub(super) fn timeline(&self) -> Vec<(f64, u32)> {
        let rounds = self.told.iter().filter_map(|told| match &told.event {
            GenerationEvent::Round(round) => Some((told.at_ms, round.figures.generated_tokens)),
            _ => None,
        });
        rounds.collect()
    }
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
    let mut sinks: Vec<LaneSink<'_>> =
        clocks.iter().map(|clock| LaneSink { clock, told: Vec::new(), heard: 0 }).collect();
    let mut running = Vec::with_capacity(count);
    for ((models, plan), (clock, sink)) in lanes.iter_mut().zip(plans).zip(clocks.iter().zip(&mut sinks)) {
        models.forget()?;
        let context = GenerationContext { id: 0, clock, begun: 0, dropped: 0, cancelled: listener.stopped };
        clock.go();
        running.push(Some(Generation::begin(models, &ids, plan, &context, sink)?));
        clock.stand();
    }
    let mut answers: Vec<Option<LaneAnswer>> = (0..count).map(|_| None).collect();
    let mut slice = number;
    while running.iter().any(Option::is_some) {
        for at in 0..count {
            let lane = (slice + at) % count;
            let Some(mut generation) = running[lane].take() else { continue };
            clocks[lane].go();
            let ended = go_on(&mut generation, &mut sinks[lane])?;
            match ended {
                None => running[lane] = Some(generation),
                Some(StopReason::Cancelled) => return Ok(None),
                Some(stop) => {
                    let finished = generation.finish(stop.clone());
                    let stats = finished.stats.clone();
                    sinks[lane].send(finished.into_event());
                    answers[lane] = Some(LaneAnswer { stats, stop, told: Vec::new() });
                }
            }
            clocks[lane].stand();
            for told in sinks[lane].unheard() {
                (listener.tell)(CompareEvent::Lane { lane: lane as u32, told });
            }
        }
        slice += 1;
    }
    let told = sinks.into_iter().map(|sink| sink.told);
    Ok(Some(
        answers.into_iter().flatten().zip(told).map(|(answer, told)| LaneAnswer { told, ..answer }).collect(),
    ))
}

/// Goes on for a slice; gives why the answer ended, if it did.
fn go_on(generation: &mut Generation<'_>, sink: &mut LaneSink<'_>) -> Result<Option<StopReason>> {
    let goal = generation.generated() + SLICE;
    while generation.generated() < goal {
        if let ControlFlow::Break(stop) = generation.step(sink)? {
            return Ok(Some(stop));
        }
    }
    Ok(None)
}

/// Keeps what a lane tells, with its own time.
struct LaneSink<'a> {
    clock: &'a TurnClock,
    told: Vec<TimedEvent>,
    /// How much of it was told on.
    heard: usize,
}

impl LaneSink<'_> {
    /// What is new, once.
    fn unheard(&mut self) -> Vec<TimedEvent> {
        let new = self.told[self.heard..].to_vec();
        self.heard = self.told.len();
        new
    }
}

impl EventSink for LaneSink<'_> {
    fn send(&mut self, event: GenerationEvent) {
        self.told.push(TimedEvent { at_ms: millis(self.clock.elapsed()), event });
    }
}
