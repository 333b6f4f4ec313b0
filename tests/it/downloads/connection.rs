//! Downloads from a misbehaving Hub, and onto full disks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hunch_error::ErrorCode;
use hunch_library::download::DownloadSettings;
use hunch_library::hub::HubConfig;
use hunch_library::types::DownloadPhase;

use super::{MIB, REPOSITORY, TestDownloads, assert_done, in_sequence, model, settings, unfinished};
use crate::hub::{Behaviour, Content, Request, TestHub};

#[test]
fn downloads_200_mb_through_50_random_cuts() {
    let hub = TestHub::start();
    let content = model(200_000_000, 2);
    hub.add(REPOSITORY, "big.gguf", content.clone());
    let mut chance = 7u64;
    let cuts = (0..50).map(|_| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Behaviour::cut((chance >> 33) % 7_000_000)
    });
    hub.set_behaviour(in_sequence(cuts.collect()));
    let test = TestDownloads::new(&hub);
    assert_done(&test.fetch("big.gguf"), &content);
    let starts = hub.starts();
    assert!(starts.is_sorted(), "no byte was requested twice: {starts:?}");
    assert_eq!(starts.len(), 51);
}

#[test]
fn completes_when_cut_every_mebibyte() {
    let hub = TestHub::start();
    let content = model(9 * MIB + 5, 3);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(|request| if request.is_file() { Behaviour::cut(MIB) } else { Behaviour::default() });
    let test = TestDownloads::new(&hub);
    assert_done(&test.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), (0..10).map(|n| n * MIB).collect::<Vec<u64>>());
}

#[test]
fn retries_overload_and_server_errors() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 6);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![
        Behaviour::status(503),
        Behaviour::cut(MIB),
        Behaviour::status(429).with("Retry-After", "1"),
        Behaviour::status(500),
        Behaviour::status(504),
        // An expired storage address: the Hub issues another.
        Behaviour::status(403),
    ]));
    let test = TestDownloads::new(&hub);
    assert_done(&test.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, 0, MIB, MIB, MIB, MIB, MIB]);
    // Each attempt asks the Hub for a fresh address.
    let resolved = hub.requests().iter().filter(|request| request.path.contains("/resolve/")).count();
    assert_eq!(resolved, hub.starts().len());
}

/// Uses the default waits with a fake sleep.
#[test]
fn waits_between_retries_grow_and_respect_retry_after() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 24);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let busy = || Behaviour::status(429).with("Retry-After", "120");
    hub.set_behaviour(in_sequence(vec![
        Behaviour::status(503),
        Behaviour::status(503),
        busy(),
        Behaviour::status(503),
        Behaviour::cut(MIB),
        Behaviour::status(503),
    ]));
    let waited: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let recorded_waits = Arc::clone(&waited);
    let attempts = {
        let hub = hub.clone();
        move || hub.starts().len()
    };
    let attempts_at_wait: Arc<Mutex<Vec<usize>>> = Arc::default();
    let recorded = Arc::clone(&attempts_at_wait);
    let sleep = Arc::new(move |time| {
        recorded_waits.lock().unwrap().push(time);
        recorded.lock().unwrap().push(attempts());
        Box::pin(std::future::ready(())) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    });
    let usual = DownloadSettings::default();
    let patient = DownloadSettings { sleep, free_space: settings().free_space, ..usual };
    assert_done(&TestDownloads::with(hub.config(), patient).fetch("m.gguf"), &content);
    assert_eq!(*attempts_at_wait.lock().unwrap(), [1, 2, 3, 4, 5, 6], "one wait before each retry");
    let seconds: Vec<f64> = waited.lock().unwrap().iter().map(Duration::as_secs_f64).collect();
    // Jitter at most doubles each wait. A longer `Retry-After` wins. Progress resets the backoff.
    let expected = [(1.0, 2.0), (2.0, 4.0), (120.0, 120.0), (8.0, 16.0), (1.0, 2.0), (2.0, 4.0)];
    for (wait, (least, most)) in seconds.iter().zip(expected) {
        assert!((least..=most).contains(wait), "{seconds:?}");
    }
}

#[test]
fn listing_gives_up_soon_on_a_busy_hub() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(0, 25));
    hub.set_behaviour(|_| Behaviour::status(429).with("Retry-After", "3600"));
    let waited: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let recorded_waits = Arc::clone(&waited);
    let sleep = Arc::new(move |time| {
        recorded_waits.lock().unwrap().push(time);
        Box::pin(std::future::ready(())) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    });
    let test = TestDownloads::with(hub.config(), DownloadSettings { sleep, ..DownloadSettings::default() });
    let error = test.downloads.repository(REPOSITORY).unwrap_err().to_string();
    assert!(error.contains("too many"), "{error}");
    assert!(error.contains("Try again in 3600 s"), "{error}");
    assert!(waited.lock().unwrap().is_empty(), "nobody waits an hour for a list");
    hub.set_behaviour(|_| Behaviour::status(429).with("Retry-After", "4"));
    test.downloads.repository(REPOSITORY).unwrap_err();
    assert_eq!(*waited.lock().unwrap(), [Duration::from_secs(4); 2]);
}

#[test]
fn restarts_when_the_range_is_refused_or_wrong() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 6);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let elsewhere = Behaviour { shift: 5, ..Behaviour::default() };
    hub.set_behaviour(in_sequence(vec![
        Behaviour::cut(MIB),
        Behaviour::status(416),
        Behaviour::cut(MIB + 5),
        elsewhere,
    ]));
    let test = TestDownloads::new(&hub);
    assert_done(&test.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, MIB, 0, MIB + 5, 0]);
}

#[test]
fn restarts_when_ranges_are_not_supported() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 7);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![
        Behaviour::cut(MIB),
        Behaviour { whole: true, ..Behaviour::default() },
    ]));
    let test = TestDownloads::new(&hub);
    assert_done(&test.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, MIB]);
    // A transfer that never gets further fails, although bytes arrive each time.
    hub.add(REPOSITORY, "n.gguf", model(2 * MIB, 8));
    hub.set_behaviour(|request| {
        if request.is_file() {
            Behaviour { whole: true, ..Behaviour::cut(MIB) }
        } else {
            Behaviour::default()
        }
    });
    let ended = test.fetch("n.gguf");
    assert_eq!((ended.phase, ended.error.unwrap().code), (DownloadPhase::Failed, ErrorCode::HubUnreachable));
}

#[test]
fn refuses_a_file_of_the_wrong_length() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 9);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let test = TestDownloads::new(&hub);
    hub.set_behaviour(|request| {
        if request.is_file() { Behaviour { longer: 1, ..Behaviour::default() } } else { Behaviour::default() }
    });
    assert_eq!(test.fails("m.gguf").0, ErrorCode::HubUnreachable);
    hub.set_behaviour(|_| Behaviour::default());
    assert_done(&test.fetch("m.gguf"), &content);
}

#[test]
fn wrong_checksum_is_reported_quarantined_and_restarted() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 10);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let test = TestDownloads::new(&hub);
    hub.set_behaviour(in_sequence(vec![Behaviour { corrupt: true, ..Behaviour::default() }]));
    let (code, message) = test.fails("m.gguf");
    assert_eq!(code, ErrorCode::WrongChecksum);
    assert!(message.contains(&content.sha256[..12]) && message.contains("m.gguf.bad-checksum"), "{message}");
    let aside = unfinished(test.path())[0].join("m.gguf.bad-checksum");
    assert_eq!(std::fs::metadata(aside).unwrap().len(), content.size());
    assert_done(&test.fetch("m.gguf"), &content);
    assert_eq!(hub.starts(), [0, 0]);
}

#[test]
fn file_that_is_not_gguf_is_quarantined() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", Content::new(b"<html>not a model</html>".to_vec()));
    let test = TestDownloads::new(&hub);
    let (code, message) = test.fails("m.gguf");
    assert_eq!(code, ErrorCode::InvalidModelFile);
    assert!(message.contains("m.gguf.not-a-model"), "{message}");
}

#[test]
fn file_replaced_midway_is_downloaded_again() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(4 * MIB, 11));
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    test.downloads.pause(&id).unwrap();
    let new = model(3 * MIB, 12);
    hub.add(REPOSITORY, "m.gguf", new.clone());
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &new);
    assert_eq!(hub.starts(), [0, 0], "the new file contains no byte of the old one");
}

#[test]
fn changed_etag_triggers_a_new_listing() {
    let hub = TestHub::start();
    let content = model(4 * MIB, 13);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let mut resolved = 0;
    let changing = |request: &Request| request.path.contains("/resolve/");
    hub.set_behaviour(move |request| {
        resolved += usize::from(changing(request));
        let etag = (changing(request) && resolved == 2).then(|| "0".repeat(64));
        Behaviour { etag, cut: (request.is_file() && resolved == 1).then_some(MIB), ..Behaviour::default() }
    });
    let test = TestDownloads::new(&hub);
    assert_done(&test.fetch("m.gguf"), &content);
    // The Hub was listed again, and the file was unchanged.
    assert_eq!(hub.requests().iter().filter(|request| request.path.starts_with("/api/")).count(), 2);
    assert_eq!(hub.starts().last(), Some(&MIB));
    // A file that never matches its listing fails.
    hub.add(REPOSITORY, "n.gguf", model(4 * MIB, 14));
    hub.set_behaviour(move |request| Behaviour {
        etag: changing(request).then(|| "0".repeat(64)),
        ..Behaviour::default()
    });
    let ended = test.fetch("n.gguf");
    assert_eq!((ended.phase, ended.error.unwrap().code), (DownloadPhase::Failed, ErrorCode::HubUnreachable));
}

#[test]
fn only_stalled_connections_are_retried_not_slow_ones() {
    let hub = TestHub::start();
    let content = model(0, 15);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    let trickle = Behaviour { trickle: Some(64 << 10), ..Behaviour::default() };
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(1000), ..Behaviour::default() }, trickle]));
    // Long enough for the phase to be published.
    let wait = Duration::from_millis(500);
    let settings =
        DownloadSettings { stall_timeout: wait, min_backoff: wait, max_backoff: wait, ..settings() };
    let test = TestDownloads::with(hub.config(), settings);
    let id = test.start("m.gguf");
    let retrying = test.wait(&id, |download| download.phase == DownloadPhase::Retrying);
    assert!(retrying.error.unwrap().message.contains("the connection stalled"));
    assert_done(&test.end(&id), &content);
    assert_eq!(hub.starts(), [0, 1000]);
}

#[test]
fn unreachable_hub_is_reported_and_partial_file_kept() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 17);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    // Nothing listens on this port: the listener is dropped.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let test = test.restart(HubConfig { endpoint: format!("http://{nobody}"), ..hub.config() });
    test.downloads.resume(&id).unwrap();
    test.wait(&id, |download| download.phase == DownloadPhase::Retrying);
    let failed = test.end(&id);
    let error = failed.error.unwrap();
    assert_eq!((failed.phase, error.code), (DownloadPhase::Failed, ErrorCode::HubUnreachable));
    assert!(error.message.contains("no connection") && error.message.contains("kept"), "{}", error.message);
    assert_eq!((failed.done_bytes, test.part_bytes(&id)), (MIB, MIB));
    assert_eq!(test.downloads.repository("a/b").unwrap_err().code(), ErrorCode::HubUnreachable);
    let test = test.restart(hub.config());
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &content);
}

#[test]
fn insufficient_disk_space_is_reported_before_fetching() {
    let hub = TestHub::start();
    hub.add(REPOSITORY, "m.gguf", model(200_000_000, 20));
    let test = TestDownloads::with(
        hub.config(),
        DownloadSettings { free_space: Arc::new(|_| Some(100_000_000)), ..settings() },
    );
    let (code, message) = test.fails("m.gguf");
    assert_eq!(code, ErrorCode::DiskFull);
    assert!(message.contains("168 MB more"), "{message}");
    assert_eq!(hub.starts(), [0; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn disk_filling_up_fails_with_the_missing_bytes() {
    let hub = TestHub::start();
    let content = model(2 * MIB, 21);
    hub.add(REPOSITORY, "m.gguf", content.clone());
    hub.set_behaviour(in_sequence(vec![Behaviour { stall: Some(MIB), ..Behaviour::default() }]));
    let test = TestDownloads::new(&hub);
    let id = test.start("m.gguf");
    test.wait(&id, |download| download.done_bytes == MIB);
    test.downloads.pause(&id).unwrap();
    test.wait(&id, |download| download.phase == DownloadPhase::Paused);
    // A file to which every write fails.
    let part = test.path().join(".downloads").join(&id).join("00000.part");
    std::fs::remove_file(&part).unwrap();
    std::os::unix::fs::symlink("/dev/full", &part).unwrap();
    test.downloads.resume(&id).unwrap();
    let failed = test.end(&id);
    let error = failed.error.unwrap();
    assert_eq!((failed.phase, error.code), (DownloadPhase::Failed, ErrorCode::DiskFull), "{}", error.message);
    assert!(error.message.contains("3 MB more"), "{}", error.message);
    std::fs::remove_file(&part).unwrap();
    test.downloads.resume(&id).unwrap();
    assert_done(&test.end(&id), &content);
}
