//! Commands that update the app.

use hunch::api::{UpdateProgress, UpdateState};
use tauri::Manager;

use super::{CommandResult, Shell};
use crate::channel_sink::Sink;
use crate::hosted_app::info;
use crate::updates::Updates;

pub(super) fn update_state(shell: &Shell) -> CommandResult<UpdateState> {
    Ok(shell.handle.state::<Updates>().state())
}

pub(super) fn check_for_update(shell: &Shell) -> CommandResult<UpdateState> {
    check_idle(shell)?;
    shell.handle.state::<Updates>().check(&shell.handle).map_err(info)
}

pub(super) fn download_update(shell: &Shell, sink: Sink<UpdateProgress>) -> CommandResult<UpdateState> {
    check_idle(shell)?;
    shell.handle.state::<Updates>().download(sink).map_err(info)
}

pub(super) fn install_update(shell: &Shell) -> CommandResult<()> {
    shell.handle.state::<Updates>().install(shell.app().ok()).map_err(info)?;
    shell.handle.request_restart();
    Ok(())
}

/// Checks that the engine is idle. An app whose engine failed to start can be updated: the update may be the remedy.
fn check_idle(shell: &Shell) -> CommandResult<()> {
    shell.app().map_or(Ok(()), |app| app.check_idle().map_err(info))
}
