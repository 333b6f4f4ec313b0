//! The wire of conversations: what the store keeps and what the window asks of it.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::event::GenerationEvent;
use hunch_core::chat::Role;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;

/// A conversation in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ConversationEntry {
    /// Its number.
    #[ts(type = "number")]
    pub id: i64,
    /// What it is called; empty while nothing was said in it, and where what was said gives no title. Whoever
    /// shows it then names it.
    pub title: String,
    /// Whether it stays on top.
    pub pinned: bool,
    /// When it began, in milliseconds since 1970.
    #[ts(type = "number")]
    pub created_ms: i64,
    /// When something was said last.
    #[ts(type = "number")]
    pub updated_ms: i64,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MessageState {
    /// All there.
    #[default]
    Complete,
    /// Being written.
    Streaming,
    /// The program ended while it was being written.
    Interrupted,
    /// It ended with an error.
    Failed,
}

/// What an answer was asked with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AnswerSettings {
    /// How to guess ahead.
    pub method: Method,
    /// Most tokens to draft a round: 1 to 15, or "auto", which measures what pays.
    pub max_draft: MaxDraft,
    /// Most tokens to generate, 1 or more.
    pub max_tokens: u32,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Which drafted tokens stand.
    #[serde(default)]
    pub rule: AcceptanceRule,
    /// Texts that end the answer.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Name of the target; the engine fills it in.
    #[serde(default)]
    pub target: String,
    /// Name of the draft model, if one was loaded; the engine fills it in.
    #[serde(default)]
    pub draft: Option<String>,
}

/// A message of a conversation: a tree by parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct StoredMessage {
    /// Its number.
    #[ts(type = "number")]
    pub id: i64,
    /// The message it follows; `None` for the first ones.
    #[ts(type = "number | null")]
    pub parent: Option<i64>,
    /// The person or the model.
    pub role: Role,
    /// What was said.
    pub content: String,
    /// When it was begun, in milliseconds since 1970.
    #[ts(type = "number")]
    pub created_ms: i64,
    /// Where it stands.
    pub state: MessageState,
    /// What an answer was asked with.
    pub settings: Option<AnswerSettings>,
}

/// A conversation with all of its branches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Conversation {
    /// As it is in the list.
    pub entry: ConversationEntry,
    /// Instructions for the whole conversation; empty for none.
    pub system: String,
    /// The message at whose branch the reader is; `None` for the newest.
    #[ts(type = "number | null")]
    pub leaf: Option<i64>,
    /// Every message, oldest first.
    pub messages: Vec<StoredMessage>,
}

impl Conversation {
    /// The messages from the first one to the reader's leaf.
    pub fn branch(&self) -> Vec<&StoredMessage> {
        let newest = || self.messages.last().map(|message| message.id);
        self.path_to(self.leaf.or_else(newest))
    }

    /// The messages from the first one to this one.
    pub fn path_to(&self, leaf: Option<i64>) -> Vec<&StoredMessage> {
        let find = |id: i64| self.messages.iter().find(|message| message.id == id);
        let up = std::iter::successors(leaf.and_then(find), |message| message.parent.and_then(find));
        // Parents are older than their children, so this ends.
        let mut path: Vec<_> = up.take(self.messages.len()).collect();
        path.reverse();
        path
    }
}

/// Something that a search has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct SearchHit {
    /// The conversation.
    #[ts(type = "number")]
    pub conversation: i64,
    /// What it is called; empty as in [`ConversationEntry`].
    pub title: String,
    /// The message; `None` when the title was found.
    #[ts(type = "number | null")]
    pub message: Option<i64>,
    /// The words around, with what was found between U+E000 and U+E001.
    pub excerpt: String,
}

/// What is to be answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Asking {
    /// Something a person says now, after `parent`. With the parent of an older question it is that question
    /// said differently.
    Question {
        /// The message it follows; `None` at the beginning.
        #[ts(type = "number | null")]
        parent: Option<i64>,
        /// What is said.
        text: String,
    },
    /// A question that was answered before.
    Again {
        /// The question.
        #[ts(type = "number")]
        question: i64,
    },
    /// An answer that goes on where it ended, or after some of its tokens.
    Continue {
        /// The answer.
        #[ts(type = "number")]
        answer: i64,
        /// How many of its tokens are kept; `None` = all.
        tokens: Option<u32>,
        /// The token to put behind them: one that was told as an alternative there.
        #[serde(default)]
        then: Option<TokenId>,
    },
}

/// Asks for an answer in a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AnswerRequest {
    /// The conversation; `None` begins a new one.
    #[ts(type = "number | null")]
    pub conversation: Option<i64>,
    /// What is to be answered.
    pub asking: Asking,
    /// How.
    pub settings: AnswerSettings,
}

/// An answer that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Answering {
    /// The conversation.
    #[ts(type = "number")]
    pub conversation: i64,
    /// The question.
    #[ts(type = "number")]
    pub question: i64,
    /// The answer.
    #[ts(type = "number")]
    pub answer: i64,
    /// The generation whose events the channel brings.
    pub generation_id: u32,
    /// What the answer begins with, when it goes on with another one: events as of a generation.
    pub prefix: Vec<GenerationEvent>,
}

/// How a conversation is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// The branch that is read, for people.
    Markdown,
    /// Everything, to be read back.
    Json,
}

/// What stands over the parts of a conversation that is written for people, in the language of who saves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ExportWords {
    /// Over a conversation without a title.
    pub untitled: String,
    /// Over what the person said.
    pub question: String,
    /// Over an answer of which it is not known what wrote it.
    pub answer: String,
}
