//! Downloads by the command line and the application.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hunch::app::{App, AppConfig};
use hunch_error::ErrorCode;
use hunch_library::catalogue;
use hunch_library::download::Downloads;
use hunch_library::types::{Download, DownloadPhase, HubSearchPage};

use super::{LockedKeychain, MIB, REPOSITORY, assert_done, in_sequence, model, request, settings, wait};
use crate::hub::{Behaviour, TestHub, proxy};
use crate::support::app::config;
use crate::support::snapshot::{Thing, snapshot};

/// The `hunch` program with this Hub, and no inherited proxy or token.
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

pub(super) fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn command_line_lists_and_pulls_with_the_token_file() {
    let hub = TestHub::start();
    let content = model(0, 60);
    hub.add(REPOSITORY, "m-Q8_0.gguf", content.clone());
    hub.add(REPOSITORY, "m-Q4_0.gguf", model(0, 61));
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("token"), "hf_of_file\n").unwrap();
    let endpoint = hub.config().endpoint;
    let run = |arguments: &[&str]| hunch(data.path(), &endpoint, arguments).output().unwrap();
    let listed = run(&["models", "hub", REPOSITORY]);
    assert!(
        listed.status.success() && output_text(&listed).contains("m-Q8_0.gguf"),
        "{}",
        output_text(&listed)
    );
    assert_eq!(run(&["models", "hub", "nobody/nothing"]).status.code(), Some(3));
    let which = run(&["models", "pull", REPOSITORY]);
    assert!(
        which.status.code() == Some(3) && output_text(&which).contains("m-Q4_0.gguf"),
        "{}",
        output_text(&which)
    );
    let pulled = run(&["models", "pull", REPOSITORY, "q8_0", "--json"]);
    let done: Download =
        serde_json::from_slice(&pulled.stdout).unwrap_or_else(|_| panic!("{}", output_text(&pulled)));
    assert_done(&done, &content);
    assert!(
        hub.requests().iter().all(
            |request| request.is_storage || request.authorization.as_deref() == Some("Bearer hf_of_file")
        )
    );
    let found = run(&["models", "list"]);
    assert!(output_text(&found).contains("m-Q8_0"), "{}", output_text(&found));
    // A wrong checksum fails the command.
    hub.set_behaviour(|request| Behaviour { corrupt: request.is_file(), ..Behaviour::default() });
    let corrupt = run(&["models", "pull", REPOSITORY, "q4_0"]);
    assert!(
        corrupt.status.code() == Some(5) && output_text(&corrupt).contains("checksum"),
        "{}",
        output_text(&corrupt)
    );
}

#[test]
fn command_line_searches_and_prints_cards() {
    let hub = TestHub::start();
    let found = serde_json::json!([{
        "id": REPOSITORY, "downloads": 1234, "likes": 5, "gated": "auto", "tags": ["license:mit"],
        "gguf": {"total": 8_190_735_360_u64, "architecture": "mamba2"},
        "siblings": [{"rfilename": "m-Q8_0.gguf"}],
    }])
    .to_string();
    hub.set_search(move |_| (found.clone(), Some("<http://x/?cursor=abc>; rel=\"next\"".into())));
    hub.set_card(REPOSITORY, "# Tiny \u{1b}[31mred\n");
    let data = tempfile::tempdir().unwrap();
    let endpoint = hub.config().endpoint;
    let run = |arguments: &[&str]| hunch(data.path(), &endpoint, arguments).output().unwrap();
    let text = output_text(&run(&["models", "search", "tiny", "8b", "--sort", "likes"]));
    for part in [
        REPOSITORY,
        "1234",
        "mit",
        "8.2 B",
        "mamba2",
        "Q8_0",
        "does not run",
        "terms to accept",
        "--after abc",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let parameters = &hub.requests()[0].query;
    assert!(parameters.contains(&("search".into(), "tiny 8b".into())), "{parameters:?}");
    assert!(parameters.contains(&("sort".into(), "likes".into())), "{parameters:?}");
    let json = run(&["models", "search", "tiny", "--json", "--after", "abc"]);
    let page: HubSearchPage = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((page.results[0].repository.as_str(), page.next.as_deref()), (REPOSITORY, Some("abc")));
    assert_eq!(output_text(&run(&["models", "hub", REPOSITORY, "--card"])), "# Tiny [31mred\n");
    assert!(output_text(&run(&["models", "hub", "a/b", "--card"])).contains("has no model card"));
    hub.set_search(|_| ("[]".into(), None));
    let none = run(&["models", "search", "nothing"]);
    assert!(
        none.status.success() && output_text(&none).contains("Try fewer words"),
        "{}",
        output_text(&none)
    );
    hub.set_behaviour(|_| Behaviour::status(429).with("Retry-After", "60"));
    let busy = run(&["models", "search", "tiny"]);
    assert_eq!(busy.status.code(), Some(5), "{}", output_text(&busy));
    assert!(output_text(&busy).contains("Try again in 60 s"), "{}", output_text(&busy));
    assert_eq!(run(&["models", "search"]).status.code(), Some(2));
}

#[test]
fn pulls_the_quantisation_after_the_colon() {
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
    assert_eq!(absent.status.code(), Some(3), "{}", output_text(&absent));
    assert!(output_text(&absent).contains("quantisations are Q4_K_M, Q8_0"), "{}", output_text(&absent));
    let two = pull(&[&format!("{REPOSITORY}:Q8_0"), "Q4_K_M"]);
    assert!(
        two.status.code() == Some(4) && output_text(&two).contains("Name one of them"),
        "{}",
        output_text(&two)
    );
    assert!(hub.starts().is_empty(), "nothing was fetched");
    let pulled = pull(&[&format!("hf.co/{REPOSITORY}:Q8_0")]);
    let done: Download =
        serde_json::from_slice(&pulled.stdout).unwrap_or_else(|_| panic!("{}", output_text(&pulled)));
    assert_done(&done, &content);
    assert_eq!(done.request.file, "m-Q8_0.gguf");
    assert!(
        pull(&[&format!("{REPOSITORY}:q8_0"), "Q8_0"]).status.success(),
        "equal selectors do not conflict"
    );
}

/// Returns a file below `folder` that contains `text`.
fn stands_in(folder: &Path, text: &str) -> Option<PathBuf> {
    let holds = |thing: &Thing| match thing {
        Thing::File(_, bytes) => bytes.windows(text.len()).any(|window| window == text.as_bytes()),
        Thing::Folder | Thing::Link(_) => false,
    };
    snapshot(folder).into_iter().find(|(_, thing)| holds(thing)).map(|(path, _)| path)
}

#[test]
fn environment_token_is_sent_to_the_hub_only() {
    let hub = TestHub::start();
    let secret = "hf_environment_secret";
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 90));
    let data = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = hunch(data.path(), &hub.config().endpoint, arguments);
        // Maximum verbosity.
        for (name, value) in [("RUST_LOG", "trace"), ("RUST_BACKTRACE", "full"), ("HF_DEBUG", "1")] {
            command.env(name, value);
        }
        command.env("HF_TOKEN", secret).output().unwrap()
    };
    // Cut off, refused with a message that repeats the token, then accepted.
    let mut cut = in_sequence(vec![Behaviour::cut(MIB)]);
    let mut resolved = 0;
    hub.set_behaviour(move |request| {
        resolved += usize::from(request.path.contains("/resolve/"));
        match resolved {
            2 if request.path.contains("/resolve/") => {
                Behaviour::status(401).with("X-Error-Message", format!("no such token: {secret}"))
            }
            _ => cut(request),
        }
    });
    let refused = run(&["models", "pull", REPOSITORY]);
    assert_eq!(refused.status.code(), Some(4), "{}", output_text(&refused));
    assert!(output_text(&refused).contains("rejects the token"), "{}", output_text(&refused));
    assert_eq!(stands_in(data.path(), secret), None, "while the download is unfinished");
    let pulled = run(&["models", "pull", REPOSITORY]);
    assert!(pulled.status.success(), "{}", output_text(&pulled));
    let listed = run(&["models", "hub", REPOSITORY, "--json"]);
    for output in [&refused, &pulled, &listed] {
        assert!(!output_text(output).contains(secret), "{}", output_text(output));
    }
    assert_eq!(stands_in(data.path(), secret), None);
    let requests = hub.requests();
    assert!(
        requests.iter().any(|request| request.is_storage)
            && requests.iter().any(|request| !request.is_storage)
    );
    for request in requests {
        let expected = (!request.is_storage).then(|| format!("Bearer {secret}"));
        assert_eq!(request.authorization, expected, "{}", request.path);
    }
}

#[test]
fn malformed_token_variable_is_reported_and_not_sent() {
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
    assert!(output.status.success() && errors.contains("HF_TOKEN is ignored"), "{}", output_text(&output));
    assert!(!output_text(&output).contains("secret"), "{}", output_text(&output));
    assert!(hub.requests().iter().all(|request| request.authorization.is_none()));
    assert!(!output_text(&run("hf_sound")).contains("HF_TOKEN"));
}

#[test]
fn pulls_a_catalogue_model_by_id() {
    let hub = TestHub::start();
    // The file of the test has another checksum than any of the catalogue.
    let unchecked = catalogue::models().iter().filter(|model| model.sha256.is_none());
    let of_catalogue = unchecked.min_by_key(|model| model.parameters).unwrap();
    let content = model(0, 92);
    hub.add(&of_catalogue.repository, &of_catalogue.file, content.clone());
    // A second file, so that the repository's name alone is ambiguous.
    hub.add(&of_catalogue.repository, "other-F16.gguf", model(0, 93));
    let data = tempfile::tempdir().unwrap();
    let pull = |arguments: &[&str]| {
        let arguments = [&["models", "pull"], arguments, &["--json"]].concat();
        hunch(data.path(), &hub.config().endpoint, &arguments).output().unwrap()
    };
    let output = pull(&[&of_catalogue.id]);
    let done: Download =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(&output)));
    assert_done(&done, &content);
    assert_eq!(
        (&done.request.repository, &done.request.file),
        (&of_catalogue.repository, &of_catalogue.file)
    );
    assert!(Path::new(done.path.as_ref().unwrap()).exists());
    // Naming another file of the repository overrides the catalogue.
    let output = pull(&[&of_catalogue.id, "F16"]);
    let done: Download =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(&output)));
    assert_eq!(done.request.file, "other-F16.gguf");
    assert_eq!(pull(&["no-such-id-in-the-catalogue"]).status.code(), Some(3));
}

#[test]
fn command_line_uses_the_proxy_variables() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 62));
    let (address, count) = proxy(&hub);
    let data = tempfile::tempdir().unwrap();
    let mut command = hunch(data.path(), "http://hub.invalid", &["models", "hub", REPOSITORY, "--json"]);
    let output = command.env("http_proxy", format!("http://{address}")).output().unwrap();
    assert!(output.status.success() && output_text(&output).contains("m.gguf"), "{}", output_text(&output));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let direct = command.env("no_proxy", "hub.invalid").output().unwrap();
    assert_eq!((direct.status.code(), count.load(Ordering::SeqCst)), (Some(5), 1));
}

#[cfg(unix)]
#[test]
fn ctrl_c_pauses_and_the_same_command_resumes() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 63);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let data = tempfile::tempdir().unwrap();
    let pull = || hunch(data.path(), &hub.config().endpoint, &["models", "pull", REPOSITORY, "--json"]);
    let child = pull().spawn().unwrap();
    // The window's view of it.
    let models = data.path().join("models");
    let window = Downloads::open(&models, hub.config(), settings()).unwrap();
    while window.list().first().is_none_or(|download| download.done_bytes < MIB) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(window.list()[0].error.as_ref().unwrap().code, ErrorCode::DownloadElsewhere);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let paused = child.wait_with_output().unwrap();
    assert!(
        paused.status.code() == Some(130) && output_text(&paused).contains("Run the same command to resume"),
        "{}",
        output_text(&paused)
    );
    let seen = &window.list()[0];
    assert_eq!((seen.phase, seen.error.as_ref(), seen.done_bytes), (DownloadPhase::Paused, None, MIB));
    let output = pull().output().unwrap();
    assert_done(
        &serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output_text(&output))),
        &content,
    );
    assert_eq!(hub.starts(), [0, MIB]);
}

/// The application with its data in `folder`.
fn app(folder: &Path) -> App {
    App::start(AppConfig { models_folder: Some(folder.join("models")), ..config(folder) }).unwrap()
}

#[test]
fn application_reads_a_locked_keychain_once_per_action() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 66));
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let folder = tempfile::tempdir().unwrap();
    let keychain: Arc<LockedKeychain> = Arc::default();
    let app = app(folder.path());
    app.use_hub(keychain.config(&hub), settings()).unwrap();
    assert_eq!((app.hub_state().unwrap().problems.len(), keychain.reads()), (1, 1));
    app.hub_repository(REPOSITORY).unwrap();
    assert_eq!(keychain.reads(), 2);
    assert_eq!(
        (app.hub_state().unwrap().problems.len(), keychain.reads()),
        (1, 2),
        "the cached result is reported"
    );
    let (teller, events) = std::sync::mpsc::channel();
    let listener = Box::new(move |event| {
        let _ = teller.send(event);
    });
    app.watch_library(listener).unwrap();
    let id = app.start_download(&request("m.gguf")).unwrap().id;
    wait(&events, &id, |download| download.done_bytes == MIB);
    assert_eq!(keychain.reads(), 3, "one read for listing and fetching");
    app.pause_download(&id).unwrap();
    app.resume_download(&id).unwrap();
    wait(&events, &id, |download| download.phase == DownloadPhase::Done);
    assert_eq!(keychain.reads(), 4);
    app.shutdown();
}

#[test]
fn application_downloads_and_lists_a_model() {
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
    assert_eq!(stands_in(folder.path(), secret), None, "including the database");
}
