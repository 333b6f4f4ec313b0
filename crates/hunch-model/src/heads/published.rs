//! Heads as others publish them: a folder with `config.json` and safetensors files or a pickle, or a GGUF file of
//! llama.cpp. Recognises the architecture by its tensors and checks that the head fits the target.
//!
//! A file does not say which weights it was trained on, so only sizes are checked. A head of another model of the same
//! shape loads, and its drafts are rejected. Tensors that an architecture does not have are refused, because ignoring
//! one would compute something else.

use std::path::Path;

use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::LanguageModel;
use hunch_core::propose::head::Head;
use hunch_error::{Error, Refusal, Result};

use super::HeadSummary;
use super::block_config::BlockConfig;
use super::checked;
use super::config::{self, LayerConfig};
use super::dflash::{self, DFlash};
use super::eagle::{Fusion, LayerHead};
use super::eagle1::Eagle1;
use super::eagle3::{Eagle3, TAPS};
use super::last_state::LastStateHead;
use super::layer::{DecoderLayer, FREQUENCIES, is_of_layer};
use super::linear::stored_type;
use super::llama_cpp;
use super::markov;
use super::medusa::{Medusa, MedusaShape};
use super::memory::{Copies, HeadMemory, HeadOutlook, in_memory};
use super::pickle;
use super::speculator::{Speculator, SpeculatorShape};
use super::target_parts::{TargetParts, embedding, taps};
use crate::decoder::Decoder;
use crate::device::Compute;
use crate::safetensors::{self, files_at};
use crate::spec::{ModelSpec, RopeKind};
use crate::tensor_files::TensorFiles;
use crate::weights::WeightFile;

/// Names of the layer of EAGLE heads.
const PREFIXES: [&str; 2] = ["midlayer", "layers.0"];
/// Tensors that are of no use here: copies of the target's, those that only training reads, and DSpark's prediction of
/// what is accepted.
const IGNORED: [&str; 7] = [
    "embed_tokens.weight",
    "t2d",
    "verifier_lm_head.weight",
    "verifier_norm.weight",
    "verifier_norm",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
];

/// Architecture of a published head, with what its files say of it.
enum HeadArchitecture {
    Eagle1 { prefix: &'static str, config: LayerConfig },
    Eagle3 { prefix: &'static str, config: LayerConfig },
    DFlash { config: LayerConfig, block: BlockConfig, has_markov: bool },
    Medusa(MedusaShape),
    Speculator(SpeculatorShape),
}

impl HeadArchitecture {
    /// Recognises the architecture of open files.
    ///
    /// `in_gguf` has the entries of a GGUF file. Others have them in their folder.
    fn of(file: &TensorFiles, path: &Path, in_gguf: Option<&llama_cpp::HeadMetadata>) -> Result<Self> {
        let has = |name: String| file.shape(&name).is_some();
        let prefix = PREFIXES.into_iter().find(|prefix| has(format!("{prefix}.self_attn.q_proj.weight")));
        if let Some(prefix) = prefix.filter(|_| has("fc.weight".into())) {
            let (entries, source, rope_kind) = match in_gguf {
                Some(own) => (own.values.clone(), path.to_path_buf(), own.rope_kind),
                None => {
                    let folder = folder(path);
                    (config::read(folder)?, folder.join("config.json"), RopeKind::Halves)
                }
            };
            let config = LayerConfig { rope_kind, ..LayerConfig::of(&entries, &source)? };
            if has("hidden_norm.weight".into()) {
                let block = BlockConfig::of(&entries, config.layers, &source)?;
                // Files of llama.cpp have the embedding of the mask in their own table.
                let own_table = in_gguf.is_some() && has("embed_tokens.weight".into());
                if own_table || (in_gguf.is_none() && folder(path).join("mask_embedding.pt").exists()) {
                    return Err(unsupported(path, "its mask has an embedding of its own".into()));
                }
                let has_markov = has(format!("{}.weight", markov::BEFORE));
                return Ok(Self::DFlash { config, block, has_markov });
            }
            config::refuse_window(&entries, &source)?;
            if config.layers != 1 {
                return Err(unsupported(path, format!("the head has {} layers", config.layers)));
            }
            let three = has(format!("{prefix}.hidden_norm.weight"));
            return Ok(if three { Self::Eagle3 { prefix, config } } else { Self::Eagle1 { prefix, config } });
        }
        if let Some(shape) = MedusaShape::of(file) {
            return Ok(Self::Medusa(shape));
        }
        if has("emb.0.weight".into()) || has("speculator.emb.0.weight".into()) {
            let config = config::read(folder(path))?;
            if let Some(shape) = SpeculatorShape::of(file, &config) {
                return Ok(Self::Speculator(shape));
            }
        }
        Err(unsupported(path, "its tensors are those of no head that Hunch knows".into()))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Eagle1 { .. } => "EAGLE-1",
            Self::Eagle3 { .. } => "EAGLE-3",
            Self::DFlash { has_markov: true, .. } => "DSpark",
            Self::DFlash { .. } => "DFlash",
            Self::Medusa(_) => "Medusa",
            Self::Speculator(_) => "MLP speculator",
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Eagle1 { prefix, .. } => is_of_layer(name, prefix, &[]) || Eagle1::has(name),
            Self::Eagle3 { prefix, .. } => is_of_layer(name, prefix, &Eagle3::NORMS) || Eagle3::has(name),
            Self::DFlash { config, has_markov, .. } => {
                dflash::has(name, config.layers) || (*has_markov && markov::has(name))
            }
            Self::Medusa(shape) => shape.has(name),
            Self::Speculator(shape) => shape.has(name),
        }
    }

    /// Returns the width of the target, and the size of its vocabulary if stated.
    fn target_size(&self, file: &TensorFiles) -> (usize, Option<usize>) {
        let embedding = || file.shape("embed_tokens.weight").and_then(|shape| shape.first().copied());
        match self {
            Self::Eagle1 { config, .. } | Self::Eagle3 { config, .. } | Self::DFlash { config, .. } => {
                (config.n_embd, config.n_vocab.or_else(embedding))
            }
            Self::Medusa(shape) => (shape.width, Some(shape.n_vocab)),
            Self::Speculator(shape) => (shape.width, Some(shape.n_vocab)),
        }
    }
}

/// An open head.
struct Published {
    file: TensorFiles,
    architecture: HeadArchitecture,
    /// Name of the target, if stated.
    target: Option<String>,
}

/// Returns whether a path is a published head: a file in one of the formats, or a folder with one.
pub(super) fn is_published(path: &Path) -> bool {
    !files_at(path).is_empty() || pickle::file_at(path).is_some() || llama_cpp::architecture(path).is_some()
}

impl Published {
    fn open(path: &Path) -> Result<Self> {
        let (file, in_gguf, mut target) = match pickle::file_at(path) {
            _ if llama_cpp::architecture(path).is_some() => {
                let (file, entries) = llama_cpp::open(path)?;
                let target = entries.target.clone();
                (file, Some(entries), target)
            }
            Some(pickle) if files_at(path).is_empty() => (pickle::open(&pickle)?, None, None),
            _ => (safetensors::open(path)?, None, None),
        };
        let architecture = HeadArchitecture::of(&file, path, in_gguf.as_ref())?;
        let known = |name: &String| {
            architecture.has(name)
                || IGNORED.contains(&&name[..])
                || (in_gguf.is_some() && name == FREQUENCIES)
        };
        if let Some(name) = file.names().find(|name| !known(name)) {
            let reason = format!("it has the tensor {name}, which {} does not have", architecture.name());
            return Err(unsupported(path, reason));
        }
        if in_gguf.is_none() {
            target = config::read(folder(path)).ok().as_ref().and_then(config::target_name);
        }
        Ok(Self { file, architecture, target })
    }

    fn summary(&self) -> HeadSummary {
        let (width, target_vocabulary) = self.architecture.target_size(&self.file);
        let weights = &self.file.weights;
        let layers = match &self.architecture {
            HeadArchitecture::Eagle3 { config, .. } => config.taps.clone(),
            HeadArchitecture::DFlash { block, .. } => block.stated_taps(),
            _ => None,
        };
        let target_layers = match &self.architecture {
            HeadArchitecture::DFlash { block, .. } => block.target_layers(),
            _ => None,
        };
        HeadSummary {
            kind: self.architecture.name().into(),
            width,
            target_vocabulary,
            target_layers,
            scored_tokens: self.file.shape("lm_head.weight").and_then(|shape| shape.first().copied()),
            layers,
            target: self.target.clone(),
            parameters: weights
                .gguf()
                .tensors
                .values()
                .map(|info| info.shape.iter().product::<usize>())
                .sum(),
            bytes: weights.weight_bytes() as u64,
        }
    }

    /// Checks that the weights read the states of as many layers as the configuration names.
    fn check_inputs(&self) -> Result<()> {
        let (config, layers) = match &self.architecture {
            HeadArchitecture::Eagle3 { config, .. } => (config, TAPS),
            HeadArchitecture::DFlash { config, block, .. } => (config, block.reads(config)),
            _ => return Ok(()),
        };
        let inputs = self.file.shape("fc.weight").and_then(|shape| shape.last().copied()).unwrap_or(0);
        if inputs == layers * config.n_embd {
            return Ok(());
        }
        let reason = format!(
            "fc.weight reads {inputs} values of a row, but the states after {layers} layers have {}",
            layers * config.n_embd
        );
        Err(Error::InvalidModelFile { path: self.file.weights.gguf().path.clone(), reason })
    }

    /// Checks that a target of `layers` layers has those that the head reads.
    fn check_depth(&self, layers: usize) -> Result<(), String> {
        match &self.architecture {
            HeadArchitecture::Eagle3 { config, .. } => taps(layers, config.taps.as_deref(), TAPS).map(drop),
            HeadArchitecture::DFlash { config, block, .. } => block.taps(config, layers).map(drop),
            _ => Ok(()),
        }
    }

    /// Checks the sizes of the target, and those of the head that follow from them.
    fn check_target(&self, target: &ModelSpec) -> Result<()> {
        let (width, n_vocab) = self.architecture.target_size(&self.file);
        let (own_width, own_vocab) = (target.n_embd, target.n_vocab);
        let of = self.target.as_deref().map_or_else(String::new, |name| format!(" ({name})"));
        let name = &target.name;
        let difference = if width != own_width {
            format!("it reads states of {width} values, and those of {name} have {own_width}")
        } else if let Some(n_vocab) = n_vocab.filter(|n_vocab| *n_vocab != own_vocab) {
            format!("its vocabulary has {n_vocab} tokens, and that of {name} has {own_vocab}")
        } else if let Err(difference) = self.check_depth(target.n_layer) {
            difference
        } else {
            return self.check_inputs();
        };
        Err(Refusal::HeadMismatch { detail: format!("{difference}{of}") }.into())
    }

    /// Predicts memory and reads for a target.
    fn outlook(&self, target: &WeightFile, compute: &Compute) -> Result<HeadOutlook> {
        self.check_target(&ModelSpec::from_gguf(target.gguf())?)?;
        let tensors = &self.file.weights.gguf().tensors;
        let loaded = tensors.iter().filter(|(name, _)| !IGNORED.contains(&&name[..]));
        let own: u64 = loaded.map(|(_, info)| in_memory(info, stored_type(info))).sum();
        let (config, own_head) = match &self.architecture {
            HeadArchitecture::Medusa(MedusaShape { positions, .. })
            | HeadArchitecture::Speculator(SpeculatorShape { positions, .. }) => {
                return Ok(HeadOutlook {
                    memory: HeadMemory { weights: own, cache_per_token: 0 },
                    read_by_a_draft: None,
                    max_depth: *positions,
                    acceptance: None,
                });
            }
            HeadArchitecture::Eagle1 { config, .. } => (config, false),
            HeadArchitecture::Eagle3 { config, .. } | HeadArchitecture::DFlash { config, .. } => {
                (config, self.file.shape("lm_head.weight").is_some())
            }
        };
        // A block reads the layers once, however many of its tokens are drafted.
        let block = match &self.architecture {
            HeadArchitecture::DFlash { block, .. } => Some(block.depth()),
            _ => None,
        };
        let copies = Copies::of(target, compute)?;
        let scored = if own_head { 0 } else { copies.whole_head() };
        let copied = if copies.needed { copies.embedding + scored } else { 0 };
        let cache_per_token = 2 * config.layers * config.n_kv_head * config.head_dim * compute.kv().bytes();
        Ok(HeadOutlook {
            memory: HeadMemory { weights: own + copied, cache_per_token: cache_per_token as u64 },
            read_by_a_draft: block.is_none().then_some(own + scored),
            max_depth: block.unwrap_or(MAX_DRAFT),
            acceptance: None,
        })
    }

    fn load(&self, target: &TargetParts<'_>) -> Result<Head> {
        self.check_target(&target.spec)?;
        let (file, compute) = (&self.file, target.compute);
        match &self.architecture {
            HeadArchitecture::Eagle1 { prefix, config } => {
                let fusion = Eagle1::load(&file.weights, config, target)?;
                with_layer(fusion, (file, prefix), (config, config.n_embd), target)
            }
            HeadArchitecture::Eagle3 { prefix, config } => {
                let fusion = Eagle3::load(file, prefix, config, target)?;
                with_layer(fusion, (file, prefix), (config, 2 * config.n_embd), target)
            }
            HeadArchitecture::DFlash { config, block, .. } => {
                let head = DFlash::load(file, (config, block), embedding(target)?, target)?;
                Ok(Head::new(Box::new(head)))
            }
            HeadArchitecture::Medusa(shape) => {
                let network = Medusa::load(file, *shape, compute.threads())?;
                Ok(Head::new(Box::new(LastStateHead::new(network, target)?)))
            }
            HeadArchitecture::Speculator(shape) => {
                let network = Speculator::load(file, *shape, compute.threads())?;
                Ok(Head::new(Box::new(LastStateHead::new(network, target)?)))
            }
        }
    }
}

fn with_layer<F: Fusion>(
    fusion: F,
    (file, prefix): (&TensorFiles, &str),
    config: (&LayerConfig, usize),
    target: &TargetParts<'_>,
) -> Result<Head> {
    let layer = DecoderLayer::load(&file.weights, prefix, config, &target.spec, target.compute)?;
    Ok(Head::new(Box::new(LayerHead::new(fusion, layer, embedding(target)?, target.compute))))
}

fn unsupported(path: &Path, detail: String) -> Error {
    Refusal::UnknownHead { path: path.into(), detail }.into()
}

/// Says of errors of a head's files that they are of a head.
fn of_head(path: &Path) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::InvalidModelFile { path: file, reason } if file.starts_with(folder(path)) => {
            Refusal::DamagedHead { path: file, detail: reason }.into()
        }
        Error::UnsupportedModel { path: file, reason } if file.starts_with(folder(path)) => {
            unsupported(&file, reason)
        }
        other => other,
    }
}

/// Returns the folder of a head, from its path or that of a file in it.
pub(super) fn folder(path: &Path) -> &Path {
    if path.is_dir() { path } else { path.parent().unwrap_or(path) }
}

/// Loads a published head for a target.
///
/// # Errors
/// [`Error::InvalidRequest`] if it does not fit the target, is damaged or of an unknown architecture, and the errors of
/// reading.
pub(super) fn load(path: &Path, target: &WeightFile, decoder: &Decoder, compute: &Compute) -> Result<Head> {
    let spec = ModelSpec::from_gguf(target.gguf())?.with_context(decoder.info().context_length);
    let parts = TargetParts { file: target, decoder, spec, compute };
    let loaded = Published::open(path).and_then(|head| head.load(&parts)).map_err(of_head(path))?;
    checked(loaded, target, path)
}

/// Predicts memory and reads of a published head for a target.
///
/// # Errors
/// [`Error::InvalidRequest`] if it does not fit the target, is damaged or of an unknown architecture.
pub(super) fn outlook(path: &Path, target: &WeightFile, compute: &Compute) -> Result<HeadOutlook> {
    Published::open(path).and_then(|head| head.outlook(target, compute)).map_err(of_head(path))
}

/// Describes a published head.
///
/// # Errors
/// [`Error::InvalidRequest`] if it is damaged or of an unknown architecture.
pub(super) fn describe(path: &Path) -> Result<HeadSummary> {
    let described = |head: Published| head.check_inputs().map(|()| head.summary());
    Published::open(path).and_then(described).map_err(of_head(path))
}
