//! Schema of the file, as one migration for each version. A published migration never changes; a new one is added.

use rusqlite::{Connection, Transaction};

use super::search::unspaced;
use hunch_error::Error;

use super::{Result, StoreError};

/// Migrations in order. Each brings a file from the previous version to the next.
const MIGRATIONS: [&str; 8] =
    [VERSION_1, VERSION_2, VERSION_3, UNTITLED_IS_EMPTY, UNSPACED, FLAT_DELETION, DELETED_WORDS, ATTACHMENTS];
/// Version whose migration also changes the definition of a table, see [`drop_parent_cascade`].
const FLAT_DELETION_VERSION: u32 = 6;

const VERSION_1: &str = "
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    -- 1 once a person has chosen the title.
    named INTEGER NOT NULL DEFAULT 0,
    system TEXT NOT NULL DEFAULT '',
    pinned INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    -- Deleted, and gone at the next start.
    deleted_ms INTEGER,
    -- The message at whose branch the reader is.
    leaf INTEGER REFERENCES messages(id) ON DELETE SET NULL
) STRICT;

CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
    parent INTEGER REFERENCES messages(id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
    content TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('complete', 'streaming', 'interrupted', 'failed')),
    -- What the answer was asked with, as JSON.
    settings TEXT,
    -- The events of its generation, as JSON, compressed, once it is over.
    events BLOB
) STRICT;
CREATE INDEX messages_by_conversation ON messages(conversation);
CREATE INDEX messages_by_parent ON messages(parent);

-- The events of answers that are being written, piece by piece.
CREATE TABLE answer_parts (
    message INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
    part INTEGER NOT NULL,
    events TEXT NOT NULL,
    PRIMARY KEY (message, part)
) STRICT, WITHOUT ROWID;

-- Row 2 * id is a message, row 2 * id + 1 the title of a conversation.
CREATE VIRTUAL TABLE search USING fts5(text, tokenize = 'unicode61 remove_diacritics 2');
CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.content <> '' BEGIN
    INSERT INTO search(rowid, text) VALUES (2 * new.id, new.content);
END;
CREATE TRIGGER message_changed AFTER UPDATE OF content ON messages BEGIN
    DELETE FROM search WHERE rowid = 2 * old.id;
    INSERT INTO search(rowid, text) VALUES (2 * new.id, new.content);
END;
CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
    DELETE FROM search WHERE rowid = 2 * old.id;
END;
CREATE TRIGGER conversation_added AFTER INSERT ON conversations BEGIN
    INSERT INTO search(rowid, text) VALUES (2 * new.id + 1, new.title);
END;
CREATE TRIGGER conversation_renamed AFTER UPDATE OF title ON conversations BEGIN
    DELETE FROM search WHERE rowid = 2 * old.id + 1;
    INSERT INTO search(rowid, text) VALUES (2 * new.id + 1, new.title);
END;
CREATE TRIGGER conversation_removed AFTER DELETE ON conversations BEGIN
    DELETE FROM search WHERE rowid = 2 * old.id + 1;
END;
";

const VERSION_2: &str = "
-- How a person likes the window: a JSON value for each key.
CREATE TABLE preferences (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

const VERSION_3: &str = "
-- Comparisons, each with its whole report as JSON, compressed, and what a list of them shows as JSON.
CREATE TABLE comparisons (
    id INTEGER PRIMARY KEY,
    ended_ms INTEGER NOT NULL,
    entry TEXT NOT NULL,
    report BLOB NOT NULL
) STRICT;

-- What passes cost here, as JSON, by the models and the device they were measured on.
CREATE TABLE cost_curves (
    key TEXT PRIMARY KEY,
    curve TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

const UNTITLED_IS_EMPTY: &str = "
-- A conversation without a title had English words for one; now the window names it in its own language.
UPDATE conversations SET title = '' WHERE named = 0 AND title = 'New conversation';
";

/// Rebuilds the search index from messages and titles.
pub(super) const REBUILD_SEARCH: &str = "
DROP TABLE search;
CREATE VIRTUAL TABLE search USING fts5(text, tokenize = 'unicode61 remove_diacritics 2');
INSERT INTO search(search, rank) VALUES ('secure-delete', 1);
INSERT INTO search(rowid, text) SELECT 2 * id, content FROM messages WHERE content <> '';
INSERT INTO search(rowid, text) SELECT 2 * id + 1, title FROM conversations;
";

/// Indexes of texts without spaces, by the pattern `UNSPACED` of [`super::search`].
const UNSPACED: &str = concat!(
    "
-- Texts that hold a script without spaces between words: to the index of words a sentence of them is one.
CREATE INDEX messages_unspaced ON messages(id) WHERE content GLOB ",
    unspaced!(),
    ";
CREATE INDEX titles_unspaced ON conversations(id) WHERE title GLOB ",
    unspaced!(),
    ";
"
);

/// Index on `leaf`. Deleting a message clears the `leaf` that points at it, which would scan all conversations.
const FLAT_DELETION: &str = "CREATE INDEX conversations_by_leaf ON conversations(leaf);";

/// Removes deleted words from the search index at once. Otherwise they stay until it is merged.
const DELETED_WORDS: &str = "INSERT INTO search(search, rank) VALUES ('secure-delete', 1);";

/// Files of questions, as JSON, compressed.
const ATTACHMENTS: &str = "ALTER TABLE messages ADD COLUMN attachments BLOB;";

/// Removes the cascade on `messages.parent`.
///
/// SQLite runs a cascade as nested triggers, one level a generation, and stops at 1,000 levels: a branch of
/// 1,000 messages could not be deleted. The cascade on `messages.conversation` is one level deep and stays.
///
/// Rewrites the definition in place, as SQLite documents for constraints that do not change what is stored
/// (lang_altertable.html, section 7). Rebuilding the table would copy every answer, which needs the room twice.
fn drop_parent_cascade(transaction: &Transaction<'_>) -> Result<()> {
    const CASCADE: &str = "parent INTEGER REFERENCES messages(id) ON DELETE CASCADE";
    const PLAIN: &str = "parent INTEGER REFERENCES messages(id)";
    let schema: i64 = transaction.query_row("PRAGMA schema_version", [], |row| row.get(0))?;
    transaction.pragma_update(None, "writable_schema", true)?;
    let changed = transaction.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, ?1, ?2)
         WHERE type = 'table' AND name = 'messages' AND instr(sql, ?1) > 0",
        [CASCADE, PLAIN],
    );
    // Makes all connections read the definition again.
    transaction.pragma_update(None, "schema_version", schema + 1)?;
    transaction.pragma_update(None, "writable_schema", false)?;
    match changed? {
        1 => Ok(()),
        _ => Err(StoreError(Error::Store("the table of messages is not one that Hunch made".into()))),
    }
}

/// Migrates a file to the current version.
pub(super) fn run(connection: &mut Connection) -> Result<()> {
    let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let version = version as usize;
    if version > MIGRATIONS.len() {
        return Err(StoreError(Error::Store(format!(
            "the file is from a newer Hunch (version {version}, this one knows {}); it was left as it is",
            MIGRATIONS.len()
        ))));
    }
    for (number, migration) in (1u32..).zip(MIGRATIONS).skip(version) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        if number == FLAT_DELETION_VERSION {
            drop_parent_cascade(&transaction)?;
        }
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Returns whether a file is of an older version.
pub(super) fn is_older(connection: &Connection) -> Result<bool> {
    let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok(version > 0 && (version as usize) < MIGRATIONS.len())
}

/// Checks that a file is of the current version, for callers that cannot migrate it.
pub(super) fn check_current(connection: &Connection) -> Result<()> {
    let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version as usize == MIGRATIONS.len() {
        return Ok(());
    }
    Err(StoreError(Error::Store(format!(
        "the file is of version {version}, this Hunch reads version {}; open the window to bring it up to date",
        MIGRATIONS.len()
    ))))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn migration_clears_english_default_titles_but_not_chosen_ones() {
        let mut connection = Connection::open_in_memory().unwrap();
        for migration in &MIGRATIONS[..3] {
            connection.execute_batch(migration).unwrap();
        }
        connection.pragma_update(None, "user_version", 3).unwrap();
        let add = "INSERT INTO conversations (title, named, created_ms, updated_ms) VALUES (?1, ?2, 1, 1)";
        for (title, named) in [("New conversation", 0), ("New conversation", 1), ("Why?", 0)] {
            connection.execute(add, rusqlite::params![title, named]).unwrap();
        }
        run(&mut connection).unwrap();
        let mut titles = connection.prepare("SELECT title FROM conversations ORDER BY id").unwrap();
        let titles: Vec<String> =
            titles.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap();
        assert_eq!(titles, ["", "New conversation", "Why?"]);
    }

    #[test]
    fn finds_text_without_spaces_in_older_files() {
        let connection = Connection::open_in_memory().unwrap();
        for migration in &MIGRATIONS[..4] {
            connection.execute_batch(migration).unwrap();
        }
        connection.pragma_update(None, "user_version", 4).unwrap();
        let add = "INSERT INTO conversations (title, created_ms, updated_ms) VALUES ('用Python写', 1, 1)";
        connection.execute(add, []).unwrap();
        let store = Store::prepare(connection, None).unwrap();
        assert_eq!(store.search("python").unwrap().len(), 1);
    }

    /// Creates a file of a `version` with one conversation of `messages` messages on one branch.
    pub(in crate::store) fn old_file(path: &std::path::Path, version: u32, messages: i64) -> Connection {
        let mut connection = Connection::open(path).unwrap();
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        let transaction = connection.transaction().unwrap();
        for migration in &MIGRATIONS[..version as usize] {
            transaction.execute_batch(migration).unwrap();
        }
        transaction.pragma_update(None, "user_version", version).unwrap();
        let begin = "INSERT INTO conversations (title, created_ms, updated_ms) VALUES ('Long', 1, 1)";
        transaction.execute(begin, []).unwrap();
        for id in 1..=messages {
            let add = "INSERT INTO messages (conversation, parent, role, content, created_ms, state)
                       VALUES (1, nullif(?1 - 1, 0), 'user', 'word' || ?1, 1, 'complete')";
            transaction.execute(add, [id]).unwrap();
        }
        transaction.execute("UPDATE conversations SET leaf = ?1", [messages]).unwrap();
        transaction.commit().unwrap();
        connection
    }

    #[test]
    fn opens_version_5_file_stuck_on_a_deleted_long_conversation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        let connection = old_file(&path, 5, 1500);
        connection.execute("UPDATE conversations SET deleted_ms = 5", []).unwrap();
        let stuck = connection.execute("DELETE FROM conversations WHERE deleted_ms IS NOT NULL", []);
        let stuck = stuck.expect_err("version 5 cannot delete it").to_string();
        assert!(stuck.contains("trigger"), "{stuck}");
        let other = "INSERT INTO conversations (title, created_ms, updated_ms) VALUES ('Other', 1, 1)";
        connection.execute(other, []).unwrap();
        drop(connection);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.conversation(1).unwrap().branch().len(), 1500, "everything is there");
        assert_eq!(store.purge_deleted().unwrap(), 1);
        assert!(store.conversation(1).is_err());
        let titles: Vec<String> = store.conversations().unwrap().into_iter().map(|c| c.title).collect();
        assert_eq!(titles, ["Other"]);
        assert!(store.search("word7").unwrap().is_empty());
        let left = |sql: &str| store.connection().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!([left("SELECT count(*) FROM messages"), left("SELECT count(*) FROM search")], [0, 1]);
        let check = |sql: &str| store.connection().query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(check("PRAGMA integrity_check"), "ok");
    }

    #[test]
    fn upgraded_file_keeps_messages_search_and_indices() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hunch.db");
        drop(old_file(&path, 5, 20));
        let names = |connection: &Connection| -> Vec<String> {
            let mut names = connection.prepare("SELECT name FROM sqlite_schema ORDER BY name").unwrap();
            names.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap()
        };
        let store = Store::open(&path).unwrap();
        let fresh = Store::in_memory().unwrap();
        assert_eq!(names(&store.connection()), names(&fresh.connection()));
        assert_eq!(store.conversation(1).unwrap().branch().len(), 20);
        let copies = super::super::backups::list(&path);
        let copy = Connection::open(&copies[0]).unwrap();
        let version = copy.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!((copies.len(), version), (1, 5), "a copy of the file as it was");
        assert_eq!(store.search("word7").unwrap().len(), 1);
        let refused = store.connection().execute("UPDATE messages SET parent = 999 WHERE id = 3", []);
        assert!(refused.is_err(), "a parent still has to exist");
    }

    #[test]
    fn creates_a_file_once_and_refuses_a_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("hunch.db");
        let store = Store::open(&path).unwrap();
        let id = store.create_conversation(1).unwrap();
        drop(store);
        let store = Store::open(&path).unwrap();
        assert_eq!(store.conversations().unwrap()[0].id, id);
        let second = Store::open(&path).err().unwrap();
        assert!(second.to_string().contains("another running Hunch"), "{second}");
        store.connection().pragma_update(None, "user_version", 99).unwrap();
        drop(store);
        let error = Store::open(&path).err().unwrap();
        assert!(error.to_string().contains("newer Hunch"), "{error}");
        std::fs::write(&path, "this is no database, whatever its name says, and long enough").unwrap();
        assert!(matches!(Store::open(&path), Err(StoreError(Error::Store(_)))));
    }
}
