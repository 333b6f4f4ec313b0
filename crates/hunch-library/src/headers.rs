//! Cache of model headers, because parsing a vocabulary of 150,000 tokens is slow and files seldom change.
//! An entry is valid while the sizes and modification times of its files match. A corrupt, outdated or
//! oversized cache file is treated as missing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::atomic_file;
use super::inspect::Look;
use super::places::Places;
use super::survey::Candidate;

/// Version of the cache: changes with the program and with this suffix.
const FORMAT: &str = concat!(env!("CARGO_PKG_VERSION"), "/1");
/// Limit of cached entries.
const MOST: usize = 2000;
/// Limit of the cache file, in bytes.
const LONGEST: u64 = 32 << 20;

/// Size and modification time of each file of a model, and the expected number of files.
type Stamp = (Vec<(u64, u64)>, usize);

#[derive(Clone, Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    look: Look,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: String,
    looks: HashMap<String, Known>,
}

/// Cached file reports by path.
#[derive(Default)]
pub(super) struct Headers {
    file: Option<PathBuf>,
    known: HashMap<String, Known>,
    changed: bool,
}

impl Headers {
    /// Opens the cache file, if it exists.
    pub(super) fn open(places: &Places) -> Self {
        let file = places.data.as_ref().map(|data| data.join("headers.json"));
        let text = file.as_ref().and_then(|file| atomic_file::text_up_to(file, LONGEST));
        let read = text.and_then(|text| serde_json::from_str::<File>(&text).ok());
        let known = read.filter(|read| read.format == FORMAT).map(|read| read.looks).unwrap_or_default();
        Self { file, known, changed: false }
    }

    /// Returns the cached report of a model whose files have not changed.
    pub(super) fn get(&self, candidate: &Candidate) -> Option<Look> {
        let known = self.known.get(key(candidate.path())?)?;
        (known.stamp == stamp(candidate)).then(|| known.look.clone())
    }

    /// Caches a report, unless the file could not be read.
    pub(super) fn put(&mut self, candidate: &Candidate, look: &Look) {
        if let Some(key) = key(candidate.path()).filter(|_| !look.passing) {
            self.known.insert(key.to_owned(), Known { stamp: stamp(candidate), look: look.clone() });
            self.changed = true;
        }
    }

    /// Writes the file if it changed. Keeps some entries of missing models, because an unmounted volume may
    /// return.
    pub(super) fn save(mut self, here: &[Candidate]) {
        let Some(file) = self.file.filter(|_| self.changed) else { return };
        if self.known.len() > MOST {
            let here: std::collections::HashSet<_> = here.iter().filter_map(|c| key(c.path())).collect();
            let mut room = MOST.saturating_sub(here.len());
            self.known.retain(|path, _| {
                let stays = here.contains(path.as_str()) || room > 0;
                room = room.saturating_sub(usize::from(!here.contains(path.as_str())));
                stays
            });
        }
        let file_text = serde_json::to_string(&File { format: FORMAT.into(), looks: self.known });
        if let Ok(text) = file_text {
            // Without the cache the next scan is slower, no more.
            let _ = atomic_file::write(&file, &text);
        }
    }
}

fn stamp(candidate: &Candidate) -> Stamp {
    (candidate.files.iter().map(|mark| (mark.size, mark.modified)).collect(), candidate.parts)
}

/// Returns the cache key of a path. Paths that are not UTF-8 are not cached.
fn key(path: &Path) -> Option<&str> {
    path.to_str()
}
