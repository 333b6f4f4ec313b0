//! Services around training: predicts time, disk and memory, compares the new head with the one in use, and installs
//! it. Training itself belongs to [`crate::train`].

use std::path::{Path, PathBuf};

use hunch_core::chat::Role;
use hunch_error::{Error, Result};
use hunch_model::heads;
use hunch_model::spec::ModelSpec;

use super::texts::{TextSource, conversation_messages};
use crate::train::acceptance::{self, DraftAcceptance};
use crate::train::export;
use crate::train::kind::HeadKind;
use crate::train::prompts;
use crate::train::shards::{self, ShardStore, collected};
use crate::train::target::layers;
use crate::train::{self, Recipe, TrainPlan, TrainReport, TrainWatch, TrainingTarget};

/// Speed of training that is assumed for a CPU thread before any was measured, in operations a second. The default model
/// reached 22e9 on two idle cores (Zen 3), and 9e9 next to other programs.
const THREAD_SPEED: f64 = 15e9;
/// Rows that 16 lanes write in the time in which plain decoding writes one. The default model collected 712 tokens a
/// second and decoded 433.
const LANES: f64 = 2.5;
/// Share of the rows of passes that write answers. The others write prompts. The default model collected 712 tokens a
/// second, and its passes of 16 rows take 15.0 ms.
const ANSWER_SHARE: f64 = 0.67;
/// Tokens a second that are assumed for a target that never ran here.
const DECODING: f64 = 15.0;
/// Rows of an earlier run from which its speed is taken. Fewer are mostly start-up.
const ENOUGH_ROWS: usize = 1_000;
/// Copies of the weights while a step runs, in 32 bits: weights, gradients, two moments, best weights, one temporary.
const WEIGHT_COPIES: f64 = 6.0;
/// Copies of the weights in files, in 32 bits: a checkpoint has four, and is complete before the one before it goes. Two
/// heads in 16 bits or less are another one.
const STORED_COPIES: f64 = 9.0;
/// Copies of the logits of a batch: scores and targets, their softmaxes and logarithms.
const LOGIT_COPIES: f64 = 6.0;
/// Operations for each weight and position: a product and a sum, forward and twice backward.
const OPERATIONS: f64 = 6.0;

/// Reads given prompts: the user's messages in all conversations, or a file in JSON Lines ([`prompts::read`]).
/// `conversations` is the file of conversations.
///
/// # Errors
/// If a file cannot be read, or there is no prompt.
pub fn read_prompts(source: &TextSource, conversations: &Path) -> Result<Vec<String>> {
    let path = match source {
        TextSource::Path(path) => return prompts::read(path),
        TextSource::MyConversations => conversations,
    };
    let messages = conversation_messages(path)?.into_iter().filter(|message| message.role == Role::User);
    let none = "There are no conversations to take prompts from. Ask something in the window first.";
    let prompts = messages.map(|message| message.content).collect();
    prompts::usable(prompts).ok_or_else(|| Error::invalid(none))
}

/// Returns the folder of data whose prompts are given: `folder` with their fingerprint.
pub fn folder_of_prompts(folder: &Path, given: &[String]) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_os_string();
    name.push(format!("-prompts-{:016x}", prompts::fingerprint(given)));
    folder.with_file_name(name)
}

/// Result of a run, and what became of the head.
pub struct Trained {
    /// Figures of the run.
    pub report: TrainReport,
    /// Acceptance of the head that was in use, if there was one that could be measured.
    pub in_use: Option<DraftAcceptance>,
    /// File or folder of the new head.
    pub place: PathBuf,
    /// True if decoding uses the new head from the next load on.
    pub installed: bool,
}

/// Folders of a training run.
#[derive(Clone, Copy, Debug)]
pub struct TrainFolders<'a> {
    /// Text and checkpoints of the run.
    pub run: &'a Path,
    /// Trained heads, where decoding finds them.
    pub heads: &'a Path,
}

/// Trains a head and puts it where decoding finds it, unless the head in use accepts as many tokens. With `out` the
/// head is only written there.
///
/// # Errors
/// As [`train::train`].
pub fn train(
    target: &TrainingTarget,
    folders: TrainFolders<'_>,
    plan: &TrainPlan,
    out: Option<&Path>,
    watch: &mut dyn TrainWatch,
) -> Result<Trained> {
    // A worse head must not take the place of a better one unasked.
    let kind = plan.recipe.kind;
    let name = if kind == HeadKind::Eagle { "head".into() } else { kind.file("head.gguf") };
    let fresh = out.map_or_else(|| folders.run.join(name), Path::to_path_buf);
    let place =
        place_for(kind, folders.heads, &hunch_library::short_name(&target.path), &target.fingerprint()?);
    if out.is_none() {
        export::check_place(kind, &place)?;
    }
    let report = train::train(target, folders.run, plan, &fresh, watch)?;
    if out.is_some() {
        return Ok(Trained { report, in_use: None, place: fresh, installed: false });
    }
    let in_use = measure_head_in_use(target, folders, plan, watch)?;
    let used_more = |used: &DraftAcceptance| used.tokens_a_pass() >= report.trained.tokens_a_pass();
    if in_use.as_ref().is_some_and(used_more) {
        return Ok(Trained { report, in_use, place: fresh, installed: false });
    }
    // It may have changed in the meantime.
    export::check_place(kind, &place)?;
    export::copy(kind, &fresh, &place)?;
    Ok(Trained { report, in_use, place, installed: true })
}

/// Returns the place of a head in the folder of heads, named after its target. The head of another model of that name
/// keeps its place.
fn place_for(kind: HeadKind, heads: &Path, target_name: &str, fingerprint: &str) -> PathBuf {
    let ending = if kind == HeadKind::Eagle { "-eagle" } else { ".gguf" };
    let numbers = std::iter::once(String::new()).chain((2..).map(|number| format!("-{number}")));
    let mut places = numbers.map(|number| heads.join(format!("{target_name}{number}{ending}")));
    let is_of_other = |place: &PathBuf| heads::trained_for(place).is_some_and(|of| of != fingerprint);
    places.find(|place| !is_of_other(place)).expect("names never end")
}

/// Measures the head that decoding uses now.
fn measure_head_in_use(
    target: &TrainingTarget,
    folders: TrainFolders<'_>,
    plan: &TrainPlan,
    watch: &dyn TrainWatch,
) -> Result<Option<DraftAcceptance>> {
    let Some(mut head) = target.usual_head(folders.heads)? else { return Ok(None) };
    if acceptance::check_layers(target, &head).is_err() {
        return Ok(None);
    }
    let store = ShardStore::open(folders.run, target, plan.seed, plan.disk)?;
    Ok(Some(acceptance::head(target, &store, &mut head, &plan.recipe.comparable(), &|| {
        train::is_paused(watch)
    })?))
}

/// Predicted needs of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainNeeds {
    /// Bytes on disk: collected text, the checkpoint and the head.
    pub disk: u64,
    /// Bytes of it that are collected already.
    pub held: u64,
    /// Bytes of memory in addition to the target.
    pub memory: u64,
    /// Seconds of collecting that are left.
    pub collecting: f64,
    /// Seconds of training that are left.
    pub fitting: f64,
    /// True if both times follow from measurements on this machine.
    pub measured: bool,
}

/// Measured speeds that a prediction uses where they exist.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speeds {
    /// Tokens a second of the target alone.
    pub decoding: Option<f64>,
    /// Milliseconds of a pass with as many rows as there are lanes.
    pub pass_ms: Option<f64>,
    /// Seconds of a gradient step, in an earlier run.
    pub step: Option<f64>,
    /// CPU threads.
    pub threads: usize,
}

/// Size of a head that is trained, as far as memory and time depend on it.
struct HeadSize {
    /// Weights that are trained.
    weights: f64,
    /// Weights of the shortlist that are used as they are.
    frozen: f64,
    /// Passes of the head for a batch.
    passes: f64,
}

impl HeadSize {
    /// Returns the size of a head with `taps` states of the target, each of width `n`.
    fn of(recipe: &Recipe, n: f64, taps: f64, shortlist: f64) -> Self {
        let ff = recipe.feed_forward.map_or(n * 4.0 / 3.0, |ff| ff as f64);
        let depth = recipe.depth as f64;
        match recipe.kind {
            HeadKind::Mlp => {
                Self { weights: n * (taps + 1.0) * n + 3.0 * n * ff, frozen: n * shortlist, passes: 1.0 }
            }
            HeadKind::Medusa => Self { weights: depth * (n * n + n * shortlist), frozen: 0.0, passes: 1.0 },
            // fc reads three states, and attention a state and an embedding.
            HeadKind::Eagle => Self {
                weights: (3.0 + 3.0 * 2.0 + 1.0) * n * n + 3.0 * n * ff + n * shortlist,
                frozen: 0.0,
                passes: depth,
            },
        }
    }

    /// Returns the seconds of a gradient step of a batch at the assumed speed of this many threads.
    fn assumed_step(&self, batch: usize, threads: usize) -> f64 {
        let operations = batch as f64 * OPERATIONS * self.passes * (self.weights + self.frozen);
        operations / (THREAD_SPEED * threads.max(1) as f64)
    }
}

/// Returns the measured number of rows that are collected in a second: in an earlier run, else computed from the time
/// of passes. `None` if neither was measured.
fn measured_rows_a_second(earlier: Option<(usize, f64)>, parallel: usize, speeds: Speeds) -> Option<f64> {
    let earlier = earlier.filter(|&(rows, seconds)| rows > ENOUGH_ROWS && seconds > 0.0);
    let by_run = earlier.map(|(rows, seconds)| rows as f64 / seconds);
    by_run.or_else(|| speeds.pass_ms.map(|ms| ANSWER_SHARE * parallel as f64 * 1_000.0 / ms))
}

/// Predicts the needs of training on `tokens` tokens. Data that are in `folder` need not be collected again.
pub fn needs(spec: &ModelSpec, recipe: &Recipe, tokens: u64, folder: &Path, speeds: Speeds) -> TrainNeeds {
    let n = spec.n_embd as f64;
    let taps = layers(spec.n_layer).len() as f64;
    let shortlist = recipe.shortlist.min(spec.n_vocab) as f64;
    let size = HeadSize::of(recipe, n, taps, shortlist);

    let rows = (tokens + recipe.held_out as u64) as f64;
    let row_bytes = taps * n * 2.0 + 4.0;
    let before = collected(folder);
    let done = before.map_or(0, |(rows, _)| rows) as f64;
    let measured_rate = measured_rows_a_second(before, recipe.parallel, speeds);
    let assumed_rate = ANSWER_SHARE * LANES * speeds.decoding.unwrap_or(DECODING);

    let steps = tokens as f64 * recipe.epochs as f64 / recipe.batch as f64;
    let step = speeds.step.unwrap_or_else(|| size.assumed_step(recipe.batch, speeds.threads));
    let logits = (recipe.depth * recipe.batch) as f64 * shortlist;
    let floats = WEIGHT_COPIES * size.weights + n * shortlist + LOGIT_COPIES * logits;
    TrainNeeds {
        disk: (rows * row_bytes + STORED_COPIES * 4.0 * size.weights) as u64,
        held: (done * row_bytes) as u64,
        memory: (4.0 * floats) as u64,
        collecting: (rows - done).max(0.0) / measured_rate.unwrap_or(assumed_rate).max(1e-3),
        fitting: steps * step,
        measured: measured_rate.is_some() && speeds.step.is_some(),
    }
}

/// Removes the data and checkpoints of a target. Heads that are in use stay.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be removed, [`Refusal::TrainedElsewhere`] while another program trains with it.
pub fn discard(folder: &Path) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    // Held until the folder is gone, so that no run begins in it.
    let _lock = shards::lock(folder)?;
    match std::fs::remove_dir_all(folder) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path: folder.into(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn head_of_another_model_of_the_same_name_keeps_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let place = |fingerprint| place_for(HeadKind::Eagle, folder.path(), "model", fingerprint);
        let named = |name: &str| folder.path().join(name);
        assert_eq!(place("first"), named("model-eagle"));
        let trained = |name: &str, target: &str| {
            std::fs::create_dir(named(name)).unwrap();
            let config = serde_json::json!({ heads::TARGET_IN_CONFIG: target });
            std::fs::write(named(name).join("config.json"), config.to_string()).unwrap();
        };
        trained("model-eagle", "first");
        assert_eq!((place("first"), place("second")), (named("model-eagle"), named("model-2-eagle")));
        trained("model-2-eagle", "second");
        assert_eq!((place("second"), place("third")), (named("model-2-eagle"), named("model-3-eagle")));
        assert_eq!(place_for(HeadKind::Mlp, folder.path(), "model", "third"), named("model.gguf"));
    }

    #[test]
    fn prompts_come_from_all_conversations_once_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("conversations.db");
        let read = || read_prompts(&TextSource::MyConversations, &path);
        assert!(read().unwrap_err().to_string().contains("no conversations"));
        let store = Store::open(&path).unwrap();
        for questions in [&["Why?", "How?"][..], &["Why?", "When?"]] {
            let conversation = store.create_conversation(1).unwrap();
            questions.iter().fold(None, |parent, question| {
                Some(store.add_question(conversation, parent, question, 1).unwrap())
            });
        }
        drop(store);
        let mut prompts = read().unwrap();
        prompts.sort();
        assert_eq!(prompts, ["How?", "When?", "Why?"]);
        let folder = Path::new("drafters/model-1-seed-1");
        assert!(
            folder_of_prompts(folder, &prompts)
                .to_str()
                .unwrap()
                .starts_with("drafters/model-1-seed-1-prompts-")
        );
        assert_ne!(folder_of_prompts(folder, &prompts), folder_of_prompts(folder, &prompts[1..]));
    }
}
