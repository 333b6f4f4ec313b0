//! Small text files, read with a size limit and replaced atomically. The limit guards against files written
//! by other programs.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use hunch_error::{Error, Result};

/// Limit for manifests, descriptions and settings, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a text file of at most 1 MiB. Returns `None` if it is unreadable, longer, or not UTF-8.
pub(super) fn read_text(path: &Path) -> Option<String> {
    read_text_up_to(path, MAX_BYTES)
}

/// Reads a text file of at most `max_bytes` bytes.
pub(super) fn read_text_up_to(path: &Path, max_bytes: u64) -> Option<String> {
    // Checked before opening, because opening a named pipe blocks until a writer connects.
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > max_bytes {
        return None;
    }
    let mut text = String::new();
    let read = File::open(path).ok()?.take(max_bytes + 1).read_to_string(&mut text).ok()?;
    (read as u64 <= max_bytes).then_some(text)
}

/// Replaces a file's text atomically. After a failure or power cut, the old text is intact. A symbolic link
/// is followed, and an existing file keeps its permissions.
///
/// # Errors
/// [`Error::Io`] if the text cannot be written. No temporary file is left.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let temporary = temporary_path(&target);
    let written = write_and_sync(&temporary, text)
        .and_then(|()| keep_permissions(&target, &temporary))
        .and_then(|()| std::fs::rename(&temporary, &target));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(io)?;
    sync_parent(&target);
    Ok(())
}

/// Returns the path of the temporary file that replaces `path`, in the same folder.
fn temporary_path(path: &Path) -> PathBuf {
    // Unique per process and thread, because the window and the command line may write at the same time.
    let own = format!("{}-{:?}.part", std::process::id(), std::thread::current().id());
    path.with_extension(own.replace(['(', ')'], "-"))
}

/// Copies the permissions of the replaced file, if it exists.
fn keep_permissions(old: &Path, new: &Path) -> std::io::Result<()> {
    match std::fs::metadata(old) {
        Ok(meta) if meta.is_file() => std::fs::set_permissions(new, meta.permissions()),
        _ => Ok(()),
    }
}

/// Writes and syncs a file. Without the sync, the rename may reach the disk before the contents.
fn write_and_sync(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Syncs a file's parent folder, so that its name survives a power cut. Errors are ignored: some file
/// systems cannot sync folders, and only the name is at risk.
pub fn sync_parent(path: &Path) {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_replaces_the_text_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/state.json");
        for text in ["a longer text", "short", ""] {
            write(&path, text).unwrap();
            assert_eq!(read_text(&path).as_deref(), Some(text));
        }
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn failed_write_leaves_the_target_untouched() {
        let folder = tempfile::tempdir().unwrap();
        // A non-empty folder cannot be replaced by a file.
        let path = folder.path().join("state.json");
        std::fs::create_dir_all(path.join("inside")).unwrap();
        assert!(matches!(write(&path, "text"), Err(Error::Io { action: "write", .. })));
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["state.json"]);
        assert!(path.join("inside").is_dir());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_keeps_the_old_text_and_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("export.json");
        write(&path, "the old text").unwrap();
        // Writes to this device fail with "no space left".
        std::os::unix::fs::symlink("/dev/full", temporary_path(&path.canonicalize().unwrap())).unwrap();
        let error = write(&path, "the new text").unwrap_err();
        assert!(
            matches!(&error, Error::Io { action: "write", path: reported, .. } if *reported == path),
            "{error}"
        );
        assert_eq!(read_text(&path).as_deref(), Some("the old text"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        write(&path, "the new text").unwrap();
        assert_eq!(read_text(&path).as_deref(), Some("the new text"));
    }

    #[cfg(unix)]
    #[test]
    fn write_keeps_permissions_and_symbolic_links() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("private.md"), folder.path().join("link.md"));
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
