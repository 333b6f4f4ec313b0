//! Expected acceptance of a draft model on a target, measured once when the pair is loaded. The depth controller starts
//! from it. Nothing is drafted or verified here.

use hunch_core::limits::MAX_ROWS;
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_core::sample::{Sampler, SamplingParams};
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

/// Returns the probability that the target accepts a token that the draft model samples, from 0 to 1.
///
/// It is the mean of sum min(p, q) over the positions of a short text, at temperature 1. Costs three passes of each
/// model. Reads with forks, so the caches of both models stay as they are.
///
/// # Errors
/// If a model fails or a logit is not a number.
pub(super) fn measure(
    target: &dyn LanguageModel,
    draft: &dyn LanguageModel,
    tokenizer: &Tokenizer,
) -> Result<f64> {
    let mut text = tokenizer.encode(TEXT, EncodeOptions { parse_special: false, add_bos: true })?;
    text.truncate(TOKENS);
    let sampler = Sampler::new(SamplingParams { temperature: 1.0, ..SamplingParams::unfiltered() })?;
    let (mut target, mut draft) = (target.fork(), draft.fork());
    let (mut sum, mut positions) = (0.0, 0.0);
    for (i, tokens) in text.chunks(MAX_ROWS).enumerate() {
        let (p, q) = (target.forward(pass(tokens))?.logits, draft.forward(pass(tokens))?.logits);
        for row in CONTEXT.saturating_sub(i * MAX_ROWS)..tokens.len() {
            let p = sampler.distribution(p.row(row), &[])?;
            let q = sampler.distribution(q.row(row), &[])?;
            sum += theory::acceptance(&p, &q);
            positions += 1.0;
        }
    }
    if positions == 0.0 {
        return Err(Error::Internal("the text to measure acceptance on has too few tokens".into()));
    }
    Ok(sum / positions)
}

fn pass(tokens: &[TokenId]) -> Step<'_> {
    Step::chain(tokens, LogitRows::All)
}
