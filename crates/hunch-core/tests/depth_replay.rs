//! The depth controller on recorded rounds: drafts along real answers, and pass times of real machines, idle and busy.
//!
//! `tests/golden/rounds` holds what `cargo run --example record-rounds` wrote. A recording has the draft at every
//! position of an answer, so any sequence of depths can be replayed on it. After a round that yields three tokens, the
//! next draft is the one recorded three positions later. Times are the median of each number of rows, multiplied by the
//! deviations of the recorded passes in their order.
//!
//! The controller was designed on `smollm2` and `qwen`. `held-out` has other prompts and another machine, and judges it.
//! `cargo test -p hunch-core --test round-loop depth_replay -- --nocapture` prints the figures.
//!
//! A cell has 3 to 9 answers, so its figures are rough. Over answers drawn again (bootstrap, 40 draws), the ratio to the
//! best fixed depth has a standard deviation of 0.01 to 0.02. The 90% interval reaches 0.97 in each of the 11 cells that
//! are below it. So bounds of single cells are loose, and those of means are tight.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use hunch_core::depth::{DepthController, DraftPlan, FREE_READ, Observation, PairFit};
use hunch_core::limits::{MAX_DRAFT, MAX_ROWS};
use hunch_core::quantile::median;
use serde::Deserialize;

/// Replays of each cell, which begin at different times of the recorded machine.
const REPLAYS: usize = 16;

/// Times that a replay plays the answers of its cell, one after the other: one controller sees all of them.
const CONVERSATIONS: usize = 2;

/// Fit of the recorded pair of Qwen2.5-Coder models, as measured at load ([`DepthController::expect_fit`]).
const PAIR: PairFit = PairFit { acceptance: 0.81, certainty: 0.71 };

/// The same target with a draft model that does not fit it: an upper bound of the acceptance.
const HOSTILE_PAIR: PairFit = PairFit { acceptance: 0.1, ..PAIR };

/// One recorded answer.
#[derive(Clone, Deserialize)]
struct Answer {
    method: String,
    suite: String,
    temperature: f64,
    prompt_tokens: usize,
    /// Accepted tokens of the draft at each position.
    accepted: Vec<usize>,
    /// Confidence of each of its tokens, in percent.
    confidence: Vec<Vec<Option<u8>>>,
    /// Probability of the target's most likely token at each position, in percent. Empty for lookups, which read nothing.
    #[serde(default)]
    certainty: Vec<u8>,
}

/// Recorded times of one machine with one pair of models.
#[derive(Deserialize)]
struct Times {
    name: String,
    /// Rows and milliseconds of target passes, in order.
    passes: Vec<(usize, f64)>,
    /// Tokens and milliseconds of drafts, in order.
    drafts: Vec<(usize, f64)>,
    /// Milliseconds of a token in a prefill of the target.
    prefill_ms: f64,
    /// Milliseconds in which the draft model reads a token.
    read_ms: Option<f64>,
}

fn lines<T: for<'a> Deserialize<'a>>(name: &str) -> Vec<T> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rounds").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a recorded line")).collect()
}

/// A machine that replays recorded times.
struct ReplayMachine {
    pass_ms: [f64; MAX_ROWS + 1],
    /// Deviations of passes from the median of their rows, in order.
    pass_noise: Vec<f64>,
    draft_ms: f64,
    draft_noise: Vec<f64>,
    prefill_ms: f64,
    read_ms: f64,
}

impl ReplayMachine {
    fn new(times: &Times) -> Self {
        let of_rows = |rows| {
            median(&times.passes.iter().filter(|pass| pass.0 == rows).map(|pass| pass.1).collect::<Vec<_>>())
        };
        let mut pass_ms = [0.0; MAX_ROWS + 1];
        for rows in 1..=MAX_ROWS {
            // A draft may have been shorter than the longest one asked for.
            pass_ms[rows] = of_rows(rows).unwrap_or(pass_ms[rows - 1]);
        }
        let per_token = |draft: &(usize, f64)| draft.1 / draft.0 as f64;
        let draft_ms = median(&times.drafts.iter().map(per_token).collect::<Vec<_>>()).unwrap_or(0.01);
        Self {
            pass_ms,
            pass_noise: times.passes.iter().map(|&(rows, ms)| ms / pass_ms[rows]).collect(),
            draft_ms,
            draft_noise: times.drafts.iter().map(|draft| per_token(draft) / draft_ms).collect(),
            prefill_ms: times.prefill_ms,
            read_ms: times.read_ms.unwrap_or(0.0),
        }
    }

    fn pass(&self, rows: usize, at: usize) -> f64 {
        self.pass_ms[rows] * self.pass_noise[at % self.pass_noise.len()]
    }

    fn draft(&self, tokens: usize, at: usize) -> f64 {
        let noise =
            if self.draft_noise.is_empty() { 1.0 } else { self.draft_noise[at % self.draft_noise.len()] };
        tokens as f64 * self.draft_ms * noise
    }

    /// Cost of a drafted token in plain passes.
    fn draft_cost(&self) -> f64 {
        self.draft_ms / self.pass_ms[1]
    }
}

/// Chooses depths in a replay.
trait Depth {
    fn begin(&mut self, has_model: bool, sampled: bool);
    fn observe_prefill(&mut self, _tokens: usize, _ms: f64) {}
    fn plan(&mut self, limit: usize, unread: usize, remaining: usize)
    -> (usize, Box<dyn FnMut(f32) -> bool>);
    fn keep(&mut self, confidence: &[Option<f32>]) -> usize;
    fn observe(&mut self, seen: &Observation);
    /// Returns true if the draft model reads the prompt before the first round, as fixed depths do.
    fn reads_first(&self) -> bool {
        false
    }
}

impl Depth for DepthController {
    fn begin(&mut self, has_model: bool, sampled: bool) {
        DepthController::begin(self, has_model, sampled);
    }
    fn observe_prefill(&mut self, tokens: usize, ms: f64) {
        DepthController::observe_prefill(self, tokens, ms);
    }
    fn plan(
        &mut self,
        limit: usize,
        unread: usize,
        remaining: usize,
    ) -> (usize, Box<dyn FnMut(f32) -> bool>) {
        let mut plan = DepthController::plan(self, limit, unread, 0, remaining);
        (plan.max_draft, Box::new(move |confidence| plan.should_continue(confidence)))
    }
    fn keep(&mut self, confidence: &[Option<f32>]) -> usize {
        DepthController::keep(self, confidence, None)
    }
    fn observe(&mut self, seen: &Observation) {
        DepthController::observe(self, seen);
    }
}

/// Always the same depth.
struct Fixed(usize);

impl Depth for Fixed {
    fn begin(&mut self, _: bool, _: bool) {}
    fn plan(&mut self, limit: usize, _: usize, _: usize) -> (usize, Box<dyn FnMut(f32) -> bool>) {
        (DraftPlan::fixed(self.0.min(limit)).max_draft, Box::new(|_| true))
    }
    fn keep(&mut self, confidence: &[Option<f32>]) -> usize {
        confidence.len()
    }
    fn observe(&mut self, _: &Observation) {}
    fn reads_first(&self) -> bool {
        true
    }
}

/// Tokens and milliseconds of some answers.
#[derive(Clone, Copy, Default)]
struct Played {
    tokens: f64,
    ms: f64,
    /// Plain decoding's milliseconds for the same tokens.
    plain_ms: f64,
}

impl Played {
    fn speedup(self) -> f64 {
        self.plain_ms / self.ms
    }
}

/// The middle of a recorded percentage, which was rounded down.
fn from_percent(percent: &u8) -> f32 {
    (f32::from(*percent) / 100.0 + 0.005).min(1.0)
}

/// Replays answers one after the other with one controller. `start` is where in the recorded times they begin.
fn play(answers: &[&Answer], machine: &ReplayMachine, depth: &mut dyn Depth, start: usize) -> Played {
    let mut played = Played::default();
    let mut at = start;
    for answer in answers.iter().cycle().take(CONVERSATIONS * answers.len()) {
        let has_model = answer.method == "draft-model";
        let sampled = has_model && answer.temperature > 0.0;
        let n = answer.accepted.len();
        depth.begin(has_model, sampled);
        depth.observe_prefill(answer.prompt_tokens, answer.prompt_tokens as f64 * machine.prefill_ms);
        let mut unread = if has_model { answer.prompt_tokens } else { 0 };
        if has_model && depth.reads_first() {
            played.ms += unread as f64 * machine.read_ms;
            unread = 0;
        }
        let mut position = 0;
        while position < n {
            let remaining = n - position - 1;
            let recorded = &answer.confidence[position];
            let limit = MAX_DRAFT.min(remaining);
            let (mut most, mut should_continue) = if limit == 0 {
                (0, Box::new(|_| false) as Box<dyn FnMut(f32) -> bool>)
            } else {
                depth.plan(limit, unread, remaining)
            };
            if position == 0 && unread > FREE_READ {
                most = 0;
            }
            most = most.min(recorded.len());
            let confidence: Vec<Option<f32>> =
                recorded[..most].iter().map(|c| c.as_ref().map(from_percent)).collect();
            let mut drafted = if has_model { 0 } else { most };
            while drafted < most {
                drafted += 1;
                if !should_continue(confidence[drafted - 1].unwrap_or(1.0)) {
                    break;
                }
            }
            let kept = if sampled || drafted == 0 { drafted } else { depth.keep(&confidence[..drafted]) };
            let accepted = answer.accepted[position].min(kept);
            let tested = kept.min(accepted + 1);
            let read = if has_model && drafted > 0 && unread > FREE_READ { unread } else { 0 };
            let drafting_ms = match (has_model, drafted) {
                (true, _) => machine.draft(drafted, at) + read as f64 * machine.read_ms,
                (false, _) => 0.002 * drafted as f64,
            };
            let target_ms = machine.pass(kept + 1, at);
            depth.observe(&Observation {
                drafted,
                passes: drafted,
                read,
                propose_ms: drafting_ms,
                acted: kept > 0,
                height: kept,
                rows: kept + 1,
                target_ms,
                emitted: 1 + accepted,
                certainty: answer
                    .certainty
                    .iter()
                    .skip(position)
                    .take(1 + accepted)
                    .map(from_percent)
                    .collect(),
                tested: (0..tested).map(|i| i < accepted).collect(),
                confidence: confidence[..tested].to_vec(),
            });
            played.ms += drafting_ms + target_ms;
            played.tokens += 1.0 + accepted as f64;
            let noise = machine.pass(1, at);
            played.plain_ms += (1.0 + accepted as f64) * noise;
            unread = match (has_model, drafted) {
                (false, _) => 0,
                (true, 0) => unread + 1,
                (true, _) => 1,
            };
            position += 1 + accepted;
            at += 1;
        }
    }
    played
}

/// All replays of some answers.
fn replay(answers: &[&Answer], machine: &ReplayMachine, depth: &mut dyn FnMut() -> Box<dyn Depth>) -> Played {
    let mut all = Played::default();
    for replay in 0..REPLAYS {
        let start = replay * machine.pass_noise.len() / REPLAYS;
        let one = play(answers, machine, depth().as_mut(), start);
        all.tokens += one.tokens;
        all.ms += one.ms;
        all.plain_ms += one.plain_ms;
    }
    all
}

/// A method on a suite at a temperature.
type Cell = (String, String, String);

fn cells(answers: &[Answer]) -> BTreeMap<Cell, Vec<&Answer>> {
    let mut cells: BTreeMap<Cell, Vec<&Answer>> = BTreeMap::new();
    for answer in answers {
        let cell = (answer.method.clone(), answer.suite.clone(), answer.temperature.to_string());
        cells.entry(cell).or_default().push(answer);
    }
    cells
}

/// The controller as a session begins with it: the cost of a drafted token is predicted, its acceptance was measured
/// when the pair was loaded.
fn controller(machine: &ReplayMachine, (method, ..): &Cell, fit: PairFit) -> Box<dyn Depth> {
    let mut controller = DepthController::default();
    if method == "draft-model" {
        controller.expect_cost(machine.draft_cost());
        controller.expect_fit(fit);
        let [_, plain, .., full] = machine.pass_ms;
        controller.expect_row((full / plain - 1.0) / (MAX_ROWS - 1) as f64);
    }
    Box::new(controller)
}

/// The speedup of the controller in a cell, and of the best fixed depth.
struct Outcome {
    times: String,
    cell: Cell,
    auto: f64,
    best_fixed: f64,
}

impl Outcome {
    /// Every cell of some answers on some recorded machines.
    fn of(answers: &[Answer], machines: &[Times]) -> Vec<Self> {
        let mut outcomes = Vec::new();
        for times in machines {
            let machine = ReplayMachine::new(times);
            for (cell, answers) in cells(answers) {
                let auto = replay(&answers, &machine, &mut || controller(&machine, &cell, PAIR));
                let fixed = |depth| replay(&answers, &machine, &mut || Box::new(Fixed(depth))).speedup();
                let best_fixed = (0..=8).map(fixed).fold(0.0, f64::max);
                outcomes.push(Self { times: times.name.clone(), cell, auto: auto.speedup(), best_fixed });
            }
        }
        outcomes
    }

    /// The speedup relative to that of the best fixed depth.
    fn relative(&self) -> f64 {
        self.auto / self.best_fixed
    }
}

/// The cells that the controller was designed on.
fn designed_on() -> &'static [Outcome] {
    static OUTCOMES: OnceLock<Vec<Outcome>> = OnceLock::new();
    OUTCOMES.get_or_init(|| {
        let of = |pair: &str| {
            Outcome::of(&lines(&format!("{pair}.jsonl")), &lines::<Times>(&format!("{pair}-times.jsonl")))
        };
        ["smollm2", "qwen"].into_iter().flat_map(of).collect()
    })
}

/// The held-out answers, on every machine that was recorded with their models.
fn held_out() -> &'static [Outcome] {
    static OUTCOMES: OnceLock<Vec<Outcome>> = OnceLock::new();
    OUTCOMES.get_or_init(|| {
        let machines: Vec<Times> =
            ["qwen-times.jsonl", "held-out-times.jsonl"].into_iter().flat_map(lines).collect();
        Outcome::of(&lines("held-out.jsonl"), &machines)
    })
}

/// The speedup of the controller that this one replaced, in one cell.
#[derive(Deserialize)]
struct Bar {
    times: String,
    cell: Cell,
    speedup: f64,
}

/// Prints the geometric mean and the smallest of some ratios, and returns both.
fn summary(name: &str, ratios: impl Iterator<Item = f64>) -> (f64, f64) {
    let ratios: Vec<f64> = ratios.collect();
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    println!("{name}: geometric mean {mean:.4}, smallest {least:.4}, {} cells", ratios.len());
    (mean, least)
}

#[test]
fn is_as_fast_as_the_previous_controller() {
    let bars: Vec<Bar> = lines("bars.jsonl");
    let outcomes = designed_on();
    assert_eq!(bars.len(), outcomes.len());
    let same = |(bar, outcome): (&Bar, &Outcome)| (&bar.times, &bar.cell) == (&outcome.times, &outcome.cell);
    assert!(bars.iter().zip(outcomes).all(same), "bars and outcomes are of the same cells");
    let ratios = bars.iter().zip(outcomes).map(|(bar, outcome)| outcome.auto / bar.speedup);
    let (mean, least) = summary("relative to the controller before", ratios);
    assert!(mean >= 1.027 && least >= 0.98, "{mean:.4} on average, at least {least:.4}");
}

#[test]
fn is_never_much_slower_than_plain_decoding() {
    for (name, outcomes) in [("designed on", designed_on()), ("held out", held_out())] {
        let speedups = outcomes.iter().map(|outcome| outcome.auto);
        let (_, least) = summary(&format!("relative to plain decoding, {name}"), speedups);
        assert!(least >= 0.97, "{name}: {least:.4}");
    }
}

#[test]
fn comes_near_the_best_fixed_depth() {
    for (name, outcomes) in [("designed on", designed_on()), ("held out", held_out())] {
        let ratios = outcomes.iter().map(Outcome::relative);
        let (mean, least) = summary(&format!("relative to the best fixed depth, {name}"), ratios);
        for outcome in outcomes.iter().filter(|outcome| outcome.relative() < 0.97) {
            let Outcome { times, cell: (method, suite, temperature), .. } = outcome;
            println!("  {:.4} {times}: {method} {suite} {temperature}", outcome.relative());
        }
        assert!(mean >= 1.0 && least >= 0.93, "{name}: {mean:.4} on average, at least {least:.4}");
    }
}

/// The smallest speedup with drafts that are never accepted, of draft models and of lookups. `fit` is what the controller
/// expects of the draft model.
fn hostile(fit: PairFit) -> (f64, f64) {
    let (mut models, mut lookups) = (f64::INFINITY, f64::INFINITY);
    for pair in ["smollm2", "qwen"] {
        let mut answers: Vec<Answer> = lines(&format!("{pair}.jsonl"));
        answers.iter_mut().for_each(|answer| answer.accepted.fill(0));
        for times in lines::<Times>(&format!("{pair}-times.jsonl")) {
            let machine = ReplayMachine::new(&times);
            for (cell, answers) in cells(&answers) {
                let played = replay(&answers, &machine, &mut || controller(&machine, &cell, fit));
                let least = if cell.0 == "draft-model" { &mut models } else { &mut lookups };
                *least = least.min(played.speedup());
            }
        }
    }
    (models, lookups)
}

#[test]
fn hostile_drafts_cost_at_most_the_budget() {
    let (models, lookups) = hostile(HOSTILE_PAIR);
    assert!(models >= 0.97 && lookups >= 0.97, "{models:.3}x, {lookups:.3}x");
}

/// The draft model reads up to 400 tokens once, for answers of 56 tokens.
#[test]
fn drafts_that_fit_only_the_measured_text_cost_the_budget_and_one_reading() {
    let (models, _) = hostile(PAIR);
    assert!(models >= 0.92, "{models:.3}x");
}
