//! A stored answer as a point in the landscape: its acceptance and draft length.

use crate::event::GenerationEvent;
use crate::lab::history::{StoredGeneration, TestedDraft, generations};
use crate::lab::report::{DraftKind, SessionFigures};
use hunch_core::method::Method;
use hunch_core::theory;

/// Computes the figures of an answer. `None` if no draft was tested.
pub fn session_of(events: &[GenerationEvent]) -> Option<SessionFigures> {
    let own = generations(events).last()?;
    let tested = own.tested();
    let accepted_of = |rank| {
        let of_rank: Vec<_> = tested.iter().filter(|draft| draft.rank == rank).collect();
        let accepted = of_rank.iter().filter(|draft| draft.accepted).count() as u64;
        theory::alpha(accepted, of_rank.len() as u64 - accepted)
    };
    let alpha = accepted_of(0)?;
    let siblings = accepted_of(1).filter(|_| alpha > 0.0).map(|next| (next / alpha).min(1.0));
    let (rounds, drafted) = own
        .rounds()
        .filter(|round| round.drafted > 0)
        .fold((0u32, 0u64), |(rounds, drafted), round| (rounds + 1, drafted + u64::from(round.drafted)));
    let (tokens, mean_acceptance_length) = figures(&own)?;
    let depth = drafted as f64 / f64::from(rounds.max(1));
    let (draft, drafter) = kind_of(&own, &tested);
    let method = own.method;
    Some(SessionFigures { method, draft, drafter, alpha, siblings, depth, tokens, mean_acceptance_length })
}

/// Returns the kind of an answer's drafts, and the drafter of chains and trees.
fn kind_of(own: &StoredGeneration<'_>, tested: &[TestedDraft<'_>]) -> (DraftKind, Option<Method>) {
    if own.method.entry().merges_stages {
        return (DraftKind::Mixed, None);
    }
    let drafting = own.rounds().filter(|round| round.drafted > 0);
    // Rounds of older versions do not name their drafter. Every test of a model's draft has a confidence.
    let recorded = drafting.map(|round| round.drafted_by.map(Method::drafter));
    let Some(mut drafters) = recorded.collect::<Option<Vec<_>>>() else {
        return match (tested.iter().any(|draft| draft.confidence().is_some()), own.method.drafter()) {
            (false, _) => (DraftKind::Lookup, None),
            (true, drafter) if own.method.entry().stages.len() == 1 => (chain_or_tree(own, tested), drafter),
            (true, _) => (DraftKind::Mixed, None),
        };
    };
    drafters.sort_unstable();
    drafters.dedup();
    match drafters[..] {
        [None] => (DraftKind::Lookup, None),
        [Some(drafter)] => (chain_or_tree(own, tested), Some(drafter)),
        _ => (DraftKind::Mixed, None),
    }
}

fn chain_or_tree(own: &StoredGeneration<'_>, tested: &[TestedDraft<'_>]) -> DraftKind {
    if own.branches(tested) { DraftKind::Tree } else { DraftKind::Chain }
}

/// Returns tokens generated and tokens per pass, as of the last round if the answer was cut off.
fn figures(generation: &StoredGeneration<'_>) -> Option<(u32, f64)> {
    if let Some(stats) = generation.stats() {
        return Some((stats.generated_tokens, stats.mean_acceptance_length));
    }
    let figures = generation.rounds().last()?.figures;
    Some((figures.generated_tokens, figures.mean_acceptance_length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RoundEvent;
    use crate::lab::history::tests::{finished, rejected, round, started, token};
    use hunch_core::rule::AcceptanceRule;
    use hunch_core::stats::{GenerationStats, LiveFigures};
    use hunch_core::token::TokenOrigin::{Accepted, Plain, Resampled};

    #[test]
    fn figures_cover_the_last_generation_only() {
        let shared = [
            started(1, Method::Ngram, AcceptanceRule::Lossless),
            round(0, vec![token((0, 0), "z", Accepted, 1.0, None)], vec![]),
        ];
        let own = [
            started(2, Method::DraftModel, AcceptanceRule::Lossless),
            round(
                0,
                vec![token((0, 0), "a", Accepted, 0.5, Some(0.5)), token((0, 1), "b", Resampled, 0.5, None)],
                vec![rejected(1, "x", 0.1, Some(0.5)), rejected(1, "y", 0.1, Some(0.5))],
            ),
            GenerationEvent::Round(RoundEvent {
                figures: LiveFigures {
                    generated_tokens: 3,
                    mean_acceptance_length: 1.5,
                    ..LiveFigures::default()
                },
                ..RoundEvent::of_tokens(1, vec![token((1, 0), "c", Plain, 1.0, None)])
            }),
        ];
        let mut events = [&shared[..], &own[..]].concat();
        let session = SessionFigures {
            method: Method::DraftModel,
            draft: DraftKind::Tree,
            drafter: Some(Method::DraftModel),
            // One of two positions kept its first draft. The only second sibling was rejected.
            alpha: 0.5,
            siblings: Some(0.0),
            depth: 3.0,
            tokens: 3,
            mean_acceptance_length: 1.5,
        };
        assert_eq!(session_of(&events), Some(session), "it was cut off");
        let stats = GenerationStats {
            generated_tokens: 3,
            mean_acceptance_length: 1.25,
            ..GenerationStats::default()
        };
        events.push(finished(vec![], stats));
        assert_eq!(session_of(&events), Some(SessionFigures { mean_acceptance_length: 1.25, ..session }));
    }

    #[test]
    fn drafts_without_probabilities_are_looked_up() {
        let looked_up = [
            started(1, Method::Suffix, AcceptanceRule::Lossless),
            round(0, vec![token((0, 0), "a", Accepted, 1.0, None)], vec![rejected(1, "x", 0.1, None)]),
            finished(vec![], GenerationStats::default()),
        ];
        let figures = session_of(&looked_up).unwrap();
        assert_eq!((figures.draft, figures.alpha, figures.siblings), (DraftKind::Lookup, 0.5, None));
        let mut by_a_model = looked_up;
        by_a_model[0] = started(1, Method::Head, AcceptanceRule::Lossless);
        by_a_model[1] = round(0, vec![token((0, 0), "a", Accepted, 0.5, Some(0.5))], vec![]);
        let figures = session_of(&by_a_model).unwrap();
        assert_eq!((figures.draft, figures.drafter), (DraftKind::Chain, Some(Method::Head)));
        by_a_model[0] = started(1, Method::Auto, AcceptanceRule::Lossless);
        assert_eq!(session_of(&by_a_model).unwrap().draft, DraftKind::Mixed, "it may be the head's");
    }

    #[test]
    fn recorded_drafters_decide_the_kind() {
        let by = |at: u32, drafted_by| {
            let tokens = vec![token((at, 0), "a", Accepted, 0.5, Some(0.5))];
            let drafted = RoundEvent { drafted: 1, drafted_by, ..RoundEvent::of_tokens(at, tokens) };
            GenerationEvent::Round(drafted)
        };
        let kind = |drafters: &[Method]| {
            let rounds = (0..).zip(drafters).map(|(at, &drafter)| by(at, Some(drafter)));
            let events: Vec<_> =
                [started(1, Method::Auto, AcceptanceRule::Lossless)].into_iter().chain(rounds).collect();
            let figures = session_of(&events).unwrap();
            (figures.draft, figures.drafter)
        };
        assert_eq!(kind(&[Method::Head, Method::Head]), (DraftKind::Chain, Some(Method::Head)));
        assert_eq!(kind(&[Method::DraftModel]), (DraftKind::Chain, Some(Method::DraftModel)));
        assert_eq!(kind(&[Method::Suffix, Method::Ngram]), (DraftKind::Lookup, None));
        assert_eq!(kind(&[Method::Suffix, Method::Head]), (DraftKind::Mixed, None));
        assert_eq!(kind(&[Method::DraftModel, Method::Head]), (DraftKind::Mixed, None));
    }

    #[test]
    fn answers_without_tested_drafts_have_no_figures() {
        assert_eq!(session_of(&[]), None);
        let plain = [
            started(1, Method::Plain, AcceptanceRule::Lossless),
            GenerationEvent::Round(RoundEvent::of_tokens(0, vec![token((0, 0), "a", Plain, 1.0, None)])),
        ];
        assert_eq!(session_of(&plain), None);
    }
}
