//! What the last generations have told, for a reader that missed some of it. The events of an answer that is over
//! and stored are let go and read from the store when they are asked for.

use std::sync::Arc;

use super::stream::EventLog;
use crate::event::GenerationEvent;
use crate::store::Store;
use hunch_error::{Error, Result};

/// The events of one generation, in memory or in the store.
#[derive(Clone)]
pub(super) struct Record {
    id: u32,
    answer: i64,
    /// Events that the store has of the answer from before this generation.
    begun_with: usize,
    told: Told,
}

#[derive(Clone)]
enum Told {
    Log(Arc<EventLog<GenerationEvent>>),
    /// Those that the store does not have, each in its place; `None` is the next one of the store.
    Stored(Arc<[Option<GenerationEvent>]>),
}

impl Record {
    /// Of a generation whose events are kept in the message `answer`.
    pub(super) fn new(log: Arc<EventLog<GenerationEvent>>, answer: i64, begun_with: usize) -> Self {
        Self { id: log.id(), answer, begun_with, told: Told::Log(log) }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn answer(&self) -> i64 {
        self.answer
    }

    /// Returns the events from number `from` on, in order.
    ///
    /// # Errors
    /// When the store cannot give back what it has of it.
    pub(super) fn events(&self, store: &Store, from: usize) -> Result<Vec<GenerationEvent>> {
        let slots = match &self.told {
            Told::Log(log) => return Ok(log.after(from, usize::MAX)),
            Told::Stored(slots) => slots,
        };
        let mut stored = store.events(self.answer)?.into_iter().skip(self.begun_with);
        let whole: Option<Vec<_>> = slots.iter().map(|slot| slot.clone().or_else(|| stored.next())).collect();
        let whole =
            whole.ok_or_else(|| Error::Internal("the stored answer is shorter than it was".into()))?;
        Ok(whole.into_iter().skip(from).collect())
    }

    /// Lets go of what the store has.
    pub(super) fn let_go(&mut self) {
        if let Told::Log(log) = &self.told {
            let slots = log.events().into_iter().map(|event| Some(event).filter(|event| !is_stored(event)));
            self.told = Told::Stored(slots.collect());
        }
    }
}

/// Whether the keeper writes this event to the store.
fn is_stored(event: &GenerationEvent) -> bool {
    use GenerationEvent::{GivenUp, Kept, NotKept, Prefill};
    !matches!(event, Prefill { .. } | NotKept { .. } | Kept | GivenUp { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AnswerSettings;
    use crate::event::{RoundEvent, StopReason};
    use hunch_core::depth::MaxDraft;
    use hunch_core::method::Method;
    use hunch_core::sample::SamplingParams;
    use hunch_core::stats::GenerationStats;

    fn round(number: u32) -> GenerationEvent {
        GenerationEvent::Round(RoundEvent::of_tokens(number, Vec::new()))
    }

    #[test]
    fn stored_events_are_let_go_and_come_back_in_their_places() {
        let store = Store::in_memory().unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Hi", 1).unwrap();
        let settings = AnswerSettings {
            method: Method::Ngram,
            max_draft: MaxDraft::Auto,
            max_tokens: 64,
            sampling: SamplingParams::greedy(),
            rule: Default::default(),
            stop: Vec::new(),
            target: "Tiny".into(),
            draft: None,
        };
        let answer = store.begin_answer(chat, question, &settings, 1).unwrap();
        let finished = GenerationEvent::Finished {
            stop: StopReason::EndOfTurn,
            tokens: Vec::new(),
            stats: GenerationStats::default(),
        };
        let begun_with = [round(90), round(91)];
        let told = [
            GenerationEvent::Prefill { done: 1, total: 2 },
            round(0),
            GenerationEvent::Kept,
            round(1),
            finished,
        ];
        let kept: Vec<_> = told.iter().filter(|event| is_stored(event)).cloned().collect();
        store.append_events(answer, &[&begun_with[..], &kept].concat()).unwrap();

        let (log, writer) = EventLog::open(5);
        let memory = Arc::downgrade(&log);
        told.iter().for_each(|event| writer.put(event.clone()));
        drop(writer);
        let mut record = Record::new(log, answer, begun_with.len());
        let from = |record: &Record, from| record.events(&store, from).unwrap();
        assert_eq!((from(&record, 0), from(&record, 3)), (told.to_vec(), told[3..].to_vec()));
        record.let_go();
        assert!(memory.upgrade().is_none(), "the log is still in memory");
        assert_eq!((from(&record, 0), from(&record, 3)), (told.to_vec(), told[3..].to_vec()));
        assert_eq!(from(&record, 99), []);
        // What the store lost is an error, not a shorter answer.
        store.remove_conversation(chat).unwrap();
        assert!(record.events(&store, 0).is_err());
    }
}
