//! Collected answers on disk: shards of tokens and hidden states in f16, and an index.
//!
//! A shard is written, flushed and renamed before the index names it, so a kill loses at most the answers since the
//! last shard. An answer is a function of target, seed and number, and is simply written again.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use half::f16;
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};
use hunch_model::atomic_file::{self, PART};
use hunch_model::file_lock::FileLock;
use safetensors::tensor::{Dtype, Metadata, TensorView};
use serde::{Deserialize, Serialize};

use super::TrainingTarget;

/// Tokens of a distribution that are kept for a position. The sampling settings of a new conversation keep no more.
pub const LIKELY: usize = 40;
/// Rows of a shard. More are written where an answer is longer.
const SHARD_ROWS: usize = 16_384;
/// Longest time that answers are kept in memory alone.
const FLUSH_EVERY: Duration = Duration::from_secs(60);
/// One answer in this many is held out.
const HELD_OUT_EVERY: u32 = 10;

/// Returns whether an answer is held out of training.
pub fn is_held_out(job: u32) -> bool {
    job % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
}

/// An answer of the target. Row i was computed from the token before `next[i]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CollectedAnswer {
    /// Number of the answer in its run.
    pub job: u32,
    /// Set if every token is the most likely one.
    pub greedy: bool,
    /// Hash of the prompt.
    pub prompt: u64,
    /// Tokens before the answer. Row 0 was computed from the last. Empty if the answer is trained on and has states.
    pub prompt_ids: Vec<TokenId>,
    /// Token after each row.
    pub next: Vec<TokenId>,
    /// States after each tapped layer, divided by their root mean square, `[rows, taps, n_embd]`. Empty in a store of
    /// tokens alone.
    pub states: Vec<f16>,
    /// The distribution that each token of a sampled held-out answer was drawn from, as `[rows, LIKELY]` pairs of
    /// token and probability. Empty for others.
    pub likely: Vec<(TokenId, f32)>,
}

/// A row of an answer. With the token after it, it predicts the row after it.
pub type AnswerRow<'a> = (&'a CollectedAnswer, usize);

/// Entry of an answer in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerEntry {
    job: u32,
    greedy: bool,
    prompt: u64,
    /// Rows; 0 if the prompt was unusable.
    rows: usize,
    shard: usize,
    /// First row in the shard.
    at: usize,
    /// First row of `likely` in the shard.
    likely_at: Option<usize>,
    /// First token of the prompt in the shard, and their number. `None` if the prompt is not kept.
    #[serde(default)]
    prompt_at: Option<(usize, usize)>,
}

/// Model, layers and seed that answers belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DataOrigin {
    name: String,
    fingerprint: String,
    n_embd: usize,
    n_vocab: usize,
    taps: Vec<usize>,
    seed: u64,
}

impl DataOrigin {
    /// Returns whether the prompt of an answer is kept: of held-out answers, and of all where no states replace it.
    fn keeps_prompt(&self, job: u32) -> bool {
        is_held_out(job) || self.taps.is_empty()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ShardIndex {
    version: u32,
    origin: DataOrigin,
    /// Seconds spent on collecting.
    seconds: f64,
    /// Size of each shard, by number.
    shards: BTreeMap<usize, u64>,
    answers: Vec<AnswerEntry>,
}

const VERSION: u32 = 1;

/// The answers of one target and seed.
pub struct ShardStore {
    folder: PathBuf,
    index: ShardIndex,
    /// Answers that are not on disk yet.
    pending: Vec<CollectedAnswer>,
    flushed: Instant,
    /// Most bytes on disk.
    limit: u64,
    open: RefCell<HashMap<usize, OpenShard>>,
    /// Held while the store is open.
    _lock: FileLock,
}

/// Answers to train on, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingSet {
    /// Entries.
    pub answers: Vec<AnswerEntry>,
}

impl TrainingSet {
    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.answers.iter().map(AnswerEntry::rows).sum()
    }
}

impl AnswerEntry {
    /// Returns the number of the answer in its run.
    pub fn job(&self) -> u32 {
        self.job
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of positions that a head can be judged at: each needs the row before it.
    pub fn positions(&self) -> usize {
        self.rows.saturating_sub(1)
    }

    /// Returns whether the entry has its prompt, if prompts are kept, and the likely tokens that acceptance is measured
    /// with.
    fn is_whole(&self, origin: &DataOrigin) -> bool {
        let needs_prompt = self.rows > 0 && origin.keeps_prompt(self.job);
        let needs_likely = self.rows > 0 && is_held_out(self.job) && !self.greedy;
        (!needs_prompt || self.prompt_at.is_some()) && (!needs_likely || self.likely_at.is_some())
    }
}

impl CollectedAnswer {
    /// Returns the number of positions that a head can be judged at.
    pub fn positions(&self) -> usize {
        self.rows_with(1)
    }

    /// Returns the number of rows that have `ahead` rows after them.
    pub fn rows_with(&self, ahead: usize) -> usize {
        self.next.len().saturating_sub(ahead)
    }
}

/// Locks a folder of data for one run.
///
/// # Errors
/// [`Refusal::TrainedElsewhere`] if another program holds it, [`Error::Io`] if it cannot be locked.
pub fn lock(folder: &Path) -> Result<FileLock> {
    Ok(FileLock::of_folder(folder)?.ok_or(Refusal::TrainedElsewhere)?)
}

impl ShardStore {
    /// Opens or creates the store of a target and seed, with the states of the target's taps.
    ///
    /// Shards that are damaged or that no index names are removed, and their answers will be written again.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if another run uses the folder, or it belongs to something else. [`Error::Io`] if it
    /// cannot be read or written.
    pub fn open(folder: &Path, target: &TrainingTarget, seed: u64, limit: u64) -> Result<Self> {
        Self::open_with(folder, target, &target.taps, seed, limit)
    }

    /// Opens or creates a store of tokens alone: prompts and answers without states.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_tokens(folder: &Path, target: &TrainingTarget, seed: u64, limit: u64) -> Result<Self> {
        Self::open_with(folder, target, &[], seed, limit)
    }

    fn open_with(
        folder: &Path,
        target: &TrainingTarget,
        taps: &[usize],
        seed: u64,
        limit: u64,
    ) -> Result<Self> {
        let io = |source| Error::Io { action: "write", path: folder.to_path_buf(), source };
        std::fs::create_dir_all(folder).map_err(io)?;
        let lock = lock(folder)?;
        let origin = DataOrigin {
            name: target.rows.name.clone(),
            fingerprint: hunch_model::low_bit::fingerprint(&target.path)?,
            n_embd: target.rows.n_embd,
            n_vocab: target.rows.n_vocab,
            taps: taps.to_vec(),
            seed,
        };
        let index = match read_index(folder)? {
            Some(index) if index.version == VERSION && index.origin == origin => index,
            Some(_) => {
                return Err(Refusal::OtherTrainingData { folder: folder.into() }.into());
            }
            None => ShardIndex {
                version: VERSION,
                origin,
                seconds: 0.0,
                shards: BTreeMap::new(),
                answers: Vec::new(),
            },
        };
        let mut store = Self {
            folder: folder.into(),
            index,
            pending: Vec::new(),
            flushed: Instant::now(),
            limit,
            open: RefCell::default(),
            _lock: lock,
        };
        store.remove_damaged();
        Ok(store)
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.index.origin.seed
    }

    /// Returns the layers whose states are kept.
    pub fn taps(&self) -> &[usize] {
        &self.index.origin.taps
    }

    /// Returns whether the prompt of an answer is kept.
    pub fn keeps_prompt(&self, job: u32) -> bool {
        self.index.origin.keeps_prompt(job)
    }

    /// Returns the seconds spent on collecting, in all runs.
    pub fn seconds(&self) -> f64 {
        self.index.seconds
    }

    /// Adds to the seconds spent on collecting.
    pub fn add_seconds(&mut self, seconds: f64) {
        self.index.seconds += seconds;
    }

    /// Returns the bytes of all shards and of the answers in memory.
    pub fn bytes(&self) -> u64 {
        let pending: usize = self.pending.iter().map(|answer| 2 * answer.states.len()).sum();
        self.index.shards.values().sum::<u64>() + pending as u64
    }

    /// Returns whether the store has reached its limit.
    pub fn is_full(&self) -> bool {
        self.bytes() >= self.limit
    }

    /// Returns the numbers of all answers that are done.
    pub fn done(&self) -> HashSet<u32> {
        let on_disk = self.index.answers.iter().map(|entry| entry.job);
        on_disk.chain(self.pending.iter().map(|answer| answer.job)).collect()
    }

    /// Adds an answer, and writes a shard if there are enough.
    ///
    /// # Errors
    /// [`Refusal::StatesNotFinite`] if its states are not. As [`flush`](Self::flush).
    pub fn push(&mut self, answer: CollectedAnswer) -> Result<()> {
        if !answer.states.iter().all(|state| state.is_finite()) {
            return Err(Refusal::StatesNotFinite.into());
        }
        self.pending.push(answer);
        let rows: usize = self.pending.iter().map(|answer| answer.next.len()).sum();
        if rows >= SHARD_ROWS || self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the answers in memory.
    ///
    /// # Errors
    /// [`Error::Io`] if the disk is full or fails. Everything written before is intact, and nothing half-written is
    /// left.
    pub fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        let mut index = self.index.clone();
        if !self.pending.is_empty() {
            let number = index.shards.last_key_value().map_or(0, |(last, _)| last + 1);
            let (mut at, mut likely_at, mut prompt_at) = (0, 0, 0);
            for answer in &self.pending {
                index.answers.push(AnswerEntry {
                    job: answer.job,
                    greedy: answer.greedy,
                    prompt: answer.prompt,
                    rows: answer.next.len(),
                    shard: number,
                    at,
                    likely_at: (!answer.likely.is_empty()).then_some(likely_at),
                    prompt_at: (!answer.prompt_ids.is_empty())
                        .then_some((prompt_at, answer.prompt_ids.len())),
                });
                at += answer.next.len();
                likely_at += answer.likely.len() / LIKELY;
                prompt_at += answer.prompt_ids.len();
            }
            let bytes = encode(&self.pending, &index.origin)?;
            atomic_file::write(&self.path(number), &bytes)?;
            index.shards.insert(number, bytes.len() as u64);
        }
        let text = serde_json::to_string(&index).map_err(|error| Error::Internal(error.to_string()))?;
        atomic_file::write(&self.folder.join(INDEX), &text)?;
        self.index = index;
        self.pending.clear();
        Ok(())
    }

    /// Returns the tokens that are ready to train on.
    pub fn training_tokens(&self) -> usize {
        self.training_set(usize::MAX).answers.iter().map(AnswerEntry::rows).sum()
    }

    /// Returns the first answers that have `tokens` tokens together, without held-out ones and without prompts that
    /// were also held out.
    ///
    /// Only answers before the first missing one count, so that a run that was interrupted trains on the same ones.
    pub fn training_set(&self, tokens: usize) -> TrainingSet {
        let held_out: HashSet<u64> =
            self.index.answers.iter().filter(|e| is_held_out(e.job)).map(|e| e.prompt).collect();
        let mut answers = Vec::new();
        let mut sum = 0;
        for entry in self.in_order(|job| !is_held_out(job)) {
            if sum >= tokens {
                break;
            }
            sum += entry.rows;
            if entry.rows > 1 && !held_out.contains(&entry.prompt) {
                answers.push(entry.clone());
            }
        }
        TrainingSet { answers }
    }

    /// Returns the first held-out answers that have `tokens` tokens together.
    pub fn held_out(&self, tokens: usize) -> Vec<AnswerEntry> {
        let mut sum = 0;
        let wanted = |entry: &&AnswerEntry| {
            let more = sum < tokens;
            sum += entry.rows;
            more
        };
        let entries = self.in_order(is_held_out).into_iter();
        entries.take_while(wanted).filter(|entry| entry.rows > 1).cloned().collect()
    }

    /// Returns the rows of the answers before the first missing one.
    pub fn rows_in_order(&self, of: fn(u32) -> bool) -> usize {
        let on_disk = self.index.answers.iter().map(|entry| (entry.job, entry.rows));
        let pending = self.pending.iter().map(|answer| (answer.job, answer.next.len()));
        let rows: BTreeMap<u32, usize> = on_disk.chain(pending).filter(|(job, _)| of(*job)).collect();
        (0..).filter(|&job| of(job)).map_while(|job| rows.get(&job)).sum()
    }

    /// Returns the answers on disk before the first missing one.
    fn in_order(&self, of: fn(u32) -> bool) -> Vec<&AnswerEntry> {
        let entries = self.index.answers.iter().filter(|entry| of(entry.job));
        let by_job: BTreeMap<u32, &AnswerEntry> = entries.map(|entry| (entry.job, entry)).collect();
        (0..).filter(|&job| of(job)).map_while(|job| by_job.get(&job).copied()).collect()
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`Error::Io`] if its shard cannot be read. [`Refusal::DamagedShard`] if the shard is damaged. It is removed, so
    /// that the next run writes its answers again.
    pub fn read(&self, entry: &AnswerEntry) -> Result<CollectedAnswer> {
        let DataOrigin { n_embd, n_vocab, ref taps, .. } = self.index.origin;
        let width = taps.len() * n_embd;
        let &AnswerEntry { job, greedy, prompt, at, rows, likely_at, prompt_at, .. } = entry;
        self.with_shard(entry, |shard| {
            let next = shard.tokens("next", at, rows, n_vocab)?;
            let states = shard.values("states", at, rows, width, f16::from_le_bytes)?;
            // Others are never collected.
            if !states.iter().all(|state| state.is_finite()) {
                return Err(ErrorKind::InvalidData.into());
            }
            let prompt_ids = match prompt_at {
                Some((at, count)) => shard.tokens("prompts", at, count, n_vocab)?,
                None => Vec::new(),
            };
            let likely = match likely_at {
                Some(at) => {
                    let ids = shard.values("likely", at, rows, LIKELY, u32::from_le_bytes)?;
                    let p = shard.values("likely_p", at, rows, LIKELY, f32::from_le_bytes)?;
                    ids.into_iter().zip(p).collect()
                }
                None => Vec::new(),
            };
            Ok(CollectedAnswer { job, greedy, prompt, prompt_ids, next, states, likely })
        })
    }

    /// Reads the tokens of an answer alone.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn next(&self, entry: &AnswerEntry) -> Result<Vec<TokenId>> {
        let n_vocab = self.index.origin.n_vocab;
        self.with_shard(entry, |shard| shard.tokens("next", entry.at, entry.rows, n_vocab))
    }

    fn with_shard<T>(
        &self,
        entry: &AnswerEntry,
        read: impl FnOnce(&mut OpenShard) -> std::io::Result<T>,
    ) -> Result<T> {
        use std::collections::hash_map::Entry;
        let path = self.path(entry.shard);
        let mut open = self.open.borrow_mut();
        let shard = match open.entry(entry.shard) {
            Entry::Occupied(shard) => Ok(shard.into_mut()),
            Entry::Vacant(vacant) => OpenShard::open(&path).map(|shard| vacant.insert(shard)),
        };
        shard.and_then(read).map_err(|source| {
            if !matches!(source.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) {
                return Error::Io { action: "read", path, source };
            }
            open.remove(&entry.shard);
            match std::fs::remove_file(&path) {
                Ok(()) => Refusal::DamagedShard { path }.into(),
                Err(source) => Error::Io { action: "remove the damaged file", path, source },
            }
        })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("shard-{number:05}.safetensors"))
    }

    /// Forgets shards whose file is missing or has another size, and answers whose entry lacks a part. Removes files that
    /// the index does not name.
    fn remove_damaged(&mut self) {
        let folder = self.folder.clone();
        let size = |path: PathBuf| std::fs::metadata(path).map(|meta| meta.len()).ok();
        let path = |number: &usize| folder.join(format!("shard-{number:05}.safetensors"));
        self.index.shards.retain(|number, bytes| size(path(number)) == Some(*bytes));
        let ShardIndex { shards, origin, answers, .. } = &mut self.index;
        answers.retain(|entry| shards.contains_key(&entry.shard) && entry.is_whole(origin));
        let named: HashSet<PathBuf> = shards.keys().map(path).collect();
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_shard = name.starts_with("shard-") && !named.contains(&path);
            if is_shard || name.ends_with(PART) {
                // A file that stays does no harm.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

const INDEX: &str = "index.json";

/// Returns the rows of answers in a folder, and the seconds that they took. `None` without data.
pub fn collected(folder: &Path) -> Option<(usize, f64)> {
    let index = read_index(folder).ok()??;
    Some((index.answers.iter().map(AnswerEntry::rows).sum(), index.seconds))
}

fn read_index(folder: &Path) -> Result<Option<ShardIndex>> {
    let path = folder.join(INDEX);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Io { action: "read", path, source }),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| {
        Refusal::TrainingDataDamaged { path, folder: folder.into(), detail: error.to_string() }.into()
    })
}

/// Returns a shard with these answers.
fn encode(answers: &[CollectedAnswer], origin: &DataOrigin) -> Result<Vec<u8>> {
    fn bytes<const N: usize>(values: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
        values.flatten().collect()
    }
    let rows: usize = answers.iter().map(|answer| answer.next.len()).sum();
    let likely = || answers.iter().flat_map(|answer| &answer.likely);
    let prompts = || answers.iter().flat_map(|answer| &answer.prompt_ids);
    let tensors = [
        (
            "next",
            Dtype::U32,
            vec![rows],
            bytes(answers.iter().flat_map(|a| &a.next).map(|t| t.to_le_bytes())),
        ),
        (
            "states",
            Dtype::F16,
            vec![rows, origin.taps.len(), origin.n_embd],
            bytes(answers.iter().flat_map(|answer| &answer.states).map(|state| state.to_le_bytes())),
        ),
        ("likely", Dtype::U32, vec![likely().count()], bytes(likely().map(|(token, _)| token.to_le_bytes()))),
        ("likely_p", Dtype::F32, vec![likely().count()], bytes(likely().map(|(_, p)| p.to_le_bytes()))),
        ("prompts", Dtype::U32, vec![prompts().count()], bytes(prompts().map(|token| token.to_le_bytes()))),
    ];
    let internal = |error: safetensors::SafeTensorError| Error::Internal(error.to_string());
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        Ok((*name, TensorView::new(*dtype, shape.clone(), data).map_err(internal)?))
    });
    safetensors::serialize(views.collect::<Result<Vec<_>>>()?, None).map_err(internal)
}

/// A shard that is being read.
struct OpenShard {
    file: File,
    header: Metadata,
    /// Offset of the first tensor.
    start: u64,
}

impl OpenShard {
    fn open(path: &Path) -> std::io::Result<Self> {
        let mut file = File::open(path)?;
        let mut len = [0; 8];
        file.read_exact(&mut len)?;
        let len = u64::from_le_bytes(len);
        let size = file.metadata()?.len();
        if len > size {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut header = vec![0; len as usize];
        file.read_exact(&mut header)?;
        let header: Metadata = serde_json::from_slice(&header)?;
        Ok(Self { file, header, start: 8 + len })
    }

    /// Reads tokens.
    fn tokens(
        &mut self,
        name: &str,
        at: usize,
        count: usize,
        n_vocab: usize,
    ) -> std::io::Result<Vec<TokenId>> {
        let tokens = self.values(name, at, count, 1, u32::from_le_bytes)?;
        match tokens.iter().all(|&token| (token as usize) < n_vocab) {
            true => Ok(tokens),
            false => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Reads rows of `width` values.
    fn values<T, const N: usize>(
        &mut self,
        name: &str,
        at: usize,
        rows: usize,
        width: usize,
        parse: fn([u8; N]) -> T,
    ) -> std::io::Result<Vec<T>> {
        let info = self.header.info(name).ok_or(ErrorKind::InvalidData)?;
        let (from, to) = info.data_offsets;
        let bytes = |rows: usize| rows.saturating_mul(width * N);
        let (start, len) = (bytes(at), bytes(rows));
        if start.saturating_add(len) > to - from {
            return Err(ErrorKind::InvalidData.into());
        }
        self.file.seek(SeekFrom::Start(self.start + (from + start) as u64))?;
        let mut bytes = vec![0; len];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|value| parse(*value)).collect())
    }
}
