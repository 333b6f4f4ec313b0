//! How things look in a terminal: tokens in the colours of their origin, cards of figures.

use std::io::{self, IsTerminal, Write};

use hunch::event::{GenerationEvent, TokenEvent};
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenOrigin;

/// Whether to colour standard output: a terminal, and the user has not said no (no-color.org).
pub(crate) fn colour_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    io::stdout().is_terminal() && !refused
}

/// The ANSI codes of an origin: colour and underline, so that colour is never alone.
fn style(origin: TokenOrigin) -> &'static str {
    match origin {
        TokenOrigin::Accepted => "\x1b[32;4m",
        TokenOrigin::Resampled => "\x1b[33;4:3m",
        TokenOrigin::Bonus => "\x1b[35;4:2m",
        TokenOrigin::Plain | TokenOrigin::Prompt | TokenOrigin::Chosen => "",
    }
}

/// Writes one token. Line breaks stay outside the colour, or underlines would run on.
pub(crate) fn token(out: &mut impl Write, token: &TokenEvent, colour: bool) -> io::Result<()> {
    let style = style(token.origin);
    if !colour || style.is_empty() {
        return out.write_all(token.text.as_bytes());
    }
    for (i, line) in token.text.split('\n').enumerate() {
        if i > 0 {
            out.write_all(b"\n")?;
        }
        if !line.is_empty() {
            write!(out, "{style}{line}\x1b[0m")?;
        }
    }
    Ok(())
}

/// Writes the tokens an event brings and shows them at once.
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

/// One line that says what the colours mean.
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

/// The card of figures under an answer.
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
            "{:.2} tokens a pass   {} rounds   {} of {} drafted accepted ({:.0}%)",
            stats.mean_acceptance_length,
            stats.rounds,
            stats.accepted,
            stats.drafted,
            100.0 * stats.acceptance_rate
        ),
        format!(
            "time: propose {:.0}%  target {:.0}%  verify {:.0}%  other {:.0}%   {:.0} MiB peak   {}",
            share(stats.propose_ms),
            share(stats.target_ms),
            share(stats.verify_ms),
            share(stats.other_ms),
            stats.peak_memory_bytes as f64 / f64::from(1 << 20),
            stats.device
        ),
    ];
    if !positions.is_empty() {
        lines.insert(3, format!("accepted by position in the draft: {}", positions.join(" ")));
    }
    lines.join("\n")
}

/// A table with a header; the first column is aligned left, the others right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| line(cell)).collect()).collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let padded = |cells: Vec<&str>| {
        let cells = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, &w))| if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![padded(header.to_vec())];
    lines.extend(rows.iter().map(|row| padded(row.iter().map(String::as_str).collect())));
    lines.join("\n")
}

/// A text that may be a stranger's, as a line for the terminal: without the control characters, with which it
/// could command the terminal.
pub(crate) fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Bytes as MiB or GiB.
pub(crate) fn bytes(count: u64) -> String {
    let mib = count as f64 / f64::from(1 << 20);
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.0} MiB") }
}
