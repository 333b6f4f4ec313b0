//! Sampling that a model file recommends, in the metadata `general.sampling.*` of llama.cpp. Folders of MLX state it in
//! `generation_config.json`, which [`model_folder`](crate::model_folder) translates to the same names.

use hunch_core::sample::RecommendedSampling;

use crate::gguf::{Gguf, Value};

/// Start of the metadata keys.
pub(crate) const PREFIX: &str = "general.sampling.";
/// Names of llama.cpp and the settings that they stand for.
const NAMES: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repeat_penalty"),
];

/// Reads the recommended sampling. Also returns a sentence for each value that is ignored, with its reason.
pub fn recommended_sampling(gguf: &Gguf) -> (RecommendedSampling, Vec<String>) {
    let mut recommended = RecommendedSampling::default();
    let mut ignored = Vec::new();
    let keys = gguf.metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
    for (key, value) in keys {
        let name = NAMES.iter().find(|(known, _)| *known == key).map_or(key, |(_, name)| name);
        let set = match number(value) {
            Some(number) => recommended.set(name, number),
            None => Err("it is not a number".into()),
        };
        if let Err(reason) = set {
            ignored.push(format!("{PREFIX}{}: {reason}.", plain(key)));
        }
    }
    (recommended, ignored)
}

/// Returns a number of any type.
fn number(value: &Value) -> Option<f64> {
    match *value {
        Value::U8(number) => Some(number.into()),
        Value::I8(number) => Some(number.into()),
        Value::U16(number) => Some(number.into()),
        Value::I16(number) => Some(number.into()),
        Value::U32(number) => Some(number.into()),
        Value::I32(number) => Some(number.into()),
        Value::F32(number) => Some(number.into()),
        Value::U64(number) => Some(number as f64),
        Value::I64(number) => Some(number as f64),
        Value::F64(number) => Some(number),
        Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
    }
}

/// Returns the start of a key of an untrusted file, without control characters.
fn plain(key: &str) -> String {
    key.chars().filter(|c| !c.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::gguf::write;

    /// Reads a header that has only these entries.
    fn read(values: &[(&str, Value)]) -> (RecommendedSampling, Vec<String>) {
        let entries = values.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone()));
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend([0, values.len() as u64].map(u64::to_le_bytes).concat());
        bytes.extend(write::metadata(&entries.collect()));
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        recommended_sampling(&Gguf::parse(Path::new("m.gguf"), &bytes).unwrap())
    }

    #[test]
    fn reads_the_names_of_llama_cpp() {
        let (recommended, ignored) = read(&[
            ("temp", Value::F32(0.6)),
            ("top_k", Value::I32(20)),
            ("top_p", Value::F32(0.95)),
            ("min_p", Value::F64(0.0)),
            ("penalty_repeat", Value::F32(1.05)),
        ]);
        let expected = RecommendedSampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repeat_penalty: Some(1.05),
        };
        assert_eq!((recommended, ignored), (expected, Vec::new()));
    }

    #[test]
    fn values_that_cannot_be_used_are_ignored_with_a_reason() {
        let (recommended, ignored) = read(&[
            ("temp", Value::F32(f32::NAN)),
            ("top_k", Value::I32(-1)),
            ("top_p", Value::String("0.95".into())),
            ("min_p", Value::Bool(true)),
            ("mirostat", Value::I32(2)),
        ]);
        assert!(recommended.is_empty());
        assert_eq!(ignored.len(), 5);
        for reason in [
            "general.sampling.temp: it is not in the range 0 to 5.",
            "general.sampling.top_k: it is not in the range 0 to 1000000.",
            "general.sampling.top_p: it is not a number.",
            "general.sampling.mirostat: Hunch has no such setting.",
        ] {
            assert!(ignored.iter().any(|text| text == reason), "{reason}: {ignored:?}");
        }
    }
}
