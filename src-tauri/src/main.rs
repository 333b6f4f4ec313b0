//! The `hunch-app` binary: opens the window, or prints the reason that it cannot.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A process started to render a chat template opens no window.
    hunch_model::text::template::child::offer();
    if let Some(reason) = no_display() {
        eprintln!("{reason}");
        return ExitCode::FAILURE;
    }
    match hunch_app::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("The window could not be opened: {error}.");
            ExitCode::FAILURE
        }
    }
}

/// Returns an explanation if there is no display. GTK would end the process without one.
fn no_display() -> Option<&'static str> {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    (cfg!(target_os = "linux") && !set("DISPLAY") && !set("WAYLAND_DISPLAY")).then_some(
        "No display was found (DISPLAY and WAYLAND_DISPLAY are not set), so no window can open. \
         The same engine runs in the terminal. Try `hunch demo` or `hunch run --help`.",
    )
}
