//! One generation, from a prompt to its events: brings models, text and the round loop together.
//!
//! Synchronous. The engine runs it on its thread, the command line and the benchmarks on theirs.

mod conversation;
mod cost_priors;
mod draft_quality;
mod kept_conversations;
mod load;
mod measured_acceptance;
mod models;
mod placement;
mod prompt;
mod prompt_encoder;
mod shared_models;
mod text_stream;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{
    DraftedEvent, EventSink, GenerationEvent, RejectedEvent, RoundEvent, StopReason, TokenEvent,
};
use conversation::GenerationResources;
use hunch_core::chat::Thinking;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Constraint, Sampler, SamplingParams};
use hunch_core::session::{DroppedDraft, EndReason, Round, Session, SessionConfig};
use hunch_core::stats::{GenerationStats, Stopwatch};
use hunch_core::token::{DraftedToken, TokenId};
use hunch_error::{Error, Result};
use hunch_model::device::peak_memory_bytes;
use text_stream::TextStream;

pub use draft_quality::evaluate_drafts;
pub use kept_conversations::{CacheLimits, CacheUse};
pub use load::{LoadPlan, LoadStep, LoadWatch, OpenedModels};
pub use models::{Models, WithoutHead};
pub use prompt::Prompt;
pub use prompt_encoder::{FittingPrompt, PromptEncoder, ToolMarkers};

/// Range of generated seeds: short enough to read out and type, and exact in JavaScript.
const SEED_MASK: u64 = (1 << 32) - 1;

/// Maximum number of stop strings.
pub const MOST_STOP_STRINGS: usize = 16;

/// Settings of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationPlan {
    /// Drafting method.
    pub method: Method,
    /// Maximum tokens drafted per round. Plain decoding ignores it.
    pub max_draft: MaxDraft,
    /// Options of the method.
    pub options: MethodOptions,
    /// Maximum tokens to generate, at least 1.
    pub max_tokens: usize,
    /// Sampling settings.
    pub sampling: SamplingParams,
    /// Rule that accepts or rejects drafted tokens.
    pub rule: AcceptanceRule,
    /// Stop strings, at most [`MOST_STOP_STRINGS`]. None may be empty.
    pub stop: Vec<String>,
    /// Reasoning before the answer. `None` leaves it to the chat template.
    pub thinking: Option<Thinking>,
}

impl Default for GenerationPlan {
    /// Plain decoding of 512 tokens, the settings of a new conversation.
    fn default() -> Self {
        Self {
            method: Method::Plain,
            max_draft: MaxDraft::Auto,
            options: MethodOptions::default(),
            max_tokens: 512,
            sampling: SamplingParams::default(),
            rule: AcceptanceRule::Lossless,
            stop: Vec::new(),
            thinking: None,
        }
    }
}

impl GenerationPlan {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the value and its range.
    pub fn validate(&self) -> Result<()> {
        self.max_draft.validate()?;
        self.rule.validate()?;
        if self.max_tokens == 0 {
            return Err(Error::invalid("max_tokens is 0. Choose 1 or more."));
        }
        if self.stop.len() > MOST_STOP_STRINGS {
            return Err(Error::invalid(format!(
                "{} stop strings are too many. Use at most {MOST_STOP_STRINGS}.",
                self.stop.len()
            )));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::invalid("A stop string is empty. Give it at least one character."));
        }
        Ok(self.sampling.validate()?)
    }
}

/// Per-request inputs of a generation.
pub struct GenerationContext<'a> {
    /// ID of the generation, for its events.
    pub id: u32,
    /// Stopwatch started when the request arrived.
    pub clock: &'a dyn Stopwatch,
    /// Number of tokens at the end of the prompt that already belong to the answer.
    pub begun: usize,
    /// Number of messages left out of the prompt.
    pub dropped: usize,
    /// Cancel check, called before every pass.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Set if a failing draft ends the generation. Measurements set this, because figures without the
    /// draft would mislead. Otherwise the generation continues without it.
    pub strict_drafts: bool,
    /// Note for the user about the model's chat template.
    pub template_note: Option<&'a str>,
    /// Format that the answer follows ([`PromptEncoder::constraint`]).
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Special tokens whose text is part of the answer, such as markers of calls ([`PromptEncoder::tools`]).
    pub shown: &'a [TokenId],
}

impl<'a> GenerationContext<'a> {
    /// The context of a measured answer: it runs to its end, or fails with its draft.
    pub fn measured(clock: &'a dyn Stopwatch) -> Self {
        Self {
            id: 0,
            clock,
            begun: 0,
            dropped: 0,
            cancelled: &|| false,
            strict_drafts: true,
            template_note: None,
            constraint: None,
            shown: &[],
        }
    }
}

/// Outcome of a generation.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Reason for the end.
    pub stop: StopReason,
    /// Tokens held back until the end, in case a stop string had begun.
    pub held: Vec<TokenEvent>,
    /// The stop string that appeared.
    pub stop_string: Option<String>,
    /// All figures.
    pub stats: GenerationStats,
}

impl Finished {
    /// Converts to the generation's last event.
    pub fn into_event(self) -> GenerationEvent {
        GenerationEvent::Finished { stop: self.stop, tokens: self.held, stats: self.stats }
    }
}

/// Generates an answer to `prompt` and sends an event to `sink` for every step but the last, which is
/// the result.
///
/// # Errors
/// If the plan is invalid, its method needs a draft model that is not loaded, or the target fails.
/// Events sent before stay valid. A draft that fails is dropped, unless `context.strict_drafts` is set.
pub fn generate(
    models: &mut Models,
    prompt: &[TokenId],
    plan: &GenerationPlan,
    context: &GenerationContext<'_>,
    sink: &mut dyn EventSink,
) -> Result<Finished> {
    let generation = Generation::begin(models, prompt, plan, context, sink)?;
    generation.run(sink)
}

/// Generates a measured answer and returns its tokens and statistics.
///
/// # Errors
/// As [`generate`]. A draft that fails ends the generation.
pub fn answer_ids(
    models: &mut Models,
    prompt: &[TokenId],
    plan: &GenerationPlan,
    clock: &dyn Stopwatch,
) -> Result<(Vec<TokenId>, GenerationStats)> {
    let mut ids = Vec::new();
    let mut sink = |event: GenerationEvent| ids.extend(event.tokens().iter().map(|token| token.id));
    let finished = generate(models, prompt, plan, &GenerationContext::measured(clock), &mut sink)?;
    let Finished { held, stats, .. } = finished;
    ids.extend(held.iter().map(|token| token.id));
    Ok((ids, stats))
}

/// A running generation, driven step by step so that the caller can do other work in between.
pub struct Generation<'a> {
    session: Session<'a>,
    text: TextStream,
    prompt: &'a [TokenId],
    /// Prompt tokens already in the target's cache.
    reuse: usize,
    cached: &'a mut Vec<TokenId>,
    device: &'static str,
    cancelled: &'a dyn Fn() -> bool,
    strict_drafts: bool,
    rounds: u32,
    read: bool,
}

impl<'a> Generation<'a> {
    /// Starts a generation and sends [`GenerationEvent::Started`]. Runs no pass yet.
    ///
    /// # Errors
    /// The errors of [`generate`].
    pub fn begin(
        models: &'a mut Models,
        prompt: &'a [TokenId],
        plan: &GenerationPlan,
        context: &GenerationContext<'a>,
        sink: &mut dyn EventSink,
    ) -> Result<Self> {
        plan.validate()?;
        let sampler = Sampler::new(plan.sampling.clone())?;
        let sampler = match &context.constraint {
            Some(constraint) => sampler.with_constraint(constraint.clone()),
            None => sampler,
        };
        models.resume(prompt)?;
        let mut resources = models.prepare(plan)?;
        let seed = plan.sampling.seed.unwrap_or_else(fresh_seed);
        let max_draft = if plan.method == Method::Plain { MaxDraft::Fixed(0) } else { plan.max_draft };
        sink.send(GenerationEvent::Started {
            generation_id: context.id,
            method: plan.method,
            target: resources.target.info().name.clone(),
            draft: resources.draft.take().filter(|_| plan.method.uses_draft()),
            device: resources.device.into(),
            prompt_tokens: prompt.len() as u32,
            dropped_messages: context.dropped as u32,
            context_length: resources.target.info().context_length as u32,
            max_draft,
            rule: plan.rule,
            seed,
            template_note: context.template_note.map(str::to_owned),
        });
        let reuse = resources.rewind(prompt)?;
        let GenerationResources { target, stages, depth, cached, tokenizer, device, .. } = resources;
        let config = SessionConfig {
            max_draft: max_draft.limit(),
            max_tokens: plan.max_tokens,
            end_tokens: tokenizer.end_tokens().iter().copied().collect(),
            seed,
            rule: plan.rule,
        };
        let mut session = Session::new(target, &sampler, context.clock, config)?;
        session.add_stages(plan.method, stages);
        if max_draft == MaxDraft::Auto {
            session.set_depth(depth);
        }
        session.set_start(Duration::ZERO);
        session.set_cancel(context.cancelled);
        let begun = &prompt[prompt.len() - context.begun.min(prompt.len())..];
        let text = TextStream::new(tokenizer.clone(), &plan.stop, begun, context.shown)?;
        let &GenerationContext { cancelled, strict_drafts, .. } = context;
        Ok(Self {
            session,
            text,
            prompt,
            reuse,
            cached,
            device,
            cancelled,
            strict_drafts,
            rounds: 0,
            read: false,
        })
    }

    /// Runs the next step: prefill first, then one round per call. Breaks with the reason at the end.
    ///
    /// # Errors
    /// Any error of the target, which ends the generation.
    pub fn step(&mut self, sink: &mut dyn EventSink) -> Result<ControlFlow<StopReason>> {
        if !self.read {
            self.read = true;
            return self.prefill(sink);
        }
        if (self.cancelled)() {
            return Ok(ControlFlow::Break(StopReason::Cancelled));
        }
        self.round(sink)
    }

    /// Returns the number of tokens generated so far.
    pub fn generated(&self) -> usize {
        self.session.generated()
    }

    /// Returns the prompt and all generated tokens.
    pub fn text(&self) -> &[TokenId] {
        self.session.committed()
    }

    /// Ends the generation. Returns the tokens held back and all figures as of now.
    pub fn finish(mut self, stop: StopReason) -> Finished {
        let held = self.text.finish();
        let stop_string = self.text.stop_string().map(str::to_owned);
        Finished { stop, held, stop_string, stats: self.end() }
    }

    fn run(mut self, sink: &mut dyn EventSink) -> Result<Finished> {
        loop {
            match self.step(sink) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(stop)) => return Ok(self.finish(stop)),
                Err(error) => {
                    // Tokens held back for a stop string are part of the answer.
                    let held = self.text.finish();
                    if !held.is_empty() {
                        let figures = self.session.figures();
                        let last = RoundEvent { figures, ..RoundEvent::of_tokens(self.rounds, held) };
                        sink.send(GenerationEvent::Round(last));
                    }
                    self.end();
                    return Err(error);
                }
            }
        }
    }

    /// Records the cache content for reuse by the next generation, even after an error.
    fn end(&mut self) -> GenerationStats {
        *self.cached = self.session.cached().to_vec();
        self.session.stats(self.device, peak_memory_bytes())
    }

    fn prefill(&mut self, sink: &mut dyn EventSink) -> Result<ControlFlow<StopReason>> {
        let cancelled = self.cancelled;
        let progress = self.session.prefill(self.prompt, self.reuse, &mut |done, total| {
            sink.send(GenerationEvent::Prefill { done: done as u32, total: total as u32 });
            if cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.report_dropped(sink)?;
        Ok(progress.map_break(|()| StopReason::Cancelled))
    }

    /// Sends an event for each proposer dropped since the last call.
    ///
    /// # Errors
    /// The first dropped proposer's error if drafts are strict.
    fn report_dropped(&mut self, sink: &mut dyn EventSink) -> Result<()> {
        for DroppedDraft { method, error } in self.session.take_dropped() {
            let error = Error::from(error);
            if self.strict_drafts {
                return Err(error);
            }
            sink.send(GenerationEvent::DraftDropped { method, error: (&error).into() });
        }
        Ok(())
    }

    fn round(&mut self, sink: &mut dyn EventSink) -> Result<ControlFlow<StopReason>> {
        let round = self.session.round()?;
        self.report_dropped(sink)?;
        let mut tokens = Vec::new();
        let mut stopped = false;
        for (i, token) in round.emitted.iter().enumerate() {
            let released = self.text.push(token);
            tokens.extend(released);
            if self.text.stopped() {
                self.session.retract_tail(&round.emitted[i + 1..])?;
                stopped = true;
                break;
            }
        }
        sink.send(GenerationEvent::Round(RoundEvent {
            round: self.rounds,
            drafted: round.drafted.len() as u32,
            draft: drafted(&round, &self.text),
            drafted_by: round.drafted_by,
            tokens,
            rejected: rejected(&round, &self.text),
            timing: round.timing,
            depth: round.depth.clone(),
            figures: self.session.figures(),
        }));
        self.rounds += 1;
        let ended = round.ended.map(|end| match end {
            EndReason::EndToken => StopReason::EndOfTurn,
            EndReason::MaxTokens => StopReason::MaxTokens,
            EndReason::ContextFull => StopReason::ContextFull,
        });
        let ended = if stopped { Some(StopReason::StopString) } else { ended };
        Ok(ended.map_or(ControlFlow::Continue(()), ControlFlow::Break))
    }
}

fn drafted(round: &Round, text: &TextStream) -> Vec<DraftedEvent> {
    let event = |d: &DraftedToken| DraftedEvent {
        id: d.id,
        text: text.text_of(d.id),
        parent: d.parent.map(|node| node as u32),
        fate: d.fate,
    };
    round.drafted.iter().map(event).collect()
}

fn rejected(round: &Round, text: &TextStream) -> Vec<RejectedEvent> {
    let event = |r: &hunch_core::token::RejectedToken| RejectedEvent {
        id: r.id,
        text: text.text_of(r.id),
        p: r.p,
        q: r.q,
        u: r.u,
        position: r.position,
    };
    round.rejected.iter().map(event).collect()
}

/// Returns a random seed.
pub(crate) fn fresh_seed() -> u64 {
    // The standard library seeds its hash maps from the system's randomness.
    RandomState::new().build_hasher().finish() & SEED_MASK
}
