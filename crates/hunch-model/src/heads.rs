//! Trained heads: small networks that draft from the hidden states of one target. Which head belongs to a target is
//! decided here; a file each holds the arithmetic of an architecture. Drafting itself is in
//! [`hunch_core::propose::head`].

mod mlp;
mod target_rows;
mod write;

use std::path::{Path, PathBuf};

use hunch_core::propose::head::Head;
use hunch_error::{Error, Result};
use sha2::{Digest, Sha256};

use crate::decoder::Decoder;
use crate::device::Compute;
use crate::spec::ModelSpec;
use crate::weights::WeightFile;
use mlp::MlpHead;
pub use target_rows::TargetRows;
pub use write::{MlpWeights, write_mlp};

/// Metadata key of the SHA-256 of the target's output norm, as hexadecimal digits. Norms are f32 in every quantisation
/// of a model, and differ between models that were trained apart.
const TARGET: &str = "hunch-head.target.norm";

/// Heads that ship with Hunch, by file name.
const SHIPPED: [(&str, &[u8]); 1] =
    [("smollm2-135m-instruct.gguf", include_bytes!("../heads/smollm2-135m-instruct.gguf"))];

/// Loads the head that ships with Hunch for a target, if there is one.
///
/// # Errors
/// If the target's file cannot be read, or memory is short.
pub fn shipped_for(target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Option<Head>> {
    for (name, bytes) in SHIPPED {
        let file = WeightFile::embedded(name, bytes)?;
        if file.gguf().str(TARGET) == Some(&fingerprint(target)?) {
            return load(&file, target, decoder, compute).map(Some);
        }
    }
    Ok(None)
}

/// Returns the files in a folder that are heads for a target, the newest first. A file that cannot be read is left out.
///
/// # Errors
/// If the target's file cannot be read.
pub fn in_folder(folder: &Path, target: &WeightFile) -> Result<Vec<PathBuf>> {
    let own = fingerprint(target)?;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let gguf = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "gguf"));
    let is_own =
        |path: &PathBuf| WeightFile::open(path).is_ok_and(|file| file.gguf().str(TARGET) == Some(&own));
    let mut found: Vec<PathBuf> = gguf.filter(is_own).collect();
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    found.sort_by_key(|path| std::cmp::Reverse((changed(path), path.clone())));
    Ok(found)
}

/// Loads a head for a target.
///
/// # Errors
/// - [`Error::InvalidRequest`] if the head was trained for another target
/// - [`Error::InvalidModelFile`] if it is damaged
/// - [`Error::UnsupportedModel`] if its architecture is unknown
/// - the errors of reading the target's file
pub fn load(head: &WeightFile, target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Head> {
    let gguf = head.gguf();
    if gguf.require_str(TARGET)? != fingerprint(target)? {
        let trained = gguf.str("hunch-head.target.name").unwrap_or("another model");
        return Err(Error::invalid(format!(
            "This head was trained for {trained}. Open that model, or decode without the head."
        )));
    }
    match gguf.require_str("hunch-head.kind")? {
        "mlp" => Ok(Head::new(Box::new(MlpHead::load(head, target, decoder, compute)?))),
        kind => Err(Error::UnsupportedModel {
            path: gguf.path.clone(),
            reason: format!("heads of the kind \"{kind}\" are not supported"),
        }),
    }
}

/// Returns the SHA-256 of the target's output norm, by which a head names its target.
///
/// # Errors
/// If the target's file cannot be read.
pub fn fingerprint(target: &WeightFile) -> Result<String> {
    let spec = ModelSpec::from_gguf(target.gguf())?;
    let norm =
        target.vector("output_norm.weight", spec.n_embd, &candle_core::Device::Cpu)?.to_vec1::<f32>()?;
    let mut hash = Sha256::new();
    norm.iter().for_each(|value| hash.update(value.to_le_bytes()));
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
