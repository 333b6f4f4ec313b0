//! Downloads against a hub of ours that misbehaves: whatever it does, what ends up in the library is
//! the file that the hub has, once, or nothing.

mod connection;
mod disk;
mod program;
mod refusals;
mod secured;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch_error::ErrorCode;
use hunch_library::Places;
use hunch_library::download::{DownloadSettings, Downloads, Subscription};
use hunch_library::hub::{HubConfig, Token, TokenPlaces, Vault};
use hunch_library::types::{Download, DownloadPhase, DownloadRequest, LibraryEvent};
use hunch_model::weights::WeightFile;
use sha2::{Digest, Sha256};

use crate::hub::{Act, Asked, Content, TestHub};
use crate::support::tiny::Tiny;

/// Long enough for a loaded machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
const REPOSITORY: &str = "owner/tiny-GGUF";

fn settings() -> DownloadSettings {
    DownloadSettings {
        tries: 6,
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(5),
        stall: Duration::from_secs(20),
        space: Arc::new(|_| None),
        ..DownloadSettings::default()
    }
}

/// A sound model of at least so many bytes: what follows the tensors is nothing.
fn model(size: u64, seed: u64) -> Content {
    let tiny = Tiny { dtype: GgmlDType::Q8_0, layers: 1, seed, ..Tiny::default() };
    let head = tiny.writer().bytes();
    let size = size.max(head.len() as u64);
    Content::padded(head, size, seed)
}

/// A keychain that the person does not open, and how often they were asked.
#[derive(Default)]
struct Shut(AtomicUsize);

impl Shut {
    fn asked(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// With the hub's token in it.
    fn config(self: &Arc<Self>, hub: &TestHub) -> HubConfig {
        let vault: Arc<dyn Vault> = Arc::clone(self) as _;
        HubConfig { tokens: TokenPlaces { vault: Some(vault), ..TokenPlaces::default() }, ..hub.config() }
    }
}

impl Vault for Shut {
    fn read(&self) -> Result<Option<Token>, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err("the person said no".into())
    }

    fn write(&self, _: Option<&Token>) -> Result<(), String> {
        Err("the person said no".into())
    }
}

fn request(file: &str) -> DownloadRequest {
    DownloadRequest { repository: REPOSITORY.into(), file: file.into(), expected_sha256: None }
}

/// A models folder with its downloads.
struct Desk {
    folder: tempfile::TempDir,
    downloads: Downloads,
    events: Receiver<LibraryEvent>,
    _told: Subscription,
}

fn watch(downloads: &Downloads) -> (Receiver<LibraryEvent>, Subscription) {
    let (sender, events) = channel();
    let told = downloads.subscribe(Box::new(move |event| drop(sender.send(event))));
    (events, told)
}

impl Desk {
    fn new(hub: &TestHub) -> Self {
        Self::with(hub.config(), settings())
    }

    fn with(config: HubConfig, settings: DownloadSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let downloads = Downloads::open(folder.path(), config, settings).unwrap();
        let (events, _told) = watch(&downloads);
        Self { folder, downloads, events, _told }
    }

    /// As after the program has ended and was started again.
    fn restart(self, config: HubConfig) -> Self {
        let Self { folder, downloads, events, _told } = self;
        drop((downloads, events, _told));
        let downloads = Downloads::open(folder.path(), config, settings()).unwrap();
        let (events, _told) = watch(&downloads);
        Self { folder, downloads, events, _told }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The models that anybody who looks can see.
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

    /// Waits for the end, whichever.
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

fn is(download: &Download, content: &Content) {
    assert_eq!(download.phase, DownloadPhase::Done, "{download:?}");
    assert_eq!(download.error, None);
    assert_eq!(sha256(Path::new(download.path.as_ref().unwrap())), content.sha256);
}

/// Answers to the requests for bytes, one after the other; then it behaves.
fn in_turn(acts: Vec<Act>) -> impl FnMut(&Asked) -> Act + Send {
    let mut acts = acts.into_iter();
    move |asked| if asked.is_file() { acts.next().unwrap_or_default() } else { Act::default() }
}

fn unfinished(models: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(models.join(".downloads")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

#[test]
fn a_model_is_fetched_checked_and_in_the_library() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 1);
    hub.add(REPOSITORY, "q8/Tiny é-Q8_0.gguf", content.clone());
    let desk = Desk::new(&hub);
    let started = desk.downloads.start(&request("q8/Tiny é-Q8_0.gguf")).unwrap();
    assert_eq!((started.phase, started.name.as_str()), (DownloadPhase::Waiting, "Tiny é-Q8_0"));
    let done = desk.end(&started.id);
    is(&done, &content);
    assert_eq!((done.done_bytes, done.total_bytes), (content.size(), Some(content.size())));
    assert_eq!(desk.models(), ["Tiny é-Q8_0.gguf"]);
    assert!(unfinished(desk.path()).is_empty());
    assert!(desk.events.iter().any(|event| event == LibraryEvent::Changed));
    assert_eq!(
        hunch_library::find("tiny é-q8_0", &Places::only(desk.path().into())).unwrap(),
        PathBuf::from(done.path.unwrap())
    );
    // Once more: it is here, and not a byte is fetched.
    let asked = hub.starts().len();
    is(&desk.fetch("q8/Tiny é-Q8_0.gguf"), &content);
    assert_eq!((hub.starts().len(), desk.models().len()), (asked, 1));
}

#[test]
fn a_pause_survives_a_restart() {
    let hub = TestHub::start();
    let content = model(4 * MIB, 4);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![
        Act { stall: Some(MIB), ..Act::default() },
        Act { stall: Some(MIB), ..Act::default() },
    ]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    desk.downloads.pause(&id).unwrap();
    assert_eq!(desk.wait(&id, |download| download.phase == DownloadPhase::Paused).done_bytes, MIB);
    // It goes on at once where it was.
    desk.downloads.resume(&id).unwrap();
    desk.wait(&id, |download| download.done_bytes == 2 * MIB);
    desk.downloads.pause(&id).unwrap();
    let desk = desk.restart(hub.config());
    let listed = desk.downloads.list();
    assert_eq!((listed[0].id.as_str(), listed[0].phase), (id.as_str(), DownloadPhase::Paused));
    assert_eq!((listed[0].done_bytes, listed[0].total_bytes), (2 * MIB, Some(content.size())));
    // What the person has paused does not go on by itself.
    desk.downloads.resume_interrupted();
    assert_eq!(desk.downloads.list()[0].phase, DownloadPhase::Paused);
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &content);
    assert_eq!(hub.starts(), [0, MIB, 2 * MIB]);
}

#[test]
fn what_was_under_way_goes_on_after_a_restart() {
    let hub = TestHub::start();
    let content = model(4 * MIB, 5);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    let desk = desk.restart(hub.config());
    assert_eq!(desk.models(), [""; 0]);
    desk.downloads.resume_interrupted();
    is(&desk.end(&id), &content);
    assert_eq!(hub.starts(), [0, MIB]);
}

#[test]
fn speed_and_estimate_are_told_while_bytes_come() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 16);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act { trickle: Some(16 << 10), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    let running = desk.wait(&id, |download| download.bytes_per_second.is_some());
    let (speed, left) = (running.bytes_per_second.unwrap(), running.seconds_left.unwrap());
    let expected = (content.size() - running.done_bytes) as f64 / speed;
    assert!((left - expected).abs() < 1e-6, "{running:?}");
    let done = desk.end(&id);
    assert_eq!((done.bytes_per_second, done.seconds_left), (None, None));
}

#[test]
fn two_programs_do_not_fetch_the_same_file() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 22);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let other = Downloads::open(desk.path(), hub.config(), settings()).unwrap();
    let (heard, _told) = watch(&other);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    // The other sees it, and that it is not its own.
    let seen = &other.list()[0];
    assert_eq!((seen.id.as_str(), seen.done_bytes), (id.as_str(), MIB));
    assert_eq!(seen.error.as_ref().unwrap().code, ErrorCode::DownloadElsewhere);
    other.start(&request("m.gguf")).unwrap();
    let refused = wait(&heard, &id, |download| download.phase == DownloadPhase::Failed);
    assert_eq!(refused.error.unwrap().code, ErrorCode::DownloadElsewhere);
    other.remove(&id).unwrap();
    // One thing after the other: this is refused after the removal was.
    other.start(&request("m.gguf")).unwrap();
    wait(&heard, &id, |download| download.phase == DownloadPhase::Failed);
    assert_eq!(desk.part_bytes(&id), MIB, "it is not touched");
    // When the first lets go, the other goes on.
    desk.downloads.pause(&id).unwrap();
    desk.wait(&id, |download| download.phase == DownloadPhase::Paused);
    let mut ended = None;
    while ended.is_none() {
        other.resume(&id).unwrap();
        let download = wait(&heard, &id, |download| {
            matches!(download.phase, DownloadPhase::Done | DownloadPhase::Failed)
        });
        // The first may still be writing down that it is paused.
        ended = (download.phase == DownloadPhase::Done).then_some(download);
    }
    is(&ended.unwrap(), &content);
    assert_eq!(hub.starts(), [0, MIB]);
    assert_eq!(desk.downloads.list().len(), 0, "and the first sees that it is gone");
    assert_eq!(desk.models(), ["m.gguf"]);
}

#[test]
fn a_model_in_parts_is_there_when_all_of_them_are() {
    let hub = TestHub::start();
    let tiny = Tiny { dtype: GgmlDType::Q8_0, seed: 30, ..Tiny::default() };
    let split = tiny.writer().split(3);
    let parts: Vec<Content> =
        split.iter().enumerate().map(|(i, part)| Content::padded(part.bytes(), 2 * MIB, i as u64)).collect();
    for (index, part) in parts.iter().enumerate() {
        hub.add(REPOSITORY, &format!("big-Q8_0-{:05}-of-00003.gguf", index + 1), part.clone());
    }
    hub.act(|asked| {
        let stall =
            (asked.is_file() && asked.path.contains("00003-of") && asked.from.is_none()).then_some(MIB);
        Act { stall, ..Act::default() }
    });
    let desk = Desk::new(&hub);
    let listed = desk.downloads.repository(REPOSITORY).unwrap().files;
    assert_eq!((listed.len(), listed[0].parts, listed[0].quantisation.as_str()), (1, 3, "Q8_0"));
    let id = desk.start(&listed[0].path);
    desk.wait(&id, |download| download.done_bytes == 5 * MIB);
    assert_eq!(desk.models(), [""; 0], "two of three are no model");
    desk.downloads.pause(&id).unwrap();
    desk.downloads.resume(&id).unwrap();
    let done = desk.end(&id);
    assert_eq!((done.phase, done.name.as_str()), (DownloadPhase::Done, "big-Q8_0"));
    let names: Vec<String> = (1..=3).map(|n| format!("big-Q8_0-{n:05}-of-00003.gguf")).collect();
    assert_eq!(desk.models(), names);
    for (name, part) in names.iter().zip(&parts) {
        assert_eq!(sha256(&desk.path().join(name)), part.sha256);
    }
    let path = PathBuf::from(done.path.unwrap());
    assert!(path.ends_with(&names[0]));
    // And it is a model, whole.
    let entry = hunch_library::inspect(&path).unwrap().entry;
    assert_eq!((entry.name.as_str(), entry.parts, entry.problem), ("big-Q8_0", 3, None));
    let whole = tiny.write(desk.path(), "whole");
    let bytes = |path: &Path| WeightFile::open(path).unwrap().weight_bytes();
    assert_eq!(bytes(&path), bytes(&whole));
    let again = hub.starts().into_iter().filter(|from| *from > 0).collect::<Vec<u64>>();
    assert_eq!(again, [MIB], "only what was missing came after the pause");
}

#[test]
fn a_few_files_come_at_a_time_and_the_others_wait() {
    let hub = TestHub::start();
    let names: Vec<String> = (0..7).map(|n| format!("m{n}.gguf")).collect();
    for (seed, name) in names.iter().enumerate() {
        hub.add(REPOSITORY, name, model(0, 40 + seed as u64));
    }
    hub.act(|asked| Act { trickle: asked.is_file().then_some(128 << 10), ..Act::default() });
    let desk = Desk::new(&hub);
    let ids: Vec<String> = names.iter().map(|name| desk.start(name)).collect();
    let mut open = ids.clone();
    let mut waited = false;
    while !open.is_empty() {
        if let LibraryEvent::Download { download } = desk.events.recv_timeout(PATIENCE).unwrap() {
            waited |= download.phase == DownloadPhase::Waiting && download.total_bytes.is_some();
            assert_ne!(download.phase, DownloadPhase::Failed, "{download:?}");
            open.retain(|id| *id != download.id || download.phase != DownloadPhase::Done);
        }
    }
    assert!(waited);
    assert_eq!(hub.most_sending(), 3);
    assert_eq!(desk.models(), names);
}

#[test]
fn another_model_of_the_same_name_is_left_alone() {
    let hub = TestHub::start();
    let content = model(0, 50);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let desk = Desk::new(&hub);
    std::fs::write(desk.path().join("m.gguf"), b"mine").unwrap();
    let done = desk.fetch("m.gguf");
    is(&done, &content);
    assert_eq!((done.name.as_str(), desk.models()), ("m-2", vec!["m-2.gguf".into(), "m.gguf".into()]));
    assert_eq!(std::fs::read(desk.path().join("m.gguf")).unwrap(), b"mine");
}

#[test]
fn a_download_that_is_removed_leaves_nothing() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 51));
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    desk.downloads.remove(&id).unwrap();
    while desk.events.recv_timeout(PATIENCE).unwrap() != (LibraryEvent::DownloadGone { id: id.clone() }) {}
    assert_eq!((desk.downloads.list().len(), unfinished(desk.path()).len()), (0, 0));
    assert_eq!(desk.downloads.resume(&id).unwrap_err().code(), ErrorCode::InvalidRequest);
    // Of one that is done the model stays.
    let done = desk.fetch("m.gguf");
    desk.downloads.remove(&done.id).unwrap();
    while desk.events.recv_timeout(PATIENCE).unwrap() != (LibraryEvent::DownloadGone { id: id.clone() }) {}
    assert_eq!(desk.models(), ["m.gguf"]);
}

#[test]
fn sinks_hear_until_they_are_dropped() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 54));
    let desk = Desk::new(&hub);
    let heard = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&heard);
    let told = desk.downloads.subscribe(Box::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    desk.fetch("m.gguf");
    drop(told);
    let before = heard.load(Ordering::SeqCst);
    assert!(before > 1);
    desk.fetch("m.gguf");
    assert_eq!(heard.load(Ordering::SeqCst), before);
}

/// A failed download on disk, and who listens asks for the list with every event, as a window does.
#[test]
fn a_sink_may_ask_for_the_list_and_let_go_of_anything() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 60));
    let content = model(0, 61);
    hub.add(REPOSITORY, "other.gguf", content.clone());
    hub.act(|asked| {
        let stall = (asked.is_file() && asked.path.ends_with("m.gguf")).then_some(MIB);
        Act { stall, ..Act::default() }
    });
    let desk = Desk::new(&hub);
    let other = Downloads::open(desk.path(), hub.config(), settings()).unwrap();
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    // For another program the download has failed, because the first one is at it.
    let asked = other.clone();
    let (sender, listed) = channel();
    let told = other.subscribe(Box::new(move |event| drop(sender.send((event, asked.list())))));
    other.list();
    let (_, first) = listed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first[0].error.as_ref().unwrap().code, ErrorCode::DownloadElsewhere);
    desk.downloads.pause(&id).unwrap();
    desk.wait(&id, |download| download.phase == DownloadPhase::Paused);
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
    assert_eq!(phases[0], DownloadPhase::Waiting, "in the order of what happens");
    drop(told);
    assert!(listed.iter().count() < 10, "the sink is gone, and what it held");
    // One that drops itself, another one and the last of the downloads.
    let (_, aside) = watch(&other);
    let mine: Arc<Mutex<Option<Subscription>>> = Arc::default();
    let (itself, last) = (Arc::clone(&mine), other.clone());
    let mut held = Some((aside, last));
    let (sender, heard) = channel();
    let (go, wait) = channel();
    *mine.lock().unwrap() = Some(other.subscribe(Box::new(move |event| {
        // The first one comes out of the start below.
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
    assert_eq!(heard.iter().count(), 1);
}

#[test]
fn of_many_who_start_a_new_download_at_once_one_fetches_and_all_see_it() {
    let hub = TestHub::start();
    let content = model(MIB, 62);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    for _ in 0..20 {
        let desk = Desk::new(&hub);
        let before = hub.starts().len();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let started = desk.downloads.start(&request("m.gguf")).unwrap();
                    assert_ne!(started.phase, DownloadPhase::Paused);
                    assert_eq!(desk.downloads.list().len(), 1);
                });
            }
        });
        let started = desk.downloads.list().remove(0);
        if started.phase != DownloadPhase::Done {
            desk.end(&started.id);
        }
        is(&desk.downloads.list()[0], &content);
        assert_eq!(desk.models(), ["m.gguf"]);
        assert_eq!(hub.starts().len(), before + 1);
    }
}

/// Whatever a person presses in a row, what was pressed last is what happens.
#[test]
fn the_last_word_counts() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 63);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(|asked| Act { trickle: asked.is_file().then_some(64 << 10), ..Act::default() });
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    for _ in 0..20 {
        desk.downloads.pause(&id).unwrap();
        desk.downloads.resume(&id).unwrap();
    }
    desk.downloads.pause(&id).unwrap();
    let desk = desk.restart(hub.config());
    desk.downloads.resume_interrupted();
    assert_eq!(desk.downloads.list()[0].phase, DownloadPhase::Paused, "it was written down");
    hub.act(|_| Act::default());
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &content);
}
