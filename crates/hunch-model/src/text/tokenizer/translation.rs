//! Translation between the tokens of a target and those of a draft model with another tokeniser.
//!
//! Running the draft model belongs to [`translated`](crate::translated).

use std::collections::{HashMap, HashSet};

use super::compare::{compare_tokenizers, is_padding, ordinary, shared_words, words};
use super::{TokenType, Tokenizer, VocabularyEntry, VocabularyVerdict};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Translation between the tokens of a target and those of a draft model with another tokeniser.
///
/// A token of the target becomes one or more tokens of the draft, by its bytes. They depend on nothing else, so the
/// translation of a prefix is a prefix of the translation.
#[derive(Debug)]
pub struct Translation {
    /// Tokens of the draft for all tokens of the target, one after another.
    pieces: Vec<TokenId>,
    /// End of the pieces of each token of the target.
    ends: Vec<u32>,
    /// Tokens that both have, as `(draft, target)`, ascending by the first. No token occurs twice.
    shared: Vec<(TokenId, TokenId)>,
    /// Token that texts of the draft begin with.
    bos: Option<TokenId>,
}

impl Translation {
    /// Prepares a draft for a target. `None` if they have the same vocabulary.
    ///
    /// # Errors
    /// [`Error::VocabularyMismatch`] if they share too few tokens, [`Error::Internal`] if a tokeniser fails.
    pub fn new(target: &Tokenizer, draft: &Tokenizer) -> Result<Option<Self>> {
        match compare_tokenizers(target, draft) {
            VocabularyVerdict::Same { .. } => Ok(None),
            VocabularyVerdict::Translated { .. } => Self::build(target, draft).map(Some),
            VocabularyVerdict::Other { .. } => Err(Error::VocabularyMismatch(format!(
                "its tokeniser is another one, and the target has only {} of its {} tokens",
                shared_words((&target.entries, target.spelling()), (&draft.entries, draft.spelling())).len(),
                draft.vocab_size()
            ))),
        }
    }

    fn build(target: &Tokenizer, draft: &Tokenizer) -> Result<Self> {
        let words = words(&draft.entries, draft.spelling());
        let controls = controls(&draft.entries);
        let role = |id: TokenId| {
            let is = |own: Option<TokenId>| own == Some(id);
            let end = || draft.eot.or(draft.eos);
            match () {
                () if is(target.eot) => end(),
                () if is(target.eos) => draft.eos.or(draft.eot),
                () if is(target.bos) => draft.bos,
                () => None,
            }
        };
        let (mut pieces, mut ends) = (Vec::new(), Vec::with_capacity(target.vocab_size()));
        for (id, entry) in (0..).zip(&target.entries) {
            let bytes = target.spelling().bytes(entry);
            let known = match ordinary(entry) {
                true => words.get(&bytes).copied(),
                false => controls.get(entry.text.as_str()).copied().or_else(|| role(id)),
            };
            let start = pieces.len();
            match known {
                Some(known) => pieces.push(known),
                None => spell(draft, &words, &bytes, &mut pieces)?,
            }
            if pieces.len() == start {
                // Every token needs a row, so one without text stands for the end of a text.
                pieces.push(draft.eos.or(draft.bos).unwrap_or(0));
            }
            ends.push(pieces.len() as u32);
        }
        let mut shared =
            shared_words((&target.entries, target.spelling()), (&draft.entries, draft.spelling()));
        let of_target = self::controls(&target.entries);
        shared.extend(controls.iter().filter_map(|(text, &id)| Some((id, *of_target.get(text)?))));
        let (mut ours, mut theirs): (HashSet<_>, HashSet<_>) = shared.iter().copied().unzip();
        for end in [target.eot, target.eos].into_iter().flatten() {
            if let Some(id) = role(end)
                && !theirs.contains(&end)
                && ours.insert(id)
            {
                theirs.insert(end);
                shared.push((id, end));
            }
        }
        shared.sort_unstable();
        Ok(Self { pieces, ends, shared, bos: draft.bos.filter(|_| draft.adds_bos()) })
    }

    /// Returns the number of tokens of the target.
    pub fn n_vocab(&self) -> usize {
        self.ends.len()
    }

    /// Returns the tokens of the draft for a token of the target. Empty for an id outside the vocabulary.
    pub fn pieces(&self, token: TokenId) -> &[TokenId] {
        let token = token as usize;
        let Some(&end) = self.ends.get(token) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[start as usize..end as usize]
    }

    /// Returns the tokens that both have, as `(draft, target)`, ascending by the first. No token occurs twice.
    pub fn shared(&self) -> &[(TokenId, TokenId)] {
        &self.shared
    }

    /// Returns the token to put before a text that starts with `token`, if the draft needs one.
    pub fn bos_before(&self, token: TokenId) -> Option<TokenId> {
        self.bos.filter(|bos| self.pieces(token).first() != Some(bos))
    }
}

/// Returns the control tokens of a vocabulary by their texts. Padding and reserved ones are left out.
fn controls(entries: &[VocabularyEntry]) -> HashMap<&str, TokenId> {
    let mut controls = HashMap::new();
    let is_control = |entry: &VocabularyEntry| entry.kind == TokenType::Control && !is_padding(entry);
    for (id, entry) in (0..).zip(entries).filter(|(_, entry)| is_control(entry)) {
        controls.entry(entry.text.as_str()).or_insert(id);
    }
    controls
}

/// Encodes bytes with the draft's tokeniser and appends the ids. Bytes outside of characters become the longest tokens
/// with these bytes.
fn spell(
    draft: &Tokenizer,
    words: &HashMap<Vec<u8>, TokenId>,
    bytes: &[u8],
    ids: &mut Vec<TokenId>,
) -> Result<()> {
    for chunk in bytes.utf8_chunks() {
        if !chunk.valid().is_empty() {
            draft.encode_inner_text(chunk.valid(), ids)?;
        }
        let mut rest = chunk.invalid();
        while !rest.is_empty() {
            let known = (1..=rest.len()).rev().find_map(|len| Some((len, *words.get(&rest[..len])?)));
            ids.extend(known.map(|(_, id)| id));
            rest = &rest[known.map_or(1, |(len, _)| len)..];
        }
    }
    Ok(())
}
