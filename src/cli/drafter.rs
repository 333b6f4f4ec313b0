//! `hunch drafter`: trains a head for a target, distils a draft model, and measures heads.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch::distil::divergence::Divergence;
use hunch::distil::{self, DistilPlan, DistilRecipe, TextsOf};
use hunch::services::texts::TextSource;
use hunch::services::train::{self as service, Trained, folder_of_prompts};
use hunch::train::acceptance::DraftAcceptance;
use hunch::train::kind::HeadKind;
use hunch::train::{self, Budget, Recipe, TrainPlan, TrainProgress, TrainReport, TrainWatch, TrainingTarget};
use hunch_error::Error;
use hunch_library::Places;
use hunch_model::device::DeviceChoice;

use super::progress::ProgressLine;
use super::{open_compute, render};

/// Most tokens of data. A model writes them for months.
const MOST_TOKENS: u64 = 1_000_000_000;

/// Arguments of `hunch drafter`.
#[derive(Args)]
pub(crate) struct DrafterCommandArgs {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Train a head for a model
    Train(TrainArgs),
    /// Train a draft model to imitate its target (DistillSpec)
    Distil(DistilArgs),
    /// Measure how many of a head's drafts are accepted, on text that it was not trained on
    Eval(EvalArgs),
}

/// Target and data of all tools.
#[derive(Args)]
struct DataArgs {
    /// The model to draft for: a GGUF file, an MLX folder, or a name from `hunch models`
    #[arg(long, default_value = hunch_library::DEFAULT_MODEL, value_name = "PATH|NAME")]
    target: String,
    /// Seed of the text and the weights; each has data of its own
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Most GB of collected data
    #[arg(long, default_value_t = 4.0, value_name = "GB")]
    disk: f64,
    /// Tokens of held-out text that acceptance is measured on
    #[arg(long, default_value_t = 4_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_TOKENS))]
    held_out: u64,
    /// Prompts to answer: my-conversations, or a file of {"prompt": "..."} lines [default: the model writes its own]
    #[arg(long, value_name = "my-conversations|FILE")]
    from: Option<TextSource>,
    /// Answers that the model writes at the same time
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    parallel: u64,
    /// Device: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    device: DeviceChoice,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct TrainArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Architecture of the head. An EAGLE head is a folder, and drafts with --head FOLDER
    #[arg(long, default_value_t = HeadKind::Mlp, value_name = "mlp|medusa|eagle")]
    kind: HeadKind,
    /// Tokens of a draft that a Medusa or EAGLE head learns
    #[arg(long, default_value_t = train::DEPTH as u64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8))]
    depth: u64,
    /// Tokens that the model writes to train on
    #[arg(long, default_value_t = 200_000, value_name = "N", conflicts_with = "minutes",
          value_parser = clap::value_parser!(u64).range(1..=MOST_TOKENS))]
    tokens: u64,
    /// Train for about this long instead, collecting included
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Write the head to this file, or EAGLE folder [default: in the data folder, where a file is found by itself]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct EvalArgs {
    #[command(flatten)]
    data: DataArgs,
    /// The head
    #[arg(long, value_name = "FILE")]
    head: PathBuf,
    /// Most tokens of a draft that are measured
    #[arg(long, default_value_t = train::DEPTH as u64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=8))]
    depth: u64,
}

#[derive(Args)]
struct DistilArgs {
    #[command(flatten)]
    data: DataArgs,
    /// The draft model: a GGUF file with the target's vocabulary, or a name. It is not changed
    #[arg(long, value_name = "PATH|NAME")]
    draft: String,
    /// Divergence from the target: forward KL, reverse KL, Jensen-Shannon or total variation
    #[arg(long, default_value_t = Divergence::Forward, value_name = "fkl|rkl|jsd|tvd")]
    loss: Divergence,
    /// Texts to learn on: answers of the target, of the draft (on-policy), or both in turn
    #[arg(long, default_value_t = TextsOf::Both, value_name = "target|draft|both")]
    texts: TextsOf,
    /// Rank of the trained matrices (LoRA); 0 trains all matrices of the layers
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=4096))]
    rank: u64,
    /// Highest learning rate [default: 3e-4 with a rank, 3e-5 without]
    #[arg(long, value_name = "X")]
    learning_rate: Option<f64>,
    /// Tokens that the target writes to learn on
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_TOKENS))]
    tokens: u64,
    /// Write the distilled draft to this GGUF file [default: DRAFT-distilled in the models folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Start even if memory is predicted to be short
    #[arg(long)]
    ignore_memory_check: bool,
}

impl DataArgs {
    /// Reads the given prompts, if there are any.
    fn prompts(&self) -> Result<Option<Arc<[String]>>> {
        let Some(source) = &self.from else { return Ok(None) };
        Ok(Some(service::read_prompts(source, &hunch_library::conversations_path()?)?.into()))
    }

    /// Opens the target and the folder of its data.
    fn open(&self, prompts: Option<&[String]>) -> Result<(TrainingTarget, PathBuf)> {
        let path = hunch_library::resolve(&self.target, &Places::of_this_user()?)?;
        let compute = open_compute(self.device, self.threads)?;
        let folder = hunch_library::training_folder(&path, self.seed)?;
        let folder = prompts.map_or(folder.clone(), |prompts| folder_of_prompts(&folder, prompts));
        Ok((TrainingTarget::open(&path, &compute)?, folder))
    }

    fn plan(&self, budget: Budget, recipe: Recipe) -> Result<TrainPlan> {
        if self.disk.is_nan() || self.disk < 0.0 {
            return Err(Error::invalid("--disk must be 0 GB or more.").into());
        }
        let (held_out, parallel) = (self.held_out as usize, self.parallel as usize);
        let recipe = Recipe { held_out, parallel, prompts: self.prompts()?, ..recipe };
        let disk = (self.disk * 1e9) as u64;
        Ok(TrainPlan { budget, seed: self.seed, disk, recipe })
    }
}

pub(crate) fn run(args: &DrafterCommandArgs) -> Result<()> {
    match &args.tool {
        Tool::Train(args) => train(args),
        Tool::Distil(args) => distil(args),
        Tool::Eval(args) => evaluate(args),
    }
}

fn train(args: &TrainArgs) -> Result<()> {
    if args.minutes.is_some_and(|minutes| !minutes.is_finite() || minutes <= 0.0) {
        return Err(Error::invalid("--minutes must be above 0.").into());
    }
    let budget = args.minutes.map_or(Budget::Tokens(args.tokens as usize), Budget::Minutes);
    let depth = args.kind.depth(args.depth as usize);
    let plan = args.data.plan(budget, Recipe { depth, ..Recipe::of(args.kind) })?;
    let (target, folder) = args.data.open(plan.recipe.prompts.as_deref())?;
    let heads = hunch_library::heads_folder()?;
    let Trained { report, in_use, place, installed } = with_progress(|watch| {
        service::train(
            &target,
            service::TrainFolders { run: &folder, heads: &heads },
            &plan,
            args.out.as_deref(),
            watch,
        )
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text(&report, in_use.as_ref()))?;
    if args.out.is_none() && !installed {
        writeln!(out, "The head in use accepts at least as many tokens, so it stays in use.")?;
    }
    let (named, shown) = (&args.data.target, place.display());
    writeln!(out, "\nSaved to {shown}.\nTry it: hunch bench --target {named} --head {shown}")?;
    if args.data.json {
        let json = serde_json::json!({ "report": report, "in_use": in_use, "head": place });
        writeln!(out, "{json}")?;
    }
    Ok(())
}

fn distil(args: &DistilArgs) -> Result<()> {
    let rank = (args.rank > 0).then_some(args.rank as usize);
    let usual = DistilRecipe::of(rank);
    let TrainPlan { seed, disk, recipe: collect, .. } =
        args.data.plan(Budget::Tokens(args.tokens as usize), usual.collect.clone())?;
    let draft = hunch_library::resolve(&args.draft, &Places::of_this_user()?)?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => hunch_library::models_folder()?
            .join(format!("{}-distilled.gguf", hunch_library::short_name(&draft))),
    };
    let (target, folder) = args.data.open(collect.prompts.as_deref())?;
    let compute = target.compute();
    let usable = hunch_library::machine::memory(0, compute).usable.saturating_sub(compute.allocated_bytes());
    let plan = DistilPlan {
        draft: &draft,
        tokens: args.tokens as usize,
        seed,
        disk,
        usable: (!args.ignore_memory_check).then_some(usable),
        recipe: DistilRecipe {
            divergence: args.loss,
            texts: args.texts,
            learning_rate: args.learning_rate.unwrap_or(usual.learning_rate),
            collect,
            ..usual
        },
    };
    let folder = distil::folder(&folder);
    let report = with_progress(|watch| distil::distil(&target, &folder, &plan, &out, watch))?;
    let rows = [("draft before", report.start), ("distilled", report.distilled)].map(|(name, first)| {
        let acceptance = DraftAcceptance { first, later: Vec::new() };
        row(name, &acceptance)
    });
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "target  {}\n\n{}", report.target, render::table(&HEADER, &rows))?;
    writeln!(stdout, "distilled on {} tokens in {} steps", report.tokens, report.steps)?;
    if report.disk_limit {
        writeln!(stdout, "{DISK_LIMIT}")?;
    }
    if report.written {
        let target = &args.data.target;
        writeln!(stdout, "\nSaved to {}.\nTry it: hunch bench --target {target} --draft {0}", out.display())?;
    } else {
        writeln!(stdout, "\nAcceptance did not improve, so nothing was written. Raise --tokens or --rank.")?;
    }
    if args.data.json {
        let draft = report.written.then_some(&out);
        writeln!(stdout, "{}", serde_json::json!({ "report": report, "draft": draft }))?;
    }
    Ok(())
}

fn evaluate(args: &EvalArgs) -> Result<()> {
    let plan =
        args.data.plan(Budget::Tokens(0), Recipe { depth: args.depth as usize, ..Recipe::default() })?;
    let (target, folder) = args.data.open(plan.recipe.prompts.as_deref())?;
    let found = with_progress(|watch| train::evaluate(&target, &folder, &plan, &args.head, watch))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", render::table(&HEADER, &[row("this head", &found)]))?;
    if args.data.json {
        writeln!(out, "{}", serde_json::to_string(&found)?)?;
    }
    Ok(())
}

const DISK_LIMIT: &str = "The data reached the limit of --disk. Raise it to train on more.";
const HEADER: [&str; 5] = ["held-out text", "greedy", "sampled", "positions", "tokens per pass"];

/// Returns a row with the share of each token of a draft, given that the tokens before it were accepted.
fn row(name: &str, acceptance: &DraftAcceptance) -> Vec<String> {
    let depths = || std::iter::once(&acceptance.first).chain(&acceptance.later);
    let share = |share: f64, positions: usize| if positions > 0 { format!("{share:.3}") } else { "-".into() };
    let greedy: Vec<String> = depths().map(|depth| share(depth.greedy, depth.greedy_positions)).collect();
    let sampled: Vec<String> = depths().map(|depth| share(depth.sampled, depth.sampled_positions)).collect();
    let first = &acceptance.first;
    vec![
        name.into(),
        greedy.join(", "),
        sampled.join(", "),
        format!("{} + {}", first.greedy_positions, first.sampled_positions),
        format!("{:.2}", acceptance.tokens_a_pass()),
    ]
}

fn text(report: &TrainReport, used: Option<&DraftAcceptance>) -> String {
    let mut rows = vec![row("ridge start", &report.start), row("trained", &report.trained)];
    rows.extend(used.map(|used| row("in use", used)));
    let rate = |count: usize, seconds: f64| count as f64 / seconds.max(1e-9);
    let mut text = format!(
        "target  {}\n\n{}\ntrained on {} tokens in {} steps\n",
        report.target,
        render::table(&HEADER, &rows),
        report.tokens,
        report.steps
    );
    if report.collected_now > 0 {
        let (count, seconds) = (report.collected_now, report.collect_seconds);
        text += &format!("collecting: {count} tokens, {:.0} tokens a second\n", rate(count, seconds));
    }
    if report.trained_now > 0 {
        let (count, seconds) = (report.trained_now, report.fit_seconds);
        text += &format!("training: {count} positions, {:.0} positions a second\n", rate(count, seconds));
    }
    if report.disk_limit {
        text += DISK_LIMIT;
        text += "\n";
    }
    text
}

/// Shows progress while `work` runs.
fn with_progress<T>(work: impl FnOnce(&mut dyn TrainWatch) -> Result<T, Error>) -> Result<T, Error> {
    let progress = ProgressLine::new();
    work(&mut |step: TrainProgress| match step {
        TrainProgress::Collecting { tokens, goal, per_second } => {
            let of = goal.map_or(String::new(), |goal| format!(" of {goal}"));
            let total = goal.unwrap_or(tokens * 2) as u64;
            let message = format!("collecting: {tokens}{of} tokens, {per_second:.0} tokens a second");
            progress.show(tokens as u64, total, message);
        }
        TrainProgress::Solving => {
            progress.show(0, 1, "ridge regression");
        }
        TrainProgress::Fitting { step, total, loss, acceptance } => {
            let message = format!(
                "step {step} of {total}: loss {loss:.3}, accepted {:.3} greedy, {:.3} sampled",
                acceptance.greedy, acceptance.sampled
            );
            progress.show(step as u64, total as u64, message);
        }
    })
}
