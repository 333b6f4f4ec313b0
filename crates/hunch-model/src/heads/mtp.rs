//! Multi-token prediction (MTP): a decoder layer that drafts, in the target's own file or in another one (DeepSeek-V3,
//! arXiv 2412.19437).
//!
//! ```text
//! x = eh_proj [enorm of e; hnorm of h],   h = the target's final state after the output norm
//! logits = output head * norm of x after the layer
//! ```
//!
//! e is the embedding of the token after h. The normed x is the h of the next row. The layer has full attention and the
//! feed-forward network of the architecture. Order, norms and feedback are those of llama.cpp (`graph_mtp` in
//! `src/models/qwen35.cpp` and `glm4-moe.cpp`) and vLLM (`qwen3_next_mtp.py`). The first of several MTP layers is used,
//! on its own output.
//!
//! The other file is an `mtp-*.gguf` of llama.cpp's converter (`--mtp`). It has the metadata of the whole model and the
//! tensors of its MTP layers. Its embedding, output norm and output head are copies, so Hunch uses those of the target.
//! The output norm says whether a file belongs to a target.

use std::path::Path;
use std::sync::Arc;

use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::RowLayout;
use hunch_core::propose::head::Head;
use hunch_error::{Error, Refusal, Result};
use hunch_kernels::activation::{rms_norm, rms_norm_in_place};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{Threads, WeightMatrix};

use super::eagle::{Fused, Fusion, LayerHead, States};
use super::layer::CachedLayer;
use super::linear::{product, stored_matrix, target_head, vector};
use super::memory::{Copies, HeadMemory, HeadOutlook, in_memory};
use super::target_parts::{TargetParts, embedding};
use super::{HeadSummary, checked};
use crate::cpu_executor::CpuLayers;
use crate::decoder::row_mask;
use crate::device::Compute;
use crate::display_name;
use crate::gguf::Gguf;
use crate::spec::{LogitScaling, ModelSpec, runs_mtp};
use crate::tensor_names::output_norm;
use crate::weights::WeightFile;

/// Name of the architecture.
const KIND: &str = "MTP layer";
/// Embedding of its own, which most files do not have.
const EMBEDDING: &str = "embed_tokens";
/// Output head of its own, which most files do not have.
const HEAD: &str = "shared_head_head";
/// Norm before the output head. Without it, that of the target.
const NORM: &str = "shared_head_norm";

/// Names and sizes of the first MTP layer of a file.
struct MtpParts {
    /// Number of the layer in the file.
    index: usize,
    n_embd: usize,
    n_vocab: usize,
}

impl MtpParts {
    /// Returns the full name of a tensor of its own.
    fn name(&self, part: &str) -> String {
        format!("{}.weight", self.stem(part))
    }

    /// Returns the name of a matrix without `.weight`.
    fn stem(&self, part: &str) -> String {
        format!("blk.{}.nextn.{part}", self.index)
    }

    /// Reads which MTP layer a file has. `None` if its header states none.
    ///
    /// # Errors
    /// [`Refusal::UnknownHead`] if Hunch does not run those of the architecture. [`Refusal::DamagedHead`] if one of the
    /// tensors that only MTP layers have is missing or has another shape.
    fn of(gguf: &Gguf, spec: &ModelSpec) -> Result<Option<Self>> {
        if spec.mtp.is_none() {
            return Ok(None);
        }
        Self::at(spec.n_layer, gguf, (spec.n_embd, spec.n_vocab), &spec.architecture).map(Some)
    }

    /// Reads the MTP layer `index` of a file, of a model of this width, vocabulary and architecture.
    ///
    /// # Errors
    /// See [`MtpParts::of`].
    fn at(index: usize, gguf: &Gguf, (n_embd, n_vocab): (usize, usize), architecture: &str) -> Result<Self> {
        let path = gguf.path.clone();
        if !runs_mtp(architecture) {
            let detail = format!("MTP layers of \"{architecture}\" are not supported");
            return Err(Refusal::UnknownHead { path, detail }.into());
        }
        let parts = Self { index, n_embd, n_vocab };
        let (n, table) = (parts.n_embd, [parts.n_vocab, parts.n_embd]);
        let expected: [(&str, &[usize], bool); 6] = [
            ("eh_proj", &[n, 2 * n], true),
            ("enorm", &[n], true),
            ("hnorm", &[n], true),
            (NORM, &[n], false),
            (EMBEDDING, &table, false),
            (HEAD, &table, false),
        ];
        for (part, shape, required) in expected {
            let name = parts.name(part);
            let detail = match gguf.tensors.get(&name) {
                Some(info) if info.shape == shape => continue,
                None if !required => continue,
                None => format!("the tensor {name} is missing"),
                Some(info) => format!("the tensor {name} has the shape {:?}, expected {shape:?}", info.shape),
            };
            return Err(Refusal::DamagedHead { path, detail }.into());
        }
        Ok(parts)
    }
}

/// MTP layer in a file of its own.
struct Alone<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
    /// Number of the layer, and so of the layers of its target.
    index: usize,
    n_embd: usize,
}

impl<'a> Alone<'a> {
    /// Reads which layer a file has. `None` if the file is another one.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] without a width.
    fn of(gguf: &'a Gguf) -> Result<Option<Self>> {
        let Some(index) = gguf.mtp_layer_alone() else { return Ok(None) };
        let architecture = gguf.require_str("general.architecture")?;
        let key = format!("{architecture}.embedding_length");
        let missing =
            || Error::InvalidModelFile { path: gguf.path.clone(), reason: format!("{key} is missing") };
        let n_embd = gguf.u32(&key).ok_or_else(missing)? as usize;
        Ok(Some(Self { gguf, architecture, index, n_embd }))
    }

    /// Returns the size of the vocabulary, if the file has an embedding.
    fn n_vocab(&self) -> Option<usize> {
        self.gguf.tensors.get("token_embd.weight").and_then(|table| table.shape.first().copied())
    }

    /// Checks that the layer belongs to a target, and returns its parts. `norm` has the output norms of file and target.
    fn parts(&self, target: &ModelSpec, norms: [Option<&[f32]>; 2]) -> Result<MtpParts> {
        let name = &target.name;
        let detail = if self.architecture != target.architecture {
            format!("it drafts for \"{}\", and {name} is \"{}\"", self.architecture, target.architecture)
        } else if self.index != target.n_layer {
            format!("it is layer {} of a model, and {name} has {} layers", self.index, target.n_layer)
        } else if self.n_embd != target.n_embd {
            format!("it reads states of {} values, and those of {name} have {}", self.n_embd, target.n_embd)
        } else if let Some(n_vocab) = self.n_vocab().filter(|n_vocab| *n_vocab != target.n_vocab) {
            format!("its vocabulary has {n_vocab} tokens, and that of {name} has {}", target.n_vocab)
        } else if norms[0].is_some_and(|own| norms[1].is_some_and(|of_target| own != of_target)) {
            return Err(Refusal::HeadOfOther { name: display_name::of(self.gguf) }.into());
        } else {
            let sizes = (target.n_embd, target.n_vocab);
            return MtpParts::at(self.index, self.gguf, sizes, &target.architecture);
        };
        Err(Refusal::HeadMismatch { detail }.into())
    }
}

/// Opens an MTP layer in a file of its own for a target, and checks that it belongs to it.
fn open_alone(path: &Path, target: &WeightFile, spec: &ModelSpec) -> Result<(WeightFile, MtpParts)> {
    let file = WeightFile::open(path)?;
    let no_layer = || Error::Internal(format!("{} has no MTP layer alone", path.display()));
    let alone = Alone::of(file.gguf())?.ok_or_else(no_layer)?;
    let own = "output_norm.weight";
    let norm = (file.has(own) && alone.n_embd == spec.n_embd).then(|| vector(&file, own, spec.n_embd));
    let of_target = vector(target, output_norm(target), spec.n_embd)?;
    let parts = alone.parts(spec, [norm.transpose()?.as_deref(), Some(&of_target)])?;
    Ok((file, parts))
}

/// Returns `true` if a file has an MTP layer and no model.
pub(super) fn is_alone(path: &Path) -> bool {
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    is_gguf && Gguf::read(path).is_ok_and(|gguf| gguf.mtp_layer_alone().is_some())
}

/// Loads an MTP layer in a file of its own for a target.
///
/// # Errors
/// [`Error::Refused`] if it belongs to another target, or as [`load`].
pub(super) fn load_alone(path: &Path, target: &TargetParts<'_>) -> Result<Head> {
    let (file, parts) = open_alone(path, target.file, &target.spec)?;
    load_parts(&parts, &file, target).map_err(of_layer)
}

/// Predicts memory and reads of an MTP layer in a file of its own.
///
/// # Errors
/// As [`load_alone`], without its values.
pub(super) fn outlook_alone(path: &Path, target: &WeightFile, compute: &Compute) -> Result<HeadOutlook> {
    let spec = ModelSpec::from_gguf(target.gguf())?;
    let (file, parts) = open_alone(path, target, &spec)?;
    outlook_of(&parts, (&file, target), &spec, compute)
}

/// Describes an MTP layer in a file of its own.
///
/// # Errors
/// If the file cannot be read, or has no width.
pub(super) fn describe_alone(gguf: &Gguf) -> Result<Option<HeadSummary>> {
    let Some(alone) = Alone::of(gguf)? else { return Ok(None) };
    let sizes = (alone.n_embd, alone.n_vocab(), Some(display_name::of(gguf)));
    Ok(Some(HeadSummary { target_layers: Some(alone.index), ..summary(gguf, sizes) }))
}

/// Fusion and scores.
struct Mtp {
    /// The target's last layer.
    taps: [usize; 1],
    projection: WeightMatrix,
    /// Norm of embeddings.
    e_norm: Vec<f32>,
    /// Norm of states.
    h_norm: Vec<f32>,
    /// The target's norm before its output head.
    output_norm: Vec<f32>,
    /// Norm after the layer.
    norm: Vec<f32>,
    eps: f32,
    head: WeightMatrix,
    /// Scaling of the target's logits.
    scaling: LogitScaling,
    bytes: usize,
}

impl Mtp {
    /// Loads the weights of `file`, which may be another one than that of the target.
    fn load(parts: &MtpParts, file: &WeightFile, target: &TargetParts<'_>) -> Result<Self> {
        let TargetParts { spec, compute, .. } = target;
        let (n, threads) = (spec.n_embd, compute.threads());
        let output_norm = vector(target.file, output_norm(target.file), n)?;
        let norm = parts.name(NORM);
        let norm = if file.has(&norm) { vector(file, &norm, n)? } else { output_norm.clone() };
        let own_head = file.has(&parts.name(HEAD));
        Ok(Self {
            taps: [spec.n_layer - 1],
            projection: stored_matrix(file, &parts.stem("eh_proj"), (n, 2 * n), threads)?,
            e_norm: vector(file, &parts.name("enorm"), n)?,
            h_norm: vector(file, &parts.name("hnorm"), n)?,
            output_norm,
            norm,
            eps: spec.rms_eps as f32,
            head: if own_head {
                stored_matrix(file, &parts.stem(HEAD), (spec.n_vocab, n), threads)?
            } else {
                target_head(target.file, target.decoder, spec, threads)?
            },
            scaling: spec.logit_scaling(),
            bytes: read_by_a_draft((file, target.file), spec),
        })
    }
}

impl Fusion for Mtp {
    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn fuse(&self, threads: &Threads, states: States<'_>, embeddings: &[f32], out: &mut Fused) {
        let n = self.norm.len();
        let mut joined = vec![0.0; 2 * embeddings.len()];
        for (row, (joined, e)) in joined.chunks_exact_mut(2 * n).zip(embeddings.chunks_exact(n)).enumerate() {
            let (first, second) = joined.split_at_mut(n);
            rms_norm(e, &self.e_norm, self.eps, first);
            let of_row = row * n..(row + 1) * n;
            match states {
                States::Own(own) => rms_norm(&own[of_row], &self.h_norm, self.eps, second),
                States::Target(taps) => {
                    rms_norm(&taps[0][of_row], &self.output_norm, self.eps, second);
                    rms_norm_in_place(second, &self.h_norm, self.eps);
                }
            }
        }
        let Fused { x, quantised, .. } = out;
        x.resize(embeddings.len(), 0.0);
        product(threads, &joined, quantised, &self.projection, None, x, false);
    }

    fn score(&self, threads: &Threads, x: &[f32], quantised: &mut QuantisedRows) -> (Vec<f32>, Vec<f32>) {
        let mut normed = x.to_vec();
        let n = self.norm.len();
        normed.chunks_exact_mut(n).for_each(|row| rms_norm_in_place(row, &self.norm, self.eps));
        let mut logits = vec![0.0; x.len() / n * self.head.rows()];
        product(threads, &normed, quantised, &self.head, None, &mut logits, false);
        self.scaling.apply(&mut logits);
        (logits, normed)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The layer of the target's architecture.
struct MtpLayer {
    layers: CpuLayers,
    n_embd: usize,
    cache_per_token: usize,
}

impl CachedLayer for MtpLayer {
    fn width(&self) -> usize {
        self.n_embd
    }

    fn fork(&self) -> Self {
        Self { layers: self.layers.fork(), n_embd: self.n_embd, cache_per_token: self.cache_per_token }
    }

    fn run(&mut self, _y: &[f32], x: &mut Vec<f32>, layout: RowLayout<'_>) -> Result<()> {
        let mask = row_mask(self.layers.cache().len(), x.len() / self.n_embd, layout)?;
        self.layers.run(x, &mask)
    }

    fn len(&self) -> usize {
        self.layers.cache().len()
    }

    fn truncate(&mut self, len: usize) {
        self.layers.cache_mut().truncate(len);
    }

    fn bytes(&self) -> usize {
        // The fusion counts all tensors.
        0
    }

    fn cache_bytes(&self) -> usize {
        self.layers.cache().bytes()
    }

    fn cache_per_token(&self) -> usize {
        self.cache_per_token
    }
}

/// Returns the bytes that a drafted token reads, with the experts of one row only.
fn read_by_a_draft((file, target): (&WeightFile, &WeightFile), spec: &ModelSpec) -> usize {
    let own_head = format!("blk.{}.nextn.{HEAD}.weight", spec.n_layer);
    let embedding = format!("blk.{}.nextn.{EMBEDDING}.weight", spec.n_layer);
    let tensors = file.gguf().mtp_tensors().filter(|(name, _)| **name != embedding);
    let own: usize =
        tensors.map(|(name, info)| (info.bytes_read() as f64 * spec.share_read(name)) as usize).sum();
    if file.has(&own_head) { own } else { own + target.head_bytes() }
}

fn cache_per_token(spec: &ModelSpec, compute: &Compute) -> usize {
    2 * spec.n_kv_head * spec.head_dim * compute.kv().bytes()
}

/// Loads the MTP layer of a target. `None` if its file has none.
///
/// # Errors
/// [`Error::Refused`] if a tensor is missing, misshapen or not finite, or the architecture's MTP layers do not
/// run, and the errors of reading. The target itself is not affected.
pub(super) fn load(target: &TargetParts<'_>) -> Result<Option<Head>> {
    let Some(parts) = MtpParts::of(target.file.gguf(), &target.spec)? else { return Ok(None) };
    load_parts(&parts, target.file, target).map(Some).map_err(of_layer)
}

fn load_parts(parts: &MtpParts, file: &WeightFile, target: &TargetParts<'_>) -> Result<Head> {
    let TargetParts { spec, compute, .. } = target;
    let own_table = parts.name(EMBEDDING);
    let embedding = if file.has(&own_table) {
        Arc::new(file.host_table(&own_table, (spec.n_vocab, spec.n_embd), compute.threads())?)
    } else {
        embedding(target)?
    };
    let layer = MtpLayer {
        layers: CpuLayers::load_one(file, spec.of_mtp_layer(), parts.index, compute)?,
        n_embd: spec.n_embd,
        cache_per_token: cache_per_token(spec, compute),
    };
    let head = LayerHead::new(Mtp::load(parts, file, target)?, layer, embedding, compute);
    checked(Head::new(Box::new(head)), target.file, &file.gguf().path)
}

/// Says of an error of the file that it is about the layer that drafts.
fn of_layer(error: Error) -> Error {
    match error {
        Error::InvalidModelFile { path, reason } => Refusal::DamagedHead { path, detail: reason }.into(),
        Error::UnsupportedModel { path, reason } => Refusal::UnknownHead { path, detail: reason }.into(),
        other => other,
    }
}

/// Predicts memory and reads of the MTP layer of a target. `None` if its file has none.
///
/// # Errors
/// As [`load`], from the header alone.
pub(super) fn outlook(target: &WeightFile, compute: &Compute) -> Result<Option<HeadOutlook>> {
    let gguf = target.gguf();
    let spec = ModelSpec::from_gguf(gguf)?;
    let Some(parts) = MtpParts::of(gguf, &spec)? else { return Ok(None) };
    outlook_of(&parts, (target, target), &spec, compute).map(Some)
}

/// Predicts memory and reads of the MTP layer of a file for a target.
fn outlook_of(
    parts: &MtpParts,
    (file, target): (&WeightFile, &WeightFile),
    spec: &ModelSpec,
    compute: &Compute,
) -> Result<HeadOutlook> {
    let own: u64 = file.gguf().mtp_tensors().map(|(_, info)| in_memory(info, info.dtype)).sum();
    let copies = Copies::of(target, compute)?;
    let needs = |part: &str| copies.needed && !file.has(&parts.name(part));
    let embedding = if needs(EMBEDDING) { copies.embedding } else { 0 };
    let head = if needs(HEAD) { copies.whole_head() } else { 0 };
    Ok(HeadOutlook {
        memory: HeadMemory {
            weights: own + embedding + head,
            cache_per_token: cache_per_token(spec, compute) as u64,
        },
        read_by_a_draft: Some(read_by_a_draft((file, target), spec) as u64),
        max_depth: MAX_DRAFT,
        acceptance: None,
    })
}

/// Describes the MTP layer of a target. `None` if its file has none.
///
/// # Errors
/// As [`load`], from the header alone.
pub(super) fn describe(gguf: &Gguf) -> Result<Option<HeadSummary>> {
    let spec = ModelSpec::from_gguf(gguf)?;
    if MtpParts::of(gguf, &spec)?.is_none() {
        return Ok(None);
    }
    Ok(Some(summary(gguf, (spec.n_embd, Some(spec.n_vocab), Some(spec.name)))))
}

fn summary(
    gguf: &Gguf,
    (width, target_vocabulary, target): (usize, Option<usize>, Option<String>),
) -> HeadSummary {
    let tensors = gguf.mtp_tensors().map(|(_, info)| info);
    HeadSummary {
        kind: KIND.into(),
        width,
        target_vocabulary,
        scored_tokens: None,
        target_layers: None,
        layers: None,
        target,
        parameters: tensors.clone().map(|info| info.shape.iter().product::<usize>()).sum(),
        bytes: tensors.map(|info| info.range.len() as u64).sum(),
    }
}
