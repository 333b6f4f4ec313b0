//! The network of a head while it is trained, with candle operations: forward pass, loss and gradients.
//!
//! It is the network of `hunch_model::heads`, on standardised states. The target's final state has mean 0 and deviation
//! 1 in each dimension. [`export`](super::export) folds the scale into the weights.

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor, Var};

/// Epsilon of norms without weights.
pub const EPS: f64 = 1e-5;

/// Names of the trained tensors, in the order of [`Network::vars`].
pub const NAMES: [&str; 6] = ["fc", "fc_bias", "norm", "gate", "up", "down"];

/// Trained tensors, and the frozen ones of the target.
pub struct Network {
    /// Trained tensors: fc `[n, inputs]`, its bias `[n]`, norm `[n]`, gate and up `[ff, n]`, down `[n, ff]`.
    vars: Vec<Var>,
    /// Deviation and mean of the final state, `[n]`.
    scale: Tensor,
    shift: Tensor,
    /// Rows of the target's output head, `[shortlist, n]`.
    head: Tensor,
}

impl Network {
    /// Creates a network from its tensors, in the order of [`NAMES`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(weights: Vec<Tensor>, scale: Tensor, shift: Tensor, head: Tensor) -> Result<Self> {
        let vars = weights.iter().map(Var::from_tensor).collect::<Result<_>>()?;
        Ok(Self { vars, scale, shift, head })
    }

    /// Returns the trained tensors.
    pub fn vars(&self) -> &[Var] {
        &self.vars
    }

    /// Returns deviation and mean of the final state.
    pub fn standard(&self) -> (&Tensor, &Tensor) {
        (&self.scale, &self.shift)
    }

    /// Predicts the final state of the next row, `[rows, n]`, from the inputs `[rows, inputs]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn predict(&self, inputs: &Tensor) -> Result<Tensor> {
        let [fc, bias, norm, gate, up, down] = &self.vars[..] else { candle_core::bail!("6 tensors") };
        let x = inputs.matmul(&fc.t()?)?.broadcast_add(bias)?;
        let square = x.sqr()?.mean_keepdim(D::Minus1)?;
        let y = x.broadcast_div(&(square + EPS)?.sqrt()?)?.broadcast_mul(norm)?;
        let gated = (y.matmul(&gate.t()?)?.silu()? * y.matmul(&up.t()?)?)?;
        let x = (x + gated.matmul(&down.t()?)?)?;
        x.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)
    }

    /// Returns the logits of the shortlist after final states, `[rows, shortlist]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&self, states: &Tensor) -> Result<Tensor> {
        states.matmul(&self.head.t()?)
    }

    /// Returns the mean cross entropy between the target's distribution over the shortlist and the head's, in nats,
    /// and its gradients.
    ///
    /// `states` are the target's true final states, `[rows, n]`. The output head is frozen, so its product stays out of
    /// autograd. The gradient of the loss for the predicted states, (q - p) W / rows, is written out.
    ///
    /// # Errors
    /// If the device fails.
    pub fn gradients(&self, inputs: &Tensor, states: &Tensor) -> Result<(f64, GradStore)> {
        let predicted = self.predict(inputs)?;
        let (loss, gradient) = self.loss(&predicted.detach(), states)?;
        let grads = (predicted * gradient)?.sum_all()?.backward()?;
        Ok((loss, grads))
    }

    /// Returns the loss at predicted states, and its gradient for them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn loss(&self, predicted: &Tensor, states: &Tensor) -> Result<(f64, Tensor)> {
        let rows = predicted.dim(0)? as f64;
        let p = log_softmax(&self.logits(states)?)?.exp()?;
        let log_q = log_softmax(&self.logits(predicted)?)?;
        let loss = (&p * &log_q)?.sum_all()?.to_scalar::<f32>()?;
        let gradient = ((log_q.exp()? - p)?.matmul(&self.head)? / rows)?;
        Ok((-f64::from(loss) / rows, gradient))
    }
}

fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?;
    let sum = shifted.exp()?.sum_keepdim(D::Minus1)?;
    shifted.broadcast_sub(&sum.log()?)
}

/// Copies f32 values to a tensor.
///
/// # Errors
/// If the device fails.
pub fn tensor(values: Vec<f32>, shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_vec(values, shape, device)?.to_dtype(DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// A network of width 8 with a feed-forward block of 12, and 3 rows of inputs and states.
    fn small() -> (Network, Tensor, Tensor) {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut random = |shape: &[usize], scale: f32| {
            let count = shape.iter().product();
            let values = (0..count).map(|_| (hunch_core::sample::unit(&mut rng) as f32 - 0.5) * scale);
            tensor(values.collect(), shape, &Device::Cpu).unwrap()
        };
        let weights =
            [&[8, 24][..], &[8], &[8], &[12, 8], &[12, 8], &[8, 12]].map(|shape| random(shape, 1.0));
        let (scale, shift, head) = (random(&[8], 2.0), random(&[8], 1.0), random(&[20, 8], 3.0));
        let network = Network::new(weights.to_vec(), scale, shift, head).unwrap();
        (network, random(&[3, 24], 2.0), random(&[3, 8], 2.0))
    }

    #[test]
    fn gradients_match_finite_differences() {
        let (network, inputs, states) = small();
        let (_, grads) = network.gradients(&inputs, &states).unwrap();
        let loss = || network.loss(&network.predict(&inputs).unwrap(), &states).unwrap().0;
        const STEP: f32 = 1e-2;
        for (var, name) in network.vars().iter().zip(NAMES) {
            let gradient = grads.get(var).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (values, shape) = (var.flatten_all().unwrap().to_vec1::<f32>().unwrap(), var.dims().to_vec());
            let largest = gradient.iter().fold(0f32, |most, g| most.max(g.abs()));
            for at in (0..values.len()).step_by(3) {
                let at_offset = |offset: f32| {
                    let mut moved = values.clone();
                    moved[at] += offset;
                    var.set(&tensor(moved, &shape, &Device::Cpu).unwrap()).unwrap();
                    loss()
                };
                let expected = (at_offset(STEP) - at_offset(-STEP)) / f64::from(2.0 * STEP);
                at_offset(0.0);
                let off = (f64::from(gradient[at]) - expected).abs();
                assert!(off < 0.01 * f64::from(largest) + 1e-4, "{name}[{at}]: {} {expected}", gradient[at]);
            }
        }
    }

    #[test]
    fn loss_is_least_at_the_targets_own_states() {
        let (network, inputs, states) = small();
        let (least, gradient) = network.loss(&states, &states).unwrap();
        let most = gradient.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(most < 1e-6, "{most}");
        assert!(least < network.loss(&network.predict(&inputs).unwrap(), &states).unwrap().0);
    }
}
