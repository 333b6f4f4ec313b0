//! Models on the GPU of a Mac: Hunch's own kernels and the executor that dispatches them.

pub mod gpu;
