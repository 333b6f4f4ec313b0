//! The command line. Parses, calls the library, prints; no figure is computed here.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    hunch::text::template::child::offer();
    cli::run(cli::Cli::parse())
}
