//! The models of a conversation: weights and tokeniser, which conversations share, and the caches,
//! proposers and depth controllers that each has for itself.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::load::{self, InMemory, LoadPlan, OpenedModels, Origin};
use super::pair_acceptance;
use super::predicted::PredictedCosts;
use super::{GenerationPlan, Prompt, PromptEncoder};
use hunch_error::{Error, Result};

use hunch_core::depth::DepthController;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, ModelMemory, Step, VocabSubset};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::head::Head;
use hunch_core::propose::layer_skip::LayerSkip;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::propose::{MethodOptions, Needs, Proposer, Proposers, Stage};
use hunch_core::token::{TokenId, shared_len};
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::text::{Tokenizer, check_vocabularies};
use hunch_model::weights::WeightFile;

/// A target and optional draft models, as one conversation uses them.
///
/// [`fork`](Self::fork) starts another conversation over the same weights.
pub struct Models {
    /// Identity of the loaded files.
    origin: Origin,
    encoder: Arc<PromptEncoder>,
    device: &'static str,
    device_notes: DeviceNotes,
    predicted: PredictedCosts,
    own: ConversationResources,
}

/// Sentences on replacements of kernels of the device.
#[derive(Clone, Debug, Default)]
struct DeviceNotes {
    target: Option<String>,
    draft: Option<String>,
}

/// Caches, proposers and depth controllers of one conversation.
struct ConversationResources {
    /// The target. Its weights are immutable and shared between forks, its cache is not.
    target: Box<dyn LanguageModel>,
    /// Tokens whose rows are in the target's cache.
    cached: Vec<TokenId>,
    /// Proposers, with their caches and statistics.
    proposers: Proposers,
    /// Expected acceptance of the draft model, where it could be measured.
    draft_acceptance: Option<f64>,
    /// Depth controllers of each method, one per stage.
    depths: HashMap<Method, Vec<DepthController>>,
}

impl ConversationResources {
    fn new(target: Box<dyn LanguageModel>, proposers: Proposers) -> Self {
        Self { target, cached: Vec::new(), proposers, draft_acceptance: None, depths: HashMap::new() }
    }

    /// Returns the resources of another conversation over the same weights.
    fn fork(&self) -> Result<Self> {
        // Pass costs depend on the machine, not on the conversation.
        let (draft_acceptance, depths) = (self.draft_acceptance, self.depths.clone());
        let own = Self::new(self.target.fork(), self.proposers.fork()?);
        Ok(Self { draft_acceptance, depths, ..own })
    }

    /// Returns the draft model's name, if one is loaded.
    fn draft_name(&self) -> Option<String> {
        self.proposers.draft().map(|draft| draft.model().info().name.clone())
    }

    /// Measures the expected acceptance of a draft model that was just loaded. Without the figure the depth controller
    /// starts from a constant, so a failure is only logged.
    fn measure_acceptance(&mut self, tokenizer: &Tokenizer) {
        let measured = self
            .proposers
            .draft()
            .map(|draft| pair_acceptance::measure(&*self.target, draft.model(), tokenizer))
            .transpose();
        self.draft_acceptance = measured.unwrap_or_else(|error| {
            tracing::warn!("The acceptance of the draft model could not be measured. {error}");
            None
        });
    }
}

impl Models {
    /// Loads a target and an optional draft model.
    ///
    /// # Errors
    /// If a file is damaged or unsupported, the vocabularies differ, or the draft model is larger than
    /// the target.
    pub fn load(target: &Path, draft: Option<&Path>, compute: &Compute) -> Result<Self> {
        let plan = LoadPlan { draft: draft.map(Into::into), ..LoadPlan::of(target) };
        Self::load_by(&plan, compute)
    }

    /// Loads the models of a plan.
    ///
    /// # Errors
    /// The errors of [`Models::load`], and [`Error::Stopped`] if the progress callback breaks.
    pub fn load_by(plan: &LoadPlan, compute: &Compute) -> Result<Self> {
        Self::of(OpenedModels::open(plan)?, compute)
    }

    /// Reads opened models into memory.
    ///
    /// # Errors
    /// If the device has too little memory, and [`Error::Stopped`] if the progress callback breaks.
    pub fn of(opened: OpenedModels, compute: &Compute) -> Result<Self> {
        let tokenizer = opened.tokenizer();
        let InMemory { origin, target, draft, head } = opened.read(compute)?;
        let mut predicted = PredictedCosts::of_target(&target, compute);
        let mut device_notes = DeviceNotes { target: load::device_note(&target), draft: None };
        let draft = draft.map(|draft| {
            (predicted.draft_ms, device_notes.draft) = (draft.predicted_ms, draft.device_note);
            draft.model
        });
        let mut proposers = Proposers::new(draft);
        proposers.set_head(head);
        let context = target.info().context_length;
        let mut own = ConversationResources::new(Box::new(target), proposers);
        own.measure_acceptance(&tokenizer);
        let encoder = Arc::new(PromptEncoder::new(tokenizer, context));
        Ok(Self { origin, encoder, device: compute.name(), device_notes, predicted, own })
    }

    /// Returns the plan that loads these models again.
    pub fn plan(&self) -> LoadPlan {
        self.origin.plan()
    }

    /// Returns whether the plan has the same target, so that at most the draft model needs to change.
    pub fn has_target_of(&self, plan: &LoadPlan) -> bool {
        Origin::of(plan).is_ok_and(|origin| origin.has_target_of(&self.origin))
    }

    /// Replaces the draft model by the plan's. The target and its cache stay. After an error nothing
    /// has changed.
    ///
    /// # Errors
    /// The errors of [`Models::load_by`].
    pub fn change_draft(&mut self, plan: &LoadPlan, compute: &Compute) -> Result<()> {
        let origin = Origin::of(plan)?;
        let target_bytes = self.own.target.memory().weights;
        let draft = load::read_draft(plan, target_bytes, self.encoder.tokenizer(), compute)?;
        (self.predicted.draft_ms, self.device_notes.draft) =
            draft.as_ref().map_or((None, None), |draft| (draft.predicted_ms, draft.device_note.clone()));
        self.own.proposers.set_draft(draft.map(|draft| draft.model));
        self.own.measure_acceptance(self.encoder.tokenizer());
        self.origin = origin;
        // Statistics of the old draft model do not apply to the new one.
        self.own.depths.retain(|method, _| !method.needs_draft());
        Ok(())
    }

    /// Loads the low-bit copy of the target, for the method `low-bit`.
    ///
    /// # Errors
    /// The errors of [`Models::load`].
    pub fn load_low_bit(&mut self, copy: &Path, compute: &Compute) -> Result<()> {
        let file = WeightFile::open(copy)?;
        check_vocabularies(self.encoder.tokenizer(), &Tokenizer::from_gguf(file.gguf())?)?;
        self.own.proposers.set_low_bit(DraftModel::new(Box::new(Decoder::load(&file, compute)?))?);
        Ok(())
    }

    /// Sets the script of the method `synthetic`: the greedy answer to the next prompt, and the
    /// acceptance rate.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the rate is outside 0 to 1.
    pub fn set_synthetic_script(&mut self, script: Vec<TokenId>, acceptance: f64) -> Result<()> {
        self.own.proposers.set_script(Synthetic::new(script, vec![acceptance])?);
        Ok(())
    }

    /// Returns replacements of kernels that failed or are missing, for target and draft, a sentence on each line.
    pub fn device_note(&self) -> Option<String> {
        let DeviceNotes { target, draft } = &self.device_notes;
        let notes: Vec<&str> = [target, draft].into_iter().flatten().map(String::as_str).collect();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }

    /// Returns the target for direct use and forgets what its cache holds.
    pub fn target(&mut self) -> &mut dyn LanguageModel {
        self.own.cached.clear();
        &mut *self.own.target
    }

    /// Returns the target's name.
    pub fn target_name(&self) -> String {
        self.own.target.info().name.clone()
    }

    /// Returns the maximum tokens of a conversation.
    pub fn context(&self) -> usize {
        self.own.target.info().context_length
    }

    /// Returns the methods that the loaded models can run, plain first, then the most recommended ones.
    pub fn usable_methods(&self) -> Vec<Method> {
        let needs = [Needs::DraftModel, Needs::LowBitCopy, Needs::Head];
        Method::usable(&needs.into_iter().filter(|needs| self.own.proposers.has(*needs)).collect::<Vec<_>>())
    }

    /// Returns the most recommended method that drafts with the loaded models.
    pub fn recommended_method(&self) -> Method {
        self.usable_methods().into_iter().find(|method| *method != Method::Plain).unwrap_or_default()
    }

    /// Returns the head trained for the target, for direct use.
    pub fn head(&mut self) -> Option<&mut Head> {
        self.own.proposers.head_mut()
    }

    /// Returns the draft model's name, if one is loaded.
    pub fn draft_name(&self) -> Option<String> {
        self.own.draft_name()
    }

    /// Returns the probability that the target accepts a token of the draft model, measured on a short text at load.
    ///
    /// `None` without a draft model, or if the measurement failed.
    pub fn draft_acceptance(&self) -> Option<f64> {
        self.own.draft_acceptance
    }

    /// Calls `use_it` with what drafts for a method ([`Method::drafter`]): the model, the layers it
    /// runs, and the tokens it scores after `text`.
    ///
    /// The model's cache keeps its rows. Returns `None` if the drafter is not loaded.
    ///
    /// # Errors
    /// If the device fails or the layers do not exist, and the errors of `use_it`.
    pub fn with_drafter<T>(
        &mut self,
        drafter: Method,
        options: &MethodOptions,
        text: &[TokenId],
        use_it: impl FnOnce(&mut dyn LanguageModel, LayerPlan<'_>, Option<&VocabSubset>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(stage) = drafter.model_stage() else { return Ok(None) };
        if let Stage::TargetLayers(layers) = stage {
            let info = self.own.target.info();
            let own = LayerSkip::of(layers(options, info.n_layer), info)?;
            let vocab_subset = LayerSkip::tokens_after(text, info.n_vocab);
            return use_it(self.target(), own.layers(), vocab_subset.as_ref()).map(Some);
        }
        let Some(model) = self.own.proposers.model_of_mut(stage) else { return Ok(None) };
        let vocab_subset = model.tokens_after(text);
        use_it(model.model_mut(), LayerPlan::All, vocab_subset.as_ref()).map(Some)
    }

    /// Starts another conversation over the same weights, with empty caches.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fork(&self) -> Result<Self> {
        Ok(Self {
            origin: self.origin.clone(),
            encoder: self.encoder.clone(),
            device: self.device,
            device_notes: self.device_notes.clone(),
            predicted: self.predicted.clone(),
            own: self.own.fork()?,
        })
    }

    /// Returns the logits after `ids`: the target's, and the draft model's if one is loaded. Reuses the
    /// common prefix in the target's cache.
    ///
    /// Tokens outside the draft model's shortlist get minus infinity: its drafts never contain them.
    ///
    /// # Errors
    /// If `ids` is empty, a token is outside the draft model's vocabulary, a model fails, or `stopped`
    /// returns true between passes.
    pub fn scores_after(
        &mut self,
        ids: &[TokenId],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        let ConversationResources { target, cached, proposers, .. } = &mut self.own;
        let shared = shared_len(cached, ids);
        let reuse = shared.min(ids.len().saturating_sub(1));
        cached.clear();
        target.truncate(reuse)?;
        let of_target = last_logits(&mut **target, &ids[reuse..], stopped)?;
        *cached = ids.to_vec();
        let of_draft = proposers.draft_mut().map(|draft| -> Result<Vec<f32>> {
            let shortlist = draft.tokens_after(ids);
            let mut logits = last_logits(draft.model_with_empty_cache()?, ids, stopped)?;
            if let Some(shortlist) = shortlist {
                let others = (0..).zip(&mut logits).filter(|(token, _)| !shortlist.contains(*token));
                others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
            Ok(logits)
        });
        Ok((of_target, of_draft.transpose()?))
    }

    /// Returns the memory use of the target, and of the draft model if one is loaded.
    pub fn memory(&self) -> (ModelMemory, Option<ModelMemory>) {
        let draft = self.own.proposers.draft().map(|draft| draft.model().memory());
        (self.own.target.memory(), draft)
    }

    /// Checks that a generation by this plan can run.
    ///
    /// # Errors
    /// If the plan is invalid or its method needs something that is not loaded.
    pub fn can_run(&mut self, plan: &GenerationPlan) -> Result<()> {
        plan.validate()?;
        self.prepare(plan).map(drop)
    }

    /// Borrows everything a generation by this plan uses.
    ///
    /// # Errors
    /// If the plan's method needs something that is not loaded.
    pub(super) fn prepare(&mut self, plan: &GenerationPlan) -> Result<GenerationResources<'_>> {
        let method = plan.method;
        let draft = self.own.draft_name();
        let ConversationResources { target, cached, proposers, draft_acceptance, depths } = &mut self.own;
        check_needs(method, proposers)?;
        proposers.prepare(method, &plan.options, target.info())?;
        let stages = method.entry().stages;
        let depths = depths.entry(method).or_insert_with(|| vec![DepthController::default(); stages.len()]);
        for (stage, depth) in stages.iter().zip(&mut *depths) {
            let by_bytes = || expected_cost(stage, &**target, proposers).unwrap_or(0.0);
            depth.expect_cost(self.predicted.draft_cost(stage).unwrap_or_else(by_bytes));
            depth.expect_passes(&self.predicted.target_ms);
            if let (Needs::DraftModel, Some(acceptance)) = (stage.needs(), *draft_acceptance) {
                depth.expect_acceptance(acceptance);
            }
        }
        Ok(GenerationResources {
            target: &mut **target,
            stages: proposers.stages(method)?,
            depths,
            cached,
            tokenizer: self.encoder.tokenizer(),
            device: self.device,
            draft,
        })
    }

    /// Empties all caches, so that the next generation starts cold.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.own.cached.clear();
        self.own.target.truncate(0)?;
        Ok(self.own.proposers.empty_caches()?)
    }

    /// Tokenises a prompt.
    ///
    /// # Errors
    /// The errors of [`PromptEncoder::ids_and_note`].
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.encoder.ids_and_note(prompt, &|| false).map(|(ids, _)| ids)
    }

    /// Returns what turns prompts into tokens of the target.
    pub fn encoder(&self) -> &Arc<PromptEncoder> {
        &self.encoder
    }
}

/// Checks that what a method needs is loaded.
///
/// # Errors
/// [`Error::InvalidRequest`] with the remedy.
fn check_needs(method: Method, proposers: &Proposers) -> Result<()> {
    let Some(missing) = method.needs().find(|needs| !proposers.has(*needs)) else { return Ok(()) };
    let remedy = match missing {
        Needs::Nothing => return Ok(()),
        Needs::DraftModel => {
            format!("The method {method} needs a draft model. Open one (--draft), or choose ngram or plain.")
        }
        Needs::LowBitCopy => format!(
            "The method {method} needs a low-bit copy of the target, which is not loaded. The command line \
             creates it: hunch run --method {method}."
        ),
        Needs::Head => format!(
            "The method {method} needs a head trained for this model, and there is none. Choose ngram or suffix."
        ),
        Needs::Script => format!("The method {method} is for benchmarks: hunch bench --synthetic."),
    };
    Err(Error::invalid(remedy))
}

/// Returns the prior cost of a drafted token, in target passes of one row: weight bytes read by the
/// draft pass over those read by the target pass. `None` if no model drafts or the bytes are unknown.
fn expected_cost(stage: &Stage, target: &dyn LanguageModel, proposers: &Proposers) -> Option<f64> {
    let target_memory = target.memory();
    let bytes = |of: ModelMemory, layers: f64, scored: f64| {
        (of.read_by_a_pass - of.head) as f64 * layers + of.head as f64 * scored
    };
    let read = if let Stage::TargetLayers(_) = stage {
        let info = target.info();
        let layers = match proposers.layers()?.layers() {
            LayerPlan::All => 1.0,
            LayerPlan::Exit(first) => first as f64 / info.n_layer as f64,
            LayerPlan::Skip(skipped) => 1.0 - skipped.len() as f64 / info.n_layer as f64,
        };
        let scored = LayerSkip::tokens_after(&[], info.n_vocab).map_or(1.0, |t| t.share_of(info.n_vocab));
        bytes(target_memory, layers, scored)
    } else if let Stage::Head = stage {
        proposers.head()?.read_by_a_pass() as f64
    } else {
        let drafter = proposers.model_of(stage)?;
        let n_vocab = drafter.model().info().n_vocab;
        let scored = drafter.tokens_after(&[]).map_or(1.0, |tokens| tokens.share_of(n_vocab));
        bytes(drafter.model().memory(), 1.0, scored)
    };
    (target_memory.read_by_a_pass > 0).then(|| read / target_memory.read_by_a_pass as f64)
}

/// Runs tokens after the cached ones and returns the logits after the last.
fn last_logits(
    model: &mut dyn LanguageModel,
    tokens: &[TokenId],
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<f32>> {
    let Some((last, before)) = tokens.split_last() else {
        return Err(Error::invalid("There is no text before this position. Enter some text."));
    };
    for chunk in before.chunks(model.prefill_rows().max(1)) {
        if stopped() {
            return Err(Error::invalid("Cancelled. Nothing was changed."));
        }
        model.forward(Step::chain(chunk, LogitRows::None))?;
    }
    Ok(model.forward(Step::chain(&[*last], LogitRows::Last))?.logits.into_values())
}

/// Parts of [`Models`] borrowed by a generation.
pub(super) struct GenerationResources<'a> {
    pub(super) target: &'a mut dyn LanguageModel,
    /// Proposers in the order they are tried.
    pub(super) stages: Vec<&'a mut dyn Proposer>,
    /// Depth controllers, one per stage.
    pub(super) depths: &'a mut [DepthController],
    /// Tokens whose rows are in the target's cache.
    pub(super) cached: &'a mut Vec<TokenId>,
    pub(super) tokenizer: &'a Arc<Tokenizer>,
    pub(super) device: &'static str,
    /// Name of the draft model.
    pub(super) draft: Option<String>,
}

impl GenerationResources<'_> {
    /// Truncates the target's cache to the prefix it shares with `prompt`, without the prompt's last
    /// token, and returns its length.
    ///
    /// `cached` is empty until the generation ends.
    pub(super) fn rewind(&mut self, prompt: &[TokenId]) -> Result<usize> {
        let reuse = shared_len(self.cached, prompt).min(prompt.len().saturating_sub(1));
        self.target.truncate(reuse)?;
        self.cached.clear();
        Ok(reuse)
    }
}
