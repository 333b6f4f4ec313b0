//! Model cards: the README of a repository as Markdown that can be read without HTML.

use super::client::{Hub, RequestFailure};
use crate::types::HubCard;
use hunch_error::{Error, Refusal, Result};

/// Limit of a card, in bytes. The rest is cut.
const MAX_CARD_BYTES: usize = 256 << 10;

/// Tags that are left out of a card. Other text in angle brackets stays: it may be a token such as `<think>`.
const TAGS: [&str; 54] = [
    "a",
    "abbr",
    "audio",
    "b",
    "big",
    "blockquote",
    "body",
    "br",
    "button",
    "center",
    "code",
    "col",
    "colgroup",
    "dd",
    "del",
    "details",
    "div",
    "dl",
    "dt",
    "em",
    "embed",
    "figcaption",
    "figure",
    "font",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "html",
    "i",
    "iframe",
    "img",
    "kbd",
    "li",
    "link",
    "object",
    "ol",
    "p",
    "picture",
    "pre",
    "small",
    "source",
    "span",
    "strong",
    "sub",
    "summary",
    "sup",
    "u",
    "ul",
    "video",
    "meta",
];
/// Tags of tables, which are left out likewise.
const TABLE_TAGS: [&str; 7] = ["table", "tbody", "td", "tfoot", "th", "thead", "tr"];
/// Tags whose content is left out too.
const HIDDEN: [&str; 4] = ["script", "style", "svg", "template"];
/// Tags that end a line.
const BREAKS: [&str; 17] = [
    "br", "center", "details", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "p", "summary",
    "table", "tr", "ul",
];

impl Hub {
    /// Fetches a model card. A repository without one has an empty card.
    pub(crate) async fn card(&self, repository: &str) -> Result<HubCard, RequestFailure> {
        let url = self.url(repository.split('/').chain(["raw", "main", "README.md"]));
        let (text, cut) = match self.read_start(url, repository, MAX_CARD_BYTES).await {
            Ok(body) => (
                plain_card(
                    String::from_utf8_lossy(&body.bytes).trim_end_matches(char::REPLACEMENT_CHARACTER),
                ),
                body.cut,
            ),
            Err(RequestFailure { error: Error::Refused(Refusal::NoSuchHubFile { .. }), .. }) => {
                (String::new(), false)
            }
            Err(failure) => return Err(failure),
        };
        Ok(HubCard { repository: repository.to_owned(), text, cut })
    }
}

/// Returns a model card without front matter, HTML tags and comments. Code keeps its text.
pub fn plain_card(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let mut out = String::with_capacity(text.len());
    let mut prose = String::new();
    let mut fence: Option<&str> = None;
    for line in without_front_matter(&text).split_inclusive('\n') {
        let marks = fence_marks(line);
        match fence {
            Some(open) => {
                out.push_str(line);
                if marks.is_some_and(|marks| marks.starts_with(open) && line.trim() == marks) {
                    fence = None;
                }
            }
            None if marks.is_some() => {
                out.push_str(&without_html(&std::mem::take(&mut prose)));
                out.push_str(line);
                fence = marks;
            }
            None => prose.push_str(line),
        }
    }
    out.push_str(&without_html(&prose));
    joined_blank_lines(&out)
}

/// Returns the marks of a line that opens or closes a block of code.
fn fence_marks(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let mark = line.chars().next().filter(|mark| ['`', '~'].contains(mark))?;
    let count = line.bytes().take_while(|byte| *byte == mark as u8).count();
    // A line of code in backticks opens no block.
    (count >= 3 && !(mark == '`' && line[count..].contains('`'))).then(|| &line[..count])
}

/// Returns the text after the front matter, which describes the card to the Hub.
fn without_front_matter(text: &str) -> &str {
    let Some(rest) = text.strip_prefix("---\n") else { return text };
    if let Some(rest) = rest.strip_prefix("---\n") {
        return rest;
    }
    match rest.split_once("\n---\n") {
        Some((_, body)) => body,
        None if rest.ends_with("\n---") => "",
        None => text,
    }
}

/// Leaves tags and comments out of a text. Runs in one pass: every `<` is looked at once.
fn without_html(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    // Searches that found nothing need not be repeated further on.
    let mut comments = true;
    let mut hidden = [true; HIDDEN.len()];
    while let Some(found) = text[at..].find('<') {
        let start = at + found;
        out.push_str(&text[at..start]);
        at = start;
        if comments && text[at..].starts_with("<!--") {
            match text[at..].find("-->") {
                Some(length) => {
                    at += length + 3;
                    continue;
                }
                None => comments = false,
            }
        }
        let Some((name, end)) = tag_at(&lower, at) else {
            out.push('<');
            at += 1;
            continue;
        };
        if let Some(index) = HIDDEN.iter().position(|hidden| *hidden == name) {
            let closing = format!("</{name}");
            let close = hidden[index].then(|| lower[end..].find(&closing)).flatten();
            let closed = close.and_then(|close| tag_at(&lower, end + close));
            hidden[index] = closed.is_some();
            at = closed.map_or(end, |(_, end)| end);
            continue;
        }
        if BREAKS.contains(&name) && !out.is_empty() && !out.ends_with('\n') {
            out.push('\n');
        }
        at = end;
    }
    out.push_str(&text[at..]);
    out
}

/// Returns the name of a known tag at a `<`, and the position after it.
fn tag_at(lower: &str, at: usize) -> Option<(&str, usize)> {
    /// Limit of a tag, in bytes. Longer ones are shown as they are.
    const MAX_TAG_BYTES: usize = 1000;
    let rest = &lower[at + 1..];
    let name_at = rest.strip_prefix('/').unwrap_or(rest);
    let length = name_at.bytes().take_while(u8::is_ascii_alphanumeric).count();
    let name = &name_at[..length];
    if !TAGS.contains(&name) && !TABLE_TAGS.contains(&name) && !HIDDEN.contains(&name) {
        return None;
    }
    // "<a@b.example>" and "<p:x>" are no tags.
    if !name_at[length..].starts_with(|c: char| c.is_whitespace() || c == '>' || c == '/') {
        return None;
    }
    let end = rest.bytes().take(MAX_TAG_BYTES).position(|byte| byte == b'>')?;
    Some((name, at + 1 + end + 1))
}

/// Keeps at most one blank line in a row, and none at the ends. Spaces that HTML had for its layout go with them.
fn joined_blank_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut blank = true;
    for line in text.lines() {
        let is_blank = line.trim().is_empty();
        if !(is_blank && blank) {
            out.push_str(if is_blank { "" } else { line });
            out.push('\n');
        }
        blank = is_blank;
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_matter_is_left_out() {
        assert_eq!(plain_card("---\nlicense: mit\ntags:\n- gguf\n---\n# Title\n"), "# Title");
        assert_eq!(plain_card("\u{feff}---\r\nlicense: mit\r\n---\r\nText\r\n"), "Text");
        assert_eq!(plain_card("---\n---\nText"), "Text");
        assert_eq!(plain_card("---\nlicense: mit\n---"), "");
        // A rule at the start is no front matter.
        assert_eq!(plain_card("---\nText"), "---\nText");
    }

    #[test]
    fn html_is_left_out_and_its_text_stays() {
        let card = "<div align=\"center\">\n  <img src=\"https://evil.example/pixel.png\" width=\"60%\"/>\n</div>\n\
                    <!-- a note -->\n<h1>Title</h1><p>Some <b>bold</b> text.<br>More</p>\n\
                    <script>alert(1)</script><style>p{}</style>End";
        let plain = plain_card(card);
        assert!(
            !plain.contains(['<', '>']) && !plain.contains("evil") && !plain.contains("alert"),
            "{plain}"
        );
        for text in ["Title\n", "Some bold text.\nMore", "End"] {
            assert!(plain.contains(text), "{plain}");
        }
    }

    #[test]
    fn tokens_addresses_and_code_stay() {
        let card = "Answers begin with <think> and <|im_start|>. See <https://a.example> or 1 < 2.\n\n\
                    ```html\n<div>code</div>\n```\n\n~~~\n```\n<p>\n~~~\n<p>text";
        let plain = plain_card(card);
        for text in [
            "<think>",
            "<|im_start|>",
            "<https://a.example>",
            "1 < 2",
            "<div>code</div>",
            "```\n<p>\n~~~\ntext",
        ] {
            assert!(plain.contains(text), "{text}: {plain}");
        }
    }

    #[test]
    fn hostile_cards_are_read_in_little_time() {
        for piece in ["<", "<!--", "<script>", "<p", "</", "<style ", "`"] {
            let text = piece.repeat(MAX_CARD_BYTES / piece.len());
            assert!(plain_card(&text).len() <= text.len());
        }
        // The only end is that of another tag.
        assert_eq!(plain_card(&("<script>".repeat(32_000) + "</scriptx")), "</scriptx");
    }

    #[test]
    fn blank_lines_are_joined() {
        assert_eq!(plain_card("\n\n a\n   \n\n\nb\n\n"), " a\n\nb");
    }
}
