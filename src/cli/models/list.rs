//! `hunch models list`: every model that was found, wherever it lies.

use std::io::Write;

use anyhow::Result;
use hunch::api::ModelEntry;
use hunch::api::library::ModelSource;
use hunch::library::{self, Places};

use crate::cli::render;

pub(crate) fn run(places: &Places, json: bool) -> Result<()> {
    let scan = library::scan(places);
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&scan.models)?)?);
    }
    for folder in &scan.folders {
        if let Some(problem) = &folder.problem {
            writeln!(out, "{}", render::line(&format!("{}: {problem}", folder.path)))?;
        }
    }
    if scan.models.is_empty() {
        writeln!(out, "No models in {}, and none of another program.", places.models.display())?;
        return Ok(writeln!(
            out,
            "`make setup` fetches the default one; any GGUF file put there is listed, and \
             `hunch models folders add PATH` has another folder looked through."
        )?);
    }
    let (usable, others): (Vec<_>, Vec<_>) = scan.models.iter().partition(|m| m.problem.is_none());
    if !usable.is_empty() {
        let rows: Vec<_> = usable.into_iter().map(row).collect();
        let header = ["name", "architecture", "parameters", "type", "context", "size", "source"];
        writeln!(out, "{}", render::table(&header, &rows))?;
    }
    for model in others {
        let problem = model.problem.as_deref().unwrap_or_default();
        let text = format!("{} ({}) cannot be used: {problem}", model.name, source(model.source));
        writeln!(out, "{}", render::line(&text))?;
    }
    Ok(())
}

fn row(model: &ModelEntry) -> Vec<String> {
    let parts = if model.parts > 1 { format!(" in {}", model.parts) } else { String::new() };
    vec![
        model.name.clone(),
        model.architecture.clone(),
        format!("{:.0} M", model.parameters as f64 / 1e6),
        model.quantisation.clone(),
        model.context_length.to_string(),
        format!("{}{parts}", render::bytes(model.size_bytes)),
        source(model.source).into(),
    ]
}

/// Whose a folder is, as people call it.
pub(super) fn source(source: ModelSource) -> &'static str {
    match source {
        ModelSource::Hunch => "Hunch",
        ModelSource::Added => "added",
        ModelSource::HuggingFace => "Hugging Face",
        ModelSource::LmStudio => "LM Studio",
        ModelSource::Ollama => "Ollama",
        ModelSource::LlamaCpp => "llama.cpp",
        ModelSource::Jan => "Jan",
    }
}
