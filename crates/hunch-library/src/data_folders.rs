//! Hunch's data folder, and the paths in it.

use std::path::{Path, PathBuf};

use directories::BaseDirs;
use hunch_error::{Refusal, Result};
use hunch_model::low_bit;

use super::names::{DEFAULT_MODEL, short_name};

/// Returns Hunch's data folder: `$HUNCH_DATA_DIR`, or the system's folder for application data.
///
/// # Errors
/// If the system reports no home folder.
pub fn data_folder() -> Result<PathBuf> {
    named_data_folder().map_or_else(usual_data_folder, Ok)
}

/// Returns the folder named by `$HUNCH_DATA_DIR`, unless it is the default one.
pub fn other_data_folder() -> Option<PathBuf> {
    let real = |folder: &Path| folder.canonicalize().ok();
    let is_usual = |named: &PathBuf| usual_data_folder().is_ok_and(|usual| real(&usual) == real(named));
    named_data_folder().filter(|named| real(named).is_none() || !is_usual(named))
}

fn named_data_folder() -> Option<PathBuf> {
    std::env::var_os("HUNCH_DATA_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn usual_data_folder() -> Result<PathBuf> {
    let dirs = BaseDirs::new().ok_or(Refusal::NoDataFolder)?;
    Ok(dirs.data_dir().join("hunch"))
}

/// Returns Hunch's own models folder: `models` in the data folder.
///
/// # Errors
/// As [`data_folder`].
pub fn models_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join("models"))
}

/// Returns the folder of skip sets in a data folder. A skip set lists the layers that a target skips in
/// self-speculation.
pub fn skip_sets_folder_in(data: &Path) -> PathBuf {
    data.join("skip-sets")
}

/// Name of the folder of low-bit copies in the data folder.
pub(super) const LOW_BIT_FOLDER: &str = "low-bit";

/// Name of the folder of training data in the data folder.
pub(super) const DRAFTERS_FOLDER: &str = "drafters";

/// Lists the files of an SQLite store at `path`: the store, its log and its shared memory. Not all have to exist.
pub fn store_files(path: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|ending| {
        let mut file = path.as_os_str().to_owned();
        file.push(ending);
        file.into()
    })
}

/// Name of the folder in the data folder for stores that a repair set aside.
pub const SET_ASIDE_FOLDER: &str = "set-aside";

/// Name of the folder of trained heads in the data folder.
pub const HEADS_FOLDER: &str = "heads";

/// Returns the folder of trained heads.
///
/// # Errors
/// As [`data_folder`].
pub fn heads_folder() -> Result<PathBuf> {
    Ok(data_folder()?.join(HEADS_FOLDER))
}

/// Returns the folder with the training data of a target's heads, one for each seed. Its name includes a fingerprint
/// of the contents, as in [`low_bit_path`].
///
/// # Errors
/// As [`low_bit_path`].
pub fn training_folder(target: &Path, seed: u64) -> Result<PathBuf> {
    training_folder_in(&data_folder()?, target, seed)
}

/// As [`training_folder`], in another data folder than the user's.
///
/// # Errors
/// If the target cannot be read.
pub fn training_folder_in(data: &Path, target: &Path, seed: u64) -> Result<PathBuf> {
    let name = format!("{}-{}-seed-{seed}", short_name(target), low_bit::fingerprint(target)?);
    Ok(data.join(DRAFTERS_FOLDER).join(name))
}

/// Returns the path of the conversation database.
///
/// # Errors
/// As [`data_folder`].
pub fn conversations_path() -> Result<PathBuf> {
    Ok(data_folder()?.join("conversations.db"))
}

/// Returns the path of a model's low-bit copy, which may not exist. The name includes a fingerprint of the
/// contents, so models of the same name do not collide.
///
/// # Errors
/// As [`data_folder`], and if the file cannot be read.
pub fn low_bit_path(target: &Path) -> Result<PathBuf> {
    low_bit_path_in(&data_folder()?, target)
}

/// As [`low_bit_path`], in another data folder than the user's.
///
/// # Errors
/// If the target cannot be read.
pub fn low_bit_path_in(data: &Path, target: &Path) -> Result<PathBuf> {
    let name = format!("{}-{}.gguf", short_name(target), low_bit::fingerprint(target)?);
    Ok(data.join(LOW_BIT_FOLDER).join(name))
}

/// Returns true for a path in the folder of low-bit copies. Neither has to exist.
pub fn is_low_bit_copy(data: &Path, path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder == data.join(LOW_BIT_FOLDER))
}

/// Returns the path of the default model, which may not exist.
///
/// # Errors
/// As [`data_folder`].
pub fn default_model_path() -> Result<PathBuf> {
    Ok(models_folder()?.join(format!("{DEFAULT_MODEL}.gguf")))
}
