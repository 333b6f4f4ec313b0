//! Record of a run that the window started: how far it is, and how acceptance rose. Each architecture has one. It lies
//! next to the data, so a run that was paused or killed is found again.

use std::path::Path;

use hunch_error::{Error, Result};
use hunch_model::atomic_file;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::TrainProgress;
use super::acceptance::Acceptance;
use super::kind::HeadKind;

/// Held-out acceptance after a gradient step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CurvePoint {
    /// Gradient steps; 0 is the ridge regression.
    pub step: u32,
    /// Share of greedy tokens that the head gets right.
    pub greedy: f64,
    /// Accepted share with the sampling settings of a new conversation.
    pub sampled: f64,
}

/// State of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct TrainRun {
    /// Architecture of the head.
    #[serde(default)]
    pub kind: HeadKind,
    /// Tokens to train on.
    pub tokens: u32,
    /// Tokens collected of the current part: held-out answers first, then those to train on.
    pub collected: u32,
    /// Gradient steps taken.
    pub step: u32,
    /// Gradient steps in all; 0 before training begins.
    pub total: u32,
    /// Acceptance over the steps.
    pub curve: Vec<CurvePoint>,
    /// True if a head was written, false for a run that continues.
    pub finished: bool,
    /// Seconds of gradient steps so far.
    #[serde(default)]
    pub fit_seconds: f64,
}

/// File of the record, in the folder of the data.
const RECORD: &str = "run.json";

impl TrainRun {
    /// Reads the record of an architecture in a folder. A missing or damaged one is `None`: the data themselves are not
    /// affected.
    pub fn read(folder: &Path, kind: HeadKind) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(folder.join(kind.file(RECORD))).ok()?).ok()
    }

    /// Returns an architecture whose run in a folder can be continued.
    pub fn unfinished(folder: &Path) -> Option<HeadKind> {
        HeadKind::ALL.into_iter().find(|&kind| Self::read(folder, kind).is_some_and(|run| !run.finished))
    }

    /// Writes the record.
    ///
    /// # Errors
    /// If the file cannot be written. The one before is intact.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|error| Error::Internal(error.to_string()))?;
        atomic_file::write(&folder.join(self.kind.file(RECORD)), &text)
    }

    /// Takes over a progress. Returns true if acceptance was measured.
    ///
    /// A run that begins at an earlier step than the record forgets the points after it.
    pub fn observe(&mut self, progress: TrainProgress) -> bool {
        self.finished = false;
        match progress {
            TrainProgress::Collecting { tokens, .. } => self.collected = tokens as u32,
            TrainProgress::Solving => {}
            TrainProgress::Fitting { step, total, acceptance, .. } => {
                let before = step.saturating_sub(1) as u32;
                (self.step, self.total) = (step as u32, total as u32);
                self.curve.retain(|point| step > 1 && point.step <= before);
                let Acceptance { greedy, sampled, .. } = acceptance;
                let same = |point: &CurvePoint| (point.greedy, point.sampled) == (greedy, sampled);
                if !self.curve.last().is_some_and(same) {
                    // Before the second step it is still that of the start.
                    let step = if step == 1 { 0 } else { step as u32 };
                    self.curve.push(CurvePoint { step, greedy, sampled });
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitting(step: usize, greedy: f64) -> TrainProgress {
        let acceptance = Acceptance { greedy, sampled: greedy / 2.0, ..Acceptance::default() };
        TrainProgress::Fitting { step, total: 100, loss: 1.0, acceptance }
    }

    #[test]
    fn curve_has_a_point_for_each_measurement_and_forgets_lost_steps() {
        let mut run = TrainRun { finished: true, ..TrainRun::default() };
        let steps = |run: &TrainRun| run.curve.iter().map(|point| point.step).collect::<Vec<_>>();
        assert!(run.observe(fitting(1, 0.3)) && !run.finished);
        assert!(!run.observe(fitting(2, 0.3)));
        assert!(run.observe(fitting(50, 0.5)));
        assert!(run.observe(fitting(75, 0.6)));
        assert_eq!((steps(&run), run.step, run.total), (vec![0, 50, 75], 75, 100));
        // Killed after the checkpoint at step 60.
        assert!(!run.observe(fitting(61, 0.5)));
        assert_eq!(steps(&run), [0, 50]);
        // Other data: everything begins again.
        run.observe(fitting(1, 0.35));
        assert_eq!(steps(&run), [0]);
    }

    #[test]
    fn record_survives_and_a_damaged_one_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(TrainRun::read(folder.path(), HeadKind::Mlp), None);
        let run = TrainRun { tokens: 5, collected: 3, ..TrainRun::default() };
        run.write(folder.path()).unwrap();
        assert_eq!(TrainRun::read(folder.path(), HeadKind::Mlp), Some(run));
        std::fs::write(folder.path().join(RECORD), "{\"tokens\":").unwrap();
        assert_eq!(TrainRun::read(folder.path(), HeadKind::Mlp), None);
    }
}
