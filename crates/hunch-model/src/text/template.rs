//! Chat templates: rendering a conversation to the prompt format of a model.
//!
//! The template of the model is used if it works, otherwise one of two built-in templates. The result
//! says which one was used and why. The template engine is in the modules below, encoding in
//! `tokenizer`.

pub mod child;
mod environment;
mod json;
mod renderer;
mod time;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::text::harmony::without_reasoning;
use crate::text::thinking::{THOUGHT_MARKERS, ThoughtSplitter};
use crate::text::tools::{ToolCall, ToolChat, ToolForm, ToolMessage, map_fields, map_strings};
use crate::text::{EncodeOptions, Tokenizer};
use child::{RenderFailure, RenderingChild};
use hunch_core::chat::{ChatMessage, Role, Thinking};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use renderer::{MAX_SOURCE, Renderer, Request, role_name};

/// Consecutive crashes of the child after which a template is no longer tried.
///
/// More than 1, because the first crash may have another cause.
const MAX_CRASHES: u32 = 2;
/// Time after which a template that crashed too often is tried again. A busy machine may have been the cause.
const PAUSE_AFTER_CRASHES: Duration = Duration::from_secs(60);
/// Seconds of a day, the precision of the time in prompts.
const DAY: i64 = 24 * 60 * 60;

/// Template used for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// Template of the model file.
    Model,
    /// Built-in ChatML (`<|im_start|>role ... <|im_end|>`), for models whose end token is `<|im_end|>`.
    ChatMl,
    /// Built-in paragraphs with `User:` and `Assistant:`, for all other models.
    Plain,
}

/// Rendered conversation, to be encoded with special tokens parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// Text of the prompt. Contains the beginning-of-text token if the template writes it.
    pub text: String,
    /// Template that was used.
    pub origin: TemplateOrigin,
    /// Note for the user: why the template of the model was not used, or that the system message was
    /// moved into the first user message.
    pub note: Option<String>,
}

/// Switches for reasoning that a template reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingSwitches {
    /// On and off.
    pub switch: bool,
    /// Low, medium and high effort.
    pub effort: bool,
}

impl ThinkingSwitches {
    /// Returns the choices that these switches allow, none without a switch.
    pub fn choices(self) -> Vec<Thinking> {
        let switch = [Thinking::Off, Thinking::On].into_iter().filter(|_| self.switch);
        let effort = [Thinking::Low, Thinking::Medium, Thinking::High].into_iter().filter(|_| self.effort);
        switch.chain(effort).collect()
    }
}

/// Chat template of a model, with a built-in fallback.
#[derive(Debug)]
pub struct ChatTemplate {
    source: Option<String>,
    /// Reason why the template of the file is not used at all.
    rejection: Option<String>,
    bos: String,
    eos: String,
    time: TemplateTime,
    state: Mutex<RenderState>,
}

/// Time of `strftime_now` in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateTime {
    /// The function is undefined. Templates that allow for it use their own date.
    None,
    /// A fixed time in seconds since 1970.
    Fixed(i64),
    /// Start of the current day, so that the prompts of a day begin alike. The day is in UTC, so that a prompt does not
    /// depend on the time zone.
    Today,
}

impl TemplateTime {
    /// Returns the seconds since 1970.
    fn seconds(self) -> Option<i64> {
        match self {
            Self::None => None,
            Self::Fixed(seconds) => Some(seconds),
            Self::Today => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
                i64::try_from(now.as_secs()).ok().map(|seconds| seconds - seconds % DAY)
            }
        }
    }
}

/// Renderers of a template, and its crashes.
#[derive(Debug, Default)]
struct RenderState {
    /// Child process, if a program was offered.
    child: Option<RenderingChild>,
    /// Renderer in this process, if no program was offered.
    renderer: Renderer,
    /// Number of consecutive crashes of the child.
    crashes: u32,
    /// Reason of the last crash.
    crash: String,
    /// Time of the last crash.
    crashed_at: Option<Instant>,
}

impl ChatTemplate {
    /// Creates a template from its source and the texts of the beginning-of-text and end-of-text tokens.
    ///
    /// The texts are empty if the model has no such token. The source is parsed when it is rendered.
    pub fn from_source(source: Option<&str>, bos: &str, eos: &str) -> Self {
        let (source, rejection) = match source.filter(|source| !source.trim().is_empty()) {
            None => (None, None),
            Some(long) if long.len() > MAX_SOURCE => (
                None,
                Some(format!(
                    "The model's chat template has {} bytes, and the limit is {MAX_SOURCE}, so a built-in \
                     one is used.",
                    long.len()
                )),
            ),
            Some(source) => (Some(source.to_owned()), None),
        };
        Self {
            source,
            rejection,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            time: TemplateTime::None,
            state: Mutex::default(),
        }
    }

    /// Creates the template of a tokeniser's model file. Its prompts have the current date.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<TokenId>| id.map_or("", |id| tokenizer.token_text(id));
        let mut template =
            Self::from_source(tokenizer.chat_template(), text(tokenizer.bos()), text(tokenizer.eos()));
        template.time = TemplateTime::Today;
        template
    }

    /// Sets a fixed time for `strftime_now`, in seconds since 1970.
    pub fn set_time(&mut self, unix_seconds: i64) {
        self.time = TemplateTime::Fixed(unix_seconds);
    }

    /// Renders a short sample conversation and returns the note for the user, if any.
    pub fn trial(&self) -> Option<String> {
        let message = |role, content: &str| ChatMessage { role, content: content.into() };
        let messages =
            [message(Role::User, "Hi"), message(Role::Assistant, "Hello"), message(Role::User, "Bye")];
        let rendered = self.render(&messages, true, None, &|| false);
        rendered.map_or_else(|error| Some(error.to_string()), |rendered| rendered.note)
    }

    /// Renders a conversation. With `add_generation_prompt`, it ends where the answer begins. `thinking` sets the
    /// switch for reasoning, if the template has one.
    ///
    /// Templates run in a child process if this program offers one ([`child::offer`]). If a template
    /// rejects the messages, it is rendered again with simpler ones. The system message is put at the start
    /// of the first user message, or neighbouring messages of one role become one.
    /// [`RenderedPrompt::note`] says so.
    ///
    /// The built-in template is used if the template still fails, takes longer than 2 s, or crashes the
    /// child. [`RenderedPrompt::note`] then has the reason. It is also used, without a note, if
    /// `cancelled` returns `true`, which is polled every 10 ms.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if there are no messages.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        thinking: Option<Thinking>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<RenderedPrompt> {
        if messages.is_empty() {
            return Err(Error::invalid("The conversation is empty. Write a message first."));
        }
        let built_in = |note| Ok(self.built_in(messages, add_generation_prompt, note));
        if self.source.is_none() {
            return built_in(self.rejection.clone());
        }
        let all: Vec<ToolMessage> = messages.iter().cloned().map(ToolMessage::Text).collect();
        match self.render_model(&all, &[], add_generation_prompt, thinking, cancelled) {
            Ok((text, note)) => Ok(RenderedPrompt { text, origin: TemplateOrigin::Model, note }),
            Err(RenderFailure::Cancelled) => built_in(None),
            Err(RenderFailure::Crashed(problem) | RenderFailure::Rejected(problem)) => {
                built_in(Some(format!(
                    "The model's chat template failed, so a built-in one is used: {}.",
                    problem.trim_end_matches('.')
                )))
            }
        }
    }

    /// Renders messages with the template of the model. Also returns a note, if it accepted simpler messages only.
    fn render_model(
        &self,
        messages: &[ToolMessage],
        tools: &[Value],
        add_generation_prompt: bool,
        thinking: Option<Thinking>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(String, Option<String>), RenderFailure> {
        let request = |messages: Vec<ToolMessage>| Request {
            source: self.source.clone().unwrap_or_default(),
            bos: self.bos.clone(),
            eos: self.eos.clone(),
            time: self.time.seconds(),
            messages,
            tools: tools.to_vec(),
            add_generation_prompt,
            thinking,
            variables: false,
        };
        let problem = match self.render_template(&request(messages.to_vec()), cancelled) {
            Ok(text) => return Ok((text, None)),
            Err(RenderFailure::Rejected(problem)) => problem,
            Err(failure) => return Err(failure),
        };
        for (messages, note) in simpler(messages) {
            match self.render_template(&request(messages), cancelled) {
                Ok(text) => return Ok((text, Some(note))),
                Err(RenderFailure::Cancelled) => return Err(RenderFailure::Cancelled),
                Err(_) => {}
            }
        }
        Err(RenderFailure::Rejected(problem))
    }

    /// Renders and encodes a conversation with tools, as [`ids`](Self::ids) does. No built-in template replaces that of
    /// the model, because none has tools.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the template fails, [`Error::Stopped`] if it was cancelled, and see
    /// [`Tokenizer::encode`].
    pub fn tool_ids(
        &self,
        tokenizer: &Tokenizer,
        chat: &ToolChat,
        thinking: Option<Thinking>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        let tools: Vec<Value> = chat.tools.iter().map(|tool| tool.for_template()).collect();
        let mut texts = Vec::new();
        for tool in &tools {
            collect_strings(tool, &mut texts);
        }
        for message in &chat.messages {
            texts.push(message.content());
            if let ToolMessage::Calls { calls, .. } = message {
                for (name, value) in calls.iter().flat_map(|call| &call.arguments) {
                    texts.push(name);
                    collect_strings(value, &mut texts);
                }
            }
        }
        let literals = tokenizer.literals(texts.into_iter())?;
        let mask = |text: &str| literals.mask(text, &[]);
        // Templates with channels do not search for our markers of reasoning in the answers of the model.
        let has_channels = tokenizer.has_channels();
        let answer = |text: &str| {
            literals.mask(if has_channels { without_reasoning(text) } else { text }, &THOUGHT_MARKERS)
        };
        let masked = |message: &ToolMessage| match message {
            ToolMessage::Text(ChatMessage { role, content }) => {
                let content = if *role == Role::Assistant { answer(content) } else { mask(content) };
                ToolMessage::Text(ChatMessage { role: *role, content })
            }
            ToolMessage::Calls { content, calls } => {
                let masked = |call: &ToolCall| ToolCall {
                    name: call.name.clone(),
                    arguments: map_fields(&call.arguments, &mask),
                };
                ToolMessage::Calls { content: answer(content), calls: calls.iter().map(masked).collect() }
            }
            ToolMessage::Result { call, content } => {
                ToolMessage::Result { call: *call, content: mask(content) }
            }
        };
        let messages: Vec<ToolMessage> = chat.messages.iter().map(masked).collect();
        let tools: Vec<Value> = tools.iter().map(|tool| map_strings(tool, &mask)).collect();
        let rendered = self.render_model(&messages, &tools, true, thinking, cancelled);
        let (text, note) = rendered.map_err(|failure| match failure {
            RenderFailure::Cancelled => Error::Stopped,
            RenderFailure::Crashed(problem) | RenderFailure::Rejected(problem) => Error::invalid(format!(
                "The chat template of this model cannot write this conversation with tools: {}. Change the \
                 messages, or remove `tools`.",
                problem.trim_end_matches('.')
            )),
        })?;
        let options = EncodeOptions { parse_special: true, add_bos: true };
        Ok((tokenizer.encode_with_literals(&text, options, &literals, cancelled)?, note))
    }

    /// Returns the form in which the model writes calls of tools. Returns `None` if the template could not be run, which
    /// may be temporary.
    ///
    /// # Errors
    /// The reason, if the template has no tools, or a form that is not supported.
    pub fn tool_form(&self) -> Option<Result<ToolForm, String>> {
        let remedy = "Remove `tools`, or load another model.";
        let form = self.source.as_deref().and_then(ToolForm::of_template);
        // A template of Phi reads the tools from the system message.
        if form != Some(ToolForm::Phi) && !self.variables()?.iter().any(|name| name == "tools") {
            return Some(Err(format!("The chat template of this model has no tools. {remedy}")));
        }
        Some(form.ok_or_else(|| {
            format!(
                "The chat template of this model has tools, but its form of calls is not supported. {remedy}"
            )
        }))
    }

    /// Renders and encodes a conversation up to the start of the next answer.
    ///
    /// Returns the token ids and the note for the user. Control tokens in the text of a message stay
    /// text. Only the template can produce control tokens. If `cancelled` returns `true`, rendering and
    /// encoding end early, and the tokens are useless.
    ///
    /// # Errors
    /// See [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn ids(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        thinking: Option<Thinking>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        // Templates with channels do not search for our markers of reasoning in the answers of the model.
        let bare: Vec<ChatMessage>;
        let messages = if tokenizer.has_channels() {
            bare = messages.iter().map(without_reasoning_of).collect();
            &bare
        } else {
            messages
        };
        let literals = tokenizer.literals(messages.iter().map(|message| message.content.as_str()))?;
        let masked: Vec<ChatMessage> = messages
            .iter()
            .map(|message| {
                // Templates search for the reasoning in the answers of the model.
                let kept: &[&str] = if message.role == Role::Assistant { &THOUGHT_MARKERS } else { &[] };
                ChatMessage { role: message.role, content: literals.mask(&message.content, kept) }
            })
            .collect();
        let RenderedPrompt { text, note, .. } = self.render(&masked, true, thinking, cancelled)?;
        let options = EncodeOptions { parse_special: true, add_bos: true };
        Ok((tokenizer.encode_with_literals(&text, options, &literals, cancelled)?, note))
    }

    /// Returns which switches for reasoning the template reads, none if it cannot be parsed. Returns `None` if it could
    /// not be run, which may be temporary.
    pub fn thinking_switches(&self) -> Option<ThinkingSwitches> {
        let names = self.variables()?;
        let reads = |name: &str| names.iter().any(|read| read == name);
        Some(ThinkingSwitches {
            switch: ["enable_thinking", "thinking", "thinking_budget"].into_iter().any(reads),
            effort: reads("reasoning_effort"),
        })
    }

    /// Returns whether answers are thoughts even if the reasoning is switched off. Then the template has only levels, or
    /// it opens a thought whatever its switches say. A model that begins a thought by itself is not noticed. Returns `None`
    /// if it could not be run, which may be temporary.
    pub fn always_thinks(&self) -> Option<bool> {
        let ThinkingSwitches { switch, effort } = self.thinking_switches()?;
        if effort && !switch {
            return Some(true);
        }
        let question = [ToolMessage::Text(ChatMessage { role: Role::User, content: "Hi".into() })];
        match self.render_model(&question, &[], true, Some(Thinking::Off), &|| false) {
            Ok((text, _)) => Some(ThoughtSplitter::after(&text, "").is_thinking()),
            Err(RenderFailure::Rejected(_)) => Some(false),
            Err(RenderFailure::Crashed(_) | RenderFailure::Cancelled) => None,
        }
    }

    /// Returns the names of the variables that the template reads, none if it cannot be parsed. Returns `None` if it could
    /// not be run.
    fn variables(&self) -> Option<Vec<String>> {
        let Some(source) = &self.source else { return Some(Vec::new()) };
        let request = Request {
            source: source.clone(),
            bos: String::new(),
            eos: String::new(),
            time: None,
            messages: Vec::new(),
            tools: Vec::new(),
            add_generation_prompt: true,
            thinking: None,
            variables: true,
        };
        match self.render_template(&request, &|| false) {
            Ok(names) => Some(names.lines().map(str::to_owned).collect()),
            Err(RenderFailure::Rejected(_)) => Some(Vec::new()),
            Err(RenderFailure::Crashed(_) | RenderFailure::Cancelled) => None,
        }
    }

    fn render_template(
        &self,
        request: &Request,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<String, RenderFailure> {
        let mut state = self.state.lock();
        let is_paused = state.crashed_at.is_some_and(|at| at.elapsed() < PAUSE_AFTER_CRASHES);
        if state.crashes >= MAX_CRASHES && is_paused {
            return Err(RenderFailure::Crashed(state.crash.clone()));
        }
        let Some(program) = child::program() else {
            return state.renderer.render(request).map_err(RenderFailure::Rejected);
        };
        let child = state.child.take().map_or_else(|| RenderingChild::start(program, cancelled), Ok);
        let (child, rendered) = match child {
            Ok(mut child) => {
                let rendered = child.render(request, cancelled);
                (Some(child), rendered)
            }
            Err(failure) => (None, Err(failure)),
        };
        match &rendered {
            // A child that does not start counts as a crash, because the next start may take as long.
            Err(RenderFailure::Crashed(problem)) => {
                tracing::info!("The chat template of the model failed: {problem}");
                state.crashes += 1;
                state.crash.clone_from(problem);
                state.crashed_at = Some(Instant::now());
            }
            // A cancelled child is still busy, so it is dropped.
            Err(RenderFailure::Cancelled) => {}
            Ok(_) | Err(RenderFailure::Rejected(_)) => {
                state.child = child;
                state.crashes = 0;
            }
        }
        rendered
    }

    fn built_in(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        note: Option<String>,
    ) -> RenderedPrompt {
        let chat_ml = self.eos == "<|im_end|>";
        let mut text = String::new();
        for message in messages {
            let content = &message.content;
            text += &match (chat_ml, message.role) {
                (true, role) => format!("<|im_start|>{}\n{content}<|im_end|>\n", role_name(role)),
                (false, Role::System) => format!("{content}\n\n"),
                (false, Role::User) => format!("User: {content}\n\n"),
                (false, Role::Assistant) => format!("Assistant: {content}{}\n\n", self.eos),
            };
        }
        if add_generation_prompt {
            text += if chat_ml { "<|im_start|>assistant\n" } else { "Assistant:" };
        }
        let origin = if chat_ml { TemplateOrigin::ChatMl } else { TemplateOrigin::Plain };
        RenderedPrompt { text, origin, note }
    }
}

/// Returns a message without reasoning, if it is an answer.
fn without_reasoning_of(message: &ChatMessage) -> ChatMessage {
    match message.role {
        Role::Assistant => {
            ChatMessage { content: without_reasoning(&message.content).to_owned(), role: message.role }
        }
        _ => message.clone(),
    }
}

/// Adds every string of a value to `texts`, names of fields included.
fn collect_strings<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, texts)),
        Value::Object(fields) => {
            for (name, value) in fields {
                texts.push(name);
                collect_strings(value, texts);
            }
        }
        _ => {}
    }
}

/// Returns simpler forms of messages that a template rejected, each with a note on the difference.
fn simpler(messages: &[ToolMessage]) -> Vec<(Vec<ToolMessage>, String)> {
    const MOVED: &str =
        "The model does not support system messages, so the system message was put before the first message.";
    const JOINED: &str =
        "The roles of the model have to alternate, so neighbouring messages of one role became one.";
    let joined = join_neighbours(messages);
    let mut forms = Vec::new();
    forms.extend(merge_system_message(messages).map(|moved| (moved, MOVED.to_owned())));
    if joined != messages {
        let moved = merge_system_message(&joined).map(|moved| join_neighbours(&moved));
        forms.push((joined, JOINED.to_owned()));
        forms.extend(moved.map(|moved| (moved, format!("{MOVED} {JOINED}"))));
    }
    forms
}

/// Joins neighbouring texts of one role. System messages come first, as one.
fn join_neighbours(messages: &[ToolMessage]) -> Vec<ToolMessage> {
    let is_system =
        |message: &&ToolMessage| matches!(message, ToolMessage::Text(text) if text.role == Role::System);
    let (system, others): (Vec<_>, Vec<_>) = messages.iter().partition(is_system);
    let mut joined: Vec<ToolMessage> = Vec::with_capacity(messages.len());
    for message in system.into_iter().chain(others) {
        match (joined.last_mut(), message) {
            (Some(ToolMessage::Text(last)), ToolMessage::Text(next)) if last.role == next.role => {
                last.content = format!("{}\n\n{}", last.content, next.content);
            }
            _ => joined.push(message.clone()),
        }
    }
    joined
}

/// Moves a leading system message to the start of the first user message.
fn merge_system_message(messages: &[ToolMessage]) -> Option<Vec<ToolMessage>> {
    let Some((ToolMessage::Text(ChatMessage { role: Role::System, content: system }), rest)) =
        messages.split_first()
    else {
        return None;
    };
    let mut messages = rest.to_vec();
    let user = messages.iter_mut().find_map(|message| match message {
        ToolMessage::Text(message) if message.role == Role::User => Some(message),
        _ => None,
    })?;
    user.content = format!("{system}\n\n{}", user.content);
    Some(messages)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
