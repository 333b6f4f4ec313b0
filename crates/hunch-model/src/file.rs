//! Positioned reads from a model file. The format of the contents does not belong here.
//!
//! The file is never mapped into memory, because the process would crash if another program truncated
//! a mapped file.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use hunch_error::{Error, Result, megabytes};

/// Open model file.
pub(crate) struct ModelFile {
    path: PathBuf,
    source: ByteSource,
    /// Size in bytes when the file was opened.
    len: usize,
}

/// Source of the bytes.
enum ByteSource {
    File {
        file: File,
        /// Modification time when the file was opened.
        modified: Option<SystemTime>,
    },
    /// Part of the program.
    Embedded(&'static [u8]),
    /// Bytes in memory.
    InMemory(Vec<u8>),
    /// Bytes that are computed from other files on every read.
    Derived(Box<dyn DerivedBytes>),
    /// Bytes that are unpacked when they are first needed.
    Unpacked { unpack: Unpack, bytes: OnceLock<Vec<u8>> },
}

/// Bytes that are computed from other files.
pub(crate) trait DerivedBytes: Send + Sync {
    /// Fills `out` with the bytes from offset `at`, which are in bounds.
    ///
    /// # Errors
    /// If a file cannot be read, or has no sound values.
    fn read_into(&self, at: usize, out: &mut [u8]) -> Result<()>;

    /// Checks that no file has been modified since it was opened.
    ///
    /// # Errors
    /// [`Error::Io`] if one was modified.
    fn check_unchanged(&self) -> Result<()>;
}

/// Unpacks the bytes of a tensor.
type Unpack = Box<dyn Fn() -> std::io::Result<Vec<u8>> + Send + Sync>;

impl ModelFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened, [`Error::InvalidModelFile`] for a folder, a pipe or an
    /// empty file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
        let invalid = |reason: &str| Error::InvalidModelFile { path: path.into(), reason: reason.into() };
        // Check before opening, because opening a pipe blocks until it has a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(invalid("it is not a file"));
        }
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        let len = usize::try_from(meta.len())
            .map_err(|_| invalid("it is too large for this machine's address space"))?;
        if len == 0 {
            return Err(invalid("it is empty"));
        }
        let source = ByteSource::File { file, modified: meta.modified().ok() };
        Ok(Self { path: path.to_path_buf(), source, len })
    }

    /// Wraps bytes that are part of the program.
    pub(crate) fn embedded(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: PathBuf::from(name), source: ByteSource::Embedded(bytes), len: bytes.len() }
    }

    /// Presents `len` bytes that are unpacked from the file at `path` when they are first needed, and then kept.
    pub(crate) fn unpacked(path: &Path, len: usize, unpack: Unpack) -> Self {
        Self {
            path: path.to_path_buf(),
            source: ByteSource::Unpacked { unpack, bytes: OnceLock::new() },
            len,
        }
    }

    /// Presents bytes in memory. `path` is used in errors.
    pub(crate) fn in_memory(path: &Path, bytes: Vec<u8>) -> Self {
        Self { path: path.to_path_buf(), len: bytes.len(), source: ByteSource::InMemory(bytes) }
    }

    /// Presents `len` bytes that are computed from other files. `path` is used in errors.
    pub(crate) fn derived(path: &Path, len: usize, bytes: Box<dyn DerivedBytes>) -> Self {
        Self { path: path.to_path_buf(), source: ByteSource::Derived(bytes), len }
    }

    /// Returns the path the file was opened with.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size in bytes when the file was opened.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Fills `out` with the bytes from offset `at`.
    ///
    /// # Errors
    /// [`Error::Io`] if reading fails or the file was truncated.
    pub(crate) fn read_into(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let read = match &self.source {
            ByteSource::File { file, .. } => read_exact_at(file, out, at as u64),
            ByteSource::Embedded(bytes) => copy_at(bytes, out, at),
            ByteSource::InMemory(bytes) => copy_at(bytes, out, at),
            ByteSource::Derived(bytes) => {
                return match at.checked_add(out.len()) {
                    Some(end) if end <= self.len => bytes.read_into(at, out),
                    _ => Err(self.failed(std::io::ErrorKind::UnexpectedEof.into())),
                };
            }
            ByteSource::Unpacked { unpack, bytes } => {
                let unpacked = bytes.get().map_or_else(|| unpack().map(|new| bytes.get_or_init(|| new)), Ok);
                unpacked.and_then(|bytes| copy_at(bytes, out, at))
            }
        };
        read.map_err(|source| {
            let short = source.kind() == std::io::ErrorKind::UnexpectedEof;
            self.failed(if short { modified("another program truncated it during loading") } else { source })
        })
    }

    /// Reads the bytes of a range.
    ///
    /// # Errors
    /// See [`read_into`](Self::read_into). [`Error::OutOfMemory`] if there is not enough memory.
    pub(crate) fn read(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let out_of_memory =
            |_| Error::OutOfMemory(format!("a tensor needs {}", megabytes(range.len() as u64)));
        bytes.try_reserve_exact(range.len()).map_err(out_of_memory)?;
        bytes.resize(range.len(), 0);
        self.read_into(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that the file has not been modified since it was opened.
    ///
    /// # Errors
    /// [`Error::Io`] if it was modified.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let (file, then) = match &self.source {
            ByteSource::File { file, modified } => (file, modified),
            ByteSource::Derived(bytes) => return bytes.check_unchanged(),
            ByteSource::Embedded(_) | ByteSource::InMemory(_) | ByteSource::Unpacked { .. } => return Ok(()),
        };
        let now = file.metadata().map_err(|source| self.failed(source))?;
        if now.len() == self.len as u64 && now.modified().ok() == *then {
            return Ok(());
        }
        Err(self.failed(modified("another program modified it during loading")))
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { action: "read", path: self.path.clone(), source }
    }
}

fn copy_at(bytes: &[u8], out: &mut [u8], at: usize) -> std::io::Result<()> {
    let range = at.checked_add(out.len()).and_then(|end| bytes.get(at..end));
    out.copy_from_slice(range.ok_or(std::io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

fn modified(how: &str) -> std::io::Error {
    std::io::Error::other(format!("{how}. Wait until the file is complete, then load it again"))
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
    fn rejects_folders_and_empty_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(ModelFile::open(folder.path()), Err(Error::InvalidModelFile { .. })));
        let empty = folder.path().join("empty.gguf");
        std::fs::write(&empty, b"").unwrap();
        let message = ModelFile::open(&empty).err().unwrap().to_string();
        assert!(message.contains("it is empty"), "{message}");
        assert!(matches!(ModelFile::open(&folder.path().join("gone")), Err(Error::Io { .. })));
    }

    #[test]
    fn reports_modified_and_truncated_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, b"0123456789").unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let file = ModelFile::open(&path).unwrap();
        assert_eq!((file.read(2..5).unwrap(), file.len()), (b"234".to_vec(), 10));
        file.check_unchanged().unwrap();
        std::fs::write(&path, b"9876543210").unwrap();
        let message = file.check_unchanged().unwrap_err().to_string();
        assert!(message.contains("another program modified it"), "{message}");
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let message = file.read(2..5).unwrap_err().to_string();
        assert!(message.contains("truncated") && message.contains("model.gguf"), "{message}");
    }

    #[test]
    fn keeps_reading_when_file_is_replaced() {
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
