//! Chat templates: from a conversation to the text a model was trained on. The model's own template
//! is used where it has one that works; otherwise one of two built-in forms, and the caller is told
//! which and why. Tokens are not made here.

mod environment;
mod json;
mod time;

use minijinja::Environment;
use minijinja::value::Value;

use crate::api::{ChatMessage, Role};
use crate::error::{Error, Result};

const NAME: &str = "chat";

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
    environment: Option<Environment<'static>>,
    /// Why there is no environment.
    problem: Option<String>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Takes the template of a model's file, and the texts of its beginning-of-text and end-of-text
    /// tokens ("" where it has none). A template that cannot be parsed is replaced, see
    /// [`ChatTemplate::problem`].
    pub fn from_source(source: Option<&str>, bos: &str, eos: &str) -> Self {
        let built = match source.filter(|source| !source.trim().is_empty()) {
            None => Err("The model has no chat template.".to_owned()),
            Some(source) => environment::environment(NAME, source)
                .map_err(|e| format!("The model's chat template cannot be read: {e}.")),
        };
        let (environment, problem) = match built {
            Ok(environment) => (Some(environment), None),
            Err(problem) => (None, Some(problem)),
        };
        Self { environment, problem, bos: bos.to_owned(), eos: eos.to_owned() }
    }

    /// Tells the template what day it is, in seconds since 1970 of local time: `strftime_now`, which
    /// some templates put into the system prompt. Without it the function is not defined, and
    /// templates that can do without take their own date.
    pub fn set_time(&mut self, unix_seconds: i64) {
        if let Some(environment) = &mut self.environment {
            let now = time::CivilTime::from_unix(unix_seconds);
            environment.add_function("strftime_now", move |format: String| now.format(&format));
        }
    }

    /// Why the model's own template is not used, if it is not.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Renders a conversation; with `add_generation_prompt` it ends where the model's answer begins.
    ///
    /// A template that refuses a system message (some raise an exception) is tried again with the
    /// instructions at the start of the first user message. If it still fails the built-in form is
    /// used, and [`RenderedPrompt::note`] says why.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is no message.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<RenderedPrompt> {
        if messages.is_empty() {
            return Err(Error::invalid("The conversation is empty. Write a message first."));
        }
        let Some(environment) = &self.environment else {
            return Ok(self.built_in(messages, add_generation_prompt, self.problem.clone()));
        };
        let render =
            |messages: &[ChatMessage]| self.render_with(environment, messages, add_generation_prompt);
        let problem = match render(messages) {
            Ok(text) => {
                return Ok(RenderedPrompt { text, origin: TemplateOrigin::Model, note: None });
            }
            Err(problem) => problem,
        };
        if let Some(Ok(text)) = without_system(messages).map(|messages| render(&messages)) {
            let note = "This model takes no system message; it was put before the first message.";
            let note = Some(note.to_owned());
            return Ok(RenderedPrompt { text, origin: TemplateOrigin::Model, note });
        }
        let note = format!("The model's chat template failed: {problem}.");
        Ok(self.built_in(messages, add_generation_prompt, Some(note)))
    }

    fn render_with(
        &self,
        environment: &Environment<'static>,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, minijinja::Error> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| {
                minijinja::context! { role => role(message.role), content => message.content.as_str() }
            })
            .collect();
        environment.get_template(NAME)?.render(minijinja::context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => Value::from(()),
            documents => Value::from(()),
        })
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

fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
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
