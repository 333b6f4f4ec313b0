//! Tokens and where they came from. No model, no text, no candle lives here.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// The number of a token in a model's vocabulary.
pub type TokenId = u32;

/// How many tokens two sequences begin with alike.
pub fn shared_len(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Where a token in the committed sequence came from. The colours of the window are these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum TokenOrigin {
    /// Part of the prompt.
    Prompt,
    /// Drafted by the proposer and accepted by the target.
    Accepted,
    /// Drawn from the residual distribution after every draft at its position was rejected.
    Resampled,
    /// Drawn from the target after a whole drafted path was accepted.
    Bonus,
    /// Drawn from the target in a round where nothing was drafted.
    Plain,
    /// Chosen by the reader in place of what was drawn; the answer goes on from it.
    Chosen,
}

/// A token that might come, and its probability.
pub type TokenProb = (TokenId, f32);

/// One generated token with the numbers that decided it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmittedToken {
    /// The token.
    pub id: TokenId,
    /// Where it came from; never [`TokenOrigin::Prompt`].
    pub origin: TokenOrigin,
    /// p(token): its probability under the target's distribution at its position, after temperature,
    /// filters and penalties (so 1 when greedy).
    pub p: f32,
    /// q(token): its probability under the distribution the draft was sampled from. `None` when it was not
    /// drafted, or was a certain proposal (greedy draft, n-gram).
    pub q: Option<f32>,
    /// The uniform number drawn when it was tested; `None` when it was not drafted, or the rule draws none.
    pub u: Option<f32>,
    /// What `u` had to be below: min(1, p/q) after rejected siblings were ruled out.
    pub threshold: Option<f32>,
    /// The target's own softmax probability of the token: temperature 1, no filter, no penalty.
    pub confidence: f32,
    /// The entropy of that softmax, in nats: how open the position was.
    pub entropy: f32,
    /// The likeliest tokens of that softmax, likeliest first.
    pub top: Vec<TokenProb>,
    /// The draft's likeliest tokens for this position, likeliest first; none where a model did not draft.
    pub guesses: Vec<TokenProb>,
    /// Round of the generation, from 0.
    pub round: u32,
    /// Position inside its round, from 0.
    pub position: u32,
}

/// What became of a drafted token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DraftFate {
    /// It stood its test.
    Accepted,
    /// It did not.
    Rejected,
    /// It was never tested: a sibling stood, or something before it fell.
    Untested,
}

/// A drafted token, as a node of the draft it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftedToken {
    /// The token.
    pub id: TokenId,
    /// The node it was drafted behind; `None` is the last token before the round.
    pub parent: Option<usize>,
    /// What became of it.
    pub fate: DraftFate,
}

/// A drafted token that the target rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedToken {
    /// The token.
    pub id: TokenId,
    /// Its node in the draft.
    pub node: usize,
    /// p(token) at its position when it was tested (after earlier siblings were ruled out).
    pub p: f32,
    /// q(token), or `None` for a certain proposal.
    pub q: Option<f32>,
    /// The uniform number drawn: the token was rejected because `u >= min(1, p/q)`.
    pub u: f32,
    /// Position inside the round, from 0: the emitted token at this position replaced it.
    pub position: u32,
}
