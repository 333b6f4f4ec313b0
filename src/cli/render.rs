//! Output for the terminal: tokens coloured by origin, cards of figures, tables.

use std::io::{self, IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use hunch::event::{GenerationEvent, TokenEvent};
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenOrigin;

/// Returns whether to colour standard output: it is a terminal and `NO_COLOR` is not set (no-color.org).
pub(crate) fn colour_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    io::stdout().is_terminal() && !refused
}

/// Returns the ANSI codes of an origin. Underlines make origins distinguishable without colour.
fn style(origin: TokenOrigin) -> &'static str {
    match origin {
        TokenOrigin::Accepted => "\x1b[32;4m",
        TokenOrigin::Resampled => "\x1b[33;4:3m",
        TokenOrigin::Bonus => "\x1b[35;4:2m",
        TokenOrigin::Plain | TokenOrigin::Chosen => "",
    }
}

/// Writes one token.
pub(crate) fn token(out: &mut impl Write, token: &TokenEvent, colour: bool) -> io::Result<()> {
    text(out, &token.text, token.origin, colour)
}

/// Writes text in the colour of an origin.
pub(crate) fn text(out: &mut impl Write, text: &str, origin: TokenOrigin, colour: bool) -> io::Result<()> {
    styled(out, text, if colour { style(origin) } else { "" })
}

/// Writes text that is not part of the answer, in grey.
pub(crate) fn dimmed(out: &mut impl Write, text: &str, colour: bool) -> io::Result<()> {
    styled(out, text, if colour { "\x1b[2m" } else { "" })
}

/// Writes text with an ANSI style. Line breaks have none, or underlines would continue to the end of the line. Control
/// characters of a model are removed, because they could control the terminal.
fn styled(out: &mut impl Write, text: &str, style: &str) -> io::Result<()> {
    let text = text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "");
    if style.is_empty() {
        return out.write_all(text.as_bytes());
    }
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.write_all(b"\n")?;
        }
        if !line.is_empty() {
            write!(out, "{style}{line}\x1b[0m")?;
        }
    }
    Ok(())
}

/// Writes the tokens of an event and flushes.
pub(crate) fn tokens_of(out: &mut impl Write, event: &GenerationEvent, colour: bool) -> io::Result<()> {
    let tokens = match event {
        GenerationEvent::Round(round) => &round.tokens,
        GenerationEvent::Finished { tokens, .. } => tokens,
        _ => return Ok(()),
    };
    for t in tokens {
        token(out, t, colour)?;
    }
    out.flush()
}

/// Formats the legend of the colours with token counts.
pub(crate) fn legend(stats: &GenerationStats, colour: bool) -> String {
    let paint = |origin, count, name| {
        let (on, off) =
            if colour && origin != TokenOrigin::Plain { (style(origin), "\x1b[0m") } else { ("", "") };
        format!("{on}{name}{off} {count}")
    };
    [
        paint(TokenOrigin::Accepted, stats.accepted, "accepted"),
        paint(TokenOrigin::Resampled, stats.resampled, "resampled"),
        paint(TokenOrigin::Bonus, stats.bonus, "bonus"),
        paint(TokenOrigin::Plain, stats.plain, "plain"),
    ]
    .join("   ")
}

/// Formats the figures of an answer.
pub(crate) fn card(stats: &GenerationStats, colour: bool) -> String {
    let total = stats.propose_ms + stats.target_ms + stats.verify_ms + stats.other_ms;
    let share = |ms: f64| if total > 0.0 { 100.0 * ms / total } else { 0.0 };
    let positions: Vec<String> =
        stats.accepted_at_position.iter().map(|p| format!("{:.0}%", 100.0 * p)).collect();
    let mut lines = vec![
        legend(stats, colour),
        format!(
            "{:.1} tok/s decode   {:.0} tok/s prefill   first token {:.0} ms   {} prompt + {} generated tokens",
            stats.decode_tok_s,
            stats.prefill_tok_s,
            stats.ttft_ms,
            stats.prompt_tokens,
            stats.generated_tokens
        ),
        format!(
            "{:.2} tokens per pass   {} rounds   {} of {} drafted accepted ({:.0}%)",
            stats.mean_acceptance_length,
            stats.rounds,
            stats.accepted,
            stats.drafted,
            100.0 * stats.acceptance_rate
        ),
        format!(
            "time: propose {:.0}%  target {:.0}%  verify {:.0}%  other {:.0}%   {:.0} MB peak   {}",
            share(stats.propose_ms),
            share(stats.target_ms),
            share(stats.verify_ms),
            share(stats.other_ms),
            stats.peak_memory_bytes as f64 / 1e6,
            stats.device
        ),
    ];
    if !positions.is_empty() {
        lines.insert(3, format!("accepted by position in the draft: {}", positions.join(" ")));
    }
    lines.join("\n")
}

/// Widest table that has two spaces between its columns. A wider one has a single space.
const ROOMY: usize = 100;

/// Formats a table with a header. The first column is aligned left, the others right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let text = columns(Some(header), rows, CellAlignment::Right, 2);
    if text.lines().all(|line| line.chars().count() <= ROOMY) {
        return text;
    }
    columns(Some(header), rows, CellAlignment::Right, 1)
}

/// Formats names and values in two columns, both aligned left.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let rows: Vec<_> = rows.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]).collect();
    list(&rows)
}

/// Formats rows without a header, all columns aligned left.
pub(crate) fn list(rows: &[Vec<String>]) -> String {
    columns(None, rows, CellAlignment::Left, 2)
}

/// Formats rows in columns with `gap` spaces between them, without lines and without wrapping.
fn columns(header: Option<&[&str]>, rows: &[Vec<String>], others: CellAlignment, gap: u16) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(header) = header {
        table.set_header(header.to_vec());
    }
    for row in rows {
        table.add_row(row.iter().map(|cell| line(cell)).collect::<Vec<_>>());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 0 } else { gap }, 0));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { others });
    }
    table.trim_fmt()
}

/// Removes control characters from untrusted text, which could otherwise control the terminal.
pub(crate) fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Formats bytes in MB or GB (10^6 or 10^9 bytes), as errors and the window do.
pub(crate) fn bytes(count: u64) -> String {
    let mb = count as f64 / 1e6;
    if mb >= 1e3 { format!("{:.2} GB", mb / 1e3) } else { format!("{mb:.0} MB") }
}

/// Formats a number with its noun, such as "1 run" or "3 runs".
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_and_drop_control_characters() {
        let rows = [vec!["a\u{1b}[31m".into(), "1".into()], vec!["longer".into(), "12.50".into()]];
        assert_eq!(table(&["name", "tok/s"], &rows), "name    tok/s\na[31m       1\nlonger  12.50");
        assert_eq!(
            fields(&[("size", bytes(1_400_000)), ("context", "2".into())]),
            "size     1 MB\ncontext  2"
        );
        assert_eq!((bytes(999_000_000), bytes(4_683_000_000)), ("999 MB".into(), "4.68 GB".into()));
        assert_eq!(table(&["name", "size"], &[]), "name  size");
    }

    #[test]
    fn wide_tables_use_single_spaces() {
        let header = ["x".repeat(9), "y".repeat(90)];
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        assert_eq!(table(&header, &[]), format!("{} {}", header[0], header[1]));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let rows = [vec!["模型".into(), "1".into()], vec!["abcd".into(), "2".into()]];
        assert_eq!(table(&["name", "n"], &rows), "name  n\n模型  1\nabcd  2");
    }

    #[test]
    fn counts_use_the_plural() {
        assert_eq!(
            (count(1, "run"), count(0, "run"), count(2, "run")),
            ("1 run".into(), "0 runs".into(), "2 runs".into())
        );
    }
}
