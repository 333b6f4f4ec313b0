//! The library on disk: split models, watched folders, and hostile files.

mod programs;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use hunch::app::{App, AppConfig};
use hunch_library::types::{Library, LibraryEvent, LoadRequest, ModelEntry, ModelSource};
use hunch_library::watch::POLL_INTERVAL;
use hunch_library::{Places, load_marker};
use hunch_model::gguf::Value;
use hunch_model::low_bit;
use hunch_model::weights::WeightFile;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

use crate::alloc_count::peak_during;
use crate::cli::{hunch, last_json, text};
use crate::support::app::config;
use crate::support::mutate::{BOMBS, apply, mutations, runner, set};
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::tiny::Tiny;

/// Creates empty places below a folder.
fn places(root: &Path) -> Places {
    let models = root.join("models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::create_dir_all(root.join("home")).unwrap();
    Places { models, data: Some(root.into()), home: Some(root.join("home")), ..Places::default() }
}

fn app_at(places: Places) -> App {
    let store = places.data.clone().map(|data| data.join("conversations.db"));
    App::start(AppConfig { places: Some(places), store, ..config(Path::new("")) }).unwrap()
}

fn names(models: &[ModelEntry]) -> Vec<&str> {
    models.iter().map(|model| model.name.as_str()).collect()
}

fn one<'a>(models: &'a [ModelEntry], name: &str) -> &'a ModelEntry {
    models.iter().find(|model| model.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
}

fn problem(model: &ModelEntry) -> &str {
    model.problem.as_deref().unwrap_or_default()
}

#[test]
fn split_model_gives_the_same_answer_as_the_whole() {
    let data = tempfile::tempdir().unwrap();
    let models = places(data.path()).models;
    let tiny = Tiny { architecture: "qwen2", tied: false, ..Tiny::default() };
    tiny.write(&models, "whole");
    tiny.write_split(&models, "big", 3);
    Tiny { layers: 1, ..tiny }.write_split(&models, "draft", 2);
    let answer = |target: &str| {
        // A fixed draft length: an adaptive one depends on timing, and so does the answer for a seed.
        let arguments = ["run", "abc abc abc", "--target", target, "--draft", "draft", "--max-tokens", "24"];
        let rest = ["--method", "draft-model", "--max-draft", "3", "--seed", "3", "--json"];
        last_json(&hunch(data.path(), &[&arguments[..], &rest[..]].concat()))
    };
    let (whole, split) = (answer("whole"), answer("big"));
    assert!(whole["tokens"].as_array().unwrap().len() > 5);
    assert_eq!(whole["tokens"], split["tokens"]);
    let last = models.join("big-00003-of-00003.gguf");
    assert_eq!(answer(last.to_str().unwrap())["tokens"], whole["tokens"], "any part names the whole model");
}

#[test]
fn split_model_is_listed_and_inspected_as_one() {
    let data = tempfile::tempdir().unwrap();
    let places = places(data.path());
    let whole = Tiny::default().write(&places.models, "whole");
    let first = Tiny::default().write_split(&places.models, "big", 3);
    let scan = hunch_library::scan(&places);
    assert_eq!(names(&scan.models), ["big", "whole"]);
    let (big, other) = (&scan.models[0], &scan.models[1]);
    let files: u64 = (1..=3)
        .map(|n| places.models.join(format!("big-{n:05}-of-00003.gguf")).metadata().unwrap().len())
        .sum();
    assert_eq!((big.parts, big.size_bytes, &big.path), (3, files, &first.display().to_string()));
    assert_eq!((other.parts, other.problem.is_none()), (1, true));
    assert_eq!(
        (big.parameters, &big.quantisation, big.context_length),
        (other.parameters, &other.quantisation, other.context_length)
    );
    let (a, b) = (hunch_library::inspect(&first).unwrap(), hunch_library::inspect(&whole).unwrap());
    assert_eq!((a.spec, a.weight_bytes, a.quantisations), (b.spec, b.weight_bytes, b.quantisations));
    let words = text(&hunch(data.path(), &["models", "inspect", "big"]).stdout);
    assert!(words.contains("in 3 files"), "{words}");
}

#[test]
fn low_bit_copy_of_a_split_model_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let whole = WeightFile::open(&Tiny::default().write(folder.path(), "whole")).unwrap();
    let split = WeightFile::open(&Tiny::default().write_split(folder.path(), "big", 2)).unwrap();
    let copies = [folder.path().join("of-whole.gguf"), folder.path().join("of-big.gguf")];
    for (model, to) in [&whole, &split].into_iter().zip(&copies) {
        low_bit::write_copy(model, to, 2, &mut low_bit::unwatched).unwrap();
    }
    assert_eq!(std::fs::read(&copies[0]).unwrap(), std::fs::read(&copies[1]).unwrap());
}

#[test]
fn mismatched_parts_are_reported_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let places = places(folder.path());
    let part = |name: &str, n: usize| places.models.join(format!("{name}-{n:05}-of-00003.gguf"));
    let refused = |name: &str| {
        let scan = hunch_library::scan(&places);
        let model = one(&scan.models, name);
        let path = PathBuf::from(&model.path);
        assert!(WeightFile::open(&path).is_err() && hunch_library::inspect(&path).is_err());
        problem(model).to_owned()
    };
    Tiny::default().write_split(&places.models, "gone", 3);
    std::fs::remove_file(part("gone", 2)).unwrap();
    let words = refused("gone");
    assert!(words.contains("gone-00002-of-00003.gguf is missing"), "{words}");
    Tiny::default().write_split(&places.models, "headless", 3);
    std::fs::remove_file(part("headless", 1)).unwrap();
    assert!(refused("headless").contains("headless-00001-of-00003.gguf is missing"));
    Tiny::default().write_split(&places.models, "swapped", 3);
    std::fs::copy(part("swapped", 2), part("swapped", 3)).unwrap();
    assert!(refused("swapped").contains("the file says part 2 of 3"));
    Tiny::default().write_split(&places.models, "short", 3);
    let bytes = std::fs::read(part("short", 3)).unwrap();
    std::fs::write(part("short", 3), &bytes[..bytes.len() - 100]).unwrap();
    let words = refused("short");
    assert!(words.contains("incomplete") && words.contains("short-00003"), "{words}");
    Tiny::default().write_split(&places.models, "twice", 3);
    let again =
        Tiny::default().writer().split(1).remove(0).without_key("split.no").without_key("split.count");
    let again = again.value("split.no", Value::U16(1)).value("split.count", Value::U16(3));
    std::fs::write(part("twice", 2), again.bytes()).unwrap();
    assert!(refused("twice").contains("in an earlier part as well"));
    // Each header is within the limit, but their sum is not.
    Tiny::default().write_split(&places.models, "wordy", 3);
    for (i, piece) in Tiny::default().writer().split(3).into_iter().enumerate().skip(1) {
        let wordy = piece.str("general.description", &"x".repeat(40 << 20));
        std::fs::write(part("wordy", i + 1), wordy.bytes()).unwrap();
    }
    assert!(refused("wordy").contains("the headers of its parts are longer than 64 MiB"));
    let renamed = places.models.join("renamed.gguf");
    std::fs::copy(part("short", 1), &renamed).unwrap();
    assert!(refused("renamed").contains("its name does not say which"));
    let whole = Tiny::default().write(&places.models, "claims-00001-of-00002");
    std::fs::copy(&whole, places.models.join("claims-00002-of-00002.gguf")).unwrap();
    assert!(refused("claims").contains("the file does not say that it is one"));
}

#[test]
fn hostile_files_do_not_hide_a_valid_one() {
    let folder = tempfile::tempdir().unwrap();
    let places = places(folder.path());
    Tiny::default().write(&places.models, "good");
    let (bytes, fields) = Tiny::default().writer().bytes_and_fields();
    for (i, bomb) in BOMBS.into_iter().enumerate() {
        // The counts of tensors and entries, and the first lengths.
        for (j, field) in fields.iter().take(8).enumerate() {
            let mut hostile = bytes.clone();
            set(&mut hostile, *field, bomb);
            std::fs::write(places.models.join(format!("hostile-{i}-{j}.gguf")), hostile).unwrap();
        }
    }
    let scan = hunch_library::scan(&places);
    assert_eq!(scan.models.len(), 1 + BOMBS.len() * 8);
    assert_eq!(problem(one(&scan.models, "good")), "");
    assert!(scan.models.iter().filter(|model| model.problem.is_some()).count() > BOMBS.len() * 6);
}

#[test]
fn corrupt_headers_are_read_safely() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, split) = (folder.path().join("x.gguf"), folder.path().join("y-00001-of-00002.gguf"));
    let parts: Vec<_> = Tiny { layers: 1, ..Tiny::default() }.writer().split(2);
    std::fs::write(folder.path().join("y-00002-of-00002.gguf"), parts[1].bytes()).unwrap();
    let bases = [
        (Tiny { layers: 1, ..Tiny::default() }.writer().bytes_and_fields(), whole),
        (parts[0].bytes_and_fields(), split),
    ];
    let result = runner(300).run(&(0..2usize, mutations()), |(base, mutations)| {
        let ((bytes, fields), path) = &bases[base];
        let header = fields.iter().map(|field| field.at + field.width).max().unwrap();
        let mut bytes = bytes.clone();
        mutations.iter().for_each(|mutation| apply(&mut bytes, fields, header, mutation));
        std::fs::write(path, &bytes).unwrap();
        let (inspected, peak) = peak_during(|| hunch_library::inspect(path));
        prop_assert!(peak < 64 << 20, "{peak} bytes of memory");
        let words = inspected.err().map(|error| error.to_string()).unwrap_or_default();
        prop_assert!(!words.contains("Internal"), "{words}");
        Ok(())
    });
    result.unwrap();
}

/// Writes a sparse file of 100 GB whose token list claims to hold `tokens` entries.
fn huge(folder: &Path, tokens: u64) -> PathBuf {
    let path = folder.join(format!("huge-{tokens}.gguf"));
    let (mut bytes, fields) = GgufWriter::new().strings("tokenizer.ggml.tokens", ["a"]).bytes_and_fields();
    let count = fields.iter().filter(|field| field.width == 8).nth(3).unwrap();
    set(&mut bytes, *count, tokens);
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len(100 << 30).unwrap();
    path
}

/// More tokens than the file could hold at 16 bytes each.
const TOO_MANY: u64 = (100 << 30) / 16;

#[test]
fn memory_is_bounded_by_the_header_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = huge(folder.path(), TOO_MANY);
    let (inspected, read) = peak_during(|| hunch_library::inspect(&path));
    let (opened, mapped) = peak_during(|| WeightFile::open(&path).map(|_| ()));
    for words in [inspected.unwrap_err().to_string(), opened.unwrap_err().to_string()] {
        assert!(words.contains("its header exceeds"), "{words}");
    }
    assert!(read.max(mapped) < 200 << 20, "{read} and {mapped} bytes of memory");
    // As many as fit in the header limit. Each takes a fixed amount of memory in addition to its text.
    let path = huge(folder.path(), (60 << 20) / 8);
    let (opened, mapped) = peak_during(|| WeightFile::open(&path).map(|_| ()));
    opened.unwrap();
    assert!(mapped < 300 << 20, "{mapped} bytes of memory");
}

#[test]
fn commands_refuse_a_huge_file() {
    let data = tempfile::tempdir().unwrap();
    let models = places(data.path()).models;
    Tiny::default().write(&models, "sound");
    let path = huge(&models, TOO_MANY);
    let path = path.to_str().unwrap();
    for arguments in [
        &["run", "hi", "--target", path][..],
        &["run", "hi", "--target", "sound", "--draft", path],
        &["bench", "--target", path],
        &["compare", "hi", "--target", path],
        &["verify", "--target", path],
        &["models", "inspect", path],
        &["models", "pairs", path],
        &["models", "fit", path],
        &["models", "fit", path, "--measure"],
    ] {
        let output = hunch(data.path(), arguments);
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {words}");
        assert!(words.contains("its header exceeds 64 MiB"), "{arguments:?}: {words}");
    }
    assert!(text(&hunch(data.path(), &["models"]).stdout).contains("sound"), "the list still works");
}

#[cfg(unix)]
#[test]
fn non_models_are_hidden_or_listed_with_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let places = places(folder.path());
    let other = places.home.clone().unwrap().join(".lmstudio/models/org/repo");
    std::fs::create_dir_all(&other).unwrap();
    let adapter = GgufWriter::new().str("general.type", "adapter").str("general.architecture", "llama");
    let projector = GgufWriter::new().str("general.architecture", "clip");
    let vocabulary = GgufWriter::new().str("general.architecture", "llama");
    let tensor = |writer: GgufWriter| writer.raw_tensor("t", &[4], 0, None, vec![0; 16]);
    let files = [
        ("lora", tensor(adapter), "an adapter"),
        ("mmproj-f16", tensor(projector), "a projector"),
        ("vocab", vocabulary, "no weights"),
        ("foreign", tensor(GgufWriter::new().str("general.architecture", "gemma3")), "gemma3"),
    ];
    for (name, writer, _) in &files {
        std::fs::write(places.models.join(format!("{name}.gguf")), writer.bytes()).unwrap();
        std::fs::write(other.join(format!("{name}-2.gguf")), writer.bytes()).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", places.models.join("broken.gguf")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", places.models.join("zero.gguf")).unwrap();
    std::fs::create_dir(places.models.join("folder.gguf")).unwrap();
    let scan = hunch_library::scan(&places);
    assert_eq!(names(&scan.models), ["foreign", "foreign-2", "lora", "mmproj-f16", "vocab"]);
    for (name, _, words) in files {
        assert!(problem(one(&scan.models, name)).contains(words), "{name}: {:?}", one(&scan.models, name));
    }
    assert_eq!(one(&scan.models, "foreign").architecture, "gemma3", "known header fields are listed");
}

#[test]
fn folders_are_added_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    Tiny::default().write(&mine, "tiny");
    let app = app_at(places(folder.path()));
    let added = app.add_model_folder(mine.to_str().unwrap()).unwrap();
    assert_eq!(names(&added.models), ["tiny"]);
    assert_eq!(added.models[0].source, ModelSource::Added);
    assert!(app.add_model_folder(mine.to_str().unwrap()).is_err());
    assert!(app.remove_model(&added.models[0].path).is_err(), "only Hunch's own files are removed");
    std::fs::remove_dir_all(&mine).unwrap();
    let Library { models, folders, .. } = app.library();
    let gone = folders.iter().find(|folder| folder.source == ModelSource::Added).unwrap();
    assert!(models.is_empty() && !gone.exists, "it stays on the list, because the volume may return");
    let path = gone.path.clone();
    let left = app.remove_model_folder(&path).unwrap();
    assert!(!left.folders.iter().any(|folder| folder.source == ModelSource::Added));
}

#[test]
fn listed_and_previously_loaded_files_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let places = places(folder.path());
    let app = app_at(places.clone());
    let listed = Tiny::default().write(&places.models, "listed");
    let elsewhere = Tiny { seed: 2, ..Tiny::default() }.write(folder.path(), "elsewhere");
    let secret = folder.path().join("secret.txt");
    std::fs::write(&secret, "secret").unwrap();
    let [listed, elsewhere, secret] = [listed, elsewhere, secret].map(|path| path.display().to_string());
    let around = places.models.join("../secret.txt").display().to_string();
    assert_eq!(app.unknown_model([&*listed, "a name", "/nowhere.gguf"]), None);
    assert_eq!(app.unknown_model([&*listed, &*elsewhere]), Some(&*elsewhere));
    app.load_models(LoadRequest { target: elsewhere.clone(), draft: None, head: None, context: None })
        .unwrap();
    assert_eq!(app.unknown_model([&*elsewhere]), None);
    for path in [secret, around] {
        assert_eq!(app.unknown_model([&*path]), Some(&*path));
    }
    drop(app);
    assert_eq!(app_at(places.clone()).unknown_model([&*elsewhere]), None, "remembered after a restart");
    let crashed = Tiny { seed: 3, ..Tiny::default() }.write(folder.path(), "crashed").display().to_string();
    let load = LoadRequest { target: crashed.clone(), draft: None, head: None, context: None };
    load_marker::set(places.data.as_deref().unwrap(), &load).unwrap();
    assert_eq!(app_at(places).unknown_model([&*crashed]), None, "it was chosen in the run that crashed");
}

#[test]
fn hidden_window_is_notified_of_new_models_when_shown() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(places(folder.path()));
    app.set_window_hidden(true);
    let (sender, events) = channel();
    app.watch_library(Box::new(move |event| drop(sender.send(event)))).unwrap();
    app.set_window_hidden(true);
    Tiny::default().write(&folder.path().join("models"), "new");
    assert!(events.recv_timeout(2 * POLL_INTERVAL).is_err(), "no polling while hidden");
    app.set_window_hidden(false);
    assert_eq!(events.recv_timeout(Duration::from_secs(60)).unwrap(), LibraryEvent::Changed);
}

#[test]
fn listeners_are_notified_of_new_models_until_the_application_ends() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(places(folder.path()));
    let (sender, events) = channel();
    let listener = Box::new(move |event| {
        let _ = sender.send(event);
    });
    assert!(app.watch_library(listener).unwrap().is_empty(), "nothing is being fetched");
    Tiny::default().write(&folder.path().join("models"), "new");
    assert_eq!(events.recv_timeout(Duration::from_secs(60)).unwrap(), LibraryEvent::Changed);
    drop(app);
    while events.recv_timeout(Duration::from_secs(60)).is_ok() {}
    assert!(events.recv().is_err(), "the thread has ended");
}

#[test]
fn headers_are_cached_until_the_file_changes() {
    let folder = tempfile::tempdir().unwrap();
    let places = places(folder.path());
    let file = Tiny::default().write(&places.models, "tiny");
    std::fs::write(places.models.join("broken.gguf"), b"GGUF").unwrap();
    let cold = hunch_library::scan(&places);
    let cache = folder.path().join("headers.json");
    let written = std::fs::read_to_string(&cache).unwrap();
    let warm = hunch_library::scan(&places);
    assert_eq!((&cold.models, &cold.inspections), (&warm.models, &warm.inspections));
    // The cache was used: its text is returned.
    std::fs::write(&cache, written.replace("Tiny Llama 1", "Tiny Llama 2")).unwrap();
    assert_eq!(hunch_library::scan(&places).inspections[0].spec.name, "Tiny Llama 2");
    for damaged in ["", "{", "[]", &written[..written.len() / 2], &written.replace("0.", "9.")] {
        std::fs::write(&cache, damaged).unwrap();
        assert_eq!(hunch_library::scan(&places).models, cold.models);
    }
    Tiny { layers: 1, ..Tiny::default() }.write(&places.models, "tiny");
    assert!(hunch_library::scan(&places).models[0].parameters < cold.models[0].parameters);
    std::fs::remove_file(file).unwrap();
    assert_eq!(names(&hunch_library::scan(&places).models), ["broken"]);
}

#[cfg(unix)]
#[test]
fn unusual_file_names_are_listed_or_skipped() {
    use std::os::unix::ffi::OsStringExt;
    let part = prop::sample::select(vec![
        "..",
        "-00001-of-00002",
        "-00002-of-00002",
        "-99999-of-99999",
        ".gguf",
        ".GGUF",
        "\\",
        " ",
        "\n",
        "\u{202e}",
        "é",
        "sha256-",
        "mmproj",
        "a",
        "%",
        ":",
        "'",
        "\"",
        "\u{1f600}",
    ]);
    let name = (prop::collection::vec(part, 0..5), prop::collection::vec(any::<u8>(), 0..6), any::<Index>());
    let strategy = prop::collection::vec((name, any::<bool>()), 1..8);
    let result = runner(60).run(&strategy, |files| {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        for ((parts, raw, at), ending) in files {
            let mut bytes = parts.concat().into_bytes();
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, raw.into_iter().filter(|byte| *byte != 0 && *byte != b'/'));
            bytes.extend_from_slice(if ending { b".gguf" } else { b"" });
            // Fails for names that no file system accepts.
            let _ = std::fs::write(places.models.join(OsString::from_vec(bytes)), b"GGUF");
        }
        let scan = hunch_library::scan(&places);
        prop_assert!(scan.models.iter().all(|model| model.problem.is_some()));
        for model in &scan.models {
            let _ = hunch_library::resolve(&model.name, &places);
            let _ = hunch_library::resolve(&model.path, &places);
        }
        prop_assert_eq!(hunch_library::scan(&places).models, scan.models);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn command_line_lists_removes_and_adds_folders() {
    let data = tempfile::tempdir().unwrap();
    let models = places(data.path()).models;
    Tiny::default().write_split(&models, "big", 2);
    let mine = data.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    Tiny::default().write(&mine, "other");
    let mine = mine.to_str().unwrap();
    let out = |arguments: &[&str]| {
        let output = hunch(data.path(), arguments);
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    assert!(out(&["models", "folders", "add", mine]).1.contains("mine"));
    let (_, list) = out(&["models", "list"]);
    assert!(list.contains("source") && list.contains("added") && list.contains("in 2"), "{list}");
    let json = last_json(&hunch(data.path(), &["models", "--json"]));
    assert_eq!((&json[0]["source"], &json[1]["source"]), (&json!("hunch"), &json!("added")));
    let (code, words) = out(&["models", "rm", "big"]);
    assert!(code == 4 && words.contains("--yes"), "{words}");
    let (code, words) = out(&["models", "rm", "other", "--yes"]);
    assert!(code == 4 && words.contains("is not in Hunch's folder"), "{words}");
    let files = std::fs::read_dir(&models).unwrap().count();
    let removed = last_json(&hunch(data.path(), &["models", "rm", "big", "--yes", "--json"]));
    assert_eq!((&removed["name"], removed["removed"].as_array().unwrap().len()), (&json!("big"), files));
    assert!(removed["freed_bytes"].as_u64().unwrap() > 0);
    assert_eq!(std::fs::read_dir(&models).unwrap().count(), 0);
    assert_eq!(out(&["models", "folders", "remove", mine]).0, 0);
    assert_eq!(out(&["models", "folders", "remove", mine]).0, 4);
    assert!(out(&["models"]).1.contains("No models in"));
}
