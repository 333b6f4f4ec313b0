//! The decoder: one loop over the steps of `executor` for all architectures.
//!
//! Architectures differ only in their [`ModelSpec`]. Device code belongs to the executors.

mod warm_up;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::candle_executor::CandleExecutor;
use crate::cpu_executor::CpuExecutor;
use crate::device::{Compute, KvType};
use crate::execution::{Backend, Execution};
use crate::executor::{Draw, Executor, LAYER, LayerStep, SequenceExecutor, WantedResults};
use crate::metal::costs::PassSize;
use crate::metal::gpu::Gpu;
use crate::metal::kernels::Kernels;
use crate::metal_executor::MetalExecutor;
use crate::spec::{ModelSpec, RESTORE_STEP};
use crate::weights::{Embedding, WeightFile};
use hunch_core::model::{
    ChainInput, DeviceChain, DraftWindow, ExpertUse, LanguageModel, LayerPlan, LogitRows, ModelInfo,
    ModelMemory, PassInput, PassOutput, RowLayout,
};
use hunch_core::sample::DrawSettings;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_kernels::{RowMask, WeightMatrix, Window};
pub use warm_up::WarmTimes;

/// A row of the cache, from which it can be computed again.
#[derive(Clone, Copy)]
struct RunRow {
    token: TokenId,
    window: Option<DraftWindow>,
}

/// Decoder-only transformer on a device, with its KV cache.
///
/// Its cache goes back to any length. If the state of a layer is not held there, the tokens after the nearest one that is
/// run again. So callers see a cache that is truncated, whatever the layers are.
pub struct Decoder {
    spec: ModelSpec,
    info: ModelInfo,
    execution: Execution,
    executor: Box<dyn Executor>,
    /// Rows in the slots of the cache.
    rows: Vec<RunRow>,
    memory: ModelMemory,
    /// Bytes of the weights of all experts.
    expert_bytes: usize,
    pass: PassSize,
}

impl Decoder {
    /// Returns a decoder of the same weights with an empty cache.
    pub fn forked(&self) -> Self {
        Self {
            spec: self.spec.clone(),
            info: self.info.clone(),
            executor: self.executor.fork(),
            rows: Vec::new(),
            execution: self.execution.clone(),
            memory: self.memory,
            expert_bytes: self.expert_bytes,
            pass: self.pass,
        }
    }

    /// Loads a model file.
    ///
    /// # Errors
    /// If the file is invalid or unsupported, does not fit the device, or changes while it is read.
    pub fn open(path: &Path, compute: &Compute) -> Result<Self> {
        Self::load(&WeightFile::open(path)?, compute)
    }

    /// Loads an open model file.
    ///
    /// # Errors
    /// See [`Decoder::open`].
    pub fn load(file: &WeightFile, compute: &Compute) -> Result<Self> {
        Self::load_for(file, compute, usize::MAX)
    }

    /// Loads an open model file for sequences of at most `context` tokens.
    ///
    /// # Errors
    /// See [`Decoder::open`].
    pub fn load_for(file: &WeightFile, compute: &Compute, context: usize) -> Result<Self> {
        let spec = ModelSpec::from_gguf(file.gguf())?.with_context(context);
        let execution = Execution::of(file.gguf(), &spec, compute);
        if matches!(execution.backend, Backend::Candle { .. }) {
            file.check_candle()?;
        }
        let loaded = match (&execution.backend, compute.kernels()) {
            (Backend::Metal, Some(kernels)) => Self::with_metal(file, kernels, spec, execution)?,
            (Backend::Cpu, _) => {
                let executor = Box::new(CpuExecutor::load(file, &spec, compute)?);
                Self::new(file, spec, execution, executor)
            }
            _ => Self::with_candle(file, compute, spec, execution)?,
        };
        file.check_unchanged()?;
        Ok(loaded)
    }

    /// Loads an open model file for candle operations, even on the CPU.
    ///
    /// On the CPU they are the reference for testing the kernels.
    ///
    /// # Errors
    /// See [`Decoder::open`].
    pub fn load_candle(file: &WeightFile, compute: &Compute) -> Result<Self> {
        let execution = Execution::on(Backend::Candle { obstacle: None });
        Self::with_candle(file, compute, ModelSpec::from_gguf(file.gguf())?, execution)
    }

    /// Loads an open model file for our Metal kernels on a GPU, or fails.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] if a shape or type has no Metal kernel. See [`Decoder::open`].
    pub fn load_on_gpu(file: &WeightFile, gpu: &Arc<dyn Gpu>, context: usize) -> Result<Self> {
        let spec = ModelSpec::from_gguf(file.gguf())?.with_context(context);
        let kernels = Arc::new(Kernels::new(gpu.clone()));
        let loaded = Self::with_metal(file, &kernels, spec, Execution::on(Backend::Metal))?;
        file.check_unchanged()?;
        Ok(loaded)
    }

    fn with_metal(
        file: &WeightFile,
        kernels: &Arc<Kernels>,
        spec: ModelSpec,
        execution: Execution,
    ) -> Result<Self> {
        let file = &file.converted(&execution.conversions);
        let executor = Box::new(MetalExecutor::load(file, &spec, kernels)?);
        Ok(Self::new(file, spec, execution, executor))
    }

    fn with_candle(
        file: &WeightFile,
        compute: &Compute,
        spec: ModelSpec,
        execution: Execution,
    ) -> Result<Self> {
        let executor = Box::new(CandleExecutor::load(file, &spec, compute)?);
        Ok(Self::new(file, spec, execution, executor))
    }

    fn new(file: &WeightFile, spec: ModelSpec, execution: Execution, executor: Box<dyn Executor>) -> Self {
        let memory = ModelMemory {
            weights: file.weight_bytes(),
            read_by_a_pass: file.bytes_per_pass(&spec),
            head: file.head_bytes(),
            row_weights: file.weights_per_pass(&spec),
            head_weights: file.head_weights(),
            cache: 0,
            cache_per_token: 0,
        };
        let expert_bytes = file.expert_bytes(&spec);
        let of_file = PassSize::of(file.gguf(), &spec);
        let pass = of_file.reading(memory.read_by_a_pass as u64, expert_bytes as u64);
        let (info, rows) = (spec.info(), Vec::new());
        Self { info, spec, execution, executor, rows, memory, expert_bytes, pass }
    }

    /// Predicts the times of passes of 1 to `most` rows, in milliseconds.
    ///
    /// `None` unless our Metal kernels run the model on `compute` and figures of its GPU are known.
    pub fn predicted_ms(&self, compute: &Compute, most: usize) -> Option<Vec<(usize, f64)>> {
        if self.execution.backend == Backend::Metal { compute.predicted_ms(self.pass, most) } else { None }
    }

    /// Predicts the bytes that passes of 1 to `most` rows read, relative to a pass of one row. `None` for dense models,
    /// whose passes all read the same.
    pub fn predicted_growth(&self, most: usize) -> Option<Vec<(usize, f64)>> {
        let experts = self.spec.experts?;
        let (of_row, of_experts) = (self.memory.read_by_a_pass as u64, self.expert_bytes as u64);
        Some((1..=most).map(|rows| (rows, experts.growth(of_row, of_experts, rows))).collect())
    }

    /// Returns what executes the passes.
    pub fn backend(&self) -> &Backend {
        &self.execution.backend
    }

    /// Returns how the device runs the model.
    pub fn execution(&self) -> &Execution {
        &self.execution
    }

    /// Returns `count` empty sequences that share passes. `None` if the device has no such passes.
    pub(crate) fn sequences(&self, count: usize) -> Option<Box<dyn SequenceExecutor>> {
        self.executor.sequences(count)
    }

    /// Returns the embedding table, if it is in host memory.
    pub(crate) fn host_embedding(&self) -> Option<Arc<Embedding>> {
        self.executor.host_embedding()
    }

    /// Returns the output head, if it is in host memory and has a kernel.
    pub(crate) fn host_head(&self) -> Option<WeightMatrix> {
        self.executor.host_head()
    }

    fn check_step(&self, step: &PassInput<'_>) -> Result<()> {
        if step.tokens.is_empty() {
            return Err(Error::Internal("a forward pass needs at least one token".into()));
        }
        if let Some(id) = step.tokens.iter().find(|&&id| id as usize >= self.spec.n_vocab) {
            return Err(Error::invalid(format!(
                "Token {id} is outside this model's vocabulary of {} tokens.",
                self.spec.n_vocab
            )));
        }
        if let Some(tap) = step.taps.iter().find(|&&tap| tap >= self.spec.n_layer) {
            return Err(Error::Internal(format!("cannot tap layer {tap} of {}", self.spec.n_layer)));
        }
        Ok(())
    }

    fn pass(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        self.check_step(&step)?;
        let rows = step.tokens.len();
        let mask =
            row_mask(self.executor.cache().len(), rows, step.layout)?.with_window(visible(step.window));
        self.executor.begin(step.tokens, &mask)?;
        let tapped: BTreeSet<usize> = step.taps.iter().copied().collect();
        let wanted = WantedResults { logits: step.logits, taps: tapped.len() };
        self.layers(step.layers, &tapped, wanted)?;
        let PassOutput { logits, taps } = self.executor.results(wanted, step.vocab_subset)?;
        if logits.is_empty() && taps.is_empty() {
            // Nothing was read, so work may be queued. A pass that is timed has to be over when it returns.
            self.executor.finish()?;
        }
        self.advance(step.tokens, step.window);
        if step.taps.iter().eq(&tapped) {
            return Ok(PassOutput { logits, taps });
        }
        let taps = step.taps.iter().map(|tap| taps[tapped.range(..tap).count()].clone()).collect();
        Ok(PassOutput { logits, taps })
    }

    /// Adds the rows of a pass over `tokens` to the length of the cache.
    fn advance(&mut self, tokens: &[TokenId], window: Option<DraftWindow>) {
        self.rows.truncate(self.executor.cache().len());
        self.rows.extend(tokens.iter().map(|&token| RunRow { token, window }));
        self.executor.cache_mut().advance(tokens.len());
    }

    /// Drops all rows from `len` on. If the state of a layer is not held there, goes back to where it is, and runs the
    /// tokens from there again.
    fn restore(&mut self, len: usize) -> Result<()> {
        let held = self.executor.cache().restorable(len);
        let len = len.min(self.executor.cache().len());
        let again = self.rows[held..len].to_vec();
        self.executor.cache_mut().truncate(held);
        for rows in again.chunk_by(|a, b| a.window == b.window) {
            let (tokens, window): (Vec<TokenId>, _) =
                (rows.iter().map(|row| row.token).collect(), rows[0].window);
            for tokens in tokens.chunks(self.prefill_rows()) {
                self.pass(PassInput { window, ..PassInput::chain(tokens, LogitRows::None) })?;
            }
        }
        Ok(())
    }

    /// Runs the layers of a pass and keeps the residual stream after the tapped ones.
    fn layers(
        &mut self,
        layers: LayerPlan<'_>,
        tapped: &BTreeSet<usize>,
        wanted: WantedResults,
    ) -> Result<()> {
        let mut kept = 0;
        for layer in 0..self.spec.n_layer {
            let runs = match layers {
                LayerPlan::All => true,
                LayerPlan::Exit(n) => layer < n,
                LayerPlan::Skip(skipped) => skipped.binary_search(&layer).is_err(),
            };
            if runs {
                LAYER.iter().try_for_each(|&part| self.executor.step(layer, part))?;
            } else if self.spec.lends_keys(layer) && !matches!(layers, LayerPlan::Exit(_)) {
                // Later layers attend to these keys, which must not be those of other rows.
                self.executor.step(layer, LayerStep::Project)?;
            }
            if tapped.contains(&layer) {
                self.executor.tap(kept, wanted)?;
                kept += 1;
            }
        }
        Ok(())
    }

    /// Runs a chain whose tokens the device chooses. Only the end waits.
    fn chain(&mut self, chain: ChainInput<'_>) -> Result<DeviceChain> {
        let ChainInput { tokens, count, layers, window, draws } = chain;
        self.check_step(&PassInput::chain(tokens, LogitRows::Last))?;
        if draws.is_some_and(|draws| draws.units.len() < count || draws.n_vocab > self.spec.n_vocab) {
            return Err(Error::Internal("the draws of a chain do not fit its tokens".into()));
        }
        let draw = |at: usize| {
            draws.map(|draws| Draw {
                settings: draws.settings,
                n_vocab: draws.n_vocab,
                unit: draws.units[at],
            })
        };
        let base = self.executor.cache().len();
        let run = |model: &mut Self| {
            for at in 0..count {
                let rows = if at == 0 { tokens.len() } else { 1 };
                let mask = row_mask(model.executor.cache().len(), rows, RowLayout::Chain)?;
                let mask = mask.with_window(visible(window));
                match at.checked_sub(1) {
                    None => model.executor.begin(tokens, &mask)?,
                    Some(last) => model.executor.begin_chosen(last, &mask)?,
                }
                model.layers(layers, &BTreeSet::new(), WantedResults { logits: LogitRows::Last, taps: 0 })?;
                model.executor.choose(at, count, draw(at))?;
                model.executor.cache_mut().advance(rows);
            }
            let (tokens, logits) = model.executor.chosen(count)?;
            Ok(DeviceChain { tokens, logits })
        };
        match run(self) {
            Ok(chain) => {
                let run = tokens.iter().chain(&chain.tokens[..count - 1]);
                self.rows.truncate(base);
                self.rows.extend(run.map(|&token| RunRow { token, window }));
                Ok(chain)
            }
            Err(error) => {
                // A failed call leaves the cache as it was. If that fails as well, the first error is the one to report.
                self.executor.cache_mut().drop_unfinished(base);
                let _ = self.restore(base);
                Err(error)
            }
        }
    }
}

/// Returns the positions that a window leaves visible.
fn visible(window: Option<DraftWindow>) -> Option<Window> {
    window.map(|window| Window { leading: DraftWindow::SINKS, recent: window.tokens() })
}

/// Builds the attention mask for `rows` rows after `cached` slots.
pub(super) fn row_mask(cached: usize, rows: usize, layout: RowLayout<'_>) -> Result<RowMask> {
    let mask = match layout {
        RowLayout::Chain => RowMask::causal(cached, rows),
        RowLayout::Tree { parents } => RowMask::tree(cached, parents)?,
        RowLayout::Custom { since, depths, visible } => RowMask::custom(cached, since, depths, visible)?,
    };
    if mask.rows() != rows {
        return Err(Error::Internal(format!("the layout has {} rows for {rows} tokens", mask.rows())));
    }
    Ok(mask)
}

impl LanguageModel for Decoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn cache_len(&self) -> usize {
        self.executor.cache().len()
    }

    fn fork(&self) -> Box<dyn LanguageModel> {
        Box::new(self.forked())
    }

    fn memory(&self) -> ModelMemory {
        let cache = self.executor.cache();
        let keys_and_values =
            self.spec.cache_bytes_per_token() / KvType::F32.bytes() * cache.kv_type().bytes();
        let states = self.spec.state_bytes(RESTORE_STEP) - self.spec.state_bytes(0);
        let cache_per_token = keys_and_values + states.div_ceil(RESTORE_STEP);
        ModelMemory { cache: cache.bytes(), cache_per_token, ..self.memory }
    }

    fn expert_use(&self) -> Option<ExpertUse> {
        let (experts, distinct) = self.spec.experts.zip(self.executor.distinct_experts())?;
        Some(ExpertUse { count: experts.count, used: experts.used, distinct })
    }

    fn prefill_rows(&self) -> usize {
        self.execution.backend.prefill_rows()
    }

    fn forward(&mut self, step: PassInput<'_>) -> hunch_core::error::Result<PassOutput> {
        Ok(self.pass(step)?)
    }

    fn device_draw(&self, settings: &DrawSettings) -> Option<DrawSettings> {
        self.executor.device_draw(settings)
    }

    fn device_chain(&mut self, chain: ChainInput<'_>) -> hunch_core::error::Result<Option<DeviceChain>> {
        if chain.count == 0 || self.execution.choice_problem.is_some() || !self.executor.can_choose() {
            return Ok(None);
        }
        Ok(Some(self.chain(chain)?))
    }

    fn truncate(&mut self, len: usize) -> hunch_core::error::Result<()> {
        Ok(self.restore(len)?)
    }

    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> hunch_core::error::Result<()> {
        self.executor.cache_mut().keep_rows(base, rows)?;
        let kept = rows.iter().map(|row| self.rows[base + row]).collect::<Vec<_>>();
        self.rows.truncate(base);
        self.rows.extend(kept);
        Ok(())
    }
}
