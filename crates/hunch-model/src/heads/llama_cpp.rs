//! Heads in GGUF files of llama.cpp: EAGLE-3 under the architecture `eagle3`.
//!
//! Tensors and entries are presented under the names of the safetensors formats. Two things differ in the file. `d2t`
//! has tokens instead of offsets, and query and key rows are ordered for a rotary embedding of neighbours.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hunch_error::{Error, Result};
use serde_json::{Value, json};

use super::config::Config;
use crate::file::ModelFile;
use crate::gguf::Gguf;
use crate::spec::RopeKind;
use crate::tensor_files::{NumberType, Numbers, TensorFiles};

/// Architecture of EAGLE-3.
const EAGLE3: &str = "eagle3";
/// Architectures of heads.
const HEADS: [&str; 2] = [EAGLE3, "dflash"];

/// Parts of a tensor's name, and those of the safetensors format.
const NAMES: [(&str, &str); 17] = [
    ("blk.0.attn_norm.", "layers.0.input_layernorm."),
    ("blk.0.attn_norm_2.", "layers.0.hidden_norm."),
    ("blk.0.hidden_norm.", "layers.0.hidden_norm."),
    ("blk.0.attn_q.", "layers.0.self_attn.q_proj."),
    ("blk.0.attn_k.", "layers.0.self_attn.k_proj."),
    ("blk.0.attn_v.", "layers.0.self_attn.v_proj."),
    ("blk.0.attn_output.", "layers.0.self_attn.o_proj."),
    ("blk.0.ffn_norm.", "layers.0.post_attention_layernorm."),
    ("blk.0.ffn_gate.", "layers.0.mlp.gate_proj."),
    ("blk.0.ffn_up.", "layers.0.mlp.up_proj."),
    ("blk.0.ffn_down.", "layers.0.mlp.down_proj."),
    ("blk.0.rope_freqs.", "rope_freqs."),
    ("enc.output_norm.", "input_norm."),
    ("output_norm.", "norm."),
    ("output.", "lm_head."),
    ("token_embd.", "embed_tokens."),
    ("d2t.weight", "d2t"),
];

/// Returns the architecture of a GGUF file, if it is one of a head.
pub(super) fn architecture(path: &Path) -> Option<&'static str> {
    if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return None;
    }
    let gguf = Gguf::read(path).ok()?;
    HEADS.into_iter().find(|name| gguf.str("general.architecture") == Some(name))
}

/// Opens a head, with its configuration.
///
/// # Errors
/// [`Error::InvalidModelFile`] if it is damaged or an entry is missing, [`Error::UnsupportedModel`] for another
/// architecture.
pub(super) fn open(path: &Path) -> Result<(TensorFiles, Config, Option<String>)> {
    let file = ModelFile::open(path)?;
    let gguf = Gguf::from_file(&file)?;
    let architecture = gguf.require_str("general.architecture")?;
    if architecture != EAGLE3 {
        let reason = format!("its architecture is \"{architecture}\"");
        return Err(Error::UnsupportedModel { path: path.to_path_buf(), reason });
    }
    let config = Config { rope_kind: RopeKind::Interleaved, ..Config::of(&entries(&gguf)?, path)? };
    let target = gguf.str("general.base_model.0.name").map(str::to_owned);
    if gguf.bool("eagle3.norm_before_fc") == Some(true)
        && !gguf.tensors.contains_key("enc.output_norm.weight")
    {
        let reason = "norm_before_fc is set, but enc.output_norm.weight is missing".into();
        return Err(Error::InvalidModelFile { path: path.to_path_buf(), reason });
    }
    let tensors = gguf.tensors.iter().map(|(name, info)| (renamed(name), info.clone()));
    let numbers = gguf.integers.iter().map(|(name, info)| {
        let dtype = if info.width == 8 { NumberType::I64 } else { NumberType::I32 };
        (renamed(name), Numbers { dtype, file: 0, range: info.range.clone() })
    });
    let (tensors, numbers): (BTreeMap<_, _>, BTreeMap<_, _>) = (tensors.collect(), numbers.collect());
    Ok((TensorFiles::new(path, vec![Arc::new(file)], tensors, numbers), config, target))
}

fn renamed(name: &str) -> String {
    let found = NAMES.iter().find_map(|(own, other)| Some(format!("{other}{}", name.strip_prefix(own)?)));
    found.unwrap_or_else(|| name.to_owned())
}

/// Presents the metadata as entries of `config.json`.
fn entries(gguf: &Gguf) -> Result<Value> {
    let number = |key: &str| gguf.u32(&format!("{EAGLE3}.{key}"));
    let float = |key: &str| gguf.f32(&format!("{EAGLE3}.{key}"));
    let flag = |key: &str| gguf.bool(&format!("{EAGLE3}.{key}")).unwrap_or(false);
    // Files from before llama.cpp's pull request 18039 was merged call them extract_layers.
    let keys = ["target_layers", "extract_layers"].map(|key| format!("{EAGLE3}.{key}"));
    let layers = match keys.iter().find(|key| gguf.metadata.contains_key(*key)) {
        Some(key) => layers(gguf, key)?,
        None => {
            let reason = format!("{} is missing", keys[0]);
            return Err(Error::InvalidModelFile { path: gguf.path.clone(), reason });
        }
    };
    let tokens = gguf.require_strings("tokenizer.ggml.tokens").map(<[String]>::len).ok();
    let scaling = gguf.str("eagle3.rope.scaling.type").filter(|kind| *kind != "none");
    Ok(json!({
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("attention.key_length"),
        "num_hidden_layers": number("block_count"),
        "rms_norm_eps": float("attention.layer_norm_rms_epsilon"),
        "rope_theta": float("rope.freq_base"),
        "rope_scaling": scaling.map(|kind| json!({ "rope_type": kind, "factor": float("rope.scaling.factor") })),
        "target_hidden_size": number("target_hidden_size"),
        "vocab_size": tokens,
        "eagle_aux_hidden_state_layer_ids": layers,
        "norm_before_residual": flag("norm_before_residual"),
        "norm_output": flag("norm_output"),
    }))
}

/// Reads the numbers of the layers whose input is read.
fn layers(gguf: &Gguf, key: &str) -> Result<Vec<i64>> {
    use crate::gguf::{Array, Value};
    match gguf.metadata.get(key) {
        Some(Value::Array(Array::I32(layers))) => Ok(layers.iter().map(|&layer| layer.into()).collect()),
        Some(Value::Array(Array::U32(layers))) => Ok(layers.iter().map(|&layer| layer.into()).collect()),
        _ => {
            let reason = format!("{key} is no list of layers");
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
            ("blk.1.attn_q.weight", "blk.1.attn_q.weight"),
        ] {
            assert_eq!(renamed(own), other);
        }
    }
}
