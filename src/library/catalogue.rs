//! The catalogue: models that are known to run well, and which draft goes with which. A file of this program,
//! read at need; nothing is fetched here. A figure that nobody has published is absent.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::api::library::{Catalogue, CatalogueModel, CatalogueRole, MachineMemory};
use crate::library::machine::memory_class;

/// The file as it is.
#[derive(Deserialize)]
struct File {
    version: u32,
    reviewed: String,
    models: Vec<Entry>,
}

/// A model of the file, and of its architecture what its cache takes.
#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    model: CatalogueModel,
    layers: u64,
    kv_heads: u64,
    head_width: u64,
}

/// The catalogue in memory.
struct Read {
    version: u32,
    reviewed: String,
    models: Vec<CatalogueModel>,
    cache_bytes: Vec<u64>,
}

static FILE: LazyLock<Read> = LazyLock::new(|| {
    let file: File =
        serde_json::from_str(include_str!("catalogue.json")).expect("a test reads the same file");
    let cache =
        |entry: &Entry| 2 * entry.layers * entry.kv_heads * entry.head_width * size_of::<f32>() as u64;
    Read {
        version: file.version,
        reviewed: file.reviewed,
        cache_bytes: file.models.iter().map(cache).collect(),
        models: file.models.into_iter().map(|entry| entry.model).collect(),
    }
});

/// The models of the catalogue, by family, drafts first.
pub fn models() -> &'static [CatalogueModel] {
    &FILE.models
}

/// The catalogue on a machine with this memory.
pub fn catalogue(machine: MachineMemory) -> Catalogue {
    Catalogue {
        version: FILE.version,
        reviewed: FILE.reviewed.clone(),
        models: FILE.models.clone(),
        machine: memory_class(machine.total),
    }
}

/// The model of this number.
pub fn by_id(id: &str) -> Option<&'static CatalogueModel> {
    models().iter().find(|model| model.id == id)
}

/// The model of the catalogue that a file on this machine is, by its name and, where it is known, its size.
pub fn of_file(name: &str, size_bytes: u64) -> Option<&'static CatalogueModel> {
    models().iter().find(|model| {
        let stem = model.file.rsplit('/').next().unwrap_or(&model.file).trim_end_matches(".gguf");
        stem.eq_ignore_ascii_case(name) && model.size_bytes.is_none_or(|size| size == size_bytes)
    })
}

/// Models of the catalogue that can draft for `target`: of its vocabulary, and smaller.
pub fn drafts_for(target: &CatalogueModel) -> impl Iterator<Item = &'static CatalogueModel> {
    let (vocabulary, parameters) = (target.vocabulary.clone(), target.parameters);
    models().iter().filter(move |model| model.vocabulary == vocabulary && model.parameters < parameters)
}

/// Bytes of a model's file: as published, else from its number of weights and its quantisation.
pub fn file_bytes(model: &CatalogueModel) -> u64 {
    // Bits a weight that files of this kind come to on average, embeddings and scales included.
    let bits = match model.quantisation.as_str() {
        "Q8_0" => 8.5,
        "Q6_K" => 6.6,
        _ => 4.9,
    };
    model.size_bytes.unwrap_or((model.parameters as f64 * bits / 8.0) as u64)
}

/// Bytes that the cache of a model of the catalogue takes for a token.
pub fn cache_bytes_per_token(id: &str) -> u64 {
    let at = models().iter().position(|model| model.id == id);
    at.and_then(|at| FILE.cache_bytes.get(at)).copied().unwrap_or(0)
}

/// Targets of the catalogue, largest first.
pub fn targets() -> impl Iterator<Item = &'static CatalogueModel> {
    let mut targets: Vec<_> = models().iter().filter(|model| model.role == CatalogueRole::Target).collect();
    targets.sort_by_key(|model| std::cmp::Reverse(file_bytes(model)));
    targets.into_iter()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::{Component, Path};

    use super::*;
    use crate::api::library::MemoryClass;

    #[test]
    fn the_file_is_sound() {
        assert!(FILE.version >= 1);
        let (year, month) = FILE.reviewed.split_once('-').unwrap();
        assert!(year.parse::<u32>().unwrap() >= 2026 && (1..=12).contains(&month.parse::<u32>().unwrap()));
        let ids: HashSet<_> = models().iter().map(|model| &model.id).collect();
        assert_eq!(ids.len(), models().len(), "numbers are unique");
        for model in models() {
            let only = |text: &str, more: &str| {
                text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c)) && !text.is_empty()
            };
            assert!(only(&model.id, "-._"), "{}", model.id);
            assert!(only(&model.vocabulary, "-."), "{}", model.id);
            let (owner, name) = model.repository.split_once('/').unwrap();
            assert!(only(owner, "-_.") && only(name, "-_."), "{}", model.repository);
            let safe = |part: Component<'_>| matches!(part, Component::Normal(_));
            assert!(
                Path::new(&model.file).components().all(safe) && only(&model.file, "-_./"),
                "{}",
                model.file
            );
            assert!(model.file.to_ascii_lowercase().ends_with(".gguf"), "{}", model.file);
            assert!(!model.name.is_empty() && !model.licence.is_empty() && !model.note.is_empty());
            if let Some(sha256) = &model.sha256 {
                assert!(sha256.len() == 64 && sha256.chars().all(|c| c.is_ascii_hexdigit()), "{}", model.id);
                assert!(model.size_bytes.is_some(), "{}: a checksum without a size", model.id);
            }
            // A size that is far from what the weights come to is a slip of the pen.
            if let Some(size) = model.size_bytes {
                let by_weights = file_bytes(&CatalogueModel { size_bytes: None, ..model.clone() });
                let ratio = size as f64 / by_weights as f64;
                assert!((0.8..1.8).contains(&ratio), "{}: {ratio}", model.id);
            }
        }
    }

    #[test]
    fn recommended_drafts_are_there_smaller_and_of_the_same_vocabulary() {
        for model in models() {
            let Some(id) = &model.draft else { continue };
            assert_eq!(model.role, CatalogueRole::Target, "{}", model.id);
            let draft = by_id(id).unwrap();
            assert_eq!(draft.role, CatalogueRole::Draft, "{id}");
            assert_eq!(draft.vocabulary, model.vocabulary, "{}", model.id);
            assert!(file_bytes(draft) < file_bytes(model), "{}", model.id);
            assert!(draft.memory_class <= model.memory_class, "{}", model.id);
            assert!(drafts_for(model).any(|other| other.id == *id), "{}", model.id);
        }
        // A draft that nobody recommends has no business here.
        for draft in models().iter().filter(|model| model.role == CatalogueRole::Draft) {
            assert!(models().iter().any(|model| model.draft.as_ref() == Some(&draft.id)), "{}", draft.id);
        }
    }

    #[test]
    fn every_class_of_machines_has_targets_with_drafts() {
        for class in [MemoryClass::Gb8, MemoryClass::Gb16, MemoryClass::Gb24To36, MemoryClass::Gb48] {
            let of_class = || targets().filter(|model| model.memory_class == class);
            assert!(of_class().count() >= 2, "{class:?}");
            assert!(of_class().any(|model| model.draft.is_some()), "{class:?}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_name_and_size() {
        let known = by_id("qwen2.5-coder-0.5b-instruct-q4_k_m").unwrap();
        let name = "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M";
        assert_eq!(of_file(name, 491_400_064), Some(known));
        assert_eq!(of_file(name, 491_400_065), None);
        assert_eq!(of_file("another", 491_400_064), None);
        // 24 layers of 2 heads of 64, keys and values, 4 bytes each.
        assert_eq!(cache_bytes_per_token(&known.id), 24 * 2 * 64 * 2 * 4);
    }
}
