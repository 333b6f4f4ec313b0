//! A model that remembers the logits after each text, so that a test can run thousands of short generations on real
//! weights.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hunch_core::error::Result;
use hunch_core::model::{
    LanguageModel, LogitRows, ModelInfo, ModelMemory, PassInput, PassOutput, RowLayout, Rows,
};
use hunch_core::stats::Stopwatch;
use hunch_core::token::{TokenId, shared_len};

/// Clock that passes of models advance, so that depth controllers see the same costs in every run.
#[derive(Clone, Default)]
pub(crate) struct PassClock(Arc<AtomicU64>);

impl Stopwatch for PassClock {
    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A model with remembered logits. Passes are chains.
pub(crate) struct Memo {
    model: Box<dyn LanguageModel>,
    /// Tokens in the cache, as the caller sees it.
    cached: Vec<TokenId>,
    /// Tokens in the cache of the model.
    read: Vec<TokenId>,
    known: HashMap<Vec<TokenId>, Vec<f32>>,
    clock: PassClock,
    pass_micros: u64,
}

impl Memo {
    /// Wraps a model with an empty cache. Each pass advances the clock by `pass_micros` microseconds.
    pub(crate) fn new(model: impl LanguageModel + 'static, clock: PassClock, pass_micros: u64) -> Self {
        let (cached, read, known) = (Vec::new(), Vec::new(), HashMap::new());
        Self { model: Box::new(model), cached, read, known, clock, pass_micros }
    }

    /// Empties the cache. The logits stay known.
    pub(crate) fn forget(&mut self) {
        self.cached.clear();
    }

    /// Returns the logits after a text, over the whole vocabulary.
    pub(crate) fn logits_after(&mut self, text: &[TokenId]) -> Result<&[f32]> {
        if !self.known.contains_key(text) {
            let reuse = shared_len(&self.read, text).min(text.len() - 1);
            self.model.truncate(reuse)?;
            self.read.truncate(reuse);
            let output = self.model.forward(PassInput::chain(&text[reuse..], LogitRows::Last))?;
            self.read = text.to_vec();
            self.known.insert(text.to_vec(), output.logits.row(0).to_vec());
        }
        Ok(&self.known[text])
    }
}

impl LanguageModel for Memo {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn cache_len(&self) -> usize {
        self.cached.len()
    }
    fn fork(&self) -> Box<dyn LanguageModel> {
        self.model.fork()
    }
    fn memory(&self) -> ModelMemory {
        self.model.memory()
    }
    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        assert!(matches!(step.layout, RowLayout::Chain) && step.taps.is_empty(), "chains only");
        self.clock.0.fetch_add(self.pass_micros, Ordering::Relaxed);
        let mut logits = Vec::new();
        for (row, &token) in step.tokens.iter().enumerate() {
            self.cached.push(token);
            let asked = match step.logits {
                LogitRows::All => true,
                LogitRows::Last => row + 1 == step.tokens.len(),
                LogitRows::None => false,
            };
            if asked {
                let text = self.cached.clone();
                let mut values = self.logits_after(&text)?.to_vec();
                if let Some(subset) = step.vocab_subset {
                    let others = (0..).zip(&mut values).filter(|(token, _)| !subset.contains(*token));
                    others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
                logits.extend(values);
            }
        }
        let logits = if logits.is_empty() { Rows::default() } else { Rows::new(self.info().n_vocab, logits) };
        Ok(PassOutput { logits, taps: Vec::new() })
    }
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.cached.truncate(len);
        Ok(())
    }
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        let kept: Vec<TokenId> = rows.iter().map(|row| self.cached[base + row]).collect();
        self.cached.truncate(base);
        self.cached.extend(kept);
        Ok(())
    }
}
