//! The protocol of Anthropic: `/v1/messages` and `/v1/messages/count_tokens`.

mod tools;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::Event;
use hunch_core::chat::{Role, Thinking};
use hunch_model::text::{
    AnswerFormat, EncodeOptions, ThinkingBudget, ThoughtSplitter, ToolCallParser, ToolPart,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, AnswerInput, Ask, Calling, RunningAnswer};
use super::body::{self, Fields, TextContent, is_nothing};
use super::errors::{Failure, Protocol, json_response};
use super::thinking::{self, split, split_whole};
use super::tools::{AnswerPiece, History, Tools, pieces};
use super::{AnsweringServer, Server, find_model, hunch_field, sse};
use crate::event::{RoundEvent, StopReason, TokenEvent};
use crate::generate::{Finished, GenerationPlan};

#[derive(Deserialize)]
struct ConversationFields {
    model: Option<String>,
    system: Option<TextContent>,
    messages: Vec<tools::Message>,
}

impl ConversationFields {
    const NAMES: [&str; 3] = ["model", "system", "messages"];
}

#[derive(Deserialize)]
struct MessageSettings {
    max_tokens: usize,
    #[serde(default)]
    stop_sequences: Vec<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    hunch: bool,
}

impl MessageSettings {
    const NAMES: [&str; 4] = ["max_tokens", "stop_sequences", "stream", "hunch"];
}

#[derive(Deserialize)]
struct OutputFields {
    output_config: Option<OutputConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutputConfig {
    format: Option<TextFormat>,
    /// Effort of reasoning.
    effort: Option<String>,
}

#[derive(Deserialize)]
struct Reasoning {
    thinking: Option<ThinkingSetting>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ThinkingSetting {
    Disabled {},
    Adaptive {
        /// Form of thoughts. They are always sent as they are.
        #[serde(default, rename = "display")]
        _display: Option<String>,
    },
    Enabled {
        budget_tokens: usize,
        #[serde(default, rename = "display")]
        _display: Option<String>,
    },
}

/// Reasoning that a request asks for.
#[derive(Default)]
struct WantedReasoning {
    /// Switch of the chat template. `None` leaves it to the server.
    thinking: Option<Thinking>,
    /// Most tokens of reasoning.
    budget: Option<usize>,
    /// `true` to send thoughts as blocks of their own.
    has_blocks: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    JsonSchema { schema: Value },
}

/// Answers `/v1/messages`.
pub(super) async fn messages(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let (server, question, tools) = question(server, &mut fields).await?;
    let settings: MessageSettings = fields.take(&MessageSettings::NAMES)?;
    refuse_unsupported(&mut fields)?;
    let (format, wanted) = output(&server, &mut fields, Some(settings.max_tokens))?;
    let plan = body::plan(&server, &mut fields, settings.stop_sequences)?;
    fields.finish()?;
    let plan = GenerationPlan { thinking: wanted.thinking.or(plan.thinking), ..plan };
    let calling = tools.calling(&server, format.as_ref())?;
    if let Some(budget) = wanted.budget {
        let has_format = format.is_some() || calling.as_ref().is_some_and(Calling::has_format);
        check_thoughts(&server, budget, has_format)?;
    }
    let reading = AnswerReading {
        // Thoughts are split off before calls are read.
        unthinking: calling.as_ref().filter(|_| wanted.has_blocks).map(|calling| calling.parser.clone()),
        has_blocks: wanted.has_blocks,
        is_new: question.begun() == 0,
    };
    let id = server.response_id("msg");
    let ask = Ask {
        question,
        plan,
        max_tokens: Some(settings.max_tokens),
        format,
        format_param: "output_config.format",
        calling,
        thinking_budget: wanted.budget,
    };
    if settings.stream {
        let writer = MessageEvents::new(server.clone(), id, settings.hunch, reading);
        return sse::respond(server, ask, writer).await;
    }
    let mut answer = answer::start(&server, ask).await?;
    let Readers { parser, thoughts, opening } = reading.readers(&mut answer);
    let whole = answer.whole().await?;
    let (thought, text) = split_whole(thoughts, whole.text());
    let mut pieces = match parser {
        Some(parser) => pieces(parser, &text),
        None => vec![AnswerPiece::Text(text)],
    };
    if let Some(AnswerPiece::Text(first)) = pieces.first_mut() {
        first.insert_str(0, opening);
    }
    let called = pieces.iter().any(|piece| matches!(piece, AnswerPiece::Call { .. }));
    let (reason, sequence) = stop(&whole.finished, called);
    let mut response = message(&server, &id, tools::content(&server, thought, pieces));
    response["stop_reason"] = json!(reason);
    response["stop_sequence"] = json!(sequence);
    response["usage"] = usage(&answer, whole.finished.stats.generated_tokens);
    if settings.hunch {
        response["hunch"] = hunch_field::of_whole(&answer, &whole);
    }
    Ok(json_response(StatusCode::OK, &response))
}

/// Answers `/v1/messages/count_tokens`.
pub(super) async fn count_tokens(server: Arc<Server>, request: Request) -> Result<Response, Failure> {
    let mut fields = body::read(&server, request).await?;
    let (server, question, _) = question(server, &mut fields).await?;
    refuse_unsupported(&mut fields)?;
    let (_, wanted) = output(&server, &mut fields, None)?;
    fields.finish()?;
    let thinking = wanted.thinking.or(server.plan.thinking);
    let count = answer::count_tokens(&server, question, thinking).await?;
    Ok(json_response(StatusCode::OK, &json!({ "input_tokens": count })))
}

/// Reads the format of the answer and the reasoning before it.
fn output(
    server: &AnsweringServer,
    fields: &mut Fields,
    max_tokens: Option<usize>,
) -> Result<(Option<AnswerFormat>, WantedReasoning), Failure> {
    let OutputFields { output_config } = fields.take(&["output_config"])?;
    let Reasoning { thinking } = fields.take(&["thinking"])?;
    let (format, effort) = output_config.map(|config| (config.format, config.effort)).unwrap_or_default();
    let format = format.map(|TextFormat::JsonSchema { schema }| AnswerFormat::JsonSchema(schema));
    let effort = match effort {
        None => None,
        Some(name) => {
            Some(thinking::effort(&name).filter(|effort| *effort != Thinking::Off).ok_or_else(|| {
                let message = format!("`output_config.effort` is \"{name}\". Choose low, medium or high.");
                Failure::of_param("output_config.effort", message)
            })?)
        }
    };
    let switches = server.model.encoder.thinking_switches();
    // Effort is also how long an answer is. A model without levels writes its usual ones.
    let effort = effort.filter(|_| switches.effort);
    let (thinking, budget) = match thinking {
        None => return Ok((format, WantedReasoning { thinking: effort, ..WantedReasoning::default() })),
        Some(ThinkingSetting::Disabled {}) => (Thinking::Off, None),
        Some(ThinkingSetting::Adaptive { .. }) => (effort.unwrap_or(Thinking::On), None),
        Some(ThinkingSetting::Enabled { budget_tokens, .. }) => {
            (effort.unwrap_or(Thinking::On), Some(budget_tokens))
        }
    };
    let has_blocks = thinking != Thinking::Off;
    let thinking = thinking::supported(server, Some(thinking), "thinking")?;
    if let Some(budget) = budget {
        check_budget(budget, max_tokens)?;
    }
    Ok((format, WantedReasoning { thinking, budget, has_blocks }))
}

/// Name of the limit of the reasoning.
const BUDGET: &str = "thinking.budget_tokens";

/// Checks that a limit of the reasoning leaves room for an answer.
fn check_budget(budget: usize, max_tokens: Option<usize>) -> Result<(), Failure> {
    if budget == 0 || max_tokens.is_some_and(|max_tokens| budget >= max_tokens) {
        let message = format!("`{BUDGET}` is {budget}. Choose a number above 0 and below `max_tokens`.");
        return Err(Failure::of_param(BUDGET, message));
    }
    Ok(())
}

/// Checks that the answer can have thoughts, and that these can be limited.
fn check_thoughts(server: &AnsweringServer, budget: usize, has_format: bool) -> Result<(), Failure> {
    let refuse = |message: &str| Err(Failure::of_param(BUDGET, message));
    if has_format {
        return refuse(
            "An answer in a format, or with a call that is required, has no thoughts, so it cannot have \
             `thinking.budget_tokens`. Set `thinking.type` to disabled, or let the answer be free.",
        );
    }
    let thoughts = ThoughtSplitter::after("", "");
    if ThinkingBudget::new(server.model.encoder.tokenizer(), budget, 0, &thoughts).is_none() {
        return refuse(
            "The thoughts of this model have no end that can be written for it. \
             Set `thinking.type` to adaptive, which has no budget.",
        );
    }
    Ok(())
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), Failure> {
    fields.ignore(&["metadata", "service_tier", "cache_control"]);
    fields.refuse("mcp_servers", is_nothing, "Remove it.")?;
    fields.refuse("context_management", only_clears, "Use edits that clear thoughts or results of tools.")?;
    fields.refuse("container", is_nothing, "Remove it.")
}

/// Returns whether edits of the context only clear it. Chat templates leave out earlier thoughts, and old results of tools
/// are cleared to save tokens.
fn only_clears(management: &Value) -> bool {
    let clears = |edit: &Value| {
        let kind = edit["type"].as_str().unwrap_or_default();
        kind.starts_with("clear_thinking_") || kind.starts_with("clear_tool_uses_")
    };
    is_nothing(management) || management["edits"].as_array().is_some_and(|edits| edits.iter().all(clears))
}

/// Reads model, system prompt, tools and messages. A last message of the assistant is the start of the answer.
async fn question(
    server: Arc<Server>,
    fields: &mut Fields,
) -> Result<(AnsweringServer, AnswerInput, Tools), Failure> {
    let conversation: ConversationFields = fields.take(&ConversationFields::NAMES)?;
    let server = find_model(server, conversation.model).await?;
    let mut history = History::default();
    if let Some(system) = conversation.system {
        history.text(Role::System, system.into_text("system")?);
    }
    if conversation.messages.is_empty() {
        return Err(Failure::of_param("messages", "`messages` is empty. Send at least one message."));
    }
    for (i, message) in conversation.messages.into_iter().enumerate() {
        tools::add_message(&mut history, i, message)?;
    }
    let begun = match history.take_begun() {
        Some(begun) => {
            let options = EncodeOptions { parse_special: false, add_bos: false };
            server.model.encoder.tokenizer().encode(&begun, options)?
        }
        None => Vec::new(),
    };
    let tools = tools::read(fields)?;
    let question = tools.question(history, begun);
    Ok((server, question, tools))
}

/// Returns the reason for the end, and the stop sequence that appeared. `called` is `true` if the answer has calls.
fn stop(finished: &Finished, called: bool) -> (&'static str, Option<&str>) {
    match finished.stop {
        StopReason::EndOfTurn if called => ("tool_use", None),
        StopReason::MaxTokens => ("max_tokens", None),
        StopReason::ContextFull => ("model_context_window_exceeded", None),
        StopReason::StopString => ("stop_sequence", finished.stop_string.as_deref()),
        StopReason::EndOfTurn | StopReason::Cancelled => ("end_turn", None),
    }
}

fn usage(answer: &RunningAnswer, generated: u32) -> Value {
    json!({ "input_tokens": answer.prompt_tokens, "output_tokens": generated })
}

fn message(server: &AnsweringServer, id: &str, content: Value) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": server.model.name,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// Block of content that is being written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    None,
    Thought,
    Text,
    Call,
}

/// Opening of a thought within text.
const OPENING: &str = "<think>\n";

/// Settings of a request that decide how its answer is read.
struct AnswerReading {
    /// Reader of calls in an answer whose thoughts are blocks of their own.
    unthinking: Option<ToolCallParser>,
    /// `true` if thoughts are blocks of their own.
    has_blocks: bool,
    /// `true` if the request has no part of the answer.
    is_new: bool,
}

/// Readers of an answer, before its first token.
#[derive(Default)]
struct Readers {
    /// Reader of calls, if the answer may have some.
    parser: Option<ToolCallParser>,
    /// Splitter of thoughts, if they are blocks of their own.
    thoughts: Option<ThoughtSplitter>,
    /// Text before the answer's own.
    opening: &'static str,
}

impl AnswerReading {
    fn readers(self, answer: &mut RunningAnswer) -> Readers {
        let parser = self.unthinking.or(answer.parser.take());
        let thoughts = self.has_blocks.then(|| answer.thoughts.clone());
        // The prompt has the opening of a thought whose end would be in the text.
        let is_opened = self.is_new && thoughts.is_none() && answer.thoughts.is_thinking();
        Readers { parser, thoughts, opening: if is_opened { OPENING } else { "" } }
    }
}

/// Writes an answer as the events of a message.
struct MessageEvents {
    server: AnsweringServer,
    id: String,
    has_hunch_field: bool,
    /// Settings of the readers, until the answer begins.
    reading: Option<AnswerReading>,
    /// Text before the answer's own.
    opening: &'static str,
    /// Splitter of thoughts, if they are blocks of their own.
    thoughts: Option<ThoughtSplitter>,
    /// Reader of calls, if the answer may have some.
    parser: Option<ToolCallParser>,
    open: OpenBlock,
    /// Number of the open block, or of the next one.
    index: usize,
    /// Tokens whose origins were not sent yet, because no text came of them.
    unsent: Vec<TokenEvent>,
}

impl MessageEvents {
    fn new(server: AnsweringServer, id: String, has_hunch_field: bool, reading: AnswerReading) -> Self {
        let Readers { parser, thoughts, opening } = Readers::default();
        Self {
            server,
            id,
            has_hunch_field,
            reading: Some(reading),
            opening,
            thoughts,
            parser,
            open: OpenBlock::None,
            index: 0,
            unsent: Vec::new(),
        }
    }

    /// Begins a block of content, and ends the one before.
    fn begin_block(&mut self, kind: OpenBlock, block: &Value, events: &mut Vec<Value>) {
        self.end_block(events);
        self.open = kind;
        events.push(json!({ "type": "content_block_start", "index": self.index, "content_block": block }));
    }

    fn end_block(&mut self, events: &mut Vec<Value>) {
        if self.open == OpenBlock::Thought {
            // Thoughts are not signed: no one checks them when they come back.
            events.push(self.delta(json!({ "type": "signature_delta", "signature": "" })));
        }
        if self.open != OpenBlock::None {
            events.push(json!({ "type": "content_block_stop", "index": self.index }));
            self.index += 1;
            self.open = OpenBlock::None;
        }
    }

    fn text(&mut self, text: &str, events: &mut Vec<Value>) {
        if self.open != OpenBlock::Text {
            self.begin_block(OpenBlock::Text, &json!({ "type": "text", "text": "" }), events);
        }
        events.push(self.delta(json!({ "type": "text_delta", "text": text })));
    }

    fn thought(&mut self, text: &str, events: &mut Vec<Value>) {
        if self.open != OpenBlock::Thought {
            let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
            self.begin_block(OpenBlock::Thought, &block, events);
        }
        events.push(self.delta(json!({ "type": "thinking_delta", "thinking": text })));
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.index, "delta": delta })
    }

    /// Adds the events of parts of an answer with calls.
    fn parts(&mut self, parts: Vec<ToolPart>, events: &mut Vec<Value>) {
        for part in parts {
            match part {
                ToolPart::Text(text) => self.text(&text, events),
                ToolPart::Begin(name) => {
                    let block = tools::begun_call(&self.server, &name);
                    self.begin_block(OpenBlock::Call, &block, events);
                }
                ToolPart::Arguments(json) => {
                    events.push(self.delta(json!({ "type": "input_json_delta", "partial_json": json })));
                }
                ToolPart::End { .. } => self.end_block(events),
            }
        }
    }

    /// Returns the events of some tokens. With `last`, of all text that is held back too.
    fn tokens(&mut self, tokens: &[TokenEvent], last: bool) -> Vec<Value> {
        let mut text = answer::text_of(tokens);
        let mut events = Vec::new();
        if let Some(mut thoughts) = self.thoughts.take() {
            let (thought, said) = split(&mut thoughts, &text, last);
            if !thought.is_empty() {
                self.thought(&thought, &mut events);
            }
            text = said;
            self.thoughts = Some(thoughts);
        }
        match self.parser.take() {
            Some(mut parser) => {
                let mut parts = parser.push(&text);
                if last {
                    parts.extend(parser.finish());
                }
                self.parser = Some(parser);
                self.parts(parts, &mut events);
            }
            None if text.is_empty() && (!self.has_hunch_field || tokens.is_empty()) => {}
            None if text.is_empty() && self.thoughts.is_some() => {}
            None => self.text(&text, &mut events),
        }
        events
    }

    /// Adds the origins of tokens to the first delta. Without one, they wait for the next.
    fn add_origins(
        &mut self,
        tokens: &[TokenEvent],
        round: Option<(&RunningAnswer, &RoundEvent)>,
        events: &mut [Value],
    ) {
        if !self.has_hunch_field {
            return;
        }
        self.unsent.extend_from_slice(tokens);
        let Some(delta) = events.iter_mut().find(|event| event["type"] == "content_block_delta") else {
            return;
        };
        let tokens = std::mem::take(&mut self.unsent);
        delta["hunch"] = match round {
            Some((answer, round)) => hunch_field::of_tokens_after(&tokens, answer, round),
            None => hunch_field::of_tokens(&tokens),
        };
    }
}

impl sse::EventWriter for MessageEvents {
    fn begin(&mut self, answer: &mut RunningAnswer) -> Vec<Event> {
        if let Some(reading) = self.reading.take() {
            let Readers { parser, thoughts, opening } = reading.readers(answer);
            (self.parser, self.thoughts, self.opening) = (parser, thoughts, opening);
        }
        let mut message = message(&self.server, &self.id, json!([]));
        message["usage"] = usage(answer, 0);
        let mut events = vec![json!({ "type": "message_start", "message": message })];
        // An answer with calls or thoughts may begin with another block.
        if self.parser.is_none() && self.thoughts.is_none() {
            self.begin_block(OpenBlock::Text, &json!({ "type": "text", "text": "" }), &mut events);
        }
        if !self.opening.is_empty() {
            self.text(self.opening, &mut events);
        }
        events.iter().map(sse::typed).collect()
    }

    fn round(&mut self, answer: &RunningAnswer, round: &RoundEvent) -> Vec<Event> {
        let mut events = self.tokens(&round.tokens, false);
        self.add_origins(&round.tokens, Some((answer, round)), &mut events);
        events.iter().map(sse::typed).collect()
    }

    fn end(&mut self, answer: &RunningAnswer, finished: &Finished) -> Vec<Event> {
        let mut events = self.tokens(&finished.held, true);
        self.add_origins(&finished.held, None, &mut events);
        self.end_block(&mut events);
        let called = self.parser.as_ref().is_some_and(ToolCallParser::has_called);
        let (reason, sequence) = stop(finished, called);
        let mut last = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(answer, finished.stats.generated_tokens),
        });
        if self.has_hunch_field {
            last["hunch"] = hunch_field::figures(answer, finished);
            if !self.unsent.is_empty() {
                let rest = hunch_field::of_tokens(&self.unsent);
                last["hunch"]["origins"] = rest["origins"].clone();
                last["hunch"]["texts"] = rest["texts"].clone();
            }
        }
        events.extend([last, json!({ "type": "message_stop" })]);
        events.iter().map(sse::typed).collect()
    }

    fn failed(&mut self, failure: &Failure) -> Vec<Event> {
        vec![sse::typed(&failure.body(Protocol::Anthropic))]
    }
}
