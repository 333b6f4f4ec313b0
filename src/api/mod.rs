//! The wire: what the window and the engine say to each other. Types only, and one list of
//! commands; `ui/src/lib/ipc/schema.gen.ts` is written from here and a test keeps it current.

mod conversation;
mod files;
pub mod schema;

use hunch_library::types::{LoadRequest, ModelEntry};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::event::GenerationEvent;
pub use conversation::{
    AnswerRequest, AnswerSettings, Answering, Asking, Conversation, ConversationEntry, ExportFormat,
    ExportWords, MessageState, SearchHit, StoredMessage,
};
pub use files::{OpenKind, SaveKind, SavePlace};
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_error::ErrorInfo;

/// The models in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LoadedModels {
    /// The target.
    pub target: ModelEntry,
    /// The draft model, if one is loaded.
    pub draft: Option<ModelEntry>,
    /// Most tokens of a conversation.
    pub context: u32,
    /// "cpu" or "metal".
    pub device: String,
    /// Methods that can be used now.
    pub methods: Vec<Method>,
    /// What a person should know of the target's chat template, as that a built-in one takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub template_note: Option<String>,
}

/// What the window asks once at the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AppInfo {
    /// Hunch's version.
    pub version: String,
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads the engine uses.
    pub threads: u32,
    /// Folder where models are looked for.
    pub models_folder: String,
    /// What is loaded now.
    pub loaded: Option<LoadedModels>,
    /// Models that ended the program while they were loaded. They are not loaded unasked.
    pub unfinished_load: Option<LoadRequest>,
    /// What is wrong with the file of conversations, if anything is.
    pub store_problem: Option<StoreProblem>,
    /// Bytes of the file of conversations; none where there is none.
    #[ts(type = "number | null")]
    pub store_bytes: Option<u64>,
    /// Sampling parameters a new conversation starts with.
    pub default_sampling: SamplingParams,
    /// Allowed range of each numeric setting.
    pub ranges: Vec<ParameterRange>,
}

/// What is wrong with the file of conversations, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct StoreProblem {
    /// What happened.
    pub error: ErrorInfo,
    /// Whether conversations are in memory only, and gone when the window closes.
    pub in_memory: bool,
    /// Whether the person chose to go on like that. Until then no question is taken.
    pub accepted: bool,
    /// Whether the file can be set aside: no other program uses it.
    pub replaceable: bool,
    /// Copies that can be restored, newest first.
    pub copies: Vec<StoreCopy>,
}

/// A copy of the file of conversations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct StoreCopy {
    /// Name of its file.
    pub name: String,
    /// When it was made, in milliseconds since 1970.
    #[ts(type = "number")]
    pub made_ms: i64,
    /// Its size in bytes.
    #[ts(type = "number")]
    pub bytes: u64,
}

/// What a person chooses to do about a [`StoreProblem`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StoreRemedy {
    /// Opens the file once more.
    Retry,
    /// Sets the file aside and puts a copy in its place.
    Restore {
        /// Name of the copy.
        copy: String,
    },
    /// Sets the file aside and begins a new one.
    StartAnew,
    /// Goes on with conversations that are gone when the window closes.
    GoWithout,
}

/// Allowed values of a numeric setting, both ends included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ParameterRange {
    /// The setting's field name, as `temperature`.
    pub name: String,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

/// Events on the channel, several at a time. `seq` of a message is the number of the first event
/// in it, so a reader sees a gap and asks for what it missed: a snapshot is a message too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct StreamMessage {
    /// The generation.
    pub generation_id: u32,
    /// Number of the first event, from 0.
    pub seq: u32,
    /// The events, in order; empty only in a snapshot when there is nothing new.
    pub events: Vec<GenerationEvent>,
}

/// Events of a measurement, several at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct MeasurementMessage<E> {
    /// The measurement.
    pub id: u32,
    /// Number of the first event, from 0.
    pub seq: u32,
    /// The events, in order.
    pub events: Vec<E>,
}
