//! Distilling a draft model on tiny models: acceptance, files, resuming, and bad input.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hunch::distil::divergence::Divergence;
use hunch::distil::student::{Student, StudentCache};
use hunch::distil::{self, DistilPlan, DistilRecipe, DistilReport, TextsOf, memory};
use hunch::train::{Interrupt, Recipe, TrainProgress, TrainWatch, TrainingTarget};
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_error::Error;
use hunch_model::decoder::Decoder;
use hunch_model::float_weights::FloatWeights;

use crate::cli::{command, hunch, last_json, text};
use crate::support::cpu;
use crate::support::learnable::Learnable;
use crate::support::tiny::Tiny;

/// A target whose text follows a rule.
fn target() -> Learnable {
    Learnable::default()
}

/// The target with other layers, whose noise hides most of the rule.
fn draft() -> Learnable {
    Learnable { noise: 0.1, layers: 1, ..target() }
}

struct Pair {
    folder: tempfile::TempDir,
    target: TrainingTarget,
    draft: PathBuf,
}

impl Pair {
    fn new(draft: Learnable) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = TrainingTarget::open(&target().write(folder.path(), "target"), &cpu()).unwrap();
        let draft = draft.write(folder.path(), "draft");
        Self { folder, target, draft }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn plan(&self, recipe: DistilRecipe) -> DistilPlan<'_> {
        DistilPlan { draft: &self.draft, tokens: 600, seed: 3, usable: None, recipe }
    }

    fn distil(&self, data: &str, recipe: DistilRecipe, out: &str) -> Result<DistilReport, Error> {
        let (folder, out) = (self.path(data), self.path(out));
        let watch = &mut |_: TrainProgress| {};
        distil::distil(&self.target, &cpu(), &folder, &self.plan(recipe), &out, watch)
    }
}

fn small(rank: Option<usize>) -> DistilRecipe {
    DistilRecipe {
        learning_rate: 3e-3,
        epochs: 4,
        batch: 4,
        own_tokens: 12,
        checkpoint_every: Duration::from_secs(3_600),
        collect: Recipe {
            parallel: 5,
            prompt_tokens: 6,
            answer_tokens: 24,
            held_out: 300,
            ..Recipe::default()
        },
        ..DistilRecipe::of(rank)
    }
}

#[test]
fn student_computes_what_the_decoder_computes() {
    let folder = tempfile::tempdir().unwrap();
    for architecture in ["llama", "qwen2", "qwen3"] {
        let path = Tiny { architecture, tied: false, ..Tiny::default() }.write(folder.path(), architecture);
        let mut decoder = Decoder::open(&path, &cpu()).unwrap();
        let student =
            Student::load(FloatWeights::open(&path).unwrap(), Some(4), 1, &candle_core::Device::Cpu).unwrap();
        let tokens = [1, 50, 200, 7, 7, 99, 3, 250];
        let logits = decoder.forward(Step::chain(&tokens, LogitRows::All)).unwrap().logits;
        let whole = student.forward(&tokens, &mut StudentCache::default()).unwrap();
        let mut cache = StudentCache::default();
        let parts = [&tokens[..5], &tokens[5..6], &tokens[6..]]
            .map(|part| student.forward(part, &mut cache).unwrap());
        let parts = candle_core::Tensor::cat(&parts, 0).unwrap();
        for states in [whole, parts] {
            let own = student.logits(&states, 258).unwrap().to_vec2::<f32>().unwrap();
            for (row, own) in own.iter().enumerate() {
                let off = own.iter().zip(logits.row(row)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 2e-3, "{architecture} row {row}: {off}");
            }
        }
    }
}

#[test]
fn every_divergence_raises_acceptance_on_held_out_text() {
    let pair = Pair::new(draft());
    for (divergence, texts, rank) in [
        (Divergence::Forward, TextsOf::Both, None),
        (Divergence::Reverse, TextsOf::Target, Some(8)),
        (Divergence::JensenShannon, TextsOf::Draft, None),
        (Divergence::TotalVariation, TextsOf::Target, None),
    ] {
        let recipe = DistilRecipe { divergence, texts, ..small(rank) };
        let report = pair.distil("data", recipe, divergence.name()).unwrap();
        let (before, after) = (report.start.mean(), report.distilled.mean());
        assert!(report.written && after > before + 0.02, "{divergence}: {before} {after}");
        assert!(report.distilled.sampled_positions > 50 && report.distilled.greedy_positions > 50);
        assert!(pair.path(divergence.name()).is_file() && !pair.path("data").join("distilled.gguf").exists());
    }
}

/// Pauses once it was asked a number of times.
struct PausingWatch {
    asked: std::cell::Cell<usize>,
    limit: usize,
}

impl TrainWatch for PausingWatch {
    fn progress(&mut self, _: TrainProgress) {}

    fn interrupt(&self) -> Option<Interrupt> {
        self.asked.set(self.asked.get() + 1);
        (self.asked.get() > self.limit).then_some(Interrupt::Pause)
    }
}

#[test]
fn paused_run_ends_with_the_same_draft_wherever_it_was_paused() {
    let pair = Pair::new(draft());
    for rank in [None, Some(4)] {
        let recipe = DistilRecipe { epochs: 1, ..small(rank) };
        let name = |part: &str| format!("{part}-{}", rank.unwrap_or(0));
        let whole = pair.distil("data", recipe.clone(), &name("whole")).unwrap();
        let mut pauses = 0;
        for limit in (1..).step_by(23) {
            let mut watch = PausingWatch { asked: 0.into(), limit };
            let (data, out) = (pair.path(&name("paused-data")), pair.path(&name("paused")));
            let plan = pair.plan(recipe.clone());
            match distil::distil(&pair.target, &cpu(), &data, &plan, &out, &mut watch) {
                Ok(report) => {
                    assert_eq!((report.steps, report.distilled), (whole.steps, whole.distilled));
                    break;
                }
                Err(Error::Stopped) => pauses += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(pauses > 3, "{pauses}");
        let bytes = |name: String| std::fs::read(pair.path(&name)).unwrap();
        assert!(bytes(name("whole")) == bytes(name("paused")), "the weights differ");
    }
}

#[test]
fn unusable_drafts_and_places_are_refused_before_any_work() {
    let pair = Pair::new(draft());
    let refused = |draft: &Path, out: &Path| {
        let plan = DistilPlan { draft, tokens: 100, seed: 3, usable: None, recipe: small(None) };
        let data = pair.path("data");
        let watch = &mut |_: TrainProgress| {};
        let error = distil::distil(&pair.target, &cpu(), &data, &plan, out, watch).unwrap_err();
        assert!(!data.exists(), "{error}");
        error.to_string()
    };
    let out = pair.path("out.gguf");
    let tokens: Vec<String> = (0..258).map(|token| format!("token{token}")).collect();
    let writer = Tiny::default()
        .writer()
        .without_key("tokenizer.ggml.tokens")
        .strings("tokenizer.ggml.tokens", tokens);
    let other = pair.path("other.gguf");
    std::fs::write(&other, writer.bytes()).unwrap();
    let error = refused(&other, &out);
    assert!(error.contains("in the target and"), "{error}");
    let gemma = Tiny { architecture: "gemma3", ..Tiny::default() }.write(pair.folder.path(), "gemma");
    let error = refused(&gemma, &out);
    assert!(error.contains("cannot be trained"), "{error}");
    let error = refused(&pair.draft, &pair.draft);
    assert!(error.contains("exists already"), "{error}");
    assert!(matches!(FloatWeights::open(&pair.path("absent.gguf")).err().unwrap(), Error::Io { .. }));
}

#[test]
fn recipes_and_memory_that_do_not_fit_are_refused_before_any_work() {
    let pair = Pair::new(draft());
    let refused = |recipe: DistilRecipe, usable: Option<u64>| {
        let (data, plan) = (pair.path("data"), DistilPlan { usable, ..pair.plan(recipe) });
        let watch = &mut |_: TrainProgress| {};
        let error = distil::distil(&pair.target, &cpu(), &data, &plan, &pair.path("out"), watch).unwrap_err();
        assert!(!data.exists(), "{error}");
        error.to_string()
    };
    let file = FloatWeights::open(&pair.draft).unwrap();
    let needed = |rank| memory::needed(&file, &small(rank));
    // Low rank keeps no gradients and moments of the frozen matrices.
    assert!(needed(Some(4)) + 4 * 1_000_000 < needed(None), "{} {}", needed(Some(4)), needed(None));
    for rank in [None, Some(4)] {
        let error = refused(small(rank), Some(needed(rank) - 1));
        assert!(error.contains("GiB (predicted)") && error.contains("Nothing was changed"), "{error}");
    }
    for rank in [0, 257] {
        let error = refused(small(Some(rank)), None);
        assert!(error.contains("1 to 256"), "{error}");
    }
    for learning_rate in [0.0, -1.0, 2.0, f64::NAN] {
        let error = refused(DistilRecipe { learning_rate, ..small(None) }, None);
        assert!(error.contains("learning rate"), "{error}");
    }
    let none = Recipe { held_out: 0, ..small(None).collect };
    let error = refused(DistilRecipe { collect: none, ..small(None) }, None);
    assert!(error.contains("held-out tokens is 0"), "{error}");
}

#[test]
fn damaged_texts_are_an_error() {
    let pair = Pair::new(draft());
    let recipe = || DistilRecipe { epochs: 1, ..small(Some(4)) };
    pair.distil("data", recipe(), "out").unwrap();
    let path = pair.path("data").join("texts.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    let edited = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut json: serde_json::Value = serde_json::from_str(&whole).unwrap();
        json["texts"].as_object_mut().unwrap().values_mut().for_each(edit);
        json.to_string()
    };
    let set = |key: &'static str| move |text: &mut serde_json::Value| text[key] = serde_json::json!([]);
    let cases = [
        ("cut", whole[..whole.len() / 2].to_owned()),
        ("empty", String::new()),
        ("no prompts", edited(&set("prompt_ids"))),
        ("no likely tokens", edited(&set("likely"))),
        ("no answers", edited(&set("answer"))),
        ("a key is missing", edited(&|text| drop(text.as_object_mut().unwrap().remove("greedy")))),
        ("an unknown token", edited(&|text| text["answer"][0] = serde_json::json!(9_999))),
    ];
    for (name, contents) in cases {
        std::fs::write(&path, &contents).unwrap();
        let error = pair.distil("data", recipe(), "other").unwrap_err().to_string();
        assert!(error.contains("data") && error.contains("Delete"), "{name}: {error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), contents, "{name}");
    }
    std::fs::write(&path, whole).unwrap();
    pair.distil("data", recipe(), "other").unwrap();
}

#[test]
fn killed_command_ends_with_the_same_draft_and_it_is_lossless() {
    let data = || {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        std::fs::create_dir(&models).unwrap();
        target().write(&models, "target");
        draft().write(&models, "draft");
        folder
    };
    let options = |out: &Path| -> Vec<String> {
        let fixed =
            ["drafter", "distil", "--target", "target", "--draft", "draft", "--threads", "1", "--json"];
        let sizes = ["--tokens", "700", "--held-out", "400", "--rank", "0", "--learning-rate", "0.003"];
        let all = fixed.into_iter().chain(sizes).map(str::to_owned);
        all.chain(["--out".to_owned(), out.to_str().unwrap().to_owned()]).collect()
    };
    let run = |data: &Path| {
        let out = data.join("models/distilled.gguf");
        let options = options(&out);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        (last_json(&hunch(data, &options)), std::fs::read(out).unwrap())
    };
    let (whole, killed) = (data(), data());
    let (report, expected) = run(whole.path());
    assert_eq!(report["written"], true, "{report}");
    for file in ["texts.json", "distil-checkpoint.safetensors"] {
        let options = options(&killed.path().join("models/distilled.gguf"));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let quiet = || std::process::Stdio::null();
        let mut child = command(killed.path(), &options).stdout(quiet()).stderr(quiet()).spawn().unwrap();
        let there = || {
            let folders = std::fs::read_dir(killed.path().join("drafters")).into_iter().flatten().flatten();
            folders.map(|entry| entry.path().join(file)).any(|path| path.exists())
        };
        let begun = std::time::Instant::now();
        while !there() && child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(run(killed.path()).1 == expected, "the weights differ");
    for method in ["draft-model", "draft-tree"] {
        let options =
            ["verify", "--target", "target", "--draft", "distilled", "--method", method, "--samples", "20"];
        let verified = hunch(whole.path(), &options);
        assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
    }
    let absent =
        hunch(whole.path(), &["drafter", "distil", "--target", "target", "--draft", "no", "--out", "x.gguf"]);
    assert_eq!(absent.status.code(), Some(4), "{}", text(&absent.stderr));
}
