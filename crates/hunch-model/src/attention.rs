//! Attention over the KV cache with candle operations, for causal, tree and custom masks.
//!
//! Used by the candle executor. The CPU kernel is in `hunch-kernels`.

use candle_core::{D, Device, Tensor};
use candle_nn::ops::softmax_last_dim;

use crate::cache::KvCache;
use hunch_error::Result;
use hunch_kernels::{LayerWindow, RowMask, Window};

/// Scale and bound of the scores.
#[derive(Clone, Copy)]
pub(crate) struct ScoreScaling<'a> {
    /// Factor.
    pub(crate) scale: f32,
    /// Bound: s becomes `cap * tanh(s / cap)`.
    pub(crate) softcap: Option<f32>,
    /// Score of each query head without a value, `[n_head]`.
    pub(crate) sinks: Option<&'a Tensor>,
}

/// Computes the attention of one layer, `[rows, n_head * head_dim]`.
///
/// `q` holds rotated, contiguous queries `[1, n_head, rows, head_dim]`. The keys and values of the rows
/// must already be in the cache. `bias` is the [`mask_bias`] of `mask` and the layer's window.
///
/// # Errors
/// If the device fails.
pub(crate) fn attention(
    q: &Tensor,
    cache: &KvCache,
    layer: usize,
    mask: &RowMask,
    bias: Option<&Tensor>,
    scaling: ScoreScaling<'_>,
) -> Result<Tensor> {
    let (k, v) = cache.device_layer(layer)?;
    attend(q, k, v, mask, bias, scaling)
}

/// Builds the additive mask `[rows, slots]` for [`attention`], of the layers with a window. Called once per pass and window.
///
/// Returns `None` if no mask is needed.
///
/// # Errors
/// If the device fails.
pub(crate) fn mask_bias(
    mask: &RowMask,
    window: Option<LayerWindow>,
    device: &Device,
) -> Result<Option<Tensor>> {
    let slots = mask.slots();
    if mask.is_causal()
        && mask.rows() == 1
        && Window::hidden(Window::of_layer(mask.window(), window, slots), slots).is_empty()
    {
        return Ok(None);
    }
    Ok(Some(Tensor::from_vec(mask.additive(window), (mask.rows(), slots), device)?))
}

/// Computes attention with `k` and `v` of shape `[n_kv_head, capacity, head_dim]`.
fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: &RowMask,
    bias: Option<&Tensor>,
    scaling: ScoreScaling<'_>,
) -> Result<Tensor> {
    let ScoreScaling { scale, softcap, sinks } = scaling;
    let (_, n_head, rows, head_dim) = q.dims4()?;
    let n_kv_head = k.dim(0)?;
    let group = n_head / n_kv_head;
    let slots = mask.slots();
    let k = k.narrow(1, 0, slots)?.force_contiguous()?;
    let v = v.narrow(1, 0, slots)?.force_contiguous()?;
    // The heads of a group share keys, so they become rows of one product.
    let q = q.reshape((n_kv_head, group * rows, head_dim))?;
    let scores = (q.matmul(&k.transpose(1, 2)?)? * f64::from(scale))?;
    let scores = match softcap.map(f64::from) {
        Some(cap) => ((scores / cap)?.tanh()? * cap)?,
        None => scores,
    };
    let scores = match bias {
        Some(bias) => scores.reshape((n_kv_head, group, rows, slots))?.broadcast_add(bias)?.reshape((
            n_kv_head,
            group * rows,
            slots,
        ))?,
        None => scores,
    };
    let weights = match sinks {
        None => softmax_last_dim(&scores)?,
        Some(sinks) => {
            let sinks = sinks.reshape((n_kv_head, group, 1, 1))?.broadcast_as((n_kv_head, group, rows, 1))?;
            let sinks = sinks.contiguous()?.reshape((n_kv_head, group * rows, 1))?;
            let all = Tensor::cat(&[&scores, &sinks], D::Minus1)?;
            softmax_last_dim(&all)?.narrow(D::Minus1, 0, slots)?.contiguous()?
        }
    };
    let out = weights.matmul(&v)?;
    let out = out.reshape((n_head, rows, head_dim))?.transpose(0, 1)?.contiguous()?;
    Ok(out.flatten_from(D::Minus2)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_core::model::RowLayout;

    use hunch_kernels::Threads;
    use hunch_kernels::attention::{Attention, AttentionInput, AttentionShape, CacheValues, VisibleSlots};

    #[test]
    fn cpu_kernel_matches_candle_attention() {
        let (heads, kv_heads, d, capacity) = (6, 2, 20, 160);
        let (base, rows) = (135, 5);
        let q = Tensor::randn(0f32, 1.0, (1, heads, rows, d), &Device::Cpu).unwrap();
        let k = Tensor::randn(0f32, 1.0, (kv_heads, capacity, d), &Device::Cpu).unwrap();
        let v = Tensor::randn(0f32, 1.0, (kv_heads, capacity, d), &Device::Cpu).unwrap();
        let parents = [None, Some(0), Some(0), Some(2), Some(1)];
        let layouts = [RowLayout::Chain, RowLayout::Tree { parents: &parents }];
        let sink_scores = Tensor::randn(0f32, 1.0, heads, &Device::Cpu).unwrap();
        let limits = [
            (None, None, false),
            (Some(2.0), Some(LayerWindow::Last(3)), false),
            (None, Some(LayerWindow::Last(70)), true),
            (None, Some(LayerWindow::Chunk(137)), false),
        ];
        let of_pass = [None, Some(Window { leading: 4, recent: 60 })];
        for ((layout, (softcap, window, sinks)), of_pass) in layouts
            .iter()
            .flat_map(|layout| limits.map(|l| (*layout, l)))
            .flat_map(|case| of_pass.map(|of_pass| (case, of_pass)))
        {
            let mask = crate::decoder::row_mask(base, rows, layout).unwrap().with_window(of_pass);
            let bias = mask_bias(&mask, window, &Device::Cpu).unwrap();
            let scaling = ScoreScaling { scale: 0.25, softcap, sinks: sinks.then_some(&sink_scores) };
            let expected = attend(&q, &k, &v, &mask, bias.as_ref(), scaling).unwrap();
            let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let by_row = flat(&q.transpose(1, 2).unwrap().contiguous().unwrap());
            let (k, v) = (flat(&k), flat(&v));
            let sink_values = flat(&sink_scores);
            let shape = AttentionShape {
                n_head: heads,
                n_kv_head: kv_heads,
                head_dim: d,
                capacity,
                scale: 0.25,
                softcap,
                window,
            };
            let mut ours = vec![0.0; by_row.len()];
            Attention::default().attend(
                &Threads::new(2).unwrap(),
                shape,
                AttentionInput {
                    q: &by_row,
                    k: CacheValues::F32(&k),
                    v: CacheValues::F32(&v),
                    sinks: sinks.then_some(&sink_values),
                },
                &VisibleSlots::new(&mask),
                &mut ours,
            );
            for (a, b) in ours.iter().zip(flat(&expected)) {
                assert!((a - b).abs() < 1e-5, "{a} {b}");
            }
        }
    }
}
