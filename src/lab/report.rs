//! What the lab shows: plain types, the same over the wire and in the terminal. Nothing is computed here.

use hunch_core::pass_cost::CostCurve;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;

/// Where a position is looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LabSource {
    /// Before token number `token` of an answer in the store, by the loaded models.
    Answer {
        /// The answer's message.
        #[ts(type = "number")]
        message: i64,
        /// The token's number, from 0.
        token: u32,
    },
    /// After a text, by the loaded models.
    Text {
        /// The text, read as it is.
        text: String,
    },
    /// Made-up logits over some words, where no pair of models is loaded.
    Toy,
}

/// A position to look at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRequest {
    /// Where.
    pub source: LabSource,
    /// How both distributions are made from the logits.
    pub sampling: SamplingParams,
}

/// A token at a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabToken {
    /// Vocabulary number.
    pub id: TokenId,
    /// Its text on its own.
    pub text: String,
    /// p: the target's probability.
    pub p: f64,
    /// q: the draft model's.
    pub q: f64,
    /// min(p, q): drafted and accepted.
    pub overlap: f64,
    /// max(0, p - q) / Z: its share of the residual distribution.
    pub residual: f64,
    /// overlap + Z * residual, which is p.
    pub total: f64,
}

/// All tokens that are not listed, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRest {
    /// How many can be drawn from either distribution.
    pub tokens: u32,
    /// The sum of p.
    pub p: f64,
    /// The sum of q.
    pub q: f64,
    /// The sum of min(p, q).
    pub overlap: f64,
    /// Their share of the residual distribution.
    pub residual: f64,
}

/// Both distributions at a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabPosition {
    /// Names the distributions for what is asked next; the last few are kept.
    pub id: u32,
    /// Where it is.
    pub source: LabSource,
    /// Name of the target; `None` for made-up distributions.
    pub target: Option<String>,
    /// Name of the draft model.
    pub draft: Option<String>,
    /// How the distributions were made.
    pub sampling: SamplingParams,
    /// The last of the text before the position.
    pub before: String,
    /// The token that stands there, if the answer goes on.
    pub drawn: Option<TokenId>,
    /// The likeliest tokens by the larger of p and q, at most 24.
    pub tokens: Vec<LabToken>,
    /// All others.
    pub rest: LabRest,
    /// The sum of min(p, q): the probability that a drafted token is accepted.
    pub acceptance: f64,
    /// Z = 1 - acceptance: the mass that is rejected.
    pub rejection: f64,
}

/// More rounds at a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRoundsRequest {
    /// The position.
    pub position: u32,
    /// Which drafted tokens stand.
    pub rule: AcceptanceRule,
    /// How many rounds more: up to 10,000.
    pub rounds: u32,
    /// Forgets the rounds before.
    pub afresh: bool,
}

/// One round at a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRound {
    /// The token drawn from q.
    pub drafted: TokenId,
    /// p of it.
    pub p: f64,
    /// q of it.
    pub q: f64,
    /// The number it was tested with, where the rule draws one.
    pub u: Option<f64>,
    /// What that had to be below.
    pub threshold: Option<f64>,
    /// Whether it was accepted.
    pub accepted: bool,
    /// The token that came out.
    pub emitted: TokenId,
}

/// All rounds under one rule at one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRounds {
    /// The position.
    pub position: u32,
    /// The rule.
    pub rule: AcceptanceRule,
    /// Rounds.
    pub rounds: u32,
    /// Drafted tokens that were accepted.
    pub accepted: u32,
    /// How often each listed token came out.
    pub counts: Vec<u32>,
    /// How often any other did.
    pub rest: u32,
    /// Pearson's statistic against p.
    pub chi_square: f64,
    /// Its degrees of freedom.
    pub degrees: u32,
    /// The probability of as much or more if the distribution is p.
    pub p_value: f64,
    /// Whether that is less than one in a million: what comes out does not follow p.
    pub refuted: bool,
    /// Half the sum of |share - p|.
    pub total_variation: f64,
    /// What chance alone makes of that at this many rounds, on average: predicted.
    pub expected_variation: f64,
    /// The last round, when only one was asked for.
    pub last: Option<LabRound>,
}

/// What the acceptance rules make of the same logits at one temperature: probabilities of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRuleRow {
    /// The temperature of both distributions.
    pub temperature: f64,
    /// Rejection sampling: the sum of min(p, q).
    pub lossless: f64,
    /// A draft that takes its likeliest token, by rejection sampling: p(argmax q).
    pub argmax: f64,
    /// A sampled draft that is kept where the target draws the same: the sum of p q.
    pub matching: f64,
    /// Typical acceptance of a sampled draft, which changes the distribution.
    pub typical: f64,
    /// Lenience, which changes the distribution.
    pub lenience: f64,
}

/// Whose costs a landscape is of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LabMachine {
    /// This one, as it was measured last with the loaded models.
    Measured,
    /// A made-up one.
    MadeUp {
        /// c: a drafted token, in target passes of one row.
        draft_cost: f64,
        /// What each row beyond the first adds to a target pass, in passes of one row.
        row_cost: f64,
    },
}

/// Predicted speedup over alpha and K.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Landscape {
    /// Whether the costs were measured here.
    pub measured: bool,
    /// c: a drafted token, in target passes of one row.
    pub draft_cost: f64,
    /// t(M) / t(1) by rows M = 1, 2, ...
    pub target_cost: Vec<f64>,
    /// The probabilities of acceptance, rising.
    pub alphas: Vec<f64>,
    /// Most tokens drafted a round, K: 1, 2, ...
    pub depths: Vec<u32>,
    /// Predicted speedup: a row for each alpha, a column for each depth.
    pub speedup: Vec<Vec<f64>>,
    /// The depth with the highest speedup for each alpha; 0 where drafting never pays.
    pub best: Vec<u32>,
    /// For each depth the alpha from which drafting pays; `None` where it never does.
    pub break_even: Vec<Option<f64>>,
}

/// An answer of the person's, as a place in the landscape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabSession {
    /// The answer's message.
    #[ts(type = "number")]
    pub message: i64,
    /// Its conversation.
    #[ts(type = "number")]
    pub conversation: i64,
    /// What the conversation is called.
    pub title: String,
    /// How it was drafted.
    pub method: Method,
    /// Accepted of the drafted tokens that were tested.
    pub alpha: f64,
    /// Tokens drafted in a round that drafted, the mean.
    pub depth: f64,
    /// Tokens generated.
    pub tokens: u32,
    /// Tokens a target pass.
    pub mean_acceptance_length: f64,
}

/// Acceptance of the drafted tokens that have something in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AcceptanceBin {
    /// What they have in common: a position from 0, a kind, or a range.
    pub key: String,
    /// How many were tested.
    pub tested: u32,
    /// How many of these were accepted.
    pub accepted: u32,
    /// accepted / tested.
    pub share: f64,
    /// Where the true share lies, with 95% confidence (Wilson): from.
    pub low: f64,
    /// To.
    pub high: f64,
    /// The mean of min(1, p / q), or of p for certain drafts: what the share should be.
    pub expected: f64,
    /// The mean of the draft's own probability q, where it has one: how sure it was of itself.
    pub confidence: Option<f64>,
}

/// Acceptance over answers in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct AcceptanceMap {
    /// Answers that drafted.
    pub answers: u32,
    /// Drafted tokens that were tested.
    pub tested: u32,
    /// By position in the draft; the key is the position, from 0.
    pub by_position: Vec<AcceptanceBin>,
    /// By kind of token: `word`, `part` (of a word), `space`, `number`, `punctuation`, `code`.
    pub by_kind: Vec<AcceptanceBin>,
    /// By entropy of the target at the position, in bits; the key is the range, as `0.5-1`.
    pub by_entropy: Vec<AcceptanceBin>,
    /// By the draft's own probability q; the key is the range, as `0.8-0.9`.
    pub by_confidence: Vec<AcceptanceBin>,
}

/// What an answer would have been with other settings, from what was stored of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct WhatIfRequest {
    /// The answer's message.
    #[ts(type = "number")]
    pub message: i64,
    /// Most tokens drafted a round.
    pub max_draft: u32,
    /// The temperature; `None` = as it was.
    pub temperature: Option<f32>,
}

/// The figures of an answer, as it was or as it would have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct WhatIfFigures {
    /// The probability that a drafted token is accepted once it is tested.
    pub alpha: f64,
    /// Tokens a target pass.
    pub mean_acceptance_length: f64,
    /// Target passes for the answer's tokens.
    pub rounds: f64,
    /// Tokens a second; `None` where the time of such rounds is not known.
    pub tok_s: Option<f64>,
}

/// An answer beside what it would have been.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct WhatIf {
    /// As it was: measured.
    pub was: WhatIfFigures,
    /// As it would have been: predicted.
    pub would: WhatIfFigures,
    /// Drafted tokens whose p and q were stored.
    pub known: u32,
    /// Share of the target's distribution that the stored alternatives cover, the mean: how far to trust another
    /// temperature.
    pub covered: f64,
}

/// What measuring the cost curve tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CostEvent {
    /// It goes on.
    Progress {
        /// Rounds done.
        done: u32,
        /// Rounds in all.
        total: u32,
    },
    /// It is over.
    Finished {
        /// What came out; `None` when it was stopped.
        curve: Option<CostCurve>,
    },
    /// It failed.
    Failed {
        /// The reason.
        error: hunch_error::ErrorInfo,
    },
}
