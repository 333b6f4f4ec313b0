//! Events of a running generation, and the sink that receives them.
//!
//! The window, the command line and recorded streams all receive the same events.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::depth::{DepthState, MaxDraft};
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::{GenerationStats, LiveFigures, RoundTiming};
use hunch_core::token::{DraftFate, TokenId, TokenOrigin};
use hunch_error::ErrorInfo;

use crate::server_answers::{RemoteAnswer, ServerKind, Speculation, Usage};

/// Reason that a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string appeared. The text ends before it.
    StopString,
    /// The limit `max_tokens` was reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The user stopped the generation.
    Cancelled,
}

/// A candidate token of a position: number in the vocabulary, text and probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Alternative(pub TokenId, pub String, pub f32);

/// A token of the answer. The joined texts of all tokens are the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct TokenEvent {
    /// Vocabulary number.
    pub id: TokenId,
    /// Text that the token completes; empty while a character is incomplete.
    pub text: String,
    /// Origin: the method that drafted it, or the target.
    pub origin: TokenOrigin,
    /// Target probability in the test, after filters and temperature.
    pub p: f32,
    /// Draft probability. Absent for proposals without probabilities and for tokens that were not drafted.
    pub q: Option<f32>,
    /// Uniform random number of the test. Absent for tokens that were not drafted and under rules that draw none.
    #[serde(default)]
    pub u: Option<f32>,
    /// Upper bound of `u` for acceptance: min(1, p/q), after the mass of rejected siblings is removed from both.
    #[serde(default)]
    pub threshold: Option<f32>,
    /// Target probability at temperature 1 without filters. 0 if unknown: the token was not among the most likely.
    pub confidence: f32,
    /// Entropy of the target at temperature 1 without filters, in nats. Absent in answers of older versions.
    #[serde(default)]
    pub entropy: Option<f32>,
    /// Most likely tokens of the target at temperature 1 without filters, in descending order.
    #[serde(default)]
    pub top: Vec<Alternative>,
    /// Most likely tokens of the draft model; empty if no model drafted this position.
    #[serde(default)]
    pub guesses: Vec<Alternative>,
    /// Number of the round, from 0.
    pub round: u32,
    /// Position in the round, from 0.
    pub position: u32,
}

/// A drafted token that was rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct RejectedEvent {
    /// Vocabulary number.
    pub id: TokenId,
    /// Its text on its own.
    pub text: String,
    /// Target probability in the test.
    pub p: f32,
    /// Draft probability. Absent for proposals without probabilities.
    pub q: Option<f32>,
    /// Uniform random number of the test. Absent under rules that draw none.
    pub u: Option<f32>,
    /// Position in the round of the token that replaced it.
    pub position: u32,
}

/// A drafted token, as a node of the draft tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftedEvent {
    /// Vocabulary number.
    pub id: TokenId,
    /// Its text on its own.
    pub text: String,
    /// Index of the parent node; `None` for a child of the last token before the round.
    pub parent: Option<u32>,
    /// Outcome of the test.
    pub fate: DraftFate,
}

/// One round: a draft, a target pass and the tokens it emitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct RoundEvent {
    /// Number of the round, from 0.
    pub round: u32,
    /// Number of drafted tokens.
    pub drafted: u32,
    /// Drafted tokens, parents before children. In a chain each is the parent of the next. Absent in answers of
    /// older versions.
    #[serde(default)]
    pub draft: Vec<DraftedEvent>,
    /// Method of the proposer that drafted them, one of those that the answer's method uses. Absent in rounds without a
    /// draft and in answers of older versions.
    #[serde(default)]
    pub drafted_by: Option<Method>,
    /// Emitted tokens in order. May include tokens of earlier rounds that were held back for a stop string.
    pub tokens: Vec<TokenEvent>,
    /// Drafted tokens that were tested and rejected.
    pub rejected: Vec<RejectedEvent>,
    /// Time spent in each stage.
    pub timing: RoundTiming,
    /// State of the depth controller, if the draft length is automatic.
    pub depth: Option<DepthState>,
    /// Figures of the generation so far.
    pub figures: LiveFigures,
}

impl RoundEvent {
    /// Returns a round that holds only tokens.
    pub fn of_tokens(round: u32, tokens: Vec<TokenEvent>) -> Self {
        Self {
            round,
            drafted: 0,
            draft: Vec::new(),
            drafted_by: None,
            tokens,
            rejected: Vec::new(),
            timing: RoundTiming::default(),
            depth: None,
            figures: LiveFigures::default(),
        }
    }
}

impl TokenEvent {
    /// Returns a piece of a server's answer, which has a text and an origin only.
    pub fn of_server(text: String, origin: TokenOrigin, round: u32) -> Self {
        Self {
            id: 0,
            text,
            origin,
            p: 0.0,
            q: None,
            u: None,
            threshold: None,
            confidence: 0.0,
            entropy: None,
            top: Vec::new(),
            guesses: Vec::new(),
            round,
            position: 0,
        }
    }
}

impl GenerationEvent {
    /// Returns the tokens of the event, in order.
    pub fn tokens(&self) -> &[TokenEvent] {
        match self {
            Self::Round(round) => &round.tokens,
            Self::Finished { tokens, .. } => tokens,
            _ => &[],
        }
    }
}

/// Figures of a server's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct ServerFigures {
    /// From the request to the first text, in milliseconds, measured here. Absent if none came.
    pub first_ms: Option<f64>,
    /// From the request to the end, in milliseconds, measured here.
    pub wall_ms: f64,
    /// Tokens per second after the first text, measured here. Absent if the server counts no tokens.
    pub measured_tok_s: Option<f64>,
    /// Numbers of tokens, as the server counts them.
    pub usage: Option<Usage>,
    /// Speculation, as the server reports it.
    pub speculation: Option<Speculation>,
    /// Mean tokens per pass of the target, from the server's figures.
    pub tokens_per_pass: Option<f64>,
    /// Tokens per second after the prompt, as the server reports them.
    pub reported_tok_s: Option<f64>,
    /// Why it ended, in the server's word.
    pub finish_reason: String,
}

impl ServerFigures {
    /// Returns the figures of a finished answer.
    pub fn of(answer: &RemoteAnswer) -> Self {
        let reported = answer.speculation.zip(answer.usage);
        Self {
            first_ms: Some(answer.first_ms),
            wall_ms: answer.wall_ms,
            measured_tok_s: answer.measured_tok_s(),
            usage: answer.usage,
            speculation: answer.speculation,
            tokens_per_pass: reported.and_then(|(drafts, usage)| drafts.tokens_per_pass(usage.generated)),
            reported_tok_s: answer.reported_tok_s,
            finish_reason: answer.finish_reason.clone(),
        }
    }
}

/// An event of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GenerationEvent {
    /// The request is valid and prefill starts.
    Started {
        /// Number of the generation.
        generation_id: u32,
        /// Drafting method.
        method: Method,
        /// Name of the target.
        target: String,
        /// Name of the draft model, if the method uses one.
        draft: Option<String>,
        /// "cpu" or "metal".
        device: String,
        /// Tokens in the prompt.
        prompt_tokens: u32,
        /// Number of messages at the start of the conversation that were dropped because they did not fit.
        #[serde(default)]
        dropped_messages: u32,
        /// Context length, in tokens.
        #[serde(default)]
        context_length: u32,
        /// Warning about the chat template, such as that a built-in one replaced it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[ts(optional)]
        template_note: Option<String>,
        /// Most tokens drafted per round; 0 for plain decoding.
        max_draft: MaxDraft,
        /// Rule that accepts or rejects drafted tokens.
        rule: AcceptanceRule,
        /// Seed of the random numbers. The same request and seed give the same answer.
        seed: u64,
    },
    /// A server was asked, in place of the loaded models. Its text comes in rounds, a token for each piece.
    ///
    /// Tokens of a server have a text, and an origin if the server reports it. Their other fields are 0 or absent.
    ServerStarted {
        /// Number of the generation.
        generation_id: u32,
        /// Address of the server's API.
        address: String,
        /// Program that the server runs.
        kind: ServerKind,
        /// Model of the server.
        model: String,
        /// Context length in tokens, if the server says so.
        context_length: Option<u64>,
    },
    /// Progress of prefill.
    Prefill {
        /// Prompt tokens processed.
        done: u32,
        /// Prompt tokens in total.
        total: u32,
    },
    /// A method failed. The rest of the answer is generated without its drafts.
    DraftDropped {
        /// Method that failed; in a cascade, the failing stage.
        method: Method,
        /// The error.
        error: ErrorInfo,
    },
    /// A round ended.
    Round(RoundEvent),
    /// The generation ended without an error.
    Finished {
        /// Reason.
        stop: StopReason,
        /// Tokens that were held back for a stop string that did not appear.
        tokens: Vec<TokenEvent>,
        /// Figures of the whole generation.
        stats: GenerationStats,
    },
    /// The answer of a server ended without an error.
    ServerFinished {
        /// Reason.
        stop: StopReason,
        /// Figures of the answer.
        figures: ServerFigures,
    },
    /// The generation failed. The emitted tokens stay valid.
    Failed {
        /// The error.
        error: ErrorInfo,
    },
    /// The store refused the answer. The generation continues, and so do the attempts to store it.
    ///
    /// Sent once, at the first failure, which may follow the end. Never stored itself.
    NotKept {
        /// Error of the store.
        error: ErrorInfo,
    },
    /// The whole answer so far is stored, after [`NotKept`](Self::NotKept).
    Kept,
    /// The answer could not be stored, and no attempt follows.
    ///
    /// Sent after the end and after [`NotKept`](Self::NotKept). Never stored itself.
    GivenUp {
        /// Last error of the store.
        error: ErrorInfo,
    },
}

/// Receives the events of one generation, in order. Runs on the engine's thread, so it must return quickly.
pub trait EventSink: Send {
    /// Receives one event.
    fn send(&mut self, event: GenerationEvent);
}

impl<F: FnMut(GenerationEvent) + Send> EventSink for F {
    fn send(&mut self, event: GenerationEvent) {
        self(event);
    }
}
