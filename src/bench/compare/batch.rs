//! A batch of a comparison: lanes whose models are in memory together, and the passes of these models.

use std::sync::Arc;

use super::Listener;
use super::model_sets::Lineup;
use super::report::{CompareEvent, ComparisonMemory, ComparisonSetting};
use super::turn::{self, LaneAnswer};
use crate::bench::MethodConfig;
use crate::bench::cost_table::{CostTable, CostTimer};
use crate::bench::model_bench::ModelPasses;
use crate::bench::turns::sampling_of_run;
use crate::generate::{GenerationPlan, Models};
use hunch_core::model::ModelMemory;
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_model::pass_timer::TimingObserver;

/// Rounds of timed passes before the first turn, after one that warms up.
const COST_ROUNDS: usize = 3;
/// Rounds of timed passes after each turn. The cost of passes changes with the load of the machine, so a turn is
/// predicted from the rounds just before and just after it.
const TURN_COST_ROUNDS: usize = 2;
/// Tokens of the warm-up answer of every lane.
const WARM_UP: usize = 16;

/// Answers of a batch to one prompt in one run, and the costs of passes around them.
pub(super) struct BatchTurn {
    pub(super) prompt: usize,
    pub(super) run: usize,
    /// Answers in the order of the batch's lanes.
    pub(super) answers: Vec<LaneAnswer>,
    /// Costs by set of models.
    pub(super) costs: Vec<(usize, CostTable)>,
}

/// Turns of a batch, complete ones only.
pub(super) struct BatchOutcome {
    pub(super) turns: Vec<BatchTurn>,
    /// Costs over all turns, by set of models.
    pub(super) costs: Vec<(usize, CostTable)>,
    pub(super) memory: ComparisonMemory,
    /// Error that ended the batch early.
    pub(super) trouble: Option<hunch_error::Error>,
}

/// Times the passes of one set of models.
struct SetTimer<'a> {
    set: usize,
    /// Passes are timed on a fork of their own, so the lanes' caches stay untouched.
    bench: ModelPasses<'a>,
    passes: CostTimer<'a>,
    /// Rounds before the last turn.
    before: usize,
}

/// A running batch.
pub(super) struct RunningBatch<'a> {
    setting: &'a ComparisonSetting,
    lineup: &'a Lineup<'a>,
    /// Numbers of the lanes.
    numbers: &'a [usize],
    /// Forks of the models, one per lane.
    lanes: Vec<Models>,
    /// Tokens of each prompt for each lane.
    prompts: Vec<Vec<Arc<[TokenId]>>>,
    timers: Vec<SetTimer<'a>>,
    turns: Vec<BatchTurn>,
    memory: ComparisonMemory,
}

/// Progress over all batches, for the time left.
pub(super) struct ComparisonProgress<'a> {
    /// Turns of earlier batches.
    pub(super) done: usize,
    /// Turns of all batches.
    pub(super) total: usize,
    /// Returns the milliseconds since the first turn began.
    pub(super) elapsed_ms: &'a dyn Fn() -> f64,
}

impl<'a> RunningBatch<'a> {
    /// Makes the lanes of a batch from its sets of models.
    ///
    /// # Errors
    /// If a lane cannot run on its models, a prompt does not fit their context, or a device fails.
    pub(super) fn new(
        setting: &'a ComparisonSetting,
        lineup: &'a Lineup<'a>,
        numbers: &'a [usize],
        sets: &'a mut [(usize, Models)],
    ) -> Result<Self> {
        let of_lane = |lane: usize| sets.iter().find(|(set, _)| *set == lineup.set_of(lane));
        let mut lanes = Vec::new();
        for &lane in numbers {
            let (_, models) = of_lane(lane).expect("every lane has its set");
            models.can_run(&plan(setting, lineup, lane, 0))?;
            lanes.push(models.fork()?);
        }
        let tokens =
            setting.prompts.iter().map(|prompt| turn::tokens_by_lane(&lanes, prompt, setting.thinking));
        let tokens = tokens.collect::<Result<Vec<_>>>()?;
        let prompts: Vec<_> = setting.prompts.iter().map(turn::suite_prompt).collect();
        let timers = sets.iter_mut().map(|(set, models)| {
            let own = numbers.iter().filter(|&&lane| lineup.set_of(lane) == *set);
            let configs: Vec<MethodConfig> = own.map(|&lane| setting.lanes[lane].method_config()).collect();
            let passes = CostTimer::new(&configs, lineup.options_of(*set));
            let mut bench = ModelPasses::new(models);
            bench.set_context(&prompts, setting.max_tokens as usize);
            SetTimer { set: *set, bench, passes, before: 0 }
        });
        let timers = timers.collect();
        let memory = ComparisonMemory::default();
        Ok(Self { setting, lineup, numbers, lanes, prompts: tokens, timers, turns: Vec::new(), memory })
    }

    /// Times passes, warms up and runs all turns, or until it is stopped.
    ///
    /// # Errors
    /// When a model fails before the first turn is finished.
    pub(super) fn run(
        mut self,
        progress: &ComparisonProgress<'_>,
        listener: &mut Listener<'_>,
    ) -> Result<BatchOutcome> {
        let ended = match self.time_first_passes(listener)? && self.warm_up(listener)? {
            true => self.run_turns(progress, listener),
            false => Ok(()),
        };
        let trouble = match ended {
            Ok(()) => None,
            Err(error) if self.turns.is_empty() => return Err(error),
            Err(error) => Some(error),
        };
        let costs = if self.turns.is_empty() { Vec::new() } else { self.costs(|_| 0)? };
        Ok(BatchOutcome { turns: self.turns, costs, memory: self.memory, trouble })
    }

    fn run_turns(&mut self, progress: &ComparisonProgress<'_>, listener: &mut Listener<'_>) -> Result<()> {
        for run in 0..self.setting.runs {
            for index in 0..self.setting.prompts.len() {
                let own = self.turns.len();
                let done = progress.done + own;
                let each = (progress.elapsed_ms)() / done.max(1) as f64;
                (listener.on_event)(CompareEvent::Turn {
                    prompt: index as u32,
                    run,
                    done: done as u32,
                    total: progress.total as u32,
                    lanes: self.numbers.iter().map(|&lane| lane as u32).collect(),
                    left_ms: (done > 0).then(|| each * (progress.total - done) as f64),
                });
                let plans = self.plans(run);
                let answers =
                    turn::run(&mut self.lanes, self.numbers, &self.prompts[index], &plans, own, listener)?;
                self.note_memory();
                let Some(answers) = answers else { return Ok(()) };
                let costs = self.time_turn(listener)?;
                // Only the last turn can be replayed.
                if let Some(last) = self.turns.last_mut() {
                    last.answers.iter_mut().for_each(LaneAnswer::forget_events);
                }
                self.turns.push(BatchTurn { prompt: index, run: run as usize, answers, costs });
            }
        }
        Ok(())
    }

    fn plans(&self, run: u32) -> Vec<GenerationPlan> {
        self.numbers.iter().map(|&lane| plan(self.setting, self.lineup, lane, run)).collect()
    }

    /// Answers the first prompt in every lane with a few uncounted tokens. Returns false when it was stopped.
    fn warm_up(&mut self, listener: &Listener<'_>) -> Result<bool> {
        let mut plans = self.plans(0);
        plans.iter_mut().for_each(|plan| plan.max_tokens = WARM_UP);
        let mut silent = Listener { on_event: &mut |_| (), stopped: listener.stopped };
        let answers = turn::run(&mut self.lanes, self.numbers, &self.prompts[0], &plans, 0, &mut silent)?;
        Ok(answers.is_some())
    }

    /// Times the first passes, which also warm up the machine. Returns false when it was stopped.
    fn time_first_passes(&mut self, listener: &mut Listener<'_>) -> Result<bool> {
        let sets = self.timers.len();
        for (number, timer) in self.timers.iter_mut().enumerate() {
            let on_event = &mut *listener.on_event;
            let mut on_round = |done: usize, total: usize| {
                let (done, total) = ((number * total + done) as u32, (sets * total) as u32);
                on_event(CompareEvent::Costs { done, total });
            };
            let watch = TimingObserver { on_round: &mut on_round, stopped: listener.stopped };
            if !timer.passes.run(&mut timer.bench, COST_ROUNDS, watch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Times some more passes unless stopped, and returns the costs by the rounds before and after the last turn.
    fn time_turn(&mut self, listener: &Listener<'_>) -> Result<Vec<(usize, CostTable)>> {
        let mut from = Vec::new();
        for timer in &mut self.timers {
            from.push(std::mem::replace(&mut timer.before, timer.passes.rounds()));
            let watch = TimingObserver { on_round: &mut |_, _| (), stopped: listener.stopped };
            timer.passes.run(&mut timer.bench, TURN_COST_ROUNDS, watch)?;
        }
        self.costs(|timer| from[timer])
    }

    /// Returns the costs of every set by the rounds after the first `from` of its timer.
    fn costs(&self, from: impl Fn(usize) -> usize) -> Result<Vec<(usize, CostTable)>> {
        let costs =
            |(number, timer): (usize, &SetTimer<'_>)| Ok((timer.set, timer.passes.since(from(number))?));
        self.timers.iter().enumerate().map(costs).collect()
    }

    /// Updates the peaks of the batch's memory. Sets of a target share its weights, and those of equal drafts.
    fn note_memory(&mut self) {
        let mut targets = Vec::new();
        let mut drafts = Vec::new();
        for (&number, models) in self.numbers.iter().zip(&self.lanes) {
            let set = self.lineup.set_of(number);
            let (target, draft) = models.memory();
            add(&mut targets, self.lineup.target_of(set), target);
            if let Some(draft) = draft {
                add(&mut drafts, (self.lineup.target_of(set), self.lineup.draft_of(set)), draft);
            }
        }
        let (target, draft) = (sum(&targets), (!drafts.is_empty()).then(|| sum(&drafts)));
        let now = ComparisonMemory {
            target_weights: target.0,
            target_cache: target.1,
            draft_weights: draft.map(|draft| draft.0),
            draft_cache: draft.map(|draft| draft.1),
            peak: 0,
        };
        self.memory = self.memory.max_of_parts(now);
    }
}

/// Weights and largest cache of a model, in bytes, by its identity.
type MemoryOf<K> = (K, u64, u64);

/// Adds a model to those in memory. The weights of one that is there already are shared.
fn add<K: PartialEq>(all: &mut Vec<MemoryOf<K>>, model: K, memory: ModelMemory) {
    match all.iter_mut().find(|(other, ..)| *other == model) {
        Some((_, _, cache)) => *cache = (*cache).max(memory.cache as u64),
        None => all.push((model, memory.weights as u64, memory.cache as u64)),
    }
}

/// Returns weights and caches of all models.
fn sum<K>(all: &[MemoryOf<K>]) -> (u64, u64) {
    all.iter().fold((0, 0), |sum, (_, weights, cache)| (sum.0 + weights, sum.1 + cache))
}

/// Returns a lane's plan in a run. Run 0 uses the setting's seed, run 1 the next.
pub(super) fn plan(
    setting: &ComparisonSetting,
    lineup: &Lineup<'_>,
    lane: usize,
    run: u32,
) -> GenerationPlan {
    let MethodConfig { method, max_draft } = setting.lanes[lane].method_config();
    GenerationPlan {
        method,
        max_draft,
        options: lineup.options_of(lineup.set_of(lane)).clone(),
        max_tokens: setting.max_tokens as usize,
        sampling: sampling_of_run(&setting.sampling_of(lane), run as usize),
        rule: setting.rule_of(lane),
        stop: setting.stop.clone(),
        thinking: setting.thinking,
    }
}
