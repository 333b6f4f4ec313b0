//! Export and import of conversations: JSON, which is complete, and Markdown, for people.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::io::{BufReader, Read};

use rusqlite::params;
use serde::de::{self, SeqAccess, Visitor};
use serde::ser::{self, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Store;
use super::messages::{packed_attachments, role_name, state_name};
use super::packed::{Packer, json, pack, read_json};
use crate::api::{
    AnswerSettings, Attachment, Conversation, ExportWords, MessageState, StoredMessage, with_attachments,
};
use crate::event::GenerationEvent;
use hunch_core::chat::Role;
use hunch_error::{Error, Refusal};

use super::{Result, StoreError};

/// Value of the field `format`.
const FORMAT: &str = "hunch-conversation";
const VERSION: u32 = 1;

/// The JSON of a file. `M` is the list of messages: [`StoredMessages`] to write, records with packed events when read.
#[derive(Serialize, Deserialize)]
struct ConversationFile<M> {
    format: String,
    version: u32,
    title: String,
    #[serde(default)]
    system: String,
    created_ms: i64,
    updated_ms: i64,
    #[serde(default)]
    leaf: Option<i64>,
    messages: M,
}

#[derive(Serialize, Deserialize)]
struct MessageRecord<E> {
    /// Id within this file.
    id: i64,
    #[serde(default)]
    parent: Option<i64>,
    role: Role,
    content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Attachment>,
    created_ms: i64,
    #[serde(default)]
    state: MessageState,
    #[serde(default)]
    settings: Option<AnswerSettings>,
    #[serde(default)]
    events: E,
}

/// Messages to export. Their events are read from the store one answer at a time.
struct StoredMessages<'a> {
    store: &'a Store,
    messages: Vec<StoredMessage>,
    /// Error of the store, which the serializer would turn into text.
    failure: &'a Cell<Option<Error>>,
}

impl Serialize for StoredMessages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.messages.len()))?;
        for message in &self.messages {
            let StoredMessage { id, parent, role, content, attachments, created_ms, state, settings } =
                message.clone();
            let events = if role == Role::Assistant { self.store.events(id) } else { Ok(Vec::new()) };
            let events = events.map_err(|error| {
                self.failure.set(Some(error.into()));
                ser::Error::custom("an answer cannot be read")
            })?;
            list.serialize_element(&MessageRecord {
                id,
                parent,
                role,
                content,
                attachments,
                created_ms,
                state,
                settings,
                events,
            })?;
        }
        list.end()
    }
}

/// Imported events, packed one by one. Unpacked, those of a long answer take gigabytes.
#[derive(Default)]
struct PackedEvents(Vec<u8>);

impl<'de> Deserialize<'de> for PackedEvents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = PackedEvents;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PackedEvents, A::Error> {
                let mut packer = Packer::default();
                while let Some(event) = list.next_element::<GenerationEvent>()? {
                    let text = json(&event).map_err(de::Error::custom)?;
                    // For example, a number too large for its type could not be read back.
                    read_json::<GenerationEvent>(&text)
                        .map_err(|_| de::Error::custom("an event has numbers that cannot be kept"))?;
                    packer.add(&text).map_err(de::Error::custom)?;
                }
                packer.finish().map(PackedEvents).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_seq(Events)
    }
}

impl Store {
    /// Exports a conversation as JSON, with all branches, settings and events.
    ///
    /// # Errors
    /// When there is no such conversation, or one of its answers is damaged.
    pub fn export_json(&self, id: i64) -> Result<String> {
        let Conversation { entry, system, leaf, messages } = self.conversation(id)?;
        let failure = Cell::default();
        let file = ConversationFile {
            format: FORMAT.into(),
            version: VERSION,
            title: entry.title,
            system,
            created_ms: entry.created_ms,
            updated_ms: entry.updated_ms,
            leaf,
            messages: StoredMessages { store: self, messages, failure: &failure },
        };
        Ok(serde_json::to_string(&file)
            .map_err(|e| failure.take().unwrap_or(Error::Internal(e.to_string())))?)
    }

    /// Exports the selected branch of a conversation as Markdown. `words` are its headings.
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
                Some(AnswerSettings { target, server: Some(server), .. }) => format!("{target} ({server})"),
                Some(settings) => format!("{} ({})", settings.target, settings.method),
                None if message.role == Role::User => words.question.clone(),
                None => words.answer.clone(),
            };
            let text = with_attachments(&message.content, &message.attachments);
            let _ = write!(out, "\n## {who}\n\n{}\n", text.trim_end());
        }
        Ok(out)
    }

    /// Imports a conversation from the output of [`export_json`](Self::export_json) and returns its id. Needs memory
    /// for the packed events only.
    ///
    /// # Errors
    /// [`Error::Refused`] when the text is no such export or is inconsistent. Nothing is added then.
    pub fn import_json(&self, text: impl Read) -> Result<i64> {
        let not_exported = |detail: String| Error::from(Refusal::NotAConversation { detail });
        let file: ConversationFile<Vec<MessageRecord<PackedEvents>>> =
            serde_json::from_reader(BufReader::new(text)).map_err(|e| not_exported(e.to_string()))?;
        if file.format != FORMAT {
            return Err(not_exported(format!("its format is \"{}\", not \"{FORMAT}\"", file.format)).into());
        }
        if file.version != VERSION {
            let refusal = Refusal::ConversationVersion { version: file.version, readable: VERSION };
            return Err(StoreError(refusal.into()));
        }
        let ConversationFile { title, system, created_ms, updated_ms, leaf, messages, .. } = file;
        let no_events = pack::<[GenerationEvent]>(&[])?;
        self.write(|transaction| {
            transaction.execute(
                "INSERT INTO conversations (title, named, system, created_ms, updated_ms)
                 VALUES (?1, ?1 <> '', ?2, ?3, ?4)",
                params![title.trim(), system, created_ms, updated_ms],
            )?;
            let conversation = transaction.last_insert_rowid();
            let mut ids: HashMap<i64, i64> = HashMap::new();
            for message in &messages {
                // Parents come before their children, so there are no cycles.
                let parent = message.parent.map(|parent| {
                    ids.get(&parent).copied().ok_or_else(|| {
                        not_exported(format!(
                            "message {} follows message {parent}, which the file does not have before it",
                            message.id
                        ))
                    })
                });
                let state = match message.state {
                    // Nobody continues writing it.
                    MessageState::Streaming => MessageState::Interrupted,
                    state => state,
                };
                // Only answers have events.
                let events = match (message.role, &message.events.0) {
                    (Role::User, _) => None,
                    (_, none) if none.is_empty() => Some(&no_events),
                    (_, packed) => Some(packed),
                };
                let settings = message.settings.as_ref().and_then(|s| serde_json::to_string(s).ok());
                transaction.execute(
                    "INSERT INTO messages (conversation, parent, role, content, created_ms, state, settings, events,
                                           attachments)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                    params![
                        conversation,
                        parent.transpose()?,
                        role_name(message.role),
                        message.content,
                        message.created_ms,
                        state_name(state),
                        settings,
                        events,
                        packed_attachments(&message.attachments)?
                    ],
                )?;
                ids.insert(message.id, transaction.last_insert_rowid());
            }
            let leaf = leaf.and_then(|leaf| ids.get(&leaf));
            transaction
                .execute("UPDATE conversations SET leaf = ?2 WHERE id = ?1", params![conversation, leaf])?;
            Ok(conversation)
        })
    }
}
