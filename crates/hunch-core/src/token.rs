//! Tokens, their origin and their fate. No model or text lives here.

use serde::{Deserialize, Serialize};

/// Index of a token in a model's vocabulary.
pub type TokenId = u32;

/// Returns the length of the common prefix of two sequences.
pub fn shared_len(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Origin of a committed token. The window colours tokens by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum TokenOrigin {
    /// Drafted and accepted.
    Accepted,
    /// Drawn from the residual distribution after all drafts at its position were rejected.
    Resampled,
    /// Drawn from the target after a fully accepted path.
    Bonus,
    /// Drawn from the target in a round without a draft.
    Plain,
    /// Chosen by the reader in place of the generated token. The answer continues from it.
    Chosen,
}

/// A token and its probability.
pub type TokenProb = (TokenId, f32);

/// A generated token with the numbers behind its acceptance or draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmittedToken {
    /// The token.
    pub id: TokenId,
    /// Origin.
    pub origin: TokenOrigin,
    /// p(token) under the target's distribution at its position, after penalties, filters and
    /// temperature. 1 under greedy sampling, or 0 for a token that lenience accepted there.
    pub p: f32,
    /// q(token) under the draft's distribution. `None` if it was not drafted, or drafted as certain
    /// (greedy draft, n-gram).
    pub q: Option<f32>,
    /// Uniform number of the acceptance test. `None` if it was not drafted, or the rule draws none.
    pub u: Option<f32>,
    /// Acceptance threshold that `u` had to be below: min(1, p/q) after the rejection of siblings.
    pub threshold: Option<f32>,
    /// Target's softmax probability of the token at temperature 1, without filters or penalties.
    pub confidence: f32,
    /// Entropy of the same softmax, in nats.
    pub entropy: f32,
    /// Most likely tokens of the same softmax, most likely first.
    pub top: Vec<TokenProb>,
    /// Draft's most likely tokens at this position, most likely first; empty if no model drafted.
    pub guesses: Vec<TokenProb>,
    /// Round of the generation, from 0.
    pub round: u32,
    /// Position within the round, from 0.
    pub position: u32,
}

/// Fate of a drafted token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum DraftFate {
    /// Tested and accepted.
    Accepted,
    /// Tested and rejected.
    Rejected,
    /// Not tested: an earlier sibling was accepted or an ancestor was not.
    Untested,
}

/// A drafted token as a node of its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftedToken {
    /// The token.
    pub id: TokenId,
    /// Parent node; `None` is the last token before the round.
    pub parent: Option<usize>,
    /// Fate.
    pub fate: DraftFate,
}

/// A drafted token that was rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedToken {
    /// The token.
    pub id: TokenId,
    /// Its node in the draft tree.
    pub node: usize,
    /// p(token) at the time of the test, after the rejection of earlier siblings.
    pub p: f32,
    /// q(token) at the time of the test; `None` for a certain proposal.
    pub q: Option<f32>,
    /// Uniform number of the test: rejected because `u >= min(1, p/q)`. `None` under rules that draw none.
    pub u: Option<f32>,
    /// Position within the round, from 0. The emitted token at this position replaced it.
    pub position: u32,
}
