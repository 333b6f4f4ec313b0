//! Loading: opens and checks model files first, then reads them into memory with progress. Using the
//! loaded models is the job of [`Models`](super::Models).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::PromptEncoder;
use super::placement::{self, Placed};
use hunch_core::model::LanguageModel;
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::retrieval::TextIndex;
use hunch_error::{Error, Refusal, Result};
use hunch_model::decoder::{Decoder, WarmTimes};
use hunch_model::device::{Compute, DraftDevice};
use hunch_model::heads::{self, UsualHead};
use hunch_model::spec::ModelSpec;
use hunch_model::split;
use hunch_model::text::{Tokenizer, Translation};
use hunch_model::translated::Translated;
use hunch_model::weights::WeightFile;

/// Models to load, and settings.
#[derive(Clone, Default)]
pub struct LoadPlan {
    /// Path of the target.
    pub target: PathBuf,
    /// Path of the draft model.
    pub draft: Option<PathBuf>,
    /// File or folder of the head that drafts for the target. `None` takes the newest one in `heads` that was trained
    /// for the target, else the MTP layer in the target's file, else the shipped one.
    pub head: Option<PathBuf>,
    /// Folder of trained heads.
    pub heads: Option<PathBuf>,
    /// Maximum context in tokens. Models made for less keep their own limit.
    pub context: Option<usize>,
    /// Device of the draft model, if the target is on a GPU.
    pub draft_device: DraftDevice,
    /// Texts to copy from, in tokens of the target.
    pub texts: Option<Arc<TextIndex>>,
    /// Progress callback. If it breaks, loading fails with [`Error::Stopped`].
    pub progress: Option<LoadWatch>,
}

impl LoadPlan {
    /// Creates the plan of a target alone, with its full context.
    pub fn of(target: &Path) -> Self {
        Self { target: target.into(), ..Self::default() }
    }

    /// Returns the plan without a draft model or a head whose file no longer exists: the target answers without it.
    #[must_use]
    pub fn without_missing_drafters(&self) -> Self {
        let existing = |drafter: &Option<PathBuf>| drafter.clone().filter(|path| path.exists());
        Self { draft: existing(&self.draft), head: existing(&self.head), ..self.clone() }
    }

    /// Most tokens of the context to allocate.
    fn max_context(&self) -> usize {
        self.context.unwrap_or(usize::MAX)
    }
}

/// Callback for loading progress.
pub type LoadWatch = Arc<dyn Fn(LoadStep<'_>) -> ControlFlow<()> + Send + Sync>;

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadStep<'a> {
    /// File being read.
    pub path: &'a Path,
    /// Bytes of weights read so far.
    pub done: u64,
    /// Bytes of weights in total.
    pub total: u64,
}

/// Origin of loaded models: files with size and modification time, the context limit, and texts to copy from.
#[derive(Clone)]
pub(super) struct Origin {
    /// Files of the target: path, bytes, modification time.
    target: Vec<(PathBuf, u64, Option<SystemTime>)>,
    draft: Option<PathBuf>,
    head: Option<PathBuf>,
    heads: Option<PathBuf>,
    context: usize,
    draft_device: DraftDevice,
    texts: Option<Arc<TextIndex>>,
}

impl Origin {
    /// Returns the identity of a plan's files in their current state.
    pub(super) fn of(plan: &LoadPlan) -> Result<Self> {
        let stat = |path: PathBuf| {
            let file = std::fs::metadata(&path).map_err(|source| Error::Io {
                action: "read",
                path: path.clone(),
                source,
            })?;
            Ok((path, file.len(), file.modified().ok()))
        };
        let target = split::files(&plan.target).into_iter().map(stat).collect::<Result<_>>()?;
        let LoadPlan { draft, head, heads, draft_device, texts, .. } = plan.clone();
        Ok(Self { target, draft, head, heads, context: plan.max_context(), draft_device, texts })
    }

    pub(super) fn has_target_of(&self, other: &Self) -> bool {
        (&self.target, &self.head, self.context) == (&other.target, &other.head, other.context)
    }

    /// Returns the identity with another head. `None` is the usual one.
    pub(super) fn with_head(&self, head: Option<&Path>) -> Self {
        Self { head: head.map(Into::into), ..self.clone() }
    }

    /// Returns the identity with other texts.
    pub(super) fn with_texts(&self, texts: Option<Arc<TextIndex>>) -> Self {
        Self { texts, ..self.clone() }
    }

    pub(super) fn plan(&self) -> LoadPlan {
        let target = self.target.first().map(|(path, ..)| path.clone()).unwrap_or_default();
        let Self { draft, head, heads, context, draft_device, texts, .. } = self.clone();
        let context = Some(context);
        LoadPlan { target, draft, head, heads, context, draft_device, texts, progress: None }
    }
}

/// Opened files of a plan, checked against each other. No weights are in memory yet.
pub struct OpenedModels {
    plan: LoadPlan,
    origin: Origin,
    target: WeightFile,
    draft: Option<OpenedDraft>,
    tokenizer: Arc<Tokenizer>,
}

/// Opened file of a draft model, checked against its target.
struct OpenedDraft {
    file: WeightFile,
    /// Translation of tokens, if the vocabularies differ.
    translation: Option<Arc<Translation>>,
}

/// Loaded models.
pub(super) struct InMemory {
    pub(super) origin: Origin,
    pub(super) target: Decoder,
    /// Times of target passes after the warm-up. `None` if it failed.
    pub(super) warm: Option<WarmTimes>,
    pub(super) draft: Option<DraftInMemory>,
    pub(super) head: UsualHead,
}

/// A loaded draft model.
pub(super) struct DraftInMemory {
    pub(super) model: DraftModel,
    /// Replacements of kernels of its device.
    pub(super) device_note: Option<String>,
    /// The device that was chosen and the reason, if the target is on a GPU.
    pub(super) placement: Option<String>,
    /// Expected time of a pass of one row, in milliseconds.
    pub(super) expected_ms: Option<f64>,
}

impl DraftInMemory {
    /// Reads a draft model onto a device. If the target is on a GPU, the draft may run on the CPU.
    fn read(
        draft: OpenedDraft,
        tracker: &LoadTracker,
        device: DraftDevice,
        compute: &Compute,
    ) -> Result<Self> {
        let OpenedDraft { file, translation } = draft;
        // A device would choose tokens that the target does not have.
        let chains = translation.is_none();
        // A text takes more tokens of another vocabulary. Memory is taken as it is needed.
        let context = if translation.is_some() { tracker.context.saturating_mul(2) } else { tracker.context };
        let read = |compute: &Compute| tracker.read(file.clone(), compute, context);
        let Placed { model, token_ms, note } =
            placement::place(device, (file.weight_bytes(), chains), compute, &read)?;
        warm_up(&model);
        let device_note = device_note(&model);
        let predicted = || Some(model.predicted_ms(compute, 1)?.first()?.1);
        let expected_ms = token_ms.or_else(predicted);
        let model: Box<dyn LanguageModel> = match translation {
            None => Box::new(model),
            Some(translation) => Box::new(Translated::new(Box::new(model), translation)),
        };
        Ok(Self { model: DraftModel::new(model)?, device_note, placement: note, expected_ms })
    }
}

/// Warms a model up ([`Decoder::warm_up`]). A failure is logged, and shows again when the model is used.
pub(super) fn warm_up(model: &Decoder) {
    logged(model, model.warm_up());
}

/// As [`warm_up`], and times passes of the model after that. `None` if it failed.
fn warm_times(model: &Decoder) -> Option<WarmTimes> {
    logged(model, model.warm_up().and_then(|()| model.time_passes()))
}

fn logged<T>(model: &Decoder, warmed_up: Result<T>) -> Option<T> {
    let warned = |error: &Error| tracing::warn!("{} could not be warmed up. {error}", model.info().name);
    warmed_up.inspect_err(warned).ok()
}

/// Returns what replaces kernels of the device for a model, and logs it.
pub(super) fn device_note(model: &Decoder) -> Option<String> {
    let note = model.execution().note(&model.info().name);
    if let Some(note) = &note {
        note.lines().for_each(|line| tracing::warn!("{line}"));
    }
    note
}

impl PromptEncoder {
    /// Reads the encoder of a plan's target from its header, and the context length in tokens.
    ///
    /// # Errors
    /// If the file is damaged or unsupported.
    pub fn open(plan: &LoadPlan) -> Result<(Self, usize)> {
        let file = WeightFile::open(&plan.target)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(file.gguf())?);
        let context = ModelSpec::from_gguf(file.gguf())?.with_context(plan.max_context()).context_length;
        Ok((Self::new(tokenizer, context), context))
    }
}

impl OpenedModels {
    /// Opens and checks the files of a plan.
    ///
    /// # Errors
    /// If a file is damaged, the vocabularies share too little, or the draft model is larger than the target.
    pub fn open(plan: &LoadPlan) -> Result<Self> {
        let origin = Origin::of(plan)?;
        let target = WeightFile::open(&plan.target)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(target.gguf())?);
        let draft = plan.draft.as_deref().map(|path| open_draft(path, target.weight_bytes(), &tokenizer));
        Ok(Self { plan: plan.clone(), origin, target, draft: draft.transpose()?, tokenizer })
    }

    /// Returns the target's tokeniser.
    pub(super) fn tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Reads the weights into memory.
    pub(super) fn read(self, compute: &Compute) -> Result<InMemory> {
        let Self { plan, origin, target, draft, .. } = self;
        let reads = |draft: &OpenedDraft| {
            let bytes = draft.file.weight_bytes();
            bytes * placement::reads(plan.draft_device, bytes, compute)
        };
        let tracker = LoadTracker::of(&plan, target.weight_bytes() + draft.as_ref().map_or(0, reads));
        // The draft model is small, so reading it first reveals its errors early.
        let draft = draft
            .map(|draft| DraftInMemory::read(draft, &tracker, plan.draft_device, compute))
            .transpose()?;
        let decoder = tracker.read(target.clone(), compute, tracker.context)?;
        let warm = warm_times(&decoder);
        let head = match &plan.head {
            Some(path) => {
                UsualHead { head: Some(heads::open(path, &target, &decoder, compute)?), note: None }
            }
            None => heads::usual(plan.heads.as_deref(), &target, &decoder, compute)?,
        };
        Ok(InMemory { origin, target: decoder, warm, draft, head })
    }
}

/// Loads the draft model of a plan, if it has one, for a target already in memory.
pub(super) fn read_draft(
    plan: &LoadPlan,
    target_bytes: usize,
    tokenizer: &Tokenizer,
    compute: &Compute,
) -> Result<Option<DraftInMemory>> {
    let Some(path) = plan.draft.as_deref() else { return Ok(None) };
    let draft = open_draft(path, target_bytes, tokenizer)?;
    let bytes = draft.file.weight_bytes();
    let tracker = LoadTracker::of(plan, bytes * placement::reads(plan.draft_device, bytes, compute));
    DraftInMemory::read(draft, &tracker, plan.draft_device, compute).map(Some)
}

/// Opens and checks a draft model for a target with `target_bytes` of weights.
fn open_draft(path: &Path, target_bytes: usize, tokenizer: &Tokenizer) -> Result<OpenedDraft> {
    let file = WeightFile::open(path)?;
    if file.weight_bytes() > target_bytes {
        return Err(Refusal::DraftTooLarge.into());
    }
    let translation = Translation::new(tokenizer, &Tokenizer::from_gguf(file.gguf())?)?;
    if let Some(translation) = &translation {
        let shared = translation.shared().len();
        tracing::info!(
            "The draft model has another tokeniser. It drafts the {shared} tokens that both have."
        );
    }
    Ok(OpenedDraft { file, translation: translation.map(Arc::new) })
}

/// Progress and cancellation across several files.
struct LoadTracker {
    progress: Option<LoadWatch>,
    context: usize,
    done: Arc<AtomicU64>,
    total: u64,
}

impl LoadTracker {
    fn of(plan: &LoadPlan, total: usize) -> Self {
        let context = plan.max_context();
        Self { progress: plan.progress.clone(), context, done: Arc::default(), total: total as u64 }
    }

    fn read(&self, file: WeightFile, compute: &Compute, context: usize) -> Result<Decoder> {
        let Some(progress) = self.progress.clone() else {
            return Decoder::load_for(&file, compute, context);
        };
        let (done, total, path) = (self.done.clone(), self.total, file.gguf().path.clone());
        let watched = file.with_read_callback(Arc::new(move |bytes| {
            let done = done.fetch_add(bytes as u64, Ordering::Relaxed);
            let step = LoadStep { path: &path, done: done.min(total), total };
            if progress(step).is_break() { Err(Error::Stopped) } else { Ok(()) }
        }));
        Decoder::load_for(&watched, compute, context)
    }
}
