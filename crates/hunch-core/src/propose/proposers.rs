//! The proposers of one conversation, one for each kind of stage in the registry.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;

use super::draft_model::DraftModel;
use super::head::Head;
use super::layer_skip::LayerSkip;
use super::retrieval::{Retrieval, TextIndex};
use super::synthetic::Synthetic;
use super::{Method, MethodOptions, Needs, Proposer, Stage};
use crate::error::{Error, Result};
use crate::model::ModelInfo;

/// Proposers of a conversation, with their caches and statistics.
///
/// Methods share them. The statistics of `suffix` serve `cascade` in the next answer, and the cache of the
/// draft model serves every method that drafts with it.
#[derive(Default)]
pub struct Proposers {
    draft: Option<DraftModel>,
    low_bit: Option<DraftModel>,
    head: Option<Head>,
    texts: Option<Retrieval>,
    script: Option<Synthetic>,
    /// Layers of the target, for the current method and options.
    layers: Option<LayerSkip>,
    free: HashMap<TypeId, Box<dyn Proposer>>,
}

impl Proposers {
    /// Creates the proposers of a new conversation.
    pub fn new(draft: Option<DraftModel>) -> Self {
        Self { draft, ..Self::default() }
    }

    /// Returns proposers over the same weights, with empty caches and no statistics. The script is not
    /// copied.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fork(&self) -> Result<Self> {
        let fork = |model: &Option<DraftModel>| model.as_ref().map(DraftModel::fork).transpose();
        let head = self.head.as_ref().map(Head::fork);
        let texts = self.texts.clone();
        Ok(Self { draft: fork(&self.draft)?, low_bit: fork(&self.low_bit)?, head, texts, ..Self::default() })
    }

    /// Replaces the draft model.
    pub fn set_draft(&mut self, draft: Option<DraftModel>) {
        self.draft = draft;
    }

    /// Sets the low-bit copy of the target.
    pub fn set_low_bit(&mut self, mut copy: DraftModel) {
        copy.set_method(Method::LowBit);
        self.low_bit = Some(copy);
    }

    /// Sets the head trained for the target.
    pub fn set_head(&mut self, head: Option<Head>) {
        self.head = head;
    }

    /// Returns the head trained for the target.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Returns the head trained for the target, for direct use.
    pub fn head_mut(&mut self) -> Option<&mut Head> {
        self.head.as_mut()
    }

    /// Sets the texts that are copied from.
    pub fn set_texts(&mut self, texts: Option<Arc<TextIndex>>) {
        self.texts = texts.map(Retrieval::new);
    }

    /// Sets the script.
    pub fn set_script(&mut self, script: Synthetic) {
        self.script = Some(script);
    }

    /// Returns the draft model.
    pub fn draft(&self) -> Option<&DraftModel> {
        self.draft.as_ref()
    }

    /// Returns the draft model for direct use.
    pub fn draft_mut(&mut self) -> Option<&mut DraftModel> {
        self.draft.as_mut()
    }

    /// Returns the separate model that drafts in a stage; `None` if there is none or it is not loaded.
    pub fn model_of(&self, stage: &Stage) -> Option<&DraftModel> {
        match stage.needs() {
            Needs::DraftModel => self.draft.as_ref(),
            Needs::LowBitCopy => self.low_bit.as_ref(),
            Needs::Nothing | Needs::Texts | Needs::Head | Needs::Script => None,
        }
    }

    /// Returns [`model_of`](Self::model_of) for direct use.
    pub fn model_of_mut(&mut self, stage: &Stage) -> Option<&mut DraftModel> {
        match stage.needs() {
            Needs::DraftModel => self.draft.as_mut(),
            Needs::LowBitCopy => self.low_bit.as_mut(),
            Needs::Nothing | Needs::Texts | Needs::Head | Needs::Script => None,
        }
    }

    /// Returns the target's layers that draft, once a method that uses them was [prepared](Self::prepare).
    pub fn layers(&self) -> Option<&LayerSkip> {
        self.layers.as_ref()
    }

    /// Returns whether a requirement is met.
    pub fn has(&self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::Texts => self.texts.is_some(),
            Needs::DraftModel => self.draft.is_some(),
            Needs::LowBitCopy => self.low_bit.is_some(),
            Needs::Head => self.head.is_some(),
            Needs::Script => self.script.is_some(),
        }
    }

    /// Returns the allocated bytes of the caches of all models and the head.
    pub fn cache_bytes(&self) -> usize {
        let models = self.draft.iter().chain(&self.low_bit).map(|model| model.model().memory().cache);
        models.sum::<usize>() + self.head.as_ref().map_or(0, Head::cache_bytes)
    }

    /// Returns the bytes that the caches of all models and the head take for a token, in a long context.
    pub fn cache_per_token(&self) -> usize {
        let models = self.draft.iter().chain(&self.low_bit);
        let models = models.map(|model| model.model().memory().cache_per_token);
        models.sum::<usize>() + self.head.as_ref().map_or(0, Head::cache_per_token)
    }

    /// Empties the caches of all models.
    ///
    /// # Errors
    /// If the device fails.
    pub fn empty_caches(&mut self) -> Result<()> {
        for model in self.draft.iter_mut().chain(&mut self.low_bit) {
            model.model_with_empty_cache()?;
        }
        if let Some(head) = &mut self.head {
            head.reset();
        }
        Ok(())
    }

    /// Checks that the options of a method fit what drafts.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the target lacks a layer, or a model's context is shorter than the draft window.
    pub fn check(&self, method: Method, options: &MethodOptions, target: &ModelInfo) -> Result<()> {
        for stage in method.entry().stages {
            let model = if let Stage::TargetLayers { layers, .. } = stage {
                LayerSkip::of(layers(options, target.n_layer), target)?;
                Some(target)
            } else {
                self.model_of(stage).map(|draft| draft.model().info())
            };
            if let Some((window, model)) = options.draft_window.zip(model) {
                window.check(&model.name, model.context_length)?;
            }
        }
        Ok(())
    }

    /// Applies the options of a method to its proposers and creates those that are missing.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    pub fn prepare(&mut self, method: Method, options: &MethodOptions, target: &ModelInfo) -> Result<()> {
        self.check(method, options, target)?;
        for stage in method.entry().stages {
            match stage {
                Stage::BuiltIn(new) => {
                    self.free.entry(new.type_id()).or_insert_with(|| new.create());
                }
                Stage::DraftModel | Stage::DraftTree => {
                    let tree = matches!(stage, Stage::DraftTree).then(|| options.tree.clone());
                    if let Some(draft) = &mut self.draft {
                        draft.set_tree(tree);
                        draft.set_window(options.draft_window);
                    }
                }
                Stage::TargetLayers { layers, .. } => {
                    let mut layers = LayerSkip::of(layers(options, target.n_layer), target)?;
                    layers.set_window(options.draft_window);
                    self.layers = Some(layers);
                }
                Stage::Head | Stage::HeadTree => {
                    let tree = matches!(stage, Stage::HeadTree).then(|| options.tree.clone());
                    if let Some(head) = &mut self.head {
                        head.set_tree(tree);
                    }
                }
                Stage::LowBitCopy => {
                    if let Some(copy) = &mut self.low_bit {
                        copy.set_window(options.draft_window);
                    }
                }
                Stage::Texts | Stage::Script => {}
            }
        }
        Ok(())
    }

    /// Returns the stages of a method that can draft, in the order they are tried: without optional ones that are not
    /// loaded.
    pub fn loaded_stages(&self, method: Method) -> Vec<&'static Stage> {
        let entry = method.entry();
        entry.stages.iter().filter(|stage| !entry.optional_stages || self.has(stage.needs())).collect()
    }

    /// Borrows the proposers of the [loaded stages](Self::loaded_stages) of a [prepared](Self::prepare) method.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if one of them is missing.
    pub fn stages(&mut self, method: Method) -> Result<Vec<&mut dyn Proposer>> {
        let loaded = self.loaded_stages(method);
        let Self { draft, low_bit, head, texts, script, layers, free } = self;
        let mut free: HashMap<_, _> = free.iter_mut().collect();
        let (mut draft, mut low_bit) = (draft.as_mut(), low_bit.as_mut());
        let (mut head, mut texts) = (head.as_mut(), texts.as_mut());
        let (mut script, mut layers) = (script.as_mut(), layers.as_mut());
        let mut stages: Vec<&mut dyn Proposer> = Vec::new();
        for stage in loaded {
            let proposer: Option<&mut dyn Proposer> = match stage {
                Stage::BuiltIn(new) => free.remove(&new.type_id()).map(|own| &mut **own as _),
                Stage::Texts => texts.take().map(|own| own as _),
                Stage::DraftModel | Stage::DraftTree => draft.take().map(|own| own as _),
                Stage::LowBitCopy => low_bit.take().map(|own| own as _),
                Stage::Head | Stage::HeadTree => head.take().map(|own| own as _),
                Stage::TargetLayers { .. } => layers.take().map(|own| own as _),
                Stage::Script => script.take().map(|own| own as _),
            };
            stages.push(proposer.ok_or_else(|| {
                Error::invalid(format!("A proposer of the method {method} is not loaded."))
            })?);
        }
        Ok(stages)
    }
}
