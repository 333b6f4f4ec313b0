//! Predicted memory of a distillation, in addition to the target's. The free memory of a machine is measured in
//! `hunch_library`.

use hunch_error::{Error, Result};
use hunch_model::float_weights::FloatWeights;

use super::DistilRecipe;
use super::student::MATRICES;

/// Copies of each trained weight while a step runs, in 32 bits. These are the weight, the best one, two moments, and the
/// gradients of a text and of the batch.
const STEP_COPIES: u64 = 6;
/// The same while a checkpoint is read: the weight, its four values in the file, and the tensors made of them.
const RESUME_COPIES: u64 = 9;
/// Copies of each output of a matrix that the gradient of a text needs: parts of norms, rotations and products.
const OUTPUT_COPIES: u64 = 8;
/// Copies of each attention score.
const SCORE_COPIES: u64 = 8;
/// Copies of each logit: of the target twice, of the draft, their logarithms, probabilities and gradients.
const LOGIT_COPIES: u64 = 10;
/// Tokens of a chat template around a prompt.
const TEMPLATE: usize = 64;
const BYTES: u64 = size_of::<f32>() as u64;

/// Returns the rows of the longest text of a step: those of the target's own prompts. Longer texts are left out.
pub fn longest_text(recipe: &DistilRecipe) -> usize {
    recipe.collect.prompt_tokens + TEMPLATE + recipe.collect.answer_tokens
}

/// Returns the bytes that a distillation takes.
pub fn needed(draft: &FloatWeights, recipe: &DistilRecipe) -> u64 {
    let (mut frozen, mut trained, mut outputs, mut heads) = (0, 0, 0, 0);
    for (name, info) in &draft.file().gguf().tensors {
        let weights: usize = info.shape.iter().product();
        let of_layer = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
        let name = of_layer.and_then(|(_, name)| name.strip_suffix(".weight"));
        let part = MATRICES.into_iter().find(|&part| name == Some(part));
        let (Some(part), &[out, width]) = (part, &info.shape[..]) else {
            frozen += weights;
            continue;
        };
        outputs += out;
        heads += if part == "attn_q" { out / draft.spec().head_dim } else { 0 };
        match recipe.rank {
            None => trained += weights,
            Some(rank) => (frozen, trained) = (frozen + weights, trained + rank * (out + width)),
        }
    }
    let rows = longest_text(recipe) as u64;
    let logits = (recipe.collect.answer_tokens * draft.spec().n_vocab) as u64;
    let text =
        rows * (OUTPUT_COPIES * outputs as u64 + SCORE_COPIES * heads as u64 * rows) + LOGIT_COPIES * logits;
    let trained = trained as u64;
    BYTES * (frozen as u64 + (STEP_COPIES * trained + text).max(RESUME_COPIES * trained))
}

/// Refuses a distillation that does not fit.
///
/// # Errors
/// [`Error::InvalidRequest`] with the predicted need and the `usable` bytes.
pub fn check(draft: &FloatWeights, recipe: &DistilRecipe, usable: u64) -> Result<()> {
    let needed = needed(draft, recipe);
    if needed <= usable {
        return Ok(());
    }
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let advice = match recipe.rank {
        None => "Train matrices of low rank with --rank 16",
        Some(_) => "Choose a smaller draft",
    };
    Err(Error::invalid(format!(
        "Distilling this draft takes about {:.1} GB (predicted), and {:.1} GB of memory are free. Nothing was \
         changed. {advice}, close other programs, or try it with --ignore-memory-check.",
        gb(needed),
        gb(usable)
    )))
}
