//! What the shell does with files by itself, so that the page never names a path to write to.

use std::path::PathBuf;

use hunch::error::{Error, Result};
use hunch::event::ErrorInfo;
use tauri::{AppHandle, Manager, Runtime};
use tauri_plugin_opener::OpenerExt;

use crate::engine::info;

/// Where the log lies, or why there is none.
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
    app.opener()
        .reveal_item_in_dir(newest)
        .map_err(|error| info(Error::Internal(format!("the file manager did not open: {error}"))))
}
