//! Retrieval (REST, He et al., arXiv 2311.08252): copies what followed the last tokens in texts that the user chose.
//!
//! A suffix array (Manber and Myers, 1990) finds every place where the last tokens occur. Making texts into tokens is
//! left to the caller.

use std::ops::Range;
use std::sync::Arc;

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::Result;
use crate::limits::MAX_DRAFT;
use crate::token::TokenId;

/// Longest match, in tokens, as in REST.
const LONGEST: usize = 16;
/// Shortest match. A single token occurs almost everywhere.
const SHORTEST: usize = 2;
/// Tokens by which places are sorted: a match and what it drafts.
const SORTED_BY: usize = LONGEST + MAX_DRAFT;
/// Most places that are counted for one drafted token. More are sampled evenly.
const MAX_COUNTED: usize = 1024;
/// Ends each text. Not a token of any vocabulary.
const END: TokenId = TokenId::MAX;

/// Texts in tokens, with all places sorted by the tokens that follow them. It takes 8 bytes a token.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TextIndex {
    tokens: Vec<TokenId>,
    /// Positions in `tokens`, sorted by the next [`SORTED_BY`] tokens.
    places: Vec<u32>,
}

impl TextIndex {
    /// Most tokens of an index.
    pub const MAX_TOKENS: usize = u32::MAX as usize;

    /// Indexes texts. Matches and drafts stay within a text. Texts beyond [`MAX_TOKENS`](Self::MAX_TOKENS) are left out.
    pub fn new<T: AsRef<[TokenId]>>(texts: impl IntoIterator<Item = T>) -> Self {
        let mut tokens = Vec::new();
        for text in texts {
            let text = text.as_ref();
            if tokens.len() + text.len() >= Self::MAX_TOKENS {
                break;
            }
            tokens.extend_from_slice(text);
            tokens.push(END);
        }
        let mut places: Vec<u32> = (0..tokens.len() as u32).collect();
        places.sort_unstable_by_key(|&place| after(&tokens, place, SORTED_BY));
        Self { tokens, places }
    }

    /// Returns the number of tokens, without those that end texts.
    pub fn len(&self) -> usize {
        self.tokens.iter().filter(|&&token| token != END).count()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.tokens[..]) + size_of_val(&self.places[..])
    }

    /// Returns the places of `tokens`, of which there are at most [`SORTED_BY`].
    fn find(&self, tokens: &[TokenId]) -> &[u32] {
        let begins = |place: &u32| after(&self.tokens, *place, tokens.len());
        let first = self.places.partition_point(|place| begins(place) < tokens);
        let count = self.places[first..].partition_point(|place| begins(place) == tokens);
        &self.places[first..first + count]
    }

    /// Returns the most frequent continuation of the longest suffix of `committed` that has one. It has at most `limit`
    /// tokens, each with a confidence from 0 to 1.
    pub fn continuation(&self, committed: &[TokenId], limit: usize) -> Vec<(TokenId, f32)> {
        let lengths = (SHORTEST..=LONGEST.min(committed.len())).rev();
        let follow = |length| self.follow(&committed[committed.len() - length..], limit.min(MAX_DRAFT));
        lengths.map(follow).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Returns the most frequent continuation of a suffix.
    fn follow(&self, suffix: &[TokenId], limit: usize) -> Vec<(TokenId, f32)> {
        let mut places = self.find(suffix);
        // As that of `suffix`: a longer match is stronger evidence.
        let match_confidence = suffix.len() as f32 / (suffix.len() + 1) as f32;
        let mut found = Vec::new();
        while found.len() < limit {
            let Some((token, share, run)) = self.most_frequent(places, suffix.len() + found.len()) else {
                break;
            };
            found.push((token, match_confidence * share));
            places = &places[run];
        }
        found
    }

    /// Returns the most frequent token at an offset after the places, which are sorted. Also its share, and the range of
    /// the places that have it. `None` if all texts end there.
    fn most_frequent(&self, places: &[u32], offset: usize) -> Option<(TokenId, f32, Range<usize>)> {
        let token_at = |place: &u32| self.tokens.get(*place as usize + offset).copied().unwrap_or(END);
        let step = places.len().div_ceil(MAX_COUNTED).max(1);
        let counted: Vec<TokenId> =
            places.iter().step_by(step).map(token_at).filter(|token| *token != END).collect();
        let most = counted.chunk_by(|a, b| a == b).max_by_key(|run| run.len())?;
        let share = most.len() as f32 / counted.len() as f32;
        let token = most[0];
        let first = places.partition_point(|place| token_at(place) < token);
        let count = places[first..].partition_point(|place| token_at(place) == token);
        Some((token, share, first..first + count))
    }
}

/// Returns the tokens at a place, at most `count`. They stop at the end of its text, which is included.
fn after(tokens: &[TokenId], place: u32, count: usize) -> &[TokenId] {
    let rest = &tokens[place as usize..];
    let rest = &rest[..rest.len().min(count)];
    let end = rest.iter().position(|token| *token == END);
    &rest[..end.map_or(rest.len(), |end| end + 1)]
}

/// Proposer that copies from an index. It has no state of its own.
#[derive(Clone, Debug)]
pub struct Retrieval {
    texts: Arc<TextIndex>,
}

impl Retrieval {
    /// Creates a proposer over an index.
    pub fn new(texts: Arc<TextIndex>) -> Self {
        Self { texts }
    }
}

impl Proposer for Retrieval {
    fn method(&self) -> Method {
        Method::Retrieval
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        Ok(DraftTree::confident_chain(self.texts.continuation(cx.committed, cx.plan.max_draft)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(index: &TextIndex, committed: &[TokenId], limit: usize) -> Vec<TokenId> {
        index.continuation(committed, limit).into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn copies_most_frequent_continuation_of_longest_match() {
        // "2 3" is followed by 9 twice, "1 2 3" by 7.
        let index = TextIndex::new([&[1, 2, 3, 7, 8][..], &[5, 2, 3, 9, 4], &[6, 2, 3, 9, 4]]);
        assert_eq!(tokens(&index, &[0, 2, 3], 4), [9, 4]);
        assert_eq!(tokens(&index, &[1, 2, 3], 4), [7, 8]);
        assert_eq!(tokens(&index, &[1, 2, 3], 1), [7]);
        assert_eq!((index.len(), index.bytes()), (15, 18 * 8));
        let confidence = index.continuation(&[0, 2, 3], 2);
        assert!(
            (confidence[0].1 - 2.0 / 3.0 * 2.0 / 3.0).abs() < 1e-6
                && (confidence[1].1 - 2.0 / 3.0).abs() < 1e-6
        );
    }

    #[test]
    fn drafts_nothing_without_match_and_stops_at_the_end_of_a_text() {
        let index = TextIndex::new([[1, 2, 3], [4, 5, 6]]);
        assert!(tokens(&index, &[9, 9], 4).is_empty());
        assert!(tokens(&index, &[2], 4).is_empty(), "one token is no match");
        assert_eq!(tokens(&index, &[1, 2], 4), [3]);
        assert!(tokens(&index, &[2, 3], 4).is_empty(), "the next text is another one");
        assert!(tokens(&index, &[3, 4], 4).is_empty(), "no match spans two texts");
        let empty = TextIndex::default();
        assert!(empty.is_empty() && tokens(&empty, &[1, 2, 3], 4).is_empty());
    }

    #[test]
    fn long_repetition_is_indexed_and_drafted() {
        let index = TextIndex::new([vec![7; 100_000]]);
        assert_eq!(tokens(&index, &[7; 40], 15), [7; 15]);
    }

    proptest! {
        /// Compares with a brute-force search.
        #[test]
        fn matches_brute_force_search(
            texts in prop::collection::vec(prop::collection::vec(0u32..3, 0..30), 0..4),
            committed in prop::collection::vec(0u32..3, 0..24),
        ) {
            let drafted = TextIndex::new(&texts).continuation(&committed, 1);
            let counts = |length: usize| {
                let suffix = &committed[committed.len() - length..];
                let mut counts = [0u32; 3];
                for text in &texts {
                    for at in (0..text.len()).filter(|at| text[*at..].starts_with(suffix)) {
                        if let Some(next) = text.get(at + length) {
                            counts[*next as usize] += 1;
                        }
                    }
                }
                (counts != [0; 3]).then_some((length, counts))
            };
            let longest = (SHORTEST..=LONGEST.min(committed.len())).rev().find_map(counts);
            match longest {
                None => prop_assert!(drafted.is_empty()),
                Some((length, counts)) => {
                    let (token, confidence) = drafted[0];
                    let most = counts.iter().max().copied().unwrap_or(0);
                    prop_assert_eq!(counts[token as usize], most);
                    let share = most as f32 / counts.iter().sum::<u32>() as f32;
                    prop_assert!((confidence - share * length as f32 / (length + 1) as f32).abs() < 1e-6);
                }
            }
        }
    }
}
