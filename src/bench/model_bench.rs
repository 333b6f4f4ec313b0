//! [`Bench`] and [`PassBench`] on loaded models, measured by the wall clock.

use std::collections::HashMap;

use crate::bench::cost_table::{PassBench, READING};
use crate::bench::lanes::{self, Lane, LaneRun};
use crate::bench::runner::{Bench, BetweenSlices};
use crate::bench::suite::SuitePrompt;
use crate::bench::turns::MeasuredAnswer;
use crate::engine::PausableStopwatch;
use crate::event::GenerationEvent;
use crate::generate::{GenerationPlan, Models, Prompt};
use hunch_core::method::Method;
use hunch_core::model::{DraftWindow, LanguageModel, LayerPlan, LogitRows, PassInput, VocabSubset};
use hunch_core::propose::{MethodOptions, Needs, Proposer};
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_model::pass_timer::seconds_of;

/// Tokens in the cache during a timed pass, unless a prompt sets another length.
pub(super) const CONTEXT: usize = 128;
/// Longest context of a timed pass. A longer one changes little and takes long to read.
const MAX_CONTEXT: usize = 2048;

/// Times passes of loaded models.
pub struct ModelPasses<'a> {
    models: &'a mut Models,
    /// Tokens in the cache during a pass.
    context: usize,
    /// Tokens in the cache while a prompt is read: half the prompt, on average.
    reading: usize,
    /// Text from which drafters choose the vocabulary subset they score.
    text: Vec<TokenId>,
}

impl<'a> ModelPasses<'a> {
    /// Creates a timer of the passes of these models.
    pub fn new(models: &'a mut Models) -> Self {
        Self { models, context: CONTEXT, reading: CONTEXT / 2, text: Vec::new() }
    }

    /// Sets the context of timed passes to the middle of an answer of `max_tokens` to the prompt of median length.
    pub fn set_context(&mut self, prompts: &[SuitePrompt], max_tokens: usize) {
        let ids = |prompt: &SuitePrompt| self.models.prompt_ids(&Prompt::Chat(prompt.messages())).ok();
        let mut prompts: Vec<Vec<TokenId>> = prompts.iter().filter_map(ids).collect();
        if prompts.is_empty() {
            return;
        }
        prompts.sort_by_key(Vec::len);
        self.text = prompts.swap_remove(prompts.len() / 2);
        self.context = (self.text.len() + max_tokens / 2).min(MAX_CONTEXT);
        self.reading = (self.text.len() / 2).min(MAX_CONTEXT);
    }
}

impl PassBench for ModelPasses<'_> {
    fn target_pass(&mut self, rows: usize) -> Result<f64> {
        let Self { models, context, text, .. } = self;
        time_pass(models.target(), &ModelPass { context: *context, text, ..ModelPass::of(rows) })
    }

    fn draft_pass(&mut self, drafter: Method, options: &MethodOptions, rows: usize) -> Result<Option<f64>> {
        if drafter.requires(Needs::Head) {
            // A head drafts one token at a time, or in one pass a row for each.
            let n_embd = self.models.target().info().n_embd;
            let Some(head) = self.models.head() else { return Ok(None) };
            if rows > head.tokens_of_a_pass() {
                return Ok(None);
            }
            let states = vec![vec![1.0; n_embd]; head.taps().len()];
            let draft = || {
                head.logits(&states, &[0])?;
                for _ in 1..rows {
                    head.next_logits(0)?;
                }
                Ok(())
            };
            return seconds_of(draft).map(Some);
        }
        let (logits, context) =
            if rows == READING { (LogitRows::None, self.reading) } else { (LogitRows::All, self.context) };
        let text = &self.text;
        self.models.with_drafter(drafter, options, text, |model, layers, vocab_subset| {
            let window = options.draft_window;
            time_pass(model, &ModelPass { rows, context, logits, layers, window, vocab_subset, text })
        })
    }
}

/// Benchmark of loaded models.
pub struct ModelBench<'a> {
    /// Owner of the models.
    passes: ModelPasses<'a>,
    /// Forks of the models, one per lane.
    lanes: Vec<Models>,
    /// Plain's greedy answers by prompt: the scripts of the synthetic method.
    scripts: HashMap<String, Vec<TokenId>>,
}

impl<'a> ModelBench<'a> {
    /// Creates a benchmark of these models.
    pub fn new(models: &'a mut Models) -> Self {
        Self { passes: ModelPasses::new(models), lanes: Vec::new(), scripts: HashMap::new() }
    }

    /// Returns plain's greedy answer: the script of the synthetic method.
    fn script(
        &mut self,
        prompt: &SuitePrompt,
        ids: &[TokenId],
        plan: &GenerationPlan,
    ) -> Result<Vec<TokenId>> {
        if let Some(script) = self.scripts.get(&prompt.prompt) {
            return Ok(script.clone());
        }
        let plain =
            GenerationPlan { method: Method::Plain, sampling: SamplingParams::greedy(), ..plan.clone() };
        let models = std::slice::from_mut(&mut *self.passes.models);
        let answers = answer(models, ids, &[plain], 0, &mut |_| Ok(()))?;
        let script = answers.into_iter().flat_map(|answer| answer.ids).collect::<Vec<_>>();
        self.scripts.insert(prompt.prompt.clone(), script.clone());
        Ok(script)
    }
}

/// Runs all lanes from empty caches and returns their answers.
fn answer(
    lanes: &mut [Models],
    prompt: &[TokenId],
    plans: &[GenerationPlan],
    number: usize,
    between: &mut dyn FnMut(&[TokenId]) -> Result<()>,
) -> Result<Vec<MeasuredAnswer>> {
    let clocks: Vec<PausableStopwatch> = lanes.iter().map(|_| PausableStopwatch::default()).collect();
    let mut ids: Vec<Vec<TokenId>> = vec![Vec::new(); lanes.len()];
    let inputs = lanes.iter_mut().zip(plans).zip(&clocks).zip(&mut ids);
    let lanes = inputs.map(|(((models, plan), clock), ids)| {
        let sink = |event: GenerationEvent| ids.extend(event.tokens().iter().map(|token| token.id));
        Lane { models, prompt, plan, clock, sink }
    });
    let run = LaneRun { number, stopped: &|| false, keep_caches: false };
    let answered = lanes::answer(lanes.collect(), &run, &mut |_| (), between)?.unwrap_or_default();
    let stats: Vec<_> = answered.into_iter().map(|lane| lane.stats).collect();
    Ok(stats.into_iter().zip(ids).map(|(stats, ids)| MeasuredAnswer { stats, ids }).collect())
}

impl Bench for ModelBench<'_> {
    fn set_context(&mut self, prompt: &SuitePrompt, max_tokens: usize) {
        self.passes.set_context(std::slice::from_ref(prompt), max_tokens);
    }

    fn begin(&mut self, lanes: usize) -> Result<()> {
        self.lanes = (0..lanes).map(|_| self.passes.models.fork()).collect::<Result<_>>()?;
        Ok(())
    }

    fn answer(
        &mut self,
        prompt: &SuitePrompt,
        plans: &[GenerationPlan],
        number: usize,
        between: BetweenSlices<'_>,
    ) -> Result<Vec<MeasuredAnswer>> {
        let ids = self.passes.models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
        for (lane, plan) in plans.iter().enumerate().filter(|(_, plan)| plan.method.requires(Needs::Script)) {
            let script = self.script(prompt, &ids, plan)?;
            self.lanes[lane].set_synthetic_script(script, plan.options.synthetic_acceptance)?;
        }
        let Self { passes, lanes, .. } = self;
        answer(lanes, &ids, plans, number, &mut |text| {
            text.clone_into(&mut passes.text);
            between(passes)
        })
    }

    fn passes(&mut self) -> &mut dyn PassBench {
        &mut self.passes
    }
}

/// A pass of a loaded model, for [`time_pass`].
#[derive(Clone, Copy, Debug)]
pub struct ModelPass<'a> {
    /// Rows of the pass.
    pub rows: usize,
    /// Tokens in the cache, at most as many as the model's context allows.
    pub context: usize,
    /// Rows that get logits.
    pub logits: LogitRows,
    /// Layers that run.
    pub layers: LayerPlan<'a>,
    /// Part of the cache that is read. `None` reads all of it.
    pub window: Option<DraftWindow>,
    /// Vocabulary subset that is scored. `None` scores all tokens.
    pub vocab_subset: Option<&'a VocabSubset>,
    /// Tokens of context and pass, repeated as needed. Their values matter only to mixtures of experts. Empty for
    /// pseudo-random tokens.
    pub text: &'a [TokenId],
}

impl ModelPass<'_> {
    /// A verify pass early in an answer: logits of all rows, all layers, the whole vocabulary.
    pub fn of(rows: usize) -> Self {
        Self {
            rows,
            context: CONTEXT,
            logits: LogitRows::All,
            layers: LayerPlan::All,
            window: None,
            vocab_subset: None,
            text: &[],
        }
    }
}

/// Runs one pass and returns its seconds. The context is read first if the cache does not hold it.
///
/// # Errors
/// When the model fails.
pub fn time_pass(model: &mut dyn LanguageModel, pass: &ModelPass<'_>) -> Result<f64> {
    let &ModelPass { rows, context, logits, layers, window, vocab_subset, text } = pass;
    let context = context.min(model.info().context_length.saturating_sub(rows.max(READING)));
    let n_vocab = model.info().n_vocab;
    let tokens: Vec<TokenId> = if text.iter().any(|&token| (token as usize) < n_vocab) {
        let known = text.iter().copied().filter(|&token| (token as usize) < n_vocab);
        known.cycle().take(context + rows).collect()
    } else {
        synthetic_tokens(context + rows, n_vocab)
    };
    // Tokens in the cache matter little: their number changes the time of a pass.
    model.truncate(model.cache_len().min(context))?;
    for chunk in tokens[model.cache_len()..context].chunks(model.prefill_rows().max(1)) {
        model.forward(PassInput { window, ..PassInput::chain(chunk, LogitRows::None) })?;
    }
    let step = PassInput { vocab_subset, layers, window, ..PassInput::chain(&tokens[context..], logits) };
    let seconds = seconds_of(|| {
        model.forward(step)?;
        Ok(())
    })?;
    model.truncate(context)?;
    Ok(seconds)
}

/// Returns pseudo-random tokens to time a pass with.
pub(super) fn synthetic_tokens(count: usize, n_vocab: usize) -> Vec<TokenId> {
    (0..count).map(|i| ((i * 7 + 100) % n_vocab) as TokenId).collect()
}
