//! What one model file is, from its header.

use std::collections::BTreeMap;
use std::path::Path;

use crate::api::ModelEntry;
use crate::error::Result;
use crate::library::{DEFAULT_MODEL, short_name};
use crate::model::gguf::Gguf;
use crate::model::spec::ModelSpec;
use crate::model::weights::WeightFile;

/// Everything the header of a model tells.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The card of the model.
    pub entry: ModelEntry,
    /// Its architecture.
    pub spec: ModelSpec,
    /// Tensors of each type.
    pub quantisations: BTreeMap<String, usize>,
    /// Bytes of all tensors.
    pub weight_bytes: u64,
    /// `tokenizer.ggml.model` and `.pre`.
    pub tokenizer: String,
    /// Whether the file brings a chat template.
    pub has_template: bool,
    /// `general.license`.
    pub license: Option<String>,
}

impl Inspection {
    /// Predicted memory of the model with a cache of `context` tokens, in bytes.
    pub fn memory_bytes(&self, context: usize) -> u64 {
        self.weight_bytes + (self.spec.cache_bytes_per_token() * context) as u64
    }
}

/// Reads the header of a model file.
///
/// # Errors
/// When the file cannot be read, is unsound, or is of a kind Hunch does not run.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let file = WeightFile::open(path)?;
    let gguf = file.gguf();
    let spec = ModelSpec::from_gguf(gguf)?;
    let mut quantisations = BTreeMap::new();
    let mut weights_of = BTreeMap::new();
    let (mut parameters, mut weight_bytes) = (0u64, 0u64);
    for tensor in gguf.tensors.values() {
        let name = format!("{:?}", tensor.dtype);
        let count = tensor.shape.iter().product::<usize>() as u64;
        *quantisations.entry(name.clone()).or_insert(0) += 1;
        *weights_of.entry(name).or_insert(0u64) += count;
        parameters += count;
        weight_bytes += tensor.range.len() as u64;
    }
    let quantisation = weights_of.into_iter().max_by_key(|(_, count)| *count);
    let name = short_name(path);
    let entry = ModelEntry {
        is_default: name == DEFAULT_MODEL,
        name,
        path: path.display().to_string(),
        size_bytes: gguf.file_len as u64,
        architecture: spec.architecture.clone(),
        parameters,
        quantisation: quantisation.map_or_else(String::new, |(name, _)| name),
        context_length: spec.context_length as u32,
        problem: None,
    };
    Ok(Inspection {
        entry,
        quantisations,
        weight_bytes,
        tokenizer: tokenizer_name(gguf),
        has_template: gguf.str("tokenizer.chat_template").is_some(),
        license: gguf.str("general.license").map(str::to_owned),
        spec,
    })
}

fn tokenizer_name(gguf: &Gguf) -> String {
    let model = gguf.str("tokenizer.ggml.model").unwrap_or("none");
    match gguf.str("tokenizer.ggml.pre") {
        Some(pre) => format!("{model} ({pre})"),
        None => model.to_owned(),
    }
}
