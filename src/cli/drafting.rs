//! Models, methods and their options: arguments of the commands that answer, and loading by them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hunch::bench::skip_sets::SearchedModel;
use hunch::generate::{GenerationPlan, LoadPlan, Models};
use hunch::services::load::{self, ModelNames};
use hunch::services::texts::{MAX_BYTES, Texts};
use hunch_core::chat::Thinking;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{DraftWindow, LanguageModel};
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::propose::layer_skip::LayerList;
use hunch_core::propose::retrieval::TextIndex;
use hunch_core::propose::{MethodOptions, Needs};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_library::Places;
use hunch_library::fit::default_context;
use hunch_model::device::Compute;
use hunch_model::low_bit;
use hunch_model::text::ThinkingSwitches;

use super::progress::ProgressLine;
use super::{DrafterArgs, ModelArgs, models, render};

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
    /// Longest conversation, in tokens [default: what the model was made for]; the KV cache grows up to it
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) context: Option<u32>,
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
        let context = self.context.map(|context| context as usize);
        let lengths = Lengths { context, longest };
        let mut models = load_on(compute, &self.models, &self.drafters, &[plan.method], lengths)?;
        plan.options = self.options.options(models.target());
        warn_unheeded(self.think, &models);
        Ok(models)
    }
}

/// Warns if the target's chat template does not read the chosen reasoning.
pub(crate) fn warn_unheeded(think: Option<Thinking>, models: &Models) {
    let problem = think.and_then(|wanted| unheeded(wanted, models.encoder().thinking_switches()));
    if let Some(problem) = problem {
        eprintln!("{problem}");
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

/// Options of single methods.
#[derive(Args, Clone)]
pub(crate) struct OptionArgs {
    /// Shape of the trees of draft-tree and head-tree: dynamic, or children by level such as 3x2x1
    ///
    /// Commas separate the children of nodes of a level that differ. In 3x2,1 the first node of the second level has
    /// two, the second has one, and the third has none
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
            skipped_layers: given.or_else(|| {
                load::skipped_layers(&hunch_library::data_folder().ok()?, SearchedModel::of(target))
            }),
            ..MethodOptions::default()
        }
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
    load_on(&args.compute()?, args, drafters, methods, Lengths { context: None, longest })
}

/// Lengths of conversations, in tokens.
struct Lengths {
    /// Longest context. `None` is what the model was made for.
    context: Option<usize>,
    /// Most tokens that a conversation will have.
    longest: usize,
}

/// As [`load_for`], on a device that is already open.
fn load_on(
    compute: &Compute,
    args: &ModelArgs,
    drafters: &DrafterArgs,
    methods: &[Method],
    Lengths { context, longest }: Lengths,
) -> Result<Models> {
    let places = Places::of_this_user()?;
    let names =
        ModelNames { target: &args.target, draft: args.draft.as_deref(), head: drafters.head.as_deref() };
    let plan = LoadPlan { draft_device: args.draft_device, context, ..load::find(&places, names)? };
    // Read before the models, which take longer.
    let texts = match &drafters.texts[..] {
        [] => None,
        sources => Some(Texts::read(sources, &hunch_library::conversations_path()?, &|| false)?),
    };
    if !args.ignore_memory_check {
        let spec = hunch_library::inspect(&plan.target)?.spec;
        let usual = plan.context.unwrap_or_else(|| default_context(&spec));
        let context = usual.min(spec.context_length).min(longest).max(1) as u32;
        let fit = models::predicted_fit(compute, &places, &plan, Some(context))?;
        load::check_memory(&fit, "; --ignore-memory-check loads it anyway")?;
    }
    let mut models = Models::load_by(&plan, compute)?;
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
    if low_bit::is_written(&path) {
        return Ok(path);
    }
    eprintln!("Writing a low-bit copy of the target (once): {}", path.display());
    let progress = ProgressLine::new();
    load::ensure_low_bit_copy(target, &path, compute.threads().count(), &mut |done, total| {
        progress.show(done as u64, total as u64, format!("{}%", 100 * done / total.max(1)));
        ControlFlow::Continue(())
    })?;
    Ok(path)
}
