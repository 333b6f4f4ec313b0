//! Conversations as files: JSON, which can be read back whole, and Markdown, which is for people.

use std::collections::HashMap;
use std::fmt::Write;

use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::Store;
use super::messages::{role_name, state_name};
use super::packed::{pack, unpack};
use crate::api::{AnswerSettings, Conversation, ExportWords, MessageState, Role, StoredMessage};
use crate::error::{Error, Result};
use crate::event::GenerationEvent;

/// What the file says it is.
const FORMAT: &str = "hunch-conversation";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct ConversationFile {
    format: String,
    version: u32,
    title: String,
    #[serde(default)]
    system: String,
    created_ms: i64,
    updated_ms: i64,
    #[serde(default)]
    leaf: Option<i64>,
    messages: Vec<MessageRecord>,
}

#[derive(Serialize, Deserialize)]
struct MessageRecord {
    /// A number of its own, inside this file.
    id: i64,
    #[serde(default)]
    parent: Option<i64>,
    role: Role,
    content: String,
    created_ms: i64,
    #[serde(default)]
    state: MessageState,
    #[serde(default)]
    settings: Option<AnswerSettings>,
    #[serde(default)]
    events: Vec<GenerationEvent>,
}

/// The events of an answer, packed; `None` for a question. Takes them out of the record.
fn packed_events(message: &mut MessageRecord) -> Result<Option<Vec<u8>>> {
    let events = std::mem::take(&mut message.events);
    if message.role == Role::User {
        return Ok(None);
    }
    let packed = pack(&events)?;
    drop(events);
    // What cannot be read back is better refused now: a number too large for its place, say.
    unpack::<Vec<GenerationEvent>>(&packed).map_err(|_| {
        Error::invalid(format!(
            "The answer {} has numbers that cannot be kept. Nothing was added.",
            message.id
        ))
    })?;
    Ok(Some(packed))
}

impl Store {
    /// A conversation as JSON, with all branches, settings and events.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn export_json(&self, id: i64) -> Result<String> {
        let Conversation { entry, system, leaf, messages } = self.conversation(id)?;
        let record = |m: StoredMessage| {
            let events = if m.role == Role::Assistant { self.events(m.id)? } else { Vec::new() };
            let StoredMessage { id, parent, role, content, created_ms, state, settings } = m;
            Ok(MessageRecord { id, parent, role, content, created_ms, state, settings, events })
        };
        let file = ConversationFile {
            format: FORMAT.into(),
            version: VERSION,
            title: entry.title,
            system,
            created_ms: entry.created_ms,
            updated_ms: entry.updated_ms,
            leaf,
            messages: messages.into_iter().map(record).collect::<Result<_>>()?,
        };
        serde_json::to_string(&file).map_err(|e| Error::Internal(e.to_string()))
    }

    /// The branch of a conversation that is read, as Markdown, with `words` over its parts.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn export_markdown(&self, id: i64, words: &ExportWords) -> Result<String> {
        let conversation = self.conversation(id)?;
        let title = &conversation.entry.title;
        let mut out = format!("# {}\n", if title.is_empty() { &words.untitled } else { title });
        if !conversation.system.trim().is_empty() {
            let _ = write!(out, "\n> {}\n", conversation.system.trim().replace('\n', "\n> "));
        }
        for message in conversation.branch() {
            let who = match &message.settings {
                Some(settings) => format!("{} ({})", settings.target, settings.method),
                None if message.role == Role::User => words.question.clone(),
                None => words.answer.clone(),
            };
            let _ = write!(out, "\n## {who}\n\n{}\n", message.content.trim_end());
        }
        Ok(out)
    }

    /// Adds a conversation from a file that [`export_json`](Self::export_json) wrote. Gives its number.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when it is no such file or contradicts itself; nothing was added then.
    pub fn import_json(&self, text: &str) -> Result<i64> {
        let unreadable = |e: serde_json::Error| {
            Error::invalid(format!(
                "This is not a conversation that Hunch has exported ({e}). Nothing was added."
            ))
        };
        let mut file: ConversationFile = serde_json::from_str(text).map_err(unreadable)?;
        if file.format != FORMAT || file.version != VERSION {
            return Err(Error::invalid(format!(
                "The file says it is \"{}\" version {}; this Hunch reads \"{FORMAT}\" version {VERSION}. Nothing was \
                 added.",
                file.format, file.version
            )));
        }
        // Packed before the file is locked: it takes longer than writing.
        let packed: Vec<Option<Vec<u8>>> =
            file.messages.iter_mut().map(packed_events).collect::<Result<_>>()?;
        self.write(|transaction| {
            transaction.execute(
                "INSERT INTO conversations (title, named, system, created_ms, updated_ms)
                 VALUES (?1, ?1 <> '', ?2, ?3, ?4)",
                params![file.title.trim(), file.system, file.created_ms, file.updated_ms],
            )?;
            let conversation = transaction.last_insert_rowid();
            let mut ids: HashMap<i64, i64> = HashMap::new();
            for (message, events) in file.messages.iter().zip(&packed) {
                // Parents stand before their children, so there is no circle.
                let parent = message.parent.map(|parent| {
                    ids.get(&parent).copied().ok_or_else(|| {
                        Error::invalid(format!(
                            "Message {} follows message {parent}, which the file does not have before it. Nothing was added.",
                            message.id
                        ))
                    })
                });
                let state = match message.state {
                    // Nobody goes on writing it.
                    MessageState::Streaming => MessageState::Interrupted,
                    state => state,
                };
                let settings = message.settings.as_ref().and_then(|s| serde_json::to_string(s).ok());
                transaction.execute(
                    "INSERT INTO messages (conversation, parent, role, content, created_ms, state, settings, events)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![
                        conversation,
                        parent.transpose()?,
                        role_name(message.role),
                        message.content,
                        message.created_ms,
                        state_name(state),
                        settings,
                        events
                    ],
                )?;
                ids.insert(message.id, transaction.last_insert_rowid());
            }
            let leaf = file.leaf.and_then(|leaf| ids.get(&leaf));
            transaction
                .execute("UPDATE conversations SET leaf = ?2 WHERE id = ?1", params![conversation, leaf])?;
            Ok(conversation)
        })
    }
}
