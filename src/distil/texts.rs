//! Answers of the target that a draft is distilled from: tokens alone, in one file that is replaced as a whole.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file::{self, PART};
use hunch_model::file_lock::FileLock;
use serde::{Deserialize, Serialize};

use crate::train::collect::{Goal, MOST_UNUSABLE, Writer};
use crate::train::shards::{LIKELY, is_held_out};
use crate::train::{Interrupt, Recipe, TrainProgress, TrainWatch, TrainingTarget};

const FILE: &str = "texts.json";
/// Longest time that answers are kept in memory alone.
const FLUSH_EVERY: Duration = Duration::from_secs(60);

/// A prompt and the target's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// Set if every token is the most likely one.
    pub greedy: bool,
    /// Hash of the prompt.
    pub prompt: u64,
    /// Tokens of the prompt, up to the start of the answer. Empty if the prompt was unusable.
    pub prompt_ids: Vec<TokenId>,
    /// Tokens of the answer.
    pub answer: Vec<TokenId>,
    /// The distribution that each token of a sampled held-out answer was drawn from, as pairs of token and probability.
    pub likely: Vec<(TokenId, f32)>,
}

impl Text {
    /// Returns the tokens that a model reads to predict the answer: all but the last.
    pub fn tokens(&self) -> Vec<TokenId> {
        let answer = &self.answer[..self.answer.len().saturating_sub(1)];
        [&self.prompt_ids[..], answer].concat()
    }
}

/// Contents of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Contents {
    /// Fingerprint of the target and seed.
    origin: (String, u64),
    texts: BTreeMap<u32, Text>,
}

/// The answers of a target and seed.
pub struct TextStore {
    folder: PathBuf,
    contents: Contents,
    flushed: Instant,
    /// Held while the store is open.
    _lock: FileLock,
}

impl TextStore {
    /// Opens or creates the store.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if another run uses the folder, it belongs to something else or is damaged.
    /// [`Error::Io`] if it cannot be read or written.
    pub fn open(folder: &Path, target: &TrainingTarget, seed: u64) -> Result<Self> {
        let io = |source| Error::Io { action: "write", path: folder.to_path_buf(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let lock =
            FileLock::acquire(&folder.join("lock"), Duration::ZERO)?.ok_or(Refusal::TrainedElsewhere)?;
        let origin = (hunch_model::low_bit::fingerprint(&target.path)?, seed);
        let path = folder.join(FILE);
        let damaged = |detail: String| Refusal::TrainingDataDamaged {
            path: path.clone(),
            folder: folder.into(),
            detail,
        };
        let contents = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Contents { origin: origin.clone(), texts: BTreeMap::new() }
            }
            Err(source) => return Err(Error::Io { action: "read", path: path.clone(), source }),
            Ok(bytes) => {
                serde_json::from_slice::<Contents>(&bytes).map_err(|error| damaged(error.to_string()))?
            }
        };
        let n_vocab = target.rows.n_vocab;
        let known =
            |text: &Text| text.prompt_ids.iter().chain(&text.answer).all(|&token| (token as usize) < n_vocab);
        if contents.origin != origin || !contents.texts.values().all(known) {
            return Err(Refusal::OtherTrainingData { folder: folder.into() }.into());
        }
        let is_whole = |(&job, text): (&u32, &Text)| {
            let likely = if is_held_out(job) && !text.greedy { text.answer.len() * LIKELY } else { 0 };
            (text.answer.is_empty() || !text.prompt_ids.is_empty()) && text.likely.len() == likely
        };
        if !contents.texts.iter().all(is_whole) {
            return Err(damaged("a text lacks its prompt or its likely tokens".into()).into());
        }
        remove_unfinished(folder);
        Ok(Self { folder: folder.into(), contents, flushed: Instant::now(), _lock: lock })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes answers until there are enough.
    ///
    /// # Errors
    /// If the target fails or the file cannot be written; what was written before is intact. [`Error::Stopped`] after
    /// [`Interrupt::Pause`].
    pub fn collect(
        &mut self,
        target: &TrainingTarget,
        recipe: &Recipe,
        goal: Goal,
        watch: &mut dyn TrainWatch,
    ) -> Result<()> {
        let (of, wanted) = goal.answers(recipe);
        let done: HashSet<u32> = self.contents.texts.keys().copied().collect();
        let mut jobs = (0..).filter(|&job| of(job) && !done.contains(&job));
        if self.tokens(of) >= wanted {
            return Ok(());
        }
        let mut writer = Writer::new(target, &[], recipe, self.contents.origin.1)?;
        let (begun, mut written, mut unusable) = (Instant::now(), 0, 0);
        while self.tokens(of) < wanted {
            match watch.interrupt() {
                Some(Interrupt::Pause) => {
                    self.flush()?;
                    return Err(Error::Stopped);
                }
                Some(Interrupt::Finish) if self.tokens(of) > 0 => break,
                _ => {}
            }
            for (answer, prompt_ids) in writer.step(&mut jobs)? {
                written += answer.next.len();
                unusable = if answer.next.is_empty() { unusable + 1 } else { 0 };
                if unusable >= MOST_UNUSABLE {
                    return Err(Refusal::NoUsablePrompts.into());
                }
                let (greedy, prompt, likely) = (answer.greedy, answer.prompt, answer.likely);
                let text = Text { greedy, prompt, prompt_ids, answer: answer.next, likely };
                self.contents.texts.insert(answer.job, text);
            }
            if self.flushed.elapsed() >= FLUSH_EVERY {
                self.flush()?;
            }
            watch.progress(TrainProgress::Collecting {
                tokens: self.tokens(of) + writer.unfinished(),
                goal: Some(wanted),
                per_second: (written + writer.unfinished()) as f64 / begun.elapsed().as_secs_f64(),
            });
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        let bytes = serde_json::to_vec(&self.contents).map_err(|error| Error::Internal(error.to_string()))?;
        atomic_file::write(&self.folder.join(FILE), bytes)
    }

    /// Returns the tokens of the answers before the first missing one.
    fn tokens(&self, of: fn(u32) -> bool) -> usize {
        self.in_order(of).map(|text| text.answer.len()).sum()
    }

    fn in_order(&self, of: fn(u32) -> bool) -> impl Iterator<Item = &Text> {
        (0..).filter(move |&job| of(job)).map_while(|job| self.contents.texts.get(&job))
    }

    /// Returns the first held-out answers that have `tokens` tokens together.
    pub fn held_out(&self, tokens: usize) -> Vec<&Text> {
        first(self.in_order(is_held_out), tokens).filter(|text| !text.answer.is_empty()).collect()
    }

    /// Returns the first answers that have `tokens` tokens together, without prompts that were also held out.
    pub fn training(&self, tokens: usize) -> Vec<&Text> {
        let held_out: HashSet<u64> = self.in_order(is_held_out).map(|text| text.prompt).collect();
        let usable = |text: &&Text| !text.answer.is_empty() && !held_out.contains(&text.prompt);
        first(self.in_order(|job| !is_held_out(job)), tokens).filter(usable).collect()
    }
}

/// Removes files that a killed run was writing. One that stays does no harm.
fn remove_unfinished(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(PART) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Takes texts until they have `tokens` tokens together.
fn first<'a>(texts: impl Iterator<Item = &'a Text>, tokens: usize) -> impl Iterator<Item = &'a Text> {
    let mut sum = 0;
    texts.take_while(move |text| {
        let more = sum < tokens;
        sum += text.answer.len();
        more
    })
}
