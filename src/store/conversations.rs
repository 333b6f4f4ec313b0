//! Conversations: what they are called, where the reader is, what was deleted.

use rusqlite::{OptionalExtension, Row, params};

use super::Result;
use super::{Store, not_there};
use crate::api::ConversationEntry;

/// The title of a conversation that has none yet: whoever shows it names it, in the language of the person.
const UNTITLED: &str = "";
/// Characters of an automatic title.
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
    /// Begins a conversation.
    ///
    /// # Errors
    /// When the file cannot be written; so below.
    pub fn create_conversation(&self, now: i64) -> Result<i64> {
        self.write(|transaction| {
            transaction.execute(
                "INSERT INTO conversations (title, created_ms, updated_ms) VALUES (?1, ?2, ?2)",
                params![UNTITLED, now],
            )?;
            Ok(transaction.last_insert_rowid())
        })
    }

    /// All conversations that were not deleted: the pinned first, then the latest.
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

    /// One conversation, deleted or not.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`](hunch_error::Error::InvalidRequest) when there is none.
    pub fn conversation_entry(&self, id: i64) -> Result<ConversationEntry> {
        let connection = self.connection();
        let found = connection.query_row(&format!("{ENTRY} WHERE id = ?1"), [id], entry).optional()?;
        found.ok_or_else(|| not_there("conversation", id))
    }

    /// Gives a conversation the title that a person chose. An empty one is not taken.
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

    /// Gives a conversation a title made of what was said first, unless a person chose one.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn title_conversation(&self, id: i64, said: &str) -> Result<()> {
        let title = automatic_title(said);
        let sql = "UPDATE conversations SET title = ?2 WHERE id = ?1 AND named = 0";
        self.conversation_entry(id)?;
        self.write(|transaction| Ok(transaction.execute(sql, params![id, title])?)).map(drop)
    }

    /// Keeps a conversation on top of the list, or not any more.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn pin_conversation(&self, id: i64, pinned: bool) -> Result<()> {
        self.change(id, "UPDATE conversations SET pinned = ?2 WHERE id = ?1", pinned)
    }

    /// Sets the instructions for the whole conversation.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn set_system_prompt(&self, id: i64, system: &str) -> Result<()> {
        self.change(id, "UPDATE conversations SET system = ?2 WHERE id = ?1", system)
    }

    /// Takes a conversation out of the list. It can be restored until the next start.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn delete_conversation(&self, id: i64, now: i64) -> Result<()> {
        self.change(id, "UPDATE conversations SET deleted_ms = ?2 WHERE id = ?1", now)
    }

    /// Puts a deleted conversation back.
    ///
    /// # Errors
    /// When there is no such conversation.
    pub fn restore_conversation(&self, id: i64) -> Result<()> {
        self.change(id, "UPDATE conversations SET deleted_ms = ?2 WHERE id = ?1", None::<i64>)
    }

    /// Forgets a conversation for good.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remove_conversation(&self, id: i64) -> Result<()> {
        let sql = "DELETE FROM conversations WHERE id = ?1";
        self.write(|transaction| Ok(transaction.execute(sql, [id])?)).map(drop)
    }

    /// Forgets for good what was deleted. Gives how many conversations that were.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn purge_deleted(&self) -> Result<usize> {
        let sql = "DELETE FROM conversations WHERE deleted_ms IS NOT NULL";
        self.write(|transaction| Ok(transaction.execute(sql, [])?))
    }

    /// Runs a change of one conversation, `?1` its number and `?2` the value.
    fn change(&self, id: i64, sql: &str, value: impl rusqlite::ToSql) -> Result<()> {
        match self.write(|transaction| Ok(transaction.execute(sql, params![id, value])?))? {
            0 => Err(not_there("conversation", id)),
            _ => Ok(()),
        }
    }
}

/// The first line that says something, cut at a word.
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
    fn titles_are_automatic_until_a_person_chooses_one() {
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
    fn the_list_has_pinned_ones_first_and_no_deleted_ones() {
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
