//! From the turns of a comparison to its report: figures of each lane, identity of texts, the verdict.
//!
//! Pure arithmetic over the figures of [`hunch_core::stats`].

use super::batch::BatchTurn;
use super::report::{
    ComparedAnswer, ComparisonMemory, ComparisonReport, ComparisonSetting, LaneConfig, LaneReport,
    LaneVerdict, LanesLeftOut, Loss, PositionReport, TimeSplit,
};
use super::turn::{LaneAnswer, rates};
use crate::bench::IdentityReport;
use crate::bench::cost_table::CostTable;
use crate::bench::figures;
use crate::bench::identity::{Reference, identity};
use crate::bench::turns::{LaneFigures, Samples, Turn};
use hunch_core::method::Method;
use hunch_core::stats::GenerationStats;
use hunch_error::{Error, ErrorInfo, Refusal, Result};

/// Smallest share of decoding time that a verdict names as a loss.
const NOTICEABLE: f64 = 0.03;

/// Finished turns of lanes whose models were in memory together.
struct MeasuredBatch {
    /// Numbers of the lanes, in the order of the answers.
    lanes: Vec<usize>,
    /// At least one.
    turns: Vec<BatchTurn>,
    /// Costs over all turns, by set of models.
    costs: Vec<(usize, CostTable)>,
}

impl MeasuredBatch {
    /// Returns the place of a lane among the answers.
    fn place_of(&self, lane: usize) -> usize {
        self.lanes.iter().position(|&other| other == lane).expect("the lane is in the batch")
    }

    fn stats(&self, lane: usize) -> Vec<&GenerationStats> {
        let place = self.place_of(lane);
        self.turns.iter().map(|turn| &turn.answers[place].answer.stats).collect()
    }

    /// Drops the answers of all lanes but these.
    fn keep(&mut self, lanes: &[usize]) {
        for turn in &mut self.turns {
            let of = self.lanes.iter().zip(std::mem::take(&mut turn.answers));
            turn.answers = of.filter(|(lane, _)| lanes.contains(lane)).map(|(_, answer)| answer).collect();
        }
        self.lanes.retain(|lane| lanes.contains(lane));
    }

    /// Returns the turns of a lane with its baseline, which comes first.
    fn against(&self, baseline: usize, lane: usize, set: usize) -> Vec<Turn<&LaneAnswer>> {
        let places = [baseline, lane].map(|lane| self.place_of(lane));
        let mut against = Vec::new();
        for BatchTurn { prompt, run, answers, costs } in &self.turns {
            let costs = cost_of(costs, set).clone();
            let answers = places.map(|place| &answers[place]).to_vec();
            against.push(Turn { prompt: *prompt, run: *run, costs, answers });
        }
        against
    }
}

fn cost_of(costs: &[(usize, CostTable)], set: usize) -> &CostTable {
    &costs.iter().find(|(other, _)| *other == set).expect("passes of every set were timed").1
}

/// Measurements of the batches of a comparison. Batches without a finished turn are left out.
#[derive(Default)]
pub(super) struct MeasuredBatches {
    batches: Vec<MeasuredBatch>,
    memory: ComparisonMemory,
}

impl MeasuredBatches {
    /// Adds the finished turns of a batch of lanes.
    pub(super) fn add(
        &mut self,
        lanes: &[usize],
        turns: Vec<BatchTurn>,
        costs: Vec<(usize, CostTable)>,
        memory: ComparisonMemory,
    ) {
        if !turns.is_empty() {
            self.batches.push(MeasuredBatch { lanes: lanes.to_vec(), turns, costs });
            self.memory = self.memory.larger(memory);
        }
    }

    /// Returns whether no lane has finished a turn.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the finished turns of all batches.
    pub(super) fn turns(&self) -> usize {
        self.batches.iter().map(|batch| batch.turns.len()).sum()
    }
}

impl ComparisonMemory {
    /// Returns the larger of each part.
    pub(super) fn max_of_parts(self, other: Self) -> Self {
        Self {
            target_weights: self.target_weights.max(other.target_weights),
            target_cache: self.target_cache.max(other.target_cache),
            draft_weights: self.draft_weights.max(other.draft_weights),
            draft_cache: self.draft_cache.max(other.draft_cache),
            peak: self.peak.max(other.peak),
        }
    }

    /// Returns the one with the larger sum.
    fn larger(self, other: Self) -> Self {
        let sum = |memory: &Self| {
            let draft = memory.draft_weights.unwrap_or(0) + memory.draft_cache.unwrap_or(0);
            memory.target_weights + memory.target_cache + draft
        };
        std::cmp::max_by_key(self, other, sum)
    }
}

/// Builds the report on finished turns. Lanes without one are left out, because of `trouble` or because the comparison
/// was stopped. Lanes that generated nothing, or whose baseline did, are left out too. `set_of` returns the set of models
/// of a lane. The run fills in the time.
///
/// # Errors
/// [`Refusal::NothingMeasured`] if lanes generated nothing, and none but plain decoding is left.
pub(super) fn report(
    setting: ComparisonSetting,
    measured: MeasuredBatches,
    set_of: &dyn Fn(usize) -> usize,
    trouble: Option<&Error>,
) -> Result<ComparisonReport> {
    let MeasuredBatches { batches, memory } = measured;
    let mut lanes = Vec::new();
    let mut measured = Vec::new();
    let mut nothing_measured = None;
    for mut batch in batches {
        let mut reports = Vec::new();
        for &lane in &batch.lanes {
            match lane_report(&setting, lane, set_of(lane), &batch) {
                Ok(report) => reports.push((lane, report)),
                Err(error) => nothing_measured = nothing_measured.or(Some(error)),
            }
        }
        let ran: Vec<usize> = reports.iter().map(|(lane, _)| *lane).collect();
        // Without its baseline a lane has no speedup.
        reports.retain(|(lane, _)| ran.contains(&setting.baseline_of(*lane)));
        batch.keep(&reports.iter().map(|(lane, _)| *lane).collect::<Vec<_>>());
        lanes.extend(reports);
        measured.push(batch);
    }
    if let Some(error) = nothing_measured.take_if(|_| lanes.iter().all(|(_, lane)| lane.verdict.is_none())) {
        return Err(error);
    }
    let error = trouble.or(nothing_measured.as_ref()).map(|error| Box::new(ErrorInfo::from(error)));
    lanes.sort_unstable_by_key(|(lane, _)| *lane);
    // Lanes are numbered again without those that are left out.
    let numbers: Vec<usize> = lanes.iter().map(|(lane, _)| *lane).collect();
    let number_of = |lane: usize| numbers.binary_search(&lane).expect("the lane ran") as u32;
    let all = (0..).zip(&setting.lanes);
    let left_out: Vec<LaneConfig> =
        all.filter(|(lane, _)| !numbers.contains(lane)).map(|(_, config)| config.clone()).collect();
    let left_out = (!left_out.is_empty()).then(|| Box::new(LanesLeftOut { lanes: left_out, error }));
    let identity = texts(&setting, set_of, &measured, &number_of);
    let mut answers: Vec<ComparedAnswer> =
        measured.iter().flat_map(|batch| answers(&setting, batch, &number_of)).collect();
    answers.sort_by_key(|answer| (answer.run, answer.prompt, answer.lane));
    let costs = cost_of(&measured.first().expect("the first batch ran").costs, 0);
    let (target_cost, draft_cost) = (costs.target_cost(), costs.draft_cost());
    let mut recordings = vec![Vec::new(); numbers.len()];
    let separate = measured.len() > 1;
    for MeasuredBatch { lanes, mut turns, .. } in measured {
        let last = turns.pop().expect("a batch has a turn");
        for (lane, answer) in lanes.into_iter().zip(last.answers) {
            recordings[number_of(lane) as usize] = answer.events;
        }
    }
    let lanes = lanes
        .into_iter()
        .map(|(_, report)| LaneReport { baseline: number_of(report.baseline as usize), ..report });
    let lanes: Vec<LaneReport> = lanes.collect();
    let ran = lanes.iter().map(|lane| lane.config.clone()).collect();
    Ok(ComparisonReport {
        server: None,
        setting: ComparisonSetting { lanes: ran, separate, ..setting },
        ended_ms: 0,
        target_cost,
        draft_cost,
        memory,
        lanes,
        identity,
        answers,
        recordings,
        left_out,
    })
}

/// Compares the tokens of each lane with its baseline's, where they must be the same.
fn texts(
    setting: &ComparisonSetting,
    set_of: &dyn Fn(usize) -> usize,
    batches: &[MeasuredBatch],
    number_of: &dyn Fn(usize) -> u32,
) -> Option<IdentityReport> {
    let name = |prompt: usize| (String::new(), setting.prompts[prompt].id.clone());
    let mut all: Option<IdentityReport> = None;
    let lanes = batches.iter().flat_map(|batch| batch.lanes.iter().map(move |&lane| (batch, lane)));
    for (batch, lane) in lanes.filter(|(_, lane)| setting.has_baseline_text(*lane)) {
        let baseline = setting.baseline_of(lane);
        let pair = [baseline, lane].map(|lane| setting.lanes[lane].method_config());
        let against = batch.against(baseline, lane, set_of(lane));
        let mut found = identity(&pair, &against, Reference::SameTurn, name);
        found.differences.iter_mut().for_each(|difference| difference.lane = Some(number_of(lane)));
        all.get_or_insert_default().extend(found);
    }
    all
}

fn answers(
    setting: &ComparisonSetting,
    batch: &MeasuredBatch,
    number_of: &dyn Fn(usize) -> u32,
) -> Vec<ComparedAnswer> {
    let mut answers = Vec::new();
    for turn in &batch.turns {
        for (&lane, answer) in batch.lanes.iter().zip(&turn.answers) {
            let stats = &answer.answer.stats;
            let baseline = &turn.answers[batch.place_of(setting.baseline_of(lane))].answer.stats;
            answers.push(ComparedAnswer {
                prompt: turn.prompt as u32,
                run: turn.run as u32,
                lane: number_of(lane),
                speedup: figures::speedup(baseline, stats),
                stats: stats.clone(),
                stop: answer.stop.clone(),
                text: answer.text.clone(),
                rates: rates(&answer.timeline),
                timeline: answer.timeline.clone(),
            });
        }
    }
    answers
}

fn lane_report(
    setting: &ComparisonSetting,
    lane: usize,
    set: usize,
    batch: &MeasuredBatch,
) -> Result<LaneReport> {
    let config = setting.lanes[lane].clone();
    let baseline = setting.baseline_of(lane);
    let against = batch.against(baseline, lane, set);
    let figures = LaneFigures::of(&against, 1, config.method, Samples::PromptsOrRuns)
        .ok_or_else(|| Refusal::NothingMeasured { method: config.method.to_string() })?;
    let (plain, own) = (batch.stats(baseline), batch.stats(lane));
    let sureness = Sureness::of(&figures.speedups);
    let verdict = || verdict(figures.speedup, sureness, LaneWork::of(&plain), LaneWork::of(&own));
    Ok(LaneReport {
        baseline: baseline as u32,
        text_compared: Some(setting.has_baseline_text(lane)),
        tok_s: figures.tok_s,
        ttft_ms: figures.ttft_ms,
        speedup: figures.speedup,
        speedup_low: figures.speedup_low,
        speedup_high: figures.speedup_high,
        samples: figures.speedups.len() as u32,
        decode_speedup: figures.decode_speedup,
        predicted_speedup: figures.predicted_speedup,
        acceptance_rate: figures.work.counts.acceptance_rate(),
        mean_acceptance_length: figures.work.counts.mean_acceptance_length(),
        positions: positions(&own),
        split: split(&own),
        verdict: (config.method != Method::Plain).then(verdict),
        config,
    })
}

fn positions(stats: &[&GenerationStats]) -> Vec<PositionReport> {
    let mut positions = Vec::<PositionReport>::new();
    for stats in stats {
        for (at, (&drafted, &share)) in
            stats.drafted_at_position.iter().zip(&stats.accepted_at_position).enumerate()
        {
            if positions.len() <= at {
                positions.push(PositionReport::default());
            }
            positions[at].drafted += u64::from(drafted);
            positions[at].accepted += (f64::from(drafted) * share).round() as u64;
        }
    }
    for position in positions.iter_mut().filter(|position| position.drafted > 0) {
        position.share = position.accepted as f64 / position.drafted as f64;
    }
    positions
}

fn split(stats: &[&GenerationStats]) -> TimeSplit {
    let mean = |figure: fn(&GenerationStats) -> f64| {
        stats.iter().map(|stats| figure(stats)).sum::<f64>() / stats.len().max(1) as f64
    };
    let (wall, decode) = (mean(|s| s.wall_ms), mean(figures::decode_ms));
    TimeSplit {
        prefill_ms: (wall - decode).max(0.0),
        propose_ms: mean(|s| s.propose_ms),
        target_ms: mean(|s| s.target_ms),
        verify_ms: mean(|s| s.verify_ms),
        other_ms: mean(|s| s.other_ms),
    }
}

/// Samples on one side of 1 that rule out chance: equal lanes give six of six once in 32 times (a sign test).
const SURE: usize = 6;

/// Agreement of speedup samples on being above or below 1.
#[derive(Clone, Copy, Debug, Default)]
struct Sureness {
    unanimous: bool,
    certain: bool,
}

impl Sureness {
    fn of(speedups: &[f64]) -> Self {
        let one_side = speedups.iter().all(|s| *s > 1.0) || speedups.iter().all(|s| *s < 1.0);
        let unanimous = one_side && speedups.len() > 1;
        Self { unanimous, certain: unanimous && speedups.len() >= SURE }
    }
}

/// Work of a lane, summed over its answers.
#[derive(Clone, Copy, Debug, Default)]
struct LaneWork {
    passes: f64,
    tokens: f64,
    propose_ms: f64,
    target_ms: f64,
    loop_ms: f64,
}

impl LaneWork {
    fn of(stats: &[&GenerationStats]) -> Self {
        stats.iter().fold(Self::default(), |sum, stats| Self {
            passes: sum.passes + f64::from(stats.rounds),
            tokens: sum.tokens + f64::from(stats.rounds + stats.accepted),
            propose_ms: sum.propose_ms + stats.propose_ms,
            target_ms: sum.target_ms + stats.target_ms,
            loop_ms: sum.loop_ms + stats.verify_ms + stats.other_ms,
        })
    }
}

/// Judges a lane against plain: speedup, tokens and cost per pass, and where time is lost compared with single-row
/// passes alone.
fn verdict(speedup: f64, sureness: Sureness, plain: LaneWork, lane: LaneWork) -> LaneVerdict {
    let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
    let one = share(plain.target_ms, plain.passes);
    let decode = lane.propose_ms + lane.target_ms + lane.loop_ms;
    let drafting_share = share(lane.propose_ms, decode);
    let wider_share = share((lane.target_ms - lane.passes * one).max(0.0), decode);
    let loop_share = share(lane.loop_ms, decode);
    let losses =
        [(Loss::Drafting, drafting_share), (Loss::WiderPasses, wider_share), (Loss::Loop, loop_share)];
    let most = losses.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    LaneVerdict {
        speedup,
        unanimous: sureness.unanimous,
        certain: sureness.certain,
        tokens_per_pass: share(lane.tokens, lane.passes),
        pass_cost: share(share(lane.target_ms, lane.passes), one),
        loss: most.filter(|(_, share)| *share >= NOTICEABLE).map_or(Loss::Nothing, |(loss, _)| loss),
        drafting_share,
        wider_share,
        loop_share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::IdentityReport;
    use crate::bench::MethodConfig;
    use crate::bench::compare::export::export;
    use crate::bench::compare::report::{ComparedPrompt, ComparisonFormat, LaneModels, TimedEvent};
    use crate::event::{GenerationEvent, RoundEvent, StopReason, TokenEvent};
    use hunch_core::depth::MaxDraft;
    use hunch_core::pass_cost::PassCost;
    use hunch_core::propose::MethodOptions;
    use hunch_core::rule::AcceptanceRule;
    use hunch_core::sample::SamplingParams;
    use hunch_core::token::{TokenId, TokenOrigin};
    use std::collections::BTreeMap;

    fn token(id: TokenId) -> TokenEvent {
        TokenEvent { id, ..TokenEvent::of_server(format!("<{id}>"), TokenOrigin::Plain, 0) }
    }

    fn answer(
        ids: &[TokenId],
        rounds: u32,
        prefill_ms: f64,
        [propose, target, other]: [f64; 3],
    ) -> LaneAnswer {
        let decode = propose + target + other;
        let stats = GenerationStats {
            generated_tokens: ids.len() as u32,
            rounds,
            accepted: ids.len() as u32 - rounds,
            drafted: 2 * (ids.len() as u32 - rounds),
            wall_ms: prefill_ms + decode,
            ttft_ms: prefill_ms,
            propose_ms: propose,
            target_ms: target,
            other_ms: other,
            decode_tok_s: ids.len() as f64 / decode * 1e3,
            accepted_at_position: vec![0.75, 0.5],
            drafted_at_position: vec![4, 2],
            ..GenerationStats::default()
        };
        let mut round = RoundEvent::of_tokens(0, ids.iter().map(|&id| token(id)).collect());
        round.figures.generated_tokens = ids.len() as u32;
        let events = vec![TimedEvent { at_ms: stats.wall_ms, event: GenerationEvent::Round(round) }];
        LaneAnswer::new(stats, StopReason::EndOfTurn, events)
    }

    fn setting(prompts: usize, temperature: f32) -> ComparisonSetting {
        let prompt =
            |index| ComparedPrompt { id: format!("p{index}"), system: String::new(), text: "t".into() };
        ComparisonSetting {
            target: "big".into(),
            draft: None,
            device: "cpu".into(),
            threads: 2,
            lanes: vec![
                LaneConfig::PLAIN,
                LaneConfig::of(MethodConfig { method: Method::Ngram, max_draft: MaxDraft::Fixed(4) }),
            ],
            prompts: (0..prompts).map(prompt).collect(),
            sampling: SamplingParams { temperature, ..SamplingParams::greedy() },
            rule: AcceptanceRule::Lossless,
            max_tokens: 8,
            runs: 2,
            stop: Vec::new(),
            options: MethodOptions::default(),
            thinking: None,
            slice_tokens: 16,
            separate: false,
        }
    }

    fn costs() -> CostTable {
        CostTable { target: PassCost::new([(1, 1.0), (2, 1.5)]).unwrap(), drafts: BTreeMap::new() }
    }

    fn plain() -> LaneAnswer {
        answer(&[1, 2, 3, 4], 4, 20.0, [0.0, 80.0, 0.0])
    }

    fn turn(prompt: usize, run: usize, lane: LaneAnswer) -> BatchTurn {
        BatchTurn { prompt, run, costs: vec![(0, costs())], answers: vec![plain(), lane] }
    }

    /// Reports the turns of one batch.
    fn report(setting: ComparisonSetting, turns: Vec<BatchTurn>) -> Result<ComparisonReport> {
        let mut measured = MeasuredBatches::default();
        let lanes: Vec<usize> = (0..setting.lanes.len()).collect();
        measured.add(&lanes, turns, vec![(0, costs())], ComparisonMemory::default());
        super::report(setting, measured, &|_| 0, None)
    }

    #[test]
    fn lane_figures_match_a_hand_computed_example() {
        let turns = vec![
            turn(0, 0, answer(&[1, 2, 3, 4], 2, 20.0, [5.0, 50.0, 5.0])),
            turn(0, 1, answer(&[1, 2, 3, 4], 2, 20.0, [5.0, 30.0, 5.0])),
        ];
        let report = report(setting(1, 0.0), turns).unwrap();
        let [plain, lane] = &report.lanes[..] else { panic!("two lanes") };
        assert_eq!((plain.speedup, plain.verdict), (1.0, None));
        // 100 / 80 and 100 / 60; decoding 80 / 60 and 80 / 40.
        assert!((lane.speedup - (1.25 + 100.0 / 60.0) / 2.0).abs() < 1e-12);
        assert!((lane.decode_speedup - (80.0 / 60.0 + 2.0) / 2.0).abs() < 1e-12);
        assert_eq!((lane.samples, lane.mean_acceptance_length, lane.acceptance_rate), (2, 2.0, 0.5));
        assert_eq!(
            lane.split,
            TimeSplit { prefill_ms: 20.0, propose_ms: 5.0, target_ms: 40.0, verify_ms: 0.0, other_ms: 5.0 }
        );
        assert_eq!(lane.positions[1], PositionReport { drafted: 4, accepted: 2, share: 0.5 });
        let verdict = lane.verdict.unwrap();
        assert!(verdict.unanimous && !verdict.certain && verdict.tokens_per_pass == 2.0);
        // Four passes took 80 ms, like four of plain's. Drafting took 10 of 100 ms, and so did the loop.
        assert_eq!((verdict.pass_cost, verdict.wider_share, verdict.drafting_share), (1.0, 0.0, 0.1));
        assert_eq!(report.identity, Some(IdentityReport { compared: 2, differences: Vec::new() }));
        assert_eq!(report.answers.len(), 4);
        assert_eq!(report.answers[3].timeline, [(60.0, 4)]);
        assert_eq!((report.answers[3].text.as_str(), report.recordings.len()), ("<1><2><3><4>", 2));
    }

    #[test]
    fn six_samples_on_one_side_are_certain() {
        let of = |samples: &[f64]| {
            let Sureness { unanimous, certain } = Sureness::of(samples);
            (unanimous, certain)
        };
        assert_eq!(of(&[1.2]), (false, false));
        assert_eq!(of(&[1.2, 1.1]), (true, false));
        assert_eq!(of(&[0.9; 6]), (true, true));
        assert_eq!(of(&[1.1, 1.2, 1.3, 1.1, 1.2, 0.99]), (false, false));
    }

    #[test]
    fn rates_are_slopes_over_recent_rounds() {
        let timeline: Vec<(f64, u32)> = (0..10).map(|i| (100.0 + 50.0 * f64::from(i), 2 * i)).collect();
        let rates = rates(&timeline);
        assert_eq!(rates.len(), 8);
        assert!(rates.iter().all(|(_, rate)| (rate - 40.0).abs() < 1e-9));
        assert!(super::rates(&timeline[..2]).is_empty() && super::rates(&[(1.0, 1); 5]).is_empty());
    }

    #[test]
    fn verdict_names_the_largest_loss() {
        let plain = LaneWork { passes: 100.0, tokens: 100.0, target_ms: 1000.0, ..LaneWork::default() };
        let lane =
            LaneWork { passes: 40.0, tokens: 100.0, propose_ms: 300.0, target_ms: 600.0, loop_ms: 10.0 };
        let judged = verdict(1.1, Sureness::default(), plain, lane);
        assert_eq!((judged.loss, judged.pass_cost, judged.tokens_per_pass), (Loss::Drafting, 1.5, 2.5));
        assert!((judged.wider_share - 200.0 / 910.0).abs() < 1e-12);
        assert_eq!(
            verdict(1.1, Sureness::default(), plain, LaneWork { propose_ms: 10.0, ..lane }).loss,
            Loss::WiderPasses
        );
        let same = LaneWork { loop_ms: 5.0, ..plain };
        assert_eq!(verdict(1.0, Sureness::default(), plain, same).loss, Loss::Nothing);
        let none = verdict(1.0, Sureness::default(), LaneWork::default(), LaneWork::default());
        assert!(none.pass_cost.is_finite() && none.tokens_per_pass.is_finite());
    }

    #[test]
    fn differences_have_a_position_and_sampled_texts_are_not_compared() {
        let turns = || vec![turn(0, 0, answer(&[1, 2, 9, 4], 2, 20.0, [0.0, 40.0, 0.0]))];
        let greedy = report(setting(1, 0.0), turns()).unwrap();
        let [difference] = &greedy.identity.unwrap().differences[..] else { panic!("one differs") };
        assert_eq!(
            (difference.position, difference.method, difference.lane, difference.prompt.as_str()),
            (2, Method::Ngram, Some(1), "p0")
        );
        let sampled = report(setting(1, 0.8), turns()).unwrap();
        assert_eq!(sampled.identity, None);
        let coupled = ComparisonSetting { rule: AcceptanceRule::Coupled, ..setting(1, 0.8) };
        assert!(report(coupled, turns()).unwrap().identity.is_some());
        let lenient = AcceptanceRule::LossyLenience { lenience: 0.5 };
        assert_eq!(
            report(ComparisonSetting { rule: lenient, ..setting(1, 0.0) }, turns()).unwrap().identity,
            None
        );
        // One sample is not unanimous.
        assert!(!sampled.lanes[1].verdict.unwrap().unanimous);
    }

    #[test]
    fn several_prompts_count_with_the_median_of_their_runs() {
        let fast = || answer(&[1, 2, 3, 4], 2, 20.0, [0.0, 30.0, 0.0]);
        let slow = || answer(&[1, 2, 3, 4], 2, 20.0, [0.0, 80.0, 0.0]);
        let turns = vec![turn(0, 0, fast()), turn(1, 0, slow()), turn(0, 1, fast()), turn(1, 1, slow())];
        let report = report(setting(2, 0.0), turns).unwrap();
        assert_eq!((report.lanes[1].samples, report.lanes[1].speedup), (2, 1.5));
        assert!((report.lanes[1].speedup_low - 1.1).abs() < 1e-9);
        assert!(!report.lanes[1].verdict.unwrap().unanimous, "one prompt is as slow as plain");
    }

    /// Plain, its lane with another temperature, and a lane of another target. Plain decoding of that target and of that
    /// temperature are last.
    fn own_settings() -> ComparisonSetting {
        let mut setting = setting(1, 0.0);
        let other = LaneModels { target: "other".into(), draft: Some("small".into()), head: None };
        let lane = setting.lanes[1].clone();
        setting.lanes.push(LaneConfig { temperature: Some(0.8), ..lane.clone() });
        setting.lanes.push(LaneConfig { models: Some(other.clone()), ..lane });
        setting.lanes.push(LaneConfig { temperature: Some(0.8), ..LaneConfig::PLAIN });
        let plain = LaneModels { draft: None, ..other };
        setting.lanes.push(LaneConfig { models: Some(plain), ..LaneConfig::PLAIN });
        setting
    }

    fn fast(ids: &[TokenId]) -> LaneAnswer {
        answer(ids, 2, 20.0, [0.0, 30.0, 0.0])
    }

    /// A turn of the first target's lanes.
    fn first_batch(run: usize) -> BatchTurn {
        let warm_plain = answer(&[5, 6, 7, 8], 4, 20.0, [0.0, 60.0, 0.0]);
        let answers = vec![plain(), fast(&[1, 2, 3, 4]), fast(&[5, 6, 7, 8]), warm_plain];
        BatchTurn { prompt: 0, run, costs: vec![(0, costs())], answers }
    }

    /// A turn of the other target's lanes.
    fn second_batch(run: usize) -> BatchTurn {
        let other_plain = answer(&[7, 8, 9], 3, 40.0, [0.0, 160.0, 0.0]);
        let answers = vec![answer(&[7, 8, 9], 2, 40.0, [10.0, 70.0, 0.0]), other_plain];
        BatchTurn { prompt: 0, run, costs: vec![(1, costs())], answers }
    }

    fn memory(target_weights: u64, draft_weights: Option<u64>) -> ComparisonMemory {
        ComparisonMemory { target_weights, draft_weights, ..ComparisonMemory::default() }
    }

    #[test]
    fn lanes_are_measured_against_plain_decoding_of_their_target_and_temperature() {
        let setting = own_settings();
        let baselines: Vec<usize> = (0..6).map(|lane| setting.baseline_of(lane)).collect();
        assert_eq!(baselines, [0, 0, 4, 5, 4, 5]);
        let compared: Vec<bool> = (0..6).map(|lane| setting.has_baseline_text(lane)).collect();
        assert_eq!(compared, [false, true, false, true, false, false]);
        // The other target ran after the first, in a batch of its own.
        let mut measured = MeasuredBatches::default();
        measured.add(&[0, 1, 2, 4], vec![first_batch(0)], vec![(0, costs())], memory(7, Some(4)));
        measured.add(&[3, 5], vec![second_batch(0)], vec![(1, costs())], memory(9, None));
        assert_eq!((measured.turns(), measured.is_empty()), (2, false));
        let report =
            super::report(setting, measured, &|lane| usize::from([3, 5].contains(&lane)), None).unwrap();
        let speedups: Vec<f64> = report.lanes.iter().map(|lane| lane.speedup).collect();
        // 100 / 50 and 80 / 50 over the first target, 200 / 120 over the other.
        assert_eq!(speedups, [1.0, 2.0, 1.6, 200.0 / 120.0, 1.0, 1.0]);
        assert_eq!(report.lanes.iter().map(|lane| lane.baseline).collect::<Vec<_>>(), [0, 0, 4, 5, 4, 5]);
        assert_eq!(report.lanes.iter().filter(|lane| lane.verdict.is_some()).count(), 3);
        assert_eq!(report.lanes[2].text_compared, Some(false));
        assert_eq!(report.identity, Some(IdentityReport { compared: 2, differences: Vec::new() }));
        // The first batch needed more memory, so its figures are shown.
        assert_eq!((report.memory, report.recordings.len()), (memory(7, Some(4)), 6));
        assert!(report.setting.separate && report.left_out.is_none());
        // Only lanes with the settings of the comparison count for the loaded models.
        let usual: Vec<bool> = report.lanes.iter().map(|lane| lane.config.is_usual()).collect();
        assert_eq!(usual, [true, true, false, false, false, false]);
    }

    #[test]
    fn results_of_earlier_batches_outlast_a_later_one_that_fails_or_is_stopped() {
        let measured = |second: Vec<BatchTurn>| {
            let mut measured = MeasuredBatches::default();
            let turns = vec![first_batch(0), first_batch(1)];
            measured.add(&[0, 1, 2, 4], turns, vec![(0, costs())], memory(7, None));
            measured.add(&[3, 5], second, vec![(1, costs())], memory(9, None));
            measured
        };
        let set_of = |lane| usize::from([3, 5].contains(&lane));
        let broken = Error::Internal("broken".into());
        let setting = own_settings();
        let report = super::report(setting.clone(), measured(Vec::new()), &set_of, Some(&broken)).unwrap();
        let left_out = report.left_out.unwrap();
        assert_eq!(left_out.lanes, [setting.lanes[3].clone(), setting.lanes[5].clone()]);
        assert!(left_out.error.unwrap().message.contains("broken"));
        // The lanes that ran are numbered without the others.
        assert_eq!(report.setting.lanes.len(), 4);
        assert_eq!(report.lanes.iter().map(|lane| lane.baseline).collect::<Vec<_>>(), [0, 0, 3, 3]);
        assert!(report.lanes.iter().all(|lane| lane.samples == 2) && !report.setting.separate);
        assert_eq!((report.answers.len(), report.answers[3].lane, report.memory), (8, 3, memory(7, None)));
        assert!(report.recordings.len() == 4 && report.recordings.iter().all(|events| !events.is_empty()));
        // A batch that was stopped after one of its turns has fewer samples, and no lane is left out.
        let report = super::report(setting.clone(), measured(vec![second_batch(0)]), &set_of, None).unwrap();
        assert_eq!((report.left_out, report.answers.len()), (None, 10));
        assert_eq!(report.lanes.iter().map(|lane| lane.samples).collect::<Vec<_>>(), [2, 2, 2, 1, 2, 1]);
        // One whose lanes generated nothing is left out, with the reason.
        let nothing = || answer(&[], 0, 20.0, [0.0, 0.0, 0.0]);
        let empty = BatchTurn { answers: vec![nothing(), nothing()], ..second_batch(0) };
        let report = super::report(setting, measured(vec![empty]), &set_of, None).unwrap();
        let error = report.left_out.unwrap().error.unwrap();
        assert!(error.message.contains("nothing that could be measured"), "{}", error.message);
    }

    #[test]
    fn lanes_that_generate_nothing_leave_the_results_of_the_others() {
        let setting = own_settings();
        let set_of = |lane| usize::from([3, 5].contains(&lane));
        let report = |silent: &[usize]| {
            let mut turn = first_batch(0);
            for &place in silent {
                turn.answers[place] = answer(&[], 0, 20.0, [0.0, 0.0, 0.0]);
            }
            let mut measured = MeasuredBatches::default();
            measured.add(&[0, 1, 2, 4], vec![turn], vec![(0, costs())], memory(7, None));
            super::report(setting.clone(), measured, &set_of, None)
        };
        let ran = |silent: &[usize]| {
            let report = report(silent).unwrap();
            assert!(report.left_out.unwrap().error.is_some());
            assert_eq!(
                (report.answers.len(), report.recordings.len()),
                (report.lanes.len(), report.lanes.len())
            );
            report.lanes.iter().map(|lane| lane.config.clone()).collect::<Vec<_>>()
        };
        let lane = |number: usize| setting.lanes[number].clone();
        assert_eq!(ran(&[1]), [lane(0), lane(2), lane(4)]);
        // The third answer has its baseline in the fourth.
        assert_eq!(ran(&[3]), [lane(0), lane(1)]);
        assert!(report(&[1, 2]).is_err());
    }

    #[test]
    fn reads_comparisons_of_versions_without_settings_of_lanes() {
        let report = report(setting(1, 0.0), vec![turn(0, 0, plain())]).unwrap();
        let mut old = serde_json::to_value(&report).unwrap();
        old["setting"].as_object_mut().unwrap().remove("separate");
        for lane in old["lanes"].as_array_mut().unwrap() {
            let lane = lane.as_object_mut().unwrap();
            lane.remove("baseline");
            lane.remove("text_compared");
        }
        assert_eq!(old["setting"]["lanes"][1], serde_json::json!({"method": "ngram", "max_draft": 4}));
        let read: ComparisonReport = serde_json::from_value(old).unwrap();
        assert_eq!(read.setting, report.setting);
        assert_eq!((read.lanes[1].baseline, read.lanes[1].text_compared), (0, None));
    }

    #[test]
    fn picture_names_every_lane_with_its_settings() {
        let mut measured = MeasuredBatches::default();
        measured.add(&[0, 1, 2, 4], vec![first_batch(0)], vec![(0, costs())], memory(7, None));
        measured.add(&[3, 5], vec![second_batch(0)], vec![(1, costs())], memory(9, None));
        let set_of = |lane| usize::from([3, 5].contains(&lane));
        let report = super::report(own_settings(), measured, &set_of, None).unwrap();
        let picture = export(&report, ComparisonFormat::Picture).unwrap();
        for name in ["ngram, K 4<", ">temperature 0.8<", ">target other, draft small<", ">target other<"] {
            assert!(picture.contains(name), "{name} is not in {picture}");
        }
        assert!(
            picture.contains("same target and temperature")
                && picture.contains("Largest speedup: ngram, K 4")
        );
        let csv = export(&report, ComparisonFormat::Csv).unwrap();
        assert_eq!(csv.lines().filter(|line| line.ends_with(",0.8,lossless,big,,")).count(), 2, "{csv}");
    }

    #[test]
    fn refuses_answers_without_tokens() {
        let nothing = || answer(&[], 0, 20.0, [0.0, 0.0, 0.0]);
        let answers = vec![nothing(), nothing()];
        let turns = vec![BatchTurn { prompt: 0, run: 0, costs: vec![(0, costs())], answers }];
        let error = report(setting(1, 0.0), turns).unwrap_err();
        assert!(error.to_string().contains("nothing that could be measured"), "{error}");
    }
}
