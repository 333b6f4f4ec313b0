//! Layers of multi-token prediction in a target's own file or in another one, tiny and random. Their arithmetic is compared with a
//! reference in another language. Then come answers with them, reuse of their cache, and damaged ones.

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use hunch::generate::{LoadPlan, Models};
use hunch::proof::{self, ProofCheck, ProofPlan};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_core::propose::head::Head;
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::Error;
use hunch_library::Places;
use hunch_library::fit::Footprint;
use hunch_library::types::OwnDrafter;
use hunch_model::decoder::Decoder;
use hunch_model::gguf::Gguf;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;
use hunch_model::{heads, low_bit};

use crate::support::app::{app, load_request};
use crate::support::head_scores::{
    Case, ExpectedLogits, answer, assert_reused_cache_drafts_as_a_fresh_one, assert_scores, assert_tree,
    features, hot,
};
use crate::support::{cpu, cpu_with_f32_cache};
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::tiny::{Noise, Tiny, VOCABULARY, Variant, WIDTH, WITH_MTP, with_mtp};
use hunch_testing::tiny_heads::HeadFormat;

/// Logits that `scripts/mtp-reference.py` computed.
fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../golden/mtp.json")).unwrap()
}

fn open(target: &Path) -> Result<(Option<Head>, Decoder), Error> {
    let file = WeightFile::open(target)?;
    let decoder = Decoder::load(&file, &cpu_with_f32_cache())?;
    Ok((heads::of_target(&file, &decoder, &cpu_with_f32_cache())?, decoder))
}

fn write(writer: &GgufWriter, folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(format!("{name}.gguf"));
    std::fs::write(&path, writer.bytes()).unwrap();
    path
}

/// Returns the logits of the MTP layer after a text.
fn logits(target: &Path, text: &[TokenId]) -> Vec<f32> {
    let (head, mut decoder) = open(target).unwrap();
    let mut head = head.unwrap();
    let features = features(&head, &mut decoder, text);
    head.logits(&features, &text[1..]).unwrap()
}

/// The dense model with attention in every layer, which loads fastest.
fn dense() -> Tiny {
    with_mtp(WITH_MTP[1])
}

fn eight_bits(of: (&'static str, Variant, usize)) -> Tiny {
    Tiny { dtype: GgmlDType::Q8_0, ..with_mtp(of) }
}

fn load(tiny: Tiny) -> Models {
    let folder = tempfile::tempdir().unwrap();
    let plan = LoadPlan::of(&tiny.write(folder.path(), "target"));
    let models = Models::load_by(&plan, &cpu_with_f32_cache()).unwrap();
    assert_eq!(models.head_note(), None);
    models
}

#[test]
fn logits_match_a_reference_in_double_precision() {
    let folder = tempfile::tempdir().unwrap();
    let all = cases();
    let attention_alone = WITH_MTP.into_iter().filter(|of| !with_mtp(*of).has_delta_nets());
    assert_eq!(all.len(), attention_alone.clone().count());
    for (Case { head: name, text, steps, tree, .. }, of) in all.iter().zip(attention_alone) {
        assert_eq!(*name, format!("{}-{:?}", of.0, of.1));
        let (head, mut decoder) = open(&with_mtp(of).write(folder.path(), name)).unwrap();
        let mut head = head.unwrap();
        let features = features(&head, &mut decoder, text);
        let mut token = None;
        for (i, expected) in steps.iter().enumerate() {
            let logits = match token {
                None => head.logits(&features, &text[1..]).unwrap(),
                Some(token) => head.next_logits(token).unwrap(),
            };
            assert_scores(&logits, expected, VOCABULARY, &format!("{name}, step {i}"), 1e-3);
            token = Some(expected.top[0].0);
        }
        head.logits(&features, &text[1..]).unwrap();
        assert_tree(&mut head, tree, VOCABULARY, name, |_| 1e-3);
        // Rows that are read one by one have the same values.
        let whole = head.logits(&features, &text[1..]).unwrap();
        for row in 0..text.len() - 1 {
            let of_row = [features[0][row * WIDTH..(row + 1) * WIDTH].to_vec()];
            let logits = head.logits_after(row, &of_row, &text[row + 1..row + 2]).unwrap();
            assert!(row + 2 < text.len() || logits == whole, "{name}");
        }
    }
}

#[test]
fn first_draft_of_an_answer_matches_the_reference() {
    let mut compared = 0;
    let attention_alone = WITH_MTP.into_iter().filter(|of| !with_mtp(*of).has_delta_nets());
    for (Case { text, steps, head: name, .. }, of) in cases().iter().zip(attention_alone) {
        let mut models = load(with_mtp(of));
        let greedy = SamplingParams::greedy();
        let (_, drafts, _) = answer(&mut models, text, Method::Head, &greedy, MaxDraft::Fixed(4));
        let clear = |step: &&ExpectedLogits| step.top[0].1 - step.top[1].1 > 0.01 * step.deviation;
        let expected: Vec<TokenId> = steps.iter().take_while(clear).map(|step| step.top[0].0).collect();
        assert_eq!(drafts[0][..expected.len()], expected, "{name}");
        compared += expected.len();
    }
    assert!(compared > 12, "{compared} tokens were compared");
}

#[test]
fn greedy_answers_match_plain_and_sampled_ones_repeat() {
    let prompt: Vec<TokenId> = (0..45).map(|i| 40 + i * i % 60).collect();
    for of in WITH_MTP {
        let mut models = load(eight_bits(of));
        let greedy = SamplingParams::greedy();
        let plain = answer(&mut models, &prompt, Method::Plain, &greedy, MaxDraft::Auto).0;
        let mut accepted = 0;
        for (method, max_draft) in [
            (Method::Head, MaxDraft::Fixed(1)),
            (Method::Head, MaxDraft::Fixed(5)),
            (Method::NgramHead, MaxDraft::Fixed(4)),
            (Method::Head, MaxDraft::Auto),
            (Method::HeadTree, MaxDraft::Fixed(8)),
        ] {
            let run = answer(&mut models, &prompt, method, &greedy, max_draft);
            assert_eq!(run.0, plain, "{of:?}, {method}, {max_draft:?}");
            let drafted: usize = run.1.iter().map(Vec::len).sum();
            assert!(drafted > 0 || max_draft == MaxDraft::Auto, "{of:?}, {method}, {max_draft:?}");
            let sampled = answer(&mut models, &prompt, method, &hot(3), MaxDraft::Fixed(5));
            // The caches of the last answer are used again.
            assert_eq!(answer(&mut models, &prompt, method, &hot(3), MaxDraft::Fixed(5)), sampled);
            accepted += sampled.2;
        }
        assert!(accepted > 10, "{of:?}: {accepted} tokens were accepted");
    }
}

/// An answer on caches of earlier answers has the same drafts as one on empty caches, after any change of the prompt.
#[test]
fn reused_cache_gives_the_drafts_of_a_fresh_one() {
    for of in WITH_MTP {
        assert_reused_cache_drafts_as_a_fresh_one(&mut load(eight_bits(of)), &format!("{of:?}"));
    }
}

fn assert_all(of: impl std::fmt::Debug, checks: Vec<ProofCheck>) {
    for ProofCheck { name, finding, passed } in checks {
        assert!(passed, "{of:?}: {name}: {finding}");
    }
}

/// Greedy text, text of one seed with the coupled rule, and the rows of the target.
#[test]
fn methods_with_the_layer_pass_the_proof_of_text_and_rows() {
    for of in [WITH_MTP[0], WITH_MTP[4]] {
        let mut models = load(eight_bits(of));
        let methods: Vec<Method> = models.usable_methods();
        assert!(
            [Method::Head, Method::HeadTree].iter().all(|method| methods.contains(method)),
            "{methods:?}"
        );
        let depths = vec![MaxDraft::Fixed(5), MaxDraft::Auto];
        let plan = ProofPlan { tokens: 40, depths, prompts: 1, ..ProofPlan::of(methods) };
        let mut checks = proof::row_invariance(&mut models).unwrap();
        checks.extend(proof::identity(&mut models, &plan).unwrap());
        assert_all(of, checks);
    }
}

#[test]
fn samples_follow_the_distribution_of_the_target_by_every_lossless_rule() {
    for of in [WITH_MTP[0], WITH_MTP[4]] {
        let mut models = load(eight_bits(of));
        for rule in [AcceptanceRule::Lossless, AcceptanceRule::Match, AcceptanceRule::Coupled] {
            let methods = vec![Method::Head, Method::HeadTree];
            let plan = ProofPlan { samples: 400, prompts: 1, rule, ..ProofPlan::of(methods) };
            assert_all((of, rule), proof::token_distribution(&mut models, &plan).unwrap());
        }
    }
}

/// The first of several layers drafts, on its own output.
#[test]
fn first_of_two_layers_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let text = &cases()[0].text;
    let key = "qwen35.nextn_predict_layers";
    let of_two = Tiny { mtp: 2, ..dense() };
    let two = logits(&of_two.write(folder.path(), "two"), text);
    let mut one = of_two.writer().without_key(key).u32(key, 1).without_key("qwen35.block_count");
    one = one.u32("qwen35.block_count", of_two.layers as u32 + 1);
    assert_eq!(two, logits(&write(&one, folder.path(), "one"), text));
}

#[test]
fn tables_of_its_own_take_the_place_of_the_target_s() {
    let folder = tempfile::tempdir().unwrap();
    let text = &cases()[0].text;
    let shared = logits(&dense().write(folder.path(), "shared"), text);
    let own = |scale: f32| {
        let tiny = Tiny { mtp: 1, ..dense() };
        let mut noise = Noise::new(tiny.seed);
        // The first values of the tiny model are those of its embedding.
        let table: Vec<f32> = noise.many(VOCABULARY * WIDTH, 1.0).iter().map(|value| value * scale).collect();
        let name = format!("blk.{}.nextn.embed_tokens.weight", tiny.layers);
        tiny.writer().tensor(&name, &[VOCABULARY, WIDTH], GgmlDType::F32, &table)
    };
    assert_eq!(shared, logits(&write(&own(1.0), folder.path(), "same"), text));
    // The norm of embeddings hides a factor, but not a sign.
    let other = own(-1.0);
    assert_ne!(shared, logits(&write(&other, folder.path(), "other"), text));
    let name = format!("blk.{}.nextn.shared_head_head.weight", dense().layers);
    let head = Noise::new(5).many(VOCABULARY * WIDTH, 0.2);
    let with_head = dense().writer().tensor(&name, &[VOCABULARY, WIDTH], GgmlDType::F32, &head);
    assert_ne!(shared, logits(&write(&with_head, folder.path(), "head"), text));
    // Without a norm of its own, the target's output norm is used.
    let norm = format!("blk.{}.nextn.shared_head_norm.weight", dense().layers);
    let ones = vec![1.0; WIDTH];
    let of_ones = |name: &str| {
        dense().writer().without(&norm).without("output_norm.weight").tensor(
            name,
            &[WIDTH],
            GgmlDType::F32,
            &ones,
        )
    };
    let without = of_ones("output_norm.weight");
    let with = of_ones("output_norm.weight").tensor(&norm, &[WIDTH], GgmlDType::F32, &ones);
    let [without, with] = [(without, "without"), (with, "with")]
        .map(|(file, name)| logits(&write(&file, folder.path(), name), text));
    assert_eq!(without, with);
}

/// Returns a target without its MTP layer, and the layer in a file of its own, as llama.cpp's converter writes them with
/// `--no-mtp` and `--mtp`.
fn separate(tiny: Tiny) -> (GgufWriter, GgufWriter) {
    let both = tiny.writer();
    let gguf = Gguf::parse(Path::new("both.gguf"), &both.bytes()).unwrap();
    let (of_layer, key) =
        (format!("blk.{}.", tiny.layers), |name: &str| format!("{}.{name}", tiny.architecture));
    let (mut target, mut layer) = (tiny.writer(), both);
    for name in gguf.tensors.keys() {
        if name.starts_with(&of_layer) {
            target = target.without(name);
        } else if name.starts_with("blk.") {
            layer = layer.without(name);
        }
    }
    let target = target.without_key(&key("nextn_predict_layers")).without_key(&key("block_count"));
    (target.u32(&key("block_count"), tiny.layers as u32), layer)
}

/// Opens the layer in a file of its own for a target.
fn open_beside(target: &Path, layer: &Path) -> Result<(Head, Decoder), Error> {
    let file = WeightFile::open(target)?;
    let decoder = Decoder::load(&file, &cpu_with_f32_cache())?;
    Ok((heads::open(layer, &file, &decoder, &cpu_with_f32_cache())?, decoder))
}

#[test]
fn layer_in_a_file_of_its_own_drafts_like_one_in_the_file_of_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let text: Vec<TokenId> = (0..20).map(|i| 40 + i * i % 60).collect();
    for of in WITH_MTP {
        let tiny = eight_bits(of);
        let together = tiny.write(folder.path(), "together");
        let (target, layer) = separate(tiny);
        let (target, layer) =
            (write(&target, folder.path(), "target"), write(&layer, folder.path(), "mtp-target"));
        let (mut head, mut decoder) = open_beside(&target, &layer).unwrap();
        let features = features(&head, &mut decoder, &text);
        assert_eq!(head.logits(&features, &text[1..]).unwrap(), logits(&together, &text), "{of:?}");

        let (file, whole) = (WeightFile::open(&target).unwrap(), WeightFile::open(&together).unwrap());
        let compute = cpu_with_f32_cache();
        assert_eq!(heads::of_target(&file, &decoder, &compute).unwrap().map(drop), None);
        let outlook = heads::outlook(&layer, &file, &compute).unwrap();
        assert_eq!(
            Some(outlook.memory),
            heads::outlook_of_target(&whole, &compute).unwrap().map(|own| own.memory)
        );
        assert_eq!(outlook.read_by_a_draft, Some(head.read_by_a_pass() as u64));
        let described = heads::describe(&layer).unwrap().unwrap();
        assert_eq!(
            Some(described.bytes),
            heads::describe_of_target(whole.gguf()).unwrap().map(|own| own.bytes)
        );
        assert_eq!((&described.kind[..], described.target_layers), ("MTP layer", Some(tiny.layers)));
        assert_eq!(heads::describe(&together).unwrap(), None);
    }
}

#[test]
fn answers_with_a_layer_in_a_file_of_its_own_equal_plain_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (target, layer) = separate(dense());
    let (target, layer) =
        (write(&target, folder.path(), "target"), write(&layer, folder.path(), "mtp-target"));
    let plan = LoadPlan { head: Some(layer.clone()), ..LoadPlan::of(&target) };
    let mut models = Models::load_by(&plan, &cpu_with_f32_cache()).unwrap();
    let prompt: Vec<TokenId> = (0..45).map(|i| 40 + i * i % 60).collect();
    let greedy = SamplingParams::greedy();
    let plain = answer(&mut models, &prompt, Method::Plain, &greedy, MaxDraft::Auto).0;
    let (text, drafts, _) = answer(&mut models, &prompt, Method::Head, &greedy, MaxDraft::Fixed(4));
    assert!(text == plain && !drafts.is_empty());
    // The file is a head among the models, and cannot be run as one.
    let places = Places::only(folder.path().into());
    let models = hunch_library::scan(&places).models;
    let problem =
        models.iter().find(|model| model.name == "mtp-target").and_then(|model| model.problem.clone());
    assert!(problem.is_some_and(|problem| problem.contains("--head")), "{models:?}");
    let found = hunch_library::heads(&places, &models);
    assert!(matches!(&found[..], [head] if head.path == layer && head.name == "mtp-target"), "{found:?}");
    let error = Models::load_by(&LoadPlan::of(&layer), &cpu()).map(drop).unwrap_err();
    assert!(error.to_string().contains("a layer that drafts for a model"), "{error}");
}

#[test]
fn layer_in_a_file_of_its_own_is_refused_by_other_targets() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |target: &GgufWriter, layer: &GgufWriter| {
        let (target, layer) = (write(target, folder.path(), "target"), write(layer, folder.path(), "layer"));
        let error = open_beside(&target, &layer).map(drop).unwrap_err().to_string();
        let file = WeightFile::open(&target).unwrap();
        let early = heads::outlook(&layer, &file, &cpu_with_f32_cache()).map(drop);
        (early.err().map(|early| early.to_string()).unwrap_or_default(), error)
    };
    let (target, layer) = separate(dense());
    let other = |tiny: Tiny| separate(tiny).0;
    let name = |part: &str| format!("blk.{}.{part}.weight", dense().layers);
    for (target, layer, reason) in [
        (&other(Tiny { seed: 4, ..dense() }), &layer, "was trained for"),
        (&other(Tiny { layers: 3, ..dense() }), &layer, "it is layer 2 of a model, and"),
        (&other(with_mtp(WITH_MTP[4])), &layer, "it drafts for \"qwen35\", and"),
        (&target, &separate(dense()).1.without(&name("nextn.enorm")), "nextn.enorm.weight is missing"),
    ] {
        let (early, error) = refused(target, layer);
        assert!(early.contains(reason) && error.contains(reason), "{reason}: {early} {error}");
    }
    let (_, error) = refused(&target, &separate(dense()).1.without(&name("attn_k")));
    assert!(error.contains("attn_k.weight is missing"), "{error}");
}

#[test]
fn low_bit_copy_leaves_out_the_layer() {
    let folder = tempfile::tempdir().unwrap();
    let file = WeightFile::open(&dense().write(folder.path(), "target")).unwrap();
    let path = folder.path().join("copy.gguf");
    low_bit::write_copy(&file, &path, 2, &mut low_bit::unwatched).unwrap();
    let copy = WeightFile::open(&path).unwrap();
    let names =
        |file: &WeightFile| file.gguf().model_tensors().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(copy.gguf().tensors.keys().cloned().collect::<Vec<_>>(), names(&file));
    let mut decoder = Decoder::load(&copy, &cpu_with_f32_cache()).unwrap();
    assert!(decoder.forward(PassInput::chain(&[3, 4], LogitRows::Last)).is_ok());
}

/// Files whose MTP layer cannot draft, each with a part of the note.
fn damaged() -> Vec<(GgufWriter, &'static str)> {
    let writer = || dense().writer();
    let blk = format!("blk.{}", dense().layers);
    let name = |part: &str| format!("{blk}.{part}.weight");
    let vector = |name: &str, len: usize, value: f32| {
        writer().without(name).tensor(name, &[len], GgmlDType::F32, &vec![value; len])
    };
    let matrix = |name: &str, n: usize, k: usize, value: f32| {
        writer().without(name).tensor(name, &[n, k], GgmlDType::F32, &vec![value; n * k])
    };
    vec![
        (writer().without(&name("nextn.eh_proj")), "nextn.eh_proj.weight is missing"),
        (writer().without(&name("nextn.hnorm")), "nextn.hnorm.weight is missing"),
        (writer().without(&name("attn_k")), "attn_k.weight is missing"),
        (writer().without(&name("ffn_down")), "ffn_down.weight is missing"),
        (vector(&name("nextn.enorm"), WIDTH / 2, 1.0), "nextn.enorm.weight has the shape [128]"),
        (matrix(&name("nextn.eh_proj"), WIDTH, WIDTH, 0.1), "nextn.eh_proj.weight has the shape [256, 256]"),
        (matrix(&name("attn_v"), 1, WIDTH, 0.1), "attn_v.weight has the shape [1, 256]"),
        (vector(&name("nextn.hnorm"), WIDTH, f32::NAN), "nextn.hnorm.weight contains NaN"),
        (matrix(&name("nextn.eh_proj"), WIDTH, 2 * WIDTH, f32::NAN), "not finite"),
        (matrix(&name("attn_output"), WIDTH, WIDTH, f32::INFINITY), "not finite"),
    ]
}

#[test]
fn target_runs_plainly_if_its_layer_is_damaged_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let prompt: Vec<TokenId> = (0..45).map(|i| 40 + i * i % 60).collect();
    let greedy = SamplingParams::greedy();
    let expected = answer(&mut load(dense()), &prompt, Method::Plain, &greedy, MaxDraft::Auto).0;
    for (i, (writer, reason)) in damaged().into_iter().enumerate() {
        let path = write(&writer, folder.path(), &format!("damaged-{i}"));
        let mut models = Models::load_by(&LoadPlan::of(&path), &cpu_with_f32_cache()).unwrap();
        let note = models.head_note().unwrap();
        assert!(note.contains(reason) && note.ends_with("The model runs without it."), "{reason}: {note}");
        assert!(models.head().is_none() && !models.usable_methods().contains(&Method::Head), "{reason}");
        let plain = answer(&mut models, &prompt, Method::Plain, &greedy, MaxDraft::Auto).0;
        assert_eq!(plain, expected, "{reason}");
    }
}

/// Layers that draft in a model of another architecture are never run by the wrong arithmetic.
#[test]
fn layers_of_other_architectures_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let other = Tiny { architecture: "qwen3", mtp: 1, ..Tiny::default() };
    let path = other.write(folder.path(), "other");
    let models = Models::load_by(&LoadPlan::of(&path), &cpu()).unwrap();
    assert!(models.head_note().unwrap().contains("\"qwen3\" are not supported"), "{:?}", models.head_note());
    assert!(!models.usable_methods().contains(&Method::Head));
}

#[test]
fn given_head_takes_the_place_of_the_layer() {
    let folder = tempfile::tempdir().unwrap();
    let target = dense().write(folder.path(), "target");
    let medusa = HeadFormat::Medusa.write(folder.path());
    let load = |head: Option<PathBuf>| {
        let mut models =
            Models::load_by(&LoadPlan { head, ..LoadPlan::of(&target) }, &cpu_with_f32_cache()).unwrap();
        models.head().unwrap().cache_per_token()
    };
    // Two key heads of width 64, keys and values.
    assert_eq!((load(None), load(Some(medusa))), (2 * 2 * 64 * 4, 0));
}

/// The layer counts as a head in memory and reads, and not as a part of the model.
#[test]
fn predictions_count_the_layer_once() {
    let folder = tempfile::tempdir().unwrap();
    for of in WITH_MTP {
        let tiny = eight_bits(of);
        let [with, without] = [1, 0].map(|mtp| {
            let path = Tiny { mtp, ..tiny }.write(folder.path(), &format!("{}-{:?}-{mtp}", of.0, of.1));
            WeightFile::open(&path).unwrap()
        });
        let reads = |file: &WeightFile| {
            let spec = ModelSpec::from_gguf(file.gguf()).unwrap();
            let footprint = Footprint::on_device(file.gguf(), &cpu_with_f32_cache()).unwrap();
            (file.weight_bytes(), file.bytes_per_pass(&spec), footprint)
        };
        assert_eq!(reads(&with), reads(&without), "{of:?}");
        assert_eq!(heads::usual_memory(None, &without, &cpu_with_f32_cache()).unwrap(), None);
        let outlook = heads::outlook_of_target(&with, &cpu_with_f32_cache()).unwrap().unwrap();
        let memory = heads::usual_memory(None, &with, &cpu_with_f32_cache()).unwrap().unwrap();
        assert_eq!(outlook.memory, memory);
        let described = heads::describe_of_target(with.gguf()).unwrap().unwrap();
        assert!(memory.weights as f64 >= 0.98 * described.bytes as f64, "{of:?}: {memory:?}, {described:?}");
        let decoder = Decoder::load(&with, &cpu_with_f32_cache()).unwrap();
        let head = heads::of_target(&with, &decoder, &cpu_with_f32_cache()).unwrap().unwrap();
        assert_eq!(outlook.read_by_a_draft, Some(head.read_by_a_pass() as u64));
        assert_eq!(memory.cache_per_token, head.cache_per_token() as u64);
        let output = VOCABULARY * WIDTH / 32 * 34;
        let own = described.bytes as usize;
        let is_mixture = tiny.has_experts();
        let all = own + output == head.read_by_a_pass();
        assert!(if is_mixture { head.read_by_a_pass() < own + output } else { all }, "{of:?}");
    }
}

#[test]
fn library_and_window_know_models_that_bring_a_drafter() {
    let root = tempfile::tempdir().unwrap();
    let target = dense().write(root.path(), "target");
    let (broken, _) = damaged().swap_remove(0);
    let broken = write(&broken, root.path(), "broken");
    Tiny::default().write(root.path(), "plain");
    let entry = |path: &Path| hunch_library::inspect(path).unwrap().entry.own_drafter;
    let Some(OwnDrafter::Usable { size_bytes }) = entry(&target) else { panic!("usable") };
    assert!(size_bytes > 1_000_000, "{size_bytes}");
    let Some(OwnDrafter::Unusable { reason }) = entry(&broken) else { panic!("unusable") };
    assert!(reason.contains("nextn.eh_proj.weight is missing"), "{reason}");
    assert_eq!(entry(&root.path().join("plain.gguf")), None);

    let app = app(root.path());
    let offers = app.draft_offers("target", None).unwrap();
    let own = offers.own_head.unwrap();
    assert_eq!((&own.kind[..], own.size_bytes, own.problem), ("MTP layer", size_bytes, None));
    assert!(own.predicted.unwrap().acceptance > 0.0);
    assert!(offers.without_draft.contains(&Method::Head), "{:?}", offers.without_draft);
    let offers = app.draft_offers("broken", None).unwrap();
    assert!(offers.own_head.is_none() && !offers.without_draft.contains(&Method::Head));
    let loaded = app.load_models(load_request("target", None)).unwrap();
    assert!(loaded.methods.contains(&Method::Head) && loaded.head_note.is_none() && loaded.head.is_none());
    let loaded = app.load_models(load_request("broken", None)).unwrap();
    assert!(!loaded.methods.contains(&Method::Head) && loaded.head_note == Some(reason));
}
