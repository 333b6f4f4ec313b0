//! The cost curve: cost of a pass by its rows, for the target and its drafters, with the floor set by memory bandwidth.

use candle_core::{DType, Tensor};

use crate::bench::model_bench::{CONTEXT, ModelPass, time_pass};
use crate::bench::passes::MemoryReader;
use crate::bench::suite::Suite;
use crate::clock;
use crate::generate::Models;
use hunch_core::limits::{MAX_DRAFT, MAX_ROWS};
use hunch_core::method::Method;
use hunch_core::model::{ExpertUse, ModelMemory, VocabSubset};
use hunch_core::pass_cost::{CostCurve, CostPoint, DrafterCosts, ExpertCounts, ModelCosts};
use hunch_core::propose::head::{Head, TreeRows};
use hunch_core::propose::{MethodOptions, Proposer};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;
use hunch_model::pass_timer::{PassTimer, PassTimes, TimingObserver, seconds_of};
use hunch_model::text::EncodeOptions;

/// Rounds, after one that warms up.
const ROUNDS: usize = 5;

/// Rows of timed passes of a copy of the target.
const COPY_ROWS: [usize; 5] = [1, 2, 4, 8, MAX_ROWS];

/// Rows of timed levels of a head's tree.
const LEVEL_ROWS: [usize; 4] = [1, 2, 4, 8];

/// Something that is timed once per round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CurveTiming {
    /// Reading memory: seconds per 10^9 bytes.
    Memory,
    /// A target pass of some rows: seconds.
    Target(usize),
    /// A pass of the draft model of some rows: seconds.
    Draft(usize),
    /// A pass of the low-bit copy of some rows: seconds.
    Copy(usize),
    /// A draft of some tokens by the head: seconds, of one token if tokens are drafted one by one.
    Head(usize),
    /// A level of some rows of a head's tree: seconds.
    HeadLevel(usize),
}

/// Measures passes of 1 to 16 rows of target and draft model, and drafts of a head and a low-bit copy. The models stay
/// as they are.
///
/// `stopped` is asked before every pass; `None` when it says yes. `progress` gets rounds done and rounds in all.
///
/// # Errors
/// When a pass fails.
pub fn measure(
    models: &Models,
    compute: &Compute,
    stopped: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Option<CostCurve>> {
    let mut models = models.fork()?;
    let mut memory = Memory::new(compute)?;
    let mut head_share = 1.0;
    let limits = models.head().map(|head| HeadLimits::of(head));
    let head_path = models.plan().head.as_ref().map(|path| path.to_string_lossy().into_owned());
    let passes = (1..=MAX_ROWS).flat_map(|rows| [CurveTiming::Target(rows), CurveTiming::Draft(rows)]);
    let copies = COPY_ROWS.map(CurveTiming::Copy);
    let drafts = limits.iter().flat_map(HeadLimits::timed).map(CurveTiming::Head);
    let levels = limits.iter().flat_map(HeadLimits::levels).map(CurveTiming::HeadLevel);
    let timings = [CurveTiming::Memory].into_iter().chain(passes).chain(copies).chain(drafts).chain(levels);
    let mut timer = PassTimer::new(timings.collect());
    let text = text(&models)?;
    let n_embd = models.target().info().n_embd;
    let context = models.head().map_or(Ok(0), |head| read_context(head, n_embd, &text))?;
    let (mut of_target, mut of_draft) = (Routed::default(), Routed::default());
    let mut time = |round: usize, timed: &CurveTiming| {
        // Each round reads on in the text, because the experts of a mixture depend on it.
        let pass =
            |rows| ModelPass { context: CONTEXT + MAX_ROWS * round, text: &text, ..ModelPass::of(rows) };
        match *timed {
            CurveTiming::Memory => Ok(Some(1.0 / memory.gb_s()?)),
            CurveTiming::Target(rows) => {
                let seconds = time_pass(models.target(), &pass(rows))?;
                of_target.add(round, rows, models.target().expert_use());
                Ok(Some(seconds))
            }
            CurveTiming::Draft(rows) => models.with_drafter(
                Method::DraftModel,
                &MethodOptions::default(),
                &[],
                |model, _, vocab_subset| {
                    head_share = scored(vocab_subset, model.info().n_vocab);
                    let seconds = time_pass(model, &ModelPass { vocab_subset, ..pass(rows) })?;
                    of_draft.add(round, rows, model.expert_use());
                    Ok(seconds)
                },
            ),
            CurveTiming::Copy(rows) => models.with_drafter(
                Method::LowBit,
                &MethodOptions::default(),
                &[],
                |model, layers, vocab_subset| {
                    time_pass(model, &ModelPass { layers, vocab_subset, ..pass(rows) })
                },
            ),
            CurveTiming::Head(tokens) => {
                let Some((head, limits)) = models.head().zip(limits) else { return Ok(None) };
                let drafted = if limits.tokens_of_a_pass > 1 { tokens } else { limits.max_depth };
                let seconds = time_head(head, (context, text[context]), n_embd, drafted)?;
                Ok(Some(if limits.tokens_of_a_pass > 1 { seconds } else { seconds / drafted as f64 }))
            }
            CurveTiming::HeadLevel(rows) => {
                let Some(head) = models.head() else { return Ok(None) };
                Ok(Some(time_level(head, (context, &text), n_embd, rows)?))
            }
        }
    };
    if !timer.run(ROUNDS, &mut time, TimingObserver { on_round: progress, stopped })? {
        return Ok(None);
    }
    let times = timer.since(0);
    // The highest rate: passes must not fall below the floor.
    let memory_gb_s = 1.0 / times.least(&CurveTiming::Memory).ok_or_else(nothing)?;
    let read = models.memory();
    let name = models.draft_name();
    let draft = name.zip(read.1).map(|(name, memory)| {
        let costs = costs(&times, CurveTiming::Draft, name, (memory, head_share), memory_gb_s)?;
        Ok::<_, Error>(ModelCosts { experts: of_draft.counts(), ..costs })
    });
    let target = costs(&times, CurveTiming::Target, models.target_name(), (read.0, 1.0), memory_gb_s)?;
    let target = ModelCosts { experts: of_target.counts(), ..target };
    Ok(Some(CostCurve {
        measured_ms: clock::now(),
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        memory_gb_s,
        target,
        draft: draft.transpose()?,
        drafters: drafters(&times, limits, head_path)?,
    }))
}

/// Lengths of a head's drafts.
#[derive(Clone, Copy, Debug)]
struct HeadLimits {
    /// Tokens that a pass drafts.
    tokens_of_a_pass: usize,
    /// Most tokens of a draft.
    max_depth: usize,
    /// `true` if a level of a tree costs more the more rows it has.
    reads_levels: bool,
}

impl HeadLimits {
    fn of(head: &Head) -> Self {
        let max_depth = head.max_depth().clamp(1, MAX_DRAFT);
        let tokens_of_a_pass = head.tokens_of_a_pass().clamp(1, max_depth);
        Self { tokens_of_a_pass, max_depth, reads_levels: head.reads_levels() }
    }

    /// Returns the tokens of the timed drafts, ascending: all that a pass may draft.
    fn timed(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.tokens_of_a_pass
    }

    /// Returns the rows of the timed levels of trees, ascending. None if their number does not matter.
    fn levels(&self) -> impl Iterator<Item = usize> {
        LEVEL_ROWS.into_iter().filter(|_| self.reads_levels)
    }
}

/// Reads the text that the timed drafts of a head follow, and returns its tokens: 0 for a head without a cache. The states
/// of the target are made up, which changes no time.
fn read_context(head: &mut Head, n_embd: usize, text: &[TokenId]) -> Result<usize> {
    let context = if head.has_cache() { CONTEXT.min(text.len().saturating_sub(1)) } else { 0 };
    if context > 0 {
        head.logits(&vec![vec![1.0; context * n_embd]; head.taps().len()], &text[..context])?;
    }
    Ok(context)
}

/// Times a draft of `drafted` tokens, in seconds. `context` tokens were read, and `next` comes after them.
fn time_head(
    head: &mut Head,
    (context, next): (usize, TokenId),
    n_embd: usize,
    drafted: usize,
) -> Result<f64> {
    let states = vec![vec![1.0; n_embd]; head.taps().len()];
    seconds_of(|| {
        head.logits_after(context, &states, &[next])?;
        for _ in 1..drafted {
            head.next_logits(next)?;
        }
        Ok(())
    })
}

/// Times a level of `rows` siblings after a text of `context` tokens, in seconds.
fn time_level(
    head: &mut Head,
    (context, text): (usize, &[TokenId]),
    n_embd: usize,
    rows: usize,
) -> Result<f64> {
    let states = vec![vec![1.0; n_embd]; head.taps().len()];
    head.logits_after(context, &states, &[text[context]])?;
    let visible: Vec<u64> = (0..rows).map(|row| 1 << row).collect();
    let level = TreeRows { tokens: &text[..rows], depths: &vec![0; rows], visible: &visible };
    seconds_of(|| head.tree_logits(level).map(drop).map_err(Error::from))
}

/// Computes the costs of the drafters other than the draft model, as far as they were timed.
fn drafters(
    times: &PassTimes<'_, CurveTiming>,
    head: Option<HeadLimits>,
    path: Option<String>,
) -> Result<Vec<DrafterCosts>> {
    let mut drafters = Vec::new();
    if let Some(limits) = head {
        drafters.push(DrafterCosts {
            drafter: Method::Head.name().into(),
            head: path,
            points: limits
                .timed()
                .map(|tokens| point(times, CurveTiming::Head, tokens))
                .collect::<Result<_>>()?,
            tokens_of_a_pass: limits.tokens_of_a_pass as u32,
            max_depth: Some(limits.max_depth as u32),
            tree: Some(
                limits
                    .levels()
                    .map(|rows| point(times, CurveTiming::HeadLevel, rows))
                    .collect::<Result<_>>()?,
            ),
        });
    }
    if times.median(&CurveTiming::Copy(1)).is_some() {
        drafters.push(DrafterCosts {
            drafter: Method::LowBit.name().into(),
            head: None,
            points: COPY_ROWS
                .map(|rows| point(times, CurveTiming::Copy, rows))
                .into_iter()
                .collect::<Result<_>>()?,
            tokens_of_a_pass: 1,
            max_depth: None,
            tree: None,
        });
    }
    Ok(drafters)
}

/// Computes the cost of a pass of some rows. `pass` names the passes of the model.
fn point(
    times: &PassTimes<'_, CurveTiming>,
    pass: fn(usize) -> CurveTiming,
    rows: usize,
) -> Result<CostPoint> {
    let relative = times.ratio(&pass(rows), &pass(1)).ok_or_else(nothing)?;
    let ms = times.median(&pass(rows)).ok_or_else(nothing)? * 1e3;
    Ok(CostPoint { rows: rows as u32, ms, relative })
}

/// Text of the timed passes, as long as they read: the prompts of the built-in suite of prose.
fn text(models: &Models) -> Result<Vec<TokenId>> {
    let prompts = Suite::named("prose")?.prompts.into_iter().map(|prompt| prompt.prompt);
    let text = prompts.collect::<Vec<_>>().join("\n\n");
    let mut tokens = models.encoder().tokenizer().encode(&text, EncodeOptions::default())?;
    tokens.truncate(CONTEXT + MAX_ROWS * (ROUNDS + 2));
    Ok(tokens)
}

/// Experts that passes of 1 to 16 rows read, added up over rounds.
#[derive(Default)]
struct Routed {
    last: Option<ExpertUse>,
    /// Sum and number of the counts of each number of rows.
    sums: [(f64, f64); MAX_ROWS],
}

impl Routed {
    /// Adds the experts of a pass, unless it only warms up.
    fn add(&mut self, round: usize, rows: usize, experts: Option<ExpertUse>) {
        let Some(experts) = experts.filter(|_| round > 0) else { return };
        self.last = Some(experts);
        let (sum, count) = &mut self.sums[rows - 1];
        *sum += experts.distinct;
        *count += 1.0;
    }

    fn counts(&self) -> Option<ExpertCounts> {
        let of = self.last?;
        let distinct = self.sums.iter().map(|(sum, count)| sum / count.max(1.0)).collect();
        Some(ExpertCounts { count: of.count as u32, used: of.used as u32, distinct })
    }
}

/// Share of the vocabulary that is scored.
fn scored(vocab_subset: Option<&VocabSubset>, n_vocab: usize) -> f64 {
    vocab_subset.map_or(1.0, |vocab_subset| vocab_subset.share_of(n_vocab))
}

fn nothing() -> Error {
    Error::Internal("no pass was measured".into())
}

/// Computes the costs of one model, whose passes score a share of its output head. `pass` names its pass of some rows.
fn costs(
    times: &PassTimes<'_, CurveTiming>,
    pass: fn(usize) -> CurveTiming,
    name: String,
    (memory, head_share): (ModelMemory, f64),
    memory_gb_s: f64,
) -> Result<ModelCosts> {
    let read = |all: usize, head: usize| all.saturating_sub((head as f64 * (1.0 - head_share)) as usize);
    let weight_bytes = read(memory.read_by_a_pass, memory.head);
    let weights = read(memory.row_weights, memory.head_weights);
    Ok(ModelCosts {
        name,
        points: (1..=MAX_ROWS).map(|rows| point(times, pass, rows)).collect::<Result<_>>()?,
        weight_bytes: weight_bytes as u64,
        weights: (weights > 0).then_some(weights as u64),
        floor_ms: weight_bytes as f64 / memory_gb_s / 1e6,
        experts: None,
    })
}

/// Measures memory bandwidth: reads by the CPU's threads, or reads and writes by the GPU.
enum Memory<'a> {
    Host(MemoryReader<'a>),
    Device(&'a Compute, Tensor),
}

impl<'a> Memory<'a> {
    fn new(compute: &'a Compute) -> Result<Self> {
        if compute.device().is_cpu() {
            return Ok(Self::Host(MemoryReader::new(compute.threads())));
        }
        // 256 MiB, larger than any cache.
        Ok(Self::Device(compute, Tensor::zeros(1 << 26, DType::F32, compute.device())?))
    }

    /// Bandwidth in 10^9 bytes per second.
    fn gb_s(&mut self) -> Result<f64> {
        let (compute, tensor) = match self {
            Self::Host(reader) => return Ok(reader.gb_s()),
            Self::Device(compute, tensor) => (compute, tensor),
        };
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            compute.synchronise()?;
            let mut copy = None;
            best = best.min(seconds_of(|| {
                copy = Some(tensor.affine(1.0, 1.0)?);
                compute.synchronise()
            })?);
            drop(copy);
        }
        Ok(2.0 * (tensor.elem_count() * size_of::<f32>()) as f64 / best / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_medians_and_ratios_within_a_round() {
        let (one, two) = ([0.01, 0.02, 0.01], [0.015, 0.024, 0.014]);
        let passes = (1..=MAX_ROWS).map(CurveTiming::Target).collect();
        let mut timer = PassTimer::new(passes);
        let mut time = |round: usize, timed: &CurveTiming| {
            let round = round.saturating_sub(1);
            Ok(Some(if *timed == CurveTiming::Target(1) { one[round] } else { two[round] }))
        };
        assert!(
            timer.run(3, &mut time, TimingObserver { on_round: &mut |_, _| (), stopped: &|| false }).unwrap()
        );
        let times = timer.since(0);
        let memory = ModelMemory {
            read_by_a_pass: 600_000_000,
            head: 200_000_000,
            row_weights: 1_000,
            head_weights: 400,
            ..ModelMemory::default()
        };
        // Half of the head is scored.
        let costs = |pass| costs(&times, pass, "big".into(), (memory, 0.5), 50.0);
        let target = costs(CurveTiming::Target).unwrap();
        assert_eq!(target.points.len(), MAX_ROWS);
        assert!((target.points[1].relative - 1.4).abs() < 1e-12 && (target.points[1].ms - 15.0).abs() < 1e-9);
        assert!((target.points[0].relative - 1.0).abs() < 1e-12);
        assert!((target.floor_ms - 10.0).abs() < 1e-9);
        assert_eq!((target.weight_bytes, target.weights), (500_000_000, Some(800)));
        assert!(costs(CurveTiming::Draft).is_err());
    }
}
