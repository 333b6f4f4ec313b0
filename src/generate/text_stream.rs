//! Conversion of tokens to text: assigns characters to tokens and holds back the possible start of a
//! stop string.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::{Alternative, TokenEvent};
use hunch_core::token::{EmittedToken, TokenId, TokenProb};
use hunch_error::Result;
use hunch_model::text::{Detokenizer, Released, StopFilter, Tokenizer};

/// Maximum characters shown of an alternative token.
const ALTERNATIVE_CHARS: usize = 24;

/// Stream of generated tokens. Each token receives the text it completes and is held back while that
/// text may be the start of a stop string.
pub(super) struct TextStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopFilter,
    held: VecDeque<TokenEvent>,
}

impl TextStream {
    /// Creates the stream after the tokens `begun`, which may end inside a character, or inside a stop string.
    ///
    /// The special tokens `shown` are text too.
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        stop: &[String],
        begun: &[TokenId],
        shown: &[TokenId],
    ) -> Result<Self> {
        let mut detokenizer = Detokenizer::new(tokenizer.clone()).showing(shown);
        let text: String = begun.iter().map(|&token| detokenizer.push(token)).collect();
        let stop = StopFilter::new(stop)?.after(&text);
        Ok(Self { detokenizer, tokenizer, stop, held: VecDeque::new() })
    }

    /// Adds a token and returns the tokens whose text is final, in order.
    pub(super) fn push(&mut self, token: &EmittedToken) -> Vec<TokenEvent> {
        let text = self.detokenizer.push(token.id);
        self.held.push_back(TokenEvent {
            id: token.id,
            text: String::new(),
            origin: token.origin,
            p: token.p,
            q: token.q,
            u: token.u,
            threshold: token.threshold,
            confidence: token.confidence,
            entropy: Some(token.entropy),
            top: self.alternatives(&token.top),
            guesses: self.alternatives(&token.guesses),
            round: token.round,
            position: token.position,
        });
        // Tokens are released in insertion order, so the filter's token number is unused.
        let released = self.stop.push(0, &text);
        self.settle(released)
    }

    fn settle(&mut self, released: Vec<Released>) -> Vec<TokenEvent> {
        let texts = released.into_iter().map(|r| r.text);
        texts.filter_map(|text| self.held.pop_front().map(|token| TokenEvent { text, ..token })).collect()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop_string().is_some()
    }

    /// Returns the stop string that appeared.
    pub(super) fn stop_string(&self) -> Option<&str> {
        self.stop.stopped()
    }

    fn alternatives(&self, likely: &[TokenProb]) -> Vec<Alternative> {
        // Five decimals are enough and keep the event stream small.
        let rounded = likely.iter().map(|&(id, p)| (id, (p * 1e5).round() / 1e5));
        let alternative =
            |(id, p)| Alternative(id, self.text_of(id).chars().take(ALTERNATIVE_CHARS).collect(), p);
        rounded.filter(|(_, p)| *p > 0.0).map(alternative).collect()
    }

    /// Returns the text of a single token, as the inspector shows it.
    pub(super) fn text_of(&self, id: TokenId) -> String {
        String::from_utf8_lossy(&self.tokenizer.token_bytes(id)).into_owned()
    }

    /// Returns the remaining tokens, because no stop string can follow.
    ///
    /// An incomplete character at the end is added to the last token.
    pub(super) fn finish(&mut self) -> Vec<TokenEvent> {
        let rest = if self.stopped() { String::new() } else { self.detokenizer.finish() };
        let released = self.stop.finish();
        let mut tokens = self.settle(released);
        if let Some(last) = tokens.last_mut() {
            last.text.push_str(&rest);
        }
        tokens
    }
}
