//! Caches, proposers and depth controllers of one conversation. Everything that an answer changes is here. Loading
//! models and sharing them belongs to [`Models`](super::Models).

use std::collections::HashMap;
use std::sync::Arc;

use super::GenerationPlan;
use super::shared_models::SharedModels;
use hunch_error::{Error, Refusal, Result};

use hunch_core::depth::DepthController;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, ModelMemory, PassInput, Rows, VocabSubset};
use hunch_core::propose::head::Head;
use hunch_core::propose::layer_skip::LayerSkip;
use hunch_core::propose::retrieval::TextIndex;
use hunch_core::propose::{MethodOptions, Needs, Proposer, Proposers, Stage};
use hunch_core::token::{TokenId, shared_len};
use hunch_model::text::Tokenizer;

/// Caches, proposers and depth controllers of one conversation.
pub(super) struct ConversationResources {
    /// The target. Its weights are immutable and shared between forks, its cache is not.
    target: Box<dyn LanguageModel>,
    /// Tokens whose rows are in the target's cache.
    cached: Vec<TokenId>,
    /// Tokens of the last prompt.
    pub(super) prompt: usize,
    /// Proposers, with their caches and statistics.
    pub(super) proposers: Proposers,
    /// Depth controller of each method, and the options under which it learnt.
    depths: HashMap<Method, (MethodOptions, DepthController)>,
}

impl ConversationResources {
    /// Creates the resources of the first conversation over loaded models.
    pub(super) fn new(target: Box<dyn LanguageModel>, proposers: Proposers) -> Self {
        Self { target, cached: Vec::new(), prompt: 0, proposers, depths: HashMap::new() }
    }

    /// Returns the resources of another conversation over the same weights, with empty caches.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn fork(&self) -> Result<Self> {
        // Pass costs depend on the machine and the options, not on the conversation.
        let depths = self.depths.clone();
        Ok(Self { depths, ..Self::new(self.target.fork(), self.proposers.fork()?) })
    }

    /// Returns the target.
    pub(super) fn target(&self) -> &dyn LanguageModel {
        &*self.target
    }

    /// Returns the target for direct use and forgets what its cache holds.
    pub(super) fn target_mut(&mut self) -> &mut dyn LanguageModel {
        self.cached.clear();
        &mut *self.target
    }

    /// Returns the number of tokens in the target's cache, and of those that a prompt starts with.
    pub(super) fn cached_and_shared(&self, prompt: &[TokenId]) -> (usize, usize) {
        (self.cached.len(), shared_len(&self.cached, prompt))
    }

    /// Returns the allocated bytes of all caches.
    pub(super) fn cache_bytes(&self) -> u64 {
        (self.target.memory().cache + self.proposers.cache_bytes()) as u64
    }

    /// Returns the bytes that all caches take for a token, in a long conversation.
    pub(super) fn cache_per_token(&self) -> usize {
        self.target.memory().cache_per_token + self.proposers.cache_per_token()
    }

    /// Returns whether the target's cache has tokens.
    pub(super) fn is_begun(&self) -> bool {
        !self.cached.is_empty()
    }

    /// Returns the draft model's name, if one is loaded.
    pub(super) fn draft_name(&self) -> Option<String> {
        self.proposers.draft().map(|draft| draft.model().info().name.clone())
    }

    /// Replaces the head, and removes the statistics of all methods that can use it.
    pub(super) fn set_head(&mut self, head: Option<Head>) {
        self.forget_users_of(Needs::Head);
        self.proposers.set_head(head);
    }

    /// Replaces the texts that are copied from, and removes the statistics of all methods that can use them.
    pub(super) fn set_texts(&mut self, texts: Option<Arc<TextIndex>>) {
        self.forget_users_of(Needs::Texts);
        self.proposers.set_texts(texts);
    }

    /// Removes the statistics of methods that can use the draft model. They do not apply to another one.
    pub(super) fn forget_draft(&mut self) {
        self.forget_users_of(Needs::DraftModel);
    }

    /// Removes the statistics of methods that can use something.
    fn forget_users_of(&mut self, something: Needs) {
        self.depths.retain(|method, _| !method.uses().any(|needs| needs == something));
    }

    /// Empties all caches, so that the next generation starts cold.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn empty_caches(&mut self) -> Result<()> {
        self.target_mut().truncate(0)?;
        Ok(self.proposers.empty_caches()?)
    }

    /// Checks that what a plan's method needs is loaded and fits the target.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] with the remedy.
    pub(super) fn check(&self, plan: &GenerationPlan) -> Result<()> {
        check_needs(plan.method, &self.proposers)?;
        Ok(self.proposers.check(plan.method, &plan.options, self.target.info())?)
    }

    /// See [`Models::with_drafter`](super::Models::with_drafter).
    pub(super) fn with_drafter<T>(
        &mut self,
        drafter: Method,
        options: &MethodOptions,
        text: &[TokenId],
        use_it: impl FnOnce(&mut dyn LanguageModel, LayerPlan<'_>, Option<&VocabSubset>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(stage) = drafter.model_stage() else { return Ok(None) };
        if let Stage::TargetLayers { layers, .. } = stage {
            let info = self.target.info();
            let own = LayerSkip::of(layers(options, info.n_layer), info)?;
            let vocab_subset = LayerSkip::tokens_after(text, info.n_vocab);
            return use_it(self.target_mut(), own.layers(), vocab_subset.as_ref()).map(Some);
        }
        let Some(model) = self.proposers.model_of_mut(stage) else { return Ok(None) };
        let vocab_subset = model.tokens_after(text);
        use_it(model.model_mut(), LayerPlan::All, vocab_subset.as_ref()).map(Some)
    }

    /// See [`Models::scores_after`](super::Models::scores_after).
    pub(super) fn scores_after(
        &mut self,
        ids: &[TokenId],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        let Self { target, cached, proposers, .. } = self;
        let shared = shared_len(cached, ids);
        if proposers.draft().is_none()
            && ids.len() > 1
            && let Some(head) = proposers.head_mut()
        {
            cached.clear();
            let (of_target, of_head) = head_logits(&mut **target, head, ids, shared, stopped)?;
            *cached = ids.to_vec();
            return Ok((of_target, Some(of_head)));
        }
        let reuse = shared.min(ids.len().saturating_sub(1));
        cached.clear();
        target.truncate(reuse)?;
        let of_target = last_logits(&mut **target, &ids[reuse..], None, stopped)?;
        *cached = ids.to_vec();
        let of_draft = proposers.draft_mut().map(|draft| -> Result<Vec<f32>> {
            let shortlist = draft.tokens_after(ids);
            last_logits(draft.model_with_empty_cache()?, ids, shortlist.as_ref(), stopped)
        });
        Ok((of_target, of_draft.transpose()?))
    }

    /// Borrows everything a generation by this plan uses.
    ///
    /// # Errors
    /// If the plan's method needs something that is not loaded.
    pub(super) fn prepare<'a>(
        &'a mut self,
        plan: &GenerationPlan,
        shared: &'a SharedModels,
    ) -> Result<GenerationResources<'a>> {
        let method = plan.method;
        let draft = self.draft_name();
        let Self { target, cached, proposers, depths, .. } = self;
        check_needs(method, proposers)?;
        proposers.prepare(method, &plan.options, target.info())?;
        let options = plan.options.read_by(method);
        let (learnt_under, depth) = depths.entry(method).or_default();
        if *learnt_under != options {
            (*learnt_under, *depth) = (options, DepthController::default());
        }
        depth.expect_passes(shared.cost_priors.passes());
        if let Some(warm) = shared.cost_priors.warm {
            depth.expect_plain(warm.plain_ms);
            warm.row.into_iter().for_each(|row| depth.expect_row(row));
        }
        let stages = proposers.loaded_stages(method);
        let cost_of = |stage: &Stage| {
            let by_bytes = || expected_cost(stage, &**target, proposers).unwrap_or(0.0);
            shared.cost_priors.draft_cost(stage).unwrap_or_else(by_bytes)
        };
        if method.entry().merges_stages {
            // They are one proposer, whose passes are those of any of its models.
            let costs: Vec<f64> =
                stages.iter().filter(|stage| stage.has_model()).map(|s| cost_of(s)).collect();
            depth.expect_cost(0, costs.iter().sum::<f64>() / costs.len().max(1) as f64);
        } else {
            for (i, stage) in stages.into_iter().enumerate() {
                depth.expect_cost(i, cost_of(stage));
                if let Some(measured) = shared.acceptance.filter(|_| stage.needs() == Needs::DraftModel) {
                    depth.expect_acceptance(i, measured);
                }
            }
        }
        Ok(GenerationResources {
            target: &mut **target,
            stages: proposers.stages(method)?,
            depth,
            cached,
            tokenizer: shared.encoder.tokenizer(),
            device: shared.device,
            draft,
        })
    }
}

/// Checks that what a method needs is loaded.
///
/// # Errors
/// [`Error::InvalidRequest`] with the remedy.
fn check_needs(method: Method, proposers: &Proposers) -> Result<()> {
    let Some(missing) = method.needs().find(|needs| !proposers.has(*needs)) else { return Ok(()) };
    let method = method.to_string();
    Err(match missing {
        Needs::Nothing => return Ok(()),
        Needs::Texts => Refusal::NeedsTexts { method }.into(),
        Needs::DraftModel => Refusal::NeedsDraft { method }.into(),
        Needs::LowBitCopy => Refusal::NeedsLowBitCopy { method }.into(),
        Needs::Head => Refusal::NeedsHead { method }.into(),
        Needs::Script => {
            Error::invalid(format!("The method {method} is for benchmarks: hunch bench --synthetic."))
        }
    })
}

/// Returns the prior cost of a drafted token, in target passes of one row. It is the weight bytes that a
/// draft pass reads over the bytes that a target pass reads. `None` if no model drafts or the bytes are unknown.
fn expected_cost(stage: &Stage, target: &dyn LanguageModel, proposers: &Proposers) -> Option<f64> {
    let target_memory = target.memory();
    let bytes = |of: ModelMemory, layers: f64, scored: f64| {
        (of.read_by_a_pass - of.head) as f64 * layers + of.head as f64 * scored
    };
    let read = if let Stage::TargetLayers { .. } = stage {
        let info = target.info();
        let layers = match proposers.layers()?.layers() {
            LayerPlan::All => 1.0,
            LayerPlan::Exit(first) => first as f64 / info.n_layer as f64,
            LayerPlan::Skip(skipped) => 1.0 - skipped.len() as f64 / info.n_layer as f64,
        };
        let scored = LayerSkip::tokens_after(&[], info.n_vocab).map_or(1.0, |t| t.share_of(info.n_vocab));
        bytes(target_memory, layers, scored)
    } else if let Stage::Head | Stage::HeadTree = stage {
        proposers.head()?.read_by_a_pass() as f64
    } else {
        let drafter = proposers.model_of(stage)?;
        let n_vocab = drafter.model().info().n_vocab;
        let scored = drafter.tokens_after(&[]).map_or(1.0, |tokens| tokens.share_of(n_vocab));
        bytes(drafter.model().memory(), 1.0, scored)
    };
    (target_memory.read_by_a_pass > 0).then(|| read / target_memory.read_by_a_pass as f64)
}

/// Runs tokens after the cached ones and returns the logits of a vocabulary subset after the last.
fn last_logits(
    model: &mut dyn LanguageModel,
    tokens: &[TokenId],
    vocab_subset: Option<&VocabSubset>,
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<f32>> {
    let Some((last, before)) = tokens.split_last() else {
        return Err(Refusal::EmptyPrompt.into());
    };
    for chunk in before.chunks(model.prefill_rows().max(1)) {
        if stopped() {
            return Err(Refusal::Cancelled.into());
        }
        model.forward(PassInput::chain(chunk, LogitRows::None))?;
    }
    let step = PassInput { vocab_subset, ..PassInput::chain(std::slice::from_ref(last), LogitRows::Last) };
    Ok(model.forward(step)?.logits.into_values())
}

/// Returns the logits after two or more tokens: the target's, and those of a head for the first token of a draft. `shared`
/// tokens at the start are in the target's cache.
fn head_logits(
    target: &mut dyn LanguageModel,
    head: &mut Head,
    ids: &[TokenId],
    shared: usize,
    stopped: &dyn Fn() -> bool,
) -> Result<(Vec<f32>, Vec<f32>)> {
    let taps = head.taps().to_vec();
    let n_embd = target.info().n_embd;
    let last = ids.len() - 1;
    // Without a cache the head reads the row before the last token only.
    let reuse = if head.has_cache() { 0 } else { shared.min(last - 1) };
    target.truncate(reuse)?;
    let (mut at, mut of_head) = (reuse, Vec::new());
    for chunk in ids[reuse..last].chunks(target.prefill_rows().max(1)) {
        if stopped() {
            return Err(Refusal::Cancelled.into());
        }
        let states =
            target.forward(PassInput { taps: &taps, ..PassInput::chain(chunk, LogitRows::None) })?.taps;
        let states: Vec<Vec<f32>> = states.into_iter().map(Rows::into_values).collect();
        let next = &ids[at + 1..=at + chunk.len()];
        if head.has_cache() {
            of_head = head.logits_after(at, &states, next)?;
        } else if at + chunk.len() == last {
            let row: Vec<_> = states.iter().map(|tap| tap[tap.len() - n_embd..].to_vec()).collect();
            of_head = head.logits(&row, &next[next.len() - 1..])?;
        }
        at += chunk.len();
    }
    let of_target = last_logits(target, &ids[last..], None, stopped)?;
    Ok((of_target, of_head))
}

/// Parts of [`Models`](super::Models) borrowed by a generation.
pub(super) struct GenerationResources<'a> {
    pub(super) target: &'a mut dyn LanguageModel,
    /// Proposers in the order they are tried.
    pub(super) stages: Vec<&'a mut dyn Proposer>,
    /// Depth controller of the method.
    pub(super) depth: &'a mut DepthController,
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
        // A failed truncation may leave fewer rows.
        self.cached.clear();
        self.target.truncate(reuse)?;
        Ok(reuse)
    }
}
