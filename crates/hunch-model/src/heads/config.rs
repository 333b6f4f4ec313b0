//! `config.json` of published heads: sizes of the layer, rotary embedding and the target they were made for.
//!
//! Files of SafeAILab, SpecForge and AngelSlim have flat entries. `speculators` keeps the sizes of the layer in
//! `transformer_layer_config`. Entries of GGUF files are presented in the same form.

use std::path::Path;

use hunch_error::{Error, Result};
use serde_json::Value;

use crate::spec::RopeKind;

/// Largest size of a configuration file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Configuration of a head with decoder layers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LayerConfig {
    /// Number of layers.
    pub(super) layers: usize,
    /// Width of the residual stream.
    pub(super) n_embd: usize,
    /// Width of the feed-forward layer.
    pub(super) n_ff: usize,
    /// Number of query heads.
    pub(super) n_head: usize,
    /// Number of key and value heads.
    pub(super) n_kv_head: usize,
    /// Width of an attention head.
    pub(super) head_dim: usize,
    /// Epsilon of the norms.
    pub(super) eps: f64,
    /// Rotary embedding.
    pub(super) rope: RopeConfig,
    /// Elements that are rotated together.
    pub(super) rope_kind: RopeKind,
    /// Tokens of the target, if the file says so.
    pub(super) n_vocab: Option<usize>,
    /// Tokens that the head scores, if the file says so.
    pub(super) n_draft_vocab: Option<usize>,
    /// Layers of the target after which it reads the residual stream, if the file says so.
    pub(super) taps: Option<Vec<usize>>,
    /// The target's states are normed before they become the residual stream.
    pub(super) norm_before_residual: bool,
    /// The head's own output is normed before it is fed back.
    pub(super) norm_output: bool,
    /// Name of the target.
    pub(super) target: Option<String>,
}

/// Rotary embedding of the layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RopeConfig {
    /// Base frequency.
    pub(super) base: f32,
    /// Scaling of the frequencies.
    pub(super) scaling: RopeScaling,
}

/// Scaling of rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RopeScaling {
    /// All frequencies are divided by this factor, 1 for none.
    Linear(f32),
    /// Low frequencies are divided by `factor`, high ones not, with a ramp between them (Llama 3.1).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Rotations within `context` below which a frequency is low.
        low: f64,
        /// Rotations within `context` above which a frequency is high.
        high: f64,
        /// Original context in tokens.
        context: f64,
    },
}

impl RopeScaling {
    /// Returns the divisor of a frequency.
    pub(super) fn divisor(self, frequency: f64) -> f64 {
        match self {
            Self::Linear(factor) => f64::from(factor),
            Self::Llama3 { factor, low, high, context } => {
                let rotations = context * frequency / (2.0 * std::f64::consts::PI);
                let unscaled = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                1.0 / ((1.0 - unscaled) / factor + unscaled)
            }
        }
    }
}

/// File of a configuration.
pub(super) const FILE: &str = "config.json";

/// Reads `config.json` in a folder.
///
/// # Errors
/// [`Error::InvalidModelFile`] if it is missing or is no JSON.
pub(super) fn read(folder: &Path) -> Result<Value> {
    let path = folder.join(FILE);
    let invalid = |reason: String| Error::InvalidModelFile { path: path.clone(), reason };
    let size =
        std::fs::metadata(&path).map_err(|error| invalid(format!("it cannot be read ({error})")))?.len();
    if size > MAX_BYTES {
        return Err(invalid(format!("it has {size} bytes, more than any configuration")));
    }
    let text =
        std::fs::read(&path).map_err(|source| Error::Io { action: "read", path: path.clone(), source })?;
    serde_json::from_slice(&text).map_err(|error| invalid(format!("it is no JSON ({error})")))
}

impl LayerConfig {
    /// Interprets a configuration. `file` is named in errors.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a value is missing or out of range, [`Error::UnsupportedModel`] for a layer that
    /// Hunch does not run.
    pub(super) fn of(config: &Value, file: &Path) -> Result<Self> {
        let entries = Entries { layer: layer_entries(config), file: ConfigFile(file) };
        let (n_embd, n_head) =
            (entries.required("hidden_size", 1 << 17)?, entries.required("num_attention_heads", 1 << 12)?);
        let n_kv_head = entries.size("num_key_value_heads", 1 << 12)?.unwrap_or(n_head);
        let head_dim = entries.size("head_dim", 1 << 12)?.unwrap_or(n_embd / n_head);
        if !n_head.is_multiple_of(n_kv_head) || head_dim == 0 || !head_dim.is_multiple_of(2) {
            let reason = format!(
                "{n_head} query heads, {n_kv_head} key heads of width {head_dim} do not fit together"
            );
            return Err(entries.file.invalid(reason));
        }
        entries.check_layer(config)?;
        Ok(Self {
            layers: entries.size("num_hidden_layers", 1 << 10)?.unwrap_or(1),
            n_embd,
            n_ff: entries.required("intermediate_size", 1 << 20)?,
            n_head,
            n_kv_head,
            head_dim,
            eps: entries.epsilon()?,
            rope: entries.rope()?,
            rope_kind: RopeKind::Halves,
            n_vocab: entries.size("vocab_size", 1 << 24)?,
            n_draft_vocab: Entries { layer: config, file: ConfigFile(file) }
                .size("draft_vocab_size", 1 << 24)?,
            taps: entries.taps(config)?,
            norm_before_residual: entries.file.flag(config, "norm_before_residual")?,
            norm_output: entries.file.flag(config, "norm_output")?,
            target: target_name(config),
        })
    }
}

/// Returns the part of a configuration with the sizes of the layers.
pub(super) fn layer_entries(config: &Value) -> &Value {
    config.get("transformer_layer_config").filter(|layer| layer.is_object()).unwrap_or(config)
}

/// Refuses layers with a sliding window, for heads that have none.
///
/// # Errors
/// [`Error::UnsupportedModel`] if the configuration states one.
pub(super) fn refuse_window(config: &Value, file: &Path) -> Result<()> {
    let entries = Entries { layer: layer_entries(config), file: ConfigFile(file) };
    let unused = entries.get("use_sliding_window").and_then(Value::as_bool) == Some(false);
    if entries.get("sliding_window").is_some() && !unused {
        return Err(entries.file.unsupported("its layer has a sliding window".into()));
    }
    Ok(())
}

/// Returns the name of the target that a configuration states.
pub(super) fn target_name(config: &Value) -> Option<String> {
    let verifier = config.pointer("/speculators_config/verifier/name_or_path");
    let named = [verifier, config.get("base_model_name_or_path"), config.get("target_model_name_or_path")];
    let named = named.into_iter().flatten().find_map(Value::as_str)?;
    let short: String = named.lines().next().unwrap_or_default().chars().take(80).collect();
    (!short.is_empty()).then_some(short)
}

/// File of a configuration, by which errors name it.
#[derive(Clone, Copy)]
pub(super) struct ConfigFile<'a>(pub(super) &'a Path);

impl ConfigFile<'_> {
    pub(super) fn invalid(self, reason: String) -> Error {
        Error::InvalidModelFile { path: self.0.to_path_buf(), reason }
    }

    pub(super) fn unsupported(self, reason: String) -> Error {
        Error::UnsupportedModel { path: self.0.to_path_buf(), reason }
    }

    /// Returns a flag, which is `false` if it is not stated.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if it is neither true nor false.
    fn flag(self, config: &Value, name: &str) -> Result<bool> {
        match config.get(name).filter(|value| !value.is_null()) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.invalid(format!("{name} is {other}, but it must be true or false"))),
        }
    }

    /// Returns a whole number within bounds. `name` is that of its entry.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if it is no such number.
    pub(super) fn number(self, name: &str, value: &Value, min: usize, max: usize) -> Result<usize> {
        let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
        number
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.invalid(format!("{name} is {value}, but it must be {min} to {max}")))
    }
}

/// Entries of the layer in a configuration.
struct Entries<'a> {
    layer: &'a Value,
    file: ConfigFile<'a>,
}

impl Entries<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.layer.get(name).filter(|value| !value.is_null())
    }

    fn size(&self, name: &str, max: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        self.file.number(name, value, 1, max).map(Some)
    }

    fn required(&self, name: &str, max: usize) -> Result<usize> {
        self.size(name, max)?.ok_or_else(|| self.file.invalid(format!("{name} is missing")))
    }

    fn positive(&self, value: &Value, name: &str) -> Result<f64> {
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.ok_or_else(|| self.file.invalid(format!("{name} is {value}, but it must be positive")))
    }

    fn epsilon(&self) -> Result<f64> {
        let eps = self.get("rms_norm_eps").map_or(Ok(1e-6), |eps| self.positive(eps, "rms_norm_eps"))?;
        if eps < 0.1 { Ok(eps) } else { Err(self.file.invalid(format!("rms_norm_eps is {eps}"))) }
    }

    /// Refuses layers that are computed in another way.
    fn check_layer(&self, config: &Value) -> Result<()> {
        let activation = self.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
        if activation != "silu" {
            return Err(self.file.unsupported(format!("the activation of its layer is \"{activation}\"")));
        }
        let width = config.get("target_hidden_size").and_then(Value::as_u64);
        let own = self.get("hidden_size").and_then(Value::as_u64);
        if let Some(width) = width.filter(|width| Some(*width) != own) {
            return Err(self
                .file
                .unsupported(format!("its layer is not as wide as the target's {width} values")));
        }
        Ok(())
    }

    fn rope(&self) -> Result<RopeConfig> {
        let scaling = self.get("rope_scaling").or_else(|| self.get("rope_parameters"));
        let entry =
            |name: &str| scaling.and_then(|scaling| scaling.get(name)).filter(|value| !value.is_null());
        let base = self.get("rope_theta").or_else(|| self.get("rope_parameters")?.get("rope_theta"));
        let base = base.map_or(Ok(10_000.0), |base| self.positive(base, "rope_theta"))? as f32;
        let number = |name: &str| match entry(name) {
            Some(value) => self.positive(value, name),
            None => Err(self.file.invalid(format!("rope_scaling has no {name}"))),
        };
        let kind = entry("rope_type").or_else(|| entry("type")).map_or(Some("default"), Value::as_str);
        let scaling = match kind {
            Some("default") => RopeScaling::Linear(1.0),
            Some("linear") => RopeScaling::Linear(number("factor")? as f32),
            Some("llama3") => {
                let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
                if high <= low {
                    return Err(self
                        .file
                        .invalid(format!("high_freq_factor {high} is not above low_freq_factor {low}")));
                }
                let context = number("original_max_position_embeddings")?;
                RopeScaling::Llama3 { factor: number("factor")?, low, high, context }
            }
            other => {
                return Err(self
                    .file
                    .unsupported(format!("its RoPE scaling is \"{}\"", other.unwrap_or_default())));
            }
        };
        Ok(RopeConfig { base, scaling })
    }

    /// Returns the layers after which the target's states are read.
    ///
    /// `eagle_config` of SpecForge counts the layers whose output is read, the entry of `speculators` those whose input
    /// is read.
    fn taps(&self, config: &Value) -> Result<Option<Vec<usize>>> {
        const NAME: &str = "eagle_aux_hidden_state_layer_ids";
        let list = |value: Option<&Value>| -> Result<_> {
            let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
            let not_a_list =
                || self.file.invalid(format!("{NAME} is {value}, but it must be a list of layers"));
            value.as_array().cloned().ok_or_else(not_a_list).map(Some)
        };
        let own = config.get("eagle_config").and_then(|own| own.get(NAME));
        let (list, shift) = match (list(own)?, list(config.get(NAME))?) {
            (Some(outputs), _) => (outputs, 0),
            (None, Some(inputs)) => (inputs, 1),
            (None, None) => return Ok(None),
        };
        let tap = |value: &Value| {
            let layer = value.as_u64().and_then(|layer| usize::try_from(layer).ok());
            layer
                .and_then(|layer| layer.checked_sub(shift))
                .ok_or_else(|| self.file.invalid(format!("{NAME} contains {value}")))
        };
        list.iter().map(tap).collect::<Result<_>>().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flat() -> Value {
        json!({
            "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "vocab_size": 128_256, "draft_vocab_size": 32_000
        })
    }

    fn config(value: &Value) -> Result<LayerConfig> {
        LayerConfig::of(value, Path::new("head/config.json"))
    }

    fn with(changes: Value) -> Value {
        let mut value = flat();
        value.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        value
    }

    #[test]
    fn flat_and_nested_files_have_the_same_meaning() {
        let plain = config(&flat()).unwrap();
        assert_eq!((plain.n_embd, plain.head_dim, plain.n_kv_head), (4096, 128, 8));
        assert_eq!((plain.rope.base, plain.rope.scaling), (10_000.0, RopeScaling::Linear(1.0)));
        assert_eq!(
            (plain.n_draft_vocab, &plain.taps, plain.norm_before_residual),
            (Some(32_000), &None, false)
        );
        let mut layer = flat();
        layer.as_object_mut().unwrap().remove("draft_vocab_size");
        let nested = config(&json!({
            "transformer_layer_config": layer, "draft_vocab_size": 32_000, "norm_before_residual": true,
            "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
            "speculators_config": { "verifier": { "name_or_path": "meta-llama/Llama-3.1-8B-Instruct" } }
        }))
        .unwrap();
        let expected = LayerConfig {
            norm_before_residual: true,
            taps: Some(vec![1, 15, 28]),
            target: Some("meta-llama/Llama-3.1-8B-Instruct".into()),
            ..plain
        };
        assert_eq!(nested, expected);
        let outputs = with(json!({ "eagle_config": { "eagle_aux_hidden_state_layer_ids": [1, 15, 28] } }));
        assert_eq!(config(&outputs).unwrap().taps, expected.taps);
    }

    #[test]
    fn llama3_scaling_leaves_high_frequencies() {
        let scaling = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192
        });
        let config = config(&with(json!({ "rope_scaling": scaling, "rope_theta": 5e5 }))).unwrap();
        let divisor = |wavelength: f64| config.rope.scaling.divisor(2.0 * std::f64::consts::PI / wavelength);
        // Above 8192 tokens scaled, below 2048 not, in between a ramp over rotations.
        assert_eq!((config.rope.base, divisor(10_000.0), divisor(1000.0)), (5e5, 8.0, 1.0));
        assert!((divisor(4096.0) - 1.0 / (2.0 / 3.0 / 8.0 + 1.0 / 3.0)).abs() < 1e-9);
    }

    #[test]
    fn other_layers_and_values_are_refused() {
        for (changes, why) in [
            (json!({ "num_hidden_layers": 0 }), "num_hidden_layers is 0"),
            (json!({ "hidden_act": "gelu" }), "gelu"),
            (json!({ "target_hidden_size": 8192 }), "8192"),
            (json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0 } }), "yarn"),
            (json!({ "rope_scaling": { "type": "linear" } }), "has no factor"),
            (json!({ "hidden_size": 0 }), "hidden_size is 0"),
            (json!({ "hidden_size": null }), "hidden_size is missing"),
            (json!({ "hidden_size": "wide" }), "hidden_size is \"wide\""),
            (json!({ "num_key_value_heads": 7 }), "do not fit"),
            (json!({ "rms_norm_eps": -1.0 }), "rms_norm_eps"),
            (json!({ "eagle_aux_hidden_state_layer_ids": [0, 1, 2] }), "contains 0"),
        ] {
            let error = config(&with(changes)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn windows_are_refused_unless_they_are_unused() {
        let refused = |changes| refuse_window(&with(changes), Path::new("head/config.json"));
        for window in [json!(128), json!(-1), json!("128")] {
            let error = refused(json!({ "sliding_window": window })).unwrap_err().to_string();
            assert!(error.contains("sliding window"), "{error}");
            assert!(refused(json!({ "sliding_window": window, "use_sliding_window": false })).is_ok());
        }
        assert!(refused(json!({ "sliding_window": null })).is_ok() && refused(json!({})).is_ok());
    }
}
