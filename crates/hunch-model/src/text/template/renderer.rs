//! Renders a template, wherever that happens: in the child process, or here where there is none.

use minijinja::Environment;
use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use super::{environment, time};
use hunch_core::chat::{ChatMessage, Role};

const NAME: &str = "chat";

/// Longest template that is read, in bytes. Those of models have some thousands.
pub(super) const MOST_SOURCE: usize = 1 << 20;
/// Instructions that a rendering may take, whatever the conversation is, and more for each byte of it.
const FUEL: u64 = 2_000_000;
const FUEL_A_BYTE: u64 = 100;
/// Bytes that a rendering may have, whatever the conversation is, and more for each byte of it.
const OUTPUT: usize = 1 << 20;
const OUTPUT_A_BYTE: usize = 8;

/// What is to be rendered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub source: String,
    pub bos: String,
    pub eos: String,
    /// What `strftime_now` tells, in seconds since 1970.
    pub time: Option<i64>,
    pub messages: Vec<ChatMessage>,
    pub add_generation_prompt: bool,
}

impl Request {
    fn content_bytes(&self) -> usize {
        self.messages.iter().map(|message| message.content.len()).sum()
    }

    /// Most bytes of its result.
    pub(super) fn most_output(&self) -> usize {
        self.content_bytes().saturating_mul(OUTPUT_A_BYTE).saturating_add(OUTPUT)
    }

    fn fuel(&self) -> u64 {
        (self.content_bytes() as u64).saturating_mul(FUEL_A_BYTE).saturating_add(FUEL)
    }
}

/// Renders; keeps the template of the last request.
#[derive(Debug, Default)]
pub(super) struct Renderer {
    parsed: Option<(String, Environment<'static>)>,
}

impl Renderer {
    /// Renders, or says why that cannot be done.
    pub(super) fn render(&mut self, request: &Request) -> Result<String, String> {
        if self.parsed.as_ref().is_none_or(|(source, _)| *source != request.source) {
            let environment = environment::environment(NAME, &request.source)
                .map_err(|error| format!("it cannot be read: {error}"))?;
            self.parsed = Some((request.source.clone(), environment));
        }
        let Some((_, environment)) = &mut self.parsed else { return Err("it cannot be read".into()) };
        environment.set_fuel(Some(request.fuel()));
        if let Some(seconds) = request.time {
            let now = time::CivilTime::from_unix(seconds);
            environment.add_function("strftime_now", move |format: String| now.format(&format));
        }
        let text = render(environment, request).map_err(|error| error.to_string())?;
        match text.len() <= request.most_output() {
            true => Ok(text),
            false => Err(format!("its result has {} bytes, more than a conversation needs", text.len())),
        }
    }
}

fn render(environment: &Environment<'static>, request: &Request) -> Result<String, minijinja::Error> {
    let messages: Vec<Value> = request
        .messages
        .iter()
        .map(
            |message| minijinja::context! { role => role(message.role), content => message.content.as_str() },
        )
        .collect();
    environment.get_template(NAME)?.render(minijinja::context! {
        messages => messages,
        add_generation_prompt => request.add_generation_prompt,
        bos_token => request.bos.as_str(),
        eos_token => request.eos.as_str(),
        tools => Value::from(()),
        documents => Value::from(()),
    })
}

pub(super) fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    }
}
