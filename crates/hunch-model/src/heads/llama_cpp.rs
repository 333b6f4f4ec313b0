//! Heads in GGUF files of llama.cpp: EAGLE-3 under the architecture `eagle3`, DFlash under `dflash`.
//!
//! Tensors and entries are presented under the names of the safetensors formats. `d2t` has tokens instead of offsets. In
//! files of EAGLE-3, query and key rows are ordered for a rotary embedding of neighbours.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hunch_error::{Error, Result};
use serde_json::{Value, json};

use crate::file::ModelFile;
use crate::gguf::Gguf;
use crate::spec::RopeKind;
use crate::tensor_files::{NumberType, Numbers, TensorFiles};

/// Architecture of EAGLE-3.
const EAGLE3: &str = "eagle3";
/// Architecture of DFlash.
const DFLASH: &str = "dflash";
/// Architectures of heads.
const HEADS: [&str; 2] = [EAGLE3, DFLASH];

/// Beginnings of names of tensors outside the layers, and those of the safetensors formats.
const NAMES: [(&str, &str); 8] = [
    ("markov_w1.", "markov_head.markov_w1."),
    ("markov_w2.", "markov_head.markov_w2."),
    ("conf_proj.", "confidence_head.proj."),
    ("blk.0.rope_freqs.", "rope_freqs."),
    ("output_norm.", "norm."),
    ("output.", "lm_head."),
    ("token_embd.", "embed_tokens."),
    ("d2t.weight", "d2t"),
];
/// Parts of a layer, and those of the safetensors formats.
const LAYER_NAMES: [(&str, &str); 13] = [
    ("attn_norm.", "input_layernorm."),
    ("attn_norm_2.", "hidden_norm."),
    ("hidden_norm.", "hidden_norm."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_k.", "self_attn.k_proj."),
    ("attn_v.", "self_attn.v_proj."),
    ("attn_q_norm.", "self_attn.q_norm."),
    ("attn_k_norm.", "self_attn.k_norm."),
    ("attn_output.", "self_attn.o_proj."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("ffn_gate.", "mlp.gate_proj."),
    ("ffn_up.", "mlp.up_proj."),
    ("ffn_down.", "mlp.down_proj."),
];

/// Metadata of a head.
pub(super) struct HeadMetadata {
    /// In the form of `config.json`.
    pub(super) values: Value,
    /// Elements that are rotated together.
    pub(super) rope_kind: RopeKind,
    /// Name of the target, if stated.
    pub(super) target: Option<String>,
}

/// Returns the architecture of a GGUF file, if it is one of a head.
pub(super) fn architecture(path: &Path) -> Option<&'static str> {
    if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return None;
    }
    let gguf = Gguf::read(path).ok()?;
    HEADS.into_iter().find(|name| gguf.str("general.architecture") == Some(name))
}

/// Opens a head, with its metadata.
///
/// # Errors
/// [`Error::InvalidModelFile`] if it is damaged or an entry is missing, [`Error::UnsupportedModel`] for another
/// architecture.
pub(super) fn open(path: &Path) -> Result<(TensorFiles, HeadMetadata)> {
    let file = ModelFile::open(path)?;
    let gguf = Gguf::from_file(&file)?;
    let architecture = gguf.require_str("general.architecture")?;
    let Some(architecture) = HEADS.into_iter().find(|name| *name == architecture) else {
        let reason = format!("its architecture is \"{architecture}\"");
        return Err(Error::UnsupportedModel { path: path.to_path_buf(), reason });
    };
    let entries = HeadMetadata {
        values: entries(&gguf, architecture)?,
        rope_kind: if architecture == EAGLE3 { RopeKind::Interleaved } else { RopeKind::Halves },
        target: gguf.str("general.base_model.0.name").map(str::to_owned),
    };
    if gguf.bool("eagle3.norm_before_fc") == Some(true)
        && !gguf.tensors.contains_key("enc.output_norm.weight")
    {
        let reason = "norm_before_fc is set, but enc.output_norm.weight is missing".into();
        return Err(Error::InvalidModelFile { path: path.to_path_buf(), reason });
    }
    let renamed = |name: &String| renamed(name, architecture);
    let tensors = gguf.tensors.iter().map(|(name, info)| (renamed(name), info.clone()));
    let numbers = gguf.integers.iter().map(|(name, info)| {
        let dtype = if info.width == 8 { NumberType::I64 } else { NumberType::I32 };
        (renamed(name), Numbers { dtype, file: 0, range: info.range.clone() })
    });
    let (tensors, numbers): (BTreeMap<_, _>, BTreeMap<_, _>) = (tensors.collect(), numbers.collect());
    Ok((TensorFiles::new(path, vec![Arc::new(file)], tensors, numbers), entries))
}

fn renamed(name: &str, architecture: &str) -> String {
    let replaced =
        |name: &str, (own, other): &(&str, &str)| Some(format!("{other}{}", name.strip_prefix(own)?));
    let encoder = if architecture == EAGLE3 { "input_norm." } else { "hidden_norm." };
    let outside = NAMES.iter().chain(&[("enc.output_norm.", encoder)]).find_map(|pair| replaced(name, pair));
    let in_layer = || {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let part = LAYER_NAMES.iter().find_map(|pair| replaced(part, pair))?;
        Some(format!("layers.{layer}.{part}"))
    };
    outside.or_else(in_layer).unwrap_or_else(|| name.to_owned())
}

/// Presents the metadata as entries of `config.json`.
fn entries(gguf: &Gguf, architecture: &str) -> Result<Value> {
    let number = |key: &str| gguf.u32(&format!("{architecture}.{key}"));
    let float = |key: &str| gguf.f32(&format!("{architecture}.{key}"));
    let flag = |key: &str| gguf.bool(&format!("{architecture}.{key}")).unwrap_or(false);
    // Files from before llama.cpp's pull request 18039 was merged call them extract_layers.
    let keys = ["target_layers", "extract_layers"].map(|key| format!("{architecture}.{key}"));
    let layers = match keys.iter().find(|key| gguf.metadata.contains_key(*key)) {
        Some(key) => layers(gguf, key)?,
        None => {
            let reason = format!("{} is missing", keys[0]);
            return Err(Error::InvalidModelFile { path: gguf.path.clone(), reason });
        }
    };
    let tokens = gguf.require_strings("tokenizer.ggml.tokens").map(<[String]>::len).ok();
    let scaling = gguf.str(&format!("{architecture}.rope.scaling.type")).filter(|kind| *kind != "none");
    let (head_dim, rotated) = (number("attention.key_length"), number("rope.dimension_count"));
    let (window, types) = window(gguf, architecture)?;
    let causal = causal(gguf, architecture)?;
    // As in llama.cpp, heads with a Markov head begin with the row of the last token.
    let from_anchor = flag_of(gguf, &format!("{architecture}.sample_from_anchor"))?;
    let has_markov = gguf.tensors.contains_key("markov_w1.weight");
    Ok(json!({
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": head_dim,
        "hidden_act": gguf.str(&format!("{architecture}.hidden_activation")),
        "sliding_window": window,
        "layer_types": types,
        "num_hidden_layers": number("block_count"),
        "rms_norm_eps": float("attention.layer_norm_rms_epsilon"),
        "rope_theta": float("rope.freq_base"),
        "rope_scaling": scaling.map(|kind| json!({ "rope_type": kind, "factor": float("rope.scaling.factor") })),
        "target_hidden_size": number("target_hidden_size"),
        "vocab_size": tokens,
        "eagle_aux_hidden_state_layer_ids": layers,
        "norm_before_residual": flag("norm_before_residual"),
        "norm_output": flag("norm_output"),
        "dflash_config": {
            "block_size": number("block_size"),
            "mask_token_id": gguf.u32("tokenizer.ggml.mask_token_id"),
            "target_layer_ids": layers.iter().map(|layer| layer - 1).collect::<Vec<_>>(),
            "causal": causal,
            "sample_from_anchor": from_anchor.unwrap_or(has_markov),
            "final_logit_softcapping": float("final_logit_softcapping"),
            "attention_value_scale": float("attention.value_scale"),
            "output_multiplier": float("logit_scale"),
            "input_embedding_scale": float("embedding_scale"),
            "partial_rotary_factor": rotated.filter(|rotated| Some(*rotated) != head_dim),
            "conv_kernel_size": number("conv_kernel_size"),
            "selector_rank": number("selector_rank"),
            "attention_scale": float("attention.scale"),
        },
    }))
}

/// Reads whether rows of a block hide later ones, if stated. One architecture does, as in llama.cpp.
///
/// # Errors
/// [`Error::InvalidModelFile`] if the entry has another type.
fn causal(gguf: &Gguf, architecture: &str) -> Result<Option<bool>> {
    let stated = flag_of(gguf, &format!("{architecture}.attention.causal"))?;
    let is_laguna = gguf.str(&format!("{architecture}.decoder_arch")) == Some("laguna");
    Ok(stated.or(is_laguna.then_some(true)))
}

/// Reads a flag, if it is there.
///
/// # Errors
/// [`Error::InvalidModelFile`] if the entry has another type.
fn flag_of(gguf: &Gguf, key: &str) -> Result<Option<bool>> {
    if !gguf.metadata.contains_key(key) {
        return Ok(None);
    }
    let reason = format!("{key} is neither true nor false");
    let invalid = || Error::InvalidModelFile { path: gguf.path.clone(), reason };
    gguf.bool(key).map(Some).ok_or_else(invalid)
}

/// Reads the sliding window, and the types of the layers as `config.json` has them. A window of 0 is none.
///
/// # Errors
/// [`Error::InvalidModelFile`] if an entry has another type, or the layers of the window are missing.
fn window(gguf: &Gguf, architecture: &str) -> Result<(Option<i64>, Option<Vec<&'static str>>)> {
    let invalid = |reason: String| Error::InvalidModelFile { path: gguf.path.clone(), reason };
    let [size, pattern] =
        ["sliding_window", "sliding_window_pattern"].map(|key| format!("{architecture}.attention.{key}"));
    let window = match gguf.metadata.get(&size) {
        None => None,
        Some(_) => Some(
            gguf.whole(&size).ok_or_else(|| invalid(format!("{size} is not a whole number below 2^63")))?,
        ),
    };
    let window = window.filter(|window| *window != 0);
    if window.is_none() || architecture != DFLASH {
        return Ok((window, None));
    }
    if !gguf.metadata.contains_key(&pattern) {
        return Err(invalid(format!("{size} is set, but {pattern} is missing")));
    }
    let slides = gguf.flags(&pattern).ok_or_else(|| invalid(format!("{pattern} is not a list of flags")))?;
    let types = slides.iter().map(|slides| if *slides { "sliding_attention" } else { "full_attention" });
    Ok((window, Some(types.collect())))
}

/// Reads the numbers of the layers whose input is read.
fn layers(gguf: &Gguf, key: &str) -> Result<Vec<i64>> {
    use crate::gguf::{Array, Value};
    match gguf.metadata.get(key) {
        Some(Value::Array(Array::I32(layers))) => Ok(layers.iter().map(|&layer| layer.into()).collect()),
        Some(Value::Array(Array::U32(layers))) => Ok(layers.iter().map(|&layer| layer.into()).collect()),
        _ => {
            let reason = format!("{key} is not a list of layers");
            Err(Error::InvalidModelFile { path: gguf.path.clone(), reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_safetensors_files() {
        for (own, other) in [
            ("blk.0.attn_norm.weight", "layers.0.input_layernorm.weight"),
            ("blk.0.attn_norm_2.weight", "layers.0.hidden_norm.weight"),
            ("blk.0.attn_output.weight", "layers.0.self_attn.o_proj.weight"),
            ("output_norm.weight", "norm.weight"),
            ("output.weight", "lm_head.weight"),
            ("fc.weight", "fc.weight"),
            ("d2t", "d2t"),
            ("d2t.weight", "d2t"),
            ("enc.output_norm.weight", "input_norm.weight"),
            ("blk.1.attn_q.weight", "layers.1.self_attn.q_proj.weight"),
        ] {
            assert_eq!(renamed(own, EAGLE3), other);
        }
        for (own, other) in [
            ("enc.output_norm.weight", "hidden_norm.weight"),
            ("blk.4.attn_k_norm.weight", "layers.4.self_attn.k_norm.weight"),
            ("blk.4.attn_sinks.weight", "blk.4.attn_sinks.weight"),
            ("markov_w2.weight", "markov_head.markov_w2.weight"),
            ("conf_proj.bias", "confidence_head.proj.bias"),
        ] {
            assert_eq!(renamed(own, DFLASH), other);
        }
    }
}
