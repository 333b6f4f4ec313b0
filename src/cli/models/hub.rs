//! `hunch models hub`: the GGUF models of a repository.

use std::io::Write;

use anyhow::Result;
use hunch_library::download::{DownloadSettings, Downloads};
use hunch_library::hub::HubConfig;
use hunch_library::types::HubTokenProblem;

use crate::cli::render;

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

pub(super) fn run(repository: &str, json: bool) -> Result<()> {
    let repository = open()?.repository(repository)?;
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
        return Ok(writeln!(out, "No GGUF models.")?);
    }
    let rows: Vec<Vec<String>> = repository
        .files
        .iter()
        .map(|file| {
            let parts = if file.parts > 1 { format!("{} parts", file.parts) } else { String::new() };
            vec![file.path.clone(), file.quantisation.clone(), render::bytes(file.size_bytes), parts]
        })
        .collect();
    Ok(writeln!(out, "{}", render::table(&["file", "type", "size", ""], &rows))?)
}
