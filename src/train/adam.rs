//! AdamW (Loshchilov and Hutter, arXiv 1711.05101) whose moments can be saved. candle's own keeps the
//! moments private, and a run that is resumed needs them.

use candle_core::{Result, Tensor, Var};

const BETA_1: f64 = 0.9;
const BETA_2: f64 = 0.95;
const EPS: f64 = 1e-8;
const WEIGHT_DECAY: f64 = 0.05;
/// Largest norm of all gradients together.
const CLIP: f64 = 1.0;

/// Moments of the gradients.
pub struct AdamW {
    /// First and second moment of each tensor.
    pub moments: Vec<(Tensor, Tensor)>,
    /// Steps taken.
    pub steps: usize,
}

impl AdamW {
    /// Creates the state before the first step.
    ///
    /// # Errors
    /// If the device fails.
    pub fn new(vars: &[Var]) -> Result<Self> {
        let zeros = |var: &Var| Ok((var.zeros_like()?, var.zeros_like()?));
        Ok(Self { moments: vars.iter().map(zeros).collect::<Result<_>>()?, steps: 0 })
    }

    /// Takes one step with the gradient of each tensor. Gradients with a larger norm than 1 are scaled down. Vectors do
    /// not decay.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&mut self, vars: &[Var], grads: &[Option<Tensor>], learning_rate: f64) -> Result<()> {
        let mut square = 0.0;
        for grad in grads.iter().flatten() {
            square += f64::from(grad.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
        let scale = (CLIP / square.sqrt().max(1e-12)).min(1.0);
        self.steps += 1;
        let (correct_1, correct_2) =
            (1.0 - BETA_1.powi(self.steps as i32), 1.0 - BETA_2.powi(self.steps as i32));
        for ((var, grad), (first, second)) in vars.iter().zip(grads).zip(&mut self.moments) {
            let Some(grad) = grad else { continue };
            let grad = (grad * scale)?;
            *first = ((&*first * BETA_1)? + (&grad * (1.0 - BETA_1))?)?;
            *second = ((&*second * BETA_2)? + (grad.sqr()? * (1.0 - BETA_2))?)?;
            let change = ((&*first / correct_1)? / ((&*second / correct_2)?.sqrt()? + EPS)?)?;
            let decay = if var.rank() > 1 { 1.0 - learning_rate * WEIGHT_DECAY } else { 1.0 };
            var.set(&((var.as_tensor() * decay)? - (change * learning_rate)?)?.detach())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn first_step_moves_against_the_gradient_by_the_learning_rate() {
        let var = Var::from_tensor(&Tensor::new(&[1f32, -2.0, 3.0], &Device::Cpu).unwrap()).unwrap();
        let vars = [var];
        let mut adam = AdamW::new(&vars).unwrap();
        let weights = Tensor::new(&[0.3f32, -0.2, 0.0], &Device::Cpu).unwrap();
        adam.step(&vars, &[Some(weights)], 0.1).unwrap();
        let moved = vars[0].to_vec1::<f32>().unwrap();
        for (value, expected) in moved.iter().zip([0.9, -1.9, 3.0]) {
            assert!((value - expected).abs() < 1e-5, "{moved:?}");
        }
    }

    #[test]
    fn long_gradients_are_clipped() {
        let run = |factor: f32| {
            let vars = [Var::from_tensor(&Tensor::new(&[1f32, 1.0], &Device::Cpu).unwrap()).unwrap()];
            let mut adam = AdamW::new(&vars).unwrap();
            let gradient = Tensor::new(&[factor, factor], &Device::Cpu).unwrap();
            adam.step(&vars, &[Some(gradient)], 0.1).unwrap();
            adam.moments[0].0.to_vec1::<f32>().unwrap()
        };
        for (a, b) in run(10.0).iter().zip(run(1000.0)) {
            assert!((a - b).abs() < 1e-6 && (a - 0.1 / 2f32.sqrt()).abs() < 1e-6, "{a} {b}");
        }
    }
}
