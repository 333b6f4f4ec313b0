//! Greedy speculative decoding gives plain greedy decoding's tokens, token for token, for every
//! proposer and depth; and the loop ends where it should.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use hunch_core::depth::DepthController;
use hunch_core::error::Error;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::{EndReason, Session, SessionConfig};
use hunch_core::table::{TableConfig, TableModel};
use hunch_core::token::{TokenId, TokenOrigin};

use crate::toy::{Failing, Ticks, config, generate, generate_at, greedy_continuation, methods, only, table};

fn greedy() -> Sampler {
    Sampler::new(SamplingParams::greedy()).unwrap()
}

#[test]
fn greedy_output_is_plain_output_for_every_proposer_and_depth() {
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
        assert!(name == "plain" || accepted > 0, "{name} had nothing accepted, so nothing was tried");
    }
}

/// Weighing leaves text and caches as they are; what a draft is worth without chance is what a round with it gives.
#[test]
fn drafts_are_weighed_along_a_text_that_is_given() {
    let prompt = [5, 6, 7, 5, 6, 7, 5, 6];
    let mut target = table(16, 0.0);
    let plain = greedy_continuation(&target, &prompt, 40);
    for (name, mut stages) in methods(16, &plain) {
        target.truncate(0).unwrap();
        let clock = Ticks::default();
        let sampler = greedy();
        let mut session = Session::new(&mut target, &sampler, &clock, config(5, 40, 2)).unwrap();
        stages.iter_mut().for_each(|proposer| session.add_proposer(proposer.as_mut(), None));
        assert!(session.prefill(&prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
        for tokens in plain[..24].chunks(3) {
            let worth = session.evaluate_draft().unwrap();
            assert!(worth.tokens.fract() == 0.0 && worth.overlap.is_none(), "{name}");
            assert!(worth.tokens <= 1.0 + worth.depth as f64 && worth.depth <= worth.nodes, "{name}");
            if name == "draft model, the same" {
                assert_eq!((worth.nodes, worth.tokens), (5, 6.0));
            }
            session.teacher_force(tokens).unwrap();
        }
        let rounds: Vec<_> = session.by_ref().map(Result::unwrap).collect();
        let ids: Vec<TokenId> =
            rounds.iter().flat_map(|round| &round.emitted).map(|token| token.id).collect();
        assert_eq!(ids, plain[24..], "{name}");
        assert!(session.evaluate_draft().is_err() && session.teacher_force(&[1]).is_err(), "it is over");
    }
}

#[test]
fn a_depth_that_is_chosen_as_it_goes_changes_no_token() {
    let mut target = table(16, 0.0);
    for prompt in [&[3][..], &[5, 6, 7, 5, 6, 7, 5, 6]] {
        let plain = greedy_continuation(&target, prompt, 120);
        for (name, mut stages) in methods(16, &plain) {
            let mut depths: [DepthController; 2] = Default::default();
            for answer in 0..3 {
                let config = config(MAX_DRAFT, 120, answer);
                let sampler = greedy();
                let depths = Some(&mut depths);
                let run = generate_at(depths, &mut target, &mut stages, &sampler, prompt, config);
                assert_eq!(run.ids(), plain, "{name}");
                assert!(name == "plain" || run.rounds.iter().all(|round| round.depth.is_some()), "{name}");
            }
        }
    }
}

/// An interrupted read leaves a round without a draft, and what was read stays read.
#[test]
fn a_read_can_be_interrupted() {
    let prompt: Vec<TokenId> = (0..100).map(|i| i % 16).collect();
    let mut target = table(16, 0.0);
    let mut draft = DraftModel::new(Box::new(table(16, 0.0))).unwrap();
    let (sampler, clock) = (greedy(), Ticks::default());
    let mut depth = DepthController::default();
    let mut session = Session::new(&mut target, &sampler, &clock, config(4, 20, 0)).unwrap();
    session.add_proposer(&mut draft, Some(&mut depth));
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
fn penalties_follow_the_drafted_path() {
    let params = SamplingParams { repeat_penalty: 1.8, penalty_last_n: 8, ..SamplingParams::greedy() };
    let sampler = Sampler::new(params).unwrap();
    let mut target = table(16, 0.0);
    let prompt = [5, 6, 7, 5, 6, 7, 5, 6];
    let plain = generate(&mut target, &mut Vec::new(), &sampler, &prompt, config(0, 60, 1)).ids();
    assert_ne!(plain, greedy_continuation(&target, &prompt, 60), "the penalty does something");
    for max_draft in 1..=8 {
        for (name, mut stages) in methods(16, &plain) {
            let run = generate(&mut target, &mut stages, &sampler, &prompt, config(max_draft, 60, 1));
            assert_eq!(run.ids(), plain, "{name}, depth {max_draft}");
        }
    }
}

#[test]
fn a_perfect_draft_is_accepted_whole_and_pays_a_bonus() {
    let mut target = table(16, 0.0);
    let mut draft = only(DraftModel::new(Box::new(table(16, 0.0))).unwrap());
    let run = generate(&mut target, &mut draft, &greedy(), &[1, 2], config(4, 20, 0));
    assert_eq!((run.stats.rounds, run.stats.drafted, run.stats.accepted, run.stats.bonus), (4, 16, 16, 4));
    assert_eq!((run.stats.acceptance_rate, run.stats.mean_acceptance_length), (1.0, 5.0));
    assert_eq!(run.stats.accepted_at_position, [1.0; 4]);
    // Sampled too: q equals p, so nothing can be rejected.
    let sampler = Sampler::new(SamplingParams::unfiltered()).unwrap();
    let run = generate(&mut target, &mut draft, &sampler, &[1, 2], config(4, 20, 0));
    assert_eq!((run.stats.accepted, run.stats.bonus), (16, 4));
}

#[test]
fn plain_rounds_are_plain() {
    let run = generate(&mut table(16, 0.0), &mut Vec::new(), &greedy(), &[1], config(5, 9, 0));
    assert!(run.tokens.iter().all(|t| t.origin == TokenOrigin::Plain && t.position == 0));
    assert_eq!((run.stats.rounds, run.stats.plain, run.stats.drafted), (9, 9, 0));
    assert_eq!(run.stats.mean_acceptance_length, 1.0);
}

#[test]
fn synthetic_rates_come_out_as_asked() {
    let mut target =
        TableModel::new(TableConfig { seed: 11, context_length: 4096, ..TableConfig::default() });
    let script = greedy_continuation(&target, &[1, 2], 3000);
    let rates = [0.9, 0.5, 0.8];
    let mut proposer = only(Synthetic::new(script.clone(), rates.to_vec()).unwrap());
    let run = generate(&mut target, &mut proposer, &greedy(), &[1, 2], config(3, 3000, 6));
    assert_eq!(run.ids(), script);
    let mut reached = 1.0;
    for (rate, measured) in rates.iter().zip(&run.stats.accepted_at_position) {
        reached *= rate;
        assert!((measured - reached).abs() < 0.03, "{reached} asked, {measured} measured");
    }
}

#[test]
fn the_end_token_is_not_emitted_and_cuts_the_round() {
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
fn the_context_is_used_to_its_last_row() {
    for context_length in 4..24 {
        let mut target = TableModel::new(TableConfig { seed: 11, context_length, ..TableConfig::default() });
        let prompt = [1, 2, 3];
        // The last token needs no row of its own.
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
fn max_tokens_is_never_passed() {
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
fn a_cache_with_a_common_prefix_gives_the_same_answer() {
    let prompt: Vec<TokenId> = (0..40).map(|i| i * 7 % 16).collect();
    let mut target = table(16, 0.0);
    let plain = greedy_continuation(&target, &prompt, 12);
    for reuse in [1, 20, 39] {
        target.truncate(0).unwrap();
        target.forward(Step::chain(&prompt[..reuse], LogitRows::None)).unwrap();
        let clock = Ticks::default();
        let sampler = greedy();
        let mut session = Session::new(&mut target, &sampler, &clock, config(0, 12, 0)).unwrap();
        let mut heard = Vec::new();
        let mut progress = |done, total| {
            heard.push((done, total));
            ControlFlow::Continue(())
        };
        let _ = session.prefill(&prompt, reuse, &mut progress).unwrap();
        let ids: Vec<TokenId> = session.by_ref().flat_map(|r| r.unwrap().emitted).map(|t| t.id).collect();
        assert_eq!(ids, plain, "{reuse} tokens reused");
        // Only what is new runs, 32 rows a pass.
        let left = 39 - reuse;
        let expected: Vec<(usize, usize)> =
            (0..left).step_by(32).map(|done| ((done + 32).min(left), left)).collect();
        assert_eq!(heard, expected);
    }
}

#[test]
fn prefill_tells_progress_and_can_be_cancelled() {
    let prompt: Vec<TokenId> = (0..700).map(|i| i % 16).collect();
    let mut target = TableModel::new(TableConfig { context_length: 1000, ..TableConfig::default() });
    let clock = Ticks::default();
    let sampler = greedy();
    let mut session = Session::new(&mut target, &sampler, &clock, config(0, 5, 0)).unwrap();
    let mut heard = Vec::new();
    let mut progress = |done, total| {
        heard.push((done, total));
        if done > 500 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(session.prefill(&prompt, 0, &mut progress).unwrap().is_break());
    assert_eq!(heard, (1..=16).map(|chunk| (32 * chunk, 699)).collect::<Vec<_>>());
    assert_eq!(session.cached(), &prompt[..512]);
    assert!(session.round().is_err());
    assert!(session.next().is_none());
}

#[test]
fn bad_requests_are_refused() {
    let clock = Ticks::default();
    let sampler = greedy();
    let mut target = TableModel::new(TableConfig { context_length: 4, ..TableConfig::default() });
    for bad in [config(MAX_DRAFT + 1, 5, 0), config(3, 0, 0)] {
        let session = Session::new(&mut target, &sampler, &clock, bad);
        assert!(matches!(session.err(), Some(Error::InvalidRequest(_))));
    }
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut session = Session::new(&mut target, &sampler, &clock, config(3, 5, 0)).unwrap();
    assert!(session.round().is_err());
    assert!(matches!(session.prefill(&[], 0, &mut go_on), Err(Error::InvalidRequest(_))));
    let long = session.prefill(&[1; 5], 0, &mut go_on);
    assert!(matches!(long, Err(Error::ContextOverflow { prompt: 5, context: 4 })));
    assert!(matches!(session.prefill(&[1, 2], 1, &mut go_on), Err(Error::Internal(_))));
    assert!(session.prefill(&[1, 2], 0, &mut go_on).unwrap().is_continue());
    // Four rows take the prompt and two tokens; a third needs no row.
    assert_eq!(session.count(), 3);
}

#[test]
fn a_failure_leaves_what_was_emitted_and_a_sound_cache() {
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
