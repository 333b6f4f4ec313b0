//! What the hub does not let in, what must not get out, and names that lead elsewhere.

use std::cell::Cell;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hunch_error::ErrorCode;
use hunch_library::download::Downloads;
use hunch_library::hub;
use hunch_library::hub::{HubConfig, ProxyChoice};
use hunch_library::types::{DownloadPhase, DownloadRequest, HubTokenSource, LibraryEvent};
use proptest::prelude::*;

use super::{Desk, MIB, PATIENCE, REPOSITORY, Shut, in_turn, is, model, request, settings, wait, watch};
use crate::hub::{Act, Content, TestHub, proxy};
use crate::support::mutate::runner;
use crate::support::snapshot::snapshot;

#[test]
fn every_refusal_is_explained() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 18));
    let told = |token: Option<&str>, act: Act| {
        let config = token.map_or_else(|| hub.config(), |token| hub.config_with_token(token));
        hub.act(move |_| act.clone());
        let desk = Desk::with(config, settings());
        let error = desk.downloads.repository(REPOSITORY).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string()),
            desk.fails("m.gguf"),
            "listing and fetching say the same"
        );
        (error.code(), error.to_string())
    };
    let code = |status, code: &str| Act::status(status).with("X-Error-Code", code);
    let (gated, message) = told(None, code(401, "GatedRepo"));
    assert_eq!(gated, ErrorCode::HubGated);
    assert!(message.contains("give Hunch a token") && message.contains(REPOSITORY), "{message}");
    let (gated, message) = told(Some("hf_mine"), code(403, "GatedRepo"));
    assert_eq!(gated, ErrorCode::HubGated);
    assert!(message.contains("agree to them on"), "{message}");
    assert_eq!(told(None, code(401, "RepoNotFound")).0, ErrorCode::HubNotFound);
    assert_eq!(told(None, code(404, "RepoNotFound")).0, ErrorCode::HubNotFound);
    let expired =
        Act::status(401).with("X-Error-Message", "Invalid credentials in Authorization header: hf_mine");
    let (refused, message) = told(Some("hf_mine"), expired);
    assert_eq!(refused, ErrorCode::HubToken);
    assert!(message.contains("expired") && !message.contains("hf_mine"), "{message}");
    assert_eq!(told(Some("hf_mine"), Act::status(403)).0, ErrorCode::HubToken);
    assert_eq!(told(None, Act::status(502)).0, ErrorCode::HubUnreachable);
    assert_eq!(told(None, Act::status(307).with("Location", "/somewhere")).0, ErrorCode::HubUnreachable);
    hub.act(|_| Act::default());
    let desk = Desk::new(&hub);
    assert_eq!(desk.fails("other.gguf").0, ErrorCode::HubNotFound);
    assert_eq!(desk.downloads.repository("nobody/nothing").unwrap_err().code(), ErrorCode::HubNotFound);
}

/// Every byte below a folder.
fn everything(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(everything(&path)) } else { all.extend(std::fs::read(&path).unwrap()) }
    }
    all
}

#[test]
fn the_token_goes_to_the_hub_only_and_is_never_written() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 19);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let secret = "hf_verysecret";
    let mut acts = in_turn(vec![Act::cut(MIB)]);
    let mut resolved = 0;
    hub.act(move |asked| {
        resolved += usize::from(asked.path.contains("/resolve/"));
        // In the middle of it the token expires, and the hub is indiscreet.
        if asked.path.contains("/resolve/") && resolved == 2 {
            return Act::status(401).with("X-Error-Message", format!("no such token: {secret}"));
        }
        acts(asked)
    });
    let desk = Desk::with(hub.config_with_token(secret), settings());
    let id = desk.start("m.gguf");
    let failed = desk.end(&id);
    let mut seen = format!("{failed:?} {:?} {:?}", desk.downloads.list(), desk.downloads.hub_state());
    seen += &String::from_utf8_lossy(&everything(desk.path()));
    assert!(!seen.contains(secret));
    assert_eq!(failed.error.unwrap().code, ErrorCode::HubToken);
    assert_eq!(desk.downloads.hub_state().token, HubTokenSource::Environment);
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &content);
    for asked in hub.asked() {
        let expected = (!asked.away).then(|| format!("Bearer {secret}"));
        assert_eq!(asked.authorization, expected, "{}", asked.path);
    }
}

/// All that `hunch models pull` does.
#[test]
fn a_keychain_that_stays_shut_is_asked_once_unless_it_is_to_be_asked_again() {
    let hub = TestHub::start();
    let content = model(0, 72);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let keychain: Arc<Shut> = Arc::default();
    let desk = Desk::with(keychain.config(&hub), settings());
    assert_eq!(desk.downloads.hub_state().problems.len(), 1);
    desk.downloads.repository(REPOSITORY).unwrap();
    let done = desk.fetch("m.gguf");
    is(&done, &content);
    desk.downloads.resume(&done.id).unwrap();
    assert_eq!((desk.downloads.hub_state().problems.len(), keychain.asked()), (1, 1));
    desk.downloads.ask_keychain_again();
    assert_eq!((desk.downloads.hub_state().problems.len(), keychain.asked()), (1, 2));
}

#[test]
fn a_proxy_is_gone_through() {
    let hub = TestHub::start();
    let content = model(0, 52);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let (address, count) = proxy(&hub);
    let config = HubConfig {
        // No machine has this name: only the proxy knows.
        endpoint: "http://hub.invalid".into(),
        proxy: ProxyChoice::Through(format!("http://{address}")),
        ..hub.config()
    };
    let desk = Desk::with(config, settings());
    is(&desk.fetch("m.gguf"), &content);
    assert_eq!(count.load(Ordering::SeqCst), 3, "the repository, the address, the file");
    assert!(
        Downloads::open(desk.path(), HubConfig { endpoint: "what".into(), ..hub.config() }, settings())
            .is_err()
    );
}

#[test]
fn names_from_the_hub_that_lead_out_of_the_folder_are_not_offered() {
    let hub = TestHub::start();
    for path in ["../../evil.gguf", "/etc/evil.gguf", "C:\\evil.gguf", "good.gguf", "a/../../evil.gguf"] {
        hub.add(REPOSITORY, path, model(0, 53));
    }
    let desk = Desk::new(&hub);
    let files = desk.downloads.repository(REPOSITORY).unwrap().files;
    assert_eq!(files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["good.gguf"]);
    assert_eq!(
        desk.downloads.start(&request("../../evil.gguf")).unwrap_err().code(),
        ErrorCode::InvalidRequest
    );
    assert!(!desk.path().join(".downloads").exists());
}

#[test]
fn a_file_that_is_not_the_one_of_the_catalogue_is_fetched_only_when_it_is_asked_for_as_it_is() {
    let hub = TestHub::start();
    let (checked, published) = (model(0, 70), model(2 * MIB, 71));
    hub.add(REPOSITORY, "m.gguf", published.clone());
    let desk = Desk::new(&hub);
    let of_catalogue = |content: &Content| DownloadRequest {
        expected_sha256: Some(content.sha256.to_ascii_uppercase()),
        ..request("m.gguf")
    };
    let id = desk.downloads.start(&of_catalogue(&checked)).unwrap().id;
    let refused = desk.end(&id);
    let error = refused.error.unwrap();
    assert_eq!((refused.phase, error.code), (DownloadPhase::Failed, ErrorCode::CatalogueMismatch));
    let words = error.message;
    assert!(words.contains(&published.sha256[..12]) && words.contains("Nothing was fetched"), "{words}");
    assert!(words.contains(REPOSITORY) && words.contains("choose the file there"), "{words}");
    assert!(hub.starts().is_empty() && desk.models().is_empty(), "not a byte came");
    // Nor when it is tried again, after a restart too.
    let desk = desk.restart(hub.config());
    desk.downloads.resume(&id).unwrap();
    assert_eq!(desk.end(&id).error.unwrap().code, ErrorCode::CatalogueMismatch);
    assert!(hub.starts().is_empty());
    // As a file of any repository it is what the hub has.
    is(&desk.fetch("m.gguf"), &published);
    // And one that is as it was is fetched.
    let desk = Desk::new(&hub);
    is(&desk.end(&desk.downloads.start(&of_catalogue(&published)).unwrap().id), &published);
}

/// Names as an enemy would choose them, and any others.
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
    fn a_name_stays_in_the_models_folder_or_is_refused(path in hostile(), repository in hostile()) {
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

/// Whatever a hub calls its files, from its listing to the disk: what is fetched lies in the models folder and is a
/// model, and nothing else has changed anywhere.
#[test]
fn names_from_the_hub_end_in_the_models_folder_or_nowhere() {
    let hub = TestHub::start();
    let root = tempfile::tempdir().unwrap();
    // Right where a way up would lead.
    for path in ["evil.gguf", "home/secret.gguf", "data/evil.gguf", "data/models/mine.gguf"] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "sentinel").unwrap();
    }
    let models = root.path().join("data/models");
    let before = snapshot(root.path());
    let downloads = Downloads::open(&models, hub.config(), settings()).unwrap();
    let (events, _told) = watch(&downloads);
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
        // Those that are not listed are asked for all the same.
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
        prop_assert_eq!(&after, &before, "what was there is as it was");
        for entry in std::fs::read_dir(&models).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && path.file_name().unwrap() != "mine.gguf" {
                std::fs::remove_file(path).unwrap();
            }
        }
        Ok(())
    });
    result.unwrap();
    assert!(fetched.get() > 10 && refused.get() > 10, "{} fetched, {} refused", fetched.get(), refused.get());
}
