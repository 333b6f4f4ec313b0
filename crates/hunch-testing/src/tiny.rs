//! Tiny models with random weights that run in milliseconds.
//!
//! Valid GGUF files of every architecture and type, with a byte-level tokeniser.

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use hunch_kernels::{WeightType, random_blocks};

use crate::gguf_writer::GgufWriter;

/// Parameters of a tiny model.
#[derive(Clone, Copy, Debug)]
pub struct Tiny {
    /// Architecture as in GGUF metadata.
    pub architecture: &'static str,
    /// Type of the matrices.
    pub dtype: GgmlDType,
    /// Uses the embedding as output head.
    pub tied: bool,
    /// Seed of the weights.
    pub seed: u64,
    /// Layers, without those that only draft.
    pub layers: usize,
    /// Further layers that only draft (MTP).
    pub mtp: usize,
    /// Query heads.
    pub heads: usize,
    /// Largest weight of the layers' matrices.
    pub matrices: f32,
    /// Maximum context, in tokens.
    pub context: u32,
    /// Adds the frequency factors of Llama 3.
    pub rope_factors: bool,
    /// Optional part of an architecture.
    pub variant: Variant,
    /// Chat template.
    pub template: Option<&'static str>,
    /// Text of the first control token.
    pub control: &'static str,
}

/// Optional part of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// None.
    Plain,
    /// RoPE scaling of YaRN, by 4.
    Yarn,
    /// RoPE scaling of longrope, in a context longer than the original one.
    Longrope,
    /// Sliding windows of [`WINDOW`] positions.
    Window,
    /// Experts, in an architecture that has dense models too.
    Experts,
    /// Experts of type MXFP4, with windows and YaRN, as in gpt-oss.
    Fp4,
    /// Attention in every layer, in an architecture with gated delta nets.
    Attention,
    /// Experts in every other layer, as many as in Llama 4 Maverick.
    Interleaved,
    /// Embeddings that layers have of their own, and layers that share keys, as in Gemma 4 E2B.
    PerLayer,
}

/// Sliding window of models that have one.
pub const WINDOW: u32 = 7;

/// Models beyond llama, qwen2, qwen3 and smollm3, with their numbers of layers.
pub const FURTHER: [(&str, Variant, usize); 36] = [
    ("llama", Variant::Yarn, 2),
    ("qwen3", Variant::Yarn, 2),
    ("mistral3", Variant::Plain, 2),
    ("mistral3", Variant::Yarn, 2),
    ("phi3", Variant::Plain, 2),
    ("phi3", Variant::Longrope, 2),
    ("granite", Variant::Plain, 2),
    ("olmo2", Variant::Plain, 2),
    ("olmo2", Variant::Window, 5),
    ("glm4", Variant::Plain, 2),
    ("gemma3", Variant::Plain, 2),
    ("gemma3", Variant::Window, 7),
    ("gemma2", Variant::Window, 3),
    ("exaone4", Variant::Plain, 2),
    // llama.cpp has windows only in the size with 64 layers.
    ("exaone4", Variant::Window, 64),
    ("seed_oss", Variant::Plain, 2),
    MIXTURE,
    ("gpt-oss", Variant::Window, 2),
    ("gpt-oss", Variant::Fp4, 2),
    ("llama", Variant::Experts, 2),
    ("qwen2moe", Variant::Plain, 2),
    ("granitemoe", Variant::Plain, 2),
    ("olmoe", Variant::Plain, 2),
    ("glm4moe", Variant::Plain, 3),
    CONVOLUTIONS,
    ("lfm2", Variant::Window, 4),
    ("lfm2moe", Variant::Plain, 3),
    DELTA_NETS,
    ("qwen35moe", Variant::Plain, 3),
    ("qwen3next", Variant::Plain, 3),
    CHUNKED,
    ("llama4", Variant::Interleaved, 4),
    ("bailingmoe2", Variant::Plain, 3),
    ("gemma4", Variant::Plain, 3),
    SHARED_KEYS,
    ("gemma4", Variant::Experts, 3),
];

/// A model of [`FURTHER`] whose layers have chunks, of 8192 positions.
pub const CHUNKED: (&str, Variant, usize) = ("llama4", Variant::Plain, 4);

/// Returns the models of [`FURTHER`], and one with chunks of [`WINDOW`] positions. llama.cpp has one size only.
pub fn with_short_chunks() -> impl Iterator<Item = (&'static str, Variant, usize)> {
    FURTHER.into_iter().chain([("llama4", Variant::Window, 4)])
}

/// A model of [`FURTHER`] whose layers have embeddings of their own. The last three share keys.
pub const SHARED_KEYS: (&str, Variant, usize) = ("gemma4", Variant::PerLayer, 7);
/// Layers of that model with keys of their own.
const OWN_KEYS: usize = 4;
/// Values of a token for each layer of that model.
const PER_LAYER: usize = 32;

/// A model of [`FURTHER`] whose layers have convolutions, attention, and convolutions.
pub const CONVOLUTIONS: (&str, Variant, usize) = ("lfm2", Variant::Plain, 3);
/// Positions that a short convolution sees.
pub const CONVOLUTION: usize = 3;

/// A model of [`FURTHER`] whose layers have gated delta nets, attention, and gated delta nets.
pub const DELTA_NETS: (&str, Variant, usize) = ("qwen35", Variant::Plain, 3);

/// Sizes of a gated delta net.
pub struct DeltaNetSizes {
    /// Heads of keys, and of queries.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions that the convolution sees.
    pub positions: usize,
}

/// The sizes in all models that have delta nets.
pub const DELTA_NET: DeltaNetSizes =
    DeltaNetSizes { key_heads: 2, value_heads: 4, head_dim: 32, positions: 4 };

/// Models with a layer that only drafts: dense with gated delta nets, and without, mixtures of experts.
pub const WITH_MTP: [(&str, Variant, usize); 5] = [
    ("qwen35", Variant::Plain, 3),
    ("qwen35", Variant::Attention, 2),
    ("qwen35moe", Variant::Attention, 2),
    ("qwen3next", Variant::Attention, 2),
    ("glm4moe", Variant::Plain, 2),
];

/// Returns a model of [`WITH_MTP`].
pub fn with_mtp(of: (&'static str, Variant, usize)) -> Tiny {
    Tiny { mtp: 1, seed: 3, tied: false, ..further(of) }
}

/// A mixture of experts of [`FURTHER`].
pub const MIXTURE: (&str, Variant, usize) = ("qwen3moe", Variant::Plain, 2);

/// Width of the hidden states.
pub const WIDTH: usize = 256;
const FEED_FORWARD: usize = 512;
/// Experts of a layer and of a row, in models that have experts.
pub const EXPERTS: (usize, usize) = (8, 3);
/// Width of a head, unless a model has another number of heads.
pub const HEAD_DIM: usize = 64;
/// Vocabulary size: 256 bytes and two control tokens.
pub const VOCABULARY: usize = 258;
/// Token that ends an answer.
pub const END_OF_TURN: u32 = 257;

impl Default for Tiny {
    fn default() -> Self {
        Self {
            architecture: "llama",
            dtype: GgmlDType::F32,
            tied: true,
            seed: 1,
            layers: 2,
            mtp: 0,
            heads: WIDTH / HEAD_DIM,
            matrices: 0.15,
            context: 512,
            rope_factors: false,
            variant: Variant::Plain,
            template: None,
            control: "<|im_start|>",
        }
    }
}

/// Names of the norms of a layer.
fn norms_of(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "olmo2" | "exaone4" => &["post_attention_norm.weight", "post_ffw_norm.weight"],
        "seed_oss" | "gpt-oss" | "glm4moe" | "qwen35" | "qwen35moe" | "qwen3next" => {
            &["attn_norm.weight", "post_attention_norm.weight"]
        }
        "glm4" | "gemma2" | "gemma3" | "gemma4" => {
            &["attn_norm.weight", "ffn_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight"]
        }
        _ => &["attn_norm.weight", "ffn_norm.weight"],
    }
}

/// Generator of pseudo-random numbers between -1 and 1.
pub struct Noise(u64);

impl Noise {
    /// Starts a sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn value(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Returns numbers between `-scale` and `scale`.
    pub fn many(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.value() * scale).collect()
    }
}

/// Returns a model of [`FURTHER`].
pub fn further((architecture, variant, layers): (&'static str, Variant, usize)) -> Tiny {
    // These have no tied embeddings.
    let tied = !matches!(architecture, "olmo2" | "gpt-oss" | "qwen2moe" | "olmoe" | "bailingmoe2");
    Tiny { architecture, variant, layers, tied, ..Tiny::default() }
}

/// Number of tokens that llama.cpp read of each model of [`FURTHER`].
pub const ORACLE_TOKENS: usize = 40;

/// Number of tokens that llama.cpp read of the [`long`] model, and of those that it continued with.
pub const LONG: (usize, usize) = (8180, 24);

/// Returns the model of [`CHUNKED`] with a context that is longer than a chunk.
pub fn long() -> Tiny {
    Tiny { context: 8448, ..further(CHUNKED) }
}

/// Returns pseudo-random tokens.
pub fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| ((noise.value() + 1.0) * 0.5 * (VOCABULARY - 1) as f32) as u32).collect()
}

/// Returns the printable character of GPT-2 for a byte.
pub fn byte_token(byte: u8) -> String {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let char = if plain(byte) {
        char::from(byte)
    } else {
        let earlier = (0..byte).filter(|&b| !plain(b)).count() as u32;
        char::from_u32(256 + earlier).unwrap()
    };
    char.to_string()
}

/// A matrix of a layer: its name, rows and columns.
type Shape = (&'static str, usize, usize);

impl Tiny {
    /// Returns the file before it is written, to change it.
    pub fn writer(&self) -> GgufWriter {
        let mut noise = Noise::new(self.seed);
        let writer = self.matrices(self.header(), &mut noise);
        let writer = self.experts(writer, &mut noise);
        self.rotation_factors(self.vectors(writer))
    }

    /// Returns the metadata.
    fn header(&self) -> GgufWriter {
        let a = self.architecture;
        let key = |name: &str| format!("{a}.{name}");
        let head_dim = self.head_dim();
        let mut tokens: Vec<String> = (0..=255).map(byte_token).collect();
        tokens.extend([self.control.into(), "<|im_end|>".into()]);
        let mut kinds = vec![1; 256];
        kinds.extend([3, 3]);
        let mut writer = GgufWriter::new()
            .str("general.architecture", a)
            // llama.cpp expects more tokens of models that are called phi3.
            .str("general.name", &format!("Tiny {} {}", a.replace("phi3", "phi"), self.seed))
            .u32(&key("block_count"), self.all_layers() as u32)
            .u32(&key("context_length"), self.context)
            .u32(&key("embedding_length"), WIDTH as u32)
            .u32(&key("attention.head_count"), self.heads as u32)
            .u32(&key("attention.key_length"), head_dim as u32)
            .u32(&key("attention.value_length"), head_dim as u32)
            .u32(&key("rope.dimension_count"), self.rotated() as u32)
            .f32(&key("rope.freq_base"), 10_000.0)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", "gpt-2")
            .strings("tokenizer.ggml.tokens", tokens)
            .i32s("tokenizer.ggml.token_type", &kinds)
            .strings::<String>("tokenizer.ggml.merges", Vec::new())
            .u32("tokenizer.ggml.eos_token_id", END_OF_TURN)
            .u32("tokenizer.ggml.bos_token_id", 256);
        if let Some(template) = self.template {
            writer = writer.str("tokenizer.chat_template", template);
        }
        let key_heads = |layer: usize| match layer {
            _ if self.has_convolution(layer) => 0,
            _ if self.is_gemma4() => self.gemma4_heads(layer).0 as i32,
            _ => self.key_heads() as i32,
        };
        let of_layers: Vec<i32> = (0..self.layers).map(key_heads).collect();
        // Files of Granite 4 state it for each layer.
        let is_listed = self.architecture == "granite";
        writer = if is_listed || of_layers.iter().any(|heads| *heads == 0 || *heads != of_layers[0]) {
            writer.i32s(&key("attention.head_count_kv"), &of_layers)
        } else {
            writer.u32(&key("attention.head_count_kv"), self.key_heads() as u32)
        };
        let widths: Vec<i32> = (0..self.layers).map(|layer| self.feed_forward(layer) as i32).collect();
        writer = if widths.iter().any(|width| *width != widths[0]) {
            writer.i32s(&key("feed_forward_length"), &widths)
        } else {
            writer.u32(&key("feed_forward_length"), widths[0] as u32)
        };
        if self.mtp > 0 {
            writer = writer.u32(&key("nextn_predict_layers"), self.mtp as u32);
        }
        self.metadata(writer)
    }

    fn head_dim(&self) -> usize {
        WIDTH / self.heads
    }

    /// Adds the matrices of all layers but those of experts, the embedding and the output head.
    fn matrices(&self, mut writer: GgufWriter, noise: &mut Noise) -> GgufWriter {
        let mut matrix = |writer: GgufWriter, name: &str, n: usize, k: usize, scale: f32| {
            let data = noise.many(n * k, scale);
            writer.tensor(name, &[n, k], self.dtype, &data)
        };
        // Gemma multiplies the embeddings by the square root of their width.
        let is_gemma = self.architecture.starts_with("gemma");
        let embedding = if is_gemma { 1.0 / (WIDTH as f32).sqrt() } else { 1.0 };
        writer = matrix(writer, "token_embd.weight", VOCABULARY, WIDTH, embedding);
        if self.variant == Variant::PerLayer {
            let all = self.layers * PER_LAYER;
            writer = matrix(writer, "per_layer_token_embd.weight", VOCABULARY, all, 0.3);
            writer = matrix(writer, "per_layer_model_proj.weight", all, WIDTH, self.matrices);
        }
        for layer in 0..self.all_layers() {
            for (part, n, k) in
                self.mixer_matrices(layer).into_iter().chain(self.feed_forward_matrices(layer))
            {
                writer = matrix(writer, &format!("blk.{layer}.{part}.weight"), n, k, self.matrices);
            }
            if layer >= self.layers {
                let name = format!("blk.{layer}.nextn.eh_proj.weight");
                writer = matrix(writer, &name, WIDTH, 2 * WIDTH, self.matrices);
            }
        }
        if self.tied { writer } else { matrix(writer, "output.weight", VOCABULARY, WIDTH, 0.2) }
    }

    /// Returns the matrices of attention or of what a layer has in its place: name, rows and columns.
    fn mixer_matrices(&self, layer: usize) -> Vec<Shape> {
        let DeltaNetSizes { key_heads, value_heads, head_dim, .. } = DELTA_NET;
        let kv = self.key_heads() * self.head_dim();
        match self.architecture {
            _ if self.has_convolution(layer) => {
                vec![("shortconv.in_proj", 3 * WIDTH, WIDTH), ("shortconv.out_proj", WIDTH, WIDTH)]
            }
            architecture if self.has_delta_net(layer) => {
                let mut net = vec![
                    ("attn_qkv", (2 * key_heads + value_heads) * head_dim, WIDTH),
                    ("attn_gate", value_heads * head_dim, WIDTH),
                    ("ssm_out", WIDTH, value_heads * head_dim),
                ];
                net.extend(match architecture {
                    "qwen3next" => vec![("ssm_ba", 2 * value_heads, WIDTH)],
                    _ => vec![("ssm_beta", value_heads, WIDTH), ("ssm_alpha", value_heads, WIDTH)],
                });
                net
            }
            _ if self.is_gemma4() => Vec::new(),
            "phi3" | "bailingmoe2" => {
                vec![("attn_qkv", WIDTH + 2 * kv, WIDTH), ("attn_output", WIDTH, WIDTH)]
            }
            _ => {
                let queries = if self.is_gated() { 2 * WIDTH } else { WIDTH };
                vec![
                    ("attn_q", queries, WIDTH),
                    ("attn_k", kv, WIDTH),
                    ("attn_v", kv, WIDTH),
                    ("attn_output", WIDTH, WIDTH),
                ]
            }
        }
    }

    /// Returns the matrices of a layer's feed-forward network, without those of experts.
    fn feed_forward_matrices(&self, layer: usize) -> Vec<Shape> {
        let shared = self.shared_width();
        match self.architecture {
            _ if self.is_gemma4() => self.gemma4_matrices(layer),
            _ if self.has_experts_in(layer) => {
                let mut mixture = vec![("ffn_gate_inp", self.expert_counts().0, WIDTH)];
                if shared > 0 {
                    mixture.extend([
                        ("ffn_gate_shexp", shared, WIDTH),
                        ("ffn_up_shexp", shared, WIDTH),
                        ("ffn_down_shexp", WIDTH, shared),
                    ]);
                }
                mixture
            }
            "phi3" | "glm4" => vec![("ffn_up", 2 * FEED_FORWARD, WIDTH), ("ffn_down", WIDTH, FEED_FORWARD)],
            _ => vec![
                ("ffn_gate", FEED_FORWARD, WIDTH),
                ("ffn_up", FEED_FORWARD, WIDTH),
                ("ffn_down", WIDTH, FEED_FORWARD),
            ],
        }
    }

    /// Adds norms, biases and other vectors, and the convolutions.
    fn vectors(&self, mut writer: GgufWriter) -> GgufWriter {
        let mut noise = Noise::new(self.seed + 77);
        let mut vector = |writer: GgufWriter, name: &str, n: usize, middle: f32| {
            let data: Vec<f32> = noise.many(n, 0.2).into_iter().map(|v| v + middle).collect();
            writer.tensor(name, &[n], GgmlDType::F32, &data)
        };
        let is_lfm2 = self.architecture.starts_with("lfm2");
        let output_norm = if is_lfm2 { "token_embd_norm.weight" } else { "output_norm.weight" };
        writer = vector(writer, output_norm, WIDTH, 1.0);
        for layer in 0..self.all_layers() {
            let name = |part: &str| format!("blk.{layer}.{part}");
            for (part, n, middle) in self.layer_vectors(layer) {
                writer = vector(writer, &name(&part), n, middle);
            }
            let convolution = if self.has_convolution(layer) {
                Some(("shortconv.conv.weight", [WIDTH, CONVOLUTION]))
            } else {
                let DeltaNetSizes { key_heads, value_heads, head_dim, positions } = DELTA_NET;
                let channels = (2 * key_heads + value_heads) * head_dim;
                self.has_delta_net(layer).then_some(("ssm_conv1d.weight", [channels, positions]))
            };
            if let Some((part, shape)) = convolution {
                let weights = Noise::new(self.seed + 99 + layer as u64).many(shape[0] * shape[1], 0.8);
                writer = writer.tensor(&name(part), &shape, GgmlDType::F32, &weights);
            }
            for (part, n, middle) in self.mixer_vectors(layer) {
                writer = vector(writer, &name(part), n, middle);
            }
        }
        if self.variant == Variant::PerLayer {
            writer = vector(writer, "per_layer_proj_norm.weight", PER_LAYER, 1.0);
        }
        writer
    }

    /// Returns norms and biases of a layer: name, length and the middle of the values.
    fn layer_vectors(&self, layer: usize) -> Vec<(String, usize, f32)> {
        let a = self.architecture;
        let kv = self.key_heads() * self.head_dim();
        let mut vectors: Vec<(String, usize, f32)> = Vec::new();
        let mut add = |name: &str, n: usize, middle: f32| vectors.push((name.to_owned(), n, middle));
        norms_of(a).iter().for_each(|norm| add(norm, WIDTH, 1.0));
        if layer >= self.layers {
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                add(&format!("nextn.{norm}.weight"), WIDTH, 1.0);
            }
        }
        if self.is_gemma4() {
            let width = self.gemma4_heads(layer).1;
            // Scores are not divided by the width of a head.
            add("attn_q_norm.weight", width, 0.4);
            add("attn_k_norm.weight", width, 0.6);
            add("layer_output_scale.weight", 1, 0.9);
        }
        if self.variant == Variant::PerLayer {
            add("post_norm.weight", WIDTH, 1.0);
        }
        if self.is_gemma4() && self.has_experts() {
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                add(&format!("{norm}.weight"), WIDTH, 1.0);
            }
            add("ffn_gate_inp.scale", WIDTH, 2.0);
            add("ffn_down_exps.scale", EXPERTS.0, 1.0);
        }
        if a == "gpt-oss" {
            add("attn_output.bias", WIDTH, 0.0);
            add("attn_sinks.weight", self.heads, 0.5);
            add("ffn_gate_inp.bias", EXPERTS.0, 0.0);
        }
        if matches!(a, "qwen2moe" | "qwen35moe" | "qwen3next") {
            add("ffn_gate_inp_shexp.weight", WIDTH, 0.0);
        }
        if matches!(a, "glm4moe" | "lfm2moe" | "bailingmoe2") && layer >= self.dense_layers() {
            add("exp_probs_b.bias", EXPERTS.0, 0.0);
        }
        if matches!(a, "qwen2" | "qwen2moe" | "seed_oss" | "glm4" | "glm4moe" | "gpt-oss") {
            for (part, n) in [("attn_q.bias", WIDTH), ("attn_k.bias", kv), ("attn_v.bias", kv)] {
                add(part, n, 0.0);
            }
        }
        vectors
    }

    /// Returns the vectors of attention, or of the delta net in its place.
    fn mixer_vectors(&self, layer: usize) -> Vec<(&'static str, usize, f32)> {
        if self.has_convolution(layer) {
            return Vec::new();
        }
        if self.has_delta_net(layer) {
            let DeltaNetSizes { value_heads, head_dim, .. } = DELTA_NET;
            return vec![
                ("ssm_a", value_heads, -0.3),
                ("ssm_dt.bias", value_heads, 0.0),
                ("ssm_norm.weight", head_dim, 1.0),
            ];
        }
        let (queries, keys) = match self.architecture {
            "qwen35" | "qwen35moe" | "qwen3next" | "qwen3" | "qwen3moe" | "gemma3" | "exaone4" | "lfm2"
            | "lfm2moe" | "bailingmoe2" => (self.head_dim(), self.head_dim()),
            "olmo2" | "olmoe" => (WIDTH, self.key_heads() * self.head_dim()),
            _ => return Vec::new(),
        };
        vec![("attn_q_norm.weight", queries, 1.0), ("attn_k_norm.weight", keys, 1.0)]
    }

    /// Adds the factors of the rotation's frequencies.
    fn rotation_factors(&self, mut writer: GgufWriter) -> GgufWriter {
        let half = self.head_dim() / 2;
        let mut add = |name: &str, factors: &[f32]| {
            let own = std::mem::take(&mut writer);
            writer = own.tensor(name, &[factors.len()], GgmlDType::F32, factors);
        };
        if self.is_gemma4() {
            // A quarter of the elements rotates.
            let factors: Vec<f32> = (0..half).map(|i| if i < half / 4 { 1.0 } else { 1e30 }).collect();
            add("rope_freqs.weight", &factors);
        }
        if self.variant == Variant::Longrope {
            for (name, growth) in [("rope_factors_short", 0.02), ("rope_factors_long", 0.3)] {
                let factors: Vec<f32> = (0..self.rotated() / 2).map(|i| 1.0 + i as f32 * growth).collect();
                add(&format!("{name}.weight"), &factors);
            }
        }
        if self.rope_factors {
            let factors: Vec<f32> = (0..half).map(|i| 1.0 + i as f32 / 8.0).collect();
            add("rope_freqs.weight", &factors);
        }
        writer
    }

    /// Returns the number of key heads: half as many as query heads, where the architecture allows it.
    fn key_heads(&self) -> usize {
        if self.architecture == "olmoe" { self.heads } else { self.heads / 2 }
    }

    fn is_gemma4(&self) -> bool {
        self.architecture == "gemma4"
    }

    /// Returns `true` if a layer of Gemma 4 has a window.
    fn gemma4_window(&self, layer: usize) -> bool {
        match self.variant {
            // llama.cpp expects the keys that layers share in the last two layers that have their own.
            Variant::PerLayer if layer < OWN_KEYS => layer.is_multiple_of(2),
            _ => layer + 1 != self.layers,
        }
    }

    /// Returns the number and the width of the key heads of a layer of Gemma 4.
    fn gemma4_heads(&self, layer: usize) -> (usize, usize) {
        let head_dim = WIDTH / self.heads;
        if self.gemma4_window(layer) { (self.heads / 2, head_dim / 2) } else { (self.heads / 4, head_dim) }
    }

    /// Returns the matrices of a layer of Gemma 4, without experts: name, rows and width.
    fn gemma4_matrices(&self, layer: usize) -> Vec<Shape> {
        let (heads, width) = self.gemma4_heads(layer);
        let (queries, keys, n_ff) = (self.heads * width, heads * width, self.feed_forward(layer));
        let mut matrices = vec![("attn_q", queries, WIDTH), ("attn_k", keys, WIDTH)];
        // Elsewhere the keys are the values too.
        if self.gemma4_window(layer) || self.variant == Variant::PerLayer {
            matrices.push(("attn_v", keys, WIDTH));
        }
        matrices.extend([
            ("attn_output", WIDTH, queries),
            ("ffn_gate", n_ff, WIDTH),
            ("ffn_up", n_ff, WIDTH),
            ("ffn_down", WIDTH, n_ff),
        ]);
        if self.has_experts() {
            matrices.push(("ffn_gate_inp", EXPERTS.0, WIDTH));
        }
        if self.variant == Variant::PerLayer {
            matrices.extend([("inp_gate", PER_LAYER, WIDTH), ("proj", WIDTH, PER_LAYER)]);
        }
        matrices
    }

    /// Returns the number of layers, those that only draft included.
    pub fn all_layers(&self) -> usize {
        self.layers + self.mtp
    }

    /// Returns `true` if a layer has a short convolution instead of attention.
    pub fn has_convolution(&self, layer: usize) -> bool {
        self.architecture.starts_with("lfm2") && layer.is_multiple_of(2)
    }

    /// Returns `true` if some layers have a gated delta net instead of attention.
    pub fn has_delta_nets(&self) -> bool {
        self.is_gated() && self.variant != Variant::Attention
    }

    /// Returns `true` if the output of attention has gates.
    fn is_gated(&self) -> bool {
        matches!(self.architecture, "qwen35" | "qwen35moe" | "qwen3next")
    }

    /// Returns `true` if a layer has a gated delta net instead of attention.
    pub fn has_delta_net(&self, layer: usize) -> bool {
        self.has_delta_nets() && layer < self.layers && layer.is_multiple_of(2)
    }

    /// Returns `true` for mixtures of experts.
    pub fn has_experts(&self) -> bool {
        let a = self.architecture;
        a.ends_with("moe")
            || matches!(a, "gpt-oss" | "qwen3next" | "llama4" | "bailingmoe2")
            || self.variant == Variant::Experts
    }

    /// Returns the number of layers without experts before the first one with experts.
    fn dense_layers(&self) -> usize {
        match self.architecture {
            "glm4moe" | "lfm2moe" | "bailingmoe2" => 1,
            _ if self.has_experts() => 0,
            _ => self.all_layers(),
        }
    }

    /// Returns the number of experts of a layer and of a row.
    fn expert_counts(&self) -> (usize, usize) {
        if self.variant == Variant::Interleaved { (128, 1) } else { EXPERTS }
    }

    /// Returns the number of layers to the next one with experts.
    fn expert_step(&self) -> usize {
        if self.variant == Variant::Interleaved { 2 } else { 1 }
    }

    /// Returns `true` if a layer has experts.
    pub fn has_experts_in(&self, layer: usize) -> bool {
        layer >= self.dense_layers() && (layer + 1).is_multiple_of(self.expert_step())
    }

    /// Returns the width of the expert that all rows use. 0 for none.
    fn shared_width(&self) -> usize {
        match self.architecture {
            "qwen2moe" | "granitemoe" | "qwen35moe" | "qwen3next" => 64,
            "glm4moe" | "llama4" | "bailingmoe2" => self.expert_width(),
            _ => 0,
        }
    }

    /// Returns the width of a dense layer. Some architectures have that of experts there.
    fn feed_forward(&self, layer: usize) -> usize {
        let of_experts =
            matches!(self.architecture, "granitemoe" | "olmoe") || self.variant == Variant::Experts;
        match self.variant {
            // Layers that share keys have twice the width.
            Variant::PerLayer if layer >= OWN_KEYS => 2 * FEED_FORWARD,
            _ if of_experts && !self.is_gemma4() => self.expert_width(),
            _ => FEED_FORWARD,
        }
    }

    /// Returns the width of an expert: whole blocks of the type.
    fn expert_width(&self) -> usize {
        match self.dtype.block_size() {
            256 => 256,
            _ if self.variant == Variant::Interleaved => 32,
            _ => 96,
        }
    }

    /// Adds the matrices of experts, and their biases.
    fn experts(&self, mut writer: GgufWriter, noise: &mut Noise) -> GgufWriter {
        let (count, width) = (self.expert_counts().0, self.expert_width());
        for layer in (0..self.all_layers()).filter(|layer| self.has_experts_in(*layer)) {
            let separate = [("gate", width, WIDTH), ("up", width, WIDTH), ("down", WIDTH, width)];
            let joined = [("gate_up", 2 * width, WIDTH), ("down", WIDTH, width)];
            for &(part, n, k) in if self.is_gemma4() { &joined[..] } else { &separate } {
                let name = format!("blk.{layer}.ffn_{part}_exps");
                let (weight, shape) = (format!("{name}.weight"), [count, n, k]);
                if self.variant == Variant::Fp4 {
                    let seed = noise.value().to_bits().into();
                    let dtype = WeightType::Mxfp4;
                    let bytes = random_blocks(dtype, count * n * k / dtype.block_size(), 0.02, seed);
                    let dims = shape.map(|size| size as u64);
                    let dims = [dims[2], dims[1], dims[0]];
                    writer = writer.raw_tensor(&weight, &dims, dtype.number(), None, bytes);
                } else {
                    writer = writer.tensor(&weight, &shape, self.dtype, &noise.many(count * n * k, 0.15));
                }
                if self.architecture == "gpt-oss" {
                    let bias = noise.many(count * n, 0.2);
                    writer = writer.tensor(&format!("{name}.bias"), &[count, n], GgmlDType::F32, &bias);
                }
            }
        }
        writer
    }

    /// Returns the number of rotated elements of a head.
    fn rotated(&self) -> usize {
        let head_dim = WIDTH / self.heads;
        match (self.architecture, self.variant) {
            ("glm4" | "glm4moe" | "bailingmoe2", _) => head_dim / 2,
            ("phi3", Variant::Longrope) => head_dim * 3 / 4,
            ("qwen35" | "qwen35moe" | "qwen3next", _) => head_dim / 4,
            _ => head_dim,
        }
    }

    /// Adds the metadata of the architecture and the variant.
    fn metadata(&self, mut writer: GgufWriter) -> GgufWriter {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        if self.architecture.starts_with("granite") {
            writer = writer
                .f32(&key("embedding_scale"), 1.7)
                .f32(&key("residual_scale"), 0.6)
                .f32(&key("attention.scale"), 0.2)
                .f32(&key("logit_scale"), 3.0);
        }
        if self.has_experts() {
            let (count, used) = self.expert_counts();
            writer =
                writer.u32(&key("expert_count"), count as u32).u32(&key("expert_used_count"), used as u32);
            if self.feed_forward(0) != self.expert_width() {
                writer = writer.u32(&key("expert_feed_forward_length"), self.expert_width() as u32);
            }
        }
        if matches!(self.architecture, "qwen2moe" | "granitemoe" | "qwen35moe" | "qwen3next") {
            writer = writer.u32(&key("expert_shared_feed_forward_length"), self.shared_width() as u32);
        }
        if self.architecture == "bailingmoe2" {
            writer = writer.u32(&key("expert_group_count"), 4).u32(&key("expert_group_used_count"), 2);
        }
        if matches!(self.architecture, "glm4moe" | "bailingmoe2") {
            writer = writer
                .u32(&key("leading_dense_block_count"), self.dense_layers() as u32)
                .u32(&key("expert_shared_count"), 1)
                .u32(&key("expert_gating_func"), 2)
                .bool(&key("expert_weights_norm"), true)
                .f32(&key("expert_weights_scale"), 1.5);
        }
        if self.architecture == "llama4" {
            writer = writer.u32(&key("interleave_moe_layer_step"), self.expert_step() as u32);
        }
        if self.architecture == "lfm2moe" {
            writer = writer
                .u32(&key("leading_dense_block_count"), self.dense_layers() as u32)
                .u32(&key("expert_gating_func"), 2);
        }
        if self.architecture.starts_with("lfm2") {
            writer = writer.u32(&key("shortconv.l_cache"), CONVOLUTION as u32);
        }
        if self.variant == Variant::Attention {
            writer = writer.u32(&key("full_attention_interval"), 1);
        }
        if self.has_delta_nets() {
            let DeltaNetSizes { key_heads, value_heads, head_dim, positions } = DELTA_NET;
            writer = writer
                .u32(&key("full_attention_interval"), 2)
                .u32(&key("ssm.conv_kernel"), positions as u32)
                .u32(&key("ssm.state_size"), head_dim as u32)
                .u32(&key("ssm.group_count"), key_heads as u32)
                .u32(&key("ssm.time_step_rank"), value_heads as u32)
                .u32(&key("ssm.inner_size"), (value_heads * head_dim) as u32);
        }
        if self.architecture.starts_with("qwen35") {
            // Pairs that rotate by time, height and width.
            let pairs = self.rotated() as i32 / 2;
            let sections = [(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0];
            writer = writer.i32s(&key("rope.dimension_sections"), &sections);
        }
        if self.is_gemma4() {
            let windows: Vec<i32> = (0..self.layers).map(|layer| self.gemma4_window(layer).into()).collect();
            let (shared, per_layer) = match self.variant {
                Variant::PerLayer => (self.layers - OWN_KEYS, PER_LAYER),
                _ => (0, 0),
            };
            let local = (WIDTH / self.heads / 2) as u32;
            writer = writer
                .u32(&key("attention.sliding_window"), WINDOW)
                .i32s(&key("attention.sliding_window_pattern"), &windows)
                .u32(&key("attention.shared_kv_layers"), shared as u32)
                .u32(&key("attention.key_length_swa"), local)
                .u32(&key("attention.value_length_swa"), local)
                .u32(&key("rope.dimension_count_swa"), local)
                .f32(&key("rope.freq_base_swa"), 3_000.0)
                .u32(&key("embedding_length_per_layer_input"), per_layer as u32)
                .f32(&key("final_logit_softcapping"), 5.0);
        }
        if self.architecture == "gemma2" {
            writer =
                writer.f32(&key("attn_logit_softcapping"), 3.0).f32(&key("final_logit_softcapping"), 5.0);
        }
        if matches!(self.variant, Variant::Window | Variant::Fp4) {
            writer = writer.u32(&key("attention.sliding_window"), WINDOW);
        }
        match self.variant {
            Variant::Window if self.architecture != "gpt-oss" => writer,
            Variant::Plain
            | Variant::Experts
            | Variant::Attention
            | Variant::Interleaved
            | Variant::PerLayer => writer,
            Variant::Yarn | Variant::Window | Variant::Fp4 => {
                writer = writer
                    .str(&key("rope.scaling.type"), "yarn")
                    .f32(&key("rope.scaling.factor"), 4.0)
                    .u32(&key("rope.scaling.original_context_length"), 16);
                if self.architecture == "mistral3" {
                    writer = writer
                        .f32(&key("attention.temperature_scale"), 0.1)
                        .f32(&key("rope.scaling.yarn_beta_fast"), 4.0)
                        .f32(&key("rope.scaling.yarn_beta_slow"), 1.0)
                        .f32(&key("rope.scaling.yarn_log_multiplier"), 0.5);
                }
                writer
            }
            Variant::Longrope => writer
                .u32(&key("rope.scaling.original_context_length"), 16)
                .f32(&key("rope.scaling.attn_factor"), 1.2),
        }
    }

    /// Writes the model to a folder in `count` files and returns the path of the first.
    pub fn write_split(&self, folder: &Path, name: &str, count: u16) -> PathBuf {
        let path = |number: usize| folder.join(format!("{name}-{number:05}-of-{count:05}.gguf"));
        for (i, part) in self.writer().split(count).iter().enumerate() {
            std::fs::write(path(i + 1), part.bytes()).unwrap();
        }
        path(1)
    }

    /// Writes the model to a folder and returns its path.
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(format!("{name}.gguf"));
        std::fs::write(&path, self.writer().bytes()).unwrap();
        path
    }
}
