//! Pieces of an answer: thoughts, text and calls, read from tokens as these arrive.

use hunch_model::text::{ThoughtSplitter, ToolCallParser, ToolPart};

use super::super::super::thinking::split;
use super::text_tokens::TextTokens;
use crate::event::TokenEvent;

/// A piece of an answer.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Thought(String),
    /// Text of a message, with its tokens if log probabilities are asked for.
    Text(String, Vec<TokenEvent>),
    /// A call begins.
    Begin(String),
    /// Text of the arguments of a call.
    Arguments(String),
    /// A call ends. `broken` is its text as the model wrote it, if it is not complete.
    End {
        broken: Option<String>,
    },
}

/// Adds a piece, to the last one if that has the same type.
fn add(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (Some(Piece::Thought(text)), Piece::Thought(next))
        | (Some(Piece::Arguments(text)), Piece::Arguments(next)) => text.push_str(&next),
        (Some(Piece::Text(text, tokens)), Piece::Text(next, of_next)) => {
            text.push_str(&next);
            tokens.extend(of_next);
        }
        (_, piece) => pieces.push(piece),
    }
}

/// Replaces calls that are broken by their texts.
pub(super) fn broken_as_text(pieces: Vec<Piece>) -> Vec<Piece> {
    let (mut kept, mut begun) = (Vec::new(), 0);
    for piece in pieces {
        match piece {
            Piece::End { broken: Some(raw) } => {
                kept.truncate(begun);
                add(&mut kept, Piece::Text(raw, Vec::new()));
            }
            piece => {
                if matches!(piece, Piece::Begin(_)) {
                    begun = kept.len();
                }
                add(&mut kept, piece);
            }
        }
    }
    kept
}

/// Reader of an answer.
pub(super) struct PieceReader {
    /// Splitter of thoughts. Set when the answer begins.
    pub(super) thoughts: ThoughtSplitter,
    /// Reader of calls, if the answer may have some.
    parser: Option<ToolCallParser>,
    /// Tokens for log probabilities, if they are asked for.
    text_tokens: Option<TextTokens>,
    /// `true` if the last piece is text.
    in_text: bool,
    /// Tokens of thoughts so far, with their markers.
    pub(super) reasoning_tokens: usize,
}

impl PieceReader {
    /// Creates the reader of an answer. With `has_logprobs`, text comes with its tokens.
    pub(super) fn new(parser: Option<ToolCallParser>, has_logprobs: bool) -> Self {
        Self {
            thoughts: ThoughtSplitter::after("", ""),
            parser,
            text_tokens: has_logprobs.then(TextTokens::default),
            in_text: false,
            reasoning_tokens: 0,
        }
    }

    /// Returns the pieces of some tokens, as far as they are certain. With `last`, of all text that is held back too.
    pub(super) fn read(&mut self, tokens: &[TokenEvent], last: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for token in tokens {
            let was_thinking = self.thoughts.is_thinking();
            let (thought, said) = split(&mut self.thoughts, &token.text, false);
            self.reasoning_tokens += usize::from(was_thinking || self.thoughts.is_thinking());
            if let Some(tokens) = &mut self.text_tokens {
                tokens.push(token.clone());
            }
            self.add_pieces(thought, &said, false, &mut pieces);
        }
        if last {
            let (thought, said) = split(&mut self.thoughts, "", true);
            self.add_pieces(thought, &said, true, &mut pieces);
            // Tokens without a text, such as the end of the turn.
            let rest = self.text_tokens.as_mut().map(TextTokens::take_all).unwrap_or_default();
            if self.in_text && !rest.is_empty() {
                add(&mut pieces, Piece::Text(String::new(), rest));
            }
        }
        pieces
    }

    fn add_pieces(&mut self, thought: String, said: &str, last: bool, pieces: &mut Vec<Piece>) {
        if !thought.is_empty() {
            self.add_piece(Piece::Thought(thought), pieces);
        }
        let parts = match &mut self.parser {
            Some(parser) => {
                let mut parts = parser.push(said);
                if last {
                    parts.extend(parser.finish());
                }
                parts
            }
            None if said.is_empty() => Vec::new(),
            None => vec![ToolPart::Text(said.to_owned())],
        };
        for part in parts {
            let piece = match part {
                ToolPart::Text(text) => Piece::Text(text, Vec::new()),
                ToolPart::Begin(name) => Piece::Begin(name),
                ToolPart::Arguments(text) => Piece::Arguments(text),
                ToolPart::End { broken } => Piece::End { broken },
            };
            self.add_piece(piece, pieces);
        }
    }

    /// Adds a piece, with the tokens of its text. Tokens of other pieces are dropped.
    fn add_piece(&mut self, mut piece: Piece, pieces: &mut Vec<Piece>) {
        self.in_text = matches!(piece, Piece::Text(..));
        if let Some(tokens) = &mut self.text_tokens {
            match &mut piece {
                Piece::Text(text, of_text) => *of_text = tokens.take(text),
                _ => drop(tokens.take_all()),
            }
        }
        add(pieces, piece);
    }
}

#[cfg(test)]
mod tests {
    use hunch_model::text::{Tool, ToolForm};
    use serde_json::json;

    use super::super::text_tokens::tests::{texts, token};
    use super::*;

    /// Returns the form of calls of Qwen.
    fn parser() -> ToolCallParser {
        let tool =
            Tool { name: "weather".into(), description: None, parameters: json!({ "type": "object" }) };
        ToolCallParser::new(ToolForm::Hermes, &[tool], usize::MAX)
    }

    fn reader() -> PieceReader {
        PieceReader::new(Some(parser()), true)
    }

    /// Returns pieces as text, with their types.
    fn described(pieces: &[Piece]) -> Vec<String> {
        let describe = |piece: &Piece| match piece {
            Piece::Thought(text) => format!("thought {text}"),
            Piece::Text(text, tokens) => format!("text {text} of {:?}", texts(tokens)),
            Piece::Begin(name) => format!("call {name}"),
            Piece::Arguments(text) => format!("arguments {text}"),
            Piece::End { broken } => format!("end {broken:?}"),
        };
        pieces.iter().map(describe).collect()
    }

    const ANSWER: [&str; 16] = [
        "<think>",
        "\n",
        "Hm",
        "\n",
        "</think>",
        "\n\n",
        "I ",
        "ask",
        ".",
        "\n",
        "<tool_call>",
        "{\"name\": \"weather\", ",
        "\"arguments\": {\"a\":",
        " 1}}",
        "</tool_call>",
        "",
    ];

    #[test]
    fn thoughts_text_and_calls_are_pieces_whatever_the_rounds() {
        let tokens: Vec<TokenEvent> = ANSWER.iter().map(|text| token(text)).collect();
        let whole = reader().read(&tokens, true);
        let expected = [
            "thought Hm",
            "text I ask. of [\"I \", \"ask\", \".\"]",
            "call weather",
            "arguments {\"a\": 1}",
            "end None",
        ];
        assert_eq!(described(&whole), expected);
        for size in 1..5 {
            let mut reader = reader();
            let mut pieces = Vec::new();
            for round in tokens.chunks(size) {
                reader.read(round, false).into_iter().for_each(|piece| add(&mut pieces, piece));
            }
            reader.read(&[], true).into_iter().for_each(|piece| add(&mut pieces, piece));
            assert_eq!(described(&pieces), expected, "{size}");
            // The markers of the thought count, and white space within it.
            assert_eq!(reader.reasoning_tokens, 5);
        }
    }

    #[test]
    fn a_broken_call_becomes_text_of_its_message() {
        let tokens: Vec<TokenEvent> = ANSWER[6..13].iter().map(|text| token(text)).collect();
        let pieces = reader().read(&tokens, true);
        let ends = pieces.iter().filter(|piece| matches!(piece, Piece::End { broken: Some(_) }));
        assert_eq!(ends.count(), 1, "{pieces:?}");
        let [Piece::Text(text, _)] = &broken_as_text(pieces)[..] else { panic!("not one text") };
        assert!(text.starts_with("I ask.") && text.ends_with("{\"a\":"), "{text}");
    }

    #[test]
    fn tokens_without_text_belong_to_the_message_before_them() {
        let mut reader = reader();
        reader.read(&[token("Hi")], false);
        assert_eq!(described(&reader.read(&[token("")], true)), ["text  of [\"\"]"]);
    }
}
