//! Build script of the shell: Tauri's code generation, with the list of commands the window may
//! call, and clear words when the user interface has not been built yet.

use std::path::Path;

/// Every command of `src/commands.rs`, `src/library.rs` and `src/measuring.rs`. The capability file allows them one by one; a command that
/// is missing here cannot be called from the window.
const COMMANDS: &[&str] = &[
    "app_info",
    "report_problem",
    "show_log",
    "set_window_hidden",
    "choose_file",
    "choose_folder",
    "choose_save_place",
    "library",
    "add_model_folder",
    "remove_model_folder",
    "remove_model",
    "reveal_model",
    "template_note",
    "watch_library",
    "load_models",
    "cancel_loading",
    "unload_models",
    "fit",
    "fit_verdicts",
    "draft_offers",
    "measure_pair",
    "catalogue",
    "hub_repository",
    "hub_state",
    "set_hub_token",
    "downloads",
    "start_download",
    "pause_download",
    "resume_download",
    "remove_download",
    "answer",
    "list_conversations",
    "open_conversation",
    "answer_events",
    "rename_conversation",
    "pin_conversation",
    "delete_conversation",
    "restore_conversation",
    "set_system_prompt",
    "choose_branch",
    "search_conversations",
    "preferences",
    "set_preference",
    "export_conversation",
    "save_answer",
    "import_conversation",
    "mend_store",
    "stop_generation",
    "generation_snapshot",
    "compare",
    "compare_snapshot",
    "measure_costs",
    "costs_snapshot",
    "stop_measurement",
    "list_comparisons",
    "open_comparison",
    "delete_comparison",
    "export_comparison",
    "cost_curve",
    "lab_position",
    "lab_rounds",
    "lab_rules",
    "landscape",
    "lab_sessions",
    "acceptance_map",
    "what_if",
];

fn main() {
    // The built user interface is compiled into the binary: build again when it changes.
    println!("cargo:rerun-if-changed=../ui/dist");
    if !Path::new("../ui/dist/index.html").exists() {
        println!(
            "cargo::error=The user interface is not built (ui/dist is missing). \
             Run `make ui`, or `make run`, which does it and opens the window."
        );
        return;
    }
    let manifest = tauri_build::AppManifest::new().commands(COMMANDS);
    tauri_build::try_build(tauri_build::Attributes::new().app_manifest(manifest))
        .expect("tauri.conf.json and capabilities/ are part of this repository and valid");
}
