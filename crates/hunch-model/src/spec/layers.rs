//! Parameters that differ between the layers of a model.

use serde::{Deserialize, Serialize};

use super::architectures::{Architecture, Windows};
use super::reader::SpecReader;
use hunch_error::Result;
use hunch_kernels::LayerWindow;

/// Most positions that a short convolution may see.
pub(super) const MAX_CONVOLUTION: usize = 8;

/// Part of a layer that brings information from earlier positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mixer {
    /// Attention.
    Attention,
    /// Short gated convolution of LFM2: y = C * conv(B * x), where B, C and x are projections of the input. Each
    /// channel has weights of its own for the last [`ModelSpec::convolution`] positions.
    ///
    /// [`ModelSpec::convolution`]: super::ModelSpec::convolution
    ShortConvolution,
    /// [Gated delta net](hunch_kernels::delta_net), with the sizes of [`ModelSpec::delta_net`].
    ///
    /// [`ModelSpec::delta_net`]: super::ModelSpec::delta_net
    DeltaNet,
}

/// Rotary embedding of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerRope {
    /// None.
    None,
    /// Frequencies of the model.
    Global,
    /// Frequencies of [`ModelSpec::local_rope`](super::ModelSpec::local_rope).
    Local,
}

/// Parameters of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSpec {
    /// Attention, or the part in its place.
    pub mixer: Mixer,
    /// Sliding window: number of positions that a row sees, its own included. `None` for all.
    pub window: Option<usize>,
    /// `true` if a row sees its own chunk of so many positions instead of a window (Llama 4). Chunks begin at position 0.
    pub chunked: bool,
    /// Rotary embedding.
    pub rope: LayerRope,
    /// Key heads, where they differ from those of the model.
    pub heads: Option<KeyHeads>,
    /// Width of the dense feed-forward network, where it differs from that of the model.
    pub n_ff: Option<usize>,
    /// Earlier layer whose keys and values this one attends to. `None` for its own.
    pub shares_keys_of: Option<usize>,
}

/// Key and value heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyHeads {
    /// Number of heads.
    pub count: usize,
    /// Width of a head, of keys, values and queries alike.
    pub width: usize,
}

impl KeyHeads {
    /// Returns the number of values of a row, for keys or for values.
    pub fn values(&self) -> usize {
        self.count * self.width
    }
}

impl LayerSpec {
    /// Attention to all positions, with the frequencies of the model.
    pub const PLAIN: Self = Self {
        mixer: Mixer::Attention,
        window: None,
        chunked: false,
        rope: LayerRope::Global,
        heads: None,
        n_ff: None,
        shares_keys_of: None,
    };

    /// Returns the positions that a row sees, for the kernels. `None` for all.
    pub(crate) fn visible(&self) -> Option<LayerWindow> {
        self.window.map(if self.chunked { LayerWindow::Chunk } else { LayerWindow::Last })
    }
}

impl SpecReader<'_> {
    /// Returns the number of key heads of the layers with attention, and the mixer of each layer.
    pub(super) fn mixers(
        &self,
        architecture: &Architecture,
        n_head: usize,
        n_layer: usize,
    ) -> Result<(usize, Vec<Mixer>)> {
        let (name, most) = ("attention.head_count_kv", 1 << 12);
        let key = self.key(name);
        if let Some(heads) = self.gguf.sizes(&key).filter(|_| architecture.varied_layers) {
            // The largest. The others are in the layers.
            return Ok((heads.into_iter().max().unwrap_or(0), vec![Mixer::Attention; n_layer]));
        }
        let Some(heads) = self.gguf.sizes(&key).filter(|_| architecture.convolutions) else {
            let heads = self.uniform_size(name, most, n_layer)?.unwrap_or(n_head);
            if architecture.delta_nets.is_some() {
                return Ok((heads, self.mixers_of_delta_nets(n_layer)?));
            }
            return Ok((heads, vec![Mixer::Attention; n_layer]));
        };
        if heads.len() < n_layer {
            return Err(self.invalid(format!("{key} has {} entries for {n_layer} layers", heads.len())));
        }
        let heads = &heads[..n_layer];
        let of_attention = heads.iter().copied().find(|&heads| heads > 0).unwrap_or(1);
        if of_attention > most {
            return Err(self.invalid(format!("{key} is {of_attention}, but it must be at most {most}")));
        }
        if let Some(other) = heads.iter().find(|&&heads| heads > 0 && heads != of_attention) {
            return Err(self.unsupported(format!("its layers have {of_attention} and {other} key heads")));
        }
        let mixer = |&heads: &usize| if heads == 0 { Mixer::ShortConvolution } else { Mixer::Attention };
        Ok((of_attention, heads.iter().map(mixer).collect()))
    }

    /// Reads a size that may be stated for each layer, as Granite 4 does.
    fn uniform_size(&self, name: &str, most: usize, n_layer: usize) -> Result<Option<usize>> {
        let key = self.key(name);
        let Some(sizes) = self.gguf.sizes(&key) else { return self.optional_size(name, most) };
        let Some(sizes) = sizes.get(..n_layer) else {
            return Err(self.invalid(format!("{key} has {} entries for {n_layer} layers", sizes.len())));
        };
        let first = sizes.first().copied().unwrap_or(0);
        if let Some(other) = sizes.iter().find(|&&size| size != first) {
            return Err(
                self.unsupported(format!("{key} is {first} and {other}, which differ between layers"))
            );
        }
        if first == 0 || first > most {
            return Err(self.invalid(format!("{key} is {first}, but it must be 1 to {most}")));
        }
        Ok(Some(first))
    }

    /// Returns the positions that short convolutions see. `None` if no layer has one.
    pub(super) fn convolution(&self, mixers: &[Mixer]) -> Result<Option<usize>> {
        if !mixers.contains(&Mixer::ShortConvolution) {
            return Ok(None);
        }
        match self.size("shortconv.l_cache", MAX_CONVOLUTION)? {
            1 => Err(self.unsupported("its convolutions see one position".into())),
            positions => Ok(Some(positions)),
        }
    }

    /// Returns the parameters of each layer.
    pub(super) fn layer_specs(
        &self,
        architecture: &Architecture,
        mixers: &[Mixer],
        context: usize,
    ) -> Result<Vec<LayerSpec>> {
        let key = self.key("attention.sliding_window");
        let window = self.gguf.u32(&key).map(|window| window as usize);
        if window.is_none() && self.gguf.metadata.contains_key(&key) {
            return Err(self.invalid(format!("{key} is not a number of tokens")));
        }
        let (window, step) = match architecture.windows {
            Windows::Unsupported => {
                if let Some(window) = window.filter(|&window| window > 0 && window < context) {
                    return Err(self.unsupported(format!(
                        "it uses a sliding attention window of {window} tokens, which is not supported yet"
                    )));
                }
                (None, 0)
            }
            Windows::All => (window, 0),
            Windows::AllButEvery { step, default } => (window.or(default), step),
            Windows::ChunksOfAllButEvery { step, default } => {
                if window == Some(0) {
                    return Err(self.unsupported("its layers have no chunks".into()));
                }
                (window.or(Some(default)), step)
            }
            Windows::Listed => {
                let key = self.key("attention.sliding_window_pattern");
                self.gguf.flags(&key).ok_or_else(|| self.invalid(format!("{key} is missing")))?;
                (Some(self.size("attention.sliding_window", 1 << 24)?), 0)
            }
        };
        let window = window.filter(|&window| window > 0);
        let chunked = matches!(architecture.windows, Windows::ChunksOfAllButEvery { .. });
        let windowed = self.windowed_layers(step, mixers.len())?;
        let layer = |(index, &mixer): (usize, &Mixer)| {
            if mixer != Mixer::Attention {
                return LayerSpec { mixer, rope: LayerRope::None, ..LayerSpec::PLAIN };
            }
            let window = window.filter(|_| windowed[index]);
            let rotated = (architecture.no_rope_step == 0
                || !(index + 1).is_multiple_of(architecture.no_rope_step))
                // Granite uses this entry as a switch.
                && !(architecture.divides_logits
                    && self.gguf.bool(&self.key("rope.scaling.finetuned")) == Some(false))
                && !(architecture.rope_in_windows_only
                    && window.is_none()
                    && self.gguf.u32(&self.key("attention.sliding_window")).is_some());
            let rope = match (rotated, window.is_some() && architecture.local_rope.is_some()) {
                (false, _) => LayerRope::None,
                (true, true) => LayerRope::Local,
                (true, false) => LayerRope::Global,
            };
            LayerSpec { mixer, window, chunked: chunked && window.is_some(), rope, ..LayerSpec::PLAIN }
        };
        Ok(mixers.iter().enumerate().map(layer).collect())
    }

    /// Returns for each layer whether it has a window: a list in the file, or all layers but every n-th.
    fn windowed_layers(&self, step: usize, n_layer: usize) -> Result<Vec<bool>> {
        let key = self.key("attention.sliding_window_pattern");
        if let Some(layers) = self.gguf.flags(&key) {
            if layers.len() < n_layer {
                return Err(self.invalid(format!("{key} has {} entries for {n_layer} layers", layers.len())));
            }
            return Ok(layers);
        }
        let step = self.gguf.u32(&key).map_or(step, |step| step as usize);
        Ok((0..n_layer).map(|layer| step == 0 || layer % step < step - 1).collect())
    }
}
