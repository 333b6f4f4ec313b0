//! The steps of a download. List the repository, check for existing files, reserve space, fetch, verify and
//! install.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::disk_space::{ReservationGuard, Shortage};
use super::fetch::{Backoff, FetchError, FetchJob, fetch};
use super::install::{self, Destination};
use super::partial_state::{self, PartialDownload, PartialState};
use super::progress::{Meter, SpeedAverage};
use super::{Inner, blocking, is_active};
use crate::hub::{Listing, RemoteFile, RequestFailure, Retry, model_name};
use crate::types::{
    Download, DownloadPhase, DownloadRequest, HubCard, HubRepository, HubSearch, HubSearchPage, LibraryEvent,
};
use hunch_error::{Error, ErrorInfo, Refusal, Result};

/// Interval of progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Limit of changes of a file on the Hub during one download.
const MAX_CHANGES: usize = 4;
/// Retries of a listing that the user is waiting for.
const LISTING_RETRIES: usize = 2;
/// Longest wait before such a retry. If the Hub asks for more, the error is reported at once.
const MAX_LISTING_WAIT: Duration = Duration::from_secs(5);

/// Lists a repository's models, with short retries.
pub(super) async fn repository(inner: &Inner, repository: &str) -> Result<HubRepository> {
    with_short_retries(inner, || inner.hub.listing(repository)).await.map(|listing| listing.repository)
}

/// Searches the Hub, with short retries and a limit of the time.
pub(super) async fn search(inner: &Inner, search: &HubSearch) -> Result<HubSearchPage> {
    inner.hub.unlock().await;
    in_time(inner, with_short_retries(inner, || inner.hub.search(search))).await
}

/// Fetches a model card, as a search.
pub(super) async fn card(inner: &Inner, repository: &str) -> Result<HubCard> {
    inner.hub.unlock().await;
    in_time(inner, with_short_retries(inner, || inner.hub.card(repository))).await
}

/// Limits the time of an answer that the user is waiting for. A server may send it byte by byte. The keychain is
/// [unlocked](crate::hub::Hub::unlock) before: a person may take longer than a server may.
async fn in_time<T>(inner: &Inner, work: impl Future<Output = Result<T>>) -> Result<T> {
    let limit = inner.settings.answer_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        Err(Refusal::HubSlow { endpoint: inner.hub.address(), seconds: limit.as_secs().max(1) }.into())
    })
}

/// Repeats a request that the user is waiting for, unless the Hub asks for a longer wait than the user has patience for.
async fn with_short_retries<T, F>(inner: &Inner, mut request: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T, RequestFailure>>,
{
    let mut settings = inner.settings.clone();
    settings.max_retries = settings.max_retries.min(LISTING_RETRIES);
    settings.max_backoff = settings.min_backoff;
    let mut backoff = Backoff::new(&settings);
    loop {
        let failure = match request().await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        if matches!(failure.retry, Retry::After(Some(wait)) if wait > MAX_LISTING_WAIT) {
            return Err(failure.error);
        }
        match backoff.next(failure) {
            Ok(wait) => (settings.sleep)(wait.min(MAX_LISTING_WAIT)).await,
            Err(FetchError::Changed(error) | FetchError::Failed(error)) => return Err(error),
        }
    }
}

/// A task of a download.
pub(super) struct Task {
    pub(super) inner: Arc<Inner>,
    pub(super) id: String,
    /// Its number among all tasks.
    pub(super) generation: u64,
    pub(super) request: DownloadRequest,
    pub(super) partial: PartialDownload,
}

impl Task {
    fn publish(&self, change: impl FnOnce(&mut Download)) {
        self.inner.publish(&self.id, self.generation, change);
    }

    fn fail(&self, error: &Error) {
        self.publish(|view| {
            (view.phase, view.error) = (DownloadPhase::Failed, Some(ErrorInfo::from(error)));
            (view.bytes_per_second, view.seconds_left) = (None, None);
        });
    }

    /// Returns the short name of the model. Falls back to the id if the state file is unreadable.
    fn name(&self) -> &str {
        if self.request.file.is_empty() { &self.id } else { model_name(&self.request) }
    }

    fn state(&self) -> PartialState {
        self.partial.load().unwrap_or_else(|| PartialState::new(&self.request))
    }

    /// Records that the download is paused. Does nothing when its folder is gone: another Hunch has
    /// finished or removed the download since, and a new folder would bring it back.
    pub(super) fn record_pause(&self) {
        let had_folder = self.inner.view(&self.id).is_ok_and(|view| view.done_bytes > 0);
        // If this cannot be written, the download resumes after a restart, which does no harm.
        if let Ok(_guard) = self.partial.lock(self.name())
            && (self.partial.exists() || !had_folder)
        {
            let _ = self.partial.store(&PartialState { resume_on_start: false, ..self.state() });
        }
    }

    /// Deletes the download.
    pub(super) fn remove(&self) {
        match self.partial.lock(self.name()).and_then(|_guard| self.partial.remove()) {
            Ok(()) => self.inner.remove_entry(&self.id, self.generation),
            Err(error) => self.fail(&error),
        }
    }

    /// Downloads and installs the model, and publishes the result.
    pub(super) async fn fetch(self) {
        let guard = match self.partial.lock(self.name()) {
            Ok(guard) => guard,
            Err(error) => return self.fail(&error),
        };
        match self.complete().await {
            Ok(destination) => {
                // The model is installed. Remaining files are only clutter.
                let _ = self.partial.remove();
                let head = match destination.head() {
                    Ok(head) => head,
                    Err(error) => return self.fail(&error),
                };
                self.publish(|view| {
                    (view.phase, view.error) = (DownloadPhase::Done, None);
                    (view.bytes_per_second, view.seconds_left) = (None, None);
                    view.path = Some(destination.files[0].display().to_string());
                    (view.name, view.head) = (destination.name, head);
                });
                self.inner.notify(LibraryEvent::Changed);
            }
            Err(error) => {
                let _ = self.partial.store(&PartialState { resume_on_start: false, ..self.state() });
                self.publish(|view| view.done_bytes = self.partial.bytes(&self.state()));
                self.fail(&error);
            }
        }
        drop(guard);
    }

    async fn complete(&self) -> Result<Destination> {
        self.partial.store(&PartialState {
            request: self.request.clone(),
            resume_on_start: true,
            ..self.state()
        })?;
        let mut last_change = None;
        for _ in 0..MAX_CHANGES {
            let listing = self.list_repository().await?;
            let parts = self.match_parts(&listing)?;
            let destination = self.destination(&parts).await?;
            let meter = self.meter(&parts, &destination);
            let reserved = self.reserve_space(&parts, &meter)?;
            let fetched = self.fetch_parts(&listing, &parts, &destination, &meter).await;
            // Nothing more is written.
            drop(reserved);
            match fetched {
                Ok(()) => return self.finish(&parts).await,
                Err(FetchError::Failed(error)) => return Err(error),
                Err(FetchError::Changed(error)) => last_change = Some(error),
            }
        }
        Err(last_change.expect("the loop ends only after a change"))
    }

    /// Lists the repository, with retries.
    async fn list_repository(&self) -> Result<Listing> {
        let mut backoff = Backoff::new(&self.inner.settings);
        loop {
            let failure = match self.inner.hub.listing(&self.request.repository).await {
                Ok(listing) => return Ok(listing),
                Err(failure) => failure,
            };
            self.publish(|view| {
                (view.phase, view.error) = (DownloadPhase::Retrying, Some(ErrorInfo::from(&failure.error)));
            });
            match backoff.next(failure) {
                Ok(wait) => (self.inner.settings.sleep)(wait).await,
                Err(FetchError::Changed(error) | FetchError::Failed(error)) => return Err(error),
            }
        }
    }

    /// Returns the files of the model, with the expected checksum if there is one.
    ///
    /// # Errors
    /// If the Hub has no such model, or one with a different checksum.
    fn parts(&self, listing: &Listing) -> Result<Vec<RemoteFile>> {
        let mut parts = listing.parts(&self.request.file)?.to_vec();
        // The catalogue has no checksums of split models.
        if let (Some(expected), [part]) = (&self.request.expected_sha256, &mut parts[..]) {
            let found = part.sha256.get_or_insert_with(|| expected.to_ascii_lowercase());
            if !found.eq_ignore_ascii_case(expected) {
                let beginning = |sha256: &str| sha256.chars().take(12).collect();
                return Err(Error::CatalogueMismatch {
                    file: format!("{} of {}", self.request.file, self.request.repository),
                    expected: beginning(expected),
                    found: beginning(found),
                });
            }
        }
        Ok(parts)
    }

    /// Keeps partial files of unchanged files, and deletes the others.
    fn match_parts(&self, listing: &Listing) -> Result<Vec<RemoteFile>> {
        let parts = self.parts(listing)?;
        let state = self.state();
        install::take_apart(&self.partial, &state.parts)?;
        for index in 0..parts.len().max(state.parts.len()) {
            let same = parts.get(index).is_some_and(|part| {
                // Without a checksum, nothing proves that the bytes belong to the same file.
                part.sha256.is_some() && state.parts.get(index) == Some(part)
            });
            if !same {
                self.partial.delete_part(index)?;
            }
        }
        let state =
            PartialState { request: self.request.clone(), resume_on_start: true, parts: parts.clone() };
        self.partial.store(&state)?;
        self.publish(|view| {
            (view.total_bytes, view.done_bytes) = (state.total(), self.partial.bytes(&state));
            (view.phase, view.error) = (DownloadPhase::Waiting, None);
        });
        Ok(parts)
    }

    async fn destination(&self, parts: &[RemoteFile]) -> Result<Destination> {
        let (models, stem, parts) = (self.inner.models.clone(), self.name().to_owned(), parts.to_vec());
        blocking(move |cancelled| Destination::choose(&models, &stem, &parts, cancelled)).await?
    }

    fn meter(&self, parts: &[RemoteFile], destination: &Destination) -> Arc<Meter> {
        let bytes = |index: usize| {
            if destination.exists[index] { parts[index].size } else { self.partial.part_bytes(index) }
        };
        Arc::new(Meter::new((0..parts.len()).map(bytes)))
    }

    /// Reserves the disk space for the missing bytes.
    fn reserve_space(&self, parts: &[RemoteFile], meter: &Arc<Meter>) -> Result<ReservationGuard<'_>> {
        let Inner { reservations, settings, models, .. } = &*self.inner;
        let size = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.size));
        let reserved =
            reservations.reserve(self.generation, size, meter, self.needed_by_other_programs(), || {
                (settings.free_space)(models)
            });
        reserved.map_err(|Shortage { missing, reserved }| Error::DiskFull {
            folder: models.clone(),
            missing,
            reserved,
        })
    }

    /// Returns the bytes needed by active downloads of other programs. A stopped task of this program holds
    /// its lock a moment longer and does not count.
    fn needed_by_other_programs(&self) -> u64 {
        let active = |id: &str| self.inner.view(id).is_ok_and(|view| is_active(view.phase));
        let ours = |id: &str| active(id) || self.inner.is_busy(id);
        let needed = partial_state::all_readable(&self.inner.models).into_iter().filter_map(|(id, state)| {
            let partial = self.inner.partial(&id);
            let theirs = !ours(&id) && partial.is_locked();
            theirs.then(|| state.total().unwrap_or(0).saturating_sub(partial.bytes(&state)))
        });
        needed.fold(0, u64::saturating_add)
    }

    /// Fetches the missing files in parallel and publishes progress.
    async fn fetch_parts(
        &self,
        listing: &Listing,
        parts: &[RemoteFile],
        destination: &Destination,
        meter: &Arc<Meter>,
    ) -> Result<(), FetchError> {
        let inner = &self.inner;
        // Dropping it aborts the transfers.
        let mut fetching = JoinSet::new();
        for (index, part) in parts.iter().enumerate().filter(|(index, _)| !destination.exists[*index]) {
            fetching.spawn(fetch(FetchJob {
                hub: Arc::clone(&inner.hub),
                settings: inner.settings.clone(),
                slots: Arc::clone(&inner.slots),
                repository: self.request.repository.clone(),
                revision: listing.repository.revision.clone(),
                remote: part.clone(),
                path: self.partial.part_path(index),
                models: inner.models.clone(),
                meter: Arc::clone(meter),
                index,
            }));
        }
        let mut speed = SpeedAverage::default();
        loop {
            self.show(meter, &mut speed);
            match tokio::time::timeout(PROGRESS_INTERVAL, fetching.join_next()).await {
                Err(_) | Ok(Some(Ok(Ok(())))) => {}
                Ok(None) => return Ok(()),
                Ok(Some(Ok(Err(ended)))) => return Err(ended),
                Ok(Some(Err(error))) => {
                    return Err(FetchError::Failed(Error::Internal(format!(
                        "a download task failed: {error}"
                    ))));
                }
            }
        }
    }

    fn show(&self, meter: &Meter, speed: &mut SpeedAverage) {
        let (bytes, phase, error) = meter.total();
        let per_second = speed.update(Instant::now(), bytes);
        self.publish(|view| {
            (view.phase, view.error, view.done_bytes) = (phase, error, bytes);
            view.bytes_per_second = per_second;
            let left = |speed: f64| Some(view.total_bytes?.saturating_sub(bytes) as f64 / speed);
            view.seconds_left = per_second.and_then(left);
        });
    }

    /// Verifies checksums and installs the files.
    async fn finish(&self, parts: &[RemoteFile]) -> Result<Destination> {
        self.publish(|view| {
            (view.phase, view.error) = (DownloadPhase::Checking, None);
            (view.bytes_per_second, view.seconds_left) = (None, None);
        });
        let mut destination = self.destination(parts).await?;
        for (index, part) in parts.iter().enumerate().filter(|(index, _)| !destination.exists[*index]) {
            let (partial, part) = (self.partial.clone(), part.clone());
            blocking(move |cancelled| install::check(&partial, index, &part, cancelled)).await??;
        }
        while !install::install(&self.partial, &destination)? {
            destination = self.destination(parts).await?;
        }
        Ok(destination)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DownloadSettings, Downloads};
    use super::*;
    use crate::http::ProxyChoice;
    use crate::hub::{HubConfig, TokenSources};

    #[test]
    fn stopped_download_holding_its_lock_is_not_another_programs() {
        let folder = tempfile::tempdir().unwrap();
        // No request is made.
        let hub = HubConfig {
            endpoint: "http://127.0.0.1:1".into(),
            tokens: TokenSources::default(),
            proxy: ProxyChoice::None,
        };
        let downloads = Downloads::open(folder.path(), hub, DownloadSettings::default()).unwrap();
        let inner = &downloads.inner;
        let request = |file: &str| DownloadRequest {
            repository: "a/b".into(),
            file: file.into(),
            expected_sha256: None,
        };
        let task_of = |request: DownloadRequest| {
            let id = partial_state::download_id(&request);
            Task { inner: Arc::clone(inner), partial: inner.partial(&id), id, generation: 1, request }
        };
        let (stopped, new) = (task_of(request("stopped.gguf")), task_of(request("new.gguf")));
        let part = RemoteFile { path: "stopped.gguf".into(), size: 100, sha256: None };
        stopped.partial.store(&PartialState { parts: vec![part], ..stopped.state() }).unwrap();
        inner.sync_from_disk();
        assert_eq!(new.needed_by_other_programs(), 0, "it is not active");
        let guard = stopped.partial.lock("stopped").unwrap();
        assert_eq!(new.needed_by_other_programs(), 100, "another program holds it");
        let task = inner.runtime.spawn(std::future::pending());
        let end = task.abort_handle();
        inner.tasks.lock().insert(stopped.id.clone(), task);
        assert_eq!(new.needed_by_other_programs(), 0, "a stopped task of this program holds it");
        end.abort();
        drop(guard);
    }
}
