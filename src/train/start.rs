//! Start of a head: a ridge regression over the collected answers, in closed form.

use std::ops::Range;

use candle_core::{DType, Tensor};
use hunch_core::sample::unit;
use hunch_error::{Error, Refusal, Result};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::features::Frozen;
use super::ops;
use super::ridge::Ridge;
use super::shards::{AnswerRow, CollectedAnswer, ShardStore, TrainingSet};
use super::{Recipe, check_paused};

/// Rows of a product of the regression.
const ROWS: usize = 2_048;
/// Most positions of the regression. More bring nothing.
const POSITIONS: usize = 200_000;
/// Most inputs of the regression. For wider targets it reads a part of them.
pub const INPUTS: usize = 8_192;

/// Computes inputs and outputs of a regression at positions of answers.
pub type RegressionRows<'a> = dyn Fn(&[AnswerRow<'_>]) -> Result<(Tensor, Tensor)> + 'a;

/// Data that a head starts from.
pub struct StartData<'a> {
    /// Answers on disk.
    pub store: &'a ShardStore,
    /// Answers to train on.
    pub data: &'a TrainingSet,
    /// Settings.
    pub recipe: &'a Recipe,
    /// Seed of the weights.
    pub seed: u64,
    /// Returns true to end the work.
    pub paused: &'a dyn Fn() -> bool,
}

/// Weights of a regression.
pub struct Solved {
    /// Weights by output, `[outputs, inputs]`. Columns that were not read are 0.
    pub weights: Vec<f32>,
    /// Constants, `[outputs]`.
    pub bias: Vec<f32>,
    /// Root mean square of the predictions.
    pub scale: f32,
}

impl StartData<'_> {
    /// Solves a regression over all positions that have `ahead` rows after them.
    ///
    /// `rows` returns inputs `[positions, inputs]` and outputs `[positions, outputs]`. Only the input columns in
    /// `read` are used.
    ///
    /// # Errors
    /// If a shard cannot be read, the device fails or the states are not finite. [`Error::Stopped`] if paused.
    pub fn regression(
        &self,
        read: &[Range<usize>],
        ahead: usize,
        rows: &RegressionRows<'_>,
    ) -> Result<Solved> {
        let mut ridge = Ridge::new();
        let (mut sample, mut inputs) = (None, 0);
        let mut add = |answers: &[CollectedAnswer]| -> Result<()> {
            let of = |answer| (0..CollectedAnswer::rows_with(answer, ahead)).map(move |row| (answer, row));
            let positions: Vec<AnswerRow<'_>> = answers.iter().flat_map(of).collect();
            if positions.is_empty() {
                return Ok(());
            }
            let (x, y) = rows(&positions)?;
            inputs = x.dim(1)?;
            let columns = read.iter().map(|range| x.narrow(1, range.start, range.len()));
            let mut columns = columns.collect::<candle_core::Result<Vec<_>>>()?;
            columns.push(Tensor::ones((positions.len(), 1), DType::F32, x.device())?);
            let x = Tensor::cat(&columns, 1)?;
            ridge.add(&x, &y)?;
            sample.get_or_insert(x);
            Ok(())
        };
        let (mut waiting, mut count, mut all) = (Vec::new(), 0, 0);
        for entry in &self.data.answers {
            count += entry.positions();
            all += entry.positions();
            waiting.push(self.store.read(entry)?);
            check_paused(self.paused)?;
            if count >= ROWS {
                add(&waiting)?;
                waiting.clear();
                count = 0;
            }
            if all >= POSITIONS {
                break;
            }
        }
        add(&waiting)?;
        let solved = ridge.solve(self.recipe.ridge, self.paused).map_err(|error| match error {
            Error::Stopped => error,
            _ => Refusal::StatesNotFinite.into(),
        })?;
        let empty = || Error::Internal("an empty regression".into());
        let sample = sample.ok_or_else(empty)?;
        let predicted = sample.matmul(&solved.to_device(sample.device())?)?;
        let scale = predicted.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
        let solved = solved.to_vec2::<f32>()?;
        let (bias, solved) = solved.split_last().ok_or_else(empty)?;
        let mut weights = vec![0.0; bias.len() * inputs];
        for (column, of_column) in read.iter().cloned().flatten().zip(solved) {
            of_column.iter().enumerate().for_each(|(out, weight)| weights[out * inputs + column] = *weight);
        }
        Ok(Solved { weights, bias: bias.clone(), scale })
    }

    /// Returns a generator of uniform random weights with this standard deviation.
    pub fn random(&self) -> impl FnMut(usize, f64) -> Vec<f32> {
        let mut rng = generator(self.seed, 3, 0);
        move |count, deviation| {
            let spread = deviation * 3f64.sqrt();
            (0..count).map(|_| ((2.0 * unit(&mut rng) - 1.0) * spread) as f32).collect()
        }
    }
}

/// Returns random numbers for a purpose and a number.
pub fn generator(seed: u64, purpose: u64, number: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Answers use the streams below 2^32.
    rng.set_stream(purpose << 48 | number as u64);
    rng
}

/// Returns outputs of the final states of rows in units of the standard deviation, `[rows, n]`.
///
/// # Errors
/// If the device fails.
pub fn standard_states<'p>(frozen: &Frozen<'_>, rows: impl Iterator<Item = AnswerRow<'p>>) -> Result<Tensor> {
    let (mean, deviation) = frozen.final_standard_tensors()?;
    Ok(frozen.final_states(rows)?.broadcast_sub(&mean)?.broadcast_div(&deviation)?)
}

/// Returns the width of a feed-forward block: that of the recipe, or four thirds of the target's width in whole blocks
/// of 8-bit weights.
pub fn feed_forward_width(recipe: &Recipe, n: usize) -> usize {
    recipe.feed_forward.unwrap_or((n * 4 / 3).next_multiple_of(32))
}

/// Copies values to a tensor on the target's device.
///
/// # Errors
/// If the device fails.
pub fn weight(frozen: &Frozen<'_>, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Ok(ops::tensor(values, shape, frozen.target.device())?)
}
