//! Products on the simulated GPU against scalar loops, bit for bit, for every type and number of rows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use hunch_kernels::{WeightType, dequantise, random_blocks};
use hunch_model::candle_type::CandleType;
use hunch_model::metal::activations::Activations;
use hunch_model::metal::gpu::{Buffer, Gpu};
use hunch_model::metal::kernels::{Kernel, Kernels};
use hunch_model::metal::matrix::Matrix;
use hunch_model::metal::multiply::{GpuProduct, ResultScaling};
use hunch_model::metal::packed::{PackedFormat, Unit};

use crate::machine::Machine;
use crate::reference::{Block, dot, dot_floats, half_bytes, noise, quantise};
use crate::selftest::Spoiled;
use hunch_testing::simulator::{Schedule, Simulator};

/// Most rows of a test.
const ROWS: usize = 32;

/// Matrix in file layout, and its values.
pub(crate) fn weights(dtype: WeightType, n: usize, k: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let Some(candle) = dtype.candle() else {
        let file = random_blocks(dtype, n * k / dtype.block_size(), 0.01, seed);
        let mut values = Vec::new();
        assert!(dequantise(dtype, &file, &mut values));
        return (file, values);
    };
    let weights = Tensor::from_vec(noise(n * k, seed), (n, k), &Device::Cpu).unwrap();
    let weights = QTensor::quantize(&weights, candle).unwrap();
    let values = weights.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap();
    (weights.data().unwrap().into_owned(), values.to_vec1().unwrap())
}

/// Writes activations for the GPU.
pub(crate) fn upload(gpu: &Arc<dyn Gpu>, x: &[f32], k: usize) -> (Activations, Vec<Block>) {
    let rows = x.len() / k;
    let out = Activations::new(gpu, rows, k).unwrap();
    let blocks = quantise(x);
    let codes = || blocks.iter().flat_map(|b| b.codes);
    out.codes.write(0, &codes().map(|c| c as u8).collect::<Vec<u8>>()).unwrap();
    out.halves.write(0, &half_bytes(codes().map(f32::from))).unwrap();
    out.scales.write_floats(0, &blocks.iter().map(|b| b.scale).collect::<Vec<f32>>()).unwrap();
    let sums: Vec<u8> = blocks.iter().flat_map(|b| b.sums).flat_map(i16::to_le_bytes).collect();
    out.sums.write(0, &sums).unwrap();
    out.floats.write_floats(0, x).unwrap();
    (out, blocks)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Most rows of a product: more than those of a pass over a prompt.
const MOST_ROWS: usize = 512;

/// Compares products of 1 to 16, 32, 80 and 512 rows with `expected`, the products of the first 32 rows. More rows repeat
/// them.
fn check(machine: &Machine, name: &str, matrix: &Matrix, x: &[f32], expected: &[f32]) {
    let gpu = machine.gpu.clone();
    let kernels = Kernels::new(gpu.clone());
    let (mut runs, mut values) = (0, 0);
    let (n, k) = (matrix.n(), matrix.k());
    let x: Vec<f32> = x.iter().copied().cycle().take(MOST_ROWS * k).collect();
    let expected: Vec<f32> = expected.iter().copied().cycle().take(MOST_ROWS * n).collect();
    for rows in (1..=16).chain([ROWS, 80, MOST_ROWS]) {
        let (activations, _) = upload(&gpu, &x[..rows * k], k);
        let one = rows % Schedule::ALL.len();
        let schedules =
            if matches!(rows, 1 | 3 | 5) { &Schedule::ALL[..] } else { &Schedule::ALL[one..=one] };
        for schedule in schedules {
            machine.set_schedule(*schedule);
            let out = Buffer::new(&gpu, 4 * rows * n).unwrap();
            let scaling = ResultScaling::NONE;
            let product =
                GpuProduct { matrix, bias: None, out: out.at_value(0), stride: n, add: false, scaling };
            kernels.multiply(product, &activations, rows).unwrap();
            let y = out.read_floats(0, rows * n).unwrap();
            assert!(bits(&y) == bits(&expected[..rows * n]), "{name}: {rows} rows, {schedule:?}");
            (runs, values) = (runs + 1, values + y.len());
        }
    }
    println!("figure: bits: {name}: {runs} runs with 19 numbers of rows, {values} values, 0 with other bits");
    machine.set_schedule(Schedule::default());
}

#[test]
fn quantised_products_have_the_bits_of_a_scalar_loop() {
    let machine = Machine::start();
    let gpu = machine.gpu.clone();
    for format in PackedFormat::ALL {
        let dtype = format.dtype();
        // Incomplete tiles of rows; partitions of different lengths.
        let (n, k) = if dtype.block_size() == 256 { (37, 768) } else { (43, 640) };
        let (file, values) = weights(dtype, n, k, 7);
        let x = noise(ROWS * k, 99);
        let blocks = quantise(&x);
        let units: Vec<Unit> =
            file.chunks_exact(dtype.type_size()).flat_map(|block| format.units(block)).collect();
        let mut expected = Vec::new();
        for x in blocks.chunks_exact(k / 32) {
            expected.extend(units.chunks_exact(k / 32).map(|w| dot(format, w, x)));
        }
        let matrix = Matrix::new(&gpu, dtype, (n, k), &file).unwrap();
        check(&machine, &format!("{format:?}"), &matrix, &x, &expected);

        // The loop itself against f64, with the weights as candle sees them.
        let rounded: Vec<f64> =
            blocks.iter().flat_map(|b| b.codes.map(|c| f64::from(c) * f64::from(b.scale))).collect();
        for (row, x) in rounded.chunks_exact(k).enumerate() {
            for (col, w) in values.chunks_exact(k).enumerate() {
                let parts = || x.iter().zip(w).map(|(x, w)| x * f64::from(*w));
                let (exact, magnitude) = (parts().sum::<f64>(), parts().map(f64::abs).sum::<f64>());
                let error = (f64::from(expected[row * n + col]) - exact).abs();
                assert!(error < 1e-6 * magnitude, "{format:?}: {error} of {magnitude}");
            }
        }
    }
}

#[test]
fn float_products_have_the_bits_of_a_scalar_loop() {
    let machine = Machine::start();
    let gpu = machine.gpu.clone();
    for dtype in [WeightType::F32, WeightType::F16, WeightType::BF16] {
        let (n, k) = (37, 608);
        let (file, values) = weights(dtype, n, k, 3);
        let x = noise(ROWS * k, 5);
        let mut expected = Vec::new();
        for x in x.chunks_exact(k) {
            expected.extend(values.chunks_exact(k).map(|w| dot_floats(w, x)));
        }
        let matrix = Matrix::new(&gpu, dtype, (n, k), &file).unwrap();
        check(&machine, &format!("{dtype:?}"), &matrix, &x, &expected);
    }
}

/// Bits of products of matrices of several types, in one call and in a call for each.
fn joined_and_separate(kernels: &Kernels, types: &[(WeightType, usize)], rows: usize) -> [Vec<u32>; 2] {
    let (k, gpu) = (256, kernels.gpu());
    let matrix = |(dtype, n): &(WeightType, usize)| {
        Matrix::new(gpu, *dtype, (*n, k), &weights(*dtype, *n, k, 1).0).unwrap()
    };
    let matrices: Vec<Matrix> = types.iter().map(matrix).collect();
    let stride: usize = matrices.iter().map(Matrix::n).sum();
    let bias = Buffer::with_floats(gpu, &noise(stride, 3)).unwrap();
    let (activations, _) = upload(gpu, &noise(rows * k, 2), k);
    [true, false].map(|joined| {
        let out = Buffer::with_floats(gpu, &vec![f32::NAN; rows * stride]).unwrap();
        let (mut products, mut offset) = (Vec::new(), 0);
        for (i, matrix) in matrices.iter().enumerate() {
            let (bias, scaling) =
                ((i == 1).then_some(&bias), ResultScaling { scale: 1.0 + i as f32, cap: None });
            products.push(GpuProduct {
                matrix,
                bias,
                out: out.at_value(offset),
                stride,
                add: false,
                scaling,
            });
            offset += matrix.n();
        }
        if joined {
            kernels.multiply_all(&products, &activations, rows).unwrap();
        } else {
            products.iter().for_each(|product| kernels.multiply(*product, &activations, rows).unwrap());
        }
        let out = out.read_floats(0, rows * stride).unwrap();
        assert!(out.iter().all(|v| v.is_finite()), "{types:?}, {rows} rows: all are written");
        bits(&out)
    })
}

/// Two or three matrices in a dispatch: packed ones, and packed ones with floats.
#[test]
fn products_of_several_types_in_one_dispatch_match_separate_products() {
    let machine = Machine::start();
    for types in [
        [(WeightType::Q4K, 40), (WeightType::Q6K, 24), (WeightType::Q4_0, 13)],
        [(WeightType::F16, 21), (WeightType::Iq4Nl, 16), (WeightType::BF16, 8)],
    ] {
        for (parts, rows) in [(2, 1), (2, 7), (2, 40), (3, 1), (3, 2), (3, 3), (3, 8), (3, 16), (3, 20)] {
            machine.set_schedule(Schedule::ALL[rows % Schedule::ALL.len()]);
            let kernels = Kernels::new(machine.gpu.clone());
            let [joined, separate] = joined_and_separate(&kernels, &types[..parts], rows);
            assert!(joined == separate, "{types:?}: {parts} parts, {rows} rows");
            assert!(kernels.join_problems().is_empty(), "{types:?}: {:?}", kernels.join_problems());
        }
    }
}

#[test]
fn refused_kernel_of_several_types_is_replaced_by_a_dispatch_for_each() {
    let simulator = Simulator::start();
    let refusing = Spoiled::on(simulator.clone(), &[("multiply-1-Q8_0-", None)]);
    let types = [(WeightType::Q8_0, 16), (WeightType::Q4K, 16)];
    let kernels = Kernels::new(refusing);
    // At the first use of 2 rows, both ways are compared.
    for (rows, dispatches) in [(1, 2 + 2), (2, 3 + 1 + 2), (1, 2 + 2), (2, 1 + 2)] {
        simulator.take_counts();
        let [joined, separate] = joined_and_separate(&kernels, &types, rows);
        assert_eq!(joined, separate);
        assert_eq!(simulator.take_counts().dispatches, dispatches, "{rows} rows");
    }
    assert_eq!(kernels.join_problems().len(), 1);

    // A refused kernel is not compiled again.
    let (gpu, refused) = Spoiled::counting(simulator, &[("norm", None)]);
    let kernels = Kernels::new(gpu);
    for _ in 0..3 {
        assert!(kernels.get(Kernel::Norm).unwrap_err().to_string().contains("refused"));
    }
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}

#[test]
fn wrong_kernel_of_several_types_is_replaced_by_a_dispatch_for_each() {
    let types = [(WeightType::Q8_0, 16), (WeightType::Q4K, 16)];
    let mistake =
        ("multiply-16-Q8_0-Q4_K", Some(("at -= all.part[0].groups", "at -= all.part[0].groups - 1")));
    let kernels = Kernels::new(Spoiled::start(&[mistake]));
    for (rows, problems) in [(3, 0), (9, 1), (16, 1)] {
        let [joined, separate] = joined_and_separate(&kernels, &types, rows);
        assert_eq!(joined, separate, "{rows} rows");
        assert_eq!(kernels.join_problems().len(), problems, "{rows} rows");
    }
    assert_eq!(kernels.join_problems(), ["multiply-16-Q8_0-Q4_K differs"]);
}

#[test]
fn product_adds_bias_and_residual_at_its_place_and_scales() {
    let machine = Machine::start();
    let gpu = machine.gpu.clone();
    let kernels = Kernels::new(gpu.clone());
    for dtype in [WeightType::Q4_0, WeightType::F16] {
        let (n, k, rows, stride, offset) = (24, 64, 3, 40, 8);
        let (file, _) = weights(dtype, n, k, 1);
        let matrix = Matrix::new(&gpu, dtype, (n, k), &file).unwrap();
        let x = noise(rows * k, 2);
        let (activations, _) = upload(&gpu, &x, k);
        let plain = Buffer::new(&gpu, 4 * rows * n).unwrap();
        let (matrix, scaling) = (&matrix, ResultScaling::NONE);
        let product =
            GpuProduct { matrix, bias: None, out: plain.at_value(0), stride: n, add: false, scaling };
        kernels.multiply(product, &activations, rows).unwrap();
        let plain = plain.read_floats(0, rows * n).unwrap();

        let (bias, before) = (noise(n, 3), noise(rows * stride, 4));
        let bias_buffer = Buffer::with_floats(&gpu, &bias).unwrap();
        let out = Buffer::with_floats(&gpu, &before).unwrap();
        let product =
            GpuProduct { bias: Some(&bias_buffer), out: out.at_value(offset), stride, add: true, ..product };
        kernels.multiply(product, &activations, rows).unwrap();
        let mut expected = before;
        for (row, y) in plain.chunks_exact(n).enumerate() {
            for (col, y) in y.iter().enumerate() {
                expected[row * stride + offset + col] += y + bias[col];
            }
        }
        assert_eq!(bits(&out.read_floats(0, rows * stride).unwrap()), bits(&expected), "{dtype:?}");

        // Scaled: added to a residual stream, or capped as logits are.
        let out = Buffer::with_floats(&gpu, &expected).unwrap();
        let scaling = ResultScaling { scale: 0.6, cap: None };
        kernels
            .multiply(
                GpuProduct { out: out.at_value(offset), bias: None, scaling, ..product },
                &activations,
                rows,
            )
            .unwrap();
        for (row, y) in plain.chunks_exact(n).enumerate() {
            for (col, y) in y.iter().enumerate() {
                let to = &mut expected[row * stride + offset + col];
                *to = y.mul_add(0.6, *to);
            }
        }
        assert_eq!(bits(&out.read_floats(0, rows * stride).unwrap()), bits(&expected), "{dtype:?}");
        let scaling = ResultScaling { scale: 4.0, cap: Some(5.0) };
        let product =
            GpuProduct { bias: None, add: false, out: out.at_value(0), stride: n, scaling, ..product };
        kernels.multiply(product, &activations, rows).unwrap();
        for (capped, y) in out.read_floats(0, rows * n).unwrap().iter().zip(&plain) {
            let expected = 5.0 * (4.0 * f64::from(*y) / 5.0).tanh();
            assert!((f64::from(*capped) - expected).abs() < 3e-6, "{dtype:?}: {capped} {expected}");
        }
    }
}

#[test]
fn table_rows_match_dequantised_weights_times_a_factor() {
    let machine = Machine::start();
    let gpu = machine.gpu.clone();
    let kernels = Kernels::new(gpu.clone());
    for dtype in WeightType::ALL.iter().copied() {
        let (n, k) = (37, 512);
        let (file, values) = weights(dtype, n, k, 1);
        let table = Matrix::new(&gpu, dtype, (n, k), &file).unwrap();
        let tokens: Vec<u32> = [36, 0, 9, 36].into_iter().chain(0..28).collect();
        let ids = Buffer::with_words(&gpu, &tokens).unwrap();
        for rows in (1..=16).chain([ROWS]) {
            machine.set_schedule(Schedule::ALL[rows % Schedule::ALL.len()]);
            let out = Buffer::new(&gpu, 4 * rows * k).unwrap();
            kernels.take_rows(&table, ids.at_byte(0), rows, 1.5, &out).unwrap();
            let out = out.read_floats(0, rows * k).unwrap();
            for (out, token) in out.chunks_exact(k).zip(&tokens) {
                for (a, b) in out.iter().zip(&values[*token as usize * k..]) {
                    let b = 1.5 * b;
                    assert!((a - b).abs() <= 1e-6 * b.abs().max(0.1), "{dtype:?}: {a} {b}");
                }
            }
        }
    }
}
