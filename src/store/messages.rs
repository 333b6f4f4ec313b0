//! Messages, a tree by parent: asking or answering again makes a branch. An answer is begun, grows by parts, and is
//! finished once.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::packed::{json, pack, read_json, unpack};
use super::{Result, Store};
use crate::api::{AnswerSettings, Attachment, Conversation, MessageState, StoredMessage};
use crate::event::GenerationEvent;
use hunch_core::chat::Role;
use hunch_error::Refusal;

const MESSAGE: &str =
    "SELECT id, parent, role, content, created_ms, state, settings, conversation, attachments FROM messages";

fn message(row: &Row<'_>) -> rusqlite::Result<StoredMessage> {
    let role: String = row.get(2)?;
    let state: String = row.get(5)?;
    let settings: Option<String> = row.get(6)?;
    let attachments: Option<Vec<u8>> = row.get(8)?;
    Ok(StoredMessage {
        id: row.get(0)?,
        parent: row.get(1)?,
        role: if role == "user" { Role::User } else { Role::Assistant },
        content: row.get(3)?,
        // A damaged record must not hide the question.
        attachments: attachments.and_then(|packed| unpack(&packed).ok()).unwrap_or_default(),
        created_ms: row.get(4)?,
        state: match state.as_str() {
            "streaming" => MessageState::Streaming,
            "interrupted" => MessageState::Interrupted,
            "failed" => MessageState::Failed,
            _ => MessageState::Complete,
        },
        // Settings this version cannot read are treated as missing.
        settings: settings.and_then(|text| serde_json::from_str(&text).ok()),
    })
}

/// Returns the stored name of a role. System prompts are stored with the conversation.
pub(super) fn role_name(role: Role) -> &'static str {
    if role == Role::User { "user" } else { "assistant" }
}

pub(super) fn state_name(state: MessageState) -> &'static str {
    match state {
        MessageState::Complete => "complete",
        MessageState::Streaming => "streaming",
        MessageState::Interrupted => "interrupted",
        MessageState::Failed => "failed",
    }
}

/// Packs the files of a question; `None` without any.
pub(super) fn packed_attachments(attachments: &[Attachment]) -> Result<Option<Vec<u8>>> {
    Ok(if attachments.is_empty() { None } else { Some(pack(attachments)?) })
}

/// Columns of a new message.
struct NewMessage<'a> {
    role: Role,
    content: &'a str,
    attachments: Option<Vec<u8>>,
    state: MessageState,
    settings: Option<String>,
}

/// Reference to an answer of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Id of its message.
    pub message: i64,
    /// Id of its conversation.
    pub conversation: i64,
    /// Title of the conversation.
    pub title: String,
}

/// State of a conversation before a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationState {
    conversation: i64,
    updated_ms: i64,
    leaf: Option<i64>,
}

impl Store {
    /// Returns a conversation with all its messages, oldest first.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn conversation(&self, id: i64) -> Result<Conversation> {
        let entry = self.conversation_entry(id)?;
        let connection = self.connection();
        let (system, leaf) =
            connection.query_row("SELECT system, leaf FROM conversations WHERE id = ?1", [id], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let mut statement =
            connection.prepare_cached(&format!("{MESSAGE} WHERE conversation = ?1 ORDER BY id"))?;
        let messages = statement.query_map([id], message)?.collect::<rusqlite::Result<_>>()?;
        Ok(Conversation { entry, system, leaf, messages })
    }

    /// Returns a message and the id of its conversation.
    ///
    /// # Errors
    /// When there is no such message.
    pub fn message(&self, id: i64) -> Result<(i64, StoredMessage)> {
        let connection = self.connection();
        let sql = format!("{MESSAGE} WHERE id = ?1");
        let found = connection.query_row(&sql, [id], |row| Ok((row.get(7)?, message(row)?))).optional()?;
        found.ok_or_else(|| Refusal::NoSuchMessage { id }.into())
    }

    /// Lists the latest answers of one conversation or of all, newest first, without deleted conversations.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn answers(&self, conversation: Option<i64>, most: usize) -> Result<Vec<KeptAnswer>> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "SELECT messages.id, conversations.id, conversations.title FROM messages
             JOIN conversations ON conversations.id = messages.conversation
             WHERE messages.role = 'assistant' AND conversations.deleted_ms IS NULL
               AND (?1 IS NULL OR conversations.id = ?1)
             ORDER BY messages.id DESC LIMIT ?2",
        )?;
        let rows = statement.query_map(params![conversation, most as i64], |row| {
            Ok(KeptAnswer { message: row.get(0)?, conversation: row.get(1)?, title: row.get(2)? })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Adds a question after `parent` and selects its branch.
    ///
    /// # Errors
    /// When the conversation or the parent does not exist.
    pub fn add_question(
        &self,
        conversation: i64,
        parent: Option<i64>,
        content: &str,
        now: i64,
    ) -> Result<i64> {
        self.add_question_with_files(conversation, parent, content, &[], now)
    }

    /// Adds a question with attached files, see [`add_question`](Self::add_question).
    ///
    /// # Errors
    /// When the conversation or the parent does not exist.
    pub fn add_question_with_files(
        &self,
        conversation: i64,
        parent: Option<i64>,
        content: &str,
        attachments: &[Attachment],
        now: i64,
    ) -> Result<i64> {
        let attachments = packed_attachments(attachments)?;
        let question = NewMessage {
            role: Role::User,
            content,
            attachments,
            state: MessageState::Complete,
            settings: None,
        };
        self.add(conversation, parent, &question, now)
    }

    /// Begins an answer to `parent` and selects its branch.
    ///
    /// # Errors
    /// When the conversation or the parent does not exist.
    pub fn begin_answer(
        &self,
        conversation: i64,
        parent: i64,
        settings: &AnswerSettings,
        now: i64,
    ) -> Result<i64> {
        let settings = Some(json(settings)?);
        let (role, state) = (Role::Assistant, MessageState::Streaming);
        let answer = NewMessage { role, content: "", attachments: None, state, settings };
        self.add(conversation, Some(parent), &answer, now)
    }

    fn add(&self, conversation: i64, parent: Option<i64>, message: &NewMessage<'_>, now: i64) -> Result<i64> {
        let NewMessage { role, content, attachments, state, settings } = message;
        self.write(|transaction| {
            if let Some(parent) = parent {
                let sql = "SELECT 1 FROM messages WHERE id = ?1 AND conversation = ?2";
                let there = transaction.query_row(sql, [parent, conversation], |_| Ok(())).optional()?;
                there.ok_or(Refusal::NoSuchMessage { id: parent })?;
            }
            let touched = transaction
                .execute("UPDATE conversations SET updated_ms = ?2 WHERE id = ?1", [conversation, now])?;
            if touched == 0 {
                return Err(Refusal::NoSuchConversation { id: conversation }.into());
            }
            transaction.execute(
                "INSERT INTO messages (conversation, parent, role, content, created_ms, state, settings, attachments)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    conversation,
                    parent,
                    role_name(*role),
                    content,
                    now,
                    state_name(*state),
                    settings,
                    attachments
                ],
            )?;
            let id = transaction.last_insert_rowid();
            transaction.execute("UPDATE conversations SET leaf = ?2 WHERE id = ?1", [conversation, id])?;
            Ok(id)
        })
    }

    /// Appends events to an unfinished answer. They survive a crash.
    ///
    /// # Errors
    /// When there is no such message.
    pub fn append_events(&self, message: i64, events: &[GenerationEvent]) -> Result<()> {
        if events.is_empty() {
            return Ok(());
        }
        self.connection().execute(
            "INSERT INTO answer_parts (message, part, events)
             SELECT ?1, coalesce(max(part), -1) + 1, ?2 FROM answer_parts WHERE message = ?1",
            params![message, json(&events)?],
        )?;
        Ok(())
    }

    /// Finishes an answer: stores its text and all its events.
    ///
    /// # Errors
    /// When there is no such message.
    pub fn finish_answer(&self, message: i64, state: MessageState, now: i64) -> Result<()> {
        // Unpacked and packed outside the lock: only the caller changes an unfinished answer.
        let parts = part_texts(&self.connection(), message)?;
        let packed = whole_answer(&parts)?;
        self.write(|transaction| {
            finish(transaction, message, state, &packed)?;
            transaction.execute(
                "UPDATE conversations SET updated_ms = ?2
                 WHERE id = (SELECT conversation FROM messages WHERE id = ?1)",
                [message, now],
            )?;
            Ok(())
        })
    }

    /// Marks the answers that were unfinished when the program ended as interrupted.
    pub(super) fn interrupt_unfinished(&self) -> Result<()> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        let unfinished: Vec<i64> = {
            let mut statement = transaction.prepare("SELECT id FROM messages WHERE state = 'streaming'")?;
            statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?
        };
        for message in unfinished {
            // An unreadable answer must not affect the others.
            let whole = part_texts(&transaction, message).and_then(|parts| whole_answer(&parts));
            let finished =
                whole.and_then(|whole| finish(&transaction, message, MessageState::Interrupted, &whole));
            if finished.is_err() {
                let sql = "UPDATE messages SET state = 'interrupted' WHERE id = ?1";
                transaction.execute(sql, [message])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// Returns the events of an answer in order. A question has none.
    ///
    /// # Errors
    /// When there is no such message, or its events are damaged.
    pub fn events(&self, message: i64) -> Result<Vec<GenerationEvent>> {
        let connection = self.reader();
        let sql = "SELECT events FROM messages WHERE id = ?1";
        let packed: Option<Vec<u8>> = connection
            .query_row(sql, [message], |row| row.get(0))
            .optional()?
            .ok_or(Refusal::NoSuchMessage { id: message })?;
        match packed {
            Some(packed) => {
                drop(connection);
                Ok(unpack(&packed)?)
            }
            None => {
                let texts = part_texts(&connection, message)?;
                drop(connection);
                parts(&texts)
            }
        }
    }

    /// Returns the state of a conversation, for [`undo_message`](Self::undo_message).
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn conversation_state(&self, conversation: i64) -> Result<ConversationState> {
        let sql = "SELECT updated_ms, leaf FROM conversations WHERE id = ?1";
        let read = |row: &Row<'_>| {
            Ok(ConversationState { conversation, updated_ms: row.get(0)?, leaf: row.get(1)? })
        };
        let found = self.connection().query_row(sql, [conversation], read).optional()?;
        found.ok_or_else(|| Refusal::NoSuchConversation { id: conversation }.into())
    }

    /// Removes a message with all its successors and resets the conversation to the state `before`.
    ///
    /// # Errors
    /// When there is no such message. Nothing has changed then.
    pub fn undo_message(&self, message: i64, before: &ConversationState) -> Result<()> {
        self.write(|transaction| {
            let deleted = transaction.execute(
                "WITH RECURSIVE taken(id) AS (
                     SELECT id FROM messages WHERE id = ?1
                     UNION SELECT m.id FROM messages m JOIN taken ON m.parent = taken.id
                 )
                 DELETE FROM messages WHERE id IN taken",
                [message],
            )?;
            if deleted == 0 {
                return Err(Refusal::NoSuchMessage { id: message }.into());
            }
            transaction.execute(
                "UPDATE conversations SET updated_ms = ?2, leaf = ?3 WHERE id = ?1",
                params![before.conversation, before.updated_ms, before.leaf],
            )?;
            Ok(())
        })
    }

    /// Selects the branch that ends at `leaf`.
    ///
    /// # Errors
    /// When there is no such message.
    pub fn set_leaf(&self, leaf: i64) -> Result<()> {
        let sql =
            "UPDATE conversations SET leaf = ?1 WHERE id = (SELECT conversation FROM messages WHERE id = ?1)";
        match self.connection().execute(sql, [leaf])? {
            0 => Err(Refusal::NoSuchMessage { id: leaf }.into()),
            _ => Ok(()),
        }
    }
}

/// Joins the parts of an answer. Returns its text and its packed events.
fn whole_answer(parts: &[String]) -> Result<(String, Vec<u8>)> {
    // A part this version cannot read must not affect the others.
    let events: Vec<GenerationEvent> =
        parts.iter().filter_map(|text| read_json::<Vec<_>>(text).ok()).flatten().collect();
    let content: String =
        events.iter().flat_map(GenerationEvent::tokens).map(|token| token.text.as_str()).collect();
    Ok((content, pack(&events)?))
}

fn finish(
    connection: &Connection,
    message: i64,
    state: MessageState,
    (content, packed): &(String, Vec<u8>),
) -> Result<()> {
    let changed = connection.execute(
        "UPDATE messages SET state = ?2, content = ?3, events = ?4 WHERE id = ?1 AND state = 'streaming'",
        params![message, state_name(state), content, packed],
    )?;
    if changed == 0 {
        return Err(Refusal::NoSuchMessage { id: message }.into());
    }
    connection.execute("DELETE FROM answer_parts WHERE message = ?1", [message])?;
    Ok(())
}

fn parts(texts: &[String]) -> Result<Vec<GenerationEvent>> {
    let mut events = Vec::new();
    for part in texts {
        events.extend(read_json::<Vec<GenerationEvent>>(part)?);
    }
    Ok(events)
}

fn part_texts(connection: &Connection, message: i64) -> Result<Vec<String>> {
    let mut statement =
        connection.prepare_cached("SELECT events FROM answer_parts WHERE message = ?1 ORDER BY part")?;
    let texts = statement.query_map([message], |row| row.get(0))?;
    Ok(texts.collect::<rusqlite::Result<_>>()?)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::StoreError;
    use super::*;
    use crate::api::ExportWords;
    use crate::event::{Alternative, RoundEvent, StopReason, TokenEvent};
    use hunch_core::method::Method;
    use hunch_core::sample::SamplingParams;
    use hunch_core::stats::{GenerationStats, LiveFigures, RoundTiming};
    use hunch_core::token::TokenOrigin;
    use hunch_error::Error;

    pub(crate) fn settings() -> AnswerSettings {
        AnswerSettings {
            method: Method::Ngram,
            max_tokens: 64,
            sampling: SamplingParams::greedy(),
            target: "Tiny".into(),
            ..AnswerSettings::default()
        }
    }

    pub(in crate::store) fn round(text: &str) -> GenerationEvent {
        let token = TokenEvent {
            id: 7,
            text: text.into(),
            origin: TokenOrigin::Accepted,
            p: 0.5,
            q: Some(0.25),
            u: None,
            threshold: None,
            confidence: 0.5,
            entropy: Some(0.25),
            top: vec![Alternative(7, "a".into(), 0.5)],
            guesses: Vec::new(),
            round: 0,
            position: 0,
        };
        GenerationEvent::Round(RoundEvent {
            round: 0,
            drafted: 1,
            draft: Vec::new(),
            drafted_by: None,
            tokens: vec![token],
            rejected: Vec::new(),
            timing: RoundTiming::default(),
            depth: None,
            figures: LiveFigures::default(),
        })
    }

    pub(in crate::store) fn finished() -> GenerationEvent {
        let stats = GenerationStats { generated_tokens: 2, ..GenerationStats::default() };
        GenerationEvent::Finished { stop: StopReason::EndOfTurn, tokens: Vec::new(), stats }
    }

    #[test]
    fn finished_answer_has_all_its_events() {
        let store = Store::in_memory().unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Hi", 2).unwrap();
        let answer = store.begin_answer(chat, question, &settings(), 3).unwrap();
        store.append_events(answer, &[round("Hel"), round("lo")]).unwrap();
        store.append_events(answer, &[]).unwrap();
        store.append_events(answer, &[finished()]).unwrap();
        assert_eq!(store.events(answer).unwrap().len(), 3);
        store.finish_answer(answer, MessageState::Complete, 9).unwrap();
        let conversation = store.conversation(chat).unwrap();
        assert_eq!((conversation.leaf, conversation.entry.updated_ms), (Some(answer), 9));
        let stored = &conversation.messages[1];
        assert_eq!((stored.content.as_str(), stored.state), ("Hello", MessageState::Complete));
        assert_eq!(stored.settings, Some(settings()));
        assert_eq!(store.events(answer).unwrap(), [round("Hel"), round("lo"), finished()]);
        assert_eq!(store.search("hello").unwrap().len(), 1);
        assert!(store.finish_answer(answer, MessageState::Failed, 9).is_err(), "once");
    }

    #[test]
    fn unfinished_answer_is_interrupted_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Hi", 2).unwrap();
        let answer = store.begin_answer(chat, question, &settings(), 3).unwrap();
        store.append_events(answer, &[round("Hel")]).unwrap();
        // Left unfinished, as by a kill. tests/it/persistence.rs kills real processes.
        store.connection().execute("INSERT INTO answer_parts VALUES (?1, 9, 'not json')", [answer]).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        let (_, stored) = store.message(answer).unwrap();
        assert_eq!((stored.content.as_str(), stored.state), ("Hel", MessageState::Interrupted));
        assert_eq!(store.events(answer).unwrap(), [round("Hel")]);
    }

    #[test]
    fn unreadable_unfinished_answer_does_not_close_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Hi", 2).unwrap();
        let damaged = store.begin_answer(chat, question, &settings(), 3).unwrap();
        let sound = store.begin_answer(chat, question, &settings(), 3).unwrap();
        store.append_events(sound, &[round("Hel")]).unwrap();
        // Invalid UTF-8, as in a damaged page.
        let add = "INSERT INTO answer_parts VALUES (?1, 0, CAST(x'ff22' AS TEXT))";
        store.connection().execute(add, [damaged]).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.message(damaged).unwrap().1.state, MessageState::Interrupted);
        let (_, kept) = store.message(sound).unwrap();
        assert_eq!((kept.content.as_str(), kept.state), ("Hel", MessageState::Interrupted));
    }

    #[test]
    fn deletes_5000_messages_on_one_branch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let store = Store::open(&path).unwrap();
        let chat = store.create_conversation(1).unwrap();
        let mut parent = store.add_question(chat, None, "first", 1).unwrap();
        let state = store.conversation_state(chat).unwrap();
        let second = store.add_question(chat, Some(parent), "second", 1).unwrap();
        parent = second;
        for number in 2..5000 {
            parent = store.add_question(chat, Some(parent), &format!("message {number}"), 1).unwrap();
        }
        let length = |store: &Store| store.conversation(chat).unwrap().branch().len();
        store.delete_conversation(chat, 2).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        store.restore_conversation(chat).unwrap();
        assert_eq!(length(&store), 5000, "undone after a restart, nothing is gone");
        store.undo_message(second, &state).unwrap();
        assert_eq!(length(&store), 1, "4,999 descendants are removed");
        assert!(store.search("message").unwrap().is_empty());
        let mut parent = store.conversation_state(chat).map(|_| None).unwrap();
        for number in 0..5000 {
            parent = Some(store.add_question(chat, parent, &format!("message {number}"), 1).unwrap());
        }
        store.delete_conversation(chat, 3).unwrap();
        assert_eq!(store.purge_deleted().unwrap(), 1);
        assert!(store.conversation(chat).is_err() && store.search("message").unwrap().is_empty());
    }

    #[test]
    fn branches_share_a_parent_and_one_leaf_is_selected() {
        let store = Store::in_memory().unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "One", 2).unwrap();
        let first = store.begin_answer(chat, question, &settings(), 3).unwrap();
        store.finish_answer(first, MessageState::Complete, 3).unwrap();
        let second = store.begin_answer(chat, question, &settings(), 4).unwrap();
        store.finish_answer(second, MessageState::Complete, 4).unwrap();
        let branch = |store: &Store| {
            store.conversation(chat).unwrap().branch().iter().map(|m| m.id).collect::<Vec<_>>()
        };
        assert_eq!(branch(&store), [question, second]);
        store.set_leaf(first).unwrap();
        assert_eq!(branch(&store), [question, first]);
        let other = store.create_conversation(5).unwrap();
        assert!(
            store.add_question(other, Some(question), "no", 6).is_err(),
            "another conversation's message"
        );
        assert!(store.add_question(99, None, "no", 6).is_err() && store.set_leaf(99).is_err());
    }

    #[test]
    fn undo_message_restores_the_previous_state() {
        let store = Store::in_memory().unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "One", 2).unwrap();
        let answers = [3, 4].map(|now| {
            let answer = store.begin_answer(chat, question, &settings(), now).unwrap();
            store.finish_answer(answer, MessageState::Complete, now).unwrap();
            answer
        });
        store.set_leaf(answers[0]).unwrap();
        let before = (store.conversation(chat).unwrap(), store.conversation_state(chat).unwrap());
        let asked = store.add_question(chat, Some(answers[1]), "Two", 9).unwrap();
        store.begin_answer(chat, asked, &settings(), 9).unwrap();
        store.undo_message(asked, &before.1).unwrap();
        assert_eq!(store.conversation(chat).unwrap(), before.0);
        assert!(store.undo_message(asked, &before.1).is_err(), "once");
        assert!(store.conversation_state(99).is_err());
    }

    #[test]
    fn exported_conversation_is_imported_unchanged() {
        let store = Store::in_memory().unwrap();
        let chat = store.create_conversation(1).unwrap();
        store.rename_conversation(chat, "Greeting").unwrap();
        store.set_system_prompt(chat, "Be kind.").unwrap();
        let question = store.add_question(chat, None, "Hi", 2).unwrap();
        for text in ["Hello", "Hey"] {
            let answer = store.begin_answer(chat, question, &settings(), 3).unwrap();
            store.append_events(answer, &[round(text), finished()]).unwrap();
            store.finish_answer(answer, MessageState::Complete, 4).unwrap();
        }
        let exported = store.export_json(chat).unwrap();
        let copy = store.import_json(exported.as_bytes()).unwrap();
        let again = store.export_json(copy).unwrap();
        let parsed = |text: &str| {
            let mut file: serde_json::Value = serde_json::from_str(text).unwrap();
            // Ids are local to the file.
            let base = file["messages"][0]["id"].as_i64().unwrap();
            file["leaf"] = (file["leaf"].as_i64().unwrap() - base).into();
            for message in file["messages"].as_array_mut().unwrap() {
                message["id"] = (message["id"].as_i64().unwrap() - base).into();
                message["parent"] = message["parent"].as_i64().map(|parent| parent - base).into();
            }
            file
        };
        assert_eq!(parsed(&exported), parsed(&again));
        let words =
            ExportWords { untitled: "Ohne Titel".into(), question: "Du".into(), answer: "Antwort".into() };
        let markdown = store.export_markdown(copy, &words).unwrap();
        assert_eq!(markdown, "# Greeting\n\n> Be kind.\n\n## Du\n\nHi\n\n## Tiny (ngram)\n\nHey\n");
        let empty = store.create_conversation(9).unwrap();
        assert_eq!(store.export_markdown(empty, &words).unwrap(), "# Ohne Titel\n");
        store.remove_conversation(empty).unwrap();
        let before = store.conversations().unwrap().len();
        let circular = exported.replacen("\"parent\":null", "\"parent\":2", 1);
        // Too large for an f32: it would be stored as null.
        let endless = exported.replacen("\"p\":0.5", "\"p\":1e300", 1);
        let newer = exported.replace("\"version\":1", "\"version\":2");
        for wrong in ["", "{}", &newer, &circular, &endless] {
            assert_ne!(wrong, exported);
            assert!(store.import_json(wrong.as_bytes()).is_err());
        }
        assert_eq!(store.conversations().unwrap().len(), before);
        store.connection().execute("UPDATE messages SET events = x'00' WHERE events NOT NULL", []).unwrap();
        assert!(matches!(store.export_json(copy), Err(StoreError(Error::Store(_)))));
    }
}
