//! Fit and pair verdicts on a GPU: caches of 16 bits, and predictions in place of costs that were not measured.

use std::path::Path;

use candle_core::quantized::GgmlDType;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::pass_cost::PassCost;
use hunch_core::theory::best_depth;
use hunch_library::fit::{self, Footprint};
use hunch_library::pairs::Pairs;
use hunch_library::types::{CostSource, DraftOffer, MachineMemory, PredictedSpeedup};
use hunch_library::vocabularies::Vocabularies;
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::execution::{Backend, Execution};
use hunch_model::gguf::{Gguf, WeightType};
use hunch_model::metal::costs::{Basis, Chip, PassSize};
use hunch_model::metal::selftest::{GpuTimes, KernelPart};
use hunch_model::spec::ModelSpec;

use crate::support::cpu;
use hunch_testing::idle_gpu::IdleGpu;
use hunch_testing::tiny::{HEAD_DIM, MIXTURE, Tiny, Variant, further};

#[test]
fn cache_on_a_gpu_has_16_bits_unless_candle_runs_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = IdleGpu::tested("idle GPU", None);
    let cache = |tiny: Tiny, compute: &Compute| {
        let gguf = Gguf::read(&tiny.write(folder.path(), "tiny")).unwrap();
        Footprint::on_device(&gguf, compute).unwrap().predicted(500).cache
    };
    let tiny = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() };
    // Layers, keys and values, key heads, their width, rows, bytes.
    assert_eq!(cache(tiny, &gpu), (2 * 2 * 2 * HEAD_DIM * 500 * 2) as u64);
    // No kernel has heads of width 16. candle's buffers have sizes of powers of two.
    let narrow = Tiny { heads: 16, ..tiny };
    assert_eq!(cache(narrow, &gpu), (2 * 2) * (8 * 16 * 500 * 4u64).next_power_of_two());
    let cpu = cpu();
    assert_eq!(cache(tiny, &cpu), cache(tiny, &gpu));
}

#[test]
fn weights_on_a_gpu_count_in_their_type_there() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = IdleGpu::tested("idle GPU", None);
    for (dtype, tied) in [(GgmlDType::Q8_0, true), (GgmlDType::F16, true), (GgmlDType::F16, false)] {
        let path = Tiny { dtype, tied, ..Tiny::default() }.write(folder.path(), "tiny");
        let predicted = Footprint::on_device(&Gguf::read(&path).unwrap(), &gpu).unwrap().predicted(1).weights;
        let model = Decoder::open(&path, &gpu).unwrap();
        assert_eq!(model.backend(), &Backend::Metal);
        let in_file = hunch_core::model::LanguageModel::memory(&model).weights as f64;
        // Rows are padded to tiles, and packed scales take other room.
        let ratio = predicted as f64 / in_file;
        assert!((0.98..1.02).contains(&ratio), "{dtype:?}: {ratio}");
    }
}

/// 256 rows of a prompt have a buffer for each step of the experts.
#[test]
fn memory_on_a_gpu_counts_the_buffers_of_experts() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = IdleGpu::tested("idle GPU", None);
    let machine = MachineMemory { total: 1 << 40, usable: 1 << 40 };
    let other = |tiny: Tiny| {
        let path = Tiny { dtype: GgmlDType::Q8_0, ..tiny }.write(folder.path(), "tiny");
        let gguf = Gguf::read(&path).unwrap();
        let footprint = Footprint::on_device(&gguf, &gpu).unwrap();
        (fit::fit(&footprint, None, 1, machine).other as usize, ModelSpec::from_gguf(&gguf).unwrap())
    };
    let (of_dense, dense) = other(Tiny::default());
    let (of_mixture, mixture) = other(further(("llama", Variant::Experts, 2)));
    let experts = mixture.experts.unwrap();
    // The router's scores, and for each entry: 3 numbers, 4 of its block, gate, up, and output.
    let of_experts = 4 * (experts.count + experts.used * (7 + 2 * experts.n_ff + mixture.n_embd));
    // The buffers of dense layers are as wide as all experts of a row.
    let input = |spec: &ModelSpec| spec.n_embd.max(spec.n_ff) * 29 / 4;
    let of_dense_layers = |spec: &ModelSpec| 4 * 2 * spec.n_ff + input(spec);
    let row = of_experts + of_dense_layers(&mixture) - of_dense_layers(&dense);
    assert_eq!(of_mixture - of_dense, 256 * row);
    // Gate, up and output of the expert for all rows, and its score.
    let (of_shared, spec) = other(further(("qwen2moe", Variant::Plain, 2)));
    let (without, alike) = other(further(MIXTURE));
    let shared = 4 * (2 * spec.experts.unwrap().shared.unwrap() + spec.n_embd + 1);
    let wider = of_dense_layers(&spec) - of_dense_layers(&alike);
    assert_eq!(of_shared - without, 256 * (shared + wider));
}

/// Returns the offer of the model "draft", the second path, to the target, the first.
fn offer(compute: &Compute, paths: [&Path; 2]) -> DraftOffer {
    let pairs = Pairs {
        models: &paths.map(|path| hunch_library::inspect(path).unwrap().entry),
        compute,
        machine: MachineMemory { total: 1 << 40, usable: 1 << 40 },
        heads: None,
        copies: None,
        vocabularies: &Vocabularies::open(None),
        measured: None,
        costs: &|_| None,
    };
    let offers = pairs.offers(paths[0], &[], None).unwrap().offers;
    offers.into_iter().find(|offer| offer.name == "draft").unwrap()
}

fn pass_size(path: &Path) -> PassSize {
    let gguf = Gguf::read(path).unwrap();
    PassSize::of(&gguf, &ModelSpec::from_gguf(&gguf).unwrap())
}

/// Returns the prediction for target and draft, and the sizes of their passes.
fn predicted(folder: &Path, compute: &Compute) -> (PredictedSpeedup, [PassSize; 2]) {
    predicted_of(Tiny { layers: 3, ..Tiny::default() }, folder, compute)
}

/// As [`predicted`], for another target.
fn predicted_of(target: Tiny, folder: &Path, compute: &Compute) -> (PredictedSpeedup, [PassSize; 2]) {
    let dtype = GgmlDType::Q8_0;
    let paths = [
        Tiny { dtype, ..target }.write(folder, "target"),
        Tiny { dtype, layers: 1, ..Tiny::default() }.write(folder, "draft"),
    ];
    let offer = offer(compute, [&paths[0], &paths[1]]);
    (offer.predicted.unwrap(), paths.map(|path| pass_size(&path)))
}

/// Predicts depth and speedup of a pair whose passes have these sizes.
fn best(basis: &Basis, found: PredictedSpeedup, [target, draft]: [PassSize; 2]) -> (usize, f64) {
    let c = basis.pass_ms(draft, 1) / basis.pass_ms(target, 1);
    let cost = PassCost::new(basis.curve(target, MAX_DRAFT + 1)).unwrap();
    best_depth(found.acceptance, c, &cost, MAX_DRAFT)
}

#[test]
fn pair_verdicts_count_the_experts_that_more_rows_read() {
    let folder = tempfile::tempdir().unwrap();
    // Rows of products are free.
    let speed = GpuTimes { product_ms: vec![1e3; 16], product_bytes: 100, memory_gb_s: 1.0 };
    let (gpu, basis) = (IdleGpu::tested("idle GPU", Some(speed.clone())), Basis::Measured(speed));
    let of = |target: Tiny| predicted_of(Tiny { layers: 3, ..target }, folder.path(), &gpu);
    let [(dense, of_dense), (mixture, of_mixture)] = [of(Tiny::default()), of(further(MIXTURE))];
    for (found, sizes) in [(dense, of_dense), (mixture, of_mixture)] {
        let (depth, speedup) = best(&basis, found, sizes);
        assert_eq!((found.depth as usize, found.costs), (depth, CostSource::Gpu));
        assert!((found.speedup / speedup - 1.0).abs() < 1e-6, "{found:?} {speedup}");
    }
    let t = |size, rows| basis.pass_ms(size, rows) / basis.pass_ms(size, 1);
    // All 8 experts instead of 3.
    assert!(t(of_dense[0], 16) < 1.05 && t(of_mixture[0], 16) > 1.5, "{}", t(of_mixture[0], 16));
    assert!(t(of_mixture[0], 2) > 1.2 && t(of_mixture[0], 2) < t(of_mixture[0], 4));
    // Without the growth, the verdict would be another.
    let experts = of_mixture[0].experts.unwrap();
    let of_row = (experts.bytes as f64 * experts.of_layer.share()) as u64;
    let flat = PassSize { bytes: of_mixture[0].bytes + of_row, experts: None, ..of_mixture[0] };
    let (_, without) = best(&basis, mixture, [flat, of_mixture[1]]);
    assert!(without > 1.1 * mixture.speedup, "{without} {}", mixture.speedup);
}

/// `tests/metal/models.rs` counts the dispatches.
#[test]
fn experts_for_all_rows_take_a_dispatch_more_if_they_are_scored() {
    let folder = tempfile::tempdir().unwrap();
    for (architecture, of_layer) in [("qwen3moe", 3), ("granitemoe", 6), ("qwen2moe", 7)] {
        let tiny = further((architecture, Variant::Plain, 2));
        let size = pass_size(&tiny.write(folder.path(), "tiny"));
        assert_eq!(size.experts.unwrap().dispatches, 2 * of_layer, "{architecture}");
    }
}

#[test]
fn pair_verdicts_use_predicted_costs_of_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let speed = GpuTimes { product_ms: vec![1e3; 16], product_bytes: 100, memory_gb_s: 1.0 };
    let chip = Basis::Chip(Chip::named("Apple M4 Max", None).unwrap());
    let products = Basis::Measured(speed.clone());
    let mut speedups = Vec::new();
    for (compute, basis) in [
        (IdleGpu::named("Apple M4 Max"), &chip),
        // Products measured by the self-test come first.
        (IdleGpu::tested("Apple M4 Max", Some(speed)), &products),
    ] {
        assert_eq!(compute.cost_basis(None).as_ref(), Some(basis));
        let (found, sizes) = predicted(folder.path(), &compute);
        let (depth, speedup) = best(basis, found, sizes);
        assert_eq!((found.depth as usize, found.speedup, found.costs), (depth, speedup, CostSource::Gpu));
        speedups.push(speedup);
    }
    // Rows are free there, so a draft of a third of the bytes pays.
    assert!(speedups[1] > 1.2 && speedups[0] < speedups[1], "{speedups:?}");
    // Nothing is predicted for an unknown chip: several rows count as expensive.
    let unknown = IdleGpu::named("unknown GPU");
    assert_eq!(unknown.cost_basis(None), None);
    assert_eq!(predicted(folder.path(), &unknown).0.speedup, 1.0);
    // A chip that is named wins, for any machine.
    let named = Chip::named("M1", None);
    assert_eq!(unknown.cost_basis(named.clone()), named.map(Basis::Chip));
    // A later chip is assumed to have the figures of the last one.
    let last = Chip::named("Apple M5 Pro", None).unwrap();
    let Some(Basis::Chip(later)) = IdleGpu::named("Apple M6 Pro").cost_basis(None) else { panic!("unknown") };
    assert_eq!((later.memory_gb_s, later.assumed_like), (last.memory_gb_s, Some("Apple M5 Pro")));
}

/// Weights whose kernel failed are read in another type, which takes longer.
/// The prediction is for our own kernels. A failed norm moves models to candle's operations.
#[test]
fn pair_verdicts_assume_candle_for_models_without_our_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let ours = IdleGpu::failing("Apple M1", None, &[]);
    assert_eq!(predicted(folder.path(), &ours).0.costs, CostSource::Gpu);
    let candle = IdleGpu::failing("Apple M1", None, &[KernelPart::Norm]);
    assert_eq!(predicted(folder.path(), &candle).0.costs, CostSource::Sizes);
}

#[test]
fn pair_verdicts_count_converted_weights() {
    let folder = tempfile::tempdir().unwrap();
    let as_file = IdleGpu::tested("Apple M1", None);
    let converted =
        IdleGpu::failing("Apple M1", None, &[WeightType::Q4_0, WeightType::Q5_0].map(KernelPart::Product));
    let path = Tiny { dtype: GgmlDType::Q4_0, ..Tiny::default() }.write(folder.path(), "target");
    let gguf = Gguf::read(&path).unwrap();
    let read = |compute: &Compute| Footprint::on_device(&gguf, compute).unwrap().read_by_a_pass as f64;
    // From 4.5 to 8.5 bits, but for the norms.
    let ratio = read(&converted) / read(&as_file);
    assert!((1.8..8.5 / 4.5).contains(&ratio), "{ratio}");
    let model = Decoder::open(&path, &converted).unwrap();
    let counted = hunch_core::model::LanguageModel::memory(&model).read_by_a_pass as f64;
    assert_eq!(counted, read(&converted));
    // A draft of a type that passed becomes cheaper, relative to the target.
    let draft = |dtype| Tiny { dtype, layers: 1, ..Tiny::default() }.write(folder.path(), "draft");
    let target = Tiny { dtype: GgmlDType::Q4_0, layers: 3, ..Tiny::default() }.write(folder.path(), "target");
    let draft = draft(GgmlDType::Q8_0);
    let of = |compute| offer(compute, [&target, &draft]).predicted.unwrap().speedup;
    assert!(of(&converted) >= of(&as_file), "{} {}", of(&converted), of(&as_file));
}

#[test]
fn execution_is_expected_without_running_the_self_test() {
    let folder = tempfile::tempdir().unwrap();
    let path = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() }.write(folder.path(), "tiny");
    let gguf = Gguf::read(&path).unwrap();
    let spec = ModelSpec::from_gguf(&gguf).unwrap();
    // A self-test would wait for its first kernel.
    let (open, gpu) = IdleGpu::gated();
    assert_eq!(Execution::expected(&gguf, &spec, &gpu).backend, Backend::Metal);
    drop(open);
    let Backend::Candle { obstacle } = Execution::of(&gguf, &spec, &gpu).backend else {
        panic!("all kernels are refused")
    };
    assert!(obstacle.unwrap().starts_with("norm failed"));
    assert!(matches!(Execution::expected(&gguf, &spec, &gpu).backend, Backend::Candle { .. }));
}
