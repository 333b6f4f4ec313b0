//! `hunch run --server`: asks another server, and shows what it reports of its speculation.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::Result;
use clap::Args;
use hunch::generate::Prompt;
use hunch::remote::{RemoteServer, ServerAddress, ServerKey};
use hunch::server_answers::{RemoteAnswer, RemoteModel, RemoteRequest, TextPiece};
use hunch_core::token::TokenOrigin;
use serde_json::{Map, Value, json};

use super::render;

/// Variable of the environment that holds the server's key.
const KEY_VARIABLE: &str = "HUNCH_SERVER_KEY";

/// Arguments that choose or run a local model.
const LOCAL: [&str; 18] = [
    "target",
    "draft",
    "device",
    "draft_device",
    "threads",
    "kv",
    "context",
    "ignore_memory_check",
    "head",
    "method",
    "max_draft",
    "tree",
    "exit_layer",
    "skip_layers",
    "draft_window",
    "rule",
    "think",
    "texts",
];

/// Server that answers in place of a local model.
#[derive(Args)]
pub(crate) struct ServerArgs {
    /// Ask a server that speaks OpenAI's protocol, such as http://127.0.0.1:8080; its key is read from HUNCH_SERVER_KEY
    #[arg(long, value_name = "URL", conflicts_with_all = LOCAL)]
    pub(crate) server: Option<String>,
    /// Model of the server [default: the first it offers]
    #[arg(long, value_name = "NAME", requires = "server")]
    model: Option<String>,
}

/// A question, and how to show its answer.
pub(crate) struct RemoteQuestion<'a> {
    pub(crate) prompt: Prompt,
    /// Sampling parameters that were given, by their names in the protocol.
    pub(crate) sampling: Map<String, Value>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: &'a [String],
    pub(crate) schema: Option<Value>,
    pub(crate) json: bool,
}

impl RemoteQuestion<'_> {
    fn request(self) -> RemoteRequest {
        let (messages, raw) = match self.prompt {
            Prompt::Raw(text) => (Vec::new(), Some(text)),
            Prompt::Chat(messages) | Prompt::Continued(messages, _) => (messages, None),
        };
        RemoteRequest {
            messages,
            raw,
            max_tokens: self.max_tokens,
            stop: self.stop.to_vec(),
            schema: self.schema,
            sampling: self.sampling,
        }
    }
}

pub(crate) fn run(server: &str, args: &ServerArgs, question: RemoteQuestion) -> Result<()> {
    let address = ServerAddress::parse(server)?;
    let key = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.trim().is_empty());
    let key = key.map(|key| ServerKey::parse(&key)).transpose()?;
    let server = RemoteServer::new(address.clone(), key)?;
    let json = question.json;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let model = server.model(args.model.as_deref()).await?;
        let request = question.request();
        let mut printer = Printer::default();
        let answered = server.answer(&model, &request, |piece, _| printer.show(piece)).await;
        if let Some(error) = printer.failure {
            return Err(error.into());
        }
        // The text so far ends with a line break before an error, too.
        let mut out = std::io::stdout().lock();
        if printer.wrote {
            writeln!(out, "\n")?;
        }
        let answer = answered?;
        if json {
            return Ok(writeln!(out, "{}", as_json(&address, &model, &printer.pieces, &answer))?);
        }
        Ok(writeln!(out, "{}", card(&address, &model, &answer, render::colour_wanted()))?)
    })
}

/// Writes pieces as they arrive: tokens of Hunch servers in colour, thinking in grey.
#[derive(Default)]
struct Printer {
    pieces: Vec<TextPiece>,
    wrote: bool,
    failure: Option<std::io::Error>,
}

impl Printer {
    fn show(&mut self, piece: &TextPiece) -> ControlFlow<()> {
        let written = self.write(piece);
        self.wrote = true;
        self.pieces.push(piece.clone());
        match written {
            Ok(()) => ControlFlow::Continue(()),
            // A closed pipe ends the answer.
            Err(error) => {
                self.failure = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn write(&self, piece: &TextPiece) -> std::io::Result<()> {
        let colour = render::colour_wanted();
        let mut out = std::io::stdout().lock();
        let was_thinking = self.pieces.last().is_some_and(|last| last.thinking);
        if was_thinking && !piece.thinking {
            out.write_all(b"\n\n")?;
        }
        if piece.thinking {
            render::dimmed(&mut out, &piece.text, colour)?;
        } else {
            render::text(&mut out, &piece.text, piece.origin.unwrap_or(TokenOrigin::Plain), colour)?;
        }
        out.flush()
    }
}

/// Formats the figures of an answer: our own, then those that the server reports.
fn card(address: &ServerAddress, model: &RemoteModel, answer: &RemoteAnswer, colour: bool) -> String {
    let mut lines = Vec::new();
    if let Some(stats) = &answer.stats {
        lines.push(render::legend(stats, colour));
    }
    let mut here = match answer.measured_tok_s() {
        Some(rate) => format!("measured here: {rate:.1} tok/s decode   "),
        None => "measured here: ".to_owned(),
    };
    here.push_str(&format!("first token {:.0} ms", answer.first_ms));
    if let Some(usage) = answer.usage {
        here.push_str(&format!("   {} prompt + {} generated tokens", usage.prompt, usage.generated));
    }
    lines.push(here);
    lines.push(reported(model, answer));
    lines.push(format!(
        "{} at {address}   ended by \"{}\"",
        render::line(&model.id),
        render::line(&answer.finish_reason)
    ));
    lines.join("\n")
}

/// Formats the figures that the server reports of its speculation and speed.
fn reported(model: &RemoteModel, answer: &RemoteAnswer) -> String {
    let mut figures = Vec::new();
    figures.extend(answer.reported_tok_s.map(|rate| format!("{rate:.1} tok/s decode")));
    if let Some(speculation) = &answer.speculation {
        let share = 100.0 * speculation.accepted as f64 / speculation.drafted.max(1) as f64;
        figures.push(format!(
            "{} of {} drafted accepted ({share:.0}%)",
            speculation.accepted, speculation.drafted
        ));
        let mean = answer.usage.and_then(|usage| speculation.tokens_per_pass(usage.generated));
        figures.extend(mean.map(|mean| format!("{mean:.2} tokens per pass")));
    }
    let name = answer.speculation.map_or(model.kind.describe(), |speculation| speculation.source.describe());
    if figures.is_empty() {
        return format!("{name} reports no figures of its own");
    }
    format!("{name} reports: {}", figures.join("   "))
}

fn as_json(
    address: &ServerAddress,
    model: &RemoteModel,
    pieces: &[TextPiece],
    answer: &RemoteAnswer,
) -> Value {
    let text = |thinking| -> String {
        pieces.iter().filter(|piece| piece.thinking == thinking).map(|piece| piece.text.as_str()).collect()
    };
    json!({
        "server": address.to_string(),
        "model": model,
        "text": text(false),
        "thinking": text(true),
        "pieces": pieces,
        "answer": answer,
    })
}
