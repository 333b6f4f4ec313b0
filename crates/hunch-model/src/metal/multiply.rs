//! Dispatch of products. Their kernels are in `products`.

use std::sync::PoisonError;

use hunch_error::{Error, Result};

use super::activations::Activations;
use super::constants::constants;
use super::gpu::{Argument, Buffer, BufferAt, Grid};
use super::kernels::{Kernel, Kernels};
use super::matrix::Matrix;
use super::products::{MAX_PARTS, TileRows, WeightKernel, parts};

/// Constants of a part, in words.
const PART_WORDS: usize = 8;

/// Product of a matrix with the rows of a pass, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct GpuProduct<'a> {
    /// Weights.
    pub matrix: &'a Matrix,
    /// Bias `[n]`, added to every row.
    pub bias: Option<&'a Buffer>,
    /// First value of the first output row.
    pub out: BufferAt<'a>,
    /// Values of an output row.
    pub stride: usize,
    /// Adds to the output.
    pub add: bool,
    /// Scale and bound of the results.
    pub scaling: ResultScaling,
}

/// Use of results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResultUse {
    /// They replace the output.
    Replace,
    /// They replace the output, times a factor.
    ReplaceScaled(f32),
    /// They are added to the output, times a factor.
    Add(f32),
}

impl ResultUse {
    /// Returns `true` if results are added.
    pub fn adds(self) -> bool {
        matches!(self, Self::Add(_))
    }

    /// Returns the factor of results.
    pub fn factor(self) -> f32 {
        match self {
            Self::Replace => 1.0,
            Self::ReplaceScaled(factor) | Self::Add(factor) => factor,
        }
    }
}

impl GpuProduct<'_> {
    /// Returns the constants of the kernel for a number of threadgroups.
    fn constants(&self, rows: usize, groups: usize) -> ProductConstants {
        let flags = u32::from(self.add) | u32::from(self.bias.is_some()) << 1;
        let of_matrix = ProductConstants::of(self.matrix, rows, self.scaling);
        ProductConstants { stride: self.stride as u32, flags, groups: groups as u32, ..of_matrix }
    }
}

/// Scale and bound of the results of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResultScaling {
    /// Factor.
    pub scale: f32,
    /// Bound of scaled results that are not added: y becomes `cap * tanh(y / cap)`.
    pub cap: Option<f32>,
}

impl ResultScaling {
    /// Leaves results as they are.
    pub const NONE: Self = Self { scale: 1.0, cap: None };
}

impl Kernels {
    /// Multiplies a matrix with the first `rows` rows of `x`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn multiply(&self, product: GpuProduct<'_>, x: &Activations, rows: usize) -> Result<()> {
        self.multiply_all(&[product], x, rows)
    }

    /// Multiplies up to three matrices with the first `rows` rows of `x`, in one dispatch. Each matrix has a dispatch of
    /// its own if the device refuses that kernel, or if its first use shows other bits than theirs.
    ///
    /// # Errors
    /// If the device fails. [`Error::Internal`] for no or too many matrices.
    pub fn multiply_all(&self, products: &[GpuProduct<'_>], x: &Activations, rows: usize) -> Result<()> {
        if products.is_empty() || products.len() > MAX_PARTS {
            return Err(Error::Internal(format!("{} products in a dispatch", products.len())));
        }
        if products.len() > 1 && !self.can_join(products, x, rows)? {
            return self.multiply_each(products, x, rows);
        }
        self.dispatch_products(products, x, rows)
    }

    /// Returns the problems of joined products, which are not used therefore.
    pub fn join_problems(&self) -> Vec<String> {
        self.joins
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .filter_map(|tried| tried.clone().err())
            .collect()
    }

    fn multiply_each(&self, products: &[GpuProduct<'_>], x: &Activations, rows: usize) -> Result<()> {
        products.iter().try_for_each(|product| self.dispatch_products(&[*product], x, rows))
    }

    /// Returns whether products may share a dispatch.
    fn can_join(&self, products: &[GpuProduct<'_>], x: &Activations, rows: usize) -> Result<bool> {
        // The comparison runs the products twice, which must not add twice.
        if products.iter().any(|product| product.add) {
            return Ok(false);
        }
        self.can_join_by(
            Kernel::Multiply(TileRows::of(rows), parts(products.iter().map(|product| product.matrix))),
            || self.dispatch_products(products, x, rows),
            || self.multiply_each(products, x, rows),
            || products.iter().map(|product| product.read(rows)).collect(),
        )
    }

    /// Returns whether the products of a kernel may share a dispatch. Compares the two ways at the first use of their
    /// types and tile, which is in the warm-up of a model.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn can_join_by(
        &self,
        kernel: Kernel,
        joined: impl FnOnce() -> Result<()>,
        separately: impl FnOnce() -> Result<()>,
        read: impl Fn() -> Result<Vec<Vec<u8>>>,
    ) -> Result<bool> {
        let mut joins = self.joins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tried) = joins.get(&kernel) {
            return Ok(tried.is_ok());
        }
        let tried = match self.get(kernel) {
            Err(refused) => Err(refused.to_string()),
            Ok(_) => {
                // Separate products come last, so what a wrong kernel leaves unwritten differs, and is right afterwards.
                joined()?;
                let of_joined = read()?;
                separately()?;
                let same = read()? == of_joined;
                same.then_some(()).ok_or_else(|| format!("{} differs", kernel.source().name))
            }
        };
        let can_join = tried.is_ok();
        joins.insert(kernel, tried);
        Ok(can_join)
    }

    /// Multiplies matrices in one dispatch.
    fn dispatch_products(&self, products: &[GpuProduct<'_>], x: &Activations, rows: usize) -> Result<()> {
        let tile = TileRows::of(rows);
        let kernel = Kernel::Multiply(tile, parts(products.iter().map(|product| product.matrix)));
        let (mut constants, mut groups) = (Vec::with_capacity(PART_WORDS * products.len()), 0);
        let codes = if rows == 1 { &x.codes } else { &x.halves };
        let mut arguments = vec![codes.input(), x.scales.input(), x.sums.input(), x.floats.input()];
        for product in products {
            let GpuProduct { matrix, bias, out, .. } = product;
            let of_part = matrix.n().div_ceil(WeightKernel::of(matrix).columns(tile));
            constants.extend(product.constants(rows, of_part).words());
            groups += of_part;
            let streams = matrix.streams();
            arguments.extend(streams);
            // A bias that is not there is bound to the weights, which no kernel writes.
            arguments.push(bias.map_or(streams[0], Buffer::input));
            arguments.push(out.output());
        }
        arguments.insert(0, Argument::Constants(&constants));
        let grid = Grid::new([groups, rows.div_ceil(tile.rows()), 1], tile.threads());
        self.run(kernel, &arguments, grid.with_scratch(tile.scratch()))
    }
}

impl GpuProduct<'_> {
    /// Reads the bytes from its first result to its last.
    fn read(&self, rows: usize) -> Result<Vec<u8>> {
        self.out.read_rows(rows, self.stride, self.matrix.n())
    }
}

constants! {
    /// A product, or rows of a table.
    ProductConstants {
        n: u32, k: u32, rows: u32, stride: u32, flags: u32, scale: f32, cap: f32, groups: u32,
    }
}

impl ProductConstants {
    /// Returns the constants of a kernel that reads a matrix: of output rows as wide as the matrix has columns, without
    /// flags and threadgroups.
    pub(super) fn of(matrix: &Matrix, rows: usize, scaling: ResultScaling) -> Self {
        Self {
            n: matrix.n() as u32,
            k: matrix.k() as u32,
            rows: rows as u32,
            stride: matrix.k() as u32,
            flags: 0,
            scale: scaling.scale,
            cap: scaling.cap.unwrap_or(0.0),
            groups: 0,
        }
    }
}
