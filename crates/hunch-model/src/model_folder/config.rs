//! Translates `config.json` to the metadata of GGUF. Names of keys follow Hugging Face transformers on one side and
//! llama.cpp's converter on the other. No tensors here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hunch_error::{Error, Result};
use serde_json::Value as Json;

use super::affine::Mode;
use crate::gguf::{Array, ROPE_HALVES, Value};

/// Names of the norms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormNames {
    /// `input_layernorm` and `post_attention_layernorm`, before attention and before the feed-forward network.
    Llama,
    /// As Llama. GGUF calls the second one `post_attention_norm`.
    SeedOss,
    /// `post_attention_layernorm` and `post_feedforward_layernorm`, after both.
    After,
    /// Four norms, of Gemma.
    Gemma,
    /// Four norms, of GLM-4.
    Glm4,
}

/// A model type of Hugging Face.
pub(super) struct Family {
    model_type: &'static str,
    /// Architecture of GGUF.
    architecture: &'static str,
    pub(super) norms: NormNames,
    /// `true` if GGUF has another order of the rows of queries and keys.
    halves: bool,
    /// `true` if 1 is added to the weights of norms.
    pub(super) norms_add_one: bool,
    /// `true` if `sliding_window` counts without a switch.
    windows: bool,
    /// Numbers that files leave out, as in the configuration classes of transformers.
    defaults: &'static [(&'static str, f64)],
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "llama",
    norms: NormNames::Llama,
    halves: true,
    norms_add_one: false,
    windows: false,
    defaults: &[],
};
const QWEN2: Family = Family { model_type: "qwen2", architecture: "qwen2", halves: false, ..LLAMA };
const GEMMA2: Family = Family {
    model_type: "gemma2",
    architecture: "gemma2",
    norms: NormNames::Gemma,
    norms_add_one: true,
    windows: true,
    ..QWEN2
};

const FAMILIES: [Family; 14] = [
    LLAMA,
    Family { model_type: "mistral", windows: true, ..LLAMA },
    Family { model_type: "smollm3", architecture: "smollm3", ..LLAMA },
    Family { model_type: "granite", architecture: "granite", ..LLAMA },
    QWEN2,
    Family { model_type: "qwen3", architecture: "qwen3", ..QWEN2 },
    Family { model_type: "phi3", architecture: "phi3", windows: true, ..QWEN2 },
    Family { model_type: "glm4", architecture: "glm4", norms: NormNames::Glm4, ..QWEN2 },
    Family { model_type: "seed_oss", architecture: "seed_oss", norms: NormNames::SeedOss, ..QWEN2 },
    Family { model_type: "olmo2", architecture: "olmo2", norms: NormNames::After, ..QWEN2 },
    Family { model_type: "olmo3", architecture: "olmo2", norms: NormNames::After, windows: true, ..QWEN2 },
    Family {
        model_type: "exaone4",
        architecture: "exaone4",
        norms: NormNames::After,
        windows: true,
        ..QWEN2
    },
    GEMMA2,
    Family {
        model_type: "gemma3_text",
        architecture: "gemma3",
        defaults: &[
            ("num_attention_heads", 8.0),
            ("num_key_value_heads", 4.0),
            ("head_dim", 256.0),
            ("max_position_embeddings", 131_072.0),
            ("rms_norm_eps", 1e-6),
            ("rope_theta", 1e6),
            ("query_pre_attn_scalar", 256.0),
        ],
        ..GEMMA2
    },
];

/// Returns `true` if folders of this model type run. `gemma3` has the text model inside.
pub(super) fn runs_model_type(name: &str) -> bool {
    name == "gemma3" || FAMILIES.iter().any(|family| family.model_type == name)
}

/// Contents of `config.json`.
pub(super) struct ModelConfig {
    pub(super) path: PathBuf,
    /// Parameters of the text model.
    text: Json,
    /// Parameters of the whole model, which has the quantisation.
    whole: Json,
    pub(super) family: &'static Family,
}

impl ModelConfig {
    /// Finds the family of a model. `path` is used in errors.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for other families.
    pub(super) fn new(path: &Path, whole: Json) -> Result<Self> {
        let text = whole.get("text_config").filter(|text| text.is_object()).unwrap_or(&whole).clone();
        let model_type = text.get("model_type").or_else(|| whole.get("model_type"));
        let model_type = model_type.and_then(Json::as_str).unwrap_or_default().to_owned();
        let Some(family) = FAMILIES.iter().find(|family| family.model_type == model_type) else {
            let reason =
                format!("its architecture is \"{}\"", model_type.chars().take(60).collect::<String>());
            return Err(Error::UnsupportedModel { path: path.to_path_buf(), reason });
        };
        Ok(Self { path: path.to_path_buf(), text, whole, family })
    }

    pub(super) fn invalid(&self, reason: String) -> Error {
        Error::InvalidModelFile { path: self.path.clone(), reason }
    }

    pub(super) fn unsupported(&self, reason: String) -> Error {
        Error::UnsupportedModel { path: self.path.clone(), reason }
    }

    /// Returns a parameter of the text model, or of the whole model. `null` counts as missing.
    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        let found = self.text.get(key).or_else(|| self.whole.get(key));
        found.filter(|value| !value.is_null())
    }

    /// Returns `true` if the output head is the embedding table.
    pub(super) fn is_tied(&self) -> Option<bool> {
        self.get("tie_word_embeddings").and_then(Json::as_bool)
    }

    fn default(&self, key: &str) -> Option<f64> {
        self.family.defaults.iter().find(|(own, _)| *own == key).map(|(_, number)| *number)
    }

    fn size(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(self.default(key).map(|size| size as u32)) };
        let size = value.as_u64().and_then(|size| u32::try_from(size).ok());
        size.map(Some)
            .ok_or_else(|| self.invalid(format!("{key} in config.json is {value}, which is not a size")))
    }

    fn number(&self, key: &str) -> Result<Option<f32>> {
        let Some(value) = self.get(key) else { return Ok(self.default(key).map(|number| number as f32)) };
        let number = value.as_f64().filter(|number| number.is_finite());
        let number = number
            .ok_or_else(|| self.invalid(format!("{key} in config.json is {value}, which is not a number")))?;
        Ok(Some(number as f32))
    }

    /// Returns the bits of most quantised weights. `None` if there are none.
    pub(super) fn bits(&self) -> Option<u64> {
        self.get("quantization")?.get("bits")?.as_u64()
    }

    /// Returns how a matrix is quantised, given its name without `.weight`.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] for sizes that MLX does not write, [`Error::UnsupportedModel`] for other modes.
    pub(super) fn mode(&self, name: &str) -> Result<Mode> {
        let table = ["quantization", "quantization_config"].iter().find_map(|key| self.get(key));
        let Some(table) = table.filter(|table| table.is_object()) else {
            return Err(self.invalid(format!("{name} is quantised, but config.json has no quantization")));
        };
        let own = table.get(name).filter(|own| own.is_object());
        let value = |key: &str| own.and_then(|own| own.get(key)).or_else(|| table.get(key));
        // A matrix with sizes of its own is affine unless it says otherwise.
        match own.unwrap_or(table).get("mode").and_then(Json::as_str).unwrap_or("affine") {
            "affine" => {}
            "mxfp4" => return Ok(Mode::Mxfp4),
            other => {
                return Err(self.unsupported(format!("its weights are quantised by the method \"{other}\"")));
            }
        }
        let size = |key: &str, default: u64| {
            let size =
                value(key).map_or(Some(default), Json::as_u64).and_then(|size| usize::try_from(size).ok());
            size.ok_or_else(|| self.invalid(format!("{key} of the quantization is not a size")))
        };
        let (bits, group) = (size("bits", 4)?, size("group_size", 64)?);
        if ![32, 64, 128].contains(&group) {
            return Err(self.invalid(format!("the groups of {name} have {group} weights, not 32, 64 or 128")));
        }
        let mode = Mode::Affine { bits, group };
        match mode.dtype() {
            Some(_) => Ok(mode),
            None => {
                Err(self.invalid(format!("the weights of {name} have {bits} bits, not 2, 3, 4, 5, 6 or 8")))
            }
        }
    }

    /// Returns the metadata of the architecture.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] for values of a wrong type, [`Error::UnsupportedModel`] for features that are not
    /// supported.
    pub(super) fn metadata(&self) -> Result<BTreeMap<String, Value>> {
        self.check_activation()?;
        let mut out = Metadata { architecture: self.family.architecture, entries: BTreeMap::new() };
        out.entries.insert("general.architecture".into(), Value::String(self.family.architecture.into()));
        for (from, to) in [
            ("hidden_size", "embedding_length"),
            ("num_hidden_layers", "block_count"),
            ("intermediate_size", "feed_forward_length"),
            ("num_attention_heads", "attention.head_count"),
            ("num_key_value_heads", "attention.head_count_kv"),
            ("head_dim", "attention.key_length"),
            ("max_position_embeddings", "context_length"),
        ] {
            if let Some(size) = self.size(from)? {
                out.put(to, Value::U32(size));
            }
        }
        for (from, to) in [
            ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
            ("rope_local_base_freq", "rope.freq_base_swa"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("attention_multiplier", "attention.scale"),
            ("logits_scaling", "logit_scale"),
        ] {
            if let Some(number) = self.number(from)? {
                out.put(to, Value::F32(number));
            }
        }
        if let Some(scalar) = self.number("query_pre_attn_scalar")? {
            out.put("attention.scale", Value::F32(1.0 / scalar.sqrt()));
        }
        if self.family.halves {
            out.entries.insert(ROPE_HALVES.into(), Value::Bool(true));
        }
        // transformers 5 writes it with the other parameters of the rotation.
        let share = match self.rope_number("partial_rotary_factor") {
            Some(share) => Some(share as f32),
            None => self.number("partial_rotary_factor")?,
        };
        if let (Some(share), Some(width)) = (share, self.head_dim()?) {
            out.put("rope.dimension_count", Value::U32((share * width as f32).round() as u32));
        }
        self.check_rotated_layers()?;
        self.windows(&mut out)?;
        self.rope(&mut out)?;
        Ok(out.entries)
    }

    /// Returns the width of a head.
    fn head_dim(&self) -> Result<Option<u32>> {
        if let Some(width) = self.size("head_dim")? {
            return Ok(Some(width));
        }
        let (all, heads) = (self.size("hidden_size")?, self.size("num_attention_heads")?);
        Ok(all.zip(heads.filter(|&heads| heads > 0)).map(|(all, heads)| all / heads))
    }

    fn check_activation(&self) -> Result<()> {
        let own = ["hidden_activation", "hidden_act"].iter().find_map(|key| self.get(key)?.as_str());
        let expected: &[&str] =
            if self.family.norms == NormNames::Gemma { &["gelu_pytorch_tanh", "gelu"] } else { &["silu"] };
        match own {
            Some(other) if !expected.contains(&other) => {
                Err(self.unsupported(format!("its activation is \"{other}\"")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the layers without rotation are every fourth, as the architecture of SmolLM3 has them.
    fn check_rotated_layers(&self) -> Result<()> {
        let Some(layers) = self.get("no_rope_layers").and_then(Json::as_array) else { return Ok(()) };
        let usual = |(i, on): (usize, &Json)| on.as_u64() == Some(u64::from(!(i + 1).is_multiple_of(4)));
        if layers.iter().enumerate().all(usual) {
            return Ok(());
        }
        Err(self.unsupported("its layers without rotary embedding are not every fourth".into()))
    }

    fn windows(&self, out: &mut Metadata) -> Result<()> {
        let used = self.get("use_sliding_window").and_then(Json::as_bool).unwrap_or(self.family.windows);
        let Some(window) = self.size("sliding_window")?.filter(|_| used) else { return Ok(()) };
        out.put("attention.sliding_window", Value::U32(window));
        if let Some(types) = self.get("layer_types").and_then(Json::as_array) {
            let layers = types.iter().map(|layer| layer.as_str() == Some("sliding_attention")).collect();
            out.put("attention.sliding_window_pattern", Value::Array(Array::Bool(layers)));
        } else if let Some(step) = self.get("sliding_window_pattern").and_then(Json::as_u64) {
            out.put("attention.sliding_window_pattern", Value::U32(u32::try_from(step).unwrap_or(0)));
        }
        Ok(())
    }

    /// Returns the parameters of the rotary embedding of all layers, or of those without a window.
    fn rope_parameters(&self) -> Option<&Json> {
        let found = ["rope_parameters", "rope_scaling"].iter().find_map(|key| self.get(key))?;
        Some(found.get("full_attention").unwrap_or(found))
    }

    /// Returns the base of the rotary embedding of layers with a window, where the layers have their own.
    fn local_base(&self) -> Option<f64> {
        self.get("rope_parameters")?.get("sliding_attention")?.get("rope_theta")?.as_f64()
    }

    /// Returns a number of the rotary embedding.
    fn rope_number(&self, key: &str) -> Option<f64> {
        self.rope_parameters()?.get(key)?.as_f64().filter(|number| number.is_finite())
    }

    fn rope_base(&self) -> Result<Option<f32>> {
        match self.rope_number("rope_theta") {
            Some(base) => Ok(Some(base as f32)),
            None => self.number("rope_theta"),
        }
    }

    fn rope(&self, out: &mut Metadata) -> Result<()> {
        if let Some(base) = self.rope_base()? {
            out.put("rope.freq_base", Value::F32(base));
        }
        if let Some(base) = self.local_base() {
            out.put("rope.freq_base_swa", Value::F32(base as f32));
        }
        let number = |key: &str| self.rope_number(key).map(|number| number as f32);
        match self.rope_type() {
            "default" | "llama3" | "none" => return Ok(()),
            "longrope" | "su" => return self.longrope(out),
            "linear" => out.put("rope.scaling.type", Value::String("linear".into())),
            "yarn" => {
                out.put("rope.scaling.type", Value::String("yarn".into()));
                for (from, to) in [
                    ("beta_fast", "rope.scaling.yarn_beta_fast"),
                    ("beta_slow", "rope.scaling.yarn_beta_slow"),
                ] {
                    if let Some(value) = number(from) {
                        out.put(to, Value::F32(value));
                    }
                }
                let growth = |multiplier: f32, factor: f32| 1.0 + 0.1 * multiplier * factor.max(1.0).ln();
                let factor = number("factor").unwrap_or(1.0);
                let ratio = number("mscale").zip(number("mscale_all_dim"));
                let ratio = ratio.map(|(own, all)| growth(own, factor) / growth(all, factor));
                if let Some(magnitude) = number("attention_factor").or(ratio) {
                    // YaRN's own factor is applied on top.
                    out.put("rope.scaling.attn_factor", Value::F32(magnitude / growth(1.0, factor)));
                }
                self.original_context(out);
            }
            other => return Err(self.unsupported(format!("its RoPE scaling is \"{other}\""))),
        }
        let factor = number("factor").ok_or_else(|| self.invalid("its RoPE scaling has no factor".into()))?;
        out.put("rope.scaling.factor", Value::F32(factor));
        Ok(())
    }

    fn rope_type(&self) -> &str {
        let parameters = self.rope_parameters();
        let named = |key: &str| parameters?.get(key)?.as_str();
        named("rope_type").or_else(|| named("type")).unwrap_or("default")
    }

    fn original_context(&self, out: &mut Metadata) {
        let own = self.rope_number("original_max_position_embeddings");
        let own = own.or_else(|| self.get("original_max_position_embeddings")?.as_f64());
        if let Some(context) = own {
            out.put("rope.scaling.original_context_length", Value::U32(context as u32));
        }
    }

    /// Longrope multiplies queries and keys by sqrt(1 + ln(extension) / ln(original context)).
    fn longrope(&self, out: &mut Metadata) -> Result<()> {
        out.put("rope.scaling.type", Value::String("longrope".into()));
        self.original_context(out);
        let own = |key: &str| self.rope_number(key).or_else(|| self.get(key)?.as_f64());
        let original = own("original_max_position_embeddings");
        let (Some(original), Some(context)) = (original, self.size("max_position_embeddings")?) else {
            return Err(self.invalid("its RoPE scaling has no original context".into()));
        };
        let extension = f64::from(context) / original.max(2.0);
        let computed =
            if extension > 1.0 { (1.0 + extension.ln() / original.max(2.0).ln()).sqrt() } else { 1.0 };
        out.put(
            "rope.scaling.attn_factor",
            Value::F32(self.rope_number("attention_factor").unwrap_or(computed) as f32),
        );
        Ok(())
    }

    /// Returns tensors of the rotary embedding that GGUF has as weights: name and values.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a parameter is missing.
    pub(super) fn rope_tensors(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        match self.rope_type() {
            "llama3" => Ok(vec![("rope_freqs.weight", self.llama3_factors()?)]),
            "longrope" | "su" => {
                let list = |key: &str| {
                    let list = self.rope_parameters()?.get(key)?.as_array()?;
                    list.iter().map(|factor| Some(factor.as_f64()? as f32)).collect::<Option<Vec<f32>>>()
                };
                let wanted = |key: &str| {
                    list(key)
                        .filter(|list| !list.is_empty())
                        .ok_or_else(|| self.invalid(format!("its RoPE scaling has no numbers in {key}")))
                };
                Ok(vec![
                    ("rope_factors_long.weight", wanted("long_factor")?),
                    ("rope_factors_short.weight", wanted("short_factor")?),
                ])
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Computes the factors of Llama 3.1: frequencies that turn seldom within the original context are divided, and
    /// those in between in part (`_compute_llama3_parameters` of transformers).
    fn llama3_factors(&self) -> Result<Vec<f32>> {
        let wanted = |key: &str| {
            let found = self.rope_number(key).filter(|&number| number > 0.0);
            found.ok_or_else(|| self.invalid(format!("its RoPE scaling has no {key}")))
        };
        let (factor, low, high) =
            (wanted("factor")?, wanted("low_freq_factor")?, wanted("high_freq_factor")?);
        let original = wanted("original_max_position_embeddings")?;
        let width = self.head_dim()?.ok_or_else(|| self.invalid("hidden_size is missing".into()))?;
        let base = self.rope_base()?.map_or(10_000.0, f64::from);
        let one = |i: u32| {
            let wavelength = 2.0 * std::f64::consts::PI * base.powf(f64::from(2 * i) / f64::from(width));
            let turns = original / wavelength;
            let kept = ((turns - low) / (high - low).max(1e-9)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - kept) / factor + kept)) as f32
        };
        // A width that no model has is rejected with the other parameters.
        Ok((0..width.min(1 << 12) / 2).map(one).collect())
    }
}

/// Metadata of an architecture.
struct Metadata {
    architecture: &'static str,
    entries: BTreeMap<String, Value>,
}

impl Metadata {
    /// Sets an entry of the architecture.
    fn put(&mut self, key: &str, value: Value) {
        self.entries.insert(format!("{}.{key}", self.architecture), value);
    }
}
