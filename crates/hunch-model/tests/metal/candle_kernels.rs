//! The simulator runs kernels that are known to be right on Apple GPUs: candle's quantised products.
//!
//! Their text is that of the crate in cargo's registry. It is not part of this repository.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hunch_kernels::WeightType;
use hunch_model::metal::gpu::{Argument, Buffer, Gpu, Grid};

use crate::products::weights;
use crate::reference::noise;
use hunch_testing::simulator::{Schedule, Simulator};

/// Types, their names in kernels, and threads and weight rows of a group of the product with one row, if candle's host
/// code dispatches one.
///
/// The last two follow `call_quantized_matmul_mv_t` of candle-metal-kernels. Types that candle's own tensors do not
/// have are in its file all the same.
const TYPES: [(WeightType, &str, Option<(u32, usize)>); 22] = [
    (WeightType::Q4_0, "q4_0", Some((64, 8))),
    (WeightType::Q4_1, "q4_1", Some((64, 8))),
    (WeightType::Q5_0, "q5_0", Some((64, 8))),
    (WeightType::Q5_1, "q5_1", Some((64, 8))),
    (WeightType::Q8_0, "q8_0", Some((64, 8))),
    (WeightType::Q2K, "q2_K", Some((64, 8))),
    (WeightType::Q3K, "q3_K", Some((64, 4))),
    (WeightType::Q4K, "q4_K", Some((32, 4))),
    (WeightType::Q5K, "q5_K", Some((64, 4))),
    (WeightType::Q6K, "q6_K", Some((64, 2))),
    (WeightType::F16, "f16", Some((32, 1))),
    (WeightType::F32, "f32", Some((32, 1))),
    (WeightType::BF16, "bf16", None),
    (WeightType::Iq2Xxs, "iq2_xxs", None),
    (WeightType::Iq2Xs, "iq2_xs", None),
    (WeightType::Iq3Xxs, "iq3_xxs", None),
    (WeightType::Iq3S, "iq3_s", None),
    (WeightType::Iq2S, "iq2_s", None),
    (WeightType::Iq1S, "iq1_s", None),
    (WeightType::Iq1M, "iq1_m", None),
    (WeightType::Iq4Nl, "iq4_nl", None),
    (WeightType::Iq4Xs, "iq4_xs", None),
];

/// Reads `quantized.metal` of the version of candle-metal-kernels that Cargo.lock names.
fn quantised_kernels() -> String {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let package =
        metadata["packages"].as_array().unwrap().iter().find(|p| p["name"] == "candle-metal-kernels");
    let manifest = package.unwrap()["manifest_path"].as_str().unwrap().to_owned();
    let path = Path::new(&manifest).with_file_name("src").join("metal_src/quantized.metal");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Takes out what these tests do not run and clang does not take.
fn for_simulator(text: &str) -> String {
    // Flash attention has arrays in threadgroup memory, which only a compiler for Metal can place.
    let start = text.find("typedef void (flash_attn_ext_f16_t)(").unwrap();
    let last = text.rfind("kernel flash_attn_ext_f16_t").unwrap();
    let end = last + text[last..].find('\n').unwrap();
    // The simulator has bfloat16, as Macs with macOS 14 do.
    format!("#define __HAVE_BFLOAT__\n{}{}", &text[..start], &text[end..])
}

fn words(wide: &[u64], narrow: &[u32]) -> Vec<Vec<u32>> {
    let wide = wide.iter().map(|w| vec![*w as u32, (*w >> 32) as u32]);
    wide.chain(narrow.iter().map(|n| vec![*n])).collect()
}

#[test]
fn candles_products_match_f64_for_every_type() {
    let functions = |(_, name, of_one): &(WeightType, &str, Option<_>)| {
        let one = of_one.map(|_| format!("kernel_mul_mv_{name}_f32"));
        one.into_iter().chain([format!("kernel_mul_mm_{name}_f32")]).collect::<Vec<String>>()
    };
    let functions: Vec<String> = TYPES.iter().flat_map(functions).collect();
    let functions: Vec<&str> = functions.iter().map(String::as_str).collect();
    let simulator = Simulator::start();
    let compiled = simulator.compile_all("candle", &for_simulator(&quantised_kernels()), &functions);
    let kernel = |name: String| compiled[functions.iter().position(|f| *f == name).unwrap()];
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let (n, k, m) = (128, 512, 5);
    let x = noise(m * k, 5);
    let x_buffer = Buffer::with_floats(&gpu, &x).unwrap();
    for (dtype, name, of_one) in TYPES {
        let (bytes, values) = weights(dtype, n, k, 7);
        let row_bytes = (bytes.len() / n) as u64;
        let buffer = Buffer::with_bytes(&gpu, &bytes).unwrap();
        let is_float = matches!(dtype, WeightType::F16 | WeightType::F32);
        let size = row_bytes / k as u64;
        let (k64, n64, m64) = (k as u64, n as u64, m as u64);
        // ne00, ne01, ne02, nb00, nb01, nb02, ne10, ne11, ne12, nb10, nb11, nb12, ne0, ne1, r2, r3.
        let strides = [if is_float { size } else { 0 }, row_bytes, row_bytes * n64];
        let vector = [
            k64,
            n64,
            1,
            strides[0],
            strides[1],
            strides[2],
            k64,
            m64,
            1,
            4,
            4 * k64,
            4 * k64 * m64,
            n64,
            m64,
        ];
        // ne00, ne02, nb01, nb02, nb03, ne12, nb10, nb11, nb12, nb13, ne0, ne1, r2, r3.
        let matrix = [
            k64,
            1,
            strides[1],
            strides[2],
            strides[2],
            1,
            4,
            4 * k64,
            4 * k64 * m64,
            4 * k64 * m64,
            n64,
            m64,
        ];
        let of_vector = |(threads, rows): (u32, usize)| Grid {
            groups: [n.div_ceil(rows) as u32, if is_float { m.div_ceil(4) } else { m } as u32, 1],
            threads,
            scratch: 0,
        };
        let of_matrix =
            Grid { groups: [m.div_ceil(32) as u32, n.div_ceil(64) as u32, 1], threads: 128, scratch: 8192 };
        let one = of_one.map(|one| {
            let kernel = kernel(format!("kernel_mul_mv_{name}_f32"));
            (kernel, words(&vector, &[1, 1]), of_vector(one), 1e-6)
        });
        // The matrix kernels hold weights as halves or as bfloat16, and so they do the activations of the latter.
        let bound = if dtype == WeightType::BF16 { 4e-3 } else { 3e-4 };
        let many = (kernel(format!("kernel_mul_mm_{name}_f32")), words(&matrix, &[1, 1]), of_matrix, bound);
        for (kernel, constants, grid, bound) in one.into_iter().chain([many]) {
            let mut of_type = 0.0f64;
            for schedule in Schedule::ALL {
                simulator.set_schedule(schedule);
                let out = Buffer::new(&gpu, 4 * m * n).unwrap();
                let mut arguments = vec![buffer.input(), x_buffer.input(), out.output()];
                arguments.extend(constants.iter().map(|c| Argument::Constants(c)));
                gpu.dispatch(kernel, &arguments, grid).unwrap();
                let y = out.read_floats(0, m * n).unwrap();
                let mut worst = 0.0f64;
                for (row, x) in x.chunks_exact(k).enumerate() {
                    for (col, w) in values.chunks_exact(k).enumerate() {
                        let parts = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let (exact, magnitude) = (parts().sum::<f64>(), parts().map(f64::abs).sum::<f64>());
                        let error = (f64::from(y[row * n + col]) - exact).abs() / magnitude;
                        worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
                    }
                }
                assert!(worst < bound, "{name} {schedule:?}: {worst:e}");
                of_type = of_type.max(worst);
            }
            let product = if bound == 1e-6 { "a row" } else { "a matrix" };
            println!("figure: candle: {name}, product of {product}: {of_type:.1e}");
        }
    }
}
