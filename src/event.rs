//! What a running generation tells the outside: the events, and the sink that receives them.
//! The window, the command line and the recorded streams all see exactly these.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::depth::{DepthState, MaxDraft};
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::{GenerationStats, LiveFigures, RoundTiming};
use hunch_core::token::{DraftFate, TokenId, TokenOrigin};
use hunch_error::ErrorInfo;

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string appeared; the text ends before it.
    StopString,
    /// `max_tokens` were generated.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The user stopped it.
    Cancelled,
}

/// A token that might stand in a place: its number, its text on its own, its probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Alternative(pub TokenId, pub String, pub f32);

/// A token as the outside sees it. The texts of all tokens, joined, are the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct TokenEvent {
    /// Vocabulary number.
    pub id: TokenId,
    /// The text this token completes; empty while a character is still incomplete.
    pub text: String,
    /// Where it came from.
    pub origin: TokenOrigin,
    /// Target probability under the distribution it was tested with.
    pub p: f32,
    /// Draft probability; absent for certain proposals and tokens that were not drafted.
    pub q: Option<f32>,
    /// The uniform number it was tested with. Absent for tokens that were not drafted, and under rules that
    /// draw none.
    #[serde(default)]
    pub u: Option<f32>,
    /// What `u` had to be below: min(1, p/q), both without what rejected siblings had ruled out.
    #[serde(default)]
    pub threshold: Option<f32>,
    /// The target's softmax probability at temperature 1 without filters; 0 for a chosen token that was not
    /// among the likeliest, where it is not known.
    pub confidence: f32,
    /// The entropy of that softmax, in nats: how open the position was. Absent in answers kept before it was
    /// told.
    #[serde(default)]
    pub entropy: Option<f32>,
    /// The likeliest tokens of that softmax, likeliest first.
    #[serde(default)]
    pub top: Vec<Alternative>,
    /// The draft model's likeliest tokens for this position; none where no model drafted.
    #[serde(default)]
    pub guesses: Vec<Alternative>,
    /// Round, from 0.
    pub round: u32,
    /// Position inside the round, from 0.
    pub position: u32,
}

/// A drafted token that was rejected, as the outside sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct RejectedEvent {
    /// Vocabulary number.
    pub id: TokenId,
    /// Its text on its own.
    pub text: String,
    /// Target probability when it was tested.
    pub p: f32,
    /// Draft probability; absent for certain proposals.
    pub q: Option<f32>,
    /// The uniform number that rejected it.
    pub u: f32,
    /// Position inside the round of the token that replaced it.
    pub position: u32,
}

/// A drafted token, as a node of what was drafted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftedEvent {
    /// Vocabulary number.
    pub id: TokenId,
    /// Its text on its own.
    pub text: String,
    /// Number of the node it was drafted behind; `None` is the last token before the round.
    pub parent: Option<u32>,
    /// What became of it.
    pub fate: DraftFate,
}

/// One round: a target pass and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct RoundEvent {
    /// Round, from 0.
    pub round: u32,
    /// Tokens drafted.
    pub drafted: u32,
    /// What was drafted, parents before children; of a chain each is the parent of the next. Absent in
    /// answers kept before it was told.
    #[serde(default)]
    pub draft: Vec<DraftedEvent>,
    /// Tokens emitted, in order. May hold tokens of earlier rounds that waited for a stop string.
    pub tokens: Vec<TokenEvent>,
    /// Drafted tokens that were tested and rejected.
    pub rejected: Vec<RejectedEvent>,
    /// Where the time went.
    pub timing: RoundTiming,
    /// What the depth is at, when it is chosen as it goes.
    pub depth: Option<DepthState>,
    /// The figures of the generation so far.
    pub figures: LiveFigures,
}

impl RoundEvent {
    /// A round of nothing but tokens, to hold those that came without one.
    pub fn of_tokens(round: u32, tokens: Vec<TokenEvent>) -> Self {
        Self {
            round,
            drafted: 0,
            draft: Vec::new(),
            tokens,
            rejected: Vec::new(),
            timing: RoundTiming::default(),
            depth: None,
            figures: LiveFigures::default(),
        }
    }
}

impl GenerationEvent {
    /// The tokens it brings, in order.
    pub fn tokens(&self) -> &[TokenEvent] {
        match self {
            Self::Round(round) => &round.tokens,
            Self::Finished { tokens, .. } => tokens,
            _ => &[],
        }
    }
}

/// What a generation tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GenerationEvent {
    /// The request was understood; prefill begins.
    Started {
        /// Identifies the generation.
        generation_id: u32,
        /// The method.
        method: Method,
        /// Name of the target.
        target: String,
        /// Name of the draft model, when the method uses one.
        draft: Option<String>,
        /// "cpu" or "metal".
        device: String,
        /// Tokens in the prompt.
        prompt_tokens: u32,
        /// Messages at the beginning of the conversation that no longer fit and were not read.
        #[serde(default)]
        dropped_messages: u32,
        /// Tokens of context that the target has.
        #[serde(default)]
        context_length: u32,
        /// What a person should know of the model's chat template, as that a built-in one took its place.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[ts(optional)]
        template_note: Option<String>,
        /// Most tokens drafted a round; 0 for plain decoding.
        max_draft: MaxDraft,
        /// Which drafted tokens stand.
        rule: AcceptanceRule,
        /// Seed of its random numbers: with the same request it gives the same answer.
        #[ts(type = "number")]
        seed: u64,
    },
    /// Prefill goes on.
    Prefill {
        /// Prompt tokens processed.
        done: u32,
        /// Prompt tokens in all.
        total: u32,
    },
    /// A method failed and is left out for the rest of the answer, which goes on without its drafts.
    DraftDropped {
        /// The method; of a cascade the one that failed.
        method: Method,
        /// Why.
        error: ErrorInfo,
    },
    /// A round ended.
    Round(RoundEvent),
    /// The generation ended well.
    Finished {
        /// Why.
        stop: StopReason,
        /// Tokens still held back when it ended (they waited for a stop string that never came).
        tokens: Vec<TokenEvent>,
        /// All figures.
        stats: GenerationStats,
    },
    /// The generation failed; what was emitted stays valid.
    Failed {
        /// The reason.
        error: ErrorInfo,
    },
    /// The answer cannot be written to the store at present; the generation goes on, and so do the tries.
    /// Told once, at the first refusal, also after the end. Never part of what is stored.
    NotKept {
        /// The store's reason.
        error: ErrorInfo,
    },
    /// Everything of the answer so far is written again, after [`NotKept`](Self::NotKept).
    Kept,
    /// The answer could not be written to the store and no further attempt follows. Sent after the last event, after
    /// [`NotKept`](Self::NotKept). Never part of what is stored.
    GivenUp {
        /// The store's last reason.
        error: ErrorInfo,
    },
}

/// Receives the events of one generation, in order, on the engine's thread: be quick.
pub trait EventSink: Send {
    /// One event.
    fn send(&mut self, event: GenerationEvent);
}

impl<F: FnMut(GenerationEvent) + Send> EventSink for F {
    fn send(&mut self, event: GenerationEvent) {
        self(event);
    }
}
