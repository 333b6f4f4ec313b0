//! The runner against an engine with scripted times.

use super::*;
use hunch_core::limits::MAX_SEED;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenId;

/// Prefill time of every answer.
const PREFILL_MS: f64 = 100.0;
/// Time of a target pass of one row.
const PASS_MS: f64 = 40.0;

/// An engine with known times that records its calls.
#[derive(Default)]
struct Scripted {
    calls: Vec<(String, Method, Option<u64>)>,
    /// Number of lanes of each suite.
    lanes: Vec<usize>,
    /// Prompt and answer length that set the context of passes.
    contexts: Vec<(String, usize)>,
    /// Slices in a turn.
    slices: usize,
    /// Number of each turn.
    numbers: Vec<usize>,
    /// Rows of target passes, and 0 for each draft pass.
    passes: Vec<usize>,
    has_draft: bool,
    /// True if draft passes take twice as long after the first answer.
    draft_slows_down: bool,
    /// True if draft passes take twice as long during a turn.
    slow_in_turn: bool,
    in_turn: bool,
    /// Method and prompt whose answer has a wrong token.
    wrong: Option<(Method, &'static str)>,
}

/// Returns t(M) / t(1) of the scripted target.
fn cost(rows: usize) -> f64 {
    1.0 + (rows - 1) as f64 / 16.0
}

impl Scripted {
    /// Each round of fourteen passes is slower than the one before, like on a machine that heats up.
    fn slowness(&self) -> f64 {
        1.0 + ((self.passes.len() - 1) / 14) as f64 / 10.0
    }
}

impl Scripted {
    fn one(&mut self, prompt: &SuitePrompt, plan: &GenerationPlan) -> MeasuredAnswer {
        self.calls.push((prompt.id.clone(), plan.method, plan.sampling.seed));
        // 40 tokens in 40 plain rounds, or in 20 rounds of two drafted: 20 accepted, 10 rejected.
        let (rounds, drafted, accepted, resampled, bonus, plain) =
            if plan.method == Method::Plain { (40, 0, 0, 0, 0, 40) } else { (20, 40, 20, 10, 10, 0) };
        // The time of a round depends on the prompt: "b" is slow for drafting methods.
        let round_ms = match (plan.method, prompt.id.as_str()) {
            (Method::Plain, _) => 40.0,
            (_, "b") => 80.0,
            _ => 30.0,
        };
        let decode_ms = f64::from(rounds) * round_ms;
        let mut ids: Vec<TokenId> = (0..40).collect();
        if self.wrong.is_some_and(|(method, id)| method == plan.method && id == prompt.id) {
            ids[7] = 99;
        }
        MeasuredAnswer {
            stats: GenerationStats {
                generated_tokens: 40,
                rounds,
                drafted,
                accepted,
                resampled,
                bonus,
                plain,
                target_passes: vec![(drafted / rounds + 1, rounds)],
                draft_passes: if plan.method == Method::DraftModel { vec![(1, drafted)] } else { vec![] },
                target_ms: decode_ms,
                wall_ms: PREFILL_MS + decode_ms,
                decode_tok_s: 40.0 / decode_ms * 1e3,
                ..GenerationStats::default()
            },
            ids,
        }
    }
}

impl Bench for Scripted {
    fn set_context(&mut self, prompt: &SuitePrompt, max_tokens: usize) {
        self.contexts.push((prompt.id.clone(), max_tokens));
    }

    fn begin(&mut self, lanes: usize) -> Result<()> {
        self.lanes.push(lanes);
        Ok(())
    }

    fn answer(
        &mut self,
        prompt: &SuitePrompt,
        plans: &[GenerationPlan],
        number: usize,
        between: BetweenSlices<'_>,
    ) -> Result<Vec<MeasuredAnswer>> {
        self.numbers.push(number);
        let answers = plans.iter().map(|plan| self.one(prompt, plan)).collect();
        self.in_turn = true;
        for _ in 0..self.slices {
            between(self)?;
        }
        self.in_turn = false;
        Ok(answers)
    }

    fn passes(&mut self) -> &mut dyn PassBench {
        self
    }
}

impl PassBench for Scripted {
    fn target_pass(&mut self, rows: usize) -> Result<f64> {
        self.passes.push(rows);
        Ok(PASS_MS / 1e3 * cost(rows) * self.slowness())
    }

    fn draft_pass(&mut self, drafter: Method, _: &MethodOptions, rows: usize) -> Result<Option<f64>> {
        assert_eq!(drafter, Method::DraftModel);
        if rows > 1 {
            return Ok(None);
        }
        self.passes.push(0);
        let slow = self.draft_slows_down && !self.calls.is_empty() || self.slow_in_turn && self.in_turn;
        let factor = if slow { 2.0 } else { 1.0 };
        Ok(self.has_draft.then_some(PASS_MS / 4e3 * factor * self.slowness()))
    }
}

fn suite(ids: &[&str]) -> Suite {
    let prompt = |id: &&str| SuitePrompt { id: (*id).to_owned(), system: None, prompt: "Hello".to_owned() };
    Suite { name: "mine".into(), prompts: ids.iter().map(prompt).collect() }
}

fn plan(methods: &[(Method, u32)], ids: &[&str], runs: usize) -> BenchPlan {
    BenchPlan {
        suites: vec![suite(ids)],
        configs: methods
            .iter()
            .map(|&(method, k)| MethodConfig { method, max_draft: MaxDraft::Fixed(k) })
            .collect(),
        runs,
        turn_cost_rounds: 2,
        ..BenchPlan::default()
    }
}

fn measure(bench: &mut Scripted, plan: &BenchPlan) -> Result<BenchReport> {
    run(
        bench,
        plan,
        Setting { device: "cpu".into(), threads: 2, target: "t".into(), draft: None },
        &mut |_| {},
    )
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn speedups_match_scripted_times() {
    let mut bench = Scripted { has_draft: true, ..Scripted::default() };
    let plan = plan(&[(Method::DraftModel, 2), (Method::Plain, 1), (Method::Ngram, 2)], &["a", "b", "c"], 2);
    let report = measure(&mut bench, &plan).unwrap();
    assert_eq!(
        report.methods.iter().map(|m| m.method).collect::<Vec<_>>(),
        [Method::Plain, Method::DraftModel, Method::Ngram]
    );
    let plain = &report.methods[0];
    assert!(close(plain.tok_s, 25.0) && close(plain.speedup, 1.0) && close(plain.decode_speedup, 1.0));
    assert_eq!((plain.speedup_low, plain.speedup_high, plain.max_draft), (1.0, 1.0, MaxDraft::Fixed(0)));
    assert_eq!((plain.predicted_speedup, plain.mean_acceptance_length), (Some(1.0), 1.0));
    // Prompts a and c: (100 + 1600) / (100 + 600); prompt b: 1700 / 1700.
    let draft = &report.methods[1];
    assert!(close(draft.speedup, 17.0 / 7.0));
    assert!(close(draft.speedup_low, 1.0 + 0.2 * (17.0 / 7.0 - 1.0)));
    assert!(close(draft.speedup_high, 17.0 / 7.0));
    assert!(close(draft.decode_speedup, 1600.0 / 600.0));
    assert!(close(draft.tok_s, 40.0 / 0.6));
    assert_eq!((draft.acceptance_rate, draft.mean_acceptance_length), (0.5, 2.0));
    assert_eq!((draft.suite.as_str(), draft.max_draft, draft.temperature), ("mine", MaxDraft::Fixed(2), 0.0));
}

#[test]
fn predictions_use_measured_acceptance_and_costs() {
    let mut bench = Scripted { has_draft: true, ..Scripted::default() };
    let report =
        measure(&mut bench, &plan(&[(Method::DraftModel, 2), (Method::Ngram, 2)], &["a", "b"], 1)).unwrap();
    assert_eq!(report.target_cost.len(), 9);
    assert!(report.target_cost.iter().all(|(&m, &t)| close(t, cost(m))));
    assert!(report.draft_cost.is_some_and(|c| close(c, 0.25)));
    // Two tokens a round, one of two accepted; t(3) = 1.125. Lookup costs nothing.
    let tokens = 2.0;
    assert!(report.methods[1].predicted_speedup.is_some_and(|s| close(s, tokens / (1.125 + 0.5))));
    assert!(report.methods[2].predicted_speedup.is_some_and(|s| close(s, tokens / 1.125)));
}

#[test]
fn turn_is_predicted_from_passes_before_and_after_it() {
    let mut bench = Scripted { has_draft: true, draft_slows_down: true, ..Scripted::default() };
    let report = measure(&mut bench, &plan(&[(Method::DraftModel, 2)], &["a"], 1)).unwrap();
    // The table has all rounds: five before the first answer, two before and two after the only turn.
    assert!(report.draft_cost.is_some_and(|c| c > 0.3 && c < 0.4));
    assert!(report.methods[1].predicted_speedup.is_some_and(|s| close(s, 2.0 / (1.125 + 2.0 * 0.5))));
}

#[test]
fn turn_is_predicted_from_passes_during_it() {
    let predicted = |slices: usize| {
        // Draft passes are slow during the turn only.
        let mut bench = Scripted { has_draft: true, slices, slow_in_turn: true, ..Scripted::default() };
        let report = measure(&mut bench, &plan(&[(Method::DraftModel, 2)], &["a"], 1)).unwrap();
        report.methods[1].predicted_speedup
    };
    assert!(predicted(3).is_some_and(|s| close(s, 2.0 / (1.125 + 2.0 * 0.25))));
    // Five rounds during the turn, after every fourth slice, two before and two after. Each is slower than the last.
    let (others, during) = (1.6 + 1.7 + 2.3 + 2.4, 1.8 + 1.9 + 2.0 + 2.1 + 2.2);
    let draft = 0.25 * (others + 2.0 * during) / (others + during);
    assert!(predicted(20).is_some_and(|s| close(s, 2.0 / (1.125 + 2.0 * draft))));
}

#[test]
fn predicts_nothing_without_the_cost_of_the_draft() {
    let report = measure(&mut Scripted::default(), &plan(&[(Method::DraftModel, 2)], &["a"], 1)).unwrap();
    assert_eq!(report.draft_cost, None);
    assert_eq!(report.methods[1].predicted_speedup, None);
}

#[test]
fn every_method_answers_every_prompt_in_every_run() {
    use Method::{DraftModel as D, Ngram as N, Plain as P};
    let mut bench = Scripted::default();
    let mut plan = plan(&[(D, 2), (N, 2)], &["a", "b"], 2);
    measure(&mut bench, &plan).unwrap();
    let order: Vec<_> = bench.calls.iter().map(|(id, method, _)| (id.as_str(), *method)).collect();
    // The first is a warm-up.
    let expected = ["a", "a", "b", "a", "b"].map(|id| [(id, P), (id, D), (id, N)]);
    assert_eq!(order, expected.concat());
    let seeds: Vec<_> = bench.calls.iter().map(|(_, _, seed)| seed.unwrap()).collect();
    assert_eq!(seeds, [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!((bench.numbers, bench.lanes), (vec![0, 0, 1, 2, 3], vec![3]));
    // Every suite starts with fresh lanes.
    plan.suites.push(suite(&["c"]));
    let mut bench = Scripted::default();
    measure(&mut bench, &plan).unwrap();
    assert_eq!(bench.lanes, [3, 3]);
    // Passes are timed at the context of the answers they predict.
    assert_eq!(
        bench.contexts,
        ["a", "a", "b", "a", "b", "c", "c"].map(|id| (id.to_owned(), plan.max_tokens))
    );
}

#[test]
fn cost_table_interleaves_and_covers_the_longest_draft() {
    let mut bench = Scripted::default();
    let mut plan = plan(&[(Method::Ngram, 10)], &["a"], 1);
    plan.cost_rounds = 2;
    let report = measure(&mut bench, &plan).unwrap();
    assert_eq!(report.target_cost.keys().copied().collect::<Vec<_>>(), (1..=11).collect::<Vec<_>>());
    // Passes of one row come three times.
    let passes = [&[1, 0][..], &[2, 3, 4, 5, 6], &[1, 0], &[7, 8, 9, 10, 11], &[1, 0]].concat();
    let rounds: Vec<_> = bench.passes.chunks(passes.len()).collect();
    // A warm-up, two rounds, and two more before and after the only turn.
    assert_eq!(rounds.len(), 7);
    let from = |first: usize| [&passes[first..], &passes[..first]].concat();
    for (number, round) in rounds.iter().enumerate() {
        assert_eq!(*round, from(number));
    }
}

#[test]
fn greedy_answers_are_compared_with_plain() {
    let methods = [(Method::Ngram, 4)];
    let mut bench = Scripted::default();
    let identity = measure(&mut bench, &plan(&methods, &["a", "b"], 2)).unwrap().identity.unwrap();
    // Two prompts, two runs, two methods, without the two plain reference answers.
    assert_eq!((identity.compared, identity.differences), (6, vec![]));
    let mut bench = Scripted { wrong: Some((Method::Ngram, "b")), ..Scripted::default() };
    let identity = measure(&mut bench, &plan(&methods, &["a", "b"], 2)).unwrap().identity.unwrap();
    let found: Vec<_> = identity
        .differences
        .iter()
        .map(|d| (d.prompt.as_str(), d.method, d.max_draft, d.run, d.position))
        .collect();
    assert_eq!(found, [0, 1].map(|run| ("b", Method::Ngram, MaxDraft::Fixed(4), run, 7)));
    let mut warm = plan(&methods, &["a"], 1);
    warm.sampling = SamplingParams { seed: Some(MAX_SEED), ..SamplingParams::unfiltered() };
    let mut bench = Scripted { wrong: Some((Method::Ngram, "a")), ..Scripted::default() };
    assert_eq!(measure(&mut bench, &warm).unwrap().identity, None);
    assert!(bench.calls.iter().all(|(_, _, seed)| *seed == Some(MAX_SEED)));
    // Lenience writes texts of its own at temperature 0.
    let mut lenient = plan(&methods, &["a"], 1);
    lenient.rule = AcceptanceRule::LossyLenience { lenience: 0.5 };
    let mut bench = Scripted { wrong: Some((Method::Ngram, "a")), ..Scripted::default() };
    assert_eq!(measure(&mut bench, &lenient).unwrap().identity, None);
}

#[test]
fn progress_counts_every_turn_once() {
    let mut bench = Scripted::default();
    let (mut turns, mut costs) = (Vec::new(), Vec::new());
    run(&mut bench, &plan(&[(Method::Ngram, 2)], &["a", "b"], 2), Setting::default(), &mut |p| match p {
        BenchProgress::Cost { done, total } => costs.push((done, total)),
        BenchProgress::Turn { suite, warm_up, done, total, .. } => {
            turns.push((suite.to_owned(), warm_up, done, total))
        }
    })
    .unwrap();
    assert_eq!(costs, (0..6).map(|done| (done, 6)).collect::<Vec<_>>());
    assert_eq!(turns, (0..5).map(|done| ("mine".to_owned(), done < 1, done, 5)).collect::<Vec<_>>());
    assert_eq!(bench.calls.len(), 10);
}

#[test]
fn rejects_invalid_plans_before_measuring() {
    let good = plan(&[(Method::Ngram, 2)], &["a"], 1);
    let refused = |plan: BenchPlan| {
        let mut bench = Scripted::default();
        let error = measure(&mut bench, &plan).expect_err("invalid plan");
        assert!(bench.calls.is_empty() && bench.passes.is_empty());
        assert!(matches!(error, Error::InvalidRequest(_)));
        error.to_string()
    };
    assert!(refused(BenchPlan { suites: Vec::new(), ..good.clone() }).contains("Choose a suite"));
    assert!(refused(BenchPlan { runs: 0, ..good.clone() }).contains("runs is 0"));
    assert!(refused(BenchPlan { max_tokens: 0, ..good.clone() }).contains("max_tokens is 0"));
    assert!(refused(BenchPlan { cost_rounds: 0, ..good.clone() }).contains("cost_rounds is 0"));
    assert!(refused(plan(&[(Method::Ngram, 16)], &["a"], 1)).contains("max_draft is 16"));
    assert!(refused(plan(&[(Method::Ngram, 2), (Method::Ngram, 2)], &["a"], 1)).contains("named twice"));
    let mut hot = good;
    hot.sampling.temperature = f32::NAN;
    assert!(refused(hot).contains("temperature"));
}
