//! Sampling parameters by their names in the protocol.

use hunch_core::sample::SamplingParams;
use serde_json::{Map, Value};

use super::request::{ServerKind, exact};

/// Returns sampling parameters by their names in the protocol. A server of unknown kind gets the parameters that are
/// not of OpenAI's protocol only where they change something: it may refuse them.
pub fn sampling_fields(params: &SamplingParams, kind: ServerKind) -> Map<String, Value> {
    let extended = kind != ServerKind::Other;
    let numbers = [
        ("temperature", params.temperature, true),
        ("top_p", params.top_p, true),
        ("min_p", params.min_p, extended || params.min_p != 0.0),
        ("repeat_penalty", params.repeat_penalty, extended || params.repeat_penalty != 1.0),
        ("presence_penalty", params.presence_penalty, true),
        ("frequency_penalty", params.frequency_penalty, true),
    ];
    let sent = numbers.into_iter().filter(|(.., sent)| *sent);
    let mut fields: Map<_, _> = sent.map(|(name, value, _)| (name.to_owned(), exact(value))).collect();
    if extended || params.top_k != 0 {
        // 0 keeps all tokens here and in llama.cpp. vLLM and SGLang write that as -1.
        let keeps_all = params.top_k == 0 && matches!(kind, ServerKind::Vllm | ServerKind::Sglang);
        fields.insert("top_k".into(), if keeps_all { (-1).into() } else { params.top_k.into() });
    }
    fields.extend(params.seed.map(|seed| ("seed".to_owned(), seed.into())));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_unknown_kind_get_standard_fields_unless_others_matter() {
        let names = |params: &SamplingParams, kind| -> Vec<String> {
            sampling_fields(params, kind).into_iter().map(|(name, _)| name).collect()
        };
        let neutral = SamplingParams::unfiltered();
        let standard = ["temperature", "top_p", "presence_penalty", "frequency_penalty"];
        assert_eq!(names(&neutral, ServerKind::Other), standard);
        let filtered = SamplingParams { top_k: 40, seed: Some(3), ..neutral.clone() };
        assert_eq!(names(&filtered, ServerKind::Other)[4..], ["top_k", "seed"]);
        let fields = sampling_fields(&SamplingParams { temperature: 0.7, ..neutral }, ServerKind::Vllm);
        assert_eq!((&fields["temperature"], &fields["top_k"]), (&Value::from(0.7), &Value::from(-1)));
        assert!(fields.contains_key("repeat_penalty"));
    }
}
