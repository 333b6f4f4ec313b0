//! Progress and speed of downloads. Callers pass in the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::types::DownloadPhase;
use hunch_error::ErrorInfo;
use parking_lot::{Mutex, MutexGuard};

/// Window of the speed average.
const WINDOW: Duration = Duration::from_secs(5);
/// Shortest interval to compute a speed from.
const MIN_INTERVAL: Duration = Duration::from_millis(300);

/// Average speed over the last seconds, absent when no data arrives.
#[derive(Debug, Default)]
pub(super) struct SpeedAverage {
    /// Times, and bytes received by then.
    samples: VecDeque<(Instant, u64)>,
}

impl SpeedAverage {
    /// Adds a sample and returns the speed in bytes per second.
    pub(super) fn update(&mut self, now: Instant, bytes: u64) -> Option<f64> {
        if self.samples.back().is_some_and(|(_, before)| *before > bytes) {
            // The download was restarted.
            self.samples.clear();
        }
        self.samples.push_back((now, bytes));
        while self.samples.len() > 1 && now.duration_since(self.samples[0].0) > WINDOW {
            self.samples.pop_front();
        }
        let (start, before) = self.samples[0];
        let time = now.duration_since(start);
        (time >= MIN_INTERVAL && bytes > before).then(|| (bytes - before) as f64 / time.as_secs_f64())
    }
}

/// State of one file of a download.
#[derive(Clone, Debug)]
pub(super) enum PartPhase {
    Waiting,
    Running,
    Retrying(ErrorInfo),
    Done,
}

/// State of all files of a download.
#[derive(Debug)]
pub(super) struct Meter {
    parts: Mutex<Vec<(u64, PartPhase)>>,
}

impl Meter {
    /// Creates the state of waiting files, with the bytes received of each.
    pub(super) fn new(bytes: impl Iterator<Item = u64>) -> Self {
        Self { parts: Mutex::new(bytes.map(|bytes| (bytes, PartPhase::Waiting)).collect()) }
    }

    fn parts(&self) -> MutexGuard<'_, Vec<(u64, PartPhase)>> {
        self.parts.lock()
    }

    /// Returns the bytes received of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().iter().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
    }

    pub(super) fn set(&self, part: usize, bytes: u64, phase: PartPhase) {
        self.parts()[part] = (bytes, phase);
    }

    /// Returns bytes received and the overall phase: running while any file is.
    pub(super) fn total(&self) -> (u64, DownloadPhase, Option<ErrorInfo>) {
        let parts = self.parts();
        let bytes = parts.iter().map(|(bytes, _)| bytes).sum();
        let error = parts.iter().find_map(|(_, phase)| match phase {
            PartPhase::Retrying(error) => Some(error.clone()),
            _ => None,
        });
        if parts.iter().any(|(_, phase)| matches!(phase, PartPhase::Running)) {
            (bytes, DownloadPhase::Running, None)
        } else if error.is_some() {
            (bytes, DownloadPhase::Retrying, error)
        } else if parts.iter().all(|(_, phase)| matches!(phase, PartPhase::Done)) {
            (bytes, DownloadPhase::Running, None)
        } else {
            (bytes, DownloadPhase::Waiting, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_covers_the_last_seconds_and_ends_when_data_stops() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut speed = SpeedAverage::default();
        assert_eq!(speed.update(at(0.0), 0), None, "one sample is not enough");
        assert_eq!(speed.update(at(1.0), 1000), Some(1000.0));
        assert_eq!(speed.update(at(4.0), 7000), Some(1750.0));
        // The first second is out of the window.
        assert_eq!(speed.update(at(5.5), 10_000), Some(2000.0));
        for tenth in 56..110 {
            speed.update(at(f64::from(tenth) / 10.0), 10_000);
        }
        assert_eq!(speed.update(at(11.0), 10_000), None, "no data for five seconds");
        assert_eq!(speed.update(at(11.2), 10), None, "the download was restarted");
        assert_eq!(speed.update(at(12.2), 110), Some(100.0));
    }

    #[test]
    fn download_is_running_while_any_file_is() {
        let meter = Meter::new([5, 0].into_iter());
        assert_eq!(meter.total(), (5, DownloadPhase::Waiting, None));
        let gone = hunch_error::Error::HubUnreachable { endpoint: "there".into(), reason: "gone".into() };
        let error = ErrorInfo::from(&gone);
        meter.set(0, 6, PartPhase::Retrying(error.clone()));
        assert_eq!(meter.total(), (6, DownloadPhase::Retrying, Some(error)));
        meter.set(1, 1, PartPhase::Running);
        assert_eq!(meter.total(), (7, DownloadPhase::Running, None));
    }
}
