//! Passes before a model answers: they warm it up, and measure how long a pass takes here.

use std::time::Instant;

use super::Decoder;
use crate::execution::Backend;
use crate::pass_timer::{PassTimer, TimingObserver, seconds_of};
use hunch_core::limits::MAX_ROWS;
use hunch_core::model::{ChainDraws, ChainInput, LanguageModel, LogitRows, PassInput, RowLayout};
use hunch_core::sample::DrawSettings;
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Rows of the passes that warm a GPU up: each tile of [`TileRows`](crate::metal::products::TileRows) once. Other
/// numbers of rows use the same kernels.
const WARM_UP_ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 33];

/// Passes of one row on the CPU, one after the other, that may be no faster than the fastest before the weights count as
/// warm.
const WARM_UP_PATIENCE: usize = 4;

/// Time below which a pass counts as faster, in times of the fastest one.
const WARM_UP_GAIN: f64 = 0.98;

/// Seconds after which the first pass that is no faster ends the warm-up, and passes are timed once: a large model never
/// fits into caches.
const WARM_UP_SECONDS: f64 = 0.25;

/// Timed passes of each number of rows after a warm-up.
const TIMED_ROUNDS: usize = 3;

/// Times of passes after a warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmTimes {
    /// Milliseconds of a pass of one row.
    pub plain_ms: f64,
    /// Cost of a further row, in passes of one row: the mean over a pass of as many rows as verification may have. `None`
    /// if the context has one row.
    pub row: Option<f64>,
}

impl Decoder {
    /// Runs passes before any is timed. The cache stays as it is.
    ///
    /// On a GPU they have all sizes with kernels of their own, so that no later pass compiles one. On the CPU they bring
    /// the weights into the caches, which takes a small model some 20 passes.
    ///
    /// # Errors
    /// If the device fails.
    pub fn warm_up(&self) -> Result<()> {
        let mut model = self.fork();
        if self.execution.backend == Backend::Cpu {
            return fill_caches(&mut *model);
        }
        let longest = WARM_UP_ROWS.into_iter().filter(|rows| *rows < self.spec.context_length);
        for rows in longest {
            model.truncate(0)?;
            let tokens = vec![0; rows];
            model.forward(PassInput::chain(&tokens, LogitRows::All))?;
        }
        // Branches, of which one is kept, and hidden states.
        model.truncate(0)?;
        let layout = RowLayout::Tree { parents: &[None, None] };
        model.forward(PassInput { layout, taps: &[0], ..PassInput::chain(&[0, 0], LogitRows::All) })?;
        model.keep_rows(0, &[1])?;
        model.truncate(0)?;
        model.device_chain(ChainInput::new(&[0], 2))?;
        let all = DrawSettings { sharpness: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
        if let Some(settings) = model.device_draw(&all) {
            let draws = ChainDraws { settings, n_vocab: self.spec.n_vocab, units: &[0.5, 0.5] };
            model.truncate(0)?;
            model.device_chain(ChainInput { draws: Some(draws), ..ChainInput::new(&[0], 2) })?;
        }
        Ok(())
    }

    /// Times passes of one row and of as many as verification may have, in turn, after a [`warm_up`](Self::warm_up). The
    /// fastest of each count. The cache stays as it is.
    ///
    /// # Errors
    /// If the device fails.
    pub fn time_passes(&self) -> Result<WarmTimes> {
        let mut model = self.fork();
        let most = MAX_ROWS.min(self.spec.context_length);
        let mut timer = PassTimer::of_warm(vec![most, 1]);
        let mut time = |_, &rows: &usize| seconds_of_pass(&mut *model, rows).map(Some);
        let begun = Instant::now();
        while timer.rounds() == 0
            || (timer.rounds() < TIMED_ROUNDS && begun.elapsed().as_secs_f64() < WARM_UP_SECONDS)
        {
            TimingObserver::none(|watch| timer.run(1, &mut time, watch))?;
        }
        let least = |rows| timer.since(0).least(&rows).unwrap_or_default();
        let (plain, long) = (least(1), least(most));
        let row = (most > 1 && plain > 0.0).then(|| (long / plain - 1.0) / (most - 1) as f64);
        Ok(WarmTimes { plain_ms: 1e3 * plain, row })
    }
}

/// Runs passes of one row until they get no faster.
///
/// # Errors
/// If a pass fails.
fn fill_caches(model: &mut dyn LanguageModel) -> Result<()> {
    let (mut fastest, mut spent, mut slower) = (f64::INFINITY, 0.0, 0);
    while slower < WARM_UP_PATIENCE && (slower == 0 || spent < WARM_UP_SECONDS) {
        let seconds = seconds_of_pass(model, 1)?;
        slower = if seconds < WARM_UP_GAIN * fastest { 0 } else { slower + 1 };
        fastest = fastest.min(seconds);
        spent += seconds;
    }
    Ok(())
}

/// Runs a pass of some rows on an empty cache, and returns its seconds.
///
/// # Errors
/// If it fails.
fn seconds_of_pass(model: &mut dyn LanguageModel, rows: usize) -> Result<f64> {
    model.truncate(0)?;
    let tokens: Vec<TokenId> =
        (0..rows as TokenId).map(|row| row % model.info().n_vocab as TokenId).collect();
    let seconds = seconds_of(|| Ok(model.forward(PassInput::chain(&tokens, LogitRows::All)).map(drop)?))?;
    model.truncate(0)?;
    Ok(seconds)
}
