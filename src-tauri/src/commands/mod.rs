//! Handlers of the commands that the window may call.
//!
//! The list in `src/api/commands.rs` generates an asynchronous Tauri handler for each command. The handler calls
//! the function of the same name in one of the modules below. A missing function does not compile, and neither
//! does one whose arguments or result differ from the list.

mod conversations;
mod desktop;
mod library;
mod measuring;
mod servers;
mod updating;

use hunch::app::App;
use hunch_error::{Error, ErrorInfo, Result};
use tauri::ipc::Invoke;
use tauri::{AppHandle, Manager, State, Wry};

use crate::channel_sink::Sink;
use crate::chosen::Chosen;
use crate::hosted_app::{HostedApp, info};
use conversations::*;
use desktop::*;
use library::*;
use measuring::*;
use servers::*;
use updating::*;

/// Result of a command, with an error for the page.
type CommandResult<T> = Result<T, ErrorInfo>;

/// The state that commands work on.
struct Shell {
    handle: AppHandle,
    hosted: HostedApp,
}

impl Shell {
    /// Returns the application.
    ///
    /// # Errors
    /// If the engine could not start.
    fn app(&self) -> CommandResult<&App> {
        self.hosted.app()
    }

    /// Calls the application and converts its error.
    fn with_app<T>(&self, work: impl FnOnce(&App) -> Result<T>) -> CommandResult<T> {
        work(self.app()?).map_err(info)
    }

    /// Returns the paths that the user chose.
    fn chosen(&self) -> State<'_, Chosen> {
        self.handle.state()
    }
}

/// Runs a command on a thread that may block. The main thread belongs to the window.
async fn run<T: Send + 'static>(
    handle: AppHandle,
    command: impl FnOnce(&Shell) -> CommandResult<T> + Send + 'static,
) -> CommandResult<T> {
    let hosted = HostedApp::clone(&handle.state());
    let shell = Shell { handle, hosted };
    tauri::async_runtime::spawn_blocking(move || command(&shell))
        .await
        .unwrap_or_else(|error| Err(info(Error::Internal(error.to_string()))))
}

/// Returns the handler of all commands, for [`tauri::Builder::invoke_handler`].
pub(crate) fn handler() -> impl Fn(Invoke<Wry>) -> bool + Send + Sync + 'static {
    handlers::all()
}

macro_rules! define_handlers {
    ($(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*) -> $result:ty $(=> $message:ty)?;
    )*) => {
        mod handlers {
            use hunch::api::types::*;
            use tauri::AppHandle;
            use tauri::ipc::{Channel, Invoke};
            use tauri::Wry;

            use super::{CommandResult, run};
            use crate::channel_sink::channel_sink;

            $(
                $(#[$doc])*
                #[tauri::command]
                pub(super) async fn $name(
                    handle: AppHandle,
                    $($argument: $type,)*
                    $(channel: Channel<$message>,)?
                ) -> CommandResult<$result> {
                    run(handle, move |shell| {
                        super::$name(shell, $($argument,)* $(channel_sink::<$message>(channel))?)
                    })
                    .await
                }
            )*

            pub(super) fn all() -> impl Fn(Invoke<Wry>) -> bool + Send + Sync + 'static {
                tauri::generate_handler![$($name),*]
            }
        }
    };
}

hunch::with_commands!(define_handlers);
