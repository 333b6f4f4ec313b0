//! `hunch models pull`: downloads a model. Ctrl-C pauses, the same command resumes.

use std::io::Write;
use std::sync::mpsc::{Sender, channel};

use anyhow::Result;
use clap::Args;
use hunch_error::Error;
use hunch_library::types::{Download, DownloadPhase, DownloadRequest, LibraryEvent};
use hunch_library::{catalogue, hub};

use super::hub::open;
use crate::cli::progress::ProgressLine;
use crate::cli::{ReportedError, render};

#[derive(Args)]
pub(crate) struct PullArgs {
    /// Repository such as Qwen/Qwen3-8B-GGUF, optionally followed by :Q8_0, or an id of the catalogue
    repository: String,
    /// File or quantisation such as Q8_0 [default: the only model, else Q4_K_M]
    #[arg(value_name = "FILE|QUANT")]
    file: Option<String>,
}

/// A message to the main thread.
enum Message {
    Changed(Box<Download>),
    Interrupted,
}

pub(super) fn run(args: &PullArgs, json: bool) -> Result<()> {
    let downloads = open()?;
    let known = catalogue::by_id(&args.repository);
    let (repository, file) = match known {
        Some(model) => (model.repository.as_str(), Some(model.file.clone())),
        None => (args.repository.as_str(), downloads.selector(&args.repository)?),
    };
    if let (None, Some(suffix), Some(argument)) = (known, &file, &args.file)
        && !suffix.eq_ignore_ascii_case(argument)
    {
        return Err(
            Error::invalid(format!("{suffix:?} and {argument:?} are both given. Name one of them.")).into()
        );
    }
    let repository = downloads.repository(repository)?;
    let file = hub::choose_file(&repository, args.file.as_deref().or(file.as_deref()))?;
    let request = DownloadRequest {
        repository: repository.repository.clone(),
        file: file.path.clone(),
        // The catalogue's checksum belongs to its own file only.
        expected_sha256: known.filter(|model| model.file == file.path).and_then(|model| model.sha256.clone()),
    };
    eprintln!("{} of {}: {}", file.path, request.repository, render::bytes(file.size_bytes));
    let (sender, messages) = channel();
    listen_for_interrupt(sender.clone())?;
    let _subscription = downloads.subscribe(Box::new(move |event| {
        if let LibraryEvent::Download { download } = event {
            let _ = sender.send(Message::Changed(download));
        }
    }));
    let id = downloads.start(&request)?.id;
    let progress = ProgressLine::new();
    for message in messages {
        let download = match message {
            Message::Changed(download) if download.id == id => download,
            Message::Changed(_) => continue,
            Message::Interrupted => {
                downloads.pause(&id)?;
                continue;
            }
        };
        progress.show(download.done_bytes, download.total_bytes.unwrap_or(0), line(&download));
        match (download.phase, &download.error) {
            (DownloadPhase::Done, _) => {
                drop(progress);
                return done(&download, json);
            }
            (DownloadPhase::Failed, Some(error)) => return Err(ReportedError(error.clone()).into()),
            (DownloadPhase::Paused, _) => {
                drop(progress);
                eprintln!(
                    "Paused at {}. Run the same command to resume.",
                    render::bytes(download.done_bytes)
                );
                if json {
                    print_json(&download)?;
                }
                return Err(Error::Stopped.into());
            }
            _ => {}
        }
    }
    Err(Error::Internal("a download ended without a result".into()).into())
}

fn done(download: &Download, json: bool) -> Result<()> {
    if json {
        return print_json(download);
    }
    let mut out = std::io::stdout().lock();
    let path = download.path.as_deref().unwrap_or_default();
    writeln!(out, "Downloaded {} to {path}", render::line(&download.name))?;
    if let Some(kind) = &download.head {
        writeln!(out, "It is a head ({kind}). Draft with it: --head {}", render::line(&download.name))?;
    }
    Ok(())
}

fn print_json(download: &Download) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(download)?)?)
}

fn line(download: &Download) -> String {
    let total = download.total_bytes.unwrap_or(0);
    let percent = if total > 0 { download.done_bytes as f64 / total as f64 * 100.0 } else { 0.0 };
    let far = format!("{percent:.0} % of {}", render::bytes(total));
    match (download.phase, download.bytes_per_second) {
        (DownloadPhase::Checking, _) => "verifying the checksum".into(),
        (DownloadPhase::Retrying, _) => format!("{far}, connection lost, retrying"),
        (_, Some(speed)) => {
            let left =
                download.seconds_left.map_or(String::new(), |s| format!(", about {} left", duration(s)));
            format!("{far}, {}/s{left}", render::bytes(speed as u64))
        }
        _ => far,
    }
}

fn duration(seconds: f64) -> String {
    match seconds as u64 {
        s if s < 90 => format!("{s} s"),
        s if s < 5400 => format!("{} min", s.div_ceil(60)),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

/// Sends a message on Ctrl-C, from its own thread.
fn listen_for_interrupt(sender: Sender<Message>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        while runtime.block_on(tokio::signal::ctrl_c()).is_ok() && sender.send(Message::Interrupted).is_ok() {
        }
    })?;
    Ok(())
}
