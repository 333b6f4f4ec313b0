//! The option `--draft-window`: how much of its cache a draft pass reads.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Sparse attention of draft passes: a row sees the first [`SINKS`](Self::SINKS) positions and the last ones.
///
/// Models give much weight to the first positions, whatever their tokens, so a window works only together with them
/// (StreamingLLM, Xiao et al., arXiv 2309.17453). Drafts read this much of their cache and the target verifies with all
/// of it (MagicDec, arXiv 2408.11049). Positions stay the true ones, and the cache holds all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "usize")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS), ts(type = "number"))]
pub struct DraftWindow(u32);

impl DraftWindow {
    /// Number of first positions that every row sees.
    pub const SINKS: usize = 4;

    /// Creates a window of the last `tokens` positions, a row's own included.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the number is 0 or above 4294967295.
    pub fn new(tokens: usize) -> Result<Self> {
        match u32::try_from(tokens) {
            Ok(tokens @ 1..) => Ok(Self(tokens)),
            _ => {
                Err(Error::invalid(format!("draft_window is {tokens}; it must be 1 to {} tokens.", u32::MAX)))
            }
        }
    }

    /// Returns the number of last positions that a row sees.
    pub fn tokens(self) -> usize {
        self.0 as usize
    }

    /// Returns the positions that are hidden from a row whose last position is `len - 1`.
    pub fn hidden(self, len: usize) -> Range<usize> {
        let start = len.saturating_sub(self.tokens());
        Self::SINKS.min(start)..start
    }

    /// Checks that the window fits the context of the model `name`, in tokens.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the context is shorter than the window.
    pub fn check(self, name: &str, context_length: usize) -> Result<()> {
        if self.tokens() <= context_length {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "The draft window of {self} tokens is larger than the context of {name}, which holds {context_length}. \
             Choose a smaller window, or leave it out."
        )))
    }
}

impl From<DraftWindow> for u32 {
    fn from(window: DraftWindow) -> Self {
        window.0
    }
}

impl TryFrom<usize> for DraftWindow {
    type Error = Error;
    fn try_from(tokens: usize) -> Result<Self> {
        Self::new(tokens)
    }
}

impl fmt::Display for DraftWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DraftWindow {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = text.parse().map_err(|_| format!("it is not a number from 1 to {}", u32::MAX))?;
        Self::new(number).map_err(|_| format!("it must be 1 to {} tokens", u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_the_middle_of_long_contexts() {
        let window = DraftWindow::new(10).unwrap();
        assert!((1..=14).all(|len| window.hidden(len).is_empty()), "a row sees all");
        assert_eq!((window.hidden(15), window.hidden(100)), (4..5, 4..90));
        assert_eq!(DraftWindow::new(1).unwrap().hidden(3), 2..2);
    }

    #[test]
    fn bad_numbers_are_refused_with_their_range() {
        assert_eq!("512".parse(), Ok(DraftWindow(512)));
        assert_eq!("4294967295".parse(), Ok(DraftWindow(u32::MAX)));
        for bad in ["0", "4294967296", "99999999999999999999999", "-1", "many", ""] {
            let error = bad.parse::<DraftWindow>().unwrap_err();
            assert!(error.contains("1 to 4294967295"), "{bad}: {error}");
        }
        assert!(DraftWindow::new(0).is_err() && DraftWindow::new(1 << 32).is_err());
        assert!(DraftWindow(100).check("small", 100).is_ok());
        let error = DraftWindow(101).check("small", 100).unwrap_err().to_string();
        assert!(error.contains("101 tokens is larger than the context of small, which holds 100"), "{error}");
    }
}
