//! Answers of servers, as far as they have arrived and finished.

use hunch_core::stats::GenerationStats;
use hunch_core::token::TokenOrigin;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::chunk::{Chunk, Delta};
use super::speculation::Speculation;

/// Fewest pieces of an answer whose speed is measured. Fewer were gathered by a proxy, or by the server.
const MEASURED_PIECES: u32 = 3;
/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextPiece {
    /// Its text: a token of a Hunch server, else what one event of the stream holds.
    pub text: String,
    /// Origin of the token. Known of Hunch servers only.
    pub origin: Option<TokenOrigin>,
    /// True for thinking, which is not part of the answer.
    pub thinking: bool,
}

/// Numbers of tokens, as the server counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer, thinking included.
    pub generated: u64,
}

/// A finished answer and its figures.
#[derive(Clone, Debug, Serialize)]
pub struct RemoteAnswer {
    /// Why it ended, in the server's word: usually `stop` or `length`.
    pub finish_reason: String,
    /// Numbers of tokens, if the server counts them.
    pub usage: Option<Usage>,
    /// Speculation, if the server reports it.
    pub speculation: Option<Speculation>,
    /// Tokens per second after the prompt, if the server reports them.
    pub reported_tok_s: Option<f64>,
    /// Figures of a Hunch server.
    pub stats: Option<GenerationStats>,
    /// Number of events of the stream that held text. Few of them say nothing about the speed.
    pub pieces: u32,
    /// Tokens of thinking that the server counts in the answer, but did not send.
    pub hidden_tokens: u64,
    /// From the request to the first piece, in milliseconds, measured here.
    pub first_ms: f64,
    /// From the request to the end, in milliseconds, measured here.
    pub wall_ms: f64,
}

impl RemoteAnswer {
    /// Returns the tokens per second after the first piece, measured here. The network is part of it. `None` for an
    /// answer that came at once, or in too few pieces.
    pub fn measured_tok_s(&self) -> Option<f64> {
        if self.pieces < MEASURED_PIECES {
            return None;
        }
        let sent = self.usage?.generated.saturating_sub(self.hidden_tokens);
        let (tokens, ms) = (sent.checked_sub(1)?, self.wall_ms - self.first_ms);
        (tokens > 0 && ms > 0.0).then(|| 1000.0 * tokens as f64 / ms)
    }
}

/// An answer as far as it has arrived.
#[derive(Default)]
pub(crate) struct PartialAnswer {
    pub(crate) finish_reason: Option<String>,
    usage: Option<Usage>,
    speculation: Option<Speculation>,
    reported_tok_s: Option<f64>,
    stats: Option<GenerationStats>,
    pub(crate) first_ms: Option<f64>,
    /// Events that held text.
    pieces: u32,
    /// Tokens of thinking, as the server counts them.
    reasoning_tokens: u64,
    /// True once thinking arrived.
    thought: bool,
    /// True once the server said that the stream is complete.
    pub(crate) done: bool,
}

impl PartialAnswer {
    /// Adds a chunk and returns its pieces.
    pub(crate) fn add(&mut self, mut chunk: Chunk) -> Vec<TextPiece> {
        self.speculation = Speculation::of_chunk(&chunk).or(self.speculation);
        if let Some(usage) = &chunk.usage {
            self.usage = Some(Usage { prompt: usage.prompt_tokens, generated: usage.completion_tokens });
            self.reasoning_tokens = usage.completion_tokens_details.reasoning_tokens;
        }
        if let Some(timings) = &chunk.timings {
            self.reported_tok_s = timings.predicted_per_second.or(self.reported_tok_s);
        }
        if let Some(interval) = chunk.metrics.as_ref().and_then(|metrics| metrics.mean_itl_ms) {
            self.reported_tok_s = Some(1000.0 / interval).filter(|rate| rate.is_normal() && *rate > 0.0);
        }
        if let Some(stats) = &chunk.stats {
            self.reported_tok_s = stats.tokens_per_second.or(self.reported_tok_s);
        }
        let hunch = chunk.hunch.take().unwrap_or_default();
        if let Some(stats) = hunch.stats {
            self.reported_tok_s = Some(stats.decode_tok_s);
            self.stats = Some(stats);
        }
        let Some(choice) = chunk.choices.into_iter().next() else { return Vec::new() };
        self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
        let piece = |text: Option<String>, thinking| {
            text.filter(|text| !text.is_empty()).map(|text| TextPiece { text, origin: None, thinking })
        };
        // Servers may send several names of it, and leave all but one empty.
        let Delta { content, reasoning_content, reasoning, thinking } = choice.delta;
        let thoughts = [reasoning_content, reasoning, thinking];
        let thought = thoughts.into_iter().find_map(|text| piece(text, true));
        let text = content.or(choice.text).unwrap_or_default();
        // The tokens of a Hunch server say the same text, piece by piece.
        let by_token = hunch.texts.len() == hunch.origins.len() && hunch.texts.concat() == text;
        let answer: Vec<_> = match by_token {
            true => hunch
                .texts
                .into_iter()
                .zip(hunch.origins)
                .map(|(text, origin)| TextPiece { text, origin: Some(origin), thinking: false })
                .collect(),
            false => piece(Some(text), false).into_iter().collect(),
        };
        self.thought |= thought.is_some();
        let pieces: Vec<_> = thought.into_iter().chain(answer).collect();
        self.pieces = self.pieces.saturating_add(u32::from(!pieces.is_empty()));
        pieces
    }

    /// Returns the answer, or `None` if the server ended before it.
    pub(crate) fn finish(self, wall_ms: f64) -> Option<RemoteAnswer> {
        let finish_reason = self.finish_reason.or_else(|| self.done.then(|| "stop".to_owned()))?;
        Some(RemoteAnswer {
            finish_reason,
            usage: self.usage,
            speculation: self.speculation,
            reported_tok_s: self.reported_tok_s.filter(|rate| rate.is_finite()),
            stats: self.stats,
            pieces: self.pieces,
            hidden_tokens: if self.thought { 0 } else { self.reasoning_tokens },
            first_ms: self.first_ms.unwrap_or(wall_ms),
            wall_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn finished(chunks: &[Value], wall_ms: f64) -> RemoteAnswer {
        let mut progress = PartialAnswer { first_ms: Some(100.0), ..PartialAnswer::default() };
        for chunk in chunks {
            progress.add(serde_json::from_value(chunk.clone()).unwrap());
        }
        progress.done = true;
        progress.finish(wall_ms).unwrap()
    }

    fn piece(delta: Value) -> Value {
        json!({ "choices": [{ "delta": delta }] })
    }

    #[test]
    fn speed_is_measured_only_of_what_arrived_piece_by_piece() {
        let usage = json!({ "usage": { "prompt_tokens": 3, "completion_tokens": 1011,
            "completion_tokens_details": { "reasoning_tokens": 1000 } } });
        let text = piece(json!({ "content": "a" }));
        let at_once = finished(&[text.clone(), usage.clone()], 101.0);
        assert_eq!(at_once.measured_tok_s(), None);
        let hidden = finished(&[text.clone(), text.clone(), text.clone(), usage.clone()], 1100.0);
        assert_eq!(hidden.measured_tok_s(), Some(10.0));
        let thought = piece(json!({ "reasoning_content": "", "reasoning": "so" }));
        let shown = finished(&[thought, text.clone(), text, usage], 1100.0);
        assert_eq!(shown.measured_tok_s(), Some(1010.0));
    }
}
