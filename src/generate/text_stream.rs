//! Tokens on their way to text: which token completes which characters, and what has to wait because a
//! stop string may have begun.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::{Alternative, TokenEvent};
use hunch_core::token::{EmittedToken, TokenId, TokenProb};
use hunch_error::Result;
use hunch_model::text::{Detokenizer, Released, StopFilter, Tokenizer};

/// Characters of an alternative's text that are told: enough to know it by.
const ALTERNATIVE_CHARS: usize = 24;

/// Tokens on their way to text: each gets the text it completes, and waits while that text may be
/// the start of a stop string.
pub(super) struct TextStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopFilter,
    waiting: VecDeque<TokenEvent>,
}

impl TextStream {
    /// The text after the tokens `begun`, which may end inside a character.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, stop: &[String], begun: &[TokenId]) -> Result<Self> {
        let mut detokenizer = Detokenizer::new(tokenizer.clone());
        for &token in begun {
            detokenizer.push(token);
        }
        Ok(Self { detokenizer, tokenizer, stop: StopFilter::new(stop)?, waiting: VecDeque::new() })
    }

    /// Takes a token and gives the tokens whose text is settled, in order.
    pub(super) fn push(&mut self, token: &EmittedToken) -> Vec<TokenEvent> {
        let text = self.detokenizer.push(token.id);
        self.waiting.push_back(TokenEvent {
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
        // Tokens come out in the order they went in, so their numbers are of no use here.
        let released = self.stop.push(0, &text);
        self.settle(released)
    }

    fn settle(&mut self, released: Vec<Released>) -> Vec<TokenEvent> {
        let texts = released.into_iter().map(|r| r.text);
        texts.filter_map(|text| self.waiting.pop_front().map(|token| TokenEvent { text, ..token })).collect()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.stopped().is_some()
    }

    fn alternatives(&self, likely: &[TokenProb]) -> Vec<Alternative> {
        // Five decimals say enough, and keep a stream of hundreds of tokens a second small.
        let rounded = likely.iter().map(|&(id, p)| (id, (p * 1e5).round() / 1e5));
        let told = |(id, p)| Alternative(id, self.text_of(id).chars().take(ALTERNATIVE_CHARS).collect(), p);
        rounded.filter(|(_, p)| *p > 0.0).map(told).collect()
    }

    /// The text of a token on its own, as the inspector shows it.
    pub(super) fn text_of(&self, id: TokenId) -> String {
        String::from_utf8_lossy(&self.tokenizer.token_bytes(id)).into_owned()
    }

    /// Gives the tokens that still wait: no stop string will come any more. An incomplete
    /// character at the very end belongs to the last of them.
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
