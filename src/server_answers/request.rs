//! Models of servers, and requests for their answers.

use hunch_core::chat::ChatMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use ts_rs::TS;

/// Longest name of a model, in bytes.
const NAME_BYTES: usize = 512;

/// Program that a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// `hunch serve`.
    Hunch,
    /// llama.cpp's llama-server.
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Any other program.
    Other,
}

impl ServerKind {
    /// Returns the kind that a list of models shows, by the owner of its models.
    fn of_owner(owner: &str) -> Self {
        match owner {
            "hunch" => Self::Hunch,
            "llamacpp" => Self::LlamaCpp,
            "vllm" => Self::Vllm,
            "sglang" => Self::Sglang,
            _ => Self::Other,
        }
    }

    /// Returns the name for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Hunch => "Hunch",
            Self::LlamaCpp => "llama.cpp",
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
            Self::Other => "server",
        }
    }
}

/// A model that a server offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct RemoteModel {
    /// Name, as requests write it.
    pub id: String,
    /// Program that runs it.
    pub kind: ServerKind,
    /// Context length in tokens, if the server says so.
    pub context: Option<u64>,
}

/// A request for an answer. Parameters that are `None` keep the server's defaults.
#[derive(Clone, Debug, Default)]
pub struct RemoteRequest {
    /// Conversation. Empty for a raw prompt.
    pub messages: Vec<ChatMessage>,
    /// Prompt that is continued without a chat template, in place of a conversation.
    pub raw: Option<String>,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Schema that the answer follows.
    pub schema: Option<Value>,
    /// Sampling parameters by their names in the protocol of `hunch serve`, such as `temperature`. A server that names
    /// one differently gets its own name.
    pub sampling: Map<String, Value>,
}

impl RemoteRequest {
    /// Returns the body for a model.
    pub(crate) fn body(&self, model: &RemoteModel) -> Value {
        let mut body = Map::from_iter([
            ("model".to_owned(), json!(model.id)),
            ("stream".to_owned(), json!(true)),
            ("stream_options".to_owned(), json!({ "include_usage": true })),
        ]);
        let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
        match &self.raw {
            Some(prompt) => set("prompt", json!(prompt)),
            None => set("messages", json!(self.messages)),
        };
        if let Some(limit) = self.max_tokens {
            set("max_tokens", json!(limit));
        }
        if !self.stop.is_empty() {
            set("stop", json!(self.stop));
        }
        if let Some(schema) = &self.schema {
            let named = json!({ "name": "answer", "strict": true, "schema": schema });
            set("response_format", json!({ "type": "json_schema", "json_schema": named }));
        }
        // Others refuse fields that they do not know.
        match model.kind {
            ServerKind::Hunch => set("hunch", json!(true)),
            ServerKind::Sglang => set("return_spec_tokens_details", json!(true)),
            _ => None,
        };
        body.extend(self.sampling.clone());
        // Each server ignores the name of the others, or refuses it. One of unknown kind may know either.
        if let Some(penalty) = body.get("repeat_penalty").cloned() {
            if matches!(model.kind, ServerKind::Vllm | ServerKind::Sglang) {
                body.remove("repeat_penalty");
            }
            if matches!(model.kind, ServerKind::Vllm | ServerKind::Sglang | ServerKind::Other) {
                body.insert("repetition_penalty".to_owned(), penalty);
            }
        }
        Value::Object(body)
    }
}

/// Returns a number as a person writes it: 0.7, not 0.699999988.
pub fn exact(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Returns whether a model's name can be shown on a line.
fn is_usable_name(name: &str) -> bool {
    (1..=NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// Reads an entry of a list of models, unless its name cannot be used.
pub(crate) fn model_of_entry(entry: &Value) -> Option<RemoteModel> {
    let context = [&entry["context_length"], &entry["max_model_len"], &entry["meta"]["n_ctx"]];
    Some(RemoteModel {
        id: entry["id"].as_str().filter(|id| is_usable_name(id))?.to_owned(),
        kind: ServerKind::of_owner(entry["owned_by"].as_str().unwrap_or_default()),
        context: context.iter().find_map(|value| value.as_u64()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_with_unusable_names_are_left_out() {
        let id = |id: &str| model_of_entry(&json!({ "id": id })).map(|model| model.id);
        assert_eq!(id("org/model:8b").as_deref(), Some("org/model:8b"));
        assert_eq!((id(""), id("a\nb"), id(&"a".repeat(513))), (None, None, None));
    }

    #[test]
    fn repetition_penalty_is_sent_by_the_names_that_a_server_may_know() {
        let sampling = Map::from_iter([("repeat_penalty".to_owned(), json!(1.1))]);
        let request = RemoteRequest { sampling, ..RemoteRequest::default() };
        for (kind, ours, theirs) in [
            (ServerKind::Hunch, true, false),
            (ServerKind::LlamaCpp, true, false),
            (ServerKind::Vllm, false, true),
            (ServerKind::Sglang, false, true),
            (ServerKind::Other, true, true),
        ] {
            let body = request.body(&RemoteModel { id: "m".into(), kind, context: None });
            let sent = |name: &str| body.get(name) == Some(&json!(1.1));
            assert_eq!((sent("repeat_penalty"), sent("repetition_penalty")), (ours, theirs), "{kind:?}");
        }
    }
}
