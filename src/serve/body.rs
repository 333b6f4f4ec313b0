//! Bodies of requests: reading within limits, and the fields that both protocols share.
//!
//! No field that would change the answer is ignored: what is not understood is refused.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::errors::{Failure, FailureKind};
use super::{Served, Server};
use crate::generate::GenerationPlan;
use hunch_core::sample::SamplingParams;

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
    let limits = server.limits;
    let bytes = timeout(limits.body_time, collect(body, limits.body_bytes)).await.map_err(|_| {
        let message = format!(
            "The body did not arrive within {} s. Send the request again.",
            limits.body_time.as_secs_f32()
        );
        Failure::new(FailureKind::TooSlow, message)
    })??;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(mut fields)) => {
            // A null is a field that was not set.
            fields.retain(|_, value| !value.is_null());
            Ok(Fields(fields))
        }
        Ok(_) => Err(Failure::new(FailureKind::InvalidRequest, "The body is not a JSON object. Send one.")),
        Err(error) => {
            let message = format!("The body is not valid JSON ({error}). Correct it and send it again.");
            Err(Failure::new(FailureKind::InvalidRequest, message))
        }
    }
}

async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, Failure> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| {
            Failure::new(FailureKind::InvalidRequest, "The body ended early. Send the request again.")
        })?;
        if bytes.len() + chunk.len() > limit {
            let message = format!("The body is larger than {} MiB. Shorten the conversation.", limit >> 20);
            return Err(Failure::new(FailureKind::TooLarge, message));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
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
            let reason = error.into_inner();
            if path == "." {
                return Failure::new(
                    FailureKind::InvalidRequest,
                    format!("The request is incomplete: {reason}."),
                );
            }
            Failure::of_param(&path, format!("`{path}` cannot be read: {reason}. Correct the value."))
        })
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
    seed: Option<u64>,
}

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
            seed: self.seed.or(server.seed),
        }
    }
}

/// Reads the sampling settings and stop strings into the server's plan.
///
/// # Errors
/// If a value has the wrong type or is out of range.
pub(super) fn plan(
    server: &Served,
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
    let plan = GenerationPlan { sampling, stop, ..server.plan.clone() };
    plan.validate()?;
    Ok(plan)
}

/// Text, or a list of text parts.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of text parts")]
pub(super) enum Content {
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

impl Content {
    /// Returns the text of all parts.
    ///
    /// # Errors
    /// If a part is not text.
    pub(super) fn into_text(self, param: &str) -> Result<String, Failure> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => {
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
