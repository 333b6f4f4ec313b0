//! Comparison of vocabularies, to check that a draft model can propose tokens for a target.
//!
//! Encoding and decoding do not belong here.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Entry, TokenType, Tokenizer, entries, mark_end_texts};
use crate::gguf::Gguf;
use crate::hex;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Entries of a vocabulary without an encoder. Quick to load, and enough to compare models.
#[derive(Debug)]
pub struct Vocabulary {
    entries: Vec<Entry>,
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
    /// The vocabularies differ.
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
        Ok(Self { entries })
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
        compare_entries(&self.entries, &draft.entries)
    }
}

/// Compares entries by id. Different sizes and padding are tolerated, different texts are not.
fn compare_entries(target: &[Entry], draft: &[Entry]) -> VocabularyVerdict {
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

/// Checks that a draft can propose tokens for a target.
///
/// Different sizes, padding and different special ids are tolerated, because only the target decides
/// when an answer ends. Different texts are not.
///
/// # Errors
/// [`Error::VocabularyMismatch`] with the first id whose texts differ, and both texts.
pub fn check_vocabularies(target: &Tokenizer, draft: &Tokenizer) -> Result<()> {
    match compare_entries(&target.entries, &draft.entries) {
        VocabularyVerdict::Same { .. } => Ok(()),
        VocabularyVerdict::Other { first, of_target, of_draft } => Err(Error::VocabularyMismatch(format!(
            "token {first} is {of_target:?} in the target and {of_draft:?} in the draft"
        ))),
    }
}

/// Returns `true` for padding: unused entries, entries added by a converter (`[PAD151936]`), and
/// reserved tokens (`<|reserved_special_token_4|>`).
fn is_padding(entry: &Entry) -> bool {
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
        let entry = |text: &&str| Entry { text: (*text).into(), kind: TokenType::Normal };
        Vocabulary { entries: texts.iter().map(entry).collect() }
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
        assert_eq!(target.compare(&vocabulary(&["a", "x", "y"])), other(1, "b", "x"));
        assert_eq!(target.compare(&vocabulary(&[])), other(0, "a", ""));
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
