//! The table of kernels: the text of each, with its settings, and their compilation.
//!
//! Shader text is in `shaders/`. The arguments of a kernel are in the module of its subject, such as `attention`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gpu::{Argument, Gpu, Grid, KernelId, KernelSource};
use super::matrix::FloatFormat;
use super::packed::PackedFormat;
use super::products::{self, PartKernels, TileRows, packed_settings};
use hunch_error::{Error, Result};

/// Threads of a simdgroup.
pub(super) const LANES: u32 = 32;

/// Kernel with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Products of one to three matrices with the same rows.
    Multiply(TileRows, PartKernels),
    /// Products of one to three matrices of experts with the rows that chose them.
    MultiplyExperts(TileRows, PartKernels),
    /// Choice of experts.
    Route,
    /// Sum of the outputs of experts.
    JoinExperts,
    /// Rows of a packed table.
    TakeRows(PackedFormat),
    /// Rows of a float table.
    TakeFloatRows(FloatFormat),
    /// RMS norm, after adding what a part of a layer computed.
    Norm,
    /// activation(gate) * up.
    Gate,
    /// Head norms, rotation and cache append.
    Heads,
    /// Short convolution over the state of a layer.
    Convolve,
    /// Convolutions, decays and strengths of gated delta nets, for a width of heads.
    DeltaConvolve(u32),
    /// States and outputs of gated delta nets, for a width of heads.
    DeltaStates(u32),
    /// Norm and gate of the outputs of gated delta nets, for a width of heads.
    DeltaOutput(u32),
    /// Moves rows of the cache.
    CopyRows,
    /// Copies memory.
    Copy,
    /// Attention over spans of the context, for a width of heads. A simdgroup has 1, 2, 4 or 8 pairs of a row and a
    /// head.
    Attend(u32, u32),
    /// Combines the spans, for a width of heads.
    Combine(u32),
    /// The most likely token of a row.
    Choose,
    /// A token of a row, drawn with a random number.
    Draw,
}

impl Kernel {
    /// Returns the text of the library.
    pub fn source(self) -> KernelSource {
        use super::shaders::{
            ATTENTION, BLOCKS, CAP, CHOOSE, CONVOLUTION, DELTA_NET, EXPERTS, FLOATS, OUTPUT, ROWS, TAKE_ROWS,
        };
        const ATTEND: &[&str] = &[ROWS, CAP, ATTENTION];
        const DELTA: &[&str] = &[ROWS, DELTA_NET];
        let (function, settings, files): (_, Vec<(&str, i64)>, &[&str]) = match self {
            Self::Multiply(tile, parts) => {
                let (name, text) = products::source(tile, parts);
                return KernelSource { name, text, function: "multiply".into() };
            }
            Self::MultiplyExperts(tile, parts) => {
                let (name, text) = products::expert_source(tile, parts);
                return KernelSource { name, text, function: "multiply_experts".into() };
            }
            Self::Route => ("route", Vec::new(), &[ROWS, EXPERTS]),
            Self::JoinExperts => ("join_experts", Vec::new(), &[ROWS, EXPERTS]),
            Self::TakeRows(format) => {
                let text = packed_settings(format) + &[CAP, BLOCKS, OUTPUT, TAKE_ROWS].concat();
                let name = format!("take_rows-{}", format.dtype());
                return KernelSource { name, text, function: "take_rows".into() };
            }
            Self::TakeFloatRows(format) => {
                ("take_float_rows", vec![("WEIGHTS", format.setting())], &[CAP, FLOATS, OUTPUT, TAKE_ROWS])
            }
            Self::Norm => ("norm", Vec::new(), &[ROWS]),
            Self::Gate => ("gate", Vec::new(), &[ROWS]),
            Self::Heads => ("heads", Vec::new(), &[ROWS]),
            Self::Convolve => ("convolve", Vec::new(), &[ROWS, CONVOLUTION]),
            Self::DeltaConvolve(width) => ("delta_convolve", vec![("HEAD", width.into())], DELTA),
            Self::DeltaStates(width) => ("delta_states", vec![("HEAD", width.into())], DELTA),
            Self::DeltaOutput(width) => ("delta_output", vec![("HEAD", width.into())], DELTA),
            Self::CopyRows => ("copy_rows", Vec::new(), &[ROWS]),
            Self::Copy => ("copy", Vec::new(), &[ROWS]),
            Self::Attend(width, pairs) => {
                ("attend", vec![("HEAD", width.into()), ("PAIRS", pairs.into())], ATTEND)
            }
            Self::Choose => ("choose", Vec::new(), &[CHOOSE]),
            Self::Draw => ("draw", Vec::new(), &[CHOOSE]),
            Self::Combine(width) => ("combine", vec![("HEAD", width.into())], ATTEND),
        };
        let mut text: String =
            settings.iter().map(|(name, value)| format!("#define {name} {value}\n")).collect();
        text.extend(files.iter().copied());
        let words: Vec<String> = settings.iter().map(|(_, value)| value.to_string()).collect();
        KernelSource { name: format!("{function}-{}", words.join("-")), text, function: function.into() }
    }
}

/// Compiled kernels of one GPU. Each is compiled when it is first used.
pub struct Kernels {
    gpu: Arc<dyn Gpu>,
    /// Compiled kernels, and the reasons for which others were refused. Compiling is slow, so each is tried once.
    compiled: Mutex<HashMap<Kernel, Result<KernelId, String>>>,
    /// Joined products that were compared with separate ones, and the problems of those that are not used.
    pub(super) joins: Mutex<HashMap<Kernel, Result<(), String>>>,
}

impl Kernels {
    /// Creates the table for a GPU.
    pub fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self { gpu, compiled: Mutex::default(), joins: Mutex::default() }
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Compiles a kernel unless that was done before.
    ///
    /// # Errors
    /// If the text is refused.
    pub fn get(&self, kernel: Kernel) -> Result<KernelId> {
        let known = self.compiled().get(&kernel).cloned();
        // Without the lock, so that several threads can compile. Two that want the same kernel may both compile it.
        let tried = known.unwrap_or_else(|| {
            let tried = self.gpu.compile(&kernel.source()).map_err(|error| match error {
                Error::Device { reason, .. } => reason,
                other => other.to_string(),
            });
            self.compiled().entry(kernel).or_insert(tried).clone()
        });
        tried.map_err(|reason| Error::Device { device: "metal", reason })
    }

    /// Returns `true` if an error is the refusal of a kernel's text.
    pub(super) fn has_refused(&self, error: &Error) -> bool {
        let Error::Device { reason, .. } = error else { return false };
        self.compiled().values().any(|tried| tried.as_ref().is_err_and(|refused| refused == reason))
    }

    fn compiled(&self) -> MutexGuard<'_, HashMap<Kernel, Result<KernelId, String>>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a kernel, and compiles it before if need be.
    ///
    /// # Errors
    /// If the text is refused or the device fails.
    pub(super) fn run(&self, kernel: Kernel, arguments: &[Argument<'_>], grid: Grid) -> Result<()> {
        self.gpu.dispatch(self.get(kernel)?, arguments, grid)
    }
}
