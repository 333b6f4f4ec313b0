//! Models of the lanes of a comparison, and which of them are in memory together. Loading them is left to
//! [`Models`]. Memory is judged by the caller.

use std::path::{Path, PathBuf};

use super::Listener;
use super::report::{CompareEvent, LaneConfig, LaneModels};
use crate::engine::release_memory;
use crate::generate::{LoadPlan, Models, OpenedModels, WithoutHead};
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;

/// Memory in which the target of a [`LaneSet`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetPlace {
    /// It is the loaded target.
    Loaded,
    /// It fits into memory with all others that are not `Separate`.
    Together,
    /// It is loaded after the others were unloaded.
    Separate,
}

/// A target with drafters, for lanes with models of their own.
#[derive(Clone)]
pub struct LaneSet {
    /// The models as lanes of the request name them.
    pub requested: LaneModels,
    /// Their titles for the report. Different targets have different ones.
    pub titles: LaneModels,
    /// Files to load. Its context is that of the loaded models.
    pub plan: LoadPlan,
    /// Memory of the target. Sets of one target have the same.
    pub place: TargetPlace,
    /// Options of the methods on this target.
    pub options: MethodOptions,
}

/// Assignment of lanes to models. Set 0 are the loaded models, the others follow in the order of the sets.
pub(super) struct Lineup<'a> {
    sets: &'a [LaneSet],
    /// Options of the loaded models.
    options: &'a MethodOptions,
    /// File of the loaded draft model.
    loaded_draft: Option<PathBuf>,
    /// Set of each lane.
    set_of: Vec<usize>,
}

impl<'a> Lineup<'a> {
    /// Assigns requested lanes, and adds plain decoding of every further target and temperature at the end. Returns the
    /// lanes for the report too. The first is plain.
    ///
    /// # Errors
    /// [`Error::Internal`] if the models of a lane are in no set.
    pub(super) fn new(
        requested: &[LaneConfig],
        sets: &'a [LaneSet],
        options: &'a MethodOptions,
        loaded_draft: Option<PathBuf>,
    ) -> Result<(Self, Vec<LaneConfig>)> {
        let mut lineup = Self { sets, options, loaded_draft, set_of: vec![0] };
        let mut lanes = vec![LaneConfig::PLAIN];
        for lane in requested {
            let set = match &lane.models {
                None => 0,
                Some(models) => {
                    let known = sets.iter().position(|set| set.requested == *models);
                    1 + known.ok_or_else(|| Error::Internal("a lane's models are in no set".into()))?
                }
            };
            lineup.set_of.push(set);
            lanes.push(LaneConfig { models: lineup.titles(set), ..lane.clone() });
        }
        for lane in 0..lanes.len() {
            let (target, temperature) = (lineup.target_of(lineup.set_of[lane]), lanes[lane].temperature);
            let is_baseline = |(config, &set): (&LaneConfig, &usize)| {
                config.method == Method::Plain
                    && config.temperature == temperature
                    && lineup.target_of(set) == target
            };
            if !lanes.iter().zip(&lineup.set_of).any(is_baseline) {
                let set = target.map_or(0, |_| lineup.set_of[lane]);
                let titles = target.and_then(|_| lineup.titles(set));
                let models = titles.map(|titles| LaneModels { draft: None, head: None, ..titles });
                lineup.set_of.push(set);
                lanes.push(LaneConfig { models, temperature, ..LaneConfig::PLAIN });
            }
        }
        Ok((lineup, lanes))
    }

    fn titles(&self, set: usize) -> Option<LaneModels> {
        self.own(set).map(|set| set.titles.clone())
    }

    /// Returns the set with a number, `None` for the loaded models.
    fn own(&self, set: usize) -> Option<&'a LaneSet> {
        self.sets.get(set.checked_sub(1)?)
    }

    /// Returns the file of a set's target, `None` for the loaded one.
    pub(super) fn target_of(&self, set: usize) -> Option<&'a Path> {
        self.own(set).filter(|set| set.place != TargetPlace::Loaded).map(|set| set.plan.target.as_path())
    }

    /// Returns the file of a set's draft model. Sets of one target with the same file share its weights.
    pub(super) fn draft_of(&self, set: usize) -> Option<&Path> {
        self.own(set).map_or(self.loaded_draft.as_deref(), |set| set.plan.draft.as_deref())
    }

    /// Returns `true` if a lane has another target than the loaded one.
    pub(super) fn has_other_target(&self, lane: usize) -> bool {
        self.target_of(self.set_of[lane]).is_some()
    }

    /// Returns the set of a lane.
    pub(super) fn set_of(&self, lane: usize) -> usize {
        self.set_of[lane]
    }

    /// Returns the options of the methods of a lane.
    pub(super) fn options_of(&self, set: usize) -> &'a MethodOptions {
        self.own(set).map_or(self.options, |set| &set.options)
    }

    /// Returns the lanes that run together, in the order in which they run. The first group has the loaded target.
    pub(super) fn batches(&self) -> Vec<Vec<usize>> {
        let separate = |lane: usize| {
            let set = self.own(self.set_of[lane]).filter(|set| set.place == TargetPlace::Separate)?;
            Some(&set.plan.target)
        };
        let lanes = || 0..self.set_of.len();
        let mut batches = vec![lanes().filter(|&lane| separate(lane).is_none()).collect::<Vec<_>>()];
        let mut targets = Vec::new();
        for target in lanes().filter_map(separate) {
            if !targets.contains(&target) {
                targets.push(target);
                batches.push(lanes().filter(|&lane| separate(lane) == Some(target)).collect());
            }
        }
        batches
    }

    /// Checks the files of all sets, before anything is loaded or unloaded.
    ///
    /// # Errors
    /// If a file is damaged, the vocabularies of a pair share too little, or a draft model is larger than its target.
    pub(super) fn check_files(&self) -> Result<()> {
        self.sets.iter().try_for_each(|set| OpenedModels::open(&set.plan).map(drop))
    }

    /// Makes the models of every set that a batch needs. Unloads the loaded ones if the batch runs without them.
    ///
    /// # Errors
    /// [`Error::NoModel`] if none are loaded, and the errors of loading.
    pub(super) fn load(
        &self,
        batch: &[usize],
        loaded: &mut Option<Models>,
        compute: &Compute,
    ) -> Result<Vec<(usize, Models)>> {
        let mut numbers: Vec<usize> = batch.iter().map(|&lane| self.set_of[lane]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.iter().any(|&set| self.own(set).is_some_and(|set| set.place == TargetPlace::Separate)) {
            *loaded = None;
            release_memory(compute);
        }
        let mut sets: Vec<(usize, Models)> = Vec::new();
        for number in numbers {
            let same_target = |other: usize| self.target_of(other) == self.target_of(number);
            // Weights of a draft that is there already are shared.
            let same_draft =
                |other: usize| same_target(other) && self.draft_of(other) == self.draft_of(number);
            let find = |suits: &dyn Fn(usize) -> bool| {
                sets.iter().find(|(other, _)| suits(*other)).map(|(_, models)| models)
            };
            let models = match self.own(number) {
                None => loaded.as_ref().ok_or(Error::NoModel)?.fork()?,
                Some(own) if own.place == TargetPlace::Loaded => {
                    let loaded = loaded.as_ref().ok_or(Error::NoModel)?;
                    // A set without a head has the loaded one.
                    let has_head = |other| self.own(other).is_some_and(|other| other.plan.head.is_some());
                    let from =
                        find(&|other| same_draft(other) && (own.plan.head.is_some() || !has_head(other)));
                    from.unwrap_or(loaded).with_drafters(&own.plan, WithoutHead::KeepCurrent, compute)?
                }
                Some(own) => match find(&same_draft).or_else(|| find(&same_target)) {
                    Some(models) => models.with_drafters(&own.plan, WithoutHead::TakeUsual, compute)?,
                    None => Models::load_by(&own.plan, compute)?,
                },
            };
            sets.push((number, models));
        }
        Ok(sets)
    }
}

/// Loads models again that a comparison has unloaded. A failure is an event.
pub(super) fn restore(
    loaded: &mut Option<Models>,
    plan: &LoadPlan,
    compute: &Compute,
    listener: &mut Listener<'_>,
) {
    if loaded.is_some() {
        return;
    }
    match Models::load_by(plan, compute) {
        Ok(models) => *loaded = Some(models),
        Err(error) => (listener.on_event)(CompareEvent::NotRestored { error: (&error).into() }),
    }
}
