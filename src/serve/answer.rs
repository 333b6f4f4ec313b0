//! From a request to the steps of its answer: queue, prompt and engine. Knows nothing of either protocol.
//!
//! An answer is cancelled by dropping it. Its generation then ends within one round.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::AnsweringServer;
use super::errors::{Failure, FailureKind};
use super::metrics::Metrics;
use super::models::{ServedModel, ServedModels};
use super::queue::QueuePlace;
use crate::engine::{Engine, EngineHold, WallClock};
use crate::event::{GenerationEvent, RoundEvent, StopReason, TokenEvent};
use crate::generate::{
    Finished, GenerationContext, GenerationPlan, LoadPlan, LoadStep, Models, Prompt, PromptEncoder, generate,
};
use hunch_core::chat::Thinking;
use hunch_core::method::Method;
use hunch_core::sample::Constraint;
use hunch_core::stats::RoundTiming;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result, RunningWork};
use hunch_model::text::{
    AnswerFormat, EncodeOptions, THOUGHT_END, ThinkingBudget, ThoughtSplitter, Tokenizer, ToolCallParser,
    ToolChat,
};

/// Tokens at the end of a prompt that show whether its template opened a thought.
const PROMPT_END: usize = 16;

/// Time between two attempts to get an engine that somebody else uses.
const ENGINE_POLL: Duration = Duration::from_millis(20);

/// A checked request.
pub(super) struct Ask {
    pub(super) question: AnswerInput,
    /// Settings. `max_tokens` is replaced.
    pub(super) plan: GenerationPlan,
    /// Maximum tokens of the answer. `None` allows as many as the context holds.
    pub(super) max_tokens: Option<usize>,
    /// Format of an answer in text.
    pub(super) format: Option<AnswerFormat>,
    /// Parameter that sets the format, for errors.
    pub(super) format_param: &'static str,
    /// Reading of calls. `None` if the answer has none.
    pub(super) calling: Option<Calling>,
    /// Most tokens of reasoning. Not with a format, which leaves no room for a thought.
    pub(super) thinking_budget: Option<usize>,
}

/// Reader of the calls in an answer, and the format that makes them.
pub(super) struct Calling {
    pub(super) parser: ToolCallParser,
    /// Format of the answer, unless it is free.
    pub(super) format: Option<AnswerFormat>,
    /// Special tokens whose text belongs to the answer.
    pub(super) shown: Vec<TokenId>,
}

impl Calling {
    /// Returns whether the answer has to follow a format, which leaves no room for a thought.
    pub(super) fn has_format(&self) -> bool {
        self.format.is_some()
    }
}

/// Input of an answer.
pub(super) enum AnswerInput {
    /// A prompt without tools.
    Plain(Prompt),
    /// A conversation with tools, and the tokens that its last answer starts with.
    Tools(ToolChat, Vec<TokenId>),
}

impl AnswerInput {
    /// Returns the number of tokens at the end that already belong to the answer.
    pub(super) fn begun(&self) -> usize {
        match self {
            Self::Plain(prompt) => prompt.begun(),
            Self::Tools(_, begun) => begun.len(),
        }
    }
}

/// A step of a generation.
enum GenerationStep {
    Event(GenerationEvent),
    End(Result<Finished>),
}

/// A part of an answer.
pub(super) enum AnswerPart {
    /// A round with its tokens. Boxed, because it is large.
    Round(Box<RoundEvent>),
    /// The end, with the tokens held back until then.
    End(Box<Finished>),
}

/// A running answer.
pub(super) struct RunningAnswer {
    steps: UnboundedReceiver<GenerationStep>,
    /// Number of the answer. Answers that began later have greater ones.
    pub(super) number: u32,
    /// Tokens in the prompt.
    pub(super) prompt_tokens: usize,
    /// Prompt tokens that prefill ran.
    prefilled: usize,
    /// Seed of the random numbers.
    pub(super) seed: u64,
    /// Drafting method.
    pub(super) method: Method,
    /// Reader of the calls, before the first token. `None` if the answer has none.
    pub(super) parser: Option<ToolCallParser>,
    /// Splitter of the thoughts in the answer, before the first token.
    pub(super) thoughts: ThoughtSplitter,
    /// Milliseconds and number of the rounds so far that drafted nothing.
    plain: (f64, u32),
}

/// A whole answer.
pub(super) struct Whole {
    pub(super) tokens: Vec<TokenEvent>,
    pub(super) finished: Finished,
}

impl Whole {
    /// Returns the text of the answer.
    pub(super) fn text(&self) -> String {
        text_of(&self.tokens)
    }
}

impl RunningAnswer {
    /// Returns the next part, or `None` after the end.
    ///
    /// # Errors
    /// If the generation failed.
    pub(super) async fn next(&mut self) -> Result<Option<AnswerPart>, Failure> {
        loop {
            match self.steps.recv().await {
                Some(GenerationStep::Event(GenerationEvent::Round(round))) => {
                    if round.drafted == 0 {
                        let RoundTiming { target_ms, verify_ms, other_ms, .. } = round.timing;
                        self.plain.0 += target_ms + verify_ms + other_ms;
                        self.plain.1 += 1;
                    }
                    return Ok(Some(AnswerPart::Round(Box::new(round))));
                }
                Some(GenerationStep::Event(event)) => self.observe(&event),
                Some(GenerationStep::End(ended)) => {
                    let finished = ended?;
                    // A client that is gone does not ask any more, so the server is ending.
                    if finished.stop == StopReason::Cancelled {
                        return Err(Failure::shutting_down());
                    }
                    return Ok(Some(AnswerPart::End(Box::new(finished))));
                }
                None => return Ok(None),
            }
        }
    }

    /// Waits for the end of the answer.
    ///
    /// # Errors
    /// If the generation failed.
    pub(super) async fn whole(&mut self) -> Result<Whole, Failure> {
        let mut tokens = Vec::new();
        loop {
            match self.next().await? {
                Some(AnswerPart::Round(round)) => tokens.extend(round.tokens),
                Some(AnswerPart::End(finished)) => {
                    tokens.extend(finished.held.iter().cloned());
                    return Ok(Whole { tokens, finished: *finished });
                }
                None => return Err(lost()),
            }
        }
    }

    /// Returns the prompt tokens that were in the cache.
    pub(super) fn cached_tokens(&self) -> usize {
        // The last token of the prompt runs in the first round, not in prefill.
        self.prompt_tokens.saturating_sub(self.prefilled + 1)
    }

    /// Predicts the speedup over plain decoding at `tok_s` tokens per second. Plain decoding is taken to need the mean
    /// time of the rounds of this answer that drafted nothing. `None` without such rounds.
    pub(super) fn predicted_speedup(&self, tok_s: f64) -> Option<f64> {
        let (ms, rounds) = self.plain;
        let speedup = tok_s * ms / f64::from(rounds) / 1000.0;
        (rounds > 0 && speedup.is_finite()).then_some(speedup)
    }

    fn observe(&mut self, event: &GenerationEvent) {
        match event {
            GenerationEvent::Started { seed, method, .. } => (self.seed, self.method) = (*seed, *method),
            GenerationEvent::Prefill { total, .. } => self.prefilled = *total as usize,
            _ => {}
        }
    }
}

/// The failure of a generation that vanished.
pub(super) fn lost() -> Failure {
    Failure::new(FailureKind::Internal, "The engine ended during the answer. Send the request again.")
}

/// Sets a flag when dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts a request as cancelled if it is dropped before its generation starts.
struct CountIfDropped(Option<Arc<Metrics>>);

impl Drop for CountIfDropped {
    fn drop(&mut self) {
        if let Some(metrics) = &self.0 {
            metrics.record_cancel();
        }
    }
}

/// A tokenised prompt and the compiled format of its answer.
struct Encoded {
    ids: Vec<TokenId>,
    constraint: Option<Arc<dyn Constraint>>,
    /// Splitter of the thoughts in the answer, which has read the prompt. An answer in a format has none.
    thoughts: ThoughtSplitter,
}

/// Limits of an answer that depend on its prompt.
struct AnswerLimits {
    /// Format of the answer.
    format: Option<AnswerFormat>,
    /// Parameter that sets the format of a text.
    format_param: &'static str,
    /// Most tokens of reasoning, without a format.
    thinking_budget: Option<usize>,
}

/// Tokenises a prompt and compiles the format of its answer. Dropping the future abandons a slow chat template.
///
/// # Errors
/// If the prompt is invalid or too long, or the format cannot be followed.
async fn encode(
    server: &AnsweringServer,
    question: AnswerInput,
    thinking: Option<Thinking>,
    limits: AnswerLimits,
) -> Result<Encoded, Failure> {
    on_worker(server, move |encoder, stopped| {
        let mut ids = prompt_ids(encoder, &question, thinking, stopped)?;
        if limits.format.is_some() {
            ids = without_thought(encoder, &question, ids, stopped)?;
        }
        let answer_start = ids.len() - question.begun();
        let AnswerLimits { format, format_param, thinking_budget } = limits;
        let compile = |format: AnswerFormat| {
            let param = match format {
                AnswerFormat::Calls(_) => "tools",
                AnswerFormat::JsonObject | AnswerFormat::JsonSchema(_) => format_param,
            };
            let compiled = encoder.constraint(&format, answer_start);
            compiled.map_err(|error| Failure { param: Some(param.into()), ..Failure::from(error) })
        };
        let constraint = format.map(compile).transpose()?;
        let tokenizer = encoder.tokenizer();
        let thoughts = match constraint.is_some() {
            true => ThoughtSplitter::after("", ""),
            false => thoughts_after(tokenizer, &ids, answer_start),
        };
        let budget = || -> Option<Arc<dyn Constraint>> {
            Some(Arc::new(ThinkingBudget::new(tokenizer, thinking_budget?, ids.len(), &thoughts)?))
        };
        Ok(Encoded { constraint: constraint.or_else(budget), ids, thoughts })
    })
    .await
}

/// Counts the tokens of a prompt, which may be longer than the context.
///
/// # Errors
/// If the prompt is invalid.
pub(super) async fn count_tokens(
    server: &AnsweringServer,
    question: AnswerInput,
    thinking: Option<Thinking>,
) -> Result<usize, Failure> {
    on_worker(server, move |encoder, stopped| match prompt_ids(encoder, &question, thinking, stopped) {
        Err(Error::ContextOverflow { prompt, .. }) => Ok(prompt),
        ids => Ok(ids?.len()),
    })
    .await
}

/// Runs `work` with the encoder of the model on a thread that may block. Dropping the future makes its second argument
/// return true.
async fn on_worker<T: Send + 'static>(
    server: &AnsweringServer,
    work: impl FnOnce(&PromptEncoder, &dyn Fn() -> bool) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let abandoned = SetOnDrop(Arc::default());
    let (encoder, flag) = (server.model.encoder.clone(), abandoned.0.clone());
    let working = spawn_blocking(move || work(&encoder, &|| flag.load(Ordering::Relaxed)));
    working.await.map_err(|_| {
        Failure::new(FailureKind::Internal, "The prompt could not be tokenised. This is a bug in Hunch.")
    })?
}

fn prompt_ids(
    encoder: &PromptEncoder,
    question: &AnswerInput,
    thinking: Option<Thinking>,
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<TokenId>> {
    let (ids, note) = match question {
        AnswerInput::Plain(prompt) => encoder.ids_and_note(prompt, thinking, stopped)?,
        AnswerInput::Tools(chat, begun) => encoder.tool_ids(chat, begun, thinking, stopped)?,
    };
    if let Some(note) = note {
        tracing::info!("{note}");
    }
    Ok(ids)
}

/// Returns the prompt of an answer in a format, which leaves no room for a thought. `ids` is the prompt as its template
/// has it. If that opens a thought, the template is asked for none, and a thought that it opens even so is closed.
fn without_thought(
    encoder: &PromptEncoder,
    question: &AnswerInput,
    ids: Vec<TokenId>,
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<TokenId>> {
    let tokenizer = encoder.tokenizer();
    let opens = |ids: &[TokenId]| thoughts_after(tokenizer, ids, ids.len()).is_thinking();
    if question.begun() > 0 || !opens(&ids) {
        return Ok(ids);
    }
    let mut ids = prompt_ids(encoder, question, Some(Thinking::Off), stopped)?;
    if opens(&ids) {
        let options = EncodeOptions { parse_special: true, add_bos: false };
        ids.extend(tokenizer.encode(THOUGHT_END, options)?);
    }
    Ok(ids)
}

/// Waits for the turn of a request and starts its generation. Returns once the prompt is valid and the engine has
/// begun.
///
/// # Errors
/// If the request is invalid, the queue is full, or the engine fails.
pub(super) async fn start(server: &AnsweringServer, ask: Ask) -> Result<RunningAnswer, Failure> {
    let clock = WallClock::start();
    let Ask { question, mut plan, max_tokens, format, format_param, calling, thinking_budget } = ask;
    let (parser, format, shown) = match calling {
        Some(Calling { parser, format: of_calls, shown }) => (Some(parser), of_calls.or(format), shown),
        None => (None, format, Vec::new()),
    };
    plan.max_tokens = max_tokens.unwrap_or(1);
    plan.validate()?;
    let place = place_in_queue(server)?;
    let begun = question.begun();
    // The place in the queue is taken first, so a slow chat template does not change the order.
    let turn = async { place.turn().await.ok_or_else(Failure::shutting_down) };
    let mut waiting = CountIfDropped(Some(server.metrics.clone()));
    let limits = AnswerLimits { format, format_param, thinking_budget };
    let ready = async {
        let (turn, encoded) = try_join(turn, encode(server, question, plan.thinking, limits)).await?;
        let id = server.next_id();
        Ok::<_, Failure>((turn, encoded, id, hold_engine(&server.engine, id).await?))
    };
    let ready = ready.await;
    waiting.0 = None;
    let (turn, Encoded { ids, constraint, thoughts }, id, hold) = ready?;
    let prompt_tokens = ids.len();
    let parser = parser.map(|parser| parser.after(&thoughts));
    plan.max_tokens = max_tokens.unwrap_or_else(|| server.model.context.saturating_sub(prompt_tokens).max(1));
    let (sender, steps) = unbounded_channel();
    let load = load_plan(server, sender.clone());
    let generation = ServedGeneration {
        id,
        clock,
        plan,
        ids,
        begun,
        constraint,
        shown,
        reader: parser.clone(),
        model: server.model.clone(),
        models: server.models.clone(),
        conversations: server.conversations,
        metrics: server.metrics.clone(),
        client: sender.clone(),
    };
    let work = move |models: &mut Models, stopped: &dyn Fn() -> bool| generation.run(models, stopped);
    let (served, model, metrics) = (server.models.clone(), server.model.clone(), server.metrics.clone());
    let make_room = move |loaded| {
        let make_room = served.has_to_make_room(&model, loaded)?;
        metrics.record_load();
        Ok(make_room)
    };
    let (metrics, queue, began) = (server.metrics.clone(), server.queue.clone(), Instant::now());
    let idle = server.idle.clone();
    let ended = move |result: Result<Finished>| {
        metrics.record(&result);
        queue.record_turn(began.elapsed());
        idle.wake();
        // The engine is released already. The next request may start before this one receives its end.
        drop(turn);
        let _ = sender.send(GenerationStep::End(result));
    };
    server.engine.run_on(hold, load, make_room, work, ended)?;
    let mut answer = RunningAnswer {
        steps,
        number: id,
        prompt_tokens,
        prefilled: 0,
        seed: 0,
        method: server.plan.method,
        parser,
        thoughts,
        plain: (0.0, 0),
    };
    match answer.steps.recv().await {
        Some(GenerationStep::Event(event)) => answer.observe(&event),
        Some(GenerationStep::End(ended)) => return Err(ended.err().map_or_else(lost, Failure::from)),
        None => return Err(lost()),
    }
    Ok(answer)
}

/// Takes the last place in the queue.
///
/// # Errors
/// If the queue is full.
fn place_in_queue(server: &AnsweringServer) -> Result<QueuePlace, Failure> {
    server.queue.enter().ok_or_else(|| {
        let retry_after = server.queue.retry_after();
        let message = format!(
            "The queue is full. Try again in {retry_after} s, or start the server with a larger --queue."
        );
        Failure::new(FailureKind::QueueFull { retry_after }, message)
    })
}

/// The generation of an answer, as the engine runs it.
struct ServedGeneration {
    id: u32,
    clock: WallClock,
    plan: GenerationPlan,
    /// Tokens of the prompt, of which the last `begun` belong to the answer.
    ids: Vec<TokenId>,
    begun: usize,
    constraint: Option<Arc<dyn Constraint>>,
    /// Special tokens whose text belongs to the answer.
    shown: Vec<TokenId>,
    /// Reader of the calls. The answer ends once it has read the last one.
    reader: Option<ToolCallParser>,
    model: Arc<ServedModel>,
    models: Arc<ServedModels>,
    /// Conversations whose caches are kept.
    conversations: usize,
    metrics: Arc<Metrics>,
    /// Receives the events. The generation ends once it is closed.
    client: UnboundedSender<GenerationStep>,
}

impl ServedGeneration {
    /// Generates the answer and sends its events to the client.
    ///
    /// # Errors
    /// If the plan cannot run on the loaded models, or generating fails.
    fn run(mut self, models: &mut Models, stopped: &dyn Fn() -> bool) -> Result<Finished> {
        self.models.complete(&self.model, models, &mut self.plan)?;
        let lengths = (self.ids.len(), self.plan.max_tokens);
        models.set_cache_limits(self.models.cache_limits(models, self.conversations, lengths)?);
        // `true` once the rest of the answer would be left out.
        let is_done = AtomicBool::new(false);
        let cancelled = || stopped() || self.client.is_closed() || is_done.load(Ordering::Relaxed);
        let context = GenerationContext {
            id: self.id,
            clock: &self.clock,
            begun: self.begun,
            dropped: 0,
            cancelled: &cancelled,
            strict_drafts: false,
            template_note: None,
            constraint: self.constraint,
            shown: &self.shown,
        };
        let mut sink = |event: GenerationEvent| {
            self.metrics.observe(&event);
            if let (GenerationEvent::Round(round), Some(reader)) = (&event, &mut self.reader) {
                reader.push(&text_of(&round.tokens));
                is_done.store(reader.is_done(), Ordering::Relaxed);
            }
            // Fails once the client is gone, which ends the generation before its next pass.
            let _ = self.client.send(GenerationStep::Event(event));
        };
        let mut finished = generate(models, &self.ids, &self.plan, &context, &mut sink)?;
        if is_done.load(Ordering::Relaxed) {
            finished.stop = StopReason::EndOfTurn;
        }
        Ok(finished)
    }
}

/// Waits until the engine is free. The window may use it too.
pub(super) async fn hold_engine(engine: &Engine, id: u32) -> Result<EngineHold> {
    loop {
        match engine.hold(id, RunningWork::Answer) {
            Err(Error::Busy(_)) => sleep(ENGINE_POLL).await,
            held => return held,
        }
    }
}

/// Returns the splitter of an answer after a prompt, whose tokens from `answer_start` on belong to the answer.
fn thoughts_after(tokenizer: &Tokenizer, ids: &[TokenId], answer_start: usize) -> ThoughtSplitter {
    let (prompt, begun) = ids.split_at(answer_start);
    let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
    ThoughtSplitter::after(&text_of_ids(tokenizer, end), &text_of_ids(tokenizer, begun))
}

fn text_of_ids(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Joins the texts of tokens.
pub(super) fn text_of(tokens: &[TokenEvent]) -> String {
    tokens.iter().map(|token| token.text.as_str()).collect()
}

/// Returns the plan that loads the model of a request. Loading ends once the client is gone.
fn load_plan(server: &AnsweringServer, client: UnboundedSender<GenerationStep>) -> LoadPlan {
    let go_on = move |_: LoadStep<'_>| match client.is_closed() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    LoadPlan { progress: Some(Arc::new(go_on)), ..server.models.plan(&server.model) }
}
