//! Streaming detokenisation, one token at a time. Stop strings do not belong here.
//!
//! A token may hold part of a character, but only whole characters are emitted. The concatenated
//! output equals decoding all tokens at once.

use std::sync::Arc;

use super::harmony::{Effect, HarmonyStream};
use super::thought_channel::ThoughtStream;
use super::tokenizer::Tokenizer;
use hunch_core::token::TokenId;

/// Incremental UTF-8 decoder.
///
/// Each maximal invalid byte sequence becomes U+FFFD, as in [`String::from_utf8_lossy`].
#[derive(Clone, Debug, Default)]
struct Utf8Stream {
    /// Incomplete character, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Adds bytes and returns the text they complete.
    fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("the bytes are valid up to here"));
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the stream. An incomplete character becomes U+FFFD.
    fn finish(&mut self) -> String {
        let incomplete = !std::mem::take(&mut self.pending).is_empty();
        if incomplete { char::REPLACEMENT_CHARACTER.into() } else { String::new() }
    }
}

/// Streaming detokeniser that leaves out special tokens. Channels of reasoning become markers.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    stream: Utf8Stream,
    harmony: Option<HarmonyStream>,
    thoughts: Option<ThoughtStream>,
    /// Special tokens that are text nevertheless.
    shown: Vec<TokenId>,
}

impl Detokenizer {
    /// Creates a detokeniser.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let harmony = tokenizer.harmony().map(HarmonyStream::new);
        let thoughts = tokenizer.thoughts().map(ThoughtStream::new);
        Self { tokenizer, stream: Utf8Stream::default(), harmony, thoughts, shown: Vec::new() }
    }

    /// Emits the text of these special tokens, such as markers of calls.
    #[must_use]
    pub fn showing(self, shown: &[TokenId]) -> Self {
        Self { shown: shown.to_vec(), harmony: self.harmony.map(|stream| stream.showing(shown)), ..self }
    }

    /// Adds a token and returns the text it completes. Empty while a character is incomplete.
    pub fn push(&mut self, id: TokenId) -> String {
        let effect = match (&mut self.harmony, &mut self.thoughts) {
            (Some(harmony), _) => harmony.push(id, &self.tokenizer),
            (None, Some(thoughts)) if !self.shown.contains(&id) => thoughts.push(id, &self.tokenizer),
            _ if self.shown.contains(&id) => Effect::Shown,
            _ if self.tokenizer.is_special(id) => Effect::Hidden,
            _ => Effect::Shown,
        };
        match effect {
            Effect::Hidden => String::new(),
            Effect::Shown => self.stream.push(&self.tokenizer.token_bytes(id)),
            Effect::Marker(marker) => self.stream.finish() + &marker,
        }
    }

    /// Returns the remaining text at the end: U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> String {
        self.stream.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text of many scripts with invalid bytes, cut at any byte.
    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let text = prop_oneof![
            "[a-z \n]{0,6}",
            "[é-ÿ]{1,3}",
            "[一-龥ぁ-ん]{1,4}",
            "[😀-🙏]{1,2}(\u{200d}👩)?",
            any::<char>().prop_map(String::from),
        ];
        let part = prop_oneof![
            4 => text.prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 1..4),
        ];
        let bytes = prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat());
        let cuts = prop::collection::vec(1usize..5, 1..40);
        (bytes, cuts).prop_map(|(bytes, cuts)| {
            let mut rest = bytes.as_slice();
            let mut pieces = Vec::new();
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece.to_vec());
                rest = after;
            }
            pieces
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pieces_equal_decoding_all_bytes_at_once(pieces in pieces()) {
            let mut stream = Utf8Stream::default();
            let mut text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
            text.push_str(&stream.finish());
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }

        #[test]
        fn valid_text_has_no_replacement_characters(text in "\\PC{0,12}", size in 1usize..4) {
            prop_assume!(!text.contains(char::REPLACEMENT_CHARACTER));
            let mut stream = Utf8Stream::default();
            for piece in text.as_bytes().chunks(size) {
                prop_assert!(!stream.push(piece).contains(char::REPLACEMENT_CHARACTER));
            }
            prop_assert_eq!(stream.finish(), "");
        }
    }

    #[test]
    fn emits_replacement_as_soon_as_bytes_are_invalid() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(&[0xf0, 0x9f]), "");
        assert_eq!(stream.push(b"a"), "\u{fffd}a");
        assert_eq!(stream.push(&[0xff]), "\u{fffd}");
        assert_eq!(stream.push(&[0xe4]), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }
}
