//! Time to the first token of a second message.
//!
//! The caches of target, draft model and proposers hold the conversation, so only new tokens have to be read. Each
//! second message is measured after its first answer, and again from empty caches.

use serde::Serialize;

use crate::bench::lanes::{self, Lane, LaneRun};
use crate::bench::suite::SuitePrompt;
use crate::engine::PausableStopwatch;
use crate::event::GenerationEvent;
use crate::generate::{GenerationPlan, Models, Prompt};
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::quantile::median;
use hunch_error::{Error, Result};

/// The second message.
const FOLLOW_UP: &str = "Thank you. Now say the most important part of that in one sentence.";
/// Tokens of a second answer. Only the first is measured.
const SECOND_ANSWER: usize = 4;

/// Second messages of a suite: medians over its prompts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SecondTurn {
    /// Tokens in the prompt with the second message.
    pub prompt_tokens: f64,
    /// Prompt tokens that had to be read because the caches did not hold them.
    pub new_tokens: f64,
    /// Milliseconds to the first token.
    pub ttft_ms: f64,
    /// Milliseconds to the first token from empty caches.
    pub cold_ttft_ms: f64,
    /// Milliseconds to the first token per token read.
    pub ms_a_new_token: f64,
    /// Milliseconds to the first token per token read, from empty caches.
    pub cold_ms_a_token: f64,
}

/// An answer to one message.
struct Reply {
    text: String,
    /// Prompt tokens read before the answer.
    read: f64,
    ttft_ms: f64,
}

/// Measures the second messages of some prompts.
///
/// # Errors
/// [`Error::InvalidRequest`] when there is no prompt. Otherwise when a model fails.
pub fn measure(models: &mut Models, prompts: &[SuitePrompt], plan: &GenerationPlan) -> Result<SecondTurn> {
    let second = GenerationPlan { max_tokens: SECOND_ANSWER, ..plan.clone() };
    let (mut warm, mut cold, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for prompt in prompts {
        let message = |role, content: &str| ChatMessage { role, content: content.into() };
        let mut messages = prompt.messages();
        let first = reply(models, &messages, plan, false)?;
        messages.extend([message(Role::Assistant, &first.text), message(Role::User, FOLLOW_UP)]);
        lengths.push(models.prompt_ids(&Prompt::Chat(messages.clone()))?.len() as f64);
        warm.push(reply(models, &messages, &second, true)?);
        cold.push(reply(models, &messages, &second, false)?);
    }
    let of = |replies: &[Reply], figure: fn(&Reply) -> f64| {
        let figures: Vec<f64> = replies.iter().map(figure).collect();
        median(&figures).ok_or_else(|| Error::invalid("There is no prompt to measure. Choose a suite."))
    };
    Ok(SecondTurn {
        prompt_tokens: median(&lengths).unwrap_or_default(),
        new_tokens: of(&warm, |reply| reply.read)?,
        ttft_ms: of(&warm, |reply| reply.ttft_ms)?,
        cold_ttft_ms: of(&cold, |reply| reply.ttft_ms)?,
        ms_a_new_token: of(&warm, |reply| reply.ttft_ms / reply.read)?,
        cold_ms_a_token: of(&cold, |reply| reply.ttft_ms / reply.read)?,
    })
}

/// Answers a message in one lane.
fn reply(
    models: &mut Models,
    messages: &[ChatMessage],
    plan: &GenerationPlan,
    keep_caches: bool,
) -> Result<Reply> {
    let prompt = models.prompt_ids(&Prompt::Chat(messages.to_vec()))?;
    // The last token of a prompt is read in the first round.
    let (mut text, mut read) = (String::new(), 1u32);
    let sink = |event: GenerationEvent| {
        event.tokens().iter().for_each(|token| text.push_str(&token.text));
        if let GenerationEvent::Prefill { total, .. } = event {
            read = 1 + total;
        }
    };
    let clock = PausableStopwatch::default();
    let lane = Lane { models, prompt: &prompt, plan, clock: &clock, sink };
    let run = LaneRun { number: 0, stopped: &|| false, keep_caches };
    let answered = lanes::answer(vec![lane], &run, &mut |_| (), &mut |_| Ok(()))?;
    let answered = answered.and_then(|mut lanes| lanes.pop());
    let stats = answered.ok_or_else(|| Error::Internal("an answer stopped by itself".into()))?.stats;
    Ok(Reply { text, read: read.into(), ttft_ms: stats.ttft_ms })
}
