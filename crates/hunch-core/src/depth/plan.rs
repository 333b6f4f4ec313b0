//! A plan for one draft: its limits, and the rule that ends it when another token no longer pays.

use super::acceptance::{CONFIDENCE_BINS, bin_of};
use crate::limits::{MAX_DRAFT, MAX_ROWS};

/// Tokens that a round is expected to yield, and its time.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedRound {
    /// Tokens, including the one that every round yields.
    pub tokens: f64,
    /// Milliseconds.
    pub ms: f64,
}

impl ExpectedRound {
    /// Returns the tokens per millisecond.
    pub fn rate(self) -> f64 {
        self.tokens / self.ms
    }
}

/// Limits of a proposer's draft in one round.
#[derive(Clone, Debug)]
pub struct DraftPlan {
    /// Most tokens: the length of a chain, all nodes of a tree. 0 drafts nothing.
    pub max_draft: usize,
    /// Longest path: tokens beyond it could not become part of the answer.
    pub max_depth: usize,
    pub(super) stop: Option<StopRule>,
}

impl DraftPlan {
    /// Creates a plan for exactly `max_draft` tokens, whatever their confidence.
    pub fn fixed(max_draft: usize) -> Self {
        Self { max_draft, max_depth: MAX_DRAFT, stop: None }
    }

    /// Returns whether it asks for a number of tokens, whatever they are expected to yield.
    pub(crate) fn is_fixed(&self) -> bool {
        self.stop.is_none()
    }

    /// Returns the same plan for paths of at most `max_depth` tokens.
    #[must_use]
    pub fn with_max_depth(self, max_depth: usize) -> Self {
        Self { max_depth, ..self }
    }

    /// Returns the round that this plan is expected to lead to; `None` for a fixed or an empty plan.
    fn expected(&self) -> Option<ExpectedRound> {
        self.stop.as_ref().filter(|_| self.max_draft > 0).map(|stop| stop.expected)
    }

    /// Returns the fastest of the rounds that some plans are expected to lead to.
    pub fn fastest<'a>(plans: impl IntoIterator<Item = &'a Self>) -> Option<ExpectedRound> {
        plans.into_iter().filter_map(Self::expected).max_by(|a, b| a.rate().total_cmp(&b.rate()))
    }

    /// Returns whether it expects fewer tokens per millisecond than another round.
    pub fn is_slower_than(&self, other: ExpectedRound) -> bool {
        self.expected().is_some_and(|own| own.rate() < other.rate())
    }

    /// Returns whether another token of a chain is worth drafting after one of this confidence.
    ///
    /// Call it once for each token, after the token is in the draft. A sampled token must stay, or the rest would no
    /// longer follow its distribution.
    pub fn should_continue(&mut self, confidence: f32) -> bool {
        self.stop.as_mut().is_none_or(|stop| stop.should_continue(confidence))
    }

    /// Returns whether a token that is accepted with probability `value` is worth another row of the target pass, when the
    /// draft has `len` tokens.
    pub(crate) fn row_pays(&self, value: f64, len: usize) -> bool {
        self.stop.as_ref().is_none_or(|stop| value >= stop.rate * stop.rows_ms(len, 1))
    }

    /// Returns whether `rows` tokens, whose acceptance probabilities add up to `value`, are worth a pass of the draft model
    /// and a row each.
    pub(crate) fn pass_pays(&self, value: f64, len: usize, rows: usize) -> bool {
        self.stop.as_ref().is_none_or(|stop| value >= stop.rate * (stop.draft_ms + stop.rows_ms(len, rows)))
    }
}

/// Ends a draft when further tokens would come at less than the required rate.
#[derive(Clone, Debug)]
pub(super) struct StopRule {
    /// Tokens per millisecond that a further token has to reach.
    pub(super) rate: f64,
    pub(super) expected: ExpectedRound,
    /// Milliseconds of a pass of the draft model.
    pub(super) draft_ms: f64,
    /// Milliseconds of a target pass, by rows.
    pub(super) pass_ms: [f64; MAX_ROWS + 1],
    pub(super) by_confidence: [f64; CONFIDENCE_BINS],
    pub(super) by_position: [f64; MAX_DRAFT],
    /// Rows that go into the target pass next to the draft.
    pub(super) extra_rows: usize,
    /// Most tokens that may be drafted.
    pub(super) max_draft: usize,
    /// Tokens drafted so far, and the probability that all of them are accepted.
    pub(super) len: usize,
    pub(super) reach: f64,
}

impl StopRule {
    fn should_continue(&mut self, confidence: f32) -> bool {
        self.reach *= self.by_confidence[bin_of(confidence)];
        self.len += 1;
        // One more token may not pay where two more do: rows do not all cost the same.
        let (mut reach, mut tokens) = (self.reach, 0.0);
        (1..=self.max_draft.saturating_sub(self.len)).any(|more| {
            reach *= self.by_position[self.len + more - 1];
            tokens += reach;
            tokens >= self.rate * (more as f64 * self.draft_ms + self.rows_ms(self.len, more))
        })
    }

    /// Returns the milliseconds that `more` rows add to a target pass over a draft of `len` tokens.
    fn rows_ms(&self, len: usize, more: usize) -> f64 {
        let at = 1 + self.extra_rows + len;
        match (self.pass_ms.get(at), self.pass_ms.get(at + more)) {
            (Some(without), Some(with)) => (with - without).max(0.0),
            _ => f64::INFINITY,
        }
    }
}
