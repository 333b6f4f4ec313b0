//! The shell: a Tauri window around [`hunch::app::App`]. It adapts and passes on; whatever would
//! still make sense on a command line lives in the root crate. Only this package knows Tauri.

mod channel_sink;
mod chosen;
mod commands;
mod desk;
mod engine;
mod instance;
mod library;
mod measuring;
mod menu;
mod window;
mod window_state;

use tauri::webview::PageLoadEvent;
use tauri::{AppHandle, Manager, RunEvent, Runtime, WindowEvent};

use crate::engine::Engine;

/// Opens the window and runs until it is closed. Over one data folder there is one window: who starts another gets
/// the one that is open.
///
/// The engine starts before the window, and its failure does not keep the window shut: every command then
/// rejects with the reason.
///
/// # Errors
/// When the system cannot open a window or set up its menu.
pub fn run() -> tauri::Result<()> {
    // First, so that it holds whatever fails after it. Without it everything still works.
    let log = hunch_library::data_folder().and_then(|folder| hunch::log::start(&folder));
    let mut context = tauri::generate_context!();
    // A window with a data folder of its own (a test, a demonstration) is an app of its own.
    let identifier = instance::identifier(&context.config().identifier);
    context.config_mut().identifier = identifier;

    let app = tauri::Builder::default()
        // First: who comes second ends here, before an engine opens the store.
        .plugin(tauri_plugin_single_instance::init(|app, _, _| show(app)))
        .plugin(tauri_plugin_dialog::init())
        // Links are opened by the window's own question, not by any click on an anchor.
        .plugin(tauri_plugin_opener::Builder::new().open_js_links_on_click(false).build())
        .plugin(window_state::plugin())
        .manage(desk::Log::new(log))
        .manage(chosen::Chosen::default())
        .setup(|app| {
            app.manage(Engine::start());
            window::open(app)?;
            Ok(())
        })
        .menu(menu::build)
        .on_menu_event(menu::chosen)
        .on_page_load(|webview, payload| {
            // A page that is loaded anew knows nothing of the answer its predecessor asked for.
            if payload.event() == PageLoadEvent::Started {
                webview.state::<Engine>().abandon();
            }
        })
        .on_window_event(|window, event| {
            window_state::on_event(window, event);
            desk::on_event(window, event);
            if matches!(event, WindowEvent::Destroyed) {
                window.state::<Engine>().abandon();
            }
        })
        .invoke_handler(tauri::generate_handler![
            commands::app_info,
            commands::report_problem,
            commands::show_log,
            commands::set_window_hidden,
            commands::choose_file,
            commands::choose_folder,
            commands::choose_save_place,
            library::library,
            library::add_model_folder,
            library::remove_model_folder,
            library::remove_model,
            library::reveal_model,
            library::template_note,
            library::watch_library,
            library::load_models,
            library::cancel_loading,
            library::unload_models,
            library::fit,
            library::fit_verdicts,
            library::draft_offers,
            library::measure_pair,
            library::catalogue,
            library::hub_repository,
            library::hub_state,
            library::set_hub_token,
            library::downloads,
            library::start_download,
            library::pause_download,
            library::resume_download,
            library::remove_download,
            commands::answer,
            commands::list_conversations,
            commands::open_conversation,
            commands::answer_events,
            commands::rename_conversation,
            commands::pin_conversation,
            commands::delete_conversation,
            commands::restore_conversation,
            commands::set_system_prompt,
            commands::choose_branch,
            commands::search_conversations,
            commands::preferences,
            commands::set_preference,
            commands::export_conversation,
            commands::save_answer,
            commands::import_conversation,
            commands::mend_store,
            commands::stop_generation,
            commands::generation_snapshot,
            measuring::compare,
            measuring::compare_snapshot,
            measuring::measure_costs,
            measuring::costs_snapshot,
            measuring::stop_measurement,
            measuring::list_comparisons,
            measuring::open_comparison,
            measuring::delete_comparison,
            measuring::export_comparison,
            measuring::cost_curve,
            measuring::lab_position,
            measuring::lab_rounds,
            measuring::lab_rules,
            measuring::landscape,
            measuring::lab_sessions,
            measuring::acceptance_map,
            measuring::what_if,
        ])
        .build(context)?;
    // Before a page is there that could tell them.
    menu::hear_words(app.handle());
    window_state::watch(app.handle());
    app.run(|app, event| {
        if matches!(event, RunEvent::Exit) {
            app.state::<Engine>().shutdown();
        }
    });
    Ok(())
}

/// Brings the window that is already open to the front.
fn show<R: Runtime>(app: &AppHandle<R>) {
    if let Some(window) = app.get_webview_window("main") {
        // Each may be refused by the window system; the window is then where it was.
        let _ = window.unminimize();
        let _ = window.show();
        let _ = window.set_focus();
    }
}
