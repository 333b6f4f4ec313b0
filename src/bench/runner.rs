//! The measurement: interleaved and warm. For every prompt all methods answer side by side, in lanes that take
//! turns of a few tokens, so that heat, clocks and other programs hit all methods alike; every ratio is taken
//! within one such turn. No model, no clock and no output here: the caller passes a [`Bench`] that answers and
//! times.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::bench::MethodConfig;
use crate::bench::figures::{self, CostTable, PooledWork, SPREAD, median, quantile};
use crate::bench::report::{BenchReport, Difference, IdentityReport, MethodReport};
use crate::bench::suite::{Suite, SuitePrompt};
use crate::bench::timed_passes::{PassBench, PassTimer};
use crate::generate::GenerationPlan;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::stats::GenerationStats;
use hunch_core::token::{TokenId, shared_len};
use hunch_error::{Error, Result};

/// Largest seed, as [`SamplingParams::seed`] says.
const MAX_SEED: u64 = (1 << 53) - 1;

/// One finished answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its figures.
    pub stats: GenerationStats,
    /// Its tokens.
    pub ids: Vec<TokenId>,
}

/// Times passes while a turn goes on.
pub type Beside<'a> = &'a mut dyn FnMut(&mut dyn PassBench) -> Result<()>;

/// How often lanes go on by a slice before passes are timed beside them.
const SLICES_BETWEEN_COSTS: usize = 4;

/// What the runner needs of an engine.
pub trait Bench {
    /// Passes are timed behind as many tokens, from now on, as there are in the middle of an answer of `max_tokens`
    /// to this prompt.
    fn time_behind(&mut self, prompt: &SuitePrompt, max_tokens: usize);

    /// A suite begins, with so many lanes, none of which has learned anything.
    ///
    /// # Errors
    /// When the device fails.
    fn begin(&mut self, lanes: usize) -> Result<()>;

    /// Has a lane for each plan answer a prompt cold: caches are emptied first, so that prefill is part of the time.
    /// Lanes take turns; who is first changes with `number`. Each time that all have gone on by a slice, `beside` is
    /// called, which is no lane's time.
    ///
    /// # Errors
    /// When an answer fails, and those of `beside`; the bench ends.
    fn answer(
        &mut self,
        prompt: &SuitePrompt,
        plans: &[GenerationPlan],
        number: usize,
        beside: Beside<'_>,
    ) -> Result<Vec<Answer>>;

    /// What times passes.
    fn passes(&mut self) -> &mut dyn PassBench;
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// The suites, in order.
    pub suites: Vec<Suite>,
    /// The methods. Plain is added when it is not among them: speedups are over it.
    pub configs: Vec<MethodConfig>,
    /// What the methods are told besides.
    pub options: MethodOptions,
    /// Most tokens of an answer, 1 or more.
    pub max_tokens: usize,
    /// How tokens are drawn. All methods of a turn use one seed; the next run uses the next.
    pub sampling: SamplingParams,
    /// Which drafted tokens stand.
    pub rule: AcceptanceRule,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// How often every method answers every prompt, 1 or more.
    pub runs: usize,
    /// Rounds of the cost table before anything is answered, 1 or more; each passes every number of rows once.
    pub cost_rounds: usize,
    /// Rounds more before each turn and after it, 1 or more. What passes cost changes with what else the
    /// machine does, so a turn is predicted from those just before and just after it, and from one each time that all
    /// lanes have gone on by some 16 tokens.
    pub turn_cost_rounds: usize,
}

impl Default for BenchPlan {
    /// Greedy, 128 tokens, 3 runs, no suite and no method yet.
    fn default() -> Self {
        Self {
            suites: Vec::new(),
            configs: Vec::new(),
            options: MethodOptions::default(),
            max_tokens: 128,
            sampling: SamplingParams::greedy(),
            rule: AcceptanceRule::Lossless,
            stop: Vec::new(),
            runs: 3,
            cost_rounds: 5,
            turn_cost_rounds: 2,
        }
    }
}

impl BenchPlan {
    /// The plan of one answer. Run 0 has the plan's seed (0 when it names none), run 1 the next.
    pub fn generation(&self, by: MethodConfig, run: usize) -> GenerationPlan {
        let seed = self.sampling.seed.unwrap_or(0).wrapping_add(run as u64) & MAX_SEED;
        GenerationPlan {
            method: by.method,
            max_draft: by.max_draft,
            options: self.options.clone(),
            max_tokens: self.max_tokens,
            sampling: SamplingParams { seed: Some(seed), ..self.sampling.clone() },
            rule: self.rule,
            stop: self.stop.clone(),
        }
    }
}

/// On what is measured: goes into the report as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if there is one.
    pub draft: Option<String>,
}

/// What is about to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A round of the cost table.
    Cost {
        /// Rounds done, the warm-up among them.
        done: usize,
        /// Rounds in all.
        total: usize,
    },
    /// All methods answer a prompt.
    Turn {
        /// The suite.
        suite: &'a str,
        /// The prompt's id.
        prompt: &'a str,
        /// Whether it only warms up and is not counted.
        warm_up: bool,
        /// Turns done, warm-ups among them.
        done: usize,
        /// Turns in all.
        total: usize,
    },
}

/// Measures. First the cost table, then suite by suite: all methods answer the first prompt once to warm up and
/// to learn, uncounted; then `runs` times through the prompts.
///
/// # Errors
/// [`Error::InvalidRequest`] for a plan without suites, a number out of its range or a method named
/// twice with one `max_draft`; [`Error::Internal`] when a measured time is not a positive number;
/// else what `bench` reports.
pub fn run(
    bench: &mut dyn Bench,
    plan: &BenchPlan,
    setting: Setting,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<BenchReport> {
    let configs = configs(plan)?;
    let mut said = None;
    let mut passes = PassTimer::new(&configs, &plan.options);
    if let Some(prompt) = plan.suites.iter().flat_map(|suite| &suite.prompts).next() {
        bench.time_behind(prompt, plan.max_tokens);
    }
    passes
        .begin(bench.passes(), plan.cost_rounds, &mut |done, total| {
            if said.replace(done) != Some(done) {
                progress(Progress::Cost { done, total });
            }
            ControlFlow::Continue(())
        })?
        .expect("nobody broke it off");
    let mut measurement = Measurement { bench, plan, configs: &configs, passes, progress, done: 0 };
    let mut identity = IdentityReport::default();
    let mut methods = Vec::new();
    for suite in &plan.suites {
        let turns = measurement.suite(suite)?;
        compare(suite, &configs, &turns, &mut identity);
        methods.extend(summarise(plan, suite, &configs, &turns)?);
    }
    let costs = measurement.passes.since(0)?;
    Ok(BenchReport {
        draft_cost: costs.draft_cost(),
        target_cost: costs.target,
        methods,
        device: setting.device,
        threads: setting.threads,
        target: setting.target,
        draft: setting.draft,
        rule: plan.rule,
        runs: plan.runs as u32,
        max_tokens: plan.max_tokens as u32,
        identity: (plan.sampling.temperature == 0.0).then_some(identity),
    })
}

/// The plan's methods, plain first, after a check of the plan.
fn configs(plan: &BenchPlan) -> Result<Vec<MethodConfig>> {
    if plan.suites.iter().all(|suite| suite.prompts.is_empty()) {
        return Err(Error::invalid("There is no prompt to measure. Choose a suite."));
    }
    let counts =
        [("runs", plan.runs), ("cost_rounds", plan.cost_rounds), ("turn_cost_rounds", plan.turn_cost_rounds)];
    for (name, value) in counts {
        if value == 0 {
            return Err(Error::invalid(format!("{name} is 0; it must be 1 or more.")));
        }
    }
    let plain = MethodConfig { method: Method::Plain, max_draft: MaxDraft::Fixed(1) };
    plan.generation(plain, 0).validate()?;
    let mut configs = vec![plain];
    for &config in plan.configs.iter().filter(|c| c.method != Method::Plain) {
        plan.generation(config, 0).validate()?;
        if configs.contains(&config) {
            return Err(Error::invalid(format!(
                "The method {} with max_draft {} is named twice; name it once.",
                config.method, config.max_draft
            )));
        }
        configs.push(config);
    }
    Ok(configs)
}

/// The answers of all configs to one prompt in one run, in the configs' order.
struct Turn {
    prompt: usize,
    run: usize,
    /// What passes cost before, beside and after.
    costs: CostTable,
    /// Of each config; plain is the first.
    answers: Vec<Answer>,
}

impl Turn {
    /// `ratio(plain, config)` of this turn's answers.
    fn over_plain(
        &self,
        who: usize,
        ratio: fn(&GenerationStats, &GenerationStats) -> Option<f64>,
    ) -> Option<f64> {
        ratio(&self.answers[0].stats, &self.answers[who].stats)
    }

    /// What the passes of the config's answer cost by the table of this turn, beside plain's. `None` where the cost
    /// of what drafted is unknown.
    fn predicted(&self, who: usize, method: Method) -> Option<f64> {
        let [plain, own] = [0, who].map(|lane| PooledWork::of(&self.answers[lane].stats));
        self.costs.predicted_speedup(method, &plain, &own)
    }
}

struct Measurement<'a> {
    bench: &'a mut dyn Bench,
    plan: &'a BenchPlan,
    configs: &'a [MethodConfig],
    passes: PassTimer<'a>,
    progress: &'a mut dyn FnMut(Progress<'_>),
    done: usize,
}

impl Measurement<'_> {
    fn suite(&mut self, suite: &Suite) -> Result<Vec<Turn>> {
        let mut turns = Vec::with_capacity(self.plan.runs * suite.prompts.len());
        self.bench.begin(self.configs.len())?;
        if let Some(prompt) = suite.prompts.first() {
            self.answers(suite, prompt, None, 0)?;
        }
        for run in 0..self.plan.runs {
            for (index, prompt) in suite.prompts.iter().enumerate() {
                self.bench.time_behind(prompt, self.plan.max_tokens);
                let before = self.passes.rounds();
                self.more_costs()?;
                let answers = self.answers(suite, prompt, Some(run), turns.len())?;
                self.more_costs()?;
                let costs = self.passes.since(before)?;
                turns.push(Turn { prompt: index, run, costs, answers });
            }
        }
        Ok(turns)
    }

    /// Times passes at this moment.
    fn more_costs(&mut self) -> Result<()> {
        self.passes.go_on_unheard(self.bench.passes(), self.plan.turn_cost_rounds)
    }

    /// The answers of all configs, in their order; `run` is `None` for a warm-up.
    fn answers(
        &mut self,
        suite: &Suite,
        prompt: &SuitePrompt,
        run: Option<usize>,
        number: usize,
    ) -> Result<Vec<Answer>> {
        let total = self.total();
        (self.progress)(Progress::Turn {
            suite: &suite.name,
            prompt: &prompt.id,
            warm_up: run.is_none(),
            done: self.done,
            total,
        });
        let plan = |&config| self.plan.generation(config, run.unwrap_or(0));
        let plans: Vec<GenerationPlan> = self.configs.iter().map(plan).collect();
        let mut slices = 0;
        let answers = self.bench.answer(prompt, &plans, number, &mut |passes| {
            slices += 1;
            if run.is_some() && slices % SLICES_BETWEEN_COSTS == 0 {
                self.passes.go_on_unheard(passes, 1)?;
            }
            Ok(())
        })?;
        self.done += 1;
        Ok(answers)
    }

    fn total(&self) -> usize {
        let turns =
            |suite: &Suite| suite.prompts.len() * self.plan.runs + usize::from(!suite.prompts.is_empty());
        self.plan.suites.iter().map(turns).sum()
    }
}

/// Compares every answer with the first plain one to its prompt.
fn compare(suite: &Suite, configs: &[MethodConfig], turns: &[Turn], identity: &mut IdentityReport) {
    let mut references: BTreeMap<usize, &[TokenId]> = BTreeMap::new();
    for turn in turns {
        let first_turn = !references.contains_key(&turn.prompt);
        let reference = *references.entry(turn.prompt).or_insert(&turn.answers[0].ids);
        for (config, answer) in configs.iter().zip(&turn.answers).skip(usize::from(first_turn)) {
            identity.compared += 1;
            if answer.ids == reference {
                continue;
            }
            let same = shared_len(&answer.ids, reference);
            identity.differences.push(Difference {
                suite: suite.name.clone(),
                prompt: suite.prompts[turn.prompt].id.clone(),
                method: config.method,
                max_draft: config.drafts(),
                run: turn.run as u32,
                position: same as u32,
            });
        }
    }
}

/// The rows of one suite.
fn summarise(
    plan: &BenchPlan,
    suite: &Suite,
    configs: &[MethodConfig],
    turns: &[Turn],
) -> Result<Vec<MethodReport>> {
    let mut rows = Vec::with_capacity(configs.len());
    for (who, config) in configs.iter().enumerate() {
        let mut pooled = PooledWork::default();
        let mut rates = Vec::with_capacity(turns.len());
        for turn in turns {
            let stats = &turn.answers[who].stats;
            pooled.add(stats);
            if stats.generated_tokens > 0 {
                rates.push(stats.decode_tok_s);
            }
        }
        let speedups = by_prompt(turns, |turn| turn.over_plain(who, figures::speedup));
        let decode = |turn: &Turn| turn.over_plain(who, figures::decode_speedup);
        let predicted = |turn: &Turn| turn.predicted(who, config.method);
        let off = by_prompt(turns, |turn| Some(decode(turn)? / predicted(turn)?));
        let (decode, predicted) = (by_prompt(turns, decode), by_prompt(turns, predicted));
        let of = |values: &[f64], at: f64| {
            quantile(values, at).ok_or_else(|| {
                Error::invalid(format!(
                    "The method {} gave no measurable answer to any prompt of the suite \"{}\". Choose other prompts or more max_tokens.",
                    config.method, suite.name
                ))
            })
        };
        rows.push(MethodReport {
            method: config.method,
            suite: suite.name.clone(),
            temperature: plan.sampling.temperature,
            max_draft: config.drafts(),
            tok_s: of(&rates, 0.5)?,
            speedup: of(&speedups, 0.5)?,
            speedup_low: of(&speedups, SPREAD.0)?,
            speedup_high: of(&speedups, SPREAD.1)?,
            decode_speedup: of(&decode, 0.5)?,
            predicted_speedup: median(&predicted),
            measured_over_predicted: median(&off),
            loop_share: pooled.loop_share().unwrap_or(0.0),
            acceptance_rate: pooled.counts.acceptance_rate(),
            mean_acceptance_length: pooled.counts.mean_acceptance_length(),
        });
    }
    Ok(rows)
}

/// For each prompt the median over its runs of a figure of one turn; prompts without one are left out.
fn by_prompt(turns: &[Turn], figure: impl Fn(&Turn) -> Option<f64>) -> Vec<f64> {
    let mut runs: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for turn in turns {
        runs.entry(turn.prompt).or_default().extend(figure(turn));
    }
    runs.values().filter_map(|figures| median(figures)).collect()
}

#[cfg(test)]
mod tests;
