//! Files that are replaced in one step: written next to their place, synced, renamed. A reader, a crash or a power cut
//! finds either the old file or the new one. Locks between programs are in [`file_lock`](crate::file_lock), contents
//! and their formats with the owners of the files.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use hunch_error::{Error, Result};
use tempfile::NamedTempFile;

/// Extension of unfinished files. A killed process leaves one behind, named after the file it was to replace:
/// `copy.Xk3f9A.part` for `copy.gguf`.
pub const PART: &str = ".part";

/// Replaces a file's contents. A symbolic link is followed, and an existing file keeps its permissions.
///
/// # Errors
/// [`Error::Io`] if the contents cannot be written. The old file is then intact, and no unfinished file is left.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    replace(path, |file| file.write_all(contents.as_ref()).map_err(|source| cannot_write(path, source)))
}

/// Replaces a file by a copy of another one.
///
/// # Errors
/// As [`write`], and [`Error::Io`] if `from` cannot be read.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut source = open(from)?;
    replace(to, |file| std::io::copy(&mut source, file).map(drop).map_err(|source| cannot_write(to, source)))
}

/// Copies a file to a new name. A file that exists there is not replaced, even if it was created meanwhile.
///
/// # Errors
/// As [`copy`]; [`Error::Io`] of the kind `AlreadyExists` if `to` exists.
pub fn copy_new(from: &Path, to: &Path) -> Result<()> {
    let io = |source| cannot_write(to, source);
    let mut source = open(from)?;
    let mut unfinished = create_in_folder_of(to).map_err(io)?;
    std::io::copy(&mut source, unfinished.as_file_mut()).map_err(io)?;
    unfinished.as_file().sync_all().map_err(io)?;
    let unfinished = unfinished.into_temp_path();
    if !rename_to_new(&unfinished, to).map_err(io)? {
        return Err(io(ErrorKind::AlreadyExists.into()));
    }
    sync_parent(to);
    Ok(())
}

/// Renames a file without replacing an existing one. Returns `false` if one exists. Volumes without
/// exclusive rename or hard links, such as memory sticks, are checked first: a file created between check
/// and rename is replaced.
///
/// # Errors
/// If the file cannot be renamed.
pub fn rename_to_new(from: &Path, to: &Path) -> std::io::Result<bool> {
    match rename_exclusively(from, to) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        // The fallback works without it, and reports any other error.
        Err(_) => {}
    }
    match std::fs::hard_link(from, to) {
        Ok(()) => std::fs::remove_file(from)?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(_) if std::fs::symlink_metadata(to).is_ok() => return Ok(false),
        Err(_) => std::fs::rename(from, to)?,
    }
    Ok(true)
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn rename_exclusively(from: &Path, to: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn rename_exclusively(_from: &Path, _to: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Opens a file to be copied.
fn open(from: &Path) -> Result<File> {
    File::open(from).map_err(|source| Error::Io { action: "read", path: from.into(), source })
}

/// Checks that a new file can be created, before the work for its contents. Creates its folder.
///
/// # Errors
/// [`Error::Io`] if `path` exists, also as a broken link, or its folder cannot be written.
pub fn check_new(path: &Path) -> Result<()> {
    let io = |source| cannot_write(path, source);
    if path.symlink_metadata().is_ok() {
        return Err(io(std::io::ErrorKind::AlreadyExists.into()));
    }
    create_in_folder_of(path).map(drop).map_err(io)
}

/// Replaces a file by what `fill` writes. Creates its folder.
///
/// # Errors
/// The error of `fill`, and as [`write`].
pub fn replace(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let io = |source| cannot_write(path, source);
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mut unfinished = create_in_folder_of(&target).map_err(io)?;
    fill(unfinished.as_file_mut())?;
    keep_permissions(&target, unfinished.as_file()).map_err(io)?;
    // Without the sync, the rename may reach the disk before the contents.
    unfinished.as_file().sync_all().map_err(io)?;
    unfinished.persist(&target).map_err(|refused| io(refused.error))?;
    sync_parent(&target);
    Ok(())
}

/// Syncs a file that is complete and renames it to `path`. For files that other libraries write.
///
/// # Errors
/// If the file cannot be synced or renamed.
pub fn place(complete: &Path, path: &Path) -> std::io::Result<()> {
    sync(complete)?;
    std::fs::rename(complete, path)?;
    sync_parent(path);
    Ok(())
}

/// Syncs the contents of a file.
///
/// # Errors
/// If it cannot be opened, or the disk fails or is full.
pub fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs a file's parent folder, so that its name survives a power cut. Errors are ignored: some file
/// systems cannot sync folders, and only the name is at risk.
pub fn sync_parent(path: &Path) {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        let _ = sync(folder);
    }
    #[cfg(not(unix))]
    let _ = path;
}

fn cannot_write(path: &Path, source: std::io::Error) -> Error {
    Error::Io { action: "write", path: path.to_path_buf(), source }
}

/// Creates an unfinished file in the folder of `path`, under a name that no other writer uses, and the folder. The file
/// is removed when it is dropped, unless it was renamed.
fn create_in_folder_of(path: &Path) -> std::io::Result<NamedTempFile> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut prefix = path.file_stem().unwrap_or_default().to_owned();
    prefix.push(".");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(PART);
    if let Some(permissions) = new_file_permissions() {
        builder.permissions(permissions);
    }
    builder.tempfile_in(folder.unwrap_or(Path::new(".")))
}

/// Permissions of a new file, less those that the process masks. Temporary files are private otherwise.
fn new_file_permissions() -> Option<Permissions> {
    #[cfg(unix)]
    return Some(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    #[cfg(not(unix))]
    None
}

/// Copies the permissions of the replaced file, if it exists.
fn keep_permissions(old: &Path, new: &File) -> std::io::Result<()> {
    match std::fs::metadata(old) {
        Ok(meta) if meta.is_file() => new.set_permissions(meta.permissions()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn write_replaces_the_contents_and_leaves_no_unfinished_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/state.json");
        for contents in ["a longer text", "short", ""] {
            write(&path, contents).unwrap();
            assert_eq!(text(&path), contents);
        }
        assert_eq!(names(path.parent().unwrap()), ["state.json"]);
    }

    #[test]
    fn failed_rename_leaves_the_target_untouched() {
        let folder = tempfile::tempdir().unwrap();
        // A non-empty folder cannot be replaced by a file.
        let path = folder.path().join("state.json");
        std::fs::create_dir_all(path.join("inside")).unwrap();
        assert!(matches!(write(&path, "text"), Err(Error::Io { action: "write", .. })));
        assert_eq!(names(folder.path()), ["state.json"]);
        assert!(path.join("inside").is_dir());
    }

    #[test]
    fn failure_halfway_keeps_the_old_file_and_leaves_no_unfinished_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("export.json");
        write(&path, "the old text").unwrap();
        let error = replace(&path, |file| {
            file.write_all(b"the new").unwrap();
            assert_eq!(names(folder.path()).len(), 2, "it is written next to the old one");
            Err(cannot_write(&path, std::io::ErrorKind::StorageFull.into()))
        });
        assert!(matches!(error, Err(Error::Io { action: "write", .. })), "{error:?}");
        assert_eq!((text(&path).as_str(), names(folder.path()).len()), ("the old text", 1));
        write(&path, "the new text").unwrap();
        assert_eq!(text(&path), "the new text");
    }

    #[test]
    fn copy_and_place_replace_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        std::fs::write(&from, "first").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(text(&to), "first");
        std::fs::write(&from, "second").unwrap();
        place(&from, &to).unwrap();
        assert_eq!((text(&to).as_str(), from.exists()), ("second", false));
        assert!(matches!(copy(&from, &to), Err(Error::Io { action: "read", .. })));
    }

    #[test]
    fn new_copy_never_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let [from, taken, new] = ["from", "taken", "deep/new"].map(|name| folder.path().join(name));
        std::fs::write(&from, "copied").unwrap();
        std::fs::write(&taken, "kept").unwrap();
        let exists = |result| matches!(result, Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists);
        assert!(exists(check_new(&taken)) && exists(copy_new(&from, &taken)));
        assert_eq!((text(&taken).as_str(), names(folder.path()).len()), ("kept", 2));
        check_new(&new).unwrap();
        assert!(names(new.parent().unwrap()).is_empty());
        copy_new(&from, &new).unwrap();
        assert_eq!((text(&new).as_str(), text(&from).as_str()), ("copied", "copied"));
        assert!(matches!(check_new(&taken.join("below")), Err(Error::Io { action: "write", .. })));
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(folder.path().join("absent"), &link).unwrap();
            assert!(exists(check_new(&link)) && exists(copy_new(&from, &link)));
        }
    }

    #[cfg(unix)]
    #[test]
    fn write_keeps_permissions_and_symbolic_links() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("private.md"), folder.path().join("link.md"));
        std::fs::write(&file, "old").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let usual = mode(&file);
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!((text(&file).as_str(), mode(&file)), ("new", 0o600));
        let fresh = folder.path().join("fresh.md");
        write(&fresh, "new").unwrap();
        assert_eq!(mode(&fresh), usual, "as any new file");
    }
}
