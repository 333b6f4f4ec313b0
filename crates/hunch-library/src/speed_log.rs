//! Speeds measured on this machine, in `measured.json` in the data folder. Holds the last rate of each
//! model by method and as a draft, and the last speedup of each pair. Every measurement stores its result
//! here. Nothing is measured here.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::data_folders::data_folder;
use super::locked_json;
use crate::types::{MeasuredSpeedup, ModelEntry, SpeedRole};
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::stats::GenerationStats;
use hunch_error::Result;

/// Shortest answer whose speed is recorded, in tokens.
pub const MIN_TOKENS: u32 = 32;

/// Identifies a model in the log. Quantisations of the same name differ in size and speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId<'a> {
    /// Its short name.
    pub name: &'a str,
    /// Bytes of its file, or of all parts.
    pub size_bytes: u64,
}

impl<'a> ModelId<'a> {
    /// Identifies the model of an entry.
    pub fn of(entry: &'a ModelEntry) -> Self {
        Self { name: &entry.name, size_bytes: entry.size_bytes }
    }

    fn key(&self) -> String {
        format!("{} {}", self.size_bytes, self.name)
    }
}

/// Measured rates of a target and its draft, in tokens per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// The target with plain decoding.
    pub plain: Option<f64>,
    /// The target with its fastest speculative method.
    pub speculative: Option<(Method, f64)>,
    /// The draft model: tokens drafted per second of drafting.
    pub drafting: Option<f64>,
}

impl Rates {
    /// Returns the rates of one answer, or none if it is too short.
    pub fn of_answer(method: Method, rule: AcceptanceRule, stats: &GenerationStats) -> Self {
        if stats.generated_tokens < MIN_TOKENS {
            return Self::default();
        }
        Self::of_methods([(method, stats.decode_tok_s)], rule).with_drafting([(method, stats)], rule)
    }

    /// Returns the rates of several methods. Under a lossy rule, only plain decoding counts.
    pub fn of_methods(rates: impl IntoIterator<Item = (Method, f64)>, rule: AcceptanceRule) -> Self {
        let mut found = Self::default();
        let counts = |method| method == Method::Plain || rule.is_lossless();
        let rates = rates.into_iter().filter(|(method, _)| counts(*method));
        // Synthetic drafts are not a real configuration.
        for (method, rate) in rates.filter(|(method, _)| *method != Method::Synthetic) {
            if method == Method::Plain {
                found.plain = positive(rate).or(found.plain);
            } else if found.speculative.is_none_or(|(_, best)| rate > best) {
                found.speculative = positive(rate).map(|rate| (method, rate)).or(found.speculative);
            }
        }
        found
    }

    /// Adds the drafting rate over these answers, or none under a lossy rule.
    pub fn with_drafting<'a>(
        self,
        answers: impl IntoIterator<Item = (Method, &'a GenerationStats)>,
        rule: AcceptanceRule,
    ) -> Self {
        let drafting = if rule.is_lossless() { drafting(answers) } else { None };
        Self { drafting, ..self }
    }
}

/// Returns the drafting rate over answers where only the draft model drafted.
fn drafting<'a>(answers: impl IntoIterator<Item = (Method, &'a GenerationStats)>) -> Option<f64> {
    let drafted = answers.into_iter().filter(|(method, _)| *method == Method::DraftModel);
    let (tokens, ms) = drafted.fold((0, 0.0), |(tokens, ms), (_, stats)| {
        (tokens + u64::from(stats.drafted), ms + stats.propose_ms)
    });
    if tokens < u64::from(MIN_TOKENS) { None } else { positive(1000.0 * tokens as f64 / ms) }
}

/// Returns a rate if it is positive and finite.
fn positive(rate: f64) -> Option<f64> {
    (rate > 0.0 && rate.is_finite()).then_some(rate)
}

/// A rate and the method that reached it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct WithMethod {
    method: Method,
    tokens_per_second: f64,
}

/// Table of plain decoding rates, in tokens per second, by device and model.
const PLAIN: &str = "plain";
/// Table of the last speculative rate and its method, by device and model. The fastest of several methods counts.
const SPECULATIVE: &str = "speculative";
/// Table of drafting rates, in tokens per second, by device and draft model.
const DRAFTING: &str = "drafting";
/// Table of the last comparison, by device, target and draft.
const PAIRS: &str = "pairs";

/// Content of `measured.json`: one table per name above. Tables and entries of later versions are ignored
/// and preserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct LogFile(Map<String, Value>);

impl LogFile {
    fn get<T: DeserializeOwned>(&self, table: &str, key: &str) -> Option<T> {
        T::deserialize(self.0.get(table)?.get(key)?).ok()
    }

    fn set(&mut self, table: &str, key: String, entry: Value) {
        let table = self.0.entry(table).or_insert_with(|| Map::new().into());
        // A value that is not a table belongs to a later version.
        if let Some(table) = table.as_object_mut() {
            table.insert(key, entry);
        }
    }

    /// Returns the rate to show for a model. Plain decoding is preferred, because it depends on nothing
    /// else.
    fn speed(&self, model: &str) -> Option<(f64, SpeedRole)> {
        let target = |method| SpeedRole::Target { method };
        let plain = || self.get(PLAIN, model).map(|rate| (rate, target(Method::Plain)));
        let speculative = || {
            let with: WithMethod = self.get(SPECULATIVE, model)?;
            Some((with.tokens_per_second, target(with.method)))
        };
        let drafting = || self.get(DRAFTING, model).map(|rate| (rate, SpeedRole::Draft));
        plain().or_else(speculative).or_else(drafting)
    }
}

/// Speeds measured on one device.
#[derive(Clone, Debug)]
pub struct SpeedLog {
    path: PathBuf,
    device: String,
}

impl SpeedLog {
    /// Opens the log of `device` ("cpu" or "metal") in Hunch's data folder.
    ///
    /// # Errors
    /// If there is no data folder.
    pub fn open(device: &str) -> Result<Self> {
        Ok(Self::in_folder(&data_folder()?, device))
    }

    /// Opens the log in another folder.
    pub fn in_folder(folder: &Path, device: &str) -> Self {
        Self { path: folder.join("measured.json"), device: device.into() }
    }

    fn model_key(&self, model: &ModelId<'_>) -> String {
        format!("{} {}", self.device, model.key())
    }

    fn pair_key(&self, target: &ModelId<'_>, draft: &ModelId<'_>) -> String {
        format!("{} {} + {}", self.device, target.key(), draft.key())
    }

    /// Fills in each entry's last measured speed.
    pub fn fill(&self, entries: &mut [ModelEntry]) {
        let file = locked_json::read::<LogFile>(&self.path);
        for entry in entries {
            let found = file.speed(&self.model_key(&ModelId::of(entry)));
            (entry.tokens_per_second, entry.ran_as) = found.unzip();
        }
    }

    /// Returns the speedup of a pair's last comparison.
    pub fn speedup(&self, target: &ModelId<'_>, draft: &ModelId<'_>) -> Option<MeasuredSpeedup> {
        locked_json::read::<LogFile>(&self.path).get(PAIRS, &self.pair_key(target, draft))
    }

    /// Stores the rates of a target and its draft. Rates that were not measured keep their last value.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn remember(&self, target: &ModelId<'_>, draft: Option<&ModelId<'_>>, rates: Rates) -> Result<()> {
        if rates == Rates::default() {
            return Ok(());
        }
        let (target, draft) = (self.model_key(target), draft.map(|draft| self.model_key(draft)));
        locked_json::update(&self.path, |file: &mut LogFile| {
            if let Some((draft, rate)) = draft.zip(rates.drafting) {
                file.set(DRAFTING, draft, rate.into());
            }
            if let Some(rate) = rates.plain {
                file.set(PLAIN, target.clone(), rate.into());
            }
            if let Some((method, tokens_per_second)) = rates.speculative {
                file.set(SPECULATIVE, target, json!(WithMethod { method, tokens_per_second }));
            }
        })
    }

    /// Stores the result of a pair's comparison.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn remember_pair(
        &self,
        target: &ModelId<'_>,
        draft: &ModelId<'_>,
        speedup: MeasuredSpeedup,
    ) -> Result<()> {
        let key = self.pair_key(target, draft);
        locked_json::update(&self.path, |file: &mut LogFile| {
            file.set(PAIRS, key, json!(speedup));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(rate: f64) -> Rates {
        Rates::of_methods([(Method::Plain, rate)], AcceptanceRule::default())
    }

    #[test]
    fn rate_is_stored_under_its_method() {
        let stats = |tokens, drafted, propose_ms| GenerationStats {
            generated_tokens: tokens,
            decode_tok_s: 50.0,
            drafted,
            propose_ms,
            ..GenerationStats::default()
        };
        let answer = |method, stats: &_| Rates::of_answer(method, AcceptanceRule::Lossless, stats);
        let long = stats(MIN_TOKENS, 100, 500.0);
        assert_eq!(answer(Method::Plain, &stats(MIN_TOKENS, 0, 0.0)), plain(50.0));
        let drafted =
            Rates { speculative: Some((Method::DraftModel, 50.0)), drafting: Some(200.0), plain: None };
        assert_eq!(answer(Method::DraftModel, &long), drafted);
        let lossy = AcceptanceRule::LossyLenience { lenience: 0.5 };
        assert_eq!(Rates::of_answer(Method::DraftModel, lossy, &long), Rates::default());
        // The drafting rate needs many tokens drafted by the draft model alone.
        let rates = answer(Method::Cascade, &long);
        assert_eq!((rates.speculative, rates.drafting), (Some((Method::Cascade, 50.0)), None));
        assert_eq!(answer(Method::DraftModel, &stats(MIN_TOKENS, 3, 1.0)).drafting, None);
        assert_eq!(answer(Method::DraftModel, &stats(MIN_TOKENS - 1, 100, 500.0)), Rates::default());
        let rows = [
            (Method::Ngram, 60.0),
            (Method::Synthetic, 900.0),
            (Method::Suffix, 70.0),
            (Method::Plain, f64::NAN),
        ];
        assert_eq!(
            Rates::of_methods(rows, AcceptanceRule::default()),
            Rates { speculative: Some((Method::Suffix, 70.0)), ..Rates::default() }
        );
    }

    #[test]
    fn shown_rate_prefers_plain_then_speculative_then_drafting() {
        let folder = tempfile::tempdir().unwrap();
        let log = SpeedLog::in_folder(folder.path(), "cpu");
        let (target, draft) =
            (ModelId { name: "Big", size_bytes: 900 }, ModelId { name: "Small", size_bytes: 300 });
        let speed =
            |model: &ModelId<'_>| locked_json::read::<LogFile>(&log.path).speed(&log.model_key(model));
        let with = Rates { speculative: Some((Method::DraftModel, 20.0)), drafting: Some(90.0), plain: None };
        log.remember(&target, Some(&draft), with).unwrap();
        assert_eq!(speed(&target), Some((20.0, SpeedRole::Target { method: Method::DraftModel })));
        assert_eq!(speed(&draft), Some((90.0, SpeedRole::Draft)));
        log.remember(&target, None, plain(12.0)).unwrap();
        log.remember(&target, None, Rates { drafting: None, ..with }).unwrap();
        assert_eq!(speed(&target), Some((12.0, SpeedRole::Target { method: Method::Plain })));
        log.remember(&draft, None, plain(80.0)).unwrap();
        assert_eq!(speed(&draft), Some((80.0, SpeedRole::Target { method: Method::Plain })));
    }

    #[test]
    fn entries_of_later_versions_are_ignored_and_preserved() {
        let folder = tempfile::tempdir().unwrap();
        let log = SpeedLog::in_folder(folder.path(), "cpu");
        let target = ModelId { name: "Big", size_bytes: 900 };
        let later = json!({
            "plain": { "cpu 900 Big": 12.5, "cpu 7 Odd": { "rate": 3.0 } },
            "speculative": {
                "cpu 900 Big": { "method": "ngram", "tokens_per_second": 20.0 },
                "cpu 300 New": { "method": "from-tomorrow", "tokens_per_second": 30.0 },
            },
            "drafting": "in another file",
            "pairs": { "cpu 900 Big + 300 New": { "speedup": 2.0, "method": "from-tomorrow" } },
            "energy": { "cpu 900 Big": 5 },
        });
        std::fs::write(&log.path, later.to_string()).unwrap();
        let speed = |name, size_bytes| {
            let model = log.model_key(&ModelId { name, size_bytes });
            locked_json::read::<LogFile>(&log.path).speed(&model)
        };
        assert_eq!(speed("Big", 900), Some((12.5, SpeedRole::Target { method: Method::Plain })));
        assert_eq!((speed("New", 300), speed("Odd", 7)), (None, None));
        assert_eq!(log.speedup(&target, &ModelId { name: "New", size_bytes: 300 }), None);
        log.remember(&target, Some(&target), Rates { drafting: Some(9.0), ..plain(13.0) }).unwrap();
        let mut expected = later;
        expected["plain"]["cpu 900 Big"] = json!(13.0);
        let written: Value = serde_json::from_slice(&std::fs::read(&log.path).unwrap()).unwrap();
        assert_eq!(written, expected);
    }

    #[test]
    fn rates_are_stored_by_file_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let (cpu, metal) =
            (SpeedLog::in_folder(folder.path(), "cpu"), SpeedLog::in_folder(folder.path(), "metal"));
        let (target, draft) =
            (ModelId { name: "Qwen", size_bytes: 900 }, ModelId { name: "Qwen", size_bytes: 300 });
        let rate = |on: &SpeedLog, model: &ModelId<'_>| {
            locked_json::read::<LogFile>(&on.path).get::<f64>(PLAIN, &on.model_key(model))
        };
        assert_eq!((rate(&cpu, &target), cpu.speedup(&target, &draft)), (None, None));
        cpu.remember(&target, None, plain(12.5)).unwrap();
        cpu.remember(&target, None, plain(f64::NAN)).unwrap();
        cpu.remember(&target, None, plain(0.0)).unwrap();
        assert_eq!(rate(&cpu, &target), Some(12.5));
        assert_eq!((rate(&cpu, &draft), rate(&metal, &target)), (None, None));
        let speedup = MeasuredSpeedup { speedup: 1.4, method: Method::Cascade, ended_ms: 5, comparison: 7 };
        metal.remember_pair(&target, &draft, speedup.clone()).unwrap();
        assert_eq!(metal.speedup(&target, &draft), Some(speedup));
        assert_eq!((metal.speedup(&draft, &target), cpu.speedup(&target, &draft)), (None, None));
        assert_eq!(rate(&cpu, &target), Some(12.5), "the other entry is preserved");
    }
}
