//! Splitting text at special tokens. Encoding the rest does not belong here.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{TokenType, VocabularyEntry};
use hunch_core::token::TokenId;

/// Maximum number of special tokens. Models have a few hundred, and an automaton for more would need
/// gigabytes.
const MAX_TOKENS: usize = 100_000;
/// Maximum total size of the texts of special tokens in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitPart<'a> {
    /// Ordinary, non-empty text.
    Text(&'a str),
    /// Special token.
    Special(TokenId),
}

/// Searchable set of special tokens.
pub(super) struct SpecialTokens {
    /// All special tokens.
    all: Finder,
    /// User-defined tokens, which are also parsed in raw text.
    user_defined: Finder,
}

/// Multi-pattern search for token texts.
struct Finder {
    /// `None` if there are no tokens.
    automaton: Option<AhoCorasick>,
    /// Token id of each pattern, and `true` for control tokens.
    tokens: Vec<(TokenId, bool)>,
}

impl Finder {
    /// Builds the search automaton.
    ///
    /// # Errors
    /// If there are too many tokens.
    fn new<'a>(found: impl Iterator<Item = (TokenId, &'a VocabularyEntry)>) -> Result<Self, String> {
        let (mut texts, mut tokens) = (Vec::new(), Vec::new());
        for (id, entry) in found {
            texts.push(entry.text.as_bytes());
            tokens.push((id, entry.kind != TokenType::UserDefined));
        }
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        if texts.len() > MAX_TOKENS || bytes > MAX_BYTES {
            return Err(format!(
                "there are {} with {bytes} bytes, and the limit is {MAX_TOKENS} with {MAX_BYTES} bytes",
                texts.len()
            ));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| error.to_string())?;
        Ok(Self { automaton: (!texts.is_empty()).then_some(automaton), tokens })
    }

    /// Returns the matches in the text, left to right: range, token id, and `true` for control tokens.
    fn matches<'s>(&'s self, text: &'s str) -> impl Iterator<Item = (Range<usize>, TokenId, bool)> + 's {
        let matches = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        matches.map(|found| {
            let (id, control) = self.tokens[found.pattern().as_usize()];
            (found.range(), id, control)
        })
    }
}

impl SpecialTokens {
    /// Collects the special tokens of a vocabulary.
    ///
    /// # Errors
    /// If there are too many special tokens.
    pub(super) fn new(entries: &[VocabularyEntry]) -> Result<Self, String> {
        let of_kinds = |kinds: &'static [TokenType]| {
            let entries = (0..).zip(entries);
            Finder::new(entries.filter(|(_, entry)| kinds.contains(&entry.kind) && !entry.text.is_empty()))
        };
        Ok(Self {
            all: of_kinds(&[TokenType::Control, TokenType::Unknown, TokenType::UserDefined])?,
            user_defined: of_kinds(&[TokenType::UserDefined])?,
        })
    }

    /// Splits the text at special tokens. The leftmost match wins, then the longest.
    pub(super) fn split<'a>(&self, text: &'a str, parse_control: bool) -> Vec<SplitPart<'a>> {
        let finder = if parse_control { &self.all } else { &self.user_defined };
        let mut pieces = Vec::new();
        let mut start = 0;
        for (range, id, _) in finder.matches(text) {
            if start < range.start {
                pieces.push(SplitPart::Text(&text[start..range.start]));
            }
            pieces.push(SplitPart::Special(id));
            start = range.end;
        }
        if start < text.len() {
            pieces.push(SplitPart::Text(&text[start..]));
        }
        pieces
    }

    /// Returns the ranges of control tokens in the text.
    pub(super) fn control_ranges<'s>(&'s self, text: &'s str) -> impl Iterator<Item = Range<usize>> + 's {
        self.all.matches(text).filter(|(_, _, control)| *control).map(|(range, _, _)| range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> SpecialTokens {
        let entry = |text: &str, kind| VocabularyEntry { text: text.into(), kind };
        SpecialTokens::new(&[
            entry("<a>", TokenType::Control),
            entry("<a><b>", TokenType::Control),
            entry("<tool>", TokenType::UserDefined),
            entry("x", TokenType::Normal),
            entry("", TokenType::Control),
        ])
        .unwrap()
    }

    #[test]
    fn leftmost_longest_match_wins() {
        use SplitPart::{Special, Text};
        let found = tokens().split("é<a><b><a>x<a", true);
        assert_eq!(found, [Text("é"), Special(1), Special(0), Text("x<a")]);
    }

    #[test]
    fn rejects_too_many_special_tokens() {
        let entries: Vec<VocabularyEntry> = (0..=MAX_TOKENS)
            .map(|n| VocabularyEntry { text: format!("<{n}>"), kind: TokenType::Control })
            .collect();
        assert!(SpecialTokens::new(&entries).is_err_and(|why| why.contains("100001")));
        let long = [VocabularyEntry { text: "x".repeat(MAX_BYTES + 1), kind: TokenType::UserDefined }];
        assert!(SpecialTokens::new(&long).is_err());
    }

    #[test]
    fn control_tokens_in_raw_text_are_not_parsed() {
        use SplitPart::{Special, Text};
        assert_eq!(tokens().split("<a><tool>", false), [Text("<a>"), Special(2)]);
        assert_eq!(tokens().split("", true), []);
    }
}
