//! A comparison, side by side: one prompt by plain decoding and by other methods, in lanes that take turns,
//! slice by slice, so that heat, clocks and other programs hit all of them alike. Each lane is a fork of the
//! loaded models: the same weights, caches of its own, a clock that stands while others run. What is told and
//! kept is in [`report`], what is made of the answers in [`summary`]; nothing here prints.

pub mod export;
pub mod report;
pub mod summary;
mod turn;

use std::ops::ControlFlow;
use std::time::Instant;

use crate::bench::MethodConfig;
use crate::bench::figures::CostTable;
use crate::bench::lanes::SLICE;
use crate::bench::model::ModelPasses;
use crate::bench::suite::Suite;
use crate::bench::timed_passes::PassTimer;
use crate::generate::{GenerationPlan, Models, fresh_seed};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result};
use report::{
    CompareEvent, CompareRequest, ComparedPrompt, ComparedPrompts, ComparisonMemory, ComparisonReport,
    ComparisonSetting,
};
use turn::{LaneAnswer, Turn};

/// Rounds of timed passes before the first turn, after one that warms up.
const COST_ROUNDS: usize = 3;
/// Rounds of timed passes after each turn. What passes cost changes with what else the machine does, so a turn is
/// predicted from those just before and just after it.
const TURN_COST_ROUNDS: usize = 2;
/// Tokens that every lane answers before it counts.
const WARM_UP: usize = 16;
/// Most lanes beside plain.
const MOST_LANES: usize = 5;
/// Most runs.
const MOST_RUNS: u32 = 20;
/// Largest seed, as [`SamplingParams::seed`] says.
const MAX_SEED: u64 = (1 << 53) - 1;

/// On what is measured.
#[derive(Clone, Debug)]
pub struct Machine {
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
}

/// Who listens to a comparison, and may stop it.
pub struct Listener<'a> {
    /// Hears each event but the last.
    pub tell: &'a mut (dyn FnMut(CompareEvent) + Send),
    /// Whether to stop, asked at every round.
    pub stopped: &'a dyn Fn() -> bool,
}

/// How a comparison ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was measured in whole turns; `None` if there was none. Its time is for the caller to fill in.
    pub report: Option<ComparisonReport>,
    /// Whether it was stopped.
    pub stopped: bool,
    /// Why it ended before all turns were over, though nobody stopped it.
    pub trouble: Option<Error>,
}

/// Compares. The models stay as they are.
///
/// # Errors
/// [`Error::InvalidRequest`] for a request that cannot be run; else when a model fails before a whole turn
/// was measured.
pub fn run(
    models: &Models,
    request: &CompareRequest,
    options: &MethodOptions,
    machine: Machine,
    listener: &mut Listener<'_>,
) -> Result<Outcome> {
    let setting = setting(models, request, machine)?;
    let mut lanes = setting.lanes.iter().map(|_| models.fork()).collect::<Result<Vec<_>>>()?;
    for (models, &lane) in lanes.iter_mut().zip(&setting.lanes) {
        models.can_run(&plan(&setting, options, lane, 0))?;
    }
    (listener.tell)(CompareEvent::Started { setting: setting.clone() });
    let nothing = Outcome { report: None, stopped: true, trouble: None };
    let mut passes = PassTimer::new(&setting.lanes, options);
    // No lane: what is in its caches stays there.
    let mut timed = models.fork()?;
    let mut bench = pass_bench(&mut timed, &setting);
    if !begin_costs(&mut passes, &mut bench, listener)? || !warm_up(&mut lanes, &setting, options, listener)?
    {
        return Ok(nothing);
    }
    let memory = ComparisonMemory::default();
    let mut course = Course { setting: &setting, options, lanes, bench, passes, turns: Vec::new(), memory };
    let ended = course.run(listener);
    let Course { turns, memory, passes, .. } = course;
    let costs = passes.since(0)?;
    let (stopped, trouble) = match ended {
        Ok(()) => ((listener.stopped)() && turns.len() < setting.turns(), None),
        Err(error) if turns.is_empty() => return Err(error),
        Err(error) => (false, Some(error)),
    };
    let report = (!turns.is_empty()).then(|| summary::report(setting, &costs, memory, turns)).transpose()?;
    Ok(Outcome { report, stopped, trouble })
}

/// Has every lane answer the first prompt in a few tokens, uncounted, so that no lane pays for being first.
/// Whether it was not stopped.
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
    let mut unheard = Listener { tell: &mut |_| (), stopped: listener.stopped };
    Ok(turn::run(lanes, &setting.prompts[0], &plans, 0, &mut unheard)?.is_some())
}

/// The turns of a comparison.
struct Course<'a> {
    setting: &'a ComparisonSetting,
    options: &'a MethodOptions,
    lanes: Vec<Models>,
    /// What passes are timed on.
    bench: ModelPasses<'a>,
    passes: PassTimer<'a>,
    turns: Vec<Turn>,
    memory: ComparisonMemory,
}

impl Course<'_> {
    /// Runs until all turns are over or it is stopped.
    fn run(&mut self, listener: &mut Listener<'_>) -> Result<()> {
        let (begun, total) = (Instant::now(), self.setting.turns());
        let mut costs_from = 0;
        for run in 0..self.setting.runs {
            for (index, prompt) in self.setting.prompts.iter().enumerate() {
                let done = self.turns.len();
                let each = begun.elapsed().as_secs_f64() * 1e3 / done.max(1) as f64;
                (listener.tell)(CompareEvent::Turn {
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
                let beside = costs_from;
                costs_from = self.passes.rounds();
                let costs = self.costs_since(beside, listener)?;
                // Only the last turn can be played again.
                if let Some(before) = self.turns.last_mut() {
                    before.answers.iter_mut().for_each(LaneAnswer::forget_events);
                }
                self.turns.push(Turn { prompt: index as u32, run, costs, answers });
            }
        }
        Ok(())
    }

    /// What passes cost by the rounds after the first `from` and by some more, as far as it is not stopped.
    fn costs_since(&mut self, from: usize, listener: &Listener<'_>) -> Result<CostTable> {
        let go_on = &mut |_, _| go_on_unless((listener.stopped)());
        self.passes.go_on(&mut self.bench, TURN_COST_ROUNDS, go_on)?;
        self.passes.since(from)
    }
}

/// The request, complete and checked.
fn setting(models: &Models, request: &CompareRequest, machine: Machine) -> Result<ComparisonSetting> {
    let plain = MethodConfig { method: Method::Plain, max_draft: MaxDraft::Auto };
    let mut lanes = vec![plain];
    for &lane in &request.lanes {
        if lane.method == Method::Plain || lanes.contains(&lane) {
            return Err(Error::invalid(format!(
                "The lane {} with max_draft {} is there already; each lane must be another.",
                lane.method, lane.max_draft
            )));
        }
        lane.max_draft.validate()?;
        lanes.push(lane);
    }
    if !(2..=1 + MOST_LANES).contains(&lanes.len()) {
        return Err(Error::invalid(format!(
            "Choose 1 to {MOST_LANES} methods to set beside plain decoding."
        )));
    }
    if !(1..=MOST_RUNS).contains(&request.runs) {
        return Err(Error::invalid(format!("runs is {}; it must be 1 to {MOST_RUNS}.", request.runs)));
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
        ComparedPrompts::Text { text, .. } if text.trim().is_empty() => {
            Err(Error::invalid("There is nothing to compare on; write a prompt, or choose a suite."))
        }
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

/// How a lane answers in a run. Run 0 has the setting's seed, run 1 the next.
fn plan(
    setting: &ComparisonSetting,
    options: &MethodOptions,
    lane: MethodConfig,
    run: u32,
) -> GenerationPlan {
    let seed = setting.sampling.seed.unwrap_or(0).wrapping_add(run.into()) & MAX_SEED;
    GenerationPlan {
        method: lane.method,
        max_draft: lane.max_draft,
        options: options.clone(),
        max_tokens: setting.max_tokens as usize,
        sampling: SamplingParams { seed: Some(seed), ..setting.sampling.clone() },
        rule: setting.rule,
        stop: Vec::new(),
    }
}

/// Times passes behind as many tokens as the lanes answer behind.
fn pass_bench<'m>(models: &'m mut Models, setting: &ComparisonSetting) -> ModelPasses<'m> {
    let prompts: Vec<_> = setting.prompts.iter().map(turn::asked).collect();
    let mut bench = ModelPasses::new(models);
    bench.time_behind(&prompts, setting.max_tokens as usize);
    bench
}

/// The first timed passes; they also warm everything up. Whether it was not stopped.
fn begin_costs(
    passes: &mut PassTimer<'_>,
    bench: &mut ModelPasses<'_>,
    listener: &mut Listener<'_>,
) -> Result<bool> {
    let mut said = None;
    let begun = passes.begin(bench, COST_ROUNDS, &mut |done, total| {
        if said.replace(done) != Some(done) {
            (listener.tell)(CompareEvent::Costs { done: done as u32, total: total as u32 });
        }
        go_on_unless((listener.stopped)())
    })?;
    Ok(begun.is_some())
}

fn go_on_unless(stopped: bool) -> ControlFlow<()> {
    if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
