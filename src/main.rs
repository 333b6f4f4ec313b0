//! The command line: parses arguments, calls the library and prints. Computes no figures.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    hunch_model::text::template::child::offer();
    cli::run(cli::Cli::parse())
}
