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
use crate::services::texts::{TextSource, Texts};
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
        let read = match self.read_texts(sources, &|| false) {
            Err(error) if !only_removes => return Err(error),
            read => read,
        };
        let tokenizer = models.ready().ok().map(|ready| ready.details.tokenizer.clone());
        let texts = match (read, &tokenizer) {
            (Ok(Some(texts)), Some(tokenizer)) => Ok(Some(indexed(&texts, tokenizer, &|| false)?)),
            (Ok(_), _) => Ok(None),
            (Err(error), _) => Err(error),
        };
        let _turn = models.try_turn()?;
        let ready = models.ready().ok();
        let is_same = |ready: &ReadyModels| {
            tokenizer.as_ref().is_some_and(|read_for| Arc::ptr_eq(read_for, &ready.details.tokenizer))
        };
        let Some(ready) = ready else {
            self.store_texts(sources)?;
            return Ok(None);
        };
        if !is_same(&ready) {
            // Others were loaded while the texts were read.
            return Err(Error::Busy(RunningWork::Loading));
        }
        let (texts, problem) = match texts {
            Ok(texts) => (texts, None),
            Err(error) => (None, Some(ErrorInfo::from(&error))),
        };
        let before = ready.details.plan.texts.clone();
        let (details, texts) = self.use_texts(&ready.details, texts)?;
        if let Err(error) = self.store_texts(sources) {
            self.shared.engine.ask(self.next_id(), move |models, _| {
                models.set_texts(before);
                Ok(())
            })?;
            return Err(error);
        }
        let loaded = LoadedModels {
            methods: details.methods.clone(),
            texts,
            texts_problem: problem,
            ..ready.loaded.clone()
        };
        let skipped_layers = ready.skipped_layers.clone();
        models.set_ready(ReadyModels { loaded: loaded.clone(), details, skipped_layers });
        Ok(Some(loaded))
    }

    /// Gives the chosen texts to models that were just loaded. Returns their details, what they copy from, and why they do
    /// not.
    pub(super) fn use_chosen_texts(
        &self,
        details: Loaded,
        stop: &StopFlag,
    ) -> (Loaded, Option<LoadedTexts>, Option<ErrorInfo>) {
        let stopped = || stop.load(Ordering::Relaxed);
        let texts = self
            .chosen_texts()
            .and_then(|sources| self.read_texts(&sources, &stopped))
            .and_then(|texts| texts.map(|texts| indexed(&texts, &details.tokenizer, &stopped)).transpose());
        let (texts, problem) = match texts {
            Ok(texts) => (texts, None),
            Err(error) => (None, Some((&error).into())),
        };
        // A change of the draft model leaves the earlier ones in place.
        if texts.is_none() && details.plan.texts.is_none() {
            return (details, None, problem);
        }
        match self.use_texts(&details, texts) {
            Ok((details, texts)) => (details, texts, problem),
            Err(error) => (details, None, Some((&error).into())),
        }
    }

    fn use_texts(
        &self,
        details: &Loaded,
        texts: Option<IndexedTexts>,
    ) -> Result<(Loaded, Option<LoadedTexts>)> {
        let (index, shown) = texts.map(|texts| (texts.index, texts.shown)).unzip();
        let (plan, methods) = self.shared.engine.ask(self.next_id(), move |models, _| {
            models.set_texts(index);
            Ok((models.plan(), models.usable_methods()))
        })?;
        Ok((Loaded { plan, methods, ..details.clone() }, shown))
    }

    /// Reads texts. `None` without sources.
    fn read_texts(&self, sources: &[String], stopped: &dyn Fn() -> bool) -> Result<Option<Texts>> {
        if sources.is_empty() {
            return Ok(None);
        }
        let Ok(sources) = sources.iter().map(|source| source.parse()).collect::<Result<Vec<TextSource>, _>>();
        let conversations = self.shared.store_path.as_deref().unwrap_or(Path::new(""));
        Texts::read(&sources, conversations, stopped).map(Some)
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

fn indexed(texts: &Texts, tokenizer: &Tokenizer, stopped: &dyn Fn() -> bool) -> Result<IndexedTexts> {
    let index = texts.index(tokenizer, stopped)?;
    let shown = LoadedTexts { texts: texts.count() as u32, tokens: index.len() as u32, cut: texts.is_cut() };
    Ok(IndexedTexts { index: index.into(), shown })
}
