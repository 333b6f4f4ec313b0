//! Full-text search over titles and messages: by words where words stand apart, by what is contained where
//! they do not, as in Chinese and Japanese.

use rusqlite::{Row, params, params_from_iter};

use super::Store;
use crate::api::SearchHit;
use crate::error::Result;

/// Around what was found, where the window highlights: characters for private use.
const HIT: (char, char) = ('\u{e000}', '\u{e001}');
/// Hits given at most.
const MOST: usize = 50;
/// Words around what was found.
const AROUND: usize = 12;
/// Characters before and after what was found, where words do not stand apart.
const CHARS_BEFORE: usize = 16;
const CHARS_AFTER: usize = 48;

impl Store {
    /// Messages and titles that hold all words of `query`, the last one perhaps unfinished; the best first. A
    /// query in a script without spaces between words finds every text that contains its parts, the latest
    /// first. What was found stands between [`HIT`] in the excerpts.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn search(&self, query: &str) -> Result<Vec<SearchHit>> {
        let words = words(query);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        if query.chars().any(stands_unspaced) { self.containing(&words) } else { self.with_words(&words) }
    }

    fn with_words(&self, words: &[&str]) -> Result<Vec<SearchHit>> {
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
        let query = as_fts(words);
        let rows = statement.query_map(params![query, open, close, AROUND as i64, MOST as i64], hit)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Reads every text, which the index cannot spare: to it a whole sentence is one word.
    fn containing(&self, parts: &[&str]) -> Result<Vec<SearchHit>> {
        let connection = self.connection();
        let contains = vec!["search.text LIKE ?"; parts.len()].join(" AND ");
        let mut statement = connection.prepare(&format!(
            "SELECT coalesce(m.conversation, t.id), c.title, m.id, search.text
             FROM search
             LEFT JOIN messages m ON search.rowid % 2 = 0 AND m.id = search.rowid / 2
             LEFT JOIN conversations t ON search.rowid % 2 = 1 AND t.id = search.rowid / 2
             JOIN conversations c ON c.id = coalesce(m.conversation, t.id) AND c.deleted_ms IS NULL
             WHERE {contains}
             ORDER BY (t.id IS NULL), search.rowid DESC
             LIMIT {MOST}"
        ))?;
        // Letters and digits only, so there is nothing in them that LIKE takes for a sign of its own.
        let patterns = params_from_iter(parts.iter().map(|part| format!("%{part}%")));
        let rows = statement.query_map(patterns, |row| {
            let whole = hit(row)?;
            Ok(SearchHit { excerpt: excerpt(&whole.excerpt, parts), ..whole })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}

fn hit(row: &Row<'_>) -> rusqlite::Result<SearchHit> {
    Ok(SearchHit {
        conversation: row.get(0)?,
        title: row.get(1)?,
        message: row.get(2)?,
        excerpt: row.get(3)?,
    })
}

/// What a person searches for, without the signs between.
fn words(query: &str) -> Vec<&str> {
    query.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect()
}

/// Every word quoted, so that nothing a person types is taken for the query language; the last one matches
/// words that begin with it.
fn as_fts(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("{}*", quoted.join(" "))
}

/// Whether a character is of a script that sets no spaces between words, or, as Hangul, runs words together.
fn stands_unspaced(c: char) -> bool {
    matches!(c,
        // Thai and Lao, Burmese, Khmer.
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        // Kana, Han, Hangul, and Kana of half width.
        | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}'
        | '\u{20000}'..='\u{3ffff}')
}

/// The text around the first of `parts` in it, with all of them marked.
fn excerpt(text: &str, parts: &[&str]) -> String {
    // As LIKE compares them; and it changes no place in the text.
    let folded = text.to_ascii_lowercase();
    let mut found: Vec<(usize, usize)> = Vec::new();
    for part in parts {
        let part = part.to_ascii_lowercase();
        found.extend(folded.match_indices(&part).map(|(at, _)| (at, at + part.len())));
    }
    found.sort_unstable();
    let first = found.first().map_or(0, |&(at, _)| at);
    let begin = text[..first].char_indices().rev().take(CHARS_BEFORE).last().map_or(first, |(at, _)| at);
    let end = text[first..].char_indices().nth(CHARS_AFTER).map_or(text.len(), |(at, _)| first + at);
    let mut out = String::from(if begin > 0 { "…" } else { "" });
    let mut at = begin;
    for (from, to) in found {
        // Parts may overlap, and the last one may be cut.
        let (from, to) = (from.max(at), to.min(end));
        if from >= to {
            continue;
        }
        out.push_str(&text[at..from]);
        out.extend([HIT.0]);
        out.push_str(&text[from..to]);
        out.extend([HIT.1]);
        at = to;
    }
    out.push_str(&text[at..end]);
    out.push_str(if end < text.len() { "…" } else { "" });
    out
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
    fn what_is_written_without_spaces_is_found_anywhere_in_it() {
        let store = Store::in_memory().unwrap();
        let marked = |text: &str| text.replace('[', "\u{e000}").replace(']', "\u{e001}");
        let weather = store.create_conversation(1).unwrap();
        store.rename_conversation(weather, "北京天气").unwrap();
        let question = store.add_question(weather, None, "今天北京的天气怎么样？用Python循环写", 2).unwrap();
        let other = store.create_conversation(3).unwrap();
        let kana = store.add_question(other, None, "東京タワーはどこですか", 4).unwrap();
        let found = |query: &str| {
            let hits = store.search(query).unwrap();
            hits.into_iter().map(|hit| (hit.message, hit.excerpt)).collect::<Vec<_>>()
        };
        let said = |text: &str| (Some(question), marked(text));
        assert_eq!(
            found("天气"),
            [(None, marked("北京[天气]")), said("今天北京的[天气]怎么样？用Python循环写")]
        );
        assert_eq!(found("样"), [said("今天北京的天气怎么[样]？用Python循环写")]);
        // All parts must be there, in any order; letters among the signs are found in either case.
        assert_eq!(found("循环 今天"), [said("[今天]北京的天气怎么样？用Python[循环]写")]);
        assert_eq!(found("python循"), [said("今天北京的天气怎么样？用[Python循]环写")]);
        assert_eq!(found("天气 東京"), []);
        assert_eq!(found("タワー"), [(Some(kana), marked("東京[タワー]はどこですか"))]);
        // Parts that overlap are marked once.
        assert_eq!(found("北京天 京天气"), [(None, marked("[北京天][气]"))]);
        // Far into a long text.
        let long = format!("{}天坛{}", "前".repeat(100), "后".repeat(100));
        store.add_question(other, Some(kana), &long, 5).unwrap();
        let around = format!("…{}[天坛]{}…", "前".repeat(CHARS_BEFORE), "后".repeat(CHARS_AFTER - 2));
        assert_eq!(found("天坛")[0].1, marked(&around));
        store.delete_conversation(weather, 6).unwrap();
        assert_eq!(found("天气"), []);
        // Signs that LIKE knows are none here, and nothing else is found by them.
        assert_eq!(found("%天坛_").len(), 1);
        assert_eq!(found("%_"), []);
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
