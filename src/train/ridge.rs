//! Ridge regression in closed form: sums of products, a blocked Cholesky factorisation, and two triangular solves.

use candle_core::{DType, Device, Tensor};
use hunch_error::{Error, Refusal, Result};

use super::check_paused;

/// Rows of a block. The products of blocks are candle's.
const BLOCK: usize = 192;

/// Sums over the rows of a regression from x `[rows, inputs]` to y `[rows, outputs]`.
pub struct Ridge {
    /// X^T X and X^T Y.
    sums: Option<(Tensor, Tensor)>,
}

impl Ridge {
    /// Creates empty sums.
    pub fn new() -> Self {
        Self { sums: None }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// If the device fails.
    pub fn add(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let transposed = x.t()?;
        let (xx, xy) = (transposed.matmul(x)?, transposed.matmul(y)?);
        self.sums = Some(match self.sums.take() {
            None => (xx, xy),
            Some((all_xx, all_xy)) => ((all_xx + xx)?, (all_xy + xy)?),
        });
        Ok(())
    }

    /// Returns the weights w `[inputs, outputs]` that minimise |x w - y|^2 + penalty |w|^2.
    ///
    /// # Errors
    /// If there are no rows, or the sums are not finite. [`Error::Stopped`] if `paused` returns true between two blocks.
    pub fn solve(self, penalty: f64, paused: &dyn Fn() -> bool) -> Result<Tensor> {
        let Some((xx, xy)) = self.sums else {
            return Err(Error::Internal("a regression without rows".into()));
        };
        let cpu = |sum: Tensor| sum.to_device(&Device::Cpu)?.to_dtype(DType::F64);
        let (n, outputs) = xy.dims2()?;
        let mut a = cpu(xx)?.flatten_all()?.to_vec1::<f64>()?;
        let mut b = cpu(xy)?.flatten_all()?.to_vec1::<f64>()?;
        (0..n).for_each(|i| a[i * n + i] += penalty);
        factorise(&mut a, n, paused)?;
        substitute(&a, n, &mut b, outputs, paused)?;
        Ok(Tensor::from_vec(b, (n, outputs), &Device::Cpu)?.to_dtype(DType::F32)?)
    }
}

impl Default for Ridge {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies the block of `a` (`width` columns) at these rows and columns.
fn block(
    a: &[f64],
    width: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> Result<Tensor> {
    let values: Vec<f64> = rows.clone().flat_map(|i| &a[i * width..][columns.clone()]).copied().collect();
    Ok(Tensor::from_vec(values, (rows.len(), columns.len()), &Device::Cpu)?)
}

/// Subtracts a block from `a` at these rows and columns.
fn subtract(a: &mut [f64], width: usize, row: usize, column: usize, block: &Tensor) -> Result<()> {
    for (i, values) in block.to_vec2::<f64>()?.iter().enumerate() {
        let out = &mut a[(row + i) * width + column..][..values.len()];
        out.iter_mut().zip(values).for_each(|(out, value)| *out -= value);
    }
    Ok(())
}

/// Replaces the lower triangle of the symmetric `a` by L with L L^T = a.
fn factorise(a: &mut [f64], n: usize, paused: &dyn Fn() -> bool) -> Result<()> {
    for from in (0..n).step_by(BLOCK) {
        check_paused(paused)?;
        let to = (from + BLOCK).min(n);
        for i in from..n {
            for j in from..to.min(i + 1) {
                let dot: f64 = (from..j).map(|k| a[i * n + k] * a[j * n + k]).sum();
                let rest = a[i * n + j] - dot;
                a[i * n + j] = if i == j { rest.sqrt() } else { rest / a[j * n + j] };
            }
            if i < to && (a[i * n + i].is_nan() || a[i * n + i] <= 0.0) {
                return Err(Refusal::StatesNotFinite.into());
            }
        }
        // The rows below, a stretch of columns at a time.
        for column in (to..n).step_by(BLOCK) {
            let end = (column + BLOCK).min(n);
            check_paused(paused)?;
            let (left, right) = (block(a, n, column..n, from..to)?, block(a, n, column..end, from..to)?);
            subtract(a, n, column, column, &left.matmul(&right.t()?)?)?;
        }
    }
    Ok(())
}

/// Solves L L^T x = b in place, `b` is `[n, outputs]`.
fn substitute(l: &[f64], n: usize, b: &mut [f64], outputs: usize, paused: &dyn Fn() -> bool) -> Result<()> {
    let starts: Vec<usize> = (0..n).step_by(BLOCK).collect();
    for &from in &starts {
        check_paused(paused)?;
        let to = (from + BLOCK).min(n);
        for i in from..to {
            let (before, rest) = b.split_at_mut(i * outputs);
            for k in from..i {
                add(&mut rest[..outputs], &before[k * outputs..][..outputs], -l[i * n + k]);
            }
            rest[..outputs].iter_mut().for_each(|x| *x /= l[i * n + i]);
        }
        if to < n {
            let solved = block(b, outputs, from..to, 0..outputs)?;
            subtract(b, outputs, to, 0, &block(l, n, to..n, from..to)?.matmul(&solved)?)?;
        }
    }
    for &from in starts.iter().rev() {
        check_paused(paused)?;
        let to = (from + BLOCK).min(n);
        for i in (from..to).rev() {
            let (before, after) = b.split_at_mut((i + 1) * outputs);
            let row = &mut before[i * outputs..];
            for k in i + 1..to {
                add(row, &after[(k - i - 1) * outputs..][..outputs], -l[k * n + i]);
            }
            row.iter_mut().for_each(|x| *x /= l[i * n + i]);
        }
        if from > 0 {
            let solved = block(b, outputs, from..to, 0..outputs)?;
            let above = block(l, n, from..to, 0..from)?.t()?.matmul(&solved)?;
            subtract(b, outputs, 0, 0, &above)?;
        }
    }
    Ok(())
}

fn add(to: &mut [f64], from: &[f64], factor: f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovers_weights_over_several_blocks() {
        // More inputs than a block has rows, and not a multiple of it.
        const INPUTS: usize = 2 * BLOCK + 7;
        let device = Device::Cpu;
        let random = |shape: (usize, usize), seed: u64| {
            let mut state = seed;
            let values: Vec<f32> = (0..shape.0 * shape.1)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
                })
                .collect();
            Tensor::from_vec(values, shape, &device).unwrap()
        };
        let (x, w) = (random((3 * INPUTS, INPUTS), 3), random((INPUTS, 5), 4));
        let y = x.matmul(&w).unwrap();
        let mut ridge = Ridge::new();
        for part in 0..3 {
            let rows = |t: &Tensor| t.narrow(0, part * INPUTS, INPUTS).unwrap().contiguous().unwrap();
            ridge.add(&rows(&x), &rows(&y)).unwrap();
        }
        let solved = ridge.solve(1e-6, &|| false).unwrap();
        let off = (solved - w).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(off < 1e-3, "{off}");
    }

    #[test]
    fn penalty_shrinks_weights() {
        let x = Tensor::new(&[[1f32], [1.0], [1.0]], &Device::Cpu).unwrap();
        let y = Tensor::new(&[[2f32], [2.0], [2.0]], &Device::Cpu).unwrap();
        let mut ridge = Ridge::new();
        ridge.add(&x, &y).unwrap();
        let w = ridge.solve(3.0, &|| false).unwrap().to_vec2::<f32>().unwrap();
        assert!((w[0][0] - 1.0).abs() < 1e-6, "6 / (3 + 3), not {w:?}");
    }

    #[test]
    fn a_pause_ends_the_regression_between_two_blocks() {
        const INPUTS: usize = 3 * BLOCK;
        let identity = Tensor::eye(INPUTS, DType::F32, &Device::Cpu).unwrap();
        let asked = std::cell::Cell::new(0);
        let solve = |limit: usize| {
            let mut ridge = Ridge::new();
            ridge.add(&identity, &identity).unwrap();
            asked.set(0);
            ridge.solve(1.0, &|| {
                asked.set(asked.get() + 1);
                asked.get() > limit
            })
        };
        assert!(solve(usize::MAX).is_ok());
        let blocks = asked.get();
        assert!(blocks >= 9, "each block of each pass asks: {blocks}");
        for limit in 0..blocks {
            assert!(matches!(solve(limit), Err(Error::Stopped)));
            assert_eq!(asked.get(), limit + 1, "it ends at once");
        }
    }
}
