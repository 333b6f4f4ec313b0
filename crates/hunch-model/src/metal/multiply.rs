//! Dispatch of products. Their kernels are in `products`.

use std::sync::PoisonError;

use hunch_error::{Error, Result};

use super::gpu::{Argument, Buffer, Grid};
use super::kernels::{GpuProduct, Kernel, Kernels};
use super::products::{MAX_PARTS, TileRows, WeightKernel, parts};
use super::workspace::Activations;

/// Constants of a part, in words.
const PART_WORDS: usize = 8;

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
        let id = self.get(Kernel::Multiply(tile, parts(products.iter().map(|product| product.matrix))))?;
        let (mut constants, mut groups) = (Vec::with_capacity(PART_WORDS * products.len()), 0);
        let codes = if rows == 1 { &x.codes } else { &x.halves };
        let mut arguments = vec![codes.input(), x.scales.input(), x.sums.input(), x.floats.input()];
        for product in products {
            let GpuProduct { matrix, bias, out, offset, .. } = product;
            let of_part = matrix.n().div_ceil(WeightKernel::of(matrix).columns(tile));
            constants.extend(product.constants(rows, of_part).words());
            groups += of_part;
            let streams = matrix.streams();
            arguments.extend(streams);
            // A bias that is not there is bound to the weights, which no kernel writes.
            arguments.push(bias.map_or(streams[0], Buffer::input));
            arguments.push(Argument::Output(out.id(), offset * size_of::<f32>()));
        }
        arguments.insert(0, Argument::Constants(&constants));
        let groups = [groups as u32, rows.div_ceil(tile.rows()) as u32, 1];
        let grid = Grid { groups, threads: tile.threads(), scratch: tile.scratch() };
        self.gpu().dispatch(id, &arguments, grid)
    }
}

impl GpuProduct<'_> {
    /// Reads the bytes from its first result to its last.
    fn read(&self, rows: usize) -> Result<Vec<u8>> {
        self.out.read_rows(rows, self.stride, self.offset, self.matrix.n())
    }
}
