//! Compares vocabularies of model files. Reading one takes 0.1 s, so results are cached in
//! `vocabularies.json` in the data folder. It holds a digest per file and a verdict per pair of digests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::locked_json;
use hunch_error::{Error, Result};
use hunch_model::text::{Vocabulary, VocabularyVerdict};
use hunch_model::{model_folder, split};

/// Limit of cached files. When it is reached, the cache is cleared.
const MAX_FILES: usize = 1000;

/// Content of the cache file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Cache {
    /// Digest by file identity.
    #[serde(default)]
    digests: BTreeMap<String, String>,
    /// Verdict by the digests of target and draft. Earlier versions called the list `verdicts`, and did not count shared
    /// tokens.
    #[serde(default, rename = "comparisons")]
    verdicts: BTreeMap<String, VocabularyVerdict>,
}

/// Cached vocabulary comparisons.
#[derive(Debug)]
pub struct Vocabularies {
    /// Path of the cache file. `None` keeps the cache in memory only.
    path: Option<PathBuf>,
    known: Mutex<Cache>,
}

impl Vocabularies {
    /// Opens the cache in Hunch's data folder, or in memory only.
    pub fn open(folder: Option<&Path>) -> Self {
        let path = folder.map(|folder| folder.join("vocabularies.json"));
        let known = path.as_deref().map(locked_json::read).unwrap_or_default();
        Self { path, known: Mutex::new(known) }
    }

    /// Compares the vocabularies of a target and a draft model.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn compare(&self, target: &Path, draft: &Path) -> Result<VocabularyVerdict> {
        let (files, mut read) = ([identity(target)?, identity(draft)?], [None, None]);
        let known = self.known.lock().clone();
        let mut digests = [String::new(), String::new()];
        for (i, path) in [target, draft].into_iter().enumerate() {
            digests[i] = match known.digests.get(&files[i]) {
                Some(digest) => digest.clone(),
                None => digest(read[i].insert(read_vocabulary(path)?)),
            };
        }
        let pair = digests.join(" ");
        let verdict = match known.verdicts.get(&pair) {
            Some(verdict) => verdict.clone(),
            None if digests[0] == digests[1] => {
                VocabularyVerdict::Same { shared: entries(&digests[0]), padding: 0 }
            }
            None => {
                let [of_target, of_draft] = read;
                let of_target = of_target.map_or_else(|| read_vocabulary(target), Ok)?;
                let of_draft = of_draft.map_or_else(|| read_vocabulary(draft), Ok)?;
                of_target.compare(&of_draft)
            }
        };
        let add = |known: &mut Cache| {
            if known.digests.len() >= MAX_FILES {
                *known = Cache::default();
            }
            known.digests.extend(files.iter().cloned().zip(digests.iter().cloned()));
            known.verdicts.insert(pair.clone(), verdict.clone());
        };
        if !known.verdicts.contains_key(&pair) || files.iter().any(|file| !known.digests.contains_key(file)) {
            add(&mut self.known.lock());
            // If saving fails, the comparison is repeated next time.
            let _ = self.path.as_deref().map(|path| locked_json::update(path, add));
        }
        Ok(verdict)
    }
}

/// Returns a key of the contents that a vocabulary is read from: path, sizes and modification times. The settings of a
/// model folder count too.
fn identity(path: &Path) -> Result<String> {
    let stamp = |meta: std::fs::Metadata| {
        let changed = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        format!("{} {} ", meta.len(), changed.map_or(0, |time| time.as_nanos()))
    };
    let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let weights = stamp(std::fs::metadata(path).map_err(io)?);
    let settings = model_folder::settings_files(path).into_iter();
    let settings = settings.filter_map(|file| std::fs::metadata(file).ok()).map(stamp);
    Ok(weights + &settings.collect::<String>() + &path.display().to_string())
}

/// Returns the number of entries and their digest.
fn digest(vocabulary: &Vocabulary) -> String {
    format!("{}-{}", vocabulary.len(), vocabulary.digest())
}

fn entries(digest: &str) -> u32 {
    digest.split('-').next().and_then(|entries| entries.parse().ok()).unwrap_or(0)
}

/// Read without mapping, because another program may truncate its file meanwhile.
fn read_vocabulary(path: &Path) -> Result<Vocabulary> {
    Vocabulary::from_gguf(&split::read(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a GGUF that holds only a vocabulary.
    fn write(path: &Path, texts: &[&str]) {
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend([0u64, 1].map(u64::to_le_bytes).concat());
        text(&mut out, "tokenizer.ggml.tokens");
        out.extend([9u32, 8].map(u32::to_le_bytes).concat());
        out.extend((texts.len() as u64).to_le_bytes());
        texts.iter().for_each(|entry| text(&mut out, entry));
        out.resize(out.len().next_multiple_of(32), 0);
        std::fs::write(path, out).unwrap();
    }

    #[test]
    fn comparison_is_cached_until_a_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let [target, draft, other] = ["target", "draft", "other"].map(|name| folder.path().join(name));
        write(&target, &["a", "b", "c"]);
        write(&draft, &["a", "b", "c"]);
        write(&other, &["a", "x"]);
        let same = VocabularyVerdict::Same { shared: 3, padding: 0 };
        let differs = VocabularyVerdict::Translated { shared: 1, of: 2 };
        let first = Vocabularies::open(Some(folder.path()));
        assert_eq!(first.compare(&target, &draft).unwrap(), same);
        assert_eq!(first.compare(&target, &other).unwrap(), differs);
        // The cache file is shared between processes.
        let known: Cache = locked_json::read(&folder.path().join("vocabularies.json"));
        assert_eq!((known.digests.len(), known.verdicts.len()), (3, 2));
        let second = Vocabularies::open(Some(folder.path()));
        assert_eq!(second.compare(&target, &other).unwrap(), differs);
        write(&other, &["a", "b", "c", "d"]);
        let more = VocabularyVerdict::Same { shared: 3, padding: 1 };
        assert_eq!(second.compare(&target, &other).unwrap(), more);
        // Without a folder, comparisons work and nothing is persisted.
        assert_eq!(Vocabularies::open(None).compare(&draft, &target).unwrap(), same);
        write(&other, &["x", "y", "z", "w", "v"]);
        let strangers = VocabularyVerdict::Other { first: 0, of_target: "a".into(), of_draft: "x".into() };
        assert_eq!(second.compare(&target, &other).unwrap(), strangers);
        // Verdicts of earlier versions, which did not count shared tokens, are not used.
        let path = folder.path().join("vocabularies.json");
        let earlier = std::fs::read_to_string(&path).unwrap().replace("comparisons", "verdicts");
        std::fs::write(&path, earlier.replace("\"of_draft\":\"x\"", "\"of_draft\":\"old\"")).unwrap();
        assert_eq!(Vocabularies::open(Some(folder.path())).compare(&target, &other).unwrap(), strangers);
        std::fs::write(&path, b"[").unwrap();
        assert_eq!(Vocabularies::open(Some(folder.path())).compare(&target, &draft).unwrap(), same);
        assert!(second.compare(&target, &folder.path().join("gone")).is_err());
    }
}
