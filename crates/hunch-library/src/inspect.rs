//! What one model is, from its header.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::quantisation;
use crate::types::ModelEntry;
use crate::types::ModelSource;
use crate::{DEFAULT_MODEL, short_name};
use hunch_error::{Error, Result};
use hunch_model::gguf::Gguf;
use hunch_model::spec::ModelSpec;
use hunch_model::split;
use hunch_model::text::{ChatTemplate, Tokenizer};

/// A text of a header is shown up to so many characters: it is a stranger's.
const LONGEST_TEXT: usize = 120;

/// Everything the header of a model tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The card of the model.
    pub entry: ModelEntry,
    /// Its architecture.
    pub spec: ModelSpec,
    /// Tensors of each type.
    pub quantisations: BTreeMap<String, usize>,
    /// Bytes of all tensors.
    pub weight_bytes: u64,
}

/// What a GGUF file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Holding {
    /// A model.
    Model,
    /// Part of one, or something for one.
    Other,
}

/// What a look at a file gives, whatever is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Look {
    /// The card; of a file that cannot be used with why.
    pub(super) entry: ModelEntry,
    pub(super) holding: Holding,
    /// Of a model that can be used: what it is.
    pub(super) inspection: Option<Inspection>,
    /// Whether another look may find something else though the file is the same: it could not be read.
    #[serde(skip)]
    pub(super) passing: bool,
}

impl Look {
    /// At a file whose header could not be read.
    pub(super) fn unread(path: &Path, problem: String, passing: bool) -> Self {
        let entry = ModelEntry {
            name: short_name(path),
            path: path.display().to_string(),
            source: ModelSource::Hunch,
            parts: split::files(path).len() as u32,
            size_bytes: 0,
            architecture: String::new(),
            parameters: 0,
            quantisation: String::new(),
            context_length: 0,
            tokenizer: String::new(),
            has_template: false,
            licence: None,
            tokens_per_second: None,
            ran_as: None,
            is_default: false,
            problem: Some(problem),
        };
        Self { entry, holding: Holding::Model, inspection: None, passing }
    }
}

/// Reads the header of a model, given its file or any part of a split one.
///
/// # Errors
/// When a file cannot be read, is unsound, or is of a kind Hunch does not run.
pub fn inspect(path: &Path) -> Result<Inspection> {
    inspect_header(path).map(|(inspection, _)| inspection)
}

/// What a person should know of the chat template of a model file, found by a trial of it; none where there is no
/// template, or its tokeniser cannot be read.
///
/// # Errors
/// When the file cannot be read or is unsound.
pub fn template_note(path: &Path) -> Result<Option<String>> {
    let gguf = split::read(path)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).ok();
    Ok(tokenizer.and_then(|tokenizer| ChatTemplate::from_tokenizer(&tokenizer).trial()))
}

/// The same, with the header it was read from.
pub(super) fn inspect_header(path: &Path) -> Result<(Inspection, Gguf)> {
    let gguf = split::read(path)?;
    Ok((inspection(path, &gguf)?, gguf))
}

/// Looks at a file that may be anything.
pub(super) fn look(path: &Path) -> Look {
    let gguf = match split::read(path) {
        Ok(gguf) => gguf,
        Err(error) => return Look::unread(path, error.to_string(), matches!(error, Error::Io { .. })),
    };
    let holding = if other_than_model(&gguf).is_some() { Holding::Other } else { Holding::Model };
    match inspection(path, &gguf) {
        Ok(inspection) => {
            let entry = inspection.entry.clone();
            Look { entry, holding, inspection: Some(inspection), passing: false }
        }
        Err(error) => {
            let entry = ModelEntry { problem: Some(error.to_string()), ..entry(path, &gguf) };
            Look { entry, holding, inspection: None, passing: false }
        }
    }
}

fn inspection(path: &Path, gguf: &Gguf) -> Result<Inspection> {
    if let Some(what) = other_than_model(gguf) {
        return Err(Error::UnsupportedModel { path: path.to_path_buf(), reason: what.into() });
    }
    let spec = ModelSpec::from_gguf(gguf)?;
    let mut quantisations = BTreeMap::new();
    for tensor in gguf.tensors.values() {
        *quantisations.entry(quantisation::type_name(tensor.dtype)).or_insert(0) += 1;
    }
    let weight_bytes = gguf.tensors.values().map(|tensor| tensor.range.len() as u64).sum();
    Ok(Inspection { entry: entry(path, gguf), quantisations, weight_bytes, spec })
}

/// What a file is instead, if it is no model.
fn other_than_model(gguf: &Gguf) -> Option<&'static str> {
    let says = |key: &str| gguf.str(key).unwrap_or_default();
    match (says("general.type"), says("general.architecture")) {
        ("adapter", _) => Some("it is an adapter, which changes another model and is none itself"),
        ("mmproj", _) | (_, "clip") => {
            Some("it is a projector, which makes another model see or hear and is none itself")
        }
        ("imatrix", _) | (_, "imatrix") => Some("it is a table for quantising another model"),
        _ if gguf.tensors.is_empty() => Some("it holds a vocabulary and no weights"),
        _ => None,
    }
}

/// The card of a file whose header is sound.
fn entry(path: &Path, gguf: &Gguf) -> ModelEntry {
    let name = short_name(path);
    let architecture = gguf.str("general.architecture").unwrap_or_default();
    let weights = |sum: u64, count: usize| sum.saturating_add(count as u64);
    ModelEntry {
        is_default: name == DEFAULT_MODEL,
        name,
        // The first part's, whichever was given.
        path: gguf.path.display().to_string(),
        source: ModelSource::Hunch,
        parts: split::files(path).len() as u32,
        size_bytes: gguf.file_len as u64,
        architecture: short(architecture),
        parameters: gguf.tensors.values().map(|t| t.shape.iter().product()).fold(0, weights),
        quantisation: quantisation::of(gguf),
        context_length: gguf.u32(&format!("{architecture}.context_length")).unwrap_or(0),
        tokenizer: short(&tokenizer_name(gguf)),
        has_template: gguf.str("tokenizer.chat_template").is_some(),
        licence: gguf.str("general.license").map(short).filter(|licence| !licence.is_empty()),
        tokens_per_second: None,
        ran_as: None,
        problem: None,
    }
}

fn tokenizer_name(gguf: &Gguf) -> String {
    let model = gguf.str("tokenizer.ggml.model").unwrap_or("none");
    match gguf.str("tokenizer.ggml.pre") {
        Some(pre) => format!("{model} ({pre})"),
        None => model.to_owned(),
    }
}

/// The first line of a text, and of that no more than a card has room for.
fn short(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().chars().take(LONGEST_TEXT).collect()
}
