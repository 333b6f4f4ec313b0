//! `hunch models fit`: predicted memory of models, and smaller choices that would fit.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use hunch::bench::peak_memory;
use hunch::generate::{LoadPlan, Models};
use hunch::services::load::{self, ModelNames};
use hunch_library::Places;
use hunch_library::types::{Fit, FitVerdict, PredictedMemory, SmallerChoice};
use hunch_model::device::{DeviceChoice, KvType};

use super::pairs;
use crate::cli::{open_compute, render};

/// Width of the bar in characters.
const BAR: f64 = 60.0;

/// Models and context length.
#[derive(Args)]
pub(super) struct FitArgs {
    /// A GGUF file, an MLX folder, or a name from the list
    target: String,
    /// The draft model
    #[arg(long, value_name = "PATH|NAME")]
    draft: Option<String>,
    /// The head that drafts: its name, file or folder [default: the one that would be used]
    #[arg(long, value_name = "PATH|NAME")]
    head: Option<PathBuf>,
    /// Tokens in the caches [default: the model's context length, at most 8192]
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// Load the models, fill their caches, and measure the memory
    #[arg(long)]
    measure: bool,
    /// Device: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    device: DeviceChoice,
    /// Number type of the KV cache on the CPU: f16 takes half the memory of f32
    #[arg(long, default_value_t, value_name = "f16|f32")]
    kv: KvType,
}

pub(super) fn run(args: &FitArgs, places: &Places, json: bool) -> Result<()> {
    let compute = open_compute(args.device, None)?.with_kv(args.kv);
    let names = ModelNames { target: &args.target, draft: args.draft.as_deref(), head: args.head.as_deref() };
    let found = load::find(places, names)?;
    let measured = if args.measure {
        // Measured first: reading the files for the prediction would add to the peak of this process.
        let context = pairs::context(&found.target, args.context)? as usize;
        let plan = LoadPlan { context: Some(context), ..found.clone() };
        Some(peak_memory::peak_when_full(&mut Models::load_by(&plan, &compute)?, &compute, context)?)
    } else {
        None
    };
    let fit = pairs::predicted_fit(&compute, places, &found, args.context)?;
    let mut out = std::io::stdout().lock();
    if json {
        let value = serde_json::json!({ "fit": fit, "measured_peak_bytes": measured });
        return Ok(writeln!(out, "{value}")?);
    }
    write!(out, "{}", text(&fit))?;
    if let Some(peak) = measured {
        let ratio = fit.total as f64 / peak as f64;
        writeln!(out, "measured peak: {}, predicted / measured = {ratio:.3}", render::bytes(peak))?;
    }
    Ok(())
}

fn text(fit: &Fit) -> String {
    let none = PredictedMemory { weights: 0, cache: 0 };
    let (draft, head) = (fit.draft.unwrap_or(none), fit.head.unwrap_or(none));
    let parts = [
        ('T', "target", fit.target.weights, "weights".to_owned()),
        ('t', "", fit.target.cache, format!("cache of {} tokens", fit.context)),
        ('D', "draft", draft.weights, "weights".to_owned()),
        ('d', "", draft.cache, format!("cache of {} tokens", fit.context)),
        ('H', "head", head.weights, "weights".to_owned()),
        ('h', "", head.cache, format!("cache of {} tokens", fit.context)),
        ('o', "other", fit.other, "buffers, tokeniser, program".to_owned()),
    ];
    let usable = fit.machine.usable.max(1) as f64;
    let scale = BAR / usable.max(fit.total as f64);
    let cells: String = parts
        .iter()
        .map(|part| part.0.to_string().repeat((part.2 as f64 * scale).round() as usize))
        .collect();
    let end = (usable * scale).round() as usize;
    let bar: String = (0..(BAR as usize).max(cells.len()))
        .map(|i| match cells.chars().nth(i) {
            _ if i == end => '|',
            Some(cell) => cell,
            None if i < end => '.',
            None => ' ',
        })
        .collect();
    let row = |(cell, name, bytes, part): &(char, &str, u64, String)| {
        vec![format!("{cell} {name}"), part.clone(), render::bytes(*bytes)]
    };
    let mut rows: Vec<_> = parts.iter().filter(|(_, _, bytes, _)| *bytes > 0).map(row).collect();
    rows.push(vec!["= predicted".into(), "in all".into(), render::bytes(fit.total)]);
    let mut text = format!(
        "{}\n[{}]\n{} of {} can be used for models. {}\n",
        render::table(&["part", "", "memory"], &rows),
        bar.trim_end(),
        render::bytes(fit.machine.usable),
        render::bytes(fit.machine.total),
        match fit.verdict {
            FitVerdict::Fits => "It fits.",
            FitVerdict::Tight => "It fits, with less than a tenth to spare. Other programs may slow down.",
            FitVerdict::TooLarge => "It does not fit.",
        }
    );
    for choice in &fit.smaller {
        text += &match choice {
            SmallerChoice::Context { context } => format!("  would fit: --context {context}\n"),
            SmallerChoice::WithoutDraft => "  would fit: the target without the draft\n".into(),
            SmallerChoice::Model { name, .. } => format!("  would fit: {}\n", render::line(name)),
            SmallerChoice::Catalogue { id, name } => format!("  would fit: {name} of the catalogue ({id})\n"),
        };
    }
    text
}
