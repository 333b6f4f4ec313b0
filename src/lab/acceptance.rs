//! Where drafted tokens are accepted: by their position in the draft, by kind, by how open the target found
//! the place, and by how sure the draft was. Counted from what was stored of answers.

use std::collections::{BTreeMap, HashSet};

use crate::event::GenerationEvent;
use crate::lab::history::{Fingerprint, Generation, Spot, TestedDraft, generations};
use crate::lab::kind::{Kind, Reader, TextPlace};
use crate::lab::report::{AcceptanceBin, AcceptanceMap};
use hunch_core::theory;

/// Where ranges of entropy begin, in bits; the last has no end.
const BITS: [f64; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0];
/// Ranges of the draft's probability: tenths.
const TENTHS: usize = 10;

/// The drafted tokens of many answers, counted as the answers come.
///
/// A round that two answers share, because one goes on from the other, counts once. The expected share is
/// that of rejection sampling, min(1, p / q): under the other rules it is what that would have accepted of the
/// same drafts. A model that takes its likeliest token drafts without chance; its confidence is then the
/// probability it gave that token.
#[derive(Clone, Debug, Default)]
pub struct AcceptanceTally {
    answers: u32,
    tested: u32,
    seen: HashSet<Fingerprint>,
    by_position: BTreeMap<u32, Count>,
    by_kind: BTreeMap<Kind, Count>,
    by_entropy: BTreeMap<usize, Count>,
    by_confidence: BTreeMap<usize, Count>,
}

/// Tokens that have something in common.
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
    /// Adds an answer by its events.
    pub fn add(&mut self, events: &[GenerationEvent]) {
        let mut reader = Reader::default();
        let mut drafted = false;
        for generation in generations(events) {
            let places = places(&generation, &mut reader);
            let prints = generation.fingerprints();
            let fresh: HashSet<u32> = prints
                .into_iter()
                .filter(|(_, print)| self.seen.insert(*print))
                .map(|(round, _)| round)
                .collect();
            drafted |= !fresh.is_empty();
            for draft in generation.tested().iter().filter(|draft| fresh.contains(&draft.spot.0)) {
                self.count(draft, place_of(&places, draft.spot));
            }
        }
        self.answers += u32::from(drafted);
    }

    fn count(&mut self, draft: &TestedDraft<'_>, place: TextPlace) {
        self.tested += 1;
        self.by_position.entry(draft.spot.1).or_default().add(draft);
        self.by_kind.entry(Kind::of(draft.text, place)).or_default().add(draft);
        if let Some(nats) = draft.place.and_then(|token| token.entropy) {
            let bits = f64::from(nats) / std::f64::consts::LN_2;
            let range = BITS.partition_point(|from| *from <= bits).saturating_sub(1);
            self.by_entropy.entry(range).or_default().add(draft);
        }
        if let Some(confidence) = draft.confidence() {
            let range = ((confidence * TENTHS as f64) as usize).min(TENTHS - 1);
            self.by_confidence.entry(range).or_default().add(draft);
        }
    }

    /// What was counted; groups that nothing fell into are left out.
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

/// The text before and behind each token of a generation. `reader` has read what came before it.
fn places(generation: &Generation<'_>, reader: &mut Reader) -> BTreeMap<Spot, (TextPlace, TextPlace)> {
    let mut places = BTreeMap::new();
    for token in generation.events.iter().flat_map(GenerationEvent::tokens) {
        let before = reader.place();
        reader.read(&token.text);
        places.insert((token.round, token.position), (before, reader.place()));
    }
    places
}

/// The text before a spot; where no token came to stand, that behind the token before it.
fn place_of(places: &BTreeMap<Spot, (TextPlace, TextPlace)>, spot: Spot) -> TextPlace {
    match places.range(..=spot).next_back() {
        Some((at, (before, _))) if *at == spot => *before,
        Some((_, (_, behind))) => *behind,
        None => TextPlace::default(),
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
            // It waited for a stop string.
            finished(vec![token((1, 1), "!", Resampled, 0.3, None)], GenerationStats::default()),
        ]
    }

    #[test]
    fn a_map_by_hand() {
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
        // Another answer goes on from its first round.
        let mut on = first[..2].to_vec();
        on.push(started(2, Method::DraftModel, AcceptanceRule::Lossless));
        on.push(round(0, vec![token((0, 0), "ters", Accepted, 0.5, Some(0.5))], vec![]));
        let both = map(&[&first, &on]);
        assert_eq!((both.answers, both.tested), (2, 6));
        // "ters" goes on from "The cats".
        assert_eq!(keys(&both.by_kind)[1], ("part", 1, 1));
        assert_eq!(map(&[&on]).tested, 4);
        assert_eq!(map(&[&first, &first]), map(&[&first]));
    }

    #[test]
    fn what_drafted_nothing_is_no_answer_of_the_map() {
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
    fn without_chance_the_drafts_own_probability_is_its_confidence() {
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
    fn a_draft_where_the_answer_ended_still_has_a_place() {
        let events = [
            started(1, Method::Ngram, AcceptanceRule::Lossless),
            round(0, vec![token((0, 0), "```\n", Bonus, 1.0, None)], vec![]),
            round(1, vec![], vec![rejected(0, " x", 0.2, None)]),
        ];
        let map = map(&[&events]);
        assert_eq!((keys(&map.by_kind), map.by_entropy), (vec![("code", 1, 0)], vec![]));
    }
}
