//! Whether a draft model can propose tokens for a target: their vocabularies, token by token.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Entry, Kind, Tokenizer, entries, mark_end_texts};
use crate::gguf::Gguf;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// What two vocabularies that fit have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabularyMatch {
    /// Ids that both have, with the same text.
    pub shared: usize,
    /// Ids that at least one of them leaves unused, so that their texts do not matter.
    pub padding: usize,
    /// Special tokens for which the two name different ids, in words. The pair works all the same:
    /// the target alone decides where an answer ends.
    pub special_differences: Vec<String>,
}

/// The entries of a vocabulary, without what it takes to cut text into them: quick to read, and enough to say
/// whether two models go together.
#[derive(Debug)]
pub struct Vocabulary {
    entries: Vec<Entry>,
}

/// What comparing two vocabularies came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VocabularyVerdict {
    /// The same tokens, one by one.
    Same {
        /// Ids that both have, with the same text.
        shared: u32,
        /// Ids that at least one of them leaves unused, or does not have: padding, or tokens that were added.
        padding: u32,
    },
    /// Another vocabulary.
    Other {
        /// The first id whose texts differ.
        first: TokenId,
        /// Its text in the target.
        of_target: String,
        /// Its text in the draft.
        of_draft: String,
    },
}

impl Vocabulary {
    /// Reads the vocabulary of a model file.
    ///
    /// # Errors
    /// When the metadata is missing or contradicts itself.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let mut entries = entries(gguf)?;
        mark_end_texts(&mut entries);
        Ok(Self { entries })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A number that two vocabularies share when every entry has the same text in both, and the same place
    /// among those that stand for something: SHA-256, in hexadecimal.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for entry in &self.entries {
            hash.update((entry.text.len() as u64).to_le_bytes());
            hash.update(entry.text.as_bytes());
            hash.update([u8::from(is_padding(entry))]);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The text of an entry; empty where there is none.
    pub fn text(&self, id: TokenId) -> &str {
        self.entries.get(id as usize).map_or("", |entry| entry.text.as_str())
    }

    /// Of some tokens of another vocabulary, in the order of their ids, the first that shows that it is not
    /// this one. What stands for nothing here, or lies beyond the end, shows nothing; but most have to be here.
    pub fn first_unlike<'a>(&self, known: &'a [(TokenId, String)]) -> Option<&'a (TokenId, String)> {
        let entry = |id: TokenId| self.entries.get(id as usize);
        let same = |(id, text): &&(TokenId, String)| entry(*id).is_some_and(|ours| ours.text == *text);
        let silent = |id: TokenId| entry(id).is_none_or(is_padding);
        let unlike = known.iter().find(|token| !same(token) && !silent(token.0));
        let too_few = || 2 * known.iter().filter(same).count() <= known.len();
        unlike.or_else(|| known.iter().find(|token| !same(token)).filter(|_| too_few()))
    }

    /// Compares it, a target's, with that of a draft.
    pub fn compare(&self, draft: &Self) -> VocabularyVerdict {
        compare_entries(&self.entries, &draft.entries)
    }
}

/// Compares the ids that both have. Different sizes and unused entries are tolerated; a different text is not.
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

/// Compares the vocabularies of a target and a draft model over the ids that both have. Different
/// sizes, unused entries and different special ids are tolerated; a different text is not.
///
/// # Errors
/// [`Error::VocabularyMismatch`] naming the first id whose texts differ, and both texts.
pub fn compare_vocabularies(target: &Tokenizer, draft: &Tokenizer) -> Result<VocabularyMatch> {
    let (shared, padding) = match compare_entries(&target.entries, &draft.entries) {
        VocabularyVerdict::Same { shared, padding } => {
            let only_one_has = target.entries.len().abs_diff(draft.entries.len());
            (shared as usize, padding as usize - only_one_has)
        }
        VocabularyVerdict::Other { first, of_target, of_draft } => {
            return Err(Error::VocabularyMismatch(format!(
                "token {first} is {of_target:?} in the target and {of_draft:?} in the draft"
            )));
        }
    };
    let mut found = VocabularyMatch { shared, padding, special_differences: Vec::new() };
    let ids = [("beginning", target.bos, draft.bos), ("end", target.eos, draft.eos)];
    for (name, ours, theirs) in ids {
        if ours != theirs {
            found.special_differences.push(format!(
                "the token for the {name} of a text is {} in the target and {} in the draft",
                named(target, ours),
                named(draft, theirs)
            ));
        }
    }
    Ok(found)
}

fn named(tokenizer: &Tokenizer, id: Option<TokenId>) -> String {
    id.map_or_else(|| "not set".into(), |id| format!("{id} ({:?})", tokenizer.token_text(id)))
}

/// An entry that stands for nothing: marked unused, filled in by a converter (`[PAD151936]`), or
/// reserved for later (`<|reserved_special_token_4|>`).
fn is_padding(entry: &Entry) -> bool {
    let text = &entry.text;
    let numbered = text.strip_prefix("[PAD").and_then(|rest| rest.strip_suffix(']'));
    entry.kind == Kind::Unused
        || numbered.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
        || (entry.kind == Kind::Control && text.contains("reserved"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(texts: &[&str]) -> Vocabulary {
        let entry = |text: &&str| Entry { text: (*text).into(), kind: Kind::Normal };
        Vocabulary { entries: texts.iter().map(entry).collect() }
    }

    #[test]
    fn padding_and_added_tokens_are_tolerated_and_the_first_difference_is_told() {
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
    fn a_few_tokens_tell_vocabularies_apart_but_padding_tells_nothing() {
        let ours = vocabulary(&["a", "b", "c", "d", "[PAD4]"]);
        let known = |tokens: &[(TokenId, &str)]| -> Vec<(TokenId, String)> {
            tokens.iter().map(|(id, text)| (*id, (*text).into())).collect()
        };
        for like in
            [&[(0, "a"), (2, "c")][..], &[(0, "a"), (1, "b"), (4, "x")], &[(0, "a"), (3, "d"), (9, "y")]]
        {
            assert_eq!(ours.first_unlike(&known(like)), None, "{like:?}");
        }
        let unlike = |tokens: &[(TokenId, &str)]| ours.first_unlike(&known(tokens)).cloned();
        assert_eq!(unlike(&[(0, "a"), (1, "x"), (3, "y")]), Some((1, "x".into())));
        // Nothing contradicts, but next to nothing is here either.
        assert_eq!(unlike(&[(0, "a"), (4, "x"), (9, "y")]), Some((4, "x".into())));
        assert_eq!((ours.text(2), ours.text(9)), ("c", ""));
    }

    #[test]
    fn a_digest_is_of_texts_in_their_order() {
        let digest = |texts: &[&str]| vocabulary(texts).digest();
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_eq!(digest(&["a"]).len(), 64);
        for other in [&["b", "a"][..], &["ab"], &["a", "b", ""], &["a", "c"]] {
            assert_ne!(digest(&["a", "b"]), digest(other));
        }
    }
}
