//! Channels of the harmony format (gpt-oss): reasoning and answer in one turn, marked by control tokens.
//!
//! A turn is `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. Its text becomes
//! `<think>...</think>` and the answer, as other models write it. Format: <https://github.com/openai/harmony>.

use std::borrow::Cow;

use super::thinking::{THOUGHT_CLOSING, THOUGHT_END, THOUGHT_OPENING};
use super::tokenizer::{HarmonyTokens, Tokenizer};
use super::tools::HARMONY_CALL;
use hunch_core::token::TokenId;

/// Channel of the answer. The others are reasoning and calls of tools.
const ANSWER: &str = "final";

/// Name space of the tools of a request.
const FUNCTIONS: &str = "to=functions.";

/// Effect of a token on the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The token has no text to show.
    Hidden,
    /// The token is text.
    Shown,
    /// The token ends the text before it, and is replaced by this marker.
    Marker(Cow<'static, str>),
}

/// Converts the tokens of a turn to text with markers.
#[derive(Clone, Debug)]
pub(super) struct HarmonyStream {
    tokens: HarmonyTokens,
    /// Channel so far, or role before it, while they are read.
    header: Option<String>,
    /// Role of the message, with the tool that it is for.
    role: String,
    /// `true` to show calls of tools as text. Else they are reasoning.
    shows_calls: bool,
    /// `true` inside of reasoning.
    thinking: bool,
    /// `true` if some text was neither a name nor reasoning. Reasoning after it has no markers.
    said: bool,
}

impl HarmonyStream {
    /// Creates the stream of a turn, whose role is part of the prompt.
    pub(super) fn new(tokens: HarmonyTokens) -> Self {
        Self { tokens, header: None, role: String::new(), shows_calls: false, thinking: false, said: false }
    }

    /// Shows calls of tools as text: the marker [`HARMONY_CALL`], the name, `<|message|>` and the arguments. Needs the
    /// token `<|message|>` among the tokens that are text.
    pub(super) fn showing(self, shown: &[TokenId]) -> Self {
        Self { shows_calls: shown.contains(&self.tokens.message), ..self }
    }

    /// Adds a token and returns its effect on the text.
    pub(super) fn push(&mut self, id: TokenId, tokenizer: &Tokenizer) -> Effect {
        let HarmonyTokens { start, channel, message, .. } = self.tokens;
        if id == start || id == channel {
            let before = self.header.replace(String::new()).unwrap_or_default();
            self.role = if id == channel { before } else { String::new() };
            return Effect::Marker("".into());
        }
        if id == message {
            let Some(header) = self.header.take() else { return Effect::Hidden };
            let marker = match self.called(&header) {
                Some(name) => self.enter_call(&name).into(),
                None => self.enter(&header).into(),
            };
            return Effect::Marker(marker);
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

    /// Returns the tool that a message is for, if calls are shown.
    fn called(&self, header: &str) -> Option<String> {
        let whole = [&self.role, header].join(" ");
        let (_, name) = whole.split_once(FUNCTIONS).filter(|_| self.shows_calls)?;
        Some(name.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default().to_owned())
    }

    /// Begins the arguments of a call and returns the marker before them.
    fn enter_call(&mut self, name: &str) -> String {
        let closing = if std::mem::take(&mut self.thinking) { THOUGHT_END } else { "" };
        self.said = true;
        format!("{closing}{HARMONY_CALL}{name}<|message|>")
    }

    /// Begins the text of a message and returns the marker before it.
    fn enter(&mut self, header: &str) -> &'static str {
        let reasoning = !header.trim_start().starts_with(ANSWER);
        let marker = match (reasoning, self.thinking) {
            (true, false) if !self.said => THOUGHT_OPENING,
            (true, true) => "\n\n",
            (false, true) => THOUGHT_END,
            _ => "",
        };
        self.thinking = reasoning && !self.said;
        marker
    }
}

/// Returns an answer without its reasoning: the text after the closing marker.
pub fn without_reasoning(answer: &str) -> &str {
    let begun = answer.trim_start().starts_with(THOUGHT_OPENING);
    match answer.split_once(THOUGHT_CLOSING) {
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
    use crate::text::{AnswerFormat, FormatCompiler, RequiredCalls, Tool, ToolForm};
    use serde_json::json;
    use std::path::Path;

    const TEXTS: [&str; 14] = [
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
        " to=functions.time",
        "{}",
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
        text_showing(ids, &[])
    }

    fn text_showing(ids: &[&str], shown: &[TokenId]) -> String {
        let tokenizer = std::sync::Arc::new(tokenizer());
        let mut tokens = crate::text::Detokenizer::new(tokenizer).showing(shown);
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
    fn calls_are_shown_on_request() {
        let analysis = ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant"];
        let in_channel = ["<|channel|>", "commentary", " to=functions.time", "<|message|>", "{}", "<|call|>"];
        let in_role = [" to=functions.time", "<|channel|>", "commentary", "<|message|>", "{}", "<|call|>"];
        for call in [in_channel, in_role] {
            let turn = [&analysis[..], &call].concat();
            assert_eq!(
                text_showing(&turn, &[2]),
                format!("<think>Hm</think>\n\n{HARMONY_CALL}time<|message|>{{}}")
            );
            assert_eq!(text(&turn), "<think>Hm\n\n{}");
        }
    }

    #[test]
    fn a_required_call_is_a_message_to_its_function() {
        let tool = Tool { name: "time".into(), description: None, parameters: json!({ "type": "object" }) };
        let calls =
            RequiredCalls { form: ToolForm::Harmony, tools: vec![tool], many: false, otherwise: None };
        let compiled = FormatCompiler::new(&tokenizer()).unwrap().compile(&AnswerFormat::Calls(calls), 0);
        let mut logits = vec![0.0; TEXTS.len()];
        compiled.unwrap().restrict(&[], &mut logits).unwrap();
        let allowed: Vec<usize> = (0..TEXTS.len()).filter(|&id| logits[id].is_finite()).collect();
        assert_eq!(allowed, [1], "the answer begins with a channel");
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
