//! A model file that is read at positions. It is never mapped: a mapping of a file that somebody else cuts short
//! ends the program.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hunch_error::{Error, Result};

/// An open model file.
#[derive(Debug)]
pub struct ModelFile {
    path: PathBuf,
    file: File,
    /// Bytes when it was opened.
    len: usize,
    /// When it was written last before it was opened.
    modified: Option<SystemTime>,
}

impl ModelFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened; [`Error::InvalidModelFile`] for a folder, a pipe or an empty file.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
        let invalid = |reason: &str| Error::InvalidModelFile { path: path.into(), reason: reason.into() };
        // Before it is opened: opening a pipe waits for somebody to write to it.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(invalid("it is not a file"));
        }
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        let len =
            usize::try_from(meta.len()).map_err(|_| invalid("it is larger than this machine can address"))?;
        if len == 0 {
            return Err(invalid("it is empty"));
        }
        Ok(Self { path: path.to_path_buf(), file, len, modified: meta.modified().ok() })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes when it was opened.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes, which [`open`](Self::open) refuses.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` with the bytes from `at` on.
    ///
    /// # Errors
    /// [`Error::Io`] when the device fails or the file has become shorter.
    pub fn read_into(&self, at: usize, out: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, out, at as u64).map_err(|source| {
            let short = source.kind() == std::io::ErrorKind::UnexpectedEof;
            self.failed(if short { changed("it became shorter while it was read") } else { source })
        })
    }

    /// The bytes of a range.
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into); [`Error::OutOfMemory`] when there is no room.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let no_room = |_| Error::OutOfMemory(format!("a tensor needs {} MiB", range.len() >> 20));
        bytes.try_reserve_exact(range.len()).map_err(no_room)?;
        bytes.resize(range.len(), 0);
        self.read_into(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that nobody has written to the file since it was opened.
    ///
    /// # Errors
    /// [`Error::Io`] when somebody has.
    pub fn check_unchanged(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|source| self.failed(source))?;
        if now.len() == self.len as u64 && now.modified().ok() == self.modified {
            return Ok(());
        }
        Err(self.failed(changed("another program wrote to it while it was read")))
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { action: "read", path: self.path.clone(), source }
    }
}

fn changed(how: &str) -> std::io::Error {
    std::io::Error::other(format!("{how}; wait until it is complete, then load it again"))
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut at: u64) -> std::io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => (out, at) = (&mut out[read..], at + read as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_file_or_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(ModelFile::open(folder.path()), Err(Error::InvalidModelFile { .. })));
        let empty = folder.path().join("empty.gguf");
        std::fs::write(&empty, b"").unwrap();
        let refused = ModelFile::open(&empty).unwrap_err().to_string();
        assert!(refused.contains("it is empty"), "{refused}");
        assert!(matches!(ModelFile::open(&folder.path().join("gone")), Err(Error::Io { .. })));
    }

    #[test]
    fn says_when_a_file_became_shorter_or_was_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, b"0123456789").unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let file = ModelFile::open(&path).unwrap();
        assert_eq!((file.read(2..5).unwrap(), file.len()), (b"234".to_vec(), 10));
        file.check_unchanged().unwrap();
        std::fs::write(&path, b"9876543210").unwrap();
        let words = file.check_unchanged().unwrap_err().to_string();
        assert!(words.contains("another program wrote to it"), "{words}");
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let words = file.read(2..5).unwrap_err().to_string();
        assert!(words.contains("became shorter") && words.contains("model.gguf"), "{words}");
    }

    #[test]
    fn reads_on_when_another_file_takes_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = ModelFile::open(&path).unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, b"x").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(file.read(0..10).unwrap(), b"0123456789");
    }
}
