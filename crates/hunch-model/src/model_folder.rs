//! Folders of safetensors files in the layout of Hugging Face, as MLX and LM Studio have them. A folder has
//! `config.json`, `tokenizer.json` and weights, which MLX may have quantised. It is presented as the header and tensors of a
//! GGUF file, so everything above reads them like one.
//!
//! The path of such a model is that of its first weight file. `config` translates the parameters, `vocabulary` the
//! tokeniser, `tensors` names and types, and `affine` the quantised weights. Other formats do not belong here.

mod affine;
mod config;
mod tensors;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use hunch_error::{Error, Result};
use serde_json::Value as Json;

use crate::file::ModelFile;
use crate::gguf::{Gguf, Value, write};
use crate::input_file;
use crate::recommended;
use crate::stored_tensors;
pub use crate::stored_tensors::is_safetensors;

/// Metadata entry of our own: the quantisation of a folder as it is shown, such as "MLX 4-bit".
pub const QUANTISATION: &str = "hunch.quantisation";

/// Largest size of `config.json` and other small files, in bytes.
const MAX_SMALL: u64 = 8 << 20;
/// Largest size of `tokenizer.json` in bytes. That of Gemma 3 has 33 MB.
const MAX_LARGE: u64 = 64 << 20;

/// Returns `true` if a path is a model folder, or a safetensors file in one.
pub fn is_part(path: &Path) -> bool {
    folder_of(path).is_some()
}

/// Returns the folder of a model, given the folder or a safetensors file in it.
///
/// Folders without a tokeniser are no models. Published heads are such folders.
pub fn folder_of(path: &Path) -> Option<PathBuf> {
    let folder = match is_safetensors(path) {
        // The parent of a lone file name is empty.
        true => {
            path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?
        }
        false if path.is_dir() => path,
        false => return None,
    };
    let has = |name: &str| folder.join(name).is_file();
    (has("config.json") && has("tokenizer.json")).then(|| folder.to_path_buf())
}

/// Returns `true` if folders of this `model_type` run. The folder itself may still be refused.
pub fn runs_model_type(name: &str) -> bool {
    config::runs_model_type(name)
}

/// Returns `true` if MLX quantised the weights of a folder.
pub fn is_mlx(path: &Path) -> bool {
    let config =
        folder_of(path).and_then(|folder| read_json(&folder.join("config.json"), MAX_SMALL).ok().flatten());
    config.is_some_and(|config| config["quantization"].is_object())
}

/// Returns the weight files of a model folder, in the order of their names. `None` if the path is not one.
///
/// Files that the index names may not exist.
pub fn weight_files(path: &Path) -> Option<Vec<PathBuf>> {
    let folder = folder_of(path)?;
    let named = indexed_files(&folder).filter(|names| !names.is_empty());
    // Without an index, other files next to this one are copies or adapters.
    let whole = Some(folder.join("model.safetensors")).filter(|file| file.is_file());
    let all = || whole.map_or_else(|| stored_tensors::files_at(&folder), |file| vec![file]);
    let files = named.map_or_else(all, |names| names.iter().map(|name| folder.join(name)).collect());
    (!files.is_empty()).then_some(files)
}

/// Files of a model folder that are read in addition to its weights. The first two are in every one.
pub const SETTINGS_FILES: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// Returns the files of a model folder that are read in addition to its weights, existing or not. Empty for other paths.
pub fn settings_files(path: &Path) -> Vec<PathBuf> {
    let files = |folder: PathBuf| SETTINGS_FILES.map(|name| folder.join(name)).to_vec();
    is_safetensors(path).then(|| folder_of(path)).flatten().map(files).unwrap_or_default()
}

/// Returns the most bytes that are read of a settings file. A larger one is refused.
pub fn most_bytes(name: &str) -> u64 {
    match name {
        "tokenizer.json" | "model.safetensors.index.json" => MAX_LARGE,
        _ => MAX_SMALL,
    }
}

/// Returns the names of the files in `model.safetensors.index.json`. `None` without a readable index.
fn indexed_files(folder: &Path) -> Option<BTreeSet<String>> {
    let index = read_json(&folder.join("model.safetensors.index.json"), MAX_LARGE).ok().flatten()?;
    let files = index.get("weight_map")?.as_object()?.values();
    let is_plain = |name: &&str| {
        let mut parts = Path::new(name).components();
        let is_name = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        is_name && !name.contains(['/', '\\']) && is_safetensors(Path::new(name))
    };
    Some(files.filter_map(Json::as_str).filter(is_plain).map(str::to_owned).collect())
}

/// Returns the name of a model folder: of its repository in Hugging Face's cache, else of the folder.
pub fn name(path: &Path) -> Option<String> {
    let folder = folder_of(path)?;
    // "." has no name.
    let folder = folder.file_name().is_none().then(|| folder.canonicalize().ok()).flatten().unwrap_or(folder);
    let text = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let snapshots = folder.parent().filter(|parent| parent.file_name().is_some_and(|n| n == "snapshots"));
    let repository = snapshots.and_then(Path::parent).and_then(text);
    let cached =
        repository.and_then(|name| Some(name.strip_prefix("models--")?.rsplit("--").next()?.to_owned()));
    cached.or_else(|| text(&folder))
}

/// Opens a model folder: files of its tensors, and a header that names them.
///
/// The first file has the encoded metadata.
///
/// # Errors
/// [`Error::UnsupportedModel`] for architectures, tokenisers and quantisations that Hunch does not read.
/// [`Error::InvalidModelFile`] if a file is missing, damaged or contradicts another. [`Error::Io`] if one cannot be
/// read.
pub(crate) fn open(path: &Path) -> Result<(Vec<Arc<ModelFile>>, Gguf)> {
    let invalid =
        |reason: &str| Error::InvalidModelFile { path: path.to_path_buf(), reason: reason.to_owned() };
    let folder =
        folder_of(path).ok_or_else(|| invalid("its folder has no config.json and tokenizer.json"))?;
    let paths = weight_files(path).ok_or_else(|| invalid("its folder has no safetensors files"))?;
    if let Some(missing) = paths.iter().find(|path| !path.is_file()) {
        let name = missing.file_name().unwrap_or_default().to_string_lossy();
        return Err(invalid(&format!("{name} is missing. Download the model again")));
    }
    let path = &paths[0];
    let own = |name: &str, most| read_json(&folder.join(name), most);
    let config = own("config.json", MAX_SMALL)?.ok_or_else(|| invalid("config.json is missing"))?;
    let config = config::ModelConfig::new(path, config)?;
    let (files, stored) = stored_tensors::open_files(path, &paths)?;
    let (mut parts, tensors) = tensors::open(&config, &files, stored)?;

    let mut metadata = config.metadata()?;
    let generation = own("generation_config.json", MAX_SMALL)?.unwrap_or_default();
    sampling(&generation, &mut metadata);
    let rows = tensors.get("token_embd.weight").and_then(|info| info.shape.first().copied()).unwrap_or(0);
    let tokenizer = own("tokenizer.json", MAX_LARGE)?.ok_or_else(|| invalid("tokenizer.json is missing"))?;
    let settings = own("tokenizer_config.json", MAX_SMALL)?.unwrap_or_default();
    let template = read_text(&folder.join("chat_template.jinja"), MAX_SMALL)?;
    let ends = [generation.get("eos_token_id"), config.get("eos_token_id")];
    let vocabulary =
        vocabulary::TokenizerFiles { path, tokenizer: &tokenizer, settings: &settings, ends, rows };
    metadata.extend(vocabulary.metadata(template)?);
    if let Some(bits) = config.bits() {
        metadata.insert(QUANTISATION.into(), Value::String(format!("MLX {bits}-bit")));
    }
    metadata.insert("general.name".into(), Value::String(name(path).unwrap_or_default()));

    let encoded = write::metadata(&metadata);
    let metadata_range = 0..encoded.len();
    parts.insert(0, Arc::new(ModelFile::in_memory(path, encoded)));
    let file_len = files.iter().fold(0usize, |sum, file| sum.saturating_add(file.len()));
    let gguf = Gguf {
        path: path.clone(),
        version: 3,
        metadata,
        metadata_range,
        split_ranges: Vec::new(),
        tensors,
        integers: BTreeMap::new(),
        data_offset: 0,
        file_len,
    };
    Ok((parts, gguf))
}

/// Adds the recommended sampling as llama.cpp names it. Values of other types are kept, so that the reader can
/// say why they are ignored.
fn sampling(generation: &Json, metadata: &mut BTreeMap<String, Value>) {
    const NAMES: [(&str, &str); 5] = [
        ("temperature", "temp"),
        ("top_k", "top_k"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ];
    if generation.get("do_sample").and_then(Json::as_bool) == Some(false) {
        return;
    }
    for (from, to) in NAMES {
        let value = match generation.get(from) {
            None | Some(Json::Null) => continue,
            Some(Json::Number(number)) => match number.as_i64().and_then(|whole| i32::try_from(whole).ok()) {
                Some(whole) if to == "top_k" => Value::I32(whole),
                _ => Value::F32(number.as_f64().unwrap_or(f64::NAN) as f32),
            },
            Some(other) => Value::String(other.to_string().chars().take(40).collect()),
        };
        metadata.insert(format!("{}{to}", recommended::PREFIX), value);
    }
}

/// Reads a text file. `None` if there is none.
fn read_text(path: &Path, most: u64) -> Result<Option<String>> {
    let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    if !path.is_file() {
        return Ok(None);
    }
    let invalid = |reason| Error::InvalidModelFile { path: path.to_path_buf(), reason };
    let Some(bytes) = input_file::read(path, most).map_err(io)? else {
        return Err(invalid(format!("it exceeds {} MiB", most >> 20)));
    };
    String::from_utf8(bytes).map(Some).map_err(|_| invalid("it is not UTF-8 text".into()))
}

/// Reads a JSON file. `None` if there is none.
fn read_json(path: &Path, most: u64) -> Result<Option<Json>> {
    let Some(text) = read_text(path, most)? else { return Ok(None) };
    let invalid = |error: serde_json::Error| Error::InvalidModelFile {
        path: path.to_path_buf(),
        reason: format!("it cannot be read ({error}). Download it again"),
    };
    serde_json::from_str(&text).map(Some).map_err(invalid)
}
