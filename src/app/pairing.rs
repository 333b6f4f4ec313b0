//! Memory predictions, draft offers and remembered speeds for the window.

use super::{App, lock};
use crate::api::LoadedModels;
use crate::app::MeasurementSink;
use crate::bench::MethodConfig;
use crate::bench::compare::report::{CompareEvent, CompareRequest, ComparedPrompts, ComparisonReport};
use crate::bench::suite::PAIR;
use crate::event::GenerationEvent;
use crate::store::CurveOf;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result};
use hunch_library::pairs::{CostQuery, Pairs};
use hunch_library::speed_log::{ModelId, Rates, SpeedLog};
use hunch_library::types::{
    Catalogue, DraftOffers, Fit, FitRequest, FitVerdict, MachineMemory, MeasuredSpeedup,
};
use hunch_library::types::{LoadRequest, ModelEntry};
use hunch_library::vocabularies::Vocabularies;
use hunch_library::{catalogue, machine};

/// Prompts of the comparison that measures a pair, about 30 seconds on a fast machine. Drafts do differently on code
/// and on prose, so there is one of each.
const PAIR_TOKENS: u32 = 96;
const PAIR_RUNS: u32 = 2;

impl App {
    /// Predicts the memory of models before they are loaded, and suggests smaller ones if they do not fit. Reads files.
    ///
    /// # Errors
    /// When a file is missing or unusable, or the context is longer than the target supports.
    pub fn fit(&self, request: &FitRequest) -> Result<Fit> {
        let target = self.find_model(&request.target)?;
        let draft = request.draft.as_deref().map(|name| self.find_model(name)).transpose()?;
        let fit = |pairs: &Pairs<'_>| pairs.fit(&target, draft.as_deref(), request.context);
        let found = self.ask_pairs(&[], fit)?;
        // The other models are only needed for suggestions.
        if found.verdict == FitVerdict::TooLarge { self.with_pairs(fit) } else { Ok(found) }
    }

    /// Returns for each target whether it fits alone at its default context, or `None` if it cannot be read. Reads only
    /// the headers of these files.
    pub fn fit_verdicts(&self, targets: &[String]) -> Vec<Option<FitVerdict>> {
        let verdicts = |pairs: &Pairs<'_>| {
            let verdict =
                |name: &String| self.find_model(name).and_then(|path| pairs.fit_verdict(&path)).ok();
            Ok(targets.iter().map(verdict).collect())
        };
        self.ask_pairs(&[], verdicts).unwrap_or_default()
    }

    /// Lists the drafts for a target, on this machine and in the catalogue. Reads files.
    ///
    /// # Errors
    /// As [`App::fit`].
    pub fn draft_offers(&self, target: &str, context: Option<u32>) -> Result<DraftOffers> {
        let target = self.find_model(target)?;
        self.with_pairs(|pairs| pairs.offers(&target, context))
    }

    /// Returns the catalogue of recommended models.
    pub fn catalogue(&self) -> Catalogue {
        catalogue::catalogue(self.machine())
    }

    fn with_pairs<T>(&self, ask: impl FnOnce(&Pairs<'_>) -> Result<T>) -> Result<T> {
        self.ask_pairs(&self.list_models()?, ask)
    }

    fn ask_pairs<T>(&self, models: &[ModelEntry], ask: impl FnOnce(&Pairs<'_>) -> Result<T>) -> Result<T> {
        let compute = &self.shared.compute;
        ask(&Pairs {
            models,
            compute,
            machine: self.machine(),
            vocabularies: &Vocabularies::open(self.shared.side_folder.as_deref()),
            measured: self.measured().as_ref(),
            costs: &|CostQuery { target, draft }| {
                self.store().known_costs(&CurveOf::on(compute, target, draft))
            },
        })
    }

    /// Returns the memory of this machine that models may use.
    pub(super) fn machine(&self) -> MachineMemory {
        machine::memory(self.held_by_models(), &self.shared.compute)
    }

    /// Opens the log of speeds measured on this device.
    pub(super) fn measured(&self) -> Option<SpeedLog> {
        let folder = self.shared.side_folder.as_deref();
        folder.map(|folder| SpeedLog::in_folder(folder, self.shared.compute.name()))
    }

    /// Returns the memory of the loaded models and their caches, in bytes.
    pub(super) fn held_by_models(&self) -> u64 {
        if lock(&self.shared.loaded).is_none() { 0 } else { machine::held_by_models(&self.shared.compute) }
    }

    /// Measures a pair: loads it if necessary and compares the methods that use the draft with plain decoding on two
    /// prompts. Returns the comparison's id. It is stored like any other.
    ///
    /// # Errors
    /// As [`App::load_models`] and [`App::compare`].
    pub fn measure_pair(&self, request: LoadRequest, sink: MeasurementSink<CompareEvent>) -> Result<u32> {
        if request.draft.is_none() {
            return Err(Error::invalid("A pair is a target and a draft model. Choose a draft model for it."));
        }
        if !self.is_loaded(&request)? {
            self.load_models(request)?;
        }
        let lane = |method| MethodConfig { method, max_draft: MaxDraft::Auto };
        let request = CompareRequest {
            prompts: ComparedPrompts::Suite { name: PAIR.into(), prompts: None },
            lanes: vec![lane(Method::DraftModel), lane(Method::Cascade)],
            sampling: SamplingParams::default(),
            rule: AcceptanceRule::Lossless,
            max_tokens: PAIR_TOKENS,
            runs: PAIR_RUNS,
        };
        self.compare(request, sink)
    }

    /// Returns whether this target and draft are loaded with the requested context.
    fn is_loaded(&self, request: &LoadRequest) -> Result<bool> {
        let path = |name: &str| self.find_model(name).map(|path| path.display().to_string());
        let target = path(&request.target)?;
        let draft = request.draft.as_deref().map(path).transpose()?;
        Ok(lock(&self.shared.loaded).as_ref().is_some_and(|loaded| {
            loaded.target.path == target
                && loaded.draft.as_ref().map(|draft| &draft.path) == draft.as_ref()
                && request.context.is_none_or(|context| context == loaded.context)
        }))
    }

    /// Makes the recorder for comparisons of the loaded models.
    pub(super) fn memory_of_pair(&self) -> PairMemory {
        PairMemory { loaded: lock(&self.shared.loaded).clone(), measured: self.measured() }
    }

    /// Makes the recorder for an answer of the loaded models.
    pub(super) fn memory_of_answer(&self, method: Method, rule: AcceptanceRule) -> AnswerMemory {
        AnswerMemory {
            loaded: lock(&self.shared.loaded).clone(),
            how: (method, rule),
            measured: self.measured(),
        }
    }
}

/// Records the results of a comparison.
pub(super) struct PairMemory {
    loaded: Option<LoadedModels>,
    measured: Option<SpeedLog>,
}

impl PairMemory {
    /// Returns a callback that records the speed of each lane, and the best speedup if it used the draft model. To be
    /// called after the event is sent. Failures are ignored.
    pub(super) fn keep(self, ended: &CompareEvent) -> impl FnOnce() + use<> {
        let found = match ended {
            CompareEvent::Finished { report: Some(report), kept: Some(comparison), stopped, trouble } => {
                let whole = !stopped && trouble.is_none();
                Some((report.rates(), whole.then(|| of_pair(report, *comparison)).flatten()))
            }
            _ => None,
        };
        move || {
            let Some((rates, speedup)) = found else { return };
            let Some((LoadedModels { target, draft, .. }, measured)) = self.loaded.zip(self.measured) else {
                return;
            };
            let (target, draft) = (ModelId::of(&target), draft.as_ref().map(ModelId::of));
            let _ = measured.remember(&target, draft.as_ref(), rates);
            if let (Some(speedup), Some(draft)) = (speedup, draft) {
                let _ = measured.remember_pair(&target, &draft, speedup);
            }
        }
    }
}

/// Returns the speedup of a pair from a complete comparison. A comparison with a lossy rule has none.
fn of_pair(report: &ComparisonReport, comparison: i64) -> Option<MeasuredSpeedup> {
    let with_draft = report.lanes.iter().filter(|lane| lane.config.method.needs_draft());
    let best = with_draft.max_by(|a, b| a.speedup.total_cmp(&b.speedup))?;
    report.setting.rule.is_lossless().then_some(MeasuredSpeedup {
        speedup: best.speedup,
        method: best.config.method,
        ended_ms: report.ended_ms,
        comparison,
    })
}

/// Records the speed of an answer.
pub(super) struct AnswerMemory {
    loaded: Option<LoadedModels>,
    how: (Method, AcceptanceRule),
    measured: Option<SpeedLog>,
}

impl AnswerMemory {
    /// Records the speed if the answer has ended and was long enough.
    pub(super) fn keep(&self, event: &GenerationEvent) {
        let (Some(loaded), GenerationEvent::Finished { stats, .. }) = (&self.loaded, event) else { return };
        if let Some(measured) = &self.measured {
            let draft = loaded.draft.as_ref().map(ModelId::of);
            let rates = Rates::of_answer(self.how.0, self.how.1, stats);
            // A speed that cannot be recorded does no harm.
            let _ = measured.remember(&ModelId::of(&loaded.target), draft.as_ref(), rates);
        }
    }
}
