//! CPU kernels of Hunch: matrix products over quantised weights, attention, row-wise operations, and
//! the thread pool that runs them.
//!
//! No models, files or drafts here. `unsafe` is allowed in this crate, in the Metal buffers of
//! `hunch-model` (`metal/device.rs`) and nowhere else. Every `unsafe` block states why it is sound.
//!
//! All kernels are **row-invariant**: an output row does not depend on the number of rows in the
//! call. K is split the same way, sums are added in the same order, and one row uses the same
//! instructions as sixteen.

#![allow(unsafe_code)]

pub mod activation;
pub mod attention;
mod blocks;
#[cfg(test)]
mod candle_type;
pub mod delta_net;
mod error;
pub mod experts;
mod float;
mod grids;
mod isa;
mod mask;
pub mod matmul;
mod memory;
mod packed;
mod product;
pub mod quantise;
mod repack;
mod tables;
mod threads;
mod tile;
mod types;

pub use error::{Error, ReadError, Result};
pub use isa::{level_in_use, use_level};
pub use mask::{LayerWindow, RowMask, Window};
pub use matmul::{MatrixSource, WeightMatrix};
pub use memory::{CopiedBytes, ReadAt};
pub use repack::samples::random_blocks;
pub use repack::{CodeTable, bytes_read, dequantise, kept_blocks};
pub use threads::Threads;
pub use types::WeightType;
