//! The simulator finds planted mistakes: missing and unreachable barriers, memory outside of buffers, reads
//! before a write, and text that Metal's compiler would refuse.

use std::sync::Arc;

use hunch_kernels::RowMask;
use hunch_model::metal::gpu::{Argument, Buffer, Gpu, Grid};

use crate::reference::noise;
use crate::rows::{bits, context};
use crate::selftest::{Mistake, Spoiled};
use hunch_testing::simulator::{Schedule, Simulator, build_in};
use hunch_testing::translate::to_cpp;

/// Reverses 64 numbers through threadgroup memory. `BARRIER` is replaced.
const REVERSE: &str = "#include <metal_stdlib>
using namespace metal;
kernel void reverse(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                    threadgroup float* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
  shared[i] = x[i];
  BARRIER
  y[i] = shared[63 - i];
}";

/// Sums a value over the lanes of a simdgroup, some of which may take part in another operation.
const SUMS: &str = "#include <metal_stdlib>
using namespace metal;
kernel void sums(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
  if (i % 32 < LANES) y[i] = simd_sum(x[i]); else y[i] = simd_max(x[i]);
}";

/// Runs a kernel over 64 numbers once for each schedule.
fn run(name: &str, text: &str, output: usize) -> Vec<Result<Vec<u32>, String>> {
    let simulator = Simulator::start();
    let kernel = simulator.compile_all(name, text, &[name])[0];
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let x = Buffer::with_floats(&gpu, &x).unwrap();
    let grid = Grid { groups: [1, 1, 1], threads: 64, scratch: 256 };
    let mut out = Vec::new();
    for schedule in Schedule::ALL {
        simulator.set_schedule(schedule);
        let y = Buffer::new(&gpu, output).unwrap();
        let arguments = [x.input(), Argument::Output(y.id(), 0)];
        out.push(match gpu.dispatch(kernel, &arguments, grid) {
            Ok(()) => Ok(y.read_floats(0, output / 4).unwrap().into_iter().map(f32::to_bits).collect()),
            Err(e) => Err(e.to_string()),
        });
    }
    out
}

fn reversed() -> Vec<u32> {
    (0..64).rev().map(|i| (i as f32).to_bits()).collect()
}

#[test]
fn barrier_makes_all_schedules_agree() {
    let text = REVERSE.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_threadgroup);");
    for result in run("reverse", &text, 256) {
        assert_eq!(result.unwrap(), reversed());
    }
}

#[test]
fn finds_missing_barrier() {
    for weaker in ["", "simdgroup_barrier(mem_flags::mem_threadgroup);"] {
        let wrong = run("reverse", &REVERSE.replace("BARRIER", weaker), 256);
        assert!(wrong.iter().any(|result| result.as_ref().unwrap() != &reversed()), "\"{weaker}\" passes");
    }
}

#[test]
fn finds_barrier_that_some_threads_miss() {
    let text = REVERSE.replace("BARRIER", "if (i < 40) threadgroup_barrier(mem_flags::mem_threadgroup);");
    for result in run("reverse", &text, 256) {
        assert!(result.unwrap_err().contains("not reached by all of its threads"));
    }
}

#[test]
fn finds_operation_of_part_of_a_simdgroup() {
    for result in run("sums", &SUMS.replace("LANES", "20"), 256) {
        assert!(result.unwrap_err().contains("different operations"));
    }
    for result in run("sums", &SUMS.replace("LANES", "32"), 256) {
        let half: f32 = (0..32).map(|i| i as f32).sum();
        assert_eq!(result.unwrap()[..32], [half.to_bits(); 32]);
    }
}

#[test]
#[should_panic(expected = "the simulator ended")]
fn finds_write_past_the_end_of_a_buffer() {
    let text = REVERSE.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_threadgroup);");
    run("reverse", &text, 128);
}

#[test]
fn compiler_refuses_invalid_metal_code() {
    let refused = [
        ("undeclared", "threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = gone;"),
        ("constant", "x[i] = 1.0f;"),
        ("matrix", "simdgroup_half8x8 m; simdgroup_load(m, shared, 8);"),
        ("vector", "float4 v = float4(1.0f, 2.0f); y[i] = v.x;"),
    ];
    for (name, statement) in refused {
        let cpp = to_cpp(&REVERSE.replace("BARRIER", statement), &["reverse"]);
        assert!(build_in(name, &cpp, &["-shared", "-fPIC"]).is_err(), "{name} compiles");
    }
}

/// Attention without one of its barriers, and with tree rows that share a list of slots.
#[test]
fn finds_mistakes_in_shared_sections_of_attention() {
    let (rows, group, width) = (5, 6, 64);
    let q = noise(rows * group * width, 12);
    let tree = RowMask::tree(200, &[None, Some(0), Some(0), Some(2), Some(1)]).unwrap();
    let attend = |schedule: Schedule, mistakes: &[Mistake]| {
        let simulator = Simulator::start();
        simulator.set_schedule(schedule);
        let context = context(&Spoiled::on(simulator, mistakes), group, 1, width, 256);
        bits(&context.attention(&context.cache, &q, &tree).floats.read_floats(0, q.len()).unwrap())
    };
    let right = attend(Schedule::default(), &[]);
    let is_found = |from: &'static str, to: &'static str| {
        Schedule::ALL.iter().any(|schedule| attend(*schedule, &[("attend-", Some((from, to)))]) != right)
    };
    assert!(!is_found("threadgroup_barrier(", "threadgroup_barrier("));
    const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);\n";
    assert!(is_found(
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n\n      // Scores",
        "\n      // Scores"
    ));
    assert!(is_found(BARRIER, "simdgroup_barrier(mem_flags::mem_threadgroup);\n"));
    assert!(is_found("first_row + turn, from_key + key", "first_row, from_key + key"));
}

#[test]
#[should_panic(expected = "which is bound as an input")]
fn buffer_that_is_written_must_be_bound_as_an_output() {
    let text = REVERSE.replace("BARRIER", "threadgroup_barrier(mem_flags::mem_threadgroup);");
    let simulator = Simulator::start();
    let kernel = simulator.compile_all("reverse", &text, &["reverse"])[0];
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let (x, y) = (Buffer::with_floats(&gpu, &[0.0; 64]).unwrap(), Buffer::new(&gpu, 256).unwrap());
    let grid = Grid { groups: [1, 1, 1], threads: 64, scratch: 256 };
    gpu.dispatch(kernel, &[x.input(), y.input()], grid).unwrap();
}
