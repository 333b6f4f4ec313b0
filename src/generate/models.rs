//! The models of a conversation: an immutable part that conversations share, and the resources that each has for
//! itself.

use std::path::Path;
use std::sync::Arc;

use super::conversation::{ConversationResources, GenerationResources};
use super::cost_priors::CostPriors;
use super::kept_conversations::{CacheLimits, CacheUse, KeptConversations};
use super::load::{self, InMemory, LoadPlan, OpenedModels, Origin};
use super::measured_acceptance;
use super::shared_models::SharedModels;
use super::{GenerationPlan, Prompt, PromptEncoder};
use hunch_error::Result;

use hunch_core::depth::MeasuredAcceptance;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LayerPlan, ModelMemory, VocabSubset};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::head::Head;
use hunch_core::propose::retrieval::TextIndex;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::propose::{MethodOptions, Needs, Proposers};
use hunch_core::token::TokenId;
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::heads::{self, UsualHead};
use hunch_model::text::{Tokenizer, check_vocabularies};
use hunch_model::weights::WeightFile;
use parking_lot::Mutex;

/// Meaning of a plan without a head, for [`Models::with_drafters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutHead {
    /// The current head stays.
    KeepCurrent,
    /// The usual head of the target is loaded, if there is one.
    TakeUsual,
}

/// A target and optional draft models, as one conversation uses them.
///
/// [`fork`](Self::fork) starts another conversation over the same weights.
pub struct Models {
    shared: Arc<SharedModels>,
    own: ConversationResources,
    /// Other conversations whose caches are kept.
    kept: KeptConversations,
}

impl Models {
    /// Loads a target and an optional draft model.
    ///
    /// # Errors
    /// If a file is damaged or unsupported, the vocabularies share too little, or the draft model is
    /// larger than the target.
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
        let InMemory { origin, target, warm, draft, head } = opened.read(compute)?;
        let acceptance = draft.as_ref().and_then(|draft| acceptance_of(&draft.model, &target, &tokenizer));
        let mut shared = SharedModels {
            origin,
            decoder: Arc::new(Mutex::new(target.forked())),
            encoder: Arc::new(PromptEncoder::new(tokenizer, target.info().context_length)),
            device: compute.name(),
            cost_priors: CostPriors::of_target(&target, warm, compute),
            acceptance: None,
            target_note: load::device_note(&target),
            draft_note: None,
            head_note: head.note,
            draft_placement: None,
        };
        shared.set_draft(draft.as_ref(), acceptance);
        let mut proposers = Proposers::new(draft.map(|draft| draft.model));
        proposers.set_head(head.head);
        proposers.set_texts(shared.origin.plan().texts);
        let own = ConversationResources::new(Box::new(target), proposers);
        Ok(Self { shared: Arc::new(shared), own, kept: KeptConversations::default() })
    }

    /// Returns the plan that loads these models again.
    pub fn plan(&self) -> LoadPlan {
        self.shared.origin.plan()
    }

    /// Returns whether the plan has the same target, so that at most the draft model needs to change.
    pub fn has_target_of(&self, plan: &LoadPlan) -> bool {
        Origin::of(plan).is_ok_and(|origin| origin.has_target_of(&self.shared.origin))
    }

    /// Replaces the draft model by the plan's. The target, its cache and the texts stay. After an error nothing
    /// has changed.
    ///
    /// # Errors
    /// The errors of [`Models::load_by`].
    pub fn change_draft(&mut self, plan: &LoadPlan, compute: &Compute) -> Result<()> {
        let origin = Origin::of(plan)?.with_texts(self.plan().texts);
        let tokenizer = self.shared.encoder.tokenizer();
        let target = self.own.target();
        let draft = load::read_draft(plan, target.memory().weights, tokenizer, compute)?;
        let acceptance = draft.as_ref().and_then(|draft| acceptance_of(&draft.model, target, tokenizer));
        let mut shared = SharedModels { origin, ..(*self.shared).clone() };
        shared.set_draft(draft.as_ref(), acceptance);
        self.shared = Arc::new(shared);
        self.kept.clear();
        self.own.proposers.set_draft(draft.map(|draft| draft.model));
        self.own.forget_draft();
        Ok(())
    }

    /// Loads the low-bit copy of the target, for the method `low-bit`.
    ///
    /// # Errors
    /// The errors of [`Models::load`].
    pub fn load_low_bit(&mut self, copy: &Path, compute: &Compute) -> Result<()> {
        let file = WeightFile::open(copy)?;
        check_vocabularies(self.shared.encoder.tokenizer(), &Tokenizer::from_gguf(file.gguf())?)?;
        let copy = Decoder::load(&file, compute)?;
        load::warm_up(&copy);
        self.kept.clear();
        self.own.proposers.set_low_bit(DraftModel::new(Box::new(copy))?);
        Ok(())
    }

    /// Sets the script of the method `synthetic`: the greedy answer to the next prompt, and the
    /// acceptance rate.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the rate is outside 0 to 1.
    pub fn set_synthetic_script(&mut self, script: Vec<TokenId>, acceptance: f64) -> Result<()> {
        self.own.proposers.set_script(Synthetic::new(script, acceptance)?);
        Ok(())
    }

    /// Sets the texts that the methods `retrieval` and `auto` copy from, in tokens of the target.
    pub fn set_texts(&mut self, texts: Option<Arc<TextIndex>>) {
        let origin = self.shared.origin.with_texts(texts.clone());
        self.shared = Arc::new(SharedModels { origin, ..(*self.shared).clone() });
        self.kept.clear();
        self.own.set_texts(texts);
    }

    /// Returns replacements of kernels that failed or are missing, for target and draft, a sentence on each line.
    pub fn device_note(&self) -> Option<String> {
        self.shared.device_note()
    }

    /// Returns why the target's own MTP layer does not draft, if it has one that cannot.
    pub fn head_note(&self) -> Option<&str> {
        self.shared.head_note.as_deref()
    }

    /// Returns a sentence on the device of the draft model. `None` without one, and if the target is on the CPU.
    pub fn draft_placement(&self) -> Option<&str> {
        self.shared.draft_placement.as_deref()
    }

    /// Returns the target for direct use and forgets what its cache holds.
    pub fn target(&mut self) -> &mut dyn LanguageModel {
        self.own.target_mut()
    }

    /// Returns the target's name.
    pub fn target_name(&self) -> String {
        self.own.target().info().name.clone()
    }

    /// Returns the maximum tokens of a conversation.
    pub fn context(&self) -> usize {
        self.own.target().info().context_length
    }

    /// Returns the methods that the loaded models can run, plain first, then the most recommended ones.
    pub fn usable_methods(&self) -> Vec<Method> {
        let needs = [Needs::Texts, Needs::DraftModel, Needs::LowBitCopy, Needs::Head];
        Method::usable(&needs.into_iter().filter(|needs| self.own.proposers.has(*needs)).collect::<Vec<_>>())
    }

    /// Returns the head trained for the target, for direct use.
    pub fn head(&mut self) -> Option<&mut Head> {
        self.own.proposers.head_mut()
    }

    /// Returns the method whose q [`scores_after`](Self::scores_after) returns. `None` without a draft model and a head.
    pub fn scored_drafter(&self) -> Option<Method> {
        let proposers = &self.own.proposers;
        let head = proposers.head().map(|_| Method::Head);
        proposers.draft().map(|_| Method::DraftModel).or(head)
    }

    /// Returns the draft model's name, if one is loaded.
    pub fn draft_name(&self) -> Option<String> {
        self.own.draft_name()
    }

    /// Returns how often the target accepts the draft model, measured on a short text at load.
    ///
    /// `None` without a draft model, or if the measurement failed.
    pub fn measured_acceptance(&self) -> Option<MeasuredAcceptance> {
        self.shared.acceptance
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
        self.own.with_drafter(drafter, options, text, use_it)
    }

    /// Starts another conversation over the same weights, with empty caches.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fork(&self) -> Result<Self> {
        let kept = KeptConversations::default();
        Ok(Self { shared: self.shared.clone(), own: self.own.fork()?, kept })
    }

    /// Sets how many caches of conversations are kept at the same time. By default it is one. Caches beyond the limits
    /// are dropped when the next generation begins.
    pub fn set_cache_limits(&mut self, limits: CacheLimits) {
        self.kept.set_limits(limits);
    }

    /// Sets how many caches are kept, as [`set_cache_limits`](Self::set_cache_limits), and drops the others now.
    pub fn limit_caches(&mut self, limits: CacheLimits) {
        self.kept.set_limits(limits);
        self.kept.drop_excess();
    }

    /// Predicts the bytes of all caches of a conversation of `tokens` tokens: those of the target, the draft model, the
    /// low-bit copy and the head.
    pub fn predicted_cache(&self, tokens: usize) -> u64 {
        (self.own.cache_per_token() as u64).saturating_mul(tokens as u64)
    }

    /// Continues the conversation whose cache serves a prompt best, or starts another one, within the limits. Until the
    /// next call, all other methods are about that conversation.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn resume(&mut self, prompt: &[TokenId]) -> Result<()> {
        self.kept.switch(&mut self.own, prompt)
    }

    /// Returns the caches of all conversations, the current one included unless it is empty.
    pub fn caches(&self) -> CacheUse {
        let current =
            CacheUse { conversations: usize::from(self.own.is_begun()), bytes: self.own.cache_bytes() };
        current.plus(self.kept.used())
    }

    /// Starts another conversation over the same target, with the draft model and the head of a plan. Context and device
    /// of the plan are ignored.
    ///
    /// # Errors
    /// The errors of [`Models::load_by`].
    pub fn with_drafters(&self, plan: &LoadPlan, missing: WithoutHead, compute: &Compute) -> Result<Self> {
        let mut other = self.fork()?;
        let own = self.plan();
        if plan.draft != own.draft {
            other.change_draft(
                &LoadPlan { draft: plan.draft.clone(), progress: plan.progress.clone(), ..own.clone() },
                compute,
            )?;
        }
        match plan.head.as_deref() {
            None if missing == WithoutHead::KeepCurrent || own.head.is_none() => {}
            None => {
                let file = WeightFile::open(&own.target)?;
                let decoder = self.shared.decoder.lock();
                other.set_head(heads::usual(own.heads.as_deref(), &file, &decoder, compute)?, None);
            }
            Some(path) if own.head.as_deref() == Some(path) => {}
            Some(path) => {
                let file = WeightFile::open(&own.target)?;
                let head = heads::open(path, &file, &self.shared.decoder.lock(), compute)?;
                other.set_head(UsualHead { head: Some(head), note: None }, Some(path));
            }
        }
        Ok(other)
    }

    /// Replaces the head, which comes from this file. Without a file it is the usual one.
    fn set_head(&mut self, UsualHead { head, note }: UsualHead, path: Option<&Path>) {
        let origin = self.shared.origin.with_head(path);
        self.shared = Arc::new(SharedModels { origin, head_note: note, ..(*self.shared).clone() });
        self.own.set_head(head);
    }

    /// Returns the logits after `ids`: the target's, and those of the draft model. Without one they are the head's, for
    /// the first token of a draft. Reuses the common prefix in the target's cache, unless the head reads all states.
    ///
    /// Tokens that the draft model does not score get minus infinity: its drafts never contain them.
    ///
    /// # Errors
    /// If `ids` is empty, a token is outside the draft model's vocabulary, a model fails, or `stopped`
    /// returns true between passes.
    pub fn scores_after(
        &mut self,
        ids: &[TokenId],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        self.own.scores_after(ids, stopped)
    }

    /// Returns the memory use of the target, and of the draft model if one is loaded.
    pub fn memory(&self) -> (ModelMemory, Option<ModelMemory>) {
        let draft = self.own.proposers.draft().map(|draft| draft.model().memory());
        (self.own.target().memory(), draft)
    }

    /// Checks that a generation by this plan can run.
    ///
    /// # Errors
    /// If the plan is invalid or its method needs something that is not loaded.
    pub fn can_run(&self, plan: &GenerationPlan) -> Result<()> {
        plan.validate()?;
        self.own.check(plan)
    }

    /// Borrows everything a generation by this plan uses.
    ///
    /// # Errors
    /// If the plan's method needs something that is not loaded.
    pub(super) fn prepare(&mut self, plan: &GenerationPlan) -> Result<GenerationResources<'_>> {
        self.own.prepare(plan, &self.shared)
    }

    /// Empties all caches, so that the next generation starts cold.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.kept.clear();
        self.own.empty_caches()
    }

    /// Tokenises a prompt.
    ///
    /// # Errors
    /// The errors of [`PromptEncoder::ids_and_note`].
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.shared.encoder.ids_and_note(prompt, None, &|| false).map(|(ids, _)| ids)
    }

    /// Returns what turns prompts into tokens of the target.
    pub fn encoder(&self) -> &Arc<PromptEncoder> {
        &self.shared.encoder
    }
}

/// Measures a draft model that was just loaded with its target. Without the figures the depth controller
/// starts from constants, so a failure is only logged.
fn acceptance_of(
    draft: &DraftModel,
    target: &dyn LanguageModel,
    tokenizer: &Tokenizer,
) -> Option<MeasuredAcceptance> {
    measured_acceptance::measure(target, draft.model(), tokenizer)
        .inspect_err(|error| {
            tracing::warn!("The acceptance of the draft model could not be measured. {error}")
        })
        .ok()
}
