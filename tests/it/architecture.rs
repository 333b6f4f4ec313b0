//! The invariants of ARCHITECTURE.md that a look at the source can check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

/// Every source file below a folder with one of the endings.
fn sources(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("node_modules") && !path.ends_with("dist") {
                    folders.push(path);
                }
            } else if endings.iter().any(|e| path.extension().is_some_and(|x| x == *e)) {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} holds no source");
    found
}

/// Code lines: what is not a comment.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn the_engine_does_not_know_tauri() {
    for (name, text) in sources("src", &["rs"]) {
        assert!(!code(&text).any(|line| line.contains("tauri")), "{name} names tauri");
    }
}

#[test]
fn core_and_lab_use_no_candle_clock_or_global_randomness() {
    for (name, text) in
        sources("crates/hunch-core/src", &["rs"]).into_iter().chain(sources("src/lab", &["rs"]))
    {
        for word in ["candle", "Instant", "SystemTime", "thread_rng", "rand::rng", "std::fs", "std::thread"] {
            assert!(!code(&text).any(|line| line.contains(word)), "{name} uses {word}");
        }
    }
}

#[test]
fn unsafe_code_stays_in_the_kernels() {
    for (name, text) in sources("src", &["rs"]).into_iter().chain(sources("src-tauri/src", &["rs"])) {
        assert!(!code(&text).any(|line| line.contains("unsafe ")), "{name} has unsafe code");
    }
}

#[test]
fn unsafe_blocks_say_why() {
    for (name, text) in sources("crates/hunch-kernels/src", &["rs"]) {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if line.contains("unsafe {") || line.contains("unsafe impl") {
                let reason = lines[i.saturating_sub(7)..=i].iter().any(|l| l.contains("SAFETY"));
                assert!(reason, "{name}:{}: no SAFETY reason", i + 1);
            }
        }
    }
}

#[test]
fn every_module_says_what_lives_there() {
    for folder in ["src", "crates", "src-tauri/src", "tests/it"] {
        for (name, text) in sources(folder, &["rs"]) {
            assert!(text.starts_with("//!"), "{name} does not open with //!");
        }
    }
}

#[test]
fn one_file_of_the_interface_knows_tauri() {
    for (name, text) in sources("ui/src", &["ts", "svelte"]) {
        if !name.ends_with("lib/host/tauri.ts") {
            let imports = text.lines().any(|line| line.contains("@tauri-apps") && line.contains("import"));
            assert!(!imports, "{name} imports @tauri-apps");
        }
    }
}

#[test]
fn the_interface_never_trusts_markup() {
    for (name, text) in sources("ui/src", &["ts", "svelte"]) {
        for word in ["{@html", "innerHTML", "insertAdjacentHTML"] {
            assert!(!code(&text).any(|line| line.contains(word)), "{name} uses {word}");
        }
    }
}

/// The modules of a crate that each of its modules names, at the top level.
fn module_graph(crate_root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let files = sources(crate_root, &["rs"]);
    let module_of = |name: &str| {
        let path = name.strip_prefix(crate_root).unwrap().trim_start_matches('/');
        path.split(['/', '.']).next().unwrap().to_owned()
    };
    let modules: BTreeSet<String> = files.iter().map(|(name, _)| module_of(name)).collect();
    for (name, text) in &files {
        let module = module_of(name);
        if ["lib", "main"].contains(&module.as_str()) {
            continue;
        }
        // Tests may name what is above.
        let tested = text.split("\n#[cfg(test)]").next().unwrap();
        for line in code(tested) {
            for named in line.split("crate::").skip(1) {
                let named: String =
                    named.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if named != module && modules.contains(&named) {
                    graph.entry(module.clone()).or_default().insert(named);
                }
            }
        }
    }
    graph
}

/// Removes modules that name no other until none is left, and returns those in or above a circle.
fn in_circles(mut graph: BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    loop {
        let above: BTreeSet<String> = graph.keys().cloned().collect();
        let before = graph.len();
        graph.retain(|_, named| named.iter().any(|name| above.contains(name)));
        if graph.len() == before {
            return above;
        }
    }
}

#[test]
fn modules_of_a_crate_form_no_circle() {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        format!("crates/{}/src", name.display())
    });
    for crate_root in crates.chain(["src".into(), "src-tauri/src".into()]) {
        assert_eq!(in_circles(module_graph(&crate_root)), BTreeSet::new(), "{crate_root}");
    }
    let circle = [("a", "b"), ("b", "a"), ("c", "a"), ("d", "e")]
        .map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()])));
    assert_eq!(in_circles(circle.into()), ["a", "b", "c"].map(str::to_owned).into());
}

#[test]
fn every_method_names_a_section_of_the_documentation() {
    let docs = std::fs::read_to_string(root().join("docs/methods.md")).unwrap();
    let anchor = |heading: &str| heading.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-");
    let anchors: Vec<String> = docs.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
    for method in hunch_core::method::Method::REGISTERED {
        let section = method.entry().docs;
        assert!(anchors.iter().any(|anchor| anchor == section), "{method}: docs/methods.md#{section}");
    }
}
