//! The paths a person chose, in a dialog of the system or by dropping files on the window. The page can name no
//! others. No window and no dialog here.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hunch::api::{SaveKind, SavePlace};
use hunch_error::{Error, Result};

/// Paths chosen since the start.
#[derive(Default)]
pub(crate) struct Chosen(Mutex<Choices>);

#[derive(Default)]
struct Choices {
    /// Files and folders that may be read.
    opened: HashSet<PathBuf>,
    /// Places that may be written to, once each, by token.
    saves: BTreeMap<u32, (SaveKind, PathBuf)>,
    last_token: u32,
}

impl Chosen {
    /// Lets the page read these files and folders until the app ends.
    pub(crate) fn open(&self, paths: impl IntoIterator<Item = PathBuf>) {
        self.choices().opened.extend(paths);
    }

    /// Checks that the person chose this file or folder.
    pub(crate) fn may_read(&self, path: &Path) -> bool {
        self.choices().opened.contains(path)
    }

    /// Lets the page write once to where the person chose, under a name that fits what is written.
    ///
    /// # Errors
    /// When the name had to be changed and that file exists: the dialog did not ask whether to replace it.
    pub(crate) fn save(&self, kind: SaveKind, path: PathBuf) -> Result<SavePlace> {
        let path = with_extension_of(kind, path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut choices = self.choices();
        choices.last_token += 1;
        let token = choices.last_token;
        choices.saves.insert(token, (kind, path));
        Ok(SavePlace { token, name })
    }

    /// Gives the path behind a token, which is used up by that.
    ///
    /// # Errors
    /// When there is no such token, or it is for another kind of file.
    pub(crate) fn redeem(&self, token: u32, kind: SaveKind) -> Result<PathBuf> {
        match self.choices().saves.remove(&token) {
            Some((meant, path)) if meant == kind => Ok(path),
            _ => {
                Err(Error::invalid("No place was chosen for this file. Nothing was written. Save it again."))
            }
        }
    }

    /// Nothing that panics runs under this lock.
    fn choices(&self) -> MutexGuard<'_, Choices> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends the extension of `kind`, unless the name has one of those it may have.
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
        return Err(Error::invalid(format!(
            "{} exists already. Nothing was written. Choose that file to replace it, or another name.",
            path.display()
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_gives_its_path_once_and_for_one_kind_of_file() {
        let chosen = Chosen::default();
        let first = chosen.save(SaveKind::Json, "/a/one.json".into()).unwrap();
        let second = chosen.save(SaveKind::Csv, "/a/two.csv".into()).unwrap();
        assert_ne!(first.token, second.token);
        assert_eq!(first.name, "one.json");
        assert!(chosen.redeem(99, SaveKind::Json).is_err());
        assert_eq!(chosen.redeem(first.token, SaveKind::Json).unwrap(), Path::new("/a/one.json"));
        assert!(chosen.redeem(first.token, SaveKind::Json).is_err());
        assert!(chosen.redeem(second.token, SaveKind::Json).is_err());
        assert!(chosen.redeem(second.token, SaveKind::Csv).is_err(), "it is used up");
    }

    #[test]
    fn names_get_an_extension_that_fits() {
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
    fn existing_file_is_not_replaced_under_a_name_that_was_not_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        std::fs::write(&file, "older").unwrap();
        let chosen = Chosen::default();
        let error = chosen.save(SaveKind::Json, folder.path().join("x")).unwrap_err();
        assert!(error.to_string().contains("x.json exists already"), "{error}");
        assert!(chosen.save(SaveKind::Json, file).is_ok());
    }

    #[test]
    fn only_chosen_files_may_be_read() {
        let chosen = Chosen::default();
        chosen.open(["/a/one.gguf".into(), "/b".into()]);
        assert!(chosen.may_read(Path::new("/a/one.gguf")));
        for other in ["/a/two.gguf", "/b/inside", "/a/../a/one.gguf", ""] {
            assert!(!chosen.may_read(Path::new(other)), "{other}");
        }
    }
}
