//! Data that Hunch made for models: low-bit copies, training data, trained drafters, and files set aside. Lists what there
//! is with the model it belongs to, and deletes what the user names. Models themselves are deleted in
//! [`remove`](super::remove).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file::PART;
use hunch_model::file_lock::FileLock;
use hunch_model::{heads, low_bit};

use super::data_folders::{DRAFTERS_FOLDER, HEADS_FOLDER, LOW_BIT_FOLDER, SET_ASIDE_FOLDER, store_files};
use super::names::short_name;
use super::places::Places;
use super::scan::scan;
use crate::types::{StoredData, StoredKind};

/// Time after which an unfinished file counts as left behind. Its writer changes it all the time.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// A model on this machine: its name, and the start of the names of its data.
struct Owner {
    name: String,
    prefix: String,
}

/// Lists the data, the largest first within its kind. Reads samples of all models.
pub fn stored_data(places: &Places) -> Vec<StoredData> {
    let Some(data) = places.data.as_deref() else { return Vec::new() };
    let entries = entries(data);
    if entries.is_empty() {
        return Vec::new();
    }
    let owners: Vec<Owner> = scan(places)
        .models
        .into_iter()
        .filter_map(|model| {
            let path = PathBuf::from(&model.path);
            let prefix = format!("{}-{}", short_name(&path), low_bit::fingerprint(&path).ok()?);
            Some(Owner { name: model.name, prefix })
        })
        .collect();
    let mut stored: Vec<StoredData> = entries
        .into_iter()
        .map(|(kind, id)| {
            let path = data.join(&id);
            let model = match kind {
                StoredKind::Drafter => heads::describe(&path).ok().flatten().and_then(|head| head.target),
                _ => {
                    let name = id.split_once('/').map_or("", |(_, name)| name);
                    let owner = owners.iter().find(|owner| name.starts_with(&owner.prefix));
                    owner.map(|owner| owner.name.clone())
                }
            };
            let bytes = parts(kind, &path).iter().map(|part| bytes_of(part)).sum();
            StoredData { bytes, id, kind, model }
        })
        .collect();
    stored.sort_by(|a, b| (a.kind, b.bytes, &a.id).cmp(&(b.kind, a.bytes, &b.id)));
    stored
}

/// Deletes data by its id in the [list](stored_data).
///
/// # Errors
/// [`Error::InvalidRequest`] if nothing has this id. [`Refusal::TrainedElsewhere`] while a program trains with it.
/// [`Error::Io`] if a file cannot be deleted.
pub fn remove_stored_data(places: &Places, id: &str) -> Result<()> {
    let data = places.data.as_deref();
    let listed = data.and_then(|data| entries(data).into_iter().find(|(_, listed)| listed == id));
    let (Some((kind, _)), Some(data)) = (listed, data) else {
        return Err(Error::invalid(format!("There are no stored data named {id}. Nothing was deleted.")));
    };
    let path = data.join(id);
    // Held until the folder is gone, so that no run begins in it.
    let _lock = match kind {
        StoredKind::TrainingData if path.is_dir() => {
            Some(FileLock::of_folder(&path)?.ok_or(Refusal::TrainedElsewhere)?)
        }
        _ => None,
    };
    for part in parts(kind, &path).into_iter().rev() {
        // A link is deleted, and not what it leads to.
        let removed = match fs::symlink_metadata(&part) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(&part),
            Ok(_) => fs::remove_file(&part),
            Err(_) => continue,
        };
        removed.map_err(|source| Error::Io { action: "remove", path: part, source })?;
    }
    Ok(())
}

/// Lists the paths of an entry: a store that was set aside has a log and shared memory next to it.
fn parts(kind: StoredKind, path: &Path) -> Vec<PathBuf> {
    if kind == StoredKind::SetAside { store_files(path).into() } else { vec![path.to_owned()] }
}

/// Lists the kinds and ids of the data in a data folder.
fn entries(data: &Path) -> Vec<(StoredKind, String)> {
    let kinds = [
        (LOW_BIT_FOLDER, StoredKind::LowBitCopy),
        (DRAFTERS_FOLDER, StoredKind::TrainingData),
        (HEADS_FOLDER, StoredKind::Drafter),
        (SET_ASIDE_FOLDER, StoredKind::SetAside),
    ];
    let of_folder = |(folder, kind)| {
        let entries = fs::read_dir(data.join(folder)).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let id = format!("{folder}/{}", entry.file_name().into_string().ok()?);
            Some((kind_of(kind, &entry.path())?, id))
        })
    };
    kinds.into_iter().flat_map(of_folder).collect()
}

/// Returns the kind of an entry in the folder of a kind. `None` for a file that is being written, or a part of another
/// entry.
fn kind_of(kind: StoredKind, path: &Path) -> Option<StoredKind> {
    let name = path.to_string_lossy();
    let main = name.strip_suffix("-wal").or(name.strip_suffix("-shm"));
    if kind == StoredKind::SetAside && main.is_some_and(|main| Path::new(main).exists()) {
        return None;
    }
    if !name.ends_with(PART) {
        return Some(kind);
    }
    let unchanged = fs::metadata(path).and_then(|meta| meta.modified()).ok()?.elapsed().ok()?;
    (unchanged > ABANDONED).then_some(StoredKind::Unfinished)
}

/// Returns the bytes of a file, or of all files in a folder. Links are not followed.
fn bytes_of(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| bytes_of(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(folder: &Path) -> Places {
        let places =
            Places { models: folder.join("models"), data: Some(folder.to_owned()), ..Places::default() };
        for (name, bytes) in [
            ("low-bit/gone-0123456789abcdef.gguf", 30),
            ("low-bit/gone-0123456789abcdef.Xk3f9A.part", 20),
            ("drafters/gone-0123456789abcdef-seed-1/shards/0.safetensors", 100),
            ("drafters/gone-0123456789abcdef-seed-1/index.json", 5),
            ("set-aside/2026-11-30-014212.123.db", 7),
            ("set-aside/2026-11-30-014212.123.db-wal", 4),
            ("conversations.db", 9),
        ] {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        }
        places
    }

    #[test]
    fn lists_what_is_stored_with_its_size_and_leaves_out_what_is_being_written() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        let listed = |places| -> Vec<(String, StoredKind, u64)> {
            stored_data(places).into_iter().map(|stored| (stored.id, stored.kind, stored.bytes)).collect()
        };
        let copy = ("low-bit/gone-0123456789abcdef.gguf".to_owned(), StoredKind::LowBitCopy, 30);
        let training = ("drafters/gone-0123456789abcdef-seed-1".to_owned(), StoredKind::TrainingData, 105);
        let aside = ("set-aside/2026-11-30-014212.123.db".to_owned(), StoredKind::SetAside, 11);
        assert_eq!(listed(&places), [copy.clone(), training.clone(), aside.clone()]);
        let part = folder.path().join("low-bit/gone-0123456789abcdef.Xk3f9A.part");
        let old = fs::File::options().write(true).open(&part).unwrap();
        old.set_modified(std::time::SystemTime::now() - 2 * ABANDONED).unwrap();
        let unfinished = ("low-bit/gone-0123456789abcdef.Xk3f9A.part".to_owned(), StoredKind::Unfinished, 20);
        assert_eq!(listed(&places), [copy, training, aside, unfinished]);
        assert!(stored_data(&places).iter().all(|stored| stored.model.is_none()), "their model is gone");
    }

    #[test]
    fn deletes_only_what_is_listed_and_not_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        for wrong in ["conversations.db", "low-bit/../conversations.db", "low-bit", "", "/etc/hosts"] {
            assert!(matches!(remove_stored_data(&places, wrong), Err(Error::InvalidRequest(_))), "{wrong}");
        }
        let training = "drafters/gone-0123456789abcdef-seed-1";
        let held = FileLock::of_folder(&folder.path().join(training)).unwrap();
        let refused = remove_stored_data(&places, training);
        assert!(matches!(refused, Err(Error::Refused(Refusal::TrainedElsewhere))), "{refused:?}");
        drop(held);
        let aside = "set-aside/2026-11-30-014212.123.db";
        for id in [training, "low-bit/gone-0123456789abcdef.gguf", aside] {
            remove_stored_data(&places, id).unwrap();
            assert!(!folder.path().join(id).exists(), "{id}");
        }
        assert!(stored_data(&places).is_empty());
        assert!(!folder.path().join(format!("{aside}-wal")).exists());
        assert!(folder.path().join("conversations.db").exists());
    }
}
