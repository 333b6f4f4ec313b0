//! Model folders of safetensors files, as MLX writes them, compared with MLX and the package tokenizers. The recording
//! is by `scripts/mlx-folders.py`.

use std::path::Path;

use hunch::app::{App, AppConfig};
use hunch_core::model::{LanguageModel, LogitRows, PassInput, Rows};
use hunch_core::sample::RecommendedSampling;
use hunch_core::token::TokenId;
use hunch_error::Error;
use hunch_library::fit::Footprint;
use hunch_library::types::LoadRequest;
use hunch_library::{Places, inspect, resolve, scan};
use hunch_model::decoder::Decoder;
use hunch_model::gguf::WeightType;
use hunch_model::low_bit;
use hunch_model::split;
use hunch_model::text::{EncodeOptions, Tokenizer};
use hunch_model::weights::WeightFile;
use serde_json::{Value as Json, json};

use crate::support::app::config;
use crate::support::cpu_with_f32_cache;
use crate::support::safetensors_folder::{ModelFolder, recording, write_tensors};

fn recorded(name: &str) -> ModelFolder {
    let recording = recording();
    let models = recording["models"].as_array().unwrap();
    ModelFolder::recorded(models.iter().find(|model| model["name"] == name).unwrap())
}

fn chain(model: &mut Decoder, tokens: &[TokenId]) -> Rows {
    model.forward(PassInput::chain(tokens, LogitRows::All)).unwrap().logits
}

fn ids(json: &Json) -> Vec<TokenId> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// Returns the mean |difference of log p| over the recorded tokens, and the positions whose likeliest token differs.
fn distance(rows: &Rows, top: &Json) -> (f64, usize) {
    let (mut sum, mut count, mut differs) = (0.0, 0, 0);
    for (i, listed) in top.as_array().unwrap().iter().enumerate() {
        let row = rows.row(i);
        let max = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(f64::from(*v)));
        let total = row.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln() + max;
        for entry in listed.as_array().unwrap() {
            let own = f64::from(row[entry[0].as_u64().unwrap() as usize]) - total;
            (sum, count) = (sum + (own - entry[1].as_f64().unwrap()).abs(), count + 1);
        }
        differs += usize::from(f64::from(row[listed[0][0].as_u64().unwrap() as usize]) != max);
    }
    (sum / f64::from(count), differs)
}

/// Unquantised weights test the translation of parameters and names. Quantised ones also round activations to 8 bits.
#[test]
fn distributions_match_mlx() {
    let recording = recording();
    let tokens = ids(&recording["tokens"]);
    for model in recording["models"].as_array().unwrap() {
        let name = model["name"].as_str().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let quantised = ModelFolder::recorded(model);
        let exact = quantised.unquantised().write(&folder.path().join("exact"));
        let (off, differs) = distance(
            &chain(&mut Decoder::open(&exact, &cpu_with_f32_cache()).unwrap(), &tokens),
            &model["top"],
        );
        println!("{name}: mean |difference of log p| {off:.6}, likeliest differs at {differs}");
        assert!(off < 1e-3 && differs == 0, "{name}: {off}, {differs}");
        let path = quantised.write(&folder.path().join("quantised"));
        let mut decoder = Decoder::open(&path, &cpu_with_f32_cache()).unwrap();
        let rows = chain(&mut decoder, &tokens);
        let (off, differs) = distance(&rows, &model["top"]);
        println!("{name}, quantised: mean |difference of log p| {off:.6}, likeliest differs at {differs}");
        assert!(off < 0.2 && differs <= 3, "{name}: {off}, {differs}");
        // One row has the bits that it has among others.
        decoder.truncate(tokens.len() - 1).unwrap();
        let alone = chain(&mut decoder, &tokens[tokens.len() - 1..]);
        assert_eq!(alone.row(0), rows.row(tokens.len() - 1), "{name}");
    }
}

#[test]
fn tokens_match_the_package_tokenizers() {
    for entry in recording()["tokenizers"].as_array().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let (tokenizer, settings) = (entry["tokenizer"].clone(), entry["settings"].clone());
        let path = ModelFolder { tokenizer, settings, ..recorded("qwen3") }.write(folder.path());
        let tokenizer = Tokenizer::from_gguf(&split::read(&path).unwrap()).unwrap();
        for pair in entry["texts"].as_array().unwrap() {
            let options = EncodeOptions { parse_special: true, add_bos: true };
            let ours = tokenizer.encode(pair[0].as_str().unwrap(), options).unwrap();
            assert_eq!(ours, ids(&pair[1]), "{} {}", entry["name"], pair[0]);
        }
        let end = tokenizer.eos().map(|id| tokenizer.token_text(id));
        assert_eq!(end, entry["settings"]["eos_token"].as_str());
    }
}

#[test]
fn folders_of_other_programs_are_listed_and_found_by_name() {
    let home = tempfile::tempdir().unwrap();
    let lm_studio = home.path().join(".lmstudio/models/mlx-community/Tiny-Qwen3-4bit");
    let cached = home
        .path()
        .join(".cache/huggingface/hub/models--mlx-community--Tiny-Llama-8bit/snapshots/0123456789abcdef");
    let path = recorded("qwen3").write(&lm_studio);
    recorded("llama 3.1").write(&cached);
    // A model that is not quantised by MLX, and of an architecture that is not read.
    let mut other = recorded("qwen3").unquantised();
    other.config["model_type"] = json!("bert");
    other.write(&home.path().join(".lmstudio/models/org/bert"));
    std::fs::write(lm_studio.join("consolidated.gguf.txt"), "x").unwrap();
    let models = home.path().join("own");
    let places = Places { models, home: Some(home.path().into()), ..Places::default() };
    let listed = scan(&places).models;
    let names: Vec<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["Tiny-Llama-8bit", "Tiny-Qwen3-4bit"]);
    let own = &listed[1];
    assert_eq!((own.problem.as_deref(), own.quantisation.as_str()), (None, "MLX 4-bit"));
    assert!(own.has_template && own.size_bytes > 0 && own.context_length == 512, "{own:?}");
    assert_eq!(resolve("tiny-qwen3-4BIT", &places).unwrap(), path);
    assert_eq!(resolve(lm_studio.to_str().unwrap(), &places).unwrap(), path);
    assert_eq!(inspect(&path).unwrap().spec.n_layer, 2);
}

#[test]
fn memory_counts_blocks_and_low_bit_copies_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded("qwen2 8 bits").write(&folder.path().join("own"));
    let file = WeightFile::open(&path).unwrap();
    assert_eq!(file.gguf().tensors["token_embd.weight"].dtype, WeightType::Affine8);
    let footprint = Footprint::on_device(file.gguf(), &cpu_with_f32_cache()).unwrap();
    assert_eq!(footprint.weight_bytes, file.weight_bytes() as u64);
    let copy = folder.path().join("copy.gguf");
    low_bit::write_copy(&file, &copy, 2, &mut low_bit::unwatched).unwrap();
    let copied = WeightFile::open(&copy).unwrap();
    assert_eq!(copied.gguf().metadata, low_bit::planned(file.gguf(), &copy).metadata);
    let rows = chain(&mut Decoder::load(&copied, &cpu_with_f32_cache()).unwrap(), &[1, 2, 3]);
    assert!((0..3).all(|i| rows.row(i).iter().all(|value| value.is_finite())));
}

#[test]
fn split_folder_loads_and_reports_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = recorded("qwen3");
    let whole = chain(
        &mut Decoder::open(&model.write(&folder.path().join("one")), &cpu_with_f32_cache()).unwrap(),
        &[5, 6],
    );
    let two = folder.path().join("two");
    std::fs::remove_file(model.write(&two)).unwrap();
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let half = model.tensors.len() / 2;
    write_tensors(&two.join(names[0]), model.tensors.iter().take(half));
    write_tensors(&two.join(names[1]), model.tensors.iter().skip(half));
    let map: serde_json::Map<String, Json> = model
        .tensors
        .keys()
        .enumerate()
        .map(|(i, name)| (name.clone(), json!(names[usize::from(i >= half)])))
        .collect();
    let index = json!({ "weight_map": map }).to_string();
    std::fs::write(two.join("model.safetensors.index.json"), index).unwrap();
    // A second copy of the weights under other names, as some repositories have, is not read.
    write_tensors(&two.join("consolidated.safetensors"), model.tensors.iter());
    let rows = chain(&mut Decoder::open(&two, &cpu_with_f32_cache()).unwrap(), &[5, 6]);
    assert_eq!(rows.row(1), whole.row(1));
    std::fs::remove_file(two.join(names[1])).unwrap();
    let error = WeightFile::open(&two.join(names[0])).err().unwrap().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors is missing"), "{error}");
}

/// Returns the error of opening a changed folder, or of loading its weights.
fn refusal(folder: &Path, change: impl FnOnce(&mut ModelFolder)) -> Error {
    let mut model = recorded("qwen3");
    change(&mut model);
    let path = model.write(folder);
    let opened = WeightFile::open(&path).and_then(|file| {
        Tokenizer::from_gguf(file.gguf())?;
        Decoder::load(&file, &cpu_with_f32_cache()).map(|_| ())
    });
    opened.unwrap_err()
}

#[test]
fn hostile_folders_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    type Change = fn(&mut ModelFolder);
    let q = "model.layers.0.self_attn.q_proj";
    let cases: [(&str, Change); 19] = [
        ("architecture is \"mamba\"", |m| m.config["model_type"] = json!("mamba")),
        ("has no whole groups", |m| m.config["quantization"]["group_size"] = json!(0)),
        ("groups of", |m| m.config["quantization"]["group_size"] = json!(1_099_511_627_776_u64)),
        ("have 7 bits", |m| m.config["quantization"]["bits"] = json!(7)),
        ("have 0 bits", |m| m.config["quantization"]["bits"] = json!(0)),
        ("method \"nvfp4\"", |m| m.config["quantization"]["mode"] = json!("nvfp4")),
        ("has no quantization", |m| m.config["quantization"] = json!(null)),
        ("another shape", |m| m.config["quantization"]["bits"] = json!(8)),
        ("is missing or has another shape", |m| {
            m.tensors.remove("model.layers.0.self_attn.q_proj.biases");
        }),
        ("unknown tensor", |m| {
            let norm = m.tensors["model.norm.weight"].clone();
            m.tensors.insert("model.layers.0.mixer.A_log.weight".into(), norm);
        }),
        ("is missing", |m| {
            m.tensors.remove("model.norm.weight");
        }),
        ("not a size", |m| m.config["hidden_size"] = json!(-3)),
        ("num_hidden_layers", |m| m.config["num_hidden_layers"] = json!("many")),
        ("activation is \"relu\"", |m| m.config["hidden_act"] = json!("relu")),
        ("RoPE scaling is \"dynamic\"", |m| m.config["rope_scaling"] = json!({ "type": "dynamic" })),
        ("splits text by patterns", |m| {
            m.tokenizer["pre_tokenizer"] =
                json!({ "type": "Split", "behavior": "Isolated", "pattern": { "Regex": "(a+)+$" } })
        }),
        ("has 0 dimensions", |m| {
            let embedding = m.tensors.get_mut("model.embed_tokens.weight").unwrap();
            (embedding.dtype, embedding.shape) = ("F32".into(), Vec::new());
            embedding.bytes.truncate(4);
        }),
        ("splits text by patterns", |m| {
            let pattern = r"\x{41}".repeat(200_000);
            m.tokenizer["pre_tokenizer"] =
                json!({ "type": "Split", "behavior": "Isolated", "pattern": { "Regex": pattern } })
        }),
        ("tokeniser is \"Unigram\"", |m| m.tokenizer["model"]["type"] = json!("Unigram")),
    ];
    for (i, (reason, change)) in cases.into_iter().enumerate() {
        let error = refusal(&folder.path().join(i.to_string()), change).to_string();
        let groups = reason == "has no whole groups" && error.contains("groups of");
        assert!(error.contains(reason) || groups, "{reason}: {error}");
    }
    let nan = refusal(&folder.path().join("nan"), |m| {
        m.tensors.get_mut(&format!("{q}.scales")).unwrap().bytes[..2].copy_from_slice(&[0xff, 0x7f]);
    });
    assert!(nan.to_string().contains("not a number"), "{nan}");
    // Cut at any length, the weights are refused.
    let path = recorded("qwen3").write(&folder.path().join("cut"));
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert!(WeightFile::open(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn repaired_folder_is_read_again_and_others_stay_listed() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    recorded("qwen3").write(&models.join("good"));
    let broken = recorded("qwen3").write(&models.join("broken"));
    let tokenizer = broken.with_file_name("tokenizer.json");
    let whole = std::fs::read(&tokenizer).unwrap();
    std::fs::write(&tokenizer, &whole[..whole.len() / 2]).unwrap();
    let data = Some(folder.path().to_path_buf());
    let places = Places { models, data, ..Places::default() };
    let problems =
        || -> Vec<bool> { scan(&places).models.iter().map(|entry| entry.problem.is_some()).collect() };
    // Usable models come first.
    assert_eq!(problems(), [false, true]);
    std::fs::write(&tokenizer, whole).unwrap();
    assert_eq!(problems(), [false, false]);
}

#[test]
fn index_names_only_safetensors_files_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded("qwen3").write(folder.path());
    std::fs::write(folder.path().join("other.gguf"), "not mine").unwrap();
    let map = json!({ "a": "model.safetensors", "b": "other.gguf", "c": "../x.safetensors", "d": "" });
    let index = json!({ "weight_map": map }).to_string();
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert_eq!(split::files(&path), std::slice::from_ref(&path));
}

#[test]
fn adapters_next_to_the_weights_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = recorded("qwen3");
    let path = model.write(folder.path());
    let adapter = [("lora".to_owned(), model.tensors["model.norm.weight"].clone())];
    write_tensors(
        &folder.path().join("adapters.safetensors"),
        adapter.iter().map(|(name, tensor)| (name, tensor)),
    );
    assert_eq!(split::files(folder.path()), std::slice::from_ref(&path));
    Decoder::open(&path, &cpu_with_f32_cache()).unwrap();
}

#[test]
fn share_of_rotated_elements_is_read_in_both_places() {
    let folder = tempfile::tempdir().unwrap();
    let rotated = |name: &str, change: fn(&mut Json)| {
        let mut model = recorded("qwen3").unquantised();
        change(&mut model.config);
        let path = model.write(&folder.path().join(name));
        inspect(&path).unwrap().spec.rope_dim
    };
    let whole = rotated("whole", |_| ());
    assert_eq!(rotated("top", |config| config["partial_rotary_factor"] = json!(0.5)), whole / 2);
    let nested = rotated("nested", |config| {
        config["rope_parameters"] = json!({ "rope_theta": 10000.0, "partial_rotary_factor": 0.5 })
    });
    assert_eq!(nested, whole / 2);
}

#[test]
fn recommended_sampling_is_read_from_the_generation_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded("qwen3").write(folder.path());
    let inspected = |generation: Json| {
        std::fs::write(folder.path().join("generation_config.json"), generation.to_string()).unwrap();
        let inspected = inspect(&path).unwrap();
        (inspected.sampling, inspected.ignored_sampling)
    };
    let (sampling, ignored) = inspected(
        json!({ "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1, "eos_token_id": 1 }),
    );
    let expected = RecommendedSampling {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        repeat_penalty: Some(1.0),
        ..RecommendedSampling::default()
    };
    assert_eq!((sampling, ignored), (expected, Vec::new()));
    let (sampling, ignored) = inspected(
        json!({ "temperature": "hot", "top_k": -5, "top_p": 1e300, "min_p": [1], "repetition_penalty": null }),
    );
    assert!(sampling.is_empty() && ignored.len() == 4, "{sampling:?} {ignored:?}");
    assert!(ignored.contains(&"general.sampling.temp: it is not a number.".to_owned()), "{ignored:?}");
    // Greedy models recommend no sampling.
    assert!(inspected(json!({ "do_sample": false, "temperature": 0.6 })).0.is_empty());
}

#[test]
fn chosen_folder_loads_like_a_file_and_is_removed_whole() {
    let root = tempfile::tempdir().unwrap();
    let models = root.path().join("models");
    let folder = root.path().join("dropped/Tiny-4bit");
    recorded("qwen3").write(&folder);
    std::fs::write(folder.join("generation_config.json"), json!({ "temperature": 0.6 }).to_string()).unwrap();
    let places = Places { models: models.clone(), data: Some(root.path().into()), ..Places::default() };
    let app = App::start(AppConfig { places: Some(places), ..config(root.path()) }).unwrap();
    let named = folder.to_str().unwrap();
    // The shell asks whether the user chose it. Once loaded, its weights are known.
    assert!(hunch_library::is_model_folder(&folder) && !hunch_library::is_model_folder(root.path()));
    assert_eq!(app.unknown_model([named]), Some(named));
    let request =
        |target: &str| LoadRequest { target: target.into(), draft: None, head: None, context: None };
    let loaded = app.load_models(request(named)).unwrap();
    assert_eq!(loaded.target.name, "Tiny-4bit");
    assert_eq!(loaded.sampling.and_then(|sampling| sampling.temperature), Some(0.6));
    assert_eq!(app.unknown_model([&*loaded.target.path]), None);
    assert!(app.remove_model(&loaded.target.path).is_err(), "it is not in Hunch's own folder");
    app.unload_models().unwrap();
    let own = models.join("Tiny-4bit");
    let path = recorded("qwen3").write(&own);
    app.remove_model(path.to_str().unwrap()).unwrap();
    assert!(!own.exists() && models.is_dir() && folder.is_dir());
}
