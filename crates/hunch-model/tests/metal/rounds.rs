//! Whole rounds on the simulated GPU. Methods give the text of plain decoding. A round with a draft model waits
//! twice, for any length of the draft.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch_core::model::{LanguageModel, ModelInfo, ModelMemory, PassInput, PassOutput};
use hunch_core::propose::Proposer;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::ngram::Ngram;
use hunch_core::propose::suffix::Suffix;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::{Session, SessionConfig};
use hunch_core::stats::Stopwatch;
use hunch_core::token::TokenId;
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::execution::Backend;
use hunch_model::metal::selftest::Workload;

use hunch_testing::simulator::Simulator;
use hunch_testing::tiny::{DELTA_NETS, Tiny, further};

const TOKENS: usize = 24;
/// A repetition, so that lookup has something to propose.
const PROMPT: [TokenId; 10] = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6];

struct NoClock;

impl Stopwatch for NoClock {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// An answer: its tokens, drafted tokens, and the waits and dispatches of each round that drafted `max_draft` tokens.
struct Answer {
    tokens: Vec<TokenId>,
    drafted: usize,
    waits: Vec<usize>,
    dispatches: Vec<usize>,
}

fn answer(
    simulator: &Simulator,
    target: &mut Decoder,
    proposer: Option<&mut dyn Proposer>,
    max_draft: usize,
) -> Answer {
    sampled_answer(simulator, target, proposer, max_draft, SamplingParams::greedy())
}

fn sampled_answer(
    simulator: &Simulator,
    target: &mut Decoder,
    proposer: Option<&mut dyn Proposer>,
    max_draft: usize,
    params: SamplingParams,
) -> Answer {
    let config = SessionConfig {
        max_draft,
        max_tokens: TOKENS,
        end_tokens: vec![],
        seed: 1,
        rule: Default::default(),
    };
    target.truncate(0).unwrap();
    let sampler = Sampler::new(params).unwrap();
    let mut session = Session::new(target, &sampler, &NoClock, config).unwrap();
    if let Some(proposer) = proposer {
        session.add_proposer(proposer);
    }
    assert!(session.prefill(&PROMPT, 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
    simulator.take_counts();
    let mut answer = Answer { tokens: Vec::new(), drafted: 0, waits: Vec::new(), dispatches: Vec::new() };
    while let Some(round) = session.next() {
        let round = round.unwrap();
        let counts = simulator.take_counts();
        if round.drafted.len() == max_draft {
            answer.waits.push(counts.waits);
            answer.dispatches.push(counts.dispatches);
        }
        answer.drafted += round.drafted.len();
        answer.tokens.extend(round.emitted.iter().map(|token| token.id));
    }
    answer
}

fn open(path: &Path, compute: &Compute) -> Decoder {
    let model = Decoder::open(path, compute).unwrap();
    assert_eq!(model.backend(), &Backend::Metal);
    // As the program does: kernels of all sizes of a pass are compiled and compared.
    model.warm_up().unwrap();
    model
}

#[test]
fn methods_give_the_text_of_plain_decoding_and_a_chain_waits_once() {
    let tiny = Tiny { dtype: GgmlDType::Q4K, ..Tiny::default() };
    methods_give_the_text_of_plain_decoding(tiny, Tiny { layers: 1, seed: 5, ..tiny });
}

#[test]
fn methods_give_the_text_of_plain_decoding_with_gated_delta_nets() {
    for of in [DELTA_NETS, ("qwen3next", DELTA_NETS.1, 3)] {
        let tiny = Tiny { dtype: GgmlDType::Q8_0, ..further(of) };
        methods_give_the_text_of_plain_decoding(tiny, Tiny { layers: 2, seed: 5, ..tiny });
    }
}

fn methods_give_the_text_of_plain_decoding(tiny: Tiny, other: Tiny) {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let compute = Compute::on_gpu(Arc::clone(&simulator) as _, Workload::SIMULATED, Some(1)).unwrap();
    let path = tiny.write(folder.path(), "target");
    let mut target = open(&path, &compute);
    let plain = answer(&simulator, &mut target, None, 1);
    assert_eq!(plain.tokens.len(), TOKENS);

    // The target as its own draft has every token accepted. Another model has few.
    let other = other.write(folder.path(), "draft");
    for path in [&path, &other] {
        let mut draft = DraftModel::new(Box::new(open(path, &compute))).unwrap();
        for max_draft in [1, 4, 7] {
            let answer = answer(&simulator, &mut target, Some(&mut draft), max_draft);
            assert_eq!(answer.tokens, plain.tokens, "{}, K = {max_draft}", path.display());
            assert!(
                answer.waits.len() > 1 && answer.waits.iter().all(|waits| *waits <= 2),
                "{:?}",
                answer.waits
            );
        }
        draft.set_tree(Some(TreeShape::default()));
        let tree = answer(&simulator, &mut target, Some(&mut draft), 6);
        assert!(tree.tokens == plain.tokens && tree.drafted > 0, "a tree of {}", path.display());
    }
    let mut lookups: [Box<dyn Proposer>; 2] = [Box::new(Ngram::default()), Box::new(Suffix::default())];
    for lookup in &mut lookups {
        let answer = answer(&simulator, &mut target, Some(lookup.as_mut()), 4);
        assert!(answer.tokens == plain.tokens && answer.drafted > 0, "{}", lookup.method());
    }
}

/// Model whose tokens the host chooses, one pass each.
struct OnHost(Decoder);

impl LanguageModel for OnHost {
    fn info(&self) -> &ModelInfo {
        self.0.info()
    }
    fn cache_len(&self) -> usize {
        self.0.cache_len()
    }
    fn fork(&self) -> Box<dyn LanguageModel> {
        self.0.fork()
    }
    fn memory(&self) -> ModelMemory {
        self.0.memory()
    }
    fn forward(&mut self, step: PassInput<'_>) -> hunch_core::error::Result<PassOutput> {
        self.0.forward(step)
    }
    fn truncate(&mut self, len: usize) -> hunch_core::error::Result<()> {
        self.0.truncate(len)
    }
    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> hunch_core::error::Result<()> {
        self.0.keep_rows(base, rows)
    }
}

/// The device draws the drafted tokens with the numbers that the host would take, so the answer is the same.
#[test]
fn sampled_device_drafts_match_host_drafts_with_two_waits_a_round() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let compute = Compute::on_gpu(Arc::clone(&simulator) as _, Workload::SIMULATED, Some(1)).unwrap();
    let tiny = Tiny { dtype: GgmlDType::Q4K, ..Tiny::default() };
    let path = tiny.write(folder.path(), "target");
    let mut target = open(&path, &compute);
    let other = Tiny { layers: 1, seed: 5, ..tiny }.write(folder.path(), "draft");
    let filtered = SamplingParams { temperature: 0.8, top_k: 40, ..SamplingParams::default() };
    for params in [SamplingParams::unfiltered(), filtered] {
        for max_draft in [2, 5] {
            let mut host = DraftModel::new(Box::new(OnHost(open(&other, &compute)))).unwrap();
            let expected =
                sampled_answer(&simulator, &mut target, Some(&mut host), max_draft, params.clone());
            assert!(expected.waits.iter().all(|waits| *waits == max_draft + 1), "{:?}", expected.waits);
            let mut draft = DraftModel::new(Box::new(open(&other, &compute))).unwrap();
            let answer = sampled_answer(&simulator, &mut target, Some(&mut draft), max_draft, params.clone());
            assert_eq!(answer.tokens, expected.tokens, "{params:?}");
            assert_eq!(answer.drafted, expected.drafted);
            assert!(
                answer.waits.len() > 1 && answer.waits.iter().all(|waits| *waits <= 2),
                "{:?}",
                answer.waits
            );
        }
    }
}

/// The longest draft of a model: 15 passes that choose a token each, and a pass of the target over 16 rows.
#[test]
fn round_of_fifteen_drafted_tokens_waits_twice() {
    const DRAFTED: usize = 15;
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let compute = Compute::on_gpu(Arc::clone(&simulator) as _, Workload::SIMULATED, Some(1)).unwrap();
    let tiny = Tiny { dtype: GgmlDType::Q8_0, layers: 1, ..Tiny::default() };
    let path = tiny.write(folder.path(), "target");
    let mut target = open(&path, &compute);
    let pass = 10 * tiny.layers + 3;
    let drawn = SamplingParams { temperature: 0.8, top_k: 40, ..SamplingParams::unfiltered() };
    for (params, of_choice) in [(SamplingParams::greedy(), 1), (drawn, 2)] {
        let mut draft = DraftModel::new(Box::new(open(&path, &compute))).unwrap();
        let answer = sampled_answer(&simulator, &mut target, Some(&mut draft), DRAFTED, params.clone());
        let most = pass + DRAFTED * (pass + of_choice);
        println!(
            "figure: round: K = {DRAFTED}, models of one layer: {:?} waits, {:?} dispatches, at most {most}",
            answer.waits, answer.dispatches
        );
        assert!(!answer.waits.is_empty() && answer.waits.iter().all(|waits| *waits <= 2), "{params:?}");
        assert!(answer.dispatches.iter().all(|dispatches| *dispatches <= most), "{params:?}");
    }
}
