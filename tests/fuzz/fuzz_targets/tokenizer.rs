//! Fuzz target: builds a tokeniser from a header and encodes the text after the header.

#![no_main]

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use hunch_fuzz::seeds;
use hunch_model::gguf::Gguf;
use hunch_model::text::{Detokenizer, EncodeOptions, Tokenizer, check_vocabularies};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds::vocabularies), |bytes: &[u8]| tokenise(bytes));

const RAW: EncodeOptions = EncodeOptions { parse_special: false, add_bos: false };
const SPECIAL: EncodeOptions = EncodeOptions { parse_special: true, add_bos: true };

fn tokenise(bytes: &[u8]) {
    let Ok(gguf) = Gguf::parse(Path::new("model.gguf"), bytes) else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) else { return };
    let tokenizer = Arc::new(tokenizer);
    let text = String::from_utf8_lossy(&bytes[gguf.metadata_range.end.min(bytes.len())..]);
    assert!(tokenizer.end_tokens().iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    let byte_level = gguf.str("tokenizer.ggml.model") == Some("gpt2");
    for options in [RAW, SPECIAL] {
        let ids = tokenizer.encode(&text, options).expect("any text can be encoded");
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        if options == RAW && byte_level {
            let forged = ids.iter().find(|&&id| tokenizer.is_special(id));
            assert!(forged.is_none(), "the control token {forged:?} came from text");
        }
        let mut stream = Detokenizer::new(Arc::clone(&tokenizer));
        let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        streamed += &stream.finish();
        assert_eq!(streamed, tokenizer.decode(&ids, false));
        if options == RAW && byte_level && covers_all_bytes(&gguf) {
            assert_eq!(tokenizer.decode(&ids, true), text, "decoding returns the text");
        }
    }
    check_vocabularies(&tokenizer, &tokenizer).expect("a vocabulary matches itself");
}

/// Returns `true` if ordinary tokens cover every byte, so that no text is lost.
fn covers_all_bytes(gguf: &Gguf) -> bool {
    let Some(texts) = gguf.strings("tokenizer.ggml.tokens") else { return false };
    let kinds = gguf.i32s("tokenizer.ggml.token_type").unwrap_or_default();
    let kind = |i: usize| kinds.get(i).copied().unwrap_or(1);
    let ordinary: HashSet<&str> =
        texts.iter().enumerate().filter(|&(i, _)| kind(i) == 1).map(|(_, text)| text.as_str()).collect();
    // Tokens of other kinds decode to their raw text, not to the bytes it represents.
    let spells_itself = |text: &str| text.chars().all(|c| ('!'..='~').contains(&c));
    let consistent = |(i, text): (usize, &String)| {
        kind(i) == 1 || (!ordinary.contains(text.as_str()) && spells_itself(text))
    };
    seeds::byte_characters().iter().all(|c| ordinary.contains(c.as_str()))
        && texts.iter().enumerate().all(consistent)
}
