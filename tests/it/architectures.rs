//! Tests of every architecture beyond the first four, on tiny random models.
//!
//! References are recorded from llama.cpp by `scripts/oracle`. Rows, trees, rollback and sequences must agree bit for
//! bit, and the executor for Metal must agree with the CPU's within rounding.

use std::path::Path;

use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, PassInput, RowLayout, Rows};
use hunch_core::token::TokenId;
use hunch_error::ErrorCode;
use hunch_library::fit::Footprint;
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, DeviceChoice, KvType};
use hunch_model::execution::{Backend, Execution};
use hunch_model::gguf::{Gguf, WeightType};
use hunch_model::low_bit;
use hunch_model::metal::selftest::KernelPart;
use hunch_model::sequences::Sequences;
use hunch_model::spec::{HeadNorms, KeyHeads, LayerRope, LayerSpec, ModelSpec};
use hunch_model::weights::WeightFile;
use serde::Deserialize;

use crate::support::cpu;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::idle_gpu::IdleGpu;
use hunch_testing::tiny::{
    CHUNKED, EXPERTS, FURTHER, LONG, MIXTURE, ORACLE_TOKENS, SHARED_KEYS, Tiny, Variant, WINDOW, further,
    long, tokens, with_short_chunks,
};

fn load(tiny: Tiny) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    Decoder::open(&tiny.write(folder.path(), "tiny"), &cpu()).unwrap()
}

/// Loads a model with a cache of 32 bits, as the references have.
fn load_exact(tiny: Tiny) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    Decoder::open(&tiny.write(folder.path(), "tiny"), &cpu().with_kv(KvType::F32)).unwrap()
}

fn chain(model: &mut Decoder, tokens: &[TokenId]) -> Rows {
    model.forward(PassInput::chain(tokens, LogitRows::All)).unwrap().logits
}

fn bits(rows: &Rows, i: usize) -> Vec<u32> {
    rows.row(i).iter().map(|v| v.to_bits()).collect()
}

/// Recording of `scripts/oracle`.
#[derive(Deserialize)]
struct Recording {
    models: Vec<Recorded>,
    continued: Vec<Continued>,
}

/// Recording of a long prompt and its likeliest continuation.
#[derive(Deserialize)]
struct Continued {
    greedy_ids: Vec<TokenId>,
    top8_logprobs: Vec<Vec<(TokenId, f64)>>,
}

fn recording() -> Recording {
    serde_json::from_str(include_str!("../golden/architectures.json")).unwrap()
}

#[derive(Deserialize)]
struct Recorded {
    architecture: String,
    variant: String,
    prompt_ids: Vec<TokenId>,
    top8_logprobs: Vec<Vec<(TokenId, f64)>>,
}

/// Returns the largest |difference of log p|, its mean, and the number of positions whose likeliest token differs.
fn distance(rows: &Rows, recorded: &[Vec<(TokenId, f64)>]) -> (f64, f64, usize) {
    let (mut largest, mut sum, mut count, mut differs) = (0f64, 0.0, 0, 0);
    for (i, listed) in recorded.iter().enumerate() {
        let row = rows.row(i);
        let max = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
        let total = row.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln() + max;
        for &(token, log_p) in listed {
            let off = (f64::from(row[token as usize]) - total - log_p).abs();
            (largest, sum, count) = (largest.max(off), sum + off, count + 1);
        }
        differs += usize::from(f64::from(row[listed[0].0 as usize]) != max);
    }
    (largest, sum / f64::from(count), differs)
}

#[test]
fn distributions_match_llama_cpp() {
    let recording = recording();
    assert_eq!(recording.models.len(), FURTHER.len());
    for (of, recorded) in FURTHER.into_iter().zip(&recording.models) {
        let name = format!("{} {:?}", of.0, of.1);
        assert_eq!(name, format!("{} {}", recorded.architecture, recorded.variant));
        assert_eq!(recorded.top8_logprobs.len(), ORACLE_TOKENS);
        let rows = chain(&mut load_exact(further(of)), &recorded.prompt_ids);
        let (largest, mean, differs) = distance(&rows, &recorded.top8_logprobs);
        println!(
            "{name}: mean |difference of log p| {mean:.6}, largest {largest:.5}, likeliest differs at {differs}"
        );
        let bound = match of {
            // llama.cpp rounds the input of GELU to half precision.
            (architecture, ..) if architecture.starts_with("gemma") => 5e-3,
            // The two quantise activations differently.
            (_, Variant::Fp4, _) => 2e-2,
            _ => 3e-4,
        };
        assert!(mean <= bound, "{name}: mean |difference of log p| {mean}, largest {largest}");
        assert!(differs <= usize::from(of.1 == Variant::Fp4), "{name}: the likeliest token differs");
    }
}

/// The prompt ends shortly before the second chunk of 8192 positions, where the factor of queries grows too.
#[test]
fn rows_of_the_second_chunk_match_llama_cpp() {
    let recorded = &recording().continued[0];
    let (prompt, count) = LONG;
    assert_eq!(recorded.greedy_ids.len(), count);
    let mut model = load_exact(long());
    let mut ids = tokens(prompt, 5);
    ids.extend(&recorded.greedy_ids[..count - 1]);
    let (before, last) = ids.split_at(prompt - 1);
    for part in before.chunks(512) {
        model.forward(PassInput::chain(part, LogitRows::None)).unwrap();
    }
    let rows = chain(&mut model, last);
    let (largest, mean, differs) = distance(&rows, &recorded.top8_logprobs);
    println!("mean |difference of log p| {mean:.6}, largest {largest:.5}, likeliest differs at {differs}");
    // llama.cpp computes angles of rotations in 32 bits. With such angles the mean is 0.00001.
    let is_near = mean <= 0.015 && largest <= 0.05 && differs == 0;
    assert!(is_near, "mean {mean}, largest {largest}, {differs} differ");
}

#[test]
fn row_has_same_bits_alone_and_among_sixteen() {
    for of in with_short_chunks() {
        let mut model = load(further(of));
        let ids = tokens(21, 9);
        let base = 5;
        chain(&mut model, &ids[..base]);
        let alone: Vec<_> =
            ids[base..].iter().map(|id| bits(&chain(&mut model, std::slice::from_ref(id)), 0)).collect();
        for rows in [2, 3, 7, 16] {
            model.truncate(base).unwrap();
            let together = chain(&mut model, &ids[base..base + rows]);
            for (i, expected) in alone[..rows].iter().enumerate() {
                assert_eq!(&bits(&together, i), expected, "{of:?}: row {i} of {rows}");
            }
        }
    }
}

#[test]
fn tree_rows_match_single_paths_and_rolled_back_cache_continues() {
    for of in with_short_chunks() {
        let mut model = load(further(of));
        let (prefix, nodes) = (tokens(9, 1), tokens(7, 8));
        let parents = [None, Some(0), Some(0), Some(2), None, Some(4), Some(3)];
        chain(&mut model, &prefix);
        let layout = RowLayout::Tree { parents: &parents };
        let tree =
            model.forward(PassInput { layout, ..PassInput::chain(&nodes, LogitRows::All) }).unwrap().logits;
        for path in [&[0, 1][..], &[0, 2, 3, 6], &[4, 5]] {
            let tokens: Vec<TokenId> = path.iter().map(|&node| nodes[node]).collect();
            model.truncate(prefix.len()).unwrap();
            let rows = chain(&mut model, &tokens);
            for (i, &node) in path.iter().enumerate() {
                assert_eq!(bits(&tree, node), bits(&rows, i), "{of:?} node {node}");
            }
        }
        // A kept path continues like a chain that never was a tree.
        model.truncate(prefix.len()).unwrap();
        let layout = RowLayout::Tree { parents: &parents };
        model.forward(PassInput { layout, ..PassInput::chain(&nodes, LogitRows::None) }).unwrap();
        let path = [0, 2, 3, 6];
        model.keep_rows(prefix.len(), &path).unwrap();
        let next = chain(&mut model, &[42]);
        let whole = prefix.iter().copied().chain(path.map(|node| nodes[node])).chain([42]);
        let whole: Vec<TokenId> = whole.collect();
        model.truncate(0).unwrap();
        let scratch = chain(&mut model, &whole);
        assert_eq!(bits(&next, 0), bits(&scratch, whole.len() - 1), "{of:?}");
    }
}

#[test]
fn sequences_of_a_shared_pass_match_single_ones() {
    for of in with_short_chunks() {
        let mut model = load(further(of));
        let mut sequences = Sequences::of(&model, 2);
        let prompts = [tokens(9, 1), tokens(14, 2)];
        for (sequence, prompt) in prompts.iter().enumerate() {
            sequences.prefill(sequence, prompt).unwrap();
        }
        let rows = sequences.step(&[(0, 3), (1, 200)], &[]).unwrap().logits;
        for (i, (prompt, next)) in prompts.iter().zip([3, 200]).enumerate() {
            model.truncate(0).unwrap();
            chain(&mut model, prompt);
            assert_eq!(bits(&rows, i), bits(&chain(&mut model, &[next]), 0), "{of:?} sequence {i}");
        }
    }
}

/// Runs the executor for Metal on candle's CPU device.
#[test]
fn candle_and_cpu_executors_agree() {
    for of in with_short_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let path = further(of).write(folder.path(), "tiny");
        let mut fused = Decoder::open(&path, &cpu().with_kv(KvType::F32)).unwrap();
        let mut reference = Decoder::load_candle(&WeightFile::open(&path).unwrap(), &cpu()).unwrap();
        let mut both = |step: PassInput<'_>, what: &str| {
            let (a, b) = (fused.forward(step).unwrap().logits, reference.forward(step).unwrap().logits);
            for i in 0..a.len() {
                let scale = b.row(i).iter().fold(0f32, |m, v| m.max(v.abs()));
                let off = a.row(i).iter().zip(b.row(i)).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                // candle multiplies with floats where the kernels quantise the rows.
                let bound = if of.1 == Variant::Fp4 { 3e-2 } else { 5e-4 };
                assert!(off <= bound * scale, "{of:?}: {what}, row {i}: off by {off} of {scale}");
            }
        };
        both(PassInput::chain(&tokens(21, 1), LogitRows::All), "a prompt");
        both(PassInput::chain(&[7], LogitRows::Last), "one row");
        let parents = [None, Some(0), Some(0), Some(2), None];
        let layout = RowLayout::Tree { parents: &parents };
        both(PassInput { layout, ..PassInput::chain(&tokens(5, 2), LogitRows::All) }, "a tree");
    }
}

#[test]
fn window_hides_all_but_last_positions() {
    // Llama and Phi 3 have the window in every layer, so one layer sees WINDOW positions and no more.
    for architecture in ["llama", "phi3"] {
        let one = Tiny { architecture, layers: 1, ..Tiny::default() };
        let mut all = load_exact(one);
        let mut windowed = load_exact(Tiny { variant: Variant::Window, ..one });
        let ids = tokens(30, 3);
        let (seen, limited) = (chain(&mut all, &ids), chain(&mut windowed, &ids));
        let window = WINDOW as usize;
        for i in 0..ids.len() {
            assert_eq!(seen.row(i) == limited.row(i), i < window, "{architecture}: row {i}");
        }
        // Rotation depends on distances alone, so the window's tokens give the same logits elsewhere.
        windowed.truncate(0).unwrap();
        let start = ids.len() - window;
        let moved = chain(&mut windowed, &ids[start..]);
        let (a, b) = (limited.row(ids.len() - 1), moved.row(window - 1));
        let off = a.iter().zip(b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(off < 1e-3, "{architecture}: {off}");
    }
}

#[test]
fn longrope_takes_factors_by_context() {
    let long = Tiny { architecture: "phi3", variant: Variant::Longrope, ..Tiny::default() };
    let folder = tempfile::tempdir().unwrap();
    let file = WeightFile::open(&long.write(folder.path(), "tiny")).unwrap();
    let ids = tokens(12, 4);
    let last = |context| {
        let mut model = Decoder::load_for(&file, &cpu(), context).unwrap();
        bits(&chain(&mut model, &ids), ids.len() - 1)
    };
    assert_ne!(last(16), last(17));
    assert_eq!(last(17), last(512));
}

#[test]
fn joined_matrices_equal_separate_ones() {
    // Tiny draws the rows of joined matrices in the order of the separate ones. Biases are optional.
    let folder = tempfile::tempdir().unwrap();
    let mut separate = Tiny { architecture: "qwen2", layers: 1, ..Tiny::default() }.writer();
    for part in ["q", "k", "v"] {
        separate = separate.without(&format!("blk.0.attn_{part}.bias"));
    }
    let path = folder.path().join("separate.gguf");
    std::fs::write(&path, separate.bytes()).unwrap();
    let mut separate = Decoder::open(&path, &cpu()).unwrap();
    let ids = tokens(12, 4);
    let mut joined = load(further(("phi3", Variant::Plain, 1)));
    assert!(chain(&mut joined, &ids) == chain(&mut separate, &ids));
}

#[test]
fn predicted_memory_matches_loaded_models() {
    for of in with_short_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let path = further(of).write(folder.path(), "tiny");
        let footprint = Footprint::on_device(WeightFile::open(&path).unwrap().gguf(), &cpu()).unwrap();
        let mut model = Decoder::open(&path, &cpu()).unwrap();
        chain(&mut model, &tokens(256, 1));
        // The cache grows in steps of 256 rows.
        assert_eq!(footprint.predicted(256).cache, model.memory().cache as u64, "{of:?}");
        assert_eq!(footprint.weight_bytes, model.memory().weights as u64, "{of:?}");
    }
}

/// Mixture of experts of every type that tests can write.
fn mixtures() -> impl Iterator<Item = Tiny> {
    use candle_core::quantized::GgmlDType as T;
    let types = [T::F32, T::F16, T::BF16, T::Q4_0, T::Q5_1, T::Q8_0, T::Q2K, T::Q3K, T::Q4K, T::Q6K];
    types.into_iter().map(|dtype| Tiny { architecture: "qwen3moe", dtype, ..Tiny::default() })
}

#[test]
fn rows_of_a_mixture_do_not_depend_on_other_rows_or_threads() {
    for tiny in mixtures() {
        let folder = tempfile::tempdir().unwrap();
        let path = tiny.write(folder.path(), "tiny");
        let ids = tokens(16, 9);
        let mut model = Decoder::open(&path, &cpu()).unwrap();
        let alone: Vec<_> =
            ids.iter().map(|id| bits(&chain(&mut model, std::slice::from_ref(id)), 0)).collect();
        for threads in [1, 3] {
            let compute = Compute::open(DeviceChoice::Cpu, Some(threads)).unwrap();
            let mut model = Decoder::open(&path, &compute).unwrap();
            let together = chain(&mut model, &ids);
            for (i, expected) in alone.iter().enumerate() {
                assert_eq!(&bits(&together, i), expected, "{:?}, {threads} threads, row {i}", tiny.dtype);
            }
        }
    }
}

#[test]
fn passes_count_their_experts_and_read_a_share_of_them() {
    let (count, used) = EXPERTS;
    let mut model = load(further(MIXTURE));
    chain(&mut model, &[3]);
    let one = model.expert_use().unwrap();
    assert_eq!((one.count, one.used, one.distinct), (count, used, used as f64));
    chain(&mut model, &tokens(16, 2));
    let many = model.expert_use().unwrap().distinct;
    assert!(many > used as f64 && many <= count as f64, "{many}");
    // Attention, norms and router of a layer are less than a quarter of its experts.
    let memory = model.memory();
    assert!(memory.read_by_a_pass < memory.weights * (used + 2) / count, "{memory:?}");
    assert!(load(further(("seed_oss", Variant::Plain, 2))).expert_use().is_none());
}

#[test]
fn mixtures_on_a_gpu_whose_kernels_failed_run_on_candle_or_are_refused_with_a_remedy() {
    let gpu = IdleGpu::failing("idle GPU", None, &[KernelPart::Experts]);
    let folder = tempfile::tempdir().unwrap();
    let file = |of, name| WeightFile::open(&further(of).write(folder.path(), name)).unwrap();
    let mixture = file(MIXTURE, "mixture");
    let spec = ModelSpec::from_gguf(mixture.gguf()).unwrap();
    let execution = Execution::expected(mixture.gguf(), &spec, &gpu);
    let Backend::Candle { obstacle: Some(obstacle) } = &execution.backend else { panic!("{execution:?}") };
    assert_eq!(obstacle, "experts differs from the CPU");
    let right = Execution::expected(mixture.gguf(), &spec, &IdleGpu::tested("idle GPU", None));
    assert_eq!(right.backend, Backend::Metal);
    // candle cannot read MXFP4.
    let error = match Decoder::load(&file(("gpt-oss", Variant::Fp4, 1), "oss"), &gpu) {
        Ok(_) => panic!("a model without kernels was loaded"),
        Err(error) => error,
    };
    assert_eq!(error.code(), ErrorCode::UnsupportedModel);
    assert!(error.to_string().contains("MXFP4 weights run on the CPU only"), "{error}");
}

#[test]
fn low_bit_copy_of_a_mixture_keeps_its_router() {
    let folder = tempfile::tempdir().unwrap();
    let tiny =
        Tiny { dtype: candle_core::quantized::GgmlDType::Q8_0, ..further(("gpt-oss", Variant::Fp4, 2)) };
    let file = WeightFile::open(&tiny.write(folder.path(), "tiny")).unwrap();
    let path = folder.path().join("copy.gguf");
    low_bit::write_copy(&file, &path, 2, &mut low_bit::unwatched).unwrap();
    let copy = WeightFile::open(&path).unwrap();
    let dtype = |file: &WeightFile, name: &str| file.gguf().tensors[name].dtype;
    for name in ["blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.bias", "blk.0.attn_sinks.weight"] {
        assert_eq!(dtype(&copy, name), dtype(&file, name), "{name}");
    }
    assert_eq!(dtype(&copy, "blk.0.ffn_up_exps.weight"), WeightType::Q2K);
    let mut model = Decoder::load(&copy, &cpu()).unwrap();
    assert!(chain(&mut model, &tokens(4, 1)).into_values().iter().all(|logit| logit.is_finite()));
}

/// Replaces a number in the metadata of a `qwen3moe` model.
fn set(writer: GgufWriter, name: &str, value: u32) -> GgufWriter {
    let key = format!("qwen3moe.{name}");
    writer.without_key(&key).u32(&key, value)
}

#[test]
fn rejects_mixtures_without_kernels_or_with_wrong_tensors() {
    let error = |change: fn(GgufWriter) -> GgufWriter| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd.gguf");
        std::fs::write(&path, change(further(("qwen3moe", Variant::Plain, 1)).writer()).bytes()).unwrap();
        match Decoder::open(&path, &cpu()) {
            Ok(_) => panic!("an invalid model was loaded"),
            Err(error) => (error.code(), error.to_string()),
        }
    };
    let (code, text) = error(|w| w.u32("qwen3moe.expert_group_count", 4));
    assert!(code == ErrorCode::InvalidModelFile && text.contains("group_used_count is missing"), "{text}");
    let grouped = |w: GgufWriter, count: u32, used: u32| {
        w.u32("qwen3moe.expert_group_count", count).u32("qwen3moe.expert_group_used_count", used)
    };
    for (count, used) in [(3, 2), (8, 7), (4, 1)] {
        let writer = grouped(further(("qwen3moe", Variant::Plain, 1)).writer(), count, used);
        let gguf = Gguf::parse(Path::new("tiny.gguf"), &writer.bytes()).unwrap();
        let error = ModelSpec::from_gguf(&gguf).unwrap_err();
        let text = format!("3 of 8 experts cannot be in {used} of {count} groups");
        assert!(error.code() == ErrorCode::InvalidModelFile && error.to_string().contains(&text), "{error}");
    }
    let (code, text) = error(|w| set(w, "expert_used_count", 9));
    assert!(code == ErrorCode::InvalidModelFile && text.contains("must be 1 to 8"), "{text}");
    let (code, text) = error(|w| set(w, "expert_feed_forward_length", 64));
    assert!(code == ErrorCode::InvalidModelFile && text.contains("expected [8, 64, 256]"), "{text}");
    let (code, text) = error(|w| w.without_key("qwen3moe.expert_count"));
    assert!(code == ErrorCode::InvalidModelFile && text.contains("expert_count is missing"), "{text}");
    let (code, text) = error(|writer| {
        let mut writer = set(writer, "expert_feed_forward_length", 24);
        for (part, n, k) in [("gate", 24, 256), ("up", 24, 256), ("down", 256, 24)] {
            let name = format!("blk.0.ffn_{part}_exps.weight");
            let data = vec![0.0; 8 * n * k];
            writer = writer.without(&name).tensor(
                &name,
                &[8, n, k],
                candle_core::quantized::GgmlDType::F32,
                &data,
            );
        }
        writer
    });
    assert!(code == ErrorCode::UnsupportedModel && text.contains("experts of 24 x 256"), "{text}");
}

#[test]
fn layers_of_llama_4_have_experts_norms_and_factors_as_its_files_say() {
    let spec = |of, change: fn(GgufWriter) -> GgufWriter| {
        let bytes = change(further(of).writer()).bytes();
        ModelSpec::from_gguf(&Gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap())
    };
    let with_experts = |spec: &ModelSpec| {
        let experts = spec.experts.unwrap();
        (0..spec.n_layer).map(|layer| experts.are_in(layer)).collect::<Vec<_>>()
    };
    let scout = spec(CHUNKED, |w| w).unwrap();
    assert_eq!((scout.head_norms, with_experts(&scout)), (HeadNorms::Unit, vec![true; 4]));
    let interleaved = ("llama4", Variant::Interleaved, 4);
    let maverick = spec(interleaved, |w| w).unwrap();
    let every_other = vec![false, true, false, true];
    assert_eq!((maverick.head_norms, with_experts(&maverick)), (HeadNorms::IfPresent, every_other));
    let experts = maverick.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.n_ff), (128, 1, 32));
    assert_eq!((experts.shared, experts.dense_ff, maverick.n_ff), (Some(32), 512, 512));
    let temperature = scout.query_temperature.unwrap();
    let growth = |of: f32| 1.0 + 0.1 * of.ln();
    let factors = [0, 8190, 8191, 16_382, 16_383].map(|position| temperature.factor(position));
    assert_eq!(factors, [1.0, 1.0, growth(2.0), growth(2.0), growth(3.0)]);

    let refused = |of, change| {
        let error = spec(of, change).unwrap_err();
        (error.code(), error.to_string())
    };
    let (code, text) = refused(CHUNKED, |w| w.u32("llama4.attention.sliding_window", 0));
    assert!(code == ErrorCode::UnsupportedModel && text.contains("no chunks"), "{text}");
    let (code, text) = refused(CHUNKED, |w| w.f32("llama4.rope.scaling.attn_factor", 1.5));
    assert!(code == ErrorCode::UnsupportedModel && text.contains("factor 1.5"), "{text}");
    assert!(spec(interleaved, |w| w.f32("llama4.rope.scaling.attn_factor", 1.5)).is_ok());
    let (code, text) = refused(CHUNKED, |w| w.f32("llama4.rope.freq_base_swa", 5e5));
    assert!(code == ErrorCode::UnsupportedModel && text.contains("another rotary embedding"), "{text}");
    assert!(spec(CHUNKED, |w| w.f32("llama4.rope.freq_base_swa", 1e4)).is_ok());
    let (code, text) = refused(CHUNKED, |w| {
        let bias = vec![0.0; 8 * 96];
        w.tensor("blk.1.ffn_up_exps.bias", &[8, 96], candle_core::quantized::GgmlDType::F32, &bias)
    });
    assert!(code == ErrorCode::UnsupportedModel && text.contains("experts have biases"), "{text}");
    let (code, text) =
        refused(CHUNKED, |w| w.u32("llama4.expert_group_count", 4).u32("llama4.expert_group_used_count", 2));
    assert!(code == ErrorCode::UnsupportedModel && text.contains("in groups"), "{text}");
    for key in ["interleave_moe_layer_step", "expert_count"].map(|key| format!("llama4.{key}")) {
        let writer = further(CHUNKED).writer().without_key(&key);
        let gguf = Gguf::parse(Path::new("tiny.gguf"), &writer.bytes()).unwrap();
        let error = ModelSpec::from_gguf(&gguf).unwrap_err();
        assert!(error.code() == ErrorCode::InvalidModelFile && error.to_string().contains(&key), "{error}");
    }
}

#[test]
fn rejects_joined_matrix_of_wrong_size() {
    let writer = further(("phi3", Variant::Plain, 1)).writer().without("blk.0.attn_qkv.weight");
    let writer = writer.tensor(
        "blk.0.attn_qkv.weight",
        &[500, 256],
        candle_core::quantized::GgmlDType::F32,
        &vec![0.0; 500 * 256],
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    let error = match Decoder::open(&path, &cpu()) {
        Ok(_) => panic!("an invalid model was loaded"),
        Err(error) => error,
    };
    assert_eq!(error.code(), ErrorCode::InvalidModelFile);
    assert!(error.to_string().contains("[500, 256], expected [512, 256]"), "{error}");
}

#[test]
fn windows_and_rotations_follow_architecture_or_file() {
    let layers = |of, change: fn(GgufWriter) -> GgufWriter| {
        let bytes = change(further(of).writer()).bytes();
        ModelSpec::from_gguf(&Gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap()).unwrap().layers
    };
    let window = Some(WINDOW as usize);
    let local = LayerSpec { window, rope: LayerRope::Local, ..LayerSpec::PLAIN };
    let global = LayerSpec::PLAIN;
    let gemma = ("gemma3", Variant::Window, 7);
    assert_eq!(layers(gemma, |w| w), [local, local, local, local, local, global, local]);
    let third = |w: GgufWriter| w.u32("gemma3.attention.sliding_window_pattern", 3);
    assert_eq!(layers(gemma, third)[..4], [local, local, global, local]);
    let listed = |w: GgufWriter| w.i32s("gemma3.attention.sliding_window_pattern", &[0, 1, 1, 0, 0, 0, 0]);
    assert_eq!(layers(gemma, listed)[..4], [global, local, local, global]);
    // Layers of EXAONE 4 without a window are not rotated, unless no layer has one.
    let exaone = layers(("exaone4", Variant::Window, 4), |w| w);
    let windowed = LayerSpec { window, ..LayerSpec::PLAIN };
    let plain = LayerSpec { rope: LayerRope::None, ..LayerSpec::PLAIN };
    assert_eq!(exaone, [windowed, windowed, windowed, plain]);
    assert_eq!(layers(("exaone4", Variant::Plain, 2), |w| w), [global, global]);
    // Every fourth layer of Llama 4 is not rotated. The others have chunks.
    let chunks = |size| LayerSpec { window: Some(size), chunked: true, ..LayerSpec::PLAIN };
    let llama = layers(CHUNKED, |w| w);
    assert_eq!(llama, [chunks(8192), chunks(8192), chunks(8192), plain]);
    let short = chunks(WINDOW as usize);
    assert_eq!(layers(("llama4", Variant::Window, 4), |w| w), [short, short, short, plain]);
    // Every fourth layer of SmolLM3 is not rotated.
    assert_eq!(layers(("smollm3", Variant::Plain, 4), |w| w), [global, global, global, plain]);
}

/// Opens a changed file of a model of [`FURTHER`].
fn open_changed(of: (&'static str, Variant, usize), change: impl Fn(GgufWriter) -> GgufWriter) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    std::fs::write(&path, change(further(of).writer()).bytes()).unwrap();
    Decoder::open(&path, &cpu()).unwrap()
}

#[test]
fn layers_of_gemma4_have_own_heads_and_share_keys() {
    let bytes = further(SHARED_KEYS).writer().bytes();
    let spec = ModelSpec::from_gguf(&Gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap()).unwrap();
    let shared: Vec<_> = spec.layers.iter().map(|layer| layer.shares_keys_of).collect();
    // Each shares with the last layer of its kind that has keys.
    assert_eq!(shared, [None, None, None, None, Some(2), Some(2), Some(3)]);
    let (local, global) = (KeyHeads { count: 2, width: 32 }, KeyHeads { count: 1, width: 64 });
    let heads: Vec<_> = (0..7).map(|layer| spec.heads(layer)).collect();
    assert_eq!(heads, [local, global, local, global, local, local, global]);
    let widths: Vec<_> = (0..7).map(|layer| spec.dense_width(layer)).collect();
    assert_eq!(widths, [512, 512, 512, 512, 1024, 1024, 1024]);
    // Keys and values of four layers, in 32 bits.
    assert_eq!(spec.cache_bytes_per_token(), 4 * 2 * 64 * 4);
}

#[test]
fn keys_that_a_layer_does_not_use_take_no_memory() {
    let with = open_changed(SHARED_KEYS, |writer| writer);
    let without = open_changed(SHARED_KEYS, |writer| {
        let unused = (4..7)
            .flat_map(|layer| ["k", "v", "k_norm"].map(|part| format!("blk.{layer}.attn_{part}.weight")));
        unused.fold(writer, |writer, name| writer.without(&name))
    });
    assert_eq!(with.memory(), without.memory());
    let ids = tokens(12, 4);
    let (mut with, mut without) = (with, without);
    assert!(chain(&mut with, &ids) == chain(&mut without, &ids));
}

#[test]
fn table_of_layer_embeddings_is_read_by_the_row() {
    let model = load(further(SHARED_KEYS));
    let memory = model.memory();
    // The table has 258 rows for 7 layers of 32 values.
    assert_eq!(memory.weights - memory.read_by_a_pass, 258 * 7 * 32 * 4);
}

/// Layer 3 lends its keys to layer 6.
#[test]
fn skipped_layers_lend_the_keys_of_their_own_rows() {
    let mut model = load(further(SHARED_KEYS));
    let (prompt, draft) = (tokens(9, 1), tokens(3, 2));
    let skipped = PassInput { layers: LayerPlan::Skip(&[2, 3]), ..PassInput::chain(&draft, LogitRows::All) };
    chain(&mut model, &prompt);
    let expected = model.forward(skipped).unwrap().logits;
    // Keys of other tokens in the same slots.
    model.truncate(prompt.len()).unwrap();
    chain(&mut model, &tokens(5, 3));
    model.truncate(prompt.len()).unwrap();
    let again = model.forward(skipped).unwrap().logits;
    assert!(expected == again);
}

#[test]
fn joined_gates_and_ups_of_experts_equal_separate_ones() {
    let of = ("gemma4", Variant::Experts, 2);
    let bytes = further(of).writer().bytes();
    let gguf = Gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap();
    let separate = |mut writer: GgufWriter| {
        for layer in 0..2 {
            let name = format!("blk.{layer}.ffn_gate_up_exps.weight");
            let info = &gguf.tensors[&name];
            let [experts, both, width] = info.shape[..] else { panic!("three dimensions") };
            let values = bytes[info.range.clone()].as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v));
            let values: Vec<f32> = values.collect();
            writer = writer.without(&name);
            for (at, part) in ["gate", "up"].into_iter().enumerate() {
                let half = both / 2 * width;
                let own = values.chunks_exact(both * width).flat_map(|expert| &expert[at * half..][..half]);
                let own: Vec<f32> = own.copied().collect();
                let name = format!("blk.{layer}.ffn_{part}_exps.weight");
                let dtype = candle_core::quantized::GgmlDType::F32;
                writer = writer.tensor(&name, &[experts, both / 2, width], dtype, &own);
            }
        }
        writer
    };
    let (mut joined, mut separate) = (load(further(of)), open_changed(of, separate));
    let ids = tokens(12, 4);
    assert!(chain(&mut joined, &ids) == chain(&mut separate, &ids));
}

#[test]
fn rejects_odd_layers_of_gemma4_with_the_reason() {
    let error = |change: &dyn Fn(GgufWriter) -> GgufWriter| {
        let bytes = change(further(SHARED_KEYS).writer()).bytes();
        let error = ModelSpec::from_gguf(&Gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap()).unwrap_err();
        (error.code(), error.to_string())
    };
    let with = |name: &str, value| {
        let key = format!("gemma4.{name}");
        error(&|writer: GgufWriter| writer.without_key(&key).u32(&key, value))
    };
    let unsupported = |(code, text): (ErrorCode, String), part: &str| {
        assert!(code == ErrorCode::UnsupportedModel && text.contains(part), "{code:?} {text}");
    };
    let invalid = |(code, text): (ErrorCode, String), part: &str| {
        assert!(code == ErrorCode::InvalidModelFile && text.contains(part), "{code:?} {text}");
    };
    invalid(error(&|w| w.without("rope_freqs.weight")), "rope_freqs.weight is missing");
    invalid(
        error(&|w| w.without_key("gemma4.attention.sliding_window_pattern")),
        "sliding_window_pattern is missing",
    );
    invalid(with("attention.shared_kv_layers", 6), "no layer of its kind has any");
    invalid(with("attention.shared_kv_layers", 7), "7 of its 7 layers share keys");
    unsupported(with("attention.value_length_swa", 16), "its values are 16 wide and its keys 32");
    unsupported(with("rope.dimension_count_swa", 48), "rotates 48 of the 32 elements");
    let bytes = Tiny::default().writer().u32("llama.embedding_length_per_layer_input", 32).bytes();
    let other = ModelSpec::from_gguf(&Gguf::parse(Path::new("tiny.gguf"), &bytes).unwrap()).unwrap_err();
    unsupported((other.code(), other.to_string()), "its layers have embeddings of their own");
}
