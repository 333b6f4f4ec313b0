//! Self-test of the kernels on the GPU at hand. It compares results with arithmetic in f64 on the CPU, and the
//! bits of a product's row alone and among others. It also takes times. Choosing an executor does not belong here.

mod checks;
mod convolution;
mod delta_net;
mod experts;
mod reference;

use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::hex::hex;
use hunch_error::{Error, Result};
use hunch_kernels::WeightType;
use hunch_kernels::activation::Activation;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::delta_net::DELTA_WIDTHS;
use super::gpu::Gpu;
use super::kernels::Kernels;
use super::shaders;
use checks::{CheckOutcome, Tester};
pub use reference::noise;

/// Widths of heads with a kernel.
pub const HEAD_WIDTHS: [usize; 6] = [32, 64, 96, 128, 256, 512];

/// Part of the kernels that is tested by itself. Models name the parts that they depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPart {
    /// Products of weights of a type, and rows of a table of them.
    Product(WeightType),
    /// Bias, scale and addition of products.
    Output,
    /// Bound of products, for logits.
    Cap,
    /// Products of several types in one dispatch. No model depends on it: products whose bits differ there have
    /// dispatches of their own.
    Joined,
    /// RMS norm of rows.
    Norm,
    /// Norm of what a layer's part computed, before it joins the row.
    UpdateNorm,
    /// Gate of a feed-forward network.
    Gate(Activation),
    /// Norm and rotation of heads, and their place in the cache.
    Heads,
    /// One norm over all heads of a row.
    JointHeads,
    /// Moves and copies of the cache.
    Cache,
    /// Choice of the most likely token.
    Choice,
    /// Draw of a token. No model depends on it: the host draws again and notices a difference.
    Draw,
    /// Attention over heads of a width.
    Attention(usize),
    /// Attention with bounded scores.
    CappedAttention(usize),
    /// Attention to the last keys of a row.
    WindowAttention(usize),
    /// Attention whose heads have sinks.
    Sinks,
    /// Choice of experts, their products, and the sum of their outputs.
    Experts,
    /// Short convolution over the state of a layer.
    Convolution,
    /// Attention whose output has gates.
    GatedAttention,
    /// Gated delta net over heads of a width.
    DeltaNet(usize),
}

impl KernelPart {
    /// Returns all parts, in the order of their tests.
    pub fn all() -> impl Iterator<Item = Self> {
        let products = WeightType::ALL.iter().map(|dtype| Self::Product(*dtype));
        let common = [
            Self::Output,
            Self::Cap,
            Self::Joined,
            Self::Norm,
            Self::UpdateNorm,
            Self::Gate(Activation::Silu),
            Self::Gate(Activation::Gelu),
            Self::Gate(Activation::Clamped),
            Self::Heads,
            Self::JointHeads,
            Self::Cache,
            Self::Choice,
            Self::Draw,
            Self::Sinks,
            Self::Experts,
            Self::Convolution,
            Self::GatedAttention,
        ];
        let attention =
            |width| [Self::Attention(width), Self::CappedAttention(width), Self::WindowAttention(width)];
        let rest = HEAD_WIDTHS.into_iter().flat_map(attention).chain(DELTA_WIDTHS.map(Self::DeltaNet));
        products.chain(common).chain(rest)
    }
}

impl fmt::Display for KernelPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(dtype) => write!(f, "product {dtype}"),
            Self::Output => f.write_str("bias and sum of products"),
            Self::Cap => f.write_str("soft cap of logits"),
            Self::Joined => f.write_str("products in one dispatch"),
            Self::Norm => f.write_str("norm"),
            Self::UpdateNorm => f.write_str("norm after a part"),
            Self::Gate(Activation::Silu) => f.write_str("SiLU gate"),
            Self::Gate(Activation::Gelu) => f.write_str("GELU gate"),
            Self::Gate(Activation::Clamped) => f.write_str("bounded gate"),
            Self::Heads => f.write_str("heads"),
            Self::JointHeads => f.write_str("joint norm of heads"),
            Self::Cache => f.write_str("cache"),
            Self::Choice => f.write_str("choice"),
            Self::Draw => f.write_str("draw"),
            Self::Attention(width) => write!(f, "attention {width}"),
            Self::CappedAttention(width) => write!(f, "attention {width} with a soft cap"),
            Self::WindowAttention(width) => write!(f, "attention {width} with a window"),
            Self::Sinks => f.write_str("attention with sinks"),
            Self::Experts => f.write_str("experts"),
            Self::Convolution => f.write_str("short convolution"),
            Self::GatedAttention => f.write_str("attention with gates"),
            Self::DeltaNet(width) => write!(f, "gated delta net {width}"),
        }
    }
}

/// Result of testing one part of the kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the part, such as `product Q4_K`.
    pub part: String,
    /// The problem, or `None` if it passed.
    pub problem: Option<String>,
    /// `true` if the device failed, which another try may not show again. A kernel that is refused or computes something
    /// else is always wrong.
    #[serde(skip)]
    pub is_transient: bool,
}

impl Finding {
    /// Returns a finding on a part whose problem, if there is one, is lasting.
    pub fn new(part: KernelPart, problem: Option<String>) -> Self {
        Self { part: part.to_string(), problem, is_transient: false }
    }
}

/// Measured times of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuTimes {
    /// Time of a Q4_K product of 1 to 16 rows, in milliseconds: t(M) for M = 1, 2, ...
    pub product_ms: Vec<f64>,
    /// Bytes of weights that the product reads.
    pub product_bytes: u64,
    /// Memory bandwidth of a copy, read and written, in 10^9 bytes per second.
    pub memory_gb_s: f64,
}

/// Results of a self-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// One finding for each part.
    pub findings: Vec<Finding>,
    /// Measured times. `None` if a kernel they need failed.
    pub speed: Option<GpuTimes>,
}

/// Sizes of the timed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Rows and columns of the timed product.
    pub product: (usize, usize),
    /// Bytes of the timed copy.
    pub copy_bytes: usize,
    /// Dispatches between two waits.
    pub dispatches: usize,
    /// Repetitions, of which the fastest counts.
    pub repetitions: usize,
    /// Threads that compile kernels and compare them with the CPU.
    pub threads: usize,
}

impl Workload {
    /// Work for a real GPU: 75 MB of weights and a copy of 128 MiB, larger than the caches of most chips.
    pub const REAL: Self =
        Self { product: (16_384, 8192), copy_bytes: 128 << 20, dispatches: 8, repetitions: 5, threads: 4 };
    /// Work for a simulated GPU, whose times mean nothing.
    pub const SIMULATED: Self =
        Self { product: (8, 256), copy_bytes: 64, dispatches: 1, repetitions: 1, threads: 1 };
}

impl SelfTest {
    /// Tests all kernels of a GPU and measures times.
    pub fn run(kernels: &Kernels, workload: Workload) -> Self {
        let test = Tester { kernels, gpu: kernels.gpu() };
        let find = |part: KernelPart| {
            let outcome = test.check(part);
            let is_transient = outcome.as_ref().is_err_and(|error| !kernels.has_refused(error));
            Finding { is_transient, ..Finding::new(part, problem(&part.to_string(), outcome)) }
        };
        let parts: Vec<KernelPart> = KernelPart::all().collect();
        let next = AtomicUsize::new(0);
        // A system compiles several kernels at once, and compiling takes most of the time.
        let work = || {
            let numbers = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            numbers.map_while(|number| Some((number, find(*parts.get(number)?)))).collect::<Vec<_>>()
        };
        let mut found: Vec<(usize, Finding)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workload.threads.max(1)).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        found.sort_unstable_by_key(|(number, _)| *number);
        // The parts share a queue, so one may report the failure of another. Memory may have been short as well.
        for (number, finding) in &mut found {
            if finding.is_transient {
                *finding = find(parts[*number]);
            }
        }
        let findings = found.into_iter().map(|(_, finding)| finding).collect();
        // A GPU that cannot be timed is still of use. Its costs stay predicted.
        Self { findings, speed: test.speed(workload).ok() }
    }

    /// Returns the problem of experts whose weights have a type, if there is one. Models are tested for their own types
    /// when they are loaded, because each type has kernels of its own.
    pub fn problem_of_experts(kernels: &Kernels, dtype: WeightType) -> Option<String> {
        let test = Tester { kernels, gpu: kernels.gpu() };
        problem(&format!("experts of {dtype} weights"), test.experts(dtype))
    }

    /// Returns the problem of the first of these parts that did not pass. A part that was not tested did not.
    pub fn problem_of(&self, parts: impl IntoIterator<Item = KernelPart>) -> Option<String> {
        parts.into_iter().find_map(|part| {
            let name = part.to_string();
            match self.findings.iter().find(|found| found.part == name) {
                Some(finding) => finding.problem.clone(),
                None => Some(format!("{part} was not tested")),
            }
        })
    }

    /// Returns `true` if no problem may be gone at the next start.
    pub fn is_lasting(&self) -> bool {
        self.findings.iter().all(|finding| !finding.is_transient)
    }

    /// Iterates over the problems.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().filter_map(|finding| finding.problem.as_deref())
    }
}

/// Returns a sentence on a check that did not pass.
fn problem(part: &str, outcome: Result<CheckOutcome>) -> Option<String> {
    match outcome {
        Ok(CheckOutcome::Passed) => None,
        Ok(CheckOutcome::Differs) => Some(format!("{part} differs from the CPU")),
        Ok(CheckOutcome::DependsOnRows) => Some(format!("{part} depends on the number of rows")),
        Err(error) => Some(format!("{part} failed: {error}")),
    }
}

/// Chip, system and version that a self-test belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineId {
    /// Name of the chip.
    pub chip: String,
    /// Version of the operating system.
    pub system: String,
    /// Version of Hunch and digest of its kernels, which may differ between builds of a version.
    pub version: String,
}

impl MachineId {
    /// Describes this machine with a GPU.
    pub fn with(gpu: &dyn Gpu) -> Self {
        let system = sysinfo::System::long_os_version().unwrap_or_default();
        Self { chip: gpu.name(), system, version: kernels_version() }
    }
}

/// Returns the version of Hunch and a digest of the shaders.
fn kernels_version() -> String {
    let digest = hex(&Sha256::digest(shaders::ALL.concat()));
    format!("{} {}", env!("CARGO_PKG_VERSION"), &digest[..12])
}

/// A self-test and the machine it ran on, as kept in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTestRecord {
    /// The machine.
    pub machine: MachineId,
    /// The results.
    #[serde(flatten)]
    pub test: SelfTest,
}

impl SelfTestRecord {
    /// Longest record that is read, in bytes.
    const MAX_BYTES: u64 = 1 << 20;

    /// Reads the record of a machine. A damaged file, one with other parts, or that of another machine, is treated as
    /// missing.
    pub fn read(path: &std::path::Path, machine: &MachineId) -> Option<Self> {
        let is_record = |meta: std::fs::Metadata| meta.is_file() && meta.len() <= Self::MAX_BYTES;
        std::fs::metadata(path).ok().filter(|meta| is_record(meta.clone()))?;
        let record: Self = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let parts = record.test.findings.iter().map(|finding| finding.part.clone());
        let is_complete = KernelPart::all().map(|part| part.to_string()).eq(parts);
        (record.machine == *machine && is_complete).then_some(record)
    }

    /// Replaces the record in a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: &std::path::Path) -> Result<()> {
        let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::Internal(e.to_string()))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        // Several programs may start at once, so each writes a file of its own.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(io)
    }
}
