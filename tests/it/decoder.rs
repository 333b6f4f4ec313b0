//! Tests of the decoder and of low-bit copies on tiny random models.
//!
//! Reference logits of candle-transformers, bitwise row invariance for every type, truncation, trees,
//! taps, and rejected models.

use std::ops::ControlFlow;
use std::path::Path;

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, PassInput, RowLayout, Rows};
use hunch_core::token::TokenId;
use hunch_error::{Error, ErrorCode};
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::gguf::{Gguf, WeightType};
use hunch_model::low_bit;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;

// The model of `hunch bench --candle`, which the library does not contain by default.
#[allow(unreachable_pub)]
#[path = "../../src/bench/candle_model.rs"]
mod candle_model;
use candle_model::CandleModel;

use crate::support::{cpu, cpu_with_f32_cache};
use hunch_testing::tiny::{Tiny, VOCABULARY, WIDTH, tokens};

const TYPES: [GgmlDType; 13] = [
    GgmlDType::F32,
    GgmlDType::F16,
    GgmlDType::BF16,
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];

fn load(tiny: Tiny) -> Decoder {
    load_on(tiny, &cpu())
}

fn load_on(tiny: Tiny, compute: &Compute) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    Decoder::open(&tiny.write(folder.path(), "tiny"), compute).unwrap()
}

fn bits(rows: &Rows, i: usize) -> Vec<u32> {
    rows.row(i).iter().map(|v| v.to_bits()).collect()
}

fn chain(model: &mut Decoder, tokens: &[TokenId]) -> Rows {
    model.forward(PassInput::chain(tokens, LogitRows::All)).unwrap().logits
}

#[test]
fn logits_match_candle_transformers() {
    for (architecture, tied) in
        [("llama", true), ("llama", false), ("qwen2", true), ("qwen2", false), ("qwen3", true)]
    {
        let tiny = Tiny { architecture, tied, ..Tiny::default() };
        let folder = tempfile::tempdir().unwrap();
        let path = tiny.write(folder.path(), "tiny");
        let mut ours = Decoder::open(&path, &cpu_with_f32_cache()).unwrap();
        let mut theirs = CandleModel::open(&path, architecture, &Device::Cpu).unwrap();
        let ids = tokens(24, 5);
        let prompt = 10;
        let rows = chain(&mut ours, &ids);
        for end in prompt..=ids.len() {
            let (from, position) = if end == prompt { (0, 0) } else { (end - 1, end - 1) };
            let reference = theirs.forward(&ids[from..end], position, &Device::Cpu).unwrap();
            let scale = reference.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (a, b) in rows.row(end - 1).iter().zip(&reference) {
                // Qwen3 in candle has a half-precision rotation table.
                let tolerance = if architecture == "qwen3" { 2e-2 } else { 1e-4 };
                assert!(
                    (a - b).abs() <= tolerance * scale,
                    "{architecture} tied {tied} at {end}: {a}, not {b}"
                );
            }
        }
    }
}

#[test]
fn cache_of_halves_takes_half_the_memory_and_changes_logits_little() {
    for architecture in ["llama", "qwen2", "qwen3", "smollm3"] {
        let mut halves = load(Tiny { architecture, ..Tiny::default() });
        let mut floats = load_on(Tiny { architecture, ..Tiny::default() }, &cpu_with_f32_cache());
        let ids = tokens(300, 5);
        let (a, b) = (chain(&mut halves, &ids), chain(&mut floats, &ids));
        assert_eq!(2 * halves.memory().cache, floats.memory().cache);
        let mut differs = false;
        for i in 0..a.len() {
            let scale = b.row(i).iter().fold(0f32, |m, v| m.max(v.abs()));
            let off = a.row(i).iter().zip(b.row(i)).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(off <= 1e-2 * scale, "{architecture}: row {i} is off by {off} of {scale}");
            differs |= off > 0.0;
        }
        assert!(differs, "{architecture}: the caches have one type");
    }
}

#[test]
fn row_has_same_bits_in_pass_of_any_size_for_every_type() {
    for dtype in TYPES {
        for architecture in ["llama", "qwen2"] {
            // Both types of caches.
            let compute = if architecture == "llama" { cpu() } else { cpu_with_f32_cache() };
            let mut model = load_on(Tiny { architecture, dtype, ..Tiny::default() }, &compute);
            let ids = tokens(21, 9);
            let base = 5;
            chain(&mut model, &ids[..base]);
            let alone: Vec<_> =
                ids[base..].iter().map(|id| bits(&chain(&mut model, std::slice::from_ref(id)), 0)).collect();
            for rows in 2..=16 {
                model.truncate(base).unwrap();
                let together = chain(&mut model, &ids[base..base + rows]);
                for (i, expected) in alone[..rows].iter().enumerate() {
                    assert_eq!(&bits(&together, i), expected, "{architecture} {dtype:?}: row {i} of {rows}");
                }
            }
        }
    }
}

#[test]
fn logits_do_not_depend_on_thread_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = Tiny { dtype: GgmlDType::Q4K, ..Tiny::default() }.write(folder.path(), "tiny");
    let ids = tokens(30, 2);
    let logits: Vec<_> = [1, 2, 5]
        .into_iter()
        .map(|threads| {
            let compute = Compute::open(DeviceChoice::Cpu, Some(threads)).unwrap();
            chain(&mut Decoder::open(&path, &compute).unwrap(), &ids)
        })
        .collect();
    assert_eq!(logits[0], logits[1]);
    assert_eq!(logits[0], logits[2]);
}

#[test]
fn architectures_run_and_differ() {
    let ids = tokens(12, 4);
    let mut seen: Vec<Vec<u32>> = Vec::new();
    for (architecture, layers) in [("llama", 4), ("qwen2", 4), ("qwen3", 4), ("smollm3", 4)] {
        let mut model = load(Tiny { architecture, layers, ..Tiny::default() });
        let last = bits(&chain(&mut model, &ids), ids.len() - 1);
        assert!(last.iter().all(|b| f32::from_bits(*b).is_finite()));
        assert!(!seen.contains(&last), "{architecture} has the logits of another architecture");
        seen.push(last);
    }
    let mut scaled = load(Tiny { layers: 4, rope_factors: true, ..Tiny::default() });
    let last = bits(&chain(&mut scaled, &ids), ids.len() - 1);
    assert!(!seen.contains(&last), "rope_freqs.weight has no effect");
}

#[test]
fn truncate_then_refill_matches_fresh_cache() {
    let mut model = load(Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() });
    let ids = tokens(300, 6);
    // Longer than the first allocation of the cache, so that it grows.
    chain(&mut model, &ids);
    for len in [0, 1, 100, 255, 256, 298] {
        model.truncate(len).unwrap();
        let again = chain(&mut model, &ids[len..len + 1]);
        model.truncate(0).unwrap();
        let scratch = chain(&mut model, &ids[..len + 1]);
        assert_eq!(bits(&again, 0), bits(&scratch, len), "after truncating to {len}");
        chain(&mut model, &ids[len + 1..]);
    }
}

#[test]
fn tree_rows_match_single_paths_and_kept_path_continues_as_chain() {
    for dtype in [GgmlDType::F32, GgmlDType::Q4_0, GgmlDType::Q6K] {
        let mut model = load(Tiny { architecture: "qwen3", dtype, ..Tiny::default() });
        let prefix = tokens(9, 1);
        let nodes = tokens(7, 8);
        let parents = [None, Some(0), Some(0), Some(2), None, Some(4), Some(3)];
        chain(&mut model, &prefix);
        let layout = RowLayout::Tree { parents: &parents };
        let tree =
            model.forward(PassInput { layout, ..PassInput::chain(&nodes, LogitRows::All) }).unwrap().logits;
        let path_of = |mut node: usize| {
            let mut path = vec![node];
            while let Some(parent) = parents[node] {
                path.insert(0, parent);
                node = parent;
            }
            path
        };
        for node in 0..nodes.len() {
            let path: Vec<TokenId> = path_of(node).into_iter().map(|i| nodes[i]).collect();
            let mut alone = load(Tiny { architecture: "qwen3", dtype, ..Tiny::default() });
            chain(&mut alone, &prefix);
            let rows = chain(&mut alone, &path);
            assert_eq!(bits(&tree, node), bits(&rows, path.len() - 1), "{dtype:?} node {node}");
        }
        // The same tree in two passes, as a draft model processes it.
        model.truncate(prefix.len()).unwrap();
        let layout = RowLayout::Tree { parents: &parents[..3] };
        model.forward(PassInput { layout, ..PassInput::chain(&nodes[..3], LogitRows::None) }).unwrap();
        let depth_of = |node| path_of(node).len() - 1;
        let depths: Vec<usize> = (3..7).map(depth_of).collect();
        let visible: Vec<u64> = (3..7).map(|node| path_of(node).iter().map(|row| 1 << row).sum()).collect();
        let layout = RowLayout::Custom { since: prefix.len(), depths: &depths, visible: &visible };
        let rest = model
            .forward(PassInput { layout, ..PassInput::chain(&nodes[3..], LogitRows::All) })
            .unwrap()
            .logits;
        for node in 3..7 {
            assert_eq!(bits(&tree, node), bits(&rest, node - 3), "{dtype:?} node {node} of a second pass");
        }
        let path = path_of(6);
        model.keep_rows(prefix.len(), &path).unwrap();
        assert_eq!(model.cache_len(), prefix.len() + path.len());
        let mut whole = prefix.clone();
        whole.extend(path.iter().map(|&i| nodes[i]));
        whole.push(42);
        let next = chain(&mut model, &[42]);
        let mut scratch = load(Tiny { architecture: "qwen3", dtype, ..Tiny::default() });
        assert_eq!(bits(&next, 0), bits(&chain(&mut scratch, &whole), whole.len() - 1), "{dtype:?}");
    }
}

/// Runs the executor for Metal on candle's CPU device.
#[test]
fn candle_and_cpu_executors_agree() {
    for architecture in ["llama", "qwen2", "qwen3", "smollm3"] {
        let folder = tempfile::tempdir().unwrap();
        let path = Tiny { architecture, layers: 4, ..Tiny::default() }.write(folder.path(), "tiny");
        let mut fused = Decoder::open(&path, &cpu_with_f32_cache()).unwrap();
        let mut reference_model = Decoder::load_candle(&WeightFile::open(&path).unwrap(), &cpu()).unwrap();
        let close = |a: &Rows, b: &Rows, what: &str| {
            assert_eq!(a.len(), b.len(), "{architecture}: {what}");
            for i in 0..a.len() {
                let scale = b.row(i).iter().fold(0f32, |m, v| m.max(v.abs()));
                let off = a.row(i).iter().zip(b.row(i)).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(off <= 1e-4 * scale, "{architecture}: {what}, row {i}: off by {off} of {scale}");
            }
        };
        let mut both = |step: PassInput<'_>, what: &str| {
            let (a, b) = (fused.forward(step).unwrap(), reference_model.forward(step).unwrap());
            close(&a.logits, &b.logits, what);
            a.taps.iter().zip(&b.taps).for_each(|(a, b)| close(a, b, what));
        };
        both(PassInput { taps: &[0, 3], ..PassInput::chain(&tokens(21, 1), LogitRows::All) }, "a prompt");
        both(PassInput::chain(&[7], LogitRows::Last), "one row");
        let parents = [None, Some(0), Some(0), Some(2), None];
        let layout = RowLayout::Tree { parents: &parents };
        both(PassInput { layout, ..PassInput::chain(&tokens(5, 2), LogitRows::All) }, "a tree");
        let visible = [0b100101, 0b1010000];
        let layout = RowLayout::Custom { since: 22, depths: &[2, 1], visible: &visible };
        both(PassInput { layout, ..PassInput::chain(&tokens(2, 4), LogitRows::All) }, "a continued tree");
        for model in [&mut fused, &mut reference_model] {
            model.keep_rows(22, &[0, 2, 3]).unwrap();
        }
        let mut both = |step: PassInput<'_>, what: &str| {
            close(&fused.forward(step).unwrap().logits, &reference_model.forward(step).unwrap().logits, what);
        };
        both(PassInput::chain(&[9, 4], LogitRows::All), "after a kept path");
        for model in [&mut fused, &mut reference_model] {
            model.truncate(10).unwrap();
        }
        let mut both = |step: PassInput<'_>, what: &str| {
            close(&fused.forward(step).unwrap().logits, &reference_model.forward(step).unwrap().logits, what);
        };
        both(PassInput::chain(&tokens(300, 3), LogitRows::Last), "past the first growth of the cache");
    }
}

#[test]
fn low_bit_copy_keeps_metadata_and_reduces_bits() {
    for dtype in [GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::F16] {
        let folder = tempfile::tempdir().unwrap();
        let path = Tiny { architecture: "qwen2", dtype, ..Tiny::default() }.write(folder.path(), "tiny");
        let original = WeightFile::open(&path).unwrap();
        let to = folder.path().join("new").join("copy.gguf");
        let mut last = (0, 0);
        low_bit::write_copy(&original, &to, 3, &mut |done, total| {
            last = (done, total);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(last.0 == last.1 && last.0 > 0);
        let copy = WeightFile::open(&to).unwrap();
        let planned = low_bit::planned(original.gguf(), &to);
        assert_eq!(copy.gguf().metadata, planned.metadata);
        assert!(low_bit::is_copy(copy.gguf()) && !low_bit::is_copy(original.gguf()));
        let all_but_mark =
            copy.gguf().metadata.iter().filter(|(key, _)| original.gguf().metadata.contains_key(*key));
        assert!(all_but_mark.eq(&original.gguf().metadata));
        assert_eq!(copy.gguf().metadata.len(), original.gguf().metadata.len() + 1);
        let sizes = |gguf: &Gguf| -> Vec<_> {
            gguf.tensors.iter().map(|(name, info)| (name.clone(), info.dtype, info.range.len())).collect()
        };
        assert_eq!(sizes(copy.gguf()), sizes(&planned));
        let read = |file: &WeightFile| file.bytes_per_pass(&ModelSpec::from_gguf(file.gguf()).unwrap());
        assert!(read(&copy) < read(&original));
        for (name, tensor) in &original.gguf().tensors {
            let low = &copy.gguf().tensors[name];
            assert_eq!(low.shape, tensor.shape);
            assert_eq!(
                low.dtype == WeightType::Q2K,
                name.contains("attn_q.w")
                    || name.contains("attn_k.w")
                    || name.contains("attn_output")
                    || name.contains("gate")
                    || name.contains("up"),
                "{name}"
            );
        }
        // The copy is a different model with similar predictions.
        let ids = tokens(30, 4);
        let rows = chain(&mut Decoder::open(&path, &cpu()).unwrap(), &ids);
        let low = chain(&mut Decoder::open(&to, &cpu()).unwrap(), &ids);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let cosine = |a, b| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        let alike: f64 = (0..30).map(|i| cosine(rows.row(i), low.row(i))).sum::<f64>() / 30.0;
        assert!((0.5..0.9999).contains(&alike), "{dtype:?}: {alike}");
    }
}

#[test]
fn failed_copy_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let original = WeightFile::open(&Tiny::default().write(folder.path(), "tiny")).unwrap();
    // A folder occupies the path of the copy.
    let to = folder.path().join("copy.gguf");
    std::fs::create_dir(&to).unwrap();
    std::fs::write(to.join("kept"), "x").unwrap();
    assert_eq!(
        low_bit::write_copy(&original, &to, 1, &mut low_bit::unwatched).unwrap_err().code(),
        ErrorCode::Io
    );
    assert!(to.join("kept").exists());
    assert_eq!(names(folder.path()), ["copy.gguf", "tiny.gguf"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn concurrent_writers_produce_valid_copy() {
    let folder = tempfile::tempdir().unwrap();
    let original = WeightFile::open(&Tiny::default().write(folder.path(), "tiny")).unwrap();
    let alone = folder.path().join("alone.gguf");
    low_bit::write_copy(&original, &alone, 1, &mut low_bit::unwatched).unwrap();
    let to = folder.path().join("copy.gguf");
    // All writers start before one of them ends.
    let started = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let write = || {
            let mut first = true;
            let mut progress = |_, _| {
                if std::mem::take(&mut first) {
                    started.wait();
                }
                ControlFlow::Continue(())
            };
            low_bit::write_copy(&original, &to, 1, &mut progress)
        };
        let writers: Vec<_> = (0..3).map(|_| scope.spawn(write)).collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
    });
    assert_eq!(std::fs::read(&to).unwrap(), std::fs::read(&alone).unwrap());
    assert_eq!(names(folder.path()), ["alone.gguf", "copy.gguf", "tiny.gguf"]);
}

#[test]
fn removes_leftovers_of_killed_writers_of_same_copy() {
    let folder = tempfile::tempdir().unwrap();
    let original = WeightFile::open(&Tiny::default().write(folder.path(), "tiny")).unwrap();
    for name in ["copy.77-0.gguf.part", "copier.77-0.gguf.part", "copy.gguf.parts"] {
        std::fs::write(folder.path().join(name), "half").unwrap();
    }
    low_bit::write_copy(&original, &folder.path().join("copy.gguf"), 1, &mut low_bit::unwatched).unwrap();
    let left = ["copier.77-0.gguf.part", "copy.gguf", "copy.gguf.parts", "tiny.gguf"];
    assert_eq!(names(folder.path()), left);
}

#[test]
fn fingerprint_depends_on_content_not_name() {
    let folder = tempfile::tempdir().unwrap();
    let first = low_bit::fingerprint(&Tiny::default().write(folder.path(), "tiny")).unwrap();
    let path = Tiny { seed: 2, ..Tiny::default() }.write(folder.path(), "tiny");
    assert_ne!(low_bit::fingerprint(&path).unwrap(), first, "different model, same name");
    let moved = Tiny::default().write(folder.path(), "moved");
    assert_eq!(low_bit::fingerprint(&moved).unwrap(), first, "same model, different name");
    let split = |seed| Tiny { seed, ..Tiny::default() }.write_split(folder.path(), "big", 2);
    assert_ne!(low_bit::fingerprint(&split(1)).unwrap(), low_bit::fingerprint(&split(2)).unwrap());
    assert!(low_bit::fingerprint(&folder.path().join("gone.gguf")).is_err());
}

#[test]
fn taps_early_exit_and_layer_skipping_work() {
    let mut model = load(Tiny { layers: 3, ..Tiny::default() });
    let ids = tokens(6, 3);
    let all = model.forward(PassInput { taps: &[0, 2], ..PassInput::chain(&ids, LogitRows::Last) }).unwrap();
    assert_eq!((all.taps.len(), all.taps[0].len(), all.taps[1].row(0).len()), (2, 6, WIDTH));
    model.truncate(0).unwrap();
    let exit = PassInput { layers: LayerPlan::Exit(2), ..PassInput::chain(&ids, LogitRows::Last) };
    let exit = model.forward(exit).unwrap().logits;
    model.truncate(0).unwrap();
    let skip = PassInput { layers: LayerPlan::Skip(&[2]), ..PassInput::chain(&ids, LogitRows::Last) };
    let skip = model.forward(skip).unwrap().logits;
    assert_eq!(exit, skip);
    assert_ne!(exit, all.logits);
    assert_eq!(exit.len(), 1);
}

fn load_error(writer: hunch_testing::gguf_writer::GgufWriter) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    match Decoder::open(&path, &cpu()) {
        Ok(_) => panic!("an invalid model was loaded"),
        Err(error) => error,
    }
}

#[test]
fn rejects_unsupported_models_by_name() {
    let unknown = load_error(Tiny { architecture: "mamba", ..Tiny::default() }.writer());
    assert_eq!(unknown.code(), ErrorCode::UnsupportedModel);
    assert!(unknown.to_string().contains("mamba"), "{unknown}");

    let qwen2 = Tiny { architecture: "qwen2", ..Tiny::default() };
    let window = load_error(qwen2.writer().u32("qwen2.attention.sliding_window", 64));
    assert!(window.to_string().contains("sliding attention window of 64"), "{window}");

    let experts = load_error(qwen2.writer().u32("qwen2.expert_count", 8));
    assert!(experts.to_string().contains("8 experts"), "{experts}");

    for (kind, name) in [(9, "Q8_1"), (15, "Q8_K")] {
        let writer = Tiny::default().writer().raw_tensor("odd.weight", &[256], kind, None, vec![0; 512]);
        let odd = load_error(writer);
        assert_eq!(odd.code(), ErrorCode::UnsupportedModel);
        assert!(odd.to_string().contains(name), "{odd}");
    }

    let scaling = load_error(Tiny::default().writer().str("llama.rope.scaling.type", "dynamic"));
    assert!(scaling.to_string().contains("dynamic"), "{scaling}");
}

#[test]
fn names_missing_and_misshapen_tensors() {
    let missing = load_error(Tiny { layers: 1, ..Tiny::default() }.writer().without("blk.0.ffn_up.weight"));
    assert_eq!(missing.code(), ErrorCode::InvalidModelFile);
    assert!(missing.to_string().contains("blk.0.ffn_up.weight is missing"), "{missing}");

    let writer = Tiny { layers: 1, ..Tiny::default() }.writer().without("blk.0.attn_norm.weight");
    let short = load_error(writer.tensor("blk.0.attn_norm.weight", &[32], GgmlDType::F32, &[1.0; 32]));
    assert!(short.to_string().contains("[32], expected [256]"), "{short}");
}

#[test]
fn invalid_steps_fail_and_keep_cache() {
    let mut model = load(Tiny { context: 16, ..Tiny::default() });
    chain(&mut model, &tokens(10, 1));
    let outside = model.forward(PassInput::chain(&[VOCABULARY as TokenId], LogitRows::All)).unwrap_err();
    assert_eq!(Error::from(outside).code(), ErrorCode::InvalidRequest);
    let overflow = model.forward(PassInput::chain(&tokens(7, 1), LogitRows::All)).unwrap_err();
    assert_eq!(Error::from(overflow).code(), ErrorCode::ContextOverflow);
    assert!(model.forward(PassInput::chain(&[], LogitRows::All)).is_err());
    assert!(model.keep_rows(8, &[1, 0]).is_err());
    assert!(model.keep_rows(8, &[2]).is_err());
    assert_eq!(model.cache_len(), 10);
    chain(&mut model, &tokens(6, 1));
    assert_eq!(model.cache_len(), 16);
}
