//! `hunch lab`: one position in detail, tests of acceptance rules, and speedup predicted from costs.

use std::io::Write;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch::bench::cost_curve;
use hunch::generate::{Models, Prompt};
use hunch::lab::landscape::{MachineCosts, check_batch, check_draft, landscape};
use hunch::lab::position::{Distributions, LogitPair, PositionInfo, TOY_BEFORE, toy, toy_info, toy_text};
use hunch::lab::report::{
    DraftLength, LabDraft, LabPosition, LabRounds, LabSource, LabToken, Landscape, ServedLoad,
    SimulatedAnswers,
};
use hunch::lab::rounds::Rounds;
use hunch::lab::serving::{DRAFT_LENGTHS, SimulatedServer, Traffic};
use hunch_core::method::Method;
use hunch_core::pass_cost::ExpertCounts;
use hunch_core::rule::AcceptanceRule;
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal};

use super::drafting::load_models;
use super::progress::ProgressLine;
use super::sampling::SamplingArgs;
use super::{ModelArgs, render};

/// Inspect a decoding step: resampling after a rejection, tests of acceptance rules, predicted speedup.
#[derive(Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
    /// Print one JSON object as the last line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum LabCommand {
    /// Show p, q, min(p, q) and the residual distribution after a prompt, and that they add up to p
    Residual(ResidualArgs),
    /// Test acceptance rules after a prompt: compare the tokens of many rounds with p
    Unbiased(UnbiasedArgs),
    /// Predict the speedup by acceptance rate (alpha) and drafted tokens (K), from measured or assumed costs
    Landscape(LandscapeArgs),
    /// Simulate a server whose requests share passes: when speculation pays under load
    Serving(ServingArgs),
}

/// Position to inspect.
#[derive(Args)]
struct PositionArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// The text before the position, without a chat template
    #[arg(
        long,
        default_value = "The lighthouse keeper looked at the sea and said that",
        value_name = "TEXT"
    )]
    prompt: String,
    /// Use an example position, without a model
    #[arg(long)]
    toy: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
}

#[derive(Args)]
struct ResidualArgs {
    #[command(flatten)]
    position: PositionArgs,
    /// Also run N rounds and show how often each token was emitted
    #[arg(long, default_value_t = 0, value_name = "N")]
    rounds: u32,
}

#[derive(Args)]
struct UnbiasedArgs {
    #[command(flatten)]
    position: PositionArgs,
    /// Rounds per rule
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    rounds: u32,
    /// Acceptance rule; may be repeated [default: all, lossy ones with their default parameters]
    #[arg(long, value_name = "RULE")]
    rule: Vec<AcceptanceRule>,
}

/// Costs of passes: of models, which are measured, or assumed.
#[derive(Args)]
struct CostArgs {
    #[command(flatten)]
    models: ModelArgs,
    /// Drafter to measure: draft-model, head or low-bit [default: the first that is loaded; without one, drafts are
    /// looked up]
    #[arg(long, value_name = "METHOD", value_parser = measurable, conflicts_with_all = ["draft_cost", "row_cost"])]
    drafter: Option<Method>,
    /// Assume this cost of a drafted token, in target passes of one row [default: 0]
    #[arg(long, value_name = "C", conflicts_with_all = ["target", "draft"])]
    draft_cost: Option<f64>,
    /// Assume that each row adds this to a target pass, in passes of one row [default: 0]
    #[arg(long, value_name = "R", conflicts_with_all = ["target", "draft"])]
    row_cost: Option<f64>,
}

impl CostArgs {
    /// Returns the costs for drafts of a kind.
    fn costs(&self, draft: LabDraft) -> Result<MachineCosts> {
        match (self.draft_cost, self.row_cost) {
            (None, None) => measured(&self.models, self.drafter, draft),
            (draft_cost, row_cost) => {
                Ok(MachineCosts::assumed(draft_cost.unwrap_or(0.0), row_cost.unwrap_or(0.0))?)
            }
        }
    }
}

/// Parses the name of a drafter whose passes can be measured.
fn measurable(name: &str) -> std::result::Result<Method, String> {
    const MEASURABLE: [Method; 3] = [Method::DraftModel, Method::Head, Method::LowBit];
    let found = MEASURABLE.into_iter().find(|method| method.name() == name);
    found.ok_or_else(|| format!("choose one of {}", MEASURABLE.map(Method::name).join(", ")))
}

#[derive(Args)]
struct LandscapeArgs {
    #[command(flatten)]
    costs: CostArgs,
    /// Conversations that share every pass, as on a server
    #[arg(long, value_name = "B", default_value_t = 1)]
    batch: u32,
    /// Draft trees in which each sibling is accepted S times as often as the one before it, 0 to 1
    #[arg(long, value_name = "S")]
    siblings: Option<f64>,
}

#[derive(Args)]
struct ServingArgs {
    #[command(flatten)]
    costs: CostArgs,
    /// Probability that a drafted token is accepted
    #[arg(long, value_name = "A", default_value_t = 0.7)]
    alpha: f64,
    /// Most requests that share a pass
    #[arg(long, value_name = "B", default_value_t = 16)]
    max_batch: u32,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: u32,
    /// Seed of arrivals and acceptance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The rules that are tested by default.
const RULES: [&str; 5] = ["lossless", "match", "coupled", "lossy-typical", "lossy-lenience"];

/// Runs the command. Returns whether all checks passed.
pub(crate) fn run(args: &LabArgs) -> Result<bool> {
    match &args.command {
        LabCommand::Residual(residual) => self::residual(residual, args.json).map(|()| true),
        LabCommand::Unbiased(unbiased) => self::unbiased(unbiased, args.json),
        LabCommand::Landscape(landscape) => predicted(landscape, args.json).map(|()| true),
        LabCommand::Serving(serving) => self::serving(serving, args.json).map(|()| true),
    }
}

/// A position with its distributions.
struct Found {
    distributions: Distributions,
    shown: LabPosition,
}

impl PositionArgs {
    fn seed(&self) -> u64 {
        self.sampling.seed().unwrap_or(0)
    }

    fn find(&self) -> Result<Found> {
        if self.toy {
            let distributions = Distributions::new(toy(), self.sampling.params())?;
            let shown = distributions.position(toy_info(0), &toy_text);
            return Ok(Found { distributions, shown });
        }
        let mut models = load_models(&self.models, &[])?;
        let ids = models.prompt_ids(&Prompt::Raw(self.prompt.clone()))?;
        let info = PositionInfo {
            id: 0,
            source: LabSource::Text { text: self.prompt.clone() },
            target: Some(models.target().info().name.clone()),
            draft: models.draft_name(),
            drafter: models.scored_drafter(),
            before: self.prompt.clone(),
            drawn: None,
        };
        let distributions = Distributions::new(scores(&mut models, ids)?, self.sampling.params())?;
        let tokenizer = models.encoder().tokenizer().clone();
        let text = |id: TokenId| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        let shown = distributions.position(info, &text);
        Ok(Found { distributions, shown })
    }
}

/// Returns the scores of the target and of its draft model or head after these tokens. A draft model scores its shortlist
/// only.
fn scores(models: &mut Models, context: Vec<TokenId>) -> Result<LogitPair> {
    let (target, draft) = models.scores_after(&context, &|| false)?;
    let draft = draft.ok_or_else(|| {
        Error::invalid(
            "Nothing drafts at this position. Name a draft model with --draft, enter a longer --prompt, or use the example \
             position with --toy.",
        )
    })?;
    Ok(LogitPair { target, draft, context })
}

fn residual(args: &ResidualArgs, json: bool) -> Result<()> {
    let Found { distributions, shown } = args.position.find()?;
    let rounds = match args.rounds {
        0 => None,
        rounds => {
            let seed = args.position.seed();
            Some(Rounds::new(0, &distributions, AcceptanceRule::Lossless, seed)?.run(rounds)?)
        }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}\n\n{}", heading(&shown), residual_table(&shown, rounds.as_ref()))?;
    let off = shown.tokens.iter().map(|token| (token.total - token.p).abs()).fold(0.0, f64::max);
    writeln!(
        out,
        "\nA drafted token is accepted with probability beta = {:.4}, the sum of min(p, q). With probability 1 - beta = {:.4} it is \
         rejected\nand resampled from the residual distribution. min(p, q) + (1 - beta) x residual = p for every token; the \
         largest\ndifference is {off:.1e}.",
        shown.acceptance, shown.rejection
    )?;
    if let Some(rounds) = &rounds {
        writeln!(out, "{}", trial_line(rounds))?;
    }
    if json {
        writeln!(out, "{}", serde_json::json!({ "position": shown, "rounds": rounds }))?;
    }
    Ok(())
}

/// Formats models, text before the position, and sampling.
fn heading(shown: &LabPosition) -> String {
    let models = match (&shown.target, &shown.draft) {
        (Some(target), Some(draft)) => format!("target  {target}\ndraft   {draft}"),
        (Some(target), None) => format!("target  {target}\ndraft   head"),
        _ => "example distributions over ten words".to_owned(),
    };
    let before: &str = if shown.target.is_none() { TOY_BEFORE } else { &shown.before };
    let sampling = &shown.sampling;
    format!(
        "{models}\nafter   {before:?}\ntemperature {}, top-k {}, top-p {}, min-p {}",
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
    )
}

fn residual_table(shown: &LabPosition, rounds: Option<&LabRounds>) -> String {
    let mut header = vec!["token", "p", "q", "min(p, q)", "residual", "sum"];
    header.extend(rounds.map(|_| "measured"));
    let row = |(at, token): (usize, &LabToken)| {
        let mut cells = vec![format!("{:?}", token.text)];
        cells.extend([token.p, token.q, token.overlap, token.residual, token.total].map(number));
        cells.extend(rounds.map(|rounds| share(rounds.counts[at], rounds.rounds)));
        cells
    };
    let mut rows: Vec<Vec<String>> = shown.tokens.iter().enumerate().map(row).collect();
    let rest = &shown.rest;
    if rest.tokens > 0 {
        let total = rest.overlap + shown.rejection * rest.residual;
        let mut cells = vec![format!("{} others", rest.tokens)];
        cells.extend([rest.p, rest.q, rest.overlap, rest.residual, total].map(number));
        cells.extend(rounds.map(|rounds| share(rounds.rest, rounds.rounds)));
        rows.push(cells);
    }
    render::table(&header, &rows)
}

fn number(value: f64) -> String {
    format!("{value:.4}")
}

fn share(count: u32, of: u32) -> String {
    number(f64::from(count) / f64::from(of.max(1)))
}

/// Formats the test of a rule.
fn trial_line(rounds: &LabRounds) -> String {
    format!(
        "{} rounds ({}): chi-square {:.1} at {} degrees of freedom, p-value {:.3}. Total variation {:.4}; {:.4} is \
         expected by chance (predicted).",
        rounds.rounds,
        rounds.rule,
        rounds.chi_square,
        rounds.degrees,
        rounds.p_value,
        rounds.total_variation,
        rounds.expected_variation
    )
}

fn unbiased(args: &UnbiasedArgs, json: bool) -> Result<bool> {
    let Found { distributions, shown } = args.position.find()?;
    let all: Vec<AcceptanceRule> = RULES.iter().filter_map(|name| name.parse().ok()).collect();
    let rules = if args.rule.is_empty() { &all } else { &args.rule };
    let progress = ProgressLine::new();
    let mut trials = Vec::with_capacity(rules.len());
    for &rule in rules {
        progress.show(trials.len() as u64, rules.len() as u64, rule.to_string());
        trials.push(Rounds::new(0, &distributions, rule, args.position.seed())?.run(args.rounds)?);
    }
    drop(progress);
    let passed = trials.iter().all(|trial| !trial.refuted || !trial.rule.is_lossless());
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}\n\n{}", heading(&shown), histogram(&shown, &trials))?;
    writeln!(out, "\n{}", verdicts(&trials))?;
    writeln!(
        out,
        "\n{} rounds per rule. \"By chance\" is the expected total variation of as many draws from p (predicted).\n{}",
        args.rounds,
        if passed { "PASS" } else { "FAIL: a lossless rule changed the distribution" }
    )?;
    if json {
        writeln!(out, "{}", serde_json::json!({ "position": shown, "trials": trials, "passed": passed }))?;
    }
    Ok(passed)
}

/// Formats p and the share of each token by rule.
fn histogram(shown: &LabPosition, trials: &[LabRounds]) -> String {
    let names: Vec<String> = trials.iter().map(|trial| trial.rule.to_string()).collect();
    let header: Vec<&str> = ["token", "p"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let shares = |count: &dyn Fn(&LabRounds) -> u32| -> Vec<String> {
        trials.iter().map(|trial| share(count(trial), trial.rounds)).collect()
    };
    let row = |(at, token): (usize, &LabToken)| {
        [vec![format!("{:?}", token.text), number(token.p)], shares(&|trial| trial.counts[at])].concat()
    };
    let mut rows: Vec<Vec<String>> = shown.tokens.iter().enumerate().map(row).collect();
    if shown.rest.tokens > 0 {
        let cells = vec![format!("{} others", shown.rest.tokens), number(shown.rest.p)];
        rows.push([cells, shares(&|trial| trial.rest)].concat());
    }
    render::table(&header, &rows)
}

/// Formats a row per rule.
fn verdicts(trials: &[LabRounds]) -> String {
    let row = |trial: &LabRounds| {
        let verdict = match (trial.refuted, trial.rule.is_lossless()) {
            (false, true) => "keeps the distribution",
            (true, true) => "FAILED",
            (true, false) => "changes the distribution",
            (false, false) => "no change detected",
        };
        vec![
            trial.rule.to_string(),
            share(trial.accepted, trial.rounds),
            format!("{:.1}", trial.chi_square),
            trial.degrees.to_string(),
            format!("{:.2e}", trial.p_value),
            number(trial.total_variation),
            number(trial.expected_variation),
            verdict.to_owned(),
        ]
    };
    let header =
        ["rule", "accepted", "chi-square", "degrees", "p-value", "total variation", "by chance", "verdict"];
    render::table(&header, &trials.iter().map(row).collect::<Vec<_>>())
}

fn predicted(args: &LandscapeArgs, json: bool) -> Result<()> {
    // Measuring takes a while, so a wrong number is refused before it.
    check_batch(args.batch)?;
    let draft = args.siblings.map_or(LabDraft::Chain, |siblings| LabDraft::Tree { siblings });
    check_draft(draft)?;
    let shown = landscape(&args.costs.costs(draft)?, args.batch, draft)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}\n\n{}", landscape_table(&shown), round_table(&shown))?;
    if json {
        writeln!(out, "{}", serde_json::to_string(&shown)?)?;
    }
    Ok(())
}

fn serving(args: &ServingArgs, json: bool) -> Result<()> {
    let ServingArgs { alpha, max_batch, tokens, seed, .. } = *args;
    let traffic = Traffic { alpha, max_batch, tokens };
    traffic.check()?;
    let loads = SimulatedServer { costs: args.costs.costs(LabDraft::Chain)?, traffic }.simulate(seed)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Simulated: speedup over plain decoding of answers with {tokens} tokens, from arrival to the last token.\n\
         alpha = {alpha}, at most {max_batch} requests per pass. The load is a share of what plain decoding can answer.\n"
    )?;
    writeln!(out, "{}", serving_table(&loads))?;
    if json {
        writeln!(out, "{}", serde_json::json!({ "loads": loads }))?;
    }
    Ok(())
}

fn serving_table(loads: &[ServedLoad]) -> String {
    let name = |length: &DraftLength| match length {
        DraftLength::Fixed(0) => "requests per pass".to_owned(),
        DraftLength::Fixed(depth) => format!("K = {depth}"),
        DraftLength::Best => "best K".to_owned(),
    };
    let names: Vec<String> = DRAFT_LENGTHS.iter().map(name).collect();
    let header: Vec<&str> =
        ["load"].into_iter().chain(names.iter().map(String::as_str)).chain(["mean best K"]).collect();
    let cell = |served: &SimulatedAnswers| match served.draft_length {
        DraftLength::Fixed(0) => format!("{:.1}", served.batch),
        _ => format!("{:.2}x", served.speedup),
    };
    let row = |ServedLoad { load, served }: &ServedLoad| {
        let depth = served.last().map_or(0.0, |best| best.depth);
        let cells = served.iter().map(cell);
        [format!("{load}")].into_iter().chain(cells).chain([format!("{depth:.1}")]).collect()
    };
    render::table(&header, &loads.iter().map(row).collect::<Vec<Vec<String>>>())
}

/// Measures the costs of the models, like the window does.
///
/// Without anything that makes such drafts, they are looked up.
fn measured(args: &ModelArgs, drafter: Option<Method>, draft: LabDraft) -> Result<MachineCosts> {
    let methods: Vec<Method> = drafter.into_iter().collect();
    let models = load_models(args, &methods)?;
    let progress = ProgressLine::new();
    let curve = cost_curve::measure(&models, &args.compute()?, &|| false, &mut |done, total| {
        progress.step("timing passes, round", done, total);
    })?;
    drop(progress);
    let curve = curve.ok_or_else(|| Error::Internal("the measurement stopped by itself".into()))?;
    for costs in [Some(&curve.target), curve.draft.as_ref()].into_iter().flatten() {
        if let Some(line) = costs.experts.as_ref().and_then(experts_line) {
            eprintln!("{}: {line}.", costs.name);
        }
    }
    let costs = match MachineCosts::measured(&curve, drafter, draft) {
        Err(Error::Refused(Refusal::CostsNotMeasured)) if drafter.is_none() => {
            MachineCosts::measured(&curve, None, LabDraft::Lookup)
        }
        costs => costs,
    };
    Ok(costs?)
}

/// Rows of the pass whose experts are shown.
const EXPERT_ROWS: usize = 4;

fn experts_line(experts: &ExpertCounts) -> Option<String> {
    let ExpertCounts { count, used, distinct } = experts;
    let distinct = distinct.get(EXPERT_ROWS - 1)?;
    Some(format!("{used} of {count} experts a row, {distinct:.1} distinct at {EXPERT_ROWS} rows"))
}

/// Alphas per printed row. The JSON has all of them.
const EVERY: usize = 5;
/// Values of K with a column. The JSON has all of them.
const COLUMNS: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15];

/// Formats figures of a round by alpha.
fn round_table(shown: &Landscape) -> String {
    let header = ["alpha", "best K", "E[tokens]", "E[accepted]", "cost of a round", "operations"];
    let row = |(at, alpha): (usize, &f64)| {
        let column = (shown.best[at].max(1) - 1) as usize;
        let tokens = shown.tokens[at][column];
        vec![
            format!("{alpha:.1}"),
            shown.best[at].to_string(),
            format!("{tokens:.2}"),
            format!("{:.2}", tokens - 1.0),
            format!("{:.2}", shown.round_cost[at][column]),
            shown
                .operations
                .as_ref()
                .map_or_else(|| "-".into(), |factors| format!("{:.2}x", factors[at][column])),
        ]
    };
    let rows: Vec<Vec<String>> = shown.alphas.iter().enumerate().step_by(EVERY).map(row).collect();
    let ratio =
        shown.operations_ratio.map_or_else(|| "an unknown share".into(), |ratio| format!("{ratio:.3}"));
    format!(
        "Rounds at the best K, or at K = 1 where it is 0. A round costs target passes of one row. Operations are those \
         per token\nas a multiple of plain decoding, where a row of a draft pass takes {ratio} of the target's.\n\n{}",
        render::table(&header, &rows)
    )
}

fn landscape_table(shown: &Landscape) -> String {
    let columns = || shown.depths.iter().enumerate().filter(|(_, depth)| COLUMNS.contains(depth));
    let names: Vec<String> = columns().map(|(_, depth)| format!("K = {depth}")).collect();
    let header: Vec<&str> =
        ["alpha"].into_iter().chain(names.iter().map(String::as_str)).chain(["best K"]).collect();
    let row = |(at, alpha): (usize, &f64)| {
        let speedups = columns().map(|(depth, _)| format!("{:.2}x", shown.speedup[at][depth]));
        [format!("{alpha:.1}")].into_iter().chain(speedups).chain([shown.best[at].to_string()]).collect()
    };
    let mut rows: Vec<Vec<String>> = shown.alphas.iter().enumerate().step_by(EVERY).map(row).collect();
    let pays = |alpha: Option<f64>| alpha.map_or_else(|| "never".to_owned(), |alpha| format!("{alpha:.3}"));
    let break_even = columns().map(|(depth, _)| pays(shown.break_even[depth]));
    rows.push(["pays from".to_owned()].into_iter().chain(break_even).collect());
    let costs: Vec<String> = shown.target_cost.iter().map(|cost| format!("{cost:.2}")).collect();
    format!(
        "Predicted speedup over plain decoding by alpha (the probability that a drafted token is accepted) and K{}.\n\
         {} costs: a drafted token takes {:.3} target passes{}; t(M)/t(1) for M = 1, 2, ...: {}\n\n{}",
        if shown.batch > 1 {
            format!(", for {} conversations that share every pass", shown.batch)
        } else {
            String::new()
        },
        if shown.measured_rows.is_some() { "Measured" } else { "Assumed" },
        shown.draft_cost,
        match shown.drafter {
            Some(drafter) => format!(" ({drafter})"),
            None if shown.measured_rows.is_some() => " (drafts are looked up)".to_owned(),
            None => String::new(),
        },
        costs.join(" "),
        render::table(&header, &rows)
    )
}
