//! Events of recent generations, for a reader that missed some. The events of a stored answer are released and read
//! from the store on request.

use std::sync::Arc;

use super::stream::EventLog;
use crate::event::GenerationEvent;
use crate::store::Store;
use hunch_error::{Error, Result};

/// Events of a generation, in memory or in the store.
#[derive(Clone)]
pub(super) struct Record {
    id: u32,
    answer: i64,
    /// Number of events the store had of the answer before this generation.
    begun_with: usize,
    told: Told,
}

#[derive(Clone)]
enum Told {
    Log(Arc<EventLog<GenerationEvent>>),
    /// Events that are not stored, at their positions. `None` stands for the next stored event.
    Stored(Arc<[Option<GenerationEvent>]>),
}

impl Record {
    /// Makes the record of a generation whose events are stored in the message `answer`.
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
    /// When the stored events cannot be read.
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

    /// Releases the events that are stored.
    pub(super) fn let_go(&mut self) {
        if let Told::Log(log) = &self.told {
            let slots = log.events().into_iter().map(|event| Some(event).filter(|event| !is_stored(event)));
            self.told = Told::Stored(slots.collect());
        }
    }
}

/// Returns whether the keeper writes this event to the store.
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
    fn releases_stored_events_and_reads_them_back_in_order() {
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
        // Missing stored events are an error, not a shorter answer.
        store.remove_conversation(chat).unwrap();
        assert!(record.events(&store, 0).is_err());
    }
}
