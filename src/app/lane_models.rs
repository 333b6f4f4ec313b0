//! Models that lanes of a comparison bring: their files, titles, and whether they fit into memory together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::App;
use crate::api::LoadedModels;
use crate::bench::compare::report::{CompareRequest, LaneModels};
use crate::bench::compare::{LaneSet, TargetPlace};
use crate::bench::skip_sets::SearchedModel;
use crate::generate::LoadPlan;
use crate::services::load::{self, check_memory};
use hunch_core::propose::MethodOptions;
use hunch_error::{Refusal, Result};
use hunch_library::Inspection;
use hunch_library::fit::Footprint;
use hunch_library::types::{Fit, FitRequest, ModelEntry};
use hunch_model::weights::WeightFile;

impl App {
    /// Plans the models that lanes bring. Targets that do not fit next to the loaded models are loaded in their place.
    ///
    /// # Errors
    /// When no model is loaded, a model is missing or unusable, or the drafters of a target do not fit next to it.
    pub(super) fn lane_sets(&self, request: &CompareRequest) -> Result<Vec<LaneSet>> {
        let ready = self.shared.models.ready()?;
        let loaded = &ready.loaded;
        let mut sets: Vec<LaneSet> = Vec::new();
        for asked in request.lanes.iter().filter_map(|lane| lane.models.as_ref()) {
            if sets.iter().all(|set| set.requested != *asked) {
                let set = self.lane_set(loaded, asked, &sets)?;
                sets.push(set);
            }
        }
        if !sets.is_empty() {
            self.place_sets(loaded, &mut sets)?;
        }
        Ok(sets)
    }

    /// Finds the files and titles of a lane's models. `others` are the sets before it.
    fn lane_set(&self, loaded: &LoadedModels, asked: &LaneModels, others: &[LaneSet]) -> Result<LaneSet> {
        let target = self.find_model(&asked.target)?;
        let draft = asked.draft.as_deref().map(|name| self.find_model(name)).transpose()?;
        let head = self.find_head(asked.head.as_deref())?;
        let inspected = |path: &Path| hunch_library::inspect_listed(path, &self.shared.places);
        let Inspection { entry, spec, .. } = inspected(&target)?;
        let is_loaded = target == Path::new(&loaded.target.path);
        let title = |entry: &ModelEntry| format!("{} {}", entry.title, entry.quantisation);
        // Titles are the identity of targets in the report.
        let taken = others.iter().any(|set| set.plan.target != target && set.titles.target == title(&entry));
        let of_target = if is_loaded {
            self.shared.models.ready()?.details.target.clone()
        } else if taken || title(&entry) == loaded.target.title {
            entry.name.clone()
        } else {
            title(&entry)
        };
        let of_head = head.as_deref().and_then(hunch_library::head_at).map(|head| head.name);
        let titles = LaneModels {
            target: of_target,
            draft: draft.as_deref().map(inspected).transpose()?.map(|draft| title(&draft.entry)),
            head: of_head,
        };
        let context = loaded.context.min(entry.context_length) as usize;
        let plan = load::plan(&self.shared.places, target, draft);
        let plan = LoadPlan { head, context: Some(context), ..plan };
        let place = if is_loaded { TargetPlace::Loaded } else { TargetPlace::Beside };
        let info = spec.info();
        let options = if is_loaded {
            self.method_options()
        } else {
            let file = WeightFile::open(&plan.target)?;
            let read_by_a_pass = Footprint::on_device(file.gguf(), &self.shared.compute)?.read_by_a_pass;
            let skipped_layers = load::skipped_layers(SearchedModel { info: &info, read_by_a_pass });
            MethodOptions { skipped_layers, ..MethodOptions::default() }
        };
        Ok(LaneSet { requested: asked.clone(), titles, plan, place, options })
    }

    /// Decides which sets are in memory together.
    fn place_sets(&self, loaded: &LoadedModels, sets: &mut [LaneSet]) -> Result<()> {
        let of_loaded = LaneModels {
            target: loaded.target.path.clone(),
            draft: loaded.draft.as_ref().map(|draft| draft.path.clone()),
            head: loaded.head.as_ref().map(|head| head.path.clone()),
        };
        let fit = self.fit(&fit_request(&of_loaded, loaded.context))?;
        let mut room = fit.machine.usable.saturating_sub(fit.total);
        // Room next to each target that runs alone.
        let mut alone: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for number in 0..sets.len() {
            let (before, [set, ..]) = sets.split_at_mut(number) else { break };
            let context = set.plan.context.map_or(loaded.context, |context| context as u32);
            let fit = self.fit(&fit_request(&set.requested, context))?;
            check_memory(&fit, ", and what was in memory is still there")?;
            let earlier = before.iter().find(|other| other.plan.target == set.plan.target);
            let shares =
                earlier.map(|other| other.place).or((set.place == TargetPlace::Loaded).then_some(set.place));
            let needed = if shares.is_some() { of_drafters(&fit) } else { fit.total };
            set.place = match shares {
                Some(place) => place,
                None if needed <= room => TargetPlace::Beside,
                None => {
                    alone.insert(set.plan.target.clone(), fit.machine.usable);
                    TargetPlace::Alone
                }
            };
            let room = alone.get_mut(&set.plan.target).unwrap_or(&mut room);
            *room = room
                .checked_sub(needed)
                .ok_or_else(|| Refusal::LaneDraftsTooLarge { missing: needed - *room })?;
        }
        Ok(())
    }
}

fn fit_request(models: &LaneModels, context: u32) -> FitRequest {
    let LaneModels { target, draft, head } = models.clone();
    FitRequest { target, draft, head, context: Some(context) }
}

/// Returns the predicted memory of the drafters of a target.
fn of_drafters(fit: &Fit) -> u64 {
    [fit.draft, fit.head].into_iter().flatten().map(|part| part.weights + part.cache).sum()
}
