//! The wire of files: what the native dialogs offer, and what the person chose there.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::ExportFormat;
use crate::bench::compare::report::ComparisonFormat;

/// A kind of file to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum OpenKind {
    /// A model in GGUF.
    Model,
    /// A conversation that was exported as JSON.
    Conversation,
}

impl OpenKind {
    /// Extension of such files, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Model => "gguf",
            Self::Conversation => "json",
        }
    }
}

/// A kind of file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum SaveKind {
    /// Text for people.
    Markdown,
    /// Everything, to be read back.
    Json,
    /// A table.
    Csv,
    /// A picture in SVG.
    Picture,
}

impl SaveKind {
    /// Name of the format, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Markdown => "Markdown",
            Self::Json => "JSON",
            Self::Csv => "CSV",
            Self::Picture => "SVG",
        }
    }

    /// Extensions such a file may have, without the dot. A file without one of them gets the first.
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

/// A place the person chose to save a file. It can be written to once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct SavePlace {
    /// Stands for the path, which the window never sees.
    pub token: u32,
    /// Name of the file, to be shown.
    pub name: String,
}
