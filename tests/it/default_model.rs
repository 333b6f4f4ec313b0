//! Tests on the default model with real weights, using the checks of `hunch verify`.
//!
//! Reference distributions, row invariance, greedy identity, and the distribution of sampled tokens.

use hunch::generate::{Models, Prompt};
use hunch::proof::{self, Oracle, ProofCheck, ProofPlan};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::Needs;

use crate::support::{cpu, default_model};

fn models(draft: bool) -> Models {
    let path = default_model();
    let compute = cpu();
    // The model is its own draft, so that draft methods run on real weights.
    Models::load(&path, draft.then_some(path.as_path()), &compute).unwrap()
}

fn oracle() -> Oracle {
    let text = include_str!("../golden/smollm2-135m-instruct-q4_1.json");
    serde_json::from_str(text).unwrap()
}

fn plan(methods: Vec<Method>) -> ProofPlan {
    let depths = vec![MaxDraft::Fixed(1), MaxDraft::Fixed(4), MaxDraft::Auto];
    ProofPlan { samples: 60, prompts: 2, depths, ..ProofPlan::of(methods) }
}

fn assert_all(checks: Vec<ProofCheck>) {
    assert!(!checks.is_empty());
    for check in checks {
        assert!(check.passed, "{}: {}", check.name, check.finding);
    }
}

#[test]
fn passes_are_row_invariant() {
    assert_all(proof::row_invariance(&mut models(false)).unwrap());
}

#[test]
fn greedy_speculation_equals_plain_decoding() {
    // The other methods are tested on the toy model.
    use Method::{DraftModel, DraftTree, LayerSkip, Lookahead, NgramHead, SuffixHead};
    let methods = vec![DraftModel, DraftTree, LayerSkip, Lookahead, NgramHead, SuffixHead];
    assert_all(proof::identity(&mut models(true), &plan(methods)).unwrap());
}

#[test]
fn distributions_match_oracle() {
    assert_all(proof::against_oracle(&mut models(false), &oracle()).unwrap());
}

/// Few samples after one prompt: this runs the check on real weights. `output_distribution.rs` has tests of stated power.
#[test]
fn tokens_follow_distribution_at_temperature_one() {
    let plan = plan(Method::usable(&[Needs::DraftModel, Needs::Head]));
    let plan = ProofPlan { prompts: 1, ..plan };
    assert_all(proof::token_distribution(&mut models(true), &plan).unwrap());
}

#[test]
fn scores_of_draft_are_limited_to_its_shortlist() {
    let mut models = models(true);
    let (target, draft) = models.scores_after(&[1, 40_000, 2], &|| false).unwrap();
    let draft = draft.unwrap();
    // The shortlist is a prefix of the vocabulary, and what the text contains.
    assert_eq!((draft[40_001], draft[45_000]), (target[40_001], f32::NEG_INFINITY));
    assert_eq!(draft[..32_768], target[..32_768]);
}

#[test]
fn tokeniser_matches_prompts_of_oracle() {
    let models = models(false);
    for case in oracle().cases {
        assert_eq!(models.prompt_ids(&Prompt::Raw(case.prompt)).unwrap(), case.prompt_ids);
    }
}

#[test]
fn inspection_matches_known_file() {
    let inspection = hunch_library::inspect(&default_model()).unwrap();
    assert_eq!(inspection.spec.architecture, "llama");
    assert_eq!(inspection.spec.n_vocab, 49_152);
    assert!(inspection.entry.has_template);
    assert_eq!(inspection.entry.quantisation, "Q4_1");
    assert!(inspection.weight_bytes < inspection.entry.size_bytes);
}
