//! `hunch serve`: loads models and answers requests over HTTP until Ctrl-C.

use std::env::VarError;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use hunch::serve::{ConnectionLimits, DraftChoice, InstalledModels, ServerConfig, check_access, listen};
use hunch_error::Error;
use hunch_library::Places;

use super::drafting::DraftingArgs;
use super::render;
use super::sampling::{SamplingArgs, SamplingSourceArgs};

/// Variable of the environment that holds the API key.
const KEY_VARIABLE: &str = "HUNCH_API_KEY";

/// Answer requests over HTTP.
#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    drafting: DraftingArgs,
    /// Sampling of requests that do not set their own
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    sampling_source: SamplingSourceArgs,
    /// Address to listen on; any but this machine's own (127.0.0.0/8, ::1) needs an API key
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST.into(), value_name = "ADDRESS")]
    host: IpAddr,
    /// Port to listen on; 0 takes any free port
    #[arg(long, default_value_t = 8033, value_name = "N")]
    port: u16,
    /// Key that clients must send; better given as HUNCH_API_KEY, which other users cannot see
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Name of the model for clients [default: the file's name without .gguf]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    model_name: Option<String>,
    /// Requests that wait while one is answered; further ones are refused
    #[arg(long, default_value_t = 16, value_name = "N")]
    queue: u16,
    /// Conversations whose caches are kept, if memory allows it
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    conversations: u8,
    /// Other models that requests may name, separated by commas [default: all installed ones]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// Draft models of other models, separated by commas; `none` leaves out a draft, or all of them [default: the
    /// installed one with the highest speedup]
    #[arg(long, value_name = "TARGET=DRAFT,...", value_delimiter = ',')]
    drafts: Vec<String>,
    /// Minutes after which idle models are unloaded, until the next request; 0 keeps them
    #[arg(long, default_value_t = 5.0, value_name = "N")]
    idle_minutes: f64,
    /// Print one JSON line with the address once the server listens
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    let mut plan = args.drafting.plan(args.sampling_source.params(&args.sampling, &args.drafting.models)?);
    plan.validate()?;
    // Loading takes longer than all of these checks.
    let address = SocketAddr::new(args.host, args.port);
    let api_key = args.api_key.clone().map_or_else(key_of_environment, |key| Ok(Some(key)))?;
    check_access(address, api_key.as_deref())?;
    let (installed, idle) = (installed(args)?, idle(args.idle_minutes)?);
    let compute = args.drafting.models.compute()?;
    let models = args.drafting.load(&compute, &mut plan, usize::MAX)?;
    if let Some(note) = models.encoder().template_note() {
        eprintln!("hunch: {}", render::line(&note));
    }
    let method = plan.method;
    let config = ServerConfig {
        address,
        model: model_name(args)?,
        installed: Some(installed),
        idle,
        plan,
        api_key,
        queue: args.queue.into(),
        conversations: args.conversations.into(),
        limits: ConnectionLimits::default(),
    };
    let model = config.model.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listening = listen(models, compute, config).await?;
        let url = format!("http://{}", listening.address());
        let mut out = std::io::stdout();
        if args.json {
            let line = serde_json::json!({
                "url": url,
                "address": listening.address().ip(),
                "port": listening.address().port(),
                "model": model,
                "method": method,
            });
            writeln!(out, "{line}")?;
        } else {
            writeln!(out, "{model} answers at {url}/v1 with the method {method}. Ctrl-C ends the server.")?;
        }
        out.flush()?;
        listening.run(interrupted()).await;
        Ok(())
    })
}

/// Returns the API key of the environment. `None` if it has none.
fn key_of_environment() -> Result<Option<String>, Error> {
    match std::env::var(KEY_VARIABLE) {
        Ok(key) => Ok(Some(key)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Error::invalid(format!(
            "{KEY_VARIABLE} is not valid UTF-8, so clients could not send it. Choose another key."
        ))),
    }
}

/// Completes at the first Ctrl-C or SIGTERM. The second one ends the program at once.
async fn interrupted() {
    if !signal().await {
        return std::future::pending().await;
    }
    // The answer is finished even if nobody reads this.
    let _ = writeln!(std::io::stderr(), "Finishing the running answer. Press Ctrl-C again to end at once.");
    tokio::spawn(async {
        if signal().await {
            std::process::exit(130);
        }
    });
}

/// Waits for Ctrl-C, or for SIGTERM, with which service managers end programs. Returns `false` if neither can be
/// awaited.
async fn signal() -> bool {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            return tokio::select! {
                pressed = tokio::signal::ctrl_c() => pressed.is_ok(),
                _ = terminate.recv() => true,
            };
        }
    }
    tokio::signal::ctrl_c().await.is_ok()
}

/// Returns the models that requests may name.
fn installed(args: &ServeArgs) -> Result<InstalledModels, Error> {
    let places = Places::of_this_user()?;
    let started = model_name(args)?;
    let resolve = |names: &Vec<String>| {
        // The started model is always allowed, and its name may be that of no file.
        let others = names.iter().filter(|name| !name.eq_ignore_ascii_case(&started));
        others.map(|name| hunch_library::resolve(name, &places)).collect::<Result<Vec<_>, Error>>()
    };
    let only = args.models.as_ref().map(resolve).transpose()?;
    let drafts = drafts(&args.drafts, &places, &started)?;
    let installed = InstalledModels {
        places,
        only,
        drafts,
        method: args.drafting.method,
        sampling: args.sampling.params(),
        context: args.drafting.context.map(|context| context as usize),
        ignore_memory_check: args.drafting.models.ignore_memory_check,
    };
    installed.check()?;
    Ok(installed)
}

/// Reads the draft models of other models than the started one.
fn drafts(given: &[String], places: &Places, started: &str) -> Result<DraftChoice, Error> {
    let mut choice = DraftChoice::default();
    let is_pair = given.iter().any(|entry| entry.contains('='));
    let installed = if is_pair { hunch_library::scan(places).models } else { Vec::new() };
    let check_target = |name: &str| {
        if name.eq_ignore_ascii_case(started) {
            return Err(Error::invalid(format!(
                "--drafts names {name}, with which the server starts. Choose its draft with --draft."
            )));
        }
        if installed.iter().any(|entry| entry.name.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "--drafts names {name}, and no installed model has that name. `hunch models` lists the names."
        )))
    };
    for entry in given {
        match entry.split_once('=') {
            Some((target, draft)) => {
                check_target(target)?;
                let draft = (draft != "none").then(|| hunch_library::resolve(draft, places)).transpose()?;
                choice.named.insert(target.to_ascii_lowercase(), draft);
            }
            None if entry == "none" => choice.no_others = true,
            None => {
                return Err(Error::invalid(format!(
                    "--drafts has \"{entry}\". Write TARGET=DRAFT, TARGET=none or none."
                )));
            }
        }
    }
    Ok(choice)
}

/// Returns the time after which idle models are unloaded.
fn idle(minutes: f64) -> Result<Option<Duration>, Error> {
    let longest = 60.0 * 24.0 * 365.0;
    match minutes {
        0.0 => Ok(None),
        minutes if minutes > 0.0 && minutes <= longest => Ok(Some(Duration::from_secs_f64(minutes * 60.0))),
        _ => Err(Error::invalid("--idle-minutes has to be 0, or at most a year.")),
    }
}

/// Returns the name of the model for clients.
fn model_name(args: &ServeArgs) -> Result<String, Error> {
    if let Some(name) = &args.model_name {
        return Ok(name.clone());
    }
    let path = args.drafting.models.target_path()?;
    Ok(path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}
