//! Events of recent generations, for a reader that missed some. The events of a stored answer are released and read
//! from the store on request.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lock::RankedMutex;
use super::stream::EventLog;
use crate::api::MessageState;
use crate::event::GenerationEvent;
use crate::store::Store;
use hunch_error::{Error, Refusal, Result};

/// Number of recent generations whose events can be fetched again.
const KEPT: usize = 4;

/// Events of a generation, in memory or in the store.
#[derive(Clone)]
pub(super) struct GenerationRecord {
    id: u32,
    answer: i64,
    /// Number of events the store had of the answer before this generation.
    begun_with: usize,
    events: RecordEvents,
}

#[derive(Clone)]
enum RecordEvents {
    Log(Arc<EventLog<GenerationEvent>>),
    /// Events that are not stored, at their positions. `None` stands for the next stored event.
    Stored(Arc<[Option<GenerationEvent>]>),
}

impl GenerationRecord {
    /// Makes the record of a generation whose events are stored in the message `answer`.
    pub(super) fn new(log: Arc<EventLog<GenerationEvent>>, answer: i64, begun_with: usize) -> Self {
        Self { id: log.id(), answer, begun_with, events: RecordEvents::Log(log) }
    }

    /// Returns the events from number `from` on, in order.
    ///
    /// # Errors
    /// When the stored events cannot be read.
    pub(super) fn events(&self, store: &Store, from: usize) -> Result<Vec<GenerationEvent>> {
        let slots = match &self.events {
            RecordEvents::Log(log) => return Ok(log.after(from, usize::MAX)),
            RecordEvents::Stored(slots) => slots,
        };
        let mut stored = store.events(self.answer)?.into_iter().skip(self.begun_with);
        let whole: Option<Vec<_>> = slots.iter().map(|slot| slot.clone().or_else(|| stored.next())).collect();
        let whole =
            whole.ok_or_else(|| Error::Internal("the stored answer is shorter than it was".into()))?;
        Ok(whole.into_iter().skip(from).collect())
    }

    /// Releases the events that are stored.
    fn release(&mut self) {
        if let RecordEvents::Log(log) = &self.events {
            let slots = log.events().into_iter().map(|event| Some(event).filter(|event| !is_stored(event)));
            self.events = RecordEvents::Stored(slots.collect());
        }
    }
}

/// Events of the most recent generations.
#[derive(Default)]
pub(super) struct GenerationRecords(RankedMutex<VecDeque<GenerationRecord>>);

impl GenerationRecords {
    pub(super) fn add(&self, record: GenerationRecord) {
        self.0.lock().push_back(record);
    }

    /// Removes the record of a generation that did not start.
    pub(super) fn remove(&self, id: u32) {
        self.0.lock().retain(|record| record.id != id);
    }

    /// Removes all records but the most recent ones.
    pub(super) fn drop_oldest(&self) {
        let mut records = self.0.lock();
        let old = records.len().saturating_sub(KEPT);
        drop(records.drain(..old));
    }

    /// Releases the events of an answer that has ended, if the store has them.
    pub(super) fn release(&self, id: u32, store: &Store) {
        let mut records = self.0.lock();
        let Some(record) = records.iter_mut().find(|record| record.id == id) else { return };
        if store.message(record.answer).is_ok_and(|(_, message)| message.state != MessageState::Streaming) {
            record.release();
        }
    }

    /// Returns the record of a generation.
    ///
    /// # Errors
    /// [`Refusal::NoLongerKept`] when it is not among the recent ones.
    pub(super) fn find(&self, id: u32) -> Result<GenerationRecord> {
        let found = self.0.lock().iter().find(|record| record.id == id).cloned();
        found.ok_or_else(|| Refusal::NoLongerKept.into())
    }
}

/// Returns whether the answer's writer stores this event to the store.
fn is_stored(event: &GenerationEvent) -> bool {
    use GenerationEvent::{GivenUp, Kept, NotKept, Prefill};
    !matches!(event, Prefill { .. } | NotKept { .. } | Kept | GivenUp { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{RoundEvent, StopReason};
    use crate::store::answer_settings;
    use hunch_core::stats::GenerationStats;

    fn round(number: u32) -> GenerationEvent {
        GenerationEvent::Round(RoundEvent::of_tokens(number, Vec::new()))
    }

    #[test]
    fn releases_stored_events_and_reads_them_back_in_order() {
        let store = Store::in_memory().unwrap();
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Hi", 1).unwrap();
        let answer = store.begin_answer(chat, question, &answer_settings(), 1).unwrap();
        let finished = GenerationEvent::Finished {
            stop: StopReason::EndOfTurn,
            tokens: Vec::new(),
            stats: GenerationStats::default(),
        };
        let begun_with = [round(90), round(91)];
        let sent = [
            GenerationEvent::Prefill { done: 1, total: 2 },
            round(0),
            GenerationEvent::Kept,
            round(1),
            finished,
        ];
        let kept: Vec<_> = sent.iter().filter(|event| is_stored(event)).cloned().collect();
        store.append_events(answer, &[&begun_with[..], &kept].concat()).unwrap();

        let (log, writer) = EventLog::open(5);
        let memory = Arc::downgrade(&log);
        sent.iter().for_each(|event| writer.put(event.clone()));
        drop(writer);
        let mut record = GenerationRecord::new(log, answer, begun_with.len());
        let from = |record: &GenerationRecord, from| record.events(&store, from).unwrap();
        assert_eq!((from(&record, 0), from(&record, 3)), (sent.to_vec(), sent[3..].to_vec()));
        record.release();
        assert!(memory.upgrade().is_none(), "the log is still in memory");
        assert_eq!((from(&record, 0), from(&record, 3)), (sent.to_vec(), sent[3..].to_vec()));
        assert_eq!(from(&record, 99), []);
        // Missing stored events are an error, not a shorter answer.
        store.remove_conversation(chat).unwrap();
        assert!(record.events(&store, 0).is_err());
    }
}
