//! Peak memory of loaded models, with full caches and a pass of the most rows.
//!
//! The prediction of [`hunch_library::fit`] is checked against this.

use crate::generate::Models;
use hunch_core::limits::MAX_ROWS;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, PassInput, VocabSubset};
use hunch_core::propose::MethodOptions;
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_model::device::{Compute, peak_memory_bytes};

/// A prime stride that spreads tokens over any vocabulary, as text does.
const STRIDE: usize = 7919;

/// Fills the caches of target and draft to `context` rows. Returns the peak memory of this process so far plus its
/// memory on the device, in bytes.
///
/// # Errors
/// When a pass fails, or the context is longer than the models allow.
pub fn peak_when_full(models: &mut Models, compute: &Compute, context: usize) -> Result<u64> {
    fill(models.target(), context, None)?;
    models.with_drafter(Method::DraftModel, &MethodOptions::default(), &[], |draft, _, vocab_subset| {
        fill(draft, context, vocab_subset)
    })?;
    Ok(peak_memory_bytes() + compute.allocated_bytes())
}

/// Fills a cache as an answer does: prefill passes, then a verify pass.
fn fill(model: &mut dyn LanguageModel, context: usize, vocab_subset: Option<&VocabSubset>) -> Result<()> {
    model.truncate(0)?;
    let n_vocab = model.info().n_vocab;
    let tokens: Vec<TokenId> = (0..context).map(|i| (i * STRIDE % n_vocab) as TokenId).collect();
    let (prompt, last) = tokens.split_at(context.saturating_sub(MAX_ROWS));
    for chunk in prompt.chunks(model.prefill_rows().max(1)) {
        model.forward(PassInput::chain(chunk, LogitRows::None))?;
    }
    model.forward(PassInput { vocab_subset, ..PassInput::chain(last, LogitRows::All) })?;
    Ok(())
}
