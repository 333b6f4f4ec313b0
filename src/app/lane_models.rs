//! Models of single lanes of a comparison: their files, titles, and whether they fit into memory together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::App;
use super::load_state::ReadyModels;
use crate::api::LoadedModels;
use crate::bench::compare::report::{CompareRequest, LaneModels};
use crate::bench::compare::{LaneSet, TargetPlace};
use crate::bench::skip_sets::SearchedModel;
use crate::generate::LoadPlan;
use crate::services::load::check_memory;
use hunch_core::propose::MethodOptions;
use hunch_error::{Refusal, Result};
use hunch_library::Inspection;
use hunch_library::fit::Footprint;
use hunch_library::types::{Fit, LoadRequest, ModelEntry};
use hunch_model::weights::WeightFile;

impl App {
    /// Plans the models that lanes have of their own. Targets that do not fit next to the loaded models are loaded in their place.
    ///
    /// # Errors
    /// When no model is loaded, a model is missing or unusable, or the drafters of a target do not fit next to it.
    pub(super) fn lane_sets(&self, request: &CompareRequest) -> Result<Vec<LaneSet>> {
        let ready = self.shared.models.ready()?;
        let mut sets: Vec<LaneSet> = Vec::new();
        for asked in request.lanes.iter().filter_map(|lane| lane.models.as_ref()) {
            if sets.iter().all(|set| set.requested != *asked) {
                let set = self.lane_set(&ready, asked, &request.options, &sets)?;
                sets.push(set);
            }
        }
        if !sets.is_empty() {
            self.place_sets(&ready.loaded, &mut sets)?;
        }
        Ok(sets)
    }

    /// Finds the files and titles of a lane's models. `chosen` are the options of the request, `others` the sets before it.
    fn lane_set(
        &self,
        ready: &ReadyModels,
        asked: &LaneModels,
        chosen: &MethodOptions,
        others: &[LaneSet],
    ) -> Result<LaneSet> {
        let loaded = &ready.loaded;
        let found = self.find_models(&asked.target, asked.draft.as_deref(), asked.head.as_deref())?;
        let LoadPlan { target, draft, head, .. } = &found;
        let inspected = |path: &Path| hunch_library::inspect_listed(path, &self.shared.places);
        let Inspection { entry, spec, .. } = inspected(target)?;
        let is_loaded = *target == Path::new(&loaded.target.path);
        let title = |entry: &ModelEntry| format!("{} {}", entry.title, entry.quantisation);
        // Titles are the identity of targets in the report.
        let of_loaded = ready.details.target.clone();
        let is_taken = |name: &String| {
            let of_other = |set: &LaneSet| set.plan.target != *target && set.titles.target == *name;
            *name == of_loaded || others.iter().any(of_other)
        };
        let names = [title(&entry), entry.name.clone()];
        let of_target = match is_loaded {
            true => of_loaded,
            false => names.into_iter().find(|name| !is_taken(name)).unwrap_or(target.display().to_string()),
        };
        let of_head = head.as_deref().and_then(hunch_library::head_at).map(|head| head.name);
        let titles = LaneModels {
            target: of_target,
            draft: draft.as_deref().map(inspected).transpose()?.map(|draft| title(&draft.entry)),
            head: of_head,
        };
        let context = loaded.context.min(entry.context_length) as usize;
        let plan = LoadPlan { context: Some(context), ..found };
        let place = if is_loaded { TargetPlace::Loaded } else { TargetPlace::Together };
        let info = spec.info();
        let options = if is_loaded {
            self.method_options(chosen)
        } else {
            let file = WeightFile::open(&plan.target)?;
            let read_by_a_pass = Footprint::on_device(file.gguf(), &self.shared.compute)?.read_by_a_pass;
            let skipped_layers = self.skipped_layers(SearchedModel { info: &info, read_by_a_pass });
            MethodOptions { exit_layer: None, skipped_layers, ..chosen.clone() }
        };
        Ok(LaneSet { requested: asked.clone(), titles, plan, place, options })
    }

    /// Decides which sets are in memory together. The order of the sets does not matter.
    fn place_sets(&self, loaded: &LoadedModels, sets: &mut [LaneSet]) -> Result<()> {
        let of_loaded = LaneModels {
            target: loaded.target.path.clone(),
            draft: loaded.draft.as_ref().map(|draft| draft.path.clone()),
            head: loaded.head.as_ref().map(|head| head.path.clone()),
        };
        let fit = self.fit(&fit_request(&of_loaded, loaded.context))?;
        let usable = fit.machine.usable;
        let room = usable.saturating_sub(fit.total);
        let mut further: BTreeMap<PathBuf, TargetMemory> = BTreeMap::new();
        let mut of_target = TargetMemory::default();
        for set in &*sets {
            let context = set.plan.context.map_or(loaded.context, |context| context as u32);
            let fit = self.fit_plan(&set.plan, Some(context))?;
            check_memory(&fit, ", and what was in memory is still there")?;
            if set.place == TargetPlace::Loaded {
                let is_loaded = |path: &Path| {
                    [&of_loaded.draft, &of_loaded.head]
                        .into_iter()
                        .flatten()
                        .any(|one| Path::new(one) == path)
                };
                of_target.add_drafters(&set.plan, &fit, is_loaded);
            } else {
                let memory = further.entry(set.plan.target.clone()).or_default();
                let named: u64 = named_drafters(&set.plan, &fit).map(|(_, bytes)| bytes).sum();
                memory.target = memory.target.max(fit.total - named);
                memory.add_drafters(&set.plan, &fit, |_| false);
            }
        }
        let too_large = |needed: u64, room: u64| Refusal::LaneDraftsTooLarge { missing: needed - room };
        let room = room.checked_sub(of_target.total()).ok_or_else(|| too_large(of_target.total(), room))?;
        if let Some(memory) = further.values().find(|memory| memory.total() > usable) {
            return Err(too_large(memory.total(), usable).into());
        }
        let together =
            fitting_together(further.iter().map(|(target, memory)| (&**target, memory.total())), room);
        for set in sets.iter_mut().filter(|set| set.place != TargetPlace::Loaded) {
            let fits = together.contains(&*set.plan.target);
            set.place = if fits { TargetPlace::Together } else { TargetPlace::Separate };
        }
        Ok(())
    }
}

/// Predicted memory of a target and of the drafters that lanes have for it, in bytes.
#[derive(Default)]
struct TargetMemory {
    /// The target, if it is not loaded.
    target: u64,
    /// Draft models and heads by their files. Lanes share them.
    drafters: BTreeMap<PathBuf, u64>,
}

impl TargetMemory {
    /// Adds the drafters of a set that are not in memory.
    fn add_drafters(&mut self, plan: &LoadPlan, fit: &Fit, is_loaded: impl Fn(&Path) -> bool) {
        let further = named_drafters(plan, fit).filter(|(path, _)| !is_loaded(path));
        self.drafters.extend(further.map(|(path, bytes)| (path.to_owned(), bytes)));
    }

    fn total(&self) -> u64 {
        self.target + self.drafters.values().sum::<u64>()
    }
}

/// Returns the targets that fit into the room together, the smallest first, so that as many as possible run at the same
/// time.
fn fitting_together<'p>(targets: impl Iterator<Item = (&'p Path, u64)>, mut room: u64) -> BTreeSet<&'p Path> {
    let mut targets: Vec<_> = targets.collect();
    targets.sort_by_key(|&(path, needed)| (needed, path));
    let fits = |&(_, needed): &(&Path, u64)| room.checked_sub(needed).inspect(|left| room = *left).is_some();
    targets.into_iter().take_while(fits).map(|(path, _)| path).collect()
}

fn fit_request(models: &LaneModels, context: u32) -> LoadRequest {
    let LaneModels { target, draft, head } = models.clone();
    LoadRequest { target, draft, head, context: Some(context) }
}

/// Returns the predicted bytes of the drafters that a plan names. The usual head of a target counts as part of it.
fn named_drafters<'p>(plan: &'p LoadPlan, fit: &Fit) -> impl Iterator<Item = (&'p Path, u64)> {
    let parts = [(&plan.draft, fit.draft), (&plan.head, fit.head)];
    parts.into_iter().filter_map(|(path, part)| Some((path.as_deref()?, part?.weights + part?.cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_does_not_depend_on_the_order_of_lanes() {
        let targets = [(Path::new("a"), 6), (Path::new("b"), 3), (Path::new("c"), 5)];
        let placed = |order: [usize; 3], room| fitting_together(order.into_iter().map(|i| targets[i]), room);
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_eq!(placed(order, 8), [Path::new("b"), Path::new("c")].into());
            assert_eq!(placed(order, 7), [Path::new("b")].into());
            assert_eq!(placed(order, 14).len(), 3);
            assert_eq!(placed(order, 2), BTreeSet::new());
        }
    }
}
