//! Folders to search for models. These are Hunch's own, those added by the user, and caches of other
//! programs, which are only read. Only this module asks the system for the home folder and environment. All
//! other code takes [`Places`], so tests use their own folders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use directories::BaseDirs;
use serde_json::Value;

use super::text_file;
use crate::types::ModelSource;
use hunch_error::Result;

/// Environment variables that locate the models of other programs.
const VARIABLES: [&str; 8] = [
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "OLLAMA_MODELS",
    "LLAMA_CACHE",
    "JAN_DATA_FOLDER",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
];

/// Ollama's models, relative to the home folder.
const OLLAMA: &str = ".ollama/models";
/// Ollama's models when it runs as a Linux system service under its own user.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";

/// Folders and environment that determine where to search for models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Hunch's own models folder, the only one written to.
    pub models: PathBuf,
    /// Folder of the added-folders list and the header cache. Without it, nothing is persisted.
    pub data: Option<PathBuf>,
    /// The home folder. Without it, caches of other programs are not searched.
    pub home: Option<PathBuf>,
    /// Environment variables that locate those caches.
    pub environment: BTreeMap<String, OsString>,
}

/// Arrangement of models in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// GGUF files at any depth.
    Tree,
    /// One folder per repository, with snapshots: `models--owner--name/snapshots/…`.
    HuggingFace,
    /// Manifests that name blobs.
    Ollama,
    /// One folder per model, with a description.
    Jan,
}

/// A folder to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    pub(super) source: ModelSource,
    pub(super) layout: Layout,
}

impl Places {
    /// Returns the places of the current user.
    ///
    /// # Errors
    /// If the system reports no home folder and `HUNCH_DATA_DIR` is not set.
    pub fn of_this_user() -> Result<Self> {
        let variable = |name: &&str| Some((name.to_string(), std::env::var_os(name)?));
        let mut places = Self {
            models: super::data_folders::models_folder()?,
            data: Some(super::data_folders::data_folder()?),
            home: BaseDirs::new().map(|dirs| dirs.home_dir().to_path_buf()),
            environment: VARIABLES.iter().filter_map(variable).collect(),
        };
        let service = Path::new(OLLAMA_SERVICE);
        let own = places.home.as_deref().is_some_and(|home| home.join(OLLAMA).is_dir());
        if !own && service.is_dir() {
            places.environment.entry("OLLAMA_MODELS".into()).or_insert_with(|| service.into());
        }
        Ok(places)
    }

    /// Returns places with a single models folder. Nothing is persisted.
    pub fn only(models: PathBuf) -> Self {
        Self { models, ..Self::default() }
    }

    /// Returns the absolute path in an environment variable. A relative path is ignored, because it depends
    /// on the working directory.
    fn variable(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.environment.get(name)?);
        let path = match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path,
        };
        path.is_absolute().then_some(path)
    }

    /// Returns every folder to search, in order of precedence. For a program that is not installed, this
    /// includes its default folder.
    pub(super) fn roots(&self, added: &[PathBuf]) -> Vec<Root> {
        let tree = |path: &Path, source| Root { path: path.into(), source, layout: Layout::Tree };
        let mut roots = vec![tree(&self.models, ModelSource::Hunch)];
        roots.extend(added.iter().map(|path| tree(path, ModelSource::Added)));
        if let Some(home) = &self.home {
            let others = [
                (ModelSource::HuggingFace, Layout::HuggingFace, self.hugging_face(home)),
                (ModelSource::LmStudio, Layout::Tree, lm_studio(home)),
                (ModelSource::Ollama, Layout::Ollama, self.ollama(home)),
                (ModelSource::LlamaCpp, Layout::Tree, self.llama_cpp(home)),
                (ModelSource::Jan, Layout::Jan, self.jan(home)),
            ];
            for (source, layout, paths) in others {
                let here: Vec<_> = paths.iter().filter(|path| path.is_dir()).collect();
                let shown = if here.is_empty() { paths.iter().take(1).collect() } else { here };
                roots.extend(shown.into_iter().map(|path| Root { path: path.clone(), source, layout }));
            }
        }
        let mut seen = std::collections::HashSet::new();
        roots.retain(|root| seen.insert(root.path.canonicalize().unwrap_or_else(|_| root.path.clone())));
        roots
    }

    fn cache(&self, home: &Path) -> PathBuf {
        self.variable("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"))
    }

    /// Returns candidate application data folders: the system's own first, then the other platform's
    /// convention.
    fn data_folders(&self, home: &Path) -> [PathBuf; 2] {
        let shared = self.variable("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share"));
        let mac = home.join("Library/Application Support");
        if cfg!(target_os = "macos") { [mac, shared] } else { [shared, mac] }
    }

    /// Returns the cache folder by the rules of Hugging Face's own tools.
    fn hugging_face(&self, home: &Path) -> Vec<PathBuf> {
        let named = self.variable("HF_HUB_CACHE").or_else(|| self.variable("HUGGINGFACE_HUB_CACHE"));
        let hub = || {
            let base = self.variable("HF_HOME").unwrap_or_else(|| self.cache(home).join("huggingface"));
            base.join("hub")
        };
        vec![named.unwrap_or_else(hub)]
    }

    fn ollama(&self, home: &Path) -> Vec<PathBuf> {
        vec![self.variable("OLLAMA_MODELS").unwrap_or_else(|| home.join(OLLAMA))]
    }

    /// Returns the cache folders of llama.cpp. Since 2026 it shares Hugging Face's cache, or uses its
    /// layout at `LLAMA_CACHE`.
    fn llama_cpp(&self, home: &Path) -> Vec<PathBuf> {
        if let Some(path) = self.variable("LLAMA_CACHE") {
            return vec![path];
        }
        let (mac, other) = (home.join("Library/Caches/llama.cpp"), self.cache(home).join("llama.cpp"));
        if cfg!(target_os = "macos") { vec![mac, other] } else { vec![other, mac] }
    }

    /// Returns Jan's data folders, including one moved in its settings.
    fn jan(&self, home: &Path) -> Vec<PathBuf> {
        if let Some(path) = self.variable("JAN_DATA_FOLDER") {
            return vec![path];
        }
        let mut paths = Vec::new();
        for folder in self.data_folders(home) {
            paths.push(folder.join("Jan/data"));
            for program in ["Jan", "jan.ai.app"] {
                paths.extend(path_in_settings(&folder.join(program).join("settings.json"), "data_folder"));
            }
        }
        paths.extend([home.join("jan"), home.join("cortexcpp")]);
        paths
    }
}

/// Returns LM Studio's folders: its defaults and the one in its settings.
fn lm_studio(home: &Path) -> Vec<PathBuf> {
    let mut bases = vec![home.join(".lmstudio"), home.join(".cache/lm-studio")];
    // LM Studio writes its base folder into this file in the home folder.
    let pointer = text_file::read(&home.join(".lmstudio-home-pointer")).unwrap_or_default();
    let pointer = PathBuf::from(pointer.trim());
    if pointer.is_absolute() {
        bases.insert(0, pointer);
    }
    let mut paths: Vec<_> = bases.iter().map(|base| base.join("models")).collect();
    let programs = [home.join("Library/Application Support/LM Studio"), home.join(".config/LM Studio")];
    for base in bases.iter().chain(&programs) {
        paths.extend(path_in_settings(&base.join("settings.json"), "downloadsFolder"));
    }
    paths
}

/// Returns an absolute path from another program's settings file.
fn path_in_settings(file: &Path, key: &str) -> Option<PathBuf> {
    let settings: Value = serde_json::from_str(&text_file::read(file)?).ok()?;
    let path = PathBuf::from(settings.get(key)?.as_str()?);
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(places: &Places, source: ModelSource) -> Vec<PathBuf> {
        places.roots(&[]).into_iter().filter(|r| r.source == source).map(|r| r.path).collect()
    }

    fn places(home: &Path, variables: &[(&str, &str)]) -> Places {
        Places {
            models: home.join("own"),
            home: Some(home.into()),
            environment: variables.iter().map(|(k, v)| (k.to_string(), OsString::from(v))).collect(),
            data: None,
        }
    }

    #[test]
    fn without_home_only_the_own_folder_is_searched() {
        assert_eq!(Places::only("/models".into()).roots(&[]).len(), 1);
    }

    #[test]
    fn environment_variables_move_caches() {
        let home = Path::new("/nowhere/home");
        let plain = places(home, &[]);
        assert_eq!(paths(&plain, ModelSource::HuggingFace), [home.join(".cache/huggingface/hub")]);
        let moved = places(home, &[("HF_HOME", "/hf"), ("OLLAMA_MODELS", "~/o"), ("LLAMA_CACHE", "/l")]);
        assert_eq!(paths(&moved, ModelSource::HuggingFace), [PathBuf::from("/hf/hub")]);
        assert_eq!(paths(&moved, ModelSource::Ollama), [home.join("o")]);
        assert_eq!(paths(&moved, ModelSource::LlamaCpp), [PathBuf::from("/l")]);
        let direct = places(home, &[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/hub"), ("LLAMA_CACHE", "rel")]);
        assert_eq!(paths(&direct, ModelSource::HuggingFace), [PathBuf::from("/hub")]);
        assert_ne!(
            paths(&direct, ModelSource::LlamaCpp),
            [PathBuf::from("rel")],
            "relative paths are ignored"
        );
    }

    #[test]
    fn settings_of_lm_studio_and_jan_move_folders() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        let (lm, jan) = (home.join("big/lm"), home.join("big/jan"));
        for path in [&lm, &jan, &home.join(".lmstudio"), &home.join(".local/share/Jan")] {
            std::fs::create_dir_all(path).unwrap();
        }
        let settings = serde_json::json!({ "downloadsFolder": lm }).to_string();
        std::fs::write(home.join(".lmstudio/settings.json"), settings).unwrap();
        let settings = serde_json::json!({ "data_folder": jan }).to_string();
        std::fs::write(home.join(".local/share/Jan/settings.json"), settings).unwrap();
        let places = places(home, &[]);
        assert_eq!(paths(&places, ModelSource::LmStudio), [lm]);
        assert_eq!(paths(&places, ModelSource::Jan), [jan]);
        std::fs::write(home.join(".lmstudio/settings.json"), "{ \"downloadsFolder\": [").unwrap();
        assert_eq!(paths(&places, ModelSource::LmStudio), [home.join(".lmstudio/models")]);
    }
}
