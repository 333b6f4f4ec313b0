//! Jan's data folder. Each model has a folder with a `model.yml` that gives the file's path, relative to
//! the data folder. The description is untrusted: a path that leaves the data folder is not followed.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::text_file;
use super::walk::{FileMeta, walk};
use hunch_model::split;

/// Model folders in the data folder, for current and earlier versions.
const FOLDERS: [&str; 3] = ["llamacpp/models", "models", "cortex/models"];
/// Name that Jan gives every file it downloads.
const PLAIN_NAME: &str = "model";

/// Models found in Jan's data folder.
#[derive(Debug, Default)]
pub(super) struct Jan {
    /// The files, each with its model's name in Jan.
    pub(super) models: Vec<(String, FileMeta)>,
    /// Reason for a skipped file, if there is one.
    pub(super) problem: Option<String>,
}

/// Scans the data folder. `wanted` accepts the file names of models.
pub(super) fn read(data: &Path, wanted: impl Fn(&OsStr) -> bool) -> Jan {
    let mut jan = Jan::default();
    for folder in FOLDERS {
        let folder = data.join(folder);
        let is_description = |name: &OsStr| name == "model.yml";
        let walked = walk(&folder, |name| wanted(name) || is_description(name));
        jan.problem = jan.problem.or(walked.problem);
        for file in walked.files {
            if !file.path.file_name().is_some_and(is_description) {
                jan.models.push((name(&file.path, &folder), file));
                continue;
            }
            let Some(written) = text_file::read(&file.path).as_deref().and_then(model_path) else {
                continue;
            };
            match inside(data, &written) {
                None => {
                    let path = file.path.display();
                    jan.problem.get_or_insert_with(|| {
                        format!("{path} names a file outside Jan's folder. It was skipped.")
                    });
                }
                // A file found twice is deduplicated later, by identity.
                Some(path) if path.file_name().is_some_and(&wanted) => {
                    jan.models.extend(FileMeta::of(&path).map(|file| (name(&path, &folder), file)));
                }
                Some(_) => {}
            }
        }
    }
    jan
}

/// Returns the model's name. A generic file stem is replaced by the model's folder in Jan.
fn name(path: &Path, folder: &Path) -> String {
    let stem = split::stem(path);
    if stem != PLAIN_NAME {
        return stem;
    }
    let parent = path.parent().unwrap_or(path);
    let id = parent.strip_prefix(folder).ok().or_else(|| parent.file_name().map(Path::new));
    id.map_or(stem, |id| id.to_string_lossy().replace('\\', "/"))
}

/// Returns the value of `model_path` in a description. Jan writes it on its own line, plain or quoted.
fn model_path(description: &str) -> Option<String> {
    let value = description.lines().find_map(|line| line.strip_prefix("model_path:"))?.trim();
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Resolves a path from a description, if it stays inside the data folder.
fn inside(data: &Path, written: &str) -> Option<PathBuf> {
    let written = Path::new(written);
    let relative = written.strip_prefix(data).unwrap_or(written);
    let stays = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    relative.components().all(stays).then(|| data.join(relative))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gguf(name: &OsStr) -> bool {
        Path::new(name).extension().is_some_and(|e| e == "gguf")
    }

    #[test]
    fn finds_models_inside_the_data_folder_only() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        let write = |path: &str, text: &str| {
            let path = data.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        std::fs::write(root.path().join("outside.gguf"), "x").unwrap();
        write("llamacpp/models/org/one/model.gguf", "x");
        write(
            "llamacpp/models/org/one/model.yml",
            "name: One\nmodel_path: llamacpp/models/org/one/model.gguf\n",
        );
        write("llamacpp/models/two/model.yml", "model_path: \"elsewhere/two-Q8_0.gguf\"");
        write("elsewhere/two-Q8_0.gguf", "x");
        write("llamacpp/models/bad/model.yml", "model_path: ../outside.gguf");
        write("models/old/old-Q4_0.gguf", "x");
        let jan = read(&data, gguf);
        let mut names: Vec<&str> = jan.models.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, ["old-Q4_0", "org/one", "two-Q8_0"]);
        assert!(jan.problem.unwrap().contains("outside"));
    }

    proptest! {
        #[test]
        fn description_paths_never_leave_the_data_folder(text in "(\\.\\./|/|\\./|a|models|\\\\|\"|'| |\\PC){0,12}") {
            let _ = model_path(&text);
            if let Some(path) = inside(Path::new("/data"), &text) {
                prop_assert!(path.starts_with("/data"));
                prop_assert!(!path.components().any(|part| part == Component::ParentDir));
            }
        }
    }
}
