//! The models of a generation: a target, whatever drafts for it, and the text side of the target. What they
//! have learned of a conversation is kept here from answer to answer.

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
use hunch_model::text::{ChatTemplate, EncodeOptions, Tokenizer, compare_vocabularies};
use hunch_model::weights::WeightFile;

/// Most proposers of a method.
const MOST_STAGES: usize = 2;

/// A target, maybe a draft, and the text side of the target.
pub struct Models {
    /// Of what file the target was loaded.
    origin: Origin,
    target: Box<dyn LanguageModel>,
    draft: Option<DraftModel>,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    device: &'static str,
    /// The tokens whose rows the target's cache holds.
    cached: Vec<TokenId>,
    ngram: Ngram,
    /// What drafts with the target's own layers, for the method that runs.
    layers: Option<LayerSkip>,
    /// What it knows of the conversation so far is kept from answer to answer.
    suffix: Suffix,
    lookahead: Lookahead,
    /// A copy of the target in fewer bits.
    low_bit: Option<DraftModel>,
    /// What a benchmark has rehearsed.
    synthetic: Option<Synthetic>,
    /// What was learned of how deep to draft, by method, for each of its proposers.
    depths: HashMap<Method, [DepthController; MOST_STAGES]>,
}

impl Models {
    /// Loads a target and, if given, a draft for it.
    ///
    /// # Errors
    /// When a file is unsound or unsupported, the vocabularies differ, or the draft is larger than
    /// the target.
    pub fn load(target: &Path, draft: Option<&Path>, compute: &Compute) -> Result<Self> {
        let plan = LoadPlan { draft: draft.map(Into::into), ..LoadPlan::of(target) };
        Self::load_by(&plan, compute)
    }

    /// Loads models by a plan.
    ///
    /// # Errors
    /// As [`Models::load`]; [`Error::Stopped`] when the plan's watch breaks.
    pub fn load_by(plan: &LoadPlan, compute: &Compute) -> Result<Self> {
        Self::of(OpenedModels::open(plan)?, compute)
    }

    /// Brings opened models into memory.
    ///
    /// # Errors
    /// When the device has no room, and [`Error::Stopped`] when the plan's watch breaks.
    pub fn of(opened: OpenedModels, compute: &Compute) -> Result<Self> {
        let tokenizer = opened.tokenizer();
        let InMemory { origin, target, draft } = opened.read(compute)?;
        Ok(Self {
            origin,
            target: Box::new(target),
            draft,
            template: ChatTemplate::of(&tokenizer),
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

    /// What these models were loaded by, to load them once more.
    pub fn plan(&self) -> LoadPlan {
        self.origin.plan()
    }

    /// Whether the target is the plan's, so that only its draft may have to change.
    pub fn has_target_of(&self, plan: &LoadPlan) -> bool {
        Origin::of(plan).is_ok_and(|origin| origin.has_target_of(&self.origin))
    }

    /// Takes the plan's draft model in place of the one there is; the target stays as it is, and keeps what it
    /// has read. When this fails, all is as before.
    ///
    /// # Errors
    /// As [`Models::load_by`].
    pub fn change_draft(&mut self, plan: &LoadPlan, compute: &Compute) -> Result<()> {
        let origin = Origin::of(plan)?;
        self.draft = load::read_draft(plan, self.target.memory().weights, &self.tokenizer, compute)?;
        self.origin = origin;
        // What was learned of the other draft does not hold for this one.
        self.depths.retain(|method, _| !method.needs_draft());
        Ok(())
    }

    /// Loads the target's copy in fewer bits, for the method `low-bit`.
    ///
    /// # Errors
    /// As [`Models::load`].
    pub fn load_low_bit(&mut self, copy: &Path, compute: &Compute) -> Result<()> {
        let file = WeightFile::open(copy)?;
        compare_vocabularies(&self.tokenizer, &Tokenizer::from_gguf(file.gguf())?)?;
        self.low_bit = Some(DraftModel::new(Box::new(Decoder::load(&file, compute)?))?);
        Ok(())
    }

    /// Gives the method `synthetic` the greedy answer to the next prompt, and the share of it that it gets
    /// right.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when the share is not within 0 and 1.
    pub fn set_synthetic_script(&mut self, script: Vec<TokenId>, acceptance: f64) -> Result<()> {
        self.synthetic = Some(Synthetic::new(script, vec![acceptance])?);
        Ok(())
    }

    /// The target.
    pub fn target(&mut self) -> &mut dyn LanguageModel {
        self.cached.clear();
        &mut *self.target
    }

    /// The target's name.
    pub fn target_name(&self) -> String {
        self.target.info().name.clone()
    }

    /// Most tokens of a conversation.
    pub fn context(&self) -> usize {
        self.target.info().context_length
    }

    /// The draft model's name, if one is loaded.
    pub fn draft_name(&self) -> Option<String> {
        self.draft.as_ref().map(|draft| draft.model().info().name.clone())
    }

    /// What drafts for a method ([`Method::drafter`]), for whoever measures it alone: the model, the layers
    /// of it that run, and the tokens it scores after `text`. Its cache keeps what it holds, to be used as it
    /// is or emptied. `None` when it is not loaded.
    ///
    /// # Errors
    /// When the device fails, when the layers do not exist, and what `use_it` gives.
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

    /// The same models with caches of their own, which are empty: another
    /// conversation over the same weights.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fork(&self) -> Result<Self> {
        let fork = |draft: &Option<DraftModel>| draft.as_ref().map(DraftModel::fork).transpose();
        Ok(Self {
            origin: self.origin.clone(),
            target: self.target.fork(),
            draft: fork(&self.draft)?,
            low_bit: fork(&self.low_bit)?,
            template: ChatTemplate::of(&self.tokenizer),
            tokenizer: self.tokenizer.clone(),
            device: self.device,
            cached: Vec::new(),
            ngram: Ngram::default(),
            layers: None,
            suffix: Suffix::default(),
            lookahead: Lookahead::default(),
            synthetic: None,
            // What passes cost is the machine's business, not the conversation's.
            depths: self.depths.clone(),
        })
    }

    /// The target's logits of the token after `ids`, and the draft model's, if there is one. What the
    /// target's cache holds of them already is not read again.
    ///
    /// # Errors
    /// When there is no token, the draft model cannot read one of them, a model fails, or it was `stopped`,
    /// which is asked between passes.
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

    /// What the target takes of the memory, and the draft model, if there is one.
    pub fn memory(&self) -> (ModelMemory, Option<ModelMemory>) {
        (self.target.memory(), self.draft.as_ref().map(|draft| draft.model().memory()))
    }

    /// Whether a generation by this plan has all it needs.
    ///
    /// # Errors
    /// When the plan is invalid, or its method needs something that is not loaded.
    pub fn can_run(&mut self, plan: &GenerationPlan) -> Result<()> {
        plan.validate()?;
        self.prepare(plan).map(drop)
    }

    /// Everything a generation by this plan works with.
    ///
    /// # Errors
    /// When the plan's method needs something that is not loaded.
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
        // In the order they are asked.
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
                        "The method low-bit needs the target's copy in fewer bits, which is not loaded. The \
                         command line makes it: hunch run --method low-bit.",
                    ));
                }
            },
            (Method::Synthetic, _) => match synthetic {
                Some(rehearsed) => vec![rehearsed],
                None => {
                    return Err(Error::invalid(
                        "The method synthetic is for benchmarks: hunch bench --synthetic.",
                    ));
                }
            },
        };
        // What is asked before a model only looks things up.
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

    /// The target's tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The target's tokeniser, to keep.
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Empties the caches, so that the next generation starts cold.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forget(&mut self) -> Result<()> {
        self.cached.clear();
        self.target.truncate(0)?;
        for draft in self.draft.iter_mut().chain(&mut self.low_bit) {
            draft.model_with_empty_cache()?;
        }
        Ok(())
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for an empty prompt, [`Error::ContextOverflow`] for one too long.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.ids_and_note(prompt, &|| false).map(|(ids, _)| ids)
    }

    /// The tokens of a prompt, and what a person should know of the chat template. When `stopped`, the template is
    /// not waited for.
    ///
    /// # Errors
    /// As [`prompt_ids`](Self::prompt_ids).
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
            return Err(Error::invalid("The prompt is empty; write something."));
        }
        if ids.len() >= context {
            return Err(Error::ContextOverflow { prompt: ids.len(), context });
        }
        Ok((ids, note))
    }

    /// The tokens of a prompt, of a long conversation without its oldest messages: so many that an answer of
    /// `max_tokens`, or a quarter of the context if that is less, has room. Instructions and the last question are
    /// never left out. Turns go several at a time, so that the next question finds most of this one's rows in the
    /// cache. When `stopped`, a chat template is not waited for.
    ///
    /// # Errors
    /// As [`prompt_ids`](Self::prompt_ids), when the last question alone is too long.
    pub fn fitting_ids(
        &self,
        prompt: &Prompt,
        max_tokens: usize,
        stopped: &dyn Fn() -> bool,
    ) -> Result<FittingPrompt> {
        let context = self.target.info().context_length;
        let room = max_tokens.min(context / 4);
        let most = prompt.most_cuts();
        // One turn of a few, several of many.
        let at_once = 1 << (most / 8).max(1).ilog2();
        let attempt = |step: usize| -> Result<Option<FittingPrompt>> {
            let (shorter, dropped) = prompt.without_oldest((step * at_once).min(most));
            match self.ids_and_note(&shorter, stopped) {
                Ok((ids, note)) => Ok((ids.len() + room <= context).then_some(FittingPrompt {
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
        // The fewest steps that suffice: more than `low`, at most `high`.
        let (mut low, mut high) = (0, most.div_ceil(at_once));
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
        // All but the last question: what is said of it is said of the whole.
        let (shortest, dropped) = prompt.without_oldest(most);
        let (ids, template_note) = self.ids_and_note(&shortest, stopped)?;
        Ok(FittingPrompt { ids, dropped, template_note })
    }

    /// What a person should know of the target's chat template before anything is asked.
    pub fn template_note(&self) -> Option<String> {
        self.template.trial()
    }

    /// The tokens of a conversation, up to where its next answer begins.
    fn chat_ids(
        &self,
        messages: &[ChatMessage],
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Vec<TokenId>, Option<String>)> {
        if messages.iter().all(|message| message.content.trim().is_empty()) {
            return Err(Error::invalid("The prompt is empty; write something."));
        }
        self.template.ids(&self.tokenizer, messages, stopped)
    }
}

/// A prompt that leaves room for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FittingPrompt {
    /// Its tokens.
    pub ids: Vec<TokenId>,
    /// Messages that were left out.
    pub dropped: usize,
    /// What a person should know of the chat template.
    pub template_note: Option<String>,
}

/// What a drafted token is likely to cost by a method, in passes of one row of the target: what its pass reads
/// of weights, of what the target's reads. `None` where no model drafts, or that is not known.
fn expected_cost(
    method: Method,
    target: &dyn LanguageModel,
    drafter: Option<&DraftModel>,
    own: &LayerSkip,
) -> Option<f64> {
    let whole = target.memory();
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
                whole,
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
    (whole.read_by_a_pass > 0).then(|| read / whole.read_by_a_pass as f64)
}

/// Reads tokens behind what the cache holds; gives the logits after the last.
fn last_logits(
    model: &mut dyn LanguageModel,
    tokens: &[TokenId],
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<f32>> {
    let Some((last, before)) = tokens.split_last() else {
        return Err(Error::invalid("There is no text before the position; write something."));
    };
    for chunk in before.chunks(model.prefill_rows().max(1)) {
        if stopped() {
            return Err(Error::invalid("Reading was stopped. Nothing was changed."));
        }
        model.forward(Step::chain(chunk, LogitRows::None))?;
    }
    Ok(model.forward(Step::chain(&[*last], LogitRows::Last))?.logits.into_values())
}

/// What a generation borrows of [`Models`].
pub(super) struct GenerationResources<'a> {
    pub(super) target: &'a mut dyn LanguageModel,
    /// What drafts, in the order it is asked.
    pub(super) stages: Vec<&'a mut dyn Proposer>,
    /// What was learned of the depth, for each stage.
    pub(super) depths: &'a mut [DepthController; MOST_STAGES],
    /// The tokens whose rows the target's cache holds.
    pub(super) cached: &'a mut Vec<TokenId>,
    pub(super) tokenizer: &'a Arc<Tokenizer>,
    pub(super) device: &'static str,
    /// Name of the draft model.
    pub(super) draft: Option<String>,
}

impl GenerationResources<'_> {
    /// Leaves in the target's cache what it shares with a prompt, but never the prompt's last token, and gives how many
    /// tokens that is. What the cache holds is not known any more until it is told.
    pub(super) fn rewind(&mut self, prompt: &[TokenId]) -> Result<usize> {
        let reuse = shared_len(self.cached, prompt).min(prompt.len().saturating_sub(1));
        self.target.truncate(reuse)?;
        self.cached.clear();
        Ok(reuse)
    }
}

/// What drafts with the target's own layers by a method.
fn own_layers(method: Method, options: &MethodOptions, model: &ModelInfo) -> Result<LayerSkip> {
    let MethodOptions { exit_layer, skipped_layers, .. } = options;
    let layers = match (method, exit_layer, skipped_layers) {
        (Method::EarlyExit, Some(layer), _) => DraftLayers::Exit(*layer),
        (Method::EarlyExit, None, _) => DraftLayers::default_exit(model.n_layer),
        (Method::LayerSkip, _, Some(skipped)) => DraftLayers::Skip(skipped.clone()),
        // By other methods nobody asks for its drafts.
        _ => DraftLayers::default_skip(model.n_layer),
    };
    if !layer_skip::fits(&layers, model.n_layer) {
        return Err(Error::invalid(format!(
            "{} has the layers 0 to {}; some of them must be left to draft with.",
            model.name,
            model.n_layer - 1
        )));
    }
    Ok(LayerSkip::new(layers, model.n_vocab))
}
