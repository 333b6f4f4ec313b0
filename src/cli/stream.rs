//! Answers in the terminal: generated event by event, and collected for a report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use hunch::engine::WallClock;
use hunch::event::{GenerationEvent, TokenEvent};
use hunch::generate::{Finished, GenerationContext, GenerationPlan, Models, generate};
use hunch_core::method::Method;
use hunch_core::sample::Constraint;
use hunch_core::token::TokenId;
use hunch_error::ErrorInfo;
use serde_json::{Value, json};

/// An answer with its tokens and events.
pub(crate) struct FinishedAnswer {
    pub(crate) finished: Finished,
    pub(crate) tokens: Vec<TokenEvent>,
    pub(crate) seed: u64,
    /// Rounds in which drafting was parked.
    pub(crate) parked: u32,
    /// Methods that failed and were disabled, with their errors.
    pub(crate) dropped: Vec<(Method, ErrorInfo)>,
}

impl FinishedAnswer {
    /// Returns the object that `--json` prints.
    pub(crate) fn json(&self, method: Method, prompt_ids: &[TokenId], template_note: Option<&str>) -> Value {
        let dropped = |(method, error): &(Method, ErrorInfo)| json!({ "method": method, "error": error });
        let token = |t: &TokenEvent| json!({ "id": t.id, "origin": t.origin, "text": t.text });
        json!({
            "method": method,
            "seed": self.seed,
            "prompt_ids": prompt_ids,
            "template_note": template_note,
            "tokens": self.tokens.iter().map(token).collect::<Vec<_>>(),
            "text": self.tokens.iter().map(|t| t.text.as_str()).collect::<String>(),
            "stop": self.finished.stop,
            "parked_rounds": self.parked,
            "dropped_drafts": self.dropped.iter().map(dropped).collect::<Vec<_>>(),
            "stats": self.finished.stats,
        })
    }
}

/// Generates an answer and calls `show` with every event.
pub(crate) fn stream(
    models: &mut Models,
    ids: &[TokenId],
    plan: &GenerationPlan,
    constraint: Option<Arc<dyn Constraint>>,
    mut show: impl FnMut(&GenerationEvent) -> std::io::Result<()> + Send,
) -> Result<FinishedAnswer> {
    let clock = WallClock::start();
    let closed = AtomicBool::new(false);
    let mut failure = None;
    let mut tokens = Vec::new();
    let (mut drawn_with, mut parked, mut dropped) = (0, 0, Vec::new());
    let mut take = |event: &GenerationEvent| {
        match event {
            GenerationEvent::Started { seed, .. } => drawn_with = *seed,
            GenerationEvent::Round(round) => {
                tokens.extend(round.tokens.iter().cloned());
                parked += u32::from(round.depth.as_ref().is_some_and(|depth| depth.parked));
            }
            GenerationEvent::DraftDropped { method, error } => dropped.push((*method, error.clone())),
            _ => {}
        }
        if let Err(error) = show(event) {
            closed.store(true, Ordering::Relaxed);
            failure.get_or_insert(error);
        }
    };
    // A closed pipe ends the generation.
    let cancelled = || closed.load(Ordering::Relaxed);
    let context = GenerationContext {
        cancelled: &cancelled,
        strict_drafts: false,
        constraint,
        ..GenerationContext::measured(&clock)
    };
    let mut sink = |event: GenerationEvent| take(&event);
    let finished = generate(models, ids, plan, &context, &mut sink)?;
    take(&finished.clone().into_event());
    if let Some(error) = failure {
        return Err(error.into());
    }
    tokens.extend(finished.held.iter().cloned());
    Ok(FinishedAnswer { finished, tokens, seed: drawn_with, parked, dropped })
}
