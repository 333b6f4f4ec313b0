//! Whole models on the simulated GPU against the CPU executor, and the guarantees of the Metal executor. Bits do
//! not depend on the rows of a pass, the schedule or the tree. Dispatches and waits are counted.

use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch_core::model::{
    ChainInput, DraftWindow, LanguageModel, LayerPlan, LogitRows, PassInput, RowLayout, Rows,
};
use hunch_core::token::TokenId;
use hunch_kernels::{WeightType, random_blocks};
use hunch_model::candle_type::CandleType;
use hunch_model::decoder::{Decoder, WarmTimes};
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::gguf::Gguf;
use hunch_model::metal::costs::PassSize;
use hunch_model::metal::gpu::Gpu;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;

use crate::machine::Machine;
use crate::products::weights;
use hunch_testing::simulator::{Counts, Schedule, Simulator};
use hunch_testing::tiny::{Noise, Tiny, VOCABULARY, Variant, WIDTH, further, with_short_chunks};

const TYPES: [GgmlDType; 13] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

pub(crate) fn on_gpu(path: &Path, gpu: &Arc<dyn Gpu>) -> Decoder {
    Decoder::load_on_gpu(&WeightFile::open(path).unwrap(), gpu, usize::MAX).unwrap()
}

pub(crate) fn on_cpu(path: &Path) -> Decoder {
    Decoder::open(path, &Compute::open(DeviceChoice::Cpu, Some(2)).unwrap()).unwrap()
}

pub(crate) fn tokens(count: usize, seed: u64) -> Vec<TokenId> {
    let mut noise = Noise::new(seed);
    (0..count).map(|_| ((noise.value() + 1.0) * 0.5 * (VOCABULARY - 1) as f32) as TokenId).collect()
}

fn bits(rows: &Rows, i: usize) -> Vec<u32> {
    rows.row(i).iter().map(|v| v.to_bits()).collect()
}

pub(crate) fn chain(model: &mut Decoder, tokens: &[TokenId]) -> Rows {
    model.forward(PassInput::chain(tokens, LogitRows::All)).unwrap().logits
}

/// Returns the largest difference, relative to the largest value of its row.
pub(crate) fn worst(ours: &Rows, expected: &Rows) -> f32 {
    assert_eq!(ours.len(), expected.len());
    (0..ours.len()).fold(0f32, |worst, row| {
        let scale = expected.row(row).iter().fold(0f32, |top, v| top.max(v.abs()));
        let off = ours.row(row).iter().zip(expected.row(row)).map(|(a, b)| (a - b).abs() / scale);
        off.fold(worst, |worst, off| if off <= worst { worst } else { off })
    })
}

#[test]
fn logits_match_cpu_executor_for_every_architecture_and_type() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    let types = TYPES.map(|dtype| ("llama", dtype)).into_iter();
    for (architecture, dtype) in types.chain(["qwen2", "qwen3", "smollm3"].map(|a| (a, GgmlDType::Q4K))) {
        let layers = if architecture == "smollm3" { 4 } else { 2 };
        let tiny = Tiny { architecture, dtype, layers, tied: dtype != GgmlDType::Q4_1, ..Tiny::default() };
        let path = tiny.write(folder.path(), "tiny");
        let (mut gpu, mut cpu) = (on_gpu(&path, &machine.gpu), on_cpu(&path));
        let ids = tokens(12, 3);
        let mut both = |step: PassInput<'_>| {
            let (gpu, cpu) = (gpu.forward(step).unwrap(), cpu.forward(step).unwrap());
            let taps = gpu.taps.iter().zip(&cpu.taps).map(|(a, b)| worst(a, b));
            taps.fold(worst(&gpu.logits, &cpu.logits), f32::max)
        };
        let worst = [
            both(PassInput::chain(&ids[..9], LogitRows::All)),
            both(PassInput::chain(&ids[9..10], LogitRows::All)),
            both(PassInput {
                taps: &[0],
                layers: LayerPlan::Exit(1),
                ..PassInput::chain(&ids[10..], LogitRows::Last)
            }),
        ];
        println!("{architecture} {dtype:?}: {worst:.5?}");
        // The cache has 11 bits on the GPU and 24 on the CPU. With quantised weights, that changes codes of
        // activations, which have 7 bits. candle's own CPU kernels are 0.02 to 0.06 from ours for that reason.
        let is_float = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        let bound = if is_float { 1e-3 } else { 5e-2 };
        assert!(worst.iter().all(|worst| *worst < bound), "{architecture} {dtype:?}: {worst:?}");
    }
}

#[test]
fn row_has_same_bits_in_pass_of_any_size_for_every_type() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    for dtype in TYPES {
        let path = Tiny { dtype, layers: 1, ..Tiny::default() }.write(folder.path(), "tiny");
        let mut model = on_gpu(&path, &machine.gpu);
        let (base, ids) = (5, tokens(21, 9));
        chain(&mut model, &ids[..base]);
        let alone: Vec<_> =
            ids[base..].iter().map(|id| bits(&chain(&mut model, std::slice::from_ref(id)), 0)).collect();
        for (rows, schedule) in [(2, 1), (3, 0), (5, 2), (8, 0), (9, 0), (16, 1)] {
            machine.set_schedule(Schedule::ALL[schedule]);
            model.truncate(base).unwrap();
            let together = chain(&mut model, &ids[base..base + rows]);
            for (i, expected) in alone[..rows].iter().enumerate() {
                assert!(&bits(&together, i) == expected, "{dtype:?}: row {i} of {rows}");
            }
        }
        machine.set_schedule(Schedule::default());
    }
}

#[test]
fn tree_rows_match_chains_and_kept_rows_continue_as_chain() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    let path = Tiny { dtype: GgmlDType::Q4_0, ..Tiny::default() }.write(folder.path(), "tiny");
    let mut model = on_gpu(&path, &machine.gpu);
    let ids = tokens(9, 4);
    let (prompt, draft) = ids.split_at(4);
    chain(&mut model, prompt);
    let parents = [None, Some(0), Some(0), Some(2), Some(1)];
    let step = PassInput {
        layout: RowLayout::Tree { parents: &parents },
        ..PassInput::chain(draft, LogitRows::All)
    };
    let tree = model.forward(step).unwrap().logits;
    // The same tree in two passes, as a draft model processes it.
    model.truncate(4).unwrap();
    let layout = RowLayout::Tree { parents: &parents[..3] };
    model.forward(PassInput { layout, ..PassInput::chain(&draft[..3], LogitRows::None) }).unwrap();
    let layout = RowLayout::Custom { since: 4, depths: &[2, 2], visible: &[0b01101, 0b10011] };
    let rest =
        model.forward(PassInput { layout, ..PassInput::chain(&draft[3..], LogitRows::All) }).unwrap().logits;
    for row in 0..2 {
        assert_eq!(bits(&rest, row), bits(&tree, 3 + row), "row {row} of a second pass");
    }
    // Rows 0, 2 and 3 are kept.
    model.keep_rows(4, &[0, 2, 3]).unwrap();
    let after = chain(&mut model, &[7]);
    let mut fresh = on_gpu(&path, &machine.gpu);
    chain(&mut fresh, prompt);
    let branch = chain(&mut fresh, &[draft[0], draft[2], draft[3]]);
    for (row, of_tree) in [0, 2, 3].into_iter().enumerate() {
        assert_eq!(bits(&branch, row), bits(&tree, of_tree), "row {of_tree}");
    }
    assert_eq!(bits(&chain(&mut fresh, &[7]), 0), bits(&after, 0));
}

#[test]
fn growth_and_truncation_keep_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    let path = Tiny { dtype: GgmlDType::Q8_0, layers: 1, ..Tiny::default() }.write(folder.path(), "tiny");
    let ids = tokens(300, 6);
    let mut whole = on_gpu(&path, &machine.gpu);
    let at_once = whole.forward(PassInput::chain(&ids, LogitRows::Last)).unwrap().logits;
    // The capacity grows at 256 rows.
    let mut parts = on_gpu(&path, &machine.gpu);
    parts.forward(PassInput::chain(&ids[..250], LogitRows::None)).unwrap();
    parts.forward(PassInput::chain(&tokens(30, 1), LogitRows::None)).unwrap();
    parts.truncate(250).unwrap();
    let last = parts.forward(PassInput::chain(&ids[250..], LogitRows::Last)).unwrap().logits;
    assert_eq!(bits(&at_once, 0), bits(&last, 0));
    assert!(
        parts.forward(PassInput::chain(&tokens(300, 1), LogitRows::None)).is_err(),
        "the context is full"
    );
}

#[test]
fn forks_have_their_own_cache() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    let path = Tiny { dtype: GgmlDType::Q4K, layers: 1, ..Tiny::default() }.write(folder.path(), "tiny");
    let mut model = on_gpu(&path, &machine.gpu);
    let ids = tokens(5, 2);
    let first = chain(&mut model, &ids);
    let mut fork = model.fork();
    assert_eq!(fork.cache_len(), 0);
    let again = fork.forward(PassInput::chain(&ids, LogitRows::All)).unwrap().logits;
    assert_eq!(bits(&again, 4), bits(&first, 4));
    assert_eq!(model.memory().cache, 2 * 256 * 2 * WIDTH / 2);
}

/// A pass of a model of 28 layers takes at most 300 dispatches. One wait reads its logits.
#[test]
fn pass_has_ten_dispatches_a_layer_and_one_wait() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let layers = 4;
    for dtype in [GgmlDType::Q4K, GgmlDType::F16] {
        let path = Tiny { dtype, layers, ..Tiny::default() }.write(folder.path(), "tiny");
        let mut model = on_gpu(&path, &gpu);
        chain(&mut model, &tokens(3, 1));
        for rows in [1, 5, 16] {
            simulator.take_counts();
            chain(&mut model, &tokens(rows, 2));
            let expected = Counts { dispatches: 10 * layers + 3, waits: 1 };
            assert_eq!(simulator.take_counts(), expected, "{dtype:?}, {rows} rows");
        }
    }
    assert!(10 * 28 + 3 <= 300);
}

/// Growing the cache waits only for what would take much memory twice.
#[test]
fn pass_that_grows_the_cache_has_one_wait() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let path = Tiny { layers: 4, ..Tiny::default() }.write(folder.path(), "tiny");
    let mut model = on_gpu(&path, &gpu);
    model.forward(PassInput::chain(&tokens(250, 1), LogitRows::None)).unwrap();
    for rows in [4, 5] {
        simulator.take_counts();
        let bytes = model.memory().cache;
        chain(&mut model, &tokens(rows, 2));
        assert_eq!(simulator.take_counts().waits, 1, "{rows} rows");
        assert_eq!(model.memory().cache > bytes, rows == 5, "{rows} rows");
    }
}

/// The first passes of an answer are weighed against these times.
#[test]
fn passes_are_timed_after_the_warm_up() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    let path = Tiny { dtype: GgmlDType::Q8_0, layers: 1, ..Tiny::default() }.write(folder.path(), "tiny");
    let mut model = on_gpu(&path, &machine.gpu);
    let ids = tokens(3, 1);
    let before = chain(&mut model, &ids);
    let is_measured = |times: WarmTimes| times.plain_ms > 0.0 && times.row.is_some_and(f64::is_finite);
    model.warm_up().unwrap();
    assert!(is_measured(model.time_passes().unwrap()));
    assert_eq!(model.cache_len(), 3);
    model.truncate(2).unwrap();
    assert_eq!(bits(&chain(&mut model, &ids[2..]), 0), bits(&before, 2));
    let cpu = on_cpu(&path);
    cpu.warm_up().unwrap();
    assert!(is_measured(cpu.time_passes().unwrap()));
}

/// Every architecture with kernels, with its variants, in a type of weights.
fn all_architectures(dtype: GgmlDType) -> impl Iterator<Item = Tiny> {
    let first = ["llama", "qwen2", "qwen3"].map(|architecture| Tiny { architecture, ..Tiny::default() });
    let smollm3 = Tiny { architecture: "smollm3", layers: 4, ..Tiny::default() };
    let further = with_short_chunks().map(further);
    let all = first.into_iter().chain([smollm3]).chain(further);
    all.map(move |tiny| Tiny { dtype, ..tiny })
}

#[test]
fn architectures_match_cpu_executor() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    for tiny in all_architectures(GgmlDType::F32) {
        let path = tiny.write(folder.path(), "tiny");
        let (mut gpu, mut cpu) = (on_gpu(&path, &machine.gpu), on_cpu(&path));
        let ids = tokens(23, 3);
        let last = tiny.layers - 1;
        let mut both = |step: PassInput<'_>| {
            let len = gpu.cache_len();
            let (on_gpu, on_cpu) = (gpu.forward(step).unwrap(), cpu.forward(step).unwrap());
            if !matches!(step.layers, LayerPlan::All) {
                // Layers that did not run have no keys and values of these rows.
                gpu.truncate(len).unwrap();
                cpu.truncate(len).unwrap();
            }
            let taps = on_gpu.taps.iter().zip(&on_cpu.taps).map(|(a, b)| worst(a, b));
            taps.fold(worst(&on_gpu.logits, &on_cpu.logits), f32::max)
        };
        let worst = [
            both(PassInput::chain(&ids[..20], LogitRows::All)),
            both(PassInput {
                layers: LayerPlan::Skip(&[0]),
                ..PassInput::chain(&ids[20..21], LogitRows::All)
            }),
            both(PassInput {
                layers: LayerPlan::Exit(1),
                taps: &[0],
                ..PassInput::chain(&ids[20..], LogitRows::Last)
            }),
            both(PassInput { taps: &[0, last], ..PassInput::chain(&ids[20..], LogitRows::Last) }),
        ];
        println!("{} {:?}: {worst:.5?}", tiny.architecture, tiny.variant);
        // The cache has 11 bits on the GPU. Activations of quantised weights have 8 on both, so small differences grow.
        let bound = if tiny.variant == Variant::Fp4 { 5e-2 } else { 1e-3 };
        assert!(worst.iter().all(|worst| *worst < bound), "{tiny:?}: {worst:?}");
    }
}

#[test]
fn architectures_have_the_same_bits_alone_in_chains_and_in_trees() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    for tiny in all_architectures(GgmlDType::Q4_0) {
        let path = tiny.write(folder.path(), "tiny");
        let mut model = on_gpu(&path, &machine.gpu);
        let ids = tokens(17, 4);
        // Longer than the window.
        let (prompt, draft) = ids.split_at(12);
        chain(&mut model, prompt);
        let alone: Vec<_> =
            draft.iter().map(|id| bits(&chain(&mut model, std::slice::from_ref(id)), 0)).collect();
        for (rows, schedule) in [(2, 1), (5, 2)] {
            machine.set_schedule(Schedule::ALL[schedule]);
            model.truncate(prompt.len()).unwrap();
            let together = chain(&mut model, &draft[..rows]);
            for (i, expected) in alone[..rows].iter().enumerate() {
                assert!(&bits(&together, i) == expected, "{tiny:?}: row {i} of {rows}");
            }
        }
        machine.set_schedule(Schedule::default());
        // A tree: rows 0, 1 and 3 are the chain, with another branch between them.
        model.truncate(prompt.len()).unwrap();
        let tree_tokens = [draft[0], draft[1], 99, draft[2], 98];
        let parents = [None, Some(0), Some(0), Some(1), Some(2)];
        let layout = RowLayout::Tree { parents: &parents };
        let tree = PassInput { layout, ..PassInput::chain(&tree_tokens, LogitRows::All) };
        let tree = model.forward(tree).unwrap().logits;
        for (row, expected) in [0, 1, 3].into_iter().zip(&alone) {
            assert!(&bits(&tree, row) == expected, "{tiny:?}: row {row} of a tree");
        }
        // Rollback to the chain. Its next row has the bits of before.
        model.keep_rows(prompt.len(), &[0, 1, 3]).unwrap();
        assert!(bits(&chain(&mut model, &draft[3..4]), 0) == alone[3], "{tiny:?}: after a tree");
    }
}

/// Returns the dispatches of a pass. A short convolution takes two less than attention, a gated delta net as many. Experts take three more in a
/// layer, an expert that all rows use three more, and its score one.
fn dispatches(tiny: &Tiny) -> usize {
    let dense = (0..tiny.layers).filter(|&layer| !tiny.has_experts_in(layer)).count();
    let of_experts = match tiny.architecture {
        "glm4moe" | "granitemoe" | "llama4" | "bailingmoe2" => 16,
        "qwen2moe" | "qwen35moe" | "qwen3next" => 17,
        // A dense network next to them takes eight more.
        "gemma4" => 21,
        _ => 13,
    };
    let convolutions = (0..tiny.layers).filter(|&layer| tiny.has_convolution(layer)).count();
    // Embeddings that layers have of their own.
    let embeddings = if tiny.variant == Variant::PerLayer { 4 + 4 * tiny.layers } else { 0 };
    10 * dense + of_experts * (tiny.layers - dense) + 3 - 2 * convolutions + embeddings
}

/// Norms after a part of a layer take no dispatch of their own.
#[test]
fn architectures_take_ten_dispatches_a_layer_and_few_more_with_experts() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    for tiny in all_architectures(GgmlDType::Q4_0) {
        let path = tiny.write(folder.path(), "tiny");
        let mut model = on_gpu(&path, &gpu);
        // The first pass of a size may compare joined products with separate ones.
        chain(&mut model, &tokens(2, 1));
        simulator.take_counts();
        chain(&mut model, &tokens(2, 2));
        let expected = Counts { dispatches: dispatches(&tiny), waits: 1 };
        let gguf = Gguf::read(&path).unwrap();
        let size = PassSize::of(&gguf, &ModelSpec::from_gguf(&gguf).unwrap());
        let of_experts = size.experts.map_or(0, |experts| experts.dispatches);
        assert_eq!(
            10 * size.layers - 2 * size.convolutions + 3 + of_experts + size.embedding_dispatches,
            expected.dispatches,
            "{tiny:?}"
        );
        let counts = simulator.take_counts();
        assert_eq!(counts, expected, "{tiny:?}");
        let Tiny { architecture, variant, layers, .. } = tiny;
        let Counts { dispatches, waits } = counts;
        println!(
            "figure: pass: {architecture} {variant:?}, {layers} layers: {dispatches} dispatches, {waits} wait"
        );
    }
}

/// Queries, keys and values of different types, and so gates and ups, with biases or norms of heads. Products with one
/// input are a dispatch.
#[test]
fn files_of_mixed_types_take_ten_dispatches_a_layer() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let types = [
        ("attn_q", WeightType::Q4K),
        ("attn_k", WeightType::Q6K),
        ("attn_v", WeightType::F16),
        ("ffn_gate", WeightType::Q5K),
        ("ffn_up", WeightType::Q8_0),
    ];
    for architecture in ["qwen2", "qwen3"] {
        let tiny = Tiny { architecture, dtype: GgmlDType::Q4K, ..Tiny::default() };
        let floats = WeightFile::open(&tiny.write(folder.path(), "one-type")).unwrap();
        let names = (0..tiny.layers).flat_map(|layer| types.map(|(name, dtype)| (layer, name, dtype)));
        let writer = names.fold(tiny.writer(), |writer, (layer, name, dtype)| {
            let name = format!("blk.{layer}.{name}.weight");
            let [n, k] = floats.gguf().tensors[&name].shape[..] else { panic!("{name} is no matrix") };
            let (data, _) = weights(dtype, n, k, 5);
            writer.without(&name).raw_tensor(&name, &[k as u64, n as u64], dtype.number(), None, data)
        });
        let path = folder.path().join(format!("{architecture}-mixed.gguf"));
        std::fs::write(&path, writer.bytes()).unwrap();
        let (mut model, mut cpu) = (on_gpu(&path, &gpu), on_cpu(&path));
        let ids = tokens(16, 3);
        let off = worst(&chain(&mut model, &ids[..3]), &chain(&mut cpu, &ids[..3]));
        assert!(off < 5e-2, "{architecture}: {off}");
        for rows in [1, 2, 5, 16] {
            // The first pass compares the joined products with separate ones.
            chain(&mut model, &ids[..rows]);
            simulator.take_counts();
            chain(&mut model, &ids[..rows]);
            let expected = Counts { dispatches: 10 * tiny.layers + 3, waits: 1 };
            assert_eq!(simulator.take_counts(), expected, "{architecture}, {rows} rows");
        }
    }
}

/// A prompt over several spans of attention, of which windows leave out all but the last.
#[test]
fn long_contexts_of_windows_and_joined_norms_match_cpu_executor() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    for tiny in
        [("gemma2", Variant::Window, 3), ("olmo2", Variant::Window, 5), ("phi3", Variant::Longrope, 2)]
    {
        let tiny = Tiny { layers: 2, ..further(tiny) };
        let path = tiny.write(folder.path(), "tiny");
        let (mut gpu, mut cpu) = (on_gpu(&path, &machine.gpu), on_cpu(&path));
        let ids = tokens(300, 8);
        for model in [&mut gpu, &mut cpu] {
            model.forward(PassInput::chain(&ids[..290], LogitRows::None)).unwrap();
        }
        let worst = worst(&chain(&mut gpu, &ids[290..]), &chain(&mut cpu, &ids[290..]));
        assert!(worst < 1e-3, "{tiny:?}: {worst}");
    }
}

/// Drafts that read the first and the last tokens of a prompt over several spans. Tokens that the device chooses one
/// after the other see the same.
#[test]
fn passes_with_a_draft_window_match_cpu_executor() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    for tiny in [Tiny::default(), Tiny { layers: 2, ..further(("gemma2", Variant::Window, 3)) }] {
        let path = tiny.write(folder.path(), "tiny");
        for window in [24, 150] {
            let window = Some(DraftWindow::new(window).unwrap());
            let (mut gpu, mut cpu) = (on_gpu(&path, &machine.gpu), on_cpu(&path));
            let ids = tokens(300, 8);
            for model in [&mut gpu, &mut cpu] {
                model
                    .forward(PassInput { window, ..PassInput::chain(&ids[..290], LogitRows::None) })
                    .unwrap();
            }
            let step = PassInput { window, ..PassInput::chain(&ids[290..], LogitRows::All) };
            let together = gpu.forward(step).unwrap().logits;
            let worst = worst(&together, &cpu.forward(step).unwrap().logits);
            assert!(worst < 1e-3, "{tiny:?}: {worst}");
            gpu.truncate(290).unwrap();
            for (row, id) in ids[290..].iter().enumerate() {
                let alone = gpu
                    .forward(PassInput { window, ..PassInput::chain(&[*id], LogitRows::All) })
                    .unwrap()
                    .logits;
                assert_eq!(bits(&alone, 0), bits(&together, row), "{tiny:?}: row {row}");
            }
            gpu.truncate(290).unwrap();
            let guessed =
                gpu.device_chain(ChainInput { window, ..ChainInput::new(&ids[290..], 4) }).unwrap().unwrap();
            gpu.truncate(290).unwrap();
            let mut next = ids[290..].to_vec();
            for (at, token) in guessed.tokens.iter().enumerate() {
                let logits = gpu
                    .forward(PassInput { window, ..PassInput::chain(&next, LogitRows::Last) })
                    .unwrap()
                    .logits;
                assert_eq!(bits(&logits, 0), bits(&guessed.logits, at), "{tiny:?}: token {at} of a chain");
                next = vec![*token];
            }
        }
    }
}

/// Types that candle cannot read: i-quants, ternary types, FP4, Q1_0 and Q2_0.
#[test]
fn models_of_types_with_code_tables_match_cpu_executor() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::start();
    for dtype in WeightType::ALL.iter().copied().filter(|dtype| dtype.candle().is_none()) {
        // Matrices alone, joined with others of their type, and joined with another type.
        let names = ["attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        let tiny = Tiny { layers: 1, ..Tiny::default() };
        let floats = WeightFile::open(&tiny.write(folder.path(), "floats")).unwrap();
        let writer = names.iter().fold(tiny.writer(), |writer, name| {
            let name = format!("blk.0.{name}.weight");
            let [n, k] = floats.gguf().tensors[&name].shape[..] else { panic!("{name} is no matrix") };
            let data = random_blocks(dtype, n * k / dtype.block_size(), 0.002, 5);
            writer.without(&name).raw_tensor(&name, &[k as u64, n as u64], dtype.number(), None, data)
        });
        let path = folder.path().join(format!("{dtype}.gguf"));
        std::fs::write(&path, writer.bytes()).unwrap();
        let (mut gpu, mut cpu) = (on_gpu(&path, &machine.gpu), on_cpu(&path));
        let ids = tokens(7, 3);
        let together = chain(&mut gpu, &ids);
        let off = worst(&together, &chain(&mut cpu, &ids));
        println!("{dtype}: {off:.5}");
        assert!(off < 5e-2, "{dtype}: {off}");
        gpu.truncate(0).unwrap();
        for (row, id) in ids.iter().enumerate() {
            assert_eq!(bits(&chain(&mut gpu, &[*id]), 0), bits(&together, row), "{dtype}: row {row}");
        }
    }
}
