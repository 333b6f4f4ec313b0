//! The catalogue of models.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Memory class of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// 8 GB.
    Gb8,
    /// 16 GB.
    Gb16,
    /// 24 to 36 GB.
    Gb24To36,
    /// 48 to 64 GB.
    Gb48,
    /// 96 GB or more.
    Gb96,
}

/// Role of a catalogue model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CatalogueRole {
    /// To chat with.
    Target,
    /// To draft for a larger model.
    Draft,
}

/// Sources that an entry of the catalogue was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CheckSource {
    /// Size and, for single files, checksum as the Hub publishes them.
    Published,
    /// Public documents and code that agree on repository, file and size. The Hub was not asked.
    PublicSources,
    /// Public documents and code that name repository and file. The size is unknown.
    NameOnly,
}

/// Last check of an entry of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CatalogueCheck {
    /// Month, such as "2026-11".
    pub month: String,
    /// Sources.
    pub source: CheckSource,
}

/// A downloadable model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CatalogueModel {
    /// Stable id, such as "qwen3-8b-q4_k_m".
    pub id: String,
    /// Display name, such as "Qwen3 8B".
    pub name: String,
    /// Family, such as "Qwen3".
    pub family: String,
    /// Its role.
    pub role: CatalogueRole,
    /// Smallest memory class in which the model and its draft fit. The context is 8,192 tokens.
    pub memory_class: MemoryClass,
    /// Number of weights.
    #[ts(type = "number")]
    pub parameters: u64,
    /// Quantisation, such as "Q4_K_M".
    pub quantisation: String,
    /// Repository on the Hub, such as "Qwen/Qwen3-8B-GGUF".
    pub repository: String,
    /// Path of the file in the repository.
    pub file: String,
    /// Published size in bytes, if known for certain.
    #[ts(type = "number | null")]
    pub size_bytes: Option<u64>,
    /// Published SHA-256, if there is one.
    pub sha256: Option<String>,
    /// Licence, as named on the Hub.
    pub licence: String,
    /// Id of the recommended draft.
    pub draft: Option<String>,
    /// Name of its vocabulary. Equal names mean equal tokens.
    pub vocabulary: String,
    /// One line about the model.
    pub note: String,
    /// Last check of this entry.
    pub checked: CatalogueCheck,
}

/// A downloadable head, which drafts for one model of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CatalogueHead {
    /// Architecture, such as "EAGLE-3".
    pub kind: String,
    /// Name of the model in the catalogue that it was trained for.
    pub target: String,
    /// Repository on the Hub, such as "AngelSlim/Qwen3-8B_eagle3".
    pub repository: String,
    /// Name of a weight file, which stands for the folder. The repository may have another.
    pub file: String,
    /// Published size of its weights in bytes, if known for certain.
    #[ts(type = "number | null")]
    pub size_bytes: Option<u64>,
    /// Licence, as named on the Hub, if known.
    pub licence: Option<String>,
    /// Last check of this entry.
    pub checked: CatalogueCheck,
}

/// The catalogue, and this machine's memory class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Catalogue {
    /// Version of the catalogue.
    pub version: u32,
    /// Month of the last review, such as "2026-11".
    pub reviewed: String,
    /// The models.
    pub models: Vec<CatalogueModel>,
    /// Heads for the models.
    pub heads: Vec<CatalogueHead>,
    /// Memory class of this machine.
    pub machine: MemoryClass,
}
