//! Reasoning between markers at the start of an answer: splitting it from the answer, and limiting its length.

use hunch_core::error::Result;
use hunch_core::sample::Constraint;
use hunch_core::token::TokenId;

use super::Tokenizer;

/// Markers of reasoning.
const MARKERS: [&str; 2] = ["<think>", "</think>"];
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
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    /// Creates a splitter. With `open`, the prompt has opened the reasoning.
    pub fn new(open: bool) -> Self {
        Self { pending: String::new(), state: if open { State::Opened } else { State::Start } }
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
        let [open, close] = MARKERS;
        let mut pieces = Vec::new();
        loop {
            match self.state {
                State::Start => {
                    let begun = self.pending.trim_start();
                    if let Some(rest) = begun.strip_prefix(open) {
                        self.pending = rest.to_owned();
                        self.state = State::Opened;
                    } else if open.starts_with(begun) && !last {
                        return pieces;
                    } else {
                        self.state = State::Said;
                    }
                }
                State::Opened => {
                    let rest = self.pending.trim_start();
                    if rest.is_empty() {
                        return pieces;
                    }
                    self.pending = rest.to_owned();
                    self.state = State::Thought;
                }
                State::Thought => {
                    if let Some((thought, rest)) = self.pending.split_once(close) {
                        let rest = rest.to_owned();
                        add(&mut pieces, AnswerText::Thought(thought.trim_end().to_owned()));
                        (self.pending, self.state) = (rest, State::Gap);
                        continue;
                    }
                    // White space before the marker is not part of the reasoning.
                    let certain = if last {
                        self.pending.len()
                    } else {
                        super::tool_calls::before_marker(&self.pending, close)
                    };
                    let certain = self.pending[..certain].trim_end().len();
                    let thought: String = self.pending.drain(..certain).collect();
                    add(&mut pieces, AnswerText::Thought(thought));
                    return pieces;
                }
                State::Gap => {
                    let rest = self.pending.trim_start();
                    if rest.is_empty() {
                        return pieces;
                    }
                    self.pending = rest.to_owned();
                    self.state = State::Said;
                }
                State::Said => {
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

/// Returns whether the end of a prompt has opened the reasoning of its answer.
pub fn opens_thought(prompt: &str) -> bool {
    prompt.trim_end().ends_with(MARKERS[0])
}

/// A limit of the reasoning: after so many tokens only its closing marker may follow.
#[derive(Clone, Debug)]
pub struct ThinkingBudget {
    /// Tokens before the answer.
    answer_start: usize,
    /// Most tokens of the answer before the closing marker.
    tokens: usize,
    /// Opening and closing marker.
    markers: [TokenId; 2],
    /// `true` if the prompt has opened the reasoning.
    open: bool,
}

impl ThinkingBudget {
    /// Creates the limit for an answer after `answer_start` tokens. `None` if the markers are not tokens of the model.
    pub fn new(tokenizer: &Tokenizer, tokens: usize, answer_start: usize, open: bool) -> Option<Self> {
        let find =
            |marker| (0..tokenizer.vocab_size() as TokenId).find(|&id| tokenizer.token_text(id) == marker);
        let [open_id, close_id] = MARKERS.map(find);
        Some(Self { answer_start, tokens, markers: [open_id?, close_id?], open })
    }
}

impl Constraint for ThinkingBudget {
    fn restrict(&self, context: &[TokenId], logits: &mut [f32]) -> Result<()> {
        let [open, close] = self.markers;
        let answer = context.get(self.answer_start..).unwrap_or_default();
        if answer.len() < self.tokens {
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
        let mut splitter = ThoughtSplitter::new(open);
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
    fn the_closing_marker_follows_a_spent_budget() {
        let budget = |open| ThinkingBudget { answer_start: 2, tokens: 3, markers: [1, 2], open };
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
    }
}
