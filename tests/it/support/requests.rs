//! Requests to the tiny models.

use hunch::api::{AnswerRequest, AnswerSettings, AnsweredBy, Asking};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;

use hunch_testing::tiny::END_OF_TURN;

/// Creates a question for a tiny model whose answer always has `max_tokens` tokens.
pub(crate) fn endless_request(method: Method, max_tokens: u32) -> AnswerRequest {
    let mut sampling = SamplingParams { seed: Some(7), ..SamplingParams::unfiltered() };
    sampling.logit_bias.insert(END_OF_TURN, -100.0);
    let settings = AnswerSettings {
        method,
        max_draft: MaxDraft::Fixed(3),
        max_tokens,
        sampling,
        ..AnswerSettings::default()
    };
    let asking = Asking::Question { parent: None, text: "abc abc".into(), attachments: Vec::new() };
    AnswerRequest { conversation: None, asking, settings, by: AnsweredBy::Loaded }
}
