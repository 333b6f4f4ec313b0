//! Cache of model headers. Parsing a vocabulary of 150,000 tokens is slow, and files seldom change. An
//! entry is valid while the sizes and modification times of its files match. A corrupt, outdated or
//! oversized cache file is treated as missing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::candidates::ModelCandidate;
use super::inspect::FileReport;
use super::places::Places;
use super::text_file;
use hunch_model::atomic_file;

/// Version of the cache: changes with the program and with this suffix.
const FORMAT: &str = concat!(env!("CARGO_PKG_VERSION"), "/8");
/// Limit of cached entries.
const MAX_ENTRIES: usize = 2000;
/// Limit of the cache file, in bytes.
const MAX_BYTES: u64 = 32 << 20;

/// Size and modification time of each file, and the expected number of files.
type Stamp = (Vec<(u64, u64)>, usize);

#[derive(Clone, Serialize, Deserialize)]
struct CachedHeader {
    stamp: Stamp,
    report: FileReport,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: String,
    reports: HashMap<String, CachedHeader>,
}

/// Cached file reports by path.
#[derive(Default)]
pub(super) struct HeaderCache {
    file: Option<PathBuf>,
    known: HashMap<String, CachedHeader>,
    changed: bool,
}

impl HeaderCache {
    /// Opens the cache file, if it exists.
    pub(super) fn open(places: &Places) -> Self {
        let file = places.data.as_ref().map(|data| data.join("headers.json"));
        let text = file.as_ref().and_then(|file| text_file::read_up_to(file, MAX_BYTES));
        let read = text.and_then(|text| serde_json::from_str::<File>(&text).ok());
        let known = read.filter(|read| read.format == FORMAT).map(|read| read.reports).unwrap_or_default();
        Self { file, known, changed: false }
    }

    /// Returns the cached report of a model whose files have not changed.
    pub(super) fn get(&self, candidate: &ModelCandidate) -> Option<FileReport> {
        let known = self.known.get(key(candidate.path())?)?;
        (known.stamp == stamp(candidate)).then(|| known.report.clone())
    }

    /// Caches a report, unless the file could not be read.
    pub(super) fn put(&mut self, candidate: &ModelCandidate, report: &FileReport) {
        if let Some(key) = key(candidate.path()).filter(|_| !report.transient) {
            self.known
                .insert(key.to_owned(), CachedHeader { stamp: stamp(candidate), report: report.clone() });
            self.changed = true;
        }
    }

    /// Writes the file if it changed. Keeps some entries of missing models, because an unmounted volume may
    /// return.
    pub(super) fn save(mut self, here: &[ModelCandidate]) {
        let Some(file) = self.file.filter(|_| self.changed) else { return };
        if self.known.len() > MAX_ENTRIES {
            let here: std::collections::HashSet<_> = here.iter().filter_map(|c| key(c.path())).collect();
            let mut room = MAX_ENTRIES.saturating_sub(here.len());
            self.known.retain(|path, _| {
                let stays = here.contains(path.as_str()) || room > 0;
                room = room.saturating_sub(usize::from(!here.contains(path.as_str())));
                stays
            });
        }
        let file_text = serde_json::to_string(&File { format: FORMAT.into(), reports: self.known });
        if let Ok(text) = file_text {
            // Without the cache the next scan is slower, no more.
            let _ = atomic_file::write(&file, &text);
        }
    }
}

fn stamp(candidate: &ModelCandidate) -> Stamp {
    (candidate.stamps(), candidate.parts)
}

/// Returns the cache key of a path. Paths that are not UTF-8 are not cached.
fn key(path: &Path) -> Option<&str> {
    path.to_str()
}
