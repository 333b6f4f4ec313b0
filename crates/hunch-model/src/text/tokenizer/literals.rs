//! Escaping of control tokens in message text, so that they stay ordinary text.
//!
//! While a chat template is rendered, a placeholder character replaces each control token found in a
//! message. The control tokens of the template itself can then be distinguished. Rendering does not
//! belong here.

use std::collections::{BTreeSet, HashMap};

use super::special::SpecialTokens;
use hunch_error::{Error, Result};

/// Private-use characters that serve as placeholders.
const PLACEHOLDERS: [std::ops::RangeInclusive<char>; 2] =
    ['\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

/// Placeholders for the control tokens in the messages of a conversation.
pub(in crate::text) struct Literals<'a> {
    special: &'a SpecialTokens,
    placeholders: HashMap<String, char>,
    texts: HashMap<char, String>,
}

impl<'a> Literals<'a> {
    /// Finds the control tokens in `contents` and assigns placeholders.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the contents leave no private-use character unused.
    pub(super) fn find<'t>(
        special: &'a SpecialTokens,
        contents: impl Iterator<Item = &'t str> + Clone,
    ) -> Result<Self> {
        let found: BTreeSet<&str> = contents
            .clone()
            .flat_map(|content| {
                special.control_ranges(content).map(|range| &content[range]).collect::<Vec<_>>()
            })
            .collect();
        let mut literals = Self { special, placeholders: HashMap::new(), texts: HashMap::new() };
        if found.is_empty() {
            return Ok(literals);
        }
        let used: BTreeSet<char> = contents.flat_map(str::chars).filter(|&c| is_placeholder(c)).collect();
        let mut free = PLACEHOLDERS.into_iter().flatten().filter(|c| !used.contains(c));
        for text in found {
            let placeholder = free.next().ok_or_else(|| {
                Error::invalid("The conversation uses all private-use characters. Remove some of them.")
            })?;
            literals.placeholders.insert(text.to_owned(), placeholder);
            literals.texts.insert(placeholder, text.to_owned());
        }
        Ok(literals)
    }

    /// Replaces each control token in `content` by its placeholder, except those in `kept`.
    pub(in crate::text) fn mask(&self, content: &str, kept: &[&str]) -> String {
        if self.placeholders.is_empty() {
            return content.to_owned();
        }
        let (mut masked, mut start) = (String::with_capacity(content.len()), 0);
        for range in self.special.control_ranges(content) {
            let text = &content[range.clone()];
            let Some(&placeholder) = self.placeholders.get(text).filter(|_| !kept.contains(&text)) else {
                continue;
            };
            masked.push_str(&content[start..range.start]);
            masked.push(placeholder);
            start = range.end;
        }
        masked + &content[start..]
    }

    /// Replaces placeholders by their control tokens.
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

    /// Returns `true` if there are no placeholders.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

fn is_placeholder(c: char) -> bool {
    PLACEHOLDERS.iter().any(|range| range.contains(&c))
}
