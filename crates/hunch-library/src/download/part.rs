//! One file: asks for what is missing of it, writes what comes, and tries again when the connection
//! is lost, until all bytes are here. What is on disk is always the beginning of the file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use reqwest::StatusCode;
use reqwest::header::CONTENT_RANGE;
use tokio::sync::Semaphore;

use super::progress::{Meter, PartPhase};
use super::{DownloadSettings, blocking};
use crate::hub::{Answer, Cure, Failure, Hub, RemoteFile};
use hunch_error::Error;
use hunch_error::ErrorInfo;

/// Why a file is not here.
pub(super) enum Ended {
    /// It is not on the hub any more as it was told to be: ask again what it is.
    Changed(Error),
    /// Trying again does not help, or has not.
    Failed(Error),
}

/// How often and after how long something is tried again.
pub(super) struct Patience {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
}

impl Patience {
    pub(super) fn new(settings: &DownloadSettings) -> Self {
        let builder = ExponentialBuilder::new()
            .with_min_delay(settings.first_wait)
            .with_max_delay(settings.longest_wait)
            .with_max_times(settings.tries)
            .with_jitter();
        Self { builder, delays: builder.build() }
    }

    fn renew(&mut self) {
        self.delays = self.builder.build();
    }

    /// How long to wait before the next try; the error when that does not help or has been done often enough.
    pub(super) fn next(&mut self, failure: Failure) -> Result<Duration, Ended> {
        match failure.cure {
            Cure::None => Err(Ended::Failed(failure.error)),
            Cure::AskAgain => Err(Ended::Changed(failure.error)),
            Cure::Wait(asked_for) => match self.delays.next() {
                Some(delay) => Ok(delay.max(asked_for.unwrap_or_default())),
                None => Err(Ended::Failed(failure.error)),
            },
        }
    }
}

/// What to fetch, and where to.
pub(super) struct PartJob {
    pub(super) hub: Arc<Hub>,
    pub(super) settings: DownloadSettings,
    pub(super) slots: Arc<Semaphore>,
    pub(super) repository: String,
    pub(super) revision: String,
    pub(super) remote: RemoteFile,
    pub(super) path: PathBuf,
    /// Where the models lie, for what is said about the disk.
    pub(super) models: PathBuf,
    pub(super) meter: Arc<Meter>,
    pub(super) index: usize,
}

/// Fetches a file to its end. Can be dropped at any time: what has been written stays.
pub(super) async fn fetch(job: PartJob) -> Result<(), Ended> {
    let _slot = Arc::clone(&job.slots).acquire_owned().await.expect("nobody closes it");
    let file = OpenOptions::new().create(true).append(true).open(&job.path);
    let mut part = Part { file: file.map_err(|error| job.disk_error(error, 0))?, here: 0, etag: None, job };
    part.here = part.file.metadata().map_err(|error| part.job.disk_error(error, 0))?.len();
    let mut patience = Patience::new(&part.job.settings);
    let mut furthest = part.here;
    part.show(PartPhase::Running);
    while let Err(trouble) = part.attempt().await {
        let failure = match trouble {
            Trouble::Ended(ended) => return Err(ended),
            Trouble::Failure(failure) => failure,
        };
        // A hub that sends the beginning over and over does not get on.
        if part.here > furthest {
            furthest = part.here;
            patience.renew();
        }
        part.show(PartPhase::Retrying(ErrorInfo::from(&failure.error)));
        let pause = patience.next(failure)?;
        (part.job.settings.wait)(pause).await;
    }
    let Part { file, here, job, .. } = part;
    let synced = blocking(move |_| file.sync_all()).await.map_err(Ended::Failed)?;
    synced.map_err(|error| job.disk_error(error, here))?;
    job.meter.set(job.index, here, PartPhase::Done);
    Ok(())
}

enum Trouble {
    Failure(Failure),
    Ended(Ended),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Ended> for Trouble {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

impl PartJob {
    /// A failed write; `here` bytes are on disk.
    fn disk_error(&self, source: std::io::Error, here: u64) -> Ended {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(source.kind(), StorageFull | QuotaExceeded) {
            let free = (self.settings.space)(&self.models).unwrap_or(0);
            let missing = self.remote.size.saturating_sub(here).saturating_sub(free).max(1);
            return Ended::Failed(Error::DiskFull { folder: self.models.clone(), missing, promised: 0 });
        }
        Ended::Failed(Error::Io { action: "write", path: self.path.clone(), source })
    }
}

/// A file in the making.
struct Part {
    file: File,
    /// Its length.
    here: u64,
    /// What the hub has called the content.
    etag: Option<String>,
    job: PartJob,
}

impl Part {
    fn show(&self, phase: PartPhase) {
        self.job.meter.set(self.job.index, self.here, phase);
    }

    /// Asks for what is missing and writes what comes.
    async fn attempt(&mut self) -> Result<(), Trouble> {
        let size = self.job.remote.size;
        if self.here > size {
            self.begin_anew()?;
        }
        if self.here == size {
            return Ok(());
        }
        let (hub, remote) = (Arc::clone(&self.job.hub), self.job.remote.path.clone());
        let mut answer = hub.file(&self.job.repository, &self.job.revision, &remote, self.here).await?;
        self.check_identity(&answer)?;
        self.place(&answer)?;
        while let Some(bytes) = hub.chunk(&mut answer.response).await? {
            self.write(bytes.as_ref())?;
        }
        match self.here {
            here if here < size => Err(hub.again("the connection ended early", None).into()),
            _ => Ok(()),
        }
    }

    fn begin_anew(&mut self) -> Result<(), Ended> {
        if self.here == 0 {
            return Ok(());
        }
        self.file.set_len(0).map_err(|error| self.job.disk_error(error, 0))?;
        self.here = 0;
        Ok(())
    }

    /// Whether what comes is still the file that was begun.
    fn check_identity(&mut self, answer: &Answer) -> Result<(), Ended> {
        let Some(etag) = &answer.etag else { return Ok(()) };
        let is_hash = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        let same = match &self.job.remote.sha256 {
            // Other tags are the storage's own, and say nothing: the checksum decides in the end.
            Some(sha256) => !is_hash || etag.eq_ignore_ascii_case(sha256),
            None => self.etag.get_or_insert_with(|| etag.clone()) == etag,
        };
        if same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Ended {
        let why = "the file is not the one that it says it is; it may just be being replaced";
        Ended::Changed(self.job.hub.again(why, None).error)
    }

    /// Makes the file end where the answer begins.
    fn place(&mut self, answer: &Answer) -> Result<(), Trouble> {
        let size = self.job.remote.size;
        let response = &answer.response;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            return match range.and_then(content_range) {
                Some((start, total)) if start == self.here && total.is_none_or(|total| total == size) => {
                    Ok(())
                }
                Some((start, _)) if start == self.here => Err(self.changed().into()),
                _ => {
                    self.begin_anew()?;
                    Err(self
                        .job
                        .hub
                        .again("it sends another part of the file than it was asked for", None)
                        .into())
                }
            };
        }
        // The whole file, from its beginning, or the word that there is nothing after what is here.
        self.begin_anew()?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(self.job.hub.again("it does not know the place to go on from", None).into());
        }
        match response.content_length() {
            Some(length) if length != size => Err(self.changed().into()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        if self.here + bytes.len() as u64 > self.job.remote.size {
            self.begin_anew()?;
            return Err(self.job.hub.again("it sends more than the file has", None).into());
        }
        if let Err(error) = self.file.write_all(bytes) {
            // Some of it may have been written.
            self.here = self.file.metadata().map_or(self.here, |file| file.len());
            self.show(PartPhase::Running);
            return Err(self.job.disk_error(error, self.here).into());
        }
        self.here += bytes.len() as u64;
        self.show(PartPhase::Running);
        Ok(())
    }
}

/// Start and total of "bytes 5-9/10".
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hub that failed and may ask for a wait of so many seconds.
    fn failure(asked_for: Option<u64>) -> Failure {
        let error = Error::HubUnreachable { endpoint: "hub".into(), reason: "busy".into() };
        Failure { error, cure: Cure::Wait(asked_for.map(Duration::from_secs)) }
    }

    #[test]
    fn waits_grow_to_a_bound_and_are_never_shorter_than_the_hub_asks_for() {
        let settings = DownloadSettings {
            tries: 5,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(4),
            ..DownloadSettings::default()
        };
        let mut patience = Patience::new(&settings);
        // Each is longer by chance, up to twice as long.
        let mut expect = |asked_for: Option<u64>, least: u64, most: u64| {
            let wait = patience.next(failure(asked_for)).ok().unwrap().as_secs_f64();
            assert!((least as f64..=most as f64).contains(&wait), "{wait} s in place of {least} to {most} s");
        };
        expect(None, 1, 2);
        expect(None, 2, 4);
        expect(Some(30), 30, 30);
        expect(Some(1), 4, 8);
        expect(None, 4, 8);
        assert!(matches!(patience.next(failure(Some(1))), Err(Ended::Failed(_))), "it is given up");
        patience.renew();
        assert!(patience.next(failure(None)).ok().unwrap() <= Duration::from_secs(2), "it got on meanwhile");
    }

    #[test]
    fn a_range_is_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for text in ["", "bytes */10", "5-9/10", "bytes x-9/10"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
