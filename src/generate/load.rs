//! From model files to models in memory: what is to be loaded, opening and checking the files first, then
//! reading them under a watch. What the models are then is the business of [`Models`](super::Models).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use hunch_core::propose::draft_model::DraftModel;
use hunch_error::{Error, Result};
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::split;
use hunch_model::text::{Tokenizer, check_vocabularies};
use hunch_model::weights::WeightFile;

/// What to bring into memory, and how.
#[derive(Clone, Default)]
pub struct LoadPlan {
    /// File of the target.
    pub target: PathBuf,
    /// File of the draft model.
    pub draft: Option<PathBuf>,
    /// Most tokens of a conversation; what the models were made for, where that is less.
    pub context: Option<usize>,
    /// Hears how far it is, and may break: then loading ends with [`Error::Stopped`].
    pub progress: Option<LoadWatch>,
}

impl LoadPlan {
    /// A target alone, for conversations as long as it was made for.
    pub fn of(target: &Path) -> Self {
        Self { target: target.into(), ..Self::default() }
    }

    fn longest(&self) -> usize {
        self.context.unwrap_or(usize::MAX)
    }
}

/// Hears how far loading is.
pub type LoadWatch = Arc<dyn Fn(LoadStep<'_>) -> ControlFlow<()> + Send + Sync>;

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadStep<'a> {
    /// File of the model that is being read.
    pub path: &'a Path,
    /// Bytes of weights that were read before.
    pub done: u64,
    /// Bytes of all weights that are to be read.
    pub total: u64,
}

/// Of which files models were loaded, as those were then, and for how long conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Every file of the target: path, bytes, time of the last change.
    target: Vec<(PathBuf, u64, Option<SystemTime>)>,
    draft: Option<PathBuf>,
    context: usize,
}

impl Origin {
    /// Of a plan's files as they are now.
    pub(super) fn of(plan: &LoadPlan) -> Result<Self> {
        let seen = |path: PathBuf| {
            let file = std::fs::metadata(&path).map_err(|source| Error::Io {
                action: "read",
                path: path.clone(),
                source,
            })?;
            Ok((path, file.len(), file.modified().ok()))
        };
        let target = split::files(&plan.target).into_iter().map(seen).collect::<Result<_>>()?;
        Ok(Self { target, draft: plan.draft.clone(), context: plan.longest() })
    }

    pub(super) fn has_target_of(&self, other: &Self) -> bool {
        (&self.target, self.context) == (&other.target, other.context)
    }

    pub(super) fn plan(&self) -> LoadPlan {
        let target = self.target.first().map(|(path, ..)| path.clone()).unwrap_or_default();
        LoadPlan { target, draft: self.draft.clone(), context: Some(self.context), progress: None }
    }
}

/// The files of a plan, opened, and found to go together. Nothing of them is in memory yet.
pub struct OpenedModels {
    plan: LoadPlan,
    origin: Origin,
    target: WeightFile,
    draft: Option<WeightFile>,
    tokenizer: Arc<Tokenizer>,
}

/// What was read.
pub(super) struct InMemory {
    pub(super) origin: Origin,
    pub(super) target: Decoder,
    pub(super) draft: Option<DraftModel>,
}

impl OpenedModels {
    /// Opens the files of a plan.
    ///
    /// # Errors
    /// When a file is unsound, the vocabularies differ, or the draft is larger than the target.
    pub fn open(plan: &LoadPlan) -> Result<Self> {
        let origin = Origin::of(plan)?;
        let target = WeightFile::open(&plan.target)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(target.gguf())?);
        let draft = plan.draft.as_deref().map(|path| open_draft(path, target.weight_bytes(), &tokenizer));
        Ok(Self { plan: plan.clone(), origin, target, draft: draft.transpose()?, tokenizer })
    }

    /// The target's tokeniser.
    pub(super) fn tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Reads them.
    pub(super) fn read(self, compute: &Compute) -> Result<InMemory> {
        let Self { plan, origin, target, draft, .. } = self;
        let total = target.weight_bytes() + draft.as_ref().map_or(0, WeightFile::weight_bytes);
        let watch = Watch::of(&plan, total);
        // The draft first: it is small, so that what is wrong with it is known soon.
        let draft = draft.map(|file| watch.read(file, compute).and_then(drafting)).transpose()?;
        Ok(InMemory { origin, target: watch.read(target, compute)?, draft })
    }
}

/// Reads the draft model of a plan, if it has one, for a target that is in memory.
pub(super) fn read_draft(
    plan: &LoadPlan,
    target_bytes: usize,
    tokenizer: &Tokenizer,
    compute: &Compute,
) -> Result<Option<DraftModel>> {
    let Some(path) = plan.draft.as_deref() else { return Ok(None) };
    let file = open_draft(path, target_bytes, tokenizer)?;
    Watch::of(plan, file.weight_bytes()).read(file, compute).and_then(drafting).map(Some)
}

fn drafting(model: Decoder) -> Result<DraftModel> {
    Ok(DraftModel::new(Box::new(model))?)
}

/// A draft's file, for a target with so many bytes of weights.
fn open_draft(path: &Path, target_bytes: usize, tokenizer: &Tokenizer) -> Result<WeightFile> {
    let file = WeightFile::open(path)?;
    check_vocabularies(tokenizer, &Tokenizer::from_gguf(file.gguf())?)?;
    if file.weight_bytes() > target_bytes {
        return Err(Error::invalid(
            "The draft is larger than the target, so it cannot save time. Swap the two, or choose a smaller draft.",
        ));
    }
    Ok(file)
}

/// Counts the bytes of files that are read one after the other.
struct Watch {
    progress: Option<LoadWatch>,
    context: usize,
    done: Arc<AtomicU64>,
    total: u64,
}

impl Watch {
    fn of(plan: &LoadPlan, total: usize) -> Self {
        let context = plan.longest();
        Self { progress: plan.progress.clone(), context, done: Arc::default(), total: total as u64 }
    }

    fn read(&self, file: WeightFile, compute: &Compute) -> Result<Decoder> {
        let Some(progress) = self.progress.clone() else {
            return Decoder::load_for(&file, compute, self.context);
        };
        let (done, total, path) = (self.done.clone(), self.total, file.gguf().path.clone());
        let watched = file.with_read_callback(Arc::new(move |bytes| {
            let done = done.fetch_add(bytes as u64, Ordering::Relaxed);
            let step = LoadStep { path: &path, done: done.min(total), total };
            if progress(step).is_break() { Err(Error::Stopped) } else { Ok(()) }
        }));
        Decoder::load_for(&watched, compute, self.context)
    }
}
