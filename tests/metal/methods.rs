//! Every method on the simulated GPU: the checks of `hunch verify`, and the waits of a round.

use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch::engine::WallClock;
use hunch::event::GenerationEvent;
use hunch::generate::{GenerationContext, GenerationPlan, LoadPlan, Models, Prompt, generate};
use hunch::proof::{self, ProofCheck, ProofPlan};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::DraftWindow;
use hunch_core::propose::MethodOptions;
use hunch_core::propose::retrieval::TextIndex;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_model::device::DraftDevice;

use crate::support::tested_gpu;
use hunch_testing::simulator::Simulator;
use hunch_testing::tiny::Tiny;
use hunch_testing::tiny_heads::{self, HeadFormat};

/// Acceptance rate of the method that drafts from a script.
const SCRIPTED: f64 = 0.7;
/// Text that ends with a repetition, so that lookup has something to propose.
const PROMPT: &str = "abcdabcdabcdab";

/// A target on a simulated GPU, with everything that any method drafts with.
pub(crate) struct Loaded {
    simulator: Arc<Simulator>,
    pub(crate) models: Models,
    _folder: tempfile::TempDir,
}

impl Loaded {
    /// Loads a target with a head of this format, or with the MTP layer in its file. Draft model and low-bit copy are
    /// smaller than the target.
    fn new(target: Tiny, head: Option<HeadFormat>) -> Self {
        Self::with_draft(target, Tiny { seed: 5, ..small(target) }, head)
    }

    /// Loads a target whose draft model has its weights, with fewer bits.
    pub(crate) fn with_close_drafts(target: Tiny, head: HeadFormat) -> Self {
        Self::with_draft(target, Tiny { dtype: GgmlDType::Q2K, ..target }, Some(head))
    }

    fn with_draft(target: Tiny, draft: Tiny, head: Option<HeadFormat>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let simulator = Simulator::start();
        let compute = tested_gpu(&simulator);
        let write = |tiny: Tiny, name: &str| tiny.write(folder.path(), name);
        let plan = LoadPlan {
            draft: Some(write(draft, "draft")),
            head: head.map(|head| head.write(folder.path())),
            draft_device: DraftDevice::Gpu,
            ..LoadPlan::of(&write(target, "target"))
        };
        let mut models = Models::load_by(&plan, &compute).unwrap();
        assert_eq!((models.device_note(), models.head_note()), (None, None), "our kernels run all models");
        models.load_low_bit(&write(small(target), "low-bit"), &compute).unwrap();
        let mut loaded = Self { simulator, models, _folder: folder };
        let prompt = loaded.prompt();
        let plain = plan_of(Method::Plain, 1, SamplingParams::greedy());
        let (script, _) = loaded.answer(&prompt, &plain);
        loaded.models.set_synthetic_script(script, SCRIPTED).unwrap();
        loaded.copy_from(&prompt);
        assert_eq!(loaded.models.usable_methods().len(), Method::REGISTERED.len() - 1, "all but synthetic");
        loaded
    }

    /// Sets the text that `retrieval` copies from.
    pub(crate) fn copy_from(&mut self, text: &[TokenId]) {
        self.models.set_texts(Some(Arc::new(TextIndex::new([text]))));
    }

    /// Returns the methods that draft after the prompts of `hunch verify`, which are in no text to copy from.
    fn proved_methods(&self) -> Vec<Method> {
        self.models.usable_methods().into_iter().filter(|method| *method != Method::Retrieval).collect()
    }

    pub(crate) fn prompt(&self) -> Vec<TokenId> {
        self.models.prompt_ids(&Prompt::Raw(PROMPT.into())).unwrap()
    }

    /// Generates an answer from empty caches. Returns its tokens, and drafted tokens and waits of each round.
    fn answer(&mut self, prompt: &[TokenId], plan: &GenerationPlan) -> (Vec<TokenId>, Vec<(u32, usize)>) {
        self.models.forget().unwrap();
        let (mut tokens, mut rounds) = (Vec::new(), Vec::new());
        let simulator = self.simulator.clone();
        let mut sink = |event: GenerationEvent| {
            let waits = simulator.take_counts().waits;
            tokens.extend(event.tokens().iter().map(|token| token.id));
            if let GenerationEvent::Round(round) = &event {
                rounds.push((round.drafted, waits));
            }
        };
        let clock = WallClock::start();
        let context = GenerationContext::measured(&clock);
        let finished = generate(&mut self.models, prompt, plan, &context, &mut sink).unwrap();
        tokens.extend(finished.held.iter().map(|token| token.id));
        (tokens, rounds)
    }
}

fn plan_of(method: Method, max_draft: u32, sampling: SamplingParams) -> GenerationPlan {
    let sampling = SamplingParams { seed: Some(3), ..sampling };
    let max_draft = MaxDraft::Fixed(max_draft);
    GenerationPlan { method, max_draft, max_tokens: 5, sampling, ..GenerationPlan::default() }
}

/// A model with fewer layers and bits.
fn small(target: Tiny) -> Tiny {
    // Every second layer of a model with gated delta nets has attention.
    let layers = if target.has_delta_nets() { 2 } else { 1 };
    Tiny { layers, mtp: 0, dtype: GgmlDType::Q4_0, tied: true, ..target }
}

pub(crate) fn target(layers: usize) -> Tiny {
    Tiny { layers, dtype: GgmlDType::Q8_0, ..tiny_heads::target() }
}

fn assert_all(checks: Vec<ProofCheck>) {
    for ProofCheck { name, finding, passed } in checks {
        println!("{name}: {finding}");
        assert!(passed, "{name}: {finding}");
    }
}

#[test]
fn every_method_waits_twice_in_a_round_at_most() {
    // This head reads three layers of the target, and all rows.
    let mut loaded = Loaded::new(target(8), Some(HeadFormat::Normed));
    let prompt = loaded.prompt();
    // Penalties are missing from the guess of the device.
    let filtered = SamplingParams { repeat_penalty: 1.1, ..SamplingParams::default() };
    for method in Method::REGISTERED {
        let greedy = SamplingParams::greedy();
        for (max_draft, sampling) in [(2, filtered.clone()), (5, greedy)] {
            let (_, rounds) = loaded.answer(&prompt, &plan_of(method, max_draft, sampling));
            let drafted = rounds.iter().map(|(drafted, _)| drafted).sum::<u32>();
            let most = rounds.iter().map(|(_, waits)| *waits).max().unwrap();
            println!("{method}, K = {max_draft}: {drafted} drafted, at most {most} waits");
            assert!(most <= if method.drafter().is_some() { 2 } else { 1 }, "{method}: {most} waits");
            assert_eq!(drafted > 0, method != Method::Plain, "{method}");
        }
    }
}

#[test]
fn proof_of_greedy_text_and_of_rows_passes_for_every_method() {
    proof_of_greedy_text_and_of_rows_passes(target(2), Some(HeadFormat::Medusa));
}

#[test]
fn proof_of_greedy_text_and_of_rows_passes_with_gated_delta_nets() {
    proof_of_greedy_text_and_of_rows_passes(
        Tiny { architecture: "qwen35", ..target(4) },
        Some(HeadFormat::Medusa),
    );
}

/// The layer runs on the CPU, next to a target on the GPU.
#[test]
fn proof_of_greedy_text_and_of_rows_passes_with_the_layer_of_the_target() {
    proof_of_greedy_text_and_of_rows_passes(Tiny { architecture: "qwen35", mtp: 1, ..target(2) }, None);
}

fn proof_of_greedy_text_and_of_rows_passes(target: Tiny, head: Option<HeadFormat>) {
    let mut loaded = Loaded::new(target, head);
    assert_all(proof::row_invariance(&mut loaded.models).unwrap());
    let methods = loaded.proved_methods();
    let depths = vec![MaxDraft::Fixed(5), MaxDraft::Auto];
    let plan = ProofPlan { tokens: 10, depths, prompts: 1, ..ProofPlan::of(methods) };
    assert_all(proof::identity(&mut loaded.models, &plan).unwrap());
    let draft_window = Some(DraftWindow::new(5).unwrap());
    let options = MethodOptions { draft_window, ..MethodOptions::default() };
    let methods = vec![Method::DraftModel, Method::DraftTree, Method::LayerSkip, Method::LowBit];
    let plan = ProofPlan { options, methods, depths: vec![MaxDraft::Fixed(5)], ..plan };
    assert_all(proof::identity(&mut loaded.models, &plan).unwrap());
    // The script belongs to one prompt, and so does the text that is copied from.
    let prompt = loaded.prompt();
    let (expected, _) = loaded.answer(&prompt, &plan_of(Method::Plain, 1, SamplingParams::greedy()));
    for method in [Method::Synthetic, Method::Retrieval] {
        let (tokens, rounds) = loaded.answer(&prompt, &plan_of(method, 4, SamplingParams::greedy()));
        assert!(tokens == expected && rounds.iter().any(|(drafted, _)| *drafted > 0), "{method}");
    }
}

/// Few samples of models that are nearly certain: this runs the check on the GPU. `distributions.rs` has tests of
/// stated power.
#[test]
fn proof_of_the_distribution_passes_for_every_method() {
    let mut loaded = Loaded::new(target(1), Some(HeadFormat::Medusa));
    let methods = loaded.proved_methods();
    let plan = ProofPlan { samples: 20, prompts: 1, ..ProofPlan::of(methods) };
    assert_all(proof::token_distribution(&mut loaded.models, &plan).unwrap());
}
