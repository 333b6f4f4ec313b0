//! Channels of the harmony format (gpt-oss): reasoning and answer in one turn, marked by control tokens.
//!
//! A turn is `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. Its text becomes
//! `<think>...</think>` and the answer, as other models write it. Format: <https://github.com/openai/harmony>.

use super::tokenizer::{HarmonyTokens, Tokenizer};
use hunch_core::token::TokenId;

/// Marker before reasoning.
const OPENING: &str = "<think>";
/// Marker after reasoning, and a blank line.
const CLOSING: &str = "</think>\n\n";
/// Channel of the answer. The others are reasoning and calls of tools.
const ANSWER: &str = "final";

/// Effect of a token on the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The token has no text to show.
    Hidden,
    /// The token is text.
    Shown,
    /// The token ends the text before it, and is replaced by this marker.
    Marker(&'static str),
}

/// Converts the tokens of a turn to text with markers.
#[derive(Clone, Debug)]
pub(super) struct HarmonyStream {
    tokens: HarmonyTokens,
    /// Role and channel so far, while they are read.
    header: Option<String>,
    /// `true` inside of reasoning.
    thinking: bool,
    /// `true` if some text was neither a name nor reasoning. Reasoning after it has no markers.
    said: bool,
}

impl HarmonyStream {
    /// Creates the stream of a turn, whose role is part of the prompt.
    pub(super) fn new(tokens: HarmonyTokens) -> Self {
        Self { tokens, header: None, thinking: false, said: false }
    }

    /// Adds a token and returns its effect on the text.
    pub(super) fn push(&mut self, id: TokenId, tokenizer: &Tokenizer) -> Effect {
        let HarmonyTokens { start, channel, message, .. } = self.tokens;
        if id == start || id == channel {
            self.header = Some(String::new());
            return Effect::Marker("");
        }
        if id == message {
            return self.header.take().map_or(Effect::Hidden, |header| Effect::Marker(self.enter(&header)));
        }
        if tokenizer.is_special(id) {
            return Effect::Hidden;
        }
        if let Some(header) = &mut self.header {
            header.push_str(&String::from_utf8_lossy(&tokenizer.token_bytes(id)));
            return Effect::Hidden;
        }
        self.said |= !self.thinking;
        Effect::Shown
    }

    /// Begins the text of a message and returns the marker before it.
    fn enter(&mut self, header: &str) -> &'static str {
        let reasoning = !header.trim_start().starts_with(ANSWER);
        let marker = match (reasoning, self.thinking) {
            (true, false) if !self.said => OPENING,
            (true, true) => "\n\n",
            (false, true) => CLOSING,
            _ => "",
        };
        self.thinking = reasoning && !self.said;
        marker
    }
}

/// Returns an answer without its reasoning: the text after the closing marker.
pub fn without_reasoning(answer: &str) -> &str {
    let begun = answer.trim_start().starts_with(OPENING);
    match answer.split_once(CLOSING.trim_end()) {
        Some((_, said)) if begun => said.trim_start(),
        // An answer that was stopped while it reasoned.
        _ if begun => "",
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Array, Gguf, Value};
    use std::path::Path;

    const TEXTS: [&str; 12] = [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "analysis",
        "final",
        "assistant",
        "Hm",
        "Hello",
        "commentary",
    ];

    /// Returns a tokeniser of these texts, the first six of which are control tokens.
    fn tokenizer() -> Tokenizer {
        let mut gguf = Gguf::parse(Path::new("harmony.gguf"), &empty()).unwrap();
        let mut put = |key: &str, value| drop(gguf.metadata.insert(format!("tokenizer.ggml.{key}"), value));
        let strings =
            |texts: &[&str]| Value::Array(Array::String(texts.iter().map(|t| (*t).to_owned()).collect()));
        put("model", Value::String("gpt2".into()));
        put("pre", Value::String("gpt-4o".into()));
        put("tokens", strings(&TEXTS));
        put("merges", strings(&[]));
        let kinds = (0..TEXTS.len()).map(|i| if i < 6 { 3 } else { 1 }).collect();
        put("token_type", Value::Array(Array::I32(kinds)));
        put("eos_token_id", Value::U32(4));
        Tokenizer::from_gguf(&gguf).unwrap()
    }

    /// Returns a GGUF file without entries and tensors.
    fn empty() -> Vec<u8> {
        [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16], &[0; 40]].concat()
    }

    fn text(ids: &[&str]) -> String {
        let mut tokens = crate::text::Detokenizer::new(std::sync::Arc::new(tokenizer()));
        let id = |text: &&str| TEXTS.iter().position(|known| known == text).unwrap() as TokenId;
        let mut text: String = ids.iter().map(|text| tokens.push(id(text))).collect();
        text.push_str(&tokens.finish());
        text
    }

    #[test]
    fn analysis_is_marked_as_reasoning_and_final_is_the_answer() {
        let analysis = ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant"];
        let last = ["<|channel|>", "final", "<|message|>", "Hello", "<|return|>"];
        assert_eq!(text(&[&analysis[..], &last].concat()), "<think>Hm</think>\n\nHello");
        assert_eq!(text(&last), "Hello");
        assert_eq!(text(&analysis), "<think>Hm");
        assert_eq!(text(&["Hello", "Hm"]), "HelloHm");
        let call = ["<|channel|>", "commentary", "<|message|>", "Hm", "<|call|>"];
        assert_eq!(text(&[&analysis[..], &call].concat()), "<think>Hm\n\nHm");
        assert_eq!(text(&[&last[..4], &["<|end|>"], &analysis[..]].concat()), "HelloHm");
    }

    #[test]
    fn end_of_a_message_does_not_end_the_turn() {
        let ends: Vec<TokenId> = tokenizer().end_tokens().iter().copied().collect();
        assert_eq!(ends, [4, 5]);
    }

    #[test]
    fn reasoning_is_left_out_of_earlier_answers() {
        for (answer, said) in [
            ("<think>Hm</think>\n\nHello", "Hello"),
            ("Hello", "Hello"),
            ("<think>Hm", ""),
            ("A </think> B", "A </think> B"),
        ] {
            assert_eq!(without_reasoning(answer), said);
        }
    }
}
