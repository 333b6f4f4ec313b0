//! `hunch models pull`: fetches a model. Ctrl-C pauses; the same command goes on.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Sender, channel};

use anyhow::Result;
use clap::Args;
use hunch_error::Error;
use hunch_library::types::{Download, DownloadPhase, DownloadRequest, LibraryEvent};
use hunch_library::{catalogue, hub};

use super::hub::open;
use crate::cli::{Told, render};

#[derive(Args)]
pub(crate) struct PullArgs {
    /// As on its page: Qwen/Qwen3-8B-GGUF, maybe with :Q8_0 behind it; or an id of the catalogue
    repository: String,
    /// A file of it, or a quantisation as Q8_0 [default: its only model, else Q4_K_M]
    #[arg(value_name = "FILE|QUANT")]
    file: Option<String>,
}

enum Heard {
    Moved(Box<Download>),
    Interrupted,
}

pub(super) fn run(args: &PullArgs, json: bool) -> Result<()> {
    let downloads = open()?;
    let known = catalogue::by_id(&args.repository);
    let (repository, file) = match known {
        Some(model) => (model.repository.as_str(), Some(model.file.clone())),
        None => (args.repository.as_str(), downloads.selector(&args.repository)?),
    };
    if let (None, Some(behind), Some(beside)) = (known, &file, &args.file)
        && !behind.eq_ignore_ascii_case(beside)
    {
        return Err(Error::invalid(format!(
            "{behind:?} and {beside:?} are asked for, and nothing was fetched. Name one of them."
        ))
        .into());
    }
    let repository = downloads.repository(repository)?;
    let file = hub::choose_file(&repository, args.file.as_deref().or(file.as_deref()))?;
    let request = DownloadRequest {
        repository: repository.repository.clone(),
        file: file.path.clone(),
        // Another file of the model is another choice.
        expected_sha256: known.filter(|model| model.file == file.path).and_then(|model| model.sha256.clone()),
    };
    eprintln!("{} of {}: {}", file.path, request.repository, render::bytes(file.size_bytes));
    let (sender, heard) = channel();
    listen_for_interrupt(sender.clone())?;
    let _told = downloads.subscribe(Box::new(move |event| {
        if let LibraryEvent::Download { download } = event {
            let _ = sender.send(Heard::Moved(download));
        }
    }));
    let id = downloads.start(&request)?.id;
    let interactive = std::io::stderr().is_terminal();
    for heard in heard {
        let download = match heard {
            Heard::Moved(download) if download.id == id => download,
            Heard::Moved(_) => continue,
            Heard::Interrupted => {
                downloads.pause(&id)?;
                continue;
            }
        };
        if interactive {
            eprint!("\r\x1b[K{}", line(&download));
        }
        match (download.phase, &download.error) {
            (DownloadPhase::Done, _) => return done(&download, interactive, json),
            (DownloadPhase::Failed, Some(error)) => {
                clear(interactive);
                return Err(Told(error.clone()).into());
            }
            (DownloadPhase::Paused, _) => {
                clear(interactive);
                eprintln!(
                    "Paused; {} are here and stay. The same command goes on.",
                    render::bytes(download.done_bytes)
                );
                return Ok(());
            }
            _ => {}
        }
    }
    Err(Error::Internal("a download ended without a word".into()).into())
}

fn clear(interactive: bool) {
    if interactive {
        eprint!("\r\x1b[K");
    }
}

fn done(download: &Download, interactive: bool, json: bool) -> Result<()> {
    clear(interactive);
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(download)?)?);
    }
    let path = download.path.as_deref().unwrap_or_default();
    Ok(writeln!(out, "{} is in the library: {path}", render::line(&download.name))?)
}

fn line(download: &Download) -> String {
    let total = download.total_bytes.unwrap_or(0);
    let percent = if total > 0 { download.done_bytes as f64 / total as f64 * 100.0 } else { 0.0 };
    let far = format!("{percent:.0} % of {}", render::bytes(total));
    match (download.phase, download.bytes_per_second) {
        (DownloadPhase::Checking, _) => "comparing with the checksum".into(),
        (DownloadPhase::Retrying, _) => format!("{far}, the connection was lost; trying again"),
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

/// Tells when the person presses Ctrl-C, from a thread of its own.
fn listen_for_interrupt(sender: Sender<Heard>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        while runtime.block_on(tokio::signal::ctrl_c()).is_ok() && sender.send(Heard::Interrupted).is_ok() {}
    })?;
    Ok(())
}
