//! Models of other programs: listed, loaded, and never written to.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use hunch_error::ErrorCode;
use hunch_library::Places;
use hunch_library::download::DownloadSettings;
use hunch_library::types::{DownloadPhase, DownloadRequest, LibraryEvent, LoadRequest, ModelSource};
use proptest::prelude::*;
use serde_json::json;

use super::{app_at, names, one, places};
use crate::cli::{hunch, last_json, text};
use crate::hub::{Content, TestHub};
use crate::support::mutate::runner;
use crate::support::snapshot::snapshot;
use hunch_testing::tiny::Tiny;

/// Creates a home folder in which every program has a model.
fn crowded_home(root: &Path) -> Places {
    let places = places(root);
    let home = places.home.clone().unwrap();
    let folder = |path: &str| {
        let folder = home.join(path);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let tiny = |seed| Tiny { seed, layers: 1, ..Tiny::default() };
    tiny(1).write(&places.models, "own");
    tiny(2).write(&folder(".lmstudio/models/org/repo"), "of-lm-studio");
    tiny(3).write(&folder(".cache/llama.cpp"), "org_repo_of-llama-cpp");
    tiny(4).write(&folder(".local/share/Jan/data/llamacpp/models/org/of-jan"), "model");
    let blobs = folder(".ollama/models/blobs");
    let digest = "ab".repeat(32);
    std::fs::rename(tiny(5).write(&blobs, "blob"), blobs.join(format!("sha256-{digest}"))).unwrap();
    let layer =
        json!({ "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}") });
    let manifest = folder(".ollama/models/manifests/registry.ollama.ai/library/of-ollama").join("1b");
    std::fs::write(manifest, json!({ "layers": [layer] }).to_string()).unwrap();
    let repository = folder(".cache/huggingface/hub/models--org--repo");
    let (blobs, snapshot) = (repository.join("blobs"), repository.join("snapshots/abc"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    for (i, part) in tiny(6).writer().split(2).iter().enumerate() {
        std::fs::write(blobs.join(i.to_string()), part.bytes()).unwrap();
        let link = snapshot.join(format!("of-hub-{:05}-of-00002.gguf", i + 1));
        #[cfg(unix)]
        std::os::unix::fs::symlink(format!("../../blobs/{i}"), link).unwrap();
        #[cfg(not(unix))]
        std::fs::copy(blobs.join(i.to_string()), link).unwrap();
    }
    places
}

#[test]
fn models_of_other_programs_are_listed_and_loadable() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(crowded_home(folder.path()));
    let library = app.library();
    let sources: Vec<_> = library.models.iter().map(|m| (m.name.as_str(), m.source)).collect();
    assert_eq!(
        sources,
        [
            ("of-hub", ModelSource::HuggingFace),
            ("of-lm-studio", ModelSource::LmStudio),
            ("of-ollama:1b", ModelSource::Ollama),
            ("org/of-jan", ModelSource::Jan),
            ("org_repo_of-llama-cpp", ModelSource::LlamaCpp),
            ("own", ModelSource::Hunch),
        ]
    );
    assert!(library.machine.total > 0);
    for model in &library.models {
        assert_eq!(model.problem, None);
        for target in [&model.name, &model.path] {
            app.load_models(LoadRequest { target: target.clone(), draft: None, head: None, context: None })
                .unwrap();
        }
        let count = library.folders.iter().find(|folder| folder.source == model.source).unwrap().models;
        assert_eq!(count, 1);
        let card =
            hunch_library::inspect_listed(Path::new(&model.path), &places(folder.path())).unwrap().entry;
        assert_eq!((&card.name, card.source), (&model.name, model.source));
        assert_eq!((&card.title, model.title.starts_with("Tiny Llama")), (&model.title, true));
    }
}

#[test]
fn models_are_titled_by_their_header_or_else_by_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let places = places(folder.path());
    Tiny::default().write(&places.models, "tiny-q4_0");
    std::fs::write(places.models.join("broken.gguf"), b"GGUF").unwrap();
    let blobs = folder.path().join("home/.ollama/models/blobs");
    let manifests = folder.path().join("home/.ollama/models/manifests/registry.ollama.ai/library/nameless");
    for folder in [&blobs, &manifests] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let digest = "cd".repeat(32);
    let blob = blobs.join(format!("sha256-{digest}"));
    std::fs::write(&blob, Tiny::default().writer().without_key("general.name").bytes()).unwrap();
    let layer =
        json!({ "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}") });
    std::fs::write(manifests.join("1b"), json!({ "layers": [layer] }).to_string()).unwrap();
    let models = hunch_library::scan(&places).models;
    let titles: Vec<_> = models.iter().map(|model| (model.name.as_str(), model.title.as_str())).collect();
    let tiny = format!("Tiny Llama {}", Tiny::default().seed);
    assert_eq!(titles, [("nameless:1b", "nameless:1b"), ("tiny-q4_0", &tiny), ("broken", "broken")]);
    let card = hunch_library::inspect_listed(&blob, &places).unwrap().entry;
    assert_eq!(card.title, "nameless:1b");
}

#[test]
fn model_of_another_program_is_inspected_under_its_listed_name() {
    let folder = tempfile::tempdir().unwrap();
    crowded_home(folder.path());
    for (name, source) in [("of-ollama:1b", "ollama"), ("of-hub", "hugging_face"), ("org/of-jan", "jan")] {
        let output =
            last_json(&hunch(folder.path(), &["models", "inspect", name, "--context", "64", "--json"]));
        assert_eq!((&output["model"]["name"], &output["model"]["source"]), (&json!(name), &json!(source)));
        let fit = last_json(&hunch(folder.path(), &["models", "fit", name, "--context", "64", "--json"]));
        assert_eq!(
            (&output["predicted_memory_bytes"], &output["context"]),
            (&fit["fit"]["total"], &json!(64))
        );
    }
    let too_long = hunch(folder.path(), &["models", "inspect", "own", "--context", "4294967295"]);
    assert_eq!(too_long.status.code(), Some(4), "{}", text(&too_long.stderr));
}

#[test]
fn models_of_other_programs_are_neither_removed_nor_written() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_at(crowded_home(folder.path()));
    let library = app.library();
    for model in library.models.iter().filter(|model| model.source != ModelSource::Hunch) {
        let error = app.remove_model(&model.path).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidRequest);
        assert!(Path::new(&model.path).exists());
    }
    let own = one(&library.models, "own").path.clone();
    app.load_models(LoadRequest { target: own.clone(), draft: None, head: None, context: None }).unwrap();
    let error = app.remove_model(&own).unwrap_err().to_string();
    assert!(error.contains("in memory"), "{error}");
    app.load_models(LoadRequest { target: "of-hub".into(), draft: None, head: None, context: None }).unwrap();
    assert_eq!(app.remove_model(&own).unwrap().models.len(), library.models.len() - 1);
    assert!(!Path::new(&own).exists());
}

/// Runs every library operation and compares other programs' folders byte by byte.
#[test]
fn no_operation_changes_folders_of_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let places = crowded_home(folder.path());
    let home = places.home.clone().unwrap();
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    Tiny { seed: 7, ..Tiny::default() }.write(&mine, "of-mine");
    let all = || (snapshot(&home), snapshot(&mine));
    let before = all();
    let hub = TestHub::start();
    // Same names as existing files.
    for name in ["of-lm-studio.gguf", "model.gguf", "of-mine.gguf"] {
        let bytes = Tiny { seed: 8, ..Tiny::default() }.writer().bytes();
        hub.add("org/repo", name, Content::new(bytes));
    }
    let app = app_at(places.clone());
    app.use_hub(hub.config(), DownloadSettings::default()).unwrap();
    let (sender, events) = channel();
    app.watch_library(Box::new(move |event| drop(sender.send(event)))).unwrap();
    app.add_model_folder(mine.to_str().unwrap()).unwrap();
    for file in app.hub_repository("org/repo").unwrap().files {
        let request =
            DownloadRequest { repository: "org/repo".into(), file: file.path, expected_sha256: None };
        let id = app.start_download(&request).unwrap().id;
        let is_done = |event: LibraryEvent| match event {
            LibraryEvent::Download { download } => download.id == id && download.phase == DownloadPhase::Done,
            _ => false,
        };
        while !is_done(events.recv_timeout(Duration::from_secs(60)).unwrap()) {}
        app.remove_download(&id).unwrap();
    }
    let library = app.library();
    assert_eq!(library.models.len(), 10);
    assert_eq!(app.unknown_model(library.models.iter().map(|model| &*model.path)), None);
    for model in &library.models {
        let removed = app.remove_model(&model.path);
        assert_eq!(removed.is_ok(), model.source == ModelSource::Hunch, "{}", model.path);
    }
    app.remove_model_folder(mine.canonicalize().unwrap().to_str().unwrap()).unwrap();
    app.shutdown();
    assert_eq!(all(), before);
    assert_eq!(hunch_library::scan(&places).models.len(), 5);
}

/// Text for a manifest or description in place of a name or path.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => Just("..".to_owned()),
        2 => Just("outside".to_owned()),
        2 => Just("secret.gguf".to_owned()),
        1 => Just(".".to_owned()),
        1 => Just("~".to_owned()),
        1 => Just("models".to_owned()),
        1 => Just("\0".to_owned()),
        1 => "\\PC{0,8}",
    ];
    let separator = prop_oneof![4 => Just("/"), 1 => Just("\\"), 1 => Just("//")];
    let path = prop::collection::vec((piece, separator), 0..8);
    let start = prop_oneof![3 => Just(""), 1 => Just("/"), 1 => Just("sha256:"), 1 => Just("sha256-")];
    (start, path).prop_map(|(start, path)| {
        let path: String = path.iter().map(|(piece, separator)| format!("{piece}{separator}")).collect();
        format!("{start}{}", path.trim_end_matches(['/', '\\']))
    })
}

/// Paths from deep inside another program's folder to a file outside it.
fn way_out(root: &Path) -> impl Strategy<Value = String> + use<> {
    let secret = root.join("outside/secret.gguf").display().to_string();
    prop_oneof![
        1 => Just(secret),
        2 => (0..9usize, prop_oneof![Just("../"), Just("./../"), Just("models/../../")])
            .prop_map(|(times, up)| format!("{}outside/secret.gguf", up.repeat(times))),
        2 => hostile(),
    ]
}

#[test]
fn manifests_and_descriptions_never_lead_out_of_their_folder() {
    let root = tempfile::tempdir().unwrap();
    let places = places(root.path());
    let home = places.home.clone().unwrap();
    let outside = root.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    Tiny { layers: 1, ..Tiny::default() }.write(&outside, "secret");
    let inside = [home.join(".ollama/models"), home.join(".local/share/Jan/data")];
    let write = |path: PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let listed = std::cell::Cell::new(0);
    let texts = || prop::collection::vec(way_out(root.path()), 1..4);
    let result = runner(60).run(&(texts(), texts(), any::<u8>()), |(digests, paths, digit)| {
        let manifests = inside[0].join("manifests/registry.ollama.ai/library/m");
        let layer =
            |digest: &str| json!({ "mediaType": "application/vnd.ollama.image.model", "digest": digest });
        for (tag, digest) in digests.iter().enumerate() {
            write(manifests.join(tag.to_string()), &json!({ "layers": [layer(digest)] }).to_string());
        }
        // One valid manifest and description of each.
        let digest = format!("{digit:02x}").repeat(32);
        let sound = json!({ "layers": [layer(&format!("sha256:{digest}"))] }).to_string();
        write(manifests.join("sound"), &sound);
        let blob = inside[0].join(format!("blobs/sha256-{digest}"));
        std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
        std::fs::copy(outside.join("secret.gguf"), &blob).unwrap();
        for (number, path) in paths.iter().enumerate() {
            let described = format!("name: x\nmodel_path: {path}\n");
            write(inside[1].join(format!("llamacpp/models/org/{number}/model.yml")), &described);
        }
        let file = inside[1].join("elsewhere/in-jan.gguf");
        write(inside[1].join("llamacpp/models/sound/model.yml"), "model_path: elsewhere/in-jan.gguf");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::copy(outside.join("secret.gguf"), &file).unwrap();
        let before = (snapshot(&home), snapshot(&outside));
        let models = hunch_library::scan(&places).models;
        for model in &models {
            let path = Path::new(&model.path).canonicalize().unwrap();
            let stays = |folder: &PathBuf| path.starts_with(folder.canonicalize().unwrap());
            prop_assert!(inside.iter().any(stays), "{} is listed", path.display());
        }
        let names: Vec<&str> = names(&models);
        prop_assert!(names.contains(&"m:sound") && names.contains(&"in-jan"), "{names:?}");
        prop_assert_eq!((snapshot(&home), snapshot(&outside)), before);
        listed.set(listed.get() + models.len());
        for folder in &inside {
            std::fs::remove_dir_all(folder).unwrap();
        }
        Ok(())
    });
    result.unwrap();
    assert!(listed.get() >= 120, "the valid ones are always found");
}
