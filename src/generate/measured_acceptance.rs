//! Acceptance of a draft model by a target, measured once when the pair is loaded. The depth controller starts from it.
//! Nothing is drafted or verified here.

use hunch_core::depth::MeasuredAcceptance;
use hunch_core::limits::MAX_ROWS;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::theory;
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

/// Measures how often the target accepts a token that the draft model samples, and how certain the target is.
///
/// Both are means over the positions of a short text, at temperature 1: of sum min(p, q), and of max p. Costs three passes
/// of each model. Reads with forks, so the caches of both models stay as they are.
///
/// # Errors
/// If a model fails or a logit is not a number.
pub(super) fn measure(
    target: &dyn LanguageModel,
    draft: &dyn LanguageModel,
    tokenizer: &Tokenizer,
) -> Result<MeasuredAcceptance> {
    let mut text = tokenizer.encode(TEXT, EncodeOptions { parse_special: false, add_bos: true })?;
    text.truncate(TOKENS);
    let sampler = Sampler::new(SamplingParams { temperature: 1.0, ..SamplingParams::unfiltered() })?;
    let (mut target, mut draft) = (target.fork(), draft.fork());
    let (mut acceptance, mut certainty, mut positions) = (0.0, 0.0, 0.0);
    for (i, tokens) in text.chunks(MAX_ROWS).enumerate() {
        let p = target.forward(PassInput::chain(tokens, LogitRows::All))?.logits;
        let q = draft.forward(PassInput::chain(tokens, LogitRows::All))?.logits;
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
    Ok(MeasuredAcceptance { acceptance: acceptance / positions, certainty: certainty / positions })
}
