//! Parameters of gated delta nets, which stand in for attention in most layers of Qwen3-Next and Qwen3.5.

use hunch_kernels::delta_net::{COLUMNS, DeltaShape, MAX_HEAD};
use serde::{Deserialize, Serialize};

use super::architectures::Architecture;
use super::layers::MAX_CONVOLUTION;
use super::reader::SpecReader;
use super::{Mixer, state};
use hunch_error::Result;

/// Sizes of the [gated delta nets](hunch_kernels::delta_net) of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaNet {
    /// Number of key heads, and of query heads.
    pub key_heads: usize,
    /// Number of value heads, each with a state.
    pub value_heads: usize,
    /// Width of all heads.
    pub head_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub positions: usize,
    /// Order of the heads in the file.
    pub order: HeadOrder,
}

/// Order of the value heads of a gated delta net in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadOrder {
    /// Value heads of one key head are neighbours. A matrix joins strengths and decays, by key head (Qwen3-Next).
    Grouped,
    /// Value head h has key head h mod the number of key heads (Qwen3.5).
    Tiled,
}

impl DeltaNet {
    /// Returns the sizes for the kernel.
    pub(crate) fn shape(&self) -> DeltaShape {
        DeltaShape {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            head_dim: self.head_dim,
            positions: self.positions,
            is_tiled: self.order == HeadOrder::Tiled,
        }
    }

    /// Returns the values of the input of a row: channels of the convolution, decays and strengths.
    pub fn input_width(&self) -> usize {
        self.shape().row()
    }

    /// Returns the values of the output of a row.
    pub fn output_width(&self) -> usize {
        self.shape().width()
    }

    /// Returns the bytes of state of a layer, for any number of tokens.
    pub(super) fn state_bytes(&self) -> usize {
        let shape = self.shape();
        let of_checkpoint = shape.state() + (shape.positions - 1) * shape.row();
        size_of::<f32>() * (state::DELTA_CHECKPOINTS * of_checkpoint + state::DELTA_INPUTS * shape.row())
    }
}

impl SpecReader<'_> {
    /// Returns the mixer of each layer of an architecture with gated delta nets: a list in the file, or attention in
    /// every n-th layer.
    pub(super) fn mixers_of_delta_nets(&self, n_layer: usize) -> Result<Vec<Mixer>> {
        let key = self.key("attention.recurrent_layers");
        let recurrent = match self.gguf.flags(&key) {
            Some(layers) if layers.len() < n_layer => {
                let reason = format!("{key} has {} entries for {n_layer} layers", layers.len());
                return Err(self.invalid(reason));
            }
            Some(layers) => layers,
            None => {
                let interval = self.optional_size("full_attention_interval", 1 << 10)?.unwrap_or(4);
                (1..=n_layer).map(|layer| !layer.is_multiple_of(interval)).collect()
            }
        };
        let mixer = |&recurrent: &bool| if recurrent { Mixer::DeltaNet } else { Mixer::Attention };
        Ok(recurrent[..n_layer].iter().map(mixer).collect())
    }

    /// Reads the sizes of gated delta nets. `None` if no layer has one.
    pub(super) fn delta_net(
        &self,
        architecture: &Architecture,
        mixers: &[Mixer],
    ) -> Result<Option<DeltaNet>> {
        let Some(order) = architecture.delta_nets.filter(|_| mixers.contains(&Mixer::DeltaNet)) else {
            return Ok(None);
        };
        let [key_heads, value_heads] =
            [self.size("ssm.group_count", 1 << 12)?, self.size("ssm.time_step_rank", 1 << 12)?];
        let head_dim = self.size("ssm.state_size", 1 << 12)?;
        let inner = self.size("ssm.inner_size", 1 << 24)?;
        let positions = self.size("ssm.conv_kernel", MAX_CONVOLUTION)?;
        if !value_heads.is_multiple_of(key_heads) {
            let reason = format!("{value_heads} value heads cannot share {key_heads} key heads");
            return Err(self.invalid(reason));
        }
        if inner != value_heads * head_dim || head_dim > MAX_HEAD || !head_dim.is_multiple_of(COLUMNS) {
            return Err(self.unsupported(format!(
                "its delta nets have {value_heads} values of width {} and keys of width {head_dim}",
                inner / value_heads
            )));
        }
        if positions == 1 {
            return Err(self.unsupported("its convolutions see one position".into()));
        }
        if self.gguf.tensors.keys().any(|name| name.ends_with(".ssm_in.weight")) {
            return Err(self.unsupported(
                "its delta nets are stored in the order of early conversions. Download a newer file".into(),
            ));
        }
        Ok(Some(DeltaNet { key_heads, value_heads, head_dim, positions, order }))
    }
}
