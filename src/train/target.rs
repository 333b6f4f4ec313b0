//! The target of a training run: decoder, tokeniser, chat template, and the parts of it that a head reads.

use std::path::{Path, PathBuf};

use candle_core::Device;
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::propose::head::Head;
use hunch_core::token::TokenId;
use hunch_error::{Refusal, Result};
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::heads::{self, TargetWeights};
use hunch_model::text::{ChatTemplate, EncodeOptions, Tokenizer};
use hunch_model::weights::WeightFile;

/// A loaded target.
pub struct TrainingTarget {
    /// Path of its file.
    pub path: PathBuf,
    /// Decoder, whose own cache is not used.
    pub decoder: Decoder,
    /// Tokeniser.
    pub tokenizer: Tokenizer,
    /// Chat template.
    pub template: ChatTemplate,
    /// Norm, embedding and output head.
    pub rows: TargetWeights,
    /// Layers after which the residual stream is kept. The last one is the target's last layer.
    pub taps: Vec<usize>,
    file: WeightFile,
    compute: Compute,
}

/// Longest sequence of a prompt and its answer, in tokens.
const CONTEXT: usize = 2_048;

/// Time for templates that write the date, in seconds since 1970. A run that continues tomorrow needs the same prompts.
const TIME: i64 = 1_767_225_600;

/// Stands for the user's text when the template is rendered.
const MARKER: &str = "Uc7Jq2Zx9";

impl TrainingTarget {
    /// Loads a target.
    ///
    /// # Errors
    /// As [`Decoder::load`]. [`Refusal::SingleLayer`] if it has a single layer.
    pub fn open(path: &Path, compute: &Compute) -> Result<Self> {
        let file = WeightFile::open(path)?;
        let tokenizer = Tokenizer::from_gguf(file.gguf())?;
        let decoder = Decoder::load_for(&file, compute, CONTEXT)?;
        let rows = TargetWeights::new(&file, &decoder, compute)?;
        let taps = layers(rows.n_layer);
        if taps.len() < 2 {
            return Err(Refusal::SingleLayer.into());
        }
        let mut template = ChatTemplate::from_tokenizer(&tokenizer);
        template.set_time(TIME);
        Ok(Self {
            path: path.into(),
            taps,
            template,
            tokenizer,
            decoder,
            rows,
            file,
            compute: compute.clone(),
        })
    }

    /// Returns the device and threads that the target was loaded for.
    pub fn compute(&self) -> &Compute {
        &self.compute
    }

    /// Returns the device that is trained on.
    pub fn device(&self) -> &Device {
        self.compute.device()
    }

    /// Loads a head for this target.
    ///
    /// # Errors
    /// As [`heads::open`].
    pub fn load_head(&self, head: &Path) -> Result<Head> {
        heads::open(head, &self.file, &self.decoder, &self.compute)
    }

    /// Loads the head that decoding uses without `--head`, if there is one.
    ///
    /// # Errors
    /// If the target's file cannot be read.
    pub fn usual_head(&self, folder: &Path) -> Result<Option<Head>> {
        Ok(heads::usual(Some(folder), &self.file, &self.decoder, &self.compute)?.head)
    }

    /// Returns what a head names its target by.
    ///
    /// # Errors
    /// If the target's file cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        heads::fingerprint(&self.file)
    }

    /// Returns the inputs of a head: the tapped states, the final one counted once, and the embedding.
    pub fn inputs(&self) -> usize {
        self.taps.len() + 1
    }

    /// Returns the tokens of a conversation before the user's text, and the text that ends the user's turn.
    ///
    /// # Errors
    /// [`Refusal::NoUserTurn`] if the template has nothing before the user's text.
    pub fn user_turn(&self) -> Result<(Vec<TokenId>, String)> {
        let message = ChatMessage { role: Role::User, content: MARKER.into() };
        let rendered = self.template.render(&[message], false, None, &|| false)?.text;
        let (before, after) = rendered.split_once(MARKER).unwrap_or((&rendered, ""));
        let ids = self.tokenizer.encode(before, EncodeOptions { parse_special: true, add_bos: true })?;
        if ids.is_empty() {
            return Err(Refusal::NoUserTurn.into());
        }
        let end = after.lines().next().unwrap_or("").trim();
        Ok((ids, if end.is_empty() { "\n\n".into() } else { end.to_owned() }))
    }

    /// Returns the tokens of a conversation with one message, up to the start of the answer.
    ///
    /// # Errors
    /// As [`ChatTemplate::ids`].
    pub fn prompt_ids(&self, text: &str) -> Result<Vec<TokenId>> {
        let message = ChatMessage { role: Role::User, content: text.into() };
        self.template.ids(&self.tokenizer, &[message], None, &|| false).map(|(ids, _)| ids)
    }
}

/// Returns the layers that a head reads: one near the start, the middle and the end each, as EAGLE-3 does
/// (arXiv 2503.01840), and the last.
pub fn layers(n_layer: usize) -> Vec<usize> {
    let last = n_layer.saturating_sub(1);
    let wanted = [Some(2), (n_layer / 2).checked_sub(1), n_layer.checked_sub(4)];
    let mut layers: Vec<usize> = wanted.into_iter().flatten().filter(|&layer| layer < last).collect();
    layers.sort_unstable();
    layers.dedup();
    layers.push(last);
    layers
}

#[cfg(test)]
mod tests {
    use super::layers;

    #[test]
    fn layers_ascend_for_every_depth() {
        assert_eq!(layers(30), [2, 14, 26, 29]);
        assert_eq!(layers(2), [0, 1]);
        for n_layer in 1..40 {
            assert!(layers(n_layer).is_sorted_by(|a, b| a < b), "{n_layer}");
        }
    }
}
