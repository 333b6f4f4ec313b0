//! Updates of the app: finds a newer version, downloads it, checks its signature, installs it.
//!
//! Off unless the build has `plugins.updater` in its configuration. `scripts/release-bundle` writes that, with the public
//! key and the address of the manifest. The request for the manifest names neither the machine nor the version.
//! A download stays in memory until it is installed. The file may only change right before a restart, because the app
//! starts it again to render chat templates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hunch::api::{UpdateProgress, UpdateState};
use hunch::app::App;
use hunch_error::{Error, Result, RunningWork};
use parking_lot::{Mutex, MutexGuard};
use tauri::utils::platform;
use tauri::{Config, Manager, Runtime};
use tauri_plugin_updater::{Error as PluginError, Update, UpdaterExt};

use crate::channel_sink::Sink;

/// Timeout for a connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(15);
/// Longest wait for data from a server.
const STALLS_AFTER: Duration = Duration::from_secs(30);

/// Updates of this copy of the app.
pub(crate) struct Updates {
    on: bool,
    /// File that an update replaces, if it is not the running one.
    executable: Option<PathBuf>,
    newer: Mutex<Option<Newer>>,
    /// Held while an update is looked for, downloaded or installed.
    turn: Mutex<()>,
}

/// A newer version.
#[derive(Clone)]
struct Newer {
    update: Update,
    /// The bundle, if it was downloaded and its signature is valid.
    bundle: Option<Arc<Vec<u8>>>,
}

impl Updates {
    /// Returns the updates of the running app.
    pub(crate) fn of_this_copy(config: &Config) -> Self {
        Self::new(config.plugins.0.contains_key("updater") && is_bundle(), None)
    }

    fn new(on: bool, executable: Option<PathBuf>) -> Self {
        Self { on, executable, newer: Mutex::default(), turn: Mutex::default() }
    }

    /// Returns true if this copy can be updated. The plugin is needed then.
    pub(crate) fn are_on(&self) -> bool {
        self.on
    }

    /// Returns what is known, without asking a server.
    pub(crate) fn state(&self) -> UpdateState {
        let version = |newer: &Newer| newer.update.version.clone();
        match &*self.newer.lock() {
            _ if !self.on => UpdateState::Off,
            None => UpdateState::None,
            Some(newer) if newer.bundle.is_none() => UpdateState::Found { version: version(newer) },
            Some(newer) => UpdateState::Ready { version: version(newer) },
        }
    }

    /// Looks for a newer version. Blocks. A downloaded bundle is kept if there is nothing newer.
    ///
    /// # Errors
    /// [`Error::UpdateUnreachable`], or [`Error::Busy`] during another step.
    pub(crate) fn check<R: Runtime>(&self, app: &impl Manager<R>) -> Result<UpdateState> {
        if !self.on {
            return Ok(self.state());
        }
        let _turn = self.take_turn()?;
        let mut builder = app
            .updater_builder()
            .timeout(STALLS_AFTER)
            .configure_client(|client| client.connect_timeout(CONNECTS_WITHIN).read_timeout(STALLS_AFTER));
        if let Some(executable) = &self.executable {
            builder = builder.executable_path(executable);
        }
        let updater = builder.build().map_err(unreachable)?;
        let found = tauri::async_runtime::block_on(updater.check()).map_err(unreachable)?;
        let mut newer = self.newer.lock();
        let is_known =
            |update: &Update| newer.as_ref().is_some_and(|old| old.update.version == update.version);
        match found {
            Some(update) if is_known(&update) => {}
            found => *newer = found.map(|update| Newer { update, bundle: None }),
        }
        drop(newer);
        Ok(self.state())
    }

    /// Downloads the newer version, if there is one, and checks its signature. Blocks.
    ///
    /// # Errors
    /// [`Error::UpdateUnreachable`], [`Error::UpdateRejected`] if the signature is not that of this release, or
    /// [`Error::Busy`] during another step.
    pub(crate) fn download(&self, mut sink: Sink<UpdateProgress>) -> Result<UpdateState> {
        let _turn = self.take_turn()?;
        let newer = self.newer.lock().clone();
        let Some(Newer { update, bundle: None }) = newer else { return Ok(self.state()) };
        let mut received = 0;
        let on_chunk = |bytes: usize, total| {
            received += bytes as u64;
            sink(UpdateProgress { received, total });
        };
        let downloaded = tauri::async_runtime::block_on(update.download(on_chunk, || ()));
        let bundle = downloaded.map_err(|error| match error {
            PluginError::Reqwest(_) | PluginError::Network(_) | PluginError::Io(_) => unreachable(error),
            other => Error::UpdateRejected { version: update.version.clone(), reason: defect(&other) },
        })?;
        *self.newer.lock() = Some(Newer { update, bundle: Some(Arc::new(bundle)) });
        Ok(self.state())
    }

    /// Installs the downloaded version. The app must restart right after it. Blocks: the system may ask for a password.
    ///
    /// The engine starts nothing meanwhile, nor until the restart, which would cut it off. `app` is `None` if its engine
    /// failed to start: the update may be the remedy.
    ///
    /// # Errors
    /// [`Error::UpdateNotInstalled`]. [`Error::InvalidRequest`] if nothing was downloaded. [`Error::Busy`] while the
    /// engine works or during another step.
    pub(crate) fn install(&self, app: Option<&App>) -> Result<()> {
        let _turn = self.take_turn()?;
        let newer = self.newer.lock().clone();
        let Some(Newer { update, bundle: Some(bundle) }) = newer else {
            return Err(Error::invalid("No update was downloaded. Look for updates and download one first."));
        };
        let hold = app.map(App::hold_for_update).transpose()?;
        update.install(&*bundle).map_err(|error| Error::UpdateNotInstalled {
            version: update.version.clone(),
            reason: reason(&error),
        })?;
        if let Some(hold) = hold {
            hold.keep();
        }
        Ok(())
    }

    /// Starts a step.
    ///
    /// # Errors
    /// [`Error::Busy`] during another one.
    fn take_turn(&self) -> Result<MutexGuard<'_, ()>> {
        self.turn.try_lock().ok_or(Error::Busy(RunningWork::Update))
    }
}

/// Returns true if the running program is from a bundle that an update can replace. A program that was built here must
/// not be replaced, and neither must the folder it is in.
fn is_bundle() -> bool {
    if cfg!(target_os = "macos") {
        let executable = platform::current_exe().unwrap_or_default();
        executable.parent().is_some_and(|folder| folder.ends_with("Contents/MacOS"))
    } else {
        platform::bundle_type().is_some()
    }
}

fn unreachable(error: PluginError) -> Error {
    Error::UpdateUnreachable(reason(&error))
}

/// Returns the defect of a signature.
fn defect(error: &PluginError) -> String {
    match error {
        PluginError::Minisign(_) => "the signature does not belong to the bundle".into(),
        PluginError::MissingSignedVersion => "the signature names no version".into(),
        PluginError::SignedVersionMismatch { signed, .. } => format!("the signature is for version {signed}"),
        other => reason(other),
    }
}

/// Returns the innermost cause of an error, without a full stop. The outer ones name layers of the network client.
fn reason(error: &dyn std::error::Error) -> String {
    let cause = std::iter::successors(Some(error), |error| error.source()).last();
    cause.map(ToString::to_string).unwrap_or_default().trim_matches(['`', '.']).to_owned()
}

#[cfg(test)]
#[path = "updates_tests.rs"]
mod tests;
