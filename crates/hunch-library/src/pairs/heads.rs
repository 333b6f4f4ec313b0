//! Judges the heads on this machine as drafters for a target, by the sizes in their files. The weights of a head say
//! nothing about the model that it was trained for.

use super::{CostQuery, ModelHeader, OpenTarget, Pairs};
use crate::HeadEntry;
use crate::catalogue;
use crate::fit::{self, Footprint};
use crate::hub;
use crate::types::{CatalogueHead, FitVerdict, HeadOffer, PredictedSpeedup};
use hunch_core::theory;
use hunch_model::heads::{HeadOutlook, HeadSummary, describe_of_target, outlook, outlook_of_target};

/// Assumed acceptance of a published head with a decoder layer. It gives 1.85 tokens per pass with chains of 4, as
/// measured on MT-Bench for an EAGLE-3 head of Qwen3 4B (taobao-mnn/Qwen3-4B-Instruct-2507-Eagle3).
const LAYER_ACCEPTANCE: f64 = 0.47;

/// Returns whether a folder has the name of a repository, or that name and a number, as if another folder had it first.
fn is_download_of(folder: &str, repository: &str) -> bool {
    let Some((start, end)) = folder.split_at_checked(repository.len()) else { return false };
    let is_number = |end: &str| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    start.eq_ignore_ascii_case(repository) && (end.is_empty() || end.strip_prefix('-').is_some_and(is_number))
}

/// Returns the heads of the catalogue for a target that are not among those on this machine.
pub(super) fn heads_to_fetch(target: &ModelHeader, here: &[HeadEntry]) -> Vec<CatalogueHead> {
    let is_here = |head: &&CatalogueHead| {
        let name = hub::file_name(&head.repository);
        here.iter().any(|entry| is_download_of(&entry.name, name))
    };
    let known = target.known_model.into_iter().flat_map(catalogue::heads_for);
    known.filter(|head| !is_here(head)).cloned().collect()
}

impl Pairs<'_> {
    /// Judges heads for a target.
    pub(super) fn head_offers(
        &self,
        target: OpenTarget<'_>,
        heads: &[HeadEntry],
        context: u32,
    ) -> Vec<HeadOffer> {
        let mut offers: Vec<HeadOffer> =
            heads.iter().map(|head| self.head_offer(target, head, context)).collect();
        let predicted = |offer: &HeadOffer| offer.predicted.map_or(0.0, |predicted| predicted.speedup);
        offers.sort_by(|a, b| {
            (a.problem.is_some().cmp(&b.problem.is_some()))
                .then(predicted(b).total_cmp(&predicted(a)))
                .then_with(|| a.name.cmp(&b.name))
        });
        offers
    }

    fn head_offer(
        &self,
        OpenTarget { header: target, file }: OpenTarget<'_>,
        entry: &HeadEntry,
        context: u32,
    ) -> HeadOffer {
        let (head, problem) = match outlook(&entry.path, file, self.compute) {
            Ok(head) => (Some(head), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let HeadSummary { kind, target: trained_for, bytes, .. } = entry.head.clone();
        let (memory, fit) = self.memory_with(target, head, context);
        HeadOffer {
            name: entry.name.clone(),
            path: entry.path.display().to_string(),
            kind,
            trained_for,
            problem,
            size_bytes: bytes,
            memory,
            fit,
            predicted: head.and_then(|head| self.predicted_of_head(target, &head)),
        }
    }

    /// Judges the layer in the target's own file that drafts. `None` if there is none, or it cannot be used.
    pub(super) fn own_head_offer(
        &self,
        OpenTarget { header: target, file }: OpenTarget<'_>,
        context: u32,
    ) -> Option<HeadOffer> {
        let HeadSummary { kind, target: trained_for, bytes, .. } = describe_of_target(file.gguf()).ok()??;
        let head = outlook_of_target(file, self.compute).ok()??;
        let (memory, fit) = self.memory_with(target, Some(head), context);
        Some(HeadOffer {
            name: target.entry.name.clone(),
            path: target.entry.path.clone(),
            kind,
            trained_for,
            problem: None,
            size_bytes: bytes,
            memory,
            fit,
            predicted: self.predicted_of_head(target, &head),
        })
    }

    /// Predicts the memory of a target and a head in bytes, and whether both fit.
    fn memory_with(
        &self,
        target: &ModelHeader,
        head: Option<HeadOutlook>,
        context: u32,
    ) -> (u64, FitVerdict) {
        let memory = head.map(|head| head.memory);
        let both = fit::fit_with_head(&target.footprint, None::<&Footprint>, memory, context, self.machine);
        (both.total, both.verdict)
    }

    /// Predicts the speedup of a head: from the acceptance that its file states, or from a typical one. `None` on a
    /// GPU, where heads run on the CPU next to it, and for heads without either figure.
    fn predicted_of_head(&self, target: &ModelHeader, head: &HeadOutlook) -> Option<PredictedSpeedup> {
        if self.compute.is_gpu() {
            return None;
        }
        let typical = (head.memory.cache_per_token > 0).then_some(LAYER_ACCEPTANCE);
        let acceptance = head.acceptance.or(typical)?;
        let c = head.read_by_a_draft? as f64 / target.footprint.read_by_a_pass.max(1) as f64;
        let of = (target.spec.name.as_str(), target.footprint.read_by_a_pass);
        let curve = (self.costs)(CostQuery { target: of, draft: None });
        let (cost, costs) = self.pass_cost(target, curve.as_ref());
        let (depth, speedup) = theory::best_depth(acceptance, c, &cost, head.max_depth);
        Some(PredictedSpeedup { speedup, acceptance, depth: depth as u32, costs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_recognised_by_their_folder() {
        let is_here = |folder| is_download_of(folder, "Qwen3-8B_eagle3");
        assert!(["Qwen3-8B_eagle3", "qwen3-8b_eagle3", "Qwen3-8B_eagle3-2"].into_iter().all(is_here));
        assert!(
            !["Qwen3-8B", "Qwen3-8B_eagle3-", "Qwen3-8B_eagle3-b", "Qwen3-8B_eagle31"]
                .into_iter()
                .any(is_here)
        );
        let model = catalogue::by_id("qwen3-8b-q4_k_m").unwrap();
        let repositories: Vec<_> = catalogue::heads_for(model).map(|head| &head.repository[..]).collect();
        assert!(repositories.contains(&"AngelSlim/Qwen3-8B_eagle3"), "{repositories:?}");
    }
}
