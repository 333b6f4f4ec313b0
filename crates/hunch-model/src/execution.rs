//! Execution of a model on a device: by our kernels or candle's operations, and what replaces kernels that failed their
//! self-test.
//!
//! Only chooses. Passes belong to the executors.

use std::sync::Arc;

use crate::device::{Compute, KvType};
use crate::gguf::{Gguf, TensorInfo};
use crate::metal::convert::{Conversion, conversions};
use crate::metal::selftest::{KernelPart, SelfTest, SelfTestRecord};
use crate::metal_executor::MetalExecutor;
use crate::spec::ModelSpec;
use hunch_kernels::WeightType;

/// Rows per prefill pass on the CPU, whose matrix product is no faster with more rows.
const CPU_PREFILL_ROWS: usize = 32;
/// Rows per prefill pass on Metal, where each pass reads all weights and works in tiles of up to 64 rows.
const METAL_PREFILL_ROWS: usize = 256;

/// Code that executes the passes of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Our CPU kernels. Rows are invariant.
    Cpu,
    /// Our Metal kernels. Rows are invariant by design, which is tested on a simulated GPU.
    Metal,
    /// candle's operations. Rows of passes of different sizes may differ in their last bits.
    Candle {
        /// Why our Metal kernels do not run the model, if it is on a GPU with kernels.
        obstacle: Option<String>,
    },
}

impl Backend {
    /// Returns what executes models on a device, if their shapes have kernels.
    pub fn usual(compute: &Compute) -> Self {
        match compute.kernels() {
            Some(_) => Self::Metal,
            None if compute.device().is_cpu() => Self::Cpu,
            None => Self::Candle { obstacle: None },
        }
    }

    /// Returns the rows of a pass over a prompt.
    pub fn prefill_rows(&self) -> usize {
        match self {
            Self::Cpu => CPU_PREFILL_ROWS,
            Self::Metal | Self::Candle { .. } => METAL_PREFILL_ROWS,
        }
    }

    /// Returns the number type of caches. Only those of the CPU kernels can be chosen.
    pub fn kv(&self, on_cpu: KvType) -> KvType {
        match self {
            Self::Cpu => on_cpu,
            Self::Metal => KvType::F16,
            Self::Candle { .. } => KvType::F32,
        }
    }

    /// Returns `true` if the logits of a row do not depend on the rows of its pass.
    pub fn is_row_invariant(&self) -> bool {
        !matches!(self, Self::Candle { .. })
    }
}

/// Code that runs a model on a device, and replacements of kernels that failed the self-test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// Code that executes the passes.
    pub backend: Backend,
    /// Weights that are converted, because the product kernel of their type failed.
    pub conversions: Vec<Conversion>,
    /// Problem of the kernel that chooses drafted tokens. The CPU chooses them instead.
    pub choice_problem: Option<String>,
    /// Problem of products in one dispatch. Each then has its own.
    pub joined_problem: Option<String>,
}

impl Execution {
    pub(crate) fn on(backend: Backend) -> Self {
        Self { backend, conversions: Vec::new(), choice_problem: None, joined_problem: None }
    }

    /// Chooses the code that runs a model. Runs the self-test of a GPU if there is no record of it.
    pub fn of(gguf: &Gguf, spec: &ModelSpec, compute: &Compute) -> Self {
        let execution = Self::by(gguf, spec, compute, |compute| compute.self_test());
        let (Backend::Metal, Some(kernels)) = (&execution.backend, compute.kernels()) else {
            return execution;
        };
        let problem = |dtype| SelfTest::problem_of_experts(kernels, dtype);
        match MetalExecutor::expert_types(gguf).into_iter().find_map(problem) {
            Some(problem) => Self::on(Backend::Candle { obstacle: Some(problem) }),
            None => execution,
        }
    }

    /// Predicts how a device would run a model. Without a record of the self-test, all kernels count as right.
    pub fn expected(gguf: &Gguf, spec: &ModelSpec, compute: &Compute) -> Self {
        Self::by(gguf, spec, compute, |compute| compute.known_self_test())
    }

    fn by(
        gguf: &Gguf,
        spec: &ModelSpec,
        compute: &Compute,
        test: impl FnOnce(&Compute) -> Option<Arc<SelfTestRecord>>,
    ) -> Self {
        let usual = Backend::usual(compute);
        if usual != Backend::Metal {
            return Self::on(usual);
        }
        let candle = |obstacle| Self::on(Backend::Candle { obstacle: Some(obstacle) });
        if let Some(obstacle) = MetalExecutor::obstacle(gguf, spec) {
            return candle(obstacle);
        }
        let Some(record) = test(compute) else { return Self::on(Backend::Metal) };
        let test = &record.test;
        let of_experts = MetalExecutor::expert_types(gguf).into_iter().map(KernelPart::Product);
        if let Some(problem) = test.problem_of(MetalExecutor::parts(spec).into_iter().chain(of_experts)) {
            return candle(problem);
        }
        match conversions(gguf, test) {
            Ok(conversions) => {
                let [choice_problem, joined_problem] =
                    [KernelPart::Choice, KernelPart::Joined].map(|part| test.problem_of([part]));
                Self { backend: Backend::Metal, conversions, choice_problem, joined_problem }
            }
            Err(problem) => candle(problem),
        }
    }

    /// Returns the type of a matrix in memory, from its type in the file.
    pub fn loaded_type(&self, dtype: WeightType) -> WeightType {
        self.conversions.iter().find(|one| one.from == dtype).map_or(dtype, |one| one.to)
    }

    /// Returns the bytes that a product reads of a tensor once loaded, for our own kernels.
    pub fn bytes_read(&self, info: &TensorInfo) -> usize {
        let to = self.loaded_type(info.dtype);
        if to == info.dtype || info.shape.len() != 2 {
            return info.bytes_read();
        }
        info.shape.iter().product::<usize>() / to.block_size() * to.type_size()
    }

    /// Returns sentences on what replaces the kernels of the device, a line each, or `None`.
    pub fn note(&self, model: &str) -> Option<String> {
        let mut lines = Vec::new();
        if let Backend::Candle { obstacle: Some(obstacle) } = &self.backend {
            lines.push(format!("Metal: {obstacle}; {model} runs on candle's operations, which are slower."));
        }
        for Conversion { from, to, problem } in &self.conversions {
            let slower = if to.bits() > 2.0 * from.bits() { ", which is slower" } else { "" };
            lines.push(format!(
                "Metal: {problem}; the {from} weights of {model} are converted to {to}{slower}."
            ));
        }
        if let Some(problem) = &self.choice_problem {
            lines.push(format!("Metal: {problem}; the CPU chooses the tokens that {model} drafts."));
        }
        if let Some(problem) = &self.joined_problem {
            lines.push(format!("Metal: {problem}; each product of {model} may need a dispatch of its own."));
        }
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}
