//! Fit of a draft model on a target, measured once when the pair is loaded. The depth controller starts from it. Nothing
//! is drafted or verified here.

use std::time::Instant;

use hunch_core::depth::PairFit;
use hunch_core::limits::MAX_ROWS;
use hunch_core::model::{LanguageModel, LogitRows, Rows, Step};
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::stats::millis;
use hunch_core::theory;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use hunch_model::text::{EncodeOptions, Tokenizer};

/// Text that both models read: prose, then code.
const TEXT: &str = "To find the longest word in a list, compare the lengths of all words and keep the one that has \
                    the most letters. In Python this is a short function:\n\ndef longest(words):\n    return \
                    max(words, key=len)\n\nIt returns the first of several words of the same length.";

/// Most tokens of the text that are read. A multiple of the rows that a target pass is efficient at.
const TOKENS: usize = 3 * MAX_ROWS;

/// Tokens at the beginning that are not counted: with so little context, neither model predicts anything.
const CONTEXT: usize = 8;

/// Measurements of a pair at load.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredPair {
    pub(super) fit: PairFit,
    /// Cost of a further row of a target pass, in passes of one row. It compares the fastest of three passes of one row
    /// with that of three of [`MAX_ROWS`]. `None` if the text has too few tokens.
    pub(super) row: Option<f64>,
}

/// Measures how often the target accepts a token that the draft model samples, and how certain the target is.
///
/// Both are means over the positions of a short text, at temperature 1: of sum min(p, q), and of max p. Costs three passes
/// of each model, and three of the target over one row. Reads with forks, so the caches of both models stay as they are.
///
/// # Errors
/// If a model fails or a logit is not a number.
pub(super) fn measure(
    target: &dyn LanguageModel,
    draft: &dyn LanguageModel,
    tokenizer: &Tokenizer,
) -> Result<MeasuredPair> {
    let mut text = tokenizer.encode(TEXT, EncodeOptions { parse_special: false, add_bos: true })?;
    text.truncate(TOKENS);
    let sampler = Sampler::new(SamplingParams { temperature: 1.0, ..SamplingParams::unfiltered() })?;
    let (mut target, mut draft) = (target.fork(), draft.fork());
    let (mut acceptance, mut certainty, mut positions) = (0.0, 0.0, 0.0);
    let (mut plain, mut full): (Option<f64>, Option<f64>) = (None, None);
    for (i, tokens) in text.chunks(MAX_ROWS).enumerate() {
        let (p, ms) = timed_pass(&mut *target, tokens)?;
        if tokens.len() == MAX_ROWS {
            full = Some(full.map_or(ms, |fastest| fastest.min(ms)));
            target.truncate(target.cache_len() - 1)?;
            let (_, ms) = timed_pass(&mut *target, &tokens[MAX_ROWS - 1..])?;
            plain = Some(plain.map_or(ms, |fastest| fastest.min(ms)));
        }
        let (q, _) = timed_pass(&mut *draft, tokens)?;
        for row in CONTEXT.saturating_sub(i * MAX_ROWS)..tokens.len() {
            let p = sampler.distribution(p.row(row), &[])?;
            let q = sampler.distribution(q.row(row), &[])?;
            acceptance += theory::acceptance(&p, &q);
            certainty += f64::from(p.iter().copied().fold(0.0, f32::max));
            positions += 1.0;
        }
    }
    if positions == 0.0 {
        return Err(Error::Internal("the text to measure acceptance on has too few tokens".into()));
    }
    let fit = PairFit { acceptance: acceptance / positions, certainty: certainty / positions };
    let row = full.zip(plain).map(|(full, plain)| (full / plain - 1.0) / (MAX_ROWS - 1) as f64);
    Ok(MeasuredPair { fit, row })
}

/// Runs a pass and returns its logits and milliseconds.
fn timed_pass(model: &mut dyn LanguageModel, tokens: &[TokenId]) -> Result<(Rows, f64)> {
    let start = Instant::now();
    let logits = model.forward(Step::chain(tokens, LogitRows::All))?.logits;
    Ok((logits, millis(start.elapsed())))
}
