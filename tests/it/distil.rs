//! Distilling a draft model on tiny models: acceptance, files, resuming, and bad input.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use candle_core::quantized::GgmlDType;
use hunch::distil::divergence::Divergence;
use hunch::distil::student::{Student, StudentCache};
use hunch::distil::{self, DistilPlan, DistilRecipe, DistilReport, TextsOf, memory};
use hunch::train::{Interrupt, Recipe, TrainProgress, TrainWatch, TrainingTarget};
use hunch_core::model::{LanguageModel, LogitRows, PassInput};
use hunch_error::Error;
use hunch_model::decoder::Decoder;
use hunch_model::float_weights::FloatWeights;

use crate::cli::{hunch, last_json, text};
use crate::support::cpu;
use crate::support::learnable::Learnable;
use crate::training::{PausingWatch, kill_once, training_folder};
use hunch_testing::tiny::{Tiny, WIDTH};

/// A target whose text follows a rule.
fn target() -> Learnable {
    Learnable::default()
}

/// The target with another layer, whose noise hides most of the rule. Smaller than the target, with floats to train.
fn draft() -> Learnable {
    Learnable { noise: 0.1, layers: 1, dtype: GgmlDType::F16 }
}

struct Pair {
    folder: tempfile::TempDir,
    target: TrainingTarget,
    draft: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = TrainingTarget::open(&target().write(folder.path(), "target"), &cpu()).unwrap();
        let draft = draft().write(folder.path(), "draft");
        Self { folder, target, draft }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn plan(&self, recipe: DistilRecipe) -> DistilPlan<'_> {
        DistilPlan { draft: &self.draft, tokens: 600, seed: 3, disk: 1 << 30, usable: None, recipe }
    }

    fn distil(&self, data: &str, recipe: DistilRecipe, out: &str) -> Result<DistilReport, Error> {
        self.watched(data, recipe, out, &mut |_: TrainProgress| {})
    }

    fn watched(
        &self,
        data: &str,
        recipe: DistilRecipe,
        out: &str,
        watch: &mut dyn TrainWatch,
    ) -> Result<DistilReport, Error> {
        distil::distil(&self.target, &self.path(data), &self.plan(recipe), &self.path(out), watch)
    }

    /// Returns the error of a run that must leave everything as it is.
    fn refused(&self, plan: &DistilPlan<'_>, out: &Path) -> String {
        let draft = std::fs::read(plan.draft).ok();
        let data = self.path("data");
        let watch = &mut |_: TrainProgress| {};
        let error = distil::distil(&self.target, &data, plan, out, watch).unwrap_err();
        assert!(!data.exists() && std::fs::read(plan.draft).ok() == draft, "{error}");
        error.to_string()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Returns the names of the checkpoints in a folder of data.
    fn checkpoints(&self, data: &str) -> Vec<PathBuf> {
        let entries = self.path(data).read_dir().unwrap().map(|entry| entry.unwrap().path());
        let is_checkpoint =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("checkpoint-");
        entries.filter(is_checkpoint).collect()
    }
}

fn small(rank: Option<usize>) -> DistilRecipe {
    DistilRecipe {
        learning_rate: 3e-3,
        epochs: 2,
        batch: 4,
        own_tokens: 12,
        checkpoint_every: Duration::from_secs(3_600),
        collect: Recipe {
            parallel: 5,
            prompt_tokens: 40,
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
        let logits = decoder.forward(PassInput::chain(&tokens, LogitRows::All)).unwrap().logits;
        let whole = student.forward(&tokens, &mut StudentCache::default()).unwrap();
        let mut cache = StudentCache::default();
        let parts = [&tokens[..5], &tokens[5..6], &tokens[6..]]
            .map(|part| student.forward(part, &mut cache).unwrap());
        let parts = candle_core::Tensor::cat(&parts, 0).unwrap();
        for states in [whole, parts] {
            let own = student.logits(&states, 258).unwrap().to_vec2::<f32>().unwrap();
            for (row, own) in own.iter().enumerate() {
                let off = own.iter().zip(logits.row(row)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let largest = logits.row(row).iter().fold(0f32, |most, logit| most.max(logit.abs()));
                // The decoder keeps keys and values in 16 bits.
                assert!(off < 2e-3 * largest, "{architecture} row {row}: {off} of {largest}");
            }
        }
    }
}

#[test]
fn every_divergence_raises_acceptance_on_held_out_text() {
    let pair = Pair::new();
    let mut files = Vec::new();
    let all = Divergence::ALL.map(|divergence| (divergence, TextsOf::Both, None));
    let further = [TextsOf::Target, TextsOf::Draft].map(|texts| (Divergence::Forward, texts, Some(8)));
    for (divergence, texts, rank) in all.into_iter().chain(further) {
        let recipe = DistilRecipe { divergence, texts, ..small(rank) };
        let name = format!("{divergence}-{texts}");
        let report = pair.distil("data", recipe, &name).unwrap();
        let DistilReport { start, distilled, written, .. } = &report;
        assert!(*written && distilled.greedy > start.greedy + 0.02, "{name}: {start:?} {distilled:?}");
        assert!(distilled.sampled > start.sampled + 0.02, "{name}: {start:?} {distilled:?}");
        assert!(distilled.sampled_positions > 50 && distilled.greedy_positions > 50);
        assert!(pair.checkpoints("data").is_empty() && !pair.path("data/distilled.gguf").exists());
        files.push(pair.bytes(&name));
    }
    for (at, file) in files.iter().enumerate() {
        assert!(!files[..at].contains(file), "draft {at} is the same as another");
    }
}

#[test]
fn draft_that_cannot_improve_is_not_written() {
    let pair = Pair::new();
    let plan = DistilPlan { draft: &pair.target.path, ..pair.plan(small(Some(4))) };
    let (data, out) = (pair.path("data"), pair.path("out.gguf"));
    let report = distil::distil(&pair.target, &data, &plan, &out, &mut |_: TrainProgress| {}).unwrap();
    assert!(report.start.mean() > 0.999 && !report.written && !out.exists(), "{report:?}");
    assert!(!data.join("distilled.gguf").exists());
}

/// Calls a function after each gradient step, which may pause the run.
struct AfterStep<F>(F, bool);

impl<F: FnMut(usize) -> bool> TrainWatch for AfterStep<F> {
    fn progress(&mut self, progress: TrainProgress) {
        if let TrainProgress::Fitting { step, .. } = progress {
            self.1 |= (self.0)(step);
        }
    }

    fn interrupt(&self) -> Option<Interrupt> {
        self.1.then_some(Interrupt::Pause)
    }
}

#[test]
fn paused_run_ends_with_the_same_draft_wherever_it_was_paused() {
    let pair = Pair::new();
    for rank in [None, Some(4)] {
        let recipe = DistilRecipe { epochs: 1, ..small(rank) };
        let name = |part: &str| format!("{part}-{}", rank.unwrap_or(0));
        let whole = pair.distil("data", recipe.clone(), &name("whole")).unwrap();
        assert!(pair.checkpoints("data").is_empty());
        let out = name("paused");
        let first = pair.watched("data", recipe.clone(), &out, &mut AfterStep(|_| true, false));
        assert!(matches!(first, Err(Error::Stopped)));
        // All texts are there, so the pauses fall into measurements and steps.
        let mut pauses = 0;
        for limit in (1..).step_by(7) {
            let mut watch = PausingWatch { asked: 0.into(), limit };
            match pair.watched("data", recipe.clone(), &out, &mut watch) {
                Ok(report) => {
                    assert_eq!((report.steps, report.distilled), (whole.steps, whole.distilled));
                    assert!(report.steps_now + 2 < report.steps, "{report:?}");
                    break;
                }
                Err(Error::Stopped) => pauses += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(pauses > 3, "{pauses}");
        assert!(pair.bytes(&name("whole")) == pair.bytes(&name("paused")), "the weights differ");
    }
}

/// Pauses a run in the middle of a step: some questions after the step before it was reported.
struct PauseInStep {
    after: usize,
    questions: AtomicUsize,
    is_near: bool,
}

impl TrainWatch for PauseInStep {
    fn progress(&mut self, progress: TrainProgress) {
        self.is_near = matches!(progress, TrainProgress::Fitting { step, .. } if step == self.after);
    }

    fn interrupt(&self) -> Option<Interrupt> {
        // The first question is asked between the steps, the others between the texts of a batch.
        let pauses = self.is_near && self.questions.fetch_add(1, Relaxed) >= 2;
        pauses.then_some(Interrupt::Pause)
    }
}

#[test]
fn pause_between_the_texts_of_a_step_keeps_the_steps_before_it() {
    let pair = Pair::new();
    let recipe = || DistilRecipe { epochs: 1, ..small(Some(4)) };
    let mut watch = PauseInStep { after: 3, questions: 0.into(), is_near: false };
    let paused = pair.watched("data", recipe(), "out", &mut watch);
    assert!(matches!(paused, Err(Error::Stopped)));
    let report = pair.distil("data", recipe(), "out").unwrap();
    assert_eq!(report.steps_now + 3, report.steps);
}

#[test]
fn run_with_other_settings_keeps_the_checkpoint_of_a_paused_one() {
    let pair = Pair::new();
    let recipe = || DistilRecipe { epochs: 1, ..small(Some(4)) };
    let paused = pair.watched("data", recipe(), "out", &mut AfterStep(|step| step == 2, false));
    assert!(matches!(paused, Err(Error::Stopped)));
    let before = pair.checkpoints("data");
    assert_eq!(before.len(), 1);
    pair.distil("data", DistilRecipe { divergence: Divergence::Reverse, ..recipe() }, "other").unwrap();
    assert_eq!(pair.checkpoints("data"), before);
    let report = pair.distil("data", recipe(), "out").unwrap();
    assert_eq!(report.steps_now + 2, report.steps);
}

#[test]
fn file_created_while_training_is_not_replaced_and_no_step_is_lost() {
    let pair = Pair::new();
    let recipe = || DistilRecipe { epochs: 1, ..small(Some(4)) };
    let out = pair.path("out");
    let mut create = AfterStep(|_| std::fs::write(&out, "of another program").is_err(), false);
    let error = pair.watched("data", recipe(), "out", &mut create).unwrap_err().to_string();
    assert!(error.contains("exists already") && error.contains("another --out"), "{error}");
    assert_eq!(pair.bytes("out"), b"of another program");
    let report = pair.distil("data", recipe(), "other").unwrap();
    assert!(report.written && report.steps_now == 0, "{report:?}");
}

#[test]
fn unusable_drafts_and_places_are_refused_before_any_work() {
    let pair = Pair::new();
    let out = pair.path("out.gguf");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(pair.path(name), bytes).unwrap();
        pair.path(name)
    };
    let refused = |draft: &Path| pair.refused(&DistilPlan { draft, ..pair.plan(small(None)) }, &out);

    let writer = || Tiny::default().writer();
    let tokens: Vec<String> = (0..258).map(|token| format!("token{token}")).collect();
    let other = writer().without_key("tokenizer.ggml.tokens").strings("tokenizer.ggml.tokens", tokens);
    let error = refused(&write("other.gguf", &other.bytes()));
    assert!(error.contains("in the target and"), "{error}");

    let bytes = pair.bytes("draft.gguf");
    for len in [bytes.len() - 1_000, bytes.len() / 2, 100, 0] {
        let cut = write("cut.gguf", &bytes[..len]);
        let error = refused(&cut);
        assert!(error.contains("cut.gguf"), "{len}: {error}");
    }

    let mut values = vec![0.01; WIDTH * WIDTH];
    values[77] = f32::NAN;
    let name = "blk.1.attn_q.weight";
    let nan = writer().without(name).tensor(name, &[WIDTH, WIDTH], GgmlDType::F32, &values);
    let error = refused(&write("nan.gguf", &nan.bytes()));
    assert!(error.contains(name) && error.contains("NaN"), "{error}");

    let error = refused(&write("missing.gguf", &writer().without("blk.1.ffn_up.weight").bytes()));
    assert!(error.contains("blk.1.ffn_up.weight"), "{error}");
    let narrow = writer().without(name).tensor(
        name,
        &[WIDTH / 2, WIDTH],
        GgmlDType::F32,
        &values[..WIDTH * WIDTH / 2],
    );
    let error = refused(&write("narrow.gguf", &narrow.bytes()));
    assert!(error.contains(name), "{error}");

    let gemma = Tiny { architecture: "gemma3", ..Tiny::default() }.write(pair.folder.path(), "gemma");
    let error = refused(&gemma);
    assert!(error.contains("cannot be trained"), "{error}");
    refused(&pair.path("absent.gguf"));

    for taken in [&pair.draft, &pair.target.path] {
        let error = pair.refused(&pair.plan(small(None)), taken);
        assert!(error.contains("exists already") && error.contains("--out"), "{error}");
    }
    pair.refused(&pair.plan(small(None)), &pair.draft.join("below"));
}

#[test]
fn recipes_and_memory_that_do_not_fit_are_refused_before_any_work() {
    let pair = Pair::new();
    let refused = |recipe: DistilRecipe, usable: Option<u64>| {
        pair.refused(&DistilPlan { usable, ..pair.plan(recipe) }, &pair.path("out"))
    };
    let file = FloatWeights::open(&pair.draft).unwrap();
    let needed = |rank| memory::needed(&file, &small(rank));
    // Low rank keeps no gradients and moments of the frozen matrices.
    assert!(needed(Some(4)) + 4 * 1_000_000 < needed(None), "{} {}", needed(Some(4)), needed(None));
    for rank in [None, Some(4)] {
        let error = refused(small(rank), Some(needed(rank) - 1));
        assert!(error.contains("GB (predicted)") && error.contains("Nothing was changed"), "{error}");
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
    for recipe in [
        DistilRecipe { batch: 0, ..small(None) },
        DistilRecipe { epochs: 0, ..small(None) },
        DistilRecipe { own_tokens: 0, ..small(None) },
    ] {
        let error = refused(recipe, None);
        assert!(error.contains("must be at least 1"), "{error}");
    }
}

#[test]
fn data_limit_below_one_answer_is_an_error() {
    let pair = Pair::new();
    let plan = DistilPlan { disk: 0, ..pair.plan(small(Some(4))) };
    let (data, out) = (pair.path("data"), pair.path("out"));
    let error = distil::distil(&pair.target, &data, &plan, &out, &mut |_: TrainProgress| {}).unwrap_err();
    assert!(error.to_string().contains("--disk"), "{error}");
    assert!(!out.exists());
}

#[test]
fn damaged_texts_and_checkpoints_are_made_again() {
    let pair = Pair::new();
    let recipe = || DistilRecipe { epochs: 1, ..small(Some(4)) };
    let index = pair.path("data/index.json");
    let cut = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let forget_prompts = || {
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
        for entry in json["answers"].as_array_mut().unwrap() {
            entry["prompt_at"] = serde_json::Value::Null;
        }
        std::fs::write(&index, json.to_string()).unwrap();
    };
    let damages: [(&str, &dyn Fn(), bool); 3] = [
        ("shard", &|| cut(&pair.path("data/shard-00000.safetensors")), true),
        ("prompts", &forget_prompts, true),
        ("checkpoint", &|| cut(&pair.checkpoints("data")[0]), false),
    ];
    pair.distil("data", recipe(), "whole.gguf").unwrap();
    for (name, damage, continues) in damages {
        let paused = pair.watched("data", recipe(), name, &mut AfterStep(|step| step == 2, false));
        assert!(matches!(paused, Err(Error::Stopped)), "{name}");
        damage();
        let report = pair.distil("data", recipe(), name).unwrap();
        assert_eq!(report.steps - report.steps_now, if continues { 2 } else { 0 }, "{name}");
        assert!(pair.bytes(name) == pair.bytes("whole.gguf"), "{name}: the weights differ");
    }
    std::fs::write(&index, "{\"version\":").unwrap();
    let error = pair.distil("data", recipe(), "other").unwrap_err().to_string();
    assert!(error.contains("is damaged") && error.contains("Delete"), "{error}");
    assert_eq!(std::fs::read_to_string(&index).unwrap(), "{\"version\":");
}

#[test]
fn diverging_run_writes_nothing() {
    let pair = Pair::new();
    // Weights of this size overflow in the second step.
    let recipe = DistilRecipe { learning_rate: 1.0, ..small(None) };
    match pair.distil("data", recipe, "out") {
        Ok(report) => assert!(!report.written, "{report:?}"),
        Err(error) => assert!(error.to_string().contains("Lower --learning-rate"), "{error}"),
    }
    assert!(!pair.path("out").exists());
}

/// A data folder with a target and a draft.
fn data_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    target().write(&models, "target");
    draft().write(&models, "draft");
    folder
}

const DISTIL: [&str; 16] = [
    "drafter",
    "distil",
    "--target",
    "target",
    "--draft",
    "draft",
    "--tokens",
    "700",
    "--held-out",
    "400",
    "--rank",
    "0",
    "--learning-rate",
    "0.003",
    "--threads",
    "1",
];

/// The report and the draft of the command, run without a break.
static UNBROKEN: LazyLock<(serde_json::Value, Vec<u8>)> = LazyLock::new(|| run(data_folder().path()));

/// Runs the command and returns its report and the draft.
fn run(data: &Path) -> (serde_json::Value, Vec<u8>) {
    let report = last_json(&hunch(data, &[&DISTIL[..], &["--json"]].concat()));
    (report, std::fs::read(data.join("models/draft-distilled.gguf")).unwrap())
}

#[test]
fn killed_command_ends_with_the_same_draft_and_it_is_lossless() {
    let killed = data_folder();
    let (report, expected) = &*UNBROKEN;
    assert_eq!(report["report"]["written"], true, "{report}");
    for file in [None, Some("index.json"), Some("checkpoint-"), Some("distilled")] {
        kill_once(killed.path(), &DISTIL, file);
    }
    // The last run may have ended before it was killed.
    let _ = std::fs::remove_file(killed.path().join("models/draft-distilled.gguf"));
    assert!(run(killed.path()).1 == *expected, "the weights differ");
    for method in ["draft-model", "draft-tree"] {
        let draft = ["--draft", "draft-distilled", "--method", method];
        let options = [&["verify", "--target", "target", "--samples", "20"][..], &draft].concat();
        let verified = hunch(killed.path(), &options);
        assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
    }
    // The default name is taken now.
    let taken = hunch(killed.path(), &DISTIL);
    assert_eq!(taken.status.code(), Some(4), "{}", text(&taken.stderr));
    assert!(text(&taken.stderr).contains("exists already"), "{}", text(&taken.stderr));
    assert!(std::fs::read(killed.path().join("models/draft-distilled.gguf")).unwrap() == *expected);
    let absent = hunch(killed.path(), &["drafter", "distil", "--target", "target", "--draft", "no"]);
    assert_eq!(absent.status.code(), Some(3), "{}", text(&absent.stderr));
}

/// The system refuses that files grow, as on a full disk: first those of texts, then those of checkpoints.
#[cfg(unix)]
#[test]
fn full_disk_is_an_error_and_nothing_is_lost() {
    let full = data_folder();
    let (_, expected) = &*UNBROKEN;
    let models = || {
        let files = full.path().join("models").read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.map(|path| (std::fs::read(&path).unwrap(), path)).collect();
        files.sort();
        files
    };
    let before = models();
    // Limits in blocks of 512 bytes.
    for (limit, file) in [("1", "shard-"), ("2000", "checkpoint-")] {
        // The signal of the limit would end the process. Ignored, writes fail instead.
        let output = std::process::Command::new("sh")
            .args(["-c", r#"trap '' XFSZ; ulimit -f "$1"; shift; exec "$@""#, "sh", limit])
            .arg(env!("CARGO_BIN_EXE_hunch"))
            .args(DISTIL)
            .env("HUNCH_DATA_DIR", full.path())
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert!(
            !output.status.success() && error.contains("Could not write") && error.contains(file),
            "{error}"
        );
        assert!(models() == before, "a file of the models folder changed");
        let folder = training_folder(full.path()).unwrap();
        let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!names.into_iter().any(|name| name.ends_with(".part")), "an unfinished file is left");
    }
    let (report, draft) = run(full.path());
    assert!(draft == *expected, "{report}");
}
