//! Kinds of tokens, by their text and by the text before them. Code is what stands inside a fence of Markdown.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Word,
    Part,
    Space,
    Number,
    Punctuation,
    Code,
}

/// What the text before a token says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextPlace {
    /// Inside a fence of code.
    in_code: bool,
    /// Directly behind a letter or a digit.
    in_word: bool,
}

impl Kind {
    /// The kind of a token by its text. A word is one that begins there: behind a blank of its own or of the
    /// text's. A token whose text is an unfinished character is part of a word.
    pub(super) fn of(text: &str, place: TextPlace) -> Self {
        if place.in_code {
            return Self::Code;
        }
        let Some(first) = text.trim_start().chars().next() else {
            return if text.is_empty() { Self::Part } else { Self::Space };
        };
        let begins = text.starts_with(char::is_whitespace) || !place.in_word;
        match first {
            c if c.is_numeric() => Self::Number,
            char::REPLACEMENT_CHARACTER => Self::Part,
            c if !c.is_alphanumeric() => Self::Punctuation,
            _ if begins => Self::Word,
            _ => Self::Part,
        }
    }

    /// Its name on the wire.
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

/// Reads an answer from its beginning, and knows where it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader {
    /// The line so far.
    line: String,
    fenced: bool,
}

impl Reader {
    /// Where the next token will stand.
    pub(super) fn place(&self) -> TextPlace {
        TextPlace { in_code: self.fenced, in_word: self.line.ends_with(char::is_alphanumeric) }
    }

    /// Reads on.
    pub(super) fn read(&mut self, text: &str) {
        for character in text.chars() {
            if character != '\n' {
                self.line.push(character);
                continue;
            }
            let line = self.line.trim();
            // What follows the opening fence names a language; the closing one stands alone.
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

    /// The kinds of an answer's tokens.
    fn kinds(tokens: &[&str]) -> Vec<&'static str> {
        let mut reader = Reader::default();
        let kind = |token: &&str| {
            let kind = Kind::of(token, reader.place());
            reader.read(token);
            kind.name()
        };
        tokens.iter().map(kind).collect()
    }

    #[test]
    fn kinds_by_hand() {
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
    fn code_stands_between_fences() {
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
