//! The shell: a Tauri window around [`hunch::app::App`].
//!
//! It only adapts the application to Tauri. Anything useful on a command line belongs in the root crate. No other
//! package depends on Tauri.

mod channel_sink;
mod chosen;
mod commands;
mod desk;
mod hosted_app;
mod instance;
mod menu;
mod updates;
mod window;
mod window_state;

use tauri::webview::PageLoadEvent;
use tauri::{AppHandle, Manager, RunEvent, Runtime, WindowEvent};

use crate::hosted_app::HostedApp;

/// Opens the window and runs until it is closed.
///
/// A data folder has one window. A second start brings the open window to the front. The engine starts before the
/// window. If it fails, the window still opens and every command rejects with the reason.
///
/// # Errors
/// If the system cannot open a window or set up its menu.
pub fn run() -> tauri::Result<()> {
    // First, so that later failures are logged. The app also works without a log.
    let log = hunch_library::data_folder().and_then(|folder| hunch::log::start(&folder));
    let mut context = tauri::generate_context!();
    // An app with its own data folder, such as a test, is a separate app to the system.
    let identifier = instance::identifier(&context.config().identifier);
    #[cfg(target_os = "linux")]
    if instance::show_running(&identifier) {
        return Ok(());
    }
    context.config_mut().identifier = identifier;
    let updates = updates::Updates::of_this_copy(context.config());

    let mut builder = tauri::Builder::default()
        // First: a second start exits here at the latest, before its engine opens the store.
        .plugin(tauri_plugin_single_instance::init(|app, _, _| show(app)))
        .plugin(tauri_plugin_dialog::init())
        // The page asks before it opens a link, so a click on an anchor must not open one.
        .plugin(tauri_plugin_opener::Builder::new().open_js_links_on_click(false).build())
        .plugin(window_state::plugin());
    if updates.are_on() {
        builder = builder.plugin(tauri_plugin_updater::Builder::new().build());
    }
    let app = builder
        .manage(updates)
        .manage(desk::Log::new(log))
        .manage(chosen::Chosen::default())
        .setup(|app| {
            app.manage(HostedApp::start());
            window::open(app)?;
            Ok(())
        })
        .menu(menu::build)
        .on_menu_event(menu::chosen)
        .on_page_load(|webview, payload| {
            // A reloaded page does not receive the answer that the old page requested.
            if payload.event() == PageLoadEvent::Started {
                webview.state::<HostedApp>().abandon();
            }
        })
        .on_window_event(|window, event| {
            window_state::on_event(window, event);
            desk::on_event(window, event);
            if matches!(event, WindowEvent::Destroyed) {
                window.state::<HostedApp>().abandon();
            }
        })
        .invoke_handler(commands::handler())
        .build(context)?;
    // Before the page loads and sends its labels.
    menu::watch_labels(app.handle());
    window_state::watch(app.handle());
    app.run(|app, event| {
        if matches!(event, RunEvent::Exit) {
            app.state::<HostedApp>().shutdown();
        }
    });
    Ok(())
}

/// Brings the open window to the front.
fn show<R: Runtime>(app: &AppHandle<R>) {
    if let Some(window) = app.get_webview_window("main") {
        // The window system may refuse each step. The window then stays as it was.
        let _ = window.unminimize();
        let _ = window.show();
        let _ = window.set_focus();
    }
}
