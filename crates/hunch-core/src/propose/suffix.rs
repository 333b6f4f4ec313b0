//! Suffix decoding (Oliaro et al., arXiv 2411.04975): the most frequent continuation of the longest
//! repeated suffix.
//!
//! A suffix automaton (Blumer et al., 1985) finds that suffix at any length and counts its continuations.
//! It covers the whole conversation, prompt and earlier turns included. No model is involved.

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::Result;
use crate::token::TokenId;

/// Number of suffixes whose counts are updated per token. Highly repetitive text has as many suffixes
/// as tokens, and updating all would take quadratic time.
const MAX_COUNT_UPDATES: usize = 64;
/// State of the empty string.
const ROOT: u32 = 0;

/// Proposer that keeps a suffix automaton of the conversation.
#[derive(Clone, Debug, Default)]
pub struct Suffix {
    automaton: SuffixAutomaton,
}

impl Suffix {
    /// Extends the automaton to `tokens`, or rebuilds it if they do not continue its text.
    fn extend_to(&mut self, tokens: &[TokenId]) {
        if !tokens.starts_with(&self.automaton.tokens) {
            self.automaton = SuffixAutomaton::default();
        }
        for &token in &tokens[self.automaton.tokens.len()..] {
            self.automaton.push(token);
        }
    }
}

impl Proposer for Suffix {
    fn method(&self) -> Method {
        Method::Suffix
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.extend_to(prompt);
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        self.extend_to(cx.committed);
        Ok(DraftTree::confident_chain(self.automaton.continuation(cx.plan.max_draft)))
    }
}

/// Suffix automaton. Substrings that end at the same positions share a state.
#[derive(Clone, Debug)]
struct SuffixAutomaton {
    tokens: Vec<TokenId>,
    states: Vec<AutomatonState>,
    /// State of the whole text.
    last: u32,
}

#[derive(Clone, Debug, Default)]
struct AutomatonState {
    /// Length of the state's longest string.
    len: u32,
    /// Suffix link: the state of the longest suffix that occurs at more positions.
    link: u32,
    /// Transitions by token, ascending.
    next: Vec<(TokenId, u32)>,
    /// Occurrences of the state's strings.
    count: u32,
    /// End position of the latest occurrence.
    seen: u32,
}

impl Default for SuffixAutomaton {
    fn default() -> Self {
        Self { tokens: Vec::new(), states: vec![AutomatonState::default()], last: ROOT }
    }
}

impl SuffixAutomaton {
    fn state(&self, state: u32) -> &AutomatonState {
        &self.states[state as usize]
    }

    fn next(&self, state: u32, token: TokenId) -> Option<u32> {
        let next = &self.state(state).next;
        next.binary_search_by_key(&token, |(token, _)| *token).ok().map(|at| next[at].1)
    }

    fn set_next(&mut self, state: u32, token: TokenId, to: u32) {
        let next = &mut self.states[state as usize].next;
        match next.binary_search_by_key(&token, |(token, _)| *token) {
            Ok(at) => next[at].1 = to,
            Err(at) => next.insert(at, (token, to)),
        }
    }

    fn add(&mut self, state: AutomatonState) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    /// Appends a token in amortised constant time.
    fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        let len = self.tokens.len() as u32;
        let new = self.add(AutomatonState { len, link: ROOT, ..AutomatonState::default() });
        // Add the transition to every suffix that lacks it.
        let mut from = Some(self.last);
        let mut existing = None;
        while let Some(state) = from {
            existing = self.next(state, token).map(|to| (state, to));
            if existing.is_some() {
                break;
            }
            self.set_next(state, token, new);
            from = (state != ROOT).then(|| self.state(state).link);
        }
        if let Some((state, to)) = existing {
            let link = self.split(state, token, to);
            self.states[new as usize].link = link;
        }
        self.last = new;
        let mut counted = new;
        for _ in 0..MAX_COUNT_UPDATES {
            let state = &mut self.states[counted as usize];
            state.count += 1;
            state.seen = len;
            if counted == ROOT {
                break;
            }
            counted = state.link;
        }
    }

    /// Returns the state of `state`'s string followed by `token`.
    ///
    /// `to` also holds longer strings. They now occur at fewer positions, so the shorter ones move to a
    /// new state.
    fn split(&mut self, state: u32, token: TokenId, to: u32) -> u32 {
        let len = self.state(state).len + 1;
        if self.state(to).len == len {
            return to;
        }
        let shorter = self.add(AutomatonState { len, ..self.state(to).clone() });
        self.states[to as usize].link = shorter;
        let mut from = Some(state);
        while let Some(state) = from {
            if self.next(state, token) != Some(to) {
                break;
            }
            self.set_next(state, token, shorter);
            from = (state != ROOT).then(|| self.state(state).link);
        }
        shorter
    }

    /// Returns the most frequent continuation of the longest repeated suffix: at most `limit` tokens,
    /// each with a confidence from 0 to 1.
    fn continuation(&self, limit: usize) -> Vec<(TokenId, f32)> {
        let mut state = self.state(self.last).link;
        let matched = self.state(state).len as f32;
        let mut found = Vec::with_capacity(limit);
        // A match of one token is weak evidence, a long match is strong.
        let match_confidence = matched / (matched + 1.0);
        while found.len() < limit && state != ROOT {
            let next = &self.state(state).next;
            let weight = |to: u32| (self.state(to).count, self.state(to).seen);
            let Some(&(token, to)) = next.iter().max_by_key(|(_, to)| weight(*to)) else {
                // This string has occurred only at the end of the text. Continue from its next shorter
                // suffix.
                state = self.state(state).link;
                continue;
            };
            let total: u32 = next.iter().map(|(_, to)| self.state(*to).count).sum();
            found.push((token, match_confidence * self.state(to).count as f32 / total as f32));
            state = to;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn automaton(tokens: &[TokenId]) -> SuffixAutomaton {
        let mut suffix = Suffix::default();
        suffix.extend_to(tokens);
        suffix.automaton
    }

    fn tokens(tokens: &[TokenId], limit: usize) -> Vec<TokenId> {
        automaton(tokens).continuation(limit).into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn longest_suffix_and_most_frequent_continuation_win() {
        // "2 3" was followed by 7 once and by 9 twice; "1 2 3" by 7 only.
        let text = [2, 3, 9, 1, 2, 3, 7, 2, 3, 9, 5, 2, 3];
        assert_eq!(tokens(&text, 1), [9]);
        assert_eq!(tokens(&[&text[..], &[4, 1, 2, 3]].concat(), 1), [7]);
        let confidence = automaton(&text).continuation(1)[0].1;
        assert!((confidence - 2.0 / 3.0 * 2.0 / 3.0).abs() < 1e-6, "{confidence}");
        // Ties go to the more recent continuation.
        assert_eq!(tokens(&[1, 4, 1, 5, 1], 1), [5]);
    }

    #[test]
    fn drafts_nothing_without_repetition_and_continues_repetition() {
        assert_eq!(tokens(&[], 4), [] as [TokenId; 0]);
        assert_eq!(tokens(&[1, 2, 3], 4), [] as [TokenId; 0]);
        assert_eq!(tokens(&[4, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(tokens(&[6, 6, 6], 3), [6, 6, 6]);
    }

    #[test]
    fn extends_same_conversation_and_rebuilds_for_another() {
        let mut suffix = Suffix::default();
        suffix.extend_to(&[1, 2, 3, 1]);
        suffix.extend_to(&[1, 2, 3, 1, 2]);
        assert_eq!(suffix.automaton.continuation(1)[0].0, 3);
        suffix.extend_to(&[1, 2, 4, 1, 2]);
        assert_eq!(suffix.automaton.continuation(1)[0].0, 4);
        assert_eq!(suffix.automaton.tokens.len(), 5);
    }

    #[test]
    fn long_repetition_stays_fast() {
        let mut suffix = Suffix::default();
        suffix.extend_to(&vec![7; 200_000]);
        assert_eq!(suffix.automaton.continuation(3).len(), 3);
    }

    proptest! {
        /// Compares with a brute-force search for the longest repeated suffix and its continuations.
        #[test]
        fn matches_brute_force_search(text in prop::collection::vec(0u32..4, 1..80)) {
            let (text, n) = (&text[..], text.len());
            let occurs = |len: usize| (0..n - len).filter(move |&i| text[i..i + len] == text[n - len..]);
            let longest = (1..n).rev().find(|len| occurs(*len).next().is_some());
            let drafted = automaton(text).continuation(1);
            let Some(len) = longest else {
                prop_assert!(drafted.is_empty());
                return Ok(());
            };
            let mut counts = [0u32; 4];
            occurs(len).for_each(|i| counts[text[i + len] as usize] += 1);
            let (token, confidence) = drafted[0];
            let most = counts.iter().max().copied().unwrap_or(0);
            prop_assert_eq!(counts[token as usize], most);
            let share = most as f32 / counts.iter().sum::<u32>() as f32;
            let match_confidence = len as f32 / (len as f32 + 1.0);
            prop_assert!((confidence - share * match_confidence).abs() < 1e-6);
        }
    }
}
