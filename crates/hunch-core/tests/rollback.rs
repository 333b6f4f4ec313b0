//! Rollback: truncating or keeping rows gives the same state as running the remaining tokens on a fresh
//! cache.

use std::ops::ControlFlow;

use hunch_core::model::{LanguageModel, LogitRows, PassInput, RowLayout, Rows};
use hunch_core::propose::ngram::Ngram;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::Session;
use hunch_core::token::TokenId;
use proptest::prelude::*;

use crate::toy::{Ticks, config, greedy_continuation, table};

const VOCAB: usize = 16;

fn next_logits(model: &mut dyn LanguageModel, token: TokenId) -> Rows {
    model.forward(PassInput::chain(&[token], LogitRows::Last)).unwrap().logits
}

fn logits_on_fresh_cache(tokens: &[TokenId], token: TokenId) -> Rows {
    let mut model = table(VOCAB, 0.0);
    if !tokens.is_empty() {
        model.forward(PassInput::chain(tokens, LogitRows::None)).unwrap();
    }
    next_logits(&mut model, token)
}

fn tokens(n: std::ops::Range<usize>) -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec(0..VOCAB as TokenId, n)
}

/// Parents of a random tree of up to 15 nodes. A node's parent is an earlier node or the cache.
fn parents() -> impl Strategy<Value = Vec<Option<usize>>> {
    prop::collection::vec(any::<prop::sample::Index>(), 1..16).prop_map(|picks| {
        picks.iter().enumerate().map(|(i, pick)| pick.index(i + 1).checked_sub(1)).collect()
    })
}

proptest! {
    #[test]
    fn truncate_then_refill_matches_fresh_cache(
        kept in tokens(0..20), dropped in tokens(1..16), token in 0..VOCAB as TokenId,
    ) {
        let mut model = table(VOCAB, 0.0);
        let all = [&kept[..], &dropped].concat();
        model.forward(PassInput::chain(&all, LogitRows::None)).unwrap();
        model.truncate(kept.len()).unwrap();
        prop_assert_eq!(next_logits(&mut model, token), logits_on_fresh_cache(&kept, token));
    }

    #[test]
    fn kept_tree_path_matches_fresh_cache(
        before in tokens(0..10),
        parents in parents(),
        drafted in tokens(15..16),
        leaf in any::<prop::sample::Index>(),
        token in 0..VOCAB as TokenId,
    ) {
        let drafted = &drafted[..parents.len()];
        let mut path: Vec<usize> =
            std::iter::successors(Some(leaf.index(parents.len())), |&i| parents[i]).collect();
        path.reverse();
        let mut model = table(VOCAB, 0.0);
        if !before.is_empty() {
            model.forward(PassInput::chain(&before, LogitRows::None)).unwrap();
        }
        let layout = RowLayout::Tree { parents: &parents };
        let step = PassInput { layout, ..PassInput::chain(drafted, LogitRows::All) };
        let output = model.forward(step).unwrap();
        let walked: Vec<TokenId> =
            before.iter().copied().chain(path.iter().map(|&i| drafted[i])).collect();
        prop_assert_eq!(output.logits.row(*path.last().unwrap()), model.logits_after(&walked));
        model.keep_rows(before.len(), &path).unwrap();
        prop_assert_eq!(model.cache_len(), walked.len());
        prop_assert_eq!(next_logits(&mut model, token), logits_on_fresh_cache(&walked, token));
    }
}

#[test]
fn retract_tail_restores_cache_and_stats() {
    let prompt: [TokenId; 8] = [5, 6, 7, 5, 6, 7, 5, 6];
    let mut target = table(VOCAB, 0.0);
    let plain = greedy_continuation(&target, &prompt, 20);
    let clock = Ticks::default();
    let sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    let mut proposer = Ngram::default();
    let mut session = Session::new(&mut target, &sampler, &clock, config(4, 20, 0)).unwrap();
    session.add_proposer(&mut proposer);
    let _ = session.prefill(&prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let emitted: Vec<_> = session.by_ref().flat_map(|r| r.unwrap().emitted).collect();
    assert!(session.retract_tail(&emitted[..3]).is_err(), "not the last tokens");
    session.retract_tail(&emitted[15..]).unwrap();
    assert_eq!(session.generated(), 15);
    assert_eq!(session.committed(), [&prompt[..], &plain[..15]].concat());
    assert_eq!(session.cached().len(), prompt.len() + 14);
    let stats = session.stats("cpu", 0);
    assert_eq!(stats.generated_tokens, 15);
    assert_eq!(stats.accepted + stats.resampled + stats.bonus + stats.plain, 15);
    assert!(session.next().is_none());
    let kept = [&prompt[..], &plain[..14]].concat();
    assert_eq!(next_logits(&mut target, plain[14]), logits_on_fresh_cache(&kept, plain[14]));
}
