//! `hunch models pairs`: draft models for a target.

use std::cell::OnceCell;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use hunch::generate::LoadPlan;
use hunch::services::pair::PairJudge;
use hunch::store::Store;
use hunch_error::Error;
use hunch_library::types::{
    CatalogueHead, DraftOffer, Fit, FitVerdict, HeadOffer, MeasuredSpeedup, PairVerdict, PredictedSpeedup,
};
use hunch_library::{Places, fit, machine};
use hunch_model::device::{Compute, DeviceChoice};

use crate::cli::{open_compute, render};

/// Target, context length and device.
#[derive(Args)]
pub(super) struct PairsArgs {
    /// A GGUF file, an MLX folder, or a name from the list
    target: String,
    /// Tokens in the caches, for predicted memory [default: the model's context length, at most 8192]
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// Device: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    device: DeviceChoice,
}

/// Returns the given context length, or the target's default.
pub(super) fn context(target: &Path, asked: Option<u32>) -> Result<u32, Error> {
    let usual =
        || hunch_library::inspect(target).map(|inspection| fit::default_context(&inspection.spec) as u32);
    asked.map_or_else(usual, Ok)
}

/// Predicts the memory of planned models. If they do not fit, also searches for smaller choices among all models.
pub(crate) fn predicted_fit(
    compute: &Compute,
    places: &Places,
    plan: &LoadPlan,
    context: Option<u32>,
) -> Result<Fit, Error> {
    judge(compute, |judge| judge.fit(plan, context, || hunch_library::scan(places).models))
}

/// Calls `ask` with the measurements of this machine.
fn judge<T>(compute: &Compute, ask: impl FnOnce(&PairJudge<'_>) -> T) -> T {
    // Opened on first use: most queries need no costs.
    let store = OnceCell::new();
    let data = hunch_library::data_folder().ok();
    ask(&PairJudge {
        compute,
        machine: machine::memory(0, compute),
        folder: data.as_deref(),
        copies: data.as_deref(),
        saved_costs: &|of| store.get_or_init(saved_costs).as_ref()?.known_costs(of),
    })
}

/// Opens the store in which the window saves costs, if there is one.
fn saved_costs() -> Option<Store> {
    let path = hunch_library::conversations_path().ok().filter(|path| path.exists())?;
    Store::open_read_only(&path).ok()
}

pub(super) fn run(args: &PairsArgs, places: &Places, json: bool) -> Result<()> {
    let target = hunch_library::resolve(&args.target, places)?;
    let compute = open_compute(args.device, None)?;
    let models = hunch_library::scan(places).models;
    let heads = hunch_library::heads(places, &models);
    let offers =
        judge(&compute, |judge| judge.query(&models, |pairs| pairs.offers(&target, &heads, args.context)))?;
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&offers)?)?);
    }
    writeln!(
        out,
        "Drafts for {}, with caches of {} tokens:\n",
        render::line(&offers.target.name),
        offers.context
    )?;
    let rows: Vec<Vec<String>> = offers.offers.iter().map(row).collect();
    let header = ["draft", "where", "size", "of target", "memory", "speedup", "verdict"];
    writeln!(out, "{}", render::table(&header, &rows))?;
    let possible = |offer: &DraftOffer| {
        offer.predicted.is_some() || matches!(offer.verdict, PairVerdict::Translated { .. })
    };
    if !offers.offers.iter().any(possible) {
        writeln!(out, "\nNo installed or catalogue model can draft for it. The verdicts say why.")?;
    }
    if let Some(copy) = &offers.low_bit {
        let state = if copy.written { "written" } else { "written at its first use" };
        writeln!(
            out,
            "\nLow-bit copy, --method low-bit: {}, {state}, {}.",
            render::bytes(copy.size_bytes),
            speedup(copy.measured.as_ref(), Some(&copy.predicted))
        )?;
    }
    let own = offers.own_head.iter().map(|own| {
        let mut row = head_row(own);
        row[5] = "brought by the target".into();
        row
    });
    let heads: Vec<Vec<String>> = own.chain(offers.heads.iter().map(head_row)).collect();
    if !heads.is_empty() {
        let header = ["head", "kind", "size", "memory", "speedup", "verdict"];
        writeln!(out, "\n{}", render::table(&header, &heads))?;
    }
    if !offers.heads_to_fetch.is_empty() {
        let rows: Vec<Vec<String>> = offers.heads_to_fetch.iter().map(catalogue_head_row).collect();
        let header = ["head to download", "kind", "trained for", "size", "licence"];
        writeln!(out, "\n{}\nDownload one with hunch models pull NAME.", render::table(&header, &rows))?;
    }
    let methods: Vec<String> = offers.without_draft.iter().map(ToString::to_string).collect();
    Ok(writeln!(out, "\nWithout a draft model: {}.", methods.join(", "))?)
}

/// Formats a head of the catalogue.
pub(super) fn catalogue_head_row(head: &CatalogueHead) -> Vec<String> {
    vec![
        head.repository.clone(),
        head.kind.clone(),
        head.target.clone(),
        head.size_bytes.map_or_else(|| "-".into(), render::bytes),
        head.licence.clone().unwrap_or_else(|| "-".into()),
    ]
}

fn head_row(offer: &HeadOffer) -> Vec<String> {
    let (memory, verdict) = match &offer.problem {
        Some(problem) => ("-".into(), problem.clone()),
        None => {
            let of = offer.trained_for.as_ref().map_or_else(String::new, |name| format!(", made for {name}"));
            let fit = fit_words(offer.fit);
            (format!("{}{fit}", render::bytes(offer.memory)), format!("sizes match{of}"))
        }
    };
    let predicted = offer.predicted.filter(|_| offer.problem.is_none());
    let speedup = predicted.map_or("-".into(), |predicted| format!("{:.2}x predicted", predicted.speedup));
    vec![
        offer.name.clone(),
        offer.kind.clone(),
        render::bytes(offer.size_bytes),
        memory,
        speedup,
        render::line(&verdict),
    ]
}

fn fit_words(fit: FitVerdict) -> &'static str {
    match fit {
        FitVerdict::Fits => "",
        FitVerdict::Tight => ", tight",
        FitVerdict::TooLarge => ", too large",
    }
}

/// Returns the measured speedup of a pair, else the predicted one.
fn speedup(measured: Option<&MeasuredSpeedup>, predicted: Option<&PredictedSpeedup>) -> String {
    match (measured, predicted) {
        (Some(measured), _) => format!("{:.2}x measured", measured.speedup),
        (None, Some(predicted)) => format!("{:.2}x predicted", predicted.speedup),
        (None, None) => "-".into(),
    }
}

fn row(offer: &DraftOffer) -> Vec<String> {
    let speedup = speedup(offer.measured.as_ref(), offer.predicted.as_ref());
    let fit = fit_words(offer.fit);
    let place = if offer.path.is_some() { "installed" } else { "catalogue" };
    vec![
        offer.name.clone(),
        place.into(),
        render::bytes(offer.size_bytes),
        format!("{:.1}%", 100.0 * offer.size_ratio),
        format!("{}{fit}", render::bytes(offer.memory)),
        speedup,
        verdict(offer),
    ]
}

fn verdict(offer: &DraftOffer) -> String {
    let recommended = if offer.recommended { ", recommended" } else { "" };
    match &offer.verdict {
        PairVerdict::Suits { padding: 0 } => format!("suits{recommended}"),
        PairVerdict::Suits { padding } => format!("suits, {padding} entries of padding{recommended}"),
        PairVerdict::Expected { compared: true } => {
            format!("suits, compared when the catalogue was made{recommended}")
        }
        PairVerdict::Expected { compared: false } => {
            format!("same family; compared token by token after the download{recommended}")
        }
        PairVerdict::Translated { shared, of } => {
            format!("another tokeniser: {shared} of its {of} tokens are shared, only these are drafted")
        }
        PairVerdict::OtherVocabulary { first, of_target, of_draft } => {
            format!(
                "different vocabulary: token {first} is {of_target:?} in the target and {of_draft:?} in the draft"
            )
        }
        PairVerdict::NotSmaller => "not smaller than the target".into(),
        PairVerdict::Unusable { reason } => reason.clone(),
    }
}
