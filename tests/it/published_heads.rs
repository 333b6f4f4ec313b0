//! Heads in the file formats of others, tiny and random. Their arithmetic is compared with a reference in another
//! language. Then come answers with them, reuse of their cache, and files that do not fit or are damaged.

use std::path::{Path, PathBuf};

use hunch::engine::WallClock;
use hunch::event::{DraftedEvent, GenerationEvent};
use hunch::generate::{GenerationContext, GenerationPlan, LoadPlan, Models, generate};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::head::{Head, TreeRows};
use hunch_core::propose::{MethodOptions, Proposer};
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::Error;
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, DeviceChoice, KvType};
use hunch_model::heads;
use hunch_model::weights::WeightFile;
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::tiny::{Tiny, VOCABULARY, WIDTH};
use crate::support::tiny_heads::{self, FORMATS, Format, SCORED, TinyHead, Values};

/// Logits that `scripts/published-heads.py` computed with numpy in double precision.
#[derive(Deserialize)]
struct Case {
    head: String,
    text: Vec<TokenId>,
    /// One for each token of a greedy chain.
    steps: Vec<Scores>,
    /// Nodes by depth, if drafted tokens are read.
    tree: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    parent: Option<usize>,
    token: TokenId,
    /// After the node.
    scores: Scores,
}

#[derive(Deserialize)]
struct Scores {
    deviation: f64,
    /// The likeliest tokens with their logits.
    top: Vec<(TokenId, f64)>,
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../golden/published-heads.json")).unwrap()
}

fn compute() -> Compute {
    Compute::open(DeviceChoice::Cpu, Some(2)).unwrap().with_kv(KvType::F32)
}

fn open(head: &Path, target: &Path) -> Result<(Head, Decoder), Error> {
    let file = WeightFile::open(target)?;
    let decoder = Decoder::load(&file, &compute())?;
    Ok((heads::open(head, &file, &decoder, &compute())?, decoder))
}

fn load(folder: &Path, format: Format) -> Models {
    let target = tiny_heads::target().write(folder, "target");
    let plan = LoadPlan { head: Some(format.write(folder)), ..LoadPlan::of(&target) };
    Models::load_by(&plan, &compute()).unwrap()
}

fn assert_scores(logits: &[f32], expected: &Scores, scored: usize, case: &str, tolerance: f64) {
    assert_eq!(logits.len(), VOCABULARY);
    assert_eq!(logits.iter().filter(|logit| logit.is_finite()).count(), scored, "{case}");
    for (token, logit) in &expected.top {
        let off = (f64::from(logits[*token as usize]) - logit).abs() / expected.deviation;
        assert!(off < tolerance, "{case}, token {token}: {} instead of {logit}", logits[*token as usize]);
    }
}

#[test]
fn logits_match_a_reference_in_double_precision() {
    let folder = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(folder.path(), "target");
    for (Case { head: name, text, steps, tree }, format) in cases().iter().zip(FORMATS) {
        assert_eq!(name, format.name());
        let (mut head, mut decoder) = open(&format.write(folder.path()), &target).unwrap();
        let features = features(&head, &mut decoder, text);
        let scored = format.scored();
        assert_eq!(steps.len(), format.depth());
        let mut token = None;
        for (i, expected) in steps.iter().enumerate() {
            let logits = match token {
                None => head.logits(&features, &text[1..]).unwrap(),
                Some(token) => head.next_logits(token).unwrap(),
            };
            // Weights and activations are rounded to 8 bits, and a chain adds up what that changes.
            let tolerance = 0.1 + 0.03 * i as f64;
            assert_scores(&logits, expected, scored, &format!("{name}, step {i}"), tolerance);
            token = Some(expected.top[0].0);
        }
        if !tree.is_empty() {
            head.logits(&features, &text[1..]).unwrap();
            assert_tree(&mut head, tree, scored, name);
        }
    }
}

/// Returns the states of all tokens but the last.
fn features(head: &Head, decoder: &mut Decoder, text: &[TokenId]) -> Vec<Vec<f32>> {
    let step = Step { taps: head.taps(), ..Step::chain(text, LogitRows::None) };
    let taps = decoder.forward(step).unwrap().taps;
    taps.into_iter().map(|tap| tap.into_values()[..(text.len() - 1) * WIDTH].to_vec()).collect()
}

/// Reads a tree level by level.
fn assert_tree(head: &mut Head, tree: &[Node], scored: usize, case: &str) {
    let (mut depths, mut visible): (Vec<usize>, Vec<u64>) = (Vec::new(), Vec::new());
    for (row, node) in tree.iter().enumerate() {
        depths.push(node.parent.map_or(0, |parent| depths[parent] + 1));
        visible.push(node.parent.map_or(0, |parent| visible[parent]) | 1 << row);
    }
    let tokens: Vec<TokenId> = tree.iter().map(|node| node.token).collect();
    let mut start = 0;
    for level in depths.chunk_by(|a, b| a == b) {
        let rows = start..start + level.len();
        start = rows.end;
        let part = TreeRows {
            tokens: &tokens[rows.clone()],
            depths: &depths[rows.clone()],
            visible: &visible[rows.clone()],
        };
        let logits = head.tree_logits(part).unwrap();
        assert_eq!(logits.len(), rows.len());
        for (i, node) in rows.enumerate() {
            let expected = &tree[node].scores;
            let tolerance = 0.13 + 0.03 * depths[node] as f64;
            assert_scores(logits.row(i), expected, scored, &format!("{case}, node {node}"), tolerance);
        }
    }
}

/// Runs an answer of 40 tokens. Returns its tokens, the drafts of its rounds, and the accepted tokens.
fn answer(
    models: &mut Models,
    prompt: &[TokenId],
    method: Method,
    sampling: &SamplingParams,
    max_draft: MaxDraft,
) -> (Vec<TokenId>, Vec<Vec<TokenId>>, u32) {
    let plan = GenerationPlan {
        method,
        max_draft,
        max_tokens: 40,
        sampling: sampling.clone(),
        ..GenerationPlan::default()
    };
    let (mut ids, mut drafts) = (Vec::new(), Vec::new());
    let mut sink = |event: GenerationEvent| {
        ids.extend(event.tokens().iter().map(|token| token.id));
        if let GenerationEvent::Round(round) = event {
            drafts.push(round.draft.iter().map(|token| token.id).collect());
        }
    };
    let clock = WallClock::start();
    let finished = generate(models, prompt, &plan, &GenerationContext::measured(&clock), &mut sink).unwrap();
    ids.extend(finished.held.iter().map(|token| token.id));
    (ids, drafts, finished.stats.accepted)
}

/// Nearly uniform, so that drafts of a random head are accepted.
fn hot(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 5.0, seed: Some(seed), ..SamplingParams::unfiltered() }
}

#[test]
fn first_draft_of_an_answer_is_that_of_the_reference() {
    let mut compared = 0;
    for (Case { head: name, text, steps, .. }, format) in cases().iter().zip(FORMATS) {
        let folder = tempfile::tempdir().unwrap();
        let mut models = load(folder.path(), format);
        let greedy = SamplingParams::greedy();
        let (_, drafts, _) = answer(&mut models, text, Method::Head, &greedy, MaxDraft::Fixed(4));
        if matches!(format, Format::Medusa | Format::Mlp) {
            // They read no prompt, so they draft after the first pass of the answer.
            assert!(drafts[0].is_empty() && drafts[1].len() == format.depth(), "{name}, drafts {drafts:?}");
            continue;
        }
        // Up to the first choice that rounding may change.
        let clear = |step: &&Scores| step.top[0].1 - step.top[1].1 > 0.2 * step.deviation;
        let expected: Vec<TokenId> = steps.iter().take_while(clear).map(|step| step.top[0].0).collect();
        assert_eq!(drafts[0].len(), format.depth(), "{name}, drafts {drafts:?}");
        assert_eq!(drafts[0][..expected.len()], expected, "{name}");
        compared += expected.len();
    }
    assert!(compared > 6, "{compared} tokens were compared");
}

#[test]
fn greedy_answers_match_plain_and_sampled_ones_repeat() {
    let prompt: Vec<TokenId> = (0..45).map(|i| 40 + i * i % 60).collect();
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let mut models = load(folder.path(), format);
        let greedy = SamplingParams::greedy();
        let plain = answer(&mut models, &prompt, Method::Plain, &greedy, MaxDraft::Auto).0;
        let mut accepted = 0;
        for (method, max_draft) in [
            (Method::Head, MaxDraft::Fixed(1)),
            (Method::Head, MaxDraft::Fixed(5)),
            (Method::NgramHead, MaxDraft::Fixed(4)),
            (Method::Head, MaxDraft::Auto),
            (Method::HeadTree, MaxDraft::Fixed(8)),
            (Method::HeadTree, MaxDraft::Auto),
        ] {
            let run = answer(&mut models, &prompt, method, &greedy, max_draft);
            assert_eq!(run.0, plain, "{format:?}, {method}, {max_draft:?}");
            let drafted: usize = run.1.iter().map(Vec::len).sum();
            assert!(drafted > 0 || max_draft == MaxDraft::Auto, "{format:?}, {method}, {max_draft:?}");
            let sampled = answer(&mut models, &prompt, method, &hot(3), MaxDraft::Fixed(5));
            if method == Method::HeadTree {
                assert!(sampled.1.iter().any(|draft| draft.len() == 5), "{format:?} drafts no trees");
            }
            // The caches of the last answer are used again.
            assert_eq!(answer(&mut models, &prompt, method, &hot(3), MaxDraft::Fixed(5)), sampled);
            accepted += sampled.2;
        }
        assert!(accepted > 10, "{format:?}: {accepted} tokens were accepted");
    }
}

/// An answer on caches of earlier answers has the same drafts as one on empty caches, after any change of the prompt.
#[test]
fn reused_cache_gives_the_drafts_of_a_fresh_one() {
    for format in FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let mut models = load(folder.path(), format);
        let first: Vec<TokenId> = (0..70).map(|i| 40 + i * i % 60).collect();
        let (reply, ..) = answer(&mut models, &first, Method::Head, &hot(1), MaxDraft::Fixed(4));
        let second = [&first[..], &reply, &[100, 101, 102]].concat();
        let mut edited = second.clone();
        edited[30] += 1;
        let shorter = first[..50].to_vec();
        for (seed, prompt) in (2..).zip([second, edited, shorter, first]) {
            let method = if seed % 2 == 0 { Method::Head } else { Method::HeadTree };
            // Another method in between leaves the head behind.
            answer(&mut models, &prompt[..20], Method::Ngram, &hot(seed), MaxDraft::Fixed(4));
            let reused = answer(&mut models, &prompt, method, &hot(seed), MaxDraft::Fixed(6));
            let mut fork = models.fork().unwrap();
            let fresh = answer(&mut fork, &prompt, method, &hot(seed), MaxDraft::Fixed(6));
            assert_eq!(reused, fresh, "{format:?}, {method}, {} tokens", prompt.len());
        }
    }
}

/// The tree of a Medusa head: each position's likeliest tokens after each of those before them.
#[test]
fn trees_of_medusa_are_products_of_its_positions() {
    let folder = tempfile::tempdir().unwrap();
    let mut models = load(folder.path(), Format::Medusa);
    let case = cases().into_iter().find(|case| case.head == "medusa").unwrap();
    let plan = GenerationPlan {
        method: Method::HeadTree,
        max_draft: MaxDraft::Fixed(14),
        max_tokens: 8,
        sampling: SamplingParams::greedy(),
        options: MethodOptions { tree: TreeShape::Static(vec![2, 2, 2]), ..MethodOptions::default() },
        ..GenerationPlan::default()
    };
    // The reference knows the states of all tokens but the last, and the head those of the answer's first pass.
    let prompt = &case.text[..case.text.len() - 1];
    let mut drafts: Vec<Vec<DraftedEvent>> = Vec::new();
    let mut sink = |event: GenerationEvent| {
        if let GenerationEvent::Round(round) = event {
            drafts.push(round.draft.clone());
        }
    };
    let clock = WallClock::start();
    generate(&mut models, prompt, &plan, &GenerationContext::measured(&clock), &mut sink).unwrap();
    let draft = &drafts[1];
    assert_eq!(draft.len(), 14);
    let depth = |mut node: usize| {
        let up = std::iter::from_fn(|| draft[node].parent.inspect(|&parent| node = parent as usize));
        up.count()
    };
    let clear = |scores: &Scores| scores.top[1].1 - scores.top[2].1 > 0.2 * scores.deviation;
    for (level, scores) in case.steps.iter().enumerate().filter(|(_, scores)| clear(scores)) {
        let tokens: Vec<TokenId> =
            (0..14).filter(|&node| depth(node) == level).map(|node| draft[node].id).collect();
        assert_eq!(tokens.len(), 2 << level);
        let likeliest = [scores.top[0].0, scores.top[1].0];
        assert!(tokens.iter().all(|token| likeliest.contains(token)), "level {level}: {tokens:?}");
    }
}

#[test]
fn describes_heads_and_their_targets() {
    let folder = tempfile::tempdir().unwrap();
    let describe = |path: &Path| heads::describe(path).unwrap();
    let head = describe(&Format::Speculators.write(folder.path())).unwrap();
    assert_eq!((&head.kind[..], head.width, head.scored_tokens), ("EAGLE-3", WIDTH, Some(SCORED)));
    assert_eq!((head.target.as_deref(), head.layers), (Some("tiny/llama"), Some(vec![0, 2, 7])));
    let folder_of_first = Format::Eagle1.write(folder.path());
    let first = describe(&folder_of_first).unwrap();
    assert_eq!((&first.kind[..], first.target_vocabulary), ("EAGLE-1", Some(VOCABULARY)));
    assert_eq!(describe(&folder_of_first.join("model.safetensors")), Some(first));
    let medusa = describe(&Format::Medusa.write(folder.path())).unwrap();
    assert_eq!((&medusa.kind[..], medusa.target.as_deref()), ("Medusa", Some("tiny/llama")));
    assert_eq!(describe(&Format::Mlp.write(folder.path())).unwrap().kind, "MLP speculator");
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/hunch-model/heads/smollm2-135m-instruct.gguf");
    let own = describe(&shipped).unwrap();
    assert_eq!((own.width, own.scored_tokens, own.layers), (576, Some(4096), Some(vec![2, 14, 26])));
    assert_eq!(describe(&tiny_heads::target().write(folder.path(), "target")), None);
    assert_eq!(describe(&folder.path().join("none")), None);
}

/// Writes a changed head and returns the error of loading it for a target.
fn refused(format: Format, target: &Tiny, change: impl FnOnce(&mut TinyHead)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut head = format.head();
    change(&mut head);
    let head: PathBuf = head.write(folder.path(), "head");
    let error = open(&head, &target.write(folder.path(), "target")).err().expect("the head was loaded");
    assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
    error.to_string()
}

fn set(key: &'static str, value: Value) -> impl FnOnce(&mut TinyHead) {
    move |head| head.config[key] = value
}

fn floats(head: &mut TinyHead, name: &str, change: impl FnOnce(&mut Vec<f32>)) {
    let Some((_, Values::Float(values))) = head.tensors.get_mut(name) else { panic!("{name}") };
    change(values);
}

#[test]
fn heads_of_another_target_are_refused() {
    let target = tiny_heads::target();
    for (why, error) in [
        ("states of 512 values", refused(Format::Eagle3, &target, set("hidden_size", json!(512)))),
        ("vocabulary has 1000 tokens", refused(Format::Eagle1, &target, set("vocab_size", json!(1000)))),
        (
            "states of 512 values",
            refused(Format::Medusa, &target, |head| {
                head.tensors.insert("0.1.weight".into(), (vec![8, 512], Values::Float(vec![0.0; 4096])));
            }),
        ),
        (
            "vocabulary has 8 tokens",
            refused(Format::Mlp, &target, |head| {
                head.tensors
                    .insert("speculator.emb.0.weight".into(), (vec![8, 128], Values::Float(vec![0.0; 1024])));
            }),
        ),
        ("after layers [1, 0, 0]", refused(Format::Eagle3, &Tiny { layers: 3, ..target }, |_| {})),
        ("after layers [0, 2, 7]", refused(Format::Speculators, &Tiny { layers: 7, ..target }, |_| {})),
    ] {
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn damaged_and_unknown_heads_are_refused() {
    let target = tiny_heads::target();
    let change = |format, change: &dyn Fn(&mut TinyHead)| refused(format, &target, change);
    for (why, error) in [
        (
            "norm.weight contains NaN",
            change(Format::Eagle3, &|head| floats(head, "norm.weight", |w| w[3] = f32::NAN)),
        ),
        ("contains inf", change(Format::Eagle1, &|head| floats(head, "fc.weight", |w| w[7] = f32::INFINITY))),
        (
            "fc.bias contains NaN",
            change(Format::Eagle1, &|head| floats(head, "fc.bias", |w| w[0] = f32::NAN)),
        ),
        (
            "hidden_norm.weight has the shape",
            change(Format::Eagle3, &|head| {
                head.tensors
                    .insert("midlayer.hidden_norm.weight".into(), (vec![2], Values::Float(vec![1.0; 2])));
            }),
        ),
        (
            "mlp.up_proj.weight is missing",
            change(Format::Eagle3, &|head| {
                head.tensors.remove("midlayer.mlp.up_proj.weight");
            }),
        ),
        (
            "q_norm.weight, which EAGLE-3",
            change(Format::Eagle3, &|head| {
                head.tensors.insert(
                    "midlayer.self_attn.q_norm.weight".into(),
                    (vec![2], Values::Float(vec![1.0; 2])),
                );
            }),
        ),
        ("those of no head", change(Format::Eagle1, &|head| drop(head.tensors.remove("fc.weight")))),
        ("d2t is missing", change(Format::Eagle3, &|head| drop(head.tensors.remove("d2t")))),
        (
            "d2t and t2d name different",
            change(Format::Eagle3, &|head| {
                head.tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(vec![3; SCORED])));
            }),
        ),
        (
            "neither tokens nor offsets",
            change(Format::Normed, &|head| {
                let backwards = (0..SCORED as i64).rev().map(|row| 2 * row).collect();
                head.tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(backwards)));
            }),
        ),
        (
            "d2t has 2 entries",
            change(Format::Normed, &|head| {
                head.tensors.insert("d2t".into(), (vec![2], Values::Integer(vec![0, 1])));
            }),
        ),
        (
            "config.json says 100",
            change(Format::Eagle3, &|head| head.config["draft_vocab_size"] = json!(100)),
        ),
        (
            "1.0.linear.bias contains NaN",
            change(Format::Medusa, &|head| floats(head, "1.0.linear.bias", |w| w[5] = f32::NAN)),
        ),
        ("1.1.weight is missing", change(Format::Medusa, &|head| drop(head.tensors.remove("1.1.weight")))),
        (
            "proj.1.weight is missing",
            change(Format::Mlp, &|head| drop(head.tensors.remove("speculator.proj.1.weight"))),
        ),
        (
            "intermediate_size is missing",
            change(Format::Eagle1, &|head| {
                head.config["intermediate_size"] = Value::Null;
            }),
        ),
        ("2 layers", change(Format::Eagle1, &|head| head.config["num_hidden_layers"] = json!(2))),
    ] {
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn truncated_and_incomplete_folders_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(root.path(), "target");
    let folder = Format::Eagle3.write(root.path());
    let (file, config) = (folder.join("model.safetensors"), folder.join("config.json"));
    let whole = std::fs::read(&file).unwrap();
    let error = || {
        let error = open(&folder, &target).err().expect("the head was loaded").to_string();
        assert!(heads::describe(&folder).is_err(), "{error}");
        error
    };
    for keep in [0, 4, 9, 500, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..keep]).unwrap();
        assert!(error().contains("model.safetensors is not usable as a head"), "{keep} bytes: {}", error());
    }
    std::fs::write(&file, &whole).unwrap();
    std::fs::write(&config, "{ broken").unwrap();
    assert!(error().contains("config.json is not usable as a head: it is no JSON"), "{}", error());
    std::fs::remove_file(&config).unwrap();
    assert!(error().contains("config.json is not usable as a head: it cannot be read"), "{}", error());
    std::fs::remove_file(&file).unwrap();
    std::fs::write(folder.join("pytorch_model.bin"), "pickle").unwrap();
    assert!(error().contains("Convert it to safetensors"), "{}", error());
}

/// The same weights in 16 and in 32 bits draft alike: both become 8 bits.
#[test]
fn types_of_the_file_make_no_difference_beyond_rounding() {
    let root = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(root.path(), "target");
    let text = &cases()[0].text;
    let logits = [Dtype::F32, Dtype::F16, Dtype::BF16].map(|dtype| {
        let head = TinyHead { dtype, ..Format::Eagle1.head() };
        let (mut head, mut decoder) = open(&head.write(root.path(), &format!("{dtype:?}")), &target).unwrap();
        let step = Step { taps: head.taps(), ..Step::chain(&text[..1], LogitRows::None) };
        let features: Vec<Vec<f32>> =
            decoder.forward(step).unwrap().taps.into_iter().map(|tap| tap.into_values()).collect();
        head.logits(&features, &text[1..2]).unwrap()
    });
    for other in &logits[1..] {
        let off = logits[0].iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off > 0.0 && off < 0.5, "{off}");
    }
}
