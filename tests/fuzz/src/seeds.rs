//! Inputs that each target begins with, made from the tests' samples and recorded streams.

use std::path::Path;

use serde_json::{Value, json};

use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::samples::{self, byte_level, rich, scored};

/// Names the folder that seeds are written to.
const FOLDER: &str = "HUNCH_FUZZ_SEEDS";

/// Answers of tiny models, as the window received them.
const STREAMS: [&str; 3] = [
    include_str!("../../streams/tiny-draft-model.jsonl"),
    include_str!("../../streams/tiny-draft-tree.jsonl"),
    include_str!("../../streams/tiny-ngram.jsonl"),
];
/// Rounds that a seed keeps of an answer.
const ROUNDS: usize = 2;

/// Writes seeds and ends the process where `HUNCH_FUZZ_SEEDS` names a folder. Does nothing otherwise.
///
/// # Panics
/// When the folder cannot be written.
pub fn write(seeds: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    for (number, seed) in seeds().iter().enumerate() {
        std::fs::write(Path::new(&folder).join(format!("seed-{number:02}")), seed)
            .expect("the folder of seeds can be written");
    }
    std::process::exit(0);
}

/// GPT-2's characters for the 256 bytes, in order of the bytes.
pub fn byte_characters() -> Vec<String> {
    samples::byte_characters()
}

/// Sound GGUF headers of both versions.
pub fn headers() -> Vec<Vec<u8>> {
    let vocabulary_only = GgufWriter::new().strings("tokenizer.ggml.tokens", ["a"; 40]);
    let part = GgufWriter::new().u32("split.no", 1).u32("split.count", 2);
    [rich(GgufWriter::new()), rich(GgufWriter::new().version(2).alignment(8)), vocabulary_only, part]
        .iter()
        .map(GgufWriter::bytes)
        .collect()
}

/// Headers with a vocabulary, followed by a text to tokenise.
pub fn vocabularies() -> Vec<Vec<u8>> {
    let small = GgufWriter::new()
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "llama-bpe")
        .strings("tokenizer.ggml.tokens", ["a", "b", "ab", "<s>", "Ġ", "12"])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3, 1, 4])
        .strings("tokenizer.ggml.merges", ["a b"]);
    let text = "the caf\u{e9} <|im_start|>\n  12345 aba \u{65e5}\u{672c} <tool><s>'LL \u{1f600}";
    [byte_level(), scored(), small].iter().map(|writer| [writer.bytes(), text.into()].concat()).collect()
}

/// Chat templates, each followed by messages; see [`crate::template`].
pub fn templates() -> Vec<Vec<u8>> {
    let sources = [
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
         {% for m in messages %}{{ m.content + eos_token }}{% endfor %}",
        "{%- set ns = namespace(n=0) -%}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m | tojson(indent=2) }}\
         {% endfor %}{{ strftime_now('%d %b %Y') }}",
        "{% macro f(x) %}{{ x.split('</think>')[-1].lstrip('\\n') }}{% endmacro %}{% for m in messages %}{{ f(m.content) }}\
         {% endfor %}",
    ];
    let raw = sources
        .iter()
        .map(|source| format!("{source}\0Be kind.\0Hi <|im_end|>\0<think>a</think>b\0Bye").into_bytes());
    // Choices of the grammar, which are bytes of any value.
    let chosen = (0..8u8).map(|seed| {
        let choice = |i: u8| i.wrapping_mul(seed.wrapping_mul(37) | 1).wrapping_add(seed);
        std::iter::once(0xff).chain((0..96).map(choice)).collect()
    });
    raw.chain(chosen).collect()
}

/// Exported conversations with the events of recorded answers.
pub fn conversations() -> Vec<Vec<u8>> {
    let conversation = |stream: &str| {
        let mut rounds = 0;
        let mut keep = |event: &Value| {
            let is_round = event["type"] == "round";
            rounds += usize::from(is_round);
            !is_round || rounds <= ROUNDS
        };
        let messages =
            stream.lines().map(|line| serde_json::from_str::<Value>(line).expect("a recorded stream"));
        let events: Vec<Value> = messages
            .flat_map(|message| message["events"].as_array().cloned().unwrap_or_default())
            .filter(|event| keep(event))
            .collect();
        let settings = json!({
            "method": "draft-tree", "max_draft": "auto", "max_tokens": 64, "target": "Tiny", "draft": null,
            "sampling": { "temperature": 0.7, "top_k": 40, "logit_bias": { "7": -1.5 }, "seed": 7 },
            "rule": { "name": "lossless" }, "stop": ["\n\n"],
        });
        let file = json!({
            "format": "hunch-conversation", "version": 1, "title": "Greeting", "system": "Be kind.",
            "created_ms": 1, "updated_ms": 2, "leaf": 3,
            "messages": [
                { "id": 1, "parent": null, "role": "user", "content": "Hi", "created_ms": 1, "state": "complete",
                  "settings": null, "events": [] },
                { "id": 2, "parent": 1, "role": "assistant", "content": "Hello", "created_ms": 2, "state": "complete",
                  "settings": settings, "events": events },
                { "id": 3, "parent": 1, "role": "assistant", "content": "Hey", "created_ms": 3, "state": "streaming",
                  "settings": settings, "events": [] },
            ],
        });
        file.to_string().into_bytes()
    };
    STREAMS.into_iter().map(conversation).collect()
}

/// Answers of the hub about a repository.
pub fn listings() -> Vec<Vec<u8>> {
    let hash = "ab".repeat(32);
    let lfs = |name: &str, size: u64| json!({ "rfilename": name, "size": size, "lfs": { "sha256": hash, "size": size } });
    let large = json!({
        "sha": "0123456789abcdef", "gated": "manual", "tags": ["gguf", "license:mit"], "cardData": { "license": "mit" },
        "siblings": [
            lfs("big-Q8_0-00001-of-00002.gguf", 50), lfs("big-Q8_0-00002-of-00002.gguf", 30),
            lfs("Q4_K_M/small-00001-of-00003.gguf", 1), lfs("small-UD-Q4_K_XL.gguf", 10), lfs("mmproj-f16.gguf", 1),
            { "rfilename": "README.md", "size": 5 }, { "rfilename": "unknown.gguf" },
        ],
    });
    let small = json!({ "sha": "abc", "gated": false, "siblings": [{ "rfilename": "m.gguf", "size": 1 }] });
    let names = ["https://huggingface.co/Qwen/Qwen3-8B-GGUF/tree/main?show=1", "hf.co/a/b:Q8_0"];
    let names = names.map(|name| json!({ "sha": name, "siblings": [] }));
    [large, small].into_iter().chain(names).map(|answer| answer.to_string().into_bytes()).collect()
}
