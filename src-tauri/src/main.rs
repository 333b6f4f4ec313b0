//! The `hunch-app` binary: opens the window, or says in words why it cannot. Nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A process that was started to render a chat template needs no window.
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

/// Why no window can open here, if so. GTK would end the process without words.
fn no_display() -> Option<&'static str> {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    (cfg!(target_os = "linux") && !set("DISPLAY") && !set("WAYLAND_DISPLAY")).then_some(
        "There is no display here (DISPLAY and WAYLAND_DISPLAY are not set), so no window can open. \
         The same engine runs in the terminal: `hunch demo`, or `hunch run --help`.",
    )
}
