//! Finding special tokens in text before the rest is tokenised. Only splitting lives here.

use super::{Entry, Kind};
use crate::token::TokenId;

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Ordinary text, not empty.
    Text(&'a str),
    /// A special token that was written out.
    Special(TokenId),
}

struct Special {
    text: String,
    id: TokenId,
    /// A user-defined token is part of ordinary text; a control token is not.
    control: bool,
}

/// The tokens that are looked for in text, by their first byte, the longest first.
pub(super) struct SpecialTokens {
    by_first_byte: Vec<Vec<Special>>,
}

impl SpecialTokens {
    pub(super) fn new(entries: &[Entry]) -> Self {
        let mut by_first_byte: Vec<Vec<Special>> = (0..=255).map(|_| Vec::new()).collect();
        for (id, entry) in entries.iter().enumerate() {
            let control = match entry.kind {
                Kind::Control | Kind::Unknown => true,
                Kind::UserDefined => false,
                _ => continue,
            };
            if let Some(&first) = entry.text.as_bytes().first() {
                let special = Special { text: entry.text.clone(), id: id as TokenId, control };
                by_first_byte[usize::from(first)].push(special);
            }
        }
        for list in &mut by_first_byte {
            list.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        }
        Self { by_first_byte }
    }

    /// Cuts the text at special tokens: the leftmost first, of two at one place the longest.
    pub(super) fn split<'a>(&self, text: &'a str, parse_control: bool) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            let Some(found) = self.at(text.as_bytes(), at, parse_control) else {
                at += 1;
                continue;
            };
            if start < at {
                pieces.push(Piece::Text(&text[start..at]));
            }
            pieces.push(Piece::Special(found.id));
            at += found.text.len();
            start = at;
        }
        if start < text.len() {
            pieces.push(Piece::Text(&text[start..]));
        }
        pieces
    }

    fn at(&self, text: &[u8], at: usize, parse_control: bool) -> Option<&Special> {
        self.by_first_byte[usize::from(text[at])].iter().find(|special| {
            (parse_control || !special.control) && text[at..].starts_with(special.text.as_bytes())
        })
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
    }

    #[test]
    fn the_leftmost_and_longest_wins() {
        use Piece::{Special, Text};
        let found = tokens().split("é<a><b><a>x<a", true);
        assert_eq!(found, [Text("é"), Special(1), Special(0), Text("x<a")]);
    }

    #[test]
    fn control_tokens_in_raw_text_stay_text() {
        use Piece::{Special, Text};
        assert_eq!(tokens().split("<a><tool>", false), [Text("<a>"), Special(2)]);
        assert_eq!(tokens().split("", true), []);
    }
}
