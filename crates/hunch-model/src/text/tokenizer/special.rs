//! Finding special tokens in text before the rest is tokenised. Only splitting lives here.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{Entry, Kind};
use hunch_core::token::TokenId;

/// Most special tokens of a vocabulary, and most bytes of their texts: those of models have some hundreds. What finds
/// more would take gigabytes.
const MOST_TOKENS: usize = 100_000;
const MOST_BYTES: usize = 4 << 20;

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Ordinary text, not empty.
    Text(&'a str),
    /// A special token that was written out.
    Special(TokenId),
}

/// The tokens that are looked for in text.
pub(super) struct SpecialTokens {
    /// All of them.
    every: Finder,
    /// Those that are part of ordinary text, as control tokens are not.
    user_defined: Finder,
}

/// Finds texts in a text in one go.
struct Finder {
    /// None where there is nothing to find.
    automaton: Option<AhoCorasick>,
    /// The token of each text, and whether it is a control token.
    tokens: Vec<(TokenId, bool)>,
}

impl Finder {
    /// # Errors
    /// Says that the texts are too many.
    fn new<'a>(found: impl Iterator<Item = (TokenId, &'a Entry)>) -> Result<Self, String> {
        let (mut texts, mut tokens) = (Vec::new(), Vec::new());
        for (id, entry) in found {
            texts.push(entry.text.as_bytes());
            tokens.push((id, entry.kind != Kind::UserDefined));
        }
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        if texts.len() > MOST_TOKENS || bytes > MOST_BYTES {
            return Err(format!(
                "there are {} with {bytes} bytes, and at most {MOST_TOKENS} with {MOST_BYTES} bytes are read",
                texts.len()
            ));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&texts)
            .map_err(|error| error.to_string())?;
        Ok(Self { automaton: (!texts.is_empty()).then_some(automaton), tokens })
    }

    /// The places in the text, from left to right, with their tokens.
    fn places<'s>(&'s self, text: &'s str) -> impl Iterator<Item = (Range<usize>, TokenId, bool)> + 's {
        let matches = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text));
        matches.map(|found| {
            let (id, control) = self.tokens[found.pattern().as_usize()];
            (found.range(), id, control)
        })
    }
}

impl SpecialTokens {
    /// # Errors
    /// Says that there are too many of them.
    pub(super) fn new(entries: &[Entry]) -> Result<Self, String> {
        let of_kinds = |kinds: &'static [Kind]| {
            let entries = (0..).zip(entries);
            Finder::new(entries.filter(|(_, entry)| kinds.contains(&entry.kind) && !entry.text.is_empty()))
        };
        Ok(Self {
            every: of_kinds(&[Kind::Control, Kind::Unknown, Kind::UserDefined])?,
            user_defined: of_kinds(&[Kind::UserDefined])?,
        })
    }

    /// Cuts the text at special tokens: the leftmost first, of two at one place the longest.
    pub(super) fn split<'a>(&self, text: &'a str, parse_control: bool) -> Vec<Piece<'a>> {
        let finder = if parse_control { &self.every } else { &self.user_defined };
        let mut pieces = Vec::new();
        let mut start = 0;
        for (place, id, _) in finder.places(text) {
            if start < place.start {
                pieces.push(Piece::Text(&text[start..place.start]));
            }
            pieces.push(Piece::Special(id));
            start = place.end;
        }
        if start < text.len() {
            pieces.push(Piece::Text(&text[start..]));
        }
        pieces
    }

    /// Where control tokens are written out in the text.
    pub(super) fn written_out<'s>(&'s self, text: &'s str) -> impl Iterator<Item = Range<usize>> + 's {
        self.every.places(text).filter(|(_, _, control)| *control).map(|(place, _, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> SpecialTokens {
        let entry = |text: &str, kind| Entry { text: text.into(), kind };
        SpecialTokens::new(&[
            entry("<a>", Kind::Control),
            entry("<a><b>", Kind::Control),
            entry("<tool>", Kind::UserDefined),
            entry("x", Kind::Normal),
            entry("", Kind::Control),
        ])
        .unwrap()
    }

    #[test]
    fn the_leftmost_and_longest_wins() {
        use Piece::{Special, Text};
        let found = tokens().split("é<a><b><a>x<a", true);
        assert_eq!(found, [Text("é"), Special(1), Special(0), Text("x<a")]);
    }

    #[test]
    fn refuses_more_special_tokens_than_a_model_has() {
        let entries: Vec<Entry> =
            (0..=MOST_TOKENS).map(|n| Entry { text: format!("<{n}>"), kind: Kind::Control }).collect();
        assert!(SpecialTokens::new(&entries).is_err_and(|why| why.contains("100001")));
        let long = [Entry { text: "x".repeat(MOST_BYTES + 1), kind: Kind::UserDefined }];
        assert!(SpecialTokens::new(&long).is_err());
    }

    #[test]
    fn control_tokens_in_raw_text_stay_text() {
        use Piece::{Special, Text};
        assert_eq!(tokens().split("<a><tool>", false), [Text("<a>"), Special(2)]);
        assert_eq!(tokens().split("", true), []);
    }
}
