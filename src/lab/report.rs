//! Types of the lab, the same over the wire and in the terminal.

use hunch_core::pass_cost::CostCurve;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;

/// Source of a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LabSource {
    /// Before token number `token` of an answer in the store, by the loaded models.
    Answer {
        /// Message of the answer.
        #[ts(type = "number")]
        message: i64,
        /// Number of the token, from 0.
        token: u32,
    },
    /// After a text, by the loaded models.
    Text {
        /// The text, without a chat template.
        text: String,
    },
    /// Example logits over some words, without models.
    Toy,
}

/// Request for a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRequest {
    /// Source of the position.
    pub source: LabSource,
    /// Sampling parameters of both distributions.
    pub sampling: SamplingParams,
}

/// A listed token of a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabToken {
    /// Token id.
    pub id: TokenId,
    /// Text of the token.
    pub text: String,
    /// p: the target's probability.
    pub p: f64,
    /// q: the draft model's probability.
    pub q: f64,
    /// min(p, q): probability of being drafted and accepted.
    pub overlap: f64,
    /// max(0, p - q) / (1 - beta): probability under the residual distribution.
    pub residual: f64,
    /// overlap + (1 - beta) * residual, which is p.
    pub total: f64,
}

/// Sums over all tokens that are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRest {
    /// Number of tokens with p or q above 0.
    pub tokens: u32,
    /// Sum of p.
    pub p: f64,
    /// Sum of q.
    pub q: f64,
    /// Sum of min(p, q).
    pub overlap: f64,
    /// Sum of the residual distribution.
    pub residual: f64,
}

/// Both distributions at a position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabPosition {
    /// Id of the distributions for later requests. Only the last few are kept.
    pub id: u32,
    /// Source of the position.
    pub source: LabSource,
    /// Name of the target. `None` for example distributions.
    pub target: Option<String>,
    /// Name of the draft model. `None` if a head computed q.
    pub draft: Option<String>,
    /// Drafter that computed q, the draft model or a head. `None` for example distributions.
    pub drafter: Option<Method>,
    /// Sampling parameters of the distributions.
    pub sampling: SamplingParams,
    /// End of the text before the position.
    pub before: String,
    /// Token at the position, if the answer continues.
    pub drawn: Option<TokenId>,
    /// The most likely tokens by max(p, q), at most 24.
    pub tokens: Vec<LabToken>,
    /// All other tokens.
    pub rest: LabRest,
    /// beta, the sum of min(p, q): the probability that a drafted token is accepted.
    pub acceptance: f64,
    /// 1 - beta: the probability of a rejection.
    pub rejection: f64,
}

/// Request for more rounds at a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRoundsRequest {
    /// Id of the position.
    pub position: u32,
    /// Acceptance rule.
    pub rule: AcceptanceRule,
    /// Number of rounds, up to 10,000.
    pub rounds: u32,
    /// Discards earlier rounds if true.
    pub restart: bool,
}

/// One round at a position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRound {
    /// Token drawn from q.
    pub drafted: TokenId,
    /// p of the drafted token.
    pub p: f64,
    /// q of the drafted token.
    pub q: f64,
    /// Random number of the test, if the rule draws one.
    pub u: Option<f64>,
    /// Acceptance threshold of `u`.
    pub threshold: Option<f64>,
    /// True if the drafted token was accepted.
    pub accepted: bool,
    /// Emitted token.
    pub emitted: TokenId,
}

/// Results of all rounds under one rule at one position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRounds {
    /// Id of the position.
    pub position: u32,
    /// Acceptance rule.
    pub rule: AcceptanceRule,
    /// Number of rounds.
    pub rounds: u32,
    /// Number of accepted drafts.
    pub accepted: u32,
    /// Emissions of each listed token.
    pub counts: Vec<u32>,
    /// Emissions of all other tokens.
    pub rest: u32,
    /// Pearson's statistic against p.
    pub chi_square: f64,
    /// Degrees of freedom of the statistic.
    pub degrees: u32,
    /// Probability of a statistic this large if the distribution is p.
    pub p_value: f64,
    /// True if the p-value is below one in a million: the rule does not follow p.
    pub refuted: bool,
    /// Total variation: half the sum of |share - p|.
    pub total_variation: f64,
    /// Total variation expected by chance after this many rounds (predicted).
    pub expected_variation: f64,
    /// The last round, if a single one was requested.
    pub last: Option<LabRound>,
}

/// Acceptance probabilities of the rules on the same logits at one temperature.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabRuleRow {
    /// Temperature of both distributions.
    pub temperature: f64,
    /// Rejection sampling: sum of min(p, q).
    pub lossless: f64,
    /// Rejection sampling of a greedy draft: p(argmax q).
    pub argmax: f64,
    /// A sampled draft, accepted if the target samples the same token: sum of p q.
    pub matching: f64,
    /// Typical acceptance of a sampled draft, which changes the distribution.
    pub typical: f64,
    /// Lenience, which changes the distribution.
    pub lenience: f64,
}

/// Machine whose costs a landscape uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LabMachine {
    /// This machine, as last measured with the loaded models.
    Measured {
        /// The drafter, see [`Method::drafter`]. `None` for the draft model, or without one for another that was
        /// measured.
        #[serde(default)]
        drafter: Option<Method>,
    },
    /// Assumed costs.
    MadeUp {
        /// c: a drafted token, in target passes of one row.
        draft_cost: f64,
        /// Cost that each further row adds to a target pass, in passes of one row.
        row_cost: f64,
    },
}

/// Kind of the drafts of a landscape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LabDraft {
    /// A chain by a model or a head.
    Chain,
    /// A tree by a model or a head: a pass for each level.
    Tree {
        /// Acceptance of a sibling as a share of that of the sibling before it, 0 to 1.
        siblings: f64,
    },
    /// A chain that is looked up, which costs nothing.
    Lookup,
}

/// Kind of the drafts of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DraftKind {
    /// A chain by a model or a head.
    Chain,
    /// A tree by a model or a head.
    Tree,
    /// A draft without a model.
    Lookup,
    /// Drafts of several drafters, which no single cost describes.
    Mixed,
}

/// Predicted speedup over alpha and K.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Landscape {
    /// Rows of the widest pass that was measured here. Costs of wider ones are extrapolated. `None` if costs are
    /// assumed.
    pub measured_rows: Option<u32>,
    /// Conversations that share every pass, 1 or more.
    pub batch: u32,
    /// Kind of the drafts.
    pub draft: LabDraft,
    /// Drafter whose measured costs these are. `None` for assumed costs and for lookups.
    pub drafter: Option<Method>,
    /// c: a drafted token, in target passes of one row.
    pub draft_cost: f64,
    /// c hat: operations per row of a draft pass, relative to the target. `None` if the weights of the models were not
    /// counted.
    pub operations_ratio: Option<f64>,
    /// t(M) / t(1) by rows M = 1, 2, ...
    pub target_cost: Vec<f64>,
    /// Acceptance probabilities, ascending.
    pub alphas: Vec<f64>,
    /// Draft lengths K: 1, 2, ...
    pub depths: Vec<u32>,
    /// Predicted speedup: a row per alpha, a column per draft length.
    pub speedup: Vec<Vec<f64>>,
    /// Expected tokens of a round, in the same places. One of them is not drafted.
    pub tokens: Vec<Vec<f64>>,
    /// Cost of a round of the whole batch in target passes of one row, in the same places.
    pub round_cost: Vec<Vec<f64>>,
    /// Arithmetic operations per token, as a multiple of plain decoding, in the same places. `None` without
    /// `operations_ratio`.
    pub operations: Option<Vec<Vec<f64>>>,
    /// Best draft length per alpha. 0 where drafting never pays.
    pub best: Vec<u32>,
    /// Alpha from which drafting pays, per draft length. `None` where it never does.
    pub break_even: Vec<Option<f64>>,
}

/// Figures of an answer's own generation, without the part it shares with an answer it continues.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct SessionFigures {
    /// Drafting method.
    pub method: Method,
    /// Kind of its drafts.
    pub draft: DraftKind,
    /// Drafter of a chain or a tree, see [`Method::drafter`].
    pub drafter: Option<Method>,
    /// Accepted share of the first drafts that were tested at a position.
    pub alpha: f64,
    /// Accepted share of their next siblings, as a share of alpha. `None` if none was tested.
    pub siblings: Option<f64>,
    /// Mean tokens drafted per drafting round.
    pub depth: f64,
    /// Tokens generated.
    pub tokens: u32,
    /// Tokens per target pass.
    pub mean_acceptance_length: f64,
}

/// A stored answer as a point in the landscape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabSession {
    /// Message of the answer.
    #[ts(type = "number")]
    pub message: i64,
    /// Conversation of the answer.
    #[ts(type = "number")]
    pub conversation: i64,
    /// Title of the conversation.
    pub title: String,
    /// Its figures.
    #[serde(flatten)]
    #[ts(flatten)]
    pub figures: SessionFigures,
}

/// Request to simulate a server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabServingRequest {
    /// Machine of the server.
    pub machine: LabMachine,
    /// Kind of the drafts. Trees are served as chains.
    pub draft: LabDraft,
    /// Probability that a drafted token is accepted.
    pub alpha: f64,
    /// Most requests that share a pass.
    pub max_batch: u32,
}

/// Choice of the draft length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DraftLength {
    /// Always the same; 0 is plain decoding.
    Fixed(u32),
    /// The length with the largest predicted speedup at the batch of each pass, 0 included.
    Best,
}

/// Simulated answers with one draft length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct SimulatedAnswers {
    /// Choice of the draft length.
    pub draft_length: DraftLength,
    /// Mean time from arrival to the last token, in target passes of one row.
    pub latency: f64,
    /// Latency of plain decoding at the same load over this one.
    pub speedup: f64,
    /// Mean requests in a pass.
    pub batch: f64,
    /// Mean drafted tokens of a request in a pass.
    pub depth: f64,
    /// Rows of the widest target pass.
    pub widest: u32,
}

/// Simulated answers at one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ServedLoad {
    /// Arrivals as a share of what the server can answer without drafting.
    pub load: f64,
    /// One for each simulated draft length, plain decoding first.
    pub served: Vec<SimulatedAnswers>,
}

/// A simulated server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LabServing {
    /// Tokens of an answer.
    pub tokens: u32,
    /// Rows of the widest pass that was measured here. `None` if costs are assumed.
    pub measured_rows: Option<u32>,
    /// Answers by load, ascending.
    pub loads: Vec<ServedLoad>,
}

/// Acceptance of a group of drafted tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AcceptanceBin {
    /// Key of the group: a position from 0, a kind, or a range.
    pub key: String,
    /// Number of tested drafts.
    pub tested: u32,
    /// Number of accepted drafts.
    pub accepted: u32,
    /// accepted / tested.
    pub share: f64,
    /// Lower end of the 95% confidence interval of the share (Wilson).
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Expected share: mean of min(1, p / q), or of p for certain drafts.
    pub expected: f64,
    /// Mean probability q of the drafts, if they have one.
    pub confidence: Option<f64>,
}

/// Acceptance statistics of stored answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct AcceptanceMap {
    /// Number of answers with drafts.
    pub answers: u32,
    /// Number of tested drafts.
    pub tested: u32,
    /// Groups by position in the draft, from 0.
    pub by_position: Vec<AcceptanceBin>,
    /// Groups by kind of token: `word`, `part` (of a word), `space`, `number`, `punctuation`, `code`.
    pub by_kind: Vec<AcceptanceBin>,
    /// Groups by entropy of the target in bits. The key is a range such as `0.5-1`.
    pub by_entropy: Vec<AcceptanceBin>,
    /// Groups by the draft's probability q. The key is a range such as `0.8-0.9`.
    pub by_confidence: Vec<AcceptanceBin>,
}

/// Request to predict a stored answer with other settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct WhatIfRequest {
    /// Message of the answer.
    #[ts(type = "number")]
    pub message: i64,
    /// Most tokens drafted per round, over all branches of a tree.
    pub max_draft: u32,
    /// Temperature. `None` for the answer's own.
    pub temperature: Option<f32>,
}

/// Figures of an answer, measured or predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct WhatIfFigures {
    /// Probability that a draft of a tested position is accepted. Siblings are one position.
    pub alpha: f64,
    /// Tokens per target pass.
    pub mean_acceptance_length: f64,
    /// Number of target passes.
    pub rounds: f64,
    /// Tokens per second. `None` if the time of such rounds is unknown.
    pub tok_s: Option<f64>,
}

/// An answer as it was and as it would have been with other settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct WhatIf {
    /// Measured figures.
    pub was: WhatIfFigures,
    /// Predicted figures with the other settings.
    pub would: WhatIfFigures,
    /// Number of drafts with stored p and q.
    pub known: u32,
    /// Drafts of the answer were trees, and the prediction is for trees.
    pub tree: bool,
    /// Mean share of the target's distribution covered by the stored alternatives. Predictions for another
    /// temperature are less reliable where it is low.
    pub covered: f64,
}

/// Events of a cost curve measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CostEvent {
    /// A round begins.
    Progress {
        /// Rounds done.
        done: u32,
        /// Rounds in all.
        total: u32,
    },
    /// The measurement ended.
    Finished {
        /// The curve. `None` when it was stopped.
        curve: Option<Box<CostCurve>>,
    },
    /// The measurement failed.
    Failed {
        /// The reason.
        error: hunch_error::ErrorInfo,
    },
}
