//! The progress bar on standard error. Hidden when standard error is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar that disappears when it is dropped.
pub(crate) struct ProgressLine {
    bar: ProgressBar,
}

impl ProgressLine {
    /// Creates a bar without steps.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:20} {wide_msg}");
        bar.set_style(style.expect("the template is valid").progress_chars("━━ "));
        Self { bar }
    }

    /// Shows that `done` of `total` steps are over.
    pub(crate) fn show(&self, done: u64, total: u64, message: impl Into<String>) {
        self.bar.set_length(total.max(1));
        self.bar.set_position(done.min(total));
        self.bar.set_message(message.into());
    }

    /// Shows the number of a step from 0, such as "text 3 of 12".
    pub(crate) fn step(&self, what: &str, done: usize, total: usize) {
        self.show(done as u64, total as u64, format!("{what} {} of {total}", (done + 1).min(total)));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
