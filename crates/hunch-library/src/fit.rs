//! Predicts memory use from model headers. Counts weights as laid out on the device, full KV caches, and
//! scratch space. Loads nothing.

use crate::types::{Fit, FitVerdict, MachineMemory, PredictedMemory, SmallerChoice};
use hunch_core::limits::MAX_ROWS;
use hunch_error::Result;
use hunch_kernels::attention::SPAN as CPU_SPAN;
use hunch_kernels::experts::ExpertStack;
use hunch_kernels::{WeightMatrix, WeightType};
use hunch_model::device::{Compute, KvType};
use hunch_model::execution::{Backend, Execution};
use hunch_model::gguf::{Gguf, TensorInfo};
use hunch_model::heads::HeadMemory;
use hunch_model::metal::matrix::Matrix;
use hunch_model::metal::workspace::{SPAN, attention_result_bytes, attention_rows_at_once};
use hunch_model::spec::{Experts, LAYER_EMBEDDING_TABLE, ModelSpec, RESTORE_STEP};

/// Default limit of the context, in tokens: KV cache memory grows with it.
const DEFAULT_CONTEXT: usize = 8192;
/// Smallest context offered as an alternative, in tokens.
const MIN_CONTEXT: u32 = 1024;
/// Below this share of free memory, the verdict is [`FitVerdict::Tight`].
const TIGHT_MARGIN: f64 = 0.1;
/// Bytes for the program itself: code, threads, temporary buffers during loading. Measured on Linux.
const PROGRAM_BYTES: u64 = 16 << 20;
/// Bytes of tokeniser and header per vocabulary entry: text, merges, lookup tables. Measured with
/// vocabularies of 49,152 and 151,936 entries.
const BYTES_PER_ENTRY: u64 = 440;

/// Returns the context a model is loaded with by default, in tokens.
pub fn default_context(spec: &ModelSpec) -> usize {
    spec.context_length.min(DEFAULT_CONTEXT)
}

/// Memory needs of one model on one device, from its header or from estimates.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// Bytes of matrices and vectors as laid out in memory.
    weights: u64,
    /// Bytes of KV cache per token.
    cache_per_token: u64,
    /// Bytes of the state of layers without attention: fixed, and for every [`RESTORE_STEP`] tokens.
    state: (u64, u64),
    /// Bytes per token of the two cache buffers of each layer, for candle. The size of a buffer is a power of two.
    candle_layers: Option<Vec<u64>>,
    scratch: Scratch,
    /// Vocabulary entries.
    entries: u64,
    /// Longest context, in tokens.
    pub max_context: usize,
    /// Bytes of weights read by a single-row pass.
    pub read_by_a_pass: u64,
    /// Bytes of the weights of all experts, as passes read them.
    pub expert_bytes: u64,
    /// Bytes of the weights in the file, without those of layers that only draft.
    pub weight_bytes: u64,
}

/// Scratch memory of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scratch {
    /// Bytes in any context.
    fixed: u64,
    /// Bytes of attention for a row and a token of the context.
    attention: f64,
    /// Rows of a pass.
    rows: usize,
    /// Attention takes fewer rows at once in a long context.
    splits_rows: bool,
}

impl Scratch {
    fn bytes(&self, context: u32) -> u64 {
        let of_row = self.attention * f64::from(context);
        let rows =
            if self.splits_rows { attention_rows_at_once(self.rows, of_row as usize) } else { self.rows };
        self.fixed + (of_row * rows as f64) as u64
    }
}

impl Footprint {
    /// Returns `true` if candle's operations run the model on this device, instead of our own kernels.
    pub fn is_on_candle(&self) -> bool {
        self.candle_layers.is_some()
    }

    /// Computes the footprint of a model on a device, from its header.
    ///
    /// # Errors
    /// If the architecture is not supported.
    pub fn on_device(gguf: &Gguf, compute: &Compute) -> Result<Self> {
        let spec = ModelSpec::from_gguf(gguf)?;
        let execution = Execution::expected(gguf, &spec, compute);
        Ok(Self::with_execution(gguf, &spec, &execution, compute.kv()))
    }

    fn with_execution(gguf: &Gguf, spec: &ModelSpec, execution: &Execution, kv: KvType) -> Self {
        let tensors = &gguf.tensors;
        let bytes = |info: &TensorInfo| info.range.len() as u64;
        let table = tensors.get("token_embd.weight");
        let tied = !tensors.contains_key("output.weight");
        // A pass reads one row of each of these.
        let is_table = |name: &str| name == LAYER_EMBEDDING_TABLE || (!tied && name == "token_embd.weight");
        let loaded = gguf.model_tensors().filter(|(name, _)| !is_table(name));
        let read = |info: &TensorInfo| match execution.backend {
            Backend::Cpu | Backend::Metal => execution.bytes_read(info) as u64,
            Backend::Candle { .. } => bytes(info),
        };
        let of_row = |(name, info): (&String, _)| (read(info) as f64 * spec.share_read(name)) as u64;
        let read_by_a_pass = loaded.clone().map(of_row).sum();
        let experts = loaded.clone().filter(|(name, _)| spec.share_read(name) < 1.0);
        let expert_bytes = experts.map(|(_, info)| read(info)).sum();
        let mut weights: u64 = loaded.map(|(_, info)| in_memory(info, execution)).sum();
        // The embedding table is a separate copy unless it shares packed rows with the output head.
        let is_candle = matches!(execution.backend, Backend::Candle { .. });
        let shared = tied
            && match execution.backend {
                Backend::Cpu => table.is_some_and(is_packed),
                Backend::Metal => true,
                Backend::Candle { .. } => false,
            };
        if !shared {
            let separate = |info| match execution.backend {
                Backend::Metal => in_memory(info, execution),
                Backend::Cpu | Backend::Candle { .. } => bytes(info),
            };
            weights += table.map_or(0, separate);
        }
        let of_table = |info| match execution.backend {
            Backend::Metal => in_memory(info, execution),
            Backend::Cpu | Backend::Candle { .. } => bytes(info),
        };
        weights += tensors.get(LAYER_EMBEDDING_TABLE).map_or(0, of_table);
        let footprint = Self {
            weights,
            cache_per_token: spec.cache_bytes_per_token() as u64,
            state: {
                let [fixed, of_step] = [0, RESTORE_STEP].map(|tokens| spec.state_bytes(tokens) as u64);
                (fixed, of_step - fixed)
            },
            candle_layers: is_candle
                .then(|| spec.cached_values().map(|values| (values * KvType::F32.bytes()) as u64).collect()),
            scratch: scratch_of(spec, &execution.backend),
            entries: spec.n_vocab as u64,
            max_context: spec.context_length,
            read_by_a_pass,
            expert_bytes,
            weight_bytes: gguf.model_tensors().map(|(_, info)| bytes(info)).sum(),
        };
        footprint.with_kv(execution.backend.kv(kv))
    }

    /// Returns the same footprint with the caches that models usually get on a device. For
    /// [estimates](Self::estimate), whose caches have 32 bits.
    #[must_use]
    pub fn with_usual_cache(self, compute: &Compute) -> Self {
        self.with_kv(Backend::usual(compute).kv(compute.kv()))
    }

    /// Estimates the footprint of a model that is not installed. Inputs are the file size and the KV cache
    /// size per token.
    pub fn estimate(size_bytes: u64, cache_per_token: u64) -> Self {
        Self {
            weights: size_bytes,
            cache_per_token,
            state: (0, 0),
            candle_layers: None,
            // A sixteenth of the weights for scratch: typical of models with a few billion parameters.
            scratch: Scratch { fixed: size_bytes / 16, ..Scratch::default() },
            entries: 0,
            max_context: usize::MAX,
            read_by_a_pass: size_bytes,
            expert_bytes: 0,
            weight_bytes: size_bytes,
        }
    }

    fn with_kv(self, kv: KvType) -> Self {
        let cache_per_token = self.cache_per_token * kv.bytes() as u64 / KvType::F32.bytes() as u64;
        Self { cache_per_token, ..self }
    }

    /// Predicts memory with a cache of `context` tokens, capped at the model's longest context.
    pub fn predicted(&self, context: u32) -> PredictedMemory {
        let context = context.min(u32::try_from(self.max_context).unwrap_or(u32::MAX));
        PredictedMemory { weights: self.weights, cache: self.cache_bytes(u64::from(context)) }
    }

    fn cache_bytes(&self, context: u64) -> u64 {
        let of_layer = |per_token: &u64| 2 * (per_token / 2 * context).next_power_of_two();
        let keys_and_values = match &self.candle_layers {
            Some(layers) => layers.iter().map(of_layer).sum(),
            None => self.cache_per_token * context,
        };
        let (fixed, of_step) = self.state;
        keys_and_values + fixed + of_step * context.div_ceil(RESTORE_STEP as u64)
    }
}

/// Checks whether the CPU kernels support this matrix type.
fn is_packed(info: &TensorInfo) -> bool {
    matches!(info.shape[..], [n, k] if WeightMatrix::bytes_in_memory(info.dtype, n, k).is_some())
}

/// Returns a tensor's size in memory once loaded, in bytes.
fn in_memory(info: &TensorInfo, execution: &Execution) -> u64 {
    use WeightType::{BF16, F16, F32};
    let elements: usize = info.shape.iter().product();
    let (n, k) = match info.shape[..] {
        [n, k] => (n, k),
        [experts, n, k] => (experts * n, k),
        _ => return 4 * elements as u64,
    };
    let bytes = match execution.backend {
        Backend::Cpu if info.shape.len() == 3 => Some(ExpertStack::bytes_in_memory(info.dtype, elements)),
        Backend::Cpu => WeightMatrix::bytes_in_memory(info.dtype, n, k),
        Backend::Metal => Matrix::bytes_in_memory(execution.loaded_type(info.dtype), n, k),
        // candle holds float matrices as f32, in buffers whose sizes are powers of two.
        Backend::Candle { .. } => {
            matches!(info.dtype, F16 | BF16 | F32).then(|| (4 * elements).next_power_of_two())
        }
    };
    bytes.unwrap_or(info.range.len()) as u64
}

/// Returns the scratch memory of a pass.
fn scratch_of(spec: &ModelSpec, backend: &Backend) -> Scratch {
    let rows = backend.prefill_rows() as u64;
    let (heads, keys) = (spec.n_head as u64, spec.widest_keys() as u64);
    let width = spec.widest_queries() as u64 / heads;
    let (n_embd, n_ff) = (spec.n_embd as u64, spec.n_ff as u64);
    // Queries, keys and values, or the projections of the mixer in place of attention.
    let queries = if spec.gated_attention { 2 * heads * width } else { heads * width };
    let of_mixers = [
        queries + 2 * keys,
        spec.convolution.map_or(0, |_| 3 * n_embd),
        // Inputs and outputs of a delta net are kept before and after its convolution.
        spec.delta_net.map_or(0, |net| 3 * net.input_width() as u64 + 2 * net.output_width() as u64),
    ];
    let projected = of_mixers.into_iter().max().unwrap_or(0);
    // Logits of a verify pass, and one distribution per row.
    let logits = 2 * MAX_ROWS as u64 * spec.n_vocab as u64;
    // Input and output of each expert of a row.
    let of_experts = spec.experts.map_or(0, |experts| 2 * experts.used as u64 * n_embd);
    // Inputs of the layers' own embeddings, from the table and its projection.
    let of_layers = spec.layer_embedding.map_or(0, |of| 3 * (spec.n_layer * of.width) as u64);
    let usual_row = 3 * n_embd + heads * width + projected + 3 * n_ff + of_experts + of_layers;
    let (row_bytes, attention) = match backend {
        Backend::Cpu => (4 * usual_row, (4 * heads * (width + 2)) as f64 / CPU_SPAN as f64),
        Backend::Metal => {
            // The input of a product is kept as codes, halves and floats, with scales and sums.
            let of_net = spec.delta_net.map_or(0, |net| net.output_width() as u64);
            let of_layer = spec.layer_embedding.map_or(0, |of| of.width as u64);
            let input = n_embd.max(n_ff).max(heads * width).max(of_net).max(of_layer) * 29 / 4;
            let of_experts = spec.experts.map_or(0, |experts| values_of_experts(&experts, n_embd));
            let of_layers = 2 * spec.n_layer as u64 * of_layer;
            let row = 4 * (n_embd + projected + 2 * n_ff + of_experts + of_layers) + input;
            (row, heads as f64 * attention_result_bytes(width as usize) as f64 / SPAN as f64)
        }
        // Scores before and after the softmax, with and without the mask; keys and values side by side.
        Backend::Candle { .. } => (4 * usual_row, 16.0 * (heads as f64 + keys as f64 / rows as f64)),
    };
    Scratch {
        fixed: rows * row_bytes + 4 * logits,
        attention,
        rows: rows as usize,
        splits_rows: *backend == Backend::Metal,
    }
}

/// Returns the values of a row that our Metal kernels keep for experts: scores, entries and their blocks, gates and ups,
/// outputs. The expert that all rows use counts too.
fn values_of_experts(experts: &Experts, n_embd: u64) -> u64 {
    let (count, used, n_ff) = (experts.count as u64, experts.used as u64, experts.n_ff as u64);
    let of_shared = experts.shared.map_or(0, |width| 2 * width as u64 + n_embd + 1)
        + experts.parallel.map_or(0, |_| n_embd);
    count + used * (3 + 4 + 2 * n_ff + n_embd) + of_shared
}

/// Predicts the memory of target and draft with caches of `context` tokens. Alternatives come from
/// [`smaller`].
pub fn fit(target: &Footprint, draft: Option<&Footprint>, context: u32, machine: MachineMemory) -> Fit {
    fit_with_head(target, draft, None, context, machine)
}

/// As [`fit`], with a head that drafts for the target.
pub fn fit_with_head(
    target: &Footprint,
    draft: Option<&Footprint>,
    head: Option<HeadMemory>,
    context: u32,
    machine: MachineMemory,
) -> Fit {
    let of_head = head.map(|head| PredictedMemory {
        weights: head.weights,
        cache: head.cache_per_token * u64::from(context),
    });
    let (of_target, of_draft) = (target.predicted(context), draft.map(|draft| draft.predicted(context)));
    let scratch = |model: &Footprint| model.scratch.bytes(context);
    let other = PROGRAM_BYTES + target.entries * BYTES_PER_ENTRY + scratch(target) + draft.map_or(0, scratch);
    let model = |memory: PredictedMemory| memory.weights + memory.cache;
    let total = model(of_target) + of_draft.map_or(0, model) + of_head.map_or(0, model) + other;
    Fit {
        context,
        target: of_target,
        draft: of_draft,
        head: of_head,
        other,
        total,
        machine,
        verdict: verdict(total, machine),
        smaller: Vec::new(),
    }
}

/// Judges whether `bytes` fit. If the system does not report its memory, everything fits.
pub fn verdict(bytes: u64, machine: MachineMemory) -> FitVerdict {
    if machine.total == 0 {
        FitVerdict::Fits
    } else if bytes > machine.usable {
        FitVerdict::TooLarge
    } else if bytes as f64 > (1.0 - TIGHT_MARGIN) * machine.usable as f64 {
        FitVerdict::Tight
    } else {
        FitVerdict::Fits
    }
}

/// Explains why the models do not fit, and what would. Forms the middle part of a [`Refusal::ModelTooLarge`].
///
/// [`Refusal::ModelTooLarge`]: hunch_error::Refusal::ModelTooLarge
pub fn too_large_message(fit: &Fit) -> String {
    let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let instead = match fit.smaller.first() {
        Some(SmallerChoice::Context { context }) => format!(" A context of {context} tokens would fit."),
        Some(SmallerChoice::WithoutDraft) => " Without the draft it would fit.".into(),
        Some(SmallerChoice::Model { name, .. } | SmallerChoice::Catalogue { name, .. }) => {
            format!(" {name} would fit.")
        }
        None => String::new(),
    };
    format!(
        "with a context of {} tokens this takes {} (predicted), and models may take {} of this machine's \
         {}.{instead} Nothing was loaded",
        fit.context,
        gb(fit.total),
        gb(fit.machine.usable),
        gb(fit.machine.total)
    )
}

/// A model to offer in place of one that does not fit.
#[derive(Clone, Debug)]
pub struct FallbackModel {
    /// The choice as shown to the user.
    pub choice: SmallerChoice,
    /// Memory needs of the model.
    pub footprint: Footprint,
}

/// Returns alternatives that fit, closest first. These are the same models with a smaller context, the
/// target alone, then the largest fitting model of `others` installed and in the catalogue.
pub fn smaller(
    target: &Footprint,
    draft: Option<&Footprint>,
    head: Option<HeadMemory>,
    wanted: &Fit,
    others: &[FallbackModel],
) -> Vec<SmallerChoice> {
    let fits_with = |target: &Footprint, draft: Option<&Footprint>, head, context: u32| {
        fit_with_head(target, draft, head, context, wanted.machine).verdict != FitVerdict::TooLarge
    };
    let fits = |draft, context| fits_with(target, draft, head, context);
    let contexts = || {
        let half = std::iter::successors(Some(wanted.context.next_power_of_two() / 2), |c| Some(c / 2));
        half.take_while(|context| *context >= MIN_CONTEXT)
    };
    let mut choices = Vec::new();
    choices.extend(contexts().find(|&c| fits(draft, c)).map(|context| SmallerChoice::Context { context }));
    if draft.is_some() && fits(None, wanted.context) {
        choices.push(SmallerChoice::WithoutDraft);
    }
    for of_catalogue in [false, true] {
        let of_kind = others.iter().filter(|other| {
            matches!(other.choice, SmallerChoice::Catalogue { .. }) == of_catalogue
                && other.footprint.weight_bytes < target.weight_bytes
                && fits_with(
                    &other.footprint,
                    draft.filter(|d| d.weight_bytes < other.footprint.weight_bytes),
                    // A head drafts for one target only.
                    None,
                    wanted.context,
                )
        });
        choices.extend(of_kind.max_by_key(|other| other.footprint.weight_bytes).map(|o| o.choice.clone()));
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of this many megabytes whose cache takes 1,000 bytes per token.
    fn model(megabytes: u64) -> Footprint {
        Footprint { scratch: Scratch::default(), ..Footprint::estimate(megabytes * 1_000_000, 1000) }
    }

    fn machine(megabytes: u64) -> MachineMemory {
        MachineMemory { total: 2 * megabytes * 1_000_000, usable: megabytes * 1_000_000 }
    }

    #[test]
    fn parts_add_up_and_the_last_tenth_is_tight() {
        let found = fit(&model(900), Some(&model(50)), 10_000, machine(2000));
        assert_eq!(found.target, PredictedMemory { weights: 900_000_000, cache: 10_000_000 });
        assert_eq!(found.draft, Some(PredictedMemory { weights: 50_000_000, cache: 10_000_000 }));
        assert_eq!((found.total, found.other), (970_000_000 + PROGRAM_BYTES, PROGRAM_BYTES));
        assert_eq!(found.verdict, FitVerdict::Fits);
        let with = |usable| verdict(900, MachineMemory { total: 2000, usable });
        assert_eq!([1000, 999, 900, 899].map(with), {
            use FitVerdict::{Fits, Tight, TooLarge};
            [Fits, Tight, Tight, TooLarge]
        });
        assert_eq!(verdict(900, MachineMemory { total: 0, usable: 0 }), FitVerdict::Fits);
        let head = HeadMemory { weights: 1_030_000_000, cache_per_token: 100 };
        let with_head = fit_with_head(&model(900), None, Some(head), 10_000, machine(2000));
        assert_eq!(with_head.head, Some(PredictedMemory { weights: 1_030_000_000, cache: 1_000_000 }));
        assert_eq!(with_head.total, 1_941_000_000 + PROGRAM_BYTES);
        assert_eq!((with_head.verdict, with_head.draft), (FitVerdict::Tight, None));
        let short = Footprint { max_context: 100, ..model(1) };
        assert_eq!(short.predicted(5000).cache, 100_000);
        // Two buffers of 500,000 bytes each.
        let on_gpu = Footprint { candle_layers: Some(vec![1000]), ..model(1) };
        assert_eq!(on_gpu.predicted(1000).cache, 2 * (1 << 19));
    }

    #[test]
    fn alternatives_are_listed_closest_first() {
        let instead = |choice, megabytes| FallbackModel { choice, footprint: model(megabytes) };
        let here = |name: &str| SmallerChoice::Model { name: name.into(), path: format!("/{name}") };
        let to_fetch = |id: &str| SmallerChoice::Catalogue { id: id.into(), name: id.into() };
        let others = [
            instead(here("small"), 100),
            instead(here("middle"), 300),
            instead(here("larger"), 1200),
            instead(to_fetch("a"), 200),
            instead(to_fetch("b"), 500),
        ];
        let choices = |usable, context| {
            let wanted = fit(&model(900), Some(&model(150)), context, machine(usable));
            assert_eq!(wanted.verdict, FitVerdict::TooLarge);
            smaller(&model(900), Some(&model(150)), None, &wanted, &others)
        };
        // Weights and program take 1067 MB, the caches of 65,536 tokens 131 MB: half the context fits.
        let half = SmallerChoice::Context { context: 32_768 };
        assert_eq!(choices(1150, 65_536), [half, SmallerChoice::WithoutDraft, here("middle"), to_fetch("b")]);
        // Even the weights of both do not fit.
        assert_eq!(choices(1000, 4096), [SmallerChoice::WithoutDraft, here("middle"), to_fetch("b")]);
        assert_eq!(choices(400, 4096), [here("small"), to_fetch("a")]);
        assert_eq!(choices(50, 4096), []);
    }
}
