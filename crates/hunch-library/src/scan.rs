//! Lists the models on this machine: files found in the places, with their headers.

use super::DEFAULT_MODEL;
use super::headers::Headers;
use super::inspect::{Holding, Inspection, Look, look};
use super::places::Places;
use super::survey::{Candidate, survey};
use crate::types::ModelEntry;
use crate::types::{ModelFolder, ModelSource};

/// Headers read in parallel. More threads do not speed up a disk.
const AT_ONCE: usize = 4;

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
    let found = survey(places);
    let mut headers = Headers::open(places);
    let mut looks: Vec<Option<Look>> = found.candidates.iter().map(|c| headers.get(c)).collect();
    for (candidate, known) in found.candidates.iter().zip(&mut looks) {
        // Paths are sent as text, so a file whose path is not UTF-8 cannot be opened.
        if candidate.path().to_str().is_none() {
            *known = Some(unnameable(candidate));
        }
    }
    let unknown: Vec<usize> = (0..looks.len()).filter(|&i| looks[i].is_none()).collect();
    let read = read_all(&unknown, &found.candidates);
    for (index, look) in unknown.into_iter().zip(read) {
        headers.put(&found.candidates[index], &look);
        looks[index] = Some(look);
    }
    headers.save(&found.candidates);
    let mut folders = found.folders;
    let mut listed: Vec<(ModelEntry, Option<Inspection>)> = Vec::new();
    for (candidate, look) in found.candidates.iter().zip(looks.into_iter().flatten()) {
        let own = matches!(candidate.source, ModelSource::Hunch | ModelSource::Added);
        // In other programs' folders, files that are not models are hidden.
        if look.holding == Holding::Model || own {
            folders[candidate.folder].models += 1;
            listed.push(finished(candidate, look));
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
fn read_all(which: &[usize], candidates: &[Candidate]) -> Vec<Look> {
    let each = which.len().div_ceil(AT_ONCE).max(1);
    let read = |indices: &[usize]| -> Vec<Look> {
        indices.iter().map(|&index| look(candidates[index].path())).collect()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = which.chunks(each).map(|part| scope.spawn(move || read(part))).collect();
        running.into_iter().flat_map(|part| part.join().expect("reading a header does not panic")).collect()
    })
}

/// Completes a list entry with facts from its location.
fn finished(candidate: &Candidate, look: Look) -> (ModelEntry, Option<Inspection>) {
    let entry = ModelEntry {
        name: candidate.name.clone(),
        source: candidate.source,
        parts: candidate.parts as u32,
        size_bytes: candidate.files.iter().map(|mark| mark.size).sum(),
        is_default: false,
        ..look.entry
    };
    let inspection = look.inspection.map(|inspection| Inspection { entry: entry.clone(), ..inspection });
    (entry, inspection)
}

fn unnameable(candidate: &Candidate) -> Look {
    let problem = "The name of this file is not valid Unicode, so it cannot be opened. Rename it.";
    Look::unread(candidate.path(), problem.into(), true)
}

/// Marks the entry that the default model's name resolves to.
fn mark_default(models: &mut [ModelEntry]) {
    let of_name = |entry: &&mut ModelEntry| entry.name == DEFAULT_MODEL;
    let mut named: Vec<_> = models.iter_mut().filter(of_name).collect();
    let one = match named.iter().position(|entry| entry.source == ModelSource::Hunch) {
        None if named.len() == 1 => Some(0),
        own => own,
    };
    if let Some(one) = one {
        named[one].is_default = true;
    }
}
