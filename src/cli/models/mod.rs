//! `hunch models`: list, inspect, pair, download and remove models.

mod catalogue;
mod confirm;
mod fit;
mod folders;
mod hub;
mod inspect;
mod list;
mod pairs;
mod pull;
mod remove;
mod search;
mod storage;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch_library::Places;
pub(crate) use pairs::predicted_fit;

/// List, inspect and download models.
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
    /// List the models of Hunch, of added folders and of other programs (the default)
    List(list::ListArgs),
    /// Show architecture, size, tokeniser, template and memory of one model
    Inspect(inspect::InspectArgs),
    /// Remove a model from Hunch's own folder
    Rm(remove::RemoveArgs),
    /// List the folders that are searched, add one or remove one
    Folders(folders::FoldersArgs),
    /// List what Hunch stores for models: low-bit copies, training data, trained drafters; and delete it
    Storage(storage::StorageArgs),
    /// Predict the memory of a model with its draft, and suggest what would fit instead
    Fit(fit::FitArgs),
    /// List draft models for a target, installed and in the catalogue, with verdict and expected speedup
    Pairs(pairs::PairsArgs),
    /// List the catalogue: models that are known to run well, and their drafts
    Catalogue,
    /// Search the Hugging Face Hub for models by name
    Search(search::SearchArgs),
    /// List the models of a repository on the Hugging Face Hub
    Hub(hub::HubArgs),
    /// Download a model from the Hub; the same command resumes an interrupted download
    Pull(pull::PullArgs),
}

pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let places = Places::of_this_user()?;
    match &args.command {
        None => list::run(&list::ListArgs::default(), &places, args.json),
        Some(ModelsCommand::List(list)) => list::run(list, &places, args.json),
        Some(ModelsCommand::Inspect(inspect)) => inspect::run(inspect, &places, args.json),
        Some(ModelsCommand::Rm(remove)) => remove::run(remove, &places, args.json),
        Some(ModelsCommand::Folders(folders)) => folders::run(folders, &places, args.json),
        Some(ModelsCommand::Storage(storage)) => storage::run(storage, &places, args.json),
        Some(ModelsCommand::Fit(fit)) => fit::run(fit, &places, args.json),
        Some(ModelsCommand::Pairs(pairs)) => pairs::run(pairs, &places, args.json),
        Some(ModelsCommand::Catalogue) => catalogue::run(args.json),
        Some(ModelsCommand::Search(search)) => search::run(search, args.json),
        Some(ModelsCommand::Hub(hub)) => hub::run(hub, args.json),
        Some(ModelsCommand::Pull(pull)) => pull::run(pull, args.json),
    }
}
