//! Commands that concern the window and the desktop: dialogs, the log, preferences.

use std::collections::BTreeMap;

use hunch::api::{AppInfo, OpenKind, PreferenceValue, SaveKind, SavePlace};

use super::{CommandResult, Shell};
use crate::desk;

pub(super) fn app_info(shell: &Shell) -> CommandResult<AppInfo> {
    Ok(shell.app()?.info())
}

pub(super) fn report_problem(_: &Shell, kind: String, message: String, stack: String) -> CommandResult<()> {
    hunch::log::page_problem(&kind, &message, &stack);
    Ok(())
}

pub(super) fn show_log(shell: &Shell) -> CommandResult<()> {
    desk::show_log(&shell.handle)
}

pub(super) fn set_window_hidden(shell: &Shell, hidden: bool) -> CommandResult<()> {
    shell.app()?.set_window_hidden(hidden);
    Ok(())
}

pub(super) fn choose_file(
    shell: &Shell,
    kind: OpenKind,
    title: String,
    filter: String,
) -> CommandResult<Option<String>> {
    desk::choose_file(&shell.handle, kind, &title, &filter)
}

pub(super) fn choose_folder(shell: &Shell, title: String) -> CommandResult<Option<String>> {
    desk::choose_folder(&shell.handle, &title)
}

pub(super) fn choose_attachments(shell: &Shell, title: String) -> CommandResult<Vec<String>> {
    desk::choose_attachments(&shell.handle, &title)
}

pub(super) fn choose_save_place(
    shell: &Shell,
    kind: SaveKind,
    name: String,
) -> CommandResult<Option<SavePlace>> {
    desk::choose_save_place(&shell.handle, kind, &name)
}

pub(super) fn preferences(shell: &Shell) -> CommandResult<BTreeMap<String, PreferenceValue>> {
    let stored = shell.with_app(|app| app.preferences())?;
    Ok(stored.into_iter().map(|(key, value)| (key, PreferenceValue(value))).collect())
}

pub(super) fn set_preference(shell: &Shell, key: String, value: PreferenceValue) -> CommandResult<()> {
    shell.with_app(|app| app.set_preference(&key, &value.0))
}
