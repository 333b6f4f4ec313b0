//! Dispatch of products. Their kernels are in `products`.

use hunch_error::{Error, Result};

use super::gpu::{Argument, Buffer, Grid};
use super::kernels::{GpuProduct, Kernel, Kernels};
use super::products::{MAX_PARTS, Parts, TileRows, WeightKernel};
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

    /// Multiplies up to three matrices with the first `rows` rows of `x`, in one dispatch. If the device refuses that
    /// kernel, each matrix has a dispatch of its own.
    ///
    /// # Errors
    /// If the device fails. [`Error::Internal`] for no or too many matrices.
    pub fn multiply_all(&self, products: &[GpuProduct<'_>], x: &Activations, rows: usize) -> Result<()> {
        if products.is_empty() || products.len() > MAX_PARTS {
            return Err(Error::Internal(format!("{} products in a dispatch", products.len())));
        }
        let tile = TileRows::of(rows);
        let mut parts = Parts::default();
        for (part, product) in parts.iter_mut().zip(products) {
            *part = Some(WeightKernel::of(product.matrix));
        }
        let id = match self.get(Kernel::Multiply(tile, parts)) {
            Err(_) if products.len() > 1 => {
                return products.iter().try_for_each(|product| self.multiply(*product, x, rows));
            }
            id => id?,
        };
        let (mut constants, mut groups) = (Vec::with_capacity(PART_WORDS * products.len()), 0);
        let codes = if rows == 1 { &x.codes } else { &x.halves };
        let mut arguments = vec![codes.input(), x.scales.input(), x.sums.input(), x.floats.input()];
        for product in products {
            let GpuProduct { matrix, bias, out, offset, .. } = product;
            let of_part = matrix.n().div_ceil(WeightKernel::of(matrix).columns(tile));
            constants.extend(product.constants(rows));
            constants.push(of_part as u32);
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
