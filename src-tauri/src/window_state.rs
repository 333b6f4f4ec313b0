//! Where the window stands and how large it is, remembered from start to start. The plugin does it when the app
//! is quit; here it is written down as soon as the window has come to rest, so that it is there however the app ends.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tauri::plugin::TauriPlugin;
use tauri::{AppHandle, Manager, Runtime, Window, WindowEvent};
use tauri_plugin_window_state::{AppHandleExt, Builder, StateFlags};

/// How long a window that is moved or resized has to stand still.
const REST: Duration = Duration::from_millis(400);

fn remembered() -> StateFlags {
    StateFlags::SIZE | StateFlags::POSITION | StateFlags::MAXIMIZED
}

/// Brings the window back to where it was, and remembers it when the app is quit.
pub(crate) fn plugin<R: Runtime>() -> TauriPlugin<R> {
    Builder::default().with_state_flags(remembered()).build()
}

/// Hears that the window moves.
struct Movement(Sender<()>);

/// Remembers the window whenever it has come to rest.
pub(crate) fn watch<R: Runtime>(app: &AppHandle<R>) {
    let (sender, moves) = channel();
    app.manage(Movement(sender));
    let app = app.clone();
    let watching = thread::Builder::new().name("hunch-window".into()).spawn(move || {
        while moves.recv().is_ok() {
            while moves.recv_timeout(REST).is_ok() {}
            let saved = app.clone();
            // The plugin asks the window while it holds what the main thread wants, so only there.
            let _ = app.run_on_main_thread(move || {
                if let Err(error) = saved.save_window_state(remembered()) {
                    tracing::warn!("The place of the window could not be remembered: {error}");
                }
            });
        }
    });
    if let Err(error) = watching {
        tracing::warn!("The place of the window is remembered when Hunch is quit only: {error}");
    }
}

/// To be told of every event of the window.
pub(crate) fn on_event<R: Runtime>(window: &Window<R>, event: &WindowEvent) {
    if matches!(event, WindowEvent::Moved(_) | WindowEvent::Resized(_))
        && let Some(movement) = window.try_state::<Movement>()
    {
        let _ = movement.0.send(());
    }
}
