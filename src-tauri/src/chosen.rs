//! Paths that the user chose, in a dialog or by dropping files on the window. The page can use no others.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use hunch::api::{SaveKind, SavePlace};
use hunch_error::{Refusal, Result};
use parking_lot::{Mutex, MutexGuard};

/// Paths chosen since the app started.
#[derive(Default)]
pub(crate) struct Chosen(Mutex<Choices>);

#[derive(Default)]
struct Choices {
    /// Files and folders that may be read.
    opened: HashSet<PathBuf>,
    /// Files and folders dragged over the window now. The page may ask what they are, not read them.
    dragged: HashSet<PathBuf>,
    /// Files that may be written once, by token.
    saves: BTreeMap<u32, (SaveKind, PathBuf)>,
    last_token: u32,
}

impl Chosen {
    /// Allows reading these files and folders until the app ends.
    pub(crate) fn open(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.choices().opened.extend(paths);
    }

    /// Replaces what is dragged over the window.
    pub(crate) fn drag(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.choices().dragged = paths.into_iter().collect();
    }

    /// Returns true if this path is dragged over the window, or was chosen.
    pub(crate) fn is_dragged(&self, path: &Path) -> bool {
        let choices = self.choices();
        choices.dragged.contains(path) || choices.opened.contains(path)
    }

    /// Returns true if the user chose this file or folder.
    pub(crate) fn may_read(&self, path: &Path) -> bool {
        self.choices().opened.contains(path)
    }

    /// Allows writing once to a path. Appends an extension of `kind` if the name has none.
    ///
    /// # Errors
    /// If an extension was appended and that file exists. The dialog did not ask whether to replace it.
    pub(crate) fn save(&self, kind: SaveKind, path: PathBuf) -> Result<SavePlace> {
        let path = with_extension_of(kind, path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut choices = self.choices();
        choices.last_token += 1;
        let token = choices.last_token;
        choices.saves.insert(token, (kind, path));
        Ok(SavePlace { token, name })
    }

    /// Consumes a token and returns its path.
    ///
    /// # Errors
    /// If the token is unknown or is for another kind of file.
    pub(crate) fn redeem(&self, token: u32, kind: SaveKind) -> Result<PathBuf> {
        match self.choices().saves.remove(&token) {
            Some((meant, path)) if meant == kind => Ok(path),
            _ => Err(Refusal::NoLocation.into()),
        }
    }

    /// Locks the choices.
    fn choices(&self) -> MutexGuard<'_, Choices> {
        self.0.lock()
    }
}

/// Appends the default extension of `kind`, unless the name has an accepted one.
fn with_extension_of(kind: SaveKind, path: PathBuf) -> Result<PathBuf> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if kind.extensions().iter().any(|known| known.eq_ignore_ascii_case(extension)) {
        return Ok(path);
    }
    let mut name = path.into_os_string();
    name.push(".");
    name.push(kind.extensions()[0]);
    let path = PathBuf::from(name);
    if path.exists() {
        return Err(Refusal::FileExists { path }.into());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_once_and_for_one_kind_of_file() {
        let chosen = Chosen::default();
        let first = chosen.save(SaveKind::Json, "/a/one.json".into()).unwrap();
        let second = chosen.save(SaveKind::Csv, "/a/two.csv".into()).unwrap();
        assert_ne!(first.token, second.token);
        assert_eq!(first.name, "one.json");
        assert!(chosen.redeem(99, SaveKind::Json).is_err());
        assert_eq!(chosen.redeem(first.token, SaveKind::Json).unwrap(), Path::new("/a/one.json"));
        assert!(chosen.redeem(first.token, SaveKind::Json).is_err());
        assert!(chosen.redeem(second.token, SaveKind::Json).is_err());
        assert!(chosen.redeem(second.token, SaveKind::Csv).is_err(), "a token is consumed by any use");
    }

    #[test]
    fn appends_an_extension_only_if_none_is_accepted() {
        let saved = |kind, path: &str| {
            let chosen = Chosen::default();
            let place = chosen.save(kind, path.into()).unwrap();
            chosen.redeem(place.token, kind).unwrap().display().to_string()
        };
        for (kind, path, expected) in [
            (SaveKind::Markdown, "/a/x.md", "/a/x.md"),
            (SaveKind::Markdown, "/a/x.TXT", "/a/x.TXT"),
            (SaveKind::Markdown, "/a/Report 1.2", "/a/Report 1.2.md"),
            (SaveKind::Json, "/a/x", "/a/x.json"),
            (SaveKind::Json, "/a/x.md", "/a/x.md.json"),
            (SaveKind::Picture, "/a/.bashrc", "/a/.bashrc.svg"),
            (SaveKind::Csv, "/a/agent.plist", "/a/agent.plist.csv"),
        ] {
            assert_eq!(saved(kind, path), expected);
        }
    }

    #[test]
    fn appended_extension_does_not_replace_an_existing_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        std::fs::write(&file, "older").unwrap();
        let chosen = Chosen::default();
        let error = chosen.save(SaveKind::Json, folder.path().join("x")).unwrap_err();
        assert!(error.to_string().contains("x.json exists already"), "{error}");
        assert!(chosen.save(SaveKind::Json, file).is_ok());
    }

    #[test]
    fn dragged_files_are_known_until_the_drag_ends_and_never_readable() {
        let chosen = Chosen::default();
        chosen.drag(["/a".into(), "/b".into()]);
        assert!(chosen.is_dragged(Path::new("/a")) && !chosen.may_read(Path::new("/a")));
        assert!(!chosen.is_dragged(Path::new("/c")));
        chosen.open(["/a".into()]);
        chosen.drag([]);
        assert!(chosen.is_dragged(Path::new("/a")) && !chosen.is_dragged(Path::new("/b")));
    }

    #[test]
    fn only_chosen_files_are_readable() {
        let chosen = Chosen::default();
        chosen.open(["/a/one.gguf".into(), "/b".into()]);
        assert!(chosen.may_read(Path::new("/a/one.gguf")));
        for other in ["/a/two.gguf", "/b/inside", "/a/../a/one.gguf", ""] {
            assert!(!chosen.may_read(Path::new(other)), "{other}");
        }
    }
}
