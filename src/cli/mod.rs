//! The commands and their arguments. Each command has a file; what they share (colour, cards) is in
//! `render`.

mod bench;
mod compare;
mod demo;
mod lab;
mod licenses;
mod measured;
mod models;
mod render;
mod run;
mod skip_search;
mod verify;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use hunch::api::schema;

use hunch::store::StoreError;
use hunch_error::{Error, ErrorCode, ErrorInfo};
use hunch_library::Places;
use hunch_model::device::{Compute, DeviceChoice};

/// Speculative decoding you can see, and check.
///
/// A small draft guesses tokens ahead; the target checks all guesses in one pass and keeps what it
/// would have said itself. The output distribution is exactly the target's. Every token is coloured by where
/// it came from: accepted from the draft (green), resampled after a rejection (yellow), bonus after
/// a fully accepted draft (magenta), plain when nothing was drafted.
#[derive(Parser)]
#[command(name = "hunch", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes:
  0  done; for `verify` and `lab unbiased`: every check passed
  1  `verify` or `lab unbiased`: a check failed
  2  the command line is wrong
  3  a model is missing, unsound, unsupported, or does not fit the other one
  4  the request is invalid (a parameter, the prompt, the context)
  5  the device failed, memory or disk ran out, a file could not be read or written, no hub
  70 a defect in Hunch

The default model is fetched by `make setup`. NO_COLOR=1 switches colour off.";

#[derive(Subcommand)]
enum Command {
    /// Answers a prompt and streams the tokens in colour
    Run(Box<run::RunArgs>),
    /// Measures methods against plain decoding on this machine
    Bench(Box<bench::BenchArgs>),
    /// Sets methods beside plain decoding, slice by slice: speedup with its spread, and why
    Compare(Box<compare::CompareArgs>),
    /// Looks closely: residual resampling, the rules on trial, predicted speedup over alpha and K
    Lab(Box<lab::LabArgs>),
    /// Proves that speculation changes nothing: identity, row invariance, token distribution, oracle
    Verify(verify::VerifyArgs),
    /// Finds the layers that a target can skip when it drafts for itself, and remembers them
    SkipSearch(skip_search::SkipSearchArgs),
    /// Lists models, shows what one file is, and fetches more
    Models(models::ModelsArgs),
    /// Shows speculation on the default model: an answer in colour, then plain against speculative
    Demo(demo::DemoArgs),
    /// Prints the licences of Hunch and of everything in it (`hunch licenses | less`)
    Licenses,
    /// Prints the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Prints the types of the window's interface as TypeScript
    #[command(hide = true)]
    Schema,
}

/// Which instructions the CPU kernels may use.
#[derive(Args, Clone)]
pub(crate) struct IsaArgs {
    /// Hold the CPU kernels to an instruction set, such as avx2 [default: the best this CPU has]
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
}

impl IsaArgs {
    /// Applies the choice. Before models are loaded.
    pub(crate) fn apply(&self) -> anyhow::Result<()> {
        let Some(name) = &self.isa else { return Ok(()) };
        hunch_kernels::use_level(name)
            .map_err(|reason| Error::invalid(format!("--isa {name} is not possible here: {reason}.")).into())
    }
}

/// Which models, where.
#[derive(Args, Clone)]
pub(crate) struct ModelArgs {
    /// The model that answers: a GGUF file, or a name from `hunch models`
    #[arg(long, default_value = hunch_library::DEFAULT_MODEL, value_name = "PATH|NAME")]
    pub(crate) target: String,
    /// The small model that guesses: a GGUF file or a name, of the target's vocabulary
    #[arg(long, value_name = "PATH|NAME")]
    pub(crate) draft: Option<String>,
    /// Where to compute: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    pub(crate) device: DeviceChoice,
    /// CPU threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Load the models even if they are predicted not to fit into memory
    #[arg(long, alias = "even-if-too-large")]
    pub(crate) ignore_memory_check: bool,
}

impl ModelArgs {
    pub(crate) fn compute(&self) -> Result<Compute, Error> {
        Compute::open(self.device, self.threads)
    }

    pub(crate) fn target_path(&self) -> Result<PathBuf, Error> {
        hunch_library::resolve(&self.target, &Places::of_this_user()?)
    }

    pub(crate) fn draft_path(&self) -> Result<Option<PathBuf>, Error> {
        let places = Places::of_this_user()?;
        self.draft.as_deref().map(|name| hunch_library::resolve(name, &places)).transpose()
    }
}

/// Runs a command and turns its outcome into an exit code.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args).map(|()| true),
        Command::Bench(args) => bench::run(&args).map(|()| true),
        Command::Compare(args) => compare::run(&args).map(|()| true),
        Command::Lab(args) => lab::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::SkipSearch(args) => skip_search::run(&args).map(|()| true),
        Command::Models(args) => models::run(&args).map(|()| true),
        Command::Demo(args) => demo::run(&args).map(|()| true),
        Command::Licenses => licenses::run().map(|()| true),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "hunch", &mut std::io::stdout());
            Ok(true)
        }
        Command::Schema => {
            write!(std::io::stdout(), "{}", schema::typescript()).map(|()| true).map_err(anyhow::Error::from)
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // A reader that went away (`hunch ... | head`) is no failure of ours.
            let closed = error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe);
            if closed {
                return ExitCode::SUCCESS;
            }
            // It may repeat what a file says.
            let text: Vec<String> = format!("{error:#}").lines().map(render::line).collect();
            eprintln!("hunch: {}", text.join("\n"));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// An error as the engine told it to the outside.
#[derive(Debug)]
pub(crate) struct Told(ErrorInfo);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Told {}

fn exit_code(error: &anyhow::Error) -> u8 {
    match error_code(error) {
        None => 5,
        Some(code) => exit_code_of(code),
    }
}

/// The kind of an error, whichever crate it comes from.
fn error_code(error: &anyhow::Error) -> Option<ErrorCode> {
    use hunch_core::error::Error as CoreError;
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error.code());
    }
    if let Some(StoreError(error)) = error.downcast_ref() {
        return Some(error.code());
    }
    if let Some(Told(info)) = error.downcast_ref() {
        return Some(info.code);
    }
    error.downcast_ref::<CoreError>().map(|error| match error {
        CoreError::InvalidRequest(_) => ErrorCode::InvalidRequest,
        CoreError::ContextOverflow { .. } => ErrorCode::ContextOverflow,
        CoreError::Model(error) => error.downcast_ref().map_or(ErrorCode::Internal, Error::code),
        _ => ErrorCode::Internal,
    })
}

fn exit_code_of(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::ModelNotFound
        | ErrorCode::InvalidModelFile
        | ErrorCode::UnsupportedModel
        | ErrorCode::VocabularyMismatch
        | ErrorCode::HubNotFound
        | ErrorCode::HubGated
        | ErrorCode::NoModel => 3,
        ErrorCode::InvalidRequest
        | ErrorCode::ContextOverflow
        | ErrorCode::Busy
        | ErrorCode::HubToken
        | ErrorCode::DownloadElsewhere
        | ErrorCode::DownloadUnreadable => 4,
        ErrorCode::OutOfMemory
        | ErrorCode::Io
        | ErrorCode::Store
        | ErrorCode::Device
        | ErrorCode::HubUnreachable
        | ErrorCode::WrongChecksum
        | ErrorCode::CatalogueMismatch
        | ErrorCode::DiskFull => 5,
        // As a shell tells that Ctrl-C ended something.
        ErrorCode::Stopped => 130,
        ErrorCode::Internal => 70,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_core::error::Error as CoreError;

    #[test]
    fn errors_of_every_crate_have_the_exit_code_of_their_kind() {
        let busy = || Error::Busy;
        assert_eq!(exit_code(&CoreError::invalid("k is 99").into()), 4);
        assert_eq!(exit_code(&CoreError::model(busy()).into()), 4);
        assert_eq!(exit_code(&StoreError(Error::Store("locked".into())).into()), 5);
        assert_eq!(exit_code(&Error::NoModel.into()), 3);
        assert_eq!(exit_code(&CoreError::Internal("broken".into()).into()), 70);
        assert_eq!(exit_code(&anyhow::anyhow!("something else")), 5);
    }
}
