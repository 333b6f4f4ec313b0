//! The invariants of ARCHITECTURE.md that a look at the source can check.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use archaven::{Archaven, ArchavenError, DependencyGraph, RuleSet, Violations};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use walkdir::WalkDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

/// Every source file below a folder with one of the endings.
fn sources(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let foreign = |name: &OsStr| name == "node_modules" || name == "dist";
    let entries =
        WalkDir::new(root().join(folder)).into_iter().filter_entry(|entry| !foreign(entry.file_name()));
    let files = entries.map(|entry| entry.unwrap().into_path());
    let wanted = files.filter(|path| path.extension().is_some_and(|own| endings.iter().any(|e| own == *e)));
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (name, std::fs::read_to_string(&path).unwrap())
    };
    let found: Vec<_> = wanted.map(read).collect();
    assert!(!found.is_empty(), "{folder} holds no source");
    found
}

/// Code lines: what is not a comment.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn engine_does_not_depend_on_tauri() {
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

/// The files that may contain `unsafe`. The lint `unsafe_code` denies it everywhere else.
const UNSAFE: [&str; 3] =
    ["crates/hunch-kernels/src/lib.rs", "crates/hunch-model/src/metal/device.rs", "tests/it/alloc_count.rs"];

#[test]
fn unsafe_code_stays_in_kernels_and_metal_buffers() {
    let folders = ["src", "src-tauri/src", "crates", "tests"];
    let files = folders.iter().flat_map(|folder| sources(folder, &["rs"]));
    let allows = |(name, text): (String, String)| {
        let own = name != "tests/it/architecture.rs";
        (own && code(&text).any(|line| line.contains("(unsafe_code"))).then_some(name)
    };
    let mut allowed: Vec<String> = files.filter_map(allows).collect();
    allowed.sort();
    assert_eq!(allowed, UNSAFE);
}

#[test]
fn unsafe_blocks_have_safety_comments() {
    // Clippy checks the files that this machine compiles. The text of files for Macs and ARM is searched.
    let kernels = sources("crates/hunch-kernels/src", &["rs"]);
    for (name, text) in kernels.into_iter().chain(sources("crates/hunch-model/src/metal", &["rs"])) {
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
fn every_module_opens_with_a_docstring() {
    for folder in ["src", "crates", "src-tauri/src", "tests/it"] {
        for (name, text) in sources(folder, &["rs"]) {
            assert!(text.starts_with("//!"), "{name} does not open with //!");
        }
    }
}

#[test]
fn one_file_of_the_interface_imports_tauri() {
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

/// Hands out the graph of modules that archaven reads from source files.
#[derive(Clone, Default)]
struct ModuleGraph(Rc<RefCell<DependencyGraph>>);

impl RuleSet for ModuleGraph {
    fn check(&self, graph: &DependencyGraph) -> Result<Violations, ArchavenError> {
        *self.0.borrow_mut() = graph.clone();
        Ok(Violations::new())
    }
}

/// Returns the lines of code before the tests in a file.
fn lines_before_tests(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let begins_tests = |at: &usize| {
        let item = lines[*at..].iter().find(|line| !line.starts_with("#["));
        lines[*at] == "#[cfg(test)]" && item.is_some_and(|item| item.ends_with('{'))
    };
    (0..lines.len()).find(begins_tests).unwrap_or(lines.len())
}

/// Returns the circles between modules of one folder, each with the lines that form it.
///
/// A dependency counts for the two modules next to each other that it leads between: `a::x` to `b::y` is one of `a`
/// on `b`. A module may name its parent. Tests may name what is above.
fn circles(source: &Path) -> Vec<Vec<String>> {
    let graph = ModuleGraph::default();
    Archaven::new().rule(graph.clone()).check(source).unwrap();
    let graph = graph.0.borrow();
    let module_of = |folder: &[String], file: &str| {
        let name = file.trim_end_matches(".rs");
        let own = (!["lib", "main", "mod"].contains(&name)).then(|| name.to_owned());
        folder.iter().cloned().chain(own).collect::<Vec<_>>()
    };
    let files =
        graph.directories().iter().flat_map(|folder| folder.files().iter().map(move |file| (folder, file)));
    let modules: BTreeSet<_> =
        files.map(|(folder, file)| module_of(folder.module().segments(), file)).collect();
    let mut uses: DiGraphMap<&[String], ()> = DiGraphMap::new();
    let mut lines: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for dependency in graph.dependencies() {
        let (from, to) = (dependency.source().segments(), dependency.target().segments());
        // A single name may be a variable, and a name without `crate::` the module's own child.
        let [first, _, ..] = to else { continue };
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let is_relative =
            shared == from.len() || shared == to.len() || modules.contains(&module_of(from, first));
        if is_relative || !modules.contains(&to[..=shared]) {
            continue;
        }
        let location = dependency.location();
        let line = location.line().unwrap_or_default();
        if from.iter().any(|module| module == "tests") || line > lines_before_tests(location.file()) {
            continue;
        }
        let used = (&from[..=shared], &to[..=shared]);
        uses.add_edge(used.0, used.1, ());
        lines.entry(used).or_default().push(format!("{}:{line}", location.file().display()));
    }
    let circles = tarjan_scc(&uses).into_iter().filter(|modules| modules.len() > 1);
    let named = |modules: Vec<&[String]>| {
        let within = lines.iter().filter(|((from, to), _)| modules.contains(from) && modules.contains(to));
        within
            .map(|((from, to), lines)| {
                format!("{} -> {} {}", from.join("::"), to.join("::"), lines.join(" "))
            })
            .collect()
    };
    circles.map(named).collect()
}

#[test]
fn modules_of_a_crate_form_no_circle() {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for package in crates.chain([root(), root().join("src-tauri")]) {
        let found = circles(&package.join("src"));
        assert!(found.is_empty(), "{found:#?}");
    }
}

#[test]
fn planted_circles_are_found() {
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("outer")).unwrap();
    for (file, text) in [
        ("lib.rs", "mod a; mod b; mod c; mod d; mod outer;"),
        ("a.rs", "use crate::{b::{self, B}, d::D};"),
        ("b.rs", "pub use super::c::C as B;"),
        ("c.rs", "pub struct C;\nfn f() { crate::a::f(); }"),
        // No circle: a variable of this name, a path to its own child, and a test.
        ("d.rs", "mod b;\nfn f(a: u32) { b::f(a); }\n#[cfg(test)]\nmod tests {\n use crate::a::A;\n}"),
        ("d/b.rs", "use super::D;"),
        ("outer/mod.rs", "mod x; mod y; struct S;"),
        ("outer/x.rs", "use super::{S, y::Y};"),
        ("outer/y.rs", "use crate::outer::x::X;"),
    ] {
        let path = source.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let found = circles(source.path());
    let arrows = |circle: &Vec<String>| {
        circle.iter().map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let mut found: Vec<_> = found.iter().map(arrows).collect();
    found.sort();
    assert_eq!(
        found,
        [vec!["a -> b", "b -> c", "c -> a"], vec!["outer::x -> outer::y", "outer::y -> outer::x"]]
    );
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
