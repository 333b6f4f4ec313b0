//! Wire types of conversations and answers.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::Attachment;
use crate::event::GenerationEvent;
use hunch_core::chat::{Role, Thinking};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;

/// A conversation in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ConversationEntry {
    /// Number of the conversation.
    pub id: i64,
    /// Title; empty if the conversation has no text to make a title of. The window then shows a name of its own.
    pub title: String,
    /// True if the conversation stays at the top of the list.
    pub pinned: bool,
    /// Time of creation, in milliseconds since 1970.
    pub created_ms: i64,
    /// Time of the last message, in milliseconds since 1970.
    pub updated_ms: i64,
}

/// State of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MessageState {
    /// Complete.
    #[default]
    Complete,
    /// Still being generated.
    Streaming,
    /// Cut off because the program ended.
    Interrupted,
    /// Ended by an error.
    Failed,
}

/// Settings of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AnswerSettings {
    /// Drafting method.
    pub method: Method,
    /// Most tokens to draft in a round: 1 to 15, or "auto" to choose by measurement.
    pub max_draft: MaxDraft,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Rule that accepts or rejects drafted tokens.
    #[serde(default)]
    pub rule: AcceptanceRule,
    /// Strings that end the answer.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Reasoning before the answer. Absent to leave it to the model's chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub thinking: Option<Thinking>,
    /// Options of single methods.
    #[serde(default, skip_serializing_if = "MethodOptions::is_default")]
    #[ts(as = "Option<MethodOptions>", optional)]
    pub options: MethodOptions,
    /// Name of the target model. The engine fills it in.
    #[serde(default)]
    pub target: String,
    /// Name of the draft model, if one was loaded. The engine fills it in.
    #[serde(default)]
    pub draft: Option<String>,
    /// Address of the server that answered with the target; absent for loaded models. The engine fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub server: Option<String>,
}

impl Default for AnswerSettings {
    fn default() -> Self {
        Self {
            method: Method::Auto,
            max_draft: MaxDraft::Auto,
            max_tokens: 4096,
            sampling: SamplingParams::default(),
            rule: AcceptanceRule::default(),
            stop: Vec::new(),
            thinking: None,
            options: MethodOptions::default(),
            target: String::new(),
            draft: None,
            server: None,
        }
    }
}

/// The answerer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AnsweredBy {
    /// The loaded models.
    #[default]
    Loaded,
    /// A server of the list.
    Server {
        /// Address of the server's API.
        address: String,
        /// Model of the server.
        model: String,
    },
}

/// A message of a conversation. Messages form a tree by their parents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct StoredMessage {
    /// Number of the message.
    pub id: i64,
    /// Message that this one follows; `None` at the start of the conversation.
    pub parent: Option<i64>,
    /// Author: the user or the model.
    pub role: Role,
    /// Text.
    pub content: String,
    /// Files of a question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[ts(as = "Option<Vec<Attachment>>", optional)]
    pub attachments: Vec<Attachment>,
    /// Time of creation, in milliseconds since 1970.
    pub created_ms: i64,
    /// State.
    pub state: MessageState,
    /// Settings, for an answer.
    pub settings: Option<AnswerSettings>,
}

/// A conversation with all its branches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Conversation {
    /// Entry in the list.
    pub entry: ConversationEntry,
    /// System prompt; empty for none.
    pub system: String,
    /// Last message of the selected branch; `None` for the newest message.
    pub leaf: Option<i64>,
    /// Every message, oldest first.
    pub messages: Vec<StoredMessage>,
}

impl Conversation {
    /// Returns the selected branch: the messages from the first to [`leaf`](Self::leaf).
    pub fn branch(&self) -> Vec<&StoredMessage> {
        let newest = || self.messages.last().map(|message| message.id);
        self.path_to(self.leaf.or_else(newest))
    }

    /// Returns the messages from the first to `leaf`.
    pub fn path_to(&self, leaf: Option<i64>) -> Vec<&StoredMessage> {
        let find = |id: i64| self.messages.iter().find(|message| message.id == id);
        let up = std::iter::successors(leaf.and_then(find), |message| message.parent.and_then(find));
        // A damaged store could hold a cycle of parents. The limit ends the walk.
        let mut path: Vec<_> = up.take(self.messages.len()).collect();
        path.reverse();
        path
    }
}

/// A search result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct SearchHit {
    /// Number of the conversation.
    pub conversation: i64,
    /// Title; empty as in [`ConversationEntry`].
    pub title: String,
    /// Number of the message; `None` if the title matched.
    pub message: Option<i64>,
    /// Text around the match. U+E000 and U+E001 enclose the match.
    pub excerpt: String,
}

/// The part of a conversation to answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Asking {
    /// A new question after `parent`. The parent of an older question makes it an edit of that question.
    Question {
        /// Message to follow; `None` at the start of the conversation.
        parent: Option<i64>,
        /// Text of the question.
        text: String,
        /// Files of the question.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[ts(as = "Option<Vec<Attachment>>", optional)]
        attachments: Vec<Attachment>,
    },
    /// Another answer to an earlier question.
    Again {
        /// Number of the question.
        question: i64,
    },
    /// Continuation of an answer from its end, or from one of its tokens.
    Continue {
        /// Number of the answer.
        answer: i64,
        /// Tokens to keep; `None` keeps all.
        tokens: Option<u32>,
        /// Token to append first: one of the alternatives reported at that position.
        #[serde(default)]
        then: Option<TokenId>,
    },
}

/// A request for an answer in a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct AnswerRequest {
    /// Number of the conversation; `None` starts a new one.
    pub conversation: Option<i64>,
    /// The part of a conversation to answer.
    pub asking: Asking,
    /// Settings of the answer.
    pub settings: AnswerSettings,
    /// The answerer.
    #[serde(default)]
    #[ts(as = "Option<AnsweredBy>", optional)]
    pub by: AnsweredBy,
}

/// An answer that has started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Answering {
    /// Number of the conversation.
    pub conversation: i64,
    /// Number of the question.
    pub question: i64,
    /// Number of the answer.
    pub answer: i64,
    /// Number of the generation that sends events over the channel.
    pub generation_id: u32,
    /// Events of the tokens that a continued answer keeps.
    pub prefix: Vec<GenerationEvent>,
}

/// File format of an exported conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// The selected branch as text.
    Markdown,
    /// Everything, for a later import.
    Json,
}

/// Headings of an exported Markdown file, in the language of the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ExportWords {
    /// Heading of a conversation without a title.
    pub untitled: String,
    /// Heading of a question.
    pub question: String,
    /// Heading of an answer whose model is unknown.
    pub answer: String,
}
