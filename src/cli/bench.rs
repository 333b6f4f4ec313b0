//! `hunch bench`: methods against plain decoding, and its measuring tools.

mod drafts;
mod passes;
mod report;
mod second_turn;
mod tree_search;

use std::io::Write;

use anyhow::Result;
use clap::{Args, Subcommand};
#[cfg(feature = "candle-baseline")]
use hunch::bench::candle::{CandleModel, compare_with_candle};
use hunch::bench::model_bench::ModelBench;
use hunch::bench::{self, BenchPlan, BenchReport, MethodConfig, Setting, Suite};
use hunch::generate::Models;
#[cfg(feature = "candle-baseline")]
use hunch::generate::Prompt;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_model::device::Compute;

use super::drafting::{OptionArgs, load_with, method_parser};
use super::progress::ProgressLine;
use super::sampling::{SamplingArgs, greedy_default};
use super::{DrafterArgs, IsaArgs, ModelArgs, measured};

/// Arguments of `hunch bench`: a measuring tool, or else methods to measure.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    tool: Option<Tool>,
    #[command(flatten)]
    methods: MethodsArgs,
}

#[derive(Subcommand)]
enum Tool {
    /// Time target passes by their number of rows, memory bandwidth and prefill
    Passes(passes::PassesArgs),
    /// Compute expected tokens per target pass for each method, on the same plain answers
    ///
    /// No times are measured. Acceptance is computed exactly from p and q, not sampled. --max-draft auto needs times, so
    /// it is refused here.
    Drafts(drafts::DraftsArgs),
    /// Search for the fixed draft tree with the most expected tokens per target pass
    ///
    /// Acceptance by rank and depth is computed on the answers to every second prompt. The best tree is evaluated on the
    /// others, next to a chain and to the tree that grows by confidence. No times are measured.
    TreeSearch(tree_search::TreeSearchArgs),
    /// Measure the time to the first token of a second message, with warm and with empty caches
    SecondTurn(second_turn::SecondTurnArgs),
}

/// Models, prompts and methods: the arguments of all tools that generate answers.
#[derive(Args, Clone)]
#[command(mut_arg("temperature", greedy_default))]
struct WorkArgs {
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    drafters: DrafterArgs,
    #[command(flatten)]
    isa: IsaArgs,
    /// Methods, separated by commas [default: all that these models can run]
    #[arg(long, visible_alias = "method", value_parser = method_parser(), value_delimiter = ',')]
    methods: Vec<Method>,
    /// Prompts: code, prose, edit, or a file: .txt with a prompt in each line, else JSON Lines; may be repeated
    #[arg(long, value_name = "NAME|FILE", default_value = "code")]
    suite: Vec<String>,
    /// Use only the first N prompts of each suite
    #[arg(long, value_name = "N")]
    prompts: Option<usize>,
    /// Most tokens to draft per round: 1 to 15, or auto, which picks the fastest. Several, separated by
    /// commas, are compared [default: auto; 4 for drafts, 8 for tree-search]
    #[arg(long, value_delimiter = ',', value_name = "K|auto")]
    max_draft: Vec<MaxDraft>,
    #[command(flatten)]
    options: OptionArgs,
    /// Acceptance rule: lossless, match, coupled, lossy-typical[:epsilon:delta] or lossy-lenience[:l]
    #[arg(long, default_value_t = AcceptanceRule::Lossless, value_name = "RULE")]
    rule: AcceptanceRule,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 128, value_name = "N")]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct MethodsArgs {
    #[command(flatten)]
    work: WorkArgs,
    /// Answers of every method to every prompt
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: usize,
    /// Also measure a draft without cost that gets this share of its tokens right (0 to 1). A share of 0 shows the
    /// loss of auto where nothing can be gained, other shares the cost of the loop itself
    #[arg(long, value_name = "SHARE")]
    synthetic: Option<f64>,
    /// Measure at each of these temperatures, one after the other: --temperatures 0,0.7,1
    #[arg(long, value_delimiter = ',', value_name = "T", conflicts_with = "temperature")]
    temperatures: Vec<f32>,
    /// Also measure plain decoding against candle-transformers' own model of the same file
    #[cfg(feature = "candle-baseline")]
    #[arg(long)]
    candle: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.tool {
        Some(Tool::Passes(args)) => passes::run(args),
        Some(Tool::Drafts(args)) => drafts::run(args),
        Some(Tool::TreeSearch(args)) => tree_search::run(args),
        Some(Tool::SecondTurn(args)) => second_turn::run(args),
        None => methods(&args.methods),
    }
}

/// Models that are ready to be measured.
struct Prepared {
    plan: BenchPlan,
    models: Models,
    compute: Compute,
}

impl WorkArgs {
    /// Returns the draft lengths to measure: those given, or the default.
    fn draft_lengths(&self, default: MaxDraft) -> Vec<MaxDraft> {
        if self.max_draft.is_empty() { vec![default] } else { self.max_draft.clone() }
    }

    /// Checks the arguments and loads the models. `synthetic` is the acceptance of an additional synthetic draft.
    fn prepare(&self, runs: usize, synthetic: Option<f64>, lengths: &[MaxDraft]) -> Result<Prepared> {
        self.isa.apply()?;
        let compute = self.models.compute()?;
        let mut models = load_with(&self.models, &self.drafters, &self.methods)?;
        let mut plan = self.plan(runs, synthetic.is_some(), lengths, &models.usable_methods())?;
        plan.options = self.options.options(models.target());
        plan.options.synthetic_acceptance = synthetic.unwrap_or_default();
        Ok(Prepared { plan, models, compute })
    }

    fn plan(
        &self,
        runs: usize,
        synthetic: bool,
        lengths: &[MaxDraft],
        usable: &[Method],
    ) -> Result<BenchPlan> {
        let mut suites =
            self.suite.iter().map(|name| Suite::named_or_file(name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(count) = self.prompts {
            suites.iter_mut().for_each(|suite| suite.prompts.truncate(count.max(1)));
        }
        let methods = if self.methods.is_empty() { usable } else { &self.methods };
        let synthetic = synthetic.then_some(Method::Synthetic);
        let configs = methods.iter().copied().chain(synthetic).flat_map(|method| {
            let lengths = if method == Method::Plain { &lengths[..1] } else { lengths };
            lengths.iter().map(move |&max_draft| MethodConfig { method, max_draft })
        });
        Ok(BenchPlan {
            suites,
            configs: configs.collect(),
            max_tokens: self.max_tokens,
            sampling: self.sampling.params_or_greedy(),
            rule: self.rule,
            runs,
            ..BenchPlan::default()
        })
    }
}

/// Measures methods against plain decoding.
fn methods(args: &MethodsArgs) -> Result<()> {
    let Prepared { plan, mut models, compute } =
        args.work.prepare(args.runs, args.synthetic, &args.work.draft_lengths(MaxDraft::Auto))?;
    let setting = Setting {
        device: compute.name().into(),
        threads: compute.threads().count() as u32,
        target: models.target_name(),
        draft: models.draft_name(),
    };
    let report = measure(args, &mut models, plan, &setting)?;
    measured::remember(&args.work.models, &report.device, report.rates());
    let mut out = std::io::stdout().lock();
    write!(out, "{}", report::text(&report))?;
    #[cfg(feature = "candle-baseline")]
    if args.candle {
        writeln!(out, "{}", candle_line(args, &mut models)?)?;
    }
    if args.work.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    }
    Ok(())
}

/// Measures at all temperatures and returns one report.
fn measure(
    args: &MethodsArgs,
    models: &mut Models,
    mut plan: BenchPlan,
    setting: &Setting,
) -> Result<BenchReport> {
    let progress = ProgressLine::new();
    let mut run = |plan: &BenchPlan| {
        bench::run(&mut ModelBench::new(models), plan, setting.clone(), &mut |step| show(&progress, step))
    };
    let Some((&first, others)) = args.temperatures.split_first() else {
        return Ok(run(&plan)?);
    };
    plan.sampling = SamplingParams { temperature: first, ..args.work.sampling.params() };
    let mut report = run(&plan)?;
    for &temperature in others {
        plan.sampling.temperature = temperature;
        report.append(run(&plan)?);
    }
    Ok(report)
}

fn show(progress: &ProgressLine, step: bench::BenchProgress<'_>) {
    match step {
        bench::BenchProgress::Cost { done, total } => progress.step("timing passes, round", done, total),
        bench::BenchProgress::Turn { suite, prompt, done, total, .. } => {
            let message = format!("{done} of {total}: {suite}, {prompt}");
            progress.show(done as u64, total as u64, message);
        }
    }
}

/// Compares plain decoding with candle-transformers, token by token in turn.
#[cfg(feature = "candle-baseline")]
fn candle_line(args: &MethodsArgs, models: &mut Models) -> Result<String> {
    let compute = args.work.models.compute()?;
    let path = args.work.models.target_path()?;
    let architecture = models.target().info().architecture.clone();
    let mut candle = CandleModel::open(&path, &architecture, compute.device())?;
    let prompt =
        models.prompt_ids(&Prompt::Raw("The lighthouse keeper looked at the sea and said that".into()))?;
    let result = compare_with_candle(models.target(), &mut candle, &prompt, 48, compute.device())?;
    Ok(format!(
        "plain decoding: {:.1} tok/s, candle-transformers {:.1} tok/s, {:.2}x (median of 48 tokens in turn)",
        result.tok_s, result.candle_tok_s, result.ratio
    ))
}
