//! Wire types of the model library, its downloads and the Hub.

mod hub;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::method::Method;
use hunch_error::ErrorInfo;

pub use hub::{HubCard, HubFormat, HubResult, HubSearch, HubSearchPage, HubSort, HubSupport};

/// A model file on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelEntry {
    /// Short name, usable on the command line: the file's name without `.gguf`.
    pub name: String,
    /// Name as people know it, such as "SmolLM2 135M Instruct". Not unique: quantisations share it. Equal to
    /// `name` if the header states no model.
    pub title: String,
    /// Path of the file.
    pub path: String,
    /// Owner of the folder it is in.
    pub source: ModelSource,
    /// Number of files. A split model has several, and `path` is its first part.
    pub parts: u32,
    /// Size of the file, or of all parts, in bytes.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// Number of weights.
    #[ts(type = "number")]
    pub parameters: u64,
    /// Quantisation by its common name, such as "Q4_K_M". If the file states none, the type of most
    /// weights.
    pub quantisation: String,
    /// Context length in tokens.
    pub context_length: u32,
    /// Tokeniser family, such as "gpt2 (qwen2)".
    pub tokenizer: String,
    /// Set if the file contains a chat template.
    pub has_template: bool,
    /// `general.license`, if stated.
    pub licence: Option<String>,
    /// Layer in its own file that drafts for it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub own_drafter: Option<OwnDrafter>,
    /// Last measured speed on this machine, in tokens per second: that of plain decoding if measured,
    /// otherwise as in `ran_as`.
    pub tokens_per_second: Option<f64>,
    /// Role and method of that measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub ran_as: Option<SpeedRole>,
    /// Set for the default model.
    pub is_default: bool,
    /// Reason why it cannot be used, if there is one.
    pub problem: Option<String>,
}

/// A layer in a model's own file that drafts for it (multi-token prediction).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum OwnDrafter {
    /// Its tensors are complete.
    Usable {
        /// Bytes of its weights in the file.
        #[ts(type = "number")]
        size_bytes: u64,
    },
    /// It cannot draft. The model runs without it.
    Unusable {
        /// A sentence with the reason, in English.
        reason: String,
    },
}

/// Models to load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct LoadRequest {
    /// Path or short name of the target.
    pub target: String,
    /// Path or short name of the draft model.
    pub draft: Option<String>,
    /// Path or name of the head. Absent: the newest one that was trained here, else the layer of the target's own file
    /// that drafts, else the shipped one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub head: Option<String>,
    /// Tokens that both caches hold. Absent: the target's default context.
    pub context: Option<u32>,
}

/// Owner of the folder a model is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// Hunch's own folder.
    Hunch,
    /// A folder added by the user.
    Added,
    /// Hugging Face's cache.
    HuggingFace,
    /// LM Studio.
    LmStudio,
    /// Ollama.
    Ollama,
    /// llama.cpp's cache.
    LlamaCpp,
    /// Jan.
    Jan,
}

/// A folder searched for models. Hunch writes only to its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ModelFolder {
    /// Path of the folder.
    pub path: String,
    /// Its owner.
    pub source: ModelSource,
    /// Set if it exists.
    pub exists: bool,
    /// Number of models found in it.
    pub models: u32,
    /// Reason for a skipped or incomplete search, if there is one.
    pub problem: Option<String>,
}

/// The models on this machine, and its memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Library {
    /// Usable models, then unusable ones, each by name.
    pub models: Vec<ModelEntry>,
    /// The folders searched.
    pub folders: Vec<ModelFolder>,
    /// Memory of the machine.
    pub machine: MachineMemory,
}

/// The memory of this machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct MachineMemory {
    /// Total memory.
    #[ts(type = "number")]
    pub total: u64,
    /// Memory available to models: on a Mac, the working set that Metal recommends. Elsewhere, the memory
    /// available now plus what loaded models hold.
    #[ts(type = "number")]
    pub usable: u64,
}

/// Models whose memory to predict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct FitRequest {
    /// Path or short name of the target.
    pub target: String,
    /// Path or short name of the draft model.
    pub draft: Option<String>,
    /// Path or name of the head. Absent: the newest one that was trained here, else the layer of the target's own file
    /// that drafts, else the shipped one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub head: Option<String>,
    /// Tokens that both caches hold. Absent: the target's default context.
    pub context: Option<u32>,
}

/// Predicted memory of one model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct PredictedMemory {
    /// Weights.
    #[ts(type = "number")]
    pub weights: u64,
    /// The full KV cache.
    #[ts(type = "number")]
    pub cache: u64,
}

/// Role of a model when its speed was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SpeedRole {
    /// The model generated an answer.
    Target {
        /// The method. Plain decoding is the model by itself.
        method: Method,
    },
    /// The model drafted for another. The speed is the drafting rate.
    Draft,
}

/// Degree to which something fits in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    /// At least 10% of usable memory remains free.
    Fits,
    /// Less than 10% remains free. Other programs may slow down.
    Tight,
    /// It does not fit, and loading is refused.
    TooLarge,
}

/// Predicted memory of a target and its draft.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Fit {
    /// Tokens that both caches hold.
    pub context: u32,
    /// The target.
    pub target: PredictedMemory,
    /// The draft model.
    pub draft: Option<PredictedMemory>,
    /// The head that drafts for the target.
    pub head: Option<PredictedMemory>,
    /// Scratch space, tokeniser and program, in bytes.
    #[ts(type = "number")]
    pub other: u64,
    /// Sum of all parts, in bytes.
    #[ts(type = "number")]
    pub total: u64,
    /// Memory of the machine.
    pub machine: MachineMemory,
    /// The verdict.
    pub verdict: FitVerdict,
    /// Alternatives that fit, closest first, if this does not.
    pub smaller: Vec<SmallerChoice>,
}

/// An alternative that fits in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SmallerChoice {
    /// The same models with a smaller context.
    Context {
        /// Tokens.
        context: u32,
    },
    /// The target without a draft.
    WithoutDraft,
    /// Another installed model.
    Model {
        /// Its short name.
        name: String,
        /// Path of its file.
        path: String,
    },
    /// A catalogue model.
    Catalogue {
        /// Its id in the catalogue.
        id: String,
        /// Its name.
        name: String,
    },
}

/// Verdict on a model as a draft for a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PairVerdict {
    /// Both vocabularies are equal, token by token.
    Suits {
        /// Entries at the end that only one of the two has: padding or added tokens.
        padding: u32,
    },
    /// A catalogue model that is expected to share the vocabulary. Installed models are compared token by
    /// token.
    Expected {
        /// Set if this exact file was compared token by token for the catalogue. Otherwise the target has
        /// the known tokens of the model's family.
        compared: bool,
    },
    /// The vocabularies differ. The draft's tokens are translated, and only shared ones are drafted.
    Translated {
        /// Tokens of the draft that the target has too.
        shared: u32,
        /// All tokens of the draft, without control tokens and padding.
        of: u32,
    },
    /// The vocabularies differ. They share too little, or the model is not installed.
    OtherVocabulary {
        /// First differing token. For a model that is not installed, the first known one.
        first: u32,
        /// The target's text for it, empty if it has no such token.
        of_target: String,
        /// The draft's text for it.
        of_draft: String,
    },
    /// The model is not smaller than the target.
    NotSmaller,
    /// The model cannot be used at all.
    Unusable {
        /// The reason.
        reason: String,
    },
}

/// A possible draft for a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftOffer {
    /// Its name.
    pub name: String,
    /// Path of its file, if it is installed.
    pub path: Option<String>,
    /// Its id in the catalogue, if it is listed there.
    pub catalogue: Option<String>,
    /// Size of its file, in bytes.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// The verdict.
    pub verdict: PairVerdict,
    /// Set if the catalogue recommends it for this target.
    pub recommended: bool,
    /// Bytes of weights read per pass, relative to the target's.
    pub size_ratio: f64,
    /// Predicted memory of both at the requested context, in bytes.
    #[ts(type = "number")]
    pub memory: u64,
    /// Verdict on the memory of both.
    pub fit: FitVerdict,
    /// Predicted speedup at a typical acceptance rate, or `None` if it cannot draft.
    pub predicted: Option<PredictedSpeedup>,
    /// Measured speedup of the pair's last comparison.
    pub measured: Option<MeasuredSpeedup>,
}

/// A head on this machine as a drafter for a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct HeadOffer {
    /// Name of its folder or file.
    pub name: String,
    /// Path of its folder or file.
    pub path: String,
    /// Its architecture, such as "EAGLE-3".
    pub kind: String,
    /// Name of the model that it was trained for, if its files state it.
    pub trained_for: Option<String>,
    /// Reason why it cannot draft for the target, or `None` if its sizes match.
    pub problem: Option<String>,
    /// Bytes of all weights in its files.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// Predicted memory of target and head at the requested context, in bytes.
    #[ts(type = "number")]
    pub memory: u64,
    /// Verdict on the memory of both.
    pub fit: FitVerdict,
    /// Predicted speedup, if there are figures to predict it from.
    pub predicted: Option<PredictedSpeedup>,
}

/// A predicted speedup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct PredictedSpeedup {
    /// Speedup over plain decoding.
    pub speedup: f64,
    /// Assumed acceptance rate.
    pub acceptance: f64,
    /// Best draft length in tokens, or 0 if plain decoding is fastest.
    pub depth: u32,
    /// Source of the pass costs.
    pub costs: CostSource,
}

/// Source of the pass costs behind a predicted speedup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// Passes that were measured on this machine.
    Measured,
    /// Figures of the GPU: its products, timed by the self-test, or those of its chip.
    Gpu,
    /// Sizes of the files.
    Sizes,
}

/// A speedup measured on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct MeasuredSpeedup {
    /// Speedup over plain decoding.
    pub speedup: f64,
    /// The method that reached it.
    pub method: Method,
    /// End of the comparison, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// Id of the comparison.
    #[ts(type = "number")]
    pub comparison: i64,
}

/// Possible drafts for a target. Methods without a draft model are always available.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftOffers {
    /// The target.
    pub target: ModelEntry,
    /// Context for the memory prediction, in tokens.
    pub context: u32,
    /// Usable drafts first, by measured and then predicted speedup. Unusable ones follow, each with a
    /// reason.
    pub offers: Vec<DraftOffer>,
    /// Heads on this machine: those whose sizes match first, by predicted speedup.
    pub heads: Vec<HeadOffer>,
    /// The layer in the target's own file that drafts, if it can. Its path is that of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub own_head: Option<HeadOffer>,
    /// Methods without a draft model.
    pub without_draft: Vec<Method>,
}

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

/// The catalogue, and this machine's memory class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Catalogue {
    /// Version of the catalogue.
    pub version: u32,
    /// Month of the last review, such as "2026-11".
    pub reviewed: String,
    /// The models.
    pub models: Vec<CatalogueModel>,
    /// Memory class of this machine.
    pub machine: MemoryClass,
}

/// A model file in a Hub repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubFile {
    /// Path in the repository. For a split model, of its first part.
    pub path: String,
    /// Number of files.
    pub parts: u32,
    /// Size of all files, in bytes.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// SHA-256 of the file, if the Hub reports it. Absent for split models, whose parts have one each.
    pub sha256: Option<String>,
    /// Quantisation, such as "Q4_K_M". Empty if the name does not contain one.
    pub quantisation: String,
}

/// The models of a Hub repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubRepository {
    /// Name, such as "Qwen/Qwen3-8B-GGUF".
    pub repository: String,
    /// Commit of this listing.
    pub revision: String,
    /// Set if its terms must be accepted on its page.
    pub gated: bool,
    /// Licence, if the Hub reports it.
    pub licence: Option<String>,
    /// GGUF models, smallest first.
    pub files: Vec<HubFile>,
}

/// A file to download.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct DownloadRequest {
    /// Name of the repository, such as "Qwen/Qwen3-8B-GGUF". Empty if the download's state file is
    /// unreadable.
    pub repository: String,
    /// Path of the file in the repository. For a split model, of its first part.
    pub file: String,
    /// Required SHA-256, for a catalogue model. If the Hub's file differs, nothing is downloaded. Absent:
    /// any file is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub expected_sha256: Option<String>,
}

/// Phase of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DownloadPhase {
    /// Waiting for another download to finish.
    Waiting,
    /// Receiving bytes.
    Running,
    /// The connection was lost and will be retried.
    Retrying,
    /// Verifying the checksum.
    Checking,
    /// Paused by the user. Can be resumed.
    Paused,
    /// Ended with an error. Can be resumed.
    Failed,
    /// The model is in the library.
    Done,
}

/// A download.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Download {
    /// Its id, stable across restarts.
    pub id: String,
    /// The requested file.
    pub request: DownloadRequest,
    /// Short name of the resulting model.
    pub name: String,
    /// Current phase.
    pub phase: DownloadPhase,
    /// Bytes received so far.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Size of all files in bytes, once the Hub has reported it.
    #[ts(type = "number | null")]
    pub total_bytes: Option<u64>,
    /// Current speed, absent while nothing arrives.
    pub bytes_per_second: Option<f64>,
    /// Time left at that speed.
    pub seconds_left: Option<f64>,
    /// The error being retried, or the one that ended the download.
    pub error: Option<ErrorInfo>,
    /// Path of the model, once done.
    pub path: Option<String>,
}

/// Source of the Hub token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum HubTokenSource {
    /// There is no token.
    Absent,
    /// `HF_TOKEN`.
    Environment,
    /// The system's keychain.
    Keychain,
    /// The token file of Hugging Face's tools.
    File,
}

/// Reason for not using a configured token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HubTokenProblem {
    /// `HF_TOKEN` is not a well-formed token.
    Environment,
    /// The keychain could not be read.
    Keychain {
        /// The system's reason.
        reason: String,
    },
    /// `HF_ENDPOINT` is unencrypted, so the token could be read in transit.
    Unencrypted,
}

/// State of the Hub connection. The token itself never leaves the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubState {
    /// Address of the Hub. `HF_ENDPOINT` changes it.
    pub endpoint: String,
    /// Source of the token.
    pub token: HubTokenSource,
    /// Set if this system has a keychain to store a token in.
    pub can_keep_token: bool,
    /// Reasons for not using configured tokens.
    pub problems: Vec<HubTokenProblem>,
}

/// Progress of loading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LoadProgress {
    /// Short name of the model being read.
    pub name: String,
    /// Bytes of weights loaded so far.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Bytes of all weights to load.
    #[ts(type = "number")]
    pub total_bytes: u64,
}

/// A change of the library. Each event carries the full new state of its subject, so a lost one does no
/// harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LibraryEvent {
    /// Models were added or removed. Request the library again.
    Changed,
    /// A download changed.
    Download {
        /// Its current state.
        download: Box<Download>,
    },
    /// A download was removed.
    DownloadGone {
        /// Its id.
        id: String,
    },
    /// Models are being loaded.
    Loading {
        /// Current progress.
        progress: LoadProgress,
    },
    /// The models were unloaded, by the user or after the idle time.
    Unloaded,
    /// The store is damaged, or another file is in use. Request the app's state again.
    StoreProblem,
    /// The self-test of the GPU's kernels ended. Request the app's state again.
    GpuTested,
}
