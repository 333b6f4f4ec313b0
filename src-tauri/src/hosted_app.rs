//! The application as state of the window, with the number of its last generation or measurement.

use std::sync::Arc;

use hunch::api::{AnswerRequest, Answering, StreamMessage};
use hunch::app::{App, AppConfig};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Result};
use hunch_library::keychain;
use parking_lot::Mutex;

use crate::channel_sink::Sink;

/// The application, or the error that prevented its start. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HostedApp {
    app: Result<App, ErrorInfo>,
    /// Number of the last generation or measurement.
    last: Arc<Mutex<Option<u32>>>,
}

impl HostedApp {
    /// Starts the application with its default configuration. [`HostedApp::app`] returns the error of a failed start.
    pub(crate) fn start() -> Self {
        let keychain = keychain::of_this_machine();
        Self::new(App::start(AppConfig { keychain, ..AppConfig::default() }))
    }

    fn new(app: Result<App>) -> Self {
        Self { app: app.as_ref().map(App::clone).map_err(ErrorInfo::from), last: Arc::default() }
    }

    /// Returns the application.
    ///
    /// # Errors
    /// If it could not start.
    pub(crate) fn app(&self) -> Result<&App, ErrorInfo> {
        self.app.as_ref().map_err(ErrorInfo::clone)
    }

    /// Starts an answer and records its number for [`HostedApp::abandon`].
    ///
    /// # Errors
    /// The errors of [`App::answer`] and [`HostedApp::app`].
    pub(crate) fn answer(
        &self,
        request: AnswerRequest,
        sink: Sink<StreamMessage>,
    ) -> Result<Answering, ErrorInfo> {
        let answering = self.app()?.answer(request, sink).map_err(info)?;
        *self.last.lock() = Some(answering.generation_id);
        Ok(answering)
    }

    /// Starts a measurement and records its number for [`HostedApp::abandon`].
    ///
    /// # Errors
    /// The errors of `start` and [`HostedApp::app`].
    pub(crate) fn start_measurement(
        &self,
        start: impl FnOnce(&App) -> Result<u32>,
    ) -> Result<u32, ErrorInfo> {
        let id = start(self.app()?).map_err(info)?;
        *self.last.lock() = Some(id);
        Ok(id)
    }

    /// Cancels the last answer or measurement, whose page is gone.
    pub(crate) fn abandon(&self) {
        let last = self.last.lock().take();
        if let (Ok(app), Some(generation_id)) = (self.app(), last) {
            // Has no effect if it has already ended.
            app.stop_generation(generation_id);
        }
    }

    /// Ends the engine before the process exits.
    pub(crate) fn shutdown(&self) {
        if let Ok(app) = self.app() {
            app.shutdown();
        }
    }
}

/// Converts an error for the page.
pub(crate) fn info(error: Error) -> ErrorInfo {
    ErrorInfo::from(&error)
}

#[cfg(test)]
mod tests {
    use hunch_error::ErrorCode;

    use super::*;

    #[test]
    fn failed_start_is_reported_to_every_caller() {
        let hosted = HostedApp::new(Err(Error::Internal("no device".into())));
        hosted.abandon();
        hosted.shutdown();
        let error = hosted.app().err().expect("the start failed");
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(error.message.contains("no device"), "{}", error.message);
    }
}
