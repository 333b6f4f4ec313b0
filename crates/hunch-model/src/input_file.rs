//! Opening of files that a user or another program provides: regular files only, and no more of them than a limit. The
//! meaning of their contents is left to the callers.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use hunch_error::{Error, Refusal, Result};

/// Returns the metadata of a regular file. Called before opening, because opening a pipe waits for its writer.
///
/// # Errors
/// [`Refusal::NotAFile`] if it is anything else, and [`Error::Io`] if there is nothing.
pub fn regular(path: &Path) -> Result<Metadata> {
    let io = |source| Error::Io { action: "read", path: path.into(), source };
    let metadata = std::fs::metadata(path).map_err(io)?;
    if metadata.is_file() { Ok(metadata) } else { Err(Refusal::NotAFile { path: path.into() }.into()) }
}

/// Returns whether the name of a file or folder begins with a dot. Such are locks, thumbnails, and "._NAME", in which macOS
/// keeps attributes on volumes of other systems.
pub fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Reads a file of at most `most` bytes. `None` if it is larger, also if it grows while it is read.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// Returns bytes as text. `None` if they are no UTF-8, or have a zero as only binary files do.
pub fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_regular_files_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abcd").unwrap();
        assert_eq!(regular(&path).unwrap().len(), 4);
        assert_eq!(read(&path, 4).unwrap().as_deref(), Some(&b"abcd"[..]));
        assert_eq!(read(&path, 3).unwrap(), None);
        assert!(matches!(regular(folder.path()), Err(Error::Refused(Refusal::NotAFile { .. }))));
        assert!(read(&folder.path().join("none"), 4).is_err());
    }
}
