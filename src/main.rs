//! The command line. Parses, calls the library, prints; no figure is computed here.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    hunch_model::text::template::child::offer();
    cli::run(cli::Cli::parse())
}
