//! Wire types of searches of the Hub, and of model cards.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Order of search results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum HubSort {
    /// Most downloads in the last 30 days first.
    #[default]
    Downloads,
    /// Most likes first.
    Likes,
}

/// Format of the models to search for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum HubFormat {
    /// GGUF files.
    #[default]
    Gguf,
    /// Folders of safetensors files for MLX.
    Mlx,
}

/// A search of the Hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubSearch {
    /// Words of the repository's name.
    pub query: String,
    /// Order of the results.
    pub sort: HubSort,
    /// Format of the models.
    pub format: HubFormat,
    /// `next` of the page before. Absent for the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub cursor: Option<String>,
}

/// A page of search results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubSearchPage {
    /// The repositories, in the order of the search.
    pub results: Vec<HubResult>,
    /// Cursor of the next page, if there is one.
    pub next: Option<String>,
}

/// A repository that a search found. Absent facts are those that the Hub does not report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubResult {
    /// Name, such as "Qwen/Qwen3-8B-GGUF".
    pub repository: String,
    /// Downloads in the last 30 days.
    #[ts(type = "number | null")]
    pub downloads: Option<u64>,
    /// Likes.
    #[ts(type = "number | null")]
    pub likes: Option<u64>,
    /// Set if its terms must be accepted on its page.
    pub gated: bool,
    /// Licence.
    pub licence: Option<String>,
    /// Day of the last change, such as "2026-10-31".
    pub updated: Option<String>,
    /// Architecture: `general.architecture` of GGUF files, `model_type` of folders.
    pub architecture: Option<String>,
    /// Number of weights.
    #[ts(type = "number | null")]
    pub parameters: Option<u64>,
    /// Quantisations by the names of the files, or bits of an MLX folder.
    pub quantisations: Vec<String>,
    /// Support by Hunch, as far as the Hub reports it.
    pub support: HubSupport,
}

/// Support of a found model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum HubSupport {
    /// Hunch runs the architecture. The file itself is checked after the download.
    Runs,
    /// Hunch does not run the architecture.
    OtherArchitecture,
    /// The Hub does not report the architecture.
    Unknown,
}

/// The model card of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct HubCard {
    /// The repository.
    pub repository: String,
    /// Its text in Markdown, without front matter and HTML. Empty if there is none.
    pub text: String,
    /// Set if a long card was cut.
    pub cut: bool,
}
