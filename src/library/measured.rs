//! What has run on this machine, and how fast: plain decoding by model, the last comparison by pair. Kept in one
//! file, `measured.json` in the data folder; whoever measures something remembers it here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{data_folder, side_file};
use crate::api::ModelEntry;
use crate::api::library::MeasuredSpeedup;
use crate::error::Result;

/// Answers shorter than this say too little about speed.
pub const LEAST_TOKENS: u32 = 32;

/// A model as it is remembered: another quantisation of it has its name, and another speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran<'a> {
    /// Its short name.
    pub name: &'a str,
    /// Bytes of its file, or of all its parts.
    pub size_bytes: u64,
}

impl<'a> Ran<'a> {
    /// The model of an entry.
    pub fn of(entry: &'a ModelEntry) -> Self {
        Self { name: &entry.name, size_bytes: entry.size_bytes }
    }

    fn key(&self) -> String {
        format!("{} {}", self.size_bytes, self.name)
    }
}

/// What the file says. Fields that a later version adds are lost when this one writes; what it knows stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct File {
    /// Tokens a second of plain decoding, by device and model.
    #[serde(default)]
    plain: BTreeMap<String, f64>,
    /// The last comparison, by device, target and draft.
    #[serde(default)]
    pairs: BTreeMap<String, MeasuredSpeedup>,
}

/// What has run on one device.
#[derive(Clone, Debug)]
pub struct Measured {
    path: PathBuf,
    device: String,
}

impl Measured {
    /// What has run on `device` ("cpu" or "metal"), by the file in Hunch's data folder.
    ///
    /// # Errors
    /// When there is no data folder.
    pub fn of_this_machine(device: &str) -> Result<Self> {
        Ok(Self::at(&data_folder()?, device))
    }

    /// The same by the file in another folder.
    pub fn at(folder: &Path, device: &str) -> Self {
        Self { path: folder.join("measured.json"), device: device.into() }
    }

    fn model_key(&self, model: &Ran<'_>) -> String {
        format!("{} {}", self.device, model.key())
    }

    fn pair_key(&self, target: &Ran<'_>, draft: &Ran<'_>) -> String {
        format!("{} {} + {}", self.device, target.key(), draft.key())
    }

    /// Tokens a second of plain decoding, when the model last ran here.
    pub fn tokens_per_second(&self, model: &Ran<'_>) -> Option<f64> {
        side_file::read::<File>(&self.path).plain.get(&self.model_key(model)).copied()
    }

    /// Tells entries how fast they were when they last ran here.
    pub fn fill(&self, entries: &mut [ModelEntry]) {
        let file = side_file::read::<File>(&self.path);
        for entry in entries {
            entry.tokens_per_second = file.plain.get(&self.model_key(&Ran::of(entry))).copied();
        }
    }

    /// The speedup of the last comparison of a pair.
    pub fn speedup(&self, target: &Ran<'_>, draft: &Ran<'_>) -> Option<MeasuredSpeedup> {
        side_file::read::<File>(&self.path).pairs.get(&self.pair_key(target, draft)).cloned()
    }

    /// Remembers how fast a model decodes by itself. A rate that is no positive number is not kept.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remember_plain(&self, model: &Ran<'_>, tokens_per_second: f64) -> Result<()> {
        if !(tokens_per_second > 0.0 && tokens_per_second.is_finite()) {
            return Ok(());
        }
        let key = self.model_key(model);
        side_file::update(&self.path, |file: &mut File| {
            file.plain.insert(key, tokens_per_second);
        })
    }

    /// Remembers what a comparison of a pair came to.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn remember_pair(&self, target: &Ran<'_>, draft: &Ran<'_>, speedup: MeasuredSpeedup) -> Result<()> {
        let key = self.pair_key(target, draft);
        side_file::update(&self.path, |file: &mut File| {
            file.pairs.insert(key, speedup);
        })
    }
}

/// Tokens a second of plain decoding, when the model of this short name and size last ran on `device` here.
pub fn tokens_per_second(name: &str, size_bytes: u64, device: &str) -> Option<f64> {
    Measured::of_this_machine(device).ok()?.tokens_per_second(&Ran { name, size_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::propose::Method;

    #[test]
    fn what_ran_is_remembered_by_file_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let (cpu, metal) = (Measured::at(folder.path(), "cpu"), Measured::at(folder.path(), "metal"));
        let (target, draft) = (Ran { name: "Qwen", size_bytes: 900 }, Ran { name: "Qwen", size_bytes: 300 });
        assert_eq!((cpu.tokens_per_second(&target), cpu.speedup(&target, &draft)), (None, None));
        cpu.remember_plain(&target, 12.5).unwrap();
        cpu.remember_plain(&target, f64::NAN).unwrap();
        cpu.remember_plain(&target, 0.0).unwrap();
        assert_eq!(cpu.tokens_per_second(&target), Some(12.5));
        assert_eq!((cpu.tokens_per_second(&draft), metal.tokens_per_second(&target)), (None, None));
        let speedup = MeasuredSpeedup { speedup: 1.4, method: Method::Cascade, ended_ms: 5, comparison: 7 };
        metal.remember_pair(&target, &draft, speedup.clone()).unwrap();
        assert_eq!(metal.speedup(&target, &draft), Some(speedup));
        assert_eq!((metal.speedup(&draft, &target), cpu.speedup(&target, &draft)), (None, None));
        assert_eq!(cpu.tokens_per_second(&target), Some(12.5), "the other entry is still there");
    }
}
