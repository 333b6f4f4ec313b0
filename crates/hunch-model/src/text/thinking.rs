//! Reasoning between markers at the start of an answer: splitting it from the answer, and limiting its length.

use hunch_core::error::Result;
use hunch_core::sample::Constraint;
use hunch_core::token::TokenId;

use super::Tokenizer;
use super::tokenizer::ThoughtTokens;

/// Marker before reasoning.
pub const THOUGHT_OPENING: &str = "<think>";
/// Marker after reasoning.
pub(super) const THOUGHT_CLOSING: &str = "</think>";
/// [`THOUGHT_CLOSING`], and a blank line before the answer.
pub const THOUGHT_END: &str = "</think>\n\n";
/// Both markers.
pub(super) const THOUGHT_MARKERS: [&str; 2] = [THOUGHT_OPENING, THOUGHT_CLOSING];
/// Tokens at the start of an answer among which the opening marker is searched.
const OPENING_WITHIN: usize = 4;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerText {
    /// Reasoning, without its markers.
    Thought(String),
    /// Text of the answer.
    Said(String),
}

/// Splits the reasoning at the start of an answer from its text, as it arrives.
#[derive(Clone, Debug)]
pub struct ThoughtSplitter {
    /// Text that was not read yet.
    pending: String,
    state: ThinkingState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThinkingState {
    /// Before the first text.
    Start,
    /// After the opening marker, before the first text of the reasoning.
    Opened,
    Thought,
    /// Between the reasoning and the text.
    Gap,
    Said,
}

impl ThoughtSplitter {
    /// Creates a splitter of the text that continues `prompt`, the end of a rendered template, and `begun`, the start of
    /// the answer.
    pub fn after(prompt: &str, begun: &str) -> Self {
        let opened = match prompt.trim_end().ends_with(THOUGHT_OPENING) {
            true => Some(begun),
            false => begun.trim_start().strip_prefix(THOUGHT_OPENING),
        };
        let state = match opened.map(|rest| rest.split_once(THOUGHT_CLOSING).ok_or(rest)) {
            None if begun.trim().is_empty() => ThinkingState::Start,
            Some(Err(thought)) if thought.trim().is_empty() => ThinkingState::Opened,
            Some(Err(_)) => ThinkingState::Thought,
            Some(Ok((_, said))) if said.trim().is_empty() => ThinkingState::Gap,
            None | Some(Ok(_)) => ThinkingState::Said,
        };
        Self { pending: String::new(), state }
    }

    /// Returns whether the next text is certain to be reasoning.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, ThinkingState::Opened | ThinkingState::Thought)
    }

    /// Reads text and returns the pieces that are certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerText> {
        self.pending.push_str(text);
        self.pieces(false)
    }

    /// Returns the rest.
    pub fn finish(&mut self) -> Vec<AnswerText> {
        self.pieces(true)
    }

    fn pieces(&mut self, last: bool) -> Vec<AnswerText> {
        let [open, close] = THOUGHT_MARKERS;
        let mut pieces = Vec::new();
        loop {
            match self.state {
                ThinkingState::Start => {
                    let begun = self.pending.trim_start();
                    if let Some(rest) = begun.strip_prefix(open) {
                        self.pending = rest.to_owned();
                        self.state = ThinkingState::Opened;
                    } else if open.starts_with(begun) && !last {
                        return pieces;
                    } else {
                        self.state = ThinkingState::Said;
                    }
                }
                ThinkingState::Opened => {
                    let rest = self.pending.trim_start();
                    if rest.is_empty() {
                        return pieces;
                    }
                    self.pending = rest.to_owned();
                    self.state = ThinkingState::Thought;
                }
                ThinkingState::Thought => {
                    if let Some((thought, rest)) = self.pending.split_once(close) {
                        let rest = rest.to_owned();
                        add(&mut pieces, AnswerText::Thought(thought.trim_end().to_owned()));
                        (self.pending, self.state) = (rest, ThinkingState::Gap);
                        continue;
                    }
                    // White space before the marker is not part of the reasoning.
                    let certain = if last { self.pending.len() } else { before_marker(&self.pending, close) };
                    let certain = self.pending[..certain].trim_end().len();
                    let thought: String = self.pending.drain(..certain).collect();
                    add(&mut pieces, AnswerText::Thought(thought));
                    return pieces;
                }
                ThinkingState::Gap => {
                    let rest = self.pending.trim_start();
                    if rest.is_empty() {
                        return pieces;
                    }
                    self.pending = rest.to_owned();
                    self.state = ThinkingState::Said;
                }
                ThinkingState::Said => {
                    add(&mut pieces, AnswerText::Said(std::mem::take(&mut self.pending)));
                    return pieces;
                }
            }
        }
    }
}

/// Adds a piece that is not empty.
fn add(pieces: &mut Vec<AnswerText>, piece: AnswerText) {
    let (AnswerText::Thought(text) | AnswerText::Said(text)) = &piece;
    if !text.is_empty() {
        pieces.push(piece);
    }
}

/// Returns the length of a text without a start of `marker` at its end.
pub(super) fn before_marker(text: &str, marker: &str) -> usize {
    let starts = (1..marker.len()).rev().filter(|&length| marker.is_char_boundary(length));
    let begun = starts.map(|length| &marker[..length]).find(|start| text.ends_with(start));
    text.len() - begun.map_or(0, str::len)
}

/// A limit of the reasoning: after so many tokens only its closing marker may follow.
#[derive(Clone, Debug)]
pub struct ThinkingBudget {
    /// Tokens before those that are generated.
    start: usize,
    /// Most generated tokens before the closing marker.
    tokens: usize,
    /// Opening and closing marker.
    markers: [TokenId; 2],
    /// `true` if the reasoning was opened before.
    open: bool,
    /// `true` if no reasoning can begin, because the answer has begun.
    said: bool,
}

impl ThinkingBudget {
    /// Creates the limit for tokens that are generated after `start` others, whose text `thoughts` has read. `None` if
    /// the markers are not tokens of the model.
    pub fn new(
        tokenizer: &Tokenizer,
        tokens: usize,
        start: usize,
        thoughts: &ThoughtSplitter,
    ) -> Option<Self> {
        let find =
            |marker| (0..tokenizer.vocab_size() as TokenId).find(|&id| tokenizer.token_text(id) == marker);
        let [open_id, close_id] = match tokenizer.thoughts() {
            Some(ThoughtTokens { open, close, .. }) => [Some(open), Some(close)],
            None => THOUGHT_MARKERS.map(find),
        };
        let said = matches!(thoughts.state, ThinkingState::Gap | ThinkingState::Said);
        Some(Self { start, tokens, markers: [open_id?, close_id?], open: thoughts.is_thinking(), said })
    }
}

impl Constraint for ThinkingBudget {
    fn restrict(&self, context: &[TokenId], logits: &mut [f32]) -> Result<()> {
        let [open, close] = self.markers;
        let answer = context.get(self.start..).unwrap_or_default();
        if answer.len() < self.tokens || self.said {
            return Ok(());
        }
        let thinks = self.open || answer.iter().take(OPENING_WITHIN).any(|&id| id == open);
        let has_closed = answer.contains(&close);
        if thinks && !has_closed {
            for (id, logit) in (0..).zip(logits) {
                if id != close {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(open: bool, text: &str, size: usize) -> (String, String) {
        split_after(ThoughtSplitter::after(if open { "assistant\n<think>\n" } else { "" }, ""), text, size)
    }

    fn split_after(mut splitter: ThoughtSplitter, text: &str, size: usize) -> (String, String) {
        let letters: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        for piece in letters.chunks(size) {
            pieces.extend(splitter.push(&piece.iter().collect::<String>()));
        }
        pieces.extend(splitter.finish());
        let (mut thought, mut said) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                AnswerText::Thought(text) => thought.push_str(&text),
                AnswerText::Said(text) => said.push_str(&text),
            }
        }
        (thought, said)
    }

    #[test]
    fn reasoning_is_split_whatever_the_pieces() {
        for (open, text, thought, said) in [
            (false, "<think>\nSo <b>?\n</think>\n\nRome.", "So <b>?", "Rome."),
            (true, "So </thin \u{e9}\n</think>\nRome.\n", "So </thin \u{e9}", "Rome.\n"),
            (false, "Rome. <think>no</think>", "", "Rome. <think>no</think>"),
            (false, "<think>So", "So", ""),
            (false, "<thin", "", "<thin"),
            (false, "<think></think>\n\n", "", ""),
            (false, " Rome", "", " Rome"),
        ] {
            for size in 1..9 {
                assert_eq!(split(open, text, size), (thought.into(), said.into()), "{text} in {size}");
            }
        }
    }

    #[test]
    fn an_answer_that_was_begun_in_a_thought_continues_it() {
        for (prompt, begun, text, thought, said) in [
            ("user\n", "<think>\nLet me", " see.</think>\n\nRome.", " see.", "Rome."),
            ("user\n<think>\n", "Let me", " see.</think>Rome.", " see.", "Rome."),
            ("user\n", "<think>", "\nHm</think>Rome.", "Hm", "Rome."),
            ("user\n", "<think>Hm</think>", "\n\nRome.", "", "Rome."),
            ("user\n<think>", "Hm</think>\nIt is", " Rome.", "", " Rome."),
            // The answer has begun, so a marker in it is text.
            ("user\n", "It is", "<think>Rome</think>", "", "<think>Rome</think>"),
            ("user\n<think>\n\n</think>\n\n", "", "Rome.", "", "Rome."),
        ] {
            for size in 1..9 {
                let found = split_after(ThoughtSplitter::after(prompt, begun), text, size);
                assert_eq!(found, (thought.into(), said.into()), "{prompt:?} {begun:?} {text:?} in {size}");
            }
        }
    }

    #[test]
    fn the_closing_marker_follows_a_spent_budget() {
        let budget = |open| ThinkingBudget { start: 2, tokens: 3, markers: [1, 2], open, said: false };
        let allowed = |budget: &ThinkingBudget, answer: &[TokenId]| {
            let context = [&[9, 9], answer].concat();
            let mut logits = [0.0; 6];
            budget.restrict(&context, &mut logits).unwrap();
            logits.iter().filter(|logit| logit.is_finite()).count()
        };
        assert_eq!(allowed(&budget(false), &[1, 5]), 6);
        assert_eq!(allowed(&budget(false), &[1, 5, 5]), 1);
        assert_eq!(allowed(&budget(false), &[1, 5, 5, 2, 5]), 6);
        assert_eq!(allowed(&budget(false), &[5, 5, 5, 5]), 6);
        assert_eq!(allowed(&budget(true), &[5, 5, 5]), 1);
        assert_eq!(allowed(&budget(true), &[5, 2, 5, 5]), 6);
        assert_eq!(allowed(&ThinkingBudget { said: true, ..budget(false) }, &[1, 5, 5, 5]), 6);
    }
}
