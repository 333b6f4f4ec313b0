//! Which draft goes with a target: every model of this machine and of the catalogue, each with a verdict, what
//! both take and what to expect. Reads headers; loads nothing and measures nothing.

use std::path::Path;

use super::catalogue::{self, TargetVocabulary, footprint_of};
use super::fit::{self, Footprint, Instead, usual_context};
use super::inspect::inspect_header;
use super::measured::{ModelId, SpeedLog};
use super::vocabularies::Vocabularies;
use crate::types::ModelEntry;
use crate::types::{
    CatalogueModel, DraftOffer, DraftOffers, Fit, FitVerdict, MachineMemory, PairVerdict, PredictedSpeedup,
    SmallerChoice,
};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::pass_cost::{CostCurve, PassCost};
use hunch_core::theory;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;
use hunch_model::gguf::Gguf;
use hunch_model::spec::ModelSpec;
use hunch_model::text::{Vocabulary, VocabularyVerdict};

/// Of what a cost curve is asked for: the names of the models and the bytes that a pass of them reads.
#[derive(Clone, Copy, Debug)]
pub struct CostsOf<'a> {
    /// The target.
    pub target: (&'a str, u64),
    /// The draft; `None` = with whatever draft it was measured.
    pub draft: Option<(&'a str, u64)>,
}

/// What pairs are judged by.
pub struct Pairs<'a> {
    /// The models of this machine.
    pub models: &'a [ModelEntry],
    /// Where they would run.
    pub compute: &'a Compute,
    /// What memory there is.
    pub machine: MachineMemory,
    /// Which of them share a vocabulary.
    pub vocabularies: &'a Vocabularies,
    /// What has run here.
    pub measured: Option<&'a SpeedLog>,
    /// Cost curves that were measured on this machine.
    pub costs: &'a dyn Fn(CostsOf<'_>) -> Option<CostCurve>,
}

/// A model whose header was read.
struct Read {
    entry: ModelEntry,
    spec: ModelSpec,
    footprint: Footprint,
    /// What of the catalogue it is, in this quantisation or another.
    kin: Option<&'static CatalogueModel>,
}

/// A model that drafts are looked for.
struct Target {
    read: Read,
    vocabulary: TargetVocabulary,
}

impl Pairs<'_> {
    fn read(&self, path: &Path) -> Result<Read> {
        self.read_header(path).map(|(read, _)| read)
    }

    fn read_header(&self, path: &Path) -> Result<(Read, Gguf)> {
        let (inspection, gguf) = inspect_header(path)?;
        // Other programs' files do not have the names of their models: what the list calls it counts.
        let listed = |same: &dyn Fn(&str) -> bool| self.models.iter().find(|entry| same(&entry.path));
        let found = inspection.entry.path.as_str();
        let entry = listed(&|path| path == found).or_else(|| listed(&|path| same_file(path, found))).cloned();
        let entry = entry.unwrap_or(inspection.entry);
        let spec = inspection.spec;
        let known = catalogue::of_file(&entry.name, entry.size_bytes);
        let read = Read {
            footprint: Footprint::of(&gguf, !self.compute.device().is_cpu())?,
            kin: known.or_else(|| catalogue::kin_of(&[&entry.name, &spec.name])),
            spec,
            entry,
        };
        Ok((read, gguf))
    }

    fn target(&self, path: &Path) -> Result<Target> {
        let (mut read, gguf) = self.read_header(path)?;
        let vocabulary = TargetVocabulary::new(Vocabulary::from_gguf(&gguf)?);
        // A model of that name may have been given other tokens.
        read.kin = read.kin.filter(|kin| expected(&vocabulary.verdict(kin)));
        Ok(Target { read, vocabulary })
    }

    /// How well a target fits by itself, at its usual context.
    ///
    /// # Errors
    /// When its file cannot be read or is of a kind that Hunch does not run.
    pub fn fit_verdict(&self, target: &Path) -> Result<FitVerdict> {
        let target = self.read(target)?;
        let context = context_of(&target.spec, None)?;
        Ok(fit::fit(&target.footprint, None, context, self.machine).verdict)
    }

    /// The memory that target and draft will take, and what would fit if they do not.
    ///
    /// # Errors
    /// When a file cannot be read or is of a kind that Hunch does not run, and when the context is longer than
    /// the target was made for.
    pub fn fit(&self, target: &Path, draft: Option<&Path>, context: Option<u32>) -> Result<Fit> {
        let target = self.read(target)?;
        let draft = draft.map(|path| self.read(path)).transpose()?;
        let context = context_of(&target.spec, context)?;
        let draft = draft.as_ref().map(|draft| &draft.footprint);
        let wanted = fit::fit(&target.footprint, draft, context, self.machine);
        if wanted.verdict != FitVerdict::TooLarge {
            return Ok(wanted);
        }
        let smaller = fit::smaller(&target.footprint, draft, &wanted, &self.instead_of(&target));
        Ok(Fit { smaller, ..wanted })
    }

    /// Models that are smaller than `target`, of this machine and of the catalogue.
    fn instead_of(&self, target: &Read) -> Vec<Instead> {
        let usable = self.models.iter().filter(|entry| entry.problem.is_none());
        let smaller = usable.filter(|entry| entry.size_bytes < target.entry.size_bytes);
        // One that cannot be read now is no choice.
        let here = smaller.filter_map(|entry| self.read(Path::new(&entry.path)).ok()).map(|read| Instead {
            choice: SmallerChoice::Model { name: read.entry.name, path: read.entry.path },
            footprint: read.footprint,
        });
        let absent = catalogue::targets().filter(|model| !self.has(model)).map(|model| Instead {
            choice: SmallerChoice::Catalogue { id: model.id.clone(), name: model.name.clone() },
            footprint: footprint_of(model),
        });
        here.chain(absent).collect()
    }

    /// Whether a model of the catalogue is on this machine.
    fn has(&self, model: &CatalogueModel) -> bool {
        self.models.iter().any(|entry| {
            catalogue::of_file(&entry.name, entry.size_bytes).is_some_and(|known| known.id == model.id)
        })
    }

    /// What can draft for a target.
    ///
    /// # Errors
    /// As [`Pairs::fit`]. A draft that cannot be read is an offer with a reason.
    pub fn offers(&self, target: &Path, context: Option<u32>) -> Result<DraftOffers> {
        let target = self.target(target)?;
        let context = context_of(&target.read.spec, context)?;
        let path = target.read.entry.path.as_str();
        let others = self.models.iter().filter(|entry| !same_file(&entry.path, path));
        let here = others.map(|entry| self.offer_of(&target.read, entry, context));
        // The target itself may be of the catalogue, and outside of the folders.
        let itself = |model: &CatalogueModel| {
            let found = catalogue::of_file(&target.read.entry.name, target.read.entry.size_bytes);
            found.is_some_and(|found| found.id == model.id)
        };
        let absent = catalogue::models().iter().filter(|model| !self.has(model) && !itself(model));
        let to_fetch = absent.map(|model| self.offer_to_fetch(&target, model, context));
        let mut offers: Vec<DraftOffer> = here.chain(to_fetch).collect();
        offers.sort_by(in_order);
        let without_draft = Method::usable(false).into_iter().filter(|method| *method != Method::Plain);
        let without_draft = without_draft.collect();
        Ok(DraftOffers { target: target.read.entry, context, offers, without_draft })
    }

    /// A model of this machine as a draft.
    fn offer_of(&self, target: &Read, entry: &ModelEntry, context: u32) -> DraftOffer {
        let of_sizes = Footprint::guessed(entry.size_bytes, 0);
        let unread = |verdict| {
            let offer = self.offer(target, &of_sizes, context);
            DraftOffer { name: entry.name.clone(), path: Some(entry.path.clone()), verdict, ..offer }
        };
        if let Some(problem) = &entry.problem {
            return unread(PairVerdict::Unusable { reason: problem.clone() });
        }
        if entry.size_bytes >= target.entry.size_bytes {
            return unread(PairVerdict::NotSmaller);
        }
        let draft = match self.read(Path::new(&entry.path)) {
            Ok(draft) => draft,
            Err(error) => return unread(PairVerdict::Unusable { reason: error.to_string() }),
        };
        let verdict = self.verdict(target, &draft);
        let suits = matches!(verdict, PairVerdict::Suits { .. });
        let known = catalogue::of_file(&entry.name, entry.size_bytes);
        let offer = self.offer(target, &draft.footprint, context);
        let of_one_family = target.kin.zip(draft.kin).is_none_or(|(a, b)| a.family == b.family);
        let measured = self.measured.filter(|_| suits);
        DraftOffer {
            name: entry.name.clone(),
            path: Some(entry.path.clone()),
            catalogue: known.map(|model| model.id.clone()),
            size_bytes: entry.size_bytes,
            recommended: suits && recommends(target, draft.kin),
            predicted: suits.then(|| {
                let draft = Some((draft.spec.name.as_str(), draft.footprint.read_by_a_pass));
                self.predicted(target, draft, offer.size_ratio, of_one_family)
            }),
            measured: measured.and_then(|all| all.speedup(&ModelId::of(&target.entry), &ModelId::of(entry))),
            verdict,
            ..offer
        }
    }

    fn verdict(&self, target: &Read, draft: &Read) -> PairVerdict {
        if draft.footprint.weight_bytes >= target.footprint.weight_bytes {
            return PairVerdict::NotSmaller;
        }
        match self.vocabularies.compare(Path::new(&target.entry.path), Path::new(&draft.entry.path)) {
            Ok(VocabularyVerdict::Same { padding, .. }) => PairVerdict::Suits { padding },
            Ok(VocabularyVerdict::Other { first, of_target, of_draft }) => {
                PairVerdict::OtherVocabulary { first, of_target, of_draft }
            }
            Err(error) => PairVerdict::Unusable { reason: error.to_string() },
        }
    }

    /// A model of the catalogue that is not here as a draft.
    fn offer_to_fetch(&self, target: &Target, model: &CatalogueModel, context: u32) -> DraftOffer {
        let Target { read: target, vocabulary } = target;
        let footprint = footprint_of(model);
        let offer = self.offer(target, &footprint, context);
        let of_one_family = target.kin.is_none_or(|kin| kin.family == model.family);
        let verdict = if footprint.weight_bytes >= target.footprint.weight_bytes {
            PairVerdict::NotSmaller
        } else {
            vocabulary.verdict(model)
        };
        let suits = expected(&verdict);
        DraftOffer {
            name: model.name.clone(),
            catalogue: Some(model.id.clone()),
            recommended: suits && recommends(target, Some(model)),
            predicted: suits.then(|| self.predicted(target, None, offer.size_ratio, of_one_family)),
            verdict,
            ..offer
        }
    }

    /// What sizes alone say of a draft.
    fn offer(&self, target: &Read, draft: &Footprint, context: u32) -> DraftOffer {
        let both = fit::fit(&target.footprint, Some(draft), context, self.machine);
        DraftOffer {
            name: String::new(),
            path: None,
            catalogue: None,
            size_bytes: draft.weight_bytes,
            verdict: PairVerdict::NotSmaller,
            recommended: false,
            size_ratio: draft.read_by_a_pass as f64 / target.footprint.read_by_a_pass.max(1) as f64,
            memory: both.total,
            fit: both.verdict,
            predicted: None,
            measured: None,
        }
    }

    /// The speedup that the cost model promises at a typical acceptance, with what was measured of the costs.
    fn predicted(
        &self,
        target: &Read,
        draft: Option<(&str, u64)>,
        size_ratio: f64,
        of_one_family: bool,
    ) -> PredictedSpeedup {
        let acceptance = typical_acceptance(size_ratio, of_one_family);
        let of = CostsOf { target: (&target.spec.name, target.footprint.read_by_a_pass), draft };
        let of_pair = draft.and_then(|_| (self.costs)(of));
        let curve = of_pair.clone().or_else(|| (self.costs)(CostsOf { draft: None, ..of }));
        let measured = curve.and_then(|curve| curve.target_cost().ok());
        // A drafted token costs what its bytes do, unless it was measured.
        let c = of_pair.as_ref().and_then(CostCurve::draft_cost).unwrap_or(size_ratio);
        let costs_measured = measured.is_some();
        let cost = measured.unwrap_or_else(|| usual_cost(self.compute));
        let (depth, speedup) = theory::best_depth(acceptance, c, &cost, MAX_DRAFT);
        PredictedSpeedup { speedup, acceptance, depth: depth as u32, costs_measured }
    }
}

/// Whether a model that is not here is taken to suit.
fn expected(verdict: &PairVerdict) -> bool {
    matches!(verdict, PairVerdict::Expected { .. })
}

/// Whether the catalogue recommends this draft for the target, each in whatever quantisation.
fn recommends(target: &Read, draft: Option<&CatalogueModel>) -> bool {
    target.kin.zip(draft).is_some_and(|(target, draft)| target.draft.as_ref() == Some(&draft.id))
}

/// The context that is asked for, or the usual one.
fn context_of(spec: &ModelSpec, asked: Option<u32>) -> Result<u32> {
    let longest = spec.context_length;
    match asked {
        None => Ok(usual_context(spec) as u32),
        Some(context) if context >= 1 && context as usize <= longest => Ok(context),
        Some(context) => Err(Error::invalid(format!(
            "{} was made for 1 to {longest} tokens; a context of {context} is not possible. Choose a smaller one.",
            spec.name
        ))),
    }
}

/// Whether two paths lead to one file.
fn same_file(a: &str, b: &str) -> bool {
    let real = |path: &str| std::fs::canonicalize(path).ok();
    a == b || real(a).is_some_and(|a| Some(a) == real(b))
}

/// An assumption: the acceptance rate of a draft by its size beside the target. Published rates lie on both
/// sides of this line: about 0.8 for Llama 3.1 8B with 1B, greedy (vllm-project/vllm#38174); 0.71 for GPT-2
/// large with DistilGPT-2 (hurjun/speculative-decoding-lab); 0.45 to 0.63 as users of LM Studio report
/// (lmstudio-ai/mlx-engine#113); 2.28 tokens a pass, which is 0.56, for Vicuna 7B with a draft of 68 M
/// (Spec-Bench, SpS). A draft of another family of the same vocabulary guesses a little worse.
pub fn typical_acceptance(size_ratio: f64, of_one_family: bool) -> f64 {
    /// Acceptance by the logarithm of the size, straight between these.
    const POINTS: [(f64, f64); 4] = [(0.01, 0.55), (0.04, 0.62), (0.15, 0.7), (0.5, 0.78)];
    let at = size_ratio.clamp(POINTS[0].0, POINTS[POINTS.len() - 1].0);
    let right = POINTS.iter().position(|point| point.0 >= at).unwrap_or(POINTS.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (POINTS[right - 1], POINTS[right]);
    let typical = y0 + (y1 - y0) * (at / x0).ln() / (x1 / x0).ln();
    if of_one_family { typical } else { typical - 0.05 }
}

/// What a target pass costs by its rows while nobody has measured it here. On Metal the product of several rows
/// is one of tiles, which for a few rows costs 4.9 passes of one (ggml-org/llama.cpp#4624, whose kernels these
/// are); on the CPU these are the kernels' figures for Qwen2.5 1.5B in Q4_K_M on two cores (`hunch bench
/// passes`).
fn usual_cost(compute: &Compute) -> PassCost {
    let points: &[(usize, f64)] = if compute.device().is_cpu() {
        &[(1, 1.0), (2, 1.15), (5, 1.2), (9, 1.8), (16, 2.85)]
    } else {
        &[(1, 1.0), (2, 4.9), (16, 4.95)]
    };
    PassCost::new(points.iter().copied()).expect("one row is among the points, and all are positive")
}

/// SpeedLog ones first, by speedup; then by predicted speedup, of equals what is recommended, what is here and
/// what is smaller; those that do not suit last.
fn in_order(a: &DraftOffer, b: &DraftOffer) -> std::cmp::Ordering {
    let suits = |offer: &DraftOffer| {
        matches!(offer.verdict, PairVerdict::Suits { .. } | PairVerdict::Expected { .. })
    };
    let measured = |offer: &DraftOffer| offer.measured.as_ref().map_or(0.0, |measured| measured.speedup);
    let predicted = |offer: &DraftOffer| offer.predicted.map_or(0.0, |predicted| predicted.speedup);
    (suits(b).cmp(&suits(a)))
        .then(measured(b).total_cmp(&measured(a)))
        .then(predicted(b).total_cmp(&predicted(a)))
        .then(b.recommended.cmp(&a.recommended))
        .then(b.path.is_some().cmp(&a.path.is_some()))
        .then(a.size_ratio.total_cmp(&b.size_ratio))
        .then_with(|| a.name.cmp(&b.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::MeasuredSpeedup;
    use hunch_model::device::DeviceChoice;

    #[test]
    fn acceptance_rises_with_the_size_of_the_draft_and_never_much() {
        let ratios = [0.0, 0.01, 0.03, 0.1, 0.3, 0.5, 2.0];
        let typical: Vec<f64> = ratios.iter().map(|&ratio| typical_acceptance(ratio, true)).collect();
        assert!(typical.windows(2).all(|pair| pair[0] <= pair[1]), "{typical:?}");
        assert!((typical[0] - 0.55).abs() < 1e-12 && (typical[6] - 0.78).abs() < 1e-12);
        assert!(typical_acceptance(0.1, false) < typical_acceptance(0.1, true));
    }

    #[test]
    fn passes_that_nobody_measured_cost_what_is_known() {
        let cost = usual_cost(&Compute::open(DeviceChoice::Cpu, Some(1)).unwrap());
        assert!((cost.at(1) - 1.0).abs() < 1e-12 && (cost.at(5) - 1.2).abs() < 1e-12 && cost.at(7) > 1.2);
    }

    #[test]
    fn measured_ones_come_first_and_unsuitable_ones_last() {
        let offer = |name: &str, verdict, predicted: Option<f64>, measured: Option<f64>| DraftOffer {
            name: name.into(),
            path: Some(name.into()),
            catalogue: None,
            size_bytes: 1,
            verdict,
            recommended: name == "recommended",
            size_ratio: 0.1,
            memory: 1,
            fit: FitVerdict::Fits,
            predicted: predicted.map(|speedup| PredictedSpeedup {
                speedup,
                acceptance: 0.7,
                depth: 2,
                costs_measured: false,
            }),
            measured: measured.map(|speedup| MeasuredSpeedup {
                speedup,
                method: Method::DraftModel,
                ended_ms: 0,
                comparison: 1,
            }),
        };
        let suits = PairVerdict::Suits { padding: 0 };
        let expected = PairVerdict::Expected { compared: false };
        let mut offers = [
            offer("not smaller", PairVerdict::NotSmaller, None, None),
            offer("equal", expected.clone(), Some(1.3), None),
            offer("slow here", suits.clone(), Some(1.9), Some(0.8)),
            offer("recommended", expected, Some(1.3), None),
            offer("fast here", suits.clone(), Some(1.1), Some(1.5)),
            offer("promising", suits, Some(1.6), None),
        ];
        offers.sort_by(in_order);
        let names: Vec<_> = offers.iter().map(|offer| offer.name.as_str()).collect();
        assert_eq!(names, ["fast here", "slow here", "promising", "recommended", "equal", "not smaller"]);
    }
}
