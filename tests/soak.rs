//! A soak test of the application: hundreds of turns on one model, through [`App`] as the window uses it. Memory and
//! latency of the last turns are compared with those of the first. `make soak` runs it; the arguments are a model
//! file, an empty folder and the number of turns.

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hunch::api::{AnswerRequest, AnswerSettings, AnsweredBy, Asking, MessageState, StreamMessage};
use hunch::app::{App, AppConfig};
use hunch::event::GenerationEvent;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result};
use hunch_library::Places;
use hunch_library::types::LoadRequest;
use hunch_model::device::{DeviceChoice, own_memory_bytes};
use hunch_model::gguf::Gguf;
use hunch_model::low_bit;
use hunch_model::text::Tokenizer;
use hunch_model::text::template::child;
use hunch_model::weights::WeightFile;

/// Turns at each end that are compared, where the run has twice as many.
const COMPARED: usize = 100;
/// Turns of a conversation. With the ten kinds of turns, every 20 turns are alike.
const TURNS_OF_CONVERSATION: usize = 4;
/// Tokens of every answer.
const TOKENS: u32 = 24;
/// Memory that may come on top between the first and the last turns, in bytes.
const MOST_GROWTH: u64 = 8 << 20;
/// Latency of the last turns as a multiple of that of the first, above which the test fails.
const MOST_SLOWDOWN: f64 = 1.5;
/// Longest wait for an answer, and for its record to be complete.
const PATIENCE: Duration = Duration::from_secs(120);

/// Methods and depths that take turns.
const KINDS: [(Method, MaxDraft); 10] = [
    (Method::Plain, MaxDraft::Auto),
    (Method::DraftModel, MaxDraft::Auto),
    (Method::Ngram, MaxDraft::Fixed(4)),
    (Method::DraftTree, MaxDraft::Fixed(4)),
    (Method::Suffix, MaxDraft::Auto),
    (Method::Lookahead, MaxDraft::Fixed(4)),
    (Method::Cascade, MaxDraft::Auto),
    (Method::EarlyExit, MaxDraft::Auto),
    (Method::DraftTree, MaxDraft::Auto),
    (Method::LayerSkip, MaxDraft::Fixed(2)),
];

const QUESTIONS: [&str; TURNS_OF_CONVERSATION] = [
    "Name three rivers, and say where each of them ends.",
    "Say the first one again, in other words.",
    "Write a short poem about it. Write a short poem about it.",
    "List the numbers from one to ten.",
];

/// One turn as it was measured.
struct SoakTurn {
    memory: u64,
    ms_per_token: f64,
}

fn main() -> ExitCode {
    child::offer();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder, turns] = &arguments[..] else {
        eprintln!("Usage: soak MODEL FOLDER TURNS");
        return ExitCode::from(2);
    };
    let Ok(turns) = turns.parse() else {
        eprintln!("\"{turns}\" is not a number of turns.");
        return ExitCode::from(2);
    };
    match run(Path::new(model), Path::new(folder), turns) {
        Ok(turns) => judge(&turns),
        Err(error) => {
            eprintln!("The soak test stopped. {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(model: &Path, folder: &Path, turns: usize) -> Result<Vec<SoakTurn>> {
    // A worse copy as the draft model: some of its drafts are rejected.
    let draft = folder.join("draft.gguf");
    low_bit::write_copy(&WeightFile::open(model)?, &draft, 2, &mut low_bit::unwatched)?;
    let app = App::start(AppConfig {
        places: Some(Places::only(folder.into())),
        store: Some(folder.join("conversations.db")),
        device: DeviceChoice::Cpu,
        ..AppConfig::default()
    })?;
    app.load_models(LoadRequest {
        target: model.display().to_string(),
        draft: Some(draft.display().to_string()),
        head: None,
        context: None,
    })?;
    // Answers of one length: their latencies can be compared.
    let mut sampling = SamplingParams::default();
    let ends = Tokenizer::from_gguf(&Gguf::read(model)?)?.end_tokens().clone();
    sampling.logit_bias.extend(ends.into_iter().map(|token| (token, -100.0)));

    let mut measured = Vec::with_capacity(turns);
    let mut conversation = None;
    let mut parent = None;
    let begun = Instant::now();
    for turn in 0..turns {
        if turn.is_multiple_of(TURNS_OF_CONVERSATION) {
            (conversation, parent) = (None, None);
        }
        let (method, max_draft) = KINDS[turn % KINDS.len()];
        let settings = AnswerSettings {
            method,
            max_draft,
            max_tokens: TOKENS,
            sampling: SamplingParams { seed: Some(turn as u64), ..sampling.clone() },
            ..AnswerSettings::default()
        };
        let text = QUESTIONS[turn % QUESTIONS.len()].to_owned();
        let asking = Asking::Question { parent, text, attachments: Vec::new() };
        let (answered, ms) =
            ask(&app, AnswerRequest { conversation, asking, settings, by: AnsweredBy::Loaded })?;
        (conversation, parent) = (Some(answered.0), Some(answered.1));
        look(&app, answered)?;
        measured.push(SoakTurn { memory: own_memory_bytes(), ms_per_token: ms / f64::from(TOKENS) });
        if (turn + 1).is_multiple_of(50) {
            let seconds = begun.elapsed().as_secs();
            eprintln!("{} of {turns} turns in {seconds} s", turn + 1);
        }
    }
    app.shutdown();
    Ok(measured)
}

/// Asks and waits for the whole answer. Returns its conversation and message, and the milliseconds it took.
fn ask(app: &App, request: AnswerRequest) -> Result<((i64, i64), f64)> {
    let (sender, receiver) = channel::<StreamMessage>();
    let begun = Instant::now();
    let answering = app.answer(request, Box::new(move |message| drop(sender.send(message))))?;
    let mut tokens = 0;
    let mut ended = None;
    while let Ok(message) = receiver.recv_timeout(PATIENCE) {
        for event in message.events {
            tokens += event.tokens().len();
            match event {
                GenerationEvent::Finished { .. } => ended = Some(begun.elapsed()),
                GenerationEvent::Failed { error } => return Err(Error::Internal(error.message)),
                GenerationEvent::DraftDropped { method, error } => {
                    return Err(Error::Internal(format!("{method} was dropped: {}", error.message)));
                }
                _ => {}
            }
        }
    }
    let ended = ended.ok_or_else(|| Error::Internal("the answer has no end".into()))?;
    if tokens != TOKENS as usize {
        return Err(Error::Internal(format!("the answer has {tokens} tokens instead of {TOKENS}")));
    }
    Ok(((answering.conversation, answering.answer), ended.as_secs_f64() * 1000.0))
}

/// Reads what the window shows after an answer, once it is stored.
fn look(app: &App, (conversation, answer): (i64, i64)) -> Result<()> {
    let begun = Instant::now();
    loop {
        let opened = app.open_conversation(conversation)?;
        let message = opened.messages.iter().find(|message| message.id == answer);
        match message.map(|message| message.state) {
            Some(MessageState::Complete) => break,
            Some(MessageState::Streaming) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2))
            }
            state => return Err(Error::Internal(format!("the answer is stored as {state:?}"))),
        }
    }
    app.answer_events(answer)?;
    app.list_conversations()?;
    app.search_conversations("rivers")?;
    Ok(())
}

/// Prints a table and decides.
fn judge(turns: &[SoakTurn]) -> ExitCode {
    let compared = COMPARED.min(turns.len() / 2);
    if compared == 0 {
        eprintln!("There are too few turns to compare.");
        return ExitCode::from(2);
    }
    let (first, last) = (&turns[..compared], &turns[turns.len() - compared..]);
    let mib = |turns: &[SoakTurn]| median(turns, |turn| turn.memory as f64 / f64::from(1 << 20));
    let ms = |turns: &[SoakTurn]| median(turns, |turn| turn.ms_per_token);
    let (memory, latency) = ((mib(first), mib(last)), (ms(first), ms(last)));
    let (growth, slowdown) = (memory.1 - memory.0, latency.1 / latency.0);
    let most_growth = MOST_GROWTH as f64 / f64::from(1 << 20);
    println!("Medians of the first and the last {compared} of {} turns, {TOKENS} tokens each", turns.len());
    println!();
    println!("{:<24}{:>10}{:>10}{:>12}   limit", "", "first", "last", "change");
    println!("{:<24}{:>10.1}{:>10.1}{growth:>+12.1}   {most_growth:+.0}", "memory, MiB", memory.0, memory.1);
    println!(
        "{:<24}{:>10.2}{:>10.2}{:>12}   x{MOST_SLOWDOWN}",
        "latency, ms per token",
        latency.0,
        latency.1,
        format!("x{slowdown:.2}")
    );
    println!();
    let mut sound = true;
    if growth > most_growth {
        println!("Memory grew by {growth:.1} MiB. Something is kept that should be let go.");
        sound = false;
    }
    if slowdown > MOST_SLOWDOWN {
        println!("Answers became slower. Run it again on an idle machine; if it stays, something piles up.");
        sound = false;
    }
    if sound {
        println!("Memory and latency are stable.");
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn median(turns: &[SoakTurn], of: impl Fn(&SoakTurn) -> f64) -> f64 {
    let mut values: Vec<f64> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
