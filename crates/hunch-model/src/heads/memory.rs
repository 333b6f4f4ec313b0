//! Predicted memory of heads, from the headers of their files. Loads nothing.

use hunch_core::limits::MAX_DRAFT;
use hunch_error::{Error, Refusal, Result};
use hunch_kernels::experts::ExpertStack;
use hunch_kernels::{WeightMatrix, WeightType};

use super::{ACCEPTANCE, KIND, MEDUSA, TARGET, fingerprint, target_name};
use crate::device::Compute;
use crate::execution::{Backend, Execution};
use crate::gguf::{Gguf, TensorInfo};
use crate::spec::ModelSpec;
use crate::weights::WeightFile;

/// Memory that a head takes next to its target, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadMemory {
    /// Weights, with copies of the target's that the head needs on the CPU.
    pub weights: u64,
    /// Cache for a token of the context.
    pub cache_per_token: u64,
}

/// Facts about a head for a target that follow from headers, by which its speedup is predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOutlook {
    /// Memory that it takes.
    pub memory: HeadMemory,
    /// Bytes of weights that each token of a chain reads, those of the target included. `None` if they differ by
    /// position.
    pub read_by_a_draft: Option<u64>,
    /// Most tokens of a chain.
    pub max_depth: usize,
    /// Acceptance on held-out answers in chat sampling, if its file states it.
    pub acceptance: Option<f64>,
}

/// Predicts the needs of a head of Hunch: its tensors, and the rows of the target's head that it scores.
pub(super) fn of_own(gguf: &Gguf, target: &WeightFile, compute: &Compute) -> Result<HeadOutlook> {
    if gguf.str(TARGET) != Some(&fingerprint(target)?) {
        let name = target_name(gguf).unwrap_or_else(|| "another model".into());
        return Err(Refusal::HeadOfOther { name }.into());
    }
    let acceptance = gguf.f32(ACCEPTANCE).map(f64::from).filter(|share| (0.0..=1.0).contains(share));
    let own: u64 = gguf.tensors.values().map(|info| in_memory(info, info.dtype)).sum();
    if gguf.str(KIND) == Some(MEDUSA) {
        // Each token has a network of its own, with an output head.
        let depth = depth(gguf)?;
        return Ok(HeadOutlook {
            memory: HeadMemory { weights: own, cache_per_token: 0 },
            read_by_a_draft: Some(own / depth as u64),
            max_depth: depth,
            acceptance,
        });
    }
    let scored = gguf.require_i32s("hunch-head.vocabulary")?.len();
    let copies = Copies::of(target, compute)?;
    let (depth, scored) = (depth(gguf)?, copies.head_rows(scored));
    let read = bytes_of_a_draft(gguf, depth, scored);
    let weights = own + scored + if copies.needed { copies.embedding } else { 0 };
    let memory = HeadMemory { weights, cache_per_token: 0 };
    Ok(HeadOutlook { memory, read_by_a_draft: Some(read), max_depth: depth, acceptance })
}

/// Reads the most tokens of a draft.
///
/// # Errors
/// [`Error::InvalidModelFile`] if it is 0 or larger than any draft.
pub(super) fn depth(gguf: &Gguf) -> Result<usize> {
    let depth = gguf.u32("hunch-head.depth").unwrap_or(1) as usize;
    if !(1..=MAX_DRAFT).contains(&depth) {
        let reason = format!("it drafts {depth} tokens, and 1 to {MAX_DRAFT} are possible");
        return Err(Error::InvalidModelFile { path: gguf.path.clone(), reason });
    }
    Ok(depth)
}

/// Returns the bytes that a drafted token reads, on average over a draft of `depth` tokens. `scored` are the bytes of
/// the scored rows.
pub(super) fn bytes_of_a_draft(gguf: &Gguf, depth: usize, scored: u64) -> u64 {
    let sum = |is_next: bool| -> u64 {
        let of = gguf.tensors.iter().filter(|(name, _)| name.starts_with("next.") == is_next);
        of.map(|(_, info)| in_memory(info, info.dtype)).sum()
    };
    // The context counts once, with the first token.
    let depth = depth as u64;
    scored + (sum(false) + (depth - 1) * sum(true)) / depth
}

/// Returns a tensor's size in memory on the CPU in this type, in bytes.
pub(super) fn in_memory(info: &TensorInfo, dtype: WeightType) -> u64 {
    let elements: usize = info.shape.iter().product();
    let bytes = match info.shape[..] {
        [n, k] => WeightMatrix::bytes_in_memory(dtype, n, k),
        [_, _, _] => Some(ExpertStack::bytes_in_memory(dtype, elements)),
        _ => Some(4 * elements),
    };
    bytes.unwrap_or(4 * elements) as u64
}

/// Parts of a target that a head shares with it on the CPU, and copies where the target runs elsewhere.
pub(super) struct Copies {
    /// The target does not run on the CPU.
    pub(super) needed: bool,
    /// Bytes of the embedding.
    pub(super) embedding: u64,
    /// The output head.
    head: Option<TensorInfo>,
}

impl Copies {
    /// Reads the sizes of a target.
    pub(super) fn of(target: &WeightFile, compute: &Compute) -> Result<Self> {
        let gguf = target.gguf();
        let execution = Execution::expected(gguf, &ModelSpec::from_gguf(gguf)?, compute);
        let table = gguf.tensors.get("token_embd.weight");
        Ok(Self {
            needed: execution.backend != Backend::Cpu,
            embedding: table.map_or(0, |info| info.range.len() as u64),
            head: gguf.tensors.get("output.weight").or(table).cloned(),
        })
    }

    /// Returns the bytes of a copy of some rows of the output head.
    pub(super) fn head_rows(&self, rows: usize) -> u64 {
        let Some(head) = &self.head else { return 0 };
        let [_, k] = head.shape[..] else { return 0 };
        in_memory(&TensorInfo { shape: vec![rows, k], ..head.clone() }, head.dtype)
    }

    /// Returns the bytes of a copy of the output head.
    pub(super) fn whole_head(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| self.head_rows(head.shape[0]))
    }
}
