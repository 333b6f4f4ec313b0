//! The commands of the command line. Each has its own file; `render` and `progress` write to the terminal.

mod bench;
mod compare;
mod demo;
mod doctor;
mod drafter;
mod drafting;
mod lab;
mod licenses;
mod measured;
mod models;
mod progress;
mod remote;
mod render;
mod run;
mod sampling;
mod serve;
mod skip_search;
mod stream;
mod verify;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use hunch::api::schema;

use hunch::services::texts::TextSource;
use hunch::store::StoreError;
use hunch_error::{Error, ErrorCode, ErrorInfo, Refusal};
use hunch_library::Places;
use hunch_model::device::{Compute, DeviceChoice, DraftDevice, KvType};

/// Speculative decoding you can see, and check.
///
/// A small draft model guesses tokens ahead. The target checks all guesses in one pass and keeps those it
/// would have produced itself, so the output has exactly the target's distribution. Tokens are coloured by origin:
/// accepted from the draft (green), resampled after a rejection (amber), or bonus after a fully accepted draft
/// (violet). Plain tokens had no draft.
#[derive(Parser)]
#[command(name = "hunch", version = hunch::VERSION, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes:
  0   success; for `verify` and `lab unbiased`: every check passed
  1   `verify`, `lab unbiased` or `doctor`: a check failed
  2   invalid command line
  3   a model is missing, damaged, unsupported, or does not match the other one
  4   invalid request (a parameter, the prompt, the context)
  5   device failure, out of memory or disk space, a file that cannot be read or written, no connection
  70  a bug in Hunch
  130 stopped with Ctrl-C

`make setup` downloads the default model. NO_COLOR=1 turns colour off.";

#[derive(Subcommand)]
enum Command {
    /// Answer a prompt and stream the tokens in colour
    Run(Box<run::RunArgs>),
    /// Serve an HTTP API compatible with OpenAI's and Anthropic's
    ///
    /// Speaks /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages. Ctrl-C ends it.
    Serve(Box<serve::ServeArgs>),
    /// Measure methods against plain decoding on this machine
    ///
    /// Every method answers the same prompts, interleaved and warm. Speedup is plain's wall time / the method's: the
    /// median over the prompts, with the 10th and 90th percentile. Figures that are computed instead of measured are
    /// called predicted. Answers are greedy unless a sampling option is given.
    Bench(Box<bench::BenchArgs>),
    /// Compare methods with plain decoding, interleaved: speedup with its spread, and why
    ///
    /// Answers are greedy unless a sampling option is given.
    Compare(Box<compare::CompareArgs>),
    /// Inspect a decoding step: residual resampling, tests of acceptance rules, predicted speedup
    Lab(Box<lab::LabArgs>),
    /// Prove that speculation changes nothing: same tokens, same logits in passes of any size, same distribution
    Verify(verify::VerifyArgs),
    /// Find the layers a target can skip when it drafts for itself, and save them
    SkipSearch(skip_search::SkipSearchArgs),
    /// Train a small network that drafts for a model, on text that the model writes itself
    ///
    /// The text never leaves this machine. A run that is stopped continues when the same command is run again.
    Drafter(drafter::DrafterCommandArgs),
    /// List, inspect and download models
    Models(models::ModelsArgs),
    /// Show speculation on the default model: an answer in colour, then plain against speculative
    Demo(demo::DemoArgs),
    /// Check this machine: device, memory, self-test of the GPU's kernels, predicted costs of passes
    Doctor(doctor::DoctorArgs),
    /// Print the licences of Hunch and its dependencies (`hunch licenses | less`)
    Licenses,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the types of the window's interface as TypeScript
    #[command(hide = true)]
    Schema,
}

/// Instruction set of the CPU kernels.
#[derive(Args, Clone)]
pub(crate) struct IsaArgs {
    /// Limit the CPU kernels to an instruction set, such as avx2 [default: the best this CPU has]
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
}

impl IsaArgs {
    /// Applies the choice. Must be called before models are loaded.
    pub(crate) fn apply(&self) -> anyhow::Result<()> {
        let Some(name) = &self.isa else { return Ok(()) };
        hunch_kernels::use_level(name)
            .map_err(|reason| Error::invalid(format!("--isa {name} cannot be used here: {reason}.")).into())
    }
}

/// Models and device.
#[derive(Args, Clone)]
pub(crate) struct ModelArgs {
    /// The model that answers: a GGUF file, an MLX folder, or a name from `hunch models`
    #[arg(long, default_value = hunch_library::DEFAULT_MODEL, value_name = "PATH|NAME")]
    pub(crate) target: String,
    /// The small model that drafts, best with the target's vocabulary: a GGUF file, an MLX folder, or a name
    #[arg(long, value_name = "PATH|NAME")]
    pub(crate) draft: Option<String>,
    /// Device: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    pub(crate) device: DeviceChoice,
    /// Device of the draft model if the target is on a GPU: auto times a small one on both, once at load
    #[arg(long, default_value_t, value_name = "auto|cpu|gpu")]
    pub(crate) draft_device: DraftDevice,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Number type of the KV cache on the CPU: f16 takes half the memory of f32
    #[arg(long, default_value_t, value_name = "f16|f32")]
    pub(crate) kv: KvType,
    /// Load the models even if they are not expected to fit into memory
    #[arg(long, alias = "even-if-too-large")]
    pub(crate) ignore_memory_check: bool,
}

/// Drafters other than a draft model.
#[derive(Args, Clone, Default)]
pub(crate) struct DrafterArgs {
    /// Name or path of the head that drafts [default: the newest trained for this target, else the layer in its
    /// file, else the shipped one]
    #[arg(long, value_name = "PATH|NAME")]
    pub(crate) head: Option<PathBuf>,
    /// Texts to copy from: a file, a folder or my-conversations, which are those of the window; may be repeated
    ///
    /// Used by retrieval and auto. Nothing of them is stored.
    #[arg(long, value_name = "PATH|my-conversations")]
    pub(crate) texts: Vec<TextSource>,
}

impl ModelArgs {
    pub(crate) fn compute(&self) -> Result<Compute, Error> {
        let compute = open_compute(self.device, self.threads)?.with_kv(self.kv);
        // Models wait for it when they are loaded, and say what failed.
        if compute.start_self_test(|| {}) {
            eprintln!(
                "hunch: Testing the GPU's kernels. This takes seconds, once for each version and system."
            );
        }
        Ok(compute)
    }

    pub(crate) fn target_path(&self) -> Result<PathBuf, Error> {
        hunch_library::resolve(&self.target, &Places::of_this_user()?)
    }

    pub(crate) fn draft_path(&self) -> Result<Option<PathBuf>, Error> {
        let places = Places::of_this_user()?;
        self.draft.as_deref().map(|name| hunch_library::resolve(name, &places)).transpose()
    }
}

/// Opens a device. The self-test of a GPU is kept in the data folder.
fn open_compute(device: DeviceChoice, threads: Option<usize>) -> Result<Compute, Error> {
    let compute = Compute::open(device, threads)?;
    if let Ok(folder) = hunch_library::data_folder() {
        compute.keep_self_test_in(&folder);
    }
    Ok(compute)
}

/// Runs a command and returns its exit code.
pub(crate) fn run(cli: Cli) -> ExitCode {
    hunch::log::to_stderr();
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args).map(|()| true),
        Command::Serve(args) => serve::run(&args).map(|()| true),
        Command::Bench(args) => bench::run(&args).map(|()| true),
        Command::Compare(args) => compare::run(&args).map(|()| true),
        Command::Lab(args) => lab::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::SkipSearch(args) => skip_search::run(&args).map(|()| true),
        Command::Drafter(args) => drafter::run(&args).map(|()| true),
        Command::Models(args) => models::run(&args).map(|()| true),
        Command::Demo(args) => demo::run(&args).map(|()| true),
        Command::Doctor(args) => doctor::run(&args),
        Command::Licenses => licenses::run().map(|()| true),
        Command::Completions { shell } => {
            // clap_complete panics on a closed pipe.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hunch", &mut script);
            std::io::stdout().write_all(&script).map(|()| true).map_err(anyhow::Error::from)
        }
        Command::Schema => {
            write!(std::io::stdout(), "{}", schema::typescript()).map(|()| true).map_err(anyhow::Error::from)
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // A closed pipe (`hunch ... | head`) is not a failure.
            let closed = error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe);
            if closed {
                return ExitCode::SUCCESS;
            }
            // The message may quote a file.
            let text: Vec<String> = format!("{error:#}").lines().map(render::line).collect();
            // The exit code counts even if nobody reads this.
            let _ = writeln!(std::io::stderr(), "hunch: {}", text.join("\n"));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// An error in the form the engine reports to clients.
#[derive(Debug)]
pub(crate) struct ReportedError(ErrorInfo);

impl std::fmt::Display for ReportedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for ReportedError {}

fn exit_code(error: &anyhow::Error) -> u8 {
    match error_code(error) {
        None => 5,
        Some(code) => exit_code_of(code),
    }
}

/// Returns the code of an error of any crate.
fn error_code(error: &anyhow::Error) -> Option<ErrorCode> {
    use hunch_core::error::Error as CoreError;
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error.code());
    }
    if let Some(StoreError(error)) = error.downcast_ref() {
        return Some(error.code());
    }
    if let Some(ReportedError(info)) = error.downcast_ref() {
        return Some(info.code);
    }
    error.downcast_ref::<CoreError>().map(|error| match error {
        CoreError::InvalidRequest(_) => ErrorCode::InvalidRequest,
        CoreError::ContextOverflow { .. } => ErrorCode::ContextOverflow,
        CoreError::UnusableScores => Refusal::UnusableScores.code(),
        CoreError::NothingAllowed => Refusal::NothingFitsFormat.code(),
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
        | ErrorCode::NotText
        | ErrorCode::FileTooLarge
        | ErrorCode::FileOverContext
        | ErrorCode::Busy
        | ErrorCode::HubToken
        | ErrorCode::DownloadElsewhere
        | ErrorCode::DownloadUnreadable => 4,
        ErrorCode::OutOfMemory
        | ErrorCode::Io
        | ErrorCode::Store
        | ErrorCode::Device
        | ErrorCode::Server
        | ErrorCode::HubUnreachable
        | ErrorCode::WrongChecksum
        | ErrorCode::CatalogueMismatch
        | ErrorCode::DiskFull
        | ErrorCode::UpdateUnreachable
        | ErrorCode::UpdateRejected
        | ErrorCode::UpdateNotInstalled => 5,
        // The code shells use for a program ended by Ctrl-C.
        ErrorCode::Stopped => 130,
        ErrorCode::Internal => 70,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_core::error::Error as CoreError;
    use hunch_error::RunningWork;

    #[test]
    fn errors_of_every_crate_map_to_exit_codes() {
        let busy = || Error::Busy(RunningWork::Answer);
        assert_eq!(exit_code(&CoreError::invalid("k is 99").into()), 4);
        assert_eq!(exit_code(&CoreError::model(busy()).into()), 4);
        assert_eq!(exit_code(&StoreError(Error::Store("locked".into())).into()), 5);
        assert_eq!(exit_code(&Error::NoModel.into()), 3);
        assert_eq!(exit_code(&CoreError::Internal("broken".into()).into()), 70);
        assert_eq!(exit_code(&anyhow::anyhow!("something else")), 5);
    }
}
