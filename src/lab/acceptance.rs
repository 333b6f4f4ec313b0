//! Acceptance of drafted tokens by position, kind, entropy and confidence, counted from stored answers.

use std::collections::{BTreeMap, HashSet};

use crate::event::GenerationEvent;
use crate::lab::history::{RoundId, StoredGeneration, TestedDraft, TokenSlot, generations};
use crate::lab::kind::{TextContext, TextReader, TokenKind};
use crate::lab::report::{AcceptanceBin, AcceptanceMap};
use hunch_core::theory;

/// Lower bounds of the ranges of entropy, in bits. The last range has no upper bound.
const BITS: [f64; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0];
/// Number of ranges of the draft's probability.
const TENTHS: usize = 10;

/// Counts of the drafted tokens of many answers.
///
/// A round shared by two answers, because one continues the other, counts once. The expected share is that of
/// rejection sampling, min(1, p / q). Under other rules it is what rejection sampling would have accepted of the same
/// drafts. A draft model that takes its most likely token has no q; its confidence is the probability of that token.
#[derive(Clone, Debug, Default)]
pub struct AcceptanceTally {
    answers: u32,
    tested: u32,
    seen: HashSet<RoundId>,
    by_position: BTreeMap<u32, Count>,
    by_kind: BTreeMap<TokenKind, Count>,
    by_entropy: BTreeMap<usize, Count>,
    by_confidence: BTreeMap<usize, Count>,
}

/// Counts of the tokens of one group.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    tested: u32,
    accepted: u32,
    expected: f64,
    confidence: f64,
    confident: u32,
}

impl Count {
    fn add(&mut self, draft: &TestedDraft<'_>) {
        self.tested += 1;
        self.accepted += u32::from(draft.accepted);
        self.expected += draft.chance;
        if let Some(confidence) = draft.confidence() {
            self.confidence += confidence;
            self.confident += 1;
        }
    }

    fn bin(&self, key: String) -> AcceptanceBin {
        let (low, high) = theory::wilson_interval(self.accepted.into(), self.tested.into());
        let tested = f64::from(self.tested.max(1));
        AcceptanceBin {
            key,
            tested: self.tested,
            accepted: self.accepted,
            share: f64::from(self.accepted) / tested,
            low,
            high,
            expected: self.expected / tested,
            confidence: (self.confident > 0).then(|| self.confidence / f64::from(self.confident)),
        }
    }
}

impl AcceptanceTally {
    /// Adds the events of an answer.
    pub fn add(&mut self, events: &[GenerationEvent]) {
        let mut reader = TextReader::default();
        let mut drafted = false;
        for generation in generations(events) {
            let contexts = contexts(&generation, &mut reader);
            let prints = generation.fingerprints();
            let fresh: HashSet<u32> = prints
                .into_iter()
                .filter(|(_, print)| self.seen.insert(*print))
                .map(|(round, _)| round)
                .collect();
            drafted |= !fresh.is_empty();
            for draft in generation.tested().iter().filter(|draft| fresh.contains(&draft.slot.0)) {
                self.count(draft, context_of(&contexts, draft.slot));
            }
        }
        self.answers += u32::from(drafted);
    }

    fn count(&mut self, draft: &TestedDraft<'_>, context: TextContext) {
        self.tested += 1;
        self.by_position.entry(draft.slot.1).or_default().add(draft);
        self.by_kind.entry(TokenKind::of(draft.text, context)).or_default().add(draft);
        if let Some(nats) = draft.token.and_then(|token| token.entropy) {
            let bits = f64::from(nats) / std::f64::consts::LN_2;
            let range = BITS.partition_point(|from| *from <= bits).saturating_sub(1);
            self.by_entropy.entry(range).or_default().add(draft);
        }
        if let Some(confidence) = draft.confidence() {
            let range = ((confidence * TENTHS as f64) as usize).min(TENTHS - 1);
            self.by_confidence.entry(range).or_default().add(draft);
        }
    }

    /// Returns the statistics. Empty groups are left out.
    pub fn map(&self) -> AcceptanceMap {
        let tenth = |range: usize| range as f64 / TENTHS as f64;
        AcceptanceMap {
            answers: self.answers,
            tested: self.tested,
            by_position: bins(&self.by_position, |position| position.to_string()),
            by_kind: bins(&self.by_kind, |kind| kind.name().to_owned()),
            by_entropy: bins(&self.by_entropy, |&range| match BITS.get(range + 1) {
                Some(to) => format!("{}-{to}", BITS[range]),
                None => format!("{}+", BITS[range]),
            }),
            by_confidence: bins(&self.by_confidence, |&range| {
                format!("{}-{}", tenth(range), tenth(range + 1))
            }),
        }
    }
}

fn bins<K>(counts: &BTreeMap<K, Count>, key: impl Fn(&K) -> String) -> Vec<AcceptanceBin> {
    counts.iter().map(|(of, count)| count.bin(key(of))).collect()
}

/// Returns the context before and after each token of a generation. `reader` has read the text before it.
fn contexts(
    generation: &StoredGeneration<'_>,
    reader: &mut TextReader,
) -> BTreeMap<TokenSlot, (TextContext, TextContext)> {
    let mut contexts = BTreeMap::new();
    for token in generation.events.iter().flat_map(GenerationEvent::tokens) {
        let before = reader.context();
        reader.read(&token.text);
        contexts.insert((token.round, token.position), (before, reader.context()));
    }
    contexts
}

/// Returns the context before a slot. If the slot has no token, it is the context after the previous token.
fn context_of(contexts: &BTreeMap<TokenSlot, (TextContext, TextContext)>, slot: TokenSlot) -> TextContext {
    match contexts.range(..=slot).next_back() {
        Some((at, (before, _))) if *at == slot => *before,
        Some((_, (_, after))) => *after,
        None => TextContext::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Alternative;
    use crate::lab::history::tests::{finished, rejected, round, started, token};
    use hunch_core::method::Method;
    use hunch_core::rule::AcceptanceRule;
    use hunch_core::stats::GenerationStats;
    use hunch_core::token::TokenOrigin::{Accepted, Bonus, Plain, Resampled};

    fn map(answers: &[&[GenerationEvent]]) -> AcceptanceMap {
        let mut tally = AcceptanceTally::default();
        answers.iter().for_each(|events| tally.add(events));
        tally.map()
    }

    fn keys(bins: &[AcceptanceBin]) -> Vec<(&str, u32, u32)> {
        bins.iter().map(|bin| (bin.key.as_str(), bin.tested, bin.accepted)).collect()
    }

    fn answer() -> Vec<GenerationEvent> {
        vec![
            started(1, Method::DraftModel, AcceptanceRule::Lossless),
            round(
                0,
                vec![
                    token((0, 0), "The", Accepted, 0.5, Some(0.25)),
                    token((0, 1), " cat", Accepted, 0.4, Some(0.95)),
                    token((0, 2), "s", Resampled, 0.3, None),
                ],
                vec![rejected(2, ".", 0.1, Some(0.4))],
            ),
            round(
                1,
                vec![token((1, 0), "\n", Accepted, 1.0, Some(1.0))],
                vec![rejected(1, " 12", 0.0, Some(0.5))],
            ),
            // Held back for a possible stop string.
            finished(vec![token((1, 1), "!", Resampled, 0.3, None)], GenerationStats::default()),
        ]
    }

    #[test]
    fn map_matches_a_hand_computed_example() {
        let map = map(&[&answer()]);
        assert_eq!((map.answers, map.tested), (1, 5));
        assert_eq!(keys(&map.by_position), [("0", 2, 2), ("1", 2, 1), ("2", 1, 0)]);
        assert_eq!(
            keys(&map.by_kind),
            [("word", 2, 2), ("space", 1, 1), ("number", 1, 0), ("punctuation", 1, 0)]
        );
        assert_eq!(keys(&map.by_entropy), [("1-2", 5, 3)], "ln 2 nats are one bit");
        assert_eq!(
            keys(&map.by_confidence),
            [("0.2-0.3", 1, 1), ("0.4-0.5", 1, 0), ("0.5-0.6", 1, 0), ("0.9-1", 2, 2)]
        );
        let second = &map.by_position[1];
        assert_eq!(second.share, 0.5);
        assert!((second.expected - 0.5 * 0.4 / 0.95).abs() < 1e-6, "{second:?}");
        assert_eq!((second.low, second.high), theory::wilson_interval(1, 2));
    }

    #[test]
    fn shared_rounds_count_once() {
        let first = answer();
        // Another answer continues after the first round.
        let mut continued = first[..2].to_vec();
        continued.push(started(2, Method::DraftModel, AcceptanceRule::Lossless));
        continued.push(round(0, vec![token((0, 0), "ters", Accepted, 0.5, Some(0.5))], vec![]));
        let both = map(&[&first, &continued]);
        assert_eq!((both.answers, both.tested), (2, 6));
        // "ters" continues the word "cats".
        assert_eq!(keys(&both.by_kind)[1], ("part", 1, 1));
        assert_eq!(map(&[&continued]).tested, 4);
        assert_eq!(map(&[&first, &first]), map(&[&first]));
    }

    #[test]
    fn answers_without_drafts_are_not_counted() {
        let plain = [
            started(1, Method::Plain, AcceptanceRule::Lossless),
            GenerationEvent::Round(crate::event::RoundEvent::of_tokens(
                0,
                vec![token((0, 0), "a", Plain, 1.0, None)],
            )),
        ];
        assert_eq!(map(&[&plain, &[]]), AcceptanceMap::default());
    }

    #[test]
    fn confidence_of_greedy_draft_is_its_probability() {
        let guess = |p| vec![Alternative(1, "a".into(), p)];
        let mut kept = token((0, 0), "a", Accepted, 1.0, None);
        kept.guesses = guess(0.85);
        let mut instead = token((0, 1), "b", Resampled, 1.0, None);
        instead.guesses = guess(0.15);
        let events = [
            started(1, Method::DraftModel, AcceptanceRule::Lossless),
            round(0, vec![kept, instead], vec![rejected(1, "c", 0.0, None)]),
        ];
        let map = map(&[&events]);
        assert_eq!(keys(&map.by_confidence), [("0.1-0.2", 1, 0), ("0.8-0.9", 1, 1)]);
        assert_eq!((map.by_position[0].expected, map.by_position[1].expected), (1.0, 0.0));
    }

    #[test]
    fn draft_after_the_end_has_a_context() {
        let events = [
            started(1, Method::Ngram, AcceptanceRule::Lossless),
            round(0, vec![token((0, 0), "```\n", Bonus, 1.0, None)], vec![]),
            round(1, vec![], vec![rejected(0, " x", 0.2, None)]),
        ];
        let map = map(&[&events]);
        assert_eq!((keys(&map.by_kind), map.by_entropy), (vec![("code", 1, 0)], vec![]));
    }
}
