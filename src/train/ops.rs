//! Candle operations that heads and drafts in training share. candle's fused norms and softmaxes have no gradients, so
//! they are written out. Products with frozen matrices leave out the gradient that nobody reads.

use candle_core::backend::BackendStorage;
use candle_core::backprop::GradStore;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp1, D, DType, Device, Layout, MetalStorage, Result, Shape, Storage};
use candle_core::{Tensor, Var};

/// Epsilon of norms without weights.
pub const EPS: f64 = 1e-5;

/// Computes the logarithm of the softmax of each row.
///
/// # Errors
/// If the device fails.
pub fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    let sum = shifted.exp()?.sum_keepdim(D::Minus1)?;
    shifted.broadcast_sub(&sum.log()?)
}

/// Computes the RMS norm of each row of `x`, with weights.
///
/// # Errors
/// If the device fails.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let square = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(square + eps)?.sqrt()?)?.broadcast_mul(weight)
}

/// Rotates the halves of each head of `x`, `[rows, heads, head_dim]`, by angles with cosines and sines
/// `[rows, 1, head_dim / 2]`.
///
/// # Errors
/// If the device fails.
pub fn rotate_halves(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.dim(D::Minus1)? / 2;
    let (a, b) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
    let first = (a.broadcast_mul(cos)? - b.broadcast_mul(sin)?)?;
    let second = (b.broadcast_mul(cos)? + a.broadcast_mul(sin)?)?;
    Tensor::cat(&[first, second], D::Minus1)
}

/// Returns scores to add to attention, `[rows, past + rows]`, that hide later rows from each row.
///
/// # Errors
/// If the device fails.
pub fn causal_mask(rows: usize, past: usize, device: &Device) -> Result<Tensor> {
    let keys = past + rows;
    let hidden = |at: usize| if at % keys > past + at / keys { -1e9 } else { 0.0 };
    tensor((0..rows * keys).map(hidden).collect(), &[rows, keys], device)
}

/// Computes x W^T + bias for rows `[rows, in]` and a matrix `[out, in]`.
///
/// # Errors
/// If the device fails.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = x.matmul(&weight.t()?)?;
    bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
}

/// Computes x W^T + bias for rows `[rows, in]` and a matrix `[out, in]` that is not trained.
///
/// [`linear`] would form the gradient of the matrix, and keep it until all gradients are read.
///
/// # Errors
/// If the device fails.
pub fn frozen_linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = x.contiguous()?.apply_op1(FrozenMatrix(weight.detach()))?;
    bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
}

/// Product of rows with a matrix `[out, in]` that has no gradient.
struct FrozenMatrix(Tensor);

impl FrozenMatrix {
    fn product(&self, storage: Storage, layout: &Layout) -> Result<Tensor> {
        // The rows may be a part of the storage.
        let end = layout.start_offset() + layout.shape().elem_count();
        let all = Tensor::from_storage(storage, end, BackpropOp::none(), false);
        let rows = all.narrow(0, layout.start_offset(), layout.shape().elem_count())?;
        linear(&rows.reshape(layout.shape())?, &self.0, None)
    }
}

impl CustomOp1 for FrozenMatrix {
    fn name(&self) -> &'static str {
        "frozen-matrix"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = self.product(Storage::Cpu(storage.clone()), layout)?;
        let (storage, _) = y.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { candle_core::bail!("a product left the CPU") };
        Ok((storage.clone(), y.shape().clone()))
    }

    fn metal_fwd(&self, storage: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        let y = self.product(Storage::Metal(storage.try_clone(layout)?), layout)?;
        let (storage, _) = y.storage_and_layout();
        let Storage::Metal(storage) = &*storage else { candle_core::bail!("a product left the GPU") };
        Ok((storage.try_clone(y.layout())?, y.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        grad.matmul(&self.0).map(Some)
    }
}

/// Returns the gradients of tensors, in their order, without those of all other tensors, which a store keeps.
pub fn gradients_of(vars: &[Var], mut store: GradStore) -> Vec<Option<Tensor>> {
    vars.iter().map(|var| store.remove(var)).collect()
}

/// Computes the feed-forward block x + down (silu(gate y) * up y).
///
/// # Errors
/// If the device fails.
pub fn feed_forward(x: &Tensor, y: &Tensor, [gate, up, down]: [&Tensor; 3]) -> Result<Tensor> {
    let gated = (linear(y, gate, None)?.silu()? * linear(y, up, None)?)?;
    x + linear(&gated, down, None)?
}

/// Returns the cross entropy between the target's distributions and a head's, and its gradient for the head's logits. It
/// is a sum over rows with weights `[rows, 1]`, in nats.
///
/// Both logits are `[rows, shortlist]`.
///
/// # Errors
/// If the device fails.
pub fn soft_cross_entropy(logits: &Tensor, target: &Tensor, weights: &Tensor) -> Result<(f64, Tensor)> {
    let p = log_softmax(target)?.exp()?;
    let log_q = log_softmax(&logits.detach())?;
    let loss = (&p * &log_q)?.broadcast_mul(weights)?.sum_all()?.to_scalar::<f32>()?;
    let gradient = (log_q.exp()? - p)?.broadcast_mul(weights)?;
    Ok((-f64::from(loss), gradient.detach()))
}

/// Bounds logits: `cap * tanh(logits / cap)`.
///
/// # Errors
/// If the device fails.
pub fn soft_capped(logits: &Tensor, cap: Option<f32>) -> Result<Tensor> {
    let Some(cap) = cap.map(f64::from) else { return Ok(logits.clone()) };
    (logits / cap)?.tanh()? * cap
}

/// Returns the gradient for logits before [`soft_capped`], from that for the bounded ones: times 1 - (bounded / cap)^2.
///
/// # Errors
/// If the device fails.
pub fn through_soft_cap(gradient: &Tensor, bounded: &Tensor, cap: Option<f32>) -> Result<Tensor> {
    let Some(cap) = cap.map(f64::from) else { return Ok(gradient.clone()) };
    gradient * (bounded / cap)?.sqr()?.affine(-1.0, 1.0)?
}

/// Copies f32 values to a tensor.
///
/// # Errors
/// If the device fails.
pub fn tensor(values: Vec<f32>, shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_vec(values, shape, device)?.to_dtype(DType::F32)
}

/// Copies f32 values to a tensor with rows of this width.
///
/// # Errors
/// If the device fails.
pub fn tensor_of_rows(values: Vec<f32>, width: usize, device: &Device) -> Result<Tensor> {
    let rows = values.len() / width;
    tensor(values, &[rows, width], device)
}

/// Makes the tensors trainable.
///
/// # Errors
/// If the device fails.
pub fn trained(weights: &[Tensor]) -> Result<Vec<Var>> {
    weights.iter().map(Var::from_tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_product_has_the_gradient_of_the_rows_alone() {
        let mut random = check::random(11);
        let (weight, bias) = (random(&[7, 5], 1.0), random(&[7], 1.0));
        let rows = Var::from_tensor(&random(&[6, 5], 1.0)).unwrap();
        let (factor, part) = (random(&[4, 7], 1.0), rows.narrow(0, 2, 4).unwrap());
        let run = |product: fn(&Tensor, &Tensor, Option<&Tensor>) -> Result<Tensor>| {
            let y = product(&part, &weight, Some(&bias)).unwrap();
            let grads = (&y * &factor).unwrap().sum_all().unwrap().backward().unwrap();
            let values = |x: &Tensor| x.to_vec2::<f32>().unwrap();
            let frozen = grads.get_ids().count();
            (
                values(&y),
                values(&gradients_of(std::slice::from_ref(&rows), grads)[0].clone().unwrap()),
                frozen,
            )
        };
        let ((y, gradient, kept), (expected, expected_gradient, kept_by_candle)) =
            (run(frozen_linear), run(linear));
        assert_eq!((y, gradient), (expected, expected_gradient));
        assert!(kept < kept_by_candle, "{kept} {kept_by_candle}");
    }
}

#[cfg(test)]
pub mod check {
    //! Gradients against finite differences.

    use candle_core::backprop::GradStore;
    use hunch_core::sample::unit;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Returns random tensors.
    pub fn random(seed: u64) -> impl FnMut(&[usize], f32) -> Tensor {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        move |shape: &[usize], scale: f32| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| (unit(&mut rng) as f32 - 0.5) * scale);
            tensor(values.collect(), shape, &Device::Cpu).unwrap()
        }
    }

    /// Compares the gradient of every tensor with finite differences of the loss.
    pub fn assert_gradients(vars: &[Var], names: &[String], grads: &GradStore, loss: &dyn Fn() -> f64) {
        const STEP: f32 = 1e-2;
        for (var, name) in vars.iter().zip(names) {
            let gradient = grads.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (values, shape) = (var.flatten_all().unwrap().to_vec1::<f32>().unwrap(), var.dims().to_vec());
            let largest = gradient.iter().fold(0f32, |most, g| most.max(g.abs()));
            for at in (0..values.len()).step_by((values.len() / 24).max(1)) {
                let at_offset = |offset: f32| {
                    let mut moved = values.clone();
                    moved[at] += offset;
                    var.set(&tensor(moved, &shape, &Device::Cpu).unwrap()).unwrap();
                    loss()
                };
                let expected = (at_offset(STEP) - at_offset(-STEP)) / f64::from(2.0 * STEP);
                at_offset(0.0);
                let off = (f64::from(gradient[at]) - expected).abs();
                assert!(off < 0.02 * f64::from(largest) + 2e-4, "{name}[{at}]: {} {expected}", gradient[at]);
            }
        }
    }
}
