//! Tokens to text, one token at a time. A token may hold part of a character; what is emitted is
//! always whole characters, and joined it is what decoding everything at once gives.

use std::sync::Arc;

use super::tokenizer::Tokenizer;
use hunch_core::token::TokenId;

/// Turns bytes that arrive in pieces into text. Bytes that cannot become a character any more turn
/// into U+FFFD, one for each maximal invalid part, as [`String::from_utf8_lossy`] does.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The start of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Adds bytes and gives the text they complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
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
                    text.push_str(std::str::from_utf8(valid).expect("checked up to here"));
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

    /// Ends the stream: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let incomplete = !std::mem::take(&mut self.pending).is_empty();
        if incomplete { char::REPLACEMENT_CHARACTER.into() } else { String::new() }
    }
}

/// Turns generated tokens into text as they come.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    stream: Utf8Stream,
    show_special: bool,
}

impl Detokenizer {
    /// A detokeniser that leaves special tokens out.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, stream: Utf8Stream::default(), show_special: false }
    }

    /// The same, showing the text of special tokens.
    pub fn with_special(mut self) -> Self {
        self.show_special = true;
        self
    }

    /// The text this token completes; empty while a character is still incomplete.
    pub fn push(&mut self, id: TokenId) -> String {
        if !self.show_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.stream.push(&self.tokenizer.token_bytes(id))
    }

    /// The text that is left when no token follows: U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> String {
        self.stream.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes as models make them: text of many scripts, with damage, cut anywhere.
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
        fn pieces_joined_are_the_whole_decoded_at_once(pieces in pieces()) {
            let mut stream = Utf8Stream::default();
            let mut text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
            text.push_str(&stream.finish());
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }

        #[test]
        fn valid_text_never_shows_a_replacement(text in "\\PC{0,12}", size in 1usize..4) {
            prop_assume!(!text.contains(char::REPLACEMENT_CHARACTER));
            let mut stream = Utf8Stream::default();
            for piece in text.as_bytes().chunks(size) {
                prop_assert!(!stream.push(piece).contains(char::REPLACEMENT_CHARACTER));
            }
            prop_assert_eq!(stream.finish(), "");
        }
    }

    #[test]
    fn an_invalid_byte_is_shown_as_soon_as_it_is_known() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(&[0xf0, 0x9f]), "");
        assert_eq!(stream.push(b"a"), "\u{fffd}a");
        assert_eq!(stream.push(&[0xff]), "\u{fffd}");
        assert_eq!(stream.push(&[0xe4]), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }
}
