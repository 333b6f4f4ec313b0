//! Draft models with another tokeniser: the translation of tokens, the passes of the draft, and whole answers.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch::generate::Models;
use hunch::proof::{self, ProofCheck, ProofPlan};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, PassInput, RowLayout, VocabSubset};
use hunch_core::propose::Proposer;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::session::{Session, SessionConfig};
use hunch_core::table::{TableConfig, TableModel};
use hunch_core::theory::goodness_of_fit;
use hunch_core::token::{TokenId, TokenOrigin};
use hunch_error::ErrorCode;
use hunch_model::decoder::Decoder;
use hunch_model::gguf::Gguf;
use hunch_model::text::{Tokenizer, Translation};
use hunch_model::translated::Translated;
use proptest::prelude::*;

use crate::support::cpu;
use crate::support::memo::PassClock;
use crate::support::mutate::runner;
use crate::support::vocabulary;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::samples::{byte_characters, byte_level, scored};
use hunch_testing::tiny::{Noise, Tiny, VOCABULARY, WIDTH, byte_token};

/// Methods that draft with a draft model, with others or alone.
const METHODS: [Method; 4] = [Method::DraftModel, Method::DraftTree, Method::Cascade, Method::Auto];

fn tokenizer(writer: &GgufWriter) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::parse(Path::new("model.gguf"), &writer.bytes()).unwrap()).unwrap()
}

fn translation(target: &Tokenizer, draft: &Tokenizer) -> Translation {
    Translation::new(target, draft).unwrap().expect("the vocabularies differ")
}

/// Returns the id of a text in a vocabulary.
fn id(tokenizer: &Tokenizer, text: &str) -> TokenId {
    (0..tokenizer.vocab_size() as TokenId).find(|&id| tokenizer.token_text(id) == text).unwrap()
}

#[test]
fn tokens_are_translated_by_their_bytes() {
    let (level, pieces) = (tokenizer(&byte_level()), tokenizer(&scored()));
    let spelled = |from: &Tokenizer, to: &Tokenizer, text: &str| -> Vec<String> {
        let ids = translation(from, to).pieces(id(from, text)).to_vec();
        ids.into_iter().map(|id| to.token_text(id).to_owned()).collect()
    };
    for (text, expected) in [
        // A word before the byte token of the same byte.
        ("a", &["a"][..]),
        ("Ġ", &["\u{2581}"]),
        ("ĠĠ", &["\u{2581}\u{2581}"]),
        ("Ã©", &["é"]),
        // Half a character, and bytes that are no word of the draft.
        ("Ã", &["<0xC3>"]),
        ("Ċ", &["<0x0A>"]),
        ("Ġt", &["\u{2581}", "<0x74>"]),
        // Control tokens by their roles, or spelled without special tokens.
        ("<|im_end|>", &["</s>"]),
        ("<|im_start|>", &["<s>"]),
        ("<|endoftext|>", &["</s>"]),
    ] {
        assert_eq!(spelled(&level, &pieces, text), expected, "{text}");
    }
    assert_eq!(spelled(&level, &pieces, "<tool>").len(), 6);
    for (text, expected) in [
        ("<0x0A>", &["Ċ"][..]),
        ("<0x61>", &["a"]),
        ("\u{2581}ab", &["Ġ", "a", "b"]),
        ("é", &["Ã©"]),
        ("éa", &["Ã©", "a"]),
        ("<s>", &["<|im_start|>"]),
        ("</s>", &["<|endoftext|>"]),
        ("<unk>", &["<", "u", "n", "k", ">"]),
    ] {
        assert_eq!(spelled(&pieces, &level, text), expected, "{text}");
    }
}

#[test]
fn half_characters_become_the_longest_tokens_with_their_bytes() {
    // The first two bytes of a character of three are one token of both.
    let target = tokenizer(&vocabulary(&[("æĹ", 1), ("ĹŃa", 1), ("aæĹ", 1)]));
    let draft = tokenizer(&vocabulary(&[("æĹ", 1), ("æ", 1), ("Ĺ", 1), ("Ń", 1), ("a", 1), ("ĹŃ", 1)]));
    let translation = translation(&target, &draft);
    assert_eq!(translation.pieces(0), [0]);
    // Both bytes are no character, alone or together.
    assert_eq!(translation.pieces(1), [2, 3, 4]);
    // The draft has the beginning of a character after the letter as one token.
    assert_eq!(translation.pieces(2), [4, 0]);
    assert!(translation.pieces(3).is_empty(), "outside of the vocabulary");
}

#[test]
fn draft_can_propose_the_end_and_control_tokens_of_the_same_text() {
    let words = [("a", 1), ("b", 1)];
    let target = vocabulary(&[&words[..], &[("<|im_end|>", 3), ("<|think|>", 3)]].concat());
    let target = tokenizer(&target.u32("tokenizer.ggml.eos_token_id", 2));
    let draft = vocabulary(&[&[("<|think|>", 3), ("<end>", 3)][..], &words].concat());
    let draft = tokenizer(&draft.u32("tokenizer.ggml.eos_token_id", 1));
    let translation = translation(&target, &draft);
    assert_eq!(translation.shared(), [(0, 3), (1, 2), (2, 0), (3, 1)]);
    assert_eq!((translation.pieces(2), translation.pieces(3)), (&[1][..], &[0][..]));
    // An end with the same text is not shared again by its role.
    let ends = [("<|im_end|>", 3), ("<|endoftext|>", 3)];
    let target = tokenizer(&vocabulary(&[&words[..], &ends].concat()).u32("tokenizer.ggml.eos_token_id", 3));
    let draft = [&[("b", 1), ("a", 1), ("<end>", 3)][..], &ends].concat();
    let draft = tokenizer(&vocabulary(&draft).u32("tokenizer.ggml.eos_token_id", 2));
    assert_eq!(self::translation(&target, &draft).shared(), [(0, 1), (1, 0), (3, 2), (4, 3)]);
}

#[test]
fn text_begins_with_the_token_that_the_draft_needs() {
    let (level, pieces) = (tokenizer(&byte_level()), tokenizer(&scored()));
    let translation = Arc::new(translation(&level, &pieces));
    let bos = pieces.bos().unwrap();
    let start = id(&level, "<|im_start|>");
    assert_eq!((translation.bos_before(7), translation.bos_before(start)), (Some(bos), None));
    let draft = || table(pieces.vocab_size(), 64);
    let mut model = Translated::new(Box::new(draft()), translation.clone());
    let output = model.forward(PassInput::chain(&[97, 98], LogitRows::Last)).unwrap();
    let expected = draft().logits_after(&[bos, id(&pieces, "a"), id(&pieces, "b")]);
    assert_eq!(bits(output.logits.row(0)), scattered(&expected, &translation, None));
    assert_eq!((model.cache_len(), model.rows_of(&[97, 98]), model.rows_of(&[start, 98])), (2, 3, 2));
}

#[test]
fn refuses_drafts_that_share_nothing() {
    let target = tokenizer(&vocabulary(&[("a", 1), ("b", 1), ("<|im_end|>", 3)]));
    let strangers = tokenizer(&vocabulary(&[("x", 1), ("y", 1), ("<|im_end|>", 3)]));
    let error = Translation::new(&target, &strangers).unwrap_err();
    assert_eq!(error.code(), ErrorCode::VocabularyMismatch);
    assert!(error.to_string().contains("has only 0 of its 3 tokens"), "{error}");
    assert!(
        Translation::new(&target, &target).unwrap().is_none(),
        "the same vocabulary needs no translation"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Vocabularies with duplicates and in any order, on either side.
    #[test]
    fn pieces_have_the_bytes_of_their_token_and_shared_tokens_are_unique(
        words in prop::collection::vec("[abÃ©Ġ]{1,4}", 0..24),
        others in prop::collection::vec("[ab\u{e9}\u{2581}]{1,4}", 0..24),
    ) {
        let alphabet = byte_characters();
        let texts = alphabet.iter().map(String::as_str).chain(words.iter().map(String::as_str));
        let level = tokenizer(&vocabulary(&texts.map(|text| (text, 1)).collect::<Vec<_>>()));
        let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
        let texts: Vec<&str> =
                others.iter().map(String::as_str).chain(["\u{2581}"]).chain(bytes.iter().map(String::as_str)).collect();
        let scores: Vec<f32> = (0..texts.len()).map(|i| -(i as f32)).collect();
        let pieces = tokenizer(
            &GgufWriter::new()
                .str("tokenizer.ggml.model", "llama")
                .strings("tokenizer.ggml.tokens", texts)
                .f32s("tokenizer.ggml.scores", &scores),
        );
        for (target, draft) in [(&level, &pieces), (&pieces, &level)] {
            let translation = translation(target, draft);
            for token in 0..target.vocab_size() as TokenId {
                let of_draft: Vec<u8> =
                    translation.pieces(token).iter().flat_map(|&id| draft.token_bytes(id)).collect();
                prop_assert_eq!(of_draft, target.token_bytes(token), "{}", target.token_text(token));
            }
            for &(id, token) in translation.shared() {
                prop_assert_eq!(translation.pieces(token), [id]);
            }
            let unique: (HashSet<_>, HashSet<_>) = translation.shared().iter().copied().unzip();
            prop_assert_eq!((unique.0.len(), unique.1.len()), (translation.shared().len(), translation.shared().len()));
            prop_assert!(translation.shared().is_sorted() && translation.shared().len() >= 256);
        }
    }
}

/// A model whose logits depend on all tokens before them.
fn table(n_vocab: usize, context_length: usize) -> TableModel {
    TableModel::new(TableConfig { seed: 5, n_vocab, order: 64, context_length, ..TableConfig::default() })
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// The row of the target's width that follows from a row of the draft.
fn scattered(of_draft: &[f32], translation: &Translation, list: Option<&VocabSubset>) -> Vec<u32> {
    let mut row = vec![f32::NEG_INFINITY; translation.n_vocab()];
    for &(id, token) in translation.shared() {
        if list.is_none_or(|list| list.contains(token)) {
            row[token as usize] = of_draft[id as usize];
        }
    }
    bits(&row)
}

/// A change of a cache, by random numbers.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Runs some tokens.
    Chain(usize, LogitRows, bool),
    /// Runs a tree in two passes and keeps a path.
    Tree,
    /// Drops the end.
    Truncate(usize),
    /// Continues with a fork that has read the same.
    Fork,
}

fn changes() -> impl Strategy<Value = Vec<(Change, u64)>> {
    let rows = prop_oneof![Just(LogitRows::All), Just(LogitRows::Last), Just(LogitRows::None)];
    let change = prop_oneof![
        4 => (1..6usize, rows, any::<bool>()).prop_map(|(count, rows, list)| Change::Chain(count, rows, list)),
        2 => Just(Change::Tree),
        2 => (0..8usize).prop_map(Change::Truncate),
        1 => Just(Change::Fork),
    ];
    prop::collection::vec((change, any::<u64>()), 1..12)
}

/// Applies changes to a translated model. Each row is compared with the draft on the translated text.
///
/// With `lists`, the draft has enough tokens to score a part of them.
fn assert_rows_match(
    draft: &dyn LanguageModel,
    translation: &Arc<Translation>,
    changes: &[(Change, u64)],
    lists: bool,
) {
    let n_vocab = translation.n_vocab();
    let mut model: Box<dyn LanguageModel> = Box::new(Translated::new(draft.fork(), translation.clone()));
    let expected = |text: &[TokenId], list: Option<&VocabSubset>| {
        let bos = text.first().and_then(|&first| translation.bos_before(first));
        let pieces = text.iter().flat_map(|&token| translation.pieces(token)).copied();
        let pieces: Vec<TokenId> = bos.into_iter().chain(pieces).collect();
        let output = draft.fork().forward(PassInput::chain(&pieces, LogitRows::Last)).unwrap();
        scattered(output.logits.row(0), translation, list)
    };
    let mut text: Vec<TokenId> = Vec::new();
    for &(change, seed) in changes {
        let mut noise = Noise::new(seed);
        let mut below = |n: usize| ((noise.value() + 1.0) * 0.5 * n as f32) as usize % n;
        match change {
            Change::Chain(count, logits, listed) => {
                let mut list = VocabSubset::default();
                (0..6).for_each(|_| list.insert(below(n_vocab) as TokenId));
                list.insert(translation.shared()[0].1);
                let vocab_subset = Some(&list).filter(|_| listed);
                let tokens: Vec<TokenId> = (0..count).map(|_| below(n_vocab) as TokenId).collect();
                let step = PassInput { vocab_subset, ..PassInput::chain(&tokens, logits) };
                let output = model.forward(step).unwrap().logits;
                let (before, list) = (text.len(), vocab_subset.filter(|_| lists));
                text.extend(&tokens);
                let first = match logits {
                    LogitRows::All => before,
                    LogitRows::Last => text.len() - 1,
                    LogitRows::None => text.len(),
                };
                assert_eq!(output.len(), text.len() - first);
                for (i, last) in (first..text.len()).enumerate() {
                    assert_eq!(bits(output.row(i)), expected(&text[..=last], list), "{change:?}");
                }
            }
            Change::Tree => {
                let nodes: Vec<TokenId> = (0..5).map(|_| below(n_vocab) as TokenId).collect();
                let parents: Vec<Option<usize>> = (0..5).map(|i| below(i + 1).checked_sub(1)).collect();
                let path_of = |node: usize| {
                    let mut path: Vec<usize> = std::iter::successors(Some(node), |&i| parents[i]).collect();
                    path.reverse();
                    path
                };
                let since = model.cache_len();
                let layout = RowLayout::Tree { parents: &parents[..2] };
                let step = PassInput { layout, ..PassInput::chain(&nodes[..2], LogitRows::All) };
                let first = model.forward(step).unwrap().logits;
                let paths: Vec<_> = (2..5).map(path_of).collect();
                let depths: Vec<usize> = paths.iter().map(|path| path.len() - 1).collect();
                let visible: Vec<u64> =
                    paths.iter().map(|path| path.iter().map(|row| 1 << row).sum()).collect();
                let layout = RowLayout::Custom { since, depths: &depths, visible: &visible };
                let step = PassInput { layout, ..PassInput::chain(&nodes[2..], LogitRows::All) };
                let second = model.forward(step).unwrap().logits;
                for node in 0..5 {
                    let path: Vec<TokenId> = path_of(node).into_iter().map(|i| nodes[i]).collect();
                    let row = if node < 2 { first.row(node) } else { second.row(node - 2) };
                    assert_eq!(
                        bits(row),
                        expected(&[&text[..], &path].concat(), None),
                        "{node} of {parents:?}"
                    );
                }
                let kept = path_of(below(5));
                model.keep_rows(since, &kept).unwrap();
                text.extend(kept.iter().map(|&node| nodes[node]));
            }
            Change::Truncate(rows) => {
                text.truncate(text.len().saturating_sub(rows));
                model.truncate(text.len()).unwrap();
            }
            Change::Fork => {
                let mut fork = model.fork();
                assert_eq!(fork.cache_len(), 0);
                if !text.is_empty() {
                    fork.forward(PassInput::chain(&text, LogitRows::None)).unwrap();
                }
                model = fork;
            }
        }
        assert_eq!(model.cache_len(), text.len());
    }
}

/// A target whose draft knows words that it does not, and the other way round. A few tokens take several pieces, so
/// that trees fit.
fn toy_tokenizers() -> [Tokenizer; 2] {
    let end = [("<|im_end|>", 3)];
    let target = [("a", 1), ("ab", 1), ("b", 1), ("ĠbaĠa", 1), ("Ġ", 1), ("aa", 1), ("c", 1)];
    let draft = [("bb", 1), ("Ġ", 1), ("b", 1), ("ac", 1), ("a", 1), ("ab", 1), ("c", 1), ("cc", 1)];
    [&target[..], &draft].map(|words| {
        let eos = words.len() as u32;
        tokenizer(&vocabulary(&[words, &end].concat()).u32("tokenizer.ggml.eos_token_id", eos))
    })
}

#[test]
fn passes_match_the_draft_on_the_translated_text() {
    let [target, draft] = toy_tokenizers();
    let translation = Arc::new(translation(&target, &draft));
    assert!(translation.pieces(3).len() == 5 && translation.pieces(5).len() == 2);
    let model = table(draft.vocab_size(), 4096);
    runner(400)
        .run(&changes(), |changes| {
            assert_rows_match(&model, &translation, &changes, false);
            Ok(())
        })
        .unwrap();
}

/// Row by row, bit for bit. Long chains are split into passes, which changes nothing either.
#[test]
fn passes_of_a_decoder_match_it_on_the_translated_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() }.write(folder.path(), "draft");
    let (target, draft) = (tokenizer(&byte_level()), tokenizer(&Tiny::default().writer()));
    let translation = Arc::new(translation(&target, &draft));
    let decoder = Decoder::open(&path, &cpu()).unwrap();
    runner(12)
        .run(&changes(), |changes| {
            assert_rows_match(&decoder, &translation, &changes, true);
            Ok(())
        })
        .unwrap();
    let the = id(&target, "Ġthe");
    assert_eq!(translation.pieces(the).len(), 4);
    let mut model = Translated::new(Box::new(decoder.forked()), translation.clone());
    let long = vec![the; 40];
    let rows = model.forward(PassInput::chain(&long, LogitRows::All)).unwrap().logits;
    let mut plain = decoder.forked();
    let pieces = translation.pieces(the).repeat(40);
    let expected = plain.forward(PassInput::chain(&pieces, LogitRows::All)).unwrap().logits;
    for i in 0..40 {
        assert_eq!(bits(rows.row(i)), scattered(expected.row(4 * i + 3), &translation, None), "{i}");
    }
}

#[test]
fn failed_passes_leave_the_cache_unchanged() {
    let [target, draft] = toy_tokenizers();
    let translation = Arc::new(translation(&target, &draft));
    let mut model = Translated::new(Box::new(table(draft.vocab_size(), 40)), translation.clone());
    model.forward(PassInput::chain(&[0, 3, 1], LogitRows::None)).unwrap();
    // Outside of the vocabulary; too long, in the second of two passes; empty; more rows than a mask has; taps.
    let invalid = [99];
    let long = [3; 8];
    let tree = RowLayout::Tree { parents: &[None; 14] };
    let steps = [
        PassInput::chain(&invalid, LogitRows::Last),
        PassInput::chain(&long, LogitRows::Last),
        PassInput::chain(&[], LogitRows::Last),
        PassInput { layout: tree, ..PassInput::chain(&[3; 14], LogitRows::All) },
        PassInput { taps: &[0], ..PassInput::chain(&[0], LogitRows::Last) },
    ];
    for step in steps {
        assert!(model.forward(step).is_err());
        assert_eq!(model.cache_len(), 3);
    }
    assert!(model.keep_rows(1, &[2]).is_err() && model.keep_rows(4, &[]).is_err());
    let row = model.forward(PassInput::chain(&[2], LogitRows::Last)).unwrap().logits;
    let pieces: Vec<TokenId> = [0, 3, 1, 2].iter().flat_map(|&t| translation.pieces(t)).copied().collect();
    let expected = table(draft.vocab_size(), 40).logits_after(&pieces);
    assert_eq!(bits(row.row(0)), scattered(&expected, &translation, None));
}

/// A session of a toy target with a translated draft. Returns the tokens, and how many were drafted and accepted.
fn toy_answer(
    draft: &mut DraftModel,
    sampling: SamplingParams,
    (prompt, tokens, seed): (&[TokenId], usize, u64),
) -> (Vec<TokenId>, usize, usize) {
    let [target, _] = toy_tokenizers();
    let mut target = table(target.vocab_size(), 4096);
    let (sampler, clock) = (Sampler::new(sampling).unwrap(), PassClock::default());
    let config = SessionConfig {
        max_draft: 3,
        max_tokens: tokens,
        end_tokens: Vec::new(),
        seed,
        rule: AcceptanceRule::Lossless,
    };
    let mut session = Session::new(&mut target, &sampler, &clock, config).unwrap();
    session.add_proposer(draft);
    assert!(session.prefill(prompt, 0, &mut |_, _| ControlFlow::Continue(())).unwrap().is_continue());
    let (mut ids, mut drafted, mut accepted) = (Vec::new(), 0, 0);
    for round in session.by_ref() {
        let round = round.unwrap();
        drafted += round.drafted.len();
        accepted += round.emitted.iter().filter(|token| token.origin == TokenOrigin::Accepted).count();
        ids.extend(round.emitted.iter().map(|token| token.id));
    }
    assert!(session.take_dropped().is_empty(), "no draft fails");
    (ids, drafted, accepted)
}

fn toy_draft(context_length: usize) -> DraftModel {
    let [target, draft] = toy_tokenizers();
    let model = table(draft.vocab_size(), context_length);
    DraftModel::new(Box::new(Translated::new(Box::new(model), Arc::new(translation(&target, &draft)))))
        .unwrap()
}

#[test]
fn draft_stops_where_its_context_is_full_and_the_answer_continues() {
    let prompt = [3, 3, 1];
    for tree in [None, Some(TreeShape::Dynamic)] {
        for context in [8, 11, 12, 13, 20, 30] {
            let mut short = toy_draft(context);
            short.set_tree(tree.clone());
            let mut long = toy_draft(4096);
            long.set_tree(tree.clone());
            let greedy = SamplingParams::greedy();
            let (text, drafted, _) = toy_answer(&mut short, greedy.clone(), (&prompt, 40, 1));
            let (expected, of_long, _) = toy_answer(&mut long, greedy, (&prompt, 40, 1));
            assert_eq!(text, expected);
            // The prompt has three tokens and eleven pieces.
            assert!(
                (drafted > 0) == (context >= 11) && drafted < of_long,
                "{context}: {drafted} of {of_long}"
            );
        }
    }
}

/// The first three tokens of 6000 answers, against the exact distribution of the target.
#[test]
fn answers_follow_the_distribution_of_the_target() {
    let [tokenizer, _] = toy_tokenizers();
    let (n_vocab, prompt) = (tokenizer.vocab_size(), [0, 2, 5]);
    let target = table(n_vocab, 4096);
    for params in [SamplingParams::unfiltered(), SamplingParams { top_k: 4, ..SamplingParams::unfiltered() }]
    {
        let sampler = Sampler::new(params.clone()).unwrap();
        let mut exact = vec![1.0];
        for depth in 0..3 {
            let parents = exact.iter().enumerate().flat_map(|(index, p)| {
                let digits = (0..depth).rev().map(|digit| index / n_vocab.pow(digit) % n_vocab);
                let text: Vec<TokenId> =
                    prompt.iter().copied().chain(digits.map(|digit| digit as TokenId)).collect();
                let next = sampler.distribution(&target.logits_after(&text), &text).unwrap();
                next.into_iter().map(|q| p * f64::from(q)).collect::<Vec<_>>()
            });
            exact = parents.collect();
        }
        for tree in [None, Some(TreeShape::Dynamic)] {
            let mut draft = toy_draft(4096);
            draft.set_tree(tree);
            let (mut counts, mut drafted, mut accepted) = (vec![0; exact.len()], 0, 0);
            for seed in 0..6000 {
                let answer = toy_answer(&mut draft, params.clone(), (&prompt, 4, seed));
                let index = answer.0[..3].iter().fold(0, |index, &token| index * n_vocab + token as usize);
                counts[index] += 1;
                (drafted, accepted) = (drafted + answer.1, accepted + answer.2);
            }
            let fit = goodness_of_fit(&counts, &exact);
            println!("{:?}: {fit:?}, {accepted} of {drafted} accepted", draft.method());
            assert!(fit.p_value > 1e-3 && accepted > 1000 && accepted < drafted, "{fit:?}");
        }
    }
}

/// Writes a target and a draft: the same weights with fewer bits, and another tokeniser. The target has its bytes in
/// another order, and words in place of five control characters.
fn write_pair(folder: &Path) -> Models {
    let draft = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() };
    let target = Tiny { layers: 4, ..draft };
    let words = ["Ġt", "he", "Ġthe", "in", "er"];
    let byte = |id: usize| if id < 256 { (5 * id + 3) % 256 } else { id };
    let text = |id: usize| match byte(id) {
        byte @ 1..=5 => words[byte - 1].to_owned(),
        256 => "<|im_start|>".into(),
        257 => "<|im_end|>".into(),
        byte => byte_token(byte as u8),
    };
    let embedding = Noise::new(target.seed).many(VOCABULARY * WIDTH, 1.0);
    let rows: Vec<f32> =
        (0..VOCABULARY).flat_map(|id| embedding[byte(id) * WIDTH..][..WIDTH].to_vec()).collect();
    let writer = target
        .writer()
        .without_key("tokenizer.ggml.tokens")
        .strings("tokenizer.ggml.tokens", (0..VOCABULARY).map(text))
        .without_key("tokenizer.ggml.merges")
        .strings("tokenizer.ggml.merges", ["Ġ t", "h e", "Ġt he", "i n", "e r"])
        .without("token_embd.weight")
        .tensor("token_embd.weight", &[VOCABULARY, WIDTH], target.dtype, &rows);
    std::fs::write(folder.join("target.gguf"), writer.bytes()).unwrap();
    let draft = Tiny { dtype: GgmlDType::Q4K, ..target }.write(folder, "draft");
    Models::load(&folder.join("target.gguf"), Some(&draft), &cpu()).unwrap()
}

fn assert_all(checks: Vec<ProofCheck>) {
    assert!(!checks.is_empty());
    for ProofCheck { name, finding, passed } in checks {
        println!("{name}: {finding}");
        assert!(passed, "{name}: {finding}");
    }
}

#[test]
fn answers_of_every_method_equal_plain_decoding() {
    let folder = tempfile::tempdir().unwrap();
    let mut models = write_pair(folder.path());
    let depths = vec![MaxDraft::Fixed(1), MaxDraft::Fixed(4), MaxDraft::Auto];
    let plan = ProofPlan { tokens: 30, depths, prompts: 2, ..ProofPlan::of(METHODS.to_vec()) };
    assert_all(proof::identity(&mut models, &plan).unwrap());
    let plan = ProofPlan { samples: 300, prompts: 1, ..ProofPlan::of(METHODS.to_vec()) };
    assert_all(proof::token_distribution(&mut models, &plan).unwrap());
    assert_all(proof::row_invariance(&mut models).unwrap());
    // The same weights agree on the tokens that both have. With wrong ids they would not.
    let acceptance = models.measured_acceptance().unwrap().acceptance;
    assert!(acceptance > 0.1 && acceptance < 0.99, "{acceptance}");
}
