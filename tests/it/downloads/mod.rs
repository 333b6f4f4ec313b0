//! Downloads from a misbehaving test Hub. In every case the library receives the Hub's file once, or
//! nothing.

mod connection;
mod disk;
mod folders;
mod program;
mod refusals;
mod search;
mod secured;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::quantized::GgmlDType;
use hunch_error::ErrorCode;
use hunch_library::Places;
use hunch_library::download::{DownloadSettings, Downloads, Subscription};
use hunch_library::hub::{HubConfig, Token, TokenSources, Vault};
use hunch_library::types::{Download, DownloadPhase, DownloadRequest, LibraryEvent};
use hunch_model::weights::WeightFile;
use sha2::{Digest, Sha256};

use crate::hub::{Behaviour, Content, Request, TestHub};
use hunch_testing::tiny::Tiny;

/// Long enough for a loaded machine. Nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
const REPOSITORY: &str = "owner/tiny-GGUF";

fn settings() -> DownloadSettings {
    DownloadSettings {
        max_retries: 6,
        min_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        stall_timeout: Duration::from_secs(20),
        free_space: Arc::new(|_| None),
        ..DownloadSettings::default()
    }
}

/// A valid model of at least `size` bytes, padded after the tensors.
fn model(size: u64, seed: u64) -> Content {
    let tiny = Tiny { dtype: GgmlDType::Q8_0, layers: 1, seed, ..Tiny::default() };
    let head = tiny.writer().bytes();
    let size = size.max(head.len() as u64);
    Content::padded(head, size, seed)
}

/// A keychain that stays locked and counts reads.
#[derive(Default)]
struct LockedKeychain(AtomicUsize);

impl LockedKeychain {
    fn reads(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Configuration with this keychain as the token's source.
    fn config(self: &Arc<Self>, hub: &TestHub) -> HubConfig {
        let vault: Arc<dyn Vault> = Arc::clone(self) as _;
        HubConfig { tokens: TokenSources { vault: Some(vault), ..TokenSources::default() }, ..hub.config() }
    }
}

impl Vault for LockedKeychain {
    fn read(&self) -> Result<Option<Token>, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err("access denied".into())
    }

    fn write(&self, _: Option<&Token>) -> Result<(), String> {
        Err("access denied".into())
    }
}

fn request(file: &str) -> DownloadRequest {
    DownloadRequest { repository: REPOSITORY.into(), file: file.into(), expected_sha256: None }
}

/// A models folder, its downloads and their events.
struct TestDownloads {
    folder: tempfile::TempDir,
    downloads: Downloads,
    events: Receiver<LibraryEvent>,
    _subscription: Subscription,
}

fn watch(downloads: &Downloads) -> (Receiver<LibraryEvent>, Subscription) {
    let (sender, events) = channel();
    let subscription = downloads.subscribe(Box::new(move |event| drop(sender.send(event))));
    (events, subscription)
}

impl TestDownloads {
    fn new(hub: &TestHub) -> Self {
        Self::with(hub.config(), settings())
    }

    fn with(config: HubConfig, settings: DownloadSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let downloads = Downloads::open(folder.path(), config, settings).unwrap();
        let (events, _subscription) = watch(&downloads);
        Self { folder, downloads, events, _subscription }
    }

    /// Simulates a restart of the program.
    fn restart(self, config: HubConfig) -> Self {
        let Self { folder, downloads, events, _subscription } = self;
        drop((downloads, events, _subscription));
        let downloads = Downloads::open(folder.path(), config, settings()).unwrap();
        let (events, _subscription) = watch(&downloads);
        Self { folder, downloads, events, _subscription }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the visible models.
    fn models(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.retain(|name| name != ".downloads");
        names.sort();
        names
    }

    fn start(&self, file: &str) -> String {
        self.downloads.start(&request(file)).unwrap().id
    }

    fn wait(&self, id: &str, until: impl Fn(&Download) -> bool) -> Download {
        wait(&self.events, id, until)
    }

    /// Waits until the download is done or failed.
    fn end(&self, id: &str) -> Download {
        self.wait(id, |download| matches!(download.phase, DownloadPhase::Done | DownloadPhase::Failed))
    }

    fn fetch(&self, file: &str) -> Download {
        self.end(&self.start(file))
    }

    fn fails(&self, file: &str) -> (ErrorCode, String) {
        let ended = self.fetch(file);
        assert_eq!(ended.phase, DownloadPhase::Failed, "{ended:?}");
        assert_eq!(self.models(), [""; 0], "nothing may look like a model");
        let error = ended.error.unwrap();
        (error.code, error.message)
    }

    fn part_bytes(&self, id: &str) -> u64 {
        std::fs::metadata(self.path().join(".downloads").join(id).join("00000.part"))
            .map_or(0, |file| file.len())
    }
}

fn wait(events: &Receiver<LibraryEvent>, id: &str, until: impl Fn(&Download) -> bool) -> Download {
    loop {
        if let LibraryEvent::Download { download } = events.recv_timeout(PATIENCE).unwrap()
            && download.id == id
            && until(&download)
        {
            return *download;
        }
    }
}

fn sha256(path: &Path) -> String {
    Sha256::digest(std::fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn assert_done(download: &Download, content: &Content) {
    assert_eq!(download.phase, DownloadPhase::Done, "{download:?}");
    assert_eq!(download.error, None);
    assert_eq!(sha256(Path::new(download.path.as_ref().unwrap())), content.sha256);
}

/// Behaviours for successive file requests. Later ones succeed.
fn in_sequence(behaviours: Vec<Behaviour>) -> impl FnMut(&Request) -> Behaviour + Send {
    let mut behaviours = behaviours.into_iter();
    move |request| {
        if request.is_file() { behaviours.next().unwrap_or_default() } else { Behaviour::default() }
    }
}

fn unfinished(models: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(models.join(".downloads")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

#[test]
fn model_is_fetched_verified_and_listed() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 1);
    hub.add(REPOSITORY, "q8/Tiny é-Q8_0.gguf", content.clone());
    let test = TestDownloads::new(&hub);
    let started = test.downloads.start(&request("q8/Tiny é-Q8_0.gguf")).unwrap();
    assert_eq!((started.phase, started.name.as_str()), (DownloadPhase::Waiting, "Tiny é-Q8_0"));
    let done = test.end(&started.id);
    assert_done(&done, &content);
    assert_eq!((done.done_bytes, done.total_bytes), (content.size(), Some(content.size())));
    assert_eq!(test.models(), ["Tiny é-Q8_0.gguf"]);
    assert!(unfinished(test.path()).is_empty());
    assert!(test.events.iter().any(|event| event == LibraryEvent::Changed));
    assert_eq!(
        hunch_library::resolve("tiny é-q8_0", &Places::only(test.path().into())).unwrap(),
        PathBuf::from(done.path.unwrap())
    );
    // The model exists, so no byte is fetched again.
    let before = hub.starts().len();
    assert_done(&test.fetch("q8/Tiny é-Q8_0.gguf"), &content);
    assert_eq!((hub.starts().len(), test.models().len()), (before, 1));
}

#[test]
fn pause_survives_a_restart() {
    let hub = TestHub::start();
    let content = model(4 * MIB, 4);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![
        Behaviour { stall: Some(MIB), ..Behaviour::default() },
        Behaviour { stall: Some(MIB), ..Behaviour::default() },
    ]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    test.downloads.pause(&id).unwrap();
    assert_eq!(test.wait(&id, |download| download.phase == DownloadPhase::Paused).done_bytes, MIB);
    // It resumes where it stopped.
    test.downloads.resume(&id).unwrap();
    test.wait(&id, |download| download.done_bytes == 2 * MIB);
    test.downloads.pause(&id).unwrap();
    let test = test.restart(hub.config());
    let listed = test.downloads.list();
    assert_eq!((listed[0].id.as_str(), listed[0].phase), (id.as_str(), DownloadPhase::Paused));
    assert_eq!((listed[0].done_bytes, listed[0].total_bytes), (2 * MIB, Some(content.size())));
    // A paused download does not resume by itself.
    test.downloads.resume_interrupted();
    assert_eq!(test.downloads.list()[0].phase, DownloadPhase::Paused);
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &content);
    assert_eq!(hub.starts(), [0, MIB, 2 * MIB]);
}

#[test]
fn active_download_resumes_after_a_restart() {
    let hub = TestHub::start();
    let content = model(4 * MIB, 5);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    let test = test.restart(hub.config());
    assert_eq!(test.models(), [""; 0]);
    test.downloads.resume_interrupted();
    assert_done(&test.end(&id), &content);
    assert_eq!(hub.starts(), [0, MIB]);
}

#[test]
fn speed_and_time_left_are_reported_while_running() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 16);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![Behaviour { trickle: Some(16 << 10), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    let running = test.wait(&id, |download| download.bytes_per_second.is_some());
    let (speed, left) = (running.bytes_per_second.unwrap(), running.seconds_left.unwrap());
    let expected = (content.size() - running.done_bytes) as f64 / speed;
    assert!((left - expected).abs() < 1e-6, "{running:?}");
    let done = test.end(&id);
    assert_eq!((done.bytes_per_second, done.seconds_left), (None, None));
}

#[test]
fn two_programs_do_not_fetch_the_same_file() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 22);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let other = Downloads::open(test.path(), hub.config(), settings()).unwrap();
    let (other_events, _subscription) = watch(&other);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    // The other program sees the download as foreign. Each refusal is one event, and each is awaited, so that none
    // is taken for a later one.
    let refused = || {
        let refused = wait(&other_events, &id, |download| download.phase == DownloadPhase::Failed);
        assert_eq!(refused.error.unwrap().code, ErrorCode::DownloadElsewhere);
    };
    let seen = &other.list()[0];
    assert_eq!((seen.id.as_str(), seen.done_bytes), (id.as_str(), MIB));
    assert_eq!(seen.error.as_ref().unwrap().code, ErrorCode::DownloadElsewhere);
    refused();
    other.start(&request("m.gguf")).unwrap();
    refused();
    other.remove(&id).unwrap();
    // Tasks run in order, so this refusal follows that of the removal, which changes nothing and has no event.
    other.start(&request("m.gguf")).unwrap();
    refused();
    assert_eq!(test.part_bytes(&id), MIB, "the file is untouched");
    // Once the first lets go, the other can resume.
    test.downloads.pause(&id).unwrap();
    test.wait(&id, |download| download.phase == DownloadPhase::Paused);
    let mut ended = None;
    while ended.is_none() {
        other.resume(&id).unwrap();
        let download = wait(&other_events, &id, |download| {
            matches!(download.phase, DownloadPhase::Done | DownloadPhase::Failed)
        });
        // The first may still be storing its pause.
        ended = (download.phase == DownloadPhase::Done).then_some(download);
    }
    assert_done(&ended.unwrap(), &content);
    assert_eq!(hub.starts(), [0, MIB]);
    // The first may still be storing its pause, and lists the download until then.
    let begun = Instant::now();
    while !test.downloads.list().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the first program does not see its removal");
        std::thread::yield_now();
    }
    assert_eq!(test.models(), ["m.gguf"]);
}

#[test]
fn split_model_appears_once_all_parts_are_complete() {
    let hub = TestHub::start();
    let tiny = Tiny { dtype: GgmlDType::Q8_0, seed: 30, ..Tiny::default() };
    let split = tiny.writer().split(3);
    let parts: Vec<Content> =
        split.iter().enumerate().map(|(i, part)| Content::padded(part.bytes(), 2 * MIB, i as u64)).collect();
    for (index, part) in parts.iter().enumerate() {
        hub.add(REPOSITORY, &format!("big-Q8_0-{:05}-of-00003.gguf", index + 1), part.clone());
    }
    hub.set_behaviour(|request| {
        let stall =
            (request.is_file() && request.path.contains("00003-of") && request.from.is_none()).then_some(MIB);
        Behaviour { stall, ..Behaviour::default() }
    });
    let test = TestDownloads::new(&hub);
    let listed = test.downloads.repository(REPOSITORY).unwrap().files;
    assert_eq!((listed.len(), listed[0].parts, listed[0].quantisation.as_str()), (1, 3, "Q8_0"));
    let id = test.start(&listed[0].path);
    test.wait(&id, |download| download.done_bytes == 5 * MIB);
    assert_eq!(test.models(), [""; 0], "two of three parts are not a model");
    test.downloads.pause(&id).unwrap();
    test.downloads.resume(&id).unwrap();
    let done = test.end(&id);
    assert_eq!((done.phase, done.name.as_str()), (DownloadPhase::Done, "big-Q8_0"));
    let names: Vec<String> = (1..=3).map(|n| format!("big-Q8_0-{n:05}-of-00003.gguf")).collect();
    assert_eq!(test.models(), names);
    for (name, part) in names.iter().zip(&parts) {
        assert_eq!(sha256(&test.path().join(name)), part.sha256);
    }
    let path = PathBuf::from(done.path.unwrap());
    assert!(path.ends_with(&names[0]));
    // The installed model is valid.
    let entry = hunch_library::inspect(&path).unwrap().entry;
    assert_eq!((entry.name.as_str(), entry.parts, entry.problem), ("big-Q8_0", 3, None));
    let whole = tiny.write(test.path(), "whole");
    let bytes = |path: &Path| WeightFile::open(path).unwrap().weight_bytes();
    assert_eq!(bytes(&path), bytes(&whole));
    let again = hub.starts().into_iter().filter(|from| *from > 0).collect::<Vec<u64>>();
    assert_eq!(again, [MIB], "only what was missing came after the pause");
}

#[test]
fn parallel_transfers_are_limited() {
    let hub = TestHub::start();
    let names: Vec<String> = (0..7).map(|n| format!("m{n}.gguf")).collect();
    for (seed, name) in names.iter().enumerate() {
        hub.add(REPOSITORY, name, model(0, 40 + seed as u64));
    }
    hub.set_behaviour(|request| Behaviour {
        trickle: request.is_file().then_some(128 << 10),
        ..Behaviour::default()
    });
    let test = TestDownloads::new(&hub);
    let ids: Vec<String> = names.iter().map(|name| test.start(name)).collect();
    let mut open = ids.clone();
    let mut waited = false;
    while !open.is_empty() {
        if let LibraryEvent::Download { download } = test.events.recv_timeout(PATIENCE).unwrap() {
            waited |= download.phase == DownloadPhase::Waiting && download.total_bytes.is_some();
            assert_ne!(download.phase, DownloadPhase::Failed, "{download:?}");
            open.retain(|id| *id != download.id || download.phase != DownloadPhase::Done);
        }
    }
    assert!(waited);
    assert_eq!(hub.max_parallel_sends(), 3);
    assert_eq!(test.models(), names);
}

#[test]
fn different_model_of_the_same_name_is_not_overwritten() {
    let hub = TestHub::start();
    let content = model(0, 50);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let test = TestDownloads::new(&hub);
    std::fs::write(test.path().join("m.gguf"), b"mine").unwrap();
    let done = test.fetch("m.gguf");
    assert_done(&done, &content);
    assert_eq!((done.name.as_str(), test.models()), ("m-2", vec!["m-2.gguf".into(), "m.gguf".into()]));
    assert_eq!(std::fs::read(test.path().join("m.gguf")).unwrap(), b"mine");
}

#[test]
fn removed_download_leaves_no_files() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 51));
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    test.downloads.remove(&id).unwrap();
    while test.events.recv_timeout(PATIENCE).unwrap() != (LibraryEvent::DownloadGone { id: id.clone() }) {}
    assert_eq!((test.downloads.list().len(), unfinished(test.path()).len()), (0, 0));
    assert_eq!(test.downloads.resume(&id).unwrap_err().code(), ErrorCode::InvalidRequest);
    // Removing a finished download keeps the model.
    let done = test.fetch("m.gguf");
    test.downloads.remove(&done.id).unwrap();
    while test.events.recv_timeout(PATIENCE).unwrap() != (LibraryEvent::DownloadGone { id: id.clone() }) {}
    assert_eq!(test.models(), ["m.gguf"]);
}

#[test]
fn subscribers_are_called_until_dropped() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 54));
    let test = TestDownloads::new(&hub);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let subscription = test.downloads.subscribe(Box::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    test.fetch("m.gguf");
    drop(subscription);
    let before = calls.load(Ordering::SeqCst);
    assert!(before > 1);
    test.fetch("m.gguf");
    assert_eq!(calls.load(Ordering::SeqCst), before);
}

/// A failed download on disk, and a subscriber that lists downloads on every event. The window does the
/// same.
#[test]
fn subscriber_may_list_and_drop_anything() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 60));
    let content = model(0, 61);
    hub.add(REPOSITORY, "other.gguf", content.clone());
    hub.set_behaviour(|request| {
        let stall = (request.is_file() && request.path.ends_with("m.gguf")).then_some(MIB);
        Behaviour { stall, ..Behaviour::default() }
    });
    let test = TestDownloads::new(&hub);
    let other = Downloads::open(test.path(), hub.config(), settings()).unwrap();
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    // For another program the download has failed, because the first one holds its lock.
    let lister = other.clone();
    let (sender, listed) = channel();
    let subscription = other.subscribe(Box::new(move |event| drop(sender.send((event, lister.list())))));
    other.list();
    let (_, first) = listed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first[0].error.as_ref().unwrap().code, ErrorCode::DownloadElsewhere);
    test.downloads.pause(&id).unwrap();
    test.wait(&id, |download| download.phase == DownloadPhase::Paused);
    let fetched = other.start(&request("other.gguf")).unwrap().id;
    let mut phases = Vec::new();
    while phases.last() != Some(&DownloadPhase::Done) {
        if let (LibraryEvent::Download { download }, list) = listed.recv_timeout(PATIENCE).unwrap()
            && download.id == fetched
        {
            assert_eq!(list.len(), 2);
            phases.push(download.phase);
        }
    }
    assert_eq!(phases[0], DownloadPhase::Waiting, "in the order of events");
    drop(subscription);
    assert!(listed.iter().count() < 10, "the subscriber and everything it owned are dropped");
    // A subscriber that drops itself, another one and the last handle of the downloads.
    let (_, aside) = watch(&other);
    let mine: Arc<Mutex<Option<Subscription>>> = Arc::default();
    let (itself, last) = (Arc::clone(&mine), other.clone());
    let mut held = Some((aside, last));
    let (sender, events) = channel();
    let (go, wait) = channel();
    *mine.lock().unwrap() = Some(other.subscribe(Box::new(move |event| {
        // The first one is the event of the start below.
        if matches!(&event, LibraryEvent::Download { download } if download.phase == DownloadPhase::Waiting) {
            return;
        }
        wait.recv().unwrap();
        drop(held.take());
        drop(itself.lock().unwrap().take());
        let _ = sender.send(event);
    })));
    other.start(&request("m.gguf")).unwrap();
    drop(other);
    go.send(()).unwrap();
    assert_eq!(events.iter().count(), 1);
}

#[test]
fn concurrent_starts_fetch_once() {
    let hub = TestHub::start();
    let content = model(MIB, 62);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    for _ in 0..20 {
        let test = TestDownloads::new(&hub);
        let before = hub.starts().len();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let started = test.downloads.start(&request("m.gguf")).unwrap();
                    assert_ne!(started.phase, DownloadPhase::Paused);
                    assert_eq!(test.downloads.list().len(), 1);
                });
            }
        });
        // A start after the end checks the file again, so the first end is not always the last.
        let done = loop {
            let listed = test.downloads.list().remove(0);
            if matches!(listed.phase, DownloadPhase::Done | DownloadPhase::Failed) {
                break listed;
            }
            test.events.recv_timeout(PATIENCE).unwrap();
        };
        assert_done(&done, &content);
        assert_eq!(test.models(), ["m.gguf"]);
        assert_eq!(hub.starts().len(), before + 1);
    }
}

/// Repeated pause and resume: the last call wins.
#[test]
fn last_of_many_calls_wins() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 63);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(|request| Behaviour {
        trickle: request.is_file().then_some(64 << 10),
        ..Behaviour::default()
    });
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    for _ in 0..20 {
        test.downloads.pause(&id).unwrap();
        test.downloads.resume(&id).unwrap();
    }
    test.downloads.pause(&id).unwrap();
    let test = test.restart(hub.config());
    test.downloads.resume_interrupted();
    assert_eq!(test.downloads.list()[0].phase, DownloadPhase::Paused, "the pause was stored");
    hub.set_behaviour(|_| Behaviour::default());
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &content);
}
