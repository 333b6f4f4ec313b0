//! Several independent sequences over the weights of one decoder.
//!
//! On the CPU a pass takes one row of every sequence at once, which costs far less than a pass each. Elsewhere, and if
//! layers have a state, the sequences take turns.

use hunch_core::model::{LanguageModel, LogitRows, PassInput, PassOutput, Rows};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

use crate::decoder::Decoder;
use crate::executor::SequenceExecutor;

/// Sequences with a cache each.
pub struct Sequences {
    kind: SequenceBackend,
    prefill_rows: usize,
    n_layer: usize,
    n_vocab: usize,
}

enum SequenceBackend {
    /// One pass for all.
    Batch(Box<dyn SequenceExecutor>),
    /// A pass each.
    Turns(Vec<Box<dyn LanguageModel>>),
}

impl Sequences {
    /// Creates `count` empty sequences.
    pub fn of(decoder: &Decoder, count: usize) -> Self {
        let kind = match decoder.sequences(count) {
            Some(sequences) => SequenceBackend::Batch(sequences),
            None => SequenceBackend::Turns((0..count).map(|_| decoder.fork()).collect()),
        };
        let info = decoder.info();
        Self { kind, prefill_rows: decoder.prefill_rows(), n_layer: info.n_layer, n_vocab: info.n_vocab }
    }

    /// Returns the number of sequences.
    pub fn count(&self) -> usize {
        match &self.kind {
            SequenceBackend::Batch(sequences) => sequences.count(),
            SequenceBackend::Turns(models) => models.len(),
        }
    }

    /// Drops all rows of a sequence from `len` on.
    ///
    /// # Errors
    /// If the device fails.
    pub fn truncate(&mut self, sequence: usize, len: usize) -> Result<()> {
        match &mut self.kind {
            SequenceBackend::Batch(sequences) => sequences.cache_mut(sequence).truncate(len),
            SequenceBackend::Turns(models) => models[sequence].truncate(len)?,
        }
        Ok(())
    }

    /// Appends tokens to one sequence, without logits.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, the context is full, or the device fails.
    pub fn prefill(&mut self, sequence: usize, tokens: &[TokenId]) -> Result<()> {
        self.check(tokens.iter().copied(), &[])?;
        for chunk in tokens.chunks(self.prefill_rows.max(1)) {
            match &mut self.kind {
                SequenceBackend::Batch(sequences) => sequences.prefill(sequence, chunk)?,
                SequenceBackend::Turns(models) => {
                    drop(models[sequence].forward(PassInput::chain(chunk, LogitRows::None))?)
                }
            }
        }
        Ok(())
    }

    /// Appends one token to each of the listed sequences. Returns the logits `[rows, n_vocab]` after them, and the
    /// residual stream `[rows, n_embd]` after each layer of `taps`.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, a sequence is listed twice, a context is full, or the device fails.
    pub fn step(&mut self, rows: &[(usize, TokenId)], taps: &[usize]) -> Result<PassOutput> {
        self.check(rows.iter().map(|&(_, token)| token), taps)?;
        let twice = |(i, (sequence, _)): (usize, &(usize, TokenId))| {
            rows[..i].iter().any(|(other, _)| other == sequence)
        };
        let missing = rows.iter().any(|&(sequence, _)| sequence >= self.count());
        if rows.is_empty() || missing || rows.iter().enumerate().any(twice) {
            return Err(Error::Internal("a pass takes one row of each sequence".into()));
        }
        let models = match &mut self.kind {
            SequenceBackend::Batch(sequences) => return sequences.step(rows, taps),
            SequenceBackend::Turns(models) => models,
        };
        let mut logits = Vec::new();
        let mut tapped: Vec<Vec<f32>> = vec![Vec::new(); taps.len()];
        let mut width = 1;
        for &(sequence, token) in rows {
            let tokens = [token];
            let step = PassInput { taps, ..PassInput::chain(&tokens, LogitRows::All) };
            let output = models[sequence].forward(step)?;
            logits.extend(output.logits.into_values());
            for (all, rows) in tapped.iter_mut().zip(output.taps) {
                let row = rows.into_values();
                width = row.len().max(1);
                all.extend(row);
            }
        }
        let taps = tapped.into_iter().map(|rows| Rows::new(width, rows)).collect();
        Ok(PassOutput { logits: Rows::new(self.n_vocab, logits), taps })
    }

    fn check(&self, mut tokens: impl Iterator<Item = TokenId>, taps: &[usize]) -> Result<()> {
        if tokens.any(|token| token as usize >= self.n_vocab) || taps.iter().any(|&tap| tap >= self.n_layer) {
            return Err(Error::Internal("a token or a tapped layer does not exist".into()));
        }
        Ok(())
    }
}
