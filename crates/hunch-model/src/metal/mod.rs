//! Models on the GPU of a Mac: Hunch's own kernels and the executor that dispatches them.
//!
//! Products sum integers inside a unit of 32 weights, so a row has the same bits alone and among others.
//! The whole module runs on any machine over a simulated GPU (`tests/metal`). Device code belongs to
//! implementations of [`Gpu`](gpu::Gpu).

#[cfg(target_os = "macos")]
pub mod device;
pub(crate) mod executor;
pub mod gpu;
pub mod kernels;
pub mod matrix;
pub mod packed;
pub mod workspace;
