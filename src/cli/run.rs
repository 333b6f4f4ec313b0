//! `hunch run`: answers one prompt.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, ValueEnum};
use hunch::bench::skip_sets::SearchedModel;
use hunch::engine::WallClock;
use hunch::event::{GenerationEvent, TokenEvent};
use hunch::generate::{Finished, GenerationContext, GenerationPlan, LoadPlan, Models, Prompt, generate};
use hunch::server_answers::exact;
use hunch::services::load::{self, ModelNames};
use hunch::services::texts::{MAX_BYTES, Texts};
use hunch_core::chat::{ChatMessage, Role, Thinking};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{DraftWindow, LanguageModel};
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::layer_skip::LayerList;
use hunch_core::propose::retrieval::TextIndex;
use hunch_core::propose::{MethodOptions, Needs};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Constraint, SamplingParams};
use hunch_core::token::TokenId;
use hunch_error::Error;
use hunch_error::ErrorInfo;
use hunch_library::Places;
use hunch_library::fit::default_context;
use hunch_library::speed_log::Rates;
use hunch_model::device::Compute;
use hunch_model::low_bit;
use hunch_model::text::{AnswerFormat, ThinkingSwitches};
use hunch_model::weights::WeightFile;
use serde_json::{Map, Value, json};

use super::progress::Progress;
use super::remote::{self, ServerArgs};
use super::{DrafterArgs, ModelArgs, measured, models, render};

/// Returns a parser of method names.
pub(crate) fn method_parser() -> impl TypedValueParser<Value = Method> {
    let value = |method: Method| PossibleValue::new(method.name()).help(method.summary());
    let values: Vec<_> = Method::selectable().map(value).collect();
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Method>())
}

/// Models and how they draft: the arguments of all commands that answer by one method.
#[derive(Args)]
pub(crate) struct DraftingArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    drafters: DrafterArgs,
    /// Drafting method
    #[arg(long, default_value_t = Method::Auto, value_parser = method_parser())]
    pub(crate) method: Method,
    /// Most tokens to draft per round: 1 to 15, or auto, which picks the fastest
    #[arg(long, default_value_t = MaxDraft::Auto, value_name = "K|auto")]
    max_draft: MaxDraft,
    #[command(flatten)]
    options: OptionArgs,
    /// Reasoning before the answer, for models with a switch: on, off, low, medium or high
    #[arg(long, value_name = "on|off|low|medium|high")]
    think: Option<Thinking>,
    /// Acceptance rule: lossless, match, coupled, lossy-typical[:epsilon:delta] or lossy-lenience[:l]
    #[arg(long, default_value_t = AcceptanceRule::Lossless, value_name = "RULE")]
    rule: AcceptanceRule,
}

impl DraftingArgs {
    /// Returns the plan of answers, as far as it does not depend on the models.
    pub(crate) fn plan(&self, sampling: SamplingParams) -> GenerationPlan {
        GenerationPlan {
            method: self.method,
            max_draft: self.max_draft,
            options: MethodOptions::default(),
            sampling,
            rule: self.rule,
            thinking: self.think,
            ..GenerationPlan::default()
        }
    }

    /// Loads the models for conversations of at most `longest` tokens, and completes the plan.
    ///
    /// # Errors
    /// See [`load_for`].
    pub(crate) fn load(
        &self,
        compute: &Compute,
        plan: &mut GenerationPlan,
        longest: usize,
    ) -> Result<Models> {
        let mut models = load_on(compute, &self.models, &self.drafters, &[plan.method], longest)?;
        plan.options = self.options.options(models.target());
        if let Some(problem) =
            self.think.and_then(|wanted| unheeded(wanted, models.encoder().thinking_switches()))
        {
            eprintln!("{problem}");
        }
        Ok(models)
    }
}

/// Returns a warning for a switch that the model's chat template does not read.
fn unheeded(wanted: Thinking, switches: ThinkingSwitches) -> Option<String> {
    let (heeded, what) = match wanted {
        Thinking::Off | Thinking::On => (switches.switch, "switch for thinking"),
        _ => (switches.effort, "effort of thinking"),
    };
    let partly = if switches.switch { " --think on and --think off work." } else { "" };
    (!heeded).then(|| {
        format!("The model's chat template has no {what}, so --think {wanted} changes nothing.{partly}")
    })
}

/// Answer a prompt and stream the tokens in colour.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// The prompt; read from standard input when absent or "-"
    prompt: Option<String>,
    #[command(flatten)]
    drafting: DraftingArgs,
    /// Most tokens to generate
    #[arg(long, default_value_t = 512, value_name = "N")]
    max_tokens: usize,
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
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// Options of single methods.
#[derive(Args, Clone)]
pub(crate) struct OptionArgs {
    /// Shape of the trees of draft-tree and head-tree: dynamic, or children per level such as 3x2x1
    #[arg(long, default_value_t = TreeShape::Dynamic, value_name = "SHAPE")]
    tree: TreeShape,
    /// Layers of the target that early-exit runs [default: two thirds]
    #[arg(long, value_name = "N")]
    exit_layer: Option<usize>,
    /// Layers that layer-skip skips, such as 9,11,14 [default: the result of `hunch skip-search` for this target,
    /// else every second layer of the middle half]
    #[arg(long, value_name = "LAYERS")]
    skip_layers: Option<LayerList>,
    /// Drafts read only the first 4 and the last TOKENS tokens of their cache, for long contexts; the target reads all.
    /// For draft models, low-bit, layer-skip and early-exit [default: drafts read all]
    #[arg(long, value_name = "TOKENS")]
    draft_window: Option<DraftWindow>,
}

impl OptionArgs {
    /// Returns the options for this target.
    pub(crate) fn options(&self, target: &dyn LanguageModel) -> MethodOptions {
        let given = self.skip_layers.clone().map(|list| list.0);
        MethodOptions {
            tree: self.tree.clone(),
            exit_layer: self.exit_layer,
            draft_window: self.draft_window,
            skipped_layers: given.or_else(|| load::skipped_layers(SearchedModel::of(target))),
            ..MethodOptions::default()
        }
    }
}

/// Source of sampling settings that are not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SamplingSource {
    /// The usual settings
    Default,
    /// Settings that the target's file recommends, as `hunch models inspect` shows
    Recommended,
}

/// Source of the settings of commands that answer.
#[derive(Args, Clone)]
pub(crate) struct SamplingSourceArgs {
    /// Sampling settings that are not given: the usual ones, or those that the model recommends
    #[arg(long = "sampling", value_enum, default_value = "default")]
    source: SamplingSource,
}

impl SamplingSourceArgs {
    /// Returns the parameters, with what the target's file recommends if that was chosen.
    ///
    /// # Errors
    /// If the file cannot be read, or recommends nothing.
    pub(crate) fn params(&self, given: &SamplingArgs, models: &ModelArgs) -> Result<SamplingParams> {
        if self.source == SamplingSource::Default {
            return Ok(given.params());
        }
        let target = models.target_path()?;
        let recommended = hunch_library::inspect(&target)?.sampling;
        if recommended.is_empty() {
            return Err(Error::invalid(format!(
                "{} recommends no sampling. Leave out --sampling recommended, or set --temperature.",
                models.target
            ))
            .into());
        }
        Ok(given.over(recommended.over(SamplingParams::default())))
    }
}

/// Sampling. Defaults are those of a new conversation.
#[derive(Args, Clone)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 always takes the most likely token [default: 0.7]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the most likely tokens whose probabilities add up to P; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Make recent tokens less likely; 1 changes nothing [default: 1]
    #[arg(long, value_name = "R")]
    repeat_penalty: Option<f32>,
    /// Subtract R from the logits of recent tokens [default: 0]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract R from the logits of recent tokens, per occurrence [default: 0]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add BIAS to the logit of token ID; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    logit_bias: Vec<(TokenId, f32)>,
    /// Make the answer reproducible; above temperature 0 with a fixed --max-draft or --rule coupled
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Describes `--temperature` for commands that decode greedily unless a sampling option is given.
pub(crate) fn greedy_default(temperature: Arg) -> Arg {
    temperature.help(
        "Sampling temperature; 0 always takes the most likely token [default: 0; 0.7 with another sampling option]",
    )
}

fn parse_bias(text: &str) -> Result<(TokenId, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("write it as ID=BIAS, such as 42=-1.5")?;
    let id = id.trim().parse().map_err(|_| format!("\"{id}\" is not a token number"))?;
    let bias = bias.trim().parse().map_err(|_| format!("\"{bias}\" is not a number"))?;
    Ok((id, bias))
}

impl SamplingArgs {
    /// Returns whether any option but the seed was given.
    fn is_given(&self) -> bool {
        let Self { temperature, top_k, top_p, min_p, logit_bias, seed: _, .. } = self;
        let penalties = [self.repeat_penalty, self.presence_penalty, self.frequency_penalty];
        let numbers = [temperature, top_p, min_p].into_iter().chain(&penalties);
        top_k.is_some() || !logit_bias.is_empty() || numbers.into_iter().any(Option::is_some)
    }

    /// Returns the parameters that were given, by their names in the protocol of servers.
    ///
    /// Defaults are left out: some servers refuse parameters that OpenAI does not have.
    fn given_fields(&self) -> Map<String, Value> {
        let numbers = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repeat_penalty", self.repeat_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ];
        let mut fields: Map<_, _> =
            numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), exact(value?)))).collect();
        fields.extend(self.top_k.map(|k| ("top_k".to_owned(), k.into())));
        fields.extend(self.seed.map(|seed| ("seed".to_owned(), seed.into())));
        if !self.logit_bias.is_empty() {
            let biases: Map<_, _> =
                self.logit_bias.iter().map(|(id, bias)| (id.to_string(), exact(*bias))).collect();
            fields.insert("logit_bias".to_owned(), biases.into());
        }
        fields
    }

    /// Returns the seed, if one was given.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns the parameters, or greedy sampling when no option but the seed was given.
    ///
    /// Greedy answers can be compared token for token.
    pub(crate) fn params_or_greedy(&self) -> SamplingParams {
        if self.is_given() {
            return self.params();
        }
        SamplingParams { seed: self.seed, ..SamplingParams::greedy() }
    }

    /// Returns the parameters.
    pub(crate) fn params(&self) -> SamplingParams {
        self.over(SamplingParams::default())
    }

    /// Returns the parameters that were given, and those of `default` for the others.
    fn over(&self, default: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
            ..default
        }
    }
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
        let question = remote::Question {
            prompt: prompt(args)?,
            sampling: args.sampling.given_fields(),
            max_tokens: args.max_tokens,
            stop: &args.stop,
            schema,
            json: args.json,
        };
        return remote::run(server, &args.server, question);
    }
    let mut plan = GenerationPlan {
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        ..args.drafting.plan(args.sampling_source.params(&args.sampling, &args.drafting.models)?)
    };
    plan.validate()?;
    let schema = args.schema.as_deref().map(read_json).transpose()?;
    let format = schema.map(AnswerFormat::JsonSchema);
    let prompt = prompt(args)?;
    let longest = most_tokens(&prompt).saturating_add(args.max_tokens);
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

/// Loads the models of the command line and the low-bit copy if `methods` need it.
pub(crate) fn load_models(args: &ModelArgs, methods: &[Method]) -> Result<Models> {
    load_for(args, &DrafterArgs::default(), methods, usize::MAX)
}

/// Loads the models of the command line with what else drafts, and the low-bit copy if `methods` need it.
pub(crate) fn load_with(args: &ModelArgs, drafters: &DrafterArgs, methods: &[Method]) -> Result<Models> {
    load_for(args, drafters, methods, usize::MAX)
}

/// Loads models for conversations of at most `longest` tokens.
///
/// # Errors
/// As loading. [`Refusal::ModelTooLarge`](hunch_error::Refusal::ModelTooLarge) when the models are not expected to fit with caches of `longest` tokens, or of
/// the usual context if that is shorter. Caches grow as needed.
fn load_for(args: &ModelArgs, drafters: &DrafterArgs, methods: &[Method], longest: usize) -> Result<Models> {
    load_on(&args.compute()?, args, drafters, methods, longest)
}

/// As [`load_for`], on a device that is already open.
fn load_on(
    compute: &Compute,
    args: &ModelArgs,
    drafters: &DrafterArgs,
    methods: &[Method],
    longest: usize,
) -> Result<Models> {
    let places = Places::of_this_user()?;
    let names =
        ModelNames { target: &args.target, draft: args.draft.as_deref(), head: drafters.head.as_deref() };
    let plan = LoadPlan { draft_device: args.draft_device, ..load::find(&places, names)? };
    // Read before the models, which take longer.
    let texts = match &drafters.texts[..] {
        [] => None,
        sources => Some(Texts::read(sources, &hunch_library::conversations_path()?, &|| false)?),
    };
    if !args.ignore_memory_check {
        let spec = hunch_library::inspect(&plan.target)?.spec;
        let context = default_context(&spec).min(longest).max(1) as u32;
        let fit = models::predicted_fit(compute, &places, &plan, Some(context))?;
        load::check_memory(&fit, "; --ignore-memory-check loads it anyway")?;
    }
    let mut models = Models::load_by(&plan, compute)?;
    if let Some(note) = models.device_note() {
        note.lines().for_each(|note| eprintln!("hunch: {}", render::line(note)));
    }
    if let Some(note) = models.head_note() {
        eprintln!("hunch: {}", render::line(note));
    }
    if let Some(placement) = models.draft_placement() {
        eprintln!("hunch: {placement}");
    }
    if methods.iter().any(|method| method.requires(Needs::LowBitCopy)) {
        models.load_low_bit(&low_bit_copy(&plan.target, compute)?, compute)?;
    }
    if let Some(texts) = texts {
        let index = texts.index(models.encoder().tokenizer(), &|| false)?;
        eprintln!("{}", indexed(&texts, &index));
        models.set_texts(Some(index.into()));
    }
    Ok(models)
}

/// Returns a sentence on indexed texts.
fn indexed(texts: &Texts, index: &TextIndex) -> String {
    let cut = match texts.is_cut() {
        true => format!(" More than {} MB were found; the rest is left out.", MAX_BYTES / 1_000_000),
        false => String::new(),
    };
    let (texts, tokens) = (render::count(texts.count(), "text"), render::count(index.len(), "token"));
    format!("Drafts are also copied from {texts} of {tokens}, {}.{cut}", render::bytes(index.bytes() as u64))
}

/// Returns the path of the target's low-bit copy, and writes the copy the first time.
fn low_bit_copy(target: &Path, compute: &Compute) -> Result<PathBuf> {
    let path = hunch_library::low_bit_path(target)?;
    if path.is_file() {
        return Ok(path);
    }
    eprintln!("Writing a low-bit copy of the target (once): {}", path.display());
    let progress = Progress::new();
    low_bit::write_copy(&WeightFile::open(target)?, &path, compute.threads().count(), &mut |done, total| {
        progress.show(done as u64, total as u64, format!("{}%", 100 * done / total.max(1)));
    })?;
    Ok(path)
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

/// An answer with its tokens and events.
pub(crate) struct FinishedAnswer {
    pub(crate) finished: Finished,
    pub(crate) tokens: Vec<TokenEvent>,
    pub(crate) seed: u64,
    /// Rounds in which drafting was parked.
    pub(crate) parked: u32,
    /// Methods that failed and were disabled, with their errors.
    pub(crate) dropped: Vec<(Method, ErrorInfo)>,
}

impl FinishedAnswer {
    fn json(&self, method: Method, prompt_ids: &[TokenId], template_note: Option<&str>) -> Value {
        let dropped = |(method, error): &(Method, ErrorInfo)| json!({ "method": method, "error": error });
        let token = |t: &TokenEvent| json!({ "id": t.id, "origin": t.origin, "text": t.text });
        json!({
            "method": method,
            "seed": self.seed,
            "prompt_ids": prompt_ids,
            "template_note": template_note,
            "tokens": self.tokens.iter().map(token).collect::<Vec<_>>(),
            "text": self.tokens.iter().map(|t| t.text.as_str()).collect::<String>(),
            "stop": self.finished.stop,
            "parked_rounds": self.parked,
            "dropped_drafts": self.dropped.iter().map(dropped).collect::<Vec<_>>(),
            "stats": self.finished.stats,
        })
    }
}

/// Generates an answer and calls `show` with every event.
pub(crate) fn stream(
    models: &mut Models,
    ids: &[TokenId],
    plan: &GenerationPlan,
    constraint: Option<Arc<dyn Constraint>>,
    mut show: impl FnMut(&GenerationEvent) -> std::io::Result<()> + Send,
) -> Result<FinishedAnswer> {
    let clock = WallClock::start();
    let closed = std::sync::atomic::AtomicBool::new(false);
    let mut failure = None;
    let mut tokens = Vec::new();
    let (mut drawn_with, mut parked, mut dropped) = (0, 0, Vec::new());
    let mut take = |event: &GenerationEvent| {
        match event {
            GenerationEvent::Started { seed, .. } => drawn_with = *seed,
            GenerationEvent::Round(round) => {
                tokens.extend(round.tokens.iter().cloned());
                parked += u32::from(round.depth.as_ref().is_some_and(|depth| depth.parked));
            }
            GenerationEvent::DraftDropped { method, error } => dropped.push((*method, error.clone())),
            _ => {}
        }
        if let Err(error) = show(event) {
            closed.store(true, std::sync::atomic::Ordering::Relaxed);
            failure.get_or_insert(error);
        }
    };
    // A closed pipe ends the generation.
    let cancelled = || closed.load(std::sync::atomic::Ordering::Relaxed);
    let context = GenerationContext {
        cancelled: &cancelled,
        strict_drafts: false,
        constraint,
        ..GenerationContext::measured(&clock)
    };
    let mut sink = |event: GenerationEvent| take(&event);
    let finished = generate(models, ids, plan, &context, &mut sink)?;
    take(&finished.clone().into_event());
    if let Some(error) = failure {
        return Err(error.into());
    }
    tokens.extend(finished.held.iter().cloned());
    Ok(FinishedAnswer { finished, tokens, seed: drawn_with, parked, dropped })
}
