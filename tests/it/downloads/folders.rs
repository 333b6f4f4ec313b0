//! Downloads of folders of safetensors files. A folder is one download, and appears in the library at once.

use serde_json::Value as Json;

use hunch_testing::tiny_heads::{self, HeadFormat};

use super::program::{hunch, output_text};
use super::*;
use crate::support::safetensors_folder::{ModelFolder, recording};

const FOLDER: &str = "mlx-community/Tiny-4bit";

/// Adds a folder to a Hub and returns its files. The configuration files have no checksum there.
fn add_folder(hub: &TestHub) -> Vec<(String, Content)> {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording();
    let models: &Vec<Json> = recording["models"].as_array().unwrap();
    let model = models.iter().find(|model| model["config"]["quantization"].is_object()).unwrap();
    ModelFolder::recorded(model).write(folder.path());
    let mut files = Vec::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let content = Content::new(std::fs::read(folder.path().join(name)).unwrap());
        hub.add(FOLDER, name, content.clone());
        files.push((name.to_owned(), content));
    }
    hub.add(FOLDER, "README.md", Content::new(b"A card".to_vec()));
    hub.add(FOLDER, "adapters.safetensors", Content::new(b"another".to_vec()));
    files
}

fn start(test: &TestDownloads) -> String {
    let repository = test.downloads.repository(FOLDER).unwrap();
    let [file] = &repository.files[..] else { panic!("{repository:?}") };
    assert_eq!((&file.path[..], file.parts), ("model.safetensors", 4));
    let request =
        DownloadRequest { repository: FOLDER.into(), file: file.path.clone(), expected_sha256: None };
    test.downloads.start(&request).unwrap().id
}

fn assert_whole(test: &TestDownloads, name: &str, files: &[(String, Content)]) {
    let entries = std::fs::read_dir(test.path().join(name)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.iter().eq(files.iter().map(|(name, _)| name)), "{names:?}");
    for (file, content) in files {
        assert_eq!(sha256(&test.path().join(name).join(file)), content.sha256, "{file}");
    }
    assert!(unfinished(test.path()).is_empty());
}

#[test]
fn folder_is_fetched_as_one_download_and_runs() {
    let hub = TestHub::start();
    let files = add_folder(&hub);
    let test = TestDownloads::new(&hub);
    let id = start(&test);
    let done = test.end(&id);
    assert_eq!((done.phase, &done.name[..], done.error), (DownloadPhase::Done, "Tiny-4bit", None));
    let size: u64 = files.iter().map(|(_, content)| content.size()).sum();
    assert_eq!((done.done_bytes, done.total_bytes), (size, Some(size)));
    assert_eq!(test.models(), ["Tiny-4bit"]);
    assert_whole(&test, "Tiny-4bit", &files);
    let path = PathBuf::from(done.path.unwrap());
    assert_eq!(path, test.path().join("Tiny-4bit/model.safetensors"));
    assert_eq!(hunch_library::resolve("tiny-4bit", &Places::only(test.path().into())).unwrap(), path);
    WeightFile::open(&path).unwrap();
    // The folder exists, so no byte is fetched again. A changed one stays as it is.
    let before = hub.starts().len();
    assert_eq!(test.end(&start(&test)).phase, DownloadPhase::Done);
    assert_eq!((hub.starts().len(), test.models().len()), (before, 1));
    std::fs::write(test.path().join("Tiny-4bit/config.json"), "{}").unwrap();
    assert_eq!(test.end(&start(&test)).name, "Tiny-4bit-2");
    assert_eq!(std::fs::read_to_string(test.path().join("Tiny-4bit/config.json")).unwrap(), "{}");
    assert_whole(&test, "Tiny-4bit-2", &files);
}

#[test]
fn folder_resumes_after_a_lost_connection_and_a_restart() {
    let hub = TestHub::start();
    let files = add_folder(&hub);
    let weights = files.iter().find(|(name, _)| name == "model.safetensors").unwrap().1.size();
    let half = weights / 2;
    hub.set_behaviour(move |request| match request.is_file() && request.path.ends_with(".safetensors") {
        true if request.from.is_none() => Behaviour { stall: Some(half), ..Behaviour::default() },
        _ => Behaviour::default(),
    });
    let test = TestDownloads::new(&hub);
    let id = start(&test);
    let others: u64 = files.iter().map(|(_, content)| content.size()).sum::<u64>() - weights;
    test.wait(&id, |download| download.done_bytes == half + others);
    assert_eq!(test.models(), [""; 0], "nothing may look like a model");
    test.downloads.pause(&id).unwrap();
    test.wait(&id, |download| download.phase == DownloadPhase::Paused);
    let test = test.restart(hub.config());
    let listed = test.downloads.list();
    assert_eq!((&listed[0].name[..], listed[0].done_bytes), ("Tiny-4bit", half + others));
    test.downloads.resume(&id).unwrap();
    assert_eq!(test.end(&id).phase, DownloadPhase::Done);
    assert!(hub.starts().contains(&half), "{:?}", hub.starts());
    assert_whole(&test, "Tiny-4bit", &files);
}

#[test]
fn folder_with_a_wrong_file_does_not_appear() {
    for (name, code) in
        [("model.safetensors", ErrorCode::WrongChecksum), ("config.json", ErrorCode::InvalidModelFile)]
    {
        let hub = TestHub::start();
        add_folder(&hub);
        hub.set_behaviour(move |request| Behaviour {
            corrupt: request.is_file() && request.path.ends_with(name),
            ..Behaviour::default()
        });
        let test = TestDownloads::new(&hub);
        let ended = test.end(&start(&test));
        assert_eq!((ended.phase, ended.error.unwrap().code), (DownloadPhase::Failed, code), "{name}");
        assert_eq!(test.models(), [""; 0], "{name}");
        // The bad file is fetched again, the others are not.
        hub.set_behaviour(|_| Behaviour::default());
        let before = hub.starts().len();
        test.downloads.resume(&ended.id).unwrap();
        assert_eq!(test.end(&ended.id).phase, DownloadPhase::Done, "{name}");
        // Without a checksum, nothing proves that a small file is unchanged.
        assert!(hub.starts().len() <= before + 3, "{:?}", hub.starts());
    }
}

/// A kill between the renames of a folder's files costs nothing.
#[test]
fn folder_that_was_not_put_together_whole_is_finished() {
    let hub = TestHub::start();
    let files = add_folder(&hub);
    hub.set_behaviour(|request| match request.is_file() && request.path.ends_with("config.json") {
        true => Behaviour::status(503),
        false => Behaviour::default(),
    });
    let test = TestDownloads::new(&hub);
    let id = start(&test);
    assert_eq!(test.end(&id).phase, DownloadPhase::Failed);
    // The weights are the first file.
    let partial = test.path().join(".downloads").join(&id);
    std::fs::create_dir(partial.join("whole")).unwrap();
    std::fs::rename(partial.join("00000.part"), partial.join("whole/model.safetensors")).unwrap();
    hub.set_behaviour(|_| Behaviour::default());
    let weights = |hub: &TestHub| {
        hub.requests()
            .iter()
            .filter(|request| request.is_file() && request.path.ends_with(".safetensors"))
            .count()
    };
    let before = weights(&hub);
    test.downloads.resume(&id).unwrap();
    assert_eq!(test.end(&id).phase, DownloadPhase::Done);
    assert_eq!(weights(&hub), before);
    assert_whole(&test, "Tiny-4bit", &files);
}

/// A published head is a folder without a tokeniser. The program finds it by its name.
#[test]
fn head_is_pulled_and_offered_for_its_target() {
    const HEAD: &str = "somebody/Tiny_eagle3";
    let (hub, written) = (TestHub::start(), tempfile::tempdir().unwrap());
    let folder = HeadFormat::Eagle3.write(written.path());
    for name in ["config.json", "model.safetensors"] {
        hub.add(HEAD, name, Content::new(std::fs::read(folder.join(name)).unwrap()));
    }
    let data = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(written.path(), "target");
    let endpoint = hub.config().endpoint;
    let run = |arguments: &[&str]| output_text(&hunch(data.path(), &endpoint, arguments).output().unwrap());
    let pulled = run(&["models", "pull", HEAD]);
    assert!(pulled.contains("It is a head (EAGLE-3). Draft with it: --head Tiny_eagle3"), "{pulled}");
    let offered = run(&["models", "pairs", target.to_str().unwrap()]);
    let row = offered.lines().find(|line| line.contains("Tiny_eagle3"));
    assert!(row.is_some_and(|row| row.contains("EAGLE-3") && row.contains("sizes match")), "{offered}");
    // The weights of a whole model, under the name of a head.
    let model = tempfile::tempdir().unwrap();
    let recording = recording();
    ModelFolder::recorded(&recording["models"][0]).write(model.path());
    for name in ["config.json", "model.safetensors"] {
        let content = Content::new(std::fs::read(model.path().join(name)).unwrap());
        hub.add("somebody/Odd_eagle3", name, content);
    }
    for _ in 0..2 {
        let odd = run(&["models", "pull", "somebody/Odd_eagle3"]);
        assert!(odd.contains("its tensors are those of no head that Hunch knows"), "{odd}");
    }
    // Another repository of the same files is no head by its name, and no model without a tokeniser.
    for name in ["config.json", "model.safetensors"] {
        hub.add("somebody/Tiny", name, Content::new(std::fs::read(folder.join(name)).unwrap()));
    }
    assert!(run(&["models", "pull", "somebody/Tiny"]).contains("or a head"));
}
