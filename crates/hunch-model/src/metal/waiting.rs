//! Waits for candle's command buffers, which report each failure once. Devices do not belong here.

/// Result of a wait.
#[derive(Debug)]
pub(super) struct Waited<E> {
    /// `true` if no work is queued or runs.
    pub(super) is_idle: bool,
    /// The first failure of the work.
    pub(super) outcome: Result<(), E>,
}

/// Waits for all queued work with candle's two ways of waiting.
///
/// `flush` waits for the last command buffer and looks at that one only. If it failed, candle keeps it. `wait` takes all
/// command buffers, and looks at each. So it is called in any case, or it would report an old failure to later work.
pub(super) fn wait_for_all<E>(
    flush: impl Fn() -> Result<(), E>,
    wait: impl Fn() -> Result<(), E>,
) -> Waited<E> {
    let flushed = flush();
    let waited = wait();
    // After a failure nothing is left to wait for, unless the device cannot even be waited for.
    let is_idle = waited.is_ok() || wait().is_ok();
    Waited { is_idle, outcome: flushed.and(waited) }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Queue that works as candle's: `flush` keeps what failed, `wait` reports and drops it.
    #[derive(Default)]
    struct Queue {
        in_flight: RefCell<Vec<Result<(), u32>>>,
    }

    impl Queue {
        fn push(&self, outcome: Result<(), u32>) {
            self.in_flight.borrow_mut().push(outcome);
        }

        fn wait_for_all(&self) -> Waited<u32> {
            let flush = || {
                let mut queue = self.in_flight.borrow_mut();
                queue.last().copied().unwrap_or(Ok(()))?;
                queue.retain(Result::is_err);
                Ok(())
            };
            let wait = || self.in_flight.take().into_iter().rev().find(Result::is_err).unwrap_or(Ok(()));
            wait_for_all(flush, wait)
        }
    }

    #[test]
    fn each_failure_is_reported_once() {
        let queue = Queue::default();
        for work in [[Ok(()), Err(1)], [Err(2), Ok(())]] {
            work.into_iter().for_each(|outcome| queue.push(outcome));
            let failed = queue.wait_for_all();
            assert!(failed.is_idle && failed.outcome.is_err(), "{work:?}");
            queue.push(Ok(()));
            let next = queue.wait_for_all();
            assert!(next.is_idle && next.outcome.is_ok(), "{work:?}: {:?}", next.outcome);
        }
    }

    #[test]
    fn a_device_that_cannot_be_waited_for_is_not_idle() {
        let waited = wait_for_all(|| Err(1), || Err(2));
        assert!(!waited.is_idle);
        assert_eq!(waited.outcome, Err(1));
    }
}
