//! Tiny random heads in the file formats of others, for a tiny target.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use hunch_model::gguf::{Array, Value as GgufValue};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::gguf_writer::GgufWriter;
use crate::tiny::{Noise, Tiny, VOCABULARY, WIDTH};

/// Tokens that heads with a reduced vocabulary score.
pub const SCORED: usize = 160;
const FEED_FORWARD: usize = 192;
/// Rows of a DFlash block, as in published heads.
const BLOCK: usize = 16;
/// Most tokens of a draft of DSpark.
const MARKOV_DEPTH: usize = 7;
/// Rank of its Markov head.
const RANK: usize = 32;

/// File format and architecture of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFormat {
    /// EAGLE-1 as SafeAILab publishes it.
    Eagle1,
    /// EAGLE-3 as SafeAILab publishes it: `midlayer`, offsets in `d2t`, marks in `t2d`.
    Eagle3,
    /// EAGLE-3 as `speculators` writes it: another residual stream, Llama 3's scaling, narrow heads.
    Speculators,
    /// EAGLE-3 with norms before fc and after the layer, and tokens in `d2t`.
    Normed,
    /// EAGLE-3 in a GGUF file of llama.cpp: tokens in `d2t`, neighbours rotated together, divisors of frequencies.
    LlamaCpp,
    /// Medusa in the file of Text Generation Inference.
    Medusa,
    /// MLP speculator with tied embeddings and output heads.
    Mlp,
    /// DFlash as z-lab publishes it, scored by the target's head.
    DFlash,
    /// DFlash with a layer that sees a window, and no later rows of its block.
    DFlashSliding,
    /// DFlash in a GGUF file of llama.cpp, with an output head of its own and tokens in `d2t`. A layer sees a window to
    /// both sides.
    DFlashGguf,
    /// DSpark as DeepSeek publishes it: the row of the last token scores the first token.
    DSpark,
    /// DSpark in a GGUF file of llama.cpp, as SpecForge trains it: the row after the last token scores the first one. Its
    /// output head and the Markov head score a part of the vocabulary.
    DSparkGguf,
}

/// All formats.
pub const FORMATS: [HeadFormat; 12] = [
    HeadFormat::Eagle1,
    HeadFormat::Eagle3,
    HeadFormat::Speculators,
    HeadFormat::Normed,
    HeadFormat::LlamaCpp,
    HeadFormat::Medusa,
    HeadFormat::Mlp,
    HeadFormat::DFlash,
    HeadFormat::DFlashSliding,
    HeadFormat::DFlashGguf,
    HeadFormat::DSpark,
    HeadFormat::DSparkGguf,
];

/// Values of a tensor.
pub enum Values {
    /// Weights.
    Float(Vec<f32>),
    /// Tokens or offsets.
    Integer(Vec<i64>),
    /// A mask.
    Flag(Vec<bool>),
}

/// A head in memory, for tests that change it before they write it.
pub struct TinyHead {
    /// `config.json`.
    pub config: Value,
    /// Shape and values by name.
    pub tensors: BTreeMap<String, (Vec<usize>, Values)>,
    /// Type of floating-point tensors.
    pub dtype: Dtype,
    /// Written as a GGUF file of llama.cpp.
    pub in_gguf: bool,
}

/// The target of all tiny heads.
pub fn target() -> Tiny {
    Tiny { layers: 8, tied: false, ..Tiny::default() }
}

/// Returns the tokens that a reduced vocabulary scores: runs with gaps between them.
pub fn scored_tokens() -> Vec<i64> {
    (0..VOCABULARY as i64).filter(|token| token % 8 < 5).take(SCORED).collect()
}

impl HeadFormat {
    /// Returns the name of its folder or file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eagle1 => "eagle1",
            Self::Eagle3 => "eagle3",
            Self::Speculators => "speculators",
            Self::Normed => "normed",
            Self::LlamaCpp => "llama-cpp",
            Self::Medusa => "medusa",
            Self::Mlp => "mlp",
            Self::DFlash => "dflash",
            Self::DFlashSliding => "dflash-sliding",
            Self::DFlashGguf => "dflash-llama-cpp",
            Self::DSpark => "dspark",
            Self::DSparkGguf => "dspark-llama-cpp",
        }
    }

    fn prefix(self) -> &'static str {
        if self == Self::Eagle3 { "midlayer" } else { "layers.0" }
    }

    /// Returns whether it drafts a block in one pass.
    pub fn is_block(self) -> bool {
        matches!(self, Self::DFlash | Self::DFlashSliding | Self::DFlashGguf) || self.has_markov()
    }

    /// Returns whether it has a Markov head, so that the token before changes the logits of a place.
    pub fn has_markov(self) -> bool {
        matches!(self, Self::DSpark | Self::DSparkGguf)
    }

    /// Returns the most tokens of a draft: 4 for heads that draft any number.
    pub fn depth(self) -> usize {
        match self {
            Self::Medusa | Self::Mlp => 3,
            _ if self.has_markov() => MARKOV_DEPTH,
            _ if self.is_block() => BLOCK - 1,
            _ => 4,
        }
    }

    /// Returns the number of tokens that it scores.
    pub fn scored(self) -> usize {
        match self {
            Self::Eagle1 | Self::Medusa | Self::Mlp => VOCABULARY,
            Self::DFlash | Self::DFlashSliding | Self::DSpark => VOCABULARY,
            _ => SCORED,
        }
    }

    /// Returns a random head of this format.
    pub fn head(self) -> TinyHead {
        match self {
            Self::Medusa => medusa(),
            Self::Mlp => mlp(),
            _ if self.is_block() => dflash(self),
            _ => self.eagle(),
        }
    }

    fn eagle(self) -> TinyHead {
        let (n, ff) = (WIDTH, FEED_FORWARD);
        let (heads, head_dim) = if self == Self::Speculators { (4, 32) } else { (4, 64) };
        let inputs = if self == Self::Eagle1 { n } else { 2 * n };
        let mut noise = Noise::new(40 + self as u64);
        let mut tensors = BTreeMap::new();
        let mut add = |name: String, shape: &[usize], scale: f32, middle: f32| {
            let values = noise.many(shape.iter().product(), scale);
            let values = values.into_iter().map(|value| value + middle).collect();
            tensors.insert(name, (shape.to_vec(), Values::Float(values)));
        };
        let layer = |part: &str| format!("{}.{part}.weight", self.prefix());
        for (part, rows, width) in [
            ("self_attn.q_proj", heads * head_dim, inputs),
            ("self_attn.k_proj", heads / 2 * head_dim, inputs),
            ("self_attn.v_proj", heads / 2 * head_dim, inputs),
            ("self_attn.o_proj", n, heads * head_dim),
            ("mlp.gate_proj", ff, n),
            ("mlp.up_proj", ff, n),
            ("mlp.down_proj", n, ff),
        ] {
            add(layer(part), &[rows, width], 0.15, 0.0);
        }
        add(layer("post_attention_layernorm"), &[n], 0.2, 1.0);
        if self == Self::Eagle1 {
            add("fc.weight".into(), &[n, 2 * n], 0.1, 0.0);
            add("fc.bias".into(), &[n], 0.2, 0.0);
        } else {
            add("fc.weight".into(), &[n, 3 * n], 0.05, 0.0);
            add(layer("input_layernorm"), &[n], 0.2, 1.0);
            add(layer("hidden_norm"), &[n], 0.2, 1.0);
            add("norm.weight".into(), &[n], 0.2, 1.0);
            add("lm_head.weight".into(), &[SCORED, n], 0.2, 0.0);
        }
        if self == Self::Normed {
            for i in 0..3 {
                add(format!("fc_norm.{i}.weight"), &[n], 0.2, 1.0);
            }
        }
        let tokens = scored_tokens();
        let offsets = tokens.iter().zip(0..).map(|(token, row)| token - row).collect();
        let marks = (0..VOCABULARY as i64).map(|token| tokens.contains(&token)).collect();
        if matches!(self, Self::Eagle3 | Self::Speculators) {
            tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(offsets)));
            tensors.insert("t2d".into(), (vec![VOCABULARY], Values::Flag(marks)));
        } else if matches!(self, Self::Normed | Self::LlamaCpp) {
            tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(tokens)));
        }
        let dtype = if self == Self::Eagle1 { Dtype::F16 } else { Dtype::BF16 };
        let in_gguf = self == Self::LlamaCpp;
        TinyHead { config: self.config(heads, head_dim), tensors, dtype, in_gguf }
    }

    fn config(self, heads: usize, head_dim: usize) -> Value {
        let mut layer = json!({
            "hidden_size": WIDTH, "intermediate_size": FEED_FORWARD, "num_attention_heads": heads,
            "num_key_value_heads": heads / 2, "head_dim": head_dim, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "vocab_size": VOCABULARY
        });
        match self {
            Self::Eagle3 => layer["draft_vocab_size"] = json!(SCORED),
            Self::LlamaCpp => layer["target_layers"] = json!([2, 4, 6]),
            Self::Speculators => {
                layer["rope_theta"] = json!(500.0);
                layer["rope_scaling"] = json!({
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64
                });
                return json!({
                    "transformer_layer_config": layer, "draft_vocab_size": SCORED, "norm_before_residual": true,
                    "eagle_aux_hidden_state_layer_ids": [1, 3, 8], "speculators_model_type": "eagle3",
                    "speculators_config": { "verifier": { "name_or_path": "tiny/llama" } }
                });
            }
            Self::Normed => {
                layer["draft_vocab_size"] = json!(SCORED);
                layer["norm_output"] = json!(true);
                layer["eagle_config"] = json!({ "eagle_aux_hidden_state_layer_ids": [2, 5, 7] });
            }
            _ => {}
        }
        layer
    }

    /// Writes a random head to a folder of its own and returns the folder.
    pub fn write(self, folder: &Path) -> PathBuf {
        self.head().write(folder, self.name())
    }
}

fn random(seed: u64, tensors: &[(&str, &[usize], f32, f32)]) -> BTreeMap<String, (Vec<usize>, Values)> {
    let mut noise = Noise::new(seed);
    let tensor = |&(name, shape, scale, middle): &(&str, &[usize], f32, f32)| {
        let values = noise.many(shape.iter().product(), scale);
        let values = values.into_iter().map(|value| value + middle).collect();
        (name.to_owned(), (shape.to_vec(), Values::Float(values)))
    };
    tensors.iter().map(tensor).collect()
}

fn medusa() -> TinyHead {
    let (n, v) = (WIDTH, VOCABULARY);
    let tensors = random(
        50,
        &[
            ("0.0.linear.weight", &[n, n], 0.15, 0.0),
            ("0.0.linear.bias", &[n], 0.2, 0.0),
            ("0.1.weight", &[v, n], 0.2, 0.0),
            ("1.0.linear.weight", &[n, n], 0.15, 0.0),
            ("1.0.linear.bias", &[n], 0.2, 0.0),
            ("1.1.weight", &[v, n], 0.2, 0.0),
            ("2.0.linear.weight", &[n, n], 0.15, 0.0),
            ("2.0.linear.bias", &[n], 0.2, 0.0),
            ("2.1.weight", &[v, n], 0.2, 0.0),
        ],
    );
    TinyHead {
        config: json!({ "base_model_name_or_path": "tiny/llama" }),
        tensors,
        dtype: Dtype::F16,
        in_gguf: false,
    }
}

fn mlp() -> TinyHead {
    let (n, v, inner) = (WIDTH, VOCABULARY, 128);
    let tensors = random(
        51,
        &[
            ("speculator.emb.0.weight", &[v, inner], 0.3, 0.0),
            ("speculator.head.0.weight", &[v, inner], 0.3, 0.0),
            ("speculator.proj.0.weight", &[inner, n], 0.15, 0.0),
            ("speculator.proj.1.weight", &[inner, inner], 0.15, 0.0),
            ("speculator.ln.0.weight", &[inner], 0.2, 1.0),
            ("speculator.ln.0.bias", &[inner], 0.2, 0.0),
            ("speculator.ln.1.weight", &[inner], 0.2, 1.0),
            ("speculator.ln.1.bias", &[inner], 0.2, 0.0),
        ],
    );
    TinyHead {
        config: json!({ "n_predict": 3, "scale_input": true }),
        tensors,
        dtype: Dtype::F32,
        in_gguf: false,
    }
}

/// Returns a DFlash head of two layers that drafts from three streams.
fn dflash(format: HeadFormat) -> TinyHead {
    let (n, ff, heads, head_dim) = (WIDTH, FEED_FORWARD, 4, 32);
    let in_gguf = matches!(format, HeadFormat::DFlashGguf | HeadFormat::DSparkGguf);
    let mut shapes: Vec<(String, Vec<usize>, f32, f32)> = Vec::new();
    for layer in 0..2 {
        let matrices = [
            ("self_attn.q_proj", heads * head_dim, n),
            ("self_attn.k_proj", heads / 2 * head_dim, n),
            ("self_attn.v_proj", heads / 2 * head_dim, n),
            ("self_attn.o_proj", n, heads * head_dim),
            ("mlp.gate_proj", ff, n),
            ("mlp.up_proj", ff, n),
            ("mlp.down_proj", n, ff),
        ];
        let norms = [
            ("input_layernorm", n),
            ("post_attention_layernorm", n),
            ("self_attn.q_norm", head_dim),
            ("self_attn.k_norm", head_dim),
        ];
        let name = |part: &str| format!("layers.{layer}.{part}.weight");
        shapes.extend(matrices.map(|(part, rows, width)| (name(part), vec![rows, width], 0.15, 0.0)));
        shapes.extend(norms.map(|(part, width)| (name(part), vec![width], 0.2, 1.0)));
    }
    shapes.push(("fc.weight".into(), vec![n, 3 * n], 0.05, 0.0));
    shapes.push(("hidden_norm.weight".into(), vec![n], 0.2, 1.0));
    shapes.push(("norm.weight".into(), vec![n], 0.2, 1.0));
    if in_gguf || format == HeadFormat::DSpark {
        shapes.push(("lm_head.weight".into(), vec![format.scored(), n], 0.2, 0.0));
    }
    if format.has_markov() {
        shapes.push(("markov_head.markov_w1.weight".into(), vec![VOCABULARY, RANK], 1.0, 0.0));
        shapes.push(("markov_head.markov_w2.weight".into(), vec![format.scored(), RANK], 0.6, 0.0));
        shapes.push(("confidence_head.proj.weight".into(), vec![1, n + RANK], 0.2, 0.0));
        shapes.push(("confidence_head.proj.bias".into(), vec![1], 0.2, 0.0));
    }
    let shapes: Vec<_> =
        shapes.iter().map(|(name, shape, scale, middle)| (&name[..], &shape[..], *scale, *middle)).collect();
    let seed = match format {
        HeadFormat::DFlashSliding => 54,
        HeadFormat::DSpark => 55,
        HeadFormat::DSparkGguf => 56,
        _ => 52 + u64::from(in_gguf),
    };
    let mut tensors = random(seed, &shapes);
    if in_gguf {
        tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(scored_tokens())));
    }
    let mut config = json!({
        "architectures": ["DFlashDraftModel"], "hidden_size": n, "intermediate_size": ff,
        "num_attention_heads": heads, "num_key_value_heads": heads / 2, "head_dim": head_dim,
        "num_hidden_layers": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu", "vocab_size": VOCABULARY,
        "num_target_layers": 8, "block_size": BLOCK, "sliding_window": null, "use_sliding_window": false,
        "rope_theta": 10000.0, "dflash_config": { "mask_token_id": 200, "target_layer_ids": [1, 4, 6] }
    });
    // Windows are shorter than a block, so that they end in the text for its first rows and in the block for others.
    match format {
        HeadFormat::DFlashSliding => {
            config["use_sliding_window"] = json!(true);
            config["sliding_window"] = json!(7);
            config["layer_types"] = json!(["sliding_attention", "full_attention"]);
        }
        HeadFormat::DFlashGguf => {
            config["target_layers"] = json!([2, 5, 7]);
            config["sliding_window"] = json!(9);
            config["layer_types"] = json!(["full_attention", "sliding_attention"]);
            config["is_causal"] = json!(false);
        }
        HeadFormat::DSpark => {
            config["architectures"] = json!(["Qwen3DSparkModel"]);
            config["block_size"] = json!(MARKOV_DEPTH);
            config["markov_rank"] = json!(RANK);
            // In DeepSpec's files these entries are at the top.
            config["mask_token_id"] = json!(200);
            config["target_layer_ids"] = json!([1, 4, 6]);
            config["dflash_config"] = Value::Null;
        }
        HeadFormat::DSparkGguf => {
            config["target_layers"] = json!([2, 5, 7]);
            config["block_size"] = json!(MARKOV_DEPTH + 1);
            config["sample_from_anchor"] = json!(false);
        }
        _ => {}
    }
    TinyHead { config, tensors, dtype: Dtype::BF16, in_gguf }
}

impl TinyHead {
    /// Writes the head to a folder of this name, or to a GGUF file.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        if self.in_gguf {
            let path = folder.join(format!("{name}.gguf"));
            std::fs::write(&path, self.gguf().bytes()).unwrap();
            return path;
        }
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        let bytes: Vec<(Dtype, Vec<u8>)> =
            self.tensors.values().map(|(_, values)| self.bytes(values)).collect();
        let views = self.tensors.iter().zip(&bytes).map(|((name, (shape, _)), (dtype, bytes))| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        folder
    }

    /// Returns the head as a GGUF file of llama.cpp.
    pub fn gguf(&self) -> GgufWriter {
        let number = |key: &str| self.config[key].as_u64().unwrap_or(0) as u32;
        let layers = self.config["target_layers"].as_array().into_iter().flatten();
        let layers: Vec<i32> = layers.filter_map(|layer| Some(layer.as_i64()? as i32)).collect();
        let mask = self.config["dflash_config"]["mask_token_id"].as_u64();
        let architecture = if mask.is_some() { "dflash" } else { "eagle3" };
        let key = |name: &str| format!("{architecture}.{name}");
        let mut file = GgufWriter::new()
            .str("general.architecture", architecture)
            .i32s(&key("target_layers"), &layers)
            .u32(&key("target_hidden_size"), number("hidden_size"))
            .u32(&key("block_count"), number("num_hidden_layers"))
            .u32(&key("embedding_length"), number("hidden_size"))
            .u32(&key("feed_forward_length"), number("intermediate_size"))
            .u32(&key("attention.head_count"), number("num_attention_heads"))
            .u32(&key("attention.head_count_kv"), number("num_key_value_heads"))
            .u32(&key("attention.key_length"), number("head_dim"))
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 10_000.0)
            .bool(&key("norm_before_residual"), true)
            .strings("tokenizer.ggml.tokens", (0..number("vocab_size")).map(|token| format!("t{token}")));
        if let Some(mask) = mask {
            file = file.u32("dflash.block_size", number("block_size"));
            file = file.u32("tokenizer.ggml.mask_token_id", mask as u32);
            if let Some(types) = self.config["layer_types"].as_array() {
                let slides = types.iter().map(|of| of.as_str() == Some("sliding_attention")).collect();
                let slides = GgufValue::Array(Array::Bool(slides));
                file = file.u32("dflash.attention.sliding_window", number("sliding_window"));
                file = file.value("dflash.attention.sliding_window_pattern", slides);
            }
            let flags = [("is_causal", "attention.causal"), ("sample_from_anchor", "sample_from_anchor")];
            for (own, other) in flags {
                if let Some(flag) = self.config[own].as_bool() {
                    file = file.bool(&key(other), flag);
                }
            }
        }
        for (name, (shape, values)) in &self.tensors {
            let name = llama_cpp_name(name);
            file = match values {
                Values::Float(values) => {
                    let dtype = match (shape.len(), name.contains("ffn")) {
                        (1, _) => GgmlDType::F32,
                        (_, true) => GgmlDType::Q8_0,
                        (_, false) => GgmlDType::F16,
                    };
                    file.tensor(&name, shape, dtype, values)
                }
                Values::Integer(values) => {
                    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    file.raw_tensor(&name, &[values.len() as u64], 27, None, bytes)
                }
                Values::Flag(_) => file,
            };
        }
        if mask.is_some() {
            return file;
        }
        let divisors: Vec<f32> = (0..number("head_dim") / 2).map(|i| 1.0 + 0.1 * (i % 7) as f32).collect();
        file.tensor("rope_freqs.weight", &[divisors.len()], GgmlDType::F32, &divisors)
    }

    fn bytes(&self, values: &Values) -> (Dtype, Vec<u8>) {
        match values {
            Values::Integer(values) => {
                (Dtype::I64, values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
            Values::Flag(values) => (Dtype::BOOL, values.iter().map(|value| u8::from(*value)).collect()),
            Values::Float(values) => {
                let bytes = match self.dtype {
                    Dtype::F16 => {
                        values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()
                    }
                    Dtype::BF16 => {
                        values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()
                    }
                    _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                };
                (self.dtype, bytes)
            }
        }
    }
}

/// Returns llama.cpp's name of a tensor.
fn llama_cpp_name(name: &str) -> String {
    const LAYER: [(&str, &str); 12] = [
        ("input_layernorm", "attn_norm"),
        ("hidden_norm", "attn_norm_2"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    if let Some((layer, part)) = name.strip_prefix("layers.").and_then(|name| name.split_once('.')) {
        let renamed =
            LAYER.iter().find_map(|(own, other)| Some(format!("{other}{}", part.strip_prefix(own)?)));
        return format!("blk.{layer}.{}", renamed.unwrap_or_default());
    }
    let others = [
        ("lm_head", "output"),
        ("norm.", "output_norm."),
        ("hidden_norm.", "enc.output_norm."),
        ("markov_head.", ""),
        ("confidence_head.proj.", "conf_proj."),
    ];
    let found = others.iter().find_map(|(own, other)| Some(format!("{other}{}", name.strip_prefix(own)?)));
    found.unwrap_or_else(|| name.to_owned())
}
