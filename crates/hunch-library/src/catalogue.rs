//! The catalogue: recommended models, and the draft and published heads for each. It is embedded in the program and
//! parsed on first use. Unpublished figures are absent.

use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;

use super::fit::Footprint;
use super::machine::memory_class;
use crate::types::{Catalogue, CatalogueHead, CatalogueModel, CatalogueRole, MachineMemory, PairVerdict};
use hunch_core::token::TokenId;
use hunch_model::split;
use hunch_model::text::Vocabulary;

/// Layout of `catalogue.json`.
#[derive(Deserialize)]
struct CatalogueFile {
    version: u32,
    reviewed: String,
    models: Vec<CatalogueEntry>,
    heads: Vec<CatalogueHead>,
    vocabularies: Vec<KnownVocabulary>,
}

/// A catalogue entry: the model, and the dimensions that determine its KV cache size.
#[derive(Deserialize)]
struct CatalogueEntry {
    #[serde(flatten)]
    model: CatalogueModel,
    #[serde(flatten)]
    layers: CachedLayers,
    /// Layers with other heads.
    #[serde(default)]
    other_layers: Option<CachedLayers>,
    /// [`Vocabulary::digest`] of this exact file, if it was computed.
    #[serde(default)]
    vocabulary_digest: Option<String>,
}

/// Layers that cache keys and values of their own.
#[derive(Deserialize)]
struct CachedLayers {
    layers: u64,
    kv_heads: u64,
    head_width: u64,
}

impl CachedLayers {
    /// Returns the bytes of an f32 KV cache for one token.
    fn cache_bytes(&self) -> u64 {
        2 * self.layers * self.kv_heads * self.head_width * size_of::<f32>() as u64
    }
}

/// Some published tokens of a shared vocabulary, by id. Special tokens distinguish best, because
/// fine-tuning changes those.
#[derive(Deserialize)]
struct KnownVocabulary {
    name: String,
    tokens: Vec<(TokenId, String)>,
}

/// The parsed catalogue.
struct CatalogueIndex {
    version: u32,
    reviewed: String,
    models: Vec<CatalogueModel>,
    heads: Vec<CatalogueHead>,
    cache_bytes: Vec<u64>,
    digests: Vec<Option<String>>,
    vocabularies: Vec<KnownVocabulary>,
}

static INDEX: LazyLock<CatalogueIndex> = LazyLock::new(|| {
    let file: CatalogueFile =
        serde_json::from_str(include_str!("catalogue.json")).expect("the embedded catalogue is valid");
    let cache = |entry: &CatalogueEntry| {
        entry.layers.cache_bytes() + entry.other_layers.as_ref().map_or(0, CachedLayers::cache_bytes)
    };
    CatalogueIndex {
        version: file.version,
        reviewed: file.reviewed,
        cache_bytes: file.models.iter().map(cache).collect(),
        digests: file.models.iter().map(|entry| entry.vocabulary_digest.clone()).collect(),
        models: file.models.into_iter().map(|entry| entry.model).collect(),
        heads: file.heads,
        vocabularies: file.vocabularies,
    }
});

/// Returns the catalogue's models, grouped by family, drafts first.
pub fn models() -> &'static [CatalogueModel] {
    &INDEX.models
}

/// Returns the heads that were trained for a model of the catalogue, in any quantisation.
pub fn heads_for(model: &CatalogueModel) -> impl Iterator<Item = &'static CatalogueHead> {
    INDEX.heads.iter().filter(|head| head.target == model.name)
}

/// Returns the catalogue, with the memory class of this machine.
pub fn catalogue(machine: MachineMemory) -> Catalogue {
    Catalogue {
        version: INDEX.version,
        reviewed: INDEX.reviewed.clone(),
        models: INDEX.models.clone(),
        heads: INDEX.heads.clone(),
        machine: memory_class(machine.total),
    }
}

/// Returns the model with this id.
pub fn by_id(id: &str) -> Option<&'static CatalogueModel> {
    models().iter().find(|model| model.id == id)
}

/// Returns the catalogue model that a local file is, by name and, if published, size.
pub fn match_file(name: &str, size_bytes: u64) -> Option<&'static CatalogueModel> {
    models().iter().find(|model| {
        split::stem(Path::new(&model.file)).eq_ignore_ascii_case(name)
            && model.size_bytes.is_none_or(|size| size == size_bytes)
    })
}

/// Guesses the catalogue model that these names refer to. Quantisation and publisher may differ: "qwen3:8b"
/// and "Qwen3-8B-Q5_K_M" are both Qwen3 8B. Suitable for recommendations only.
pub fn guess_by_name(names: &[&str]) -> Option<&'static CatalogueModel> {
    let words: Vec<String> = names.iter().flat_map(|name| words_of(name)).collect();
    let has = |wanted: &[String]| words.iter().any(|word| *word == wanted.concat());
    let is_named = |model: &&CatalogueModel| {
        let name = words_of(&model.name);
        let mut rest = &name[..];
        while !rest.is_empty() {
            // Some names join two words: "llama3.1".
            match (1..=rest.len().min(2)).find(|&count| has(&rest[..count])) {
                Some(count) => rest = &rest[count..],
                None => return false,
            }
        }
        true
    };
    // The longest name wins: "Qwen2.5 Coder 7B" over "Qwen2.5 7B".
    models().iter().filter(is_named).max_by_key(|model| words_of(&model.name).len())
}

/// Splits a name into lowercase words, without "instruct".
fn words_of(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).filter(|word| word != "instruct").collect()
}

/// A target's vocabulary, for comparison with catalogue models.
pub struct TargetVocabulary {
    vocabulary: Vocabulary,
    digest: String,
}

impl TargetVocabulary {
    /// Computes the digest of a vocabulary.
    pub fn new(vocabulary: Vocabulary) -> Self {
        Self { digest: vocabulary.digest(), vocabulary }
    }

    /// Judges whether a catalogue model that is not installed shares this vocabulary. An equal digest
    /// proves it. Otherwise the known tokens of its family are compared, and a match is an expectation.
    pub fn verdict(&self, model: &CatalogueModel) -> PairVerdict {
        let at = models().iter().position(|known| known.id == model.id);
        if at.and_then(|at| INDEX.digests[at].as_ref()).is_some_and(|digest| *digest == self.digest) {
            return PairVerdict::Expected { compared: true };
        }
        let known = INDEX.vocabularies.iter().find(|known| known.name == model.vocabulary);
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

/// Estimates the memory footprint of a catalogue model.
pub fn footprint_of(model: &CatalogueModel) -> Footprint {
    Footprint::estimate(file_bytes(model), cache_bytes_per_token(&model.id))
}

/// Returns the size of a model's file in bytes. Unpublished sizes are estimated from parameters and
/// quantisation.
pub fn file_bytes(model: &CatalogueModel) -> u64 {
    // Average bits per weight of such files, including embeddings and scales.
    let bits = match model.quantisation.as_str() {
        "Q8_0" => 8.5,
        "Q6_K" => 6.6,
        // gpt-oss: only its experts have this type.
        "MXFP4" => 4.35,
        _ => 4.9,
    };
    model.size_bytes.unwrap_or((model.parameters as f64 * bits / 8.0) as u64)
}

/// Returns the KV cache size of a catalogue model, in bytes per token.
pub fn cache_bytes_per_token(id: &str) -> u64 {
    let at = models().iter().position(|model| model.id == id);
    at.and_then(|at| INDEX.cache_bytes.get(at)).copied().unwrap_or(0)
}

/// Returns the catalogue's targets, largest first.
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
    use crate::hub::{self, part_number};
    use crate::types::{CheckSource, FitVerdict, MemoryClass};
    use hunch_model::gguf::Gguf;

    #[test]
    fn catalogue_file_is_valid() {
        assert!(INDEX.version >= 1);
        let (year, month) = INDEX.reviewed.split_once('-').unwrap();
        assert!(year.parse::<u32>().unwrap() >= 2026 && (1..=12).contains(&month.parse::<u32>().unwrap()));
        let ids: HashSet<_> = models().iter().map(|model| &model.id).collect();
        assert_eq!(ids.len(), models().len(), "ids are unique");
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
                // A download cannot check one checksum against several parts.
                assert_eq!(part_number(&model.file), None, "{}: a checksum of a split model", model.id);
            }
            let is_month = |month: &str| month.len() == 7 && month.as_bytes()[4] == b'-';
            assert!(is_month(&model.checked.month) && model.checked.month <= INDEX.reviewed, "{}", model.id);
            let has_size = model.size_bytes.is_some();
            assert_eq!(model.checked.source == CheckSource::NameOnly, !has_size, "{}", model.id);
            // A size far from the estimate is a typing error.
            if let Some(size) = model.size_bytes {
                let by_weights = file_bytes(&CatalogueModel { size_bytes: None, ..model.clone() });
                let ratio = size as f64 / by_weights as f64;
                assert!((0.8..1.8).contains(&ratio), "{}: {ratio}", model.id);
            }
        }
    }

    #[test]
    fn recommended_drafts_exist_are_smaller_and_share_the_vocabulary() {
        for model in models() {
            let Some(id) = &model.draft else { continue };
            assert_eq!(model.role, CatalogueRole::Target, "{}", model.id);
            let draft = by_id(id).unwrap();
            assert_eq!(draft.role, CatalogueRole::Draft, "{id}");
            assert_eq!(draft.vocabulary, model.vocabulary, "{}", model.id);
            assert!(file_bytes(draft) < file_bytes(model), "{}", model.id);
            assert!(draft.memory_class <= model.memory_class, "{}", model.id);
        }
        // Every draft must be recommended for some target.
        for draft in models().iter().filter(|model| model.role == CatalogueRole::Draft) {
            assert!(models().iter().any(|model| model.draft.as_ref() == Some(&draft.id)), "{}", draft.id);
        }
    }

    #[test]
    fn heads_name_a_target_and_a_file_that_hunch_can_download() {
        assert!(!INDEX.heads.is_empty());
        let repositories: HashSet<_> = INDEX.heads.iter().map(|head| &head.repository).collect();
        assert_eq!(repositories.len(), INDEX.heads.len(), "repositories are unique");
        for head in &INDEX.heads {
            let of = &head.repository;
            assert!(targets().any(|model| model.name == head.target), "{of}: no target {}", head.target);
            assert!(hub::repository(of).is_ok_and(|name| name == *of), "{of}");
            assert!(hub::is_folder(&head.file) && hub::check_path(&head.file).is_ok(), "{of}");
            assert!(["EAGLE-1", "EAGLE-3", "Medusa", "DFlash", "DSpark"].contains(&&head.kind[..]), "{of}");
            let has_size = head.size_bytes.is_some();
            assert_eq!(head.checked.source == CheckSource::NameOnly, !has_size, "{of}");
            assert!(head.checked.month <= INDEX.reviewed, "{of}");
            assert!(hub::is_head_name(of), "{of}: the listing would not take it for a head");
        }
    }

    #[test]
    fn every_memory_class_has_targets_with_drafts() {
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

    /// Returns the memory of the smallest machine of a class. The usable part is the working set that Metal
    /// recommends: two thirds up to 32 GB, and three quarters above. Reported for Macs are 10,923 MiB of 16 GB
    /// (abetlen/llama-cpp-python#687), 21,845 of 32 (ollama/ollama#434), 49,152 of 64
    /// (ggml-org/llama.cpp#1870).
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
    fn every_target_and_draft_fit_the_smallest_machine_of_their_class() {
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
            // Its class must not be larger than necessary.
            let roomy =
                smaller(model.memory_class).map(on).is_some_and(|fit| fit.verdict == FitVerdict::Fits);
            assert!(!roomy, "{} fits in a smaller class", model.id);
        }
    }

    #[test]
    fn popular_families_are_present() {
        let families: HashSet<&str> = models().iter().map(|model| model.family.as_str()).collect();
        for family in [
            "Qwen3",
            "Qwen3.5",
            "Qwen2.5",
            "Qwen2.5 Coder",
            "Llama 3",
            "SmolLM2",
            "SmolLM3",
            "Mistral",
            "Ministral 3",
            "Gemma 3",
            "Gemma 4",
            "Phi-4",
            "GLM-4",
            "Granite 3",
            "OLMo 2",
            "EXAONE 4",
            "Seed-OSS",
            "DeepSeek-R1",
            "gpt-oss",
            "GLM-4.5",
            "LFM2",
            "Qwen3 Coder",
            "Qwen3-Next",
            "Granite 4",
            "OLMo 3",
            "Ling",
            "Llama 4",
        ] {
            assert!(families.contains(family), "{family}");
        }
    }

    #[test]
    fn every_vocabulary_has_distinguishing_tokens() {
        let known = |name: &str| INDEX.vocabularies.iter().find(|known| known.name == name);
        for model in models() {
            let tokens = &known(&model.vocabulary).unwrap_or_else(|| panic!("{}", model.id)).tokens;
            assert!(tokens.len() >= 3 && tokens.windows(2).all(|two| two[0].0 < two[1].0), "{}", model.id);
            assert!(tokens.iter().all(|(_, text)| !text.is_empty()), "{}", model.id);
        }
        for digest in INDEX.digests.iter().flatten() {
            assert!(digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()), "{digest}");
        }
    }

    #[test]
    fn guesses_model_across_quantisations_and_publishers() {
        let guess = |names: &[&str]| guess_by_name(names).map(|model| model.id.as_str());
        assert_eq!(guess(&["Qwen3-8B-Q5_K_M"]), Some("qwen3-8b-q4_k_m"));
        assert_eq!(guess(&["qwen3:8b", "Qwen3 8B"]), Some("qwen3-8b-q4_k_m"));
        assert_eq!(guess(&["llama3.1:8b"]), Some("llama-3.1-8b-instruct-q4_k_m"));
        assert_eq!(guess(&["Meta-Llama-3.1-8B-Instruct-IQ4_XS"]), Some("llama-3.1-8b-instruct-q4_k_m"));
        assert_eq!(guess(&["qwen2.5-coder:7b"]), Some("qwen2.5-coder-7b-instruct-q4_k_m"));
        assert_eq!(guess(&["Qwen3-30B-A3B-Instruct-2507-Q5_K_M"]), Some("qwen3-30b-a3b-q4_k_m"));
        assert_eq!(guess(&["Qwen2.5-7B-Instruct-Q6_K"]), Some("qwen2.5-7b-instruct-q4_k_m"));
        assert_eq!(guess(&["qwen3-coder:30b-a3b"]), Some("qwen3-coder-30b-a3b-instruct-q4_k_m"));
        assert_eq!(guess(&["gpt-oss:20b"]), Some("gpt-oss-20b-mxfp4"));
        assert_eq!(
            (guess(&["Qwen3-235B-A22B"]), guess(&["target", "Tiny Llama 1"]), guess(&[])),
            (None, None, None)
        );
    }

    #[test]
    fn matches_file_by_name_and_size() {
        let known = by_id("qwen2.5-coder-0.5b-instruct-q4_k_m").unwrap();
        let name = "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M";
        assert_eq!(match_file(name, 491_400_064), Some(known));
        assert_eq!(match_file(name, 491_400_065), None);
        assert_eq!(match_file("another", 491_400_064), None);
        let scout = match_file("Llama-4-Scout-17B-16E-Instruct-Q4_K_M", 65_359_900_352);
        assert!(scout.is_some(), "a model in several files");
        // 24 layers, 2 heads of width 64, keys and values, 4 bytes each.
        assert_eq!(cache_bytes_per_token(&known.id), 24 * 2 * 64 * 2 * 4);
        // 20 layers with heads of width 256, and 4 with heads of width 512.
        assert_eq!(cache_bytes_per_token("gemma-4-e4b-it-q4_0"), (20 * 256 + 4 * 512) * 2 * 2 * 4);
    }

    #[test]
    fn verdict_distinguishes_compared_from_expected_vocabularies() {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        // Builds a GGUF that holds only a vocabulary.
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
        // An equal digest outweighs differing known tokens.
        let coder = by_id("qwen2.5-coder-0.5b-instruct-q4_k_m").unwrap();
        let at = models().iter().position(|model| model.id == coder.id).unwrap();
        let same = TargetVocabulary { digest: INDEX.digests[at].clone().unwrap(), vocabulary: of(&ours) };
        assert_eq!(same.verdict(coder), PairVerdict::Expected { compared: true });
    }
}
