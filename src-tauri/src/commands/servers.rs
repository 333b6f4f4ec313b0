//! Commands that concern servers, which can answer in place of the loaded models, and the one for other programs.

use hunch::api::{OwnServer, ServerCheck, ServerEntry, ServerList};

use super::{CommandResult, Shell};

pub(super) fn servers(shell: &Shell) -> CommandResult<ServerList> {
    shell.with_app(|app| app.servers())
}

pub(super) fn add_server(shell: &Shell, address: String, key: Option<String>) -> CommandResult<ServerEntry> {
    shell.with_app(|app| app.add_server(&address, key.as_deref()))
}

pub(super) fn remove_server(shell: &Shell, address: String) -> CommandResult<()> {
    shell.with_app(|app| app.remove_server(&address))
}

pub(super) fn check_server(shell: &Shell, address: String) -> CommandResult<ServerCheck> {
    shell.with_app(|app| app.check_server(&address))
}

pub(super) fn own_server(shell: &Shell) -> CommandResult<OwnServer> {
    shell.with_app(|app| Ok(app.own_server()))
}

pub(super) fn set_own_server(shell: &Shell, on: bool) -> CommandResult<OwnServer> {
    shell.with_app(|app| app.set_own_server(on))
}
