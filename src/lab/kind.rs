//! Kinds of tokens, by their text and the text before them. Tokens inside a Markdown fence are code.

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TokenKind {
    Word,
    Part,
    Space,
    Number,
    Punctuation,
    Code,
}

/// State of the text before a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextContext {
    /// True if the token is inside a code fence.
    in_code: bool,
    /// True if the previous character is a letter or a digit.
    in_word: bool,
}

impl TokenKind {
    /// Returns the kind of a token.
    ///
    /// A word starts after whitespace, in the token or before it. A token with an incomplete character is part of a
    /// word.
    pub(super) fn of(text: &str, context: TextContext) -> Self {
        if context.in_code {
            return Self::Code;
        }
        let Some(first) = text.trim_start().chars().next() else {
            return if text.is_empty() { Self::Part } else { Self::Space };
        };
        let begins = text.starts_with(char::is_whitespace) || !context.in_word;
        match first {
            c if c.is_numeric() => Self::Number,
            char::REPLACEMENT_CHARACTER => Self::Part,
            c if !c.is_alphanumeric() => Self::Punctuation,
            _ if begins => Self::Word,
            _ => Self::Part,
        }
    }

    /// Returns the name on the wire.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Word => "word",
            Self::Part => "part",
            Self::Space => "space",
            Self::Number => "number",
            Self::Punctuation => "punctuation",
            Self::Code => "code",
        }
    }
}

/// Reader of an answer that tracks the context of the next token.
#[derive(Clone, Debug, Default)]
pub(super) struct TextReader {
    /// Current line so far.
    line: String,
    fenced: bool,
}

impl TextReader {
    /// Returns the context of the next token.
    pub(super) fn context(&self) -> TextContext {
        TextContext { in_code: self.fenced, in_word: self.line.ends_with(char::is_alphanumeric) }
    }

    /// Reads the next text.
    pub(super) fn read(&mut self, text: &str) {
        for character in text.chars() {
            if character != '\n' {
                self.line.push(character);
                continue;
            }
            let line = self.line.trim();
            // A language may follow the opening fence. The closing fence is alone on its line.
            let alone = line.chars().all(|c| c == '`');
            if line.starts_with("```") && (!self.fenced || alone) {
                self.fenced = !self.fenced;
            }
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kinds of an answer's tokens.
    fn kinds(tokens: &[&str]) -> Vec<&'static str> {
        let mut reader = TextReader::default();
        let kind = |token: &&str| {
            let kind = TokenKind::of(token, reader.context());
            reader.read(token);
            kind.name()
        };
        tokens.iter().map(kind).collect()
    }

    #[test]
    fn classifies_words_numbers_and_punctuation() {
        assert_eq!(
            kinds(&[
                "The", " light", "house", ",", " it", " was", " 18", "90", "\n\n", "(", "so", " ", "«", "",
                "\u{fffd}"
            ]),
            [
                "word",
                "word",
                "part",
                "punctuation",
                "word",
                "word",
                "number",
                "number",
                "space",
                "punctuation",
                "word",
                "space",
                "punctuation",
                "part",
                "part"
            ]
        );
    }

    #[test]
    fn tokens_between_fences_are_code() {
        let tokens = [
            "Look", ":\n", "``", "`python", "\n", "x", " =", " 1", "\n", "```js\n", "y\n", "```", "\n",
            "done",
        ];
        assert_eq!(
            kinds(&tokens),
            [
                "word",
                "punctuation",
                "punctuation",
                "punctuation",
                "space",
                "code",
                "code",
                "code",
                "code",
                "code",
                "code",
                "code",
                "code",
                "word"
            ]
        );
    }
}
