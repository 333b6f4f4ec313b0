//! Walking through a folder that somebody else keeps: symbolic links are followed and cycles ended, depth
//! and number are bounded, and what cannot be read is said and passed over. Names and sizes only; no file is
//! opened.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The cache of Hugging Face has models at the fifth level.
const DEEPEST: usize = 10;
/// Entries of folders that are looked at. A folder of models has hundreds; a home folder by mistake, more.
const MOST_ENTRIES: usize = 50_000;

/// What a file is, whatever it is called: the same by every way that leads to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    /// Device and number on it.
    #[cfg(unix)]
    Number(u64, u64),
    /// Where the system has no such numbers: the path without links.
    #[cfg(not(unix))]
    Path(PathBuf),
}

/// A file, without its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// By the way it was found.
    pub(super) path: PathBuf,
    /// Bytes.
    pub(super) size: u64,
    /// When it was last written, in nanoseconds since 1970; 0 where the system does not tell.
    pub(super) modified: u64,
    /// Which file it is.
    pub(super) identity: Identity,
}

impl Mark {
    /// Of a file at `path`; `None` when there is none, or something that is no file.
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

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// Files, those nearer to the top first, by name among their like.
    pub(super) files: Vec<Mark>,
    /// Why something was not looked at, if so.
    pub(super) problem: Option<String>,
}

impl Walked {
    /// The first problem is told: more of them seldom say more.
    fn say(&mut self, problem: impl FnOnce() -> String) {
        self.problem.get_or_insert_with(problem);
    }
}

/// The files below `root` that `wanted` says yes to by name. A root that is not there has none.
pub(super) fn walk(root: &Path, wanted: impl Fn(&OsStr) -> bool) -> Walked {
    walk_where(root, wanted, |_, _| true)
}

/// The same in those folders alone that `entered` says yes to, by how deep below `root` they lie (0 right in it)
/// and by name. What is in the others is not counted.
pub(super) fn walk_where(
    root: &Path,
    wanted: impl Fn(&OsStr) -> bool,
    entered: impl Fn(usize, &OsStr) -> bool,
) -> Walked {
    walk_within(root, wanted, entered, DEEPEST, MOST_ENTRIES)
}

fn walk_within(
    root: &Path,
    wanted: impl Fn(&OsStr) -> bool,
    entered: impl Fn(usize, &OsStr) -> bool,
    deepest: usize,
    most: usize,
) -> Walked {
    let mut walked = Walked::default();
    let (mut folders, mut known) = (VecDeque::new(), HashSet::new());
    match std::fs::metadata(root) {
        Ok(meta) if meta.is_dir() => {
            known.insert(identity(root, &meta));
            folders.push_back((root.to_path_buf(), 0));
        }
        Ok(_) => walked.say(|| format!("{} is not a folder.", root.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => walked.say(|| format!("{} cannot be read: {error}.", root.display())),
    }
    let mut entries = 0;
    while let Some((folder, depth)) = folders.pop_front() {
        let mut names = match names(&folder, most - entries) {
            Ok(names) => names,
            Err(error) => {
                walked.say(|| format!("{} cannot be read: {error}.", folder.display()));
                continue;
            }
        };
        entries += names.len();
        if entries >= most {
            walked.say(|| {
                format!(
                    "It holds more than {most} files and folders; what comes after them was not looked at. \
                     Models in it may be missing from the list."
                )
            });
            return walked;
        }
        names.sort();
        for path in names {
            let name = path.file_name().unwrap_or_default();
            // Hidden ones are locks, thumbnails and what a Mac writes beside files on foreign volumes.
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // A link to nothing, and what went away meanwhile, is nothing.
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            if meta.is_file() && wanted(name) {
                walked.files.push(Mark::new(path, &meta));
            } else if meta.is_dir() && entered(depth, name) && known.insert(identity(&path, &meta)) {
                if depth < deepest {
                    folders.push_back((path, depth + 1));
                } else {
                    walked.say(|| format!("{} is too deep inside; it was not looked at.", path.display()));
                }
            }
        }
    }
    walked
}

/// Paths in a folder, at most so many.
fn names(folder: &Path, most: usize) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?;
    Ok(entries.take(most).filter_map(|entry| Some(entry.ok()?.path())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(walked: &Walked) -> Vec<String> {
        let name = |mark: &Mark| mark.path.file_name().unwrap().to_string_lossy().into_owned();
        walked.files.iter().map(name).collect()
    }

    #[test]
    fn what_is_not_there_is_empty_and_a_file_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = walk(&folder.path().join("nowhere"), |_| true);
        assert!(nowhere.files.is_empty() && nowhere.problem.is_none());
        std::fs::write(folder.path().join("file"), "x").unwrap();
        assert!(walk(&folder.path().join("file"), |_| true).problem.is_some());
    }

    #[test]
    fn depth_and_number_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
        for name in ["top", "a/one", "a/b/two", "a/b/c/three"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let everywhere = |_: usize, _: &OsStr| true;
        let walked = walk_within(folder.path(), |_| true, everywhere, 1, 100);
        assert_eq!(found(&walked), ["top", "one"]);
        assert!(walked.problem.unwrap().contains("too deep"));
        let walked = walk_within(folder.path(), |_| true, everywhere, 9, 3);
        assert!(walked.problem.unwrap().contains("more than 3"));
        assert_eq!(walk(folder.path(), |_| true).problem, None);
    }

    #[test]
    fn what_is_not_entered_is_not_counted() {
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
    fn links_are_followed_and_cycles_end() {
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
