//! Downloads by the command line, as a user has it, and by the application.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hunch::app::{App, AppConfig};
use hunch_error::ErrorCode;
use hunch_library::catalogue;
use hunch_library::download::Downloads;
use hunch_library::types::{Download, DownloadPhase};
use hunch_model::device::DeviceChoice;

use super::{MIB, REPOSITORY, Shut, in_turn, is, model, request, settings, wait};
use crate::hub::{Act, TestHub, proxy};
use crate::support::snapshot::{Thing, snapshot};

/// The real program, with this environment and no other hub, proxy or token.
pub(super) fn hunch(data: &Path, endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hunch"));
    for name in
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy"]
    {
        command.env_remove(name);
    }
    command
        .args(arguments)
        .env_remove("HF_TOKEN")
        .env_remove("HF_TOKEN_PATH")
        .env("HF_HOME", data)
        .env("HF_ENDPOINT", endpoint)
        .env("HUNCH_DATA_DIR", data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(super) fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn the_command_line_lists_and_fetches_with_the_token_of_the_file() {
    let hub = TestHub::start();
    let content = model(0, 60);
    hub.add(REPOSITORY, "m-Q8_0.gguf", content.clone());
    hub.add(REPOSITORY, "m-Q4_0.gguf", model(0, 61));
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("token"), "hf_of_file\n").unwrap();
    let endpoint = hub.config().endpoint;
    let run = |arguments: &[&str]| hunch(data.path(), &endpoint, arguments).output().unwrap();
    let listed = run(&["models", "hub", REPOSITORY]);
    assert!(listed.status.success() && told(&listed).contains("m-Q8_0.gguf"), "{}", told(&listed));
    assert_eq!(run(&["models", "hub", "nobody/nothing"]).status.code(), Some(3));
    let which = run(&["models", "pull", REPOSITORY]);
    assert!(which.status.code() == Some(3) && told(&which).contains("m-Q4_0.gguf"), "{}", told(&which));
    let pulled = run(&["models", "pull", REPOSITORY, "q8_0", "--json"]);
    let done: Download =
        serde_json::from_slice(&pulled.stdout).unwrap_or_else(|_| panic!("{}", told(&pulled)));
    is(&done, &content);
    assert!(
        hub.asked()
            .iter()
            .all(|asked| asked.away || asked.authorization.as_deref() == Some("Bearer hf_of_file"))
    );
    let found = run(&["models", "list"]);
    assert!(told(&found).contains("m-Q8_0"), "{}", told(&found));
    // A wrong checksum is a failure of the command.
    hub.act(|asked| Act { spoilt: asked.is_file(), ..Act::default() });
    let spoilt = run(&["models", "pull", REPOSITORY, "q4_0"]);
    assert!(spoilt.status.code() == Some(5) && told(&spoilt).contains("checksum"), "{}", told(&spoilt));
}

#[test]
fn a_quantisation_behind_a_repositorys_name_is_what_is_fetched() {
    let hub = TestHub::start();
    let content = model(0, 64);
    hub.add(REPOSITORY, "m-Q8_0.gguf", content.clone());
    hub.add(REPOSITORY, "m-Q4_K_M.gguf", model(0, 65));
    let data = tempfile::tempdir().unwrap();
    let pull = |arguments: &[&str]| {
        let arguments = [&["models", "pull", "--json"], arguments].concat();
        hunch(data.path(), &hub.config().endpoint, &arguments).output().unwrap()
    };
    let absent = pull(&[&format!("{REPOSITORY}:Q5_K_M")]);
    assert_eq!(absent.status.code(), Some(3), "{}", told(&absent));
    assert!(told(&absent).contains("quantisations are Q4_K_M, Q8_0"), "{}", told(&absent));
    let two = pull(&[&format!("{REPOSITORY}:Q8_0"), "Q4_K_M"]);
    assert!(two.status.code() == Some(4) && told(&two).contains("Name one of them"), "{}", told(&two));
    assert!(hub.starts().is_empty(), "nothing was fetched");
    let pulled = pull(&[&format!("hf.co/{REPOSITORY}:Q8_0")]);
    let done: Download =
        serde_json::from_slice(&pulled.stdout).unwrap_or_else(|_| panic!("{}", told(&pulled)));
    is(&done, &content);
    assert_eq!(done.request.file, "m-Q8_0.gguf");
    assert!(pull(&[&format!("{REPOSITORY}:q8_0"), "Q8_0"]).status.success(), "twice the same is no question");
}

/// The file below a folder that a text stands in.
fn stands_in(folder: &Path, text: &str) -> Option<PathBuf> {
    let holds = |thing: &Thing| match thing {
        Thing::File(_, bytes) => bytes.windows(text.len()).any(|window| window == text.as_bytes()),
        Thing::Folder | Thing::Link(_) => false,
    };
    snapshot(folder).into_iter().find(|(_, thing)| holds(thing)).map(|(path, _)| path)
}

#[test]
fn the_token_of_the_environment_goes_to_the_hub_and_nowhere_else() {
    let hub = TestHub::start();
    let secret = "hf_environment_secret";
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 90));
    let data = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = hunch(data.path(), &hub.config().endpoint, arguments);
        // As verbose as anything in the program could be.
        for (name, value) in [("RUST_LOG", "trace"), ("RUST_BACKTRACE", "full"), ("HF_DEBUG", "1")] {
            command.env(name, value);
        }
        command.env("HF_TOKEN", secret).output().unwrap()
    };
    // Cut off, refused by an indiscreet hub, and at last let in.
    let mut cut = in_turn(vec![Act::cut(MIB)]);
    let mut resolved = 0;
    hub.act(move |asked| {
        resolved += usize::from(asked.path.contains("/resolve/"));
        match resolved {
            2 if asked.path.contains("/resolve/") => {
                Act::status(401).with("X-Error-Message", format!("no such token: {secret}"))
            }
            _ => cut(asked),
        }
    });
    let refused = run(&["models", "pull", REPOSITORY]);
    assert_eq!(refused.status.code(), Some(4), "{}", told(&refused));
    assert!(told(&refused).contains("does not accept the token"), "{}", told(&refused));
    assert_eq!(stands_in(data.path(), secret), None, "while it is unfinished");
    let pulled = run(&["models", "pull", REPOSITORY]);
    assert!(pulled.status.success(), "{}", told(&pulled));
    let listed = run(&["models", "hub", REPOSITORY, "--json"]);
    for output in [&refused, &pulled, &listed] {
        assert!(!told(output).contains(secret), "{}", told(output));
    }
    assert_eq!(stands_in(data.path(), secret), None);
    let asked = hub.asked();
    assert!(asked.iter().any(|asked| asked.away) && asked.iter().any(|asked| !asked.away));
    for asked in asked {
        let expected = (!asked.away).then(|| format!("Bearer {secret}"));
        assert_eq!(asked.authorization, expected, "{}", asked.path);
    }
}

#[test]
fn a_variable_that_can_be_no_token_is_said_and_not_sent() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 91));
    let data = tempfile::tempdir().unwrap();
    let run = |token: &str| {
        let mut command =
            hunch(data.path(), &hub.config().endpoint, &["models", "pull", REPOSITORY, "--json"]);
        command.env("HF_TOKEN", token).output().unwrap()
    };
    let output = run("hf_secret and more");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("HF_TOKEN is ignored"), "{}", told(&output));
    assert!(!told(&output).contains("secret"), "{}", told(&output));
    assert!(hub.asked().iter().all(|asked| asked.authorization.is_none()));
    assert!(!told(&run("hf_sound")).contains("HF_TOKEN"));
}

#[test]
fn a_model_of_the_catalogue_is_fetched_by_its_id() {
    let hub = TestHub::start();
    let of_catalogue = catalogue::models().iter().min_by_key(|model| model.parameters).unwrap();
    let content = model(0, 92);
    hub.add(&of_catalogue.repository, &of_catalogue.file, content.clone());
    // Another one beside it, so that the repository alone does not say which.
    hub.add(&of_catalogue.repository, "other-F16.gguf", model(0, 93));
    let data = tempfile::tempdir().unwrap();
    let pull = |arguments: &[&str]| {
        let arguments = [&["models", "pull"], arguments, &["--json"]].concat();
        hunch(data.path(), &hub.config().endpoint, &arguments).output().unwrap()
    };
    let output = pull(&[&of_catalogue.id]);
    let done: Download =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output)));
    is(&done, &content);
    assert_eq!(
        (&done.request.repository, &done.request.file),
        (&of_catalogue.repository, &of_catalogue.file)
    );
    assert!(Path::new(done.path.as_ref().unwrap()).exists());
    // Another file of the same repository, if it is named.
    let output = pull(&[&of_catalogue.id, "F16"]);
    let done: Download =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output)));
    assert_eq!(done.request.file, "other-F16.gguf");
    assert_eq!(pull(&["no-such-id-in-the-catalogue"]).status.code(), Some(3));
}

#[test]
fn the_command_line_respects_the_proxy_of_the_environment() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 62));
    let (address, count) = proxy(&hub);
    let data = tempfile::tempdir().unwrap();
    let mut command = hunch(data.path(), "http://hub.invalid", &["models", "hub", REPOSITORY, "--json"]);
    let output = command.env("http_proxy", format!("http://{address}")).output().unwrap();
    assert!(output.status.success() && told(&output).contains("m.gguf"), "{}", told(&output));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let direct = command.env("no_proxy", "hub.invalid").output().unwrap();
    assert_eq!((direct.status.code(), count.load(Ordering::SeqCst)), (Some(5), 1));
}

#[cfg(unix)]
#[test]
fn ctrl_c_pauses_and_the_same_command_goes_on() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 63);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let data = tempfile::tempdir().unwrap();
    let pull = || hunch(data.path(), &hub.config().endpoint, &["models", "pull", REPOSITORY, "--json"]);
    let child = pull().spawn().unwrap();
    // Seen as the window would see it.
    let models = data.path().join("models");
    let window = Downloads::open(&models, hub.config(), settings()).unwrap();
    while window.list().first().is_none_or(|download| download.done_bytes < MIB) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(window.list()[0].error.as_ref().unwrap().code, ErrorCode::DownloadElsewhere);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let paused = child.wait_with_output().unwrap();
    assert!(
        paused.status.success() && told(&paused).contains("Run the same command to resume"),
        "{}",
        told(&paused)
    );
    let seen = &window.list()[0];
    assert_eq!((seen.phase, seen.error.as_ref(), seen.done_bytes), (DownloadPhase::Paused, None, MIB));
    let output = pull().output().unwrap();
    is(&serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output))), &content);
    assert_eq!(hub.starts(), [0, MIB]);
}

/// The application, with all it keeps in a folder.
fn app(folder: &Path) -> App {
    let config = AppConfig {
        models_folder: Some(folder.join("models")),
        places: None,
        store: Some(folder.join("conversations.db")),
        threads: Some(1),
        device: DeviceChoice::Cpu,
    };
    App::start(config).unwrap()
}

#[test]
fn in_the_window_a_keychain_that_stays_shut_is_asked_once_for_each_thing_that_is_begun() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 66));
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let folder = tempfile::tempdir().unwrap();
    let keychain: Arc<Shut> = Arc::default();
    let app = app(folder.path());
    app.use_hub(keychain.config(&hub), settings()).unwrap();
    assert_eq!((app.hub_state().unwrap().problems.len(), keychain.asked()), (1, 1));
    app.hub_repository(REPOSITORY).unwrap();
    assert_eq!(keychain.asked(), 2);
    assert_eq!((app.hub_state().unwrap().problems.len(), keychain.asked()), (1, 2), "what is known is told");
    let (teller, events) = std::sync::mpsc::channel();
    let listener = Box::new(move |event| {
        let _ = teller.send(event);
    });
    app.watch_library(listener).unwrap();
    let id = app.start_download(&request("m.gguf")).unwrap().id;
    wait(&events, &id, |download| download.done_bytes == MIB);
    assert_eq!(keychain.asked(), 3, "though the hub is asked what the file is, and then for it");
    app.pause_download(&id).unwrap();
    app.resume_download(&id).unwrap();
    wait(&events, &id, |download| download.phase == DownloadPhase::Done);
    assert_eq!(keychain.asked(), 4);
    app.shutdown();
}

#[test]
fn the_application_fetches_a_model_and_finds_it() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m-Q8_0.gguf", model(0, 64));
    let folder = tempfile::tempdir().unwrap();
    let app = app(folder.path());
    let secret = "hf_application_secret";
    app.use_hub(hub.config_with_token(secret), settings()).unwrap();
    assert_eq!(app.hub_state().unwrap().endpoint, hub.config().endpoint);
    let (teller, events) = std::sync::mpsc::channel();
    let listener = Box::new(move |event| {
        let _ = teller.send(event);
    });
    assert!(app.watch_library(listener).unwrap().is_empty());
    let file = app.hub_repository(REPOSITORY).unwrap().files.remove(0);
    let id = app.start_download(&request(&file.path)).unwrap().id;
    let done = wait(&events, &id, |download| download.phase == DownloadPhase::Done);
    assert_eq!(app.downloads().unwrap(), [done]);
    assert!(app.find_model("m-q8_0").is_ok());
    app.shutdown();
    assert!(folder.path().join("conversations.db").exists());
    assert_eq!(stands_in(folder.path(), secret), None, "in the file of conversations least of all");
}
