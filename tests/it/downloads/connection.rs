//! A hub that misbehaves while bytes come, and disks that do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hunch_error::ErrorCode;
use hunch_library::download::DownloadSettings;
use hunch_library::hub::HubConfig;
use hunch_library::types::DownloadPhase;

use super::{Desk, MIB, REPOSITORY, in_turn, is, model, settings, unfinished};
use crate::hub::{Act, Asked, Content, TestHub};

#[test]
fn two_hundred_megabytes_come_whole_through_fifty_random_cuts() {
    let hub = TestHub::start();
    let content = model(200_000_000, 2);
    hub.add(REPOSITORY, "big.gguf", content.clone());
    let mut chance = 7u64;
    let cuts = (0..50).map(|_| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Act::cut((chance >> 33) % 7_000_000)
    });
    hub.act(in_turn(cuts.collect()));
    let desk = Desk::new(&hub);
    is(&desk.fetch("big.gguf"), &content);
    let starts = hub.starts();
    assert!(starts.is_sorted(), "what was here was never asked for again: {starts:?}");
    assert_eq!(starts.len(), 51);
}

#[test]
fn a_connection_that_is_cut_at_every_mebibyte_gets_there() {
    let hub = TestHub::start();
    let content = model(9 * MIB + 5, 3);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(|asked| if asked.is_file() { Act::cut(MIB) } else { Act::default() });
    let desk = Desk::new(&hub);
    is(&desk.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), (0..10).map(|n| n * MIB).collect::<Vec<u64>>());
}

#[test]
fn a_hub_that_is_busy_or_broken_for_a_while_is_asked_again() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 6);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![
        Act::status(503),
        Act::cut(MIB),
        Act::status(429).with("Retry-After", "1"),
        Act::status(500),
        Act::status(504),
        // An address of the storage that has expired: the hub is asked for another.
        Act::status(403),
    ]));
    let desk = Desk::new(&hub);
    is(&desk.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, 0, MIB, MIB, MIB, MIB, MIB]);
    // Each goes through the hub: its address is fresh.
    let resolved = hub.asked().iter().filter(|asked| asked.path.contains("/resolve/")).count();
    assert_eq!(resolved, hub.starts().len());
}

/// With the waits that a person has, none of which this test waits for.
#[test]
fn between_two_tries_there_is_a_wait_that_grows_and_that_the_hub_can_ask_for() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 24);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let busy = || Act::status(429).with("Retry-After", "120");
    hub.act(in_turn(vec![
        Act::status(503),
        Act::status(503),
        busy(),
        Act::status(503),
        Act::cut(MIB),
        Act::status(503),
    ]));
    let waited: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let waits = Arc::clone(&waited);
    let asked = {
        let hub = hub.clone();
        move || hub.starts().len()
    };
    let tries: Arc<Mutex<Vec<usize>>> = Arc::default();
    let tried = Arc::clone(&tries);
    let wait = Arc::new(move |time| {
        waits.lock().unwrap().push(time);
        tried.lock().unwrap().push(asked());
        Box::pin(std::future::ready(())) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    });
    let usual = DownloadSettings::default();
    let patient = DownloadSettings { wait, space: settings().space, ..usual };
    is(&Desk::with(hub.config(), patient).fetch("m.gguf"), &content);
    assert_eq!(*tries.lock().unwrap(), [1, 2, 3, 4, 5, 6], "one before every try but the first");
    let seconds: Vec<f64> = waited.lock().unwrap().iter().map(Duration::as_secs_f64).collect();
    // Each is longer by chance, up to twice as long. What the hub asks for counts where it is more; when bytes
    // have come it begins anew.
    let expected = [(1.0, 2.0), (2.0, 4.0), (120.0, 120.0), (8.0, 16.0), (1.0, 2.0), (2.0, 4.0)];
    for (wait, (least, most)) in seconds.iter().zip(expected) {
        assert!((least..=most).contains(wait), "{seconds:?}");
    }
}

#[test]
fn who_waits_for_an_answer_does_not_wait_long_for_a_busy_hub() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 25));
    hub.act(|_| Act::status(429).with("Retry-After", "3600"));
    let waited: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let waits = Arc::clone(&waited);
    let wait = Arc::new(move |time| {
        waits.lock().unwrap().push(time);
        Box::pin(std::future::ready(())) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    });
    let desk = Desk::with(hub.config(), DownloadSettings { wait, ..DownloadSettings::default() });
    let error = desk.downloads.repository(REPOSITORY).unwrap_err().to_string();
    assert!(error.contains("too many requests"), "{error}");
    assert_eq!(*waited.lock().unwrap(), [Duration::from_secs(5); 2]);
}

#[test]
fn a_hub_that_does_not_know_the_place_to_go_on_from_begins_anew() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 6);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let elsewhere = Act { shift: 5, ..Act::default() };
    hub.act(in_turn(vec![Act::cut(MIB), Act::status(416), Act::cut(MIB + 5), elsewhere]));
    let desk = Desk::new(&hub);
    is(&desk.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, MIB, 0, MIB + 5, 0]);
}

#[test]
fn a_hub_that_knows_no_ranges_is_read_from_the_beginning() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 7);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act::cut(MIB), Act { whole: true, ..Act::default() }]));
    let desk = Desk::new(&hub);
    is(&desk.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, MIB]);
    // One that never gets further is given up, though bytes come each time.
    hub.add(REPOSITORY, "n.gguf", model(2 * MIB, 8));
    hub.act(|asked| if asked.is_file() { Act { whole: true, ..Act::cut(MIB) } } else { Act::default() });
    let ended = desk.fetch("n.gguf");
    assert_eq!((ended.phase, ended.error.unwrap().code), (DownloadPhase::Failed, ErrorCode::HubUnreachable));
}

#[test]
fn a_file_of_another_length_is_no_model() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 9);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let desk = Desk::new(&hub);
    hub.act(|asked| if asked.is_file() { Act { longer: 1, ..Act::default() } } else { Act::default() });
    assert_eq!(desk.fails("m.gguf").0, ErrorCode::HubUnreachable);
    hub.act(|_| Act::default());
    is(&desk.fetch("m.gguf"), &content);
}

#[test]
fn a_wrong_checksum_is_reported_kept_aside_and_begun_anew() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 10);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let desk = Desk::new(&hub);
    hub.act(in_turn(vec![Act { spoilt: true, ..Act::default() }]));
    let (code, message) = desk.fails("m.gguf");
    assert_eq!(code, ErrorCode::WrongChecksum);
    assert!(message.contains(&content.sha256[..12]) && message.contains("m.gguf.bad-checksum"), "{message}");
    let aside = unfinished(desk.path())[0].join("m.gguf.bad-checksum");
    assert_eq!(std::fs::metadata(aside).unwrap().len(), content.size());
    is(&desk.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, 0]);
}

#[test]
fn what_is_not_a_model_is_kept_aside() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", Content::new(b"<html>not a model</html>".to_vec()));
    let desk = Desk::new(&hub);
    let (code, message) = desk.fails("m.gguf");
    assert_eq!(code, ErrorCode::InvalidModelFile);
    assert!(message.contains("m.gguf.not-a-model"), "{message}");
}

#[test]
fn a_file_that_is_replaced_midway_ends_as_the_new_one() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(4 * MIB, 11));
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    desk.downloads.pause(&id).unwrap();
    let new = model(3 * MIB, 12);
    hub.add(REPOSITORY, "m.gguf", new.clone());
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &new);
    assert_eq!(hub.starts(), [0, 0], "no byte of the old one is in the new one");
}

#[test]
fn a_tag_that_changes_between_two_requests_is_noticed() {
    let hub = TestHub::start();
    let content = model(4 * MIB, 13);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let mut resolved = 0;
    let changing = |asked: &Asked| asked.path.contains("/resolve/");
    hub.act(move |asked| {
        resolved += usize::from(changing(asked));
        let etag = (changing(asked) && resolved == 2).then(|| "0".repeat(64));
        Act { etag, cut: (asked.is_file() && resolved == 1).then_some(MIB), ..Act::default() }
    });
    let desk = Desk::new(&hub);
    is(&desk.fetch("m.gguf"), &content);
    // The hub was asked what the file is now, and it was the same.
    assert_eq!(hub.asked().iter().filter(|asked| asked.path.starts_with("/api/")).count(), 2);
    assert_eq!(hub.starts().last(), Some(&MIB));
    // One that never is what it says is given up.
    hub.add(REPOSITORY, "n.gguf", model(4 * MIB, 14));
    hub.act(move |asked| Act { etag: changing(asked).then(|| "0".repeat(64)), ..Act::default() });
    let ended = desk.fetch("n.gguf");
    assert_eq!((ended.phase, ended.error.unwrap().code), (DownloadPhase::Failed, ErrorCode::HubUnreachable));
}

#[test]
fn a_connection_over_which_nothing_comes_is_given_up_and_a_slow_one_is_not() {
    let hub = TestHub::start();
    let content = model(0, 15);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let trickle = Act { trickle: Some(64 << 10), ..Act::default() };
    hub.act(in_turn(vec![Act { stall: Some(1000), ..Act::default() }, trickle]));
    // Long enough to be told.
    let wait = Duration::from_millis(500);
    let settings = DownloadSettings { stall: wait, first_wait: wait, longest_wait: wait, ..settings() };
    let desk = Desk::with(hub.config(), settings);
    let id = desk.start("m.gguf");
    let retrying = desk.wait(&id, |download| download.phase == DownloadPhase::Retrying);
    assert!(retrying.error.unwrap().message.contains("nothing came any more"));
    is(&desk.end(&id), &content);
    assert_eq!(hub.starts(), [0, 1000]);
}

#[test]
fn without_a_network_it_says_so_and_keeps_what_is_here() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 17);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    // Nobody listens on this port: it was given and given back.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let desk = desk.restart(HubConfig { endpoint: format!("http://{nobody}"), ..hub.config() });
    desk.downloads.resume(&id).unwrap();
    desk.wait(&id, |download| download.phase == DownloadPhase::Retrying);
    let failed = desk.end(&id);
    let error = failed.error.unwrap();
    assert_eq!((failed.phase, error.code), (DownloadPhase::Failed, ErrorCode::HubUnreachable));
    assert!(error.message.contains("no connection") && error.message.contains("kept"), "{}", error.message);
    assert_eq!((failed.done_bytes, desk.part_bytes(&id)), (MIB, MIB));
    assert_eq!(desk.downloads.repository("a/b").unwrap_err().code(), ErrorCode::HubUnreachable);
    let desk = desk.restart(hub.config());
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &content);
}

#[test]
fn a_disk_without_room_is_told_before_a_byte_is_fetched() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(200_000_000, 20));
    let desk =
        Desk::with(hub.config(), DownloadSettings { space: Arc::new(|_| Some(100_000_000)), ..settings() });
    let (code, message) = desk.fails("m.gguf");
    assert_eq!(code, ErrorCode::DiskFull);
    assert!(message.contains("168 MB more"), "{message}");
    assert_eq!(hub.starts(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_up_ends_it_with_what_is_missing() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 21);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.act(in_turn(vec![Act { stall: Some(MIB), ..Act::default() }]));
    let desk = Desk::new(&hub);
    let id = desk.start("m.gguf");
    desk.wait(&id, |download| download.done_bytes == MIB);
    desk.downloads.pause(&id).unwrap();
    desk.wait(&id, |download| download.phase == DownloadPhase::Paused);
    // A file that no byte more can be written to.
    let part = desk.path().join(".downloads").join(&id).join("00000.part");
    std::fs::remove_file(&part).unwrap();
    std::os::unix::fs::symlink("/dev/full", &part).unwrap();
    desk.downloads.resume(&id).unwrap();
    let failed = desk.end(&id);
    let error = failed.error.unwrap();
    assert_eq!((failed.phase, error.code), (DownloadPhase::Failed, ErrorCode::DiskFull), "{}", error.message);
    assert!(error.message.contains("3 MB more"), "{}", error.message);
    std::fs::remove_file(&part).unwrap();
    desk.downloads.resume(&id).unwrap();
    is(&desk.end(&id), &content);
}
