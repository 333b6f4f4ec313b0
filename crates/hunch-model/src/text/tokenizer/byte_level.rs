//! Byte-level BPE (`tokenizer.ggml.model` = `gpt2`): pre-tokeniser patterns and merges.
//!
//! The tokenizers crate does the encoding. The metadata of the file are validated before. Special
//! tokens do not belong here.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel as ByteLevelPreTokenizer;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::{TokenType, VocabularyEntry};
use crate::gguf::Gguf;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Pre-tokeniser of a model family.
struct PreTokenizer {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Regular expressions, each applied to the pieces left by the previous one.
    patterns: &'static [&'static str],
    /// `true` if a piece that is a vocabulary entry becomes that token regardless of merges.
    ignore_merges: bool,
    /// Default for adding the BOS token if the file does not specify it.
    adds_bos: bool,
}

/// Pattern of GPT-2 (`encoder.py`).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Pattern of Llama 3: contractions in any case, digits in groups of three.
const LLAMA3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pattern of Qwen 2: like Llama 3, but each digit alone.
const QWEN2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pattern of Qwen 3.5: like Qwen 2, and words contain combining marks.
const QWEN35: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pattern of Mistral's Tekken: splits words where upper case follows lower case.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pattern of GPT-4o (`o200k_base` of tiktoken): like Tekken, with contractions and digits in groups of three.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pattern of Seed: like Qwen 2, but punctuation takes no line breaks.
const SEED: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pattern of DeepSeek V3, applied after splitting off digits and CJK.
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Names and patterns of llama.cpp's `llm_tokenizer_bpe` for families with supported architectures.
const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "a.x-4.0", "exaone4"],
        patterns: &[GPT2],
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum"],
        patterns: &[r"\p{N}", GPT2],
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        adds_bos: true,
    },
    PreTokenizer {
        names: &["smaug-bpe", "dbrx", "chatglm-bpe"],
        patterns: &[LLAMA3],
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        // The pattern of Ling has one line break at its end, which is the same after any white space.
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "bailingmoe2"],
        patterns: &[QWEN2],
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer { names: &["qwen35"], patterns: &[QWEN35], ignore_merges: false, adds_bos: false },
    PreTokenizer { names: &["glm4"], patterns: &[LLAMA3], ignore_merges: true, adds_bos: false },
    PreTokenizer { names: &["gpt-4o", "llama4"], patterns: &[GPT4O], ignore_merges: false, adds_bos: false },
    PreTokenizer { names: &["seed-coder"], patterns: &[SEED], ignore_merges: false, adds_bos: false },
    PreTokenizer { names: &["tekken", "pixtral"], patterns: &[TEKKEN], ignore_merges: true, adds_bos: true },
    PreTokenizer {
        names: &["deepseek-coder"],
        patterns: &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+",
            r"\p{N}",
        ],
        ignore_merges: false,
        adds_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-v3"],
        patterns: &[r"\p{N}{1,3}", r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+", DEEPSEEK3],
        ignore_merges: false,
        adds_bos: false,
    },
];

/// Length above which a pattern is not compared, in bytes.
const MAX_PATTERN: usize = 4096;

/// Returns the name of the family with these patterns, as `tokenizer.json` has them. `None` if there is none.
///
/// Patterns are compared, not used: one of an unknown file could take any time.
pub(crate) fn family(patterns: &[String], ignore_merges: bool) -> Option<&'static str> {
    // Longer ones are of no family. Files of others may hold anything.
    if patterns.iter().any(|pattern| pattern.len() > MAX_PATTERN) {
        return None;
    }
    let most = PRE_TOKENIZERS.iter().map(|family| family.patterns.len()).max().unwrap_or(0);
    let wanted: Vec<String> = patterns.iter().take(most + 1).map(|pattern| canonical(pattern)).collect();
    let same = |family: &&PreTokenizer| {
        family.patterns.len() == patterns.len()
            && family.patterns.iter().zip(&wanted).all(|(own, wanted)| canonical(own) == *wanted)
    };
    let mut found: Vec<&PreTokenizer> = PRE_TOKENIZERS.iter().filter(same).collect();
    found.sort_by_key(|family| family.ignore_merges != ignore_merges);
    found.first().map(|family| family.names[0])
}

/// Writes alternatives that patterns spell in several ways in one way.
fn canonical(pattern: &str) -> String {
    let mut out = pattern
        .replace("'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
        .replace("(?i:'[sdmt]|'ll|'ve|'re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
    while let Some((start, end)) = out.find(r"\x{").and_then(|at| Some((at, at + out[at..].find('}')?))) {
        let Some(c) = u32::from_str_radix(&out[start + 3..end], 16).ok().and_then(char::from_u32) else {
            break;
        };
        out.replace_range(start..=end, c.encode_utf8(&mut [0; 4]));
    }
    out
}

/// Pattern of GPT-2, the default of byte-level pre-tokenisers.
pub(crate) const DEFAULT_PATTERN: &str = GPT2;

/// Maximum bytes of text encoded at once.
///
/// Onig panics if a match takes more than ten million steps, for example in a run of that many spaces.
const CHUNK: usize = 1 << 20;

/// Byte-level BPE encoder.
pub(super) struct ByteLevel {
    inner: tokenizers::Tokenizer,
}

impl ByteLevel {
    /// Builds the encoder. The flag is the default of the family for adding the BOS token.
    pub(super) fn new(gguf: &Gguf, entries: &[VocabularyEntry]) -> Result<(Self, bool)> {
        // Files without the key predate it. llama.cpp also uses "default" for them.
        let name = gguf.str("tokenizer.ggml.pre").unwrap_or("default");
        let Some(family) = PRE_TOKENIZERS.iter().find(|family| family.names.contains(&name)) else {
            return Err(Error::UnsupportedModel {
                path: gguf.path.clone(),
                reason: format!("its pre-tokeniser \"{name}\" is not supported"),
            });
        };
        // Ordinary text must never become a control token.
        let ordinary = |(_, entry): &(TokenId, &VocabularyEntry)| {
            !matches!(entry.kind, TokenType::Control | TokenType::Unknown)
        };
        let vocab: Vocab =
            (0..).zip(entries).filter(ordinary).map(|(id, entry)| (entry.text.clone(), id)).collect();
        let merges = merges(gguf, entries, &vocab)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(family.ignore_merges)
            .build()
            .map_err(|e| internal("the merges", &e))?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        inner.with_pre_tokenizer(Some(pre_tokenizer(family.patterns)?));
        Ok((Self { inner }, family.adds_bos))
    }

    /// Encodes ordinary text and appends the ids. `cancelled` is polled after each chunk.
    pub(super) fn encode(
        &self,
        text: &str,
        ids: &mut Vec<TokenId>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut rest = text;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(chunk_end(rest));
            let encoding = self.inner.encode_fast(chunk, false).map_err(|e| internal("the text", &e))?;
            ids.extend_from_slice(encoding.get_ids());
            if cancelled() {
                break;
            }
            rest = after;
        }
        Ok(())
    }
}

/// Returns the end of the first chunk of a text.
///
/// Chunks end between two words, where all families split too. A chunk without words may end anywhere.
fn chunk_end(text: &str) -> usize {
    if text.len() <= CHUNK {
        return text.len();
    }
    let is_between_words =
        |around: &[u8]| around[0].is_ascii_lowercase() && around[1] == b' ' && around[2].is_ascii_lowercase();
    let space = text.as_bytes()[..CHUNK].windows(3).rposition(is_between_words).map(|at| at + 1);
    space.unwrap_or_else(|| (0..=CHUNK).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(text.len()))
}

fn internal(what: &str, error: &tokenizers::Error) -> Error {
    Error::Internal(format!("the tokeniser failed on {what}: {error}"))
}

fn pre_tokenizer(patterns: &[&str]) -> Result<Sequence> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::with_capacity(patterns.len() + 1);
    for pattern in patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        steps.push(split.map_err(|e| internal("a pattern", &e))?.into());
    }
    steps.push(ByteLevelPreTokenizer::new(false, false, false).into());
    Ok(Sequence::new(steps))
}

/// Parses the merges, without those that involve a control token.
///
/// Both parts and the result must be in the vocabulary, because the tokenizers crate relies on it.
fn merges(gguf: &Gguf, entries: &[VocabularyEntry], vocab: &Vocab) -> Result<Merges> {
    let invalid = |reason| Error::InvalidModelFile { path: gguf.path.clone(), reason };
    let every: HashSet<&str> = entries.iter().map(|entry| entry.text.as_str()).collect();
    let lines = gguf.require_strings("tokenizer.ggml.merges")?;
    let mut merges = Merges::with_capacity(lines.len());
    let mut whole = String::new();
    for line in lines {
        let Some((left, right)) = line.split_once(' ') else {
            return Err(invalid(format!("the merge \"{line}\" does not have two parts")));
        };
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let parts = [left, right, &whole];
        if let Some(part) = parts.into_iter().find(|&part| !every.contains(part)) {
            return Err(invalid(format!(
                "the merge \"{line}\" needs \"{part}\", which is not in the vocabulary"
            )));
        }
        if parts.into_iter().all(|part| vocab.contains_key(part)) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}

/// Decodes byte-level text (inverse of GPT-2's `bytes_to_unicode`).
///
/// Characters that do not represent a byte stay unchanged.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Returns the byte represented by a character.
///
/// Printable bytes represent themselves. The other 68 bytes are U+0100 and up, in order.
fn byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pieces(name: &str, text: &str) -> Vec<String> {
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};
        let family = PRE_TOKENIZERS.iter().find(|f| f.names.contains(&name)).unwrap();
        let mut text = PreTokenizedString::from(text);
        pre_tokenizer(family.patterns).unwrap().pre_tokenize(&mut text).unwrap();
        let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|split| String::from_utf8(bytes(split.0)).unwrap()).collect()
    }

    #[test]
    fn every_byte_maps_to_one_character() {
        let alphabet = ByteLevelPreTokenizer::alphabet();
        let known: BTreeSet<u8> = alphabet.iter().map(|&c| byte(c).unwrap()).collect();
        assert_eq!((alphabet.len(), known.len()), (256, 256));
        assert_eq!(bytes("ĠĊ日"), [b" \n", "日".as_bytes()].concat());
    }

    #[test]
    fn long_text_is_split_between_words_or_characters() {
        assert_eq!(chunk_end("short text"), 10);
        let words = "some words ".repeat(CHUNK / 8);
        let end = chunk_end(&words);
        assert!(end > CHUNK - 12 && words[end..].starts_with(' ') && !words[..end].ends_with(' '));
        let signs = "\u{65e5}".repeat(CHUNK);
        assert_eq!(chunk_end(&signs), CHUNK - CHUNK % 3);
    }

    #[test]
    fn splits_numbers_by_family() {
        assert_eq!(pieces("gpt-2", "a 12345"), ["a", " 12345"]);
        assert_eq!(pieces("smollm", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(pieces("qwen2", "a 123"), ["a", " ", "1", "2", "3"]);
        assert_eq!(pieces("llama-bpe", "a 12345"), ["a", " ", "123", "45"]);
        assert_eq!(pieces("deepseek-v3", "a12345"), ["a", "123", "45"]);
        assert_eq!(pieces("default", "12345"), ["123", "45"]);
        assert_eq!(pieces("gpt-4o", "a 12345"), ["a", " ", "123", "45"]);
        assert_eq!(pieces("glm4", "a 12345"), ["a", " ", "123", "45"]);
        assert_eq!(pieces("seed-coder", "a 123"), ["a", " ", "1", "2", "3"]);
    }

    #[test]
    fn splits_words_contractions_and_spaces_by_family() {
        assert_eq!(pieces("gpt-2", "I'LL  go\n\n"), ["I", "'", "LL", " ", " go", "\n\n"]);
        assert_eq!(pieces("qwen2", "I'LL  go\n\nx"), ["I", "'LL", " ", " go", "\n\n", "x"]);
        assert_eq!(pieces("tekken", "camelCase/"), ["camel", "Case", "/"]);
        assert_eq!(pieces("gpt-4o", "camelCase's/"), ["camel", "Case's", "/"]);
        assert_eq!(pieces("llama4", "camelCase's/"), ["camel", "Case's", "/"]);
        assert_eq!(pieces("bailingmoe2", "a 12\n\nb;\n"), ["a", " ", "1", "2", "\n\n", "b", ";\n"]);
        assert_eq!(pieces("seed-coder", "a;\nb"), ["a", ";", "\n", "b"]);
        assert_eq!(pieces("qwen2", "a;\nb"), ["a", ";\n", "b"]);
        // A combining mark belongs to the word.
        assert_eq!(pieces("qwen2", "e\u{301}a 12"), ["e", "\u{301}a", " ", "1", "2"]);
        assert_eq!(pieces("qwen35", "e\u{301}a 12"), ["e\u{301}a", " ", "1", "2"]);
        assert_eq!(pieces("exaone4", "I'm  x"), ["I", "'m", " ", " x"]);
        assert_eq!(pieces("deepseek-coder", "日本 x\n"), ["日本", " x", "\n"]);
    }
}
