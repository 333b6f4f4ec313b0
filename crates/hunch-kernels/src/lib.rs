//! CPU kernels of Hunch: threads, matrix products over quantised weights, attention, and operations row by row. The
//! only crate that may use `unsafe`; every block says why it is sound. No model, no file and no drafts here.
//!
//! Rule of the crate: **row invariance**. What an output row is must not depend on how many rows
//! were in the call: one partition of K, one order of additions, the same instructions for one row
//! and for sixteen.

#![allow(unsafe_code)]

pub mod activation;
pub mod attention;
mod blocks;
mod error;
mod float;
mod isa;
pub mod mask;
pub mod matmul;
mod memory;
mod packed;
pub mod quantise;
pub mod threads;
mod tile;

pub use error::{Error, ReadError, Result};
pub use isa::{level_names, use_level};
pub use mask::RowMask;
pub use matmul::{MatrixSource, WeightMatrix};
pub use memory::{CopiedBytes, ReadAt};
pub use threads::Threads;
