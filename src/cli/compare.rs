//! `hunch compare`: plain decoding and other methods side by side, on one prompt or a suite.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use hunch::bench::compare::report::{
    CompareEvent, CompareRequest, ComparedPrompts, ComparisonFormat, ComparisonReport, LaneConfig, LaneReport,
};
use hunch::bench::compare::{CompareOn, Listener, export};
use hunch::bench::{MethodConfig, Suite};
use hunch::services::measure;
use hunch_core::chat::Thinking;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_error::Error;
use hunch_model::atomic_file;

use super::drafting::{OptionArgs, load_with, method_parser, warn_unheeded};
use super::progress::ProgressLine;
use super::render::{self, count};
use super::sampling::{SamplingArgs, greedy_default};
use super::{DrafterArgs, ModelArgs, measured};

/// Compare methods with plain decoding: they take turns, slice by slice, on one prompt or a suite.
#[derive(Args)]
#[command(mut_arg("temperature", greedy_default))]
pub(crate) struct CompareArgs {
    /// The prompt
    #[arg(required_unless_present = "suite", conflicts_with = "suite")]
    prompt: Option<String>,
    /// Use the prompts of a suite instead: code, prose, edit, or a file
    ///
    /// A .txt file has a prompt in each line, any other is JSON Lines.
    #[arg(long, value_name = "NAME|FILE")]
    suite: Option<String>,
    /// Use only the first N prompts of the suite
    #[arg(long, value_name = "N", requires = "suite", value_parser = clap::value_parser!(u32).range(1..))]
    prompts: Option<u32>,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    drafters: DrafterArgs,
    /// Methods, separated by commas
    #[arg(
        long,
        visible_alias = "method",
        default_values_t = [Method::Auto],
        value_parser = method_parser(),
        value_delimiter = ','
    )]
    methods: Vec<Method>,
    /// Most tokens to draft per round: 1 to 15, or auto; several, separated by commas, get a lane each
    #[arg(long, default_value = "auto", value_delimiter = ',', value_name = "K|auto")]
    max_draft: Vec<MaxDraft>,
    #[command(flatten)]
    options: OptionArgs,
    /// Reasoning before the answers, for models with a switch: on, off, low, medium or high
    #[arg(long, value_name = "on|off|low|medium|high")]
    think: Option<Thinking>,
    /// Answers of every lane to every prompt
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: u32,
    /// Acceptance rule: lossless, match, coupled, lossy-typical[:epsilon:delta] or lossy-lenience[:l]
    #[arg(long, default_value_t = AcceptanceRule::Lossless, value_name = "RULE")]
    rule: AcceptanceRule,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 128, value_name = "N")]
    max_tokens: u32,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Text that ends an answer; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "suite")]
    system: Option<String>,
    /// Write one line per answer to this CSV file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a picture of the result to this SVG file
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    args.check_files()?;
    let mut request = request(args)?;
    let compute = args.models.compute()?;
    let mut models = load_with(&args.models, &args.drafters, &args.methods)?;
    let options = args.options.options(models.target());
    request.options = options.clone();
    warn_unheeded(args.think, &models);
    let progress = ProgressLine::new();
    let mut on_event = |event: CompareEvent| show(&progress, &event);
    let mut listener = Listener { on_event: &mut on_event, stopped: &|| false };
    let mut models = Some(models);
    let on =
        CompareOn { models: &mut models, sets: &[], options: &options, compute: &compute, restoring: None };
    let outcome = measure::compare(on, &request, &mut listener)?;
    drop(progress);
    let report = outcome.report;
    let report = report.ok_or_else(|| Error::Internal("a comparison ended without a report".into()))?;
    if outcome.trouble.is_none() {
        measured::remember(&args.models, &report.setting.device, report.rates());
    }
    // The report is written even if a file or the terminal fails.
    let files = args.files().map(|(path, format)| atomic_file::write(path, export::export(&report, format)?));
    let files: Vec<Result<(), Error>> = files.collect();
    print(&report, args.json)?;
    files.into_iter().collect::<Result<(), Error>>()?;
    match outcome.trouble {
        None => Ok(()),
        Some(trouble) => {
            eprintln!("hunch: The comparison ended early.");
            Err(trouble.into())
        }
    }
}

/// Prints a report.
fn print(report: &ComparisonReport, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{}", table(report))?;
    if json {
        writeln!(out, "{}", serde_json::to_string(report)?)?;
    }
    Ok(())
}

impl CompareArgs {
    /// Returns the files to write, and their formats.
    fn files(&self) -> impl Iterator<Item = (&Path, ComparisonFormat)> {
        let files = [(&self.csv, ComparisonFormat::Csv), (&self.picture, ComparisonFormat::Picture)];
        files.into_iter().filter_map(|(path, format)| Some((path.as_deref()?, format)))
    }

    /// Checks that the folders of the files exist: measuring may take an hour.
    fn check_files(&self) -> Result<(), Error> {
        for (path, _) in self.files() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let is_folder = folder.is_none_or(Path::is_dir);
            if !is_folder || path.is_dir() {
                return Err(Error::invalid(format!(
                    "{} cannot be written: its folder does not exist, or it is a folder itself. Choose another path.",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// Returns what to compare, with default options of methods, which depend on the target. Errors of a suite come before
/// the models are loaded.
fn request(args: &CompareArgs) -> hunch_error::Result<CompareRequest> {
    let prompts = match &args.suite {
        Some(name) if Suite::is_built_in(name) => {
            ComparedPrompts::Suite { name: name.clone(), prompts: args.prompts }
        }
        Some(name) => {
            Suite::named_or_file(name)?;
            ComparedPrompts::File { path: name.into(), prompts: args.prompts }
        }
        None => ComparedPrompts::Text {
            system: args.system.clone().unwrap_or_default(),
            text: args.prompt.clone().unwrap_or_default(),
        },
    };
    let lanes = args.methods.iter().flat_map(|&method| {
        args.max_draft.iter().map(move |&max_draft| LaneConfig::of(MethodConfig { method, max_draft }))
    });
    Ok(CompareRequest {
        server: None,
        prompts,
        lanes: lanes.collect(),
        sampling: args.sampling.params_or_greedy(),
        rule: args.rule,
        max_tokens: args.max_tokens,
        runs: args.runs,
        stop: args.stop.clone(),
        options: MethodOptions::default(),
        thinking: args.think,
    })
}

fn show(progress: &ProgressLine, event: &CompareEvent) {
    match event {
        CompareEvent::Costs { done, total } => {
            progress.step("timing passes, round", *done as usize, *total as usize);
        }
        CompareEvent::Turn { done, total, left_ms, .. } => {
            let left =
                left_ms.map_or(String::new(), |ms| format!(", about {:.0} s left (predicted)", ms / 1e3));
            let message = format!("turn {} of {total}{left}", done + 1);
            progress.show((*done).into(), (*total).into(), message);
        }
        _ => {}
    }
}

fn name(lane: &LaneReport) -> String {
    match lane.config.method {
        Method::Plain => "plain".into(),
        method => format!("{method} {}", lane.config.max_draft),
    }
}

fn table(report: &ComparisonReport) -> String {
    let setting = &report.setting;
    let header = [
        "lane",
        "tok/s",
        "speedup",
        "p10-p90",
        "decode",
        "predicted",
        "tokens",
        "first token",
        "propose",
        "target",
        "verify",
        "other",
    ];
    let row = |lane: &LaneReport| {
        let plain = lane.verdict.is_none();
        let or_dash = |value: String| if plain { "-".to_owned() } else { value };
        let predicted = lane.predicted_speedup.map_or("-".to_owned(), |s| or_dash(format!("{s:.2}x")));
        let split = &lane.split;
        let decode = split.propose_ms + split.target_ms + split.verify_ms + split.other_ms;
        let share = |part: f64| format!("{:.1}%", 100.0 * part / decode.max(f64::MIN_POSITIVE));
        vec![
            name(lane),
            format!("{:.1}", lane.tok_s),
            format!("{:.2}x", lane.speedup),
            or_dash(format!("{:.2}-{:.2}x", lane.speedup_low, lane.speedup_high)),
            format!("{:.2}x", lane.decode_speedup),
            predicted,
            format!("{:.2}", lane.mean_acceptance_length),
            format!("{:.0} ms", lane.ttft_ms),
            share(split.propose_ms),
            share(split.target_ms),
            share(split.verify_ms),
            share(split.other_ms),
        ]
    };
    let rows: Vec<Vec<String>> = report.lanes.iter().map(row).collect();
    let draft = setting.draft.as_deref().unwrap_or("none");
    let models = [("target", setting.target.clone()), ("draft", draft.to_owned())];
    let mut text = format!(
        "{}\n{}, {}; {}, {}, at most {} tokens, temperature {}, rule {}\n\n{}\n\n",
        render::fields(&models),
        setting.device,
        count(setting.threads as usize, "thread"),
        count(setting.prompts.len(), "prompt"),
        count(setting.runs as usize, "run"),
        setting.max_tokens,
        setting.sampling.temperature,
        setting.rule,
        render::table(&header, &rows)
    );
    for lane in &report.lanes {
        if let Some(verdict) = &lane.verdict {
            text += &format!("{}: {}\n", name(lane), export::sentence(verdict));
        }
    }
    text += &match &report.identity {
        None if !setting.rule.is_lossless() => "A lossy rule changes the text, so texts may differ.\n".into(),
        None => "Above temperature 0 texts share a distribution but may differ. --rule coupled makes them equal.\n".into(),
        Some(same) if same.differences.is_empty() => {
            format!("Same text, token for token: {} answers compared with plain's.\n", same.compared)
        }
        Some(other) => format!("{} of {} answers DIFFER from plain's.\n", other.differences.len(), other.compared),
    };
    text
}
