//! Finds the end of a JSON value, a character at a time. Meaning of values does not belong here.

/// Deepest nesting of a value.
const MAX_DEPTH: u32 = 128;

/// State of a value after a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueScan {
    /// The value continues.
    Inside,
    /// The character was the last one of the value.
    Last,
    /// The value ended before the character.
    EndedBefore,
    /// The text is no value.
    Failed,
}

/// Finds the end of a value. Checks strings and depth, and leaves the rest to a parser.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueScanner {
    begun: bool,
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl ValueScanner {
    /// Reads a character. The first one is not white space.
    pub(super) fn push(&mut self, c: char) -> ValueScan {
        let first = !std::mem::replace(&mut self.begun, true);
        if self.in_string {
            let ends = c == '"' && !self.escaped;
            self.escaped = c == '\\' && !self.escaped;
            self.in_string = !ends;
            return if ends && self.depth == 0 { ValueScan::Last } else { ValueScan::Inside };
        }
        match c {
            '"' if first || self.depth > 0 => self.in_string = true,
            '{' | '[' if first || self.depth > 0 => {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return ValueScan::Failed;
                }
            }
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return ValueScan::Last;
                }
            }
            _ if self.depth > 0 => {}
            // A number or a word.
            c if c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.') => {}
            '}' | ']' | ',' if !first => return ValueScan::EndedBefore,
            c if !first && c.is_whitespace() => return ValueScan::EndedBefore,
            _ => return ValueScan::Failed,
        }
        ValueScan::Inside
    }
}
