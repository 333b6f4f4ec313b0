//! Build script: sets `HUNCH_VERSION`, which `hunch --version` prints.
//!
//! Release builds name their commit: `HUNCH_COMMIT`, else the one that `git archive` wrote into `src/commit.txt`, else
//! that of the checkout. Without any of these the version stands alone. Builds of other profiles name a commit only if
//! `HUNCH_COMMIT` is set, because asking git would compile the crate again after each commit.

use std::path::Path;
use std::process::Command;

/// Length of an abbreviated commit.
const SHORT: usize = 12;
/// Files whose changes can make the build differ from the commit.
const SOURCES: [&str; 6] = ["src", "crates", "src-tauri", "ui", "Cargo.toml", "Cargo.lock"];

fn main() {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.trim().is_empty());
    let root = variable("CARGO_MANIFEST_DIR").expect("Cargo sets it for build scripts");
    let version = variable("CARGO_PKG_VERSION").expect("Cargo sets it for build scripts");
    println!("cargo:rerun-if-env-changed=HUNCH_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let release = variable("PROFILE").is_some_and(|profile| profile == "release");
    let commit = variable("HUNCH_COMMIT").map(|commit| short(commit.trim())).or_else(|| {
        release.then(|| archived(Path::new(&root)).or_else(|| checked_out(Path::new(&root)))).flatten()
    });
    let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    println!("cargo:rustc-env=HUNCH_VERSION={version}{commit}");
}

fn short(commit: &str) -> String {
    commit.chars().take(SHORT).collect()
}

/// Returns the commit of an unpacked source archive. In a checkout the file holds only a placeholder.
fn archived(root: &Path) -> Option<String> {
    println!("cargo:rerun-if-changed=src/commit.txt");
    let text = std::fs::read_to_string(root.join("src/commit.txt")).ok()?;
    let commit = text.trim();
    let is_hash = commit.len() >= SHORT && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| short(commit))
}

/// Returns the commit of a git checkout, marked if its sources were changed.
fn checked_out(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    // An archive unpacked below another repository is not at its commit.
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // It changes with each commit and each checkout.
    if let Some(log) = git(root, &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    // Only files that git knows. The folders also hold what builds write, such as `ui/node_modules`.
    let files = git(root, &[&["ls-files", "-z", "--"], &SOURCES[..]].concat()).unwrap_or_default();
    for file in files.split('\0').filter(|file| !file.is_empty()) {
        println!("cargo:rerun-if-changed={file}");
    }
    let commit = short(&git(root, &["rev-parse", "HEAD"])?);
    let status = [&["status", "--porcelain", "--untracked-files=no", "--"], &SOURCES[..]].concat();
    let changed = git(root, &status).is_some_and(|changes| !changes.is_empty());
    Some(if changed { format!("{commit}, modified") } else { commit })
}

/// Runs git. Returns what it printed, or nothing if it is missing or fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
