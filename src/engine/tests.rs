//! Panics, hangs and the end of the engine's thread.

use std::panic::panic_any;
use std::sync::mpsc::{Receiver, channel};

use super::*;
use hunch_model::device::DeviceChoice;

/// Long enough for a loaded machine; nothing waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

fn engine() -> Engine {
    Engine::start(Compute::open(DeviceChoice::Cpu, Some(1)).unwrap()).unwrap()
}

/// Panics once more when the panic that carries it is dropped: no guard on the engine's thread stops that.
struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// Tells when it is dropped.
struct Dropped(#[expect(dead_code, reason = "its end is what is heard")] Sender<()>);

fn closed<T>(receiver: &Receiver<T>) {
    assert_eq!(receiver.recv_timeout(PATIENCE).err(), Some(RecvTimeoutError::Disconnected));
}

/// Asks until the engine is free.
fn asked(engine: &Engine, id: u32) -> Result<()> {
    let begun = Instant::now();
    loop {
        // There is no model, which the engine has to be alive to say.
        match engine.ask(id, |_, _| Ok(())) {
            Err(Error::Busy) if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(2)),
            ended => return ended,
        }
    }
}

#[test]
fn panic_while_the_last_event_is_told_leaves_the_engine_free() {
    let engine = engine();
    let (sender, dropped) = channel();
    let heard = Dropped(sender);
    let sink = move |_: GenerationEvent| {
        let _ = &heard;
        panic!("the sink broke");
    };
    engine.generate(1, Prompt::Raw("x".into()), GenerationPlan::default(), Box::new(sink)).unwrap();
    closed(&dropped);
    assert!(matches!(asked(&engine, 2), Err(Error::NoModel)));
    assert_eq!(engine.running(), None);
}

#[test]
fn panic_after_a_measurement_leaves_the_engine_free() {
    let engine = engine();
    let (sender, dropped) = channel();
    let heard = Dropped(sender);
    engine
        .measure(
            1,
            |_, _| Ok(()),
            move |_: Result<()>| {
                let _ = &heard;
                panic!("the listener broke");
            },
        )
        .unwrap();
    closed(&dropped);
    assert!(matches!(asked(&engine, 2), Err(Error::NoModel)));
}

#[test]
fn thread_that_ended_is_started_again() {
    let engine = engine();
    let (sender, dropped) = channel();
    let heard = Dropped(sender);
    engine
        .measure(
            1,
            |_, _| Ok(()),
            move |_: Result<()>| {
                let _ = &heard;
                panic_any(PanicsWhenDropped);
            },
        )
        .unwrap();
    closed(&dropped);
    // The thread may be on its way out when the first job arrives; who asks again is heard.
    let begun = Instant::now();
    while !matches!(engine.ask(2, |_, _| Ok(())), Err(Error::NoModel)) {
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
        while engine.measure(2 * id, |_, _| Ok(()), ends).is_err() {
            assert!(begun.elapsed() < PATIENCE, "busy for ever");
        }
        while !matches!(engine.ask(2 * id + 1, |_, _| Ok(())), Err(Error::NoModel)) {
            assert!(begun.elapsed() < PATIENCE, "busy for ever");
        }
    }
    assert_eq!(engine.running(), None);
}

#[test]
fn shutdown_does_not_wait_for_a_thread_that_hangs() {
    let engine = engine();
    let (release, held) = channel::<()>();
    let (sender, begun) = channel();
    engine
        .measure(
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
    assert!(matches!(engine.ask(2, |_, _| Ok(())), Err(Error::Internal(_))));
}
