//! Stopwatches over the clock of the system.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hunch_core::stats::Stopwatch;

/// A stopwatch that measures wall time from its creation.
pub struct WallClock(Instant);

impl WallClock {
    /// Starts a stopwatch.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Stopwatch for WallClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A stopwatch that counts only while resumed. Starts paused.
pub struct PausableStopwatch {
    origin: Instant,
    /// Nanoseconds counted before the last pause.
    counted: AtomicU64,
    /// Nanoseconds from the origin to the last resume; [`PAUSED`] while paused.
    since: AtomicU64,
}

const PAUSED: u64 = u64::MAX;

impl Default for PausableStopwatch {
    fn default() -> Self {
        Self { origin: Instant::now(), counted: AtomicU64::new(0), since: AtomicU64::new(PAUSED) }
    }
}

impl PausableStopwatch {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(PAUSED - 1)
    }

    /// Starts counting.
    pub fn resume(&self) {
        let _ = self.since.compare_exchange(PAUSED, self.now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stops counting.
    pub fn pause(&self) {
        let since = self.since.swap(PAUSED, Ordering::Relaxed);
        if since != PAUSED {
            self.counted.fetch_add(self.now() - since, Ordering::Relaxed);
        }
    }
}

impl Stopwatch for PausableStopwatch {
    fn elapsed(&self) -> Duration {
        let since = self.since.load(Ordering::Relaxed);
        let running = if since == PAUSED { 0 } else { self.now() - since };
        Duration::from_nanos(self.counted.load(Ordering::Relaxed) + running)
    }
}
