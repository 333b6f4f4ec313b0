//! What a method's drafts are worth along a text that is there already.

use std::ops::ControlFlow;

use hunch_core::depth::MaxDraft;
use hunch_core::limits::MAX_ROWS;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::Sampler;
use hunch_core::session::{DraftQuality, Session, SessionConfig};
use hunch_core::stats::Stopwatch;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

use super::models::GenerationResources;
use super::{GenerationPlan, Models};

/// Weighs a draft where `text` begins behind `prompt`, and again after every `every` tokens of it. Seeds belong to
/// places: methods that draw alike draft alike.
///
/// # Errors
/// [`Error::InvalidRequest`] when the plan chooses its depth as it goes or accepts by another rule than the lossless
/// one; else as [`generate`](super::generate).
pub fn evaluate_drafts(
    models: &mut Models,
    (prompt, text): (&[TokenId], &[TokenId]),
    every: usize,
    plan: &GenerationPlan,
    clock: &dyn Stopwatch,
) -> Result<Vec<DraftQuality>> {
    plan.validate()?;
    let MaxDraft::Fixed(max_draft) = plan.max_draft else {
        return Err(Error::invalid("Drafts are weighed at a fixed size, such as --max-draft 8."));
    };
    if plan.rule != AcceptanceRule::Lossless {
        return Err(Error::invalid("Drafts are weighed under the rule lossless."));
    }
    let sampler = Sampler::new(plan.sampling.clone())?;
    let mut resources = models.prepare(plan)?;
    let reuse = resources.rewind(prompt)?;
    let GenerationResources { target, stages, cached, tokenizer, .. } = resources;
    let config = SessionConfig {
        max_draft: max_draft as usize,
        // No draft is cut because the answer would be over.
        max_tokens: text.len() + MAX_ROWS + 1,
        end_tokens: tokenizer.end_tokens().iter().copied().collect(),
        seed: plan.sampling.seed.unwrap_or_default(),
        rule: plan.rule,
    };
    let mut session = Session::new(target, &sampler, clock, config)?;
    for proposer in stages {
        session.add_proposer(proposer, None);
    }
    let mut worth = Vec::new();
    if session.prefill(prompt, reuse, &mut |_, _| ControlFlow::Continue(()))?.is_break() {
        return Err(Error::Internal("nobody stops the reading of a text whose drafts are weighed".into()));
    }
    for tokens in text.chunks(every.max(1)) {
        worth.push(session.evaluate_draft()?);
        session.teacher_force(tokens)?;
    }
    *cached = session.cached().to_vec();
    Ok(worth)
}
