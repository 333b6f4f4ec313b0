//! Control tokens that somebody has written out in a message: they stay the text that they are. While a chat template
//! is rendered a character that nobody uses stands for each, so that the template's own control tokens can be told
//! from them.

use std::collections::{BTreeSet, HashMap};

use super::special::SpecialTokens;
use hunch_error::{Error, Result};

/// Characters for private use, which stand for nothing.
const PLACEHOLDERS: [std::ops::RangeInclusive<char>; 2] =
    ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

/// What stands for the control tokens that messages have in their text.
pub struct Literals<'a> {
    special: &'a SpecialTokens,
    placeholders: HashMap<String, char>,
    texts: HashMap<char, String>,
}

impl<'a> Literals<'a> {
    /// Finds the control tokens in `contents`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when the contents leave no character to stand for them.
    pub(super) fn of<'t>(
        special: &'a SpecialTokens,
        contents: impl Iterator<Item = &'t str> + Clone,
    ) -> Result<Self> {
        let found: BTreeSet<&str> = contents
            .clone()
            .flat_map(|content| special.written_out(content).map(|place| &content[place]).collect::<Vec<_>>())
            .collect();
        let mut literals = Self { special, placeholders: HashMap::new(), texts: HashMap::new() };
        if found.is_empty() {
            return Ok(literals);
        }
        let used: BTreeSet<char> = contents.flat_map(str::chars).filter(|&c| is_placeholder(c)).collect();
        let mut free = PLACEHOLDERS.into_iter().flatten().filter(|c| !used.contains(c));
        for text in found {
            let placeholder = free.next().ok_or_else(|| {
                Error::invalid(
                    "The conversation uses every character for private use. Leave some of them out.",
                )
            })?;
            literals.placeholders.insert(text.to_owned(), placeholder);
            literals.texts.insert(placeholder, text.to_owned());
        }
        Ok(literals)
    }

    /// The content with a character in place of each control token, but for those in `kept`.
    pub fn mask(&self, content: &str, kept: &[&str]) -> String {
        if self.placeholders.is_empty() {
            return content.to_owned();
        }
        let (mut masked, mut start) = (String::with_capacity(content.len()), 0);
        for place in self.special.written_out(content) {
            let text = &content[place.clone()];
            let Some(&placeholder) = self.placeholders.get(text).filter(|_| !kept.contains(&text)) else {
                continue;
            };
            masked.push_str(&content[start..place.start]);
            masked.push(placeholder);
            start = place.end;
        }
        masked + &content[start..]
    }

    /// The text with what stood there before.
    pub(super) fn unmask(&self, text: &str) -> String {
        if self.texts.is_empty() {
            return text.to_owned();
        }
        let mut unmasked = String::with_capacity(text.len());
        for c in text.chars() {
            match self.texts.get(&c) {
                Some(text) => unmasked.push_str(text),
                None => unmasked.push(c),
            }
        }
        unmasked
    }

    /// Whether nothing is to be put back.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

fn is_placeholder(c: char) -> bool {
    PLACEHOLDERS.iter().any(|range| range.contains(&c))
}
