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
use crate::hub::{Hub, HubResponse, RemoteFile, RequestFailure, Retry};
use hunch_error::{Error, ErrorInfo};

/// Reason why a file was not downloaded.
pub(super) enum FetchError {
    /// The Hub's file has changed. List the repository again.
    Changed(Error),
    /// Retrying does not help, or the retries are used up.
    Failed(Error),
}

/// Exponential backoff with jitter and a retry limit.
pub(super) struct Backoff {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
}

impl Backoff {
    pub(super) fn new(settings: &DownloadSettings) -> Self {
        let builder = ExponentialBuilder::new()
            .with_min_delay(settings.min_backoff)
            .with_max_delay(settings.max_backoff)
            .with_max_times(settings.max_retries)
            .with_jitter();
        Self { builder, delays: builder.build() }
    }

    fn reset(&mut self) {
        self.delays = self.builder.build();
    }

    /// Returns the wait before the next attempt, or the error if there is none.
    pub(super) fn next(&mut self, failure: RequestFailure) -> Result<Duration, FetchError> {
        match failure.retry {
            Retry::Never => Err(FetchError::Failed(failure.error)),
            Retry::Relist => Err(FetchError::Changed(failure.error)),
            Retry::After(requested) => match self.delays.next() {
                Some(delay) => Ok(delay.max(requested.unwrap_or_default())),
                None => Err(FetchError::Failed(failure.error)),
            },
        }
    }
}

/// A file to download and its destination.
pub(super) struct FetchJob {
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
pub(super) async fn fetch(job: FetchJob) -> Result<(), FetchError> {
    let _slot = Arc::clone(&job.slots).acquire_owned().await.expect("the semaphore is never closed");
    let file = OpenOptions::new().create(true).append(true).open(&job.path);
    let mut part =
        PartialFile { file: file.map_err(|error| job.disk_error(error, 0))?, written: 0, etag: None, job };
    part.written = part.file.metadata().map_err(|error| part.job.disk_error(error, 0))?.len();
    let mut backoff = Backoff::new(&part.job.settings);
    let mut furthest = part.written;
    part.show(PartPhase::Running);
    while let Err(error) = part.attempt().await {
        let failure = match error {
            AttemptError::Fetch(error) => return Err(error),
            AttemptError::Request(failure) => failure,
        };
        // A server that keeps sending the beginning makes no progress.
        if part.written > furthest {
            furthest = part.written;
            backoff.reset();
        }
        part.show(PartPhase::Retrying(ErrorInfo::from(&failure.error)));
        let pause = backoff.next(failure)?;
        (part.job.settings.sleep)(pause).await;
    }
    let PartialFile { file, written, job, .. } = part;
    let synced = blocking(move |_| file.sync_all()).await.map_err(FetchError::Failed)?;
    synced.map_err(|error| job.disk_error(error, written))?;
    job.meter.set(job.index, written, PartPhase::Done);
    Ok(())
}

enum AttemptError {
    Request(RequestFailure),
    Fetch(FetchError),
}

impl From<RequestFailure> for AttemptError {
    fn from(failure: RequestFailure) -> Self {
        Self::Request(failure)
    }
}

impl From<FetchError> for AttemptError {
    fn from(error: FetchError) -> Self {
        Self::Fetch(error)
    }
}

impl FetchJob {
    /// Converts a write error, with `here` bytes on disk.
    fn disk_error(&self, source: std::io::Error, written: u64) -> FetchError {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        if matches!(source.kind(), StorageFull | QuotaExceeded) {
            let free = (self.settings.free_space)(&self.models).unwrap_or(0);
            let missing = self.remote.size.saturating_sub(written).saturating_sub(free).max(1);
            return FetchError::Failed(Error::DiskFull { folder: self.models.clone(), missing, reserved: 0 });
        }
        FetchError::Failed(Error::Io { action: "write", path: self.path.clone(), source })
    }
}

/// A partially downloaded file.
struct PartialFile {
    file: File,
    /// Its length in bytes.
    written: u64,
    /// ETag of the first response.
    etag: Option<String>,
    job: FetchJob,
}

impl PartialFile {
    fn show(&self, phase: PartPhase) {
        self.job.meter.set(self.job.index, self.written, phase);
    }

    /// Requests the missing bytes and writes them.
    async fn attempt(&mut self) -> Result<(), AttemptError> {
        let size = self.job.remote.size;
        if self.written > size {
            self.restart()?;
        }
        if self.written == size {
            return Ok(());
        }
        let (hub, remote) = (Arc::clone(&self.job.hub), self.job.remote.path.clone());
        let mut response = hub.file(&self.job.repository, &self.job.revision, &remote, self.written).await?;
        self.check_identity(&response)?;
        self.align(&response)?;
        while let Some(bytes) = hub.chunk(&mut response.response).await? {
            self.write(bytes.as_ref())?;
        }
        match self.written {
            written if written < size => Err(hub.transient("the connection ended early", None).into()),
            _ => Ok(()),
        }
    }

    fn restart(&mut self) -> Result<(), FetchError> {
        if self.written == 0 {
            return Ok(());
        }
        self.file.set_len(0).map_err(|error| self.job.disk_error(error, 0))?;
        self.written = 0;
        Ok(())
    }

    /// Checks that the response is for the same file content.
    fn check_identity(&mut self, response: &HubResponse) -> Result<(), FetchError> {
        let Some(etag) = &response.etag else { return Ok(()) };
        let is_hash = etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit());
        let same = match &self.job.remote.sha256 {
            // Other ETags belong to the storage server and prove nothing. The checksum decides in the end.
            Some(sha256) => !is_hash || etag.eq_ignore_ascii_case(sha256),
            None => self.etag.get_or_insert_with(|| etag.clone()) == etag,
        };
        if same { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> FetchError {
        let why = "the file differs from its listing and may be being replaced";
        FetchError::Changed(self.job.hub.transient(why, None).error)
    }

    /// Aligns the partial file with the start of the response.
    fn align(&mut self, response: &HubResponse) -> Result<(), AttemptError> {
        let size = self.job.remote.size;
        let response = &response.response;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            return match range.and_then(content_range) {
                Some((start, total)) if start == self.written && total.is_none_or(|total| total == size) => {
                    Ok(())
                }
                Some((start, _)) if start == self.written => Err(self.changed().into()),
                _ => {
                    self.restart()?;
                    Err(self
                        .job
                        .hub
                        .transient("it sent a different range of the file than requested", None)
                        .into())
                }
            };
        }
        // A complete response, or none for this range.
        self.restart()?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(self.job.hub.transient("it cannot resume from the requested position", None).into());
        }
        match response.content_length() {
            Some(length) if length != size => Err(self.changed().into()),
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), AttemptError> {
        if self.written + bytes.len() as u64 > self.job.remote.size {
            self.restart()?;
            return Err(self.job.hub.transient("it sent more bytes than the file has", None).into());
        }
        if let Err(error) = self.file.write_all(bytes) {
            // Some of it may have been written.
            self.written = self.file.metadata().map_or(self.written, |file| file.len());
            self.show(PartPhase::Running);
            return Err(self.job.disk_error(error, self.written).into());
        }
        self.written += bytes.len() as u64;
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
    fn failure(requested: Option<u64>) -> RequestFailure {
        let error = Error::HubUnreachable { endpoint: "hub".into(), reason: "busy".into() };
        RequestFailure { error, retry: Retry::After(requested.map(Duration::from_secs)) }
    }

    #[test]
    fn backoff_grows_to_its_limit_and_respects_retry_after() {
        let settings = DownloadSettings {
            max_retries: 5,
            min_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(4),
            ..DownloadSettings::default()
        };
        let mut backoff = Backoff::new(&settings);
        // Jitter lengthens each wait, at most to double.
        let mut expect = |requested: Option<u64>, least: u64, most: u64| {
            let wait = backoff.next(failure(requested)).ok().unwrap().as_secs_f64();
            assert!((least as f64..=most as f64).contains(&wait), "{wait} s, expected {least} to {most} s");
        };
        expect(None, 1, 2);
        expect(None, 2, 4);
        expect(Some(30), 30, 30);
        expect(Some(1), 4, 8);
        expect(None, 4, 8);
        assert!(matches!(backoff.next(failure(Some(1))), Err(FetchError::Failed(_))), "retries are used up");
        backoff.reset();
        assert!(backoff.next(failure(None)).ok().unwrap() <= Duration::from_secs(2), "reset after progress");
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
