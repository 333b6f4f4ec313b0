//! The Metal executor without a Mac: its kernels, compiled as C++, on a simulated GPU.
//!
//! `make metal-test` finds or fetches a compiler and runs these tests.

mod bytes;
mod candle_kernels;
mod choice;
mod default_model;
mod delta_nets;
mod draws;
mod machine;
mod models;
mod planted_mistakes;
mod predictions;
mod products;
mod ptx;
mod reference;
mod rounds;
mod rows;
mod selftest;
mod traffic;
