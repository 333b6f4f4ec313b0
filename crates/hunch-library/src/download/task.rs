//! The steps of a download: list the repository, check for existing files, reserve space, fetch, verify and
//! install.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::install::{self, Goal};
use super::kept::{self, Kept, Place};
use super::part::{Ended, PartJob, Patience, fetch};
use super::progress::{Meter, Speed};
use super::room::{Promised, Shortage};
use super::{Inner, blocking, is_active};
use crate::hub::{Listing, RemoteFile, short_name};
use crate::types::{Download, DownloadPhase, DownloadRequest, HubRepository, LibraryEvent};
use hunch_error::ErrorInfo;
use hunch_error::{Error, Result};

/// Interval of progress events.
const TICK: Duration = Duration::from_millis(200);
/// How often a file may change on the Hub during one download.
const MOST_CHANGES: usize = 4;
/// Retries of a listing that the user is waiting for.
const TRIES_OF_A_QUESTION: usize = 2;
/// Longest wait before such a retry, whatever the Hub asks for.
const LONGEST_WAIT_FOR_AN_ANSWER: Duration = Duration::from_secs(5);

/// Lists a repository's models, with short retries.
pub(super) async fn repository(inner: &Inner, repository: &str) -> Result<HubRepository> {
    let mut settings = inner.settings.clone();
    settings.tries = settings.tries.min(TRIES_OF_A_QUESTION);
    settings.longest_wait = settings.first_wait;
    let mut patience = Patience::new(&settings);
    loop {
        match inner.hub.listing(repository).await {
            Ok(listing) => return Ok(listing.repository),
            Err(failure) => match patience.next(failure) {
                Ok(wait) => (settings.wait)(wait.min(LONGEST_WAIT_FOR_AN_ANSWER)).await,
                Err(Ended::Changed(error) | Ended::Failed(error)) => return Err(error),
            },
        }
    }
}

/// A task of a download.
pub(super) struct Run {
    pub(super) inner: Arc<Inner>,
    pub(super) id: String,
    /// Its number among all tasks.
    pub(super) run: u64,
    pub(super) request: DownloadRequest,
    pub(super) place: Place,
}

impl Run {
    fn publish(&self, change: impl FnOnce(&mut Download)) {
        self.inner.publish(&self.id, self.run, change);
    }

    fn fail(&self, error: &Error) {
        self.publish(|view| {
            (view.phase, view.error) = (DownloadPhase::Failed, Some(ErrorInfo::from(error)));
            (view.bytes_per_second, view.seconds_left) = (None, None);
        });
    }

    /// Returns the short name of the model, or the id if the state file is unreadable.
    fn name(&self) -> &str {
        if self.request.file.is_empty() { &self.id } else { short_name(&self.request.file) }
    }

    fn kept(&self) -> Kept {
        self.place.load().unwrap_or_else(|| Kept::new(&self.request))
    }

    /// Records that the download is paused. Does nothing when its folder is gone: another Hunch has
    /// finished or removed the download since, and a new folder would bring it back.
    pub(super) fn put_down(&self) {
        let had_folder = self.inner.view(&self.id).is_ok_and(|view| view.done_bytes > 0);
        // If this cannot be written, the download resumes after a restart, which does no harm.
        if let Ok(_held) = self.place.hold(self.name())
            && (self.place.exists() || !had_folder)
        {
            let _ = self.place.store(&Kept { wanted: false, ..self.kept() });
        }
    }

    /// Deletes the download.
    pub(super) fn remove(&self) {
        match self.place.hold(self.name()).and_then(|_held| self.place.remove()) {
            Ok(()) => self.inner.forget(&self.id, self.run),
            Err(error) => self.fail(&error),
        }
    }

    /// Downloads and installs the model, and publishes the result.
    pub(super) async fn fetch(self) {
        let held = match self.place.hold(self.name()) {
            Ok(held) => held,
            Err(error) => return self.fail(&error),
        };
        match self.to_the_end().await {
            Ok(goal) => {
                // The model is installed. Remaining files are only clutter.
                let _ = self.place.remove();
                self.publish(|view| {
                    (view.phase, view.error) = (DownloadPhase::Done, None);
                    (view.bytes_per_second, view.seconds_left) = (None, None);
                    view.path = Some(goal.files[0].display().to_string());
                    view.name = goal.name;
                });
                self.inner.tell(LibraryEvent::Changed);
            }
            Err(error) => {
                let _ = self.place.store(&Kept { wanted: false, ..self.kept() });
                self.publish(|view| view.done_bytes = self.place.bytes(&self.kept()));
                self.fail(&error);
            }
        }
        drop(held);
    }

    async fn to_the_end(&self) -> Result<Goal> {
        self.place.store(&Kept { request: self.request.clone(), wanted: true, ..self.kept() })?;
        let mut trouble = None;
        for _ in 0..MOST_CHANGES {
            let listing = self.ask().await?;
            let parts = self.adopt(&listing)?;
            let goal = self.goal(&parts).await?;
            let meter = self.meter(&parts, &goal);
            let promised = self.claim_room(&parts, &meter)?;
            let fetched = self.fetch_parts(&listing, &parts, &goal, &meter).await;
            // Nothing more is written.
            drop(promised);
            match fetched {
                Ok(()) => return self.finish(&parts).await,
                Err(Ended::Failed(error)) => return Err(error),
                Err(Ended::Changed(error)) => trouble = Some(error),
            }
        }
        Err(trouble.expect("the loop ends only after a change"))
    }

    /// Lists the repository, with retries.
    async fn ask(&self) -> Result<Listing> {
        let mut patience = Patience::new(&self.inner.settings);
        loop {
            let failure = match self.inner.hub.listing(&self.request.repository).await {
                Ok(listing) => return Ok(listing),
                Err(failure) => failure,
            };
            self.publish(|view| {
                (view.phase, view.error) = (DownloadPhase::Retrying, Some(ErrorInfo::from(&failure.error)));
            });
            match patience.next(failure) {
                Ok(wait) => (self.inner.settings.wait)(wait).await,
                Err(Ended::Changed(error) | Ended::Failed(error)) => return Err(error),
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
    fn adopt(&self, listing: &Listing) -> Result<Vec<RemoteFile>> {
        let parts = self.parts(listing)?;
        let kept = self.kept();
        for index in 0..parts.len().max(kept.parts.len()) {
            let same = parts.get(index).is_some_and(|part| {
                // Without a checksum, nothing proves that the bytes belong to the same file.
                part.sha256.is_some() && kept.parts.get(index) == Some(part)
            });
            if !same {
                self.place.drop_part(index)?;
            }
        }
        let kept = Kept { request: self.request.clone(), wanted: true, parts: parts.clone() };
        self.place.store(&kept)?;
        self.publish(|view| {
            (view.total_bytes, view.done_bytes) = (kept.total(), self.place.bytes(&kept));
            (view.phase, view.error) = (DownloadPhase::Waiting, None);
        });
        Ok(parts)
    }

    async fn goal(&self, parts: &[RemoteFile]) -> Result<Goal> {
        let (models, stem, parts) = (self.inner.models.clone(), self.name().to_owned(), parts.to_vec());
        blocking(move |cancelled| Goal::choose(&models, &stem, &parts, cancelled)).await?
    }

    fn meter(&self, parts: &[RemoteFile], goal: &Goal) -> Arc<Meter> {
        let bytes =
            |index: usize| if goal.here[index] { parts[index].size } else { self.place.part_bytes(index) };
        Arc::new(Meter::new((0..parts.len()).map(bytes)))
    }

    /// Reserves the disk space for the missing bytes.
    fn claim_room(&self, parts: &[RemoteFile], meter: &Arc<Meter>) -> Result<Promised<'_>> {
        let Inner { room, settings, models, .. } = &*self.inner;
        let size = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.size));
        let promised =
            room.promise(self.run, size, meter, self.needed_elsewhere(), || (settings.space)(models));
        promised.map_err(|Shortage { missing, promised }| Error::DiskFull {
            folder: models.clone(),
            missing,
            promised,
        })
    }

    /// Returns the bytes needed by active downloads of other programs. A stopped task of this program holds
    /// its lock a moment longer and does not count.
    fn needed_elsewhere(&self) -> u64 {
        let active = |id: &str| self.inner.view(id).is_ok_and(|view| is_active(view.phase));
        let ours = |id: &str| active(id) || self.inner.is_busy(id);
        let needed = kept::known(&self.inner.models).into_iter().filter_map(|(id, kept)| {
            let place = self.inner.place(&id);
            let theirs = !ours(&id) && place.is_held();
            theirs.then(|| kept.total().unwrap_or(0).saturating_sub(place.bytes(&kept)))
        });
        needed.fold(0, u64::saturating_add)
    }

    /// Fetches the missing files in parallel and publishes progress.
    async fn fetch_parts(
        &self,
        listing: &Listing,
        parts: &[RemoteFile],
        goal: &Goal,
        meter: &Arc<Meter>,
    ) -> Result<(), Ended> {
        let inner = &self.inner;
        // Dropping it aborts the transfers.
        let mut fetching = JoinSet::new();
        for (index, part) in parts.iter().enumerate().filter(|(index, _)| !goal.here[*index]) {
            fetching.spawn(fetch(PartJob {
                hub: Arc::clone(&inner.hub),
                settings: inner.settings.clone(),
                slots: Arc::clone(&inner.slots),
                repository: self.request.repository.clone(),
                revision: listing.repository.revision.clone(),
                remote: part.clone(),
                path: self.place.part(index),
                models: inner.models.clone(),
                meter: Arc::clone(meter),
                index,
            }));
        }
        let mut speed = Speed::default();
        loop {
            self.show(meter, &mut speed);
            match tokio::time::timeout(TICK, fetching.join_next()).await {
                Err(_) | Ok(Some(Ok(Ok(())))) => {}
                Ok(None) => return Ok(()),
                Ok(Some(Ok(Err(ended)))) => return Err(ended),
                Ok(Some(Err(error))) => {
                    return Err(Ended::Failed(Error::Internal(format!("a download task failed: {error}"))));
                }
            }
        }
    }

    fn show(&self, meter: &Meter, speed: &mut Speed) {
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
    async fn finish(&self, parts: &[RemoteFile]) -> Result<Goal> {
        self.publish(|view| {
            (view.phase, view.error) = (DownloadPhase::Checking, None);
            (view.bytes_per_second, view.seconds_left) = (None, None);
        });
        let mut goal = self.goal(parts).await?;
        for (index, part) in parts.iter().enumerate().filter(|(index, _)| !goal.here[*index]) {
            let (place, part) = (self.place.clone(), part.clone());
            blocking(move |cancelled| install::check(&place, index, &part, cancelled)).await??;
        }
        while !install::install(&self.place, &goal)? {
            goal = self.goal(parts).await?;
        }
        Ok(goal)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DownloadSettings, Downloads, lock};
    use super::*;
    use crate::hub::{HubConfig, ProxyChoice, TokenPlaces};

    #[test]
    fn stopped_download_holding_its_lock_is_not_another_programs() {
        let folder = tempfile::tempdir().unwrap();
        // No request is made.
        let hub = HubConfig {
            endpoint: "http://127.0.0.1:1".into(),
            tokens: TokenPlaces::default(),
            proxy: ProxyChoice::None,
        };
        let downloads = Downloads::open(folder.path(), hub, DownloadSettings::default()).unwrap();
        let inner = &downloads.inner;
        let request = |file: &str| DownloadRequest {
            repository: "a/b".into(),
            file: file.into(),
            expected_sha256: None,
        };
        let run_of = |request: DownloadRequest| {
            let id = kept::id(&request);
            Run { inner: Arc::clone(inner), place: inner.place(&id), id, run: 1, request }
        };
        let (stopped, new) = (run_of(request("stopped.gguf")), run_of(request("new.gguf")));
        let part = RemoteFile { path: "stopped.gguf".into(), size: 100, sha256: None };
        stopped.place.store(&Kept { parts: vec![part], ..stopped.kept() }).unwrap();
        inner.look();
        assert_eq!(new.needed_elsewhere(), 0, "nobody is at it");
        let held = stopped.place.hold("stopped").unwrap();
        assert_eq!(new.needed_elsewhere(), 100, "another program is");
        let task = inner.runtime.spawn(std::future::pending());
        let end = task.abort_handle();
        lock(&inner.tasks).insert(stopped.id.clone(), task);
        assert_eq!(new.needed_elsewhere(), 0, "it is ours, and about to be let go of");
        end.abort();
        drop(held);
    }
}
