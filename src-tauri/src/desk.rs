//! The shell's own work with files: the dialogs of the system, the log, the file manager. The page names no
//! path to write to, and none to read but those it got from here.

use std::path::{Path, PathBuf};

use hunch::api::{OpenKind, SaveKind, SavePlace};
use hunch::app::App;
use hunch_error::ErrorInfo;
use hunch_error::{Error, Result};
use tauri::{AppHandle, DragDropEvent, Manager, Runtime, Window, WindowEvent};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder, FilePath};
use tauri_plugin_opener::OpenerExt;

use crate::chosen::Chosen;
use crate::engine::info;

/// Folder of the log, or why there is none.
pub(crate) struct Log(Result<PathBuf, ErrorInfo>);

impl Log {
    pub(crate) fn new(folder: Result<PathBuf>) -> Self {
        Self(folder.map_err(info))
    }
}

/// Shows the newest file of the log in the system's file manager.
pub(crate) fn show_log<R: Runtime>(app: &AppHandle<R>) -> Result<(), ErrorInfo> {
    let log = app.state::<Log>();
    let newest = hunch::log::newest(log.0.as_ref().map_err(ErrorInfo::clone)?);
    reveal(app, &newest)
}

/// Shows a file in the system's file manager.
pub(crate) fn reveal<R: Runtime>(app: &AppHandle<R>, path: &Path) -> Result<(), ErrorInfo> {
    app.opener()
        .reveal_item_in_dir(path)
        .map_err(|error| info(Error::Internal(format!("the file manager did not open: {error}"))))
}

/// Asks the person for a file to open; `None` when they changed their mind. Blocks until they answer: not for the
/// main thread, which shows the dialog.
pub(crate) fn choose_file<R: Runtime>(
    app: &AppHandle<R>,
    kind: OpenKind,
    title: &str,
    filter: &str,
) -> Result<Option<String>, ErrorInfo> {
    let name = format!("opened.{}", kind.extension());
    let dialog = dialog(app).set_title(title).add_filter(filter, &[kind.extension()]);
    opened(app, rehearsed(&name).or_else(|| dialog.blocking_pick_file().and_then(path_of)))
}

/// Asks the person for a folder, as [`choose_file`] does for a file.
pub(crate) fn choose_folder<R: Runtime>(
    app: &AppHandle<R>,
    title: &str,
) -> Result<Option<String>, ErrorInfo> {
    let dialog = dialog(app).set_title(title);
    opened(app, rehearsed("").or_else(|| dialog.blocking_pick_folder().and_then(path_of)))
}

/// Asks the person where to save a file that is to have this name, as [`choose_file`] does for one to open.
pub(crate) fn choose_save_place<R: Runtime>(
    app: &AppHandle<R>,
    kind: SaveKind,
    name: &str,
) -> Result<Option<SavePlace>, ErrorInfo> {
    // A name and no path: the folder is the person's to choose.
    let name = &*Path::new(name).file_name().unwrap_or_default().to_string_lossy();
    let dialog = dialog(app).set_file_name(name).add_filter(kind.name(), kind.extensions());
    let path = rehearsed(name).or_else(|| dialog.blocking_save_file().and_then(path_of));
    path.map(|path| app.state::<Chosen>().save(kind, path)).transpose().map_err(info)
}

/// Remembers files that are dropped on the window as chosen.
pub(crate) fn on_event<R: Runtime>(window: &Window<R>, event: &WindowEvent) {
    if let WindowEvent::DragDrop(DragDropEvent::Drop { paths, .. }) = event {
        window.state::<Chosen>().open(paths.iter().cloned());
    }
}

/// Checks that the person chose a path.
///
/// # Errors
/// When they did not.
pub(crate) fn check_chosen<R: Runtime>(app: &AppHandle<R>, path: &Path) -> Result<(), ErrorInfo> {
    if app.state::<Chosen>().may_read(path) {
        return Ok(());
    }
    Err(info(Error::invalid(format!(
        "{} was not chosen here. Choose it in the dialog, or drop it on the window.",
        path.display()
    ))))
}

/// Checks that each model is in the library, was chosen by the person, or was loaded before.
///
/// # Errors
/// With the first that is none of these.
pub(crate) fn check_models<'a, R: Runtime>(
    app: &AppHandle<R>,
    engine: &App,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), ErrorInfo> {
    let chosen = app.state::<Chosen>();
    match engine.unknown_model(names.into_iter().filter(|name| !chosen.may_read(Path::new(name)))) {
        None => Ok(()),
        Some(name) => Err(info(Error::invalid(format!(
            "{name} is not in the library. Open it with “Open model…”, or add its folder to the library."
        )))),
    }
}

/// A dialog that belongs to the window.
fn dialog<R: Runtime>(app: &AppHandle<R>) -> FileDialogBuilder<R> {
    let dialog = app.dialog().file();
    match app.get_webview_window("main") {
        Some(window) => dialog.set_parent(&window),
        None => dialog,
    }
}

fn path_of(chosen: FilePath) -> Option<PathBuf> {
    chosen.into_path().ok()
}

/// Lets the page read what was chosen.
fn opened<R: Runtime>(app: &AppHandle<R>, path: Option<PathBuf>) -> Result<Option<String>, ErrorInfo> {
    let Some(path) = path else { return Ok(None) };
    let text = path.to_str().map(str::to_owned).ok_or_else(|| {
        info(Error::invalid(format!("{} is not valid Unicode. Rename it first.", path.display())))
    })?;
    app.state::<Chosen>().open([path]);
    Ok(Some(text))
}

/// Answers a dialog in a test of the window, which cannot press its buttons: with this name in the folder that
/// `HUNCH_TEST_DIALOGS` names. Debug builds only.
fn rehearsed(name: &str) -> Option<PathBuf> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let folder = std::env::var_os("HUNCH_TEST_DIALOGS").filter(|folder| !folder.is_empty())?;
    Some(Path::new(&folder).join(name))
}
