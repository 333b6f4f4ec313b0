//! `hunch models inspect`: what one model is.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::library::{self, Inspection, Places};

use crate::cli::render;

/// Which model, and how much of it in memory.
#[derive(Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file or a name from the list
    file: String,
    /// Context to predict memory for, in tokens
    #[arg(long, default_value_t = 4096)]
    context: usize,
}

pub(crate) fn run(args: &InspectArgs, places: &Places, json: bool) -> Result<()> {
    let inspection = library::inspect(&library::find(&args.file, places)?)?;
    inspect(&inspection, args.context, json)
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
            "tokenizer": entry.tokenizer,
            "chat_template": entry.has_template,
            "licence": entry.licence,
            "context": context,
            "predicted_memory_bytes": memory,
        });
        return Ok(writeln!(out, "{value}")?);
    }
    let types: Vec<String> =
        inspection.quantisations.iter().map(|(name, n)| format!("{name} x {n}")).collect();
    let size = match entry.parts {
        1 => render::bytes(entry.size_bytes),
        parts => format!("{} in {parts} files", render::bytes(entry.size_bytes)),
    };
    let rows = [
        ("name", spec.name.clone()),
        ("file", entry.path.clone()),
        ("size", size),
        ("architecture", spec.architecture.clone()),
        ("parameters", format!("{:.1} M", entry.parameters as f64 / 1e6)),
        ("layers", spec.n_layer.to_string()),
        ("width", format!("{} ({} feed-forward)", spec.n_embd, spec.n_ff)),
        ("heads", format!("{} query, {} key and value, {} wide", spec.n_head, spec.n_kv_head, spec.head_dim)),
        ("vocabulary", spec.n_vocab.to_string()),
        ("context", format!("{} tokens", spec.context_length)),
        ("quantisation", entry.quantisation.clone()),
        ("tensor types", types.join(", ")),
        ("tokeniser", entry.tokenizer.clone()),
        ("chat template", if entry.has_template { "yes" } else { "no; a plain one is used" }.into()),
        ("licence", entry.licence.clone().unwrap_or_else(|| "not stated".into())),
        ("memory", format!("{} at {context} tokens (predicted)", render::bytes(memory))),
    ];
    for (name, value) in rows {
        writeln!(out, "{name:<14} {}", render::line(&value))?;
    }
    Ok(())
}
