//! Stored answers as the lab reads them: generations and the drafted tokens each of them tested.
//!
//! A continued answer has several generations. The rounds of each begin at 0. A token held back for a possible
//! stop string is in a later event than its round.

use std::collections::BTreeMap;

use crate::event::{GenerationEvent, RoundEvent, TokenEvent};
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::GenerationStats;
use hunch_core::theory;
use hunch_core::token::TokenOrigin;

/// One generation of an answer.
pub(super) struct StoredGeneration<'a> {
    pub(super) id: u32,
    pub(super) method: Method,
    pub(super) rule: AcceptanceRule,
    pub(super) seed: u64,
    pub(super) prompt_tokens: u32,
    pub(super) events: &'a [GenerationEvent],
}

/// Slot of a token in its generation: round and position in the round.
pub(super) type TokenSlot = (u32, u32);

/// A drafted token that was tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TestedDraft<'a> {
    pub(super) accepted: bool,
    pub(super) slot: TokenSlot,
    /// Number of siblings that were rejected before it.
    pub(super) rank: u32,
    pub(super) text: &'a str,
    /// Draft probability. `None` for a certain draft.
    pub(super) q: Option<f64>,
    /// Acceptance probability of rejection sampling: min(1, p / q), or p for a certain draft.
    pub(super) chance: f64,
    /// p / q, or p for a certain draft. May exceed 1.
    pub(super) ratio: f64,
    /// Token emitted in this slot. `None` if the answer ended before it.
    pub(super) token: Option<&'a TokenEvent>,
}

impl TestedDraft<'_> {
    /// Returns the draft's confidence: q, or the probability of a greedy draft. `None` if no model drafted.
    pub(super) fn confidence(&self) -> Option<f64> {
        let guesses = || {
            let guesses = &self.token?.guesses;
            // A greedy draft is the first guess.
            guesses.first().map(|guess| f64::from(guess.2))
        };
        self.q.or_else(guesses)
    }
}

/// Returns the generations of an answer, in order.
pub(super) fn generations(events: &[GenerationEvent]) -> impl Iterator<Item = StoredGeneration<'_>> {
    let begins = |event: &GenerationEvent| matches!(event, GenerationEvent::Started { .. });
    events.chunk_by(move |_, next| !begins(next)).filter_map(|events| match events.first()? {
        &GenerationEvent::Started { generation_id: id, method, rule, seed, prompt_tokens, .. } => {
            Some(StoredGeneration { id, method, rule, seed, prompt_tokens, events })
        }
        _ => None,
    })
}

impl<'a> StoredGeneration<'a> {
    /// Returns the rounds, in order.
    pub(super) fn rounds(&self) -> impl Iterator<Item = &'a RoundEvent> {
        self.events.iter().filter_map(|event| match event {
            GenerationEvent::Round(round) => Some(round),
            _ => None,
        })
    }

    /// Returns the final figures, if the generation finished.
    pub(super) fn stats(&self) -> Option<&'a GenerationStats> {
        self.events.iter().find_map(|event| match event {
            GenerationEvent::Finished { stats, .. } => Some(stats),
            _ => None,
        })
    }

    /// Returns the drawn tokens by slot.
    fn tokens(&self) -> BTreeMap<TokenSlot, &'a TokenEvent> {
        let tokens = self.events.iter().flat_map(GenerationEvent::tokens);
        let drawn = tokens.filter(|token| token.origin != TokenOrigin::Chosen);
        drawn.map(|token| ((token.round, token.position), token)).collect()
    }

    /// Returns the tested drafts by slot, rejected ones first.
    pub(super) fn tested(&self) -> Vec<TestedDraft<'a>> {
        let tokens = self.tokens();
        let mut tested: Vec<TestedDraft<'a>> = Vec::new();
        for round in self.rounds() {
            tested.extend(round.rejected.iter().map(|token| {
                let slot = (round.round, token.position);
                let (p, q) = (f64::from(token.p), token.q.map(f64::from));
                TestedDraft {
                    accepted: false,
                    slot,
                    rank: 0,
                    text: &token.text,
                    q,
                    chance: theory::token_acceptance(p, q.unwrap_or(1.0), 1.0),
                    ratio: ratio(p, q),
                    token: tokens.get(&slot).copied(),
                }
            }));
        }
        let accepted = tokens.iter().filter(|(_, token)| token.origin == TokenOrigin::Accepted);
        tested.extend(accepted.map(|(&slot, &token)| {
            let (p, q) = (f64::from(token.p), token.q.map(f64::from));
            // p does not account for rejected siblings, the threshold does.
            let exact = token.threshold.filter(|_| self.rule == AcceptanceRule::Lossless);
            let chance = theory::token_acceptance(p, q.unwrap_or(1.0), 1.0);
            TestedDraft {
                accepted: true,
                slot,
                rank: 0,
                text: &token.text,
                q,
                chance: exact.map_or(chance, |threshold| f64::from(threshold).clamp(0.0, 1.0)),
                ratio: ratio(p, q),
                token: Some(token),
            }
        }));
        tested.sort_by_key(|draft| (draft.slot, draft.accepted));
        for at in 1..tested.len() {
            if tested[at].slot == tested[at - 1].slot {
                tested[at].rank = tested[at - 1].rank + 1;
            }
        }
        tested
    }

    /// Returns whether a drafted token has siblings: a slot has several tests, or a recorded draft branches.
    pub(super) fn branches(&self, tested: &[TestedDraft<'_>]) -> bool {
        let follows =
            |(at, parent): (usize, Option<u32>)| parent.map(|parent| parent as usize) == at.checked_sub(1);
        let is_chain =
            |round: &RoundEvent| round.draft.iter().map(|drafted| drafted.parent).enumerate().all(follows);
        tested.iter().any(|draft| draft.rank > 0) || !self.rounds().all(is_chain)
    }

    /// Returns the fingerprints of the drafting rounds, by round. Answers that share a round share its fingerprint.
    pub(super) fn fingerprints(&self) -> BTreeMap<u32, RoundId> {
        let print = |round: &RoundEvent| {
            let request = (self.id, self.seed, self.prompt_tokens);
            (round.round, (request, round.round, round.timing.target_ms.to_bits()))
        };
        self.rounds().filter(|round| round.drafted > 0).map(print).collect()
    }
}

/// Identity of a round: the generation's id, seed and prompt length, the round, and the time of its target pass.
pub(super) type RoundId = ((u32, u64, u32), u32, u64);

/// Returns p / q, or 0 if it is not finite.
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

    /// Creates the first event of a generation.
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

    /// Creates a token. Sampled drafts have q.
    pub(in crate::lab) fn token(
        slot: TokenSlot,
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
            round: slot.0,
            position: slot.1,
        }
    }

    /// Creates a rejected draft.
    pub(in crate::lab) fn rejected(position: u32, text: &str, p: f32, q: Option<f32>) -> RejectedEvent {
        RejectedEvent { id: 2, text: text.into(), p, q, u: Some(0.99), position }
    }

    /// Creates a round of three drafted tokens: 2 ms per drafted token, 10 ms target pass, 1 ms for the rest.
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

    /// Creates the last event, with tokens that were held back.
    pub(in crate::lab) fn finished(tokens: Vec<TokenEvent>, stats: GenerationStats) -> GenerationEvent {
        GenerationEvent::Finished { stop: StopReason::MaxTokens, tokens, stats }
    }

    #[test]
    fn tokens_belong_to_their_round_whatever_their_event() {
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
        let all: Vec<StoredGeneration<'_>> = generations(&events).collect();
        assert_eq!((all.len(), all[0].id, all[0].method), (1, 1, Method::DraftModel));
        let tested = all[0].tested();
        let shown: Vec<_> = tested.iter().map(|t| (t.text, t.slot, t.accepted, t.chance)).collect();
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
        assert_eq!(tested[1].token.map(|t| t.text.as_str()), Some("b"), "it replaced the rejected one");
        assert_eq!(tested[3].token, None, "the answer ended there");
    }

    #[test]
    fn separates_generations_of_one_answer() {
        let accepted = |text| vec![token((0, 0), text, TokenOrigin::Accepted, 1.0, None)];
        let chosen = token((1, 0), "!", TokenOrigin::Chosen, 1.0, None);
        let events = [
            started(1, Method::Ngram, AcceptanceRule::Lossless),
            round(0, accepted("a"), vec![]),
            GenerationEvent::Round(RoundEvent::of_tokens(1, vec![chosen])),
            started(2, Method::Suffix, AcceptanceRule::Lossless),
            round(0, accepted("b"), vec![]),
        ];
        let texts =
            |g: StoredGeneration<'_>| g.tested().iter().map(|t| t.text.to_owned()).collect::<Vec<_>>();
        assert_eq!(generations(&events).map(texts).collect::<Vec<_>>(), [["a"], ["b"]]);
        assert_eq!(generations(&events[1..3]).count(), 0, "a generation without its first event is ignored");
    }
}
