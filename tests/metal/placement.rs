//! Loading onto the simulated GPU: the device of a draft model, warm-up, and times of passes.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch::bench::timed_passes::TimedPasses;
use hunch::engine::WallClock;
use hunch::generate::{GenerationPlan, LoadPlan, Models, Prompt, answer_ids};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::ChainInput;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_model::device::{Compute, DraftDevice};

use crate::support::tested_gpu;
use hunch_testing::simulator::Simulator;
use hunch_testing::tiny::Tiny;

const TEXT: &str = "abcabcabcabcab";

struct Pair {
    folder: tempfile::TempDir,
    simulator: Arc<Simulator>,
    compute: Compute,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let simulator = Simulator::start();
        let compute = tested_gpu(&simulator);
        let tiny = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() };
        tiny.write(folder.path(), "target");
        Tiny { layers: 1, seed: 5, ..tiny }.write(folder.path(), "draft");
        Self { folder, simulator, compute }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.gguf"))
    }

    fn load(&self, draft_device: DraftDevice) -> Models {
        let plan =
            LoadPlan { draft: Some(self.path("draft")), draft_device, ..LoadPlan::of(&self.path("target")) };
        let models = Models::load_by(&plan, &self.compute).unwrap();
        assert_eq!(models.plan().draft_device, draft_device);
        models
    }
}

fn answer(models: &mut Models, method: Method, sampling: SamplingParams) -> (Vec<TokenId>, u32) {
    let prompt = models.prompt_ids(&Prompt::Raw(TEXT.into())).unwrap();
    let plan = GenerationPlan {
        method,
        max_draft: MaxDraft::Fixed(4),
        max_tokens: 12,
        sampling: SamplingParams { seed: Some(1), ..sampling },
        ..GenerationPlan::default()
    };
    let (tokens, stats) = answer_ids(models, &prompt, &plan, &WallClock::start()).unwrap();
    (tokens, stats.drafted)
}

/// Returns `true` if the draft model is on the GPU, whose device chooses tokens.
fn drafts_on_gpu(models: &mut Models) -> bool {
    let used = models.with_drafter(Method::DraftModel, &Default::default(), &[], |model, _, _| {
        model.truncate(0)?;
        Ok(model.device_chain(ChainInput::new(&[1], 1))?.is_some())
    });
    used.unwrap().unwrap()
}

#[test]
fn draft_on_either_device_gives_the_same_greedy_text() {
    let pair = Pair::new();
    let mut on_gpu = pair.load(DraftDevice::Gpu);
    let (expected, _) = answer(&mut on_gpu, Method::Plain, SamplingParams::greedy());
    assert!(drafts_on_gpu(&mut on_gpu) && on_gpu.draft_placement().is_none());
    let mut on_cpu = pair.load(DraftDevice::Cpu);
    assert!(!drafts_on_gpu(&mut on_cpu));
    assert_eq!(on_cpu.draft_placement(), Some("The draft model runs on the CPU, as chosen."));
    // The simulator is slower than any CPU.
    let mut faster = pair.load(DraftDevice::Auto);
    assert!(!drafts_on_gpu(&mut faster));
    let placement = faster.draft_placement().unwrap();
    assert!(placement.starts_with("The draft model runs on the CPU: "), "{placement}");
    assert!(placement.ends_with(" on the GPU."), "{placement}");
    assert_eq!(faster.device_note(), None);
    for models in [&mut on_gpu, &mut on_cpu, &mut faster] {
        for method in [Method::DraftModel, Method::DraftTree, Method::Cascade] {
            let (tokens, drafted) = answer(models, method, SamplingParams::greedy());
            assert!(tokens == expected && drafted > 0, "{method}");
        }
    }
}

#[test]
fn loading_compiles_all_kernels_that_answers_use() {
    let pair = Pair::new();
    let mut models = pair.load(DraftDevice::Gpu);
    let compiled = pair.simulator.compiled();
    for method in [Method::Plain, Method::DraftModel, Method::DraftTree, Method::Suffix, Method::EarlyExit] {
        for sampling in [SamplingParams::greedy(), SamplingParams::default()] {
            answer(&mut models, method, sampling);
        }
    }
    assert_eq!(pair.simulator.compiled(), compiled, "a pass that was timed compiled a kernel");
}

#[test]
fn passes_are_timed_on_the_gpu_for_the_doctor() {
    let pair = Pair::new();
    let timed = TimedPasses::measure(&pair.path("draft"), &pair.compute, &[1, 9], 1000).unwrap();
    assert_eq!((timed.note, timed.pass_ms.len(), timed.weight_bytes), (None, 2, 1000));
    assert!(timed.pass_ms.iter().map(|(rows, _)| *rows).eq([1, 9]));
    assert!(timed.pass_ms.iter().all(|(_, ms)| *ms > 0.0));
    assert!(pair.simulator.take_counts().dispatches > 100, "it ran on the GPU");
}
