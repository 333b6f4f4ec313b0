//! Finds drafts for a target among installed and catalogue models. Each has a verdict, predicted memory and
//! predicted speedup. Reads headers. Loads and measures nothing.

mod heads;
mod low_bit;

use heads::heads_to_fetch;

use std::path::Path;

use super::HeadEntry;
use super::catalogue::{self, TargetVocabulary, footprint_of};
use super::fit::{self, FallbackModel, Footprint, default_context};
use super::inspect::{Inspection, inspect_header};
use super::speed_log::{ModelId, SpeedLog};
use super::vocabularies::Vocabularies;
use crate::types::{
    CatalogueModel, CostSource, DraftOffer, DraftOffers, Fit, FitVerdict, MachineMemory, ModelEntry,
    PairVerdict, PredictedSpeedup, SmallerChoice,
};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::pass_cost::{CostCurve, PassCost};
use hunch_core::propose::Needs;
use hunch_core::theory;
use hunch_error::{Refusal, Result};
use hunch_model::device::Compute;
use hunch_model::gguf::Gguf;
use hunch_model::heads::{memory, usual_memory};
use hunch_model::metal::costs::PassSize;
use hunch_model::spec::ModelSpec;
use hunch_model::text::{Vocabulary, VocabularyVerdict};
use hunch_model::weights::WeightFile;

/// Key of a measured cost curve. Names of the models, and bytes that a pass of each reads.
#[derive(Clone, Copy, Debug)]
pub struct CostQuery<'a> {
    /// The target.
    pub target: (&'a str, u64),
    /// The draft, or `None` for any.
    pub draft: Option<(&'a str, u64)>,
}

/// Inputs for judging pairs.
pub struct Pairs<'a> {
    /// The installed models.
    pub models: &'a [ModelEntry],
    /// The device they would run on.
    pub compute: &'a Compute,
    /// The machine's memory.
    pub machine: MachineMemory,
    /// Folder of trained heads.
    pub heads: Option<&'a Path>,
    /// Data folder of low-bit copies. Without one, none is offered.
    pub copies: Option<&'a Path>,
    /// Cached vocabulary comparisons.
    pub vocabularies: &'a Vocabularies,
    /// Measured speeds.
    pub measured: Option<&'a SpeedLog>,
    /// Looks up cost curves measured on this machine.
    pub costs: &'a dyn Fn(CostQuery<'_>) -> Option<CostCurve>,
}

/// A model whose header was read.
struct ModelHeader {
    entry: ModelEntry,
    spec: ModelSpec,
    footprint: Footprint,
    pass: PassSize,
    /// The catalogue model it is, in any quantisation.
    known_model: Option<&'static CatalogueModel>,
}

impl ModelHeader {
    /// Returns the expected bytes of weights that a pass of `rows` rows reads, relative to one row.
    fn growth(&self, rows: usize) -> f64 {
        let Footprint { read_by_a_pass, expert_bytes, .. } = self.footprint;
        self.spec.experts.map_or(1.0, |experts| experts.growth(read_by_a_pass, expert_bytes, rows))
    }
}

/// A target with its open file.
#[derive(Clone, Copy)]
struct OpenTarget<'a> {
    header: &'a ModelHeader,
    file: &'a WeightFile,
}

/// A model to find drafts for.
struct PairTarget {
    header: ModelHeader,
    vocabulary: TargetVocabulary,
}

impl Pairs<'_> {
    fn read(&self, path: &Path) -> Result<ModelHeader> {
        self.read_header(path).map(|(header, _)| header)
    }

    fn read_header(&self, path: &Path) -> Result<(ModelHeader, Gguf)> {
        let (inspection, gguf) = inspect_header(path)?;
        Ok((self.header(inspection, &gguf)?, gguf))
    }

    fn header(&self, inspection: Inspection, gguf: &Gguf) -> Result<ModelHeader> {
        // In other programs' folders, file names do not name the model, so the listed name counts.
        let listed = |same: &dyn Fn(&str) -> bool| self.models.iter().find(|entry| same(&entry.path));
        let found = inspection.entry.path.as_str();
        let entry = listed(&|path| path == found).or_else(|| listed(&|path| same_file(path, found))).cloned();
        let entry = entry.unwrap_or(inspection.entry);
        let spec = inspection.spec;
        let known = catalogue::match_file(&entry.name, entry.size_bytes);
        let footprint = Footprint::on_device(gguf, self.compute)?;
        Ok(ModelHeader {
            // Weights whose kernel failed are read in another type.
            pass: PassSize::of(gguf, &spec).reading(footprint.read_by_a_pass, footprint.expert_bytes),
            footprint,
            known_model: known.or_else(|| catalogue::guess_by_name(&[&entry.name, &spec.name])),
            spec,
            entry,
        })
    }

    fn target(&self, path: &Path) -> Result<PairTarget> {
        let (mut header, gguf) = self.read_header(path)?;
        let vocabulary = TargetVocabulary::new(Vocabulary::from_gguf(&gguf)?);
        // A fine-tuned model may keep the name and change tokens.
        header.known_model =
            header.known_model.filter(|known_model| expected(&vocabulary.verdict(known_model)));
        Ok(PairTarget { header, vocabulary })
    }

    /// Judges how well a target fits by itself, at its default context.
    ///
    /// # Errors
    /// If its file cannot be read or its architecture is not supported.
    pub fn fit_verdict(&self, target: &Path) -> Result<FitVerdict> {
        let target = self.read(target)?;
        let context = context_of(&target.spec, None)?;
        Ok(fit::fit(&target.footprint, None, context, self.machine).verdict)
    }

    /// Predicts the memory of target, draft and head, with alternatives if they do not fit. Without a head, that of the
    /// one which drafts for the target by itself is counted.
    ///
    /// # Errors
    /// If a file cannot be read, its architecture is not supported, the head is for another target, or the context
    /// exceeds the target's.
    pub fn fit(
        &self,
        target: &Path,
        draft: Option<&Path>,
        head: Option<&Path>,
        context: Option<u32>,
    ) -> Result<Fit> {
        let file = WeightFile::open(target)?;
        let head = match head {
            Some(head) => Some(memory(head, &file, self.compute)?),
            None => usual_memory(self.heads, &file, self.compute)?,
        };
        let draft = draft.map(|path| self.read_draft(&file, path)).transpose()?;
        let target = self.read(target)?;
        let context = context_of(&target.spec, context)?;
        let draft = draft.as_ref().map(|draft| &draft.footprint);
        let wanted = fit::fit_with_head(&target.footprint, draft, head, context, self.machine);
        if wanted.verdict != FitVerdict::TooLarge {
            return Ok(wanted);
        }
        let smaller = fit::smaller(&target.footprint, draft, head, &wanted, &self.alternatives_to(&target));
        Ok(Fit { smaller, ..wanted })
    }

    /// Returns smaller models than `target`, installed and in the catalogue.
    fn alternatives_to(&self, target: &ModelHeader) -> Vec<FallbackModel> {
        let usable = self.models.iter().filter(|entry| entry.problem.is_none());
        let smaller = usable.filter(|entry| entry.size_bytes < target.entry.size_bytes);
        // A model that cannot be read is not an alternative.
        let installed =
            smaller.filter_map(|entry| self.read(Path::new(&entry.path)).ok()).map(|header| FallbackModel {
                choice: SmallerChoice::Model { name: header.entry.name, path: header.entry.path },
                footprint: header.footprint,
            });
        let absent = catalogue::targets().filter(|model| !self.has(model)).map(|model| FallbackModel {
            choice: SmallerChoice::Catalogue { id: model.id.clone(), name: model.name.clone() },
            footprint: footprint_of(model).with_usual_cache(self.compute),
        });
        installed.chain(absent).collect()
    }

    /// Checks whether a catalogue model is installed.
    fn has(&self, model: &CatalogueModel) -> bool {
        self.models.iter().any(|entry| {
            catalogue::match_file(&entry.name, entry.size_bytes).is_some_and(|known| known.id == model.id)
        })
    }

    /// Returns the possible drafts for a target. `heads` are those on this machine.
    ///
    /// # Errors
    /// As [`Pairs::fit`]. An unreadable draft is an offer with a reason.
    pub fn offers(&self, target: &Path, heads: &[HeadEntry], context: Option<u32>) -> Result<DraftOffers> {
        let file = WeightFile::open(target)?;
        let target = self.target(target)?;
        let context = context_of(&target.header.spec, context)?;
        let path = target.header.entry.path.as_str();
        let others = self.models.iter().filter(|entry| !same_file(&entry.path, path));
        let installed = others.map(|entry| self.offer_of(&target.header, entry, context));
        // The target may be a catalogue model outside the scanned folders.
        let itself = |model: &CatalogueModel| {
            let found = catalogue::match_file(&target.header.entry.name, target.header.entry.size_bytes);
            found.is_some_and(|found| found.id == model.id)
        };
        let absent = catalogue::models().iter().filter(|model| !self.has(model) && !itself(model));
        let to_fetch = absent.map(|model| self.offer_to_fetch(&target, model, context));
        let mut offers: Vec<DraftOffer> = installed.chain(to_fetch).collect();
        offers.sort_by(compare_offers);
        let open = OpenTarget { header: &target.header, file: &file };
        let own_head = self.own_head_offer(open, context);
        let low_bit = self.low_bit_offer(open, context)?;
        let needs: &[Needs] = if own_head.is_some() { &[Needs::Head] } else { &[] };
        let without_draft = Method::usable(needs).into_iter().filter(|method| *method != Method::Plain);
        let without_draft = without_draft.collect();
        let heads_to_fetch = heads_to_fetch(&target.header, heads);
        let heads = self.head_offers(open, heads, context);
        Ok(DraftOffers {
            target: target.header.entry,
            context,
            offers,
            heads,
            heads_to_fetch,
            own_head,
            low_bit,
            without_draft,
        })
    }

    /// Judges an installed model as a draft.
    fn offer_of(&self, target: &ModelHeader, entry: &ModelEntry, context: u32) -> DraftOffer {
        let of_sizes = Footprint::estimate(entry.size_bytes, 0);
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
        let known = catalogue::match_file(&entry.name, entry.size_bytes);
        let offer = self.offer(target, &draft.footprint, context);
        let same_family = target.known_model.zip(draft.known_model).is_none_or(|(a, b)| a.family == b.family);
        let measured = self.measured.filter(|_| suits || matches!(verdict, PairVerdict::Translated { .. }));
        DraftOffer {
            name: entry.name.clone(),
            path: Some(entry.path.clone()),
            catalogue: known.map(|model| model.id.clone()),
            size_bytes: entry.size_bytes,
            recommended: suits && recommends(target, draft.known_model),
            // The acceptance of a draft with another tokeniser depends on the text and on both tokenisers. Published
            // rates are from 0.25 to 0.61 (vllm-project/vllm#38174), which predicts nothing.
            predicted: suits.then(|| {
                let acceptance = assumed_acceptance(offer.size_ratio, same_family);
                self.predicted(target, Some(&draft), offer.size_ratio, acceptance)
            }),
            measured: measured.and_then(|all| all.speedup(&ModelId::of(&target.entry), &ModelId::of(entry))),
            verdict,
            ..offer
        }
    }

    fn verdict(&self, target: &ModelHeader, draft: &ModelHeader) -> PairVerdict {
        if draft.footprint.weight_bytes >= target.footprint.weight_bytes {
            return PairVerdict::NotSmaller;
        }
        match self.vocabularies.compare(Path::new(&target.entry.path), Path::new(&draft.entry.path)) {
            Ok(VocabularyVerdict::Same { padding, .. }) => PairVerdict::Suits { padding },
            Ok(VocabularyVerdict::Translated { shared, of }) => PairVerdict::Translated { shared, of },
            Ok(VocabularyVerdict::Other { first, of_target, of_draft }) => {
                PairVerdict::OtherVocabulary { first, of_target, of_draft }
            }
            Err(error) => PairVerdict::Unusable { reason: error.to_string() },
        }
    }

    /// Judges a catalogue model that is not installed as a draft.
    fn offer_to_fetch(&self, target: &PairTarget, model: &CatalogueModel, context: u32) -> DraftOffer {
        let PairTarget { header: target, vocabulary } = target;
        let footprint = footprint_of(model).with_usual_cache(self.compute);
        let offer = self.offer(target, &footprint, context);
        let same_family = target.known_model.is_none_or(|known_model| known_model.family == model.family);
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
            predicted: suits.then(|| {
                let acceptance = assumed_acceptance(offer.size_ratio, same_family);
                self.predicted(target, None, offer.size_ratio, acceptance)
            }),
            verdict,
            ..offer
        }
    }

    /// Returns an offer with everything that follows from sizes alone.
    fn offer(&self, target: &ModelHeader, draft: &Footprint, context: u32) -> DraftOffer {
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

    /// Predicts the speedup at an acceptance rate, from measured costs where available.
    fn predicted(
        &self,
        target: &ModelHeader,
        draft: Option<&ModelHeader>,
        size_ratio: f64,
        acceptance: f64,
    ) -> PredictedSpeedup {
        let of_draft = draft.map(|draft| (draft.spec.name.as_str(), draft.footprint.read_by_a_pass));
        let of = CostQuery { target: (&target.spec.name, target.footprint.read_by_a_pass), draft: of_draft };
        let of_pair = of_draft.and_then(|_| (self.costs)(of));
        let curve = of_pair.clone().or_else(|| (self.costs)(CostQuery { draft: None, ..of }));
        // Until measured, the cost of a drafted token follows from the passes of the GPU, or from the bytes read.
        let first = |model: &ModelHeader| Some(self.passes_on_gpu(model)?.first()?.1);
        let of_passes = || Some(first(draft?)? / first(target)?);
        let measured_draft = of_pair.and_then(|curve| curve.draft_cost().ok().flatten());
        let c = measured_draft.map(|draft| draft.at(1)).or_else(of_passes).unwrap_or(size_ratio);
        let (cost, costs) = self.pass_cost(target, curve.as_ref());
        let (depth, speedup) = theory::best_depth(acceptance, c, &cost, MAX_DRAFT);
        PredictedSpeedup { speedup, acceptance, depth: depth as u32, costs }
    }

    /// Returns the time of a target's passes by rows: from a measured curve, from figures of the GPU, or assumed.
    fn pass_cost(&self, target: &ModelHeader, curve: Option<&CostCurve>) -> (PassCost, CostSource) {
        let measured = curve.and_then(|curve| curve.target_cost().ok());
        let predicted = || PassCost::new(self.passes_on_gpu(target)?).ok();
        match (measured, predicted()) {
            (Some(cost), _) => (cost, CostSource::Measured),
            (None, Some(cost)) => (cost, CostSource::Gpu),
            (None, None) => (default_cost(self.compute, &|rows| target.growth(rows)), CostSource::Sizes),
        }
    }

    /// Predicts milliseconds of passes by rows with our own kernels for GPUs. Models whose shapes or kernels need
    /// candle's operations have none.
    fn passes_on_gpu(&self, model: &ModelHeader) -> Option<Vec<(usize, f64)>> {
        let ours = Some(model).filter(|model| !model.footprint.is_on_candle())?;
        self.compute.predicted_ms(ours.pass, MAX_DRAFT + 1)
    }
}

/// Checks whether a catalogue model is expected to share the vocabulary.
fn expected(verdict: &PairVerdict) -> bool {
    matches!(verdict, PairVerdict::Expected { .. })
}

/// Checks whether the catalogue recommends this draft for the target, in any quantisation.
fn recommends(target: &ModelHeader, draft: Option<&CatalogueModel>) -> bool {
    target.known_model.zip(draft).is_some_and(|(target, draft)| target.draft.as_ref() == Some(&draft.id))
}

/// Returns the requested context, or the default one.
fn context_of(spec: &ModelSpec, asked: Option<u32>) -> Result<u32> {
    let longest = spec.context_length;
    match asked {
        None => Ok(default_context(spec) as u32),
        Some(context) if context >= 1 && context as usize <= longest => Ok(context),
        Some(context) => {
            Err(Refusal::ContextTooLong { name: spec.name.clone(), limit: longest, context }.into())
        }
    }
}

/// Checks whether two paths lead to the same file.
fn same_file(a: &str, b: &str) -> bool {
    let real = |path: &str| std::fs::canonicalize(path).ok();
    a == b || real(a).is_some_and(|a| Some(a) == real(b))
}

/// Assumed acceptance rate of a draft, by its size relative to the target. Published rates scatter around
/// this curve:
///
/// - about 0.8 for Llama 3.1 8B with 1B, greedy (vllm-project/vllm#38174)
/// - 0.71 for GPT-2 large with DistilGPT-2 (hurjun/speculative-decoding-lab)
/// - 0.45 to 0.63 reported by users of LM Studio (lmstudio-ai/mlx-engine#113)
/// - 0.56, from 2.28 tokens per pass, for Vicuna 7B with a 68M draft (Spec-Bench, SpS)
///
/// A draft of another family with the same vocabulary is accepted slightly less often.
pub fn assumed_acceptance(size_ratio: f64, same_family: bool) -> f64 {
    /// Acceptance by size ratio, interpolated linearly over the logarithm of the ratio.
    const POINTS: [(f64, f64); 4] = [(0.01, 0.55), (0.04, 0.62), (0.15, 0.7), (0.5, 0.78)];
    let at = size_ratio.clamp(POINTS[0].0, POINTS[POINTS.len() - 1].0);
    let right = POINTS.iter().position(|point| point.0 >= at).unwrap_or(POINTS.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (POINTS[right - 1], POINTS[right]);
    let typical = y0 + (y1 - y0) * (at / x0).ln() / (x1 / x0).ln();
    if same_family { typical } else { typical - 0.05 }
}

/// Assumed cost of a target pass by rows, relative to one row. Used until costs are measured on this machine, except on
/// GPUs whose costs can be predicted. On others, several rows cost 4.9 single-row passes, as with the tiled kernels of
/// candle (ggml-org/llama.cpp#4624, whose kernels these are). CPU figures are for Qwen2.5 1.5B in Q4_K_M on two cores
/// (`hunch bench passes`).
///
/// `growth` are the bytes of weights that a pass of some rows reads, relative to one row. It is 1 for dense models.
fn default_cost(compute: &Compute, growth: &dyn Fn(usize) -> f64) -> PassCost {
    let points: &[(usize, f64)] = if !compute.is_gpu() {
        &[(1, 1.0), (2, 1.15), (5, 1.2), (9, 1.8), (16, 2.85)]
    } else {
        &[(1, 1.0), (2, 4.9), (16, 4.95)]
    };
    let points = points.iter().map(|&(rows, cost)| (rows, cost + growth(rows) - 1.0));
    PassCost::new(points).expect("the points include one row and are positive")
}

/// Orders offers: those of the target's vocabulary first, then translated ones, then those that cannot be used. Within
/// these by measured speedup, then by predicted speedup. Ties go to recommended, installed and smaller models, in that
/// order.
fn compare_offers(a: &DraftOffer, b: &DraftOffer) -> std::cmp::Ordering {
    let suits = |offer: &DraftOffer| match offer.verdict {
        PairVerdict::Suits { .. } | PairVerdict::Expected { .. } => 2,
        PairVerdict::Translated { .. } => 1,
        PairVerdict::OtherVocabulary { .. } | PairVerdict::NotSmaller | PairVerdict::Unusable { .. } => 0,
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
    fn assumed_acceptance_rises_slowly_with_draft_size() {
        let ratios = [0.0, 0.01, 0.03, 0.1, 0.3, 0.5, 2.0];
        let typical: Vec<f64> = ratios.iter().map(|&ratio| assumed_acceptance(ratio, true)).collect();
        assert!(typical.windows(2).all(|pair| pair[0] <= pair[1]), "{typical:?}");
        assert!((typical[0] - 0.55).abs() < 1e-12 && (typical[6] - 0.78).abs() < 1e-12);
        assert!(assumed_acceptance(0.1, false) < assumed_acceptance(0.1, true));
    }

    #[test]
    fn default_cpu_cost_interpolates_its_points() {
        let cost = default_cost(&Compute::open(DeviceChoice::Cpu, Some(1)).unwrap(), &|_| 1.0);
        assert!((cost.at(1) - 1.0).abs() < 1e-12 && (cost.at(5) - 1.2).abs() < 1e-12 && cost.at(7) > 1.2);
    }

    #[test]
    fn measured_offers_come_first_translated_ones_after_them_and_unusable_ones_last() {
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
                costs: CostSource::Sizes,
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
            offer("translated", PairVerdict::Translated { shared: 3, of: 4 }, None, None),
            offer("translated, fast here", PairVerdict::Translated { shared: 3, of: 4 }, None, Some(1.7)),
            offer("equal", expected.clone(), Some(1.3), None),
            offer("slow here", suits.clone(), Some(1.9), Some(0.8)),
            offer("recommended", expected, Some(1.3), None),
            offer("fast here", suits.clone(), Some(1.1), Some(1.5)),
            offer("promising", suits, Some(1.6), None),
        ];
        offers.sort_by(compare_offers);
        let names: Vec<_> = offers.iter().map(|offer| offer.name.as_str()).collect();
        let suitable = ["fast here", "slow here", "promising", "recommended", "equal"];
        assert_eq!(names[..5], suitable);
        assert_eq!(names[5..], ["translated, fast here", "translated", "not smaller"]);
    }
}
