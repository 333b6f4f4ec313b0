//! The models of this machine: what lies in the places, with what the headers say.

use super::DEFAULT_MODEL;
use super::headers::Headers;
use super::inspect::{Holding, Inspection, Look, look};
use super::places::Places;
use super::survey::{Candidate, survey};
use crate::types::ModelEntry;
use crate::types::{ModelFolder, ModelSource};

/// Files whose headers are read at the same time: more of them do not make a disk faster.
const AT_ONCE: usize = 4;

/// The models that were found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Models that can be loaded, then those that cannot, each by name.
    pub models: Vec<ModelEntry>,
    /// Where was looked.
    pub folders: Vec<ModelFolder>,
    /// Everything the headers tell of the models that can be loaded, in the order of `models`.
    pub inspections: Vec<Inspection>,
}

/// Looks through all places. Reads headers, but of files that have not changed since the last time.
pub fn scan(places: &Places) -> Scan {
    let found = survey(places);
    let mut headers = Headers::open(places);
    let mut looks: Vec<Option<Look>> = found.candidates.iter().map(|c| headers.get(c)).collect();
    for (candidate, known) in found.candidates.iter().zip(&mut looks) {
        // Without a name of text a path cannot be said, and so nothing can be done with it.
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
        // What is no model is nothing to tell of in the cache of another program.
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

/// Reads headers on several threads; the looks in the order of `which`.
fn read_all(which: &[usize], candidates: &[Candidate]) -> Vec<Look> {
    let each = which.len().div_ceil(AT_ONCE).max(1);
    let read = |indices: &[usize]| -> Vec<Look> {
        indices.iter().map(|&index| look(candidates[index].path())).collect()
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = which.chunks(each).map(|part| scope.spawn(move || read(part))).collect();
        running.into_iter().flat_map(|part| part.join().expect("looking at a file does not panic")).collect()
    })
}

/// The card as it is listed: with what the place says, which the header does not know.
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

/// The one that Hunch starts with is the one its name is found by.
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
