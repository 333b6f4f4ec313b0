//! What was read of headers before: a vocabulary of 150,000 tokens takes a while to get through, and files
//! seldom change. A look is good as long as the files have the size and the time of writing they had then.
//! The file is a convenience: one that is damaged, of another version or too long is as good as none.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::atomic_file;
use super::inspect::Look;
use super::places::Places;
use super::survey::Candidate;

/// What a look says changes when this or the program's version does.
const FORMAT: &str = concat!(env!("CARGO_PKG_VERSION"), "/1");
/// Looks that are kept.
const MOST: usize = 2000;
/// Bytes of the file that are believed.
const LONGEST: u64 = 32 << 20;

/// Size and time of writing of every file of a model, and how many there should be.
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

/// The looks that are known.
#[derive(Default)]
pub(super) struct Headers {
    file: Option<PathBuf>,
    known: HashMap<String, Known>,
    changed: bool,
}

impl Headers {
    /// Opens the file, if there is one.
    pub(super) fn open(places: &Places) -> Self {
        let file = places.data.as_ref().map(|data| data.join("headers.json"));
        let text = file.as_ref().and_then(|file| atomic_file::text_up_to(file, LONGEST));
        let read = text.and_then(|text| serde_json::from_str::<File>(&text).ok());
        let known = read.filter(|read| read.format == FORMAT).map(|read| read.looks).unwrap_or_default();
        Self { file, known, changed: false }
    }

    /// The look at a model, if its files are as they were.
    pub(super) fn get(&self, candidate: &Candidate) -> Option<Look> {
        let known = self.known.get(key(candidate.path())?)?;
        (known.stamp == stamp(candidate)).then(|| known.look.clone())
    }

    /// Remembers a look. What could not be read is looked at again.
    pub(super) fn put(&mut self, candidate: &Candidate, look: &Look) {
        if let Some(key) = key(candidate.path()).filter(|_| !look.passing) {
            self.known.insert(key.to_owned(), Known { stamp: stamp(candidate), look: look.clone() });
            self.changed = true;
        }
    }

    /// Writes the file, if there is something new. Of models that are not here now some are kept: a volume
    /// that is away comes back.
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
            // Without it the next scan is slower, and nothing else.
            let _ = atomic_file::write(&file, &text);
        }
    }
}

fn stamp(candidate: &Candidate) -> Stamp {
    (candidate.files.iter().map(|mark| (mark.size, mark.modified)).collect(), candidate.parts)
}

/// A path that is no text is looked at every time.
fn key(path: &Path) -> Option<&str> {
    path.to_str()
}
