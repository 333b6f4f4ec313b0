//! File dialogs, the log and the file manager.
//!
//! The page cannot name a path to write. It can read only paths that this module gave it.

use std::path::{Path, PathBuf};

use hunch::api::{OpenKind, SaveKind, SavePlace};
use hunch::app::App;
use hunch_error::ErrorInfo;
use hunch_error::{Error, Refusal, Result};
use tauri::{AppHandle, DragDropEvent, Manager, Runtime, Window, WindowEvent};
use tauri_plugin_dialog::{DialogExt, FileDialogBuilder, FilePath};
use tauri_plugin_opener::OpenerExt;

use crate::chosen::Chosen;
use crate::hosted_app::info;

/// Folder of the log, or the error that prevented logging.
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
        .map_err(|error| info(Error::Internal(format!("the file manager could not be opened: {error}"))))
}

/// Opens a dialog to choose a file; `None` if it is dismissed.
///
/// Blocks until the dialog closes. Must not run on the main thread, which shows the dialog.
pub(crate) fn choose_file<R: Runtime>(
    app: &AppHandle<R>,
    kind: OpenKind,
    title: &str,
    filter: &str,
) -> Result<Option<String>, ErrorInfo> {
    let name = format!("opened.{}", kind.extensions()[0]);
    let dialog = dialog(app).set_title(title).add_filter(filter, kind.extensions());
    opened(app, scripted(&name).or_else(|| dialog.blocking_pick_file().and_then(path_of)))
}

/// Opens a dialog to choose a folder. See [`choose_file`].
pub(crate) fn choose_folder<R: Runtime>(
    app: &AppHandle<R>,
    title: &str,
) -> Result<Option<String>, ErrorInfo> {
    let dialog = dialog(app).set_title(title);
    opened(app, scripted("").or_else(|| dialog.blocking_pick_folder().and_then(path_of)))
}

/// Opens a dialog to choose text files of any extension; empty if it is dismissed. See [`choose_file`].
pub(crate) fn choose_attachments<R: Runtime>(
    app: &AppHandle<R>,
    title: &str,
) -> Result<Vec<String>, ErrorInfo> {
    let dialog = dialog(app).set_title(title);
    let chosen = match scripted("attached.txt") {
        Some(path) => vec![path],
        None => dialog.blocking_pick_files().into_iter().flatten().filter_map(path_of).collect(),
    };
    let paths = chosen.into_iter().map(|path| opened(app, Some(path)));
    Ok(paths.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Opens a dialog to choose where to save a file with a suggested name. See [`choose_file`].
pub(crate) fn choose_save_place<R: Runtime>(
    app: &AppHandle<R>,
    kind: SaveKind,
    name: &str,
) -> Result<Option<SavePlace>, ErrorInfo> {
    // Drops any folder in the name: the user chooses the folder.
    let name = &*Path::new(name).file_name().unwrap_or_default().to_string_lossy();
    let dialog = dialog(app).set_file_name(name).add_filter(kind.name(), kind.extensions());
    let path = scripted(name).or_else(|| dialog.blocking_save_file().and_then(path_of));
    path.map(|path| app.state::<Chosen>().save(kind, path)).transpose().map_err(info)
}

/// Lets the page read files that are dropped on the window, and ask what is dragged over it.
pub(crate) fn on_event<R: Runtime>(window: &Window<R>, event: &WindowEvent) {
    let chosen = window.state::<Chosen>();
    match event {
        WindowEvent::DragDrop(DragDropEvent::Enter { paths, .. }) => chosen.drag(paths.iter().cloned()),
        WindowEvent::DragDrop(DragDropEvent::Drop { paths, .. }) => chosen.open(paths.iter().cloned()),
        WindowEvent::DragDrop(DragDropEvent::Leave) => chosen.drag([]),
        _ => {}
    }
}

/// Returns true if the user drags this path over the window, or chose it.
pub(crate) fn is_dragged<R: Runtime>(app: &AppHandle<R>, path: &Path) -> bool {
    app.state::<Chosen>().is_dragged(path)
}

/// Checks that the user chose a path.
///
/// # Errors
/// If they did not.
pub(crate) fn check_chosen<R: Runtime>(app: &AppHandle<R>, path: &Path) -> Result<(), ErrorInfo> {
    if app.state::<Chosen>().may_read(path) {
        return Ok(());
    }
    Err(info(Refusal::NotChosen { path: path.into() }.into()))
}

/// Checks that each model is in the library, was chosen by the user, or was loaded before.
///
/// # Errors
/// On the first other model.
pub(crate) fn check_models<'a, R: Runtime>(
    app: &AppHandle<R>,
    engine: &App,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<(), ErrorInfo> {
    let chosen = app.state::<Chosen>();
    match engine.unknown_model(names.into_iter().filter(|name| !chosen.may_read(Path::new(name)))) {
        None => Ok(()),
        Some(name) => Err(info(Refusal::ModelNotInLibrary { name: name.into() }.into())),
    }
}

/// Checks that the page may name a head: one that the user chose, or that the library lists.
///
/// # Errors
/// On any other.
pub(crate) fn check_head<R: Runtime>(app: &AppHandle<R>, engine: &App, name: &str) -> Result<(), ErrorInfo> {
    if app.state::<Chosen>().may_read(Path::new(name)) || engine.knows_head(name) {
        return Ok(());
    }
    Err(info(Refusal::NoSuchHead { name: name.into() }.into()))
}

/// Returns a dialog on top of the window.
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

/// Lets the page read a chosen path. Returns the path as text.
fn opened<R: Runtime>(app: &AppHandle<R>, path: Option<PathBuf>) -> Result<Option<String>, ErrorInfo> {
    let Some(path) = path else { return Ok(None) };
    let text = path
        .to_str()
        .map(str::to_owned)
        .ok_or_else(|| info(Refusal::NotUnicode { path: path.clone() }.into()))?;
    app.state::<Chosen>().open([path]);
    Ok(Some(text))
}

/// Returns the path that replaces a dialog in tests of the window, which cannot press its buttons.
///
/// The path is `name` in the folder that `HUNCH_TEST_DIALOGS` names. Debug builds only.
fn scripted(name: &str) -> Option<PathBuf> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let folder = std::env::var_os("HUNCH_TEST_DIALOGS").filter(|folder| !folder.is_empty())?;
    Some(Path::new(&folder).join(name))
}
