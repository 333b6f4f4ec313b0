//! Greedy speculative decoding equals plain greedy decoding, token for token, for every proposer and
//! depth. Also tests every way a generation can end.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use hunch_core::depth::{DepthController, DraftTraits, DraftWork, Observation};
use hunch_core::error::{Error, Result};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::propose::Proposer;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::sample::{Constraint, Sampler, SamplingParams};
use hunch_core::session::{EndReason, Session, SessionConfig};
use hunch_core::stats::Stopwatch;
use hunch_core::table::{TableConfig, TableModel};
use hunch_core::token::{TokenId, TokenOrigin};

use crate::toy::{
    Failing, Stages, Ticks, config, generate, generate_at, greedy_continuation, methods, only, table,
};

fn greedy() -> Sampler {
    Sampler::new(SamplingParams::greedy()).unwrap()
}

#[test]
fn greedy_output_matches_plain_for_every_proposer_and_depth() {
    const TOKENS: usize = 60;
    let mut target = table(16, 0.0);
    let mut accepted: BTreeMap<&str, u32> = BTreeMap::new();
    for prompt in [&[3][..], &[1, 2], &[5, 6, 7, 5, 6, 7, 5, 6]] {
        let plain = greedy_continuation(&target, prompt, TOKENS);
        for max_draft in 1..=8 {
            for (name, mut stages) in methods(16, &plain) {
                let config = config(max_draft, TOKENS, 2);
                let run = generate(&mut target, &mut stages, &greedy(), prompt, config);
                assert_eq!(run.ids(), plain, "{name}, depth {max_draft}");
                assert!(run.tokens.iter().all(|t| t.p == 1.0), "{name}");
                assert_eq!(run.rounds.last().unwrap().ended, Some(EndReason::MaxTokens));
                *accepted.entry(name).or_default() += run.stats.accepted;
            }
        }
    }
    for (name, accepted) in accepted {
        assert!(name == "plain" || accepted > 0, "{name}: no draft was accepted");
    }
}

/// A format that allows the tokens from `lowest` on, and none twice in a row.
#[derive(Debug)]
struct From {
    lowest: TokenId,
}

impl Constraint for From {
    fn restrict(&self, context: &[TokenId], logits: &mut [f32]) -> Result<()> {
        for (token, logit) in (0..).zip(logits) {
            if token < self.lowest || context.last() == Some(&token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}

#[test]
fn constrained_greedy_output_matches_plain() {
    let mut target = table(16, 0.0);
    let prompt = [5, 6, 7, 5, 6, 7, 5, 6];
    let sampler = greedy().with_constraint(Arc::new(From { lowest: 4 }));
    let plain = generate(&mut target, &mut Stages::default(), &sampler, &prompt, config(0, 60, 2)).ids();
    assert!(plain.iter().all(|&token| token >= 4) && plain.windows(2).all(|pair| pair[0] != pair[1]));
    assert_ne!(plain, greedy_continuation(&target, &prompt, 60), "the constraint changes nothing");
    for max_draft in [1, 3, 8] {
        for (name, mut stages) in methods(16, &plain) {
            let run = generate(&mut target, &mut stages, &sampler, &prompt, config(max_draft, 60, 2));
            assert_eq!(run.ids(), plain, "{name}, depth {max_draft}");
        }
    }
}

/// A draft model may know none of the tokens that the format allows. It then drafts nothing, and nothing fails.
#[test]
fn constraint_without_a_token_of_the_drafter_ends_the_draft() {
    for params in [SamplingParams::greedy(), SamplingParams::unfiltered()] {
        let mut target = table(16, 0.0);
        let sampler = Sampler::new(params).unwrap().with_constraint(Arc::new(From { lowest: 8 }));
        for tree in [None, Some(TreeShape::Dynamic)] {
            let mut draft = DraftModel::new(Box::new(table(8, 0.0))).unwrap();
            draft.set_tree(tree);
            let mut stages = only(draft);
            let run = generate(&mut target, &mut stages, &sampler, &[1, 2, 3], config(4, 40, 2));
            assert_eq!((run.ids().len(), run.stats.drafted), (40, 0));
        }
    }
}

/// Evaluation leaves text and caches unchanged. For certain drafts the expected tokens equal the tokens
/// of an actual round.
#[test]
fn evaluates_drafts_along_given_text() {
    let prompt = [5, 6, 7, 5, 6, 7, 5, 6];
    let mut target = table(16, 0.0);
    let plain = greedy_continuation(&target, &prompt, 40);
    for (name, mut stages) in methods(16, &plain) {
        target.truncate(0).unwrap();
        let clock = Ticks::default();
        let sampler = greedy();
        let mut session = Session::new(&mut target, &sampler, &clock, config(5, 40, 2)).unwrap();
        stages.add_to(&mut session);
        assert!(session.prefill(&prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
        for tokens in plain[..24].chunks(3) {
            let quality = session.evaluate_draft().unwrap();
            assert!(quality.tokens.fract() == 0.0 && quality.overlap.is_none(), "{name}");
            assert!(quality.tokens <= 1.0 + quality.depth as f64 && quality.depth <= quality.nodes, "{name}");
            if name == "draft model, the same" {
                assert_eq!((quality.nodes, quality.tokens), (5, 6.0));
            }
            session.teacher_force(tokens).unwrap();
        }
        let rounds: Vec<_> = session.by_ref().map(Result::unwrap).collect();
        let ids: Vec<TokenId> =
            rounds.iter().flat_map(|round| &round.emitted).map(|token| token.id).collect();
        assert_eq!(ids, plain[24..], "{name}");
        assert!(
            session.evaluate_draft().is_err() && session.teacher_force(&[1]).is_err(),
            "the session is closed"
        );
    }
}

#[test]
fn adaptive_depth_keeps_greedy_output() {
    let mut target = table(16, 0.0);
    for prompt in [&[3][..], &[5, 6, 7, 5, 6, 7, 5, 6]] {
        let plain = greedy_continuation(&target, prompt, 120);
        for (name, mut stages) in methods(16, &plain) {
            let mut depth = DepthController::default();
            for answer in 0..3 {
                let config = config(MAX_DRAFT, 120, answer);
                let sampler = greedy();
                let depth = Some(&mut depth);
                let run = generate_at(depth, &mut target, &mut stages, &sampler, prompt, config);
                assert_eq!(run.ids(), plain, "{name}");
                assert!(name == "plain" || run.rounds.iter().all(|round| round.depth.is_some()), "{name}");
            }
        }
    }
}

/// A cancelled prefill gives a round without a draft, and the rows already read are kept.
#[test]
fn cancelled_draft_prefill_gives_plain_rounds() {
    let prompt: Vec<TokenId> = (0..100).map(|i| i % 16).collect();
    let mut target = table(16, 0.0);
    let mut draft = DraftModel::new(Box::new(table(16, 0.0))).unwrap();
    let (sampler, clock) = (greedy(), Ticks::default());
    let mut depth = DepthController::default();
    let mut session = Session::new(&mut target, &sampler, &clock, config(4, 20, 0)).unwrap();
    session.add_proposer(&mut draft);
    session.set_depth(&mut depth);
    session.set_cancel(&|| true);
    let read = session.prefill(&prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert!(read.is_continue());
    for _ in 0..3 {
        assert_eq!(session.round().unwrap().drafted.len(), 0);
    }
    drop(session);
    assert!((1..100).contains(&draft.model().cache_len()), "{}", draft.model().cache_len());
}

#[test]
fn penalties_apply_along_drafted_path() {
    let params = SamplingParams { repeat_penalty: 1.8, penalty_last_n: 8, ..SamplingParams::greedy() };
    let sampler = Sampler::new(params).unwrap();
    let mut target = table(16, 0.0);
    let prompt = [5, 6, 7, 5, 6, 7, 5, 6];
    let plain = generate(&mut target, &mut Stages::default(), &sampler, &prompt, config(0, 60, 1)).ids();
    assert_ne!(plain, greedy_continuation(&target, &prompt, 60), "the penalty must change the text");
    for max_draft in 1..=8 {
        for (name, mut stages) in methods(16, &plain) {
            let run = generate(&mut target, &mut stages, &sampler, &prompt, config(max_draft, 60, 1));
            assert_eq!(run.ids(), plain, "{name}, depth {max_draft}");
        }
    }
}

#[test]
fn identical_draft_is_fully_accepted_with_bonus() {
    let mut target = table(16, 0.0);
    let mut draft = only(DraftModel::new(Box::new(table(16, 0.0))).unwrap());
    let run = generate(&mut target, &mut draft, &greedy(), &[1, 2], config(4, 20, 0));
    assert_eq!((run.stats.rounds, run.stats.drafted, run.stats.accepted, run.stats.bonus), (4, 16, 16, 4));
    assert_eq!((run.stats.acceptance_rate, run.stats.mean_acceptance_length), (1.0, 5.0));
    assert_eq!(run.stats.accepted_at_position, [1.0; 4]);
    // With sampling too: q equals p, so nothing can be rejected.
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let run = generate(&mut target, &mut draft, &sampler, &[1, 2], config(4, 20, 0));
    assert_eq!((run.stats.accepted, run.stats.bonus), (16, 4));
}

#[test]
fn rounds_without_proposer_emit_plain_tokens() {
    let run = generate(&mut table(16, 0.0), &mut Stages::default(), &greedy(), &[1], config(5, 9, 0));
    assert!(run.tokens.iter().all(|t| t.origin == TokenOrigin::Plain && t.position == 0));
    assert_eq!((run.stats.rounds, run.stats.plain, run.stats.drafted), (9, 9, 0));
    assert_eq!(run.stats.mean_acceptance_length, 1.0);
}

#[test]
fn synthetic_acceptance_matches_requested_rate() {
    let mut target =
        TableModel::new(TableConfig { seed: 11, context_length: 4096, ..TableConfig::default() });
    let script = greedy_continuation(&target, &[1, 2], 3000);
    let rate = 0.8;
    let mut proposer = only(Synthetic::new(script.clone(), rate).unwrap());
    let run = generate(&mut target, &mut proposer, &greedy(), &[1, 2], config(3, 3000, 6));
    assert_eq!(run.ids(), script);
    let mut reached = 1.0;
    assert_eq!(run.stats.accepted_at_position.len(), 3);
    for measured in &run.stats.accepted_at_position {
        reached *= rate;
        assert!((measured - reached).abs() < 0.03, "{reached} requested, {measured} measured");
    }
}

#[test]
fn end_token_truncates_round_and_is_not_emitted() {
    let mut target = table(16, 0.0);
    let prompt = [1, 2];
    let plain = greedy_continuation(&target, &prompt, 40);
    for end in 0..16 {
        let expected: Vec<TokenId> = plain.iter().copied().take_while(|&t| t != end).collect();
        for (name, mut stages) in methods(16, &plain) {
            let config = SessionConfig { end_tokens: vec![end, 99], ..config(6, 40, 3) };
            let run = generate(&mut target, &mut stages, &greedy(), &prompt, config);
            assert_eq!(run.ids(), expected, "{name}, end token {end}");
            let reason = if expected.len() < 40 { EndReason::EndToken } else { EndReason::MaxTokens };
            assert_eq!(run.rounds.last().unwrap().ended, Some(reason));
            assert!(run.rounds.iter().rev().skip(1).all(|r| r.ended.is_none()));
        }
    }
}

#[test]
fn generation_fills_context_to_last_row() {
    for context_length in 4..24 {
        let mut target = TableModel::new(TableConfig { seed: 11, context_length, ..TableConfig::default() });
        let prompt = [1, 2, 3];
        // The last token needs no cache row.
        let plain = greedy_continuation(&target, &prompt, context_length - prompt.len() + 1);
        for (name, mut stages) in methods(16, &plain) {
            let run = generate(&mut target, &mut stages, &greedy(), &prompt, config(5, 100, 3));
            assert_eq!(run.ids(), plain, "{name}, context {context_length}");
            assert_eq!(run.rounds.last().unwrap().ended, Some(EndReason::ContextFull));
            assert_eq!(target.cache_len(), context_length);
        }
    }
}

#[test]
fn never_exceeds_max_tokens() {
    let mut target = table(16, 0.0);
    for max_tokens in 1..12 {
        let plain = greedy_continuation(&target, &[1, 2], max_tokens);
        for (name, mut stages) in methods(16, &plain) {
            let run = generate(&mut target, &mut stages, &greedy(), &[1, 2], config(8, max_tokens, 3));
            assert_eq!(run.ids(), plain, "{name}, {max_tokens} tokens");
        }
    }
}

#[test]
fn reused_prefix_gives_same_answer() {
    let prompt: Vec<TokenId> = (0..40).map(|i| i * 7 % 16).collect();
    let mut target = table(16, 0.0);
    let plain = greedy_continuation(&target, &prompt, 12);
    for reuse in [1, 20, 39] {
        target.truncate(0).unwrap();
        target.forward(PassInput::chain(&prompt[..reuse], LogitRows::None)).unwrap();
        let clock = Ticks::default();
        let sampler = greedy();
        let mut session = Session::new(&mut target, &sampler, &clock, config(0, 12, 0)).unwrap();
        let mut reported = Vec::new();
        let mut progress = |done, total| {
            reported.push((done, total));
            ControlFlow::Continue(())
        };
        let _ = session.prefill(&prompt, reuse, &mut progress).unwrap();
        let ids: Vec<TokenId> = session.by_ref().flat_map(|r| r.unwrap().emitted).map(|t| t.id).collect();
        assert_eq!(ids, plain, "{reuse} tokens reused");
        // Only new tokens run, 32 rows per pass.
        let left = 39 - reuse;
        let expected: Vec<(usize, usize)> =
            (0..left).step_by(32).map(|done| ((done + 32).min(left), left)).collect();
        assert_eq!(reported, expected);
    }
}

#[test]
fn prefill_reports_progress_and_can_be_cancelled() {
    let prompt: Vec<TokenId> = (0..700).map(|i| i % 16).collect();
    let mut target = TableModel::new(TableConfig { context_length: 1000, ..TableConfig::default() });
    let clock = Ticks::default();
    let sampler = greedy();
    let mut session = Session::new(&mut target, &sampler, &clock, config(0, 5, 0)).unwrap();
    let mut reported = Vec::new();
    let mut progress = |done, total| {
        reported.push((done, total));
        if done > 500 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(session.prefill(&prompt, 0, &mut progress).unwrap().is_break());
    assert_eq!(reported, (1..=16).map(|chunk| (32 * chunk, 699)).collect::<Vec<_>>());
    assert_eq!(session.cached(), &prompt[..512]);
    assert!(session.round().is_err());
    assert!(session.next().is_none());
}

#[test]
fn rejects_invalid_requests() {
    let clock = Ticks::default();
    let sampler = greedy();
    let mut target = TableModel::new(TableConfig { context_length: 4, ..TableConfig::default() });
    for bad in [config(MAX_DRAFT + 1, 5, 0), config(3, 0, 0)] {
        let session = Session::new(&mut target, &sampler, &clock, bad);
        assert!(matches!(session.err(), Some(Error::InvalidRequest(_))));
    }
    let mut should_continue = |_, _| ControlFlow::Continue(());
    let mut session = Session::new(&mut target, &sampler, &clock, config(3, 5, 0)).unwrap();
    assert!(session.round().is_err());
    assert!(matches!(session.prefill(&[], 0, &mut should_continue), Err(Error::InvalidRequest(_))));
    let long = session.prefill(&[1; 5], 0, &mut should_continue);
    assert!(matches!(long, Err(Error::ContextOverflow { prompt: 5, context: 4 })));
    assert!(matches!(session.prefill(&[1, 2], 1, &mut should_continue), Err(Error::Internal(_))));
    assert!(session.prefill(&[1, 2], 0, &mut should_continue).unwrap().is_continue());
    // Four rows hold the prompt and two tokens; the third token needs no row.
    assert_eq!(session.count(), 3);
}

#[test]
fn failure_keeps_emitted_tokens_and_valid_cache() {
    let mut target = Failing { inner: table(16, 0.0), passes: 4 };
    let plain = greedy_continuation(&target.inner, &[1, 2, 3], 3);
    let clock = Ticks::default();
    let sampler = greedy();
    let mut session = Session::new(&mut target, &sampler, &clock, config(0, 9, 0)).unwrap();
    let _ = session.prefill(&[1, 2, 3], 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let rounds: Vec<_> = session.by_ref().collect();
    assert_eq!(rounds.len(), 4);
    assert!(rounds[3].is_err());
    assert_eq!(session.committed(), [&[1, 2, 3], &plain[..]].concat());
    assert_eq!(session.cached().len(), 5);
    assert_eq!(session.stats("cpu", 0).generated_tokens, 3);
}

/// A clock that stands still: costs stay as they were learned.
struct Still;

impl Stopwatch for Still {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// Returns a controller that has seen drafts of 3 tokens. Each proposer drafts in its turn, and the first `accepted`
/// tokens pass. A pass takes 10 ms, a drafted token 2 ms.
fn learned(accepted: &[usize]) -> DepthController {
    let mut controller = DepthController::default();
    let traits = DraftTraits { has_model: true, sampled: true, in_one_pass: false };
    (0..accepted.len()).for_each(|proposer| controller.begin(proposer, traits));
    for _ in 0..30 {
        controller.observe(&Observation { rows: 1, target_ms: 10.0, emitted: 1, ..Observation::default() });
        for (proposer, &accepted) in accepted.iter().enumerate() {
            let mut work = vec![DraftWork::default(); proposer + 1];
            work[proposer] = DraftWork { drafted: 3, steps: 3, read: 0, ms: 6.0 };
            controller.observe(&Observation {
                work,
                drafted_by: Some(proposer),
                height: 3,
                rows: 4,
                target_ms: 10.0,
                emitted: 1 + accepted,
                tested: (0..3.min(accepted + 1)).map(|i| i < accepted).collect(),
                ..Observation::default()
            });
        }
    }
    controller
}

/// A lookup may find nothing, which is known only once it is asked. So its expected draft must not stand against one that
/// an earlier stage has found.
#[test]
fn lookup_that_finds_nothing_costs_no_draft_of_an_earlier_stage() {
    let table = TableModel::new(TableConfig { seed: 11, context_length: 4096, ..TableConfig::default() });
    let script = greedy_continuation(&table, &[1, 2], 400);
    let accepted = |more: bool| {
        let mut target = table.clone();
        let mut stages: Vec<Box<dyn Proposer>> = vec![Box::new(Synthetic::new(script.clone(), 0.4).unwrap())];
        if more {
            // Its script is over at once.
            stages.push(Box::new(Synthetic::new(Vec::new(), 1.0).unwrap()));
        }
        let mut depth = DepthController::default();
        let seen = Observation { rows: 1, target_ms: 10.0, emitted: 1, ..Observation::default() };
        (0..30).for_each(|_| depth.observe(&seen));
        depth.observe(&Observation { rows: 2, target_ms: 11.0, drafted_by: Some(0), ..seen });
        let sampler = greedy();
        let mut session = Session::new(&mut target, &sampler, &Still, config(3, 400, 1)).unwrap();
        stages.iter_mut().for_each(|proposer| session.add_proposer(&mut **proposer));
        session.set_depth(&mut depth);
        assert!(session.prefill(&[1, 2], 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
        for round in session.by_ref() {
            round.unwrap();
        }
        session.stats("cpu", 0).accepted
    };
    let (alone, with_empty) = (accepted(false), accepted(true));
    assert!(alone > 60, "{alone}");
    assert_eq!(with_empty, alone);
}

/// Both drafts are faster than plain decoding, and the later one is never rejected. Sampled drafts cannot be truncated,
/// so the choice falls before either of them drafts.
#[test]
fn the_faster_of_two_models_drafts() {
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let acceptance = |models: &[(f32, usize)]| {
        let mut target = table(16, 0.0);
        let draft = |noise| DraftModel::new(Box::new(table(16, noise))).unwrap();
        let mut stages: Vec<DraftModel> = models.iter().map(|&(noise, _)| draft(noise)).collect();
        let mut depth = learned(&models.iter().map(|&(_, accepted)| accepted).collect::<Vec<_>>());
        let mut session = Session::new(&mut target, &sampler, &Still, config(3, 60, 1)).unwrap();
        stages.iter_mut().for_each(|proposer| session.add_proposer(proposer));
        session.set_depth(&mut depth);
        assert!(session.prefill(&[1, 2, 3], 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
        for round in session.by_ref() {
            round.unwrap();
        }
        let stats = session.stats("cpu", 0);
        f64::from(stats.accepted) / f64::from(stats.drafted)
    };
    let worse = (1.5, 2);
    let alone = acceptance(&[worse]);
    assert!(alone < 0.9, "{alone}");
    let both = acceptance(&[worse, (0.0, 3)]);
    assert!(both > 0.99, "{both}");
}
