//! What a second message costs: the caches of target, draft model and proposers hold the conversation, so
//! the first token of the next answer waits for what is new only. Each second turn is measured behind its
//! first one, and again from empty caches.

use serde::Serialize;

use crate::bench::figures::median;
use crate::bench::suite::SuitePrompt;
use crate::engine::WallClock;
use crate::event::GenerationEvent;
use crate::generate::{GenerationContext, GenerationPlan, Models, Prompt, generate};
use hunch_core::chat::{ChatMessage, Role};
use hunch_error::{Error, Result};

/// The second message.
const FOLLOW_UP: &str = "Thank you. Now say the most important part of that in one sentence.";
/// Tokens of a second answer: what is measured is over after the first.
const SECOND_ANSWER: usize = 4;

/// The second turns of a suite, medians over its prompts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SecondTurn {
    /// Tokens in the prompt of the second turn.
    pub prompt_tokens: f64,
    /// Those of them that ran: the caches did not hold them.
    pub new_tokens: f64,
    /// From request to first token, in milliseconds.
    pub ttft_ms: f64,
    /// The same from empty caches.
    pub cold_ttft_ms: f64,
    /// Milliseconds until the first token for each token that ran, behind the first turn.
    pub ms_a_new_token: f64,
    /// The same from empty caches.
    pub cold_ms_a_token: f64,
}

/// One answer: its text, the tokens that ran before it, the milliseconds until its first token.
struct Turn {
    text: String,
    ran: f64,
    ttft_ms: f64,
}

/// Measures second turns.
///
/// # Errors
/// [`Error::InvalidRequest`] when there is no prompt; else when a model fails.
pub fn measure(models: &mut Models, prompts: &[SuitePrompt], plan: &GenerationPlan) -> Result<SecondTurn> {
    let second = GenerationPlan { max_tokens: SECOND_ANSWER, ..plan.clone() };
    let (mut warm, mut cold, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for prompt in prompts {
        let message = |role, content: &str| ChatMessage { role, content: content.into() };
        let mut messages = prompt.messages();
        models.forget()?;
        let first = turn(models, &messages, plan)?;
        messages.extend([message(Role::Assistant, &first.text), message(Role::User, FOLLOW_UP)]);
        lengths.push(models.prompt_ids(&Prompt::Chat(messages.clone()))?.len() as f64);
        warm.push(turn(models, &messages, &second)?);
        models.forget()?;
        cold.push(turn(models, &messages, &second)?);
    }
    let of = |turns: &[Turn], figure: fn(&Turn) -> f64| {
        let figures: Vec<f64> = turns.iter().map(figure).collect();
        median(&figures).ok_or_else(|| Error::invalid("There is no prompt to measure. Choose a suite."))
    };
    Ok(SecondTurn {
        prompt_tokens: median(&lengths).unwrap_or_default(),
        new_tokens: of(&warm, |turn| turn.ran)?,
        ttft_ms: of(&warm, |turn| turn.ttft_ms)?,
        cold_ttft_ms: of(&cold, |turn| turn.ttft_ms)?,
        ms_a_new_token: of(&warm, |turn| turn.ttft_ms / turn.ran)?,
        cold_ms_a_token: of(&cold, |turn| turn.ttft_ms / turn.ran)?,
    })
}

fn turn(models: &mut Models, messages: &[ChatMessage], plan: &GenerationPlan) -> Result<Turn> {
    let ids = models.prompt_ids(&Prompt::Chat(messages.to_vec()))?;
    // The last token of a prompt belongs to the first round.
    let (mut text, mut ran) = (String::new(), 1u32);
    let mut sink = |event: GenerationEvent| match event {
        GenerationEvent::Prefill { total, .. } => ran = 1 + total,
        GenerationEvent::Round(round) => round.tokens.iter().for_each(|token| text.push_str(&token.text)),
        _ => {}
    };
    let clock = WallClock::start();
    let context = GenerationContext {
        id: 0,
        clock: &clock,
        begun: 0,
        dropped: 0,
        cancelled: &|| false,
        strict_drafts: true,
        template_note: None,
    };
    let finished = generate(models, &ids, plan, &context, &mut sink)?;
    finished.held.iter().for_each(|token| text.push_str(&token.text));
    Ok(Turn { text, ran: ran.into(), ttft_ms: finished.stats.ttft_ms })
}
