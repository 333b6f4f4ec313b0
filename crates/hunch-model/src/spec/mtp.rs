//! Layers of a file that only draft (multi-token prediction, `nextn_predict_layers`). They follow those of the model.

use serde::{Deserialize, Serialize};

use super::architectures::Architecture;
use super::reader::SpecReader;
use super::{Experts, LayerSpec, ModelSpec};
use crate::gguf::{Gguf, TensorInfo};
use hunch_error::Result;

/// Layers that only draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MtpLayers {
    /// Number of layers.
    pub count: usize,
    /// `true` if Hunch runs them. Architectures differ in what such a layer reads.
    pub runs: bool,
}

impl ModelSpec {
    /// Returns the parameters of the first layer that only drafts, as those of a model of this layer alone. It has
    /// attention, whatever mixer the other layers have.
    pub(crate) fn of_mtp_layer(&self) -> Self {
        let after_model = |experts: Experts| Experts {
            dense_layers: experts.dense_layers.saturating_sub(self.n_layer),
            step: 1,
            ..experts
        };
        Self {
            n_layer: 1,
            experts: self.experts.map(after_model),
            convolution: None,
            delta_net: None,
            mtp: None,
            layers: vec![LayerSpec::PLAIN],
            ..self.clone()
        }
    }
}

impl Gguf {
    /// Returns the tensors that a pass of the model uses, by name. Layers that only draft are left out. So are keys and values
    /// of layers that share those of another.
    pub fn model_tensors(&self) -> impl Iterator<Item = (&String, &TensorInfo)> + Clone {
        let (first, sharing) = (self.first_mtp_layer(), self.first_sharing_layer());
        let unused = move |name: &str| is_from(name, first) || (is_from(name, sharing) && is_of_keys(name));
        self.tensors.iter().filter(move |(name, _)| !unused(name))
    }

    /// Returns the tensors of the first layer that only drafts, by name.
    pub(crate) fn mtp_tensors(&self) -> impl Iterator<Item = (&String, &TensorInfo)> + Clone {
        let first = self.first_mtp_layer();
        self.tensors.iter().filter(move |(name, _)| first.is_some() && layer_of(name) == first)
    }

    /// Returns the number of the layer that drafts, if the file has no layers of a model (`mtp-*.gguf` of llama.cpp).
    pub(crate) fn mtp_layer_alone(&self) -> Option<usize> {
        let first = self.first_mtp_layer()?;
        let mut layers = self.tensors.keys().filter_map(|name| layer_of(name)).peekable();
        layers.peek()?;
        layers.all(|layer| layer >= first).then_some(first)
    }

    /// Returns the first layer that attends to the keys of another. All layers after it do.
    fn first_sharing_layer(&self) -> Option<usize> {
        let architecture = self.str("general.architecture")?;
        let number = |name: &str| self.u32(&format!("{architecture}.{name}")).map(|value| value as usize);
        let sharing = number("attention.shared_kv_layers").filter(|&layers| layers > 0)?;
        number("block_count")?.checked_sub(sharing)
    }

    fn first_mtp_layer(&self) -> Option<usize> {
        let architecture = self.str("general.architecture")?;
        let number = |name: &str| self.u32(&format!("{architecture}.{name}")).map(|value| value as usize);
        let drafting = number("nextn_predict_layers").filter(|&layers| layers > 0)?;
        number("block_count")?.checked_sub(drafting)
    }
}

/// Returns the layer that a tensor belongs to.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Returns `true` for the projections and norms of keys and values.
fn is_of_keys(name: &str) -> bool {
    [".attn_k.", ".attn_v.", ".attn_k_norm."].iter().any(|part| name.contains(part))
}

fn is_from(name: &str, first: Option<usize>) -> bool {
    first.zip(layer_of(name)).is_some_and(|(first, layer)| layer >= first)
}

/// Returns `true` if Hunch runs the layers that only draft of an architecture.
pub(crate) fn runs_mtp(architecture: &str) -> bool {
    super::ARCHITECTURES.iter().any(|row| row.name == architecture && row.mtp)
}

impl SpecReader<'_> {
    /// Returns the number of layers without those that only draft, and the latter.
    pub(super) fn layers(&self, architecture: &Architecture) -> Result<(usize, Option<MtpLayers>)> {
        let all = self.size("block_count", 1 << 10)?;
        let count = self.gguf.u32(&self.key("nextn_predict_layers")).unwrap_or(0) as usize;
        let layers = all.checked_sub(count).filter(|&layers| layers > 0);
        let layers = layers.ok_or_else(|| self.invalid(format!("{count} of its {all} layers only draft")))?;
        Ok((layers, (count > 0).then_some(MtpLayers { count, runs: architecture.mtp })))
    }
}
