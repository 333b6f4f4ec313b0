//! `hunch models fit`: the memory that models will take, and what would fit instead.

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::memory;
use hunch::generate::{LoadPlan, Models};
use hunch_library::Places;
use hunch_library::types::{Fit, FitVerdict, PredictedMemory, SmallerChoice};
use hunch_model::device::{Compute, DeviceChoice};

use super::pairs;
use crate::cli::render;

/// Cells of the bar.
const BAR: f64 = 60.0;

/// Which models, with how long a context.
#[derive(Args)]
pub(super) struct FitArgs {
    /// A GGUF file or a name from the list
    target: String,
    /// The draft model that is loaded with it
    #[arg(long, value_name = "PATH|NAME")]
    draft: Option<String>,
    /// Tokens that the caches hold [default: as many as the model was made for, at most 8192]
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// Load the models, fill their caches, and say what that took
    #[arg(long)]
    measure: bool,
    /// Where to compute: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    device: DeviceChoice,
}

pub(super) fn run(args: &FitArgs, places: &Places, json: bool) -> Result<()> {
    let compute = Compute::open(args.device, None)?;
    let target = hunch_library::resolve(&args.target, places)?;
    let draft = args.draft.as_deref().map(|name| hunch_library::resolve(name, places)).transpose()?;
    let measured = if args.measure {
        // First of all: what was read for the prediction is still in this process's memory afterwards.
        let context = pairs::context(&target, args.context)? as usize;
        let plan = LoadPlan { draft: draft.clone(), context: Some(context), ..LoadPlan::of(&target) };
        Some(memory::peak_when_full(&mut Models::load_by(&plan, &compute)?, &compute, context)?)
    } else {
        None
    };
    let fit = pairs::predicted_fit(&compute, places, &target, draft.as_deref(), args.context)?;
    let mut out = std::io::stdout().lock();
    if json {
        let value = serde_json::json!({ "fit": fit, "measured_peak_bytes": measured });
        return Ok(writeln!(out, "{value}")?);
    }
    write!(out, "{}", text(&fit))?;
    if let Some(peak) = measured {
        let ratio = fit.total as f64 / peak as f64;
        writeln!(
            out,
            "measured      {:>10}  at its peak; predicted / measured = {ratio:.3}",
            render::bytes(peak)
        )?;
    }
    Ok(())
}

fn text(fit: &Fit) -> String {
    let none = PredictedMemory { weights: 0, cache: 0 };
    let draft = fit.draft.unwrap_or(none);
    let parts = [
        ('T', "target", fit.target.weights, "weights".to_owned()),
        ('t', "", fit.target.cache, format!("cache of {} tokens", fit.context)),
        ('D', "draft", draft.weights, "weights".to_owned()),
        ('d', "", draft.cache, format!("cache of {} tokens", fit.context)),
        ('o', "other", fit.other, "work space, tokeniser, program".to_owned()),
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
    let mut text = String::new();
    for (cell, name, bytes, of_what) in &parts {
        if *bytes > 0 {
            text += &format!("{cell} {name:<10}  {:>10}  {of_what}\n", render::bytes(*bytes));
        }
    }
    text += &format!(
        "predicted     {:>10}  of {} that models may take ({} in all)\n[{}]\n{}\n",
        render::bytes(fit.total),
        render::bytes(fit.machine.usable),
        render::bytes(fit.machine.total),
        bar.trim_end(),
        match fit.verdict {
            FitVerdict::Fits => "It fits.",
            FitVerdict::Tight => "It fits, with less than a tenth to spare: other programs will feel it.",
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
