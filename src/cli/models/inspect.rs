//! `hunch models inspect`: details of one model, or of a head.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use hunch::generate::LoadPlan;
use hunch_core::sample::RecommendedSampling;
use hunch_library::types::{Fit, OwnDrafter};
use hunch_library::{Inspection, Places};
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::heads::{self, HeadSummary};
use hunch_model::spec::ModelSpec;

use super::list::{self, fill_speeds, source};
use super::pairs::predicted_fit;
use crate::cli::render;

/// Model and context length.
#[derive(Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file, an MLX folder, a name from the list, or the folder of a head
    file: String,
    /// Tokens in the cache, for predicted memory [default: the model's context length, at most 8192]
    #[arg(long, value_name = "N")]
    context: Option<u32>,
}

pub(crate) fn run(args: &InspectArgs, places: &Places, json: bool) -> Result<()> {
    if let Some(head) = heads::describe(Path::new(&args.file))? {
        return show_head(&head, json);
    }
    let path = hunch_library::resolve(&args.file, places)?;
    let compute = Compute::open(DeviceChoice::Auto, None)?;
    let mut inspection = hunch_library::inspect_listed(&path, places)?;
    fill_speeds(std::slice::from_mut(&mut inspection.entry), &compute);
    let fit = predicted_fit(&compute, places, &LoadPlan::of(&path), args.context)?;
    let note = hunch_library::template_note(&path)?;
    show(&inspection, &fit, note.as_deref(), json)
}

fn show_head(head: &HeadSummary, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::json!({ "head": head }))?);
    }
    let or = |value: Option<String>, otherwise: &str| value.unwrap_or_else(|| otherwise.into());
    let list = |layers: &Vec<usize>| layers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let rows = [
        ("head", head.kind.clone()),
        ("target", or(head.target.clone(), "not stated")),
        ("width of the target", head.width.to_string()),
        ("layers of the target", or(head.target_layers.map(|n| n.to_string()), "not stated")),
        ("vocabulary of the target", or(head.target_vocabulary.map(|n| n.to_string()), "not stated")),
        ("tokens it scores", or(head.scored_tokens.map(|n| n.to_string()), "all")),
        ("reads after layers", or(head.layers.as_ref().map(list), "the usual ones")),
        ("parameters", format!("{:.1} M", head.parameters as f64 / 1e6)),
        ("size", render::bytes(head.bytes)),
        ("use it", "hunch run --target MODEL --method head --head PATH".into()),
    ];
    Ok(writeln!(out, "{}", render::fields(&rows))?)
}

fn show(inspection: &Inspection, fit: &Fit, template_note: Option<&str>, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let (entry, spec) = (&inspection.entry, &inspection.spec);
    if json {
        let value = serde_json::json!({
            "model": entry,
            "spec": spec,
            "tensors": inspection.quantisations,
            "weight_bytes": inspection.weight_bytes,
            "tokenizer": entry.tokenizer,
            "chat_template": entry.has_template,
            "template_note": template_note,
            "licence": entry.licence,
            "sampling": inspection.sampling,
            "ignored_sampling": inspection.ignored_sampling,
            "context": fit.context,
            "predicted_memory_bytes": fit.total,
        });
        return Ok(writeln!(out, "{value}")?);
    }
    let types: Vec<String> =
        inspection.quantisations.iter().map(|(name, n)| format!("{name} x {n}")).collect();
    let size = match entry.parts {
        1 => render::bytes(entry.size_bytes),
        parts => format!("{} in {parts} files", render::bytes(entry.size_bytes)),
    };
    let experts = spec.experts.map_or("none".into(), |experts| {
        format!("{} of {} a row, {} wide", experts.used, experts.count, experts.n_ff)
    });
    let rows = [
        ("name", entry.name.clone()),
        ("model", spec.name.clone()),
        ("source", source(entry.source).into()),
        ("file", entry.path.clone()),
        ("size", size),
        ("architecture", spec.architecture.clone()),
        ("parameters", format!("{:.1} M", entry.parameters as f64 / 1e6)),
        ("layers", layers_of(spec)),
        ("width", format!("{} ({} feed-forward)", spec.n_embd, spec.n_ff)),
        ("experts", experts),
        ("heads", heads_of(spec)),
        ("vocabulary", spec.n_vocab.to_string()),
        ("context", format!("{} tokens", spec.context_length)),
        ("quantisation", entry.quantisation.clone()),
        ("tensor types", types.join(", ")),
        ("tokeniser", entry.tokenizer.clone()),
        (
            "chat template",
            match (entry.has_template, template_note) {
                (_, Some(note)) => note.into(),
                (true, None) => "yes".into(),
                (false, None) => "none; a plain one is used".into(),
            },
        ),
        ("sampling", recommended(&inspection.sampling)),
        (
            "own drafter",
            match &entry.own_drafter {
                None => "none".into(),
                Some(OwnDrafter::Usable { size_bytes }) => {
                    format!("MTP layer, {} (--method head)", render::bytes(*size_bytes))
                }
                Some(OwnDrafter::Unusable { reason }) => render::line(reason),
            },
        ),
        ("licence", entry.licence.clone().unwrap_or_else(|| "not stated".into())),
        ("tok/s", list::speed(entry).unwrap_or_else(|| "not measured".into())),
        ("memory", format!("{} at {} tokens (predicted)", render::bytes(fit.total), fit.context)),
    ];
    writeln!(out, "{}", render::fields(&rows))?;
    for ignored in &inspection.ignored_sampling {
        writeln!(out, "ignored: {}", render::line(ignored))?;
    }
    Ok(())
}

/// Describes the recommended sampling in the options of `hunch run`.
pub(crate) fn recommended(sampling: &RecommendedSampling) -> String {
    let RecommendedSampling { temperature, top_k, top_p, min_p, repeat_penalty } = sampling;
    let parts = [
        temperature.map(|value| format!("temperature {value}")),
        top_k.map(|value| format!("top-k {value}")),
        top_p.map(|value| format!("top-p {value}")),
        min_p.map(|value| format!("min-p {value}")),
        repeat_penalty.map(|value| format!("repeat-penalty {value}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "none recommended".into() } else { format!("recommended: {}", parts.join(", ")) }
}

/// Describes the layers of a model.
fn layers_of(spec: &ModelSpec) -> String {
    match spec.layers.iter().filter(|layer| layer.shares_keys_of.is_some()).count() {
        0 => spec.n_layer.to_string(),
        sharing => format!("{}, of which {sharing} share keys of others", spec.n_layer),
    }
}

/// Describes the heads of attention, in which layers may differ.
fn heads_of(spec: &ModelSpec) -> String {
    let mut kinds = Vec::new();
    for heads in (0..spec.n_layer).map(|layer| spec.heads(layer)) {
        if !kinds.contains(&heads) {
            kinds.push(heads);
        }
    }
    let kinds: Vec<String> =
        kinds.iter().map(|heads| format!("{} key and value, {} wide", heads.count, heads.width)).collect();
    format!("{} query, {}", spec.n_head, kinds.join(", or "))
}
