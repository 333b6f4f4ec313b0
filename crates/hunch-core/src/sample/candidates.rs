//! Selection of likely tokens by partial sorting: top-k and top-p without a full sort.

use std::cmp::Ordering;

use super::vectors::{BLOCK, exp_nonpositive, maxima_of};
use crate::token::{TokenId, TokenProb};

/// A token that passed the filters so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenCandidate {
    pub(super) logit: f32,
    pub(super) token: TokenId,
}

/// Most likely first, ties by lower token ID.
pub(super) fn by_likelihood(a: &TokenCandidate, b: &TokenCandidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

pub(super) fn candidates_where(logits: &[f32], keep: impl Fn(usize, f32) -> bool) -> Vec<TokenCandidate> {
    let tokens = logits.iter().enumerate().filter(|&(i, &l)| keep(i, l));
    tokens.map(|(i, &logit)| TokenCandidate { logit, token: i as TokenId }).collect()
}

/// Returns the `k` most likely tokens (`k` at least 1) in no order, fewer if fewer are possible.
/// `maxima` are the block maxima of `logits`.
pub(super) fn most_likely(logits: &[f32], maxima: &[f32], k: usize) -> Vec<TokenCandidate> {
    largest(logits, maxima, k, f32::NEG_INFINITY)
}

/// Returns the tokens with the `k` largest values above `floor` (`k` at least 1), in no order.
fn largest(values: &[f32], maxima: &[f32], k: usize, floor: f32) -> Vec<TokenCandidate> {
    // Each of the k blocks with the largest maxima holds a value of at least the k-th largest block
    // maximum. No smaller value can be in the top k, so one vectorised pass leaves few candidates.
    let bound = if k <= maxima.len() {
        *maxima.to_vec().select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    } else {
        floor
    };
    let mut kept = Vec::new();
    for (block, chunk) in values.chunks(BLOCK).enumerate() {
        // Few blocks of a filtered distribution hold more than zeros.
        if maxima[block] < bound || maxima[block] <= floor {
            continue;
        }
        for (i, &logit) in chunk.iter().enumerate() {
            if logit >= bound && logit > floor {
                kept.push(TokenCandidate { logit, token: (block * BLOCK + i) as TokenId });
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, by_likelihood);
        kept.truncate(k);
    }
    kept
}

/// Keeps the fewest most likely candidates whose weights sum to `wanted` or more, at least one.
///
/// Bisects with partial selection: linear time, no full sort.
pub(super) fn keep_nucleus(kept: &mut Vec<TokenCandidate>, max: f32, wanted: f64) {
    let (mut low, mut high) = (0, kept.len());
    let mut below = 0.0;
    // Invariant: the first `low` candidates are the most likely, their weights sum to `below` and that
    // is too little. The result is in low + 1..=high.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        kept[low..high].select_nth_unstable_by(middle - low - 1, by_likelihood);
        let part: f64 = kept[low..middle].iter().map(|c| f64::from(exp_nonpositive(c.logit - max))).sum();
        if below + part >= wanted {
            high = middle;
        } else {
            below += part;
            low = middle;
        }
    }
    kept.truncate(high.max(1));
}

/// Returns the `count` most likely tokens of a distribution, most likely first, fewer if fewer are
/// possible.
pub fn top_tokens(distribution: &[f32], count: usize) -> Vec<TokenProb> {
    let mut likely = largest(distribution, &maxima_of(distribution), count, 0.0);
    likely.sort_unstable_by(by_likelihood);
    likely.iter().map(|c| (c.token, c.logit)).collect()
}
