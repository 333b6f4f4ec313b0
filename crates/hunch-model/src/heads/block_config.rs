//! Entries of `config.json` that only DFlash heads have: the block, the target's layers, and what the rows of a block
//! see. The sizes of the layers are in [`config`](super::config).
//!
//! Published files differ in where entries are. Newer ones keep them in `dflash_config`.
//!
//! # Rows that a block sees
//!
//! A layer with `sliding_attention` sees the positions less than `sliding_window` before a row's own. It is causal, a
//! layer with `full_attention` is not. `is_causal`, or else `dflash_config.causal`, overrides that for all layers. A layer
//! with a window that is not causal sees as many positions after a row. `use_swa` gives all layers the window without
//! making them causal. Sources: z-lab/dflash (`model.py`, `_attention_mask`), vllm-project/vllm (`qwen3_dflash.py`), and
//! sgl-project/SpecForge, which trains with that mask.
//!
//! llama.cpp runs GGUF files that do not state `attention.causal` without causal layers. Their weights were trained with
//! the rule above, so it applies to them too.

use std::path::Path;

use hunch_core::limits::MAX_DRAFT;
use hunch_core::token::TokenId;
use hunch_error::Result;
use serde_json::Value;

use super::config::{ConfigFile, LayerConfig, layer_entries};
use super::layer::BlockAttention;
use super::target_parts::taps;

/// Most layers and most streams of the target.
pub(super) const MOST: usize = 32;
/// First layer with a window, in files with `use_sliding_window` and without `layer_types`, if `max_window_layers` is
/// missing (Hugging Face's Qwen3 configuration).
const FIRST_WINDOW: usize = 28;

/// Entries of `config.json` that other heads do not have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockConfig {
    /// Rows of a block: the last token and masks.
    rows: usize,
    /// The row of the last token scores the first token of a draft. Otherwise the row after it does.
    from_anchor: bool,
    /// Token that stands for one to be drafted.
    pub(super) mask: TokenId,
    /// Layers of the target after which the residual stream is read, if stated.
    taps: Option<Vec<usize>>,
    /// Layers of the target, if stated.
    target_layers: Option<usize>,
    /// Positions that a block sees, by layer.
    pub(super) attention: Vec<BlockAttention>,
}

impl BlockConfig {
    /// Interprets the configuration of a head of `layers` layers. `file` is named in errors.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a value is missing or out of range, [`Error::UnsupportedModel`] for an option that
    /// Hunch does not compute.
    pub(super) fn of(config: &Value, layers: usize, file: &Path) -> Result<Self> {
        let entries = Entries { config, file: ConfigFile(file) };
        entries.check_neutral()?;
        // A layout of `speculators`, whose numbers of layers may mean their inputs.
        if let Some(value) = entries.get("aux_hidden_state_layer_ids") {
            return Err(entries
                .file
                .unsupported(format!("aux_hidden_state_layer_ids is {value}, which is not supported")));
        }
        let rows = entries.whole("block_size", 0, 1 << 10)?.unwrap_or(16);
        let from_anchor = entries.begins_at_anchor()?;
        if rows < 2 {
            return Err(entries.file.invalid(format!("block_size is {rows}, so nothing is drafted")));
        }
        let mask = entries.whole("mask_token_id", 0, 1 << 24)?;
        let mask = mask.ok_or_else(|| entries.file.invalid("mask_token_id is missing".into()))?;
        let taps = match entries.get("target_layer_ids") {
            Some(Value::Array(layers)) if !layers.is_empty() && layers.len() <= MOST => {
                let tap = |layer| entries.file.number("target_layer_ids", layer, 0, 1 << 10);
                Some(layers.iter().map(tap).collect::<Result<_>>()?)
            }
            Some(other) => return Err(entries.file.invalid(format!("target_layer_ids is {other}"))),
            None => None,
        };
        Ok(Self {
            rows,
            from_anchor,
            mask: mask as TokenId,
            taps,
            target_layers: entries.whole("num_target_layers", 1, 1 << 10)?,
            attention: entries.attention(layers)?,
        })
    }

    /// Returns the most tokens of a draft.
    pub(super) fn depth(&self) -> usize {
        (self.rows - self.first_row()).min(MAX_DRAFT)
    }

    /// Returns the row of a block that scores the first token.
    pub(super) fn first_row(&self) -> usize {
        usize::from(!self.from_anchor)
    }

    /// Returns the layers of a target of `layers` layers that are read.
    ///
    /// # Errors
    /// If the head was made for a target of another number of layers.
    pub(super) fn taps(&self, config: &LayerConfig, layers: usize) -> Result<Vec<usize>, String> {
        if let Some(stated) = self.target_layers.filter(|stated| *stated != layers) {
            return Err(format!("it was made for a target of {stated} layers, and this one has {layers}"));
        }
        let stated = self.taps.clone().unwrap_or_else(|| usual_taps(layers, config.layers));
        taps(layers, Some(&stated), stated.len())
    }

    /// Returns the number of layers of the target that are read.
    pub(super) fn reads(&self, config: &LayerConfig) -> usize {
        self.taps.as_ref().map_or(config.layers, Vec::len)
    }

    /// Returns the layers that are read, if stated.
    pub(super) fn stated_taps(&self) -> Option<Vec<usize>> {
        self.taps.clone()
    }

    /// Returns the layers of the target, if stated.
    pub(super) fn target_layers(&self) -> Option<usize> {
        self.target_layers
    }
}

/// Returns the layers of the target that are read by default. There are as many as the head has, evenly from the second
/// to the third from the end.
fn usual_taps(layers: usize, count: usize) -> Vec<usize> {
    if count == 1 {
        return vec![layers / 2];
    }
    let span = layers.saturating_sub(4) as f64;
    (0..count).map(|i| (1.0 + i as f64 * span / (count - 1) as f64).round_ties_even() as usize).collect()
}

/// Entries of a configuration.
struct Entries<'a> {
    config: &'a Value,
    file: ConfigFile<'a>,
}

impl Entries<'_> {
    /// Returns an entry, the one in `dflash_config` first.
    fn get(&self, name: &str) -> Option<&Value> {
        let own = self.config.get("dflash_config").and_then(|own| own.get(name));
        own.or_else(|| self.config.get(name)).filter(|value| !value.is_null())
    }

    /// Returns an entry of the layers, or else one as [`get`](Self::get) does.
    fn of_layers(&self, name: &str) -> Option<&Value> {
        layer_entries(self.config).get(name).filter(|value| !value.is_null()).or_else(|| self.get(name))
    }

    /// Returns a number of positions. One that is larger than any context hides nothing.
    fn window(&self, name: &str, value: &Value) -> Result<usize> {
        let window = value.as_u64().filter(|window| *window > 0);
        let window = window.map(|window| usize::try_from(window).unwrap_or(usize::MAX));
        window.ok_or_else(|| {
            self.file.invalid(format!("{name} is {value}, but it must be a whole number above 0"))
        })
    }

    fn whole(&self, name: &str, min: usize, max: usize) -> Result<Option<usize>> {
        self.get(name).map(|value| self.file.number(name, value, min, max)).transpose()
    }

    fn flag(&self, name: &str, value: Option<&Value>) -> Result<Option<bool>> {
        match value {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.file.invalid(format!("{name} is {other}, but it must be true or false"))),
        }
    }

    /// Returns whether the row of the last token scores the first token of a draft.
    ///
    /// Without an entry, it does in DeepSeek's own heads (deepseek-ai/DeepSpec). SpecForge's heads can have the same
    /// architecture, and there it does not.
    fn begins_at_anchor(&self) -> Result<bool> {
        if let Some(stated) = self.flag("sample_from_anchor", self.get("sample_from_anchor"))? {
            return Ok(stated);
        }
        let architectures = self.config.get("architectures").and_then(Value::as_array);
        let is_deepspec = architectures.is_some_and(|all| all.iter().any(|of| of == "Qwen3DSparkModel"));
        Ok(is_deepspec && self.get("projector_type").is_none())
    }

    /// Refuses options that do not have their neutral value.
    fn check_neutral(&self) -> Result<()> {
        let unchanged = |value: &Value, neutral: f64| {
            value.as_f64() == Some(neutral) || value.as_bool() == Some(neutral != 0.0)
        };
        for (name, neutral) in [
            ("final_logit_softcapping", 0.0),
            ("attention_value_scale", 1.0),
            ("output_multiplier", 1.0),
            ("input_embedding_scale", 1.0),
            ("partial_rotary_factor", 1.0),
            ("conv_kernel_size", 0.0),
            ("selector_rank", 0.0),
            ("rope_is_neox_style", 1.0),
            ("attention_scale", 0.0),
            ("attention_sink_bias", 0.0),
            ("add_swa_attention_sink_bias", 0.0),
            ("sliding_window_non_causal", 0.0),
        ] {
            let rotary = self.config.get("rope_parameters").and_then(|own| own.get(name));
            let stated = self.get(name).or(rotary.filter(|value| !value.is_null()));
            if let Some(value) = stated.filter(|value| !unchanged(value, neutral)) {
                return Err(self.file.unsupported(format!("{name} is {value}, which is not supported")));
            }
        }
        Ok(())
    }

    /// Returns the positions that a block sees in each layer.
    fn attention(&self, layers: usize) -> Result<Vec<BlockAttention>> {
        let first = self.config.get("is_causal").filter(|value| !value.is_null());
        let causal = match self.flag("is_causal", first.or_else(|| self.get("is_causal")))? {
            Some(causal) => Some(causal),
            None => self.flag("causal", self.get("causal"))?,
        };
        let slides = self.sliding_layers(layers)?;
        // Not causal by itself.
        let forced = !slides.contains(&true) && self.flag("use_swa", self.get("use_swa"))? == Some(true);
        let named = self.get("swa_window_size").map(|size| ("swa_window_size", size));
        let window = match named.or_else(|| Some(("sliding_window", self.of_layers("sliding_window")?))) {
            _ if !forced && !slides.contains(&true) => None,
            Some((name, size)) => Some(self.window(name, size)?),
            None => {
                return Err(self
                    .file
                    .invalid("layers have sliding attention, but sliding_window is missing".into()));
            }
        };
        let of = |&slides: &bool| BlockAttention {
            window: window.filter(|_| slides || forced),
            causal: causal.unwrap_or(slides),
        };
        Ok(slides.iter().map(of).collect())
    }

    /// Returns for each layer whether it has a window.
    fn sliding_layers(&self, layers: usize) -> Result<Vec<bool>> {
        let used = self.flag("use_sliding_window", self.of_layers("use_sliding_window"))?;
        let types = match self.of_layers("layer_types") {
            Some(Value::Array(types)) => types,
            Some(other) => {
                return Err(self.file.invalid(format!("layer_types is {other}, which is not a list")));
            }
            None if used == Some(true) && self.of_layers("sliding_window").is_some() => {
                let first = self.of_layers("max_window_layers");
                let first = first.map(|value| self.file.number("max_window_layers", value, 0, 1 << 10));
                let first = first.transpose()?.unwrap_or(FIRST_WINDOW);
                return Ok((0..layers).map(|layer| layer >= first).collect());
            }
            None => {
                let says = used.is_some() || self.get("use_swa").is_some();
                if let Some(window) = self.of_layers("sliding_window").filter(|_| !says) {
                    let reason =
                        format!("sliding_window is {window}, and no entry says which layers have it");
                    return Err(self.file.unsupported(reason));
                }
                return Ok(vec![false; layers]);
            }
        };
        if types.len() != layers {
            let reason = format!("layer_types has {} entries for {layers} layers", types.len());
            return Err(self.file.invalid(reason));
        }
        let slides = |value: &Value| match value.as_str() {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(self.file.unsupported(format!("layer_types contains {value}"))),
        };
        let slides: Vec<bool> = types.iter().map(slides).collect::<Result<_>>()?;
        if slides.contains(&true) && used == Some(false) {
            let reason = "layer_types has sliding layers, but use_sliding_window is false";
            return Err(self.file.invalid(reason.into()));
        }
        Ok(slides)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FULL: BlockAttention = BlockAttention { window: None, causal: false };

    fn block(config: &Value) -> Result<BlockConfig> {
        BlockConfig::of(config, 2, Path::new("head/config.json"))
    }

    #[test]
    fn usual_taps_match_published_files() {
        // Qwen3 4B and 8B with 5 layers.
        assert_eq!(usual_taps(36, 5), [1, 9, 17, 25, 33]);
        assert_eq!(usual_taps(32, 1), [16]);
        assert_eq!(usual_taps(32, 5), [1, 8, 15, 22, 29]);
    }

    #[test]
    fn reads_own_entries_before_those_of_the_layer() {
        let config = json!({
            "block_size": 16, "dflash_config": { "mask_token_id": 9, "target_layer_ids": [1, 3], "block_size": 8 },
            "is_causal": false, "num_target_layers": 4
        });
        let expected = BlockConfig {
            rows: 8,
            from_anchor: false,
            mask: 9,
            taps: Some(vec![1, 3]),
            target_layers: Some(4),
            attention: vec![FULL; 2],
        };
        assert_eq!(block(&config).unwrap(), expected);
        let plain = block(&json!({ "mask_token_id": 9 })).unwrap();
        assert_eq!((plain.rows, plain.depth(), plain.taps), (16, 15.min(MAX_DRAFT), None));
    }

    /// Entries as they are in published files, and the masks of their reference code.
    #[test]
    fn layers_see_what_the_reference_shows_them() {
        let attention = |changes: Value| {
            let mut config = json!({ "dflash_config": { "mask_token_id": 9 } });
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            block(&config).map(|block| block.attention)
        };
        let window = |window, causal| BlockAttention { window: Some(window), causal };
        let mixed = json!(["sliding_attention", "full_attention"]);
        for (changes, expected) in [
            // Qwen3.5 and Qwen3.6: causal where a window is.
            (
                json!({ "layer_types": mixed, "sliding_window": 2048, "use_sliding_window": true, "max_window_layers": 2 }),
                [window(2048, true), FULL],
            ),
            (json!({ "layer_types": mixed, "sliding_window": 1 }), [window(1, true), FULL]),
            (json!({ "layer_types": mixed, "sliding_window": u64::MAX }), [window(usize::MAX, true), FULL]),
            (
                json!({ "transformer_layer_config": { "layer_types": mixed, "sliding_window": 64 } }),
                [window(64, true), FULL],
            ),
            // Stated for all layers, first at the top.
            (
                json!({ "layer_types": mixed, "sliding_window": 64, "is_causal": false }),
                [window(64, false), FULL],
            ),
            (
                json!({ "layer_types": mixed, "sliding_window": 64, "is_causal": true,
                    "dflash_config": { "mask_token_id": 9, "causal": false } }),
                [window(64, true), BlockAttention { window: None, causal: true }],
            ),
            (json!({ "causal": true }), [BlockAttention { window: None, causal: true }; 2]),
            // MiMo: a window in all layers, not causal by itself.
            (
                json!({ "sliding_window": 8, "layer_types": ["full_attention", "full_attention"],
                    "dflash_config": { "mask_token_id": 9, "use_swa": true, "swa_window_size": 128 } }),
                [window(128, false); 2],
            ),
            (
                json!({ "sliding_window": 8, "dflash_config": { "mask_token_id": 9, "use_swa": true } }),
                [window(8, false); 2],
            ),
            // Without types, from `max_window_layers` on. Qwen3's default is beyond these layers.
            (
                json!({ "use_sliding_window": true, "sliding_window": 32, "max_window_layers": 1 }),
                [FULL, window(32, true)],
            ),
            (json!({ "use_sliding_window": true, "sliding_window": 4096 }), [FULL; 2]),
            // Entries that say nothing.
            (json!({ "sliding_window": 2048, "use_sliding_window": false }), [FULL; 2]),
            (json!({ "layer_types": ["full_attention", "full_attention"], "sliding_window": 0 }), [FULL; 2]),
            (json!({ "sliding_window": null, "layer_types": null }), [FULL; 2]),
        ] {
            assert_eq!(attention(changes.clone()).unwrap(), expected, "{changes}");
        }
        for (changes, why) in [
            (json!({ "layer_types": mixed, "sliding_window": 0 }), "sliding_window is 0, but it must be a"),
            (json!({ "layer_types": mixed, "sliding_window": -3 }), "sliding_window is -3"),
            (json!({ "layer_types": mixed, "sliding_window": 2.5 }), "sliding_window is 2.5"),
            (json!({ "layer_types": mixed, "sliding_window": "64" }), "sliding_window is \"64\""),
            (json!({ "layer_types": mixed, "sliding_window": [64] }), "sliding_window is [64]"),
            (json!({ "layer_types": mixed }), "sliding_window is missing"),
            (
                json!({ "layer_types": mixed, "sliding_window": 9, "use_sliding_window": false }),
                "use_sliding_window is false",
            ),
            (json!({ "sliding_window": 128 }), "no entry says which layers"),
            (json!({ "layer_types": ["full_attention"] }), "1 entries for 2 layers"),
            (json!({ "layer_types": "sliding_attention" }), "which is not a list"),
            (json!({ "layer_types": ["full_attention", 3] }), "layer_types contains 3"),
            (
                json!({ "layer_types": ["full_attention", "chunked_attention"] }),
                "contains \"chunked_attention\"",
            ),
            (json!({ "is_causal": "no" }), "is_causal is \"no\", but it must be true or false"),
            (json!({ "use_sliding_window": 1, "sliding_window": 3 }), "use_sliding_window is 1"),
            (json!({ "sliding_window_non_causal": true }), "sliding_window_non_causal is true"),
            (
                json!({ "dflash_config": { "mask_token_id": 9, "use_swa": true, "swa_window_size": 0 } }),
                "swa_window_size is 0",
            ),
            (
                json!({ "dflash_config": { "mask_token_id": 9, "use_swa": true } }),
                "sliding_window is missing",
            ),
        ] {
            let error = attention(changes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn first_row_follows_from_the_source_of_the_head() {
        let first = |changes: Value| {
            let mut config = json!({ "mask_token_id": 9, "block_size": 7 });
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let block = block(&config).unwrap();
            (block.first_row(), block.depth())
        };
        let deepspec = json!(["Qwen3DSparkModel"]);
        assert_eq!(first(json!({ "architectures": deepspec })), (0, 7));
        assert_eq!(
            first(json!({ "architectures": deepspec, "dflash_config": { "projector_type": "dspark" } })),
            (1, 6)
        );
        assert_eq!(first(json!({ "architectures": ["DSparkDraftModel"] })), (1, 6));
        assert_eq!(first(json!({ "architectures": deepspec, "sample_from_anchor": false })), (1, 6));
        assert_eq!(first(json!({ "sample_from_anchor": true })), (0, 7));
        assert_eq!(first(json!({ "sample_from_anchor": true, "block_size": 16 })), (0, 15));
    }

    #[test]
    fn other_options_are_refused() {
        for (entries, why) in [
            (json!({}), "mask_token_id is missing"),
            (json!({ "mask_token_id": -1 }), "mask_token_id is -1"),
            (json!({ "mask_token_id": 9, "block_size": 1 }), "nothing is drafted"),
            (json!({ "mask_token_id": 9, "block_size": 1_000_000 }), "block_size"),
            (json!({ "mask_token_id": 9, "target_layer_ids": [] }), "target_layer_ids is []"),
            (json!({ "mask_token_id": 9, "target_layer_ids": [-4] }), "target_layer_ids is -4"),
            (json!({ "mask_token_id": 9, "num_target_layers": 0 }), "num_target_layers is 0"),
            (json!({ "mask_token_id": 9, "num_target_layers": "36" }), "num_target_layers is \"36\""),
            (json!({ "mask_token_id": 9, "attention_sink_bias": true }), "attention_sink_bias is true"),
            (json!({ "mask_token_id": 9, "output_multiplier": 0.5 }), "output_multiplier is 0.5"),
            (json!({ "mask_token_id": 9, "selector_rank": 64 }), "selector_rank is 64"),
            (json!({ "mask_token_id": 9, "sample_from_anchor": 1 }), "sample_from_anchor is 1"),
            (json!({ "mask_token_id": 9, "rope_is_neox_style": false }), "rope_is_neox_style is false"),
            (json!({ "mask_token_id": 9, "partial_rotary_factor": 0.5 }), "partial_rotary_factor is 0.5"),
            (json!({ "mask_token_id": 9, "aux_hidden_state_layer_ids": [2] }), "aux_hidden_state_layer_ids"),
        ] {
            let error = block(&json!({ "dflash_config": entries })).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
