//! Hunch's own kernels for the GPU of a Mac: their texts, arguments, weights and buffers.
//!
//! Products sum integers inside a unit of 32 weights, so a row has the same bits alone and among others.
//! The executor that dispatches them is in `metal_executor`. All of it runs on any machine over a simulated GPU
//! (`tests/metal`). Device code belongs to implementations of [`Gpu`](gpu::Gpu).

pub mod activations;
pub mod attention;
pub mod choice;
mod constants;
pub mod convert;
pub mod convolution;
pub mod costs;
pub mod delta_net;
#[cfg(target_os = "macos")]
pub mod device;
pub mod experts;
pub mod gpu;
pub mod heads;
pub mod kernels;
pub mod matrix;
pub mod multiply;
pub mod packed;
pub mod products;
pub mod rows;
pub mod selftest;
mod shaders;
#[cfg(any(test, target_os = "macos"))]
mod waiting;
pub mod workspace;
