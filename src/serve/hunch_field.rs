//! The `hunch` field of responses: where each token came from, and the figures of the answer.

use hunch_model::text::without_signs;
use serde_json::{Value, json};

use super::answer::{RunningAnswer, Whole};
use crate::event::{RoundEvent, TokenEvent};
use crate::generate::Finished;

/// Returns the field of a chunk: its tokens, and the figures so far.
pub(super) fn of_round(answer: &RunningAnswer, round: &RoundEvent) -> Value {
    of_tokens_after(&round.tokens, answer, round)
}

/// Returns the field of tokens of this round and of earlier ones, with the figures so far.
pub(super) fn of_tokens_after(tokens: &[TokenEvent], answer: &RunningAnswer, round: &RoundEvent) -> Value {
    let mut field = of_tokens(tokens);
    field["predicted_speedup"] = json!(answer.predicted_speedup(round.figures.decode_tok_s));
    field["rounds"] = json!(round.figures.rounds);
    field["tokens_per_pass"] = json!(round.figures.mean_acceptance_length);
    field
}

/// Returns the field of the last chunk.
pub(super) fn of_end(answer: &RunningAnswer, finished: &Finished) -> Value {
    of_answer(&finished.held, answer, finished)
}

/// Returns the figures of an answer, without its tokens.
pub(super) fn figures(answer: &RunningAnswer, finished: &Finished) -> Value {
    with_figures(json!({}), answer, finished)
}

/// Returns the field of a whole answer.
pub(super) fn of_whole(answer: &RunningAnswer, whole: &Whole) -> Value {
    of_answer(&whole.tokens, answer, &whole.finished)
}

/// Returns the field of tokens, with the figures of the whole answer.
pub(super) fn of_answer(tokens: &[TokenEvent], answer: &RunningAnswer, finished: &Finished) -> Value {
    with_figures(of_tokens(tokens), answer, finished)
}

/// Returns the field of tokens alone.
pub(super) fn of_tokens(tokens: &[TokenEvent]) -> Value {
    let origins: Vec<_> = tokens.iter().map(|token| token.origin).collect();
    let texts: Vec<_> = tokens.iter().map(|token| without_signs(&token.text)).collect();
    json!({ "origins": origins, "texts": texts })
}

fn with_figures(mut field: Value, answer: &RunningAnswer, finished: &Finished) -> Value {
    let stats = &finished.stats;
    field["rounds"] = json!(stats.rounds);
    field["tokens_per_pass"] = json!(stats.mean_acceptance_length);
    field["predicted_speedup"] = json!(answer.predicted_speedup(stats.decode_tok_s));
    field["number"] = json!(answer.number);
    field["method"] = json!(answer.method);
    field["seed"] = json!(answer.seed);
    field["stop"] = json!(finished.stop);
    field["stats"] = json!(stats);
    field
}
