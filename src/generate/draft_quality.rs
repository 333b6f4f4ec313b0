//! Draft quality of a method along a given text.

use std::ops::ControlFlow;

use hunch_core::depth::MaxDraft;
use hunch_core::limits::MAX_ROWS;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::Sampler;
use hunch_core::session::{DraftQuality, Session, SessionConfig};
use hunch_core::stats::Stopwatch;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

use super::conversation::GenerationResources;
use super::{GenerationPlan, Models};

/// Evaluates a draft at the start of `text` (which follows `prompt`) and after every `every` tokens of
/// it.
///
/// The seed of a draft depends on its position only, so methods that sample alike draft alike.
///
/// # Errors
/// [`Error::InvalidRequest`] if the plan's depth is adaptive or its rule is not lossless, and the
/// errors of [`generate`](super::generate).
pub fn evaluate_drafts(
    models: &mut Models,
    (prompt, text): (&[TokenId], &[TokenId]),
    every: usize,
    plan: &GenerationPlan,
    clock: &dyn Stopwatch,
) -> Result<Vec<DraftQuality>> {
    plan.validate()?;
    let MaxDraft::Fixed(max_draft) = plan.max_draft else {
        return Err(Error::invalid("Draft quality needs a fixed depth, such as --max-draft 8."));
    };
    if plan.rule != AcceptanceRule::Lossless {
        return Err(Error::invalid("Draft quality needs the rule lossless."));
    }
    let sampler = Sampler::new(plan.sampling.clone())?;
    let mut resources = models.prepare(plan)?;
    let reuse = resources.rewind(prompt)?;
    let GenerationResources { target, stages, cached, tokenizer, .. } = resources;
    let config = SessionConfig {
        max_draft: max_draft as usize,
        // Large enough that the token limit never truncates a draft.
        max_tokens: text.len() + MAX_ROWS + 1,
        end_tokens: tokenizer.end_tokens().iter().copied().collect(),
        seed: plan.sampling.seed.unwrap_or_default(),
        rule: plan.rule,
    };
    let mut session = Session::new(target, &sampler, clock, config)?;
    session.add_stages(plan.method, stages);
    let mut qualities = Vec::new();
    if session.prefill(prompt, reuse, &mut |_, _| ControlFlow::Continue(()))?.is_break() {
        return Err(Error::Internal("a prefill without a cancel check was cancelled".into()));
    }
    for tokens in text.chunks(every.max(1)) {
        qualities.push(session.evaluate_draft()?);
        session.teacher_force(tokens)?;
    }
    *cached = session.cached().to_vec();
    Ok(qualities)
}
