//! Stop strings, across token borders. Text that may be the start of a stop string is held back
//! until it is decided; every token comes out once, in order, with the text that is left of it.

use std::collections::VecDeque;

use hunch_error::{Error, Result};

/// A token that can be shown: whatever comes after it, its text is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The number the caller gave the token.
    pub token: usize,
    /// Its text: all of it, or the part before a stop string.
    pub text: String,
}

/// A token whose text is held, by where it ends in [`StopFilter::held`].
#[derive(Clone, Debug)]
struct Waiting {
    token: usize,
    end: usize,
}

/// Looks for stop strings in text that arrives token by token.
///
/// The stop string that is complete first wins; of two complete at the same character, the longer.
/// So the result does not depend on how the text is cut into tokens.
#[derive(Clone, Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    waiting: VecDeque<Waiting>,
    found: Option<usize>,
}

impl StopFilter {
    /// A filter for these stop strings; none means that every token is released at once.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when a stop string is empty: it would stop before the first token.
    pub fn new(stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::invalid("A stop text is empty. Give at least one character."));
        }
        let (held, waiting) = (String::new(), VecDeque::new());
        Ok(Self { stops: stops.to_vec(), held, waiting, found: None })
    }

    /// Adds a token's text (which may be empty) and gives the tokens that are decided by it. When a
    /// stop string is complete, every token comes out: those before it whole, the one it starts in
    /// cut, those inside it empty. After that, pushing gives the token back without text.
    pub fn push(&mut self, token: usize, text: &str) -> Vec<Released> {
        if self.found.is_some() {
            return vec![Released { token, text: String::new() }];
        }
        self.held.push_str(text);
        self.waiting.push_back(Waiting { token, end: self.held.len() });
        let keep = match self.complete() {
            Some((start, stop)) => {
                self.found = Some(stop);
                self.held.truncate(start);
                return self.release(usize::MAX);
            }
            None => self.undecided(),
        };
        self.release(keep)
    }

    /// The stop string that was found.
    pub fn stopped(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Ends the text: what was held back is not a stop string after all.
    pub fn finish(&mut self) -> Vec<Released> {
        self.release(usize::MAX)
    }

    /// Where the winning stop string starts in the held text, and which it is.
    fn complete(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(i, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        found.min().map(|(_, start, stop)| (start, stop))
    }

    /// Where the longest end of the held text starts that begins a stop string.
    fn undecided(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let mut starts = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        starts.find(begins).unwrap_or(self.held.len())
    }

    /// Releases the tokens whose text ends at or before `limit`.
    fn release(&mut self, limit: usize) -> Vec<Released> {
        let mut released = Vec::new();
        let mut at = 0;
        while let Some(&Waiting { token, end }) = self.waiting.front().filter(|w| w.end <= limit) {
            let end = end.min(self.held.len());
            released.push(Released { token, text: self.held[at..end].to_owned() });
            at = end;
            self.waiting.pop_front();
        }
        self.held.drain(..at);
        for waiting in &mut self.waiting {
            waiting.end -= at;
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
    fn a_stop_string_over_three_tokens_cuts_the_first() {
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
    fn a_false_start_is_released() {
        let mut filter = filter(&["aab"]);
        assert_eq!(shown(&filter.push(0, "xa")), []);
        assert_eq!(shown(&filter.push(1, "a")), []);
        assert_eq!(shown(&filter.push(2, "")), []);
        assert_eq!(shown(&filter.push(3, "a")), [(0, "xa")]);
        assert_eq!(shown(&filter.finish()), [(1, "a"), (2, ""), (3, "a")]);
        assert_eq!(filter.stopped(), None);
    }

    #[test]
    fn no_stop_strings_hold_nothing_and_an_empty_one_is_refused() {
        assert_eq!(shown(&filter(&[]).push(7, "a")), [(7, "a")]);
        assert!(StopFilter::new(&["".to_owned()]).is_err());
    }

    /// The definition, word for word: the first character at which a stop string is complete.
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
        fn the_result_is_that_of_a_naive_search(
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
        fn nothing_is_shown_that_a_later_token_could_take_back(
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
