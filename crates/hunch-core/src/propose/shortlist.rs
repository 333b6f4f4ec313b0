//! Vocabulary shortlist of a draft model (frequency-ranked drafting, FR-Spec, Zhao et al., arXiv
//! 2502.14856).
//!
//! In a small model with a large vocabulary, the output head takes much of the time per draft token,
//! yet most tokens are rare. The draft therefore scores a shortlist only. Its q is the distribution on
//! the shortlist, and the verifier receives exactly that q, so the output distribution remains the
//! target's.
//!
//! BPE tokenisers number tokens in merge order, frequent ones first. The shortlist is thus a prefix of
//! the vocabulary, long enough for the conversation, plus every token that occurred in it.

use crate::model::VocabSubset;
use crate::token::TokenId;

/// Candidate prefix lengths, in tokens.
const LENGTHS: [usize; 4] = [32_768, 49_152, 65_536, 98_304];
/// Required fraction of conversation tokens that were on the list when they occurred.
const MIN_COVERAGE: f64 = 0.95;
/// Virtual covered tokens at the start, so that a few special tokens do not decide.
const VIRTUAL_TOKENS: usize = 64;

/// Shortlist of one conversation.
#[derive(Clone, Debug)]
pub(super) struct Shortlist {
    /// The entries of [`LENGTHS`] that save enough with this vocabulary.
    lengths: &'static [usize],
    /// Observed tokens, and how many of them were within each length when they occurred.
    total: usize,
    covered: [usize; LENGTHS.len()],
    seen: VocabSubset,
    /// Current prefix length and list; `None` is the whole vocabulary.
    list: Option<(usize, VocabSubset)>,
}

impl Shortlist {
    /// Creates the shortlist of an empty conversation over `n_vocab` tokens.
    pub(super) fn new(n_vocab: usize) -> Self {
        // A list that saves less than a quarter of the vocabulary is not worthwhile.
        let usable = LENGTHS.iter().take_while(|&&length| length <= n_vocab / 4 * 3).count();
        let mut list = Self {
            lengths: &LENGTHS[..usable],
            total: 0,
            covered: [0; LENGTHS.len()],
            seen: VocabSubset::default(),
            list: None,
        };
        list.update_list();
        list
    }

    /// Returns the tokens to score after `text`; `None` is all.
    pub(super) fn after(text: &[TokenId], n_vocab: usize) -> Option<VocabSubset> {
        let mut list = Self::new(n_vocab);
        list.observe(text);
        list.list.map(|(_, list)| list)
    }

    /// Resets to an empty conversation.
    pub(super) fn clear(&mut self) {
        (self.total, self.covered, self.seen, self.list) =
            (0, [0; LENGTHS.len()], VocabSubset::default(), None);
        self.update_list();
    }

    /// Returns the number of tokens observed.
    pub(super) fn observed(&self) -> usize {
        self.total
    }

    /// Observes the next tokens of the conversation.
    pub(super) fn observe(&mut self, tokens: &[TokenId]) {
        if self.lengths.is_empty() {
            return;
        }
        for &token in tokens {
            self.total += 1;
            let seen = self.seen.contains(token);
            for (covered, length) in self.covered.iter_mut().zip(self.lengths) {
                *covered += usize::from(seen || (token as usize) < *length);
            }
            self.seen.insert(token);
            if let Some((_, list)) = &mut self.list {
                list.insert(token);
            }
        }
        self.update_list();
    }

    fn update_list(&mut self) {
        let enough = |&(covered, _): &(&usize, &usize)| {
            (covered + VIRTUAL_TOKENS) as f64 >= MIN_COVERAGE * (self.total + VIRTUAL_TOKENS) as f64
        };
        let length = self.covered.iter().zip(self.lengths).find(enough).map(|(_, length)| *length);
        if length != self.list.as_ref().map(|(length, _)| *length) {
            self.list = length.map(|length| (length, VocabSubset::first(length).union(&self.seen)));
        }
    }

    /// Returns the tokens to score; `None` is all.
    pub(super) fn tokens(&self) -> Option<&VocabSubset> {
        self.list.as_ref().map(|(_, list)| list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_with_conversation_and_keeps_observed_tokens() {
        let mut list = Shortlist::new(150_000);
        let new = |from: TokenId, count: TokenId| (0..count).map(|i| from + 16 * i).collect::<Vec<_>>();
        assert_eq!(list.tokens(), Some(&VocabSubset::first(32_768)));
        // 8 of 172 tokens, 64 of them virtual, were not on the list: coverage 95.3%.
        list.observe(&[1; 100]);
        list.observe(&new(40_000, 8));
        assert_eq!(list.observed(), 108);
        let text: Vec<TokenId> = [1; 100].into_iter().chain(new(40_000, 8)).collect();
        assert_eq!(Shortlist::after(&text, 150_000).as_ref(), list.tokens());
        let tokens = list.tokens().unwrap();
        assert!(tokens.contains(32_767) && tokens.contains(40_000) && !tokens.contains(41_000));
        // One more makes 94.8%, so the next length is used. Tokens seen before stay on the list.
        list.observe(&[140_000, 140_000, 140_000]);
        let tokens = list.tokens().unwrap();
        assert!(tokens.contains(49_151) && tokens.contains(140_000) && !tokens.contains(60_000));
        // Another language: fall back to the whole vocabulary.
        list.observe(&new(110_000, 60));
        assert_eq!(list.tokens(), None);
        list.observe(&[2; 10_000]);
        assert!(list.tokens().unwrap().contains(110_000));
        list.clear();
        assert_eq!((list.tokens(), list.observed()), (Some(&VocabSubset::first(32_768)), 0));
    }

    #[test]
    fn scores_small_vocabularies_in_full() {
        for n_vocab in [16, 32_000, 43_000] {
            let mut list = Shortlist::new(n_vocab);
            list.observe(&[1, 2, 3]);
            assert_eq!(list.tokens(), None);
        }
        let mut list = Shortlist::new(49_152);
        assert!(list.tokens().is_some());
        list.observe(&(0..9).map(|i| 40_000 + 16 * i).collect::<Vec<_>>());
        assert_eq!(list.tokens(), None);
    }
}
