//! Reads any bytes as the hub's answer about a repository, and any text as one of its names.

#![no_main]

use hunch_fuzz::{json, seeds};
use hunch_library::hub;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(init: seeds::write(seeds::listings), |bytes: &[u8]| {
    listing(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        names(text);
    }
    // Names inside a document are mutated as JSON.
    if let Ok(document) = serde_json::from_slice::<serde_json::Value>(bytes) {
        document["sha"].as_str().into_iter().for_each(names);
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed, fuzzer_mutate)
});

fn listing(bytes: &[u8]) {
    let Ok(repository) = hub::parse_listing("owner/name", bytes) else { return };
    assert!(repository.revision.bytes().all(|b| b.is_ascii_alphanumeric()), "it becomes a part of addresses");
    assert!(repository.files.is_sorted_by_key(|file| file.size_bytes));
    for file in &repository.files {
        assert!(hub::check_path(&file.path).is_ok(), "{:?} could leave its folder", file.path);
        assert!(file.parts >= 1);
        let is_hash =
            |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        assert!(file.sha256.as_deref().is_none_or(is_hash));
        // A listed file can be requested by its path, unless that is also the name of another file.
        if let Ok(chosen) = hub::choose_file(&repository, Some(&file.path)) {
            assert_eq!(chosen.path, file.path);
        }
        for part in 0..file.parts as usize {
            let local = hub::local_file(hub::short_name(&file.path), part, file.parts as usize);
            assert!(
                !local.contains(['/', '\\']) && hub::check_path(&local).is_ok(),
                "{local:?} as a file's name"
            );
        }
    }
    let _ = hub::choose_file(&repository, None);
}

fn names(text: &str) {
    if let Ok(repository) = hub::repository(text) {
        assert_eq!(hub::repository(&repository).ok().as_ref(), Some(&repository));
        assert!(!repository.contains("..") && repository.split('/').count() <= 2);
    }
    let _ = (hub::check_path(text).is_ok(), hub::short_name(text), hub::quantisation(text));
    if let Some((number, count)) = hub::part_number(text) {
        assert!((1..=count).contains(&number));
    }
}
