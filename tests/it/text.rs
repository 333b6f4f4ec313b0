//! Tests of tokenisers, streaming text and templates.
//!
//! Small vocabularies built here, and the default model compared with llama.cpp (`tests/golden`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use hunch_core::chat::{ChatMessage, Role};
use hunch_error::{Error, ErrorCode};
use hunch_model::gguf::Gguf;
use hunch_model::text::{
    ChatTemplate, Detokenizer, EncodeOptions, StopFilter, TemplateOrigin, Tokenizer, Translation,
    check_vocabularies,
};
use proptest::prelude::*;
use serde::Deserialize;

use crate::support::default_model;
use crate::support::mutate::{apply, content_mutations, runner};
use crate::support::vocabulary;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::samples::{byte_level, scored};

const SPECIAL: EncodeOptions = EncodeOptions { parse_special: true, add_bos: true };
const RAW: EncodeOptions = EncodeOptions { parse_special: false, add_bos: false };

fn gguf(writer: &GgufWriter) -> Gguf {
    Gguf::parse(Path::new("model.gguf"), &writer.bytes()).expect("the writer creates valid files")
}

fn tokenizer(writer: &GgufWriter) -> Tokenizer {
    Tokenizer::from_gguf(&gguf(writer)).expect("a valid vocabulary")
}

fn rejection(writer: &GgufWriter) -> Error {
    Tokenizer::from_gguf(&gguf(writer)).expect_err("an invalid vocabulary")
}

#[derive(Deserialize)]
struct Oracle {
    cases: Vec<OracleCase>,
}

#[derive(Deserialize)]
struct OracleCase {
    prompt: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    greedy_text: String,
}

#[test]
fn default_model_tokenises_like_llama_cpp() {
    let path = default_model();
    let bytes = std::fs::read(&path).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_gguf(&Gguf::parse(&path, &bytes).unwrap()).unwrap());
    let golden = include_str!("../golden/smollm2-135m-instruct-q4_1.json");
    let oracle: Oracle = serde_json::from_str(golden).unwrap();
    assert_eq!(oracle.cases.len(), 6);
    for case in &oracle.cases {
        assert_eq!(tokenizer.encode(&case.prompt, SPECIAL).unwrap(), case.prompt_ids);
        assert_eq!(tokenizer.decode(&case.prompt_ids, true), case.prompt);
        let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
        let mut text: String = case.greedy_ids.iter().map(|&id| detokenizer.push(id)).collect();
        text += &detokenizer.finish();
        assert_eq!(text, case.greedy_text);
    }
    let end = tokenizer.eos().unwrap();
    assert_eq!(tokenizer.token_text(end), "<|im_end|>");
    assert_eq!((tokenizer.eot(), tokenizer.end_tokens().contains(&end)), (Some(end), true));

    let template = ChatTemplate::from_source(tokenizer.chat_template(), "", "<|im_end|>");
    let message = |role, content: &str| ChatMessage { role, content: content.into() };
    let conversation = [
        message(Role::System, "You are a helpful assistant."),
        message(Role::User, "Explain why the sky is blue."),
    ];
    let prompt = template.render(&conversation, true, None, &|| false).unwrap();
    assert_eq!((prompt.origin, &prompt.text), (TemplateOrigin::Model, &oracle.cases[1].prompt));
}

#[test]
fn encodes_merges_and_special_tokens() {
    let tokenizer = tokenizer(&byte_level());
    let encode = |text, options| tokenizer.encode(text, options).unwrap();
    assert_eq!(encode("the the é", RAW), [116, 257, 258, 32, 259]);
    assert_eq!(encode("12 12", RAW), [49, 50, 32, 49, 50], "digits are split before merging");
    assert_eq!(encode("<|im_start|>x<|im_end|>", SPECIAL), [262, 120, 263]);
    assert_eq!(encode("a<tool>b", RAW), [97, 264, 98], "user-defined tokens are always parsed");
    let raw = encode("<|im_start|>", RAW);
    assert_eq!((raw.len(), tokenizer.decode(&raw, false).as_str()), (12, "<|im_start|>"));
    assert!(encode("", SPECIAL).is_empty());
}

#[test]
fn encoding_can_be_cancelled() {
    for writer in [byte_level(), scored()] {
        let tokenizer = tokenizer(&writer);
        // A built-in template is rendered without polls.
        let template = ChatTemplate::from_source(None, "", "");
        let question = ChatMessage { role: Role::User, content: "ab ba ".repeat(1 << 19) };
        let polls = std::cell::Cell::new(0);
        let cancelled = || {
            polls.set(polls.get() + 1);
            true
        };
        let (ids, _) = template.ids(&tokenizer, &[question], None, &cancelled).unwrap();
        assert!(!ids.is_empty(), "an empty prompt would be refused");
        assert_eq!(polls.get(), 2, "once inside the text and once after it");
    }
}

#[test]
fn recognises_end_tokens_by_key_and_text() {
    let tokenizer = tokenizer(&byte_level());
    // <|im_end|> is an ordinary token in this file, as in some real files.
    assert_eq!(tokenizer.end_tokens().iter().copied().collect::<Vec<_>>(), [263, 266]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.eot()), (Some(262), Some(266), Some(263)));
    assert!(tokenizer.is_special(263) && !tokenizer.is_special(264) && !tokenizer.is_special(9_999));
    assert_eq!((tokenizer.token_text(9_999), tokenizer.token_bytes(9_999)), ("", vec![]));
    assert_eq!(tokenizer.vocab_size(), 267);
}

#[test]
fn adds_bos_once_and_only_if_file_requires_it() {
    let with = tokenizer(&byte_level().bool("tokenizer.ggml.add_bos_token", true));
    assert_eq!(with.encode("a", SPECIAL).unwrap(), [262, 97]);
    assert_eq!(with.encode("<|im_start|>a", SPECIAL).unwrap(), [262, 97]);
    assert_eq!(with.encode("a", RAW).unwrap(), [97]);
    let without = tokenizer(&byte_level());
    assert_eq!((without.adds_bos(), without.encode("a", SPECIAL).unwrap()), (false, vec![97]));
    let llama = tokenizer(&scored());
    assert_eq!((llama.adds_bos(), llama.encode("a", SPECIAL).unwrap()), (true, vec![1, 266]));
}

#[test]
fn sentencepiece_merges_by_score_with_byte_fallback() {
    let tokenizer = tokenizer(&scored());
    let texts = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text, RAW).unwrap();
        ids.iter().map(|&id| tokenizer.token_text(id).to_owned()).collect()
    };
    assert_eq!(texts("ab"), ["\u{2581}ab"]);
    assert_eq!(texts("aba b"), ["\u{2581}", "aba", "\u{2581}", "b"]);
    assert_eq!(texts("日"), ["\u{2581}", "<0xE6>", "<0x97>", "<0xA5>"]);
    assert_eq!(tokenizer.encode("a</s>a", SPECIAL).unwrap(), [1, 266, 2, 266]);
    assert_eq!(tokenizer.decode(&[1, 266, 2, 266], false), " a a");
    let bare = self::tokenizer(&scored().bool("tokenizer.ggml.add_space_prefix", false));
    assert_eq!(bare.encode("ab", RAW).unwrap(), [263]);
}

/// Reference implementation of SentencePiece: repeatedly joins the neighbours with the highest score,
/// the leftmost of equals.
fn naive_merge(text: &str, scores: &HashMap<String, f32>) -> Vec<String> {
    let escaped = format!(" {text}").replace(' ', "\u{2581}");
    let mut parts: Vec<String> = escaped.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..parts.len() {
            if let Some(&score) = scores.get(&parts[at - 1..=at].concat())
                && best.is_none_or(|(highest, _)| score > highest)
            {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { return parts };
        let right = parts.remove(at);
        parts[at - 1] += &right;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sentencepiece_matches_naive_merge(text in "[ab é]{1,24}") {
        let gguf = gguf(&scored());
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
        let texts = gguf.strings("tokenizer.ggml.tokens").unwrap();
        let scores = gguf.f32s("tokenizer.ggml.scores").unwrap();
        let scores = texts.iter().cloned().zip(scores.iter().copied()).collect();
        let ids = tokenizer.encode(&text, RAW).unwrap();
        let found: Vec<&str> = ids.iter().map(|&id| tokenizer.token_text(id)).collect();
        prop_assert_eq!(found, naive_merge(&text, &scores));
    }

    #[test]
    fn encode_then_decode_returns_the_text(text in "(\\PC|[ \n\t\u{0}é日😀]|the|12|  ){0,24}") {
        let options = EncodeOptions { parse_special: false, add_bos: false };
        let byte_level = tokenizer(&byte_level());
        prop_assert_eq!(byte_level.decode(&byte_level.encode(&text, options).unwrap(), true), &text[..]);
        let scored = tokenizer(&scored());
        let ids = scored.encode(&text, options).unwrap();
        // SentencePiece encodes a space as U+2581, so that character is decoded as a space.
        let prefix = if text.is_empty() { "" } else { " " };
        prop_assert_eq!(scored.decode(&ids, true), format!("{prefix}{text}").replace('\u{2581}', " "));
    }

    #[test]
    fn streamed_text_equals_decoding_at_once(
        ids in prop::collection::vec(0u32..300, 0..40),
        emoji in "[😀-🙏日é]{0,4}",
        at in any::<prop::sample::Index>(),
    ) {
        for writer in [byte_level(), scored()] {
            let tokenizer = Arc::new(tokenizer(&writer));
            let mut ids = ids.clone();
            let at = at.index(ids.len() + 1);
            ids.splice(at..at, tokenizer.encode(&emoji, RAW).unwrap());
            let mut stream = Detokenizer::new(Arc::clone(&tokenizer));
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.finish();
            prop_assert_eq!(text, tokenizer.decode(&ids, false));
        }
    }
}

#[test]
fn finds_stop_string_across_tokens() {
    let tokenizer = Arc::new(tokenizer(&byte_level()));
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
    let mut filter = StopFilter::new(&["é the".to_owned()]).unwrap();
    let ids = tokenizer.encode("the cafe\u{e9} the end", RAW).unwrap();
    let pushed = ids.iter().enumerate();
    let released: Vec<_> = pushed.flat_map(|(i, &id)| filter.push(i, &detokenizer.push(id))).collect();
    let text: String = released.iter().map(|r| r.text.as_str()).collect();
    assert_eq!((text.as_str(), filter.stopped()), ("the cafe", Some("é the")));
    assert!(released.iter().map(|r| r.token).eq(0..ids.len()), "each token once, in order");
}

#[test]
fn rejects_unsupported_vocabularies_by_name() {
    let texts = |writer: GgufWriter| writer.strings("tokenizer.ggml.tokens", ["a", "b", "ab"]);
    let model = |name| texts(GgufWriter::new().str("tokenizer.ggml.model", name));
    let gpt2 = || model("gpt2").str("tokenizer.ggml.pre", "gpt-2");
    let cases = [
        (model("bert"), ErrorCode::UnsupportedModel, "\"bert\""),
        (model("t5"), ErrorCode::UnsupportedModel, "\"t5\""),
        (texts(GgufWriter::new()), ErrorCode::InvalidModelFile, "tokenizer.ggml.model is missing"),
        (GgufWriter::new(), ErrorCode::InvalidModelFile, "tokenizer.ggml.tokens is missing"),
        (
            model("gpt2").str("tokenizer.ggml.pre", "unknown"),
            ErrorCode::UnsupportedModel,
            "pre-tokeniser \"unknown\"",
        ),
        (gpt2(), ErrorCode::InvalidModelFile, "tokenizer.ggml.merges is missing"),
        (
            gpt2().strings("tokenizer.ggml.merges", ["ab"]),
            ErrorCode::InvalidModelFile,
            "the merge \"ab\" does not have two parts",
        ),
        (
            gpt2().strings("tokenizer.ggml.merges", ["a b", "b a"]),
            ErrorCode::InvalidModelFile,
            "needs \"ba\"",
        ),
        (
            gpt2().i32s("tokenizer.ggml.token_type", &[1]),
            ErrorCode::InvalidModelFile,
            "3 tokens but 1 token types",
        ),
        (
            model("llama").f32s("tokenizer.ggml.scores", &[0.0]),
            ErrorCode::InvalidModelFile,
            "3 tokens but 1 scores",
        ),
        (
            model("llama").f32s("tokenizer.ggml.scores", &[0.0; 3]),
            ErrorCode::InvalidModelFile,
            "no token for the byte 0",
        ),
    ];
    for (writer, code, expected) in cases {
        let error = rejection(&writer);
        assert!(error.to_string().contains(expected), "expected {expected:?} in: {error}");
        assert_eq!(error.code(), code, "{error}");
    }
}

#[test]
fn ordinary_text_never_becomes_control_token() {
    // One control token is a word, one the result of a merge, one a part of a merge.
    let texts = ["a", "b", "ab", "Stop", "c", "abc", "S"];
    let writer = |family| {
        GgufWriter::new()
            .str("tokenizer.ggml.model", "gpt2")
            .str("tokenizer.ggml.pre", family)
            .strings("tokenizer.ggml.tokens", texts)
            .i32s("tokenizer.ggml.token_type", &[1, 1, 3, 3, 1, 1, 1])
            .strings("tokenizer.ggml.merges", ["a b", "ab c"])
    };
    for family in ["llama-bpe", "qwen2"] {
        let tokenizer = tokenizer(&writer(family));
        assert_eq!(tokenizer.encode("ab", RAW).unwrap(), [0, 1], "{family}");
        assert!(!tokenizer.encode("Stop abc", RAW).unwrap().contains(&3), "{family}");
        assert_eq!(tokenizer.encode("Stopab", SPECIAL).unwrap(), [3, 2], "{family}");
    }
}

#[test]
fn encodes_text_of_any_length() {
    let tokenizer = tokenizer(&byte_level());
    // The regex library panics on a run of more than ten million spaces.
    let spaces = 11 << 20;
    let ids = tokenizer.encode(&" ".repeat(spaces), RAW).unwrap();
    assert_eq!(ids.len(), spaces / 2);
    let sentence = " the cafe 12 the the";
    let whole = tokenizer.encode(&sentence.repeat(150_000), RAW).unwrap();
    let one = tokenizer.encode(sentence, RAW).unwrap();
    assert!(whole.chunks(one.len()).all(|chunk| chunk == one));
}

#[test]
fn accepts_drafts_with_different_padding_size_and_special_ids() {
    let target = [("a", 1), ("b", 1), ("<tool>", 4), ("<|reserved_7|>", 3), ("[PAD4]", 5), ("x", 1)];
    let draft = [("a", 1), ("b", 1), ("[PAD2]", 1), ("<|new|>", 3), ("<unused>", 5)];
    let target = tokenizer(&vocabulary(&target).u32("tokenizer.ggml.eos_token_id", 0));
    let draft = tokenizer(&vocabulary(&draft).u32("tokenizer.ggml.eos_token_id", 1));
    check_vocabularies(&target, &draft).unwrap();
    check_vocabularies(&target, &target).unwrap();
}

#[test]
fn reports_first_different_token_with_both_texts() {
    let target = tokenizer(&vocabulary(&[("a", 1), ("b", 1), ("c", 1)]));
    let draft = tokenizer(&vocabulary(&[("a", 1), ("B", 1), ("C", 1)]));
    let error = check_vocabularies(&target, &draft).unwrap_err();
    assert_eq!(error.code(), ErrorCode::VocabularyMismatch);
    let expected = "token 1 is \"b\" in the target and \"B\" in the draft";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn damaged_vocabularies_never_panic() {
    let template = "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}{% endfor %}";
    let bases: Vec<_> = [byte_level(), scored()]
        .into_iter()
        .map(|writer| writer.str("tokenizer.chat_template", template).bytes_and_fields())
        .collect();
    let (mut built, mut rejected) = (0, 0);
    let counts = std::cell::RefCell::new((&mut built, &mut rejected));
    let whole = [tokenizer(&byte_level()), tokenizer(&scored())];
    let result = runner(1_500).run(&(0..bases.len(), content_mutations()), |(base, mutations)| {
        let (mut bytes, fields) = bases[base].clone();
        let header = bytes.len();
        for mutation in &mutations {
            apply(&mut bytes, &fields, header, mutation);
        }
        let Ok(gguf) = Gguf::parse(Path::new("model.gguf"), &bytes) else { return Ok(()) };
        let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else {
            *counts.borrow_mut().1 += 1;
            return Ok(());
        };
        let ids = tokenizer.encode("the <|im_start|> 12é日 <s>\n", SPECIAL).unwrap();
        prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        prop_assert!(tokenizer.end_tokens().iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        for (target, draft) in whole.iter().flat_map(|other| [(&tokenizer, other), (other, &tokenizer)]) {
            let Ok(Some(translation)) = Translation::new(target, draft) else { continue };
            let of_draft = |id: u32| (id as usize) < draft.vocab_size();
            for token in 0..target.vocab_size() as u32 {
                let pieces = translation.pieces(token);
                prop_assert!(!pieces.is_empty() && pieces.iter().all(|&id| of_draft(id)));
            }
            prop_assert!(translation.shared().iter().all(|(id, _)| of_draft(*id)));
        }
        let hello = [ChatMessage { role: Role::User, content: "Hi".into() }];
        let template = ChatTemplate::from_source(tokenizer.chat_template(), "", "");
        prop_assert!(template.render(&hello, true, None, &|| false).is_ok());
        *counts.borrow_mut().0 += 1;
        Ok(())
    });
    result.unwrap();
    assert!(built > 100 && rejected > 20, "{built} built, {rejected} rejected");
}
