//! Small valid GGUF files for tests and as seeds of fuzz targets.

use candle_core::quantized::GgmlDType;
use hunch_model::gguf::{Array, Value};

use crate::gguf_writer::GgufWriter;

/// Creates a small file with every feature of the format.
pub fn rich(writer: GgufWriter) -> GgufWriter {
    let nested = Array::Array(vec![Array::Array(vec![Array::U8(vec![1, 2])]), Array::I64(vec![])]);
    let ramp = |n: usize| (0..n).map(|i| i as f32 / n as f32 - 0.5).collect::<Vec<_>>();
    writer
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 128)
        .u32("llama.attention.head_count", 4)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .bool("tokenizer.ggml.add_bos_token", false)
        .strings("tokenizer.ggml.tokens", ["<s>", "a", "é", "日本", "", "Ġb"])
        .f32s("tokenizer.ggml.scores", &[0.0, -1.0, -2.0])
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1])
        .value("x.u8", Value::U8(1))
        .value("x.i8", Value::I8(-1))
        .value("x.u16", Value::U16(1))
        .value("x.i16", Value::I16(-1))
        .value("x.i32", Value::I32(-1))
        .value("x.u64", Value::U64(1))
        .value("x.i64", Value::I64(-1))
        .value("x.f64", Value::F64(0.5))
        .value("x.flags", Value::Array(Array::Bool(vec![true, false])))
        .value("x.nested", Value::Array(nested))
        .tensor("token_embd.weight", &[6, 64], GgmlDType::Q8_0, &ramp(384))
        .tensor("blk.0.attn_norm.weight", &[64], GgmlDType::F32, &ramp(64))
        .tensor("blk.0.attn_q.weight", &[2, 256], GgmlDType::Q4K, &ramp(512))
        .tensor("blk.0.cube", &[2, 3, 32], GgmlDType::F16, &ramp(192))
}

/// Returns the characters of GPT-2 for the 256 bytes, in order.
pub fn byte_characters() -> Vec<String> {
    let mut others = 0x100..;
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = |byte| if printable(byte) { byte } else { others.next().expect("endless") };
    (0..256).map(code).map(|code| char::from_u32(code).expect("below U+0144").into()).collect()
}

/// Creates a byte-level vocabulary with merges, control tokens, a user-defined token and padding.
pub fn byte_level() -> GgufWriter {
    let merged = ["Ġt", "he", "Ġthe", "Ã©", "ĠĠ", "12"];
    let special = ["<|im_start|>", "<|im_end|>", "<tool>", "[PAD265]", "<|endoftext|>"];
    let mut kinds = vec![1; 256 + merged.len()];
    kinds.extend([3, 1, 4, 5, 3]);
    let texts = byte_characters();
    let texts = texts.iter().map(String::as_str).chain(merged).chain(special);
    GgufWriter::new()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", texts)
        .strings("tokenizer.ggml.merges", ["Ġ t", "h e", "Ġt he", "Ã ©", "Ġ Ġ", "1 2"])
        .i32s("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.bos_token_id", 262)
        .u32("tokenizer.ggml.eos_token_id", 266)
}

/// Creates a SentencePiece vocabulary: unknown, bos, eos, all bytes, then words with scores.
pub fn scored() -> GgufWriter {
    let words = [
        ("\u{2581}", -9.0),
        ("a", -10.0),
        ("b", -11.0),
        ("é", -12.0),
        ("ab", -1.0),
        ("ba", -1.0),
        ("aba", -3.0),
        ("\u{2581}a", -2.0),
        ("\u{2581}ab", -4.0),
        ("bb", -5.0),
        ("\u{2581}\u{2581}", -6.0),
        ("éa", -0.5),
    ];
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let first = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let texts = first.into_iter().chain(bytes).chain(words.map(|(text, _)| text.to_owned()));
    let scores: Vec<f32> = std::iter::repeat_n(0.0, 259).chain(words.map(|word| word.1)).collect();
    let kinds: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).chain(words.map(|_| 1)).collect();
    GgufWriter::new()
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", texts)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
}
