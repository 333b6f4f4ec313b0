//! Predictions computed by hand, and finite results for any answer.

use proptest::prelude::*;

use super::*;
use crate::event::DraftedEvent;
use crate::lab::history::tests::{finished, rejected, round, started, token};
use hunch_core::method::Method;
use hunch_core::stats::GenerationStats;
use hunch_core::token::DraftFate;
use hunch_core::token::TokenOrigin::{Accepted, Bonus, Plain, Resampled};

fn request(max_draft: u32, temperature: Option<f32>) -> WhatIfRequest {
    WhatIfRequest { message: 1, max_draft, temperature }
}

fn stats() -> GenerationStats {
    GenerationStats {
        generated_tokens: 12,
        rounds: 4,
        mean_acceptance_length: 2.5,
        decode_tok_s: 150.0,
        ..GenerationStats::default()
    }
}

/// An answer with tests of probability 1 and 1/2 at position 0, and 3/4 at position 1.
fn answer() -> Vec<GenerationEvent> {
    vec![
        started(1, Method::DraftModel, AcceptanceRule::Lossless),
        round(
            0,
            vec![
                token((0, 0), "a", Accepted, 0.5, Some(0.25)),
                token((0, 1), "b", Accepted, 0.375, Some(0.5)),
                token((0, 2), "c", Bonus, 1.0, None),
            ],
            vec![],
        ),
        round(1, vec![token((1, 0), "d", Resampled, 0.5, None)], vec![rejected(0, "x", 0.25, Some(0.5))]),
        finished(vec![], stats()),
    ]
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9, "{a} {b}");
}

#[test]
fn other_depth_matches_a_hand_computed_example() {
    let answer = what_if(&answer(), 0.7, &request(3, None)).unwrap();
    assert_eq!((answer.known, answer.covered), (3, 0.0));
    near(answer.was.alpha, 2.0 / 3.0);
    assert_eq!((answer.was.rounds, answer.was.tok_s), (4.0, Some(150.0)));
    // Positions: 0.75, 0.75, and the mean of all for the third.
    let third = 0.75;
    let tokens = 1.0 + 0.75 + 0.75 * 0.75 + 0.75 * 0.75 * third;
    near(answer.would.mean_acceptance_length, tokens);
    near(answer.would.alpha, 0.75);
    near(answer.would.rounds, 12.0 / tokens);
    // All rounds had four rows: 3 drafted tokens of 2 ms, a pass of 10 ms and 1 ms for the rest.
    near(answer.would.tok_s.unwrap(), 1e3 * tokens / 17.0);
    let deeper = what_if(&super::tests::answer(), 0.7, &request(6, None)).unwrap();
    assert!(deeper.would.mean_acceptance_length > tokens && deeper.would.rounds < answer.would.rounds);
    near(deeper.would.tok_s.unwrap(), 1e3 * deeper.would.mean_acceptance_length / 23.0);
}

#[test]
fn accepts_any_number_of_drafted_tokens_in_imported_answers() {
    let mut events = answer();
    let GenerationEvent::Round(round) = &mut events[1] else { panic!("a round") };
    round.drafted = u32::MAX;
    let answer = what_if(&events, 0.7, &request(3, None)).unwrap();
    assert_eq!(answer.known, 3);
}

#[test]
fn share_of_rounds_without_a_draft_is_unchanged() {
    let mut events = answer();
    events[0] = started(1, Method::Ngram, AcceptanceRule::Lossless);
    let mut plain = RoundEvent::of_tokens(2, vec![token((2, 0), "e", Plain, 1.0, None)]);
    plain.timing.target_ms = 4.0;
    events.insert(3, GenerationEvent::Round(plain));
    let answer = what_if(&events, 0.7, &request(1, None)).unwrap();
    near(answer.would.mean_acceptance_length, 1.0 + 0.75 * 2.0 / 3.0);
    // Passes of one row took 4 ms, of four rows 10 ms: 2 ms a row. The rest took 1, 1 and 0 ms.
    let ms = 2.0 / 3.0 * (2.0 + 6.0) + 1.0 / 3.0 * 4.0 + 1.0;
    near(answer.would.tok_s.unwrap(), 1e3 * 1.5 / ms);
}

#[test]
fn siblings_of_a_tree_are_one_position() {
    let events = [
        started(1, Method::DraftTree, AcceptanceRule::Lossless),
        // The second of two siblings is accepted, and its child is rejected.
        round(
            0,
            vec![token((0, 0), "b", Accepted, 0.3, Some(0.5)), token((0, 1), "d", Resampled, 0.5, None)],
            vec![rejected(0, "a", 0.25, Some(0.5)), rejected(1, "c", 0.2, Some(0.5))],
        ),
        round(1, vec![token((1, 0), "e", Accepted, 0.5, Some(0.5))], vec![]),
        finished(vec![], stats()),
    ];
    let answer = what_if(&events, 0.7, &request(3, None)).unwrap();
    assert!(answer.tree && answer.known == 4);
    // Two of three positions were accepted.
    near(answer.was.alpha, 2.0 / 3.0);
    // First siblings: at position 0 with 0.5 and 1, at position 1 with 0.4. Second ones with 0.6.
    let (first, child, second) = (0.75, 0.75 * 0.4, 0.25 * 0.6);
    // The third position has no tests, so it counts as the mean of first siblings.
    let third = child * (0.5 + 1.0 + 0.4) / 3.0;
    // The best three nodes: 0.75, its child with 0.3, and the third position with 0.19. The child's sibling, which
    // counts at most as the child, has 0.75 * 0.6 * 0.4.
    assert!(third > second && third > 0.75 * 0.6 * 0.4);
    // p and q are f32.
    let nearly = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
    nearly(answer.would.mean_acceptance_length, 1.0 + first + child + third);
    nearly(answer.would.alpha, (first + child + third) / (1.0 + first + child));
}

/// A round of a tree of two siblings, and a child of the first: two levels.
fn tree_round(at: u32, rejected_q: f32) -> GenerationEvent {
    let emitted = vec![token((at, 0), "b", Resampled, 0.5, None)];
    let mut event = round(at, emitted, vec![rejected(0, "a", 0.4, Some(rejected_q))]);
    let GenerationEvent::Round(round) = &mut event else { panic!("a round") };
    let drafted = |parent| DraftedEvent { id: 1, text: "a".into(), parent, fate: DraftFate::Untested };
    round.draft = [None, None, Some(0)].map(drafted).into();
    event
}

#[test]
fn drafting_of_a_tree_takes_time_by_levels() {
    let started = started(1, Method::DraftTree, AcceptanceRule::Lossless);
    let events = [started, tree_round(0, 0.5), finished(vec![], stats())];
    let answer = what_if(&events, 0.7, &request(2, None)).unwrap();
    assert!(answer.tree);
    // One rank was tested, so two tokens are a chain of two levels at 3 ms. The pass takes 10 ms, the rest 1 ms.
    near(answer.would.tok_s.unwrap(), 1e3 * answer.would.mean_acceptance_length / 17.0);
    // Levels decide, not nodes: 6 ms for 2 levels.
    let [one, three] = [1, 3]
        .map(|k| what_if(&events, 0.7, &request(k, None)).unwrap().would)
        .map(|would| 1e3 * would.mean_acceptance_length / would.tok_s.unwrap());
    near(three - one, 6.0);
}

#[test]
fn untested_ranks_are_never_accepted_at_another_temperature() {
    let alternatives = |event: GenerationEvent| {
        let GenerationEvent::Round(mut round) = event else { panic!("a round") };
        round.tokens =
            round.tokens.into_iter().map(|t| with_alternatives(t, &[0.5, 0.25], &[0.8, 0.2])).collect();
        GenerationEvent::Round(round)
    };
    let started = started(1, Method::DraftTree, AcceptanceRule::Lossless);
    let events = [started, alternatives(tree_round(0, 0.5)), finished(vec![], stats())];
    let hotter = what_if(&events, 1.0, &request(4, Some(2.0))).unwrap();
    let alpha = hotter.would.alpha;
    assert!(alpha > 0.8 + 0.05, "the overlap rises: {alpha}");
    near(hotter.would.mean_acceptance_length, theory::expected_tokens(alpha, 4));
}

#[test]
fn later_siblings_are_accepted_at_most_as_often_as_earlier_ones() {
    let draft = |rank, chance| TestedDraft {
        accepted: false,
        slot: (0, 0),
        rank,
        text: "",
        q: None,
        chance,
        ratio: chance,
        token: None,
    };
    let tested = [draft(0, 0.3), draft(1, 0.9), draft(2, 0.2)];
    let odds = Odds::new(&tested, AcceptanceRule::Lossless, 0.7).unwrap();
    assert_eq!([0, 1, 2, 3].map(|rank| odds.at(0, rank, 0.0)), [0.3, 0.3, 0.2, 0.0]);
    assert_eq!([0, 1, 2, 3].map(|rank| odds.at(5, rank, 0.5)), [0.8, 0.8, 0.7, 0.0]);
}

#[test]
fn drafting_is_not_free_if_most_drafts_were_looked_up() {
    let mut events = answer();
    events[0] = started(1, Method::Auto, AcceptanceRule::Lossless);
    for (at, event) in (2..).zip([answer().remove(1), answer().remove(1)]) {
        let GenerationEvent::Round(mut looked_up) = event else { panic!("a round") };
        (looked_up.round, looked_up.timing.propose_ms) = (at, 0.0);
        looked_up.tokens.clear();
        events.insert(3, GenerationEvent::Round(looked_up));
    }
    let answer = what_if(&events, 0.7, &request(3, None)).unwrap();
    // Two of four rounds took 6 ms for three tokens.
    near(answer.would.tok_s.unwrap(), 1e3 * answer.would.mean_acceptance_length / (3.0 + 10.0 + 1.0));
}

#[test]
fn rules_without_a_probability_count_outcomes() {
    let mut events = answer();
    events[0] = started(1, Method::DraftModel, AcceptanceRule::Match);
    near(what_if(&events, 0.7, &request(1, None)).unwrap().would.alpha, 0.5);
    events[0] = started(1, Method::DraftModel, AcceptanceRule::LossyLenience { lenience: 0.5 });
    near(what_if(&events, 0.7, &request(1, None)).unwrap().would.alpha, 1.0);
    near(what_if(&events, 0.0, &request(1, None)).unwrap().would.alpha, 0.5);
}

/// Adds the most likely tokens of target and draft at temperature 1.
fn with_alternatives(mut token: TokenEvent, top: &[f32], guesses: &[f32]) -> TokenEvent {
    let listed = |distribution: &[f32]| {
        (0..).zip(distribution).map(|(id, p)| Alternative(id, String::new(), *p)).collect()
    };
    (token.top, token.guesses) = (listed(top), listed(guesses));
    token
}

#[test]
fn other_temperature_shifts_alpha_by_the_overlap() {
    let kept = with_alternatives(token((0, 0), "a", Accepted, 0.5, Some(1.0)), &[0.5, 0.25], &[0.8, 0.2]);
    let events = [
        started(1, Method::DraftModel, AcceptanceRule::Lossless),
        round(0, vec![kept], vec![]),
        finished(vec![], stats()),
    ];
    let same = what_if(&events, 1.0, &request(1, Some(1.0))).unwrap();
    near(same.would.alpha, 0.5);
    assert_eq!(same.covered, 0.75);
    // Over the listed tokens: (2/3, 1/3) and (4/5, 1/5) overlap by 2/3 + 1/5. At temperature 1/2 their
    // squares: (4/5, 1/5) and (16/17, 1/17).
    let colder = what_if(&events, 1.0, &request(1, Some(0.5))).unwrap();
    assert!((colder.would.alpha - (0.5 + 0.8 + 1.0 / 17.0 - 2.0 / 3.0 - 0.2)).abs() < 1e-6);
    let certain = what_if(&events, 1.0, &request(1, Some(0.0))).unwrap();
    assert!((certain.would.alpha - (0.5 + 1.0 - 2.0 / 3.0 - 0.2)).abs() < 1e-6);
    // Alternatives of the draft are stored at the answer's temperature of 1/2.
    let from_colder = what_if(&events, 0.5, &request(1, Some(1.0))).unwrap();
    let (new, old) = (2.0 / 3.0 + 1.0 / 3.0, 0.8 + 0.2);
    assert!((from_colder.would.alpha - (0.5 + new - old)).abs() < 1e-6);
}

#[test]
fn alpha_is_unchanged_without_draft_alternatives() {
    let answer = what_if(&answer(), 0.7, &request(1, Some(1.5))).unwrap();
    near(answer.would.alpha, 0.75);
}

#[test]
fn predicts_generations_without_end_or_times() {
    let mut events = answer();
    events.pop();
    for event in &mut events {
        if let GenerationEvent::Round(round) = event {
            round.timing = hunch_core::stats::RoundTiming::default();
            round.figures.generated_tokens = 4;
            round.figures.rounds = 2;
        }
    }
    let answer = what_if(&events, 0.7, &request(2, None)).unwrap();
    assert_eq!((answer.was.rounds, answer.was.tok_s, answer.would.tok_s), (2.0, None, None));
    near(answer.would.rounds, 4.0 / answer.would.mean_acceptance_length);
}

#[test]
fn rejects_invalid_requests() {
    let error = |events: &[GenerationEvent], request| what_if(events, 0.7, &request).unwrap_err().to_string();
    assert!(error(&[], request(3, None)).contains("method that drafts"));
    let plain = [
        started(1, Method::Plain, AcceptanceRule::Lossless),
        GenerationEvent::Round(RoundEvent::of_tokens(0, vec![token((0, 0), "a", Plain, 1.0, None)])),
    ];
    assert!(error(&plain, request(3, None)).contains("tested no draft"));
    for wrong in [request(0, None), request(16, None), request(3, Some(f32::NAN)), request(3, Some(-1.0))] {
        assert!(error(&answer(), wrong).contains("choose a number from"));
    }
}

proptest! {
    #[test]
    fn results_are_finite_for_any_answer(
        distributions in prop::collection::vec((0.0f32..=1.0, prop::option::of(0.0f32..=1.0), any::<bool>()), 1..12),
        listed in prop::collection::vec(0.0f32..=1.0, 0..4),
        (depth, old, new) in (1u32..=15, 0.0f32..=5.0, prop::option::of(0.0f32..=5.0)),
    ) {
        let mut events = vec![started(1, Method::DraftModel, AcceptanceRule::Lossless)];
        let mut sorted = listed;
        sorted.sort_by(|a, b| b.total_cmp(a));
        for (i, (p, q, kept)) in (0..).zip(distributions) {
            let origin = if kept { Accepted } else { Resampled };
            let emitted = with_alternatives(token((i, 0), "a", origin, p, q), &sorted, &sorted);
            let instead = if kept { vec![] } else { vec![rejected(0, "x", p, q)] };
            events.push(round(i, vec![emitted], instead));
        }
        let answer = what_if(&events, old, &request(depth, new)).unwrap();
        for figures in [answer.was, answer.would] {
            prop_assert!(figures.alpha.is_finite() && (0.0..=1.0 + 1e-9).contains(&figures.alpha), "{figures:?}");
            prop_assert!(figures.rounds.is_finite() && figures.mean_acceptance_length.is_finite());
            prop_assert!(figures.tok_s.is_none_or(f64::is_finite));
        }
        prop_assert!((1.0..=f64::from(depth) + 1.0).contains(&answer.would.mean_acceptance_length));
        prop_assert!((0.0..=1.0).contains(&answer.covered));
    }
}
