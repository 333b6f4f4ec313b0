//! The controller on machines and acceptance made up for one question each. Recorded rounds are replayed in
//! `tests/depth_replay.rs`.

use proptest::prelude::*;

use super::*;

fn request(limit: usize, unread: usize, remaining: usize) -> DraftRequest {
    DraftRequest { limit, unread, extra_rows: 0, remaining }
}

/// Milliseconds of a plain pass.
const PLAIN: f64 = 10.0;
const CONFIDENCE: f32 = 0.75;

/// A draft model and a machine with constant costs.
#[derive(Clone, Copy)]
struct ConstantCosts {
    /// Milliseconds of a drafted token.
    draft: f64,
    /// Cost of a further row, in plain passes.
    row: f64,
}

impl ConstantCosts {
    /// One round of a chain that is always as confident. `accepts` says whether each position is accepted. Gives
    /// milliseconds and tokens.
    fn round(self, controller: &mut DepthController, accepts: impl Fn(usize) -> bool) -> (f64, usize) {
        let mut plan = controller.plan(0, request(MAX_DRAFT, 0, 1000));
        let mut drafted = plan.max_draft.min(1);
        while drafted > 0 && drafted < plan.max_draft && plan.should_continue(CONFIDENCE) {
            drafted += 1;
        }
        let accepted = (0..drafted).take_while(|&position| accepts(position)).count();
        let seen = Observation {
            work: vec![DraftWork {
                drafted,
                steps: drafted,
                ms: self.draft * drafted as f64,
                ..DraftWork::default()
            }],
            drafted_by: (drafted > 0).then_some(0),
            height: drafted,
            rows: drafted + 1,
            target_ms: PLAIN * (1.0 + self.row * drafted as f64),
            emitted: 1 + accepted,
            tested: (0..drafted.min(accepted + 1)).map(|position| position < accepted).collect(),
            confidence: vec![Some(CONFIDENCE); drafted.min(accepted + 1)],
            ..Observation::default()
        };
        controller.observe(&seen);
        (seen.work[0].ms + seen.target_ms, seen.emitted)
    }

    /// Speedup over plain decoding in `rounds` rounds.
    fn speedup(
        self,
        controller: &mut DepthController,
        rounds: usize,
        accepts: impl Fn(usize, usize) -> bool,
    ) -> f64 {
        let (mut time, mut tokens) = (0.0, 0);
        for round in 0..rounds {
            let (ms, emitted) = self.round(controller, |position| accepts(round, position));
            (time, tokens) = (time + ms, tokens + emitted);
        }
        tokens as f64 * PLAIN / time
    }
}

/// A lookup, which runs no model.
const LOOKUP: DraftTraits = DraftTraits { has_model: false, sampled: false, in_one_pass: false };
/// A draft model that drafts its likeliest tokens.
const MODEL: DraftTraits = DraftTraits { has_model: true, ..LOOKUP };

fn model_controller(machine: ConstantCosts) -> DepthController {
    let mut controller = DepthController::default();
    controller.begin(0, MODEL);
    controller.expect_cost(0, machine.draft / PLAIN);
    controller.expect_row(machine.row);
    controller
}

/// Seven of ten, in an order without a pattern.
fn usually(round: usize, position: usize) -> bool {
    (round * 7919 + position * 104_729) % 1000 < 700
}

const FLAT: ConstantCosts = ConstantCosts { draft: 3.0, row: 0.1 };
const STEEP: ConstantCosts = ConstantCosts { draft: 4.2, row: 0.3 };

proptest! {
    /// The loss stays within the budget for any sequence of acceptances. The first drafts may cost more
    /// than was assumed before anything was measured, which is what the slack is for.
    #[test]
    fn never_loses_more_than_the_budget(
        accepted in prop::collection::vec(0usize..4, 50..400),
        draft in 0.5f64..8.0,
        row in 0.02f64..0.4,
    ) {
        let machine = ConstantCosts { draft, row };
        let mut controller = model_controller(machine);
        let config = DepthConfig::default();
        let (mut time, mut tokens) = (0.0, 0);
        for &accepted in &accepted {
            let (ms, emitted) = machine.round(&mut controller, |position| position < accepted);
            (time, tokens) = (time + ms, tokens + emitted);
            let lost = (time - tokens as f64 * PLAIN) / PLAIN;
            let most = config.loss_allowance + time / PLAIN / config.horizon;
            prop_assert!(lost <= most + 2.0, "lost {lost} plain passes of {most}");
        }
    }
}

#[test]
fn parks_a_draft_that_is_never_accepted() {
    for machine in [FLAT, STEEP] {
        let mut controller = model_controller(machine);
        let first = machine.speedup(&mut controller, 160, |_, _| false);
        assert!(controller.state(0).parked && first > 0.97, "{first}");
        let later = machine.speedup(&mut controller, 1000, |_, _| false);
        assert!(later > 0.985, "{later}");
    }
}

/// A machine whose first passes are slow, as on a first answer: 9 ms that become 4.5 within 20 passes.
#[test]
fn cold_first_passes_do_not_make_drafts_look_cheap() {
    let mut controller = DepthController::default();
    controller.begin(0, DraftTraits { sampled: true, ..MODEL });
    controller.expect_cost(0, 0.05);
    let (mut time, mut tokens) = (0.0, 0.0);
    for round in 0..80 {
        let warmth = 1.0 + (-f64::from(round) / 6.0).exp();
        let drafted = controller.plan(0, request(3, 0, 80)).max_draft.min(2);
        let accepted = usize::from(drafted > 0 && round % 4 == 0);
        let target_ms = 4.5 * warmth * [1.0, 1.4, 1.7][drafted];
        let ms = 0.4 * drafted as f64;
        controller.observe(&Observation {
            work: vec![DraftWork { drafted, steps: drafted, read: 0, ms }],
            drafted_by: (drafted > 0).then_some(0),
            height: drafted,
            rows: 1 + drafted,
            target_ms,
            emitted: 1 + accepted,
            tested: (0..drafted.min(accepted + 1)).map(|position| position < accepted).collect(),
            confidence: vec![None; drafted.min(accepted + 1)],
            ..Observation::default()
        });
        time += (ms + target_ms) / warmth;
        tokens += 1.0 + accepted as f64;
    }
    assert!(controller.state(0).parked);
    assert!((controller.costs.pass(1) / 4.5 - 1.0).abs() < 0.05, "{}", controller.costs.pass(1));
    let speedup = tokens * 4.5 / time;
    assert!(speedup > 0.9, "{speedup}");
}

#[test]
fn resumes_when_drafts_are_accepted_again() {
    let mut controller = model_controller(FLAT);
    FLAT.speedup(&mut controller, 200, |_, _| false);
    assert!(controller.state(0).parked);
    FLAT.speedup(&mut controller, 600, |_, _| true);
    assert!(!controller.state(0).parked);
}

#[test]
fn does_not_read_with_a_draft_that_does_not_fit() {
    for (acceptance, reads) in [(0.05, false), (0.8, true)] {
        let mut controller = model_controller(FLAT);
        controller.expect_acceptance(0, MeasuredAcceptance { acceptance, certainty: 0.7 });
        controller.observe(&Observation { rows: 1, target_ms: PLAIN, emitted: 1, ..Observation::default() });
        assert_eq!(controller.plan(0, request(MAX_DRAFT, 100, 1000)).max_draft > 0, reads, "{acceptance}");
    }
}

/// A round of plain decoding.
fn plain_round(certainty: f32) -> Observation {
    Observation {
        rows: 1,
        target_ms: PLAIN,
        emitted: 1,
        certainty: vec![certainty],
        ..Observation::default()
    }
}

#[test]
fn reads_where_the_target_is_certain() {
    let reads = |acceptance, certainty, rounds| {
        let mut controller = model_controller(ConstantCosts { draft: 3.0, row: 0.25 });
        controller.expect_acceptance(0, MeasuredAcceptance { acceptance, certainty: 0.8 });
        controller.expect_row(0.25);
        (0..rounds).for_each(|_| controller.observe(&plain_round(certainty)));
        controller.plan(0, request(MAX_DRAFT, 90, 64)).max_draft > 0
    };
    assert!(
        reads(0.8, 0.99, 8) && !reads(0.8, 0.6, 8),
        "the draft is accepted as often as the target is certain"
    );
    assert!(!reads(0.1, 0.99, 8), "a draft that does not fit is rejected on certain text too");
    assert!(reads(0.99, 0.6, 1) && !reads(0.99, 0.6, 32), "the text counts more than the measured one");
}

#[test]
fn tests_replace_what_the_certainty_promised() {
    let mut controller = model_controller(FLAT);
    controller.expect_acceptance(0, MeasuredAcceptance { acceptance: 0.8, certainty: 0.8 });
    let rejected = |certainty| Observation {
        work: vec![DraftWork { drafted: 1, steps: 1, ms: 3.0, ..DraftWork::default() }],
        drafted_by: Some(0),
        height: 1,
        rows: 2,
        tested: vec![false],
        ..plain_round(certainty)
    };
    controller.observe(&plain_round(0.99));
    assert!(controller.plan(0, request(MAX_DRAFT, 60, 1000)).max_draft > 0);
    (0..8).for_each(|_| controller.observe(&rejected(0.99)));
    assert_eq!(controller.plan(0, request(MAX_DRAFT, 60, 1000)).max_draft, 0);
}

#[test]
fn ignores_measurements_that_are_not_numbers() {
    let mut controller = model_controller(FLAT);
    let before = controller.state(0);
    controller.expect_acceptance(0, MeasuredAcceptance { acceptance: f64::NAN, certainty: 0.5 });
    controller.expect_acceptance(0, MeasuredAcceptance { acceptance: 0.5, certainty: 1.5 });
    controller.expect_row(f64::NAN);
    assert_eq!(controller.state(0), before);
    controller.expect_acceptance(0, MeasuredAcceptance { acceptance: 0.0, certainty: 0.0 });
    controller.observe(&plain_round(0.0));
    assert!(controller.state(0).gains.iter().all(|gain| gain.is_finite()));
}

#[test]
fn measured_rows_show_steep_passes_before_the_first_draft() {
    for (row, reads) in [(0.05, true), (0.45, false)] {
        let mut controller = model_controller(STEEP);
        controller.expect_row(row);
        controller.observe(&plain_round(1.0));
        assert_eq!(
            controller.plan(0, request(MAX_DRAFT, 150, 1000)).max_draft > 0,
            reads,
            "{row} plain passes a row"
        );
    }
}

#[test]
fn keeps_drafting_after_four_rejected_rounds() {
    let mut controller = model_controller(FLAT);
    FLAT.speedup(&mut controller, 80, |round, position| round >= 4 && usually(round, position));
    assert!(!controller.state(0).parked);
}

#[test]
fn drafts_deep_when_every_token_is_accepted() {
    let machine = ConstantCosts { draft: 1.0, row: 0.02 };
    let mut controller = model_controller(machine);
    machine.speedup(&mut controller, 80, |_, _| true);
    assert!(controller.plan(0, request(MAX_DRAFT, 0, 1000)).max_draft >= 14);
    assert!(controller.state(0).gains[3] > 3.0);
}

#[test]
fn comes_near_the_best_fixed_depth() {
    let fixed = |depth: usize| {
        let tokens: usize = (0..600).map(|r| 1 + (0..depth).take_while(|&p| usually(r, p)).count()).sum();
        tokens as f64 / (600.0 * (0.3 * depth as f64 + 1.0 + 0.1 * depth as f64))
    };
    let best = (0..=MAX_DRAFT).map(fixed).fold(0.0, f64::max);
    let mut controller = model_controller(FLAT);
    FLAT.speedup(&mut controller, 60, usually);
    let auto = FLAT.speedup(&mut controller, 600, usually);
    assert!(auto > 0.95 * best, "{auto} of {best}");
}

#[test]
fn measures_a_plain_pass_at_intervals() {
    let mut controller = model_controller(FLAT);
    let mut since_plain = 0;
    for _ in 0..400 {
        let drafted = controller.plan(0, request(MAX_DRAFT, 0, 1000)).max_draft;
        since_plain = if drafted == 0 { 0 } else { since_plain + 1 };
        assert!(since_plain <= 128);
        FLAT.round(&mut controller, |_| true);
    }
}

/// A block costs the same whatever its length, so a long draft pays where one that takes a pass for each token does not.
#[test]
fn a_draft_in_one_pass_grows_at_no_further_cost() {
    let costly = ConstantCosts { draft: 6.0, row: 0.0 };
    let drafted = |in_one_pass| {
        let mut controller = model_controller(costly);
        controller.begin(0, DraftTraits { in_one_pass, ..MODEL });
        let mut longest = 0;
        for round in 0..200 {
            let mut plan = controller.plan(0, request(8, 0, 1000));
            let mut drafted = plan.max_draft.min(1);
            while drafted > 0 && drafted < plan.max_draft && plan.should_continue(0.7) {
                drafted += 1;
            }
            longest = longest.max(if round < 100 { 0 } else { drafted });
            let accepted = (0..drafted).take_while(|&position| usually(round, position)).count();
            let passes = if in_one_pass { drafted.min(1) } else { drafted };
            controller.observe(&Observation {
                work: vec![DraftWork {
                    drafted,
                    steps: drafted,
                    ms: costly.draft * passes as f64,
                    ..DraftWork::default()
                }],
                drafted_by: (drafted > 0).then_some(0),
                height: drafted,
                rows: drafted + 1,
                target_ms: PLAIN,
                emitted: accepted + 1,
                tested: (0..drafted.min(accepted + 1)).map(|position| position < accepted).collect(),
                confidence: vec![Some(0.7); drafted.min(accepted + 1)],
                ..Observation::default()
            });
        }
        longest
    };
    assert!(drafted(true) >= 6, "{} tokens", drafted(true));
    assert!(drafted(false) <= 2, "{} tokens", drafted(false));
}

#[test]
fn parks_a_tree_without_a_profitable_row() {
    let mut controller = model_controller(FLAT);
    FLAT.speedup(&mut controller, 60, |_, _| true);
    let mut asked = 0;
    for _ in 0..400 {
        let drafts = controller.plan(0, request(MAX_DRAFT, 0, 1000)).max_draft > 0;
        asked += usize::from(drafts);
        let propose_ms = if drafts { 3.0 } else { 0.0 };
        controller.observe(&Observation {
            work: vec![DraftWork { steps: usize::from(drafts), ms: propose_ms, ..DraftWork::default() }],
            rows: 1,
            target_ms: PLAIN,
            emitted: 1,
            ..Observation::default()
        });
    }
    // Savings may be lost again, up to the cap of the budget: 15 plain passes, at 0.3 each time.
    assert!(asked < 50, "asked {asked} times");
}

#[test]
fn reads_a_conversation_only_when_that_can_pay() {
    let mut controller = model_controller(FLAT);
    FLAT.speedup(&mut controller, 60, usually);
    assert!(controller.plan(0, request(8, 100, 1000)).max_draft > 0);
    assert_eq!(controller.plan(0, request(8, 100_000, 1000)).max_draft, 0);
    assert_eq!(controller.plan(0, request(8, 100, 2)).max_draft, 0, "two tokens repay nothing");
}

#[test]
fn waits_before_reading_again_after_a_loss() {
    let mut controller = model_controller(FLAT);
    let (mut reads, mut unread) = (Vec::new(), 60);
    for round in 0..400 {
        let drafted = controller.plan(0, request(MAX_DRAFT, unread, 1000)).max_draft.min(1);
        let read = if drafted > 0 && unread > FREE_READ { unread } else { 0 };
        if read > 0 {
            reads.push((round, read));
        }
        controller.observe(&Observation {
            work: vec![DraftWork {
                drafted,
                steps: drafted,
                read,
                ms: 3.0 * drafted as f64 + 0.4 * read as f64,
            }],
            drafted_by: (drafted > 0).then_some(0),
            height: drafted,
            rows: drafted + 1,
            target_ms: PLAIN + drafted as f64,
            emitted: 1,
            tested: vec![false; drafted],
            ..Observation::default()
        });
        unread = if drafted > 0 { 1 } else { unread + 1 };
    }
    let tokens: usize = reads.iter().map(|(_, read)| read).sum();
    assert!(reads.len() <= 3 && tokens <= 300, "rounds and tokens of readings: {reads:?}");
}

/// Answers of 64 tokens. Only their second halves are easy to draft, so at the end of each one the draft seems to repay
/// reading the next prompt. Reading takes twice as long as expected.
#[test]
fn stops_reading_prompts_that_short_answers_do_not_repay() {
    let machine = ConstantCosts { draft: 3.0, row: 0.4 };
    let mut controller = model_controller(machine);
    controller.expect_acceptance(0, MeasuredAcceptance { acceptance: 0.95, certainty: 0.95 });
    let mut answers = Vec::new();
    for answer in 0..16 {
        let (mut unread, mut remaining) = (60, 64_usize);
        while remaining > 0 {
            let easy = remaining <= 32;
            let mut plan = controller.plan(0, request(MAX_DRAFT.min(remaining - 1), unread, remaining));
            let mut drafted = plan.max_draft.min(1);
            while drafted > 0 && drafted < plan.max_draft && plan.should_continue(CONFIDENCE) {
                drafted += 1;
            }
            let accepted = if easy { drafted } else { drafted.min(remaining % 2) };
            let read = if drafted > 0 && unread > FREE_READ { unread } else { 0 };
            if read > 0 {
                answers.push(answer);
            }
            let seen = Observation {
                work: vec![DraftWork {
                    drafted,
                    steps: drafted,
                    read,
                    ms: machine.draft * drafted as f64 + 2.4 * read as f64,
                }],
                drafted_by: (drafted > 0).then_some(0),
                height: drafted,
                rows: drafted + 1,
                target_ms: PLAIN * (1.0 + machine.row * drafted as f64),
                emitted: 1 + accepted,
                tested: (0..drafted.min(accepted + 1)).map(|position| position < accepted).collect(),
                confidence: vec![Some(CONFIDENCE); drafted.min(accepted + 1)],
                certainty: Vec::new(),
            };
            controller.observe(&seen);
            remaining -= 1 + accepted;
            unread = if drafted > 0 { 1 } else { unread + 1 };
        }
    }
    // One for the allowance, and few for what is saved in between.
    assert!((1..=3).contains(&answers.len()), "read for the answers {answers:?}");
}

/// A lookup: confident drafts are right, others are not.
#[test]
fn evaluates_a_free_draft_when_it_exists() {
    let mut controller = DepthController::default();
    controller.begin(0, LOOKUP);
    for round in 0..200 {
        let asked = controller.plan(0, request(8, 0, 1000)).max_draft;
        let sure = round % 2 == 0;
        let confidence = vec![Some(if sure { 0.95 } else { 0.15 }); asked];
        let kept = controller.keep(0, &confidence, None);
        let accepted = if sure { kept } else { 0 };
        let tested = kept.min(accepted + 1);
        controller.observe(&Observation {
            work: vec![DraftWork { drafted: asked, steps: asked, ms: 0.01, ..DraftWork::default() }],
            drafted_by: (kept > 0).then_some(0),
            height: kept,
            rows: kept + 1,
            target_ms: PLAIN * (1.0 + 0.1 * kept as f64),
            emitted: 1 + accepted,
            tested: (0..tested).map(|position| position < accepted).collect(),
            confidence: confidence[..tested].to_vec(),
            ..Observation::default()
        });
    }
    assert_eq!(controller.keep(0, &[Some(0.95); 6], None), 6);
    assert!(!controller.state(0).parked);
    assert_eq!(controller.keep(0, &[Some(0.15); 6], None), 0);
    assert!(controller.state(0).parked);
}

#[test]
fn yields_to_a_proposer_that_expects_more_tokens() {
    let mut controller = DepthController::default();
    controller.begin(0, LOOKUP);
    controller.plan(0, request(8, 0, 1000));
    controller.observe(&Observation { rows: 1, target_ms: PLAIN, emitted: 1, ..Observation::default() });
    assert!(controller.keep(0, &[Some(0.5); 2], None) > 0);
    assert_eq!(controller.keep(0, &[Some(0.5); 2], Some(ExpectedRound { tokens: 4.0, ms: 14.0 })), 0);
}

#[test]
fn an_unlikely_token_ends_a_draft_unless_it_was_sampled() {
    for sampled in [false, true] {
        let machine = ConstantCosts { draft: 0.3, row: 0.02 };
        let mut controller = model_controller(machine);
        machine.speedup(&mut controller, 40, |round, position| (round + position) % 4 > 0);
        controller.begin(0, DraftTraits { sampled, ..MODEL });
        let mut plan = controller.plan(0, request(MAX_DRAFT, 0, 1000));
        assert_eq!((plan.max_draft > 0, plan.should_continue(0.05)), (true, sampled));
    }
    assert!(DraftPlan::fixed(4).should_continue(0.0));
}

/// A controller of a lookup, or of a head that drafts one token, before a draft model.
fn before_a_draft_model(first_has_model: bool) -> DepthController {
    let mut controller = DepthController::default();
    controller.begin(0, if first_has_model { MODEL } else { LOOKUP });
    controller.begin(1, MODEL);
    controller.expect_cost(0, if first_has_model { 0.05 } else { 0.0 });
    controller.expect_cost(1, 0.2);
    controller.expect_row(0.05);
    controller.expect_acceptance(1, MeasuredAcceptance { acceptance: 0.9, certainty: 0.9 });
    controller.observe(&plain_round(0.95));
    controller
}

/// A round in which the first of two proposers drafts `height` tokens, of which `accepted` are accepted.
fn round_of_the_first(has_model: bool, height: usize, accepted: usize) -> Observation {
    let ms = if has_model { 0.05 * PLAIN } else { 0.0 };
    Observation {
        work: vec![DraftWork { drafted: height, steps: 1, read: 0, ms }, DraftWork::default()],
        drafted_by: Some(0),
        height,
        rows: 1 + height,
        target_ms: PLAIN * (1.0 + 0.05 * height as f64),
        emitted: 1 + accepted,
        certainty: vec![0.95; 1 + accepted],
        tested: (0..height.min(accepted + 1)).map(|i| i < accepted).collect(),
        confidence: vec![None; height.min(accepted + 1)],
    }
}

#[test]
fn reading_waits_for_other_proposers() {
    let reads = |controller: &mut DepthController| controller.plan(1, request(8, 3000, 1000)).max_draft > 0;
    let mut controller = before_a_draft_model(false);
    assert!(!reads(&mut controller), "the lookup had no turn");
    (0..12).for_each(|_| controller.observe(&plain_round(0.95)));
    assert!(reads(&mut controller), "it found nothing");
    controller.begin(1, MODEL);
    assert!(!reads(&mut controller), "an answer later");
}

#[test]
fn tokens_that_a_lookup_drafts_repay_no_reading() {
    let mut controller = before_a_draft_model(false);
    for _ in 0..12 {
        controller.observe(&round_of_the_first(false, 8, 8));
        controller.observe(&plain_round(0.95));
    }
    assert_eq!(controller.plan(1, request(8, 3000, 1000)).max_draft, 0);
}

#[test]
fn a_draft_model_that_is_better_than_a_head_reads() {
    let mut controller = before_a_draft_model(true);
    (0..24).for_each(|round| controller.observe(&round_of_the_first(true, 1, round % 2)));
    controller.observe(&plain_round(0.95));
    assert!(
        controller.plan(1, request(8, 100, 1000)).max_draft > 0,
        "half of the head's tokens are rejected"
    );
    let mut controller = before_a_draft_model(true);
    (0..24).for_each(|_| controller.observe(&round_of_the_first(true, 5, 5)));
    assert_eq!(controller.plan(1, request(8, 100, 1000)).max_draft, 0, "the head is as good");
}
