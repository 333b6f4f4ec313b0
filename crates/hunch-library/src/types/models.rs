//! Models and folders on this machine.

use hunch_core::method::Method;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::fit::MachineMemory;

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

/// Models to load, or whose memory to predict.
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
