//! Parameters that layers of Gemma 4 have of their own: embeddings, heads, and keys that layers share.

use serde::{Deserialize, Serialize};

use super::architectures::Architecture;
use super::reader::SpecReader;
use super::{KeyHeads, LayerSpec};
use hunch_error::Result;

/// Embeddings that each layer adds to the residual stream through a gate.
///
/// The input of a layer is (norm(P x) + sqrt(width) * E[token]) / sqrt(2). P projects the scaled embeddings x of the
/// tokens, and E is a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEmbeddingShape {
    /// Values of a token for each layer.
    pub width: usize,
}

/// Factor of the sum of the two parts of an input.
pub(crate) const LAYER_EMBEDDING_SCALE: f32 = std::f32::consts::FRAC_1_SQRT_2;

/// Tensor name of the table of all layers' embeddings.
pub const LAYER_EMBEDDING_TABLE: &str = "per_layer_token_embd.weight";

impl SpecReader<'_> {
    /// Reads the embeddings that layers have of their own. `None` if they have none.
    pub(super) fn layer_embedding(&self, architecture: &Architecture) -> Result<Option<LayerEmbeddingShape>> {
        let key = self.key("embedding_length_per_layer_input");
        match self.gguf.u32(&key) {
            None | Some(0) => Ok(None),
            Some(_) if !architecture.varied_layers => {
                Err(self.unsupported("its layers have embeddings of their own".into()))
            }
            Some(_) => {
                let width = self.size("embedding_length_per_layer_input", 1 << 12)?;
                Ok(Some(LayerEmbeddingShape { width }))
            }
        }
    }

    /// Reads the width of the dense feed-forward network of each layer.
    pub(super) fn feed_forward_widths(
        &self,
        architecture: &Architecture,
        n_layer: usize,
    ) -> Result<Vec<usize>> {
        let key = self.key("feed_forward_length");
        let Some(widths) = self.gguf.sizes(&key).filter(|_| architecture.varied_layers) else {
            // Mixtures need no such width.
            let width = if architecture.experts.is_some() {
                self.optional_size("feed_forward_length", 1 << 20)?.unwrap_or_default()
            } else {
                self.size("feed_forward_length", 1 << 20)?
            };
            return Ok(vec![width; n_layer]);
        };
        if widths.len() < n_layer {
            return Err(self.invalid(format!("{key} has {} entries for {n_layer} layers", widths.len())));
        }
        if let Some(width) = widths.iter().find(|width| !(1..=1 << 20).contains(*width)) {
            return Err(self.invalid(format!("{key} is {width}, but it must be 1 to {}", 1 << 20)));
        }
        Ok(widths[..n_layer].to_vec())
    }

    /// Fills in what layers have of their own: heads, widths, and the layers whose keys they share.
    ///
    /// `of_model` are the number and the width of key heads that most layers have.
    pub(super) fn vary_layers(
        &self,
        layers: &mut [LayerSpec],
        of_model: (usize, usize),
        feed_forward: &[usize],
    ) -> Result<()> {
        if !self.gguf.tensors.contains_key("rope_freqs.weight") {
            return Err(self.invalid("the tensor rope_freqs.weight is missing".into()));
        }
        self.read_heads(layers, of_model)?;
        let widest = feed_forward.iter().copied().max();
        for (layer, &width) in layers.iter_mut().zip(feed_forward) {
            layer.n_ff = Some(width).filter(|_| widest != Some(width));
        }
        self.share_keys(layers)
    }

    fn read_heads(&self, layers: &mut [LayerSpec], (count, width): (usize, usize)) -> Result<()> {
        let in_windows = self.optional_size("attention.key_length_swa", 1 << 12)?.unwrap_or(width);
        let of_values = self.optional_size("attention.value_length_swa", 1 << 12)?.unwrap_or(in_windows);
        if in_windows != of_values {
            let reason = format!("its values are {of_values} wide and its keys {in_windows} in windows");
            return Err(self.unsupported(reason));
        }
        if !in_windows.is_multiple_of(2) {
            return Err(self.invalid(format!("the head width is {in_windows}, but it must be even")));
        }
        let key = self.key("attention.head_count_kv");
        let counts = self.gguf.sizes(&key).unwrap_or_else(|| vec![count; layers.len()]);
        if counts.len() < layers.len() {
            let reason = format!("{key} has {} entries for {} layers", counts.len(), layers.len());
            return Err(self.invalid(reason));
        }
        let n_head = self.size("attention.head_count", 1 << 12)?;
        for (layer, count) in layers.iter_mut().zip(counts) {
            if count == 0 || !n_head.is_multiple_of(count) {
                let reason = format!("{n_head} query heads cannot share {count} key and value heads");
                return Err(self.invalid(reason));
            }
            let heads = KeyHeads { count, width: if layer.window.is_some() { in_windows } else { width } };
            layer.heads = Some(heads);
        }
        Ok(())
    }

    /// Lets the last layers attend to the keys of the last layer of their kind that has keys of its own.
    fn share_keys(&self, layers: &mut [LayerSpec]) -> Result<()> {
        let sharing = self.gguf.u32(&self.key("attention.shared_kv_layers")).unwrap_or(0) as usize;
        let own = layers.len().checked_sub(sharing).filter(|&own| own > 0 || sharing == 0);
        let all = layers.len();
        let own = own.ok_or_else(|| self.invalid(format!("{sharing} of its {all} layers share keys")))?;
        let (own, sharing) = layers.split_at_mut(own);
        for layer in sharing {
            let is_alike = |other: &LayerSpec| other.window == layer.window && other.heads == layer.heads;
            layer.shares_keys_of = own.iter().rposition(is_alike);
            if layer.shares_keys_of.is_none() {
                return Err(self.invalid("a layer shares keys, and no layer of its kind has any".into()));
            }
        }
        Ok(())
    }
}
