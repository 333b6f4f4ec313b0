//! Small text files: read with a limit, because other programs wrote them, and written as a whole, so that
//! a reader never sees half of one.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// A manifest, a description or settings are never longer.
const LONGEST: u64 = 1 << 20;

/// The text of a file of up to 1 MiB; `None` when it cannot be read, is longer or is no text.
pub(super) fn text(path: &Path) -> Option<String> {
    text_up_to(path, LONGEST)
}

/// The text of a file of up to `longest` bytes.
pub(super) fn text_up_to(path: &Path, longest: u64) -> Option<String> {
    // Before it is opened: opening a pipe waits for somebody to write to it.
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > longest {
        return None;
    }
    let mut text = String::new();
    let read = File::open(path).ok()?.take(longest + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= longest).then_some(text)
}

/// Writes a file as a whole: what was there stays until all is written.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    // Of this process and thread alone: the window and the command line may write at the same time.
    let own = format!("{}-{:?}.part", std::process::id(), std::thread::current().id());
    let unfinished = path.with_extension(own.replace(['(', ')'], "-"));
    let written = std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_file(&unfinished);
    }
    written.map_err(io)
}
