//! The catalogue: models that are known to run well, and which draft goes with which. A file of this program,
//! read at need; nothing is fetched here. A figure that nobody has published is absent.

use std::sync::LazyLock;

use serde::Deserialize;

use super::fit::Footprint;
use super::machine::memory_class;
use crate::types::{Catalogue, CatalogueModel, CatalogueRole, MachineMemory, PairVerdict};
use hunch_core::token::TokenId;
use hunch_model::text::Vocabulary;

/// The file as it is.
#[derive(Deserialize)]
struct File {
    version: u32,
    reviewed: String,
    models: Vec<Entry>,
    vocabularies: Vec<KnownVocabulary>,
}

/// A model of the file, and of its architecture what its cache takes.
#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    model: CatalogueModel,
    layers: u64,
    kv_heads: u64,
    head_width: u64,
    /// [`Vocabulary::digest`] of this very file, where somebody had it.
    #[serde(default)]
    vocabulary_digest: Option<String>,
}

/// What is known of the vocabulary that models share: some of its tokens, by id, as published. The special ones
/// tell most, because they are what those who train models change.
#[derive(Deserialize)]
struct KnownVocabulary {
    name: String,
    tokens: Vec<(TokenId, String)>,
}

/// The catalogue in memory.
struct Read {
    version: u32,
    reviewed: String,
    models: Vec<CatalogueModel>,
    cache_bytes: Vec<u64>,
    digests: Vec<Option<String>>,
    vocabularies: Vec<KnownVocabulary>,
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
        digests: file.models.iter().map(|entry| entry.vocabulary_digest.clone()).collect(),
        models: file.models.into_iter().map(|entry| entry.model).collect(),
        vocabularies: file.vocabularies,
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

/// The model of the catalogue that a model of these names is in another quantisation or from somebody else: as
/// "qwen3:8b" and "Qwen3-8B-Q5_K_M" are Qwen3 8B. A guess, good for recommending and for nothing else.
pub fn kin_of(names: &[&str]) -> Option<&'static CatalogueModel> {
    let words: Vec<String> = names.iter().flat_map(|name| words_of(name)).collect();
    let has = |wanted: &[String]| words.iter().any(|word| *word == wanted.concat());
    let is_named = |model: &&CatalogueModel| {
        let name = words_of(&model.name);
        let mut rest = &name[..];
        while !rest.is_empty() {
            // Some write two words as one: "llama3.1".
            match (1..=rest.len().min(2)).find(|&count| has(&rest[..count])) {
                Some(count) => rest = &rest[count..],
                None => return false,
            }
        }
        true
    };
    // "Qwen2.5 Coder 7B" says more than "Qwen2.5 7B".
    models().iter().filter(is_named).max_by_key(|model| words_of(&model.name).len())
}

/// What a name says, without what most names of models that answer have.
fn words_of(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).filter(|word| word != "instruct").collect()
}

/// The vocabulary of a target, to be held against those of the catalogue.
pub struct TargetVocabulary {
    vocabulary: Vocabulary,
    digest: String,
}

impl TargetVocabulary {
    /// This one.
    pub fn new(vocabulary: Vocabulary) -> Self {
        Self { digest: vocabulary.digest(), vocabulary }
    }

    /// Whether a model of the catalogue that is not here has this vocabulary. That of its very file may have been
    /// compared when the catalogue was made; else some of its tokens are known, and a match is an expectation.
    pub fn verdict(&self, model: &CatalogueModel) -> PairVerdict {
        let at = models().iter().position(|known| known.id == model.id);
        if at.and_then(|at| FILE.digests[at].as_ref()).is_some_and(|digest| *digest == self.digest) {
            return PairVerdict::Expected { compared: true };
        }
        let known = FILE.vocabularies.iter().find(|known| known.name == model.vocabulary);
        match known.and_then(|known| self.vocabulary.first_mismatch(&known.tokens)) {
            None => PairVerdict::Expected { compared: false },
            Some((first, of_draft)) => PairVerdict::OtherVocabulary {
                first: *first,
                of_target: self.vocabulary.text(*first).into(),
                of_draft: of_draft.clone(),
            },
        }
    }
}

/// What a model takes, as far as the catalogue tells.
pub fn footprint_of(model: &CatalogueModel) -> Footprint {
    Footprint::guessed(file_bytes(model), cache_bytes_per_token(&model.id))
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
    use crate::fit;
    use crate::hub::part_number;
    use crate::types::{FitVerdict, MemoryClass};
    use hunch_model::gguf::Gguf;

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
                // Of a model in parts a download would compare none of them with it.
                assert_eq!(part_number(&model.file), None, "{}: a checksum of a model in parts", model.id);
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
        }
        // A draft that nobody recommends has no business here.
        for draft in models().iter().filter(|model| model.role == CatalogueRole::Draft) {
            assert!(models().iter().any(|model| model.draft.as_ref() == Some(&draft.id)), "{}", draft.id);
        }
    }

    #[test]
    fn every_class_of_machines_has_targets_with_drafts() {
        for (class, least) in [
            (MemoryClass::Gb8, 2),
            (MemoryClass::Gb16, 2),
            (MemoryClass::Gb24To36, 2),
            (MemoryClass::Gb48, 2),
            (MemoryClass::Gb96, 1),
        ] {
            let of_class = || targets().filter(|model| model.memory_class == class);
            assert!(of_class().count() >= least, "{class:?}");
            assert!(of_class().any(|model| model.draft.is_some()), "{class:?}");
        }
    }

    /// Bytes of the smallest machine of a class, and what Metal recommends that programs take of them, by what Macs
    /// have told: 10,923 MiB of 16 GB (abetlen/llama-cpp-python#687), 21,845 of 32 (ollama/ollama#434), 49,152 of 64
    /// (ggml-org/llama.cpp#1870). That is two thirds up to there and three quarters above.
    fn smallest(class: MemoryClass) -> MachineMemory {
        let gib: u64 = match class {
            MemoryClass::Gb8 => 8,
            MemoryClass::Gb16 => 16,
            MemoryClass::Gb24To36 => 24,
            MemoryClass::Gb48 => 48,
            MemoryClass::Gb96 => 96,
        };
        let total = gib << 30;
        MachineMemory { total, usable: if gib <= 32 { total / 3 * 2 } else { total / 4 * 3 } }
    }

    #[test]
    fn every_target_fits_the_smallest_machine_of_its_class_with_its_draft() {
        const CONTEXT: u32 = 8192;
        let smaller = |class| match class {
            MemoryClass::Gb8 => None,
            MemoryClass::Gb16 => Some(MemoryClass::Gb8),
            MemoryClass::Gb24To36 => Some(MemoryClass::Gb16),
            MemoryClass::Gb48 => Some(MemoryClass::Gb24To36),
            MemoryClass::Gb96 => Some(MemoryClass::Gb48),
        };
        for model in targets() {
            let draft = model.draft.as_deref().and_then(by_id).map(footprint_of);
            let on = |class| fit::fit(&footprint_of(model), draft.as_ref(), CONTEXT, smallest(class));
            let fit = on(model.memory_class);
            assert_ne!(fit.verdict, FitVerdict::TooLarge, "{} takes {}", model.id, fit.total);
            // Nor is it kept from machines that it goes well on.
            let roomy =
                smaller(model.memory_class).map(on).is_some_and(|fit| fit.verdict == FitVerdict::Fits);
            assert!(!roomy, "{} is good on smaller machines", model.id);
        }
    }

    #[test]
    fn the_families_that_people_ask_for_are_there() {
        let families: HashSet<&str> = models().iter().map(|model| model.family.as_str()).collect();
        for family in ["Qwen3", "Qwen2.5", "Qwen2.5 Coder", "Llama 3", "SmolLM2", "SmolLM3", "Mistral"] {
            assert!(families.contains(family), "{family}");
        }
    }

    #[test]
    fn every_vocabulary_is_known_by_tokens_that_tell_it_from_others() {
        let known = |name: &str| FILE.vocabularies.iter().find(|known| known.name == name);
        for model in models() {
            let tokens = &known(&model.vocabulary).unwrap_or_else(|| panic!("{}", model.id)).tokens;
            assert!(tokens.len() >= 4 && tokens.windows(2).all(|two| two[0].0 < two[1].0), "{}", model.id);
            assert!(tokens.iter().all(|(_, text)| !text.is_empty()), "{}", model.id);
        }
        for digest in FILE.digests.iter().flatten() {
            assert!(digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()), "{digest}");
        }
    }

    #[test]
    fn a_model_is_kin_whatever_its_quantisation_and_whoever_made_it() {
        let kin = |names: &[&str]| kin_of(names).map(|model| model.id.as_str());
        assert_eq!(kin(&["Qwen3-8B-Q5_K_M"]), Some("qwen3-8b-q4_k_m"));
        assert_eq!(kin(&["qwen3:8b", "Qwen3 8B"]), Some("qwen3-8b-q4_k_m"));
        assert_eq!(kin(&["llama3.1:8b"]), Some("llama-3.1-8b-instruct-q4_k_m"));
        assert_eq!(kin(&["Meta-Llama-3.1-8B-Instruct-IQ4_XS"]), Some("llama-3.1-8b-instruct-q4_k_m"));
        assert_eq!(kin(&["qwen2.5-coder:7b"]), Some("qwen2.5-coder-7b-instruct-q4_k_m"));
        assert_eq!(kin(&["Qwen2.5-7B-Instruct-Q6_K"]), Some("qwen2.5-7b-instruct-q4_k_m"));
        assert_eq!((kin(&["Qwen3-30B-A3B"]), kin(&["target", "Tiny llama 1"]), kin(&[])), (None, None, None));
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

    #[test]
    fn what_was_compared_is_told_from_what_is_expected() {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        // A GGUF of nothing but a vocabulary.
        let of = |texts: &[&str]| {
            let mut out = b"GGUF".to_vec();
            out.extend(3u32.to_le_bytes());
            out.extend([0u64, 1].map(u64::to_le_bytes).concat());
            out.extend(text("tokenizer.ggml.tokens"));
            out.extend([9u32, 8].map(u32::to_le_bytes).concat());
            out.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|entry| out.extend(text(entry)));
            out.resize(out.len().next_multiple_of(32), 0);
            Vocabulary::from_gguf(&Gguf::parse(Path::new("x"), &out).unwrap()).unwrap()
        };
        let mistral = by_id("mistral-7b-instruct-v0.3-q4_k_m").unwrap();
        let ours = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "more"];
        let expected = TargetVocabulary::new(of(&ours));
        assert_eq!(expected.verdict(mistral), PairVerdict::Expected { compared: false });
        let other = TargetVocabulary::new(of(&["<unk>", "<s>", "</s>", "<0x00>", "<0x01>"]));
        let differs =
            PairVerdict::OtherVocabulary { first: 3, of_target: "<0x00>".into(), of_draft: "[INST]".into() };
        assert_eq!(other.verdict(mistral), differs);
        // The fingerprint says more than any token that is known.
        let coder = by_id("qwen2.5-coder-0.5b-instruct-q4_k_m").unwrap();
        let at = models().iter().position(|model| model.id == coder.id).unwrap();
        let same = TargetVocabulary { digest: FILE.digests[at].clone().unwrap(), vocabulary: of(&ours) };
        assert_eq!(same.verdict(coder), PairVerdict::Expected { compared: true });
    }
}
