//! One download from its beginning to its end: what is it now, is it here already, is there room,
//! fetch, check, name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::install::{self, Goal};
use super::kept::{Kept, Place};
use super::part::{Ended, PartJob, Patience, fetch};
use super::progress::{Meter, Speed};
use super::{Inner, blocking};
use crate::api::library::{Download, DownloadPhase, DownloadRequest, HubRepository, LibraryEvent};
use crate::error::{Error, Result};
use crate::event::ErrorInfo;
use crate::library::hub::{Listing, RemoteFile, short_name};

/// How often progress is told.
const TICK: Duration = Duration::from_millis(200);
/// Bytes that are left free on the disk.
const SPARE: u64 = 64 << 20;
/// How often a file may change while it is fetched.
const MOST_CHANGES: usize = 4;
/// How often a question that a person waits for is asked.
const TRIES_OF_A_QUESTION: usize = 2;

/// What a repository holds, for somebody who waits.
pub(super) async fn repository(inner: &Inner, repository: &str) -> Result<HubRepository> {
    let mut settings = inner.settings.clone();
    settings.tries = settings.tries.min(TRIES_OF_A_QUESTION);
    settings.longest_wait = settings.first_wait;
    let mut patience = Patience::new(&settings);
    loop {
        match inner.hub.listing(repository).await {
            Ok(listing) => return Ok(listing.repository),
            Err(failure) => match patience.next(failure) {
                Ok(wait) => tokio::time::sleep(wait.min(Duration::from_secs(5))).await,
                Err(Ended::Changed(error) | Ended::Failed(error)) => return Err(error),
            },
        }
    }
}

/// A download that something is done with.
pub(super) struct Run {
    pub(super) inner: Arc<Inner>,
    pub(super) id: String,
    /// Its number among all runs.
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

    fn name(&self) -> &str {
        short_name(&self.request.file)
    }

    fn kept(&self) -> Kept {
        self.place.load().unwrap_or_else(|| Kept::new(&self.request))
    }

    /// Writes down that the download is not under way.
    pub(super) fn put_down(&self) {
        // Where that cannot be written, the window goes on with it after a restart: no harm.
        if let Ok(_held) = self.place.hold(self.name()) {
            let _ = self.place.store(&Kept { wanted: false, ..self.kept() });
        }
    }

    /// Removes what is here of the download.
    pub(super) fn remove(&self) {
        match self.place.hold(self.name()).and_then(|_held| self.place.remove()) {
            Ok(()) => self.inner.forget(&self.id, self.run),
            Err(error) => self.fail(&error),
        }
    }

    /// Fetches it.
    pub(super) async fn fetch(self) {
        let held = match self.place.hold(self.name()) {
            Ok(held) => held,
            Err(error) => return self.fail(&error),
        };
        match self.to_the_end().await {
            Ok(goal) => {
                // It is a model now; what is left of the download is litter.
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
        self.place.store(&Kept { wanted: true, ..self.kept() })?;
        let mut trouble = None;
        for _ in 0..MOST_CHANGES {
            let listing = self.ask().await?;
            let parts = self.adopt(&listing)?;
            let goal = self.goal(&parts).await?;
            self.check_space(&parts, &goal)?;
            match self.fetch_parts(&listing, &parts, &goal).await {
                Ok(()) => return self.finish(&parts).await,
                Err(Ended::Failed(error)) => return Err(error),
                Err(Ended::Changed(error)) => trouble = Some(error),
            }
        }
        Err(trouble.expect("a file has changed to get here"))
    }

    /// What the repository holds now.
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
                Ok(wait) => tokio::time::sleep(wait).await,
                Err(Ended::Changed(error) | Ended::Failed(error)) => return Err(error),
            }
        }
    }

    /// Keeps what is here of files that are still the same, and throws the rest away.
    fn adopt(&self, listing: &Listing) -> Result<Vec<RemoteFile>> {
        let parts = listing.parts(&self.request.file)?.to_vec();
        let kept = self.kept();
        for index in 0..parts.len().max(kept.parts.len()) {
            let same = parts.get(index).is_some_and(|part| {
                // Without a checksum nothing says that the beginning goes with the rest.
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

    fn check_space(&self, parts: &[RemoteFile], goal: &Goal) -> Result<()> {
        let to_come = |(index, part): (usize, &RemoteFile)| match goal.here[index] {
            true => 0,
            false => part.size.saturating_sub(self.place.part_bytes(index)),
        };
        let needed = parts.iter().enumerate().map(to_come).fold(0u64, u64::saturating_add);
        let models = &self.inner.models;
        match (self.inner.settings.space)(models) {
            Some(free) if needed > 0 && needed.saturating_add(SPARE) > free => {
                Err(Error::DiskFull { folder: models.clone(), missing: needed.saturating_add(SPARE) - free })
            }
            // What is not known is found out by writing.
            _ => Ok(()),
        }
    }

    /// Fetches what is missing, all files at once as far as slots are free, and tells how it goes.
    async fn fetch_parts(&self, listing: &Listing, parts: &[RemoteFile], goal: &Goal) -> Result<(), Ended> {
        let inner = &self.inner;
        let bytes =
            |index: usize| if goal.here[index] { parts[index].size } else { self.place.part_bytes(index) };
        let meter = Arc::new(Meter::new((0..parts.len()).map(bytes)));
        // Dropping it ends them all.
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
                meter: Arc::clone(&meter),
                index,
            }));
        }
        let mut speed = Speed::default();
        loop {
            self.show(&meter, &mut speed);
            match tokio::time::timeout(TICK, fetching.join_next()).await {
                Err(_) | Ok(Some(Ok(Ok(())))) => {}
                Ok(None) => return Ok(()),
                Ok(Some(Ok(Err(ended)))) => return Err(ended),
                Ok(Some(Err(error))) => {
                    return Err(Ended::Failed(Error::Internal(format!("a download ended: {error}"))));
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

    /// Compares the bytes with the checksums and gives the files their names.
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
