//! The self-test on the simulated GPU: it passes there, and finds wrong kernels that are planted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::quantized::GgmlDType;
use hunch_core::model::{ChainInput, LanguageModel, LogitRows, PassInput};
use hunch_error::{Error, Result};
use hunch_kernels::WeightType;
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, KvType, SELF_TEST_FILE};
use hunch_model::execution::Backend;
use hunch_model::metal::gpu::{Argument, BufferId, Gpu, Grid, KernelId, KernelSource};
use hunch_model::metal::kernels::Kernels;
use hunch_model::metal::selftest::{MachineId, SelfTest, SelfTestRecord, Workload};

use crate::machine::Machine;
use hunch_testing::simulator::Simulator;
use hunch_testing::tiny::{HEAD_DIM, Tiny, Variant, further};

/// A kernel to spoil: the start of its name, and a piece of its text with the replacement. `None` refuses it.
pub(crate) type Mistake = (&'static str, Option<(&'static str, &'static str)>);

/// Simulated GPU whose compiler spoils some kernels.
pub(crate) struct Spoiled {
    inner: Arc<Simulator>,
    mistakes: Vec<Mistake>,
    /// Number of refused compilations.
    refused: Arc<AtomicUsize>,
}

impl Spoiled {
    pub(crate) fn start(mistakes: &[Mistake]) -> Arc<dyn Gpu> {
        Self::on(Simulator::start(), mistakes)
    }

    pub(crate) fn on(inner: Arc<Simulator>, mistakes: &[Mistake]) -> Arc<dyn Gpu> {
        Self::counting(inner, mistakes).0
    }

    /// Also returns the number of refused compilations.
    pub(crate) fn counting(inner: Arc<Simulator>, mistakes: &[Mistake]) -> (Arc<dyn Gpu>, Arc<AtomicUsize>) {
        let refused = Arc::<AtomicUsize>::default();
        (Arc::new(Self { inner, mistakes: mistakes.to_vec(), refused: refused.clone() }), refused)
    }
}

impl Gpu for Spoiled {
    fn name(&self) -> String {
        "spoiled GPU".into()
    }
    fn compile(&self, source: &KernelSource) -> Result<KernelId> {
        let mut source = source.clone();
        for (name, mistake) in &self.mistakes {
            if !source.name.starts_with(name) {
                continue;
            }
            let Some((from, to)) = mistake else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Error::Device { device: "metal", reason: "refused".into() });
            };
            assert!(source.text.contains(from), "{name} has no {from}");
            source.text = source.text.replace(from, to);
        }
        self.inner.compile(&source)
    }
    fn allocate(&self, bytes: usize) -> Result<BufferId> {
        self.inner.allocate(bytes)
    }
    fn release(&self, buffer: BufferId) {
        self.inner.release(buffer);
    }
    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<()> {
        self.inner.write(buffer, offset, bytes)
    }
    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<()> {
        self.inner.read(buffer, offset, out)
    }
    fn dispatch(&self, kernel: KernelId, arguments: &[Argument<'_>], grid: Grid) -> Result<()> {
        self.inner.dispatch(kernel, arguments, grid)
    }
    fn wait(&self) -> Result<()> {
        self.inner.wait()
    }
}

#[test]
fn all_kernels_pass_and_times_are_measured() {
    let test = SelfTest::run(&Kernels::new(Machine::start().gpu), Workload::SIMULATED);
    assert_eq!(test.problems().collect::<Vec<_>>(), [""; 0]);
    assert_eq!(test.findings.len(), 29 + 17 + 3 * 6 + 4);
    let speed = test.speed.unwrap();
    assert_eq!(speed.product_ms.len(), 16);
    assert!(speed.product_ms.iter().all(|ms| *ms > 0.0) && speed.memory_gb_s > 0.0);
}

#[test]
fn planted_mistakes_are_found_in_their_part_alone() {
    let gpu = Spoiled::start(&[
        // Q5_K for 16 rows.
        ("multiply-16-Q5_K", Some(("x_scales[at]", "x_scales[at] * 1.0001f"))),
        // Q8_0 for one row.
        ("multiply-1-Q8_0", Some(("kept + simd", "1.01f * kept + simd"))),
        // The table of Q4_0.
        ("take_rows-Q4_0", Some(("product + w.m", "-product + w.m"))),
        ("norm-", Some(("p.width) + p.eps", "p.width) + 0.1f"))),
        // The code of the smallest values in a unit.
        ("gate-", Some(("int(rint(value * inverse))", "int(value * inverse)"))),
        ("heads-", Some(("b = fma(old, s, b * c)", "b = fma(old, s, -(b * c))"))),
        ("copy_rows-", None),
        ("choose-", Some(("other_at < at", "other_at > at"))),
        ("draw-", Some(("reached > goal", "reached >= 2.0f * goal"))),
        ("attend-128-", Some((" * p.scale;", ";"))),
        ("delta_states-32", Some(("(v - tree_sum(seen))", "(v - 0.5f * tree_sum(seen))"))),
        // The place of a held row.
        ("delta_output-128", Some(("held[place * width_of(p) + i]", "held[row * width_of(p) + i]"))),
    ]);
    let test = SelfTest::run(&Kernels::new(gpu), Workload::SIMULATED);
    let refused = Error::Device { device: "metal", reason: "refused".into() };
    let expected = [
        "product Q4_0 differs from the CPU",
        "product Q8_0 differs from the CPU",
        "product Q5_K depends on the number of rows",
        // These types are kept as Q4_0.
        "product Q1_0 differs from the CPU",
        "product Q2_0 differs from the CPU",
        "norm differs from the CPU",
        "norm after a part differs from the CPU",
        "SiLU gate differs from the CPU",
        "GELU gate differs from the CPU",
        "bounded gate differs from the CPU",
        "heads differs from the CPU",
        "joint norm of heads differs from the CPU",
        &format!("cache failed: {refused}"),
        "choice differs from the CPU",
        "draw differs from the CPU",
        "attention 128 differs from the CPU",
        "attention 128 with a soft cap differs from the CPU",
        "attention 128 with a window differs from the CPU",
        "gated delta net 32 differs from the CPU",
        "gated delta net 128 differs from the CPU",
    ];
    assert_eq!(test.problems().collect::<Vec<_>>(), expected);
}

#[test]
fn mistakes_in_rarely_used_kernels_are_found_in_their_part_alone() {
    let gpu = Spoiled::start(&[
        // A value of the codes of IQ4_XS, for more than 32 rows.
        ("multiply-64-IQ4_XS", Some(("CODES -127.0f", "CODES -126.0f"))),
        ("multiply-4-F16", Some(("soft_cap(sum, p.cap)", "min(sum, p.cap)"))),
        ("norm-", Some(("update_weight[i], p.scale", "update_weight[i], 1.01f * p.scale"))),
        ("gate-", Some(("GELU_CUBIC * g * g, g, g)", "GELU_CUBIC * g, g, g)"))),
        ("heads-", Some(("joint ? own * p.width : 0", "0"))),
        ("attend-64-", Some(("soft_cap(score, p.cap)", "min(score, p.cap)"))),
        ("attend-96-", Some(("length - p.window : 0", "length - p.window + 1 : 0"))),
        // Chunks that begin one position early.
        ("attend-32-", Some(("(length - 1) / p.chunk * p.chunk", "length / p.chunk * p.chunk - 1"))),
        ("combine-64", Some(("precise::exp(sink - top)", "0.0f"))),
        ("gate-", Some(("min(g, CLAMPED_BOUND)", "g"))),
        // A row of the pass in the place of a row that chose the expert.
        ("experts-4-Q4_K", Some(("ids[min(m, count - 1)] / divide", "min(m, count - 1)"))),
        // The row itself in the place of an earlier one.
        ("convolve-", Some(("x + at * 3 * p.width", "x + group.y * 3 * p.width"))),
        ("combine-64", Some(("value = value / (1.0f", "value = value * (1.0f"))),
        // The state of the node before in the place of the parent's.
        ("delta_states-64", Some(("words[LOAD] != NO_PLACE", "words[LOAD] == 77"))),
        // A sum that depends on the pass, within the bound of the comparison.
        (
            "delta_states-96",
            Some(("= state[i] * decay", "= state[i] * (p.rows > 1 ? 1.000001f * decay : decay)")),
        ),
        ("delta_convolve-128", Some(("sum == 1.0f ? power", "sum < 2.0f ? power"))),
        // Rows before a checkpoint, one too late.
        ("delta_convolve-32", Some(("seen[j], channel);\n  }", "seen[j - 1], channel);\n  }"))),
        // The layout of few rows differs from that of more.
        ("attend-256-1", Some(("precise::exp(score - higher)", "1.001f * precise::exp(score - higher)"))),
    ]);
    let test = SelfTest::run(&Kernels::new(gpu), Workload::SIMULATED);
    let expected = [
        "product IQ4_XS depends on the number of rows",
        "soft cap of logits differs from the CPU",
        // Gates and ups of experts share the mistake in the kernel of one part.
        "products in one dispatch differs from the CPU",
        "norm after a part differs from the CPU",
        "GELU gate differs from the CPU",
        "bounded gate differs from the CPU",
        "joint norm of heads differs from the CPU",
        "attention with sinks differs from the CPU",
        "experts differs from the CPU",
        "short convolution differs from the CPU",
        "attention with gates differs from the CPU",
        "attention 32 with a window differs from the CPU",
        "attention 64 with a soft cap differs from the CPU",
        "attention 96 with a window differs from the CPU",
        "attention 256 depends on the number of rows",
        "attention 256 with a soft cap depends on the number of rows",
        "attention 256 with a window depends on the number of rows",
        "gated delta net 32 differs from the CPU",
        "gated delta net 64 differs from the CPU",
        "gated delta net 96 depends on the number of rows",
        "gated delta net 128 differs from the CPU",
    ];
    assert_eq!(test.problems().collect::<Vec<_>>(), expected);
}

#[test]
fn mistakes_in_groups_and_sums_of_experts_are_found() {
    let problem = |mistakes: &[Mistake]| {
        SelfTest::problem_of_experts(&Kernels::new(Spoiled::start(mistakes)), WeightType::Q4K)
    };
    for mistake in [
        // A group counts by its best expert alone.
        ("route-", Some(("value = highest + next", "value = highest"))),
        ("route-", Some(("others = others | 1 << i", "others = 0"))),
        ("join_experts-", Some(("UNWEIGHTED) ? 1.0f", "UNWEIGHTED) ? 0.9f"))),
    ] {
        assert_eq!(
            problem(&[mistake]).as_deref(),
            Some("experts of Q4_K weights differs from the CPU"),
            "{mistake:?}"
        );
    }
}

#[test]
fn refused_or_wrong_kernel_of_gates_and_ups_is_replaced_by_a_dispatch_for_each() {
    let problems = |mistake: &[Mistake]| {
        let kernels = Kernels::new(Spoiled::start(mistake));
        let problem = SelfTest::problem_of_experts(&kernels, WeightType::Q4K);
        (problem, kernels.join_problems())
    };
    assert_eq!(problems(&[]), (None, Vec::new()));
    let refused = Error::Device { device: "metal", reason: "refused".into() }.to_string();
    assert_eq!(problems(&[("experts-1-Q4_K-Q4_K", None)]), (None, vec![refused]));
    // The groups of the ups, as in the products of a dense model.
    let wrong = (
        "experts-4-Q4_K-Q4_K",
        Some(("at -= all.part[0].product.groups", "at -= all.part[0].product.groups - 1")),
    );
    assert_eq!(problems(&[wrong]), (None, vec!["experts-4-Q4_K-Q4_K differs".to_owned()]));
    // Without the kernel of one product nothing replaces them.
    let alone = problems(&[("experts-4-Q4_K", None)]).0;
    assert!(
        alone.as_ref().is_some_and(|problem| problem.starts_with("experts of Q4_K weights failed")),
        "{alone:?}"
    );
}

/// Q5_K for 16 rows.
const WRONG_Q5K: Mistake = ("multiply-16-Q5_K", Some(("x_scales[at]", "x_scales[at] * 1.0001f")));
/// Q4_K for one row.
const WRONG_Q4K: Mistake = ("multiply-1-Q4_K", Some(("kept + simd", "1.01f * kept + simd")));

fn open_tiny(dtype: GgmlDType, mistakes: &[Mistake]) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    let compute = Compute::on_gpu(Spoiled::start(mistakes), Workload::SIMULATED, Some(1)).unwrap();
    let path = Tiny { dtype, layers: 1, ..Tiny::default() }.write(folder.path(), "tiny");
    Decoder::open(&path, &compute).unwrap()
}

#[test]
fn weights_of_a_failing_product_are_converted_to_a_type_that_passed() {
    let mut converted = open_tiny(GgmlDType::Q4K, &[WRONG_Q4K]);
    assert_eq!(converted.backend(), &Backend::Metal);
    let note = converted.execution().note("tiny").unwrap();
    assert_eq!(
        note,
        "Metal: product Q4_K differs from the CPU; the Q4_K weights of tiny are converted to Q5_K."
    );
    let mut right = open_tiny(GgmlDType::Q4K, &[]);
    assert_eq!(right.execution().note("tiny"), None);
    assert!(converted.memory().weights > right.memory().weights);
    // The same integers are summed, so even the bits are the same.
    let pass = |model: &mut Decoder| {
        let all = model.forward(PassInput::chain(&[1, 2, 3, 4, 5], LogitRows::All)).unwrap().logits;
        let one = model.forward(PassInput::chain(&[6], LogitRows::Last)).unwrap().logits;
        [all.into_values(), one.into_values()]
    };
    assert_eq!(pass(&mut converted), pass(&mut right));
    // The cache grows in steps of 256 rows: keys and values of two heads, in the type that the fit counts with.
    let bytes = Backend::Metal.kv(KvType::F32).bytes();
    assert_eq!(right.memory().cache, 256 * 2 * 2 * HEAD_DIM * bytes);
}

#[test]
fn model_that_needs_a_wrong_kernel_without_replacement_runs_on_candle() {
    // F32 weights would be six times as large, and attention has no replacement.
    let attention: Mistake = ("attend-64", Some((" * p.scale;", ";")));
    for (mistake, problem) in [
        (WRONG_Q5K, "product Q5_K depends on the number of rows"),
        (attention, "attention 64 differs from the CPU"),
    ] {
        let model = open_tiny(GgmlDType::Q5K, &[mistake]);
        assert_eq!(model.backend(), &Backend::Candle { obstacle: Some(problem.into()) });
        let note = model.execution().note("tiny").unwrap();
        assert_eq!(note, format!("Metal: {problem}; tiny runs on candle's operations, which are slower."));
    }
}

/// A model is refused only for parts that it uses.
#[test]
fn model_that_needs_a_wrong_special_part_runs_on_candle_and_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let mistake: Mistake = ("attend-64-", Some(("soft_cap(score, p.cap)", "min(score, p.cap)")));
    let compute = Compute::on_gpu(Spoiled::start(&[mistake]), Workload::SIMULATED, Some(1)).unwrap();
    let open = |tiny: Tiny| Decoder::open(&tiny.write(folder.path(), "tiny"), &compute).unwrap();
    let capped = open(Tiny { dtype: GgmlDType::Q8_0, ..further(("gemma2", Variant::Window, 3)) });
    let obstacle = Some("attention 64 with a soft cap differs from the CPU".to_owned());
    assert_eq!(capped.backend(), &Backend::Candle { obstacle });
    assert_eq!(
        open(Tiny { dtype: GgmlDType::Q8_0, layers: 1, ..Tiny::default() }).backend(),
        &Backend::Metal
    );
}

#[test]
fn cpu_chooses_drafted_tokens_if_the_kernel_for_that_fails() {
    let mut model = open_tiny(GgmlDType::Q8_0, &[("choose-", Some(("other_at < at", "other_at > at")))]);
    assert_eq!(model.backend(), &Backend::Metal);
    assert!(model.device_chain(ChainInput::new(&[1, 2], 3)).unwrap().is_none());
    let note = model.execution().note("tiny").unwrap();
    assert_eq!(note, "Metal: choice differs from the CPU; the CPU chooses the tokens that tiny drafts.");
    assert!(open_tiny(GgmlDType::Q8_0, &[]).device_chain(ChainInput::new(&[1, 2], 3)).unwrap().is_some());
}

#[test]
fn self_test_is_remembered_for_the_same_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SELF_TEST_FILE);
    let start = || {
        let simulator = Simulator::start();
        let compute = Compute::on_gpu(simulator.clone(), Workload::SIMULATED, Some(1)).unwrap();
        compute.keep_self_test_in(folder.path());
        (simulator, compute)
    };
    let (_, compute) = start();
    let first = compute.self_test().unwrap();
    assert_eq!(SelfTestRecord::read(&path, &first.machine).as_ref(), Some(&*first));
    assert_eq!(first.machine.chip, "simulated GPU");

    let (simulator, compute) = start();
    assert_eq!(compute.self_test().unwrap(), first);
    assert_eq!(simulator.take_counts().dispatches, 0, "the record was read");
    compute.test_again().unwrap();
    assert!(simulator.take_counts().dispatches > 0);

    let later = MachineId { version: "99.0.0".into(), ..first.machine.clone() };
    assert_eq!(SelfTestRecord::read(&path, &later), None);
    let mut other_parts = SelfTestRecord::clone(&first);
    other_parts.test.findings.pop();
    other_parts.write(&path).unwrap();
    assert_eq!(SelfTestRecord::read(&path, &first.machine), None);
    std::fs::write(&path, "{\"machine\":").unwrap();
    assert_eq!(SelfTestRecord::read(&path, &first.machine), None);
    let (simulator, compute) = start();
    let again = compute.self_test().unwrap();
    assert!(simulator.take_counts().dispatches > 0, "a damaged record counts as missing");
    assert_eq!(SelfTestRecord::read(&path, &first.machine).as_ref(), Some(&*again));
}
