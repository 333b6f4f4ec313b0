//! Queries on pairs of models: predicted memory, verdicts, draft offers. Reads headers of model files. Loading belongs
//! to [`load`](super::load).

use std::path::Path;

use hunch_core::pass_cost::CostCurve;
use hunch_error::Result;
use hunch_library::pairs::{CostQuery, Pairs};
use hunch_library::speed_log::SpeedLog;
use hunch_library::types::{Fit, FitVerdict, MachineMemory, ModelEntry};
use hunch_library::vocabularies::Vocabularies;
use hunch_model::device::Compute;

use crate::generate::LoadPlan;
use crate::store::CurveOf;

/// The machine and its measurements, by which pairs are judged.
pub struct PairJudge<'a> {
    /// Device that models would run on.
    pub compute: &'a Compute,
    /// Memory that models may use.
    pub machine: MachineMemory,
    /// Folder of measured speeds, compared vocabularies and heads.
    pub folder: Option<&'a Path>,
    /// Data folder of low-bit copies. Without one, none is offered.
    pub copies: Option<&'a Path>,
    /// Looks up a saved cost curve.
    pub saved_costs: &'a dyn Fn(&CurveOf<'_>) -> Option<CostCurve>,
}

impl PairJudge<'_> {
    /// Runs a query. `models` are the installed ones.
    ///
    /// # Errors
    /// The errors of `ask`.
    pub fn query<T>(&self, models: &[ModelEntry], ask: impl FnOnce(&Pairs<'_>) -> Result<T>) -> Result<T> {
        let heads = self.folder.map(|folder| folder.join(hunch_library::HEADS_FOLDER));
        let log = self.folder.map(|folder| SpeedLog::in_folder(folder, self.compute.name()));
        ask(&Pairs {
            models,
            compute: self.compute,
            machine: self.machine,
            heads: heads.as_deref(),
            copies: self.copies,
            vocabularies: &Vocabularies::open(self.folder),
            measured: log.as_ref(),
            costs: &|CostQuery { target, draft }| {
                (self.saved_costs)(&CurveOf::on(self.compute, target, draft))
            },
        })
    }

    /// Predicts the memory of planned models and a head, by default the one that drafts for the target. If they do not
    /// fit, `installed` lists the models that are searched for smaller choices.
    ///
    /// # Errors
    /// When a file is missing or unusable, or the context is longer than the target supports.
    pub fn fit(
        &self,
        plan: &LoadPlan,
        context: Option<u32>,
        installed: impl FnOnce() -> Vec<ModelEntry>,
    ) -> Result<Fit> {
        let LoadPlan { target, draft, head, .. } = plan;
        let fit = |pairs: &Pairs<'_>| pairs.fit(target, draft.as_deref(), head.as_deref(), context);
        let found = self.query(&[], fit)?;
        if found.verdict == FitVerdict::TooLarge { self.query(&installed(), fit) } else { Ok(found) }
    }
}
