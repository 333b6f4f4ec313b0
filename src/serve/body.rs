//! Bodies of requests: reading within limits, and the fields that both protocols share.
//!
//! No field that would change the answer is ignored: what is not understood is refused.

use std::collections::BTreeMap;

use axum::body::BodyDataStream;
use axum::extract::Request;
use axum::http::header;
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::errors::{Failure, FailureKind};
use super::{AnsweringServer, Server};
use crate::generate::GenerationPlan;
use hunch_core::limits::MAX_SEED;
use hunch_core::sample::SamplingParams;
use hunch_error::Error;

/// A body that is too large is read on for this many times the limit, so that its client gets the error.
const DISCARDED: usize = 16;

/// Fields of a body.
pub(super) struct Fields(Map<String, Value>);

/// Reads the body of a request as a JSON object.
///
/// # Errors
/// If it is not JSON, too large or too slow.
pub(super) async fn read(server: &Server, request: Request) -> Result<Fields, Failure> {
    let (parts, body) = request.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    // Pages of the browser can send other types to this machine without asking.
    if !kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        return Err(Failure::new(
            FailureKind::NotJson,
            "The body is not declared as JSON. Send the header `Content-Type: application/json`.",
        ));
    }
    let encoding = parts.headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Failure::new(
            FailureKind::NotJson,
            "The body is compressed. Send it as it is, without the header `Content-Encoding`.",
        ));
    }
    let limits = server.limits;
    let mut stream = body.into_data_stream();
    let collected =
        timeout(limits.body_time, collect(&mut stream, limits.body_bytes)).await.map_err(|_| {
            let message = format!(
                "The body did not arrive within {} s. Send the request again.",
                limits.body_time.as_secs_f32()
            );
            Failure::new(FailureKind::TooSlow, message)
        })?;
    let Some(bytes) = collected? else {
        // Many clients read no response before they have sent everything. If they take too long, the connection closes.
        let rest = limits.body_bytes.saturating_mul(DISCARDED);
        let _ = timeout(limits.body_time, discard(&mut stream, rest)).await;
        let most = limits.body_bytes >> 20;
        let message = format!("The body is larger than {most} MiB. Shorten the conversation.");
        return Err(Failure::new(FailureKind::TooLarge, message));
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(mut fields)) => {
            // A null is a field that was not set.
            fields.retain(|_, value| !value.is_null());
            check_objects(&fields)?;
            Ok(Fields(fields))
        }
        Ok(_) => Err(Failure::new(FailureKind::InvalidRequest, "The body is not a JSON object. Send one.")),
        Err(error) => {
            let message = format!("The body is not valid JSON ({error}). Correct it and send it again.");
            Err(Failure::new(FailureKind::InvalidRequest, message))
        }
    }
}

/// Fields of both protocols that are objects, if they are present.
const OBJECTS: [&str; 7] = [
    "stream_options",
    "response_format",
    "chat_template_kwargs",
    "output_config",
    "thinking",
    "reasoning",
    "text",
];
/// Fields of both protocols that are arrays of objects, if they are present.
const OBJECT_ARRAYS: [&str; 2] = ["messages", "tools"];

/// Checks the form of nested fields. serde would read an array as an object with its values in order.
fn check_objects(fields: &Map<String, Value>) -> Result<(), Failure> {
    let refuse =
        |name: &str, kind| Err(Failure::of_param(name, format!("`{name}` is not {kind}. Send {kind}.")));
    for name in OBJECTS {
        if fields.get(name).is_some_and(|value| !value.is_object()) {
            return refuse(name, "an object");
        }
    }
    for name in OBJECT_ARRAYS {
        let Some(value) = fields.get(name) else { continue };
        if !value.as_array().is_some_and(|items| items.iter().all(Value::is_object)) {
            return refuse(name, "an array of objects");
        }
    }
    Ok(())
}

/// Reads a body of at most `limit` bytes. Returns `None` once it is longer.
async fn collect(stream: &mut BodyDataStream, limit: usize) -> Result<Option<Vec<u8>>, Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| {
            Failure::new(FailureKind::InvalidRequest, "The body ended early. Send the request again.")
        })?;
        if bytes.len() + chunk.len() > limit {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

/// Reads at most this many bytes of a body and throws them away.
async fn discard(stream: &mut BodyDataStream, mut most: usize) {
    while let Some(Ok(chunk)) = stream.next().await {
        let Some(left) = most.checked_sub(chunk.len()) else { return };
        most = left;
    }
}

impl Fields {
    /// Moves the fields that `T` may have out of the body and reads them.
    ///
    /// # Errors
    /// If a value has the wrong type. The message names the field.
    pub(super) fn take<T: DeserializeOwned>(&mut self, names: &[&str]) -> Result<T, Failure> {
        let taken = names.iter().filter_map(|&name| Some((name.to_owned(), self.0.shift_remove(name)?)));
        let taken = Value::Object(taken.collect());
        serde_path_to_error::deserialize(taken).map_err(|error| {
            let path = error.path().to_string();
            let reason = plain_words(&error.into_inner().to_string());
            if path == "." {
                return Failure::new(
                    FailureKind::InvalidRequest,
                    format!("The request is incomplete: {reason}."),
                );
            }
            unreadable(&path, &reason)
        })
    }

    /// Returns a copy of a field.
    pub(super) fn copy(&self, name: &str) -> Option<Value> {
        self.0.get(name).cloned()
    }

    /// Removes fields that never change an answer.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        for &name in names {
            self.0.shift_remove(name);
        }
    }

    /// Refuses a field unless its value asks for nothing.
    ///
    /// # Errors
    /// If the field is present and `harmless` is false for its value.
    pub(super) fn refuse(
        &mut self,
        name: &str,
        harmless: impl FnOnce(&Value) -> bool,
        remedy: &str,
    ) -> Result<(), Failure> {
        match self.0.shift_remove(name) {
            Some(value) if !harmless(&value) => {
                Err(Failure::of_param(name, format!("`{name}` is not supported here. {remedy}")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that every field was understood.
    ///
    /// # Errors
    /// If one is left.
    pub(super) fn finish(self) -> Result<(), Failure> {
        match self.0.keys().next() {
            Some(name) => Err(Failure::of_param(
                name,
                format!("`{name}` is not a parameter of this endpoint. Remove it, or check its spelling."),
            )),
            None => Ok(()),
        }
    }
}

/// Reads an object at a path of the body.
///
/// # Errors
/// If a field is missing or has the wrong type. The message names it with its path.
pub(super) fn read_object<T: DeserializeOwned>(object: Map<String, Value>, path: &str) -> Result<T, Failure> {
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| {
        let inner = error.path().to_string();
        let reason = plain_words(&error.into_inner().to_string());
        match inner.as_str() {
            "." => Failure::of_param(path, format!("`{path}` is incomplete: {reason}. Add it.")),
            inner => unreadable(&format!("{path}.{inner}"), &reason),
        }
    })
}

fn unreadable(path: &str, reason: &str) -> Failure {
    Failure::of_param(path, format!("`{path}` cannot be read: {reason}. Correct the value."))
}

/// Returns an error of serde with names of JSON in place of those of Rust.
fn plain_words(reason: &str) -> String {
    let Some((before, expected)) = reason.split_once("expected ") else { return reason.into() };
    let expected = match expected {
        "usize" | "u64" | "u32" => "a whole number from 0",
        "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        _ if expected.starts_with("struct ") || expected.contains(" tagged enum ") => "an object",
        other => other,
    };
    format!("{before}expected {expected}")
}

/// Sampling settings of a request. Absent ones are the server's.
#[derive(Deserialize)]
pub(super) struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<u32, f32>>,
    /// Any whole number, as in OpenAI's protocol.
    seed: Option<i64>,
}

/// Number of seeds. Larger and negative numbers stand for one of these.
const SEEDS: i64 = MAX_SEED as i64 + 1;

impl Sampling {
    /// Names of the fields.
    const NAMES: [&str; 9] = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
    ];

    fn over(self, server: &SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(server.temperature),
            top_p: self.top_p.unwrap_or(server.top_p),
            top_k: self.top_k.unwrap_or(server.top_k),
            min_p: self.min_p.unwrap_or(server.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(server.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(server.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(server.frequency_penalty),
            penalty_last_n: server.penalty_last_n,
            logit_bias: self.logit_bias.unwrap_or_else(|| server.logit_bias.clone()),
            seed: self.seed.map(|seed| seed.rem_euclid(SEEDS).unsigned_abs()).or(server.seed),
        }
    }
}

/// Reads the sampling settings and stop strings into the server's plan.
///
/// # Errors
/// If a value has the wrong type or is out of range.
pub(super) fn plan(
    server: &AnsweringServer,
    fields: &mut Fields,
    stop: Vec<String>,
) -> Result<GenerationPlan, Failure> {
    let sampling: Sampling = fields.take(&Sampling::NAMES)?;
    let mut of_server = server.plan.sampling.clone();
    if !server.model.is_first {
        // Other models have other tokens, and recommend other sampling.
        of_server = SamplingParams { logit_bias: Default::default(), ..server.models.others_sampling() };
    }
    let sampling = sampling.over(&of_server);
    let tokens = server.model.encoder.tokenizer().vocab_size();
    if let Some(token) = sampling.logit_bias.keys().find(|&&token| token as usize >= tokens) {
        let message = format!(
            "`logit_bias` names token {token}, but this model's tokens are 0 to {}. Remove it.",
            tokens.saturating_sub(1)
        );
        return Err(Failure::of_param("logit_bias", message));
    }
    let plan = GenerationPlan { sampling, stop, ..server.plan.clone() };
    plan.validate().map_err(|error| of_setting(&error))?;
    Ok(plan)
}

/// Returns the failure of a setting that is out of range. The error begins with its name.
fn of_setting(error: &Error) -> Failure {
    let failure = Failure::from(error);
    let first = failure.message.split(' ').next().unwrap_or("");
    let param = match Sampling::NAMES.contains(&first) {
        true => Some(first),
        false => failure.message.contains("stop string").then_some("stop"),
    };
    Failure { param: param.map(str::to_owned), ..failure }
}

/// Text, or a list of text parts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of text parts")]
pub(super) enum TextContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Deserialize)]
pub(super) struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl TextContent {
    /// Returns the text of all parts.
    ///
    /// # Errors
    /// If a part is not text.
    pub(super) fn into_text(self, param: &str) -> Result<String, Failure> {
        self.into_text_of(&["text"], param)
    }

    /// Returns the text of all parts. `kinds` are the types of parts with text.
    ///
    /// # Errors
    /// If a part has another type, or no text.
    pub(super) fn into_text_of(self, kinds: &[&str], param: &str) -> Result<String, Failure> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
            (kind, Some(text)) if kinds.contains(&kind) => Ok(text),
            (kind, None) if kinds.contains(&kind) => {
                Err(Failure::of_param(param, format!("A text part of `{param}` has no `text`.")))
            }
            (kind, _) => Err(Failure::of_param(
                param,
                format!("`{param}` has a part of type \"{kind}\". This server reads text only."),
            )),
        });
        Ok(text.collect::<Result<Vec<_>, _>>()?.concat())
    }
}

/// A string, or a list of strings.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// Returns whether a value is `false`, 0, an empty list or an empty object.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Bool(given) => !given,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Null => true,
    }
}
