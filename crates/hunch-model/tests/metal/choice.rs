//! The choice of an executor when a model is loaded on a device with our kernels.

use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::execution::Backend;
use hunch_model::metal::gpu::Gpu;
use hunch_model::metal::selftest::Workload;

use hunch_testing::simulator::{Counts, Simulator};
use hunch_testing::tiny::Tiny;

#[test]
fn gpu_runs_models_on_our_kernels_and_falls_back_to_candle_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let compute = Compute::on_gpu(simulator.clone(), Workload::SIMULATED, Some(1)).unwrap();
    assert_eq!(compute.name(), "metal");

    let path = Tiny { dtype: GgmlDType::Q4K, layers: 1, ..Tiny::default() }.write(folder.path(), "known");
    let mut known = Decoder::open(&path, &compute).unwrap();
    assert_eq!(known.backend(), &Backend::Metal);
    assert!(known.backend().is_row_invariant());
    simulator.take_counts();
    known.forward(PassInput::chain(&[1, 2, 3], LogitRows::Last)).unwrap();
    assert!(simulator.take_counts().dispatches > 0);

    // Heads of width 16.
    let path = Tiny { heads: 16, layers: 1, ..Tiny::default() }.write(folder.path(), "unknown");
    let mut unknown = Decoder::open(&path, &compute).unwrap();
    let obstacle = Some("there is no kernel for 16 heads of width 16 over 8 key heads".to_owned());
    assert_eq!(unknown.backend(), &Backend::Candle { obstacle });
    assert!(!unknown.backend().is_row_invariant());
    simulator.take_counts();
    unknown.forward(PassInput::chain(&[1, 2, 3], LogitRows::Last)).unwrap();
    assert_eq!(simulator.take_counts(), Counts::default(), "candle's executor dispatches no kernel of ours");
}

/// Otherwise a clock around a prefill pass would stop before the pass is over.
#[test]
fn pass_without_logits_ends_with_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let compute = Compute::on_gpu(gpu, Workload::SIMULATED, Some(1)).unwrap();
    let path = Tiny { dtype: GgmlDType::Q8_0, layers: 1, ..Tiny::default() }.write(folder.path(), "tiny");
    let mut model = Decoder::open(&path, &compute).unwrap();
    // The first pass grows the cache.
    model.forward(PassInput::chain(&[1, 2, 3], LogitRows::None)).unwrap();
    simulator.take_counts();
    for (logits, taps) in [(LogitRows::None, &[][..]), (LogitRows::None, &[0]), (LogitRows::Last, &[])] {
        model.forward(PassInput { taps, ..PassInput::chain(&[1, 2, 3], logits) }).unwrap();
        assert_eq!(simulator.take_counts().waits, 1, "{logits:?}, {taps:?}");
    }
}
