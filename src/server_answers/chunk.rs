//! Wire types of a streamed answer. Servers differ in all but a few fields, so every field is optional and every value
//! of another type counts as absent.

use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenOrigin;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A chunk of an answer: OpenAI's fields, and those that servers add.
#[derive(Deserialize)]
pub(crate) struct Chunk {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) choices: Vec<ChunkChoice>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) usage: Option<ChunkUsage>,
    /// An error in the middle of a stream.
    #[serde(default)]
    pub(crate) error: Option<Value>,
    /// Figures of a Hunch server.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) hunch: Option<HunchField>,
    /// Figures of llama.cpp, and of servers that copy their form.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) timings: Option<Timings>,
    /// Figures of vLLM.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) metrics: Option<RequestMetrics>,
    /// Figures of SGLang.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) sglext: Option<SglangField>,
    /// Figures of LM Studio.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) stats: Option<LmStudioStats>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChunkChoice {
    #[serde(deserialize_with = "or_default")]
    pub(crate) delta: Delta,
    /// Text of `/v1/completions`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) text: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Delta {
    #[serde(deserialize_with = "or_default")]
    pub(crate) content: Option<String>,
    /// Thinking, as llama.cpp, SGLang, DeepSeek and LM Studio name it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) reasoning_content: Option<String>,
    /// Thinking, as vLLM, mlx-lm and Ollama name it, and LM Studio that of gpt-oss.
    #[serde(deserialize_with = "or_default")]
    pub(crate) reasoning: Option<String>,
    /// Thinking, as Ollama's own protocol names it, which proxies pass on.
    #[serde(deserialize_with = "or_default")]
    pub(crate) thinking: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChunkUsage {
    #[serde(deserialize_with = "or_default")]
    pub(crate) prompt_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) completion_tokens: u64,
    #[serde(deserialize_with = "or_default")]
    pub(crate) completion_tokens_details: CompletionDetails,
    /// Acceptance, where LM Studio counts it among the tokens.
    #[serde(flatten)]
    pub(crate) drafts: LmStudioDrafts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct CompletionDetails {
    /// Tokens of thinking, whether or not it was streamed.
    #[serde(deserialize_with = "or_default")]
    pub(crate) reasoning_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct HunchField {
    #[serde(deserialize_with = "or_default")]
    pub(crate) origins: Vec<TokenOrigin>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) texts: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) stats: Option<GenerationStats>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Timings {
    #[serde(deserialize_with = "or_default")]
    pub(crate) predicted_n: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) predicted_per_second: Option<f64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) draft_n: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) draft_n_accepted: Option<u64>,
    /// Passes that checked a draft, which mlx-vlm adds.
    #[serde(deserialize_with = "or_default")]
    pub(crate) draft_rounds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RequestMetrics {
    /// Milliseconds from one token to the next, after the first. vLLM's `tokens_per_second` includes the prompt.
    #[serde(deserialize_with = "or_default")]
    pub(crate) mean_itl_ms: Option<f64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) speculative_decoding: Option<VllmAcceptance>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct VllmAcceptance {
    #[serde(deserialize_with = "or_default")]
    pub(crate) num_draft_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) num_accepted_draft_tokens: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) num_spec_steps: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct SglangField {
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec_tokens_details: Option<SglangAcceptance>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct SglangAcceptance {
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec_num_proposed_drafts: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec_num_correct_drafts: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) spec_verify_ct: Option<u64>,
}

/// Figures of LM Studio since version 0.3.10: <https://lmstudio.ai/docs/developer/api-changelog>.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct LmStudioStats {
    #[serde(deserialize_with = "or_default")]
    pub(crate) tokens_per_second: Option<f64>,
    #[serde(flatten)]
    pub(crate) drafts: LmStudioDrafts,
}

/// Drafted tokens as LM Studio counts them.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct LmStudioDrafts {
    #[serde(deserialize_with = "or_default")]
    pub(crate) total_draft_tokens_count: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) accepted_draft_tokens_count: Option<u64>,
}

/// Reads a field, or its default if the value has another type.
fn or_default<'de, D: Deserializer<'de>, T: Default + serde::de::DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Returns the message of an error object, whatever its form.
pub(crate) fn error_message(error: &Value) -> String {
    let field = |name: &str| error.get(name).and_then(Value::as_str);
    let text = error.as_str().or_else(|| field("message")).or_else(|| field("detail"));
    text.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_other_types_count_as_absent() {
        let chunk = r#"{"choices":[{"delta":{"content":7,"reasoning":"so"},"finish_reason":null}],"usage":"many",
            "timings":{"draft_n":"3","predicted_n":4},"hunch":true,"extra":{}}"#;
        let chunk: Chunk = serde_json::from_str(chunk).unwrap();
        assert_eq!(chunk.choices[0].delta.content, None);
        assert_eq!(chunk.choices[0].delta.reasoning.as_deref(), Some("so"));
        let timings = chunk.timings.unwrap();
        assert_eq!((timings.draft_n, timings.predicted_n), (None, Some(4)));
        assert!(chunk.usage.is_none() && chunk.hunch.is_none() && chunk.error.is_none());
    }

    #[test]
    fn errors_have_a_message_in_every_form() {
        let message = |text: &str| error_message(&serde_json::from_str(text).unwrap());
        assert_eq!(message(r#"{"message":"no","type":"x"}"#), "no");
        assert_eq!(message(r#"{"detail":"busy"}"#), "busy");
        assert_eq!(message(r#""plain""#), "plain");
        assert_eq!(message(r#"{"code":5}"#), r#"{"code":5}"#);
    }
}
