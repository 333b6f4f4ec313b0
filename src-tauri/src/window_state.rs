//! Saves the position and size of the window.
//!
//! The plugin saves them when the app quits. This module saves them after each move, so that a crash loses nothing.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tauri::plugin::TauriPlugin;
use tauri::{AppHandle, Manager, Runtime, Window, WindowEvent};
use tauri_plugin_window_state::{AppHandleExt, Builder, StateFlags};

/// Time without a move or resize before the state is saved.
const SETTLED_AFTER: Duration = Duration::from_millis(400);

fn remembered() -> StateFlags {
    StateFlags::SIZE | StateFlags::POSITION | StateFlags::MAXIMIZED
}

/// Returns the plugin that restores the window and saves its state at exit.
pub(crate) fn plugin<R: Runtime>() -> TauriPlugin<R> {
    Builder::default().with_state_flags(remembered()).build()
}

/// Channel that reports moves and resizes to the saving thread.
struct Movement(Sender<()>);

/// Starts a thread that saves the state of the window after it was moved or resized.
pub(crate) fn watch<R: Runtime>(app: &AppHandle<R>) {
    let (sender, moves) = channel();
    app.manage(Movement(sender));
    let app = app.clone();
    let started = thread::Builder::new().name("hunch-window".into()).spawn(move || {
        while moves.recv().is_ok() {
            while moves.recv_timeout(SETTLED_AFTER).is_ok() {}
            let saved = app.clone();
            // The plugin queries the window while it holds a lock that the main thread needs. Any other thread could
            // deadlock.
            let _ = app.run_on_main_thread(move || {
                if let Err(error) = saved.save_window_state(remembered()) {
                    tracing::warn!("The window's position could not be saved: {error}");
                }
            });
        }
    });
    if let Err(error) = started {
        tracing::warn!("The window's position is saved only when Hunch quits: {error}");
    }
}

/// Handles an event of the window. Must receive every one.
pub(crate) fn on_event<R: Runtime>(window: &Window<R>, event: &WindowEvent) {
    if matches!(event, WindowEvent::Moved(_) | WindowEvent::Resized(_))
        && let Some(movement) = window.try_state::<Movement>()
    {
        let _ = movement.0.send(());
    }
}
