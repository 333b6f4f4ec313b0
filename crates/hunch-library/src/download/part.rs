//! Downloads one file with resume and retries. A partial file is always a prefix of the whole.

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

/// Why a file was not downloaded.
pub(super) enum Ended {
    /// The Hub's file has changed. List the repository again.
    Changed(Error),
    /// Retrying does not help, or the retries are used up.
    Failed(Error),
}

/// Exponential backoff with jitter and a retry limit.
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

    /// Returns the wait before the next attempt, or the error if there is none.
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

/// A file to download and its destination.
pub(super) struct PartJob {
    pub(super) hub: Arc<Hub>,
    pub(super) settings: DownloadSettings,
    pub(super) slots: Arc<Semaphore>,
    pub(super) repository: String,
    pub(super) revision: String,
    pub(super) remote: RemoteFile,
    pub(super) path: PathBuf,
    /// The models folder, for messages about disk space.
    pub(super) models: PathBuf,
    pub(super) meter: Arc<Meter>,
    pub(super) index: usize,
}

/// Downloads a file to completion. Cancel-safe: dropping the future keeps the bytes written so far.
pub(super) async fn fetch(job: PartJob) -> Result<(), Ended> {
    let _slot = Arc::clone(&job.slots).acquire_owned().await.expect("the semaphore is never closed");
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
        // A server that keeps sending the beginning makes no progress.
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
    /// Converts a write error, with `here` bytes on disk.
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

/// A partially downloaded file.
struct Part {
    file: File,
    /// Its length in bytes.
    here: u64,
    /// ETag of the first response.
    etag: Option<String>,
    job: PartJob,
}

impl Part {
    fn show(&self, phase: PartPhase) {
        self.job.meter.set(self.job.index, self.here, phase);
    }

    /// Requests the missing bytes and writes them.
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

    /// Checks that the response is for the same file content.
    fn check_identity(&mut self, answer: &Answer) -> Result<(), Ended> {
        let Some(etag) = &answer.etag else { return Ok(()) };
        let is_hash = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        let same = match &self.job.remote.sha256 {
            // Other ETags belong to the storage server and prove nothing. The checksum decides in the end.
            Some(sha256) => !is_hash || etag.eq_ignore_ascii_case(sha256),
            None => self.etag.get_or_insert_with(|| etag.clone()) == etag,
        };
        if same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> Ended {
        let why = "the file differs from its listing and may be being replaced";
        Ended::Changed(self.job.hub.again(why, None).error)
    }

    /// Aligns the partial file with the start of the response.
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
                        .again("it sent a different range of the file than requested", None)
                        .into())
                }
            };
        }
        // A complete response, or none for this range.
        self.begin_anew()?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(self.job.hub.again("it cannot resume from the requested position", None).into());
        }
        match response.content_length() {
            Some(length) if length != size => Err(self.changed().into()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        if self.here + bytes.len() as u64 > self.job.remote.size {
            self.begin_anew()?;
            return Err(self.job.hub.again("it sent more bytes than the file has", None).into());
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

/// Parses start and total of "bytes 5-9/10".
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a failure with a requested wait in seconds.
    fn failure(asked_for: Option<u64>) -> Failure {
        let error = Error::HubUnreachable { endpoint: "hub".into(), reason: "busy".into() };
        Failure { error, cure: Cure::Wait(asked_for.map(Duration::from_secs)) }
    }

    #[test]
    fn backoff_grows_to_its_limit_and_respects_retry_after() {
        let settings = DownloadSettings {
            tries: 5,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(4),
            ..DownloadSettings::default()
        };
        let mut patience = Patience::new(&settings);
        // Jitter lengthens each wait, at most to double.
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
    fn parses_content_range() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for text in ["", "bytes */10", "5-9/10", "bytes x-9/10"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
