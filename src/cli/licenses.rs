//! `hunch licenses`: the licences of Hunch and its dependencies.

use std::io::Write;

use anyhow::Result;

/// Texts in printing order: Hunch's choice of licences, both licences, third-party notices.
const TEXTS: [&str; 4] = [
    include_str!("../../LICENSE"),
    include_str!("../../LICENSE-MIT"),
    include_str!("../../LICENSE-APACHE"),
    include_str!("../../THIRD-PARTY-NOTICES.txt"),
];

/// Prints all licence texts to standard output.
pub(crate) fn run() -> Result<()> {
    let rule = "=".repeat(100);
    let mut out = std::io::stdout().lock();
    for (index, text) in TEXTS.iter().enumerate() {
        if index > 0 {
            write!(out, "\n{rule}\n")?;
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}
