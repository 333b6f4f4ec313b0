//! DFlash (arXiv 2602.06036): a small decoder that drafts a block of tokens in one pass.
//!
//! ```text
//! c = hidden norm of fc [s_1; ...; s_T]     a row of the text, from T residual streams of the target
//! x = [e(last token); e(mask); ...]         the block
//! x = layer(x)                              keys and values of c and of the normed x, for every layer
//! logits = head * norm of x                 row i scores the token at place i of the block
//! ```
//!
//! The rows of a block see the whole text and each other. So the tokens of a draft do not depend on each other: their
//! probabilities follow from the text and their place alone. The text has keys and values in the cache, a block leaves
//! nothing there.

use std::path::Path;
use std::sync::Arc;

use hunch_core::limits::MAX_DRAFT;
use hunch_core::propose::head::DraftHead;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::activation::{rms_norm, rms_norm_in_place};
use hunch_kernels::quantise::QuantisedRows;
use serde_json::Value;

use super::config::Config;
use super::layer::{Block, HEAD_NORMS, Layer, is_of_layer};
use super::linear::{Linear, vector};
use super::output_head::{self, OutputHead};
use super::target_parts::{TargetParts, taps};
use crate::device::Compute;
use crate::spec::ModelSpec;
use crate::tensor_files::TensorFiles;
use crate::weights::Embedding;

/// Most layers and most streams of the target.
const MOST: usize = 32;
/// Rows of a block that are scored at once. Most drafts are no longer.
const SCORED_ROWS: usize = 4;
/// Norm before attention.
const INPUT_NORM: &str = "input_layernorm";

/// Entries of `config.json` that other heads do not have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockConfig {
    /// Rows of a block: the last token and masks.
    rows: usize,
    /// Token that stands for one to be drafted.
    mask: TokenId,
    /// Layers of the target after which the residual stream is read, if stated.
    taps: Option<Vec<usize>>,
}

impl BlockConfig {
    /// Interprets a configuration. `file` is named in errors.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if a value is missing or out of range, [`Error::UnsupportedModel`] for an option that
    /// Hunch does not compute.
    pub(super) fn of(config: &Value, file: &Path) -> Result<Self> {
        let invalid = |reason: String| Error::InvalidModelFile { path: file.to_path_buf(), reason };
        let get = |name: &str| {
            let own = config.get("dflash_config").and_then(|own| own.get(name));
            own.or_else(|| config.get(name)).filter(|value| !value.is_null())
        };
        // Options that must have their neutral value.
        let unchanged = |value: &Value, neutral: f64| {
            value.as_f64() == Some(neutral) || value.as_bool() == Some(neutral != 0.0)
        };
        for (name, neutral) in [
            ("is_causal", 0.0),
            ("causal", 0.0),
            ("use_swa", 0.0),
            ("final_logit_softcapping", 0.0),
            ("attention_value_scale", 1.0),
            ("output_multiplier", 1.0),
            ("input_embedding_scale", 1.0),
            ("partial_rotary_factor", 1.0),
            ("conv_kernel_size", 0.0),
            ("selector_rank", 0.0),
            ("sample_from_anchor", 0.0),
            ("use_sliding_window", 0.0),
            ("rope_is_neox_style", 1.0),
            ("attention_scale", 0.0),
        ] {
            let rotary =
                config.get("rope_parameters").and_then(|own| own.get(name)).filter(|value| !value.is_null());
            if let Some(value) = get(name).or(rotary).filter(|value| !unchanged(value, neutral)) {
                let reason = format!("{name} is {value}, which is not supported");
                return Err(Error::UnsupportedModel { path: file.to_path_buf(), reason });
            }
        }
        let whole = |name: &str, value: &Value, max: usize| {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            number
                .filter(|number| *number <= max)
                .ok_or_else(|| invalid(format!("{name} is {value}, but it must be 0 to {max}")))
        };
        // A layout of `speculators`, whose numbers of layers may mean their inputs.
        if let Some(value) = get("aux_hidden_state_layer_ids") {
            let reason = format!("aux_hidden_state_layer_ids is {value}, which is not supported");
            return Err(Error::UnsupportedModel { path: file.to_path_buf(), reason });
        }
        let rows = get("block_size").map_or(Ok(16), |value| whole("block_size", value, 1 << 10))?;
        if rows < 2 {
            return Err(invalid(format!("block_size is {rows}, so nothing is drafted")));
        }
        let mask = get("mask_token_id").ok_or_else(|| invalid("mask_token_id is missing".into()))?;
        let taps = match get("target_layer_ids") {
            Some(Value::Array(layers)) if !layers.is_empty() && layers.len() <= MOST => {
                let layer = |layer| whole("target_layer_ids", layer, 1 << 10);
                Some(layers.iter().map(layer).collect::<Result<_>>()?)
            }
            Some(other) => return Err(invalid(format!("target_layer_ids is {other}"))),
            None => None,
        };
        Ok(Self { rows, mask: whole("mask_token_id", mask, 1 << 24)? as TokenId, taps })
    }

    /// Returns the most tokens of a draft.
    pub(super) fn depth(&self) -> usize {
        (self.rows - 1).min(MAX_DRAFT)
    }

    /// Returns the layers of a target of `layers` layers that are read.
    ///
    /// # Errors
    /// If the target has not as many layers.
    pub(super) fn taps(&self, config: &Config, layers: usize) -> Result<Vec<usize>, String> {
        let stated = self.taps.clone().unwrap_or_else(|| usual_taps(layers, config.layers));
        taps(layers, Some(&stated), stated.len())
    }

    /// Returns the layers that are read, if stated.
    pub(super) fn stated_taps(&self) -> Option<Vec<usize>> {
        self.taps.clone()
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

/// Returns whether a tensor belongs to a head of `layers` layers.
pub(super) fn has(name: &str, layers: usize) -> bool {
    let norms = [INPUT_NORM, HEAD_NORMS[0], HEAD_NORMS[1]];
    ["fc.weight", "hidden_norm.weight", "norm.weight"].contains(&name)
        || output_head::TENSORS.contains(&name)
        || (0..layers.min(MOST)).any(|layer| is_of_layer(name, &prefix(layer), &norms))
}

fn prefix(layer: usize) -> String {
    format!("layers.{layer}")
}

/// A DFlash head on the CPU.
pub(super) struct DFlash {
    weights: Arc<Weights>,
    layers: Vec<Layer>,
    compute: Compute,
    quantised: QuantisedRows,
    /// Normed states of the current block that are not scored yet, `[rows, n]`.
    unscored: Vec<f32>,
    /// Logits of the next places of the current block, `[n_vocab]` each, the next one last.
    scored: Vec<Vec<f32>>,
}

/// Weights outside of the layers.
struct Weights {
    taps: Vec<usize>,
    depth: usize,
    rows: usize,
    fc: Linear,
    hidden_norm: Vec<f32>,
    input_norms: Vec<Vec<f32>>,
    norm: Vec<f32>,
    eps: f32,
    embedding: Arc<Embedding>,
    mask: TokenId,
    head: OutputHead,
    n_vocab: usize,
}

impl DFlash {
    /// Loads a head.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite, or the head does not fit the target.
    pub(super) fn load(
        file: &TensorFiles,
        (config, block): (&Config, &BlockConfig),
        embedding: Arc<Embedding>,
        target: &TargetParts<'_>,
    ) -> Result<Self> {
        let (n, n_vocab, compute) = (config.n_embd, target.spec.n_vocab, target.compute);
        let weights = &file.weights;
        let invalid = |reason: String| Error::InvalidModelFile { path: weights.gguf().path.clone(), reason };
        if config.layers > MOST {
            return Err(invalid(format!("it has {} layers, and at most {MOST} are possible", config.layers)));
        }
        if block.mask as usize >= n_vocab {
            return Err(invalid(format!("its mask is token {}, outside of the vocabulary", block.mask)));
        }
        let norms = (0..config.layers)
            .flat_map(|layer| HEAD_NORMS.map(|norm| format!("{}.{norm}.weight", prefix(layer))));
        for name in norms {
            if file.shape(&name).is_none() {
                return Err(invalid(format!("the tensor {name} is missing")));
            }
        }
        let taps = block.taps(config, target.spec.n_layer).map_err(invalid)?;
        let rows = block.depth() + 1;
        // A block follows the last token of the context.
        let context_length = target.spec.context_length + rows;
        let spec = ModelSpec { context_length, ..target.spec.clone() };
        let layer = |layer| Layer::load(weights, &prefix(layer), (config, n), &spec, compute);
        let input_norm = |layer| vector(weights, &format!("{}.{INPUT_NORM}.weight", prefix(layer)), n);
        let weights = Weights {
            depth: block.depth(),
            rows,
            fc: Linear::load(weights, "fc", (n, taps.len() * n), compute.threads())?,
            hidden_norm: vector(weights, "hidden_norm.weight", n)?,
            input_norms: (0..config.layers).map(input_norm).collect::<Result<_>>()?,
            norm: vector(weights, "norm.weight", n)?,
            eps: config.eps as f32,
            embedding,
            mask: block.mask,
            head: OutputHead::load(file, n, config.n_draft_vocab, target)?,
            n_vocab,
            taps,
        };
        let layers = (0..config.layers).map(layer).collect::<Result<_>>()?;
        Ok(Self::of(Arc::new(weights), layers, compute.clone()))
    }

    fn of(weights: Arc<Weights>, layers: Vec<Layer>, compute: Compute) -> Self {
        let (quantised, unscored, scored) = (QuantisedRows::default(), Vec::new(), Vec::new());
        Self { weights, layers, compute, quantised, unscored, scored }
    }

    /// Appends rows of the text to the cache of every layer.
    fn append(&mut self, features: &[Vec<f32>]) -> Result<()> {
        let Self { weights: w, layers, compute, quantised, .. } = self;
        let n = w.norm.len();
        let (count, rows) = (features.len(), features.first().map_or(0, |stream| stream.len() / n));
        let mut joined = vec![0.0; count * rows * n];
        for (row, joined) in joined.chunks_exact_mut(count * n).enumerate() {
            for (part, stream) in joined.chunks_exact_mut(n).zip(features) {
                part.copy_from_slice(&stream[row * n..(row + 1) * n]);
            }
        }
        let mut context = vec![0.0; rows * n];
        w.fc.apply(compute.threads(), &joined, quantised, &mut context, false);
        context.chunks_exact_mut(n).for_each(|row| rms_norm_in_place(row, &w.hidden_norm, w.eps));
        let before = layers.first().map_or(0, Layer::len);
        let appended = layers.iter_mut().try_for_each(|layer| layer.append(&context));
        if appended.is_err() {
            layers.iter_mut().for_each(|layer| layer.truncate(before));
        }
        appended
    }

    /// Runs a block after the text, which ends with `last`.
    fn run_block(&mut self, last: TokenId) -> Result<()> {
        let Self { weights: w, layers, .. } = self;
        let n = w.norm.len();
        let mut tokens = vec![w.mask; w.rows];
        tokens[0] = last;
        let mut x = w.embedding.host_rows(&tokens)?;
        let mut y = vec![0.0; x.len()];
        let text = layers.first().map_or(0, Layer::len);
        let ran = layers.iter_mut().zip(&w.input_norms).try_for_each(|(layer, norm)| {
            for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                rms_norm(x, norm, w.eps, y);
            }
            layer.run_block(&y, &mut x)
        });
        layers.iter_mut().for_each(|layer| layer.truncate(text));
        ran?;
        // The first row is the last token itself.
        self.unscored = x.split_off(n);
        self.unscored.chunks_exact_mut(n).for_each(|row| rms_norm_in_place(row, &w.norm, w.eps));
        self.scored.clear();
        Ok(())
    }

    /// Returns the logits of the next place of the block.
    fn next_place(&mut self) -> Result<Vec<f32>> {
        let Self { weights: w, compute, quantised, unscored, scored, .. } = self;
        if scored.is_empty() {
            let rest = unscored.split_off(unscored.len().min(SCORED_ROWS * w.norm.len()));
            let logits = w.head.logits(compute.threads(), unscored, quantised);
            scored.extend(logits.chunks_exact(w.n_vocab).rev().map(<[f32]>::to_vec));
            *unscored = rest;
        }
        scored.pop().ok_or_else(|| Error::Internal(format!("a block drafts {} tokens", w.depth)))
    }
}

impl DraftHead for DFlash {
    fn taps(&self) -> &[usize] {
        &self.weights.taps
    }

    fn max_depth(&self) -> usize {
        self.weights.depth
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn logits(&mut self, features: &[Vec<f32>], tokens: &[TokenId]) -> hunch_core::error::Result<Vec<f32>> {
        let last =
            *tokens.last().ok_or_else(|| Error::Internal("a block without a token before it".into()))?;
        self.append(features)?;
        self.run_block(last)?;
        Ok(self.next_place()?)
    }

    fn next_logits(&mut self, _: TokenId) -> hunch_core::error::Result<Vec<f32>> {
        Ok(self.next_place()?)
    }

    fn reads_drafts(&self) -> bool {
        false
    }

    fn drafts_in_one_pass(&self) -> bool {
        true
    }

    fn read(&mut self, features: &[Vec<f32>], _: &[TokenId]) -> hunch_core::error::Result<()> {
        Ok(self.append(features)?)
    }

    fn truncate(&mut self, len: usize) {
        self.layers.iter_mut().for_each(|layer| layer.truncate(len));
    }

    fn fork(&self) -> Box<dyn DraftHead> {
        let layers = self.layers.iter().map(Layer::fork).collect();
        Box::new(Self::of(self.weights.clone(), layers, self.compute.clone()))
    }

    fn read_by_a_pass(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum::<usize>() + self.weights.head.bytes()
    }

    fn cache_bytes(&self) -> usize {
        self.layers.iter().map(Layer::cache_bytes).sum()
    }

    fn cache_per_token(&self) -> usize {
        self.layers.iter().map(Layer::cache_per_token).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn block(config: &Value) -> Result<BlockConfig> {
        BlockConfig::of(config, Path::new("head/config.json"))
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
            "is_causal": false
        });
        let expected = BlockConfig { rows: 8, mask: 9, taps: Some(vec![1, 3]) };
        assert_eq!(block(&config).unwrap(), expected);
        let plain = block(&json!({ "mask_token_id": 9 })).unwrap();
        assert_eq!((plain.rows, plain.depth(), plain.taps), (16, 15.min(MAX_DRAFT), None));
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
            (json!({ "mask_token_id": 9, "use_swa": true }), "use_swa is true"),
            (json!({ "mask_token_id": 9, "causal": true }), "causal is true"),
            (json!({ "mask_token_id": 9, "output_multiplier": 0.5 }), "output_multiplier is 0.5"),
            (json!({ "mask_token_id": 9, "selector_rank": 64 }), "selector_rank is 64"),
            (json!({ "mask_token_id": 9, "sample_from_anchor": true }), "sample_from_anchor is true"),
            (json!({ "mask_token_id": 9, "rope_is_neox_style": false }), "rope_is_neox_style is false"),
            (json!({ "mask_token_id": 9, "partial_rotary_factor": 0.5 }), "partial_rotary_factor is 0.5"),
            (json!({ "mask_token_id": 9, "aux_hidden_state_layer_ids": [2] }), "aux_hidden_state_layer_ids"),
        ] {
            let error = block(&json!({ "dflash_config": entries })).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
