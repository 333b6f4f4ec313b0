//! Times products with weights of every type, in one run, so that types can be compared.
//!
//! `cargo run -p hunch-kernels --example products [LEVEL]`, where LEVEL names an instruction set. The
//! matrix is larger than most caches. Times are milliseconds of the fastest of several passes.

#![allow(clippy::unwrap_used)]

use std::time::Instant;

use hunch_kernels::matmul::{Product, ProductInput, multiply};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{MatrixSource, Threads, WeightMatrix, WeightType, use_level};

/// Rows and columns of the matrix.
const SHAPE: (usize, usize) = (8192, 4096);
/// Activation rows of a pass.
const ROWS: [usize; 3] = [1, 5, 16];
/// Passes of a type, taken in turns.
const PASSES: usize = 15;

fn main() {
    if let Some(level) = std::env::args().nth(1) {
        use_level(&level).unwrap();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = Threads::new(cores).unwrap();
    let (n, k) = SHAPE;
    let matrices: Vec<(WeightType, WeightMatrix)> = WeightType::ALL
        .iter()
        .filter_map(|&dtype| {
            // As a scale, these bytes are an ordinary number in every type.
            let read = |_: usize, out: &mut [u8]| {
                out.fill(0x33);
                Ok(())
            };
            let len = n * k / dtype.block_size() * dtype.type_size();
            let source = MatrixSource { read: &read, len, dtype, n, k };
            WeightMatrix::new(source, &threads).unwrap().map(|matrix| (dtype, matrix))
        })
        .collect();
    let x: Vec<f32> = (0..ROWS[2] * k).map(|i| (i % 127) as f32 / 63.5 - 1.0).collect();
    let mut out = vec![0.0; ROWS[2] * n];
    let mut best = vec![[f64::INFINITY; ROWS.len()]; matrices.len()];
    for _ in 0..PASSES {
        for ((_, matrix), best) in matrices.iter().zip(&mut best) {
            for (rows, best) in ROWS.into_iter().zip(best) {
                let x = &x[..rows * k];
                let started = Instant::now();
                let mut quantised = QuantisedRows::default();
                quantised.fill(&threads, x);
                let product = Product { matrix, bias: None, out: &mut out[..rows * n], add: false };
                multiply(&threads, ProductInput { x, quantised: &quantised }, &mut [product]);
                *best = best.min(started.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    println!("{n} x {k}, {cores} threads\ntype      MB in memory   1 row    5 rows   16 rows");
    for ((dtype, _), best) in matrices.iter().zip(best) {
        let bytes = WeightMatrix::bytes_in_memory(*dtype, n, k).unwrap();
        let [one, five, sixteen] = best;
        println!("{:8} {:12.1} {one:9.2} {five:9.2} {sixteen:9.2}", dtype.name(), bytes as f64 / 1e6);
    }
}
