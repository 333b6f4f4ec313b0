//! Walks a folder of unknown contents. Symbolic links are followed without looping. Depth and entry count
//! are limited. Unreadable folders are reported and skipped. No file is opened.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use hunch_model::input_file::is_hidden;

/// Depth limit. Hugging Face's cache has models at the fifth level.
const MAX_DEPTH: usize = 10;
/// Limit of entries. Models folders have hundreds; a home folder added by mistake has more.
const MAX_ENTRIES: usize = 50_000;

/// Identity of a file, the same for every path to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    /// Device and inode.
    #[cfg(unix)]
    Number(u64, u64),
    /// Canonical path, on systems without inodes.
    #[cfg(not(unix))]
    Path(PathBuf),
}

/// Metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileMeta {
    /// Path by which it was found.
    pub(super) path: PathBuf,
    /// Bytes.
    pub(super) size: u64,
    /// Modification time in nanoseconds since 1970, or 0 if the system does not report it.
    pub(super) modified: u64,
    /// Identity of the file.
    pub(super) identity: Identity,
}

impl FileMeta {
    /// Returns the metadata of a file, or `None` if the path is not a file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        Some(Self::new(path.to_path_buf(), &meta))
    }

    fn new(path: PathBuf, meta: &Metadata) -> Self {
        let since = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        Self { identity: identity(&path, meta), path, size: meta.len(), modified }
    }
}

#[cfg(unix)]
fn identity(_: &Path, meta: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity::Number(meta.dev(), meta.ino())
}

#[cfg(not(unix))]
fn identity(path: &Path, _: &Metadata) -> Identity {
    Identity::Path(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()))
}

/// Result of a walk.
#[derive(Debug, Default)]
pub(super) struct WalkResult {
    /// The files, breadth first, by name within each folder.
    pub(super) files: Vec<FileMeta>,
    /// Reason for a skipped folder, if there is one.
    pub(super) problem: Option<String>,
}

impl WalkResult {
    /// Records a problem. Only the first one is reported.
    fn report(&mut self, problem: impl FnOnce() -> String) {
        self.problem.get_or_insert_with(problem);
    }
}

/// Returns the files below `root` whose name `wanted` accepts. A missing root has none.
pub(super) fn walk(root: &Path, wanted: impl Fn(&OsStr) -> bool) -> WalkResult {
    walk_where(root, wanted, |_, _| true)
}

/// Like [`walk`], entering only accepted folders. `entered` receives the depth below `root` (0 = direct
/// child) and the name. Entries of other folders do not count towards the limit.
pub(super) fn walk_where(
    root: &Path,
    wanted: impl Fn(&OsStr) -> bool,
    entered: impl Fn(usize, &OsStr) -> bool,
) -> WalkResult {
    walk_within(root, wanted, entered, MAX_DEPTH, MAX_ENTRIES)
}

fn walk_within(
    root: &Path,
    wanted: impl Fn(&OsStr) -> bool,
    entered: impl Fn(usize, &OsStr) -> bool,
    max_depth: usize,
    max_entries: usize,
) -> WalkResult {
    let mut walked = WalkResult::default();
    let (mut folders, mut visited) = (VecDeque::new(), HashSet::new());
    match std::fs::metadata(root) {
        Ok(meta) if meta.is_dir() => {
            visited.insert(identity(root, &meta));
            folders.push_back((root.to_path_buf(), 0));
        }
        Ok(_) => walked.report(|| format!("{} is not a folder.", root.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => walked.report(|| format!("{} cannot be read: {error}.", root.display())),
    }
    let mut entries = 0;
    while let Some((folder, depth)) = folders.pop_front() {
        let mut names = match names(&folder, max_entries - entries) {
            Ok(names) => names,
            Err(error) => {
                walked.report(|| format!("{} cannot be read: {error}.", folder.display()));
                continue;
            }
        };
        entries += names.len();
        if entries >= max_entries {
            walked.report(|| {
                format!(
                    "It contains more than {max_entries} files and folders. The rest was skipped, so models may be missing from \
                     the list."
                )
            });
            return walked;
        }
        names.sort();
        for path in names {
            if is_hidden(&path) {
                continue;
            }
            let name = path.file_name().unwrap_or_default();
            // Skips broken links and files deleted during the walk.
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            if meta.is_file() && wanted(name) {
                walked.files.push(FileMeta::new(path, &meta));
            } else if meta.is_dir() && entered(depth, name) && visited.insert(identity(&path, &meta)) {
                if depth < max_depth {
                    folders.push_back((path, depth + 1));
                } else {
                    walked.report(|| format!("{} is nested too deeply and was skipped.", path.display()));
                }
            }
        }
    }
    walked
}

/// Returns at most `most` paths in a folder.
fn names(folder: &Path, max_entries: usize) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    Ok(entries.take(max_entries).filter_map(|entry| Some(entry.ok()?.path())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(walked: &WalkResult) -> Vec<String> {
        let name = |file: &FileMeta| file.path.file_name().unwrap().to_string_lossy().into_owned();
        walked.files.iter().map(name).collect()
    }

    #[test]
    fn missing_root_is_empty_and_file_root_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = walk(&folder.path().join("nowhere"), |_| true);
        assert!(nowhere.files.is_empty() && nowhere.problem.is_none());
        std::fs::write(folder.path().join("file"), "x").unwrap();
        assert!(walk(&folder.path().join("file"), |_| true).problem.is_some());
    }

    #[test]
    fn depth_and_entry_count_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
        for name in ["top", "a/one", "a/b/two", "a/b/c/three"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let everywhere = |_: usize, _: &OsStr| true;
        let walked = walk_within(folder.path(), |_| true, everywhere, 1, 100);
        assert_eq!(found(&walked), ["top", "one"]);
        assert!(walked.problem.unwrap().contains("too deeply"));
        let walked = walk_within(folder.path(), |_| true, everywhere, 9, 3);
        assert!(walked.problem.unwrap().contains("more than 3"));
        assert_eq!(walk(folder.path(), |_| true).problem, None);
    }

    #[test]
    fn skipped_folders_do_not_count_towards_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "models--a", "models--a/data"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for number in 0..20 {
            std::fs::write(folder.path().join(format!("data/{number}")), "x").unwrap();
        }
        std::fs::write(folder.path().join("models--a/data/here"), "x").unwrap();
        let entered = |depth: usize, name: &OsStr| depth > 0 || name != "data";
        let walked = walk_within(folder.path(), |_| true, entered, 9, 10);
        assert_eq!((found(&walked), walked.problem), (vec!["here".to_owned()], None));
        assert!(walk_within(folder.path(), |_| true, |_, _| true, 9, 10).problem.is_some());
    }

    #[cfg(unix)]
    #[test]
    fn follows_links_without_looping() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("x"), "x").unwrap();
        symlink(folder.path(), inner.join("up")).unwrap();
        symlink(&inner, folder.path().join("again")).unwrap();
        symlink("nowhere", folder.path().join("broken")).unwrap();
        symlink("itself", folder.path().join("itself")).unwrap();
        symlink(inner.join("x"), folder.path().join("y")).unwrap();
        let walked = walk(folder.path(), |_| true);
        assert_eq!(found(&walked), ["y", "x"]);
        assert_eq!(walked.files[0].identity, walked.files[1].identity);
        assert_eq!(walked.problem, None);
    }
}
