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

/// Results of a model after a text.
struct Known {
    logits: Vec<f32>,
    /// Hidden states of the last token, by tap.
    taps: Vec<Vec<f32>>,
}

/// A model with remembered logits and hidden states. Passes are chains.
pub(crate) struct Memo {
    model: Box<dyn LanguageModel>,
    /// Tokens in the cache, as the caller sees it.
    cached: Vec<TokenId>,
    /// Tokens in the cache of the model.
    read: Vec<TokenId>,
    known: HashMap<Vec<TokenId>, Known>,
    /// Layers whose hidden states are remembered.
    taps: Vec<usize>,
    clock: PassClock,
    pass_micros: u64,
}

impl Memo {
    /// Wraps a model with an empty cache. Each pass advances the clock by `pass_micros` microseconds.
    pub(crate) fn new(model: impl LanguageModel + 'static, clock: PassClock, pass_micros: u64) -> Self {
        let (cached, read, known, taps) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
        Self { model: Box::new(model), cached, read, known, taps, clock, pass_micros }
    }

    /// Remembers the hidden states of these layers too.
    pub(crate) fn with_taps(self, taps: &[usize]) -> Self {
        Self { taps: taps.to_vec(), ..self }
    }

    /// Empties the cache. The logits stay known.
    pub(crate) fn forget(&mut self) {
        self.cached.clear();
    }

    /// Returns the logits after a text, over the whole vocabulary.
    pub(crate) fn logits_after(&mut self, text: &[TokenId]) -> Result<&[f32]> {
        Ok(&self.after(text)?.logits)
    }

    fn after(&mut self, text: &[TokenId]) -> Result<&Known> {
        if !self.known.contains_key(text) {
            let reuse = shared_len(&self.read, text).min(text.len() - 1);
            self.model.truncate(reuse)?;
            self.read.truncate(reuse);
            let input = PassInput { taps: &self.taps, ..PassInput::chain(&text[reuse..], LogitRows::Last) };
            let output = self.model.forward(input)?;
            self.read = text.to_vec();
            let taps = output.taps.iter().map(|rows| rows.row(rows.len() - 1).to_vec()).collect();
            self.known.insert(text.to_vec(), Known { logits: output.logits.row(0).to_vec(), taps });
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
        assert!(matches!(step.layout, RowLayout::Chain), "chains only");
        assert!(step.taps.is_empty() || step.taps == self.taps, "other states are not remembered");
        self.clock.0.fetch_add(self.pass_micros, Ordering::Relaxed);
        let (mut logits, mut taps) = (Vec::new(), vec![Vec::new(); step.taps.len()]);
        for (row, &token) in step.tokens.iter().enumerate() {
            self.cached.push(token);
            let asked = match step.logits {
                LogitRows::All => true,
                LogitRows::Last => row + 1 == step.tokens.len(),
                LogitRows::None => false,
            };
            let text = self.cached.clone();
            if !taps.is_empty() {
                let known = self.after(&text)?;
                taps.iter_mut().zip(&known.taps).for_each(|(rows, states)| rows.extend_from_slice(states));
            }
            if asked {
                let mut values = self.logits_after(&text)?.to_vec();
                if let Some(subset) = step.vocab_subset {
                    let others = (0..).zip(&mut values).filter(|(token, _)| !subset.contains(*token));
                    others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
                logits.extend(values);
            }
        }
        let logits = if logits.is_empty() { Rows::default() } else { Rows::new(self.info().n_vocab, logits) };
        let rows = step.tokens.len();
        let taps = taps.into_iter().map(|states: Vec<f32>| Rows::new(states.len() / rows, states)).collect();
        Ok(PassOutput { logits, taps })
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
