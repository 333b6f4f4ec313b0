//! Memory predictions, draft offers and remembered speeds for the window.

use super::App;
use crate::api::LoadedModels;
use crate::app::MeasurementSink;
use crate::bench::MethodConfig;
use crate::bench::compare::report::{CompareEvent, CompareRequest, ComparedPrompts, LaneConfig};
use crate::bench::suite::PAIR;
use crate::generate::LoadPlan;
use crate::services::measure::SpeedRecorder;
use crate::services::pair::PairJudge;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result};
use hunch_library::pairs::Pairs;
use hunch_library::speed_log::SpeedLog;
use hunch_library::types::{Catalogue, DraftOffers, Fit, FitVerdict, LoadRequest, MachineMemory};
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
    pub fn fit(&self, request: &LoadRequest) -> Result<Fit> {
        self.fit_plan(&self.find_requested(request)?, request.context)
    }

    /// As [`App::fit`], of files that were found already.
    pub(super) fn fit_plan(&self, plan: &LoadPlan, context: Option<u32>) -> Result<Fit> {
        self.judge(|judge| judge.fit(plan, context, || self.list_models()))
    }

    /// Returns for each target whether it fits alone at its default context, or `None` if it cannot be read. Reads only
    /// the headers of these files.
    pub fn fit_verdicts(&self, targets: &[String]) -> Vec<Option<FitVerdict>> {
        let verdicts = |pairs: &Pairs<'_>| {
            let verdict =
                |name: &String| self.find_model(name).and_then(|path| pairs.fit_verdict(&path)).ok();
            Ok(targets.iter().map(verdict).collect())
        };
        self.judge(|judge| judge.query(&[], verdicts)).unwrap_or_default()
    }

    /// Lists the drafts for a target, on this machine and in the catalogue, and the heads on this machine. Reads files.
    ///
    /// # Errors
    /// As [`App::fit`].
    pub fn draft_offers(&self, target: &str, context: Option<u32>) -> Result<DraftOffers> {
        let target = self.find_model(target)?;
        let models = self.list_models();
        let heads = hunch_library::heads(&self.shared.places, &models);
        self.judge(|judge| judge.query(&models, |pairs| pairs.offers(&target, &heads, context)))
    }

    /// Returns the catalogue of recommended models.
    pub fn catalogue(&self) -> Catalogue {
        catalogue::catalogue(self.machine())
    }

    /// Calls `ask` with the measurements that the window has saved.
    fn judge<T>(&self, ask: impl FnOnce(&PairJudge<'_>) -> T) -> T {
        ask(&PairJudge {
            compute: &self.shared.compute,
            machine: self.machine(),
            folder: self.shared.side_folder.as_deref(),
            copies: self.shared.places.data.as_deref(),
            saved_costs: &|of| self.store().known_costs(of),
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
        if self.shared.models.ready().is_ok() { machine::held_by_models(&self.shared.compute) } else { 0 }
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
        let lane = |method| LaneConfig::of(MethodConfig { method, max_draft: MaxDraft::Auto });
        let request = CompareRequest {
            server: None,
            prompts: ComparedPrompts::Suite { name: PAIR.into(), prompts: None },
            lanes: vec![lane(Method::DraftModel), lane(Method::Cascade)],
            sampling: SamplingParams::default(),
            rule: AcceptanceRule::Lossless,
            max_tokens: PAIR_TOKENS,
            runs: PAIR_RUNS,
            stop: Vec::new(),
            options: MethodOptions::default(),
            thinking: None,
        };
        self.compare(request, sink)
    }

    /// Returns whether this target and draft are loaded with the requested context.
    fn is_loaded(&self, request: &LoadRequest) -> Result<bool> {
        let plan = self.find_requested(&LoadRequest { head: None, ..request.clone() })?;
        let target = plan.target.display().to_string();
        let draft = plan.draft.map(|draft| draft.display().to_string());
        Ok(self.shared.models.ready().is_ok_and(|models| {
            let loaded = &models.loaded;
            loaded.target.path == target
                && loaded.draft.as_ref().map(|draft| &draft.path) == draft.as_ref()
                && loaded.head.as_ref().map(|head| &head.path) == request.head.as_ref()
                && request.context.is_none_or(|context| context == loaded.context)
        }))
    }

    /// Makes the recorder for speeds of the loaded models. `None` if no model is loaded, or there is no data folder.
    pub(super) fn speed_recorder(&self) -> Option<SpeedRecorder> {
        let LoadedModels { target, draft, .. } = self.shared.models.ready().ok()?.loaded.clone();
        Some(SpeedRecorder { log: self.measured()?, target, draft })
    }
}
