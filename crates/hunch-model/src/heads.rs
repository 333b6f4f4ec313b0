//! Trained heads: small networks that draft from the hidden states of one target. Which head belongs to a target is
//! decided here; a file each holds the arithmetic of an architecture. Drafting itself is in
//! [`hunch_core::propose::head`].
//!
//! `mlp` is Hunch's own architecture, one of those that it trains. `published` opens the files of others, with
//! `llama_cpp` and `pickle` for two of the formats. `pickle_check` bounds the memory of pickles. `eagle1` and `eagle3`
//! share the steps in `eagle`, and with `dflash` the decoder layer in `layer`. `mtp` is a layer in the target's own file
//! or in another one, with the steps of `eagle`. `output_head` scores tokens for `eagle3` and `dflash`. `block_config` has the entries that
//! only `dflash` has, and `markov` the Markov head of some. `medusa` and `speculator` share the steps in `last_state`. `memory` predicts what a head takes.

mod block_config;
mod config;
mod dflash;
mod eagle;
mod eagle1;
mod eagle3;
mod last_state;
mod layer;
mod linear;
mod llama_cpp;
mod markov;
mod medusa;
mod memory;
mod mlp;
mod mtp;
mod output_head;
mod pickle;
mod pickle_check;
mod published;
mod speculator;
mod target_parts;
mod target_rows;
mod vocabulary;
mod write;

use std::path::{Path, PathBuf};

use hunch_core::model::LanguageModel;
use hunch_core::propose::Proposer;
use hunch_core::propose::head::{DraftHead, Head};
use hunch_error::{Error, Refusal, Result};
use sha2::{Digest, Sha256};

use crate::decoder::Decoder;
use crate::device::Compute;
use crate::display_name::{NameFields, display_name};
use crate::gguf::Gguf;
use crate::hex;
use crate::spec::ModelSpec;
use crate::tensor_names::output_norm;
use crate::weights::WeightFile;
use last_state::LastStateHead;
use medusa::Medusa;
pub use memory::{HeadMemory, HeadOutlook};
use mlp::MlpHead;
pub use pickle::PICKLES;
use target_parts::TargetParts;
pub use target_rows::TargetWeights;
pub use write::{HeadFacts, MedusaPosition, MedusaWeights, MlpWeights, write_medusa, write_mlp};

/// Metadata key of the SHA-256 of the target's output norm, as hexadecimal digits. Norms are f32 in every quantisation
/// of a model, and differ between models that were trained apart.
const TARGET: &str = "hunch-head.target.norm";
/// Metadata key of the architecture: [`MLP`] or [`MEDUSA`].
const KIND: &str = "hunch-head.kind";
const MLP: &str = "mlp";
const MEDUSA: &str = "medusa";
/// Entry of a folder's config.json with the fingerprint of the target that its head was trained for.
pub const TARGET_IN_CONFIG: &str = "hunch_target";
/// Entry of a folder's config.json with the acceptance on held-out answers in chat sampling.
pub const ACCEPTANCE_IN_CONFIG: &str = "hunch_acceptance";
/// Metadata key of the acceptance on held-out answers in chat sampling.
const ACCEPTANCE: &str = "hunch-head.acceptance";

/// Heads that ship with Hunch, by file name.
const SHIPPED: [(&str, &[u8]); 1] =
    [("smollm2-135m-instruct.gguf", include_bytes!("../heads/smollm2-135m-instruct.gguf"))];

/// Loads the MTP layer in a target's own file. `None` if it has none.
///
/// # Errors
/// [`Error::Refused`] if the layer is incomplete, damaged or of an architecture whose MTP layers do not run, and
/// the errors of reading. The target runs without it.
pub fn of_target(target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Option<Head>> {
    let spec = ModelSpec::from_gguf(target.gguf())?.with_context(decoder.info().context_length);
    mtp::load(&TargetParts { file: target, decoder, spec, compute })
}

/// Returns a sentence on a target whose own MTP layer cannot draft. `error` is that of [`of_target`].
pub fn note_on_layer(error: &Error) -> String {
    let reason = match error {
        Error::Refused(Refusal::DamagedHead { detail, .. } | Refusal::UnknownHead { detail, .. }) => {
            detail.clone()
        }
        other => other.to_string(),
    };
    format!("The MTP layer in this model's file does not draft: {reason}. The model runs without it.")
}

/// Describes the MTP layer in a target's own file. `None` if it has none.
///
/// # Errors
/// As [`of_target`], from the header alone.
pub fn describe_of_target(target: &Gguf) -> Result<Option<HeadSummary>> {
    mtp::describe(target)
}

/// Predicts memory, reads and drafts of the MTP layer in a target's own file. `None` if it has none.
///
/// # Errors
/// As [`of_target`], from the header alone.
pub fn outlook_of_target(target: &WeightFile, compute: &Compute) -> Result<Option<HeadOutlook>> {
    mtp::outlook(target, compute)
}

/// Returns the files and folders in a folder that are heads of Hunch for a target, the newest first. One that cannot be
/// read is left out.
///
/// # Errors
/// If the target's file cannot be read.
pub fn in_folder(folder: &Path, target: &WeightFile) -> Result<Vec<PathBuf>> {
    let own = fingerprint(target)?;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_own = |path: &PathBuf| trained_for(path).is_some_and(|of| of == own);
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_own).collect();
    // The time of a folder changes with any file in it.
    let dated = |path: &PathBuf| if path.is_dir() { path.join(config::FILE) } else { path.clone() };
    let changed = |path: &PathBuf| std::fs::metadata(dated(path)).and_then(|meta| meta.modified()).ok();
    found.sort_by_key(|path| std::cmp::Reverse((changed(path), path.clone())));
    Ok(found)
}

/// Returns the fingerprint of the target that a head of Hunch was trained for: a GGUF file, or the folder of an EAGLE
/// head. `None` for other files and for heads of others.
pub fn trained_for(path: &Path) -> Option<String> {
    if path.is_dir() {
        return config::read(path).ok()?[TARGET_IN_CONFIG].as_str().map(str::to_owned);
    }
    path.extension().filter(|extension| *extension == "gguf")?;
    WeightFile::open(path).ok()?.gguf().str(TARGET).map(str::to_owned)
}

/// Checks that the head in a folder, or in a file of it, was not trained here for another target.
fn check_trained_for(path: &Path, target: &WeightFile) -> Result<()> {
    let folder = published::folder(path);
    match trained_for(folder) {
        Some(of) if of != fingerprint(target)? => {
            let name = config::read(folder).ok().and_then(|config| config::target_name(&config));
            Err(Refusal::HeadOfOther { name: name.unwrap_or_else(|| "another model".into()) }.into())
        }
        _ => Ok(()),
    }
}

/// Facts about a head, from its files.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct HeadSummary {
    /// Architecture, such as "EAGLE-3".
    pub kind: String,
    /// Width of the target's residual stream.
    pub width: usize,
    /// Tokens in the target's vocabulary, if stated.
    pub target_vocabulary: Option<usize>,
    /// Tokens that it scores. `None` for all.
    pub scored_tokens: Option<usize>,
    /// Layers of the target after which it reads the residual stream, from 0, if stated.
    pub layers: Option<Vec<usize>>,
    /// Layers of the target, if stated.
    pub target_layers: Option<usize>,
    /// Name of the target, if stated.
    pub target: Option<String>,
    /// Number of weights.
    pub parameters: usize,
    /// Bytes of all weights in the files.
    pub bytes: u64,
}

/// Returns whether a path is a head in a file of Hunch.
pub fn is_own(path: &Path) -> bool {
    Gguf::read(path).is_ok_and(|gguf| gguf.str("general.architecture") == Some("hunch-head"))
}

/// Describes a head: a folder or file that others published, or a GGUF file of Hunch. `None` if the path is a file of
/// another kind.
///
/// # Errors
/// [`Error::InvalidRequest`] if the files of a published head are damaged or of an unknown architecture.
pub fn describe(path: &Path) -> Result<Option<HeadSummary>> {
    if published::is_published(path) {
        return published::describe(path).map(Some);
    }
    let Ok(gguf) = Gguf::read(path) else { return Ok(None) };
    if gguf.str("general.architecture") != Some("hunch-head") {
        return mtp::describe_alone(&gguf);
    }
    let as_sizes = |values: &[i32]| values.iter().filter_map(|value| usize::try_from(*value).ok()).collect();
    let tensors = gguf.tensors.values();
    Ok(Some(HeadSummary {
        kind: format!("Hunch's own ({})", gguf.require_str(KIND)?),
        width: gguf.u32("hunch-head.embedding_length").unwrap_or(0) as usize,
        target_vocabulary: None,
        scored_tokens: gguf.i32s("hunch-head.vocabulary").map(<[i32]>::len),
        layers: gguf.i32s("hunch-head.layers").map(as_sizes),
        target_layers: None,
        target: target_name(&gguf),
        parameters: tensors.clone().map(|info| info.shape.iter().product::<usize>()).sum(),
        bytes: tensors.map(|info| info.range.len() as u64).sum(),
    }))
}

/// Returns the display name of the model that a head of Hunch was trained for, if its file states it.
fn target_name(gguf: &Gguf) -> Option<String> {
    let name = Some(gguf.str("hunch-head.target.name")?);
    Some(display_name(NameFields { name, ..NameFields::default() }, ""))
}

/// Predicts the memory of a head of any kind for a target on a device.
///
/// # Errors
/// If a file cannot be read, or the head was made for a target of other size.
pub fn memory(path: &Path, target: &WeightFile, compute: &Compute) -> Result<HeadMemory> {
    outlook(path, target, compute).map(|head| head.memory)
}

/// Predicts memory, reads and drafts of a head of any kind for a target on a device.
///
/// # Errors
/// As [`memory`].
pub fn outlook(path: &Path, target: &WeightFile, compute: &Compute) -> Result<HeadOutlook> {
    if published::is_published(path) {
        check_trained_for(path, target)?;
        let acceptance = config::read(published::folder(path)).ok().and_then(|config| {
            config[ACCEPTANCE_IN_CONFIG].as_f64().filter(|share| (0.0..=1.0).contains(share))
        });
        let outlook = published::outlook(path, target, compute)?;
        return Ok(HeadOutlook { acceptance: acceptance.or(outlook.acceptance), ..outlook });
    }
    if mtp::is_alone(path) {
        return mtp::outlook_alone(path, target, compute);
    }
    memory::of_own(WeightFile::open(path)?.gguf(), target, compute)
}

/// The head that drafts for a target unless another is chosen.
#[derive(Default)]
pub struct UsualHead {
    /// The head, if there is one.
    pub head: Option<Head>,
    /// Why the target's own MTP layer does not draft, if it has one that cannot.
    pub note: Option<String>,
}

/// Loads the newest head in a folder that was trained for a target, else the MTP layer in its file, else the shipped one.
///
/// # Errors
/// If the target's file cannot be read, or memory is short.
pub fn usual(
    folder: Option<&Path>,
    target: &WeightFile,
    decoder: &Decoder,
    compute: &Compute,
) -> Result<UsualHead> {
    for path in folder.map_or(Ok(Vec::new()), |folder| in_folder(folder, target))? {
        match open(&path, target, decoder, compute) {
            Ok(head) => return Ok(UsualHead { head: Some(head), note: None }),
            // The model is of use without it.
            Err(error) => tracing::warn!("A trained head could not be loaded. {error}"),
        }
    }
    let note = match of_target(target, decoder, compute) {
        Ok(None) => None,
        Ok(head) => return Ok(UsualHead { head, note: None }),
        Err(error) => {
            let note = note_on_layer(&error);
            tracing::warn!("{note}");
            Some(note)
        }
    };
    let shipped = shipped(target)?.map(|file| load(&file, target, decoder, compute)).transpose()?;
    Ok(UsualHead { head: shipped, note })
}

/// Returns the file of the head that ships with Hunch for a target, if there is one.
fn shipped(target: &WeightFile) -> Result<Option<WeightFile>> {
    for (name, bytes) in SHIPPED {
        let file = WeightFile::embedded(name, bytes)?;
        if file.gguf().str(TARGET) == Some(&fingerprint(target)?) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Predicts the memory of the head that drafts for a target by itself. It is chosen as in
/// [`usual`]. `None` if there is none.
///
/// # Errors
/// If the target's file cannot be read.
pub fn usual_memory(
    folder: Option<&Path>,
    target: &WeightFile,
    compute: &Compute,
) -> Result<Option<HeadMemory>> {
    for path in folder.map_or(Ok(Vec::new()), |folder| in_folder(folder, target))? {
        if let Ok(found) = memory(&path, target, compute) {
            return Ok(Some(found));
        }
    }
    if let Ok(Some(head)) = mtp::outlook(target, compute) {
        return Ok(Some(head.memory));
    }
    let memory = |file: WeightFile| memory::of_own(file.gguf(), target, compute).map(|head| head.memory);
    shipped(target)?.map(memory).transpose()
}

/// Opens a head of any kind and loads it for a target. It is a published folder or file, an MTP layer in a file of its
/// own, or a GGUF file of Hunch.
///
/// # Errors
/// [`Error::InvalidRequest`] if the head does not fit the target, and those of [`load`].
pub fn open(path: &Path, target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Head> {
    if published::is_published(path) {
        check_trained_for(path, target)?;
        return published::load(path, target, decoder, compute);
    }
    if mtp::is_alone(path) {
        let spec = ModelSpec::from_gguf(target.gguf())?.with_context(decoder.info().context_length);
        return mtp::load_alone(path, &TargetParts { file: target, decoder, spec, compute });
    }
    load(&WeightFile::open(path)?, target, decoder, compute)
}

/// Loads a head of Hunch for a target.
///
/// # Errors
/// - [`Error::InvalidRequest`] if the head was trained for another target
/// - [`Error::InvalidModelFile`] if it is damaged
/// - [`Error::UnsupportedModel`] if its architecture is unknown
/// - the errors of reading the target's file
pub fn load(head: &WeightFile, target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Head> {
    let gguf = head.gguf();
    let architecture = gguf.require_str("general.architecture")?;
    if architecture != "hunch-head" {
        let detail = format!("its architecture is \"{architecture}\"");
        return Err(Refusal::UnknownHead { path: gguf.path.clone(), detail }.into());
    }
    if gguf.require_str(TARGET)? != fingerprint(target)? {
        let name = target_name(gguf).unwrap_or_else(|| "another model".into());
        return Err(Refusal::HeadOfOther { name }.into());
    }
    let loaded: Box<dyn DraftHead> = match gguf.require_str(KIND)? {
        MLP => Box::new(MlpHead::load(head, target, decoder, compute)?),
        MEDUSA => {
            let spec = ModelSpec::from_gguf(target.gguf())?;
            let network = Medusa::load_own(head, &spec, compute.threads())?;
            let parts = TargetParts { file: target, decoder, spec, compute };
            Box::new(LastStateHead::new(network, &parts)?)
        }
        kind => {
            let reason = format!("heads of the kind \"{kind}\" are not supported");
            return Err(Error::UnsupportedModel { path: gguf.path.clone(), reason });
        }
    };
    checked(Head::new(loaded), target, &gguf.path)
}

/// Returns a loaded head if it can score tokens. Weights that are not finite show in the scores of any row.
///
/// # Errors
/// [`Refusal::DamagedHead`] if they do.
fn checked(head: Head, target: &WeightFile, path: &Path) -> Result<Head> {
    let ModelSpec { n_embd, n_vocab, .. } = ModelSpec::from_gguf(target.gguf())?;
    // A fork, so that the head itself has read nothing.
    let mut probe = head.fork();
    let states = vec![vec![1.0; n_embd]; head.taps().len()];
    let is_usable = |scores: &[f32]| {
        let is_score = |score: &f32| score.is_finite() || *score == f32::NEG_INFINITY;
        scores.len() == n_vocab && scores.iter().all(is_score) && scores.iter().any(|score| score.is_finite())
    };
    // A head with a cache has the same weights for each token but the first.
    let depths = if head.has_cache() { head.max_depth().min(2) } else { head.max_depth() };
    for depth in 0..depths {
        let scores = if depth == 0 { probe.logits(&states, &[0])? } else { probe.next_logits(0)? };
        if !is_usable(&scores) {
            let detail = "it computes scores that are not finite".into();
            return Err(Refusal::DamagedHead { path: path.into(), detail }.into());
        }
    }
    Ok(head)
}

/// Returns the SHA-256 of the target's output norm, by which a head names its target.
///
/// # Errors
/// If the target's file cannot be read.
pub fn fingerprint(target: &WeightFile) -> Result<String> {
    let spec = ModelSpec::from_gguf(target.gguf())?;
    let norm =
        target.vector(output_norm(target), spec.n_embd, &candle_core::Device::Cpu)?.to_vec1::<f32>()?;
    let mut hash = Sha256::new();
    norm.iter().for_each(|value| hash.update(value.to_le_bytes()));
    Ok(hex(&hash.finalize()))
}
