//! The log of the window: one file a day in the data folder, with each failure and its location. On the command line,
//! warnings go to standard error.
//!
//! It contains no secrets and no text of the user or a model. Messages of panics and of the page are cut at the first
//! quotation mark.

use std::any::Any;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{self, FormatFields};
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use hunch_error::{Error, Result};

/// Number of files to keep, one per day.
const FILES_KEPT: usize = 7;
/// Most bytes that one run of the program writes.
const MOST_BYTES: usize = 4 << 20;
/// Most characters of a message.
const MESSAGE_CHARS: usize = 200;
/// Most errors of the page that one run of the program logs.
const PAGE_PROBLEMS: u32 = 200;
/// Most stack locations logged for one error of the page.
const PAGE_PLACES: usize = 12;

/// Starts logging to files in the data folder, panics included. Returns the folder of the files.
///
/// # Errors
/// If the folder is not writable or another logger is installed.
pub fn start(data: &Path) -> Result<PathBuf> {
    let folder = data.join("logs");
    tracing::subscriber::set_global_default(subscriber(&folder)?)
        .map_err(|error| Error::Internal(format!("the log is already started: {error}")))?;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        log_panic(panic);
        before(panic);
    }));
    tracing::info!(version = crate::VERSION, "started");
    Ok(folder)
}

/// Writes warnings to standard error, for the command line. Nothing else of the log is shown there.
pub fn to_stderr() {
    let ours = Targets::new().with_target("hunch", Level::WARN);
    let lines = fmt::layer().event_format(PlainLine).with_writer(io::stderr).with_filter(ours);
    // A second call changes nothing.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
}

/// Form of a warning on a terminal: the name of the program and the message.
struct PlainLine;

impl<S, N> FormatEvent<S, N> for PlainLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut text = String::new();
        context.format_fields(format::Writer::new(&mut text), event)?;
        // A message may quote a file.
        for line in text.lines() {
            let line: String = line.chars().filter(|c| !c.is_control()).collect();
            writeln!(writer, "hunch: {line}")?;
        }
        Ok(())
    }
}

/// Returns the newest log file, or the folder if it has none.
pub fn newest(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // The name ends in the day.
    files.filter(|path| path.extension().is_some_and(|e| e == "log")).max().unwrap_or_else(|| folder.into())
}

/// Returns a subscriber that writes the events of Hunch to a folder, without those of its dependencies.
fn subscriber(folder: &Path) -> Result<impl Subscriber + Send + Sync + use<>> {
    let files = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("hunch")
        .filename_suffix("log")
        .max_log_files(FILES_KEPT)
        .build(folder)
        .map_err(|error| Error::Io {
            action: "write",
            path: folder.into(),
            source: io::Error::other(error.to_string()),
        })?;
    let capped = Capped(Arc::new(Mutex::new((files, MOST_BYTES))));
    let ours = Targets::new().with_target("hunch", Level::INFO).with_target("hunch_app", Level::INFO);
    let lines = fmt::layer().with_ansi(false).with_writer(move || capped.clone()).with_filter(ours);
    Ok(tracing_subscriber::registry().with(lines))
}

/// A writer that discards everything after a number of bytes.
struct Capped<W>(Arc<Mutex<(W, usize)>>);

impl<W> Clone for Capped<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: Write> Write for Capped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock();
        let (writer, left) = &mut *inner;
        if bytes.len() <= *left {
            *left -= bytes.len();
            writer.write_all(bytes)?;
        } else {
            *left = 0;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().0.flush()
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map_or_else(|| "unknown".into(), ToString::to_string);
    let thread = std::thread::current();
    let message = harmless(&panic_text(panic.payload()));
    tracing::error!(place, thread = thread.name().unwrap_or("unnamed"), message, "panic");
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown".into())
}

/// Logs an error of the page: kind, message and stack locations.
pub fn page_problem(kind: &str, message: &str, stack: &str) {
    static LOGGED: AtomicU32 = AtomicU32::new(0);
    if LOGGED.fetch_add(1, Ordering::Relaxed) < PAGE_PROBLEMS {
        let (kind, message, places) = (harmless(kind), harmless(message), places(stack));
        tracing::error!(kind, message, places, "the page failed");
    }
}

/// Cuts a message at the first quotation mark, because the quoted text may be the user's.
fn harmless(message: &str) -> String {
    let quotes = ['"', '\'', '`', '\n', '“', '‘', '«'];
    message.chars().take_while(|letter| !quotes.contains(letter)).take(MESSAGE_CHARS).collect()
}

/// Extracts the script locations from a stack trace, such as `index.js:12:34`.
fn places(stack: &str) -> String {
    let place = |line: &str| {
        let place = line.trim_end().trim_end_matches(')').rsplit('/').next().unwrap_or_default();
        let (file, numbers) = place.split_once(".js:")?;
        let named = file.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && file.len() < 80;
        let numbered = numbers.len() < 24 && numbers.chars().all(|c| c.is_ascii_digit() || c == ':');
        (named && numbered).then(|| place.to_owned())
    };
    stack.lines().filter_map(place).take(PAGE_PLACES).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn written(folder: &Path) -> String {
        std::fs::read_to_string(newest(folder)).unwrap()
    }

    #[test]
    fn logs_errors_with_locations_but_without_quoted_text() {
        let folder = tempfile::tempdir().unwrap();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            log_panic(panic);
            before(panic);
        }));
        tracing::subscriber::with_default(subscriber(folder.path()).unwrap(), || {
            tracing::warn!("The disk is slow.");
            tracing::warn!(target: "reqwest", "https://example.org/?signature=secret");
            let said = "é said in confidence";
            let _ = catch_unwind(|| said[1..].len());
            page_problem(
                "error",
                "Unexpected token in \"said in confidence\"",
                "Error: said in confidence 1:2\nat f (app://localhost/assets/index-a1.js:12:34)\n\
                 g@app://localhost/assets/lab.js:5:6\nsaid in confidence.js:7:8",
            );
        });
        let log = written(folder.path());
        assert!(log.contains("The disk is slow."), "{log}");
        assert!(log.contains("src/log.rs:") && log.contains("panic"), "{log}");
        assert!(log.contains("index-a1.js:12:34 lab.js:5:6\""), "{log}");
        for private in ["said", "confidence", "secret", "reqwest"] {
            assert!(!log.contains(private), "{private}: {log}");
        }
    }

    #[test]
    fn stops_writing_at_the_size_limit() {
        let mut capped = Capped(Arc::new(Mutex::new((Vec::new(), 10))));
        for line in ["12345", "67890", "x"] {
            assert_eq!(capped.write(line.as_bytes()).unwrap(), line.len());
        }
        assert_eq!(capped.0.lock().0, b"1234567890");
    }

    #[test]
    fn unwritable_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("logs");
        std::fs::write(&file, "in the way").unwrap();
        assert!(matches!(subscriber(&file.join("deeper")).err(), Some(Error::Io { .. })));
        assert_eq!(newest(&folder.path().join("none")), folder.path().join("none"));
    }
}
