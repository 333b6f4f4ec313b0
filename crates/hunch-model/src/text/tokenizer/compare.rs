//! Comparison of vocabularies, to check that a draft model can propose tokens for a target.
//!
//! Encoding and decoding do not belong here.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Spelling, TokenType, Tokenizer, VocabularyEntry, entries, mark_end_texts};
use crate::gguf::Gguf;
use crate::hex;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Entries of a vocabulary without an encoder. Quick to load, and enough to compare models.
#[derive(Debug)]
pub struct Vocabulary {
    entries: Vec<VocabularyEntry>,
    spelling: Spelling,
}

/// Result of comparing two vocabularies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VocabularyVerdict {
    /// The vocabularies are compatible.
    Same {
        /// Number of ids with the same text in both.
        shared: u32,
        /// Number of ids that are unused or missing in at least one of them.
        padding: u32,
    },
    /// The vocabularies differ, and the draft can be [translated](super::Translation).
    Translated {
        /// Number of the draft's ordinary tokens whose bytes the target has as a token too. Only these are drafted.
        shared: u32,
        /// Number of the draft's ordinary tokens.
        of: u32,
    },
    /// The vocabularies differ, and too little is shared.
    Other {
        /// First id with different texts.
        first: TokenId,
        /// Text of the id in the target.
        of_target: String,
        /// Text of the id in the draft.
        of_draft: String,
    },
}

impl Vocabulary {
    /// Reads the vocabulary of a model file.
    ///
    /// # Errors
    /// If the metadata is missing or inconsistent.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let mut entries = entries(gguf)?;
        mark_end_texts(&mut entries);
        let spelling = match gguf.str("tokenizer.ggml.model") {
            Some("llama" | "gemma4") => Spelling::Scored,
            _ => Spelling::ByteLevel,
        };
        Ok(Self { entries, spelling })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the SHA-256 digest of all texts and padding flags, in hexadecimal.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for entry in &self.entries {
            hash.update((entry.text.len() as u64).to_le_bytes());
            hash.update(entry.text.as_bytes());
            hash.update([u8::from(is_padding(entry))]);
        }
        hex(&hash.finalize())
    }

    /// Returns the text of an entry. Empty for an id outside the vocabulary.
    pub fn text(&self, id: TokenId) -> &str {
        self.entries.get(id as usize).map_or("", |entry| entry.text.as_str())
    }

    /// Returns the first of some known tokens that contradicts this vocabulary, or `None` on a match.
    ///
    /// `known` must be sorted by id. Padding and missing entries do not contradict, but more than half
    /// of the known tokens must be present.
    pub fn first_mismatch<'a>(&self, known: &'a [(TokenId, String)]) -> Option<&'a (TokenId, String)> {
        let entry = |id: TokenId| self.entries.get(id as usize);
        let same = |(id, text): &&(TokenId, String)| entry(*id).is_some_and(|ours| ours.text == *text);
        let absent = |id: TokenId| entry(id).is_none_or(is_padding);
        let mismatch = known.iter().find(|token| !same(token) && !absent(token.0));
        let too_few = || 2 * known.iter().filter(same).count() <= known.len();
        mismatch.or_else(|| known.iter().find(|token| !same(token)).filter(|_| too_few()))
    }

    /// Compares this vocabulary of a target with that of a draft.
    pub fn compare(&self, draft: &Self) -> VocabularyVerdict {
        compare_entries((&self.entries, self.spelling), (&draft.entries, draft.spelling))
    }
}

/// Entries of a vocabulary, and how they spell bytes.
pub(super) type Spelled<'a> = (&'a [VocabularyEntry], Spelling);

/// Least share of the ordinary tokens of the smaller vocabulary that a target and a draft must share to be translated.
///
/// Any two vocabularies share single bytes and short pieces, which are poor drafts. Acceptance falls fast with the share:
/// vLLM measured 61% where 99.8% are shared, and 25% where 79.8% are (vllm-project/vllm#38174).
const LEAST_SHARED: f64 = 0.25;

/// Compares entries by id. Different sizes and padding are tolerated. With other differences, the bytes of tokens are
/// compared, whatever their ids.
fn compare_entries(target: Spelled<'_>, draft: Spelled<'_>) -> VocabularyVerdict {
    let same = compare_ids(target.0, draft.0);
    if let VocabularyVerdict::Same { .. } = same {
        return same;
    }
    let count = |entries: &[VocabularyEntry]| entries.iter().filter(|entry| ordinary(entry)).count();
    let (of_target, of) = (count(target.0), count(draft.0));
    let shared = shared_words(target, draft).len();
    if shared > 0 && shared as f64 >= LEAST_SHARED * of_target.min(of) as f64 {
        return VocabularyVerdict::Translated { shared: shared as u32, of: of as u32 };
    }
    same
}

/// Returns whether text can contain an entry: neither a control token nor padding.
pub(super) fn ordinary(entry: &VocabularyEntry) -> bool {
    let kind = !matches!(entry.kind, TokenType::Control | TokenType::Unknown | TokenType::Unused);
    kind && !is_padding(entry)
}

/// Returns the ordinary tokens of a vocabulary by their bytes. If several have equal bytes, a word comes before a
/// single byte such as `<0x41>`, then the lower id.
pub(super) fn words(entries: &[VocabularyEntry], spelling: Spelling) -> HashMap<Vec<u8>, TokenId> {
    let is_byte = |entry: &VocabularyEntry| spelling == Spelling::Scored && entry.text.starts_with("<0x");
    let mut words: HashMap<Vec<u8>, TokenId> = HashMap::with_capacity(entries.len());
    for (id, entry) in (0..).zip(entries).filter(|(_, entry)| ordinary(entry)) {
        let bytes = spelling.bytes(entry);
        if bytes.is_empty() {
            continue;
        }
        let known = words.entry(bytes).or_insert(id);
        if is_byte(&entries[*known as usize]) && !is_byte(entry) {
            *known = id;
        }
    }
    words
}

/// Returns the ordinary tokens of two vocabularies with equal bytes, as `(draft, target)`.
pub(super) fn shared_words(
    (target, of_target): Spelled<'_>,
    (draft, of_draft): Spelled<'_>,
) -> Vec<(TokenId, TokenId)> {
    let target = words(target, of_target);
    let draft = words(draft, of_draft);
    draft.into_iter().filter_map(|(bytes, id)| Some((id, *target.get(&bytes)?))).collect()
}

/// Compares entries by id alone. Returns the first different ones in [`VocabularyVerdict::Other`].
fn compare_ids(target: &[VocabularyEntry], draft: &[VocabularyEntry]) -> VocabularyVerdict {
    let (mut shared, mut padding) = (0, target.len().abs_diff(draft.len()) as u32);
    let other = |first: usize| VocabularyVerdict::Other {
        first: first as TokenId,
        of_target: target.get(first).map_or_else(String::new, |entry| entry.text.clone()),
        of_draft: draft.get(first).map_or_else(String::new, |entry| entry.text.clone()),
    };
    for (id, (ours, theirs)) in target.iter().zip(draft).enumerate() {
        if ours.text == theirs.text {
            shared += 1;
        } else if is_padding(ours) || is_padding(theirs) {
            padding += 1;
        } else {
            return other(id);
        }
    }
    if shared == 0 { other(0) } else { VocabularyVerdict::Same { shared, padding } }
}

/// Checks that two models have the same vocabulary, so that the ids of one are those of the other.
///
/// Different sizes, padding and different special ids are tolerated, because only the target decides
/// when an answer ends. Different texts are not.
///
/// # Errors
/// [`Error::VocabularyMismatch`] with the first id whose texts differ, and both texts.
pub fn check_vocabularies(target: &Tokenizer, draft: &Tokenizer) -> Result<()> {
    match compare_ids(&target.entries, &draft.entries) {
        VocabularyVerdict::Other { first, of_target, of_draft } => Err(Error::VocabularyMismatch(format!(
            "token {first} is {of_target:?} in the target and {of_draft:?} in the draft"
        ))),
        _ => Ok(()),
    }
}

/// Compares the vocabularies of two tokenisers.
pub(super) fn compare_tokenizers(target: &Tokenizer, draft: &Tokenizer) -> VocabularyVerdict {
    compare_entries((&target.entries, target.spelling()), (&draft.entries, draft.spelling()))
}

/// Returns `true` for padding: unused entries, entries added by a converter (`[PAD151936]`), and
/// reserved tokens (`<|reserved_special_token_4|>`).
pub(super) fn is_padding(entry: &VocabularyEntry) -> bool {
    let text = &entry.text;
    let numbered = text.strip_prefix("[PAD").and_then(|rest| rest.strip_suffix(']'));
    entry.kind == TokenType::Unused
        || numbered.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
        || (entry.kind == TokenType::Control && text.contains("reserved"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(texts: &[&str]) -> Vocabulary {
        let entry = |text: &&str| VocabularyEntry { text: (*text).into(), kind: TokenType::Normal };
        Vocabulary { entries: texts.iter().map(entry).collect(), spelling: Spelling::ByteLevel }
    }

    #[test]
    fn tolerates_padding_and_reports_first_difference() {
        let target = vocabulary(&["a", "b", "c", "[PAD3]"]);
        let same = |shared, padding| VocabularyVerdict::Same { shared, padding };
        assert_eq!(target.compare(&target), same(4, 0));
        assert_eq!(target.compare(&vocabulary(&["a", "b", "c"])), same(3, 1));
        assert_eq!(vocabulary(&["a", "b", "c"]).compare(&target), same(3, 1));
        assert_eq!(target.compare(&vocabulary(&["a", "b", "c", "<think>", "more"])), same(3, 2));
        let other = |first, of_target: &str, of_draft: &str| VocabularyVerdict::Other {
            first,
            of_target: of_target.into(),
            of_draft: of_draft.into(),
        };
        let strangers = vocabulary(&["a", "x", "y", "z", "w"]);
        assert_eq!(vocabulary(&["a", "b", "c", "d", "e"]).compare(&strangers), other(1, "b", "x"));
        assert_eq!(target.compare(&vocabulary(&[])), other(0, "a", ""));
    }

    #[test]
    fn translates_drafts_that_share_a_quarter_of_the_smaller_vocabulary() {
        let four = vocabulary(&["a", "b", "c", "d", "[PAD4]"]);
        let translated = |shared, of| VocabularyVerdict::Translated { shared, of };
        assert_eq!(four.compare(&vocabulary(&["w", "x", "y", "b", "[PAD4]"])), translated(1, 4));
        // The same bytes, spelled in another way. A single byte counts once.
        let scored =
            Vocabulary { spelling: Spelling::Scored, ..vocabulary(&["<0x61>", "a", "\u{2581}b", "c"]) };
        let level = vocabulary(&["c", "\u{120}b", "a"]);
        assert_eq!(level.compare(&scored), translated(3, 4));
        assert_eq!(scored.compare(&level), translated(3, 3));
        let nine: Vec<String> = (0..9).map(|i| format!("x{i}")).chain(["a".into()]).collect();
        let nine = vocabulary(&nine.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(four.compare(&nine), translated(1, 10), "a quarter of the smaller one");
        assert!(matches!(
            nine.compare(&vocabulary(&["a", "b", "c", "d", "e"])),
            VocabularyVerdict::Other { .. }
        ));
    }

    #[test]
    fn known_tokens_identify_vocabulary_but_padding_does_not() {
        let ours = vocabulary(&["a", "b", "c", "d", "[PAD4]"]);
        let known = |tokens: &[(TokenId, &str)]| -> Vec<(TokenId, String)> {
            tokens.iter().map(|(id, text)| (*id, (*text).into())).collect()
        };
        for like in
            [&[(0, "a"), (2, "c")][..], &[(0, "a"), (1, "b"), (4, "x")], &[(0, "a"), (3, "d"), (9, "y")]]
        {
            assert_eq!(ours.first_mismatch(&known(like)), None, "{like:?}");
        }
        let mismatch = |tokens: &[(TokenId, &str)]| ours.first_mismatch(&known(tokens)).cloned();
        assert_eq!(mismatch(&[(0, "a"), (1, "x"), (3, "y")]), Some((1, "x".into())));
        // No token contradicts, but too few are present.
        assert_eq!(mismatch(&[(0, "a"), (4, "x"), (9, "y")]), Some((4, "x".into())));
        assert_eq!((ours.text(2), ours.text(9)), ("c", ""));
    }

    #[test]
    fn digest_depends_on_texts_and_their_order() {
        let digest = |texts: &[&str]| vocabulary(texts).digest();
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_eq!(digest(&["a"]).len(), 64);
        for other in [&["b", "a"][..], &["ab"], &["a", "b", ""], &["a", "c"]] {
            assert_ne!(digest(&["a", "b"]), digest(other));
        }
    }
}
