//! Writes the events of an answer to the store from its own thread, so that the engine never waits for the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::stream::{EventLog, LogWriter};
use crate::api::MessageState;
use crate::clock::now;
use crate::event::{EventSink, GenerationEvent};
use crate::log::panic_text;
use crate::services::measure::SpeedRecorder;
use crate::store::{Store, StoreError};
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_error::{Error, ErrorInfo, Refusal, Result};
use parking_lot::{Condvar, Mutex};

/// Time between two writes. A crash costs at most this much of an answer, and the time of one write.
const WRITTEN_EVERY: Duration = Duration::from_millis(200);
/// Maximum delay between two attempts while the store refuses.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time from the end of an answer until it is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of events a write, which bounds its memory and the time others wait for it.
const BATCH: usize = 256;

/// Counts the answers being written.
#[derive(Default)]
pub(super) struct AnswerWriters {
    open: Mutex<Open>,
    changed: Condvar,
}

#[derive(Default)]
struct Open {
    /// Answers whose end has not been attempted yet.
    unwritten: usize,
    /// Running threads, including those that retry.
    threads: usize,
    /// `true` if the next attempt of every writer is its last.
    closing: bool,
}

impl AnswerWriters {
    /// Waits until the end of every answer is written or refused, at most for `patience`.
    pub(super) fn settle(&self, patience: Duration) {
        self.changed.wait_while_for(&mut self.open.lock(), |open| open.unwritten > 0, patience);
    }

    /// Makes every writer attempt its last write, and waits at most for `patience`.
    pub(super) fn close(&self, patience: Duration) {
        let mut open = self.open.lock();
        open.closing = true;
        self.changed.wait_while_for(&mut open, |open| open.threads > 0, patience);
    }

    /// Makes every writer attempt its last write. Returns whether all of them ended within `patience`. New answers
    /// can be kept afterwards.
    pub(super) fn give_up(&self, patience: Duration) -> bool {
        let mut open = self.open.lock();
        let before = std::mem::replace(&mut open.closing, true);
        let waited = self.changed.wait_while_for(&mut open, |open| open.threads > 0, patience);
        open.closing = before;
        !waited.timed_out()
    }

    fn change(&self, change: impl FnOnce(&mut Open)) {
        change(&mut self.open.lock());
        self.changed.notify_all();
    }

    fn closing(&self) -> bool {
        self.open.lock().closing
    }
}

/// Engine's handle to an answer being written. Dropping it without an end interrupts the answer.
pub(super) struct AnswerWriter(Arc<End>);

#[derive(Default)]
struct End {
    state: Mutex<EndState>,
    changed: Condvar,
}

#[derive(Default)]
enum EndState {
    #[default]
    Open,
    /// The last event, sent to the window once it is written or refused.
    Event(Box<GenerationEvent>),
    /// The handle was dropped without a last event.
    Dropped,
}

impl AnswerWriter {
    /// Starts writing the events of `log` to the message `answer`. `on_refusal` is called with each refusal.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(
        writers: &Arc<AnswerWriters>,
        store: Arc<Store>,
        answer: i64,
        log: Arc<EventLog<GenerationEvent>>,
        writer: LogWriter<GenerationEvent>,
        on_refusal: Box<dyn Fn(&Error) + Send>,
    ) -> Result<Self> {
        let end = Arc::<End>::default();
        let work = WriterThread {
            writers: writers.clone(),
            store,
            answer,
            log,
            writer,
            end: end.clone(),
            read: 0,
            refused: false,
            on_refusal,
            pause: WRITTEN_EVERY,
        };
        writers.change(|open| {
            open.unwritten += 1;
            open.threads += 1;
        });
        let spawned = thread::Builder::new().name("hunch-answers".into()).spawn(move || work.run());
        if let Err(error) = spawned {
            writers.change(|open| {
                open.unwritten -= 1;
                open.threads -= 1;
            });
            return Err(Error::Internal(format!("no thread to write the answer: {error}")));
        }
        Ok(Self(end))
    }

    /// Ends the answer with its last event. Does not wait for the store.
    pub(super) fn end(&self, last: GenerationEvent) {
        self.0.set(EndState::Event(Box::new(last)));
    }
}

impl Drop for AnswerWriter {
    fn drop(&mut self) {
        self.0.set(EndState::Dropped);
    }
}

impl End {
    /// Sets the end, unless it is set.
    fn set(&self, end: EndState) {
        let mut state = self.state.lock();
        if matches!(*state, EndState::Open) {
            *state = end;
            self.changed.notify_all();
        }
    }

    /// Waits for the end, at most for `patience`.
    fn within(&self, patience: Duration) -> Option<Option<GenerationEvent>> {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| matches!(state, EndState::Open), patience);
        match &*state {
            EndState::Open => None,
            EndState::Event(last) => Some(Some((**last).clone())),
            EndState::Dropped => Some(None),
        }
    }
}

struct WriterThread {
    writers: Arc<AnswerWriters>,
    store: Arc<Store>,
    answer: i64,
    log: Arc<EventLog<GenerationEvent>>,
    writer: LogWriter<GenerationEvent>,
    end: Arc<End>,
    /// Number of events of the log already written.
    read: usize,
    /// Set while the window shows that the store refuses the answer.
    refused: bool,
    /// Called with the reason of each refusal.
    on_refusal: Box<dyn Fn(&Error) + Send>,
    pause: Duration,
}

impl WriterThread {
    fn run(mut self) {
        let last = loop {
            if let Some(last) = self.end.within(self.pause) {
                break last;
            }
            let written = guarded(|| self.write());
            self.report_refusal(written);
        };
        let mut unwritten = last.clone();
        let written = guarded(|| self.finish(&mut unwritten, last.as_ref()));
        let failed = written.is_err();
        self.report_refusal(written);
        if let Some(last) = &last {
            self.writer.put(last.clone());
        }
        self.writers.change(|open| open.unwritten -= 1);
        if failed {
            self.try_again(unwritten, last.as_ref());
        }
        self.writers.change(|open| open.threads -= 1);
    }

    /// Writes the new events of the log.
    fn write(&mut self) -> Result<()> {
        loop {
            let events = self.log.after(self.read, BATCH);
            if events.is_empty() {
                return Ok(());
            }
            let read = events.len();
            let kept: Vec<_> = events.into_iter().filter(is_kept).collect();
            self.store.append_events(self.answer, &kept)?;
            self.read += read;
        }
    }

    /// Writes the remaining events, then the last event if it is still in `unwritten`, and finishes the answer.
    fn finish(
        &mut self,
        unwritten: &mut Option<GenerationEvent>,
        last: Option<&GenerationEvent>,
    ) -> Result<()> {
        if unwritten.is_some() || last.is_none() {
            self.write()?;
        }
        if let Some(event) = unwritten.as_ref() {
            self.store.append_events(self.answer, std::slice::from_ref(event))?;
            *unwritten = None;
        }
        let state = match last {
            Some(GenerationEvent::Finished { .. } | GenerationEvent::ServerFinished { .. }) => {
                MessageState::Complete
            }
            Some(GenerationEvent::Failed { .. }) => MessageState::Failed,
            _ => MessageState::Interrupted,
        };
        Ok(self.store.finish_answer(self.answer, state, now())?)
    }

    /// Informs the window when the store begins to refuse writes and when it accepts them again.
    fn report_refusal(&mut self, written: Result<()>) {
        match written {
            Ok(()) => {
                self.pause = WRITTEN_EVERY;
                if std::mem::take(&mut self.refused) {
                    self.writer.put(GenerationEvent::Kept);
                }
            }
            Err(error) => {
                (self.on_refusal)(&error);
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                // An answer whose question was removed is not missed.
                if !std::mem::replace(&mut self.refused, true) && !self.is_gone() {
                    self.writer.put(GenerationEvent::NotKept { error: (&error).into() });
                }
            }
        }
    }

    fn is_gone(&self) -> bool {
        let message = guarded(|| Ok(self.store.message(self.answer)));
        matches!(message, Ok(Err(StoreError(Error::Refused(Refusal::NoSuchMessage { .. })))))
    }

    /// Retries until the answer is written, given up, or the application ends.
    fn try_again(&mut self, mut unwritten: Option<GenerationEvent>, last: Option<&GenerationEvent>) {
        let ended = Instant::now();
        while !self.is_gone() {
            let tried = Instant::now();
            while tried.elapsed() < self.pause && !self.writers.closing() {
                thread::sleep(WRITTEN_EVERY);
            }
            let closing = self.writers.closing();
            let written = guarded(|| self.finish(&mut unwritten, last));
            let problem = written.as_ref().err().map(ErrorInfo::from);
            self.report_refusal(written);
            let Some(error) = problem else { return };
            if closing || ended.elapsed() > GIVEN_UP_AFTER {
                tracing::warn!("The answer could not be kept. {}", error.message);
                self.writer.put(GenerationEvent::GivenUp { error });
                return;
            }
        }
    }
}

/// Turns a panic of the store into an error, so that the answer always has an end.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(panic.as_ref());
        Err(Error::Internal(format!("writing the answer stopped unexpectedly ({text})")))
    })
}

/// Returns whether an event of the log is written to the store. Excludes progress, events about the writing itself,
/// and the last event, which is written separately.
fn is_kept(event: &GenerationEvent) -> bool {
    use GenerationEvent::{Failed, Finished, GivenUp, Kept, NotKept, Prefill, ServerFinished};
    !matches!(
        event,
        Prefill { .. }
            | NotKept { .. }
            | Kept
            | GivenUp { .. }
            | Finished { .. }
            | ServerFinished { .. }
            | Failed { .. }
    )
}

/// Sink for the events of an answer. The writer sends the last one once it is written.
pub(super) struct AnswerSink {
    pub(super) answer_writer: AnswerWriter,
    /// Records the speed of the answer.
    pub(super) speeds: Option<SpeedRecorder>,
    pub(super) method: Method,
    pub(super) rule: AcceptanceRule,
    pub(super) log: LogWriter<GenerationEvent>,
    /// Set once an event was sent.
    pub(super) begun: bool,
}

impl Drop for AnswerSink {
    /// Fails an answer that has begun and has no end, so that no reader waits forever.
    fn drop(&mut self) {
        if self.begun || thread::panicking() {
            let error = Error::Internal("the engine ended in the middle of the answer".into());
            self.answer_writer.end(GenerationEvent::Failed { error: (&error).into() });
        }
    }
}

impl EventSink for AnswerSink {
    fn send(&mut self, event: GenerationEvent) {
        self.begun = true;
        match event {
            GenerationEvent::Finished { ref stats, .. } => {
                self.answer_writer.end(event.clone());
                // Written to a file after the end is passed on, because it may take a while.
                if let Some(speeds) = &self.speeds {
                    speeds.record_answer(self.method, self.rule, stats);
                }
            }
            GenerationEvent::Failed { .. } | GenerationEvent::ServerFinished { .. } => {
                self.answer_writer.end(event);
            }
            _ => self.log.put(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{RoundEvent, StopReason, TokenEvent};
    use crate::store::answer_settings;
    use hunch_core::stats::GenerationStats;
    use hunch_core::token::TokenOrigin;
    use hunch_error::ErrorCode;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Makes a round of one token whose text exceeds a page of the file.
    fn round(number: u32) -> GenerationEvent {
        let text = format!("{number} ").repeat(5000);
        let token = TokenEvent::of_server(text, TokenOrigin::Plain, number);
        GenerationEvent::Round(RoundEvent::of_tokens(number, vec![token]))
    }

    fn finished() -> GenerationEvent {
        let stats = GenerationStats::default();
        GenerationEvent::Finished { stop: StopReason::EndOfTurn, tokens: Vec::new(), stats }
    }

    struct Writing {
        _folder: tempfile::TempDir,
        store: Arc<Store>,
        writers: Arc<AnswerWriters>,
        answer: i64,
        log: Arc<EventLog<GenerationEvent>>,
        writer: LogWriter<GenerationEvent>,
        answer_writer: AnswerWriter,
    }

    fn writing() -> Writing {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&folder.path().join("hunch.db")).unwrap());
        let chat = store.create_conversation(1).unwrap();
        let question = store.add_question(chat, None, "Hi", 1).unwrap();
        let answer = store.begin_answer(chat, question, &answer_settings(), 1).unwrap();
        let (log, writer) = EventLog::open(1);
        let writers = Arc::<AnswerWriters>::default();
        let answer_writer = AnswerWriter::start(
            &writers,
            store.clone(),
            answer,
            log.clone(),
            writer.clone(),
            Box::new(|_| ()),
        )
        .unwrap();
        Writing { _folder: folder, store, writers, answer, log, writer, answer_writer }
    }

    /// Waits until the events of the log meet a condition, and returns them.
    fn until(
        log: &EventLog<GenerationEvent>,
        wanted: impl Fn(&[GenerationEvent]) -> bool,
    ) -> Vec<GenerationEvent> {
        let begun = Instant::now();
        loop {
            let events = log.after(0, usize::MAX);
            if wanted(&events) {
                return events;
            }
            assert!(begun.elapsed() < PATIENCE, "{} events", events.len());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_refusal(event: &GenerationEvent) -> bool {
        matches!(event, GenerationEvent::NotKept { error } if error.code == ErrorCode::Store)
    }

    #[test]
    fn reports_full_disk_once_and_writes_the_whole_answer_later() {
        let Writing { _folder, store, answer, log, writer, answer_writer, writers } = writing();
        store.set_full(true);
        writer.put(round(0));
        until(&log, |events| events.iter().any(is_refusal));
        writer.put(round(1));
        store.set_full(false);
        let events = until(&log, |events| events.contains(&GenerationEvent::Kept));
        assert_eq!(events.iter().filter(|event| is_refusal(event)).count(), 1);
        answer_writer.end(finished());
        writers.settle(PATIENCE);
        assert_eq!(store.message(answer).unwrap().1.state, MessageState::Complete);
        assert!(store.events(answer).unwrap() == [round(0), round(1), finished()]);
    }

    #[test]
    fn reports_full_disk_before_the_end_and_retries_after_it() {
        let Writing { _folder, store, answer, log, writer, answer_writer, writers } = writing();
        store.set_full(true);
        (0..20).for_each(|number| writer.put(round(number)));
        answer_writer.end(finished());
        drop(answer_writer);
        let events = until(&log, |events| events.contains(&finished()));
        let refused = events.iter().position(is_refusal).expect("the refusal is reported");
        assert!(refused < events.iter().position(|event| *event == finished()).unwrap());
        assert_eq!(store.message(answer).unwrap().1.state, MessageState::Streaming);
        store.set_full(false);
        until(&log, |events| events.last() == Some(&GenerationEvent::Kept));
        let whole: Vec<_> = (0..20).map(round).chain([finished()]).collect();
        assert!(store.events(answer).unwrap() == whole, "each event once, in order");
        assert_eq!(store.message(answer).unwrap().1.state, MessageState::Complete);
        writers.close(PATIENCE);
        assert_eq!(Arc::strong_count(&store), 1, "no thread is left");
    }

    #[test]
    fn reports_an_answer_it_gives_up() {
        let Writing { _folder, store, log, writer, answer_writer, writers, .. } = writing();
        store.set_full(true);
        (0..20).for_each(|number| writer.put(round(number)));
        answer_writer.end(finished());
        drop(answer_writer);
        until(&log, |events| events.contains(&finished()));
        assert!(writers.give_up(PATIENCE), "it tries once more and ends");
        let events = log.after(0, usize::MAX);
        let last = events.last().unwrap();
        assert!(
            matches!(last, GenerationEvent::GivenUp { error } if error.code == ErrorCode::Store),
            "{last:?}"
        );
        assert!(!writers.closing(), "the next answer is kept");
    }

    #[test]
    fn reports_a_panic_of_the_store_and_still_sends_the_end() {
        let Writing { _folder, store, answer, log, writer, answer_writer, writers } = writing();
        store.set_panicking(true);
        writer.put(round(0));
        answer_writer.end(finished());
        drop(answer_writer);
        let events = until(&log, |events| events.contains(&finished()));
        assert!(events.iter().any(|event| matches!(event, GenerationEvent::NotKept { .. })));
        store.set_panicking(false);
        until(&log, |events| events.last() == Some(&GenerationEvent::Kept));
        writers.close(PATIENCE);
        assert!(store.events(answer).unwrap() == [round(0), finished()]);
    }

    #[test]
    fn interrupts_an_answer_without_an_end() {
        let Writing { _folder, store, answer, writer, answer_writer, writers, .. } = writing();
        writer.put(round(0));
        drop(answer_writer);
        writers.settle(PATIENCE);
        assert_eq!(store.message(answer).unwrap().1.state, MessageState::Interrupted);
        assert_eq!(store.events(answer).unwrap(), [round(0)]);
    }
}
