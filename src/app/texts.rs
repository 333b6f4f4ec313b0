//! The texts of the user that drafts are copied from: which ones were chosen, and giving them to the loaded models.
//! Reading and indexing them belongs to [`crate::services::texts`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;

use super::App;
use super::load_state::{ReadyModels, StopFlag};
use crate::api::{LoadedModels, LoadedTexts};
use crate::engine::Loaded;
use crate::generate::LoadPlan;
use crate::services::texts::{TextSource, Texts};
use hunch_core::method::Method;
use hunch_core::propose::retrieval::TextIndex;
use hunch_error::{Error, ErrorInfo, Result, RunningWork};
use hunch_model::text::Tokenizer;

/// Preference: the sources of the texts, as [`TextSource`] parses them. Only [`App::choose_texts`] changes it.
pub(super) const TEXTS: &str = "texts";

/// Texts in tokens of a model.
struct IndexedTexts {
    index: Arc<TextIndex>,
    shown: LoadedTexts,
}

/// Loaded models, and the texts that they copy from.
pub(super) struct WithTexts {
    /// Details of the models with the texts.
    pub(super) details: Loaded,
    /// The texts, if there are any.
    pub(super) texts: Option<LoadedTexts>,
    /// The reason why chosen texts are not used.
    pub(super) problem: Option<ErrorInfo>,
}

impl App {
    /// Chooses the texts that drafts are copied from, and stores the choice. Without sources, none are. Returns the loaded
    /// models, if there are any. They copy from the texts from now on.
    ///
    /// Sources can be removed although others cannot be read. Nothing is copied then, as long as they cannot.
    ///
    /// # Errors
    /// If a source cannot be read or has no text, or while the models are in use. The earlier choice stays then.
    pub fn choose_texts(&self, sources: &[String]) -> Result<Option<LoadedModels>> {
        let models = &self.shared.models;
        self.shared.engine.check_free()?;
        let chosen = self.chosen_texts()?;
        let only_removes = sources.iter().all(|source| chosen.contains(source));
        // Reading may take long, so others may load models meanwhile.
        let tokenizer = models.ready().ok().map(|ready| ready.details.tokenizer.clone());
        let (texts, problem) = match self.indexed_texts(sources, tokenizer.as_deref(), &|| false) {
            Ok(texts) => (texts, None),
            Err(error) if only_removes => (None, Some(ErrorInfo::from(&error))),
            Err(error) => return Err(error),
        };
        let _turn = models.try_turn()?;
        let Ok(ready) = models.ready() else {
            self.store_texts(sources)?;
            return Ok(None);
        };
        if !tokenizer.is_some_and(|tokenizer| Arc::ptr_eq(&tokenizer, &ready.details.tokenizer)) {
            return Err(Error::Busy(RunningWork::Loading));
        }
        let before = ready.details.plan.texts.clone();
        let (details, texts) = self.use_texts(&ready.details, texts)?;
        if let Err(error) = self.store_texts(sources) {
            self.set_engine_texts(before)?;
            return Err(error);
        }
        let loaded = LoadedModels {
            methods: details.methods.clone(),
            texts,
            texts_problem: problem,
            ..ready.loaded.clone()
        };
        models.set_ready(ReadyModels { loaded: loaded.clone(), details });
        Ok(Some(loaded))
    }

    /// Gives the chosen texts to models that were just loaded.
    pub(super) fn use_chosen_texts(&self, details: Loaded, stop: &StopFlag) -> WithTexts {
        let stopped = || stop.load(Ordering::Relaxed);
        let indexed = |sources: Vec<String>| self.indexed_texts(&sources, Some(&details.tokenizer), &stopped);
        let (texts, problem) = match self.chosen_texts().and_then(indexed) {
            Ok(texts) => (texts, None),
            Err(error) => (None, Some((&error).into())),
        };
        // A change of the draft model leaves the earlier ones in place.
        if texts.is_none() && details.plan.texts.is_none() {
            return WithTexts { details, texts: None, problem };
        }
        match self.use_texts(&details, texts) {
            Ok((details, texts)) => WithTexts { details, texts, problem },
            Err(error) => WithTexts { details, texts: None, problem: Some((&error).into()) },
        }
    }

    fn use_texts(
        &self,
        details: &Loaded,
        texts: Option<IndexedTexts>,
    ) -> Result<(Loaded, Option<LoadedTexts>)> {
        let (index, shown) = texts.map(|texts| (texts.index, texts.shown)).unzip();
        let (plan, methods) = self.set_engine_texts(index)?;
        Ok((Loaded { plan, methods, ..details.clone() }, shown))
    }

    /// Replaces the texts in the engine. Returns the plan and the methods of its models.
    fn set_engine_texts(&self, texts: Option<Arc<TextIndex>>) -> Result<(LoadPlan, Vec<Method>)> {
        self.shared.engine.run_and_wait(self.next_id(), move |models, _| {
            models.set_texts(texts);
            Ok((models.plan(), models.usable_methods()))
        })
    }

    /// Reads texts, and makes them tokens of a model if there is one. `None` without a model or sources.
    fn indexed_texts(
        &self,
        sources: &[String],
        tokenizer: Option<&Tokenizer>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<IndexedTexts>> {
        if sources.is_empty() {
            return Ok(None);
        }
        let Ok(sources) = sources.iter().map(|source| source.parse()).collect::<Result<Vec<TextSource>, _>>();
        let conversations = self.shared.store_path.as_deref().unwrap_or(Path::new(""));
        let texts = Texts::read(&sources, conversations, stopped)?;
        let Some(tokenizer) = tokenizer else { return Ok(None) };
        let index = texts.index(tokenizer, stopped)?;
        let (count, tokens) = (texts.count() as u32, index.len() as u32);
        let shown = LoadedTexts { texts: count, tokens, cut: texts.is_cut() };
        Ok(Some(IndexedTexts { index: index.into(), shown }))
    }

    /// Returns the sources of the chosen texts.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn chosen_texts(&self) -> Result<Vec<String>> {
        let stored = self.store().preferences()?.remove(TEXTS);
        Ok(stored.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default())
    }

    fn store_texts(&self, sources: &[String]) -> Result<()> {
        Ok(self.store().set_preference(TEXTS, &Value::from(sources))?)
    }
}
