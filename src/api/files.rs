//! Wire types of the native file dialogs.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::ExportFormat;
use crate::bench::compare::report::ComparisonFormat;

/// Kind of file to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum OpenKind {
    /// A GGUF model.
    Model,
    /// A conversation exported as JSON.
    Conversation,
    /// Prompts of a suite.
    Suite,
}

impl OpenKind {
    /// Returns the file extensions, without the dot.
    pub fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Model => &["gguf"],
            Self::Conversation => &["json"],
            Self::Suite => &["jsonl", "ndjson", "json", "txt"],
        }
    }
}

/// A file of prompts that the user chose as a suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct SuiteFile {
    /// Path of the file.
    pub path: String,
    /// Name of the suite: that of the file without its extension.
    pub name: String,
    /// Number of its prompts, at least 1.
    pub prompts: u32,
}

/// Kind of file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum SaveKind {
    /// Markdown text.
    Markdown,
    /// JSON, for a later import.
    Json,
    /// A table in CSV.
    Csv,
    /// An SVG picture.
    Picture,
}

impl SaveKind {
    /// Returns the name of the format, which no language translates.
    pub fn name(self) -> &'static str {
        match self {
            Self::Markdown => "Markdown",
            Self::Json => "JSON",
            Self::Csv => "CSV",
            Self::Picture => "SVG",
        }
    }

    /// Returns the accepted extensions, without the dot. A name without any of them gets the first.
    pub fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Markdown => &["md", "markdown", "txt"],
            Self::Json => &["json"],
            Self::Csv => &["csv", "txt"],
            Self::Picture => &["svg"],
        }
    }
}

impl From<ExportFormat> for SaveKind {
    fn from(format: ExportFormat) -> Self {
        match format {
            ExportFormat::Markdown => Self::Markdown,
            ExportFormat::Json => Self::Json,
        }
    }
}

impl From<ComparisonFormat> for SaveKind {
    fn from(format: ComparisonFormat) -> Self {
        match format {
            ComparisonFormat::Json => Self::Json,
            ComparisonFormat::Csv => Self::Csv,
            ComparisonFormat::Picture => Self::Picture,
        }
    }
}

/// A file to write that the user chose in a dialog. It can be written once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct SavePlace {
    /// Number that stands for the path. The page never sees the path.
    pub token: u32,
    /// File name to show.
    pub name: String,
}
