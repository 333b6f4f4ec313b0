//! Disk space reservations, the state on disk, and recovery when it is corrupt.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hunch_error::ErrorCode;
use hunch_library::download::{DownloadSettings, Downloads};
use hunch_library::types::{DownloadPhase, LibraryEvent};

use super::{
    MIB, PATIENCE, REPOSITORY, TestDownloads, assert_done, in_sequence, model, request, settings, unfinished,
    wait, watch,
};
use crate::hub::{Behaviour, TestHub};

/// Bytes that downloads leave free.
const SPARE: u64 = 64 * MIB;

/// Settings for a disk with this much usable space, regardless of writes.
fn with_room(bytes: u64) -> DownloadSettings {
    DownloadSettings { free_space: Arc::new(move |_| Some(SPARE + bytes)), ..settings() }
}

#[test]
fn two_downloads_do_not_reserve_the_same_space() {
    let hub = TestHub::start();
    let contents = [model(4 * MIB, 80), model(4 * MIB, 81)];
    for (name, content) in ["one.gguf", "two.gguf"].into_iter().zip(&contents) {
        hub.add(REPOSITORY, name, content.clone());
    }
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    // Enough for either, but not for the 3 MiB left of the first and the 4 MiB of the second.
    let test = TestDownloads::with(hub.config(), with_room(5 * MIB));
    let one = test.start("one.gguf");
    test.wait(&one, |download| download.done_bytes == MIB);
    let two = test.start("two.gguf");
    let failed = test.wait(&two, |download| download.phase == DownloadPhase::Failed);
    let error = failed.error.unwrap();
    assert_eq!(error.code, ErrorCode::DiskFull);
    assert!(error.message.contains("3 MB more"), "{}", error.message);
    assert!(error.message.contains("4 MB that other downloads still need"), "{}", error.message);
    assert_eq!(hub.starts(), [0], "it was never requested");
    // Another program sees the first one's needs, too.
    let other = Downloads::open(test.path(), hub.config(), with_room(5 * MIB)).unwrap();
    let (events, subscription) = watch(&other);
    other.start(&request("two.gguf")).unwrap();
    let failed = wait(&events, &two, |download| download.phase == DownloadPhase::Failed);
    assert!(failed.error.unwrap().message.contains("that other downloads still need"));
    drop((subscription, other));
    // A paused download releases its reservation at once.
    test.downloads.pause(&one).unwrap();
    test.downloads.resume(&two).unwrap();
    assert_done(&test.end(&two), &contents[1]);
    test.downloads.resume(&one).unwrap();
    assert_done(&test.end(&one), &contents[0]);
}

#[test]
fn download_with_corrupt_state_is_listed_and_can_be_removed() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 82);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let stall = || in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]);
    hub.set_behaviour(stall());
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    let test = test.restart(hub.config());
    // As after a power cut before the file's bytes were written.
    let state = unfinished(test.path())[0].join("state.json");
    std::fs::write(&state, "").unwrap();
    let test = test.restart(hub.config());
    let lost = test.downloads.list().remove(0);
    assert_eq!((lost.id.as_str(), lost.phase, lost.done_bytes), (id.as_str(), DownloadPhase::Failed, MIB));
    let error = lost.error.unwrap();
    assert_eq!(error.code, ErrorCode::DownloadUnreadable);
    assert!(error.message.contains(&id) && error.message.contains("2 MB"), "{}", error.message);
    // It cannot be resumed.
    test.downloads.resume_interrupted();
    assert_eq!(test.downloads.resume(&id).unwrap_err().to_string(), error.message);
    assert_eq!(test.part_bytes(&id), MIB);
    // Starting the same file again restores it under the same id.
    hub.set_behaviour(stall());
    assert_eq!(test.start("m.gguf"), id);
    let known = test.wait(&id, |download| download.done_bytes == MIB && download.total_bytes.is_some());
    assert_eq!((known.name.as_str(), known.request.file.as_str()), ("m", "m.gguf"));
    let test = test.restart(hub.config());
    assert_eq!(test.downloads.list()[0].name, "m");
    // Corrupt once more, it can be removed.
    std::fs::remove_file(&state).unwrap();
    let test = test.restart(hub.config());
    assert_eq!(test.downloads.list()[0].phase, DownloadPhase::Failed);
    test.downloads.remove(&id).unwrap();
    while test.events.recv_timeout(PATIENCE).unwrap() != (LibraryEvent::DownloadGone { id: id.clone() }) {}
    assert_eq!((test.downloads.list().len(), unfinished(test.path()).len()), (0, 0));
    assert_done(&test.fetch("m.gguf"), &content);
}

#[test]
fn unreadable_download_leaves_the_list_with_its_folder() {
    let hub = TestHub::start();
    let test = TestDownloads::new(&hub);
    let folder = test.path().join(".downloads/0123456789abcdef");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("00000.part"), "bytes").unwrap();
    assert_eq!(test.downloads.list().len(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(test.downloads.list(), []);
}

/// An end event: its phase, the state file's `wanted` flag, and whether the model exists. The flag is
/// `None` without a state file.
type End = (DownloadPhase, Option<bool>, bool);

/// Subscribers may act on an end event, so the disk must match it.
#[test]
fn end_is_on_disk_before_its_event() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 83);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let mut first = true;
    hub.set_behaviour(move |request| Behaviour {
        status: (request.is_file() && std::mem::take(&mut first)).then_some(416),
        ..Behaviour::default()
    });
    let test = TestDownloads::with(hub.config(), DownloadSettings { max_retries: 0, ..settings() });
    let models = test.path().to_owned();
    let on_disk: Arc<Mutex<Vec<End>>> = Arc::default();
    let seen = Arc::clone(&on_disk);
    let _subscription = test.downloads.subscribe(Box::new(move |event| {
        let LibraryEvent::Download { download } = event else { return };
        if matches!(download.phase, DownloadPhase::Failed | DownloadPhase::Done) {
            let state = std::fs::read(models.join(".downloads").join(&download.id).join("state.json")).ok();
            let wanted = state.map(|state| {
                serde_json::from_slice::<serde_json::Value>(&state).unwrap()["wanted"].as_bool().unwrap()
            });
            seen.lock().unwrap().push((download.phase, wanted, models.join("m.gguf").exists()));
        }
    }));
    let id = test.start("m.gguf");
    let failed = test.end(&id);
    assert_eq!(failed.phase, DownloadPhase::Failed);
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &content);
    // Later subscribers are notified later.
    let done_reported = || on_disk.lock().unwrap().iter().any(|(phase, ..)| *phase == DownloadPhase::Done);
    let begun = Instant::now();
    while !done_reported() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let ends = on_disk.lock().unwrap();
    let (failed, done) =
        ends.split_at(ends.iter().take_while(|(phase, ..)| *phase == DownloadPhase::Failed).count());
    assert!(
        !failed.is_empty() && failed.iter().all(|end| *end == (DownloadPhase::Failed, Some(false), false)),
        "{ends:?}"
    );
    assert_eq!(done, [(DownloadPhase::Done, None, true)], "only the model remains");
}

#[test]
fn last_event_matches_the_stored_state() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 84));
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    test.downloads.pause(&id).unwrap();
    let paused = test.wait(&id, |download| download.phase == DownloadPhase::Paused);
    // The program ends right after the event. A pause that was not stored would resume by itself.
    let test = test.restart(hub.config());
    test.downloads.resume_interrupted();
    assert_eq!(test.downloads.list(), [paused]);
    assert_eq!(hub.starts(), [0]);
    // The end is the download's last event.
    test.downloads.resume(&id).unwrap();
    let done = test.end(&id);
    assert_eq!(done.phase, DownloadPhase::Done);
    assert_eq!(test.downloads.list(), [done]);
    let TestDownloads { downloads, events, _subscription, .. } = test;
    drop((downloads, _subscription));
    let later: Vec<LibraryEvent> = events.iter().collect();
    assert!(later.iter().all(|event| *event == LibraryEvent::Changed), "{later:?}");
}
