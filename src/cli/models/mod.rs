//! `hunch models`: what is here, what one model is, which folders are looked through, what fits and goes
//! together, and what can be fetched.

mod catalogue;
mod fit;
mod folders;
mod hub;
mod inspect;
mod list;
mod pairs;
mod pull;
mod remove;

use anyhow::Result;
use clap::{Args, Subcommand};
use hunch_library::Places;
pub(crate) use pairs::predicted_fit;

/// Lists the models on this machine, inspects one, or fetches one.
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
    /// Lists the models of Hunch, of added folders and of other programs (the default)
    List(list::ListArgs),
    /// Shows architecture, size, tokeniser, template and memory of one model
    Inspect(inspect::InspectArgs),
    /// Removes a model from Hunch's own folder
    Rm(remove::RemoveArgs),
    /// Lists the folders that are looked through, adds one or takes one off the list
    Folders(folders::FoldersArgs),
    /// Predicts the memory that a model takes with its draft, and what would fit instead
    Fit(fit::FitArgs),
    /// Lists what can draft for a target, here and in the catalogue, with verdict and expected speedup
    Pairs(pairs::PairsArgs),
    /// Lists the catalogue: models that are known to run well, and their drafts
    Catalogue,
    /// Lists the GGUF models of a repository on Hugging Face's hub
    Hub {
        /// As on its page: Qwen/Qwen3-8B-GGUF
        repository: String,
    },
    /// Fetches a model from the hub; the same command goes on with one that was interrupted
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
        Some(ModelsCommand::Fit(fit)) => fit::run(fit, &places, args.json),
        Some(ModelsCommand::Pairs(pairs)) => pairs::run(pairs, &places, args.json),
        Some(ModelsCommand::Catalogue) => catalogue::run(args.json),
        Some(ModelsCommand::Hub { repository }) => hub::run(repository, args.json),
        Some(ModelsCommand::Pull(pull)) => pull::run(pull, args.json),
    }
}
