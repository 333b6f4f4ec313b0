//! Whether a draft model can propose tokens for a target: their vocabularies, token by token.

use super::{Entry, Kind, Tokenizer};
use crate::error::{Error, Result};
use crate::token::TokenId;

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

/// Compares the vocabularies of a target and a draft model over the ids that both have. Different
/// sizes, unused entries and different special ids are tolerated; a different text is not.
///
/// # Errors
/// [`Error::VocabularyMismatch`] naming the first id whose texts differ, and both texts.
pub fn compare_vocabularies(target: &Tokenizer, draft: &Tokenizer) -> Result<VocabularyMatch> {
    let mut found = VocabularyMatch { shared: 0, padding: 0, special_differences: Vec::new() };
    for (id, (ours, theirs)) in target.entries.iter().zip(&draft.entries).enumerate() {
        if ours.text == theirs.text {
            found.shared += 1;
        } else if is_padding(ours) || is_padding(theirs) {
            found.padding += 1;
        } else {
            return Err(Error::VocabularyMismatch(format!(
                "token {id} is {:?} in the target and {:?} in the draft",
                ours.text, theirs.text
            )));
        }
    }
    if found.shared == 0 {
        return Err(Error::VocabularyMismatch("the two vocabularies have no token in common".into()));
    }
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
