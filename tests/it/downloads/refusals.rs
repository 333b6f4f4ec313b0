//! Refused access, secrets that must not leak, and unsafe names.

use std::cell::Cell;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hunch_error::ErrorCode;
use hunch_library::download::Downloads;
use hunch_library::http::ProxyChoice;
use hunch_library::hub;
use hunch_library::hub::HubConfig;
use hunch_library::types::{DownloadPhase, DownloadRequest, HubTokenSource, LibraryEvent};
use proptest::prelude::*;

use super::{
    LockedKeychain, MIB, PATIENCE, REPOSITORY, TestDownloads, assert_done, in_sequence, model, request,
    settings, wait, watch,
};
use crate::hub::{Behaviour, Content, TestHub, proxy};
use crate::support::mutate::runner;
use crate::support::snapshot::snapshot;

#[test]
fn every_refusal_is_explained() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 18));
    let refusal = |token: Option<&str>, behaviour: Behaviour| {
        let config = token.map_or_else(|| hub.config(), |token| hub.config_with_token(token));
        hub.set_behaviour(move |_| behaviour.clone());
        let test = TestDownloads::with(config, settings());
        let error = test.downloads.repository(REPOSITORY).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string()),
            test.fails("m.gguf"),
            "listing and fetching report the same"
        );
        (error.code(), error.to_string())
    };
    let code = |status, code: &str| Behaviour::status(status).with("X-Error-Code", code);
    let (gated, message) = refusal(None, code(401, "GatedRepo"));
    assert_eq!(gated, ErrorCode::HubGated);
    assert!(message.contains("give Hunch a token") && message.contains(REPOSITORY), "{message}");
    let (gated, message) = refusal(Some("hf_mine"), code(403, "GatedRepo"));
    assert_eq!(gated, ErrorCode::HubGated);
    assert!(message.contains("Accept them on"), "{message}");
    assert_eq!(refusal(None, code(401, "RepoNotFound")).0, ErrorCode::HubNotFound);
    assert_eq!(refusal(None, code(404, "RepoNotFound")).0, ErrorCode::HubNotFound);
    let expired = Behaviour::status(401)
        .with("X-Error-Message", "Invalid credentials in Authorization header: hf_mine");
    let (refused, message) = refusal(Some("hf_mine"), expired);
    assert_eq!(refused, ErrorCode::HubToken);
    assert!(message.contains("expired") && !message.contains("hf_mine"), "{message}");
    assert_eq!(refusal(Some("hf_mine"), Behaviour::status(403)).0, ErrorCode::HubToken);
    assert_eq!(refusal(None, Behaviour::status(502)).0, ErrorCode::HubUnreachable);
    assert_eq!(
        refusal(None, Behaviour::status(307).with("Location", "/somewhere")).0,
        ErrorCode::HubUnreachable
    );
    hub.set_behaviour(|_| Behaviour::default());
    let test = TestDownloads::new(&hub);
    assert_eq!(test.fails("other.gguf").0, ErrorCode::HubNotFound);
    assert_eq!(test.downloads.repository("nobody/nothing").unwrap_err().code(), ErrorCode::HubNotFound);
}

/// Returns the bytes of every file below a folder.
fn everything(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(everything(&path)) } else { all.extend(std::fs::read(&path).unwrap()) }
    }
    all
}

#[test]
fn token_is_sent_to_the_hub_only_and_never_written() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 19);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let secret = "hf_verysecret";
    let mut behaviours = in_sequence(vec![Behaviour::cut(MIB)]);
    let mut resolved = 0;
    hub.set_behaviour(move |request| {
        resolved += usize::from(request.path.contains("/resolve/"));
        // Midway the token expires, and the Hub's message repeats it.
        if request.path.contains("/resolve/") && resolved == 2 {
            return Behaviour::status(401).with("X-Error-Message", format!("no such token: {secret}"));
        }
        behaviours(request)
    });
    let test = TestDownloads::with(hub.config_with_token(secret), settings());
    let id = test.start("m.gguf");
    let failed = test.end(&id);
    let mut seen = format!("{failed:?} {:?} {:?}", test.downloads.list(), test.downloads.hub_state());
    seen += &String::from_utf8_lossy(&everything(test.path()));
    assert!(!seen.contains(secret));
    assert_eq!(failed.error.unwrap().code, ErrorCode::HubToken);
    assert_eq!(test.downloads.hub_state().token, HubTokenSource::Environment);
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &content);
    for request in hub.requests() {
        let expected = (!request.is_storage).then(|| format!("Bearer {secret}"));
        assert_eq!(request.authorization, expected, "{}", request.path);
    }
}

/// The calls of `hunch models pull`.
#[test]
fn locked_keychain_is_read_once_until_retried() {
    let hub = TestHub::start();
    let content = model(0, 72);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let keychain: Arc<LockedKeychain> = Arc::default();
    let test = TestDownloads::with(keychain.config(&hub), settings());
    assert_eq!(test.downloads.hub_state().problems.len(), 1);
    test.downloads.repository(REPOSITORY).unwrap();
    let done = test.fetch("m.gguf");
    assert_done(&done, &content);
    test.downloads.resume(&done.id).unwrap();
    assert_eq!((test.downloads.hub_state().problems.len(), keychain.reads()), (1, 1));
    test.downloads.retry_keychain();
    assert_eq!((test.downloads.hub_state().problems.len(), keychain.reads()), (1, 2));
}

#[test]
fn requests_go_through_the_proxy() {
    let hub = TestHub::start();
    let content = model(0, 52);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let (address, count) = proxy(&hub);
    let config = HubConfig {
        // A name that only the proxy resolves.
        endpoint: "http://hub.invalid".into(),
        proxy: ProxyChoice::Through(format!("http://{address}")),
        ..hub.config()
    };
    let test = TestDownloads::with(config, settings());
    assert_done(&test.fetch("m.gguf"), &content);
    assert_eq!(count.load(Ordering::SeqCst), 3, "the repository, the address, the file");
    assert!(
        Downloads::open(test.path(), HubConfig { endpoint: "what".into(), ..hub.config() }, settings())
            .is_err()
    );
}

#[test]
fn unsafe_names_are_not_listed() {
    let hub = TestHub::start();
    for path in ["../../evil.gguf", "/etc/evil.gguf", "C:\\evil.gguf", "good.gguf", "a/../../evil.gguf"] {
        hub.add(REPOSITORY, path, model(0, 53));
    }
    let test = TestDownloads::new(&hub);
    let files = test.downloads.repository(REPOSITORY).unwrap().files;
    assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["good.gguf"]);
    assert_eq!(
        test.downloads.start(&request("../../evil.gguf")).unwrap_err().code(),
        ErrorCode::InvalidRequest
    );
    assert!(!test.path().join(".downloads").exists());
}

#[test]
fn file_differing_from_the_catalogue_is_fetched_only_on_explicit_request() {
    let hub = TestHub::start();
    let (checked, published) = (model(0, 70), model(2 * MIB, 71));
    hub.add(REPOSITORY, "m.gguf", published.clone());
    let test = TestDownloads::new(&hub);
    let of_catalogue = |content: &Content| DownloadRequest {
        expected_sha256: Some(content.sha256.to_ascii_uppercase()),
        ..request("m.gguf")
    };
    let id = test.downloads.start(&of_catalogue(&checked)).unwrap().id;
    let refused = test.end(&id);
    let error = refused.error.unwrap();
    assert_eq!((refused.phase, error.code), (DownloadPhase::Failed, ErrorCode::CatalogueMismatch));
    let words = error.message;
    assert!(words.contains(&published.sha256[..12]) && words.contains("Nothing was downloaded"), "{words}");
    assert!(words.contains(REPOSITORY) && words.contains("choose the file there"), "{words}");
    assert!(hub.starts().is_empty() && test.models().is_empty(), "nothing was fetched");
    // Still refused on retry and after a restart.
    let test = test.restart(hub.config());
    test.downloads.resume(&id).unwrap();
    assert_eq!(test.end(&id).error.unwrap().code, ErrorCode::CatalogueMismatch);
    assert!(hub.starts().is_empty());
    // Without the catalogue's checksum, any file is accepted.
    assert_done(&test.fetch("m.gguf"), &published);
    // A matching file is downloaded.
    let test = TestDownloads::new(&hub);
    assert_done(&test.end(&test.downloads.start(&of_catalogue(&published)).unwrap().id), &published);
}

/// Adversarial and arbitrary names.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just(String::new()),
        Just("C:".to_owned()),
        Just("~".to_owned()),
        Just("nul\0".to_owned()),
        Just("model.gguf".to_owned()),
        Just("..gguf".to_owned()),
        Just("%2e%2e".to_owned()),
        Just("a-00001-of-00002.gguf".to_owned()),
        "[a-zA-Z0-9._ -]{0,12}",
        "\\PC{0,12}",
        "a{250,300}",
    ];
    let separator = prop_oneof![Just("/"), Just("\\"), Just("//"), Just("")];
    let end = prop_oneof![Just(""), Just(".gguf"), Just(".GGUF"), Just("\0.gguf")];
    (prop::collection::vec((piece, separator), 0..6), end).prop_map(|(pieces, end)| {
        pieces.iter().map(|(piece, separator)| format!("{piece}{separator}")).collect::<String>() + end
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn names_stay_in_the_models_folder_or_are_refused(path in hostile(), repository in hostile()) {
        let models = Path::new("/models");
        if hub::check_path(&path).is_ok() {
            for parts in [1, 2] {
                let file = models.join(hub::local_file(hub::short_name(&path), 0, parts));
                prop_assert_eq!(file.parent(), Some(models));
                prop_assert!(file.extension().is_some_and(|e| e == "gguf"));
                let name = file.file_name().unwrap().to_str().unwrap();
                prop_assert!(name.len() < 256 && !name.starts_with('.') && !name.contains(['\0', '\\', ':']));
            }
            prop_assert!(!Path::new(&path).is_absolute());
            prop_assert!(Path::new(&path).components().all(|c| matches!(c, Component::Normal(_))));
        }
        if let Ok(name) = hub::repository(&repository) {
            prop_assert!(name.split('/').count() <= 2 && !name.contains("..") && !name.contains(['\\', '\0', ':', '%']));
            prop_assert_eq!(hub::repository(&name).unwrap(), name);
        }
    }
}

/// Downloads change nothing outside the models folder, for any names that the Hub lists.
#[test]
fn downloads_write_to_the_models_folder_only() {
    let hub = TestHub::start();
    let root = tempfile::tempdir().unwrap();
    // Files that parent paths would lead to.
    for path in ["evil.gguf", "home/secret.gguf", "data/evil.gguf", "data/models/mine.gguf"] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "sentinel").unwrap();
    }
    let models = root.path().join("data/models");
    let before = snapshot(root.path());
    let downloads = Downloads::open(&models, hub.config(), settings()).unwrap();
    let (events, _subscription) = watch(&downloads);
    let content = model(0, 54);
    let (cases, fetched, refused) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let name = prop_oneof![
        3 => hostile(),
        1 => "[a-zé日 ._-]{1,12}\\.gguf",
        1 => Just("sub/big-00001-of-00002.gguf".to_owned()),
        1 => Just("sub/big-00002-of-00002.gguf".to_owned()),
    ];
    let result = runner(24).run(&prop::collection::vec(name, 1..6), |names| {
        cases.set(cases.get() + 1);
        let repository = format!("owner/case-{}", cases.get());
        for name in &names {
            hub.add(&repository, name, content.clone());
        }
        let listed = downloads.repository(&repository).unwrap().files;
        prop_assert!(listed.iter().all(|file| names.contains(&file.path)));
        // Unlisted names are requested as well.
        for file in &names {
            let request =
                DownloadRequest { repository: repository.clone(), file: file.clone(), expected_sha256: None };
            let Ok(started) = downloads.start(&request) else {
                prop_assert!(
                    listed.iter().all(|listed| listed.path != *file),
                    "{file} is listed, and refused"
                );
                refused.set(refused.get() + 1);
                continue;
            };
            let ended = if started.phase == DownloadPhase::Done {
                started
            } else {
                wait(&events, &started.id, |download| {
                    matches!(download.phase, DownloadPhase::Done | DownloadPhase::Failed)
                })
            };
            if let Some(path) = &ended.path {
                let path = Path::new(path);
                prop_assert_eq!(path.parent(), Some(models.as_path()));
                prop_assert!(listed.iter().any(|listed| listed.path == *file));
                fetched.set(fetched.get() + 1);
            }
            downloads.remove(&ended.id).unwrap();
            let gone = LibraryEvent::DownloadGone { id: ended.id };
            while events.recv_timeout(PATIENCE).unwrap() != gone {}
        }
        let mut after = snapshot(root.path());
        let mut new = after.extract_if(.., |path, _| !before.contains_key(path)).map(|(path, _)| path);
        let is_ours = |path: &Path| {
            let path = path.strip_prefix("data/models").unwrap_or(Path::new("/"));
            let parts: Vec<_> = path.components().collect();
            match parts[..] {
                [Component::Normal(name)] => {
                    name == ".downloads" || path.extension().is_some_and(|e| e == "gguf")
                }
                [Component::Normal(first), ..] => first == ".downloads",
                _ => false,
            }
        };
        let stray = new.find(|path| !is_ours(path));
        prop_assert_eq!(stray, None);
        drop(new);
        prop_assert_eq!(&after, &before, "existing files are unchanged");
        for entry in std::fs::read_dir(&models).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && path.file_name().unwrap() != "mine.gguf" {
                std::fs::remove_file(path).unwrap();
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(fetched.get() > 3 && refused.get() > 3, "{} fetched, {} refused", fetched.get(), refused.get());
}
