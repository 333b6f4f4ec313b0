//! The registry of methods: entries are complete, and a conversation's proposers serve all of them.

use std::collections::HashSet;
use std::sync::Arc;

use hunch_core::draft::DraftTree;
use hunch_core::method::Method;
use hunch_core::model::LanguageModel;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::head::Head;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::propose::{MethodOptions, Needs, OptionName, ProposeContext, Proposer, Proposers};
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::token::TokenId;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::toy::{ToyHead, table, texts};

const VOCAB: usize = 16;

fn draft() -> DraftModel {
    DraftModel::new(Box::new(table(VOCAB, 0.4))).unwrap()
}

/// Proposers with everything that any method needs.
fn complete() -> Proposers {
    let mut proposers = Proposers::new(Some(draft()));
    proposers.set_low_bit(draft());
    proposers.set_head(Some(Head::new(Box::new(ToyHead::new(VOCAB)))));
    proposers.set_texts(Some(Arc::new(texts(VOCAB))));
    proposers.set_script(Synthetic::new(vec![1], 1.0).unwrap());
    proposers
}

#[test]
fn names_are_unique_and_the_same_in_json_and_on_the_command_line() {
    let mut names = HashSet::new();
    for method in Method::REGISTERED {
        let name = method.name();
        assert!(names.insert(name), "{name} is registered twice");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
        assert!(!method.summary().is_empty() && !method.summary().ends_with('.'), "{name}");
        assert_eq!(serde_json::to_string(&method).unwrap(), format!("\"{name}\""));
        assert_eq!(serde_json::from_str::<Method>(&format!("\"{name}\"")).unwrap(), method);
        assert_eq!(name.parse::<Method>().unwrap(), method);
    }
    let error = "nonsense".parse::<Method>().unwrap_err().to_string();
    let named: Vec<&str> = Method::selectable().map(Method::name).collect();
    assert!(error.contains(&format!("one of {}.", named.join(", "))), "{error}");
    assert!(named.first() == Some(&"plain") && !named.contains(&"synthetic"), "{named:?}");
}

#[test]
fn options_follow_from_stages_and_have_json_names() {
    let options = |method: Method| {
        let names = method.options().map(|option| serde_json::to_value(option).unwrap());
        names.map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(options(Method::DraftTree), ["tree", "draft_window"]);
    assert_eq!(options(Method::HeadTree), ["tree"]);
    assert_eq!(options(Method::EarlyExit), ["exit_layer", "draft_window"]);
    assert_eq!(options(Method::LayerSkip), ["skipped_layers", "draft_window"]);
    assert_eq!(options(Method::Auto), ["draft_window"]);
    assert!(options(Method::Plain).is_empty() && options(Method::Suffix).is_empty());

    let written = r#"{"tree":"3x2","exit_layer":4,"skipped_layers":[1,2],"draft_window":256}"#;
    let read: MethodOptions = serde_json::from_str(written).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), written);
    let fields: serde_json::Map<_, _> = serde_json::from_str(written).unwrap();
    let names = OptionName::ALL.map(|option| serde_json::to_value(option).unwrap());
    assert!(fields.keys().eq(names.iter().map(|name| name.as_str().unwrap())), "{names:?}");

    assert_eq!(serde_json::to_string(&MethodOptions::default()).unwrap(), "{}");
    assert_eq!(serde_json::from_str::<MethodOptions>("{}").unwrap(), MethodOptions::default());
    for bad in [
        r#"{"tree":"3x0"}"#,
        r#"{"draft_window":0}"#,
        r#"{"draft_window":4294967296}"#,
        r#"{"exit_layer":-1}"#,
    ] {
        assert!(serde_json::from_str::<MethodOptions>(bad).is_err(), "{bad}");
    }
}

#[test]
fn properties_follow_from_stages() {
    let (with, without) = (Method::usable(&[Needs::DraftModel]), Method::usable(&[]));
    for method in Method::REGISTERED {
        assert_eq!(without.contains(&method), method.needs().next().is_none(), "{method}");
        let draft_alone = method.needs().all(|needs| needs == Needs::DraftModel);
        assert_eq!(with.contains(&method), draft_alone, "{method}");
        assert_eq!(with.contains(&method) && !without.contains(&method), draft_alone && method.needs_draft());
    }
    for method in [Method::Cascade, Method::DraftModel, Method::DraftTree] {
        assert!(method.needs_draft() && with.contains(&method) && !without.contains(&method), "{method}");
    }
    let selectable: Vec<Method> = Method::selectable().collect();
    let all = [Needs::Texts, Needs::DraftModel, Needs::LowBitCopy, Needs::Head];
    assert_eq!(Method::usable(&all), selectable);
    assert!(Method::usable(&[Needs::Head]).contains(&Method::NgramHead));
    assert!(selectable.contains(&Method::LowBit) && !selectable.contains(&Method::Synthetic));
    assert_eq!(Method::Cascade.drafter(), Some(Method::DraftModel));
    assert_eq!(Method::DraftTree.drafter(), Some(Method::DraftModel));
    assert_eq!(Method::NgramHead.drafter(), Some(Method::Head));
    assert!(without.contains(&Method::Auto) && Method::Auto.uses_draft() && !Method::Auto.needs_draft());
    assert_eq!(serde_json::from_str::<Method>("\"cascade-head\"").unwrap(), Method::Auto, "its former name");
    for method in [Method::EarlyExit, Method::LayerSkip, Method::LowBit, Method::Head] {
        assert_eq!(method.drafter(), Some(method));
    }
    let lookups = [Method::Ngram, Method::Suffix, Method::Retrieval];
    for method in [Method::Plain, Method::Lookahead, Method::Synthetic].into_iter().chain(lookups) {
        assert_eq!(method.drafter(), None);
    }
    assert_eq!((Method::Lookahead.extra_rows(), Method::Cascade.extra_rows()), (9, 0));
    assert_eq!(Method::default(), Method::Plain);
}

#[test]
fn complete_proposers_serve_every_method() {
    let (target, mut proposers) = (table(VOCAB, 0.0), complete());
    for method in Method::REGISTERED {
        assert!(method.needs().all(|needs| proposers.has(needs)), "{method}");
        proposers.prepare(method, &MethodOptions::default(), target.info()).unwrap();
        assert_eq!(proposers.stages(method).unwrap().len(), method.entry().stages.len(), "{method}");
    }
}

/// Each draft is reported as that of a method, and the two models must not be taken for each other.
#[test]
fn drafts_are_named_after_the_model_that_made_them() {
    let (target, proposers) = (table(VOCAB, 0.0), complete());
    for mut proposers in [proposers.fork().unwrap(), proposers] {
        for method in [Method::DraftModel, Method::DraftTree, Method::LowBit, Method::Head, Method::Ngram] {
            proposers.prepare(method, &MethodOptions::default(), target.info()).unwrap();
            assert_eq!(proposers.stages(method).unwrap()[0].method(), method);
        }
    }
}

#[test]
fn optional_stages_are_left_out() {
    let target = table(VOCAB, 0.0);
    for loaded in 0..8 {
        let [with_draft, with_head, with_texts] = [1, 2, 4].map(|bit| loaded & bit != 0);
        let mut proposers = Proposers::new(with_draft.then(draft));
        proposers.set_texts(with_texts.then(|| Arc::new(texts(VOCAB))));
        proposers.set_head(with_head.then(|| Head::new(Box::new(ToyHead::new(VOCAB)))));
        proposers.prepare(Method::Auto, &MethodOptions::default(), target.info()).unwrap();
        let mut expected = vec![Method::Suffix];
        expected.extend(with_texts.then_some(Method::Retrieval));
        expected.extend(with_draft.then_some(Method::DraftModel));
        expected.extend(with_head.then_some(Method::Head));
        let needs: Vec<Needs> =
            proposers.loaded_stages(Method::Auto).iter().map(|stage| stage.needs()).collect();
        let stages = proposers.stages(Method::Auto).unwrap();
        assert_eq!(stages.iter().map(|stage| stage.method()).collect::<Vec<_>>(), expected);
        let needed = expected.iter().map(|method| method.needs().next().unwrap_or(Needs::Nothing));
        assert_eq!(needs, needed.collect::<Vec<_>>(), "in the same order");
    }
}

#[test]
fn missing_proposers_are_refused() {
    let (target, mut proposers) = (table(VOCAB, 0.0), Proposers::default());
    for method in Method::REGISTERED {
        proposers.prepare(method, &MethodOptions::default(), target.info()).unwrap();
        let usable = method.needs().next().is_none();
        let complete = method.needs().all(|needs| proposers.has(needs));
        assert_eq!((complete, proposers.stages(method).is_ok()), (usable, usable));
    }
    let too_many = MethodOptions { exit_layer: Some(99), ..MethodOptions::default() };
    assert!(proposers.prepare(Method::EarlyExit, &too_many, target.info()).is_err());
}

fn propose(proposer: &mut dyn Proposer, committed: &[TokenId]) -> DraftTree {
    let mut target = table(VOCAB, 0.0);
    let cx = ProposeContext {
        committed,
        plan: hunch_core::depth::DraftPlan::fixed(4),
        end_tokens: &[],
        sampler: &Sampler::new(SamplingParams::greedy()).unwrap(),
        noise: None,
        rng: &mut ChaCha8Rng::seed_from_u64(1),
        target: &mut target,
    };
    proposer.propose(cx).unwrap()
}

#[test]
fn methods_share_cache_of_draft_model_until_fork() {
    let (info, text) = (table(VOCAB, 0.0).info().clone(), [1, 2, 3, 4]);
    let options = MethodOptions::default();
    let mut proposers = complete();
    proposers.prepare(Method::DraftModel, &options, &info).unwrap();
    let mut stages = proposers.stages(Method::DraftModel).unwrap();
    assert_eq!(stages[0].unread_len(&text), 3);
    assert_eq!(propose(stages[0], &text).len(), 4);
    proposers.prepare(Method::Cascade, &options, &info).unwrap();
    assert_eq!(proposers.stages(Method::Cascade).unwrap()[1].unread_len(&text), 0);
    let mut fork = proposers.fork().unwrap();
    let forked = [Needs::DraftModel, Needs::LowBitCopy, Needs::Head, Needs::Texts];
    assert!(forked.into_iter().all(|needs| fork.has(needs)) && !fork.has(Needs::Script));
    fork.prepare(Method::Cascade, &options, &info).unwrap();
    assert_eq!(fork.stages(Method::Cascade).unwrap()[1].unread_len(&text), 3);
    proposers.empty_caches().unwrap();
    assert_eq!(proposers.stages(Method::Cascade).unwrap()[1].unread_len(&text), 3);
}
