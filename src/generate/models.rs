//! The models of a generation: a target, its proposers and its tokeniser. Statistics of a conversation
//! are kept here across answers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::load::{self, InMemory, LoadPlan, OpenedModels, Origin};
use super::{GenerationPlan, Prompt};
use hunch_error::{Error, Result};

use hunch_core::chat::ChatMessage;
use hunch_core::depth::DepthController;
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, ModelInfo, ModelMemory, Step, VocabSubset};
use hunch_core::propose::draft_model::DraftModel;
use hunch_core::propose::layer_skip::{self, DraftLayers, LayerSkip};
use hunch_core::propose::lookahead::Lookahead;
use hunch_core::propose::ngram::Ngram;
use hunch_core::propose::suffix::Suffix;
use hunch_core::propose::synthetic::Synthetic;
use hunch_core::propose::{MethodOptions, Proposer};
use hunch_core::token::{TokenId, shared_len};
use hunch_model::decoder::Decoder;
use hunch_model::device::Compute;
use hunch_model::text::{ChatTemplate, EncodeOptions, Tokenizer, check_vocabularies};
use hunch_model::weights::WeightFile;

/// Maximum proposers per method.
const MAX_STAGES: usize = 2;

/// A target, optional draft models, and the target's tokeniser and chat template.
pub struct Models {
    /// Identity of the loaded files.
    origin: Origin,
    target: Box<dyn LanguageModel>,
    draft: Option<DraftModel>,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    device: &'static str,
    /// Tokens whose rows are in the target's cache.
    cached: Vec<TokenId>,
    ngram: Ngram,
    /// Self-speculation with the target's layers, for the current method.
    layers: Option<LayerSkip>,
    /// Keeps the conversation's statistics across answers.
    suffix: Suffix,
    lookahead: Lookahead,
    /// Copy of the target with fewer bits per weight.
    low_bit: Option<DraftModel>,
    /// Script of the synthetic method, set by benchmarks.
    synthetic: Option<Synthetic>,
    /// Depth controllers, per method and proposer.
    depths: HashMap<Method, [DepthController; MAX_STAGES]>,
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
        let InMemory { origin, target, draft } = opened.read(compute)?;
        Ok(Self {
            origin,
            target: Box::new(target),
            draft,
            template: ChatTemplate::from_tokenizer(&tokenizer),
            tokenizer,
            device: compute.name(),
            cached: Vec::new(),
            ngram: Ngram::default(),
            layers: None,
            suffix: Suffix::default(),
            lookahead: Lookahead::default(),
            low_bit: None,
            synthetic: None,
            depths: HashMap::new(),
        })
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
        self.draft = load::read_draft(plan, self.target.memory().weights, &self.tokenizer, compute)?;
        self.origin = origin;
        // Statistics of the old draft model do not apply to the new one.
        self.depths.retain(|method, _| !method.needs_draft());
        Ok(())
    }

    /// Loads the low-bit copy of the target, for the method `low-bit`.
    ///
    /// # Errors
    /// The errors of [`Models::load`].
    pub fn load_low_bit(&mut self, copy: &Path, compute: &Compute) -> Result<()> {
        let file = WeightFile::open(copy)?;
        check_vocabularies(&self.tokenizer, &Tokenizer::from_gguf(file.gguf())?)?;
        self.low_bit = Some(DraftModel::new(Box::new(Decoder::load(&file, compute)?))?);
        Ok(())
    }

    /// Sets the script of the method `synthetic`: the greedy answer to the next prompt, and the
    /// acceptance rate.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the rate is outside 0 to 1.
    pub fn set_synthetic_script(&mut self, script: Vec<TokenId>, acceptance: f64) -> Result<()> {
        self.synthetic = Some(Synthetic::new(script, vec![acceptance])?);
        Ok(())
    }

    /// Returns the target for direct use and forgets what its cache holds.
    pub fn target(&mut self) -> &mut dyn LanguageModel {
        self.cached.clear();
        &mut *self.target
    }

    /// Returns the target's name.
    pub fn target_name(&self) -> String {
        self.target.info().name.clone()
    }

    /// Returns the maximum tokens of a conversation.
    pub fn context(&self) -> usize {
        self.target.info().context_length
    }

    /// Returns the draft model's name, if one is loaded.
    pub fn draft_name(&self) -> Option<String> {
        self.draft.as_ref().map(|draft| draft.model().info().name.clone())
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
        let model = match drafter {
            Method::EarlyExit | Method::LayerSkip => {
                let info = self.target.info();
                let (own, vocab_subset) =
                    (own_layers(drafter, options, info)?, LayerSkip::tokens_after(text, info.n_vocab));
                return use_it(self.target(), own.layers(), vocab_subset.as_ref()).map(Some);
            }
            Method::LowBit => &mut self.low_bit,
            _ => &mut self.draft,
        };
        let Some(model) = model else { return Ok(None) };
        let vocab_subset = model.tokens_after(text);
        use_it(model.model_mut(), LayerPlan::All, vocab_subset.as_ref()).map(Some)
    }

    /// Returns the same models with empty caches of their own, for another conversation over the same
    /// weights.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fork(&self) -> Result<Self> {
        let fork = |draft: &Option<DraftModel>| draft.as_ref().map(DraftModel::fork).transpose();
        Ok(Self {
            origin: self.origin.clone(),
            target: self.target.fork(),
            draft: fork(&self.draft)?,
            low_bit: fork(&self.low_bit)?,
            template: ChatTemplate::from_tokenizer(&self.tokenizer),
            tokenizer: self.tokenizer.clone(),
            device: self.device,
            cached: Vec::new(),
            ngram: Ngram::default(),
            layers: None,
            suffix: Suffix::default(),
            lookahead: Lookahead::default(),
            synthetic: None,
            // Pass costs depend on the machine, not on the conversation.
            depths: self.depths.clone(),
        })
    }

    /// Returns the logits after `ids`: the target's, and the draft model's if one is loaded. Reuses the
    /// common prefix in the target's cache.
    ///
    /// # Errors
    /// If `ids` is empty, a token is outside the draft model's vocabulary, a model fails, or `stopped`
    /// returns true between passes.
    pub fn scores_after(
        &mut self,
        ids: &[TokenId],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<f32>, Option<Vec<f32>>)> {
        let shared = shared_len(&self.cached, ids);
        let reuse = shared.min(ids.len().saturating_sub(1));
        self.cached.clear();
        self.target.truncate(reuse)?;
        let target = last_logits(&mut *self.target, &ids[reuse..], stopped)?;
        self.cached = ids.to_vec();
        let draft =
            self.draft.as_mut().map(|draft| last_logits(draft.model_with_empty_cache()?, ids, stopped));
        Ok((target, draft.transpose()?))
    }

    /// Returns the memory use of the target, and of the draft model if one is loaded.
    pub fn memory(&self) -> (ModelMemory, Option<ModelMemory>) {
        (self.target.memory(), self.draft.as_ref().map(|draft| draft.model().memory()))
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
        let Self { target, draft, cached, ngram, layers, suffix, lookahead, low_bit, synthetic, .. } = self;
        let draft_name = draft.as_ref().map(|draft| draft.model().info().name.clone());
        if let Some(draft) = draft {
            draft.set_tree((plan.method == Method::DraftTree).then(|| plan.options.tree.clone()));
        }
        *ngram = Ngram::default();
        let layers = layers.insert(own_layers(plan.method, &plan.options, target.info())?);
        let drafter = match plan.method {
            Method::LowBit => low_bit.as_ref(),
            _ => draft.as_ref(),
        };
        let cost = expected_cost(plan.method, &**target, drafter, layers);
        let depths = self.depths.entry(plan.method).or_default();
        // In the order they are tried.
        let stages: Vec<&mut dyn Proposer> = match (plan.method, draft) {
            (Method::Plain, _) => Vec::new(),
            (Method::Ngram, _) => vec![ngram],
            (Method::Suffix, _) => vec![suffix],
            (Method::Lookahead, _) => vec![lookahead],
            (Method::EarlyExit | Method::LayerSkip, _) => vec![layers],
            (Method::DraftModel | Method::DraftTree, Some(draft)) => vec![draft],
            (Method::Cascade, Some(draft)) => vec![suffix, draft],
            (Method::DraftModel | Method::DraftTree | Method::Cascade, None) => {
                return Err(Error::invalid(format!(
                    "The method {} needs a draft model. Open one (--draft), or choose ngram or plain.",
                    plan.method
                )));
            }
            (Method::LowBit, _) => match low_bit {
                Some(copy) => vec![copy],
                None => {
                    return Err(Error::invalid(
                        "The method low-bit needs a low-bit copy of the target, which is not loaded. The \
                         command line creates it: hunch run --method low-bit.",
                    ));
                }
            },
            (Method::Synthetic, _) => match synthetic {
                Some(synthetic) => vec![synthetic],
                None => {
                    return Err(Error::invalid(
                        "The method synthetic is for benchmarks: hunch bench --synthetic.",
                    ));
                }
            },
        };
        // Only the last stage can be a model. Stages before it are lookups.
        let model = stages.len().saturating_sub(1);
        for (stage, depth) in depths.iter_mut().enumerate() {
            depth.expect_cost(cost.filter(|_| stage == model).unwrap_or(0.0));
        }
        Ok(GenerationResources {
            target: &mut **target,
            stages,
            depths,
            cached,
            tokenizer: &self.tokenizer,
            device: self.device,
            draft: draft_name,
        })
    }

    /// Returns the target's tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns a shared handle to the target's tokeniser.
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Empties all caches, so that the next generation starts cold.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.cached.clear();
        self.target.truncate(0)?;
        for draft in self.draft.iter_mut().chain(&mut self.low_bit) {
            draft.model_with_empty_cache()?;
        }
        Ok(())
    }

    /// Tokenises a prompt.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the prompt is empty, [`Error::ContextOverflow`] if it is too long.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.ids_and_note(prompt, &|| false).map(|(ids, _)| ids)
    }

    /// Tokenises a prompt. Also returns a note for the user about the chat template. Once `stopped`
    /// returns true, a slow template is abandoned.
    ///
    /// # Errors
    /// The errors of [`prompt_ids`](Self::prompt_ids).
    pub fn ids_and_note(
        &self,
        prompt: &Prompt,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        let (ids, note) = match prompt {
            Prompt::Raw(text) => {
                (self.tokenizer.encode(text, EncodeOptions { parse_special: true, add_bos: true })?, None)
            }
            Prompt::Chat(messages) => self.chat_ids(messages, stopped)?,
            Prompt::Continued(messages, answer) => {
                let (mut ids, note) = self.chat_ids(messages, stopped)?;
                ids.extend_from_slice(answer);
                (ids, note)
            }
        };
        let context = self.target.info().context_length;
        if ids.is_empty() {
            return Err(Error::invalid("The prompt is empty. Enter some text."));
        }
        if ids.len() >= context {
            return Err(Error::ContextOverflow { prompt: ids.len(), context });
        }
        Ok((ids, note))
    }

    /// Tokenises a prompt, leaving out the oldest messages of a long conversation.
    ///
    /// Leaves room for an answer of `max_tokens`, or of a quarter of the context if that is less.
    /// System messages and the last question always stay. Turns are removed several at a time, so that
    /// the next question reuses most of this one's cache rows. Once `stopped` returns true, a slow chat
    /// template is abandoned.
    ///
    /// # Errors
    /// The errors of [`prompt_ids`](Self::prompt_ids) if the last question alone is too long.
    pub fn fitting_ids(
        &self,
        prompt: &Prompt,
        max_tokens: usize,
        stopped: &dyn Fn() -> bool,
    ) -> Result<FittingPrompt> {
        let context = self.target.info().context_length;
        let reserve = max_tokens.min(context / 4);
        let max_cuts = prompt.max_cuts();
        // Remove single turns of a short conversation, several at a time of a long one.
        let at_once = 1 << (max_cuts / 8).max(1).ilog2();
        let attempt = |step: usize| -> Result<Option<FittingPrompt>> {
            let (shorter, dropped) = prompt.without_oldest((step * at_once).min(max_cuts));
            match self.ids_and_note(&shorter, stopped) {
                Ok((ids, note)) => Ok((ids.len() + reserve <= context).then_some(FittingPrompt {
                    ids,
                    dropped,
                    template_note: note,
                })),
                Err(Error::ContextOverflow { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        if let Some(fitting) = attempt(0)? {
            return Ok(fitting);
        }
        // Bisect for the fewest steps that suffice: more than `low`, at most `high`.
        let (mut low, mut high) = (0, max_cuts.div_ceil(at_once));
        let mut found = None;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match attempt(middle)? {
                Some(fitting) => (high, found) = (middle, Some(fitting)),
                None => low = middle,
            }
        }
        if let Some(found) = found {
            return Ok(found);
        }
        // Only the last question is left; report its error.
        let (shortest, dropped) = prompt.without_oldest(max_cuts);
        let (ids, template_note) = self.ids_and_note(&shortest, stopped)?;
        Ok(FittingPrompt { ids, dropped, template_note })
    }

    /// Returns a note for the user about the target's chat template, known before any prompt.
    pub fn template_note(&self) -> Option<String> {
        self.template.trial()
    }

    /// Tokenises a conversation up to the start of the next answer.
    fn chat_ids(
        &self,
        messages: &[ChatMessage],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        if messages.iter().all(|message| message.content.trim().is_empty()) {
            return Err(Error::invalid("The prompt is empty. Enter some text."));
        }
        self.template.ids(&self.tokenizer, messages, stopped)
    }
}

/// A tokenised prompt that leaves room for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FittingPrompt {
    /// Tokens.
    pub ids: Vec<TokenId>,
    /// Number of messages left out.
    pub dropped: usize,
    /// Note for the user about the chat template.
    pub template_note: Option<String>,
}

/// Returns the prior cost of a drafted token, in target passes of one row: weight bytes read by the
/// draft pass over those read by the target pass. `None` if no model drafts or the bytes are unknown.
fn expected_cost(
    method: Method,
    target: &dyn LanguageModel,
    drafter: Option<&DraftModel>,
    own: &LayerSkip,
) -> Option<f64> {
    let target_memory = target.memory();
    let bytes = |of: ModelMemory, layers: f64, scored: f64| {
        (of.read_by_a_pass - of.head) as f64 * layers + of.head as f64 * scored
    };
    let read = match method.drafter()? {
        Method::EarlyExit | Method::LayerSkip => {
            let info = target.info();
            let layers = match own.layers() {
                LayerPlan::All => 1.0,
                LayerPlan::Exit(first) => first as f64 / info.n_layer as f64,
                LayerPlan::Skip(skipped) => 1.0 - skipped.len() as f64 / info.n_layer as f64,
            };
            bytes(
                target_memory,
                layers,
                LayerSkip::tokens_after(&[], info.n_vocab).map_or(1.0, |t| t.share_of(info.n_vocab)),
            )
        }
        _ => {
            let drafter = drafter?;
            let n_vocab = drafter.model().info().n_vocab;
            let scored = drafter.tokens_after(&[]).map_or(1.0, |tokens| tokens.share_of(n_vocab));
            bytes(drafter.model().memory(), 1.0, scored)
        }
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
    pub(super) depths: &'a mut [DepthController; MAX_STAGES],
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

/// Creates the self-speculation proposer of a method.
fn own_layers(method: Method, options: &MethodOptions, model: &ModelInfo) -> Result<LayerSkip> {
    let MethodOptions { exit_layer, skipped_layers, .. } = options;
    let layers = match (method, exit_layer, skipped_layers) {
        (Method::EarlyExit, Some(layer), _) => DraftLayers::Exit(*layer),
        (Method::EarlyExit, None, _) => DraftLayers::default_exit(model.n_layer),
        (Method::LayerSkip, _, Some(skipped)) => DraftLayers::Skip(skipped.clone()),
        // Other methods do not use this proposer.
        _ => DraftLayers::default_skip(model.n_layer),
    };
    if !layer_skip::fits(&layers, model.n_layer) {
        return Err(Error::invalid(format!(
            "{} has layers 0 to {}. Leave at least one of them to draft with.",
            model.name,
            model.n_layer - 1
        )));
    }
    Ok(LayerSkip::new(layers, model.n_vocab))
}
