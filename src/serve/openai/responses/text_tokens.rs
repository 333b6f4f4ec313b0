//! Tokens of the text of messages, for their log probabilities.

use crate::event::TokenEvent;

/// Tokens whose text is not yet in a message, a thought or a call.
///
/// Text is held back while it may become a marker, and markers are left out. So tokens are found by their place in the
/// text of the answer.
#[derive(Default)]
pub(super) struct TextTokens {
    text: String,
    /// Tokens, with the places where their texts start.
    tokens: Vec<(usize, TokenEvent)>,
}

impl TextTokens {
    pub(super) fn push(&mut self, token: TokenEvent) {
        let start = self.text.len();
        self.text.push_str(&token.text);
        self.tokens.push((start, token));
    }

    /// Removes and returns the tokens of `said`, the next text of a message. Tokens before it belong to none.
    pub(super) fn take(&mut self, said: &str) -> Vec<TokenEvent> {
        let (start, end) = match self.text.find(said) {
            Some(start) => (start, start + said.len()),
            None => (0, self.text.len()),
        };
        let mut taken = Vec::new();
        let mut rest = Vec::new();
        for (from, token) in std::mem::take(&mut self.tokens) {
            let to = from + token.text.len();
            if from >= end {
                rest.push((from - end, token));
            } else if to > start || from >= start {
                taken.push(token);
            }
        }
        self.text.drain(..end);
        self.tokens = rest;
        taken
    }

    /// Removes and returns all tokens.
    pub(super) fn take_all(&mut self) -> Vec<TokenEvent> {
        let Self { tokens, .. } = std::mem::take(self);
        tokens.into_iter().map(|(_, token)| token).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn token(text: &str) -> TokenEvent {
        let token = json!({
            "id": 0, "text": text, "origin": "plain", "p": 1.0, "q": null, "confidence": 1.0, "round": 0,
            "position": 0,
        });
        serde_json::from_value(token).unwrap()
    }

    fn read(texts: &[&str]) -> TextTokens {
        let mut tokens = TextTokens::default();
        texts.iter().for_each(|text| tokens.push(token(text)));
        tokens
    }

    pub(in super::super) fn texts(tokens: &[TokenEvent]) -> Vec<&str> {
        tokens.iter().map(|token| token.text.as_str()).collect()
    }

    #[test]
    fn markers_before_a_text_belong_to_no_message() {
        let mut tokens = read(&["</th", "ink>", "\n\n", "He", "llo", " "]);
        assert_eq!(texts(&tokens.take("Hello")), ["He", "llo"]);
        assert_eq!(texts(&tokens.take(" ")), [" "]);
    }

    #[test]
    fn a_token_across_two_texts_belongs_to_the_first() {
        let mut tokens = read(&["a <", "b"]);
        assert_eq!(texts(&tokens.take("a ")), ["a <"]);
        assert_eq!(texts(&tokens.take("<b")), ["b"]);
        assert!(tokens.take_all().is_empty());
    }

    #[test]
    fn incomplete_characters_stay_with_the_token_that_completes_them() {
        let mut tokens = read(&["x", "", "é", ""]);
        assert_eq!(texts(&tokens.take("x")), ["x"]);
        assert_eq!(texts(&tokens.take("é")), ["", "é"]);
        assert_eq!(texts(&tokens.take_all()), [""]);
    }

    #[test]
    fn a_text_that_differs_takes_all_tokens() {
        let mut tokens = read(&["a", "b"]);
        assert_eq!(texts(&tokens.take("c")), ["a", "b"]);
        assert_eq!(texts(&tokens.take("c")), Vec::<&str>::new());
    }
}
