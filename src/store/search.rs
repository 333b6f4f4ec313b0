//! Full-text search over titles and messages. Scripts with spaces are searched by words, others, such as Chinese and
//! Japanese, by substrings.

use icu_properties::props::{EnumeratedProperty, GeneralCategory, GeneralCategoryGroup};
use rusqlite::{Row, params, params_from_iter};

use super::Store;
use crate::api::SearchHit;
use hunch_error::Error;

use super::{Result, StoreError};

/// Private-use characters around a hit, which the window highlights.
const HIT: (char, char) = ('\u{e000}', '\u{e001}');
/// Maximum number of hits.
const MOST: usize = 50;
/// Number of words in an excerpt.
const AROUND: usize = 12;
/// Number of characters before and after a hit in text without spaces.
const CHARS_BEFORE: usize = 16;
const CHARS_AFTER: usize = 48;
/// Maximum length of a query, in characters and words. A person may paste a page, and SQLite limits the length of
/// patterns and conditions.
const LONGEST_QUERY: usize = 1000;
const MOST_WORDS: usize = 64;

/// Pattern for SQLite's `GLOB` that matches texts with characters of [`stands_unspaced`]. Two indexes use it, so it
/// may only change with a migration.
macro_rules! unspaced {
    () => {
        "'*[\u{0e00}-\u{0eff}\u{1000}-\u{109f}\u{1780}-\u{17ff}\
         \u{3040}-\u{30ff}\u{31f0}-\u{31ff}\u{3400}-\u{9fff}\
         \u{ac00}-\u{d7af}\u{f900}-\u{faff}\u{ff66}-\u{ff9f}\u{20000}-\u{3ffff}]*'"
    };
}
pub(super) use unspaced;

/// Queries for titles and messages with text without spaces, by their indexes. Conditions are appended.
const UNSPACED_TITLES: &str = concat!(
    "SELECT id, title, NULL, title FROM conversations INDEXED BY titles_unspaced
     WHERE deleted_ms IS NULL AND title GLOB ",
    unspaced!()
);
const UNSPACED_MESSAGES: &str = concat!(
    "SELECT m.conversation, c.title, m.id, m.content FROM messages m INDEXED BY messages_unspaced
     CROSS JOIN conversations c ON c.id = m.conversation AND c.deleted_ms IS NULL
     WHERE m.content GLOB ",
    unspaced!()
);

impl Store {
    /// Finds titles and messages that contain all words of `query`. The last word may be incomplete. Hits by words come
    /// first, best match first, then hits within text without spaces, latest first. Excerpts mark hits with [`HIT`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn search(&self, query: &str) -> Result<Vec<SearchHit>> {
        let words = words(query);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let mut contained = self.containing(&words)?;
        let mut hits = Vec::new();
        if !words.iter().any(|word| word.contains(stands_unspaced)) {
            hits = match self.with_words(&words) {
                Err(StoreError(Error::Store(_))) if self.repair_search()? => self.with_words(&words)?,
                hits => hits?,
            };
        }
        for hit in &mut hits {
            let same =
                |other: &SearchHit| (other.conversation, other.message) == (hit.conversation, hit.message);
            if let Some(at) = contained.iter().position(same) {
                // The word index marks the whole sentence if it begins with the word.
                *hit = contained.remove(at);
            }
        }
        hits.append(&mut contained);
        hits.sort_by_key(|hit| hit.message.is_some());
        hits.truncate(MOST);
        Ok(hits)
    }

    fn with_words(&self, words: &[&str]) -> Result<Vec<SearchHit>> {
        let connection = self.reader();
        let mut statement = connection.prepare_cached(
            // Excerpts are made for the returned rows only.
            "SELECT top.conversation, top.title, top.message,
                    (SELECT snippet(search, 0, ?2, ?3, '…', ?4) FROM search
                     WHERE search MATCH ?1 AND search.rowid = top.found)
             FROM (SELECT found.rowid AS found, coalesce(m.conversation, t.id) AS conversation, c.title AS title,
                          m.id AS message, found.rank AS rank
                   FROM (SELECT rowid, rank FROM search WHERE search MATCH ?1) AS found
                   LEFT JOIN messages m ON found.rowid % 2 = 0 AND m.id = found.rowid / 2
                   LEFT JOIN conversations t ON found.rowid % 2 = 1 AND t.id = found.rowid / 2
                   JOIN conversations c ON c.id = coalesce(m.conversation, t.id) AND c.deleted_ms IS NULL
                   ORDER BY (t.id IS NULL), found.rank
                   LIMIT ?5) AS top
             ORDER BY (top.message IS NOT NULL), top.rank",
        )?;
        let (open, close) = (HIT.0.to_string(), HIT.1.to_string());
        let query = as_fts(words);
        let rows = statement.query_map(params![query, open, close, AROUND as i64, MOST as i64], |row| {
            let hit = hit(row)?;
            Ok(SearchHit { excerpt: closed_after_marks(&hit.excerpt), ..hit })
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Finds up to [`MOST`] titles and messages with text without spaces. Reads all of them, because the word index
    /// takes a whole sentence for one word.
    fn containing(&self, parts: &[&str]) -> Result<Vec<SearchHit>> {
        let connection = self.reader();
        let mut found = Vec::new();
        for (texts, text, id) in [(UNSPACED_TITLES, "title", "id"), (UNSPACED_MESSAGES, "m.content", "m.id")]
        {
            let contains = format!(" AND {text} LIKE ?").repeat(parts.len());
            let mut statement = connection.prepare(&format!("{texts}{contains} ORDER BY {id} DESC"))?;
            // They consist of letters, digits and marks, so they contain no wildcard of LIKE.
            let patterns = params_from_iter(parts.iter().map(|part| format!("%{part}%")));
            let hits = statement.query_map(patterns, hit)?.filter_map(|row| {
                row.map(|whole| {
                    let excerpt = excerpt(&whole.excerpt, &places(&whole.excerpt, parts)?);
                    Some(SearchHit { excerpt, ..whole })
                })
                .transpose()
            });
            found.extend(hits.take(MOST).collect::<rusqlite::Result<Vec<_>>>()?);
        }
        Ok(found)
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

/// Splits a query into words, without punctuation.
fn words(query: &str) -> Vec<&str> {
    let end = query.char_indices().nth(LONGEST_QUERY).map_or(query.len(), |(at, _)| at);
    let words =
        query[..end].split(|c: char| !is_of_word(c)).filter(|word| word.contains(char::is_alphanumeric));
    words.take(MOST_WORDS).collect()
}

/// Returns whether a character is part of a word: a letter, a digit, or a mark on one, such as a Thai tone.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || is_mark(c)
}

/// Returns whether a character combines with the previous one.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && GeneralCategoryGroup::Mark.contains(GeneralCategory::for_char(c))
}

/// Makes an FTS5 query. Words are quoted, so that no input is read as query syntax. The last word matches as a prefix.
fn as_fts(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!("{}*", quoted.join(" "))
}

/// Extends the highlights of an excerpt over combining marks, which end a word in the word index.
fn closed_after_marks(excerpt: &str) -> String {
    let mut out = String::with_capacity(excerpt.len());
    let mut chars = excerpt.chars().peekable();
    while let Some(c) = chars.next() {
        if c == HIT.1 {
            while let Some(mark) = chars.next_if(|c| is_mark(*c)) {
                out.push(mark);
            }
        }
        out.push(c);
    }
    out
}

/// Returns whether a character belongs to a script without spaces between words, or with compound words, as Hangul.
fn stands_unspaced(c: char) -> bool {
    matches!(c,
        // Thai, Lao, Burmese, Khmer.
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
        // Kana, Han, Hangul, half-width Kana.
        | '\u{3040}'..='\u{30ff}' | '\u{31f0}'..='\u{31ff}' | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ff9f}'
        | '\u{20000}'..='\u{3ffff}')
}

/// Finds the parts of a query in a text, in order. Returns `None` if one is missing. A part in a script without spaces
/// may be anywhere. Any other part must be a whole word, or border on such a script. The last one may be incomplete.
fn places(text: &str, parts: &[&str]) -> Option<Vec<(usize, usize)>> {
    // Compares as LIKE does, and keeps byte positions.
    let folded = text.to_ascii_lowercase();
    let continues = |c: char| is_of_word(c) && !stands_unspaced(c);
    let end_of_word = |at: usize| text[at..].find(|c| !continues(c)).map_or(text.len(), |rest| at + rest);
    let mut found = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let before = found.len();
        let is_word = !part.contains(stands_unspaced);
        let unfinished = number + 1 == parts.len();
        let part = part.to_ascii_lowercase();
        for (from, same) in folded.match_indices(&part) {
            let to = from + same.len();
            if !is_word {
                found.push((from, to));
            } else if !text[..from].ends_with(continues) && (unfinished || end_of_word(to) == to) {
                found.push((from, end_of_word(to)));
            }
        }
        if found.len() == before {
            return None;
        }
    }
    found.sort_unstable();
    Some(found)
}

/// Makes an excerpt around the first hit, with all hits marked.
fn excerpt(text: &str, found: &[(usize, usize)]) -> String {
    // A letter keeps its combining marks.
    let past_marks =
        |at: usize| text[at..].find(|c: char| !is_mark(c)).map_or(text.len(), |marks| at + marks);
    let first = found.first().map_or(0, |&(at, _)| at);
    let begin = text[..first].char_indices().rev().take(CHARS_BEFORE).last().map_or(first, |(at, _)| at);
    let begin = past_marks(begin).min(first);
    let end =
        text[first..].char_indices().nth(CHARS_AFTER).map_or(text.len(), |(at, _)| past_marks(first + at));
    let mut out = String::from(if begin > 0 { "…" } else { "" });
    let mut at = begin;
    for &(from, to) in found {
        // Hits may overlap, and the last one may be cut off.
        let (from, to) = (from.max(at), past_marks(to).min(end));
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
    fn finds_and_marks_words_in_titles_and_messages() {
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
        // Accents are ignored, the last word may be incomplete, and all words must match.
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
    fn finds_substrings_in_text_without_spaces() {
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
        // All parts must match, in any order. Latin letters are found in either case.
        assert_eq!(found("循环 今天"), [said("[今天]北京的天气怎么样？用Python[循环]写")]);
        assert_eq!(found("python循"), [said("今天北京的天气怎么样？用[Python循]环写")]);
        assert_eq!(found("天气 東京"), []);
        assert_eq!(found("タワー"), [(Some(kana), marked("東京[タワー]はどこですか"))]);
        // Overlapping parts are marked once.
        assert_eq!(found("北京天 京天气"), [(None, marked("[北京天][气]"))]);
        // Near the end of a long text.
        let long = format!("{}天坛{}", "前".repeat(100), "后".repeat(100));
        store.add_question(other, Some(kana), &long, 5).unwrap();
        let around = format!("…{}[天坛]{}…", "前".repeat(CHARS_BEFORE), "后".repeat(CHARS_AFTER - 2));
        assert_eq!(found("天坛")[0].1, marked(&around));
        store.delete_conversation(weather, 6).unwrap();
        assert_eq!(found("天气"), []);
        // Wildcards of LIKE match nothing.
        assert_eq!(found("%天坛_").len(), 1);
        assert_eq!(found("%_"), []);
    }

    /// Searches messages with these texts. Returns the excerpts, latest first, with brackets for marks.
    fn excerpts(texts: &[&str], query: &str) -> Vec<String> {
        let store = Store::in_memory().unwrap();
        let conversation = store.create_conversation(1).unwrap();
        for text in texts.iter().rev() {
            store.add_question(conversation, None, text, 2).unwrap();
        }
        let hits = store.search(query).unwrap();
        hits.into_iter().map(|hit| hit.excerpt.replace(HIT.0, "[").replace(HIT.1, "]")).collect()
    }

    #[test]
    fn finds_a_latin_word_within_text_without_spaces() {
        let found = |text: &str, query: &str| excerpts(&[text], query);
        for query in ["Python", "python", "pyt"] {
            assert_eq!(found("用Python循环写", query), ["用[Python]循环写"], "{query}");
        }
        assert_eq!(found("用Python循环写 C代码", "python c"), ["用[Python]循环写 [C]代码"]);
        assert_eq!(found("第3天", "3"), ["第[3]天"]);
        assert_eq!(found("파이썬Python을", "python"), ["파이썬[Python]을"]);
        // It must be a whole word, as with spaces around it.
        for (text, query) in [
            ("用Python循环写", "thon"),
            ("第13天", "3"),
            ("用Python循环写", "pyt 循环"),
            ("用Python写", "Rust"),
        ] {
            assert_eq!(found(text, query), [""; 0], "{query}");
        }
        // The word index also finds a sentence that begins with it. That is one hit, with the word marked.
        assert_eq!(found("Python循环写", "python"), ["[Python]循环写"]);
        let texts = ["循环用Python写", "No spaces, no Python here", "Python循环写"];
        let mut all = excerpts(&texts, "python");
        assert_eq!(all.pop().unwrap(), "循环用[Python]写", "what the index of words finds comes first");
        all.sort_unstable();
        assert_eq!(all, ["No spaces, no [Python] here", "[Python]循环写"]);
    }

    #[test]
    fn finds_the_current_text_without_spaces() {
        let store = Store::in_memory().unwrap();
        let id = store.create_conversation(1).unwrap();
        let titled = |title: &str| {
            store.rename_conversation(id, title).unwrap();
            store.search("python").unwrap().len()
        };
        assert_eq!(
            (titled("用Python写"), titled("用Rust写"), titled("Python"), titled("用Python写")),
            (1, 0, 1, 1)
        );
        let deleted = || store.search("python").unwrap().len();
        store.delete_conversation(id, 2).unwrap();
        assert_eq!(deleted(), 0);
        store.purge_deleted().unwrap();
        assert_eq!(deleted(), 0);
    }

    #[test]
    fn keeps_combining_marks_with_their_letters() {
        let whole = ["น้ำ", "ที่", "မြန်မာ", "ខ្ញុំ", "ຊື່", "हिन्दी", "e\u{301}te\u{301}"];
        assert_eq!(words(&whole.join(" , ")), whole);
        assert_eq!(words("\u{0e49} \u{301}"), [""; 0], "nothing to stand on");
        assert_eq!(excerpts(&["ดื่มน้ำมาก", "นำมา"], "น้ำ"), ["ดื่ม[น้ำ]มาก"]);
        assert_eq!(excerpts(&["ดื่มน้ำ"], "น"), ["ดื่ม[น้]ำ"]);
        assert_eq!(excerpts(&["यह हिन्दी है"], "हिन्दी"), ["यह [हिन्दी] है"]);
        // An excerpt does not begin between the two either.
        let long = format!("{}{}น้ำ", "ก้".repeat(20), "ก".repeat(CHARS_BEFORE - 1));
        assert_eq!(excerpts(&[&long], "น้ำ"), [format!("…{}[น้ำ]", "ก".repeat(CHARS_BEFORE - 1))]);
    }

    #[test]
    fn index_pattern_matches_the_characters_of_stands_unspaced() {
        let store = Store::in_memory().unwrap();
        let connection = store.connection();
        let mut glob = connection.prepare(concat!("SELECT 'a' || ?1 || 'b' GLOB ", unspaced!())).unwrap();
        let edges = ('\u{1}'..=char::MAX).zip('\u{2}'..=char::MAX);
        let edges = edges.filter(|(a, b)| stands_unspaced(*a) != stands_unspaced(*b));
        let edges: Vec<char> = edges.flat_map(|(a, b)| [a, b]).collect();
        assert!(edges.len() > 30);
        for c in edges {
            let is: bool = glob.query_row([c.to_string()], |row| row.get(0)).unwrap();
            assert_eq!(is, stands_unspaced(c), "{c:?}");
        }
    }

    #[test]
    fn no_query_breaks_the_search() {
        let store = Store::in_memory().unwrap();
        let conversation = store.create_conversation(1).unwrap();
        store.add_question(conversation, None, "天气 word", 2).unwrap();
        for query in [
            "",
            "  ",
            "\"",
            "a\"b",
            "NEAR(",
            "x AND",
            "title:y",
            "*",
            "-z",
            "^",
            "{}",
            "'; DROP TABLE",
            "\u{301}",
            "\u{94d}",
            "ि",
            "\0",
        ] {
            assert!(store.search(query).unwrap().is_empty(), "{query}");
        }
        // Only the beginning of a pasted page is searched for.
        for query in ["天气 ", "天 气，", "word ", "word 天 "] {
            assert_eq!(store.search(&query.repeat(5000)).unwrap().len(), 1, "{query}");
        }
        for query in ["天", "word", "น้ำ"] {
            assert!(store.search(&query.repeat(50_000)).unwrap().is_empty(), "{query}");
        }
    }
}
