//! `hunch models list`: all models found on this machine.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use hunch_core::method::Method;
use hunch_library::speed_log::SpeedLog;
use hunch_library::types::ModelEntry;
use hunch_library::types::{ModelSource, SpeedRole};
use hunch_library::{HeadEntry, Places};
use hunch_model::device::{Compute, DeviceChoice};

use crate::cli::render;

/// Columns of the list.
#[derive(Args, Default)]
pub(crate) struct ListArgs {
    /// Also show licence, tokeniser, chat template and speed
    #[arg(long, short)]
    long: bool,
}

pub(crate) fn run(args: &ListArgs, places: &Places, json: bool) -> Result<()> {
    let mut scan = hunch_library::scan(places);
    fill_speeds(&mut scan.models, &Compute::open(DeviceChoice::Auto, Some(1))?);
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
        writeln!(out, "No models in {} or in folders of other programs.", places.models.display())?;
        return Ok(writeln!(
            out,
            "`make setup` downloads the default model. Put GGUF files there, or add a folder with \
             `hunch models folders add PATH`."
        )?);
    }
    let heads = hunch_library::heads(places, &scan.models);
    let is_head = |model: &ModelEntry| heads.iter().any(|head| head.path == Path::new(&model.path));
    let listed = scan.models.iter().filter(|model| !is_head(model));
    let (usable, others): (Vec<_>, Vec<_>) = listed.partition(|m| m.problem.is_none());
    if !usable.is_empty() {
        let mut header =
            vec!["name", "model", "architecture", "parameters", "type", "context", "size", "source"];
        let mut rows: Vec<_> = usable.iter().map(|model| row(model)).collect();
        if args.long {
            header.extend(["licence", "tokeniser", "template", "tok/s"]);
            rows.iter_mut().zip(usable).for_each(|(row, model)| row.extend(rest_of_row(model)));
        }
        writeln!(out, "{}", render::table(&header, &rows))?;
    }
    for model in others {
        let problem = model.problem.as_deref().unwrap_or_default();
        let text = format!("{} ({}) cannot be used: {problem}", model.name, source(model.source));
        writeln!(out, "{}", render::line(&text))?;
    }
    if !heads.is_empty() {
        let rows: Vec<_> = heads.iter().map(head_row).collect();
        writeln!(out, "\n{}", render::table(&["head", "kind", "target", "width", "size"], &rows))?;
    }
    Ok(())
}

fn head_row(HeadEntry { name, head, .. }: &HeadEntry) -> Vec<String> {
    vec![
        name.clone(),
        head.kind.clone(),
        head.target.clone().unwrap_or_else(|| "not stated".into()),
        head.width.to_string(),
        render::bytes(head.bytes),
    ]
}

fn row(model: &ModelEntry) -> Vec<String> {
    let parts = if model.parts > 1 { format!(" in {}", model.parts) } else { String::new() };
    vec![
        model.name.clone(),
        model.title.clone(),
        model.architecture.clone(),
        format!("{:.0} M", model.parameters as f64 / 1e6),
        model.quantisation.clone(),
        model.context_length.to_string(),
        format!("{}{parts}", render::bytes(model.size_bytes)),
        source(model.source).into(),
    ]
}

/// Returns the additional cells of the long list.
fn rest_of_row(model: &ModelEntry) -> [String; 4] {
    [
        model.licence.clone().unwrap_or_else(|| "-".into()),
        model.tokenizer.clone(),
        if model.has_template { "yes" } else { "no" }.into(),
        speed(model).unwrap_or_else(|| "-".into()),
    ]
}

/// Fills in the speeds measured when the models last ran on this device.
pub(super) fn fill_speeds(models: &mut [ModelEntry], compute: &Compute) {
    // Without a data folder there are no saved speeds.
    if let Ok(measured) = SpeedLog::open(compute.name()) {
        measured.fill(models);
    }
}

/// Formats the measured speed of a model and its role.
pub(super) fn speed(model: &ModelEntry) -> Option<String> {
    let rate = format!("{:.1}", model.tokens_per_second?);
    Some(match model.ran_as? {
        SpeedRole::Target { method: Method::Plain } => rate,
        SpeedRole::Target { method } => format!("{rate} with {method}"),
        SpeedRole::Draft => format!("{rate} drafting"),
    })
}

/// Returns the display name of a source.
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
