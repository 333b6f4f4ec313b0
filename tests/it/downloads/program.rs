//! Downloads by the command line, as a user has it, and by the application.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use hunch::api::library::{Download, DownloadPhase};
use hunch::app::{App, AppConfig};
use hunch::error::ErrorCode;
use hunch::library::download::Downloads;
use hunch::model::device::DeviceChoice;

use super::{MIB, REPOSITORY, in_turn, is, model, request, settings, wait};
use crate::hub::{Act, TestHub, proxy};

/// The real program, with this environment and no other hub, proxy or token.
fn hunch(data: &Path, endpoint: &str, arguments: &[&str]) -> Command {
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

fn told(output: &Output) -> String {
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
        paused.status.success() && told(&paused).contains("The same command goes on"),
        "{}",
        told(&paused)
    );
    let seen = &window.list()[0];
    assert_eq!((seen.phase, seen.error.as_ref(), seen.done_bytes), (DownloadPhase::Paused, None, MIB));
    let output = pull().output().unwrap();
    is(&serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output))), &content);
    assert_eq!(hub.starts(), [0, MIB]);
}

#[test]
fn the_application_fetches_a_model_and_finds_it() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m-Q8_0.gguf", model(0, 64));
    let folder = tempfile::tempdir().unwrap();
    let config = AppConfig {
        models_folder: Some(folder.path().join("models")),
        places: None,
        store: Some(folder.path().join("conversations.db")),
        threads: Some(1),
        device: DeviceChoice::Cpu,
    };
    let app = App::start(config).unwrap();
    app.use_hub(hub.config(), settings()).unwrap();
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
}
