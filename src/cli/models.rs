//! `hunch models`: what is here, and what one file is.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch::library::{self, Inspection};

use super::render;

/// Lists the models in the models folder, or inspects one file.
#[derive(Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: Option<ModelsCommand>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum ModelsCommand {
    /// Lists the models in the models folder (the default)
    List,
    /// Shows architecture, size, tokeniser, template and memory of one file
    Inspect {
        /// A GGUF file or a name from the list
        file: String,
        /// Context to predict memory for, in tokens
        #[arg(long, default_value_t = 4096)]
        context: usize,
    },
}

pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let folder = library::models_folder()?;
    match &args.command {
        None | Some(ModelsCommand::List) => list(&folder, args.json),
        Some(ModelsCommand::Inspect { file, context }) => {
            let inspection = library::inspect(&library::find(file, &folder)?)?;
            inspect(&inspection, *context, args.json)
        }
    }
}

fn list(folder: &Path, json: bool) -> Result<()> {
    let entries = library::list(folder)?;
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&entries)?)?);
    }
    if entries.is_empty() {
        writeln!(out, "No models in {}.", folder.display())?;
        return Ok(writeln!(
            out,
            "`make setup` fetches the default one; any GGUF file put there is listed."
        )?);
    }
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|e| match &e.problem {
            Some(problem) => vec![e.name.clone(), "cannot be used:".into(), problem.clone()],
            None => vec![
                e.name.clone(),
                e.architecture.clone(),
                format!("{:.0} M", e.parameters as f64 / 1e6),
                e.quantisation.clone(),
                e.context_length.to_string(),
                render::bytes(e.size_bytes),
            ],
        })
        .collect();
    let header = ["name", "architecture", "parameters", "type", "context", "size"];
    Ok(writeln!(out, "{}", render::table(&header, &rows))?)
}

fn inspect(inspection: &Inspection, context: usize, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let (entry, spec) = (&inspection.entry, &inspection.spec);
    let memory = inspection.memory_bytes(context);
    if json {
        let value = serde_json::json!({
            "model": entry,
            "spec": spec,
            "tensors": inspection.quantisations,
            "weight_bytes": inspection.weight_bytes,
            "tokenizer": inspection.tokenizer,
            "chat_template": inspection.has_template,
            "license": inspection.license,
            "context": context,
            "predicted_memory_bytes": memory,
        });
        return Ok(writeln!(out, "{value}")?);
    }
    let types: Vec<String> =
        inspection.quantisations.iter().map(|(name, n)| format!("{name} x {n}")).collect();
    let rows = [
        ("name", spec.name.clone()),
        ("file", entry.path.clone()),
        ("size", render::bytes(entry.size_bytes)),
        ("architecture", spec.architecture.clone()),
        ("parameters", format!("{:.1} M", entry.parameters as f64 / 1e6)),
        ("layers", spec.n_layer.to_string()),
        ("width", format!("{} ({} feed-forward)", spec.n_embd, spec.n_ff)),
        ("heads", format!("{} query, {} key and value, {} wide", spec.n_head, spec.n_kv_head, spec.head_dim)),
        ("vocabulary", spec.n_vocab.to_string()),
        ("context", format!("{} tokens", spec.context_length)),
        ("tensor types", types.join(", ")),
        ("tokeniser", inspection.tokenizer.clone()),
        ("chat template", if inspection.has_template { "yes" } else { "no; a plain one is used" }.into()),
        ("licence", inspection.license.clone().unwrap_or_else(|| "not stated".into())),
        ("memory", format!("{} at {context} tokens (predicted)", render::bytes(memory))),
    ];
    for (name, value) in rows {
        writeln!(out, "{name:<14} {value}")?;
    }
    Ok(())
}
