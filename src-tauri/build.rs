//! Build script of the shell: Tauri's code generation, and permission for the window to call each command.

use std::path::Path;

#[macro_use]
#[path = "../src/api/commands.rs"]
mod list;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident $arguments:tt -> $result:ty $(=> $message:ty)?;)*) => {
        &[$(stringify!($name)),*]
    };
}

/// Every command of the list.
const COMMANDS: &[&str] = with_commands!(names);

fn main() {
    // The built user interface is compiled into the binary.
    println!("cargo:rerun-if-changed=../ui/dist");
    if !Path::new("../ui/dist/index.html").exists() {
        println!(
            "cargo::error=The user interface is not built (ui/dist is missing). \
             Run `make ui`, or run `make run` to build it and open the window."
        );
        return;
    }
    let manifest =
        tauri_build::AppManifest::new().commands(COMMANDS).permissions_path_pattern(write_permission_set());
    tauri_build::try_build(tauri_build::Attributes::new().app_manifest(manifest))
        .expect("tauri.conf.json and capabilities/ are part of this repository and valid");
}

/// Writes the permission set `all-commands`, which `capabilities/main.json` grants to the window.
/// Returns the path of its file, as a pattern.
fn write_permission_set() -> &'static str {
    let permissions: String =
        COMMANDS.iter().map(|name| format!("  \"allow-{}\",\n", name.replace('_', "-"))).collect();
    let set = format!(
        "[[set]]\nidentifier = \"all-commands\"\ndescription = \"Every command of the list.\"\n\
         permissions = [\n{permissions}]\n"
    );
    let folder = std::env::var("OUT_DIR").expect("Cargo sets it for build scripts");
    let file = Path::new(&folder).join("all-commands.toml");
    std::fs::write(&file, set).expect("OUT_DIR is writable");
    // Tauri takes only a static pattern, and the script ends soon.
    escaped(&file.to_string_lossy()).leak()
}

/// Escapes the characters that have a meaning in a pattern.
fn escaped(path: &str) -> String {
    path.chars().map(|c| if "?*[]".contains(c) { format!("[{c}]") } else { c.to_string() }).collect()
}
