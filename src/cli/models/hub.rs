//! `hunch models hub`: the models of a repository.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch_library::download::{DownloadSettings, Downloads};
use hunch_library::hub::HubConfig;
use hunch_library::types::{HubCard, HubTokenProblem};

use crate::cli::render;

/// Repository, and what to show of it.
#[derive(Args)]
pub(crate) struct HubArgs {
    /// Name of the repository: Qwen/Qwen3-8B-GGUF
    repository: String,
    /// Print the model card instead of the files
    #[arg(long)]
    card: bool,
}

/// Opens the downloads of the models folder with the settings of the environment.
pub(super) fn open() -> Result<Downloads> {
    let downloads = Downloads::open(
        &hunch_library::models_folder()?,
        HubConfig::from_env(),
        DownloadSettings::default(),
    )?;
    for problem in downloads.hub_state().problems {
        eprintln!("{}", render::line(&explain(&problem)));
    }
    Ok(downloads)
}

/// Explains a problem with the access token.
fn explain(problem: &HubTokenProblem) -> String {
    match problem {
        HubTokenProblem::Environment => {
            "HF_TOKEN is ignored: it is not a valid token (hf_…). Copy it again, or unset it.".into()
        }
        HubTokenProblem::Keychain { reason } => {
            format!(
                "The keychain could not be read ({reason}), so its token is not used. Public models need none."
            )
        }
        HubTokenProblem::Unencrypted => {
            "The token is not sent because HF_ENDPOINT uses unencrypted http. Use https.".into()
        }
    }
}

/// Prints a model card as Markdown. Its author is not trusted with control characters.
fn show_card(card: &HubCard, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(card)?)?);
    }
    if card.text.is_empty() {
        return Ok(writeln!(out, "{} has no model card.", card.repository)?);
    }
    for line in card.text.lines() {
        let line: String = line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
        writeln!(out, "{line}")?;
    }
    if card.cut {
        writeln!(out, "\nThe rest of this long card is on its page on the Hub.")?;
    }
    Ok(())
}

pub(super) fn run(args: &HubArgs, json: bool) -> Result<()> {
    let downloads = open()?;
    if args.card {
        return show_card(&downloads.card(&args.repository)?, json);
    }
    let repository = downloads.repository(&args.repository)?;
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&repository)?)?);
    }
    let licence = render::line(repository.licence.as_deref().unwrap_or("not stated"));
    writeln!(out, "{}, licence: {licence}", render::line(&repository.repository))?;
    if repository.gated {
        writeln!(out, "Access is restricted: accept the terms on its page, and set HF_TOKEN.")?;
    }
    if repository.files.is_empty() {
        return Ok(writeln!(out, "No GGUF models, no folder for MLX and no head.")?);
    }
    let rows: Vec<Vec<String>> = repository
        .files
        .iter()
        .map(|file| {
            let is_folder = hunch_library::hub::is_folder(&file.path);
            let parts = match (is_folder, file.parts) {
                (true, files) => format!("{files} files"),
                (false, 1) => String::new(),
                (false, parts) => format!("{parts} parts"),
            };
            let name = match is_folder {
                true if file.is_head => "head".into(),
                true => "folder for MLX".into(),
                false => file.path.clone(),
            };
            vec![name, file.quantisation.clone(), render::bytes(file.size_bytes), parts]
        })
        .collect();
    Ok(writeln!(out, "{}", render::table(&["file", "type", "size", ""], &rows))?)
}
