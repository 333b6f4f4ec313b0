//! Conversations as entries of a list: titles, pins, instructions, deletion.

use rusqlite::{OptionalExtension, Row, params};

use super::{Result, Store};
use crate::api::ConversationEntry;
use hunch_error::Refusal;

/// Title of an untitled conversation. The window shows a name in its own language instead.
const UNTITLED: &str = "";
/// Maximum length of an automatic title, in characters.
const TITLE_CHARS: usize = 60;

const ENTRY: &str = "SELECT id, title, pinned, created_ms, updated_ms FROM conversations";

fn entry(row: &Row<'_>) -> rusqlite::Result<ConversationEntry> {
    Ok(ConversationEntry {
        id: row.get(0)?,
        title: row.get(1)?,
        pinned: row.get(2)?,
        created_ms: row.get(3)?,
        updated_ms: row.get(4)?,
    })
}

impl Store {
    /// Creates a conversation and returns its id.
    ///
    /// # Errors
    /// When the file cannot be written. The same holds for the methods below.
    pub fn create_conversation(&self, now: i64) -> Result<i64> {
        self.write(|transaction| {
            transaction.execute(
                "INSERT INTO conversations (title, created_ms, updated_ms) VALUES (?1, ?2, ?2)",
                params![UNTITLED, now],
            )?;
            Ok(transaction.last_insert_rowid())
        })
    }

    /// Lists all conversations that are not deleted, pinned ones first, then by last use.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn conversations(&self) -> Result<Vec<ConversationEntry>> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(&format!(
            "{ENTRY} WHERE deleted_ms IS NULL ORDER BY pinned DESC, updated_ms DESC, id DESC"
        ))?;
        let rows = statement.query_map([], entry)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Returns one conversation, deleted or not.
    ///
    /// # Errors
    /// [`Refusal::NoSuchConversation`] when there is none.
    pub fn conversation_entry(&self, id: i64) -> Result<ConversationEntry> {
        let connection = self.connection();
        let found = connection.query_row(&format!("{ENTRY} WHERE id = ?1"), [id], entry).optional()?;
        found.ok_or_else(|| Refusal::NoSuchConversation { id }.into())
    }

    /// Sets the title a person chose. An empty title is ignored.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn rename_conversation(&self, id: i64, title: &str) -> Result<()> {
        let title = title.trim();
        if title.is_empty() {
            return self.conversation_entry(id).map(drop);
        }
        self.change(id, "UPDATE conversations SET title = ?2, named = 1 WHERE id = ?1", title)
    }

    /// Makes a title from the first message, unless a person chose one.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn title_conversation(&self, id: i64, said: &str) -> Result<()> {
        let title = automatic_title(said);
        let sql = "UPDATE conversations SET title = ?2 WHERE id = ?1 AND named = 0";
        self.conversation_entry(id)?;
        self.write(|transaction| Ok(transaction.execute(sql, params![id, title])?)).map(drop)
    }

    /// Pins a conversation to the top of the list, or unpins it.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn pin_conversation(&self, id: i64, pinned: bool) -> Result<()> {
        self.change(id, "UPDATE conversations SET pinned = ?2 WHERE id = ?1", pinned)
    }

    /// Sets the system prompt of a conversation.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn set_system_prompt(&self, id: i64, system: &str) -> Result<()> {
        self.change(id, "UPDATE conversations SET system = ?2 WHERE id = ?1", system)
    }

    /// Marks a conversation as deleted. It can be restored until the next start.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn delete_conversation(&self, id: i64, now: i64) -> Result<()> {
        self.change(id, "UPDATE conversations SET deleted_ms = ?2 WHERE id = ?1", now)
    }

    /// Restores a deleted conversation.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn restore_conversation(&self, id: i64) -> Result<()> {
        self.change(id, "UPDATE conversations SET deleted_ms = ?2 WHERE id = ?1", None::<i64>)
    }

    /// Removes a conversation permanently.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_conversation(&self, id: i64) -> Result<()> {
        let sql = "DELETE FROM conversations WHERE id = ?1";
        self.write(|transaction| Ok(transaction.execute(sql, [id])?)).map(drop)
    }

    /// Removes all deleted conversations permanently and returns their number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn purge_deleted(&self) -> Result<usize> {
        let sql = "DELETE FROM conversations WHERE deleted_ms IS NOT NULL";
        self.write(|transaction| Ok(transaction.execute(sql, [])?))
    }

    /// Runs an update of one conversation. `?1` is its id, `?2` the value.
    fn change(&self, id: i64, sql: &str, value: impl rusqlite::ToSql) -> Result<()> {
        match self.write(|transaction| Ok(transaction.execute(sql, params![id, value])?))? {
            0 => Err(Refusal::NoSuchConversation { id }.into()),
            _ => Ok(()),
        }
    }
}

/// Returns the first line with a letter or digit, cut at a word boundary.
fn automatic_title(said: &str) -> String {
    let line = said.lines().map(str::trim).find(|line| line.chars().any(char::is_alphanumeric));
    let Some(line) = line else {
        return UNTITLED.into();
    };
    if line.chars().count() <= TITLE_CHARS {
        return line.into();
    }
    let cut: String = line.chars().take(TITLE_CHARS).collect();
    let whole = cut.rsplit_once(char::is_whitespace).map_or(cut.as_str(), |(words, _)| words);
    format!("{}…", whole.trim_end_matches([',', ';', ':', '.', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_is_automatic_until_a_person_chooses_one() {
        let store = Store::in_memory().unwrap();
        let id = store.create_conversation(5).unwrap();
        assert_eq!(store.conversations().unwrap()[0].title, "");
        store.title_conversation(id, "?! \n --").unwrap();
        assert_eq!(store.conversation_entry(id).unwrap().title, "", "nothing there that is a title");
        store.title_conversation(id, "\n ---\n  Why is the sky blue?\nExplain.").unwrap();
        assert_eq!(store.conversation_entry(id).unwrap().title, "Why is the sky blue?");
        store.rename_conversation(id, " Sky ").unwrap();
        store.rename_conversation(id, "  ").unwrap();
        store.title_conversation(id, "Something else").unwrap();
        assert_eq!(store.conversation_entry(id).unwrap().title, "Sky");
        let long = "Please write a long and detailed letter to my landlord, who has not repaired the heating";
        assert_eq!(automatic_title(long), "Please write a long and detailed letter to my landlord, who…");
        assert_eq!(automatic_title(&"x".repeat(80)).chars().count(), TITLE_CHARS + 1);
    }

    #[test]
    fn lists_pinned_conversations_first_and_omits_deleted_ones() {
        let store = Store::in_memory().unwrap();
        let ids: Vec<i64> = (1..=3).map(|now| store.create_conversation(now).unwrap()).collect();
        store.pin_conversation(ids[0], true).unwrap();
        let listed = || store.conversations().unwrap().into_iter().map(|c| c.id).collect::<Vec<_>>();
        assert_eq!(listed(), [ids[0], ids[2], ids[1]]);
        store.delete_conversation(ids[2], 9).unwrap();
        assert_eq!(listed(), [ids[0], ids[1]]);
        store.restore_conversation(ids[2]).unwrap();
        assert_eq!(listed().len(), 3);
        store.delete_conversation(ids[1], 9).unwrap();
        assert_eq!((store.purge_deleted().unwrap(), store.conversation_entry(ids[1]).is_err()), (1, true));
        assert!(store.pin_conversation(99, true).is_err() && store.title_conversation(99, "x").is_err());
    }
}
