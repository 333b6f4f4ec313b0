//! A model file mapped into memory. Nothing else maps files.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::error::{Error, Result};

/// A whole file, mapped read-only.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps `path`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be opened or mapped; [`Error::InvalidModelFile`] for a folder
    /// or an empty file.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
        // Before it is opened: opening a pipe waits for somebody to write to it.
        let meta = std::fs::metadata(path).map_err(io)?;
        if !meta.is_file() || meta.len() == 0 {
            return Err(Error::InvalidModelFile {
                path: path.to_path_buf(),
                reason: if meta.is_file() { "it is empty" } else { "it is not a file" }.into(),
            });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and private to this value. Another process that truncates
        // the file while it is mapped could still make a read fault; that is the price of not
        // copying gigabytes, and what every GGUF engine accepts.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self { path: path.to_path_buf(), map })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Says that these bytes will hardly be read again, so that they need not stay in memory. They
    /// can be: then they come from the file once more.
    pub fn release(&self, range: Range<usize>) {
        // SAFETY: the map is of a file and never written: what is dropped is read again as it was.
        #[cfg(unix)]
        let advised = unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        // It is a hint: that the system does not take it does no harm.
        #[cfg(unix)]
        drop(advised);
        #[cfg(not(unix))]
        drop(range);
    }
}
