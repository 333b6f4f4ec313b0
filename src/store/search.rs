//! Full-text search over titles and messages.

use super::Store;
use crate::api::SearchHit;
use crate::error::Result;

/// Around what was found, where the window highlights: characters for private use.
const HIT: (char, char) = ('\u{e000}', '\u{e001}');
/// Hits given at most.
const MOST: usize = 50;
/// Words around what was found.
const AROUND: usize = 12;

impl Store {
    /// Messages and titles that hold all words of `query`, the last one perhaps unfinished; the best first.
    /// What was found stands between [`HIT`] in the excerpts.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn search(&self, query: &str) -> Result<Vec<SearchHit>> {
        let Some(query) = as_fts(query) else {
            return Ok(Vec::new());
        };
        let connection = self.connection();
        let mut statement = connection.prepare_cached(
            "SELECT coalesce(m.conversation, t.id), c.title, m.id, found.excerpt
             FROM (SELECT rowid, rank, snippet(search, 0, ?2, ?3, '…', ?4) AS excerpt
                   FROM search WHERE search MATCH ?1) AS found
             LEFT JOIN messages m ON found.rowid % 2 = 0 AND m.id = found.rowid / 2
             LEFT JOIN conversations t ON found.rowid % 2 = 1 AND t.id = found.rowid / 2
             JOIN conversations c ON c.id = coalesce(m.conversation, t.id) AND c.deleted_ms IS NULL
             ORDER BY (t.id IS NULL), found.rank
             LIMIT ?5",
        )?;
        let (open, close) = (HIT.0.to_string(), HIT.1.to_string());
        let rows = statement.query_map(
            rusqlite::params![query, open, close, AROUND as i64, MOST as i64],
            |row| {
                Ok(SearchHit {
                    conversation: row.get(0)?,
                    title: row.get(1)?,
                    message: row.get(2)?,
                    excerpt: row.get(3)?,
                })
            },
        )?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

/// Every word quoted, so that nothing a person types is taken for the query language; the last one matches
/// words that begin with it.
fn as_fts(query: &str) -> Option<String> {
    let words: Vec<String> = query
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(|word| format!("\"{word}\""))
        .collect();
    (!words.is_empty()).then(|| format!("{}*", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_titles_and_messages_and_marked() {
        let store = Store::in_memory().unwrap();
        let sky = store.create_conversation(1).unwrap();
        store.rename_conversation(sky, "About the sky").unwrap();
        let question = store.add_question(sky, None, "Why is the sky blue, and café red?", 2).unwrap();
        let other = store.create_conversation(3).unwrap();
        store.add_question(other, None, "Write a haiku.", 4).unwrap();
        let marked = |text: &str| text.replace('[', "\u{e000}").replace(']', "\u{e001}");
        let hits = store.search("SKY").unwrap();
        assert_eq!(hits.len(), 2);
        assert_eq!((hits[0].message, &hits[0].excerpt), (None, &marked("About the [sky]")));
        assert_eq!((hits[1].conversation, hits[1].message), (sky, Some(question)));
        assert_eq!(hits[1].excerpt, marked("Why is the [sky] blue, and café red?"));
        // Accents do not matter, the last word may be unfinished, all words must be there.
        assert_eq!(store.search("blu").unwrap().len(), 1);
        assert_eq!(store.search("cafe").unwrap().len(), 1);
        assert_eq!(store.search("sky haiku").unwrap().len(), 0);
        store.delete_conversation(sky, 5).unwrap();
        assert!(store.search("sky").unwrap().is_empty());
        store.restore_conversation(sky).unwrap();
        assert_eq!(store.search("sky").unwrap().len(), 2);
        store.delete_conversation(sky, 5).unwrap();
        store.purge_deleted().unwrap();
        store.restore_conversation(sky).unwrap_err();
        assert_eq!(
            store.connection().query_row("SELECT count(*) FROM search", [], |r| r.get::<_, i64>(0)),
            Ok(2)
        );
    }

    #[test]
    fn nothing_that_is_typed_breaks_a_search() {
        let store = Store::in_memory().unwrap();
        for query in
            ["", "  ", "\"", "a\"b", "NEAR(", "x AND", "title:y", "*", "-z", "^", "{}", "'; DROP TABLE"]
        {
            assert!(store.search(query).unwrap().is_empty(), "{query}");
        }
    }
}
