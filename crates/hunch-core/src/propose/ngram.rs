//! Prompt lookup: copies the continuation of an earlier occurrence of the last n-gram (Saxena, "Prompt
//! Lookup Decoding", 2023). No model and no state: it reads the committed tokens only.

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::Result;
use crate::token::TokenId;

/// Proposes what followed the most recent earlier occurrence of the longest n-gram that ends the
/// committed tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ngram {
    /// Length of the n-gram tried first, in tokens. Shorter ones follow, down to one token.
    pub longest: usize,
    /// Maximum tokens proposed.
    pub max_tokens: usize,
}

impl Default for Ngram {
    fn default() -> Self {
        Self { longest: 3, max_tokens: 10 }
    }
}

/// Match length in tokens at which the confidence saturates.
const SATURATION: usize = 9;

impl Ngram {
    /// Returns the continuation, at most `limit` tokens; empty without an earlier occurrence.
    pub fn lookup(&self, committed: &[TokenId], limit: usize) -> Vec<TokenId> {
        self.find(committed).map_or_else(Vec::new, |source| self.copy(committed, source, limit))
    }

    /// Copies tokens from `source` on.
    fn copy(&self, committed: &[TokenId], mut source: usize, limit: usize) -> Vec<TokenId> {
        let limit = limit.min(self.max_tokens);
        let mut found: Vec<TokenId> = Vec::with_capacity(limit);
        while found.len() < limit {
            // Past the end it copies its own output, so that a repetition keeps repeating.
            let token = match committed.get(source) {
                Some(&token) => token,
                None => found[source - committed.len()],
            };
            found.push(token);
            source += 1;
        }
        found
    }

    /// Returns the start of the continuation.
    ///
    /// One backward scan covers all n-gram lengths. The longest match wins, then the most recent.
    fn find(&self, committed: &[TokenId]) -> Option<usize> {
        let last = *committed.last()?;
        let mut best = (0, None);
        for end in (1..committed.len()).rev() {
            // Most positions fail this check, so the scan costs about one comparison per token.
            if committed[end - 1] != last {
                continue;
            }
            let backwards = committed[..end].iter().rev().zip(committed.iter().rev());
            let length = backwards.take(self.longest).take_while(|(a, b)| a == b).count();
            if length > best.0 {
                best = (length, Some(end));
            }
            if length == self.longest {
                break;
            }
        }
        best.1
    }
}

impl Proposer for Ngram {
    fn method(&self) -> Method {
        Method::Ngram
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let Some(source) = self.find(cx.committed) else {
            return Ok(DraftTree::new());
        };
        // The longer the match, the likelier the continuation.
        let before = cx.committed[..source].iter().rev().zip(cx.committed.iter().rev());
        let matched = before.take(SATURATION).take_while(|(a, b)| a == b).count();
        let confidence = matched as f32 / (SATURATION + 1) as f32;
        let tokens = self.copy(cx.committed, source, cx.plan.max_draft);
        Ok(DraftTree::confident_chain(tokens.into_iter().map(|token| (token, confidence))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn look(tokens: &[TokenId], limit: usize) -> Vec<TokenId> {
        Ngram::default().lookup(tokens, limit)
    }

    #[test]
    fn longest_match_beats_more_recent_shorter_match() {
        let tokens = [1, 2, 3, 7, 8, 9, 3, 5, 1, 2, 3];
        assert_eq!(look(&tokens, 2), [7, 8]);
    }

    #[test]
    fn most_recent_of_equal_matches_wins() {
        assert_eq!(look(&[1, 2, 4, 1, 2, 5, 1, 2], 1), [5]);
    }

    #[test]
    fn proposes_nothing_without_earlier_occurrence() {
        assert_eq!(look(&[], 4), [] as [TokenId; 0]);
        assert_eq!(look(&[1], 4), [] as [TokenId; 0]);
        assert_eq!(look(&[1, 2, 3], 4), [] as [TokenId; 0]);
    }

    #[test]
    fn repetition_continues_past_end() {
        assert_eq!(look(&[4, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(look(&[6, 6], 3), [6, 6, 6]);
    }

    #[test]
    fn respects_own_and_requested_limit() {
        let tokens: Vec<TokenId> = (0..40).chain([0]).collect();
        assert_eq!(look(&tokens, 15), (1..=10).collect::<Vec<_>>());
        assert_eq!(look(&tokens, 3), [1, 2, 3]);
    }

    proptest! {
        #[test]
        fn single_scan_matches_scan_per_length(
            tokens in prop::collection::vec(0u32..4, 0..60),
        ) {
            let by_length = (1..=3usize.min(tokens.len())).rev().find_map(|n| {
                let suffix = &tokens[tokens.len() - n..];
                (0..tokens.len() - n).rev().find(|&i| &tokens[i..i + n] == suffix).map(|i| i + n)
            });
            prop_assert_eq!(Ngram::default().find(&tokens), by_length);
        }
    }
}
