//! The ones who answer. [`Answerer`] is the single interface to them: the loaded models, or a server.

use std::sync::Arc;

use super::App;
use super::answer_writer::AnswerSink;
use super::load_state::ReadyModels;
use crate::api::{AnswerSettings, StoredMessage};
use crate::generate::Prompt;
use crate::services::measure::SpeedRecorder;
use hunch_error::{Refusal, Result};
use hunch_model::text::Tokenizer;

/// Writes the answers of a conversation.
pub(super) trait Answerer {
    /// Completes the settings with its names, as they are stored with the answer.
    fn sign(&self, settings: AnswerSettings) -> AnswerSettings;

    /// Checks that it can follow the settings.
    ///
    /// # Errors
    /// For a number that is out of range.
    fn check(&self, settings: &AnswerSettings) -> Result<()>;

    /// Returns the tokeniser of an answer that is to be continued.
    ///
    /// # Errors
    /// If the answer is by another writer, or cannot be continued.
    fn tokenizer_of(&self, answer: &StoredMessage) -> Result<Arc<Tokenizer>>;

    /// Returns the log of speeds for its answers. `None` if their speed says nothing about this machine.
    fn speeds(&self) -> Option<SpeedRecorder>;

    /// Starts the answer `id` and returns at once. `sink` receives its events, from another thread.
    ///
    /// # Errors
    /// [`Error::Busy`](hunch_error::Error::Busy) while something runs.
    fn start(&self, id: u32, prompt: Prompt, settings: &AnswerSettings, sink: AnswerSink) -> Result<()>;
}

/// The loaded models.
pub(super) struct LoadedAnswerer {
    pub(super) app: App,
    pub(super) models: Arc<ReadyModels>,
}

impl Answerer for LoadedAnswerer {
    fn sign(&self, settings: AnswerSettings) -> AnswerSettings {
        let loaded = &self.models.loaded;
        let draft = loaded.draft.as_ref().map(|draft| draft.name.clone());
        AnswerSettings { target: loaded.target.name.clone(), draft, server: None, ..settings }
    }

    fn check(&self, settings: &AnswerSettings) -> Result<()> {
        self.app.plan(settings).validate()
    }

    fn tokenizer_of(&self, answer: &StoredMessage) -> Result<Arc<Tokenizer>> {
        // Tokens have another meaning for another model.
        let loaded = &self.models.loaded.target.name;
        let writer = answer.settings.as_ref().map_or("", |settings| settings.target.as_str());
        let by_server = answer.settings.as_ref().is_some_and(|settings| settings.server.is_some());
        if writer == loaded && !by_server {
            return Ok(self.models.details.tokenizer.clone());
        }
        Err(Refusal::OtherWriter { writer: writer.into(), loaded: loaded.clone() }.into())
    }

    fn speeds(&self) -> Option<SpeedRecorder> {
        self.app.speed_recorder()
    }

    fn start(&self, id: u32, prompt: Prompt, settings: &AnswerSettings, sink: AnswerSink) -> Result<()> {
        self.app.shared.engine.generate(id, prompt, self.app.plan(settings), Box::new(sink))
    }
}
