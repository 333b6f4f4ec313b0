//! The benchmark: all methods answer every prompt, interleaved and warm.
//!
//! Methods run in lanes that take turns of a few tokens, so that heat, clocks and other programs affect all of
//! them alike. Every ratio is taken within one turn. There is no model, clock or output here: the caller passes a
//! [`Bench`] that answers and times.

use crate::bench::MethodConfig;
use crate::bench::cost_table::{CostTimer, PassBench};
use crate::bench::identity::{IdentityReport, Reference, identity};
use crate::bench::report::{BenchReport, MethodReport};
use crate::bench::suite::{Suite, SuitePrompt};
use crate::bench::turns::{LaneFigures, MeasuredAnswer, Samples, Turn, sampling_of_run};
use crate::generate::GenerationPlan;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result};
use hunch_model::pass_timer::TimingObserver;

/// Callback between slices of a turn, which may time passes.
pub type BetweenSlices<'a> = &'a mut dyn FnMut(&mut dyn PassBench) -> Result<()>;

/// Slices of every lane between two rounds of timed passes.
const SLICES_BETWEEN_COSTS: usize = 4;

/// An engine that can be benchmarked.
pub trait Bench {
    /// Sets the context of timed passes to the middle of an answer of `max_tokens` to this prompt.
    fn set_context(&mut self, prompt: &SuitePrompt, max_tokens: usize);

    /// Starts a suite with this many lanes and no learned state.
    ///
    /// # Errors
    /// When the device fails.
    fn begin(&mut self, lanes: usize) -> Result<()>;

    /// Answers a prompt in one lane per plan, from empty caches, so that prefill counts.
    ///
    /// Lanes take turns. The first lane changes with `number`. `between` is called after each slice of all lanes and
    /// counts for no lane.
    ///
    /// # Errors
    /// When an answer fails, or `between` does.
    fn answer(
        &mut self,
        prompt: &SuitePrompt,
        plans: &[GenerationPlan],
        number: usize,
        between: BetweenSlices<'_>,
    ) -> Result<Vec<MeasuredAnswer>>;

    /// Returns the timer of single passes.
    fn passes(&mut self) -> &mut dyn PassBench;
}

/// Parameters of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Suites, in order.
    pub suites: Vec<Suite>,
    /// Methods. Plain is added if it is missing: speedups refer to it.
    pub configs: Vec<MethodConfig>,
    /// Options of the methods.
    pub options: MethodOptions,
    /// Most tokens of an answer, 1 or more.
    pub max_tokens: usize,
    /// Sampling. All methods of a turn use one seed, the next run uses the next seed.
    pub sampling: SamplingParams,
    /// Acceptance rule.
    pub rule: AcceptanceRule,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// Answers of every method to every prompt, 1 or more.
    pub runs: usize,
    /// Rounds of timed passes before the first answer, 1 or more.
    pub cost_rounds: usize,
    /// Rounds of timed passes before and after each turn, 1 or more.
    ///
    /// The cost of passes changes with the load of the machine. A turn is predicted from these rounds, and from one
    /// more after every 16 tokens of all lanes.
    pub turn_cost_rounds: usize,
}

impl Default for BenchPlan {
    /// Greedy, 128 tokens, 3 runs, without suites or methods.
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
    /// Returns the plan of one answer. Run 0 uses the plan's seed (0 when there is none), run 1 the next.
    pub fn generation(&self, by: MethodConfig, run: usize) -> GenerationPlan {
        GenerationPlan {
            method: by.method,
            max_draft: by.max_draft,
            options: self.options.clone(),
            max_tokens: self.max_tokens,
            sampling: sampling_of_run(&self.sampling, run),
            rule: self.rule,
            stop: self.stop.clone(),
            thinking: None,
        }
    }
}

/// Machine and models of a benchmark, copied into the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if any.
    pub draft: Option<String>,
}

/// Progress of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchProgress<'a> {
    /// A round of timed passes begins.
    Cost {
        /// Rounds done, including the warm-up.
        done: usize,
        /// Rounds in all.
        total: usize,
    },
    /// A turn begins.
    Turn {
        /// Name of the suite.
        suite: &'a str,
        /// Id of the prompt.
        prompt: &'a str,
        /// True if the turn only warms up and is not counted.
        warm_up: bool,
        /// Turns done, including warm-ups.
        done: usize,
        /// Turns in all.
        total: usize,
    },
}

/// Runs a benchmark: timed passes first, then suite by suite.
///
/// In each suite all methods answer the first prompt once to warm up, uncounted. Then they answer all prompts
/// `runs` times.
///
/// # Errors
/// [`Error::InvalidRequest`] for a plan without prompts, a number out of range or a repeated method with the same
/// `max_draft`. [`Error::Internal`] when a measured time is not a positive number. Otherwise as `bench`.
pub fn run(
    bench: &mut dyn Bench,
    plan: &BenchPlan,
    setting: Setting,
    progress: &mut dyn FnMut(BenchProgress<'_>),
) -> Result<BenchReport> {
    let configs = configs(plan)?;
    let mut passes = CostTimer::new(&configs, &plan.options);
    if let Some(prompt) = plan.suites.iter().flat_map(|suite| &suite.prompts).next() {
        bench.set_context(prompt, plan.max_tokens);
    }
    let mut on_round = |done, total| progress(BenchProgress::Cost { done, total });
    let watch = TimingObserver { on_round: &mut on_round, stopped: &|| false };
    passes.run(bench.passes(), plan.cost_rounds, watch)?;
    let mut measurement = Measurement { bench, plan, configs: &configs, passes, progress, done: 0 };
    let mut same = IdentityReport::default();
    let mut methods = Vec::new();
    for suite in &plan.suites {
        let turns = measurement.suite(suite)?;
        let name = |prompt: usize| (suite.name.clone(), suite.prompts[prompt].id.clone());
        same.extend(identity(&configs, &turns, Reference::FirstRun, name));
        methods.extend(summarise(plan, suite, &configs, &turns)?);
    }
    let costs = measurement.passes.since(0)?;
    Ok(BenchReport {
        draft_cost: costs.draft_cost(),
        target_cost: costs.target_cost(),
        methods,
        device: setting.device,
        threads: setting.threads,
        target: setting.target,
        draft: setting.draft,
        rule: plan.rule,
        runs: plan.runs as u32,
        max_tokens: plan.max_tokens as u32,
        identity: plan.rule.keeps_greedy_text(plan.sampling.temperature).then_some(same),
    })
}

/// Checks the plan and returns its methods, plain first.
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

struct Measurement<'a> {
    bench: &'a mut dyn Bench,
    plan: &'a BenchPlan,
    configs: &'a [MethodConfig],
    passes: CostTimer<'a>,
    progress: &'a mut dyn FnMut(BenchProgress<'_>),
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
                self.bench.set_context(prompt, self.plan.max_tokens);
                let before = self.passes.rounds();
                self.time_passes()?;
                let answers = self.answers(suite, prompt, Some(run), turns.len())?;
                self.time_passes()?;
                let costs = self.passes.since(before)?;
                turns.push(Turn { prompt: index, run, costs, answers });
            }
        }
        Ok(turns)
    }

    /// Times some rounds of passes.
    fn time_passes(&mut self) -> Result<()> {
        self.passes.run_all(self.bench.passes(), self.plan.turn_cost_rounds)
    }

    /// Returns the answers of all methods, in order. `run` is `None` for a warm-up.
    fn answers(
        &mut self,
        suite: &Suite,
        prompt: &SuitePrompt,
        run: Option<usize>,
        number: usize,
    ) -> Result<Vec<MeasuredAnswer>> {
        let total = self.total();
        (self.progress)(BenchProgress::Turn {
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
                self.passes.run_all(passes, 1)?;
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

/// Rows of the report for one suite.
fn summarise(
    plan: &BenchPlan,
    suite: &Suite,
    configs: &[MethodConfig],
    turns: &[Turn],
) -> Result<Vec<MethodReport>> {
    let row = |(lane, config): (usize, &MethodConfig)| {
        let figures = LaneFigures::of(turns, lane, config.method, Samples::Prompts).ok_or_else(|| {
            Error::invalid(format!(
                "The method {} gave no measurable answer to any prompt of the suite \"{}\". Choose other prompts or more max_tokens.",
                config.method, suite.name
            ))
        })?;
        Ok(MethodReport::new(suite.name.clone(), plan.sampling.temperature, *config, &figures))
    };
    configs.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests;
