//! The texts of the user that drafts are copied from: which ones were chosen, and giving them to the loaded models.
//! Reading and indexing them belongs to [`crate::services::texts`].

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::App;
use super::load_state::ReadyModels;
use crate::api::{LoadedModels, LoadedTexts};
use crate::engine::Loaded;
use crate::services::texts::{TextSource, Texts};
use hunch_core::propose::retrieval::TextIndex;
use hunch_error::Result;
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
    /// # Errors
    /// If a source cannot be read or has no text, or while the models are in use. The earlier choice stays then.
    pub fn choose_texts(&self, sources: &[String]) -> Result<Option<LoadedModels>> {
        let models = &self.shared.models;
        let _turn = models.try_turn()?;
        self.shared.engine.check_free()?;
        let texts = self.read_texts(sources)?;
        let Ok(ready) = models.ready() else {
            self.store_texts(sources)?;
            return Ok(None);
        };
        let indexed = texts.map(|texts| indexed(&texts, &ready.details.tokenizer)).transpose()?;
        self.store_texts(sources)?;
        let (details, texts) = self.use_texts(&ready.details, indexed)?;
        let loaded = LoadedModels {
            methods: details.methods.clone(),
            texts,
            texts_problem: None,
            ..ready.loaded.clone()
        };
        let skipped_layers = ready.skipped_layers.clone();
        models.set_ready(ReadyModels { loaded: loaded.clone(), details, skipped_layers });
        Ok(Some(loaded))
    }

    /// Gives the chosen texts to models that were just loaded. Returns their details, and what they copy from.
    ///
    /// # Errors
    /// If the texts cannot be read, or the models are in use.
    pub(super) fn use_chosen_texts(&self, details: &Loaded) -> Result<(Loaded, Option<LoadedTexts>)> {
        let texts = self.read_texts(&self.chosen_texts())?;
        // A change of the draft model leaves them in place, and they may have changed.
        if texts.is_none() && details.plan.texts.is_none() {
            return Ok((details.clone(), None));
        }
        let indexed = texts.map(|texts| indexed(&texts, &details.tokenizer)).transpose()?;
        self.use_texts(details, indexed)
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
    fn read_texts(&self, sources: &[String]) -> Result<Option<Texts>> {
        if sources.is_empty() {
            return Ok(None);
        }
        let Ok(sources) = sources.iter().map(|source| source.parse()).collect::<Result<Vec<TextSource>, _>>();
        Texts::read(&sources, self.shared.store_path.as_deref().unwrap_or(Path::new(""))).map(Some)
    }

    /// Returns the sources of the chosen texts.
    pub fn chosen_texts(&self) -> Vec<String> {
        let stored = self.store().preferences().ok().and_then(|mut all| all.remove(TEXTS));
        stored.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
    }

    fn store_texts(&self, sources: &[String]) -> Result<()> {
        Ok(self.store().set_preference(TEXTS, &Value::from(sources))?)
    }
}

fn indexed(texts: &Texts, tokenizer: &Tokenizer) -> Result<IndexedTexts> {
    let index = texts.index(tokenizer)?;
    let shown = LoadedTexts {
        texts: texts.count() as u32,
        tokens: index.len() as u32,
        bytes: index.bytes() as u64,
        cut: texts.is_cut(),
    };
    Ok(IndexedTexts { index: index.into(), shown })
}
