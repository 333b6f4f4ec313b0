//! Lists the models on this machine: files found in the places, with their headers.

use std::path::Path;

use super::candidates::{ModelCandidate, find_candidates};
use super::header_cache::HeaderCache;
use super::inspect::{FileContent, FileReport, Inspection, examine, listed_as};
use super::names::{DEFAULT_MODEL, is_default_name};
use super::places::Places;
use crate::types::{ModelEntry, ModelFolder, ModelSource};

/// Headers read in parallel. More threads do not speed up a disk.
const MAX_THREADS: usize = 4;

/// Result of a scan.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Usable models, then unusable ones, each by name.
    pub models: Vec<ModelEntry>,
    /// The folders searched.
    pub folders: Vec<ModelFolder>,
    /// Header contents of the usable models, in the order of `models`.
    pub inspections: Vec<Inspection>,
}

/// Scans all places. Reads only headers that changed since the last scan.
pub fn scan(places: &Places) -> Scan {
    let found = find_candidates(places);
    let mut headers = HeaderCache::open(places);
    let mut reports: Vec<Option<FileReport>> = found.candidates.iter().map(|c| headers.get(c)).collect();
    for (candidate, known) in found.candidates.iter().zip(&mut reports) {
        // Paths are sent as text, so a file whose path is not UTF-8 cannot be opened.
        if candidate.path().to_str().is_none() {
            *known = Some(unnameable(candidate));
        }
    }
    let unknown: Vec<usize> = (0..reports.len()).filter(|&i| reports[i].is_none()).collect();
    let read = read_all(&unknown, &found.candidates);
    for (index, report) in unknown.into_iter().zip(read) {
        headers.put(&found.candidates[index], &report);
        reports[index] = Some(report);
    }
    headers.save(&found.candidates);
    let mut folders = found.folders;
    let mut listed: Vec<(ModelEntry, Option<Inspection>)> = Vec::new();
    for (candidate, report) in found.candidates.iter().zip(reports.into_iter().flatten()) {
        let own = matches!(candidate.source, ModelSource::Hunch | ModelSource::Added);
        // In other programs' folders, files that are not models are hidden.
        if report.content == FileContent::Model || own {
            folders[candidate.folder].models += 1;
            listed.push(listed_entry(candidate, report));
        }
    }
    let order = |(entry, _): &(ModelEntry, _)| {
        (entry.problem.is_some(), entry.name.to_lowercase(), entry.source, entry.path.clone())
    };
    listed.sort_by_cached_key(order);
    let (mut models, inspections): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    mark_default(&mut models);
    Scan { models, folders, inspections: inspections.into_iter().flatten().collect() }
}

/// Reads headers on several threads. Returns the reports in the order of `which`.
fn read_all(which: &[usize], candidates: &[ModelCandidate]) -> Vec<FileReport> {
    let each = which.len().div_ceil(MAX_THREADS).max(1);
    let read = |indices: &[usize]| -> Vec<FileReport> {
        indices.iter().map(|&index| examined(candidates[index].path())).collect()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = which.chunks(each).map(|part| scope.spawn(move || read(part))).collect();
        running.into_iter().flat_map(|part| part.join().expect("reading a header does not panic")).collect()
    })
}

/// Examines a file. A defect that one file brings to light must not hide all other models.
fn examined(path: &Path) -> FileReport {
    std::panic::catch_unwind(|| examine(path)).unwrap_or_else(|_| {
        let reason = format!("{} cannot be read, because of a defect in Hunch.", path.display());
        FileReport::unreadable(path, reason, false)
    })
}

/// Completes a list entry with facts from its location.
fn listed_entry(candidate: &ModelCandidate, report: FileReport) -> (ModelEntry, Option<Inspection>) {
    let entry = ModelEntry {
        source: candidate.source,
        parts: candidate.parts as u32,
        size_bytes: candidate.files.iter().map(|file| file.size).sum(),
        is_default: false,
        ..listed_as(&candidate.name, report.entry)
    };
    let inspection = report.inspection.map(|inspection| Inspection { entry: entry.clone(), ..inspection });
    (entry, inspection)
}

fn unnameable(candidate: &ModelCandidate) -> FileReport {
    let problem = "The name of this file is not valid Unicode, so it cannot be opened. Rename it.";
    FileReport::unreadable(candidate.path(), problem.into(), true)
}

/// Marks the entry that the default model's name resolves to.
fn mark_default(models: &mut [ModelEntry]) {
    // Hunch's own folder first, and in each the exact name first.
    let rank = |entry: &ModelEntry| (entry.source != ModelSource::Hunch, entry.name != DEFAULT_MODEL);
    let mut named: Vec<_> = models.iter_mut().filter(|entry| is_default_name(&entry.name)).collect();
    let Some(first) = named.iter().map(|entry| rank(entry)).min() else { return };
    named.retain(|entry| rank(entry) == first);
    if named.len() == 1 || !first.0 {
        named[0].is_default = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_file_is_listed_with_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("broken.gguf"), b"GGUF").unwrap();
        std::fs::write(folder.path().join("notes.txt"), b"hello").unwrap();
        let found = |folder: &Path| scan(&Places::only(folder.to_path_buf())).models;
        let entries = found(folder.path());
        assert_eq!(entries.len(), 1);
        assert!(entries[0].problem.is_some());
        assert!(found(&folder.path().join("nowhere")).is_empty());
    }
}
