//! Heads that are refused: for another target, damaged, incomplete, or of an unknown kind.

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use hunch_core::token::TokenId;
use hunch_error::ErrorCode;
use hunch_model::gguf::{Array, Value as GgufValue};
use hunch_model::heads;
use serde_json::{Value, json};

use super::{open, pickled};
use crate::support::head_scores::features;
use crate::support::pickle_writer;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::tiny::{Tiny, VOCABULARY, WIDTH};
use hunch_testing::tiny_heads::{self, HeadFormat, SCORED, TinyHead, Values};

/// Writes a changed head and returns the error of loading it for a target.
fn refused(format: HeadFormat, target: &Tiny, change: impl FnOnce(&mut TinyHead)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut head = format.head();
    change(&mut head);
    let head: PathBuf = head.write(folder.path(), "head");
    let error = open(&head, &target.write(folder.path(), "target")).err().expect("the head was loaded");
    assert_eq!(error.code(), ErrorCode::InvalidRequest, "{error}");
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
        ("states of 512 values", refused(HeadFormat::Eagle3, &target, set("hidden_size", json!(512)))),
        ("vocabulary has 1000 tokens", refused(HeadFormat::Eagle1, &target, set("vocab_size", json!(1000)))),
        (
            "states of 512 values",
            refused(HeadFormat::Medusa, &target, |head| {
                head.tensors.insert("0.1.weight".into(), (vec![8, 512], Values::Float(vec![0.0; 4096])));
            }),
        ),
        (
            "vocabulary has 8 tokens",
            refused(HeadFormat::Mlp, &target, |head| {
                head.tensors
                    .insert("speculator.emb.0.weight".into(), (vec![8, 128], Values::Float(vec![0.0; 1024])));
            }),
        ),
        ("after layers [1, 0, 0]", refused(HeadFormat::Eagle3, &Tiny { layers: 3, ..target }, |_| {})),
        ("after layers [0, 2, 7]", refused(HeadFormat::Speculators, &Tiny { layers: 7, ..target }, |_| {})),
        ("after layers [1, 4, 6]", refused(HeadFormat::DFlashGguf, &Tiny { layers: 6, ..target }, |_| {})),
        (
            "of 8 layers, and this one has 6",
            refused(HeadFormat::DFlash, &Tiny { layers: 6, ..target }, |_| {}),
        ),
        (
            "made for a target of 36 layers, and this one has 8",
            refused(HeadFormat::DFlash, &target, set("num_target_layers", json!(36))),
        ),
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
            "must be a list of layers",
            refused(HeadFormat::Speculators, &target, set("eagle_aux_hidden_state_layer_ids", json!("1, 3"))),
        ),
        (
            "must be true or false",
            refused(HeadFormat::Speculators, &target, set("norm_before_residual", json!(1))),
        ),
        ("not finite", refused(HeadFormat::Eagle3, &target, set("rope_theta", json!(1e-300)))),
        (
            "norm.weight contains NaN",
            change(HeadFormat::Eagle3, &|head| floats(head, "norm.weight", |w| w[3] = f32::NAN)),
        ),
        (
            "contains inf",
            change(HeadFormat::Eagle1, &|head| floats(head, "fc.weight", |w| w[7] = f32::INFINITY)),
        ),
        (
            "fc.bias contains NaN",
            change(HeadFormat::Eagle1, &|head| floats(head, "fc.bias", |w| w[0] = f32::NAN)),
        ),
        (
            "hidden_norm.weight has the shape",
            change(HeadFormat::Eagle3, &|head| {
                head.tensors
                    .insert("midlayer.hidden_norm.weight".into(), (vec![2], Values::Float(vec![1.0; 2])));
            }),
        ),
        (
            "mlp.up_proj.weight is missing",
            change(HeadFormat::Eagle3, &|head| {
                head.tensors.remove("midlayer.mlp.up_proj.weight");
            }),
        ),
        (
            "q_norm.weight, which EAGLE-3",
            change(HeadFormat::Eagle3, &|head| {
                head.tensors.insert(
                    "midlayer.self_attn.q_norm.weight".into(),
                    (vec![2], Values::Float(vec![1.0; 2])),
                );
            }),
        ),
        (
            "q_norm.weight is missing",
            change(HeadFormat::DFlash, &|head| drop(head.tensors.remove("layers.1.self_attn.q_norm.weight"))),
        ),
        (
            "markov_head.gate_proj.weight, which DSpark",
            change(HeadFormat::DSpark, &|head| {
                let gate = (vec![2], Values::Float(vec![1.0; 2]));
                head.tensors.insert("markov_head.gate_proj.weight".into(), gate);
            }),
        ),
        (
            "markov_w2.weight is missing",
            change(HeadFormat::DSpark, &|head| drop(head.tensors.remove("markov_head.markov_w2.weight"))),
        ),
        (
            "markov_w1.weight has the shape",
            change(HeadFormat::DSpark, &|head| {
                let flat = (vec![64], Values::Float(vec![1.0; 64]));
                head.tensors.insert("markov_head.markov_w1.weight".into(), flat);
            }),
        ),
        (
            "markov_w2.weight contains NaN",
            change(HeadFormat::DSparkGguf, &|head| {
                floats(head, "markov_head.markov_w2.weight", |w| w[5] = f32::NAN);
            }),
        ),
        (
            "outside of the vocabulary",
            change(HeadFormat::DFlash, &|head| {
                head.config["dflash_config"]["mask_token_id"] = json!(VOCABULARY)
            }),
        ),
        ("layers.2.", change(HeadFormat::DFlash, &|head| head.config["num_hidden_layers"] = json!(3))),
        ("is_causal is \"no\"", change(HeadFormat::DFlash, &|head| head.config["is_causal"] = json!("no"))),
        (
            "fc.weight reads 768 values of a row, but the states after 2 layers have 512",
            change(HeadFormat::DFlash, &|head| {
                head.config["dflash_config"]["target_layer_ids"] = json!([1, 4]);
            }),
        ),
        (
            "sliding_window is 0",
            change(HeadFormat::DFlashSliding, &|head| head.config["sliding_window"] = json!(0)),
        ),
        (
            "sliding_window is -7",
            change(HeadFormat::DFlashSliding, &|head| head.config["sliding_window"] = json!(-7)),
        ),
        (
            "sliding_window is missing",
            change(HeadFormat::DFlashSliding, &|head| head.config["sliding_window"] = Value::Null),
        ),
        (
            "3 entries for 2 layers",
            change(HeadFormat::DFlashSliding, &|head| {
                head.config["layer_types"] = json!(["full_attention", "full_attention", "full_attention"]);
            }),
        ),
        (
            "layer has a sliding window",
            change(HeadFormat::Eagle3, &|head| head.config["sliding_window"] = json!(64)),
        ),
        ("those of no head", change(HeadFormat::Eagle1, &|head| drop(head.tensors.remove("fc.weight")))),
        ("d2t is missing", change(HeadFormat::Eagle3, &|head| drop(head.tensors.remove("d2t")))),
        (
            "d2t and t2d name different",
            change(HeadFormat::Eagle3, &|head| {
                head.tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(vec![3; SCORED])));
            }),
        ),
        (
            "neither tokens nor offsets",
            change(HeadFormat::Normed, &|head| {
                let backwards = (0..SCORED as i64).rev().map(|row| 2 * row).collect();
                head.tensors.insert("d2t".into(), (vec![SCORED], Values::Integer(backwards)));
            }),
        ),
        (
            "d2t has 2 entries",
            change(HeadFormat::Normed, &|head| {
                head.tensors.insert("d2t".into(), (vec![2], Values::Integer(vec![0, 1])));
            }),
        ),
        (
            "config.json says 100",
            change(HeadFormat::Eagle3, &|head| head.config["draft_vocab_size"] = json!(100)),
        ),
        (
            "1.0.linear.bias contains NaN",
            change(HeadFormat::Medusa, &|head| floats(head, "1.0.linear.bias", |w| w[5] = f32::NAN)),
        ),
        (
            "1.1.weight is missing",
            change(HeadFormat::Medusa, &|head| drop(head.tensors.remove("1.1.weight"))),
        ),
        (
            "proj.1.weight is missing",
            change(HeadFormat::Mlp, &|head| drop(head.tensors.remove("speculator.proj.1.weight"))),
        ),
        (
            "intermediate_size is missing",
            change(HeadFormat::Eagle1, &|head| {
                head.config["intermediate_size"] = Value::Null;
            }),
        ),
        ("2 layers", change(HeadFormat::Eagle1, &|head| head.config["num_hidden_layers"] = json!(2))),
    ] {
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn truncated_and_incomplete_folders_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(root.path(), "target");
    let folder = HeadFormat::Eagle3.write(root.path());
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
    assert!(
        error().contains("pytorch_model.bin is not usable as a head: it is no archive of PyTorch"),
        "{}",
        error()
    );
}

#[test]
fn damaged_pickles_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(root.path(), "target");
    let folder = pickled(&HeadFormat::Medusa.head(), root.path(), "medusa_lm_head.pt");
    let file = folder.join("medusa_lm_head.pt");
    let whole = std::fs::read(&file).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = open(&folder, &target).err().expect("the head was loaded");
        assert!(!error.to_string().contains("internal"), "{error}");
    };
    for keep in [0, 3, 100, whole.len() / 2, whole.len() - 1] {
        refused(&whole[..keep]);
    }
    let archive = |pickle: &[u8]| pickle_writer::zip(&[("archive/data.pkl".into(), pickle.to_vec())]);
    let name = b"X\x0f\0\0\x000.0.linear.bias";
    let rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n";
    for pickle in [
        &b""[..],
        b".",
        b"\x80\x02}.",
        b"\x80\x02}(u.",
        b"\x80\x02R.",
        // A call of another function, and too few arguments.
        &[b"\x80\x02}(".as_slice(), name, b"cos\nsystem\n)Ru."].concat(),
        &[b"\x80\x02}(".as_slice(), name, rebuild, b")Ru."].concat(),
        &[b"\x80\x02}(".as_slice(), name, rebuild, b"(NNNNtRu."].concat(),
        // 2^40 objects, and a text of 4 GB.
        &[b"\x80\x02N".as_slice(), &b"q\x00h\x00\x86".repeat(40), b"."].concat(),
        b"\x80\x02X\xff\xff\xff\xff.",
        // Dropped recursively by the reader.
        &[b"\x80\x02N".as_slice(), &b"\x85".repeat(1 << 20), b"."].concat(),
    ] {
        refused(&archive(pickle));
    }
    let two = ["archive/data.pkl", "other/data.pkl"].map(|name| (name.to_owned(), b"\x80\x02}.".to_vec()));
    refused(&pickle_writer::zip(&two));
    refused(&archive(&vec![b'N'; 9 << 20]));
    // A tensor whose entry claims 4 GB.
    let mut claimed = whole.clone();
    let entry = whole.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    claimed[entry + 20..entry + 28].fill(0xf0);
    refused(&claimed);
    for (change, why) in [("0.1.weight", "those of no head"), ("1.1.weight", "1.1.weight is missing")] {
        let mut head = HeadFormat::Medusa.head();
        head.tensors.remove(change);
        pickle_writer::write(&head, &file);
        let error = open(&folder, &target).err().expect("the head was loaded").to_string();
        assert!(error.contains(why), "{error}");
    }
    let mut head = HeadFormat::Medusa.head();
    floats(&mut head, "0.0.linear.weight", |w| w[3] = f32::NAN);
    pickle_writer::write(&head, &file);
    let error = open(&folder, &target).err().expect("the head was loaded").to_string();
    assert!(error.contains("0.0.linear.weight contains NaN"), "{error}");
}

/// Writes a changed GGUF head of EAGLE-3 and returns the error of loading it.
fn refused_gguf(change: impl FnOnce(GgufWriter) -> GgufWriter) -> String {
    refused_gguf_of(HeadFormat::LlamaCpp, change)
}

/// Writes a changed GGUF head and returns the error of loading it.
fn refused_gguf_of(format: HeadFormat, change: impl FnOnce(GgufWriter) -> GgufWriter) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("head.gguf");
    std::fs::write(&path, change(format.head().gguf()).bytes()).unwrap();
    let target = tiny_heads::target().write(folder.path(), "target");
    let error = open(&path, &target).err().expect("the head was loaded");
    assert_eq!(error.code(), ErrorCode::InvalidRequest, "{error}");
    error.to_string()
}

#[test]
fn gguf_heads_of_another_target_or_architecture_are_refused() {
    let tokens = |n: usize| (0..n).map(|token| format!("t{token}"));
    let d2t = |values: &[i64]| {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        move |file: GgufWriter| file.without("d2t").raw_tensor("d2t", &[SCORED as u64], 27, None, bytes)
    };
    let backwards: Vec<i64> = tiny_heads::scored_tokens().into_iter().rev().collect();
    for (why, error) in [
        ("neither tokens nor offsets", refused_gguf(d2t(&backwards))),
        ("neither tokens nor offsets", refused_gguf(d2t(&[i64::MAX; SCORED]))),
        ("d2t is missing", refused_gguf(|file| file.without("d2t"))),
        ("vocabulary has 300 tokens", {
            refused_gguf(|file| {
                file.without_key("tokenizer.ggml.tokens").strings("tokenizer.ggml.tokens", tokens(300))
            })
        }),
        ("512 values", {
            refused_gguf(|file| {
                let file =
                    file.without_key("eagle3.embedding_length").without_key("eagle3.target_hidden_size");
                file.u32("eagle3.embedding_length", 512)
            })
        }),
        ("not as wide", {
            refused_gguf(|file| {
                file.without_key("eagle3.target_hidden_size").u32("eagle3.target_hidden_size", 99)
            })
        }),
        ("target_layers is missing", refused_gguf(|file| file.without_key("eagle3.target_layers"))),
        ("not a list of layers", {
            refused_gguf(|file| file.without_key("eagle3.target_layers").u32("eagle3.target_layers", 3))
        }),
        ("after layers [1, 3, 97]", {
            refused_gguf(|file| {
                file.without_key("eagle3.target_layers").i32s("eagle3.target_layers", &[2, 4, 98])
            })
        }),
        (
            "2 layers",
            refused_gguf(|file| file.without_key("eagle3.block_count").u32("eagle3.block_count", 2)),
        ),
        ("up_proj.weight is missing", refused_gguf(|file| file.without("blk.0.ffn_up.weight"))),
        ("blk.0.attn_sinks.weight", {
            refused_gguf(|file| file.tensor("blk.0.attn_sinks.weight", &[4], GgmlDType::F32, &[0.0; 4]))
        }),
        ("enc.output_norm.weight is missing", refused_gguf(|file| file.bool("eagle3.norm_before_fc", true))),
        ("norm.weight contains NaN", {
            refused_gguf(|file| {
                file.without("output_norm.weight").tensor(
                    "output_norm.weight",
                    &[WIDTH],
                    GgmlDType::F32,
                    &[f32::NAN; WIDTH],
                )
            })
        }),
        ("dflash.target_layers is missing", {
            refused_gguf(|file| {
                file.without_key("general.architecture").str("general.architecture", "dflash")
            })
        }),
    ] {
        assert!(error.contains(why), "{why}: {error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(folder.path(), "target");
    let whole = HeadFormat::LlamaCpp.head().gguf().bytes();
    let path = folder.path().join("head.gguf");
    for keep in [0, 4, 100, 3000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        assert!(open(&path, &target).is_err(), "{keep} bytes");
    }
}

#[test]
fn windows_of_gguf_heads_are_checked() {
    let size = "dflash.attention.sliding_window";
    let pattern = "dflash.attention.sliding_window_pattern";
    let causal = "dflash.attention.causal";
    let flags = |flags: &[bool]| GgufValue::Array(Array::Bool(flags.to_vec()));
    for (key, value, why) in [
        (size, GgufValue::I32(-9), "sliding_window is -9, but it must be a whole number above 0"),
        (size, GgufValue::String("9".into()), "sliding_window is not a whole number"),
        (size, GgufValue::F32(9.0), "sliding_window is not a whole number"),
        (size, GgufValue::U64(u64::MAX), "sliding_window is not a whole number below 2^63"),
        (pattern, flags(&[true]), "layer_types has 1 entries for 2 layers"),
        (pattern, flags(&[false, true, true]), "layer_types has 3 entries for 2 layers"),
        (pattern, GgufValue::Bool(true), "sliding_window_pattern is not a list of flags"),
        (pattern, GgufValue::U32(2), "sliding_window_pattern is not a list of flags"),
        (causal, GgufValue::U32(1), "causal is neither true nor false"),
    ] {
        let error = refused_gguf_of(HeadFormat::DFlashGguf, |file| file.without_key(key).value(key, value));
        assert!(error.contains(why), "{why}: {error}");
    }
    let error = refused_gguf_of(HeadFormat::DFlashGguf, |file| file.without_key(pattern));
    assert!(error.contains("sliding_window_pattern is missing"), "{error}");
    let error = refused_gguf(|file| file.u32("eagle3.attention.sliding_window", 64));
    assert!(error.contains("layer has a sliding window"), "{error}");
}

/// A window that no context reaches hides nothing, and one of 0 in a GGUF file is none.
#[test]
fn windows_beyond_the_context_and_of_zero_hide_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = tiny_heads::target().write(folder.path(), "target");
    let text: Vec<TokenId> = (0..40).map(|i| 3 + i * i % 200).collect();
    let scores = |path: &Path| -> Vec<Vec<f32>> {
        let (mut head, mut decoder) = open(path, &target).unwrap();
        let features = features(&head, &mut decoder, &text);
        let first = head.logits(&features, &text[1..]).unwrap();
        [first].into_iter().chain((1..15).map(|_| head.next_logits(1).unwrap())).collect()
    };
    let folder_with = |name: &str, window: Value, types: Value| {
        let mut head = HeadFormat::DFlash.head();
        head.config["sliding_window"] = window;
        head.config["use_sliding_window"] = json!(true);
        head.config["layer_types"] = types;
        // Only the window differs.
        head.config["is_causal"] = json!(false);
        scores(&head.write(folder.path(), name))
    };
    let full = scores(&HeadFormat::DFlash.write(folder.path()));
    let slides = json!(["sliding_attention", "sliding_attention"]);
    for window in [json!(55), json!(1_000_000), json!(u64::MAX)] {
        assert!(folder_with("wide", window.clone(), slides.clone()) == full, "{window}");
    }
    for window in [json!(54), json!(16), json!(1)] {
        assert!(folder_with("narrow", window.clone(), slides.clone()) != full, "{window}");
    }
    let gguf_with = |name: &str, window: u32| {
        let key = "dflash.attention.sliding_window";
        let file = HeadFormat::DFlashGguf.head().gguf().without_key(key).u32(key, window);
        let path = folder.path().join(name);
        std::fs::write(&path, file.bytes()).unwrap();
        scores(&path)
    };
    let none = gguf_with("none.gguf", 0);
    assert!(gguf_with("wide.gguf", u32::MAX) == none && gguf_with("narrow.gguf", 9) != none);
}
