//! Work that keeps the engine from other work.

use std::fmt;

/// Work that runs already, of which there is one at a time. The window shows it in its own language, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningWork {
    /// An answer is written.
    Answer,
    /// A benchmark, a comparison or a proof runs.
    Measurement,
    /// A drafter is trained.
    Training,
    /// Models are loaded or unloaded.
    Loading,
    /// An update is looked for, downloaded or installed.
    Update,
}

impl RunningWork {
    /// Returns the code, as `runningWork` in `ui/src/lib/strings/keys.ts` lists it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Measurement => "measurement",
            Self::Training => "training",
            Self::Loading => "loading",
            Self::Update => "update",
        }
    }
}

/// Writes what runs and what to do about it.
impl fmt::Display for RunningWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "An answer is being written. Stop it or wait until it is complete.",
            Self::Measurement => "A measurement is running. Stop it or wait until it has finished.",
            Self::Training => "A drafter is being trained. Pause the training or wait until it has finished.",
            Self::Loading => "Models are being loaded or unloaded. Wait until that is done.",
            Self::Update => "An update of Hunch is in progress. Wait until it is done.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_the_list_in_the_window_strings() {
        let window = include_str!("../../../ui/src/lib/strings/keys.ts");
        use RunningWork::{Answer, Loading, Measurement, Training, Update};
        let codes = [Answer, Measurement, Training, Loading, Update]
            .map(|work| format!("'{}'", work.code()))
            .join(", ");
        assert!(window.contains(&format!("export const runningWork = [{codes}] as const;")), "{codes}");
    }
}
