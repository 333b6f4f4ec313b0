//! Finds model files without opening them. Parts of a split model are joined, and a file reachable by two
//! paths is listed once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::folders::added_folders;
use super::places::{Layout, Places, Root};
use super::walk::{FileMeta, WalkResult, walk, walk_where};
use super::{jan, ollama};
use crate::types::{ModelFolder, ModelSource};
use hunch_model::model_folder;
use hunch_model::split::{self, PartName};

/// A possible model, judged by file names and sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelCandidate {
    /// Short name.
    pub(super) name: String,
    /// Existing files: one, or the parts of a split model in order.
    pub(super) files: Vec<FileMeta>,
    /// Expected number of files.
    pub(super) parts: usize,
    /// Index of its folder.
    pub(super) folder: usize,
    /// Owner of that folder.
    pub(super) source: ModelSource,
}

impl ModelCandidate {
    /// Returns the first existing file, which represents the model.
    pub(super) fn path(&self) -> &Path {
        &self.files[0].path
    }

    /// Returns the size and modification time of each file that the model is read from.
    pub(super) fn stamps(&self) -> Vec<(u64, u64)> {
        let settings = model_folder::settings_files(self.path());
        let settings =
            settings.iter().map(|path| FileMeta::of(path).map_or((0, 0), |file| (file.size, file.modified)));
        self.files.iter().map(|file| (file.size, file.modified)).chain(settings).collect()
    }
}

/// Possible models and searched folders.
#[derive(Clone, Debug, Default)]
pub(super) struct CandidateList {
    /// Possible models, by name within each folder.
    pub(super) candidates: Vec<ModelCandidate>,
    /// Searched folders, with model counts still zero.
    pub(super) folders: Vec<ModelFolder>,
}

/// Searches all places.
pub(super) fn find_candidates(places: &Places) -> CandidateList {
    search_roots(places, |_| true)
}

/// Searches only the places that contain these files, so that no other volume is accessed.
pub(super) fn candidates_near(paths: &[&Path], places: &Places) -> CandidateList {
    search_roots(places, |root| paths.iter().any(|path| path.starts_with(&root.path)))
}

fn search_roots(places: &Places, wanted: impl Fn(&Root) -> bool) -> CandidateList {
    let (added, problem) = match added_folders(places) {
        Ok(added) => (added, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let mut list = CandidateList::default();
    let mut known = HashSet::new();
    for (folder, root) in places.roots(&added).into_iter().filter(wanted).enumerate() {
        let (found, root_problem) = files_in(&root);
        list.folders.push(ModelFolder {
            path: root.path.display().to_string(),
            source: root.source,
            exists: root.path.is_dir(),
            models: 0,
            // Hunch owns the list of added folders, so its problem is shown at Hunch's folder.
            problem: root_problem.or_else(|| problem.clone().filter(|_| root.source == ModelSource::Hunch)),
        });
        let mut candidates = group_parts(found, folder, root.source);
        candidates.retain(|candidate| known.insert(candidate.files[0].identity.clone()));
        list.candidates.append(&mut candidates);
    }
    list
}

/// Returns the models of one folder.
pub(super) fn candidates_in(folder: &Path, source: ModelSource) -> Vec<ModelCandidate> {
    let root = Root { path: folder.to_path_buf(), source, layout: Layout::Tree };
    group_parts(files_in(&root).0, 0, source)
}

fn files_in(root: &Root) -> (Vec<(String, FileMeta)>, Option<String>) {
    let wanted =
        |name: &OsStr| is_model_name(name, root.source) || model_folder::is_safetensors(Path::new(name));
    let mut folders = FolderParts::default();
    let mut named = |walked: WalkResult| {
        let files = walked.files.into_iter().filter(|file| is_whole(&file.path, &mut folders));
        let named = files.map(|file| (split::stem(&file.path), file));
        (named.collect(), walked.problem)
    };
    match root.layout {
        Layout::Tree => named(walk(&root.path, wanted)),
        Layout::HuggingFace => named(walk_where(&root.path, wanted, holds_models)),
        Layout::Ollama => {
            let store = ollama::read(&root.path);
            (store.models, store.problem)
        }
        Layout::Jan => {
            let jan = jan::read(&root.path, |name| is_model_name(name, root.source));
            (jan.models, jan.problem)
        }
    }
}

/// Checks whether a folder of Hugging Face's cache can contain models. Data sets would exceed the entry
/// limit, and blobs are found through their links.
fn holds_models(depth: usize, folder: &OsStr) -> bool {
    match depth {
        0 => folder.as_encoded_bytes().starts_with(b"models--"),
        1 => folder == "snapshots",
        _ => true,
    }
}

/// Checks whether a file name can be a model's. LM Studio prefixes unfinished downloads, other programs
/// change the extension. Multimodal projectors are hidden in other programs' folders and listed in the
/// user's own.
fn is_model_name(name: &OsStr, source: ModelSource) -> bool {
    let path = Path::new(name);
    let lower = name.to_string_lossy().to_lowercase();
    let own = matches!(source, ModelSource::Hunch | ModelSource::Added);
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
        && !lower.starts_with("downloading_")
        && (own || !lower.contains("mmproj"))
}

/// Checks whether a file is a GGUF file, or weights of a model folder. Other safetensors files are parts of something
/// else.
fn is_whole(path: &Path, folders: &mut FolderParts) -> bool {
    !model_folder::is_safetensors(path)
        || folders.of(path).is_some_and(|files| files.iter().any(|file| file == path))
}

/// Weight files of model folders. The index of a folder is read once, whatever the number of its files.
#[derive(Default)]
struct FolderParts(HashMap<PathBuf, Option<Vec<PathBuf>>>);

impl FolderParts {
    /// Returns the weight files of the model folder of a safetensors file.
    fn of(&mut self, path: &Path) -> Option<&[PathBuf]> {
        let folder = path.parent().filter(|_| model_folder::is_safetensors(path))?;
        let parts = self.0.entry(folder.to_path_buf()).or_insert_with(|| model_folder::weight_files(path));
        parts.as_deref()
    }
}

/// Groups files into models: joins parts and skips empty files.
fn group_parts(found: Vec<(String, FileMeta)>, folder: usize, source: ModelSource) -> Vec<ModelCandidate> {
    let mut groups: BTreeMap<(String, PathBuf), (usize, BTreeMap<usize, FileMeta>)> = BTreeMap::new();
    let mut folders = FolderParts::default();
    for (name, file) in found.into_iter().filter(|(_, file)| file.size > 0) {
        let (key, number, parts) = match PartName::of(&file.path) {
            // Parts belong together if folder, name and part count match.
            Some(part) => {
                let first = file.path.with_file_name(format!("{}/{}", part.model, part.count));
                (first, part.number, part.count)
            }
            None => match folders.of(&file.path) {
                Some(files) => {
                    let number = files.iter().position(|part| *part == file.path).unwrap_or(0);
                    (files[0].clone(), number, files.len())
                }
                None => (file.path.clone(), 1, 1),
            },
        };
        groups.entry((name, key)).or_insert_with(|| (parts, BTreeMap::new())).1.insert(number, file);
    }
    let candidate = |((name, _), (parts, files)): ((String, PathBuf), (usize, BTreeMap<usize, FileMeta>))| {
        ModelCandidate { name, files: files.into_values().collect(), parts, folder, source }
    };
    groups.into_iter().map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(candidates: &[ModelCandidate]) -> Vec<(&str, usize, usize)> {
        candidates.iter().map(|c| (c.name.as_str(), c.files.len(), c.parts)).collect()
    }

    #[test]
    fn joins_parts_and_skips_unfinished_downloads() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "whole.gguf",
            "big-00001-of-00003.gguf",
            "big-00003-of-00003.gguf",
            "sub/big-00001-of-00002.gguf",
            "sub/big-00002-of-00002.gguf",
            "downloading_x.gguf",
            "x.gguf.part",
            "x.gguf.incomplete",
            "x.gguf.downloading",
            "._whole.gguf",
            "notes.txt",
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        std::fs::write(folder.path().join("empty.gguf"), "").unwrap();
        std::fs::write(folder.path().join("mmproj-x.gguf"), "x").unwrap();
        let own = candidates_in(folder.path(), ModelSource::Hunch);
        assert_eq!(names(&own), [("big", 2, 3), ("big", 2, 2), ("mmproj-x", 1, 1), ("whole", 1, 1)]);
        let other = candidates_in(folder.path(), ModelSource::HuggingFace);
        assert_eq!(other.len(), 3, "projectors of other programs are hidden: {other:?}");
    }

    #[cfg(unix)]
    #[test]
    fn hugging_face_cache_is_read_through_its_links() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let repository = root.path().join(".cache/huggingface/hub/models--org--name");
        let (one, two) = (repository.join("snapshots/aaa"), repository.join("snapshots/bbb"));
        for folder in [&repository.join("blobs"), &one, &two.join("sub")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let data = root.path().join(".cache/huggingface/hub/datasets--org--data/snapshots/ccc");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("no-model.gguf"), "y").unwrap();
        std::fs::write(repository.join("blobs/no-name.gguf"), "z").unwrap();
        std::fs::write(repository.join("blobs/123"), "x").unwrap();
        std::fs::write(repository.join("blobs/456.incomplete"), "x").unwrap();
        symlink("../../blobs/123", one.join("m-Q8_0.gguf")).unwrap();
        symlink("../../../blobs/123", two.join("sub/m-Q8_0.gguf")).unwrap();
        symlink("../../blobs/gone", two.join("n-Q8_0.gguf")).unwrap();
        let own = root.path().join("own");
        std::fs::create_dir(&own).unwrap();
        std::fs::hard_link(repository.join("blobs/123"), own.join("same.gguf")).unwrap();
        let places = Places { models: own, home: Some(root.path().into()), ..Places::default() };
        let found = find_candidates(&places);
        assert_eq!(names(&found.candidates), [("same", 1, 1)]);
        std::fs::remove_file(root.path().join("own/same.gguf")).unwrap();
        let found = find_candidates(&places);
        assert_eq!(names(&found.candidates), [("m-Q8_0", 1, 1)]);
        assert_eq!(found.candidates[0].source, ModelSource::HuggingFace);
        assert!(found.candidates[0].path().ends_with("m-Q8_0.gguf"), "parts are found through this name");
    }
}
