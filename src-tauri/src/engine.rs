//! The engine as the window holds it: started or not, and the answer that is being written or the
//! measurement that runs. No command and no window here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hunch::api::{AnswerRequest, Answering, StreamMessage};
use hunch::app::{App, AppConfig};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Result};

/// Takes the messages of one generation, in order.
pub(crate) type Sink = Box<dyn FnMut(StreamMessage) + Send>;

/// The application, or why it could not start. Cheap to clone; the state of the window.
#[derive(Clone)]
pub(crate) struct Engine {
    app: Result<App, ErrorInfo>,
    /// The generation or measurement started last.
    last: Arc<Mutex<Option<u32>>>,
}

impl Engine {
    /// Starts the engine with its default configuration. A failure is kept and told to every
    /// caller of [`Engine::app`].
    pub(crate) fn start() -> Self {
        Self::new(App::start(AppConfig::default()))
    }

    fn new(app: Result<App>) -> Self {
        Self { app: app.as_ref().map(App::clone).map_err(ErrorInfo::from), last: Arc::default() }
    }

    /// The application.
    ///
    /// # Errors
    /// Why the engine could not start.
    pub(crate) fn app(&self) -> Result<&App, ErrorInfo> {
        self.app.as_ref().map_err(ErrorInfo::clone)
    }

    /// Starts an answer in a conversation and remembers its number for [`Engine::abandon`].
    ///
    /// # Errors
    /// Those of [`App::answer`], and why the engine could not start.
    pub(crate) fn answer(&self, request: AnswerRequest, sink: Sink) -> Result<Answering, ErrorInfo> {
        let answering = self.app()?.answer(request, sink).map_err(info)?;
        *lock(&self.last) = Some(answering.generation_id);
        Ok(answering)
    }

    /// Starts a measurement and remembers its number for [`Engine::abandon`].
    ///
    /// # Errors
    /// Those of `start`, and why the engine could not start.
    pub(crate) fn measuring(&self, start: impl FnOnce(&App) -> Result<u32>) -> Result<u32, ErrorInfo> {
        let id = start(self.app()?).map_err(info)?;
        *lock(&self.last) = Some(id);
        Ok(id)
    }

    /// Stops the answer or measurement nobody listens to any more.
    pub(crate) fn abandon(&self) {
        let last = lock(&self.last).take();
        if let (Ok(app), Some(generation_id)) = (self.app(), last) {
            // It may have ended long ago, which is as good.
            let _ = app.stop_generation(generation_id);
        }
    }

    /// Ends the engine; the process is about to exit.
    pub(crate) fn shutdown(&self) {
        if let Ok(app) = self.app() {
            app.shutdown();
        }
    }
}

/// An error as the window gets it.
pub(crate) fn info(error: Error) -> ErrorInfo {
    ErrorInfo::from(&error)
}

/// Locks; a number is valid whatever panicked while they were held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use hunch_error::ErrorCode;

    use super::*;

    #[test]
    fn an_engine_that_did_not_start_says_why_and_nothing_panics() {
        let engine = Engine::new(Err(Error::Internal("no device".into())));
        engine.abandon();
        engine.shutdown();
        let error = engine.app().err().expect("it did not start");
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(error.message.contains("no device"), "{}", error.message);
    }
}
