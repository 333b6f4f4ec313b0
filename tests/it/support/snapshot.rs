//! Snapshots of a folder, to detect changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Folder,
    /// Target of the link.
    Link(PathBuf),
    /// Modification time and bytes.
    File(SystemTime, Vec<u8>),
}

/// Returns everything below a folder by relative path. Links are not followed.
pub(crate) fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Thing> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let thing = if meta.is_symlink() {
                Thing::Link(std::fs::read_link(&path).unwrap())
            } else if meta.is_dir() {
                folders.push(path.clone());
                Thing::Folder
            } else {
                Thing::File(meta.modified().unwrap(), std::fs::read(&path).unwrap())
            };
            found.insert(path.strip_prefix(folder).unwrap().to_path_buf(), thing);
        }
    }
    found
}
