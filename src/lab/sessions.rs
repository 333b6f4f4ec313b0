//! An answer as a place in the landscape: how much of its drafts was accepted, and how deep they were.

use crate::event::GenerationEvent;
use crate::lab::history::{Generation, generations};
use hunch_core::method::Method;
use hunch_core::theory;

/// The figures of an answer's own generation: what it shares with an answer it went on from is that one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionFigures {
    /// How it was drafted.
    pub method: Method,
    /// Accepted of the drafted tokens that were tested.
    pub alpha: f64,
    /// Tokens drafted in a round that drafted, the mean.
    pub depth: f64,
    /// Tokens generated.
    pub tokens: u32,
    /// Tokens a target pass.
    pub mean_acceptance_length: f64,
}

/// The figures of an answer; `None` where nothing that was drafted was tested.
pub fn session_of(events: &[GenerationEvent]) -> Option<SessionFigures> {
    let own = generations(events).last()?;
    let tested = own.tested();
    let accepted = tested.iter().filter(|draft| draft.accepted).count() as u64;
    let alpha = theory::alpha(accepted, tested.len() as u64 - accepted)?;
    let (rounds, drafted) = own
        .rounds()
        .filter(|round| round.drafted > 0)
        .fold((0u32, 0u64), |(rounds, drafted), round| (rounds + 1, drafted + u64::from(round.drafted)));
    let (tokens, mean_acceptance_length) = figures(&own)?;
    let depth = drafted as f64 / f64::from(rounds.max(1));
    Some(SessionFigures { method: own.method, alpha, depth, tokens, mean_acceptance_length })
}

/// Tokens generated and tokens a pass; of an answer that was cut off as of its last round.
fn figures(generation: &Generation<'_>) -> Option<(u32, f64)> {
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
    fn figures_are_those_of_its_own_generation() {
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
            alpha: 1.0 / 3.0,
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
    fn where_nothing_was_tested_there_is_no_place() {
        assert_eq!(session_of(&[]), None);
        let plain = [
            started(1, Method::Plain, AcceptanceRule::Lossless),
            GenerationEvent::Round(RoundEvent::of_tokens(0, vec![token((0, 0), "a", Plain, 1.0, None)])),
        ];
        assert_eq!(session_of(&plain), None);
    }
}
