//! Tests of [`Updates`](super::Updates) with the real plugin, on the mock runtime, against a server on this machine.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;

#[cfg(target_os = "linux")]
use hunch::app::AppConfig;
use serde_json::{Value, json};
use tauri::test::{MockRuntime, mock_builder, mock_context, noop_assets};

use super::*;

/// Public key of a pair made with `tauri signer generate`. The private key was deleted.
const KEY: &str = "dW50cnVzdGVkIGNvbW1lbnQ6IG1pbmlzaWduIHB1YmxpYyBrZXk6IDhGMjhGNDRDOEIxRTFCOEYKUldTUEd4NkxUUFFvajdRNjlsTG9ZZmdJWGozSGtDb25rZFF4SjJsN2NGOHR0ZUVoc3gwaWlHTzEK";
/// Signature of [`BUNDLE`], made with `tauri signer sign --app-version 9.9.9`.
const SIGNATURE: &str = "dW50cnVzdGVkIGNvbW1lbnQ6IHNpZ25hdHVyZSBmcm9tIHRhdXJpIHNlY3JldCBrZXkKUlVTUEd4NkxUUFFvanhDNUJ3ZlovaWMvU3RJN3lTZEUyWmtrSmJxejZIQ1FPVmNyeGZQeTVXYXFBdmFBOUNOR1RIUlJQclpVVUpiMzJIQ3VGQysyRUJqZEdQTWJORk1ueUF3PQp0cnVzdGVkIGNvbW1lbnQ6IHRpbWVzdGFtcDoxNzk1NzAxNzU0CWZpbGU6SHVuY2guQXBwSW1hZ2UJdmVyc2lvbjo5LjkuOQpRMzFaUU45T01JaUNCUzRITWpMRjUzYlRyTWQ3VEpEbW41WURFSGNZVEtUbnppRjMzVzhhVXdEWmR5dDVoSGtwbm9GWFI0Ky80NnkxQ2lSVUhSQ0hCUT09Cg==";
const BUNDLE: &[u8] = b"\x7fELFan AppImage of version 9.9.9, as the tests serve it.....................";

/// Files that a server has, by path.
type Files = HashMap<&'static str, Vec<u8>>;

/// Answers one request.
fn answer(stream: TcpStream, files: &Files) -> std::io::Result<String> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    while reader.read_line(&mut request)? > 2 {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match files.get(path) {
        Some(body) => ("200 OK", &**body),
        None => ("404 Not Found", &b"none"[..]),
    };
    let length = body.len();
    let mut stream = reader.into_inner();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(body)?;
    Ok(request)
}

/// Starts a server. Returns its address, and its requests as they arrive.
fn serve(files: impl FnOnce(SocketAddr) -> Files) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let files = files(address);
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let request = answer(stream.unwrap(), &files).unwrap_or_default();
            if sender.send(request).is_err() {
                break;
            }
        }
    });
    (address, requests)
}

/// Returns the manifest of a release.
fn manifest(address: SocketAddr, version: &str, platform: &str) -> Vec<u8> {
    let bundle = json!({ "url": format!("http://{address}/bundle"), "signature": SIGNATURE });
    json!({ "version": version, "platforms": { platform: bundle } }).to_string().into_bytes()
}

/// Key of this machine in a manifest.
fn platform() -> String {
    tauri_plugin_updater::target().unwrap()
}

/// Returns the files of a release.
fn release(version: &'static str, bundle: &'static [u8]) -> impl FnOnce(SocketAddr) -> Files {
    move |address| {
        HashMap::from([
            ("/latest.json", manifest(address, version, &platform())),
            ("/bundle", bundle.to_vec()),
        ])
    }
}

/// Returns an app of version 0.1.0 that is configured to look for updates at an address.
fn app(address: SocketAddr) -> tauri::App<MockRuntime> {
    let config = json!({
        "pubkey": KEY,
        "endpoints": [format!("http://{address}/latest.json")],
        "requireSignedVersion": true,
        "dangerousInsecureTransportProtocol": true,
    });
    let mut context = mock_context(noop_assets());
    context.config_mut().plugins.0.insert("updater".into(), config);
    mock_builder().plugin(tauri_plugin_updater::Builder::new().build()).build(context).unwrap()
}

/// Updates that replace a file.
fn updates_of(executable: &Path) -> Updates {
    Updates::new(true, Some(executable.to_owned()))
}

fn ignore() -> Sink<UpdateProgress> {
    Box::new(|_| ())
}

fn found(version: &str) -> UpdateState {
    UpdateState::Found { version: version.into() }
}

/// A folder with an installed program.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hunch-app"), "the installed version").unwrap();
        Self(folder)
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("hunch-app")
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(self.program()).unwrap()
    }
}

#[test]
fn downloads_checks_and_installs_a_newer_version() {
    let installed = Installed::new();
    let (address, requests) = serve(release("9.9.9", BUNDLE));
    let (app, updates) = (app(address), updates_of(&installed.program()));
    assert_eq!(updates.state(), UpdateState::None);
    assert!(matches!(updates.install(None), Err(Error::InvalidRequest(_))));

    assert_eq!(updates.check(app.handle()).unwrap(), found("9.9.9"));
    let request = requests.recv().unwrap();
    assert!(request.starts_with("GET /latest.json HTTP/1.1"), "{request}");
    assert!(!request.contains("0.1.0"), "the request names no version: {request}");

    let (sender, progress) = mpsc::channel();
    let sink = Box::new(move |step| sender.send(step).unwrap());
    let ready = UpdateState::Ready { version: "9.9.9".into() };
    assert_eq!(updates.download(sink).unwrap(), ready);
    let size = BUNDLE.len() as u64;
    assert_eq!(progress.iter().last(), Some(UpdateProgress { received: size, total: Some(size) }));
    assert_eq!(installed.content(), b"the installed version", "nothing changes before the restart");
    // Looking again keeps what was downloaded.
    assert_eq!(updates.check(app.handle()).unwrap(), ready);

    // The plugin replaces programs only, of the running system.
    if cfg!(target_os = "linux") {
        updates.install(None).unwrap();
        assert_eq!(installed.content(), BUNDLE);
    }
}

#[test]
fn rejects_bundle_that_differs_from_the_signed_one() {
    let installed = Installed::new();
    let (address, _requests) = serve(release("9.9.9", b"\x7fELF something else entirely"));
    let (app, updates) = (app(address), updates_of(&installed.program()));
    updates.check(app.handle()).unwrap();
    let error = updates.download(ignore()).unwrap_err();
    assert!(matches!(&error, Error::UpdateRejected { version, .. } if version == "9.9.9"), "{error}");
    assert_eq!(updates.state(), found("9.9.9"));
    assert!(matches!(updates.install(None), Err(Error::InvalidRequest(_))));
    assert_eq!(installed.content(), b"the installed version");
}

#[test]
fn rejects_bundle_that_was_signed_for_another_version() {
    let installed = Installed::new();
    let (address, _requests) = serve(release("9.9.10", BUNDLE));
    let (app, updates) = (app(address), updates_of(&installed.program()));
    assert_eq!(updates.check(app.handle()).unwrap(), found("9.9.10"));
    let error = updates.download(ignore()).unwrap_err();
    assert!(
        matches!(&error, Error::UpdateRejected { reason, .. } if reason.ends_with("for version 9.9.9")),
        "{error}"
    );
}

#[test]
fn finds_no_update_if_the_release_is_not_newer() {
    for version in ["0.1.0", "0.0.9"] {
        let (address, _requests) = serve(release(version, BUNDLE));
        let updates = updates_of(Path::new("/app"));
        assert_eq!(updates.check(app(address).handle()).unwrap(), UpdateState::None, "{version}");
        assert_eq!(updates.download(ignore()).unwrap(), UpdateState::None);
    }
}

#[test]
fn reports_unusable_lists_of_releases() {
    let files = |name: &'static str, content: Vec<u8>| move |_| HashMap::from([(name, content)]);
    let elsewhere = |address| HashMap::from([("/latest.json", manifest(address, "9.9.9", "toaster-riscv"))]);
    let servers = [
        serve(files("/other.json", Vec::new())),
        serve(files("/latest.json", b"no JSON".to_vec())),
        serve(elsewhere),
    ];
    for (address, _requests) in &servers {
        let updates = updates_of(Path::new("/app"));
        let error = updates.check(app(*address).handle()).unwrap_err();
        assert!(matches!(error, Error::UpdateUnreachable(_)), "{error}");
        assert_eq!(updates.state(), UpdateState::None);
    }
    // Nobody listens there any more.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = updates_of(Path::new("/app")).check(app(closed).handle()).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("Updates cannot be fetched: Connection refused"), "{message}");
    assert!(message.contains("Nothing was changed"), "{message}");
}

#[test]
fn reports_bundle_that_is_missing_from_the_server() {
    let (address, _requests) =
        serve(|address| HashMap::from([("/latest.json", manifest(address, "9.9.9", &platform()))]));
    let (app, updates) = (app(address), updates_of(Path::new("/app")));
    updates.check(app.handle()).unwrap();
    let error = updates.download(ignore()).unwrap_err();
    assert!(matches!(&error, Error::UpdateUnreachable(reason) if reason.contains("404")), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn keeps_the_download_if_it_cannot_be_installed() {
    let (address, _requests) = serve(release("9.9.9", BUNDLE));
    let (app, updates) = (app(address), updates_of(Path::new("/no/such/folder/hunch-app")));
    updates.check(app.handle()).unwrap();
    let ready = updates.download(ignore()).unwrap();
    let error = updates.install(None).unwrap_err();
    assert!(matches!(error, Error::UpdateNotInstalled { .. }), "{error}");
    assert_eq!(updates.state(), ready);
}

/// Starts an engine whose files are in a folder.
#[cfg(target_os = "linux")]
fn engine(folder: &Path) -> App {
    let (models_folder, store) = (Some(folder.into()), Some(folder.join("store.sqlite")));
    App::start(AppConfig { models_folder, store, threads: Some(1), ..AppConfig::default() }).unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn engine_starts_nothing_between_install_and_restart() {
    let installed = Installed::new();
    let (address, _requests) = serve(release("9.9.9", BUNDLE));
    let (app, updates) = (app(address), updates_of(&installed.program()));
    let engine = engine(installed.0.path());
    updates.check(app.handle()).unwrap();
    updates.download(ignore()).unwrap();

    // Stands for an answer, a measurement or training.
    let work = engine.hold_for_update().unwrap();
    assert!(matches!(updates.install(Some(&engine)), Err(Error::Busy(RunningWork::Update))));
    assert_eq!(installed.content(), b"the installed version", "nothing changes while the engine works");
    drop(work);

    updates.install(Some(&engine)).unwrap();
    assert_eq!(installed.content(), BUNDLE);
    assert!(matches!(engine.check_idle(), Err(Error::Busy(RunningWork::Update))), "the app restarts now");
}

#[cfg(target_os = "linux")]
#[test]
fn engine_is_free_after_a_failed_install() {
    let (address, _requests) = serve(release("9.9.9", BUNDLE));
    let (app, updates) = (app(address), updates_of(Path::new("/no/such/folder/hunch-app")));
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path());
    updates.check(app.handle()).unwrap();
    updates.download(ignore()).unwrap();
    assert!(matches!(updates.install(Some(&engine)), Err(Error::UpdateNotInstalled { .. })));
    engine.check_idle().unwrap();
}

#[test]
fn refuses_a_step_during_another_one() {
    let installed = Installed::new();
    let (address, _requests) = serve(release("9.9.9", BUNDLE));
    let (app, updates) = (app(address), updates_of(&installed.program()));
    updates.check(app.handle()).unwrap();
    for state in [found("9.9.9"), UpdateState::Ready { version: "9.9.9".into() }] {
        let turn = updates.turn.lock();
        assert!(matches!(updates.check(app.handle()), Err(Error::Busy(RunningWork::Update))));
        assert!(matches!(updates.download(ignore()), Err(Error::Busy(RunningWork::Update))));
        assert!(matches!(updates.install(None), Err(Error::Busy(RunningWork::Update))));
        assert_eq!(updates.state(), state);
        drop(turn);
        updates.download(ignore()).unwrap();
    }
    assert_eq!(installed.content(), b"the installed version");
}

#[test]
fn asks_no_server_if_the_build_has_no_key() {
    let config: Value = serde_json::from_str(include_str!("../tauri.conf.json")).unwrap();
    assert_eq!(config.pointer("/plugins/updater"), None, "only a release sets it");
    // Without the plugin any use of it would panic.
    let app = tauri::test::mock_app();
    let updates = Updates::of_this_copy(app.config());
    assert!(!updates.are_on());
    assert_eq!(updates.check(app.handle()).unwrap(), UpdateState::Off);
    assert_eq!(updates.download(ignore()).unwrap(), UpdateState::Off);
    assert!(updates.install(None).is_err());
}

#[test]
fn a_program_that_was_built_here_is_never_replaced() {
    let mut context = mock_context::<MockRuntime, _>(noop_assets());
    context.config_mut().plugins.0.insert("updater".into(), json!({ "pubkey": KEY }));
    assert!(!Updates::of_this_copy(context.config()).are_on(), "tests run outside of a bundle");
}
