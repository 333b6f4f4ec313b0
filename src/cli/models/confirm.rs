//! Confirmation of deletions, asked on the terminal.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use hunch_error::Error;

use crate::cli::render;

/// Asks whether these entries are to be deleted, and returns true if so. `what` names the action at the start of a
/// sentence.
///
/// # Errors
/// [`Error::InvalidRequest`] without a terminal to ask on.
pub(super) fn ask(what: &str, entries: impl Iterator<Item = String>, bytes: u64) -> Result<bool> {
    if !io::stdin().is_terminal() {
        let text = format!(
            "{what} needs confirmation, and there is no terminal to ask on. Use --yes to remove it without asking."
        );
        return Err(Error::invalid(text).into());
    }
    // The question goes to standard error: standard output may be read by a program.
    let mut asking = io::stderr().lock();
    for entry in entries {
        writeln!(asking, "{}", render::line(&entry))?;
    }
    write!(asking, "Delete this permanently ({})? [y/N] ", render::bytes(bytes))?;
    asking.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
