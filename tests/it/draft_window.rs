//! Drafts that read the first and the last tokens of their cache: rows of models, and answers of every method.

use candle_core::quantized::GgmlDType;
use hunch::engine::WallClock;
use hunch::event::GenerationEvent;
use hunch::generate::{GenerationContext, GenerationPlan, Models, generate};
use hunch::proof::{self, ProofCheck, ProofPlan};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{DraftWindow, LanguageModel, LogitRows, PassInput, RowLayout, Rows};
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::{Error, ErrorCode};
use hunch_model::decoder::Decoder;
use hunch_model::device::KvType;
use hunch_model::low_bit;
use hunch_model::weights::WeightFile;

use crate::support::cpu;
use hunch_testing::tiny::{CONVOLUTIONS, DELTA_NETS, Tiny, further, tokens, with_short_chunks};

/// Methods that draft with a model or with layers of the target.
const METHODS: [Method; 6] = [
    Method::DraftModel,
    Method::DraftTree,
    Method::Cascade,
    Method::LayerSkip,
    Method::EarlyExit,
    Method::LowBit,
];

fn load(tiny: Tiny) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    Decoder::open(&tiny.write(folder.path(), "tiny"), &cpu()).unwrap()
}

fn window(tokens: usize) -> Option<DraftWindow> {
    Some(DraftWindow::new(tokens).unwrap())
}

/// A chain whose rows see a window.
fn chain(model: &mut Decoder, tokens: &[TokenId], window: Option<DraftWindow>) -> Rows {
    model.forward(PassInput { window, ..PassInput::chain(tokens, LogitRows::All) }).unwrap().logits
}

fn bits(rows: &Rows, i: usize) -> Vec<u32> {
    rows.row(i).iter().map(|value| value.to_bits()).collect()
}

#[test]
fn row_has_the_same_bits_alone_among_sixteen_and_in_a_tree() {
    let models = [Tiny::default(), Tiny { dtype: GgmlDType::Q4K, architecture: "qwen2", ..Tiny::default() }];
    for tiny in models.into_iter().chain(with_short_chunks().map(further)) {
        let mut model = load(tiny);
        let (ids, base, window) = (tokens(46, 9), 30, window(10));
        chain(&mut model, &ids[..base], window);
        let alone: Vec<_> =
            ids[base..].iter().map(|id| bits(&chain(&mut model, &[*id], window), 0)).collect();
        for rows in [2, 3, 7, 16] {
            model.truncate(base).unwrap();
            let together = chain(&mut model, &ids[base..base + rows], window);
            for (i, expected) in alone[..rows].iter().enumerate() {
                assert_eq!(&bits(&together, i), expected, "{tiny:?}: row {i} of {rows}");
            }
        }
        // Rows 0, 2 and 3 are the chain, rows 1 and 4 are others.
        let nodes = [ids[base], 5, ids[base + 1], ids[base + 2], 6];
        let parents = [None, Some(0), Some(0), Some(2), Some(1)];
        model.truncate(base).unwrap();
        let layout = RowLayout::Tree { parents: &parents };
        let step = PassInput { layout, window, ..PassInput::chain(&nodes, LogitRows::All) };
        let tree = model.forward(step).unwrap().logits;
        for (row, node) in [0, 2, 3].into_iter().enumerate() {
            assert_eq!(bits(&tree, node), alone[row], "{tiny:?}: row {row} in a tree");
        }
        model.keep_rows(base, &[0, 2, 3]).unwrap();
        assert_eq!(bits(&chain(&mut model, &[ids[base + 3]], window), 0), alone[3], "{tiny:?}: after a tree");
    }
}

/// A layer sees the window, so the last row of one layer depends on the first and the last tokens and on no others.
#[test]
fn last_row_of_one_layer_depends_on_first_and_last_tokens_alone() {
    let mut model = load(Tiny { layers: 1, ..Tiny::default() });
    let ids = tokens(300, 4);
    let (last, tokens) = (ids.len() - 1, 20);
    let expected = bits(&chain(&mut model, &ids, window(tokens)), last);
    for changed in [0, DraftWindow::SINKS - 1, DraftWindow::SINKS, 100, 279, 280, 281, 299] {
        let mut other = ids.clone();
        other[changed] = if other[changed] == 9 { 8 } else { 9 };
        model.truncate(0).unwrap();
        let row = bits(&chain(&mut model, &other, window(tokens)), last);
        assert_eq!(
            row != expected,
            changed < DraftWindow::SINKS || changed > last - tokens,
            "token {changed}"
        );
    }
    // A window that covers the context changes nothing.
    model.truncate(0).unwrap();
    let all = bits(&chain(&mut model, &ids, None), last);
    model.truncate(0).unwrap();
    assert_eq!(bits(&chain(&mut model, &ids, window(300)), last), all);
    assert_ne!(all, expected);
}

/// Rows are run again with the window that they had, where the state of a layer is not held.
#[test]
fn rolled_back_cache_continues_as_if_the_rest_had_never_been() {
    for tiny in [Tiny::default(), further(CONVOLUTIONS), further(DELTA_NETS)] {
        let tiny = Tiny { dtype: GgmlDType::Q8_0, ..tiny };
        let (mut model, mut expected) = (load(tiny), load(tiny));
        let (text, window) = (tokens(330, 3), window(24));
        for len in [329, 300, 257, 255, 130, 65, 1, 0] {
            model.truncate(0).unwrap();
            expected.truncate(0).unwrap();
            if len > 0 {
                chain(&mut expected, &text[..len], window);
            }
            for chunk in text.chunks(32) {
                chain(&mut model, chunk, window);
            }
            model.truncate(len).unwrap();
            let (a, b) = (chain(&mut model, &[7, 9], window), chain(&mut expected, &[7, 9], window));
            assert_eq!(bits(&a, 1), bits(&b, 1), "{tiny:?}: {len}");
        }
        // A draft with a window leaves the rows before it as they were.
        let (mut model, mut expected) = (load(tiny), load(tiny));
        chain(&mut model, &text, None);
        chain(&mut model, &[1, 2, 3], window);
        model.truncate(text.len()).unwrap();
        chain(&mut expected, &text, None);
        assert_eq!(bits(&chain(&mut model, &[4], None), 0), bits(&chain(&mut expected, &[4], None), 0));
    }
}

#[test]
fn candle_and_cpu_executors_agree() {
    for tiny in
        [Tiny::default(), further(("gemma2", hunch_testing::tiny::Variant::Window, 3)), further(DELTA_NETS)]
    {
        let folder = tempfile::tempdir().unwrap();
        let path = tiny.write(folder.path(), "tiny");
        let mut fused = Decoder::open(&path, &cpu().with_kv(KvType::F32)).unwrap();
        let mut reference = Decoder::load_candle(&WeightFile::open(&path).unwrap(), &cpu()).unwrap();
        let parents = [None, Some(0), Some(0), Some(2), None];
        let (prompt, nodes) = (tokens(60, 1), tokens(5, 2));
        let steps = [
            PassInput::chain(&prompt, LogitRows::All),
            PassInput::chain(&[7], LogitRows::Last),
            PassInput {
                layout: RowLayout::Tree { parents: &parents },
                ..PassInput::chain(&nodes, LogitRows::All)
            },
        ];
        for step in steps {
            let step = PassInput { window: window(16), ..step };
            let (a, b) = (fused.forward(step).unwrap().logits, reference.forward(step).unwrap().logits);
            for i in 0..a.len() {
                let scale = b.row(i).iter().fold(0f32, |m, v| m.max(v.abs()));
                let off = a.row(i).iter().zip(b.row(i)).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(off <= 5e-4 * scale, "{tiny:?}: row {i} of {}: off by {off} of {scale}", a.len());
            }
        }
    }
}

/// A target, a draft model and a low-bit copy.
fn pair() -> (Models, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let target = Tiny { dtype: GgmlDType::Q8_0, layers: 4, ..Tiny::default() };
    // The same weights with fewer bits, so that drafts are often accepted.
    let draft = Tiny { dtype: GgmlDType::Q4K, ..target }.write(folder.path(), "draft");
    let path = target.write(folder.path(), "target");
    let mut models = Models::load(&path, Some(&draft), &cpu()).unwrap();
    let copy = folder.path().join("copy.gguf");
    low_bit::write_copy(&WeightFile::open(&path).unwrap(), &copy, 1, &mut low_bit::unwatched).unwrap();
    models.load_low_bit(&copy, &cpu()).unwrap();
    (models, folder)
}

fn options(tokens: Option<usize>) -> MethodOptions {
    MethodOptions { draft_window: tokens.and_then(window), ..MethodOptions::default() }
}

fn assert_all(checks: Vec<ProofCheck>) {
    assert!(!checks.is_empty());
    for ProofCheck { name, finding, passed } in checks {
        assert!(passed, "{name}: {finding}");
    }
}

#[test]
fn greedy_answers_with_a_window_equal_plain_decoding() {
    let (mut models, _folder) = pair();
    for tokens in [1, 12, 100] {
        let depths = vec![MaxDraft::Fixed(1), MaxDraft::Fixed(4), MaxDraft::Auto];
        let plan = ProofPlan {
            options: options(Some(tokens)),
            tokens: 30,
            depths,
            prompts: 2,
            ..ProofPlan::of(METHODS.to_vec())
        };
        assert_all(proof::identity(&mut models, &plan).unwrap());
    }
}

#[test]
fn samples_with_a_window_follow_the_distribution_of_the_target() {
    let (mut models, _folder) = pair();
    let plan =
        ProofPlan { options: options(Some(6)), samples: 300, prompts: 1, ..ProofPlan::of(METHODS.to_vec()) };
    assert_all(proof::token_distribution(&mut models, &plan).unwrap());
}

/// Generates and returns the tokens with the numbers of drafted and accepted ones.
fn answer(
    models: &mut Models,
    prompt: &[TokenId],
    method: Method,
    window: Option<usize>,
) -> Result<(Vec<TokenId>, u32, u32), Error> {
    let plan = GenerationPlan {
        method,
        max_draft: MaxDraft::Fixed(4),
        max_tokens: 24,
        sampling: SamplingParams::greedy(),
        options: options(window),
        ..GenerationPlan::default()
    };
    let mut ids = Vec::new();
    let mut sink = |event: GenerationEvent| ids.extend(event.tokens().iter().map(|token| token.id));
    let clock = WallClock::start();
    let finished = generate(models, prompt, &plan, &GenerationContext::measured(&clock), &mut sink)?;
    ids.extend(finished.held.iter().map(|token| token.id));
    Ok((ids, finished.stats.drafted, finished.stats.accepted))
}

/// A draft depends on the text and the window, whatever the cache held before: another window, an earlier turn, or an
/// edited text.
#[test]
fn reused_caches_draft_as_empty_ones() {
    let (mut models, _folder) = pair();
    let first = tokens(70, 5);
    for method in METHODS {
        models.forget().unwrap();
        let whole = answer(&mut models, &first, method, None).unwrap();
        let narrow = answer(&mut models, &first, method, Some(5)).unwrap();
        assert_eq!(whole.0, narrow.0, "{method}: the text is the target's");
        assert!(narrow.1 > 0, "{method} drafts");
        let second = [&first[..], &narrow.0, &tokens(9, 6)].concat();
        let warm = answer(&mut models, &second, method, Some(5)).unwrap();
        let mut edited = second.clone();
        edited[30] = if edited[30] == 9 { 8 } else { 9 };
        let after_edit = answer(&mut models, &edited, method, Some(5)).unwrap();
        for (text, reused) in [(&first, narrow), (&second, warm), (&edited, after_edit)] {
            models.forget().unwrap();
            assert_eq!(answer(&mut models, text, method, Some(5)).unwrap(), reused, "{method}");
        }
    }
}

#[test]
fn window_larger_than_the_context_is_refused_with_both_numbers() {
    let (mut models, _folder) = pair();
    let context = models.target().info().context_length;
    for method in METHODS {
        assert!(answer(&mut models, &tokens(20, 5), method, Some(context)).is_ok());
        let error = answer(&mut models, &tokens(20, 5), method, Some(context + 1)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidRequest);
        let (message, numbers) = (error.to_string(), [context + 1, context].map(|n| n.to_string()));
        assert!(numbers.iter().all(|number| message.contains(number)), "{method}: {message}");
    }
    // Methods without a model ignore it, as they ignore other methods' options.
    assert!(answer(&mut models, &tokens(20, 5), Method::Ngram, Some(context + 1)).is_ok());
}
