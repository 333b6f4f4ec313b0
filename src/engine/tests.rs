//! Tests of panics, hangs and the end of the engine's thread.

use std::panic::panic_any;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Instant;

use super::*;
use crate::event::GenerationEvent;
use hunch_model::device::DeviceChoice;

/// Timeout for a busy machine. A passing test does not wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn engine() -> Engine {
    Engine::start(Compute::open(DeviceChoice::Cpu, Some(1)).unwrap()).unwrap()
}

/// A panic payload that panics again when it is dropped, which no guard on the engine's thread catches.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// Closes a channel when it is dropped.
struct Dropped(#[expect(dead_code, reason = "the test waits for the drop")] Sender<()>);

/// Waits until the sender is dropped.
fn await_drop<T>(receiver: &Receiver<T>) {
    assert_eq!(receiver.recv_timeout(PATIENCE).err(), Some(RecvTimeoutError::Disconnected));
}

/// Retries until the engine is free.
fn ask_when_free(engine: &Engine, id: u32) -> Result<()> {
    let begun = Instant::now();
    loop {
        // Only a live engine reports that no model is loaded.
        match engine.run_and_wait(id, |_, _| Ok(())) {
            Err(Error::Busy(_)) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(2)),
            ended => return ended,
        }
    }
}

#[test]
fn panic_in_the_sink_releases_the_engine() {
    let engine = engine();
    let (sender, dropped) = channel();
    let guard = Dropped(sender);
    let sink = move |_: GenerationEvent| {
        let _ = &guard;
        panic!("the sink broke");
    };
    engine.generate(1, Prompt::Raw("x".into()), GenerationPlan::default(), Box::new(sink)).unwrap();
    await_drop(&dropped);
    assert!(matches!(ask_when_free(&engine, 2), Err(Error::NoModel)));
    assert_eq!(engine.running(), None);
}

#[test]
fn panic_in_a_callback_releases_the_engine() {
    let engine = engine();
    let (sender, dropped) = channel();
    let guard = Dropped(sender);
    engine
        .run(
            1,
            |_, _| Ok(()),
            move |_: Result<()>| {
                let _ = &guard;
                panic!("the callback broke");
            },
        )
        .unwrap();
    await_drop(&dropped);
    assert!(matches!(ask_when_free(&engine, 2), Err(Error::NoModel)));
}

#[test]
fn panic_of_work_that_unloaded_the_models_reports_that_none_are_left() {
    let engine = engine();
    let (sender, ended) = channel();
    let work = |models: &mut Option<Models>, _: &Arc<AtomicBool>| -> Result<()> {
        *models = None;
        panic!("the measurement broke");
    };
    engine.run_swapping(1, work, move |ended, loaded| sender.send((ended, loaded)).unwrap()).unwrap();
    let (result, loaded) = ended.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(result, Err(Error::Internal(_))) && !loaded);
    assert!(matches!(ask_when_free(&engine, 2), Err(Error::NoModel)));
}

#[test]
fn restarts_a_thread_that_ended() {
    let engine = engine();
    let (sender, dropped) = channel();
    let guard = Dropped(sender);
    engine
        .run(
            1,
            |_, _| Ok(()),
            move |_: Result<()>| {
                let _ = &guard;
                panic_any(PanicsWhenDropped);
            },
        )
        .unwrap();
    await_drop(&dropped);
    // The first job may arrive while the thread is ending, and is lost. A later one starts a new thread.
    let begun = Instant::now();
    while !matches!(engine.run_and_wait(2, |_, _| Ok(())), Err(Error::NoModel)) {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(engine.running(), None);
}

/// A job that arrives while the thread ends may be lost; it must not leave the engine busy.
#[test]
fn job_sent_while_the_thread_ends_does_not_block_the_next_one() {
    let engine = engine();
    for id in 0..200 {
        let ends = |_: Result<()>| panic_any(PanicsWhenDropped);
        let begun = Instant::now();
        while engine.run(2 * id, |_, _| Ok(()), ends).is_err() {
            assert!(begun.elapsed() < PATIENCE, "busy for ever");
        }
        while !matches!(engine.run_and_wait(2 * id + 1, |_, _| Ok(())), Err(Error::NoModel)) {
            assert!(begun.elapsed() < PATIENCE, "busy for ever");
        }
    }
    assert_eq!(engine.running(), None);
}

#[test]
fn shutdown_abandons_a_hanging_thread() {
    let engine = engine();
    let (release, held) = channel::<()>();
    let (sender, begun) = channel();
    engine
        .run(
            1,
            |_, _| Ok(()),
            move |_: Result<()>| {
                sender.send(()).unwrap();
                let _ = held.recv();
            },
        )
        .unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    assert!(!engine.shutdown(Duration::from_millis(10)));
    drop(release);
    assert!(engine.shutdown(PATIENCE));
    assert!(matches!(engine.run_and_wait(2, |_, _| Ok(())), Err(Error::Internal(_))));
}
