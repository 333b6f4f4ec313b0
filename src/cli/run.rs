//! `hunch run`: answers one prompt.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use hunch::generate::{GenerationPlan, Prompt};
use hunch_core::chat::{ChatMessage, Role};
use hunch_error::Error;
use hunch_library::speed_log::Rates;
use hunch_model::text::AnswerFormat;
use serde_json::Value;

use super::drafting::DraftingArgs;
use super::remote::{self, ServerArgs};
use super::sampling::{SamplingArgs, SamplingSource, SamplingSourceArgs};
use super::stream::stream;
use super::{measured, render};

/// Most tokens of an answer by a local model, if the command line has no limit.
const MAX_TOKENS: usize = 4096;

/// Answer a prompt and stream the tokens in colour.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// The prompt; read from standard input when absent or "-"
    prompt: Option<String>,
    #[command(flatten)]
    drafting: DraftingArgs,
    /// Most tokens to generate [default: 4096, or with --server what the server decides]
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    sampling_source: SamplingSourceArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Text that ends the answer; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// File with the JSON schema that the answer follows
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Continue the raw prompt, without the chat template
    #[arg(long, conflicts_with_all = ["system", "think"])]
    raw: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Reads the schema that an answer follows.
fn read_json(path: &Path) -> Result<Value> {
    let read = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let invalid = |error| Error::invalid(format!("{} contains no JSON schema: {error}.", path.display()));
    Ok(serde_json::from_str(&text).map_err(invalid)?)
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    if let Some(server) = &args.server.server {
        if args.sampling_source.source == SamplingSource::Recommended {
            return Err(Error::invalid(
                "--sampling recommended needs a model on this machine. Leave it out with --server.",
            )
            .into());
        }
        let schema = args.schema.as_deref().map(read_json).transpose()?;
        let question = remote::RemoteQuestion {
            prompt: prompt(args)?,
            sampling: args.sampling.given_fields(),
            max_tokens: args.max_tokens,
            stop: &args.stop,
            schema,
            json: args.json,
        };
        return remote::run(server, &args.server, question);
    }
    let max_tokens = args.max_tokens.unwrap_or(MAX_TOKENS);
    let mut plan = GenerationPlan {
        max_tokens,
        stop: args.stop.clone(),
        ..args.drafting.plan(args.sampling_source.params(&args.sampling, &args.drafting.models)?)
    };
    plan.validate()?;
    let schema = args.schema.as_deref().map(read_json).transpose()?;
    let format = schema.map(AnswerFormat::JsonSchema);
    let prompt = prompt(args)?;
    let longest = most_tokens(&prompt).saturating_add(max_tokens);
    let mut models = args.drafting.load(&args.drafting.models.compute()?, &mut plan, longest)?;
    let (ids, template_note) = models.encoder().ids_and_note(&prompt, plan.thinking, &|| false)?;
    if let Some(note) = template_note.as_ref().filter(|_| !args.json) {
        eprintln!("{note}");
    }
    let constraint = format.map(|format| models.encoder().constraint(&format, ids.len())).transpose()?;
    let colour = render::colour_wanted();
    let answer = stream(&mut models, &ids, &plan, constraint, |event| {
        let mut out = std::io::stdout().lock();
        render::tokens_of(&mut out, event, colour)
    })?;
    let stats = &answer.finished.stats;
    measured::remember(&args.drafting.models, &stats.device, Rates::of_answer(plan.method, plan.rule, stats));
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n")?;
    if args.json {
        return Ok(writeln!(out, "{}", answer.json(plan.method, &ids, template_note.as_deref()))?);
    }
    write!(out, "{}", render::card(&answer.finished.stats, colour))?;
    for (method, error) in &answer.dropped {
        write!(
            out,
            "\n{method} failed and was disabled for the rest of the answer: {}",
            render::line(&error.message)
        )?;
    }
    if answer.parked > 0 {
        write!(out, "\ndrafting was parked in {} rounds, where plain decoding is faster", answer.parked)?;
    }
    if plan.sampling.temperature > 0.0 {
        write!(out, "   seed {}", answer.seed)?;
    }
    Ok(writeln!(out)?)
}

/// Returns an upper bound of a prompt's tokens: one per byte, and some for the template.
fn most_tokens(prompt: &Prompt) -> usize {
    /// Tokens that templates add per message.
    const TEMPLATE: usize = 64;
    let of_messages = |messages: &[ChatMessage]| -> usize {
        messages.iter().map(|message| message.content.len() + TEMPLATE).sum()
    };
    match prompt {
        Prompt::Raw(text) => text.len(),
        Prompt::Chat(messages) => of_messages(messages),
        Prompt::Continued(messages, answer) => of_messages(messages) + answer.len(),
    }
}

fn prompt(args: &RunArgs) -> Result<Prompt> {
    let text = match args.prompt.as_deref() {
        Some(text) if text != "-" => text.to_owned(),
        given => {
            if given.is_none() && std::io::stdin().is_terminal() {
                return Err(
                    Error::invalid("There is no prompt. Write it after `hunch run`, or pipe it in.").into()
                );
            }
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    if args.raw {
        return Ok(Prompt::Raw(text));
    }
    let system = args.system.iter().map(|s| ChatMessage { role: Role::System, content: s.clone() });
    let user = ChatMessage { role: Role::User, content: text.clone() };
    if text.trim().is_empty() {
        return Err(Error::invalid("The prompt is empty. Write one.").into());
    }
    Ok(Prompt::Chat(system.chain([user]).collect()))
}
