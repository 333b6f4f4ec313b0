//! Device code: the CPU's threads, matrix product and attention. This is the
//! only folder that may use `unsafe`; every block says why it is sound.
//!
//! Rule of the folder: **row invariance**. What an output row is must not depend on how many rows
//! were in the call: one partition of K, one order of additions, the same instructions for one row
//! and for sixteen.

#![allow(unsafe_code)]

pub mod activation;
pub mod attention;
mod blocks;
mod float;
mod isa;
pub mod matmul;
mod memory;
mod packed;
pub mod quantise;
pub mod threads;

pub use matmul::{MatrixSource, WeightMatrix};
pub use memory::{CopiedBytes, ReadAt};
pub use threads::Threads;
