//! Small text files of other programs, read with a size limit. Writing belongs to
//! [`hunch_model::atomic_file`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Limit for manifests, descriptions and settings, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a text file of at most 1 MiB. Returns `None` if it is unreadable, longer, or not UTF-8.
pub(super) fn read(path: &Path) -> Option<String> {
    read_up_to(path, MAX_BYTES)
}

/// Reads a text file of at most `max_bytes` bytes.
pub(super) fn read_up_to(path: &Path, max_bytes: u64) -> Option<String> {
    // Checked before opening, because opening a named pipe blocks until a writer connects.
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > max_bytes {
        return None;
    }
    let mut text = String::new();
    let read = File::open(path).ok()?.take(max_bytes + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= max_bytes).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_text_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.json");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path).as_deref(), Some("12345"));
        assert_eq!((read_up_to(&path, 5).as_deref(), read_up_to(&path, 4)), (Some("12345"), None));
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!((read(&path), read(folder.path())), (None, None));
    }
}
