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
//! A cell has 3 to 9 answers, so its figures are rough. Over answers drawn again (bootstrap, 40 draws, an earlier
//! controller), the ratio to the best fixed depth has a standard deviation of 0.01 to 0.02. So bounds of single cells are
//! loose, and those of means are tight. Most cells below 0.97 are edits with a draft model, whose reading of the prompt
//! costs 17% of plain decoding. A fixed depth pays that at once, the controller only where it expects that it is repaid.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use hunch_core::depth::{
    DepthController, DraftPlan, DraftRequest, DraftTraits, DraftWork, ExpectedRound, FREE_READ,
    MeasuredAcceptance, Observation,
};
use hunch_core::limits::{MAX_DRAFT, MAX_ROWS};
use hunch_core::quantile::median;
use serde::Deserialize;

/// Replays of each cell, which begin at different times of the recorded machine.
const REPLAYS: usize = 16;

/// Times that a replay plays the answers of its cell, one after the other: one controller sees all of them.
const CONVERSATIONS: usize = 2;

/// Measured acceptance of the recorded pair of Qwen2.5-Coder models ([`DepthController::expect_acceptance`]).
const PAIR: MeasuredAcceptance = MeasuredAcceptance { acceptance: 0.81, certainty: 0.71 };

/// The same target with a draft model that does not fit it: an upper bound of the acceptance.
const HOSTILE_PAIR: MeasuredAcceptance = MeasuredAcceptance { acceptance: 0.1, ..PAIR };

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
    /// Milliseconds in which the draft model reads a token.
    read_ms: Option<f64>,
    /// Times of the first plain passes after a prefill, relative to later ones. Empty if they were not recorded.
    #[serde(default)]
    first_passes: Vec<f64>,
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
    read_ms: f64,
    first_passes: Vec<f64>,
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
            read_ms: times.read_ms.unwrap_or(0.0),
            first_passes: times.first_passes.clone(),
        }
    }

    fn pass(&self, rows: usize, at: usize) -> f64 {
        self.pass_ms[rows] * self.pass_noise[at % self.pass_noise.len()]
    }

    /// Time of the passes of a round relative to later ones, by the rounds of the answer before it.
    fn slowness(&self, rounds: usize) -> f64 {
        self.first_passes.get(rounds).copied().unwrap_or(1.0)
    }

    /// Cost of a further row of a pass, in plain passes.
    fn row_cost(&self) -> f64 {
        let [_, plain, .., full] = self.pass_ms;
        (full / plain - 1.0) / (MAX_ROWS - 1) as f64
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
    fn begin(&mut self, _proposer: usize, _traits: DraftTraits) {}
    fn pause(&mut self) {}
    fn plan(&mut self, proposer: usize, request: DraftRequest) -> DraftPlan;
    fn keep(&mut self, proposer: usize, confidence: &[Option<f32>], rival: Option<ExpectedRound>) -> usize;
    fn observe(&mut self, _seen: &Observation) {}
    /// Returns true if the draft model reads the prompt before the first round, as fixed depths do.
    fn reads_first(&self) -> bool {
        false
    }
}

impl Depth for DepthController {
    fn begin(&mut self, proposer: usize, traits: DraftTraits) {
        DepthController::begin(self, proposer, traits);
    }
    fn pause(&mut self) {
        DepthController::pause(self);
    }
    fn plan(&mut self, proposer: usize, request: DraftRequest) -> DraftPlan {
        DepthController::plan(self, proposer, request)
    }
    fn keep(&mut self, proposer: usize, confidence: &[Option<f32>], rival: Option<ExpectedRound>) -> usize {
        DepthController::keep(self, proposer, confidence, rival)
    }
    fn observe(&mut self, seen: &Observation) {
        DepthController::observe(self, seen);
    }
}

/// Always the same depth.
struct Fixed(usize);

impl Depth for Fixed {
    fn plan(&mut self, _: usize, request: DraftRequest) -> DraftPlan {
        DraftPlan::fixed(self.0.min(request.limit))
    }
    fn keep(&mut self, _: usize, confidence: &[Option<f32>], _: Option<ExpectedRound>) -> usize {
        confidence.len()
    }
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

/// The recorded drafts of each proposer of a method along one text, in the order in which they are tried.
type Text<'a> = Vec<&'a Answer>;

/// One proposer in a replay.
struct Replayed<'a> {
    answer: &'a Answer,
    has_model: bool,
    sampled: bool,
    /// Tokens that its model has to read.
    unread: usize,
}

impl<'a> Replayed<'a> {
    fn new(answer: &'a Answer) -> Self {
        let reads = answer.method == "draft-model";
        let has_model = reads || answer.method == "head";
        let sampled = has_model && answer.temperature > 0.0;
        Self { answer, has_model, sampled, unread: if reads { answer.prompt_tokens } else { 0 } }
    }

    /// Drafts at a position. Returns the confidence of the drafted tokens and the work.
    fn draft(
        &self,
        mut plan: DraftPlan,
        position: usize,
        machine: &ReplayMachine,
        at: usize,
    ) -> (Vec<Option<f32>>, DraftWork) {
        let recorded = &self.answer.confidence[position];
        let most = plan.max_draft.min(recorded.len());
        let mut confidence: Vec<Option<f32>> =
            recorded[..most].iter().map(|c| c.as_ref().map(from_percent)).collect();
        if self.has_model {
            let mut drafted = 0;
            while drafted < most {
                drafted += 1;
                if !plan.should_continue(confidence[drafted - 1].unwrap_or(1.0)) {
                    break;
                }
            }
            confidence.truncate(drafted);
        }
        let drafted = confidence.len();
        let read = if self.has_model && drafted > 0 && self.unread > FREE_READ { self.unread } else { 0 };
        let ms = match self.has_model {
            true => machine.draft(drafted, at) + read as f64 * machine.read_ms,
            false => 0.002 * drafted as f64,
        };
        (confidence, DraftWork { drafted, steps: drafted, read, ms })
    }
}

/// The draft of a round.
#[derive(Default)]
struct Kept {
    proposer: Option<usize>,
    tokens: usize,
    accepted: usize,
    confidence: Vec<Option<f32>>,
}

/// Replays texts one after the other with one controller. `start` is where in the recorded times they begin.
fn play<'a>(
    texts: impl Iterator<Item = &'a Text<'a>>,
    machine: &ReplayMachine,
    depth: &mut dyn Depth,
    start: usize,
) -> Played {
    let mut played = Played::default();
    let mut at = start;
    for text in texts {
        let Answer { accepted, certainty, .. } = text.last().expect("a proposer");
        let n = accepted.len();
        let mut proposers: Vec<Replayed<'_>> = text.iter().map(|answer| Replayed::new(answer)).collect();
        depth.pause();
        for (i, own) in proposers.iter_mut().enumerate() {
            let traits = DraftTraits { has_model: own.has_model, sampled: own.sampled, in_one_pass: false };
            depth.begin(i, traits);
            if own.has_model && depth.reads_first() {
                played.ms += own.unread as f64 * machine.read_ms;
                own.unread = 0;
            }
        }
        let (mut position, mut rounds) = (0, 0);
        while position < n {
            let slowness = machine.slowness(rounds);
            let (kept, mut work) = round(&proposers, position, depth, machine, at);
            work.iter_mut().for_each(|work| work.ms *= slowness);
            let tested = kept.tokens.min(kept.accepted + 1);
            let emitted = 1 + kept.accepted;
            let target_ms = slowness * machine.pass(kept.tokens + 1, at);
            depth.observe(&Observation {
                drafted_by: kept.proposer,
                height: kept.tokens,
                rows: kept.tokens + 1,
                target_ms,
                emitted,
                certainty: certainty.iter().skip(position).take(emitted).map(from_percent).collect(),
                tested: (0..tested).map(|i| i < kept.accepted).collect(),
                confidence: kept.confidence[..tested].to_vec(),
                work: work.clone(),
            });
            played.ms += work.iter().map(|work| work.ms).sum::<f64>() + target_ms;
            played.tokens += emitted as f64;
            let plain_passes: f64 = (position..position + emitted).map(|round| machine.slowness(round)).sum();
            played.plain_ms += plain_passes * machine.pass(1, at);
            for (own, work) in proposers.iter_mut().zip(&work).filter(|(own, _)| own.has_model) {
                own.unread = if work.drafted > 0 { 1 } else { own.unread + emitted };
            }
            position += emitted;
            rounds += 1;
            at += 1;
        }
    }
    played
}

/// Drafts as a session does: the first worthwhile draft is used, and a model drafts only if no later one is expected to
/// be faster.
fn round(
    proposers: &[Replayed<'_>],
    position: usize,
    depth: &mut dyn Depth,
    machine: &ReplayMachine,
    at: usize,
) -> (Kept, Vec<DraftWork>) {
    let mut work = vec![DraftWork::default(); proposers.len()];
    let remaining = proposers[0].answer.accepted.len() - position - 1;
    let limit = MAX_DRAFT.min(remaining);
    if limit == 0 {
        return (Kept::default(), work);
    }
    let mut plan = |i: usize, own: &Replayed<'_>| {
        let plan = depth.plan(i, DraftRequest { limit, unread: own.unread, extra_rows: 0, remaining });
        if position == 0 && own.unread > FREE_READ { DraftPlan::fixed(0) } else { plan }
    };
    let plans: Vec<DraftPlan> = proposers.iter().enumerate().map(|(i, own)| plan(i, own)).collect();
    for (i, own) in proposers.iter().enumerate() {
        let models = (i + 1..plans.len()).filter(|&later| proposers[later].has_model);
        let rival = DraftPlan::fastest(models.map(|later| &plans[later]));
        let leaves_it_to_rival = own.has_model && rival.is_some_and(|rival| plans[i].is_slower_than(rival));
        if plans[i].max_draft == 0 || leaves_it_to_rival {
            continue;
        }
        let (mut confidence, done) = own.draft(plans[i].clone(), position, machine, at);
        work[i] = done;
        if !own.sampled && !confidence.is_empty() {
            confidence.truncate(depth.keep(i, &confidence, rival));
        }
        if !confidence.is_empty() {
            let tokens = confidence.len();
            let accepted = own.answer.accepted[position].min(tokens);
            return (Kept { proposer: Some(i), tokens, accepted, confidence }, work);
        }
    }
    (Kept::default(), work)
}

/// All replays of some texts, which one controller sees [`CONVERSATIONS`] times.
fn replay(texts: &[Text<'_>], machine: &ReplayMachine, depth: &mut dyn FnMut() -> Box<dyn Depth>) -> Played {
    replay_times(texts, CONVERSATIONS, machine, depth)
}

fn replay_times(
    texts: &[Text<'_>],
    times: usize,
    machine: &ReplayMachine,
    depth: &mut dyn FnMut() -> Box<dyn Depth>,
) -> Played {
    let mut all = Played::default();
    for replay in 0..REPLAYS {
        let start = replay * machine.pass_noise.len() / REPLAYS;
        let texts = texts.iter().cycle().take(times * texts.len());
        let one = play(texts, machine, depth().as_mut(), start);
        all.tokens += one.tokens;
        all.ms += one.ms;
        all.plain_ms += one.plain_ms;
    }
    all
}

/// A method on a suite at a temperature.
type Cell = (String, String, String);

fn cells_of(answers: &[Answer]) -> BTreeMap<Cell, Vec<Text<'_>>> {
    let mut cells: BTreeMap<Cell, Vec<Text<'_>>> = BTreeMap::new();
    for answer in answers {
        let cell = (answer.method.clone(), answer.suite.clone(), answer.temperature.to_string());
        cells.entry(cell).or_default().push(vec![answer]);
    }
    cells
}

/// The controller as a session begins with it. Costs are predicted or were measured when the models were loaded. So was
/// the acceptance of a draft model.
fn controller(machine: &ReplayMachine, text: &Text<'_>, measured: MeasuredAcceptance) -> Box<dyn Depth> {
    let mut controller = DepthController::default();
    controller.expect_row(machine.row_cost());
    for (i, answer) in text.iter().enumerate() {
        if Replayed::new(answer).has_model {
            controller.expect_cost(i, machine.draft_cost());
        }
        if answer.method == "draft-model" {
            controller.expect_acceptance(i, measured);
        }
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
            for (cell, answers) in cells_of(answers) {
                let auto = replay(&answers, &machine, &mut || controller(&machine, &answers[0], PAIR));
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

/// Every machine that was recorded with the models of the held-out answers.
fn held_out_machines() -> Vec<Times> {
    ["qwen-times.jsonl", "held-out-times.jsonl"].into_iter().flat_map(lines).collect()
}

/// The held-out answers, on all of their machines.
fn held_out() -> &'static [Outcome] {
    static OUTCOMES: OnceLock<Vec<Outcome>> = OnceLock::new();
    OUTCOMES.get_or_init(|| Outcome::of(&lines("held-out.jsonl"), &held_out_machines()))
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

/// Prints the cells with a ratio below a limit. `ratios` has one for each of `outcomes`.
fn print_below(limit: f64, ratios: impl Iterator<Item = f64>, outcomes: &[Outcome]) {
    for (ratio, outcome) in ratios.zip(outcomes).filter(|(ratio, _)| *ratio < limit) {
        let Outcome { times, cell: (method, suite, temperature), .. } = outcome;
        println!("  {ratio:.4} {times}: {method} {suite} {temperature}");
    }
}

#[test]
fn is_as_fast_as_the_previous_controller() {
    let bars: Vec<Bar> = lines("bars.jsonl");
    let outcomes = designed_on();
    assert_eq!(bars.len(), outcomes.len());
    let same = |(bar, outcome): (&Bar, &Outcome)| (&bar.times, &bar.cell) == (&outcome.times, &outcome.cell);
    assert!(bars.iter().zip(outcomes).all(same), "bars and outcomes are of the same cells");
    let ratios = bars.iter().zip(outcomes).map(|(bar, outcome)| outcome.auto / bar.speedup);
    let (mean, least) = summary("relative to the controller before", ratios.clone());
    print_below(0.99, ratios, outcomes);
    assert!(mean >= 1.03 && least >= 0.985, "{mean:.4} on average, at least {least:.4}");
}

#[test]
fn is_never_much_slower_than_plain_decoding() {
    for (name, outcomes) in [("designed on", designed_on()), ("held out", held_out())] {
        let speedups = outcomes.iter().map(|outcome| outcome.auto);
        let (_, least) = summary(&format!("relative to plain decoding, {name}"), speedups);
        assert!(least >= 0.98, "{name}: {least:.4}");
    }
}

#[test]
fn comes_near_the_best_fixed_depth() {
    for (name, outcomes) in [("designed on", designed_on()), ("held out", held_out())] {
        let ratios = outcomes.iter().map(Outcome::relative);
        let (mean, least) = summary(&format!("relative to the best fixed depth, {name}"), ratios.clone());
        print_below(0.97, ratios, outcomes);
        assert!(mean >= 1.005 && least >= 0.94, "{name}: {mean:.4} on average, at least {least:.4}");
    }
}

/// The answers of each suite and temperature, with the drafts of `suffix` and of another method along each.
fn with_both<'a>(answers: &'a [Answer], other: &str) -> BTreeMap<(String, String), Vec<Text<'a>>> {
    let mut cells: BTreeMap<_, Vec<Text<'_>>> = BTreeMap::new();
    let mut by_method = cells_of(answers);
    let suffix: Vec<Cell> = by_method.keys().filter(|(method, ..)| method == "suffix").cloned().collect();
    for (method, suite, temperature) in suffix {
        let of = (other.to_owned(), suite.clone(), temperature.clone());
        let drafted = by_method.remove(&of).expect("drafts along the same texts");
        let looked_up = by_method.remove(&(method, suite.clone(), temperature.clone())).expect("a cell");
        let both = looked_up.into_iter().zip(drafted).map(|(suffix, draft)| {
            assert_eq!(suffix[0].prompt_tokens, draft[0].prompt_tokens, "the same texts in the same order");
            [suffix, draft].concat()
        });
        cells.insert((suite, temperature), both.collect());
    }
    cells
}

#[test]
fn several_proposers_come_near_the_best_of_them() {
    let answers: Vec<Answer> = lines("held-out.jsonl");
    let machines = held_out_machines();
    let texts = with_both(&answers, "draft-model");
    let (mut to_plain, mut to_best) = (Vec::new(), Vec::new());
    for times in &machines {
        let machine = ReplayMachine::new(times);
        for ((suite, temperature), texts) in &texts {
            let speedup = |texts: &[Text<'_>]| {
                replay(texts, &machine, &mut || controller(&machine, &texts[0], PAIR)).speedup()
            };
            let one = |i: usize| texts.iter().map(|text| vec![text[i]]).collect::<Vec<_>>();
            let (both, suffix, draft) = (speedup(texts), speedup(&one(0)), speedup(&one(1)));
            let best = suffix.max(draft).max(1.0);
            if both < 0.97 * best {
                println!("  {both:.3} of {suffix:.3} {draft:.3} {}: {suite} {temperature}", times.name);
            }
            to_plain.push(both);
            to_best.push(both / best);
        }
    }
    let (_, least) = summary("suffix and draft model relative to plain decoding", to_plain.into_iter());
    let (mean, least_of_best) = summary("relative to the better of the two", to_best.into_iter());
    assert!(least >= 0.985, "{least:.4}");
    assert!(mean >= 1.005 && least_of_best >= 0.965, "{mean:.4} on average, at least {least_of_best:.4}");
}

/// Each answer has the suite after the one before, so evidence of one answer misleads in the next.
#[test]
fn follows_changes_of_the_suite() {
    let answers: Vec<Answer> = lines("held-out.jsonl");
    let machines = held_out_machines();
    let mut by_temperature: BTreeMap<String, Vec<Vec<Text<'_>>>> = BTreeMap::new();
    for ((_, temperature), texts) in with_both(&answers, "draft-model") {
        by_temperature.entry(temperature).or_default().push(texts);
    }
    let mut speedups = Vec::new();
    for suites in by_temperature.values() {
        let longest = suites.iter().map(|texts| texts.len()).max().expect("a suite");
        let in_turn = |i: usize| suites.iter().filter_map(move |texts| texts.get(i).cloned());
        let mixed: Vec<Text<'_>> = (0..longest).flat_map(in_turn).collect();
        for times in &machines {
            let machine = ReplayMachine::new(times);
            speedups.push(replay(&mixed, &machine, &mut || controller(&machine, &mixed[0], PAIR)).speedup());
        }
    }
    let (mean, least) = summary("suites in turn relative to plain decoding", speedups.into_iter());
    assert!(mean >= 1.415 && least >= 0.985, "{mean:.4} on average, at least {least:.4}");
}

/// Each answer is the first after a load: the controller knows no acceptance yet, and caches are cold. An answer has at
/// most 64 tokens, so the allowance alone is 3% of it.
#[test]
fn first_answers_are_seldom_slower_than_plain_decoding() {
    let answers: Vec<Answer> = lines("head.jsonl");
    let mut cells = cells_of(&answers);
    for ((suite, temperature), texts) in with_both(&answers, "head") {
        cells.insert(("suffix and head".into(), suite, temperature), texts);
    }
    let mut speedups = Vec::new();
    for times in lines::<Times>("head-times.jsonl") {
        assert!(times.first_passes[0] > 1.0, "{}: the first pass is slow", times.name);
        let machine = ReplayMachine::new(&times);
        for (cell, texts) in &cells {
            let first_of = |text: &Text<'_>| {
                let texts = std::slice::from_ref(text);
                replay_times(texts, 1, &machine, &mut || controller(&machine, text, PAIR))
            };
            let answers: Vec<Played> = texts.iter().map(first_of).collect();
            let ms: f64 = answers.iter().map(|played| played.ms).sum();
            let speedup = answers.iter().map(|played| played.plain_ms).sum::<f64>() / ms;
            if speedup < 0.97 {
                println!("  {speedup:.4} {}: {cell:?}", times.name);
            }
            speedups.push(speedup);
        }
    }
    let (mean, least) = summary("first answers relative to plain decoding", speedups.into_iter());
    assert!(mean >= 1.09 && least >= 0.95, "{mean:.4} on average, at least {least:.4}");
}

/// The smallest speedup with drafts that are never accepted, of draft models and of lookups. `measured` is what the controller
/// expects of the draft model.
fn hostile(measured: MeasuredAcceptance) -> (f64, f64) {
    let (mut models, mut lookups) = (f64::INFINITY, f64::INFINITY);
    for pair in ["smollm2", "qwen"] {
        let mut answers: Vec<Answer> = lines(&format!("{pair}.jsonl"));
        answers.iter_mut().for_each(|answer| answer.accepted.fill(0));
        for times in lines::<Times>(&format!("{pair}-times.jsonl")) {
            let machine = ReplayMachine::new(&times);
            for (cell, answers) in cells_of(&answers) {
                let played = replay(&answers, &machine, &mut || controller(&machine, &answers[0], measured));
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
