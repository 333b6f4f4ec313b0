//! Detection of stop strings across token boundaries.
//!
//! Text that may begin a stop string is held back. Every token is released once, in order, with its
//! remaining text. Tokens are opaque numbers here.

use std::collections::VecDeque;

use hunch_error::{Error, Result};

/// Token whose text is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Number given by the caller.
    pub token: usize,
    /// Text of the token, or the part before a stop string.
    pub text: String,
}

/// Token whose text is held back, with its end in [`StopFilter::held`].
#[derive(Clone, Debug)]
struct Waiting {
    token: usize,
    end: usize,
}

/// Filter that finds stop strings in text that arrives token by token.
///
/// The stop string that is complete first wins. If two are complete at the same character, the longer
/// wins. The result therefore does not depend on how the text is split into tokens.
#[derive(Clone, Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    /// Bytes at the start of the held text that were shown before, as the end of a text that is continued.
    shown: usize,
    waiting: VecDeque<Waiting>,
    found: Option<usize>,
}

impl StopFilter {
    /// Creates a filter. Without stop strings, every token is released at once.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if a stop string is empty, because it would stop before the first token.
    pub fn new(stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::invalid("A stop string is empty. Enter at least one character."));
        }
        let (held, waiting) = (String::new(), VecDeque::new());
        Ok(Self { stops: stops.to_vec(), held, shown: 0, waiting, found: None })
    }

    /// Continues a text that was shown before. A stop string may begin in it, but has to end in the text that follows.
    #[must_use]
    pub fn after(mut self, shown: &str) -> Self {
        shown.clone_into(&mut self.held);
        self.held.drain(..self.find_partial());
        self.shown = self.held.len();
        self
    }

    /// Adds the text of a token, which may be empty, and returns the tokens whose text is now final.
    ///
    /// When a stop string is complete, all tokens are released. Tokens before it keep their text, the
    /// token it starts in is cut, and tokens inside it are empty. Later tokens are returned without text.
    pub fn push(&mut self, token: usize, text: &str) -> Vec<Released> {
        if self.found.is_some() {
            return vec![Released { token, text: String::new() }];
        }
        self.held.push_str(text);
        self.waiting.push_back(Waiting { token, end: self.held.len() });
        let keep = match self.find_complete() {
            Some((start, stop)) => {
                self.found = Some(stop);
                self.held.truncate(start);
                return self.release(usize::MAX);
            }
            None => self.find_partial(),
        };
        self.release(keep)
    }

    /// Returns the stop string that was found.
    pub fn stopped(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Ends the text and releases everything held back.
    pub fn finish(&mut self) -> Vec<Released> {
        self.release(usize::MAX)
    }

    /// Returns the start of the winning stop string in the held text, and its index.
    fn find_complete(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| {
            // It ends after what was shown before.
            let from = self.held.ceil_char_boundary((self.shown + 1).saturating_sub(stop.len()));
            let start = from + self.held[from..].find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        found.min().map(|(_, start, stop)| (start, stop))
    }

    /// Returns the start of the longest suffix of the held text that may begin a stop string.
    fn find_partial(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let mut starts = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        starts.find(begins).unwrap_or(self.held.len())
    }

    /// Releases the tokens whose text ends at or before `limit`.
    fn release(&mut self, limit: usize) -> Vec<Released> {
        let mut released = Vec::new();
        let mut at = self.shown;
        while let Some(&Waiting { token, end }) = self.waiting.front().filter(|w| w.end <= limit) {
            // A stop string that begins in the shown part leaves no text.
            let text = self.held.get(at..end.min(self.held.len())).unwrap_or_default().to_owned();
            at += text.len();
            released.push(Released { token, text });
            self.waiting.pop_front();
        }
        if !released.is_empty() {
            self.held.drain(..at.min(self.held.len()));
            self.shown = 0;
            for waiting in &mut self.waiting {
                waiting.end -= at;
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(stops: &[&str]) -> StopFilter {
        StopFilter::new(&stops.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn shown(released: &[Released]) -> Vec<(usize, &str)> {
        released.iter().map(|r| (r.token, r.text.as_str())).collect()
    }

    #[test]
    fn stop_string_that_begins_in_the_shown_text_is_found() {
        let mut filter = filter(&["\nUser:"]).after("Hi there\nUs");
        assert_eq!(shown(&filter.push(0, "er")), []);
        assert_eq!(shown(&filter.push(1, ": x")), [(0, ""), (1, "")]);
        assert_eq!(filter.stopped(), Some("\nUser:"));
    }

    #[test]
    fn text_after_the_shown_part_is_released_whole() {
        let mut filter = filter(&["\nUser:", "ßz"]).after("Hi ß");
        assert_eq!(shown(&filter.push(0, "e")), [(0, "e")]);
        assert_eq!(shown(&filter.push(1, "\nUs")), []);
        assert_eq!(shown(&filter.push(2, "ual")), [(1, "\nUs"), (2, "ual")]);
        assert_eq!(filter.finish(), []);
    }

    #[test]
    fn stop_string_within_the_shown_text_is_ignored() {
        // The shorter one is in the shown text, which may begin the longer one.
        let mut filter = filter(&["b", "abcd"]).after("xabc");
        assert_eq!(shown(&filter.push(0, "e")), [(0, "e")]);
        assert_eq!(filter.stopped(), None);
        assert_eq!(shown(&filter.push(1, "fb")), [(1, "f")]);
        assert_eq!(filter.stopped(), Some("b"));
    }

    #[test]
    fn stop_string_across_three_tokens_cuts_the_first() {
        let mut filter = filter(&["\nUser:"]);
        assert_eq!(shown(&filter.push(0, "Hi")), [(0, "Hi")]);
        assert_eq!(shown(&filter.push(1, " there\nUs")), []);
        assert_eq!(shown(&filter.push(2, "er")), []);
        assert_eq!(shown(&filter.push(3, ": x")), [(1, " there"), (2, ""), (3, "")]);
        assert_eq!(filter.stopped(), Some("\nUser:"));
        assert_eq!(shown(&filter.push(4, "more")), [(4, "")]);
        assert_eq!(filter.finish(), []);
    }

    #[test]
    fn partial_match_is_released() {
        let mut filter = filter(&["aab"]);
        assert_eq!(shown(&filter.push(0, "xa")), []);
        assert_eq!(shown(&filter.push(1, "a")), []);
        assert_eq!(shown(&filter.push(2, "")), []);
        assert_eq!(shown(&filter.push(3, "a")), [(0, "xa")]);
        assert_eq!(shown(&filter.finish()), [(1, "a"), (2, ""), (3, "a")]);
        assert_eq!(filter.stopped(), None);
    }

    #[test]
    fn releases_at_once_without_stop_strings_and_rejects_empty_ones() {
        assert_eq!(shown(&filter(&[]).push(7, "a")), [(7, "a")]);
        assert!(StopFilter::new(&["".to_owned()]).is_err());
    }

    /// Reference implementation: the first character at which a stop string is complete.
    fn naive(text: &str, stops: &[String]) -> Option<usize> {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        for end in ends {
            let starts = stops.iter().filter(|s| text[..end].ends_with(s.as_str()));
            if let Some(start) = starts.map(|stop| end - stop.len()).min() {
                return Some(start);
            }
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn matches_naive_search(
            texts in prop::collection::vec("[abé]{0,4}", 0..8),
            stops in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let mut filter = StopFilter::new(&stops).unwrap();
            let mut released = Vec::new();
            for (token, text) in texts.iter().enumerate() {
                released.extend(filter.push(token, text));
            }
            released.extend(filter.finish());

            let whole = texts.concat();
            let cut = naive(&whole, &stops);
            prop_assert_eq!(filter.stopped().is_some(), cut.is_some());
            let shown: String = released.iter().map(|r| r.text.as_str()).collect();
            prop_assert_eq!(&shown, &whole[..cut.unwrap_or(whole.len())]);
            prop_assert_eq!(released.len(), texts.len());
            for (i, (r, text)) in released.iter().zip(&texts).enumerate() {
                prop_assert_eq!(r.token, i);
                prop_assert!(text.starts_with(&r.text));
            }
        }

        #[test]
        fn released_text_never_includes_stop_string(
            before in "[abé]{0,6}", stop in "[abé]{1,4}", split in any::<prop::sample::Index>(),
        ) {
            let whole = format!("{before}{stop}");
            let cuts: Vec<usize> = (0..=whole.len()).filter(|&i| whole.is_char_boundary(i)).collect();
            let (head, tail) = whole.split_at(cuts[split.index(cuts.len())]);
            let stops = [stop];
            let mut filter = StopFilter::new(&stops).unwrap();
            let early: String = filter.push(0, head).into_iter().map(|r| r.text).collect();
            filter.push(1, tail);
            let end = naive(&whole, &stops).unwrap();
            prop_assert!(whole[..end].starts_with(&early));
        }
    }
}
