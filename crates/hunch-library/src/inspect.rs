//! Reads one model's header.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::quantisation;
use crate::names::{is_default_name, short_name};
use crate::types::{ModelEntry, ModelSource, OwnDrafter};
use hunch_core::sample::RecommendedSampling;
use hunch_error::{Error, Result};
use hunch_model::display_name;
use hunch_model::gguf::Gguf;
use hunch_model::heads;
use hunch_model::low_bit;
use hunch_model::model_folder;
use hunch_model::recommended::recommended_sampling;
use hunch_model::spec::ModelSpec;
use hunch_model::split;
use hunch_model::text::{ChatTemplate, Tokenizer};

/// Limit of header text shown to the user, in characters: the file is untrusted.
const MAX_TEXT_CHARS: usize = 120;

/// Contents of a model's header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// The model's entry in the list.
    pub entry: ModelEntry,
    /// Its architecture.
    pub spec: ModelSpec,
    /// Number of tensors of each type.
    pub quantisations: BTreeMap<String, usize>,
    /// Bytes of all tensors.
    pub weight_bytes: u64,
    /// Sampling that it recommends.
    pub sampling: RecommendedSampling,
    /// A sentence for each recommended value that is ignored, with its reason.
    pub ignored_sampling: Vec<String>,
}

/// Content of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FileContent {
    /// A complete model.
    Model,
    /// Part of a model, or an accessory to one.
    Other,
}

/// Result of examining any file, valid or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FileReport {
    /// The list entry, with a problem if the file is unusable.
    pub(super) entry: ModelEntry,
    pub(super) content: FileContent,
    /// Header contents, if the model is usable.
    pub(super) inspection: Option<Inspection>,
    /// Set if the file could not be read. Another attempt may then succeed though the file is unchanged.
    #[serde(skip)]
    pub(super) transient: bool,
}

impl FileReport {
    /// Creates the report of a file whose header could not be read.
    pub(super) fn unreadable(path: &Path, problem: String, transient: bool) -> Self {
        let entry = ModelEntry {
            name: short_name(path),
            title: short_name(path),
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
            own_drafter: None,
            tokens_per_second: None,
            ran_as: None,
            is_default: false,
            problem: Some(problem),
        };
        Self { entry, content: FileContent::Model, inspection: None, transient }
    }
}

/// Reads the header of a model, given its file or any part of a split model.
///
/// # Errors
/// If a file cannot be read, is invalid, or holds an unsupported model.
pub fn inspect(path: &Path) -> Result<Inspection> {
    inspect_header(path).map(|(inspection, _)| inspection)
}

/// Tries a model file's chat template and describes a failure to the user. Returns `None` without a
/// template or a readable tokeniser.
///
/// # Errors
/// If the file cannot be read or is invalid.
pub fn template_note(path: &Path) -> Result<Option<String>> {
    let gguf = split::read(path)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).ok();
    Ok(tokenizer.and_then(|tokenizer| ChatTemplate::from_tokenizer(&tokenizer).trial()))
}

/// Reads a model's header and returns it together with its inspection.
pub(super) fn inspect_header(path: &Path) -> Result<(Inspection, Gguf)> {
    let gguf = split::read(path)?;
    Ok((inspection(path, &gguf)?, gguf))
}

/// Examines a file of any content.
pub(super) fn examine(path: &Path) -> FileReport {
    let gguf = match split::read(path) {
        Ok(gguf) => gguf,
        Err(error) => {
            let report = FileReport::unreadable(path, error.to_string(), matches!(error, Error::Io { .. }));
            // Other programs' folders are full of models for images and sound.
            let is_other = matches!(error, Error::UnsupportedModel { .. }) && !model_folder::is_mlx(path);
            let content =
                if is_other && model_folder::is_part(path) { FileContent::Other } else { FileContent::Model };
            return FileReport { content, ..report };
        }
    };
    let content = if non_model_kind(&gguf).is_some() { FileContent::Other } else { FileContent::Model };
    match inspection(path, &gguf) {
        Ok(inspection) => {
            let entry = inspection.entry.clone();
            FileReport { entry, content, inspection: Some(inspection), transient: false }
        }
        Err(error) => {
            let entry = ModelEntry { problem: Some(error.to_string()), ..entry(path, &gguf) };
            FileReport { entry, content, inspection: None, transient: false }
        }
    }
}

pub(super) fn inspection(path: &Path, gguf: &Gguf) -> Result<Inspection> {
    if let Some(what) = non_model_kind(gguf) {
        return Err(Error::UnsupportedModel { path: path.to_path_buf(), reason: what.into() });
    }
    let spec = ModelSpec::from_gguf(gguf)?;
    let mut quantisations = BTreeMap::new();
    for tensor in gguf.tensors.values() {
        *quantisations.entry(tensor.dtype.name().to_owned()).or_insert(0) += 1;
    }
    let weight_bytes = gguf.tensors.values().map(|tensor| tensor.range.len() as u64).sum();
    let (sampling, ignored_sampling) = recommended_sampling(gguf);
    Ok(Inspection { entry: entry(path, gguf), quantisations, weight_bytes, sampling, ignored_sampling, spec })
}

/// Describes the content of a GGUF file that is not a model.
fn non_model_kind(gguf: &Gguf) -> Option<&'static str> {
    let value = |key: &str| gguf.str(key).unwrap_or_default();
    match (value("general.type"), value("general.architecture")) {
        ("adapter", _) => Some("it is an adapter for another model"),
        ("mmproj", _) | (_, "clip") => Some("it is a projector, which adds vision or audio to another model"),
        ("imatrix", _) | (_, "imatrix") => Some("it is an importance matrix for quantising another model"),
        _ if gguf.tensors.is_empty() => Some("it contains a vocabulary and no weights"),
        _ => None,
    }
}

/// Builds the list entry of a file with a valid header.
fn entry(path: &Path, gguf: &Gguf) -> ModelEntry {
    let name = short_name(path);
    let architecture = gguf.str("general.architecture").unwrap_or_default();
    let weights = |sum: u64, count: usize| sum.saturating_add(count as u64);
    ModelEntry {
        is_default: is_default_name(&name),
        name,
        title: title(gguf),
        // The first part's path, whichever part was given.
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
        own_drafter: own_drafter(gguf),
        tokens_per_second: None,
        ran_as: None,
        problem: None,
    }
}

/// Returns the name of a model as people know it. A low-bit copy is named after its model.
fn title(gguf: &Gguf) -> String {
    let title = display_name::of(gguf);
    if low_bit::is_copy(gguf) { format!("{title} low-bit") } else { title }
}

/// Describes the layer that drafts in a file. `None` if its header states none, or the model itself is unusable.
fn own_drafter(gguf: &Gguf) -> Option<OwnDrafter> {
    ModelSpec::from_gguf(gguf).ok()?;
    match heads::describe_of_target(gguf) {
        Ok(head) => head.map(|head| OwnDrafter::Usable { size_bytes: head.bytes }),
        Err(error) => Some(OwnDrafter::Unusable { reason: heads::note_on_layer(&error) }),
    }
}

/// Returns an entry under its listed name. A model without a name in its header is titled so too, because other
/// programs may name files by checksum.
pub(super) fn listed_as(name: &str, entry: ModelEntry) -> ModelEntry {
    let title = if entry.title == entry.name { name.to_owned() } else { entry.title };
    ModelEntry { name: name.to_owned(), title, ..entry }
}

fn tokenizer_name(gguf: &Gguf) -> String {
    let model = gguf.str("tokenizer.ggml.model").unwrap_or("none");
    match gguf.str("tokenizer.ggml.pre") {
        Some(pre) => format!("{model} ({pre})"),
        None => model.to_owned(),
    }
}

/// Returns the first line of a text, cut to the length shown to the user.
fn short(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().chars().take(MAX_TEXT_CHARS).collect()
}
