//! What the disk has room for, what it keeps of a download, and what is still to be had when that is damaged.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hunch_error::ErrorCode;
use hunch_library::download::{DownloadSettings, Downloads};
use hunch_library::types::{DownloadPhase, LibraryEvent};

use super::{
    Desk, MIB, PATIENCE, REPOSITORY, in_turn, is, model, request, settings, unfinished, wait, watch,
};
use crate::hub::{Act, TestHub};

/// What is left free besides.
const SPARE: u64 = 64 * MIB;

/// Settings for a disk with so many bytes beside those, whatever is written.
fn with_room(bytes: u64) -> DownloadSettings {
    DownloadSettings { space: Arc::new(move |_| Some(SPARE + bytes)), ..settings() }
}

#[test]
fn two_downloads_are_not_promised_the_same_room() {
    let hub = TestHub::start();
    let contents = [model(4 * MIB, 80), model(4 * MIB, 81)];
    for (name, content) in ["one.gguf", "two.gguf"].into_iter().zip(&contents) {
        hub.add(REPOSITORY, name, content.clone());
    }
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    // For either, not for the 3 MiB that are left of the first and the 4 of the second.
    let desk = Desk::with(hub.config(), with_room(5 * MIB));
    let one = desk.start("one.gguf");
    desk.wait(&one, |download| download.done_bytes == MIB);
    let two = desk.start("two.gguf");
    let failed = desk.wait(&two, |download| download.phase == DownloadPhase::Failed);
    let error = failed.error.unwrap();
    assert_eq!(error.code, ErrorCode::DiskFull);
    assert!(error.message.contains("3 MB more"), "{}", error.message);
    assert!(error.message.contains("4 MB that other downloads still need"), "{}", error.message);
    assert_eq!(hub.starts(), [0], "not a byte of it was asked for");
    // Another program sees what the first one needs, too.
    let other = Downloads::open(desk.path(), hub.config(), with_room(5 * MIB)).unwrap();
    let (heard, told) = watch(&other);
    other.start(&request("two.gguf")).unwrap();
    let failed = wait(&heard, &two, |download| download.phase == DownloadPhase::Failed);
    assert!(failed.error.unwrap().message.contains("that other downloads still need"));
    drop((told, other));
    // One that is paused has been promised nothing, from that moment on.
    desk.downloads.pause(&one).unwrap();
    desk.downloads.resume(&two).unwrap();
    is(&desk.end(&two), &contents[1]);
    desk.downloads.resume(&one).unwrap();
    is(&desk.end(&one), &contents[0]);
}

#[test]
fn a_download_that_nothing_is_known_of_any_more_is_shown_and_can_be_taken_away() {
    let hub = TestHub::start();
    let content = model(3 * MIB, 82);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let stall = || in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]);
    hub.act(stall());
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    let desk = desk.restart(hub.config());
    // As a power cut leaves a file whose bytes never came to the disk.
    let state = unfinished(desk.path())[0].join("state.json");
    std::fs::write(&state, "").unwrap();
    let desk = desk.restart(hub.config());
    let lost = desk.downloads.list().remove(0);
    assert_eq!((lost.id.as_str(), lost.phase, lost.done_bytes), (id.as_str(), DownloadPhase::Failed, MIB));
    let error = lost.error.unwrap();
    assert_eq!(error.code, ErrorCode::DownloadUnreadable);
    assert!(error.message.contains(&id) && error.message.contains("2 MB"), "{}", error.message);
    // Nothing tells what to go on with.
    desk.downloads.resume_interrupted();
    assert_eq!(desk.downloads.resume(&id).unwrap_err().to_string(), error.message);
    assert_eq!(desk.part_bytes(&id), MIB);
    // Who asks for the same file again gets it, by the same number.
    hub.act(stall());
    assert_eq!(desk.start("m.gguf"), id);
    let known = desk.wait(&id, |download| download.done_bytes == MIB && download.total_bytes.is_some());
    assert_eq!((known.name.as_str(), known.request.file.as_str()), ("m", "m.gguf"));
    let desk = desk.restart(hub.config());
    assert_eq!(desk.downloads.list()[0].name, "m");
    // Lost once more, it can be taken away.
    std::fs::remove_file(&state).unwrap();
    let desk = desk.restart(hub.config());
    assert_eq!(desk.downloads.list()[0].phase, DownloadPhase::Failed);
    desk.downloads.remove(&id).unwrap();
    while desk.events.recv_timeout(PATIENCE).unwrap() != (LibraryEvent::DownloadGone { id: id.clone() }) {}
    assert_eq!((desk.downloads.list().len(), unfinished(desk.path()).len()), (0, 0));
    is(&desk.fetch("m.gguf"), &content);
}

#[test]
fn one_that_is_lost_goes_from_the_list_with_its_folder() {
    let hub = TestHub::start();
    let desk = Desk::new(&hub);
    let folder = desk.path().join(".downloads/0123456789abcdef");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("00000.part"), "bytes").unwrap();
    assert_eq!(desk.downloads.list().len(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(desk.downloads.list(), []);
}

/// An end as it was told, whether the disk says then that the download is to go on (if it says anything), and
/// whether the model is there.
type End = (DownloadPhase, Option<bool>, bool);

/// What is told of an end is on disk by then, so that whoever acts on it acts on what is.
#[test]
fn an_end_is_remembered_before_it_is_told() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 83);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let mut first = true;
    hub.act(move |asked| Act {
        status: (asked.is_file() && std::mem::take(&mut first)).then_some(416),
        ..Act::default()
    });
    let desk = Desk::with(hub.config(), DownloadSettings { tries: 0, ..settings() });
    let models = desk.path().to_owned();
    let on_disk: Arc<Mutex<Vec<End>>> = Arc::default();
    let seen = Arc::clone(&on_disk);
    let _told = desk.downloads.subscribe(Box::new(move |event| {
        let LibraryEvent::Download { download } = event else { return };
        if matches!(download.phase, DownloadPhase::Failed | DownloadPhase::Done) {
            let state = std::fs::read(models.join(".downloads").join(&download.id).join("state.json")).ok();
            let wanted = state.map(|state| {
                serde_json::from_slice::<serde_json::Value>(&state).unwrap()["wanted"].as_bool().unwrap()
            });
            seen.lock().unwrap().push((download.phase, wanted, models.join("m.gguf").exists()));
        }
    }));
    let id = desk.start("m.gguf");
    let failed = desk.end(&id);
    assert_eq!(failed.phase, DownloadPhase::Failed);
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &content);
    // Whoever subscribed later is told later.
    let told = || on_disk.lock().unwrap().iter().any(|(phase, ..)| *phase == DownloadPhase::Done);
    let begun = Instant::now();
    while !told() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let ends = on_disk.lock().unwrap();
    let (failed, done) =
        ends.split_at(ends.iter().take_while(|(phase, ..)| *phase == DownloadPhase::Failed).count());
    assert!(
        !failed.is_empty() && failed.iter().all(|end| *end == (DownloadPhase::Failed, Some(false), false)),
        "{ends:?}"
    );
    assert_eq!(done, [(DownloadPhase::Done, None, true)], "the model is there and nothing else is");
}

#[test]
fn the_last_event_is_the_end_and_what_it_says_is_remembered() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(2 * MIB, 84));
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    desk.downloads.pause(&id).unwrap();
    let paused = desk.wait(&id, |download| download.phase == DownloadPhase::Paused);
    // The program ends with the word; a download that was only told to pause would go on by itself.
    let desk = desk.restart(hub.config());
    desk.downloads.resume_interrupted();
    assert_eq!(desk.downloads.list(), [paused]);
    assert_eq!(hub.starts(), [0]);
    // When it is done, that is the last that is told of it.
    desk.downloads.resume(&id).unwrap();
    let done = desk.end(&id);
    assert_eq!(done.phase, DownloadPhase::Done);
    assert_eq!(desk.downloads.list(), [done]);
    let Desk { downloads, events, _told, .. } = desk;
    drop((downloads, _told));
    let later: Vec<LibraryEvent> = events.iter().collect();
    assert!(later.iter().all(|event| *event == LibraryEvent::Changed), "{later:?}");
}
