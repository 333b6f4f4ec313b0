//! All kernels compile for NVIDIA's PTX too, where address spaces are real: a pointer into the wrong memory is refused.

use std::collections::HashMap;

use hunch_model::metal::costs;
use hunch_model::metal::delta_net::DELTA_WIDTHS;
use hunch_model::metal::kernels::Kernel;
use hunch_model::metal::matrix::FloatFormat;
use hunch_model::metal::packed::PackedFormat;
use hunch_model::metal::products::{TileRows, WeightKernel};
use hunch_model::metal::selftest::HEAD_WIDTHS;

use hunch_testing::simulator::{build_ptx, build_to_count};

fn all_kernels() -> Vec<Kernel> {
    let mut all = vec![
        Kernel::Norm,
        Kernel::Gate,
        Kernel::Heads,
        Kernel::CopyRows,
        Kernel::Copy,
        Kernel::Choose,
        Kernel::Draw,
        Kernel::Route,
        Kernel::JoinExperts,
        Kernel::Convolve,
    ];
    for format in PackedFormat::ALL {
        all.push(Kernel::TakeRows(format));
    }
    for format in [FloatFormat::F16, FloatFormat::BF16, FloatFormat::F32] {
        all.push(Kernel::TakeFloatRows(format));
    }
    let packed =
        PackedFormat::ALL.into_iter().filter(|format| format.kernel() == *format).map(WeightKernel::Packed);
    let floats = [FloatFormat::F16, FloatFormat::BF16, FloatFormat::F32].map(WeightKernel::Float);
    for part in packed.chain(floats) {
        all.extend(TileRows::ALL.map(|tile| Kernel::Multiply(tile, [Some(part), None, None])));
    }
    let mixed = [PackedFormat::Q4K, PackedFormat::Iq4Nl].map(|format| Some(WeightKernel::Packed(format)));
    let mixed = [mixed[0], Some(floats[0]), mixed[1]];
    all.extend(TileRows::ALL.map(|tile| Kernel::Multiply(tile, mixed)));
    for tile in [1, 4].map(TileRows::of) {
        all.push(Kernel::MultiplyExperts(tile, [mixed[0], mixed[0], None]));
        all.push(Kernel::MultiplyExperts(tile, [mixed[2], mixed[1], None]));
    }
    for width in HEAD_WIDTHS {
        all.extend([1, 2, 4, 8].map(|pairs| Kernel::Attend(width as u32, pairs)));
        all.push(Kernel::Combine(width as u32));
    }
    for width in DELTA_WIDTHS.map(|width| width as u32) {
        all.extend([Kernel::DeltaConvolve, Kernel::DeltaStates, Kernel::DeltaOutput].map(|of| of(width)));
    }
    all
}

#[test]
fn all_kernels_compile() {
    let mut refused = Vec::new();
    for kernel in all_kernels() {
        let source = kernel.source();
        match build_ptx(&source.name, &source.text, &[&source.function]) {
            Ok(path) => {
                let ptx = std::fs::read_to_string(path).unwrap();
                assert!(ptx.contains(&format!(".entry hunch_{}", source.function)), "{}", source.name);
                // Functions that are not there would be found when the kernel is loaded.
                assert!(!ptx.contains(".extern .func"), "{} calls a missing function", source.name);
            }
            Err(message) => refused.push(format!("{}: {message}", source.name)),
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Counts the operations of the longest loop of a kernel. Moves, and reading a half as a float, are free on Apple's
/// GPUs. A product of 8x8 matrices keeps 32 lanes busy for 16 cycles.
fn operations_of_main_loop(ptx: &str) -> f64 {
    let (mut labels, mut loops, mut sums) = (HashMap::new(), Vec::new(), vec![0.0]);
    for line in ptx.lines().map(str::trim) {
        if let Some((label, _)) = line.split_once(':').filter(|_| line.starts_with("$L")) {
            labels.insert(label.to_owned(), sums.len() - 1);
            continue;
        }
        let line =
            line.split_once(' ').filter(|(guard, _)| guard.starts_with('@')).map_or(line, |(_, rest)| rest);
        let operation = line.split_whitespace().next().unwrap_or_default();
        let is_none = operation.is_empty() || operation.starts_with(['.', '/', '{', '}', '(', ')']);
        let cost = match operation {
            _ if is_none || operation.starts_with("mov.") || operation == "cvt.f32.f16" => 0.0,
            "matrix_product" => 16.0,
            // An address and a load.
            "matrix_load" => 2.0,
            _ if operation.contains(".f16x2") => 2.0,
            _ => 1.0,
        };
        let sum = sums[sums.len() - 1] + cost;
        sums.push(sum);
        if operation.starts_with("bra") {
            let to = line.split_whitespace().nth(1).unwrap_or_default().trim_end_matches(';');
            loops.extend(labels.get(to).map(|start| sum - sums[*start]));
        }
    }
    loops.into_iter().fold(0.0, f64::max)
}

#[test]
fn cost_model_has_the_operations_of_the_kernels() {
    for tile in TileRows::ALL {
        let kernel = Kernel::Multiply(tile, [Some(WeightKernel::Packed(PackedFormat::Q4K)), None, None]);
        let path = build_to_count(&kernel.source()).unwrap();
        let of_loop = operations_of_main_loop(&std::fs::read_to_string(path).unwrap());
        // Weights of a lane in the loop: two units of few rows, else 16 values of two tiles.
        let counted = of_loop / if tile.has_matrices() { 16.0 } else { 64.0 };
        let assumed = costs::operations_of_weight(tile);
        println!("{} rows: {counted:.2} operations a weight, {assumed:.2} in the model", tile.rows());
        assert!((counted / assumed - 1.0).abs() < 0.1, "{} rows: {counted} and {assumed}", tile.rows());
    }
}

#[test]
fn compiler_refuses_pointers_into_the_wrong_memory() {
    let text = |statement: &str| {
        format!(
            "#include <metal_stdlib>
using namespace metal;
struct Values {{ uint count; }};
kernel void copy_values(constant Values& p [[buffer(0)]], device const float* x [[buffer(1)]], device float* y [[buffer(2)]],
                        threadgroup float* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {{
  shared[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  {statement}
}}"
        )
    };
    build_ptx("right", &text("if (i < p.count) y[i] = shared[i];"), &["copy_values"]).unwrap();
    for (name, statement) in [
        ("no-space", "float* z = y; z[i] = 1.0f;"),
        ("wrong-space", "device float* z = shared; z[i] = 1.0f;"),
        ("constant-space", "constant float* z = x; y[i] = z[i];"),
        ("constant", "x[i] = 1.0f;"),
    ] {
        assert!(build_ptx(name, &text(statement), &["copy_values"]).is_err(), "{name} compiles");
    }
}
