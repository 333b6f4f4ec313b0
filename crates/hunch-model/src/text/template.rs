//! Chat templates: from a conversation to the text a model was trained on. The model's own template
//! is used where it has one that works; otherwise one of two built-in forms, and the caller is told
//! which and why. Tokens are not made here.

pub mod child;
mod environment;
mod json;
mod renderer;
mod time;

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::text::{EncodeOptions, Tokenizer};
use child::{Failure, RenderingChild};
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use renderer::{MOST_SOURCE, Renderer, Request, role};

/// Times in a row that a template may break the child before it is not tried any more: once may be the machine's fault.
const TRIES: u32 = 2;

/// What marks the thinking in an answer; some vocabularies have it as control tokens.
const THINKING: [&str; 2] = ["<think>", "</think>"];

/// Which template made a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The one in the model's file.
    Model,
    /// Built in, `<|im_start|>role ... <|im_end|>`: for models whose text ends with `<|im_end|>`.
    ChatMl,
    /// Built in, plain `User:` and `Assistant:` paragraphs: for every other model.
    Plain,
}

/// A conversation as one text, ready to be tokenised with special tokens parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text. It holds the beginning-of-text token where the template writes it.
    pub text: String,
    /// Which template made it.
    pub origin: TemplateOrigin,
    /// What a person should know: why the model's template was not used, or that the instructions
    /// had to be moved into the first message.
    pub note: Option<String>,
}

/// A model's chat template, or a built-in one in its place.
#[derive(Debug)]
pub struct ChatTemplate {
    source: Option<String>,
    /// Why the file's template is not even tried.
    refused: Option<String>,
    bos: String,
    eos: String,
    time: Option<i64>,
    place: Mutex<Place>,
}

/// Where the template is rendered.
#[derive(Debug, Default)]
struct Place {
    /// Where a program was offered.
    child: Option<RenderingChild>,
    /// Where none was.
    renderer: Renderer,
    /// Times in a row that the template broke the child, and how it did.
    broken: (u32, String),
}

impl ChatTemplate {
    /// Takes the template of a model's file, and the texts of its beginning-of-text and end-of-text
    /// tokens ("" where it has none). Nothing of it is read before it is rendered.
    pub fn from_source(source: Option<&str>, bos: &str, eos: &str) -> Self {
        let (source, refused) = match source.filter(|source| !source.trim().is_empty()) {
            None => (None, None),
            Some(long) if long.len() > MOST_SOURCE => (
                None,
                Some(format!(
                    "The model's chat template has {} bytes, and at most {MOST_SOURCE} are read, so a built-in one is \
                     used.",
                    long.len()
                )),
            ),
            Some(source) => (Some(source.to_owned()), None),
        };
        Self {
            source,
            refused,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            time: None,
            place: Mutex::default(),
        }
    }

    /// Takes the template of a tokeniser's file, which is told today's date.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<TokenId>| id.map_or("", |id| tokenizer.token_text(id));
        let mut template =
            Self::from_source(tokenizer.chat_template(), text(tokenizer.bos()), text(tokenizer.eos()));
        // Some templates tell the model the date. UTC: the standard library knows no time zone.
        if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            template.set_time(i64::try_from(now.as_secs()).unwrap_or(0));
        }
        template
    }

    /// Tells the template what day it is, in seconds since 1970 of local time: `strftime_now`, which
    /// some templates put into the system prompt. Without it the function is not defined, and
    /// templates that can do without take their own date.
    pub fn set_time(&mut self, unix_seconds: i64) {
        self.time = Some(unix_seconds);
    }

    /// Why the model's own template is not used at all, if it is not.
    pub fn problem(&self) -> Option<&str> {
        match &self.source {
            Some(_) => None,
            None => Some(self.refused.as_deref().unwrap_or("The model has no chat template.")),
        }
    }

    /// What a person should know of the template before anything is asked, found by a short conversation.
    pub fn trial(&self) -> Option<String> {
        let said = |role, content: &str| ChatMessage { role, content: content.into() };
        let messages = [said(Role::User, "Hi"), said(Role::Assistant, "Hello"), said(Role::User, "Bye")];
        let rendered = self.render(&messages, true, &|| false);
        rendered.map_or_else(|error| Some(error.to_string()), |rendered| rendered.note)
    }

    /// Renders a conversation; with `add_generation_prompt` it ends where the model's answer begins.
    ///
    /// The template is rendered in a child process where this program offers one ([`child::offer`]). One that
    /// refuses a system message (some raise an exception) is tried again with the instructions at the start of the
    /// first user message. If it still fails, takes longer than 2 s, or breaks the child, the built-in form is used,
    /// and [`RenderedPrompt::note`] says why; so it is, without a note, when `stopped`, which is asked every 10 ms.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is no message.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        stopped: &dyn Fn() -> bool,
    ) -> Result<RenderedPrompt> {
        if messages.is_empty() {
            return Err(Error::invalid("The conversation is empty. Write a message first."));
        }
        let built_in = |note| Ok(self.built_in(messages, add_generation_prompt, note));
        let Some(source) = &self.source else {
            return built_in(self.refused.clone());
        };
        let render = |messages: &[ChatMessage]| {
            self.render_own(
                &Request {
                    source: source.clone(),
                    bos: self.bos.clone(),
                    eos: self.eos.clone(),
                    time: self.time,
                    messages: messages.to_vec(),
                    add_generation_prompt,
                },
                stopped,
            )
        };
        let own = |text, note| Ok(RenderedPrompt { text, origin: TemplateOrigin::Model, note });
        let problem = match render(messages) {
            Ok(text) => return own(text, None),
            Err(Failure::Stopped) => return built_in(None),
            Err(Failure::Broken(problem)) => problem,
            Err(Failure::Refused(problem)) => {
                match without_system(messages).map(|messages| render(&messages)) {
                    Some(Ok(text)) => {
                        let note = "This model takes no system message; it was put before the first message.";
                        return own(text, Some(note.to_owned()));
                    }
                    Some(Err(Failure::Stopped)) => return built_in(None),
                    _ => problem,
                }
            }
        };
        built_in(Some(format!(
            "The model's chat template failed, so a built-in one is used: {}.",
            problem.trim_end_matches('.')
        )))
    }

    /// The tokens of a conversation up to where its next answer begins, and what a person should know of the
    /// template. Control tokens that are written out in a message stay text: only those of the template are
    /// control tokens. When `stopped`, rendering and tokenising end early and the tokens are of no use.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`] and [`Tokenizer::encode`].
    pub fn ids(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        let literals = tokenizer.literals(messages.iter().map(|message| message.content.as_str()))?;
        let masked: Vec<ChatMessage> = messages
            .iter()
            .map(|message| {
                // Templates look for these in what the model has said.
                let kept: &[&str] = if message.role == Role::Assistant { &THINKING } else { &[] };
                ChatMessage { role: message.role, content: literals.mask(&message.content, kept) }
            })
            .collect();
        let RenderedPrompt { text, note, .. } = self.render(&masked, true, stopped)?;
        let options = EncodeOptions { parse_special: true, add_bos: true };
        Ok((tokenizer.encode_with_literals(&text, options, &literals, stopped)?, note))
    }

    fn render_own(&self, request: &Request, stopped: &dyn Fn() -> bool) -> Result<String, Failure> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.broken.0 >= TRIES {
            return Err(Failure::Broken(place.broken.1.clone()));
        }
        let Some(program) = child::program() else {
            return place.renderer.render(request).map_err(Failure::Refused);
        };
        let child = place.child.take().map_or_else(|| RenderingChild::start(program, stopped), Ok);
        let (child, rendered) = match child {
            Ok(mut child) => {
                let rendered = child.render(request, stopped);
                (Some(child), rendered)
            }
            Err(failure) => (None, Err(failure)),
        };
        match &rendered {
            // A child that does not start counts too: each further start may take as long.
            Err(Failure::Broken(problem)) => place.broken = (place.broken.0 + 1, problem.clone()),
            // What is stopped is in the middle of something.
            Err(Failure::Stopped) => {}
            Ok(_) | Err(Failure::Refused(_)) => {
                place.child = child;
                place.broken.0 = 0;
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
                (true, role_) => format!("<|im_start|>{}\n{content}<|im_end|>\n", role(role_)),
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

/// The conversation with its leading system message put before the first user message.
fn without_system(messages: &[ChatMessage]) -> Option<Vec<ChatMessage>> {
    let (system, rest) = messages.split_first()?;
    if system.role != Role::System {
        return None;
    }
    let mut messages = rest.to_vec();
    let user = messages.iter_mut().find(|message| message.role == Role::User)?;
    user.content = format!("{}\n\n{}", system.content, user.content);
    Some(messages)
}

#[cfg(test)]
mod tests;
