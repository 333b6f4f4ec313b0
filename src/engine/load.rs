//! Loads models for the engine, and describes them. The engine's thread calls it.

use std::sync::Arc;

use hunch_core::chat::Thinking;
use hunch_core::method::Method;
use hunch_core::model::ModelMemory;
use hunch_error::{Error, Result};
use hunch_model::device::Compute;
use hunch_model::text::Tokenizer;

use crate::generate::{LoadPlan, Models, OpenedModels, PromptEncoder};

/// Description of the loaded models.
#[derive(Clone)]
pub struct Loaded {
    /// Encoder of prompts for the target.
    pub encoder: Arc<PromptEncoder>,
    /// Plan that loads the models again.
    pub plan: LoadPlan,
    /// Tokeniser of the target.
    pub tokenizer: Arc<Tokenizer>,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if one was loaded.
    pub draft: Option<String>,
    /// Bytes of weights read by one pass of the target, and of the draft model.
    pub read_by_a_pass: (u64, Option<u64>),
    /// Context length, in tokens.
    pub context: usize,
    /// Methods that they can run, plain first, then the most recommended ones.
    pub methods: Vec<Method>,
    /// Warning about the target's chat template.
    pub template_note: Option<String>,
    /// Why they do not run on the kernels of their device.
    pub device_note: Option<String>,
    /// Why the target's own MTP layer does not draft.
    pub head_note: Option<String>,
    /// Choices of reasoning that the target's chat template has.
    pub thinking: Vec<Thinking>,
    /// The device of the draft model, if the target is on a GPU.
    pub draft_placement: Option<String>,
}

/// An error of loading, and the state it left.
#[derive(Debug)]
pub struct LoadFailure {
    /// The error.
    pub error: Error,
    /// True if no model is in memory now.
    pub empty: bool,
}

impl From<Error> for LoadFailure {
    /// Converts an error that left the loaded models unchanged.
    fn from(error: Error) -> Self {
        Self { error, empty: false }
    }
}

/// Returns the memory of dropped tensors to the system. A GPU keeps the buffers until it is synchronised.
pub(crate) fn release_memory(compute: &Compute) {
    // A device that fails here also fails at its next use, which reports the error.
    let _ = compute.synchronise();
}

/// Returns whether a plan's target is loaded. A file that is gone does not unload its model.
fn is_target_of(models: &Models, plan: &LoadPlan) -> bool {
    models.has_target_of(plan) || (models.plan().target == plan.target && !plan.target.exists())
}

/// Returns whether the target and the draft model of a plan are loaded.
pub(super) fn are_loaded(models: &Models, plan: &LoadPlan) -> bool {
    is_target_of(models, plan) && models.plan().draft == plan.draft
}

/// Loads the models of a plan. After an error, models that were unloaded for them are loaded again.
pub(super) fn load_or_restore(
    models: &mut Option<Models>,
    plan: &LoadPlan,
    make_room: bool,
    compute: &Compute,
) -> Result<Loaded> {
    let before = models.as_ref().map(Models::plan);
    load(models, plan, make_room, compute).inspect_err(|_| {
        // The first error matters. The caller sees from `models` if the reload failed too.
        if let (None, Some(before)) = (&models, before) {
            *models = Models::load_by(&before, compute).ok();
        }
    })
}

/// Loads the models of a plan. After an error, models that were unloaded for them stay unloaded.
pub(super) fn load(
    models: &mut Option<Models>,
    plan: &LoadPlan,
    make_room: bool,
    compute: &Compute,
) -> Result<Loaded> {
    if let Some(models) = models.as_mut().filter(|models| models.has_target_of(plan)) {
        models.change_draft(plan, compute)?;
    } else {
        let opened = OpenedModels::open(plan)?;
        if make_room {
            *models = None;
        }
        release_memory(compute);
        *models = Some(Models::of(opened, compute)?);
    }
    release_memory(compute);
    let models = models.as_ref().expect("models were loaded above");
    let (of_target, of_draft) = models.memory();
    let read = |memory: ModelMemory| memory.read_by_a_pass as u64;
    Ok(Loaded {
        encoder: models.encoder().clone(),
        plan: models.plan(),
        tokenizer: models.encoder().tokenizer().clone(),
        target: models.target_name(),
        draft: models.draft_name(),
        read_by_a_pass: (read(of_target), of_draft.map(read)),
        context: models.context(),
        methods: models.usable_methods(),
        thinking: models.encoder().thinking_switches().choices(),
        template_note: models.encoder().template_note(),
        device_note: models.device_note(),
        head_note: models.head_note().map(str::to_owned),
        draft_placement: models.draft_placement().map(str::to_owned),
    })
}
