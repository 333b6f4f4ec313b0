//! Whole rounds on the simulated GPU: methods give the text of plain decoding, and a round with a draft model waits
//! twice, whatever the length of the draft.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch_core::propose::Proposer;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::ngram::Ngram;
use hunch_core::propose::suffix::Suffix;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::{Session, SessionConfig};
use hunch_core::stats::Stopwatch;
use hunch_core::token::TokenId;
use hunch_model::decoder::{Backend, Decoder};
use hunch_model::device::Compute;
use hunch_model::metal::selftest::Workload;

use crate::simulator::Simulator;
use crate::support::tiny::Tiny;

const TOKENS: usize = 24;

struct NoClock;

impl Stopwatch for NoClock {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// An answer: its tokens, drafted tokens, and the waits of each round that drafted `max_draft` tokens.
struct Answer {
    tokens: Vec<TokenId>,
    drafted: usize,
    waits: Vec<usize>,
}

fn answer(
    simulator: &Simulator,
    target: &mut Decoder,
    proposer: Option<&mut dyn Proposer>,
    max_draft: usize,
) -> Answer {
    use hunch_core::model::LanguageModel;
    target.truncate(0).unwrap();
    let sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    let config = SessionConfig {
        max_draft,
        max_tokens: TOKENS,
        end_tokens: vec![],
        seed: 1,
        rule: Default::default(),
    };
    let mut session = Session::new(target, &sampler, &NoClock, config).unwrap();
    if let Some(proposer) = proposer {
        session.add_proposer(proposer, None);
    }
    // A repetition, so that lookup has something to propose.
    let prompt = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6];
    assert!(session.prefill(&prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
    simulator.take_counts();
    let mut answer = Answer { tokens: Vec::new(), drafted: 0, waits: Vec::new() };
    while let Some(round) = session.next() {
        let round = round.unwrap();
        let waits = simulator.take_counts().waits;
        if round.drafted.len() == max_draft {
            answer.waits.push(waits);
        }
        answer.drafted += round.drafted.len();
        answer.tokens.extend(round.emitted.iter().map(|token| token.id));
    }
    answer
}

fn open(path: &Path, compute: &Compute) -> Decoder {
    let model = Decoder::open(path, compute).unwrap();
    assert_eq!(model.backend(), &Backend::Metal);
    model
}

#[test]
fn methods_give_the_text_of_plain_decoding_and_a_chain_waits_once() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let compute = Compute::on_gpu(Arc::clone(&simulator) as _, Workload::SIMULATED, Some(1)).unwrap();
    let tiny = Tiny { dtype: GgmlDType::Q4K, ..Tiny::default() };
    let path = tiny.write(folder.path(), "target");
    let mut target = open(&path, &compute);
    let plain = answer(&simulator, &mut target, None, 1);
    assert_eq!(plain.tokens.len(), TOKENS);

    // The target as its own draft has every token accepted. Another model has few.
    let other = Tiny { layers: 1, seed: 5, ..tiny }.write(folder.path(), "draft");
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
