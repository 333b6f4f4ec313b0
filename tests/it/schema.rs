//! The wire: the generated TypeScript is current, and the shell adapts every command.

use std::path::Path;

use hunch::api::schema::{COMMANDS, typescript};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_generated_types_are_current() {
    let path = "ui/src/lib/ipc/schema.gen.ts";
    assert!(read(path) == typescript(), "{path} is stale: cargo run -p hunch -- schema > {path}");
}

#[test]
fn the_shell_adapts_every_command_and_no_other() {
    let commands =
        ["commands", "library", "measuring"].map(|file| read(&format!("src-tauri/src/{file}.rs"))).concat();
    let registered = read("src-tauri/src/lib.rs");
    for command in &COMMANDS {
        let name = command.name;
        let adapter = ["(", "<R"].map(|next| format!("fn {name}{next}"));
        assert!(adapter.iter().any(|adapter| commands.contains(adapter)), "no adapter for {name}");
        let adapted =
            ["commands", "library", "measuring"].map(|module| format!("            {module}::{name},\n"));
        assert!(adapted.iter().any(|line| registered.contains(line)), "{name} is not registered");
    }
    let adapters = commands.matches("#[tauri::command").count();
    assert_eq!(adapters, COMMANDS.len(), "the shell has commands that are not in the list");
}
