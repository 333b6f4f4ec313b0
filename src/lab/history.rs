//! What was stored of an answer, as the lab reads it: its generations, and the drafted tokens that each of
//! them tested. An answer that went on holds several generations, whose rounds all begin at 0; and a token
//! may have come in a later event than its round's, since it waited for a stop string.

use std::collections::BTreeMap;

use crate::event::{GenerationEvent, RoundEvent, TokenEvent};
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::GenerationStats;
use hunch_core::theory;
use hunch_core::token::TokenOrigin;

/// One generation of an answer.
pub(super) struct Generation<'a> {
    pub(super) id: u32,
    pub(super) method: Method,
    pub(super) rule: AcceptanceRule,
    pub(super) seed: u64,
    pub(super) prompt_tokens: u32,
    pub(super) events: &'a [GenerationEvent],
}

/// Where a token stands in its generation: its round and its position in the round.
pub(super) type Spot = (u32, u32);

/// A drafted token that was tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TestedDraft<'a> {
    pub(super) accepted: bool,
    pub(super) spot: Spot,
    pub(super) text: &'a str,
    /// The draft's probability of it; `None` for a certain draft.
    pub(super) q: Option<f64>,
    /// What rejection sampling accepts it with: min(1, p / q), or p where it was certain.
    pub(super) chance: f64,
    /// p / q, or p where it was certain; not bounded by 1.
    pub(super) ratio: f64,
    /// The token that came to stand there; `None` where the answer ended before it.
    pub(super) place: Option<&'a TokenEvent>,
}

impl TestedDraft<'_> {
    /// How sure the draft was: q, or what a model that took its likeliest token gave it; `None` where no model
    /// drafted.
    pub(super) fn confidence(&self) -> Option<f64> {
        let guesses = || {
            let guesses = &self.place?.guesses;
            // What was drafted without chance is the draft's first guess.
            guesses.first().map(|guess| f64::from(guess.2))
        };
        self.q.or_else(guesses)
    }
}

/// The generations of an answer, in order.
pub(super) fn generations(events: &[GenerationEvent]) -> impl Iterator<Item = Generation<'_>> {
    let begins = |event: &GenerationEvent| matches!(event, GenerationEvent::Started { .. });
    events.chunk_by(move |_, next| !begins(next)).filter_map(|events| match events.first()? {
        &GenerationEvent::Started { generation_id: id, method, rule, seed, prompt_tokens, .. } => {
            Some(Generation { id, method, rule, seed, prompt_tokens, events })
        }
        _ => None,
    })
}

impl<'a> Generation<'a> {
    /// Its rounds, in order. What only carries tokens of another answer's end is none.
    pub(super) fn rounds(&self) -> impl Iterator<Item = &'a RoundEvent> {
        self.events.iter().filter_map(|event| match event {
            GenerationEvent::Round(round) => Some(round),
            _ => None,
        })
    }

    /// All figures, when it came to its end.
    pub(super) fn stats(&self) -> Option<&'a GenerationStats> {
        self.events.iter().find_map(|event| match event {
            GenerationEvent::Finished { stats, .. } => Some(stats),
            _ => None,
        })
    }

    /// The tokens it drew, by where they stand.
    fn tokens(&self) -> BTreeMap<Spot, &'a TokenEvent> {
        let tokens = self.events.iter().flat_map(GenerationEvent::tokens);
        let drawn = tokens.filter(|token| token.origin != TokenOrigin::Chosen);
        drawn.map(|token| ((token.round, token.position), token)).collect()
    }

    /// The drafted tokens that were tested, by where they stood; what was rejected there first.
    pub(super) fn tested(&self) -> Vec<TestedDraft<'a>> {
        let tokens = self.tokens();
        let mut tested: Vec<TestedDraft<'a>> = Vec::new();
        for round in self.rounds() {
            tested.extend(round.rejected.iter().map(|token| {
                let spot = (round.round, token.position);
                let (p, q) = (f64::from(token.p), token.q.map(f64::from));
                TestedDraft {
                    accepted: false,
                    spot,
                    text: &token.text,
                    q,
                    chance: theory::token_acceptance(p, q.unwrap_or(1.0), 1.0),
                    ratio: ratio(p, q),
                    place: tokens.get(&spot).copied(),
                }
            }));
        }
        let accepted = tokens.iter().filter(|(_, token)| token.origin == TokenOrigin::Accepted);
        tested.extend(accepted.map(|(&spot, &token)| {
            let (p, q) = (f64::from(token.p), token.q.map(f64::from));
            // p is what it was before rejected siblings were ruled out; the threshold knows of them.
            let exact = token.threshold.filter(|_| self.rule == AcceptanceRule::Lossless);
            let chance = theory::token_acceptance(p, q.unwrap_or(1.0), 1.0);
            TestedDraft {
                accepted: true,
                spot,
                text: &token.text,
                q,
                chance: exact.map_or(chance, |threshold| f64::from(threshold).clamp(0.0, 1.0)),
                ratio: ratio(p, q),
                place: Some(token),
            }
        }));
        tested.sort_by_key(|draft| (draft.spot, draft.accepted));
        tested
    }

    /// Which rounds it shares with another answer that went on from it, by round: the same numbers stand for
    /// the same round.
    pub(super) fn fingerprints(&self) -> BTreeMap<u32, Fingerprint> {
        let print = |round: &RoundEvent| {
            let request = (self.id, self.seed, self.prompt_tokens);
            (round.round, (request, round.round, round.timing.target_ms.to_bits()))
        };
        self.rounds().filter(|round| round.drafted > 0).map(print).collect()
    }
}

/// Tells a round from every other: the generation's number, seed and prompt, the round's number, and how long
/// its target pass took.
pub(super) type Fingerprint = ((u32, u64, u32), u32, u64);

/// p / q; 0 where nothing is left of p.
fn ratio(p: f64, q: Option<f64>) -> f64 {
    let ratio = p / q.unwrap_or(1.0);
    if ratio.is_finite() { ratio } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::event::{RejectedEvent, StopReason};
    use hunch_core::depth::MaxDraft;
    use hunch_core::stats::{LiveFigures, RoundTiming};

    /// The beginning of a generation by a method.
    pub(in crate::lab) fn started(
        generation_id: u32,
        method: Method,
        rule: AcceptanceRule,
    ) -> GenerationEvent {
        GenerationEvent::Started {
            generation_id,
            method,
            target: "target".into(),
            draft: None,
            device: "cpu".into(),
            prompt_tokens: 9,
            dropped_messages: 0,
            context_length: 512,
            max_draft: MaxDraft::Fixed(3),
            rule,
            seed: 5,
            template_note: None,
        }
    }

    /// A token; drafted ones have q.
    pub(in crate::lab) fn token(
        spot: Spot,
        text: &str,
        origin: TokenOrigin,
        p: f32,
        q: Option<f32>,
    ) -> TokenEvent {
        let drafted = origin == TokenOrigin::Accepted;
        TokenEvent {
            id: 1,
            text: text.into(),
            origin,
            p,
            q,
            u: drafted.then_some(0.0),
            threshold: drafted.then(|| (p / q.unwrap_or(1.0)).min(1.0)),
            confidence: p,
            entropy: Some(std::f32::consts::LN_2),
            top: Vec::new(),
            guesses: Vec::new(),
            round: spot.0,
            position: spot.1,
        }
    }

    /// A rejected draft.
    pub(in crate::lab) fn rejected(position: u32, text: &str, p: f32, q: Option<f32>) -> RejectedEvent {
        RejectedEvent { id: 2, text: text.into(), p, q, u: 0.99, position }
    }

    /// A round of three drafted tokens that took 2 ms a drafted token, 10 ms and 1 ms.
    pub(in crate::lab) fn round(
        round: u32,
        tokens: Vec<TokenEvent>,
        rejected: Vec<RejectedEvent>,
    ) -> GenerationEvent {
        let timing = RoundTiming { propose_ms: 6.0, target_ms: 10.0, verify_ms: 0.75, other_ms: 0.25 };
        GenerationEvent::Round(RoundEvent {
            drafted: 3,
            rejected,
            timing,
            figures: LiveFigures::default(),
            ..RoundEvent::of_tokens(round, tokens)
        })
    }

    /// The end, with tokens that were held back.
    pub(in crate::lab) fn finished(tokens: Vec<TokenEvent>, stats: GenerationStats) -> GenerationEvent {
        GenerationEvent::Finished { stop: StopReason::MaxTokens, tokens, stats }
    }

    #[test]
    fn a_token_belongs_to_its_round_whatever_it_came_in() {
        use TokenOrigin::{Accepted, Resampled};
        let events = [
            started(1, Method::DraftModel, AcceptanceRule::Lossless),
            round(
                0,
                vec![token((0, 0), "a", Accepted, 0.5, Some(0.25))],
                vec![rejected(1, "x", 0.1, Some(0.4))],
            ),
            round(1, vec![token((0, 1), "b", Resampled, 0.5, None)], vec![rejected(1, "y", 0.0, None)]),
            finished(vec![token((1, 0), "c", Accepted, 0.3, Some(0.6))], GenerationStats::default()),
        ];
        let all: Vec<Generation<'_>> = generations(&events).collect();
        assert_eq!((all.len(), all[0].id, all[0].method), (1, 1, Method::DraftModel));
        let tested = all[0].tested();
        let shown: Vec<_> = tested.iter().map(|t| (t.text, t.spot, t.accepted, t.chance)).collect();
        let expected = [
            ("a", (0, 0), true, 1.0),
            ("x", (0, 1), false, 0.25),
            ("c", (1, 0), true, 0.5),
            ("y", (1, 1), false, 0.0),
        ];
        for (shown, expected) in shown.iter().zip(expected) {
            assert_eq!((shown.0, shown.1, shown.2), (expected.0, expected.1, expected.2));
            assert!((shown.3 - expected.3).abs() < 1e-6, "{shown:?}");
        }
        assert_eq!(tested[1].place.map(|t| t.text.as_str()), Some("b"), "it replaced the rejected one");
        assert_eq!(tested[3].place, None, "the answer ended there");
    }

    #[test]
    fn generations_of_one_answer_are_kept_apart() {
        let accepted = |text| vec![token((0, 0), text, TokenOrigin::Accepted, 1.0, None)];
        let chosen = token((1, 0), "!", TokenOrigin::Chosen, 1.0, None);
        let events = [
            started(1, Method::Ngram, AcceptanceRule::Lossless),
            round(0, accepted("a"), vec![]),
            GenerationEvent::Round(RoundEvent::of_tokens(1, vec![chosen])),
            started(2, Method::Suffix, AcceptanceRule::Lossless),
            round(0, accepted("b"), vec![]),
        ];
        let texts = |g: Generation<'_>| g.tested().iter().map(|t| t.text.to_owned()).collect::<Vec<_>>();
        assert_eq!(generations(&events).map(texts).collect::<Vec<_>>(), [["a"], ["b"]]);
        assert_eq!(generations(&events[1..3]).count(), 0, "without a beginning nothing is known of it");
    }
}
