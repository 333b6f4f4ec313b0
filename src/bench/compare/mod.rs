//! Side-by-side comparison of plain decoding and other methods on one prompt or a suite.
//!
//! Methods run in lanes that take turns, slice by slice, so that heat, clocks and other programs affect all of them
//! alike. Each lane is a fork of the loaded models: shared weights, its own caches, and a clock that is paused while
//! others run. [`report`] has the wire types, `summary` builds the report, [`export`] writes it to files.

pub mod export;
pub mod report;
pub mod server;
mod summary;
mod turn;

use std::time::Instant;

use crate::bench::MethodConfig;
use crate::bench::cost_table::{CostTable, CostTimer};
use crate::bench::lanes::SLICE;
use crate::bench::model_bench::ModelPasses;
use crate::bench::suite::Suite;
use crate::bench::turns::{Turn, sampling_of_run};
use crate::generate::{GenerationPlan, Models, fresh_seed};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Refusal, Result};
use hunch_model::pass_timer::TimingObserver;
use report::{
    CompareEvent, CompareRequest, ComparedPrompt, ComparedPrompts, ComparisonMemory, ComparisonReport,
    ComparisonSetting,
};
use turn::LaneAnswer;

/// Rounds of timed passes before the first turn, after one that warms up.
const COST_ROUNDS: usize = 3;
/// Rounds of timed passes after each turn. The cost of passes changes with the load of the machine, so a turn is
/// predicted from the rounds just before and just after it.
const TURN_COST_ROUNDS: usize = 2;
/// Tokens of the warm-up answer of every lane.
const WARM_UP: usize = 16;
/// Most lanes in addition to plain.
const MAX_LANES: usize = 6;
/// Most runs.
const MAX_RUNS: u32 = 20;

/// Machine of a comparison.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
}

/// Observer of a comparison, which may stop it.
pub struct Listener<'a> {
    /// Called with each event except the last.
    pub on_event: &'a mut (dyn FnMut(CompareEvent) + Send),
    /// Returns whether to stop. Asked in every round.
    pub stopped: &'a dyn Fn() -> bool,
}

/// Result of a comparison.
#[derive(Debug)]
pub struct Outcome {
    /// Report on the finished turns, `None` if there is none. The caller fills in its time.
    pub report: Option<ComparisonReport>,
    /// True if it was stopped.
    pub stopped: bool,
    /// Error that ended the comparison after at least one turn.
    pub trouble: Option<Error>,
}

/// Runs a comparison. The models stay as they are.
///
/// # Errors
/// [`Error::InvalidRequest`] for a request that cannot be run. Otherwise when a model fails before the first turn
/// is finished.
pub fn run(
    models: &Models,
    request: &CompareRequest,
    options: &MethodOptions,
    machine: MachineFacts,
    listener: &mut Listener<'_>,
) -> Result<Outcome> {
    let setting = setting(models, request, machine)?;
    for &lane in &setting.lanes {
        models.can_run(&plan(&setting, options, lane, 0))?;
    }
    let mut lanes = setting.lanes.iter().map(|_| models.fork()).collect::<Result<Vec<_>>>()?;
    (listener.on_event)(CompareEvent::Started { setting: setting.clone() });
    let nothing = Outcome { report: None, stopped: true, trouble: None };
    let mut passes = CostTimer::new(&setting.lanes, options);
    // Passes are timed on a fork of their own, so the lanes' caches stay untouched.
    let mut timed = models.fork()?;
    let mut bench = pass_bench(&mut timed, &setting);
    if !time_first_passes(&mut passes, &mut bench, listener)?
        || !warm_up(&mut lanes, &setting, options, listener)?
    {
        return Ok(nothing);
    }
    let memory = ComparisonMemory::default();
    let turns = Vec::new();
    let mut comparison = Comparison { setting: &setting, options, lanes, bench, passes, turns, memory };
    let ended = comparison.run(listener);
    let Comparison { turns, memory, passes, .. } = comparison;
    let costs = passes.since(0)?;
    let (stopped, trouble) = match ended {
        Ok(()) => ((listener.stopped)() && turns.len() < setting.turns(), None),
        Err(error) if turns.is_empty() => return Err(error),
        Err(error) => (false, Some(error)),
    };
    let report = (!turns.is_empty()).then(|| summary::report(setting, &costs, memory, turns)).transpose()?;
    Ok(Outcome { report, stopped, trouble })
}

/// Answers the first prompt in every lane with a few uncounted tokens. Returns false when it was stopped.
fn warm_up(
    lanes: &mut [Models],
    setting: &ComparisonSetting,
    options: &MethodOptions,
    listener: &Listener<'_>,
) -> Result<bool> {
    let plans: Vec<GenerationPlan> = setting
        .lanes
        .iter()
        .map(|&lane| GenerationPlan { max_tokens: WARM_UP, ..plan(setting, options, lane, 0) })
        .collect();
    let mut silent = Listener { on_event: &mut |_| (), stopped: listener.stopped };
    Ok(turn::run(lanes, &setting.prompts[0], &plans, 0, &mut silent)?.is_some())
}

/// A running comparison.
struct Comparison<'a> {
    setting: &'a ComparisonSetting,
    options: &'a MethodOptions,
    lanes: Vec<Models>,
    /// Fork of the models on which passes are timed.
    bench: ModelPasses<'a>,
    passes: CostTimer<'a>,
    turns: Vec<Turn<LaneAnswer>>,
    memory: ComparisonMemory,
}

impl Comparison<'_> {
    /// Runs all turns, or until it is stopped.
    fn run(&mut self, listener: &mut Listener<'_>) -> Result<()> {
        let (begun, total) = (Instant::now(), self.setting.turns());
        let mut costs_from = 0;
        for run in 0..self.setting.runs {
            for (index, prompt) in self.setting.prompts.iter().enumerate() {
                let done = self.turns.len();
                let each = begun.elapsed().as_secs_f64() * 1e3 / done.max(1) as f64;
                (listener.on_event)(CompareEvent::Turn {
                    prompt: index as u32,
                    run,
                    done: done as u32,
                    total: total as u32,
                    left_ms: (done > 0).then(|| each * (total - done) as f64),
                });
                let lanes = &self.setting.lanes;
                let plans: Vec<GenerationPlan> =
                    lanes.iter().map(|&lane| plan(self.setting, self.options, lane, run)).collect();
                let answers = turn::run(&mut self.lanes, prompt, &plans, done, listener)?;
                self.memory = summary::more_memory(self.memory, &self.lanes);
                let Some(answers) = answers else { return Ok(()) };
                let before = costs_from;
                costs_from = self.passes.rounds();
                let costs = self.costs_since(before, listener)?;
                // Only the last turn can be replayed.
                if let Some(last) = self.turns.last_mut() {
                    last.answers.iter_mut().for_each(LaneAnswer::forget_events);
                }
                self.turns.push(Turn { prompt: index, run: run as usize, costs, answers });
            }
        }
        Ok(())
    }

    /// Times some more passes unless stopped, and returns the costs by the rounds after the first `from`.
    fn costs_since(&mut self, from: usize, listener: &Listener<'_>) -> Result<CostTable> {
        let watch = TimingObserver { on_round: &mut |_, _| (), stopped: listener.stopped };
        self.passes.run(&mut self.bench, TURN_COST_ROUNDS, watch)?;
        self.passes.since(from)
    }
}

/// Checks and completes the request.
fn setting(models: &Models, request: &CompareRequest, machine: MachineFacts) -> Result<ComparisonSetting> {
    let plain = MethodConfig { method: Method::Plain, max_draft: MaxDraft::Auto };
    let mut lanes = vec![plain];
    for &lane in &request.lanes {
        if lane.method == Method::Plain || lanes.contains(&lane) {
            return Err(Error::invalid(format!(
                "The lane {} with max_draft {} is there already. Choose different methods or depths.",
                lane.method, lane.max_draft
            )));
        }
        lane.max_draft.validate()?;
        lanes.push(lane);
    }
    if !(2..=1 + MAX_LANES).contains(&lanes.len()) {
        return Err(Error::invalid(format!(
            "Choose 1 to {MAX_LANES} methods to compare with plain decoding."
        )));
    }
    if !(1..=MAX_RUNS).contains(&request.runs) {
        return Err(Error::invalid(format!("runs is {}; it must be 1 to {MAX_RUNS}.", request.runs)));
    }
    let seed = request.sampling.seed.unwrap_or_else(fresh_seed);
    let setting = ComparisonSetting {
        target: models.target_name(),
        draft: models.draft_name(),
        device: machine.device,
        threads: machine.threads,
        lanes,
        prompts: prompts(&request.prompts)?,
        sampling: SamplingParams { seed: Some(seed), ..request.sampling.clone() },
        rule: request.rule,
        max_tokens: request.max_tokens,
        runs: request.runs,
        slice_tokens: SLICE as u32,
    };
    plan(&setting, &MethodOptions::default(), plain, 0).validate()?;
    Ok(setting)
}

fn prompts(asked: &ComparedPrompts) -> Result<Vec<ComparedPrompt>> {
    match asked {
        ComparedPrompts::Text { text, .. } if text.trim().is_empty() => Err(Refusal::EmptyPrompt.into()),
        ComparedPrompts::Text { system, text } => {
            Ok(vec![ComparedPrompt { id: String::new(), system: system.clone(), text: text.clone() }])
        }
        ComparedPrompts::Suite { name, prompts } => {
            let most = prompts.map_or(usize::MAX, |most| most.max(1) as usize);
            let all = Suite::named(name)?.prompts.into_iter().take(most);
            Ok(all
                .map(|prompt| ComparedPrompt {
                    id: prompt.id,
                    system: prompt.system.unwrap_or_default(),
                    text: prompt.prompt,
                })
                .collect())
        }
    }
}

/// Returns a lane's plan in a run. Run 0 uses the setting's seed, run 1 the next.
fn plan(
    setting: &ComparisonSetting,
    options: &MethodOptions,
    lane: MethodConfig,
    run: u32,
) -> GenerationPlan {
    GenerationPlan {
        method: lane.method,
        max_draft: lane.max_draft,
        options: options.clone(),
        max_tokens: setting.max_tokens as usize,
        sampling: sampling_of_run(&setting.sampling, run as usize),
        rule: setting.rule,
        stop: Vec::new(),
        thinking: None,
    }
}

/// Creates a timer of passes at the context length of the lanes' answers.
fn pass_bench<'m>(models: &'m mut Models, setting: &ComparisonSetting) -> ModelPasses<'m> {
    let prompts: Vec<_> = setting.prompts.iter().map(turn::suite_prompt).collect();
    let mut bench = ModelPasses::new(models);
    bench.set_context(&prompts, setting.max_tokens as usize);
    bench
}

/// Times the first passes, which also warm up the machine. Returns false when it was stopped.
fn time_first_passes(
    passes: &mut CostTimer<'_>,
    bench: &mut ModelPasses<'_>,
    listener: &mut Listener<'_>,
) -> Result<bool> {
    let on_event = &mut *listener.on_event;
    let mut on_round = |done, total| on_event(CompareEvent::Costs { done: done as u32, total: total as u32 });
    passes.run(bench, COST_ROUNDS, TimingObserver { on_round: &mut on_round, stopped: listener.stopped })
}
