//! The wire of the model library: what is here, what fits, what goes together, what can be fetched.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_core::method::Method;
use hunch_error::ErrorInfo;

/// A model file on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelEntry {
    /// Short name, usable on the command line: the file's name without `.gguf`.
    pub name: String,
    /// Where it lies.
    pub path: String,
    /// Whose folder it lies in.
    pub source: ModelSource,
    /// Files it consists of: more than one for a split model, whose first part is at `path`.
    pub parts: u32,
    /// Size of the file, or of all parts, in bytes.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// Number of weights.
    #[ts(type = "number")]
    pub parameters: u64,
    /// Its quantisation by the name that people use, as "Q4_K_M"; where the file tells none, the type most
    /// weights have.
    pub quantisation: String,
    /// Context length in tokens.
    pub context_length: u32,
    /// Family of its tokeniser, as "gpt2 (qwen2)".
    pub tokenizer: String,
    /// Whether it brings a chat template.
    pub has_template: bool,
    /// `general.license`, where it is stated.
    pub licence: Option<String>,
    /// Tokens a second, when it last ran here: of plain decoding where that was measured, else as `ran_as` says.
    pub tokens_per_second: Option<f64>,
    /// How it ran then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub ran_as: Option<SpeedRole>,
    /// Whether it is the model Hunch starts with.
    pub is_default: bool,
    /// Why it cannot be used, if so.
    pub problem: Option<String>,
}

/// Which models to load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct LoadRequest {
    /// Path or short name of the target.
    pub target: String,
    /// Path or short name of the draft model.
    pub draft: Option<String>,
    /// Most tokens of a conversation, for both caches; the target's usual context when absent.
    pub context: Option<u32>,
}

/// Whose folder a model lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// Hunch's own.
    Hunch,
    /// One that the person has added.
    Added,
    /// The cache of Hugging Face's programs.
    HuggingFace,
    /// LM Studio's.
    LmStudio,
    /// Ollama's.
    Ollama,
    /// The cache of llama.cpp.
    LlamaCpp,
    /// Jan's.
    Jan,
}

/// A folder that is looked through for models. Only Hunch's own is ever written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ModelFolder {
    /// Where it is.
    pub path: String,
    /// Whose it is.
    pub source: ModelSource,
    /// Whether it is there.
    pub exists: bool,
    /// Models found in it.
    pub models: u32,
    /// Why it could not be looked through, or not to its end.
    pub problem: Option<String>,
}

/// The models on this machine, and the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Library {
    /// Models that can be loaded, then those that cannot, each by name.
    pub models: Vec<ModelEntry>,
    /// Where was looked.
    pub folders: Vec<ModelFolder>,
    /// What the machine has.
    pub machine: MachineMemory,
}

/// The memory of this machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct MachineMemory {
    /// All of it.
    #[ts(type = "number")]
    pub total: u64,
    /// What models may take: on a Mac the working set that Metal recommends, elsewhere what is available now
    /// and what the models in memory hold already.
    #[ts(type = "number")]
    pub usable: u64,
}

/// What to predict the memory of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct FitRequest {
    /// Path or short name of the target.
    pub target: String,
    /// Path or short name of the draft model.
    pub draft: Option<String>,
    /// Tokens that both caches hold; the target's usual context when absent.
    pub context: Option<u32>,
}

/// Predicted memory of a model that is not loaded, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct PredictedMemory {
    /// Weights.
    #[ts(type = "number")]
    pub weights: u64,
    /// The cache, full.
    #[ts(type = "number")]
    pub cache: u64,
}

/// How a model ran when its speed was measured here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SpeedRole {
    /// It answered.
    Target {
        /// With this method; plain = by itself.
        method: Method,
    },
    /// It drafted for another: the speed is that of drafting.
    Draft,
}

/// How well something fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    /// With room to spare.
    Fits,
    /// With less than a tenth to spare: other programs will feel it.
    Tight,
    /// Loading it is refused.
    TooLarge,
}

/// Predicted memory, before anything is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Fit {
    /// Tokens that both caches hold.
    pub context: u32,
    /// Of the target.
    pub target: PredictedMemory,
    /// Of the draft model.
    pub draft: Option<PredictedMemory>,
    /// Besides: the work space of passes, the tokeniser, the program.
    #[ts(type = "number")]
    pub other: u64,
    /// All of it.
    #[ts(type = "number")]
    pub total: u64,
    /// What there is.
    pub machine: MachineMemory,
    /// How well that goes.
    pub verdict: FitVerdict,
    /// What would fit, closest first, if this does not.
    pub smaller: Vec<SmallerChoice>,
}

/// A choice that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SmallerChoice {
    /// The same models with a smaller context.
    Context {
        /// Tokens.
        context: u32,
    },
    /// The target alone.
    WithoutDraft,
    /// Another model of this machine.
    Model {
        /// Its short name.
        name: String,
        /// Where it lies.
        path: String,
    },
    /// A model of the catalogue.
    Catalogue {
        /// Its number there.
        id: String,
        /// Its name.
        name: String,
    },
}

/// Whether a model can draft for a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PairVerdict {
    /// The same tokens, one by one.
    Suits {
        /// Entries that only one of the two has, at the end: padding or added tokens.
        padding: u32,
    },
    /// The catalogue has it, and by what is known of it the tokens are the same. What is here is compared one by
    /// one.
    Expected {
        /// Whether every token of that very file was compared when the catalogue was made; else the target's header
        /// has the tokens that are known of its family.
        compared: bool,
    },
    /// Another vocabulary.
    OtherVocabulary {
        /// The first token that differs; of a model that is not here, the first that is known to.
        first: u32,
        /// What the target calls it; empty where it has none.
        of_target: String,
        /// What the draft calls it.
        of_draft: String,
    },
    /// Not smaller than the target.
    NotSmaller,
    /// It cannot be used at all.
    Unusable {
        /// Why.
        reason: String,
    },
}

/// A model as a draft for a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftOffer {
    /// Its name.
    pub name: String,
    /// Where it lies, if it is here.
    pub path: Option<String>,
    /// Its number in the catalogue, if it is there.
    pub catalogue: Option<String>,
    /// Bytes of its file.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// Whether it can draft for this target.
    pub verdict: PairVerdict,
    /// Whether the catalogue recommends it for this target.
    pub recommended: bool,
    /// Bytes of weights that a pass reads, of the target's.
    pub size_ratio: f64,
    /// Bytes that both take at the context that was asked for.
    #[ts(type = "number")]
    pub memory: u64,
    /// Whether both fit into the machine.
    pub fit: FitVerdict,
    /// Speedup by the cost model at an acceptance that is typical of its size; `None` where it does not suit.
    pub predicted: Option<PredictedSpeedup>,
    /// Speedup that was measured here, of the last comparison of the pair.
    pub measured: Option<MeasuredSpeedup>,
}

/// A speedup that nobody measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct PredictedSpeedup {
    /// Against plain decoding.
    pub speedup: f64,
    /// Acceptance rate that was assumed.
    pub acceptance: f64,
    /// Depth at which it is best; 0 = plain decoding is.
    pub depth: u32,
    /// Whether the cost of passes was measured here; else it follows from the sizes alone.
    pub costs_measured: bool,
}

/// A speedup that was measured on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct MeasuredSpeedup {
    /// Against plain decoding.
    pub speedup: f64,
    /// The method that reached it.
    pub method: Method,
    /// When, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// The comparison.
    #[ts(type = "number")]
    pub comparison: i64,
}

/// What can draft for a target. Never empty without a word: methods that need no model are always there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct DraftOffers {
    /// The target.
    pub target: ModelEntry,
    /// Tokens that memory is predicted for.
    pub context: u32,
    /// SpeedLog ones first, by speedup; then by predicted speedup; those that do not suit last, each with why.
    pub offers: Vec<DraftOffer>,
    /// Methods that need no draft model.
    pub without_draft: Vec<Method>,
}

/// Memory that a machine of a class has.
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

/// What a model of the catalogue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum CatalogueRole {
    /// To talk to.
    Target,
    /// To draft for a larger one.
    Draft,
}

/// A model that can be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CatalogueModel {
    /// Its number: stable, as "qwen3-8b-q4_k_m".
    pub id: String,
    /// As people call it, as "Qwen3 8B".
    pub name: String,
    /// Family, as "Qwen3".
    pub family: String,
    /// What it is for.
    pub role: CatalogueRole,
    /// The class whose machines it is good on, the smallest too, with its draft at a context of 8,192 tokens.
    pub memory_class: MemoryClass,
    /// Number of weights.
    #[ts(type = "number")]
    pub parameters: u64,
    /// As "Q4_K_M".
    pub quantisation: String,
    /// Repository on the hub, as "Qwen/Qwen3-8B-GGUF".
    pub repository: String,
    /// The file there.
    pub file: String,
    /// Its size in bytes, as published; absent where that is not known for sure.
    #[ts(type = "number | null")]
    pub size_bytes: Option<u64>,
    /// Its SHA-256, where published.
    pub sha256: Option<String>,
    /// Licence, as the hub names it.
    pub licence: String,
    /// Number of the draft that is recommended for it.
    pub draft: Option<String>,
    /// Vocabularies of one name are the same, token by token.
    pub vocabulary: String,
    /// One line about it, or why it is here.
    pub note: String,
}

/// The catalogue, and what of it is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Catalogue {
    /// Version of the file.
    pub version: u32,
    /// When it was last gone through, as "2026-11".
    pub reviewed: String,
    /// The models.
    pub models: Vec<CatalogueModel>,
    /// The class of this machine.
    pub machine: MemoryClass,
}

/// A file of a repository on the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubFile {
    /// Its path in the repository; of a split model, that of its first part.
    pub path: String,
    /// Files it consists of.
    pub parts: u32,
    /// Bytes of all of them.
    #[ts(type = "number")]
    pub size_bytes: u64,
    /// SHA-256 of the file, where the hub tells it; absent for split models, whose parts have one each.
    pub sha256: Option<String>,
    /// Quantisation by its name, as "Q4_K_M"; empty where the name tells none.
    pub quantisation: String,
}

/// The models of a repository on the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubRepository {
    /// As "Qwen/Qwen3-8B-GGUF".
    pub repository: String,
    /// The commit these files are of.
    pub revision: String,
    /// Whether its terms have to be agreed to on the hub's page.
    pub gated: bool,
    /// Licence, where the hub tells it.
    pub licence: Option<String>,
    /// Its GGUF models, smallest first.
    pub files: Vec<HubFile>,
}

/// What to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct DownloadRequest {
    /// As "Qwen/Qwen3-8B-GGUF"; empty in a download of which nothing can be read any more.
    pub repository: String,
    /// Path of the file in it; of a split model, that of its first part.
    pub file: String,
    /// SHA-256 that it has to have, of a model of the catalogue: if the hub has another file by now, nothing is
    /// fetched. Absent: whatever the hub has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub expected_sha256: Option<String>,
}

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DownloadPhase {
    /// Another has to end first.
    Waiting,
    /// Bytes come.
    Running,
    /// The connection was lost; it is tried again in a moment.
    Retrying,
    /// All bytes are here and are being compared with the checksum.
    Checking,
    /// The person has stopped it; it goes on where it was.
    Paused,
    /// It ended with an error; it can be tried again and goes on where it was.
    Failed,
    /// The model is in the library.
    Done,
}

/// A download.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Download {
    /// Its number, the same after a restart.
    pub id: String,
    /// What is fetched.
    pub request: DownloadRequest,
    /// Short name that the model will have.
    pub name: String,
    /// How far it is.
    pub phase: DownloadPhase,
    /// Bytes that are here.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Bytes of all its files; absent before the hub has told.
    #[ts(type = "number | null")]
    pub total_bytes: Option<u64>,
    /// Over the last seconds; absent while nothing comes.
    pub bytes_per_second: Option<f64>,
    /// Time left at that speed.
    pub seconds_left: Option<f64>,
    /// What went wrong, while it is tried again or after it failed.
    pub error: Option<ErrorInfo>,
    /// Where the model lies, once it is done.
    pub path: Option<String>,
}

/// Where the hub's token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum HubTokenSource {
    /// There is none.
    Absent,
    /// `HF_TOKEN`.
    Environment,
    /// The system's keychain.
    Keychain,
    /// The file that Hugging Face's programs keep it in.
    File,
}

/// Why a token that somebody has set is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum HubTokenProblem {
    /// `HF_TOKEN` says something that can be no token.
    Environment,
    /// The system's keychain stayed shut.
    Keychain {
        /// Why, in the system's words.
        reason: String,
    },
    /// `HF_ENDPOINT` is an address whose connections are not encrypted: anybody on the way could read the token.
    Unencrypted,
}

/// The hub, as this machine sees it. The token itself never leaves the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubState {
    /// Its address; `HF_ENDPOINT` changes it.
    pub endpoint: String,
    /// Where the token comes from.
    pub token: HubTokenSource,
    /// Whether this system has a keychain to keep one in.
    pub can_keep_token: bool,
    /// Why a token is not used although one was set.
    pub problems: Vec<HubTokenProblem>,
}

/// How far loading is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LoadProgress {
    /// Short name of the model that is being read.
    pub name: String,
    /// Bytes of weights that are in memory.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Bytes of all weights that have to come.
    #[ts(type = "number")]
    pub total_bytes: u64,
}

/// What happens to the library, as it happens. Each tells the whole of its thing, so a lost one does no harm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LibraryEvent {
    /// Models came or went: ask for the library again.
    Changed,
    /// A download moved.
    Download {
        /// As it is now.
        download: Box<Download>,
    },
    /// A download was taken away.
    DownloadGone {
        /// Its number.
        id: String,
    },
    /// Models are being loaded.
    Loading {
        /// As it is now.
        progress: LoadProgress,
    },
    /// The models in memory were let go, by the person or because nobody used them for the keep-warm time.
    Unloaded,
    /// The file of conversations is damaged, or another one is in use: ask again what the application says of itself.
    StoreProblem,
}
