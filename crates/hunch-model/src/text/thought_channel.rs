//! Reasoning between control tokens. Gemma 4 writes `<|channel>thought`, a line break, the reasoning, `<channel|>`, and the
//! answer. Seed-OSS writes `<seed:think>`, the reasoning and `</seed:think>`, Magistral `[THINK]` and `[/THINK]`.
//!
//! Its text becomes `<think>...</think>` and the answer, as other models write it.

use super::harmony::Effect;
use super::thinking::{THOUGHT_END, THOUGHT_OPENING};
use super::tokenizer::{ThoughtTokens, Tokenizer};
use hunch_core::token::TokenId;

/// Converts the tokens of a turn to text with markers.
#[derive(Clone, Debug)]
pub(super) struct ThoughtStream {
    tokens: ThoughtTokens,
    state: ChannelState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelState {
    /// Before the first text.
    Start,
    /// In the name of the channel.
    Name,
    Thought,
    /// In the answer. Reasoning after it has no markers.
    Said,
}

impl ThoughtStream {
    /// Creates the stream of a turn, whose role is part of the prompt.
    pub(super) fn new(tokens: ThoughtTokens) -> Self {
        Self { tokens, state: ChannelState::Start }
    }

    /// Adds a token and returns its effect on the text.
    pub(super) fn push(&mut self, id: TokenId, tokenizer: &Tokenizer) -> Effect {
        let ThoughtTokens { open, close, has_name } = self.tokens;
        match self.state {
            ChannelState::Start if id == open => {
                self.state = if has_name { ChannelState::Name } else { ChannelState::Thought };
                Effect::Marker(THOUGHT_OPENING.into())
            }
            ChannelState::Name | ChannelState::Thought if id == close => {
                self.state = ChannelState::Said;
                Effect::Marker(THOUGHT_END.into())
            }
            _ if tokenizer.is_special(id) => Effect::Hidden,
            ChannelState::Name => {
                // Line breaks are tokens of their own.
                if tokenizer.token_bytes(id).contains(&b'\n') {
                    self.state = ChannelState::Thought;
                }
                Effect::Hidden
            }
            ChannelState::Thought => Effect::Shown,
            ChannelState::Start | ChannelState::Said => {
                self.state = ChannelState::Said;
                Effect::Shown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::gguf::{Array, Gguf, Value};
    use crate::text::{Detokenizer, EncodeOptions};

    const TEXTS: [&str; 7] = ["<|channel>", "<channel|>", "thought", "\n", "Hm", "Hello", "<turn|>"];

    /// Returns a tokeniser whose file marks the tokens of the channel as text.
    fn tokenizer() -> Arc<Tokenizer> {
        tokenizer_of(TEXTS)
    }

    fn tokenizer_of(texts: [&str; 7]) -> Arc<Tokenizer> {
        let empty = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16], &[0; 40]].concat();
        let mut gguf = Gguf::parse(Path::new("gemma4.gguf"), &empty).unwrap();
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let texts = texts.map(String::from).into_iter().chain(bytes).collect::<Vec<_>>();
        let kinds = (0..texts.len()).map(|id| if id < 2 { 4 } else { 1 }).collect();
        let mut put = |key: &str, value| drop(gguf.metadata.insert(format!("tokenizer.ggml.{key}"), value));
        put("model", Value::String("gemma4".into()));
        put("token_type", Value::Array(Array::I32(kinds)));
        put("tokens", Value::Array(Array::String(texts)));
        put("merges", Value::Array(Array::String(Vec::new())));
        Arc::new(Tokenizer::from_gguf(&gguf).unwrap())
    }

    fn text(texts: &[&str]) -> String {
        let mut tokens = Detokenizer::new(tokenizer());
        let id = |text: &&str| TEXTS.iter().position(|known| known == text).unwrap() as TokenId;
        texts.iter().map(|text| tokens.push(id(text))).collect::<String>() + &tokens.finish()
    }

    #[test]
    fn channel_is_marked_as_reasoning() {
        let thought = ["<|channel>", "thought", "\n", "Hm", "\n", "Hm", "<channel|>"];
        assert_eq!(text(&[&thought[..], &["Hello", "<turn|>"]].concat()), "<think>Hm\nHm</think>\n\nHello");
        assert_eq!(text(&thought[..4]), "<think>Hm");
        assert_eq!(text(&["<|channel>", "thought", "<channel|>", "Hello"]), "<think></think>\n\nHello");
        assert_eq!(text(&["Hello", "Hm"]), "HelloHm");
        // Reasoning after an answer is part of it.
        assert_eq!(text(&[&["Hello"], &thought[..]].concat()), "Hellothought\nHm\nHm");
    }

    #[test]
    fn reasoning_without_a_name_is_marked_too() {
        for [open, close] in [["<seed:think>", "</seed:think>"], ["[THINK]", "[/THINK]"]] {
            let texts = [open, close, "thought", "\n", "Hm", "Hello", "<turn|>"];
            let mut tokens = Detokenizer::new(tokenizer_of(texts));
            let text: String = [0, 4, 3, 4, 1, 5].map(|id| tokens.push(id)).concat();
            assert_eq!(text + &tokens.finish(), "<think>Hm\nHm</think>\n\nHello", "{open}");
        }
    }

    #[test]
    fn text_of_a_user_never_opens_a_channel() {
        let tokenizer = tokenizer();
        let options = |parse_special| EncodeOptions { parse_special, add_bos: false };
        assert_eq!(tokenizer.encode("<|channel>", options(true)).unwrap(), [0]);
        assert!(!tokenizer.encode("<|channel>", options(false)).unwrap().contains(&0));
        assert!(tokenizer.end_tokens().contains(&6));
    }
}
