//! Models with layers that have a state instead of keys and values: every method, and rollback to lengths whose state
//! is not held.

use candle_core::quantized::GgmlDType;
use hunch::generate::{LoadPlan, Models};
use hunch::proof::{self, ProofCheck, ProofPlan};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, PassInput, RowLayout};
use hunch_core::token::TokenId;
use hunch_model::decoder::Decoder;
use hunch_model::device::{Compute, KvType};
use hunch_model::execution::{Backend, Execution};
use hunch_model::gguf::Gguf;
use hunch_model::low_bit;
use hunch_model::metal::selftest::KernelPart;
use hunch_model::spec::{Mixer, ModelSpec};
use hunch_model::weights::WeightFile;

use crate::support::cpu;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::idle_gpu::IdleGpu;
use hunch_testing::tiny::{CONVOLUTIONS, DELTA_NET, DELTA_NETS, DeltaNetSizes, Tiny, further, tokens};
use hunch_testing::tiny_heads::{self, HeadFormat};

fn load(tiny: Tiny) -> Decoder {
    let folder = tempfile::tempdir().unwrap();
    Decoder::open(&tiny.write(folder.path(), "tiny"), &cpu()).unwrap()
}

fn last(model: &mut dyn LanguageModel, tokens: &[TokenId]) -> Vec<u32> {
    let logits = model.forward(PassInput::chain(tokens, LogitRows::Last)).unwrap().logits;
    logits.row(0).iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_method_keeps_the_text_and_the_rows_of_the_target() {
    for architecture in ["lfm2", "qwen35"] {
        every_method_keeps_the_text_of(architecture);
    }
}

fn every_method_keeps_the_text_of(architecture: &'static str) {
    let folder = tempfile::tempdir().unwrap();
    // Every second of the four layers has attention.
    let target = Tiny { architecture, dtype: GgmlDType::Q8_0, layers: 4, ..tiny_heads::target() };
    let draft = Tiny { layers: 2, seed: 5, ..target }.write(folder.path(), "draft");
    let plan = LoadPlan {
        draft: Some(draft),
        head: Some(HeadFormat::Medusa.write(folder.path())),
        ..LoadPlan::of(&target.write(folder.path(), "target"))
    };
    let mut models = Models::load_by(&plan, &cpu()).unwrap();
    let copy = folder.path().join("copy.gguf");
    let file = WeightFile::open(&folder.path().join("target.gguf")).unwrap();
    low_bit::write_copy(&file, &copy, 2, &mut low_bit::unwatched).unwrap();
    models.load_low_bit(&copy, &cpu()).unwrap();
    let methods = models.usable_methods();
    for method in ["early-exit", "layer-skip", "low-bit", "head", "cascade", "draft-tree"] {
        assert!(methods.iter().any(|usable| usable.to_string() == method), "{architecture}: {method}");
    }
    let depths = vec![MaxDraft::Fixed(5), MaxDraft::Auto];
    let plan = ProofPlan { tokens: 40, depths, prompts: 1, ..ProofPlan::of(methods) };
    let mut checks = proof::row_invariance(&mut models).unwrap();
    checks.extend(proof::identity(&mut models, &plan).unwrap());
    for ProofCheck { name, finding, passed } in checks {
        assert!(passed, "{architecture}: {name}: {finding}");
    }
}

#[test]
fn samples_of_drafting_methods_follow_the_distribution_of_the_target() {
    for of in [CONVOLUTIONS, DELTA_NETS] {
        let folder = tempfile::tempdir().unwrap();
        let path = Tiny { dtype: GgmlDType::Q8_0, ..further(of) }.write(folder.path(), "target");
        let mut models = Models::load(&path, None, &cpu()).unwrap();
        let methods = vec![Method::LayerSkip, Method::EarlyExit];
        let plan = ProofPlan { samples: 400, prompts: 1, ..ProofPlan::of(methods) };
        for ProofCheck { name, finding, passed } in proof::token_distribution(&mut models, &plan).unwrap() {
            assert!(passed, "{of:?}: {name}: {finding}");
        }
    }
}

#[test]
fn rollback_to_any_length_continues_as_if_the_rest_had_never_been() {
    for of in [CONVOLUTIONS, ("lfm2moe", CONVOLUTIONS.1, 3), DELTA_NETS, ("qwen3next", DELTA_NETS.1, 3)] {
        let tiny = Tiny { dtype: GgmlDType::Q8_0, ..further(of) };
        let (mut model, mut expected) = (load(tiny), load(tiny));
        let text = tokens(420, 3);
        // After a rollback the next row must be that of a text of its own.
        for len in [419, 400, 300, 257, 256, 255, 192, 130, 65, 64, 63, 3, 1, 0] {
            model.truncate(0).unwrap();
            expected.truncate(0).unwrap();
            if len > 0 {
                last(&mut expected, &text[..len]);
            }
            for chunk in text.chunks(32) {
                last(&mut model, chunk);
            }
            model.truncate(len).unwrap();
            assert_eq!(model.cache_len(), len);
            assert_eq!(
                last(&mut model, &[7, 9]),
                last(&mut expected, &[7, 9]),
                "{of:?}: {len} of {}",
                text.len()
            );
        }
    }
}

#[test]
fn forks_and_branches_of_several_passes_have_states_of_their_own() {
    for of in [CONVOLUTIONS, DELTA_NETS, ("qwen3next", DELTA_NETS.1, 3)] {
        forks_and_branches_have_states_of_their_own(further(of));
    }
}

fn forks_and_branches_have_states_of_their_own(of: Tiny) {
    let mut model = load(of);
    let (prompt, draft) = (tokens(70, 1), tokens(5, 2));
    last(&mut model, &prompt);
    let mut fork = model.fork();
    assert_eq!(fork.cache_len(), 0);
    // A tree in two passes: rows 3 and 4 follow rows 2 and 1.
    let parents = [None, Some(0), Some(0)];
    let layout = RowLayout::Tree { parents: &parents };
    model.forward(PassInput { layout, ..PassInput::chain(&draft[..3], LogitRows::None) }).unwrap();
    let layout = RowLayout::Custom { since: 70, depths: &[2, 2], visible: &[0b01101, 0b10011] };
    let rows =
        model.forward(PassInput { layout, ..PassInput::chain(&draft[3..], LogitRows::All) }).unwrap().logits;
    for (row, path) in [[0, 2, 3], [0, 1, 4]].into_iter().enumerate() {
        fork.truncate(0).unwrap();
        last(fork.as_mut(), &prompt);
        let alone = last(fork.as_mut(), &path.map(|node| draft[node]));
        assert_eq!(rows.row(row).iter().map(|value| value.to_bits()).collect::<Vec<_>>(), alone, "row {row}");
    }
    model.keep_rows(70, &[0, 1, 4]).unwrap();
    fork.truncate(73).unwrap();
    assert_eq!(last(&mut model, &[8]), last(fork.as_mut(), &[8]));
}

#[test]
fn state_is_of_32_bits_and_takes_less_memory_than_keys_of_all_positions() {
    let folder = tempfile::tempdir().unwrap();
    let path = further(CONVOLUTIONS).write(folder.path(), "tiny");
    let cache = |kv: KvType| {
        let mut model = Decoder::open(&path, &cpu().with_kv(kv)).unwrap();
        last(&mut model, &tokens(256, 1));
        model.memory().cache
    };
    let spec = ModelSpec::from_gguf(WeightFile::open(&path).unwrap().gguf()).unwrap();
    let state = spec.state_bytes(256);
    assert_eq!(spec.attention_layers(), 1);
    assert_eq!(cache(KvType::F32) - state, 256 * spec.cache_bytes_per_token());
    assert_eq!(cache(KvType::F16) - state, 256 * spec.cache_bytes_per_token() / 2);
    let (few, many) = (spec.state_bytes(1 << 10), spec.state_bytes(1 << 15));
    // The input of all positions of both layers.
    let all = 2 * spec.n_embd * 4 * ((1 << 15) - (1 << 10));
    assert_eq!(32 * (many - few), all);
}

#[test]
fn layers_without_key_heads_have_a_convolution() {
    let parse = |writer: GgufWriter| {
        ModelSpec::from_gguf(&Gguf::parse(std::path::Path::new("tiny.gguf"), &writer.bytes()).unwrap())
    };
    let writer = || further(CONVOLUTIONS).writer();
    let spec = parse(writer()).unwrap();
    let mixers: Vec<Mixer> = spec.layers.iter().map(|layer| layer.mixer).collect();
    assert_eq!(mixers, [Mixer::ShortConvolution, Mixer::Attention, Mixer::ShortConvolution]);
    assert_eq!((spec.n_kv_head, spec.convolution), (2, Some(3)));
    let heads = "lfm2.attention.head_count_kv";
    let error = |writer: GgufWriter| parse(writer).unwrap_err().to_string();
    let text = error(writer().without_key(heads).i32s(heads, &[1, 2, 0]));
    assert!(text.contains("1 and 2 key heads"), "{text}");
    let text = error(writer().without_key(heads).i32s(heads, &[0, 2]));
    assert!(text.contains("has 2 entries for 3 layers"), "{text}");
    for (positions, expected) in [(1, "see one position"), (9, "must be 1 to 8")] {
        let key = "lfm2.shortconv.l_cache";
        let text = error(writer().without_key(key).u32(key, positions));
        assert!(text.contains(expected), "{text}");
    }
    assert!(error(writer().without_key("lfm2.shortconv.l_cache")).contains("l_cache is missing"));
}

#[test]
fn states_of_delta_nets_take_the_same_memory_for_any_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = further(DELTA_NETS).write(folder.path(), "tiny");
    let spec = ModelSpec::from_gguf(WeightFile::open(&path).unwrap().gguf()).unwrap();
    let state = spec.state_bytes(1);
    assert_eq!(state, spec.state_bytes(1 << 20));
    for kv in [KvType::F32, KvType::F16] {
        let mut model = Decoder::open(&path, &cpu().with_kv(kv)).unwrap();
        last(&mut model, &tokens(256, 1));
        let keys = 256 * spec.cache_bytes_per_token() / KvType::F32.bytes() * kv.bytes();
        assert_eq!(model.memory().cache, state + keys);
    }
    let DeltaNetSizes { key_heads, value_heads, head_dim, positions } = DELTA_NET;
    let row = (2 * key_heads + value_heads) * head_dim + 2 * value_heads;
    let of_state = value_heads * head_dim * head_dim + (positions - 1) * row;
    // Eight states and 192 inputs in each of two layers.
    assert_eq!(state, 2 * 4 * (8 * of_state + 192 * row));
}

#[test]
fn delta_nets_follow_the_file_and_odd_ones_are_rejected_by_name() {
    let parse = |writer: GgufWriter| {
        ModelSpec::from_gguf(&Gguf::parse(std::path::Path::new("tiny.gguf"), &writer.bytes()).unwrap())
    };
    let writer = || further(DELTA_NETS).writer();
    let mixers = |writer: GgufWriter| -> Vec<Mixer> {
        parse(writer).unwrap().layers.iter().map(|layer| layer.mixer).collect()
    };
    assert_eq!(mixers(writer()), [Mixer::DeltaNet, Mixer::Attention, Mixer::DeltaNet]);
    let listed = writer().i32s("qwen35.attention.recurrent_layers", &[0, 1, 1]);
    assert_eq!(mixers(listed), [Mixer::Attention, Mixer::DeltaNet, Mixer::DeltaNet]);
    let interval = "qwen35.full_attention_interval";
    // Without the entry, every fourth layer has attention.
    assert_eq!(mixers(writer().without_key(interval)), [Mixer::DeltaNet; 3]);
    let error = |writer: GgufWriter| parse(writer).unwrap_err().to_string();
    let set = |name: &str, value: u32| {
        let key = format!("qwen35.ssm.{name}");
        error(writer().without_key(&key).u32(&key, value))
    };
    for (name, value, expected) in [
        ("group_count", 3, "4 value heads cannot share 3 key heads"),
        ("state_size", 64, "4 values of width 32 and keys of width 64"),
        ("state_size", 16, "4 values of width 32 and keys of width 16"),
        ("conv_kernel", 1, "see one position"),
        ("conv_kernel", 9, "must be 1 to 8"),
    ] {
        let text = set(name, value);
        assert!(text.contains(expected), "{text}");
    }
    let text = error(writer().i32s("qwen35.attention.recurrent_layers", &[1, 1]));
    assert!(text.contains("has 2 entries for 3 layers"), "{text}");
    // Sections that leave out pairs are for images.
    let sections = "qwen35.rope.dimension_sections";
    let text = error(writer().without_key(sections).i32s(sections, &[4, 2, 2, 0]));
    assert!(text.contains("rotary embedding for images"), "{text}");
    let early = writer().tensor("blk.0.ssm_in.weight", &[1, 1], GgmlDType::F32, &[0.0]);
    let text = error(early);
    assert!(text.contains("Download a newer file"), "{text}");
}

#[test]
fn delta_nets_on_a_gpu_run_on_our_kernels_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = WeightFile::open(&further(DELTA_NETS).write(folder.path(), "tiny")).unwrap();
    let spec = ModelSpec::from_gguf(file.gguf()).unwrap();
    let backend = |compute: Compute| Execution::expected(file.gguf(), &spec, &compute).backend;
    assert_eq!(backend(IdleGpu::tested("idle GPU", None)), Backend::Metal);
    let width = DELTA_NET.head_dim;
    for part in [KernelPart::DeltaNet(width), KernelPart::GatedAttention] {
        let obstacle = Some(format!("{part} differs from the CPU"));
        assert_eq!(backend(IdleGpu::failing("idle GPU", None, &[part])), Backend::Candle { obstacle });
    }
    // Heads of another width.
    assert_eq!(
        backend(IdleGpu::failing("idle GPU", None, &[KernelPart::DeltaNet(2 * width)])),
        Backend::Metal
    );
}
