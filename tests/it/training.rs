//! Training a head on tiny models: sequences, collected data, acceptance, resuming, and bad input.

mod kinds;
mod resumed;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use candle_core::quantized::GgmlDType;
use hunch::api::{TrainEvent, TrainRequest};
use hunch::app::{App, AppConfig};
use hunch::engine::WallClock;
use hunch::generate::{GenerationPlan, LoadPlan, Models, Prompt, answer_ids};
use hunch::train::acceptance::DraftAcceptance;
use hunch::train::collect::{Goal, collect};
use hunch::train::fit::FitRun;
use hunch::train::kind::HeadKind;
use hunch::train::prompt_rows::PromptRows;
use hunch::train::shards::{CollectedAnswer, ShardStore, is_held_out};
use hunch::train::{
    self, Budget, Interrupt, Recipe, TrainPlan, TrainProgress, TrainReport, TrainWatch, TrainingTarget,
};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LogitRows, PassInput, Rows};
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Refusal};
use hunch_library::Places;
use hunch_model::decoder::Decoder;
use hunch_model::device::DeviceChoice;
use hunch_model::sequences::Sequences;
use hunch_model::weights::WeightFile;

pub(crate) use resumed::PausingWatch;

use crate::cli::{command, hunch, last_json, text};
use crate::support::app::load_request;
use crate::support::cpu;
use crate::support::learnable::Learnable;
use hunch_testing::tiny::Tiny;

/// A model whose tokens depend on more than the last one.
fn tiny() -> Tiny {
    Tiny { tied: false, dtype: GgmlDType::Q8_0, ..Tiny::default() }
}

/// A model with as many layers as an EAGLE head reads, whose text follows a rule.
fn learnable() -> Learnable {
    Learnable { layers: 4, ..Learnable::default() }
}

/// A penalty under which the ridge regression gives weights near 0.
const UNTRAINED: f64 = 1e7;

fn small() -> Recipe {
    Recipe {
        kind: HeadKind::Mlp,
        depth: 1,
        parallel: 5,
        prompt_tokens: 6,
        answer_tokens: 24,
        held_out: 400,
        shortlist: 240,
        feed_forward: Some(64),
        batch: 128,
        epochs: 4,
        learning_rate: 1e-3,
        ridge: 10.0,
        checkpoint_every: Duration::from_secs(3_600),
        evaluations: 4,
        prompts: None,
    }
}

/// The small recipe for a kind of head, with drafts of 3 tokens if it drafts several. Short prompts of a text with a
/// rule are often the same, and those of held-out answers are not trained on.
fn small_of(kind: HeadKind) -> Recipe {
    Recipe { kind, depth: kind.depth(3), prompt_tokens: 40, ..small() }
}

/// Copies the files of a folder to a new one.
fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in from.read_dir().unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn plan(tokens: usize) -> TrainPlan {
    TrainPlan { budget: Budget::Tokens(tokens), seed: 3, disk: 1 << 30, recipe: small() }
}

struct TrainingFixture {
    folder: tempfile::TempDir,
    target: TrainingTarget,
}

impl TrainingFixture {
    fn new() -> Self {
        Self::of(|folder| tiny().write(folder, "tiny"))
    }

    /// With as many layers as an EAGLE head reads, and text that follows a rule.
    fn deep() -> Self {
        Self::of(|folder| learnable().write(folder, "tiny"))
    }

    fn of(write: impl Fn(&Path) -> PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = TrainingTarget::open(&write(folder.path()), &cpu()).unwrap();
        Self { folder, target }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn store(&self, name: &str) -> ShardStore {
        ShardStore::open(&self.path(name), &self.target, 3, 1 << 30).unwrap()
    }

    fn train(&self, name: &str, plan: &TrainPlan) -> TrainReport {
        self.train_to("head.gguf", name, plan)
    }

    fn train_to(&self, out: &str, name: &str, plan: &TrainPlan) -> TrainReport {
        let (folder, out) = (self.path(name), self.path(out));
        train::train(&self.target, &folder, plan, &out, &mut |_: TrainProgress| {}).unwrap()
    }

    /// Collects held-out answers, and answers with this many tokens to train on.
    fn collect_all(&self, name: &str, recipe: &Recipe, tokens: usize) {
        let mut store = self.store(name);
        collect(&self.target, &mut store, recipe, Goal::HeldOut, None, &mut |_: TrainProgress| {}).unwrap();
        self.collect(&mut store, recipe, tokens);
    }

    fn collect(&self, store: &mut ShardStore, recipe: &Recipe, tokens: usize) {
        collect(&self.target, store, recipe, Goal::Training(tokens), None, &mut |_: TrainProgress| {})
            .unwrap();
    }
}

fn answers(store: &ShardStore, tokens: usize) -> Vec<CollectedAnswer> {
    store.training_set(tokens).answers.iter().map(|entry| store.read(entry).unwrap()).collect()
}

fn bits(rows: &Rows, i: usize) -> Vec<u32> {
    rows.row(i).iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sequences_in_one_pass_match_separate_passes_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = Tiny { architecture: "qwen3", tied: false, ..Tiny::default() }.write(folder.path(), "tiny");
    let decoder = Decoder::open(&path, &cpu()).unwrap();
    let candle = Decoder::load_candle(&WeightFile::open(&path).unwrap(), &cpu()).unwrap();
    let prompts = [&[1, 2, 3, 4, 5, 6, 7][..], &[9], &[200, 100, 50]];
    for (decoder, exact) in [(decoder, true), (candle, false)] {
        let mut sequences = Sequences::of(&decoder, 3);
        let mut alone: Vec<_> = prompts.iter().map(|_| decoder.fork()).collect();
        for (sequence, prompt) in prompts.iter().enumerate() {
            sequences.prefill(sequence, prompt).unwrap();
            alone[sequence].forward(PassInput::chain(prompt, LogitRows::None)).unwrap();
        }
        sequences.truncate(0, 4).unwrap();
        alone[0].truncate(4).unwrap();
        // One sequence pauses in the second pass.
        for pass in [&[(0, 11), (1, 12), (2, 13)][..], &[(2, 5), (0, 6)], &[(1, 30), (2, 40), (0, 50)]] {
            let together = sequences.step(pass, &[0, 1]).unwrap();
            for (row, &(sequence, token)) in pass.iter().enumerate() {
                let tokens = [token];
                let step = PassInput { taps: &[0, 1], ..PassInput::chain(&tokens, LogitRows::All) };
                let single = alone[sequence].forward(step).unwrap();
                assert_eq!(bits(&together.logits, row), bits(&single.logits, 0), "exact: {exact}");
                for (taps, own) in together.taps.iter().zip(&single.taps) {
                    assert_eq!(bits(taps, row), bits(own, 0));
                }
            }
        }
        assert!(sequences.step(&[(0, 1), (0, 2)], &[]).is_err(), "a sequence twice");
        assert!(sequences.step(&[(0, 9_999)], &[]).is_err(), "a token outside the vocabulary");
    }
}

#[test]
fn answers_do_not_depend_on_parallel_ones_or_interruptions() {
    let place = TrainingFixture::new();
    let mut whole = place.store("whole");
    place.collect(&mut whole, &Recipe { parallel: 1, ..small() }, 500);
    let expected = answers(&whole, 500);
    assert!(expected.len() > 15 && expected.iter().any(|a| a.greedy) && expected.iter().any(|a| !a.greedy));
    assert!(expected.iter().all(|answer| !is_held_out(answer.job)));

    let mut part = place.store("part");
    place.collect(&mut part, &small(), 150);
    place.collect(&mut part, &small(), 320);
    drop(part);
    // Killed while a shard was written, and another was damaged.
    let shard = |number: usize| place.path("part").join(format!("shard-{number:05}.safetensors"));
    std::fs::write(shard(7), b"not in the index").unwrap();
    std::fs::write(place.path("part").join("shard-00002.safetensors.part"), b"half").unwrap();
    let bytes = std::fs::read(shard(0)).unwrap();
    std::fs::write(shard(0), &bytes[..bytes.len() / 2]).unwrap();
    let mut part = place.store("part");
    assert!(answers(&part, 500).is_empty(), "the first answers are missing");
    assert!(!shard(7).exists() && !place.path("part").join("shard-00002.safetensors.part").exists());
    place.collect(&mut part, &Recipe { parallel: 7, ..small() }, 500);
    assert_eq!(answers(&part, 500), expected);
}

#[test]
fn training_raises_acceptance_and_the_head_is_lossless() {
    let place = TrainingFixture::of(|folder| Tiny { dtype: GgmlDType::F32, ..tiny() }.write(folder, "tiny"));
    let mut shown = Vec::new();
    let out = place.path("head.gguf");
    let recipe = Recipe { ridge: UNTRAINED, learning_rate: 3e-3, epochs: 6, ..small() };
    let plan = TrainPlan { recipe, ..plan(2_000) };
    let report =
        train::train(&place.target, &place.path("data"), &plan, &out, &mut |step| shown.push(step)).unwrap();
    let TrainReport { start, trained, .. } = report;
    assert!(trained.first.mean() > start.first.mean() + 0.04, "{start:?} {trained:?}");
    assert!(shown.iter().any(|step| matches!(step, TrainProgress::Collecting { .. })));
    let losses: Vec<f64> = shown
        .iter()
        .filter_map(|step| if let TrainProgress::Fitting { loss, .. } = step { Some(*loss) } else { None })
        .collect();
    assert!(losses[losses.len() - 1] < losses[0], "{losses:?}");

    // Through the round loop.
    let load = LoadPlan { head: Some(out.clone()), ..LoadPlan::of(&place.target.path) };
    let mut models = Models::load_by(&load, &cpu()).unwrap();
    assert!(models.usable_methods().contains(&Method::Head));
    let mut drafted = (0, 0);
    for (seed, temperature) in [(1, 0.0), (2, 0.0)] {
        let prompt = models.prompt_ids(&Prompt::Raw(format!("prompt {seed}"))).unwrap();
        let run = |models: &mut Models, method| {
            let plan = GenerationPlan {
                method,
                max_draft: MaxDraft::Fixed(1),
                max_tokens: 60,
                sampling: SamplingParams { temperature, ..SamplingParams::greedy() },
                ..GenerationPlan::default()
            };
            answer_ids(models, &prompt, &plan, &WallClock::start()).unwrap()
        };
        let (plain, _) = run(&mut models, Method::Plain);
        let (with_head, stats) = run(&mut models, Method::Head);
        assert_eq!(with_head, plain);
        drafted = (drafted.0 + stats.drafted, drafted.1 + stats.accepted);
    }
    assert!(drafted.0 > 20 && drafted.1 > 0, "{drafted:?}");

    // Measured as loaded, and again by itself.
    let again =
        train::evaluate(&place.target, &place.path("data"), &plan, &out, &mut |_: TrainProgress| {}).unwrap();
    assert_eq!(again, trained);
    assert!(again.first.greedy_positions > 50 && again.first.sampled_positions > 100, "{again:?}");
}

#[test]
fn ridge_regression_accepts_more_than_untrained_weights() {
    let place = TrainingFixture::new();
    place.collect_all("data", &small(), 2_000);
    let store = place.store("data");
    let start = |ridge| {
        let recipe = Recipe { ridge, ..small() };
        let fit =
            FitRun::open(&place.target, &store, store.training_set(2_000), &recipe, 3, &|| false).unwrap();
        fit.start().first.mean()
    };
    let (solved, untrained) = (start(1e3), start(UNTRAINED));
    assert!(solved > untrained + 0.04, "{solved} {untrained}");
}

/// Returns the bytes of the weights of a head.
fn bytes_of(head: &Path) -> Vec<u8> {
    let file = if head.is_dir() { head.join("model.safetensors") } else { head.into() };
    std::fs::read(file).unwrap()
}

#[test]
fn collection_stops_at_the_disk_limit() {
    let place = TrainingFixture::new();
    let report = place.train("data", &TrainPlan { disk: 2 << 20, ..plan(1_000_000) });
    assert!(report.disk_limit && report.tokens > 0);
    let size: u64 = std::fs::read_dir(place.path("data"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("shard"))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(size < 3 << 20, "{size}");
}

#[test]
fn failed_write_of_a_shard_loses_nothing() {
    let place = TrainingFixture::new();
    let mut store = place.store("data");
    place.collect(&mut store, &small(), 100);
    let before = answers(&store, 100);
    let index = std::fs::read(place.path("data").join("index.json")).unwrap();
    // A non-empty folder cannot be replaced by a file.
    let next = place.path("data").join("shard-00001.safetensors");
    std::fs::create_dir_all(next.join("inside")).unwrap();
    let error =
        collect(&place.target, &mut store, &small(), Goal::Training(200), None, &mut |_: TrainProgress| {})
            .unwrap_err();
    assert!(matches!(error, Error::Io { action: "write", .. }), "{error}");
    assert_eq!(std::fs::read(place.path("data").join("index.json")).unwrap(), index);
    drop(store);
    std::fs::remove_dir_all(next).unwrap();
    let mut store = place.store("data");
    assert_eq!(answers(&store, 100), before);
    place.collect(&mut store, &small(), 200);
    assert!(store.training_tokens() >= 200);
}

/// A file of unchanged size whose bytes are wrong is found when it is read.
#[test]
fn damaged_shards_are_removed_and_written_again() {
    let place = TrainingFixture::new();
    let mut store = place.store("data");
    place.collect(&mut store, &small(), 100);
    let expected = answers(&store, 100);
    drop(store);
    let shard = place.path("data").join("shard-00000.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    let states = whole.len() - whole.len() / 4;
    for (damaged, value) in [(8..16, 0u8), (states..states + 2_000, 0xff)] {
        let mut bytes = whole.clone();
        bytes[damaged].fill(value);
        std::fs::write(&shard, bytes).unwrap();
        let store = place.store("data");
        let entries = store.training_set(100).answers;
        let error = entries.iter().find_map(|entry| store.read(entry).err()).expect("an answer is damaged");
        assert!(matches!(error, Error::Refused(Refusal::DamagedShard { .. })), "{error}");
        assert!(!shard.exists());
        drop(store);
        let mut store = place.store("data");
        place.collect(&mut store, &small(), 100);
        assert_eq!(answers(&store, 100), expected);
        store.flush().unwrap();
    }
}

/// Prompts are not in data of before, and a damaged index may lack anything.
#[test]
fn held_out_answers_without_a_part_are_written_again() {
    let place = TrainingFixture::new();
    let fill = |store: &mut ShardStore| {
        let watch = &mut |_: TrainProgress| {};
        collect(&place.target, store, &small(), Goal::HeldOut, None, watch).unwrap().tokens
    };
    let held_out = |store: &ShardStore| -> Vec<CollectedAnswer> {
        store.held_out(400).iter().map(|entry| store.read(entry).unwrap()).collect()
    };
    let mut store = place.store("data");
    fill(&mut store);
    let expected = held_out(&store);
    assert!(expected.iter().all(|answer| !answer.prompt_ids.is_empty()));
    drop(store);
    let index = place.path("data").join("index.json");
    for part in ["prompt_at", "likely_at"] {
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
        for entry in json["answers"].as_array_mut().unwrap() {
            entry[part] = serde_json::Value::Null;
        }
        std::fs::write(&index, json.to_string()).unwrap();
        let mut store = place.store("data");
        assert!(fill(&mut store) > 100, "{part}");
        assert_eq!(held_out(&store), expected, "{part}");
    }
}

#[test]
fn rows_of_a_prompt_come_before_those_of_its_answer() {
    let place = TrainingFixture::new();
    let mut store = place.store("data");
    collect(&place.target, &mut store, &small(), Goal::HeldOut, None, &mut |_: TrainProgress| {}).unwrap();
    let mut prompts = PromptRows::of(&place.target);
    let mut model = place.target.decoder.fork();
    for entry in store.held_out(200) {
        let answer = store.read(&entry).unwrap();
        let (whole, before) = prompts.before(&answer).unwrap();
        assert!(before > 0 && before + 1 == answer.prompt_ids.len());
        let text = [&answer.prompt_ids[..], &answer.next].concat();
        let (last, read) = text.split_last().unwrap();
        assert_eq!(whole.next, [&read[1..], &[*last]].concat());
        model.truncate(0).unwrap();
        let step = PassInput { taps: &place.target.taps, ..PassInput::chain(read, LogitRows::None) };
        let taps = model.forward(step).unwrap().taps;
        let mut states = whole.states.chunks_exact(place.target.rows.n_embd);
        for row in 0..read.len() {
            for tap in &taps {
                let (own, expected) = (states.next().unwrap(), tap.row(row));
                let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
                let off = own.iter().zip(expected).map(|(a, b)| (a.to_f32() - b / rms).abs());
                assert!(off.fold(0.0, f32::max) < 4e-3, "row {row} of {} after {before}", read.len());
            }
        }
        assert!(states.next().is_none());
    }
}

#[test]
fn settings_of_zero_are_refused_before_any_work() {
    let place = TrainingFixture::new();
    for recipe in [
        Recipe { held_out: 0, ..small() },
        Recipe { depth: 0, ..small() },
        Recipe { batch: 0, ..small() },
        Recipe { epochs: 0, ..small() },
        Recipe { answer_tokens: 1, ..small() },
    ] {
        let (data, plan) = (place.path("data"), TrainPlan { recipe, ..plan(100) });
        let watch = &mut |_: TrainProgress| {};
        let error = train::train(&place.target, &data, &plan, &place.path("head.gguf"), watch).unwrap_err();
        assert!(error.to_string().contains("must be at least"), "{error}");
        assert!(!data.exists());
    }
}

#[test]
fn rejects_data_of_another_model_or_run() {
    let place = TrainingFixture::new();
    let mut store = place.store("data");
    let open = |target: &TrainingTarget| {
        ShardStore::open(&place.path("data"), target, 3, 1 << 30).err().unwrap().to_string()
    };
    let busy = open(&place.target);
    assert!(busy.contains("Another run"), "{busy}");
    place.collect(&mut store, &small(), 50);
    drop(store);
    let other = Tiny { seed: 9, ..tiny() }.write(place.folder.path(), "other");
    let other = open(&TrainingTarget::open(&other, &cpu()).unwrap());
    assert!(other.contains("belongs to another model"), "{other}");
    std::fs::write(place.path("data").join("index.json"), "{\"version\":").unwrap();
    let damaged = open(&place.target);
    assert!(damaged.contains("is damaged") && damaged.contains("start over"), "{damaged}");
}

#[test]
fn head_of_other_layers_is_not_measured() {
    let place = TrainingFixture::new();
    let mut target = TrainingTarget::open(&place.target.path, &cpu()).unwrap();
    place.train("data", &plan(200));
    target.taps = vec![1];
    let head = place.path("head.gguf");
    let judged = train::evaluate(&target, &place.path("other"), &plan(0), &head, &mut |_: TrainProgress| {});
    assert!(judged.unwrap_err().to_string().contains("reads the layers"));
}

/// A data folder with a model called "target".
fn data_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("models")).unwrap();
    tiny().write(&folder.path().join("models"), "target");
    folder
}

const TRAIN: [&str; 13] = train("800", "500");

/// Returns a command that trains with some tokens, and measures with others.
const fn train(tokens: &'static str, held_out: &'static str) -> [&'static str; 13] {
    [
        "drafter",
        "train",
        "--target",
        "target",
        "--tokens",
        tokens,
        "--held-out",
        held_out,
        "--parallel",
        "2",
        "--threads",
        "1",
        "--json",
    ]
}

/// Returns the training data of the only target.
pub(super) fn training_folder(data: &Path) -> Option<PathBuf> {
    std::fs::read_dir(data.join("drafters")).ok()?.next().map(|entry| entry.unwrap().path())
}

/// Starts a run and kills it once its folder has a file whose name begins like this.
pub(super) fn kill_once(data: &Path, arguments: &[&str], file: Option<&str>) {
    kill_command(data, command(data, arguments), file);
}

fn kill_command(data: &Path, mut command: Command, file: Option<&str>) {
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let there = || {
        let files = training_folder(data).and_then(|folder| folder.read_dir().ok());
        let names = || files.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        file.is_none_or(|file| names().any(|name| name.to_str().is_some_and(|name| name.starts_with(file))))
    };
    while !there() && run.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn killed_run_ends_with_the_same_head() {
    let (whole, killed) = (data_folder(), data_folder());
    // This is the training test with candle's products on several threads.
    let train = |data: &Path| {
        let mut command = command(data, &TRAIN);
        command.env("RAYON_NUM_THREADS", "2");
        command
    };
    let report = last_json(&train(whole.path()).output().unwrap());
    let head = |data: &Path| std::fs::read(data.join("heads/target.gguf")).unwrap();
    let expected = head(whole.path());
    let acceptance =
        |value: &serde_json::Value| -> DraftAcceptance { serde_json::from_value(value.clone()).unwrap() };
    let trained = acceptance(&report["report"]["trained"]);
    assert!(trained.first.mean() > acceptance(&report["report"]["start"]).first.mean());

    // While it collects, once there is data, and once there is a checkpoint.
    for file in [None, Some("index.json"), Some("checkpoint.safetensors")] {
        kill_command(killed.path(), train(killed.path()), file);
    }
    let output = train(killed.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(head(killed.path()) == expected, "the weights differ");

    // The head is found by itself, by path, and by `eval`.
    // With a fixed depth: an adaptive one may draft nothing on a busy machine.
    let found = ["run", "hello", "--target", "target", "--max-tokens", "20", "--json"];
    let found = [&found[..], &["--method", "head", "--max-draft", "1"]].concat();
    assert!(last_json(&hunch(whole.path(), &found))["stats"]["drafted"].as_u64().unwrap() > 0);
    let path = whole.path().join("heads/target.gguf");
    let path = path.to_str().unwrap();
    let verified = hunch(
        killed.path(),
        &["verify", "--target", "target", "--head", path, "--method", "head", "--samples", "20"],
    );
    assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
    let judged = last_json(&hunch(
        whole.path(),
        &["drafter", "eval", "--target", "target", "--head", path, "--held-out", "500", "--json"],
    ));
    assert_eq!(acceptance(&judged), trained);

    // A damaged file in the folder does not stand in the way, a named one is an error.
    let bytes = std::fs::read(path).unwrap();
    let damaged = killed.path().join("heads/target.gguf");
    std::fs::write(&damaged, &bytes[..bytes.len() - 100]).unwrap();
    let plain = hunch(killed.path(), &["run", "hello", "--target", "target", "--max-tokens", "5"]);
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    let refused = |head: &str| {
        let output = hunch(killed.path(), &["run", "hello", "--target", "target", "--head", head]);
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = refused(damaged.to_str().unwrap());
    assert_eq!(code, Some(3), "{error}");
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/hunch-model/heads/smollm2-135m-instruct.gguf");
    let (code, error) = refused(shipped.to_str().unwrap());
    assert!(code == Some(4) && error.contains("was trained for SmolLM2"), "{code:?} {error}");
    let (code, error) = refused("nowhere.gguf");
    assert!(code == Some(4) && error.contains("There is no head"), "{code:?} {error}");
}

#[test]
fn given_prompts_are_answered_and_kept_apart_from_other_data() {
    let data = data_folder();
    let file = data.path().join("prompts.jsonl");
    let prompts: String = (0..40).map(|i| format!("{{\"prompt\": \"question number {i}\"}}\n")).collect();
    std::fs::write(&file, &prompts).unwrap();
    let train = |from: &str| hunch(data.path(), &[&TRAIN[..], &["--from", from]].concat());
    let report = last_json(&train(file.to_str().unwrap()));
    assert!(report["report"]["tokens"].as_u64().unwrap() >= 800, "{report}");
    let folders = || std::fs::read_dir(data.path().join("drafters")).unwrap().count();
    assert_eq!(folders(), 1);
    assert!(training_folder(data.path()).unwrap().to_str().unwrap().contains("-prompts-"));

    // Other prompts have data of their own. Bad ones are refused before anything is collected.
    let refused = |lines: &str| {
        std::fs::write(&file, lines).unwrap();
        let output = train(file.to_str().unwrap());
        (output.status.code(), text(&output.stderr))
    };
    let (code, error) = refused("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"");
    assert!(code == Some(4) && error.contains("line 2 is neither"), "{code:?} {error}");
    let (code, error) = refused("{\"prompt\": \"a\"}");
    assert!(code == Some(4) && error.contains("at least two"), "{code:?} {error}");
    let long = "word ".repeat(2_000);
    let (code, error) = refused(&format!("{{\"prompt\": \"{long}\"}}\n{{\"prompt\": \"{long} b\"}}"));
    assert!(code == Some(4) && error.contains("too long"), "{code:?} {error}");
    let none = train("my-conversations");
    assert_eq!(none.status.code(), Some(4));
    assert!(text(&none.stderr).contains("no conversations"), "{}", text(&none.stderr));
}

/// Trains in an application until the run ends, and returns the last event. `pause` stops it at the first progress.
fn train_in(app: &App, request: &TrainRequest, pause: bool) -> TrainEvent {
    let (sender, receiver) = channel();
    let id = app
        .train_drafter(
            request,
            Box::new(move |message| {
                for event in message.events {
                    let _ = sender.send(event);
                }
            }),
        )
        .unwrap();
    assert!(
        matches!(app.train_drafter(request, Box::new(|_| ())), Err(Error::Busy(_))),
        "two runs at a time"
    );
    assert!(app.hold_for_update().is_err(), "no update is installed during training");
    loop {
        match receiver.recv_timeout(Duration::from_secs(120)).expect("the run continues") {
            TrainEvent::Progress { .. } if pause => app.stop_measurement(id),
            TrainEvent::Progress { .. } => {}
            last => return last,
        }
    }
}

#[test]
fn window_pauses_continues_and_uses_the_new_head() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    tiny().write(&models, "target");
    let places = Places { data: Some(folder.path().into()), ..Places::only(models) };
    let config = AppConfig {
        places: Some(places),
        store: Some(folder.path().join("conversations.db")),
        threads: Some(1),
        device: DeviceChoice::Cpu,
        ..AppConfig::default()
    };
    let start = || App::start(config.clone()).unwrap();
    let app = start();
    let request = TrainRequest { target: "target".into(), tokens: 2_000, kind: HeadKind::Mlp };
    let before = app.training_outlook(&request).unwrap();
    assert!(before.run.is_none() && !before.measured && before.disk_bytes > 0 && before.fit_seconds > 0.0);
    app.load_models(load_request("target", None)).unwrap();
    let hold = app.hold_for_update().unwrap();
    assert!(
        matches!(app.train_drafter(&request, Box::new(|_| ())), Err(Error::Busy(_))),
        "an update is installed"
    );
    drop(hold);
    let (sender, measured) = channel();
    app.measure_costs(Box::new(move |message| {
        let _ = sender.send(message.events.len());
    }))
    .unwrap();
    while measured.recv_timeout(Duration::from_secs(120)).is_ok() {}
    let after = app.training_outlook(&request).unwrap();
    assert_ne!(after.collect_seconds, before.collect_seconds, "measured passes predict the time");
    assert!(
        matches!(train_in(&app, &request, true), TrainEvent::Finished { outcome: None, .. }),
        "it was paused"
    );
    assert!(app.info().loaded.is_none(), "the models make room");

    // The run is found after a restart. It ends with a head, which the next load uses.
    drop(app);
    let app = start();
    let run = app.training_outlook(&request).unwrap().run.expect("the paused run");
    assert!(!run.finished && run.tokens == 2_000);
    let TrainEvent::Finished { run, outcome: Some(outcome) } = train_in(&app, &request, false) else {
        panic!("the run did not end with a head")
    };
    assert!(run.finished && run.curve.len() > 1 && run.step == run.total, "{run:?}");
    assert!(outcome.installed && outcome.in_use.is_none());
    let head = folder.path().join("heads/target.gguf");
    assert!(head.is_file());
    let loaded = app.load_models(load_request("target", None)).unwrap();
    assert!(loaded.methods.contains(&Method::Head), "{:?}", loaded.methods);
    assert!(app.training_outlook(&request).unwrap().measured);

    // Other architectures take the same text, and other time. This model is too shallow for EAGLE.
    let eagle = TrainRequest { kind: HeadKind::Eagle, ..request.clone() };
    let outlook = app.training_outlook(&eagle).unwrap();
    let mlp = app.training_outlook(&request).unwrap();
    assert_eq!((outlook.collected, outlook.measured), (mlp.collected, false));
    // Both predicted. Measured times are those of a machine that may be busy.
    assert!(outlook.fit_seconds > before.fit_seconds);
    let error = app.train_drafter(&eagle, Box::new(|_| ())).unwrap_err().to_string();
    assert!(error.contains("reads 3 layers"), "{error}");

    app.discard_training("target").unwrap();
    let after = app.training_outlook(&request).unwrap();
    assert!(after.run.is_none() && after.collected == 0 && head.is_file());
    let few = app.train_drafter(&TrainRequest { tokens: 10, ..request.clone() }, Box::new(|_| ()));
    assert!(few.unwrap_err().to_string().contains("1000 to 10000000"));
    let absent = TrainRequest { target: "absent".into(), ..request };
    assert!(app.train_drafter(&absent, Box::new(|_| ())).is_err());
}
