//! The head that ships for the default model: its arithmetic against a reference in another language, and files that do
//! not fit or are damaged.

use std::path::{Path, PathBuf};

use hunch::engine::WallClock;
use hunch::event::{GenerationEvent, StopReason};
use hunch::generate::{GenerationContext, GenerationPlan, Models, Prompt, generate};
use hunch_core::chat::{ChatMessage, Role};
use hunch_core::method::Method;
use hunch_core::propose::head::{Head, TreeRows};
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Refusal};
use hunch_model::decoder::Decoder;
use hunch_model::heads;
use hunch_model::text::AnswerFormat;
use hunch_model::weights::WeightFile;
use serde::Deserialize;

use crate::support::{cpu, default_model};
use hunch_testing::tiny::Tiny;

/// Logits that `scripts/head-reference.py` computed with numpy in double precision.
#[derive(Deserialize)]
struct Case {
    case: usize,
    steps: Vec<Logits>,
}

/// Logits after a token of a draft.
#[derive(Deserialize)]
struct Logits {
    token: u32,
    deviation: f64,
    top: Vec<(u32, f64)>,
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/hunch-model/heads/smollm2-135m-instruct.gguf")
}

fn load(head: &Path, target: &Path) -> Result<Head, Error> {
    let target = WeightFile::open(target)?;
    let decoder = Decoder::load_for(&target, &cpu(), 64)?;
    heads::load(&WeightFile::open(head)?, &target, &decoder, &cpu())
}

/// The hidden states of a case, made of sines.
fn states(case: usize) -> Vec<Vec<f32>> {
    let value = |i: usize, j: usize| {
        let (i, j) = (i as f64, j as f64);
        (10.0 * (i + 1.0) * ((case as f64 + 1.0) * 0.37 * (i + 1.0) * (j + 1.0)).sin() + (j * 0.11).cos())
            as f32
    };
    (0..4).map(|i| (0..576).map(|j| value(i, j)).collect()).collect()
}

#[test]
fn logits_match_a_reference_in_double_precision() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../golden/head-smollm2.json")).unwrap();
    let mut head = load(&shipped(), &default_model()).unwrap();
    for Case { case, steps } in cases {
        assert_eq!(steps.len(), 3);
        for (at, Logits { token, deviation, top }) in steps.into_iter().enumerate() {
            let logits = match at {
                0 => head.logits(&states(case), &[token]).unwrap(),
                _ => head.next_logits(token).unwrap(),
            };
            assert_eq!(logits.iter().filter(|logit| logit.is_finite()).count(), 4096);
            // Weights and activations are rounded to 8 bits.
            for (id, expected) in top {
                let off = (f64::from(logits[id as usize]) - expected).abs() / deviation;
                let found = logits[id as usize];
                assert!(off < 0.06, "case {case}, step {at}, token {id}: {found} instead of {expected}");
            }
        }
    }
}

/// Rows of a tree follow their parents, in the order of a chain or not.
#[test]
fn rows_of_a_tree_have_the_logits_of_chains() {
    let mut head = load(&shipped(), &default_model()).unwrap();
    let chain = |head: &mut Head, tokens: &[u32]| {
        head.logits(&states(1), &[28]).unwrap();
        tokens.iter().map(|&token| head.next_logits(token).unwrap()).last().unwrap()
    };
    let expected = [chain(&mut head, &[300]), chain(&mut head, &[400]), chain(&mut head, &[300, 500])];
    head.logits(&states(1), &[28]).unwrap();
    let first = TreeRows { tokens: &[300, 400], depths: &[0, 0], visible: &[0b01, 0b10] };
    let first = head.tree_logits(first).unwrap();
    let second = TreeRows { tokens: &[500], depths: &[1], visible: &[0b101] };
    let second = head.tree_logits(second).unwrap();
    for (found, expected) in [first.row(0), first.row(1), second.row(0)].into_iter().zip(expected) {
        assert!(found == expected);
    }
}

#[test]
fn default_model_comes_with_its_head() {
    let models = Models::load(&default_model(), None, &cpu()).unwrap();
    let usable = models.usable_methods();
    assert!(usable.contains(&Method::Head) && usable.contains(&Method::NgramHead));
    assert!(usable.contains(&Method::SuffixHead));
    assert!(!usable.contains(&Method::DraftModel));
}

/// The head drafts the end of an answer too. The row after an accepted end has to have a distribution.
#[test]
fn answers_in_a_format_do_not_disable_the_head() {
    let mut models = Models::load(&default_model(), None, &cpu()).unwrap();
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "capital": { "type": "string", "maxLength": 20 }, "millions": { "type": "integer" } },
        "required": ["capital", "millions"],
        "additionalProperties": false,
    });
    let question = "Give the capital of France and its population.";
    let ids = models
        .prompt_ids(&Prompt::Chat(vec![ChatMessage { role: Role::User, content: question.into() }]))
        .unwrap();
    let mut accepted = 0;
    for seed in 0..24 {
        let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
        let plan = GenerationPlan {
            method: Method::SuffixHead,
            sampling,
            max_tokens: 80,
            ..GenerationPlan::default()
        };
        let format = AnswerFormat::JsonSchema(schema.clone());
        let constraint = Some(models.encoder().constraint(&format, ids.len()).unwrap());
        let clock = WallClock::start();
        let context = GenerationContext { constraint, ..GenerationContext::measured(&clock) };
        let mut text = String::new();
        let mut sink = |event: GenerationEvent| text.extend(event.tokens().iter().map(|token| &*token.text));
        let finished = generate(&mut models, &ids, &plan, &context, &mut sink).unwrap();
        text.extend(finished.held.iter().map(|token| &*token.text));
        accepted += finished.stats.accepted;
        if finished.stop == StopReason::EndOfTurn {
            let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(answer["millions"].is_number(), "{text}");
        }
    }
    assert!(accepted > 0);
}

#[test]
fn head_of_another_target_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Tiny::default().write(folder.path(), "tiny.gguf");
    let error = load(&shipped(), &tiny).err().unwrap();
    let Error::Refused(Refusal::HeadOfOther { name }) = error else { panic!("{error}") };
    assert_eq!(name, "SmolLM2 135M");
    let models = Models::load(&tiny, None, &cpu()).unwrap();
    assert!(!models.usable_methods().contains(&Method::Head));
}

#[test]
fn damaged_heads_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(shipped()).unwrap();
    let damaged = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = folder.path().join(name);
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        load(&path, &default_model()).err().unwrap_or_else(|| panic!("{name} was loaded")).to_string()
    };
    let replace = |bytes: &mut Vec<u8>, from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
    };
    for keep in [0, 4, 100, 5_000, 20_000, whole.len() - 1] {
        damaged("truncated", &|bytes| bytes.truncate(keep));
    }
    let unknown = damaged("unknown", &|bytes| replace(bytes, b"mlp", b"mlq"));
    assert!(unknown.contains("\"mlq\""), "{unknown}");
    damaged("renamed", &|bytes| replace(bytes, b"ffn_up.weight", b"ffn_op.weight"));
    // The layers 2, 14 and 26, as they are stored.
    let layers: Vec<u8> = [2, 14, 26].iter().flat_map(|layer: &i32| layer.to_le_bytes()).collect();
    let other = |layers: [i32; 3]| layers.iter().flat_map(|layer| layer.to_le_bytes()).collect::<Vec<u8>>();
    for wrong in [[2, 14, 99], [2, 14, -1], [14, 2, 26]] {
        damaged("layers", &|bytes| replace(bytes, &layers, &other(wrong)));
    }
    // The last tensor is out_shift: numbers that are none.
    let not_a_number = damaged("not a number", &|bytes| {
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(not_a_number.contains("NaN"), "{not_a_number}");
    // Matrices are 8-bit blocks of a scale and 32 weights. A product of 8-bit rows would take the last one for zeros.
    let gguf = WeightFile::open(&shipped()).unwrap().gguf().clone();
    for name in ["ffn_down.weight", "fc.weight", "next.ffn_up.weight"] {
        let start = gguf.tensors[name].range.start;
        let error = damaged(name, &|bytes| {
            bytes[start..start + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
        });
        assert!(error.contains("NaN"), "{name}: {error}");
    }
}
