//! `hunch models pairs`: what can draft for a target.

use std::cell::OnceCell;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use hunch::store::{CurveOf, Store};
use hunch_error::Error;
use hunch_library::pairs::{CostQuery, Pairs};
use hunch_library::speed_log::SpeedLog;
use hunch_library::types::ModelEntry;
use hunch_library::types::{DraftOffer, Fit, FitVerdict, PairVerdict};
use hunch_library::vocabularies::Vocabularies;
use hunch_library::{Places, fit, machine};
use hunch_model::device::{Compute, DeviceChoice};

use crate::cli::render;

/// For which target.
#[derive(Args)]
pub(super) struct PairsArgs {
    /// A GGUF file or a name from the list
    target: String,
    /// Tokens that memory is predicted for [default: as many as the model was made for, at most 8192]
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// Where it would run: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    device: DeviceChoice,
}

/// The context that is asked for, or the target's usual one.
pub(super) fn context(target: &Path, asked: Option<u32>) -> Result<u32, Error> {
    let usual =
        || hunch_library::inspect(target).map(|inspection| fit::default_context(&inspection.spec) as u32);
    asked.map_or_else(usual, Ok)
}

/// The memory that models take, and what would fit if they do not: only then the other models are looked at.
pub(crate) fn predicted_fit(
    compute: &Compute,
    places: &Places,
    target: &Path,
    draft: Option<&Path>,
    context: Option<u32>,
) -> Result<Fit, Error> {
    let fit = |pairs: &Pairs<'_>| pairs.fit(target, draft, context);
    let found = ask_pairs(&[], compute, fit)?;
    if found.verdict != FitVerdict::TooLarge {
        return Ok(found);
    }
    ask_pairs(&hunch_library::scan(places).models, compute, fit)
}

/// Asks the library about pairs, with what is known of this machine.
fn ask_pairs<T>(
    models: &[ModelEntry],
    compute: &Compute,
    ask: impl FnOnce(&Pairs<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    // Opened when costs are asked for: most questions need none.
    let store = OnceCell::new();
    let costs = |CostQuery { target, draft }: CostQuery<'_>| {
        let store: &Option<Store> = store.get_or_init(kept_costs);
        store.as_ref()?.known_costs(&CurveOf::on(compute, target, draft))
    };
    ask(&Pairs {
        models,
        compute,
        machine: machine::memory(0, compute),
        vocabularies: &Vocabularies::open(hunch_library::data_folder().ok().as_deref()),
        measured: SpeedLog::open(compute.name()).ok().as_ref(),
        costs: &costs,
    })
}

/// The file that the window keeps costs in, if there is one that can be used.
fn kept_costs() -> Option<Store> {
    let path = hunch_library::conversations_path().ok().filter(|path| path.exists())?;
    Store::open_read_only(&path).ok()
}

pub(super) fn run(args: &PairsArgs, places: &Places, json: bool) -> Result<()> {
    let target = hunch_library::resolve(&args.target, places)?;
    let compute = Compute::open(args.device, None)?;
    let models = hunch_library::scan(places).models;
    let offers = ask_pairs(&models, &compute, |pairs| pairs.offers(&target, args.context))?;
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
    let header = ["draft", "where", "size", "of target", "both take", "speedup", "verdict"];
    writeln!(out, "{}", render::table(&header, &rows))?;
    if offers.offers.iter().all(|offer| offer.predicted.is_none()) {
        writeln!(out, "\nNo model here and none of the catalogue can draft for it; the verdicts say why.")?;
    }
    let methods: Vec<String> = offers.without_draft.iter().map(ToString::to_string).collect();
    Ok(writeln!(out, "\nWithout a draft model: {}.", methods.join(", "))?)
}

fn row(offer: &DraftOffer) -> Vec<String> {
    let speedup = match (&offer.measured, &offer.predicted) {
        (Some(measured), _) => format!("{:.2}x measured", measured.speedup),
        (None, Some(predicted)) => format!("{:.2}x predicted", predicted.speedup),
        (None, None) => "-".into(),
    };
    let fit = match offer.fit {
        FitVerdict::Fits => "",
        FitVerdict::Tight => ", tight",
        FitVerdict::TooLarge => ", too large",
    };
    let place = if offer.path.is_some() { "here" } else { "catalogue" };
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
            format!("same tokens, compared when the catalogue was made{recommended}")
        }
        PairVerdict::Expected { compared: false } => {
            format!("same family by its header, compared token by token once it is here{recommended}")
        }
        PairVerdict::OtherVocabulary { first, of_target, of_draft } => {
            format!(
                "another vocabulary: token {first} is {of_target:?} in the target and {of_draft:?} in the draft"
            )
        }
        PairVerdict::NotSmaller => "not smaller than the target".into(),
        PairVerdict::Unusable { reason } => reason.clone(),
    }
}
