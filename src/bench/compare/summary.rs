//! From the turns of a comparison to its report: figures of each lane, identity of texts, the verdict.
//!
//! Pure arithmetic over the figures of [`hunch_core::stats`].

use super::report::{
    ComparedAnswer, ComparisonMemory, ComparisonReport, ComparisonSetting, LaneReport, LaneVerdict, Loss,
    PositionReport, TimeSplit,
};
use super::turn::{LaneAnswer, rates};
use crate::bench::cost_table::CostTable;
use crate::bench::figures;
use crate::bench::identity::{Reference, identity};
use crate::bench::turns::{LaneFigures, Samples, Turn};
use crate::generate::Models;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::GenerationStats;
use hunch_error::{Refusal, Result};

/// Smallest share of decoding time that a verdict names as a loss.
const NOTICEABLE: f64 = 0.03;

/// Builds the report. The caller fills in the time.
pub(super) fn report(
    setting: ComparisonSetting,
    costs: &CostTable,
    memory: ComparisonMemory,
    mut turns: Vec<Turn<LaneAnswer>>,
) -> Result<ComparisonReport> {
    let comparable = setting.sampling.temperature == 0.0 || setting.rule == AcceptanceRule::Coupled;
    let name = |prompt: usize| (String::new(), setting.prompts[prompt].id.clone());
    let identity = comparable.then(|| identity(&setting.lanes, &turns, Reference::SameTurn, name));
    let lanes = (0..setting.lanes.len()).map(|lane| lane_report(&setting, lane, &turns));
    let lanes = lanes.collect::<Result<_>>()?;
    let answers = turns.iter().flat_map(answers).collect();
    let recordings =
        turns.pop().map_or_else(Vec::new, |turn| turn.answers.into_iter().map(|a| a.events).collect());
    Ok(ComparisonReport {
        server: None,
        setting,
        ended_ms: 0,
        target_cost: costs.target_cost(),
        draft_cost: costs.draft_cost(),
        memory,
        lanes,
        identity,
        answers,
        recordings,
    })
}

/// Returns the peak of `so_far` and the lanes' current memory.
pub(super) fn more_memory(so_far: ComparisonMemory, lanes: &[Models]) -> ComparisonMemory {
    let larger = |a: Option<u64>, b: Option<u64>| a.max(b);
    lanes.iter().fold(so_far, |so_far, models| {
        let (target, draft) = models.memory();
        ComparisonMemory {
            target_weights: target.weights as u64,
            target_cache: so_far.target_cache.max(target.cache as u64),
            draft_weights: draft.map(|draft| draft.weights as u64),
            draft_cache: larger(so_far.draft_cache, draft.map(|draft| draft.cache as u64)),
            peak: so_far.peak,
        }
    })
}

fn answers(turn: &Turn<LaneAnswer>) -> impl Iterator<Item = ComparedAnswer> {
    let plain = turn.stats(0);
    turn.answers.iter().enumerate().map(move |(lane, answer)| ComparedAnswer {
        prompt: turn.prompt as u32,
        run: turn.run as u32,
        lane: lane as u32,
        speedup: figures::speedup(plain, turn.stats(lane)),
        stats: turn.stats(lane).clone(),
        stop: answer.stop.clone(),
        text: answer.text.clone(),
        rates: rates(&answer.timeline),
        timeline: answer.timeline.clone(),
    })
}

fn lane_report(setting: &ComparisonSetting, lane: usize, turns: &[Turn<LaneAnswer>]) -> Result<LaneReport> {
    let config = setting.lanes[lane];
    let figures = LaneFigures::of(turns, lane, config.method, Samples::PromptsOrRuns)
        .ok_or_else(|| Refusal::NothingMeasured { method: config.method.to_string() })?;
    let stats = |lane: usize| turns.iter().map(|turn| turn.stats(lane)).collect::<Vec<_>>();
    let (plain, own) = (stats(0), stats(lane));
    let sureness = Sureness::of(&figures.speedups);
    let verdict = || verdict(figures.speedup, sureness, Work::of(&plain), Work::of(&own));
    Ok(LaneReport {
        config,
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
struct Work {
    passes: f64,
    tokens: f64,
    propose_ms: f64,
    target_ms: f64,
    loop_ms: f64,
}

impl Work {
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
fn verdict(speedup: f64, sureness: Sureness, plain: Work, lane: Work) -> LaneVerdict {
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
    use crate::bench::compare::report::{ComparedPrompt, TimedEvent};
    use crate::event::{GenerationEvent, RoundEvent, StopReason, TokenEvent};
    use hunch_core::depth::MaxDraft;
    use hunch_core::pass_cost::PassCost;
    use hunch_core::sample::SamplingParams;
    use hunch_core::token::{TokenId, TokenOrigin};
    use std::collections::BTreeMap;

    fn token(id: TokenId) -> TokenEvent {
        TokenEvent {
            id,
            text: format!("<{id}>"),
            origin: TokenOrigin::Plain,
            p: 1.0,
            q: None,
            u: None,
            threshold: None,
            confidence: 1.0,
            entropy: None,
            top: Vec::new(),
            guesses: Vec::new(),
            round: 0,
            position: 0,
        }
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
                MethodConfig { method: Method::Plain, max_draft: MaxDraft::Auto },
                MethodConfig { method: Method::Ngram, max_draft: MaxDraft::Fixed(4) },
            ],
            prompts: (0..prompts).map(prompt).collect(),
            sampling: SamplingParams { temperature, ..SamplingParams::greedy() },
            rule: AcceptanceRule::Lossless,
            max_tokens: 8,
            runs: 2,
            slice_tokens: 16,
        }
    }

    fn costs() -> CostTable {
        CostTable { target: PassCost::new([(1, 1.0), (2, 1.5)]).unwrap(), drafts: BTreeMap::new() }
    }

    fn turn(prompt: usize, run: usize, lane: LaneAnswer) -> Turn<LaneAnswer> {
        Turn {
            prompt,
            run,
            costs: costs(),
            answers: vec![answer(&[1, 2, 3, 4], 4, 20.0, [0.0, 80.0, 0.0]), lane],
        }
    }

    #[test]
    fn lane_figures_match_a_hand_computed_example() {
        let turns = vec![
            turn(0, 0, answer(&[1, 2, 3, 4], 2, 20.0, [5.0, 50.0, 5.0])),
            turn(0, 1, answer(&[1, 2, 3, 4], 2, 20.0, [5.0, 30.0, 5.0])),
        ];
        let report = report(setting(1, 0.0), &costs(), ComparisonMemory::default(), turns).unwrap();
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
        let plain = Work { passes: 100.0, tokens: 100.0, target_ms: 1000.0, ..Work::default() };
        let lane = Work { passes: 40.0, tokens: 100.0, propose_ms: 300.0, target_ms: 600.0, loop_ms: 10.0 };
        let judged = verdict(1.1, Sureness::default(), plain, lane);
        assert_eq!((judged.loss, judged.pass_cost, judged.tokens_per_pass), (Loss::Drafting, 1.5, 2.5));
        assert!((judged.wider_share - 200.0 / 910.0).abs() < 1e-12);
        assert_eq!(
            verdict(1.1, Sureness::default(), plain, Work { propose_ms: 10.0, ..lane }).loss,
            Loss::WiderPasses
        );
        let same = Work { loop_ms: 5.0, ..plain };
        assert_eq!(verdict(1.0, Sureness::default(), plain, same).loss, Loss::Nothing);
        let none = verdict(1.0, Sureness::default(), Work::default(), Work::default());
        assert!(none.pass_cost.is_finite() && none.tokens_per_pass.is_finite());
    }

    #[test]
    fn differences_have_a_position_and_sampled_texts_are_not_compared() {
        let turns = || vec![turn(0, 0, answer(&[1, 2, 9, 4], 2, 20.0, [0.0, 40.0, 0.0]))];
        let memory = ComparisonMemory::default();
        let greedy = report(setting(1, 0.0), &costs(), memory, turns()).unwrap();
        let [difference] = &greedy.identity.unwrap().differences[..] else { panic!("one differs") };
        assert_eq!(
            (difference.position, difference.method, difference.prompt.as_str()),
            (2, Method::Ngram, "p0")
        );
        let sampled = report(setting(1, 0.8), &costs(), memory, turns()).unwrap();
        assert_eq!(sampled.identity, None);
        let coupled = ComparisonSetting { rule: AcceptanceRule::Coupled, ..setting(1, 0.8) };
        assert!(report(coupled, &costs(), memory, turns()).unwrap().identity.is_some());
        // One sample is not unanimous.
        assert!(!sampled.lanes[1].verdict.unwrap().unanimous);
    }

    #[test]
    fn several_prompts_count_with_the_median_of_their_runs() {
        let fast = || answer(&[1, 2, 3, 4], 2, 20.0, [0.0, 30.0, 0.0]);
        let slow = || answer(&[1, 2, 3, 4], 2, 20.0, [0.0, 80.0, 0.0]);
        let turns = vec![turn(0, 0, fast()), turn(1, 0, slow()), turn(0, 1, fast()), turn(1, 1, slow())];
        let report = report(setting(2, 0.0), &costs(), ComparisonMemory::default(), turns).unwrap();
        assert_eq!((report.lanes[1].samples, report.lanes[1].speedup), (2, 1.5));
        assert!((report.lanes[1].speedup_low - 1.1).abs() < 1e-9);
        assert!(!report.lanes[1].verdict.unwrap().unanimous, "one prompt is as slow as plain");
    }

    #[test]
    fn refuses_answers_without_tokens() {
        let nothing = || answer(&[], 0, 20.0, [0.0, 0.0, 0.0]);
        let turns = vec![Turn { prompt: 0, run: 0, costs: costs(), answers: vec![nothing(), nothing()] }];
        let error = report(setting(1, 0.0), &costs(), ComparisonMemory::default(), turns).unwrap_err();
        assert!(error.to_string().contains("nothing that could be measured"), "{error}");
    }
}
