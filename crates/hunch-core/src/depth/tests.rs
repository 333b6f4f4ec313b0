//! What depths are chosen round by round, against machines and acceptance made up for one question each.

use super::*;

/// Runs rounds against a machine with these costs and this acceptance, and gives the time of all
/// rounds and the tokens.
fn run(
    controller: &mut DepthController,
    rounds: usize,
    (draft_ms, slope): (f64, f64),
    accepts: impl Fn(usize, usize) -> bool,
) -> (f64, f64) {
    let (mut time, mut tokens) = (0.0, 0.0);
    for round in 0..rounds {
        let plan = controller.plan(MAX_DRAFT, 0, 0);
        let drafted = plan.max_draft;
        let accepted = (0..drafted).take_while(|&position| accepts(round, position)).count();
        let (propose_ms, target_ms) = (draft_ms * drafted as f64, 10.0 * (1.0 + slope * drafted as f64));
        let seen = Observation {
            drafted,
            passes: drafted,
            acted: drafted > 0,
            height: drafted,
            propose_ms,
            rows: drafted + 1,
            target_ms,
            round_ms: propose_ms + target_ms,
            emitted: 1 + accepted,
            tested: (0..drafted.min(accepted + 1)).map(|position| position < accepted).collect(),
            ..Observation::default()
        };
        time += seen.round_ms;
        tokens += 1.0 + accepted as f64;
        controller.observe(&seen);
    }
    (time, tokens)
}

#[test]
fn a_draft_that_is_never_right_is_parked_and_costs_next_to_nothing() {
    let mut controller = DepthController::new();
    let (time, tokens) = run(&mut controller, 128, (4.0, 0.1), |_, _| false);
    assert!(controller.state().parked);
    assert!(tokens * 10.0 / time > 0.96, "{} of plain's speed", tokens * 10.0 / time);
    // From then on it stays parked, and probes have their share only.
    let (time, tokens) = run(&mut controller, 1000, (4.0, 0.1), |_, _| false);
    assert!(tokens * 10.0 / time > 0.985, "{} of plain's speed", tokens * 10.0 / time);
}

/// The bytes its passes read tell that it cannot pay: no time is spent on finding that out.
#[test]
fn a_draft_that_is_known_to_be_dear_waits_until_a_probe_is_paid_for() {
    let mut controller = DepthController::new();
    controller.expect_cost(Some(0.6));
    let (time, tokens) = run(&mut controller, 40, (6.0, 0.1), |_, _| true);
    assert_eq!((time, tokens), (400.0, 40.0));
    // It was wrong to wait: a probe finds that out.
    run(&mut controller, 600, (6.0, 0.1), |_, _| true);
    assert!(!controller.state().parked);
}

/// A draft that is sure of itself and wrong: what was drafted to look again is tested, paid for, and no reason
/// to draft on.
#[test]
fn confidence_that_deceives_does_not_wake_what_is_parked() {
    let mut controller = DepthController::new();
    controller.expect_cost(Some(0.55));
    let (mut time, mut probes) = (0.0, 0);
    for _ in 0..1000 {
        let asked = controller.plan(MAX_DRAFT, 0, 0).max_draft.min(1);
        let confidence = vec![Some(0.97); asked];
        let kept = controller.keep(&confidence, None);
        probes += kept;
        let seen = Observation {
            drafted: asked,
            passes: asked,
            acted: kept > 0,
            height: kept,
            propose_ms: 5.5 * asked as f64,
            rows: kept + 1,
            target_ms: 10.0 + 0.5 * kept as f64,
            tested: vec![false; kept],
            confidence,
            ..Observation::default()
        };
        time += seen.propose_ms + seen.target_ms;
        controller.observe(&seen);
        assert!(controller.state().parked);
    }
    assert!((1..=12).contains(&probes), "{probes} probes");
    assert!(1000.0 * 10.0 / time > 0.985, "{} of plain's speed", 10_000.0 / time);
}

/// What can be right often is not given up because it begins badly.
#[test]
fn a_bad_beginning_is_not_believed_at_once() {
    let mut controller = DepthController::new();
    let accepts =
        |round: usize, position: usize| round >= 5 && (round * 7919 + position * 104_729) % 1000 < 700;
    run(&mut controller, 80, (3.0, 0.05), accepts);
    assert!(!controller.state().parked);
}

/// Two of the first nine are right, later two of three.
#[test]
fn a_bad_beginning_is_not_believed_for_long_either() {
    let mut controller = DepthController::new();
    let accepts = |round: usize, _: usize| {
        if round < 10 { round == 4 || round == 8 } else { !round.is_multiple_of(3) }
    };
    run(&mut controller, 60, (3.0, 0.1), accepts);
    assert!(!controller.state().parked);
}

/// Second tokens failed at first, so that drafts end before them: what they are worth now has to be seen all the same.
#[test]
fn a_position_that_failed_is_tried_again() {
    let mut controller = DepthController::new();
    let mut drafted = [0; 80];
    for (round, drafted) in drafted.iter_mut().enumerate() {
        let mut plan = controller.plan(MAX_DRAFT, 0, 0);
        let mut depth = plan.max_draft.min(1);
        while depth > 0 && depth < plan.max_draft && plan.goes_on(0.95) {
            depth += 1;
        }
        *drafted = if round < 8 { depth.min(2) } else { depth };
        let kept = if round < 8 { (*drafted).min(1) } else { *drafted };
        let tested = (*drafted).min(kept + 1);
        controller.observe(&Observation {
            drafted: *drafted,
            passes: *drafted,
            acted: *drafted > 0,
            height: *drafted,
            propose_ms: 2.8 * *drafted as f64,
            rows: *drafted + 1,
            target_ms: 10.0 + *drafted as f64,
            round_ms: 10.0 + 3.8 * *drafted as f64,
            emitted: 1 + kept,
            tested: (0..tested).map(|position| position < kept).collect(),
            confidence: vec![Some(0.95); tested],
            ..Observation::default()
        });
    }
    assert!(drafted[8..11].iter().all(|&depth| depth < 2), "{drafted:?}");
    assert!(drafted[60..].iter().sum::<usize>() > 60, "{drafted:?}");
}

/// However many tokens were drafted, as siblings or only to be cut off: a position that none of them reached in the
/// target's pass becomes stale.
#[test]
fn what_no_draft_reaches_is_forgotten_though_many_were_drafted() {
    let mut controller = DepthController::new();
    let mut verified = |drafted: usize, tested: &[bool]| {
        controller.observe(&Observation {
            drafted,
            passes: 1,
            acted: true,
            height: tested.len(),
            propose_ms: 3.0,
            rows: 1 + drafted,
            target_ms: 12.0,
            tested: tested.to_vec(),
            ..Observation::default()
        });
        controller.reached()[1]
    };
    let failed = (0..8).map(|_| verified(2, &[true, false])).last().unwrap();
    let forgotten = (0..40).map(|_| verified(6, &[true])).last().unwrap();
    assert!(failed < 0.2 && forgotten > 0.8, "{failed} then {forgotten}");
}

/// Where drafts are drawn from their law, an unlikely token says little: it was drawn because nothing is likely.
#[test]
fn an_unlikely_token_ends_a_draft_unless_chance_drew_it() {
    for by_chance in [false, true] {
        let mut controller = DepthController::new();
        run(&mut controller, 40, (0.3, 0.02), |round, position| (round + position) % 4 > 0);
        controller.begin(by_chance);
        let mut plan = controller.plan(MAX_DRAFT, 0, 0);
        assert_eq!((plan.max_draft > 0, plan.goes_on(0.05)), (true, by_chance));
    }
}

/// What luck promises is no measure of what a token more has to bring: no draft would reach it, and each would end
/// after its first token.
#[test]
fn how_deep_it_goes_is_measured_by_what_was_had() {
    let mut controller = DepthController::new();
    run(&mut controller, 100, (3.0, 0.1), |round, position| (round * 7919 + position * 104_729) % 1000 < 700);
    let shares = controller.positions.iter_mut().chain(controller.classes.as_flattened_mut());
    for (i, share) in shares.enumerate() {
        // All that was drafted passed of late; what the draft is sure of, seven times in ten.
        (0..200).for_each(|test| share.add(i < MAX_DRAFT || test % 10 > 2));
    }
    assert!(controller.state().gains[7] > 1.8);
    assert!(controller.plan(MAX_DRAFT, 0, 0).goes_on(0.95));
}

/// Where a draft costs time it was decided whether to ask for it; that its token is not worth a row is no rest.
#[test]
fn a_dear_draft_that_is_cut_is_no_reason_to_rest() {
    let mut controller = DepthController::new();
    run(&mut controller, 60, (3.0, 0.1), |round, _| round % 4 != 0);
    controller.plan(MAX_DRAFT, 0, 0);
    assert_eq!(controller.keep(&[Some(0.01)], None), 0);
    assert!(!controller.state().parked);
}

/// A draft model that rests would have to read all that was said since: a promise that a little noise makes is
/// not enough for that.
#[test]
fn noise_does_not_make_a_resting_draft_model_read() {
    let mut controller = DepthController::new();
    let mut reads = 0;
    let mut unread = 57;
    for round in 0..400 {
        let asked = controller.plan(MAX_DRAFT, unread, 0).max_draft.min(1);
        reads += usize::from(asked > 0 && unread > FEW);
        // A pass of a row takes up to 4% more or less than it should.
        let noise = 1.0 + 0.04 * f64::from(round * 37 % 21 - 10) / 10.0;
        controller.observe(&Observation {
            drafted: asked,
            passes: asked,
            read: if asked > 0 { unread } else { 0 },
            acted: asked > 0,
            height: asked,
            propose_ms: if asked > 0 { 2.8 + 0.37 * unread as f64 } else { 0.0 },
            rows: asked + 1,
            target_ms: if asked > 0 { 10.2 } else { 10.0 * noise },
            // A quarter is accepted: just what drafting costs.
            tested: vec![round % 4 == 0; asked],
            ..Observation::default()
        });
        unread = if asked > 0 { 0 } else { unread + 1 };
    }
    assert!(reads <= 2, "read {reads} times");
}

/// Drafts were timed when the machine was fast; that plain passes are slow now does not make them pay.
#[test]
fn a_machine_that_becomes_slow_does_not_wake_what_is_parked() {
    let mut controller = DepthController::new();
    run(&mut controller, 64, (3.0, 0.05), |_, _| false);
    assert!(controller.state().parked);
    for _ in 0..200 {
        let asked = controller.plan(MAX_DRAFT, 500, 0).max_draft;
        assert!(asked == 0 && controller.state().parked);
        controller.observe(&Observation { rows: 1, target_ms: 18.0, ..Observation::default() });
    }
}

/// A promise just above break-even, and a machine that does not keep it: passes over a draft take longer
/// when the tokens come out than those that were measured.
#[test]
fn little_is_lost_to_a_promise_that_does_not_hold() {
    let accepts = |round: usize, position: usize| (round * 7919 + position * 104_729) % 1000 < 640;
    let mut controller = DepthController::new();
    let (mut time, mut tokens) = (0.0, 0.0);
    for part in 0..40 {
        // Drafting wins a little for ten rounds and loses more for the next ten.
        let draft_ms = if part % 2 == 0 { 4.0 } else { 8.0 };
        let (t, n) = run(&mut controller, 10, (draft_ms, 0.1), accepts);
        (time, tokens) = (time + t, tokens + n);
    }
    assert!(tokens * 10.0 / time > 0.97, "{} of plain's speed", tokens * 10.0 / time);
}

/// Plain decoding has become faster, and drafts have not: seen soon where little was won.
#[test]
fn what_plain_decoding_costs_is_looked_at_often_where_it_decides() {
    let mut controller = DepthController::new();
    // Beginning with luck: what fails at first is parked, whatever it is worth.
    let accepts = |round: usize, position: usize| ((round + 4) * 7919 + position * 104_729) % 1000 < 700;
    run(&mut controller, 60, (4.0, 0.1), accepts);
    assert!(!controller.state().parked);
    let mut drafted = 0;
    for round in 0..60 {
        let asked = controller.plan(MAX_DRAFT, 0, 0).max_draft;
        drafted += usize::from(asked > 0);
        let kept = (0..asked).take_while(|&position| accepts(round, position)).count();
        controller.observe(&Observation {
            drafted: asked,
            passes: asked,
            acted: asked > 0,
            height: asked,
            propose_ms: 4.0 * asked as f64,
            rows: asked + 1,
            target_ms: if asked == 0 { 6.0 } else { 10.0 + asked as f64 },
            tested: (0..asked.min(kept + 1)).map(|position| position < kept).collect(),
            ..Observation::default()
        });
    }
    assert!(drafted < 40, "drafted in {drafted} of 60 rounds");
}

#[test]
fn a_draft_that_is_always_right_is_drafted_deep() {
    let mut controller = DepthController::new();
    run(&mut controller, 60, (1.0, 0.02), |_, _| true);
    assert!(controller.plan(MAX_DRAFT, 0, 0).max_draft >= 14);
    assert!(!controller.state().parked);
    assert!(controller.state().gains[3] > 3.0);
}

/// Against every fixed depth on the same machine: acceptance 0.7, as a fixed sequence.
#[test]
fn it_finds_the_depth_that_pays_most() {
    let accepts = |round: usize, position: usize| (round * 7919 + position * 104_729) % 1000 < 700;
    let fixed = |depth: usize| {
        let tokens: usize = (0..600).map(|r| 1 + (0..depth).take_while(|&p| accepts(r, p)).count()).sum();
        tokens as f64 / (600.0 * (3.0 * depth as f64 + 10.0 * (1.0 + 0.1 * depth as f64)))
    };
    let best = (0..=MAX_DRAFT).map(fixed).fold(0.0, f64::max);
    let mut controller = DepthController::new();
    run(&mut controller, 60, (3.0, 0.1), accepts);
    let (time, tokens) = run(&mut controller, 600, (3.0, 0.1), accepts);
    assert!(tokens / time > 0.97 * best, "{} of {best}", tokens / time);
}

#[test]
fn it_wakes_up_when_drafting_begins_to_pay() {
    let mut controller = DepthController::new();
    run(&mut controller, 200, (4.0, 0.1), |_, _| false);
    assert!(controller.state().parked);
    run(&mut controller, 600, (4.0, 0.1), |_, _| true);
    assert!(!controller.state().parked);
}

/// What was accepted before promises much, and yet the tree finds nothing worth its rows.
#[test]
fn asking_in_vain_is_given_up() {
    let mut controller = DepthController::new();
    run(&mut controller, 60, (3.0, 0.1), |_, _| true);
    let mut asked = 0;
    for _ in 0..400 {
        let vain = controller.plan(MAX_DRAFT, 0, 0).max_draft > 0;
        asked += usize::from(vain);
        let propose_ms = if vain { 3.0 } else { 0.0 };
        controller.observe(&Observation { propose_ms, rows: 1, target_ms: 10.0, ..Observation::default() });
    }
    assert!(controller.state().parked);
    assert!(asked < 12, "asked {asked} times");
    run(&mut controller, 600, (3.0, 0.1), |_, _| true);
    assert!(!controller.state().parked, "and taken up again");
    // Now and then there is nothing to draft; that is no reason to rest.
    let mut parked = 0;
    for round in 0..200 {
        let plan = controller.plan(MAX_DRAFT, 0, 0);
        let drafted = if round % 10 == 0 { 0 } else { plan.max_draft };
        parked += u32::from(controller.state().parked);
        controller.observe(&Observation {
            drafted,
            passes: drafted,
            acted: drafted > 0,
            height: drafted,
            propose_ms: 3.0 * drafted.max(1) as f64,
            rows: drafted + 1,
            target_ms: 10.0 * (1.0 + 0.1 * drafted as f64),
            tested: vec![true; drafted],
            ..Observation::default()
        });
    }
    assert!(parked < 10, "parked in {parked} rounds");
}

#[test]
fn what_is_free_is_judged_when_it_is_there() {
    let mut controller = DepthController::new();
    // Confident tokens are right, others are not; rows cost.
    for round in 0..200 {
        let asked = controller.plan(8, 0, 0).max_draft;
        match round {
            0 => assert_eq!(asked, 0),
            1..4 => assert!(asked > 0),
            _ => assert!(asked == 8 || controller.since_plain > REFRESH.1 as u32),
        }
        let sure = round % 2 == 0 && asked > 0;
        let confidence = vec![Some(if sure { 0.95 } else { 0.15 }); asked.min(6)];
        let kept = controller.keep(&confidence, None);
        let accepted = if sure { kept } else { 0 };
        controller.observe(&Observation {
            drafted: asked.min(6),
            passes: asked.min(6),
            acted: kept > 0,
            height: kept,
            propose_ms: 0.01,
            rows: kept + 1,
            target_ms: 10.0 * (1.0 + 0.1 * kept as f64),
            tested: (0..kept.min(accepted + 1)).map(|i| i < accepted).collect(),
            confidence: confidence[..kept.min(accepted + 1)].to_vec(),
            ..Observation::default()
        });
    }
    assert_eq!(controller.keep(&[Some(0.95); 6], None), 6);
    controller.credit = 0.0;
    assert_eq!(controller.keep(&[Some(0.15); 6], None), 0);
    assert!(controller.parked);
}

/// A row costs so little that one in twenty would pay, and nothing is right: many rows that each lose next to nothing.
#[test]
fn what_is_free_and_never_right_loses_little_all_the_same() {
    let mut controller = DepthController::new();
    let mut lost = |rounds: usize| {
        let mut lost = 0.0;
        for round in 0..rounds {
            let asked = controller.plan(8, 0, 0).max_draft.min(4);
            // Its confidence is of another class each time, and deceives.
            let confidence = vec![Some(0.05 + 0.1 * (round % CLASSES) as f32); asked];
            let kept = controller.keep(&confidence, None);
            let target_ms = 10.0 * (1.0 + 0.05 * kept as f64);
            lost += target_ms / 10.0 - 1.0;
            controller.observe(&Observation {
                drafted: asked,
                passes: asked,
                acted: kept > 0,
                height: kept,
                propose_ms: 0.01,
                rows: kept + 1,
                target_ms,
                tested: vec![false; kept.min(1)],
                confidence: confidence[..kept.min(1)].to_vec(),
                ..Observation::default()
            });
        }
        lost
    };
    let (first, later) = (lost(80), lost(400));
    assert!(first < 2.2, "lost {first} passes in 80 rounds");
    assert!(later < 0.02 * 400.0, "lost {later} passes in 400 rounds more");
}

#[test]
fn a_doubtful_token_ends_a_draft_and_a_fixed_depth_does_not_care() {
    let mut controller = DepthController::new();
    run(&mut controller, 60, (3.0, 0.1), |round, _| round % 4 != 0);
    let plan = controller.plan(8, 0, 0);
    assert!(plan.clone().goes_on(0.99));
    assert!(!plan.clone().goes_on(0.05));
    assert!(DraftPlan::fixed(4).goes_on(0.0));
}

/// A pass of four rows was once seen to be as cheap as one of two: depth three promises most, and is reached past a
/// second token that alone does not pay, so that what it costs is seen.
#[test]
fn a_depth_that_promises_most_is_reached() {
    let mut controller = DepthController::new();
    for round in 0..60 {
        let depth = if round == 9 { 3 } else { usize::from(round % 4 != 0) };
        controller.observe(&Observation {
            drafted: depth,
            passes: depth,
            acted: depth > 0,
            height: depth,
            propose_ms: 2.8 * depth as f64,
            rows: depth + 1,
            target_ms: if depth == 0 { 10.0 } else { 11.0 },
            tested: vec![depth == 3 || round % 9 != 0; depth],
            confidence: vec![Some(0.85); depth],
            ..Observation::default()
        });
    }
    // Three rows are dearer than either.
    controller.observe(&Observation { rows: 3, target_ms: 13.0, ..Observation::default() });
    let gains = controller.state().gains;
    assert!(gains[2] > gains[1], "{gains:?}");
    assert!(controller.plan(8, 0, 0).goes_on(0.85));
}

#[test]
fn a_long_read_has_to_pay_for_itself() {
    let mut controller = DepthController::new();
    run(&mut controller, 60, (3.0, 0.1), |round, _| round % 4 != 0);
    assert!(controller.plan(8, 100, 0).max_draft > 0);
    controller.credit = 0.0;
    assert_eq!(controller.plan(8, 100_000, 0).max_draft, 0);
    assert!(controller.state().parked);
}

/// Rows may cost next to nothing; a draft that is never right is given up all the same.
#[test]
fn what_was_believed_at_first_is_forgotten() {
    let mut controller = DepthController::new();
    for _ in 0..128 {
        let asked = controller.plan(4, 0, 0).max_draft;
        let kept = controller.keep(&vec![None; asked], None);
        controller.observe(&Observation {
            drafted: asked,
            passes: asked,
            acted: kept > 0,
            height: kept,
            rows: kept + 1,
            target_ms: 10.0 * (1.0 + 0.03 * kept as f64),
            tested: vec![false; kept.min(1)],
            confidence: vec![None; kept.min(1)],
            ..Observation::default()
        });
    }
    controller.credit = 0.0;
    assert_eq!(controller.keep(&[None; 4], None), 0);
}

#[test]
fn the_wire_knows_numbers_and_auto() {
    let json = |max: MaxDraft| serde_json::to_string(&max).unwrap();
    assert_eq!((json(MaxDraft::Auto), json(MaxDraft::Fixed(4))), ("\"auto\"".into(), "4".into()));
    let read = |text: &str| serde_json::from_str::<MaxDraft>(text);
    assert_eq!((read("\"auto\"").unwrap(), read("7").unwrap()), (MaxDraft::Auto, MaxDraft::Fixed(7)));
    assert!(read("\"deep\"").is_err() && read("-1").is_err());
    assert!(MaxDraft::Fixed(0).validate().is_err() && MaxDraft::Fixed(16).validate().is_err());
    assert!(MaxDraft::Auto.validate().is_ok() && MaxDraft::Fixed(15).validate().is_ok());
}
