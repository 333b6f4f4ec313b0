//! Tiny models with random weights that run in milliseconds.
//!
//! Valid GGUF files of every architecture and type, with a byte-level tokeniser.

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;

use super::gguf_writer::GgufWriter;

/// Parameters of a tiny model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    pub(crate) architecture: &'static str,
    pub(crate) dtype: GgmlDType,
    pub(crate) tied: bool,
    pub(crate) seed: u64,
    pub(crate) layers: usize,
    /// Query heads. Half as many key heads.
    pub(crate) heads: usize,
    pub(crate) context: u32,
    /// Adds the frequency factors of Llama 3.
    pub(crate) rope_factors: bool,
}

pub(crate) const WIDTH: usize = 256;
const FEED_FORWARD: usize = 512;
/// Width of a head, unless a model has another number of heads.
pub(crate) const HEAD_DIM: usize = 64;
/// Vocabulary size: 256 bytes and two control tokens.
pub(crate) const VOCABULARY: usize = 258;
pub(crate) const END_OF_TURN: u32 = 257;

impl Default for Tiny {
    fn default() -> Self {
        Self {
            architecture: "llama",
            dtype: GgmlDType::F32,
            tied: true,
            seed: 1,
            layers: 2,
            heads: WIDTH / HEAD_DIM,
            context: 512,
            rope_factors: false,
        }
    }
}

/// Generator of pseudo-random numbers between -1 and 1.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn many(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.next() * scale).collect()
    }
}

/// Returns the printable character of GPT-2 for a byte.
pub(crate) fn byte_token(byte: u8) -> String {
    let plain = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let char = if plain(byte) {
        char::from(byte)
    } else {
        let earlier = (0..byte).filter(|&b| !plain(b)).count() as u32;
        char::from_u32(256 + earlier).unwrap()
    };
    char.to_string()
}

impl Tiny {
    pub(crate) fn writer(&self) -> GgufWriter {
        let a = self.architecture;
        let key = |name: &str| format!("{a}.{name}");
        let head_dim = WIDTH / self.heads;
        let mut noise = Noise::new(self.seed);
        let mut tokens: Vec<String> = (0..=255).map(byte_token).collect();
        tokens.extend(["<|im_start|>".into(), "<|im_end|>".into()]);
        let mut kinds = vec![1; 256];
        kinds.extend([3, 3]);
        let mut writer = GgufWriter::new()
            .str("general.architecture", a)
            .str("general.name", &format!("Tiny {a} {}", self.seed))
            .u32(&key("block_count"), self.layers as u32)
            .u32(&key("context_length"), self.context)
            .u32(&key("embedding_length"), WIDTH as u32)
            .u32(&key("feed_forward_length"), FEED_FORWARD as u32)
            .u32(&key("attention.head_count"), self.heads as u32)
            .u32(&key("attention.head_count_kv"), self.heads as u32 / 2)
            .u32(&key("attention.key_length"), head_dim as u32)
            .u32(&key("attention.value_length"), head_dim as u32)
            .u32(&key("rope.dimension_count"), head_dim as u32)
            .f32(&key("rope.freq_base"), 10_000.0)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", "gpt-2")
            .strings("tokenizer.ggml.tokens", tokens)
            .i32s("tokenizer.ggml.token_type", &kinds)
            .strings::<String>("tokenizer.ggml.merges", Vec::new())
            .u32("tokenizer.ggml.eos_token_id", END_OF_TURN)
            .u32("tokenizer.ggml.bos_token_id", 256);
        let kv = WIDTH / 2;
        let mut matrix = |writer: GgufWriter, name: &str, n: usize, k: usize, scale: f32| {
            let data = noise.many(n * k, scale);
            writer.tensor(name, &[n, k], self.dtype, &data)
        };
        writer = matrix(writer, "token_embd.weight", VOCABULARY, WIDTH, 1.0);
        for layer in 0..self.layers {
            for (part, n, k) in [
                ("attn_q", WIDTH, WIDTH),
                ("attn_k", kv, WIDTH),
                ("attn_v", kv, WIDTH),
                ("attn_output", WIDTH, WIDTH),
                ("ffn_gate", FEED_FORWARD, WIDTH),
                ("ffn_up", FEED_FORWARD, WIDTH),
                ("ffn_down", WIDTH, FEED_FORWARD),
            ] {
                writer = matrix(writer, &format!("blk.{layer}.{part}.weight"), n, k, 0.15);
            }
        }
        if !self.tied {
            writer = matrix(writer, "output.weight", VOCABULARY, WIDTH, 0.2);
        }
        let mut noise = Noise::new(self.seed + 77);
        let mut vector = |writer: GgufWriter, name: &str, n: usize, middle: f32| {
            let data: Vec<f32> = noise.many(n, 0.2).into_iter().map(|v| v + middle).collect();
            writer.tensor(name, &[n], GgmlDType::F32, &data)
        };
        writer = vector(writer, "output_norm.weight", WIDTH, 1.0);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            writer = vector(writer, &name("attn_norm.weight"), WIDTH, 1.0);
            writer = vector(writer, &name("ffn_norm.weight"), WIDTH, 1.0);
            if a == "qwen2" {
                for (part, n) in [("attn_q.bias", WIDTH), ("attn_k.bias", kv), ("attn_v.bias", kv)] {
                    writer = vector(writer, &name(part), n, 0.0);
                }
            }
            if a == "qwen3" {
                writer = vector(writer, &name("attn_q_norm.weight"), head_dim, 1.0);
                writer = vector(writer, &name("attn_k_norm.weight"), head_dim, 1.0);
            }
        }
        if self.rope_factors {
            let factors: Vec<f32> = (0..head_dim / 2).map(|i| 1.0 + i as f32 / 8.0).collect();
            writer = writer.tensor("rope_freqs.weight", &[head_dim / 2], GgmlDType::F32, &factors);
        }
        writer
    }

    /// Writes the model to a folder in `count` files and returns the path of the first.
    pub(crate) fn write_split(&self, folder: &Path, name: &str, count: u16) -> PathBuf {
        let path = |number: usize| folder.join(format!("{name}-{number:05}-of-{count:05}.gguf"));
        for (i, part) in self.writer().split(count).iter().enumerate() {
            std::fs::write(path(i + 1), part.bytes()).unwrap();
        }
        path(1)
    }

    /// Writes the model to a folder and returns its path.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(format!("{name}.gguf"));
        std::fs::write(&path, self.writer().bytes()).unwrap();
        path
    }
}
